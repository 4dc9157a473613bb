"""Views at prediction: kept in the checkpoint, used for the decision policy and by every command that predicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import BARE, TINY_SETS, Answer, draw_nothing, draw_splits, listing
from PIL import Image

from vitmed import evaluate, explain, predict, stress, train
from vitmed.decisions.policy import choose_policy
from vitmed.explanation.attention import attention_maps
from vitmed.inference.checkpoint import Checkpoint, load_checkpoint
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import OOD_SCORE

RUN = Callable[..., Answer]
pytestmark = pytest.mark.usefixtures("no_figures")
SIZES = {"image_size": 20, "patch_size": 10}  # of the drawn files, so that no pixel is resized


def eight(pixels: np.ndarray) -> list[np.ndarray]:
    """The symmetries of a square image (S, S, C)."""
    return [np.rot90(part, k) for part in (pixels, pixels.transpose(1, 0, 2)) for k in range(4)]


def by_hand(saved: Checkpoint, files: list[Path]) -> np.ndarray:
    """(S, K): the mean logits of the eight copies of each file."""
    model, found = saved.model(), []
    for file in files:
        copies = np.stack(eight(np.asarray(Image.open(file).convert("RGB"))))
        with torch.no_grad():
            found.append(model(saved.preprocessing.normalise(torch.from_numpy(copies))).mean(0).numpy())
    return np.stack(found)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The data and the run folder of a training with eight views."""
    place = tmp_path_factory.mktemp("views")
    data = draw_splits(place / "data", val=12)
    settings = BARE | SIZES | {"policy": "blood_smear", "views": "all"}
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield data, train(data, output=place, name="run", sets=TINY_SETS, **settings).folder


def test_policy_and_evaluations_are_of_the_mean_over_the_views(run: tuple[Path, Path]) -> None:
    data, folder = run
    saved = load_checkpoint(folder)
    assert saved.config.augment.views == "all"
    tables = {}
    for split in ("val", "test"):
        tables[split] = Predictions.from_csv(folder / split / "predictions.csv")
        expected = by_hand(saved, [data / path for path in tables[split].paths])
        np.testing.assert_allclose(tables[split].logits, expected, atol=1e-5)
        one = [saved.model()(saved.preprocessing.normalise(torch.from_numpy(np.array(Image.open(data / path)))[None]))
               for path in tables[split].paths]  # fmt: skip
        assert np.abs(tables[split].logits - torch.cat(one).detach().numpy()).max() > 1e-3
    again = choose_policy(tables["val"], saved.config.evaluate)
    assert saved.policy is not None and again.operating == saved.policy.operating
    np.testing.assert_allclose(again.calibration.scale, saved.policy.calibration.scale)
    facts = json.loads((folder / "test" / "metrics.json").read_text())["report"]["facts"]
    assert "8 copies" in facts["Views"]


def test_a_turned_image_is_the_same_to_every_command(run: tuple[Path, Path], tmp_path: Path) -> None:
    """Logits and out-of-distribution scores do not change; `evaluate` and `predict` agree to the bit."""
    data, folder = run
    files = sorted((data / "test").rglob("*.png"))
    found = predict(files, checkpoint=folder, precision="fp32")
    for name, copy in (("mirrored", lambda x: x[:, ::-1]), ("turned", np.rot90)):
        for file in files:
            target = tmp_path / name / file.relative_to(data / "test")
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.ascontiguousarray(copy(np.asarray(Image.open(file))))).save(target)
        again = predict(tmp_path / name, checkpoint=folder, precision="fp32")
        np.testing.assert_allclose(again.logits, found.logits, atol=1e-5)
        scores = [[float(text) for text in part.columns[OOD_SCORE]] for part in (found, again)]
        np.testing.assert_allclose(scores[1], scores[0], rtol=1e-4)
    report = evaluate(folder, output=tmp_path / "again")
    evaluated, clean = report.predictions, report.metrics.overall["auroc"].value
    order = [evaluated.paths.index(file.relative_to(data).as_posix()) for file in files]
    assert evaluated.logits[order].tobytes() == found.logits.tobytes()
    stressed = stress(folder, corruptions=["defocus"], output=tmp_path / "stress")
    assert stressed.content.clean["auroc"].value == pytest.approx(clean)


def test_maps_are_of_the_image_alone(run: tuple[Path, Path], tmp_path: Path) -> None:
    data, folder = run
    saved, file = load_checkpoint(folder), next((data / "test").rglob("*.png"))
    found = explain(file, checkpoint=folder, output=tmp_path / "maps")
    pixels = saved.preprocessing.read(file)[None].copy()
    own = attention_maps(saved.model(), saved.preprocessing, pixels, found.targets, np.array([0]))
    for name, grid in own.grids.items():
        np.testing.assert_allclose(found.maps[name], grid)


@pytest.mark.parametrize("policy, views", [("chest_xray", "all"), ("fundus", "flips"), ("medical", "mirror")])
def test_views_that_the_policy_does_not_make_end_the_command(
    tmp_path: Path, vitmed: RUN, policy: str, views: str
) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    before = listing(data)
    answer = vitmed("train", data, "-o", tmp_path / "runs", "--policy", policy, "--views", views)
    assert answer.code == 2 and f"policy '{policy}' does not make" in answer.err
    assert not (tmp_path / "runs").exists() and listing(data) == before
