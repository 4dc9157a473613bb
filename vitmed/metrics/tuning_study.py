"""What a search over settings found: its trials, the combinations of settings that they tried, and the winner."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.metrics.ensembles import aligned
from vitmed.metrics.estimates import Estimate, estimate
from vitmed.metrics.intervals import Units, jackknife_interval

SIGNED = ("mcc", "cohen_kappa", "quadratic_kappa", "linear_kappa", "ccc", "pearson")  # from -1; others from 0
SEED = "train.seed"  # an axis of a grid, over which its combinations are compared


class TrialResult(Frozen):
    """A trial, or a combination: of a grid the trials with the same settings and different seeds."""

    number: int  # of the trial, from 1, or of the first one
    trials: list[int] = []  # the numbers of all in the combination
    state: Literal["done", "stopped", "failed"]  # done: it reached its last epoch; stopped: before
    values: dict[str, Any]
    value: float | None = None  # the metric on validation, after the last epoch; of a combination the mean over seeds
    estimate: Estimate | None = None  # the same with its interval, if done
    sd: float | None = None  # the standard deviation over seeds (n - 1)
    epochs: int = 0  # trained
    seconds: float = 0.0  # of training; of a combination the mean
    run: str | None = None  # the folder in that of the study
    reason: str = ""  # why it failed


class TuningStudy(Frozen):
    """A search over settings."""

    metric: str  # a key of the metrics of the kind of label
    title: str  # its name
    higher: bool  # whether more is better
    epochs: int  # of a trial that is not stopped
    seeds: list[int]  # of a grid, else empty
    trials: list[TrialResult]  # in the order of their numbers
    combinations: list[TrialResult]  # of settings; without a grid these are the trials
    best: int  # the number of the combination that won
    plan: int | None  # that of the plan's own values
    changed: dict[str, Any]  # what differs of these
    refit_val: Estimate | None = None  # the metric of the winner's settings, trained once more with another seed
    test: Estimate | None = None
    notes: list[str] = []

    def of(self, number: int) -> TrialResult:
        """The combination of this number."""
        return next(trial for trial in self.combinations if trial.number == number)

    @property
    def ranked(self) -> list[TrialResult]:
        """Finished combinations, the best first; then stopped and failed ones."""
        sign, order = -1 if self.higher else 1, ("done", "stopped", "failed")
        return sorted(self.combinations, key=lambda one: (order.index(one.state), sign * (one.value or 0), one.number))


def combined(
    trials: Sequence[TrialResult], predictions: Mapping[int, Any], kind: Any, metric: str, higher: bool
) -> list[TrialResult]:
    """The combinations of a grid. `predictions` are for validation, by the number of a finished trial, `kind` is the
    `TargetKind` of the labels. An interval leaves out each patient in turn, the same for all seeds, and takes the mean
    over seeds each time; the spread over seeds is apart from it."""
    first, groups = next(iter(predictions.values())), dict[Any, list[TrialResult]]()
    for trial in trials:
        groups.setdefault(tuple(item for item in trial.values.items() if item[0] != SEED), []).append(trial)
    results, units = list[TrialResult](), Units(first.units)
    for values, group in groups.items():
        done = [trial for trial in group if trial.state == "done"]
        each = [trial.value for trial in done if trial.value is not None]
        new: dict[str, Any] = {"number": group[0].number, "trials": [trial.number for trial in group]}
        new |= {"values": dict(values), "reason": "; ".join(sorted({trial.reason for trial in group if trial.reason}))}
        if each:
            new |= {"value": round(float(np.mean(each)), 12), "sd": float(np.std(each, ddof=1)) if each[1:] else None}
            new |= {"estimate": None if each[1:] else done[0].estimate}
            new |= {"seconds": float(np.mean([trial.seconds for trial in done]))}
        if each[1:] and metric in kind.metrics:
            parts = aligned([first, *(predictions[trial.number] for trial in done)])[1:]
            moved = np.mean([kind.numbers(part).without(units)[metric] for part in parts], axis=0)
            low, high = jackknife_interval(new["value"], moved, skewed=False)
            low = max(low, -np.inf if metric in ("r2", "log_score") else -1.0 if metric in SIGNED else 0.0)
            new["estimate"] = estimate(new["value"], low, min(high, 1.0 if higher else np.inf), "jackknife")
        results.append((done or group)[0].model_copy(update=new))
    return results
