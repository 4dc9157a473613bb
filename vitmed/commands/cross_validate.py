"""`vitmed train --folds K`: train every fold, and report the tests of all folds together."""

from __future__ import annotations

import json
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
from vitmed.decisions.evaluation_folder import Evaluated, find_evaluation, read_evaluation
from vitmed.decisions.finding_policy import FindingPolicy
from vitmed.decisions.folds import Fold, Folds, fold_notes, folds_of_classes, numbered, spread_of, undefined_notes
from vitmed.decisions.operating_points import asked_point, target_of
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.any_predictions import AnyPredictions
from vitmed.metrics.evaluation import evaluate_predictions
from vitmed.metrics.finding_predictions import FindingPredictions
from vitmed.metrics.finding_scoring import in_means
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.scoring import metric_values
from vitmed.report.headline import Evaluation, report_evaluation
from vitmed.report.participant_flow import folds_flow
from vitmed.report.results import Results
from vitmed.report.write import read_baselines, write_report
from vitmed.training.checkpoint import Checkpoint, load_checkpoint

OF_ONE_FOLD = ("Images", "Patients of the run", "Splits of the run")  # facts that do not hold for all folds


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
    pooled = pool([one.predictions for one in evaluated])
    if isinstance(pooled, Predictions):
        pooled = replace(pooled, positive=first.config.data.positive)
    folds = _each(results, evaluated, pooled, config)
    baselines = [read_baselines(test.parent) for test in tests]
    shared = [key for key in baselines[0] if all(key in found for found in baselines)]
    other_means = _other_means(pooled, [one.predictions for one in evaluated])
    notes = [*fold_notes(folds), *other_means, *by_name([one.report.notes for one in results])]
    for note in (*undefined_notes(folds), *other_means):
        ui.warn(note)
    with ui.bar("drawing the report", unit="steps"):
        metrics = write_report(
            folder.path / "test", pooled, title=f"{len(places)} folds of {data_folder(root).resolve().name}",
            facts=_facts(results, pooled, folds), read=lambda path: thumbnail(root / path, first.preprocessing),
            config=config, notes=notes, folds=folds,
            baselines={key: pool([found[key] for found in baselines]) for key in shared},
            flow=folds_flow(saved, places, pooled, config.subgroups), run=folder.name,
        )  # fmt: skip
    kind = TARGETS[pooled.kind]
    for name in kind.headline[:2]:
        ui.say(f"{kind.metrics[name].title} by fold: {spread_of(folds.each, name)}")
    return Evaluation(pooled, metrics, folder.path / "test")


def _test_of(place: RunFolder, saved: Checkpoint) -> Path:
    """The test predictions.csv of a fold. Raises CheckpointError if its best.pt was not evaluated."""
    file = find_evaluation(place, "test", saved.weights_hash, saved.policy)
    if file is None:
        problem = f"{place.path}: has no evaluation of its best.pt on its test"
        raise CheckpointError(problem, f"vitmed evaluate {place.path}")
    return file


def _each(
    results: Sequence[Results], evaluated: Sequence[Evaluated], pooled: AnyPredictions, config: EvaluateConfig
) -> Folds:
    """The numbers of each fold on its test, and its policy, for the pooled report."""
    policies, names = [one.policy for one in evaluated], by_fold_names(pooled.kind)
    if isinstance(pooled, Predictions):
        return folds_of_classes(results, policies, names, metric_values(pooled)["auroc"], config)
    names += [name for name in ("coverage", "width") if all(name in one.overall for one in results)]
    each = [
        Fold(images=one.n, patients=one.n_groups, numbers={name: one.overall[name] for name in names})
        for one in results
    ]
    if not isinstance(pooled, FindingPredictions):
        return Folds(asked="default", target=None, costs=None, each=each)
    tests: list[Any] = [one.predictions for one in evaluated]
    asked, findings = asked_point(config, 2), {}
    for name in pooled.classes:
        numbers = [evaluate_predictions(test.of(name), 0) for test in tests]
        own = [policy.findings[name] if isinstance(policy, FindingPolicy) else None for policy in policies]
        auroc = metric_values(pooled.of(name))["auroc"]
        findings[name] = folds_of_classes(numbers, own, by_fold_names("classes"), auroc, config)
    return Folds(asked=asked, target=target_of(config, asked), costs=None, each=each, findings=findings)


