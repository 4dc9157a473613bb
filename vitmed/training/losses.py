"""The loss of a batch. Of classes and grades: cross-entropy with mixing, label smoothing and balanced classes.

Class weights, and batches with as many images of every class, move the optimum of the logits by the log of the weights.
The loss adds this shift to the logits of the network, as logit adjustment does (Menon et al. 2021, arXiv 2007.07314,
section 5). Whatever the balance, the network's own logits are thus those of the probabilities at the prevalence of
training, which calibration and operating points start from.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitmed.core.config import Config
from vitmed.core.targets import UNKNOWN
from vitmed.data.loading import Images
from vitmed.models.hardware import Precision
from vitmed.models.vit import ViT
from vitmed.training.processes import ALONE, Ranks

LossOf = Callable[[Tensor, Tensor], Callable[[slice], Tensor]]
"""Images (B, S, S, C) uint8 and their targets, on the device -> rows -> their share of the batch's mean loss, ().

Of several ranks each gives its own images; the mean over the ranks is the loss of the whole batch.
"""

MOST_WEIGHT = 100.0  # of the positives of a rare finding
LEAST_SCALE, MOST_SCALE = -7.0, 7.0  # bounds of the log of a scale, so that one image cannot end a run


def classification_loss(
    model: nn.Module, images: Images, classes: int, config: Config, precision: Precision, ranks: Ranks = ALONE
) -> LossOf:
    """The mean cross-entropy with mixup, cutmix, label smoothing and class weights as configured.

    Args:
        images: of training; the class weights follow from their labels.
        classes: K.
        ranks: share a batch.
    """
    train = config.train
    device = next(model.parameters()).device
    balanced = class_weights(images.labels, classes, device)
    weights = balanced if train.balance == "loss" else None
    shift = balanced.log() if train.balance in ("loss", "sampler") else torch.zeros_like(balanced)
    mix = mixer(config, classes)

    def loss_of(batch: Tensor, labels: Tensor) -> Callable[[slice], Tensor]:
        x, y = mix(images.preprocessing.normalise(batch), labels)  # (B, C, S, S); (B,) int64 or (B, K) float
        count = ranks.mean(len(y) if weights is None or y.ndim == 2 else weights[y].sum())

        def part(rows: slice) -> Tensor:
            with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
                logits = model(x[rows]) + shift  # (B, K) float32
                total = F.cross_entropy(logits, y[rows], weights, reduction="sum", label_smoothing=train.smoothing)
            return total / count

        return part

    return loss_of


def finding_loss(
    model: nn.Module, images: Images, classes: int, config: Config, precision: Precision, ranks: Ranks = ALONE
) -> LossOf:
    """The mean binary cross-entropy over the known labels of all findings; the unknown ones have no part in it.

    With `balance: loss`, positives of a finding weigh as much as its negatives.

    The arguments are those of `classification_loss`.
    """
    device = next(model.parameters()).device
    weights = finding_weights(images.targets).to(device) if config.train.balance == "loss" else None
    shift = 0.0 if weights is None else weights.log()  # the logits stay those of the prevalence of training

    def each(logits: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits + shift, y, pos_weight=weights, reduction="none")

    return _known_loss(model, images, config, precision, ranks, each)


def number_loss(
    model: nn.Module, images: Images, classes: int, config: Config, precision: Precision, ranks: Ranks = ALONE
) -> LossOf:
    """The mean negative log likelihood of a standardised number whose scale the network predicts too.

    Squared errors, each weighted by the scale as it is (beta-NLL with beta 1/2: Seitzer et al., ICLR 2022,
    arXiv 2203.09168), as the plain likelihood neglects what is hard at first; it is not the log score.

    The arguments are those of `classification_loss`.
    """

    def each(outputs: Tensor, y: Tensor) -> Tensor:
        location, log_scale = outputs[:, 0], outputs[:, 1].clamp(LEAST_SCALE, MOST_SCALE)
        squared = 0.5 * ((y - location) * (-log_scale).exp()) ** 2
        return (squared + log_scale) * log_scale.detach().exp()

    return _known_loss(model, images, config, precision, ranks, each)


def _known_loss(
    model: nn.Module, images: Images, config: Config, precision: Precision, ranks: Ranks,
    each: Callable[[Tensor, Tensor], Tensor],
) -> LossOf:  # fmt: skip
    """The mean over known targets of a loss: outputs (B, ...) float32, targets -> the loss of each target."""
    device = next(model.parameters()).device
    findings = images.targets.ndim == 2

    def loss_of(batch: Tensor, y: Tensor) -> Callable[[slice], Tensor]:
        x = images.preprocessing.normalise(batch)  # (B, C, S, S)
        known = y != UNKNOWN if findings else torch.ones_like(y, dtype=torch.bool)
        count = ranks.mean(known.sum().float()).clamp(min=1 / ranks.world)

        def part(rows: slice) -> Tensor:
            with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
                outputs = model(x[rows])
            lost = each(outputs.float(), y[rows].clamp(min=0) if findings else y[rows])
            return (lost * known[rows]).sum() / count

        return part

    return loss_of


def finding_weights(targets: Tensor) -> Tensor:
    """(F,) float32: negatives for each positive of a finding, among the known labels (S, F), at most `MOST_WEIGHT`."""
    positives, negatives = (targets == 1).sum(dim=0), (targets == 0).sum(dim=0)
    return (negatives / positives.clamp(min=1)).clamp(1 / MOST_WEIGHT, MOST_WEIGHT).float()


@torch.no_grad()
def start_findings(model: ViT, targets: Tensor) -> None:
    """Start the head's bias at the log odds of each finding in the known labels (S, F), so that training need not begin
    with learning that most are absent (Lin et al. 2017, arXiv 1708.02002, section 3.3)."""
    positives, negatives = (targets == 1).sum(dim=0), (targets == 0).sum(dim=0)
    model.head.bias.copy_(((positives + 0.5) / (negatives + 0.5)).log())


def class_weights(labels: np.ndarray, classes: int, device: torch.device) -> Tensor:
    """(K,) float32, mean 1 over the images: inverse class frequency; a class without images counts as one with one."""
    counts = np.maximum(np.bincount(labels, minlength=classes), 1)
    return torch.tensor(len(labels) / (classes * counts), dtype=torch.float32, device=device)


@torch.no_grad()
def start_balanced(model: ViT, labels: np.ndarray) -> None:
    """Start the head's bias at the log of the class frequencies.

    With plain cross-entropy this is logit adjustment with tau 1 (Menon et al. 2021, equation 10): the same losses and
    gradients as for logits that start even and get the log frequencies added in the loss. With class weights or a
    balanced sampler the shifted logits start even.
    """
    model.head.bias.copy_(-class_weights(labels, len(model.head.bias), model.head.bias.device).log())


def mixer(config: Config, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """torchvision's mixup, cutmix, or one of both at random; without either, batches stay as they are."""
    mixup, cutmix = config.augment.mixup, config.augment.cutmix
    if not mixup and not cutmix:
        return lambda x, y: (x, y)
    from torchvision.transforms import v2

    kinds = [(v2.MixUp, mixup), (v2.CutMix, cutmix)]
    return v2.RandomChoice([kind(alpha=alpha, num_classes=classes) for kind, alpha in kinds if alpha])
