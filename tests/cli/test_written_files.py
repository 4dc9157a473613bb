"""What every command may write, as a user meets it: nothing is lost, nothing lands in a data folder, no name is run."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import (
    TINY,
    TINY_ARGS,
    TINY_NETWORK,
    Answer,
    Trained,
    draw_classes,
    draw_only,
    draw_splits,
    listing,
)  # fmt: skip

from vitmed import evaluate, explain, export, predict, train
from vitmed.cli.terminal import Terminal
from vitmed.core.messages import Ui, listening, say, warn
from vitmed.data.folders import new_outside_data
from vitmed.imaging.decode import is_image
from vitmed.metrics.predictions import Predictions

RUN = Callable[..., Answer]
posix = pytest.mark.skipif(os.name != "posix", reason="needs file names of bytes")
COLOURED = "a\x1b[31m[red]:smile:.png"


def image_of(trained: Trained) -> Path:
    return trained.data / "test" / "amber" / "amber_0.png"


@pytest.mark.parametrize("option", ["--csv", "--plot"])
def test_predict_replaces_a_file_only_with_force(
    trained: Trained, vitmed: RUN, tmp_path: Path, option: str, no_figures: None
) -> None:
    file = tmp_path / {"--csv": "out.csv", "--plot": "out.png"}[option]
    file.write_text("old")
    args = ["predict", image_of(trained), "--checkpoint", trained.best, option, file]
    answer = vitmed(*args)
    assert answer.code == 2 and f"{file.name}: is there already" in answer.err and "--force" in answer.err
    assert file.read_text() == "old"
    assert vitmed(*args, "--force").code == 0
    assert file.read_bytes() != b"old"


def test_predict_replaces_nothing_that_it_or_a_run_needs(trained: Trained, vitmed: RUN, tmp_path: Path) -> None:
    shutil.copy(trained.best, tmp_path / "model.pt")
    image = shutil.copy(image_of(trained), tmp_path / "image.png")
    before = listing(trained.folder), listing(trained.data), listing(tmp_path)
    places = [trained.best, trained.folder / "splits.csv", trained.folder / "test" / "predictions.csv", image]
    places += [tmp_path / "model.pt", image_of(trained), trained.data / "new.csv"]
    for place in places:
        answer = vitmed("predict", image, "--checkpoint", trained.best, "--csv", place, "--force")
        assert answer.code == 2 and f"{place}: " in answer.err and answer.out == "", answer.err
    for name in ("x.parquet", "-"):
        answer = vitmed("predict", image, "--checkpoint", trained.best, "--csv", tmp_path / name)
        assert answer.code == 2 and f"{name}: --csv writes a CSV file" in answer.err
    both = ["--csv", tmp_path / "x.png", "--plot", tmp_path / "x.png"]
    assert "named as table and as picture" in vitmed("predict", image, "--checkpoint", trained.best, *both).err
    assert (listing(trained.folder), listing(trained.data), listing(tmp_path)) == before


def test_no_command_writes_into_a_data_folder(trained: Trained, vitmed: RUN, tmp_path: Path) -> None:
    data, run, place = trained.data, trained.folder, trained.data / "train" / "amber" / "new"
    foreign = draw_splits(tmp_path / "foreign", 0, 0, 2)
    before = listing(data), listing(foreign)
    for args in (
        ("train", data, "-o", place), ("pretrain", data, "-o", place), ("probe", data, "-o", place),
        ("plan", data, "-o", place), ("check", data, "-o", place),
        ("predict", image_of(trained), "--checkpoint", run, "--csv", place),
        ("predict", foreign / "test", "--checkpoint", run, "--csv", foreign / "test" / "p.csv"),
        ("explain", foreign / "test" / "amber" / "amber_0.png", "--checkpoint", run, "-o", place),
        ("evaluate", run, "-o", place), ("evaluate", run / "test" / "predictions.csv", "-o", place),
        ("evaluate", run, "--data", foreign, "-o", place), ("stress", run, "-o", place), ("compare", run, "-o", place),
        ("data", "import", data, place),
    ):  # fmt: skip
        answer = vitmed(*args)
        assert answer.code == 2 and "lies in the data folder" in answer.err, (args, answer.err)
        assert "reading images" not in answer.err and "evaluating" not in answer.err
    assert (listing(data), listing(foreign)) == before


def test_what_looks_like_a_data_folder_is_one(vitmed: RUN, tmp_path: Path) -> None:
    """For commands that read no data folder: a new folder among classes would become a class."""
    split, flat = draw_splits(tmp_path / "split", 2, 1, 1), draw_classes(tmp_path / "flat", 2)
    (tmp_path / "empty").mkdir()
    before = listing(tmp_path)
    for place in (split, split / "train", split / "train" / "amber", split / "val" / "new", flat / "amber" / "x"):
        for args in (
            ("demo", "--cells", 200, "-o", place),
            ("weights", "fetch", "vit_tiny_augreg_in21k", "--offline", "--to", place),
            ("data", "import", tmp_path / "empty", place), ("data", "get", "bloodmnist", place, "--offline"),
        ):  # fmt: skip
            answer = vitmed(*args)
            refused = ("looks like a data folder", "exists already and is not empty")
            assert answer.code == 2 and any(text in answer.err for text in refused), (args, answer.err)
    assert listing(tmp_path) == before
    for free in (tmp_path, tmp_path / "demo", tmp_path / "empty" / "a" / "b"):
        new_outside_data(free, filled=True)


@pytest.mark.skipif(not Path("/proc/kmsg").exists(), reason="a file of Linux")
def test_files_of_the_kernel_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading /proc/kmsg waits until the kernel has something to say; a folder beside / is no reason to look there."""
    monkeypatch.setattr("builtins.open", lambda *args, **more: pytest.fail(f"opens {args[0]}"))
    assert not is_image("/proc/kmsg")


