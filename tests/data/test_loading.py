"""Batches: every draw is a function of (seed, epoch, index), whoever loads it and wherever a run goes on."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Recorder, draw_classes

from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError
from vitmed.data.loading import (
    EpochBatches,
    Images,
    Reader,
    TrainImages,
    UnusableFiles,
    pick_workers,
    seed_of,
    train_loader,
)
from vitmed.data.samples import Sample
from vitmed.imaging.augmentation import Augmenter
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.training.processes import Ranks

PREPROCESSING = Preprocessing(16, 3, "pad", "imagenet")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def read_all(images: dict[str, Images], data: DataConfig) -> dict[str, list[str]]:
    """Read every file once; the hashes of each split."""
    return Reader(images, data, records=False).run()[0]


@pytest.fixture
def images(tmp_path: Path) -> Images:
    draw_classes(tmp_path, 8)
    names = [(f"{name}/{name}_{i}.png", k) for k, name in enumerate(("amber", "blue")) for i in range(8)]
    return Images(tmp_path, [Sample(path, label, None) for path, label in names], PREPROCESSING)


def batches(count: int = 16, size: int = 4, seed: int = 0, balanced: bool = False) -> EpochBatches:
    return EpochBatches(np.arange(count) % 2, size, seed, balanced)


def indices(sampler: EpochBatches, epoch: int = 0, start: int = 0) -> list[list[int]]:
    sampler.epoch, sampler.start = epoch, start
    found = list(sampler)
    assert len(found) == len(sampler)
    assert all(key[0] == epoch for batch in found for key in batch)
    return [[index for _, index in batch] for batch in found]


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    first = indices(batches(), epoch=3)
    assert indices(batches(), epoch=3) == first
    assert indices(batches(), epoch=4) != first and indices(batches(seed=1), epoch=3) != first
    sampler = batches()
    indices(sampler, epoch=7)
    assert indices(sampler, epoch=3) == first  # what was drawn before makes no difference
    assert [len(batch) for batch in first] == [4] * 4
    assert sorted(index for batch in first for index in batch) == list(range(16))
    for start in range(5):  # an epoch goes on where it was left
        assert indices(batches(), epoch=3, start=start) == first[start:]


def test_a_last_batch_that_is_not_full_is_left_out() -> None:
    assert [len(batch) for batch in indices(batches(19))] == [4] * 4
    assert [len(batch) for batch in indices(batches(3))] == [3]  # unless it is the only one
    seen = {index for epoch in range(30) for batch in indices(batches(19), epoch) for index in batch}
    assert seen == set(range(19))


def test_the_balanced_sampler_draws_classes_alike() -> None:
    labels = np.array([0] * 900 + [1] * 90 + [2] * 10)
    sampler = EpochBatches(labels, 10, 0, balanced=True)
    drawn = np.concatenate([labels[sampler.order(epoch)] for epoch in range(10)])
    share = np.bincount(drawn) / len(drawn)
    assert share == pytest.approx([1 / 3] * 3, abs=4 * np.sqrt(2 / 9 / len(drawn)))
    assert np.array_equal(sampler.order(1), sampler.order(1)) and not np.array_equal(sampler.order(1), sampler.order(2))
    keys = [index for batch in indices(sampler) for index in batch]
    assert len(set(keys)) == 1000 and [key % 1000 for key in keys] == sampler.order(0).tolist()  # no draw is another's


def test_seeds_are_mixed() -> None:
    seeds = {seed_of(a, b, c) for a in range(8) for b in range(8) for c in range(8)}
    assert len(seeds) == 512 and all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(1, 2) == seed_of(1, 2) != seed_of(2, 1)


def test_reading_hashes_every_file_and_keeps_the_squares(images: Images, ui: Recorder) -> None:
    files = [images.root / sample.path for sample in images.samples]
    fresh = [images.read(i).copy() for i in range(len(images))]
    hashes = read_all({"train": images}, DataConfig())["train"]
    assert hashes == [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert images.in_memory
    for file in files:
        file.unlink()
    assert all(np.array_equal(images.read(i), image) for i, image in enumerate(fresh))
    assert images.megabytes == pytest.approx(16 * 16 * 16 * 3 / 2**20)


def test_images_that_are_not_kept_are_read_again(images: Images, ui: Recorder) -> None:
    read_all({"train": images}, DataConfig(cache=False))
    assert images.cache is None
    (images.root / images.samples[0].path).unlink()
    with pytest.raises(DataError, match=r"amber_0\.png"):
        images.read(0)


def test_all_files_that_cannot_be_read_are_named_at_once(images: Images, ui: Recorder) -> None:
    bad = [images.root / images.samples[i].path for i in range(12)]
    for file in bad:
        file.write_bytes(b"")
    with pytest.raises(DataError) as error:
        read_all({"train": images}, DataConfig())
    message = str(error.value)
    assert sum(str(file) in message for file in bad) == 10 and "12 of 16" in message and "2 more" in message
    assert str(UnusableFiles({3: DataError("a.png: broken")}, 16)).startswith("a.png: broken")  # one needs no count


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_with_files_that_are_gone_is_one_error_that_names_them(images: Images, workers: int) -> None:
    lost = [images.root / images.samples[i].path for i in (2, 5)]
    for file in lost:
        file.unlink()
    sampler = EpochBatches(np.zeros(8, np.int64), 8, 0, balanced=False)
    (batch,) = train_loader(TrainImages(images, Augmenter("none", 16, 3), 0), sampler, workers, pin=False)
    assert isinstance(batch, DataError) and batch.fix == "restore these files"
    assert sorted(batch.problem.splitlines()) == [f"{file}: no such file" for file in lost]


@pytest.mark.parametrize("policy", ["none", "blood_smear"])
def test_workers_and_memory_change_nothing(images: Images, policy: str, ui: Recorder) -> None:
    dataset = TrainImages(images, Augmenter(policy, 16, 3), seed=5)
    sampler = batches()

    def epoch(number: int, workers: int) -> list[tuple[torch.Tensor, ...]]:
        sampler.epoch, sampler.start = number, 0
        return [tuple(batch) for batch in train_loader(dataset, sampler, workers, pin=False)]

    state = torch.get_rng_state()
    read = epoch(1, 0)
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn from the global generator
    assert [b[0].shape for b in read] == [(4, 16, 16, 3)] * 4 and read[0][0].dtype == torch.uint8
    assert all(torch.equal(labels, torch.from_numpy(images.labels[index])) for _, labels, index in read)
    read_all({"train": images}, DataConfig())
    for other in (epoch(1, 0), epoch(1, 2)):
        assert all(torch.equal(x, y) for a, b in zip(read, other, strict=True) for x, y in zip(a, b, strict=True))
    one, two = ({int(i): x for b in part for x, i in zip(b[0], b[2], strict=True)} for part in (read, epoch(2, 0)))
    same = sum(torch.equal(one[i], two[i]) for i in range(16))
    assert same == 16 if policy == "none" else same <= 4  # another epoch, other draws


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="this system cannot say who sent a signal")
@pytest.mark.parametrize("born", [True, False])
def test_a_signal_to_all_processes_ends_no_worker(images: Images, born: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `timeout`, Slurm and systemd send it, also while a worker starts; the main process decides when to end."""
    if not born:
        monkeypatch.setattr(torch, "set_num_threads", lambda _: time.sleep(1))  # called by torch in a new worker
    loader = train_loader(TrainImages(images, Augmenter("none", 16, 3), 0), batches(), 1, pin=False)
    epoch = iter(loader)
    read = [next(epoch)] if born else []
    (worker,) = epoch._workers  # type: ignore[attr-defined]
    subprocess.run(["kill", str(worker.pid)], check=True)
    assert len(read + list(epoch)) == 4 and worker.is_alive()
    worker.terminate()  # by the main process
    worker.join(10)
    assert worker.exitcode == 0


