"""A probability equal to the threshold is positive, in every part of a report and in the table that is read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitmed.core.config import EvaluateConfig
from vitmed.decisions.operating_points import choose_points, report_points
from vitmed.metrics.clinical_utility import decision_curve
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions

CONFIG = EvaluateConfig(resamples=0)


def with_ties(positive_first: bool) -> Predictions:
    """200 images, of which 40 have exactly one half for both classes."""
    rng = np.random.default_rng(3)
    truth = rng.random(200) < 0.5
    odds = np.round(rng.normal(2.0 * truth - 1.0, 1.5)).astype(np.float32)
    odds[:40] = 0
    logits = np.stack([odds, np.zeros(200, np.float32)], axis=1)
    if positive_first:
        return Predictions(("infected", "uninfected"), tuple(map(str, range(200))), None, np.where(truth, 0, 1), logits)
    return Predictions(("healthy", "ill"), tuple(map(str, range(200))), None, truth.astype(np.int64), logits[:, ::-1])


@pytest.mark.parametrize("positive_first", [True, False])
def test_every_part_and_the_table_that_is_read_back_count_a_tie_alike(positive_first: bool, tmp_path: Path) -> None:
    p = with_ties(positive_first)
    positive = 0 if positive_first else 1
    truth, scores = p.labels == positive, p.probabilities[:, positive]
    hits, alarms = int((truth & (scores >= 0.5)).sum()), int((~truth & (scores >= 0.5)).sum())
    assert (scores == 0.5).sum() >= 40
    name = p.classes[positive]
    numbers = evaluate_predictions(p).per_class[name]
    assert numbers.sensitivity.value == hits / truth.sum()
    assert numbers.specificity.value == pytest.approx(1 - alarms / (~truth).sum())
    for operating in (None, choose_points(p, CONFIG)):
        reached = report_points(p, operating, CONFIG).points["default"].reached
        assert (reached.counts.tp, reached.counts.fp) == (hits, alarms)
    net = decision_curve(p, CONFIG)
    assert net.model[net.thresholds.index(0.5)].value == pytest.approx((hits - alarms) / 200)
    (tmp_path / "predictions.csv").write_text(p.to_csv())
    again = Predictions.from_csv(tmp_path / "predictions.csv")
    assert (again.predicted == p.predicted).all() and again.to_csv() == p.to_csv() and not again.notes


@pytest.mark.parametrize("positive_first", [True, False])
def test_a_chosen_threshold_that_an_image_meets_calls_it_positive(positive_first: bool) -> None:
    p = with_ties(positive_first)
    positive = 0 if positive_first else 1
    cut = float(np.sort(p.probabilities[:, positive])[60])
    q = replace(p, positive=p.classes[positive], threshold=cut)
    assert ((q.predicted == positive) == (p.probabilities[:, positive] >= cut)).all()
    assert (q.predicted[p.probabilities[:, positive] == cut] == positive).all()


def test_of_more_classes_the_first_of_the_likeliest_or_cheapest_is_predicted() -> None:
    logits = np.array([[1, 1, 0], [0, 2, 2], [3, 3, 3], [0, 1, 2]], np.float32)
    p = Predictions(("a", "b", "c"), ("x",) * 4, None, np.zeros(4, np.int64), logits)
    assert p.predicted.tolist() == [0, 1, 0, 2]
    even = replace(p, costs=((0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0)))
    assert even.predicted.tolist() == [0, 1, 0, 2]
