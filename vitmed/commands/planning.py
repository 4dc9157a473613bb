"""`vitmed plan`, and what `train` does before its first batch: weights, splits, and the plan for them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml

from vitmed.augment import POLICIES, refuse_flips
from vitmed.checkpoint import from_scratch, relative
from vitmed.commands.flags import FLAGS, check_readers, read_overrides
from vitmed.commands.public_weights import open_weights
from vitmed.commands.windows import settle_window
from vitmed.config import Config, build_config, check_names, load_config
from vitmed.errors import DataError, UsageError, unknown_key
from vitmed.images import Preprocessing, read_size
from vitmed.loop import new_state, optimiser_step
from vitmed.metrics import METRICS
from vitmed.model import SIZES, build_vit
from vitmed.rules import SCRATCH, Decision, Situation, decide, describe, fields_set, planned
from vitmed.run import check_writable, free_name, write_text
from vitmed.splits import Splits, make_splits
from vitmed.subgroups import check_columns
from vitmed.ui import Ui
from vitmed.weights import Weights, fitted
from vitmed.world import describe as describe_device
from vitmed.world import pick_device, pick_precision

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


@dataclass(frozen=True)
class Plan:
    """What `vitmed plan` found: the configuration, why, what it costs, and the file that it was written to."""

    config: Config
    decisions: list[Decision]
    situation: Situation
    minutes: float
    file: Path


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


def plan(
    data: str | Path | None = None,
    *,
    config: str | Path | None = None,
    sets: Sequence[str] = (),
    output: str | Path = "plan.yaml",
    offline: bool = False,
    ui: Ui | None = None,
    **flags: Any,
) -> Plan:
    """What `train` would take for this folder, why, and how long it would take; written as a config to edit.

    Nothing is trained: the training images are counted, and a few steps on random numbers are timed.

    Args:
        data, config, sets, flags: as of `train`. What they set is kept.
        output: the YAML file; never overwritten, the next is plan-2.yaml.
        offline: open no connection, also not for public weights.

    Raises:
        VitmedError: as `train`.
    """
    ui = ui or Ui()
    overrides = read_overrides(flags, FLAGS, "plan")
    if data is not None:
        overrides["data.root"] = str(data)
    file = Path(output)
    if file.is_file():
        file = free_name(file, file.suffix)
    check_writable(file)
    ready = get_ready(load_config(config, overrides, sets), True, offline, ui)
    ui.say(f"plan for {ready.situation}:")
    for line in describe(ready.decisions):
        ui.say(f"  {line}")
    with ui.bar("timing a step", unit="steps"):
        minutes = minutes_of_training(ready)
    train = ready.config.train
    time_needed = "under a minute" if minutes < 1 else f"about {minutes:.0f} minutes"
    ui.say(
        f"{time_needed} for {train.epochs} epochs on {describe_device(ready.device)} ({TIMED} steps on random numbers "
        "timed; reading and augmenting images, baselines and the evaluation not counted)"
    )
    write_text(file, plan_yaml(ready, file.parent))
    ui.say(f"edit {file} and train with: vitmed train --config {file}")
    return Plan(ready.config, ready.decisions, ready.situation, minutes, file)


def minutes_of_training(ready: Ready) -> float:
    """Forward, backward and step on random numbers, times the steps of the run; validation counts a third of a step."""
    config, device, splits = ready.config, ready.device, ready.splits
    if config.train.freeze:
        return 0.0
    images, val = len(splits.samples["train"]), len(splits.samples["val"])
    batch = min(images, config.train.batch_size)
    precision = pick_precision(config.train.precision, device)
    network = build_vit(config.model, len(splits.classes)).to(device)
    state = new_state(network, config, max(1, images // batch), device, precision)
    side, preprocessing = config.model.image_size, Preprocessing.of(config)
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


def plan_yaml(ready: Ready, folder: Path) -> str:
    """What was set and what was decided, each with its reason, as a config file in `folder`."""
    reasons = {d.field: f"{d.when}: {d.why}" for d in ready.decisions}
    lines = [f"# vitmed plan: {ready.situation}", "# Train with: vitmed train --config THIS_FILE"]
    for section in Config.model_fields:
        asked, definite = getattr(ready.given, section), getattr(ready.config, section)
        fields = {
            field: value
            for field, value in definite
            if f"{section}.{field}" in reasons
            or field in fields_set(ready.given, section)
            or value != getattr(asked, field)  # `auto`, made definite
        }
        for key in ("root", "groups", "labels", "weights"):
            if isinstance(fields.get(key), str) and os.path.exists(fields[key]):  # noqa: PTH110
                fields[key] = relative(fields[key], folder)
        if fields:
            lines.append(f"{section}:")
        for field, value in fields.items():
            text = (
                f"{field}: {value}" if isinstance(value, list) else yaml.safe_dump({field: value}, width=1000).strip()
            )
            reason = reasons.get(f"{section}.{field}")
            lines.append(f"  {text}" + (f"  # {reason}" if reason else ""))
    return "\n".join(lines) + "\n"
