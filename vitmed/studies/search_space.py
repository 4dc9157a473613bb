"""The settings that `vitmed tune` searches: by default those of the plan, in a range around what it chose."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from vitmed.core.config import Config
from vitmed.core.errors import UsageError
from vitmed.core.flags import FLAGS, fields_of
from vitmed.core.load_config import load_config
from vitmed.training.learning import LEARNING
from vitmed.training.plan.make_plan import Plan
from vitmed.training.plan.rules import fields_set

APART = 10  # a range whose ends are so many times apart is searched on a logarithmic scale
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
FIXED = ("train.seed", "train.test", "train.time", "train.monitor")
Space = dict[str, str]  # "section.field" -> "LOW..HIGH" or "A,B,C"


def read_space(texts: Sequence[str], sets: Sequence[str] = (), flag: str = "--space") -> Space:
    """{"train.lr": "1e-5..1e-3"} of "lr=1e-5..1e-3" or "train.lr=1e-5..1e-3".

    Args:
        sets: settings that hold for all trials, as in `load_config`.
        flag: of the texts: --space; or --grid or --seeds, which have no ranges.

    Raises:
        UsageError: another form, an unknown setting, or a value that it cannot have.
    """
    found: Space = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        place = FLAGS.get(key.removeprefix("--").replace("-", "_"), key)
        low, dots, high = values.partition("..")
        parts = [low, high] if dots else [part.strip() for part in values.split(",")]
        numbers = [float(part) for part in parts if NUMBER.fullmatch(part)]
        if not equals or not all(parts) or (dots and (len(numbers) < 2 or flag != "--space")):
            what, example = "a range, or its values", "--space train.lr=1e-5..1e-3 or --space model.width=64,128"
            if flag != "--space":
                what, example = "its values", "--grid model.heads=2,4,8 --seeds 0,1,2"
            raise UsageError(f"{flag} {text}: expected a setting and {what}", example)
        if (place.startswith(("data.", "evaluate.")) or place in FIXED) and flag != "--seeds":
            raise UsageError(f"{flag} {text}: all trials share images, splits and evaluation", "leave it out")
        if place in found or len(set(parts)) < len(parts) or (dots and numbers[0] >= numbers[1]):
            raise UsageError(f"{flag} {text}: expected different values in order, each setting once", "correct it")
        for value in parts:
            load_config(None, None, [*sets, f"{place}={value}"])
        if dots and not _kinds(place) & {int, float}:
            raise UsageError(f"{flag} {text}: a range is for numbers", f"{flag} {place}=A,B")
        found[place] = f"{low.strip()}..{high.strip()}" if dots else ",".join(parts)
    return found


def _kinds(place: str) -> set[Any]:
    """The types that a field may have."""
    section, _, name = place.partition(".")
    annotation = fields_of(Config, section)[name].annotation
    return {annotation, *get_args(annotation)}


def default_space(plan: Plan) -> Space:
    """A range around the planned value of each setting of `AROUND` that you did not set."""
    config, given = plan.config, plan.given
    without = set() if LEARNING[plan.splits.target.kind].mixes else {"augment.mixup"}
    if plan.weights is None:
        without.add("train.layer_decay")
    return {
        place: around(value_of(config, place))
        for place, around in AROUND.items()
        if place not in without and place.partition(".")[2] not in fields_set(given, place.partition(".")[0])
    }


def value_of(config: Config, place: str) -> Any:
    """The value of "section.field"."""
    section, _, name = place.partition(".")
    return getattr(getattr(config, section), name)


def contains(domain: str, value: Any) -> bool:
    """Whether a range or a list of values has a value."""
    low, dots, high = domain.partition("..")
    if dots:
        return isinstance(value, int | float) and float(low) <= value <= float(high)
    return as_text(value) in domain.split(",")


def as_text(value: Any) -> str:
    """A value as in --set."""
    return str(value).lower() if isinstance(value, bool) or value is None else f"{value}"


def suggest(trial: Any, space: Mapping[str, str]) -> dict[str, Any]:
    """The values of an Optuna trial: those that it has, and new ones for the rest."""
    found: dict[str, Any] = {}
    for place, domain in space.items():
        low, dots, high = domain.partition("..")
        log = bool(dots) and float(low) > 0 and float(high) >= APART * float(low)
        if not dots:
            found[place] = trial.suggest_categorical(place, domain.split(","))
        elif float in _kinds(place):
            found[place] = trial.suggest_float(place, float(low), float(high), log=log)
        else:
            found[place] = trial.suggest_int(place, int(low), int(high), log=log)
    return found


def as_sets(values: Mapping[str, Any]) -> list[str]:
    """The values of a trial as "section.field=value", numbers with three digits."""
    return [f"{place}={f'{value:.3g}' if isinstance(value, float) else value}" for place, value in values.items()]


AROUND: dict[str, Callable[[float], str]] = {  # the epochs are what the trials spend, and are not searched
    "train.lr": lambda value: f"{value / 5:.3g}..{value * 5:.3g}",
    "train.weight_decay": lambda value: f"{max(value / 10, 0.001):.3g}..{max(value * 10, 0.1):.3g}",
    "train.layer_decay": lambda value: f"{max(0.3, value - 0.25):.3g}..1",
    "model.drop_path": lambda value: f"0..{max(0.2, 2 * value):.3g}",
    "augment.mixup": lambda value: f"0..{max(0.4, 2 * value):.3g}",
}
