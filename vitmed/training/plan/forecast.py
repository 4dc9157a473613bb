"""How long a run takes on this machine: from timed steps of its network, and from a few of its files.

The seconds of a step are kept in the cache folder, as the autotuner keeps its answer, so that the same command has the
same plan again.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from vitmed.core.config import Config
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import make_folder, write_text
from vitmed.core.process import cores
from vitmed.core.run_folder import cache_folder
from vitmed.data.loading import pick_place, pick_workers
from vitmed.data.samples import Splits
from vitmed.imaging.augmentation import Augmenter
from vitmed.imaging.exact_views import VIEWS
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.hardware import busy, machine, pick_precision, seconds_of, seeded
from vitmed.models.vit import ViT
from vitmed.training.environment import versions
from vitmed.training.loop import optimiser_step
from vitmed.training.out_of_memory import is_out_of_memory
from vitmed.training.train_state import new_state

STEPS = 4  # timed, after one untimed step
AT_ONCE = 64  # images of a timed step at most
FILES, MOST_SECONDS = 8, 1.0  # read and augmented for a sample, at most
# Measured on 2 cores of a server (bf16, 2026), for 800 to 27,600 images; s.
STARTING = 9.0  # Python and its libraries, the plan, the autotuner, the contact sheet, a baseline
REPORTING = 25.0  # policy, two evaluations with figures and attention maps; the end of Python
TABLES = 10.0  # the same with --no-report
EACH_IMAGE = 0.0005  # duplicates, baselines, intervals
EACH_EPOCH = 0.1  # checkpoints
FORWARD = 1 / 3  # of a training step
IN_TRAINING = 1.2  # how many times as long a step takes there as alone: loading shares the core and its caches


class Forecast(NamedTuple):
    """Seconds before the first batch, of a pass with its validation, and after the last."""

    before: float
    one_pass: float
    after: float

    def total(self, passes: float) -> float:
        """Seconds of the whole command."""
        return self.before + passes * self.one_pass + self.after

    def passes_in(self, seconds: float) -> float:
        """How many passes a command of so many seconds has time for."""
        return (seconds - self.before - self.after) / self.one_pass


@dataclass
class Forecaster:
    """Forecasts runs on the images of `splits`.

    Attributes:
        processes: that share the training.
        files: seconds to read a file, once measured; 0 without `train.time`.
        steps: key of a network -> seconds of an image in a step.
    """

    splits: Splits
    device: torch.device
    processes: int = 1
    files: float | None = None
    steps: dict[str, float] = field(default_factory=dict)

    def of(self, config: Config) -> Forecast:
        """The forecast for a complete configuration."""
        train, val = (len(self.splits.samples[name]) for name in ("train", "val"))
        every = sum(map(len, self.splits.samples.values()))
        if self.files is None:  # without a limit nothing depends on it, and every file is decoded once
            self.files = 0.0 if config.train.time is None else reading_seconds(self.splits, config)
        rows = train // config.train.batch_size * config.train.batch_size or train
        one_pass = rows * self.image(config) + val * FORWARD * self.step(config) + EACH_EPOCH
        before = STARTING + every * (self.files / cores() + EACH_IMAGE)
        return Forecast(before, one_pass, self.after(config))

    def after(self, config: Config) -> float:
        """Seconds from the last step of training to the end of the command."""
        count = {name: len(part) for name, part in self.splits.samples.items()}
        forward = len(VIEWS[config.augment.views]) * (count["train"] + 4 * count["val"] + count["test"])
        fixed = REPORTING if config.evaluate.report else TABLES
        return fixed + EACH_IMAGE * (count["val"] + count["test"]) + forward * FORWARD * self.step(config)

    def step(self, config: Config) -> float:
        """Seconds that an image takes in a step of training."""
        key = json.dumps([*_key(config), config.train.precision])
        if key not in self.steps:
            self.steps[key] = step_seconds(config, self.device, len(self.splits.classes)) / self.processes
        return self.steps[key]

    def image(self, config: Config) -> float:
        """Seconds that an image takes in training: of its step or of loading it, whichever is slower."""
        train, own, step = config.train, cores() / self.processes, IN_TRAINING * self.step(config)
        if pick_place(train.augment_on, self.device, self.processes) == "device":
            return step
        augment = augmenting_seconds(config)
        workers = pick_workers(train.workers, augment > 0, True, self.device, self.processes)
        if not workers:
            return step + augment
        work = step * torch.get_num_threads() + augment if self.device.type == "cpu" else augment  # of all cores
        return max(step, augment / workers, work / own)


def step_seconds(config: Config, device: torch.device, classes: int) -> float:
    """Seconds per image of a step on random images, from the cache or measured; kept where nothing else is running.

    Infinity where the memory is too small for a step.
    """
    file = measured_file("speed", [*_key(config), pick_precision(config.train.precision, device).name], device)
    with suppress(OSError, ValueError):
        seconds = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(seconds, float) and seconds > 0:
            return seconds
    try:
        seconds = _time_steps(config, device, classes)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return math.inf
    if device.type != "cpu" or busy() is None:
        keep_measured(file, json.dumps(seconds))
    return seconds


def _key(config: Config) -> list[Any]:
    """What decides the seconds of a step, beside the machine and the precision."""
    settings = {"batch_size", "micro_batch", "grad_checkpointing"}
    return [config.model.model_dump(exclude={"weights", "licence"}), config.train.model_dump(include=settings)]


def measured_file(kind: str, what: list[Any], device: torch.device) -> Path:
    """The file in the cache for what was measured of these settings on this machine with these versions."""
    text = json.dumps([machine(device), versions(), *what], sort_keys=True)
    return cache_folder() / kind / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def keep_measured(file: Path, text: str) -> None:
    """Keep it, unless the cache cannot be written."""
    with suppress(OSError, UsageError):
        make_folder(file.parent)
        write_text(file, text + "\n")


def _time_steps(config: Config, device: torch.device, classes: int) -> float:
    train, side = config.train, config.model.image_size
    count = min(train.batch_size, train.micro_batch if isinstance(train.micro_batch, int) else AT_ONCE)
    precision, preprocessing = pick_precision(train.precision, device), Preprocessing.of(config)
    with seeded(train.seed, device):
        network = ViT(config.model, classes).to(device).train()
        state = new_state(network, config, 1, device, precision)
        x = torch.randint(0, 256, (count, side, side, config.model.channels), dtype=torch.uint8, device=device)
        y = torch.arange(count, device=device) % classes

        def step() -> None:
            with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
                loss = F.cross_entropy(network(preprocessing.normalise(x)), y)
            state.scaler.scale(loss).backward()
            optimiser_step(state, 1e-6, train.clip_norm)

        seconds = [seconds_of(step, device) for _ in range(1 + STEPS)]
    return statistics.median(seconds[1:]) / count


def reading_seconds(splits: Splits, config: Config) -> float:
    """The median seconds that a core takes to decode and resize a training image; 0 if none can be read."""
    how, samples, seconds = Preprocessing.of(config), splits.samples["train"], list[float]()
    for sample in samples[:: max(1, len(samples) // FILES)]:
        start = time.perf_counter()
        with suppress(DataError):  # reported when all files are read
            how.read(Path(splits.root / sample.path))
            seconds.append(time.perf_counter() - start)
        if sum(seconds) > MOST_SECONDS:
            break
    return statistics.median(seconds) if seconds else 0.0


def augmenting_seconds(config: Config) -> float:
    """The mean seconds that a core takes to augment an image."""
    if config.augment.policy == "none":
        return 0.0
    side, channels = config.model.image_size, config.model.channels
    augment = Augmenter(config.augment.policy, side, channels, config.augment.flips)
    image = np.random.default_rng(0).integers(0, 256, (side, side, channels), dtype=np.uint8)
    start = time.perf_counter()
    for number in range(1 + 2 * FILES):
        if number == 1:  # the first is slower
            start = time.perf_counter()
        augment(image, (0, 0, number))
    return (time.perf_counter() - start) / (2 * FILES)
