"""Prediction sets and answers keep what they promise, in simulations; and say where they promise nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta, t

from vitmed.core.config import EvaluateConfig
from vitmed.decisions.conformal import fit_sets, least_score, prediction_sets, report_sets
from vitmed.decisions.selective_prediction import (
    Abstention,
    area_influence,
    certainty,
    choose_abstention,
    design_effect,
    report_abstention,
    upper_bound,
)
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.intervals import Units
from vitmed.metrics.predictions import Predictions

CONFIG = EvaluateConfig(resamples=50)


def draw(
    rng: np.random.Generator, patients: int, images: int = 1, classes: int = 2, signal: float = 1.0, spread: float = 1.5
) -> Predictions:
    """Images of patients who differ: a patient's own shift of the logits is shared by all of the images."""
    size = patients * images
    who = np.repeat(np.arange(patients), images)
    labels = rng.integers(classes, size=size)
    logits = rng.normal(size=(size, classes)) + signal * np.eye(classes)[labels]
    logits += spread * rng.normal(size=(patients, classes))[who] * (images > 1)
    groups = tuple(f"p{i}" for i in who) if images > 1 else None
    return Predictions(tuple(f"c{i}" for i in range(classes)), ("x",) * size, groups, labels, logits.astype(np.float32))


def decided(odds: np.ndarray, wrong: np.ndarray) -> Predictions:
    """Every image is predicted a, with these log odds; the wrong ones are b."""
    logits = np.stack([odds, np.zeros(len(odds))], axis=1).astype(np.float32)
    return Predictions(("a", "b"), ("x",) * len(odds), None, wrong.astype(np.int64), logits)


def coverage(p: Predictions, fitted: dict) -> np.ndarray:  # type: ignore[type-arg]
    """(K,) share of each class whose set holds the truth."""
    inside = p.probabilities >= np.array(fitted.least)  # without the class that is always in it
    held = inside[np.arange(len(p)), p.labels]
    return np.array([held[p.labels == c].mean() for c in range(len(p.classes))])


