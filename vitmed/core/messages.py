"""Messages and progress: `say`, `warn` and `bar` go to the `Ui` of this context, as records of logging go to handlers.

By default that is a plain one; the command line has a richer one. A new thread begins with the plain one.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
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
        pass


class Mute(Silent):
    """Prints nothing."""

    def warn(self, text: str) -> None:
        pass


class Logged(Ui):
    """Adds every line to a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def say(self, text: str) -> None:
        with self.file.open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"{visible(text)}\n")

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")


_PLAIN = Ui()
_listener: ContextVar[Ui] = ContextVar("listener")


@contextlib.contextmanager
def listening(ui: Ui) -> Iterator[Ui]:
    """Send messages and progress to this `Ui` within the block."""
    token = _listener.set(ui)
    try:
        yield ui
    finally:
        _listener.reset(token)


def listener() -> Ui:
    """Return where messages and progress go now, for another thread."""
    return _listener.get(_PLAIN)


def say(text: str) -> None:
    """Say a line of information."""
    listener().say(text)


def warn(text: str) -> None:
    """Say a problem that the user should act on."""
    listener().warn(text)


def bar(title: str, unit: str = "images") -> contextlib.AbstractContextManager[Advance]:
    """Show a progress bar; call the function that it yields with (done, total, text)."""
    return listener().bar(title, unit)
