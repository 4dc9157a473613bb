"""The rows of `vitmed runs`: what is known of a run, in which order runs are listed, and the text of each cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

from vitmed.core.base_models import Frozen
from vitmed.core.durations import duration_text
from vitmed.decisions.targets import ALL_METRICS
from vitmed.metrics.estimates import Estimate, value_text

RunKind = Literal["training", "pretraining", "cross-validation", "ensemble", "no network", "ranking", "not known"]
State = Literal["finished", "running", "stopped", "interrupted", "not evaluated", "incomplete", "damaged"]
STATES = get_args(State)
UNFINISHED = ("interrupted", "not evaluated", "incomplete")


class RunMetric(Frozen):
    """The number of a run: of its test, or as long as there is none of its best epoch on validation.

    Attributes:
        name: such as auroc, or "loss" of pretraining.
        unit: of a predicted number, such as years; "" for none.
    """

    name: str
    title: str
    estimate: Estimate
    unit: str = ""
    of: Literal["test", "validation"]

    @property
    def text(self) -> str:
        """`AUROC 0.912 (0.881 to 0.934)`, `AUROC 0.850, validation`."""
        unit, of = f" {self.unit}" if self.unit else "", "" if self.of == "test" else ", validation"
        return f"{self.title} {value_text(self.estimate)}{unit}{of}"

    @property
    def order(self) -> tuple[bool, str, float]:
        """A key that is smaller for the better of two runs with the same metric; first those of a test."""
        value, metric = self.estimate.value, ALL_METRICS.get(self.name)
        sign = -1 if metric is not None and metric.higher_is_better else 1
        return self.of != "test", self.title, float("inf") if value is None else sign * value


class ListedRun(Frozen):
    """A run, as far as its files can be read.

    Attributes:
        run: the path in the folder that is listed.
        parent: the run that it is a part of, such as the cross-validation of a fold.
        data, model: names; "" where they are not known.
        done, of: epochs, or the folds of a cross-validation; `of` is None where it is not known.
        seconds: spent in the epochs; None where none is recorded.
        started: ISO date and time, UTC.
        problem: why the run is not finished, or which file cannot be read.
    """

    run: str
    parent: str | None
    kind: RunKind
    state: State
    data: str = ""
    model: str = ""
    metric: RunMetric | None = None
    done: int = 0
    of: int | None = None
    seconds: float | None = None
    started: str | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        """The path below its parent."""
        return self.run if self.parent is None else self.run.removeprefix(f"{self.parent}/")

    @property
    def progress(self) -> str:
        """`12/20`, or `2/5 folds`; "" where there is nothing to count."""
        if not (self.done or self.of):
            return ""
        return f"{self.done}/{self.of or '?'}" + " folds" * (self.kind == "cross-validation")


class Column(NamedTuple):
    """A column: its text, and a key by which runs are sorted (None is last)."""

    text: Callable[[ListedRun], str]
    order: Callable[[ListedRun], Any]
    right: bool = False


def natural(name: str) -> tuple[str | int, ...]:
    """A key that sorts fold-2 before fold-10."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name))


COLUMNS: dict[str, Column] = {
    "run": Column(lambda run: run.name, lambda run: natural(run.run)),
    "kind": Column(lambda run: run.kind, lambda run: run.kind),
    "data": Column(lambda run: run.data, lambda run: run.data or None),
    "model": Column(lambda run: run.model, lambda run: run.model or None),
    "metric": Column(lambda run: run.metric.text if run.metric else "", lambda run: run.metric and run.metric.order),
    "epochs": Column(lambda run: run.progress, lambda run: -run.done or None, right=True),
    "time": Column(
        lambda run: "" if run.seconds is None else duration_text(run.seconds),
        lambda run: None if run.seconds is None else -run.seconds,
        right=True,
    ),
    "state": Column(lambda run: run.state, lambda run: STATES.index(run.state)),
    "started": Column(
        lambda run: (run.started or "")[:16].replace("T", " "),
        lambda run: run.started and -datetime.fromisoformat(run.started).timestamp(),
    ),
}


def in_order(runs: Iterable[ListedRun], column: str) -> list[ListedRun]:
    """The runs by a column of `COLUMNS`, each followed by its parts in the same order: better metrics, more epochs,
    longer times and newer runs first, unknown last, then by name."""
    order, parts = COLUMNS[column].order, dict[str | None, list[ListedRun]]()
    for run in sorted(runs, key=lambda run: natural(run.run)):
        parts.setdefault(run.parent, []).append(run)

    def below(parent: str | None) -> list[ListedRun]:
        known = [run for run in parts.get(parent, []) if order(run) is not None]
        rest = [run for run in parts.get(parent, []) if order(run) is None]
        return [one for run in [*sorted(known, key=order), *rest] for one in (run, *below(run.run))]

    return below(None)


def with_parts(runs: Sequence[ListedRun]) -> list[ListedRun]:
    """The rows; those of cross-validations with data, model, start and time of their folds, and how many are done."""
    folds: dict[str | None, list[ListedRun]] = {}
    for run in runs:
        folds.setdefault(run.parent, []).append(run)
    return [_joined(run, folds.get(run.run, [])) if run.kind == "cross-validation" else run for run in runs]


def _joined(run: ListedRun, folds: Sequence[ListedRun]) -> ListedRun:
    folds = [part for part in folds if part.kind != "ensemble"]
    first = next((fold for fold in folds if fold.data), None)
    known: dict[str, Any] = {"done": sum(fold.state == "finished" for fold in folds)}
    if first is not None:
        known |= {"data": first.data, "model": first.model}
    if seconds := [fold.seconds for fold in folds if fold.seconds is not None]:
        known["seconds"] = sum(seconds)
    if started := [fold.started for fold in folds if fold.started is not None]:
        known["started"] = min(started)
    return run.model_copy(update=known)
