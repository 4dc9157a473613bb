"""Reads the folder of an evaluation: predictions.csv with its decision policy, and metrics.json beside it.

`Folds` is what metrics.json holds of pooled folds: the numbers and the policy of each."""

import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitmed.core import upgrade
from vitmed.core.base_models import Frozen, Target
from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import json_of
from vitmed.core.run_folder import BASELINE, ISSUES, NUMBERS, PREDICTIONS, REPORT, RunFolder
from vitmed.core.text import listed, quoted
from vitmed.decisions.calibration import Calibration, CalibrationResult
from vitmed.decisions.operating_points import TITLES, asked_point, target_of_point
from vitmed.decisions.policy import ClassPolicy, DecisionPolicy, policy_of
from vitmed.metrics.estimates import Estimate, Numbers, finite
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import read_table
from vitmed.metrics.predictions_files import read_predictions

REASONS = {"asked", "note", "notes", "trials", "known_logits"}  # parts of a policy that change no decision
NOTICEABLE = 0.01  # difference between the pooled AUROC and the mean of the folds
OF_POSITIVE = ("sensitivity", "specificity")  # reported for each fold of two classes


class Fold(Frozen):
    """One fold: its numbers; of classes also its calibration, the key of the `point` that decides, its threshold, and
    `why` the point that you asked for does not decide; "" where it does."""

    images: int
    patients: int | None
    numbers: dict[str, Estimate]
    calibration: CalibrationResult | None = None
    point: str = "default"
    threshold: float | None = None
    why: str = ""


class FoldsAuroc(Frozen):
    """AUROC of the pooled images, and the mean over the folds; None where undefined."""

    pooled: float | None
    mean: float | None


class Folds(Frozen):
    """Pooled folds: the key of the operating point that was `asked` for, its target and the costs, and `each` fold;
    the same of each finding."""

    asked: str
    target: float | str | list[list[float]] | None
    costs: list[list[float]] | None
    each: list[Fold]
    auroc: FoldsAuroc | None = None
    findings: dict[str, "Folds"] = {}


@dataclass(frozen=True)
class Evaluated:
    """An evaluation."""

    predictions: Predictions  # calibrated and decided as in its report
    policy: DecisionPolicy | None
    metrics: Mapping[str, Any]  # what metrics.json holds; {} where there is no such file

    @property
    def weights_hash(self) -> str | None:
        """The hash of the weights that were evaluated; None where it is not known."""
        return self.metrics.get("weights_hash")

    @property
    def run(self) -> str:
        """The name of the run folder; "" where it is not known."""
        return str(self.metrics.get("report", {}).get("run", ""))

    @property
    def created(self) -> str | None:
        """When the images were evaluated, UTC; None where it is not known."""
        return self.metrics.get("report", {}).get("created")


def read_evaluation(file: Path, labelled: bool = True) -> Evaluated:
    """A predictions.csv with the positive class and the decision policy of the metrics.json beside it.

    The table of a baseline takes the positive class alone: the policy belongs to the model. Raises DataError where a
    file cannot be used, or the two do not belong together, or images that must be `labelled` are not.
    """
    beside = file.with_name(NUMBERS)
    metrics, of_model, policy = read_metrics(beside), not file.name.startswith(BASELINE), None
    table = read_table(file)
    if not metrics:
        read = read_predictions(table, labelled=labelled)
        notes = read.notes_on_decisions(table, by_policy=False)
        return Evaluated(replace(read, notes=(*read.notes, *notes)), None, metrics)
    if of_model and metrics["report"].get("policy") is not None:
        try:
            policy = policy_of(metrics["report"]["policy"], metrics["classes"])
        except ValueError as error:
            problem = f"{beside}: its decision policy is damaged ({error})"
            raise DataError(problem, "move it away to go without it") from None

    def calibrate(read: Predictions) -> Predictions:
        assert policy is not None
        if list(read.classes) != metrics["classes"]:
            problem = f"{beside}: has the classes {metrics['classes']}, the table beside it {list(read.classes)}"
            fix = "put the columns of the table in the order of metrics.json, or move metrics.json away"
            raise DataError(problem, fix)
        return policy.calibrate(read)

    try:
        target = Target.model_validate(metrics.get("target", {}))
        folds = Folds.model_validate(metrics["folds"]) if of_model and metrics.get("folds") else None
    except ValueError:
        raise no_report(beside) from None
    convert = None if policy is None else calibrate
    predictions: Any = read_predictions(table, target, labelled, as_decided=folds is not None, calibrate=convert)
    if predictions.kind != "number" and folds is not None and not by_fold(folds):
        predictions = replace(predictions, decided=None)
    if metrics["positive_class"] not in (None, *predictions.classes):
        raise no_report(beside)
    if predictions.kind == "classes":
        predictions = replace(predictions, positive=metrics["positive_class"])
    predictions = predictions if policy is None else policy.apply(predictions)
    notes = predictions.notes_on_decisions(table, policy is not None)
    return Evaluated(replace(predictions, notes=(*predictions.notes, *notes)), policy, metrics)


