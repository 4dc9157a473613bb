"""How many decimals a number has."""

from __future__ import annotations

import numpy as np
import pytest
from every_kind import evaluate_findings

from vitmed.metrics.estimates import (
    FEW_GROUPS,
    FEW_IMAGES,
    Estimate,
    Numbers,
    decimals,
    learnt_nothing,
    missing_interval_note,
)
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.predictions import Predictions


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0.9, 0.8, 0.95), 3),
        ((0.99976, 0.99966, 0.99985), 4),  # else 1.000 (1.000 to 1.000)
        ((0.00026, 0.00016, 0.00039), 4),  # else 0.000 (0.000 to 0.000)
        ((0.0101, 0.01001, 0.01049), 4),  # else 0.010 (0.010 to 0.010)
        ((1.0, 0.9996, 1.0), 4),
        ((0.9997, None, None), 4),
        ((0.00002, None, None), 5),
        ((1.0, 0.95, 1.0), 3),
        ((0.0, 0.0, 0.02), 3),
        ((1.0, None, None), 3),
        ((None, None, None), 3),
        ((0.3, 0.3, 0.3), 3),
        ((0.07, -0.00011, 0.14), 4),  # else +0.000, as if 0 were outside
        ((0.07, 0.0000001, 0.14), 3),
        ((-0.0003, -0.0097, 0.0093), 4),  # else -0.000, and its mirror image +0.0003
        ((-0.9997, None, None), 4),
        ((0.00138, 0.0011, 0.0018), 4),  # else 0.001 (0.001 to 0.002)
        ((1e-9, -0.22, 0.22), 3),  # five decimals would not show it either
        ((-1234.567, -1300.0, -1100.0), 1),
        ((139179.221, 85744.281, 225914.256), 0),
        ((139179.221, 139179.1, 139179.3), 1),
    ],
)
def test_both_ends_of_an_interval_differ_and_only_1_is_written_as_1(
    numbers: tuple[float | None, float | None, float | None], expected: int
) -> None:
    value, low, high = numbers
    assert decimals(Estimate(value=value, low=low, high=high)) == expected


def test_a_difference_the_other_way_round() -> None:
    found = Estimate(value=0.1, low=-0.05, high=0.25, method="delong").reversed
    assert (found.value, found.low, found.high, found.method) == (-0.1, -0.25, 0.05, "delong")
    none = Estimate(value=None, low=None, high=None).reversed
    assert (none.value, none.low, none.high) == (None, None, None)


def numbers(labels: np.ndarray, logits: np.ndarray, groups: tuple[str, ...] | None = None) -> Numbers:
    classes = ("a", "b", "c")[: logits.shape[1]]
    paths = tuple(map(str, range(len(labels))))
    return evaluate_predictions(Predictions(classes, paths, groups, labels, logits.astype(np.float32)))


LABELS = np.arange(40) % 2
PATIENTS = tuple(f"P{i // 4}" for i in range(40))
RIGHT = np.eye(2)[LABELS] * 3


def test_constant_scores_have_a_reason_that_fits() -> None:
    """They are many images of many patients: the scores are the reason."""
    found = numbers(LABELS, np.zeros((40, 2)), PATIENTS)
    assert found.no_interval["auroc"] == found.no_interval["auroc of b"]
    assert found.no_interval["auroc"] == "no patient changes it, so its variance is unknown"
    assert found.no_interval["log_loss"] == found.no_interval["mcc"] == "all images agree, so the variance is unknown"


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
    """Means over classes are undefined."""
    labels = np.arange(40) % (classes - 1)
    found = numbers(labels, np.random.default_rng(0).normal(size=(40, classes)) + np.eye(classes)[labels])
    name = "abc"[classes - 1]
    ranked, counted = ["balanced_accuracy", "sensitivity_macro", "auroc", "average_precision"], ["ppv", "npv", "f1"]
    for key in [*ranked, *(f"{kind}_macro" for kind in counted)]:
        assert found.overall[key].value is found.overall[key].low is None and key in found.undefined
    for key in ranked:
        assert found.undefined[key] == f"there is no image of class '{name}'", key
    assert found.overall["accuracy"].low is not None
    if classes == 3:
        assert found.overall["specificity_macro"].low is not None  # that of a class needs the others alone
    assert found.notes[0] == (
        f"There is no image of class '{name}': numbers that need one, such as balanced accuracy, are undefined."
    )


def few(*counts: int, images: int = 1) -> list[str]:
    """The notes of a test with so many patients (or images) of each class."""
    labels = np.repeat(np.repeat(np.arange(len(counts)), counts), images)
    rng = np.random.default_rng(0)
    groups = tuple(f"P{i // images}" for i in range(len(labels))) if images > 1 else None
    return numbers(labels, rng.normal(size=(len(labels), len(counts))) + 2 * np.eye(len(counts))[labels], groups).notes


