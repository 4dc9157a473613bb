"""`TARGETS`: how each kind of label is judged. A new kind is an entry here, one in `POLICIES` of
vitmed.decisions.policy, and one in `LEARNING` of vitmed.training.learning, which needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitmed.core.config import FLAGS, Config
from vitmed.core.errors import UsageError
from vitmed.decisions.policy import CHOOSING
from vitmed.metrics.estimates import Numbers
from vitmed.metrics.kinds.classes import compare_classes, compare_predictions, evaluate_predictions, metric_values
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
from vitmed.metrics.scoring import Scorer


@dataclass(frozen=True)
class Stressed:
    """How a stress test judges predictions of a kind of label."""

    names: tuple[str, ...]  # of numbers; the fall, or rise, of the first counts, and the figure shows the first two
    draw: Callable[[Any, np.ndarray], dict[str, np.ndarray]]  # numbers by name, (R,) each, for image weights (R, S)
    guess: Callable[[Any], float]  # what the first number is for predictions that do not depend on the image


@dataclass(frozen=True)
class Words:
    """What page and model card call a kind of label."""

    one: str = "class"  # of the things that it predicts
    part: str = "class"  # of the labels, whose images are counted in each split
    model: tuple[str, str] = ("An image classifier", "It distinguishes")  # what it is, and what it does with `one`s
    task: tuple[str, str] = ("image-classification", "Image classification")  # of Hugging Face's hub, key and title
    outside: str = "class that is not in the list, because the model gives every image one of these classes"
    answer: str = "predictions.classes, predictions.probabilities"  # what a program prints


@dataclass(frozen=True)
class TargetKind:
    """How a kind of label is judged. Functions of predictions take those of this kind."""

    values: Callable[[Any], dict[str, float]]  # metrics of an epoch; NaN where undefined
    evaluate: Callable[[Any, int], Numbers]  # metrics with intervals, from a number of resamples
    metrics: dict[str, Metric]  # by name, what `values` and `evaluate` find
    loss: str  # of training, its name
    monitor: str  # the metric that chooses the best epoch, unless you name another
    val_loss: str  # the metric that stands beside the loss of training
    headline: tuple[str, ...]  # the first metrics that are printed; those of `compare` are the first three
    compare: Callable[[Any, Any, int], PairedComparison]  # two models on the same images
    stress: Stressed
    watch: Callable[[Any], Streams]  # what `vitmed monitor` watches
    # the same as `compare`, of each class or finding: metric -> class -> difference
    compare_each: Callable[[Any, Any], dict[str, dict[str, ClassDifference]]] = lambda first, second: {}
    linear: str = "logistic regression"  # the name of the linear model of features
    followed: str = "the probability of the predicted class"  # while patches of an attention map are taken away
    words: Words = Words()
    idle: tuple[str, ...] = ()  # "section.field" of settings that change nothing for this kind


READERS = ("evaluate.raters", "evaluate.rater_scores", "evaluate.ordinal")
OF_CLASSES = TargetKind(
    values=metric_values,
    evaluate=evaluate_predictions,
    metrics=METRICS,
    loss="cross_entropy",
    monitor="auroc",
    val_loss="log_loss",
    headline=("auroc", "balanced_accuracy", "accuracy", "mcc"),
    compare=compare_predictions,
    stress=Stressed(
        names=("balanced_accuracy", "auroc", "accuracy"),
        draw=lambda p, weights: Scorer(known_labels(p), p).counted(weights)[0],
        guess=lambda p: 1 / max(1, len(p.classes)),
    ),
    watch=watch_classes,
    compare_each=compare_classes,
    idle=("data.uncertain",),
)
TARGETS: dict[str, TargetKind] = {
    "classes": OF_CLASSES,
    "findings": TargetKind(
        values=finding_values,
        evaluate=evaluate_findings,
        metrics=FINDING_METRICS,
        loss="binary",
        monitor="auroc",
        val_loss="log_loss",
        headline=("auroc", "average_precision", "subset_accuracy"),
        compare=compare_findings,
        stress=Stressed(("auroc", "average_precision", "subset_accuracy"), drawn_findings, lambda p: 0.5),
        watch=watch_findings,
        compare_each=compare_each_finding,
        followed="the probability of the finding that is likeliest beside its threshold",
        words=Words(
            one="finding",
            part="finding",
            model=("An image classifier", "It looks for"),
            outside="finding that is not in the list, of which the model says nothing",
        ),
        idle=("data.positive", "train.smoothing", *READERS),
    ),
    "number": TargetKind(
        values=number_values,
        evaluate=evaluate_number,
        metrics=NUMBER_METRICS,
        loss="gaussian",
        monitor="mae",
        val_loss="log_score",
        headline=("mae", "r2", "ccc", "bias"),
        compare=compare_numbers,
        stress=Stressed(("mae", "bias", "coverage"), drawn_numbers, error_of_mean),
        watch=watch_number,
        linear="ridge regression",
        followed="how far the number lies on its side of the training mean, from 0 to 1 (0.5 is the mean, 0.88 is one "
        "standard deviation from it)",
        words=Words(
            one="number",
            part="range",
            model=("A regression model for images", "It predicts"),
            task=("image-regression", "Image regression"),
            outside="number beyond those of the training images",
            answer="predictions.values, predictions.intervals",
        ),
        idle=(
            *("data.positive", "data.uncertain", "train.smoothing", *READERS),
            *(f"evaluate.{name}" for name in sorted(CHOOSING - {"coverage"})),
        ),
    ),
    "grades": replace(
        OF_CLASSES,
        values=grade_values,
        evaluate=evaluate_grades,
        metrics=GRADE_METRICS,
        monitor="quadratic_kappa",
        headline=("quadratic_kappa", "grade_error", "auroc", "balanced_accuracy"),
        compare=compare_grades,
        stress=Stressed(("quadratic_kappa", "auroc", "grade_error"), drawn_grades, lambda p: 0.0),
        words=Words(
            one="grade",
            part="grade",
            outside="grade that is not in the list, because the model gives every image one of these grades",
        ),
    ),
}
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
