"""`Spool`: what a killed node, a torn journal or a full disk leaves behind."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vitmed.commands.pacs.spool import REFUSED, SENT, Spool
from vitmed.core.errors import UsageError

UID, OTHER, NEVER = "2.25.1", "2.25.2", "2.25.3"


@contextmanager
def spool(folder: Path, to: str = "pacs:104:ARCHIVE") -> Iterator[Spool]:
    opened = Spool(folder, to)
    try:
        yield opened
    finally:
        opened.close()


def names(files: list[Path]) -> list[str]:
    return [file.stem for file in files]


def test_a_report_stays_until_it_is_sent_and_is_made_once(tmp_path: Path) -> None:
    with spool(tmp_path / "s") as one:
        assert one.add(UID, b"report") and not one.add(UID, b"again")
    with spool(tmp_path / "s") as one:
        assert names(one.waiting()) == [UID] and not one.add(UID, b"again") and one.unclear == []
        assert one.waiting()[0].read_bytes() == b"report"
        one.done(UID, SENT)
        assert one.waiting() == []
    with spool(tmp_path / "s") as one:
        assert one.has(UID) and not one.add(UID, b"again") and not one.has(NEVER)


def test_what_was_sent_elsewhere_is_not_sent_here(tmp_path: Path) -> None:
    with spool(tmp_path / "s") as one:
        one.add(UID, b"report")
        one.done(UID, SENT)
        one.add(OTHER, b"waits")
        one.seen("file")
    with spool(tmp_path / "s", "elsewhere:104:B") as one:
        assert not one.has(UID) and not one.was_seen("file")
        assert names(one.waiting()) == [OTHER] and one.has(OTHER)


def test_killed_at_each_moment(tmp_path: Path) -> None:
    """A copy of the folder at any moment is what a kill -9 leaves."""
    import shutil

    with spool(tmp_path / "s") as one:
        one.add(UID, b"report")
        one.sending(UID)
        shutil.copytree(tmp_path / "s", tmp_path / "sending")
        one.done(UID, SENT)
        shutil.copytree(tmp_path / "s", tmp_path / "sent")
    (tmp_path / "sent" / "unsent" / f"{UID}.dcm").write_bytes(b"report")  # noted as sent, not removed yet
    with spool(tmp_path / "sending") as one:
        assert names(one.waiting()) == [UID] and one.unclear == [UID]  # sent again, and the log says so
    with spool(tmp_path / "sent") as one:
        assert one.waiting() == [] and one.unclear == []


def test_a_torn_journal_loses_its_last_line_only(tmp_path: Path) -> None:
    journal = tmp_path / "s" / "journal.jsonl"
    with spool(tmp_path / "s") as one:
        one.add(UID, b"report")
        one.done(UID, SENT)
    journal.write_bytes(journal.read_bytes() + b'{"time": "2026-11-23", "ev')
    with spool(tmp_path / "s") as one:
        assert one.has(UID)
        one.seen("file")
    with spool(tmp_path / "s") as one:
        assert one.has(UID) and one.was_seen("file")


def test_refused_reports_are_kept_and_tried_again_at_the_next_start(tmp_path: Path) -> None:
    with spool(tmp_path / "s") as one:
        one.add(UID, b"report")
        one.done(UID, REFUSED)
        assert one.waiting() == [] and names(list(one.refused.iterdir())) == [UID] and one.has(UID)
    with spool(tmp_path / "s") as one:
        assert names(one.waiting()) == [UID]


def test_a_report_whose_file_someone_removed_is_made_again(tmp_path: Path) -> None:
    with spool(tmp_path / "s") as one:
        one.add(UID, b"report")
        one.waiting()[0].unlink()
    with spool(tmp_path / "s") as one:
        assert one.add(UID, b"report")


def test_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    with spool(tmp_path / "s") as one:
        one.add(UID, b"report")
        one.done(UID, REFUSED)
        one.add(OTHER, b"report")
        for path in [tmp_path / "s", *(tmp_path / "s").rglob("*")]:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    for line in (tmp_path / "s" / "journal.jsonl").read_text().splitlines():
        assert set(json.loads(line)) == {"time", "event", "id", "to"}


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: bytes) -> int:
        raise OSError(28, os.strerror(28))

    with spool(tmp_path / "s") as one:
        one.add(UID, b"report")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(OSError, match="No space"):
                one.done(UID, SENT)
        assert one.waiting() == [] and one.has(UID)  # not sent twice while the node runs
        (tmp_path / "s" / "unsent").rmdir()
        with pytest.raises(UsageError, match="cannot be written"):
            one.add(OTHER, b"report")
        assert not one.has(OTHER)


def test_two_nodes_do_not_share_a_spool(tmp_path: Path) -> None:
    with spool(tmp_path / "s"), pytest.raises(UsageError, match="another node uses this spool"):
        Spool(tmp_path / "s", "pacs:104:ARCHIVE")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        Spool(tmp_path / "file", "pacs:104:ARCHIVE")


def test_a_note_that_comes_after_the_end_is_an_error(tmp_path: Path) -> None:
    """The number of the closed journal may be that of another file by then."""
    with spool(tmp_path / "s") as one:
        one.add(UID, b"report")
    with (tmp_path / "other").open("wb"), pytest.raises(OSError, match="Bad file descriptor"):
        one.sending(UID)
    assert (tmp_path / "other").read_bytes() == b""
