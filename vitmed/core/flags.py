"""Which field of the configuration each flag of the command line sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vitmed.core.config import EvaluateConfig, expected
from vitmed.core.errors import UsageError


def read_overrides(flags: dict[str, Any], known: dict[str, str], command: str) -> dict[str, Any]:
    """{"epochs": 5} -> {"train.epochs": 5}; None is a flag that was not given. Raises UsageError."""
    unknown = set(flags) - set(known)
    if unknown:
        raise UsageError(
            f"{command} has no option {', '.join(sorted(unknown))}", f"it has {', '.join(known)}, config, sets"
        )
    if known is not EVALUATE_FLAGS:
        evaluate_config(EvaluateConfig(), {flag: value for flag, value in flags.items() if flag in EVALUATE_FLAGS})
    given = {known[flag]: value for flag, value in flags.items() if value is not None}
    return {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}


def evaluate_config(own: EvaluateConfig, flags: dict[str, Any]) -> EvaluateConfig:
    """What an evaluation is asked for: the run's own wish, and over it the flags of `EVALUATE_FLAGS`.

    Raises:
        UsageError: a flag that is not known, or a value that is not valid.
    """
    given = {key.partition(".")[2]: value for key, value in read_overrides(flags, EVALUATE_FLAGS, "evaluate").items()}
    former = own.model_dump()
    if POINTS & set(given):  # another operating point replaces that of the run
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


POINTS = {"youden", "target_sensitivity", "target_specificity", "cost"}  # fields of which one decides
# Flag of `vitmed evaluate`, `vitmed train` and keyword of their functions -> field of the configuration.
EVALUATE_FLAGS = {
    "resamples": "evaluate.resamples",
    "subgroup": "evaluate.subgroups",
    "rater": "evaluate.raters",
    "ordinal": "evaluate.ordinal",
    "calibration": "evaluate.calibration",
    "youden": "evaluate.youden",
    "target_sensitivity": "evaluate.target_sensitivity",
    "target_specificity": "evaluate.target_specificity",
    "cost": "evaluate.cost",
    "prevalence": "evaluate.prevalence",
    "coverage": "evaluate.coverage",
    "max_risk": "evaluate.max_risk",
    "map_images": "evaluate.map_images",
    "format": "evaluate.format",
    "show_names": "evaluate.show_names",
}
# Flag of the command line and keyword of `vitmed.train` -> field of the configuration.
FLAGS = {
    **EVALUATE_FLAGS,
    "model": "model.name",
    "weights": "model.weights",
    "image_size": "model.image_size",
    "patch_size": "model.patch_size",
    "channels": "model.channels",
    "stem": "model.stem",
    "pool": "model.pool",
    "positions": "model.positions",
    "drop_path": "model.drop_path",
    "resize": "data.resize",
    "normalize": "data.normalize",
    "window": "data.window",
    "frame": "data.frame",
    "max_train": "data.max_train",
    "cache": "data.cache",
    "cache_size": "data.cache_gb",
    "labels": "data.labels",
    "groups": "data.groups",
    "group_regex": "data.group_regex",
    "folds": "data.folds",
    "fold": "data.fold",
    "allow_leakage": "data.allow_leakage",
    "positive": "data.positive",
    "policy": "augment.policy",
    "mixup": "augment.mixup",
    "cutmix": "augment.cutmix",
    "epochs": "train.epochs",
    "batch_size": "train.batch_size",
    "accumulate": "train.accumulate",
    "lr": "train.lr",
    "weight_decay": "train.weight_decay",
    "layer_decay": "train.layer_decay",
    "warmup_epochs": "train.warmup_epochs",
    "smoothing": "train.smoothing",
    "balance": "train.balance",
    "freeze": "train.freeze",
    "probe_first": "train.probe_first",
    "freeze_blocks": "train.freeze_blocks",
    "lora": "train.lora",
    "baseline": "train.baseline",
    "ema": "train.ema",
    "monitor": "train.monitor",
    "patience": "train.patience",
    "save_every": "train.save_every",
    "seed": "train.seed",
    "device": "train.device",
    "precision": "train.precision",
    "workers": "train.workers",
}
