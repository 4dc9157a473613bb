"""The configuration of `vitmed pretrain`: the fields that differ from training."""

from __future__ import annotations

from typing import ClassVar

from vitmed.core.config import RunConfig
from vitmed.core.data_config import DataConfig, ModelConfig
from vitmed.core.settings import Flag, Section, flags_of, setting
from vitmed.core.train_config import LoopConfig


class PretrainDataConfig(DataConfig):
    """Which images to learn from: the ones that training would use, or all."""

    unlabelled: bool = setting(
        False,
        "Folders are no classes: take every image but those of a test folder. false splits as training does, and "
        "leaves its test images out.",
        Flag(),
    )


class PretrainAugmentConfig(Section):
    """Random changes of the images before patches are hidden."""

    panel = "Training"

    policy: str = setting(
        "mae", "Augmentation policy; see docs/training.md.", Flag(also="--augment", metavar="NAME", first=True)
    )
    flips: bool = setting(True, "Allow the policy's mirror flips.")


class MaeConfig(Section):
    """The masked autoencoder around the encoder."""

    panel = "Training"

    mask_ratio: float = setting(0.75, "Share of patches that is hidden.", Flag(metavar="SHARE"), gt=0, lt=1)
    normalise_patches: bool = setting(
        True, "Predict each patch at mean 0 and standard deviation 1, which the paper found better."
    )
    decoder_width: int | None = setting(
        None, "Default 512 for encoders of 768 and more, else about half the encoder's.", ge=4, le=8192
    )
    decoder_depth: int | None = setting(None, "Default 8 for encoders of 768 and more, else 4.", ge=1, le=128)
    decoder_heads: int | None = setting(None, "Default the decoder's width / 32.", ge=1)


class PretrainTrainConfig(LoopConfig):
    """The optimisation of pretraining; some defaults differ from training."""

    epochs: int = setting(
        200, "Passes over the images; the paper has 800 and gains up to 1,600.", Flag(first=True), ge=1
    )
    batch_size: int = setting(
        128,
        "Images per batch (the paper has 4,096), or auto: as many of them are computed at once as fit the memory.",
        Flag(also="-b", metavar="N|auto", first=True, text=True),
        ge=1,
    )
    lr: float = setting(
        5e-4, "Peak learning rate of AdamW; the paper has 2.4e-3 for its batch of 4,096.", Flag(first=True), gt=0
    )
    min_lr: float = setting(0.0, "Learning rate at the end of the cosine.", ge=0)
    warmup_epochs: float = setting(10.0, "Linear warm-up, in epochs; at most a third of the run.", Flag(), ge=0)
    clip_norm: float | None = setting(None, "Clip the gradient to this norm; null is off.", gt=0)
    # What training chooses and pretraining does not.
    balance: ClassVar[str] = "none"
    betas: ClassVar[tuple[float, float]] = (0.9, 0.95)  # of the MAE paper
    choose: ClassVar[str] = "last"
    ema: ClassVar[bool] = False
    ema_decay: ClassVar[float | None] = None
    layer_decay: ClassVar[float] = 1.0
    patience: ClassVar[int | None] = None
    shard: ClassVar[bool] = False


class PretrainConfig(RunConfig):
    """One pretraining run, completely."""

    data: PretrainDataConfig = PretrainDataConfig()
    augment: PretrainAugmentConfig = PretrainAugmentConfig()
    mae: MaeConfig = MaeConfig()
    train: PretrainTrainConfig = PretrainTrainConfig()

    @property
    def encoder(self) -> ModelConfig:
        """The network that learns. A decoder needs `norm` over every token, and pooling the mean moves it behind."""
        return self.model.model_copy(update={"pool": "cls"})


PRETRAIN_FLAGS = flags_of(PretrainConfig, without=("model.weights", "data.positive"))
