"""Run the network over images. Validation, evaluation and prediction all do it here.

The last digits of a logit depend on the shape of the batch, because another shape is computed by other kernels. Within
one shape they depend neither on the place of an image in the batch nor on the other images (measured on a CPU, in fp32
and bf16). Every batch of a model therefore has the same shape on one machine and in one precision, and the last one is
filled up: an image gets the same logits, to the bit, alone and among any others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from vitmed.data.loading import Images
from vitmed.data.thread_batches import check_readable, read_batches
from vitmed.imaging.exact_views import views_of
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.hardware import FULL_FP32, Precision, seconds_of
from vitmed.models.vit import ViT

MOST = 64  # images in a batch
WORK = 100_000  # tokens x width in a batch on a CPU, at least; from two threads on half as many for each
WORK_REDUCED = 400_000  # the same for 16-bit floats
ROUNDS = 5  # of a comparison of speed
FP32 = Precision("fp32", torch.float32, "the same numbers on every machine")


def batch_size(work: int, device: torch.device, precision: Precision = FP32) -> int:
    """Images in every batch, a power of two: on a CPU as few as keep its threads busy, since one costs as much as all.

    Images/s of two cores with AMX in batches of 1, 2, 4, 8, 16 and 32: ViT-Tiny at 224 px 69, 85, 95, 100, 98 and 97,
    in bf16 80, 115, 175, 227, 256 and 265. A ViT of width 64 at 64 px in batches of 4, 16 and 64: 1,670, 2,720 and
    3,380, in bf16 1,430, 2,820 and 4,180.

    Args:
        work: tokens x width of an image, N x D.
    """
    if device.type != "cpu":
        return MOST
    wanted = (WORK_REDUCED if precision.mixed else WORK) * max(2, torch.get_num_threads()) / 2 / work
    return min(MOST, 1 << max(0, math.ceil(math.log2(wanted))))


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
    size: int | None = None,
) -> tuple[list[int], np.ndarray, dict[int, str]]:
    """Logits of `count` images.

    Args:
        read: index -> (S, S, C) uint8; may raise DataError.
        forward: runs instead of the whole model, such as its `features`; a row must not depend on the others.
        size: images in every batch, 1 to `MOST`; None: `batch_size`.

    Returns:
        the indices of readable images, their logits (S, K) float32, and index -> problem for the others.
    """
    model.eval()
    size = size or batch_size(work_of(model), device, precision)
    indices: list[int] = []
    logits: list[np.ndarray] = []
    problems: dict[int, str] = {}
    # Around all batches, so that the weights are converted once.
    with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
        for good, images, bad in read_batches(read, count, MOST // size * size):  # whole batches
            problems.update(bad)
            indices += good
            for start in range(0, len(good), size):
                part = torch.from_numpy(images[start : start + size])
                batch = torch.zeros(size, *part.shape[1:], dtype=torch.uint8)  # (B, S, S, C)
                batch[: len(part)] = part
                x = preprocessing.normalise(batch.to(device))  # (B, C, S, S)
                found = (forward or model)(x)  # (B, K)
                logits.append(found[: len(part)].float().cpu().numpy())
            if progress is not None:
                progress(len(indices) + len(problems), count)
    return indices, np.concatenate(logits) if logits else np.empty((0, 0), np.float32), problems


def work_of(model: ViT) -> int:
    """N x D: the tokens of an image, which are class token, registers and patches, times their width."""
    return model.tokens * model.width


def mean_over_views(model: ViT, x: torch.Tensor, views: str) -> torch.Tensor:
    """(B, D) float32: the mean of the features of images (B, C, S, S) over the test-time views `VIEWS[views]`.

    The head is linear, so the logits of the mean are the mean of the logits.
    """
    found = [model.features(view).float() for view in views_of(x, views)]
    return sum(found[1:], found[0]) / len(found)  # in this order, as a reduction's order depends on the shape


def logits_of(model: ViT, features: torch.Tensor) -> torch.Tensor:
    """Logits (B, K) float32 of features (B, D), also within autocast: rounded logits would tie."""
    with torch.autocast(features.device.type, enabled=False):
        return model.head(features.float())


@torch.inference_mode()
def speedup(model: ViT, preprocessing: Preprocessing, device: torch.device, precision: Precision) -> float:
    """How many times as fast as in fp32 the model runs on a device: the fastest of `ROUNDS` batches each.

    Args:
        preprocessing: gives the size of an image.
        precision: the one that is compared with fp32.
    """
    model.eval()
    times: dict[str, list[float]] = {FP32.name: [], precision.name: []}
    with torch.autocast(device.type, precision.dtype):  # keeps the converted weights from round to round
        for _ in range(1 + ROUNDS):  # in turn, so that both have a share of the moments without other work
            for each in (FP32, precision):
                side, size = preprocessing.image_size, batch_size(work_of(model), device, each)
                x = torch.zeros(size, preprocessing.channels, side, side, device=device)
                with torch.autocast(device.type, precision.dtype, enabled=each.mixed):
                    times[each.name].append(seconds_of(partial(model, x), device) / size)
    return min(times[FP32.name][1:]) / min(times[precision.name][1:])  # the first round warms up


def predict_all(
    model: ViT,
    images: Images,
    precision: Precision = FP32,
    progress: Callable[[int, int], None] | None = None,
    forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
    rows: Sequence[int] | None = None,
) -> np.ndarray:
    """(S, K) float32: as `predict_logits`, for images of a run that must be readable, all or those of `rows`."""
    rows, device = range(len(images)) if rows is None else rows, next(model.parameters()).device
    _, found, problems = predict_logits(
        model, images.preprocessing, lambda i: images.read(rows[i]), len(rows), device, precision, progress, forward
    )
    check_readable(problems)
    return found
