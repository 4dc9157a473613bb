"""The ways to train that `vitmed auto` compares on validation, and what its auto.json holds."""

from __future__ import annotations

from collections.abc import Callable
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
from vitmed.studies.executors import Job, local

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


def compare_ways(folder: RunFolder, jobs: dict[str, Job], parallel: int, save: Save) -> dict[str, Any]:
    """Train each way, and choose the best by its number on validation.

    Args:
        jobs: name of a way -> its run.
        save: writes auto.json after each epoch.

    Returns:
        what auto.json gets: the ways with their numbers, the winner, and why.

    Raises:
        VitmedError: of the last way, where all failed. Interrupted: the command is to stop.
    """
    if len(jobs) == 1:
        return {"tried": [], "winner": next(iter(jobs)), "why": "the only way here"}
    with local(folder, parallel) as executor:
        futures = {name: executor.submit(job, lambda record: save() < 0) for name, job in jobs.items()}
        failed = {name: error for name, future in futures.items() if (error := future.exception())}
    for name, error in failed.items():
        if isinstance(error, Interrupted) or not isinstance(error, VitmedError) or len(failed) == len(jobs):
            raise error
        warn(f"{jobs[name].title}: {error.line}")
    places = {name: run.path / "val" for name, job in jobs.items() if (run := job.done(folder)) is not None}
    tried, values = [{"name": name, "failure": f"{error}"} for name, error in failed.items()], dict[str, float]()
    for name, place in places.items():
        metric, number, _ = headline_number(place)
        sign = 1 if ALL_METRICS[metric].higher_is_better else -1
        values[name] = float("-inf") if number.value is None else sign * number.value
        tried.append({"name": name, "metric": metric, **number.to_dict()})
        say(f"{jobs[name].title}: {metric} {value_text(number)} on validation")
    read = {name: read_evaluation(place / PREDICTIONS) for name, place in places.items()}
    models = [Model(name, one.predictions, known=one) for name, one in read.items()]
    best = max(values, key=values.__getitem__)
    why = compare_models(models, 500).verdict if len(models) > 1 else "the other way failed"
    say(f"{best} goes on: {why}")
    return {"tried": tried, "winner": best, "why": why}


def headline_number(place: Path) -> tuple[str, Estimate, int]:
    """Read the metric that counts, its value, and the number of images, of the folder of an evaluation."""
    found = Results.read(read_metrics(place / NUMBERS))
    metric = TARGETS[found.target.kind].headline[0]
    return metric, found.overall[metric], found.n
