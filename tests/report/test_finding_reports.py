"""The report of several findings: shares with their intervals, axes of shares, and a folder for each finding."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import draw_nothing
from every_kind import evaluate_findings
from reports import write_report
from scipy.stats import binomtest

from vitmed.core.base_models import UNKNOWN
from vitmed.core.config import EvaluateConfig
from vitmed.decisions.policy import choose_policy
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.report import write
from vitmed.report.chapters import MAIN, MANY, Plot, plots
from vitmed.report.plots.evaluation import by_finding
from vitmed.report.results import Results
from vitmed.report.templates import environment
from vitmed.report.write import folder_names


def drawn(findings: int = 3, images: int = 120, skill: float = 2.0) -> FindingPredictions:
    """Images of unknown patients; a tenth of the labels is not known."""
    rng = np.random.default_rng(0)
    labels = (rng.random((images, findings)) < 0.3).astype(np.int8)
    logits = np.float32(skill * (labels - 0.5) + rng.normal(size=labels.shape))
    labels[rng.random(labels.shape) < 0.1] = UNKNOWN
    names = tuple(f"finding {k}" for k in range(findings))
    return FindingPredictions(names, tuple(map(str, range(images))), None, labels, logits)


def test_misses_and_false_alarms_have_the_interval_of_scipy(tmp_path: Path, no_figures: None) -> None:
    p = drawn()
    write_report(tmp_path, p, title="t", facts={}, config=EvaluateConfig(resamples=0))
    text = (tmp_path / "report.html").read_text()
    for k in range(3):
        for value in (0, 1):
            labelled = p.labels[:, k] == value
            wrong, n = int((p.predicted[labelled, k] != value).sum()), int(labelled.sum())
            low, high = (f"{100 * end:.1f}" for end in binomtest(wrong, n).proportion_ci(method="wilson"))
            assert f"<td>{wrong} <small>({100 * wrong / n:.1f} %, {low} to {high} %)</small></td>" in text


def test_what_is_pasted_into_a_paper_names_the_findings_that_a_mean_counts(tmp_path: Path, no_figures: None) -> None:
    """Two of three: of the third, four images have it."""
    p = drawn()
    p.labels[:, 2] = 0
    p.labels[:4, 2] = 1
    found = write_report(tmp_path, p, title="t", facts={}, config=EvaluateConfig(resamples=0))
    caption = environment().from_string(plots()["by_finding"].text).render(metrics=found)
    assert "The dashed line is the mean over 2 of 3 findings, those that at least 5 images have" in caption
    text = (tmp_path / "methods.md").read_text()
    assert text.count("means over 2 of 3 findings, those that at least 5 images have and 5 lack") == 2
    assert "classes" not in text


def test_each_finding_stands_beside_its_threshold_and_the_methods_name_the_rule(
    tmp_path: Path, no_figures: None
) -> None:
    """Four images have the third, too few to choose its threshold."""
    p, config = drawn(), EvaluateConfig(resamples=0, target_sensitivity=0.8, format="paper")
    p.labels[:, 2] = 0
    p.labels[:4, 2] = 1
    policy = choose_policy(p, config)
    decided = policy.apply(p)
    write_report(tmp_path / "r", decided, config, title="t", policy=policy)
    tables = (csv.DictReader(file.open()) for file in (tmp_path / "r" / "paper").glob("findings-*.csv"))
    shown = {row["Finding"]: row["Threshold"] for table in tables for row in table}
    assert shown == {"finding 2": "0.5"} | {p.classes[k]: f"{decided.thresholds[k]:.3f}" for k in (0, 1)}
    rule = "a threshold of its own, chosen on validation images (target sensitivity 0.8), or from 0.5 where none"
    assert f"Each finding was called from {rule} could be chosen." in (tmp_path / "r" / "methods.md").read_text()


def test_an_image_without_a_finding_counts_calls_of_known_labels_alone(tmp_path: Path, no_figures: None) -> None:
    """A call where the label is unknown is no error, so the page does not say that nothing is called there."""
    p = drawn()
    found = write_report(tmp_path, p, title="t", facts={}, config=EvaluateConfig(resamples=0))
    free = ~(p.labels == 1).any(axis=1)
    known = (~(p.predicted & (p.labels >= 0)).any(axis=1))[free].mean()
    assert known > (~p.predicted.any(axis=1))[free].mean()
    assert found.overall["no_finding_specificity"].value == pytest.approx(known)
    text = " ".join((tmp_path / "report.html").read_text().split())
    assert f"The model calls none of these findings in {known:.3f}" in text
    assert "Share of images without any known finding in which no known one is called." in text


def test_subgroups_of_rare_findings_are_missed_in_words(tmp_path: Path, no_figures: None) -> None:
    p = drawn(images=12)
    p = replace(p, labels=(np.arange(36).reshape(12, 3) < 6).astype(np.int8), columns={"site": tuple("ab" * 6)})
    found = write_report(tmp_path, p, title="t", facts={}, config=EvaluateConfig(resamples=0, subgroups=["site"]))
    assert "No subgroups: fewer than 5 patients or images have each finding, or are without it." in found["notes"]


def test_axes_of_shares_end_at_0_and_1() -> None:
    for skill in (0.0, 99.0):
        p = drawn(skill=skill)
        figure = by_finding(p, Results.of(evaluate_findings(p)))
        assert len(figure.axes) > 0
        for axes in figure.axes:
            low, high = axes.get_xlim()
            shown = np.concatenate([np.asarray(line.get_xdata(), float) for line in axes.lines])
            assert 0 <= low <= shown.min() and shown.max() <= high == 1


def test_names_of_folders_are_plain_and_differ() -> None:
    names = folder_names(("Pleural effusion", "pleural_effusion", "é", "ö"))
    assert list(names.values()) == ["pleural-effusion", "pleural-effusion-2", "finding", "finding-2"]
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in names.values())


@pytest.mark.slow
def test_reports_of_many_findings_have_every_number_and_three_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those of few findings all figures."""
    draw_nothing(monkeypatch)
    plot = Plot("a figure", "", lambda predictions, found: object())
    monkeypatch.setattr(write, "plots", lambda: dict.fromkeys(("confusion_matrix", *MAIN), plot))
    for findings in (MANY, MANY + 1):
        folder = tmp_path / str(findings)
        found = write_report(folder, drawn(findings), title="t", facts={}, config=EvaluateConfig(resamples=0))
        own = [(folder / page).parent for page in found.finding_reports.values()]
        assert len(own) == findings
        for place in own:
            names = {file.stem for file in place.glob("*.png")}
            assert names == set(MAIN) | ({"confusion_matrix"} if findings == MANY else set())
        numbers = Results.read(json.loads((own[0] / "metrics.json").read_text()))
        assert numbers.decision_curve and numbers.calibration and numbers.per_class["finding 0"].auroc.low is not None
        assert ("draws all" in (folder / "report.html").read_text()) == (findings > MANY)
