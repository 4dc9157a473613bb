"""Sample sizes against published numbers, scipy's Wilson interval, and simulations of the goal."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from conftest import Answer
from scipy.special import expit, logit
from scipy.stats import binom, binomtest, t

from vitmed.commands.sample_size import sample_size
from vitmed.core.errors import UsageError
from vitmed.metrics.intervals import Units, share
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.sample_size import Design, Goal, area_error, in_words, needed_sample


def test_the_standard_error_of_an_auroc_is_hanley_and_mcneils() -> None:
    """Radiology 143 (1982) 29: 0.893 from 51 abnormal and 58 normal images has a standard error of 0.032."""
    assert area_error(0.893, 51, 58) == pytest.approx(0.032, abs=0.0006)
    assert area_error(0.8, 50, 50) == pytest.approx(0.044, abs=0.0006)  # a published planning example
    assert area_error(0.8, 75, 75) == pytest.approx(0.036, abs=0.0006)


@pytest.mark.parametrize(
    ("auc", "power", "cases", "controls"),
    [(0.7313686, 0.95, 29.29764, 49.806), (0.6961054, 0.95, 41, 72), (0.73, 0.9897453, 41, 72)],
)
def test_an_auroc_above_one_half_needs_at_least_the_sample_of_proc(
    auc: float, power: float, cases: float, controls: float
) -> None:
    """pROC 1.19.0.1, tests/testthat/test-power.roc.test.R, `power.roc.test` of one curve at a significance level of
    0.05. It takes Obuchowski's binormal variance (Acad. Radiol. 11 (2004) 1) and tests on the plain scale; Hanley and
    McNeil's variance and the interval on the logit scale ask for a fifth to a quarter more."""
    prevalence = cases / (cases + controls)
    found = sample_size("auroc", auc, lower_bound=0.5, power=power, prevalence=prevalence)
    assert 1.15 < found.counted / (cases + controls) < 1.3


@pytest.mark.parametrize("number", ["sensitivity", "specificity"])
@pytest.mark.parametrize(("expected", "half_width"), [(0.5, 0.05), (0.8, 0.1), (0.9, 0.05), (0.98, 0.02)])
def test_the_interval_is_as_wide_as_asked_and_with_one_image_less_wider(
    number: str, expected: float, half_width: float
) -> None:
    """scipy's Wilson interval of n images, between the counts next to the expected share."""
    n = sample_size(number, expected, half_width=half_width).counted

    def wide(n: int) -> float:
        hits = n * expected
        ends = []
        for k in (int(np.floor(hits)), int(np.ceil(hits))):
            found = binomtest(k, n).proportion_ci(method="wilson")
            ends.append((found.high - found.low) / 2)
        return float(np.interp(hits, [np.floor(hits), np.ceil(hits) + 1e-9], ends))

    assert wide(n) <= half_width * 1.002 and wide(n - 3) > half_width * 0.998


def test_it_is_near_buderers_number_of_images() -> None:
    """Acad. Emerg. Med. 3 (1996) 895: z^2 p (1 - p) / w^2 positive images, over the prevalence for all."""
    for p, w in ((0.9, 0.05), (0.8, 0.05), (0.7, 0.03)):
        theirs = 1.96**2 * p * (1 - p) / w**2
        found = sample_size("sensitivity", p, half_width=w, prevalence=0.2)
        assert found.counted == pytest.approx(theirs, rel=0.03)  # 138, 246 and 896 in published tables
        assert found.images == pytest.approx(theirs / 0.2, rel=0.03)
    assert sample_size("specificity", 0.9, half_width=0.05, prevalence=0.2).images == pytest.approx(138 / 0.8, rel=0.03)


@pytest.mark.parametrize(("prevalence", "images"), [(0.9, 1410), (0.999, 141_000), (0.9999, 1_410_000)])
def test_all_images_are_not_one_too_many_where_the_share_is_no_binary_fraction(prevalence: float, images: int) -> None:
    assert sample_size("specificity", 0.9, half_width=0.05, prevalence=prevalence).images == images


def test_kishs_design_effect_multiplies_the_images() -> None:
    """1 + (m - 1) icc = 2.9 for 20 images of a patient at 0.1; Student's t asks for a few more patients."""
    alone = sample_size("sensitivity", 0.9, half_width=0.02).counted
    found = sample_size("sensitivity", 0.9, half_width=0.02, images_per_patient=20, icc=0.1)
    assert found.design_effect == pytest.approx(2.9)
    assert 1 <= found.counted / (2.9 * alone) < 1.05 and found.counted == 20 * found.counted_patients
    alike = sample_size("sensitivity", 0.9, half_width=0.05, images_per_patient=20, icc=1)
    assert alike.counted_patients >= sample_size("sensitivity", 0.9, half_width=0.05).counted


