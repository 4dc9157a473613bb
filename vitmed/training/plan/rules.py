"""The plan: settings that you do not choose yourself, from a table of rules, each with its source.

A rule sets values for certain inputs (kind of weights, number and size of images, device, width of the network). For
every field the first rule that fits wins; values that you set are kept. `RULES` is at the bottom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vitmed.core.config import Config, PretrainConfig
from vitmed.core.load_config import with_values
from vitmed.models.weights.catalogue import DISTILLED, MASKED

APART = 5  # images of the commonest class for each of the rarest, beyond which the plan speaks of imbalance
SMALL = 48  # px, of images that have patches of 8 px
SCRATCH, OWN = "from scratch", "vitmed"  # beside the kinds of public weights


@dataclass(frozen=True)
class PlanInputs:
    """What the rules depend on.

    Attributes:
        weights: how the weights were made: `SCRATCH`, or a `kind` of `pretrained.Weights`.
        images, val: number of training and validation images.
        side: the median of the longer sides of the images, px.
        device: "cpu", "cuda" or "mps".
        width: D of the network.
        lora: whether only low-rank additions learn.
        ratio: training images of the commonest class for each of the rarest.
        views: a key of `imaging.exact_views.VIEWS`, the most that the augmentation policy calls safe.
    """

    weights: str
    images: int
    val: int
    side: int
    device: str
    width: int
    lora: bool = False
    ratio: float = 1.0
    views: str = "one"

    @property
    def scratch(self) -> bool:
        """Whether training starts from random weights."""
        return self.weights == SCRATCH

    def __str__(self) -> str:
        start = "from scratch" if self.scratch else f"{self.weights} weights, {self.width} wide"
        images = f"{self.images:,} training and {self.val:,} validation images of about {self.side} px"
        apart = f", classes {self.ratio:.0f}:1 apart" if self.ratio > APART else ""
        return f"{start}, {images}{apart}, {self.device}"


Value = Callable[[PlanInputs, Config], float]


class Rule(NamedTuple):
    """If `fits`, the fields get these values (a function is called for its value); `when` and `why` explain it."""

    when: str
    fits: Callable[[PlanInputs], bool]
    fields: dict[str, Any]
    why: str


class PlannedSetting(NamedTuple):
    """A field that the plan sets: "section.field", its value, and the explanation of the rule."""

    field: str
    value: Any
    when: str
    why: str


def plan_settings(config: Config, inputs: PlanInputs, first: Sequence[Rule] = ()) -> list[PlannedSetting]:
    """The value of every planned field that you did not set, in the order of `first` and the table."""
    given = {f"{section}.{field}" for section in Config.model_fields for field in fields_set(config, section)}
    if "model.name" in given:  # a named size fixes the others
        given |= {"model.width", "model.depth", "model.heads"}
    planned: dict[str, PlannedSetting] = {}
    for rule in (*first, *RULES):
        for field, value in rule.fields.items() if rule.fits(inputs) else ():
            if field not in given and field not in planned:
                if callable(value):
                    value = value(inputs, with_values(config, {name: p.value for name, p in planned.items()}))
                planned[field] = PlannedSetting(field, value, rule.when, rule.why)
    return list(planned.values())


def fields_set(config: Config | PretrainConfig, section: str) -> set[str]:
    """The fields of a section that were set; `auto` and null do not count."""
    part = getattr(config, section)
    return {name for name in part.model_fields_set if getattr(part, name) not in ("auto", None)}


def describe(settings: list[PlannedSetting]) -> list[str]:
    """A line for every rule that set a value: the values as in YAML, when the rule applies, and why."""
    lines: dict[tuple[str, str], list[str]] = {}
    for field, value, when, why in settings:
        text = f"{value:g}" if isinstance(value, float) else str(value).lower()
        lines.setdefault((when, why), []).append(f"{field} {text}")
    return [f"{', '.join(values)}: {when}; {why}" for (when, why), values in lines.items()]


def epochs_for_steps(steps: int, least: int, most: int) -> Value:
    """The number of epochs for about `steps` optimiser steps, within bounds."""

    def epochs(inputs: PlanInputs, config: Config) -> int:
        batch = min(inputs.images, config.train.batch_size * config.train.accumulate)
        return min(most, max(least, math.ceil(steps * batch / inputs.images)))

    return epochs


def scaled_lr(base: float) -> Value:
    """A learning rate for ViT-Base at batch 64, scaled by 768 / width (at most 4) and the root of batch / 64."""

    def lr(inputs: PlanInputs, config: Config) -> float:
        batch = config.train.batch_size * config.train.accumulate
        exact = base * min(4.0, 768 / inputs.width) * math.sqrt(batch / 64)
        return float(f"{exact:.1e}")  # two digits, since a plan is not more exact

    return lr


def image_side(least: int, most: int, multiple: int) -> Value:
    """The side of the images, within bounds, rounded to whole patches."""
    return lambda inputs, config: max(least, min(most, round(inputs.side / multiple) * multiple))


def tenth_of_epochs(inputs: PlanInputs, config: Config) -> float:
    """Warm-up of a tenth of the run, in epochs."""
    return round(config.train.epochs / 10, 2)


RULES: tuple[Rule, ...] = (
    # ---- batch ----
    Rule("on a CPU", lambda s: s.device == "cpu",
         {"train.batch_size": 32, "train.accumulate": 1},
         "larger batches are not faster there"),
    Rule("few images, not ViT-Large", lambda s: s.images <= 1000 and s.width < 1024,
         {"train.batch_size": 32, "train.accumulate": 1},
         "more steps from few images"),
    Rule("on a GPU, ViT-Large", lambda s: s.width >= 1024,
         {"train.batch_size": 16, "train.accumulate": 4},
         "steps of 64 images, of which a quarter is in memory at once"),
    Rule("on a GPU, ViT-Base", lambda s: s.width >= 768,
         {"train.batch_size": 32, "train.accumulate": 2},
         "steps of 64 images, of which half is in memory at once"),
    Rule("on a GPU", lambda s: True,
         {"train.batch_size": 64},
         "the batch for which the learning rates below are stated"),
    # ---- from scratch: a small network behind convolutions, a small image ----
    Rule("from scratch", lambda s: s.scratch,
         {"model.stem": "residual"},
         "AUROC 0.014 above ResNet-18 on average of seven medical sets, in less than half the time: docs/recipes.md"),
    Rule(f"from scratch, images up to {SMALL} px", lambda s: s.scratch and s.side <= SMALL,
         {"model.image_size": image_side(32, SMALL, 8), "model.patch_size": 8},
         "16 to 36 patches; an even patch size keeps the stem's small convolutions"),
    Rule("from scratch on a CPU", lambda s: s.scratch and s.device == "cpu",
         {"model.image_size": image_side(64, 96, 16), "model.patch_size": 16},
         "up to 96 px, no larger than the files; 128 px take 1.8 times as long and are no better on average: "
         "docs/recipes.md"),
    Rule("from scratch on a GPU, up to 5,000 images", lambda s: s.scratch and s.images <= 5000,
         {"model.image_size": image_side(64, 128, 16), "model.patch_size": 16},
         "128 px are better than 96 on two of five sets, worse on two: docs/recipes.md"),
    Rule("from scratch on a GPU", lambda s: s.scratch,
         {"model.image_size": image_side(64, 224, 16), "model.patch_size": 16},
         "the usual size of a ViT-Tiny; not measured here"),
    Rule("from scratch, up to 5,000 images", lambda s: s.scratch and s.images <= 5000,
         {"model.width": 128, "model.depth": 4, "model.heads": 4},
         "1.3 M parameters: docs/recipes.md"),
    Rule("from scratch on a CPU, more images", lambda s: s.scratch and s.device == "cpu",
         {"model.width": 128, "model.depth": 6, "model.heads": 4},
         "as configs/malaria_gray50.yaml"),
    Rule("from scratch, up to 5,000 images", lambda s: s.scratch and s.images <= 5000,
         {"train.epochs": epochs_for_steps(3000, 30, 300), "train.lr": 1e-3, "train.warmup_epochs": tenth_of_epochs},
         "twice the steps help on sets of more than about 1,000 images and harm smaller ones: docs/recipes.md"),
    Rule("from scratch, more images", lambda s: s.scratch,
         {"train.epochs": epochs_for_steps(6000, 7, 30), "train.lr": 1e-3, "train.warmup_epochs": tenth_of_epochs},
         "about 6,000 steps; configs/malaria_gray50.yaml makes 5,000 of twice the batch"),
    Rule("from scratch", lambda s: s.scratch,
         {"model.drop_path": 0.0},
         "in runs of a few thousand steps it does not help: docs/recipes.md"),
    Rule("from scratch, up to 5,000 images, a policy that mirrors",
         lambda s: s.scratch and s.images <= 5000 and s.views == "mirror",
         {"augment.views": "mirror"},
         "about 0.01 of AUROC on images like those of training, in twice the time of a prediction: docs/recipes.md"),
    Rule("from scratch, up to 5,000 images, a policy that turns",
         lambda s: s.scratch and s.images <= 5000 and s.views in ("turns", "all"),
         {"augment.views": "turns"},
         "about 0.01 of AUROC on images like those of training, in four times the time of a prediction; all eight are "
         "no better: docs/recipes.md"),
    # ---- length: good weights need few steps ----
    Rule("weights and up to 1,000 images", lambda s: not s.scratch and s.images <= 1000,
         {"train.epochs": epochs_for_steps(750, 10, 100), "model.drop_path": 0.0},
         "500 steps for 2,000 to 4,000 images in vision_transformer's configs/augreg.py and big_vision's transfer.py"),
    Rule("weights and up to 5,000 images", lambda s: not s.scratch and s.images <= 5000,
         {"train.epochs": epochs_for_steps(1500, 10, 50), "model.drop_path": 0.05},
         "between big_vision's 500 steps and MAE's 100 epochs"),
    Rule("weights and up to 30,000 images", lambda s: not s.scratch and s.images <= 30_000,
         {"train.epochs": 20, "model.drop_path": 0.1},
         "20 epochs as in AutoGluon; drop path as in MAE and BEiT"),
    Rule("weights and more images", lambda s: not s.scratch,
         {"train.epochs": 10, "model.drop_path": 0.1},
         "more images need fewer passes; drop path as in MAE and BEiT"),
    # ---- learning rate: how the weights were made decides ----
    Rule("low-rank additions", lambda s: s.lora,
         {"train.lr": scaled_lr(5e-4), "train.layer_decay": 1.0},
         "about ten times the rate of full fine-tuning: Hu et al. 2021, tables 9 to 12, have 2e-4 to 5e-4"),
    Rule("weights of masked images", lambda s: s.weights == MASKED,
         {"train.lr": scaled_lr(1.25e-4), "train.layer_decay": 0.65},
         "MAE's FINETUNE.md: 5e-4 x batch / 256, layer decay 0.65"),
    Rule("self-distilled weights", lambda s: s.weights == DISTILLED,
         {"train.lr": scaled_lr(3e-5), "train.layer_decay": 0.65},
         "large steps destroy such features (dinov2 issue 276); layer decay as in MAE and BEiT"),
    Rule("a vitmed checkpoint", lambda s: s.weights == OWN,
         {"train.lr": scaled_lr(7.5e-5), "train.layer_decay": 0.75},
         "as for supervised weights"),
    Rule("supervised weights and up to 1,000 images", lambda s: not s.scratch and s.images <= 1000,
         {"train.lr": scaled_lr(3e-5), "train.layer_decay": 0.75},
         "between BEiT's 2e-5 on tuned weights and AutoGluon's 1e-4; layer decay between MAE's 0.65 and AutoGluon's "
         "0.9"),
    Rule("supervised weights and up to 5,000 images", lambda s: not s.scratch and s.images <= 5000,
         {"train.lr": scaled_lr(5e-5), "train.layer_decay": 0.75},
         "as above"),
    Rule("supervised weights and more images", lambda s: not s.scratch,
         {"train.lr": scaled_lr(1e-4), "train.layer_decay": 0.8},
         "AutoGluon's 1e-4"),
    Rule("weights", lambda s: not s.scratch,
         {"train.warmup_epochs": tenth_of_epochs},
         "a tenth of the run, as in AutoGluon"),
    Rule("weights", lambda s: not s.scratch,
         {"train.probe_first": True},
         "the head is fitted first, so its random start does not distort the features (Kumar et al. 2022, arXiv "
         "2202.10054)"),
    # ---- which epoch ----
    Rule("up to 500 validation images", lambda s: s.val <= 500,
         {"train.choose": "last"},
         "too few to compare epochs: the best one is luck, perhaps during warm-up; the last is safe, since the "
         "schedule ends at a low rate"),
    Rule("more validation images", lambda s: s.val > 500,
         {"train.choose": "best", "train.patience": lambda _, config: max(10, math.ceil(config.train.epochs / 4))},
         "time for the schedule to lower the rate before the run stops"),
    # ---- imbalance ----
    Rule(f"from scratch, classes more than {APART}:1 apart", lambda s: s.scratch and s.ratio > APART,
         {"train.balance": "adjust"},
         "logit adjustment keeps the probabilities right; class weights and a sampler were no better: docs/recipes.md. "
         "To decide for balanced accuracy: --balanced, or --youden of two classes"),
    Rule(f"weights, classes more than {APART}:1 apart", lambda s: s.ratio > APART,
         {"train.balance": "none"},
         "the head that is fitted first knows how common the classes are. To decide for balanced accuracy: --balanced, "
         "or --youden of two classes"),
    # ---- mixing and averaging ----
    Rule("always", lambda s: True,
         {"augment.mixup": 0.0, "augment.cutmix": 0.0},
         "they change calibration and do not help in short runs: docs/recipes.md; vision_transformer fine-tunes "
         "without them"),
    Rule("always", lambda s: True,
         {"train.ema": True},
         "an average over a tenth of the run, as in torchvision"),
    Rule("always", lambda s: True,
         {"train.weight_decay": 0.05},
         "as in MAE, BEiT and SPT_LSA"),
)  # fmt: skip
