"""What time buys from scratch: the table of networks, and the largest one for which the time is enough.

`--time` chooses the last row of `CANDIDATES` that reaches its knee in the time, and the first row where none does.
Where you or the weights decide the network, it chooses only the epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from vitmed.core.config import Config
from vitmed.core.errors import UsageError
from vitmed.core.text import about, counted, duration_text, round_up
from vitmed.training.plan.rules import SMALL, PlanInputs, Rule, fields_set

CLEARLY = 1.2  # times as long
MOST_KNEES = 3  # passes beyond the knee that may still help: more are not made, however much time there is
FIXING = {"name", "width", "depth", "heads", "patch_size", "image_size", "weights"}  # fields that decide the network


class Candidate(NamedTuple):
    """A network from scratch, and how long it learns.

    Attributes:
        width, depth, heads, patch_size: of the network; image_size: at most, px.
        least: training images for which it is meant.
        steps, passes: the knee: so many optimiser steps, or passes over the images if that is less, after which more
            training gains little.
        lr: peak learning rate.
    """

    width: int
    depth: int
    heads: int
    patch_size: int
    image_size: int
    least: int
    steps: int
    passes: int
    lr: float

    def knee(self, images: int, batch: int) -> int:
        return max(1, min(self.passes, math.ceil(self.steps * min(batch, images) / images)))

    def patch(self, inputs: PlanInputs) -> int:
        """Side of a patch, px: for small images at most 8, as in the plan."""
        return min(8, self.patch_size) if inputs.side <= SMALL else self.patch_size

    def side(self, inputs: PlanInputs) -> int:
        """Side of the square input, px: no larger than the images are, in whole patches, of which it has 4 x 4."""
        patch = self.patch(inputs)
        return min(self.image_size, max(4 * patch, round(inputs.side / patch) * patch))


# From the smallest to the largest. The last two are not measured: docs/recipes.md has the others.
CANDIDATES: tuple[Candidate, ...] = (
    Candidate(128, 4, 4, 16, 64, 0, 3000, 300, 1e-3),
    Candidate(128, 4, 4, 16, 96, 0, 3000, 300, 1e-3),
    Candidate(128, 4, 4, 16, 128, 0, 3000, 300, 1e-3),
    Candidate(192, 6, 6, 16, 160, 2000, 10_000, 200, 1e-3),
    Candidate(192, 12, 3, 16, 224, 5000, 20_000, 200, 5e-4),  # ViT-Tiny
)


class Networks(NamedTuple):
    """The networks among which time chooses for these images.

    Attributes:
        rows: the smallest network first.
        batch: images of an optimiser step.
        forecast_of: the forecast of the run whose plan has a rule.
    """

    rows: Sequence[Candidate]
    inputs: PlanInputs
    batch: int
    forecast_of: Callable[[Rule], Forecast]

    def rule_of(self, row: Candidate, seconds: float | None) -> Rule:
        """The rule that plans a candidate: for `seconds` with the most passes, for None with those of the knee."""
        knee = row.knee(self.inputs.images, self.batch)
        fields = {f"model.{name}": getattr(row, name) for name in ("width", "depth", "heads")}
        fields |= {"model.patch_size": row.patch(self.inputs), "model.image_size": row.side(self.inputs)}
        fields |= {"model.stem": "residual", "train.lr": row.lr}
        fields["train.epochs"] = knee if seconds is None else MOST_KNEES * knee
        when = "" if seconds is None else f"--time {duration_text(seconds)}"
        why = "the largest network of the table that learns enough in this time, otherwise the smallest; "
        why += f"it gains little after {knee:,} passes, and train.epochs is only a limit"
        return Rule(when, {}, fields, why)

    def choose(self, seconds: float) -> Rule:
        """The rule of the last row that reaches its knee in `seconds`, or of the first row.

        Rows after one that takes too long are not timed.
        """
        chosen = self.rule_of(self.rows[0], seconds)
        for row in self.rows[1:]:
            rule = self.rule_of(row, seconds)
            if self.forecast_of(rule).passes_in(seconds) < row.knee(self.inputs.images, self.batch):
                break
            chosen = rule
        return chosen

    def next_larger(self, epochs: int, now: Forecast) -> tuple[Rule, float] | None:
        """The least `--time`, s, that buys a larger network with no fewer passes than the plan makes, and its rule.

        None where no row is clearly larger, or the memory is too small for it.

        Args:
            epochs: of the plan; now: its forecast.
        """
        for row in self.rows:
            forecast = self.forecast_of(self.rule_of(row, None))
            if CLEARLY * now.one_pass < forecast.one_pass < math.inf:
                seconds = round_up(forecast.total(max(epochs, row.knee(self.inputs.images, self.batch))))
                return self.choose(seconds), seconds
        return None


def candidates_for(inputs: PlanInputs) -> list[Candidate]:
    """The rows for so many images."""
    return [row for row in CANDIDATES if row.least <= inputs.images]


def chooses_network(config: Config) -> bool:
    """Whether the time may choose the network: neither weights nor you have."""
    return not FIXING & fields_set(config, "model")


def only_epochs(seconds: float, planned: int, weights: bool) -> Rule:
    """The rule of `--time` where the network is decided, by `weights` or by you: the most epochs, from the planned."""
    why = ("the weights decide" if weights else "you chose") + " the network, so the time decides only the epochs"
    return Rule(f"--time {duration_text(seconds)}", {}, {"train.epochs": MOST_KNEES * planned}, why)


def check_time(seconds: float, forecast: Forecast) -> None:
    """Raises UsageError if a command of so many seconds has no time for a pass over the images."""
    least = forecast.total(1)
    if seconds < least < math.inf:
        parts = f"{about(forecast.before)} to read the images and prepare, {about(forecast.one_pass)} for one epoch"
        raise UsageError(
            f"--time {duration_text(seconds)} is too short: {parts}, {about(forecast.after)} for the evaluation",
            f"--time {duration_text(round_up(least))}",
        )


def time_line(config: Config, forecast: Forecast, more: str = "") -> tuple[float, str]:
    """The seconds that the command takes, and a line that says for what; `more` is a clause on what more time buys."""
    limit, epochs = config.train.time, config.train.epochs
    if math.isinf(forecast.one_pass):
        return 0.0, "time: not known, because the memory is too small for a timed step"
    passes = epochs if limit is None else max(1, min(epochs, int(forecast.passes_in(limit))))
    parts = f"{about(forecast.before)} before training, about {counted(passes, 'epoch')} in "
    parts += f"{about(passes * forecast.one_pass)}, {about(forecast.after)} for the evaluation"
    seconds = forecast.total(passes)
    if limit is None:
        return seconds, f"time: about {about(seconds)} and the reading of the images ({parts})" + more
    if passes < epochs:
        return limit, f"time: {duration_text(limit)} ({parts})" + more
    return seconds, f"time: about {about(seconds)} of {duration_text(limit)} ({parts}); no more epochs are planned"
