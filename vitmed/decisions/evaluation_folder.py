"""Reads the folder of an evaluation: predictions.csv with its decision policy, and metrics.json beside it."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.core import upgrade
from vitmed.core.base_models import Target
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import json_of
from vitmed.core.run_folder import BASELINE, ISSUES, NUMBERS, PREDICTIONS, REPORT, RunFolder
from vitmed.decisions.policy import ClassPolicy, DecisionPolicy, policy_of
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_files import read_predictions


@dataclass(frozen=True)
class Evaluated:
    """An evaluation."""

    predictions: Predictions  # calibrated and decided as in its report
    policy: DecisionPolicy | None
    metrics: Mapping[str, Any]  # what metrics.json holds; {} where there is no such file

    @property
    def weights_hash(self) -> str | None:
        """Of the weights that were evaluated; None where it is not known."""
        return self.metrics.get("weights_hash")

    @property
    def run(self) -> str:
        """The name of the run folder; "" where it is not known."""
        return str(self.metrics.get("report", {}).get("run", ""))

    @property
    def created(self) -> str | None:
        """When the images were evaluated, UTC; None where it is not known."""
        found = self.metrics.get("report", {}).get("created")
        return None if found is None else str(found)


def read_evaluation(file: Path) -> Evaluated:
    """A predictions.csv with the positive class and the decision policy of the metrics.json beside it.

    The table of a baseline takes the positive class alone: the policy belongs to the model. Raises DataError where a
    file cannot be used, or the two do not belong together.
    """
    beside = file.with_name(NUMBERS)
    metrics, of_model, policy = read_metrics(beside), not file.name.startswith(BASELINE), None
    if not metrics:
        return Evaluated(read_predictions(file, labelled=True), None, metrics)
    if of_model and metrics["report"].get("policy") is not None:
        try:
            policy = policy_of(metrics["report"]["policy"], metrics["classes"])
        except ValueError as error:
            problem = f"{beside}: its decision policy is damaged ({error})"
            raise DataError(problem, "move it away to go without it") from None

    def calibrate(read: Predictions) -> Predictions:
        assert policy is not None
        if list(read.classes) != metrics["classes"]:
            raise DataError(
                f"{beside}: has the classes {metrics['classes']}, the table beside it {list(read.classes)}",
                "put the columns of the table in the order of metrics.json, or move metrics.json away",
            )
        old = metrics.get("weights_hash") is None and upgrade.has_calibrated_logits(_stored(beside))
        if old and isinstance(policy, ClassPolicy):
            raw = (read.logits.astype(np.float64) - policy.calibration.bias) / policy.calibration.scale
            read = replace(read, logits=raw)
        return policy.calibrate(read)

    pooled, target = of_model and bool(metrics.get("folds")), Target.model_validate(metrics.get("target", {}))
    convert = None if policy is None else calibrate
    predictions: Any = read_predictions(file, target, labelled=True, as_decided=pooled, calibrate=convert)
    try:
        folds = Folds.model_validate(metrics["folds"]) if pooled else None
        if predictions.kind != "number" and folds is not None and not by_fold(folds):
            predictions = replace(predictions, decided=None)
    except ValueError:
        raise _no_report(beside) from None
    if metrics["positive_class"] not in (None, *predictions.classes):
        raise _no_report(beside)
    predictions = with_positive(predictions, metrics["positive_class"])
    return Evaluated(predictions if policy is None else policy.apply(predictions), policy, metrics)


def with_positive(predictions: Any, positive: str | None) -> Any:
    """The predictions with this positive class, which those of classes alone have."""
    return replace(predictions, positive=positive) if predictions.kind == "classes" else predictions


def read_metrics(file: Path) -> dict[str, Any]:
    """The content of a metrics.json; {} where there is no such file. Raises DataError for anything else."""
    try:
        return upgrade.results(_stored(file))
    except UsageError as error:
        raise DataError(f"{file}: {error.problem}", error.fix) from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _no_report(file) from None


def _stored(file: Path) -> dict[str, Any]:
    """The content of a metrics.json as it is in the file; {} without one."""
    if not file.is_file():
        return {}
    try:
        content = json_of(file.read_text(encoding="utf-8"))
        if {"report", "classes", "positive_class"} <= set(content) and isinstance(content["report"], dict):
            return dict(content)
    except (OSError, ValueError, TypeError):
        pass
    raise _no_report(file)


def _no_report(file: Path) -> DataError:
    return DataError(f"{file}: not the metrics.json of a report", "move it away to go without it")


def find_evaluation(run: RunFolder, split: str, weights_hash: str | None, policy: DecisionPolicy | None) -> Path | None:
    """The predictions.csv of an evaluation of these weights on a split of the run; None where there is none.

    Args:
        split: "val" or "test": the search covers the folders `test`, `test-2`, ...
        weights_hash: None: not known.
        policy: of the weights; it identifies an evaluation of 0.1.0.
    """
    for folder in run.evaluations(split):
        try:
            metrics = read_metrics(folder / NUMBERS)
            who = (metrics.get("flow") or {}).get("evaluated") or {"split": split}
            if who["split"] != split or not is_of(metrics, weights_hash, policy):
                continue
            if metrics["report"].get("precision", "fp32") == "fp32" and (folder / PREDICTIONS).is_file():
                return folder / PREDICTIONS  # decisions rest on fp32 alone
        except (DataError, KeyError, TypeError):  # a folder that vitmed did not write
            continue
    return None


def is_torn(folder: Path) -> bool:
    """Whether the writing of an evaluation was cut off here; by vitmed 0.1, since a folder now appears when complete.

    False for a folder with other content, and for one with metrics.json: its page can be made again, or was deleted.
    """
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    return NUMBERS not in names and (not names or PREDICTIONS in names)


def torn_evaluations(run: RunFolder) -> list[Path]:
    """The folders of a run in which the writing of an evaluation was cut off."""
    folders = [*run.evaluations("val"), *run.evaluations("test")]
    return [folder for folder in folders if folder.is_dir() and is_torn(folder)]


def take_place(folder: Path, place: Path) -> Path:
    """Move a new evaluation to `place` if nothing is lost there, and return where it is.

    Nothing is lost if the writing of `place` was cut off, or if it holds tables alone (`--no-report`), the same
    predictions, and the new evaluation has the page.
    """
    if folder == place or not place.is_dir() or place.is_symlink():
        return folder
    files = folder / PREDICTIONS, place / PREDICTIONS
    names = {file.name for file in place.iterdir() if not file.name.startswith(BASELINE)}
    same = names <= {PREDICTIONS, NUMBERS, ISSUES} and all(file.is_file() for file in (*files, folder / REPORT))
    if not (same and filecmp.cmp(*files, shallow=False)) and not is_torn(place):
        return folder
    try:
        shutil.rmtree(place)
        return folder.rename(place)
    except OSError:  # not ours to remove, or mounted
        return folder


def is_of(metrics: Mapping[str, Any], weights_hash: str | None, policy: DecisionPolicy | None) -> bool:
    """Whether a metrics.json is of these weights; one without their hash must have the policy of these."""
    if not metrics or metrics.get("weights_hash") is not None:
        return bool(metrics) and metrics["weights_hash"] == weights_hash
    return upgrade.same_policy(metrics["report"].get("policy"), None if policy is None else policy.to_json())


def read_split(
    run: RunFolder, split: str, weights_hash: str | None, policy: DecisionPolicy | None
) -> Predictions | None:
    """What these weights predict for a split of the run, decided by this policy; None where that is not known."""
    file = find_evaluation(run, split, weights_hash, policy)
    if file is None:
        return None
    predictions = read_evaluation(file).predictions.undecided()
    if isinstance(policy, ClassPolicy):
        predictions = with_positive(predictions, policy.operating.positive)
    return predictions if policy is None else policy.apply(predictions)  # type: ignore[no-any-return]


def validation_of(
    checkpoint: Path, weights_hash: str | None, policy: DecisionPolicy | None, positive: str | None
) -> Predictions:
    """What these weights predict for the validation images of the run. Raises UsageError where that is not known."""
    run = RunFolder(checkpoint.parent)
    file = find_evaluation(run, "val", weights_hash, policy)
    if file is None:
        raise UsageError(
            f"{run.path / 'val' / PREDICTIONS}: missing or not of {checkpoint.name}; the policy is chosen on it",
            f"vitmed evaluate {checkpoint} --split val writes it",
        )
    return with_positive(read_evaluation(file).predictions.undecided(), positive)  # type: ignore[no-any-return]
