"""The processes of one training, as torchrun or `--devices N` starts them. Every rank runs the same program and
computes its share of each batch; rank 0 prints and writes. Only this module knows `torch.distributed`."""

import contextlib
import logging
import os
import signal
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from threading import Thread
from typing import Any, Self, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from vitmed.core.errors import Interrupted, OutOfMemoryError, Reported, UsageError, VitmedError
from vitmed.core.messages import say
from vitmed.core.process import cores, is_rank
from vitmed.core.text import counted, first_line
from vitmed.models.hardware import pick_device

TIMEOUT = timedelta(minutes=30)  # for a rank that is alive and does not answer; one that dies is noticed at once
PATIENCE = 5.0  # s until a rank says for whom it waits
PREPARATION = timedelta(days=30)  # a rank may read a million images while the others wait
AT_ONCE = (Interrupted, OutOfMemoryError)  # the others may be amid a step, where they wait for this rank's gradients
Found = TypeVar("Found")


@dataclass(eq=False)
class Ranks:
    """This process among those of the training; by default it is alone. All ranks call its methods together."""

    rank: int = 0
    world: int = 1  # how many ranks there are, on all machines
    local_rank: int = 0
    local_world: int = 1  # how many on this machine
    control: Any = None  # the group through which the ranks exchange what is no tensor of the training
    ended: bool = False  # whether all ranks know of an error

    @property
    def leads(self) -> bool:
        """Whether this rank prints and writes."""
        return self.rank == 0

    @property
    def wide(self) -> bool:
        """Whether there are other ranks."""
        return self.world > 1

    @property
    def threads(self) -> int | None:
        """This rank's share of the cores of its machine; None where it has all, or OMP_NUM_THREADS divides them."""
        shared = self.local_world > 1 and "OMP_NUM_THREADS" not in os.environ
        return max(1, cores() // self.local_world) if shared else None

    @property
    def share(self) -> slice:
        """This rank's images of a batch."""
        return slice(self.rank, None, self.world)

    @classmethod
    @contextlib.contextmanager
    def join(cls) -> Iterator[Self]:
        """The ranks that torchrun has started, connected until the process ends; elsewhere one process alone. An error
        of any rank ends all of them: rank 0 raises it, the others raise `Reported`."""
        if not is_rank():
            yield cls()
            return
        if not dist.is_initialized():  # by an earlier training of this process
            place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
            meeting = Future[tuple[Any, int, int]]()

            def meet() -> None:
                try:
                    meeting.set_result(next(rendezvous("env://", timeout=TIMEOUT)))
                except Exception as error:
                    meeting.set_exception(error)

            Thread(target=meet, daemon=True).start()  # it is deaf to signals, and nobody waits for it at the end
            if wait([meeting], PATIENCE).not_done:
                say("RANK {RANK} of WORLD_SIZE {WORLD_SIZE} waits for the others".format(**os.environ) + f" at {place}")
            try:
                store, rank, world = meeting.result()
            except (ValueError, dist.DistError) as error:
                problem = f"RANK and WORLD_SIZE are set, but the processes cannot meet at {place}: {first_line(error)}"
                raise UsageError(problem, "name MASTER_ADDR and a free MASTER_PORT, or unset RANK") from None
            if os.environ.get("GROUP_WORLD_SIZE") == "1":
                # torchrun keeps the store when it restarts the ranks of a machine, with the addresses of the old ranks.
                store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
        local, there = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        control = dist.new_group(backend="gloo", timeout=PREPARATION)
        ranks = cls(dist.get_rank(), dist.get_world_size(), local, there, control)
        try:
            with ranks.together():
                yield ranks
        except RuntimeError as error:
            if isinstance(error, dist.DistError) or "by peer" in str(error) or "Broken pipe" in str(error):
                problem = "another process of this training has ended; its own error says why"
                raise VitmedError(problem, "vitmed train --resume RUN continues from what is saved") from None
            raise

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """All ranks end this block together, with the error of any."""
        failed = None
        try:
            yield
        except VitmedError as error:
            if self.ended or isinstance(error, AT_ONCE):
                raise
            failed = error
        self.agree(failed)

    @contextlib.contextmanager
    def one_first(self) -> Iterator[None]:
        """One rank of each machine does the block first: the others then find in the caches what it has read."""
        if self.local_rank:
            self.agree()
        with self.together():
            yield
        if not self.local_rank:
            self.agree()

    def agree(self, error: VitmedError | None = None, stop: bool = False) -> bool:
        """Whether any rank is to stop. Raises the error of any rank: rank 0 reports it, so the others do not."""
        if not self.wide:
            if error is not None:
                raise error
            return stop
        code = torch.tensor(2 if error is not None else int(stop))
        dist.all_reduce(code, dist.ReduceOp.MAX, self.control)
        if code == 2:
            rank, first = next((rank, found) for rank, found in enumerate(self.gather(error)) if found is not None)
            self.ended = True
            if self.leads and error is not None:
                raise error
            raise (type(first) if self.leads else Reported)(f"rank {rank}: " * (rank > 0) + first.problem, first.fix)
        return bool(code)

    def first(self, work: Callable[[], Found]) -> Found:
        """What a function returns on rank 0, which alone calls it; its error ends all ranks."""
        if not self.wide:
            return work()
        self.agree()  # it begins nothing where another rank has failed
        with self.together():
            box: list[Any] = [work() if self.leads else None]
        dist.broadcast_object_list(box, 0, self.control)
        return box[0]  # type: ignore[no-any-return]

    def gather(self, value: Any) -> list[Any]:
        """What every rank gives, in their order."""
        values = [value] * self.world
        if self.wide:
            dist.all_gather_object(values, value, self.control)
        return values

    def mean(self, value: Tensor | float) -> Any:
        """The mean of a number over the ranks, without gradient."""
        if not self.wide:
            return value
        total = torch.as_tensor(value).detach().float().clone()
        dist.all_reduce(total)
        return total / self.world

    def deal(self, count: int) -> list[int]:
        """The rows, of `count`, for this rank to predict: as many as for every other, some perhaps twice."""
        return [row % count for row in range(self.rank, -(-count // self.world) * self.world, self.world)]

    def collect(self, part: np.ndarray, count: int) -> np.ndarray:
        """What the ranks computed for the rows of `deal`, (n, ...) -> all rows once and in order, (count, ...)."""
        return np.stack(self.gather(part), axis=1).reshape(-1, *part.shape[1:])[:count]

    def parts(self, total: int, at_once: int | None) -> list[slice]:
        """This rank's share of a batch of `total` images, at least one for each, in parts of about equal size and of at
        most `at_once` images; every rank has as many parts, so where shares are unequal a part of 2 may replace two."""
        share = len(range(total)[self.share])
        count = 1 if at_once is None else min(total // self.world, -(-total // (self.world * at_once)))
        return [slice(share * i // count, share * (i + 1) // count) for i in range(count)]

    def device(self, device: torch.device) -> torch.device:
        """The device of this rank. Raises UsageError if this machine has fewer than ranks."""
        if not self.wide or device.type == "cpu":
            return device
        there = torch.cuda.device_count() if device.type == "cuda" else 0
        if self.local_rank >= there:
            problem = f"{self.local_world} processes on this machine, which has {counted(there, 'GPU')}"
            raise UsageError(problem, f"start {there}, or use --device cpu" if there else "--device cpu")
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def ddp(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The network to call in training, whose gradients are averaged over the ranks (DistributedDataParallel)."""
        if not self.wide:
            return model
        warnings.filterwarnings("ignore", "Grad strides do not match")  # on speed, for a 1x1 convolution
        return nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

    def fsdp(self, model: nn.Module, parts: nn.ModuleList, device: torch.device) -> None:
        """Divide the parameters of a network among the ranks (FSDP); each part is gathered when it is computed."""
        from torch.distributed.device_mesh import init_device_mesh  # here: FSDP takes 2 s to import
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (self.world,))
        for module in (*parts, model):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)

    def share_statistics(self, model: nn.Module) -> None:
        """Give every rank the batch statistics of rank 0, which has seen its own share alone on a CPU."""
        for buffer in model.buffers() if self.wide else ():
            dist.broadcast(buffer, 0)


def sync_gradients(network: nn.Module, on: bool) -> None:
    """Switch the averaging over the ranks in the next backward pass on or off: on for the last batch of a step."""
    if isinstance(network, nn.parallel.DistributedDataParallel):
        network.require_backward_grad_sync = on  # as its no_sync() does
    elif hasattr(network, "set_requires_gradient_sync"):  # of FSDP
        network.set_requires_gradient_sync(on)  # type: ignore[operator]


def full(value: Any) -> Any:
    """A tree of states with the whole of every tensor that is divided, on the CPU; all ranks call this together."""
    if isinstance(value, dict):
        return {key: full(part) for key, part in value.items()}
    return whole(value).cpu() if hasattr(value, "full_tensor") else value


def whole(value: Tensor) -> Tensor:
    """The whole of a tensor whose parts may lie on several ranks (DTensor); all ranks call this together."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value  # without importing its module


def sharded_like(value: Any, own: Any) -> Any:
    """Divide a tree of whole tensors as this rank's `own` tensors of these shapes are divided, and keep this rank's
    parts. `own` is such a tree, or one tensor for all that belong to it, such as the moments of a parameter."""
    if isinstance(value, dict):
        return {key: sharded_like(part, own.get(key) if isinstance(own, dict) else own) for key, part in value.items()}
    if not hasattr(own, "full_tensor") or not isinstance(value, Tensor) or value.shape != own.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements, src_data_rank=None)


ALONE = Ranks()


def launch(devices: int, device: str, args: list[str]) -> int:
    """`--devices N`: run `vitmed` with these arguments in a process for each device of a kind; return the exit code.

    Raises UsageError: this machine has fewer devices; VitmedError: a signal ended a process.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    kind = pick_device(device).type
    there, what = (torch.cuda.device_count(), "GPU") if kind == "cuda" else (cores() if kind == "cpu" else 1, "core")
    if devices > there:
        raise UsageError(f"--devices {devices}: this machine has {counted(there, what)}", f"--devices {there}")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the processes report their errors
    meeting: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    config = LaunchConfig(1, 1, devices, run_id=uuid.uuid4().hex, max_restarts=0, **meeting)
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
                fix = f"look for full memory; vitmed {args[0]} --resume RUN continues from what is saved"
                raise VitmedError(f"{signal.Signals(-code).name} ended process {rank} of {devices}", fix) from None
        return max(ends.values(), key=lambda code: (code > 0, code))
    return 0
