"""Folds: which there are, what each begins with, how they are trained, and one report of all their tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitmed.core.config import Config
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError
from vitmed.core.files import json_of, write_json
from vitmed.core.messages import bar, say, warn
from vitmed.core.places import data_folder
from vitmed.core.run_folder import PREDICTIONS, RunFolder
from vitmed.core.train_config import EvaluateConfig
from vitmed.data.splits import site_names
from vitmed.decisions.evaluation_folder import Evaluated, find_evaluation, read_evaluation
from vitmed.decisions.folds import Fold, Folds, fold_notes, folds_of_classes, numbered, spread_of, undefined_notes
from vitmed.decisions.operating_points import asked_point, target_of
from vitmed.decisions.policy import FindingPolicy
from vitmed.decisions.targets import TARGETS
from vitmed.imaging.preprocessing import thumbnail
from vitmed.inference.checkpoint import Checkpoint, load_checkpoint
from vitmed.metrics.ensembles import out_of_fold, pool
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.kinds.findings import in_means
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.scoring import metric_values
from vitmed.report.analyses import Extra
from vitmed.report.headline import Evaluation, report_evaluation
from vitmed.report.participant_flow import folds_flow
from vitmed.report.results import Results
from vitmed.report.write import About, Report, read_baselines
from vitmed.studies.executors import Job, local

OF_ONE_FOLD = ("Images", "Patients of the run", "Splits of the run")  # facts that do not hold for all folds


def new_folds(config: Config, output: str | Path, name: str) -> RunFolder:
    """A new folder for the folds, each in a folder of its own."""
    data, sites = config.data, list[str]()
    if data.sites is not None:
        sites = site_names(data, ordinal=config.evaluate.ordinal)
        if len(sites) < 2:
            raise DataError(f"{data.root}: the column {data.sites} has one value: {sites[0]}", "--folds 5")
        say(f"a fold for each {data.sites}: {', '.join(sites)}")
    folder = RunFolder.create(output, name)
    content = {"folds": data.folds or len(sites), "window": data.window, "repeats": data.repeats, "sites": sites}
    write_json(folder.folds, content)
    return folder


def train_folds(
    folder: RunFolder, first: Mapping[str, Any] | None, parallel: int = 1, offline: bool = False
) -> tuple[Evaluation, list[RunFolder]]:
    """Train and evaluate each fold that is not finished, and evaluate the tests of all folds together.

    Args:
        folder: from `new_folds`.
        first: arguments of `train` for the first fold, None to resume; the other folds take its configuration.
        parallel: how many folds to train at the same time.
        offline: open no connection.

    Returns:
        the evaluation of the pooled predictions, each from models that were not trained on the image; the run folders.

    Raises:
        CheckpointError: the first fold of folds to resume has not begun.
    """
    study = Study.read(folder)
    if RunFolder(folder.joined).ensemble.is_file():
        raise UsageError(f"{folder.path}: these folds are finished and evaluated", "start a new run")
    if first is None and planned(folder) is None:
        fix = "start again with vitmed cross-validate"
        raise CheckpointError(f"{folder.path}: its first fold had not begun", fix)
    try:
        with local(folder, parallel) as executor:
            runs: list[Future[RunFolder | None]] = []
            for job in fold_jobs(folder, study, first, offline):
                runs.append(executor.submit(job))
                while planned(folder) is None and not runs[0].done():  # it has the plan of all
                    wait(runs, 0.5)
                for run in runs:
                    if run.done():
                        run.result()  # raises its error before another fold begins
            wait(runs, return_when=FIRST_EXCEPTION)
            places = [place for run in runs if (place := run.result()) is not None]
    except (Interrupted, KeyboardInterrupt) as error:
        problem = error.problem if isinstance(error, Interrupted) else "stopped; what is trained is saved"
        raise Interrupted(problem, f"vitmed cross-validate --resume {folder.path}") from None
    finally:
        if first and not any(path.is_dir() for path in folder.path.iterdir()):  # refused: nothing began
            shutil.rmtree(folder.path)
    pooled = folder.path / "test"
    if not (pooled / PREDICTIONS).is_file():  # else an earlier process ended before it joined the folds
        report_evaluation(_pool(folder, places, study), {})
    found = read_evaluation(pooled / PREDICTIONS)
    return Evaluation(found.predictions, Results.read(found.metrics), pooled), places


def _pool(folder: RunFolder, places: Sequence[RunFolder], study: Study) -> Evaluation:
    """One report of the tests of all folds."""
    saved = [load_checkpoint(place.best) for place in places]
    first, tests = saved[0], [_test_of(place, one) for place, one in zip(places, saved, strict=True)]
    root, config = first.data_root("put the folder there again"), first.config.evaluate
    evaluated = [read_evaluation(test) for test in tests]
    results = [Results.read(one.metrics) for one in evaluated]
    once = slice(study.folds)  # the first repeat, whose tests hold every image once
    pooled = out_of_fold([one.predictions for one in evaluated], study.folds)
    pooled = replace(pooled, positive=first.config.data.positive)
    folds = _each(results, evaluated, pooled, config)
    baselines = [read_baselines(test.parent) for test in tests]
    shared = [key for key in baselines[0] if all(key in found for found in baselines)]
    other_means = _other_means(pooled, [one.predictions for one in evaluated])
    notes = [*fold_notes(folds), *study.notes, *other_means, *by_name([one.report.notes for one in results])]
    for note in (*undefined_notes(folds), *other_means):
        warn(note)
    with bar("drawing the report", unit="steps"):
        about = About(
            title=f"{len(places)} folds of {data_folder(root).resolve().name}",
            facts=_facts(results, results[once], pooled, folds),
            notes=notes,
            run=folder.name,
            flow=folds_flow(saved[once], places[once], pooled, config.subgroups),
        )
        others = {key: pool([found[key] for found in baselines[once]]) for key in shared}
        extra = Extra(folds=folds, baselines=others, read=lambda path: thumbnail(root / path, first.preprocessing))
        metrics = Report.of(pooled, about, config, extra).write(folder.path / "test")
    kind = TARGETS[pooled.kind]
    for name in kind.headline[:2]:
        say(f"{kind.metrics[name].title} by fold: {spread_of(folds.each, name)}")
    return Evaluation(pooled, metrics, folder.path / "test")


def _test_of(place: RunFolder, saved: Checkpoint) -> Path:
    """The test predictions.csv of a fold. Raises CheckpointError if its best.pt was not evaluated."""
    file = find_evaluation(place, "test", saved.weights_hash, saved.policy)
    if file is None:
        problem = f"{place.path}: has no evaluation of its best.pt on its test"
        raise CheckpointError(problem, f"vitmed evaluate {place.path}")
    return file


def _each(results: Sequence[Results], evaluated: Sequence[Evaluated], pooled: Any, config: EvaluateConfig) -> Folds:
    """The numbers of each fold on its test, and its policy, for the pooled report."""
    policies, names = [one.policy for one in evaluated], by_fold_names(pooled.kind)
    if pooled.kind == "classes":
        return folds_of_classes(results, policies, names, metric_values(pooled)["auroc"], config)
    names += [name for name in ("coverage", "width") if all(name in one.overall for one in results)]
    each = [
        Fold(images=one.n, patients=one.n_groups, numbers={name: one.overall[name] for name in names})
        for one in results
    ]
    if pooled.kind != "findings":
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


def _facts(results: Sequence[Results], once: Sequence[Results], pooled: Predictions, folds: Folds) -> dict[str, str]:
    """Data, model and training for the report, for all folds together or fold by fold; `once`: of the first repeat."""
    facts = [one.report.facts for one in results]
    often = "once" if len(once) == len(results) else f"{len(results) // len(once)} times"
    found = {"Images": f"{len(pooled):,}, each evaluated {often}: " + numbered([f"{one.n:,}" for one in once])}
    if pooled.groups is None:
        found["Patients"] = "unknown"
    else:
        patients = numbered([f"{one.n_groups:,}" for one in once])
        found["Patients"] = f"{len(set(pooled.groups)):,}, each in the test of one fold: {patients}"
    for key in facts[0]:
        if key not in OF_ONE_FOLD:
            texts = [str(one.get(key, "not known")) for one in facts]
            found[key] = texts[0] if len(set(texts)) == 1 else numbered(texts, "; ")
    titles = {name: TARGETS[pooled.kind].metrics[name].title for name in by_fold_names(pooled.kind)}
    return found | {f"{title} by fold": spread_of(folds.each, name) for name, title in titles.items()}


def _other_means(pooled: Any, tests: Sequence[Any]) -> list[str]:
    """A note where the means over findings of the test of a fold leave out findings that the pooled means count."""
    if pooled.kind != "findings":
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
