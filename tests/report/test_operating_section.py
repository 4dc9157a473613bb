"""What the chapter on thresholds and prevalence says: the sentences of metrics.json and of the terminal."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import recording
from reports import write_report
from scipy.special import softmax
from sklearn.metrics import balanced_accuracy_score

from vitmed.core.config import EvaluateConfig
from vitmed.decisions.policy import choose_policy
from vitmed.metrics.predictions import Predictions
from vitmed.report.headline import Evaluation, headline, report_evaluation
from vitmed.report.results import Results
from vitmed.report.templates import results_sentence

pytestmark = pytest.mark.usefixtures("no_figures")


def draw(classes: int = 2, size: int = 400) -> Predictions:
    rng = np.random.default_rng(classes)
    labels = rng.integers(classes, size=size)
    logits = (rng.normal(size=(size, classes)) + 2 * np.eye(classes)[labels]).astype(np.float32)
    names = ("healthy", "ill") if classes == 2 else tuple(f"class {c}" for c in range(classes))
    groups = tuple(f"p{i % 50}" for i in range(size))
    return Predictions(names, tuple(map(str, range(size))), groups, labels.astype(np.int64), logits)


def written(folder: Path, p: Predictions, **fields: Any) -> tuple[str, Results, list[str]]:
    """The text of the page, the results, and what the terminal prints."""
    metrics = write_report(folder, p, title="t", facts={}, config=EvaluateConfig(resamples=50, **fields))
    ui = recording()
    report_evaluation(Evaluation(p, metrics, folder), {})
    return " ".join(html.unescape((folder / "report.html").read_text()).split()), metrics, ui.said


def test_page_and_terminal_say_what_holds_at_the_intended_prevalence(tmp_path: Path) -> None:
    text, metrics, said = written(tmp_path, draw(), prevalence=0.01)
    table, curve = metrics.prevalence, metrics.decision_curve
    assert "not clearly better" in curve.intended.sentence and "is clearly better" in curve.sentence
    for sentence in (table.sentence, curve.intended.sentence):
        assert sentence in text and sentence in said
    assert curve.sentence in text and curve.sentence.startswith("Among these images (")
    assert text.count("clearly better than acting on all") == 2  # each names its prevalence
    assert Results.read(metrics.to_dict()) == metrics


def test_the_sentence_for_a_paper_says_how_one_of_three_classes_is_predicted(tmp_path: Path) -> None:
    dear = {"cost": [[0, 1, 1], [9, 0, 1], [1, 4, 0]]}
    ways = ({"balanced": True}, "relative to its mean on validation"), (dear, "lowest expected cost"), ({}, "")
    for number, (wish, rule) in enumerate(ways):
        config = EvaluateConfig(report=False, **wish)
        policy = choose_policy(draw(3), config)
        results = write_report(tmp_path / str(number), policy.apply(draw(3)), config, policy=policy, title="t")
        assert ("(decided by the " in results_sentence(results)) == bool(rule)
        assert f"{rule}{')' * bool(rule)}; in brackets" in results_sentence(results)


def test_without_a_prevalence_the_terminal_says_nothing_of_it(tmp_path: Path) -> None:
    text, metrics, said = written(tmp_path, draw())
    assert metrics.decision_curve.intended is None and "At the intended prevalence" not in text
    assert not any("at a prevalence of" in line or "intended" in line for line in said)


def test_the_row_that_is_counted_is_marked_and_stands_apart(tmp_path: Path) -> None:
    """It has the interval of the headline; the computed ones have another method."""
    text, metrics, _ = written(tmp_path, draw(), prevalence=0.3)
    share = 100 * metrics.prevalence.observed
    assert f"{share:.3g} % (these images, counted)" in text and "30 % (intended)" in text
    assert text.index("(these images, counted)") < text.index(">0.1 %<")
    methods = {row.ppv.method for row in metrics.prevalence.rows if row.prevalence != metrics.prevalence.observed}
    assert methods == {"mover"} and "The first row counts the results on these images" in text
    assert "What a result means at another prevalence of ill" in text and "where ill is rarer" not in text


def test_roc_are_the_same_on_the_page_and_in_the_terminal(tmp_path: Path) -> None:
    text, metrics, said = written(tmp_path, draw())
    found = metrics.fixed_rates
    start = next(i for i, line in enumerate(said) if line.startswith("specificity  sensitivity"))
    for one, line in zip(found.sensitivity, said[start + 1 :], strict=False):
        assert line.startswith(f"{one.fixed:.2f}         {one.reached.value:.3f}") and len(line) < 80
        limits = "too few to say" if one.too_few else f"{one.reached.low:.3f} to {one.reached.high:.3f}"
        assert f"<td>{one.reached.value:.3f} <small>({limits})</small></td>" in text
        assert ("(too few to say)" in line) == one.too_few
    assert found.sensitivity[3].too_few  # 0.99 of about 200 negatives


def test_classes_far_apart_have_both_balanced_accuracies_on_the_first_screen(tmp_path: Path) -> None:
    """As scikit-learn computes them: of the likeliest class, and of the class that is likely for how common it is."""

    def said_of(p: Predictions, **fields: Any) -> tuple[list[str], str]:
        config = EvaluateConfig(resamples=50, calibration="none", **fields)
        policy = choose_policy(p, config, None, None)
        assert policy is not None
        folder = tmp_path / f"{len(p.labels)} {fields}"
        metrics = write_report(folder, policy.apply(p), title="t", facts={}, config=config, policy=policy)
        return headline(metrics).split("\n"), (folder / "report.html").read_text()

    drawn = draw(3, 1200)
    p = drawn.take(np.flatnonzero((drawn.labels < 2) | (np.arange(1200) % 10 == 0)))  # a tenth of the third class
    common = np.log(np.bincount(p.labels) / len(p.labels)).astype(np.float32)
    p = replace(p, logits=p.logits + common)  # as a network learns it
    chance = softmax(p.logits.astype(np.float64), axis=1)
    likeliest = balanced_accuracy_score(p.labels, chance.argmax(axis=1))
    balanced = balanced_accuracy_score(p.labels, (chance / chance.mean(axis=0)).argmax(axis=1))
    assert balanced > likeliest + 0.02
    lines, text = said_of(p)
    assert [line.split(" (")[0] for line in lines if line.startswith("Balanced")] == [
        f"Balanced accuracy {likeliest:.3f}", f"Balanced accuracy with --balanced {balanced:.3f}",
    ]  # fmt: skip
    assert "<dt>Balanced accuracy with --balanced</dt>" in text
    lines, text = said_of(p, balanced=True)  # then it decides, and the likeliest class stands beside it
    assert [line.split(" (")[0] for line in lines if line.startswith("Balanced")] == [
        f"Balanced accuracy {balanced:.3f}", f"Balanced accuracy by the likeliest class {likeliest:.3f}",
    ]  # fmt: skip
    assert "deciding by the largest probability relative to its mean on validation" in text
    assert not any(" --balanced" in line or "likeliest" in line for line in said_of(drawn)[0])
    lines, _ = said_of(p, ordinal=list(p.classes))  # of grades, whose first three numbers are others
    assert [line.split(" 0.")[0] for line in lines[3:5]] == ["Balanced accuracy", "Balanced accuracy with --balanced"]
