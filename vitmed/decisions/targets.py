"""`TARGETS`: how each kind of label is judged and decided. A new kind is an entry here, and one in `LEARNING` of
vitmed.training.learning, which needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitmed.core.config import FLAGS, Config
from vitmed.core.errors import UsageError
from vitmed.decisions.finding_policy import choose_finding_policy
from vitmed.decisions.number_policy import choose_number_policy
from vitmed.decisions.policy import CHOOSING, DecisionPolicy, choose_policy
from vitmed.decisions.watched import Streams, watch_classes, watch_findings, watch_number
from vitmed.metrics.estimates import Numbers
from vitmed.metrics.kinds.classes import compare_classes, compare_predictions, evaluate_predictions
from vitmed.metrics.kinds.findings import (
    compare_each_finding,
    compare_findings,
    drawn_findings,
    evaluate_findings,
    finding_values,
)
from vitmed.metrics.kinds.grades import compare_grades, drawn_grades, evaluate_grades, grade_values
from vitmed.metrics.kinds.number import compare_numbers, drawn_numbers, error_of_mean, evaluate_number, number_values
from vitmed.metrics.metric_table import FINDING_METRICS, GRADE_METRICS, METRICS, NUMBER_METRICS, Metric
from vitmed.metrics.paired_comparison import ClassDifference, PairedComparison
from vitmed.metrics.predictions import known_labels
from vitmed.metrics.scoring import Scorer, metric_values


@dataclass(frozen=True)
class Stressed:
    """How a stress test judges predictions of a kind of label.

    Attributes:
        names: of numbers; the fall, or the rise, of the first counts, and the figure shows the first two.
        draw: numbers by name, (R,) each, of predictions for image weights (R, S); "auroc of edema" is that of a part.
        guess: what the first number is for predictions that do not depend on the image.
    """

    names: tuple[str, ...]
    draw: Callable[[Any, np.ndarray], dict[str, np.ndarray]]
    guess: Callable[[Any], float]


@dataclass(frozen=True)
class Words:
    """What page and model card call a kind of label.

    Attributes:
        one: of the things that it predicts; part: of the labels, whose images are counted in each split.
        model: what the model is, and what it does with `one`s; task: the same for Hugging Face's hub, key and title.
        outside: what is out of scope.
        answer: what a program prints of predictions.
    """

    one: str = "class"
    part: str = "class"
    model: tuple[str, str] = ("An image classifier", "It distinguishes")
    task: tuple[str, str] = ("image-classification", "Image classification")
    outside: str = "class that is not in the list, because the model gives every image one of these classes"
    answer: str = "predictions.classes, predictions.probabilities"


@dataclass(frozen=True)
class TargetKind:
    """How a kind of label is judged and decided. Functions of predictions take those of this kind.

    Attributes:
        values: metrics of an epoch, name -> value; NaN where undefined.
        evaluate: metrics with intervals, from predictions and a number of resamples.
        metrics: by name, what `values` and `evaluate` find.
        loss: of training, its name.
        monitor: the metric that chooses the best epoch, unless you name another.
        val_loss: the metric that stands beside the loss of training.
        choose: the decision policy, from validation predictions, configuration, OOD score and the hash of the weights.
        headline: the first metrics that are printed; those of `compare` are the first three.
        compare: two models on the same images, from the predictions of both and a number of resamples.
        stress: what corrupted images cost.
        compare_each: the same of each class or finding: metric -> class -> difference.
        linear: the name of the linear model of features.
        followed: what the test of an attention map follows while patches are taken away, in words.
        words: of page and model card.
        watch: what `vitmed monitor` watches.
        idle: fields of the configuration, "section.field", that change nothing for this kind.
    """

    values: Callable[[Any], dict[str, float]]
    evaluate: Callable[[Any, int], Numbers]
    metrics: dict[str, Metric]
    loss: str
    monitor: str
    val_loss: str
    choose: Callable[..., DecisionPolicy]
    headline: tuple[str, ...]
    compare: Callable[[Any, Any, int], PairedComparison]
    stress: Stressed
    watch: Callable[[Any], Streams]
    compare_each: Callable[[Any, Any], dict[str, dict[str, ClassDifference]]] = lambda first, second: {}
    linear: str = "logistic regression"
    followed: str = "the probability of the predicted class"
    words: Words = Words()
    idle: tuple[str, ...] = ()


READERS = ("evaluate.raters", "evaluate.rater_scores", "evaluate.ordinal")
TARGETS: dict[str, TargetKind] = {
    "classes": TargetKind(
        metric_values, evaluate_predictions, METRICS, "cross_entropy", monitor="auroc",
        val_loss="log_loss", choose=choose_policy, headline=("auroc", "balanced_accuracy", "accuracy", "mcc"),
        idle=("data.uncertain",),
        compare=compare_predictions, compare_each=compare_classes, watch=watch_classes,
        stress=Stressed(
            ("balanced_accuracy", "auroc", "accuracy"),
            lambda p, weights: Scorer(known_labels(p), p).counted(weights)[0],
            lambda p: 1 / max(1, len(p.classes)),
        ),
    ),
    "findings": TargetKind(
        finding_values, evaluate_findings, FINDING_METRICS, "binary", monitor="auroc",
        val_loss="log_loss", choose=choose_finding_policy, headline=("auroc", "average_precision", "subset_accuracy"),
        compare=compare_findings, compare_each=compare_each_finding, watch=watch_findings,
        stress=Stressed(("auroc", "average_precision", "subset_accuracy"), drawn_findings, lambda p: 0.5),
        followed="the probability of the finding that is likeliest beside its threshold",
        words=Words(
            "finding", "finding", ("An image classifier", "It looks for"),
            outside="finding that is not in the list, of which the model says nothing",
        ),
        idle=("data.positive", "train.smoothing", *READERS),
    ),
    "number": TargetKind(
        number_values, evaluate_number, NUMBER_METRICS, "gaussian", monitor="mae", val_loss="log_score",
        choose=choose_number_policy, headline=("mae", "r2", "ccc", "bias"), compare=compare_numbers, watch=watch_number,
        stress=Stressed(("mae", "bias", "coverage"), drawn_numbers, error_of_mean), linear="ridge regression",
        followed="how far the number lies on its side of the training mean, from 0 to 1 (0.5 is the mean, 0.88 is one "
        "standard deviation from it)",
        words=Words(
            "number", "range", ("A regression model for images", "It predicts"),
            ("image-regression", "Image regression"), "number beyond those of the training images",
            "predictions.values, predictions.intervals",
        ),
        idle=(
            "data.positive", "data.uncertain", "train.smoothing", *READERS,
            *(f"evaluate.{name}" for name in sorted(CHOOSING - {"coverage"})),
        ),
    ),
}  # fmt: skip
TARGETS["grades"] = replace(
    TARGETS["classes"], values=grade_values, evaluate=evaluate_grades, metrics=GRADE_METRICS, monitor="quadratic_kappa",
    headline=("quadratic_kappa", "grade_error", "auroc", "balanced_accuracy"), compare=compare_grades,
    stress=Stressed(("quadratic_kappa", "auroc", "grade_error"), drawn_grades, lambda p: 0.0), words=Words(
        "grade", "grade",
        outside="grade that is not in the list, because the model gives every image one of these grades",
    ),
)  # fmt: skip
ALL_METRICS = {name: metric for target in reversed(TARGETS.values()) for name, metric in target.metrics.items()}
RANKING = {name for name, metric in ALL_METRICS.items() if metric.ranks}  # of a value one can say whether it is better


def refuse_idle(config: Config, kind: str, usual: Config | None = None) -> None:
    """Raises UsageError for a setting that changes nothing for a kind of label, unless it has its usual value.

    Args:
        usual: the configuration of the run that is evaluated; default: the defaults. What is off is usual too.
    """
    for place in TARGETS[kind].idle:
        section, _, name = place.partition(".")
        value, default = (getattr(getattr(one, section), name) for one in (config, usual or Config()))
        if value and value != default:
            flag = next(keyword for keyword, field in FLAGS.items() if field == place).replace("_", "-")
            raise UsageError(f"--{flag} ({place}): changes nothing for labels of the kind {kind}", "leave it out")
