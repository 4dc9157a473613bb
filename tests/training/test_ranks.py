"""Several processes train as PyTorch's DDP and FSDP do: shares of a batch, masks of their own, one error for all."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty
from threading import Timer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import assert_close, last, same
from conftest import TINY, TINY_SETS, Recorder, draw_classes, draw_nothing, draw_splits
from tiny_config import tiny_config

from vitmed import train
from vitmed.core.errors import DataError, EndedByCaller, GateError, OutOfMemoryError, Reported, UsageError, VitmedError
from vitmed.core.load_config import load_config
from vitmed.data.loading import EpochBatches, Images
from vitmed.data.samples import Sample, Splits
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.vit import ViT
from vitmed.studies import one_run
from vitmed.training import processes
from vitmed.training import run as runs
from vitmed.training.early_stopping import validate
from vitmed.training.finetune import Finetune
from vitmed.training.loop import Batch, Control, Gradients
from vitmed.training.processes import Ranks
from vitmed.training.train_state import new_state

CLASSES, WORLDS = ("amber", "blue"), [2, 3, 4]
forks = pytest.mark.skipif(sys.platform != "linux" or torch.cuda.is_available(), reason="forks processes with torch")


def ranks(world: int) -> list[Ranks]:
    return [Ranks(rank, world, rank, world) for rank in range(world)]


@pytest.mark.parametrize("world", WORLDS)
def test_the_shares_of_the_ranks_are_every_batch_once(world: int) -> None:
    labels = np.arange(23) % 3
    whole = list(EpochBatches(labels, 9, 0, False))
    parts = [list(EpochBatches(labels, 9, 0, False, one.share)) for one in ranks(world)]
    for batch, shares in zip(whole, zip(*parts, strict=True), strict=True):
        assert sorted(key for part in shares for key in part) == sorted(batch)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("world", WORLDS)
def test_every_image_is_predicted_and_collected_once(world: int) -> None:
    dealt = [one.deal(11) for one in ranks(world)]
    assert len({len(rows) for rows in dealt}) == 1
    assert np.stack(dealt, axis=1).reshape(-1)[:11].tolist() == list(range(11))


def test_more_processes_than_images_of_a_batch_are_refused() -> None:
    samples = tuple(Sample(f"{i}.png", i % 2, None) for i in range(8))
    splits = Splits(Path("not-read"), CLASSES, dict.fromkeys(("train", "val", "test"), samples), {})
    session = runs.Session(torch.device("cpu"), runs.pick_precision("fp32", torch.device("cpu")), Ranks(0, 4))
    with pytest.raises(UsageError, match="a batch of 3 images for 4 processes"):
        Finetune.new(tiny_config(train__batch_size=3), splits, session)


def test_every_rank_and_every_part_draws_its_own_masks() -> None:
    """Rank 0 draws what one process draws."""
    config = load_config(None, {"model.image_size": 16, "model.patch_size": 8, "model.width": 16, "model.heads": 2})
    device = torch.device("cpu")

    def drawn(one: Ranks, at_once: int) -> list[list[float]]:
        """Numbers for mixing, and for the masks of each part."""
        model = ViT(config.model, 2)
        state = new_state(model, config, 1, device, runs.pick_precision("fp32", device))
        state.micro_batch, found = at_once, []

        def note(*tensors: torch.Tensor) -> torch.Tensor:
            found.append(torch.rand(2).tolist())
            return model.head.weight.sum()

        objective = SimpleNamespace(prepare=note, part=note)
        stream = SimpleNamespace(batches=EpochBatches(np.zeros(8, dtype=np.int64), 8, 0, False))
        gradients = Gradients(state, stream, objective, Control(config, ranks=one))  # type: ignore[arg-type]
        gradients.add(Batch(0, *[torch.zeros(4)] * 3, True))  # type: ignore[arg-type]
        return found

    alone, first, second = (drawn(Ranks(rank, world), 8) for rank, world in ((0, 1), (0, 2), (1, 2)))
    assert alone == first
    assert not any(a == b for a in first for b in second)
    parts = drawn(Ranks(), 2)
    assert parts[:2] == alone and len({tuple(numbers) for numbers in parts}) == 5


# --- real processes


def _child(rank: int, world: int, port: int, work: Callable[[], Any], results: Any) -> None:
    address = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in address.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        found = work()
    except Exception as error:
        found = (type(error), getattr(error, "problem", repr(error)))
    results.put((rank, found))
    results.close()
    results.join_thread()
    os._exit(0)


def on_ranks(world: int, work: Callable[[], Any], port: int = 0) -> list[Any]:
    """What a function returns on every rank, or the kind of its error and the problem; None of one that died."""
    if not port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()
    processes = [context.Process(target=_child, args=(rank, world, port, work, results)) for rank in range(world)]
    for process in processes:
        process.start()
    found: dict[int, Any] = {}
    end = time.monotonic() + 120
    while len(found) < world and time.monotonic() < end:
        try:
            rank, value = results.get(timeout=1)
            found[rank] = value
        except Empty:
            if not any(process.is_alive() for process in processes):
                break
    for process in processes:
        process.join(10)
        assert process.exitcode is not None, "a rank waits for another"
    return [found.get(rank) for rank in range(world)]


def test_a_rank_that_waits_says_for_whom_and_a_signal_ends_it(monkeypatch: pytest.MonkeyPatch, ui: Recorder) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        address = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
        for name, value in address.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UsageError, match=f"cannot meet at 127.0.0.1:{port}.*EADDRINUSE"), Ranks.join():
            pass
    monkeypatch.setattr(processes, "PATIENCE", 0.05)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs beside it
    try:
        Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt), Ranks.join():
            pass
    finally:
        signal.signal(signal.SIGINT, before)
    assert ui.said == [f"RANK 0 of WORLD_SIZE 2 waits for the others at 127.0.0.1:{port}"]
    torch.distributed.TCPStore("127.0.0.1", port, 2)  # the other, so that the thread ends


@pytest.mark.slow
@forks
def test_ranks_that_torchrun_restarts_meet_each_other_alone() -> None:
    """It keeps its store, with the addresses of the ranks that ended; the first to start must not read them."""
    agent = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def work(restart: int) -> int:
        names = {"USE_AGENT_STORE": True, "RESTART_COUNT": restart}
        os.environ.update({f"TORCHELASTIC_{name}": str(value) for name, value in names.items()}, GROUP_WORLD_SIZE="1")
        time.sleep(restart * int(os.environ["RANK"]))
        with Ranks.join() as own:
            return own.rank

    assert [on_ranks(2, partial(work, restart), agent.port) for restart in (0, 1)] == [[0, 1], [0, 1]]


@forks
def test_what_ranks_exchange(tmp_path: Path) -> None:
    def work() -> Any:
        found = []
        for number in range(2):  # a process trains more than once
            with Ranks.join() as own:
                found.append(own.first(lambda here=number: here))
        with Ranks.join() as own:
            with own.one_first():  # one rank of a machine reads first
                there = (tmp_path / "cache").is_file()
                if not there:
                    time.sleep(0.3)
                    (tmp_path / "cache").touch()
            mean = float(own.mean(torch.tensor(float(own.rank))))
            rows = own.collect(np.array([[row] for row in own.deal(5)]), 5).ravel().tolist()
            got = own.first(lambda: own.rank), mean, rows, own.agree(stop=own.rank == 1), own.gather(own.rank)
            return there, found, *got

    got = ([0, 1], 0, 0.5, [0, 1, 2, 3, 4], True, [0, 1])
    assert on_ranks(2, work) == [(False, *got), (True, *got)]


@forks
def test_all_ranks_validate_the_network_that_rank_0_keeps(tmp_path: Path) -> None:
    """On a CPU each has the batch statistics of its own images; those of rank 0 count."""
    draw_classes(tmp_path, 4)
    samples = [Sample(f"{name}/{name}_{i}.png", label, None) for label, name in enumerate(CLASSES) for i in range(4)]
    val = Images(tmp_path, samples, Preprocessing(16, 3, "pad", "imagenet"))
    asked, device = tiny_config(model__stem="conv", train__ema=False), torch.device("cpu")
    precision = runs.pick_precision("fp32", device)

    def work(statistic: int | None = None) -> float:
        torch.manual_seed(0)
        state = new_state(ViT(asked.model, 2), asked, 1, device, precision)
        with Ranks.join() as own:
            state.model.patch_embed.stem[1].running_mean.fill_(own.rank if statistic is None else statistic)
            return float(validate(state, val, CLASSES, asked, precision, own)["val_loss"])

    rank_0, rank_1 = work(0), work(1)
    assert on_ranks(2, work) == pytest.approx([rank_0] * 2) and abs(rank_0 - rank_1) > 1e-4


@forks
def test_an_error_of_any_rank_ends_all_and_rank_0_alone_raises_it() -> None:
    def work(fails: Callable[[Ranks], None]) -> Callable[[], Any]:
        def run() -> Any:
            with Ranks.join() as own:
                with own.one_first():
                    fails(own)
                own.first(lambda: None)
            return "no error"

        return run

    def on_one(own: Ranks) -> None:
        if own.rank == 1:
            raise DataError("/data: no such folder", "copy it")

    def on_all(own: Ranks) -> None:
        raise UsageError("no such flag")

    problem = "rank 1: /data: no such folder"
    assert on_ranks(2, work(on_one)) == [(DataError, problem), (Reported, problem)]
    assert on_ranks(2, work(on_all)) == [(UsageError, "no such flag"), (Reported, "no such flag")]


@forks
def test_an_error_of_rank_0_alone_keeps_what_it_holds() -> None:
    def work() -> Any:
        def gate() -> None:
            raise GateError("AUROC 0.5", result="a result")

        try:
            with Ranks.join() as own:
                own.first(gate)
        except GateError as error:
            return error.result

    assert on_ranks(2, work) == ["a result", (Reported, "AUROC 0.5")]


@forks
def test_a_rank_that_dies_or_has_no_memory_amid_a_step_is_noticed() -> None:
    def work(end: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            with Ranks.join() as own:
                if own.rank == 1:
                    end()
                own.mean(1.0)

        return run

    def no_memory() -> None:
        raise OutOfMemoryError("out of memory")

    lost = (VitmedError, "another process of this training has ended; its own error says why")
    assert on_ranks(2, work(lambda: os._exit(9))) == [lost, None]
    assert on_ranks(2, work(no_memory)) == [lost, (OutOfMemoryError, "out of memory")]


# --- trainings

FLAGS: dict[str, Any] = TINY | {
    "epochs": 3, "batch_size": 9, "accumulate": 2, "policy": "medical", "balance": "loss", "stem": "patch",
    "report": False, "baseline": False, "resamples": 0, "cache": False,
}  # fmt: skip
SETS = (*TINY_SETS, "model.depth=2")
MASKS = {"mixup": 0.3, "cutmix": 0.5, "drop_path": 0.2, "stem": "conv"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_splits(tmp_path_factory.mktemp("ranks") / "data", 21, 7, 9, ("amber", "blue", "green"))


def trainer(data: Path, output: Path, name: str, **flags: Any) -> Callable[[], Any]:
    """A training that returns its last.pt and its records."""
    sets = (*SETS, *(f"model.{part}=0.1" for part in ("dropout", "attention_dropout") if "drop_path" in flags))

    def work() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            draw_nothing(patch)
            run = train(data, output=output, name=name, sets=sets, **FLAGS | flags).folder
        return str(run)

    return work


@pytest.fixture(scope="module")
def one(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process, without masks and mixing."""
    return Path(trainer(data, tmp_path_factory.mktemp("one"), "run")())


