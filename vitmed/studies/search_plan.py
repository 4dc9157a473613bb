"""What a search is asked for: its settings and their ranges, by default around the plan; and the plan of its trials."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from vitmed.core.base_models import Frozen, fields_of
from vitmed.core.config import FLAGS, Config
from vitmed.core.errors import CheckpointError, UsageError, excluded
from vitmed.core.files import write_json, write_text
from vitmed.core.load_config import load_config, with_values
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import duration_text, round_up
from vitmed.core.upgrade import READER
from vitmed.metrics.tuning_study import SEED
from vitmed.studies.study import Job, check_same_data, read_study
from vitmed.training.learning import LEARNING
from vitmed.training.plan.make_plan import Plan, make_plan, plan_yaml
from vitmed.training.plan.rules import fields_set

APART = 10  # a range whose ends are so many times apart is searched on a logarithmic scale
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
FIXED = ("train.seed", "train.test", "train.time", "train.monitor")
Space = dict[str, str]  # "section.field" -> "LOW..HIGH" or "A,B,C"
AROUND: dict[str, Callable[[float], str]] = {  # the epochs are what the trials spend, and are not searched
    "train.lr": lambda value: f"{value / 5:.3g}..{value * 5:.3g}",
    "train.weight_decay": lambda value: f"{max(value / 10, 0.001):.3g}..{max(value * 10, 0.1):.3g}",
    "train.layer_decay": lambda value: f"{max(0.3, value - 0.25):.3g}..1",
    "model.drop_path": lambda value: f"0..{max(0.2, 2 * value):.3g}",
    "augment.mixup": lambda value: f"0..{max(0.4, 2 * value):.3g}",
}

USUAL, MOST = 20, 1000  # trials
SHARE = 6  # a run takes at most this part of --time
NEW = "start a new study with vitmed tune"
BASE, REFIT = "base.yaml", "winner"  # the plan of all trials, and the run of the best one once more


class Asked(Frozen):
    """What tune.json holds."""

    space: dict[str, str]  # "section.field" -> "LOW..HIGH" or "A,B,C"
    planned: dict[str, Any]  # the plan's values of these settings
    trials: int | None
    time: float | None  # of the whole command, s
    prune: bool
    seed: int
    offline: bool
    metric: str  # of validation, which decides
    epochs: int  # of a trial that is not stopped
    data: str  # the digest of the splits
    before: float = 0.0  # the forecast of a run, s; 0 without `time`
    one_pass: float = 0.0
    after: float = 0.0

    @classmethod
    def read(cls, folder: RunFolder) -> Asked:
        """Raises CheckpointError for a folder without a tune.json, a damaged one, or one of an earlier version."""
        if any((folder.path / old).is_file() for old in ("journal.log", "sweep.json")):
            raise CheckpointError(f"{folder.path}: a study of vitmed {READER}, which alone can continue it", NEW)
        if not folder.tune.is_file():
            raise CheckpointError(f"{folder.path}: holds no study of vitmed tune", "name the folder that it made")
        return read_study(folder.tune, cls, NEW)

    @property
    def seeds(self) -> list[int]:
        """Of a grid, in which they are an axis."""
        return [int(seed) for seed in self.space[SEED].split(",")] if SEED in self.space else []

    @property
    def queue(self) -> list[dict[str, Any]]:
        """The values of the first trials: the plan's own, where the space has them; of a grid every combination, seed
        by seed, so that a stopped study knows something of each."""
        if self.seeds:
            values = itertools.product(*(domain.split(",") for domain in self.space.values()))  # the seed is the first
            return [dict(zip(self.space, one, strict=True)) for one in values]
        if not all(contains(domain, self.planned[place]) for place, domain in self.space.items()):
            return []
        return [{p: self.planned[p] if ".." in domain else str(self.planned[p]) for p, domain in self.space.items()}]


def plan_study(
    settings: Config, plans: bool, seconds: float | None, offline: bool, processes: int
) -> tuple[Plan, dict[str, float]]:
    """Plan the base of all trials; with `seconds`, of as many epochs as fit `SHARE` times into it, and forecast a run.

    Raises:
        UsageError: settings that do not go with a search, or too little time for a trial and the winner.
    """
    if settings.data.divided or settings.train.freeze or not settings.train.test:
        raise excluded("choices of tune")
    prepared = make_plan(settings, plans, offline, processes)
    if seconds is None:
        return prepared, {}
    forecast, free = prepared.forecaster.of(prepared.config), plans and "epochs" not in fields_set(settings, "train")
    passes = int(forecast.passes_in(seconds / SHARE))
    if free and 1 <= passes < prepared.config.train.epochs:
        model = prepared.given.model
        chosen = {f"model.{name}": getattr(model, name) for name in ("weights", "weights_sha256", "weights_reason")}
        settings = with_values(settings, {"train.epochs": passes, **chosen})
        prepared = make_plan(settings, plans, offline, processes)
    both = 2 * forecast.total(prepared.config.train.epochs)
    if both > seconds:
        problem = f"--time {duration_text(seconds)} is too short for a trial and the training of the winner"
        enough = SHARE * forecast.total(1) if free else both
        raise UsageError(problem, f"--time {duration_text(round_up(enough))}")
    return prepared, forecast._asdict()


def new_study(prepared: Plan, what: dict[str, Any], output: str | Path, name: str) -> tuple[RunFolder, Asked]:
    """Begin a study: a new folder with the base configuration, what was asked for, and the forecast of a run.

    Args:
        what: `space`, `trials`, `time` in s and `prune` of `Asked`.

    Raises:
        UsageError: no setting is left to search, or a grid of too many trials.
    """
    config, train = prepared.config, prepared.config.train
    domains = what["space"] = what["space"] or default_space(prepared)
    if not domains:
        raise UsageError("nothing to search: every setting is fixed", "leave some out, or name --space")
    if SEED in domains and (count := math.prod(len(domain.split(",")) for domain in domains.values())) > MOST:
        raise UsageError(f"{count:,} trials, more than {MOST:,}", "fewer values or seeds")
    if what["trials"] is None and what["time"] is None and SEED not in domains:
        what["trials"] = USUAL
    epochs = domains.get("train.epochs", str(train.epochs))  # Hyperband counts to the most
    asked = Asked(
        planned={place: value_of(config, place) for place in domains},
        seed=train.seed,
        metric=train.monitor,
        epochs=max(int(part) for part in epochs.replace("..", ",").split(",")),
        data=prepared.splits.digest,
        **what,
    )
    folder = RunFolder.create(output, name)
    write_text(folder.path / BASE, plan_yaml(prepared, folder.path))
    write_json(folder.tune, asked.to_dict())  # last: a folder with it is complete
    return folder, asked


def resumed_study(folder: RunFolder, trials: int | None, seconds: float | None) -> tuple[RunFolder, Asked]:
    """Open a study again, with more trials or time.

    Raises:
        UsageError: its winner is chosen already. DataError: other images, labels or splits.
    """
    asked, more = Asked.read(folder), {"trials": trials, "time": seconds}
    check_same_data(load_config(folder.path / BASE), asked.data, folder)
    if more := {key: value for key, value in more.items() if value is not None}:
        if Job(REFIT, "").attempts(folder):
            raise UsageError(f"{folder.path}: its winner is chosen, and trained once more", "start a new study")
        if trials is not None and asked.seeds:
            raise UsageError(f"--trials {trials}: a grid has all its combinations", "leave it out")
        asked = asked.model_copy(update=more)
        write_json(folder.tune, asked.to_dict())
    return folder, asked


def read_space(texts: Sequence[str], sets: Sequence[str] = (), flag: str = "--space") -> Space:
    """Read {"train.lr": "1e-5..1e-3"} from "lr=1e-5..1e-3" or "train.lr=1e-5..1e-3".

    Args:
        sets: hold for all trials.
        flag: --space; or --grid or --seeds, which have no ranges.

    Raises:
        UsageError: another form, an unknown setting, or a value that it cannot have.
    """
    space: Space = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        place = FLAGS.get(key.removeprefix("--").replace("-", "_"), key)
        low, dots, high = values.partition("..")
        parts = [low, high] if dots else [part.strip() for part in values.split(",")]
        numbers = [float(part) for part in parts if NUMBER.fullmatch(part)]
        if not equals or not all(parts) or (dots and (len(numbers) < 2 or flag != "--space")):
            what, example = "a range, or its values", "--space train.lr=1e-5..1e-3 or --space model.width=64,128"
            if flag != "--space":
                what, example = "its values", "--grid model.heads=2,4,8 --seeds 0,1,2"
            raise UsageError(f"{flag} {text}: expected a setting and {what}", example)
        if (place.startswith(("data.", "evaluate.")) or place in FIXED) and flag != "--seeds":
            raise UsageError(f"{flag} {text}: all trials share images, splits and evaluation", "leave it out")
        if place in space or len(set(parts)) < len(parts) or (dots and numbers[0] >= numbers[1]):
            raise UsageError(f"{flag} {text}: expected different values in order, each setting once", "correct it")
        for value in parts:
            load_config(None, None, [*sets, f"{place}={value}"])
        if dots and not _kinds(place) & {int, float}:
            raise UsageError(f"{flag} {text}: a range is for numbers", f"{flag} {place}=A,B")
        space[place] = f"{low.strip()}..{high.strip()}" if dots else ",".join(parts)
    return space


def _kinds(place: str) -> set[Any]:
    section, _, name = place.partition(".")
    annotation = fields_of(Config, section)[name].annotation
    return {annotation, *get_args(annotation)}


def default_space(prepared: Plan) -> Space:
    """Return a range around the planned value of each setting of `AROUND` that you did not set."""
    config, given = prepared.config, prepared.given
    without = set() if LEARNING[prepared.splits.target.kind].mixes else {"augment.mixup"}
    if prepared.weights is None:
        without.add("train.layer_decay")
    return {
        place: around(value_of(config, place))
        for place, around in AROUND.items()
        if place not in without and place.partition(".")[2] not in fields_set(given, place.partition(".")[0])
    }


def value_of(config: Config, place: str) -> Any:
    section, _, name = place.partition(".")
    return getattr(getattr(config, section), name)


def contains(domain: str, value: Any) -> bool:
    low, dots, high = domain.partition("..")
    if dots:
        return isinstance(value, int | float) and float(low) <= value <= float(high)
    return as_text(value) in domain.split(",")


def as_text(value: Any) -> str:
    """Write a value as in --set."""
    return str(value).lower() if isinstance(value, bool) or value is None else f"{value}"


def suggest(trial: Any, space: Mapping[str, str]) -> dict[str, Any]:
    """Suggest the values of an Optuna trial: those that it has, and new ones for the rest."""
    values: dict[str, Any] = {}
    for place, domain in space.items():
        low, dots, high = domain.partition("..")
        if not dots:
            values[place] = trial.suggest_categorical(place, domain.split(","))
            continue
        suggest_in, number = (trial.suggest_float, float) if float in _kinds(place) else (trial.suggest_int, int)
        log = float(low) > 0 and float(high) >= APART * float(low)
        values[place] = suggest_in(place, number(low), number(high), log=log)
    return values


def as_sets(values: Mapping[str, Any]) -> list[str]:
    """Write the values of a trial as "section.field=value", numbers with three digits."""
    return [f"{place}={f'{value:.3g}' if isinstance(value, float) else value}" for place, value in values.items()]
