"""The rows of `vitmed runs`: what is known of a run, in which order runs are listed, and the text of each cell."""

import contextlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ConfigDict

from vitmed.core import upgrade
from vitmed.core.base_models import CLASSES, Frozen, Target
from vitmed.core.config import Config, PretrainConfig
from vitmed.core.errors import DataError, VitmedError
from vitmed.core.files import read_json_lines
from vitmed.core.load_config import build_config, read_config
from vitmed.core.run_folder import HOLDER, NUMBERS, RunFolder, is_running
from vitmed.core.text import counted, duration_text, first_line
from vitmed.decisions.targets import ALL_METRICS, TARGETS
from vitmed.metrics.estimates import Estimate, value_text
from vitmed.models.sizes import model_label

DEPTH = 3  # folders below the one that is listed: study/cross-validation/fold-1
KILLED = "its process was killed, or the machine stopped"

RunKind = Literal["training", "pretraining", "cross-validation", "ensemble", "no network", "ranking", "not known"]
State = Literal["finished", "running", "stopped", "interrupted", "not evaluated", "incomplete", "damaged"]
STATES = get_args(State)


class RunMetric(Frozen):
    """The number of a run: on its test, or, before there is one, of its best epoch on validation."""

    name: str  # such as auroc, or "loss" of pretraining
    title: str
    estimate: Estimate
    unit: str = ""  # of a predicted number, such as years
    of: Literal["test", "validation"]

    @property
    def text(self) -> str:
        """`AUROC 0.912 (0.881 to 0.934)`, `AUROC 0.850, validation`."""
        unit, of = f" {self.unit}" if self.unit else "", "" if self.of == "test" else ", validation"
        return f"{self.title} {value_text(self.estimate)}{unit}{of}"

    @property
    def order(self) -> tuple[bool, str, float]:
        """A sort key: numbers of a test first; of the same metric the better run first."""
        value, metric = self.estimate.value, ALL_METRICS.get(self.name)
        sign = -1 if metric is not None and metric.higher_is_better else 1
        return self.of != "test", self.title, float("inf") if value is None else sign * value


class ListedRun(Frozen):
    """A run, as far as its files can be read."""

    run: str  # its path in the folder that is listed
    parent: str | None  # the path of the run that it is a part of; None for a run on its own
    kind: RunKind
    state: State
    data: str = ""
    model: str = ""
    metric: RunMetric | None = None
    done: int = 0  # epochs, or the folds of a cross-validation
    of: int | None = None  # how many there are to be
    seconds: float | None = None  # spent in the epochs
    started: str | None = None  # ISO date and time, UTC
    problem: str = ""  # why the run is not finished, or which file cannot be read

    @property
    def progress(self) -> str:
        """`12/20`, or `2/5 folds`; "" where there is nothing to count."""
        if not (self.done or self.of):
            return ""
        return f"{self.done}/{self.of or '?'}" + " folds" * (self.kind == "cross-validation")


