"""The loss of a batch: cross-entropy with mixing, label smoothing and balanced classes.

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
from vitmed.core.hardware import Precision
from vitmed.core.pretrain_config import PretrainConfig
from vitmed.core.ranks import ALONE, Ranks, Rows
from vitmed.data.loading import Images
from vitmed.models.vit import ViT

LossOf = Callable[[Tensor, Tensor], Callable[[Rows], Tensor]]
"""Images (B, S, S, C) uint8 and labels (B,) on the device -> rows -> their share of the mean loss of the batch, ()."""


def classification_loss(
    model: nn.Module, images: Images, classes: int, config: Config, precision: Precision, ranks: Ranks = ALONE
) -> LossOf:
    """The mean cross-entropy with mixup, cutmix, label smoothing and class weights as configured.

    Args:
        images: of training; the class weights follow from their labels.
        classes: K.
        ranks: each computes its rows of a batch.
    """
    train = config.train
    device = next(model.parameters()).device
    balanced = class_weights(images.labels, classes, device)
    weights = balanced if train.balance == "loss" else None
    shift = balanced.log() if train.balance in ("loss", "sampler") else torch.zeros_like(balanced)
    mix = mixer(config, classes)
    own = rows_of(ranks, images, config)

    def loss_of(batch: Tensor, labels: Tensor) -> Callable[[Rows], Tensor]:
        x, y = mix(images.preprocessing.normalise(batch), labels)  # (B, C, S, S); (B,) int64 or (B, K) float
        first = 0
        if own is not None:  # without the image that was there to be mixed
            x, y, first = x[own.start - own.stop :], y[own.start - own.stop :], own.start
        count = None if weights is None or y.ndim == 2 else ranks.total(weights[y].sum())

        def part(rows: Rows) -> Tensor:
            here = slice(rows.start - first, rows.stop - first)
            with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
                logits = model(x[here]) + shift  # (B, K) float32
                total = F.cross_entropy(logits, y[here], weights, reduction="sum", label_smoothing=train.smoothing)
            return total / (rows.total if count is None else count)

        return part

    return loss_of


def rows_of(ranks: Ranks, images: Images, config: Config | PretrainConfig) -> Rows | None:
    """The rows of every batch that this rank computes; None for one process, which computes all."""
    return ranks.rows(min(config.train.batch_size, len(images))) if ranks.wide else None


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
