"""Calibration against scikit-learn and by hand: what is fitted, what is measured, and what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, norm, ttest_1samp

from vitmed.core.config import EvaluateConfig
from vitmed.decisions.calibration import Calibration, Trial, fit_calibration
from vitmed.decisions.reliability import _line, bin_edges, class_log_odds, report_calibration
from vitmed.metrics.bootstrap import Bootstrap
from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions, softmax

CONFIG = EvaluateConfig(resamples=100)


def draw(size: int = 2000, classes: int = 3, seed: int = 0, too_sure: float = 3.0, patients: int = 0) -> Predictions:
    """Logits whose truth is drawn from their own softmax, and which are then `too_sure` times as large."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(size, classes)) * 1.5
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    labels = (rng.random(size)[:, None] > np.cumsum(p, axis=1)).sum(axis=1).clip(0, classes - 1)
    groups = tuple(f"p{i % patients}" for i in range(size)) if patients else None
    names = ("infected", "uninfected") if classes == 2 else tuple(f"c{i}" for i in range(classes))
    return Predictions(names, tuple(map(str, range(size))), groups, labels, (too_sure * z).astype(np.float32))


def log_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    z = logits.astype(np.float64)
    z = z - z.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), labels]))


def fitted(p: Predictions, method: str = "temperature") -> Calibration:
    return fit_calibration(p.logits, p.labels, method, Units(p.units))