def test_a_run_is_no_place_for_a_run_or_a_plan(trained: Trained, vitmed: RUN) -> None:
    """Known before any work; and a file of a run gets no number beside it."""
    before = listing(trained.folder)
    for command in ("train", "pretrain", "probe"):
        answer = vitmed(command, trained.data, "-o", trained.folder)
        assert answer.code == 2 and "holds a run" in answer.err and "images" not in answer.err, answer.err
    for name in ("config.yaml", "best.pt"):
        answer = vitmed("plan", trained.data, "-o", trained.folder / name)
        assert answer.code == 2 and f"{name}: is a file of a run" in answer.err, answer.err
    assert listing(trained.folder) == before


def test_a_file_where_a_folder_is_expected(trained: Trained, vitmed: RUN, tmp_path: Path) -> None:
    file, link, data, run = tmp_path / "file", tmp_path / "link", trained.data, trained.folder
    file.write_text("x")
    link.symlink_to("link")
    for args in (
        ("train", data), ("pretrain", data), ("probe", data), ("check", data), ("demo",), ("evaluate", run),
        ("stress", run), ("compare", run), ("explain", image_of(trained), "--checkpoint", run),
    ):  # fmt: skip
        answer = vitmed(*args, "-o", file)
        assert answer.code == 2 and "file: cannot be written (it is a file, expected a folder)" in answer.err, args
        assert answer.err.count("\n") == 2, answer.err
        answer = vitmed(*args, "-o", link)
        assert answer.code == 2 and "link: is a link to itself" in answer.err, (args, answer.err)
    assert file.read_text() == "x" and link.is_symlink()


@pytest.mark.parametrize("command", ["train", "pretrain", "probe"])
def test_a_run_has_a_plain_name(vitmed: RUN, tmp_path: Path, command: str) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    before = listing(tmp_path)
    for name in ("../data/train/amber/run", str(tmp_path / "x"), "", "..", "a\x1bb", "n" * 201):
        answer = vitmed(command, data, "-o", tmp_path / "runs", "--name", name)
        assert answer.code == 2 and "--name" in answer.err and "\x1b" not in answer.err, answer.err
    assert listing(tmp_path) == before


def test_a_single_file_gets_a_number_or_with_force_is_replaced(vitmed: RUN, tmp_path: Path, no_figures: None) -> None:
    data, place = draw_splits(tmp_path / "data", 8, 4, 2), tmp_path / "plan.yaml"
    place.write_text("old")
    tiny = [*TINY_ARGS[: TINY_ARGS.index("--epochs")], "--batch-size", 8, "--set", "model.width=16", "--device", "cpu"]
    args = ["plan", data, "-o", place, *tiny]
    assert vitmed(*args).code == 0
    assert place.read_text() == "old" and place.with_stem(f"{place.stem}-2").is_file()
    answer = vitmed(*args, "--force")
    assert answer.code == 0, answer.err
    assert place.read_bytes() != b"old" and len(list(tmp_path.iterdir())) == 3


