"""Limits of agreement against the published examples, errors by range and subgroup, and scales that are true or not."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from test_number_evaluation import draw

from vitmed.core.base_models import Target
from vitmed.core.errors import UsageError
from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.number import NumberPredictions, PreparedNumbers, bland_altman, total_sd
from vitmed.metrics.subgroups import error_by_range, subgroups

# Peak flow by two meters, litres a minute (Bland & Altman, Lancet 327 (1986) 307, table 1, first readings).
LARGE = (494, 395, 516, 434, 476, 557, 413, 442, 650, 433, 417, 656, 267, 478, 178, 423, 427)
MINI = (512, 430, 520, 428, 500, 600, 364, 380, 658, 445, 432, 626, 260, 477, 259, 350, 451)
# Cardiac output of 12 patients by two methods, litres a minute (Bland & Altman, J. Biopharm. Stat. 17 (2007) 571).
IMAGES = (5, 4, 6, 5, 6, 4, 4, 6, 3, 5, 6, 6)
RV = (
    *(7.83, 7.42, 7.89, 7.12, 7.88, 6.16, 7.26, 6.71, 6.54, 4.75, 5.24, 4.86, 4.78, 6.05, 5.42, 4.21, 3.61, 3.72),
    *(3.87, 3.92, 3.13, 2.98, 2.85, 3.17, 3.09, 3.12, 5.92, 6.42, 5.92, 6.27, 7.13, 6.62, 6.58, 6.93, 4.54, 4.81),
    *(5.11, 5.29, 5.39, 5.57, 4.48, 4.92, 3.97, 4.22, 4.65, 4.74, 4.44, 4.50, 6.78, 6.07, 6.52, 6.42, 6.41, 5.76),
    *(5.06, 4.72, 4.90, 4.80, 4.90, 5.10),
)
IC = (
    *(6.57, 5.62, 6.90, 6.57, 6.35, 4.06, 4.29, 4.26, 4.09, 4.71, 5.50, 5.08, 5.02, 6.01, 5.67, 4.14, 4.20, 4.61),
    *(4.68, 5.04, 3.03, 2.86, 2.77, 2.46, 2.32, 2.43, 5.90, 5.81, 5.70, 5.76, 5.09, 4.63, 4.61, 5.09, 4.72, 4.61),
    *(4.36, 4.20, 4.36, 4.20, 3.17, 3.12, 2.96, 4.35, 4.62, 3.16, 3.53, 3.53, 7.20, 6.09, 7.00, 7.10, 7.40, 6.80),
    *(4.50, 4.20, 3.80, 3.80, 4.20, 4.50),
)


def of(truth: tuple[float, ...], values: tuple[float, ...], groups: tuple[str, ...] | None = None) -> NumberPredictions:
    logits = np.stack([values, np.zeros(len(values))], axis=1).astype(np.float32)
    paths = tuple(f"{i}.png" for i in range(len(values)))
    return NumberPredictions(("flow",), paths, groups, np.array(truth), logits, target=Target(kind="number"))


def test_the_example_of_1986() -> None:
    """Large minus mini meter: mean -2.1 (-22.0 to 17.8), standard deviation 38.8."""
    found = bland_altman(of(MINI, LARGE))
    assert not found.repeated
    assert (found.bias.value, found.bias.low, found.bias.high) == pytest.approx((-2.1, -22.0, 17.8), abs=0.06)
    assert (found.lower.value, found.upper.value) == pytest.approx((-2.1 - 1.96 * 38.8, -2.1 + 1.96 * 38.8), abs=0.1)
    assert found.within.value == 16 / 17
    slope = stats.linregress((np.array(LARGE) + MINI) / 2, np.array(LARGE) - MINI).slope
    assert found.trend.value == pytest.approx(slope) and found.trend.low < 0 < found.trend.high
    # Their standard error of a limit is sqrt(3 / n) s, which overlooks that s is skewed: ours reach further out.
    assert found.lower.low < -114.3 and found.lower.high == pytest.approx(-45.1, abs=2)


def test_the_example_with_several_images_of_a_patient() -> None:
    """RV minus IC: mean 0.60, variance between patients 0.81 and within 0.17, so limits -1.34 and 2.54."""
    patient = np.repeat(np.arange(12), IMAGES)
    p = of(IC, RV, tuple(f"P{i}" for i in patient))
    found, apart = bland_altman(p), np.array(RV) - IC
    assert found.repeated
    assert (found.bias.value, found.lower.value, found.upper.value) == pytest.approx((0.60, -1.34, 2.54), abs=0.01)
    parts = [apart[patient == i] for i in range(12)]
    within = sum(part.var() * len(part) for part in parts) / (60 - 12)
    between = stats.f_oneway(*parts).statistic * within
    usual = (60 - sum(n * n for n in IMAGES) / 60) / 11
    total = (between - within) / usual + within
    assert found.upper.value - found.bias.value == pytest.approx(1.959964 * total**0.5, rel=1e-6)
    alone = bland_altman(replace(p, groups=None))
    assert alone.bias.high - alone.bias.low < 0.6 * (found.bias.high - found.bias.low)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patients", "images", "alike"), [pytest.param(20, 1, 0.0, marks=pytest.mark.slow), (20, 6, 0.6)]
)
def test_the_intervals_of_limits_hold_them(patients: int, images: int, alike: float) -> None:
    rng, tests, held = np.random.default_rng(5), 300, np.zeros(3)
    for _ in range(tests):
        found = bland_altman(draw(rng, patients, images, alike))
        ends = zip((found.bias, found.lower, found.upper), (1, 1 - 1.96 * 5, 1 + 1.96 * 5), strict=True)
        held += [one.low <= truth <= one.high for one, truth in ends]
    assert (held / tests > 0.91).all() and (held / tests < 0.99).all(), held / tests


def test_the_deviation_of_two_patients_by_hand() -> None:
    """Errors 0 and 2 of one patient, 4 of another: mean squares 2 within (one degree) and 6 between, 4/3 usual images.

    So 6 / (4/3) + (1 - 1 / (4/3)) 2 = 5. With one image each there is no square within, and it is the variance.
    """
    assert total_sd(np.array([0.0, 2.0, 4.0]), Units(np.array([0, 0, 1]))) == pytest.approx(5**0.5)
    assert total_sd(np.array([0.0, 2.0, 7.0]), Units(np.arange(3))) == pytest.approx(np.std([0, 2, 7], ddof=1))


def test_a_negative_variance_between_patients_counts_as_0() -> None:
    """Errors 0 and 4 of one patient, 1 and 3 of another, both 2 on average: mean squares 0 between and 5 within."""
    assert total_sd(np.array([0.0, 4.0, 1.0, 3.0]), Units(np.array([0, 0, 1, 1]))) == pytest.approx(5**0.5)


def test_constant_limits_do_not_hold_where_the_error_has_a_trend() -> None:
    """A model that moves half the way to the mean predicts the low too high and the high too low."""
    labels = np.random.default_rng(0).normal(50, 10, 60)
    noise = np.random.default_rng(1).normal(0, 2, 60)
    shrunk, level = of(tuple(labels), tuple(25 + labels / 2 + noise)), of(tuple(labels), tuple(labels + noise))
    assert bland_altman(shrunk).trend.value < -0.5 and bland_altman(shrunk).drifts
    assert not bland_altman(level).drifts and not bland_altman(of(tuple(labels), tuple(labels))).drifts
    assert bland_altman(of((50.0,) * 60, tuple(50 + noise))).trend.value is None  # of one truth the slope says nothing


def test_one_patient_has_no_limits() -> None:
    assert bland_altman(of((1.0, 2.0), (1.0, 3.0), ("P", "P"))) is None


def test_the_error_by_range() -> None:
    """A model that predicts the mean is off at both ends, upwards for the low and downwards for the high."""
    labels = np.random.default_rng(0).normal(50, 10, 400)
    found = error_by_range(of(tuple(labels), (50.0,) * 400))
    edges = np.quantile(labels, [0.2, 0.4, 0.6, 0.8], method="higher")
    assert found.cut == "cut at the quintiles of the images: " + ", ".join(f"{edge:g}" for edge in edges)
    low = labels < edges[0]
    by_name = {stratum.name: stratum for stratum in found.strata}
    lowest, highest = by_name[f"under {edges[0]:g}"], by_name[f"{edges[3]:g} and above"]
    assert lowest.n == low.sum() == 80 and lowest.overall["mae"].value == pytest.approx((50 - labels[low]).mean())
    assert lowest.overall["bias"].low > 0 > highest.overall["bias"].high and len(found.strata) == 5
    gap = found.gaps["mae"]
    assert gap.worst in (lowest.name, highest.name) and gap.value > 10 and gap.by_chance == 1 / 501
    few = error_by_range(of(tuple(labels[:35]), (50.0,) * 35))
    assert few.cut.startswith("cut at the tertiles") and len(few.strata) == 3
    assert "fewer than 10 images" in error_by_range(of(tuple(labels[:15]), (50.0,) * 15)).reason
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_error_by_subgroup() -> None:
    rng = np.random.default_rng(0)
    p = draw(rng, 200, 4, 0.5)
    sex = np.array(["F", "M"])[p.units % 2]
    off = np.where(sex == "M", 3.0, 0.0)
    p = replace(
        p, labels=p.labels - off, columns={"sex": tuple(sex), "site": tuple("AB"[i % 2] for i in range(len(p)))}
    )
    found = subgroups(p, ["sex"], kind=PreparedNumbers)["sex"]
    by_name = {stratum.name: stratum for stratum in found.strata}
    assert list(by_name) == ["F", "M"]
    for name, stratum in by_name.items():
        error = (p.values - p.labels)[sex == name]
        assert stratum.overall["mae"].value == pytest.approx(np.abs(error).mean())
        assert stratum.overall["bias"].value == pytest.approx(error.mean()) and "coverage" in stratum.overall
    gap = found.gaps["mae"]
    assert (gap.best, gap.worst) == ("F", "M") and 0 < gap.low < gap.value < gap.high
    assert gap.value == pytest.approx(by_name["M"].overall["mae"].value - by_name["F"].overall["mae"].value)
    level = subgroups(p, ["site"], kind=PreparedNumbers)["site"].gaps["mae"]
    assert level.low < 0 < level.high
    with pytest.raises(UsageError, match="age"):
        subgroups(p, ["age"], kind=PreparedNumbers)
