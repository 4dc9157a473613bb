"""What an evaluation prints: the first numbers, the comparison with baselines and the own test set; and the gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitmed.core.errors import GateError, UsageError, unknown_key
from vitmed.core.ui import Ui
from vitmed.metrics.metric_table import METRICS
from vitmed.metrics.notes import FEW_GROUPS
from vitmed.metrics.predictions import Predictions
from vitmed.report.external_data import External
from vitmed.report.results import Baseline, Results

HEADLINE = ("auroc", "balanced_accuracy", "accuracy")


@dataclass(frozen=True)
class Evaluation:
    """The predictions, the metrics with intervals, and the folder of the report."""

    predictions: Predictions
    metrics: Results
    folder: Path


def report_evaluation(evaluation: Evaluation, gates: dict[str, float], ui: Ui) -> Evaluation:
    """Print the first numbers, the comparison with baselines, and the path of the report; then check the gates."""
    metrics = evaluation.metrics
    ui.say(headline(metrics))
    for note in metrics.notes:
        if note not in metrics.report.notes:  # already printed
            ui.warn(note)
    for baseline in metrics.baselines.values():
        ui.say(verdict(baseline, metrics.n_groups))
    if metrics.external is not None:
        ui.say(beside_own(metrics.external))
    ui.say(f"report: {evaluation.folder / 'report.html'}")
    check_gates(gates, evaluation.metrics, evaluation)
    return evaluation


def headline(metrics: Results) -> str:
    """The first numbers, in one line."""
    parts = []
    for name in HEADLINE:
        found, title = metrics.overall[name], METRICS[name].title
        interval = "" if found.low is None else f" [{found.low:.3f}, {found.high:.3f}]"
        parts.append(f"{title} " + ("undefined" if found.value is None else f"{found.value:.3f}{interval}"))
    known = any(metrics.overall[name].low is not None for name in HEADLINE)
    how = f"95 % intervals {metrics.resampling}" if known else "no intervals"
    return f"{', '.join(parts)}; {how}" + ("; likely optimistic" if metrics.n_groups is None else "")


def verdict(baseline: Baseline, patients: int | None, metric: str = "auroc") -> str:
    """Whether the model is better than a baseline, in a line; no verdict with very few patients.

    Args:
        baseline: one of `Results.baselines`.
        patients: how many were evaluated; None if unknown.
    """
    name, other, difference = METRICS[metric].title, baseline.overall[metric], baseline.difference[metric]
    text = f"baseline, {baseline.text}: {name} " + ("undefined" if other.value is None else f"{other.value:.3f}")
    if difference.low is None or difference.high is None:
        return f"{text}; no interval for the difference"
    gap = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    if patients is not None and patients < FEW_GROUPS:
        return f"{text}; model - baseline {gap}, but {patients} patients are too few to conclude which is better"
    if difference.low > 0:
        return f"{text}; the model is better: {gap}"
    if difference.high < 0:
        return f"{text}; the BASELINE is better: {gap}"
    return f"{text}; the model is not shown to be better: {gap}"


def beside_own(found: External, metric: str = "auroc") -> str:
    """The evaluated images compared with the run's own test set, in a line."""
    pair = found.numbers[metric]
    own, gap = pair.internal, pair.difference
    value = "undefined" if own.value is None else f"{own.value:.3f}"
    text = f"on the run's own test set: {METRICS[metric].title} {value}"
    if gap.low is None:
        return f"{text}; no interval for the difference"
    return f"{text}; difference {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"


def parse_gates(texts: str | Sequence[str]) -> dict[str, float]:
    """["auroc=0.9"] -> {"auroc": 0.9}. Raises UsageError."""
    gates = {}
    for text in [texts] if isinstance(texts, str) else texts:
        name, _, value = text.partition("=")
        if name not in METRICS:
            raise unknown_key("metric", name, METRICS)
        try:
            gates[name] = float(value)
        except ValueError:
            raise UsageError(f"--fail-under {text}: expected metric=value", "for example auroc=0.9") from None
    return gates


def check_gates(gates: dict[str, float], metrics: Results, result: object) -> None:
    """Raises GateError, which carries `result`, where a metric is worse than its gate, or undefined."""
    failed = []
    for name, limit in gates.items():
        value = metrics.overall[name].value
        better: Callable[[float, float], bool] = float.__ge__ if METRICS[name].higher_is_better else float.__le__
        if value is None or not better(float(value), limit):
            failed.append(f"{name} {'undefined' if value is None else f'{value:.4f}'}, asked for {limit:g}")
    if failed:
        raise GateError(f"the gate is not met: {'; '.join(failed)}", "look at the report for the errors", result)