def test_classes_of_few_images_or_patients_are_named_with_their_number() -> None:
    vague = "too few to say how well the model finds it."
    rough = "the numbers that depend on this class are uncertain, as their intervals show."
    assert few(100, 100) == []
    for counts, images, begin, end in (
        ((100, 1), 1, f"Class 'b' has only 1 image: {vague}", ""),
        ((100, 4), 1, f"Class 'b' has only 4 images: {vague}", ""),
        ((100, 5), 1, f"Class 'b' has only 5 images: {rough}", ""),
        ((100, 3, 2), 1, f"Class 'c' has only 2 images: {vague}", " 1 other class also has few images."),
        ((100, 4), 3, f"Class 'b' has only 4 patients (12 images): {vague}", ""),
    ):
        (note,) = few(*counts, images=images)
        assert note.startswith(begin) and note.endswith(end) and (" also " in note) == bool(end)


def test_few_images_or_patients_in_all_are_told() -> None:
    for count, images, unit in ((FEW_IMAGES, 1, "image"), (FEW_GROUPS, 2, "patient")):
        for n in (count - 1, count):
            found = few(n // 2, n - n // 2, images=images)
            told = f"There are only {n} {unit}s: the intervals are rough."
            assert (told in found) == (n < count), (n, found)
    one = few(1, 0)
    assert one[-1] == "There is no interval: it needs at least 2 images and there is 1."
    some = numbers(LABELS, RIGHT, ("", "", *PATIENTS[2:])).notes
    assert "2 images have no patient; each counts as a patient of its own." in some
    assert (
        "1 image has no patient; it counts as a patient of its own."
        in numbers(LABELS, RIGHT, ("", *PATIENTS[1:])).notes
    )


@pytest.mark.parametrize(
    ("called", "right", "told"),
    [
        ([100, 0], True, "Every image is predicted as 'a': "),
        ([95, 5], False, "95 of 100 images are predicted as 'a': "),
        ([94, 6], False, None),
        ([98, 2], True, "98 of 100 images are predicted as 'a': "),
        ([97, 3], True, None),
    ],
)
def test_one_class_for_all_is_no_model(called: list[int], right: bool, told: str | None) -> None:
    """A hundred images, half of each class: 95 % are predicted as one, and 95 % of the others are among them."""
    labels = np.repeat([1, 0], 50)
    decided = np.repeat([0, 1], called)[:: -1 if right else 1]
    notes = learnt_nothing(numbers(labels, np.eye(2)[decided]))
    assert len(notes) == (told is not None) and all(note.startswith(told) for note in notes)
    assert learnt_nothing(numbers(np.zeros(100, int), np.eye(2)[decided])) == []  # the images are of one class
    rare = np.repeat([1, 0], [1, 99])  # one image of the other class: called right, or not
    assert learnt_nothing(numbers(rare, np.eye(2)[rare])) == []
    assert len(learnt_nothing(numbers(rare, np.eye(2)[np.zeros(100, int)]))) == 1


def of_findings(positives: int, hits: int, alarms: int) -> list[str]:
    labels = (np.arange(400) < positives).astype(np.int8)
    called = (np.arange(400) < hits) | (np.arange(400) >= 400 - alarms)
    logits = np.where(called, 3.0, -3.0)[:, None].astype(np.float32)
    return learnt_nothing(
        evaluate_findings(FindingPredictions(("f",), tuple(map(str, range(400))), None, labels[:, None], logits))
    )


def test_findings_that_are_hardly_ever_called() -> None:
    """Up to 5 % of what is there is found, and 95 % of the others are not called."""
    rest = "the model finds {} of 200 that are there. It does not distinguish the images, or its thresholds are wrong."
    assert of_findings(200, 0, 0) == [f"No finding is called: {rest.format(0)}"]
    assert of_findings(200, 10, 0) == [f"Hardly any finding is called: {rest.format(10)}"]
    assert of_findings(200, 0, 10) == [f"Hardly any finding is called: {rest.format(0)}"]
    assert of_findings(200, 11, 0) == of_findings(200, 0, 11) == of_findings(0, 0, 0) == []


def test_how_many_numbers_have_no_interval() -> None:
    plain = numbers(LABELS, RIGHT + np.random.default_rng(0).uniform(0, 1, size=(40, 2)))
    assert len(plain.no_interval) == 2
    assert missing_interval_note(plain) == [
        "2 numbers have no interval: their uncertainty is unknown, not small. The report gives the reasons below "
        "'All numbers'."
    ]
    one = plain.model_copy(update={"no_interval": {"brier": "why"}})
    assert missing_interval_note(one)[0].startswith("1 number has no interval: its uncertainty is unknown, not small.")
    assert missing_interval_note(plain.model_copy(update={"no_interval": {}})) == []
