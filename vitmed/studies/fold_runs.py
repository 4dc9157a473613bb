"""The runs of folds: which there are, and what each begins with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitmed.core.errors import CheckpointError
from vitmed.core.files import json_of
from vitmed.core.run_folder import RunFolder
from vitmed.decisions.folds import numbered
from vitmed.studies.executors import Job


@dataclass(frozen=True)
class Study:
    """What folds.json holds.

    Attributes:
        folds: of each repeat; repeats: how often the images are divided.
        window: of the configuration; each fold chooses its own from it.
        sites: names of the folds, where each is a site; else ().
    """

    folds: int
    repeats: int
    window: Any
    sites: tuple[str, ...]

    @classmethod
    def read(cls, folder: RunFolder) -> Study:
        """Raises CheckpointError for a damaged file."""
        try:
            asked = json_of(folder.folds.read_text(encoding="utf-8"))
            return cls(
                int(asked["folds"]), int(asked.get("repeats", 1)), asked["window"], tuple(asked.get("sites", ()))
            )
        except (OSError, ValueError, KeyError, TypeError):
            fix = "start again with vitmed cross-validate"
            raise CheckpointError(f"{folder.folds}: cannot be read", fix) from None

    @property
    def notes(self) -> list[str]:
        """What must be known of the folds before the numbers are believed."""
        if self.sites:
            return [f"Each fold is a site that its model never saw: {numbered(self.sites)}."]
        if self.repeats == 1:
            return []
        return [
            f"The images were divided {self.repeats} times: folds 1 to {self.folds} are the first time, and so on. "
            f"Each image has predictions of {self.repeats} models that never saw it; the pooled numbers are those of "
            "their mean, and so of a small ensemble. The numbers by fold are those of single models."
        ]

    @property
    def places(self) -> list[tuple[int, int]]:
        """(repeat, fold) of every run, from 1."""
        return [(repeat, fold) for repeat in range(1, self.repeats + 1) for fold in range(1, self.folds + 1)]


def fold_jobs(folder: RunFolder, study: Study, first: Mapping[str, Any] | None, offline: bool) -> Iterator[Job]:
    """The runs of all folds. All have the plan of the first one, which must have begun when the next is asked for.

    Args:
        first: the arguments of `train` for the first fold; None where it has begun.
    """
    wide = "null" if study.window is None else json.dumps(study.window)  # chosen anew from its training images
    for repeat, fold in study.places:
        again = f" of repeat {repeat}" if study.repeats > 1 else ""
        title = f"fold {fold} of {study.folds}{again}" + (f": {study.sites[fold - 1]}" if study.sites else "")
        arguments: dict[str, Any] = {**(first or {}), "fold": fold}
        if first is None or (repeat, fold) != (1, 1):
            sets = (f"data.window={wide}", f"data.repeat={repeat}")
            arguments = {"config": planned(folder), "sets": sets, "fold": fold}
        yield Job(fold_name(repeat, fold), title, {**arguments, "offline": offline})


def planned(folder: RunFolder) -> Path | None:
    """The configuration of the first fold; None where it has not begun."""
    there = Job(fold_name(1, 1), "").attempts(folder)
    return next((place.config for place in there if place.config.is_file()), None)


def fold_name(repeat: int, fold: int) -> str:
    """The name of the run folder of a fold."""
    return f"fold-{fold}" if repeat == 1 else f"repeat-{repeat}-fold-{fold}"
