"""Imbalanced classes: which loss is best, by balanced accuracy AND log loss, if every loss has the same two decisions?

    python benchmarks/imbalance.py DATA_FOLDER WORK_FOLDER [--only SET ...] [--losses LOSS ...] [--seeds 0 1] [--tell]

DATA_FOLDER holds pbc_blood/, knee_oa_kl/ with labels.csv, and cifar10/train/. A seed is one draw of images, one network
and one order of the batches, the same for every loss. A run that is finished in WORK_FOLDER is not repeated.

Every loss has a known shift between its optimum and the posterior at the prevalence of training: log of the class
weights, or of 1 / prevalence where batches are balanced. The shift is taken off the logits, so the logits of all losses
mean the same thing, and are calibrated as `vitmed train` does (`auto`), on validation images. "likeliest" is the class
of the highest calibrated probability p, "balanced" the class of the highest p / its mean over validation. Images are
judged that were neither trained on nor calibrated on; no official test part is read. Log loss is at the prevalence of
training. pbc-long and cifar-long are cut to 72:1 (the n-th class has 72^(-n / (K - 1)) of the images of the first, in
an order drawn by the seed); their validation is as long-tailed, and the judged images are balanced and weighted to the
prevalence of training for the log loss. knee is judged in two halves of its official validation patients, each
calibrated on the other.
"""

import argparse
import csv
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitmed.core.base_models import CLASSES
from vitmed.core.config import Config
from vitmed.core.load_config import load_config, with_values
from vitmed.data.loading import Images
from vitmed.data.samples import Sample, labelled_by
from vitmed.decisions.calibration import fit_calibration
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.predict import predict_all
from vitmed.metrics.areas import class_areas
from vitmed.metrics.intervals import Units
from vitmed.metrics.predictions import softmax
from vitmed.models.hardware import pick_precision
from vitmed.models.vit import ViT
from vitmed.training.early_stopping import validate
from vitmed.training.loop import Control, Stream, fit
from vitmed.training.losses import Objective
from vitmed.training.train_state import new_state

STEPS, BATCH, RATIO = 1500, 32, 72
SETTINGS = (
    "model.width=64", "model.depth=4", "model.heads=4", "model.stem=conv", "model.pool=mean", "train.lr=2e-3",
    f"train.batch_size={BATCH}", "train.choose=last", "train.patience=null", "train.monitor=log_loss",
)  # fmt: skip
BETA = 0.99  # of effective numbers; with 0.999 and tens of images a class the weights are almost those of `loss`
MEASURES = ("likeliest", "balanced", "AUROC", "log loss", "shift kept")


class Parts(NamedTuple):
    """Training images, images held out, and which of those calibrate (rows) and which are judged (rows)."""

    root: Path
    classes: tuple[str, ...]
    train: list[Sample]
    held: list[Sample]
    pairs: list[tuple[np.ndarray, np.ndarray]]


def long_tailed(root: Path, seed: int, most: int, judged: int) -> Parts:
    """A balanced tree cut to `RATIO`:1, beside a validation part of a quarter and `judged` images of each class."""
    rng = np.random.default_rng(seed)
    classes = tuple(sorted(folder.name for folder in root.iterdir() if folder.is_dir()))
    sizes = most * RATIO ** (-rng.permutation(len(classes)) / (len(classes) - 1))
    train, val, test = [], [], []
    for label, (name, size) in enumerate(zip(classes, sizes, strict=True)):
        files = sorted((root / name).iterdir())
        samples = [Sample(f"{name}/{files[i].name}", label, None) for i in rng.permutation(len(files))]
        count, few = round(size), max(1, round(size / 4))
        test += samples[:judged]
        val += samples[judged : judged + few]
        train += samples[judged + few : judged + few + count]
    rows = np.arange(len(val) + len(test))
    return Parts(root, classes, train, val + test, [(rows[: len(val)], rows[len(val) :])])


