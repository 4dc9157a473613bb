"""Which arithmetic, attention kernel, number of threads and compilation train fastest here: measured, not guessed.

The answer is kept in the cache folder for the same machine, network and versions, so that the same command gives the
same bits again; it is also written into the configuration of the run, from which `--resume` takes it.
"""

import copy
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from vitmed.core.config import ABOUT_WEIGHTS, Config, PretrainConfig
from vitmed.core.load_config import AnyConfig
from vitmed.core.messages import Advance, bar, say
from vitmed.core.text import counted, first_line, listed
from vitmed.models import hardware
from vitmed.models.hardware import busy, missing_compiler, pick_precision, seconds_of, seeded, using_threads
from vitmed.models.vit import prefers_explicit, use_attention
from vitmed.training.losses import Objective
from vitmed.training.out_of_memory import is_out_of_memory
from vitmed.training.plan.time import keep_measured, measured_file

# Fields of the configuration that count for it.
SETTINGS = {"precision", "attention", "threads", "compile"}  # which are measured
SETTINGS |= {"batch_size", "micro_batch", "lora", "freeze_blocks", "time"}

SHARE, MOST_SECONDS = 0.03, 6.0  # of the run, and in all; only a compiler that has begun may take longer
ROUNDS = 5  # in which the candidates take turns
GAIN = 1.05  # how many times as fast as the usual engine another one has to be
SAME_LOSS = 0.01  # largest difference from the loss in fp32, relative
LEAST_STEPS = 10  # that measuring takes
COMPILES_FROM = 1800.0  # seconds of training from which compiling, which takes 10 to 40, is tried
LEAST_COMPILED = 200  # steps of a run from which six whole ones are few enough to see what compiling gains
STEP = 0.25  # s that a measured step takes, about


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
    """The fastest engine, images/s of it and of the usual one where engines were compared, and why others were not."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    engine: Engine
    usual: Engine
    rates: tuple[float, float] | None = None
    note: str = ""

    def __str__(self) -> str:
        text = f"speed: {self.engine}"
        if self.rates is not None:
            text += f", {self.rates[0]:,.0f} images/s"
            text += f" ({self.usual}: {self.rates[1]:,.0f})" if self.engine != self.usual else ""
        return f"{text}; {self.note}" if self.note else text


def autotune(model: nn.Module, objective: Objective, config: AnyConfig, steps: int, targets: Tensor) -> Tuned:
    """The fastest engine of those that the configuration leaves open, from the cache or measured.

    What is measured while other processes keep the CPU busy holds only for then, and is not kept. The model stays as it
    was. The run has so many `steps`; the `targets`, of the training images, are as `Images.targets`.
    """
    device = next(model.parameters()).device
    key: list[Any] = [config.model.model_dump(exclude=ABOUT_WEIGHTS), steps.bit_length()]
    key += [config.train.model_dump(include=SETTINGS)]
    if isinstance(config, PretrainConfig):
        key.append(config.mae.model_dump())
    file = measured_file("autotune", key, device)
    with suppress(OSError, ValueError):
        earlier = Tuned.model_validate_json(file.read_text(encoding="utf-8"))
        return earlier.model_copy(update={"note": "measured in an earlier run"})
    load = busy() if device.type == "cpu" else None
    try:
        with bar("measuring speed", unit="steps") as advance, seeded(config.train.seed, device):
            tuned = Race(copy.deepcopy(model), objective, config, steps, targets, advance).run()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        usual = usual_engine(config, device)
        return Tuned(engine=usual, usual=usual, note="not measured: too little memory for a copy of the network")
    if load is not None:
        return tuned.model_copy(update={"note": f"{tuned.note}, while others keep this machine busy ({load})"})
    if tuned.rates is not None:
        keep_measured(file, tuned.model_dump_json())
    return tuned


def open_fields(config: Config | PretrainConfig) -> list[str]:
    """The fields of an engine that the configuration leaves to be measured."""
    train = dict(config.train)
    return [name for name in Engine.model_fields if train["autotune"] and train[name] in ("auto", None)]


@dataclass
class Race:
    """Engines that take turns at the same step, so that what disturbs the machine disturbs all of them; gradients and
    statistics of the model change. The arguments are those of `autotune`."""

    model: nn.Module
    objective: Objective
    config: Config | PretrainConfig
    steps: int
    targets: Tensor
    advance: Advance

    def __post_init__(self) -> None:
        self.start, self.done, self.device = time.perf_counter(), 0, next(self.model.parameters()).device
        model, train = self.config.model, self.config.train
        count = min(train.batch_size, train.micro_batch) if isinstance(train.micro_batch, int) else train.batch_size
        shape = count, model.image_size, model.image_size, model.channels
        self.images = torch.randint(0, 256, shape, dtype=torch.uint8).to(self.device)
        rows = torch.linspace(0, len(self.targets) - 1, count).long()  # of all classes
        self.labels = self.targets[rows].to(self.device)
        self.rates: dict[Engine, float] = {}  # images/s
        # CPU seconds of the steps, and what their threads had if no other program computed
        self.computed, self.had = 0.0, 0.0

    def run(self) -> Tuned:
        train, usual = self.config.train, usual_engine(self.config, self.device)
        images, labels = self.images, self.labels
        self.images, self.labels = images[:2], labels[:2]
        seconds = min(self._step(usual)[0] for _ in range(3)) / len(self.images)  # per image
        count = max(len(self.images), int(STEP / seconds))
        self.images, self.labels = images[:count], labels[:count]
        if train.time is not None:
            self.steps = min(self.steps, max(1, int(train.time / seconds / train.batch_size)))
        self.budget = min(MOST_SECONDS, SHARE * self.steps * seconds * train.batch_size)
        if LEAST_STEPS * seconds * len(self.images) > self.budget:
            why = "its steps take too long" if self.budget == MOST_SECONDS else "the run is too short"
            return Tuned(engine=usual, usual=usual, note=f"{why} to measure others")
        names = [usual.precision, "fp32"] if train.precision == "auto" else [train.precision]
        kernels = [usual.attention, "fused", "explicit"] if train.attention == "auto" else [train.attention]
        others = [usual.model_copy(update={"precision": p, "attention": a}) for p in names for a in kernels]
        best = self._fastest(usual, others)
        while train.threads is None and best.threads is not None and best.threads > 1:
            fewer = best.model_copy(update={"threads": best.threads // 2})
            if self._fastest(best, [fewer]) != fewer:
                break
            best = fewer
        note = ""
        alone = min(1.0, self.computed / self.had) if self.had else 1.0  # compilers, too, take longer beside others
        long = alone * self.steps * train.batch_size / self.rates[best] > COMPILES_FROM
        long = long and self.steps >= LEAST_COMPILED
        if train.compile is None and long and not (note := missing_compiler(self.device) or ""):
            say("compiling the network, to see whether that is faster; it takes a minute or more")
            if train.micro_batch != "auto":  # whose batch is not known yet; another one is compiled again
                self.images, self.labels = images, labels
            try:
                best = self._fastest(best, [best.model_copy(update={"compile": True}), usual])
                note = "" if best.compile else "compiling does not make it faster"
            except (RuntimeError, MemoryError) as error:
                if is_out_of_memory(error):
                    note = "not compiled: too little memory to try it"
                elif hardware.is_of_compiler(error):
                    note = f"not compiled, because the compiler failed: {first_line(error)}"
                else:
                    raise
        spent = f"measured in {time.perf_counter() - self.start:.1f} s" + (f"; {note}" if note else "")
        return Tuned(engine=best, usual=usual, rates=(self.rates[best], self.rates[usual]), note=spent)

    def _fastest(self, usual: Engine, others: list[Engine]) -> Engine:
        """The fastest engine, `usual` unless another is clearly faster and has the same loss; notes their rates."""
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
        self.rates |= {racer: len(self.images) / statistics.median(turns) for racer, turns in seconds.items()}
        best = max(racers, key=self.rates.__getitem__)
        return best if self.rates[best] > GAIN * self.rates[usual] else usual

    def _step(self, engine: Engine) -> tuple[float, float]:
        """Seconds of a forward and a backward pass, and the loss."""
        hardware.compile_network(self.model, engine.compile)
        use_attention(self.model, engine.attention)
        self.model.train()
        objective = replace(self.objective, precision=pick_precision(engine.precision, self.device))
        losses: list[Tensor] = []

        def step() -> None:
            losses.append(objective.part(self.model, objective.prepare(self.images, self.labels)))
            losses[0].backward()

        began = time.process_time()
        with using_threads(engine.threads), seeded(self.config.train.seed, self.device):
            seconds = seconds_of(step, self.device)
        if engine.threads is not None and not engine.compile:
            self.computed, self.had = self.computed + time.process_time() - began, self.had + seconds * engine.threads
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
