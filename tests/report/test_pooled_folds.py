"""The pooled page of folds says what decides there, once and with repeats; folds made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from reports import write_report

from vitmed.core.config import EvaluateConfig
from vitmed.decisions.evaluation_folder import folds_of_classes
from vitmed.decisions.policy import choose_policy
from vitmed.metrics.ensembles import out_of_fold
from vitmed.metrics.kinds.classes import evaluate_predictions, metric_values
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import ANSWER
from vitmed.report.analyses import Extra
from vitmed.report.chapters import first_sentence
from vitmed.report.methods_text import methods_text
from vitmed.report.plots.analyses import reliability
from vitmed.report.results import Origin
from vitmed.report.templates import results_sentence
from vitmed.report.write import Report

TARGET = EvaluateConfig(resamples=0, target_sensitivity=0.9, calibration="none", format="md")


def draw(seed: int, rows: range) -> Predictions:
    """Images of patients with two each; every other patient is positive."""
    labels, rng = np.arange(len(rows)) % 4 // 2, np.random.default_rng(seed)
    logits = np.stack([np.zeros(len(rows)), 2 * labels - 1 + rng.normal(size=len(rows))], axis=1)
    paths, groups = tuple(f"{row}.png" for row in rows), tuple(f"p{row // 2}" for row in rows)
    return Predictions(("no", "yes"), paths, groups, labels, logits.astype(np.float32), positive="yes")


def pages(folder: Path, repeats: int = 1) -> tuple[str, str]:
    """report.md and methods.md of two folds, divided once or more."""
    policies = [choose_policy(draw(seed, range(100, 180)), TARGET) for seed in range(2 * repeats)]
    tests = [policy.apply(draw(9 + k, range(40 * (k % 2), 40 * (k % 2) + 40))) for k, policy in enumerate(policies)]
    pooled, each = out_of_fold(tests, 2), [evaluate_predictions(test) for test in tests]
    folds = folds_of_classes(each, policies, ("auroc", "accuracy"), metric_values(pooled)["auroc"], TARGET)
    figure = reliability(pooled, write_report(folder, pooled, TARGET, folds=folds, figures=()))
    assert figure is not None and "not calibrated: ECE" in str(figure.axes[0].get_legend_handles_labels()[1])
    return (folder / "report.md").read_text(), (folder / "methods.md").read_text()


def test_the_checklists_name_the_thresholds_that_each_fold_chose(tmp_path: Path) -> None:
    page, methods = pages(tmp_path)
    rows = [line for line in page.splitlines() if "thresholds that each fold chose" in line]
    assert len(rows) == 2 and not [row for row in rows if "not in this report" in row]
    assert "Each image keeps the decision of its own fold" in page
    assert "was called positive from the threshold that each fold chose" in methods
    assert "as chosen on validation images: not calibrated." in methods  # by no fold


def test_the_words_count_the_folds_that_chose_a_threshold() -> None:
    tests, none = [draw(9, range(40)), draw(10, range(40, 80))], EvaluateConfig(calibration="none")
    policies = [choose_policy(draw(5 + k, range(100, 180)), way) for k, way in enumerate((TARGET, none))]
    pooled = out_of_fold([of.apply(test) for of, test in zip(policies, tests, strict=True)], 2)
    each = [evaluate_predictions(test) for test in tests]
    folds = folds_of_classes(each, policies, ("auroc", "accuracy"), 0.9, TARGET)
    found = Report.of(pooled, Origin(title="x"), TARGET, Extra(folds=folds)).results
    assert "at the threshold that 1 of 2 folds chose (target sensitivity 0.9), and 0.5 in the" in first_sentence(found)
    rule = "each model from its own threshold, target sensitivity 0.9, or from 0.5 where none could be chosen)"
    assert rule in results_sentence(found)
    assert (
        "chose on its own validation images, or from 0.5 where it could choose none."
        in methods_text(found).paragraphs[0]
    )


def test_of_repeated_folds_most_of_the_models_that_never_saw_an_image_decide(tmp_path: Path) -> None:
    page, methods = pages(tmp_path, repeats=2)
    assert "own fold" not in page and "those of the mean of the 2 models that never saw an image" in page
    assert "was called positive if most of these models (of a tie, their mean) called it so" in methods


def test_a_finding_is_called_from_what_its_folds_chose_and_its_report_counts_no_answer_to_all_findings() -> None:
    tests, config = [draw(1, range(40)), draw(2, range(40, 80))], EvaluateConfig(resamples=0, report=False)
    labels, logits = np.concatenate([test.labels for test in tests]), np.concatenate([t.logits[:, 1] for t in tests])
    pooled = FindingPredictions(
        ("edema", "mass"),
        tuple(map(str, range(80))),
        tuple(f"p{row // 2}" for row in range(80)),
        np.stack([labels] * 2, axis=1).astype(np.int8),
        np.stack([logits] * 2, axis=1),
        columns={ANSWER: ("yes", "no: mass is too unsure for the chosen risk") * 40},
    )
    own = "a threshold of its own in each fold, chosen on validation images (target sensitivity 0.9)"
    none = EvaluateConfig(calibration="none")
    for asked, second, threshold, rule in (
        (none, none, "0.5", "a probability of 0.5"),
        (TARGET, TARGET, "that each fold chose", own),
        (
            TARGET,
            none,
            "that 1 of 2 folds chose, and 0.5 in the others",
            f"{own}, or from 0.5 where none could be chosen",
        ),
    ):
        policies = [choose_policy(draw(5 + k, range(100, 180)), way) for k, way in enumerate((asked, second))]
        each = [evaluate_predictions(test) for test in tests]
        of_one = folds_of_classes(each, policies, ("auroc", "accuracy"), 0.9, asked)
        folds = of_one.model_copy(update={"findings": dict.fromkeys(pooled.classes, of_one)})
        report = Report.of(pooled, Origin(title="x"), config, Extra(folds=folds))
        assert f"of the others at the threshold {threshold}." in first_sentence(report.results)
        assert f"Each finding was called from {rule}." in methods_text(report.results).paragraphs[0]
        each, policies = each * 2, policies * 2  # the images were divided twice
        twice = folds_of_classes(each, policies, ("auroc", "accuracy"), 0.9, asked)
        twice = twice.model_copy(update={"findings": dict.fromkeys(pooled.classes, twice)})
        vote = "if most of these models (of a tie, their mean) called it so, each " * (asked is TARGET)
        text = methods_text(report.results.model_copy(update={"folds": twice})).paragraphs[0]
        assert f"Each finding was called {vote}from {rule}." in text
        assert len(report.findings) == 2 and all(of.results.answers is None for of in report.findings.values())
        assert all(ANSWER not in of.predictions.columns for of in report.findings.values())


def test_of_repeated_folds_with_costs_the_methods_name_the_vote() -> None:
    tests, costs = [draw(9, range(40)), draw(10, range(40, 80))], [[0.0, 1.0, 5.0], [1.0, 0.0, 1.0], [4.0, 1.0, 0.0]]
    three, names = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32), ("a", "b", "c")
    tests = [replace(test, classes=names, positive=None, logits=three[:40]) for test in tests]
    for config, vote in (
        (EvaluateConfig(resamples=0, report=False, cost=costs), " by most of these models; of a tie, by their mean"),
        (EvaluateConfig(resamples=0, report=False), ""),
    ):
        validation = replace(draw(1, range(80)), classes=names, positive=None, labels=np.arange(80) % 3, logits=three)
        policy = choose_policy(validation, config)
        pooled = out_of_fold([policy.apply(test) for test in tests * 2], 2)
        each = [evaluate_predictions(test) for test in tests * 2]
        folds = folds_of_classes(each, [policy] * 4, ("auroc", "accuracy"), 0.9, config)
        text = methods_text(Report.of(pooled, Origin(title="x"), config, Extra(folds=folds)).results).paragraphs[0]
        way = "lowest expected cost" if vote else "largest probability"
        assert f"The class with the {way} was predicted{vote}." in text
