"""Where a command may write: nothing is replaced without force, and what must never be replaced is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vitmed.core.config import Config, DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import is_stream, whole_file, write_bytes, write_text
from vitmed.core.places import (
    check_images,
    check_run_place,
    data_folder,
    data_of_runs,
    new_file,
    new_folder,
    refuse_inside,
)
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import visible

posix = pytest.mark.skipif(os.name != "posix", reason="needs devices and pipes")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run folder with an evaluation, and a file of the user."""
    folder = RunFolder.create(tmp_path / "runs", "first")
    (folder.path / "test").mkdir()
    for file in (folder.best, folder.config, folder.splits, folder.path / "test" / "predictions.csv"):
        file.write_text("x")
    (folder.path / "mine.csv").write_text("x")
    return folder


def refused(file: Path, told: str, **how: object) -> None:
    before = file.read_bytes() if file.is_file() else None
    with pytest.raises(UsageError, match=told):
        new_file(file, **how)  # type: ignore[arg-type]
    assert (file.read_bytes() if file.is_file() else None) == before


def test_an_existing_file_needs_force(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    new_file(file)
    file.write_text("old")
    refused(file, "is there already")
    new_file(file, force=True)
    (tmp_path / "link").symlink_to(file)
    refused(tmp_path / "link", "is there already")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "link"]


def test_what_is_never_replaced(tmp_path: Path, run: RunFolder) -> None:
    own = [run.best, run.config, run.splits, run.last, run.epoch(3), run.path / "test" / "predictions.csv"]
    for file in own:
        refused(file, "is a file of a run", force=True)
    (tmp_path / "link").symlink_to(run.splits)
    refused(tmp_path / "link", "is a file of a run", force=True)
    new_file(run.path / "mine.csv", force=True)
    new_file(run.path / "new.csv")
    image = tmp_path / "a.png"
    image.write_bytes(b"x")
    os.link(image, tmp_path / "same.png")
    for file in (image, tmp_path / "same.png"):
        refused(file, "is read by this command", force=True, inputs=[image, tmp_path / "none.png"])
    shutil.copy(run.best, tmp_path / "copy.pt")
    refused(tmp_path / "copy.pt", "is a checkpoint", force=True)


def test_nothing_in_a_data_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(data / "a")
    for file in (
        data / "new.csv",
        data / "a" / "x.csv",
        tmp_path / "link" / "x.csv",
        tmp_path / "link" / ".." / "x.csv",
    ):
        refused(file, "lies in the data folder", force=True, data=[data])
    for folder in (data, data / "a" / "b" / "c", tmp_path / "link" / "b"):
        with pytest.raises(UsageError, match="lies in the data folder"):
            refuse_inside(data, folder)
    new_file(tmp_path / "data.csv", data=[data, tmp_path / "gone"])


def test_a_picture_is_a_png(tmp_path: Path) -> None:
    refused(tmp_path / "a.jpg", "the picture is a PNG", png=True)
    new_file(tmp_path / "a.PNG", png=True)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    refused(tmp_path / "none" / "a.csv", "its folder is missing")
    refused(tmp_path, "it is a folder")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="it is a file, expected a folder"):
        new_folder(tmp_path / "file", filled=True)
    new_folder(tmp_path, filled=True)
    new_folder(tmp_path / "new", filled=True)


def test_the_data_folder_of_a_run_is_known_from_its_files(tmp_path: Path, run: RunFolder) -> None:
    run.config.write_text("data:\n  root: ../../data\n")
    for place in (run.path, run.path / "test", run.path / "test" / "predictions.csv"):
        assert tmp_path / "data" in data_of_runs([place])
    for text in ("x", "data: 3", "[", "data:\n  root: 5\n"):
        run.config.write_text(text)
        assert data_of_runs([run.path]) == []


@pytest.mark.parametrize("name", ["first", "läuft [x]", "a b", "n" * 200, "2026-11-20_malaria"])
def test_plain_names(name: str, tmp_path: Path) -> None:
    check_run_place(Config(data=DataConfig(root=str(Path(__file__).parent))), tmp_path, name)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "is empty"), ("  ", "is empty"), ("..", "dot"), (".", "dot"), (".hidden", "dot"), ("a/b", "holds a /"),
        ("/tmp/x", "holds a /"), ("..\\x", "holds a /"), ("a\x1b[31m", "control"), ("a\nb", "control"),
        ("a\0b", "control"), ("caf\udce9", "UTF-8"), ("n" * 201, "201 bytes"), ("é" * 101, "202 bytes"),
    ],
)  # fmt: skip
def test_other_names(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told) as error:
        check_run_place(Config(data=DataConfig(root=str(Path(__file__).parent))), tmp_path, name)
    assert visible(str(error.value)) == str(error.value)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to(Path("deep") / "a.txt")  # nothing is there yet
    for text in ("one", "two"):
        write_text(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "deep" / "a.txt").read_text() == text
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.txt"]


def test_a_link_to_itself_is_told(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UsageError, match="loop: is a link to itself"):
        new_file(tmp_path / "loop", force=True)


@posix
def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    new_file("/dev/null")
    write_text("/dev/null", "x")
    assert is_stream(Path("/dev/null")) and Path("/dev/null").is_char_device()
    if Path("/dev/full").is_char_device():
        with pytest.raises(UsageError, match="/dev/full: cannot be written \\(No space left"):
            write_bytes("/dev/full", b"x")
        assert Path("/dev/full").is_char_device()


@posix
def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    new_file(pipe)  # does not wait for a reader
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with whole_file(pipe) as stream:
        stream.write(b"table")
    reader.join(10)
    assert read == [b"table"] and pipe.is_fifo()


@posix
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_what_stdout_leads_to_is_not_replaced(tmp_path: Path, name: str) -> None:
    """A file keeps what was written before and after; `vitmed predict --csv /dev/stdout > file`."""
    code = "from vitmed.core.files import write_text\nprint('before', flush=True)\n"
    code += f"write_text({name!r}, 'table\\n')\nprint('after')"
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, timeout=60)
    assert (tmp_path / "out").read_text() == "before\ntable\nafter\n"


def test_names_are_shown_without_control_characters() -> None:
    assert visible("a\x1b[31m\r\x07\x9b\u202e\udce9") == r"a\x1b[31m\r\x07\x9b\u202e\udce9"
    for text in ("two\nlines\t", "naïve Ω 細胞 😀", "[bold]", r"\x1b"):
        assert visible(text) == text


@pytest.mark.parametrize("name", ["ftp://host/cells", "hf://bucket/cell.png", "https://example.org/cells"])
def test_an_address_is_refused_by_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for refused in (lambda: data_folder(name), lambda: check_images([name])):
        with pytest.raises(DataError, match=f"vitmed reads no {name.partition('//')[0]}// addresses"):
            refused()
    monkeypatch.chdir(tmp_path)
    Path("s3:", "cells").mkdir(parents=True)
    assert data_folder("s3:/cells") == Path("s3:/cells")  # a folder of this name