@pytest.mark.parametrize(("expected", "bound"), [(0.9, 0.8), (0.9, 0.85), (0.8, 0.75)])
@pytest.mark.parametrize("power", [pytest.param(0.8, marks=pytest.mark.slow), 0.9])
def test_a_lower_bound_is_reached_as_often_as_asked_from_this_size_on(
    expected: float, bound: float, power: float
) -> None:
    """By the exact binomial distribution of the hits, and scipy's Wilson interval. Hits are whole: of 0.9 above 0.8,
    100 images have a chance of 0.802, and 105 have 0.750."""

    def chance(n: int) -> float:
        hits = range(int(bound * n), n + 1)
        least = hits[bisect_left(hits, bound, key=lambda k: binomtest(k, n).proportion_ci(method="wilson").low)]
        return float(binom.sf(least - 1, n, expected))

    size = sample_size("sensitivity", expected, lower_bound=bound, power=power).counted
    assert chance(size - 1) < power <= min(chance(n) for n in range(size, size + 40))


def half_width(size: int, auroc: float, prevalence: float, times: int, spread: float = 1.0) -> float:
    """The mean one of so many tests of binormal scores, whose positives vary `spread` times as much."""
    rng, ends = np.random.default_rng(0), []
    labels = (np.arange(size) < round(prevalence * size)).astype(np.int64)
    for _ in range(times):
        score = rng.normal(size=size) * np.where(labels, spread, 1)
        score += labels * (1 + spread**2) ** 0.5 * NormalDist().inv_cdf(auroc)
        logits = np.stack([0 * score, score], axis=1).astype(np.float32)
        p = Predictions(("no", "yes"), tuple(map(str, range(size))), None, labels, logits)
        own = evaluate_predictions(p).overall["auroc"]
        ends.append((own.high - own.low) / 2)
    return float(np.mean(ends))


@pytest.mark.parametrize("spread", [1.0, 1.5])
def test_an_auroc_of_simulated_images_has_at_most_the_planned_interval(spread: float) -> None:
    """Hanley and McNeil's variance is on the safe side, more so where both classes vary alike."""
    found = sample_size("auroc", 0.85, half_width=0.05, prevalence=0.3)
    assert 0.04 < half_width(found.counted, 0.85, 0.3, 20, spread) < 0.05


@pytest.mark.parametrize("prevalence", [0.1, 0.9])
def test_neither_rare_positives_nor_rare_negatives_widen_the_interval_of_an_auroc(prevalence: float) -> None:
    """Hanley and McNeil's variance as they give it needs 323 images at 0.9; the half width of these was 0.060."""
    found = sample_size("auroc", 0.9, half_width=0.04, prevalence=prevalence)
    assert found.counted == sample_size("auroc", 0.9, half_width=0.04, prevalence=1 - prevalence).counted
    assert half_width(found.counted, 0.9, prevalence, 20) < 0.04
    assert "at most 0.04 to either side" in in_words(found)[0]


@pytest.mark.parametrize("prevalence", [0.1, 0.9])
def test_an_auroc_by_patient_has_as_many_degrees_of_freedom_as_the_rarer_class_has_patients(prevalence: float) -> None:
    """Hanley and McNeil's eq. 1 and 2 and Student's t by hand: one patient less, and the interval is too wide."""
    found = sample_size("auroc", 0.85, half_width=0.05, prevalence=prevalence, images_per_patient=5, icc=0.5)

    def interval(patients: int) -> tuple[float, float]:
        rare, common = 0.1 * patients * 5 / 3, 0.9 * patients * 5 / 3  # images over 1 + (5 - 1) x 0.5
        of_rare, of_common = 0.85 / (2 - 0.85) - 0.85**2, 2 * 0.85**2 / (1 + 0.85) - 0.85**2
        spread = 0.85 * 0.15 + (rare - 1) * of_rare + (common - 1) * of_common
        reach = t.ppf(0.975, 0.1 * patients - 1) * (spread / (rare * common)) ** 0.5 / (0.85 * 0.15)
        return float(expit(logit(0.85) - reach)), float(expit(logit(0.85) + reach))

    (low, high), wider = interval(found.counted_patients), interval(found.counted_patients - 1)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (high - low) / 2 <= 0.05 < (wider[1] - wider[0]) / 2
    assert (found.images, found.patients) == (5 * found.counted_patients, found.counted_patients)