def read_metrics(file: Path) -> dict[str, Any]:
    """The content of a metrics.json; {} where there is no such file. Raises DataError for anything else."""
    if not file.is_file():
        return {}
    try:
        content = json_of(file.read_text(encoding="utf-8"))
        named = isinstance(content["classes"], list) and all(isinstance(name, str) for name in content["classes"])
        parts = content["report"], content.get("flow") or {}
        if named and "positive_class" in content and all(isinstance(part, dict) for part in parts):
            return upgrade.results(content)
    except UsageError as error:
        raise DataError(f"{file}: {error.problem}", error.fix) from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        pass
    raise no_report(file)


def no_report(file: Path) -> DataError:
    """The error for a file that is not what a report writes."""
    return DataError(f"{file}: not the metrics.json of a report", "move it away to go without it")


def find_evaluation(
    run: RunFolder, split: str, weights_hash: str | None, policy: DecisionPolicy | None = None
) -> Path | None:
    """The predictions.csv of the oldest evaluation of these weights, and with a `policy` by it, on "val" or "test" of
    the run, also in `test-2`, ...; None where there is none."""
    for folder in run.evaluations(split):
        with suppress(DataError, KeyError, TypeError):  # a folder that vitmed did not write
            metrics = read_metrics(folder / NUMBERS)
            who = (metrics.get("flow") or {}).get("evaluated") or {"split": split}
            fits = who["split"] == split and is_of(metrics, weights_hash) and (folder / PREDICTIONS).is_file()
            fits = fits and (policy is None or metrics["report"]["policy"]["asked"] == policy.asked)
            if fits and metrics["report"].get("precision", "fp32") == "fp32":  # decisions rest on fp32 alone
                return folder / PREDICTIONS
    return None


def earlier_choices(run: RunFolder, weights_hash: str | None, policy: DecisionPolicy | None) -> list[str]:
    """The note on evaluations of the run's test with other weights or a policy that decides otherwise."""
    own, others = None if policy is None else policy.to_json(), list[str]()
    for folder in run.evaluations("test"):
        with suppress(DataError, KeyError, TypeError, AttributeError):  # a folder that vitmed did not write
            metrics = read_metrics(folder / NUMBERS)
            before = metrics["report"].get("policy")
            alike = (before or {}).get("asked") == (own or {}).get("asked") or _decisive(before) == _decisive(own)
            others += [folder.name] * (bool(metrics) and not (is_of(metrics, weights_hash) and alike))
    of = f"other weights or another decision policy: {listed(others)}"
    text = f"These test images were already evaluated with {of}. A choice by such numbers makes them optimistic."
    return [text] * bool(others)


def _decisive(policy: dict[str, Any] | None) -> Any:
    """What a stored policy decides by, without what was asked for and why it was chosen."""
    return json.loads(json.dumps(policy), object_hook=lambda part: {k: v for k, v in part.items() if k not in REASONS})


