"""Images that come together share a batch; nobody waits long for others."""

from __future__ import annotations

import asyncio
import time

import numpy as np
from conftest import Recorder, Trained
from served import serving

import vitmed as package
from vitmed.commands.serving.batching import WAIT, Batcher
from vitmed.metrics.predictions import Predictions


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

    batcher = Batcher[int](lambda squares, mapped: [int(one[0, 0, 0]) for one in squares], 4, lambda: coming,
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


def test_one_image_at_a_time_gets_the_answers_of_predict(trained: Trained) -> None:
    images = sorted((trained.data / "test").rglob("*.png"))[:8]
    own = package.predict(images, checkpoint=trained.best, precision="fp32", ui=Recorder())
    assert isinstance(own, Predictions)
    with serving(trained.folder, batch=1) as served, served.client() as client:
        found = served.post(*images).json()["images"]
        numbers = client.get("/metrics").text
    chances = [list(image["probabilities"].values()) for image in found]
    np.testing.assert_allclose(chances, own.probabilities, atol=1e-5)
    assert "vitmed_batch_images_count 9.0" in numbers and "vitmed_batch_images_sum 9.0" in numbers  # one at the start
