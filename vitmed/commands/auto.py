"""`vitmed auto`: the best model that the data, the machine and a time allow, and one page about how it was found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.commands.check import check
from vitmed.commands.cross_validate import cross_validate
from vitmed.commands.executors import Job, local
from vitmed.commands.probe import probe
from vitmed.commands.rank_weights import RankingResult, local_weights
from vitmed.commands.train import check_place, default_name
from vitmed.core.config import Config
from vitmed.core.durations import duration_text
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError, VitmedError
from vitmed.core.files import read_json_lines, write_json, write_text
from vitmed.core.flags import FLAGS, read_overrides
from vitmed.core.inputs import data_folder
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import NUMBERS, PREDICTIONS, RunFolder
from vitmed.core.run_lock import run_lock
from vitmed.core.stored_paths import find_path, store_path
from vitmed.core.text import counted, listed
from vitmed.core.ui import Silent, Ui
from vitmed.data.samples import Sample, labelled_by
from vitmed.data.splits import make_splits
from vitmed.decisions.evaluation_folder import read_evaluation, read_metrics
from vitmed.decisions.folds import spread_of
from vitmed.decisions.targets import TARGETS
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.bootstrap import Bootstrap, bootstrap_weights
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.tuning_study import drawn_metric
from vitmed.report.auto_page import PAGE, AutoResult, Tried, write_auto
from vitmed.report.data_check_page import PAGE as CHECK_PAGE
from vitmed.report.headline import with_interval
from vitmed.report.results import Results
from vitmed.training.ensemble import load_ensemble
from vitmed.training.open_model import open_network

USUAL, LEAST = 3600.0, 300.0  # s
FOLDS, FEW_FOLDS, LITTLE = 5, 3, 900.0  # below so many seconds, fewer folds
HELD_OUT = 0.2
TO_CHOOSE = 0.25  # of the time, for the ways that are compared
SHORTEST = 45.0  # s of a way
AT_END = 40.0  # s, for the report
QUICK = ("evaluate.report=false", "evaluate.map_images=0")
RESAMPLES = 500
Ways = dict[str, tuple[str, dict[str, Any]]]  # name -> what it is, and its arguments of `train`


@dataclass(frozen=True)
class AutoRun:
    """The folder of an `auto`, what it found, and the ensemble that commands take."""

    folder: Path
    result: AutoResult
    model: Path


def auto(
    data: str | Path | None = None,
    *,
    config: str | Path | None = None,
    sets: Sequence[str] = (),
    output: str | Path = "runs",
    name: str | None = None,
    resume: str | Path | None = None,
    offline: bool = False,
    ui: Ui | None = None,
    **flags: Any,
) -> AutoRun:
    """Check the data, compare ways to train on validation, cross-validate the best, and join and test its folds.

    The ways: from random weights; from the best weights on this machine, ranked as frozen features. A fifth of the
    patients, or the test of the folder, is held out of everything and read once, by the ensemble.

    Args:
        data, config, sets, output, name, offline, flags: as in `train`; `time` is of the whole, default an hour.
        resume: the folder of one that was interrupted, with the time that was left.

    Raises:
        DataError: data that training refuses. VitmedError: as `train`.
    """
    ui = ui or Ui()
    began = time.monotonic()
    if resume is not None:
        if (data, config, name) != (None,) * 3 or sets or flags:
            raise UsageError("--resume uses the settings of the run", "give --resume alone")
        folder = RunFolder(resume)
    else:
        folder = _begin(data, config, sets, output, name, offline, flags, ui)
    state = _read(folder)

    def spent() -> float:
        return float(state["used"]) + time.monotonic() - began

    def save() -> None:  # with the time, so that a killed one goes on with what was left after its last step
        write_json(folder.auto, {**state, "used": spent()})

    try:
        with run_lock(folder, ui):
            return _go_on(folder, state, spent, save, ui)
    except (Interrupted, KeyboardInterrupt) as error:
        problem = error.problem if isinstance(error, Interrupted) else "stopped at once"
        raise Interrupted(problem, f"vitmed auto --resume {folder.path}") from None
    finally:
        if folder.auto.is_file():
            save()


def _begin(
    data: str | Path | None, config: str | Path | None, sets: Sequence[str], output: str | Path, name: str | None,
    offline: bool, flags: Mapping[str, Any], ui: Ui,
) -> RunFolder:  # fmt: skip
    """A new folder with what was asked for. Arguments are those of `auto`."""
    settings = load_config(config, {"data.root": data, **read_overrides(dict(flags), FLAGS, "auto")}, sets)
    if settings.data.divided or settings.train.freeze or not settings.train.test:
        raise UsageError("--folds, --sites, --freeze and --no-test: auto decides these", "leave them out")
    limit = settings.train.time or USUAL
    if limit < LEAST:
        raise UsageError(f"--time {duration_text(limit)}: too short for folds", f"--time {duration_text(LEAST)}")
    check_place(settings, output, name)
    splits = make_splits(settings.data, ordinal=settings.evaluate.ordinal)
    folder = RunFolder.create(output, name or f"{default_name(data_folder(settings.data.root), settings)}_auto")
    own = {key: str(value) if isinstance(value, Path) else value for key, value in flags.items() if key != "time"}
    named = [
        key for key in ("groups", "labels", "weights") if isinstance(own.get(key), str) and Path(own[key]).exists()
    ]
    files = {key: store_path(own.pop(key), folder.path) for key in named}
    arguments = {
        "data": store_path(data_folder(settings.data.root), folder.path), "sets": list(sets), "flags": own,
        "files": files, "config": None if config is None else _config_name(config, folder.path), "offline": offline,
    }  # fmt: skip
    content = {
        "time": limit, "used": 0.0, "identity": splits.digest, "images": len(splits.samples["train"]),
        "own_test": splits.made["test"].startswith(("folder", "table")), "arguments": arguments,
    }  # fmt: skip
    write_json(folder.auto, content)
    ui.say(f"{duration_text(limit)} in {folder.path}")
    return folder


def _config_name(config: str | Path, folder: Path) -> str:
    return store_path(config, folder) if Path(config).is_file() else str(config)


def _read(folder: RunFolder) -> dict[str, Any]:
    """The content of auto.json. Raises CheckpointError for a damaged one."""
    try:
        found = dict(json.loads(folder.auto.read_text(encoding="utf-8")))
        _ = found["arguments"]["flags"], float(found["time"]), float(found["used"])
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{folder.auto}: cannot be read", "name the folder of a vitmed auto") from None
    return found


def _arguments(folder: RunFolder, state: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `train` that were given, with the places of today."""
    given = state["arguments"]
    config = given["config"]
    if config is not None and find_path(config, folder.path).is_file():
        config = find_path(config, folder.path)
    files = {key: find_path(place, folder.path) for key, place in given["files"].items()}
    data = data_folder(find_path(given["data"], folder.path))
    return (
        {"data": data, "config": config, "sets": tuple(given["sets"]), "offline": given["offline"]}
        | given["flags"]
        | files
    )


