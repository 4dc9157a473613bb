"""The one path from images to logits: in order, in bounded memory, with the unreadable set aside."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest
import torch
from scipy.special import softmax
from small_networks import small_vit
from torch import nn

from vitmed.core.errors import DataError
from vitmed.data.thread_batches import read_batches
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.predict import batch_size, logits_of, mean_over_views, predict_logits
from vitmed.models.hardware import Precision
from vitmed.models.vit import ViT

PREPROCESSING = Preprocessing(16, 3, "pad", "half")
CPU, BF16 = torch.device("cpu"), Precision("bf16", torch.bfloat16, "")


def picture(index: int) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, (16, 16, 3), dtype=np.uint8)


def network() -> ViT:
    torch.manual_seed(0)
    return small_vit(3, 16, 8, width=16, depth=2, heads=2, dropout=0.5)


def test_batches_come_in_order_with_the_unreadable_apart() -> None:
    def read(index: int) -> np.ndarray:
        time.sleep(0.002 * (index % 3))  # threads overtake each other
        if index in (3, 4, 5, 9):
            raise DataError(f"{index} is broken")
        return picture(index)

    found = list(read_batches(read, 11, batch_size=3))
    assert [good for good, _, _ in found] == [[0, 1, 2], [], [6, 7, 8], [10]]
    assert [sorted(bad) for _, _, bad in found] == [[], [3, 4, 5], [], [9]]
    assert found[1][2][4] == "4 is broken"
    for good, images, _ in found:
        assert len(images) == len(good)
        assert all(np.array_equal(image, picture(i)) for i, image in zip(good, images, strict=True))
    for count in (0, 1, 3, 6, 7):
        assert [i for good, _, _ in read_batches(picture, count, 3) for i in good] == list(range(count))


def test_reading_is_never_more_than_a_batch_ahead() -> None:
    read, lock, ahead = 0, threading.Lock(), []

    def one(index: int) -> np.ndarray:
        nonlocal read
        with lock:
            read += 1
        return picture(index)

    for done, _ in enumerate(read_batches(one, 40, batch_size=4), 1):
        time.sleep(0.01)
        ahead.append(read - 4 * done)
    assert max(ahead) <= 4


def test_an_error_that_is_no_data_error_is_not_hidden() -> None:
    def read(index: int) -> np.ndarray:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(read_batches(read, 3))


def test_logits_are_the_networks() -> None:
    model, seen = network(), []
    indices, logits, problems = predict_logits(
        model, PREPROCESSING, picture, 70, CPU, progress=lambda done, total: seen.append((done, total))
    )
    assert indices == list(range(70)) and problems == {} and logits.dtype == np.float32
    assert seen == [(64, 70), (70, 70)]
    assert not model.training  # dropout rests
    with torch.no_grad():
        x = torch.stack([torch.from_numpy(picture(i)) for i in range(70)]).permute(0, 3, 1, 2) / 127.5 - 1
        expected = model(x).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    mixed = predict_logits(model, PREPROCESSING, picture, 8, CPU, BF16)[1]
    assert mixed.dtype == np.float32
    np.testing.assert_allclose(mixed, expected[:8], atol=0.05)

    class Watch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_grad_enabled() and x.dtype == torch.float32
            return x.mean(dim=(2, 3))

    assert predict_logits(network(), PREPROCESSING, picture, 3, CPU, forward=Watch())[1].shape == (3, 3)


def by_views(model: ViT, views: str, pictures: np.ndarray) -> np.ndarray:
    """Logits of the mean over views."""
    side = pictures.shape[1]

    def forward(x: torch.Tensor) -> torch.Tensor:
        return logits_of(model, mean_over_views(model, x, views))

    how = Preprocessing(side, 3, "pad", "half")
    return predict_logits(model, how, lambda i: pictures[i], len(pictures), CPU, forward=forward)[1]


@pytest.mark.parametrize("stem", ["patch", "residual"])
def test_views_average_the_logits_of_flipped_and_turned_pixels(stem: str) -> None:
    """By hand: numpy turns the pixels, the network sees each copy alone; and no copy changes the mean."""
    torch.manual_seed(0)
    model = small_vit(3, 16, 8, width=16, depth=2, heads=2, stem=stem, pool="mean").eval()
    nn.init.normal_(model.head.weight)  # logits that differ
    images = np.stack([picture(i) for i in range(5)])  # (5, S, S, C)
    eight = [np.rot90(part, k, (1, 2)) for part in (images, images[:, :, ::-1]) for k in range(4)]
    copies = {"one": [images], "mirror": [eight[0], eight[4]], "turns": eight[:4], "all": eight}
    copies["flips"] = [images, images[:, :, ::-1], images[:, ::-1], images[:, ::-1, ::-1]]
    with torch.no_grad():
        each = {
            name: [model(torch.from_numpy(part / 127.5 - 1).float().permute(0, 3, 1, 2)).numpy() for part in parts]
            for name, parts in copies.items()
        }
    assert np.ptp(np.stack(each["all"]), axis=0).min() > 1e-3  # the network does tell the copies apart
    for name, logits in each.items():
        found = by_views(model, name, images)
        np.testing.assert_allclose(found, np.mean(logits, axis=0), atol=1e-5)
        for copy in copies[name]:
            np.testing.assert_allclose(by_views(model, name, copy.copy()), found, atol=1e-5)


@pytest.mark.parametrize("stem", ["patch", "conv", "residual"])
@pytest.mark.parametrize(
    "side, patch, width, views",
    [
        (16, 8, 16, "one"), (16, 8, 16, "all"), (32, 16, 192, "one"),
        pytest.param(32, 16, 192, "all", marks=pytest.mark.slow),
        pytest.param(32, 4, 48, "one", marks=pytest.mark.slow), pytest.param(32, 4, 48, "all", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_other_images_move_no_probability_by_a_hundred_thousandth(
    stem: str, side: int, patch: int, width: int, views: str
) -> None:
    """Any images in any order, some unreadable: each has the probabilities that it has among all images."""
    torch.manual_seed(0)
    model = small_vit(5, side, patch, width=width, depth=2, heads=2, stem=stem)
    nn.init.normal_(model.head.weight, std=width**-0.5)  # logits that differ
    how, rng = Preprocessing(side, 3, "pad", "half"), np.random.default_rng(0)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return logits_of(model, mean_over_views(model, x, views))

    pictures = rng.integers(0, 256, (75, side, side, 3), dtype=np.uint8)
    whole = by_views(model, views, pictures)
    assert np.ptp(softmax(whole, axis=1), axis=0).min() > 1e-3
    for count in (1, 3, 31, 64, 75):
        rows = rng.permutation(len(pictures))[:count]
        broken = set(rows[rng.random(count) < 0.2]) if count > 3 else set()

        def read(i: int, rows: np.ndarray = rows, broken: set[int] = broken) -> np.ndarray:
            if rows[i] in broken:
                raise DataError("broken")
            return pictures[rows[i]]

        indices, found, problems = predict_logits(model, how, read, count, CPU, forward=forward)
        assert len(problems) == len(broken) and len(found) == count - len(broken)
        np.testing.assert_allclose(softmax(found, axis=1), softmax(whole[rows[indices]], axis=1), atol=1e-5, rtol=0)


def test_one_image_does_not_wait_for_a_large_batch() -> None:
    """ViT-Base at 224 px one image for two threads, a small network more, and always a power of two."""
    share, gpu = max(2, torch.get_num_threads()) / 2, torch.device("cuda")
    assert batch_size(197 * 768, CPU) <= 2 * share and batch_size(10**9, CPU) == batch_size(10**9, CPU, BF16) == 1
    assert 4 <= batch_size(197 * 192, CPU) <= 8 * share and batch_size(37 * 96, CPU) >= 32
    assert batch_size(197 * 192, CPU, BF16) >= 2 * batch_size(197 * 192, CPU) and batch_size(197, gpu) == 64
    assert all(math.log2(batch_size(10**k, CPU)).is_integer() for k in range(7))


def test_the_unreadable_have_no_logits() -> None:
    def read(index: int) -> np.ndarray:
        if index % 2:
            raise DataError(f"file {index}", "a fix")
        return picture(index)

    indices, logits, problems = predict_logits(network(), PREPROCESSING, read, 5, CPU)
    assert indices == [0, 2, 4] and logits.shape == (3, 3) and problems == {1: "file 1; a fix", 3: "file 3; a fix"}

    def broken(index: int) -> np.ndarray:
        raise DataError("x")

    indices, logits, problems = predict_logits(network(), PREPROCESSING, broken, 2, CPU)
    assert indices == [] and len(logits) == 0 and len(problems) == 2
