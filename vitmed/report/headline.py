"""What an evaluation prints: the first numbers, the comparison with baselines and the own test set; and the gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitmed.core.base_models import Kind
from vitmed.core.errors import GateError, UsageError, unknown_key
from vitmed.core.messages import say, warn
from vitmed.core.run_folder import METHODS_TEXT, NUMBERS, REPORT, RunFolder
from vitmed.core.text import counted_doing, listed
from vitmed.decisions.evaluation_folder import find_evaluation, is_torn, read_evaluation
from vitmed.decisions.targets import ALL_METRICS, RANKING, TARGETS
from vitmed.inference.saved_model import SavedModel
from vitmed.metrics.estimates import value_text
from vitmed.metrics.fixed_rates import FixedRates
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.report.external_data import External
from vitmed.report.results import Baseline, Results
from vitmed.report.templates import main_methods, number, title_of


@dataclass(frozen=True)
class Evaluation:
    """The predictions, the metrics with intervals, and the folder of the report."""

    predictions: AnyPredictions
    metrics: Results
    folder: Path


def known_evaluation(saved: SavedModel, split: str) -> Evaluation | None:
    """The complete evaluation of a split that the run folder holds of these weights; None where there is none."""
    file = find_evaluation(RunFolder(saved.path.parent), split, saved.weights_hash, saved.policy)
    if file is None or is_torn(file.parent):
        return None
    found = read_evaluation(file)
    return Evaluation(found.predictions, Results.read(found.metrics), file.parent)


def report_evaluation(evaluation: Evaluation, gates: dict[str, float]) -> Evaluation:
    """Print the first numbers, the comparison with baselines, and the path of the report; then check the gates."""
    metrics = evaluation.metrics
    if metrics.identity:
        say(metrics.identity)
    say(headline(metrics))
    for line in (*fixed_lines(metrics.fixed_rates), *intended_lines(metrics)):
        say(line)
    for note in metrics.notes:
        if note not in metrics.report.notes:  # already printed
            warn(note)
    for baseline in metrics.baselines.values():
        say(verdict(baseline, metrics.n_groups, metrics.target.kind, metrics.unit))
    if metrics.external is not None:
        say(_own_test(metrics.external))
    page, tables = evaluation.folder / REPORT, evaluation.folder / NUMBERS
    say(f"report: {page}" if page.is_file() else f"numbers, without figures and page: {tables}")
    if page.is_file():
        say(f"statistical methods, for a paper: {evaluation.folder / METHODS_TEXT}")
    check_gates(gates, evaluation.metrics, evaluation)
    return evaluation


def headline(metrics: Results) -> str:
    """The first numbers, each in a line that a narrow terminal holds; then what their intervals are."""
    names = TARGETS[metrics.target.kind].headline[:3]
    found = [(title_of(metrics, name), metrics.overall[name]) for name in names]
    how = "no intervals"
    if any(one.low is not None for _, one in found):
        unit = "image" if metrics.n_groups is None else metrics.unit
        how = f"95 % intervals by {unit}: {main_methods(metrics)}"
    optimistic = "; likely optimistic" if metrics.n_groups is None else ""
    return "\n".join([*(f"{title} {value_text(one)}" for title, one in found), f"{how}{optimistic}"])


def fixed_lines(found: FixedRates | None) -> list[str]:
    """Sensitivity at each fixed specificity, as a table that a narrow terminal holds."""
    if found is None:
        return []
    few = {True: " (too few to say)", False: ""}
    rows = [f"{one.fixed:<13.2f}{value_text(one.reached)}{few[one.too_few]}" for one in found.sensitivity]
    return [f"{'specificity':13}sensitivity", *rows]


def intended_lines(metrics: Results) -> list[str]:
    """What results and actions are worth at the intended prevalence; nothing where none was given."""
    table, curve = metrics.prevalence, metrics.decision_curve
    known = table is not None and table.intended is not None and table.rows
    lines = [table.sentence] if table is not None and known else []
    return [*lines, curve.intended.sentence] if curve is not None and curve.intended is not None else lines


def verdict(baseline: Baseline, patients: int | None, kind: Kind = "classes", unit: str = "patient") -> str:
    """Whether the model is better than a baseline, in a line; no verdict with very few patients.

    Args:
        baseline: one of `Results.baselines`.
        patients: how many were evaluated; None if unknown.
        kind: of labels.
        unit: what one of the patients is called.
    """
    name, standing = baseline.decides, baseline.standing(patients)
    gap = value_text(baseline.difference[name], "+")
    title = TARGETS[kind].metrics[name].phrase
    text = f"baseline, {baseline.text}: {title} {number(baseline.overall[name].value)}"
    if standing == "no interval":
        return f"{text}; no interval for the difference"
    if standing == "few patients":
        few = counted_doing(patients or 0, unit)
        return f"{text}; model - baseline {gap}, but {few} too few to conclude which is better"
    single = ""
    if baseline.findings:
        every = len(baseline.beaten_for) == len(baseline.findings)
        single = f"; of single findings better for {'all' if every else listed(baseline.beaten_for) or 'none'}"
    if standing == "better":
        return f"{text}; the model is better: {gap}{single}"
    if standing == "worse":
        return f"{text}; the BASELINE is better: {gap}{single}"
    return f"{text}; the model is not shown to be better: {gap}{single}"


def _own_test(found: External) -> str:
    """The evaluated images compared with the run's own test set, in a line."""
    pair = found.numbers["auroc"]
    gap = "no interval for the difference"
    if pair.difference.low is not None:
        gap = f"difference {value_text(pair.difference, '+')}"
    return f"on the run's own test set: AUROC {number(pair.internal.value)}; {gap}"


def parse_gates(texts: str | Sequence[str]) -> dict[str, float]:
    """["auroc=0.9"] -> {"auroc": 0.9}. Raises UsageError."""
    gates = {}
    for text in [texts] if isinstance(texts, str) else texts:
        name, _, value = text.partition("=")
        if name not in RANKING:
            raise unknown_key("metric", name, sorted(RANKING))
        try:
            gates[name] = float(value)
        except ValueError:
            raise UsageError(f"--fail-under {text}: expected metric=value", "for example auroc=0.9") from None
    return gates


def check_gates(gates: dict[str, float], metrics: Results, result: object) -> None:
    """Raises GateError, which carries `result`, where a metric is worse than its gate, or undefined."""
    failed = []
    for name, limit in gates.items():
        value = metrics.overall[name].value if name in metrics.overall else None
        sign = 1 if ALL_METRICS[name].higher_is_better else -1
        if value is None or not sign * value >= sign * limit:
            failed.append(f"{name} {'undefined' if value is None else f'{value:.4f}'}, asked for {limit:g}")
    if failed:
        raise GateError(f"the gate is not met: {'; '.join(failed)}", "look at the report for the errors", result)