def knee(root: Path, seed: int) -> Parts:
    """The official training part, and the validation part in two halves by patient."""
    with (root / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    classes = tuple(sorted({row["label"] for row in rows}))
    samples = {
        split: [
            Sample(row["path"], classes.index(row["label"]), row["patient"]) for row in rows if row["split"] == split
        ]
        for split in ("train", "val")
    }
    patients = sorted({str(sample.group) for sample in samples["val"]})
    chosen = set(np.random.default_rng(seed).permutation(patients)[: len(patients) // 2])
    first = np.array([sample.group in chosen for sample in samples["val"]])
    halves = np.flatnonzero(first), np.flatnonzero(~first)
    return Parts(root, classes, samples["train"], samples["val"], [halves, halves[::-1]])


def weights_of(loss: str, counts: np.ndarray) -> np.ndarray:
    """(K,) what the images of each class count in the loss, or how often they are drawn; 1 on average over images."""
    weights = np.ones(len(counts))
    if loss in ("loss", "sampler"):
        weights = 1 / counts
    if loss == "effective":  # Cui et al. 2019, arXiv 1901.05555, equation 4
        weights = (1 - BETA) / (1 - BETA**counts)
    return weights * counts.sum() / (weights @ counts)


class Weighted:
    """Cross-entropy; `adjust` (Menon et al. 2021, arXiv 2007.07314, equation 10, tau 1) adds the log prevalence."""

    def __init__(self, loss: str, counts: np.ndarray, smoothing: float) -> None:
        weighs, self.smoothing = loss in ("loss", "effective"), smoothing
        self.weights = torch.tensor(weights_of(loss, counts), dtype=torch.float32) if weighs else None
        smooth = (1 - smoothing) * np.eye(len(counts)) + smoothing / len(counts)  # as `vitmed.training.losses`
        drawn = torch.tensor(smooth * counts[:, None] / counts, dtype=torch.float32)
        self.drawn = drawn if loss == "sampler" else None
        self.offset = torch.tensor(np.log(counts / counts.sum()), dtype=torch.float32) if loss == "adjust" else 0.0

    def count(self, targets: Tensor) -> Tensor | float:
        """The images of a batch, or their weight."""
        return len(targets) if self.weights is None else self.weights[targets].sum()

    def __call__(self, outputs: Tensor, targets: Tensor, images: Any) -> Tensor:
        """The share, (), of logits (n, K) in the mean."""
        if self.drawn is not None:
            return F.cross_entropy(outputs, self.drawn[targets], reduction="sum") / images
        logits, smoothing = outputs + self.offset, self.smoothing
        return F.cross_entropy(logits, targets, self.weights, reduction="sum", label_smoothing=smoothing) / images


def run(parts: Parts, loss: str, config: Config) -> np.ndarray:
    """(S, K) logits of the images held out, at the prevalence of training, after training once."""
    settings, device, k = config.train, torch.device("cpu"), len(parts.classes)
    precision, preprocessing = pick_precision(settings.precision, device), Preprocessing.of(config)
    images, held = (Images(parts.root, samples, preprocessing) for samples in (parts.train, parts.held))
    for part in (images, held):
        part.cache = np.stack([part.read(i) for i in range(len(part))])
    counts = np.bincount(images.labels, minlength=k)
    torch.manual_seed(settings.seed)
    model = ViT(config.model, k)
    balance = "sampler" if loss == "sampler" else "none"
    stream = Stream.of(images, with_values(config, {"train.balance": balance}), device)
    batches = stream.batches.batches
    state = new_state(model, config, batches, device, precision)
    few = Images(held.root, held.samples[:8], preprocessing)  # `fit` validates after every epoch
    weighted = Weighted(loss, counts, settings.smoothing)
    objective = Objective(preprocessing, lambda x, labels: (x, labels), weighted, precision)
    judge = lambda: validate(state, few, parts.classes, config, precision)  # noqa: E731
    for _ in fit(state, stream, objective, Control(config), judge):
        pass
    logits = predict_all(state.evaluated_model, held, precision)
    return logits + (np.log(counts / counts.sum()) if loss == "adjust" else -np.log(weights_of(loss, counts)))


def judged(parts: Parts, loss: str, logits: np.ndarray) -> dict[str, float]:
    """The measures of a run, over all pairs of calibrating and judged images."""
    labels, k = np.array([sample.label for sample in parts.held]), len(parts.classes)
    counts = np.bincount([sample.label for sample in parts.train], minlength=k)
    shift = np.log(weights_of(loss, counts))
    found: dict[str, list[np.ndarray]] = {"labels": [], "likeliest": [], "balanced": [], "nats": [], "kept": []}
    chances = []
    for val, test in parts.pairs:
        units = Units(labelled_by(CLASSES, parts.classes, [parts.held[i] for i in val], logits[val]).units)
        fitted = fit_calibration(logits[val], labels[val], "auto", units)
        p, truth, rows = softmax(fitted.apply(logits[test])), labels[test], np.arange(len(test))
        kept = fit_calibration(logits[val] + shift, labels[val], "auto", units)
        found["labels"].append(truth)
        found["likeliest"].append(p.argmax(axis=1))
        found["balanced"].append((p / softmax(fitted.apply(logits[val])).mean(axis=0)).argmax(axis=1))
        found["nats"].append(-np.log(p[rows, truth]))
        found["kept"].append(-np.log(softmax(kept.apply(logits[test] + shift))[rows, truth]))
        chances.append(p)
    truth, calls = np.concatenate(found["labels"]), {name: np.concatenate(found[name]) for name in list(found)[1:]}
    share = (counts / counts.sum() / (np.bincount(truth, minlength=k) / len(truth)))[truth]  # weight of an image
    p = np.concatenate(chances)
    areas = [class_areas(p[:, c], truth == c)[0].value for c in range(k)]
    recall = {name: [(calls[name] == c)[truth == c].mean() for c in range(k)] for name in MEASURES[:2]}
    values = [np.mean(recall["likeliest"]), np.mean(recall["balanced"]), np.mean(areas)]
    values += [np.average(calls[name], weights=share) for name in ("nats", "kept")]
    return dict(zip(MEASURES, map(float, values), strict=True))


def finished(options: argparse.Namespace, name: str, loss: str, seed: int) -> dict[str, float] | None:
    """The measures of a run: of logits that are there, else made; None where only what is finished is asked for."""
    parts_of, sets = SETS[name]
    file, parts = options.work / "imbalance" / f"{name}-{loss}-seed{seed}.npy", parts_of(options.data, seed)
    if not file.is_file():
        if options.tell:
            return None
        epochs = round(STEPS / (len(parts.train) // BATCH))
        own = (f"train.epochs={epochs}", f"train.warmup_epochs={epochs / 10}", f"train.seed={seed}")
        logits = run(parts, loss, load_config(None, {"data.root": str(parts.root)}, (*SETTINGS, *sets, *own)))
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, logits)
    values = judged(parts, loss, np.load(file))
    if not options.tell:
        print(json.dumps({"set": name, "loss": loss, "seed": seed, **values}), flush=True)
    return values


def tell(name: str, found: dict[str, dict[int, dict[str, float]]]) -> None:
    """The table of a set: mean ± standard deviation over seeds; paired difference to `none` ± its standard error."""
    print(f"\n| {name} | seeds | {' | '.join(MEASURES)} |\n|---|---{'|---' * len(MEASURES)}|")
    for loss, runs in found.items():
        cells = []
        for measure in MEASURES if runs else ():
            text = mean_and_spread([one[measure] for one in runs.values()])
            pairs = [one[measure] - found["none"][seed][measure] for seed, one in runs.items() if seed in found["none"]]
            if loss != "none" and pairs:
                text += f"; {mean_and_spread(pairs, len(pairs) ** 0.5, '+.3f')}"
            cells.append(text)
        print(f"| {loss} | {len(runs)} | {' | '.join(cells)} |")


def mean_and_spread(values: Sequence[float], divisor: float = 1.0, form: str = ".3f") -> str:
    """The mean, and ± the standard deviation / divisor of two or more values."""
    spread = f" ± {statistics.stdev(values) / divisor:.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{spread}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--tell", action="store_true", help="only the tables of what is finished")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name in options.only:
        results: dict[str, dict[int, dict[str, float]]] = {"none": {}, **{loss: {} for loss in options.losses}}
        for seed in options.seeds:
            for loss in options.losses:
                if (values := finished(options, name, loss, seed)) is not None:
                    results[loss][seed] = values
        tell(name, results)


LOSSES = ("none", "adjust", "effective", "loss", "sampler")
SETS = {
    "pbc-long": (
        lambda data, seed: long_tailed(data / "pbc_blood", seed, 240, 100),
        ("model.image_size=64", "model.patch_size=16"),
    ),
    "knee": (
        lambda data, seed: knee(data / "knee_oa_kl", seed),
        ("model.image_size=64", "model.patch_size=16", "model.channels=1"),
    ),
    "cifar-long": (
        lambda data, seed: long_tailed(data / "cifar10" / "train", seed, 1000, 300),
        ("model.image_size=32", "model.patch_size=8", "augment.policy=light"),
    ),
}

if __name__ == "__main__":
    main()
