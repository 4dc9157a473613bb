"""`vitmed probe` with several weights: which is better, when that is noise, and what is left out."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from conftest import Answer, Recorder, Trained, draw_splits, recording
from PIL import Image
from safetensors.torch import save_file

from vitmed import probe
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.models.weights.catalogue import weight_path
from vitmed.studies import rank_weights as module
from vitmed.studies.rank_weights import RankingResult, weight_list

RUN = Callable[..., Answer]


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and few penalties to choose from."""
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("vitmed.training.baselines.C_VALUES", (1e-3, 1e-1))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some with a wrong label. The test cannot be read: nothing here opens it."""
    root = draw_splits(tmp_path_factory.mktemp("ranked") / "data", 24, 40, 5, ("amber", "green"), seed=3)
    for part, count in (("train", 3), ("val", 5)):
        for one, other in (("amber", "green"), ("green", "amber")):
            for file in sorted((root / part / one).glob("[!x]*.png"))[:count]:
                file.rename(root / part / other / f"x{one}_{file.name}")
    for file in (root / "test").rglob("*.png"):
        file.write_text("not an image")
    return root


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


def rank(data: Path, output: Path, *weights: object, **flags: Any) -> RankingResult:
    names = [str(name) for name in weights]
    flags = {"device": "cpu"} | flags
    found = probe(data, weights=names, output=output, name="r", **flags)
    assert isinstance(found, RankingResult)
    return found


def names(found: RankingResult) -> list[str]:
    return [row["name"].partition(".")[0] for row in found.content["ranking"]]


def test_weights_that_see_are_ahead_of_weights_that_do_not_and_like_their_twin(
    data: Path, tmp_path: Path, files: dict, ui: Recorder
) -> None:
    found = rank(data, tmp_path, files["blind"], files["sighted"], files["twin"], youden=True)
    assert "probe trains no network here, so these have no effect: evaluate.youden" in ui.warned
    assert names(found) == ["sighted", "twin", "blind"] and found.weights == str(files["sighted"])
    assert [row["clearly_behind"] for row in found.content["ranking"]] == [False, False, True]
    blind, twin = (next(row for row in found.rows if row[1].startswith(name)) for name in ("blind", "twin"))
    assert blind[3].startswith("-0.") and blind[4] == "yes" and twin[3].startswith("+0.0") and twin[4] == "no"
    assert "clearly behind: blind.safetensors" in found.content["verdict"]
    assert "chance may decide: twin.safetensors" in found.content["verdict"]
    assert found.content["images"] == 80 and "colours and size" in found.content["models"]
    assert (found.folder / "ranking.csv").read_text().splitlines()[1].startswith("1,sighted.safetensors,")


@pytest.mark.slow
def test_workers_of_an_executor_rank_alike(data: Path, tmp_path: Path, files: dict) -> None:
    given = files["blind"], files["cnn"], files["sighted"]
    here = rank(data, tmp_path, *given)
    with ThreadPoolExecutor(2) as executor:
        ui = recording()
        there = rank(data, tmp_path, *given, on=executor)
    assert "cnn.safetensors is left out" in "\n".join(ui.warned)
    for found in (here, there):
        for row in found.content["ranking"]:
            del row["seconds"]
    assert there.content == here.content and [row[:5] for row in there.rows] == [row[:5] for row in here.rows]
    with pytest.raises(UsageError, match="--on: there is one thing to evaluate"):
        probe(data, on="local")


def test_the_number_is_that_of_a_probe_with_these_weights_alone(tmp_path: Path, files: dict) -> None:
    root = draw_splits(tmp_path / "data", 12, 8, 8)
    ranked = rank(root, tmp_path, files["sighted"], files["blind"]).content["models"]
    alone = probe(root, weights=str(files["sighted"]), output=tmp_path, name="one", device="cpu", resamples=0,
                  map_images=0, sets=("evaluate.calibration=none", "evaluate.report=false"))  # fmt: skip
    expected = alone.val.metrics.overall["auroc"].value  # type: ignore[union-attr]
    assert ranked["sighted.safetensors"]["overall"]["auroc"]["value"] == pytest.approx(expected)


def test_what_cannot_be_used_is_left_out_and_the_rest_goes_on(
    data: Path, tmp_path: Path, files: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, calls = module.frozen_features, list[Any]()

    def first_fails(*args: Any) -> np.ndarray:
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return frozen(*args)

    monkeypatch.setattr(module, "frozen_features", first_fails)
    ui = recording()
    given = [files[name] for name in ("text", "twin", "sighted", "cnn")]
    found = rank(data, tmp_path, *given, "uni", offline=True)
    left_out = {name.partition(".")[0]: why for name, why in found.content["left_out"].items()}
    assert names(found) == ["sighted"] and set(left_out) == {"text", "twin", "cnn", "uni"}
    assert "not a checkpoint or weight file" in left_out["text"] and "--image-size" in left_out["twin"]
    assert "https://huggingface.co/MahmoodLab/UNI" in left_out["uni"] and str(weight_path("uni")) in left_out["uni"]
    assert all(any(f"{name} is left out: " in text for text in ui.warned) for name in found.content["left_out"])
    with pytest.raises(CheckpointError, match="none of these weights can be used"):
        rank(data, tmp_path, files["text"], files["cnn"])


def test_a_checkpoint_is_ranked_unless_it_learned_from_these_labels(
    trained: Trained, data: Path, tmp_path: Path, files: dict
) -> None:
    assert names(rank(data, tmp_path, trained.folder, files["blind"])) == [trained.folder.name, "blind"]
    found = rank(trained.data, tmp_path, trained.folder, files["blind"])
    assert names(found) == ["blind"]
    assert "their labels, so its numbers are too good" in found.content["left_out"][trained.folder.name]


def test_unreadable_images_are_left_out_for_all(tmp_path: Path, files: dict) -> None:
    root = draw_splits(tmp_path / "data", 12, 6, 4)
    next((root / "val" / "amber").iterdir()).write_text("not an image")
    assert rank(root, tmp_path, files["sighted"], files["blind"], on_bad_file="skip").content["images"] == 11


def test_the_command_that_trains_with_the_best(
    vitmed: RUN, data: Path, tmp_path: Path, files: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = f"{files['sighted']},{files['blind']}"
    answer = vitmed("probe", data, "--weights", both, "-o", tmp_path, "--positive", "green", "--json", "--set",
                    "model.pool=mean", "--name", "r", "--no-cache")  # fmt: skip
    assert answer.code == 0, answer.err
    content = json.loads(answer.out)
    assert content["best"] == "sighted.safetensors" and "best: sighted" in answer.err
    assert str(tmp_path) not in (tmp_path / "r" / "ranking.json").read_text()
    seen: list[Any] = []
    from vitmed.studies.one_run import OneRun

    monkeypatch.setattr(OneRun, "new", lambda self, config, *_: seen.append(config) or 1 / 0)
    words = shlex.split(content["train"])
    assert words[:3] == ["vitmed", "train", str(data)] and vitmed(*words[1:]).code == 1
    (config,) = seen
    assert config.model.weights == str(files["sighted"]) and not config.data.cache
    assert (config.data.positive, config.model.pool) == ("green", "mean")


def test_all_local_takes_every_file_of_the_cache(vitmed: RUN, data: Path, tmp_path: Path, files: dict) -> None:
    with pytest.raises(UsageError, match="all-local: there is no weight file"):
        weight_list("all-local")
    named, own = weight_path("dino_vits16"), tmp_path / "cache" / "weights" / "mine" / "own.safetensors"
    for place in (named, own):
        place.parent.mkdir(parents=True)
        shutil.copy(files["sighted"], place)
        place.with_name(place.name + ".sha256").write_text("note")
    named.with_name(named.name + ".part").write_text("half")
    assert weight_list("all-local") == ["dino_vits16", str(own)]
    odd = tmp_path / "a,b.safetensors"
    shutil.copy(files["sighted"], odd)
    assert all(weight_list(given) is None for given in (str(odd), odd, "dino_vits16", "dino_vits16,", None))
    assert weight_list([str(odd), "dino_vits16"]) == [str(odd), "dino_vits16"]
    answer = vitmed("probe", data, "--weights", "all-local", "-o", tmp_path, "--resamples", 20)
    assert answer.code == 0 and "dino_vits16 is left out" in answer.err  # of a wrong size
    assert "own.safetensors" in answer.out and "minus the best" in answer.out


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["{sighted},dino_vits61"], "no public weights are named 'dino_vits61'"),
        (["{sighted},gone.pth"], "gone.pth: no such file"),
        (["{sighted},{sighted}"], "sighted.safetensors twice"),
        (["dino_vits16,dino_vits16"], "--weights names dino_vits16 twice"),
        (["{sighted},{blind}", "--fail-under", "auroc=0.9"], "does not read"),
        (["{sighted},{blind}", "--folds", "3"], "name it: --fold 1"),
    ],
)
def test_a_wrong_use_ends_before_any_work(
    vitmed: RUN, data: Path, tmp_path: Path, files: dict, args: list[str], told: str
) -> None:
    answer = vitmed("probe", data, "-o", tmp_path / "runs", "--weights", *(text.format(**files) for text in args))
    assert answer.code in (2, 4) and told in answer.err and "Traceback" not in answer.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kind", ["findings", "number", "grades"])
def test_every_kind_of_label_is_ranked_by_patient(tmp_path: Path, files: dict, kind: str) -> None:
    """Labels that the colour of an image decides."""
    rng, lines = np.random.default_rng(0), [f"path,patient,{'red,pale' if kind == 'findings' else 'label'}"]
    (tmp_path / "data").mkdir()
    for patient in range(70):
        for i in range(2):
            red = int(rng.integers(40, 220))
            pixels = np.clip(rng.normal((red, 90, 90), 8, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / f"{patient}_{i}.png")
            pale = "" if (patient + i) % 4 == 0 else int(red < 90)
            red = red if patient % 8 else 260 - red  # some labels are wrong
            label = {"findings": f"{int(red > 130)},{pale}", "number": red, "grades": (red > 100) + (red > 160)}[kind]
            lines.append(f"{patient}_{i}.png,P{patient},{label}")
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(lines) + "\n")
    own = {"ordinal": ["0", "1", "2"], "target": "grades"} if kind == "grades" else {"target": kind}
    found = rank(tmp_path / "data", tmp_path, files["sighted"], files["blind"], labels=labels, image_size=16,
                 sets=("data.val_fraction=0.4",), **own)  # fmt: skip
    metric = {"findings": "auroc", "number": "mae", "grades": "quadratic_kappa"}[kind]
    assert names(found)[0] == "sighted" and found.content["kind"] == kind and found.content["patients"] > 10
    value = {name: one["overall"][metric]["value"] for name, one in found.content["models"].items()}
    better = value["sighted.safetensors"] - value["blind.safetensors"]
    assert better < 0 if kind == "number" else better > 0
    assert found.content["ranking"][1]["clearly_behind"]