def natural(name: str) -> tuple[str | int, ...]:
    """Return a key that sorts fold-2 before fold-10."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name))


COLUMNS: dict[str, Callable[[ListedRun], str]] = {
    "run": lambda run: run.run if run.parent is None else run.run.removeprefix(f"{run.parent}/"),
    "kind": lambda run: run.kind,
    "data": lambda run: run.data,
    "model": lambda run: run.model,
    "metric": lambda run: run.metric.text if run.metric else "",
    "epochs": lambda run: run.progress,
    "time in epochs": lambda run: "" if run.seconds is None else duration_text(run.seconds),
    "state": lambda run: run.state,
    "started": lambda run: (run.started or "")[:16].replace("T", " "),
}
ORDERS: dict[str, Callable[[ListedRun], Any]] = {  # --sort -> a key, None where it is not known
    "started": lambda run: run.started and -datetime.fromisoformat(run.started).timestamp(),
    "metric": lambda run: run.metric and run.metric.order,
    "run": lambda run: natural(run.run),
}


class Head(Frozen):
    """The numbers of an evaluation and what it evaluated: a part of metrics.json. It is read in a tenth of the time of
    `Results`, and even if a later version changed another part."""

    model_config = ConfigDict(extra="ignore")

    overall: dict[str, Estimate]
    target: Target = CLASSES
    weights_hash: str | None = None
    flow: dict[str, Any] | None = None


def read_run(run: RunFolder, name: str, parent: str | None) -> ListedRun:
    """Read the row of a run: its path in the folder that is listed, and that of the run that it is a part of. No file
    of a run, however damaged, makes it raise."""
    row: dict[str, Any] = {"kind": "not known"}
    try:
        if run.folds.is_file():  # `list_runs` adds what its folds say
            row["kind"] = "cross-validation"
            with _reading(run, run.folds):
                divided = json.loads(run.folds.read_text(encoding="utf-8"))
                row["of"] = int(divided["folds"]) * int(divided.get("repeats", 1))
            row["metric"] = _evaluated(run, "test")
            folds = dict[str, bool]()  # whether it is done, by the name without the -2 of a second start
            for fold in run.path.glob("*fold-*"):
                name_of_fold = re.sub(r"(fold-\d+)-\d+$", r"\1", fold.name)
                folds[name_of_fold] = folds.get(name_of_fold, False) or RunFolder(fold).best.is_file()
            done = bool(folds) and all(folds.values())  # then `finish` joins them
            joined = RunFolder(run.joined).ensemble.is_file() or not done
            row["state"] = "finished" if row["metric"] is not None and joined else "interrupted"
        elif run.ensemble.is_file():
            row["kind"] = "ensemble"
            with _reading(run, run.ensemble):
                content = json.loads(run.ensemble.read_text(encoding="utf-8"))
                members, root = content["members"], content["data"]["root"]
                row |= {"model": counted(len(members), "model"), "data": _data_name(root, run)}
            # until it is tested, the number of the images on which its policy was chosen
            row |= {"state": "finished", "metric": _evaluated(run, "test", "val")}
        else:
            _read_training(run, row)
    except ValueError as error:
        row |= {"state": "damaged", "problem": str(error)}
    if is_running(run):
        row |= {"state": "running", "problem": ""}
    elif row["state"] in ("interrupted", "not evaluated", "incomplete"):
        trial = dict[str, Any]()
        if name_of_trial := re.match(r"trial-\d{4,}", run.path.name):  # of which `vitmed tune` notes how it ended
            with contextlib.suppress(OSError, ValueError, TypeError):
                trial |= json.loads(run.path.with_name(f"{name_of_trial[0]}.json").read_text(encoding="utf-8"))
        if trial.get("state") == "stopped":
            row |= {"state": "stopped", "problem": str(trial.get("reason") or "")}
        elif (run.path / HOLDER).is_file():  # the last process that wrote there left its name
            row["problem"] = KILLED
    with contextlib.suppress(ValueError), _reading(run, run.environment):
        started = json.loads(run.environment.read_text(encoding="utf-8"))["started"]
        row["started"] = datetime.fromisoformat(started).isoformat()
    return ListedRun(run=name, parent=parent, **row)


@contextlib.contextmanager
def _reading(run: RunFolder, file: Path) -> Iterator[None]:
    """Turn whatever is wrong with a file into a ValueError that names it, without the place of the run."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, VitmedError) as error:
        why = error.problem if isinstance(error, VitmedError) else ""
        why = why or (error.strerror or "") if isinstance(error, OSError) else first_line(why or error)
        why = why.replace(f"{run.path}{os.sep}", "").removeprefix(f"{file.name}: ")
        raise ValueError(f"{file.relative_to(run.path).as_posix()}: cannot be read ({why})") from None


def _read_training(run: RunFolder, row: dict[str, Any]) -> None:
    """A run with a configuration: of training, of pretraining, of a baseline, or of a ranking of weights."""
    with _reading(run, run.config):
        config = config_of(run)
        row |= {"data": _data_name(config.data.root, run), "model": model_label(config.model)}
    if run.ranking.is_file():
        row |= {"kind": "ranking", "state": "finished"}
        return
    of_colours = run.splits.is_file() and not run.environment.is_file()  # `vitmed probe` of 0.2.0 wrote none
    if of_colours or (isinstance(config, Config) and config.train.freeze):
        row |= {"kind": "no network", "metric": _evaluated(run, "test")} | ({"model": ""} if of_colours else {})
        row["state"] = "incomplete" if row["metric"] is None else "finished"
        return
    if run.best.is_file() and not (run.metrics.is_file() or run.last.is_file()):  # a soup of 0.2.0
        row |= {"kind": "ensemble", "state": "finished", "metric": _evaluated(run, "test", "val")}
        return
    row |= {"kind": "training" if isinstance(config, Config) else "pretraining", "of": config.train.epochs}
    with _reading(run, run.metrics):
        records = read_json_lines(run.metrics)
        monitor = config.train.monitor if isinstance(config, Config) else "loss"
        kept = max((i for i, record in enumerate(records) if record.get("kept")), default=len(records) - 1)
        if records:
            title = "loss" if monitor == "loss" else ALL_METRICS[monitor].title
            value = Estimate(value=records[kept].get(f"val_{monitor}"), low=None, high=None)
            metric = RunMetric(name=monitor, title=title, estimate=value, of="validation")
            row |= {"done": len(records), "metric": metric}
            row["seconds"] = sum(float(record["seconds"]) for record in records)
        train, end = config.train, config.train.epochs
        if isinstance(config, Config) and config.train.choose != "last" and config.train.patience is not None:
            end = min(end, kept + 1 + config.train.patience)
        # As `finished` of training.early_stopping; that the time is over, the learning rate shows, which has come down.
        over = train.time is not None and bool(records) and records[-1]["lr"] - train.min_lr < 0.01 * train.lr
        ended = bool(records) and bool(records[-1]["epoch"] >= end or over)
    resumable: State = "interrupted" if run.last.is_file() else "incomplete"
    row["state"] = resumable
    if isinstance(config, PretrainConfig):
        row["state"] = "finished" if ended and run.encoder.is_file() else resumable
    elif ended:
        evaluated = _evaluated(run, "test" if config.train.test else "val")
        row |= {"state": "not evaluated"} if evaluated is None else {"state": "finished", "metric": evaluated}


