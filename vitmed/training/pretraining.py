"""Pretraining: the network that learns, its validation, the masked autoencoder's loss, and its pictures.

The seed of a batch decides its mask, so a resumed run hides the patches that an uninterrupted run would have hidden.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitmed.core.errors import VitmedError
from vitmed.core.pretrain_config import PretrainConfig
from vitmed.data.loading import Images, seed_of
from vitmed.data.thread_batches import check_readable, read_batches
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.hardware import Precision
from vitmed.models.mae import MAE, decoder_size
from vitmed.models.vit import ViT
from vitmed.training.epoch_records import common_record
from vitmed.training.losses import Objective
from vitmed.training.train_state import Record, TrainState


def build_mae(encoder: ViT, config: PretrainConfig) -> MAE:
    """The masked autoencoder of a configuration. Raises UsageError for sizes that do not fit."""
    mae = config.mae
    width, depth, heads = decoder_size(encoder.width)
    if mae.decoder_width is not None:
        width, heads = mae.decoder_width, max(1, mae.decoder_width // 32)
    heads = mae.decoder_heads or heads
    return MAE(encoder, mae.mask_ratio, width, mae.decoder_depth or depth, heads, mae.normalise_patches)


class HiddenPatches:
    """The loss that a masked autoencoder returns for a part, as its share in that of the batch."""

    def count(self, targets: Tensor) -> int:
        """How many images (B, ...) there are."""
        return len(targets)

    def share(self, outputs: Tensor, targets: Tensor, count: int) -> Tensor:
        """As in `Loss`; outputs are the mean over the hidden patches of the part, ()."""
        return outputs * (len(targets) / count)


def masked_objective(patches: int, preprocessing: Preprocessing, precision: Precision) -> Objective:
    """The mean squared error of the hidden patches; each image has so many `patches`."""

    def draw(x: Tensor, _: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        noise = torch.rand(len(x), patches, device=x.device)  # decides which are hidden
        return (x, noise), noise

    return Objective(preprocessing, draw, HiddenPatches(), precision)


def validate_pretraining(
    state: TrainState, val: Images, batches: int, config: PretrainConfig, device: torch.device, precision: Precision
) -> Record:
    """The record of the epoch that has just ended; `batches` of the epoch. VitmedError: its loss is not finite."""
    assert isinstance(state.model, MAE)
    loss = reconstruction_loss(state.model, val, config.train.seed, device, precision)
    if not np.isfinite(loss):
        raise VitmedError(f"epoch {state.epoch + 1}: the validation loss is {loss}", "lower --lr")
    state.best_epoch = state.epoch + 1
    return common_record(state, batches, loss, config)


def fixed_noise(seed: int, first: int, count: int, patches: int) -> Tensor:
    """(count, patches) noise that decides which patches of validation images are hidden; always the same."""
    return torch.rand(count, patches, generator=torch.Generator().manual_seed(seed_of(seed, first)))


@torch.inference_mode()
def reconstruction_loss(model: MAE, images: Images, seed: int, device: torch.device, precision: Precision) -> float:
    """Mean loss over the hidden patches of the images. Raises DataError for a file that can no longer be read."""
    model.eval()
    total = done = 0.0
    for indices, batch, problems in read_batches(images.read, len(images)):
        check_readable(problems)
        x = images.preprocessing.normalise(torch.from_numpy(batch).to(device))  # (B, C, S, S)
        noise = fixed_noise(seed, indices[0], len(indices), model.patches).to(device)
        with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
            total += float(model(x, noise)) * len(indices)
        done += len(indices)
    return total / done


@torch.inference_mode()
def reconstructions(model: MAE, images: Images, seed: int, device: torch.device, count: int = 8) -> np.ndarray:
    """(n, 3, S, S, C) uint8: for evenly spread images the original, the masked image and the reconstruction."""
    model.eval()
    chosen = np.unique(np.linspace(0, len(images) - 1, count).astype(int))
    batch = torch.from_numpy(np.stack([images.read(int(i)) for i in chosen])).to(device)  # (n, S, S, C)
    x = images.preprocessing.normalise(batch)
    made = model.reconstruct(x, fixed_noise(seed, 0, len(chosen), model.patches).to(device))
    side = round(model.patches**0.5)
    hidden = made.hidden.reshape(-1, side, side)
    hidden = hidden.repeat_interleave(model.patch, 1).repeat_interleave(model.patch, 2)  # (n, S, S)
    masked = torch.where(hidden[..., None], 128, batch).to(torch.uint8)
    guessed = images.preprocessing.display(model.reconstructed_image(x, made))
    return torch.stack([batch, masked, guessed], dim=1).cpu().numpy()
