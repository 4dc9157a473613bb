"""Time: how long a run takes on this machine, which network from scratch a time is enough for, and what is left of it.

`--time` chooses the last row of `CANDIDATES` that reaches its knee in the time, and the first row where none does.
Where you or the weights decide the network, it chooses only the epochs. A `Forecast` comes from timed steps of the
network and from a few files; the seconds of a step are kept in the cache folder, as the autotuner keeps its answer, so
that the same command has the same plan again.
"""

import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitmed.core.config import ABOUT_WEIGHTS, Config
from vitmed.core.errors import DataError, TimeTooShortError, UsageError
from vitmed.core.files import make_folder, write_text
from vitmed.core.process import cores
from vitmed.core.run_folder import cache_folder
from vitmed.core.text import about, counted, duration_text, round_up
from vitmed.data.loading import pick_workers
from vitmed.data.samples import Splits
from vitmed.decisions.out_of_distribution import MOST_FITTED
from vitmed.imaging.augmentation import VIEWS, Augmenter
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.hardware import busy, machine, pick_precision, seconds_of, seeded, using_threads, versions
from vitmed.models.sizes import size_of
from vitmed.models.vit import ViT
from vitmed.training.loop import optimiser_step
from vitmed.training.out_of_memory import is_out_of_memory
from vitmed.training.plan.rules import SMALL, PlanInputs, Rule
from vitmed.training.train_state import new_state

SHARE, MOST = 0.02, 6.0  # of `--time`, and s at most, for timing networks; one is always timed
EACH = 1.5  # s for timing a network, about
FIRST, STEP = 2, 0.25  # images of the first timed steps; s that a step with more of them takes, about
STEPS, TIMED = 4, 0.5  # timed steps at most, with so many s
FILES, MOST_SECONDS = 8, 1.0  # read and augmented for a sample, at most
# Measured on 2 cores of a server (bf16, 2026), for 800 to 27,600 images; s.
STARTING = 9.0  # Python and its libraries, the plan, the autotuner, the contact sheet, a baseline
OF_A_FOLD = 4.0  # the same where a process trains several
REPORTING = 18.0  # policy, two evaluations with figures and attention maps; the end of Python
TABLES = 4.0  # the same with --no-report
EACH_FINDING = 2.0  # a page of its own
LEARNED = (0.5, 4.0)  # times as long as these two, at most, that a run here has shown it to take
EACH_IMAGE = 0.0005  # duplicates, baselines, intervals
EACH_EPOCH = 0.1  # checkpoints
FORWARD = 1 / 3  # of a training step, in its precision
EXACT = 0.8  # the same in fp32, which evaluates, where a step has 16 bits
IN_TRAINING = 1.2  # how many times as long a step takes there as alone: loading shares the core and its caches
MOST_KNEES = 3  # passes beyond the knee that may still help: more are not made, however much time there is
RECENT = 30.0  # s, over which contention is measured, at least
ALONE = 10.0  # s that count as if nobody else had computed: the first steps wait for memory and files
MOST_CONTENTION = 8.0  # times as long


class Forecast(NamedTuple):
    """Seconds before the first batch, of a pass with its validation, and after the last."""

    before: float
    one_pass: float
    after: float

    def total(self, passes: float) -> float:
        """Seconds of the whole command."""
        return self.before + passes * self.one_pass + self.after

    def passes_in(self, seconds: float) -> float:
        """How many passes a command of this length has time for."""
        return (seconds - self.before - self.after) / self.one_pass


