"""`vitmed evaluate predictions.csv`: the report of a table, made again without model or images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import free_name, read_json_lines
from vitmed.core.flags import evaluate_config
from vitmed.core.frozen import Frozen
from vitmed.core.run_folder import RunFolder
from vitmed.core.ui import Ui
from vitmed.decisions.operating_points import by_fold
from vitmed.decisions.policy import Judgement, asked_of, make_judgement, notes_of, own_columns
from vitmed.explanation.results import Attention, Robustness
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.resampling import group_index
from vitmed.metrics.scoring import known_labels
from vitmed.metrics.subgroups import check_columns
from vitmed.report.headline import Evaluation, finish
from vitmed.report.participant_flow import judged
from vitmed.report.results import Flow, Results
from vitmed.report.write import BASELINE, NUMBERS, PREDICTIONS, read_baselines, write_report
from vitmed.training.fit_policy import raw_validation, read_judgement


def rebuild(
    file: Path, output: str | Path | None, gates: dict[str, float], flags: dict[str, Any], ui: Ui
) -> Evaluation:
    """The report of a table; title, facts, notes and the positive class come from the metrics.json beside it.

    Of a baseline's table the positive class alone: all else that stands there is about the model.
    """
    predictions, folder = Predictions.from_csv(file, labelled=True), new_folder(output, file.parent / "report")
    notes = ["Made from a table alone: the split and what the model was made with are unknown."]
    said: dict[str, Any] = {"title": f"report of {file.name}", "facts": {"Made from": file.name}, "notes": notes}
    beside, told = file.with_name(NUMBERS), list(predictions.notes)
    asked, judgement, of_model = EvaluateConfig(), None, not file.name.startswith(BASELINE)
    old: Results | None = None
    if beside.is_file():
        judgement = read_judgement(beside, predictions.classes) if of_model else None
        try:
            before = json.loads(beside.read_text(encoding="utf-8"))
            predictions = replace(predictions, positive=before["positive_class"])
            if predictions.positive not in (None, *predictions.classes):
                raise ValueError(predictions.positive)
            if of_model:
                said = {key: before["report"][key] for key in said}
                old = Results.model_validate(before)
                said |= {"found": found_with_model(old.attention, old.robustness), "flow": old.flow, "folds": old.folds}
                if by_fold(said["folds"]):
                    predictions = replace(Predictions.from_csv(file, decided=True), positive=predictions.positive)
                asked = EvaluateConfig(**before["report"].get("evaluate", {}))
                if old.n != len(predictions):
                    told.append(_other_rows(said, old.n, predictions))
                elif changed := _relabelled(old, predictions):
                    told.append(changed)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{beside}: not the metrics.json of a report", "move it away to go without it") from None
    run = RunFolder(file.parent.parent)
    baselines = _fitting_baselines(file, predictions, told)
    said["notes"] += [note for note in told if note not in said["notes"]]
    as_before = of_model and not told
    for note in told:
        ui.warn(f"{file.name}: {note}")
    config = with_columns(evaluate_config(asked, flags), flags, own_columns(predictions), said["notes"])
    note_prevalence(config, predictions.classes, said["notes"])
    as_before = as_before and asked_of(config) == asked_of(asked)
    if asked_of(config) != asked_of(asked):
        if not of_model:
            raise UsageError(f"{file}: nothing can be chosen for a baseline", "leave out the flags that choose")
        if said.get("folds"):
            fold = file.parent.parent / "fold-1"
            raise UsageError(
                f"{file}: is of folds, each of which chose on its own validation, so "
                f"{', '.join(f'--{name}'.replace('_', '-') for name, value in flags.items() if value is not None)} "
                "cannot choose for all",
                f"vitmed evaluate {fold} with the flag judges one fold; vitmed train --folds with it all",
            )
        raw = judgement.raw(predictions) if judgement else predictions
        validation = replace(raw_validation(run), positive=predictions.positive)
        before_notes = notes_of(judgement)
        judgement = make_judgement(validation, config, judgement.familiarity if judgement else None)
        predictions = judgement.apply(raw)
        said["notes"] = [*(note for note in said["notes"] if note not in before_notes), *notes_of(judgement)]
        for note in notes_of(judgement):
            ui.warn(note)
    elif judgement is not None:
        predictions = judgement.decide(predictions)
    internal = known_internal(run, judgement) if is_other(said.get("flow")) else None
    if internal is None and as_before and old is not None and old.external is not None:  # it was written elsewhere
        said["found"] = {**said["found"], "external": old.external}
    metrics = write_report(
        folder,
        predictions,
        records=(read_json_lines(run.metrics) or None) if of_model else None,
        validation=known_validation(run, judgement) if of_model and file.parent.name != "val" else None,
        internal=internal,
        config=config,
        baselines=baselines,
        judgement=judgement,
        **said,
    )
    return finish(Evaluation(predictions, metrics, folder), gates, ui)


def _other_rows(said: dict[str, Any], before: int, predictions: Predictions) -> str:
    """Count anew in what a report says where its table has other rows than when it was made; and a note on it."""
    rows = len(predictions)
    flow: Flow | None = said["flow"]
    if flow is not None and flow.judged is not None:
        about = judged(predictions, flow.judged.split, flow.judged.seen)
        said["flow"] = flow.model_copy(update={"judged": about})
    facts = {key: text.replace(f": {before:,} judged", f": {rows:,} judged") for key, text in said["facts"].items()}
    said["facts"] = facts
    of = f"{rows:,} of the {before:,}" if rows < before else f"{rows:,} instead of the {before:,}"
    return f"The table has {of} rows that the report was made of."


def _relabelled(before: Results, predictions: Predictions) -> str:
    """A note where a table has other labels or patients than the report was made of; "" where it has the same."""
    images = np.bincount(known_labels(predictions), minlength=len(predictions.classes)).tolist()
    patients = None if predictions.groups is None else len(np.unique(group_index(predictions.groups, len(predictions))))
    other = ["labels"] * (images != [before.per_class[c].n for c in predictions.classes])
    other += ["patients"] * (patients != before.n_groups)
    if not other:
        return ""
    return (
        f"The table has other {' and '.join(other)} than the report was made of; 'Images and patients' tells those of "
        "then."
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


def known_validation(run: RunFolder, judgement: Judgement | None) -> Predictions | None:
    """What the run's best.pt said of its validation images, judged alike; None where it is not there."""
    if not run.validation.is_file():
        return None
    raw = raw_validation(run)
    return judgement.apply(raw) if judgement else raw


