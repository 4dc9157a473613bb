"""How a command speaks while it works: plain lines by default; the command line gives a richer one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Advance = Callable[..., None]  # (done, total, text="")


class Ui:
    """Lines on stderr, no progress bars: what a notebook or a log file wants."""

    def say(self, text: str) -> None:
        """A line of information."""
        print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Something that the user should act on."""
        print(f"warning: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def bar(self, title: str, unit: str = "images") -> Iterator[Advance]:
        """A progress bar; call what it gives with (done, total, text)."""
        yield lambda done, total, text="": None


class Silent(Ui):
    """Says nothing but warnings."""

    def say(self, text: str) -> None:
        """Nothing."""
