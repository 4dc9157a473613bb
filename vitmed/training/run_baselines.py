"""The baselines of a run: fitted before training, evaluated on the same images as the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from vitmed.core.ui import Ui
from vitmed.data.loading import Images
from vitmed.data.samples import Splits, labelled
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.scoring import metric_values
from vitmed.training.baselines import LinearHead, colour_and_size, fit_head, fit_neighbours, frozen_features
from vitmed.training.checkpoint import load_checkpoint
from vitmed.training.training_run import TrainingRun

BySplit = Callable[[str], np.ndarray]  # name of a split -> logits (S, K) or features (S, D)


class Baselines:
    """The baselines of a run. Fitting reads only train and val; the test is read by `predictions("test")`."""

    def __init__(self, run: TrainingRun):
        self.run = run
        self.logits: dict[str, BySplit] = {}
        train, file = run.config.train, run.folder.baseline
        untrained = run.config.model.weights is not None and run.state.step == 0
        if untrained and (train.baseline or train.freeze or train.probe_first):
            self._fit_frozen()
        if train.baseline and file.is_file():
            self.logits["frozen_features"] = self._frozen_logits
        if train.baseline:
            self.logits["colour_and_size"] = fit_colours(run.splits, run.images, run.ui)

    def predictions(self, split: str) -> dict[str, Predictions]:
        """Key in `report.BASELINES` -> predictions for a split."""
        splits, positive = self.run.splits, self.run.config.data.positive
        samples = splits.samples[split]
        return {name: labelled(splits.classes, samples, of(split), positive) for name, of in self.logits.items()}

    def _fit_frozen(self) -> None:
        """Logistic regression on the frozen network: the result of `--freeze`, otherwise baseline.pt."""
        run, train = self.run, self.run.config.train
        features = cache(self._features)
        head = fit_logistic(features, run.splits, run.images, run.ui, "the pretrained features")
        run.save_head(run.folder.best if train.freeze else run.folder.baseline, head)
        if train.probe_first:
            run.set_head(head)
        if train.freeze and train.baseline:
            known, val = ((features(name), run.images[name].labels) for name in ("train", "val"))
            k, near = fit_neighbours(known, val, len(run.splits.classes))
            run.ui.say(f"baseline, nearest neighbours: k = {k} has the lowest log loss on validation")
            self.logits["nearest_neighbours"] = lambda split: near(features(split))

    def _features(self, split: str) -> np.ndarray:
        run = self.run
        with run.ui.bar(f"features of {split}") as advance:
            return frozen_features(run.model, run.images[split], run.device, advance)

    def _frozen_logits(self, split: str) -> np.ndarray:
        """The logits of the network as it was before training, kept in baseline.pt."""
        run = self.run
        model = load_checkpoint(run.folder.baseline).model().to(run.device)
        with run.ui.bar(f"baseline on {split}") as advance:
            features = frozen_features(model, run.images[split], run.device, advance)
        with torch.inference_mode():
            return model.head(torch.from_numpy(features).to(run.device)).float().cpu().numpy()


def fit_colours(splits: Splits, images: dict[str, Images], ui: Ui) -> BySplit:
    """Logistic regression on colours and size: name of a split -> logits (S, K)."""

    @cache
    def colours(split: str) -> np.ndarray:
        with ui.bar(f"colours of {split}") as advance:
            return colour_and_size(images[split], advance)

    head = fit_logistic(colours, splits, images, ui, "image colours and size")
    return lambda split: head.logits(colours(split))


def fit_logistic(features: BySplit, splits: Splits, images: dict[str, Images], ui: Ui, what: str) -> LinearHead:
    """Fit a logistic regression on train, choose its penalty on val, and report its result there."""
    train, val = ((features(name), images[name].labels) for name in ("train", "val"))
    with ui.bar(f"logistic regression on {what}", unit="penalties") as advance:
        head = fit_head(train, val, len(splits.classes), advance)
    values = metric_values(labelled(splits.classes, splits.samples["val"], head.logits(val[0])))
    reached = ", ".join(f"{name} {values[name]:.4f}" for name in ("auroc", "balanced_accuracy"))
    ui.say(f"baseline, logistic regression on {what}: validation {reached} (penalty C = {head.C:g})")
    return head
