"""`vitmed train`: a folder of images -> a run folder with checkpoints and an evaluation."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitmed.augment import POLICIES, refuse_flips
from vitmed.catalogue import is_name
from vitmed.checkpoint import from_scratch, load_checkpoint
from vitmed.commands.evaluation import Evaluation, check_gates, evaluate, parse_gates
from vitmed.commands.public_weights import open_weights
from vitmed.commands.session import Session
from vitmed.config import Config, build_config, check_names, load_config
from vitmed.errors import CheckpointError, DataError, Interrupted, UsageError, unknown_key
from vitmed.metrics import METRICS
from vitmed.model import SIZES
from vitmed.run import RunFolder, refuse_inside
from vitmed.splits import Splits, data_folder, make_splits
from vitmed.ui import Ui
from vitmed.weights import Weights, fitted
from vitmed.world import pick_device

# Flag of the command line and keyword of `vitmed.train` -> field of the configuration.
FLAGS = {
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
    "max_train": "data.max_train",
    "group_regex": "data.group_regex",
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
    "ema": "train.ema",
    "monitor": "train.monitor",
    "patience": "train.patience",
    "save_every": "train.save_every",
    "seed": "train.seed",
    "device": "train.device",
    "precision": "train.precision",
    "workers": "train.workers",
}

# What may be said beside --resume: how long to go on, and what changes no result.
RESUMABLE = {"train.epochs", "train.patience", "train.device", "train.workers"}


@dataclass(frozen=True)
class TrainResult:
    """What training gave: the run folder, and the evaluations of its best checkpoint."""

    folder: Path
    checkpoint: Path
    val: Evaluation
    test: Evaluation


def train(
    data: str | Path | None = None,
    *,
    config: str | Path | None = None,
    sets: Sequence[str] = (),
    output: str | Path = "runs",
    name: str | None = None,
    resume: str | Path | None = None,
    fail_under: Sequence[str] = (),
    offline: bool = False,
    ui: Ui | None = None,
    **flags: Any,
) -> TrainResult:
    """Train a ViT on a folder of labelled images and evaluate its best checkpoint on the test split.

    Args:
        data: the folder; `root/<class>/` or `root/{train,val,test}/<class>/`.
        config: a YAML file or the name of a recipe; `sets` ("train.lr=1e-4") and flags go over it.
        output: the folder that run folders are made in.
        name: of the run folder; default date, data and model.
        resume: a run folder to go on with, to the same weights as if it had never stopped.
        fail_under: gates on the test metrics, such as "auroc=0.9".
        offline: open no connection, also not for public weights; see docs/weights.md.
        ui: where messages and progress go.
        **flags: the names in `FLAGS`, as on the command line: epochs=5, lr=1e-3.

    Raises:
        VitmedError: a subclass for each kind of problem; see docs/training.md for the exit codes.
    """
    ui = ui or Ui()
    gates = parse_gates(fail_under)  # a wrong gate ends here, not after the night
    overrides = flag_overrides(flags)
    if resume is not None:
        if name is not None:
            raise UsageError("--resume goes on in the run's own folder", "leave --name out")
        session = _resumed(Path(resume), data, config, sets, overrides, ui)
    else:
        if data is not None:
            overrides["data.root"] = str(data)
        session = _fresh(load_config(config, overrides, sets), output, name, ui, offline)
    best, device = session.folder.best, session.device.type
    try:
        session.run()
        val = evaluate(best, split="val", device=device, ui=ui)
        test = evaluate(best, split="test", device=device, ui=ui)
    except KeyboardInterrupt:
        if not session.folder.last.is_file():
            raise
        folder = session.folder.path
        raise Interrupted(
            f"stopped at once; {session.folder.last} is saved", f"vitmed train --resume {folder}"
        ) from None
    result = TrainResult(session.folder.path, best, val, test)
    ui.say(f"predict with: vitmed predict IMAGE --checkpoint {session.folder.path}")
    check_gates(gates, test.metrics, result)
    return result


def flag_overrides(flags: dict[str, Any]) -> dict[str, Any]:
    """{"epochs": 5} -> {"train.epochs": 5}; None is a flag that was not given. Raises UsageError."""
    unknown = set(flags) - set(FLAGS)
    if unknown:
        raise UsageError(
            f"train has no option {', '.join(sorted(unknown))}", f"it has {', '.join(FLAGS)}, config, sets"
        )
    return {FLAGS[flag]: value for flag, value in flags.items() if value is not None}


def _fresh(config: Config, output: str | Path, name: str | None, ui: Ui, offline: bool) -> Session:
    check_names(config, SIZES, POLICIES, METRICS)
    weights = open_weights(config.model.weights, ui, offline) if config.model.weights is not None else None
    if weights is not None and "nearest" in weights.normalize[1]:
        ui.warn(f"the weights want mean {weights.mean} and std {weights.std}; {weights.normalize[0]} is the nearest")
    config = start_from(config, weights)
    splits = make_splits(config.data)
    if config.data.positive is not None and (len(splits.classes) != 2 or config.data.positive not in splits.classes):
        raise unknown_key("positive class (of two)", config.data.positive, splits.classes)
    refuse_flips(splits.classes, config.augment.policy, config.augment.flips)
    device = pick_device(config.train.device)
    session = Session(config, splits, device, ui, weights)  # builds the network: sizes that do not fit end here
    refuse_inside(splits.root, output)
    RunFolder.probe(output)
    session.check_images()
    session.open(RunFolder.create(output, name or default_name(splits.root, config)))
    return session


def start_from(config: Config, weights: Weights | None) -> Config:
    """What the weights decide where nothing else was said: the network, and how images are normalised."""
    if weights is None:
        return config.model_copy(update={"model": from_scratch(config.model)})
    data = config.data
    if "normalize" not in data.model_fields_set:
        data = data.model_copy(update={"normalize": weights.normalize[0]})
    return config.model_copy(update={"model": fitted(config.model, weights), "data": data})


def _resumed(
    path: Path,
    data: str | Path | None,
    config: str | Path | None,
    sets: Sequence[str],
    overrides: dict[str, Any],
    ui: Ui,
) -> Session:
    folder = RunFolder(path.parent if path.suffix == ".pt" else path)
    if not folder.last.is_file():
        raise CheckpointError(f"{folder.path}: holds no last.pt to resume", "name the run folder of an interrupted run")
    if config is not None or sets or set(overrides) - RESUMABLE:
        flags = ", ".join(f"--{key.partition('.')[2]}" for key in sorted(RESUMABLE))
        raise UsageError("--resume goes on with the run's own configuration", f"with it give only {flags}")
    checkpoint = load_checkpoint(folder.last)
    if checkpoint.training is None:
        raise CheckpointError(f"{folder.last}: holds no training state", "resume needs the last.pt that train wrote")
    tree = checkpoint.config.model_dump()
    tree["data"]["root"] = str(data_folder(data) if data is not None else checkpoint.data_root())
    weights = tree["model"]["weights"]
    if weights is not None and not is_name(weights, folder.path):  # stored relative to the run folder
        tree["model"]["weights"] = str(folder.path / weights)
    epochs = checkpoint.config.train.epochs
    for key, value in overrides.items():
        section, _, field = key.partition(".")
        tree[section][field] = value
    if tree["train"]["epochs"] != epochs:
        ui.warn(f"{tree['train']['epochs']} epochs instead of {epochs}: the learning rate follows the new schedule")
    resumed = build_config(tree)
    splits = Splits(Path(tree["data"]["root"]), checkpoint.classes, checkpoint.splits.samples, checkpoint.splits.made)
    session = Session(resumed, splits, pick_device(resumed.train.device), ui, start="from last.pt")
    session.check_images()
    changed = [name for name, hashes in checkpoint.hashes.items() if hashes != session.hashes[name]]
    if changed:
        raise DataError(
            f"{splits.root}: images of {', '.join(changed)} have changed since the run began", "start a new run"
        )
    session.reopen(folder, checkpoint)
    if session.finished and any(folder.path.glob("test*/report.html")):
        raise UsageError(
            f"{folder.path}: this run is finished and evaluated", "--epochs N with a larger N, or vitmed evaluate"
        )
    return session


def default_name(root: Path, config: Config) -> str:
    """Date, data and model: 2026-11-20_malaria_vit-tiny."""
    data = "".join(c if c.isalnum() or c in "-." else "-" for c in root.resolve().name)[:60] or "data"
    return f"{datetime.date.today().isoformat()}_{data}_{config.model.name.replace('_', '-')}"
