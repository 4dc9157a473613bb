"""The steps of `vitmed auto`, and what its auto.json holds."""

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vitmed
from vitmed.core.config import FLAGS
from vitmed.core.downloads import unconnected
from vitmed.core.errors import CheckpointError, DataError, TimeTooShortError, UsageError, excluded
from vitmed.core.files import json_of, write_json
from vitmed.core.messages import Mute, listening, say, show
from vitmed.core.places import check_run_place
from vitmed.core.run_folder import NUMBERS, RunFolder, find_path, store_path
from vitmed.core.text import counted, duration_text, quoted
from vitmed.core.upgrade import READER
from vitmed.data.splits import make_splits
from vitmed.decisions.evaluation_folder import read_metrics
from vitmed.decisions.targets import TARGETS
from vitmed.imaging.augmentation import VIEWS
from vitmed.metrics.estimates import value_text
from vitmed.models.weights.choice import choose_weights
from vitmed.report.data_check_page import PAGE
from vitmed.report.results import Results
from vitmed.studies.cluster import Places
from vitmed.studies.folds import CrossValidation
from vitmed.studies.one_run import default_name
from vitmed.studies.rank_weights import ALL_LOCAL, OF_RANKING
from vitmed.studies.study import check_same_data, settings_of
from vitmed.training.plan.make_plan import config_of_target, make_plan, time_needed
from vitmed.training.plan.rules import fields_set
from vitmed.training.plan.time import Clock, forward_share
from vitmed.training.trackers import check_trackers

USUAL, LEAST = 3600.0, 300.0  # s
FOLDS, FEW_FOLDS, LITTLE = 5, 3, 900.0  # below so many seconds, fewer folds
HELD_OUT, AT_END = 0.2, 5.0  # of the patients, and s for the end, beside the test of the ensemble
OF_FOLDS = "tests of the folds"
FILES = ("data", "config", "groups", "labels", "weights")  # arguments that may name one


@dataclass(frozen=True)
class AutoRun:
    """The folder of an `auto`, what it found as auto.json holds it, and the ensemble that commands take."""

    folder: Path
    content: dict[str, Any]
    model: Path


def stored(key: str, value: Any, folder: RunFolder) -> Any:
    """Write an argument as auto.json holds it: a file without the names of private folders."""
    return store_path(value, folder.path) if key in FILES and Path(value).exists() else value


def find_stored(text: str, folder: RunFolder) -> str | Path:
    """Find the file of an argument that `stored` wrote, or return its value where it is none."""
    place = find_path(text, folder.path)
    return place if place.exists() else text


# fields of the data that `vitmed check` takes too
ACROSS_SPLITS = ("patients_across_splits", "copies_across_splits", "near_copies_across_splits")
UNREADABLE = ("empty_file", "truncated", "unreadable", "multi_frame")
CHECKED = ("card", "group_regex", "groups", "labels", "split_column", "target", "uncertain", "unit", "frame")


