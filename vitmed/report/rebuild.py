"""`vitmed evaluate predictions.csv`: the report of a table, made again without model or images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import free_name, read_json_lines
from vitmed.core.flags import evaluate_config
from vitmed.core.run_folder import BASELINE, NUMBERS, RunFolder, refuse_inside
from vitmed.core.ui import Ui
from vitmed.decisions.evaluation_folder import read_evaluation, read_split, validation_of
from vitmed.decisions.operating_results import Folds
from vitmed.decisions.policy import asked_of, choose_policy, notes_of, own_columns
from vitmed.explanation.results import Attention, Robustness
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.resampling import group_index
from vitmed.metrics.scoring import known_labels
from vitmed.metrics.subgroups import check_columns
from vitmed.report.headline import Evaluation, report_evaluation
from vitmed.report.participant_flow import evaluated_images
from vitmed.report.results import Flow, Results
from vitmed.report.write import read_baselines, write_report


def rebuild(
    file: Path, output: str | Path | None, gates: dict[str, float], flags: dict[str, Any], ui: Ui
) -> Evaluation:
    """The report of a table; title, facts, notes, policy and the positive class come from the metrics.json beside it.

    The table of a baseline takes the positive class alone: all else in metrics.json is about the model.
    """
    evaluated, folder = read_evaluation(file), new_folder(output, file.parent / "report")
    predictions, policy = evaluated.predictions, evaluated.policy
    of_model = not file.name.startswith(BASELINE)
    asked, own = EvaluateConfig(), Kept.without(file)
    changes = list(predictions.notes)
    before: Results | None = None
    if evaluated.metrics and of_model:
        try:
            before = Results.read(evaluated.metrics)
            own, asked = Kept.of(before), EvaluateConfig(**before.report.evaluate)
            if before.n != len(predictions):
                changes.append(own.count_again(before.n, predictions))
            elif changed := _relabelled(before, predictions):
                changes.append(changed)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(
                f"{file.with_name(NUMBERS)}: not the metrics.json of a report", "move it away to go without it"
            ) from None
    run = RunFolder(file.parent.parent)
    baselines = _fitting_baselines(file, predictions, changes)
    own.notes += [note for note in changes if note not in own.notes]
    for note in changes:
        ui.warn(f"{file.name}: {note}")
    config = with_columns(evaluate_config(asked, flags), flags, own_columns(predictions), own.notes)
    note_prevalence(config, predictions.classes, own.notes)
    weights_hash = evaluated.weights_hash if of_model else None
    same = asked_of(config) == asked_of(asked)
    if not same:
        _check_choosable(file, of_model, own, flags)
        validation = validation_of(run.best, weights_hash, policy, predictions.positive)
        former = notes_of(policy)
        policy = choose_policy(validation, config, policy.ood_score if policy else None, weights_hash)
        predictions = policy.apply(predictions)
        own.notes = [*(note for note in own.notes if note not in former), *notes_of(policy)]
        for note in notes_of(policy):
            ui.warn(note)
    internal = read_split(run, "test", weights_hash, policy) if is_other(own.flow) else None
    found = own.found
    if internal is None and before is not None and before.external is not None and not changes and same:
        found = {**found, "external": before.external}  # written elsewhere
    on_validation = file.parent in run.evaluations("val")
    metrics = write_report(
        folder,
        predictions,
        title=own.title,
        facts=own.facts,
        notes=own.notes,
        records=(read_json_lines(run.metrics) or None) if of_model else None,
        validation=read_split(run, "val", weights_hash, policy) if of_model and not on_validation else None,
        internal=internal,
        config=config,
        baselines=baselines,
        policy=policy,
        weights_hash=weights_hash,
        found=found,
        flow=own.flow,
        folds=own.folds,
    )
    return report_evaluation(Evaluation(predictions, metrics, folder), gates, ui)


@dataclass
class Kept:
    """What a report made again takes over from the metrics.json beside its table."""

    title: str
    facts: dict[str, str]
    notes: list[str]
    found: dict[str, Frozen] = field(default_factory=dict)
    flow: Flow | None = None
    folds: Folds | None = None

    @classmethod
    def without(cls, file: Path) -> Kept:
        """Of a table alone."""
        note = "Made from a table alone: the split and the model are unknown."
        return cls(f"report of {file.name}", {"Made from": file.name}, [note])

    @classmethod
    def of(cls, before: Results) -> Kept:
        """Of a table with its metrics.json."""
        origin, found = before.report, found_with_model(before.attention, before.robustness)
        return cls(origin.title, dict(origin.facts), list(origin.notes), found, before.flow, before.folds)

    def count_again(self, before: int, predictions: Predictions) -> str:
        """Correct the counts where the table has other rows than when the report was made; gives a note on it."""
        rows = len(predictions)
        if self.flow is not None and self.flow.evaluated is not None:
            who = self.flow.evaluated
            self.flow = self.flow.model_copy(update={"evaluated": evaluated_images(predictions, who.split, who.seen)})
        for word in ("evaluated", "judged"):  # the second is that of 0.1.0
            self.facts = {
                k: text.replace(f": {before:,} {word}", f": {rows:,} {word}") for k, text in self.facts.items()
            }
        of = f"{rows:,} of the {before:,}" if rows < before else f"{rows:,} instead of the {before:,}"
        return f"The table has {of} rows that the report was made of."


def _check_choosable(file: Path, of_model: bool, own: Kept, flags: Mapping[str, Any]) -> None:
    """Raise UsageError where no policy can be chosen for a table."""
    if not of_model:
        raise UsageError(f"{file}: a baseline has no decision policy", "leave out the flags that choose one")
    if own.folds:
        fold = file.parent.parent / "fold-1"
        raise UsageError(
            f"{file}: is of folds, each of which chose on its own validation, so "
            f"{', '.join(f'--{name}'.replace('_', '-') for name, value in flags.items() if value is not None)} "
            "cannot choose for all",
            f"vitmed evaluate {fold} with the flag evaluates one fold; vitmed train --folds with it all",
        )


def _relabelled(before: Results, predictions: Predictions) -> str:
    """A note where a table has other labels or patients than the report was made of; "" where it has the same."""
    images = np.bincount(known_labels(predictions), minlength=len(predictions.classes)).tolist()
    patients = None if predictions.groups is None else len(np.unique(group_index(predictions.groups, len(predictions))))
    other = ["labels"] * (images != [before.per_class[c].n for c in predictions.classes])
    other += ["patients"] * (patients != before.n_groups)
    if not other:
        return ""
    return (
        f"The table has other {' and '.join(other)} than the report was made from; 'Images, patients and splits' shows "
        "the earlier ones."
    )


def _fitting_baselines(file: Path, predictions: Predictions, notes: list[str]) -> dict[str, Predictions]:
    """The baselines beside a table that are of the very same images; the others are left out with a note."""
    found = {}
    for key, other in read_baselines(file.parent).items():
        name = f"{BASELINE}{key}.csv"
        if name == file.name:
            continue
        other = in_order(other, predictions.paths)
        if same_images(other, predictions):
            found[key] = other
        else:
            notes.append(f"{name} beside the table is left out: it is not of the same images, classes and labels.")
    return found


def in_order(predictions: Predictions, paths: tuple[str, ...]) -> Predictions:
    """The predictions in the order of the paths, as far as they are of the same images, each once."""
    place = {path: row for row, path in enumerate(predictions.paths)}
    if len(place) != len(predictions) or place.keys() != set(paths) or len(paths) != len(place):
        return predictions
    return predictions.take(np.array([place[path] for path in paths], dtype=np.int64))


def same_images(a: Predictions, b: Predictions) -> bool:
    return (a.classes, a.paths) == (b.classes, b.paths) and np.array_equal(known_labels(a), known_labels(b))


def found_with_model(attention: Attention | None, robustness: Robustness | None) -> dict[str, Frozen]:
    """What a report takes over, of what there is: maps of attention, and a stress test."""
    return {key: part for key, part in (("attention", attention), ("robustness", robustness)) if part}


def is_other(flow: Flow | None) -> bool:
    """Whether a report is about images that are not of the run."""
    return flow is not None and flow.evaluated is not None and flow.evaluated.split is None


def new_folder(output: str | Path | None, default: Path, *data: Path) -> Path:
    """Where results go: the default or, where that is there, the default with -2, -3, ...; it can be written.

    Raises:
        UsageError: it cannot be written, is not empty, or lies in one of the folders `data`.
    """
    folder = free_name(default) if output is None else Path(output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is there already and not empty", "name a new folder with --output")
    for place in data:
        refuse_inside(place, folder)
    RunFolder.probe(folder.parent)  # now, not after all images
    return folder


def with_columns(
    config: EvaluateConfig, flags: dict[str, Any], columns: Sequence[str], notes: list[str]
) -> EvaluateConfig:
    """The same for images with these further columns: a subgroup or rater asked for now must be one of them.

    One that the run asked for, of images with another table, is left out with a note.

    Raises:
        UsageError: it is not.
    """
    left = {}
    for flag, name, what in (("subgroup", "subgroups", "subgroups by"), ("rater", "raters", "agreement with")):
        asked = getattr(config, name)
        if flags.get(flag):
            check_columns(asked, columns, f"--{flag}")
        if missing := [column for column in asked if column not in columns]:
            notes.append(f"No {what} {', '.join(missing)}: these images have no such column.")
        left[name] = [column for column in asked if column in columns]
    return config.model_copy(update=left)


def note_prevalence(config: EvaluateConfig, classes: Sequence[str], notes: list[str]) -> None:
    """Add a note where a prevalence was given for classes that have no use for it."""
    note = f"The prevalence that was given changes nothing: it is for two classes, and there are {len(classes)}."
    if config.prevalence is not None and len(classes) != 2 and note not in notes:
        notes.append(note)
