"""What an evaluation prints: the first numbers, the comparison with baselines and the own test set; and the gates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitmed.core.errors import GateError, UsageError, excluded, unknown_key
from vitmed.core.messages import gathering, is_warning, say, show, warn
from vitmed.core.run_folder import METHODS_TEXT, NUMBERS, REPORT, RunFolder
from vitmed.core.text import counted
from vitmed.decisions.evaluation_folder import find_evaluation, read_evaluation
from vitmed.decisions.targets import ALL_METRICS, RANKING, TARGETS
from vitmed.inference.saved_model import SavedModel
from vitmed.metrics.estimates import value_text
from vitmed.metrics.predictions import Predictions
from vitmed.report.blocks import number
from vitmed.report.chapters import baseline_verdicts, first_sentence
from vitmed.report.plots.drawing import plain
from vitmed.report.results import Results
from vitmed.report.templates import headline_of, if_balanced, main_methods, share


@dataclass(frozen=True)
class Evaluation:
    """The predictions, the metrics with intervals, and the folder of the report."""

    predictions: Predictions
    metrics: Results
    folder: Path


def known_evaluation(saved: SavedModel, split: str) -> Evaluation | None:
    """The complete evaluation of a split that the run folder holds of this model, as it decides; None without."""
    file = find_evaluation(RunFolder(saved.path.parent), split, saved.weights_hash, saved.policy)
    if file is None:
        return None
    found = read_evaluation(file)
    return Evaluation(found.predictions, Results.read(found.metrics), file.parent)


def report_evaluation(evaluation: Evaluation, gates: dict[str, float], warned: Sequence[str] = ()) -> Evaluation:
    """Print the first numbers, the gravest warning not in `warned`, and where the report is; check the gates."""
    metrics = evaluation.metrics
    page, tables = evaluation.folder / REPORT, evaluation.folder / NUMBERS
    with gathering() as kept:
        if metrics.identity:
            say(metrics.identity)
        if metrics.n:
            show(first_sentence(metrics))
        numbers, _, how = headline(metrics).rpartition("\n")
        show(numbers)
        say(how)
        if metrics.fixed_rates is not None:
            say("specificity  sensitivity")
            for rate in metrics.fixed_rates.sensitivity:
                say(f"{rate.fixed:<13.2f}{value_text(rate.reached)}{' (too few to say)' * rate.too_few}")
        table, curve = metrics.prevalence, metrics.decision_curve
        if table is not None and table.intended is not None and table.rows:
            say(table.sentence)
        if curve is not None and curve.intended is not None:
            say(curve.intended.sentence)
        for text in (*baseline_verdicts(metrics), *reader_lines(metrics)):
            show(text)
        if metrics.external is not None:
            name, pair = next(iter(metrics.external.numbers.items()))
            gap = f"difference {value_text(pair.difference, '+')}"
            gap = "no interval for the difference" if pair.difference.low is None else gap
            show(f"on the run's own test set: {ALL_METRICS[name].phrase} {number(pair.internal.value)}; {gap}")
        for note in metrics.notes:
            if note not in warned:
                (warn if is_warning(note) else say)(note)
        say(f"statistical methods, for a paper: {evaluation.folder / METHODS_TEXT}")
    kept.warn_gravest(f"{page if page.is_file() else tables}")
    also = "".join(f", {name}" for name in ("report.md", "paper") if (evaluation.folder / name).exists())
    show(f"report: {page}{also}" if page.is_file() else f"numbers, without figures and page: {tables}")
    check_gates(gates, evaluation.metrics, evaluation)
    return evaluation


def headline(metrics: Results) -> str:
    """The first numbers, each in a line that a narrow terminal holds; then what their intervals are."""
    numbers, other = headline_of(metrics), if_balanced(metrics)
    first = [line for k, line in enumerate(numbers) if k < 3 or (other and line[0] == "balanced_accuracy")] + other
    how = "no intervals"
    if any(number.low is not None for _, _, number in first):
        unit = "image" if metrics.n_groups is None else metrics.unit
        how = f"95 % intervals by {unit}: {main_methods(metrics)}"
    own = metrics.flow is not None and metrics.flow.evaluated is not None and metrics.flow.evaluated.split is not None
    optimistic = "; likely optimistic" if metrics.n_groups is None and own else ""
    return "\n".join([*(f"{plain(title)} {share(number)}" for _, title, number in first), f"{how}{optimistic}"])


def reader_lines(metrics: Results) -> list[str]:
    """Compare the model with readers on the images that all of them read: a line for each number."""
    lines = list[str]()
    for found in metrics.readers or ():
        title = ALL_METRICS[found.number].phrase if found.number in ALL_METRICS else found.number
        numbers = {"the model": found.model, **found.readers}
        line = f"{title} on {counted(found.n, 'image')}: "
        line += ", ".join(f"{who} {value_text(own)}" for who, own in numbers.items())
        whom, alone = ("mean of the readers", "these readers") if len(found.readers) > 1 else ("reader", "this reader")
        for test, about in ((found.random_readers, "readers like these"), (found.fixed_readers, f"{alone} alone")):
            if test is not None and test.difference.value is not None:
                line += f"; model minus {whom} {value_text(test.difference, '+')} for {about}"
        lines.append(line)
    return lines


def check_page(flags: Mapping[str, Any]) -> None:
    """Raise UsageError for a setting of the page alone, where no page is asked for."""
    if flags.get("report") is False and (given := [flag for flag in ("format", "show_names") if flags.get(flag)]):
        raise excluded("page", given=", ".join(f"--{flag.replace('_', '-')}" for flag in given))


def parse_gates(texts: Sequence[str], kind: str = "") -> dict[str, float]:
    """["auroc=0.9"] -> {"auroc": 0.9}. Raises UsageError, also for percent, and a metric that a kind of label lacks."""
    gates, names = {}, [name for name in sorted(RANKING) if not kind or name in TARGETS[kind].metrics]
    for text in texts:
        name, _, value = text.partition("=")
        if name not in names:
            raise unknown_key(f"metric{kind and f' of {kind}'}", name, names)
        try:
            gates[name] = float(value)
        except ValueError:
            gates[name] = math.nan
        if math.isnan(gates[name]) or (gates[name] > 1 and ALL_METRICS[name].higher_is_better):
            raise UsageError(f"--fail-under {text}: expected metric=value", "for example auroc=0.9, not auroc=90")
    return gates


def check_gates(gates: dict[str, float], metrics: Results, result: object) -> None:
    """Raises GateError, which carries `result`, where a metric is worse than its gate, or undefined."""
    failed = []
    for name, limit in gates.items():
        value = metrics.overall[name].value if name in metrics.overall else None
        sign = 1 if ALL_METRICS[name].higher_is_better else -1
        if value is None or not sign * value >= sign * limit:
            failed.append(f"{name} {'undefined' if value is None else f'{value:.6g}'}, asked for {limit:g}")
    if failed:
        raise GateError(f"the gate is not met: {'; '.join(failed)}", "look at the report for the errors", result)
