"""Where data lie is stored without the names of private folders, and found again."""

from __future__ import annotations

import ntpath
import os
import posixpath
import shutil
from pathlib import Path

import pytest
import torch
from conftest import BARE, TINY_SETS, draw_splits, python

from vitmed import evaluate, train
from vitmed.core import run_folder
from vitmed.core.errors import DataError
from vitmed.core.load_config import load_config
from vitmed.core.places import data_folder
from vitmed.core.run_folder import find_path, notes, project_path, store_path
from vitmed.inference.checkpoint import load_checkpoint


@pytest.mark.parametrize(
    ("path", "folder", "stored"),
    [
        ("/home/anna/study/data", "/home/anna/study/runs/x", "../../data"),
        ("/home/anna/study/data/cells", "/home/anna/study/runs/x", "../../data/cells"),
        ("/home/anna/study/data/cells", "/home/anna/study/runs/folds/fold-1", "../../../data/cells"),
        ("/home/anna/study/runs/x/w.pt", "/home/anna/study/runs/x", "w.pt"),
        ("/home/anna/cells", "/home/anna/study/runs/x", "../../../cells"),  # its own name alone
        ("/home/anna/secret/cells", "/home/anna/runs/x", None),  # the project would be the home folder
        ("/home/anna/secret/cells", "/scratch/runs/x", None),
        ("/home/bert/cells", "/home/anna/runs/x", None),
        ("/mnt/anna/cells", "/mnt/runs/x", None),  # the user's name
        ("/study/a/b/data/cells", "/study/a/b/c/d/runs/x", None),  # too far up
        ("/data/cells", "/work/runs/x", "../../../data/cells"),  # a container
        ("/data/lab/cells", "/work/runs/x", None),
        ("/home/bert", "/work/runs/x", None),
        ("/cells", "/work/runs/x", "../../../cells"),
    ],
)
def test_what_is_stored(path: str, folder: str, stored: str | None) -> None:
    assert project_path(path, folder, "/home/anna", posixpath) == stored


@pytest.mark.parametrize(
    ("path", "folder", "stored"),
    [
        (r"C:\study\data\cells", r"C:\study\runs\x", "../../data/cells"),
        (r"D:\data\cells", r"C:\study\runs\x", None),  # os.path.relpath raises
        (r"\\server\share\cells", r"C:\study\runs\x", None),
        (r"C:\Users\Anna\secret\cells", r"C:\study\runs\x", None),
        (r"c:\users\ANNA\secret\cells", r"C:\Users\Anna\runs\x", None),
        (r"D:\anna\cells", r"D:\runs\x", None),
    ],
)
def test_what_is_stored_on_windows(path: str, folder: str, stored: str | None) -> None:
    assert project_path(path, folder, r"C:\Users\Anna", ntpath) == stored


def test_without_a_home_folder() -> None:
    assert project_path("/study/data/cells", "/study/runs/x", "", posixpath) == "../../data/cells"


def test_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "anna"))
    near, far = tmp_path / "study" / "data", tmp_path / "home" / "anna" / "secret" / "cells"
    run = tmp_path / "study" / "runs" / "x"
    for folder in (near, far, run):
        folder.mkdir(parents=True)
    assert store_path(near, run) == "../../data" and find_path("../../data", run) == near
    stored = store_path(far, run)
    assert stored == store_path(far, run.parent) and stored.endswith("/cells") and "secret" not in stored
    assert find_path(stored, run) == far
    monkeypatch.setattr(run_folder, "_NOTES", {})
    assert find_path(stored, tmp_path) == far  # by the note; the run may have moved
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "another machine"))
    monkeypatch.setattr(run_folder, "_NOTES", {})
    assert find_path(stored, run) == run / stored and not find_path(stored, run).exists()


def test_a_cache_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that stored it finds it, so that the evaluation after a training has its images."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "file"))
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "anna"))
    far = tmp_path / "home" / "anna" / "secret" / "cells"
    assert find_path(store_path(far, tmp_path / "runs" / "x"), tmp_path) == far


