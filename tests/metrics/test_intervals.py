"""Intervals against scipy, published worked examples, R's pROC and slow definitions; and where there is none, why."""

from dataclasses import replace

import numpy as np
import pytest
from every_kind import redrawn
from predicted import quiet
from scipy import stats
from sklearn import metrics as sk

from vitmed.core.errors import DataError
from vitmed.metrics.areas import area_interval, area_spread, class_areas, newcombe_area
from vitmed.metrics.bootstrap import bootstrap_weights, percentile_interval, widened_level
from vitmed.metrics.estimates import ImagesPerPatient
from vitmed.metrics.intervals import (
    Part,
    Spread,
    Units,
    correlation,
    influence_spread,
    jackknife_interval,
    log_interval,
    mean_gap_interval,
    quantile,
    satterthwaite,
    share,
    share_ratio,
    uneven,
    wilson,
)
from vitmed.metrics.kinds.classes import PreparedPredictions, evaluate_predictions
from vitmed.metrics.paired_comparison import share_difference
from vitmed.metrics.predictions import Predictions


def slow_delong(first: np.ndarray, second: np.ndarray, positive: np.ndarray) -> float:
    """Covariance of two AUROCs by the definition, every pair looked at: DeLong 1988, eq. 4 to 6."""
    placed = []
    for scores in (first, second):
        wins = np.array([[(x > y) + 0.5 * (x == y) for y in scores[~positive]] for x in scores[positive]])
        placed.append((wins.mean(axis=1), wins.mean(axis=0)))
    (a10, a01), (b10, b01) = placed
    return float(np.cov(a10, b10)[0, 1] / len(a10) + np.cov(a01, b01)[0, 1] / len(a01))


def slow_obuchowski(scores: np.ndarray, positive: np.ndarray, patients: np.ndarray) -> float:
    """Variance of an AUROC by the definition: Obuchowski 1997, with loops over patients."""
    wins = np.array([[(x > y) + 0.5 * (x == y) for y in scores[~positive]] for x in scores[positive]])
    area, m, n = wins.mean(), positive.sum(), (~positive).sum()
    v10, v01 = wins.mean(axis=1), wins.mean(axis=0)
    names = np.unique(patients)
    up = np.array([(v10[patients[positive] == i] - area).sum() for i in names])
    down = np.array([(v01[patients[~positive] == i] - area).sum() for i in names])
    g, g10, g01 = len(names), len(np.unique(patients[positive])), len(np.unique(patients[~positive]))
    s10, s01 = g10 / ((g10 - 1) * m) * (up**2).sum(), g01 / ((g01 - 1) * n) * (down**2).sum()
    s11 = g / (g - 1) * (up * down).sum()
    return float(s10 / m + s01 / n + 2 * s11 / (m * n))


def units_of(sizes: np.ndarray) -> Units:
    return Units(np.repeat(np.arange(len(sizes)), sizes.astype(int)))


def logits_of(scores: np.ndarray) -> np.ndarray:
    return np.stack([np.zeros(len(scores)), scores], axis=1).astype(np.float32)


