"""From samples to batches; and the reading of every file of a run once before the first batch.

`read_splits` decodes each file to its record and its square, and decides where the squares are kept. Every random draw
is a pure function of (seed, epoch, index), so it does not depend on the number of workers or on where an earlier run
was interrupted.
"""

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, default_convert

from vitmed.core.base_models import CLASSES, Target
from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError
from vitmed.core.messages import bar, say, show, warn
from vitmed.core.process import cores
from vitmed.core.text import counted, lines_of
from vitmed.data.image_cache import ImageCache, Scan, Squares, decoded_text, pixel_folder
from vitmed.data.samples import Sample, Splits, labels_in
from vitmed.imaging.augmentation import Augmenter
from vitmed.imaging.file_record import FileRecord
from vitmed.imaging.preprocessing import Preprocessing

Key = tuple[int, int]  # (epoch, index of the sample + S for each time that it was drawn in it before)
MEMORY_MB = 2048  # for decoded images in memory
QUICK = 10.0  # s; images that all decode within it are decoded in every run, and no file is written for them
TIMED = 16  # files that are decoded first, to estimate the time for all


def seed_of(*parts: int) -> int:
    """A 63-bit seed that is a pure, well-mixed function of whole numbers (NumPy's SeedSequence)."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Images:
    """The images of one split; `read` gives each as (S, S, C) uint8, from `cache` if that has them. `labels` (S,) int64
    are the class, grade or stratum of each. `targets` are what the loss compares outputs with: classes and grades (S,)
    int64, findings (S, F) float32, 1, 0 or `UNKNOWN`, a number (S,) float32, standardised."""

    def __init__(self, root: Path, samples: Sequence[Sample], preprocessing: Preprocessing, target: Target = CLASSES):
        self.root, self.samples, self.preprocessing, self.target = root, samples, preprocessing, target
        self.labels = labels_in(samples)
        self.megabytes = len(samples) * preprocessing.image_size**2 * preprocessing.channels / 2**20
        if target.kind == "findings":
            self.targets = torch.tensor([sample.targets for sample in samples], dtype=torch.float32)
        elif target.kind == "number":
            numbers = torch.tensor([sample.targets[0] for sample in samples], dtype=torch.float64)
            self.targets = ((numbers - target.centre) / target.spread).float()
        else:
            self.targets = torch.tensor([sample.label for sample in samples], dtype=torch.int64)
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
        return isinstance(self.cache, np.ndarray)


def images_of(splits: Splits, preprocessing: Preprocessing) -> dict[str, Images]:
    return {name: Images(splits.root, part, preprocessing, splits.target) for name, part in splits.samples.items()}


class UnusableFiles(DataError):
    """Files that cannot be used: index among all images -> why; names the first ten of them.

    `causes` has the problem of each file without the advice, which is of no use if no image may be left out.
    """

    def __init__(self, bad: Mapping[int, DataError], total: int):
        self.bad, self.total = bad, total
        count = f"{len(bad):,} of {total:,} images cannot be used:\n" if len(bad) > 1 else ""
        self.causes = count + lines_of(sorted(error.problem for error in bad.values()), 10)
        super().__init__(
            count + lines_of(sorted(error.line for error in bad.values()), 10),
            "repair or remove these files, or leave them out with --on-bad-file skip; vitmed never changes your files",
        )

    def __reduce__(self) -> tuple[Any, ...]:  # to another process
        return DataError, (self.problem, self.fix)


class TrainImages(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """(epoch, index) -> image (S, S, C) uint8 augmented for that epoch, its target, index."""

    def __init__(self, images: Images, augmenter: Augmenter, seed: int):
        self.images, self.augmenter, self.seed = images, augmenter, seed

    def __getitem__(self, key: Key) -> tuple[torch.Tensor, torch.Tensor, int]:
        index = key[1] % len(self.images)
        image = self.augmenter(self.images.read(index), (self.seed, *key))
        return torch.from_numpy(np.array(image)), self.images.targets[index], index

    def __getitems__(self, keys: Sequence[Key]) -> Any:
        """A collated batch, or a DataError: raised in a loader process, it would arrive as a traceback."""
        items, problems = [], []
        for key in keys:
            try:
                items.append(self[key])
            except DataError as error:
                problems.append(error.problem)  # its fix may be to remove the file
        return DataError("\n".join(problems), "restore these files") if problems else default_collate(items)


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
        self.size = min(batch_size, len(labels))  # images of a batch, on all ranks
        self.batches = max(1, len(labels) // batch_size)

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
        keys, drawn = list[Key](), Counter[int]()
        for index in self.order(self.epoch).tolist():
            keys.append((self.epoch, index + len(self.labels) * drawn[index]))
            drawn[index] += 1
        for batch in range(self.start, self.batches):
            yield keys[batch * self.batch_size : (batch + 1) * self.batch_size][self.share]


def train_loader(dataset: TrainImages, batches: EpochBatches, workers: int, pin: bool) -> DataLoader:
    """Batches of images (B, S, S, C) uint8, their `Images.targets`, indices (B,) int64; or a DataError for a batch."""
    return _Loader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=default_convert,  # changes nothing: `dataset` gives whole batches
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        pin_memory=pin,
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # its own, so that the loader draws nothing from the global one
        # fork shares the decoded images between workers without a copy; the children never touch a GPU.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
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


def pick_workers(workers: int | None, augments: bool, in_memory: bool, device: torch.device, ranks: int = 1) -> int:
    """The number of loader processes: `workers` if set; none if there is nothing to do (images neither change at random
    nor come from the disk); fewer if the CPU also trains. `ranks` processes of the training share this machine."""
    if workers is not None:
        return workers
    if in_memory and not augments:
        return 0
    share = cores() // ranks
    return max(1, share // 2) if device.type == "cpu" else max(1, min(16, share - 1))  # one core launches the kernels


def _start_worker(_: int) -> None:
    import cv2

    for name in ("SIGINT", "SIGHUP"):  # only the main process answers Ctrl-C and a closed terminal
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)

    def end_if_main_asks() -> None:
        """End this process at a SIGTERM of the main one; one to all processes of a job is for that process."""
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=end_if_main_asks, daemon=True).start()
    elif hasattr(signal, "pthread_sigmask"):  # macOS
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    cv2.setNumThreads(0)  # inherited by fork; one thread per core in each worker would compete


class ReadSplits(NamedTuple):
    """The splits of a run once every file was read, without the files that are skipped."""

    splits: Splits
    images: dict[str, Images]  # by split, as the hashes in the order of the samples
    hashes: dict[str, list[str]]
    records: list[FileRecord]  # of every image, in the order of the splits; empty where none were asked for
    skipped: int = 0  # how many files are left out because they cannot be read


def read_splits(splits: Splits, preprocessing: Preprocessing, data: DataConfig, records: bool = True) -> ReadSplits:
    """Decode every file once, in this run or in an earlier one; keep the squares in memory, in a file, or not at all.

    In memory if train and val fit into `MEMORY_MB` and all files decode within `QUICK` seconds; else in the cache. If
    that cannot be written, the splits that fit are kept in memory. With `data.on_bad_file: skip`, files that cannot be
    used are left out if they are few enough; else raises UnusableFiles.
    """
    images = images_of(splits, preprocessing)
    try:
        return ReadSplits(splits, images, *Reader(images, data, records).run())
    except UnusableFiles as error:
        if data.on_bad_file == "stop":
            raise
        rest = _without(splits, error)  # their squares are not kept yet where a file for them was begun
        read = read_splits(rest, preprocessing, data, records)
        return read._replace(skipped=read.skipped + len(error.bad))


def _without(splits: Splits, error: UnusableFiles) -> Splits:
    """The splits without unusable files. Raises DataError if they are too many."""
    places = [(name, sample) for name, part in splits.samples.items() for sample in part]
    lost, findings = [places[row] for row in error.bad], splits.target.kind == "findings"
    kinds = list[set[int | None]]()  # of each image its class or findings, which no split may lose; None: any
    for _, sample in places:
        present = (k for k, value in enumerate(sample.targets) if value == 1 and findings)
        kinds.append({None, *present} if splits.bins else {sample.label})
    for label in {kind for row in error.bad for kind in kinds[row]}:
        of_class = [name for (name, _), of in zip(places, kinds, strict=True) if label in of]
        of_lost = Counter(places[row][0] for row in error.bad if label in kinds[row])
        count = of_lost.total()
        empty = next((name for name in of_lost if of_lost[name] == of_class.count(name)), None)
        if 2 * count > len(of_class) or empty is not None:
            of = "" if label is None else f" of {'finding' if findings else 'class'} {splits.strata[label]!r}"
            what = f"{count:,} of {counted(len(of_class), 'image')}{of} cannot be used"
            where = f", among them all of {empty}" if empty is not None else ""
            problem = f"{splits.root}: {what}{where}: too many to skip\n{error.problem}"
            raise DataError(problem, "repair or remove these files")
    skipped = {path for _, (path, *_) in lost}
    parts = ", ".join(f"{name} {count:,}" for name, count in Counter(name for name, _ in lost).items())
    warn(
        f"{len(lost):,} of {counted(error.total, 'image')} cannot be used and are left out ({parts}; --on-bad-file "
        f"skip), the first is {next(iter(error.bad.values())).line.removeprefix(f'{splits.root}/')}"
    )
    kept = {name: tuple(s for s in part if s.path not in skipped) for name, part in splits.samples.items()}
    return replace(splits, samples=kept)


class Reader:
    """The files of a run, their scan, and the places for their squares."""

    def __init__(self, images: dict[str, Images], data: DataConfig, records: bool):
        self.images, self.data = images, data
        ends = accumulate(map(len, images.values()))
        self.rows = {name: range(end - len(images[name]), end) for name, end in zip(images, ends, strict=True)}
        self.how = how = next(iter(images.values())).preprocessing
        limit = int(data.cache_gb * 1e9)
        cache = ImageCache(how=how, keep=data.cache, limit=limit, warns=records)  # else `_keep_on_disk` warns
        files = [part.root / sample.path for part in images.values() for sample in part.samples]
        with bar("looking for known images", unit="files") as advance:
            self.scan = Scan(files, cache, how, records, advance)
        self.usable = np.zeros(len(files), dtype=bool)  # its square was made in this run

    def run(self) -> tuple[dict[str, list[str]], list[FileRecord]]:
        """Keep the squares where they belong; hashes by split, and the records."""
        if not self.data.cache or self._fits_memory() or not self._keep_on_disk():
            # The splits that fit in memory; other files are decoded too, unless done before, to check them.
            room = MEMORY_MB if self.data.cache else 0.0
            arrays: dict[str, np.ndarray] = {}
            for name, part in self.images.items():
                if name != "test" and part.megabytes <= room:
                    room -= int(part.megabytes)
                    shape = (len(part), self.how.image_size, self.how.image_size, self.how.channels)
                    arrays[name] = np.empty(shape, np.uint8)
            needed = [i for name, rows in self.rows.items() for i in rows if name in arrays or not self.usable[i]]
            for i, square in self._decode(needed):
                name = next(name for name, rows in self.rows.items() if i in rows)
                if name in arrays:
                    arrays[name][i - self.rows[name].start] = square
            for name, part in self.images.items():
                part.cache = arrays.get(name)
        unknown = [i for i, record in enumerate(self.scan.records) if record is None]
        for _ in self._decode(unknown):  # squares from the pixel cache, without records in the scan cache
            pass
        hashes = {name: self.scan.hashes[rows.start : rows.stop] for name, rows in self.rows.items()}
        return hashes, [record for record in self.scan.records if record is not None]

    def _fits_memory(self) -> bool:
        """Whether memory is enough: squares are missing and, by a sample, decoding them in every run is quick."""
        if sum(part.megabytes for name, part in self.images.items() if name != "test") > MEMORY_MB:
            return False
        squares = self.scan.cache.squares(self.scan.digests)
        rows = list(range(len(self.usable))) if squares is None else squares.missing.tolist()
        seconds: list[float] = []
        for i in rows[:: max(1, len(rows) // TIMED)]:
            start = time.perf_counter()
            self.scan.early[i] = examined = self.scan.examine(i)
            if examined.error is None:
                seconds.append(time.perf_counter() - start)
            if sum(seconds) > QUICK:  # the sample alone is too slow
                return False
        return len(rows) > 0 and (not seconds or float(np.median(seconds)) * len(self.usable) / cores() < QUICK)

    def _decode(self, rows: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Row and (S, S, C) uint8 of these files, in order. At the end, raises DataError for all unusable files."""
        if not rows:
            return
        problems, started = dict[int, DataError](), time.monotonic()
        with bar("reading images") as advance:
            for done, (i, examined) in enumerate(self.scan.decode(rows), 1):
                if isinstance(examined.error, DataError):
                    problems[i] = examined.error
                elif examined.error is not None:
                    raise examined.error
                elif examined.square is not None:
                    self.usable[i] = True
                    if not problems:
                        yield i, examined.square
                if done % 16 == 0 or done == len(rows):
                    advance(done, len(rows))
        if problems:
            raise UnusableFiles(problems, len(self.usable))
        say(f"reading images: {decoded_text(len(rows), time.monotonic() - started)}")

    def _keep_on_disk(self) -> bool:
        """Give every split its part of an entry of the pixel cache, made now if needed; False if it cannot be made."""
        cache, digests = self.scan.cache, self.scan.digests
        try:
            squares = cache.squares(digests)
            if squares is not None and not len(squares.missing):
                say(f"images decoded by an earlier run, from {pixel_folder()}")
            else:
                with cache.alone(digests, lambda: show("another process decodes these images: waiting for it")):
                    squares = cache.squares(digests)  # the other process may have made the squares and the records
                    if self.scan.records:
                        self.scan.records = cache.records(digests)
                    if squares is None or len(squares.missing):
                        squares = cache.add(digests, self._squares(squares))
                        say(f"decoded images are kept in {pixel_folder()}, for this run and later ones (--no-cache)")
        except OSError as error:
            warn(
                f"{pixel_folder()}: decoded images cannot be kept there ({error.strerror or error}); this run does "
                "without (--cache-size GB, VITMED_CACHE=FOLDER, or --no-cache)"
            )
            return False
        for name, rows in self.rows.items():
            self.images[name].cache = Squares(squares.folder, squares.rows[rows.start : rows.stop])
        return True

    def _squares(self, found: Squares | None) -> Iterator[np.ndarray]:
        """Every square, in order: from an entry that contains it, else decoded."""
        made = self._decode(range(len(self.usable)) if found is None else found.missing.tolist())
        for i in range(len(self.usable)):
            yield found[i] if found is not None and found.rows[i] >= 0 else next(made)[1]
        for _ in made:  # to its end, where it raises for unusable files
            pass
