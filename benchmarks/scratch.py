"""From scratch on few images: which part of the recipe earns its place? One change at a time, judged on validation.

    python benchmarks/scratch.py DATA_FOLDER WORK_FOLDER [--only SET ...] [--candidates NAME ...] [--seeds 0 1]
        [--metric accuracy] [--threads N]

DATA_FOLDER is that of accuracy.py. Every run is the loop of `vitmed train` for a fixed number of epochs, of which the
last is judged, once, on the whole validation split. No image of the test split is read. A run that is finished in
WORK_FOLDER is not repeated. The table tells each candidate's difference to the base. Its standard error comes from the
spread between seeds in that set, pooled over the candidates, as two or three seeds alone say little about a spread.
CPU-minutes are those of the quickest seed, reading of the images apart.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accuracy import tree
from trees import PATIENT

from vitmed.core.base_models import CLASSES
from vitmed.core.config import Config, DataConfig
from vitmed.core.files import write_json
from vitmed.core.load_config import load_config
from vitmed.data.loading import Images
from vitmed.data.samples import labelled_by
from vitmed.data.splits import make_splits
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.predict import predict_all
from vitmed.metrics.kinds.classes import metric_values
from vitmed.metrics.predictions import Predictions
from vitmed.models.hardware import pick_precision
from vitmed.models.vit import ViT
from vitmed.training.early_stopping import validate
from vitmed.training.loop import Control, Stream, fit
from vitmed.training.losses import objective_of
from vitmed.training.train_state import new_state

METRICS = ("accuracy", "auroc", "log_loss")
# The base: what vitmed does from scratch by default, but small, and without choosing an epoch.
BASE = (
    "model.width=64", "model.depth=4", "model.heads=4", "model.patch_size=8", "model.stem=conv", "model.pool=mean",
    "model.positions=learned", "train.lr=2e-3", "train.batch_size=32", "train.smoothing=0.05", "train.choose=last",
)  # fmt: skip
WARMUP = 0.1  # of the epochs


@dataclass(frozen=True)
class Set:
    """Images: the tree of accuracy.py, what the configuration says of them, and how many epochs are one length."""

    tree: str
    epochs: int
    sets: tuple[str, ...]


@dataclass(frozen=True)
class Candidate:
    """A change of the base: settings, and the length of the run in units of the set's."""

    sets: tuple[str, ...] = ()
    length: float = 1.0
    warmup: float = WARMUP


def run(data: Path, chosen: Set, candidate: Candidate, seed: int, work: Path) -> dict:
    """Train once; what validation says of the last epoch, and what it cost, reading apart."""
    epochs = max(1, round(chosen.epochs * candidate.length))
    sets = (*BASE, *chosen.sets, *candidate.sets)
    sets += (f"train.epochs={epochs}", f"train.warmup_epochs={candidate.warmup * epochs}", f"train.seed={seed}")
    config = load_config(None, {"data.root": str(tree(chosen.tree, data, work))}, sets)
    classes, images, val = read(config.data, Preprocessing.of(config))
    start, cpu = time.time(), time.process_time()
    values = metric_values(train(config, classes, images, val))
    return {
        "sets": sets,
        "epochs": epochs,
        "images": len(images),
        "judged": len(val),
        **{name: values[name] for name in METRICS},
        "cpu_minutes": (time.process_time() - cpu) / 60,
        "wall_minutes": (time.time() - start) / 60,
    }


def read(data: DataConfig, preprocessing: Preprocessing) -> tuple[tuple[str, ...], Images, Images]:
    """Classes, training images and validation images, in memory."""
    splits = make_splits(data)
    images, val = (Images(splits.root, splits.samples[name], preprocessing) for name in ("train", "val"))
    for part in (images, val):
        part.cache = np.stack([part.read(i) for i in range(len(part))])
    return splits.classes, images, val


