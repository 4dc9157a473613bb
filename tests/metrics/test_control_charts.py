"""CUSUM charts: a published example, published run lengths, and false alarms as asked on patients nobody has seen."""

from __future__ import annotations

import numpy as np
import pytest

from vitmed.metrics.control_charts import (
    BOTH,
    FEWEST,
    Reference,
    Stream,
    _periods,
    choose_limits,
    highest,
    newest,
    sums,
)

# Montgomery, Introduction to Statistical Quality Control, tables 9.1 and 9.2: target 10, K = 0.5, H = 5
SAMPLE = [9.45, 7.99, 9.29, 11.66, 12.16, 10.18, 8.04, 11.46, 9.20, 10.34, 9.03, 11.47, 10.51, 9.40, 10.08]
SAMPLE += [9.37, 10.62, 10.31, 8.52, 10.84, 10.90, 9.33, 12.29, 11.50, 10.60, 11.08, 10.38, 11.62, 11.31, 10.52]


def test_the_sums_of_a_textbook() -> None:
    values = np.array(SAMPLE) - 10
    up, down = sums(values, 0.5), sums(-values, 0.5)
    assert up[[3, 4, 28, 29]] == pytest.approx([1.16, 2.82, 5.28, 5.30])
    assert down[[0, 1, 2, 3]] == pytest.approx([0.05, 1.56, 1.77, 0.00])
    assert (up > 5).argmax() == 28  # the textbook's signal at period 29
    assert np.flatnonzero(up[:29] == 0)[-1] == 21  # which began between 22 and 23


@pytest.mark.parametrize(("limit", "length"), [(4, 168), (5, 465)])
def test_published_run_lengths(limit: float, length: float) -> None:
    """Of two sides with an allowance of 0.5: Montgomery, table 9.3."""
    runs = np.random.default_rng(0).standard_normal((500, 12 * length))
    above = highest(runs, BOTH, 0.5) > limit
    first = np.where(above.any(axis=1), above.argmax(axis=1) + 1, runs.shape[1])
    assert first.mean() == pytest.approx(length, rel=0.12)  # 2.7 standard errors


def test_what_does_not_count_leaves_the_sums_as_they_are() -> None:
    values = np.array([1.0, np.nan, np.nan, 1.0])
    assert sums(values, 0.25).tolist() == [0.75, 0.75, 0.75, 1.5]


def test_small_and_constant_references_are_not_watched() -> None:
    few = np.where(np.arange(50) < FEWEST - 1, 0.3, np.nan)
    assert f"has {FEWEST - 1} such images" in Stream(few).why_not(0.5)
    assert Stream(np.full(50, 0.3)).why_not(0.5) and not Stream(np.full(50, 0.3), least=0.05).why_not(0.5)
    assert not Stream(np.zeros(50), share=True).why_not(0.5)  # what never happened may happen


@pytest.mark.parametrize(
    ("hits", "shift", "dead"), [(2, 0.5, True), (8, 0.5, False), (33, 1.5, True), (65, 1.5, False)]
)
def test_a_share_that_can_never_give_an_alarm_is_not_watched(hits: int, shift: float, dead: bool) -> None:
    """Of 100 images; where none is a hit any more, each adds p / sd - shift / 2: with p = 0.03 less than 0."""
    falls = Stream(np.arange(100) < hits, ("fall",), share=True)
    rises = Stream(np.arange(100) >= hits, ("rise",), share=True)
    assert bool(falls.why_not(shift)) == bool(rises.why_not(shift)) == dead
    reference = Reference.of({"falls": falls, "rises": rises}, np.arange(100))
    assert reference.units.tolist() == list(range(102))  # each of the two images more is of a patient of its own
    new = {name: Stream(np.full(500, end)) for name, end in (("falls", 0.0), ("rises", 1.0))}
    values = reference.standardised(new).T
    sums_at_the_end = [highest(x, one.sides, shift / 2)[-1] for x, one in zip(values, (falls, rises), strict=True)]
    assert (max(sums_at_the_end) == 0) == dead


def world(patients: int, each: int, rng: np.random.Generator, shift: float = 0) -> tuple[dict[str, Stream], np.ndarray]:
    owner = np.repeat(np.arange(patients), each)
    score = rng.standard_normal(patients)[owner] + 0.5 * rng.standard_normal(len(owner)) + shift
    return {
        "score": Stream(1 / (1 + np.exp(-score)), least=0.05),
        "rare": Stream(rng.random(len(owner)) < 0.02, ("rise",), share=True),
    }, owner


@pytest.mark.slow
def test_false_alarms_and_alarms_in_worlds_of_patients() -> None:
    """In 40 worlds without a change 0 to 6 alarms are expected of 5 % (binomial, 99.7 %)."""
    found: dict[float, list[bool]] = {0.0: [], 1.0: []}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        reference = Reference.of(*world(100, 3, rng))
        limits, _ = choose_limits(reference, 0.5, 600, 0.05, simulations=200, seed=seed)
        for shift, alarms in found.items():
            values = reference.standardised(world(200, 3, rng, shift)[0])
            sides = [one.sides for one in reference.streams.values()]
            alarms.append(any((highest(values[:, c], sides[c], 0.25) > limits[c]).any() for c in range(2)))
    assert sum(found[0.0]) <= 6
    assert sum(found[1.0]) >= 37


