"""Thresholds against scikit-learn's ROC, predictive values and net benefit by hand and as published."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from vitmed.core.config import EvaluateConfig, read_cost
from vitmed.core.errors import UsageError
from vitmed.decisions.calibration import Calibration
from vitmed.decisions.evaluation_folder import Fold, Folds, by_fold
from vitmed.decisions.operating_points import (
    Counts,
    PolicyPoint,
    PolicyPoints,
    apply_point,
    asked_point,
    choose_points,
    costs_of_balance,
    decision_cost,
    report_points,
)
from vitmed.metrics.clinical_utility import AtPrevalence, decision_curve, in_words, prevalence_table, ranges
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.kinds.grades import grade_errors
from vitmed.metrics.predictions import Predictions
from vitmed.report.analyses import Extra, Material, points_of

NAMES = ("infected", "uninfected")


def config(**fields: Any) -> EvaluateConfig:
    return EvaluateConfig(resamples=100, **fields)


def of(scores: Any, truth: Any, patients: int = 0) -> Predictions:
    """Predictions with these probabilities of the finding."""
    s, y = np.clip(np.array(scores, float), 1e-6, 1 - 1e-6), np.array(truth, bool)
    logits = np.stack([np.log(s / (1 - s)), np.zeros(len(s))], axis=1).astype(np.float32)
    groups = tuple(f"p{i % patients}" for i in range(len(s))) if patients else None
    return Predictions(NAMES, tuple(map(str, range(len(s)))), groups, np.where(y, 0, 1), logits)


def draw(size: int = 600, seed: int = 0, patients: int = 0, share: float = 0.4) -> Predictions:
    rng = np.random.default_rng(seed)
    y = rng.random(size) < share
    return of(1 / (1 + np.exp(-rng.normal(2.2 * y - 1.1, 1.2))), y, patients)


def table(sensitivity: float, specificity: float, positives: int, negatives: int) -> Predictions:
    hits, kept = round(sensitivity * positives), round(specificity * negatives)
    scores = [0.9] * hits + [0.1] * (positives - hits) + [0.1] * kept + [0.9] * (negatives - kept)
    return of(scores, [1] * positives + [0] * negatives)


def reached(p: Predictions, point: PolicyPoint) -> tuple[float, float]:
    called, y = p.probabilities[:, 0] >= point.threshold, p.labels == 0
    return float(called[y].mean()), float((~called[~y]).mean())


class TestChoice:
    def test_youden_is_the_best_of_scikit_learns_roc(self) -> None:
        from sklearn.metrics import roc_curve

        p = draw()
        fpr, tpr, _ = roc_curve(p.labels == 0, p.probabilities[:, 0], drop_intermediate=False)
        point = choose_points(p, config()).points["youden"]
        se, sp = reached(p, point)
        assert se + sp - 1 == pytest.approx((tpr - fpr).max())
        assert point.promised.sensitivity.value == pytest.approx(se)
        assert point.promised.specificity.value == pytest.approx(sp)

    @pytest.mark.parametrize("target", [0.5, 0.8, 0.95, 0.99])
    def test_a_target_is_reached_by_as_little_as_possible(self, target: float) -> None:
        from sklearn.metrics import roc_curve

        p = draw()
        fpr, tpr, _ = roc_curve(p.labels == 0, p.probabilities[:, 0], drop_intermediate=False)
        se, sp = reached(p, choose_points(p, config(target_sensitivity=target)).points["target_sensitivity"])
        assert se >= target and 1 - sp == pytest.approx(fpr[tpr >= target].min())
        se, sp = reached(p, choose_points(p, config(target_specificity=target)).points["target_specificity"])
        assert sp >= target and se == pytest.approx(tpr[1 - fpr >= target].max())

    @pytest.mark.parametrize(("missed", "alarm"), [(10, 1), (1, 5), (1, 1)])
    @pytest.mark.parametrize("prevalence", [None, 0.05])
    def test_no_threshold_costs_less(self, missed: float, alarm: float, prevalence: float | None) -> None:
        p = draw()
        y = p.labels == 0
        share = float(y.mean()) if prevalence is None else prevalence

        def cost(threshold: float) -> float:
            called = p.probabilities[:, 0] >= threshold
            return float(share * missed * (~called[y]).mean() + (1 - share) * alarm * called[~y].mean())

        point = choose_points(p, config(cost=f"{missed}:{alarm}", prevalence=prevalence)).points["cost"]
        assert cost(point.threshold) == pytest.approx(min(map(cost, [*p.probabilities[:, 0], 2])))
        matrix = [[0.0, float(missed)], [float(alarm), 0.0]]  # infected stands first
        same = choose_points(p, config(cost=matrix, prevalence=prevalence)).points["cost"]
        assert same.threshold == point.threshold

    @pytest.mark.parametrize("names", [("malignant", "normal"), ("benign", "malignant")])
    @pytest.mark.parametrize("cost", ["10:1", "matrix"])
    def test_costs_belong_to_their_classes_wherever_the_positive_class_stands(
        self, names: tuple[str, str], cost: str
    ) -> None:
        """To miss a malignant image costs 10, a false alarm 1: no other threshold is cheaper on these images."""
        p = draw()
        ill, malignant = p.labels == 0, names.index("malignant")
        labels, logits = (np.where(ill, 0, 1), p.logits) if malignant == 0 else (np.where(ill, 1, 0), p.logits[:, ::-1])
        q = replace(p, classes=names, labels=labels, logits=logits)
        matrix = np.zeros((2, 2))
        matrix[malignant, 1 - malignant], matrix[1 - malignant, malignant] = 10, 1  # rows are the truth
        found = choose_points(q, config(cost=matrix.tolist() if cost == "matrix" else cost))
        scores = q.probabilities[:, malignant]

        def spent(called: np.ndarray) -> int:
            return 10 * int((ill & ~called).sum()) + int((~ill & called).sum())

        assert found.positive == "malignant" and found.chosen == "cost"
        assert spent(scores >= found.threshold) == min(spent(scores >= t) for t in [*scores, 2])
        decided = apply_point(q, found).predicted
        assert matrix[labels, decided].sum() == spent(scores >= found.threshold)

    def test_a_threshold_lies_between_two_images_and_ties_are_called_alike(self) -> None:
        found = choose_points(of([0.1, 0.2, 0.6, 0.9], [0, 0, 1, 1]), config(youden=True))
        assert found.points["youden"].threshold == pytest.approx(0.4) and found.chosen == "youden"
        p = of([0.2, 0.2, 0.2, 0.7, 0.7, 0.7], [0, 0, 1, 0, 1, 1])
        assert choose_points(p, config()).points["youden"].threshold == pytest.approx(0.45)

    def test_a_positive_image_that_scores_lowest_of_all_counts(self) -> None:
        """One of four positive images lies below every negative image, so a threshold reaches 1, 2 or 3 of 4."""
        p = of([0.9, 0.8, 0.7, 0.1, 0.6, 0.5, 0.4, 0.3], [1, 1, 1, 1, 0, 0, 0, 0])
        for target, threshold in ((0.25, 0.85), (0.5, 0.75), (0.6, 0.65), (0.75, 0.65), (0.8, None)):
            point = choose_points(p, config(target_sensitivity=target)).points["target_sensitivity"]
            assert point.threshold == (None if threshold is None else pytest.approx(threshold))

    def test_the_likeliest_class_decides_unless_a_point_is_asked_for(self) -> None:
        p = draw()
        found = choose_points(p, config())
        assert found.chosen == "default" and list(found.points) == ["default", "youden"]
        assert apply_point(p, found) is p

    def test_what_the_choice_rests_on_is_kept(self) -> None:
        p = draw(100)
        found = choose_points(p, config(youden=True, prevalence=None))
        assert (found.positives, found.negatives) == ((p.labels == 0).sum(), (p.labels == 1).sum())
        assert found.expected is None and found.costs is None
        three = choose_points(many(3), config())
        assert (three.positives, three.negatives) == (0, 0)
        assert three.expected == pytest.approx(many(3).probabilities.mean(axis=0))

    def test_the_chosen_point_decides(self) -> None:
        p = draw()
        found = choose_points(p, config(target_sensitivity=0.97))
        q = apply_point(p, found)
        assert q.threshold == found.points["target_sensitivity"].threshold < 0.5 and q.positive == "infected"
        assert ((q.predicted == 0) == (p.probabilities[:, 0] >= q.threshold)).all()
        assert (q.predicted[p.labels == 0] == 0).mean() >= 0.97
        taken = q.probabilities[np.arange(len(q)), q.predicted]
        assert (q.confidence == taken).all()

    @pytest.mark.parametrize(
        ("p", "asked", "why"),
        [
            (of([0.5] * 6, [0, 0, 0, 1, 1, 1]), {"youden": True}, "better than guessing"),
            (of([0.9, 0.8, 0.1], [0, 0, 1]), {"target_sensitivity": 0.9}, "only by calling every image positive"),
            (of([0.9, 0.8, 0.1], [0, 0, 1]), {"target_specificity": 0.9}, "only by calling no image positive"),
            (of([0.9, 0.8, 0.1], [0, 1, 0]), {"cost": "1:100"}, "cheapest to call no image positive"),
            (of([0.9, 0.8, 0.1], [1, 1, 1]), {"target_sensitivity": 0.9}, "no image of class 'uninfected'"),
            (of([0.9, 0.8, 0.1], [0, 0, 0]), {"youden": True}, "no image of class 'infected'"),
        ],
    )
    def test_a_point_that_cannot_be_had_says_why_and_the_likeliest_class_decides(
        self, p: Predictions, asked: dict[str, Any], why: str
    ) -> None:
        found = choose_points(p, config(**asked))
        assert found.chosen == "default" and why in found.notes[0]
        assert found.points[next(iter(asked))].promised is None  # no numbers for a point that does not exist
        assert apply_point(p, found) is p
        json.dumps(report_points(draw(), found, config()).to_dict(), allow_nan=False)

    def test_too_few_positives_are_told(self) -> None:
        few = draw(100, share=0.05)
        assert any("unreliable" in note for note in choose_points(few, config(youden=True)).notes)
        some = draw(300, share=0.05)
        notes = choose_points(some, config(target_sensitivity=0.99)).notes
        assert any("not one of them may be missed" in note for note in notes)
        patients = draw(600, patients=6)
        assert any("6 patients" in note for note in choose_points(patients, config(youden=True)).notes)

    def test_what_cannot_be_asked(self) -> None:
        for fields, classes, told in (
            ({"youden": True, "cost": "2:1"}, 2, "only one of them"),
            ({"target_sensitivity": 0.9}, 3, "there are 3"),
            ({"cost": "2:1"}, 3, "there are 3"),
            ({"balanced": True}, 2, "three classes or more"),
            ({"balanced": True, "youden": True}, 3, "only one of them"),
            ({"cost": [[0.0, 1.0], [1.0, 0.0]]}, 3, "2 x 2"),
            ({"cost": [[2.0, 1.0], [1.0, 0.0]]}, 2, "being right costs more"),
            ({"cost": [[0.0, 0.0], [0.0, 0.0]]}, 2, "no error costs more than being right"),
        ):
            with pytest.raises(UsageError, match=told):
                asked_point(config(**fields), classes)
        for value in ("10", "a:b", "0:1", "-1:2", 601, [[0, 1]], [[0, -1], [1, 0]], "inf:1"):
            with pytest.raises(ValueError, match=r"evaluate\.cost"):
                read_cost(value)

    def test_costs_of_three_classes_decide_by_the_lowest_expected_cost(self) -> None:
        rng = np.random.default_rng(0)
        labels = rng.integers(3, size=300)
        logits = rng.normal(size=(300, 3)).astype(np.float32) + np.eye(3, dtype=np.float32)[labels]
        p = Predictions(("a", "b", "c"), ("x",) * 300, None, labels, logits)
        costs = [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [20.0, 20.0, 0.0]]  # to miss c is dear
        found = choose_points(p, config(cost=costs))
        q = apply_point(p, found)
        by_hand = [
            int(np.argmin([sum(row[i] * costs[i][j] for i in range(3)) for j in range(3)])) for row in p.probabilities
        ]
        assert q.predicted.tolist() == by_hand and (q.predicted == 2).sum() > (p.predicted == 2).sum()
        report = report_points(q, found, config(cost=costs))
        spent = {key: point["reached"]["expected_cost"]["value"] for key, point in report["points"].items()}
        assert (
            spent["cost"] == pytest.approx(np.mean(np.array(costs)[labels, q.predicted]))
            and spent["cost"] < spent["default"]
        )
        assert set(spent) == {"default", "balanced", "cost"}

    def test_the_point_of_balanced_accuracy_is_the_likeliest_class_at_equal_prevalence(self) -> None:
        """Three normal distributions of known density, 40:8:1; dividing by prevalence leaves the largest density."""
        from sklearn.metrics import accuracy_score, balanced_accuracy_score

        rng, share = np.random.default_rng(0), np.array([40, 8, 1]) / 49
        labels = rng.choice(3, size=20_000, p=share)
        x = rng.normal(np.array([-1.0, 0.5, 1.5])[labels])
        density = scipy.stats.norm.logpdf(x[:, None], [-1.0, 0.5, 1.5])
        p = Predictions(("a", "b", "c"), ("x",) * len(x), None, labels, (density + np.log(share)).astype(np.float32))
        found = choose_points(p, config(balanced=True))
        assert found.chosen == "balanced" and found.expected == pytest.approx(tuple(share), abs=0.005)
        q = apply_point(p, found)
        assert (q.predicted == density.argmax(axis=1)).mean() > 0.99
        report = report_points(q, found, config(balanced=True))
        assert report["chosen"] == "balanced"
        for key, decided in (("default", p.predicted), ("balanced", q.predicted)):
            reached = report["points"][key]["reached"]
            assert reached["balanced_accuracy"]["value"] == pytest.approx(balanced_accuracy_score(labels, decided))
            assert reached["accuracy"]["value"] == pytest.approx(accuracy_score(labels, decided))
        optimum = balanced_accuracy_score(labels, density.argmax(axis=1))
        assert report["points"]["balanced"]["reached"]["balanced_accuracy"]["value"] == pytest.approx(
            optimum, abs=0.005
        )
        beside = report_points(p, choose_points(p, config()), config())
        assert beside["chosen"] == "default"  # reported even where it does not decide
        assert beside["points"]["balanced"]["reached"] == report["points"]["balanced"]["reached"]

    def test_balanced_accuracy_compares_each_probability_with_how_common_its_class_is(self) -> None:
        """1.01 times as probable as common beats 1.0083 times; a right answer costs nothing, however common."""
        point, common = PolicyPoint(threshold=None, asked=None, why=""), np.array([0.6, 0.3, 0.1])
        asked = {"chosen": "balanced", "points": {"balanced": point}, "expected": tuple(common.tolist())}
        operating = PolicyPoints(positive=None, costs=None, notes=(), **asked)
        chances = np.vstack([[0.606, 0.3025, 0.0915], np.random.default_rng(0).dirichlet(20 * common, 2000)])
        p = Predictions(("a", "b", "c"), ("x",) * 2001, None, None, np.log(chances).astype(np.float32))
        called = apply_point(p, operating).predicted
        assert called[0] == 0 and (called == (p.probabilities / common).argmax(axis=1)).all()

    def test_a_class_with_few_validation_images_is_named(self) -> None:
        labels = np.array([0] * 50 + [1] * 20 + [2] * 3)
        p = Predictions(("a", "b", "c"), ("x",) * 73, None, labels, np.eye(3, dtype=np.float32)[labels])
        assert "3 of c" in choose_points(p, config(balanced=True)).notes[0]
        assert choose_points(p, config()).notes == ()

    def test_a_class_that_validation_lacks_can_be_predicted(self) -> None:
        labels = np.array([0, 1, 0, 1])
        p = Predictions(("a", "b", "c"), tuple("wxyz"), None, labels, np.eye(3, dtype=np.float32)[labels])
        rare = replace(p, logits=np.array([[0, 0, 3]] * 4, np.float32))
        assert set(apply_point(rare, choose_points(p, config(balanced=True))).predicted) == {2}


class TestReached:
    def test_every_number_by_hand(self) -> None:
        """90 of 100 found, 160 of 200 kept out: LR+ = 0.9 / 0.2, LR- = 0.1 / 0.8."""
        report = report_points(table(0.9, 0.8, 100, 200), None, config())
        assert report["chosen"] == "default"
        found = report["points"]["default"]["reached"]
        expected = {
            "sensitivity": 0.9, "specificity": 0.8, "ppv": 90 / 130, "npv": 160 / 170, "f1": 180 / (180 + 40 + 10),
            "lr_plus": 4.5, "lr_minus": 0.125,
        }  # fmt: skip
        assert {name: found[name]["value"] for name in expected} == pytest.approx(expected)
        assert found["counts"] == Counts(tp=90, fp=40, fn=10, tn=160)
        from scipy.stats import binomtest

        theirs = binomtest(90, 100).proportion_ci(method="wilson")
        assert (found["sensitivity"]["low"], found["sensitivity"]["high"]) == pytest.approx((theirs.low, theirs.high))
        assert found["sensitivity"]["method"] == "wilson" and found["lr_plus"]["method"] == "mover"

    @pytest.mark.parametrize(("positives", "negatives"), [(9, 30), (30, 9), (10, 10)])
    def test_nine_images_of_a_kind_are_few_and_ten_are_not(self, positives: int, negatives: int) -> None:
        p = of(np.linspace(0.9, 0.1, positives + negatives), [1] * positives + [0] * negatives)
        notes = choose_points(p, config(target_sensitivity=0.8)).notes
        few = [f"{n} {name} images" for n, name in ((positives, "positive"), (negatives, "negative")) if n < 10]
        assert len(notes) == len(few) and all(few[0] in note for note in notes)

    def test_a_target_that_allows_no_miss_is_told(self) -> None:
        """Of 50 positive images 0.98 allows one miss, of 49 none."""
        for size, told in ((49, True), (51, False)):
            p = of(np.linspace(0.9, 0.1, size + 200), [1] * size + [0] * 200)
            notes = choose_points(p, config(target_sensitivity=0.98)).notes
            assert ("not one of them may be missed" in " ".join(notes)) == told
        p = of(np.linspace(0.9, 0.1, 249), [1] * 200 + [0] * 49)
        (note,) = choose_points(p, config(target_specificity=0.98)).notes
        assert note.startswith("Validation has 49 negative images")

    @pytest.mark.parametrize("prevalence", [None, 0.4])
    def test_costs_of_right_answers_count(self, prevalence: float | None) -> None:
        """A matrix whose right answers are not free, against every threshold by brute force."""
        p = draw(300, seed=4)
        ill, costs = p.labels == 0, np.array([[2.0, 6.0], [5.0, 1.0]])  # infected stands first
        share = ill.mean() if prevalence is None else prevalence

        def spent(threshold: float) -> float:
            called = p.probabilities[:, 0] >= threshold
            (hit, miss), (alarm, kept) = costs
            positive = hit * called[ill].mean() + miss * (~called[ill]).mean()
            return float(share * positive + (1 - share) * (alarm * called[~ill].mean() + kept * (~called[~ill]).mean()))

        found = choose_points(p, config(cost=costs.tolist(), prevalence=prevalence)).points["cost"]
        assert spent(found.threshold) == pytest.approx(min(map(spent, [*p.probabilities[:, 0], 2])))

    def test_what_decisions_of_two_classes_cost(self) -> None:
        """10 of 100 missed at 10, and 40 false alarms of 200 at 1: 140 in 300; calling none costs 1,000, all 200."""
        chosen = choose_points(draw(seed=1), config(cost="10:1"))
        report = report_points(table(0.9, 0.8, 100, 200), chosen, config(cost="10:1"))
        found = report["points"]["default"]["reached"]
        assert found["expected_cost"]["value"] == pytest.approx(140 / 300)
        assert found["normalised_cost"]["value"] == pytest.approx(140 / 200)
        assert found["normalised_cost"]["low"] < 0.7 < found["normalised_cost"]["high"]
        rare = report_points(table(0.9, 0.8, 100, 200), chosen, config(cost="10:1", prevalence=0.01))
        found = rare["points"]["default"]["reached"]  # 0.01 x 0.1 x 10 + 0.99 x 0.2 x 1; calling none costs 0.01 x 10
        assert found["expected_cost"]["value"] == pytest.approx(0.01 + 0.198)
        assert found["normalised_cost"]["value"] == pytest.approx(2.08)

    def test_the_interval_of_a_cost_rests_on_the_images_of_the_rarer_class(self) -> None:
        """300 images, 3 % positive, a miss costs 5: intervals widened for 300 images held the truth in 87 of 100."""
        rng, held, drawn = np.random.default_rng(0), 0, 0
        truth = 0.03 * 0.3 * 5 + 0.97 * 0.1
        for _ in range(100):
            labels = (rng.random(300) < 0.03).astype(np.int64)
            called = np.where(rng.random(300) < np.where(labels, 0.3, 0.1), 1 - labels, labels)
            p = Predictions(("no", "yes"), ("x",) * 300, None, labels, np.eye(2, dtype=np.float32)[called])
            cost = decision_cost(((0, 1), (5, 0)), p, called, EvaluateConfig(resamples=100)).expected_cost
            assert (cost.low is None) == (labels.sum() < 5)
            if cost.low is not None and cost.high is not None:
                drawn, held = drawn + 1, held + (cost.low <= truth <= cost.high)
        assert drawn > 80 and held / drawn >= 0.93

    def test_promised_and_reached_stand_beside_each_other(self) -> None:
        found = choose_points(draw(seed=1), config(target_sensitivity=0.95))
        report = report_points(apply_point(draw(seed=2, patients=50), found), found, config())
        point = report["points"]["target_sensitivity"]
        assert point["promised"]["sensitivity"]["value"] >= 0.95 and report["threshold"] == point["threshold"]
        assert point["reached"]["sensitivity"]["method"] == "wilson-cluster"
        assert point["reached"]["sensitivity"]["value"] == pytest.approx(0.95, abs=0.04)

    def test_no_false_alarm_of_patients_has_an_interval(self) -> None:
        p = of([0.9] * 30 + [0.1] * 30, [1] * 30 + [0] * 30, patients=10)
        report = report_points(p, None, config())
        found = report["points"]["default"]["reached"]
        quantile = scipy.stats.t.ppf(0.975, 9)  # ten patients of three negatives each, which are assumed to be alike
        size = 30 / (1 + 2 * 0.05)
        low, high = found["specificity"]["low"], found["specificity"]["high"]
        assert low == pytest.approx(size / (size + quantile**2)) and high == 1
        own = evaluate_predictions(p)["per_class"][p.classes[0]]
        assert all(found[name] == own[name] for name in ("sensitivity", "specificity", "ppv", "npv"))
        assert found["lr_plus"]["value"] is None  # no false alarm: it has no end

    @pytest.mark.parametrize(("truth", "known", "value"), [(1, "sensitivity", 3 / 5), (0, "specificity", 2 / 5)])
    def test_one_class(self, truth: int, known: str, value: float) -> None:
        """Three of five lie above one half. What needs the other class is undefined, and JSON can hold it."""
        report = report_points(of([0.2, 0.4, 0.6, 0.8, 0.9], [truth] * 5), None, config())
        found = json.loads(json.dumps(report.to_dict(), allow_nan=False))["points"]["default"]["reached"]
        rates = {name: found[name]["value"] for name in ("sensitivity", "specificity", "ppv", "npv")}
        assert rates.pop(known) == pytest.approx(value) and set(rates.values()) == {None}


class TestPrevalence:
    def test_the_published_example(self) -> None:
        """Rajaraman et al. 2018: sensitivity 0.947 and specificity 0.972; of a hundred cells one is infected."""
        found = prevalence_table(table(0.947, 0.972, 1000, 1000), config(prevalence=0.01))
        assert found["sentence"].startswith("Of 100 positive results at a prevalence of 1 %, about 25 (")
        assert found["intended"] == 0.01 and [row["prevalence"] for row in found["rows"]] == [
            0.001, 0.01, 0.05, 0.1, 0.2, 0.5,
        ]  # fmt: skip
        assert found["rows"][1]["ppv"]["value"] == pytest.approx(0.2546, abs=1e-4)

    def test_at_its_own_prevalence_it_is_the_ppv_of_the_table(self) -> None:
        found = prevalence_table(table(0.9, 0.8, 100, 200), config(prevalence=0.3))
        row = next(row for row in found["rows"] if row["prevalence"] == found["observed"])
        assert row["ppv"]["value"] == pytest.approx(90 / 130) and row["npv"]["value"] == pytest.approx(160 / 170)
        assert 0.3 in [row["prevalence"] for row in found["rows"]]
        own = evaluate_predictions(table(0.9, 0.8, 100, 200))["per_class"]["infected"]
        assert row["ppv"] == own["ppv"] and row["npv"] == own["npv"]  # one number, one interval

    def test_without_a_false_alarm_the_interval_is_honest(self) -> None:
        """Sp and Se 1 of 50, Wilson's limit is 0.9287: by MOVER-R up to 0.0713 / sqrt(0.9287 x 1.0713) = 0.0715 times
        as many alarms as hits, so at 1 % PPV may be as low as 1 / (1 + 99 x 0.0715) = 12 %."""
        found = prevalence_table(table(1.0, 1.0, 50, 50), config())
        ppv = next(row for row in found["rows"] if row["prevalence"] == 0.01)["ppv"]
        assert ppv["value"] == 1 and ppv["high"] == 1 and ppv["low"] == pytest.approx(0.1237, abs=1e-4)

    def test_it_follows_the_threshold(self) -> None:
        p = draw()
        low = replace(p, threshold=0.1, positive="infected")
        values = [prevalence_table(q, config()) for q in (p, low)]
        assert all(values) and values[1]["rows"][0]["npv"]["value"] > values[0]["rows"][0]["npv"]["value"]  # type: ignore[index]

    def test_words_never_round_to_all_or_nothing(self) -> None:
        nothing = Estimate(value=None, low=None, high=None)
        told = in_words(AtPrevalence(prevalence=0.001, ppv=nothing, npv=Estimate(value=0.9996, low=0.999, high=1.0)))
        assert "no positive results" in told and "0.1 %" in told and "about 99.96 (99.90 to 100)" in told

    @pytest.mark.parametrize(
        ("low", "value", "high", "said"),
        [
            (0.2, 0.25, 0.31, "about 25 (20 to 31)"),
            (0.996, 0.9974, 0.999, "about 99.7 (99.6 to 99.9)"),
            (0.001, 0.004, 0.2, "about 0.4 (0.1 to 20.0)"),
            (0.2504, 0.2506, 0.2508, "about 25.1 (25.0 to 25.1)"),  # the ends are never rounded to one another
            (0.9926, 0.9948, 0.9966, "about 99.5 (99.3 to 99.7)"),  # with as many decimals each
            (0.0, 0.5, 1.0, "about 50 (0 to 100)"),
            (1.0, 1.0, 1.0, "about 100 (100 to 100)"),
        ],
    )
    def test_shares_in_words(self, low: float, value: float, high: float, said: str) -> None:
        one = Estimate(value=value, low=low, high=high)
        bare = Estimate(value=0.5, low=None, high=None)
        told = in_words(AtPrevalence(prevalence=0.05, ppv=one, npv=bare))
        assert f"Of 100 positive results at a prevalence of 5 %, {said} are true." in told
        assert "cannot show how many of 100 negative results at a prevalence of 5 % are true" in told

    @pytest.mark.parametrize("truth", [[1] * 5, [0] * 5])
    def test_one_class(self, truth: list[int]) -> None:
        p = of([0.2, 0.4, 0.6, 0.8, 0.9], truth)
        for found in (prevalence_table(p, config()), decision_curve(p, config())):
            assert found["why"] == "all images are of one class"


class TestDecisionCurve:
    def test_a_model_that_spares_three_images_is_not_clearly_better_than_acting_on_all(self) -> None:
        """60 positives at 0.905; of 40 negatives 37 at 0.505 and 3 at 0.01. Up to 0.5 the model spares three images,
        which by Wilson's interval may be one, and misses none, which may be 4 of 100; from 0.51 it spares all 40."""
        curve = decision_curve(of([0.905] * 60 + [0.505] * 37 + [0.01] * 3, [1] * 60 + [0] * 40), config())
        assert curve["model"][29]["value"] > curve["all"][29] and curve["useful"] == [[0.51, 0.9]]

    def test_the_published_values_of_dcurves(self) -> None:
        """dcurves 0.5.1, tests/testthat/test-dca.R and test-net_intervention_avoided.R: 105 of 750 patients have
        cancer (`df_binary`), and from 25 % the model has a net benefit of 0.064, acting on all one of -0.1466667, and
        0.632 interventions are avoided for each patient. At each threshold, the patients of its data at or above it."""
        above = {0.05: (96, 320), 0.1: (87, 193), 0.15: (82, 128), 0.2: (75, 98), 0.25: (72, 72), 0.35: (57, 36)}
        scores, truth, rest = [], [], (0, 0)
        for threshold, counts in sorted(above.items(), reverse=True):
            for label, (more, less) in enumerate(zip(counts, rest, strict=True)):
                scores += [threshold + 0.004] * (more - less)
                truth += [1 - label] * (more - less)
            rest = counts
        scores += [0.01] * (750 - len(scores))
        truth += [1] * (105 - 96) + [0] * (645 - 320)
        found = decision_curve(of(scores, truth), config())
        at = {round(threshold, 2): i for i, threshold in enumerate(found["thresholds"])}
        model = found["model"][at[0.25]]["value"]
        assert found["prevalence"] == 0.14 and model == pytest.approx(0.064)
        assert found["all"][at[0.25]] == pytest.approx(-0.1466667, abs=1e-7)
        assert (model - found["all"][at[0.25]]) * 0.75 / 0.25 == pytest.approx(0.632, abs=1e-7)
        assert -found["all"][at[0.25]] * 0.75 / 0.25 == pytest.approx(0.44, abs=1e-7)  # of acting on none

    def test_a_yes_or_no_has_the_net_benefit_of_dcurves(self) -> None:
        """dcurves 0.5.1, test-dca.R: where false alarms cost nothing, the share of true positives, 0.032; here of a
        history in the family, which 24 of 105 patients with cancer and 91 of 645 others have."""
        truth = [1] * 24 + [0] * 91 + [1] * 81 + [0] * 554
        found = decision_curve(of([1.0] * 115 + [0.0] * 635, truth), config())
        gains = [net["value"] + 91 / 750 * t / (1 - t) for net, t in zip(found["model"], found["thresholds"])]  # noqa: B905
        assert gains == pytest.approx([0.032] * 99) and found["all"][0] == pytest.approx(0.14 - 0.86 / 99)

    def test_by_hand(self) -> None:
        """Ten images, four positive. At 0.2: 4 hits and 2 alarms, 0.4 - 0.2 x 0.25; at 0.5: 3 and 1, 0.3 - 0.1."""
        p = of([0.9, 0.8, 0.7, 0.3, 0.6, 0.4, 0.1, 0.1, 0.1, 0.1], [1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
        found = decision_curve(p, config())
        at = {round(t, 2): i for i, t in enumerate(found["thresholds"])}
        model = [entry["value"] for entry in found["model"]]
        assert model[at[0.2]] == pytest.approx(0.4 - 0.2 * 0.25) and model[at[0.5]] == pytest.approx(0.3 - 0.1)
        assert found["all"][at[0.2]] == pytest.approx(0.4 - 0.6 * 0.25) and found["all"][at[0.4]] == pytest.approx(0)
        assert model[at[0.05]] == pytest.approx(found["all"][at[0.05]])  # all are acted on

    def test_guessing_is_of_no_use_and_a_good_model_is(self) -> None:
        rng = np.random.default_rng(0)
        guess = decision_curve(of(rng.random(400), rng.random(400) < 0.3), config())
        good = decision_curve(draw(2000), config())
        assert sum(high - low for low, high in guess["useful"]) < 0.1
        assert max(high - low for low, high in good["useful"]) > 0.5

    def test_ten_images_without_an_error_tell_nothing(self) -> None:
        p = of([0.99] * 5 + [0.01] * 5, [1] * 5 + [0] * 5)
        found = decision_curve(p, config(prevalence=0.1))
        assert found["useful"] is found.intended.useful is None
        assert "too few patients or images" in found.intended.sentence and "(each" not in found.intended.sentence
        half = found["model"][49]  # at one half 5 / 10 - 0 / 10: Newcombe's interval of such a difference is wide
        assert half["value"] == 0.5 and half["low"] < 0.2 and half["high"] < 0.8

    def test_net_benefit_at_one_half_is_a_difference_of_two_shares(self) -> None:
        """16 hits and 4 alarms of 100: 0.12; arms of Wilson's intervals; no image is both, so they are correlated."""
        p = of([0.9] * 20 + [0.1] * 80, [1] * 16 + [0] * 84)
        found = decision_curve(p, config())
        (al, ah), (bl, bh) = (scipy.stats.binomtest(k, 100).proportion_ci(method="wilson") for k in (16, 4))
        r = -((0.16 * 0.04 / (0.84 * 0.96)) ** 0.5)
        down = ((0.16 - al) ** 2 + (bh - 0.04) ** 2 - 2 * r * (0.16 - al) * (bh - 0.04)) ** 0.5
        up = ((ah - 0.16) ** 2 + (0.04 - bl) ** 2 - 2 * r * (ah - 0.16) * (0.04 - bl)) ** 0.5
        entry = found["model"][49]
        assert (entry["value"], entry["low"], entry["high"]) == pytest.approx((0.12, 0.12 - down, 0.12 + up))

    def test_the_intended_prevalence_counts_by_sensitivity_and_specificity(self) -> None:
        """40 of 50 found and 20 of 200 called: at 1 % and one half 0.01 x 0.8 - 0.99 x 0.1 < 0, by Wilson and MOVER."""
        p = table(0.8, 0.9, 50, 200)
        found = decision_curve(p, config(prevalence=0.01))
        (sl, sh), (al, ah) = (
            scipy.stats.binomtest(k, n).proportion_ci(method="wilson") for k, n in ((40, 50), (20, 200))
        )
        for pt, weight in ((0.2, 0.25), (0.5, 1.0)):
            entry = found.intended.model[round(100 * pt) - 1]
            value = 0.01 * 0.8 - 0.99 * 0.1 * weight
            down = ((0.01 * (0.8 - sl)) ** 2 + (0.99 * weight * (ah - 0.1)) ** 2) ** 0.5
            up = ((0.01 * (sh - 0.8)) ** 2 + (0.99 * weight * (0.1 - al)) ** 2) ** 0.5
            assert (entry.value, entry.low, entry.high) == pytest.approx((value, value - down, value + up))
            assert found.intended.all[round(100 * pt) - 1] == pytest.approx(0.01 - 0.99 * weight)
        assert found.intended.prevalence == 0.01 and found.prevalence == 0.2

    def test_at_the_prevalence_of_the_images_both_curves_are_one(self) -> None:
        p = draw(600, patients=60)
        found = decision_curve(p, config(prevalence=float((p.labels == 0).mean())))
        assert [net.value for net in found.intended.model] == pytest.approx([net.value for net in found.model])

    def test_patients_with_images_of_both_kinds_correlate_the_rates(self) -> None:
        p = draw(600, patients=30)
        found = decision_curve(p, config(prevalence=0.1))
        called, y, unit = p.probabilities[:, 0] >= 0.5, p.labels == 0, p.units
        reached = report_points(p, None, config()).points["default"].reached
        se, sp = reached.sensitivity, reached.specificity
        x = [sum(called[(unit == u) & y] - se.value) for u in range(30)]
        z = [sum(called[(unit == u) & ~y] - (1 - sp.value)) for u in range(30)]
        r = np.dot(x, z) / (np.dot(x, x) * np.dot(z, z)) ** 0.5
        a, b = 0.1 * (se.value - se.low), 0.9 * (sp.value - sp.low)
        entry = found.intended.model[49]
        assert entry.value - entry.low == pytest.approx((a**2 + b**2 - 2 * r * a * b) ** 0.5)

    @pytest.mark.parametrize(("share", "prevalence"), [(0.4, 0.3), (0.3, 0.05), (0.5, 0.7)])
    def test_useful_is_above_all_and_none_and_harmful_below_none(self, share: float, prevalence: float) -> None:
        """At the intended prevalence: runs of thresholds where the interval lies above acting on all and on none."""
        found = decision_curve(draw(400, seed=7, share=share), config(prevalence=prevalence)).intended
        pts = np.arange(1, 100) / 100
        every = prevalence - (1 - prevalence) * pts / (1 - pts)
        low, high = (np.array([getattr(net, end) for net in found.model]) for end in ("low", "high"))
        assert found.all == pytest.approx(every)
        for runs, holds in ((found.useful, (low > 0) & (low > every)), (found.harmful, high < 0)):
            inside = np.zeros(99, bool)
            for first, last in runs:
                inside |= (pts >= first - 1e-9) & (pts <= last + 1e-9)
            assert inside.tolist() == holds.tolist()
            assert len(runs) == (np.diff(np.concatenate([[0], holds.astype(int)])) == 1).sum()

    def test_runs_of_thresholds_in_words(self) -> None:
        assert ranges([[0.04, 0.6], [0.62, 0.62]]) == "4 to 60 % or 62 %" and ranges([[0.5, 0.5]]) == "50 %"
        assert ranges([[0.01, 0.02], [0.1, 0.1], [0.3, 0.4]]) == "1 to 2 %, 10 % or 30 to 40 %"
        assert (ranges([]), ranges(None)) == ("none", "too few to say")

    def test_the_sentence_names_its_prevalence_and_what_holds_there(self) -> None:
        """A model that is useful where half are positive harms where 1 % are, at the same thresholds."""
        p = draw(2000, share=0.5)
        found = decision_curve(p, config(prevalence=0.01))
        assert found.prevalence is not None
        assert found.sentence.startswith(
            f"Among these images ({100 * found.prevalence:.3g} % infected), acting on the "
        )
        assert (
            "is clearly better than acting on all images or on none, if you act from a probability of" in found.sentence
        )
        there = found.intended
        assert there.sentence.startswith("At the intended prevalence of 1 %, acting on the model is not clearly better")
        assert "it is clearly worse than acting on none from a probability of 2 to " in there.sentence
        assert there.useful == [] and any(low <= 0.1 < 0.5 <= high for low, high in there.harmful)
        assert decision_curve(p, config()).intended is None

    def test_more_classes_have_none(self) -> None:
        p = Predictions(("a", "b", "c"), ("x",) * 3, None, np.arange(3), np.eye(3, dtype=np.float32))
        assert decision_curve(p, config()) is None and prevalence_table(p, config()) is None


def many(classes: int, size: int = 400, seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, size=size, p=1.3 ** -np.arange(classes) / sum(1.3 ** -np.arange(classes)))
    logits = (rng.normal(size=(size, classes)) + 2 * np.eye(classes)[labels]).astype(np.float32)
    names = tuple(f"class {c}" for c in range(classes))
    return Predictions(names, tuple(map(str, range(size))), tuple(f"p{i % 40}" for i in range(size)), labels, logits)


class TestCostsOfGrades:
    """The grade of the least expected cost, by brute force over all grades; also where the classes are not in order."""

    @pytest.mark.parametrize(("cost", "power"), [("absolute", 1), ("squared", 2)])
    @pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 0, 4, 1, 2)])
    def test_decides(self, cost: str, power: int, order: tuple[int, ...]) -> None:
        p = many(5)
        settings = config(cost=cost, ordinal=[p.classes[k] for k in order])
        found = choose_points(p, settings)
        chosen = apply_point(p, PolicyPoints.model_validate(found.model_dump(mode="json")))  # as a checkpoint keeps it
        grade = np.argsort(order)  # of each class
        for chances, k in zip(p.probabilities, chosen.predicted, strict=True):
            expected = [sum(q * abs(g - own) ** power for q, g in zip(chances, grade, strict=True)) for own in grade]
            assert expected[k] == pytest.approx(min(expected))
        assert (chosen.predicted != p.predicted).any()
        reached = report_points(chosen, found, settings)
        error = np.abs(grade[chosen.predicted] - grade[p.labels]) ** power
        assert reached.points["cost"].reached["expected_cost"].value == pytest.approx(error.mean())
        off = grade_errors(grade[chosen.predicted] - grade[p.labels], p.classes, Units(p.units)).off
        assert (reached.points["cost"].reached["expected_cost"] == off) == (cost == "absolute")

    def test_classes_have_no_order(self) -> None:
        with pytest.raises(UsageError, match="is for grades, and these classes have no order"):
            asked_point(config(cost="absolute"), 5)
        asked_point(config(cost="squared", ordinal=["a", "b", "c"]), 3)