def test_number_of_workers() -> None:
    assert pick_workers(3, False, True, CPU) == 3 and pick_workers(0, True, False, CUDA) == 0
    assert pick_workers(None, augments=False, in_memory=True, device=CPU) == 0
    assert all(pick_workers(None, augments=True, in_memory=True, device=device) >= 1 for device in (CPU, CUDA))


@pytest.mark.parametrize("world", [2, 3])
def test_an_image_changes_alike_whatever_the_number_of_ranks_and_of_workers(images: Images, world: int) -> None:
    dataset = TrainImages(images, Augmenter("medical", 16, 3), seed=5)

    def changed(ranks: Ranks, epoch: int, workers: int = 0) -> dict[int, bytes]:
        sampler = EpochBatches(images.labels, 5, 0, False, ranks.share)
        sampler.epoch = epoch
        found = {}
        for batch, _, indices in train_loader(dataset, sampler, workers, pin=False):
            found |= {int(i): image.numpy().tobytes() for i, image in zip(indices, batch, strict=True)}
        return found

    whole = changed(Ranks(), 1, workers=1)
    parts = [changed(Ranks(rank, world, rank, world), 1) for rank in range(world)]
    assert {index: image for part in parts for index, image in part.items()} == whole
    other = changed(Ranks(), 2)
    assert len(whole) == 15 and all(whole[index] != image for index, image in other.items() if index in whole)
