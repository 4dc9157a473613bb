"""vitmed beside timm and a plain ViT: training, inference and peak memory. (From files to batches: pipeline.py.)

    python benchmarks/speed.py                        all of it, some minutes on a quiet machine
    python benchmarks/speed.py --only train --batch 8 --rounds 3

Every contender is a process of its own, so that it has its own allocator, threads and peak memory. They take
turns step by step: one computes while the others wait, and the order turns round every round. A ratio is taken
within each round and its median and quartiles are told, because what disturbs a machine lasts longer than a round.

"tuned timm" is timm in a process with the settings that the command `vitmed` makes for itself (vitmed/tuning.py):
the ratio to it is what the model and the loop are worth, the ratio to timm as it comes is what a user sees.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Step = Callable[[], Any]
SIDE, CLASSES = 224, 10


@dataclass(frozen=True)
class Contender:
    """What takes turns: `build` makes its step, in its own process.

    Attributes:
        tuned: with the settings of the process that the command `vitmed` makes (vitmed/tuning.py).
        bf16: computes in bf16.
    """

    build: Callable[[argparse.Namespace], Step]
    tuned: bool = False
    bf16: bool = False


# Training: one step is one batch, forward, backward and AdamW.


def train_vitmed(options: argparse.Namespace) -> Step:
    """The real loop: a batch out of the memory cache, normalised, trained on, gradient clipped, EMA kept."""
    import numpy as np

    from vitmed.core.hardware import pick_device, pick_precision
    from vitmed.core.load_config import build_config
    from vitmed.data.loading import EpochBatches, Images, TrainImages, train_loader
    from vitmed.data.samples import Sample
    from vitmed.imaging.augmentation import Augmenter
    from vitmed.imaging.preprocessing import Preprocessing
    from vitmed.models.vit import build_vit
    from vitmed.training.loop import fit
    from vitmed.training.losses import classification_loss
    from vitmed.training.train_state import new_state

    config = build_config({"model": {"name": options.model, "stem": "patch", "pool": "cls"}})
    samples = [Sample("", i % CLASSES, None) for i in range(1000 * options.batch)]
    images = Images(Path(), samples, Preprocessing.of(config))
    picture = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    images.cache = np.broadcast_to(picture, (len(images), SIDE, SIDE, 3))
    batches = EpochBatches(images.labels, options.batch, 0, False)
    loader = train_loader(TrainImages(images, Augmenter("none", SIDE, 3), 0), batches, 0, False)
    device = pick_device("cpu")
    precision = pick_precision("auto", device)
    model = build_vit(config.model, CLASSES)
    state = new_state(model, config, batches.batches, device, precision)
    loss_of = classification_loss(model, images, CLASSES, config, precision)
    events = fit(state, loader, batches, loss_of, dict, config)
    return lambda: next(events)


def train_timm(options: argparse.Namespace, sdpa: bool, bf16: bool = False) -> Step:
    """timm's model in the usual loop, with the fused AdamW; `sdpa`: PyTorch's fused attention, else explicit."""
    return _usual_step(_timm(options, sdpa), options, bf16, fused=True)


def train_plain(options: argparse.Namespace) -> Step:
    """The ViT of a tutorial: softmax(q k') v written out, fp32, torch's default AdamW."""
    return _usual_step(_plain(options), options, bf16=False, fused=False)


def _usual_step(model: Any, options: argparse.Namespace, bf16: bool, fused: bool) -> Step:
    import torch

    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05, fused=fused)
    x = torch.randn(options.batch, 3, SIDE, SIDE)
    y = torch.arange(options.batch) % CLASSES

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = torch.nn.functional.cross_entropy(model(x), y, label_smoothing=0.05)
        loss.backward()
        optimiser.step()

    return step


# Inference: one step is one batch, forward.


def infer_vitmed(options: argparse.Namespace) -> Step:
    """vitmed's network as `evaluate` and `predict` run it: fp32 on every machine."""
    from vitmed.core.load_config import build_config
    from vitmed.models.vit import build_vit

    model = build_config({"model": {"name": options.model, "stem": "patch", "pool": "cls"}}).model
    return _forward(build_vit(model, CLASSES), options, bf16=False)


def infer_timm(options: argparse.Namespace, sdpa: bool, bf16: bool = False) -> Step:
    """timm's model."""
    return _forward(_timm(options, sdpa), options, bf16)


def infer_plain(options: argparse.Namespace) -> Step:
    """The ViT of a tutorial."""
    return _forward(_plain(options), options, bf16=False)


def _forward(model: Any, options: argparse.Namespace, bf16: bool) -> Step:
    import torch

    model.eval()
    x = torch.randn(options.batch, 3, SIDE, SIDE)

    def step() -> None:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            model(x)

    return step


def _timm(options: argparse.Namespace, sdpa: bool) -> Any:
    import timm

    timm.layers.set_fused_attn(sdpa)
    return timm.create_model(f"{options.model}_patch16_{SIDE}", num_classes=CLASSES)


def _plain(options: argparse.Namespace) -> Any:
    """A pre-norm ViT as tutorials write it, the size of vitmed's."""
    import torch
    from torch import nn

    from vitmed.models.vit import SIZES

    width, depth, heads = SIZES[options.model]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
            self.out = nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm1(x)  # (B, N, D)
            split = (*y.shape[:2], heads, width // heads)
            q, k, v = (layer(y).view(split).transpose(1, 2) for layer in (self.query, self.key, self.value))
            scores = q @ k.transpose(-2, -1) / (width // heads) ** 0.5  # (B, A, N, N)
            x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(y.shape))
            return x + self.mlp(self.norm2(x))

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, 16, 16)
            self.cls = nn.Parameter(torch.zeros(1, 1, width))
            self.positions = nn.Parameter(torch.zeros(1, 1 + (SIDE // 16) ** 2, width))
            self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.positions
            return self.head(self.norm(self.blocks(x))[:, 0])

    return Plain()


# Taking turns.


def work(pipe: Connection, contender: Contender, options: argparse.Namespace) -> None:
    """The process of one contender: a step each time it is asked; answers seconds and peak memory in MB."""
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    if contender.tuned:
        from vitmed.core.process import tune_process

        tune_process()
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    step = contender.build(options)
    clock = time.process_time if options.cpu_time else time.perf_counter
    while pipe.recv():
        start = clock()
        step()
        seconds = clock() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        pipe.send((seconds, peak))


@contextmanager
def process(contender: Contender, options: argparse.Namespace) -> Iterator[Connection]:
    """Start the process of one contender, after its first step, which is slower and not counted."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=work, args=(theirs, contender, options), daemon=True)
    child.start()
    theirs.close()
    try:
        turn(ours)
        yield ours
        ours.send(False)
        child.join()
    finally:
        child.terminate()


def turn(pipe: Connection) -> tuple[float, float]:
    """One step: seconds, and the peak memory so far, MB."""
    pipe.send(True)
    return pipe.recv()


def compete(contenders: dict[str, Contender], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Name -> seconds of each round, and peak memory in MB."""
    results: dict[str, dict[str, Any]] = {name: {"seconds": [], "peak_mb": 0.0} for name in contenders}
    with ExitStack() as stack:
        pipes = {}
        for name, contender in contenders.items():
            say(f"  starting {name}")
            pipes[name] = stack.enter_context(process(contender, options))
        for round_ in range(options.rounds):
            for name in list(pipes) if round_ % 2 == 0 else reversed(pipes):
                time.sleep(0.05)  # until the threads of the one before sleep
                seconds, peak = turn(pipes[name])
                results[name]["seconds"].append(seconds)
                results[name]["peak_mb"] = peak
            say(f"  round {round_ + 1} of {options.rounds}")
    return results


def alone(contenders: dict[str, Contender], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Name -> peak memory in MB of three steps, one process after the other."""
    results = {}
    for name, contender in contenders.items():
        say(f"  {name}")
        with process(contender, options) as pipe:
            turn(pipe)
            results[name] = {"peak_mb": turn(pipe)[1]}
    return results


# Telling.


def ratio(results: dict[str, dict[str, Any]], slow: str, fast: str) -> tuple[float, float, float]:
    """Quartiles and median of seconds(slow) / seconds(fast), round by round: (25 %, 50 %, 75 %)."""
    ratios = [a / b for a, b in zip(results[slow]["seconds"], results[fast]["seconds"], strict=True)]
    if len(ratios) == 1:
        return ratios[0], ratios[0], ratios[0]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high


def rate(result: dict[str, Any], images: int) -> float:
    """Images per second of the median round."""
    return images / statistics.median(result["seconds"])


def tell_rates(results: dict[str, dict[str, Any]], images: int, base: str) -> None:
    """The table of one part: images/s, and how many times as fast as `base`."""
    print(f"\n| setting | images/s | x {base} (quartiles) | peak MB |\n|---|---|---|---|")
    for name, result in results.items():
        low, middle, high = ratio(results, base, name)
        print(
            f"| {name} | {rate(result, images):.1f} | {middle:.2f} ({low:.2f}-{high:.2f}) | {result['peak_mb']:.0f} |"
        )


def tell_ratio(results: dict[str, dict[str, Any]], ours: str, theirs: str | tuple[str, ...]) -> None:
    """One line: ours against the best of the rows whose name begins so, or with one of those."""
    best = max((name for name in results if name.startswith(theirs)), key=lambda name: rate(results[name], 1))
    low, middle, high = ratio(results, best, ours)
    print(f"\n{ours} is {middle:.2f} x {best} (quartiles {low:.2f}-{high:.2f}, {len(results[best]['seconds'])} rounds)")


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def machine(threads: int) -> dict[str, Any]:
    """What was measured on, without a host name."""
    from importlib.metadata import version

    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), cpu)
    packages = ("torch", "torchvision", "timm", "albumentations", "pillow")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": threads or "torch's default",
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Training."""
    results = compete(chosen(TRAIN, options), options)
    tell_rates(results, options.batch, "plain fp32")
    tell_ratio(results, "vitmed", "timm")
    tell_ratio(results, "vitmed", "tuned timm")
    return results


def inference(options: argparse.Namespace) -> dict[str, Any]:
    """Inference."""
    results = compete(chosen(INFERENCE, options), options)
    tell_rates(results, options.batch, "plain fp32")
    tell_ratio(results, "vitmed", "timm fp32")
    return results


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of training and of inference, the imports counted in, one process after the other."""
    results = {}
    for part, table in (("training", TRAIN), ("inference", INFERENCE)):
        found = alone(chosen(table, options), options)
        least = min(result["peak_mb"] for name, result in found.items() if name.startswith("timm"))
        print(f"\n| {part} | peak MB | x timm's least |\n|---|---|---|")
        for name, result in found.items():
            print(f"| {name} | {result['peak_mb']:.0f} | {result['peak_mb'] / least:.2f} |")
        results[part] = found
    return results


def chosen(table: dict[str, Contender], options: argparse.Namespace) -> dict[str, Contender]:
    """Without the bf16 rows where this CPU would only emulate bf16, unless all are asked for."""
    keep = options.all or options.bf16
    return {name: contender for name, contender in table.items() if keep or not contender.bf16}


def has_bf16(pipe: Connection) -> None:
    """Answer whether training here would take bf16; in a process of its own, so that this one loads no torch."""
    from vitmed.core.hardware import pick_device, pick_precision

    pipe.send(pick_precision("auto", pick_device("cpu")).mixed)


def main() -> None:
    """Read the options, run the parts, print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="one part; default: all")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contender (default 9)")
    parser.add_argument("--batch", type=int, default=32, help="images of a batch (default 32)")
    parser.add_argument("--model", default="vit_tiny", help="vit_tiny, vit_small, vit_base, vit_large, at patch 16")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch (default: its own choice)")
    parser.add_argument("--all", action="store_true", help="bf16 too on a CPU that only emulates it (ten times slower)")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    options = parser.parse_args()
    options.core, options.cpu_time = None, False
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(target=has_bf16, args=(theirs,))
    child.start()
    options.bf16 = ours.recv()
    child.join()

    about = machine(options.threads) | {"bf16": options.bf16, "batch": options.batch, "model": options.model}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    report: dict[str, Any] = {"machine": about}
    for part in [options.only] if options.only else PARTS:
        say(part)
        print(f"\n## {part}")
        report[part] = PARTS[part](options)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


TRAIN = {
    "vitmed": Contender(train_vitmed, tuned=True),
    "timm fp32, SDPA": Contender(partial(train_timm, sdpa=True)),
    "timm fp32, explicit": Contender(partial(train_timm, sdpa=False)),
    "timm bf16, SDPA": Contender(partial(train_timm, sdpa=True, bf16=True), bf16=True),
    "timm bf16, explicit": Contender(partial(train_timm, sdpa=False, bf16=True), bf16=True),
    "tuned timm fp32, SDPA": Contender(partial(train_timm, sdpa=True), tuned=True),
    "tuned timm bf16, explicit": Contender(partial(train_timm, sdpa=False, bf16=True), tuned=True, bf16=True),
    "plain fp32": Contender(train_plain),
}
INFERENCE = {
    "vitmed": Contender(infer_vitmed, tuned=True),
    "timm fp32, SDPA": Contender(partial(infer_timm, sdpa=True)),
    "timm fp32, explicit": Contender(partial(infer_timm, sdpa=False)),
    "timm bf16, SDPA": Contender(partial(infer_timm, sdpa=True, bf16=True), bf16=True),
    "tuned timm fp32, SDPA": Contender(partial(infer_timm, sdpa=True), tuned=True),
    "plain fp32": Contender(infer_plain),
}
PARTS = {"train": train, "inference": inference, "memory": memory}

if __name__ == "__main__":
    main()