@forks
@pytest.mark.parametrize(
    ("world", "flags"),
    [
        (2, {}),
        pytest.param(3, {"micro_batch": 2}, marks=pytest.mark.slow),
        pytest.param(2, {"shard_model": True, "micro_batch": 2, "grad_checkpointing": True}, marks=pytest.mark.slow),
    ],
    ids=["ddp", "parts", "sharded"],
)
def test_without_masks_and_mixing_the_ranks_give_what_one_process_gives(
    data: Path, tmp_path: Path, one: Path, world: int, flags: dict[str, Any]
) -> None:
    """Batches of 9, which 2 processes cannot divide evenly; class weights are those of the whole batch."""
    assert on_ranks(world, trainer(data, tmp_path, "run", **flags)) == [str(tmp_path / "run")] * world
    assert_close(tmp_path / "run", one, "optimiser")


@pytest.mark.slow
@forks
def test_the_same_seed_and_number_give_the_same_weights(data: Path, tmp_path: Path) -> None:
    """To the bit, with masks, mixing and batch norm; another number of processes draws others."""
    for name, world in (("one", 2), ("two", 2), ("three", 3)):
        on_ranks(world, trainer(data, tmp_path, name, epochs=1, **MASKS))
    runs = [last(tmp_path / name) for name in ("one", "two", "three")]
    for part in ("model", "optimiser", "ema"):
        same(runs[0]["training"][part], runs[1]["training"][part])
    assert not all(torch.equal(value, runs[2]["weights"][name]) for name, value in runs[0]["weights"].items())


