"""`Sender`: a thread that sends what the spool holds, with a longer pause after each failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from vitmed.commands.pacs.destinations import Destination, Sent, UnreachableError
from vitmed.commands.pacs.incoming import short_hash
from vitmed.commands.pacs.spool import REFUSED, SENT, Spool
from vitmed.core.text import counted

FIRST, LONGEST = 1.0, 300.0  # s of pause after the first failure, and at most
END = 5  # s that the report under way has when the node stops


class Sender:
    """Sends the reports of a spool until it is stopped.

    Args:
        log: gets a line about each report, and whether it is a problem.
    """

    def __init__(self, spool: Spool, to: Destination, log: Callable[[str, bool], None]):
        self.spool, self.to, self.log = spool, to, log
        self._news, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="vitmed sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """There is a new report."""
        self._news.set()

    def stop(self) -> None:
        """Send no further report. One under way that takes too long stays in the spool."""
        self._stop.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(END)

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.is_set():
            self._news.clear()
            if not (files := self.spool.waiting()):
                self._news.wait()
                continue
            try:
                self._send(files)
                pause = 0.0
                continue
            except UnreachableError as error:
                why = str(error)
            except Exception as error:  # a full disk, or a bug: the reports stay in the spool
                why = type(error).__name__
            pause = min(max(FIRST, 2 * pause), LONGEST)
            left = counted(len(self.spool.waiting()), "report")
            self.log(f"{left} not sent to {self.to.name}: {why}; next try in {pause:.0f} s", True)
            self._stop.wait(pause)

    def _send(self, files: list[Path]) -> None:
        began = 0.0

        def taken() -> Iterator[Path]:
            nonlocal began
            for file in files:
                if self._stop.is_set():
                    return
                self.spool.sending(file.stem)
                began = time.monotonic()
                yield file

        for sent in self.to.send(taken()):
            self._note(sent, 1000 * (time.monotonic() - began))

    def _note(self, sent: Sent, ms: float) -> None:
        uid = sent.file.stem
        self.spool.done(uid, REFUSED if sent.refused else SENT)
        told = f"report {short_hash(uid)}, {ms:.0f} ms"
        if sent.refused:
            self.log(f"SR refused by {self.to.name} ({sent.refused}), kept in {self.spool.refused}, {told}", True)
        else:
            self.log(f"SR sent, {told}", False)