def config_of(run: RunFolder) -> Config | PretrainConfig:
    tree = read_config(run.config)
    if not {"evaluate", "mae"} & tree.keys():
        raise DataError(f"{run.config}: has neither evaluate nor mae, so it is not whole", "restore it")
    return build_config(tree, Config) if "evaluate" in tree else build_config(tree, PretrainConfig)


def _data_name(root: str | None, run: RunFolder) -> str:
    return "" if root is None else Path(os.path.normpath(run.path.absolute() / root)).name


def _evaluated(run: RunFolder, *splits: str) -> RunMetric | None:
    """The first number, on the run's own images, of the first of these splits that was evaluated. Of several, the
    newest with the weights of the newest validation counts: of best.pt, while others may be of single epochs."""
    for split in splits:
        heads = _heads(run, split)
        if len(heads) > 1:
            heads = [head for head in heads if head.weights_hash == best_hash(run)] or heads
        if heads:
            target, overall = heads[-1].target, heads[-1].overall
            name = TARGETS[target.kind].headline[0]
            metric = TARGETS[target.kind].metrics[name]
            of: Any = "test" if split == "test" else "validation"
            unit = target.unit if metric.in_unit else ""
            return RunMetric(name=name, title=metric.title, estimate=overall[name], unit=unit, of=of)
    return None


def best_hash(run: RunFolder) -> str | None:
    """The hash of the weights in best.pt, by the newest validation; None where that does not say."""
    return next((head.weights_hash for head in reversed(_heads(run, "val"))), None)


def _heads(run: RunFolder, split: str) -> list[Head]:
    """The evaluations of a split of the run's own images, or of the tests of folds, the oldest first."""
    heads = list[Head]()
    for file in (folder / NUMBERS for folder in run.evaluations(split)):
        if file.is_file():
            with _reading(run, file):
                head = Head.model_validate_json(file.read_bytes())
                flow = head.flow or {}
                upgrade.check_version("judged" in flow)
                if (name := TARGETS[head.target.kind].headline[0]) not in head.overall:
                    raise ValueError(f"overall.{name} is missing")
                images = flow.get("evaluated") or {"split": split}
                heads += [head] * (images.get("split") == split or images.get("folds") is not None)
    return heads


def list_runs(top: Path, order: str) -> list[ListedRun]:
    """List the runs in a folder, and itself if it is one, by a key of `ORDERS`, each followed by the runs in it: newer
    ones and better metrics first, unknown last, then by name. A folder that may not be read is left out; so is a link
    to a folder inside this one, or around it."""
    key, whole = ORDERS[order], top.resolve()

    def below(folder: Path, outer: str | None, depth: int) -> list[list[ListedRun]]:
        """Each run with those in it, where the folder lies in the run `outer`."""
        names, inner, run = set[str](), list[Path](), RunFolder(folder)
        with contextlib.suppress(OSError), os.scandir(f"{folder}/.") as entries:  # also needs the right to enter it
            for entry in entries:
                names.add(entry.name)
                if entry.name[:1] != "." and Path(entry).is_dir():  # False for a link to itself
                    target = Path(os.path.realpath(entry)) if entry.is_symlink() else None
                    if target is None or not (target.is_relative_to(whole) or whole.is_relative_to(target)):
                        inner.append(folder / entry.name)
        is_run = any(file.name in names for file in run.marks)
        name = whole.name if folder == top else folder.relative_to(top).as_posix()
        groups = [group for path in inner if depth for group in below(path, name if is_run else outer, depth - 1)]
        groups.sort(key=lambda group: natural(group[0].run))
        groups.sort(key=lambda group: ((value := key(group[0])) is None, value))
        if not is_run:
            return groups
        row, folds = read_run(run, name, outer), [group[0] for group in groups if group[0].kind != "ensemble"]
        if row.kind == "cross-validation":  # its folds know the rest
            first = next((fold for fold in folds if fold.data), row)
            seconds = [fold.seconds for fold in folds if fold.seconds is not None]
            of_folds = {
                "done": sum(fold.state == "finished" for fold in folds),
                "data": first.data,
                "model": first.model,
                "seconds": sum(seconds) if seconds else None,
                "started": min((fold.started for fold in folds if fold.started is not None), default=row.started),
            }
            row = row.model_copy(update=of_folds)
        return [[row, *itertools.chain(*groups)]]

    return [*itertools.chain(*below(top, None, DEPTH))]
