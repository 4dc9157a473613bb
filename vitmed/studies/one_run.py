"""One run of `vitmed train` or `vitmed pretrain`: begun or resumed, trained to its end, and evaluated."""

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import vitmed
from vitmed.checks.data_check import check_before_training, check_folder
from vitmed.core.config import Config, PretrainConfig
from vitmed.core.dataset_cards import report_card
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError, unknown_key
from vitmed.core.files import probe, write_bytes, write_json, write_text
from vitmed.core.load_config import build_config, with_values
from vitmed.core.messages import bar, gathering, gravest_first, say, show, warn, wrapped
from vitmed.core.places import check_run_place, data_folder
from vitmed.core.run_folder import RunFolder, run_lock
from vitmed.core.text import counted, duration_text, file_name, listed, quoted, visible
from vitmed.data.duplicates import fingerprints
from vitmed.data.folders import has_classes
from vitmed.data.loading import ReadSplits, UnusableFiles, read_splits
from vitmed.data.patients import show_expression
from vitmed.data.samples import Splits
from vitmed.data.splits import pretraining_splits
from vitmed.decisions.targets import refuse_idle
from vitmed.imaging.augmentation import POLICIES
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import load_checkpoint, load_pretraining, set_data_root
from vitmed.inference.open_model import open_model
from vitmed.models.hardware import busy, pick_device, versions
from vitmed.models.sizes import model_label
from vitmed.models.weights.choice import warning_of
from vitmed.report.headline import Evaluation, known_evaluation
from vitmed.report.model_card import write_card
from vitmed.report.plots.curves import drawn_curves
from vitmed.report.plots.drawing import png
from vitmed.report.plots.pictures import contact_sheet
from vitmed.training.baselines import Baselines, fit_baselines
from vitmed.training.early_stopping import finished
from vitmed.training.finetune import Finetune, augmented_examples, fit_decision_policy
from vitmed.training.out_of_memory import one_batch
from vitmed.training.plan.make_plan import LAST_KEPT, make_plan, median_side, time_needed, with_window
from vitmed.training.plan.rules import SCRATCH, PlanInputs, describe, plan_settings
from vitmed.training.plan.time import Clock
from vitmed.training.pretraining import Pretrain
from vitmed.training.processes import Ranks
from vitmed.training.run import EachEpoch, Run, Session, resumed_settings
from vitmed.training.trackers import Tracking, check_trackers

ENOUGH = 0.8  # of the seconds that the reports are expected to take: with less left, there are fewer
UNLABELLED_VAL = 0.05  # share of images for the validation of pretraining, where there are no classes
AS_BEFORE = (
    "restore the files as they were when the run began, then run this again; or start a new run (--on-bad-file skip "
    "leaves unreadable files out)"
)
# Settings allowed beside --resume: those that change no result of any run, and the length of the training.
NO_RESULT = {"train.device", "train.workers", "train.micro_batch", "train.grad_checkpointing"}
NO_RESULT |= {"data.cache", "data.cache_gb"}
RESUMABLE = NO_RESULT | {"train.epochs", "train.time", "train.patience", "train.compile", "train.shard", "train.track"}


@dataclass(frozen=True)
class TrainResult:
    """The run folder, the best checkpoint (None without a network and with several folds) and its evaluations: with
    several folds `test` covers the tests of all; it is None with `test=False`."""

    folder: Path
    checkpoint: Path | None
    val: Evaluation | None
    test: Evaluation | None


