"""What corruptions cost: hand-worked, scikit-learn's numbers, the intervals of `metrics`, and what is undefined."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, cohen_kappa_score, roc_auc_score

from vitmed.core.base_models import Target
from vitmed.core.errors import DataError
from vitmed.explanation.robustness import CORRUPTIONS, known_stress, measure_robustness
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.report.plots.curves import stress_curves
from vitmed.report.plots.drawing import png
from vitmed.report.results import Results


def draw(signal: float, classes: int = 2, size: int = 120, seed: int = 0, groups: bool = True) -> Predictions:
    rng = np.random.default_rng(5)
    labels = rng.integers(classes, size=size)
    logits = np.random.default_rng([6, seed]).normal(size=(size, classes)).astype(np.float32)
    logits[np.arange(size), labels] += signal
    names = tuple(f"k{i}" for i in range(classes))
    patients = tuple(f"P{i % 20}" for i in range(size)) if groups else None
    return Predictions(names, tuple(f"{i}.png" for i in range(size)), patients, labels, logits)


def strengths(signal: float, classes: int = 2) -> list[Predictions]:
    return [draw(signal - 0.5 * i, classes, seed=i) for i in range(1, 6)]


@pytest.mark.parametrize("classes", [2, 3])
def test_the_numbers_are_those_of_others(classes: int) -> None:
    clean, worse = draw(3, classes), {"jpeg": strengths(3, classes), "hue": strengths(2.9, classes)}
    found = measure_robustness(clean, worse)
    own = evaluate_predictions(clean)["overall"]
    for name in ("accuracy", "balanced_accuracy", "auroc"):
        for part in ("value", "low", "high"):
            assert found["clean"][name][part] == pytest.approx(own[name][part], abs=1e-9), (name, part)
    errors = []
    for key, part in worse.items():
        for row, p in zip(found["corruptions"][key]["strengths"], part, strict=True):
            balanced = balanced_accuracy_score(clean.labels, p.predicted)
            scores = p.probabilities[:, 1] if classes == 2 else p.probabilities
            assert row["balanced_accuracy"]["value"] == pytest.approx(balanced)
            assert row["auroc"]["value"] == pytest.approx(roc_auc_score(clean.labels, scores, multi_class="ovr"))
            assert row["value"] == CORRUPTIONS[key].values[row["strength"] - 1]
            errors.append(1 - balanced)
    assert found["mean_corruption_error"]["value"] == pytest.approx(np.mean(errors))
    clean_error = 1 - balanced_accuracy_score(clean.labels, clean.predicted)
    assert found["relative"]["value"] == pytest.approx(np.mean(errors) - clean_error)
    assert found["n_groups"] == 20 and found["resampling"] == "by patient"
    right = np.array([clean.right, *(p.right for part in worse.values() for p in part)])  # (11, 120), 6 of a patient
    times = np.random.default_rng(0).multinomial(20, np.full(20, 1 / 20), 400)[:, np.arange(120) % 20]
    each = np.equal.outer(range(classes), clean.labels)  # (K, 120)
    balanced = np.mean([(times * c) @ right.T / (times @ c)[:, None] for c in each], axis=0)  # (400, 11)
    low, high = np.quantile(balanced[:, 0] - balanced[:, 1:].mean(axis=1), [0.025, 0.975])
    added = found["relative"]
    assert added["method"] == "jackknife" and (added["low"], added["high"]) == pytest.approx(
        (low, high), abs=0.15 * (high - low)
    )
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_mean_corruption_error_by_hand() -> None:
    """Four images, two classes: right, then one of class 1 wrong (error 0.25) at strength 3, and both at 5 (0.5)."""
    labels = np.array([0, 0, 1, 1])
    scores = {0: [-1, -1, 1, 1], 1: [-1, -1, -1, 1], 2: [-1, -1, -1, -1]}

    def predicted(wrong: int) -> Predictions:
        z = np.array([[-s, s] for s in scores[wrong]], np.float32)
        return Predictions(("a", "b"), tuple("wxyz"), None, labels, z)

    found = measure_robustness(predicted(0), {"jpeg": [predicted(i) for i in (0, 0, 1, 1, 2)]})
    assert found["mean_corruption_error"]["value"] == pytest.approx((0.25 + 0.25 + 0.5) / 5)
    assert found["corruptions"]["jpeg"]["lost"]["value"] == pytest.approx(0.2)
    rows = [[i for i in range(4) if i != left] for left in range(4)]  # the jackknife by hand
    wrong = [predicted(i).predicted for i in (0, 0, 1, 1, 2)]
    moved = np.array([np.mean([1 - balanced_accuracy_score(labels[r], p[r]) for p in wrong]) for r in rows])
    error = np.sqrt(3 / 4 * ((moved - moved.mean()) ** 2).sum())
    pull = moved - moved.mean()
    degrees = min(3, 2 / ((pull**4).sum() / (pull**2).sum() ** 2 - 1 / 4))
    reach = stats.t.ppf(0.975, degrees) * error
    assert found["relative"]["high"] == pytest.approx(0.2 + reach)
    assert found["relative"]["low"] == pytest.approx(0.2 - reach) and found["mean_corruption_error"]["low"] == 0


def test_the_verdict_names_what_hurts_and_what_does_not() -> None:
    clean = draw(4)
    found = measure_robustness(clean, {"jpeg": [clean] * 5, "defocus": strengths(3)})
    assert found["worst"] == "defocus"
    assert found["verdict"].startswith("Defocus blur hurts most: balanced accuracy falls by")
    assert "No loss is shown for: JPEG." in found["verdict"]
    assert "Next:" not in found["verdict"]
    milder = measure_robustness(clean, {"jpeg": strengths(3.5), "hue": [clean] * 5, "defocus": strengths(3)})
    assert ". Next: JPEG by 0." in milder["verdict"] and milder["worst"] == "defocus"
    found = measure_robustness(clean, {"jpeg": [clean] * 5})
    assert found["worst"] is None and "No corruption is shown to hurt: the loss has no interval" in found["verdict"]
    lost = found["corruptions"]["jpeg"]["lost"]  # none of 120 images shows a loss: that is not one of 0.000 to 0.000
    assert (lost["value"], lost["low"], lost["high"]) == (0, None, None)
    gained = measure_robustness(draw(1), {"jpeg": [draw(1.5)] * 5, "hue": [draw(2)] * 5})
    gain = "to lower balanced accuracy; on the mean of the five strengths each corruption raises it."
    assert gained["worst"] is None and gained["verdict"] == f"No corruption is shown {gain}"
    guess = draw(0)
    assert any("better than guessing" in note for note in measure_robustness(guess, {"jpeg": [guess] * 5})["notes"])


@pytest.mark.parametrize("size", [4, 60])
def test_a_loss_that_no_patient_changes_is_as_uncertain_as_both_numbers(size: int) -> None:
    """All is right, and every corrupted image is called k0: without any patient, the loss is 0.5 again."""
    clean = draw(9, size=size, groups=False)
    clean = replace(clean, labels=np.arange(size) % 2, logits=9.0 * np.eye(2, dtype=np.float32)[np.arange(size) % 2])
    blind = replace(clean, logits=np.tile(np.array([9, 0], np.float32), (size, 1)))
    found = measure_robustness(clean, {"jpeg": [blind] * 5})
    before, after = (evaluate_predictions(p).overall["balanced_accuracy"] for p in (clean, blind))
    reach = np.hypot(before.value - before.low, after.high - after.value), after.value - after.low  # MOVER by hand
    lost = found.relative
    assert (lost.value, lost.low, lost.high) == pytest.approx((0.5, 0.5 - reach[0], 0.5 + reach[1]))
    assert found.mean_corruption_error.high == pytest.approx(1 - after.low)
    assert found.worst == {4: None, 60: "jpeg"}[size]


def test_the_largest_loss_that_is_not_shown_hides_no_other() -> None:
    """All six images of two patients of 20 (loss 0.1), or an image of each of nine or eight (0.07). An image of each of
    five is above 0 alone, but not as one of four (Bonferroni)."""
    clean = draw(9)

    def without(rows: list[int]) -> list[Predictions]:
        logits = clean.logits.copy()
        logits[rows] = -logits[rows]
        return [replace(clean, logits=logits)] * 5

    worse = {
        "brighter": without([*range(0, 120, 20), *range(1, 120, 20)]),
        "hue": without(list(range(9))),
        "jpeg": without(list(range(8))),
        "darker": without([0, 1, 2, 3, 4]),
    }
    found = measure_robustness(clean, worse)
    lost = {key: part.lost for key, part in found.corruptions.items()}
    assert lost["brighter"].low < 0 < lost["jpeg"].low and lost["brighter"].value > lost["jpeg"].value
    assert found.worst == "hue" and "Next: JPEG by" in found.verdict
    assert (
        f"No loss is shown for: Brighter (by {lost['brighter'].value:.3f} ({lost['brighter'].low:.3f} to"
        in found.verdict
    )
    assert lost["darker"].low > 0 and f"{lost['darker'].high:.3f}; not above 0 as one of 4)" in found.verdict


def test_what_is_undefined_says_why() -> None:
    one = draw(3, size=12)
    one = Predictions(one.classes, one.paths, one.groups, np.zeros(12, int), one.logits)
    found = measure_robustness(one, {"jpeg": [one] * 5})
    assert found["clean"]["auroc"]["value"] is None and "one class" in found["undefined"]["auroc"]
    assert found["clean"]["balanced_accuracy"]["value"] is None and found["clean"]["accuracy"]["value"] is not None
    single = draw(3, size=1)
    found = measure_robustness(single, {"jpeg": [single] * 5})
    assert found["clean"]["accuracy"]["low"] is None and "two" in found["undefined"]["intervals"]
    assert stress_curves(found) is not None
    found = measure_robustness(draw(3), {})  # every corruption was skipped
    assert found["mean_corruption_error"]["value"] is None and stress_curves(found) is None
    with pytest.raises(DataError, match="no labels"):
        measure_robustness(Predictions(one.classes, one.paths, None, None, one.logits), {})


@pytest.mark.slow
def test_a_thousand_classes_take_no_minutes() -> None:
    many = draw(6, classes=1000, size=300)
    found = measure_robustness(many, {"jpeg": [many] * 5})
    assert found["clean"]["auroc"]["low"] is None and "1000" not in found["undefined"]["auroc"]
    assert found["clean"]["accuracy"]["low"] is not None


def test_the_figures_draw() -> None:
    found = measure_robustness(draw(3), {name: strengths(3) for name in CORRUPTIONS})
    assert stress_curves(Results.of(evaluate_predictions(draw(3))).robustness) is None
    figure = stress_curves(found)
    assert png(figure).startswith(b"\x89PNG")
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert len(titles) == len(CORRUPTIONS)
    counts = [stress_curves(found, group).get_suptitle().partition(";")[0] for group in ("patient", "original")]
    assert counts[0].endswith(" patients") and counts[1] == counts[0].replace("patients", "originals")


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_the_title_of_few_panels_is_inside_the_figure(count: int) -> None:
    figure = stress_curves(measure_robustness(draw(3), dict.fromkeys(list(CORRUPTIONS)[:count], strengths(3))))
    assert figure is not None and png(figure)
    box = figure._suptitle.get_window_extent()  # type: ignore[attr-defined]
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_only_a_stress_test_of_these_very_weights_is_known(tmp_path: Path) -> None:
    assert known_stress(tmp_path, "these", "test of a") is None
    for name, digest in (("stress", "these"), ("stress-2", "another")):
        (tmp_path / name).mkdir()
        told = measure_robustness(draw(3), {}).model_copy(update={"weights_sha256": digest, "what": name})
        (tmp_path / name / "stress.json").write_text(json.dumps(told.to_dict() | {"resamples": 500}))  # as in 0.2.0
    (tmp_path / "stress-3").mkdir()
    (tmp_path / "stress-3" / "stress.json").write_text("torn")
    found = known_stress(tmp_path, "these", "test of a")
    assert found.what == "stress"
    shutil.copytree(tmp_path / "stress", tmp_path / "stress-4")
    later = json.loads((tmp_path / "stress" / "stress.json").read_text()) | {"what": "train of a"}
    (tmp_path / "stress-4" / "stress.json").write_text(json.dumps(later))
    assert known_stress(tmp_path, "these", "stress").what == "stress"
    assert known_stress(tmp_path, "these", "test of a").what == "train of a"  # the newest, and it says of what
    assert known_stress(tmp_path, "changed", "stress") is None


def test_grades_are_judged_by_quadratic_kappa() -> None:
    """The error is 1 - kappa, and a resample's kappa is scikit-learn's of the drawn images."""
    clean, worse = draw(3), strengths(3)
    found = measure_robustness(clean, {"jpeg": worse}, target=Target(kind="grades"))
    truth = known_labels(clean)
    each = [cohen_kappa_score(truth, p.predicted, weights="quadratic") for p in (clean, *worse)]
    assert found.number == "quadratic_kappa"
    assert found.clean["quadratic_kappa"].value == pytest.approx(each[0], abs=1e-9)
    assert found.corruptions["jpeg"].lost.value == pytest.approx(each[0] - np.mean(each[1:]), abs=1e-9)
    assert "quadratic kappa falls" in found.verdict
