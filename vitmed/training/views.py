"""Pretraining on pairs of views: the loss of VICReg for `loop.fit`, and on validation images.

A batch has both views of an image side by side in its channels, (B, S, S, 2C) uint8, as `TrainImages` makes them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitmed.core.hardware import Precision
from vitmed.data.loading import Images, TrainImages
from vitmed.data.thread_batches import batched
from vitmed.training.losses import LossOf

VIEWS = 2  # of an image
AT_ONCE = 128  # images of validation
EVERY_EPOCH = 0  # the epoch whose random views validation always has


def views_loss(model: nn.Module, images: Images, precision: Precision) -> LossOf:
    """The loss of pairs of views of `images`; a batch of single images is taken as pairs of copies, to be timed."""

    def loss_of(batch: Tensor, _: Tensor) -> Callable[[slice], Tensor]:
        views = [images.preprocessing.normalise(view) for view in batch.split(images.preprocessing.channels, dim=3)]

        def part(rows: slice) -> Tensor:
            with torch.autocast(batch.device.type, precision.dtype, enabled=precision.mixed):
                return model(views[0][rows], views[-1][rows]) * (len(views[0][rows]) / len(batch))

        return part

    return loss_of


@torch.inference_mode()
def validation_loss(model: nn.Module, views: TrainImages, device: torch.device, precision: Precision) -> float:
    """The mean loss of pairs of views, always the same. Raises DataError for a file that can no longer be read."""
    model.eval()
    loss_of, total = views_loss(model, views.images, precision), 0.0
    for indices in batched(range(len(views.images)), AT_ONCE):
        batch = torch.stack([views[(EVERY_EPOCH, index)][0] for index in indices]).to(device)
        batch = views.finish(batch, EVERY_EPOCH, torch.tensor(indices))
        total += float(loss_of(batch, batch)(slice(None))) * len(batch)
    return total / len(views.images)