class TestSets:
    def test_the_quantile_by_hand(self) -> None:
        """Nine images at 90 %: the smallest; nineteen: the second smallest; eight are too few."""
        true = np.arange(1, 20) / 20
        assert least_score(true[:9], np.arange(9), 0.9) == 0.05
        assert least_score(true, np.arange(19), 0.9) == 0.1
        assert least_score(true[:8], np.arange(8), 0.9) is None
        assert least_score(np.empty(0), np.empty(0, np.int64), 0.9) is None

    @pytest.mark.parametrize(("patients", "classes", "wanted"), [(200, 2, 0.9), (60, 5, 0.9), (400, 3, 0.99)])
    def test_a_threshold_lies_midway_below_an_image_of_validation(
        self, patients: int, classes: int, wanted: float
    ) -> None:
        """No set of validation changes, and rounding, as of an exported file, changes none of them."""
        p = draw(np.random.default_rng(0), patients, classes=classes)
        fitted, true = fit_sets(p, wanted), p.probabilities[np.arange(patients), p.labels]
        every = least_score(true, p.units, wanted)
        for c in range(classes):
            of, chances = p.labels == c, p.probabilities[:, c]
            edge = least_score(chances[of], p.units[of], wanted)
            edge = every if edge is None else edge
            above, below = chances[chances >= edge], max([0, *chances[chances < edge]])
            assert fitted.least[c] == pytest.approx((edge + below) / 2) and below < fitted.least[c] < above.min()
        rounded = replace(p, calibrated=p.probabilities.astype(np.float32).astype(float) * (1 - 1e-7))
        assert (prediction_sets(rounded, fitted) == prediction_sets(p, fitted)).all()

    @pytest.mark.parametrize(
        ("wanted", "sets"),
        [
            (0.7, "bc c c b bc c ac ac b c a ac"),
            (0.8, "bc bc ac b bc c ac ac ab c ab ac"),
        ],
    )
    def test_the_sets_of_mapie(self, wanted: float, sets: str) -> None:
        """MAPIE 1.6.0, `SplitConformalClassifier(conformity_score="lac", prefit=True)`, calibrated on the images of one
        class after the other, gives these sets with the quantiles as thresholds; vitmed adds the likeliest class."""

        def table(size: int, shift: int) -> np.ndarray:
            i = np.arange(size)
            parts = [1 + (7 * i + shift) % 11, 1 + (5 * i + 2 * shift) % 13, 1 + (3 * i + shift) % 7]
            chances = np.stack(parts, axis=1) / np.sum(parts, axis=0)[:, None]
            return np.asarray(chances)

        chances = table(60, 0)
        labels = chances.argmax(axis=1)
        labels[::4] = (labels[::4] + 1) % 3

        def of(chances: np.ndarray, labels: np.ndarray | None) -> Predictions:
            logits = np.log(chances).astype(np.float32)
            return Predictions(("a", "b", "c"), ("",) * len(chances), None, labels, logits, calibrated=chances)

        fitted = fit_sets(of(chances, labels), wanted)
        assert fitted is not None and not fitted.without
        new = of(table(12, 5), None)
        quantiles = [least_score(chances[labels == c, c], np.arange(60)[labels == c], wanted) for c in range(3)]
        exact = new.probabilities >= np.array(quantiles)
        assert " ".join("".join(np.array(new.classes)[row]) for row in exact) == sets
        inside = new.probabilities >= np.array(fitted.least)  # midway to the next lower one: one class of one set more
        assert (inside >= exact).all() and inside.sum() - exact.sum() == (wanted == 0.8)
        likeliest = np.eye(3, dtype=bool)[new.probabilities.argmax(axis=1)]
        assert (prediction_sets(new, fitted) == inside | likeliest).all()

    def test_each_class_is_covered_as_promised(self) -> None:
        """Mean over validation sets of 60: at least what was promised, and not much above (1 / (n + 1))."""
        rng, wanted = np.random.default_rng(0), 0.9
        fresh = draw(rng, 4000, classes=3)
        found = np.mean([coverage(fresh, fit_sets(draw(rng, 60, classes=3), wanted)) for _ in range(150)], axis=0)  # type: ignore[arg-type]
        assert (found > wanted - 0.015).all() and (found < wanted + 0.075).all()

    def test_new_patients_are_covered_where_images_of_one_resemble_each_other(self) -> None:
        """Calibrated by patient the promise holds for an image of a new one, though patients differ much in size."""
        rng = np.random.default_rng(1)
        fresh, found = draw(rng, 1500, 2), []
        for _ in range(100):
            few, many = draw(rng, 15, 3), draw(rng, 4, 40)  # four patients hold most of the images
            groups = (*(few.groups or ()), *(f"m{g}" for g in many.groups or ()))
            labels = np.concatenate([few.labels, many.labels])  # type: ignore[list-item]
            both = Predictions(
                few.classes, ("x",) * len(labels), groups, labels, np.concatenate([few.logits, many.logits])
            )
            fitted = fit_sets(both, 0.85)
            assert fitted.by == "patient"
            found.append(coverage(fresh, fitted))
        assert (np.mean(found, axis=0) > 0.85 - 0.02).all()

    def test_the_class_that_is_taken_is_always_in_the_set(self) -> None:
        p = draw(np.random.default_rng(0), 500, classes=4)
        fitted = fit_sets(p, 0.5)
        inside = prediction_sets(p, fitted)
        assert inside[np.arange(500), p.predicted].all() and inside.sum(axis=1).min() == 1

    def test_a_class_with_too_few_has_no_promise(self) -> None:
        p = draw(np.random.default_rng(0), 300, classes=3)
        labels = np.where((p.labels == 2) & (np.arange(300) > 12), 0, p.labels)
        fitted = fit_sets(replace(p, labels=labels), 0.9)
        assert fitted.without == ("c2",) and fitted.units[2] < 9
        report = report_sets(p, fitted, CONFIG)
        assert not report["per_class"]["c2"]["promised"]

    def test_too_few_patients_go_by_image_and_it_is_said(self) -> None:
        fitted = fit_sets(draw(np.random.default_rng(0), 5, 20), 0.9)
        assert fitted.by == "image" and "5 patients, too few" in fitted.note
        assert fit_sets(draw(np.random.default_rng(0), 5), 0.9) is None

    def test_the_report_counts(self) -> None:
        rng = np.random.default_rng(0)
        fitted, p = fit_sets(draw(rng, 200), 0.9), draw(rng, 400)
        report = report_sets(p, fitted, CONFIG)
        inside = prediction_sets(p, fitted)
        assert report["overall"]["size"]["value"] == pytest.approx(inside.sum() / 400)
        assert report["overall"]["coverage"]["value"] == pytest.approx(inside[np.arange(400), p.labels].mean())
        for c, name in enumerate(p.classes):
            of, held = report["per_class"][name], inside[p.labels == c]
            assert (of["n"], of["least"], of["calibrated_on"]) == (len(held), fitted.least[c], fitted.units[c])
            expected = held[:, c].mean(), held.sum(axis=1).mean(), (held.sum(axis=1) == 1).mean()
            assert [of[key]["value"] for key in ("coverage", "size", "single")] == pytest.approx(expected)
        assert report_sets(p, None, CONFIG) is None

    @pytest.mark.parametrize(("images", "unit"), [(1, "image"), (2, "patient")])
    def test_the_guarantee_names_its_unit(self, images: int, unit: str) -> None:
        """`draw` names patients only where they have several images: without names nobody can promise for patients."""
        p = draw(np.random.default_rng(0), 60, images)
        assert (p.groups is None) == (unit == "image")
        fitted = fit_sets(p, 0.9)
        assert (fitted.by, fitted.note) == (unit, "") and report_sets(p, fitted, CONFIG).by == unit

    def test_a_thousand_classes_and_no_images(self) -> None:
        rng = np.random.default_rng(0)
        many = draw(rng, 500, classes=1000)
        fitted = fit_sets(many, 0.9)
        assert len(fitted.least) == 1000
        assert len(json.dumps(report_sets(many, fitted, CONFIG).to_dict(), allow_nan=False)) < 50_000
        none = draw(rng, 0)
        json.dumps(report_sets(none, fit_sets(draw(rng, 100), 0.9), CONFIG).to_dict(), allow_nan=False)
        json.dumps(report_abstention(none, None, CONFIG).to_dict(), allow_nan=False)


