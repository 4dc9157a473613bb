"""From samples to batches.

Every random draw is a pure function of (seed, epoch, index), so it does not depend on the number of workers or on where
an earlier run was interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from vitmed.core.base_models import CLASSES, Target
from vitmed.core.errors import DataError
from vitmed.core.process import cores
from vitmed.core.text import lines_of
from vitmed.data.image_cache import Squares
from vitmed.data.samples import Sample, Splits
from vitmed.imaging.augmentation import Augmenter
from vitmed.imaging.batch_augmentation import BatchAugmenter
from vitmed.imaging.preprocessing import Preprocessing

Key = tuple[int, int]  # (epoch, index of the sample)
ENOUGH_CORES = 8  # for one GPU, to augment images for it


def seed_of(*parts: int) -> int:
    """A 63-bit seed that is a pure, well-mixed function of whole numbers (NumPy's SeedSequence)."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def targets_of(samples: Sequence[Sample], target: Target) -> torch.Tensor:
    """What the loss compares outputs with.

    Classes and grades: (S,) int64, the labels. Findings: (S, F) float32, 1, 0 or `UNKNOWN`. A number: (S,) float32,
    standardised.
    """
    if target.kind == "findings":
        return torch.tensor([sample.targets for sample in samples], dtype=torch.float32)
    if target.kind == "number":
        numbers = torch.tensor([sample.targets[0] for sample in samples], dtype=torch.float64)
        return ((numbers - target.centre) / target.spread).float()
    return torch.tensor([sample.label for sample in samples], dtype=torch.int64)


class Images:
    """The images of one split, decoded and square; `cache` contains all of them, or is None.

    Args:
        preprocessing: makes each file (S, S, C) uint8.
        target: what the labels are.

    Attributes:
        labels: (S,) int64, the class, grade or stratum of each.
        targets: as `targets_of`.
    """

    def __init__(self, root: Path, samples: Sequence[Sample], preprocessing: Preprocessing, target: Target = CLASSES):
        self.root = root
        self.samples = samples
        self.preprocessing = preprocessing
        self.target = target
        self.labels = np.array([sample.label for sample in samples], dtype=np.int64)
        self.targets = targets_of(samples, target)
        self.cache: np.ndarray | Squares | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int) -> np.ndarray:
        """(S, S, C) uint8. Raises DataError with the file's name."""
        if self.cache is not None:
            try:
                return self.cache[index]
            except (OSError, ValueError):  # a loader process that is not forked opens the file again: it may be gone
                self.cache = None
        return self.preprocessing.read(self.root / self.samples[index].path)

    @property
    def in_memory(self) -> bool:
        """Whether reading needs no disk."""
        return isinstance(self.cache, np.ndarray)

    @property
    def megabytes(self) -> float:
        """Size of all images in memory."""
        return len(self) * self.preprocessing.image_size**2 * self.preprocessing.channels / 2**20


def images_of(splits: Splits, preprocessing: Preprocessing) -> dict[str, Images]:
    """The images of every split."""
    return {name: Images(splits.root, part, preprocessing, splits.target) for name, part in splits.samples.items()}


class UnusableFiles(DataError):
    """Files that cannot be used; names the first ten of them.

    Args:
        bad: index of each file among all images -> why it cannot be used.
        total: how many images there are.
    """

    def __init__(self, bad: Mapping[int, DataError], total: int):
        self.bad, self.total = bad, total
        super().__init__(
            self._named([error.line for error in bad.values()]),
            "repair or remove these files, or leave them out with --on-bad-file skip; vitmed never changes your files",
        )

    def causes(self) -> str:
        """The problem without advice for each file, which is of no use where an image may not be left out."""
        return self._named([error.problem for error in self.bad.values()])

    def _named(self, lines: Sequence[str]) -> str:
        count = f"{len(lines):,} of {self.total:,} images cannot be used:\n" if len(lines) > 1 else ""
        return count + lines_of(sorted(lines), 10)

    def __reduce__(self) -> tuple[Any, ...]:  # to another process
        return DataError, (self.problem, self.fix)