@dataclass(frozen=True)
class OneRun:
    """The way of one run through training, in each of its processes, to a folder in `output` of this name; default
    date, data and model."""

    ranks: Ranks
    clock: Clock
    output: str | Path
    name: str | None
    each_epoch: EachEpoch | None

    def new(self, config: Config, plans: bool) -> TrainResult:
        """Begin a run, train it and evaluate it; with `plans`, settings that were not made are planned."""
        with gathering() as kept:
            run, task = self._new(config, plans)
        folder = run.folder
        if self.ranks.leads:
            messages = [f"{'  ' * line.startswith(' ')}- {visible(line.strip())}" for line in kept.lines]
            warnings = [f"{k}. {visible(text)}" for k, text in enumerate(gravest_first(kept.warnings), 1)]
            head = [f"# {folder.path.name}: what vitmed said before training", "## Warnings"]
            parts = [*head, "\n".join(warnings) or "None.", "## Messages", "\n".join(messages)]
            write_text(folder.plan, "\n\n".join(parts) + "\n")
        kept.warn_gravest(f"{folder.plan}")
        shown = "sample images" if run.config.train.freeze else f"augmentation {run.config.augment.policy}"
        images = f"{folder.contact_sheet.name} ({shown})"
        show(wrapped(f"run folder: {folder.path} with {folder.plan.name}, {images}"))
        with run_lock(folder) if self.ranks.leads else contextlib.nullcontext():
            return self._finish(run, task)

    def _new(self, config: Config, plans: bool) -> tuple[Run[Config], Finetune]:
        ranks = self.ranks
        if ranks.leads:
            plan = make_plan(config, plans, ranks.world)
        planned = ranks.first(lambda: plan.config)  # with what rank 0 has timed
        with ranks.one_first():
            if not ranks.leads:  # from the images and the weights of this machine
                plan = make_plan(planned.model_copy(update={"data": config.data}), False, ranks.world)
        config, splits = plan.config, plan.splits
        check_folder(config.data, config.evaluate.ordinal)
        session = Session.of(config, ranks, self.clock)
        task = Finetune.new(config, splits, session, plan.weights)  # raises for wrong sizes
        if plan.reasons:
            say(f"plan for {plan.inputs} (flags override it, --config replaces it):")
            for line in describe(plan.reasons):
                say(f"  {line}")
        if not config.train.freeze and ranks.leads:
            _, line, short = time_needed(plan)
            if config.train.time is not None and (load := busy()):
                slow = f"; {load}: it may take longer"
                line, short = (line, short + slow) if short else (line + slow, short)
            show(line)
            if short:
                warn(short)
            task = replace(task, planned_rate=1 / plan.forecaster.image(config))
        ranks.first(lambda: probe(self.output))
        read, task, checked = _read(config, splits, task, session, {})
        folder = ranks.first(lambda: RunFolder.create(self.output, self.name or default_name(splits.root, config)))
        run = Run.new(task, config, read, folder, session)
        with bar("drawing augmented images", unit="steps"):
            if ranks.leads:
                write_json(folder.data_check, checked)
                crop = f", crops of at least {100 * config.augment.crop:g} % of the area" * (config.augment.crop < 1)
                title = "sample images" if config.train.freeze else f"augmentation {config.augment.policy}{crop}"
                sheet = contact_sheet(augmented_examples(run), len(run.splits.strata), title)
                write_bytes(folder.contact_sheet, png(sheet))
        return run, task

    def resume(self, folder: RunFolder, data: str | Path | None, overrides: dict[str, Any]) -> TrainResult:
        """Continue an interrupted run, with its data perhaps in another place."""
        with run_lock(folder) if self.ranks.leads else contextlib.nullcontext():
            return self._finish(*self._resumed(folder, data, overrides))

    def _resumed(
        self, folder: RunFolder, data: str | Path | None, overrides: dict[str, Any]
    ) -> tuple[Run[Config], Finetune]:
        ranks, checkpoint = self.ranks, self.ranks.first(lambda: load_checkpoint(folder.last))
        if checkpoint.training is None:
            problem = f"{folder.last}: holds no training state"
            raise CheckpointError(problem, "resume needs the last.pt that train wrote")
        checkpoint.model()  # raises before a network is built whose sizes are not those of the weights
        fix = f"name its current place: vitmed train DIR --resume {quoted(folder.path)}"
        root = data_folder(data if data is not None else ranks.first(lambda: checkpoint.data_root(fix)))
        config = build_config(resumed_settings(checkpoint.config, folder, root, overrides), given=overrides)
        check_trackers(config.train.track)
        if config.train.choose == "last" and overrides.get("train.patience") is not None:
            warn(LAST_KEPT.format("patience", config.train.patience))
        epochs = checkpoint.config.train.epochs
        if config.train.epochs != epochs:
            new = counted(config.train.epochs, "epoch")
            warn(f"{new} instead of {epochs}: the learning rate follows the new schedule")
        splits = replace(checkpoint.splits, root=root)
        session = Session.of(config, ranks, self.clock)
        with all_its_images(), gathering() as kept:
            task = Finetune.new(config, splits, session, start="weights from last.pt")
            read, task, _ = _read(config, splits, task, session, checkpoint.hashes)
        kept.warn_gravest("--verbose")
        task = replace(task, seen=checkpoint.seen)
        run = Run.resumed(task, config, read, folder, session, checkpoint)
        if splits.root != checkpoint.splits.root and ranks.leads:
            for file in folder.path.glob("*.pt"):  # some are never written again, and later commands read the data root
                set_data_root(file, splits.root)
        last = "test" if config.train.test else "val"  # of the evaluations; a model card follows that of test
        if complete := finished(run.state, run.config):
            complete = ranks.first(lambda: known_evaluation(open_model(folder.best), last) is not None)
        if complete and (last == "val" or ranks.first(folder.model_card.is_file)):
            length, more = counted(epochs, "epoch"), "epochs: vitmed train --resume {} --epochs N"
            if run.state.epoch < run.config.train.epochs:  # stopped early
                more = "patience: vitmed train --resume {} --patience N"
            ended = (checkpoint.training or {}).get("share", 0.0) >= 1
            if ended and (limit := checkpoint.config.train.time):  # not one that is given now
                length, more = duration_text(limit), "time: vitmed train --resume {} --time TIME"
            problem = f"{folder.path}: this run of {length} is finished and evaluated"
            raise UsageError(
                problem, f"more {more.format(quoted(folder.path))}; a new report: vitmed evaluate {quoted(folder.path)}"
            )
        run.rewrite()
        return run, task

    def _finish(self, run: Run[Config], task: Finetune) -> TrainResult:
        config, folder, leads = run.config, run.folder, self.ranks.leads
        trained = not config.train.freeze and finished(run.state, config)
        fix = f"start again: vitmed train --config {quoted(folder.config)}"  # --freeze has nothing to go on from

        def draw() -> None:
            if leads and run.state.history:
                write_bytes(folder.training_curves, drawn_curves(run.state.history).png)

        with Tracking(config.train.track if leads else (), folder) as tracking:
            tracking.start(config)
            tracking.epochs(run.state.history)
            with advising(run, Interrupted(f"stopped; {folder.path} is incomplete", fix)):
                if not (config.train.freeze or self.ranks.first(folder.last.is_file)):
                    task.save_last(run)  # so that an interruption before the first step can be resumed too
                with gathering():
                    baselines = fit_baselines(run, task) if leads else None
                if not config.train.freeze:
                    star = {"loss": "lowest val loss so far", "last": "best so far; best.pt keeps the last"}
                    marks = star.get(config.train.choose, "best so far")
                    say(f"in the lines of the epochs, * marks the {marks}; waiting is the time that images are awaited")
                    run.train(draw, self.each_epoch or (lambda record: None), tracking.epochs)
                    task.end(run)
                result = self.ranks.first(lambda: _evaluated(run, task, baselines, trained))
            if config.train.time is not None:
                used, limit = (duration_text(seconds) for seconds in (self.clock.seconds(), config.train.time))
                say(f"time: {used} of {limit} used")
            say(f"to predict images: vitmed predict IMAGE --checkpoint {quoted(result.folder)}")
            for split, evaluation in (("val", result.val), ("test", result.test)):
                if evaluation is not None and config.train.track:
                    pages = not config.evaluate.show_names  # a page that names images stays here
                    tracking.result(split, evaluation.metrics.overall, evaluation.folder, run.state.epoch, pages)
        return result


