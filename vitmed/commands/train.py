"""`vitmed train`: from a folder of images to a run folder with checkpoints and an evaluation."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from vitmed.checks.data_check import check_before_training, check_folder
from vitmed.checks.duplicates import fingerprints
from vitmed.commands.ensemble import ensemble
from vitmed.commands.evaluate import evaluate
from vitmed.core import upgrade
from vitmed.core.config import FLAGS, Config, PretrainConfig, read_overrides
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError
from vitmed.core.exclusions import excluded
from vitmed.core.files import write_bytes, write_json
from vitmed.core.load_config import build_config, load_config
from vitmed.core.messages import Mute, bar, listener, listening, say, warn
from vitmed.core.options import ConfigFile, Data, Gates, Offline, Parallel, Resume, RunName, RunsFolder, Sets, Settings
from vitmed.core.places import check_name, data_folder, refuse_file, refuse_inside
from vitmed.core.run_folder import RunFolder, run_lock
from vitmed.core.text import counted, duration_text, file_name
from vitmed.data.read_images import ReadSplits
from vitmed.data.samples import Splits
from vitmed.decisions.evaluation_folder import torn_evaluations
from vitmed.decisions.operating_points import asked_point
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import load_checkpoint, set_data_root
from vitmed.inference.ensemble import load_ensemble
from vitmed.inference.open_model import open_model
from vitmed.models.hardware import pick_device
from vitmed.models.sizes import model_label
from vitmed.report.headline import Evaluation, check_gates, known_evaluation, parse_gates
from vitmed.report.model_card import write_card
from vitmed.report.plots.curves import drawn_curves
from vitmed.report.plots.drawing import png
from vitmed.report.plots.pictures import contact_sheet
from vitmed.studies.folds import CrossValidation
from vitmed.studies.study import conduct
from vitmed.training.baselines import Baselines
from vitmed.training.environment import all_its_images, check_images, check_ranks, check_unchanged
from vitmed.training.epoch_records import finished
from vitmed.training.finetune import Finetune, augmented_examples
from vitmed.training.fit_policy import fit_decision_policy
from vitmed.training.plan.make_plan import LAST_KEPT, make_plan, time_needed
from vitmed.training.plan.rules import describe
from vitmed.training.plan.time_budget import Clock
from vitmed.training.processes import Ranks
from vitmed.training.run import EachEpoch, Run, Session, folder_to_resume, resumed_settings, train_and_draw
from vitmed.training.trackers import Tracking, check_trackers, tracked

POOLING = 15.0  # s, for the report on all folds
# Settings allowed beside --resume: the length of the training, and those that change no result.
RESUMABLE = {
    "train.epochs",
    "train.time",
    "train.patience",
    "train.device",
    "train.workers",
    "train.compile",
    "train.shard",
    "train.micro_batch",
    "train.track",
    "train.grad_checkpointing",
    "data.cache",
    "data.cache_gb",
}


@dataclass(frozen=True)
class TrainResult:
    """The run folder, the best checkpoint and its evaluations.

    The checkpoint is None without a network and with several folds; `test` then covers the tests of all folds. It is
    None with `test=False`.
    """

    folder: Path
    checkpoint: Path | None
    val: Evaluation | None
    test: Evaluation | None


def train(
    data: Data = None,
    *,
    config: ConfigFile = None,
    sets: Sets = (),
    output: RunsFolder = "runs",
    name: RunName = None,
    resume: Resume = None,
    fail_under: Gates = (),
    offline: Offline = False,
    parallel: Parallel = 1,
    each_epoch: EachEpoch | None = None,
    **flags: Settings,
) -> TrainResult:
    """Train a ViT on a folder of labelled images and evaluate its best checkpoint on validation and on the test split.

    Args:
        data: the folder; `root/<class>/` or `root/{train,val,test}/<class>/`.
        config: a YAML file or the name of a recipe; `sets` ("train.lr=1e-4") and flags override it.
        output: the folder in which to make the run folder.
        name: name of the run folder; default date, data and model.
        resume: a run folder to continue; the weights come out as if it had never stopped.
        fail_under: gates on the test metrics, such as "auroc=0.9".
        offline: open no connection, not even for public weights; see docs/weights.md.
        parallel: with folds, how many to train at the same time, each in a process of its own.
        each_epoch: called with the record of an epoch, its line of metrics.jsonl, when last.pt holds the epoch; where
            it returns true, the run ends with EndedByCaller. Not called with folds.
        **flags: the names in `FLAGS`, as on the command line: epochs=5, lr=1e-3.

    Raises:
        VitmedError: a subclass for each kind of problem; docs/training.md lists the exit codes. Of several processes,
            that of rank 0 raises it, and the others raise `core.errors.Reported`.
    """
    with Ranks.join() as ranks, listening(listener() if ranks.leads else Mute()):
        gates = parse_gates(fail_under)  # so that a wrong gate ends the run now, not after hours
        clock, listener().began = Clock(listener().began), None  # each of several folds has its own
        if parallel < 1:
            raise UsageError(f"--parallel {parallel}: expected at least 1", "--parallel 2")
        result = _train(
            ranks, clock, data, config, sets, output, name, resume, offline, parallel, bool(gates), each_epoch, flags,
        )  # fmt: skip
        if result.test is not None:
            check_gates(gates, result.test.metrics, result)
        return result


def _train(
    ranks: Ranks, clock: Clock, data: str | Path | None, config: str | Path | None, sets: Sequence[str],
    output: str | Path, name: str | None, resume: str | Path | None, offline: bool, parallel: int, gated: bool,
    each_epoch: EachEpoch | None, flags: dict[str, Any],
) -> TrainResult:  # fmt: skip
    """What `train` does between the first message and the last; the other arguments are those of `train`."""
    overrides = read_overrides(flags, FLAGS, "train")
    if resume is None and ranks.wide and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)):
        if name is None:
            raise UsageError("torchrun --max-restarts: a restart has to find its run", "add --name")
        restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        if restart and (known := ranks.first(lambda: RunFolder.newest_called(output, name))):
            say(f"restart {restart}: going on from {known.last}")
            with alone(ranks, known):
                return _train_and_evaluate(*_resume_run(known, data, {}, ranks, clock), offline, each_epoch)
    if resume is not None and ranks.first(RunFolder(resume).folds.is_file):
        _refuse_ranks(ranks, "folds", "one fold at a time: --folds N --fold I")
        if (name, config, data) != (None, None, None) or sets or overrides:
            raise excluded("resume of folds")
        return _train_folds(CrossValidation(RunFolder(resume), None, offline, parallel))
    if resume is not None:
        changes = [*overrides, *sets] + ["config"] * (config is not None)
        folder = ranks.first(lambda: folder_to_resume(Path(resume), name, changes, FLAGS, RESUMABLE))
        with alone(ranks, folder):
            return _train_and_evaluate(*_resume_run(folder, data, overrides, ranks, clock), offline, each_epoch)
    settings = load_config(config, {"data.root": data, **overrides}, sets)
    check_trackers(settings.train.track)
    divided = settings.data.divided and settings.data.fold is None
    if not settings.train.test and (gated or settings.train.freeze or divided):
        what = "--fail-under" if gated else "--freeze" if settings.train.freeze else "--folds"
        raise excluded("no test", given=what)
    if settings.train.freeze:
        _refuse_ranks(ranks, "--freeze, which trains no network", "start one process")
    if divided:
        _refuse_ranks(ranks, "--folds", "one fold at a time: --folds N --fold I")
        check_place(settings, output, name)
        of = f"{settings.data.folds}-folds" if settings.data.sites is None else file_name(settings.data.sites)
        usual = f"{default_name(data_folder(settings.data.root), settings)}_{of}"
        study = CrossValidation.new(settings, output, name or usual)
        first = {"data": data, "config": config, "sets": sets, **flags}
        if (limit := settings.train.time) is not None:
            rounds = -(-len(study.divided.places) // parallel)
            first["time"] = (limit - POOLING - clock.seconds()) / rounds
            say(f"--time {duration_text(limit)}: {duration_text(first['time'])} for each fold")
        return _train_folds(CrossValidation(study.folder, first, offline, parallel))
    if parallel > 1:
        raise excluded("parallel", given=parallel)
    run, task = _new_run(settings, output, name, config is None, offline, ranks, clock)
    with alone(ranks, run.folder):
        return _train_and_evaluate(run, task, offline, each_epoch)


@contextlib.contextmanager
def alone(ranks: Ranks, folder: RunFolder) -> Iterator[None]:
    """As `run_lock`, for rank 0, which also removes the evaluations whose writing was cut off."""
    with run_lock(folder) if ranks.leads else contextlib.nullcontext():
        for torn in torn_evaluations(folder) if ranks.leads else ():
            shutil.rmtree(torn)
            warn(f"{torn}: was incomplete, because an earlier process ended while writing it; removed")
        yield


def _refuse_ranks(ranks: Ranks, what: str, fix: str) -> None:
    """Raises UsageError if there are several processes."""
    if ranks.wide:
        raise UsageError(f"{what}: not with {ranks.world} processes", fix)


def _train_folds(study: CrossValidation) -> TrainResult:
    folder = study.folder
    with run_lock(folder):
        study.check_open()
        try:
            test = conduct(study)
        finally:
            if study.first and not any(path.is_dir() for path in folder.path.iterdir()):  # refused: nothing began
                shutil.rmtree(folder.path)
        if all(run.best.is_file() for run in study.done()):
            joined = ensemble([folder.path])
            if load_ensemble(RunFolder(joined.folder).ensemble).splits.samples["test"]:
                evaluate(joined.folder)
    return TrainResult(folder.path, None, None, test)


def _train_and_evaluate(run: Run[Config], task: Finetune, offline: bool, each_epoch: EachEpoch | None) -> TrainResult:
    """Train and evaluate, with the trackers of the run."""
    config = run.config
    with tracked(config.train.track if run.ranks.leads else (), run.folder, offline) as tracking:
        tracking.start(config)
        tracking.epochs(run.state.history)
        result = _to_the_end(run, task, each_epoch or (lambda record: None), tracking)
        for split, found in (("val", result.val), ("test", result.test)):
            if found is not None and config.train.track:
                pages = not config.evaluate.show_names  # a page that names images stays here
                tracking.result(split, found.metrics.overall, found.folder, run.state.epoch, pages)
    return result


def _to_the_end(run: Run[Config], task: Finetune, each_epoch: EachEpoch, tracking: Tracking) -> TrainResult:
    """Train to the end, choose the decision policy on validation, and evaluate val and test."""
    folder, leads, clock = run.folder, run.ranks.leads, run.session.clock
    trained = not run.config.train.freeze and finished(run.state, run.config)
    try:
        if not (run.config.train.freeze or run.ranks.first(folder.last.is_file)):
            run.save_last()  # so that an interruption before the first step can be resumed too
        baselines = Baselines(run, task) if leads else None
        if not run.config.train.freeze:
            train_and_draw(run, lambda: _draw_curves(run) if leads else None, each_epoch, tracking.epochs)
        val, test = run.ranks.first(lambda: _evaluated(run, baselines, trained))
    except (UsageError, DataError) as error:  # a full disk, an image that has become unreadable
        raise run.resumable(error) from None
    except KeyboardInterrupt:
        if not folder.last.is_file():  # --freeze has nothing to go on from
            fix = f"start again: vitmed train --config {folder.config}"
            raise Interrupted(f"stopped; {folder.path} is incomplete", fix) from None
        raise Interrupted(f"stopped at once; {folder.last} is saved", run.go_on) from None
    if run.config.train.time is not None:
        used, limit = (duration_text(seconds) for seconds in (clock.seconds(), run.config.train.time))
        say(f"time: {used} of {limit} used")
    say(f"to predict images: vitmed predict IMAGE --checkpoint {folder.path}")
    return TrainResult(folder.path, folder.best, val, test)


def _evaluated(run: Run[Config], baselines: Baselines | None, trained: bool) -> tuple[Evaluation, Evaluation | None]:
    """Choose the decision policy on validation, and evaluate val and, unless it is left out, test.

    Args:
        trained: whether the run was at its end when this process began.
    """
    assert baselines is not None
    folder, best, device = run.folder, run.folder.best, run.device.type
    fit_decision_policy(best, run.images, run.device)

    def evaluated(split: str) -> Evaluation:
        if trained and (found := known_evaluation(open_model(best), split)):  # before the run was interrupted
            say(f"{found.folder}: is complete already")
            return found
        others, page = partial(baselines.predictions, split), run.config.evaluate.report
        return evaluate(best, split=split, device=device, baselines=others, report=page)

    val = evaluated("val")
    if not run.config.train.test:
        return val, None
    test = evaluated("test")
    if not folder.model_card.is_file():
        write_card(folder, test)
    return val, test


def _new_run(
    config: Config, output: str | Path, name: str | None, plans: bool, offline: bool, ranks: Ranks,
    clock: Clock,
) -> tuple[Run[Config], Finetune]:  # fmt: skip
    check_place(config, output, name)
    if ranks.leads:
        plan = make_plan(config, plans, offline, ranks.world)
    planned = ranks.first(lambda: plan.config)  # with what rank 0 has timed
    with ranks.one_first():
        if not ranks.leads:  # from the images and the weights of this machine
            given = planned.model_copy(update={"data": config.data})
            plan = make_plan(given, False, offline, ranks.world)
    config, splits = plan.config, plan.splits
    check_folder(config.data, config.evaluate.ordinal)
    asked_point(config.evaluate, splits.choices)  # raises now, not after hours of training
    session = Session.of(config, plan.device, ranks, clock)
    task = Finetune.new(config, splits, session, plan.weights)  # raises for wrong sizes
    if plan.reasons:
        say(f"plan for {plan.inputs} (flags override it, --config replaces it):")
        for line in describe(plan.reasons):
            say(f"  {line}")
    if not config.train.freeze and ranks.leads:
        say(time_needed(plan)[1])
        task = replace(task, planned_rate=1 / plan.forecaster.image(config))
    ranks.first(lambda: RunFolder.probe(output))
    read, task, checked = _read(config, splits, task, session)
    folder = ranks.first(lambda: RunFolder.create(output, name or default_name(splits.root, config)))
    run = Run.new(task, config, read, folder, session)
    with bar("drawing augmented images", unit="steps"):
        if ranks.leads:
            write_json(folder.data_check, checked)
            write_bytes(folder.contact_sheet, png(contact_sheet(augmented_examples(run), len(run.splits.strata))))
    say(f"run folder: {folder.path}; {folder.contact_sheet.name} there shows augmented training images")
    return run, task


def check_place(config: Config | PretrainConfig, output: str | Path, name: str | None) -> None:
    """Raise UsageError, before any work, if the run folder has no plain name, or its place cannot be used."""
    if name is not None:
        check_name(name)
    refuse_inside(data_folder(config.data.root), output)
    refuse_file(output)
    RunFolder.refuse_run(output)


def _read(
    config: Config, splits: Splits, task: Finetune, session: Session
) -> tuple[ReadSplits, Finetune, dict[str, Any]]:
    """Read every image, and report what the data check finds: the images, what is trained, and data_check.json."""
    ranks, checked = session.ranks, dict[str, Any]()
    with ranks.one_first():
        read = check_images(splits, Preprocessing.of(config), config.data)
        if before := sum(map(set(task.seen).__contains__, read.hashes["test"])):
            warn(f"the weights were made with {counted(before, 'test image')}: results look too good")
    check_ranks(read, session)
    if ranks.leads:
        notes, counts = check_before_training(read.splits, read.records, read.skipped, config)
        checked = {"notes": notes, "counts": counts}
        rest = iter(fingerprints(read.records))  # in the order of the splits
        by_split = {name: list(islice(rest, len(part))) for name, part in read.splits.samples.items()}
        task = replace(task, fingerprints={name: by_split[name] for name in ("train", "val")})
    return read, task, checked


def _draw_curves(run: Run[Config]) -> None:
    if run.state.history:
        write_bytes(run.folder.training_curves, drawn_curves(run.state.history).png)


def _resume_run(
    folder: RunFolder, data: str | Path | None, overrides: dict[str, Any], ranks: Ranks, clock: Clock
) -> tuple[Run[Config], Finetune]:
    checkpoint = ranks.first(lambda: load_checkpoint(folder.last))
    if checkpoint.training is None:
        raise CheckpointError(f"{folder.last}: holds no training state", "resume needs the last.pt that train wrote")
    why = upgrade.why_not_resumed(checkpoint.versions["vitmed"], checkpoint.config.train.balance)
    if why is not None:
        raise CheckpointError(f"{folder.last}: {why}", f"start a new run: vitmed train --config {folder.config}")
    checkpoint.model()  # raises before a network is built whose sizes are not those of the weights
    fix = f"name its current place: vitmed train DIR --resume {folder.path}"
    root = data_folder(data if data is not None else ranks.first(lambda: checkpoint.data_root(fix)))
    config = build_config(resumed_settings(checkpoint.config, folder, root, overrides), given=overrides)
    check_trackers(config.train.track)
    if config.train.choose == "last" and overrides.get("train.patience") is not None:
        warn(LAST_KEPT.format(config.train.patience))
    epochs = checkpoint.config.train.epochs
    if config.train.epochs != epochs:
        new = counted(config.train.epochs, "epoch")
        warn(f"{new} instead of {epochs}: the learning rate follows the new schedule")
    splits = replace(checkpoint.splits, root=root)
    session = Session.of(config, pick_device(config.train.device), ranks, clock)
    task = Finetune.new(config, splits, session, start="weights from last.pt")
    with all_its_images():
        read, task, _ = _read(config, splits, task, session)
    check_unchanged(read.splits, read.hashes, checkpoint.hashes)
    task, limit = replace(task, seen=checkpoint.seen), checkpoint.config.train.time
    run = Run.resumed(task, config, read, folder, session, checkpoint.training, limit)
    if splits.root != checkpoint.splits.root and ranks.leads:
        for file in folder.path.glob("*.pt"):  # some are never written again, and later commands read the data root
            set_data_root(file, splits.root)
    if finished(run.state, run.config) and ranks.first(lambda: _is_evaluated(folder)):
        length, more = counted(epochs, "epoch"), "epochs: vitmed train --resume {} --epochs N"
        if run.state.share >= 1:
            length, more = duration_text(config.train.time or 0), "time: vitmed train --resume {} --time TIME"
        raise UsageError(
            f"{folder.path}: this run of {length} is finished and evaluated",
            f"more {more.format(folder.path)}; a new report: vitmed evaluate {folder.path}",
        )
    return run, task


def _is_evaluated(run: RunFolder) -> bool:
    """Whether a report holds the last evaluation of the weights in best.pt, and the model card is written."""
    if not load_checkpoint(run.best).config.train.test:
        return known_evaluation(open_model(run.best), "val") is not None
    return known_evaluation(open_model(run.best), "test") is not None and run.model_card.is_file()


def default_name(root: Path, config: Config | PretrainConfig) -> str:
    """Date, data and model: 2026-11-20_malaria_vit-tiny."""
    return f"{datetime.date.today().isoformat()}_{file_name(root.resolve().name) or 'data'}_{model_label(config.model)}"
