"""The run of `vitmed pretrain`, and of the first phase of `vitmed train --pretrain`."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitmed.commands.resuming import resumed_settings
from vitmed.core.files import write_bytes
from vitmed.core.hardware import Precision, describe, pick_device, seeded, synchronise
from vitmed.core.load_config import build_config, with_values
from vitmed.core.pretrain_config import PretrainConfig
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted
from vitmed.core.ui import Ui
from vitmed.data.patients import report_patients
from vitmed.data.read_images import read_all
from vitmed.data.samples import Splits
from vitmed.models.block_kernels import uncompiled
from vitmed.models.mae import MAE
from vitmed.models.summary import describe_model
from vitmed.models.vicreg import VICReg
from vitmed.models.vit import build_vit
from vitmed.models.weight_layouts import HEAD
from vitmed.report.plots.drawing import png
from vitmed.report.plots.training import loss_curves, reconstruction_figure
from vitmed.training.checkpoint import PretrainingState, save_encoder, save_pretraining
from vitmed.training.losses import LossOf
from vitmed.training.plan_rules import fields_set
from vitmed.training.pretraining import build_learner, masked_loss, reconstructions, validate_pretraining
from vitmed.training.run_setup import all_its_images
from vitmed.training.train_state import Record
from vitmed.training.training_run import Run
from vitmed.training.views import VIEWS, views_loss

DRAWING = 10.0  # s, for the figures after the last epoch, and the start and the end of Python


TIMED, AT_ONCE = 3, 64  # steps that are timed after the first, and their images at most
# The defaults where the network compares views, measured by benchmarks/pretraining.py.
VIEW_DEFAULTS = {"augment.policy": "views", "train.batch_size": 64, "train.lr": 1e-3}


def with_view_defaults(config: PretrainConfig) -> PretrainConfig:
    """The configuration with `VIEW_DEFAULTS` for what was not set by hand, unless the network predicts patches."""
    given = {f"{section}.{name}" for section in ("augment", "train") for name in fields_set(config, section)}
    return with_values(config, {} if config.masked else {k: v for k, v in VIEW_DEFAULTS.items() if k not in given})


def resumed(
    folder: RunFolder, saved: PretrainingState, root: Path, overrides: dict[str, Any], ui: Ui
) -> PretrainingRun:
    """The run of a folder as its last.pt has it, with the data in `root` and the settings of today.

    Raises DataError if the images have changed.
    """
    settings = resumed_settings(saved.config, folder, root, overrides)
    run = PretrainingRun(build_config(settings, PretrainConfig), replace(saved.splits, root=root), ui)
    with all_its_images():
        run.hashes = read_all(run.images, run.config.data, ui)
    run.check_unchanged(saved.hashes)
    run.resume(folder, saved.training)
    return run


class PretrainingRun(Run[PretrainConfig]):
    """The run of `vitmed pretrain`: new or resumed."""

    command = "pretrain"
    model: MAE | VICReg
    outer: RunFolder | None = None  # of the training whose first phase this is

    def __init__(self, config: PretrainConfig, splits: Splits, ui: Ui):
        super().__init__(config, splits, pick_device(config.train.device), ui)
        with seeded(config.train.seed):
            encoder = build_vit(config.encoder, 1)
            self.model = build_learner(encoder, config).to(self.device)
        self.views = 1 if config.masked else VIEWS
        for name, samples in splits.samples.items():
            ui.say(f"{name + ':':6} {counted(len(samples), 'image')}, {splits.made[name]}")
        report_patients(splits, "a patient of a later test may be among these images", ui)
        sizes = [sum(p.numel() for p in part.parameters()) / 1e6 for part in (encoder, self.model)]
        ui.say(f"encoder: {describe_model(config.model)}, {sizes[0]:.2f} M parameters")
        rest = f"{sizes[1] - sizes[0]:.2f} M parameters, used only in pretraining"
        if isinstance(self.model, MAE):
            shown = f"{self.model.visible} of {self.model.patches} patches"
            ui.say(f"decoder: {rest}; it reconstructs each image from {shown}")
        else:
            ui.say(f"projector: {rest}; the network learns what two random views of an image have in common (VICReg)")
        ui.say(f"device: {describe(self.device)}, {self.precision.name} ({self.precision.reason})")

    def loss_for(self, network: nn.Module, precision: Precision) -> LossOf:
        images = self.images["train"]
        if not isinstance(self.model, MAE):
            return views_loss(network, images, precision)
        return masked_loss(network, self.model.patches, images, precision)

    def validate(self) -> Record:
        batches, val = self.batches.batches, self.images["val"]
        with uncompiled(self.config.train.compile):
            return validate_pretraining(self.state, val, batches, self.config, self.device, self.precision)

    def seconds_after(self) -> Callable[[], float]:
        return lambda: DRAWING

    def seconds(self) -> float:
        """How long its other epochs will take, by timed steps on random images; validation counts a third of a step."""
        model, train = self.config.model, self.config.train
        loss_of, count = self.loss_for(copy.deepcopy(self.model), self.precision), min(train.batch_size, AT_ONCE)
        size = count, model.image_size, model.image_size, model.channels
        seconds = list[float]()
        with seeded(train.seed, self.device):
            x = torch.randint(0, 256, size, dtype=torch.uint8, device=self.device)
            for _ in range(1 + TIMED):
                start = time.perf_counter()
                loss_of(x, x)(slice(None)).backward()
                synchronise(self.device)
                seconds.append(time.perf_counter() - start)
        images = len(self.images["train"]) + len(self.images["val"]) / 3
        return (train.epochs - self.state.epoch) * images * min(seconds[1:]) / count

    def go_on(self) -> str:
        return super().go_on() if self.outer is None else f"vitmed train --resume {self.outer.path}"

    def draw(self) -> None:
        """Draw the loss curves, and of masked patches some reconstructions."""
        if self.state.history:
            name = "mean squared error of hidden patches" if self.config.masked else "loss of pairs of views"
            write_bytes(self.folder.training_curves, png(loss_curves(self.state.history, name)))
        if self.state.history and isinstance(self.model, MAE):
            pictures = reconstructions(self.model, self.images["val"], self.config.train.seed, self.device)
            write_bytes(self.folder.reconstructions, png(reconstruction_figure(pictures)))

    def end_epoch(self, record: Record) -> None:
        weights = {k: v for k, v in self.model.encoder.state_dict().items() if k not in HEAD}
        save_encoder(self.folder.encoder, config=self.config, hashes=self.hashes, weights=weights, record=record)
        self.save_last()
        self.report_epoch(record)

    def save_last(self) -> None:
        training = self.state.state_dict()
        save_pretraining(
            self.folder.last, config=self.config, splits=self.splits, hashes=self.hashes, training=training
        )
