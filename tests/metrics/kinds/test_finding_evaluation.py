"""Intervals of findings: against resampled patients, against what must be equal, and how often they hold the truth."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from every_kind import evaluate_findings, finding_values
from sklearn import metrics as sk

from vitmed.core.base_models import UNKNOWN
from vitmed.core.errors import DataError
from vitmed.metrics.estimates import FEWEST, Estimate, Numbers
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.kinds.findings import FindingPredictions, PreparedFindings
from vitmed.metrics.metric_table import FINDING_METRICS, PER_CLASS

PREVALENCE = (0.15, 0.3, 0.5)
DISTANCE = 1.2  # of the scores with and without a finding, in standard deviations


def draw(seed: int, patients: int = 80, unknown: float = 0.2) -> FindingPredictions:
    """Patients of one to four images; the scores of a patient, and of the findings of an image, are alike."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), rng.integers(1, 5, patients))
    shape = (len(patient), len(PREVALENCE))
    labels = (rng.random(shape) < PREVALENCE).astype(np.int8)
    noise = rng.normal(size=patients)[patient, None] + rng.normal(size=(shape[0], 1)) + rng.normal(size=shape)
    logits = DISTANCE * (labels - 0.5) + noise / 3**0.5
    labels[rng.random(shape) < unknown] = UNKNOWN
    groups = tuple(f"P{i}" for i in patient)
    return FindingPredictions(("a", "b", "c"), tuple(map(str, range(shape[0]))), groups, labels, np.float32(logits))


def bounds(found: Estimate) -> tuple[float, float, float]:
    assert found.value is not None and found.low is not None and found.high is not None
    return found.value, found.low, found.high


def test_each_finding_is_two_classes_and_the_values_are_those_of_an_epoch() -> None:
    p = draw(0)
    found = evaluate_findings(p)
    assert (
        found.classes == ["a", "b", "c"] and found.positive_class is None and list(found.overall) == [*FINDING_METRICS]
    )
    for name in found.classes:
        own = evaluate_predictions(p.of(name))
        assert found.per_class[name] == own.per_class[name]
    assert {name: one.value for name, one in found.overall.items()} == pytest.approx(finding_values(p), abs=1e-12)
    for one in found.overall.values():
        value, low, high = bounds(one)
        assert low < value < high
    assert found.undefined == found.no_interval == {} and found.n == len(p) and found.n_groups == 80


def resampled(p: FindingPredictions, times: int) -> dict[str, tuple[float, float]]:
    """Percentile intervals of scikit-learn's numbers over resampled patients."""
    rng, units, drawn = np.random.default_rng(0), p.units, {}
    places = [np.flatnonzero(units == unit) for unit in range(units.max() + 1)]
    for _ in range(times):
        rows = np.concatenate([places[i] for i in rng.integers(len(places), size=len(places))])
        labels, chance = p.labels[rows], p.probabilities[rows]
        known, called = labels != UNKNOWN, chance >= 0.5
        three = [(labels[own, f], chance[own, f]) for f, own in enumerate(known.T)]
        one = {
            "auroc": np.mean([sk.roc_auc_score(t, c) for t, c in three]),
            "average_precision": np.mean([sk.average_precision_score(t, c) for t, c in three]),
            "balanced_accuracy": np.mean([((c >= 0.5) == t)[t == kind].mean() for t, c in three for kind in (0, 1)]),
            "auroc_micro": sk.roc_auc_score(labels[known], chance[known]),
            "f1_micro": sk.f1_score(labels[known], called[known]),
            "log_loss": sk.log_loss(labels[known], chance[known]),
            "hamming_loss": np.mean(labels[known] != called[known]),
        }
        for name, value in one.items():
            drawn.setdefault(name, []).append(value)
    return {name: tuple(np.quantile(values, [0.025, 0.975])) for name, values in drawn.items()}


@pytest.mark.slow
def test_intervals_are_as_wide_as_those_of_resampled_patients() -> None:
    """Within a fifth: 120 resamples give a width to within 9 % (one standard error)."""
    p = draw(1, patients=250)
    found = evaluate_findings(p)
    for name, (low, high) in resampled(p, 120).items():
        _, own_low, own_high = bounds(found.overall[name])
        assert (own_high - own_low) / (high - low) == pytest.approx(1, abs=0.2), name