@pytest.mark.slow
def test_a_long_log_gives_no_more_false_alarms_than_a_period() -> None:
    """In 40 worlds without a change and logs of 20 periods 0 to 9 alarms are expected of 10 % (binomial, 99.7 %)."""
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        reference = Reference.of(*world(150, 1, rng))
        limits, _ = choose_limits(reference, 0.5, 200, 0.1, simulations=200, seed=seed)
        new = {name: newest(one, 200) for name, one in world(4000, 1, rng)[0].items()}
        values = reference.standardised(new)
        sides = [one.sides for one in reference.streams.values()]
        alarms += any((highest(values[:, c], sides[c], 0.25) > limits[c]).any() for c in range(2))
    assert alarms <= 9


@pytest.mark.parametrize(("mean", "spread"), [(-4, 0.2), (-3, 0.2), (-5, 0.8)])
def test_one_image_alone_is_no_alarm_of_a_small_probability(mean: float, spread: float) -> None:
    """Nearly all images of the reference lie within the allowance, so that simulated periods would have a sum of 0."""
    rng = np.random.default_rng(1)
    known, new = (1 / (1 + np.exp(-mean - spread * rng.standard_normal(count))) for count in (200, 300))
    reference = Reference.of({"p": Stream(known, least=0.05)}, np.arange(200))
    assert (reference.centre, reference.spread) == (pytest.approx(known.mean()), 0.05)
    limit = choose_limits(reference, 0.5, 300, 0.05, simulations=100)[0][0]
    new[100] = 0.9
    peaks = [highest(reference.standardised({"p": Stream(x)})[:, 0], BOTH, 0.25).max() for x in (new, new + 0.03)]
    assert 2.5 < peaks[0] < limit < peaks[1]


@pytest.mark.parametrize(("known", "new"), [(1, 5), (5, 1), (5, 5), (4, 2)])
def test_periods_have_patients_as_large_as_those_of_the_new_images(known: int, new: int) -> None:
    """The images of a patient follow each other, each as often as the others, and come again where there are fewer."""
    owner = np.repeat(np.arange(20), known)
    values = owner * 10.0 + np.tile(np.arange(known), 20)  # says whose image it is, and which
    reference = Reference.of({"x": Stream(values)}, owner, np.full(60, new))
    drawn = next(_periods(reference, 60_000, 0))[:, 0] * reference.spread + reference.centre
    drawn = np.rint(drawn[np.isfinite(drawn)])  # the added images have no value here
    patients = drawn[: len(drawn) // new * new].reshape(-1, new)
    assert (patients // 10 == patients[:, :1] // 10).all()
    assert {len({*row}) for row in patients.tolist()} == {min(known, new)}
    assert np.bincount(drawn.astype(int) % 10) == pytest.approx(len(drawn) / known, rel=0.05)


def test_the_newest_period_ends_at_the_last_image_that_counts() -> None:
    values = np.where(np.arange(100) < 60, 1.0, np.nan)
    assert np.flatnonzero(np.isfinite(newest(Stream(values), 20).values)).tolist() == list(range(40, 60))
    assert np.isfinite(newest(Stream(np.ones(7)), 20).values).all()
    assert np.isnan(newest(Stream(np.full(7, np.nan)), 20).values).all()


def test_limits_are_the_same_again_and_the_stated_rate_is_that_of_periods_that_did_not_choose_them() -> None:
    """Of 40 simulations that choose limits of five charts, 10 % alarm by choice; of other periods more do."""
    stated, true = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        streams, owner = world(60, 2, rng)
        streams |= {f"noise {i}": Stream(rng.standard_normal(len(owner))) for i in range(3)}
        reference = Reference.of(streams, owner)
        limits, false_alarms = choose_limits(reference, 0.5, 200, 0.1, simulations=40, seed=seed)
        again, _ = choose_limits(reference, 0.5, 200, 0.1, simulations=40, seed=seed)
        assert limits == pytest.approx(again)
        stated.append(false_alarms / 40)
        draw, alarms = _periods(reference, 200, 1000 + seed), 0
        for _ in range(100):
            pairs = zip(next(draw).T, reference.streams.values(), limits, strict=True)
            alarms += any(highest(values, one.sides, 0.25).max() > limit for values, one, limit in pairs)
        true.append(alarms / 100)
    error = np.sqrt(0.2 * 0.8 * (1 / 480 + 1 / 1200))
    assert np.mean(stated) == pytest.approx(np.mean(true), abs=3 * error)
    assert np.mean(true) > 0.13  # so the rate of the periods that chose, 0.1, would have failed


def test_one_image_alone_is_no_alarm() -> None:
    """All images have one value but for a little noise, and a new one is far from it."""
    rng = np.random.default_rng(0)
    reference = Reference.of({"x": Stream(0.01 * rng.standard_normal(200))}, np.arange(200))
    limit = choose_limits(reference, 0.5, 300, 0.05, simulations=200)[0][0]
    new = 0.01 * rng.standard_normal(300)
    new[100] = 9.0
    assert highest(reference.standardised({"x": Stream(new)})[:, 0], BOTH, 0.25).max() < limit
