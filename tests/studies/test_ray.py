"""A Ray cluster of two nodes of one core: tables of it, and what happens when a worker, a node or the head is killed.

`pip install 'vitmed[ray]'`; each test ends what it has started by its number, and every cluster has a token of its own.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import BARE, TINY_ARGS, TINY_SETS, draw_classes, draw_pairs, draw_splits
from object_store import object_store

from vitmed import merge, predict, predict_shard, train
from vitmed.commands import predict_shard as verb
from vitmed.metrics.predictions_files import read_predictions

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")]
pytest.importorskip("ray")

HEAD = """
import sys
from ray.cluster_utils import Cluster
size = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
second = cluster.add_node(**size)
print(cluster.address, flush=True)
for line in sys.stdin:
    if line == "node\\n":
        cluster.remove_node(second, allow_graceful=False)
    elif line == "head\\n":
        cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    print("done", flush=True)
cluster.shutdown()
"""
SLOW = {  # for a machine that does more than these tests
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_worker_niceness": "0",
    "OMP_NUM_THREADS": "1",
}
VITMED = """
import sys
from vitmed.studies import cluster
cluster.CONNECT = cluster.NODE = cluster.PLACE = 120.0  # s; as in `SLOW`
from vitmed.commands import predict_shard
predict_shard.FEWEST = 4  # images of a part
from vitmed.cli import main
main()
"""


class Nodes:
    """A cluster, its address, and the environment of what may join it."""

    def __init__(self, folder: Path) -> None:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        own = {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
        self.environment = {**os.environ, **SLOW, **token, **own}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", HEAD], env=self.environment, **pipes)
        self.address = self.process.stdout.readline().strip()  # type: ignore[union-attr]

    def kill(self, what: str) -> None:
        """Kill every process of the second "node", or of the "head"."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def start(self, *words: object, on: bool = True, **environment: Any) -> subprocess.Popen[str]:
        """Begin a command on the cluster."""
        command = [sys.executable, "-c", VITMED, *map(str, words), *[f"--on=ray:{self.address}"] * on]
        streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, env=self.environment | environment, **streams)

    def run(self, *words: object, **environment: Any) -> tuple[int, str]:
        """Exit code of a command on the cluster, and what it says."""
        process = self.start(*words, **environment)
        said, _ = process.communicate(timeout=400)
        return process.returncode, said

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # the path of a socket is short
    there = Nodes(folder)
    try:
        assert there.address, "no cluster has started"
        yield there
    finally:
        there.end()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(there: Callable[[], Any], seconds: float = 300) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := there()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def processes(word: str) -> list[int]:
    """Numbers of the processes of which a word of the command line is this."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in file.read_bytes().decode(errors="replace").split("\0"):
                found.append(int(file.parent.name))
        except OSError:  # it has ended
            continue
    return found


def predicted(folder: Path) -> bytes:
    return merge(folder, force=True).file.read_bytes()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return draw_classes(tmp_path / "images", 30)


def words(trained: Any, images: Path | str, output: Path) -> list[object]:
    return ["predict", images, "--checkpoint", trained.best, "--device=cpu", "--precision=fp32", "--output", output]


def test_a_table_of_two_nodes_is_that_of_this_machine_also_when_they_are_killed(
    trained: Any, images: Path, tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a worker and a node are killed, at last the head: the same command does the rest here."""
    monkeypatch.setattr(verb, "FEWEST", 4)
    given: dict[str, Any] = {"checkpoint": trained.best, "device": "cpu", "precision": "fp32"}
    predict_shard(images, output=tmp_path / "here", on="local", **given)
    here = predicted(tmp_path / "here")
    code, said = nodes.run(*words(trained, images, tmp_path / "there"))
    assert code == 0, said
    assert predicted(tmp_path / "there") == here
    code, said = nodes.run(*words(trained, images, tmp_path / "strange"), RAY_AUTH_TOKEN=secrets.token_hex(32))
    assert code == 2 and "token" in said and "Traceback" not in said and not (tmp_path / "strange").exists()

    killed = tmp_path / "killed"
    command = nodes.start(*words(trained, images, killed))
    wait_for(lambda: list(killed.glob("part-*")))
    for number in processes("ray::apply"):
        os.kill(number, signal.SIGKILL)
    nodes.kill("node")
    said, _ = command.communicate(timeout=300)
    assert command.returncode == 0, said
    assert predicted(killed) == here

    lost = tmp_path / "lost"
    command = nodes.start(*words(trained, images, lost))
    wait_for(lambda: list(lost.glob("part-*")))
    nodes.kill("head")
    said, _ = command.communicate(timeout=300)
    if command.returncode:  # else it was faster
        assert "run the same command again" in said and "Traceback" not in said
    predict_shard(images, output=lost, on="local", **given)
    assert predicted(lost) == here