@dataclass
class Forecaster:
    """Forecasts runs on the images of `splits`, trained by a number of `processes`."""

    splits: Splits
    device: torch.device
    processes: int = 1
    files: float | None = None  # seconds to read a file, once measured; 0 without `train.time`
    steps: dict[str, float] = field(default_factory=dict)  # key of a network -> seconds of an image in a step
    timed: list[float] = field(default_factory=list)  # seconds of an operation, for each timed network

    def of(self, config: Config) -> Forecast:
        """The forecast for a complete configuration."""
        train, val = (len(self.splits.samples[name]) for name in ("train", "val"))
        every = sum(map(len, self.splits.samples.values()))
        if self.files is None:  # without a limit nothing depends on it, and every file is decoded once
            self.files = 0.0 if config.train.time is None else reading_seconds(self.splits, config)
        rows = train // config.train.batch_size * config.train.batch_size or train
        one_pass = rows * self.image(config) + val * FORWARD * self.step(config) + EACH_EPOCH
        before = (OF_A_FOLD if config.data.divided else STARTING) + every * (self.files / cores() + EACH_IMAGE)
        return Forecast(before, one_pass, After(self.splits, config, self.device).seconds(self.step(config)))

    def step(self, config: Config) -> float:
        """Seconds that an image takes in a step of training: timed, or after some networks by its operations."""
        key, most = json.dumps(_key(config, self.device)), min(MOST, SHARE * (config.train.time or math.inf))
        if key not in self.steps and len(self.timed) < max(1, int(most / EACH)):
            self.steps[key] = step_seconds(config, self.device, len(self.splits.classes)) / self.processes
            if self.steps[key] < math.inf:
                self.timed.append(self.steps[key] / operations(config))
        elif key not in self.steps:
            self.steps[key] = self.timed[-1] * operations(config)
        return self.steps[key]

    def image(self, config: Config) -> float:
        """Seconds that an image takes in training: of its step or of loading it, whichever is slower."""
        train, cores_each, step = config.train, cores() / self.processes, IN_TRAINING * self.step(config)
        augment = augmenting_seconds(config)
        workers = pick_workers(train.workers, augment > 0, True, self.device, self.processes)
        if not workers:
            return step + augment
        work = step * torch.get_num_threads() + augment if self.device.type == "cpu" else augment  # of all cores
        return max(step, augment / workers, work / cores_each)


class After:
    """What follows the training of a run: `fixed` seconds of a core for policy, tables and reports, remembered in the
    cache folder from the latest run like it, and predictions that take as long as `steps` training steps."""

    def __init__(self, splits: Splits, config: Config, device: torch.device) -> None:
        train, val, test = (len(splits.samples[name]) for name in ("train", "val", "test"))
        passes = len(VIEWS[config.augment.views]) * (min(train, MOST_FITTED) + 4 * val + test)
        if config.model.start is not None and config.train.baseline:  # the frozen network predicts them, too
            passes += val + test
        self.steps = passes * forward_share(config, device)
        evaluate = config.evaluate
        pages = len(splits.classes) if splits.target.kind == "findings" else 0
        self.usual = REPORTING + EACH_FINDING * pages if evaluate.report else TABLES
        self.usual += EACH_IMAGE * (val + test)
        what = [evaluate.report, evaluate.map_images, config.train.test, splits.target.kind, len(splits.classes)]
        self.file, self.fixed = measured_file("after", what, device), self.usual
        with suppress(OSError, ValueError):
            self.fixed *= min(LEARNED[1], max(LEARNED[0], float(self.file.read_text(encoding="utf-8"))))

    def seconds(self, step: float) -> float:
        """What it takes where nobody else computes and an image takes `step` seconds of a core in a step."""
        self.step = step
        return self.fixed + self.steps * step

    def keep(self, seconds: float) -> None:
        """Remember how many seconds of a core it has taken, with the latest `step`."""
        keep_measured(self.file, f"{max(0.0, seconds - self.steps * self.step) / self.usual:.3f}")


def forward_share(config: Config, device: torch.device) -> float:
    """How many times as long as a step of training an image takes in fp32, which evaluates."""
    return EXACT if pick_precision(config.train.precision, device).mixed else FORWARD


