"""The plan: settings that you do not choose yourself, from the table of rules in rules.yaml, each with its source.

A rule sets values for certain inputs (kind of weights, number and size of images, device, width of the network). For
every field the first rule that fits wins; values that you set are kept.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from vitmed.core.config import Config, PretrainConfig
from vitmed.core.load_config import with_values
from vitmed.metrics.estimates import APART

SMALL = 48  # px, of images that have patches of 8 px; both numbers stand in rules.yaml too
SCRATCH = "from scratch"  # beside the kinds of weights


@dataclass(frozen=True)
class PlanInputs:
    """What the rules depend on."""

    weights: str  # how the weights were made: `SCRATCH`, or a `kind` of `pretrained.Weights`
    images: int  # number of training images
    val: int  # of validation images
    side: int  # the median of the longer sides of the images, px
    device: str  # "cpu", "cuda" or "mps"
    width: int  # D of the network
    lora: bool = False  # whether only low-rank additions learn
    ratio: float = 1.0  # training images of the commonest class for each of the rarest
    policy: str = "medical"  # of augmentation
    views: str = "one"  # a key of `imaging.augmentation.VIEWS`, the most that the augmentation policy calls safe
    kind: str = "classes"  # of the labels, a key of `TARGETS`
    chosen: int | None = None  # the image size, px, if you chose one

    @property
    def shown(self) -> int:
        """The most pixels of a side that the network can see."""
        return min(self.side, self.chosen or self.side)

    @property
    def scratch(self) -> bool:
        """Whether training starts from random weights."""
        return self.weights == SCRATCH

    def __str__(self) -> str:
        start = "from scratch" if self.scratch else f"{self.weights} weights, {self.width} wide"
        images = f"{self.images:,} training and {self.val:,} validation images of about {self.side} px"
        apart = f", classes {self.ratio:.0f}:1 apart" if self.ratio > APART else ""
        return f"{start}, {images}{apart}, {self.device}"


class Rule(NamedTuple):
    """If the inputs are within `limits`, the fields get these values; `when` and `why` explain it."""

    when: str
    limits: dict[str, Any]
    fields: dict[str, Any]
    why: str

    def fits(self, inputs: PlanInputs) -> bool:
        """Whether every limit holds: equal, one of a list, or compared with numbers, as in `>= 50 <= 1000`."""
        for name, limit in self.limits.items():
            value, words = getattr(inputs, name), str(limit).split()
            if words[0] in COMPARE:
                pairs = zip(words[::2], words[1::2], strict=True)
                holds = all(COMPARE[sign](value, float(number)) for sign, number in pairs)
            else:
                holds = value in limit if isinstance(limit, list) else value == limit
            if not holds:
                return False
        return True


COMPARE: dict[str, Callable[[float, float], bool]] = {"<=": le, "<": lt, ">=": ge, ">": gt}


@cache
def rules() -> tuple[Rule, ...]:
    rows = yaml.safe_load(Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8"))
    return tuple(Rule(row["when"], row.get("if", {}), row["set"], row["why"]) for row in rows)


class PlannedSetting(NamedTuple):
    """A field that the plan sets: "section.field", its value, and the explanation of the rule."""

    field: str
    value: Any
    when: str
    why: str


def plan_settings(
    config: Config, inputs: PlanInputs, first: Sequence[Rule] = ()
) -> tuple[list[PlannedSetting], Config]:
    """The value of every planned field that you did not set, in the order of `first` and the table; and the
    configuration with them."""
    given = {f"{section}.{field}" for section in Config.model_fields for field in fields_set(config, section)}
    if "model.name" in given:  # a named size fixes the others
        given |= {"model.width", "model.depth", "model.heads"}
    planned: dict[str, PlannedSetting] = {}
    for rule in (*first, *rules()):
        for field, value in rule.fields.items() if rule.fits(inputs) else ():
            if field not in given and field not in planned:
                if isinstance(value, dict):
                    ((formula, numbers),) = value.items()
                    value = FORMULAS[formula](inputs, config, *numbers)
                planned[field] = PlannedSetting(field, value, rule.when, rule.why)
                config = with_values(config, {field: value})
    return list(planned.values()), config


def fields_set(config: Config | PretrainConfig, section: str) -> set[str]:
    """The fields of a section that were set; `auto` does not count, nor null where it or `auto` is the default."""
    part = getattr(config, section)
    fields = type(part).model_fields
    unset = {name: ("auto", None) if fields[name].default in ("auto", None) else ("auto",) for name in fields}
    return {name for name in part.model_fields_set if getattr(part, name) not in unset[name]}


def describe(settings: list[PlannedSetting]) -> list[str]:
    """A line for every rule that set a value: the values as in YAML, when the rule applies, and why."""
    lines: dict[tuple[str, str], list[str]] = {}
    for field, value, when, why in settings:
        text = f"{value:g}" if isinstance(value, float) else str(value).lower()
        lines.setdefault((when, why), []).append(f"{field} {text}")
    return [f"{', '.join(values)}: {when}; {why}" for (when, why), values in lines.items()]


def epochs_for_steps(inputs: PlanInputs, config: Config, steps: int, least: int, most: int) -> int:
    """The number of epochs for about `steps` optimiser steps, within bounds."""
    batch = min(inputs.images, config.train.batch_size * config.train.accumulate)
    return min(most, max(least, math.ceil(steps * batch / inputs.images)))


def scaled_lr(inputs: PlanInputs, config: Config, base: float) -> float:
    """A learning rate for ViT-Base at batch 64, scaled by 768 / width (at most 4) and the root of batch / 64."""
    exact = base * min(4.0, 768 / inputs.width) * math.sqrt(config.train.batch_size * config.train.accumulate / 64)
    return float(f"{exact:.1e}")  # two digits, since a plan is not more exact


FORMULAS: dict[str, Callable[..., float]] = {
    "epochs_for_steps": epochs_for_steps,
    "scaled_lr": scaled_lr,
    # the side of the images, within bounds, rounded to whole patches
    "image_side": lambda inputs, _, least, most, patch: max(least, min(most, round(inputs.side / patch) * patch)),
    "tenth_of_epochs": lambda _, config: round(config.train.epochs / 10, 2),
    "quarter_of_epochs": lambda _, config, least: max(least, math.ceil(config.train.epochs / 4)),
}
