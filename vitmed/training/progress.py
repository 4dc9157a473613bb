"""The events of a training as a progress bar, and running out of memory as an error that names the fix."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from vitmed.core.config import Config, PretrainConfig
from vitmed.core.errors import OutOfMemoryError, VitmedError
from vitmed.core.messages import Advance
from vitmed.core.text import counted, first_line
from vitmed.training.gradients import Relief, is_out_of_memory
from vitmed.training.stream import Step
from vitmed.training.train_state import Record


def with_progress(
    events: Iterator[Step | Relief | Record], config: Config | PretrainConfig, advance: Advance
) -> Iterator[Relief | Record]:
    """Show the steps on a progress bar and yield the rest. Raises OutOfMemoryError if memory runs out."""
    epochs = config.train.epochs
    try:
        for event in events:
            if not isinstance(event, Step):
                yield event
                continue
            total = epochs * event.batches
            done = max((event.epoch - 1) * event.batches + event.batch, round(event.time_share * total))
            text = f"epoch {epoch_of(event.epoch, event.time_share, config)}  loss {event.loss:.4f}"
            text += f"  {event.images_per_second:,.0f} images/s  {event.wait_share:.0%} waiting for data"
            advance(min(done, total), total, text)
    except RuntimeError as error:
        raise memory_error(error, config) from None


def epoch_of(epoch: int, share: float, config: Config | PretrainConfig) -> str:
    """` 12/100`; where the time is limited, ` 12, 34% of the time`."""
    return f"{epoch:3}, {share:4.0%} of the time" if config.train.time else f"{epoch:3}/{config.train.epochs}"


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
