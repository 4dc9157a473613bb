"""The flags of the command line and the Python keywords, read from the fields of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from vitmed.core.config import Config, RunConfig, expected
from vitmed.core.errors import UsageError
from vitmed.core.settings import Flag
from vitmed.core.train_config import EvaluateConfig
from vitmed.core.upgrade import gone, without_gone


def flags_of(kind: type[RunConfig], *places: str, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Keyword of each flag -> its field: {"batch_size": "train.batch_size"}.

    Args:
        kind: the configuration.
        places: sections ("data") or fields ("train.device") to include, in this order; default all.
        without: fields to omit.
    """
    return {
        flag.name or name: f"{section}.{name}"
        for place in places or kind.model_fields
        for section, _, wanted in [place.partition(".")]
        for name, field in fields_of(kind, section).items()
        if (flag := flag_of(field)) and wanted in ("", name) and f"{section}.{name}" not in without
    }


def fields_of(kind: type[RunConfig], section: str) -> dict[str, FieldInfo]:
    return kind.model_fields[section].annotation.model_fields  # type: ignore[union-attr]


def flag_of(field: FieldInfo) -> Flag | None:
    return next((part for part in field.metadata if isinstance(part, Flag)), None)


def spellings(keyword: str, field: FieldInfo) -> list[str]:
    """The spellings of a flag: ["--batch-size", "-b"], or ["--ema/--no-ema"] for true and false."""
    name, flag = keyword.replace("_", "-"), flag_of(field)
    long = f"--{name}/--no-{name}" if field.annotation is bool else f"--{name}"
    return [long, *([flag.also] if flag and flag.also else [])]


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
