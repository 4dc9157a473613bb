"""`vitmed auto`: check the data, compare ways to train, cross-validate the best, and test its ensemble once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitmed.commands.check import check
from vitmed.commands.ensemble import ensemble
from vitmed.commands.evaluate import evaluate
from vitmed.commands.probe import OF_RANKING, probe
from vitmed.commands.train import cross_validate
from vitmed.core.config import FLAGS, Config, read_overrides
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError
from vitmed.core.exclusions import excluded
from vitmed.core.files import json_of, write_json
from vitmed.core.load_config import load_config
from vitmed.core.messages import say
from vitmed.core.options import ConfigFile, Data, Offline, Parallel, Resume, RunName, RunsFolder, Sets, Settings
from vitmed.core.places import check_run_place
from vitmed.core.run_folder import NUMBERS, PREDICTIONS, RunFolder, run_lock
from vitmed.core.text import counted, duration_text
from vitmed.core.upgrade import READER
from vitmed.data.splits import make_splits
from vitmed.metrics.estimates import value_text
from vitmed.report.data_check_page import PAGE
from vitmed.studies.auto import FILES, AutoRun, Save, Ways, find_stored, headline_number, stored
from vitmed.studies.one_run import default_name
from vitmed.studies.rank_weights import ALL_LOCAL
from vitmed.studies.study import Job, check_same_data, conduct
from vitmed.training.plan.make_plan import config_of_target

USUAL, LEAST = 3600.0, 300.0  # s
FOLDS, FEW_FOLDS, LITTLE = 5, 3, 900.0  # below so many seconds, fewer folds
TO_CHOOSE, SHORTEST = 0.25, 45.0  # of the time, for the ways that are compared, and s of each at least
HELD_OUT, AT_END = 0.2, 40.0  # of the patients, and s for the reports
PLAIN = ("data", "config", "sets", "offline")  # arguments that are no flags


def auto(
    data: Data = None,
    *,
    config: ConfigFile = None,
    sets: Sets = (),
    output: RunsFolder = "runs",
    name: RunName = None,
    resume: Resume = None,
    parallel: Parallel = 1,
    offline: Offline = False,
    **flags: Settings,
) -> AutoRun:
    """Check the data, compare ways to train on validation, cross-validate the best, and join and test its folds.

    The ways: from random weights, and from the best weights on this machine, ranked as frozen features. A fifth of the
    patients, or the test of the folder, is held out of everything and read once, by the ensemble. The arguments are
    those of `train`; `time` is of the whole, default an hour, and `resume` goes on with the time that was left.

    Raises:
        DataError: data that training refuses. VitmedError: as `train`.
    """
    began = time.monotonic()
    if resume is not None and ((data, config, name) != (None,) * 3 or sets or flags):
        raise excluded("resume of auto")
    sets = [sets] if isinstance(sets, str) else list(sets)
    arguments = {"data": data, "config": config, "sets": sets, "offline": offline, **flags}
    folder = RunFolder(resume) if resume is not None else _begin(arguments, output, name)
    if folder.path.is_dir() and not folder.auto.exists():
        raise CheckpointError(
            f"{folder.path}: no auto has begun here, or it ended in the data check", "start it again, without --resume"
        )
    try:
        state = dict(json_of(folder.auto.read_text(encoding="utf-8")))
        before, _ = float(state["used"]), state["divided"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{folder.auto}: cannot be read", f"vitmed {READER} continues what it began") from None

    def save() -> float:  # so that also a killed one goes on with the time that was left after its last step
        state["used"] = before + time.monotonic() - began
        write_json(folder.auto, state)
        return float(state["used"])

    with run_lock(folder):
        try:
            return _go_on(folder, state, save, parallel)
        except (Interrupted, KeyboardInterrupt) as error:
            raise Interrupted(
                getattr(error, "problem", "stopped at once"), f"vitmed auto --resume {folder.path}"
            ) from None
        finally:
            save()


def _settings(arguments: Mapping[str, Any]) -> Config:
    """Raises UsageError for arguments that `train` refuses."""
    flags = {key: value for key, value in arguments.items() if key not in PLAIN}
    overrides = {"data.root": arguments["data"], **read_overrides(flags, FLAGS, "auto")}
    return load_config(arguments["config"], overrides, arguments["sets"])


def _begin(arguments: dict[str, Any], output: str | Path, name: str | None) -> RunFolder:
    """Make a new folder with what auto was asked for."""
    settings = _settings(arguments)
    if settings.data.divided or settings.train.freeze or not settings.train.test:
        raise excluded("choices of auto")
    limit = settings.train.time or USUAL
    if limit < LEAST:
        raise UsageError(f"--time {duration_text(limit)}: too short for folds", f"--time {duration_text(LEAST)}")
    check_run_place(settings, output, name)
    splits, data = make_splits(settings.data, ordinal=settings.evaluate.ordinal), settings.data
    config_of_target(settings, splits)  # raises now for a setting that does not go with the labels
    folder = RunFolder.create(output, name or f"{default_name(splits.root, settings)}_auto")
    say(f"{duration_text(limit)} in {folder.path}")
    checked = check(
        splits.root,
        group_regex=data.group_regex,
        groups=data.groups,
        labels=data.labels,
        target=data.target,
        finding=data.findings,
        uncertain=data.uncertain,
        ordinal=settings.evaluate.ordinal,
        frame=data.frame,
        output=folder.path / "data-check",
    )
    errors = counted(checked.count("error"), "error")
    if checked.count("error") and not data.allow_leakage:
        text = f"{data.root}: the data check found {errors}; the first: {checked.problems[0].text}"
        raise DataError(text, f"--allow-leakage goes on nevertheless; details: {folder.path / 'data-check' / PAGE}")
    own_test = splits.made["test"].startswith(("folder", "table"))
    divided = {"folds": FOLDS if limit >= LITTLE else FEW_FOLDS, "hold_out": None if own_test else HELD_OUT}
    given = {key: stored(key, value, folder) for key, value in arguments.items() if value is not None and key != "time"}
    state = {"limit": limit, "used": 0.0, "checked": f"{errors}, {counted(checked.count('warning'), 'warning')}"}
    write_json(folder.auto, {**state, "identity": splits.digest, "divided": divided, "arguments": given})
    return folder


def _go_on(folder: RunFolder, state: dict[str, Any], save: Save, parallel: int) -> AutoRun:
    """Do everything that is not done yet."""
    arguments, limit = {"data": None, "config": None, **state["arguments"]}, float(state["limit"])
    arguments |= {key: find_stored(arguments[key], folder) for key in FILES if arguments.get(key)}
    settings = _settings(arguments)
    check_same_data(settings, state["identity"], folder)
    if "weights" not in state:
        state |= _ranked(folder, state, arguments)
        save()
    weights = None if state["weights"] is None else find_stored(state["weights"], folder)
    if "winner" not in state:
        given = [weights] if "weights" in arguments or weights is None else [None, weights]
        seconds = max(SHORTEST, limit * TO_CHOOSE * min(parallel, len(given)) / len(given))
        short = {"fold": 1, "test": False, "time": duration_text(seconds), "report": False, "map_images": 0}
        jobs = {}
        for start in given:
            name = "scratch" if start is None else "weights"
            what = "the plan, from random weights" if start is None else f"fine-tuned from {Path(start).name}"
            of_way = {**arguments, **state["divided"], **short, "weights": start}
            jobs[name] = Job(f"way-{name}", f"{name}: {what}", of_way, "val")
        chosen: dict[str, Any] = {"tried": [], "winner": next(iter(jobs)), "why": "the only way here"}
        if len(jobs) > 1:
            chosen = conduct(Ways(folder, jobs, parallel, save))
        state |= chosen
        save()
    place, joined = (RunFolder(folder.path / part) for part in ("folds", "folds/ensemble"))
    if place.folds.is_file() and not (place.path / "test" / PREDICTIONS).is_file():
        cross_validate(resume=place.path, parallel=parallel)
    elif not place.folds.is_file():
        left = duration_text(max(60.0 * state["divided"]["folds"], limit - save() - AT_END))
        best = weights if state["winner"] == "weights" else None
        of_folds = {**arguments, **state["divided"], "weights": best, "time": left}
        cross_validate(of_folds.pop("data"), output=folder.path, name="folds", parallel=parallel, **of_folds)
    if not joined.ensemble.is_file():
        ensemble([place.path])
    if not (joined.path / "test" / NUMBERS).is_file():
        evaluate(joined.path)
    for key, test in (("tests of the folds", place.path / "test"), ("test of the ensemble", joined.path / "test")):
        metric, number, images = headline_number(test)
        state[key.replace(" ", "_")] = {"metric": metric, "images": images, **number.to_dict()}
        say(f"{key}, {counted(images, 'image')}: {metric} {value_text(number)}; {test}")
    say(f"{duration_text(save())} of {duration_text(limit)}; the data check: {folder.path / 'data-check' / PAGE}")
    say(f"to predict images: vitmed predict IMAGE --checkpoint {place.path}")
    content = {key: value for key, value in state.items() if key not in ("arguments", "identity", "weights")}
    return AutoRun(folder.path, content, joined.path)


def _ranked(folder: RunFolder, state: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The weights that are given, or the best on this machine and the ranking; None where there are none."""
    if "weights" in arguments:
        return {"weights": state["arguments"]["weights"]}
    used = {k: v for k, v in arguments.items() if FLAGS.get(k, "data.").startswith(("data.", *OF_RANKING))}
    of_probe = {**used, **state["divided"], "fold": 1, "weights": ALL_LOCAL}
    try:
        ranking: Any = probe(of_probe.pop("data"), output=folder.path, name="weights", **of_probe)
        return {"weights": stored("weights", ranking.weights, folder), "ranking": ranking.rows}
    except (UsageError, CheckpointError) as error:
        say(f"no weights to begin with: {error.line}")
        return {"weights": None}
