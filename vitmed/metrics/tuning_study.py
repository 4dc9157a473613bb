"""What a search over settings found: its trials, the combinations of settings that they tried, and the winner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.metrics.bootstrap import Bootstrap, bootstrap_weights
from vitmed.metrics.ensembles import aligned
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.predictions import known_labels
from vitmed.metrics.scoring import METRICS, Scorer

RESAMPLES = 300
SEED = "train.seed"  # an axis of a grid, over which its combinations are compared


class TrialResult(Frozen):
    """A trial, or a combination: of a grid the trials with the same settings and different seeds.

    Attributes:
        number: of the trial, from 1, or of the first one; trials: the numbers of all in the combination.
        state: done: it reached its last epoch; stopped: before; failed: `reason` says why.
        value: the metric on validation, of a stopped trial after its last epoch; of a combination the mean over seeds.
        estimate: the same with its interval, if done; sd: the standard deviation over seeds (n - 1).
        epochs: trained; seconds: of training, of a combination the mean; run: the folder in that of the study.
    """

    number: int
    trials: list[int] = []
    state: Literal["done", "stopped", "failed"]
    values: dict[str, Any]
    value: float | None = None
    estimate: Estimate | None = None
    sd: float | None = None
    epochs: int = 0
    seconds: float = 0.0
    run: str | None = None
    reason: str = ""


class TuningStudy(Frozen):
    """A search over settings.

    Attributes:
        metric: a key of the metrics of the kind of label; title: its name; higher: whether more is better.
        epochs: of a trial that is not stopped; seeds: of a grid, else empty.
        trials: in the order of their numbers; combinations: of settings; without a grid these are the trials.
        best: the number of the combination that won; plan: of the plan's own values; changed: what differs of these.
        importance: setting -> share of the variance between trials that it explains, 0 to 1; {} for too few trials.
        optimism: of a grid, by how much the number of the winner is better for having been chosen.
        refit_val, test: the metric of the winner's settings, trained once more with another seed.
    """

    metric: str
    title: str
    higher: bool
    epochs: int
    seeds: list[int]
    trials: list[TrialResult]
    combinations: list[TrialResult]
    best: int
    plan: int | None
    changed: dict[str, Any]
    importance: dict[str, float]
    optimism: float | None = None
    refit_val: Estimate | None = None
    test: Estimate | None = None
    notes: list[str] = []

    def of(self, number: int) -> TrialResult:
        """The combination of this number."""
        return next(one for one in self.combinations if one.number == number)

    @property
    def ranked(self) -> list[TrialResult]:
        """Finished combinations, the best first; then stopped and failed ones."""
        sign, order = -1 if self.higher else 1, ("done", "stopped", "failed")
        return sorted(self.combinations, key=lambda one: (order.index(one.state), sign * (one.value or 0), one.number))


def combined(
    trials: Sequence[TrialResult], found: Mapping[int, Any], kind: Any, metric: str, higher: bool
) -> tuple[list[TrialResult], float | None]:
    """The combinations of a grid, and the optimism of choosing the best of them; None where it is not known.

    An interval resamples patients, the same for all seeds, and takes the mean over seeds each time; the spread over
    seeds is apart from it. The optimism is Efron's: in each resample the best combination is chosen, and its number
    there is compared with its number on all patients (Harrell et al., Stat. Med. 15 (1996) 361).

    Args:
        found: number of a finished trial -> its predictions for validation; kind: the `TargetKind` of the labels.
    """
    first, groups = next(iter(found.values())), dict[Any, list[TrialResult]]()
    for trial in trials:
        groups.setdefault(tuple(item for item in trial.values.items() if item[0] != SEED), []).append(trial)
    boot = Bootstrap.of(first, RESAMPLES)
    weights = np.concatenate(list(bootstrap_weights(boot.units.index, boot.resamples, seed=0)))
    is_drawn = metric in kind.stress.names or (first.kind == "classes" and metric in METRICS)
    results, means, table = [], list[float](), list[np.ndarray]()
    for values, group in groups.items():
        done = [trial for trial in group if trial.state == "done"]
        each = [trial.value for trial in done if trial.value is not None]
        new: dict[str, Any] = {"number": group[0].number, "trials": [trial.number for trial in group]}
        new |= {"values": dict(values), "reason": "; ".join(sorted({trial.reason for trial in group if trial.reason}))}
        if each:
            new |= {"value": float(np.mean(each)), "sd": float(np.std(each, ddof=1)) if each[1:] else None}
            new |= {"estimate": None, "seconds": float(np.mean([trial.seconds for trial in done]))}
        if each and is_drawn:
            parts = aligned([first, *(found[trial.number] for trial in done)])[1:]
            table.append(np.mean([drawn_metric(kind, part, weights, metric) for part in parts], axis=0))
            means.append(new["value"])
            new["estimate"] = boot.estimate(new["value"], table[-1])
        results.append((done or group)[0].model_copy(update=new))
    drawn, sign = np.array(table), 1 if higher else -1  # (C, R)
    if len(table) < 2 or not np.isfinite(drawn).all():
        return results, None
    chosen = (sign * drawn).argmax(axis=0)
    return results, float(np.mean(drawn[chosen, np.arange(drawn.shape[1])] - np.array(means)[chosen]))


def drawn_metric(kind: Any, part: Any, weights: np.ndarray, name: str) -> np.ndarray:
    """(R,) the metric for image weights (R, S)."""
    found = kind.stress.draw(part, weights)
    if name not in found:  # of classes, the areas, which take longer
        found = Scorer(known_labels(part), part).values(weights)[0]
    return np.asarray(found[name])