def begin_auto(arguments: dict[str, Any], output: str | Path, name: str | None) -> RunFolder:
    """Make a new folder with what auto was asked for. Raises UsageError, or DataError for data with errors."""
    settings = settings_of(arguments, "auto")
    if settings.data.divided or settings.train.freeze or not settings.train.test:
        raise excluded("choices of auto")
    check_trackers(settings.train.track)
    limit = settings.train.time or USUAL
    if limit < LEAST:
        raise UsageError(f"--time {duration_text(limit)}: too short for folds", f"--time {duration_text(LEAST)}")
    check_run_place(settings, output, name)
    splits, data = make_splits(settings.data, ordinal=settings.evaluate.ordinal), settings.data
    config_of_target(settings, splits)  # raises now, not in the training
    folder = RunFolder.create(output, name or f"{default_name(splits.root, settings).rpartition('_')[0]}_auto")
    say(f"{duration_text(limit)} in {folder.path}")
    of_data = {name: getattr(data, name) for name in CHECKED}
    of_data |= {"finding": data.findings, "ordinal": settings.evaluate.ordinal}
    checked = vitmed.check(splits.root, **of_data, output=folder.path / "data-check")
    passed = {*ACROSS_SPLITS} if data.resplit else set()  # what the training mends
    passed |= {*UNREADABLE} if data.on_bad_file == "skip" else set()
    found = [problem for problem in checked.problems if problem.severity == "error" and problem.code not in passed]
    errors = counted(len(found), "error")
    if found and not data.allow_leakage:
        text = f"{data.root}: the data check found {errors}; the first: {found[0].text}"
        fix = "--on-bad-file skip leaves such files out" if found[0].code in UNREADABLE else "--allow-leakage goes on"
        raise DataError(text, f"{fix}; details: {folder.path / 'data-check' / PAGE}")
    own_test = splits.made["test"].startswith(("folder", "table"))
    share = data.test_fraction if "test_fraction" in fields_set(settings, "data") else HELD_OUT
    divided = {"folds": FOLDS if limit >= LITTLE else FEW_FOLDS, "hold_out": None if own_test else share}
    parts = splits.samples
    held_out = len(parts["test"]) if own_test else round(share * sum(map(len, parts.values())))
    given = {key: stored(key, value, folder) for key, value in arguments.items() if value is not None and key != "time"}
    state = {"limit": limit, "used": 0.0, "checked": f"{errors}, {counted(checked.count('warning'), 'warning')}"}
    state |= {"identity": splits.digest, "divided": divided, "held_out": held_out, "arguments": given}
    if splits.target.kind == "findings" and not own_test:  # folds leave out others, and so hold out other images
        state |= {"one": False, "testing": 0.0}
    write_json(folder.auto, state)
    return folder