def known_internal(run: RunFolder, judgement: Judgement | None) -> Predictions | None:
    """What the run's best.pt said of its own test, judged alike; None where it was not judged yet."""
    file = run.path / "test" / PREDICTIONS
    if not file.is_file():
        return None
    predictions = Predictions.from_csv(file, labelled=True)
    stored = read_judgement(file.with_name(NUMBERS), predictions.classes)
    raw = predictions if stored is None else stored.raw(predictions)
    positive = None if judgement is None else judgement.operating["positive"]
    return judgement.apply(replace(raw, positive=positive)) if judgement else raw


def is_other(flow: Flow | None) -> bool:
    """Whether a report is about images that are not of the run."""
    return flow is not None and flow.judged is not None and flow.judged.split is None


def new_folder(output: str | Path | None, default: Path) -> Path:
    """Where a report goes: the default or, where that is there, the default with -2, -3, ...; it can be written."""
    folder = free_name(default) if output is None else Path(output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is there already and not empty", "name a new folder with --output")
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
    for flag, field, what in (("subgroup", "subgroups", "subgroups by"), ("rater", "raters", "agreement with")):
        asked = getattr(config, field)
        if flags.get(flag):
            check_columns(asked, columns, f"--{flag}")
        if missing := [name for name in asked if name not in columns]:
            notes.append(f"No {what} {', '.join(missing)}: these images have no such column.")
        left[field] = [name for name in asked if name in columns]
    return config.model_copy(update=left)


def note_prevalence(config: EvaluateConfig, classes: Sequence[str], notes: list[str]) -> None:
    """Add a note where a prevalence was given for classes that have no use for it."""
    note = f"The prevalence that was given changes nothing: it is for two classes, and there are {len(classes)}."
    if config.prevalence is not None and len(classes) != 2 and note not in notes:
        notes.append(note)
