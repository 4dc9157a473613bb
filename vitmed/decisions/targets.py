"""`TARGETS`: how each kind of label is evaluated. A new kind is an entry here, one in `POLICIES` of
vitmed.decisions.policy, and one in `LEARNING` of vitmed.training.losses, which needs torch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitmed.core.config import FLAGS, Config
from vitmed.core.errors import UsageError
from vitmed.decisions.out_of_distribution import scores_of
from vitmed.decisions.policy import CHOOSING, unlike_training
from vitmed.metrics.control_charts import Stream
from vitmed.metrics.kinds.classes import PreparedPredictions
from vitmed.metrics.kinds.findings import PreparedFindings
from vitmed.metrics.kinds.grades import PreparedGrades
from vitmed.metrics.kinds.number import NumberPredictions, PreparedNumbers
from vitmed.metrics.kinds.prepared import Prepared
from vitmed.metrics.metric_table import Metric
from vitmed.metrics.predictions import Predictions, known_labels, positive_index
from vitmed.metrics.predictions_csv import ANSWER, YES

LEAST = 0.05  # standard deviation of a probability: of a class that is always clear, a shift of 0.0005 means nothing
Streams = dict[str, Stream]  # what `vitmed monitor` watches: one chart each, in this order


@dataclass(frozen=True)
class Words:
    """What page and model card call a kind of label."""

    one: str = "class"  # of the things that it predicts
    part: str = "class"  # of the labels, whose images are counted in each split
    model: tuple[str, str] = ("An image classifier", "It distinguishes")  # what it is, and what it does with `one`s
    task: tuple[str, str] = ("image-classification", "Image classification")  # of Hugging Face's hub, key and title
    outside: str = "class that is not in the list, because the model gives every image one of these classes"
    usual: str = "likeliest class"  # what decides without an operating point
    answer: str = "predictions.classes, predictions.probabilities"  # what a program prints


@dataclass(frozen=True)
class TargetKind:
    """How a kind of label is evaluated. The functions take predictions of this kind."""

    numbers: type[Prepared]  # how its metrics are computed
    loss: str  # of training, its name
    monitor: str  # the metric that chooses the best epoch, unless you name another
    val_loss: str  # the metric that stands beside the loss of training
    headline: tuple[str, ...]  # the first metrics that are printed; those of `compare` are the first three
    stress: tuple[str, ...]  # numbers of a stress test: the change of the first counts, a figure shows the first two
    guess: Callable[[Any], float]  # what the first of them is for predictions that do not depend on the image
    watch: Callable[[Any], Streams]  # what `vitmed monitor` watches
    linear: str = "logistic regression"  # the name of the linear model of features
    followed: str = "the probability of the predicted class"  # while patches of an attention map are taken away
    words: Words = Words()
    idle: tuple[str, ...] = ()  # "section.field" of settings that change nothing for this kind

    @property
    def metrics(self) -> dict[str, Metric]:
        """Its numbers by name."""
        return self.numbers.metrics


def watch_classes(predictions: Predictions) -> Streams:
    """What is watched of classes, grades and findings: `_answers`, and the probability of the positive of two classes,
    else of each class or finding; with labels also its sensitivity and specificity."""
    names, chances, positive = predictions.classes, predictions.probabilities, positive_index(predictions)
    watched = range(len(names)) if positive is None else [positive]
    streams = {f"probability of {names[k]}": Stream(chances[:, k], ends=(0, 1), least=LEAST) for k in watched}
    streams |= _answers(predictions)
    if predictions.labels is None:
        return streams
    true, known, called = predictions.outcomes
    gaps = np.where(known, true - chances, np.nan)
    hits, passes = np.where(known & true, called, np.nan), np.where(known & ~true, ~called, np.nan)
    for k in watched:
        streams[f"calibration of {names[k]}"] = Stream(gaps[:, k], ends=(-1, 1), least=LEAST)
        streams[f"sensitivity of {names[k]}"] = Stream(hits[:, k], ("fall",), share=True)
        streams[f"specificity of {names[k]}"] = Stream(passes[:, k], ("fall",), share=True)
    if predictions.EXCLUSIVE and positive is None:
        streams["accuracy"] = Stream(predictions.predicted == predictions.labels, ("fall",), share=True)
    return streams


def watch_number(predictions: NumberPredictions) -> Streams:
    streams = {"predicted number": Stream(predictions.values)} | _answers(predictions)
    if predictions.labels is None:
        return streams
    error = predictions.values - predictions.labels
    streams |= {"error": Stream(error), "absolute error": Stream(np.abs(error), ("rise",))}
    if predictions.intervals is not None:
        streams["true numbers inside the intervals"] = Stream(predictions.right, ("fall",), share=True)
    return streams


def _answers(predictions: Predictions) -> Streams:
    """The shares of images that are unlike those of training, and that are not answered, where the policy says so."""
    streams, cells = dict[str, Stream](), predictions.columns.get(ANSWER)
    if scores_of(predictions) is not None:
        streams["unlike the training images"] = Stream(unlike_training(predictions), ("rise",), share=True)
    if cells is not None:
        streams["not answered"] = Stream(np.array([cell != YES for cell in cells]), ("rise",), share=True)
    return streams


READERS = ("evaluate.raters", "evaluate.rater_scores", "evaluate.ordinal")
OF_CLASSES_ALONE = ("train.smoothing", "augment.mixup", "augment.cutmix")
OF_CLASSES = TargetKind(
    numbers=PreparedPredictions,
    loss="cross_entropy",
    monitor="auroc",
    val_loss="log_loss",
    headline=("auroc", "balanced_accuracy", "accuracy", "mcc"),
    stress=("balanced_accuracy", "auroc", "accuracy"),
    guess=lambda p: 1 / max(1, len(p.classes)),
    watch=watch_classes,
    idle=("data.uncertain",),
)
TARGETS: dict[str, TargetKind] = {
    "classes": OF_CLASSES,
    "findings": TargetKind(
        numbers=PreparedFindings,
        loss="binary",
        monitor="auroc",
        val_loss="log_loss",
        headline=("auroc", "average_precision", "subset_accuracy"),
        stress=("auroc", "average_precision", "subset_accuracy"),
        guess=lambda p: 0.5,
        watch=watch_classes,
        followed="the probability of the finding that is likeliest beside its threshold",
        words=Words(
            one="finding",
            part="finding",
            model=("An image classifier", "It looks for"),
            outside="finding that is not in the list, of which the model says nothing",
            usual="side of 0.5",
        ),
        idle=("data.positive", *OF_CLASSES_ALONE, *READERS),
    ),
    "number": TargetKind(
        numbers=PreparedNumbers,
        loss="gaussian",
        monitor="mae",
        val_loss="log_score",
        headline=("mae", "r2", "ccc", "bias"),
        stress=("mae", "bias", "coverage"),
        # what predicting the mean of the training labels for every image gives
        guess=lambda p: float(np.abs(known_labels(p) - p.target.centre).mean()) if len(known_labels(p)) else np.nan,
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
            *("data.positive", "data.uncertain", "evaluate.resamples", *OF_CLASSES_ALONE, *READERS),
            *(f"evaluate.{name}" for name in sorted(CHOOSING - {"coverage"})),
        ),
    ),
    "grades": replace(
        OF_CLASSES,
        numbers=PreparedGrades,
        monitor="quadratic_kappa",
        headline=("quadratic_kappa", "grade_error", "auroc", "balanced_accuracy"),
        stress=("quadratic_kappa", "auroc", "grade_error"),
        guess=lambda p: 0.0,
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
    """Raise UsageError for a setting that changes nothing for a kind of label, unless it is off or has its value in
    `usual`, the settings of the evaluated run; None: the defaults."""
    for place in TARGETS[kind].idle:
        section, _, name = place.partition(".")
        value, default = (getattr(getattr(settings, section), name) for settings in (config, usual or Config()))
        if value and value != default:
            flag = next(keyword for keyword, field in FLAGS.items() if field == place).replace("_", "-")
            raise UsageError(f"--{flag} ({place}): changes nothing for labels of the kind {kind}", "leave it out")