# --- names


@posix
def test_no_name_reaches_the_terminal_raw(trained: Trained, vitmed: RUN, tmp_path: Path) -> None:
    good, bad = tmp_path / COLOURED, tmp_path / "b\x1b]0;title\x07.png"
    shutil.copy(image_of(trained), good)
    bad.write_bytes(b"")
    data = draw_splits(tmp_path / "data\x1b[2J", 4, 2, 2)
    (data / "train" / "amber" / "c\x1b[31m.png").write_bytes(b"")
    for args, shown in (
        (("predict", good, bad, "--checkpoint", trained.best), (r"[31m[red]:smile:.png", r"b\x1b]0;title\x07.png")),
        (("train", data, "-o", tmp_path / "runs", *TINY_ARGS), (r"c\x1b[31m.png",)),
        (("check", data, "-o", tmp_path / "check"), (r"c\x1b[31m.png",)),
        (("train", "x\x1b[31m"), (r"x\x1b[31m: no such folder",)),
        (("train", data, "--x\x1b[31m"), (r"--x\x1b[31m",)),
    ):
        answer = vitmed(*args)
        text = answer.out + answer.err
        assert answer.code in (0, 2, 3) and "\x1b" not in text and "\x07" not in text, ascii(text)
        assert all(name in text for name in shown), text


@posix
def test_ui_of_a_notebook_and_of_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for ui in (Ui(), Terminal()):
        with listening(ui):
            say(f"file {COLOURED} caf\udce9")
            warn(f"file {COLOURED} caf\udce9")
        said = capsys.readouterr().err
        assert said.count(r"file a\x1b[31m[red]:smile:.png caf\udce9") == 2, said


@pytest.mark.slow
@posix
def test_names_that_are_not_utf_8_in_every_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders, classes and files: training, figures, pages and tables; and the tables find the files again."""
    draw_only(monkeypatch, "confusion_matrix", "errors", "flow")
    source = draw_splits(tmp_path / "source", 5, 3, 4)
    data = tmp_path / os.fsdecode(b"d\xe4ta")
    for file in sorted(source.rglob("*.png")):
        split, name, _ = file.relative_to(source).parts
        place = data / split / os.fsdecode({"amber": b"=amb\xe9r", "blue": b"+bl\x1b[31mue"}[name])
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place / os.fsdecode(b"=caf\xe9 " + file.name.encode()))
    shown = {"map_images": 0, "show_names": True, "resamples": 20, "baseline": False}
    settings = TINY | {"epochs": 1, "sets": (*TINY_NETWORK, "model.stem=patch", "model.pool=cls")} | shown
    result = train(data, output=tmp_path / "runs", name="a", **settings)
    table = result.folder / "test" / "predictions.csv"
    read = Predictions.from_csv(table)
    assert len(read) == 8 and all((data / path).is_file() for path in read.paths)
    assert set(read.classes) == {os.fsdecode(b"=amb\xe9r"), "+bl\x1b[31mue"}
    with table.open(newline="", encoding="utf-8") as stream:
        assert {row["label"] for row in csv.DictReader(stream)} == {r"'=amb\udce9r", "'+bl\x1b[31mue"}
    metrics = json.loads((result.folder / "test" / "metrics.json").read_text(encoding="utf-8"))
    assert set(metrics["classes"]) == set(metrics["per_class"]) == set(read.classes)
    html = (result.folder / "test" / "report.html").read_text(encoding="utf-8")
    assert r"=amb\udce9r" in html and "\x1b" not in html
    again = evaluate(table, output=tmp_path / "again")
    assert again.predictions.paths == read.paths
    one = next((data / "test").rglob("*.png"))
    assert predict(one, checkpoint=result.folder).paths == (one.as_posix(),)
    assert explain(one, checkpoint=result.folder, output=tmp_path / "maps").folder.is_dir()
    weights = export(result.folder, to=tmp_path / "weights").file
    assert set(json.loads((weights / "config.json").read_text(encoding="utf-8"))["label_names"]) == set(read.classes)
    assert r"amb\udce9r" in (weights / "README.md").read_text(encoding="utf-8")
