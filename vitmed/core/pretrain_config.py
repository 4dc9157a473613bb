"""The configuration of `vitmed pretrain`: the fields that differ from training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from vitmed.core.config import DataConfig, Flag, LoopConfig, RunConfig, Section
from vitmed.core.flags import flags_of


class PretrainDataConfig(DataConfig):
    """Which images to learn from: the ones that training would use, or all."""

    unlabelled: Annotated[bool, Flag()] = Field(
        False,
        description="Folders are no classes: take every image but those of a test folder. false splits as training "
        "does, and leaves its test images out.",
    )


class PretrainAugmentConfig(Section):
    """Random changes of the images before patches are hidden."""

    panel = "Training"

    policy: Annotated[str, Flag(also="--augment", metavar="NAME", first=True)] = Field(
        "mae", description="Augmentation policy; see docs/training.md."
    )
    flips: bool = Field(True, description="Allow the policy's mirror flips.")


class MaeConfig(Section):
    """The masked autoencoder around the encoder."""

    panel = "Training"

    mask_ratio: Annotated[float, Flag(metavar="SHARE")] = Field(
        0.75, gt=0, lt=1, description="Share of patches that is hidden."
    )
    normalise_patches: bool = Field(
        True, description="Predict each patch at mean 0 and standard deviation 1, which the paper found better."
    )
    decoder_width: int | None = Field(
        None, ge=4, description="Default 512 for encoders of 768 and more, else about half the encoder's."
    )
    decoder_depth: int | None = Field(None, ge=1, description="Default 8 for encoders of 768 and more, else 4.")
    decoder_heads: int | None = Field(None, ge=1, description="Default the decoder's width / 32.")


class PretrainTrainConfig(LoopConfig):
    """The optimisation of pretraining; some defaults differ from training."""

    epochs: Annotated[int, Flag(first=True)] = Field(
        200, ge=1, description="Passes over the images; the paper has 800 and gains up to 1,600."
    )
    batch_size: Annotated[int, Flag(also="-b", first=True)] = Field(
        128, ge=1, description="Images per forward pass; the paper has 4,096."
    )
    lr: Annotated[float, Flag(first=True)] = Field(
        5e-4, gt=0, description="Peak learning rate of AdamW; the paper has 2.4e-3 for its batch of 4,096."
    )
    min_lr: float = Field(0.0, ge=0, description="Learning rate at the end of the cosine.")
    warmup_epochs: Annotated[float, Flag()] = Field(
        10.0, ge=0, description="Linear warm-up, in epochs; at most a third of the run."
    )
    clip_norm: float | None = Field(None, gt=0, description="Clip the gradient to this norm; null is off.")


class PretrainConfig(RunConfig):
    """One pretraining run, completely."""

    data: PretrainDataConfig = PretrainDataConfig()  # type: ignore[call-arg]
    augment: PretrainAugmentConfig = PretrainAugmentConfig()  # type: ignore[call-arg]
    mae: MaeConfig = MaeConfig()  # type: ignore[call-arg]
    train: PretrainTrainConfig = PretrainTrainConfig()  # type: ignore[call-arg]


PRETRAIN_FLAGS = flags_of(PretrainConfig, without=("model.weights", "data.positive"))
