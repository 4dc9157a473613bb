"""Accuracy of the recipes on real images, over seeds: the ordinary command, its test metrics, mean and spread.

    python benchmarks/accuracy.py DATA_FOLDER WORK_FOLDER [--only NAME ...] [--seeds 0 1 2] [--threads N]

DATA_FOLDER holds mnist.tar.gz, cifar10.tar.gz, malaria_gray50.tar.gz with its table of patients, and malaria/.
A run that is already finished in WORK_FOLDER is not repeated. Nothing is chosen here: the recipes are what
they are, and the test split of each run is judged once, by `vitmed train` itself.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from trees import gray50_by_patient, unpack

BENCHMARKS = {
    # name: (recipe, data tree, metric -> bar of the issue)
    "malaria": ("malaria", "malaria", {"auroc": 0.97, "balanced_accuracy": 0.90}),
    "malaria_gray50": ("malaria_gray50", "gray50", {"accuracy": 0.950, "auroc": 0.986}),
    "mnist": ("mnist", "mnist", {"accuracy": 0.985}),
    "cifar10_patch4": ("cifar10_patch4", "cifar10", {"accuracy": 0.55}),
    "cifar10_patch8": ("cifar10_patch8", "cifar10", {"accuracy": 0.72}),
}


def tree(name: str, data: Path, work: Path) -> Path:
    """The folder to train on."""
    if name == "malaria":
        return data / "malaria"
    return gray50_by_patient(data, work) if name == "gray50" else unpack(data, work, name)


def run(recipe: str, folder: Path, seed: int, work: Path, threads: int | None) -> dict:
    """One run of `vitmed train`; its test metrics and what it cost."""
    name = f"{recipe}-seed{seed}"
    done = work / f"{name}.json"
    if done.is_file():
        return json.loads(done.read_text())
    command = [sys.executable, "-m", "vitmed", "train", str(folder), "--config", recipe, "--seed", str(seed)]
    command += ["--output", str(work / "runs"), "--name", name, "--json"]
    environment = dict(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    with (work / f"{name}.log").open("w") as log:
        out = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, env=environment, check=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    test = json.loads(out.stdout)["test"]
    result = {
        "seed": seed,
        "overall": test["overall"],
        "resampling": test["resampling"],
        "wall_seconds": time.time() - start,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "threads": threads,
    }
    done.write_text(json.dumps(result))
    return result


def table_row(name: str, results: list[dict]) -> str:
    """A row of the table in docs/benchmarks.md."""
    cells = []
    for metric, bar in BENCHMARKS[name][2].items():
        values = [result["overall"][metric]["value"] for result in results]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        each = ", ".join(f"{value:.4f}" for value in values)
        cells.append(f"{metric} {statistics.mean(values):.4f} +- {spread:.4f} ({each}); asked for {bar:g}")
    minutes = statistics.mean(result["wall_seconds"] for result in results) / 60
    cpu = statistics.mean(result["cpu_seconds"] for result in results) / 60
    return f"| {name} | {len(results)} | {'; '.join(cells)} | {minutes:.1f} wall, {cpu:.1f} CPU |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    print("| benchmark | seeds | test metrics: mean +- standard deviation (each seed) | minutes a run |")
    print("|---|---|---|---|")
    for name in options.only:
        recipe, data, _ = BENCHMARKS[name]
        folder = tree(data, options.data, options.work)
        results = [run(recipe, folder, seed, options.work, options.threads) for seed in options.seeds]
        print(table_row(name, results), flush=True)


if __name__ == "__main__":
    main()
