"""What a search over settings found: its trials, the combinations of settings that they tried, and the winner."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.metrics.bootstrap import Bootstrap, bootstrap_weights
from vitmed.metrics.ensembles import aligned
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.metric_table import AREAS, METRICS

RESAMPLES = 300
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
    optimism: float | None = None  # of a grid, by how much the winner's number is better for having been chosen
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
) -> tuple[list[TrialResult], float | None]:
    """The combinations of a grid, and the optimism of choosing the best of them; None where it is not known.

    `predictions` are for validation, by the number of a finished trial, `kind` is the `TargetKind` of the labels.

    An interval resamples patients, the same for all seeds, and takes the mean over seeds each time; the spread over
    seeds is apart from it. The optimism is Efron's: in each resample the best combination is chosen, and its number
    there is compared with its number on all patients (Harrell et al., Stat. Med. 15 (1996) 361).
    """
    first, groups = next(iter(predictions.values())), dict[Any, list[TrialResult]]()
    for trial in trials:
        groups.setdefault(tuple(item for item in trial.values.items() if item[0] != SEED), []).append(trial)
    boot = Bootstrap.of(first, RESAMPLES)
    weights = np.concatenate(list(bootstrap_weights(boot.units.index, boot.resamples, seed=0)))
    is_drawn = metric in kind.stress or (first.kind == "classes" and metric in METRICS)
    results, means, table = [], list[float](), list[np.ndarray]()
    for values, group in groups.items():
        done = [trial for trial in group if trial.state == "done"]
        each = [trial.value for trial in done if trial.value is not None]
        new: dict[str, Any] = {"number": group[0].number, "trials": [trial.number for trial in group]}
        new |= {"values": dict(values), "reason": "; ".join(sorted({trial.reason for trial in group if trial.reason}))}
        if each:
            new |= {"value": round(float(np.mean(each)), 12), "sd": float(np.std(each, ddof=1)) if each[1:] else None}
            new |= {"estimate": None, "seconds": float(np.mean([trial.seconds for trial in done]))}
        if each and is_drawn:
            parts = aligned([first, *(predictions[trial.number] for trial in done)])[1:]
            drawn = [kind.numbers.draw(part, weights, drawn=metric not in AREAS)[metric] for part in parts]  # (R,) each
            table.append(np.mean(drawn, axis=0))
            means.append(new["value"])
            new["estimate"] = boot.estimate(new["value"], table[-1]) if each[1:] else done[0].estimate
        results.append((done or group)[0].model_copy(update=new))
    all_drawn, sign = np.array(table), 1 if higher else -1  # (C, R)
    if len(table) < 2 or not np.isfinite(all_drawn).all():
        return results, None
    chosen = (sign * all_drawn).argmax(axis=0)
    return results, float(np.mean(all_drawn[chosen, np.arange(all_drawn.shape[1])] - np.array(means)[chosen]))
