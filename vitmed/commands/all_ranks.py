"""Trainings of all ranks, one after the other, which rank 0 chooses."""

from __future__ import annotations

import contextlib
from typing import Any

from vitmed.commands.train import train
from vitmed.core.errors import VitmedError
from vitmed.core.ranks import LeaderReports, Ranks


class AllRanks:
    """`train` on every rank: where one process alone decides what to train, it calls this, and the others follow."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.number = ranks, 0

    def __call__(self, **arguments: Any) -> Any:
        """`train` with these arguments."""
        self._next()
        return train(**arguments)

    def _next(self) -> None:
        self.number += 1
        self.ranks.send(f"training {self.number}")

    def follow(self, data: Any) -> None:
        """Take part in the trainings of the leader until it ends; `data`: the data folder on this machine, or None."""
        with contextlib.suppress(LeaderReports):
            while True:
                self._next()
                with contextlib.suppress(VitmedError):  # the leader reports it
                    train(data)

    def end(self) -> None:
        """Let the other ranks follow no longer."""
        self.ranks.withdraw(f"training {self.number + 1}")
