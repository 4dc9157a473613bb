"""`vitmed train`: from a folder of labelled images to an evaluated run; `cross-validate`: to a run for each fold."""

import os
from pathlib import Path
from typing import Any

from vitmed.core import downloads, options
from vitmed.core.config import FLAGS
from vitmed.core.errors import UsageError, excluded
from vitmed.core.load_config import load_config, read_overrides
from vitmed.core.messages import Mute, listener, listening, say
from vitmed.core.places import check_run_place, data_folder, elsewhere
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import duration_text, file_name
from vitmed.data.listing import list_images
from vitmed.report.headline import check_gates, check_page, parse_gates
from vitmed.studies.cluster import opened
from vitmed.studies.folds import CrossValidation, train_folds
from vitmed.studies.one_run import RESUMABLE, OneRun, TrainResult, default_name
from vitmed.training.plan.time import Clock
from vitmed.training.processes import Ranks
from vitmed.training.run import EachEpoch, folder_to_resume
from vitmed.training.trackers import check_trackers


def train(
    data: options.Data = None,
    *,
    config: options.ConfigFile = None,
    sets: options.Sets = (),
    output: options.RunsFolder = "runs",
    name: options.RunName = None,
    resume: options.Resume = None,
    fail_under: options.Gates = (),
    offline: options.Offline = False,
    parallel: options.Parallel = None,
    on: options.On = None,
    strict: options.Strict = False,
    each_epoch: EachEpoch | None = None,
    **flags: options.Settings,
) -> TrainResult:
    """Train a ViT on a folder of labelled images and evaluate its best checkpoint on validation and on the test split.

    Args:
        data: the folder; `root/<class>/` or `root/{train,val,test}/<class>/`.
        config: a YAML file or the name of a recipe; `sets` ("train.lr=1e-4") and flags override it.
        output: the folder in which to make the run folder, called `name` (default date, data and model).
        resume: a run folder to continue; the weights come out as if it had never stopped.
        fail_under: gates on the test metrics, such as "auroc=0.9".
        offline: open no connection, not even for public weights; see docs/weights.md.
        parallel: with folds, how many to train at the same time, each in a process of its own.
        on: with folds, "ray:HOST:PORT" or an executor that trains them (docs/many-machines.md); with `strict` a node
            that cannot be used ends it.
        each_epoch: called with the record of an epoch, its line of metrics.jsonl, when last.pt holds the epoch; where
            it returns true, the run ends with EndedByCaller. Not called with folds.
        **flags: the names in `FLAGS`, as on the command line: epochs=5, lr=1e-3.

    Raises:
        VitmedError: a subclass for each kind of problem; docs/training.md lists the exit codes. Of several processes,
            that of rank 0 raises it, and the others raise `core.errors.Reported`.
    """
    with Ranks.join() as ranks, listening(listener() if ranks.leads else Mute()), downloads.unconnected(offline):
        check_page(flags)
        gates = parse_gates(fail_under)  # so that a wrong gate ends the run now, not after hours
        clock, listener().began = Clock(listener().began), None  # each of several folds has its own
        run = OneRun(ranks, clock, output, name, each_epoch)
        arguments = {"data": data, "config": config, "sets": sets}
        where = {"on": on, "parallel": parallel, "strict": strict}
        if resume is None:
            result = _begin(run, arguments, flags, where, fail_under)
        else:
            result = _resume(run, Path(resume), arguments, flags, where)
        if result.test is not None:
            check_gates(gates, result.test.metrics, result)
        return result


def _begin(
    run: OneRun, arguments: dict[str, Any], flags: dict[str, Any], where: dict[str, Any], gates: options.Gates
) -> TrainResult:
    overrides, (data, config, sets) = read_overrides(flags, FLAGS, "train"), arguments.values()
    if run.ranks.wide and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)):
        if run.name is None:
            raise UsageError("torchrun --max-restarts: a restart has to find its run", "add --name")
        restart, name = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)), run.name
        if restart and (folder := run.ranks.first(lambda: RunFolder.newest_called(run.output, name))):
            say(f"restart {restart}: going on from {folder.last}")
            return run.resume(folder, data, {})
    settings = load_config(config, {"data.root": data, **overrides}, sets)
    check_trackers(settings.train.track)
    divided = settings.data.divided and settings.data.fold is None
    if not settings.train.test and (gates or settings.train.freeze or divided):
        raise excluded("no test", given="--fail-under" if gates else "--freeze" if settings.train.freeze else "--folds")
    if settings.train.freeze:
        _refuse_ranks(run.ranks, "--freeze, which trains no network", "start one process")
    if divided:
        _refuse_ranks(run.ranks, "--folds", "one fold at a time: --folds N --fold I")
    else:
        _refuse_several(where)
    check_run_place(settings, run.output, run.name)
    if gates:  # before the training
        listed = settings.data.model_copy(update={"groups": None, "group_regex": None})  # the kind of label suffices
        parse_gates(gates, list_images(listed, settings.evaluate.ordinal).target.kind)
    if not divided:
        return run.new(settings, config is None)
    of = f"{settings.data.folds}-folds" if settings.data.sites is None else file_name(settings.data.sites)
    name = run.name or f"{default_name(data_folder(settings.data.root), settings).rpartition('_')[0]}_{of}"
    with opened(**where) as places:
        study = CrossValidation.new(settings, Path(run.output) / name, {**arguments, **flags}, places, run.clock)
        test = train_folds(study)
    if study.time is not None:
        say(f"time: {duration_text(study.time.used)} of {duration_text(study.time.limit)} used for all folds")
    return TrainResult(study.folder.path, None, None, test)


def _resume(
    run: OneRun, resume: Path, arguments: dict[str, Any], flags: dict[str, Any], where: dict[str, Any]
) -> TrainResult:
    overrides, (data, config, sets) = read_overrides(flags, FLAGS, "train"), arguments.values()
    if run.ranks.first(RunFolder(resume).folds.is_file):
        _refuse_ranks(run.ranks, "folds", "one fold at a time: --folds N --fold I")
        if (run.name, config, data) != (None,) * 3 or sets or overrides or elsewhere(run.output, resume):
            raise excluded("resume of folds")
        with opened(**where) as places:
            test = train_folds(CrossValidation(RunFolder(resume), None, places))
        return TrainResult(resume, None, None, test)
    _refuse_several(where)
    changes = [*overrides, *sets] + ["config"] * (config is not None)
    folder = run.ranks.first(lambda: folder_to_resume(resume, run.name, run.output, changes, FLAGS, RESUMABLE))
    return run.resume(folder, data, overrides)


def _refuse_several(where: dict[str, Any]) -> None:
    parallel, on = where["parallel"], where["on"] not in (None, "local")
    given = {"--on": on, f"--parallel {parallel}": parallel not in (None, 1), "--strict": where["strict"]}
    if flags := [flag for flag, value in given.items() if value]:
        raise excluded("parallel", given=flags[0])


def _refuse_ranks(ranks: Ranks, what: str, fix: str) -> None:
    if ranks.wide:
        raise UsageError(f"{what}: not with {ranks.world} processes", fix)
