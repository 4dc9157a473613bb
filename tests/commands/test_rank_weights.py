"""`vitmed probe` with several weights: which is better, when that is noise, and what is left out."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from conftest import Answer, Recorder, Trained, draw_classes, draw_splits
from PIL import Image
from safetensors.torch import save_file
from sklearn.metrics import mean_absolute_error, roc_auc_score

from vitmed import probe, train
from vitmed.commands import rank_weights as module
from vitmed.commands.rank_weights import RankingResult, short_names, weight_list
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.targets import UNKNOWN
from vitmed.metrics.any_predictions import read_predictions
from vitmed.metrics.finding_predictions import FindingPredictions
from vitmed.metrics.number_predictions import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.models.weights_catalogue import weight_path
from vitmed.report.plots.weights import ranking_picture
from vitmed.report.weights_ranking import ranking_lines

RUN = Callable[..., Answer]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And few penalties to choose from, for speed: tests/training/test_frozen_probe.py takes all."""
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("vitmed.training.linear_heads.C_VALUES", (1e-3, 1e-1))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_splits(tmp_path_factory.mktemp("ranked") / "data", 24, 9, 5, ("amber", "green"), seed=3)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random ViT, which sees colours, the same under another name, and one that sees nothing."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    network = timm.models.VisionTransformer(
        img_size=16, patch_size=8, embed_dim=64, depth=1, num_heads=1, num_classes=0
    )
    state = network.state_dict()
    save_file(state, folder / "sighted.safetensors")
    shutil.copy(folder / "sighted.safetensors", folder / "twin.safetensors")
    blind = {name: torch.zeros_like(v) if name.startswith("patch_embed") else v for name, v in state.items()}
    save_file(blind, folder / "blind.safetensors")
    (folder / "text.pth").write_text("no weights")
    save_file({"conv.weight": torch.zeros(3, 3, 3, 3)}, folder / "cnn.safetensors")
    return {file.stem: file for file in folder.iterdir()}


def rank(data: Path, output: Path, *weights: object, ui: Recorder | None = None, **flags: Any) -> RankingResult:
    names = [str(name) for name in weights]
    found = probe(data, weights=names, output=output, name="r", device="cpu", ui=ui or Recorder(), **flags)
    assert isinstance(found, RankingResult)
    return found


def test_weights_that_see_are_better_than_weights_that_do_not(data: Path, tmp_path: Path, files: dict) -> None:
    found = rank(data, tmp_path, files["blind"], files["sighted"])
    best, worst = (next(r for r in found.content.ranking if r.rank == rank) for rank in (1, 2))
    assert (found.content.best, best.name, worst.name) == ("sighted", "sighted", "blind")
    assert worst.logistic["auroc"].value == pytest.approx(0.5, abs=0.05)  # the folds differ a little in their shares
    assert not worst.like_best
    assert worst.minus_best is not None and worst.minus_best["auroc"].high is not None
    assert worst.minus_best["auroc"].high < 0 and worst.p_holm is not None and worst.p_holm < 0.001
    assert "shown to be better than the others" in found.content.verdict
    # the table of the held-out predictions gives the same AUROC to scikit-learn
    table = Predictions.from_csv(next((found.folder / "held_out").glob("*_sighted.csv")), labelled=True)
    assert len(table) == found.content.images == 66 and table.labels is not None
    value = roc_auc_score(table.labels == 0, table.probabilities[:, 0])
    assert best.logistic["auroc"].value == pytest.approx(value)
    assert all(path.startswith(("train/", "val/")) for path in table.paths)


def test_the_same_weights_under_two_names_cannot_be_told_apart(data: Path, tmp_path: Path, files: dict) -> None:
    found = rank(data, tmp_path, files["sighted"], files["blind"], files["twin"])
    twin = next(r for r in found.content.ranking if r.name == "twin")
    assert twin.minus_best is not None and twin.like_best and twin.same_as == "sighted"
    for gap in twin.minus_best.values():
        assert (gap.value, gap.low, gap.high) == (0, 0, 0)
    assert "cannot be told apart from it: twin (p adjusted for 6 pairs, Holm)" in found.content.verdict
    assert any(line.startswith("2  twin") and " = " in line for line in ranking_lines(found.content))


def test_p_values_are_adjusted_for_all_pairs(data: Path, tmp_path: Path, files: dict) -> None:
    """Holm by hand: the k-th smallest of m, times m - k + 1, never falling."""
    found = rank(data, tmp_path, files["sighted"], files["blind"], files["twin"]).content
    tests = sorted((p.tests["auroc"] for p in found.pairs if p.tests["auroc"].p is not None), key=lambda t: t.p or 0)
    by_hand = np.maximum.accumulate([min(1, (t.p or 0) * (len(tests) - k)) for k, t in enumerate(tests)])
    assert [t.p_holm for t in tests] == pytest.approx(by_hand.tolist())


