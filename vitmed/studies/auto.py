"""The ways to train that `vitmed auto` compares on validation, and what its auto.json holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitmed.core.errors import Interrupted, VitmedError
from vitmed.core.messages import say, warn
from vitmed.core.run_folder import NUMBERS, PREDICTIONS, RunFolder
from vitmed.core.stored_paths import find_path, store_path
from vitmed.decisions.evaluation_folder import read_evaluation, read_metrics
from vitmed.decisions.targets import ALL_METRICS, TARGETS
from vitmed.metrics.estimates import Estimate, value_text
from vitmed.report.results import Results
from vitmed.studies.comparison import Model, compare_models
from vitmed.studies.study import Job, OnEpoch, Study

FILES = ("data", "config", "groups", "labels", "weights")  # arguments that may name one
Save = Callable[[], float]  # writes auto.json, and returns the seconds used


@dataclass(frozen=True)
class AutoRun:
    """The folder of an `auto`, what it found as auto.json holds it, and the ensemble that commands take."""

    folder: Path
    content: dict[str, Any]
    model: Path


def stored(key: str, value: Any, folder: RunFolder) -> Any:
    """Write an argument as auto.json holds it: a file without the names of private folders."""
    return store_path(value, folder.path) if key in FILES and Path(value).exists() else value


def find_stored(text: str, folder: RunFolder) -> str | Path:
    """Find the file of an argument that `stored` wrote, or return its value where it is none."""
    place = find_path(text, folder.path)
    return place if place.exists() else text


class Ways(Study[dict[str, Any]]):
    """The ways to train that are compared on validation; the best goes on. A way that fails is left out.

    Args:
        ways: name of a way -> its run; save: writes auto.json, after each epoch.
    """

    command = "auto"

    def __init__(self, folder: RunFolder, ways: Mapping[str, Job], parallel: int, save: Save) -> None:
        self.folder, self.ways, self.parallel, self.save = folder, ways, parallel, save
        self.failed: dict[str, VitmedError] = {}

    def jobs(self) -> Iterator[Job]:
        yield from self.ways.values()

    def watch(self, job: Job) -> AbstractContextManager[OnEpoch]:
        return nullcontext(lambda record: self.save() < 0)

    def ended(self, job: Job, run: Future[RunFolder | None]) -> None:
        """As `Study.ended`: raises what ends the command."""
        error = run.exception()
        if isinstance(error, VitmedError) and not isinstance(error, Interrupted):
            self.failed[next(name for name, way in self.ways.items() if way is job)] = error
        else:
            run.result()

    def finish(self) -> dict[str, Any]:
        """Return what auto.json gets: the ways with their numbers, the winner, and why.

        Raises:
            VitmedError: of the first way, where all failed.
        """
        failed = {name: self.failed[name] for name in self.ways if name in self.failed}
        if len(failed) == len(self.ways):
            raise next(iter(failed.values()))
        for name, error in failed.items():
            warn(f"{self.ways[name].title}: {error.line}")
        tried: list[dict[str, Any]] = [{"name": name, "failure": f"{error}"} for name, error in failed.items()]
        values, models = dict[str, float](), list[Model]()
        for name, job in self.ways.items():
            if (run := job.done(self.folder)) is not None:
                metric, number, _ = headline_number(run.path / "val")
                sign = 1 if ALL_METRICS[metric].higher_is_better else -1
                values[name] = float("-inf") if number.value is None else sign * number.value
                tried.append({"name": name, "metric": metric, **number.to_dict()})
                say(f"{job.title}: {metric} {value_text(number)} on validation")
                evaluated = read_evaluation(run.path / "val" / PREDICTIONS)
                models.append(Model(name, evaluated.predictions, known=evaluated))
        best = max(values, key=values.__getitem__)
        why = compare_models(models, 500).verdict if len(models) > 1 else "the other way failed"
        say(f"{best} goes on: {why}")
        return {"tried": tried, "winner": best, "why": why}


def headline_number(place: Path) -> tuple[str, Estimate, int]:
    """Read the metric that counts, its value, and the number of images, of the folder of an evaluation."""
    results = Results.read(read_metrics(place / NUMBERS))
    metric = TARGETS[results.target.kind].headline[0]
    return metric, results.overall[metric], results.n