@pytest.mark.slow
def test_the_interval_of_the_mean_auroc_holds_the_truth() -> None:
    """In 200 tests: in 95 %, less two standard errors, or more, and not by being much wider than the values vary."""
    truth = NormalDist().cdf(DISTANCE / 2**0.5)
    value, low, high = np.array([bounds(PreparedFindings(draw(seed)).overall["auroc"]) for seed in range(200)]).T
    assert np.mean((low <= truth) & (truth <= high)) >= 0.919
    assert 0.92 <= np.median(high - low) / (2 * 1.96 * value.std()) <= 1.15


def twice(p: FindingPredictions) -> FindingPredictions:
    """The first finding, under two names."""
    return replace(p, classes=("a", "b"), labels=p.labels[:, [0, 0]], logits=p.logits[:, [0, 0]])


@pytest.mark.parametrize("grouped", [True, False])
def test_a_finding_that_stands_twice_is_not_known_better(grouped: bool) -> None:
    """The labels of an image are not independent images: the mean has the interval of one finding."""
    p = draw(2) if grouped else replace(draw(2), groups=None)
    both = evaluate_findings(twice(p))
    for kind in ("auroc", "average_precision", "sensitivity", "specificity", "ppv", "npv", "f1"):
        name = kind if kind in both.overall else f"{kind}_macro"
        assert bounds(both.overall[name]) == pytest.approx(bounds(both.per_class["a"][kind]), abs=1e-9)
    _, low, high = bounds(both.overall["auroc_micro"])
    _, own_low, own_high = bounds(both.per_class["a"].auroc)
    assert (high - low) / (own_high - own_low) == pytest.approx(1, abs=0.15)


def test_two_findings_of_different_images_are_known_better() -> None:
    """Each is known in half of the patients, so their errors are independent: the mean varies by less, 1 / sqrt(2)."""
    p = twice(draw(3, patients=400, unknown=0))
    labels = p.labels.copy()
    labels[p.units % 2 == 0, 0] = labels[p.units % 2 == 1, 1] = UNKNOWN
    found = evaluate_findings(replace(p, labels=labels))
    _, low, high = bounds(found.overall["auroc"])
    own = [high - low for _, low, high in (bounds(found.per_class[name].auroc) for name in "ab")]
    assert (high - low) / np.hypot(*own) * 2 == pytest.approx(1, abs=0.02)


def test_what_a_model_says_of_unknown_labels_does_not_count() -> None:
    p = draw(4)
    other = replace(p, logits=np.where(p.labels == UNKNOWN, 9, p.logits).astype(np.float32))
    assert other.predicted.sum() > p.predicted.sum() and evaluate_findings(other) == evaluate_findings(p)


def odd() -> FindingPredictions:
    """Findings: one usual, never present, always present, never called, in three images, never known."""
    rng, size = np.random.default_rng(5), 60
    labels = np.zeros((size, 6), np.int8)
    labels[:, 2], labels[::3, 0], labels[::4, 3], labels[:3, 4], labels[:, 5] = 1, 1, 1, 1, UNKNOWN
    logits = rng.normal(size=labels.shape) + labels
    logits[:, 3] -= 9
    names = ("usual", "never", "always", "silent", "rare", "unknown")
    return FindingPredictions(names, tuple(map(str, range(size))), None, labels, np.float32(logits))


def assert_reasons(found: Numbers) -> None:
    """Every number without a value, or without an interval, says why; none says so in vain."""
    entries = {f"{kind} of {c}": found.per_class[c][kind] for c in found.classes for kind in PER_CLASS}
    entries |= found.overall
    assert set(found.undefined) == {name for name, one in entries.items() if one.value is None}
    if (found.n if found.n_groups is None else found.n_groups) > 1:
        missing = {name for name, one in entries.items() if one.value is not None and one.low is None}
        assert set(found.no_interval) == missing
    assert Numbers.model_validate(found.to_dict()) == found


def test_every_number_that_is_not_there_has_its_reason() -> None:
    found = evaluate_findings(odd())
    assert_reasons(found)
    why = found.undefined
    assert why["auroc of never"] == "there is no image of class 'never'"
    assert why["auroc of always"] == "every image is of class 'always'"
    assert why["ppv of silent"] == why["ppv_macro"] == "no image was predicted as 'silent'"
    assert why["sensitivity of unknown"] == "no label of 'unknown' is known"
    assert why["no_finding_specificity"] == "every image has a finding"
    alike = evaluate_findings(replace(odd(), logits=np.zeros_like(odd().logits)))
    assert alike.overall["auroc_micro"].value == 0.5
    assert alike.no_interval["auroc_micro"] == "no image changes it, so its variance is unknown"
    assert found.no_interval["average_precision of rare"] == "too few to say: 3 images of class 'rare'"
    assert found.notes[0] == (
        "60 labels are not known, of 360 (60 of 'unknown'): every number counts the known labels only."
    )
    assert found.notes[1] == (
        "Means over findings leave out 4 findings: 'never', 'always', 'rare', 'unknown' "
        "(fewer than 5 images have it, or fewer than 5 lack it)."
    )
    assert found.notes[2].startswith("Finding 'rare' has only 3 images: too few to say how well the model finds it.")
    areas = [found.per_class[name].auroc.value for name in ("usual", "silent")]
    assert found.overall["auroc"].value == pytest.approx(np.mean(areas), abs=1e-12)


