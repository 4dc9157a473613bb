"""Baselines: models that need no training of the network, and that fine-tuning must beat.

They are linear models of the features of the frozen network (with `--freeze` the result itself), or of the colours and
the size of an image. Every setting of theirs is chosen on validation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from vitmed.core.base_models import UNKNOWN
from vitmed.core.config import Config
from vitmed.core.messages import bar, say
from vitmed.core.process import NO_WARNINGS
from vitmed.data.loading import Images
from vitmed.data.samples import Splits, labelled_by
from vitmed.data.thread_batches import Progress, in_threads
from vitmed.decisions.targets import TARGETS
from vitmed.imaging.decode import read_header
from vitmed.inference.checkpoint import load_checkpoint, save_checkpoint
from vitmed.inference.predict import TorchNetwork, outputs_of, predict_all
from vitmed.inference.saved_model import check_finite
from vitmed.metrics.predictions import Predictions
from vitmed.models.lora import merged
from vitmed.models.vit import ViT
from vitmed.training.finetune import Finetune
from vitmed.training.run import Run

C_VALUES = tuple(10.0**exponent for exponent in range(-5, 3))  # inverse penalties, from strong to weak regularisation
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)  # of colours
LEVELS = np.arange(256, dtype=np.float64)
Part = tuple[np.ndarray, np.ndarray]  # features (S, D) and targets
BySplit = Callable[[str], np.ndarray]  # name of a split -> logits (S, K) or features (S, D)
Baselines = Callable[[str], dict[str, Predictions]]  # name of a split -> key in `report.BASELINES` -> predictions


@dataclass(frozen=True)
class LinearHead:
    """Logits = features @ weight.T + bias. The L2 penalty is chosen on validation: scikit-learn's C, on standardised
    features; None where each finding has its own."""

    weight: np.ndarray  # (K, D) float32
    bias: np.ndarray  # (K,) float32
    C: float | None
    val_loss: float  # on validation, log loss in nats, or the mean absolute error of a standardised number

    def logits(self, features: np.ndarray) -> np.ndarray:
        """(S, D) -> (S, K) float32."""
        return (features @ self.weight.T + self.bias).astype(np.float32)


def fit_head(train: Part, val: Part, classes: int, progress: Progress = lambda done, total: None) -> LinearHead:
    """Multinomial logistic regression with the L2 penalty that has the lowest log loss on validation, from features
    (S, D) and labels (S,); both parts contain every class. Without images in `val` C is 1,
    scikit-learn's own."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    mean, std = train[0].mean(axis=0, dtype=np.float64), train[0].std(axis=0, dtype=np.float64)
    std = np.where(std > 1e-6 * (1 + np.abs(mean)), std, 1)  # a constant feature carries no information
    x, x_val = ((part[0] - mean) / std for part in (train, val))
    model = LogisticRegression(warm_start=True, max_iter=500, tol=1e-6)  # each fit starts from the one before
    tried, values = [], C_VALUES if len(val[1]) else (1.0,)
    for done, C in enumerate(values, 1):
        model.C = C
        with NO_WARNINGS:  # a penalty too weak to converge is not chosen anyway
            model.fit(x, train[1])
        loss = float(log_loss(val[1], model.predict_proba(x_val), labels=np.arange(classes))) if len(val[1]) else np.nan
        tried.append((loss, C, model.coef_.astype(np.float64), model.intercept_.astype(np.float64)))
        progress(done, len(values))
    loss, C, weight, bias = min(tried, key=lambda attempt: attempt[0])
    if classes == 2:  # scikit-learn keeps the difference of two logits
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    weight = weight / std
    return LinearHead(weight.astype(np.float32), (bias - weight @ mean).astype(np.float32), C, loss)


def fit_finding_head(
    train: Part, val: Part, findings: int, progress: Progress = lambda done, total: None
) -> LinearHead:
    """`fit_head` for each finding, on the images whose label is known, from features (S, D) and labels (S, F)."""
    weights, biases, val_losses = [], [], []
    for f in range(findings):
        labelled: list[Part] = []
        for features, labels in (train, val):
            rows = labels[:, f] != UNKNOWN
            labelled.append((features[rows], labels[rows, f].astype(np.int64)))
        (x, y), of_val = labelled
        if len(np.unique(y)) < 2:  # nothing to tell apart: the share in training
            share = (y.sum() + 0.5) / (len(y) + 1)
            weights.append(np.zeros(train[0].shape[1], np.float32))
            biases.append(float(np.log(share / (1 - share))))
        else:
            head = fit_head((x, y), of_val, 2)
            weights.append(head.weight[1] - head.weight[0])
            biases.append(float(head.bias[1] - head.bias[0]))
            val_losses += [head.val_loss] * bool(len(of_val[1]))
        progress(f + 1, findings)
    loss = float(np.mean(val_losses)) if val_losses else float("nan")
    return LinearHead(np.stack(weights), np.array(biases, np.float32), None, loss)


