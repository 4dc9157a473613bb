"""The samples of a data set, and the split of each."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from vitmed.core.base_models import CLASSES, NO_FINDING, UNKNOWN, Target
from vitmed.core.text import counted, listed
from vitmed.data.folders import SPLITS
from vitmed.data.patient_names import Guess, group_word
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions

ALL = "all"  # the split of images that are not split yet
LISTED = 20  # findings with a line of their own


class Sample(NamedTuple):
    """One image."""

    path: str  # relative to the data root, with forward slashes
    # Index of its class, otherwise of its stratum (`Splits.strata`), in proportion to which images are split.
    label: int
    group: str | None  # patient, or None
    columns: tuple[str, ...] = ()  # its cells in the order of `Splits.columns`
    targets: tuple[float, ...] = ()  # of findings 1, 0 or `UNKNOWN` for each; of a number the number; else ()


@dataclass(frozen=True)
class Splits:
    """The split of every image; before `make_splits` the splits of the folder or the table, or one that is `ALL`.

    A checkpoint stores no notes, no guess, not what was recognised, and not the last two fields.
    """

    root: Path
    classes: tuple[str, ...]  # sorted names of the classes; the grades, from the lowest; the findings; or the number
    samples: dict[str, tuple[Sample, ...]]  # split name -> its samples, ordered by class, then by path
    made: dict[str, str] = field(default_factory=dict)  # split name -> its origin in words, such as "folder val/"
    columns: tuple[str, ...] = ()  # names of further columns in a table of labels
    patients: str = ""  # how patients are known, in words; "" if they are unknown
    notes: tuple[str, ...] = ()  # messages for the user
    guess: Guess | None = None  # patients that the file names suggest, if you named none
    target: Target = CLASSES
    bins: tuple[str, ...] = ()  # of findings and numbers, the names of the strata; see `strata`
    recognised: str = ""  # what the labels are and where they come from, in words
    source: Path = Path()  # the folder or table that states the class
    copies: Mapping[str, str] = field(default_factory=dict)  # path -> the first with the same bytes; {}: not needed

    @property
    def strata(self) -> tuple[str, ...]:
        """Names of the strata that `Sample.label` counts: the classes; of findings the rarest one of an image, and
        "no finding" at the end; of a number its ranges."""
        return self.bins or self.classes

    def text_of(self, sample: Sample) -> str:
        """The label of a sample in a table: its class; its findings joined by |, one that is not known with "?"."""
        if self.target.kind == "number":
            return f"{sample.targets[0]:.15g}"
        if self.target.kind != "findings":
            return self.classes[sample.label]
        values = zip(self.classes, sample.targets, strict=True)
        return "|".join(name + "?" * (value == UNKNOWN) for name, value in values if value) or NO_FINDING

    @property
    def digest(self) -> str:
        """The sha256 of which image has which label and patient and is in which split."""
        rows = [(name, s.path, self.text_of(s), s.group) for name, part in self.samples.items() for s in part]
        return hashlib.sha256(json.dumps(rows).encode("utf-8", "surrogateescape")).hexdigest()

    def counts(self, split: str) -> list[int]:
        """Images per stratum of a split, in their order."""
        count = Counter(sample.label for sample in self.samples[split])
        return [count[k] for k in range(len(self.strata))]

    def targets(self, split: str) -> np.ndarray:
        """Float64: for findings (S, F) 1, 0 or `UNKNOWN`, for a number (S, 1), for classes and grades (S, 0)."""
        return targets_in(self.samples[split])

    def changed(self, change: Callable[[Sample], Sample | None], **fields: Any) -> Self:
        """A copy with these fields, each sample changed, or left out where `change` returns None; sorted by class."""
        changed = {name: filter(None, map(change, part)) for name, part in self.samples.items()}
        samples = {name: tuple(sorted(part, key=attrgetter("label"))) for name, part in changed.items()}
        return replace(self, samples=samples, **fields)

    @property
    def every(self) -> list[Sample]:
        """All samples, by class, then by path; those of a folder by split first."""
        samples = [sample for part in self.samples.values() for sample in part]
        if len(self.samples) > 1 and self.source.is_file():
            samples.sort(key=lambda sample: (sample.label, sample.path.split("/")))
        return samples

    @property
    def outputs(self) -> int:
        """How many numbers the network gives of an image: of a number its location and the log of its scale."""
        return 2 if self.target.kind == "number" else len(self.classes)

    @property
    def choices(self) -> int:
        """Between how many classes a decision chooses: a finding is there or not, and a number is not decided."""
        return {"findings": 2, "number": 0}.get(self.target.kind, len(self.classes))

    @property
    def grouped(self) -> bool:
        return all(sample.group is not None for samples in self.samples.values() for sample in samples)

    @property
    def unit(self) -> str:
        """What one group is called: "patient", unless groups come from something else; "image" where none are known."""
        return group_word(self.patients) if self.grouped else "image"

    def groups(self) -> dict[str, set[str]]:
        """Split name -> its known patients."""
        return {name: {s.group for s in part if s.group is not None} for name, part in self.samples.items()}

    def shared(self) -> dict[str, list[str]]:
        """Patient -> splits with images of the patient, for patients in more than one; sorted by name."""
        groups = self.groups()
        count = Counter(group for part in groups.values() for group in part)
        both = sorted(group for group, splits in count.items() if splits > 1)
        return {group: [name for name, part in groups.items() if group in part] for group in both}


def by_split(samples: Iterable[Sample], splits: Sequence[str]) -> dict[str, tuple[Sample, ...]]:
    """The samples of each split, from the split of each sample."""
    parts: dict[str, list[Sample]] = {name: [] for name in (*SPLITS, ALL) if name in splits}
    for sample, name in zip(samples, splits, strict=True):
        parts[name].append(sample)
    return {name: tuple(part) for name, part in parts.items()}


def labels_in(samples: Sequence[Sample]) -> np.ndarray:
    """(S,) int64: the class, grade or stratum of each."""
    return np.array([sample.label for sample in samples], dtype=np.int64)


def targets_in(samples: Sequence[Sample]) -> np.ndarray:
    """(S, F) float64 findings, or (S, 1) numbers."""
    return np.array([sample.targets for sample in samples], dtype=np.float64).reshape(len(samples), -1)


def labelled_by(
    target: Target,
    classes: tuple[str, ...],
    samples: Sequence[Sample],
    logits: np.ndarray,
    positive: str | None = None,
    columns: Sequence[str] = (),
) -> Predictions:
    """Logits (S, K) of the samples as predictions with labels, and with patients if every image has one."""
    paths = tuple(sample.path for sample in samples)
    groups = tuple(str(s.group) for s in samples) if all(s.group is not None for s in samples) else None
    further = cells_of(samples, columns)
    if target.kind in ("classes", "grades"):
        return Predictions(classes, paths, groups, labels_in(samples), logits, positive=positive, columns=further)
    targets = targets_in(samples)
    if target.kind == "findings":
        return FindingPredictions(classes, paths, groups, targets.astype(np.int8), logits, columns=further)
    return NumberPredictions(classes, paths, groups, targets[:, 0], logits, target=target, columns=further)


def cells_of(samples: Sequence[Sample], columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(sample.columns[i] for sample in samples) for i, name in enumerate(columns)}


def describe_split(splits: Splits, split: str) -> str:
    """`300 + 120` images of each class or grade; of findings, how many images have none; of numbers, mean and range."""
    targets, unit = splits.targets(split), f" {splits.target.unit}" if splits.target.unit else ""
    if splits.target.kind == "findings":
        return f"{int((~(targets == 1).any(axis=1)).sum()):,} with {NO_FINDING}"
    if splits.target.kind == "number":
        return f"mean {targets.mean():.4g}, {targets.min():g} to {targets.max():g}{unit}"
    return listed([f"{n:,}" for n in splits.counts(split)], mark=" + ")


def proportion_lines(splits: Splits) -> list[str]:
    """What the labels were recognised as; and of findings, a line for each: positives and their share in each split."""
    lines = [f"labels: {splits.recognised}"] if splits.recognised else []
    if splits.target.kind != "findings":
        return lines
    cells = {}
    for name in splits.samples:
        targets = splits.targets(name)
        counts = zip((targets == 1).sum(axis=0).tolist(), (targets != UNKNOWN).sum(axis=0).tolist(), strict=True)
        cells[name] = [f"{count:>6,} {count / of:>6.1%}" if of else f"{'not known':>13}" for count, of in counts]
    shown = splits.classes[:LISTED]
    width = max(map(len, ("positives", *shown)))
    lines.append(f"{'positives':{width}}" + "".join(f"  {name:>13}" for name in cells))
    lines += [f"{name:{width}}" + "".join(f"  {of[k]}" for of in cells.values()) for k, name in enumerate(shown)]
    if len(splits.classes) > LISTED:
        lines.append(f"and {counted(len(splits.classes) - LISTED, 'more finding')}")
    return lines
