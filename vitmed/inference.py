"""Running the network over images: the one path that validation, evaluation and prediction share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from vitmed.errors import CheckpointError, DataError
from vitmed.images import Preprocessing
from vitmed.world import Precision, cores

BATCH = 64
FP32 = Precision("fp32", torch.float32, "the same numbers on every machine")


def read_batches(
    read: Callable[[int], np.ndarray], count: int, batch_size: int = BATCH
) -> Iterator[tuple[list[int], np.ndarray, dict[int, str]]]:
    """Read `count` images in threads, one batch ahead of the consumer; memory does not grow with `count`.

    Yields:
        the indices read, their images (B, S, S, C) uint8 (B may be 0), and index -> problem of the others.
    """

    def one(index: int) -> np.ndarray | str:
        try:
            return read(index)
        except DataError as error:
            return error.line

    def gather(part: range, results: Iterable[np.ndarray | str]) -> tuple[list[int], np.ndarray, dict[int, str]]:
        found = list(zip(part, results, strict=True))
        good = [(index, image) for index, image in found if not isinstance(image, str)]
        bad = {index: problem for index, problem in found if isinstance(problem, str)}
        images = np.stack([image for _, image in good]) if good else np.empty((0, 0, 0, 0), np.uint8)
        return [index for index, _ in good], images, bad

    with ThreadPoolExecutor(cores()) as pool:
        under_way: deque[tuple[range, Iterable[np.ndarray | str]]] = deque()
        for start in range(0, count, batch_size):
            part = range(start, min(start + batch_size, count))
            under_way.append((part, pool.map(one, part)))
            if len(under_way) == 2:
                yield gather(*under_way.popleft())
        if under_way:
            yield gather(*under_way.popleft())


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
        forward: what to run instead of the whole model, such as its `features`.

    Returns:
        the indices that were read, their logits (S, K) float32, and index -> problem of the unreadable.
    """
    model.eval()
    indices: list[int] = []
    logits: list[np.ndarray] = []
    problems: dict[int, str] = {}
    if count == 0:
        return indices, np.empty((0, 0), np.float32), problems
    for good, images, bad in read_batches(read, count):
        problems.update(bad)
        indices += good
        if good:
            logits.append(_forward(forward or model, preprocessing, images, device, precision))
        if progress is not None:
            progress(len(indices) + len(problems), count)
    return indices, np.concatenate(logits) if logits else np.empty((0, 0), np.float32), problems


def check_finite(logits: np.ndarray, source: object) -> None:
    """Raises CheckpointError, naming `source`, where a logit is NaN or infinite: no class must be read from it."""
    if not np.isfinite(logits).all():
        raise CheckpointError(f"{source}: gives numbers that are not finite", "use another checkpoint of the run")


@torch.inference_mode()
def _forward(
    model: Callable[[torch.Tensor], torch.Tensor],
    preprocessing: Preprocessing,
    images: np.ndarray,
    device: torch.device,
    precision: Precision,
) -> np.ndarray:
    x = preprocessing.normalise(torch.from_numpy(images).to(device))  # (B, C, S, S)
    with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
        logits = model(x)  # (B, K)
    return logits.float().cpu().numpy()
