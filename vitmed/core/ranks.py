"""The processes of one training. Each is a rank and computes its rows of every batch; rank 0 leads: it prepares,
prints and writes. Only this module and `training/sharding.py` know `torch.distributed`."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count, pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from vitmed.core.errors import UsageError, VitmedError
from vitmed.core.process import cores, is_rank
from vitmed.core.text import counted

TIMEOUT = timedelta(minutes=30)  # for a rank that is alive and does not answer; one that dies is noticed at once
PREPARATION = timedelta(days=30)  # the leader may read a million images first


class Rows(NamedTuple):
    """Rows of a batch that are computed at once: from `start` to before `stop`, of `total`.

    `together` counts them on all ranks; 0 where there are no other ranks.
    """

    start: int
    stop: int
    total: int
    together: int = 0


class LeaderReports(VitmedError):
    """An error that ends this rank and that the leader reports."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of the training; by default it is alone.

    Attributes:
        rank: from 0; world: how many there are, on all machines.
        local_rank, local_world: the same on this machine.
        store: where the ranks leave messages; None for one process.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    store: Any = None
    joined: ClassVar[Ranks | None] = None  # by the outermost block of `join` that is under way
    numbers: ClassVar[count[int]] = count(1)  # of the blocks within

    @property
    def leads(self) -> bool:
        """Whether this rank prints and writes."""
        return self.rank == 0

    @property
    def wide(self) -> bool:
        """Whether there are other ranks."""
        return self.world > 1

    @property
    def restarts(self) -> int:
        """How often torchrun has started these processes anew after a failure."""
        return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) if self.wide else 0

    @property
    def may_restart(self) -> bool:
        """Whether torchrun starts these processes anew after a failure."""
        return self.wide and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0

    def lost(self, error: RuntimeError) -> bool:
        """Whether the error says that another rank has ended."""
        text = str(error)
        return self.wide and (isinstance(error, dist.DistError) or "by peer" in text or "Broken pipe" in text)

    @classmethod
    @contextlib.contextmanager
    def join(cls) -> Iterator[Ranks]:
        """The ranks that torchrun has started, connected until the block ends; elsewhere one process alone.

        A block within another has the same connection and messages of its own; every rank enters as many.
        """
        if not is_rank():
            yield cls()
            return
        if cls.joined is not None:
            yield replace(cls.joined, store=dist.PrefixStore(f"{next(cls.numbers)}", cls.joined.store))
            return
        known, rank, world = next(dist.rendezvous("env://"))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # messages of an earlier one name dead processes
        store = dist.PrefixStore(f"vitmed {attempt}", known)
        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
        local, there = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        cls.joined = cls(rank, world, local, there, store)
        yield cls.joined
        cls.joined = None
        dist.destroy_process_group()  # not after an error, where it may wait for a rank that has ended

    def device(self, device: torch.device) -> torch.device:
        """The device of this rank. Raises UsageError if this machine has fewer than ranks."""
        if not self.wide or device.type == "cpu":
            return device
        there = torch.cuda.device_count() if device.type == "cuda" else 0
        if self.local_rank >= there:
            raise UsageError(
                f"{self.local_world} processes on this machine, which has {counted(there, 'GPU')}",
                f"start {there}, or use --device cpu" if there else "--device cpu",
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def rows(self, total: int) -> Rows:
        """This rank's rows of a batch. Raises UsageError if the batch has fewer images than there are ranks."""
        if total < self.world:
            raise UsageError(
                f"a batch of {counted(total, 'image')} for {self.world} processes, expected at least one for each",
                f"fewer processes, or --batch-size {self.world} or more",
            )
        return Rows(total * self.rank // self.world, total * (self.rank + 1) // self.world, total, total)

    def parts(self, total: int, at_once: int | None) -> list[Rows]:
        """This rank's rows of a batch in parts of about equal size, as many on every rank.

        Args:
            total: images of the batch, at least one for each rank.
            at_once: the most images in a part; None: no limit. Where the ranks have unequal numbers of rows, a part of
                2 may take the place of two of 1.
        """
        world = self.world
        count = 1 if at_once is None else min(total // world, -(-total // (world * at_once)))
        cuts = [total * i // (world * count) for i in range(world * count + 1)]
        sizes = [stop - start for start, stop in pairwise(cuts)]
        first = self.rank * count
        return [
            Rows(cuts[first + i], cuts[first + i + 1], total, sum(sizes[i::count]) if self.wide else 0)
            for i in range(count)
        ]

    def send(self, name: str, value: Any = None) -> Any:
        """Give `value` of the leader to every rank. The others wait for it, however long the leader works.

        Args:
            name: of the message, once in a block of `join`.

        Raises:
            LeaderReports: the leader has withdrawn the message.
        """
        if not self.wide:
            return value
        if self.leads:
            self.store.set(name, b"sent")
        else:
            self.store.wait([name], PREPARATION)
            if self.store.get(name) != b"sent":
                raise LeaderReports(f"rank 0 sends no {name}")
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]

    def withdraw(self, *names: str) -> None:
        """Let the ranks that wait for these messages of the leader, now or later, wait no longer."""
        if self.wide:
            for name in names:
                self.store.compare_set(name, "", "withdrawn")  # unless it has been sent

    def agree(self, error: VitmedError | None = None, stop: bool = False) -> bool:
        """Whether any rank is to stop. Raises on every rank the error of any rank; all ranks call this together."""
        if not self.wide:
            if error is not None:
                raise error
            return stop
        code = torch.tensor(2 if error is not None else int(stop))
        dist.all_reduce(code, dist.ReduceOp.MAX)
        if code == 2:
            errors: list[VitmedError | None] = [None] * self.world
            dist.all_gather_object(errors, error)
            rank, first = next((rank, found) for rank, found in enumerate(errors) if found is not None)
            where = f"rank {rank}: " if rank else ""
            raise (type(first) if self.leads else LeaderReports)(where + first.problem, first.fix)
        return bool(code)

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, without gradient."""
        if self.wide:
            value = value.detach().clone()
            dist.all_reduce(value)
        return value

    def of_leader(self, value: float) -> float:
        """The leader's value; all ranks call this together."""
        if not self.wide:
            return value
        box = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(box, 0)
        return float(box)

    def gather(self, values: list[str]) -> list[str]:
        """The texts of all ranks, each once."""
        parts = [values]
        if self.wide:
            parts = [[]] * self.world
            dist.all_gather_object(parts, values)
        return list(dict.fromkeys(text for part in parts for text in part))

    def deal(self, count: int) -> list[int]:
        """The rows, of `count`, for this rank to predict: as many as for every other, some perhaps twice."""
        return [row % count for row in range(self.rank, -(-count // self.world) * self.world, self.world)]

    def collect(self, part: np.ndarray, count: int) -> np.ndarray:
        """What the ranks computed for the rows of `deal`, (n, ...) -> all rows once and in order, (count, ...)."""
        if not self.wide:
            return part
        own = torch.from_numpy(np.ascontiguousarray(part))
        parts = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(parts, own)
        return torch.stack(parts, dim=1).flatten(0, 1)[:count].numpy()

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The network to call in training; its gradients are then averaged over the ranks."""
        if not self.wide:
            return model
        own = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=own)

    def shard(self, model: nn.Module, parts: nn.ModuleList, device: torch.device) -> None:
        """Divide the parameters of a network among the ranks; each of its parts is gathered when it is computed."""
        mesh = init_device_mesh(device.type, (self.world,))
        for module in (*parts, model):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)

    @contextlib.contextmanager
    def shared_cores(self) -> Iterator[None]:
        """Divide the cores of this machine among its ranks, unless OMP_NUM_THREADS does."""
        before = torch.get_num_threads()
        if self.local_world > 1 and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, cores() // self.local_world))
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", "Grad strides do not match"
                )  # of DDP, on speed, for a 1x1 convolution
                yield
        finally:
            torch.set_num_threads(before)


def sync_gradients(network: nn.Module, on: bool) -> None:
    """Whether the next backward pass ends with the sum over the ranks: only in the last batch of a step."""
    if isinstance(network, nn.parallel.DistributedDataParallel):
        network.require_backward_grad_sync = on  # as its no_sync() does
    elif isinstance(network, FSDPModule):
        network.set_requires_gradient_sync(on)


def full(value: Any) -> Any:
    """A tree of states with the whole of every tensor that is divided, on the CPU; all ranks call this together."""
    if isinstance(value, dict):
        return {key: full(part) for key, part in value.items()}
    return whole(value).cpu() if isinstance(value, DTensor) else value


def whole(value: Tensor) -> Tensor:
    """The whole of a tensor that may be divided among the ranks; all ranks call this together."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def sharded_like(value: Any, own: Tensor) -> Any:
    """This rank's part of a whole tensor, where its own tensor of that shape is divided among the ranks."""
    if not isinstance(own, DTensor) or not isinstance(value, Tensor) or value.shape != own.shape:
        return value
    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements, src_data_rank=None)


class _Sum(torch.autograd.Function):
    """The sum over all ranks; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        value = value.contiguous().clone()
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return _Sum.forward(ctx, gradient)


def sum_over_ranks(value: Tensor) -> Tensor:
    """The sum of a tensor over all ranks, with its gradient."""
    return _Sum.apply(value)  # type: ignore[no-any-return]


ALONE = Ranks()
