"""Work elsewhere: the contract of any executor, what a node has to see, and which addresses are refused at once."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import BARE, TINY_SETS, draw_classes, draw_pairs, python, recording

from vitmed import cross_validate, merge, predict_shard, probe, train, tune
from vitmed.commands import predict_shard as verb
from vitmed.core.errors import DataError, Interrupted, UsageError, VitmedError
from vitmed.core.messages import warn
from vitmed.studies import cluster
from vitmed.studies.cluster import Killed, RayCluster, each, look, opened, prepare, ray_address
from vitmed.studies.ray_driver import Node
from vitmed.studies.study import _code, files_of


def table(folder: Path, output: Path, on: Any, **options: Any) -> bytes:
    predict_shard(folder, output=output, on=on, **options)
    return merge(output).file.read_bytes()


def squared(number: int) -> int:
    warn(f"number {number}")
    if number == 3:
        raise DataError("three", "leave it out")
    return number**2


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        yield executor


# ---- the contract of an executor ----


def test_calls_return_what_they_return_here_with_their_warnings_and_errors() -> None:
    with ThreadPoolExecutor(2) as executor:
        ui, calls = recording(), [(0,), (1,), (2,)]
        ui.verbose = False
        assert list(each(None, squared, calls)) == sorted(each(executor, squared, calls)) == [0, 1, 4]
        assert ui.warned[:3] == ["number 0", "number 1", "number 2"] and len(ui.warned) == 4  # the same, once
        with pytest.raises(DataError, match=r"three\nFix: leave it out"):
            list(each(executor, squared, [(3,)]))


class Dying(ThreadPoolExecutor):
    """Loses the worker of the first calls."""

    def __init__(self, deaths: int) -> None:
        super().__init__(1)
        self.deaths = deaths

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        self.deaths -= 1
        if self.deaths < 0:
            return super().submit(function, *arguments, **named)
        future = Future[Any]()
        future.set_exception(Killed("the end of a worker"))
        return future


def test_a_killed_worker_is_replaced_three_times() -> None:
    ui = recording()
    assert list(each(Dying(2), squared, [(5,)])) == [25] and sum("once more" in text for text in ui.warned) == 2
    with pytest.raises(VitmedError, match="3 times, perhaps for lack of memory"):
        list(each(Dying(3), squared, [(5,)]))


@pytest.mark.slow
def test_a_table_of_workers_is_that_of_this_process(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: ProcessPoolExecutor
) -> None:
    images = draw_classes(tmp_path / "images", 20)
    (images / "amber" / "broken.png").write_bytes(b"no image")
    monkeypatch.setattr(verb, "FEWEST", 7)
    options = {"checkpoint": trained.best, "device": "cpu", "precision": "fp32"}
    here = table(images, tmp_path / "here", "local", **options)
    assert here == table(images, tmp_path / "there", processes, **options)
    assert here.count(b"\n") == 42 and len(list((tmp_path / "there").glob("part-*-of-00006.parquet"))) == 6
    # the same command again does what is left
    (tmp_path / "there" / "part-00002-of-00006.parquet").unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITMED_ON", "local")
    again = predict_shard(images, output="there", **options)
    assert again.file == Path("there") and (again.read, len(again.errors)) == (40, 1)
    assert here == merge("there", force=True).file.read_bytes()
    with pytest.raises(UsageError, match="--on divides the images itself"):
        predict_shard(images, output="there", on="local", shard="1/2", **options)


def test_a_file_that_only_a_worker_does_not_see_is_no_row(trained: Any, tmp_path: Path) -> None:
    images = draw_classes(tmp_path / "images", 4)
    how = verb.How(trained.best, "cpu", "fp32", None, False, tmp_path, {"checkpoints": "", "images": 9})
    saved = cluster_model(trained.best)
    how.about["checkpoints"] = saved.weights_hash
    names = [str(images / "amber" / "amber_0.png"), str(tmp_path / "gone.png")]
    with pytest.raises(DataError, match=r"does not see .*gone\.png"):
        verb.write_shard(how, verb.Shard(1, 1), names, {})
    assert not list(tmp_path.glob("*.parquet"))
    assert verb.write_shard(how, verb.Shard(1, 1), names, {names[1]: ""}).read == 1  # named, and not there at all


def cluster_model(path: Path) -> Any:
    from vitmed.inference.open_model import open_model

    return open_model(path)


class Machines(ThreadPoolExecutor):
    """Gives each process of a job a cache folder of its own, as on another machine."""

    cache: Path

    def submit(self, function: Any, /, *call: Any, **named: Any) -> Future[Any]:
        process, (words, log, environment, stop), folder = call
        own = {"VITMED_CACHE": f"{self.cache / log.stem}"}
        return super().submit(function, process, (words, log, {**environment, **own}, stop), folder)


@pytest.mark.slow
def test_folds_of_other_machines_are_those_of_processes_here(tmp_path: Path) -> None:
    """Also of data outside the project, whose place each fold stores as a mark."""
    data, output = draw_pairs(tmp_path / "secret" / "data", 24), tmp_path / "a" / "b" / "c" / "runs"
    settings = {**BARE, "epochs": 1, "folds": 2, "sets": TINY_SETS, "output": output, "group_regex": r"(p\d+)_"}
    here = cross_validate(data, name="here", **settings)
    with Machines(2) as executor:
        executor.cache = tmp_path / "caches"
        there = cross_validate(data, name="there", on=executor, parallel=2, **settings)
    roots = {yaml.safe_load((there.folder / f"fold-{k}" / "config.yaml").read_text())["data"]["root"] for k in (1, 2)}
    assert len(roots) == 1 and roots.pop().startswith("elsewhere-")
    for part in ("fold-2/test", "test", "ensemble"):  # as of a fold that was killed before its test
        shutil.rmtree(there.folder / part)
    with Machines(2) as executor:
        executor.cache = tmp_path / "new caches"
        there = cross_validate(resume=there.folder, on=executor, parallel=2)
    tables = [(result.folder / "test" / "predictions.csv").read_bytes() for result in (here, there)]
    assert tables[0] == tables[1] and (there.folder / "fold-2.log").is_file()


@pytest.mark.slow
def test_trials_of_an_executor_end_early_and_the_winner_is_trained_there(tmp_path: Path) -> None:
    data = draw_pairs(tmp_path / "data", 24)
    settings = {**BARE, "epochs": 9, "group_regex": r"(p\d+)_", "sets": TINY_SETS, "output": tmp_path}
    for key in ("report", "baseline", "map_images"):  # trials have these
        del settings[key]
    with ThreadPoolExecutor(2) as executor:
        found = tune(data, name="t", trials=5, on=executor, parallel=2, **settings)
    trials = found.study.trials
    assert [trial.number for trial in trials] == [1, 2, 3, 4, 5] and {trial.state for trial in trials} <= {
        "done",
        "stopped",
    }
    assert all(trial.epochs == 9 for trial in trials if trial.state == "done") and found.study.test is not None
    assert not list(found.folder.glob(".*.stop"))


def test_one_run_is_not_divided(tmp_path: Path) -> None:
    data = draw_pairs(tmp_path / "data", 24)
    with pytest.raises(UsageError, match="--on and --strict are about parts in a folder"):
        predict_shard(data, on="local")
    with pytest.raises(UsageError, match="--strict: one run is not divided"):
        train(data, strict=True)
    with pytest.raises(UsageError, match="--strict: there is one thing to evaluate"):
        probe(data, strict=True)
    with pytest.raises(UsageError, match="--on: one run is not divided"):
        train(data, on="ray", output=tmp_path)


# ---- one training on several nodes ----


def test_a_node_has_to_see_the_files_of_the_settings_wherever_they_stand(tmp_path: Path) -> None:
    data, plan = draw_classes(tmp_path / "data", 2), tmp_path / "plan.yaml"
    plan.write_text(f"data: {{root: {data}}}\n")
    images = [data / "amber" / "amber_0.png", data / "blue" / "blue_0.png", data / "blue" / "blue_1.png"]
    assert files_of({"data": str(data), "output": "runs", "epochs": 1}) == images
    assert files_of({"config": plan, "devices": 2}) == [plan, *images]
    labels = draw_classes(tmp_path / "other", 1) / "labels.csv"
    labels.write_text("path,label\namber/amber_0.png,a\nblue/blue_0.png,b\n")
    there = files_of({"data": labels.parent, "config": plan, "sets": [f"data.labels={labels}"]})
    assert there[0] == plan and there[-1] == labels and labels.parent in there[1].parents


def test_a_process_that_is_killed_after_ctrl_c_was_interrupted() -> None:
    assert _code([0, 0], True, "RUN") == 0 and _code([130, 130], True, "RUN") == 130
    with pytest.raises(Interrupted, match="stopped; process 1 of 2 did not end within 30 s") as stopped:
        _code([130, -9], True, "runs/a")
    assert "--resume runs/a with" in stopped.value.fix
    with pytest.raises(VitmedError, match="process 1 of 2 was killed, or its node was lost"):
        _code([130, -9], False, "RUN")


# ---- which cluster ----


def test_an_address_is_that_of_a_head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ray_address("ray:node1") == "node1:6379" and ray_address("ray:10.0.0.1:7000") == "10.0.0.1:7000"
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert ray_address("ray") == "127.0.0.1:6379"
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.2:6380\n")
    assert ray_address("ray") == "10.0.0.2:6380"
    monkeypatch.setenv("RAY_ADDRESS", "auto")  # Ray's word for the same
    assert ray_address("ray") == "10.0.0.2:6380"
    monkeypatch.setenv("RAY_ADDRESS", "head:1234")
    assert ray_address("ray") == "head:1234"
    for text in ("ray://head:10001", "dask", "s3://bucket", "ray:a:b:c", "ray:head:abc"):
        with pytest.raises(UsageError, match="expected local, ray or ray:HOST:PORT"):
            ray_address(text)
    monkeypatch.setenv("VITMED_ON", "nowhere")
    with pytest.raises(UsageError, match="--on nowhere"), opened(None):
        pass


def test_an_address_where_nothing_answers_is_an_error_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: object())
    began = time.monotonic()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with (
            pytest.raises(UsageError, match=f"ray:127.0.0.1:{port}: nothing answers there"),
            opened(f"ray:127.0.0.1:{port}"),
        ):
            pass
    assert time.monotonic() - began < 15
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'vitmed\[ray\]'"), opened("ray:127.0.0.1:1"):
        pass


def test_something_else_at_the_address_is_an_error_that_names_the_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says nothing: the driver waits as Ray does, and is ended."""
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(cluster, "DRIVER", "import time; time.sleep(60)")  # also where Ray is not installed
    monkeypatch.setattr(cluster, "CONNECT", 1.0)
    monkeypatch.setattr(cluster.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(cluster, "END", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UsageError, match=r"no answer within 1 s\nFix: .*Ray and the Python .* token"):
            RayCluster(f"127.0.0.1:{port}")
        monkeypatch.setattr(cluster, "CONNECT", 0.1)
        monkeypatch.setattr(cluster.os, "getloadavg", lambda: (1e3, 0.0, 0.0))
        with pytest.raises(UsageError, match=r"no answer within 0\.5 s\nFix: .*a machine is busy"):
            RayCluster(f"127.0.0.1:{port}")


def test_ray_is_imported_by_its_driver_alone() -> None:
    code = "import sys, vitmed.cli.commands, vitmed.studies.cluster; print('ray' in sys.modules)"
    assert python("-c", code).stdout.split() == ["False"]


# ---- what a node has to see ----


def test_a_look_names_what_differs(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc")
    seen = look([str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "new"))
    assert seen[str(tmp_path / "a")] == "3 bytes, SHA-256 ba7816bf8f01"  # of FIPS 180-4
    assert seen[str(tmp_path / "b")] == "No such file or directory" and {"vitmed", "torch", "Python"} <= seen.keys()
    assert (tmp_path / "new").is_file()
    assert look([], str(tmp_path / "no" / "new")).keys() == {"vitmed", "torch", "Python"}  # the command finds none


class Fake(RayCluster):
    """A cluster whose nodes are functions, or None where one is silent."""

    busy, bundle = False, None

    def __init__(self, strict: bool = False, **looks: Any) -> None:
        self.name, self.strict, self.looks = "ray:fake", strict, looks
        self._use([Node(name, f"10.0.0.{name}", 2, 0) for name in looks])

    def _begin(self, call: Any, nodes: list[str], cpus: int = 0, gpus: int = 0, bundle: Any = None) -> Future[Any]:
        future, (function, *arguments) = Future[Any](), call
        if cpus:
            self.size = (len(nodes), cpus, gpus)
            if not self.busy:
                future.set_result("a node")
        elif (answer := self.looks[nodes[0]]) is not None:
            future.set_result(answer(function(*arguments)))
        return future


def other(answer: tuple[dict[str, str], None, list[str]]) -> Any:
    return {what: value if what == "vitmed" else "64 bytes" for what, value in answer[0].items()}, None, []


def test_a_node_that_sees_other_files_is_left_out(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.write_text("an image")
    good: Any = lambda answer: answer  # noqa: E731
    blind = lambda answer: (None, DataError("host: no such folder"), [])  # noqa: E731
    ui, nodes = recording(), Fake(one=good, two=other, three=blind, four=good)
    prepare(nodes, [image], tmp_path, parallel=4)
    assert [node.number for node in nodes.nodes] == ["one", "four"] and nodes.size == (2, 1, 0)
    assert "10.0.0.two" in ui.warned[0] and "64 bytes there" in ui.warned[0] and "no such folder" in ui.warned[1]
    assert [path.name for path in tmp_path.iterdir()] == ["image.png"]  # what was written to look is gone
    prepare(nodes, [image], tmp_path, parallel=2)
    assert nodes.size == (2, 2, 0) and len(ui.warned) == 2
    with pytest.raises(UsageError, match=r"1 node cannot be used:[\s\S]*10.0.0.two"):
        prepare(Fake(strict=True, one=good, two=other), [image], tmp_path)
    with pytest.raises(UsageError, match="1 node cannot be used"):
        prepare(Fake(two=other), [image], tmp_path)


def test_nodes_that_do_not_answer_are_awaited_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "NODE", 1.0)
    ui, nodes, began = recording(), Fake(one=lambda answer: answer, two=None, three=None, four=None), time.monotonic()
    nodes.leave_out([], tmp_path)
    assert time.monotonic() - began < 2.5 and [node.number for node in nodes.nodes] == ["one"]
    assert ui.warned[0] == "ray:fake: a node is left out, 10.0.0.two: no answer within 1 s" and len(ui.warned) == 3


def test_no_free_place_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PLACE", 0.1)
    nodes = Fake(one=lambda answer: answer)
    nodes.busy = True
    with pytest.raises(UsageError, match=r"ray:fake: no node had 2 cores free for 0 s\nFix: wait until others end"):
        prepare(nodes, [], tmp_path, parallel=1)
    nodes.bundle = (0, 3)
    with pytest.raises(UsageError, match="ray:fake: there were not 3 places at once with 1 core free for 0 s"):
        prepare(nodes, [], tmp_path, parallel=3)
