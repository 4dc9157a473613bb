"""Run the network over images. Validation, evaluation and prediction all do it here.

The last digits of a logit depend on the shape of the batch, because another shape is computed by other kernels. Within
one shape they depend neither on the place of an image in the batch nor on the other images (measured on a CPU, fp32).
Every batch of a model therefore has the same shape on one machine, and the last one is filled up: an image gets the
same logits, to the bit, alone and among any others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from vitmed.core.errors import CheckpointError, DataError
from vitmed.core.hardware import FULL_FP32, Precision
from vitmed.data.loading import Images
from vitmed.data.thread_batches import read_batches
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.vit import ViT

MOST = 64  # images in a batch
TOKENS = 256  # in a batch on a CPU, at least; from two threads on half as many for each
FP32 = Precision("fp32", torch.float32, "the same numbers on every machine")


def batch_size(tokens: int, device: torch.device) -> int:
    """Images in every batch: on a CPU as few as keep its threads busy, since one image costs as much as a batch.

    Milliseconds of one core per image, in batches of 1, 4 and 16: ViT-Tiny at 224 px 25, 23 and 23; ViT-Base at 224 px
    273, 240 and 221; ViT-Tiny at 28 px with patches of 4 px 8.9, 5.8 and 5.0.

    Args:
        tokens: N of the network.
    """
    if device.type != "cpu":
        return MOST
    return min(MOST, max(1, TOKENS * max(2, torch.get_num_threads()) // 2 // tokens))


@FULL_FP32
@torch.inference_mode()
def predict_logits(
    model: ViT,
    preprocessing: Preprocessing,
    read: Callable[[int], np.ndarray],
    count: int,
    device: torch.device,
    precision: Precision = FP32,
    progress: Callable[[int, int], None] | None = None,
    forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[list[int], np.ndarray, dict[int, str]]:
    """Logits of `count` images.

    Args:
        read: index -> (S, S, C) uint8; may raise DataError.
        forward: runs instead of the whole model, such as its `features`; a row must not depend on the others.

    Returns:
        the indices of readable images, their logits (S, K) float32, and index -> problem for the others.
    """
    model.eval()
    size = batch_size(model.pos_embed.shape[1] + model.registers, device)
    indices: list[int] = []
    logits: list[np.ndarray] = []
    problems: dict[int, str] = {}
    for good, images, bad in read_batches(read, count):
        problems.update(bad)
        indices += good
        for start in range(0, len(good), size):
            part = torch.from_numpy(images[start : start + size])
            batch = torch.zeros(size, *part.shape[1:], dtype=torch.uint8)  # (B, S, S, C)
            batch[: len(part)] = part
            x = preprocessing.normalise(batch.to(device))  # (B, C, S, S)
            with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
                found = (forward or model)(x)  # (B, K)
            logits.append(found[: len(part)].float().cpu().numpy())
        if progress is not None:
            progress(len(indices) + len(problems), count)
    return indices, np.concatenate(logits) if logits else np.empty((0, 0), np.float32), problems


def predict_all(
    model: ViT,
    images: Images,
    device: torch.device,
    precision: Precision = FP32,
    progress: Callable[[int, int], None] | None = None,
    forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
    rows: Sequence[int] | None = None,
) -> np.ndarray:
    """(S, K) float32: as `predict_logits`, for images of a run that must be readable, all or those of `rows`."""
    rows = range(len(images)) if rows is None else rows
    _, found, problems = predict_logits(
        model, images.preprocessing, lambda i: images.read(rows[i]), len(rows), device, precision, progress, forward
    )
    check_readable(problems)
    return found


def check_readable(problems: dict[int, str]) -> None:
    """Raises DataError for images that could be read when the run began and no longer can."""
    if problems:
        raise DataError("\n".join(problems.values()), "restore these files, or start a new run")


def check_finite(logits: np.ndarray, source: object) -> None:
    """Raise CheckpointError, which names `source`, if a logit is NaN or infinite."""
    if not np.isfinite(logits).all():
        raise CheckpointError(f"{source}: its logits are not finite", "use another checkpoint of the run")
