"""What an evaluation prints: the first numbers, the comparison with baselines and the own test set; and the gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitmed.core.errors import GateError, UsageError, unknown_key
from vitmed.core.run_folder import NUMBERS, REPORT
from vitmed.core.text import counted_doing
from vitmed.core.ui import Ui
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.metric_table import METRICS
from vitmed.metrics.notes import FEW_GROUPS
from vitmed.metrics.predictions import Predictions
from vitmed.report.external_data import External
from vitmed.report.page import HEADLINE, number
from vitmed.report.results import Baseline, Results


@dataclass(frozen=True)
class Evaluation:
    """The predictions, the metrics with intervals, and the folder of the report."""

    predictions: Predictions
    metrics: Results
    folder: Path


def report_evaluation(evaluation: Evaluation, gates: dict[str, float], ui: Ui) -> Evaluation:
    """Print the first numbers, the comparison with baselines, and the path of the report; then check the gates."""
    metrics = evaluation.metrics
    if metrics.identity:
        ui.say(metrics.identity)
    ui.say(headline(metrics))
    for note in metrics.notes:
        if note not in metrics.report.notes:  # already printed
            ui.warn(note)
    for baseline in metrics.baselines.values():
        ui.say(verdict(baseline, metrics.n_groups))
    if metrics.external is not None:
        ui.say(_own_test(metrics.external))
    page, tables = evaluation.folder / REPORT, evaluation.folder / NUMBERS
    ui.say(f"report: {page}" if page.is_file() else f"numbers, without figures and page: {tables}")
    check_gates(gates, evaluation.metrics, evaluation)
    return evaluation


def headline(metrics: Results) -> str:
    """The first numbers, each in a line that a narrow terminal holds; then what their intervals are."""
    found = [(METRICS[name].title, metrics.overall[name]) for name in HEADLINE[:3]]
    how = "no intervals"
    if any(one.low is not None for _, one in found):
        how = f"95 % intervals {metrics.resampling}"
    optimistic = "; likely optimistic" if metrics.n_groups is None else ""
    return "\n".join([*(f"{title} {_with_interval(one)}" for title, one in found), f"{how}{optimistic}"])


def _with_interval(found: Estimate, sign: str = "") -> str:
    """`0.911 (0.900 to 0.934)`; with the sign "+" the sign of each."""
    if found.value is None:
        return "undefined"
    limits = "" if found.low is None else f" ({found.low:{sign}.3f} to {found.high:{sign}.3f})"
    return f"{found.value:{sign}.3f}{limits}"


def verdict(baseline: Baseline, patients: int | None) -> str:
    """Whether the model is better than a baseline by AUROC, in a line; no verdict with very few patients.

    Args:
        baseline: one of `Results.baselines`.
        patients: how many were evaluated; None if unknown.
    """
    difference, gap = baseline.difference["auroc"], _with_interval(baseline.difference["auroc"], "+")
    text = f"baseline, {baseline.text}: AUROC {number(baseline.overall['auroc'].value)}"
    if difference.low is None or difference.high is None:
        return f"{text}; no interval for the difference"
    if patients is not None and patients < FEW_GROUPS:
        few = counted_doing(patients, "patient", "is", "are")
        return f"{text}; model - baseline {gap}, but {few} too few to conclude which is better"
    if difference.low > 0:
        return f"{text}; the model is better: {gap}"
    if difference.high < 0:
        return f"{text}; the BASELINE is better: {gap}"
    return f"{text}; the model is not shown to be better: {gap}"


def _own_test(found: External) -> str:
    """The evaluated images compared with the run's own test set, in a line."""
    pair = found.numbers["auroc"]
    gap = "no interval for the difference"
    if pair.difference.low is not None:
        gap = f"difference {_with_interval(pair.difference, '+')}"
    return f"on the run's own test set: AUROC {number(pair.internal.value)}; {gap}"


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
        sign = 1 if METRICS[name].higher_is_better else -1
        if value is None or not sign * value >= sign * limit:
            failed.append(f"{name} {'undefined' if value is None else f'{value:.4f}'}, asked for {limit:g}")
    if failed:
        raise GateError(f"the gate is not met: {'; '.join(failed)}", "look at the report for the errors", result)