def train(config: Config, classes: tuple[str, ...], images: Images, val: Images) -> Predictions:
    """The training loop of vitmed; what its last epoch says of the whole validation split."""
    device = torch.device("cpu")
    precision = pick_precision(config.train.precision, device)
    torch.manual_seed(config.train.seed)
    model = ViT(config.model, len(classes))
    stream = Stream.of(images, config, device)
    batches = stream.batches.batches
    state = new_state(model, config, batches, device, precision)
    # `fit` validates after every epoch, which on all of val would cost more than training.
    few = Images(val.root, val.samples[:: max(1, len(val) // 50)], val.preprocessing)
    objective = objective_of(images, len(classes), config, precision, device)
    judge = lambda: validate(state, few, classes, config, precision)  # noqa: E731
    for _ in fit(state, stream, objective, Control(config), judge):
        pass
    return labelled_by(CLASSES, classes, val.samples, predict_all(state.evaluated_model, val, precision))


def finished(options: argparse.Namespace, name: str, candidate: str, seed: int) -> dict | None:
    """The result of a run: read where it is there, else made; None where only what is finished is told."""
    file = options.work / "scratch" / name / f"{candidate}-seed{seed}.json"
    if not file.is_file():
        if options.tell:
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        result = run(options.data, SETS[name], CANDIDATES[candidate], seed, options.work)
        write_json(file, result)
        print(f"{name} {candidate} seed {seed}: {result[options.metric]:.4f}", file=sys.stderr, flush=True)
    return json.loads(file.read_text())


def spread(arms: dict[str, dict[int, dict]], metric: str) -> float:
    """Standard deviation between the seeds of one candidate, pooled over the candidates of a set; NaN if unknown."""
    values = [[run[metric] for run in runs.values()] for runs in arms.values() if len(runs) > 1]
    squares = sum(statistics.variance(found) * (len(found) - 1) for found in values)
    return math.sqrt(squares / sum(len(found) - 1 for found in values)) if values else math.nan


def difference(arms: dict[str, dict[int, dict]], candidate: str, metric: str) -> tuple[float, float]:
    """Mean of a candidate less that of the base, and the standard error of that."""
    means = {name: statistics.mean(run[metric] for run in arms[name].values()) for name in (candidate, "base")}
    error = spread(arms, metric) * math.sqrt(1 / len(arms[candidate]) + 1 / len(arms["base"]))
    return means[candidate] - means["base"], error


def tell(results: dict[str, dict[str, dict[int, dict]]], candidates: Sequence[str], metric: str) -> None:
    """The table: mean +- standard deviation (seeds) of each set; the difference to the base +- its standard error."""
    print(f"| {metric} | {' | '.join(results)} | mean difference | CPU-minutes |")
    print("|---" * (len(results) + 3) + "|")
    for candidate in candidates:
        cells, found, minutes = [], [], []
        for arms in results.values():
            runs = list(arms.get(candidate, {}).values())
            if not runs:
                cells.append("")
                continue
            values = [run[metric] for run in runs]
            text = f"{statistics.mean(values):.3f}"
            text += f" ± {statistics.stdev(values):.3f} ({len(values)})" if len(values) > 1 else " (1)"
            if candidate != "base" and "base" in arms:
                found.append(difference(arms, candidate, metric))
                text += f"; {found[-1][0]:+.3f} ± {found[-1][1]:.3f}"
            cells.append(text)
            minutes.append(min(run["cpu_minutes"] for run in runs))
        if minutes:
            mean = statistics.mean(value for value, _ in found) if found else 0.0
            error = math.hypot(*(error for _, error in found)) / max(1, len(found))
            cells.append(f"{mean:+.3f} ± {error:.3f}" if found else "")
            print(f"| {candidate} | {' | '.join(cells)} | {', '.join(f'{value:.1f}' for value in minutes)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--metric", choices=METRICS, default="accuracy")
    parser.add_argument("--threads", type=int, help="of PyTorch; set OMP_NUM_THREADS alike")
    parser.add_argument("--tell", action="store_true", help="only the table of what is finished")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    results: dict[str, dict[str, dict[int, dict]]] = {name: {} for name in options.only}
    for seed in options.seeds:
        for candidate in options.candidates:
            for name in options.only:
                result = finished(options, name, candidate, seed)
                if result is not None:
                    results[name].setdefault(candidate, {})[seed] = result
    tell(results, options.candidates, options.metric)


GRAY = (
    f"data.group_regex={PATIENT}", "data.val_fraction=0.25", "model.image_size=40", "model.channels=1",
    "augment.policy=blood_smear",
)  # fmt: skip
CIFAR = ("data.val_fraction=0.1", "model.image_size=32", "augment.policy=light")
MNIST = (
    "data.val_fraction=0.1",
    "model.image_size=28",
    "model.patch_size=7",
    "model.channels=1",
    "data.normalize=half",
)
SETS = {
    "cifar-1000": Set("cifar10", 40, (*CIFAR, "data.max_train=1000")),
    "cifar-5000": Set("cifar10", 8, (*CIFAR, "data.max_train=5000")),
    "gray50-2000": Set("gray50", 10, (*GRAY, "data.max_train=2000")),
    "gray50-5000": Set("gray50", 4, (*GRAY, "data.max_train=5000")),
    "mnist-1000": Set("mnist", 10, (*MNIST, "data.max_train=1000")),
    "mnist-5000": Set("mnist", 4, (*MNIST, "data.max_train=5000")),
    "malaria": Set("malaria", 30, ("model.image_size=48", "data.normalize=image", "augment.policy=blood_smear")),
}
MIX = ("augment.mixup=0.8", "augment.cutmix=1.0")
CANDIDATES = {
    "base": Candidate(),
    "lr-5e-4": Candidate(("train.lr=5e-4",)),  # with the base's stem and pooling, what `vitmed train` did before
    "stem-patch": Candidate(("model.stem=patch",)),
    "pool-cls": Candidate(("model.pool=cls",)),
    "sincos-2d": Candidate(("model.positions=sincos_2d",)),
    "lr-1e-3": Candidate(("train.lr=1e-3",)),
    "lr-4e-3": Candidate(("train.lr=4e-3",)),
    "mix": Candidate(MIX),
    "no-ema": Candidate(("train.ema=false",)),
    "warmup-30%": Candidate(warmup=0.3),
    "drop-path-0.1": Candidate(("model.drop_path=0.1",)),
    "width-128": Candidate(("model.width=128",)),
    "triple": Candidate(length=3.0),
    "triple-mix": Candidate(MIX, 3.0),
    "patch-8-of-32": Candidate(("model.image_size=32", "model.patch_size=8")),  # an even patch for MNIST
    "patch-4-equal-time": Candidate(("model.patch_size=4",), 0.3),
}

if __name__ == "__main__":
    main()
