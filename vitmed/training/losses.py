"""The loss of a batch, and `LEARNING`: how each kind of label is learned.

Classes and grades have cross-entropy with mixing, label smoothing and balanced classes. Class weights, and batches
with equally many images of every class, move the optimum of the logits by the log of the weights.
The loss adds this shift to the logits of the network, as logit adjustment does (Menon et al. 2021, arXiv 2007.07314,
section 5). So with any balance the network's own logits mean the prevalence of training, from which calibration and
operating points start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitmed.core.base_models import UNKNOWN
from vitmed.core.config import Config
from vitmed.data.loading import Images
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.hardware import Precision
from vitmed.models.vit import ViT
from vitmed.training.processes import ALONE, Ranks

MOST_WEIGHT = 100.0  # of the positives of a rare finding
LEAST_SCALE, MOST_SCALE = -7.0, 7.0  # bounds of the log of a scale, so that one image cannot end a run


class Loss(Protocol):
    """A mean over a batch that may be computed in parts: the sum over some rows, (), from the network's outputs
    (n, ...) and the targets (n, ...) of these rows, divided by the `images` of the batch.

    The divisor depends on nothing that a batch happens to hold. Divided by the weight of its classes, as by PyTorch's
    cross-entropy, or by its known labels, an image would count less in a batch with more of them: the probabilities of
    rare classes would come out too low, and batches that a step accumulates would not be one large batch.
    """

    def __call__(self, outputs: Tensor, targets: Tensor, images: Any) -> Tensor: ...


class Prepared(NamedTuple):
    """A batch as the network takes it: its arguments (B, ...), the targets (B, ...), and how many images it has; with
    several ranks the mean of theirs."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    images: Any


@dataclass(frozen=True)
class Objective:
    """What training minimises. `draw` takes normalised images (B, C, S, S) and labels (B, ...), mixes images or hides
    patches at random, and returns the arguments of the network, then the targets."""

    preprocessing: Preprocessing
    draw: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    loss: Loss
    precision: Precision

    def prepare(self, images: Tensor, labels: Tensor, ranks: Ranks = ALONE) -> Prepared:
        """A batch for the network, from images (B, S, S, C) uint8 and labels (B, ...) on the device. Draws random
        numbers. With several ranks each passes its own images."""
        *inputs, targets = self.draw(self.preprocessing.normalise(images), labels)
        return Prepared(tuple(inputs), targets, ranks.mean(len(targets)))

    def part(self, network: nn.Module, batch: Prepared, rows: slice = slice(None)) -> Tensor:
        """The share, (), of some rows in the mean loss of a batch; the one place with autocast."""
        inputs = [tensor[rows] for tensor in batch.inputs]
        with torch.autocast(inputs[0].device.type, self.precision.dtype, enabled=self.precision.mixed):
            outputs = network(*inputs)
        return self.loss(outputs.float(), batch.targets[rows], batch.images)


@dataclass(frozen=True)
class CrossEntropy:
    """The mean cross-entropy of classes, with weights (K,) of the classes or None, and a shift (K,) of the logits.

    A sampler draws the images of class y as often as if they weighed w_y. Smoothed labels must stay the same without
    the shift, so an image of class y counts for class k w_k / w_y times as its smoothed label says: `drawn` (K, K).
    """

    weights: Tensor | None
    shift: Tensor
    smoothing: float
    drawn: Tensor | None

    @classmethod
    def of(cls, images: Images, classes: int, config: Config, device: torch.device) -> Self:
        """The loss of a configuration; the class weights follow from the labels of the training images."""
        train, balanced = config.train, class_weights(images.labels, classes, device)
        shift = balanced.log() if train.balance in ("loss", "sampler") else torch.zeros_like(balanced)
        smoothing, drawn = train.smoothing, None
        if train.balance == "sampler":
            smooth = (1 - smoothing) * torch.eye(classes, device=device) + smoothing / classes
            smoothing, drawn = 0.0, smooth * balanced / balanced[:, None]
        return cls(balanced if train.balance == "loss" else None, shift, smoothing, drawn)

    def __call__(self, outputs: Tensor, targets: Tensor, images: Any) -> Tensor:
        """As in `Loss`; outputs are logits (n, K), targets (n,) int64, or (n, K) float where images are mixed."""
        logits, smoothing = outputs + self.shift, self.smoothing
        if self.drawn is not None:
            targets = self.drawn[targets] if targets.ndim == 1 else targets @ self.drawn
        return F.cross_entropy(logits, targets, self.weights, reduction="sum", label_smoothing=smoothing) / images


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """The mean binary cross-entropy over the known labels of all findings.

    With `balance: loss`, positives of a finding weigh as much as its negatives: weights (F,) of the positives, or None.
    """

    weights: Tensor | None
    known: float  # how many labels of an image are known, on average over the training images

    @classmethod
    def of(cls, images: Images, findings: int, config: Config, device: torch.device) -> Self:
        """The loss of a configuration; a weight is how many negatives a finding has for each positive."""
        known = int((images.targets != UNKNOWN).sum()) / len(images.targets) or 1.0
        if config.train.balance != "loss":
            return cls(None, known)
        positives, negatives = (images.targets == 1).sum(dim=0), (images.targets == 0).sum(dim=0)
        weights = (negatives / positives.clamp(min=1)).clamp(1 / MOST_WEIGHT, MOST_WEIGHT)
        return cls(weights.float().to(device), known)

    def __call__(self, outputs: Tensor, targets: Tensor, images: Any) -> Tensor:
        """As in `Loss`; outputs are logits (n, F), at the prevalence of training."""
        shift = 0.0 if self.weights is None else self.weights.log()
        y, pos = targets.clamp(min=0), self.weights
        lost = F.binary_cross_entropy_with_logits(outputs + shift, y, pos_weight=pos, reduction="none")
        return (lost * (targets != UNKNOWN)).sum() / (images * self.known)


