"""Images that come together share a batch; nobody waits long for others."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vitmed.core.errors import UsageError
from vitmed.deploy.http.app import WAIT, Batcher, Service
from vitmed.deploy.http.limits import Limits


def test_a_name_that_json_cannot_hold_is_refused_before_the_first_request() -> None:
    model: Any = SimpleNamespace(saved=SimpleNamespace(classes=("weiblich", "m\udce4nlich"), path="best.pt"))
    with pytest.raises(UsageError, match=r"best\.pt: a class has a name that is not UTF-8"):
        Service(model, Limits())


def test_a_batch_waits_for_images_on_the_way_but_not_for_long() -> None:
    sizes: list[int] = []
    coming = 1

    async def ask(batcher: Batcher[int], count: int, later: float) -> float:
        began = time.perf_counter()
        waiting = [batcher.put(np.full((1, 1, 1), 1, np.uint8))]
        await asyncio.sleep(later)
        waiting += [batcher.put(np.full((1, 1, 1), i, np.uint8)) for i in range(2, count + 1)]
        assert await asyncio.gather(*waiting) == list(range(1, count + 1))
        return time.perf_counter() - began

    batcher = Batcher[int](lambda squares: [int(one[0, 0, 0]) for one in squares], 4, lambda: coming,
                           sizes.append, wait=0.5)  # fmt: skip
    assert WAIT <= 0.01
    batcher.start()
    asyncio.run(ask(batcher, 4, 0.05))  # a batch that is full waits no longer
    assert sizes == [4]
    asyncio.run(ask(batcher, 9, 0.05))
    assert sizes == [4, 4, 4, 1]
    coming = 0
    assert asyncio.run(ask(batcher, 1, 0)) < 0.4  # nothing is on its way
    batcher.stop()