class Auto:
    """An auto that has begun; `state` is the content of its auto.json, `clock` counts earlier commands too. Raises
    CheckpointError where there is none, or a damaged one."""

    def __init__(self, folder: RunFolder, places: Places, clock: Clock) -> None:
        self.folder, self.places, self.clock = folder, places, clock
        if folder.path.is_dir() and not folder.auto.exists():
            problem = f"{folder.path}: no auto has begun here, or it ended in the data check"
            raise CheckpointError(problem, "start it again, without --resume")
        try:
            self.state = state = dict(json_of(folder.auto.read_text(encoding="utf-8")))
            clock.began -= float(state["used"])
            self.limit, self.divided, self.held_out = float(state["limit"]), state["divided"], state["held_out"]
        except (OSError, ValueError, KeyError, TypeError):
            fix = f"vitmed {READER} continues what it began"
            raise CheckpointError(f"{folder.auto}: cannot be read", fix) from None

    def save(self, **found: Any) -> float:
        """Write auto.json, so that even a killed auto resumes with the time that was left after its last step. Returns
        the seconds used."""
        self.state |= {**found, "used": self.clock.seconds()}
        write_json(self.folder.auto, self.state)
        return float(self.state["used"])

    def finish(self) -> AutoRun:
        """Do everything that is not done yet: rank weights, then train one network, or folds that are joined."""
        folder, state, limit = self.folder, self.state, self.limit
        arguments = {"data": None, "config": None, **state["arguments"]}
        arguments |= {key: find_stored(arguments[key], folder) for key in FILES if arguments.get(key)}
        check_same_data(settings_of(arguments, "auto"), state["identity"], folder)
        if "weights" not in state:
            self.save(**self._ranked(arguments))
        weights = None if state["weights"] is None else find_stored(state["weights"], folder)
        start = {**arguments, "weights": weights or "none"}
        if "one" not in state:
            self.save(**self._compared(start, limit - self.save()))
        seconds, tests = limit - self.save(), dict[str, Path]()
        if state["one"]:
            trained = next((path for path in folder.path.glob("model*") if RunFolder(path).last.is_file()), None)
            if trained is None:
                time, share = duration_text(max(60.0, seconds - AT_END)), self.divided["hold_out"]
                if share is not None:  # the images that folds hold out, so that the ranking has read none of them
                    start |= {"sets": [*start["sets"], f"data.test_fraction={share}"]}
                trained = vitmed.train(**{**start, "time": time, "output": folder.path, "name": "model"}).folder
            elif not (trained / "test" / NUMBERS).is_file():
                vitmed.train(resume=trained)
            model, tests["test of the model"] = trained, trained / "test"
        else:
            place, joined = (RunFolder(folder.path / part) for part in ("folds", "folds/ensemble"))
            begun = place.folds.is_file() and CrossValidation(place).planned
            if place.path.is_dir() and not begun:  # killed before a fold
                shutil.rmtree(place.path)
            there: dict[str, Any] = {"parallel": self.places.runs, "on": self.places.executor or "local"}
            if not place.folds.is_file():
                time = duration_text(max(60.0 * self.divided["folds"], seconds - AT_END - state["testing"]))
                of_folds = {**start, **self.divided, "output": folder.path, "name": "folds", "time": time}
                vitmed.cross_validate(**of_folds, **there)
            elif not (joined.path / "test" / NUMBERS).is_file():
                vitmed.cross_validate(resume=place.path, **there)
            model, tests[OF_FOLDS] = joined.path, place.path / "test"
            tests["test of the ensemble"] = joined.path / "test"
        for key, test in tests.items():
            results = Results.read(read_metrics(test / NUMBERS))
            metric = TARGETS[results.target.kind].headline[0]
            state[key.replace(" ", "_")] = {"metric": metric, "images": results.n, **results.overall[metric].to_dict()}
            some = " (some of which ranked the weights)" * ("ranking" in state and key == OF_FOLDS)
            say(f"{key}, {counted(results.n, 'image')}{some}: {metric} {value_text(results.overall[metric])}; {test}")
        checked = folder.path / "data-check" / PAGE
        say(f"{duration_text(self.save())} of {duration_text(limit)}; the data check: {checked}")
        say(f"to predict images: vitmed predict IMAGE --checkpoint {quoted(model)}")
        hidden = "arguments", "identity", "held_out", "weights", "testing"
        return AutoRun(folder.path, {key: value for key, value in state.items() if key not in hidden}, model)

    def _ranked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The weights that are given, or the best on this machine and the ranking; None where there are none."""
        if (given := settings_of(arguments, "auto").model.weights) != "auto":
            return {"weights": None if given is None else stored("weights", given, self.folder)}
        used = {k: v for k, v in arguments.items() if FLAGS.get(k, "data.").startswith(("data.", *OF_RANKING))}
        of_probe = {**used, **self.divided, "fold": 1, "weights": ALL_LOCAL, "on": self.places.executor or "local"}
        try:
            ranking: Any = vitmed.probe(of_probe.pop("data"), output=self.folder.path, name="weights", **of_probe)
            return {"weights": stored("weights", ranking.weights, self.folder), "ranking": ranking.rows}
        except (UsageError, CheckpointError) as error:
            lacks = error.line
        with unconnected(bool(arguments.get("offline"))):
            choice = choose_weights(settings_of(arguments, "auto").model, False)
        if choice is None or choice.value is None:
            say(f"no weights to begin with: {lacks}")
            return {"weights": None}
        return {"weights": stored("weights", choice.value, self.folder)}

    def _compared(self, start: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Whether `one` training is the better use of the time, because a fold's part of it would give a worse model;
        and how long the test of an ensemble takes, s."""
        folds = self.divided["folds"]
        if self.places.executor is not None:  # a cluster, on which nothing is timed here, and one network would not be
            return {"one": False, "testing": 0.0}
        each = max(1.0, seconds / -(-folds // self.places.runs))
        settings = settings_of({**start, **self.divided, "time": duration_text(each)}, "auto")
        try:
            with listening(Mute()), unconnected(bool(start.get("offline"))):  # the training says it again
                plan = make_plan(settings, start["config"] is None)
                short = time_needed(plan)[2]
        except TimeTooShortError as error:
            short = error.problem
        if short:
            time, of_each = duration_text(self.limit), duration_text(each)
            show(f"one training is the better use of {time}: of {folds} folds each would get {of_each}; {short}")
            return {"one": True}
        image = plan.forecaster.step(plan.config) * forward_share(plan.config, plan.device)
        testing = folds * self.held_out * image * len(VIEWS[plan.config.augment.views])
        return {"one": False, "testing": testing if math.isfinite(testing) else 0.0}
