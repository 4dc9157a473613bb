"""The run of `vitmed pretrain`."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from vitmed.core.files import write_bytes
from vitmed.core.messages import say
from vitmed.core.pretrain_config import PretrainConfig
from vitmed.core.text import counted
from vitmed.data.patients import report_patients
from vitmed.data.samples import Splits
from vitmed.inference.checkpoint import save_encoder, save_pretraining
from vitmed.models.compile import uncompiled
from vitmed.models.hardware import Precision, describe, pick_device, seeded
from vitmed.models.mae import MAE
from vitmed.models.sizes import describe_model
from vitmed.models.vit import ViT
from vitmed.models.weights.layouts import HEAD
from vitmed.report.plots.drawing import png
from vitmed.report.plots.training import loss_curves, reconstruction_figure
from vitmed.training.losses import LossOf
from vitmed.training.pretraining import build_mae, masked_loss, reconstructions, validate_pretraining
from vitmed.training.train_state import Record
from vitmed.training.training_run import Run

DRAWING = 10.0  # s, for the figures after the last epoch, and the start and the end of Python


class PretrainingRun(Run[PretrainConfig]):
    """The run of `vitmed pretrain`: new or resumed."""

    command = "pretrain"
    model: MAE

    def __init__(self, config: PretrainConfig, splits: Splits):
        super().__init__(config, splits, pick_device(config.train.device))
        with seeded(config.train.seed):
            encoder = ViT(config.encoder, 1)
            self.model = build_mae(encoder, config).to(self.device)
        for name, samples in splits.samples.items():
            say(f"{name + ':':6} {counted(len(samples), 'image')}, {splits.made[name]}")
        report_patients(splits, "a patient of a later test may be among these images")
        sizes = [sum(p.numel() for p in part.parameters()) / 1e6 for part in (encoder, self.model)]
        say(f"encoder: {describe_model(config.model)}, {sizes[0]:.2f} M parameters")
        rest = f"{sizes[1] - sizes[0]:.2f} M parameters, used only in pretraining"
        shown = f"{self.model.visible} of {self.model.patches} patches"
        say(f"decoder: {rest}; it reconstructs each image from {shown}")
        say(f"device: {describe(self.device)}, {self.precision.name} ({self.precision.reason})")

    def loss_for(self, network: nn.Module, precision: Precision) -> LossOf:
        images = self.images["train"]
        return masked_loss(network, self.model.patches, images, precision)

    def validate(self) -> Record:
        batches, val = self.batches.batches, self.images["val"]
        with uncompiled(self.config.train.compile):
            return validate_pretraining(self.state, val, batches, self.config, self.device, self.precision)

    def seconds_after(self) -> Callable[[], float]:
        return lambda: DRAWING

    def draw(self) -> None:
        """Draw the loss curves and some reconstructions."""
        if self.state.history:
            curves = loss_curves(self.state.history)
            write_bytes(self.folder.training_curves, png(curves))
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
