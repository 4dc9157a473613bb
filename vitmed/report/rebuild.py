"""`vitmed evaluate predictions.csv`: the report of a table, made again without model or images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.core import upgrade
from vitmed.core.base_models import Frozen
from vitmed.core.config import Config, EvaluateConfig, evaluate_config
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import read_json_lines
from vitmed.core.messages import warn
from vitmed.core.places import data_of_runs, output_folder
from vitmed.core.run_folder import BASELINE, NUMBERS, RunFolder
from vitmed.core.upgrade import without_gone
from vitmed.decisions.evaluation_folder import Evaluated, Folds, read_evaluation, read_split, validation_of
from vitmed.decisions.policy import choose_policy, notes_of, own_columns, policy_settings
from vitmed.decisions.targets import refuse_idle
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.subgroups import check_columns
from vitmed.report.analyses import Extra
from vitmed.report.headline import Evaluation, report_evaluation
from vitmed.report.participant_flow import evaluated_images
from vitmed.report.results import Origin, Results
from vitmed.report.write import TABLE_ALONE, About, Report, read_baselines


def rebuild(file: Path, output: str | Path | None, gates: dict[str, float], flags: dict[str, Any]) -> Evaluation:
    """The report of a table; title, facts, notes, policy and the positive class come from the metrics.json beside it.

    The table of a baseline takes the positive class alone: all else in metrics.json is about the model.
    """
    evaluated = read_evaluation(file)
    folder = output_folder(output, file.parent / "report", *data_of_runs([file]))
    predictions, policy = evaluated.predictions, evaluated.policy
    of_model = not file.name.startswith(BASELINE)
    run, weights_hash = RunFolder(file.parent.parent), evaluated.weights_hash if of_model else None
    before, changes = _earlier_report(file, evaluated) if of_model else (None, [])
    changes = [*predictions.notes, *changes]
    baselines = {}
    for key, matched in fitting_baselines(file.parent, predictions).items():
        name = f"{BASELINE}{key}.csv"
        if matched is not None and name != file.name:
            baselines[key] = matched
        elif name != file.name:
            changes.append(f"{name} beside the table is left out: it is not of the same images, classes and labels.")
    alone = Origin(title=f"report of {file.name}", facts={"Made from": file.name}, notes=[TABLE_ALONE])
    origin, flow, folds = (before.report, before.flow, before.folds) if before else (alone, None, None)
    notes = list(dict.fromkeys([*origin.notes, *changes]))
    for note in changes:
        warn(f"{file.name}: {note}")
    asked = _settings(origin).model_copy(update={"report": True})
    config = evaluate_config(asked, flags)
    refuse_idle(Config(evaluate=config), predictions.kind, Config(evaluate=asked))
    config = with_columns(config, flags, own_columns(predictions), notes)
    note_prevalence(config, predictions.kind, predictions.classes, notes)
    same = policy_settings(config) == policy_settings(asked)
    if not same:
        _check_choosable(file, of_model, folds, flags)
        validation = validation_of(run.best, weights_hash, policy, predictions.positive)
        former = notes_of(policy)
        policy = choose_policy(validation, config, policy.ood_score if policy else None, weights_hash)
        predictions = policy.apply(predictions)
        notes = [*(note for note in notes if note not in former), *notes_of(policy)]
        for note in notes_of(policy):
            warn(note)
    other = flow is not None and flow.evaluated is not None and flow.evaluated.split is None
    internal = read_split(run, "test", weights_hash, policy) if other else None
    parts: dict[str, Frozen | None] = {}
    if before is not None:
        parts = {"attention": before.attention, "robustness": before.robustness}
        if internal is None and before.external is not None and not changes and same:
            parts["external"] = before.external  # written elsewhere
    on_validation = file.parent in run.evaluations("val")
    about = About(
        origin.title, origin.facts, notes, origin.run or run.name, weights_hash, origin.precision, flow, origin
    )
    extra = Extra(
        validation=read_split(run, "val", weights_hash, policy) if of_model and not on_validation else None,
        internal=internal,
        baselines=baselines,
        policy=policy,
        folds=folds,
        parts=parts,
        records=upgrade.records(read_json_lines(run.metrics)) if of_model else None,
    )
    metrics = Report.of(predictions, about, config, extra).write(folder)
    return report_evaluation(Evaluation(predictions, metrics, folder), gates)


def _earlier_report(file: Path, evaluated: Evaluated) -> tuple[Results | None, list[str]]:
    """The metrics.json beside a table, with the counts of the table; and notes on what was changed in the table."""
    if not evaluated.metrics:
        return None, []
    try:
        before = Results.read(evaluated.metrics)
        _settings(before.report)
        if before.n != len(evaluated.predictions):
            return _counted_again(before, evaluated.predictions)
        return before, _relabelled(before, evaluated.predictions)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{file.with_name(NUMBERS)}: not the metrics.json of a report", "move it away to go without it"
        ) from None


def _settings(origin: Origin) -> EvaluateConfig:
    """Of an earlier report, without what is gone. Raises ValueError, or UsageError for what is needed."""
    return EvaluateConfig(**without_gone({"evaluate": origin.evaluate})["evaluate"])


def _counted_again(before: Results, predictions: Predictions) -> tuple[Results, list[str]]:
    rows, flow, facts = len(predictions), before.flow, before.report.facts
    if flow is not None and flow.evaluated is not None:
        evaluated = evaluated_images(predictions, flow.evaluated.split, flow.evaluated.seen, flow.evaluated.folds)
        flow = flow.model_copy(update={"evaluated": evaluated})
    facts = {k: text.replace(f": {before.n:,} evaluated", f": {rows:,} evaluated") for k, text in facts.items()}
    of = f"{rows:,} of the {before.n:,}" if rows < before.n else f"{rows:,} instead of the {before.n:,}"
    note = f"The table has {of} rows that the report was made of."
    report = before.report.model_copy(update={"facts": facts})
    return before.model_copy(update={"flow": flow, "report": report}), [note]


def _check_choosable(file: Path, of_model: bool, folds: Folds | None, flags: Mapping[str, Any]) -> None:
    if not of_model:
        raise UsageError(f"{file}: a baseline has no decision policy", "leave out the flags that choose one")
    if folds:
        given = ", ".join(f"--{name}".replace("_", "-") for name, value in flags.items() if value is not None)
        raise UsageError(
            f"{file}: is of folds, each of which chose on its own validation, so {given} cannot choose for all",
            f"vitmed evaluate {file.parent.parent / 'fold-1'} with the flag evaluates one fold; vitmed train --folds "
            "with it all",
        )


def _relabelled(before: Results, predictions: Predictions) -> list[str]:
    now = evaluated_images(predictions, None)
    other = ["labels"] * any(now.classes[name].images != own.n for name, own in before.per_class.items())
    other += ["patients"] * (now.patients != before.n_groups)
    if not other:
        return []
    return [
        f"The table has other {' and '.join(other)} than the report was made from; 'Images, patients and splits' shows "
        "the earlier ones."
    ]


def fitting_baselines(folder: Path, predictions: Predictions) -> dict[str, Predictions | None]:
    """The baselines in a folder, as `match_images`: None for one that is of other images, classes or labels."""
    return {key: match_images(other, predictions) for key, other in read_baselines(folder).items()}


def match_images(other: Predictions, predictions: Predictions) -> Predictions | None:
    """`other` in the order of `predictions`; None where they are not of the same images, classes and labels."""
    place = {path: row for row, path in enumerate(other.paths)}
    if len(place) == len(other) == len(predictions) and place.keys() == set(predictions.paths):
        other = other.take(np.array([place[path] for path in predictions.paths], dtype=np.int64))
    same = (other.classes, other.paths) == (predictions.classes, predictions.paths)
    mine, theirs = predictions.labels, other.labels
    alike = same and mine is not None and theirs is not None and np.array_equal(mine, theirs)
    return other if alike else None


def with_columns(
    config: EvaluateConfig, flags: dict[str, Any], columns: Sequence[str], notes: list[str]
) -> EvaluateConfig:
    """The same for images with these further columns: a subgroup or rater asked for now must be one of them.

    One that the run asked for, of images with another table, is left out with a note.

    Raises:
        UsageError: it is not.
    """
    left = {}
    kinds = (("subgroup", "subgroups by"), ("rater", "agreement with"), ("rater_score", "comparison with"))
    for flag, what in kinds:
        name = f"{flag}s"
        asked = getattr(config, name)
        if flags.get(flag):
            check_columns(asked, columns, f"--{flag}".replace("_", "-"))
        if missing := [column for column in asked if column not in columns]:
            notes.append(f"No {what} {', '.join(missing)}: these images have no such column.")
        left[name] = [column for column in asked if column in columns]
    return config.model_copy(update=left)


def note_prevalence(config: EvaluateConfig, kind: str, classes: Sequence[str], notes: list[str]) -> None:
    """Add a note where a prevalence was given for classes that have no use for it; a finding is there or not."""
    note = f"The prevalence that was given changes nothing: it is for two classes, and there are {len(classes)}."
    if config.prevalence is not None and kind != "findings" and len(classes) != 2 and note not in notes:
        notes.append(note)