@contextlib.contextmanager
def advising(run: Run[Any], incomplete: Interrupted | None = None) -> Iterator[None]:
    """Add to what ends a run how it goes on; without a last.pt, Ctrl-C raises `incomplete`. A run goes on with the
    images that it began with, or not at all."""
    last = run.folder.last
    try:
        yield
    except (UsageError, DataError) as error:  # a full disk, an image that has become unreadable
        if not last.is_file():
            raise error from None
        if isinstance(error, DataError):
            fix = "start a new run (--on-bad-file skip leaves unreadable files out); or restore the files as they were"
            raise DataError(error.problem, f"{fix}, then continue: {run.go_on}") from None
        raise type(error)(error.problem, f"{error.fix}; then continue from {last.name}: {run.go_on}") from None
    except KeyboardInterrupt as stopped:
        if not last.is_file():
            raise incomplete or stopped from None
        raise Interrupted(f"stopped at once; {last} is saved", run.go_on) from None


def _evaluated(run: Run[Config], task: Finetune, baselines: Baselines | None, trained: bool) -> TrainResult:
    """Choose the decision policy on validation, and evaluate val and, unless it is left out, test; where the run was
    `trained` when this process began, only what is not evaluated yet."""
    assert baselines is not None
    folder, best, device, began = run.folder, run.folder.best, run.device.type, (time.monotonic(), time.process_time())
    limit, left = run.config.train.time, (run.config.train.time or 0.0) - run.session.clock.seconds()
    after = 0.0 if task.after is None else task.seconds_after(run)
    short = limit is not None and run.config.evaluate.report and left < ENOUGH * after
    if short:
        warn(
            "the time is nearly used, so validation gets no report and the test no attention maps; to make them later: "
            f"vitmed evaluate {quoted(folder.path)} --split val, vitmed evaluate {quoted(folder.path)}"
        )
    with gathering():  # the evaluations warn of it again
        fit_decision_policy(best, run.images, run.device)
    results = dict[str, Evaluation | None](val=None, test=None)
    for split in ("val", "test") if run.config.train.test else ("val",):
        if trained and (complete := known_evaluation(open_model(best), split)):  # before the run was interrupted
            say(f"{complete.folder}: is complete already")
            results[split] = complete
            continue
        pages: dict[str, Any] = {"report": run.config.evaluate.report}
        if short:
            pages = {"report": split == "test", "map_images": 0}
        predicted = partial(baselines, split)
        results[split] = vitmed.evaluate(best, split=split, device=device, baselines=predicted, **pages)
    if (test := results["test"]) is not None and not folder.model_card.is_file():
        write_card(folder, test)
    if task.after is not None and not short:  # seconds of a core, whoever else computes
        task.after.keep(min(time.monotonic() - began[0], time.process_time() - began[1]))
    return TrainResult(folder.path, best, **results)


