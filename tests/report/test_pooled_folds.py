"""The pooled page of folds says what decides there, once and with repeats; folds made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from reports import write_report

from vitmed.core.config import EvaluateConfig
from vitmed.decisions.evaluation_folder import folds_of_classes
from vitmed.decisions.policy import choose_policy
from vitmed.metrics.ensembles import out_of_fold
from vitmed.metrics.kinds.classes import evaluate_predictions, metric_values
from vitmed.metrics.predictions import Predictions

TARGET = EvaluateConfig(resamples=0, target_sensitivity=0.9, format="md")


def draw(seed: int, rows: range) -> Predictions:
    """80 images of 40 patients; half of them are positive."""
    labels, rng = np.arange(len(rows)) % 4 // 2, np.random.default_rng(seed)
    logits = np.stack([np.zeros(len(rows)), 2 * labels - 1 + rng.normal(size=len(rows))], axis=1)
    paths, groups = tuple(f"{row}.png" for row in rows), tuple(f"p{row // 2}" for row in rows)
    return Predictions(("no", "yes"), paths, groups, labels, logits.astype(np.float32), positive="yes")


def pages(folder: Path, repeats: int = 1) -> tuple[str, str]:
    """report.md and methods.md of two folds, divided once or more."""
    policies = [choose_policy(draw(seed, range(100, 180)), TARGET) for seed in range(2 * repeats)]
    tests = [policy.apply(draw(9 + k, range(40 * (k % 2), 40 * (k % 2) + 40))) for k, policy in enumerate(policies)]
    pooled, each = out_of_fold(tests, 2), [evaluate_predictions(test, 0) for test in tests]
    folds = folds_of_classes(each, policies, ("auroc", "accuracy"), metric_values(pooled)["auroc"], TARGET)
    write_report(folder, pooled, TARGET, folds=folds, figures=())
    return (folder / "report.md").read_text(), (folder / "methods.md").read_text()


def test_the_checklists_name_the_thresholds_that_each_fold_chose(tmp_path: Path) -> None:
    page, _ = pages(tmp_path)
    rows = [line for line in page.splitlines() if "thresholds that each fold chose" in line]
    assert len(rows) == 2 and not [row for row in rows if "not in this report" in row]
