"""Before the first batch: read the weights, split the images, plan the settings, choose the window."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vitmed.core.config import Config, EvaluateConfig, ModelConfig
from vitmed.core.errors import DataError, UsageError, unknown_key
from vitmed.core.hardware import pick_device, pick_precision, seeded, synchronise
from vitmed.core.load_config import AnyConfig, build_config, check_names, with_values
from vitmed.core.ui import Ui
from vitmed.data.patients import show_expression
from vitmed.data.samples import Sample, Splits
from vitmed.data.splits import make_splits
from vitmed.imaging.augmentation import POLICIES, refuse_flips
from vitmed.imaging.choose_window import choose_window
from vitmed.imaging.decode import read_size
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.metric_table import METRICS
from vitmed.metrics.reader_agreement import grades_of, readings
from vitmed.metrics.reader_comparison import check_scores, read_scores
from vitmed.metrics.subgroups import check_columns
from vitmed.models.pretrained import Weights, config_for_weights, open_weights
from vitmed.models.vit import SIZES, build_vit
from vitmed.training.loop import optimiser_step
from vitmed.training.memory import one_batch
from vitmed.training.plan_rules import SCRATCH, PlanInputs, PlannedSetting, plan_settings
from vitmed.training.train_state import new_state

SAMPLE = 200  # training images whose size is read
TIMED = 3  # timed steps, after one untimed step


@dataclass(frozen=True)
class PreparedRun:
    """Everything a run needs to begin.

    Attributes:
        given: the configuration as given, completed by the weights.
        config: the same after planning, with every `auto` resolved.
        settings: the settings made by the plan; none without a plan.
    """

    given: Config
    config: Config
    splits: Splits
    weights: Weights | None
    device: torch.device
    inputs: PlanInputs
    settings: list[PlannedSetting]


def prepare_run(config: Config, plans: bool, offline: bool, ui: Ui) -> PreparedRun:
    """Read weights and folders, and complete the configuration from the weights, the plan and the images.

    Args:
        plans: whether `plan_rules.RULES` may choose settings that were not set by hand.
        offline: open no connection for public weights.

    Raises:
        VitmedError: a subclass for each kind of problem.
    """
    check_names(config, SIZES, POLICIES, METRICS)
    weights = None
    if config.model.weights is not None:
        weights = open_weights(config.model.weights, ui, offline)
        config = config_with_weights(config, weights)
    check_weights(config)
    show_expression(config.data.group_regex, ui)
    with ui.bar("finding images", unit="files") as advance:
        splits = make_splits(config.data, advance)
    if config.data.positive is not None and (len(splits.classes) != 2 or config.data.positive not in splits.classes):
        raise unknown_key("positive class (of two)", config.data.positive, splits.classes)
    check_columns(config.evaluate.subgroups, splits.columns)
    check_columns(config.evaluate.raters, splits.columns, "--rater")
    check_columns(config.evaluate.rater_scores, splits.columns, "--rater-score")
    for samples in splits.samples.values():
        check_readers(config.evaluate, samples, splits.columns, splits.classes)
    refuse_flips(splits.classes, config.augment.policy, config.augment.flips)
    device = pick_device(config.train.device)
    inputs = PlanInputs(
        weights=SCRATCH if weights is None else weights.kind,
        images=len(splits.samples["train"]),
        val=len(splits.samples["val"]),
        side=median_side(splits),
        device=device.type,
        width=config.model.width or SIZES[config.model.name].width,
        lora=config.train.lora is not None,
        ratio=max(counts := splits.counts("train")) / max(1, min(counts)),
    )
    if plans and config.train.freeze and (idle := fields_without_effect(config)):
        ui.warn(f"--freeze trains no network, so these have no effect: {', '.join(idle)}")
    settings = plan_settings(config, inputs) if plans and not config.train.freeze else []
    complete = with_values(config, {setting.field: setting.value for setting in settings})
    if weights is None:
        complete = complete.model_copy(update={"model": from_scratch(complete.model)})
    complete = with_window(one_batch(complete), splits, ui)
    complete = build_config(complete.model_dump())  # raises for values that do not go together
    return PreparedRun(config, complete, splits, weights, device, inputs, settings)


def config_with_weights(config: Config, weights: Weights) -> Config:
    """The configuration completed by the weights: network, normalisation, interpolation and licence."""
    model, given = config_for_weights(config.model, weights), config.data.model_fields_set
    values: dict[str, Any] = {}
    if not given & {"normalize", "mean", "std"}:
        values["data.normalize"] = weights.normalize
        if weights.normalize == "given":
            values |= {"data.mean": list(weights.mean or ()), "data.std": list(weights.std or ())}
    if weights.interpolation is not None and "interpolation" not in given:
        values["data.interpolation"] = weights.interpolation
    if weights.licence is not None:
        values["model.licence"] = weights.licence
    return with_values(config.model_copy(update={"model": model}), values)


def from_scratch(model: ModelConfig) -> ModelConfig:
    """Resolve `auto` for random weights: a convolutional stem and mean pooling learn faster from few images."""
    auto = {name: value for name, value in (("stem", "conv"), ("pool", "mean")) if getattr(model, name) == "auto"}
    return model.model_copy(update=auto)


def check_weights(config: Config) -> None:
    """Raises UsageError if parts of a network with random weights would not be trained."""
    for name in ("freeze", "probe_first", "freeze_blocks", "lora"):
        if dict(config.train)[name] not in (False, None) and config.model.weights is None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} keeps what a network has learned, and this one starts from random weights",
                f"add --weights FILE, or leave {flag} out",
            )


def fields_without_effect(config: Config) -> list[str]:
    """The settings made by hand that do not apply to a frozen network."""
    used = {"freeze", "baseline", "seed", "device", "precision", "workers"}
    return [
        *(f"train.{name}" for name in sorted(config.train.model_fields_set - used)),
        *(f"augment.{name}" for name in sorted(config.augment.model_fields_set)),
    ]


def median_side(splits: Splits) -> int:
    """The median of the longer sides of some training images, px; 224 if none can be read (reported later)."""
    samples, sides = splits.samples["train"], []
    for sample in samples[:: max(1, len(samples) // SAMPLE)]:
        try:
            sides.append(max(read_size(splits.root / sample.path)))
        except DataError:
            continue
    return int(np.median(sides)) if sides else 224


def estimated_minutes(prepared: PreparedRun) -> float:
    """Minutes for all steps of the run, from timed steps on random images; validation counts a third of a step."""
    config, device, splits = prepared.config, prepared.device, prepared.splits
    if config.train.freeze:
        return 0.0
    images, val = len(splits.samples["train"]), len(splits.samples["val"])
    at_once = config.train.micro_batch
    batch = min(images, config.train.batch_size, at_once if isinstance(at_once, int) else 32)
    precision = pick_precision(config.train.precision, device)
    side, preprocessing = config.model.image_size, Preprocessing.of(config)
    with seeded(config.train.seed, device):
        network = build_vit(config.model, len(splits.classes)).to(device)
        state = new_state(network, config, max(1, images // batch), device, precision)
        x = torch.randint(0, 256, (batch, side, side, config.model.channels), dtype=torch.uint8, device=device)
        y = torch.arange(batch, device=device) % len(splits.classes)
        clock = 0.0
        for step in range(1 + TIMED):
            if step == 1:
                synchronise(device)
                clock = time.perf_counter()
            with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
                loss = F.cross_entropy(network(preprocessing.normalise(x)), y)
            state.scaler.scale(loss).backward()
            optimiser_step(state, 1e-6, config.train.clip_norm)
        synchronise(device)
        seconds = (time.perf_counter() - clock) / TIMED
    return config.train.epochs * seconds * (max(1, images // batch) + val / batch / 3) / 60


def with_window(config: AnyConfig, splits: Splits, ui: Ui) -> AnyConfig:
    """The configuration with `data.window` resolved from training images; reports what was found.

    Raises UsageError if a package that reads these files is not installed.
    """
    paths = [splits.root / sample.path for sample in splits.samples["train"]]
    with ui.bar("looking at training images") as advance:
        found = choose_window(paths, config.data.window, config.data.frame, advance)
    for line in found.notes:
        ui.say(line)
    for line in found.warnings:
        ui.warn(line)
    window = list(found.window) if isinstance(found.window, tuple) else found.window
    return with_values(config, {"data.window": window})


def check_readers(
    config: EvaluateConfig, samples: Sequence[Sample], columns: Sequence[str], classes: Sequence[str]
) -> None:
    """Raises UsageError or DataError if grades or readers' answers do not fit the classes: now, not after hours."""
    grades_of(config.ordinal, classes)
    for name in config.raters:
        place = columns.index(name)
        readings([sample.columns[place] for sample in samples], classes, [sample.path for sample in samples], name)
    check_scores(config.rater_scores, classes)
    for name in config.rater_scores:
        place = columns.index(name)
        read_scores([sample.columns[place] for sample in samples], [sample.path for sample in samples], name)
