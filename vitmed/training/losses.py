"""The loss of a batch: cross-entropy with mixing, label smoothing and class weights."""

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
    weights = class_weights(images.labels, classes, device) if train.balance == "loss" else None
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
                total = F.cross_entropy(
                    model(x[here]), y[here], weights, reduction="sum", label_smoothing=train.smoothing
                )
            return total / (rows.total if count is None else count)

        return part

    return loss_of


def rows_of(ranks: Ranks, images: Images, config: Config | PretrainConfig) -> Rows | None:
    """The rows of every batch that this rank computes; None for one process, which computes all."""
    return ranks.rows(min(config.train.batch_size, len(images))) if ranks.wide else None


def class_weights(labels: np.ndarray, classes: int, device: torch.device) -> Tensor:
    """(K,) float32, mean 1 over the images: inverse class frequency."""
    counts = np.bincount(labels, minlength=classes)
    return torch.tensor(len(labels) / (classes * counts), dtype=torch.float32, device=device)


def mixer(config: Config, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """torchvision's mixup, cutmix, or one of both at random; without either, batches stay as they are."""
    mixup, cutmix = config.augment.mixup, config.augment.cutmix
    if not mixup and not cutmix:
        return lambda x, y: (x, y)
    from torchvision.transforms import v2

    kinds = [(v2.MixUp, mixup), (v2.CutMix, cutmix)]
    return v2.RandomChoice([kind(alpha=alpha, num_classes=classes) for kind, alpha in kinds if alpha])