def take_place(folder: Path, place: Path) -> Path:
    """Move a new evaluation to `place` if nothing is lost there, and return where it is. Nothing is lost if
    `place` holds the same predictions and no page, and the new evaluation has one."""
    if folder == place or not place.is_dir() or place.is_symlink():
        return folder
    files = folder / PREDICTIONS, place / PREDICTIONS
    names = {file.name for file in place.iterdir() if not file.name.startswith(BASELINE)}
    same = names <= {PREDICTIONS, NUMBERS, ISSUES} and all(file.is_file() for file in (*files, folder / REPORT))
    if not (same and files[0].read_bytes() == files[1].read_bytes()):
        return folder
    try:
        shutil.rmtree(place)
        return folder.rename(place)
    except OSError:  # not ours to remove, or mounted
        return folder


def is_of(metrics: Mapping[str, Any], weights_hash: str | None) -> bool:
    """Whether a metrics.json is of these weights."""
    return weights_hash is not None and metrics.get("weights_hash") == weights_hash


def read_split(
    run: RunFolder, split: str, weights_hash: str | None, policy: DecisionPolicy | None
) -> Predictions | None:
    """What these weights predict for a split of the run, decided by this policy; None where that is not known."""
    file = find_evaluation(run, split, weights_hash)
    if file is None:
        return None
    predictions = read_evaluation(file).predictions.undecided()
    if isinstance(policy, ClassPolicy):
        predictions = replace(predictions, positive=policy.operating.positive)
    return predictions if policy is None else policy.apply(predictions)  # type: ignore[no-any-return]


def validation_of(checkpoint: Path, weights_hash: str | None, positive: str | None) -> Predictions:
    """What these weights predict for the validation images of the run. Raises UsageError where that is not known."""
    run = RunFolder(checkpoint.parent)
    predictions = read_split(run, "val", weights_hash, None)
    if predictions is None:
        problem = f"{run.path / 'val' / PREDICTIONS}: missing or not of {checkpoint.name}; the policy is chosen on it"
        writes = f"vitmed evaluate {checkpoint} --split val writes it"
        if checkpoint.suffix == ".onnx":
            writes = "it is an exported model, which names no images: vitmed evaluate RUN --data DIR with this flag"
        if run.path.name == "findings":
            whole = quoted(run.path.parent.parent)
            writes = f"this is the report of a finding; of all: vitmed evaluate {whole} with this flag"
        raise UsageError(problem, writes)
    return replace(predictions, positive=positive) if predictions.kind == "classes" else predictions


def folds_of_classes(
    results: Sequence[Numbers],
    policies: Sequence[DecisionPolicy | None],
    names: Sequence[str],
    auroc: float,
    config: EvaluateConfig,
) -> Folds:
    """Folds of classes, or of one finding, from the numbers of each fold on its test, and its policy. `names` are the
    numbers to keep; `auroc` is of the pooled images, NaN where undefined."""
    k, each, costs, decided = len(results[0].classes), list[Fold](), None, dict[str, Any]()
    point = asked_point(config, k)
    for result, policy in zip(results, policies, strict=True):
        numbers = {name: result.overall[name] for name in names}
        if result.positive_class is not None:
            numbers |= {name: result.per_class[result.positive_class][name] for name in OF_POSITIVE}
        if isinstance(policy, ClassPolicy):
            operating = policy.operating
            costs = operating.model_dump(mode="json")["costs"] if not each else costs
            decided = {"calibration": policy.calibration, "point": operating.chosen, "threshold": operating.threshold}
            decided["why"] = operating.points[point].why if point in operating.points else ""
        else:
            calibration = Calibration.none(k, "no calibration is known for these predictions")
            decided = {"calibration": calibration, "point": "default", "threshold": None, "why": ""}
        each.append(Fold(images=result.n, patients=result.n_groups, numbers=numbers, **decided))
    areas = [value for fold in each if (value := fold.numbers["auroc"].value) is not None]
    mean = statistics.mean(areas) if len(areas) == len(each) else None  # of classes undefined in one fold, so in all
    areas_of = FoldsAuroc(pooled=finite(auroc), mean=mean)
    return Folds(asked=point, target=target_of_point(config, point), costs=costs, each=each, auroc=areas_of)


