"""One run of `vitmed train`: begun or resumed, trained to its end, and evaluated."""

from __future__ import annotations

import contextlib
import datetime
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from vitmed.checks.data_check import check_before_training, check_folder
from vitmed.checks.duplicates import fingerprints
from vitmed.commands.evaluate import evaluate
from vitmed.core import upgrade
from vitmed.core.config import Config, PretrainConfig
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError
from vitmed.core.files import write_bytes, write_json
from vitmed.core.load_config import build_config
from vitmed.core.messages import bar, say, warn
from vitmed.core.places import data_folder
from vitmed.core.run_folder import RunFolder, run_lock
from vitmed.core.text import counted, duration_text, file_name
from vitmed.data.loading import ReadSplits
from vitmed.data.samples import Splits
from vitmed.decisions.evaluation_folder import torn_evaluations
from vitmed.decisions.operating_points import asked_point
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import load_checkpoint, set_data_root
from vitmed.inference.open_model import open_model
from vitmed.models.hardware import pick_device
from vitmed.models.sizes import model_label
from vitmed.report.headline import Evaluation, known_evaluation
from vitmed.report.model_card import write_card
from vitmed.report.plots.curves import drawn_curves
from vitmed.report.plots.drawing import png
from vitmed.report.plots.pictures import contact_sheet
from vitmed.training.baselines import Baselines
from vitmed.training.early_stopping import finished
from vitmed.training.environment import all_its_images, check_images, check_ranks, check_unchanged
from vitmed.training.finetune import Finetune, augmented_examples, fit_decision_policy
from vitmed.training.plan.make_plan import LAST_KEPT, make_plan, time_needed
from vitmed.training.plan.rules import describe
from vitmed.training.plan.time import Clock
from vitmed.training.processes import Ranks
from vitmed.training.run import EachEpoch, Run, Session, resumed_settings, train_and_draw
from vitmed.training.trackers import Tracking, check_trackers, tracked

# Settings allowed beside --resume: those that change no result of any run, and the length of the training.
NO_RESULT = {"train.device", "train.workers", "train.micro_batch", "train.grad_checkpointing"}
NO_RESULT |= {"data.cache", "data.cache_gb"}
RESUMABLE = NO_RESULT | {"train.epochs", "train.time", "train.patience", "train.compile", "train.shard", "train.track"}


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


@dataclass(frozen=True)
class OneRun:
    """The way of one run through training, in each of its processes.

    Attributes:
        output, name: the folder in which to make the run folder, and its name; default date, data and model.
        each_epoch: as in `train`.
    """

    ranks: Ranks
    clock: Clock
    output: str | Path
    name: str | None
    offline: bool
    each_epoch: EachEpoch | None

    def new(self, config: Config, plans: bool) -> TrainResult:
        """Begin a run, train it and evaluate it; with `plans`, settings that were not made are planned."""
        ranks = self.ranks
        if ranks.leads:
            plan = make_plan(config, plans, self.offline, ranks.world)
        planned = ranks.first(lambda: plan.config)  # with what rank 0 has timed
        with ranks.one_first():
            if not ranks.leads:  # from the images and the weights of this machine
                given = planned.model_copy(update={"data": config.data})
                plan = make_plan(given, False, self.offline, ranks.world)
        config, splits = plan.config, plan.splits
        check_folder(config.data, config.evaluate.ordinal)
        asked_point(config.evaluate, splits.choices)  # raises now, not after hours of training
        session = Session.of(config, plan.device, ranks, self.clock)
        task = Finetune.new(config, splits, session, plan.weights)  # raises for wrong sizes
        if plan.reasons:
            say(f"plan for {plan.inputs} (flags override it, --config replaces it):")
            for line in describe(plan.reasons):
                say(f"  {line}")
        if not config.train.freeze and ranks.leads:
            say(time_needed(plan)[1])
            task = replace(task, planned_rate=1 / plan.forecaster.image(config))
        ranks.first(lambda: RunFolder.probe(self.output))
        read, task, checked = _read(config, splits, task, session)
        folder = ranks.first(lambda: RunFolder.create(self.output, self.name or default_name(splits.root, config)))
        run = Run.new(task, config, read, folder, session)
        with bar("drawing augmented images", unit="steps"):
            if ranks.leads:
                write_json(folder.data_check, checked)
                write_bytes(folder.contact_sheet, png(contact_sheet(augmented_examples(run), len(run.splits.strata))))
        say(f"run folder: {folder.path}; {folder.contact_sheet.name} there shows augmented training images")
        with alone(ranks, folder):
            return self._finish(run, task)

    def resume(self, folder: RunFolder, data: str | Path | None, overrides: dict[str, Any]) -> TrainResult:
        """Continue an interrupted run, with its data perhaps in another place."""
        with alone(self.ranks, folder):
            return self._finish(*self._resumed(folder, data, overrides))

    def _resumed(
        self, folder: RunFolder, data: str | Path | None, overrides: dict[str, Any]
    ) -> tuple[Run[Config], Finetune]:
        ranks, checkpoint = self.ranks, self.ranks.first(lambda: load_checkpoint(folder.last))
        if checkpoint.training is None:
            raise CheckpointError(
                f"{folder.last}: holds no training state", "resume needs the last.pt that train wrote"
            )
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
        session = Session.of(config, pick_device(config.train.device), ranks, self.clock)
        task = Finetune.new(config, splits, session, start="weights from last.pt")
        with all_its_images():
            read, task, _ = _read(config, splits, task, session)
        check_unchanged(read.splits, read.hashes, checkpoint.hashes)
        run = Run.resumed(replace(task, seen=checkpoint.seen), config, read, folder, session, checkpoint)
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

    def _finish(self, run: Run[Config], task: Finetune) -> TrainResult:
        """Train and evaluate, with the trackers of the run."""
        config = run.config
        with tracked(config.train.track if self.ranks.leads else (), run.folder, self.offline) as tracking:
            tracking.start(config)
            tracking.epochs(run.state.history)
            result = self._train_and_evaluate(run, task, tracking)
            if config.train.time is not None:
                used, limit = (duration_text(seconds) for seconds in (self.clock.seconds(), config.train.time))
                say(f"time: {used} of {limit} used")
            say(f"to predict images: vitmed predict IMAGE --checkpoint {result.folder}")
            for split, evaluation in (("val", result.val), ("test", result.test)):
                if evaluation is not None and config.train.track:
                    pages = not config.evaluate.show_names  # a page that names images stays here
                    metrics = evaluation.metrics.overall
                    tracking.result(split, metrics, evaluation.folder, run.state.epoch, pages)
        return result

    def _train_and_evaluate(self, run: Run[Config], task: Finetune, tracking: Tracking) -> TrainResult:
        folder, leads, freeze = run.folder, self.ranks.leads, run.config.train.freeze
        trained = not freeze and finished(run.state, run.config)

        def draw() -> None:
            if leads and run.state.history:
                write_bytes(folder.training_curves, drawn_curves(run.state.history).png)

        try:
            if not (freeze or self.ranks.first(folder.last.is_file)):
                run.save_last()  # so that an interruption before the first step can be resumed too
            baselines = Baselines(run, task) if leads else None
            if not freeze:
                train_and_draw(run, draw, self.each_epoch or (lambda record: None), tracking.epochs)
            return self.ranks.first(lambda: _evaluated(run, baselines, trained))
        except (UsageError, DataError) as error:  # a full disk, an image that has become unreadable
            raise run.resumable(error) from None
        except KeyboardInterrupt:
            if not folder.last.is_file():  # --freeze has nothing to go on from
                fix = f"start again: vitmed train --config {folder.config}"
                raise Interrupted(f"stopped; {folder.path} is incomplete", fix) from None
            raise Interrupted(f"stopped at once; {folder.last} is saved", run.go_on) from None


