"""`vitmed train --folds K`: every fold in turn, and one report of what each model said of the images it never saw."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.checkpoint import load_checkpoint
from vitmed.commands.evaluation import Evaluation, finish, picture
from vitmed.config import Config
from vitmed.errors import CheckpointError, Interrupted, UsageError
from vitmed.metrics import METRICS, metric_values
from vitmed.predictions import Predictions
from vitmed.report import PREDICTIONS, read_baselines, write_report
from vitmed.run import RunFolder, write_json
from vitmed.splits import data_folder
from vitmed.ui import Ui

BY_FOLD = ("auroc", "balanced_accuracy", "accuracy", "log_loss")  # told for each fold, with mean and spread
GONE = ("Images", "Splits of the run", "Model choice")  # facts of one fold that do not hold for all

Train = Callable[..., Any]


def train_folds(
    train: Train,
    config: Config,
    first: Mapping[str, Any],
    output: str | Path,
    name: str,
    gates: dict[str, float],
    ui: Ui,
) -> tuple[RunFolder, Evaluation]:
    """Train and judge each of `data.folds` folds, in a folder each, and pool their tests.

    Args:
        train: `vitmed.train`.
        config: as it was asked for, before a plan.
        first: arguments of `train` for the first fold; the others take over the configuration that it was given.
        name: of the folder that holds the folds.

    Returns:
        the folder, and the evaluation of the pooled predictions: every image judged by a model that never saw it.
    """
    folder = RunFolder.create(output, name)
    write_json(folder.folds, {"folds": config.data.folds, "window": config.data.window})
    return _go_on(train, folder, first, gates, ui)


def resume_folds(train: Train, folder: RunFolder, gates: dict[str, float], ui: Ui) -> tuple[RunFolder, Evaluation]:
    """Go on with folds that were interrupted: those that are done are not repeated.

    Raises:
        CheckpointError: the first fold had not begun.
    """
    return _go_on(train, folder, None, gates, ui)


def _go_on(
    train: Train, folder: RunFolder, first: Mapping[str, Any] | None, gates: dict[str, float], ui: Ui
) -> tuple[RunFolder, Evaluation]:
    try:
        said = json.loads(folder.folds.read_text(encoding="utf-8"))
        count, window = int(said["folds"]), said["window"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{folder.folds}: cannot be read", "start again with vitmed train --folds") from None
    if (folder.path / "test" / PREDICTIONS).is_file():
        raise UsageError(f"{folder.path}: these folds are finished and evaluated", "start a new run")
    places: list[RunFolder] = []
    for fold in range(1, count + 1):
        ui.say(f"fold {fold} of {count}")
        try:
            places.append(_one(train, folder, fold, window, first, places, ui))
        except Interrupted as error:
            raise Interrupted(
                f"in fold {fold} of {count}: {error.problem}", f"vitmed train --resume {folder.path}"
            ) from None
    return folder, finish(_pool(folder, places, ui), gates, ui)


def _one(
    train: Train,
    folder: RunFolder,
    fold: int,
    window: Any,
    first: Mapping[str, Any] | None,
    done: Sequence[RunFolder],
    ui: Ui,
) -> RunFolder:
    """One fold: as it lies there, resumed, or from the start."""
    name = f"fold-{fold}"
    there = [RunFolder(path) for path in sorted(folder.path.glob(f"{name}*"), key=lambda p: p.stat().st_mtime_ns)]
    for place in there:
        if (place.path / "test" / PREDICTIONS).is_file():
            return place
    for place in reversed(there):
        if place.last.is_file():
            train(resume=place.path, ui=ui)
            return place
    if done:
        wide = "null" if window is None else json.dumps(window)
        sets = (f"data.window={wide}",)  # of each fold's own training images
        return RunFolder(
            train(config=done[0].config, sets=sets, output=folder.path, name=name, fold=fold, ui=ui).folder
        )
    if first is None:
        raise CheckpointError(f"{folder.path}: its first fold had not begun", "start again with vitmed train --folds")
    return RunFolder(train(**first, output=folder.path, name=name, fold=fold, ui=ui).folder)


def _pool(folder: RunFolder, places: Sequence[RunFolder], ui: Ui) -> Evaluation:
    """One report of the tests of all folds."""
    saved = load_checkpoint(places[0].best)
    root, positive = saved.data_root(), saved.config.data.positive
    tests = [place.path / "test" for place in places]
    of_fold = [replace(Predictions.from_csv(test / PREDICTIONS), positive=positive) for test in tests]
    baselines = [read_baselines(test) for test in tests]
    shared = [key for key in baselines[0] if all(key in found for found in baselines)]
    told = [json.loads((test / "metrics.json").read_text(encoding="utf-8"))["report"] for test in tests]
    facts = {key: text for key, text in told[0]["facts"].items() if key not in GONE}
    facts["Folds"] = ", ".join(f"{number}: {len(part):,} images" for number, part in enumerate(of_fold, 1))
    facts |= {f"{METRICS[name].title} by fold": _spread([metric_values(p)[name] for p in of_fold]) for name in BY_FOLD}
    pooled = pool(of_fold)
    notes = [f"Pooled over {len(places)} models, one for each fold; none has seen the images that it is judged on."]
    notes.append("Each is calibrated on its own validation images. Classes here are the likeliest, whatever was asked.")
    notes += dict.fromkeys(note for report in told for note in report["notes"])
    with ui.bar("drawing the report", unit="steps"):
        metrics = write_report(
            folder.path / "test",
            pooled,
            title=f"{len(places)} folds of {data_folder(root).resolve().name}",
            facts=facts,
            read=lambda path: picture(root / path, saved.preprocessing),
            config=saved.config.evaluate,
            notes=notes,
            baselines={key: pool([found[key] for found in baselines]) for key in shared},
        )
    for name in BY_FOLD[:2]:
        ui.say(f"{METRICS[name].title} by fold: {facts[f'{METRICS[name].title} by fold']}")
    return Evaluation(pooled, metrics, folder.path / "test")


def pool(parts: Sequence[Predictions]) -> Predictions:
    """The predictions of several models on different images as one."""
    first = parts[0]
    shared = [name for name in first.columns if all(name in part.columns for part in parts)]
    known = all(part.groups is not None for part in parts)
    labels = [part.labels for part in parts if part.labels is not None]
    return Predictions(
        classes=first.classes,
        paths=tuple(path for part in parts for path in part.paths),
        groups=tuple(group for part in parts for group in part.groups or ()) if known else None,
        labels=np.concatenate(labels) if len(labels) == len(parts) else None,
        logits=np.concatenate([part.logits for part in parts]),
        positive=first.positive,
        columns={name: tuple(c for p in parts for c in p.columns[name]) for name in shared},
    )


def _spread(values: Sequence[float]) -> str:
    """Mean, standard deviation and each value."""
    each = ", ".join(f"{value:.3f}" for value in values)
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f} ({each})"