def by_fold_names(kind: str) -> list[str]:
    """The numbers that are reported for each fold, with mean and spread."""
    return [*TARGETS[kind].headline[:3], TARGETS[kind].val_loss]


def _facts(results: Sequence[Results], pooled: AnyPredictions, folds: Folds) -> dict[str, str]:
    """Data, model and training for the report, for all folds together or fold by fold."""
    facts = [one.report.facts for one in results]
    found = {"Images": f"{len(pooled):,}, each evaluated once: " + numbered([f"{one.n:,}" for one in results])}
    if pooled.groups is None:
        found["Patients"] = "unknown"
    else:
        patients = numbered([f"{one.n_groups:,}" for one in results])
        found["Patients"] = f"{len(set(pooled.groups)):,}, each in the test of one fold: {patients}"
    for key in facts[0]:
        if key not in OF_ONE_FOLD:
            texts = [str(one.get(key, "not known")) for one in facts]
            found[key] = texts[0] if len(set(texts)) == 1 else numbered(texts, "; ")
    titles = {name: TARGETS[pooled.kind].metrics[name].title for name in by_fold_names(pooled.kind)}
    return found | {f"{title} by fold": spread_of(folds.each, name) for name, title in titles.items()}


def _other_means(pooled: AnyPredictions, tests: Sequence[Any]) -> list[str]:
    """A note where the means over findings of the test of a fold leave out findings that the pooled means count."""
    if not isinstance(pooled, FindingPredictions):
        return []
    means = in_means(pooled)
    fewer = [str(k) for k, test in enumerate(tests, 1) if (means & ~in_means(test)).any()]
    if not fewer:
        return []
    where = f"fold{'s' if len(fewer) > 1 else ''} {', '.join(fewer)}"
    return [
        f"The means over findings of {where} leave out findings that the pooled means count, because too few "
        "patients of a fold have them. Compare the folds in the report of each finding."
    ]


def by_name(notes: Sequence[Sequence[str]]) -> list[str]:
    """The notes of all folds in one list: a common note once, the others with the numbers of their folds."""
    found = []
    for note in dict.fromkeys(note for own in notes for note in own):
        numbers = [str(number) for number, own in enumerate(notes, 1) if note in own]
        name = f"fold{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}: "
        found.append(note if len(numbers) == len(notes) else name + note)
    return found


def pool(parts: Sequence[Any]) -> Any:
    """Join the predictions of several models on different images; each keeps its probabilities, decision and intervals.

    Numbers and scales stay the same in the unit; all are standardised by the mean centre and spread of the models.
    """
    if parts[0].kind == "number":
        ends = [part.intervals for part in parts if part.intervals is not None]
        own: dict[str, Any] = {"reach": None, "decided": np.concatenate(ends) if len(ends) == len(parts) else None}
        centre, spread = (statistics.mean(getattr(p.target, name) for p in parts) for name in ("centre", "spread"))
        parts = [part.standardised(centre, spread) for part in parts]
    else:
        raw = all(part.calibrated is None for part in parts)
        usual = all(_is_usual(part) for part in parts)
        own = {"thresholds": ()} if parts[0].kind == "findings" else {"threshold": None, "costs": None}
        own["calibrated"] = None if raw else np.concatenate([part.probabilities for part in parts])
        own["decided"] = None if usual else np.concatenate([part.predicted for part in parts])
    first = parts[0]
    shared = [name for name in first.columns if all(name in part.columns for part in parts)]
    known = all(part.groups is not None for part in parts)
    labels = [part.labels for part in parts if part.labels is not None]
    return replace(
        first,
        paths=tuple(path for part in parts for path in part.paths),
        groups=tuple(group for part in parts for group in part.groups) if known else None,
        labels=np.concatenate(labels) if len(labels) == len(parts) else None,
        logits=np.concatenate([part.logits for part in parts]),
        columns={name: tuple(c for p in parts for c in p.columns[name]) for name in shared},
        errors=(),
        notes=(),
        **own,
    )


def _is_usual(part: Predictions | FindingPredictions) -> bool:
    """Whether the likeliest class, or a probability of 0.5, decides."""
    if isinstance(part, FindingPredictions):
        return all(limit is None for limit in part.thresholds)
    return part.threshold is None and part.costs is None
