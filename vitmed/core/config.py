"""The configuration: every setting with its type, range, flag and meaning.

A setting is declared once, as a field of a section, in `data_config` or `train_config`. The command line, the Python
keywords, the YAML keys and docs/configuration.md come from the fields; see `settings`. Names from tables elsewhere
(models, policies, metrics) are plain `str` here; `check_names` checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError, field_validator, model_validator

from vitmed.core.base_models import Section, flags_of
from vitmed.core.errors import UsageError
from vitmed.core.sections import AugmentConfig, DataConfig, ModelConfig, TrainConfig
from vitmed.core.upgrade import gone, without_gone


class RunConfig(Section):
    """What the configurations of training and of pretraining share."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()

    @field_validator("data")
    @classmethod
    def _something_left_to_train_on(cls, data: DataConfig) -> DataConfig:
        test = 0 if data.sites is not None else data.test_fraction if data.folds is None else 1 / data.folds
        fold = f"data.fold {data.fold} of data.folds {data.folds}"
        repeat = f"data.repeat {data.repeat} of data.repeats {data.repeats}"
        problems = {
            "the shares of validation and test leave nothing to train on": data.val_fraction + test >= 1,
            "data.groups and data.group_regex both define the patients": None not in (data.groups, data.group_regex),
            "data.folds and data.sites both define the folds": None not in (data.folds, data.sites),
            "data.fold needs data.folds or data.sites": data.fold is not None and not data.divided,
            "data.hold_out needs data.folds or data.sites": data.hold_out is not None and not data.divided,
            "data.repeats needs data.folds; sites are always the same folds": data.repeats > 1 and data.folds is None,
            f"{repeat}: there is no such repeat": data.repeat > data.repeats,
            f"{fold}: there is no such fold": data.folds is not None and (data.fold or 1) > data.folds,
        }
        for problem, wrong in problems.items():
            if wrong:
                raise ValueError(problem)
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


def expected(error: Mapping[str, Any]) -> str:
    """What pydantic expected, in words; for a share in percent, also the right number."""
    value = error["input"]
    if error["loc"][-1] in SHARES and isinstance(value, int | float):
        share = "expected a share above 0 and below 1"
        return f"{share} (for {value:g} %: {value / 100:g})" if 2 <= value < 100 else share
    return str(error["msg"])


# Fields that name a file or folder, relative to their YAML file.
PATHS = (("data", "root"), ("data", "groups"), ("data", "labels"), ("model", "weights"))


def read_overrides(flags: dict[str, Any], known: dict[str, str], command: str) -> dict[str, Any]:
    """{"epochs": 5} -> {"train.epochs": 5}, without flags that are None (not given). Raises UsageError."""
    unknown = set(flags) - set(known)
    if unknown:
        words = [f"--{flag.replace('_', '-')}" for flag in sorted(unknown)]
        raise gone(words, " ".join(words)) or UsageError(
            f"{command} has no option {', '.join(sorted(unknown))}", f"it has {', '.join(known)}, config, sets"
        )
    if known is not EVALUATE_FLAGS:
        evaluate_config(EvaluateConfig(), {flag: value for flag, value in flags.items() if flag in EVALUATE_FLAGS})
    given = {known[flag]: value for flag, value in flags.items() if value is not None}
    return {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}


def evaluate_config(own: EvaluateConfig, flags: dict[str, Any]) -> EvaluateConfig:
    """The settings of the run, overridden by the flags of `EVALUATE_FLAGS`. UsageError for a wrong flag or value."""
    given = {key.partition(".")[2]: value for key, value in read_overrides(flags, EVALUATE_FLAGS, "evaluate").items()}
    without_gone({"evaluate": given}, [f"evaluate.{name}" for name in given])
    former = own.model_dump()
    if POINTS & set(given):  # a new operating point replaces the one of the run
        former = {key: value for key, value in former.items() if key not in POINTS}
    try:
        return EvaluateConfig(**{**former, **given})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        flag = next(f"--{flag.replace('_', '-')}" for flag, key in EVALUATE_FLAGS.items() if key == f"evaluate.{name}")
        if first["type"] == "value_error":
            problem = str(first["ctx"]["error"]).replace(f"evaluate.{name}", flag)
        else:
            value = first["input"]
            problem = f"{flag} {f'{value:g}' if isinstance(value, float) else value}: {expected(first)}"
        raise UsageError(problem, f"see evaluate.{name} in docs/configuration.md") from None


POINTS = {"youden", "balanced", "target_sensitivity", "target_specificity", "cost"}  # that choose the operating point
FLAGS = flags_of(Config)  # of `vitmed train`; plan and probe take the same keywords
EVALUATE_FLAGS = flags_of(Config, "evaluate")
PROBE_FLAGS = flags_of(
    Config, "data", "model.weights", "model.image_size", "train.seed", "train.device", "train.workers", "evaluate"
)
TUNE_FLAGS = flags_of(Config, without=("train.time",))  # of tune itself: how long all trials may take
SUMMARY_FLAGS = flags_of(Config, "model.image_size", "model.patch_size", "model.channels")
PRETRAIN_FLAGS = flags_of(PretrainConfig, without=("model.weights", "data.positive"))
