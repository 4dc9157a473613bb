"""`vitmed train` from end to end: every number of channels, the finding, what a run says of where it was made."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import BARE, TINY, TINY_ARGS, TINY_SETS, Answer, Recorder, draw_classes, draw_only, draw_splits, recording
from PIL import Image

from vitmed import check, predict, train
from vitmed.core.config import Config
from vitmed.core.errors import UsageError
from vitmed.core.messages import listening
from vitmed.report.chapters import plots
from vitmed.training import finetune
from vitmed.training.finetune import Finetune
from vitmed.training.run import Run

RUN = Callable[..., Answer]


def test_a_figure_that_fails_does_not_hide_why_training_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk ends the training, and then the curves cannot be written either."""
    from vitmed.studies import one_run as command

    def full(*args: object, **kwargs: object) -> None:
        raise UsageError("last.pt: cannot be written (No space left on device)")

    class Full(Recorder):
        def say(self, text: str) -> None:
            super().say(text)
            if text.startswith("epoch   1"):
                monkeypatch.setattr(Finetune, "_save", full)

    def broken(records: object) -> None:
        raise ValueError("no figure")

    monkeypatch.setattr(command, "drawn_curves", broken)
    with pytest.raises(UsageError, match="No space left"), listening(Full()):
        train(draw_splits(tmp_path / "d"), output=tmp_path / "runs", sets=TINY_SETS, **BARE)


@pytest.mark.parametrize(
    ("channels", "mode"),
    [(1, "L"), pytest.param(2, "LA", marks=pytest.mark.slow), pytest.param(4, "RGBA", marks=pytest.mark.slow)],
)
def test_every_number_of_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channels: int, mode: str) -> None:
    """With all pictures drawn: a contact sheet of two or four channels is one too."""
    draw_only(monkeypatch, *(name for name, plot in plots().items() if plot.pictures or plot.maps))
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    for file in data.rglob("*.png"):
        with Image.open(file) as image:
            converted = image.convert(mode)
        if mode.endswith("A"):
            converted.putalpha(200)
        converted.save(file)
    settings = TINY | {"epochs": 1, "channels": channels, "policy": "medical", "map_images": 1, "baseline": False}
    result = train(data, output=tmp_path / "runs", sets=TINY_SETS, **settings)
    with Image.open(result.folder / "contact_sheet.png") as sheet:
        sheet.verify()
    said = predict(data / "test", checkpoint=result.folder)
    assert said.logits.tobytes() == result.test.predictions.logits.tobytes() and len(said) == 4


def test_lists_of_classes_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_figures: None) -> None:
    """Of 26 classes ten are named, and as many counts; the contact sheet shows 24 classes, evenly spread."""
    names, shown = [f"c{i:02}" for i in range(26)], []
    data = draw_splits(tmp_path / "data", 2, 2, 2, classes=names)
    real = finetune.augmented_examples

    def examples(run: Run[Config]) -> dict[str, list[np.ndarray]]:
        shown.extend(real(run))
        return real(run)

    monkeypatch.setattr("vitmed.studies.one_run.augmented_examples", examples)
    ui = recording()
    train(data, output=tmp_path / "runs", sets=TINY_SETS, **BARE | {"epochs": 1})
    assert "classes: " + ", ".join(f"{i} c{i:02}" for i in range(10)) + " and 16 more" in ui.said
    assert any("52 images (2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 and 16 more)" in line for line in ui.said)
    assert len(set(shown)) == 24 and shown == sorted(shown) and (shown[0], shown[-1]) == ("c00", "c25")


def test_the_run_folder_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, "confusion_matrix", "roc", "reliability", "flow")
    folder = train(draw_splits(tmp_path / "data"), output=tmp_path / "runs", sets=TINY_SETS, **TINY).folder
    names = {p.name for p in folder.iterdir()}
    assert names >= {
        "config.yaml", "environment.json", "splits.csv", "summary.txt", "metrics.jsonl", "best.pt", "last.pt",
        "model_card.md", "contact_sheet.png", "training_curves.png", "val", "test", "plan.md",
    }  # fmt: skip
    for part in ("val", "test"):
        files = {p.name for p in (folder / part).iterdir()}
        assert files >= {"predictions.csv", "metrics.json", "report.html", "confusion_matrix.png"}
    for picture in folder.rglob("*.png"):
        with Image.open(picture) as image:
            image.verify()
    environment = json.loads((folder / "environment.json").read_text())
    assert {"versions", "device", "seed", "data_sha256"} <= set(environment)


