"""`vitmed train`: a folder of images -> a run folder with checkpoints and an evaluation."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitmed.checks.data_check import check_before_training
from vitmed.commands.cross_validate import resume_folds, train_folds
from vitmed.commands.evaluate import evaluate
from vitmed.core.config import Config, ModelConfig
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError
from vitmed.core.files import write_bytes
from vitmed.core.flags import FLAGS, read_overrides
from vitmed.core.hardware import pick_device
from vitmed.core.load_config import build_config, load_config
from vitmed.core.pretrain_config import PretrainConfig
from vitmed.core.run_folder import REPORT, RunFolder, refuse_inside
from vitmed.core.ui import Ui
from vitmed.data.folders import data_folder
from vitmed.decisions.evaluation_folder import find_evaluation
from vitmed.decisions.operating_points import asked_point
from vitmed.models.vit import SIZES
from vitmed.report.headline import Evaluation, check_gates, parse_gates
from vitmed.report.pdf import check_formats
from vitmed.report.plots.drawing import png
from vitmed.report.plots.pictures import contact_sheet
from vitmed.report.plots.training import training_curves
from vitmed.training.checkpoint import load_checkpoint, placed
from vitmed.training.fit_policy import fit_decision_policy
from vitmed.training.plan_rules import describe
from vitmed.training.prepare import get_ready
from vitmed.training.run import TrainingRun
from vitmed.training.run_baselines import Baselines

# What may be said beside --resume: how long to go on, and what changes no result.
RESUMABLE = {"train.epochs", "train.patience", "train.device", "train.workers", "data.cache", "data.cache_gb"}


@dataclass(frozen=True)
class TrainResult:
    """What training gave: the run folder, and the evaluations of its best checkpoint.

    Without a network the checkpoint is None; so it is with several folds, which are judged by their tests together.
    """

    folder: Path
    checkpoint: Path | None
    val: Evaluation | None
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
    overrides = read_overrides(flags, FLAGS, "train")
    if resume is not None:
        if name is not None:
            raise UsageError("--resume goes on in the run's own folder", "leave --name out")
        if RunFolder(resume).folds.is_file():
            if config is not None or sets or overrides or data is not None:
                raise UsageError("--resume goes on with the configuration of the folds", "give it alone")
            return _of_folds(*resume_folds(train, RunFolder(resume), gates, ui))
        session = _resumed(Path(resume), data, config, sets, overrides, ui)
    else:
        if data is not None:
            overrides["data.root"] = str(data)
        settings = load_config(config, overrides, sets)
        if settings.data.folds is not None and settings.data.fold is None:
            root = data_folder(settings.data.root)
            refuse_inside(root, output)
            first = {"data": data, "config": config, "sets": sets, "offline": offline}
            first |= {name: value for name, value in flags.items() if name != "fold"}
            called = name or f"{default_name(root, settings)}_{settings.data.folds}-folds"
            return _of_folds(*train_folds(train, settings, first, output, called, gates, ui))
        session = _fresh(settings, output, name, ui, config is None, offline)
    best, device = session.folder.best, session.device.type
    try:
        if not (session.config.train.freeze or session.folder.last.is_file()):
            session.save_last()  # so that an interruption of what comes before the first step can be resumed too
        baselines = Baselines(session)
        if not session.config.train.freeze:
            _train(session)
        fit_decision_policy(best, session.images, session.device, ui)
        val = evaluate(best, split="val", device=device, baselines=lambda: baselines.of("val"), ui=ui)
        test = evaluate(best, split="test", device=device, baselines=lambda: baselines.of("test"), ui=ui)
    except KeyboardInterrupt:
        folder = session.folder.path
        if not session.folder.last.is_file():  # --freeze has nothing to go on from
            raise Interrupted(
                f"stopped; {folder} is not complete", f"start again: vitmed train --config {session.folder.config}"
            ) from None
        raise Interrupted(
            f"stopped at once; {session.folder.last} is saved", f"vitmed train --resume {folder}"
        ) from None
    result = TrainResult(session.folder.path, best, val, test)
    ui.say(f"predict with: vitmed predict IMAGE --checkpoint {session.folder.path}")
    check_gates(gates, test.metrics, result)
    return result


def _of_folds(folder: RunFolder, pooled: Evaluation) -> TrainResult:
    return TrainResult(folder.path, None, None, pooled)


def _fresh(config: Config, output: str | Path, name: str | None, ui: Ui, plans: bool, offline: bool) -> TrainingRun:
    check_formats(config.evaluate)
    ready = get_ready(config, plans, offline, ui)
    config, splits = ready.config, ready.splits
    asked_point(config.evaluate, len(splits.classes))  # before the night, not after it
    session = TrainingRun(config, splits, ready.device, ui, ready.weights)  # sizes that do not fit end here
    if ready.decisions:
        ui.say(f"plan for {ready.situation}; flags go over it, --config replaces it:")
        for line in describe(ready.decisions):
            ui.say(f"  {line}")
    refuse_inside(splits.root, output)
    RunFolder.probe(output)
    session.notes, session.counts = check_before_training(splits, session.check_images(), config, ui)
    folder = RunFolder.create(output, name or default_name(splits.root, config))
    session.open(folder)
    write_bytes(folder.contact_sheet, png(contact_sheet(session.sheet())))
    ui.say(f"run folder {folder.path}; what the network sees: {folder.contact_sheet.name}")
    return session


def _train(run: TrainingRun) -> None:
    """Train to the end, and draw the curves, also of a run that ends early."""
    try:
        run.run()
    except BaseException:
        with contextlib.suppress(Exception):  # a figure that fails must not hide why the training ended
            _draw_curves(run)
        raise
    _draw_curves(run)


def _draw_curves(run: TrainingRun) -> None:
    if run.state.history:
        write_bytes(run.folder.training_curves, png(training_curves(run.state.history)))


def _resumed(
    path: Path,
    data: str | Path | None,
    config: str | Path | None,
    sets: Sequence[str],
    overrides: dict[str, Any],
    ui: Ui,
) -> TrainingRun:
    folder = RunFolder(path.parent if path.suffix == ".pt" else path)
    if folder.best.is_file() and not folder.last.is_file():
        raise UsageError(f"{folder.path}: this run is finished; --freeze has nothing to go on with", "start a new run")
    if not folder.last.is_file():
        raise CheckpointError(f"{folder.path}: holds no last.pt to resume", "name the run folder of an interrupted run")
    if config is not None or sets or set(overrides) - RESUMABLE:
        flags = ", ".join(f"--{flag.replace('_', '-')}" for flag, key in FLAGS.items() if key in RESUMABLE)
        raise UsageError("--resume goes on with the run's own configuration", f"with it give only {flags}")
    checkpoint = load_checkpoint(folder.last)
    if checkpoint.training is None:
        raise CheckpointError(f"{folder.last}: holds no training state", "resume needs the last.pt that train wrote")
    tree = placed(checkpoint.config, folder.path)
    tree["data"]["root"] = str(data_folder(data) if data is not None else checkpoint.data_root())
    epochs = checkpoint.config.train.epochs
    for key, value in overrides.items():
        section, _, field = key.partition(".")
        tree[section][field] = value
    if tree["train"]["epochs"] != epochs:
        ui.warn(f"{tree['train']['epochs']} epochs instead of {epochs}: the learning rate follows the new schedule")
    resumed = build_config(tree)
    splits = replace(checkpoint.splits, root=Path(tree["data"]["root"]))
    session = TrainingRun(resumed, splits, pick_device(resumed.train.device), ui, start="from last.pt")
    session.notes, session.counts = check_before_training(splits, session.check_images(), resumed, ui)
    changed = [name for name, hashes in checkpoint.hashes.items() if hashes != session.hashes[name]]
    if changed:
        raise DataError(
            f"{splits.root}: images of {', '.join(changed)} have changed since the run began", "start a new run"
        )
    session.reopen(folder, checkpoint)
    if session.finished and _is_evaluated(folder):
        raise UsageError(
            f"{folder.path}: this run is finished and evaluated", "--epochs N with a larger N, or vitmed evaluate"
        )
    return session


def _is_evaluated(run: RunFolder) -> bool:
    """Whether a report holds the test of the weights in best.pt."""
    best = load_checkpoint(run.best)
    file = find_evaluation(run, "test", best.weights_hash, best.policy)
    return file is not None and file.with_name(REPORT).is_file()


def default_name(root: Path, config: Config | PretrainConfig) -> str:
    """Date, data and model: 2026-11-20_malaria_vit-tiny."""
    data = "".join(c if c.isalnum() or c in "-." else "-" for c in root.resolve().name)[:60] or "data"
    return f"{datetime.date.today().isoformat()}_{data}_{_label(config.model)}"


def _label(model: ModelConfig) -> str:
    """The network in a word: the name of its weights, of its size, or its numbers."""
    if model.weights is not None:
        file = Path(model.weights)
        stem = file.resolve().parent.name if file.name in ("best.pt", "last.pt", "encoder.pt") else file.stem
        return "".join(c if c.isalnum() or c in "-." else "-" for c in stem)[:60] or "weights"
    size = SIZES[model.name]
    width, depth = model.width or size.width, model.depth or size.depth
    return model.name.replace("_", "-") if (width, depth) == size[:2] else f"vit-{width}x{depth}"
