"""Out of memory: how it is recognised, and what the user reads; `Gradients` halves the micro-batch first."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import torch

from vitmed.core.config import Config, PretrainConfig
from vitmed.core.errors import OutOfMemoryError, VitmedError
from vitmed.core.text import counted, first_line
from vitmed.training.train_state import Record


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of torch says that a device or this machine has no memory left.

    oneDNN, which computes on a CPU, says then that it could not create a primitive.
    """
    words = ("out of memory", "can't allocate memory", "ALLOC_FAILED", "could not create a primitive")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in words)


def explained(records: Iterator[Record], config: Config | PretrainConfig) -> Iterator[Record]:
    """The records of a training; where memory runs out, it raises OutOfMemoryError, which names the fix."""
    try:
        yield from records
    except RuntimeError as error:
        raise memory_error(error, config) from None


def memory_error(error: RuntimeError, config: Config | PretrainConfig) -> RuntimeError | VitmedError:
    """OutOfMemoryError if memory ran out, VitmedError if a loader process ended otherwise, else the error itself."""
    text, train = str(error), config.train
    if is_out_of_memory(error):
        at_once = train.micro_batch if isinstance(train.micro_batch, int) else train.batch_size
        return OutOfMemoryError(
            f"out of memory with batches of {counted(train.batch_size, 'image')} of {config.model.image_size} px",
            f"--micro-batch {max(1, at_once // 2)}, --grad-checkpointing, or a smaller --image-size or --model",
        )
    ended = "DataLoader worker" in text and ("killed by signal" in text or "exited unexpectedly" in text)
    killed = ended and any(f"{signal.strsignal(number)}" in text for number in (signal.SIGKILL, signal.SIGBUS))
    if killed or "unable to allocate shared memory" in text:
        return OutOfMemoryError(
            "a loader process found memory or /dev/shm full",
            "--workers 0, a smaller --batch-size, or docker run --shm-size 1g",
        )
    if ended:
        return VitmedError(
            f"a loader process ended: {first_line(error)}", "see the log of the system; --workers 0 uses none"
        )
    return error
