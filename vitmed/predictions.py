"""`Predictions`: what a model said of a set of images. Everything after the network starts from it.

Validation, evaluation and prediction all end in one of these, and every metric, figure and report is a
pure function of it. `predictions.csv` holds it completely, so a report can be rebuilt without a model.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from vitmed.errors import DataError

FIXED_COLUMNS = ("path", "label", "group", "prediction", "confidence")
UNFAMILIARITY = "unfamiliarity"  # a further column, which a model with a measure of it writes


@dataclass(frozen=True)
class Predictions:
    """What a model said of S images, in one class order.

    Attributes:
        classes: the K class names, in the model's order.
        paths: S image paths, relative to the data root, with forward slashes.
        groups: S group (patient) names, or None where patients are unknown.
        labels: (S,) int64 indices into `classes`, or None where the truth is unknown.
        logits: (S, K) float32, before the softmax.
        positive: of two classes the finding, where somebody said which; else its name decides.
        columns: what else is said of the images: name of the column -> S cells.
        threshold: of two classes, the probability of `positive` from which an image is called positive; None: the
            likeliest class is taken.
        costs: of more classes, K x K: what it costs to take an image of the row's class for the column's; the class
            with the lowest expected cost is taken.
        decided: (S,) int64, the class that was taken of each image, where several models decided, each in its own way;
            None: `threshold`, `costs` or the likeliest class decides.
        errors: per unreadable image, path -> what is wrong with it; such images have no row here.
        named: whether figures and tables may tell paths; not kept in the table.
    """

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    groups: tuple[str, ...] | None
    labels: np.ndarray | None
    logits: np.ndarray
    errors: tuple[tuple[str, str], ...] = ()
    positive: str | None = None
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    threshold: float | None = None
    costs: tuple[tuple[float, ...], ...] | None = None
    decided: np.ndarray | None = None
    named: bool = False

    def __post_init__(self) -> None:
        size = len(self.paths)
        assert self.logits.shape == (size, len(self.classes)), self.logits.shape
        assert self.labels is None or self.labels.shape == (size,)
        assert self.groups is None or len(self.groups) == size
        assert all(len(cells) == size for cells in self.columns.values())
        assert self.threshold is None or (len(self.classes) == 2 and self.positive in self.classes)
        assert self.decided is None or self.decided.shape == (size,)
        assert self.costs is None or np.shape(self.costs) == (len(self.classes),) * 2

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: np.ndarray) -> Predictions:
        """Those of the given rows alone, in that order; without the unreadable images."""
        return replace(
            self,
            paths=tuple(self.paths[i] for i in rows),
            groups=None if self.groups is None else tuple(self.groups[i] for i in rows),
            labels=None if self.labels is None else self.labels[rows],
            logits=self.logits[rows],
            decided=None if self.decided is None else self.decided[rows],
            columns={name: tuple(cells[i] for i in rows) for name, cells in self.columns.items()},
            errors=(),
        )

    @cached_property
    def probabilities(self) -> np.ndarray:
        """(S, K) float64, rows sum to 1: the softmax of the logits."""
        z = self.logits.astype(np.float64)
        z = np.exp(z - z.max(axis=1, keepdims=True)) if len(self) else z
        return z / z.sum(axis=1, keepdims=True) if len(self) else z

    @cached_property
    def predicted(self) -> np.ndarray:
        """(S,) int64: the class that is taken: as `decided`, by `threshold` or `costs`, else the largest logit."""
        if self.decided is not None:
            return self.decided
        if self.threshold is not None and self.positive is not None:
            finding = self.classes.index(self.positive)
            return np.where(self.probabilities[:, finding] >= self.threshold, finding, 1 - finding).astype(np.int64)
        if self.costs is not None:
            return (self.probabilities @ np.array(self.costs, dtype=np.float64)).argmin(axis=1).astype(np.int64)
        return self.logits.argmax(axis=1).astype(np.int64)

    @cached_property
    def confidence(self) -> np.ndarray:
        """(S,) float64: the probability of the predicted class."""
        return self.probabilities[np.arange(len(self)), self.predicted]

    def name(self, row: int) -> str:
        """What an image is called in a report: "row 7" for the seventh; its path where the user wants it so."""
        return self.paths[row] if self.named else f"row {row + 1}"

    def header(self) -> list[str]:
        """Column names of `predictions.csv`, in order; those of `columns` stand at the end."""
        own = [f"{kind}_{name}" for kind in ("prob", "logit") for name in self.classes]
        return [*FIXED_COLUMNS, *own, *self.columns]

    def rows(self) -> list[list[str]]:
        """One row of text per image; floats are written so that they read back to the same bits."""
        rows = []
        for i, path in enumerate(self.paths):
            label = "" if self.labels is None else self.classes[self.labels[i]]
            group = "" if self.groups is None else self.groups[i]
            row = [path, label, group, self.classes[self.predicted[i]], repr(float(self.confidence[i]))]
            row += [repr(float(p)) for p in self.probabilities[i]]
            row += [repr(float(z)) for z in self.logits[i]]  # a float32 is exact as a float64
            row += [cells[i] for cells in self.columns.values()]
            rows.append(row)
        return rows

    def to_csv(self, errors: bool = False) -> str:
        """The text of `predictions.csv`. A file name that is no valid Unicode is written with backslashes.

        Args:
            errors: with a last column `error`, and a row with path and error for every unreadable image.
        """
        stream = io.StringIO(newline="")
        writer = csv.writer(stream)  # lines end in CR LF, so that a name that holds either is quoted
        columns, last = self.header(), ([""] if errors else [])
        writer.writerow([*columns, *(["error"] if errors else [])])
        writer.writerows([*row, *last] for row in self.rows())
        if errors:
            writer.writerows([path, *[""] * (len(columns) - 1), problem] for path, problem in self.errors)
        return stream.getvalue().encode("utf-8", "backslashreplace").decode("utf-8")

    @classmethod
    def from_csv(cls, file: str | Path, decided: bool = False) -> Predictions:
        """Read a `predictions.csv` back; labels, groups and logits come out with the same bits.

        Args:
            decided: take the classes of the column `prediction` as they stand, not by the logits.

        Raises:
            DataError: the file is missing, lacks a column, or holds a value that is not what it must be.
        """
        file = Path(file)
        try:
            with file.open(newline="", encoding="utf-8-sig") as stream:  # a spreadsheet may have put a BOM
                reader = csv.DictReader(stream)
                table, header = list(reader), list(reader.fieldnames or [])
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{file}: cannot be read as predictions ({error})", "give a predictions.csv") from None
        classes = tuple(name.removeprefix("logit_") for name in header if name.startswith("logit_"))
        missing = [c for c in FIXED_COLUMNS if c not in header]
        if missing or not classes:
            lacking = missing or ["logit_<class>"]
            raise DataError(f"{file}: lacks the column {', '.join(lacking)}", "write it again with vitmed evaluate")
        if len(set(header)) < len(header):
            twice = sorted({name for name in header if header.count(name) > 1})
            raise DataError(f"{file}: has the column {', '.join(twice)} twice", "write it again with vitmed evaluate")
        long = next((number for number, row in enumerate(table, start=1) if None in row), None)
        if long:
            raise DataError(
                f"{file}: row {long} has more cells than the table has columns", "quote a cell that holds a comma"
            )
        index = {name: i for i, name in enumerate(classes)}
        try:
            logits = np.array([[float(row[f"logit_{c}"]) for c in classes] for row in table], dtype=np.float64)
            labels = [index[row["label"]] if row["label"] else -1 for row in table]
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{file}: {_first_fault(table, classes)}", "write it again with vitmed evaluate") from None
        with np.errstate(over="ignore"):  # an overflow is infinite, which is refused
            logits = logits.astype(np.float32)
        if not np.isfinite(logits).all():
            row, k = np.argwhere(~np.isfinite(logits.reshape(len(table), len(classes))))[0]
            cell = f"'{table[row][f'logit_{classes[k]}']}' as logit_{classes[k]}"
            raise DataError(
                f"{file}: row {row + 1} has {cell}, not a finite number", "write it again with vitmed evaluate"
            )
        if -1 in labels and any(label != -1 for label in labels):
            raise DataError(
                f"{file}: some rows have a label and some have none, the first is row {labels.index(-1) + 1}",
                "fill the label column, or empty it",
            )
        taken = [index.get(row["prediction"], -1) for row in table] if decided else []
        if -1 in taken:
            row = taken.index(-1)
            raise DataError(
                f"{file}: row {row + 1} has the prediction '{table[row]['prediction']}', expected one of "
                + ", ".join(classes[:20]),
                "write it again with vitmed evaluate",
            )
        unlabelled = not labels or labels[0] == -1
        groups = tuple(row["group"] or "" for row in table)
        further = [c for c in header if c not in (*FIXED_COLUMNS, "error") and not c.startswith(("prob_", "logit_"))]
        return cls(
            classes=classes,
            paths=tuple(row["path"] or "" for row in table),
            groups=groups if any(groups) else None,
            labels=None if unlabelled else np.array(labels, dtype=np.int64),
            logits=logits.reshape(len(table), len(classes)),
            columns={name: tuple(row[name] or "" for row in table) for name in further},
            decided=np.array(taken, dtype=np.int64) if decided else None,
        )


def _first_fault(table: list[dict[str, str]], classes: tuple[str, ...]) -> str:
    """What is wrong with the first row of a table that has a label or logit that is not valid."""
    for number, row in enumerate(table, start=1):
        if row["label"] and row["label"] not in classes:
            return f"row {number} has the label '{row['label']}', expected one of {', '.join(classes[:20])}"
        for name in classes:
            cell = row[f"logit_{name}"]
            try:
                float(cell)
            except (TypeError, ValueError):
                found = "no cell" if cell is None else f"'{cell}'"
                return f"row {number} has {found} as logit_{name}, expected a number"
    return "a label or logit is not valid"
