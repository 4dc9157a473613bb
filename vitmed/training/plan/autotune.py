"""Which arithmetic, attention kernel, number of threads and compilation train fastest here: measured, not guessed.

The answer is kept in the cache folder for the same machine, network and versions, so that the same command gives the
same bits again; it is also written into the configuration of the run, from which `--resume` takes it. What is measured
in a busy moment holds only for that: `Looks` corrects the number of threads while the run goes on.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from vitmed.core.config import Config, PretrainConfig
from vitmed.core.messages import Advance, bar
from vitmed.core.sections import ABOUT_WEIGHTS
from vitmed.core.text import counted, first_line, listed
from vitmed.models.compile import compile_network, is_of_compiler, leave_uncompiled, missing_compiler
from vitmed.models.hardware import busy, pick_precision, seconds_of, seeded, using_threads
from vitmed.models.vit import prefers_explicit, use_attention
from vitmed.training.losses import Objective
from vitmed.training.out_of_memory import is_out_of_memory
from vitmed.training.plan.time import keep_measured, measured_file
from vitmed.training.train_state import Record

# Fields of the configuration that count for it.
SETTINGS = {"precision", "attention", "threads", "compile"}  # which are measured
SETTINGS |= {"batch_size", "micro_batch", "lora", "freeze_blocks", "time"}

SHARE, MOST_SECONDS = 0.03, 6.0  # of the run, and in all; only a compiler that has begun may take longer
ROUNDS = 5  # in which the candidates take turns
GAIN = 1.05  # how many times as fast as the usual engine another one has to be
SAME_LOSS = 0.01  # largest difference from the loss in fp32, relative
LEAST_STEPS = 10  # that measuring takes
COMPILES_FROM = 1800.0  # seconds of training from which compiling, which takes 10 to 40, is tried
STEP, STEP_AGAIN = 0.25, 0.1  # s that a measured step takes, about, before training and amid it
FIRST_LOOK = 30.0  # s of training after which the threads are measured again, and whenever twice as many are over
SHARE_AGAIN = 0.05  # of these seconds
SLOW = 1.5  # how many times as slow as measured training has to be until fewer threads are tried
CLEAR_GAIN = 1.2  # as `GAIN`, for another number of threads amid training


class Engine(BaseModel):
    """How a training step is computed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    precision: str
    attention: str
    threads: int | None  # of a CPU; None on another device
    compile: bool

    def __str__(self) -> str:
        threads = [] if self.threads is None else [counted(self.threads, "thread")]
        return listed([self.precision, f"{self.attention} attention", *threads, *["compiled"] * self.compile])