def fit_number_head(train: Part, val: Part, outputs: int, progress: Progress = lambda done, total: None) -> LinearHead:
    """Ridge regression with the penalty of the lowest mean absolute error on validation, from features (S, D) and
    standardised numbers (S,). The outputs are location and log scale, one for all: the root mean square error there."""
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(train[0].astype(np.float64))
    x, x_val = (scaler.transform(part[0].astype(np.float64)) for part in (train, val))

    tried = []
    for done, C in enumerate(C_VALUES, 1):
        model = Ridge(alpha=1 / C).fit(x, train[1])
        tried.append((float(np.abs(model.predict(x_val) - val[1]).mean()), C, model.coef_, model.intercept_))
        progress(done, len(C_VALUES))
    error, C, weight, bias = min(tried, key=lambda attempt: attempt[0])
    scale = max(1e-6, float(np.sqrt(np.mean((x_val @ weight + bias - val[1]) ** 2))))
    weight = weight / scaler.scale_
    rows = np.stack([weight, np.zeros_like(weight)]).astype(np.float32)
    location_and_scale = [bias - weight @ scaler.mean_, np.log(scale)]
    return LinearHead(rows, np.array(location_and_scale, np.float32), C, error)


FIT_HEAD: dict[str, Callable[..., LinearHead]] = {
    "classes": fit_head,
    "grades": fit_head,
    "findings": fit_finding_head,
    "number": fit_number_head,
}  # by the kind of label


def frozen_features(model: ViT, images: Images, split: str) -> np.ndarray:
    """(S, D) float32: the input of the network's head for every image. DataError for an unreadable one."""
    with bar(f"features of {split}") as advance:
        features = predict_all(model, images, progress=advance, forward=model.features)
    check_finite(features, "the pretrained network")
    return features


def colour_and_size(images: Images, split: str) -> np.ndarray:
    """(S, 9 C + 2) float32: mean, standard deviation and 7 quantiles per channel; width and height of the file, px.
    They hold no shape: if a classifier does well on them, a network can take stain, light or format as a shortcut."""
    channels = images.preprocessing.channels

    def features(index: int) -> np.ndarray:
        pixels = images.read(index).reshape(-1, channels)  # (S^2, C)
        numbers: list[float] = []
        for channel in range(channels):
            counts = np.bincount(pixels[:, channel], minlength=256)
            share = np.cumsum(counts) / len(pixels)
            mean = float(counts @ LEVELS) / len(pixels)
            spread = float(counts @ (LEVELS - mean) ** 2) / len(pixels)
            numbers += [mean, spread**0.5, *np.searchsorted(share, QUANTILES)]
        header = read_header(images.root / images.samples[index].path)
        return np.array([*numbers, header.width, header.height], dtype=np.float32)

    rows = []
    with bar(f"colours of {split}") as advance:
        for row in in_threads(features, range(len(images))):
            rows.append(row)
            advance(len(rows), len(images))
    return np.stack(rows)


def fit_colours(splits: Splits, images: dict[str, Images]) -> BySplit:
    """A linear model of colours and size: name of a split -> logits (S, K)."""
    colours = cache(lambda split: colour_and_size(images[split], split))
    head = fit_logistic(colours, splits, images, "image colours and size")
    return lambda split: head.logits(colours(split))


def fit_logistic(features: BySplit, splits: Splits, images: dict[str, Images], what: str) -> LinearHead:
    """Fit a linear model on train, choose its penalty on val, and report its result there."""
    target = TARGETS[splits.target.kind]
    train, val = ((features(name), images[name].targets.numpy()) for name in ("train", "val"))
    with bar(f"{target.linear} on {what}", unit="penalties") as advance:
        head = FIT_HEAD[splits.target.kind](train, val, splits.outputs, advance)
    validation = labelled_by(splits.target, splits.classes, splits.samples["val"], head.logits(val[0]))
    values = target.numbers.values(validation)
    reached = ", ".join(f"{name} {values[name]:.4f}" for name in target.headline[:2])
    penalty = "" if head.C is None else f" (inverse penalty C = {head.C:g})"
    say(f"baseline, {target.linear} on {what}: validation {reached}{penalty}")
    return head


def fit_baselines(run: Run[Config], task: Finetune) -> Baselines:
    """Fit the baselines of a run on train and val, and return what predicts a split with them: it alone reads test."""
    train, logits = run.config.train, dict[str, BySplit]()
    untrained = run.config.model.start is not None and run.state.step == 0
    if untrained and (train.baseline or train.freeze or train.probe_first):  # the result of --freeze, else a baseline

        def features(split: str) -> np.ndarray:
            return frozen_features(task.model, run.images[split], split)

        head = fit_logistic(features, run.splits, run.images, "the pretrained features")
        fitted = {"head.weight": torch.from_numpy(head.weight), "head.bias": torch.from_numpy(head.bias)}
        record = {"epoch": 0, "val_loss": head.val_loss, "C": head.C}
        place = run.folder.best if train.freeze else run.folder.baseline
        parts = {"weights": merged(task.model) | fitted, "record": record, "fingerprints": task.fingerprints}
        save_checkpoint(place, run.config, run.splits, run.hashes, task.seen, **parts)
        if train.probe_first:
            for network in (task.model, run.state.evaluated_model):
                network.load_state_dict(fitted, strict=False)

    def frozen(split: str) -> np.ndarray:
        network = TorchNetwork(load_checkpoint(run.folder.baseline), None, run.device)
        return outputs_of(network, run.images[split], f"baseline on {split}").logits

    def predictions(split: str) -> dict[str, Predictions]:
        made_of = run.splits.target, run.splits.classes, run.splits.samples[split]
        return {name: labelled_by(*made_of, of(split), run.config.data.positive) for name, of in logits.items()}

    if train.baseline and run.folder.baseline.is_file():
        logits["frozen_features"] = frozen
    if train.baseline:
        logits["colour_and_size"] = fit_colours(run.splits, run.images)
    return predictions
