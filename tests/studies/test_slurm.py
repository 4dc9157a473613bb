"""The scripts of docs/many-machines.md under Slurm: two nodes of one core on this machine (Debian: slurm-wlm).

Only the sizes of the scripts are changed, and the names of files.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import TINY, TINY_ARGS, draw_classes

from vitmed import merge, predict
from vitmed.metrics.predictions_files import read_predictions

DOCS = Path(__file__).parents[2] / "docs" / "many-machines.md"
NODES = ("n1", "n2")
DAEMONS = ("slurmctld", "slurmd")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(shutil.which, DAEMONS)), reason="Slurm is not installed: apt install slurm-wlm"),
    pytest.mark.skipif(getattr(os, "geteuid", int)() != 0, reason="slurmd starts jobs as root only"),
]
CONFIGURATION = """
ClusterName=vitmed
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a running cluster, in which its jobs start."""
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    values: dict[str, Any] = {"host": socket.gethostname().split(".")[0], "ports": free_ports(3), "folder": folder}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
    monkeypatch.setenv("SLURM_CONF", f"{folder / 'slurm.conf'}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    daemons = [subprocess.Popen(words) for words in (["slurmctld", "-D"], *(["slurmd", "-D", "-N", n] for n in NODES))]
    try:
        deadline = time.monotonic() + 60
        while subprocess.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], capture_output=True, text=True).stdout != "2\n":
            assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()
            time.sleep(0.5)
        yield tmp_path
    finally:
        subprocess.run(["scancel", "--me"], check=False)
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


def block_of_docs(word: str) -> str:
    """The block of shell code in the documentation that has a word."""
    blocks = re.findall(r"```sh\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    return next(block for block in blocks if word in block)


def submit(script: str, *flags: str) -> None:
    """Run a job to its end."""
    Path("job.sh").write_text(script)
    result = subprocess.run(["sbatch", "--wait", *flags, "job.sh"], capture_output=True, text=True, timeout=900)
    said = "\n".join(file.read_text() for file in sorted(Path().glob("slurm-*.out")))
    assert result.returncode == 0, result.stderr + said


def test_an_array_predicts_what_one_command_predicts(slurm: Path, trained: Any) -> None:
    images = draw_classes(slurm / "images", 20)
    script = (
        block_of_docs("--shard auto")
        .replace("path/to/new", f"{images}")
        .replace("runs/first/best.pt", f"{trained.best}")
    )
    submit(script.replace("--shard auto", "--shard auto --precision fp32"), "--array=1-3", "--cpus-per-task=1")
    there = read_predictions(merge(slurm / "parts").file)
    here = predict(images, checkpoint=trained.best, precision="fp32", device="cpu")
    assert len(list((slurm / "parts").glob("*.parquet"))) == 3 and there.paths == here.paths
    np.testing.assert_allclose(there.logits, here.logits, atol=1e-5)


def test_each_task_of_an_array_trains_a_fold(slurm: Path) -> None:
    data = draw_classes(slurm / "images", 12)
    settings = {
        name: TINY[name] for name in ("epochs", "batch_size", "lr", "warmup_epochs", "workers", "device", "precision")
    }
    sizes = {"width": 16, "depth": 1, "heads": 2, "image_size": 16, "patch_size": 8, "weights": "none"}
    evaluation = {"report": False, "resamples": 0}
    config = {"model": sizes, "train": settings | {"baseline": False}, "evaluate": evaluation}
    Path("plan.yaml").write_text(yaml.safe_dump(config))
    line = block_of_docs("--fold $SLURM_ARRAY_TASK_ID").replace("path/to/images", f"{data}")
    command = re.search("--wrap '(.*)'", line)
    assert command is not None
    submit(f"#!/bin/sh\n{command[1].replace('--folds 5', '--folds 2')}\n", "--array=1-2")
    tables = [read_predictions(slurm / "runs" / f"fold-{k}" / "test" / "predictions.csv") for k in (1, 2)]
    assert sorted(path for table in tables for path in table.paths) == sorted(
        file.relative_to(data).as_posix() for file in data.rglob("*.png")
    )


def test_torchrun_trains_on_two_nodes(slurm: Path) -> None:
    data = draw_classes(slurm / "images", 12)
    script = block_of_docs("scontrol show hostnames")
    for old, new in {
        " --gpus-per-node=8 --cpus-per-task=64": "",
        "--nproc-per-node 8": "--nproc-per-node 1",
        '"$first:29500"': f"127.0.0.1:{free_ports(1)[0]}",
        '"$DATA"': f"{data} --image-size 16 --patch-size 8 --epochs 2 --batch-size 8 --device cpu --precision fp32 "
        "--weights none --no-baseline --no-report --resamples 0 "
        "--set model.width=16 --set model.depth=1 --set model.heads=2",
    }.items():
        assert old in script
        script = script.replace(old, new)
    submit(script)
    assert len((slurm / "runs" / "cells" / "metrics.jsonl").read_text().splitlines()) == 2
    assert (slurm / "runs" / "cells" / "test" / "metrics.json").is_file()


def test_ray_runs_in_an_allocation(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both nodes train a trial, and the cluster ends with the job."""
    pytest.importorskip("ray")
    from test_ray import SLOW, VITMED, wait_for

    data, (port,) = draw_classes(slurm / "images", 12), free_ports(1)
    Path("command.py").write_text(VITMED)
    folder = tempfile.mkdtemp(dir="/tmp")  # the path of a socket is short
    for name, value in {**SLOW, "RAY_TMPDIR": folder, "DATA": f"{data}", "RUNS": f"{slurm / 'runs'}"}.items():
        monkeypatch.setenv(name, value)
    script = block_of_docs("ray start --head")
    for old, new in {
        "--nodes=4 --ntasks-per-node=1 --cpus-per-task=16 --gpus-per-node=2": "--nodes=2 --ntasks-per-node=1",
        "--nodes=3 --ntasks=3 --cpus-per-task=16": "--nodes=1 --ntasks=1",
        "--block": "--num-cpus 1 --object-store-memory 80000000 --block",
        "6379": f"{port}",
        "sleep 20": "sleep 40",
        "vitmed tune": f"{sys.executable} command.py tune",
        "--trials 100": f"--trials 2 --no-prune --name study --resamples 0 {shlex.join(map(str, TINY_ARGS))}",
    }.items():
        assert old in script
        script = script.replace(old, new)
    try:
        submit(script)
        said = "\n".join(file.read_text() for file in Path().glob("slurm-*.out"))
        assert "2 at a time" in said and "node is left out" not in said
        assert len((slurm / "runs" / "study" / "trials.csv").read_text().splitlines()) == 3
        wait_for(lambda: subprocess.run(["pgrep", "-f", folder]).returncode == 1, 60)  # nothing of it is left
    finally:
        shutil.rmtree(folder, ignore_errors=True)