def fold(point: str, threshold: float | None = None) -> Fold:
    raw = Calibration.none(2)
    return Fold(images=2, patients=None, calibration=raw, point=point, threshold=threshold, why="", numbers={})


def pooled(p: Predictions, folds: Folds, settings: EvaluateConfig) -> Any:
    return points_of(Material(p, evaluate_predictions(p), settings, Extra(folds=folds)))


class TestFolds:
    """Pooled folds, each decided at its own threshold; the third had none to choose."""

    def test_the_numbers_are_those_of_the_decisions(self) -> None:
        p = of([0.2, 0.3, 0.4, 0.6, 0.45, 0.7], [0, 1, 1, 0, 1, 1])
        decided = np.array([1, 0, 1, 0, 1, 0])  # from 0.25 of the first two, from 0.5 of the rest
        each = [fold("target_sensitivity", 0.25), fold("default")]
        folds = Folds(asked="target_sensitivity", target=0.9, costs=None, each=each)
        found = pooled(replace(p, decided=decided), folds, config(target_sensitivity=0.9))
        assert found["threshold"] is None and found["by_fold"] == [0.25, None]
        points = found["points"]
        assert set(points) == {"default", "target_sensitivity"} and found["chosen"] == "target_sensitivity"
        assert points["target_sensitivity"]["reached"]["counts"] == Counts(tp=2, fp=1, fn=2, tn=1)
        assert points["default"]["reached"]["counts"] == Counts(tp=1, fp=1, fn=3, tn=1)

    def test_folds_without_a_threshold_take_the_likeliest_class(self) -> None:
        p = of([0.2, 0.7], [0, 1])
        folds = Folds(asked="default", target=None, costs=None, each=[fold("default")] * 2)
        assert not by_fold(folds) and not by_fold(None)
        assert pooled(p, folds, config()) == report_points(p, None, config())

    def test_costs_of_three_classes(self) -> None:
        logits = np.zeros((3, 3), np.float32)
        p = Predictions(("a", "b", "c"), tuple("xyz"), None, np.array([0, 1, 2]), logits, decided=np.array([2, 1, 2]))
        costs = [[0.0, 1.0, 5.0], [1.0, 0.0, 1.0], [4.0, 1.0, 0.0]]
        folds = Folds(asked="cost", target=costs, costs=costs, each=[fold("cost")] * 2)
        found = pooled(p, folds, config(cost=costs))
        assert found["points"]["cost"]["reached"]["expected_cost"]["value"] == pytest.approx(5 / 3)
        assert found["points"]["default"]["reached"]["expected_cost"]["value"] == pytest.approx(5 / 3)  # 0, 1, 4


def test_a_class_that_validation_never_expects_costs_a_finite_number() -> None:
    assert np.isfinite(costs_of_balance([0.0, 0.5, 0.5])).all()
