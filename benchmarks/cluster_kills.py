"""Kill a worker, a node or the head of a Ray cluster at random moments of a command, and compare its tables.

    python benchmarks/cluster_kills.py --predict 12 --folds 9 --tune 9    # an hour of 2 cores

Two nodes of one core on this machine, as in tests/studies/test_ray.py; a new cluster each time. Where the command ends,
the one that its message names goes on with `--on local`. Needs `pip install 'vitmed[ray,test]' psutil`, and Linux.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "studies")]

from conftest import BARE, TINY_ARGS, TINY_SETS, draw_pairs  # noqa: E402
from test_ray import VITMED, Nodes, predicted, wait_for  # noqa: E402

from vitmed import train  # noqa: E402

BARE_ARGS = ["--no-baseline", "--no-report", "--resamples", 0, "--no-autotune", "--set", "train.threads=1"]
BARE_ARGS += ["--group-regex", r"(p\d+)_", "--weights", "none"]
VICTIMS = ("worker", "node", "head")


def draw_large(folder: Path, count: int) -> Path:
    """Images of noise, which take a moment to decode."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(count):
        Image.fromarray(rng.integers(0, 256, (900, 900, 3), dtype=np.uint8)).save(folder / f"{i:03d}.png")
    return folder


def kill(nodes: Nodes, victim: str, rng: random.Random) -> str:
    """Kill one of the three, and say what."""
    if victim != "worker":
        nodes.kill(victim)
        return victim
    there = [child for child in psutil.Process(nodes.process.pid).children(recursive=True) if works(child)]
    if not there:
        return "no worker was there"
    chosen = rng.choice(there)
    name = " ".join(chosen.cmdline())[:20]
    chosen.kill()
    return f"worker ({name})"


def works(process: psutil.Process) -> bool:
    """Whether a process is a worker of Ray with a call, or the training that it began."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return words[:1] == ["ray::apply"] or ("train" in words and "vitmed" in words)


def epochs_twice(folder: Path) -> list[str]:
    """Runs in a folder whose records are not those of the epochs 1, 2, 3, ..."""
    found = []
    for file in sorted(folder.glob("*/metrics.jsonl")):
        numbers = [json.loads(line)["epoch"] for line in file.read_text().splitlines()]
        if numbers != [*range(1, len(numbers) + 1)]:
            found.append(f"{file.parent.name}: epochs {numbers}")
    return found


def tables_of(kind: str, folder: Path) -> dict[str, Any]:
    """What has to be equal: name -> content."""
    if kind == "predict":
        return {"the table": predicted(folder)}
    evaluated = {file.parent.parent.name.split("-2")[0]: file for file in sorted(folder.glob("*/*/predictions.csv"))}
    files: dict[str, Any] = {name: file.read_bytes() for name, file in evaluated.items()}
    files["runs"] = sorted(file.parent.parent.name.split("-2")[0] for file in folder.glob("*/*/predictions.csv"))
    if kind == "folds":
        return files | {"the table": (folder / "test" / "predictions.csv").read_bytes()}
    rows = csv.DictReader((folder / "trials.csv").open())
    return files | {"trials": [{k: v for k, v in row.items() if k not in ("seconds", "run")} for row in rows]}


def once(words: list[Any], folder: Path, victim: str, moment: float, rng: random.Random) -> dict[str, Any]:
    """Run a command on a new cluster with one kill (victim "": none), and what its message names."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    while not (nodes := Nodes(place)).address:  # as on a machine that does much else
        nodes.end()
    try:
        command = nodes.start(*words)
        wait_for(lambda: list(folder.glob(".vitmed-*")) or command.poll() is not None)
        wait_for(lambda: not list(folder.glob(".vitmed-*")))  # the nodes are looked at; the work begins
        began, killed = time.monotonic(), ""
        while victim and time.monotonic() < began + moment and command.poll() is None:
            time.sleep(0.01)
        if victim and command.poll() is None:
            killed = kill(nodes, victim, rng)
        said, _ = command.communicate(timeout=400)
        seconds, resumed, again = time.monotonic() - began, "", ""
        if command.returncode:
            fix = said.rpartition("Fix: ")[2].split("\n")[0]
            named = shlex.split(fix)[1:] if fix.startswith("vitmed ") else list(words)
            if "Traceback" in said or ("--resume" not in fix and "the same command again" not in fix):
                return {"killed": killed, "seconds": seconds, "problem": said[-2000:]}
            resumed = " ".join(shlex.split(fix)[:3]) if fix.startswith("vitmed ") else "the same command"
            process = nodes.start(*named, "--on=local", on=False)
            again, _ = process.communicate(timeout=400)
            if process.returncode:
                return {"killed": killed, "seconds": seconds, "problem": f"{said[-1000:]}\n{resumed}:\n{again[-1000:]}"}
        return {"killed": killed, "seconds": seconds, "resumed": resumed, "problem": ""}
    finally:
        nodes.end()
        shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in ("predict", "folds", "tune"):
        parser.add_argument(f"--{kind}", type=int, default=3, help="so many kills")
    parser.add_argument("--seed", type=int, default=0)
    asked = vars(parser.parse_args())
    rng, place, failed = random.Random(asked["seed"]), Path(tempfile.mkdtemp(prefix="vitmed-kills-")), 0
    os.environ |= {"VITMED_CACHE": f"{place / 'cache'}", "OMP_NUM_THREADS": "1"}
    data, large = draw_pairs(place / "data", 24), draw_large(place / "large", 160)
    settings: dict[str, Any] = BARE | {"output": place, "sets": TINY_SETS, "weights": "none"}
    best = train(data, name="model", **settings).folder / "best.pt"
    trained = [data, *TINY_ARGS, "--epochs", 150, "--patience", 150, *BARE_ARGS, "--output", place]
    commands: dict[str, list[Any]] = {
        "predict": ["predict", large, "--checkpoint", best, "--device=cpu", "--precision=fp32", "--output"],
        "folds": ["cross-validate", *trained, "--folds", 3, "--name"],
        "tune": ["tune", *trained, "--trials", 2, "--no-prune", "--name"],
    }
    commands["tune"] = [word for word in commands["tune"] if word not in ("--no-baseline", "--no-report")]
    for kind, words in commands.items():
        if not asked[kind]:
            continue

        def named(name: str, kind: str = kind, words: list[Any] = words) -> tuple[list[Any], Path]:
            folder = place / f"{kind}-{name}"
            return [*words, folder if kind == "predict" else folder.name], folder

        whole, here = named("whole")
        subprocess.run([sys.executable, "-c", VITMED, *map(str, whole), "--on=local"], check=True, capture_output=True)
        whole, there = named("cluster")
        seconds = once(whole, there, "", 0, rng)["seconds"]
        expected = tables_of(kind, here)
        print(f"{kind}: {seconds:.1f} s without a kill; equal: {tables_of(kind, there) == expected}", flush=True)
        for number in range(asked[kind]):
            again, folder = named(f"{number}")
            found = once(again, folder, VICTIMS[number % 3], rng.uniform(0, seconds), rng)
            problems = [found["problem"]] if found["problem"] else epochs_twice(folder)
            if not found["problem"]:
                tables = tables_of(kind, folder)
                problems += [f"{name}: differs" for name in expected if tables.get(name) != expected[name]]
            failed += bool(problems)
            how = f"killed: {found['killed'] or 'none, it was faster'}; then {found.get('resumed') or 'it went on'}"
            print(f"{kind} {number}: {how}, {found['seconds']:.1f} s: {problems or 'equal'}", flush=True)
    print(f"{failed} failed; {place}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
