"""Pretraining: the network that learns, its validation, and the masked autoencoder's loss.

The seed of a batch decides its mask, so a resumed run hides the patches that an uninterrupted run would have hidden.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from vitmed.core.config import PretrainConfig
from vitmed.core.errors import VitmedError
from vitmed.core.messages import say
from vitmed.core.text import counted
from vitmed.data.loading import Images, seed_of
from vitmed.data.patients import report_patients
from vitmed.data.samples import Splits
from vitmed.data.thread_batches import check_readable, read_batches
from vitmed.inference.checkpoint import save_encoder, save_pretraining
from vitmed.models.hardware import describe, seeded, uncompiled
from vitmed.models.mae import MAE, decoder_size
from vitmed.models.sizes import describe_model
from vitmed.models.vit import ViT
from vitmed.models.weights.layouts import HEAD
from vitmed.training.early_stopping import common_record
from vitmed.training.losses import Loss, Objective
from vitmed.training.run import Run, Session, Task
from vitmed.training.train_state import Record

DRAWING = 10.0  # s, for the figure after the last epoch, and the start and the end of Python


@dataclass(frozen=True)
class Pretrain(Task[PretrainConfig]):
    """A masked autoencoder that learns to reconstruct the images of a folder."""

    model: MAE
    command: ClassVar[str] = "pretrain"

    @classmethod
    def new(cls, config: PretrainConfig, splits: Splits, session: Session) -> Self:
        """Build an autoencoder before training; report what it learns from. UsageError: sizes that do not fit."""
        with seeded(config.train.seed):
            encoder = ViT(config.encoder, 1)
            model = MAE(encoder, config.mae.mask_ratio, *decoder_size(encoder.width)).to(session.device)
        for name, samples in splits.samples.items():
            say(f"{name + ':':6} {counted(len(samples), 'image')}, {splits.made[name]}")
        report_patients(splits, "a patient of a later test may be among these images")
        sizes = [sum(p.numel() for p in part.parameters()) / 1e6 for part in (encoder, model)]
        say(f"encoder: {describe_model(config.model)}, {sizes[0]:.2f} M parameters")
        rest = f"{sizes[1] - sizes[0]:.2f} M parameters, used only in pretraining"
        say(f"decoder: {rest}; it reconstructs each image from {model.visible} of {model.patches} patches")
        say(f"device: {describe(session.device)}, {session.precision.name} ({session.precision.reason})")
        return cls(model)

    def objective(self, config: PretrainConfig, train: Images, session: Session) -> Objective:
        """The mean squared error of the hidden patches, which the model returns of each part of a batch."""

        def draw(x: Tensor, _: Tensor) -> tuple[Tensor, ...]:
            noise = torch.rand(len(x), self.model.patches, device=x.device)  # decides which are hidden
            return x, noise, noise  # as targets, of which only the number is read

        share: Loss = lambda error, targets, images: error * (len(targets) / images)  # noqa: E731
        return Objective(train.preprocessing, draw, share, session.precision)

    @torch.inference_mode()
    def validate(self, run: Run[PretrainConfig]) -> Record:
        """As in `Task`: the mean loss over the hidden patches. VitmedError: it is not finite."""
        config, state, images, model = run.config, run.state, run.images["val"], self.model
        model.eval()
        total = 0.0
        with uncompiled(config.train.compile):
            for indices, batch, problems in read_batches(images.read, len(images)):
                check_readable(problems)
                x = images.preprocessing.normalise(torch.from_numpy(batch).to(run.device))  # (B, C, S, S)
                always = torch.Generator().manual_seed(seed_of(config.train.seed, indices[0]))  # the same patches
                noise = torch.rand(len(indices), model.patches, generator=always).to(run.device)
                with torch.autocast(run.device.type, run.precision.dtype, enabled=run.precision.mixed):
                    total += float(model(x, noise)) * len(indices)
        loss = total / len(images)
        if not np.isfinite(loss):
            raise VitmedError(f"epoch {state.epoch + 1}: the validation loss is {loss}", "lower --lr")
        state.best_epoch = state.epoch + 1
        return common_record(state, loss, config)

    def save_epoch(self, run: Run[PretrainConfig], record: Record) -> None:
        """As in `Task`: the weight file."""
        weights = {k: v for k, v in self.model.encoder.state_dict().items() if k not in HEAD}
        save_encoder(run.folder.encoder, run.config, run.hashes, weights, record)

    def save_last(self, run: Run[PretrainConfig]) -> None:
        save_pretraining(run.folder.last, run.config, run.splits, run.hashes, run.state.state_dict())

    def seconds_after(self, run: Run[PretrainConfig]) -> float:
        return DRAWING
