"""`vitmed train --folds K`: train every fold, and report the tests of all folds together."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.commands.evaluate import thumbnail
from vitmed.core.data_config import DataConfig
from vitmed.core.errors import CheckpointError, Interrupted, UsageError
from vitmed.core.evaluate_config import EvaluateConfig
from vitmed.core.files import write_json
from vitmed.core.inputs import data_folder
from vitmed.core.run_folder import PREDICTIONS, RunFolder
from vitmed.core.ui import Ui
from vitmed.decisions.calibration import Calibration
from vitmed.decisions.evaluation_folder import find_evaluation, read_evaluation
from vitmed.decisions.operating_points import TITLES, asked_point, target_of
from vitmed.decisions.operating_results import Fold, Folds, FoldsAuroc, by_fold
from vitmed.decisions.policy import DecisionPolicy
from vitmed.metrics.metric_table import METRICS
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.scoring import metric_values
from vitmed.report.headline import Evaluation, report_evaluation
from vitmed.report.participant_flow import folds_flow
from vitmed.report.results import Results
from vitmed.report.write import read_baselines, write_report
from vitmed.training.checkpoint import Checkpoint, load_checkpoint

BY_FOLD = ("auroc", "balanced_accuracy", "accuracy", "log_loss")  # reported for each fold, with mean and spread
OF_POSITIVE = ("sensitivity", "specificity")  # and of two classes these
OF_ONE_FOLD = ("Images", "Patients of the run", "Splits of the run")  # facts that do not hold for all folds
NOTICEABLE = 0.01  # difference between the pooled AUROC and the mean of the folds


def new_folds(config: DataConfig, output: str | Path, name: str) -> RunFolder:
    """A new folder for the folds, each in a folder of its own."""
    folder = RunFolder.create(output, name)
    write_json(folder.folds, {"folds": config.folds, "window": config.window})
    return folder


def train_folds(train: Callable[..., Any], folder: RunFolder, first: Mapping[str, Any] | None, ui: Ui) -> Evaluation:
    """Train and evaluate each fold that is not finished, and evaluate the tests of all folds together.

    Args:
        train: `vitmed.train`.
        folder: from `new_folds`.
        first: arguments of `train` for the first fold, None to resume; the other folds take its configuration.

    Returns:
        the evaluation of the pooled predictions, each from a model that was not trained on the image.

    Raises:
        CheckpointError: the first fold of folds to resume has not begun.
    """
    try:
        asked = json.loads(folder.folds.read_text(encoding="utf-8"))
        count, window = int(asked["folds"]), asked["window"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{folder.folds}: cannot be read", "start again with vitmed train --folds") from None
    if (folder.path / "test" / PREDICTIONS).is_file():
        raise UsageError(f"{folder.path}: these folds are finished and evaluated", "start a new run")
    places: list[RunFolder] = []
    for fold in range(1, count + 1):
        ui.say(f"fold {fold} of {count}")
        try:
            places.append(_train_fold(train, folder, fold, window, first, places, ui))
        except Interrupted as error:
            problem = f"in fold {fold} of {count}: {error.problem}"
            raise Interrupted(problem, f"vitmed train --resume {folder.path}") from None
        finally:
            if first and not attempts(folder, fold) and fold == 1:  # refused: nothing began
                shutil.rmtree(folder.path)
    return report_evaluation(_pool(folder, places, ui), {}, ui)


def _train_fold(
    train: Callable[..., Any], folder: RunFolder, fold: int, window: Any, first: Mapping[str, Any] | None,
    done: Sequence[RunFolder], ui: Ui,
) -> RunFolder:  # fmt: skip
    """One fold: finished already, resumed, or from the start."""
    there = attempts(folder, fold)
    for place in there:
        if (place.path / "test" / PREDICTIONS).is_file():
            return place
    for place in reversed(there):
        if place.last.is_file():
            train(resume=place.path, ui=ui)
            return place
    if done:
        wide = "null" if window is None else json.dumps(window)  # chosen again from each fold's training images
        first = {"config": done[0].config, "sets": (f"data.window={wide}",)}
    if first is None:
        raise CheckpointError(f"{folder.path}: its first fold had not begun", "start again with vitmed train --folds")
    return RunFolder(train(**{**first, "fold": fold}, output=folder.path, name=f"fold-{fold}", ui=ui).folder)


def attempts(folder: RunFolder, fold: int) -> list[RunFolder]:
    """The run folders of a fold, the oldest first: `fold-1`, and `fold-1-2` where it was started again."""
    found = [path for path in folder.path.iterdir() if re.fullmatch(rf"fold-{fold}(-\d+)?", path.name)]
    return [RunFolder(path) for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]


def _pool(folder: RunFolder, places: Sequence[RunFolder], ui: Ui) -> Evaluation:
    """One report of the tests of all folds."""
    saved = [load_checkpoint(place.best) for place in places]
    first, tests = saved[0], [_test_of(place, one) for place, one in zip(places, saved, strict=True)]
    root, config = first.data_root("put the folder there again"), first.config.evaluate
    evaluated = [read_evaluation(test) for test in tests]
    results = [Results.read(one.metrics) for one in evaluated]
    folds = _each(results, [one.policy for one in evaluated], config)
    pooled = replace(pool([one.predictions for one in evaluated]), positive=first.config.data.positive)
    baselines = [read_baselines(test.parent) for test in tests]
    shared = [key for key in baselines[0] if all(key in found for found in baselines)]
    area, areas = metric_values(pooled)["auroc"], _values(results, "auroc")
    auroc = FoldsAuroc(
        pooled=area if math.isfinite(area) else None,
        mean=statistics.mean(areas) if len(areas) == len(results) else None,  # undefined in one fold, so in all
    )
    mixed = _mixing(auroc, _spread(results, "auroc"))
    notes = [f"Pooled over {len(places)} models, one for each fold; no model has seen its test images."]
    notes += [*_decisions(folds), *mixed, *by_name([one.report.notes for one in results])]
    with ui.bar("drawing the report", unit="steps"):
        metrics = write_report(
            folder.path / "test", pooled, title=f"{len(places)} folds of {data_folder(root).resolve().name}",
            facts=_facts(results, pooled), read=lambda path: thumbnail(root / path, first.preprocessing),
            config=config, notes=notes, folds=folds.model_copy(update={"auroc": auroc}),
            baselines={key: pool([found[key] for found in baselines]) for key in shared},
            flow=folds_flow(saved, places, pooled, config.subgroups), run=folder.name,
        )  # fmt: skip
    for name in BY_FOLD[:2]:
        ui.say(f"{METRICS[name].title} by fold: {_spread(results, name)}")
    return Evaluation(pooled, metrics, folder.path / "test")


def _test_of(place: RunFolder, saved: Checkpoint) -> Path:
    """The test predictions.csv of a fold. Raises CheckpointError if its best.pt was not evaluated."""
    file = find_evaluation(place, "test", saved.weights_hash, saved.policy)
    if file is None:
        problem = f"{place.path}: has no evaluation of its best.pt on its test"
        raise CheckpointError(problem, f"vitmed evaluate {place.path}")
    return file


def _each(results: Sequence[Results], policies: Sequence[DecisionPolicy | None], config: EvaluateConfig) -> Folds:
    """The numbers of each fold on its test, and its policy, for the pooled report."""
    classes = results[0].classes
    asked = asked_point(config, len(classes))
    each: list[Fold] = []
    for one, policy in zip(results, policies, strict=True):
        operating = None if policy is None else policy.operating
        point = None if operating is None else operating.points.get(asked)
        raw = Calibration.none(len(classes), "no calibration is known for these predictions")
        numbers = {name: one.overall[name] for name in BY_FOLD}
        if one.positive_class is not None:
            numbers |= {name: one.per_class[one.positive_class][name] for name in OF_POSITIVE}
        fold = Fold(
            images=one.n, patients=one.n_groups, numbers=numbers, why="" if point is None else point.why,
            calibration=raw if policy is None else policy.calibration,
            point="default" if operating is None else operating.chosen,
            threshold=None if operating is None else operating.threshold,
        )  # fmt: skip
        each.append(fold)
    costs = None if policies[0] is None else policies[0].operating.model_dump(mode="json")["costs"]
    return Folds(asked=asked, target=target_of(config, asked), costs=costs, each=each)


def _facts(results: Sequence[Results], pooled: Predictions) -> dict[str, str]:
    """Data, model and training for the report, for all folds together or fold by fold."""
    facts = [one.report.facts for one in results]
    found = {"Images": f"{len(pooled):,}, each evaluated once: " + _by_fold([f"{one.n:,}" for one in results])}
    if pooled.groups is None:
        found["Patients"] = "unknown"
    else:
        patients = _by_fold([f"{one.n_groups:,}" for one in results])
        found["Patients"] = f"{len(set(pooled.groups)):,}, each in the test of one fold: {patients}"
    for key in facts[0]:
        if key not in OF_ONE_FOLD:
            texts = [str(one.get(key, "not known")) for one in facts]
            found[key] = texts[0] if len(set(texts)) == 1 else _by_fold(texts, "; ")
    return found | {f"{METRICS[name].title} by fold": _spread(results, name) for name in BY_FOLD}


def _by_fold(texts: Sequence[str], between: str = ", ") -> str:
    return between.join(f"fold {number}: {text}" for number, text in enumerate(texts, 1))


def _decisions(folds: Folds) -> list[str]:
    """A note on what decides, where you asked for more than the likeliest class."""
    if folds.asked == "default":
        return []
    if folds.costs is not None and all(fold.threshold is None for fold in folds.each) and by_fold(folds):
        return ["Each fold predicts the class with the lowest expected cost, by the costs of the configuration."]
    if folds.asked == "balanced":
        return ["Each fold predicts the class with the largest ratio of probability to prevalence in its validation."]
    known = [fold.threshold for fold in folds.each]
    thresholds = ["the likelier class" if one is None else f"from {one:.3g}" for one in known]
    asked = TITLES[folds.asked].lower() + ("" if folds.target is None else f" {folds.target}")
    return [f"Each fold decides at its own threshold, chosen on its validation ({asked}): {_by_fold(thresholds)}."]


def _mixing(auroc: FoldsAuroc, each: str) -> list[str]:
    """A note where the pooled AUROC differs from the mean of the folds."""
    pooled, mean = auroc.pooled, auroc.mean
    if pooled is None or mean is None or abs(pooled - mean) < NOTICEABLE:
        return []
    return [
        f"The pooled AUROC is {pooled:.3f}; the folds have {each}. Within a fold one model ranks the images. The "
        "pooled AUROC ranks images of different models against each other, and the same probability from two models "
        "need not mean the same. The mean of the folds shows how well one model separates the classes."
    ]


def by_name(notes: Sequence[Sequence[str]]) -> list[str]:
    """The notes of all folds in one list: a common note once, the others with the numbers of their folds."""
    found = []
    for note in dict.fromkeys(note for own in notes for note in own):
        numbers = [str(number) for number, own in enumerate(notes, 1) if note in own]
        name = f"fold{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}: "
        found.append(note if len(numbers) == len(notes) else name + note)
    return found


def pool(parts: Sequence[Predictions]) -> Predictions:
    """Join the predictions of several models on different images; each keeps its probabilities and decision."""
    first = parts[0]
    shared = [name for name in first.columns if all(name in part.columns for part in parts)]
    known = all(part.groups is not None for part in parts)
    labels = [part.labels for part in parts if part.labels is not None]
    raw = all(part.calibrated is None for part in parts)
    likeliest = all(part.threshold is None and part.costs is None for part in parts)
    return Predictions(
        classes=first.classes,
        paths=tuple(path for part in parts for path in part.paths),
        groups=tuple(group for part in parts for group in part.groups or ()) if known else None,
        labels=np.concatenate(labels) if len(labels) == len(parts) else None,
        logits=np.concatenate([part.logits for part in parts]),
        calibrated=None if raw else np.concatenate([part.probabilities for part in parts]),
        decided=None if likeliest else np.concatenate([part.predicted for part in parts]),
        positive=first.positive,
        columns={name: tuple(c for p in parts for c in p.columns[name]) for name in shared},
    )


def _values(results: Sequence[Results], name: str) -> list[float]:
    """The number of each fold, without those where it is undefined."""
    return [value for one in results if (value := one.overall[name].value) is not None]


def _spread(results: Sequence[Results], name: str) -> str:
    """Mean, standard deviation and each value."""
    each = ", ".join("undefined" if (value := one.overall[name].value) is None else f"{value:.3f}" for one in results)
    known = _values(results, name)
    if len(known) < len(results):
        return each
    return f"{statistics.mean(known):.3f} ± {statistics.stdev(known):.3f} ({each})"
