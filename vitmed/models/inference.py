"""Run the network over images. Validation, evaluation and prediction all do it here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from vitmed.core.errors import CheckpointError, DataError
from vitmed.core.hardware import Precision
from vitmed.data.loading import Images
from vitmed.data.thread_batches import read_batches
from vitmed.imaging.preprocessing import Preprocessing

FP32 = Precision("fp32", torch.float32, "the same numbers on every machine")


@torch.inference_mode()
def predict_logits(
    model: nn.Module,
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
        forward: runs instead of the whole model, such as its `features`.

    Returns:
        the indices of readable images, their logits (S, K) float32, and index -> problem for the others.
    """
    model.eval()
    indices: list[int] = []
    logits: list[np.ndarray] = []
    problems: dict[int, str] = {}
    for good, images, bad in read_batches(read, count):
        problems.update(bad)
        indices += good
        if good:
            x = preprocessing.normalise(torch.from_numpy(images).to(device))  # (B, C, S, S)
            with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
                found = (forward or model)(x)  # (B, K)
            logits.append(found.float().cpu().numpy())
        if progress is not None:
            progress(len(indices) + len(problems), count)
    return indices, np.concatenate(logits) if logits else np.empty((0, 0), np.float32), problems


def predict_all(
    model: nn.Module,
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
