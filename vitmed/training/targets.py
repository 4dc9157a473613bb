"""`TARGETS`: what training, evaluation and reports do with each kind of label. A new kind is a new entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from vitmed.core.config import Config
from vitmed.core.errors import UsageError
from vitmed.decisions.finding_policy import choose_finding_policy
from vitmed.decisions.number_policy import choose_number_policy
from vitmed.decisions.policy import DecisionPolicy, choose_policy
from vitmed.metrics.estimates import Numbers
from vitmed.metrics.evaluation import evaluate_predictions
from vitmed.metrics.finding_evaluation import evaluate_findings
from vitmed.metrics.finding_scoring import finding_values
from vitmed.metrics.grade_evaluation import evaluate_grades
from vitmed.metrics.grade_scoring import grade_values
from vitmed.metrics.metric_table import FINDING_METRICS, GRADE_METRICS, METRICS, NUMBER_METRICS, Metric
from vitmed.metrics.number_evaluation import evaluate_number
from vitmed.metrics.number_scoring import number_values
from vitmed.metrics.scoring import metric_values
from vitmed.models.vit import ViT
from vitmed.training.linear_heads import LinearHead, fit_finding_head, fit_head, fit_number_head
from vitmed.training.losses import (
    LossOf,
    classification_loss,
    finding_loss,
    number_loss,
    start_balanced,
    start_findings,
)


@dataclass(frozen=True)
class TargetKind:
    """What to do with a kind of label. Functions of predictions take those of this kind.

    Attributes:
        losses: values of `train.loss`; the first is the usual one.
        loss_of: makes the loss; its arguments are those of `classification_loss`.
        start: sets the bias of the head, from the targets (S, ...) of training and the configuration.
        values: metrics of an epoch, name -> value; NaN where undefined.
        evaluate: metrics with intervals, from predictions and a number of resamples.
        metrics: by name, what `values` and `evaluate` find.
        monitor: the metric that chooses the best epoch, unless you name another.
        val_loss: the metric that stands beside the loss of training.
        choose: the decision policy, from validation predictions, configuration, OOD score and the hash of the weights.
        headline: the first metrics that are printed.
        fit_head: a linear model of features, as `fit_head`; regression: its name.
        balances: values of `train.balance` that can be used.
    """

    losses: tuple[str, ...]
    loss_of: Callable[..., LossOf]
    start: Callable[[ViT, Tensor, Config], None]
    values: Callable[[Any], dict[str, float]]
    evaluate: Callable[[Any, int], Numbers]
    metrics: dict[str, Metric]
    monitor: str
    val_loss: str
    choose: Callable[..., DecisionPolicy]
    headline: tuple[str, ...]
    fit_head: Callable[..., LinearHead]
    regression: str = "logistic regression"
    balances: tuple[str, ...] = ("none",)


def check_target(config: Config, kind: str) -> None:
    """Raises UsageError for a setting that does not go with the kind of label."""
    target, train, augment = TARGETS[kind], config.train, config.augment
    for name, value, good in (
        ("train.loss", train.loss, ("auto", *target.losses)),
        ("train.balance", train.balance, target.balances),
        ("train.monitor", train.monitor, tuple(target.metrics)),
    ):
        if value not in good:
            raise UsageError(f"{name} {value}: not for {kind}", f"one of {', '.join(good)}")
    if kind not in ("classes", "grades") and (augment.mixup or augment.cutmix):
        raise UsageError(f"mixup and cutmix mix classes; these labels are {kind}", "leave them out")
    if kind != "grades" and config.model.head == "ordinal":
        raise UsageError(f"model.head ordinal: for grades; these labels are {kind}", "--target grades")


def _start_classes(model: ViT, targets: Tensor, config: Config) -> None:
    if config.train.balance != "none" and config.model.head != "ordinal":
        start_balanced(model, targets.numpy())


TARGETS: dict[str, TargetKind] = {
    "classes": TargetKind(
        losses=("cross_entropy",), loss_of=classification_loss, start=_start_classes, values=metric_values,
        evaluate=evaluate_predictions, metrics=METRICS, monitor="auroc", val_loss="log_loss", choose=choose_policy,
        headline=("auroc", "balanced_accuracy", "accuracy", "mcc"), fit_head=fit_head,
        balances=("none", "adjust", "loss", "sampler"),
    ),
}  # fmt: skip
TARGETS["grades"] = replace(
    TARGETS["classes"], values=grade_values, evaluate=evaluate_grades, metrics=GRADE_METRICS, monitor="quadratic_kappa",
)  # fmt: skip
TARGETS["findings"] = TargetKind(
    losses=("binary", "asymmetric"), loss_of=finding_loss, start=lambda model, y, _: start_findings(model, y),
    values=finding_values, evaluate=evaluate_findings, metrics=FINDING_METRICS, monitor="auroc", val_loss="log_loss",
    choose=choose_finding_policy, headline=("auroc", "average_precision", "subset_accuracy"),
    fit_head=fit_finding_head, balances=("none", "loss"),
)  # fmt: skip
TARGETS["number"] = TargetKind(
    losses=("laplace", "gaussian"), loss_of=number_loss, start=lambda model, y, _: None,
    values=number_values, evaluate=evaluate_number, metrics=NUMBER_METRICS, monitor="mae", val_loss="log_score",
    choose=choose_number_policy, headline=("mae", "r2", "ccc", "bias"), fit_head=fit_number_head,
    regression="ridge regression",
)  # fmt: skip
ALL_METRICS = {name: metric for target in reversed(TARGETS.values()) for name, metric in target.metrics.items()}