@pytest.mark.usefixtures("no_figures")
def test_the_positive_class_and_an_environment_that_tells_no_folder(
    vitmed: RUN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "anna" / "secret"
    args = ["train", str(draw_splits(place / "cells", 4, 2, 2)), "-o", str(place / "runs"), "--name", "a", *TINY_ARGS]
    args += ["--epochs", "1", "--no-report", "--no-baseline", "--resamples", "20", "--positive", "amber"]
    monkeypatch.setattr(sys, "argv", [str(place / "bin" / "vitmed"), *args])
    answer = vitmed(*args)
    assert answer.code == 0 and "positive class: amber" in answer.err, answer.err
    for part in ("val", "test"):
        metrics = json.loads((place / "runs" / "a" / part / "metrics.json").read_text())
        assert metrics["positive_class"] == "amber"  # without the flag it is blue, the last
    text = (place / "runs" / "a" / "environment.json").read_text()
    assert "anna" not in text and "secret" not in text and str(Path.home()) + "/" not in text
    answer = vitmed(*args[:-1], "ambre")
    assert answer.code == 2 and "did you mean 'amber'" in answer.err
    assert [p.name for p in (place / "runs").iterdir()] == ["a"]


@pytest.mark.usefixtures("no_figures")
def test_the_first_screen_has_twelve_lines(vitmed: RUN, tmp_path: Path) -> None:
    """Of at most 100 characters, but for the place of the run; what it leaves out is in plan.md and with --verbose."""
    data = draw_splits(tmp_path / "cells", 4, 2, 2)
    first = next(iter(sorted((data / "train" / "amber").iterdir())))
    (data / "test" / "amber" / "again.png").write_bytes(first.read_bytes())
    args = [
        "train",
        str(data),
        "-o",
        str(tmp_path / "runs"),
        *TINY_ARGS,
        "--epochs",
        "1",
        "--no-report",
        "--no-baseline",
    ]
    args += ["--resamples", "20", "--allow-leakage"]
    answer = vitmed(*args, "--name", "a")
    screen = answer.err.partition("\nepoch ")[0].replace(str(tmp_path), "").splitlines()
    assert len(screen) <= 12 and max(map(len, screen)) <= 100, answer.err
    text = " ".join(answer.err.partition("\nepoch ")[0].split())
    assert text.count("warning:") == 1 and f"more warnings: {tmp_path / 'runs' / 'a' / 'plan.md'})" in text
    assert "split" in text.partition("warning:")[2] and "patients are unknown" not in text
    assert "with plan.md, contact_sheet.png (augmentation none)" in text
    page = (tmp_path / "runs" / "a" / "plan.md").read_text()
    spoken = vitmed(*args, "--name", "b", "--verbose").err
    for detail in ("patients are unknown", "train.ema true: always", "reading images", "(copies_across_splits)"):
        assert detail in page and detail in spoken, detail


# --- errors of the folder, and files that cannot be read


def test_training_stops_at_what_check_calls_an_error_of_the_folder(tmp_path: Path, vitmed: RUN) -> None:
    """`normal` and `Normal ` would become two classes."""
    data = draw_classes(tmp_path / "data", 12, ("normal", "Normal ", "sick"))
    answer = vitmed("train", data, "-o", tmp_path / "runs", *TINY_ARGS)
    assert answer.code == 3 and "class folders 'Normal ' and 'normal' are hard to tell apart by eye" in answer.err
    assert answer.err.count("hard to tell apart by eye") == 1  # not also as a warning
    assert "put their images into one folder" in answer.err and not (tmp_path / "runs").exists()
    planned = vitmed("plan", data, "-o", tmp_path / "plan.yaml", "--weights", "none")
    assert planned.code == 3 and "hard to tell apart" in planned.err and not (tmp_path / "plan.yaml").exists()
    found = check(data, output=tmp_path / "check")
    assert found.problems[0].code == "class_names_alike" and found.problems[0].severity == "error"


def test_training_warns_of_what_check_warns_of(tmp_path: Path, ui: Recorder, no_figures: None) -> None:
    data = draw_classes(tmp_path / "data", 9)
    Image.new("RGB", (20, 20)).save(data / "loose.png")
    train(data, output=tmp_path / "runs", sets=TINY_SETS, **BARE | {"epochs": 1})
    assert any("(small_class)" in text for text in ui.warned) and any("(loose_images)" in text for text in ui.warned)


def break_files(data: Path) -> None:
    (data / "train" / "amber" / "amber_0.png").write_bytes(b"")
    (data / "val" / "blue" / "blue_1.png").write_text("no image")
    cut = data / "test" / "blue" / "blue_2.png"
    cut.write_bytes(cut.read_bytes()[:100])


@pytest.mark.parametrize("cache", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_unreadable_files_are_skipped_and_counted(tmp_path: Path, cache: bool, no_figures: None) -> None:
    data, ui = draw_splits(tmp_path / "data"), recording()
    break_files(data)
    settings = BARE | {"epochs": 1, "on_bad_file": "skip", "cache": cache}
    result = train(data, output=tmp_path / "runs", sets=TINY_SETS, **settings)
    (line,) = [text for text in ui.warned if "cannot be used and are left out" in text]
    assert line.startswith("3 of 44 images") and "train 1, val 1, test 1" in line and "amber_0.png" in line
    assert str(data) not in (result.folder / "plan.md").read_text()  # paths are relative in a run folder
    rows = (result.folder / "splits.csv").read_text().splitlines()
    assert len(rows) == 1 + 41 and not any("train/amber/amber_0.png" in row for row in rows)
    kept = json.loads((result.folder / "data_check.json").read_text())
    assert kept["counts"]["unreadable"] == 3 and kept["counts"]["found"] == 44
    flow = json.loads((result.folder / "test" / "metrics.json").read_text())["flow"]
    assert (flow["unreadable"], flow["left_out"], flow["used"]) == (3, 0, 41)  # found: the sum, each file once
    assert any("3 files cannot be read and are in no split" in note for note in result.test.metrics["report"]["notes"])
    resumed = train(resume=result.folder, epochs=2)
    assert resumed.test.metrics["flow"]["unreadable"] == 3


def test_by_default_an_unreadable_file_ends_the_run_and_too_many_always(tmp_path: Path, vitmed: RUN) -> None:
    data = draw_splits(tmp_path / "data")
    args = ("train", data, "-o", tmp_path / "runs", *TINY_ARGS)
    break_files(data)
    answer = vitmed(*args)
    assert answer.code == 3 and "3 of 44 images cannot be used" in answer.err and "--on-bad-file skip" in answer.err
    for part, count, told in (
        ("val", 4, "among them all of val: too many to skip"),
        ("train", 8, "12 of 22 images of class 'amber' cannot be used"),
    ):
        for i in range(count):
            (data / part / "amber" / f"amber_{i}.png").write_bytes(b"")
        answer = vitmed(*args, "--on-bad-file", "skip")
        assert answer.code == 3 and told in answer.err
