"""`LEARNING`: how each kind of label is learned: loss, mixing, start of the head, and linear models of frozen features.

These are the heads of frozen networks and the baselines; every setting of them is chosen on validation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitmed.core.config import Config
from vitmed.core.errors import UsageError
from vitmed.data.loading import Images
from vitmed.decisions.targets import RANKING, TARGETS, refuse_idle
from vitmed.models.hardware import Precision
from vitmed.models.vit import ViT
from vitmed.training import losses
from vitmed.training.linear_heads import LinearHead, fit_finding_head, fit_head, fit_number_head
from vitmed.training.losses import Loss, Objective


@dataclass(frozen=True)
class Learning:
    """How a kind of label is learned.

    Attributes:
        loss: of a configuration, as `CrossEntropy.of`; fit_head: a linear model of features, as `fit_head`.
        start: sets the bias of the head, from the targets (S, ...) of training and the configuration.
        balances: values of `train.balance` that can be used.
        mixes: whether images may be mixed.
        answers: the output of the network (B, ...) -> (B, K) logits of what an attention map can explain, in the order
            of `Predictions.answers`.
        chances: those logits -> (B, K) in 0..1, which the test of a map follows while patches are taken away.
    """

    loss: Callable[[Images, int, Config, torch.device], Loss]
    start: Callable[[ViT, Tensor, Config], None]
    fit_head: Callable[..., LinearHead]
    balances: tuple[str, ...] = ("none",)
    mixes: bool = False
    answers: Callable[[Tensor], Tensor] = lambda output: output
    chances: Callable[[Tensor], Tensor] = lambda logits: logits.softmax(dim=1)


def check_target(config: Config, kind: str) -> None:
    """Raises UsageError for a setting that does not go with the kind of label."""
    refuse_idle(config, kind)
    learning, train, augment = LEARNING[kind], config.train, config.augment
    for name, value, good in (
        ("train.balance", train.balance, learning.balances),
        ("train.monitor", train.monitor, tuple(name for name in TARGETS[kind].metrics if name in RANKING)),
    ):
        if value not in good:
            raise UsageError(f"{name} {value}: not for {kind}", f"one of {', '.join(good)}")
    if not learning.mixes and (augment.mixup or augment.cutmix):
        raise UsageError(f"mixup and cutmix mix classes; these labels are {kind}", "leave them out")


def mixup_and_cutmix(config: Config, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """torchvision's mixup, cutmix, or one of both at random: each image of a batch is mixed with another, and so are
    their labels. Without either, batches stay as they are."""
    mixup, cutmix = config.augment.mixup, config.augment.cutmix
    if not mixup and not cutmix:
        return lambda x, y: (x, y)
    from torchvision.transforms import v2

    kinds = [(v2.MixUp, mixup), (v2.CutMix, cutmix)]
    return v2.RandomChoice([kind(alpha=alpha, num_classes=classes) for kind, alpha in kinds if alpha])


def objective_of(images: Images, outputs: int, config: Config, precision: Precision, device: torch.device) -> Objective:
    """What a network with so many outputs learns from the training images, as configured, on a device."""
    mix, loss = mixup_and_cutmix(config, outputs), LEARNING[images.target.kind].loss(images, outputs, config, device)

    def draw(x: Tensor, labels: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        mixed, targets = mix(x, labels)
        return (mixed,), targets

    return Objective(images.preprocessing, draw, loss, precision)


LEARNING: dict[str, Learning] = {
    "classes": Learning(
        losses.CrossEntropy.of,
        lambda model, targets, config: (
            None if config.train.balance == "none" else losses.start_balanced(model, targets.numpy())
        ),
        fit_head,
        balances=("none", "adjust", "loss", "sampler"),
        mixes=True,
    ),
    "findings": Learning(
        losses.BinaryCrossEntropy.of,
        lambda model, targets, _: losses.start_findings(model, targets),
        fit_finding_head,
        balances=("none", "loss"),
        chances=torch.sigmoid,
    ),
    "number": Learning(
        lambda *_: losses.ScaledSquares(),
        lambda model, targets, _: None,
        fit_number_head,
        answers=lambda output: output[:, :1] * output.new_tensor([-1.0, 1.0]),
    ),
}
LEARNING["grades"] = LEARNING["classes"]
