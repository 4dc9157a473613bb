"""One row of `vitmed runs`: what the configuration, the epoch records and the evaluations of a run say of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, model_validator

from vitmed.core import upgrade
from vitmed.core.base_models import Frozen
from vitmed.core.config import Config
from vitmed.core.errors import UsageError, VitmedError
from vitmed.core.files import read_json_lines
from vitmed.core.load_config import build_config, read_config
from vitmed.core.pretrain_config import PretrainConfig
from vitmed.core.run_folder import NUMBERS, RunFolder
from vitmed.core.run_lock import is_running, was_killed
from vitmed.core.targets import CLASSES, Target
from vitmed.core.text import counted, first_line
from vitmed.decisions.targets import ALL_METRICS, TARGETS
from vitmed.metrics.estimates import Estimate
from vitmed.models.sizes import model_label
from vitmed.report.run_list import UNFINISHED, ListedRun, RunMetric, State

DEPTH = 3  # folders below the one that is listed: study/cross-validation/fold-1

EMPTY = "an empty folder: it ended before its first file, or has just begun"
KILLED = "its process was killed, or the machine stopped"
Records = Sequence[dict[str, Any]]


class _Part(Frozen):
    """A part of metrics.json, without what a table does not show: it is read in a tenth of the time of `Results`, and
    where a later version changed another part."""

    model_config = ConfigDict(extra="ignore")


class _EvaluatedImages(_Part):
    split: str | None = None
    folds: int | None = None


class _Flow(_Part):
    evaluated: _EvaluatedImages | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_today(cls, content: Any) -> Any:
        return upgrade.flow(content) if isinstance(content, Mapping) else content


class Head(_Part):
    """The numbers of an evaluation, and what it is of."""

    overall: dict[str, Estimate]
    target: Target = CLASSES
    weights_hash: str | None = None
    flow: _Flow | None = None

    def is_of(self, split: str) -> bool:
        """Whether it is of a split of the run's own images, or of the tests of folds."""
        of = None if self.flow is None else self.flow.evaluated
        return of is None or of.split == split or of.folds is not None


def read_run(run: RunFolder, name: str, parent: str | None) -> ListedRun:
    """One row. No file of a run, however damaged, makes it raise.

    Args:
        name: its path in the folder that is listed; parent: that of the run that it is a part of.
    """
    row: dict[str, Any] = {"kind": "not known"}
    try:
        kinds = ((run.folds, _read_folds), (run.ensemble, _read_ensemble))
        read = next((read for file, read in kinds if file.is_file()), _read_training)
        read(run, row)
    except ValueError as error:
        row |= {"state": "damaged", "problem": str(error)}
    if is_running(run):
        row |= {"state": "running", "problem": ""}
    elif row["state"] in UNFINISHED and (trial := _trial_of(run)).get("state") == "stopped":
        row |= {"state": "stopped", "problem": str(trial.get("reason") or "")}
    elif row["state"] in UNFINISHED and was_killed(run):
        row["problem"] = KILLED
    with contextlib.suppress(ValueError), _reading(run, run.environment):
        started = json.loads(run.environment.read_text(encoding="utf-8"))["started"]
        row["started"] = datetime.fromisoformat(started).isoformat()
    return ListedRun(run=name, parent=parent, **row)


def _trial_of(run: RunFolder) -> dict[str, Any]:
    """What the study of `vitmed tune` noted of a trial; {} for any other run."""
    if name := re.match(r"trial-\d{4,}", run.path.name):
        with contextlib.suppress(OSError, ValueError, TypeError):
            return dict(json.loads((run.path.parent / f"{name[0]}.json").read_text(encoding="utf-8")))
    return {}


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


def _read_folds(run: RunFolder, row: dict[str, Any]) -> None:
    """A cross-validation; `with_parts` adds what its folds say."""
    row["kind"] = "cross-validation"
    with _reading(run, run.folds):
        asked = json.loads(run.folds.read_text(encoding="utf-8"))
        row["of"] = int(asked["folds"]) * int(asked.get("repeats", 1))
    row["metric"] = _evaluated(run, "test")
    row["state"] = "interrupted" if row["metric"] is None else "finished"


def _read_ensemble(run: RunFolder, row: dict[str, Any]) -> None:
    """Several models as one; its number is of the images on which its policy was chosen, until it is tested."""
    row["kind"] = "ensemble"
    with _reading(run, run.ensemble):
        content = json.loads(run.ensemble.read_text(encoding="utf-8"))
        row |= {"model": counted(len(content["members"]), "model"), "data": _data_name(content["data"]["root"], run)}
    row |= {"state": "finished", "metric": _evaluated(run, "test") or _evaluated(run, "val")}