def _read(
    config: Config, splits: Splits, task: Finetune, session: Session, hashes: Mapping[str, list[str]]
) -> tuple[ReadSplits, Finetune, dict[str, Any]]:
    """Read every image, and report what the data check finds: the images, what is trained, and data_check.json. Raises
    DataError if an image is not that of the `hashes` of a run that is resumed; UsageError or DataError if versions,
    device or images of this rank are not those of rank 0."""
    ranks, checked = session.ranks, dict[str, Any]()
    with ranks.one_first():
        read = read_splits(splits, Preprocessing.of(config), config.data)
        for part, known, name in (("test", task.seen, "test"), ("val", task.learned, "validation")):
            if before := sum(map(set(known).__contains__, read.hashes[part])):
                chosen = ", and what is chosen by them does not hold" * (part == "val")
                warn(f"the weights were made with {counted(before, f'{name} image')}: results look too good{chosen}")
    check_unchanged(read.splits, read.hashes, hashes)  # before advice that --resume refuses
    here = {**versions(), "device": session.device.type, "precision": session.precision.name}
    there: dict[str, str] = ranks.first(lambda: here)
    if other := [name for name in here if here[name] != there[name]]:
        this, first = (listed([f"{name} {facts[name]}" for name in other]) for facts in (here, there))
        raise UsageError(f"has {this}, rank 0 has {first}", "install the same versions on the same machines")
    texts = {name: "\n".join([*map(str, part), *read.hashes[name]]) for name, part in read.splits.samples.items()}
    images = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    leading = ranks.first(lambda: images)
    if changed := [name for name in leading if images.get(name) != leading[name]]:
        problem = f"{read.splits.root}: images or labels of {listed(changed)} differ from those of rank 0"
        raise DataError(problem, "copy the data folder of rank 0 to every machine")
    if ranks.leads:
        notes, counts = check_before_training(read.splits, read.records, read.skipped, config)
        if config.model.start is None and config.model.weights_reason is not None:
            notes = [*notes, f"{warning_of(config.model.weights_reason)}."]
        checked = {"notes": notes, "counts": counts}
        rest = iter(fingerprints(read.records))  # in the order of the splits
        by_split = {name: list(islice(rest, len(part))) for name, part in read.splits.samples.items()}
        task = replace(task, fingerprints={name: by_split[name] for name in ("train", "val")})
    return read, task, checked


@contextlib.contextmanager
def all_its_images() -> Iterator[None]:
    """A run that is resumed goes on with all its images: nothing advises to remove one or to leave it out."""
    try:
        yield
    except UnusableFiles as error:
        raise DataError(error.causes, AS_BEFORE) from None


def check_unchanged(splits: Splits, hashes: Mapping[str, list[str]], before: Mapping[str, list[str]]) -> None:
    """Raises DataError if the images are not those that a run had before, by split."""
    if changed := [name for name in before if before[name] != hashes[name]]:
        raise DataError(f"{splits.root}: images of {', '.join(changed)} have changed since the run began", AS_BEFORE)


