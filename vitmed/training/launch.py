"""`--devices N` of train: the command line in several processes here, started by torchrun's engine."""

from __future__ import annotations

import logging
import signal
import sys
import uuid

import torch

from vitmed.core.errors import Interrupted, UsageError, VitmedError
from vitmed.core.process import cores
from vitmed.core.text import counted
from vitmed.models.hardware import pick_device


def launch(devices: int, device: str, args: list[str]) -> int:
    """Run `vitmed` with these arguments in one process for each device, and return the exit code.

    Args:
        devices: how many; device: their kind, or auto.
        args: of the command line.

    Raises:
        UsageError: this machine has fewer devices. VitmedError: a signal ended a process.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    kind = pick_device(device).type
    there, what = (torch.cuda.device_count(), "GPU") if kind == "cuda" else (cores() if kind == "cpu" else 1, "core")
    if devices > there:
        raise UsageError(f"--devices {devices}: this machine has {counted(there, what)}", f"--devices {there}")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the processes report their errors
    config = LaunchConfig(
        1, 1, devices, run_id=uuid.uuid4().hex, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0
    )
    try:
        elastic_launch(config, sys.executable)("-m", "vitmed", *args)
    except SignalException:  # it went on to the processes, and the leader has reported what it saved
        return Interrupted.exit_code
    except ChildFailedError as error:
        ends = {rank: failure.exitcode for rank, failure in error.failures.items()}
        # Of the first that failed; the engine ends the others by signals.
        if reported := [code for code in ends.values() if 1 < code != Interrupted.exit_code]:
            return max(reported)
        for rank, code in ends.items():
            if code < 0 and -code != signal.SIGTERM:  # the engine ends the others by SIGTERM
                problem = f"{signal.Signals(-code).name} ended process {rank} of {devices}"
                fix = f"look for full memory; vitmed {args[0]} --resume RUN continues from what is saved"
                raise VitmedError(problem, fix) from None
        return max(ends.values(), key=lambda code: (code > 0, code))
    return 0