def _go_on(
    folder: RunFolder, state: dict[str, Any], spent: Callable[[], float], save: Callable[[], None], ui: Ui
) -> AutoRun:
    """Everything that is not done yet.

    Args:
        spent: returns the seconds used; save: writes auto.json.
    """
    arguments = _arguments(folder, state)
    settings = load_config(
        arguments["config"],
        {"data.root": arguments["data"], **read_overrides(_flags(arguments), FLAGS, "auto")}, arguments["sets"],
    )  # fmt: skip
    if make_splits(settings.data, ordinal=settings.evaluate.ordinal).digest != state["identity"]:
        problem = f"{settings.data.root}: other images, labels or splits than {folder.path} began with"
        raise DataError(problem, "restore them, or start anew")
    limit = float(state["time"])
    checked = _checked(folder, state, settings, ui)
    save()
    ways, ranking = _ways(folder, state, arguments, limit, ui)
    save()
    folds = FOLDS if limit >= LITTLE else FEW_FOLDS
    divided: dict[str, Any] = {"folds": folds} | ({} if state["own_test"] else {"hold_out": HELD_OUT})
    jobs = _jobs(ways, arguments, divided, max(SHORTEST, limit * TO_CHOOSE / len(ways)))
    if len(jobs) > 1:
        ui.say(f"comparing {counted(len(jobs), 'way')} to train: {listed([job.name for job in jobs])}")
        _train(folder, jobs, ui)
        save()
    tried, winner, why = _compared(folder, jobs, ways)
    ui.say(why)
    place = RunFolder(folder.path / "folds")
    if place.folds.is_file():
        if not RunFolder(place.joined).ensemble.is_file():
            cross_validate(resume=place.path, ui=ui)
    else:
        left = max(60.0 * folds, limit - spent() - AT_END)
        own = {**arguments, **ways[winner][1], **divided, "time": duration_text(left)}
        cross_validate(own.pop("data"), output=folder.path, name="folds", ui=ui, **own)
    found = _result(place, data_folder(arguments["data"]), ui)
    result = AutoResult(
        data=data_folder(arguments["data"]).resolve().name, checked=checked, ranking=ranking, tried=tried,
        winner=winner, why=why, folds=folds, used=spent(), limit=limit, **found,
    )  # fmt: skip
    write_auto(folder.path, result, f"{duration_text(result.used)} of {duration_text(limit)}")
    if result.held_out is not None:
        ui.say(f"{result.title} of the ensemble on held-out images: {with_interval(result.held_out)}")
    if result.gain is not None:
        ui.say(f"less the mean of its members on the same images: {with_interval(result.gain, '+')}")
    ui.say(f"{folder.path / PAGE}: what was tried; vitmed predict IMAGE --checkpoint {place.path}")
    return AutoRun(folder.path, result, place.joined)