def test_nodes_copy_the_images_of_an_address(
    trained: Any, images: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Predictions part by part, and a training by the node that runs it; no node has the folder."""
    with object_store(images, tmp_path / "cache"):
        nodes: Nodes = request.getfixturevalue("nodes")
        code, said = nodes.run(*words(trained, "s3://lab/cells", tmp_path / "parts"))
        assert code == 0, said
        there = read_predictions(merge(tmp_path / "parts").file)
        here = predict(images, checkpoint=trained.best, device="cpu", precision="fp32")
        assert there.paths == tuple(
            f"s3://lab/cells/{Path(path).relative_to(images).as_posix()}" for path in here.paths
        )
        np.testing.assert_allclose(there.logits, here.logits, atol=1e-5)
        assert list((tmp_path / "cache" / "remote").rglob("*.png")) == []

        args = [*TINY_ARGS, "--folds", 2, "--no-baseline", "--no-report", "--resamples", 0, "--weights", "none"]
        code, said = nodes.run("cross-validate", "s3://lab/cells", *args, "--output", tmp_path, "--name", "folds")
        assert code == 0, said
        assert len(read_predictions(tmp_path / "folds" / "test" / "predictions.csv").paths) == 60


def test_auto_and_probe_find_there_what_they_find_here(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranking of weights, and the folds of the best."""
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    nodes: Nodes = request.getfixturevalue("nodes")
    other = draw_splits(tmp_path / "other", 8, 8, 4, seed=7)
    start = train(other, **BARE, sets=TINY_SETS, output=tmp_path, name="start", weights="none")  # type: ignore[arg-type]
    files = [tmp_path / "cache" / "weights" / name for name in ("one.pt", "two.pt")]
    files[0].parent.mkdir(parents=True)
    for file in files:
        shutil.copy(start.folder / "best.pt", file)
    data = draw_pairs(tmp_path / "data", 40)
    shared = ["--group-regex", r"(p\d+)_", "--resamples", 20, "--output", tmp_path]
    of_auto = [data, *TINY_ARGS, *shared, "--epochs", 1, "--time", "5m", "--no-report", "--no-autotune"]
    of_auto += ["--set", "train.threads=1"]  # which each process would measure anew
    assert nodes.start("auto", *of_auto, "--name", "here", on=False).wait(400) == 0
    code, said = nodes.run("auto", *of_auto, "--name", "there")
    assert code == 0, said
    of_probe = ["--folds", 3, "--fold", 1, "--hold-out", 0.2, "--image-size", 16, "--device", "cpu", *shared]
    code, said = nodes.run("probe", data, *of_probe, "--weights", ",".join(map(str, files)))
    assert code == 0, said

    here, there = (json.loads((tmp_path / name / "auto.json").read_text()) for name in ("here", "there"))
    for key in ("one", "test_of_the_ensemble", "tests_of_the_folds"):
        assert there[key] == here[key], key
    table = Path("folds", "ensemble", "test", "predictions.csv")
    assert (tmp_path / "there" / table).read_bytes() == (tmp_path / "here" / table).read_bytes()
    rankings = [*(tmp_path / name / "weights" / "ranking.csv" for name in ("here", "there"))]
    rankings += tmp_path.glob("*_weights/ranking.csv")
    rows = [[line.rpartition(",")[0] for line in file.read_text().splitlines()] for file in rankings]  # without ms
    assert len(rows) == 3 and rows[0] == rows[1] == rows[2] and len(rows[0]) == 4


def test_a_training_on_two_nodes_is_that_of_two_processes_here_and_resumes(tmp_path: Path, nodes: Nodes) -> None:
    """The cluster gives both places at once; a killed process ends both, and `--resume` goes on."""
    args = [draw_classes(tmp_path / "data", 24), *TINY_ARGS, "--no-baseline", "--no-report", "--resamples", 0]
    args += ["--weights", "none", "--no-autotune", "--set", "train.threads=1", "--output", tmp_path, "--devices", 2]
    assert nodes.start("train", *args, "--name", "here", on=False).wait(400) == 0
    code, said = nodes.run("train", *args, "--name", "there")
    assert code == 0, said
    assert "epoch   2/2" in said and "to predict images" in said
    here, there = (read_predictions(tmp_path / name / "test" / "predictions.csv") for name in ("here", "there"))
    assert there.paths == here.paths
    np.testing.assert_array_equal(there.logits, here.logits)

    command = nodes.start("train", *args, "--name", "killed", "--epochs", 400)
    wait_for(lambda: (tmp_path / "killed" / "last.pt").is_file())
    ranks = [number for number in processes("vitmed") if number in processes("killed")]
    os.kill(ranks[-1], signal.SIGKILL)
    said, _ = command.communicate(timeout=300)
    assert command.returncode == 1 and "--resume" in said and "Traceback" not in said, said
    code, said = nodes.run("train", "--resume", tmp_path / "killed", "--devices", 2, "--epochs", 400)
    assert code == 0, said
    lines = (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [*range(1, len(lines) + 1)]  # it stopped early


def test_folds_go_on_when_their_processes_the_node_and_the_head_are_killed(tmp_path: Path, nodes: Nodes) -> None:
    data = draw_pairs(tmp_path / "data", 24)
    args = [*TINY_ARGS, "--epochs", 150, "--patience", 150, "--folds", 3, "--no-baseline", "--no-report"]
    args += ["--resamples", 0, "--no-autotune", "--set", "train.threads=1"]  # which each process would measure anew
    args += ["--group-regex", r"(p\d+)_", "--output", tmp_path]
    assert nodes.start("cross-validate", data, *args, "--name", "here", on=False).wait(400) == 0

    command = nodes.start("cross-validate", data, *args, "--name", "there")
    wait_for(lambda: list(tmp_path.glob("there/fold-*/last.pt")))
    for number in processes("--name=fold-1"):
        os.kill(number, signal.SIGKILL)
    wait_for(lambda: (tmp_path / "there" / "fold-2" / "last.pt").is_file())
    nodes.kill("head")
    said, _ = command.communicate(timeout=300)
    if command.returncode:  # else it was faster
        assert command.returncode == 130 and f"--resume {tmp_path / 'there'}" in said, said
        assert nodes.start("cross-validate", "--resume", tmp_path / "there", on=False).wait(400) == 0
    here, there = (read_predictions(tmp_path / name / "test" / "predictions.csv") for name in ("here", "there"))
    assert there.paths == here.paths and len(set(there.paths)) == 48
    np.testing.assert_array_equal(there.logits, here.logits)
    for fold in (1, 2, 3):  # nothing lost, nothing twice
        lines = (tmp_path / "there" / f"fold-{fold}" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [*range(1, len(lines) + 1)]
    assert sorted(path.name for path in (tmp_path / "there").glob("fold-*") if path.is_dir()) == [
        "fold-1",
        "fold-2",
        "fold-3",
    ]