def beta_nll(outputs: Tensor, targets: Tensor, images: Any) -> Tensor:
    """Gaussian negative log likelihood of a standardised number whose scale the network predicts too, times that
    scale without its gradient: beta-NLL with beta 1/2 (Seitzer et al., ICLR 2022, arXiv 2203.09168).

    As in `Loss`; outputs are the number and the log of its scale, (n, 2). The plain likelihood learns hard images
    slowly. Do not compare this loss with the log score of validation.
    """
    location, log_scale = outputs[:, 0], outputs[:, 1].clamp(LEAST_SCALE, MOST_SCALE)
    squared = 0.5 * ((targets - location) * (-log_scale).exp()) ** 2
    return ((squared + log_scale) * log_scale.detach().exp()).sum() / images


@torch.no_grad()
def start_findings(model: ViT, targets: Tensor, config: Config) -> None:
    """Start the head's bias at the log odds of each finding in the known labels (S, F), so that training need not begin
    with learning that most are absent (Lin et al. 2017, arXiv 1708.02002, section 3.3)."""
    positives, negatives = (targets == 1).sum(dim=0), (targets == 0).sum(dim=0)
    model.head.bias.copy_(((positives + 0.5) / (negatives + 0.5)).log())


def class_weights(labels: np.ndarray, classes: int, device: torch.device) -> Tensor:
    """(K,) float32, mean 1 over the images: inverse class frequency; a class without images counts as one with one."""
    counts = np.maximum(np.bincount(labels, minlength=classes), 1)
    return torch.tensor(len(labels) / (classes * counts), dtype=torch.float32, device=device)


@torch.no_grad()
def start_balanced(model: ViT, labels: Tensor, config: Config) -> None:
    """With any balance, start the head's bias at the log of the class frequencies.

    With plain cross-entropy this is logit adjustment with tau 1 (Menon et al. 2021, equation 10): the same losses and
    gradients as for logits that start even and get the log frequencies added in the loss. With class weights or a
    balanced sampler the shifted logits start even.
    """
    if config.train.balance != "none":
        bias = model.head.bias
        bias.copy_(-class_weights(labels.numpy(), len(bias), bias.device).log())


# --- how each kind of label is learned


@dataclass(frozen=True)
class Learning:
    """How a kind of label is learned.

    `answers` turns the network's output (B, ...) into logits (B, K) that an attention map can explain, in the order of
    `Predictions.answers`. `chances` turns these into (B, K) in 0..1, which the test of a map follows while patches
    are taken away.
    """

    loss: Callable[[Images, int, Config, torch.device], Loss]  # of a configuration, as `CrossEntropy.of`
    start: Callable[[ViT, Tensor, Config], None]  # sets the bias of the head, from the targets (S, ...) of training
    balances: tuple[str, ...] = ("none",)  # values of `train.balance` that can be used
    answers: Callable[[Tensor], Tensor] = lambda output: output
    chances: Callable[[Tensor], Tensor] = lambda logits: logits.softmax(dim=1)


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
    """The objective of a configuration, for the training images and a network with this many `outputs`."""
    loss = LEARNING[images.target.kind].loss(images, outputs, config, device)
    return Objective(images.preprocessing, mixup_and_cutmix(config, outputs), loss, precision)


LEARNING: dict[str, Learning] = {
    "classes": Learning(
        CrossEntropy.of,
        start_balanced,
        balances=("none", "adjust", "loss", "sampler"),
    ),
    "findings": Learning(
        BinaryCrossEntropy.of,
        start_findings,
        balances=("none", "loss"),
        chances=torch.sigmoid,
    ),
    "number": Learning(
        lambda *_: beta_nll,
        lambda *_: None,
        answers=lambda output: output[:, :1] * output.new_tensor([-1.0, 1.0]),
    ),
}
LEARNING["grades"] = LEARNING["classes"]
