"""Messages and progress: `say`, `warn` and `bar` go to the `Ui` of this context, as records of logging go to handlers.

By default that is a plain one; the command line has a richer one. A new thread begins with the plain one. Within
`gathering`, what is said is a detail: only what is shown (`show`), and the gravest warning, reach the screen.
"""

import contextlib
import itertools
import re
import shutil
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path

from vitmed.core.text import visible

Advance = Callable[..., None]  # (done, total, text="")
WIDE, LONGEST = 100, 200  # characters of a line, and of a warning, on a screen that shows no details
GRAVE = (  # words of warnings and notes on what may make a result false, the gravest first
    "within its first pass",  # of training: the numbers say nothing
    "(?<!may be )(?<!same picture )in two splits(?! .guessed)|another split|Leakage: |splits leak|was trained on|"
    "with a patient used to make the model|the weights were made with|the publisher names the images|may be swapped|"
    "changed or disappeared",
    "predicted as|oes not distinguish|does not predict it|network does not learn|is not shown to be better|"
    "lie outside the window",
    "which was used to make the model",
    "guessed from the file names",
    "may be in two splits|may also be in the training images",  # any patient: more than pictures that look alike
    "in two splits",
    "two labels|does not follow from the|too few to say how well",
    "atients are unknown|^Split by|come from|has images of two classes|can be predicted from",
    "of a single colour|could not be read|cannot be read",
    "worse than it could be",
)
GRAVEST = 4  # the first of these: hardly trained, images leaked, the model is at chance, or the result is optimistic
REMARK = re.compile(  # words of notes on how a result was computed: they make nothing false
    "^Pooled over|^The intervals of the pooled|^Each fold (decides|calls|predicts)|^Predicted in|"
    "^The table has no logits|these images have no such column|is undefined in |eans over findings|"
    "uncertainty is unknown, not small|adjusts a difference from a baseline|every number counts the known labels"
)


class Ui:
    """Lines on stderr without progress bars, for notebooks and log files."""

    began: float | None = None  # when the command line started, on `time.monotonic`; None for all but its first call
    verbose = False  # whether details reach the screen

    def say(self, text: str) -> None:
        """A line of information."""
        print(visible(text), file=sys.stderr, flush=True)

    def show(self, text: str) -> None:
        """A line that is no detail."""
        self.say(text)

    def warn(self, text: str) -> None:
        """A problem that the user should act on."""
        print(f"warning: {visible(text)}", file=sys.stderr, flush=True)

    def bar(self, title: str, unit: str = "images") -> contextlib.AbstractContextManager[Advance]:
        """A progress bar; call the function that it yields with (done, total, text)."""
        return contextlib.nullcontext(lambda done, total, text="": None)


class Silent(Ui):
    """Prints only warnings."""

    def say(self, text: str) -> None:
        pass


class Mute(Silent):
    """Prints nothing."""

    warn = Silent.say


class Logged(Ui):
    """Adds every line to a file."""

    verbose = True

    def __init__(self, file: Path) -> None:
        self.file = file

    def say(self, text: str) -> None:
        with self.file.open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"{visible(text)}\n")

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")


class Through(Ui):
    """Passes what is said, and progress, on to `ui`."""

    def __init__(self, ui: Ui) -> None:
        self.ui, self.verbose = ui, ui.verbose

    def say(self, text: str) -> None:
        self.ui.say(text)

    def bar(self, title: str, unit: str = "images") -> contextlib.AbstractContextManager[Advance]:
        return self.ui.bar(title, unit)