class TrainImages(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """(epoch, index) -> image (S, S, C) uint8 augmented for that epoch, its target, index.

    With a `BatchAugmenter`, the images come as they are, and `finish` augments them.
    """

    def __init__(self, images: Images, augmenter: Augmenter | BatchAugmenter, seed: int):
        self.images, self.augmenter, self.seed = images, augmenter, seed

    def __getitem__(self, key: Key) -> tuple[torch.Tensor, torch.Tensor, int]:
        epoch, index = key
        image = self.images.read(index)
        if isinstance(self.augmenter, Augmenter):
            image = self.augmenter(image, (self.seed, epoch, index))
        return torch.from_numpy(np.array(image)), self.images.targets[index], index

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        """The items of a batch, or one DataError: raised in a loader process, it would arrive as a traceback."""
        items, problems = [], []
        for key in keys:
            try:
                items.append(self[key])
            except DataError as error:
                problems.append(error.problem)  # its fix may be to remove the file
        return [DataError("\n".join(problems), "restore these files")] if problems else items

    def finish(self, images: torch.Tensor, epoch: int, indices: torch.Tensor) -> torch.Tensor:
        """Do what is left for the device of the training: augment a batch (B, S, S, C) uint8 of these images there."""
        if isinstance(self.augmenter, Augmenter):
            return images
        return self.augmenter(images, seed_of(self.seed, epoch), indices.to(images.device, non_blocking=True))


class EpochBatches(Sampler[list[Key]]):
    """The batches of one epoch, in an order that is a pure function of (seed, epoch).

    Set `epoch` and `start` (batches already done, for a resumed run) before each pass. An incomplete last batch is left
    out if there is a complete one; other epochs draw its images.

    Args:
        labels: (S,) class indices.
        balanced: draw with replacement, every class equally often.
        share: of every batch, for this rank.
    """

    def __init__(self, labels: np.ndarray, batch_size: int, seed: int, balanced: bool, share: slice = slice(None)):
        self.labels, self.batch_size, self.seed, self.balanced = labels, batch_size, seed, balanced
        self.epoch, self.start, self.share = 0, 0, share

    @property
    def size(self) -> int:
        """Images of a batch, on all ranks."""
        return min(self.batch_size, len(self.labels))

    @property
    def batches(self) -> int:
        """Batches of a whole epoch."""
        return max(1, len(self.labels) // self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """Indices in the order of an epoch."""
        rng = np.random.default_rng([self.seed, epoch])
        if not self.balanced:
            return rng.permutation(len(self.labels))
        weights = 1 / np.bincount(self.labels)[self.labels]
        return rng.choice(len(self.labels), size=len(self.labels), p=weights / weights.sum())

    def __len__(self) -> int:
        return self.batches - self.start

    def __iter__(self) -> Iterator[list[Key]]:
        order = self.order(self.epoch)
        for batch in range(self.start, self.batches):
            part = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield [(self.epoch, int(index)) for index in part[self.share]]


def train_loader(dataset: TrainImages, batches: EpochBatches, workers: int, pin: bool) -> DataLoader:
    """Batches of images (B, S, S, C) uint8, their `Images.targets`, indices (B,) int64; or a DataError for a batch."""
    # fork shares the decoded images between workers without a copy; the children never touch a GPU.
    context = "fork" if workers and sys.platform == "linux" else None
    return _Loader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=_collate,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        pin_memory=pin,
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # its own, so that the loader draws nothing from the global one
        multiprocessing_context=context,
    )


class _Loader(DataLoader):
    """Its processes start with signals blocked: one to the whole group would end them before `_start_worker`."""

    def __iter__(self) -> Any:
        if not hasattr(signal, "pthread_sigmask"):
            return super().__iter__()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
        try:
            return super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pick_workers(asked: int | None, augments: bool, in_memory: bool, device: torch.device, ranks: int = 1) -> int:
    """Loader processes: as asked, else none if there is nothing to do, fewer if the CPU also trains.

    Args:
        asked: by the user; augments: whether images change at random; in_memory: whether reading needs no disk.
        device: of the training.
        ranks: how many processes of the training share this machine.
    """
    if asked is not None:
        return asked
    if in_memory and not augments:
        return 0
    own = cores() // ranks
    return max(1, own // 2) if device.type == "cpu" else max(1, min(16, own - 1))  # one core launches the kernels


def pick_place(asked: str, device: torch.device, ranks: int = 1) -> str:
    """Where images are augmented, "cpu" or "device": as asked, else on a GPU that few cores feed.

    Args:
        asked: `LoopConfig.augment_on`; device, ranks: as in `pick_workers`.
    """
    if asked != "auto":
        return asked
    return "device" if device.type == "cuda" and cores() // ranks < ENOUGH_CORES else "cpu"


def _collate(items: list[Any]) -> Any:
    return items[0] if isinstance(items[0], DataError) else default_collate(items)


def _start_worker(_: int) -> None:
    import cv2

    for name in ("SIGINT", "SIGHUP"):  # only the main process answers Ctrl-C and a closed terminal
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=_end_if_main_asks, daemon=True).start()
    elif hasattr(signal, "pthread_sigmask"):  # macOS
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    cv2.setNumThreads(0)  # inherited by fork; one thread per core in each worker would compete


def _end_if_main_asks() -> None:
    """End this loader process at a SIGTERM of the main process; one to all processes of a job is for that process."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