class TestFit:
    def test_temperature_is_that_of_scikit_learn(self) -> None:
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        class Known(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
            classes_ = np.arange(3)

            def fit(self, x: Any, y: Any) -> Known:
                return self

            def __sklearn_is_fitted__(self) -> bool:
                return True

            def predict(self, x: np.ndarray) -> np.ndarray:
                return x.argmax(axis=1)

            def decision_function(self, x: np.ndarray) -> np.ndarray:
                return x

        p = draw()
        x = p.logits.astype(np.float64)
        theirs = CalibratedClassifierCV(FrozenEstimator(Known()), method="temperature").fit(x, p.labels)
        ours = fitted(p)
        q = replace(p, logits=ours.apply(p.logits))
        assert (ours.method, ours.note, ours.bias) == ("temperature", "", (0.0,) * 3) and len(set(ours.scale)) == 1
        assert q.probabilities == pytest.approx(theirs.predict_proba(x), abs=2e-4)
        assert 1 / ours.scale[0] == pytest.approx(3, rel=0.1)  # the temperature that they were drawn with

    def test_no_other_temperature_has_a_lower_log_loss(self) -> None:
        p = draw(400, 2)
        ours = fitted(p)
        losses = {f: log_loss(p.logits * ours.scale[0] * f, p.labels) for f in (0.99, 0.999, 1, 1.001, 1.01)}
        assert min(losses, key=lambda f: losses[f]) == 1

    def test_a_model_that_is_all_but_right_stays_so(self) -> None:
        """Logits that would have to be 1.005 times as large: the answer lies between 1 and that."""
        p = draw(400, 2)
        right = replace(p, logits=p.logits * np.float32(fitted(p).scale[0] / 1.005))
        assert 1 <= fitted(right).scale[0] <= 1.0051

    @pytest.mark.parametrize("method", ["none", "temperature"])
    def test_it_is_stored(self, method: str) -> None:
        p = draw()
        ours = fitted(p, method)
        assert ours.method == method
        again = Calibration.model_validate(json.loads(json.dumps(ours.model_dump())))
        assert again == ours and again.apply(p.logits).dtype == np.float32
        if method == "none":
            assert ours.apply(p.logits).tobytes() == p.logits.tobytes()

    def test_where_validation_cannot_tell_nothing_is_changed(self) -> None:
        few, one, flat = draw(49), draw(100), draw(100)
        one = replace(one, labels=np.zeros(100, np.int64))
        flat = replace(flat, logits=np.zeros((100, 3), np.float32))
        for p, why in ((few, "too few"), (one, "one class alone"), (flat, "the same for all classes")):
            found = fitted(p)
            assert found.method == "none" and why in found.note
        assert fitted(replace(one, labels=(np.arange(100) == 0).astype(np.int64))).method == "temperature"

    def test_few_images_hardly_make_the_model_surer(self) -> None:
        """A temperature below 1 minimises log loss and minus the log of a prior, which many images outweigh."""
        logits, labels = draw(60).logits / 6, draw(60).labels  # drawn with 3, so that 0.5 is right
        temperatures = []
        for copies in (1, 1000):
            many, truth = np.repeat(logits, copies, axis=0), np.repeat(labels, copies)
            p = Predictions(("a", "b", "c"), ("x",) * len(truth), None, truth, many)
            found, grid = fitted(p), np.exp(np.linspace(-2, 0, 2001))
            penalised = [len(truth) * log_loss(logits / t, labels) + np.log(t) ** 2 / (2 * 0.2**2) for t in grid]
            assert 1 / found.scale[0] == pytest.approx(grid[np.argmin(penalised)], rel=1e-3)
            temperatures.append(1 / found.scale[0])
        usual = min(grid, key=lambda t: log_loss(logits / t, labels))
        assert temperatures[0] > 1.2 * usual and temperatures[1] == pytest.approx(usual, rel=0.01)

    def test_without_an_error_the_model_is_not_made_certain(self) -> None:
        rng = np.random.default_rng(0)
        labels = rng.integers(2, size=100)
        logits = (np.eye(2)[labels] * rng.uniform(0.5, 2, (100, 1))).astype(np.float32)
        p = Predictions(("a", "b"), ("x",) * 100, None, labels, logits)
        assert 0.3 < 1 / fitted(p).scale[0] < 0.8
        for size, small in ((100, 0.02), (500, 0.02), (1000, 0.01)):  # the loss alone would make them certain
            labels = np.arange(size) % 2
            logits = (small * np.eye(2)[labels]).astype(np.float32)
            flat = Predictions(("a", "b"), ("x",) * size, None, labels, logits)
            grid = np.exp(np.linspace(0, np.log(20), 3001))
            penalised = [size * log_loss(logits * s, labels) + np.log(s) ** 2 / (2 * 0.2**2) for s in grid]
            assert fitted(flat).scale[0] == pytest.approx(grid[np.argmin(penalised)], rel=2e-3)

    def test_a_model_is_made_at_most_twenty_times_as_sure(self) -> None:
        labels = np.arange(2000) % 2
        p = Predictions(("a", "b"), ("x",) * 2000, None, labels, (0.01 * np.eye(2)[labels]).astype(np.float32))
        found = fitted(p)
        assert found.scale == (20.0, 20.0) and "bounded" in found.note

    def test_logits_that_say_the_opposite_are_made_flat(self) -> None:
        p = draw(500, 2)
        found = fitted(replace(p, labels=1 - p.labels))
        assert found.scale == (0.05, 0.05) and "do not predict the label" in found.note

    def test_the_calibration_that_helps_on_images_that_it_has_not_seen_is_chosen(self) -> None:
        too_sure, right = draw(2000), draw(2000, too_sure=1)
        assert fitted(too_sure, "auto").method == "temperature"
        assert fitted(too_sure, "auto").scale == fitted(too_sure, "temperature").scale
        assert fitted(right, "auto").method == "none" and fitted(right, "auto").scale == (1.0,) * 3

    @pytest.mark.slow
    def test_the_gain_is_that_of_patients_left_out(self) -> None:
        """Of eight patients each is left out once; by hand with a search for the temperature."""
        p = draw(160, 2, patients=8, too_sure=1.3)
        owner, z = np.arange(160) % 8, p.logits.astype(np.float64)
        gains = np.empty(160)
        for patient in range(8):
            inside = owner == patient
            scales = np.linspace(0.3, 1.5, 4001)
            known = min(scales, key=lambda scale: log_loss(z[~inside] * scale, p.labels[~inside]))
            for i in np.flatnonzero(inside):
                gains[i] = log_loss(z[i : i + 1], p.labels[i : i + 1]) - log_loss(
                    z[i : i + 1] * known, p.labels[i : i + 1]
                )
        found = fitted(p, "auto")
        by_patient = gains.reshape(20, 8).mean(axis=0)
        assert found.trials[0].method == "temperature" and found.trials[0].than == "none"
        assert found.trials[0].gain == pytest.approx(gains.mean(), abs=2e-5)
        assert found.trials[0].error == pytest.approx(by_patient.std(ddof=1) / 8**0.5, rel=1e-2)
        assert (found.method == "none") == (found.trials[0].gain <= found.trials[0].error)
        assert Calibration.model_validate(found.model_dump(mode="json")) == found

    def test_what_cannot_be_cross_validated_is_not_calibrated(self) -> None:
        one = fitted(draw(200, 2, patients=1), "auto")
        assert one.method == "none" and "one patient" in one.note and one.trials == ()
        two = fitted(draw(200, 2, patients=2), "auto")  # each patient is left out once
        assert two.note == "" and [trial.method for trial in two.trials] == ["temperature"]
        few = draw(60, 2, patients=3)
        apart = replace(few, labels=(np.arange(60) % 3 == 0).astype(np.int64))  # a fold without one of the classes
        assert fitted(apart, "auto").trials[0].method == "temperature"
        old = Calibration.model_validate({"method": "temperature", "scale": [2.0, 2.0], "bias": [0.0, 0.0], "note": ""})
        assert old.trials == ()  # of a checkpoint of 0.1.0

    @pytest.mark.slow
    def test_a_calibration_that_is_not_needed_is_seldom_chosen(self) -> None:
        """Right probabilities, 8 patients: 100 validation sets."""
        chosen = [fitted(draw(160, 2, seed=seed, patients=8, too_sure=1), "auto").method for seed in range(100)]
        assert chosen.count("none") >= 85

    @pytest.mark.parametrize("scale", [[0.0, 1.0], [float("nan"), 1.0], [1.0]])
    def test_a_damaged_one_is_refused(self, scale: list[float]) -> None:
        with pytest.raises(ValueError, match=r"(?i)calibration"):
            Calibration.model_validate({"method": "vector", "scale": scale, "bias": [0.0, 0.0]})


class TestMeasures:
    def test_brier_log_loss_and_the_curve_are_those_of_scikit_learn(self) -> None:
        from sklearn import metrics
        from sklearn.calibration import calibration_curve

        p = draw(1500, 2)
        found = report_calibration(p, None, CONFIG)["after"]
        y, s = p.labels == 0, p.probabilities[:, 0]  # infected is the finding
        assert found["brier"]["value"] == pytest.approx(metrics.brier_score_loss(y, s))
        assert found["log_loss"]["value"] == pytest.approx(metrics.log_loss(y, s))
        share = y.mean()
        assert found["brier_skill"]["value"] == pytest.approx(
            1 - metrics.brier_score_loss(y, s) / (share * (1 - share))
        )
        seen, said = calibration_curve(y, s, n_bins=15, strategy="quantile")
        assert [b["said"] for b in found["curve"]] == pytest.approx(said, abs=1e-3)
        assert [b["seen"]["value"] for b in found["curve"]] == pytest.approx(seen, abs=0.02)
        assert sum(b["n"] for b in found["curve"]) == 1500

    def test_no_bin_holds_both_images_that_are_surely_ill_and_surely_well(self) -> None:
        ill = np.arange(50) % 2
        odds = np.where(ill, 30, -30) + np.random.default_rng(0).normal(0, 2, 50)
        p = Predictions(("well", "ill"), tuple(map(str, range(50))), None, ill, np.stack([np.zeros(50), odds], axis=1))
        curve = report_calibration(replace(p, positive="ill"), None, CONFIG).after.curve
        assert [(one.said, one.seen.value, one.n) for one in curve] == [(0.0, 0.0, 25), (1.0, 1.0, 25)]

    def test_of_three_classes_every_class_and_the_confidence_are_measured(self) -> None:
        """Brier score over all classes, its skill against the shares, and each class against the rest."""
        p = draw(600, 3)
        found = report_calibration(p, None, CONFIG).after
        y, q = np.eye(3)[p.labels], p.probabilities
        shares = y.mean(axis=0)
        brier = ((q - y) ** 2).sum(axis=1).mean()
        assert found.brier.value == pytest.approx(brier)
        assert found.brier_skill.value == pytest.approx(1 - brier / (1 - (shares**2).sum()))
        assert found.brier_skill.low < found.brier_skill.value < found.brier_skill.high
        assert found.log_loss.value == pytest.approx(log_loss(p.logits, p.labels), rel=1e-6)
        right, sure = p.predicted == p.labels, q.max(axis=1)
        assert sum(one.n for one in found.curve) == 600 and len(found.curve) == 15
        assert sum(one.n * one.said for one in found.curve) == pytest.approx(sure.sum())
        assert sum(one.n * one.seen.value for one in found.curve) == pytest.approx(right.sum())
        assert all(one.start <= one.said <= one.end for one in found.curve)

        def gap(score: np.ndarray, event: np.ndarray) -> float:
            order = np.argsort(score, kind="stable")
            return sum(abs((event[part] - score[part]).sum()) for part in np.array_split(order, 15)) / 600

        assert found.ece.value == pytest.approx(gap(sure, right), rel=0.02)
        assert list(found.per_class) == ["c0", "c1", "c2"]
        for c, own in enumerate(found.per_class.values()):
            assert own.o_e.value == pytest.approx(shares[c] / q[:, c].mean())
            assert own.o_e.low < own.o_e.value < own.o_e.high
            assert (
                own.slope.value == pytest.approx(1 / 3, abs=0.12) and own.slope.low < own.slope.value < own.slope.high
            )

    @pytest.mark.parametrize(("classes", "known"), [(30, True), (31, False)])
    def test_of_many_classes_the_commonest_are_measured(self, classes: int, known: bool) -> None:
        p = draw(310, classes)
        found = report_calibration(p, None, CONFIG).after
        y = np.eye(classes)[p.labels]
        skill = 1 - ((p.probabilities - y) ** 2).sum(axis=1).mean() / (1 - (y.mean(axis=0) ** 2).sum())
        assert found.brier_skill.value == pytest.approx(skill)
        assert found.brier_skill.low < found.brier_skill.value < found.brier_skill.high
        rarest = int(np.argmin(np.bincount(p.labels, minlength=classes)[::-1]))
        left = set() if known else {p.classes[classes - 1 - rarest]}
        assert set(p.classes) - set(found.per_class) == left

    @pytest.mark.parametrize(("size", "known"), [(19, False), (20, True)])
    def test_the_error_needs_two_bins(self, size: int, known: bool) -> None:
        found = report_calibration(draw(size, 2), None, EvaluateConfig(resamples=5)).after
        assert (found.ece.value is not None) == known and ("ece" in found.undefined) != known

    def test_slope_and_intercept_are_those_of_a_logistic_regression(self) -> None:
        from sklearn.linear_model import LogisticRegression

        p = draw(1500, 2)
        found = report_calibration(p, None, CONFIG)["after"]["per_class"]["infected"]
        odds = np.diff(p.logits.astype(float), axis=1)[:, 0] * -1
        theirs = LogisticRegression(C=np.inf, tol=1e-10).fit(odds[:, None], p.labels == 0)
        assert found["slope"]["value"] == pytest.approx(theirs.coef_[0, 0], rel=1e-4)
        assert found["slope"]["low"] < 1 / 3 < found["slope"]["high"]  # three times too extreme
        a = found["intercept"]["value"]  # of the logistic model with the slope held at 1: said and seen add up
        assert np.sum(1 / (1 + np.exp(-odds - a))) == pytest.approx(np.sum(p.labels == 0))
        assert found["o_e"]["value"] == pytest.approx(np.mean(p.labels == 0) / p.probabilities[:, 0].mean())

    def test_the_sandwich_is_the_usual_one_of_independent_images(self) -> None:
        """Without groups and with right probabilities it agrees with the inverse of the information."""
        p = draw(4000, 2, too_sure=1)
        found = report_calibration(p, None, CONFIG)["after"]["per_class"]["infected"]["slope"]
        odds = np.diff(p.logits.astype(float), axis=1)[:, 0]
        x = np.stack([odds, np.ones(4000)], axis=1)
        q = 1 / (1 + np.exp(-odds))
        error = np.sqrt(np.linalg.inv((x * (q * (1 - q))[:, None]).T @ x)[0, 0])
        assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * error, rel=0.08)
        assert found["low"] < 1 < found["high"]

    def test_copies_of_patients_widen_the_interval_but_not_by_image(self) -> None:
        """Each image four times: by patient the interval stays that of the single images."""
        p = draw(500, 2)
        four = Predictions(
            p.classes, p.paths * 4, tuple(map(str, range(500))) * 4, np.tile(p.labels, 4), np.tile(p.logits, (4, 1))
        )

        def width(q: Predictions) -> float:
            slope = report_calibration(q, None, CONFIG)["after"]["per_class"]["infected"]["slope"]
            return float(slope["high"] - slope["low"])

        assert width(four) == pytest.approx(width(p), rel=1e-6)
        assert width(replace(four, groups=None)) == pytest.approx(width(p) / 2, rel=0.01)

    def test_ece_by_hand(self) -> None:
        """Two bins of ten: said 0.2 and seen 0.4; said 0.9 and seen 0.5. So (0.2 + 0.4) / 2."""
        s = np.repeat([0.2, 0.9], 10)
        y = np.array([1] * 4 + [0] * 6 + [1] * 5 + [0] * 5)
        logits = np.stack([np.log(s / (1 - s)), np.zeros(20)], axis=1).astype(np.float32)
        p = Predictions(("infected", "uninfected"), ("x",) * 20, None, 1 - y, logits)
        found = report_calibration(p, None, CONFIG)["after"]
        assert found["ece"]["value"] == pytest.approx(0.3)
        first = found["curve"][0]["seen"]
        theirs = binomtest(4, 10).proportion_ci(method="wilson")
        assert (first["low"], first["high"]) == pytest.approx((theirs.low, theirs.high), abs=1e-12)

    def test_the_edges_of_bins_by_hand(self) -> None:
        """About equally many in each, ten at least, at most fifteen bins; equal scores stay together."""
        assert bin_edges(np.arange(40.0)).tolist() == [10, 20, 30] and not len(bin_edges(np.arange(19.0)))
        assert len(bin_edges(np.arange(1000.0))) == 14 and bin_edges(np.arange(20.0)).tolist() == [10]
        assert bin_edges(np.array([0.0] * 25 + list(range(1, 16)))).tolist() == [6.0]
        assert bin_edges(np.zeros(40)).tolist() == []

    def test_before_and_after(self) -> None:
        p = draw(2000, 2)
        ours = fitted(p)
        found = report_calibration(replace(p, calibrated=softmax(ours.apply(p.logits))), ours, CONFIG)
        plain = report_calibration(p, None, CONFIG)
        assert plain["before"] is None and "no calibration" in plain["note"]
        for part, measured in ((found.before, p), (found.after, replace(p, calibrated=softmax(ours.apply(p.logits))))):
            own = evaluate_predictions(measured).overall  # the intervals are those of the page
            assert (part.log_loss, part.brier) == (own["log_loss"], own["brier"])
        assert found["before"]["log_loss"]["value"] == plain["after"]["log_loss"]["value"]
        assert found["after"]["ece"]["value"] < found["before"]["ece"]["value"] / 3
        assert found["after"]["per_class"]["infected"]["slope"]["value"] == pytest.approx(1, abs=1e-4)
        for part in (found["before"], found["after"]):
            for name in ("log_loss", "brier", "brier_skill"):
                assert part[name]["low"] <= part[name]["high"]
            assert part["ece"]["low"] is None  # never below 0, so no resample is centred on the truth
            right = part["ece_if_right"]
            assert 0 < right["low"] < right["mean"] < right["high"]
            assert (part["ece"]["value"] > right["high"]) == (part is found["before"])

    def test_the_change_is_the_paired_interval_of_the_mean(self) -> None:
        """By patient, as scipy's t of the patients' means where each has as many images."""
        p = draw(600, 2, patients=60)
        ours = fitted(p)
        after = replace(p, calibrated=softmax(ours.apply(p.logits)))
        found = report_calibration(after, ours, CONFIG)
        labels, rows = p.labels, np.arange(600)
        assert labels is not None and found.before is not None
        gap = np.log(p.probabilities[rows, labels]) - np.log(after.probabilities[rows, labels])
        theirs = ttest_1samp(gap.reshape(10, 60).mean(axis=0), 0).confidence_interval()
        change = found.change["log_loss"]
        assert (change.low, change.high) == pytest.approx((theirs.low, theirs.high), rel=1e-3)
        assert change.value == pytest.approx(found.after.log_loss.value - found.before.log_loss.value)
        assert found.change["brier"].value == pytest.approx(found.after.brier.value - found.before.brier.value)
        assert change.high < 0  # three times too extreme before: the calibration helps
        assert report_calibration(p, None, CONFIG).change == {}
        right = report_calibration(replace(after, labels=p.probabilities.argmax(axis=1)), ours, CONFIG).change
        assert [(of.low, of.high) for of in right.values()] == [(None, None)] * 2  # no image shows what an error costs

    def test_equal_images_of_a_patient_make_a_calibration_error_as_large_as_the_patients_alone_do(self) -> None:
        """200 images, each 5 times: of one patient they are 200 trials, and of independent patients 1,000."""
        p = draw(200, 2, too_sure=1.0)
        rows = np.repeat(np.arange(200), 5)
        copied = replace(p, paths=("x",) * 1000, labels=p.labels[rows], logits=p.logits[rows])
        of_patients = replace(copied, groups=tuple(f"p{row}" for row in rows))
        once, alike, apart = (
            report_calibration(q, None, CONFIG).after.ece_if_right.mean for q in (p, of_patients, copied)
        )
        assert alike == pytest.approx(once, rel=0.05)
        assert apart == pytest.approx(once / 5**0.5, rel=0.15)
        drawn = np.random.default_rng(1).random(1000) >= of_patients.probabilities[:, 0]  # of each image apart
        unlike = replace(of_patients, labels=drawn.astype(np.int64))
        by_patient, by_image = (
            report_calibration(q, None, CONFIG).after.ece_if_right.mean for q in (unlike, replace(unlike, groups=None))
        )
        assert by_patient == pytest.approx(by_image, rel=0.15)

    def test_a_calibrated_model_gives_the_error_that_stands_beside(self) -> None:
        """Labels drawn from the probabilities: the mean of many tests is the mean that one test expects."""
        errors, expected = [], []
        for seed in range(40):
            after = report_calibration(draw(300, 3, seed=seed, too_sure=1), None, CONFIG).after
            errors.append(after.ece.value)
            expected.append(after.ece_if_right.mean)
        assert np.mean(errors) == pytest.approx(np.mean(expected), rel=0.1)

    @pytest.mark.slow
    @pytest.mark.parametrize(("patients", "alike"), [(300, 0.0), (40, 0.1), (40, 0.25)])
    def test_a_calibrated_model_is_seldom_outside_what_right_probabilities_give(
        self, patients: int, alike: float
    ) -> None:
        """300 tests of probabilities that are right, also where the images of a patient are right or wrong together."""
        above, times, each = 0, 300, 1 if patients == 300 else 40
        rng, owner = np.random.default_rng(0), np.repeat(np.arange(patients), each)
        for _ in range(times):
            z = 1.5 * rng.normal(size=len(owner))
            drawn = alike**0.5 * rng.normal(size=patients)[owner] + (1 - alike) ** 0.5 * rng.normal(size=len(owner))
            labels = (norm.cdf(drawn) < 1 / (1 + np.exp(-z))).astype(np.int64)
            logits = np.stack([np.zeros(len(z)), z], axis=1).astype(np.float32)
            groups = tuple(map(str, owner)) if each > 1 else None
            p = Predictions(("no", "yes"), ("x",) * len(z), groups, labels, logits, positive="yes")
            after = report_calibration(p, None, CONFIG).after
            above += after.ece.value > after.ece_if_right.high
        assert above <= 24  # 2.5 % are 7.5; 8 % where the images of a patient are much alike

    def test_the_interval_of_a_slope_rests_on_the_patients_of_the_rarer_class(self) -> None:
        """60 patients, 12 % with the class: with the degrees of freedom of all it held the truth in 85 of 100."""
        rng, owner, held, tests = np.random.default_rng(7), np.repeat(np.arange(60), 10), 0, 0
        for _ in range(120):
            events = (rng.random(60) < 0.12)[owner]
            alike = 0.2**0.5 * rng.normal(size=60)[owner] + 0.8**0.5 * rng.normal(size=600)
            odds = 2.35 * (np.where(events, 1.175, -1.175) + alike) + np.log(0.12 / 0.88)  # of a binormal score
            _, slope, _ = _line(odds, events, Bootstrap(Units(owner), 0))
            if slope.low is not None and slope.high is not None:
                tests, held = tests + 1, held + (slope.low <= 1 <= slope.high)
        assert tests > 110 and held / tests >= 0.93

    @pytest.mark.slow
    @pytest.mark.parametrize(("patients", "each"), [(10, 20), (10, 3), (100, 1)])
    def test_slope_and_intercept_hold_the_truth(self, patients: int, each: int) -> None:
        """1,000 tests of probabilities that are right; 99.9 % of tries at 95 % lie above 92.6 %."""
        inside, rng = {"intercept": 0, "slope": 0}, np.random.default_rng(0)
        owner = np.repeat(np.arange(patients), each)
        for _ in range(1000):
            z = 1.5 * rng.normal(size=len(owner)) + rng.normal(size=patients)[owner]
            events = rng.random(len(z)) < 1 / (1 + np.exp(-z))
            intercept, slope, _ = _line(z, events, Bootstrap(Units(owner), 10))
            for name, own, truth in (("intercept", intercept, 0), ("slope", slope, 1)):
                inside[name] += own.low is None or own.low <= truth <= own.high
        assert min(inside.values()) >= 926, inside

    @pytest.mark.parametrize(
        ("change", "measure", "why"),
        [
            ("one class", "brier_skill", "all images are of one class"),
            ("no images", "brier_skill", "there are no images"),
            ("one class", "slope of infected", "all images are of one class"),
            ("constant", "slope of infected", "the same for all images"),
            ("perfect", "slope of infected", "without an error"),
        ],
    )
    def test_what_is_undefined_says_why(self, change: str, measure: str, why: str) -> None:
        p = draw(60, 2)
        if change == "one class":
            p = replace(p, labels=np.zeros(60, np.int64))
        elif change == "no images":
            p = draw(0, 2)
        elif change == "constant":
            p = replace(p, logits=np.ones((60, 2), np.float32))
        else:
            p = replace(p, logits=np.eye(2, dtype=np.float32)[p.labels] * 9)
        found = report_calibration(p, None, CONFIG)
        assert why in found["after"]["undefined"][measure]
        json.dumps(found.to_dict(), allow_nan=False)

    @pytest.mark.parametrize(("size", "classes", "patients"), [(0, 2, 0), (1, 2, 0), (10, 3, 1), (40, 1000, 0)])
    def test_few_images_one_patient_and_many_classes(self, size: int, classes: int, patients: int) -> None:
        found = report_calibration(draw(size, classes, patients=patients), None, CONFIG)
        text = json.dumps(found.to_dict(), allow_nan=False)
        assert len(text) < 200_000
        if patients == 1:
            assert found["after"]["log_loss"]["low"] is None

    def test_log_odds_are_exact_where_a_probability_is_all_but_one(self) -> None:
        z = np.array([[80.0, 0, 0], [1, 2, 3]])
        assert class_log_odds(z)[0] == pytest.approx([80 - np.log(2), -80, -80])
        p = np.exp(z[1]) / np.exp(z[1]).sum()
        assert class_log_odds(z)[1] == pytest.approx(np.log(p / (1 - p)))