@pytest.mark.slow
@forks
def test_a_run_goes_on_with_another_number_of_processes(data: Path, tmp_path: Path, one: Path) -> None:
    """Three begin, sharded; two go on; one ends. All take the same images."""

    def begin() -> Any:
        return train(
            data, output=tmp_path, name="run", sets=SETS, each_epoch=lambda record: True,
            **FLAGS | {"shard_model": True},
        )  # fmt: skip

    def go_on() -> Any:
        return train(resume=tmp_path / "run", shard_model=False, each_epoch=lambda record: record["epoch"] == 2)

    assert [found[0] for found in on_ranks(3, begin)] == [EndedByCaller, Reported, Reported]
    assert [found[0] for found in on_ranks(2, go_on)] == [EndedByCaller, Reported]
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        train(resume=tmp_path / "run")
    assert_close(tmp_path / "run", one, "optimiser")


@pytest.mark.slow
@forks
def test_a_rank_with_other_images_is_refused(data: Path, tmp_path: Path) -> None:
    """Rank 1 reads the data folder of another machine."""
    other = tmp_path / "other" / "data"
    shutil.copytree(data, other)
    first, second = sorted((other / "val" / "blue").iterdir())[:2]
    first.write_bytes(second.read_bytes())

    def work() -> Any:
        folder = other if os.environ["RANK"] == "1" else data
        return trainer(folder, tmp_path / "runs", "run")()

    found = on_ranks(2, work)
    assert found[0][0] is DataError and found[1][0] is Reported, found
    assert found[0][1] == f"rank 1: {other}: images or labels of val differ from those of rank 0"
    shutil.rmtree(other)
    assert on_ranks(2, work)[0] == (DataError, f"rank 1: {other}: no such folder")
    assert not (tmp_path / "runs" / "run").exists()


@pytest.mark.slow
@forks
def test_a_rank_with_other_versions_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = one_run.versions
    other = lambda: real() | ({"torch": "1.0"} if os.environ["RANK"] == "1" else {})  # noqa: E731
    monkeypatch.setattr(one_run, "versions", other)
    found = on_ranks(2, trainer(data, tmp_path, "run"))
    assert found[0] == (UsageError, f"rank 1: has torch 1.0, rank 0 has torch {real()['torch']}")
