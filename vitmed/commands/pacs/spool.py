"""`Spool`: reports on disk until they are sent, and the journal of what was answered and sent.

    spool/unsent/UID.dcm     to be sent; each is written completely or not at all
    spool/refused/UID.dcm    the archive refused it; tried once more when the node starts again
    spool/journal.jsonl      a line for each event; it holds no name, and of a watched file a hash

All files are for their owner alone (0600): a report names the patient.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path

from filelock import FileLock, Timeout

from vitmed.core.errors import UsageError
from vitmed.core.files import read_json_lines, remove_abandoned, whole_file
from vitmed.core.text import now

MADE, SENDING, SENT, REFUSED, SEEN = "made", "sending", "sent", "refused", "seen"


class Spool:
    """The reports of one destination; several threads may use it, and one process.

    Args:
        folder: is made where it is missing.
        to: the destination. What was sent to another one counts as not sent.

    Attributes:
        unclear: UIDs of reports that were being sent when the node was last killed.

    Raises:
        UsageError: the folder cannot be written, or another node uses it.
    """

    def __init__(self, folder: Path, to: str):
        self.folder, self.to, self._lock = folder, to, threading.Lock()
        self.unsent, self.refused, journal = folder / "unsent", folder / "refused", folder / "journal.jsonl"
        try:
            for part in (folder, self.unsent, self.refused):
                part.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._process = FileLock(folder / ".lock", mode=0o600)
            self._process.acquire(0)
            remove_abandoned(self.unsent)
            self._last: dict[str, str] = {}
            for record in read_json_lines(journal):
                if record.get("to") == to:
                    self._last[str(record.get("id"))] = str(record.get("event"))
            for file in self.refused.glob("*.dcm"):
                file.replace(self.unsent / file.name)
            torn = journal.is_file() and journal.read_bytes()[-1:] not in (b"", b"\n")
            self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            if torn:
                os.write(self._journal, b"\n")
        except Timeout:
            raise UsageError(f"{folder}: another node uses this spool", "name another: --spool FOLDER") from None
        except OSError as error:
            fix = "choose another place: --spool FOLDER"
            raise UsageError(f"{folder}: cannot be written ({error.strerror})", fix) from None
        waiting = {file.stem for file in self.waiting()}
        for uid in {uid for uid in waiting if self._last.get(uid) == SENT}:  # killed before it was removed
            self._file(uid).unlink(missing_ok=True)
        self.unclear = sorted(uid for uid in waiting if self._last.get(uid) == SENDING)
        for uid in [uid for uid, event in self._last.items() if event in (MADE, SENDING) and uid not in waiting]:
            del self._last[uid]  # someone removed its file: the next time the image comes, it is made again
        self._last = dict.fromkeys(waiting, MADE) | self._last

    def close(self) -> None:
        """Let another process use the folder; a report that is still being sent gets no note."""
        with self._lock:
            os.close(self._journal)
            self._journal = -1  # else a late note would go into whatever file has the number next
        self._process.release()

    def has(self, uid: str) -> bool:
        """Whether a report was made already: it waits, was sent, or was refused."""
        return uid in self._last

    def add(self, uid: str, report: bytes) -> bool:
        """Keep a report until it is sent; False if it was made already.

        Raises:
            UsageError: the disk is full, or cannot be written.
        """
        with self._lock:
            if self.has(uid):
                return False
            with whole_file(self._file(uid)) as stream:
                Path(stream.name).chmod(0o600)
                stream.write(report)
            self._last[uid] = MADE
            with contextlib.suppress(OSError):  # the file itself says so
                self._write(uid, MADE)
            return True

    def waiting(self) -> list[Path]:
        """The files to send, the oldest first."""
        found = []
        for file in self.unsent.glob("*.dcm"):
            with contextlib.suppress(FileNotFoundError):
                found.append((file.stat().st_mtime_ns, file))
        return [file for _, file in sorted(found)]

    def sending(self, uid: str) -> None:
        """Note that a report is on its way. Raises OSError."""
        with self._lock:
            self._write(uid, SENDING)

    def done(self, uid: str, event: str) -> None:
        """Note that a report was sent or refused, and take its file out of those to send. Raises OSError."""
        with self._lock:
            self._last[uid] = event
            try:
                self._write(uid, event)
            finally:  # with a full disk too: the removal makes room for the next note
                if event == REFUSED:
                    self._file(uid).replace(self.refused / f"{uid}.dcm")
                else:
                    self._file(uid).unlink(missing_ok=True)

    def was_seen(self, key: str) -> bool:
        """Whether a watched file was answered or refused."""
        return key in self._last

    def seen(self, key: str) -> None:
        """Remember a watched file. Raises OSError."""
        with self._lock:
            self._last[key] = SEEN
            self._write(key, SEEN)

    def _file(self, uid: str) -> Path:
        return self.unsent / f"{uid}.dcm"

    def _write(self, name: str, event: str) -> None:
        line = json.dumps({"time": now(), "event": event, "id": name, "to": self.to}) + "\n"
        data = line.encode()
        if os.write(self._journal, data) != len(data):
            os.write(self._journal, b"\n")
            raise OSError("the disk is full")
        os.fsync(self._journal)