def test_the_smallest_number() -> None:
    for first, answer in ((777, 777), (0, 2), (np.inf, None)):
        goal = Goal(half_width=1)
        assert goal.smallest(lambda n, luck, first=first: (0, 2 if n >= first else 3)) == answer


@pytest.mark.parametrize(
    ("number", "expected", "options"),
    [
        ("f1", 0.9, {"half_width": 0.05}), ("sensitivity", 90, {"half_width": 0.05}), ("sensitivity", 0.9, {}),
        ("sensitivity", 0.9, {"half_width": 0.05, "lower_bound": 0.8}), ("auroc", 0.4, {"half_width": 0.05}),
        ("auroc", 0.9, {"half_width": 0.05}), ("sensitivity", 0.9, {"lower_bound": 0.95}),
        ("sensitivity", 0.9, {"half_width": 0.05, "icc": 2}), ("sensitivity", 0.9, {"lower_bound": 0.8, "power": 1}),
        ("sensitivity", 0.9, {"half_width": 0.05, "power": 0.9}),
        ("sensitivity", 0.9, {"half_width": 0.05, "images_per_patient": 0}),
        ("sensitivity", 0.9, {"half_width": 0.05, "prevalence": 5}), ("sensitivity", 0.9, {"half_width": 1e-7}),
        ("sensitivity", float("nan"), {"half_width": 0.05}),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_an_error(number: str, expected: float, options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        sample_size(number, expected, **options)  # type: ignore[arg-type]


def test_the_command(vitmed: Callable[..., Answer]) -> None:
    args = ["sample-size", "sensitivity", 0.9, "--half-width", 0.05, "--prevalence", 0.1]
    clustered = [*args, "--images-per-patient", 10, "--icc", 0.3]
    found = vitmed(*clustered, "--json")
    content = json.loads(found.out)
    assert found.code == 0 and content["counted"] == 10 * content["counted_patients"]
    assert content["design_effect"] == pytest.approx(3.7)
    said = vitmed(*clustered).out
    assert f"{content['images']:,} images of {content['patients']:,} patients" in said and "design effect 3.7" in said
    assert vitmed("sample-size", "sensitivity", 0.9).code == 2
    assert "--prevalence adds" in vitmed("sample-size", "sensitivity", 0.9, "--lower-bound", 0.8).out
    assert "--prevalence" not in said
    above = in_words(sample_size("auroc", 0.9, lower_bound=0.8, prevalence=0.1))
    assert "lies above 0.8 with a chance of about 80 %" in above[0] and "of them positive" in above[0]


def test_clustered_images_of_simulated_patients_have_the_planned_interval() -> None:
    """Being right is beta-binomial with an intraclass correlation of 0.3; the interval is that of the report."""
    found = sample_size("sensitivity", 0.9, half_width=0.05, images_per_patient=10, icc=0.3)
    rng, patients, ends = np.random.default_rng(0), found.counted_patients, []
    units, every = Units(np.repeat(np.arange(patients), 10)), np.ones(found.counted, bool)
    for _ in range(200):
        chance = rng.beta(0.9 * 0.7 / 0.3, 0.1 * 0.7 / 0.3, size=patients)
        own = share(rng.random(found.counted) < np.repeat(chance, 10), every, units)
        ends.append((own.high - own.low) / 2)
    assert np.mean(ends) == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize(
    ("expected", "bound", "each", "icc"),
    [(0.9, 0.8, 10, 0.1)]
    + [pytest.param(*p, marks=pytest.mark.slow) for p in ((0.95, 0.9, 5, 0.2), (0.98, 0.9, 20, 0.3))],
)
def test_simulated_patients_reach_a_lower_bound_as_often_as_said(
    expected: float, bound: float, each: int, icc: float
) -> None:
    """By the report's interval of other draws than the command's. It was 75, 69 and 67 of 100 for 80."""
    patients = sample_size(
        "sensitivity", expected, lower_bound=bound, images_per_patient=each, icc=icc
    ).counted_patients
    units, rng, above = Units(np.repeat(np.arange(patients), each)), np.random.default_rng(1), 0
    odds = (1 - icc) / icc
    for _ in range(1000):
        chance = rng.beta(expected * odds, (1 - expected) * odds, size=patients)[units.index]
        above += share(rng.random(len(chance)) < chance, None, units).low >= bound
    assert 0.78 <= above / 1000 < 0.85


def test_a_tight_bound_of_many_single_images_is_found_at_once() -> None:
    """(1.960 + 0.842)^2 x 0.9 x 0.1 / 0.0001^2 images."""
    found = needed_sample("sensitivity", 0.9, Goal(lower_bound=0.8999), Design())
    assert found is not None and found.counted == pytest.approx(70.6e6, rel=0.01)
