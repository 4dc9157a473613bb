"""`vitmed pretrain`: which images it may see, what it leaves behind, and that training takes it over."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import same, save
from conftest import (
    BARE,
    TINY,
    TINY_NETWORK,
    Answer,
    Recorder,
    draw_classes,
    draw_patients,
    draw_splits,
    interrupt_at,
    once,
    recording,
)

from vitmed import build_model, evaluate, pretrain, train
from vitmed.commands.pretrain import PretrainResult
from vitmed.core.config import PretrainConfig
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError
from vitmed.core.load_config import load_config
from vitmed.core.messages import listening
from vitmed.core.options import PRETRAIN_FLAGS
from vitmed.data.splits import make_splits
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.models.weights.pretrained import read_weights

pytestmark = pytest.mark.usefixtures("no_figures")
RUN = Callable[..., Answer]
SMALL = {k: v for k, v in TINY.items() if k != "policy"} | {"patch_size": 4}
# What the encoder decides is left out.
AFTER = {k: v for k, v in BARE.items() if k not in ("image_size", "patch_size")} | {"epochs": 1}
SETS = TINY_NETWORK
GIVEN = [part for k, v in SMALL.items() for part in (f"--{k.replace('_', '-')}", v)]
GIVEN += [part for text in SETS for part in ("--set", text)]


def start(data: Path, output: Path, sets: tuple[str, ...] = (), **flags: Any) -> PretrainResult:
    return pretrain(data, output=output, name="mae", sets=(*SETS, *sets), **SMALL | flags)


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "splits.csv").open() as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "pretrain", lambda place: draw_splits(place / "data"))


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> PretrainResult:
    """A finished run. Change nothing in it."""
    settings = {"epochs": 8, "normalize": "half", "policy": "none"}
    return once(tmp_path_factory, "pretrained", lambda place: start(data, place, **settings))


def test_the_loss_falls_and_all_is_written(made: PretrainResult) -> None:
    losses = [record["val_loss"] for record in made.records]
    assert losses[-1] < losses[0] and made.records[-1]["train_loss"] < made.records[0]["train_loss"]
    files = {path.name for path in made.folder.iterdir()}
    assert files == {"config.yaml", "environment.json", "splits.csv", "metrics.jsonl", "encoder.pt", "last.pt", ".lock",
                     "training_curves.png"}  # fmt: skip
    lines = [json.loads(line) for line in (made.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == made.records and [line["epoch"] for line in lines] == list(range(1, 9))


def test_the_config_of_a_run_repeats_it(data: Path, made: PretrainResult, tmp_path: Path) -> None:
    again = pretrain(config=made.folder / "config.yaml", output=tmp_path, name="again")
    one, other = (torch.load(run.encoder, weights_only=True) for run in (made, again))
    same(one["weights"], other["weights"])


def test_build_model_and_train_take_it_over(data: Path, made: PretrainResult, tmp_path: Path) -> None:
    """Nothing fresh but the head; network, size, normalisation and the mean come from the file."""
    with pytest.raises(CheckpointError, match=r"last\.pt: holds no state dict") as error:
        read_weights(made.folder / "last.pt")
    assert "encoder.pt" in error.value.fix
    weights = read_weights(made.encoder)
    assert weights.normalize == "half" and "head.weight" not in weights.state
    model = build_model(weights=made.encoder, num_classes=3)
    assert model.pool == "mean" and torch.equal(model.fc_norm.weight, weights.state["norm.weight"])
    assert torch.equal(model.blocks[0].mlp.fc1.weight, weights.state["blocks.0.mlp.fc1.weight"])
    result = train(data, weights=made.encoder, output=tmp_path, name="run", **AFTER)
    report = json.loads((result.folder / "weights.json").read_text())
    assert sorted(report["fresh"]) == ["head.bias", "head.weight"] and report["unused"] == report["resized"] == []
    config = load_checkpoint(result.checkpoint).config
    assert (config.data.normalize, config.model.image_size, config.model.patch_size) == ("half", 16, 4)
    assert not any("Leakage" in note for note in result.test.metrics["report"]["notes"])


# --- which images


def test_split_folders_leave_the_test_out(data: Path, made: PretrainResult) -> None:
    used = rows(made.folder)
    assert {row["split"] for row in used} == {"train", "val"} and len(used) == 2 * (12 + 4)
    assert not any(row["path"].startswith("test/") for row in used)
    seen = torch.load(made.encoder, weights_only=True)["seen"]
    assert sorted(seen) == sorted(row["sha256"] for row in used)


def test_class_folders_split_as_training_splits_them(tmp_path: Path) -> None:
    data = draw_patients(tmp_path / "data", 0, seed=3)
    draw_patients(tmp_path / "more", 3, seed=4)
    for file in (tmp_path / "more").rglob("*.png"):
        shutil.move(file, data / file.parent.name / file.name)
    ui = recording()
    flags = {"group_regex": r"(P\d+)_", "epochs": 1}
    result = start(data, tmp_path / "runs", ("data.val_fraction=0.2", "data.test_fraction=0.2"), **flags)
    asked = load_config(None, {"data.root": str(data), "data.group_regex": r"(P\d+)_", "data.val_fraction": 0.2,
                               "data.test_fraction": 0.2})  # fmt: skip
    splits = make_splits(asked.data)
    for name in ("train", "val"):
        used = [row["path"] for row in rows(result.folder) if row["split"] == name]
        assert used == [sample.path for sample in splits.samples[name]]
    assert any(f"{len(splits.samples['test'])} images, left out" in text for text in ui.said)


def test_loose_images_are_all_taken_but_5_percent(tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "all", 20) / "amber"  # a folder of images, no class below
    for file in (tmp_path / "all" / "blue").iterdir():
        shutil.move(file, data / file.name)
    ui = recording()
    result = start(data, tmp_path / "runs", epochs=1)
    used = rows(result.folder)
    assert len(used) == 40 and sum(row["split"] == "val" for row in used) == 2
    assert any("no test images were left out" in text for text in ui.warned)
    draw_splits(data, train=0, val=0, test=3)  # a test folder beside loose images
    ui = recording()
    again = start(data, tmp_path / "runs", epochs=1)
    assert {row["path"] for row in rows(again.folder)} == {row["path"] for row in used}
    assert any("6 images, left out" in text for text in ui.said)


def test_unlabelled_folders_are_taken_whole_by_patient(tmp_path: Path) -> None:
    """Folders that are no classes, of one image each some: training would refuse them, and says what to do."""
    for i in range(12):
        draw_classes(tmp_path / "data" / f"study{i}", 1 + i % 2, ("scan",), seed=i)
    with pytest.raises(DataError, match="--unlabelled"):
        start(tmp_path / "data", tmp_path / "runs", epochs=1)
    sets = ("data.val_fraction=0.25",)
    flags = {"unlabelled": True, "epochs": 1, "group_regex": r"(study\d+)/"}
    used = rows(start(tmp_path / "data", tmp_path / "runs", sets=sets, **flags).folder)
    groups = {name: {row["group"] for row in used if row["split"] == name} for name in ("train", "val")}
    assert len(used) == 18 and groups["val"] and not groups["train"] & groups["val"]
    assert len(groups["train"]) + len(groups["val"]) == 12


def test_a_patient_of_the_test_folder_is_refused(tmp_path: Path) -> None:
    data = draw_patients(tmp_path / "data" / "test", 0, seed=1).parent
    draw_patients(data / "images", 2, seed=2)
    with pytest.raises(DataError, match="'P2' in train and test"):
        start(data, tmp_path / "runs", epochs=1, group_regex=r"(P\d+)_")


def test_a_test_image_that_was_seen_is_told(tmp_path: Path, made: PretrainResult, data: Path) -> None:
    """Before training, in the report, in a report made later, and by a run that starts from that run."""
    other = draw_splits(tmp_path / "other", seed=5)
    shutil.copy(data / "train" / "amber" / "amber_0.png", other / "test" / "amber" / "copy.png")
    ui = recording()
    result = train(other, weights=made.encoder, output=tmp_path, name="one", **AFTER)
    assert any("the weights were made with 1 test image:" in text for text in ui.warned)
    for metrics in (result.test.metrics, evaluate(result.folder, output=tmp_path / "r").metrics):
        assert any("Leakage: 1 of these images was used to make the weights" in n for n in metrics["report"]["notes"])
    assert not any("Leakage" in note for note in result.val.metrics["report"]["notes"])
    later = train(other, weights=result.checkpoint, output=tmp_path, name="two", **AFTER)
    assert any("Leakage: 1 of" in note for note in later.test.metrics["report"]["notes"])
    assert not any("validation image" in text for text in ui.warned)
    train(other, weights=result.checkpoint, output=tmp_path, name="three", resplit=True, test=False, **AFTER)
    assert any(re.search(r"the weights were made with \d+ validation images", text) for text in ui.warned)
    with pytest.raises(DataError, match="pretraining"):
        evaluate(later.folder, data=data / "train")


# --- stop and go on


def test_a_stopped_run_goes_on_bit_for_bit(data: Path, tmp_path: Path) -> None:
    """24 images in batches of 4 and 2 batches a step: stopped at an epoch's end, and again within a step."""
    flags = {"epochs": 3, "batch_size": 4, "accumulate": 2, "policy": "mae"}
    sets = ("model.dropout=0.1", "model.drop_path=0.1", "model.depth=2")
    whole, run = start(data, tmp_path / "whole", sets=sets, **flags).folder, tmp_path / "mae"
    with pytest.raises(Interrupted, match=r"last\.pt is saved") as stopped, listening(interrupt_at(6)):
        start(data, tmp_path, sets=sets, **flags)
    assert f"vitmed pretrain --resume {run}" in stopped.value.fix
    with pytest.raises(Interrupted, match=r"last\.pt is saved"), listening(interrupt_at(9)):
        pretrain(resume=run)
    pretrain(resume=run)
    for file, part in (("last.pt", "training"), ("encoder.pt", "weights")):
        one, other = (torch.load(folder / file, weights_only=True) for folder in (whole, run))
        same(one[part], other[part])


