"""Run folders are never overwritten; files are written whole or not at all."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from vitmed.core.config import Config, DataConfig
from vitmed.core.errors import CheckpointError, DiskFullError, UsageError
from vitmed.core.files import (
    free_name,
    probe,
    read_json_lines,
    whole_file,
    whole_folder,
    write_bytes,
    write_json,
    write_text,
)
from vitmed.core.places import check_run_place
from vitmed.core.run_folder import RunFolder


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"old")
    with whole_file(file) as stream:
        stream.write(b"new")
        stream.flush()
        assert file.read_bytes() == b"old"
    assert file.read_bytes() == b"new" and names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("error", [RuntimeError("half way"), KeyboardInterrupt()])
def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"old")
    with pytest.raises(type(error)), whole_file(file) as stream:
        stream.write(b"half")
        raise error
    assert file.read_bytes() == b"old" and names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_told_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os if call == "fsync" else Path, call, full)
    with pytest.raises(UsageError, match=r"a\.bin: cannot be written \(No space left"):
        write_bytes(file, b"new")
    monkeypatch.undo()
    assert file.read_bytes() == b"old" and names(tmp_path) == ["a.bin"]


def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")  # of Unix
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(UsageError, match=r"a\.bin: cannot be written \(File too large\)") as error:
            write_bytes(tmp_path / "a.bin", bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "ulimit -f unlimited" in error.value.fix and names(tmp_path) == []


def test_the_data_is_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda a, b: (order.append("rename"), replace(a, b))[1])
    write_text(tmp_path / "a", "x")
    assert order[:2] == ["fsync", "rename"]


def test_others_may_read_what_is_written_as_the_umask_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is left alone: between two calls of os.umask a file of another thread would be open to everybody."""
    old, name = os.umask(0o027), "n" * 255  # as long as the system allows
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail("the umask was changed"))
            write_text(tmp_path / name, "x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640 and names(tmp_path) == [name]
    with pytest.raises(UsageError, match=r"none/a\.txt: cannot be written"):
        write_text(tmp_path / "none" / "a.txt", "x")


def test_json_is_strict(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"é": 1})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"é": 1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "b.json", float("nan"))
    assert names(tmp_path) == ["a.json"]


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    made = [RunFolder.create(tmp_path / "runs", "a").path.name for _ in range(3)]
    assert made == ["a", "a-2", "a-3"]
    (tmp_path / "runs" / "b").write_text("a file")
    (tmp_path / "runs" / "c").symlink_to(tmp_path / "gone")
    assert RunFolder.create(tmp_path / "runs", "b").path.name == "b-2"
    assert RunFolder.create(tmp_path / "runs", "c").path.name == "c-2"


def test_two_runs_at_once_get_two_folders(tmp_path: Path) -> None:
    made: list[Path] = []
    threads = [threading.Thread(target=lambda: made.append(RunFolder.create(tmp_path, "a").path)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8 and all(path.is_dir() for path in made)


def test_an_output_folder_that_is_a_run_or_cannot_be_made(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "a")
    run.config.write_text("x")
    (tmp_path / "data").mkdir()
    with pytest.raises(UsageError, match="holds a run") as error:
        check_run_place(Config(data=DataConfig(root=f"{tmp_path / 'data'}")), run.path, "b")
    assert f"--output {tmp_path}" in error.value.fix and "--resume" in error.value.fix
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(UsageError, match="file"):
            probe(place)
        with pytest.raises(UsageError, match="cannot be made"):
            RunFolder.create(place, "a")
    probe(tmp_path / "new")
    assert names(tmp_path / "new") == []


def test_the_newest_run_is_the_one_whose_best_was_written_last(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run with a best"):
        RunFolder.newest(tmp_path / "none")
    for i, name in enumerate(("z", "a", "m")):
        run = RunFolder.create(tmp_path, name)
        run.best.write_bytes(b"x")
        os.utime(run.best, (1000 + i, 1000 + i))
    RunFolder.create(tmp_path, "without-best")
    assert RunFolder.newest(tmp_path).path.name == "m"


def test_names_that_are_taken_get_a_number(tmp_path: Path) -> None:
    for expected in ("test", "test-2", "test-3"):
        assert free_name(tmp_path / "test").name == expected
        (tmp_path / expected).mkdir()
    assert free_name(tmp_path / "x.y") == tmp_path / "x.y"
    assert RunFolder(tmp_path).epoch(7).name == "epoch_0007.pt"


def test_records_are_read_but_for_a_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert read_json_lines(file) == []
    file.write_text('{"epoch": 1}\n{"epoch": 2}\n{"epo')
    assert read_json_lines(file) == [{"epoch": 1}, {"epoch": 2}]


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "deep" / "test") as part:
        write_text(part / "a", "x")
        assert part.name.startswith(".") and not (tmp_path / "deep" / "test").exists()
    assert names(tmp_path / "deep") == ["test"] and names(tmp_path / "deep" / "test") == ["a"]


@pytest.mark.parametrize("error", [RuntimeError("half way"), KeyboardInterrupt()])
def test_an_exception_leaves_no_folder(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), whole_folder(tmp_path / "test") as part:
        write_text(part / "a", "x")
        raise error
    assert names(tmp_path) == []


def test_an_empty_folder_is_filled_and_another_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with whole_folder(tmp_path / "link") as part:
        write_text(part / "a", "x")
    assert names(tmp_path / "empty") == ["a"] and (tmp_path / "link").is_symlink()
    with pytest.raises(UsageError, match="exists already and is not empty"), whole_folder(tmp_path / "empty") as part:
        write_text(part / "b", "x")
    assert names(tmp_path / "empty") == ["a"] and names(tmp_path) == ["empty", "link"]


def test_a_full_disk_is_noticed_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: Full())
    with pytest.raises(DiskFullError, match=r"new: cannot be written \(No space left on device; free: [\d,.]+ MB"):
        probe(tmp_path / "new")


def test_a_full_disk_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UsageError, match=r"No space left on device; free: [\d,.]+ MB"):  # noqa: SIM117
        with whole_folder(tmp_path / "test") as part:
            monkeypatch.setattr(os, "fsync", full)
            write_text(part / "a", "x")
    assert names(tmp_path) == []


def test_the_weights_of_a_run_folder(tmp_path: Path) -> None:
    trained, pretrained, other = (tmp_path / name for name in ("trained", "pretrained", "other"))
    for folder, files in ((trained, ("best.pt", "last.pt")), (pretrained, ("encoder.pt", "last.pt")), (other, ())):
        folder.mkdir()
        for name in files:
            (folder / name).write_bytes(b"")
    assert RunFolder.weights_in(trained) == trained / "best.pt"
    assert RunFolder.weights_in(pretrained) == pretrained / "encoder.pt"
    assert RunFolder.weights_in(other) == other
    assert RunFolder.weights_in(trained / "last.pt") == trained / "last.pt"