class Tuned(BaseModel):
    """The fastest engine.

    Attributes:
        rates: images/s of the engine and of the usual one; None where nothing was compared.
        note: why something was not tried.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    engine: Engine
    usual: Engine
    rates: tuple[float, float] | None = None
    note: str = ""

    def __str__(self) -> str:
        text = f"speed: {self.engine}"
        if self.rates is not None:
            text += f", {self.rates[0]:,.0f} images/s"
        if self.rates is not None and self.engine != self.usual:
            text += f" ({self.usual}: {self.rates[1]:,.0f})"
        return f"{text}; {self.note}" if self.note else text

    def settings(self, config: Config | PretrainConfig) -> dict[str, Any]:
        """The fields of the configuration that keep it: those that were left open."""
        asked = dict(config.train)
        return {f"train.{k}": value for k, value in self.engine.model_dump().items() if asked[k] in ("auto", None)}


def autotune(
    model: nn.Module,
    objective: Objective,
    config: Config | PretrainConfig,
    device: torch.device,
    steps: int,
    targets: Tensor,
) -> Tuned:
    """The fastest engine of those that the configuration leaves open, from the cache or measured.

    What is measured while other processes keep the CPU busy holds only for then, and is not kept.

    Args:
        model: on `device`; it is left as it was.
        objective: of training; its precision is one of those that are compared.
        steps: of the run.
        targets: of the training images, as `Images.targets`.
    """
    file = measured_file("autotune", _key(config, steps), device)
    with suppress(OSError, ValueError):
        earlier = Tuned.model_validate_json(file.read_text(encoding="utf-8"))
        return earlier.model_copy(update={"note": "measured in an earlier run"})
    usual = usual_engine(config, device)
    load = busy() if device.type == "cpu" else None
    with bar("measuring speed", unit="steps") as advance, seeded(config.train.seed, device):
        tuned = _unless_full(lambda: Race(copy.deepcopy(model), objective, config, steps, targets, advance).run())
    if tuned is None:
        return Tuned(engine=usual, usual=usual, note="not measured: too little memory for a copy of the network")
    if load is not None:
        return tuned.model_copy(update={"note": f"{tuned.note}, while others keep this machine busy ({load})"})
    if tuned.rates is not None:
        keep_measured(file, tuned.model_dump_json())
    return tuned


def _unless_full(measure: Callable[[], Tuned]) -> Tuned | None:
    """What it measures; None where the memory is full."""
    try:
        return measure()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None


@dataclass
class Looks:
    """Looks amid training for a better number of threads: what was measured before may have been a busy moment.

    The other choices were compared by engines that took turns, which such a moment disturbs alike.

    Attributes:
        tuned: what holds now; most: threads; file: of the cache.
        latest: seconds of training at the latest look.
    """

    tuned: Tuned
    most: int
    file: Path
    latest: float = 0.0

    @classmethod
    def of(cls, tuned: Tuned, config: Config | PretrainConfig, device: torch.device, steps: int) -> Looks | None:
        """None where nothing was measured or the threads were chosen; the arguments are those of `autotune`."""
        most = usual_engine(config, device).threads
        if most is None or config.train.threads is not None or tuned.rates is None:
            return None
        return cls(tuned, most, measured_file("autotune", _key(config, steps), device))

    def again(self, history: list[Record], race: Callable[[], Race]) -> Tuned | None:
        """The engine with another number of threads that is clearly faster now; None without one, or too early.

        Args:
            history: of the run; race: makes one with a copy of its network.
        """
        engine, rates, last = self.tuned.engine, self.tuned.rates or (0.0, 0.0), history[-1]
        seconds = sum(record["seconds"] for record in history)
        slow = SLOW * last["images_per_second"] < rates[0] * (1 - last["wait_share"])
        if seconds < max(FIRST_LOOK, 2 * self.latest) or (engine.threads == self.most and not slow):
            return None
        self.latest = seconds
        found = _unless_full(lambda: race().again(self.most, SHARE_AGAIN * seconds))
        if found is None or found.engine == found.usual:
            return None
        faster = engine.model_copy(update={"threads": found.engine.threads})
        self.tuned = Tuned(engine=faster, usual=engine, rates=found.rates, note="measured again")
        if busy() is None:
            keep_measured(self.file, self.tuned.model_dump_json())
        return self.tuned


def is_open(config: Config | PretrainConfig) -> bool:
    """Whether the configuration leaves anything to measure."""
    train = config.train
    return train.autotune and ("auto" in (train.precision, train.attention) or None in (train.compile, train.threads))


def _key(config: Config | PretrainConfig, steps: int) -> list[Any]:
    """What decides which engine is the fastest, beside the machine; of the length of the run its magnitude."""
    key = [config.model.model_dump(exclude=ABOUT_WEIGHTS), steps.bit_length()]
    key += [config.train.model_dump(include=SETTINGS)]
    return key + ([config.mae.model_dump()] if isinstance(config, PretrainConfig) else [])


class Race:
    """Engines that take turns at the same step, so that what disturbs the machine disturbs all of them.

    Args:
        model: a copy, of which gradients and statistics may change.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        config: Config | PretrainConfig,
        steps: int,
        targets: Tensor,
        advance: Advance,
    ):
        self.model, self.objective, self.config, self.steps, self.advance = model, objective, config, steps, advance
        self.start, self.done, self.device = time.perf_counter(), 0, next(model.parameters()).device
        device, side, train = self.device, config.model.image_size, config.train
        count = min(train.batch_size, train.micro_batch) if isinstance(train.micro_batch, int) else train.batch_size
        self.images = torch.randint(0, 256, (count, side, side, config.model.channels), dtype=torch.uint8).to(device)
        self.labels = targets[torch.linspace(0, len(targets) - 1, count).long()].to(device)  # all classes

    def run(self) -> Tuned:
        train, note = self.config.train, ""
        usual = usual_engine(self.config, self.device)
        seconds = self._fit_batch(usual, STEP)  # per image
        if train.time is not None:
            self.steps = min(self.steps, max(1, int(train.time / seconds / train.batch_size)))
        self.budget = min(MOST_SECONDS, SHARE * self.steps * seconds * train.batch_size)
        if LEAST_STEPS * seconds * len(self.images) > self.budget:
            why = "its steps take too long" if self.budget == MOST_SECONDS else "the run is too short"
            return Tuned(engine=usual, usual=usual, note=f"{why} to measure others")
        names = [usual.precision, "fp32"] if train.precision == "auto" else [train.precision]
        kernels = [usual.attention, "fused", "explicit"] if train.attention == "auto" else [train.attention]
        first = [
            usual.model_copy(update={"precision": p, "attention": a}) for p, a in product(dict.fromkeys(names), kernels)
        ]
        best, rates = self._fastest(usual, first)
        while train.threads is None and best.threads is not None and best.threads > 1:
            fewer, found = self._fastest(best, [best.model_copy(update={"threads": best.threads // 2})])
            rates |= found
            if fewer == best:
                break
            best = fewer
        if train.compile is None and self.steps * train.batch_size / rates[best] > COMPILES_FROM:
            note = missing_compiler(self.device) or ""
            if not note:
                best, found, note = self._compiled(best)
                rates |= found
        spent = f"measured in {time.perf_counter() - self.start:.1f} s" + (f"; {note}" if note else "")
        return Tuned(engine=best, usual=usual, rates=(rates[best], rates[usual]), note=spent)

    def again(self, most: int, budget: float) -> Tuned:
        """Compare the present engine, not compiled, with 1, 2, 4, ... to `most` threads, in so many seconds."""
        usual = usual_engine(self.config, self.device)
        self.budget = min(MOST_SECONDS, budget)
        if LEAST_STEPS * self._fit_batch(usual, STEP_AGAIN) * len(self.images) > self.budget:
            return Tuned(engine=usual, usual=usual)
        others = [usual.model_copy(update={"threads": most >> k}) for k in range(most.bit_length())]
        best, rates = self._fastest(usual, others, CLEAR_GAIN)
        return Tuned(engine=best, usual=usual, rates=(rates[best], rates[usual]))

    def _fit_batch(self, usual: Engine, step: float) -> float:
        """Make the batch small enough for a step of about so many seconds; return the seconds per image."""
        whole = self.images, self.labels
        self.images, self.labels = (part[:2] for part in whole)
        seconds = min(self._step(usual)[0] for _ in range(3)) / len(self.images)
        count = max(len(self.images), int(step / seconds))
        self.images, self.labels = (part[:count] for part in whole)
        return seconds

    def _fastest(self, usual: Engine, others: list[Engine], gain: float = GAIN) -> tuple[Engine, dict[Engine, float]]:
        """The fastest engine, `usual` unless another is clearly faster and has the same loss; and images/s of each."""
        racers = list(dict.fromkeys([usual, *others]))
        losses = {racer: self._step(racer)[1] for racer in racers}  # the first step is slower
        exact = losses.get(usual.model_copy(update={"precision": "fp32"}), losses[usual])
        racers = [r for r in racers if r == usual or abs(losses[r] - exact) <= SAME_LOSS * abs(exact)]
        seconds: dict[Engine, list[float]] = {racer: [] for racer in racers}
        for turn in range(ROUNDS):
            if turn and time.perf_counter() - self.start > self.budget:
                break
            for racer in racers[:: -1 if turn % 2 else 1]:
                seconds[racer].append(self._step(racer)[0])
        rates = {racer: len(self.images) / statistics.median(found) for racer, found in seconds.items()}
        best = max(racers, key=rates.__getitem__)
        return (best if rates[best] > gain * rates[usual] else usual), rates

    def _compiled(self, best: Engine) -> tuple[Engine, dict[Engine, float], str]:
        """The same engine compiled if it is faster; images/s of both; and a sentence where compiling failed."""
        compiled = best.model_copy(update={"compile": True})
        try:
            found, rates = self._fastest(best, [compiled])
        except RuntimeError as error:
            if not is_of_compiler(error):
                raise
            return best, {}, f"not compiled, because the compiler failed: {first_line(error)}"
        if found == best:
            return best, rates, "compiling does not make it faster"
        return found, rates, ""

    def _step(self, engine: Engine) -> tuple[float, float]:
        """Seconds of a forward and a backward pass, and the loss."""
        (compile_network if engine.compile else leave_uncompiled)(self.model)
        use_attention(self.model, engine.attention)
        self.model.train()
        objective = replace(self.objective, precision=pick_precision(engine.precision, self.device))
        losses: list[Tensor] = []

        def step() -> None:
            losses.append(objective.part(self.model, objective.prepare(self.images, self.labels)))
            losses[0].backward()

        with using_threads(engine.threads), seeded(self.config.train.seed, self.device):
            seconds = seconds_of(step, self.device)
        self.model.zero_grad(set_to_none=True)
        self.done += 1
        self.advance(self.done, self.done)
        return seconds, float(losses[0].detach())


def usual_engine(config: Config | PretrainConfig, device: torch.device) -> Engine:
    """What is used where nothing is measured; not compiled, since --compile is measured neither."""
    train = config.train
    precision = pick_precision(train.precision, device)
    threads = train.threads or torch.get_num_threads() if device.type == "cpu" else None
    tokens = 1 + config.model.registers + (config.model.image_size // config.model.patch_size) ** 2
    explicit = prefers_explicit(device, precision.dtype, tokens, backward=True)
    attention = train.attention if train.attention != "auto" else "explicit" if explicit else "fused"
    return Engine(precision=precision.name, attention=attention, threads=threads, compile=False)
