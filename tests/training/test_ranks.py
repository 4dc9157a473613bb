"""Several ranks share every batch: the parts of what they compute make up the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY, TINY_SETS, Recorder, draw_splits
from torch import nn
from vitmed.models.batch_layers import BatchNorm, Drop, DropPath, take_rows
from vitmed.training.follow import _join

from vitmed import train
from vitmed.core.environment import versions
from vitmed.core.errors import DataError, UsageError
from vitmed.core.hardware import seeded
from vitmed.core.load_config import load_config
from vitmed.core.ranks import Ranks
from vitmed.data.loading import EpochBatches
from vitmed.training.checkpoint import load_checkpoint
from vitmed.training.losses import mixer
from vitmed.training.training_run import Start

WORLDS = [2, 3, 4]


def ranks(world: int) -> list[Ranks]:
    return [Ranks(rank, world, rank, world) for rank in range(world)]


@pytest.mark.parametrize("world", WORLDS)
def test_the_rows_of_the_ranks_are_every_batch_once(world: int) -> None:
    labels = np.arange(23) % 3
    whole = list(EpochBatches(labels, 9, 0, False))
    parts = [list(EpochBatches(labels, 9, 0, False, one.rows(9))) for one in ranks(world)]
    for batch, slices in zip(whole, zip(*parts, strict=True), strict=True):
        assert [key for part in slices for key in part] == batch
        assert max(map(len, slices)) - min(map(len, slices)) <= 1


@pytest.mark.parametrize("world", WORLDS)
def test_every_image_is_predicted_and_collected_once(world: int) -> None:
    dealt = [one.deal(11) for one in ranks(world)]
    assert len({len(rows) for rows in dealt}) == 1
    assert np.stack(dealt, axis=1).reshape(-1)[:11].tolist() == list(range(11))


def test_more_processes_than_images_of_a_batch_are_refused() -> None:
    with pytest.raises(UsageError, match="a batch of 3 images for 4 processes"):
        Ranks(0, 4).rows(3)


@pytest.mark.parametrize("layer", [Drop(0.4), DropPath(0.4)])
def test_masks_are_those_of_the_whole_batch(layer: nn.Module) -> None:
    x = torch.ones(9, 5, 4)
    with seeded(3):
        whole = layer(x)
    found = []
    for one in ranks(4):
        rows = one.rows(9)
        take_rows(layer, rows)
        with seeded(3):
            found.append(layer(x[rows.start : rows.stop]))
    take_rows(layer, None)
    assert torch.equal(torch.cat(found), whole)


@pytest.mark.parametrize("kind", [{"mixup": 0.4}, {"cutmix": 0.5}, {"mixup": 0.4, "cutmix": 0.5}])
def test_an_image_is_mixed_with_the_image_before_it(kind: dict[str, float]) -> None:
    """torchvision rolls the batch by one: a rank needs one image more than its rows."""
    mix = mixer(load_config(None, {f"augment.{name}": value for name, value in kind.items()}), 3)
    x, y = torch.rand(9, 3, 8, 8), torch.arange(9) % 3
    for seed in range(4):
        with seeded(seed):
            whole = mix(x, y)
        for one in ranks(4):
            rows = one.rows(9)
            chosen = np.arange(rows.start - 1, rows.stop)
            with seeded(seed):
                part = mix(x[chosen], y[chosen])
            for a, b in zip(part, whole, strict=True):
                assert torch.equal(a[1:], b[rows.start : rows.stop])


def test_batch_norm_of_the_whole_batch_agrees_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitmed.models.batch_layers.sum_over_ranks", lambda value: value)  # one rank has all rows
    theirs, ours = nn.BatchNorm2d(4), BatchNorm(4)
    ours.rows = Ranks().rows(6)
    x = torch.randn(6, 4, 5, 5) * 3 + 1
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    results = [layer(value) for layer, value in zip((theirs, ours), inputs, strict=True)]
    torch.testing.assert_close(results[1], results[0])
    for result in results:
        (result * torch.arange(25.0).reshape(5, 5)).sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, atol=1e-4, rtol=1e-4)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """What a leader sends, from the last.pt of a run."""
    place = tmp_path_factory.mktemp("start")
    data = draw_splits(place / "data", 4, 2, 2)
    run = train(data, **TINY | {"epochs": 1, "report": False, "baseline": False}, sets=TINY_SETS, output=place / "runs",
                ui=Recorder()).folder  # fmt: skip
    saved = load_checkpoint(run / "last.pt")
    assert saved.training is not None
    return Start(saved.config, replace(saved.splits, root=data), saved.hashes, run, saved.training, versions())  # type: ignore[arg-type]


def test_a_rank_takes_the_state_of_the_leader(start: Start) -> None:
    run = _join(Ranks(1, 2, 1, 2), start, None)
    assert run.state.epoch == 1 and run.hashes == start.hashes
    for name, value in run.state.model.state_dict().items():
        assert torch.equal(value, start.state["model"][name]), name


def test_a_rank_with_other_images_is_refused(start: Start, tmp_path: Path) -> None:
    other = draw_splits(tmp_path / "data", 4, 2, 2)
    changed = sorted((other / "val" / "blue").iterdir())[0]
    changed.write_bytes((other / "train" / "amber" / "amber_0.png").read_bytes())
    with pytest.raises(
        DataError, match=r"1 image of val differ from those of rank 0, the first is val/blue/blue_0.png"
    ):
        _join(Ranks(1, 2, 1, 2), start, other)


def test_a_machine_that_lacks_a_file_is_refused(start: Start, tmp_path: Path) -> None:
    other = draw_splits(tmp_path / "data", 4, 2, 2)
    (other / "train" / "blue" / "blue_1.png").unlink()
    with pytest.raises(DataError, match=r"blue_1.png"):
        _join(Ranks(1, 2, 1, 2), start, other)


def test_a_machine_without_the_data_folder_is_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such data folder"):
        _join(Ranks(1, 2, 1, 2), replace(start, splits=replace(start.splits, root=tmp_path / "gone")), None)


def test_other_versions_are_refused(start: Start) -> None:
    with pytest.raises(UsageError, match=r"has torch .*, rank 0 has torch 1\.0"):
        _join(Ranks(1, 2, 1, 2), replace(start, versions=start.versions | {"torch": "1.0"}), None)
