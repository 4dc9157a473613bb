"""A rank that does not lead: it takes the run from the leader, reads the same images, and computes its rows."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitmed.core.environment import versions
from vitmed.core.errors import DataError, EndedByCaller, Interrupted, UsageError, VitmedError
from vitmed.core.hardware import pick_device
from vitmed.core.inputs import data_folder
from vitmed.core.ranks import LeaderReports, Ranks
from vitmed.core.text import counted, listed
from vitmed.core.ui import Ui
from vitmed.data.read_images import read_all
from vitmed.training.training_run import Start, TrainingRun


class Mute(Ui):
    """Prints nothing: the leader does."""

    def say(self, text: str) -> None:
        """Print nothing."""

    def warn(self, text: str) -> None:
        """Print nothing."""


def follow(ranks: Ranks, data: str | Path | None) -> Any:
    """Take part in the training that the leader begins; return what the leader sends at its end.

    None where the leader ends with an error: it sends nothing then. This rank ends well, because torchrun stops the
    leader, which may still be saving, as soon as another rank fails.

    Args:
        data: the data folder on this machine; None: where the leader has it.
    """
    try:
        start: Start = ranks.send("start")
    except LeaderReports:
        return None
    run, error = None, None
    for turn in (True, False):  # one rank of each machine first: the others then find its images in the cache
        if (ranks.local_rank == 0) == turn:
            try:
                run = _join(ranks, start, data)
            except VitmedError as found:
                error = found
        try:
            ranks.agree(error)
        except LeaderReports:
            return None
    assert run is not None
    with contextlib.suppress(LeaderReports, Interrupted, EndedByCaller):
        run.run_epochs()
        return ranks.send("end")
    return None


def _join(ranks: Ranks, start: Start, data: str | Path | None) -> TrainingRun:
    """The run of the leader on this rank. Raises VitmedError if versions, device or images differ."""
    if other := [f"{name} {found}" for name, found in versions().items() if start.versions[name] != found]:
        there = listed([f"{name.split()[0]} {start.versions[name.split()[0]]}" for name in other])
        raise UsageError(f"has {listed(other)}, rank 0 has {there}", "install the same versions everywhere")
    root = start.splits.root if data is None else data_folder(data)
    if not root.exists():
        problem = f"{root}: no such data folder on its machine"
        raise DataError(problem, "copy it there, or name its place: vitmed train DIR")
    splits = replace(start.splits, root=root)
    run = TrainingRun(start.config, splits, pick_device(start.config.train.device), Mute(), ranks=ranks)
    run.hashes = read_all(run.images, run.config.data, run.ui)
    for name, known in start.hashes.items():
        changed = [s.path for s, a, b in zip(splits.samples[name], known, run.hashes[name], strict=True) if a != b]
        if changed:
            what = counted(len(changed), "image") + f" of {name}"
            raise DataError(
                f"{root}: {what} differ from those of rank 0, the first is {changed[0]}",
                "copy the data folder of rank 0 to every machine",
            )
    run.folder = start.folder
    run.prepare()
    run.state.load_state_dict(start.state)
    return run
