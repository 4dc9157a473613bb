"""Which batch norm statistics suit the moving average of the weights: three ways, judged on the same epochs of a run.

    python benchmarks/ema_statistics.py FOLDER [--seeds 0 1 2 3 4] [--epochs 20] [--size 64]

FOLDER is a data folder as `vitmed train` takes it. At the end of every epoch the averaged weights are evaluated with

    raw         the running statistics of the network that trains, as they are at that step
    averaged    the moving average of those statistics, with the decay of the weights
    recomputed  statistics of the averaged weights themselves, over all training images without augmentation

Everything else is the same, so the differences are paired: same weights, same images. Printed for each seed and as
mean and standard deviation over seeds: the mean over all epochs, the last epoch, and the epoch with the lowest
validation loss (chosen for each way apart).
"""

import argparse
import copy
import statistics
from pathlib import Path

import numpy as np
import torch
from torch import nn

from vitmed.core.base_models import CLASSES
from vitmed.core.downloads import unconnected
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import RunFolder
from vitmed.data.loading import read_splits
from vitmed.data.samples import labelled_by
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.predict import predict_all
from vitmed.metrics.kinds.classes import metric_values
from vitmed.models.vit import ViT
from vitmed.training import loop
from vitmed.training.finetune import Finetune
from vitmed.training.loop import Control
from vitmed.training.optimiser import ema_decay, steps_per_epoch
from vitmed.training.plan.make_plan import make_plan
from vitmed.training.run import Run, Session
from vitmed.training.train_state import TrainState

WAYS = ("raw", "averaged", "recomputed")
NUMBERS = ("log_loss", "auroc", "balanced_accuracy")


def norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


@torch.no_grad()
def put(model: ViT, statistics_of: list[tuple[torch.Tensor, torch.Tensor]]) -> ViT:
    """A copy of the model with these running means and variances."""
    model = copy.deepcopy(model)
    for norm, (mean, var) in zip(norms(model), statistics_of, strict=True):
        norm.load_state_dict({"running_mean": mean, "running_var": var}, strict=False)
    return model


def of(model: nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    buffers = [dict(norm.named_buffers()) for norm in norms(model)]
    return [(one["running_mean"].clone(), one["running_var"].clone()) for one in buffers]


@torch.no_grad()
def recomputed(model: ViT, images: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    model = copy.deepcopy(model).train()
    for norm in norms(model):
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
    for batch in images.split(64):
        model.patch_embed(batch)
    return of(model)


def one(folder: Path, seed: int, epochs: int, size: int) -> dict[str, list[dict]]:
    """Way -> list over epochs of {"val": {...}, "test": {...}}."""
    overrides = {
        "data.root": str(folder), "model.image_size": size, "model.patch_size": 8, "model.width": 64,
        "model.depth": 3, "model.heads": 4, "model.stem": "conv", "train.epochs": epochs, "train.seed": seed,
        "train.batch_size": 16, "train.workers": 0, "train.device": "cpu",
        "train.precision": "fp32", "train.ema": True, "train.choose": "last",
    }  # fmt: skip
    with unconnected(True):
        ready = make_plan(load_config(None, overrides), True)
    session = Session.of(ready.config)
    task = Finetune.new(ready.config, ready.splits, session)
    read = read_splits(ready.splits, Preprocessing.of(ready.config), ready.config.data)
    for images in read.images.values():
        images.cache = np.stack([images.read(i) for i in range(len(images))])
    run = Run(task, ready.config, read, RunFolder(folder), session)  # writes nothing
    train = run.images["train"]
    pixels = torch.stack([torch.from_numpy(train.read(i)) for i in range(len(train))])
    pixels = train.preprocessing.normalise(pixels)
    shadow = of(run.model)
    decay = run.config.train.ema_decay or ema_decay(epochs * steps_per_epoch(run.stream.batches.batches, 1))
    step = loop.optimiser_step
    found: dict[str, list[dict]] = {way: [] for way in WAYS}

    def stepped(state: TrainState, lr: float, clip_norm: float | None) -> torch.Tensor:
        norm = step(state, lr, clip_norm)
        t = state.step - 1
        share = 1.0 if t == 0 else 1 - min(decay, (1 + t) / (10 + t))
        for pair, now in zip(shadow, of(state.model), strict=True):
            for old, new in zip(pair, now, strict=True):
                old.lerp_(new, share)
        return norm

    def validated() -> loop.Record:
        model = run.state.evaluated_model
        ways = {"raw": of(run.model), "averaged": shadow, "recomputed": recomputed(model, pixels)}
        for way, numbers in ways.items():
            network, both = put(model, numbers).eval(), {}
            for name in ("val", "test"):
                images = run.images[name]
                logits = predict_all(network, images, run.precision)
                values = metric_values(labelled_by(CLASSES, run.splits.classes, images.samples, logits))
                both[name] = {key: values[key] for key in NUMBERS}
            found[way].append(both)
        return task.validate(run)

    loop.optimiser_step = stepped
    try:
        objective = task.objective(run.config, run.images["train"], session)
        list(loop.fit(run.state, run.stream, objective, Control(run.config), validated))
    finally:
        loop.optimiser_step = step
    return found


def summary(epochs: list[dict]) -> dict[str, float]:
    """What is compared, of one way of one seed."""
    chosen = min(epochs, key=lambda both: both["val"]["log_loss"])
    rows = {f"val {key}, mean of epochs": statistics.mean(e["val"][key] for e in epochs) for key in NUMBERS}
    for key in NUMBERS:
        rows[f"test {key}, last epoch"] = epochs[-1]["test"][key]
        rows[f"test {key}, chosen epoch"] = chosen["test"][key]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--size", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = []
    for seed in args.seeds:
        found = one(args.folder, seed, args.epochs, args.size)
        seeds.append({way: summary(epochs) for way, epochs in found.items()})
        print(f"seed {seed}", *(f"{way} {rows['test log_loss, last epoch']:.4f}" for way, rows in seeds[-1].items()))
    print(f"\n| {args.folder.name}, {len(seeds)} seeds | raw | averaged - raw | recomputed - raw |\n|---|---|---|---|")
    for row in seeds[0]["raw"]:
        cells = [spread([seed["raw"][row] for seed in seeds])]
        cells += [spread([seed[way][row] - seed["raw"][row] for seed in seeds], "+") for way in WAYS[1:]]
        print(f"| {row} | {' | '.join(cells)} |")


def spread(values: list[float], sign: str = "") -> str:
    return f"{statistics.mean(values):{sign}.4f} ± {statistics.stdev(values) if len(values) > 1 else 0:.4f}"


if __name__ == "__main__":
    main()
