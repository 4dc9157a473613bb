"""Intervals around a predicted number: the quantile by hand, the guarantee by simulation, and too few images."""

from dataclasses import replace

import numpy as np
import pytest
from every_kind import evaluate_number

from vitmed.core.base_models import Target
from vitmed.decisions.conformal import IntervalReach, fit_intervals
from vitmed.metrics.kinds.number import NumberPredictions


def draw(rng: np.random.Generator, patients: int, images: int = 1) -> NumberPredictions:
    """Errors that grow with a predicted scale, which is three times too small; patients are more or less hard."""
    patient = np.repeat(np.arange(patients), images)
    scales, hard = rng.uniform(0.5, 2, len(patient)), rng.lognormal(0, 0.8, patients)
    error = 3 * scales * hard[patient] * rng.normal(size=len(patient))
    logits = np.stack([np.zeros(len(patient)), np.log(scales)], axis=1).astype(np.float32)
    groups = None if images == 1 else tuple(f"P{i}" for i in patient)
    return NumberPredictions(("age",), ("",) * len(patient), groups, -error, logits, target=Target(kind="number"))


def test_the_reach_by_hand() -> None:
    """Of 9 residuals over their scale the ceil(10 x 0.8) = 8th smallest; 0.9 needs the largest, 0.95 more images."""
    residuals = np.array([0.3, 9.0, 1.0, 2.0, 8.0, 4.0, 5.0, 7.0, 6.0])
    logits = np.stack([np.zeros(9), np.full(9, np.log(2))], axis=1).astype(np.float32)
    p = NumberPredictions(("x",), ("",) * 9, None, 2 * residuals, logits, target=Target(kind="number"))
    found = [fit_intervals(p, coverage) for coverage in (0.8, 0.9, 0.95)]
    assert [one and round(one.reach, 5) for one in found] == [8.0, 9.0, None]
    assert found[0] is not None and (found[0].by, found[0].units, found[0].note) == ("image", 9, "")
    assert replace(p, reach=found[0].reach).intervals[0] == pytest.approx([-16, 16])
    assert replace(p, reach=found[0].reach).undecided().intervals is None
    assert IntervalReach.model_validate_json(found[0].model_dump_json()) == found[0]


@pytest.mark.parametrize(("coverage", "reach"), [(0.8, 4.25), (0.9, 4.75), (0.95, 5.0)])
def test_the_reach_of_mapie(coverage: float, reach: float) -> None:
    """MAPIE 1.6.0, `SplitConformalRegressor(conformity_score="absolute", prefit=True)`, reaches as far from these
    errors, where every predicted scale is 1."""
    errors = ((np.arange(40) * 17) % 41 - 20) / 4
    p = NumberPredictions(("x",), ("",) * 40, None, errors, np.zeros((40, 2), np.float32), Target(kind="number"))
    fitted = fit_intervals(p, coverage)
    assert fitted is not None and fitted.reach == reach


@pytest.mark.parametrize("images", [1, 6])
def test_the_guarantee_holds_for_an_image_of_each_new_patient(images: int) -> None:
    """Though the predicted scales are three times too small, on average over validation sets; not much more either."""
    rng = np.random.default_rng(1)
    held = []
    for _ in range(300):
        fitted = fit_intervals(draw(rng, 60, images), 0.9)
        assert fitted.by == ("image" if images == 1 else "patient") and fitted.units == 60
        new = replace(draw(rng, 200), reach=fitted.reach)
        held.append(((new.intervals[:, 0] <= new.labels) & (new.labels <= new.intervals[:, 1])).mean())
    assert 0.89 < np.mean(held) < 0.93
    by_scale = [np.mean(np.abs(p.labels) <= np.log(10) * p.scales) for p in [draw(rng, 5000)]]
    assert by_scale[0] < 0.75


def test_few_patients_and_the_report() -> None:
    rng = np.random.default_rng(2)
    p = draw(rng, 5, 20)
    fitted = fit_intervals(p, 0.9)
    assert fitted.by == "image" and fitted.units == 100
    assert "validation has 5 patients, too few to guarantee 0.9" in fitted.note
    assert fit_intervals(draw(rng, 5), 0.9) is None
    new = draw(rng, 60, 4)
    found = evaluate_number(replace(new, reach=fitted.reach)).overall
    coverage, width = found["coverage"], found["width"]
    inside = np.abs(new.labels) <= fitted.reach * new.scales
    assert coverage.value == inside.mean() and coverage.low < inside.mean() < coverage.high
    assert width.value == pytest.approx(2 * fitted.reach * new.scales.mean()) and width.low is not None
