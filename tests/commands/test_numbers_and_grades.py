"""Models of a number and of grades, from a table of labels to predict and a report that is made again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Trained
from label_sets import GRADES
from served import serving
from sklearn.metrics import cohen_kappa_score, mean_absolute_error, r2_score

import vitmed
from vitmed.core.errors import UsageError
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions


@pytest.fixture(scope="module")
def root(ages: vitmed.TrainResult) -> Path:
    return load_checkpoint(ages.folder).data_root()


def test_the_network_learns_a_number_and_its_errors_are_those_of_scikit_learn(ages: vitmed.TrainResult) -> None:
    predictions, overall = ages.test.predictions, ages.test.metrics.overall
    assert isinstance(predictions, NumberPredictions) and predictions.labels is not None
    truth, values = predictions.labels, predictions.values
    assert overall["mae"].value == pytest.approx(mean_absolute_error(truth, values), rel=1e-12)
    assert overall["r2"].value == pytest.approx(r2_score(truth, values), rel=1e-9)
    assert overall["r2"].value is not None and overall["r2"].value > 0.7
    assert overall["mae"].low is not None and overall["mae"].low < overall["mae"].value
    train = np.array([s.targets[0] for s in load_checkpoint(ages.folder).splits.samples["train"]])
    assert (predictions.target.centre, predictions.target.spread) == pytest.approx((train.mean(), train.std()))


def test_intervals_of_numbers_are_chosen_on_validation(ages: vitmed.TrainResult) -> None:
    val = ages.val
    assert val is not None and isinstance(val.predictions, NumberPredictions) and val.predictions.labels is not None
    ends = val.predictions.intervals
    inside = (ends[:, 0] <= val.predictions.labels) & (val.predictions.labels <= ends[:, 1])
    assert inside.mean() >= 0.9  # they were chosen on these images to hold 90 %
    assert ages.test.predictions.reach == val.predictions.reach
    page = (ages.test.folder / "report.html").read_text()
    assert "Limits of agreement" in page and "years" in page and "Prediction intervals" in page


def test_a_number_reads_back_to_the_bit_and_its_report_is_made_again(
    ages: vitmed.TrainResult, tmp_path: Path, no_figures: None
) -> None:
    again = vitmed.evaluate(ages.test.folder / "predictions.csv", output=tmp_path / "again")
    first, second = ages.test.predictions, again.predictions
    assert isinstance(first, NumberPredictions) and isinstance(second, NumberPredictions)
    assert np.array_equal(first.logits, second.logits) and np.array_equal(first.labels, second.labels)
    assert (first.reach, first.target) == (second.reach, second.target)
    assert again.metrics.overall == ages.test.metrics.overall


def test_predict_gives_the_number_with_its_interval(ages: vitmed.TrainResult, root: Path) -> None:
    from vitmed.inference.load import Answer, predictions_json

    tested = ages.test.predictions
    found = vitmed.predict([root / path for path in tested.paths], checkpoint=ages.folder, precision="fp32")
    assert isinstance(found, NumberPredictions) and np.array_equal(found.logits, tested.logits)
    image = predictions_json(found, 3)["images"][0]
    low, high = image["interval"]
    assert low < image["prediction"] < high
    assert Answer.of(found, 0).cells(3) == [f"{image['prediction']:.4g}", f"{low:.4g} to {high:.4g}"]


def test_stress_judges_a_number_by_its_error(ages: vitmed.TrainResult, tmp_path: Path) -> None:
    flags = {"corruptions": ["gaussian_noise"], "output": tmp_path / "stress"}
    found, overall = vitmed.stress(ages.folder, **flags).content, ages.test.metrics.overall
    assert found.number == "mae" and {name: found.clean[name] for name in ("mae", "bias")} == {
        name: overall[name] for name in ("mae", "bias")
    }
    truth, cost = ages.test.predictions.labels, found.corruptions["gaussian_noise"]
    assert found.guess == pytest.approx(np.abs(truth - ages.test.predictions.target.centre).mean())
    after = [one["mae"].value for one in cost.strengths]
    assert cost.lost.value == pytest.approx(np.mean(after) - overall["mae"].value, abs=1e-9)  # above 0 is worse
    assert "years" in found.verdict


def test_the_baseline_of_a_number(ages: vitmed.TrainResult) -> None:
    theirs = NumberPredictions.from_csv(ages.test.folder / "baseline_colour_and_size.csv")
    error = mean_absolute_error(theirs.labels, theirs.values)
    assert ages.test.metrics.baselines["colour_and_size"].overall["mae"].value == pytest.approx(error, rel=1e-12)
    baseline = ages.test.metrics.baselines["colour_and_size"]
    gap = ages.test.metrics.overall["mae"].value - baseline.overall["mae"].value
    assert baseline.decides == "mae" and baseline.difference["mae"].value == pytest.approx(gap, abs=1e-9)
    known = baseline.model_copy(update={"difference": {"mae": Estimate(value=-0.2, low=-0.3, high=-0.1)}})
    assert known.standing(None) == "better"  # lower is better
    known = baseline.model_copy(update={"difference": {"mae": Estimate(value=0.2, low=0.1, high=0.3)}})
    assert known.standing(None) == "worse"


def test_a_map_explains_a_side_of_a_number(ages: vitmed.TrainResult, root: Path, tmp_path: Path) -> None:
    assert ages.test.metrics.attention is not None and ages.test.metrics.attention.reason is None
    tested = ages.test.predictions
    usual = {"checkpoint": ages.folder, "methods": ["grad_cam"]}
    found = vitmed.explain([root / path for path in tested.paths[:6]], output=tmp_path / "a", **usual)
    given = json.loads((found.folder / "explain.json").read_text())["images"]
    sides = ["higher" if value >= tested.target.centre else "lower" for value in tested.values[:6]]
    assert [one["explained"] for one in given] == sides
    assert [one["prediction"] for one in given] == pytest.approx(tested.values[:6])
    with pytest.raises(UsageError, match="expected one of: lower, higher"):
        vitmed.explain(root / tested.paths[0], output=tmp_path / "b", target="older", **usual)


def test_grades_are_in_order_and_their_kappa_is_that_of_scikit_learn(graded: vitmed.TrainResult) -> None:
    predictions, saved = graded.test.predictions, load_checkpoint(graded.folder)
    assert isinstance(predictions, Predictions) and predictions.labels is not None
    assert predictions.classes == GRADES == saved.classes
    assert saved.record["monitor"] == "quadratic_kappa"
    found = json.loads((graded.test.folder / "metrics.json").read_text())["grades"]
    kappa = cohen_kappa_score(predictions.labels, predictions.predicted, weights="quadratic")
    assert found["quadratic_kappa"]["value"] == pytest.approx(kappa, abs=1e-12) and kappa > 0.5
    assert list(found["cuts"]) == ["mild or higher", "severe or higher"]


def test_another_order_of_grades_than_that_of_the_model_is_refused(
    graded: vitmed.TrainResult, trained: Trained, tmp_path: Path, no_figures: None
) -> None:
    for source in (graded.folder, graded.test.folder / "predictions.csv"):
        with pytest.raises(UsageError, match="--ordinal severe,mild,none: the model has the order none,mild,severe"):
            vitmed.evaluate(source, ordinal=GRADES[::-1], output=tmp_path / "no", report=False)
    of_classes = vitmed.evaluate(trained.best, ordinal=["green", "blue", "amber"], output=tmp_path / "yes", resamples=0)
    assert of_classes.metrics.grades is None
    assert any("so quadratic kappa is not among the main numbers" in note for note in of_classes.metrics.notes)


def test_two_classes_of_settings_do_not_mix(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not for number"):
        settings = {"target": "number", "sets": ["train.balance=loss"], "output": tmp_path}
        vitmed.train(root, labels=root / "ages.csv", **settings)


def test_compare_judges_grades_by_kappa_in_their_order(graded: vitmed.TrainResult, tmp_path: Path) -> None:
    """A table without a report may have its columns in any order; the grades are in that of the run."""
    tested = graded.test.predictions
    by_name = tested.like(replace(tested, classes=tuple(sorted(GRADES))))
    assert by_name.classes == ("mild", "none", "severe")
    other = replace(by_name, logits=by_name.logits[::-1].copy(), calibrated=None, costs=None)
    (tmp_path / "other.csv").write_text(other.to_csv())
    found = vitmed.compare(tmp_path / "other.csv", graded.folder).content
    assert found.kind == "grades" and found.classes == list(GRADES)
    truth = [GRADES.index(by_name.classes[k]) for k in by_name.labels]
    first, second = ([GRADES.index(one.classes[k]) for k in one.predicted] for one in (other, tested))
    pair = found.pairs[0]
    kappas = [cohen_kappa_score(truth, seen, weights="quadratic") for seen in (first, second)]
    assert pair.difference["quadratic_kappa"].value == pytest.approx(kappas[0] - kappas[1])
    assert list(pair.tests)[:2] == ["quadratic_kappa", "grade_error"] and "quadratic kappa difference" in pair.verdict


def test_nothing_calls_a_number_a_class(ages: vitmed.TrainResult, graded: vitmed.TrainResult) -> None:
    """The card and the page say what is predicted, in its unit, and divide the images by ranges of the number."""
    card, page = (ages.folder / "model_card.md").read_text(), (ages.test.folder / "report.html").read_text()
    assert "image-classification" not in card and "An image classifier" not in card
    assert "It predicts 1 number: number (years)" in card and "print(predictions.values, predictions.intervals)" in card
    value = ages.test.metrics.overall["mae"].value
    assert re.search(rf"\| Mean absolute error \(years\) \| {str(value)[:4]}", card) and "label smoothing" not in card
    sizes = [int(n) for n in re.findall(r"^\| [\d.]+ to [\d.]+ \| (\d+) of", card, re.M)]
    assert sum(sizes) == len(load_checkpoint(ages.folder).splits.samples["train"])
    assert "Ranges in the splits" in page and "Classes in" not in page
    card = (graded.folder / "model_card.md").read_text()
    assert "It distinguishes 3 grades: none, mild, severe." in card and "label smoothing" in card


def test_the_server_answers_with_a_number_and_its_interval_or_a_grade(
    ages: vitmed.TrainResult, graded: vitmed.TrainResult, root: Path
) -> None:
    images, found = sorted((root / "images").glob("*.png"))[:5], {}
    own = [vitmed.predict(images, checkpoint=run.folder, precision="fp32") for run in (ages, graded)]
    for run in (ages, graded):
        with serving(run.folder) as served:
            found[run.folder] = served.post(*images, params={"pictures": "true"}).json()["images"]
    numbers, grades = found.values()
    assert [answer["prediction"] for answer in numbers] == pytest.approx(own[0].values.tolist(), rel=1e-5)
    np.testing.assert_allclose([answer["interval"] for answer in numbers], own[0].intervals, rtol=1e-5)
    assert {answer["unit"] for answer in numbers} == {"years"} and numbers[0]["probabilities"] == {}
    assert [answer["prediction"] for answer in grades] == [GRADES[k] for k in own[1].predicted]
    chances = [list(answer["probabilities"].values()) for answer in grades]
    np.testing.assert_allclose(chances, own[1].probabilities, atol=1e-5)