def _flags(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key not in ("data", "config", "sets", "offline")}


def _checked(folder: RunFolder, state: dict[str, Any], settings: Config, ui: Ui) -> str:
    """What the data check found, in a line. Raises DataError for data that training refuses."""
    if "checked" not in state:
        data = settings.data
        assert data.root is not None
        found = check(
            data.root, group_regex=data.group_regex, groups=data.groups, labels=data.labels, target=data.target,
            finding=data.findings, uncertain=data.uncertain, ordinal=settings.evaluate.ordinal, frame=data.frame,
            output=folder.path / "data-check", ui=ui,
        )  # fmt: skip
        errors, warnings = found.count("error"), found.count("warning")
        state["checked"] = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}; data-check/{CHECK_PAGE}"
        if errors and not data.allow_leakage:
            raise DataError(f"{data.root}: the data check found {counted(errors, 'error')}", "see its report above")
    return str(state["checked"])


def _ways(
    folder: RunFolder, state: dict[str, Any], arguments: Mapping[str, Any], limit: float, ui: Ui
) -> tuple[Ways, list[str]]:
    """Name -> what it is, and its arguments of `train`; and the ranking of local weights, in words."""
    if "weights" in arguments:
        return {"weights": (f"fine-tuned from {Path(arguments['weights']).name}", {})}, []
    if "ranked" not in state:
        state["ranked"] = _ranked(folder, arguments, ui)
    ways: Ways = {"scratch": ("the plan, from random weights", {})}
    if state["ranked"]:
        best = state["ranked"][0]
        ways["weights"] = (f"fine-tuned from {Path(best['name']).name}", {"weights": best["name"]})
    return ways, [one["text"] for one in state["ranked"]]


def _ranked(folder: RunFolder, arguments: Mapping[str, Any], ui: Ui) -> list[dict[str, str]]:
    """The weights on this machine, the best as frozen features first."""
    try:
        names = local_weights()
    except UsageError:
        ui.say("no weights on this machine (vitmed weights fetch), so every way begins with random ones")
        return []
    if len(names) == 1:
        return [{"name": names[0], "text": f"{Path(names[0]).name}, the only ones"}]
    given = {key: value for key, value in arguments.items() if key != "data"}
    found = probe(arguments["data"], weights=names, output=folder.path, name="weights", ui=ui, **given)
    assert isinstance(found, RankingResult)
    number, rows = found.content.number, [one for one in found.content.ranking if one.rank is not None]
    return [{"name": one.name, "text": f"{Path(one.name).name} {with_interval(one.logistic[number])}"} for one in rows]


def _jobs(
    ways: Ways,
    arguments: Mapping[str, Any],
    divided: Mapping[str, Any],
    seconds: float,
) -> list[Job]:
    """A run on the first fold for each way, without the test."""

    sets = (*arguments["sets"], *QUICK)
    shared = {**divided, "fold": 1, "test": False, "time": duration_text(seconds), "sets": sets}
    return [
        Job(f"way-{name}", f"{name}: {what}", {**arguments, **own, **shared}, "val")
        for name, (what, own) in ways.items()
    ]


def _train(folder: RunFolder, jobs: Sequence[Job], ui: Ui) -> None:
    """Train the ways one after the other; one that fails leaves a file that says why."""
    with local(folder, 1, ui) as executor:
        for job in jobs:
            if _failure(folder, job).is_file():
                continue
            try:
                executor.submit(job).result()
            except Interrupted:
                raise
            except VitmedError as error:
                write_text(_failure(folder, job), f"{error}\n")
                ui.warn(f"{job.title}: {error.line}")


def _failure(folder: RunFolder, job: Job) -> Path:
    return folder.path / f"{job.name}.failed.txt"


