"""Models that need no network training, which fine-tuning must beat: linear models of the features of a frozen
pretrained network, or of the colours and the size of an image. Every setting is chosen on validation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from vitmed.core.config import Config
from vitmed.core.messages import bar, say
from vitmed.data.loading import Images
from vitmed.data.samples import Splits, labelled_by
from vitmed.data.thread_batches import Progress, check_readable, in_threads
from vitmed.decisions.targets import TARGETS
from vitmed.imaging.decode import read_size
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.inference.predict import TorchNetwork, predict_all
from vitmed.inference.saved_model import check_finite
from vitmed.metrics.predictions import Predictions
from vitmed.models.lora import merged
from vitmed.models.vit import ViT
from vitmed.training.finetune import Finetune
from vitmed.training.learning import LEARNING, LinearHead
from vitmed.training.run import Run

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
LEVELS = np.arange(256, dtype=np.float64)

BySplit = Callable[[str], np.ndarray]  # name of a split -> logits (S, K) or features (S, D)


def frozen_features(model: ViT, images: Images, progress: Progress = lambda done, total: None) -> np.ndarray:
    """(S, D) float32: the input of the network's head for every image. DataError for an unreadable one."""
    features = predict_all(model, images, progress=progress, forward=model.features)
    check_finite(features, "the pretrained network")
    return features


def colour_and_size(images: Images, progress: Progress = lambda done, total: None) -> np.ndarray:
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
        return np.array([*numbers, *read_size(images.root / images.samples[index].path)], dtype=np.float32)

    rows = []
    for row in in_threads(features, range(len(images))):
        rows.append(row)
        progress(len(rows), len(images))
    return np.stack(rows)


def fit_colours(splits: Splits, images: dict[str, Images]) -> BySplit:
    """A linear model of colours and size: name of a split -> logits (S, K)."""

    @cache
    def colours(split: str) -> np.ndarray:
        with bar(f"colours of {split}") as advance:
            return colour_and_size(images[split], advance)

    head = fit_logistic(colours, splits, images, "image colours and size")
    return lambda split: head.logits(colours(split))


def fit_logistic(features: BySplit, splits: Splits, images: dict[str, Images], what: str) -> LinearHead:
    """Fit a linear model on train, choose its penalty on val, and report its result there."""
    target, learning = TARGETS[splits.target.kind], LEARNING[splits.target.kind]
    train, val = ((features(name), images[name].targets.numpy()) for name in ("train", "val"))
    with bar(f"{target.linear} on {what}", unit="penalties") as advance:
        head = learning.fit_head(train, val, splits.outputs, advance)
    values = target.numbers.values(
        labelled_by(splits.target, splits.classes, splits.samples["val"], head.logits(val[0]))
    )
    reached = ", ".join(f"{name} {values[name]:.4f}" for name in target.headline[:2])
    penalty = "" if head.C is None else f" (inverse penalty C = {head.C:g})"
    say(f"baseline, {target.linear} on {what}: validation {reached}{penalty}")
    return head


class Baselines:
    """The baselines of a run. Fitting reads only train and val; the test is read by `predictions("test")`."""

    def __init__(self, run: Run[Config], task: Finetune):
        self.run, self.task = run, task
        self.logits: dict[str, BySplit] = {}
        train, file = run.config.train, run.folder.baseline
        untrained = run.config.model.start is not None and run.state.step == 0
        if untrained and (train.baseline or train.freeze or train.probe_first):
            self._fit_frozen()
        if train.baseline and file.is_file():
            self.logits["frozen_features"] = self._frozen_logits
        if train.baseline:
            self.logits["colour_and_size"] = fit_colours(run.splits, run.images)

    def predictions(self, split: str) -> dict[str, Predictions]:
        """Key in `report.BASELINES` -> predictions for a split."""
        splits, positive = self.run.splits, self.run.config.data.positive
        made_of = splits.target, splits.classes, splits.samples[split]
        return {name: labelled_by(*made_of, of(split), positive) for name, of in self.logits.items()}

    def _fit_frozen(self) -> None:
        """A linear model of the frozen network's features: the result of `--freeze`, otherwise baseline.pt."""
        run, train = self.run, self.run.config.train

        def features(split: str) -> np.ndarray:
            with bar(f"features of {split}") as advance:
                return frozen_features(self.task.model, run.images[split], advance)

        head = fit_logistic(features, run.splits, run.images, "the pretrained features")
        record = {"epoch": 0, "val_loss": head.val_loss, "C": head.C}
        place = run.folder.best if train.freeze else run.folder.baseline
        self.task.save(run, place, weights=merged(self.task.model) | head.state(), record=record)
        if train.probe_first:
            for network in (self.task.model, run.state.evaluated_model):
                network.load_state_dict(head.state(), strict=False)

    def _frozen_logits(self, split: str) -> np.ndarray:
        images, saved = self.run.images[split], load_checkpoint(self.run.folder.baseline)
        with bar(f"baseline on {split}") as advance:
            made = TorchNetwork(saved, None, self.run.device).outputs(images.read, len(images), advance)
        check_readable(made.problems)
        return made.logits
