"""`vitmed train --pretrain`: two phases in one run folder, which images the first one sees, and stopping in either."""

from __future__ import annotations

import csv
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import same
from conftest import TINY, TINY_SETS, Answer, Recorder, draw_classes, draw_patients, draw_splits, interrupt_at
from PIL import Image

from vitmed import evaluate, train
from vitmed.commands.pretrain_first import pretraining_config
from vitmed.commands.train import TrainResult
from vitmed.core import stored_paths
from vitmed.core.errors import DataError, Interrupted
from vitmed.core.load_config import load_config, with_values
from vitmed.core.run_folder import RunFolder
from vitmed.training.checkpoint import load_checkpoint
from vitmed.training.time_plan import training_time

pytestmark = pytest.mark.usefixtures("no_figures")
RUN = Callable[..., Answer]
FLAGS: dict[str, Any] = {**TINY, "pretrain": True, "pretrain_epochs": 2}  # the plan has the stem of convolutions


def start(data: Path, output: Path, ui: Recorder | None = None, **flags: Any) -> TrainResult:
    return train(data, output=output, name="run", sets=TINY_SETS, ui=ui or Recorder(), **FLAGS | flags)


def used(run: Path) -> dict[str, list[str]]:
    """Split -> paths that pretraining used."""
    with (run / "pretrain" / "splits.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    return {name: [row["path"] for row in rows if row["split"] == name] for name in ("train", "val")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_splits(tmp_path_factory.mktemp("pretrain-first") / "data")


def test_training_starts_from_the_encoder_in_its_own_folder(data: Path, tmp_path: Path) -> None:
    ui = Recorder()
    result = start(data, tmp_path, ui, lr=1e-6, weight_decay=0.0, ema=False)  # so that training changes next to nothing
    folder = RunFolder(result.folder)
    encoder = torch.load(folder.pretraining.encoder, weights_only=True)
    best = load_checkpoint(result.checkpoint)
    for name, tensor in encoder["weights"].items():
        if "running_" not in name and "num_batches" not in name:  # the training has statistics of its own
            assert torch.allclose(best.weights[name], tensor, atol=1e-4), name
    report = json.loads(folder.weights.read_text())
    assert sorted(report["fresh"]) == ["head.bias", "head.weight"] and not report["unused"]
    assert set(best.seen) == set(encoder["seen"]) == {*best.hashes["train"], *best.hashes["val"]}
    assert best.config.model.weights is None and best.config.train.pretrain  # the same command, in another place too
    facts = result.test.metrics["report"]["facts"]
    assert "pretrained without labels" in facts["Started from"]
    assert any("two random views" in text for text in ui.said)
    assert any(text.startswith("first pretraining without labels: 2 epochs, about") for text in ui.said)
    assert any(text.startswith("time after pretraining: about") for text in ui.said)


def test_behind_a_plain_stem_it_learns_from_masked_patches(data: Path, tmp_path: Path) -> None:
    ui = Recorder()
    result = start(data, tmp_path, ui, stem="patch", patch_size=4)
    assert any("reconstructs each image" in text for text in ui.said)
    assert (result.folder / "pretrain" / "reconstructions.png").is_file()


def test_validation_and_test_teach_the_encoder_nothing(data: Path, tmp_path: Path) -> None:
    seen = used(start(data, tmp_path).folder)
    assert sorted(seen["train"]) == sorted(p.relative_to(data).as_posix() for p in (data / "train").rglob("*.png"))
    assert sorted(seen["val"]) == sorted(p.relative_to(data).as_posix() for p in (data / "val").rglob("*.png"))


def test_further_images_without_what_is_held_out(tmp_path: Path) -> None:
    """Four new images, one twice; left out: copies of test and validation, one as JPEG, and a training image."""
    data = draw_splits(tmp_path / "data", seed=1)
    more = draw_classes(tmp_path / "more", 2, seed=99)
    shutil.copy(more / "amber" / "amber_0.png", more / "again.png")
    shutil.copy(data / "test" / "amber" / "amber_0.png", more / "a.png")
    shutil.copy(data / "val" / "blue" / "blue_1.png", more / "blue" / "b.png")
    shutil.copy(data / "train" / "blue" / "blue_1.png", more / "c.png")
    Image.open(data / "test" / "blue" / "blue_2.png").save(more / "d.jpg", quality=95)
    ui = Recorder()
    run = start(data, tmp_path / "runs", ui, pretrain_also=more).folder
    further = [path for path in used(run)["train"] if path.startswith("../more/")]
    assert sorted(further) == [f"../more/{name}" for name in
                               ("again.png", "amber/amber_1.png", "blue/blue_0.png", "blue/blue_1.png")]  # fmt: skip
    said = "\n".join(ui.said)
    assert "2 copies of validation or test images" in said and "1 look like copies" in said
    assert "2 training images, or copies of one another" in said
    with pytest.raises(DataError, match="used to make this model"):
        evaluate(run, data=_labelled(tmp_path / "copy", more / "amber" / "amber_1.png"), ui=Recorder())


def test_further_images_on_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found again after an interruption, and no file of the run names their folders."""
    data, more = draw_splits(tmp_path / "data", seed=1), draw_classes(tmp_path / "disk" / "more", 2, seed=99)
    near = stored_paths.project_path
    monkeypatch.setattr(stored_paths, "project_path", lambda path, *rest: None if "disk" in path else near(path, *rest))
    with pytest.raises(Interrupted):
        start(data, tmp_path / "runs", interrupt_at(2), pretrain_also=more)
    (run,) = (tmp_path / "runs").iterdir()
    train(resume=run, ui=Recorder())
    further = [path for path in used(run)["train"] if path.startswith("elsewhere-")]
    assert [path.split("/", 1)[1] for path in sorted(further)] == [
        "more/amber/amber_0.png", "more/amber/amber_1.png", "more/blue/blue_0.png", "more/blue/blue_1.png",
    ]  # fmt: skip
    for file in run.rglob("*"):
        if file.is_file():
            content = zipfile.ZipFile(file).read if file.suffix == ".pt" else None
            parts = [content(name) for name in zipfile.ZipFile(file).namelist()] if content else [file.read_bytes()]
            assert not any(b"/disk/more" in part for part in parts), file


def _labelled(folder: Path, file: Path) -> Path:
    """A labelled set that holds the file."""
    draw_classes(folder, 3, seed=77)
    shutil.copy(file, folder / "amber")
    return folder


def test_further_images_of_held_out_patients_are_left_out(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for k, name in enumerate(("train", "val", "test")):
        draw_patients(data / name, 3 * k, seed=k)
    more = tmp_path / "more"
    for patient in (1, 4, 7, 9):
        draw_classes(more / f"P{patient}_x", 1, ("scan",), seed=50 + patient)
    draw_classes(more / "nobody", 1, ("scan",), seed=60)
    ui = Recorder()
    run = start(data, tmp_path / "runs", ui, pretrain_also=more, group_regex=r"(P\d+)_").folder
    further = [path for path in used(run)["train"] if path.startswith("../more/")]
    assert [path.split("/")[2] for path in further] == ["P1_x", "P9_x", "nobody"]
    assert any("2 of patients in validation or test" in text for text in ui.said)
    assert any("patients of 1 image without labels are unknown" in text for text in ui.warned)


def test_the_other_images_of_the_labelled_folder(tmp_path: Path) -> None:
    """With a few labels of many: the rest of the training images teach the encoder, validation and test do not."""
    data = draw_classes(tmp_path / "data", 20)
    run = start(data, tmp_path / "runs", pretrain_also=data, max_train=8).folder
    with (run / "splits.csv").open() as stream:
        held_out = {row["path"] for row in csv.DictReader(stream) if row["split"] != "train"}
    seen = {path.removeprefix("./") for path in used(run)["train"]}
    everything = {file.relative_to(data).as_posix() for file in data.rglob("*.png")}
    assert len(held_out) == 12 and seen == everything - held_out


def test_each_phase_gets_half_of_the_time() -> None:
    config = load_config(
        None, {"train.pretrain": True, "train.time": 600.0, "train.epochs": 40, "model.stem": "residual"}
    )
    first = pretraining_config(config, 100, 300)
    assert first.train.time == training_time(config.train) == 300
    assert first.train.epochs == 5  # 40 passes of 100 images are 10 of 400, and each of them computes two views
    assert (first.augment.policy, first.train.lr, first.train.batch_size) == ("views", 1e-3, 64)
    assert pretraining_config(with_values(config, {"train.pretrain_epochs": 7}), 100, 300).train.epochs == 7


def test_stopped_in_either_phase_it_goes_on_bit_for_bit(data: Path, tmp_path: Path) -> None:
    """2 batches of pretraining, then 6 of training: in the first, after it, in the second, in both."""
    whole = start(data, tmp_path / "whole").folder
    for presses in ([1], [2], [4], [1, 3]):
        run = tmp_path / str(presses) / "run"
        for i, press in enumerate(presses):
            with pytest.raises(Interrupted, match=r"last\.pt is saved") as stopped:
                if i == 0:
                    start(data, run.parent, interrupt_at(press))
                else:
                    train(resume=run, ui=interrupt_at(press))
            assert stopped.value.fix == f"vitmed train --resume {run}"
        train(resume=run, ui=Recorder())
        for file in ("pretrain/last.pt", "last.pt"):
            one, other = (torch.load(folder / file, weights_only=True) for folder in (whole, run))
            same(one["training"], other["training"])


def test_every_fold_pretrains_on_its_own_training_part(tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 12)
    train(data, output=tmp_path / "runs", name="folds", folds=2, sets=TINY_SETS, ui=Recorder(), **FLAGS)
    for fold in ("fold-1", "fold-2"):
        run = tmp_path / "runs" / "folds" / fold
        with (run / "splits.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        tested = {row["path"] for row in rows if row["split"] == "test"}
        seen = used(run)
        assert tested and not tested & {*seen["train"], *seen["val"]}
        assert seen["train"] == [row["path"] for row in rows if row["split"] == "train"]


def test_bad_input_ends_before_there_is_a_run_folder(data: Path, tmp_path: Path, vitmed: RUN) -> None:
    runs, empty = tmp_path / "runs", tmp_path / "empty"
    empty.mkdir()
    for code, told, more in (
        (2, "starts from random weights", ("--pretrain", "--weights", "x.pt")),
        (2, "--pretrain-also needs --pretrain", ("--pretrain-also", data)),
        (2, "--pretrain-epochs needs --pretrain", ("--pretrain-epochs", 3)),
        (3, "no such folder", ("--pretrain", "--pretrain-also", tmp_path / "nowhere")),
        (2, "add --weights FILE", ("--pretrain", "--freeze")),
    ):
        answer = vitmed("train", data, "-o", runs, *more)
        assert answer.code == code and told in answer.err and "Traceback" not in answer.err, answer.err
        assert not runs.exists() or not list(runs.iterdir())
