"""The interval of a paired difference: published examples, a slow definition, and agreement with its p."""

from dataclasses import replace

import numpy as np
import pytest
from every_kind import compare_predictions
from scipy import stats

from vitmed.metrics.estimates import Estimate, difference
from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.classes import PreparedPredictions
from vitmed.metrics.paired_comparison import holm, share_difference, tango, tango_score
from vitmed.metrics.predictions import Predictions

Z = stats.norm.ppf(0.975)


def rights(plus: int, minus: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Two models right on n images, of which one alone is right on some."""
    place = np.arange(n)
    return (place < plus) | (place >= plus + minus), place >= plus


def test_the_interval_of_published_examples() -> None:
    """Children before and after a transplantation: Fagerland, Lydersen & Laake, Stat. Med. 33 (2014) 2850.

    And 25 against 28 of 618 pairs at 90 %, by PropCIs of R, `scoreci.mp(25, 28, 618, 0.9)`.
    """
    assert tango(1, 7, 21, Z) == (pytest.approx(-0.517, abs=5e-4), pytest.approx(-0.026, abs=5e-4))
    assert tango(28, 25, 618, stats.norm.ppf(0.95)) == (
        pytest.approx(-0.0148, abs=5e-5),
        pytest.approx(0.0247, abs=5e-5),
    )


@pytest.mark.parametrize(("plus", "minus", "n"), [(0, 0, 20), (5, 0, 20), (0, 20, 20), (3, 7, 50), (11, 3, 300)])
def test_the_interval_holds_what_the_score_test_does_not_reject(plus: int, minus: int, n: int) -> None:
    """A slow definition: the variance by the likelihood, whose maximum is sought on a grid."""
    low, high = tango(plus, minus, n, Z)

    def rejected(gap: float) -> bool:
        q = np.linspace(max(0.0, -gap), (1 - gap) / 2, 200_001)[1:-1]  # only the second is right; the first: q + gap
        rest = n - plus - minus
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = [
                count * np.log(p) if count else 0 for count, p in ((plus, q + gap), (minus, q), (rest, 1 - 2 * q - gap))
            ]
        best = q[np.argmax(sum(terms))] if plus + minus else max(0.0, -gap)
        return bool(abs(plus - minus - n * gap) > Z * np.sqrt(n * (2 * best + gap * (1 - gap))) + 1e-9)

    for end, side in ((low, -1), (high, 1)):
        assert not rejected(end - side * 1e-3)
        assert abs(end) == 1 or rejected(end + side * 1e-3)


def test_no_difference_is_mcnemars_test() -> None:
    """132 and 107 of 1,144 answers (Agresti, Categorical Data Analysis, 2013, table 11.1): chi-squared 2.62."""
    _, found = share_difference(*rights(132, 107, 1144), np.ones(1144, bool), Units(np.arange(1144)))
    assert found.statistic is not None
    assert found.statistic == pytest.approx(25 / np.sqrt(239)) and found.statistic**2 == pytest.approx(2.615, abs=5e-4)
    assert found.p == pytest.approx(0.106, abs=5e-4)
    assert tango_score(0.0, 132, 107, 1144) == found.statistic


def test_a_model_and_itself_differ_by_0_in_every_number() -> None:
    """Another model that is right on the same images has an interval: the next patients may differ."""
    labels, rng = np.arange(60) % 2, np.random.default_rng(0)
    logits = (rng.normal(size=(60, 2)) + np.eye(2)[labels]).astype(np.float32)
    own = Predictions(("a", "b"), tuple(map(str, range(60))), tuple(str(i % 9) for i in range(60)), labels, logits)
    other = replace(own, logits=logits * 2)
    for model, ends in ((own, {0.0}), (other, {-1.0, 1.0})):
        pair = PreparedPredictions.compare(own, model).difference
        rates = PreparedPredictions(own).class_gaps(PreparedPredictions(model))
        gaps = [pair["accuracy"], pair["balanced_accuracy"], rates["sensitivity"]["b"], rates["specificity"]["b"]]
        assert [gap.value for gap in gaps] == [0.0] * 4
        assert all({np.sign(gap.low), np.sign(gap.high)} == ends for gap in gaps)


def test_equal_decisions_do_not_show_how_much_a_difference_varies() -> None:
    """Of other probabilities: a kappa without a difference has no interval, the share of right images has one."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(60, 3)).astype(np.float32), rng.integers(3, size=60)
    p = Predictions(tuple("abc"), tuple(map(str, range(60))), None, labels, logits)
    found = compare_predictions(p, replace(p, logits=logits * np.linspace(1, 2, 60, dtype=np.float32)[:, None]))
    for name in ("cohen_kappa", "mcc"):
        assert found.difference[name].value == 0 and found.difference[name].low is None
    assert found.difference["accuracy"].low < 0 < found.difference["accuracy"].high
    assert found.difference["log_loss"].low is not None


def test_holm_by_hand() -> None:
    """Of three values the smallest counts three times, the next twice, and none falls below the one before it."""
    assert holm([0.03, None, 0.0001, 0.04]) == [pytest.approx(0.06), None, pytest.approx(0.0003), pytest.approx(0.06)]
    assert holm([0.6, 0.5]) == [1.0, 1.0] and holm([0.0, None]) == [0.0, None] and holm([]) == []


@pytest.mark.parametrize("each", [2, 5])
def test_equal_images_of_a_patient_count_once(each: int) -> None:
    """Of 20 patients, the first model alone is right on all images of 10, the second on those of 4: McNemar's test of
    14 patients, its variance times 20 / 19, and Student's t of 19 degrees."""
    first, second = (np.repeat(right, each) for right in rights(10, 4, 20))
    gap, test = share_difference(first, second, np.ones(20 * each, bool), Units(np.repeat(np.arange(20), each)))
    z = 6 / 14**0.5 * (19 / 20) ** 0.5
    assert (gap.value, gap.units, gap.n) == (pytest.approx(0.3), 20, 20 * each)
    assert test.statistic == pytest.approx(z) and test.p == pytest.approx(2 * stats.t.sf(z, 19))
    every, reach = np.ones(20 * each, bool), stats.t.ppf(0.975, 19) ** 2
    gap, _ = share_difference(every, every, every, Units(np.repeat(np.arange(20), each)))  # without any error too
    assert gap.high == -gap.low == pytest.approx(reach / (20 + reach))


@pytest.mark.parametrize("patients", [False, True])
def test_how_often_one_alone_is_right_is_counted(patients: bool) -> None:
    """Of ten images, of which the last two do not count: the first alone is right on three, the second on one."""
    first, second = rights(3, 1, 10)
    first[9], second[8] = False, False
    units = Units(np.arange(10) // 2 if patients else np.arange(10))
    found, test = share_difference(first, second, np.arange(10) < 8, units)
    assert (test.only_first, test.only_second) == (3, 1) and found.value == pytest.approx(2 / 8)
    assert test.method == ("mcnemar-cluster" if patients else "mcnemar")
    if not patients:
        assert test.statistic == pytest.approx(2 / 4**0.5) and test.p == pytest.approx(2 * stats.norm.sf(1))


def test_the_interval_excludes_0_exactly_where_p_is_below_one_in_twenty() -> None:
    """All small tables, many large ones, and patients with several images."""
    rng = np.random.default_rng(0)
    tables = [(b, c, n) for n in (2, 5, 12, 25) for b in range(n + 1) for c in range(n + 1 - b)]
    tables += [(int(b), int(c), int(b + c + rest)) for b, c, rest in rng.integers(0, [40, 40, 900], (700, 3))]
    cases = [(*rights(b, c, n), np.arange(n)) for b, c, n in tables if n > 1]
    for _ in range(700):
        patients = int(rng.integers(2, 30))
        owner = np.repeat(np.arange(patients), rng.integers(1, 9, patients))
        easy = rng.normal(size=(2, patients))[:, owner] * rng.choice([0, 1]) + rng.choice([0, 0.3], (2, 1))
        cases.append((*(easy + rng.normal(size=(2, len(owner))) > -1), owner))
    excluded = 0
    for first, second, owner in cases:
        found, test = share_difference(first, second, np.ones(len(owner), bool), Units(owner))
        excludes = found.low > 0 or found.high < 0
        assert test.p is not None and excludes == (test.p < 0.05), (first, second, owner)
        assert -1 <= found.low <= found.value <= found.high <= 1
        excluded += excludes
    assert len(cases) > 1700 and 300 < excluded < len(cases) - 300


def pair(patients: int, each: int, seed: int, classes: int = 2) -> tuple[Predictions, Predictions]:
    """Two models of the same skill; each patient is of one class and easy or hard for both."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(patients), each)
    labels = (np.arange(patients) % classes)[owner]
    easy = 0.5 * rng.normal(size=patients)[owner]
    made = []
    for _ in range(2):
        logits = rng.normal(size=(len(owner), classes))
        logits[np.arange(len(owner)), labels] += 2 + easy + 0.5 * rng.normal(size=patients)[owner]
        names, paths = tuple(f"c{i}" for i in range(classes)), tuple(map(str, range(len(owner))))
        made.append(Predictions(names, paths, tuple(map(str, owner)), labels, logits.astype(np.float32)))
    return made[0], made[1]


def test_no_difference_seen_is_no_proof_of_none() -> None:
    """The same classes for all images, from other probabilities: the interval is that of no discordant image."""
    first, _ = pair(20, 1, 0)
    second = Predictions(first.classes, first.paths, None, first.labels, first.logits * np.float32(0.5))
    first = Predictions(first.classes, first.paths, None, first.labels, first.logits)
    found = compare_predictions(first, second)
    reach = Z**2 / (20 + Z**2)
    gap = found.difference["accuracy"]
    assert (gap.low, gap.value, gap.high) == (pytest.approx(-reach), 0, pytest.approx(reach))
    assert found.tests["accuracy"].p == 1
    assert found.difference["balanced_accuracy"].low < -reach  # fewer images of each class


@pytest.mark.parametrize("classes", [2, 3])
def test_rows_that_are_the_same_number_have_the_same_interval(classes: int) -> None:
    gap = compare_predictions(*pair(20, 3, 1, classes)).difference
    assert gap["sensitivity_macro"] == gap["balanced_accuracy"]
    assert classes > 2 or gap["specificity_macro"] == gap["balanced_accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize(("patients", "each"), [(40, 50), (40, 3), (12, 20), (100, 1)])
def test_intervals_hold_the_truth_and_chance_is_called_clear_one_time_in_twenty(patients: int, each: int) -> None:
    """Patients of one class each: 1,000 tests of two models that do not differ; 99.9 % of tries lie below."""
    missed = {"accuracy": 0, "balanced_accuracy": 0, "auroc": 0}
    for seed in range(1000):
        gaps = compare_predictions(*pair(patients, each, seed)).difference
        for name in missed:
            low, high = gaps[name].low, gaps[name].high
            missed[name] += low is not None and high is not None and (low > 0 or high < 0)
    assert all(count <= 73 for count in missed.values()), missed


@pytest.mark.slow
def test_equal_models_rarely_differ_in_average_precision_where_few_patients_have_a_class() -> None:
    """50 patients, 2 % positive, labels and scores 0.5 alike: equal models differed in 10 %."""
    rng, tests, wrong = np.random.default_rng(6), 200, 0
    for _ in range(tests):
        patient = np.repeat(np.arange(50), rng.integers(1, 21, 50))

        def alike(patient: np.ndarray = patient) -> np.ndarray:
            return (rng.normal(size=50)[patient] + rng.normal(size=len(patient))) / 2**0.5

        labels = (alike() < stats.norm.ppf(0.02)).astype(np.int64)
        names = tuple(map(str, range(len(patient)))), tuple(map(str, patient))
        shared = alike()
        scores = (4.6 * labels + 1.6 * (shared + alike()) for _ in range(2))
        first, second = (
            Predictions(("healthy", "ill"), *names, labels, np.stack([0 * s, s], axis=1).astype(np.float32))
            for s in scores
        )
        gap = compare_predictions(first, second).difference["average_precision"]
        wrong += gap.low is not None and gap.high is not None and not gap.low <= 0 <= gap.high
    assert wrong / tests <= 0.08


def two_aurocs(new: float, old: float, positives: int, negatives: int, seed: int) -> tuple[Predictions, Predictions]:
    """Two models of these true AUROCs, whose normal scores have the correlation 0.6."""
    labels, rng = np.repeat([1, 0], [positives, negatives]), np.random.default_rng(seed)
    noise, names = rng.normal(size=(len(labels), 3)), tuple(map(str, range(len(labels))))
    models = []
    for k, area in ((1, new), (2, old)):
        score = np.sqrt([0.6, 0.4]) @ noise[:, [0, k]].T + np.sqrt(2) * stats.norm.ppf(area) * labels
        logits = np.stack([np.zeros(len(labels)), score], axis=1).astype(np.float32)
        models.append(Predictions(("well", "ill"), names, None, labels, logits, positive="ill"))
    return models[0], models[1]


def test_a_few_positives_do_not_show_that_an_auroc_is_not_worse() -> None:
    """The new model is worse by 0.05, which chance hides here; the interval by DeLong's variance ends at -0.03."""
    found = compare_predictions(*two_aurocs(0.93, 0.98, 9, 291, seed=78))
    gap, test = found.difference["auroc"], found.tests["auroc"]
    error = abs(gap.value / test.statistic)
    assert test.method == "delong" and gap.method == "mover-delong" and test.p > 0.05
    assert gap.value - Z * error > -0.03 and gap.low < -0.05 and gap.high >= gap.value + Z * error


def test_the_interval_of_an_auroc_difference_excludes_0_where_p_is_small_and_ends_there_as_the_test() -> None:
    shown = set()
    for seed in range(8):
        found = compare_predictions(*two_aurocs(0.80, 0.92, 12, 40, seed))
        for name in ("auroc", "average_precision"):
            gap = found.difference[name]
            if name == "auroc":
                test = found.tests[name]
                assert (test.p < 0.05) == (gap.low > 0 or gap.high < 0)
                shown.add(test.p < 0.05)
                if gap.high < 0:
                    assert gap.high == pytest.approx(gap.value * (1 - Z / abs(test.statistic)))
            assert gap.low < gap.value < gap.high and gap.method.startswith("mover-")
    assert shown == {True, False}


def test_mover_of_numbers_that_err_together() -> None:
    """Independent: Zou & Donner's formula; with a small correlation theirs too; equal numbers that err alike do not
    differ, and with a correlation of 0.99 by the larger arm times sqrt(1 - 0.99^2)."""
    a, b = (Estimate(value=v, low=low, high=high) for v, low, high in ((0.9, 0.8, 0.96), (0.85, 0.7, 0.93)))
    for alike in (0.0, 0.3):
        down, up = (np.sqrt(x**2 + y**2 - 2 * alike * x * y) for x, y in ((0.1, 0.08), (0.06, 0.15)))
        found = difference(a, b, alike)
        assert (found.value, found.low, found.high) == pytest.approx((0.05, 0.05 - down, 0.05 + up), abs=1e-6)
    same = difference(a, a, 1.0)
    assert (same.low, same.high) == pytest.approx((0, 0), abs=1e-9)
    near = difference(a, a, 0.99)
    assert (near.low, near.high) == pytest.approx(np.array([-0.1, 0.1]) * np.sqrt(1 - 0.99**2), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("new", "old", "positives", "negatives"), [(0.93, 0.98, 9, 291), (0.85, 0.9, 40, 160)])
def test_a_model_worse_by_the_margin_is_seldom_found_not_worse(
    new: float, old: float, positives: int, negatives: int
) -> None:
    pairs = (two_aurocs(new, old, positives, negatives, seed) for seed in range(300))
    found = [compare_predictions(*pair).difference["auroc"] for pair in pairs]
    assert np.mean([gap.low > new - old for gap in found]) <= 0.045  # 2.5 of 100 are asked for
    assert np.mean([gap.low <= new - old <= gap.high for gap in found]) >= 0.93