def _read_training(run: RunFolder, row: dict[str, Any]) -> None:
    """A run with a configuration: of training, of pretraining, of a baseline, or of a ranking of weights."""
    if not any(run.path.iterdir()):
        row |= {"state": "incomplete", "problem": EMPTY}
        return
    with _reading(run, run.config):
        tree = read_config(run.config)
        kind: Any = Config if "evaluate" in tree else PretrainConfig
        config = build_config(tree, kind)
        row |= {"data": _data_name(config.data.root, run), "model": model_label(config.model)}
    if run.ranking.is_file():
        row |= {"kind": "ranking", "state": "finished"}
        return
    of_colours = run.splits.is_file() and not run.environment.is_file()  # `vitmed probe` without weights writes none
    if of_colours or (isinstance(config, Config) and config.train.freeze):
        row |= {"kind": "no network", "metric": _evaluated(run, "test")} | ({"model": ""} if of_colours else {})
        row["state"] = "incomplete" if row["metric"] is None else "finished"
        return
    if run.best.is_file() and not (run.metrics.is_file() or run.last.is_file()):  # a soup of 0.2.0
        row |= {"kind": "ensemble", "state": "finished", "metric": _evaluated(run, "test") or _evaluated(run, "val")}
        return
    row |= {"kind": "training" if isinstance(config, Config) else "pretraining", "of": config.train.epochs}
    with _reading(run, run.metrics):
        records = upgrade.records(read_json_lines(run.metrics))
        monitor = config.train.monitor if isinstance(config, Config) else "loss"
        row |= {"done": len(records), "metric": _last_metric(records, monitor)}
        row["seconds"] = sum(float(record["seconds"]) for record in records) if records else None
        ended = _ended(records, config)
    resumable: State = "interrupted" if run.last.is_file() else "incomplete"
    row["state"] = resumable
    if isinstance(config, PretrainConfig):
        row["state"] = "finished" if ended and run.encoder.is_file() else resumable
    elif ended:
        found = _evaluated(run, "test" if config.train.test else "val")
        row |= {"state": "not evaluated"} if found is None else {"state": "finished", "metric": found}


def _data_name(root: str | None, run: RunFolder) -> str:
    """The name of the data folder, without its place."""
    return "" if root is None else Path(os.path.normpath(run.path.absolute() / root)).name


def _ended(records: Records, config: Config | PretrainConfig) -> bool:
    """Whether training reached its end, as `finished` of vitmed.training.epoch_records decides it, from the records.

    Of a limited time the records show that the learning rate has come down.
    """
    train = config.train
    if not records:
        return False
    end = train.epochs
    if isinstance(config, Config) and config.train.choose == "best" and config.train.patience is not None:
        end = min(end, _kept(records) + 1 + config.train.patience)
    over = train.time is not None and records[-1]["lr"] - train.min_lr < 0.01 * train.lr
    return bool(records[-1]["epoch"] >= end or over)


def _kept(records: Records) -> int:
    """The index of the epoch of best.pt, or else of the last."""
    last = len(records) - 1
    return next((i for i in range(last, -1, -1) if records[i].get("kept")), last)


def _last_metric(records: Records, monitor: str) -> RunMetric | None:
    """On validation, of the epoch of best.pt."""
    if not records:
        return None
    title = "loss" if monitor == "loss" else ALL_METRICS[monitor].title
    found = Estimate(value=records[_kept(records)].get(f"val_{monitor}"), low=None, high=None)
    return RunMetric(name=monitor, title=title, estimate=found, of="validation")


def _evaluated(run: RunFolder, split: str) -> RunMetric | None:
    """The first number of the run's own test, or validation; None where it was not evaluated.

    Of several evaluations counts the newest of the weights that the newest validation is of: best.pt, since the others
    are of checkpoints of single epochs.
    """
    found = _heads(run, split)
    if len(found) > 1:
        best = [head.weights_hash for head in _heads(run, "val")][-1:]
        found = [head for head in found if [head.weights_hash] == best] or found
    if not found:
        return None
    kind = TARGETS[found[-1].target.kind]
    name = kind.headline[0]
    unit = found[-1].target.unit if kind.metrics[name].in_unit else ""
    of: Any = "test" if split == "test" else "validation"
    return RunMetric(name=name, title=kind.metrics[name].title, estimate=found[-1].overall[name], unit=unit, of=of)


def read_head(file: Path) -> Head:
    """The first number of a metrics.json. Raises OSError or ValueError if it is none."""
    try:
        return Head.model_validate_json(file.read_bytes())
    except UsageError as error:
        raise ValueError(error.problem) from None


def _heads(run: RunFolder, split: str) -> list[Head]:
    """The evaluations of a split of the run, the oldest first."""
    found = []
    for file in (folder / NUMBERS for folder in run.evaluations(split)):
        if file.is_file():
            with _reading(run, file):
                head = read_head(file)
            found += [head] * head.is_of(split)
    return found


def run_folders(top: Path) -> Iterator[tuple[Path, Path | None]]:
    """Yield the run folders in a folder, and itself if it is one, each after the run that it lies in.

    An empty folder beside a run counts as one, since a run folder is made before its first file. A folder that may not
    be read is left out.
    """
    waiting: list[tuple[Path, Path | None, int]] = [(top, None, DEPTH)]
    beside, empty = set[Path](), list[tuple[Path, Path | None]]()
    while waiting:
        folder, parent, depth = waiting.pop()
        names, inner = set[str](), list[Path]()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                names.add(entry.name)
                if entry.name[:1] != "." and entry.is_dir():
                    inner.append(folder / entry.name)
        if any(file.name in names for file in RunFolder(folder).marks):
            yield folder, parent
            beside.add(folder.parent)
            parent = folder
        elif not names and folder != top:
            empty.append((folder, parent))
        waiting += [(path, parent, depth - 1) for path in inner] if depth else []
    yield from (found for found in empty if found[0].parent in beside)
