"""Real transfer without any download: learn from grey cells, go on with few coloured cells of other patients.

    python benchmarks/transfer.py DATA_FOLDER WORK_FOLDER [--seeds 0 1 2 3 4] [--threads N]

1. `vitmed train` on malaria_gray50 without the patients of the small colour set (malaria/), from scratch.
2. For every seed, on the 400 + 100 cells of the colour set: the same network from scratch; fine-tuned from (1); and
   (1) frozen, with a logistic regression. The test split of the colour set is judged once by each, at the end.

A run that is already finished in WORK_FOLDER is not repeated.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from trees import unpack

PATIENT = re.compile(r"(?:^|/)(C\d+)[^/]*$")
NETWORK = ["model.width=128", "model.depth=6", "model.heads=4", "model.stem=conv", "model.pool=mean"]
SIZE = ["--image-size", "64", "--patch-size", "8", "--normalize", "image", "--policy", "blood_smear"]
METRICS = ("auroc", "balanced_accuracy", "log_loss")


def patient_of(file: Path) -> str:
    found = PATIENT.search(file.name)
    assert found, file
    return found[1]


def grey_without(data: Path, work: Path) -> Path:
    """malaria_gray50 as links, without the patients of malaria/."""
    tree = work / "gray50-other-patients"
    if tree.is_dir():
        return tree
    colour = {patient_of(file) for file in (data / "malaria").glob("*/*/*.png")}
    source = unpack(data, work, "malaria_gray50")
    partial = tree.with_suffix(".part")
    for file in sorted(source.glob("*/*.png")):
        if patient_of(file) not in colour:
            where = partial / file.parent.name
            where.mkdir(parents=True, exist_ok=True)
            (where / file.name).symlink_to(file.resolve())
    print(f"left out, because the colour set has them: {', '.join(sorted(colour))}")
    return partial.rename(tree)


def train(folder: Path, name: str, work: Path, arguments: list[str], threads: int | None) -> dict:
    """One run of `vitmed train`: what --json gave, and what it cost."""
    done = work / f"{name}.json"
    if done.is_file():
        return json.loads(done.read_text())
    command = [sys.executable, "-m", "vitmed", "train", str(folder), *arguments]
    command += ["--output", str(work / "runs"), "--name", name, "--json"]
    environment = dict(os.environ) | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    start = time.time()
    with (work / f"{name}.log").open("w") as log:
        out = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, env=environment, check=True, text=True)
    result = json.loads(out.stdout) | {"wall_seconds": time.time() - start}
    done.write_text(json.dumps(result))
    return result


def row(name: str, results: list[dict]) -> str:
    """Mean, spread and every seed's value of each metric."""
    cells = []
    for metric in METRICS:
        values = [result["test"]["overall"][metric]["value"] for result in results]
        each = ", ".join(f"{value:.3f}" for value in values)
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        cells.append(f"{metric} {statistics.mean(values):.3f} +- {spread:.3f} ({each})")
    minutes = statistics.mean(result["wall_seconds"] for result in results) / 60
    return f"| {name} | {' | '.join(cells)} | {minutes:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    grey = ["--config", "malaria_gray50", "--normalize", "image", "--seed", "0"]
    grey += ["--set", "data.val_fraction=0.05", "--set", "data.test_fraction=0.05"]
    first = train(grey_without(options.data, options.work), "grey", options.work, grey, options.threads)
    print(f"grey cells of other patients: test AUROC {first['test']['overall']['auroc']['value']:.4f}")
    file = str(options.work / "runs" / "grey" / "best.pt")
    sets = [part for text in NETWORK for part in ("--set", text)]
    ways = {
        "scratch": ["--config", "malaria", *sets, "--epochs", "40"],
        "fine-tuned": ["--weights", file, *SIZE, "--channels", "3", "--epochs", "40", "--set", "train.choose=last"],
        "frozen": ["--weights", file, *SIZE, "--channels", "3", "--freeze"],
    }
    print("| start | " + " | ".join(f"test {metric}" for metric in METRICS) + " | minutes a run |")
    print("|---|" + "---|" * (len(METRICS) + 1))
    for way, arguments in ways.items():
        results = []
        for seed in options.seeds:
            command = [*arguments, "--seed", str(seed)]
            results.append(train(options.data / "malaria", f"{way}-{seed}", options.work, command, options.threads))
        print(row(way, results), flush=True)


if __name__ == "__main__":
    main()
