"""Before the first batch: read the weights, split the images, plan the settings, choose the window."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from vitmed.core.config import PATHS, Config, TrainConfig
from vitmed.core.dataset_cards import card_like, report_card
from vitmed.core.downloads import digest_of
from vitmed.core.errors import DataError, UsageError, unknown_key
from vitmed.core.load_config import AnyConfig, build_config, with_values
from vitmed.core.messages import bar, say, warn
from vitmed.core.run_folder import project_path
from vitmed.core.text import counted, duration_text, round_up
from vitmed.data.patients import show_expression
from vitmed.data.samples import Splits, cells_of
from vitmed.data.splits import make_splits
from vitmed.decisions.operating_points import asked_point
from vitmed.decisions.targets import ALL_METRICS, RANKING, TARGETS, refuse_idle
from vitmed.imaging.augmentation import POLICIES, refuse_flips, refuse_views, safe_views
from vitmed.imaging.choose_window import choose_window
from vitmed.imaging.decode import read_header
from vitmed.metrics.readers import check_readers
from vitmed.metrics.subgroups import check_columns
from vitmed.models.hardware import check_compiler, pick_device
from vitmed.models.sizes import SIZES, size_of
from vitmed.models.weights.catalogue import entry_of, has_seen, terms_of
from vitmed.models.weights.choice import TINY, Choice, choose_weights, fits, outline, warning_of
from vitmed.models.weights.pretrained import Weights, config_for_weights, open_weights
from vitmed.training.losses import LEARNING
from vitmed.training.out_of_memory import one_batch
from vitmed.training.plan.rules import SCRATCH, PlanInputs, PlannedSetting, Rule, fields_set, plan_settings
from vitmed.training.plan.time import CANDIDATES, MOST_KNEES, Forecaster, check_time, choose_network, time_line

SIDES, ENOUGH, PLENTY = (160, 128, 96, 64), 4, 5000  # px of smaller inputs for weights; passes; images in all passes
SAMPLE = 200  # training images whose size is read
LAST_KEPT = (
    "--{} {} changes nothing: this run keeps its last epoch (train.choose last), so it does not stop early; "
    "--set train.choose=best keeps the best one"
)
LOWEST_KEPT = (
    "--{} {} does not choose the epoch: this run keeps the one with the lowest validation loss (train.choose loss); "
    "--set train.choose=best keeps the best by the monitor"
)
SEEN = (
    "the publisher names the images of {} among those that {} was made with: the network may know the test images, and "
    "a result on them is too good"
)
FIXING = {"name", "width", "depth", "heads", "patch_size", "image_size", "weights"}  # fields that decide the network
USED_WHEN_FROZEN = {"freeze", "baseline", "seed", "device", "workers", "track"}  # fields of `train`
DROPOUTS = ("attention_dropout", "drop_path", "dropout")  # fields of `model`
OF_MACHINE = {"attention", "compile", "precision", "threads"}  # also in the file of a frozen run
FOR_SMALL = 40  # passes of ViT-Tiny in the time of ten of ViT-Small, which a plan makes at least
SLOW = {"name": "--model", "image_size": "--image-size"}  # which may make a time too short
Planned = tuple[list[PlannedSetting], Config]  # the settings of a plan, and the configuration with them
SHRUNK = 20  # images that are shrunk by more lose so much detail that a warning says so


@dataclass(frozen=True)
class Plan:
    """The only result of everything that happens before the network exists."""

    given: Config  # the configuration as given, completed by the weights
    config: Config  # the same with every `auto` resolved
    splits: Splits
    weights: Weights | None
    device: torch.device
    inputs: PlanInputs
    reasons: list[PlannedSetting]  # the settings that the plan chose; none without a plan
    forecaster: Forecaster  # measures how long a run on these images takes


def make_plan(config: Config, plans: bool, processes: int = 1) -> Plan:
    """Read weights and folders, and complete the configuration from the weights, the plan and the images.

    Args:
        plans: whether the rules may choose settings that were not set by hand.
        processes: that share the training.

    Raises VitmedError: a subclass for each kind of problem.
    """
    check_names(config)
    asked, sized = config.model.weights, "image_size" in fields_set(config, "model")
    slow = [flag for field, flag in SLOW.items() if field in fields_set(config, "model")]
    weights = None
    if config.model.start is not None:
        weights = open_weights(config.model.start, sha256=config.model.weights_sha256)
        config = with_values(config_with_weights(config, weights), {"model.weights_sha256": digest_of(weights.path)})
    if asked != "auto":
        check_weights(config)
    config, splits = split_images(config)
    device = pick_device(config.train.device)
    forecaster = Forecaster(splits, device, processes)
    check_compiler(config.train.compile, device)
    if asked == "auto":
        config, weights = with_choice(config, forecaster)
        check_weights(config)
    card = config.data.card or card_like(splits.classes, sum(map(len, splits.samples.values())))
    if weights is not None and has_seen(weights.seen, card):
        guess = f"the classes are those of {card}; if these are its images, name it (--card {card}): "
        warn((guess if config.data.card is None else "") + SEEN.format(card, Path(config.model.start or "").name))
    inputs = plan_inputs(config, splits, weights, device)
    _warn_of_idle(config)
    given, config = config, with_window(config, splits)
    settings, complete, trains = list[PlannedSetting](), config, not config.train.freeze
    if plans and trains:
        with bar("timing networks", unit="steps"):
            settings, complete = plan_settings(config, inputs, time_rules(config, inputs, forecaster))
            if not (sized or inputs.scratch or "epochs" in fields_set(config, "train")):
                settings, complete = input_for_time(settings, complete, forecaster)
    usual, train = TrainConfig(), config.train
    last = trains and complete.train.choose == "last"
    stops = train.patience is not None and "patience" in fields_set(config, "train")
    if last and stops and (plans or train.patience != usual.patience):
        warn(LAST_KEPT.format("patience", train.patience))
    if trains and complete.train.choose != "best" and train.monitor != TARGETS[splits.target.kind].monitor:
        warn((LAST_KEPT if last else LOWEST_KEPT).format("monitor", train.monitor))
    if weights is None:
        complete = from_scratch(complete)
    if inputs.side > SHRUNK * (size := complete.model.image_size):
        lost = f"a detail of fewer than {2 * inputs.side // size:,} px disappears"
        fix = "cut out the region that matters, or use a larger --image-size"
        warn(f"images of about {inputs.side:,} px are shrunk to {size} px: {lost}; {fix}")
    complete = build_config(one_batch(complete).model_dump())  # raises for values that do not go together
    if complete.train.time is not None and trains and complete.data.fold in (None, 1):  # later folds go on as it did
        check_time(complete.train.time, forecaster.of(complete), slow)
    return Plan(given, complete, splits, weights, device, inputs, settings, forecaster)


def with_choice(config: Config, forecaster: Forecaster) -> tuple[Config, Weights | None]:
    """The configuration with the weights that `auto` chooses, and these; random weights where none fit or come here.

    With `train.time`, ViT-Small has to see the images `FOR_SMALL` times, ViT-Tiny once; without, a GPU takes ViT-Small.
    """
    small, limit, choice = forecaster.device.type != "cpu", config.train.time, None
    if limit is not None and not config.train.freeze and fits(config.model, tiny := outline(entry_of(TINY[0]))):
        fitted = one_batch(config_with_weights(config, tiny))
        small = small or forecaster.of(fitted).passes_in(limit) >= FOR_SMALL
        if "image_size" not in fields_set(config, "model"):
            fitted = with_values(fitted, {"model.image_size": SIDES[-1]})  # at least, as `input_for_time`
        if forecaster.of(fitted).passes_in(limit) < 1:
            problem = f"--time {duration_text(limit)} is too short for a pass with weights, a longer one takes them"
            choice = Choice(None, None, problem)
    if choice is None and (choice := choose_weights(config.model, small)) is None:
        say("no weights that vitmed chooses by itself have the network you set, so training starts from random weights")
        choice = Choice(None, None, "")
    values: dict[str, Any] = {"model.weights": choice.value, "model.weights_reason": choice.reason or None}
    if choice.weights is None:
        if choice.reason:
            warn(warning_of(choice.reason))
        return with_values(config, values), None
    licence = choice.weights.licence or "not known"
    say(f"weights {choice.reason}, licence {licence}; --weights none starts from random numbers")
    values["model.weights_sha256"] = digest_of(choice.weights.path)
    return with_values(config_with_weights(config, choice.weights), values), choice.weights


def check_names(config: Config) -> None:
    """Raise UsageError, which lists the known names, for a name that is not in its table."""
    model, policy, metric = config.model.name, config.augment.policy, config.train.monitor
    for what, name, table in ("model", model, SIZES), ("policy", policy, POLICIES), ("metric", metric, ALL_METRICS):
        if name not in table:
            raise unknown_key(what, name, table)


def split_images(config: Config) -> tuple[Config, Splits]:
    """The configuration with what follows from the kind of label, and the splits of its images; of a number with the
    mean and standard deviation of the training labels. Raises UsageError or DataError."""
    report_card(config.data.card)
    show_expression(config.data.group_regex)
    splits = make_splits(config.data, config.evaluate.ordinal)
    if config.data.split_column is not None and config.data.resplit:
        warn(f"--split-column {config.data.split_column} changes nothing beside --resplit, which divides anew")
    config = config_of_target(config, splits)
    if splits.target.kind == "number":
        numbers = np.array([sample.targets[0] for sample in splits.samples["train"]])
        values = {"centre": float(numbers.mean()), "spread": float(numbers.std()) or 1.0}
        splits = replace(splits, target=splits.target.model_copy(update=values))
    return config, splits


def _warn_of_idle(config: Config) -> None:
    """Warn of settings that you chose and that a frozen network does not use. The configuration of a run names all
    settings, so of those count the ones that are not the defaults and do not depend on the machine."""
    train, dropouts = config.train, [f"model.{name}" for name in DROPOUTS if getattr(config.model, name)]
    blocks, idle = train.freeze_blocks, dropouts + ["train.layer_decay"] * (train.layer_decay < 1)
    if blocks is not None and blocks >= size_of(config.model).depth and idle:
        warn(f"--freeze-blocks {blocks} freezes every block, so these have no effect: {', '.join(idle)}")
    if train.freeze:
        idle = dropouts
        for section, used in (("train", USED_WHEN_FROZEN), ("augment", {"views", "flips"})):
            given = getattr(config, section)
            chosen, usual = given.model_fields_set - used, type(given)()
            if given.model_fields_set == set(type(given).model_fields):
                chosen = {name for name in chosen - OF_MACHINE if getattr(given, name) != getattr(usual, name)}
            idle += [f"{section}.{name}" for name in sorted(chosen)]
        if idle:
            warn(f"--freeze trains no network, so these have no effect: {', '.join(idle)}")
    if train.ema_decay is not None and not train.ema:
        warn("train.ema_decay has no effect without train.ema")


def config_of_target(config: Config, splits: Splits) -> Config:
    """The configuration with what follows from the kind of label.

    Raises UsageError or DataError for a setting that does not go with it, the classes or the columns of the table.
    """
    kind, values = splits.target.kind, dict[str, Any]()
    if config.train.monitor != TARGETS[kind].monitor and "monitor" not in fields_set(config, "train"):
        values["train.monitor"] = TARGETS[kind].monitor
    if kind == "grades" and not config.evaluate.ordinal:
        values["evaluate.ordinal"] = list(splits.classes)
    config = with_values(config, values)
    refuse_idle(config, kind)
    learning, train = LEARNING[kind], config.train
    ranking = tuple(name for name in TARGETS[kind].metrics if name in RANKING)
    rows = ("train.balance", train.balance, learning.balances), ("train.monitor", train.monitor, ranking)
    for name, value, good in rows:
        if value not in good:
            raise UsageError(f"{name} {value}: not for {kind}", f"one of {', '.join(good)}")
    if (positive := config.data.positive) is not None:
        if len(splits.classes) != 2:
            problem = f"--positive {positive}: there are {len(splits.classes)} classes; a positive class is one of two"
            raise UsageError(problem, f"omit it; vitmed evaluate RUN --positive {positive} takes it against the rest")
        if positive not in splits.classes:
            raise unknown_key("positive class", positive, splits.classes)
    refuse_flips(splits.classes, config.augment.policy, config.augment.flips)
    refuse_views(config.augment.policy, config.augment.flips, config.augment.views)
    asked_point(config.evaluate, splits.choices)  # raises now, not after hours of training
    check_columns(config.evaluate.subgroups, splits.columns)
    check_columns(config.evaluate.raters, splits.columns, "--rater")
    check_columns(config.evaluate.rater_scores, splits.columns, "--rater-score")
    for samples in splits.samples.values():
        cells, paths = cells_of(samples, splits.columns), [sample.path for sample in samples]
        check_readers(config.evaluate, cells, paths, splits.classes)
    return config


def plan_inputs(config: Config, splits: Splits, weights: Weights | None, device: torch.device) -> PlanInputs:
    counts = [1] if splits.bins else splits.counts("train")
    return PlanInputs(
        weights=SCRATCH if weights is None else weights.kind,
        images=len(splits.samples["train"]),
        val=len(splits.samples["val"]),
        side=median_side(splits),
        device=device.type,
        width=config.model.width or SIZES[config.model.name].width,
        lora=config.train.lora is not None,
        ratio=max(counts) / max(1, min(counts)),
        policy=config.augment.policy,
        views=safe_views(config.augment.policy, config.augment.flips),
        kind=splits.target.kind,
        chosen=config.model.image_size if "image_size" in fields_set(config, "model") else None,
    )


def time_rules(config: Config, inputs: PlanInputs, forecaster: Forecaster) -> list[Rule]:
    """The rule that `train.time` adds to the plan; none where you set the epochs, so that the time only ends them."""
    seconds = config.train.time
    if seconds is None or "epochs" in fields_set(config, "train"):
        return []
    usual = plan_settings(config, inputs)[1]
    if inputs.scratch and not FIXING & fields_set(config, "model"):  # nobody decides the network
        rows = [row for row in CANDIDATES if row.least <= inputs.images]
        batch = usual.train.batch_size * usual.train.accumulate
        rule = choose_network(
            rows, inputs, batch, seconds, lambda r: forecaster.of(from_scratch(plan_settings(config, inputs, [r])[1]))
        )
        return [rule]
    who, what = ("you chose", "") if inputs.scratch else ("the weights decide", "its input and ")
    why = f"{who} the network, so the time decides only {what}the epochs"
    return [Rule(f"--time {duration_text(seconds)}", {}, {"train.epochs": MOST_KNEES * usual.train.epochs}, why)]


def input_for_time(settings: list[PlannedSetting], config: Config, forecaster: Forecaster) -> Planned:
    """The largest input on which weights have the time for `ENOUGH` passes, or `PLENTY` images in one pass or more;
    otherwise the smallest.

    Nothing changes without a time limit, and where the time is enough for the input that the weights had. On 1,600 knee
    X-rays in five grades, in two minutes of a core, 128 px (forecast 4.9 passes, made 5.9) gave AUROC 0.824, 96 px
    0.807 and 64 px 0.806, but 160 px (2.4 passes) 0.798. On 5,000 cells one pass at 128 px gave 0.990, five at 64 px
    0.985: benchmarks/finetune.py.
    """
    seconds, largest, patch = config.train.time, config.model.image_size, config.model.patch_size
    if seconds is None:
        return settings, config
    sides = dict.fromkeys(round(side / patch) * patch for side in SIDES)
    for side in [largest, *(side for side in sides if side < largest)]:
        tried = with_values(config, {"model.image_size": side})
        passes, images = forecaster.of(tried).passes_in(seconds), len(forecaster.splits.samples["train"])
        if passes >= min(ENOUGH, config.train.epochs, max(1, PLENTY / images)):
            break
    if side == largest:
        return settings, config
    why = f"at {largest} px the time is enough for fewer than {ENOUGH} passes and {PLENTY:,} images; "
    why += "a quarter of the tokens has four times as many"
    return [PlannedSetting("model.image_size", side, f"--time {duration_text(seconds)}", why), *settings], tried


def time_needed(plan: Plan) -> tuple[float, str, str]:
    """The seconds that the run takes; a line on them; a warning where the time is too short to learn well, or ""."""
    config, limit, short = plan.config, plan.config.train.time, ""
    forecast = plan.forecaster.of(config)
    if plan.reasons and "epochs" not in fields_set(plan.given, "train"):
        knee = config.train.epochs // MOST_KNEES
        if limit is not None and 0 < (passes := forecast.passes_in(limit)) < knee / 2:
            needed = duration_text(round_up(forecast.total(knee)))
            needed = f"{needed} for each fold" if config.data.divided else f"--time {needed}"
            short = f"in this time, about {counted(max(1, int(passes)), 'epoch')}, the model will be "
            short += f"worse than it could be: {needed} is enough for {knee}, after which more gains little"
    return (*time_line(config, forecast), short)


def config_with_weights(config: Config, weights: Weights) -> Config:
    """The configuration completed by the weights: network, normalisation (warns where it is only assumed),
    interpolation, resize and licence."""
    model, given = config_for_weights(config.model, weights), config.data.model_fields_set
    values: dict[str, Any] = {}
    if not given & {"normalize", "mean", "std"}:
        values["data.normalize"] = weights.normalize
        if weights.assumed:
            others = "Weights of AugReg and many others of timm and Hugging Face have 0.5: --normalize half"
            unknown = f"{weights.path.name}: nothing states which mean and std its images had"
            warn(f"{unknown}; {'CLIP' if weights.normalize == 'given' else 'ImageNet'}'s are assumed. {others}")
        if weights.normalize == "given":
            values |= {"data.mean": list(weights.mean or ()), "data.std": list(weights.std or ())}
    for name, value in (("interpolation", weights.interpolation), ("resize", weights.resize)):
        if value is not None and name not in given:
            values[f"data.{name}"] = value
    if weights.licence is not None:
        values |= {"model.licence": weights.licence, "model.terms": terms_of(weights.licence)}
    return with_values(config.model_copy(update={"model": model}), values)


def from_scratch(config: Config) -> Config:
    """Resolve `auto` for random weights: a convolutional stem and mean pooling learn faster from few images."""
    auto = {"stem": "conv", "pool": "mean"}
    return with_values(config, {f"model.{k}": v for k, v in auto.items() if getattr(config.model, k) == "auto"})


def check_weights(config: Config) -> None:
    """Raises UsageError if parts of a network with random weights would not be trained."""
    for name in ("freeze", "probe_first", "freeze_blocks", "lora") if config.model.start is None else ():
        if (value := dict(config.train)[name]) is not None and value is not False:  # 0 blocks: the embedding
            flag = f"--{name.replace('_', '-')}"
            problem = f"{flag} keeps what a network has learned, and this one starts from random weights"
            raise UsageError(problem, f"add --weights FILE, or leave {flag} out")


def median_side(splits: Splits) -> int:
    """The median of the longer sides of some training images, px; 224 if none can be read (reported later)."""
    samples, sides = splits.samples["train"], []
    for sample in samples[:: max(1, len(samples) // SAMPLE)]:
        with suppress(DataError):
            header = read_header(splits.root / sample.path)
            sides.append(max(header.width, header.height))
    return int(np.median(sides)) if sides else 224


def with_window(config: AnyConfig, splits: Splits) -> AnyConfig:
    """The configuration with `data.window` resolved from training images, and a report on it.

    Raises UsageError if a package that reads these files is not installed.
    """
    paths = [splits.root / sample.path for sample in splits.samples["train"]]
    chosen = choose_window(paths, config.data.window, config.data.frame)
    for line in chosen.notes:
        say(line)
    for line in chosen.warnings:
        warn(line)
    window = list(chosen.window) if isinstance(chosen.window, tuple) else chosen.window
    return with_values(config, {"data.window": window})


def plan_yaml(plan: Plan, folder: Path) -> str:
    """The given and the planned settings, with reasons, as a config file in `folder`."""
    reasons = {d.field: f"{d.when}: {d.why}" for d in plan.reasons}
    lines = [f"# vitmed plan: {plan.inputs}", "# Train with: vitmed train --config THIS_FILE"]
    for section in Config.model_fields:
        given, rows = getattr(plan.given, section), list[str]()
        kept = {*fields_set(plan.given, section), "weights"}  # where there are no weights, `auto` would look again
        for field, value in getattr(plan.config, section):
            reason = reasons.get(f"{section}.{field}")
            if not reason and field not in kept and value == getattr(given, field):  # and no `auto` that was resolved
                continue
            if (section, field) in PATHS and isinstance(value, str) and os.path.exists(value):  # noqa: PTH110
                place = os.path.normpath(Path(value).absolute())
                value = project_path(place, os.path.normpath(folder.absolute())) or place
            plain = f"{field}: {value}" if isinstance(value, list) else yaml.safe_dump({field: value}, width=1000)
            rows.append(f"  {plain.strip()}" + (f"  # {reason}" if reason else ""))
        lines += [f"{section}:", *rows] if rows else []
    return "\n".join(lines) + "\n"