def operations(config: Config) -> float:
    """About how many multiplications the blocks of a network take for an image."""
    size, tokens = size_of(config.model), (config.model.image_size // config.model.patch_size) ** 2
    return size.depth * tokens * size.width * (12.0 * size.width + 2.0 * tokens)


def step_seconds(config: Config, device: torch.device, classes: int) -> float:
    """Seconds per image of a step on random images, from the cache or measured; kept where nothing else is running.
    Infinity where the memory is too small for a step."""
    file = measured_file("speed", _key(config, device), device)
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


def _key(config: Config, device: torch.device) -> list[Any]:
    """What decides the seconds of a step, beside the machine."""
    train, settings = config.train, {"batch_size", "micro_batch", "grad_checkpointing"}
    precision = pick_precision(train.precision, device).name
    return [config.model.model_dump(exclude=ABOUT_WEIGHTS), train.model_dump(include=settings), precision]


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
    """Seconds per image of the fastest of all threads and one: on a busy machine threads wait for each other."""
    train, side = config.train, config.model.image_size
    most = min(train.batch_size, train.micro_batch) if isinstance(train.micro_batch, int) else train.batch_size
    precision, preprocessing = pick_precision(train.precision, device), Preprocessing.of(config)
    with seeded(train.seed, device):
        network = ViT(config.model, classes).to(device).train()
        state = new_state(network, config, 1, device, precision)
        x = torch.randint(0, 256, (most, side, side, config.model.channels), dtype=torch.uint8, device=device)
        y = torch.arange(most, device=device) % classes

        def step(count: int) -> None:
            with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
                loss = torch.nn.functional.cross_entropy(network(preprocessing.normalise(x[:count])), y[:count])
            state.scaler.scale(loss).backward()
            optimiser_step(state, 1e-6, train.clip_norm)

        def fastest(threads: int | None) -> float:
            with using_threads(threads):
                few = min(FIRST, most)
                least = min(seconds_of(lambda: step(few), device) for _ in range(2))  # the first warms up
                count, start, seconds = min(most, max(few, int(STEP * few / least))), time.perf_counter(), list[float]()
                while len(seconds) < STEPS and time.perf_counter() - start < TIMED:
                    seconds.append(seconds_of(lambda: step(count), device))
            return of_full_step((few, least), (count, statistics.median(seconds)), most)

        several = device.type == "cpu" and train.threads is None and torch.get_num_threads() > 1
        return min(fastest(threads) for threads in ([train.threads, 1] if several else [train.threads]))


def of_full_step(few: tuple[int, float], more: tuple[int, float], most: int) -> float:
    """Seconds of each of `most` images in a step, from two steps of fewer: their images and seconds. What a step takes
    however many images it has, such as the optimiser, has its share of them."""
    (n, least), (count, seconds) = few, more
    image = (seconds - least) / (count - n) if count > n else seconds / count
    if not 0 < image < seconds / count:  # noise
        return seconds / count
    return image + (seconds - count * image) / most


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
    side, channels, given = config.model.image_size, config.model.channels, config.augment
    augment = Augmenter(given.policy, side, channels, given.flips, given.crop)
    if not augment.steps:
        return 0.0
    image = np.random.default_rng(0).integers(0, 256, (side, side, channels), dtype=np.uint8)
    augment(image, (0, 0, 0))  # the first is slower
    start = time.perf_counter()
    for number in range(2 * FILES):
        augment(image, (0, 0, 1 + number))
    return (time.perf_counter() - start) / (2 * FILES)


class Candidate(NamedTuple):
    """A network from scratch, the largest image size, px, and the peak learning rate for it, for `least` training
    images or more. More training gains little after its knee: `steps` of the optimiser, or `passes` over the images if
    that is less."""

    width: int
    depth: int
    heads: int
    patch_size: int
    image_size: int
    least: int
    steps: int
    passes: int
    lr: float

    def knee(self, images: int, batch: int) -> int:
        return max(1, min(self.passes, math.ceil(self.steps * min(batch, images) / images)))

    def square(self, inputs: PlanInputs) -> tuple[int, int]:
        """Sides of the input and of a patch, px. The input is no larger than the images, but has at least 4 x 4 whole
        patches, which for small images are at most 8 px, as in the plan."""
        patch = min(8, self.patch_size) if inputs.side <= SMALL else self.patch_size
        return min(self.image_size, max(4 * patch, round(inputs.side / patch) * patch)), patch


# From the smallest to the largest. The last two are not measured: docs/recipes.md has the others.
CANDIDATES: tuple[Candidate, ...] = (
    Candidate(128, 4, 4, 16, 64, 0, 3000, 300, 1e-3),
    Candidate(128, 4, 4, 16, 96, 0, 3000, 300, 1e-3),
    Candidate(128, 4, 4, 16, 128, 0, 3000, 300, 1e-3),
    Candidate(192, 6, 6, 16, 160, 2000, 10_000, 200, 1e-3),
    Candidate(192, 12, 3, 16, 224, 5000, 20_000, 200, 5e-4),  # ViT-Tiny
)


def choose_network(
    rows: Sequence[Candidate], inputs: PlanInputs, batch: int, seconds: float, forecast_of: Callable[[Rule], Forecast]
) -> Rule:
    """The rule that plans the last of these networks, the smallest first, that reaches its knee in `seconds`, or the
    first; after it none is timed. It makes the most passes. `batch` is the images of an optimiser step; `forecast_of`
    forecasts the run whose plan has a rule."""
    for number, row in enumerate(rows):
        knee, (side, patch) = row.knee(inputs.images, batch), row.square(inputs)
        fields = {f"model.{name}": getattr(row, name) for name in ("width", "depth", "heads")}
        fields |= {"model.patch_size": patch, "model.image_size": side, "model.stem": "residual", "train.lr": row.lr}
        fields["train.epochs"] = MOST_KNEES * knee
        why = "the largest network of the table that learns enough in this time, otherwise the smallest; "
        why += f"it gains little after {knee:,} passes, and train.epochs is only a limit"
        rule = Rule(f"--time {duration_text(seconds)}", {}, fields, why)
        if number and forecast_of(rule).passes_in(seconds) < knee:
            break
        chosen = rule
    return chosen


def check_time(seconds: float, forecast: Forecast, slow: Sequence[str] = ()) -> None:
    """Raise TimeTooShortError if a command of this length has no time for a pass over the images; without the flags
    `slow`, which were given, it may have."""
    least = forecast.total(1)
    if seconds < least < math.inf:
        parts = f"{about(forecast.before)} to read the images and prepare, {about(forecast.one_pass)} for one epoch"
        problem = f"--time {duration_text(seconds)} is too short: {parts}, {about(forecast.after)} for the evaluation"
        fix = f"--time {duration_text(round_up(least))}" + f", or leave {' and '.join(slow)} out" * bool(slow)
        raise TimeTooShortError(problem, fix, least)


def time_line(config: Config, forecast: Forecast) -> tuple[float, str]:
    """The seconds that the command takes, and a line that says for what."""
    limit, epochs = config.train.time, config.train.epochs
    if math.isinf(forecast.one_pass):
        return 0.0, "time: not known, because the memory is too small for a timed step"
    passes = epochs if limit is None else max(1, min(epochs, int(forecast.passes_in(limit))))
    parts = f"{about(forecast.before)} before training, about {counted(passes, 'epoch')} in "
    parts += f"{about(passes * forecast.one_pass)}, {about(forecast.after)} for the evaluation"
    seconds = forecast.total(passes)
    if limit is None:
        return seconds, f"time: about {about(seconds)} and the reading of the images ({parts})"
    if passes < epochs:
        return limit, f"time: {duration_text(limit)} ({parts})"
    return seconds, f"time: about {about(seconds)} of {duration_text(limit)} ({parts}); no more epochs are planned"


class Clock:
    """The seconds that the commands of a run have taken: this one, which began then on `time.monotonic` (default now),
    and those that it resumes."""

    def __init__(self, began: float | None = None) -> None:
        self.began = time.monotonic() if began is None else began

    def seconds(self) -> float:
        return time.monotonic() - self.began


def share_of_time(seconds: float, end: float, start: float, share: float) -> float:
    """The share of the time for training that is used at `seconds` of the run. It grows evenly from `share` at the
    `start`, when training begins or resumes, to 1 at the `end`, all in s. The learning rate follows it, so it ends
    low on a machine of any speed, also where the speed changes."""
    return 1.0 if seconds >= end else share + (1 - share) * (seconds - start) / (end - start)


class Contention:
    """How many times as long work takes because other programs share the cores: seconds for each second of CPU time.

    Measured on one thread that computes, over the last `RECENT` to 2 x `RECENT` s and `ALONE`: the seconds of a clock,
    those of its CPU time, and those that it waited for data, all now.
    """

    def __init__(self, seconds: float, cpu: float, waited: float) -> None:
        self.begin = self.middle = (seconds, cpu, waited)

    def factor(self, seconds: float, cpu: float, waited: float) -> float:
        """From 1, nobody else computes, to `MOST_CONTENTION`; the arguments are as above."""
        if seconds - self.middle[0] > RECENT:
            self.begin, self.middle = self.middle, (seconds, cpu, waited)
        used = cpu - self.begin[1]
        computed = seconds - self.begin[0] - (waited - self.begin[2])
        return min(MOST_CONTENTION, max(1.0, (ALONE + computed) / (ALONE + used)))