def new_pretraining(config: PretrainConfig, output: str | Path, name: str | None) -> Run[PretrainConfig]:
    """Begin a run of pretraining. Raises UsageError for settings that it does not take, or as `check_run_place`."""
    check_run_place(config, output, name)
    if config.augment.policy not in POLICIES:
        raise unknown_key("policy", config.augment.policy, POLICIES)
    model, data = config.model, config.data
    if model.weights is not None and "weights" in model.model_fields_set:
        raise UsageError("pretraining starts from random weights", "leave model.weights out")
    if model.pool in ("attention", "coca"):
        problem = f"--pool {model.pool} has weights of its own, which pretraining does not train"
        raise UsageError(problem, "leave model.pool out")
    if data.divided and data.fold is None and not data.unlabelled:
        raise UsageError("pretraining leaves out the test of one fold: which?", "vitmed pretrain --set data.fold=1")
    stem, pool = ("patch" if model.stem == "auto" else model.stem), ("mean" if model.pool == "auto" else model.pool)
    positions = model.positions if "positions" in model.model_fields_set else "sincos_2d"
    # The class token learns nothing, so a later head uses the mean of the patches, as in the paper.
    values: dict[str, Any] = {"model.stem": stem, "model.pool": pool, "model.positions": positions}
    values["model.weights"] = None
    if data.unlabelled or not (data.labels is not None or has_classes(data_folder(data.root))):
        fraction = data.val_fraction if "val_fraction" in data.model_fields_set else UNLABELLED_VAL
        values |= {"data.unlabelled": True, "data.val_fraction": fraction}
    config = with_values(config, values)
    report_card(config.data.card)
    show_expression(config.data.group_regex)
    splits, held_out = pretraining_splits(config.data)
    refuse_idle(Config(data=config.data), splits.target.kind)
    count, val = (len(splits.samples[split]) for split in ("train", "val"))
    situation = PlanInputs(SCRATCH, count, val, median_side(splits), pick_device(config.train.device).type, width=0)
    settings, _ = plan_settings(Config(model=config.model), situation)  # as `train` would plan for random weights
    for decision in settings:
        if decision.field in ("model.image_size", "model.patch_size"):
            say(f"{decision.field} {decision.value}: {decision.when}; {decision.why}")
            config = with_values(config, {decision.field: decision.value})
    config = with_window(one_batch(config), splits)
    session = Session.of(config)
    task = Pretrain.new(config, splits, session)
    if held_out:
        say(f"test:  {counted(held_out, 'image')}, left out: pretraining never uses them")
    else:
        warn("no test images were left out: keep the images of a later test out of this folder")
    probe(output)
    read = read_splits(splits, Preprocessing.of(config), config.data, False)
    folder = RunFolder.create(output, name or f"{default_name(splits.root, config)}_mae")
    run = Run.new(task, config, read, folder, session)
    say(f"run folder: {folder.path}")
    return run


def resumed_pretraining(folder: RunFolder, data: str | Path | None, overrides: dict[str, Any]) -> Run[PretrainConfig]:
    """Continue a run of pretraining, with its data perhaps in another place. Raises UsageError where it is finished."""
    saved = load_pretraining(folder.last)
    root = data_folder(data if data is not None else saved.splits.root)
    settings = resumed_settings(saved.config, folder, root, overrides)
    config, splits = build_config(settings, PretrainConfig), replace(saved.splits, root=root)
    session = Session.of(config)
    task = Pretrain.new(config, splits, session)
    every = config.data.model_copy(update={"on_bad_file": "stop"})
    with all_its_images():
        read = read_splits(splits, Preprocessing.of(config), every, records=False)
    check_unchanged(splits, read.hashes, saved.hashes)
    run = Run.resumed(task, config, read, folder, session, saved)
    if finished(run.state, run.config):
        raise UsageError(f"{folder.path}: this run is finished", f"vitmed train DIR --weights {quoted(folder.encoder)}")
    run.rewrite()
    return run


def default_name(root: Path, config: Config | PretrainConfig) -> str:
    """Join date, data and model: 2026-11-20_malaria_vit-tiny."""
    return f"{time.strftime('%Y-%m-%d')}_{file_name(root.resolve().name) or 'data'}_{model_label(config.model)}"
