"""The errors that a user can cause, each with the exit code of the command line."""

from functools import cache
from pathlib import Path
from typing import Any

from vitmed.core.text import listed


class VitmedError(Exception):
    """A problem (the file, what was found and expected) and how to fix it, if possible with a command or a flag."""

    exit_code = 1

    def __init__(self, problem: str, fix: str = ""):
        super().__init__(problem, fix)  # so that pickle, of a loader process, makes the same error again
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.problem}\nFix: {self.fix}" if self.fix else self.problem

    @property
    def line(self) -> str:
        """Problem and fix in one line, for a list."""
        return self.problem if not self.fix else f"{self.problem}; {self.fix}"


class UsageError(VitmedError):
    """A wrong flag, config key, model, policy, metric or value."""

    exit_code = 2


class TimeTooShortError(UsageError):
    """A `--time` in which nothing can be done; `seconds` would be enough."""

    def __init__(self, problem: str, fix: str = "", seconds: float = 0.0):
        super().__init__(problem, fix)
        self.seconds = seconds


class DiskFullError(UsageError):
    """No room on a disk, which no other setting mends."""

    ROOM = "make room on this disk"


class DataError(VitmedError):
    """A folder or an image that cannot be used."""

    exit_code = 3


class CheckpointError(VitmedError):
    """A checkpoint or weight file that is missing, foreign, damaged or hostile."""

    exit_code = 4


class OutOfMemoryError(VitmedError):
    """The device has no memory left for this model, image size and batch."""

    exit_code = 5


class GateError(VitmedError):
    """The result is below `--fail-under`; `result` is what the command would have returned."""

    exit_code = 6

    def __init__(self, problem: str, fix: str = "", result: object = None):
        super().__init__(problem, fix)
        self.result = result


class EndedByCaller(VitmedError):
    """The function that `train` calls after each epoch has ended the run."""


class Reported(VitmedError):
    """An error of a training on several ranks, on a rank that does not lead: rank 0 raises the error itself."""


class Interrupted(VitmedError):
    """Stopped by Ctrl-C or SIGTERM, after `last.pt` was saved."""

    exit_code = 130


# Names of other tools, each with ours.
_PAIRS = "learning_rate lr, wd weight_decay, imgsz image_size, pretrained weights, augment policy, auc auroc"
ELSEWHERE = dict(pair.split() for pair in f"{_PAIRS}, roc_auc auroc".split(", "))


def nearest(found: str, names: list[str], cutoff: float = 0.6) -> str | None:
    """The name that is meant: what other tools call so, the shortest that begins with it or holds it, a similar one."""
    import difflib

    low, ours = found.lower(), sorted(names, key=len)
    alike = [name for name in ours if name in (low, ELSEWHERE.get(low))]
    alike += [name for name in ours if len(low) > 1 and name.lower().startswith(low)]
    alike += [name for name in ours if len(low) > 2 and low in name.lower()]
    return next(iter([*alike, *difflib.get_close_matches(found, names, 1, cutoff)]), None)


def unknown_key(what: str, found: str, known: object, where: str = "") -> UsageError:
    """The error for an unknown name of `what`, such as "metric"; `where` is its place (" in section 'train'")."""
    names = [str(k) for k in known]  # type: ignore[attr-defined]
    hint = f"did you mean '{near}'?" if (near := nearest(found, names)) else "use one of these names"
    return UsageError(f"unknown {what} '{found[:100]}'{where}, expected one of: {listed(names, 50)}", hint)


@cache
def exclusions() -> dict[str, dict[str, str]]:
    """What options a command refuses together, from exclusions.yaml, which says what the fields hold."""
    import yaml  # here, since --help needs no YAML

    return dict(yaml.safe_load(Path(__file__).with_name("exclusions.yaml").read_text(encoding="utf-8")))


def excluded(key: str, **given: Any) -> UsageError:
    """The error of a row of `exclusions`, to be raised; `given` fills the gaps of its message."""
    row = exclusions()[key]
    return UsageError(row["problem"].format(**given), row["fix"])
