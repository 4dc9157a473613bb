"""stdout and stderr of a command: a stream that is closed, full or ASCII ends no command."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO


class Stream(io.TextIOBase):
    """A stream that takes every character and never raises; what cannot be encoded gets a backslash.

    After the first error nothing more is written, and `broken` holds the error: a message that nobody can read must not
    end a training, and a closed `| head` must not lose the files that a command still has to write.

    Attributes:
        used: whether anything has been written.
    """

    def __init__(self, stream: TextIO):
        self.stream, self.used, self.broken = stream, False, None  # type: tuple[TextIO, bool, OSError | None]
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.used = True
        with self._unbroken():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._unbroken():
            self.stream.flush()

    @contextlib.contextmanager
    def _unbroken(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.broken = self.broken or error
            with contextlib.suppress(OSError):  # so that what is still buffered fails no more, at exit too
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def fill_closed() -> None:
    """Open the null device in place of closed standard streams, so that no other file gets their numbers."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