def by_fold(folds: Folds | None) -> bool:
    """Whether a fold decides at a point of its own validation and not by the likeliest class."""
    if folds is None:
        return False
    return any(fold.point != "default" for fold in folds.each) or any(map(by_fold, folds.findings.values()))


def fold_notes(folds: Folds) -> list[str]:
    """What must be known before the pooled numbers are believed."""
    notes = [
        f"Pooled over {len(folds.each)} models, one for each fold; no file of its test was in its training.",
        "The intervals of the pooled numbers describe chance among the tested patients or images. The spread over "
        "folds (±, one standard deviation) describes how models and their tests differ.",
    ]
    if folds.asked != "default":
        title = TITLES[folds.asked].lower() + ("" if folds.target is None else f" {folds.target}")
        thresholds = [fold.threshold for fold in folds.each]
        texts = numbered(["the likelier class" if limit is None else f"from {limit:.3g}" for limit in thresholds])
        way = f"Each fold decides at its own threshold, chosen on its validation ({title}): {texts}."
        if folds.findings:
            half = {name: sum(fold.point == "default" for fold in of.each) for name, of in folds.findings.items()}
            few = listed([f"{name} in {count} of {len(folds.each)} folds" for name, count in half.items() if count])
            few = f"; but from 0.5, since none could be chosen: {few}" * bool(few)
            way = f"Each fold calls each finding from its own threshold, chosen on its validation ({title}){few}."
        elif folds.costs is not None and all(limit is None for limit in thresholds) and by_fold(folds):
            way = "Each fold predicts the class with the lowest expected cost, by the costs of the configuration."
        elif folds.asked == "balanced":
            way = "Each fold predicts the class with the largest ratio of probability to prevalence in its validation."
        notes.append(way)
    pooled, mean = (None, None) if folds.auroc is None else (folds.auroc.pooled, folds.auroc.mean)
    if pooled is not None and mean is not None and abs(pooled - mean) >= NOTICEABLE:
        notes.append(
            f"The pooled AUROC is {pooled:.3f}; the folds have {spread_of(folds.each, 'auroc')}. Within a fold one "
            "model ranks the images. The pooled AUROC ranks images of different models against each other, and the "
            "same probability from two models need not mean the same. The mean of the folds shows how well one model "
            "separates the classes."
        )
    for name, of_finding in (folds.findings or {"": folds}).items():
        numbers = [fold.numbers.get("auroc") for fold in of_finding.each]
        lacking = [str(k) for k, auroc in enumerate(numbers, 1) if auroc is not None and auroc.value is None]
        if lacking:
            where = f"fold{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}"
            why = "no test image has it, or every one has it" if name else "a class has no test image there"
            notes.append(f"The AUROC{f' of {name}' * bool(name)} is undefined in {where}: {why}.")
    return notes


def spread_of(each: Sequence[Fold], name: str, values_too: bool = True) -> str:
    """Mean and standard deviation over folds, perhaps with each value: `0.911 ± 0.012 (0.903, 0.919)`."""
    values: list[Any] = [fold.numbers[name].value for fold in each]
    texts = ", ".join("undefined" if value is None else f"{value:.3f}" for value in values)
    if None in values:
        return texts if values_too else "undefined"
    spread = f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"
    return f"{spread} ({texts})" if values_too else spread


def numbered(texts: Sequence[str], between: str = ", ") -> str:
    """`fold 1: a, fold 2: b`."""
    return between.join(f"fold {number}: {text}" for number, text in enumerate(texts, 1))