def test_a_second_run_computes_and_decodes_nothing(
    data: Path, tmp_path: Path, files: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rank(data, tmp_path, files["sighted"], files["blind"])
    for name in ("frozen_features", "colour_and_size", "build_vit"):
        monkeypatch.setattr(module, name, lambda *args: pytest.fail("features are computed again"))
    monkeypatch.setattr("vitmed.training.frozen_probe.read_splits", lambda *args, **kw: pytest.fail("read again"))
    again = rank(data, tmp_path, files["sighted"], files["blind"])
    assert all(row.cached for row in again.content.ranking) and not any(row.cached for row in first.content.ranking)
    before, after = (found.content.model_dump(exclude={"ranking": {"__all__": {"cached"}}}) for found in (first, again))
    assert before == after and again.folder.name == "r-2"


def test_a_new_image_is_the_only_one_computed(tmp_path: Path, files: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    root = draw_splits(tmp_path / "data", 12, 5, 4)
    rank(root, tmp_path, files["sighted"], files["blind"])
    draw_classes(tmp_path / "more", 1, ("amber",), seed=99)
    shutil.copy(next((tmp_path / "more" / "amber").iterdir()), root / "train" / "amber" / "new.png")
    counts: list[int] = []
    frozen = module.frozen_features

    def counting(model: Any, images: Any, device: Any, progress: Any, rows: Any) -> np.ndarray:
        counts.append(len(rows))
        return frozen(model, images, device, progress, rows)

    monkeypatch.setattr(module, "frozen_features", counting)
    rank(root, tmp_path, files["sighted"], files["blind"])
    assert set(counts) == {1}


def test_the_test_images_are_not_opened(tmp_path: Path, files: dict) -> None:
    root = draw_splits(tmp_path / "data", 12, 5, 4)
    for file in (root / "test").rglob("*.png"):
        file.write_text("not an image")
    rank(root, tmp_path, files["sighted"], files["blind"])


def test_what_cannot_be_used_is_left_out_and_the_rest_goes_on(data: Path, tmp_path: Path, files: dict) -> None:
    ui = Recorder()
    found = rank(data, tmp_path, files["text"], files["sighted"], files["cnn"], ui=ui, offline=True).content
    assert [row.name for row in found.ranking if row.rank] == ["sighted"]
    assert set(found.left_out) == {"text", "cnn"} and "not a checkpoint or weight file" in found.left_out["text"]
    assert all(any(f"{name} is left out: " in text for text in ui.warned) for name in found.left_out)
    with pytest.raises(CheckpointError, match="none of these weights can be used"):
        rank(data, tmp_path, files["text"], files["cnn"])


def test_a_gated_model_names_its_page_and_the_place_of_its_file(data: Path, tmp_path: Path, files: dict) -> None:
    reason = rank(data, tmp_path, "uni", files["sighted"], offline=True).content.left_out["uni"]
    assert "https://huggingface.co/MahmoodLab/UNI" in reason and f"put it at {weight_path('uni')}" in reason


def test_out_of_memory_leaves_one_out_and_is_not_kept(
    data: Path, tmp_path: Path, files: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, calls = module.frozen_features, []

    def first_fails(*args: Any) -> np.ndarray:
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return frozen(*args)

    monkeypatch.setattr(module, "frozen_features", first_fails)
    found = rank(data, tmp_path, files["twin"], files["sighted"]).content
    assert found.best == "sighted" and "out of memory" in found.left_out["twin"]
    assert "--image-size" in found.left_out["twin"]
    found = rank(data, tmp_path, files["twin"], files["sighted"]).content
    assert found.left_out == {}


def test_a_checkpoint_that_learned_from_these_labels_is_not_ranked(
    trained: Trained, tmp_path: Path, files: dict
) -> None:
    ui = Recorder()
    found = rank(trained.data, tmp_path, trained.folder, files["sighted"], files["blind"], ui=ui).content
    last = found.ranking[-1]
    assert (last.name, last.rank, last.seen) == (trained.folder.name, None, 48) and found.best == "sighted"
    assert any("so it is not ranked" in text for text in ui.warned)


def test_an_own_checkpoint_is_ranked_on_other_images(trained: Trained, data: Path, tmp_path: Path, files: dict) -> None:
    found = rank(data, tmp_path, trained.folder, files["blind"]).content
    assert found.best == trained.folder.name == "tiny" and found.ranking[0].seen == 0


def test_unreadable_images_are_left_out_for_all(tmp_path: Path, files: dict) -> None:
    root = draw_splits(tmp_path / "data", 12, 5, 4)
    next((root / "train" / "amber").iterdir()).write_text("not an image")
    for _ in range(2):  # the failure is not kept
        found = rank(root, tmp_path, files["sighted"], files["blind"], on_bad_file="skip").content
        assert found.images == 2 * 17 - 1


def test_the_command_line_and_the_config_that_train_takes(
    vitmed: RUN, tmp_path: Path, files: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = draw_splits(tmp_path / "my data", 12, 5, 4)
    both = f"{files['sighted']},{files['blind']}"
    answer = vitmed("probe", root, "--weights", both, "-o", tmp_path, "--positive", "blue", "--json", "--set",
                    "model.pool=mean", "--name", "r", "--no-cache")  # fmt: skip
    assert answer.code == 0, answer.err
    content = json.loads(answer.out)
    assert content["best"] == "sighted" and "cannot be told apart from the best" in answer.err
    words = shlex.split(content["train"])
    assert words[:3] == ["vitmed", "train", str(root)] and words[-2:] == ["--weights", str(files["sighted"])]
    assert {"--positive", "--no-cache", "model.pool=mean"} <= set(words)
    assert not (tmp_path / "cache" / "features").exists()
    assert str(tmp_path) not in (tmp_path / "r" / "ranking.json").read_text()
    seen: list[Any] = []
    from vitmed.commands import train as command

    monkeypatch.setattr(command, "_new_run", lambda config, *_: seen.append(config) or 1 / 0)
    assert vitmed(*words[1:]).code == 1
    assert vitmed("train", "--config", tmp_path / "r" / "train.yaml").code == 1
    for config in seen:
        assert Path(config.model.weights).resolve() == files["sighted"].resolve()
        assert (config.data.positive, config.model.pool) == ("blue", "mean")
        assert Path(config.data.root).resolve() == root.resolve()


def test_the_config_trains(tmp_path: Path, files: dict, no_figures: None) -> None:
    root = draw_splits(tmp_path / "data", 12, 5, 4)
    found = rank(root, tmp_path, files["sighted"], files["blind"])
    result = train(config=found.folder / "train.yaml", epochs=1, output=tmp_path / "runs", ui=Recorder(), device="cpu",
                   sets=("train.warmup_epochs=0",), workers=0)  # fmt: skip
    assert result.checkpoint is not None and result.checkpoint.is_file()


def test_all_local_takes_every_file_of_the_cache(data: Path, tmp_path: Path, files: dict) -> None:
    with pytest.raises(UsageError, match="all-local: there is no weight file"):
        weight_list("all-local")
    named, own = weight_path("dino_vits16"), tmp_path / "cache" / "weights" / "mine" / "own.safetensors"
    for place in (named, own):
        place.parent.mkdir(parents=True)
        shutil.copy(files["sighted"], place)
        place.with_name(place.name + ".sha256").write_text("note")
    named.with_name(named.name + ".part").write_text("half")
    assert weight_list("all-local") == ["dino_vits16", str(own)]
    found = probe(data, weights="all-local", output=tmp_path, name="r", ui=Recorder())
    assert isinstance(found, RankingResult)
    assert found.content.best == "own" and "dino_vits16" in found.content.left_out  # of a wrong size


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ("{sighted},dino_vits61", "no public weights are named 'dino_vits61'"),
        ("{sighted},gone.pth", "gone.pth: no such file"),
        ("{sighted},{sighted}", "sighted.safetensors twice"),
        ("dino_vits16,dino_vits16", "--weights names dino_vits16 twice"),
        ("{sighted},all-local", "goes with no other name"),
    ],
)
def test_a_wrong_list_ends_before_any_work(
    vitmed: RUN, data: Path, tmp_path: Path, files: dict, weights: str, told: str
) -> None:
    answer = vitmed("probe", data, "--weights", weights.format(**files), "-o", tmp_path / "runs")
    assert answer.code in (2, 4) and told in answer.err and "Traceback" not in answer.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("args", "told"),
    [(["--fail-under", "auroc=0.9"], "does not open"), (["--folds", 3], "name it: --fold 1")],
)
def test_what_a_ranking_does_not_do(
    vitmed: RUN, data: Path, tmp_path: Path, files: dict, args: list[Any], told: str
) -> None:
    answer = vitmed("probe", data, "--weights", f"{files['sighted']},{files['blind']}", "-o", tmp_path / "runs", *args)
    assert answer.code == 2 and told in answer.err


def test_one_weights_or_a_file_with_a_comma_is_no_list(files: dict, tmp_path: Path) -> None:
    odd = tmp_path / "a,b.safetensors"
    shutil.copy(files["sighted"], odd)
    assert (
        weight_list(str(odd)) is weight_list("dino_vits16") is weight_list("dino_vits16,") is weight_list(None) is None
    )
    assert weight_list([str(odd), "dino_vits16"]) == [str(odd), "dino_vits16"]


def test_names_are_short_and_unique() -> None:
    given = ["runs/one/best.pt", "other/one/best.pt", "dino_vits16", "x/model.pth", "y/model.pth"]
    assert list(short_names(given)) == ["one", "one-2", "dino_vits16", "model", "model-2"]


def test_the_picture_names_all_and_marks_what_is_like_the_best(data: Path, tmp_path: Path, files: dict) -> None:
    found = rank(data, tmp_path, files["sighted"], files["blind"], files["twin"]).content
    left, middle, _ = ranking_picture(found).axes
    assert [label.get_text() for label in left.get_yticklabels()] == [
        row.name.replace("_", "_") for row in found.ranking
    ]
    shapes = [
        line.get_marker() for line in middle.lines if line.get_marker() not in ("None", "") and len(line.get_xdata())
    ]
    expected = {"star": 1, "square": sum(row.like_best and row.minus_best is not None for row in found.ranking)}
    assert {"star": shapes.count("*"), "square": shapes.count("s")} == expected


@pytest.mark.slow
def test_two_hundred_classes(tmp_path: Path, files: dict) -> None:
    rng = np.random.default_rng(0)
    for k in range(200):
        for part, count in (("train", 3), ("val", 1), ("test", 1)):
            (tmp_path / "data" / part / f"c{k:03}").mkdir(parents=True)
            for i in range(count):
                noise = rng.integers(0, 40, (16, 16, 3)) + np.array([k, 2 * k % 200, 3 * k % 200])
                Image.fromarray(noise.astype(np.uint8)).save(tmp_path / "data" / part / f"c{k:03}" / f"{i}.png")
    found = rank(tmp_path / "data", tmp_path, files["sighted"], files["blind"]).content
    assert len(found.classes) == 200 and found.best == "sighted"


def test_findings_and_numbers_are_ranked_in_folds_by_patient(tmp_path: Path, files: dict) -> None:
    """A finding, and a number, that the colour of an image decides: scikit-learn's numbers of the held-out table."""
    rng, rows = np.random.default_rng(0), []
    (tmp_path / "data").mkdir()
    for patient in range(15):
        for i in range(3):
            red = int(rng.integers(40, 220))
            pixels = np.clip(rng.normal((red, 90, 90), 8, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / f"{patient}_{i}.png")
            rows.append((f"{patient}_{i}.png", f"P{patient}", red))
    labels = tmp_path / "findings.csv", tmp_path / "numbers.csv"
    lines = [
        f"{path},{patient},{int(red > 130)},{int(red < 90) if i % 4 else ''}"
        for i, (path, patient, red) in enumerate(rows)
    ]
    labels[0].write_text("\n".join(["path,patient,red,pale", *lines]) + "\n")
    lines = [f"{path},{patient},{red}" for path, patient, red in rows]
    labels[1].write_text("\n".join(["path,patient,label", *lines]) + "\n")
    weights = files["sighted"], files["blind"]
    of = {
        kind: rank(tmp_path / "data", tmp_path / kind, *weights, labels=file, target=kind, image_size=16)
        for kind, file in zip(("findings", "number"), labels, strict=True)
    }
    for kind, found in of.items():
        content, number = found.content, {"findings": "auroc", "number": "mae"}[kind]
        assert content.best == "sighted" and "by patient" in content.held_out and content.patients is not None
        table = read_predictions(sorted((found.folder / "held_out").glob("*sighted.csv"))[0])
        assert table.labels is not None and len(table) == content.images and (found.folder / "train.yaml").is_file()
        if isinstance(table, NumberPredictions):
            expected = mean_absolute_error(table.labels, table.values)
        else:
            assert isinstance(table, FindingPredictions)
            pairs = zip(table.labels.T, table.probabilities.T, strict=True)
            expected = np.mean([roc_auc_score(own[own != UNKNOWN], chance[own != UNKNOWN]) for own, chance in pairs])
        by = {one.name: one for one in content.ranking}
        assert by["sighted"].logistic[number].value == pytest.approx(expected)
        gap = by["blind"].minus_best
        assert gap is not None and gap[number].value == pytest.approx(
            (by["blind"].logistic[number].value or 0) - expected
        )
        assert gap[number].low is not None and not by["blind"].like_best and "colour_and_size" in by
