"""Kill a training with SIGKILL at random moments, resume it, and compare the run with one that was never stopped.

    python benchmarks/kills.py --kills 100
    python benchmarks/kills.py --kills 100 --epochs 100

Each process is killed in the training or in the report phase, with equal chance. After every kill, each file with its
final name must be readable and each folder of a report complete. When a run is done, its weights, its predictions and
its list of files must be those of the uninterrupted run. The processes are forks, so the time to import torch is not
part of the moments; Linux and macOS only.

The last lines count: kills, lost (a resume failed), torn (a damaged file or folder), different (from the uninterrupted
run); the goal of the last three is 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitmed import train
from vitmed.core.run_folder import NUMBERS, REPORT, RunFolder
from vitmed.report import write
from vitmed.report.plots import drawing

PAUSE = 1.2  # s between a kill and the next process, which takes longer to import torch
SETTINGS: dict[str, Any] = {
    "image_size": 16, "patch_size": 8, "epochs": 4, "batch_size": 8, "save_every": 2, "policy": "none",
    "workers": 0, "device": "cpu", "precision": "fp32", "resamples": 0, "map_images": 0, "baseline": False,
}  # fmt: skip
FIGURES = ("confusion_matrix",)  # few and small: the moments matter, not the drawing
NETWORK = ("model.width=16", "model.depth=1", "model.heads=2")
TIMES = ("seconds", "waited", "images_per_second", "wait_share")


def draw(folder: Path) -> Path:
    """Images of two classes in three splits."""
    rng = np.random.default_rng(0)
    for split, count in {"train": 24, "val": 8, "test": 8}.items():
        for k, name in enumerate(("amber", "blue")):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(90, 130, (20, 20, 3), dtype=np.uint8)
                pixels[5:12, 5:12, 2 * k] = 230
                Image.fromarray(pixels).save(folder / split / name / f"{i}.png")
    return folder


def start(data: Path, run: Path, log: Path) -> int:
    """Begin or continue a run in a process of its own; returns its number."""
    if number := os.fork():
        return number
    code = 1
    with contextlib.suppress(BaseException), log.open("a") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        try:
            if (run / "last.pt").is_file():
                train(resume=run)
            else:
                train(data, output=run.parent, name=run.name, sets=NETWORK, **SETTINGS)
            code = 0
        except BaseException:
            traceback.print_exc()
    os._exit(code)


def wait(number: int, seconds: float) -> int | None:
    """The exit code of a process, or None if it was killed after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(number, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)
    return None


def torn(run: Path) -> list[str]:
    """Files and report folders that have their final names and are damaged or incomplete."""
    found = []
    for file in run.rglob("*"):
        name = file.relative_to(run)
        if any(part.startswith(".") for part in name.parts):
            continue
        try:
            if file.suffix == ".pt":
                torch.load(file, weights_only=True)
            elif file.suffix in (".json", ".jsonl"):
                [json.loads(text) for text in ([file.read_text()] if file.suffix == ".json" else file.open())]
            elif file.suffix == ".png":
                Image.open(file).load()
        except Exception as error:
            found.append(f"{name}: {error}")
    for split in ("val", "test"):
        for folder in RunFolder(run).evaluations(split):
            found += [f"{folder.name}: no {name}" for name in (NUMBERS, REPORT) if not (folder / name).is_file()]
    return found


def without_times(value: Any) -> Any:
    """The same tree without what a clock measured."""
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if key not in TIMES}
    return [without_times(part) for part in value] if isinstance(value, list | tuple) else value


def same(one: Any, other: Any) -> bool:
    """Whether two trees are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def differences(whole: Path, run: Path) -> list[str]:
    """What differs between an uninterrupted run and another."""
    names = [{str(file.relative_to(place)) for file in place.rglob("*")} for place in (whole, run)]
    found = [f"{name}: only in one of both" for name in sorted(names[0] ^ names[1])]
    for file in ("best.pt", "last.pt", "epoch_0002.pt"):
        trees = [without_times(torch.load(place / file, weights_only=True)) for place in (whole, run)]
        found += [f"{file}: {key}" for key in ("weights", "record", "training", "policy")
                  if not same(trees[0].get(key), trees[1].get(key))]  # fmt: skip
    for name in ("val/predictions.csv", "test/predictions.csv", "splits.csv"):
        if (whole / name).read_bytes() != (run / name).read_bytes():
            found.append(f"{name}: differs")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=4, help="more epochs, more kills in the training")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    SETTINGS.update(epochs=asked.epochs, patience=asked.epochs)
    rng, count = random.Random(asked.seed), {"kills": 0, "in the report phase": 0, "before last.pt": 0}
    lost, damaged, different, runs = [], [], [], 0
    place = Path(tempfile.mkdtemp(prefix="vitmed-kills-"))
    figures = {name: plot for name, plot in write.plots().items() if name in FIGURES}
    write.plots = lambda: figures
    drawing.DPI = 30
    os.environ["VITMED_CACHE"] = str(place / "cache")
    torch.set_num_threads(1)
    data, whole, log = draw(place / "data"), place / "runs" / "whole", place / "log.txt"
    # So that the forks import nothing.
    train(data, output=place / "runs", name="warm-up", sets=NETWORK, **SETTINGS)
    begun = time.monotonic()
    number = start(data, whole, log)
    while not any((whole / name).exists() for name in ("training_curves.png", "val")):
        time.sleep(0.01)
    trained = time.monotonic() - begun
    if wait(number, 600) != 0:
        sys.exit(f"the uninterrupted run failed: {log}")
    reported = time.monotonic() - begun
    print(f"uninterrupted: {trained:.1f} s of training, {reported - trained:.1f} s of reports", flush=True)
    while count["kills"] < asked.kills:
        runs += 1
        run = place / "runs" / f"run{runs}"
        while True:
            phase = (0, trained) if rng.random() < 0.5 else (trained, reported)
            spared = count["kills"] >= asked.kills
            if (run / "training_curves.png").is_file():  # what is left are the reports
                phase = (0, reported - trained)
                spared = spared or rng.random() < 0.5  # else few kills would hit the training of another run
            code = wait(start(data, run, log), 600 if spared else rng.uniform(*phase))
            if code is not None:
                break
            count["kills"] += 1
            count["in the report phase"] += (run / "training_curves.png").is_file()
            time.sleep(PAUSE)
            if not (run / "last.pt").is_file():
                count["before last.pt"] += 1
                shutil.rmtree(run, ignore_errors=True)
            damaged += [f"{run.name}: {text}" for text in torn(run)]
        if code != 0:
            lost.append(f"{run.name}: exit {code}, see {log}")
        else:
            different += [f"{run.name}: {text}" for text in differences(whole, run)]
        print(f"{run.name}: {count['kills']} kills so far", flush=True)
    for text in [*lost, *damaged, *different]:
        print(text)
    print(", ".join(f"{name} {value}" for name, value in count.items()) + f"; {runs} runs")
    print(f"lost {len(lost)}, torn {len(damaged)}, different {len(different)}")
    if lost or damaged or different:
        sys.exit(1)
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
