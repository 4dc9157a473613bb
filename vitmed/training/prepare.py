"""`vitmed plan`, and what `train` does before its first batch: weights, splits, and the plan for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vitmed.core.config import Config, EvaluateConfig
from vitmed.core.errors import DataError, UsageError, unknown_key
from vitmed.core.hardware import pick_device, pick_precision, seeded
from vitmed.core.load_config import AnyConfig, build_config, check_names
from vitmed.core.ui import Ui
from vitmed.data.samples import Sample, Splits
from vitmed.data.splits import make_splits
from vitmed.imaging.augmentation import POLICIES, refuse_flips
from vitmed.imaging.choose_window import settle
from vitmed.imaging.decode import read_size
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.reader_agreement import grades_of, readings
from vitmed.metrics.subgroups import check_columns
from vitmed.metrics.table import METRICS
from vitmed.models.pretrained import Weights, fitted
from vitmed.models.public_weights import open_weights
from vitmed.models.vit import SIZES, build_vit
from vitmed.training.checkpoint import from_scratch
from vitmed.training.loop import new_state, optimiser_step
from vitmed.training.plan_rules import SCRATCH, Decision, Situation, decide, planned

SAMPLE = 200  # files whose size is looked at
TIMED = 3  # steps that are timed, after one that is not


@dataclass(frozen=True)
class Ready:
    """All that a run needs to begin.

    Attributes:
        given: the configuration as it was asked for, completed by what the weights decide.
        config: the same, planned and definite.
        decisions: what the plan has set; none where it was not asked.
    """

    given: Config
    config: Config
    splits: Splits
    weights: Weights | None
    device: torch.device
    situation: Situation
    decisions: list[Decision]


def get_ready(config: Config, plans: bool, offline: bool, ui: Ui) -> Ready:
    """Read weights and folders, and complete the configuration: by the weights, by the plan, by what is left `auto`.

    Args:
        offline: open no connection for public weights.
        plans: whether the rules of `rules.RULES` may set what was not set by hand.

    Raises:
        VitmedError: a subclass for each kind of problem.
    """
    check_names(config, SIZES, POLICIES, METRICS)
    weights = open_weights(config.model.weights, ui, offline) if config.model.weights is not None else None
    if weights is not None:
        config = start_from(config, weights)
    needs_weights(config)
    with ui.bar("finding images", unit="files") as advance:
        splits = make_splits(config.data, advance)
    if config.data.positive is not None and (len(splits.classes) != 2 or config.data.positive not in splits.classes):
        raise unknown_key("positive class (of two)", config.data.positive, splits.classes)
    check_columns(config.evaluate.subgroups, splits.columns)
    check_columns(config.evaluate.raters, splits.columns, "--rater")
    for samples in splits.samples.values():
        check_readers(config.evaluate, samples, splits.columns, splits.classes)
    refuse_flips(splits.classes, config.augment.policy, config.augment.flips)
    device = pick_device(config.train.device)
    situation = Situation(
        weights=SCRATCH if weights is None else weights.kind,
        images=len(splits.samples["train"]),
        val=len(splits.samples["val"]),
        side=median_side(splits),
        device=device.type,
        width=config.model.width or SIZES[config.model.name].width,
        lora=config.train.lora is not None,
    )
    if plans and config.train.freeze and (idle := idle_fields(config)):
        ui.warn(f"--freeze trains nothing, so these have no effect: {', '.join(idle)}")
    decisions = decide(config, situation) if plans and not config.train.freeze else []
    complete = planned(config, {decision.field: decision.value for decision in decisions})
    if weights is None:
        complete = complete.model_copy(update={"model": from_scratch(complete.model)})
    complete = settle_window(complete, splits, ui)
    complete = build_config(complete.model_dump())  # values that do not go together end here
    return Ready(config, complete, splits, weights, device, situation, decisions)


def start_from(config: Config, weights: Weights) -> Config:
    """What the weights decide where nothing else was said: the network, and how images are normalised."""
    data, model = config.data, fitted(config.model, weights)
    if not data.model_fields_set & {"normalize", "mean", "std"}:
        update: dict[str, Any] = {"normalize": weights.normalize[0]}
        if weights.normalize[0] == "given":
            update |= {"mean": list(weights.mean or ()), "std": list(weights.std or ())}
        data = data.model_copy(update=update)
    if weights.interpolation is not None and "interpolation" not in data.model_fields_set:
        data = data.model_copy(update={"interpolation": weights.interpolation})
    if weights.licence is not None:
        model = model.model_copy(update={"licence": weights.licence})
    return config.model_copy(update={"model": model, "data": data})


def needs_weights(config: Config) -> None:
    """Raise UsageError where random weights would be kept as they are."""
    train = config.train
    for flag, given in (
        ("--freeze", train.freeze),
        ("--probe-first", train.probe_first),
        ("--freeze-blocks", train.freeze_blocks is not None),
        ("--lora", train.lora is not None),
    ):
        if given and config.model.weights is None:
            raise UsageError(
                f"{flag} keeps what a network has learned, and this one starts from random numbers",
                "add --weights FILE, or leave it out",
            )


def idle_fields(config: Config) -> list[str]:
    """What was set by hand and means nothing to a frozen network."""
    used = {"freeze", "baseline", "seed", "device", "precision", "workers"}
    return [
        *(f"train.{name}" for name in sorted(config.train.model_fields_set - used)),
        *(f"augment.{name}" for name in sorted(config.augment.model_fields_set)),
    ]


def median_side(splits: Splits) -> int:
    """The median of the longer sides of some training images, px; 224 where none can be read (which is told later)."""
    samples, sides = splits.samples["train"], []
    for sample in samples[:: max(1, len(samples) // SAMPLE)]:
        try:
            sides.append(max(read_size(splits.root / sample.path)))
        except DataError:
            continue
    return int(np.median(sides)) if sides else 224


def minutes_of_training(ready: Ready) -> float:
    """Forward, backward and step on random numbers, times the steps of the run; validation counts a third of a step."""
    config, device, splits = ready.config, ready.device, ready.splits
    if config.train.freeze:
        return 0.0
    images, val = len(splits.samples["train"]), len(splits.samples["val"])
    batch = min(images, config.train.batch_size)
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
                _wait_for(device)
                clock = time.perf_counter()
            with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
                loss = F.cross_entropy(network(preprocessing.normalise(x)), y)
            state.scaler.scale(loss).backward()
            optimiser_step(state, 1e-6, config.train.clip_norm)
        _wait_for(device)
        seconds = (time.perf_counter() - clock) / TIMED
    return config.train.epochs * seconds * (max(1, images // batch) + val / batch / 3) / 60


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def settle_window(config: AnyConfig, splits: Splits, ui: Ui) -> AnyConfig:
    """The configuration with a definite `data.window`; says what was found.

    Raises:
        UsageError: a package that reads such files is not installed.
    """
    paths = [splits.root / sample.path for sample in splits.samples["train"]]
    with ui.bar("looking at training images") as advance:
        found = settle(paths, config.data.window, config.data.frame, advance)
    for line in found.messages:
        ui.say(line)
    for line in found.warned:
        ui.warn(line)
    window = list(found.window) if isinstance(found.window, tuple) else found.window
    return config.model_copy(update={"data": config.data.model_copy(update={"window": window})})


def check_readers(
    config: EvaluateConfig, samples: Sequence[Sample], columns: Sequence[str], classes: Sequence[str]
) -> None:
    """Raises UsageError or DataError where grades or what readers saw do not fit the classes: now, not after hours."""
    grades_of(config.ordinal, classes)
    for name in config.raters:
        place = columns.index(name)
        readings([sample.columns[place] for sample in samples], classes, [sample.path for sample in samples], name)
