"""Memory: how many images of a batch fit at once (`--batch-size auto`), and how running out of it is recognised.

`Gradients` halves the micro-batch first.
"""

import contextlib
import ctypes
import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from vitmed.core.config import Config, PretrainConfig
from vitmed.core.errors import OutOfMemoryError, VitmedError
from vitmed.core.load_config import AnyConfig, with_values
from vitmed.core.process import control_groups
from vitmed.core.text import counted, first_line
from vitmed.models.hardware import Precision, seeded
from vitmed.models.vit import checkpoint_gradients
from vitmed.training.train_state import TrainState

SHARE = 0.8  # of the free memory of a machine; loader processes and the system need some
FEW = 4  # images that are measured
STATUS = Path("/proc/self/status")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of torch says that a device or this machine has no memory left; oneDNN, which computes on a CPU,
    says then that it could not create a primitive."""
    words = ("out of memory", "can't allocate memory", "ALLOC_FAILED", "could not create a primitive")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in words)


def memory_error(error: RuntimeError, config: Config | PretrainConfig) -> RuntimeError | VitmedError:
    """OutOfMemoryError if memory ran out, VitmedError if a loader process ended otherwise, else the error itself."""
    text, train = str(error), config.train
    if is_out_of_memory(error):
        at_once = train.micro_batch if isinstance(train.micro_batch, int) else train.batch_size
        problem = f"out of memory with batches of {counted(train.batch_size, 'image')} of {config.model.image_size} px"
        fix = f"--micro-batch {max(1, at_once // 2)}, --grad-checkpointing, or a smaller --image-size or --model"
        return OutOfMemoryError(problem, fix)
    ended = "DataLoader worker" in text and ("killed by signal" in text or "exited unexpectedly" in text)
    killed = ended and any(f"{signal.strsignal(number)}" in text for number in (signal.SIGKILL, signal.SIGBUS))
    if killed or "unable to allocate shared memory" in text:
        fix = "--workers 0, a smaller --batch-size, or docker run --shm-size 1g"
        return OutOfMemoryError("a loader process found memory or /dev/shm full", fix)
    if ended:
        fix = "see the log of the system; --workers 0 uses none"
        return VitmedError(f"a loader process ended: {first_line(error)}", fix)
    return error


class Fit(NamedTuple):
    """How many images fit the memory at once, whether it takes gradient checkpointing, and why, in words."""

    micro_batch: int
    grad_checkpointing: bool
    why: str


def one_batch(config: AnyConfig) -> AnyConfig:
    """With `micro_batch: auto`, the images of an optimiser step become one batch, which is computed in parts."""
    train = config.train
    if train.micro_batch != "auto":
        return config
    return with_values(config, {"train.batch_size": train.batch_size * train.accumulate, "train.accumulate": 1})


def fit_memory(state: TrainState, config: AnyConfig, most: int, precision: Precision, processes: int) -> Fit:
    """How many images of a batch can be computed at once, of `most` that each of the `processes` computes that share
    the memory of a CPU; changes nothing in the state, whose network lies on the device."""
    device, given = next(state.model.parameters()).device, config.train.grad_checkpointing
    trial = _Trial(state, config, most, precision)
    for recompute in dict.fromkeys((given, True)):
        checkpoint_gradients(state.model, recompute)
        with trial.nothing_changes():
            fit = _fit_cpu(trial, most, processes) if device.type == "cpu" else _fit_device(trial, most, device)
        checkpoint_gradients(state.model, given)
        if fit.micro_batch:
            break
    return fit._replace(micro_batch=max(1, fit.micro_batch), grad_checkpointing=recompute)


class _Trial:
    """Computes gradients of images at random."""

    def __init__(self, state: TrainState, config: AnyConfig, most: int, precision: Precision):
        self.state, self.precision, self.most = state, precision, most
        self.shape = (config.model.channels, config.model.image_size, config.model.image_size)
        learning = [p for p in state.model.parameters() if p.requires_grad]
        self.gradients = sum(p.numel() * p.element_size() for p in learning)
        self.moments = 0 if state.optimiser.state else 2 * self.gradients

    def run(self, count: int) -> None:
        """Go forward and backward with some images of a batch."""
        device = next(self.state.model.parameters()).device
        x = torch.rand(self.most, *self.shape, device=device)  # the whole batch is there, as in training
        with torch.autocast(device.type, self.precision.dtype, enabled=self.precision.mixed):
            loss = self.state.model(x[:count]).float().mean()
        loss.backward()

    @contextlib.contextmanager
    def nothing_changes(self) -> Iterator[None]:
        """Restore the mode, the statistics and the random state, and throw gradients away."""
        model: nn.Module = self.state.model
        training = model.training
        before = [buffer.clone() for buffer in model.buffers()]
        model.train()
        try:
            with seeded(0, next(model.parameters()).device):
                yield
        finally:
            model.train(training)
            self.state.optimiser.zero_grad(set_to_none=True)
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)


def _fit_device(trial: _Trial, most: int, device: torch.device) -> Fit:
    """Try the batch, its half, its quarter ... beside the moments that the optimiser will need; 0 if none fits."""
    count, why = most, "as tried"
    while count:
        try:
            moments = torch.empty(trial.moments, dtype=torch.uint8, device=device)
            trial.run(count)
            trial.run(count)  # with the gradients of the first part in place
            del moments
            return Fit(count, False, why)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        finally:  # not in the except clause, whose error holds on to the memory
            trial.state.optimiser.zero_grad(set_to_none=True)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        why = f"{counted(count, 'image')} did not fit"
        count //= 2
    return Fit(0, False, why)


def _fit_cpu(trial: _Trial, most: int, processes: int) -> Fit:
    """As many as the measured need of a few images leaves room for; 0 if not even one fits."""
    _trim()
    free = available_memory()
    if free is None or not STATUS.is_file():
        return Fit(most, False, "the memory of this machine cannot be measured")
    room = int(SHARE * free / processes) - trial.moments - trial.gradients
    trial.run(1)  # the gradients, and what is made once
    need = _peak(trial, 1)
    if FEW * need < room:  # of one image alone, much is the same for several
        few = min(FEW, most)
        need = _peak(trial, few) // few
    count = max(0, min(most, room // max(1, need)))
    return Fit(count, False, f"{need / 1e9:.2g} GB for each, {free / 1e9:.1f} GB free")


def _peak(trial: _Trial, count: int) -> int:
    """Bytes that this process takes at most to compute the gradients of some images."""
    _trim()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again
    before = _status("VmRSS")
    trial.run(count)
    return _status("VmHWM") - before


def available_memory() -> int | None:
    """Bytes that this process can still take, of the machine or of its container; None: unknown."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = [1024 * int(lines["MemAvailable"].split()[0])]
    except (OSError, ValueError, KeyError):
        return None
    free += [left for group in control_groups("memory") if (left := _left(group)) is not None]
    return max(0, min(free))


def _left(group: Path) -> int | None:
    """Bytes that a control group (version 2 or 1) leaves; what the kernel caches of files counts as free."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError, KeyError):  # no such file; "max" is no number
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            most, taken = (int((group / name).read_text()) for name in (limit, used))
            return most - taken + int(statistics[cached])
    return None


def _status(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def _trim() -> None:
    """Give freed memory back to the system, so that it counts again when it is taken."""
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library, such as musl
            ctypes.CDLL(None).malloc_trim(0)
