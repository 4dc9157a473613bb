"""Runs every path of vitmed on a device, once and small, and prints one table: ok or failed, seconds, images/s.

    python benchmarks/gpu_checks.py                       # on the GPU
    python benchmarks/gpu_checks.py --device cpu          # the same program, smaller: only that it works
    python benchmarks/gpu_checks.py --only resume explain --work FOLDER

Commands run as a user runs them, on drawn blood cells, without a network connection. `step` trains on a batch that lies
on the device already (eager and compiled) and counts how often it waits for the GPU; `numbers` compares the device with
the CPU. No check starts after --seconds; what is missing is named. Exit code 1 if any check failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch

from vitmed.core.config import ModelConfig
from vitmed.core.load_config import load_config
from vitmed.data.loading import Images
from vitmed.data.samples import Sample
from vitmed.data.synthetic import draw_cells
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.predict import predict_logits
from vitmed.models.hardware import describe, pick_device, pick_precision, synchronise
from vitmed.models.vit import ViT
from vitmed.training.loop import optimiser_step
from vitmed.training.losses import objective_of
from vitmed.training.train_state import new_state

STEPS, WARM = 20, 5  # of a check of a step: all, and those that are not timed
SMALL = "--image-size 32 --patch-size 8 --set model.width=32 --set model.depth=2 --set model.heads=2 --batch-size 16"
LARGE = "--model vit_tiny --image-size 224 --patch-size 16 --batch-size 64"
QUICK = "--epochs 2 --augment blood_smear --no-report --no-baseline --resamples 0 --set train.choose=last"


class Failed(Exception):
    """A check that failed, in one line."""


def main() -> None:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--seconds", type=float, default=540, help="after these no check starts")
    parser.add_argument("--only", nargs="+", default=[], help="checks whose name contains one of these words")
    parser.add_argument("--work", type=Path, help="folder for data and runs; default a new one")
    asked = parser.parse_args()
    work = asked.work or Path(mkdtemp(prefix="gpu_checks_"))
    start, failures = time.perf_counter(), 0
    device = pick_device(asked.device)
    print(f"{describe(device)}, torch {torch.__version__}, {len(os.sched_getaffinity(0))} cores; {work}", flush=True)
    for name, check in checks(work, device):
        if asked.only and not any(word in name for word in asked.only):
            continue
        if (clock := time.perf_counter()) - start > asked.seconds:
            print(f"{name:34} not run")
            continue
        try:
            answer, note = "ok", check()
        except Exception as error:
            answer, note = "FAILED", f"{type(error).__name__}: {error}"
            failures += 1
        print(f"{name:34} {answer:6} {time.perf_counter() - clock:7.1f} s  {note}", flush=True)
    sys.exit(failures > 0)


def checks(work: Path, device: torch.device) -> Iterator[tuple[str, Callable[[], str]]]:
    """Every check: its name, and what runs it and returns a note."""
    on, gpu = ["--device", device.type], device.type == "cuda"
    data, runs = work / "cells", work / "runs"
    network = (LARGE if gpu else SMALL).split()
    run, best = runs / "bf16", runs / "bf16" / "best.pt"

    def train(name: str, *flags: str) -> Callable[[], str]:
        command = ["train", str(data), *network, *QUICK.split(), *on, "-o", str(runs), "--name", name, *flags]
        return lambda: vitmed(*command) and speed(runs / name)

    def resume(name: str) -> str:
        return vitmed("train", "--resume", str(runs / name), "--epochs", "3") and speed(runs / name)

    def draw() -> str:
        draw_cells(data, cells=1200 if gpu else 120, patients=60 if gpu else 20, size=150 if gpu else 40)
        return str(data)

    yield "draw images", draw
    yield "train bf16", train("bf16", "--precision", "bf16")
    if gpu:
        yield "train fp16", train("fp16", "--precision", "fp16")
        yield (
            "resume fp16",
            lambda: resume("fp16"),
        )
    yield "train fp32", train("fp32", "--precision", "fp32")
    yield "train, compiled", train("compiled", "--compile")
    yield "train, mixup, cutmix, conv stem", train(
        "mixing", "--mixup", "0.2", "--cutmix", "0.5", "--stem", "conv", "--drop-path", "0.1", "--balance", "loss",
        "--accumulate", "2",
    )  # fmt: skip
    for count in range(2, (torch.cuda.device_count() if gpu else 2) + 1):
        yield f"train --devices {count}", train(f"devices{count}", "--devices", str(count))
    yield "train --devices 1 --shard-model", train("shard", "--devices", "1", "--shard-model")
    yield "the same run twice", train("again", "--precision", "bf16")
    yield "weights of the same run twice", lambda: same_weights(run, runs / "again")
    yield "resume", lambda: resume("bf16")
    yield "evaluate", lambda: vitmed("evaluate", str(best), *on, "-o", str(work / "report"))
    yield (
        "predict",
        lambda: vitmed("predict", str(data), "--checkpoint", str(best), *on, "--csv", str(work / "all.csv")),
    )
    yield "predict on the CPU", lambda: vitmed("predict", str(data), "--checkpoint", str(best), "--device", "cpu")
    image = lambda: str(next(data.rglob("*.png")))  # noqa: E731
    yield "explain", lambda: vitmed("explain", image(), "--checkpoint", str(best), *on, "-o", str(work / "explain"))
    yield "stress", lambda: vitmed("stress", str(best), "--images", "20", *on, "-o", str(work / "stress"))
    yield "pretrain", lambda: vitmed(
        "pretrain", str(data), *network, "--epochs", "2", *on, "-o", str(runs), "--name", "mae"
    ) and speed(runs / "mae")  # fmt: skip
    encoder = str(runs / "mae" / "encoder.pt")
    yield "train from it, LoRA", lambda: vitmed(
        "train", str(data), *QUICK.split(), *on, "--weights", encoder, "--lora", "4", "-o", str(runs), "--name", "lora"
    ) and speed(runs / "lora")  # fmt: skip
    yield "train from it, frozen", lambda: vitmed(
        "train", str(data), *on, "--weights", encoder, "--freeze", "--no-report", "-o", str(runs), "--name", "frozen"
    )  # fmt: skip
    for precision in ("bf16", "fp16", "fp32") if gpu else ("bf16",):
        for compiled in (False, True):
            name = f"step {precision}{', compiled' if compiled else ''}"
            yield name, lambda p=precision, c=compiled: step(device, p, c)  # type: ignore[misc]
    yield "numbers: logits", lambda: same_logits(device)


def vitmed(*words: str) -> str:
    """Run a command; returns a word. Raises Failed with the last lines of its output."""
    command = [sys.executable, "-m", "vitmed", *words]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if found.returncode:
        raise Failed(f"exit {found.returncode}: {' / '.join(found.stderr.strip().splitlines()[-3:])}")
    return "done"


def speed(run: Path) -> str:
    """Images/s and the share of time spent waiting for data, in the last epoch."""
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return f"{last['images_per_second']:,.0f} images/s, {last['wait_share']:.0%} waiting, loss {last['train_loss']:.3f}"


def same_weights(one: Path, other: Path) -> str:
    """How far the weights of two runs are apart; on a GPU some sums have no fixed order."""
    a, b = (torch.load(run / "last.pt", weights_only=True, map_location="cpu")["weights"] for run in (one, other))
    far = max(float((a[name].double() - b[name].double()).abs().max()) for name in a)
    return f"differ by up to {far:.1e}" if far else "the same to the bit"


def step(device: torch.device, precision: str, compiled: bool) -> str:
    """Train on a batch that lies on the device: images/s, and how often a step waits for the device."""
    gpu = device.type == "cuda"
    side, batch = (224, 128) if gpu else (32, 8)
    fields: dict[str, Any] = {
        "model.image_size": side,
        "model.patch_size": 16,
        "model.pool": "mean",
        "model.stem": "patch",
    }
    fields |= {"model.name": "vit_base"} if gpu else {"model.width": 32, "model.depth": 2, "model.heads": 2}
    config = load_config(None, fields)
    images = Images(Path(), [Sample("", i % 2, None) for i in range(batch)], Preprocessing(side, 3, "pad", "imagenet"))
    arithmetic = pick_precision(precision, device)
    state = new_state(ViT(config.model, 2).to(device), config, STEPS, device, arithmetic)
    network: Any = torch.compile(state.model) if compiled else state.model
    objective = objective_of(images, 2, config, arithmetic, device)
    x = torch.randint(0, 256, (batch, side, side, 3), dtype=torch.uint8, device=device)
    y, waits, clock = torch.arange(batch, device=device) % 2, 0, 0.0
    for number in range(STEPS):
        if number == WARM:
            synchronise(device)
            clock = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if gpu:
                torch.cuda.set_sync_debug_mode("warn" if number == WARM else "default")
            state.scaler.scale(objective.part(network, objective.prepare(x, y))).backward()
            optimiser_step(state, 1e-4, 1.0)
        messages = [str(one.message) for one in caught]  # the first one warns of the debug mode itself
        waits += sum("synchroniz" in text and "debug mode is a prototype" not in text for text in messages)
    synchronise(device)
    rate = batch * (STEPS - WARM) / (time.perf_counter() - clock)
    memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GB" if gpu else ""
    if waits:
        raise Failed(f"{rate:,.0f} images/s; the step waits for the GPU {waits} times")
    return f"{rate:,.0f} images/s of {config.model.name} at {side} px{memory}"


def same_logits(device: torch.device) -> str:
    """The largest difference of an fp32 logit to the CPU's, of a network with random weights."""
    torch.manual_seed(0)
    model = ViT(ModelConfig(image_size=64, patch_size=8, width=128, depth=6, heads=4, stem="conv"), 5)
    torch.nn.init.normal_(model.head.weight)
    pictures = np.random.default_rng(0).integers(0, 256, (16, 64, 64, 3), dtype=np.uint8)
    how = Preprocessing(64, 3, "pad", "imagenet")
    places = torch.device("cpu"), device
    found = [predict_logits(model.to(place), how, pictures.__getitem__, 16, place)[1] for place in places]
    far = float(np.abs(found[0] - found[1]).max())
    if far > 1e-3:
        raise Failed(f"logits of {np.abs(found[0]).max():.1f} differ by up to {far:.1e}")
    return f"differ by up to {far:.1e}"


if __name__ == "__main__":
    main()
