"""Memory: how many images of a batch fit at once (`--batch-size auto`), and how running out of it is recognised.

`Gradients` halves the micro-batch first.
"""

import contextlib
import ctypes
import gc
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

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


def one_batch(config: AnyConfig) -> AnyConfig:
    """With `micro_batch: auto`, the images of an optimiser step become one batch, which is computed in parts."""
    train = config.train
    if train.micro_batch != "auto":
        return config
    return with_values(config, {"train.batch_size": train.batch_size * train.accumulate, "train.accumulate": 1})


def fit_memory(
    state: TrainState, config: AnyConfig, most: int, precision: Precision, processes: int
) -> tuple[int, bool, str]:
    """How many images of a batch can be computed at once, of `most` that each of the `processes` computes that share
    the memory of a CPU; whether it takes gradient checkpointing; and why, in words. Changes nothing in the state, new,
    of a network on the device."""
    model, given, side = state.model, config.train.grad_checkpointing, config.model.image_size
    device, before = next(model.parameters()).device, [buffer.clone() for buffer in model.buffers()]
    gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)

    def compute(count: int) -> None:
        """The gradients of some images of a batch at random."""
        x = torch.rand(most, config.model.channels, side, side, device=device).float()  # the whole batch
        with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
            loss = model(x[:count]).float().mean()
        loss.backward()

    model.train()
    with seeded(0, device):
        for recompute in dict.fromkeys((given, True)):
            checkpoint_gradients(model, recompute)
            if device.type == "cpu":
                count, why = _fit_cpu(compute, most, 3 * gradients, processes)  # with the moments of the optimiser
            else:
                count, why = _fit_device(compute, most, 2 * gradients, model)
            model.zero_grad(set_to_none=True)
            if count:
                break
    checkpoint_gradients(model, given)
    for buffer, value in zip(model.buffers(), before, strict=True):
        buffer.copy_(value)
    return max(1, count), recompute, why


def _fit_device(compute: Callable[[int], None], most: int, moments: int, model: torch.nn.Module) -> tuple[int, str]:
    """Try the batch, its half, its quarter ... beside the moments that the optimiser will need, in bytes; 0 if none
    fits."""
    count, why, device = most, "as tried", next(model.parameters()).device

    def attempt() -> None:
        _beside = torch.empty(moments, dtype=torch.uint8, device=device)  # until the attempt ends, however it does
        compute(count)
        compute(count)  # with the gradients of the first part in place

    while count:
        try:
            attempt()
            break
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        finally:  # not in the except clause, whose error holds on to the memory
            model.zero_grad(set_to_none=True)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        why = f"{counted(count, 'image')} did not fit"
        count //= 2
    return count, why


def _fit_cpu(compute: Callable[[int], None], most: int, states: int, processes: int) -> tuple[int, str]:
    """How many images fit into memory beside the `states`, bytes, by the measured need of a few; 0 if none does."""
    _trim()
    if (free := available_memory()) is None:
        return most, "the memory of this machine cannot be measured"
    room = int(SHARE * free / processes) - states
    compute(1)  # the gradients, and what is made once
    need = _peak(compute, 1)
    if FEW * need < room:  # of one image alone, much is the same for several
        few = min(FEW, most)
        need = _peak(compute, few) // few
    return max(0, min(most, room // max(1, need))), f"{need / 1e9:.2g} GB for each, {free / 1e9:.1f} GB free"


def _peak(compute: Callable[[int], None], count: int) -> int:
    """Bytes that this process takes at most to compute the gradients of some images."""
    _trim()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again
    before = _status("VmRSS")
    compute(count)
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
