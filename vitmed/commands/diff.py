"""`vitmed diff`: what differs between two runs, in settings, images and versions."""

from pathlib import Path
from typing import Annotated

from vitmed.core.errors import UsageError
from vitmed.core.options import Argument
from vitmed.studies.comparison import short_names
from vitmed.studies.difference import RunDiff, difference, read_facts


def diff(
    first: Annotated[Path | str, Argument("A run folder, or its best.pt.", "RUN")],
    second: Annotated[Path | str, Argument("Another one.", "RUN")],
) -> RunDiff:
    """Report what differs between two runs; no image is read.

    Raises:
        UsageError: one of them is no run, or only one is pretraining. DataError, CheckpointError: an unreadable file.
    """
    paths = (Path(first), Path(second))
    a, b = (read_facts(path) for path in paths)
    names = short_names([path.resolve().parts[1:] for path in paths])
    if a.fields is not b.fields:
        raise UsageError(f"one of {' and '.join(names)} is a run of pretraining", "name two runs of one kind")
    return difference(a, b, names)