class Once(Through):
    """For jobs in turn, unless `ui` is verbose: shows the first job's messages without details, and each warning once.

    Warnings that differ only in figures count as the same.
    """

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self.began, ui.began = ui.began, None  # the first job alone counts from the start of the command
        self.first, self.warned = True, defaultdict[str, list[str]](list)  # whether the first job speaks

    def show(self, text: str) -> None:
        if self.verbose or self.first:
            self.ui.show(text)

    def warn(self, text: str) -> None:
        alike = self.warned[same_words(text)]
        if self.verbose or not alike:
            self.ui.warn(text)
        alike.append(text)

    def show_counts(self) -> None:
        """Show how often jobs warned of what is said once."""
        for alike in self.warned.values():
            if len(alike) > 1 and not self.verbose:
                self.ui.show(f"{len(alike)} times: {textwrap.shorten(alike[0], WIDE - 12, placeholder=' ...')}")


class Gathered(Through):
    """Keeps what is said, in `lines`, and warned; shows the rest on `ui` and, where that is verbose, everything."""

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self.lines, self.warnings = list[str](), list[str]()

    def say(self, text: str) -> None:
        self.lines.append(text)
        if self.verbose:
            self.ui.say(text)

    def show(self, text: str) -> None:
        self.lines.append(text)
        self.ui.show(text if self.verbose else wrapped(text))

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        if self.verbose:
            self.ui.warn(text)

    def warn_gravest(self, where: str) -> None:
        """Show the gravest warning, and how many more there are `where`."""
        if self.warnings and not self.verbose:
            first, *more = gravest_first(self.warnings)
            short = [text for text in more if gravity(text) == len(GRAVE) - 1]  # of time, which can still be given
            if len(first) > LONGEST:
                first = f"{first[:LONGEST].rsplit(' ', 1)[0]} ..."
            hidden = len(more) - len(short)
            count = f" ({hidden:,} more warning{'s' * (hidden > 1)}: {where})" if hidden else ""
            for text in (*short, first + count):
                self.ui.warn(wrapped(text, "warning: "))


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


@contextlib.contextmanager
def gathering() -> Iterator[Gathered]:
    """Keep what is said within the block off the screen, as `Gathered`; an error shows the warnings before it."""
    kept = Gathered(listener())
    try:
        with listening(kept):
            yield kept
    except BaseException:
        for text in [] if kept.verbose else gravest_first(kept.warnings):
            kept.ui.warn(text)
        raise


def wrapped(text: str, head: str = "") -> str:
    """Text in lines that the terminal shows whole, of at most `WIDE` characters, the first after `head`; breaks no path
    and no percentage."""
    form = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": " " * max(2, len(head))}
    kept = (head + text).replace(" %", "\xa0%").splitlines()  # textwrap breaks no line at a no-break space
    width = max(40, min(WIDE, shutil.get_terminal_size((WIDE, 0)).columns)) if sys.stderr.isatty() else WIDE
    lines = (textwrap.wrap(line, width, **form) for line in kept)  # type: ignore[arg-type]
    return "\n".join(itertools.chain.from_iterable(lines)).replace("\xa0%", " %")[len(head) :]


def same_words(text: str) -> str:
    """A text without its figures and the files that it names last, to compare what several runs say."""
    return re.sub(r"\d[\d.,]*", "#", text.partition("): ")[0])


def gravity(text: str) -> int:
    """The rank of a warning or note, 0 the gravest; `len(GRAVE)` for others, one more for what makes nothing false."""
    if REMARK.search(text):
        return len(GRAVE) + 1
    return next((rank for rank, words in enumerate(GRAVE) if re.search(words, text)), len(GRAVE))


def is_warning(text: str) -> bool:
    """Whether a note may make a result false."""
    return gravity(text) <= len(GRAVE)


def gravest_first(texts: Iterable[str]) -> list[str]:
    """Each text once, sorted by `gravity`."""
    return sorted(dict.fromkeys(texts), key=gravity)


def listener() -> Ui:
    """Return where messages and progress go now, for another thread."""
    return _listener.get(_PLAIN)


def say(text: str) -> None:
    listener().say(text)


def show(text: str) -> None:
    listener().show(text)


def warn(text: str) -> None:
    listener().warn(text)


def bar(title: str, unit: str = "images") -> contextlib.AbstractContextManager[Advance]:
    return listener().bar(title, unit)
