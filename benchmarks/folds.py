"""Grey malaria cells by patient, five folds: vitmed from scratch, a small CNN, colours and size.

    python benchmarks/folds.py DATA_FOLDER WORK_FOLDER [--folds 0 1 2 3 4] [--only vit cnn] [--threads N]
        [--set section.field=value ...]

Every image is in the test of one fold, every patient too. In each fold `vitmed train --config malaria_gray50` (which
fits the logistic regression on colours and size itself) and a small CNN are trained on the same images, split alike,
with the same augmentation, optimiser, schedule and moving average: the CNN goes through vitmed's own loop, for half
the epochs, which takes it about as long. The last epoch is judged, once. A part that is finished in WORK_FOLDER is
not repeated.

The script prints the mean and the spread over the folds, and the pooled predictions of all folds with intervals by
patient. (Pooled AUROC compares scores of different networks, which lowers it a little.)
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
from typing import Any

import numpy as np
from trees import gray50_by_patient

from vitmed.core.downloads import unconnected
from vitmed.core.messages import say

CONFIG = "malaria_gray50"
METRICS = ("accuracy", "auroc", "balanced_accuracy", "log_loss")
WAYS = {"vit": "vitmed", "cnn": "small CNN", "colour": "logistic regression on colours and size"}


def vit(folder: Path, fold: int, work: Path, sets: list[str]) -> None:
    """`vitmed train`, as a user runs it."""
    command = [sys.executable, "-m", "vitmed", "train", str(folder), "--config", CONFIG, "--seed", "0"]
    command += ["--output", str(work / "runs"), "--name", f"vit-fold{fold}"]
    command += [part for text in sets for part in ("--set", text)]
    subprocess.run(command, check=True)


def cnn(folder: Path, fold: int, work: Path, sets: list[str]) -> None:
    """A small CNN in the place of the ViT: three stages of two 3x3 convolutions, mean over the image, linear."""
    from torch import nn

    from vitmed.core.load_config import load_config
    from vitmed.core.run_folder import RunFolder
    from vitmed.data.loading import read_splits
    from vitmed.data.samples import labelled_by
    from vitmed.imaging.preprocessing import Preprocessing
    from vitmed.inference.predict import predict_all
    from vitmed.training.finetune import Finetune
    from vitmed.training.loop import Control, fit
    from vitmed.training.plan.make_plan import make_plan
    from vitmed.training.run import Run, Session

    config = load_config(CONFIG, {"data.root": str(folder), "train.seed": 0}, sets)
    halved = config.train.model_copy(update={"epochs": config.train.epochs // 2})
    config = config.model_copy(update={"train": halved})
    with unconnected(True):
        ready = make_plan(config, False)
    config, splits = ready.config, ready.splits
    session = Session.of(config)
    layers: list[nn.Module] = []
    width = config.model.channels
    for stage in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(width, stage, 3, padding=1, bias=False), nn.BatchNorm2d(stage), nn.ReLU()]
            width = stage
        layers.append(nn.MaxPool2d(2))
    layers = [*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2)]
    network: Any = nn.Sequential(*layers)  # in the place of the ViT
    network.tokens, network.width = 64, width  # what sizes the batches of predictions
    say(f"small CNN of {sum(p.numel() for p in network.parameters()):,} parameters")
    task, read = Finetune(network, splits.outputs), read_splits(splits, Preprocessing.of(config), config.data)
    run = Run(task, config, read, RunFolder(work), session)  # writes nothing
    objective = task.objective(config, run.images["train"], session)
    for record in fit(run.state, run.stream, objective, Control(config), lambda: task.validate(run)):
        say(f"epoch {record['epoch']}: val auroc {record['val_auroc']:.4f}")
    test, averaged = run.images["test"], run.state.evaluated_model
    logits = predict_all(averaged, test, run.precision)
    predictions = labelled_by(run.splits.target, run.splits.classes, test.samples, logits, config.data.positive)
    place = work / "runs" / f"cnn-fold{fold}"
    place.mkdir(parents=True)
    (place / "predictions.csv").write_text(predictions.to_csv())


PLACES = {
    "vit": "vit-fold{}/test/predictions.csv",
    "colour": "vit-fold{}/test/baseline_colour_and_size.csv",
    "cnn": "cnn-fold{}/predictions.csv",
}


def part(way: str, fold: int, options: argparse.Namespace) -> None:
    """Run one part of one fold as a process of its own, and note what it cost."""
    done = options.work / f"{way}-fold{fold}.json"
    if done.is_file():
        return
    here = [sys.executable, __file__, str(options.data), str(options.work), "--part", way, "--folds", str(fold)]
    here += [part for text in options.set for part in ("--set", text)]
    environment = dict(os.environ) | ({"OMP_NUM_THREADS": str(options.threads)} if options.threads else {})
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    with (options.work / f"{way}-fold{fold}.log").open("w") as log:
        subprocess.run(here, stdout=log, stderr=log, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    done.write_text(json.dumps({"wall_minutes": (time.time() - start) / 60, "cpu_minutes": cpu / 60}))


def report(options: argparse.Namespace) -> None:
    """The table over the folds and of the pooled predictions."""
    from vitmed.metrics.kinds.classes import PreparedPredictions, evaluate_predictions, metric_values
    from vitmed.metrics.predictions import Predictions

    found = {
        way: [Predictions.from_csv(options.work / "runs" / PLACES[way].format(fold)) for fold in options.folds]
        for way in WAYS
        if way == "colour" or way in options.only
    }
    print("| | " + " | ".join(f"{m}: mean ± sd over folds" for m in METRICS) + " | pooled accuracy | pooled AUROC |")
    print("|---|" + "---|" * (len(METRICS) + 2))
    pooled = {}
    for way, folds in found.items():
        first = folds[0]
        pooled[way] = Predictions(
            first.classes,
            tuple(path for p in folds for path in p.paths),
            tuple(group for p in folds for group in p.groups or ()),
            np.concatenate([p.labels for p in folds]),
            np.concatenate([p.logits for p in folds]),
        )
        cells = []
        for metric in METRICS:
            values = [metric_values(p)[metric] for p in folds]
            spread = statistics.stdev(values) if len(values) > 1 else float("nan")
            cells.append(f"{statistics.mean(values):.4f} ± {spread:.4f}")
        overall = evaluate_predictions(pooled[way]).overall
        for metric in ("accuracy", "auroc"):
            entry = overall[metric]
            cells.append(f"{entry.value:.4f} [{entry.low:.4f}, {entry.high:.4f}]")
        print(f"| {WAYS[way]} | " + " | ".join(cells) + " |")
    for way in pooled:
        if way == "vit":
            continue
        entry = PreparedPredictions.compare(pooled["vit"], pooled[way]).difference["auroc"]
        print(f"vitmed - {WAYS[way]}, pooled AUROC: {entry.value:+.4f} [{entry.low:+.4f}, {entry.high:+.4f}]")
    for way in options.only:
        cost = [json.loads((options.work / f"{way}-fold{fold}.json").read_text()) for fold in options.folds]
        minutes = {key: statistics.mean(c[key] for c in cost) for key in ("wall_minutes", "cpu_minutes")}
        print(f"{WAYS[way]}: {minutes['wall_minutes']:.1f} minutes wall, {minutes['cpu_minutes']:.1f} CPU a fold")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", nargs="+", choices=("vit", "cnn"), default=["vit", "cnn"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE")
    parser.add_argument("--part", choices=("vit", "cnn"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for fold in options.folds:
        folder = gray50_by_patient(options.data, options.work, fold)
        if options.part:
            (vit if options.part == "vit" else cnn)(folder, fold, options.work, options.set)
            return
        for way in options.only:
            part(way, fold, options)
    report(options)


if __name__ == "__main__":
    main()
