"""What a search over settings found, as typed results."""

from __future__ import annotations

from typing import Any, Literal

from vitmed.core.base_models import Frozen
from vitmed.metrics.estimates import Estimate


class TrialResult(Frozen):
    """A trial.

    Attributes:
        state: done: it reached its last epoch; stopped: before; failed: `reason` says why.
        values: setting -> value.
        value: the metric on validation, of a stopped trial after its last epoch; number: with its interval, if done.
        epochs: trained; seconds: of training; run: its folder in that of the study.
    """

    number: int
    state: Literal["done", "stopped", "failed"]
    values: dict[str, Any]
    value: float | None = None
    estimate: Estimate | None = None
    epochs: int = 0
    seconds: float = 0.0
    run: str | None = None
    reason: str = ""


class TuningStudy(Frozen):
    """A search over settings.

    Attributes:
        metric: a key of the metrics of the kind of label; title: its name; higher: whether more is better.
        epochs: of a trial that is not stopped.
        trials: in the order of their numbers, from 1; best: the number of the winner; plan: of the plan's own values.
        changed: setting -> value of the winner, where it differs from the plan.
        importance: setting -> share of the variance between trials that it explains, 0 to 1; {} for too few trials.
        refit_val, test: the metric of the winner's settings, trained once more with another seed.
    """

    metric: str
    title: str
    higher: bool
    epochs: int
    trials: list[TrialResult]
    best: int
    plan: int | None
    changed: dict[str, Any]
    importance: dict[str, float]
    refit_val: Estimate | None = None
    test: Estimate | None = None
    notes: list[str] = []

    def trial(self, number: int) -> TrialResult:
        """The trial of this number."""
        return next(trial for trial in self.trials if trial.number == number)

    @property
    def ranked(self) -> list[TrialResult]:
        """Finished trials, the best first; then stopped and failed ones."""
        sign = -1 if self.higher else 1
        order = {"done": 0, "stopped": 1, "failed": 2}
        return sorted(self.trials, key=lambda trial: (order[trial.state], sign * (trial.value or 0.0), trial.number))