def test_why_the_numbers_of_all_labels_have_no_value() -> None:
    """Sensitivity needs a finding that is there, PPV one that is called, AUROC both kinds of label."""
    p = odd()
    none, every = (replace(p, labels=np.full((60, 6), k, np.int8)) for k in (0, 1))
    silent = replace(p, logits=np.full((60, 6), -9, np.float32))
    unknown = replace(p, labels=np.full((60, 6), UNKNOWN, np.int8))
    for part, name, why in (
        (none, "sensitivity_micro", "no image has a finding"),
        (none, "auroc_micro", "no image has a finding"),
        (silent, "ppv_micro", "no finding was called"),
        (every, "auroc_micro", "every known finding is present"),
        (every, "no_finding_specificity", "every image has a finding"),
        (none, "auroc", "no finding has images with it and images without it"),
        (unknown, "hamming_loss", "no label is known"),
        (p.take(np.arange(0)), "hamming_loss", "there are no images"),
    ):
        assert evaluate_findings(part).undefined[name] == why, (name, why)


@pytest.mark.parametrize(
    "part",
    [
        odd().take(np.arange(0)),
        odd().take(np.arange(1)),
        odd().take(np.arange(5)),
        replace(odd(), groups=("P",) * 60),
        replace(odd(), groups=("P", *"Q" * 59)),
        replace(odd(), labels=np.full((60, 6), UNKNOWN, np.int8)),
        replace(odd(), labels=np.zeros((60, 6), np.int8)),
        replace(odd(), labels=np.ones((60, 6), np.int8)),
        replace(odd(), logits=np.zeros((60, 6), np.float32)),
    ],
    ids=["no image", "one", "five", "one patient", "two patients", "unknown", "none", "all", "constant"],
)
def test_hardly_any_image(part: FindingPredictions) -> None:
    found = evaluate_findings(part)
    assert_reasons(found)
    values = {name: float("nan") if one.value is None else one.value for name, one in found.overall.items()}
    assert values == pytest.approx(finding_values(part), abs=1e-12, nan_ok=True)


def test_means_of_few_images_count_what_there_is() -> None:
    """Where no finding has enough images, a mean counts those that have any, and says which are left out."""
    found = evaluate_findings(odd().take(np.arange(3, 12)))
    assert max(min(one.n, 9 - one.n) for one in found.per_class.values()) < FEWEST
    areas = [found.per_class[name].auroc.value for name in ("usual", "silent")]
    assert found.overall["auroc"].value == pytest.approx(np.mean(areas), abs=1e-12)
    assert "leave out 4 findings: 'never', 'always', 'rare', 'unknown' (no image has it, or every" in found.notes[1]


def test_the_sample_of_findings_is_told() -> None:
    """Patients and their images; of each finding how many known labels are with and without it."""
    p = draw(6)
    found = evaluate_findings(p)
    sizes = np.bincount(p.units)
    told = found.sample.images_per_patient
    assert (found.sample.n_images, found.sample.n_patients) == (len(p), len(sizes))
    assert (told.min, told.median, told.max) == (sizes.min(), np.median(sizes), sizes.max())
    for f, own in enumerate(found.sample.classes):
        assert own.sensitivity.n == (p.labels[:, f] == 1).sum() and own.specificity.n == (p.labels[:, f] == 0).sum()
    alone = evaluate_findings(replace(p, groups=None)).sample
    assert alone.n_patients is alone.images_per_patient is None


def test_what_cannot_be_measured_is_an_error() -> None:
    p = draw(6)
    with pytest.raises(DataError, match="have no labels"):
        evaluate_findings(replace(p, labels=None))
    broken = p.logits.copy()
    broken[7, 1] = np.nan
    with pytest.raises(DataError, match=r"1 of \d+ rows have a score that is not a finite number, the first is row 8"):
        evaluate_findings(replace(p, logits=broken))
