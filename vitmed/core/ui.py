"""Messages and progress of a command: plain lines by default; the command line has a richer `Ui`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from vitmed.core.text import visible

Advance = Callable[..., None]  # (done, total, text="")


class Ui:
    """Lines on stderr without progress bars, for notebooks and log files.

    Attributes:
        began: when the command line started, on `time.monotonic`; None in Python, and for all but its first call.
    """

    began: float | None = None

    def say(self, text: str) -> None:
        """A line of information."""
        print(visible(text), file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """A problem that the user should act on."""
        print(f"warning: {visible(text)}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def bar(self, title: str, unit: str = "images") -> Iterator[Advance]:
        """A progress bar; call the function that it yields with (done, total, text)."""
        yield lambda done, total, text="": None


class Silent(Ui):
    """Prints only warnings."""

    def say(self, text: str) -> None:
        """Print nothing."""


class Mute(Silent):
    """Prints nothing."""

    def warn(self, text: str) -> None:
        """Print nothing."""


class Logged(Ui):
    """Adds every line to a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def say(self, text: str) -> None:
        with self.file.open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"{visible(text)}\n")

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")