class TestAnswers:
    @pytest.mark.parametrize(("patients", "images"), [(300, 1), (40, 15)])
    def test_the_risk_stays_below_what_was_chosen(self, patients: int, images: int) -> None:
        """In at most 5 % of validation sets may the risk on new images lie above it; of patients too."""
        rng = np.random.default_rng(0)
        fresh = draw(rng, 20_000 // images, images, signal=2.0, spread=0.7)
        wrong, sure, broken, answered = fresh.predicted != fresh.labels, certainty(fresh), 0, []
        for _ in range(100):
            chosen = choose_abstention(draw(rng, patients, images, signal=2.0, spread=0.7), 0.1)
            if chosen.least is not None:
                broken += bool(wrong[sure >= chosen.least].mean() > 0.1)
                answered.append((sure >= chosen.least).mean())
        assert broken <= 8 and np.mean(answered) > 0.3

    def test_the_bound_is_clopper_and_pearsons(self) -> None:
        from scipy.stats import binomtest

        wrong = np.arange(200) < 7
        theirs = binomtest(7, 200, alternative="less").proportion_ci(0.95, "exact").high
        assert upper_bound(wrong, 1.0, 0.05) == pytest.approx(theirs)
        assert upper_bound(np.zeros(59, bool), 1.0, 0.05) == pytest.approx(0.0495, abs=1e-4)  # the rule of three
        assert upper_bound(np.ones(5, bool), 1.0, 0.05) == 1

    def test_the_bound_counts_the_certainties_that_are_tested(self) -> None:
        """200 certainties, the 40 least certain images wrong. 20 of them, those that answer 10, 20, ... images, are
        tested at 0.05 / 20; the answer is the largest number of images whose bound by scipy stays below the limit."""
        wrong = np.arange(200) >= 160  # from the most certain on
        chosen = choose_abstention(decided(np.linspace(4, 1, 200), wrong), 0.15)

        def bound(n: int, doubt: float = 0.05 / 20) -> float:
            errors, effect = max(0, n - 160), n / (n - 1)  # without patients: the variance with n - 1 over that with n
            return float(beta.ppf(1 - doubt, errors / effect + 1, (n - errors) / effect))

        most = max(n for n in range(10, 201, 10) if bound(n) <= 0.15)
        assert most < max(n for n in range(2, 201) if bound(n, 0.05) <= 0.15)
        assert chosen.coverage == most / 200 and chosen.risk == (most - 160) / most
        assert chosen.bound == pytest.approx(bound(most))

    def test_all_images_are_answered_where_their_own_bound_allows_it(self) -> None:
        """Errors at any certainty: the bound of few images is higher than that of all, which alone passes."""
        wrong = np.isin(np.arange(1000), np.arange(20, 1000, 40))
        chosen = choose_abstention(decided(np.linspace(4, 1, 1000), wrong), 0.05)
        assert (chosen.coverage, chosen.risk) == (1, 0.025) and 0.04 < chosen.bound < 0.045

    @pytest.mark.parametrize("lower", [0, 1, 2, 3, 6])
    def test_only_the_most_certain_images_may_be_answered(self, lower: int) -> None:
        """100 right images of one certainty, and below it only errors, of some further certainties."""
        sure = np.concatenate([np.full(100, 5.0), np.repeat(np.linspace(2, 1, lower), 50)])
        chosen = choose_abstention(decided(sure, sure < 5), 0.1)
        assert chosen.least == pytest.approx(1 / (1 + np.exp(-5.0)))
        assert (chosen.coverage, chosen.risk) == (100 / len(sure), 0)

    def test_the_share_of_each_class_that_is_answered(self) -> None:
        """Certain about 1 of 5 images of class a and 3 of 4 of class b."""
        odds = np.array([3, 0.1, 0.1, 0.1, 0.1, 3, 3, 3, 0.1])
        labels = np.repeat([0, 1], [5, 4])
        p = replace(decided(odds, labels == 1), labels=labels)
        chosen = Abstention(max_risk=0.5, least=0.9, why="")
        found = report_abstention(p, chosen, CONFIG).reached
        assert {name: share.value for name, share in found.per_class.items()} == {"a": 0.2, "b": 0.75}
        assert (found.n, found.coverage.value, found.risk.value) == (4, pytest.approx(4 / 9), 0.75)
        none = Abstention(max_risk=0.5, least=1.0, why="")  # no image is so certain
        assert report_abstention(p, none, CONFIG).reached is None

    def test_the_design_effect(self) -> None:
        wrong = np.repeat(np.arange(40) < 8, 10)  # all images of a patient alike: as many trials as patients
        assert design_effect(wrong, np.repeat(np.arange(40), 10)) == pytest.approx(10 * 40 / 39)
        assert design_effect(wrong, np.arange(400)) == pytest.approx(1, abs=0.01)
        assert design_effect(np.zeros(400, bool), np.repeat(np.arange(40), 10)) == 10
        assert design_effect(np.ones(400, bool), np.repeat(np.arange(40), 10)) == 10
        assert design_effect(np.arange(8) < 4, np.zeros(8, int)) == 8  # one patient is one trial
        # Two patients of 6 and 2 images, 3 and 0 wrong: gaps 0.75 and -0.75, so 2 x 1.125 / 64 over 15 / 64 / 8.
        # One patient of ten has an error, so a tenth of the way from 8 / 2 to that.
        shown = 2 * 1.125 / 64 / (15 / 512)
        assert design_effect(np.arange(8) < 3, np.repeat([0, 1], [6, 2])) == pytest.approx(4 + (shown - 4) / 10)

    def test_one_error_more_does_not_make_images_of_a_patient_independent(self) -> None:
        """20 patients of 50 images: without an error 20 trials, with an error in ten patients as many as images."""
        patients, found = np.repeat(np.arange(20), 50), []
        for errors in range(11):
            found.append(design_effect(np.isin(np.arange(1000), 50 * np.arange(errors)), patients))
        assert found[0] == 50 and found[10] == 1 and found == sorted(found, reverse=True)
        assert np.diff(found) == pytest.approx(-49 / 10, abs=0.1)

    def test_a_risk_that_cannot_be_kept(self) -> None:
        chosen = choose_abstention(draw(np.random.default_rng(0), 20), 0.01)
        assert chosen.least is None and "20 images" in chosen.why
        assert choose_abstention(draw(np.random.default_rng(0), 20), None) is None

    def test_the_influence_on_the_area_is_its_derivative(self) -> None:
        errors, step = (np.random.default_rng(0).random(40) < 0.3).astype(float), 1e-6

        def area(weights: np.ndarray) -> float:
            return float((weights * np.cumsum(weights * errors) / np.cumsum(weights)).sum() / weights.sum())

        risks = np.cumsum(errors) / np.arange(1, 41)
        moved = [(area(np.ones(40) + step * one) - area(np.ones(40))) / step for one in np.eye(40)]
        assert area_influence(errors, risks, errors, np.arange(40)) == pytest.approx(np.array(moved), abs=1e-6)

    def test_images_of_equal_certainty_share_their_errors_in_the_influence(self) -> None:
        """With one certainty for all images, the area is the share of errors, with the variance of a proportion."""
        wrong, step = (np.random.default_rng(0).random(40) < 0.3).astype(float), 1e-6
        for tie in (np.arange(40) // 8, np.zeros(40, int)):

            def area(weights: np.ndarray, tie: np.ndarray = tie) -> float:
                errors = (np.bincount(tie, weights=weights * wrong) / np.bincount(tie, weights=weights))[tie]
                return float((weights * np.cumsum(weights * errors) / np.cumsum(weights)).sum() / weights.sum())

            errors = (np.bincount(tie, weights=wrong) / np.bincount(tie))[tie]
            risks = np.cumsum(errors) / np.arange(1, 41)
            moved = [(area(np.ones(40) + step * one) - area(np.ones(40))) / step for one in np.eye(40)]
            assert area_influence(errors, risks, wrong, tie) == pytest.approx(np.array(moved), abs=1e-6)
        p = Predictions(
            ("no", "yes"), tuple(map(str, range(40))), None, 1 - wrong.astype(int), np.zeros((40, 2), np.float32)
        )
        found = report_abstention(p, None, EvaluateConfig(resamples=0))
        reach = t.ppf(0.975, 10 - 1) * (0.25 * 0.75 / 39) ** 0.5 / 0.25  # of a proportion of 10 / 40, on the log scale
        expected = 0.25 * np.exp([-reach, 0, reach])
        assert [found.area.low, found.area.value, found.area.high] == pytest.approx(expected)

    def test_the_interval_of_the_area_has_as_many_degrees_as_patients_with_an_error(self) -> None:
        """Two patients with an error: Student's t of one degree, on the logarithm of the area."""
        wrong, sure = np.isin(np.arange(40), (3, 30)), np.linspace(4, 1, 40)
        p = decided(sure, wrong)
        found = report_abstention(p, None, CONFIG).area
        risks = np.cumsum(wrong) / np.arange(1, 41)
        pull = area_influence(wrong.astype(float), risks, wrong.astype(float), np.arange(40))
        reach = t.ppf(0.975, 1) * (40 / 39 * (pull**2).sum()) ** 0.5 / risks.mean()
        assert found.value == pytest.approx(risks.mean())
        assert found.high == pytest.approx(min(risks.mean() * np.exp(reach), found.high), rel=1e-6)
        assert found.low == pytest.approx(risks.mean() * np.exp(-reach), rel=0.05)

    @pytest.mark.parametrize(("wrong", "known"), [((0, 1), False), ((0, 9), True)])
    def test_errors_of_one_patient_give_the_area_no_interval(self, wrong: tuple[int, ...], known: bool) -> None:
        labels = np.array([0 if i in wrong else 1 for i in range(16)])
        logits = np.stack([np.zeros(16), np.tile([2.0, 1.5, 1.0, 0.5], 4)], axis=1).astype(np.float32)
        p = Predictions(("a", "b"), ("x",) * 16, tuple(f"P{i // 2}" for i in range(16)), labels, logits)
        assert (report_abstention(p, None, CONFIG).area.low is not None) == known

    def test_a_number_of_three_patients_has_the_degrees_of_three(self) -> None:
        """Beside sixty others, who hold none of it: as wide as if they were not there, up to the resampling."""
        rng, few = np.random.default_rng(0), np.arange(63) < 3
        sizes, units = np.where(few, rng.uniform(1, 3, 63), 9.0), Units(np.arange(63))
        among = Bootstrap(units, 2000).ratios((sizes * few)[:, None], few[:, None])[0]
        alone = Bootstrap(Units(np.arange(3)), 2000).ratios(sizes[:3, None], np.ones((3, 1)))[0]
        assert among.value == pytest.approx(alone.value) and among.high - among.low == pytest.approx(
            alone.high - alone.low, rel=0.05
        )

    def test_the_curve_and_its_area_by_hand(self) -> None:
        """Right, right, wrong, right from the surest on: risks 0, 0, 1/3, 1/4."""
        logits = np.array([[4, 0], [3, 0], [2, 0], [1, 0]], np.float32)
        p = Predictions(("a", "b"), ("x",) * 4, None, np.array([0, 0, 1, 0]), logits)
        found = report_abstention(p, None, CONFIG)
        assert found["area"]["value"] == pytest.approx((1 / 3 + 1 / 4) / 4)
        assert found["curve"]["risk"][49] == 0 and found["curve"]["risk"][-1] == 0.25
        assert found["error_rate"]["value"] == 0.25 and found["reached"] is None
        found = report_abstention(replace(p, labels=np.array([1, 0, 0, 0])), None, CONFIG)  # the surest is wrong
        assert found.curve.coverage == pytest.approx(np.arange(1, 101) / 100)
        assert found.curve.risk == pytest.approx(np.repeat([1, 1 / 2, 1 / 3, 1 / 4], 25))
        tied = replace(p, logits=np.array([[3, 0], [3, 0], [3, 0], [1, 0]], np.float32))  # three share one error
        assert report_abstention(tied, None, CONFIG).curve.risk == pytest.approx(np.repeat([1 / 3, 1 / 4], [75, 25]))
        wrong = np.random.default_rng(0).integers(2, size=100)  # a point of the curve for each of 100 images
        many = Predictions(("a", "b"), ("x",) * 100, None, wrong, np.linspace([9, 0], [1, 0], 100, dtype=np.float32))
        risks = np.cumsum(wrong) / np.arange(1, 101)
        assert report_abstention(many, None, CONFIG).curve.risk == pytest.approx(risks)

    @pytest.mark.parametrize(("patients", "known"), [(1, False), (2, True)])
    def test_one_patient_gives_the_curve_no_interval_and_two_do(self, patients: int, known: bool) -> None:
        p = decided(np.linspace(4, 1, 40), np.arange(40) % 4 == 0)
        found = report_abstention(replace(p, groups=tuple(f"P{i % patients}" for i in range(40))), None, CONFIG)
        curve = found.curve
        assert (curve.low[49] is not None, curve.high[49] is not None) == (known, known)
        assert not known or curve.low[49] <= curve.risk[49] <= curve.high[49]

    def test_the_interval_of_the_curve_is_that_of_the_answered_images(self) -> None:
        """Every fifth of 400 images is wrong: with a half of them answered 40 of 200, with all 80 of 400."""
        p = decided(np.linspace(4, 1, 400), np.arange(400) % 5 == 0)
        curve = report_abstention(p, None, EvaluateConfig(resamples=1000)).curve
        for place, n in ((49, 200), (99, 400)):
            half = 1.96 * (0.2 * 0.8 / n) ** 0.5
            assert (curve.low[place], curve.high[place]) == pytest.approx((0.2 - half, 0.2 + half), abs=0.008)

    def test_certainty_is_the_distance_from_the_threshold(self) -> None:
        logits = np.array([[0, 0], [2, 0], [-4, 0]], np.float32)
        p = Predictions(("a", "b"), ("x",) * 3, None, None, logits, positive="a")
        assert certainty(p) == pytest.approx(p.confidence)
        q = replace(p, threshold=1 / (1 + np.exp(-2.0)))
        assert certainty(q) == pytest.approx([1 / (1 + np.exp(-2)), 0.5, 1 / (1 + np.exp(-6))])
        for threshold in (0.0, 1.0):  # every image is called, or none: each is as certain as can be
            assert certainty(replace(p, threshold=threshold)) == pytest.approx(1)

    def test_certainty_is_that_of_the_class_that_costs_decide(self) -> None:
        """Missing class a costs 10: an image with 0.2 for a is predicted a, with a certainty of 0.2 and not 0.8."""
        logits = np.log(np.array([[0.2, 0.8], [0.05, 0.95], [0.9, 0.1]])).astype(np.float32)
        p = Predictions(("a", "b"), ("x",) * 3, None, None, logits, costs=((0.0, 10.0), (1.0, 0.0)))
        assert p.predicted.tolist() == [0, 1, 0]
        assert certainty(p) == pytest.approx([0.2, 0.95, 0.9], abs=1e-6)

    def test_what_is_reached(self) -> None:
        rng = np.random.default_rng(3)
        chosen = choose_abstention(draw(rng, 500, signal=3.0), 0.05)
        p = draw(rng, 500, signal=3.0)
        found = report_abstention(p, chosen, CONFIG)
        answered = certainty(p) >= chosen.least
        assert found["reached"]["coverage"]["value"] == pytest.approx(answered.mean())
        assert found["reached"]["risk"]["value"] == pytest.approx((p.predicted != p.labels)[answered].mean())
        assert set(found["reached"]["per_class"]) == {"c0", "c1"}
