"""`SavedModel`: what a checkpoint and an exported model have in common, with the split of every image as a file stores
it (`membership_of`); `Network`: what runs one over images.

Importing this loads no torch, since an exported model runs without it.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vitmed.core.base_models import CLASSES, UNKNOWN, Target
from vitmed.core.config import Config
from vitmed.core.errors import CheckpointError, DataError, VitmedError, unknown_key
from vitmed.core.places import local_path, refuse_archive
from vitmed.core.run_folder import find_path, is_elsewhere, store_path
from vitmed.core.text import first_line
from vitmed.data.samples import Sample, Splits
from vitmed.data.thread_batches import Progress, read_batches
from vitmed.decisions.policy import DecisionPolicy
from vitmed.imaging.preprocessing import Preprocessing, is_blank
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import ANSWER, BLANK, NO, OOD_SCORE, YES
from vitmed.metrics.predictions_files import PREDICTIONS

if TYPE_CHECKING:
    from vitmed.models.vit import ViT

Read = Callable[[int], np.ndarray]  # index -> (S, S, C) uint8; may raise DataError
Columns = dict[str, tuple[str, ...]]  # further columns of a table: name -> a cell of each image
Batches = tuple[list[int], list[np.ndarray], dict[int, str]]  # what `run_batches` returns
Hashes = dict[str, list[str]]  # split -> a digest of each image, in the order of the samples
PRECISIONS = ("auto", "fp32", "bf16")


@dataclass(frozen=True)
class SavedModel:
    """A model as read from its file.

    The root of its `splits` is relative to the file's folder, and may not exist here; an exported model knows the
    hashes of the images alone. The `fingerprints` are empty where they are not known.
    """

    path: Path  # the file
    config: Config  # the complete configuration of the run, with the model's sizes resolved
    classes: tuple[str, ...]  # in the order of the logits
    preprocessing: Preprocessing  # how an image becomes the input
    splits: Splits  # the split of every image
    hashes: Hashes  # sha256 of the files
    record: dict[str, Any]  # of the epoch of these weights
    versions: dict[str, str]  # of vitmed and torch, when the file was written
    seen: tuple[str, ...] = field(default=(), repr=False)  # `Weights.seen` of the weights that it started from
    policy: DecisionPolicy | None = field(default=None, repr=False)
    weights_hash: str = ""  # sha256 of the weights, which every evaluation of them states
    fingerprints: Hashes = field(default_factory=dict, repr=False)  # of `data.duplicates`
    # what a report of an ensemble says otherwise than `report.evaluate.facts`
    facts: dict[str, str] = field(default_factory=dict, repr=False, kw_only=True)

    @property
    def exact(self) -> str:
        """The precision in which it gives the same numbers on every machine."""
        return "fp32"

    def data_root(self, fix: str = "name its current place: --data DIR") -> Path:
        """The data folder of the run. Raises DataError if it is missing; `fix` says how to name another place."""
        root = local_path(self.splits.root)
        refuse_archive(root)
        if not root.is_dir():
            what = f"{root}: the data folder of {self.path} is missing"
            if is_elsewhere(root):
                what = f"{root.name}, the data folder of {self.path}, was outside the project at an unknown place"
            raise DataError(what, fix)
        return root

    def predictions(
        self, names: tuple[str, ...], logits: np.ndarray, columns: Columns, errors: tuple[tuple[str, str], ...] = ()
    ) -> Predictions:
        """Logits (S, K) of images by name, without labels and patients, as predictions before any policy."""
        target, of_kind = self.splits.target, PREDICTIONS[self.splits.target.kind]
        return of_kind(self.classes, names, None, None, logits, errors, columns=columns, target=target)

    def decided(self, predictions: Predictions) -> Predictions:
        """Predictions with the policy applied, where there is one."""
        return predictions if self.policy is None else self.policy.apply(predictions)

    def chosen_policy(self) -> DecisionPolicy:
        """The policy. Raises CheckpointError if there is none."""
        if self.policy is None:
            fix = "name the best.pt of a finished run; vitmed train --resume RUN finishes one"
            raise CheckpointError(f"{self.path}: holds no decision policy", fix)
        return self.policy


class Outputs(NamedTuple):
    """What the network gives for images, of which S can be read."""

    indices: list[int]  # of the S readable images, ascending
    logits: np.ndarray  # (S, K) float32
    columns: Columns  # their OOD scores, if known, and which have no content
    problems: dict[int, str]  # index -> problem of the others
    features: np.ndarray = np.empty((0, 0), np.float32)  # (S, D); D is 0 unless asked for


class Network(ABC):
    """What runs a saved model over images."""

    saved: SavedModel
    device: str  # where, in words
    batch: int  # images that it computes at once
    scored: bool  # whether it gives OOD scores
    precision: str = "fp32"  # of its arithmetic
    reason: str = ""  # why it is not fp32
    model: "ViT | None" = None  # the network itself, for attention maps; an exported model has none

    def outputs(
        self, read: Read, count: int, progress: Progress = lambda done, total: None, also_features: bool = False
    ) -> Outputs:
        """Run the network over `count` images. A column `answer` names those without content, where there are any.

        Args:
            read: index -> (S, S, C) uint8; what raises DataError becomes a problem of this image.
            progress: called with the numbers of images that are done and of all.
            also_features: return the features of each image, too; an exported model has none.

        Raises:
            CheckpointError: a logit is not finite. UsageError: it has no features, and they are asked for.
        """
        blank = set[int]()

        def watched(index: int) -> np.ndarray:
            square = read(index)
            if is_blank(self.saved.preprocessing.shown(square)):
                blank.add(index)
            return square

        indices, arrays, problems = self._run(watched, count, progress, also_features)
        for array in arrays:
            check_finite(array, self.saved.path)
        logits, *others = arrays or [np.empty((0, self.saved.splits.outputs), np.float32), *[np.empty(0)] * self.scored]
        columns = score_column(others.pop(0) if self.scored else None)
        if blank:
            columns[ANSWER] = tuple(NO + BLANK if index in blank else YES for index in indices)
        return Outputs(indices, logits, columns, problems, *others)

    @abstractmethod
    def _run(self, read: Read, count: int, progress: Progress, also_features: bool) -> Batches:
        """The logits, then the OOD scores (S,) where it is `scored`, then the features where they are asked for."""


def run_batches(
    read: Read, count: int, size: int, run: Callable[[np.ndarray], Sequence[np.ndarray]], progress: Progress
) -> Batches:
    """Read `count` images and run a network, (B, S, S, C) uint8 -> arrays with a row for each image, over `size` at a
    time: the indices of readable images, their arrays (none without any), and index -> problem for the others."""
    indices, parts, problems = list[int](), list[Sequence[np.ndarray]](), dict[int, str]()
    for good, squares, bad in read_batches(read, count, size):
        problems.update(bad)
        indices += good
        if good:
            parts.append(run(squares))
        progress(len(indices) + len(problems), count)
    return indices, [np.concatenate(arrays) for arrays in zip(*parts, strict=True)], problems


def check_precision(name: str) -> None:
    """Raises UsageError unless it is one of `PRECISIONS`."""
    if name not in PRECISIONS:
        raise unknown_key("precision", name, PRECISIONS)


def score_column(scores: np.ndarray | None) -> Columns:
    """The column of OOD scores (S,), where there are any."""
    return {} if scores is None else {OOD_SCORE: tuple(f"{score:.6g}" for score in scores)}


def check_finite(logits: np.ndarray, source: object) -> None:
    """Raise CheckpointError, which names `source`, if a logit is NaN or infinite."""
    if not np.isfinite(logits).all():
        raise CheckpointError(f"{source}: its logits are not finite", "use another checkpoint of the run")


def membership_of(splits: Splits, hashes: Hashes, path: Path) -> dict[str, Any]:
    """Plain types that describe the images of a checkpoint at `path`; the root is relative to its folder, and a split
    may be missing in `hashes`, the sha256 of its files."""
    parts: dict[str, dict[str, Any]] = {}
    for name, samples in splits.samples.items():
        parts[name] = {"paths": [s.path for s in samples], "labels": [s.label for s in samples]}
        parts[name] |= {"groups": [s.group for s in samples], "sha256": hashes.get(name, [])}
        if splits.columns:
            parts[name]["columns"] = [list(s.columns) for s in samples]
        if splits.bins:
            parts[name]["targets"] = [list(s.targets) for s in samples]
    data: dict[str, Any] = {"root": store_path(splits.root, path.parent), "splits": parts, "made": splits.made}
    data |= {"columns": list(splits.columns), "patients": splits.patients}
    if splits.target != CLASSES:
        data |= {"target": splits.target.model_dump(), "bins": list(splits.bins)}
    return data


def read_membership(path: Path, content: dict[str, Any]) -> tuple[Splits, Hashes]:
    """The splits and hashes that `membership_of` stored. Raises KeyError, TypeError or ValueError for other content."""
    data, samples, hashes = content["data"], {}, {}
    classes, bins = tuple(content["classes"]), tuple(data.get("bins", ()))
    target = Target.model_validate(data.get("target", {}))
    expect("classes", content["classes"], str)
    expect("data.bins", data.get("bins", ()), str)
    if bool(bins) != (target.kind in ("findings", "number")):
        raise ValueError(f"data.bins: {len(bins)} of {target.kind}")
    strata = bins or classes
    expect("data.made", data["made"].values(), str)
    expect("data.seen", data.get("seen", ()), str)
    for name, part in data["splits"].items():
        for column, kind in (("paths", str), ("labels", int), ("groups", str | None), ("sha256", str)):
            expect(f"data.splits.{name}.{column}", part[column], kind)
        if part["labels"] and not 0 <= min(part["labels"]) <= max(part["labels"]) < len(strata):
            raise ValueError(f"data.splits.{name}.labels: expected classes from 0 to {len(strata) - 1}")
        if len(part["sha256"]) not in (0, len(part["paths"])):
            raise ValueError(f"data.splits.{name}: {len(part['sha256'])} digests of {len(part['paths'])} images")
        none = [()] * len(part["paths"])
        further, targets = (map(tuple, rows) for rows in (part.get("columns", none), part["targets"] if bins else none))
        rows = zip(part["paths"], part["labels"], part["groups"], further, targets, strict=True)
        samples[name] = tuple(Sample(*row) for row in rows)
        for sample in samples[name] if bins else ():  # of findings 1, 0 or `UNKNOWN` for each, of a number a finite one
            row = sample.targets
            expect(f"data.splits.{name}.targets", row, float)
            good = set(row) <= {0, 1, UNKNOWN} if target.kind == "findings" else np.isfinite(row).all()
            if len(row) != len(classes) or not good:
                raise ValueError(f"data.splits.{name}.targets: {row} of {len(classes)} {target.kind}")
        hashes[name] = list(part["sha256"])
    root, made, columns = find_path(data["root"], path.parent), dict(data["made"]), tuple(data["columns"])
    return Splits(root, classes, samples, made, columns, data["patients"], target=target, bins=bins), hashes


@contextlib.contextmanager
def damage(path: Path, fix: str) -> Iterator[None]:
    """Turn errors in the content of a file into a CheckpointError that names the file."""
    try:
        yield
    except VitmedError as error:
        raise CheckpointError(f"{path}: {error.problem}", error.fix) from None
    except KeyError as error:
        raise CheckpointError(f"{path}: damaged: it lacks {error}", fix) from None
    except (OSError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"{path}: damaged: {first_line(error)}", fix) from None


def expect(what: str, values: Collection[Any], kind: Any) -> None:
    """Raise ValueError for a value of another type."""
    if isinstance(values, str) or not all(isinstance(value, kind) for value in values):
        raise ValueError(f"{what}: expected {getattr(kind, '__name__', kind)}")