def test_folders_behind_links(tmp_path: Path) -> None:
    """runs -> scratch/runs, data -> disk/data: found from the link and from where it leads."""
    (tmp_path / "study").mkdir()
    for name in ("runs", "data"):
        (tmp_path / "scratch" / name).mkdir(parents=True)
        (tmp_path / "study" / name).symlink_to(tmp_path / "scratch" / name)
    stored = store_path(tmp_path / "study" / "data", tmp_path / "study" / "runs")
    for base in ("study", "scratch"):
        assert find_path(stored, tmp_path / base / "runs").samefile(tmp_path / "scratch" / "data")


def test_a_folder_elsewhere_whose_name_is_not_unicode_is_found_again(tmp_path: Path) -> None:
    data = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    stored = {store_path(data, "/srv/runs") for _ in range(2)}
    assert len(stored) == 1 and find_path(stored.pop(), Path("/srv/runs")) == data


@pytest.mark.usefixtures("no_figures")
def test_a_run_on_data_elsewhere_names_no_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "anna"))
    data = draw_splits(tmp_path / "home" / "anna" / "secret" / "cells")
    run = train(data, output=tmp_path / "runs", name="x", sets=TINY_SETS, **BARE | {"epochs": 1}).folder
    for file in ("best.pt", "last.pt"):
        saved = torch.load(run / file, weights_only=True)
        for text in (saved["data"]["root"], saved["config"]["data"]["root"], (run / "config.yaml").read_text()):
            assert "cells" in text and not any(name in text for name in ("anna", "secret", "home")), file
    moved = shutil.copytree(run, tmp_path / "other" / "deep" / "x")
    assert load_checkpoint(moved).data_root() == data
    assert load_config(moved / "config.yaml").data.root == str(data)
    evaluate(moved, split="val", output=tmp_path / "again", device="cpu", resamples=20)
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "another machine"))
    monkeypatch.setattr(run_folder, "_NOTES", {})
    with pytest.raises(DataError, match=r"cells, the data folder of .*, was outside the project") as error:
        load_checkpoint(moved).data_root()
    assert "--data" in error.value.fix
    with pytest.raises(DataError, match=r"resume where it began, or copy places/ of .*another machine"):
        data_folder(load_config(moved / "config.yaml").data.root)


def test_a_note_that_another_process_is_writing_is_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the path is named by the temporary name, and lost when that process has renamed its file."""
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(run_folder, "_NOTES", {})
    data, run, notes = tmp_path / "a" / "data", tmp_path / "b" / "run", tmp_path / "cache" / "places"
    monkeypatch.setenv("HOME", str(tmp_path))
    notes.mkdir(parents=True)
    (notes / ".0123456789ab.f00d.part").write_text(str(data))
    stored = store_path(data, run)
    monkeypatch.setattr(run_folder, "_NOTES", {})
    assert find_path(stored, run) == data and ".part" not in stored


def test_a_job_with_another_cache_folder_knows_the_places_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine: it finds what the command stored, stores the same mark, and gets no other note."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(run_folder, "_NOTES", {})
    far, run = tmp_path / "secret" / "cells", tmp_path / "a" / "run"
    store_path(tmp_path / "secret" / "others", run)
    monkeypatch.setattr(run_folder, "_NOTES", {})
    stored = store_path(far, run)
    code = f"from vitmed.core.run_folder import *; print(store_path({str(far)!r}, {str(run)!r}))"
    code += f"; print(find_path({stored!r}, Path({str(run)!r})))"
    for name, value in {"VITMED_CACHE": str(tmp_path / "another machine"), **notes()}.items():
        monkeypatch.setenv(name, value)
    assert python("-c", code).stdout.split() == [stored, str(far)]
    assert str(far) in "".join(notes().values()) and "others" not in "".join(notes().values())