class TestBootstrap:
    def test_sums_by_patient(self) -> None:
        boot = Bootstrap(Units(np.array([1, 0, 1, 2])), 4000)
        whole, drawn = boot.sums(np.array([[1.0, 1], [2, 1], [3, 1], [4, 1]]))
        assert whole.tolist() == [10, 4] and set(map(tuple, drawn)) >= {(12.0, 6.0), (6.0, 3.0), (12.0, 3.0)}
        assert drawn[:, 0].mean() == pytest.approx(10, rel=0.02)


def test_fewer_than_five_positive_images_give_no_interval_of_calibration() -> None:
    """Where the Brier score has no interval because a class is too rare, its skill and the slope have none either."""
    p = draw(400, classes=2, too_sure=1.0)
    positive = np.flatnonzero(p.labels == 0)
    for count, some in ((len(positive), True), (5, True), (4, False), (3, False)):
        known = replace(p, labels=np.where(np.isin(np.arange(400), positive[:count]), 0, 1))
        after = report_calibration(known, None, CONFIG).after
        (own,) = after.per_class.values()
        assert all((one.low is not None) == some for one in (after.brier_skill, own.o_e, own.intercept, own.slope))


def test_one_positive_image_has_a_ratio_of_observed_to_expected() -> None:
    """One of 40 images is infected; O:E is 1 / the sum of the probabilities. Undefined of none and of all."""
    p = draw(40, classes=2)
    expected = 1 / p.probabilities[:, 0].sum()
    for infected, value in ((1, pytest.approx(expected)), (0, None), (40, None)):
        known = replace(p, labels=np.where(np.arange(40) < infected, 0, 1))
        assert report_calibration(known, None, CONFIG).after.per_class["infected"].o_e.value == value