def test_a_figure_that_fails_does_not_cost_the_state(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted run saves last.pt before it draws; 6 batches in, the saved one stands in the second epoch."""

    def broken(*of: object) -> None:
        raise ValueError("no figure")

    monkeypatch.setattr("vitmed.commands.pretrain.training_curves", broken)
    with pytest.raises((ValueError, Interrupted)) as stopped, listening(interrupt_at(5)):
        start(data, tmp_path, epochs=3)
    position = torch.load(tmp_path / "mae" / "last.pt", weights_only=True)["training"]
    assert (position["epoch"], position["batch"]) == (1, 2), stopped
    assert stopped.type is Interrupted


def test_stopped_at_once(data: Path, tmp_path: Path) -> None:
    def press(done: int) -> None:
        if done == 4:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped at once"), listening(Recorder(press)):
        start(data, tmp_path)


def test_what_cannot_be_resumed(data: Path, made: PretrainResult, tmp_path: Path) -> None:
    for run, given, told in (
        (made.folder, {}, "finished"),
        (made.folder, {"epochs": 9}, "own configuration"),
        (made.folder, {"name": "other"}, "own folder"),
        (tmp_path, {}, r"no last\.pt"),
    ):
        with pytest.raises((CheckpointError, UsageError), match=told):
            pretrain(resume=run, **given)
    with pytest.raises(CheckpointError, match="the state of a pretraining run") as error:
        train(resume=made.folder)
    encoder = made.folder / "encoder.pt"
    finished = f"where it is finished: vitmed train DIR --weights {encoder}"
    assert encoder.is_file() and error.value.fix == f"vitmed pretrain --resume {made.folder}; {finished}"
    with pytest.raises(Interrupted), listening(interrupt_at(1)):
        start(data, tmp_path)
    other = draw_splits(tmp_path / "data", seed=3)
    with pytest.raises(DataError, match="have changed"):
        pretrain(other, resume=tmp_path / "mae")
    saved = torch.load(tmp_path / "mae" / "last.pt", weights_only=True)
    del saved["data"]["splits"]
    save(saved, tmp_path / "mae" / "last.pt")
    with pytest.raises(CheckpointError, match="damaged"):
        pretrain(resume=tmp_path / "mae")


# --- bad input


def test_bad_input_ends_before_there_is_a_run_folder(tmp_path: Path, vitmed: RUN) -> None:
    data, runs = draw_splits(tmp_path / "data"), tmp_path / "runs"
    for code, told, where, more in (
        (3, "no such folder", tmp_path / "nowhere", ()),
        (2, "random weights", data, ("--set", "model.weights=x.pt")),
        (2, "random weights", data, ("--set", "model.weights=auto")),  # there is nothing to choose
        (2, "leave model.pool out", data, ("--pool", "attention")),
        (2, "data.fold=1", data, ("--folds", 3)),
        (2, "changes nothing for labels of the kind classes", data, ("--uncertain", "ones")),
        (2, "mask_ratio", data, ("--mask-ratio", "1.5")),
        (2, "16 of 16 patches are visible", data, ("--mask-ratio", "0.01")),
        (2, "did you mean 'epochs'", data, ("--set", "train.epoch=3")),
        (2, "not divisible", data, ("--patch-size", "5")),
        (2, "leave --stem out", data, ("--stem", "conv")),
        (2, "lies in the data folder", data, ("-o", data / "runs")),
    ):
        answer = vitmed("pretrain", where, "-o", runs, *GIVEN, *more)
        assert answer.code == code and told in answer.err and "Traceback" not in answer.err, answer.err
        assert not runs.exists() or not list(runs.iterdir())
    (data / "train" / "amber" / "amber_0.png").write_bytes(b"no image")
    answer = vitmed("pretrain", data, "-o", runs, *GIVEN)
    assert answer.code == 3 and "amber_0.png" in answer.err and "Traceback" not in answer.err
    assert not runs.exists() or not list(runs.iterdir())


def test_an_encoder_that_is_damaged_is_refused(made: PretrainResult, tmp_path: Path) -> None:
    saved = torch.load(made.encoder, weights_only=True)
    for key in ("weights", "config", "seen"):
        save({k: v for k, v in saved.items() if k != key}, tmp_path / "e.pt")
        with pytest.raises(CheckpointError, match="damaged"):
            read_weights(tmp_path / "e.pt")


def test_every_flag_reaches_the_config(vitmed: RUN, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from vitmed.commands import pretrain

    values: dict[str, object] = {
        "unlabelled": True, "model": "vit_small", "image_size": 48, "patch_size": 6, "channels": 1, "resize": "crop",
        "normalize": "image", "max_train": 99, "group_regex": "(P.)", "card": "busi", "policy": "oct",
        "mask_ratio": 0.6, "epochs": 3,
        "batch_size": 5, "accumulate": 2, "lr": 0.002, "weight_decay": 0.1, "warmup_epochs": 1.5, "seed": 9,
        "device": "cpu", "precision": "bf16", "workers": 1,
    }  # fmt: skip
    flags = {"labels": "l.csv", "groups": "g.csv", "folds": 5, "fold": 2, "repeats": 3, "allow_leakage": True}
    flags |= {"hold_out": 0.2}
    flags |= {"target": "findings", "finding": ["edema"], "uncertain": "ones", "unit": "years", "resplit": True}
    values |= flags | {"window": "percentiles", "frame": 2, "cache": False, "cache_size": 3.5, "on_bad_file": "skip"}
    values |= {
        "micro_batch": 3, "time": 1200.0, "grad_checkpointing": True, "autotune": False,
        "compile": True, "stem": "conv", "positions": "sincos_1d", "pool": "cls", "drop_path": 0.1,
    }  # fmt: skip
    del values["group_regex"]  # one way of knowing patients at a time
    assert {*values, "group_regex", "sites", "split_column"} == set(PRETRAIN_FLAGS)
    seen: list[PretrainConfig] = []
    monkeypatch.setattr(pretrain, "new_pretraining", lambda config, *_: seen.append(config) or 1 / 0)
    args: list[object] = []
    for flag, value in values.items():
        option = f"--{flag.replace('_', '-')}"
        if isinstance(value, bool):
            args.append(option if value else f"--no-{flag}")
        else:
            args += [option, {"time": "20m", "finding": "edema"}.get(flag, value)]
    vitmed("pretrain", tmp_path, *args)
    told, defaults = seen[0].model_dump(), PretrainConfig().model_dump()
    for flag in values:
        section, field = PRETRAIN_FLAGS[flag].split(".")
        assert told[section][field] == values[flag] != defaults[section][field], flag
    assert told["data"]["root"] == str(tmp_path)


def test_the_command_line(data: Path, tmp_path: Path, vitmed: RUN) -> None:
    answer = vitmed("pretrain", data, "-o", tmp_path, "--name", "a", "--json", *GIVEN, "--precision", "bf16")
    assert answer.code == 0, answer.err
    given = json.loads(answer.out)
    assert given["encoder"] == str(tmp_path / "a" / "encoder.pt") and given["last"]["epoch"] == 2
    assert 0 < given["last"]["train_loss"] < 10 and 0 < given["last"]["val_loss"] < 10
    assert "vitmed train DIR --weights" in answer.err
