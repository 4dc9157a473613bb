"""The configuration: every setting with its type, range, flag and meaning.

A setting is declared once, as a field of a section: in `data_config`, `model_config`, `train_config`,
`evaluate_config` or `pretrain_config`. The command line, the Python keywords, the YAML keys and docs/configuration.md
come from the fields; see `core/flags.py`. Names from tables elsewhere (models, policies, metrics) are plain `str` here;
`check_names` checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import field_validator, model_validator

from vitmed.core.data_config import DataConfig, ModelConfig
from vitmed.core.settings import Section
from vitmed.core.train_config import SHARES, AugmentConfig, EvaluateConfig, TrainConfig


class RunConfig(Section):
    """What the configurations of training and of pretraining share."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()

    @field_validator("data")
    @classmethod
    def _something_left_to_train_on(cls, data: DataConfig) -> DataConfig:
        test = 0 if data.sites is not None else data.test_fraction if data.folds is None else 1 / data.folds
        if data.val_fraction + test >= 1:
            raise ValueError("the shares of validation and test leave nothing to train on")
        if data.groups is not None and data.group_regex is not None:
            raise ValueError("data.groups and data.group_regex both define the patients")
        if data.folds is not None and data.sites is not None:
            raise ValueError("data.folds and data.sites both define the folds")
        for name in ("fold", "hold_out"):
            if getattr(data, name) is not None and not data.divided:
                raise ValueError(f"data.{name} needs data.folds or data.sites")
        if data.repeats > 1 and data.folds is None:
            raise ValueError("data.repeats needs data.folds; sites are always the same folds")
        if data.repeat > data.repeats:
            raise ValueError(f"data.repeat {data.repeat} of data.repeats {data.repeats}: there is no such repeat")
        if data.folds is not None and (data.fold or 1) > data.folds:
            raise ValueError(f"data.fold {data.fold} of data.folds {data.folds}: there is no such fold")
        return data

    @model_validator(mode="after")
    def _mean_and_std_fit(self) -> RunConfig:
        data, channels = self.data, self.model.channels
        if {data.mean is not None, data.std is not None} != {data.normalize == "given"}:
            raise ValueError("data.normalize given, data.mean and data.std go together: set all or none")
        for name in ("mean", "std"):
            values = getattr(data, name)
            if values is not None and len(values) not in (1, 3, channels):
                raise ValueError(f"data.{name} has {len(values)} numbers for {channels} channels")
        if data.std is not None and min(data.std) <= 0:
            raise ValueError("data.std holds a number that is not above 0")
        return self

    @field_validator("train", check_fields=False)
    @classmethod
    def _min_lr_below_lr(cls, train: Any) -> Any:
        if train.min_lr > train.lr:
            raise ValueError(f"train.min_lr {train.min_lr:g} is above train.lr {train.lr:g}")
        return train

    def to_yaml(self) -> str:
        """All fields, resolved, in the order of the docs."""
        import yaml  # here, since `vitmed train --help` needs the fields and no YAML

        return yaml.safe_dump(self.model_dump(), sort_keys=False)


class Config(RunConfig):
    """One training run, completely."""

    augment: AugmentConfig = AugmentConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()

    @field_validator("train")
    @classmethod
    def _one_way_to_tune(cls, train: TrainConfig) -> TrainConfig:
        if train.freeze and (train.probe_first or train.lora or train.freeze_blocks is not None):
            raise ValueError("train.freeze trains no weights, so it excludes every other way of fine-tuning")
        if train.lora and train.freeze_blocks is not None:
            raise ValueError("train.lora already freezes all blocks, so it excludes train.freeze_blocks")
        return train


def expected(error: Mapping[str, Any]) -> str:
    """What pydantic expected, in words; for a share in percent, also the right number."""
    value = error["input"]
    if error["loc"][-1] in SHARES and isinstance(value, int | float):
        share = "expected a share above 0 and below 1"
        return f"{share} (for {value:g} %: {value / 100:g})" if 2 <= value < 100 else share
    return str(error["msg"])


# Fields that name a file or folder, relative to their YAML file.
PATHS = (
    ("data", "root"), ("data", "groups"), ("data", "labels"), ("model", "weights"),
)  # fmt: skip