def test_vector_scaling_of_0_2_is_read_and_applied() -> None:
    """Every logit has its own scale and bias; the trials that chose it are kept."""
    trials = [
        {"method": "temperature", "than": "none", "gain": 0.2, "error": 0.1},
        {"method": "vector", "than": "temperature", "gain": 0.3, "error": 0.1},
    ]
    stored = {"method": "vector", "scale": [2.0, 1.5, 0.25], "bias": [0.5, 0.0, -1.0], "note": "", "trials": trials}
    found, p = Calibration.model_validate(stored), draw(40)
    expected = p.logits.astype(float) * (2, 1.5, 0.25) + (0.5, 0, -1)
    assert found.calibrate(p).probabilities == pytest.approx(softmax(expected), abs=1e-6)
    report = report_calibration(found.calibrate(p), found, CONFIG)
    assert report.before is not None and [trial.method for trial in report.trials] == ["temperature", "vector"]


@pytest.mark.parametrize(("gain", "verb"), [(0.02, "lowers"), (-0.02, "raises")])
def test_a_trial_says_which_way_the_log_loss_moves(gain: float, verb: str) -> None:
    assert Trial(method="vector", than="temperature", gain=gain, error=0.004).text == (
        f"vector scaling {verb} the log loss by 0.020 from temperature scaling "
        "(standard error 0.004; more than 0.008 is needed)"
    )


def test_probabilities_that_are_far_off_have_an_intercept() -> None:
    """Every probability has log odds of 10 or -10, and every second image is of the class: the intercept takes them
    back to 0, where Newton's first step, undamped, leads to 10,000."""
    for odds in (10.0, -10.0):
        found, _, _ = _line(np.full(40, odds), np.arange(40) % 2 == 0, Bootstrap(Units(np.arange(40)), 0))
        assert found.value == pytest.approx(-odds)


def test_log_odds_beyond_what_a_float_can_hold_count_as_36() -> None:
    """Log odds of 100 or -100, right in nine of ten images of each class: the slope takes 36 to log 9."""
    labels, wrong = np.arange(200) % 2, np.arange(200) // 2 % 10 == 0
    logits = 100 * np.eye(2, dtype=np.float32)[np.where(wrong, 1 - labels, labels)]
    p = Predictions(("infected", "uninfected"), ("x",) * 200, None, labels, logits)
    slope = report_calibration(p, None, CONFIG).after.per_class["infected"].slope
    assert slope.value == pytest.approx(np.log(9) / 36)