@contextlib.contextmanager
def alone(ranks: Ranks, folder: RunFolder) -> Iterator[None]:
    """As `run_lock`, for rank 0, which also removes the evaluations whose writing was cut off."""
    with run_lock(folder) if ranks.leads else contextlib.nullcontext():
        for torn in torn_evaluations(folder) if ranks.leads else ():
            shutil.rmtree(torn)
            warn(f"{torn}: was incomplete, because an earlier process ended while writing it; removed")
        yield


def _evaluated(run: Run[Config], baselines: Baselines | None, trained: bool) -> TrainResult:
    """Choose the decision policy on validation, and evaluate val and, unless it is left out, test; where the run was
    `trained` when this process began, only what is not evaluated yet."""
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
        return TrainResult(folder.path, best, val, None)
    test = evaluated("test")
    if not folder.model_card.is_file():
        write_card(folder, test)
    return TrainResult(folder.path, best, val, test)


def _read(
    config: Config, splits: Splits, task: Finetune, session: Session
) -> tuple[ReadSplits, Finetune, dict[str, Any]]:
    """Read every image, and report what the data check finds: the images, what is trained, and data_check.json."""
    ranks, checked = session.ranks, dict[str, Any]()
    with ranks.one_first():
        read = check_images(splits, Preprocessing.of(config), config.data)
        if before := sum(map(set(task.seen).__contains__, read.hashes["test"])):
            warn(f"the weights were made with {counted(before, 'test image')}: results look too good")
    check_ranks(read, session.device, session.precision, session.ranks)
    if ranks.leads:
        notes, counts = check_before_training(read.splits, read.records, read.skipped, config)
        checked = {"notes": notes, "counts": counts}
        rest = iter(fingerprints(read.records))  # in the order of the splits
        by_split = {name: list(islice(rest, len(part))) for name, part in read.splits.samples.items()}
        task = replace(task, fingerprints={name: by_split[name] for name in ("train", "val")})
    return read, task, checked


def _is_evaluated(run: RunFolder) -> bool:
    """Whether a report holds the last evaluation of the weights in best.pt, and the model card is written."""
    split = "test" if load_checkpoint(run.best).config.train.test else "val"
    return known_evaluation(open_model(run.best), split) is not None and (split == "val" or run.model_card.is_file())


def default_name(root: Path, config: Config | PretrainConfig) -> str:
    """Date, data and model: 2026-11-20_malaria_vit-tiny."""
    return f"{datetime.date.today().isoformat()}_{file_name(root.resolve().name) or 'data'}_{model_label(config.model)}"
