"""Notes and reasons: each is true where it stands, and absent where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from vitmed.metrics.estimates import Numbers
from vitmed.metrics.evaluation import evaluate_predictions
from vitmed.metrics.predictions import Predictions


def numbers(
    labels: np.ndarray, logits: np.ndarray, groups: tuple[str, ...] | None = None, resamples: int = 200
) -> Numbers:
    classes = ("a", "b", "c")[: logits.shape[1]]
    paths = tuple(map(str, range(len(labels))))
    return evaluate_predictions(Predictions(classes, paths, groups, labels, logits.astype(np.float32)), resamples)


LABELS = np.arange(40) % 2
PATIENTS = tuple(f"P{i // 4}" for i in range(40))
RIGHT = np.eye(2)[LABELS] * 3


def test_constant_scores_have_a_reason_that_fits() -> None:
    """They are many images of many patients: the scores are the reason."""
    found = numbers(LABELS, np.zeros((40, 2)), PATIENTS)
    assert found.no_interval["auroc"] == found.no_interval["auroc of b"]
    assert found.no_interval["auroc"] == "no patient changes it, so its variance is unknown"
    assert found.no_interval["log_loss"] == found.no_interval["mcc"] == "no image shows how much it varies"


def test_a_log_loss_without_an_error_has_a_reason_that_fits() -> None:
    rng = np.random.default_rng(0)
    found = numbers(LABELS, RIGHT + rng.uniform(0, 1, size=(40, 2)), PATIENTS)
    assert found.overall["accuracy"].value == 1
    why = "no image is wrong, so none shows what an error costs"
    assert found.no_interval == dict.fromkeys(("log_loss", "brier"), why)


def test_a_class_of_one_image_is_the_reason() -> None:
    rare = numbers(np.array([1, *[0] * 39]), np.random.default_rng(0).normal(size=(40, 2)))
    assert set(rare.no_interval.values()) == {
        "too few to say: 1 image of class 'b'",
        "the images that it counts come from fewer than 2 images",
        "the images of one kind come from fewer than 2 images",
    }
    assert rare.no_interval["auroc"] == "the images of one kind come from fewer than 2 images"
    assert rare.no_interval["balanced_accuracy"] == "the images that it counts come from fewer than 2 images"


@pytest.mark.parametrize("classes", [2, 3])
def test_an_auroc_clearly_below_one_half_is_reported(classes: int) -> None:
    labels = np.arange(120) % classes
    logits = np.random.default_rng(1).normal(size=(120, classes)) + 1.5 * np.eye(classes)[labels]
    swapped = numbers(labels, -logits)
    area = swapped.overall["auroc"]
    said = f"The AUROC is {area.value:.3f} ({area.low:.3f} to {area.high:.3f}), clearly below 0.5: the labels, or the "
    assert [note for note in swapped.notes if note.startswith(said)] and swapped.notes[-1].endswith("may be swapped.")
    for good in (numbers(labels, logits), numbers(labels, 0 * logits), numbers(labels[:4], -logits[:4])):
        assert not any("below 0.5" in note for note in good.notes)
    none_right = numbers(LABELS, -RIGHT)
    assert any("clearly below 0.5" in note for note in none_right.notes) and none_right.overall["auroc"].value == 0


@pytest.mark.parametrize("classes", [2, 3])
def test_without_an_image_of_a_class_what_needs_one_is_undefined(classes: int) -> None:
    """Plain means over classes are undefined; weighted ones give the class no weight."""
    labels = np.arange(40) % (classes - 1)
    found = numbers(labels, np.random.default_rng(0).normal(size=(40, classes)) + np.eye(classes)[labels])
    name = "abc"[classes - 1]
    ranked, counted = ["balanced_accuracy", "sensitivity_macro", "auroc", "average_precision"], ["ppv", "npv", "f1"]
    for key in [*ranked, *(f"{kind}_macro" for kind in counted)]:
        assert found.overall[key].value is found.overall[key].low is None and key in found.undefined
    for key in ranked:
        assert found.undefined[key] == f"there is no image of class '{name}'", key
    for key in ("accuracy", "sensitivity_weighted"):
        assert found.overall[key].low is not None
    if classes == 3:
        assert all(found.overall[f"{key}_weighted"].low is not None for key in ("ppv", "f1", "auroc", "specificity"))
        assert found.overall["specificity_macro"].low is not None  # that of a class needs the others alone
    assert found.notes[0] == (
        f"There is no image of class '{name}': numbers that need one, such as balanced accuracy, are undefined."
    )