def clustered(seed: int = 0, patients: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores with ties, which are positive, and whose they are."""
    rng = np.random.default_rng(seed)
    index = np.repeat(np.arange(patients), rng.integers(1, 9, patients))
    positive = rng.random(len(index)) < 0.4
    return np.round(rng.normal(size=len(index)) + positive + rng.normal(size=patients)[index], 1), positive, index


def test_delong_is_what_proc_gives() -> None:
    """WFNS grade of the aneurysm patients of pROC, by outcome; var and auc as its own tests hold them."""
    good, poor = (37, 20, 3, 8, 4), (2, 12, 1, 8, 18)  # patients of grade 1 to 5
    grade = np.concatenate([np.repeat(np.arange(1, 6), counts) for counts in (good, poor)]).astype(float)
    positive = np.arange(113) >= 72
    area = class_areas(grade, positive)[0]
    assert area.value == pytest.approx(0.8236788617886179, abs=1e-12)
    found = area_spread(area.influence, positive, Units(np.arange(113)))
    assert found.variance == pytest.approx(0.00146991470882363, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_delong_and_obuchowski_by_their_definitions(seed: int) -> None:
    scores, positive, patients = clustered(seed)
    other = np.round(scores + np.random.default_rng(seed + 99).normal(size=len(scores)), 1)
    first, second = (class_areas(s, positive)[0] for s in (scores, other))
    alone, units = Units(np.arange(len(scores))), Units(patients)
    assert area_spread(first.influence, positive, alone).variance == pytest.approx(
        slow_delong(scores, scores, positive), abs=1e-12
    )
    gap = slow_delong(scores, scores, positive) + slow_delong(other, other, positive)
    gap -= 2 * slow_delong(scores, other, positive)
    assert area_spread(first.influence - second.influence, positive, alone).variance == pytest.approx(gap, abs=1e-12)
    found = area_spread(first.influence, positive, units)
    assert found.variance == pytest.approx(slow_obuchowski(scores, positive, patients), abs=1e-12)
    assert 1 <= found.degrees <= 2 * (units.count - 1)


def test_influence_is_the_derivative_by_the_weight_of_each_image() -> None:
    scores, positive, _ = clustered(3)
    size, step = len(scores), 1e-6
    each = (sk.roc_auc_score, sk.average_precision_score)
    for found, area in zip(class_areas(scores, positive), each, strict=True):
        moved = np.array([area(positive, scores, sample_weight=w) for w in np.ones((size, size)) + step * np.eye(size)])
        assert found.value == pytest.approx(area(positive, scores), abs=1e-12)
        assert found.influence == pytest.approx((moved - found.value) / step, abs=1e-6)
        assert found.influence.sum() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (1, 10), (81, 263), (15, 148), (0, 20), (29, 29), (999, 1000)])
def test_wilson_is_scipys(hits: int, n: int) -> None:
    counted = np.ones(n, bool)
    found = share(np.arange(n) < hits, counted, Units(np.arange(n)))
    known = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=1e-9)


def test_wilson_as_newcombe_prints_it() -> None:
    """Newcombe, Stat. Med. 17 (1998) 857, table I, method 3."""
    printed = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (hits, n), known in printed.items():
        assert wilson(hits / n, n, 1.959964) == pytest.approx(known, abs=5e-5)


def test_a_share_of_patients_of_one_size_by_hand() -> None:
    """Four patients with two images each, 2, 2, 1 and 0 right."""
    hits = np.array([1, 1, 1, 1, 1, 0, 0, 0], bool)
    found = share(hits, np.ones(8, bool), Units(np.repeat(np.arange(4), 2)))
    p = 5 / 8
    variance = 4 / 3 * sum((x - 2 * p) ** 2 for x in (2, 2, 1, 0)) / 8**2
    own, assumed = variance / (p * (1 - p) / 8), 1 + (2 - 1) * 0.05
    effect = (3 * own + (assumed - 1) * assumed) / (3 + assumed - 1)  # three images are wrong
    between, within = 2 * sum((x / 2 - p) ** 2 for x in (2, 2, 1, 0)) / 3, 0.5 / 4
    assert found.icc == pytest.approx((between - within) / (between + within))
    assert (found.design_effect, found.effective_n) == pytest.approx((effect, 8 / effect))
    assert (found.low, found.high) == pytest.approx(wilson(p, 8 / effect, stats.t.ppf(0.975, 3)))
    assert found.method == "wilson-cluster" and found.units == 4


def test_likeness_is_that_of_the_analysis_of_variance() -> None:
    values = np.random.default_rng(0).normal(size=(6, 5)) + np.arange(6)[:, None]
    f = stats.f_oneway(*values).statistic
    known = (f - 1) / (f - 1 + 5)  # of groups of one size
    assert correlation(np.full(6, 5.0), values.sum(1), (values**2).sum(1)) == pytest.approx(known)
    assert satterthwaite(np.full(6, 5.0), 0.3) == pytest.approx(5)
    uneven = np.repeat([2.0, 5.0], [10, 2])  # variances 2 and 5 at 0, 3 and 15 at a half, 4 and 25 at 1
    expected = {-0.1: 30**2 / 90 - 1, 0.5: 60**2 / 540 - 1, 1.0: 90**2 / 1410 - 1, np.nan: 30**2 / 90 - 1}
    assert {icc: satterthwaite(uneven, icc) for icc in expected} == pytest.approx(expected, nan_ok=True)
    assert satterthwaite(np.array([100.0, 1, 1, 1]), 1.0) == 1  # one patient is nearly all there is


def test_where_one_patient_holds_a_third_all_show_how_alike_their_images_are() -> None:
    """Kish's effect by hand. A variance of sums would be the square of what the large patient adds, with 1 degree."""
    sizes, hits = (
        np.array([105.0] + [14.0] * 15),
        np.array([90.0, 14, 9, 14, 14, 6, 14, 14, 12, 14, 14, 14, 3, 14, 14, 14]),
    )
    found = share(np.concatenate([np.arange(n) < k for n, k in zip(sizes, hits, strict=True)]), None, units_of(sizes))
    n, wrong, kish = 315, 315 - hits.sum(), (sizes**2).sum() / 315
    shown, assumed = 1 + (kish - 1) * correlation(sizes, hits, hits), 1 + (kish - 1) * 0.05
    effect = (wrong * shown + (assumed - 1) * assumed) / (wrong + assumed - 1)
    assert (found.icc > 0.05, found.design_effect) == (True, pytest.approx(effect))
    assert (found.low, found.high) == pytest.approx(wilson(found.value, n / effect, stats.t.ppf(0.975, 4)))
    assert satterthwaite(sizes, 0.05) == 4 and not uneven(np.full(5, 20.0)) and not uneven(np.array([9.0, 8, 9, 8, 9]))
    assert not uneven(np.array([65.0] + [1] * 99))  # single images do not show how alike those of a patient are


def test_an_area_of_a_patient_with_a_third_varies_by_kishs_effect() -> None:
    sizes, rng = np.array([105.0] + [14.0] * 15), np.random.default_rng(0)
    units, positive = units_of(sizes), rng.random(315) < 0.4
    pull = class_areas(rng.normal(size=315) + positive + rng.normal(size=16)[units.index], positive)[0].influence
    icc = max(0.05, correlation(sizes, units.sums(pull), units.sums(pull**2)))
    found = area_spread(pull, positive, units)
    kish = 1 + ((sizes**2).sum() / 315 - 1) * icc
    assert found.variance == pytest.approx(315 * pull.var(ddof=1) * kish) and found.degrees == 4
    assert influence_spread(pull, units) == found
    heavy = pull + 0.01 * (units.index == 0)  # whose kurtosis leaves 2.1 degrees
    assert influence_spread(heavy, units).degrees == 4
    assert units.leveraged(pull, positive.astype(np.int64)) is pull


def test_an_area_of_few_images_where_a_patient_holds_a_third_counts_effective_images() -> None:
    """Newcombe's interval, from the images of each class divided by Kish's effect at the likeness that is seen."""
    sizes, rng = np.array([105] + [14] * 15), np.random.default_rng(1)
    units, positive = units_of(sizes), rng.random(315) < 0.12
    scores = rng.normal(size=315) + positive + 2 * rng.normal(size=16)[units.index]
    area, effective = class_areas(scores, positive)[0], []
    for part in (positive, ~positive):
        held = np.bincount(units.index[part], minlength=16)
        own = [np.bincount(units.index[part], area.influence[part] ** power, 16)[held > 0] for power in (1, 2)]
        held = held[held > 0]
        kish = 1 + ((held**2).sum() / held.sum() - 1) * max(0.05, correlation(held, *own))
        assert correlation(held, *own) > 0.05
        effective.append(held.sum() / kish)
    low, high, name = area_interval(area, positive, units)
    assert name == "newcombe" and min(effective) < 50 and uneven(sizes)
    assert (low, high) == pytest.approx(newcombe_area(area.value, *effective, stats.t.ppf(0.975, 4)))


@pytest.mark.parametrize("likeness", [0.05, 0.5])
def test_intervals_where_one_patient_holds_a_third(likeness: float) -> None:
    """Of 200 patients: accuracy 0.9, and its difference to 0.75. Twice as wide before, and the difference up to 1.5."""
    sizes, rng, held = np.array([500] + [5] * 199), np.random.default_rng(0), np.zeros(4)
    units, images = units_of(sizes), int(sizes.sum())
    for _ in range(40):
        of_patient, own = rng.normal(size=(2, 200))[:, units.index], rng.normal(size=(2, images))
        first, second = likeness**0.5 * of_patient + (1 - likeness) ** 0.5 * own < stats.norm.ppf([[0.9], [0.75]])
        one, gap = share(first, None, units), share_difference(first, second, np.ones(images, bool), units)[0]
        held += one.low <= 0.9 <= one.high, gap.low <= 0.15 <= gap.high, one.high - one.low, gap.high - gap.low
    share_held, gap_held, width, gap_width = held / 40
    assert min(share_held, gap_held) >= 0.95 and (width, gap_width) < ((0.2, 0.3) if likeness < 0.1 else (0.35, 0.65))


def test_one_image_a_patient_is_as_without_patients() -> None:
    scores, positive, _ = clustered(1)
    p = Predictions(("a", "b"), tuple(map(str, range(len(scores)))), None, positive.astype(np.int64), logits_of(scores))
    known = replace(p, groups=tuple(f"P{i}" for i in range(len(scores))))
    alone, single = (evaluate_predictions(q) for q in (p, known))
    assert alone["overall"] == single["overall"] and alone["per_class"] == single["per_class"]
    assert {entry["method"] for entry in single["overall"].values()} == {
        "wilson",
        "newcombe",
        "influence",
        "wilson-mean",
    }


def test_a_perfect_result_is_not_certain() -> None:
    """Twenty images without an error: no interval ends where it began, and more images make it narrower."""
    lows = {}
    for size in (20, 200):
        labels = np.arange(size) % 2
        for groups in (None, tuple(f"P{i // 4}" for i in range(size))):
            p = Predictions(("a", "b"), ("x",) * size, groups, labels, logits_of(4.0 * labels - 2))
            result = evaluate_predictions(p)
            entries = [*result["overall"].items(), *result["per_class"]["b"]]
            for name, entry in entries:
                if name not in ("n", "log_loss", "brier"):
                    assert entry["low"] < entry["high"] == pytest.approx(1), name
            lows[size, groups is None] = result["overall"]["auroc"]["low"]
    assert lows[20, False] < lows[20, True] < lows[200, True] and lows[20, False] < lows[200, False] < lows[200, True]


@pytest.mark.parametrize(("value", "m", "n"), [(1, 30, 12), (0, 30, 12), (0.93, 5, 295), (0.5, 8, 8), (0.999, 3, 2997)])
def test_newcombes_interval_solves_his_equation(value: float, m: int, n: int) -> None:
    """At its ends the distance from the estimate is z standard errors, by the variance of an area of that size."""

    def error(a: float) -> float:
        common = (m + n) / 2 - 1
        return (a * (1 - a) * (1 + common * (1 - a) / (2 - a) + common * a / (1 + a)) / (m * n)) ** 0.5

    low, high = newcombe_area(value, m, n, 1.96)
    assert 0 <= low <= value <= high <= 1
    assert low == 0 if value == 0 else value - low == pytest.approx(1.96 * error(low))
    assert high == 1 if value == 1 else high - value == pytest.approx(1.96 * error(high))
    assert newcombe_area(1 - value, n, m, 1.96) == pytest.approx((1 - high, 1 - low))


def test_newcombes_interval_of_one_positive_and_one_negative_by_hand() -> None:
    """Of one pair V(a) is a (1 - a), so the interval is Wilson's of a proportion of one image."""
    assert newcombe_area(1.0, 1, 1, 1.96) == pytest.approx(wilson(1.0, 1, 1.96))
    assert newcombe_area(0.5, 1, 1, 1.96) == pytest.approx(wilson(0.5, 1, 1.96))


def test_the_widened_bootstrap_is_hesterbergs() -> None:
    edge = stats.norm.cdf(-np.sqrt(10 / 9) * stats.t.ppf(0.975, 9))
    assert widened_level(9) == pytest.approx(1 - 2 * edge)
    assert widened_level(1e6) == pytest.approx(0.95, abs=1e-4)
    assert quantile(9) == pytest.approx(stats.t.ppf(0.975, 9))


@pytest.mark.parametrize(
    ("classes", "grouped"),
    [(2, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, False), (4, False), (4, True)))],
)
def test_the_spread_of_areas_is_what_resampling_shows(classes: int, grouped: bool) -> None:
    """The areas of the resamples are scikit-learn's."""
    rng = np.random.default_rng(classes)
    patients = np.repeat(np.arange(100), 4)
    labels = rng.integers(classes, size=400)
    logits = rng.normal(size=(400, classes)).astype(np.float32)
    logits[np.arange(400), labels] += 1.5 + 0.7 * rng.normal(size=100)[patients]
    groups = tuple(f"P{i}" for i in patients) if grouped else None
    p = Predictions(tuple("abcd"[:classes]), ("x",) * 400, groups, labels, logits)
    result, units = evaluate_predictions(p), patients if grouped else np.arange(400)
    weights = np.concatenate([*bootstrap_weights(units, 800 // classes, seed=0)])
    ranked = (1,) if classes == 2 else range(classes)
    found = {}
    for name, area in (("auroc", sk.roc_auc_score), ("average_precision", sk.average_precision_score)):
        each = np.array([[area(labels == c, p.probabilities[:, c], sample_weight=w) for w in weights] for c in ranked])
        found[name] = result["overall"][name], each.mean(axis=0)
        found[f"{name} of b"] = result["per_class"]["b"][name], each[[*ranked].index(1)]
    for name, (entry, drawn) in found.items():  # resampling knows nothing of the leverage of a patient
        most = 0.15 if name.startswith("auroc") else 0.2
        assert (entry["high"] - entry["low"]) / (2 * 1.96) == pytest.approx(np.std(drawn), rel=most), name
        assert (entry["low"], entry["high"]) == pytest.approx(percentile_interval(drawn), abs=0.02), name


def test_what_a_patient_adds_counts_more_where_few_patients_have_the_class() -> None:
    """The first of three patients has two of three positives: at most twice. The third has the only negative."""
    units = Units(np.array([0, 0, 1, 2]))
    assert units.leveraged(np.ones(4), np.array([1, 1, 1, 0])) == pytest.approx([2, 2, 1.5, 2])
    alone = Units(np.arange(10))
    assert alone.leveraged(np.ones(10), np.arange(10) % 2) == pytest.approx(np.full(10, 5 / 4))


def test_errors_that_two_patients_have_show_little_of_their_variance() -> None:
    """Two of 40 patients have all errors: Student's t with 8 degrees, not the 39 of as many alike patients."""
    units = Units(np.repeat(np.arange(40), 10))
    found = share(units.index > 1, np.ones(400, bool), units)
    assert (found.low, found.high) == pytest.approx(wilson(found.value, found.effective_n, stats.t.ppf(0.975, 8)))


@pytest.mark.slow
def test_intervals_hold_where_few_patients_have_the_class() -> None:
    """25 patients with images of both classes, 5 % positive, labels and scores 0.5 alike: kappa was held in 88 %."""
    held, known = dict.fromkeys(("mcc", "cohen_kappa", "average_precision"), 0), 0
    rng = np.random.default_rng(2)

    def drawn(patients: int, images: int) -> Predictions:
        index = np.repeat(np.arange(patients), rng.integers(1, images + 1, patients))

        def alike() -> np.ndarray:
            return (rng.normal(size=patients)[index] + rng.normal(size=len(index))) / 2**0.5

        labels = (alike() < stats.norm.ppf(0.05)).astype(np.int64)
        logits = logits_of(2.4 * (1.2 * (2 * labels - 1) + alike()))
        groups = tuple(map(str, index)) if images > 1 else None
        return Predictions(("no", "yes"), ("x",) * len(index), groups, labels, logits)

    truth = {name: one.value for name, one in PreparedPredictions(drawn(200_000, 1)).overall.items()}
    for _ in range(250):
        found = PreparedPredictions(drawn(25, 20)).overall
        known += found["mcc"].low is not None
        for name in held:
            held[name] += found[name].low is not None and found[name].low <= truth[name] <= found[name].high
    assert known > 150 and all(count / known >= 0.94 for count in held.values()), (known, held)


@pytest.mark.parametrize("classes", [2, 3])
def test_every_number_of_classes_of_unequal_size_is_that_of_scikit_learn(classes: int) -> None:
    """Of two the positive class counts where one class does; a macro mean is over all."""
    rng = np.random.default_rng(classes)
    labels = rng.choice(classes, size=90, p=[0.7, 0.3] if classes == 2 else [0.6, 0.3, 0.1])
    logits = (rng.normal(size=(90, classes)) + 1.2 * np.eye(classes)[labels]).astype(np.float32)
    names = ("healthy", "ill") if classes == 2 else tuple("abc")
    p = Predictions(names, tuple(map(str, range(90))), tuple(f"P{i // 2}" for i in range(90)), labels, logits)
    found, chances, called = evaluate_predictions(p), p.probabilities, p.predicted
    areas = [sk.roc_auc_score(labels == c, chances[:, c]) for c in range(classes)]
    precisions = [sk.average_precision_score(labels == c, chances[:, c]) for c in range(classes)]
    expected = {
        "accuracy": (labels == called).mean(), "balanced_accuracy": sk.balanced_accuracy_score(labels, called),
        "auroc": areas[1] if classes == 2 else np.mean(areas),
        "average_precision": precisions[1] if classes == 2 else np.mean(precisions),
        "mcc": sk.matthews_corrcoef(labels, called), "cohen_kappa": sk.cohen_kappa_score(labels, called),
        "log_loss": sk.log_loss(labels, chances),
    }  # fmt: skip
    for name, score in (("sensitivity", sk.recall_score), ("ppv", sk.precision_score), ("f1", sk.f1_score)):
        expected[f"{name}_macro"] = score(labels, called, average="macro")
    inverse = [sk.recall_score(labels != c, called != c) for c in range(classes)]
    expected["specificity_macro"] = np.mean(inverse)
    assert {name: found.overall[name].value for name in expected} == pytest.approx(expected)
    for name in expected:
        assert found.overall[name].low < found.overall[name].value < found.overall[name].high, name
    assert found.confusion_matrix == sk.confusion_matrix(labels, called).tolist()
    assert [found.per_class[name].n for name in names] == np.bincount(labels).tolist()
    assert (found.positive_class, found.resampling, found.n, found.n_groups) == (
        "ill" if classes == 2 else None, "by patient", 90, 45,
    )  # fmt: skip


@pytest.mark.parametrize("classes", [2, 3])
def test_the_influence_on_overall_areas_is_their_derivative(classes: int) -> None:
    """By the weight of each image, also on how common its class is."""
    rng = np.random.default_rng(classes)
    labels = np.concatenate([np.arange(classes), rng.integers(classes, size=24 - classes)])
    logits = (rng.normal(size=(24, classes)) + np.eye(classes)[labels]).astype(np.float32)
    p = Predictions(("no", "yes") if classes == 2 else tuple("abc"), ("x",) * 24, None, labels, logits)
    prepared, chances = PreparedPredictions(p), p.probabilities

    def value(name: str, w: np.ndarray) -> float:
        score = sk.roc_auc_score if name.startswith("auroc") else sk.average_precision_score
        own = [score(labels == c, chances[:, c], sample_weight=w) for c in range(classes)]
        if name.endswith("weighted"):
            return float(np.bincount(labels, w) / w.sum() @ own)
        return float(own[1] if classes == 2 else np.mean(own))

    for name, area in prepared.overall_areas.items():
        assert area.value == pytest.approx(value(name, np.ones(24))), name
        moved = [(value(name, np.ones(24) + 1e-6 * one) - area.value) / 1e-6 for one in np.eye(24)]
        assert area.influence == pytest.approx(np.array(moved), abs=1e-5), name


def test_hundreds_of_classes() -> None:
    labels = np.arange(600) % 300
    logits = np.random.default_rng(0).normal(size=(600, 300)).astype(np.float32)
    logits[np.arange(600), labels] += 3
    p = Predictions(tuple(f"c{i}" for i in range(300)), ("x",) * 600, None, labels, logits)
    result = quiet(p)
    assert result["overall"]["auroc"]["low"] is not None and len(result["sample"]["classes"]) == 300
    assert len(" ".join(result["notes"])) < 1000


def test_a_class_of_one_patient_has_no_interval_and_says_so() -> None:
    labels = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    groups = ("A", "A", "A", "A", "B", "B", "C", "C", "D", "D")
    scores = np.array([2, 1, -1, 3, -2, 1, -1, -3, 0.5, -2.0])
    result = quiet(Predictions(("a", "b"), ("x",) * 10, groups, labels, logits_of(scores)))
    assert result["no_interval"]["sensitivity of b"] == "the images that it counts come from fewer than 2 patients"
    assert result["overall"]["accuracy"]["low"] is not None
    assert any("'b' come from one patient" in note for note in result["notes"])


def test_a_score_that_is_no_number_is_refused_by_row() -> None:
    logits = logits_of(np.arange(6.0))
    logits[3, 1] = np.nan
    with pytest.raises(DataError, match=r"1 of 6 rows .* the first is row 4"):
        evaluate_predictions(Predictions(("a", "b"), ("x",) * 6, None, np.arange(6) % 2, logits))


def test_the_sample_is_told() -> None:
    rng = np.random.default_rng(0)
    patients = np.repeat(np.arange(30), 40)
    right = rng.random(1200) < rng.choice([0.5, 1.0], 30)[patients]
    labels = rng.integers(2, size=1200)
    logits = np.eye(2, dtype=np.float32)[np.where(right, labels, 1 - labels)]
    p = Predictions(("a", "b"), ("x",) * 1200, tuple(f"P{i}" for i in patients), labels, logits)
    sample = quiet(p)["sample"]
    assert (sample["n_images"], sample["n_patients"]) == (1200, 30)
    assert sample["images_per_patient"] == ImagesPerPatient(min=40, median=40.0, max=40)
    uneven = quiet(replace(p, groups=tuple("PQQRRRRR" + "S" * 1192)))["sample"]
    assert uneven["images_per_patient"] == ImagesPerPatient(min=1, median=3.5, max=1192)
    found = sample["accuracy"]
    assert found["design_effect"] == pytest.approx(1 + 39 * found["icc"], rel=0.05)  # Kish
    assert found["effective_n"] == pytest.approx(1200 / found["design_effect"])
    assert (
        len(sample["classes"]) == 2 and sample["classes"][0].sensitivity.n + sample["classes"][1].sensitivity.n == 1200
    )
    unknown = quiet(replace(p, groups=None))["sample"]
    assert unknown["n_patients"] is unknown["images_per_patient"] is unknown["accuracy"]["icc"] is None


def mean_of(*counts: tuple[int, int]) -> tuple[float, float]:
    """Wilson's interval of the mean of proportions (hits, images) of different images, with the number of images that
    has its variance: of each p (1 - p) / n, at p moved towards the mean as by z^2 more images."""
    z2, mean = stats.norm.ppf(0.975) ** 2, np.mean([hits / n for hits, n in counts])
    moved = [((hits + z2 * mean) / (n + z2), n) for hits, n in counts]
    n = mean * (1 - mean) / sum(p * (1 - p) / n for p, n in moved) * len(counts) ** 2
    ends = np.roots([1 + z2 / n, -2 * mean - z2 / n, mean**2])  # (p - mean)^2 = z^2 p (1 - p) / n
    return tuple(sorted(ends.tolist()))


def test_balanced_accuracy_adds_up_the_classes() -> None:
    """By hand, for 40 of 50 and 27 of 30."""
    labels = np.array([0] * 50 + [1] * 30)
    called = np.array([0] * 40 + [1] * 10 + [1] * 27 + [0] * 3)
    entry = evaluate_predictions(Predictions(("a", "b"), ("x",) * 80, None, labels, logits_of(2.0 * called - 1)))
    found = entry["overall"]["balanced_accuracy"]
    assert (found["low"], found["high"]) == pytest.approx(mean_of((40, 50), (27, 30)), abs=1e-9)


def test_no_error_in_classes_of_one_size_has_the_interval_of_the_accuracy() -> None:
    """Balanced accuracy and accuracy are then the same; before, the former reached half as far down."""
    labels = np.repeat(np.arange(4), 25)
    entry = evaluate_predictions(Predictions(tuple("abcd"), ("x",) * 100, None, labels, 9.0 * np.eye(4)[labels]))
    known = stats.binomtest(100, 100).proportion_ci(method="wilson")
    for name in ("accuracy", "balanced_accuracy"):
        found = entry["overall"][name]
        assert (found["low"], found["high"]) == pytest.approx((known.low, known.high), abs=1e-9)


def test_no_error_of_patients_with_an_image_of_each_class_has_the_interval_of_the_accuracy() -> None:
    """20 images of 10 patients: both images of a patient are assumed to be alike, though each class has only one."""
    labels, groups = np.arange(20) % 2, tuple(f"P{i // 2}" for i in range(20))
    overall = evaluate_predictions(
        Predictions(("a", "b"), ("x",) * 20, groups, labels, 9.0 * np.eye(2)[labels])
    ).overall
    low = 20 / (20 + 1.05 * stats.t.ppf(0.975, 9) ** 2)
    for name in ("accuracy", "balanced_accuracy"):
        assert (overall[name].low, overall[name].high) == pytest.approx((low, 1), abs=1e-9)


def test_f1_is_wilsons_of_the_jaccard_index() -> None:
    labels, called = np.array([1] * 20 + [0] * 20), np.array([1] * 15 + [0] * 5 + [1] * 4 + [0] * 16)
    result = evaluate_predictions(Predictions(("a", "b"), ("x",) * 40, None, labels, logits_of(2.0 * called - 1)))
    known = stats.binomtest(15, 24).proportion_ci(method="wilson")
    found = result["per_class"]["b"]["f1"]
    assert found["value"] == pytest.approx(sk.f1_score(labels, called))
    assert (found["low"], found["high"]) == pytest.approx([2 * x / (1 + x) for x in (known.low, known.high)], abs=1e-9)


def images_of(hits_top: int, top: int, hits_bottom: int, bottom: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images of two kinds, which are of the first, and which are hits."""
    first = np.arange(top + bottom) < top
    hits = np.concatenate([np.arange(top) < hits_top, np.arange(bottom) < hits_bottom])
    return first, ~first, hits


class TestRatio:
    @pytest.mark.parametrize("counts", [(3, 60, 55, 60), (90, 100, 40, 200), (0, 30, 25, 30), (30, 30, 1, 40)])
    def test_the_interval_is_the_definition(self, counts: tuple[int, int, int, int]) -> None:
        """Donner & Zou: at its ends the interval that MOVER gives a - R b, by Wilson's of both, just reaches 0."""
        first, second, hits = images_of(*counts)
        value, low, high = share_ratio(first, second, hits, Units(np.arange(len(hits))))
        x, n, y, m = counts
        a, b = x / n, y / m
        (al, ah), (bl, bh) = (stats.binomtest(k, s).proportion_ci(method="wilson") for k, s in ((x, n), (y, m)))
        assert value == pytest.approx(a / b) and low <= value <= high
        assert (a - high * b) ** 2 == pytest.approx((ah - a) ** 2 + high**2 * (b - bl) ** 2)
        if x:
            assert (a - low * b) ** 2 == pytest.approx((a - al) ** 2 + low**2 * (bh - b) ** 2)
        else:
            assert low == 0

    def test_it_agrees_with_scipys_relative_risk(self) -> None:
        """Katz' interval on the scale of logarithms, for the same on 3,000 images: within a hundredth."""
        first, second, hits = images_of(400, 2000, 900, 1000)
        found = share_ratio(first, second, hits, Units(np.arange(3000)))
        theirs = stats.contingency.relative_risk(400, 2000, 900, 1000)
        assert found == pytest.approx((theirs.relative_risk, *theirs.confidence_interval()), rel=0.01)

    def test_turned_round_it_is_the_reverse(self) -> None:
        first, second, hits = images_of(12, 40, 0, 50)
        units = Units(np.arange(90) // 3)  # the patient of rows 39 to 41 has images of both
        value, low, high = share_ratio(first, second, hits, units)
        back = share_ratio(second, first, hits, units)
        assert (value, back[0], back[1], high) == (np.inf, 0, 0, np.inf) and low == pytest.approx(1 / back[2])
        assert np.isnan(share_ratio(first, second, np.zeros(90, bool), units)).all()

    def test_where_one_share_has_no_interval_their_ratio_has_none_whichever_is_on_top(self) -> None:
        first, second, hits = images_of(12, 40, 0, 14)  # the second kind is of one patient
        units = Units(np.concatenate([np.arange(40), np.full(14, 40)]))
        assert np.isnan(share(hits, second, units).low)
        assert share_ratio(first, second, hits, units)[0] == np.inf and share_ratio(second, first, hits, units)[0] == 0
        for one, other in ((first, second), (second, first)):
            assert np.isnan(share_ratio(one, other, hits, units)[1:]).all()

    def test_patients_with_images_of_both_make_it_narrower_where_errors_go_together(self) -> None:
        """A scanner that calls much positive raises both shares: their ratio varies less than of strangers."""
        rng = np.random.default_rng(0)
        eager, first = np.repeat(rng.random(40) < 0.5, 10), np.tile(np.arange(10) < 5, 40)
        hits = rng.random(400) < np.where(eager, 0.9, 0.3)
        both = Units(np.repeat(np.arange(40), 10))
        apart = Units(np.repeat(np.arange(40), 10) + 40 * first)  # the same images, as if of eighty patients
        widths = [high / low for _, low, high in (share_ratio(first, ~first, hits, u) for u in (both, apart))]
        assert widths[0] < 0.8 * widths[1]


def test_a_model_that_guesses_has_a_correlation_that_may_be_below_0() -> None:
    """MCC and kappa lie within -1..1: of 200 guesses the intervals hold 0, nearly as far below as above the value."""
    rng = np.random.default_rng(1)
    labels, called = rng.integers(2, size=200), rng.integers(2, size=200)
    p = Predictions(("a", "b"), ("x",) * 200, None, labels, logits_of(called - 0.5))
    overall = evaluate_predictions(p)["overall"]
    for name in ("mcc", "cohen_kappa"):
        entry = overall[name]
        assert entry["low"] < 0 < entry["high"] and entry["high"] - entry["low"] == pytest.approx(4 / 200**0.5, rel=0.1)


def by_rank(positives: list[float], negatives: int) -> Predictions:
    """Negatives that score up to 1 evenly, the first of them below 0, and these positives."""
    scores = np.concatenate([(np.arange(negatives) - 0.5) / negatives, positives])
    labels = (np.arange(len(scores)) >= negatives).astype(np.int64)
    return Predictions(("no", "yes"), ("x",) * len(scores), None, labels, logits_of(scores))


class TestRareClass:
    """What few positives can tell. How often each interval holds the truth: benchmarks/coverage.py."""

    def test_three_positives_do_not_give_a_narrow_interval(self) -> None:
        result = evaluate_predictions(by_rank([1.1, 1.2, 0.9988], 2997))
        found = result.overall["auroc"]
        assert found.value == pytest.approx(1, abs=1e-3) and found.method == "newcombe"
        assert (found.low, found.high) == pytest.approx(newcombe_area(found.value, 3, 2997, 1.959964), abs=1e-6)
        assert found.low is not None and found.low < 0.75

    def test_below_five_what_does_not_hold_has_no_interval_and_says_why(self) -> None:
        result = evaluate_predictions(by_rank([1.1, 1.2, 0.5], 300))
        for name in ("log_loss", "brier", "mcc", "cohen_kappa", "average_precision"):
            assert result.overall[name].low is None
            assert result.no_interval[name] == "too few to say: 3 images of class 'yes'"
        for name in ("accuracy", "balanced_accuracy", "auroc", "specificity_macro", "f1_macro"):
            assert result.overall[name].low is not None
        assert result.no_interval["ppv_macro"] == "the images that it counts come from fewer than 2 images"  # NPV
        assert "Class 'yes' has only 3 images: too few to say how well the model finds it" in result.notes[0]

    @pytest.mark.parametrize("count", [12, 29, 30])
    def test_the_top_note_counts_the_rarest_class(self, count: int) -> None:
        notes = [note for note in evaluate_predictions(by_rank([0.9] * count, 300)).notes if "Class 'yes'" in note]
        rough = "the numbers that depend on this class are uncertain, as their intervals show."
        if count < 10:
            rough += (
                " Intervals of PPV, F1, MCC, kappa and average precision hold only where the class is as common as "
            )
            rough += "in these images."
        assert notes == ([f"Class 'yes' has only {count} images: {rough}"] if count < 30 else [])

    def test_the_top_note_counts_patients(self) -> None:
        p = replace(by_rank([0.9] * 40, 300), groups=tuple(f"P{i // 10}" for i in range(340)))
        assert "Class 'yes' has only 4 patients (40 images): too few to say" in evaluate_predictions(p).notes[0]

    def test_newcombes_is_taken_below_fifty_of_a_class_and_for_a_perfect_ranking(self) -> None:
        rng = np.random.default_rng(0)
        methods = {
            n: evaluate_predictions(by_rank(rng.random(n).tolist(), 300)).overall["auroc"].method for n in (49, 50)
        }
        assert methods == {49: "newcombe", 50: "delong"}
        assert evaluate_predictions(by_rank([1.1] * 60, 300)).overall["auroc"].method == "newcombe"

    def test_one_pair_in_the_wrong_order_does_not_look_better_than_none(self) -> None:
        lows = [evaluate_predictions(by_rank([1.1] * 99 + [x], 300)).overall["auroc"].low for x in (1.1, 0.9967, 0.99)]
        assert lows == sorted(lows, reverse=True)

    def test_one_wrong_image_does_not_raise_mcc_and_kappa(self) -> None:
        labels = np.arange(400) % 2
        for name in ("mcc", "cohen_kappa"):
            lows = []
            for wrong in range(4):
                called = np.where(np.arange(400) < wrong, 1 - labels, labels)
                p = Predictions(("a", "b"), ("x",) * 400, None, labels, logits_of(2.0 * called - 1))
                lows.append(evaluate_predictions(p).overall[name].low)
            assert lows == sorted(lows, reverse=True)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "rare", [pytest.param(2, marks=pytest.mark.slow), 5, pytest.param(12, marks=pytest.mark.slow)]
    )
    def test_a_rare_third_class_without_an_error_does_not_decide_mcc_and_kappa(self, rare: int) -> None:
        """1 of 10 of the two others is wrong: the interval is about as wide as theirs alone, by a bootstrap."""
        labels = np.array([0] * 120 + [1] * 120 + [2] * rare)
        called = np.where((np.arange(240 + rare) % 10 == 0) & (labels < 2), 1 - labels, labels)
        p = Predictions(("a", "b", "c"), ("x",) * len(labels), None, labels, np.eye(3, dtype=np.float32)[called])
        overall, rng = evaluate_predictions(p).overall, np.random.default_rng(0)
        draws = [rng.integers(len(labels), size=len(labels)) for _ in range(400)]
        for name, score in (("mcc", sk.matthews_corrcoef), ("cohen_kappa", sk.cohen_kappa_score)):
            ends = np.quantile([score(labels[i], called[i]) for i in draws], (0.025, 0.975))
            assert (overall[name].low, overall[name].high) == pytest.approx(tuple(ends), abs=0.03)


LAYOUTS = {
    "seven of fourteen": [14] * 7,
    "one to five": [1, 5, 2, 2, 4, 1, 3, 5, 4, 1, 3, 2, 5, 5, 1, 2],
    "one large": [3, 60, 8, 12, 5, 20],
    "many of one, few of forty": [1] * 25 + [40] * 4,
    "one each": [1] * 40,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ["patient by patient", "in turn", "at random"])
def test_one_more_error_never_makes_a_result_look_better(layout: str, order: str) -> None:
    """Specificity with 0, 1, 2, ... false alarms, and PPV at a prevalence of 1 %, whoever has them.

    No number of false alarms gives a better bound than none. From one to the next the bounds are monotone, but for
    0.005: errors that gather in a patient, or spread over patients, also show how alike the images are.
    """
    sizes = np.array(LAYOUTS[layout])
    patients, n = np.repeat(np.arange(len(sizes)), sizes), int(sizes.sum())
    place = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    turn = {"patient by patient": np.arange(n), "in turn": np.lexsort((patients, place))}
    turn["at random"] = np.random.default_rng(0).permutation(n)
    units = Units(np.concatenate([patients, len(sizes) + np.arange(30) // 3]))
    negative = np.arange(n + 30) < n
    called = ~negative & (np.arange(n + 30) < n + 27)  # three positives are missed
    bounds = []
    for wrong in range(n + 1):
        called[turn[order][:wrong]] = True
        found, alarms = share(~called, negative, units), share_ratio(negative, ~negative, called, units)
        bounds.append((found.low, found.high, 1 / (1 + 99 * alarms[2]), 1 / (1 + 99 * alarms[1])))
    for bound in np.array(bounds).T:
        assert bound.max() <= bound[0] + 1e-12
        assert (bound - np.minimum.accumulate(bound)).max() <= 0.005


def test_without_an_error_the_likeness_of_the_other_images_counts() -> None:
    """Ten patients with ten positives and ten negatives each; of the positives half of the patients are all missed."""
    units = Units(np.repeat(np.arange(10), 20))
    positive = np.tile(np.arange(20) < 10, 10)
    spread = np.where(positive, np.tile(np.arange(20) % 2 == 0, 10), True)
    gathered = np.where(positive, units.index < 5, True)
    alone, borrowed = (share(hits, ~positive, units) for hits in (spread, gathered))
    assert alone.effective_n == pytest.approx(100 / (1 + 9 * 0.05))  # the assumed likeness
    assert 10 <= borrowed.effective_n < 13  # nearly each patient counts once
    assert borrowed.low < alone.low < 1 == alone.high == borrowed.high
    pairs = np.tile(np.arange(12) < 2, 10)  # two positives and ten negatives of each patient
    units = Units(np.repeat(np.arange(10), 12))
    borrowed = share(np.where(pairs, units.index < 5, True), ~pairs, units)
    assert borrowed.effective_n == pytest.approx(10)


def test_means_over_classes_add_up_their_parts() -> None:
    """Macro PPV by hand: of 60 images called a 54 are right, of 40 called b 22."""
    labels = np.array([0] * 54 + [1] * 6 + [1] * 22 + [0] * 18)
    called = np.array([0] * 60 + [1] * 40)
    overall = evaluate_predictions(
        Predictions(("a", "b"), ("x",) * 100, None, labels, logits_of(2.0 * called - 1))
    ).overall
    found = overall["ppv_macro"]
    assert found.method == "wilson-mean"
    assert (found.low, found.high) == pytest.approx(mean_of((54, 60), (22, 40)), abs=1e-9)
    assert overall["npv_macro"].to_dict() == pytest.approx(found.to_dict())  # of two classes they are the same


@pytest.mark.parametrize(
    ("pull", "down", "up"),
    [
        ([0, 0, 1, -1], 0.05**2 + 0.1**2, 0.1**2 + 0.05**2),  # of other images: arms add as standard errors do
        ([2, -2, 0, 0], 0.15**2, 0.15**2),  # of the same images
        ([-3, 3, 0, 0], 0.05**2, 0.05**2),  # of the same images, to the other side
        ([0, 0, 0, 0], 0.05**2 + 0.1**2, 0.1**2 + 0.05**2),  # no image shows an error
    ],
)
def test_the_interval_of_a_mean_of_two_differences_by_hand(pull: list[float], down: float, up: float) -> None:
    one = Part(0.2, 0.1, 0.4, np.array([1.0, -1, 0, 0]), 0.5)
    two = Part(-0.1, -0.3, 0.0, np.array(pull, float), 0.5)
    expected = 0.05 - down**0.5, 0.05 + up**0.5
    assert mean_gap_interval([one, two], Units(np.arange(4))) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 4])
def test_every_mean_over_classes_spreads_as_resamples_do(classes: int) -> None:
    """Of 600 images with many errors each, the parts by formula and the bootstrap of the mean itself agree."""
    rng = np.random.default_rng(classes)
    labels = rng.integers(classes, size=600)
    logits = rng.normal(size=(600, classes)).astype(np.float32)
    logits[np.arange(600), labels] += 1.5
    p = Predictions(tuple("abcd"[:classes]), ("x",) * 600, None, labels, logits)
    weights = np.concatenate(list(bootstrap_weights(np.arange(600), 600, seed=0)))
    overall, drawn = evaluate_predictions(p).overall, redrawn(PreparedPredictions, p, weights)
    assert drawn.keys() >= {"sensitivity_macro", "specificity_macro", "ppv_macro", "npv_macro", "f1_macro"}
    for name, draws in drawn.items():
        found = overall[name]
        assert found.low is not None and found.high is not None
        assert (found.high - found.low) / (2 * 1.96) == pytest.approx(np.std(draws), rel=0.15), name


@pytest.mark.parametrize("name", ["mcc", "cohen_kappa"])
def test_of_balanced_classes_and_errors_both_correlations_stretch_the_accuracy(name: str) -> None:
    """Ten of a hundred images are wrong, five of each class: either number is 2 x 0.9 - 1, and so is its interval,
    with variance (1 - 0.8^2) / 100 (Bishop, Fienberg & Holland (1975), section 11.3), widened for few images."""
    labels = np.arange(100) % 2
    called = np.where(np.arange(100) < 10, 1 - labels, labels)
    p = Predictions(("a", "b"), ("x",) * 100, None, labels, logits_of(2.0 * called - 1))
    found, variance = evaluate_predictions(p).overall[name], 0.36 / 99 / (1 - 1 / 50) ** 2
    low, high = wilson(0.9, 0.36 / variance, quantile(99))
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 2 * low - 1, 2 * high - 1))


def test_the_influence_on_mcc_and_kappa_is_their_derivative() -> None:
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(3, size=60), rng.normal(size=(60, 3)).astype(np.float32)
    prepared = PreparedPredictions(Predictions(("a", "b", "c"), ("x",) * 60, None, labels, logits))
    step = 1e-6
    weights, numbers = np.ones((60, 60)) + step * np.eye(60), (sk.matthews_corrcoef, sk.cohen_kappa_score)
    influences = prepared.correlation_influence()
    assert set(influences) == {"mcc", "cohen_kappa"}
    for influence, number in zip(influences.values(), numbers, strict=True):
        moved = np.array([number(labels, prepared.predicted, sample_weight=w) for w in weights])
        assert influence == pytest.approx((moved - number(labels, prepared.predicted)) / step, abs=1e-6)
        assert influence.sum() == pytest.approx(0, abs=1e-12)


def test_a_mean_loss_is_students_on_the_scale_of_logarithms() -> None:
    """The delta method gives error / mean; the degrees of freedom follow from the kurtosis of the losses."""
    loss = np.array([0.1, 0.5, 0.2, 1.4, 0.3, 0.9])
    found = influence_spread((loss - loss.mean()) / 6, Units(np.arange(6)))
    degrees = 2 / ((stats.kurtosis(loss, fisher=False) - 1) / 6)
    reach = stats.t.ppf(0.975, degrees) * stats.sem(loss) / loss.mean()
    assert found.degrees == pytest.approx(degrees) and found.variance == pytest.approx(stats.sem(loss) ** 2)
    assert log_interval(loss.mean(), found) == pytest.approx(loss.mean() * np.exp([-reach, reach]))
    assert np.isnan(log_interval(0.0, found)).all()
    two_errors = Spread(1e-4, 1)  # of 40 images: t of one degree of freedom is 12.7
    assert log_interval(0.006, two_errors)[1] > 1e6 and log_interval(0.006, two_errors, most=1.0)[1] == 1.0


@pytest.mark.parametrize(("classes", "most"), [(2, 1.0), (3, 2.0)])
def test_the_interval_of_a_loss_ends_at_the_largest_possible_loss(classes: int, most: float) -> None:
    """One of 40 images is wrong, and that with certainty: Student's t has 2 degrees of freedom and reaches further."""
    labels = np.arange(40) % 2
    called = np.where(np.arange(40) == 0, 1, labels)
    sure = 100 * np.eye(classes, dtype=np.float32)[called]
    overall = evaluate_predictions(Predictions(("a", "b", "c")[:classes], ("x",) * 40, None, labels, sure)).overall
    assert (overall["brier"].high, overall["log_loss"].high) == pytest.approx((most, 52 * np.log(2)))  # of scikit-learn


def test_normal_influences_have_the_usual_degrees_of_freedom_and_one_heavy_image_has_few() -> None:
    normal = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
    assert influence_spread(normal, Units(np.arange(2000))).degrees == pytest.approx(2000, rel=0.02)
    heavy = np.where(np.arange(200) == 0, 1.0, 1e-3)
    assert influence_spread(heavy, Units(np.arange(200))).degrees == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("size", [4, 10, 50])
def test_the_jackknife_of_a_mean_of_equal_residuals_is_students_interval(size: int) -> None:
    """Every number is 2 or 4: no number counts more than another, so the degrees of freedom are n - 1."""
    numbers = np.where(np.arange(size) % 2, 2.0, 4.0)
    moved = (numbers.sum() - numbers) / (size - 1)
    expected = stats.t.interval(0.95, size - 1, 3.0, stats.sem(numbers))
    assert jackknife_interval(3.0, moved, skewed=False) == pytest.approx(expected, rel=1e-9)
    assert jackknife_interval(3.0, moved, skewed=True) == pytest.approx(expected, rel=1e-9)  # it is symmetric
