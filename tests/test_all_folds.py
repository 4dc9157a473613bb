"""`vitmed train --folds K`: every image judged once, by a model that never saw it nor its patient."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY, TINY_ARGS, TINY_SETS, Answer, Recorder, draw_image
from PIL import Image
from sklearn.metrics import roc_auc_score

from vitmed import evaluate, plots, train
from vitmed.errors import CheckpointError, Interrupted, UsageError
from vitmed.metrics import metric_values
from vitmed.predictions import Predictions

RUN = Callable[..., Answer]
SETTINGS = TINY | {"epochs": 1, "folds": 3, "group_regex": r"(p\d+)_", "resamples": 20}


@pytest.fixture(scope="module", autouse=True)
def _small() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots.drawing, "DPI", 20)
        patch.setattr(plots.pictures, "PICTURES", 2)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine patients with two images of each class."""
    root, rng = tmp_path_factory.mktemp("folds") / "data", np.random.default_rng(0)
    for name, colour in (("amber", (230, 160, 30)), ("blue", (40, 60, 230))):
        (root / name).mkdir(parents=True)
        for i in range(18):
            Image.fromarray(draw_image(rng, colour)).save(root / name / f"p{i // 2}_{i}.png")
    return root


def run(data: Path, output: Path, **options: object) -> Path:
    options = SETTINGS | options
    return train(data, output=output, name="all", sets=TINY_SETS, ui=Recorder(), **options).folder  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(data, tmp_path_factory.mktemp("runs"))


def members(folder: Path, split: str) -> set[str]:
    with (folder / "splits.csv").open() as stream:
        return {row["path"] for row in csv.DictReader(stream) if row["split"] == split}


def test_every_image_is_judged_once_by_a_model_that_never_saw_its_patient(done: Path, data: Path) -> None:
    pooled = Predictions.from_csv(done / "test" / "predictions.csv")
    every = {path.relative_to(data).as_posix() for path in data.rglob("*.png")}
    assert len(pooled) == len(every) == 36 and set(pooled.paths) == every
    tests = [members(done / f"fold-{k}", "test") for k in (1, 2, 3)]
    assert set().union(*tests) == every and sum(map(len, tests)) == 36
    for k in (1, 2, 3):
        of_fold = Predictions.from_csv(done / f"fold-{k}" / "test" / "predictions.csv")
        rows = [pooled.paths.index(path) for path in of_fold.paths]
        assert np.array_equal(pooled.logits[rows], of_fold.logits)
        patients = {
            split: {path.split("/")[1].split("_")[0] for path in members(done / f"fold-{k}", split)}
            for split in ("train", "val", "test")
        }
        assert not patients["test"] & (patients["train"] | patients["val"])


def test_the_report_pools_and_tells_each_fold(done: Path) -> None:
    metrics = json.loads((done / "test" / "metrics.json").read_text())
    pooled = Predictions.from_csv(done / "test" / "predictions.csv")
    assert pooled.labels is not None
    scores = pooled.probabilities[:, pooled.classes.index(metrics["positive_class"])]
    truth = pooled.labels == pooled.classes.index(metrics["positive_class"])
    assert metrics["overall"]["auroc"]["value"] == pytest.approx(roc_auc_score(truth, scores))
    assert metrics["n"] == 36 and metrics["n_groups"] == 9
    assert "colour_and_size" in metrics["baselines"]
    each = [
        metric_values(Predictions.from_csv(done / f"fold-{k}" / "test" / "predictions.csv"))["accuracy"]
        for k in (1, 2, 3)
    ]
    told = metrics["report"]["facts"]["Accuracy by fold"]
    assert told.startswith(f"{statistics.mean(each):.3f} ± {statistics.stdev(each):.3f}")
    assert "Pooled over 3 models" in metrics["notes"][0]
    assert (done / "test" / "report.html").is_file()


def test_all_folds_have_one_plan_and_the_report_can_be_made_again(done: Path, tmp_path: Path) -> None:
    configs = [(done / f"fold-{k}" / "config.yaml").read_text() for k in (1, 2, 3)]
    assert len({text.replace(f"fold: {k}", "") for k, text in enumerate(configs, 1)}) == 1
    again = evaluate(done / "test" / "predictions.csv", output=tmp_path / "again", ui=Recorder())
    assert again.metrics["overall"] == json.loads((done / "test" / "metrics.json").read_text())["overall"]


def test_an_interruption_tells_how_to_go_on_and_that_ends_as_if_nothing_had_been(
    done: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitmed.commands.session import Session

    original, calls = Session._end_of_epoch, []

    def stopped(self: Session, event: object) -> None:
        original(self, event)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Session, "_end_of_epoch", stopped)
    with pytest.raises(Interrupted) as told:
        run(data, tmp_path)
    assert f"--resume {tmp_path / 'all'}" in str(told.value) and "fold 2 of 3" in str(told.value)
    train(resume=tmp_path / "all", ui=Recorder())
    assert len(calls) == 3  # the first fold was not trained again, the second had ended its epoch
    again, before = (Predictions.from_csv(place / "test" / "predictions.csv") for place in (tmp_path / "all", done))
    assert again.paths == before.paths and np.array_equal(again.logits, before.logits)


def test_bad_use_and_folds_that_are_done(data: Path, done: Path, tmp_path: Path, vitmed: RUN) -> None:
    with pytest.raises(UsageError, match="finished"):
        train(resume=done, ui=Recorder())
    with pytest.raises(UsageError, match="alone"):
        train(resume=done, epochs=9, ui=Recorder())
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "folds.json").write_text('{"folds": 3, "window": null}')
    with pytest.raises(CheckpointError, match="had not begun"):
        train(resume=tmp_path / "lost", ui=Recorder())
    (tmp_path / "lost" / "folds.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        train(resume=tmp_path / "lost", ui=Recorder())
    answer = vitmed("probe", str(data), "--folds", "3", "-o", str(tmp_path / "runs"))
    assert answer.code == 2 and "--fold 1" in answer.err


def test_from_the_command_line(data: Path, tmp_path: Path, vitmed: RUN) -> None:
    answer = vitmed(
        "train", str(data), *TINY_ARGS, "--epochs", "1", "--folds", "2", "--group-regex", r"(p\d+)_",
        "-o", str(tmp_path), "--name", "all", "--resamples", "20", "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    said = json.loads(answer.out)
    assert said["val"] is None and said["test"]["n"] == 36 and said["run"] == str(tmp_path / "all")


def test_one_fold_by_its_number_is_an_ordinary_run(data: Path, tmp_path: Path, vitmed: RUN) -> None:
    answer = vitmed(
        "train", str(data), *TINY_ARGS, "--epochs", "1", "--folds", "3", "--fold", "2", "--group-regex", r"(p\d+)_",
        "-o", str(tmp_path), "--name", "one", "--fail-under", "auroc=1.1",
    )  # fmt: skip
    assert answer.code == 6
    assert (tmp_path / "one" / "best.pt").is_file() and not (tmp_path / "one" / "fold-2").exists()
