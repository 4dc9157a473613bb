"""`vitmed diff`: what differs between two runs, in settings, images and versions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vitmed.core.errors import UsageError
from vitmed.core.options import Argument

if TYPE_CHECKING:
    from vitmed.studies.difference import RunDiff


def diff(
    first: Annotated[Path | str, Argument("A run folder, or its best.pt.", "RUN")],
    second: Annotated[Path | str, Argument("Another one.", "RUN")],
) -> "RunDiff":
    """Report what differs between two runs; no image is read.

    Raises:
        UsageError: one of them is no run, or only one is pretraining. DataError, CheckpointError: an unreadable file.
    """
    from vitmed.studies.comparison import short_names  # here, since the table of runs needs no torch
    from vitmed.studies.difference import difference, read_facts

    paths = (Path(first), Path(second))
    a, b = (read_facts(path) for path in paths)
    names = short_names([path.resolve().parts[1:] for path in paths])
    if a.fields is not b.fields:
        raise UsageError(f"one of {' and '.join(names)} is a run of pretraining", "name two runs of one kind")
    return difference(a, b, names)