def _compared(folder: RunFolder, jobs: Sequence[Job], ways: Ways) -> tuple[list[Tried], str, str]:
    """The ways with their numbers on validation, the name of the best, and why. Raises DataError where all failed."""
    names = list(ways)
    if len(jobs) == 1:
        what = ways[names[0]][0]
        return [Tried(name=names[0], what=what, run="")], names[0], f"{names[0]} is the only way here: {what}."
    runs = {name: job.done(folder) for name, job in zip(names, jobs, strict=True)}
    known = {name: run for name, run in runs.items() if run is not None}
    if not known:
        raise DataError(f"{folder.path}: every way failed", f"see {_failure(folder, jobs[0])}")
    results = {name: Results.read(read_metrics(run.path / "val" / NUMBERS)) for name, run in known.items()}
    kind = TARGETS[next(iter(results.values())).target.kind]
    metric = kind.headline[0]
    sign = 1 if kind.metrics[metric].higher_is_better else -1
    values = {name: one.overall[metric].value for name, one in results.items()}
    best = max(known, key=lambda name: -np.inf if values[name] is None else sign * (values[name] or 0.0))
    predictions = {name: read_evaluation(run.path / "val" / PREDICTIONS).predictions for name, run in known.items()}
    tried = []
    for name in names:
        if name not in known:
            reason = _failure(folder, jobs[names.index(name)]).read_text(encoding="utf-8").splitlines()[0]
            tried.append(Tried(name=name, what=ways[name][0], run="", failure=reason))
            continue
        seconds = sum(record["seconds"] for record in read_json_lines(known[name].metrics))
        against = None
        if name != best:
            against = kind.compare(predictions[name], predictions[best], RESAMPLES).difference[metric]
        number = results[name].overall[metric]
        run = known[name].path.name
        tried.append(Tried(name=name, what=ways[name][0], run=run, number=number, against=against, seconds=seconds))
    title = kind.metrics[metric].title
    why = f"{best} has the best {title} on validation"
    gaps = [one for one in tried if one.against is not None]
    clear = [one.name for one in gaps if one.against and _excludes_0(one.against)]
    unclear = [one.name for one in gaps if one.name not in clear]
    parts = [f"clearly ahead of {listed(clear)}"] if clear else []
    parts += [f"not clearly ahead of {listed(unclear)}, so chance may have chosen"] if unclear else []
    return tried, best, f"{why}{': ' if parts else ''}{'; '.join(parts)}."


def _excludes_0(found: Estimate) -> bool:
    return found.low is not None and found.high is not None and (found.low > 0 or found.high < 0)


def _result(place: RunFolder, root: Path, ui: Ui) -> dict[str, Any]:
    """The numbers of the folds and of their ensemble, as fields of `AutoResult`."""
    pooled = Results.read(read_metrics(place.path / "test" / NUMBERS))
    kind = TARGETS[pooled.target.kind]
    metric = kind.headline[0]
    assert pooled.folds is not None
    found: dict[str, Any] = {
        "title": kind.metrics[metric].title, "pooled": pooled.overall[metric],
        "over_folds": spread_of(pooled.folds.each, metric), "held_out": None, "held_out_images": 0, "gain": None,
    }  # fmt: skip
    joined = load_ensemble(RunFolder(place.joined).ensemble)
    samples = joined.splits.samples["test"]
    if not samples:
        return found
    table = place.joined / "test" / PREDICTIONS
    found["held_out"] = Results.read(read_metrics(table.with_name(NUMBERS))).overall[metric]
    found["held_out_images"] = len(samples)
    members, positive = [], joined.config.data.positive
    for one in joined.members:
        network = open_network(one, one.policy, "auto", "fp32", Silent())
        with ui.bar(f"held-out images, {one.path.parent.name}") as advance:
            outputs = network.outputs(partial(_read_sample, one.preprocessing, root, samples), len(samples), advance)
        own = labelled_by(one.splits.target, one.classes, samples, outputs.logits, positive)
        members.append(own if one.policy is None else one.policy.apply(own))
    together = read_evaluation(table).predictions
    order = {path: row for row, path in enumerate(together.paths)}
    together = together.take(np.array([order[sample.path] for sample in samples]))
    boot = Bootstrap.of(together, RESAMPLES)  # type: ignore[arg-type]
    weights = np.concatenate([np.ones((1, len(samples))), *bootstrap_weights(boot.units.index, boot.resamples, seed=0)])
    drawn = drawn_metric(kind, together, weights, metric)
    drawn = drawn - np.mean([drawn_metric(kind, part, weights, metric) for part in members], axis=0)
    found["gain"] = boot.estimate(float(drawn[0]), drawn[1:])
    return found


def _read_sample(how: Preprocessing, root: Path, samples: Sequence[Sample], index: int) -> np.ndarray:
    """What the network sees of an image."""
    return how.read(root / samples[index].path)
