"""One process at a time writes to a run folder; what killed processes left there goes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import signal
import threading
from pathlib import Path

import filelock
import pytest
from conftest import exit_code, recording

from vitmed.core.errors import UsageError
from vitmed.core.files import whole_file, whole_folder
from vitmed.core.run_folder import HOLDER, RunFolder, is_running, run_lock


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def age(folder: Path) -> None:
    """As if everything hidden had been there for ten seconds."""
    for path in folder.glob(".*.part"):
        os.utime(path, (path.stat().st_mtime - 10,) * 2)


def refused(run: Path, other: int) -> None:
    with pytest.raises(UsageError, match=f"process {other} on {platform.node()} has been writing"):  # noqa: SIM117
        with run_lock(RunFolder(run)):
            pass
    with pytest.raises(UsageError) as error, run_lock(RunFolder(run)):
        pass
    assert "\n" not in error.value.problem and f"(kill {other})" in error.value.fix


def test_a_second_process_is_refused_and_the_first_is_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with run_lock(run):
        assert exit_code(refused, tmp_path, os.getpid()) == 0
        assert is_running(run) and is_running(run)  # looking takes nothing away
    assert not is_running(run) and not (run.path / HOLDER).exists()
    assert names(tmp_path) == [".lock"]
    with run_lock(RunFolder(tmp_path)):  # free again
        pass


def test_two_processes_never_have_a_lock_whose_holder_ends_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process ends when the second has opened the lock and has not yet locked it; a third one then comes."""
    run, first, locking = RunFolder(tmp_path), contextlib.ExitStack(), fcntl.flock
    first.enter_context(run_lock(run))
    (tmp_path / ".lock.holder").unlink()  # so that the second one waits

    def late(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", locking)
        first.close()
        locking(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with run_lock(run):
        assert exit_code(refused, tmp_path, os.getpid()) == 0


def test_a_process_on_another_machine_is_named_with_it(tmp_path: Path) -> None:
    """As on a shared file system: the number says nothing about processes here."""
    holder = tmp_path / ".lock.holder"
    with filelock.FileLock(tmp_path / ".lock"):
        for text, who, fix in (
            ("4194305 2026-11-23 10:00:00 node-7", "process 4194305 on node-7 has", "(on node-7: kill 4194305)"),
            ("1 2026-11-23 10:00:00", "process 1 has been", "(kill 1)"),  # of vitmed 0.2.0
        ):
            holder.write_text(text)
            assert is_running(RunFolder(tmp_path))
            with pytest.raises(UsageError) as error, run_lock(RunFolder(tmp_path)):
                pass
            assert who in error.value.problem and fix in error.value.fix
    with run_lock(RunFolder(tmp_path)):  # it has ended
        assert holder.read_text().split()[3] == platform.node()
    assert not holder.exists()


def begin_and_be_killed(run: Path) -> None:
    with run_lock(RunFolder(run)), whole_file(run / "best.pt"), whole_folder(run / "test") as part:
        (part / "roc.png").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_leaves_no_lock_and_its_remains_are_removed(tmp_path: Path) -> None:
    assert exit_code(begin_and_be_killed, tmp_path) == -signal.SIGKILL
    left = names(tmp_path)
    assert len(left) == 4 and all(name.startswith(".") for name in left)  # neither best.pt nor test
    assert (tmp_path / HOLDER).exists() and not is_running(RunFolder(tmp_path))
    (tmp_path / ".mine.part").write_text("of somebody else")
    age(tmp_path)
    with run_lock(RunFolder(tmp_path)):
        assert names(tmp_path) == [".lock", ".lock.holder", ".mine.part"]
    assert names(tmp_path) == [".lock", ".mine.part"]


def test_what_another_process_still_writes_stays(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "test") as part, whole_file(tmp_path / "model_card.md") as stream:
        age(tmp_path)
        with run_lock(RunFolder(tmp_path)):
            assert part.is_dir()
        stream.write(b"card")
    assert names(tmp_path) == [".lock", "model_card.md", "test"]


@pytest.mark.parametrize(
    "content", [b"\xff\xfe 1 2 3", b"99999999999999999999 2026-11-29 10:00:00", b"x 1 2", b"", None]
)
def test_a_damaged_holder_file_hinders_nobody(content: bytes | None, tmp_path: Path) -> None:
    """Nor does one of another user, which cannot be read."""
    if content is None:
        (tmp_path / HOLDER).mkdir()
    else:
        (tmp_path / HOLDER).write_bytes(content)
    assert not is_running(RunFolder(tmp_path))
    if content is not None:
        with run_lock(RunFolder(tmp_path)):
            assert is_running(RunFolder(tmp_path))


def test_a_file_system_without_locks_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise NotImplementedError("no locks")

    monkeypatch.setattr(filelock.FileLock, "acquire", fails)
    ui = recording()
    with run_lock(RunFolder(tmp_path)):
        assert "cannot be locked (no locks)" in ui.warned[0]


def test_threads_are_refused_too(tmp_path: Path) -> None:
    found: list[str] = []

    def second() -> None:
        try:
            with run_lock(RunFolder(tmp_path)):
                pass
        except UsageError as error:
            found.append(error.problem)

    with run_lock(RunFolder(tmp_path)):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(found) == 1
