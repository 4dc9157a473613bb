"""Every number against scikit-learn, the bootstrap against a slow loop, and what is undefined said so."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from every_kind import compare_predictions, redrawn
from predicted import quiet
from scipy import stats
from sklearn import metrics as sk

from vitmed.core.errors import DataError
from vitmed.metrics.areas import threshold_counts
from vitmed.metrics.bootstrap import bootstrap_weights, percentile_interval
from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.classes import PreparedPredictions, evaluate_predictions, metric_values
from vitmed.metrics.metric_table import AREAS, METRICS, PER_CLASS
from vitmed.metrics.predictions import Predictions, group_index, positive_class


def draw(classes: int, size: int = 300, seed: int = 0, ties: bool = True, groups: int | None = None) -> Predictions:
    """Logits on a coarse grid, so that many probabilities tie."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, size=size, p=(w := np.arange(1, classes + 1)) / w.sum())
    logits = rng.normal(size=(size, classes))
    logits[np.arange(size), labels] += 0.8
    if ties:
        logits = np.round(logits)
    return Predictions(
        classes=tuple(f"class {i}" for i in range(classes)),
        paths=tuple(f"{i}.png" for i in range(size)),
        groups=None if groups is None else tuple(f"P{g}" for g in rng.integers(groups, size=size)),
        labels=labels.astype(np.int64),
        logits=logits.astype(np.float32),
    )


def reference(p: Predictions, weight: np.ndarray) -> dict[str, float]:
    """The same numbers from scikit-learn."""
    y, k, probabilities, predicted = p.labels, len(p.classes), p.probabilities, p.predicted
    out = {
        "accuracy": sk.accuracy_score(y, predicted, sample_weight=weight),
        "balanced_accuracy": sk.balanced_accuracy_score(y, predicted, sample_weight=weight),
        "mcc": sk.matthews_corrcoef(y, predicted, sample_weight=weight),
        "cohen_kappa": sk.cohen_kappa_score(y, predicted, sample_weight=weight),
        "log_loss": sk.log_loss(y, probabilities, sample_weight=weight, labels=range(k)),
    }
    if k == 2:
        out["brier"] = sk.brier_score_loss(y, probabilities[:, 1], sample_weight=weight)
    else:
        out["brier"] = (((probabilities - np.eye(k)[y]) ** 2).sum(1) * weight).sum() / weight.sum()
    single: dict[str, list[float]] = {name: [] for name in PER_CLASS}
    for c in range(k):
        truth, called = y == c, predicted == c
        single["auroc"].append(sk.roc_auc_score(truth, probabilities[:, c], sample_weight=weight))
        single["average_precision"].append(sk.average_precision_score(truth, probabilities[:, c], sample_weight=weight))
        single["sensitivity"].append(sk.recall_score(truth, called, sample_weight=weight))
        single["specificity"].append(sk.recall_score(~truth, ~called, sample_weight=weight))
        single["ppv"].append(sk.precision_score(truth, called, sample_weight=weight))
        single["npv"].append(sk.precision_score(~truth, ~called, sample_weight=weight))
        single["f1"].append(sk.f1_score(truth, called, sample_weight=weight))
    for name, values in single.items():
        mean = float(np.mean(values))
        if name in ("auroc", "average_precision"):
            out[name] = values[1] if k == 2 else mean
        else:
            out[f"{name}_macro"] = mean
        out |= {f"{name}/{c}": v for c, v in enumerate(values)}
    return out


def compare(p: Predictions, weight: np.ndarray) -> None:
    drawn = p.take(np.repeat(np.arange(len(p)), weight.astype(int)))
    per_class = evaluate_predictions(drawn).per_class
    found = metric_values(drawn)
    found |= {f"{name}/{c}": per_class[of][name].value for c, of in enumerate(p.classes) for name in PER_CLASS}
    expected = reference(p, weight)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize(("classes", "ties"), itertools.product((2, 3, 7), (True, False)))
def test_equal_to_sklearn(classes: int, ties: bool) -> None:
    p = draw(classes, ties=ties)
    assert set(metric_values(p)) == set(METRICS)
    compare(p, np.ones(len(p)))


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_weighted_resamples_equal_sklearn(classes: int) -> None:
    p = draw(classes)
    for weight in next(bootstrap_weights(np.arange(len(p)), 3, seed=1)):
        compare(p, weight)


def test_worked_by_hand() -> None:
    """40 sick and 60 well: 30 found, 6 false alarms."""
    labels = np.array([1] * 40 + [0] * 60)
    called = np.array([1] * 30 + [0] * 10 + [1] * 6 + [0] * 54)
    logits = np.stack([np.zeros(100), np.where(called == 1, 1.0, -1.0)], axis=1).astype(np.float32)
    result = evaluate_predictions(Predictions(("normal", "sick"), ("x",) * 100, None, labels, logits))
    sick = {name: result["per_class"]["sick"][name]["value"] for name in PER_CLASS}
    assert sick["sensitivity"] == pytest.approx(30 / 40)
    assert sick["specificity"] == pytest.approx(54 / 60)
    assert sick["ppv"] == pytest.approx(30 / 36)
    assert sick["npv"] == pytest.approx(54 / 64)
    assert sick["f1"] == pytest.approx(60 / 76)
    assert sick["auroc"] == pytest.approx((0.75 + 0.9) / 2)  # one threshold: the mean of the two
    assert result["confusion_matrix"] == [[54, 6], [10, 30]]
    assert result["positive_class"] == "sick"
    overall = {name: entry["value"] for name, entry in result["overall"].items()}
    assert overall["accuracy"] == pytest.approx(0.84)
    assert overall["balanced_accuracy"] == pytest.approx(0.825)
    assert overall["mcc"] == pytest.approx((30 * 54 - 6 * 10) / np.sqrt(36 * 40 * 60 * 64))
    chance = 0.36 * 0.4 + 0.64 * 0.6
    assert overall["cohen_kappa"] == pytest.approx((0.84 - chance) / (1 - chance))
    assert overall["auroc"] == sick["auroc"] and overall["average_precision"] == sick["average_precision"]


def test_every_number_has_an_interval_around_it() -> None:
    result = evaluate_predictions(draw(3, size=200, groups=40))
    entries = dict(result["overall"])
    entries |= {f"{m} {c}": result["per_class"][c][m] for c in result["classes"] for m in PER_CLASS}
    assert len(entries) == len(METRICS) + 3 * len(PER_CLASS) == 34
    for name, entry in entries.items():
        assert entry["low"] < entry["value"] < entry["high"], name
    assert result["undefined"] == {} and result["notes"] == []
    assert (result["n"], result["n_groups"], result["resampling"]) == (200, 40, "by patient")


def test_the_seed_fixes_the_draws_and_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    units = np.arange(100)
    first = np.concatenate(list(bootstrap_weights(units, 50, seed=0)))
    monkeypatch.setattr("vitmed.metrics.bootstrap.CHUNK", 700)
    again = list(bootstrap_weights(units, 50, seed=0))
    assert len(again) > 1 and np.array_equal(first, np.concatenate(again))
    assert not np.array_equal(first, np.concatenate(list(bootstrap_weights(units, 50, seed=1))))


@pytest.mark.parametrize("classes", [2, 3])
def test_numbers_without_a_patient_are_those_of_scikit_learn(classes: int) -> None:
    """An area is near, because the influence of an image is a derivative."""
    p = draw(classes, size=120, groups=15)
    prepared = PreparedPredictions(p)
    found = prepared.without(prepared.units)
    assert set(found) == set(METRICS)
    for k, name in enumerate(dict.fromkeys(p.groups)):
        expected = reference(p, np.array([group != name for group in p.groups]) * 1.0)
        for number in METRICS:
            near = 6e-3 if number in AREAS else 1e-12
            assert found[number][k] == pytest.approx(expected[number], abs=near), number


def test_very_many_patients_are_left_out_in_groups() -> None:
    units = Units(np.random.default_rng(0).permutation(np.repeat(np.arange(50), 3)))
    assert units.blocks(50) is units
    blocks = units.blocks(20)
    assert blocks.count == 20 and set(np.bincount(blocks.index)) == {6, 9}  # images of two or three patients
    assert len({*zip(units.index, blocks.index, strict=True)}) == 50  # each in one group


def test_a_number_that_only_one_patient_defines_is_the_same_without_the_patient() -> None:
    p = draw(3, size=60, groups=10)
    labels = np.where(p.labels == 2, 1, p.labels)
    labels[[group == p.groups[0] for group in p.groups]] = 2
    prepared = PreparedPredictions(replace(p, labels=labels))
    found, alone = prepared.without(prepared.units), list(dict.fromkeys(p.groups)).index(p.groups[0])
    assert found["f1_macro"][alone] == prepared.point["f1_macro"] and found["mcc"][alone] != prepared.point["mcc"]


def test_weights_draw_whole_groups() -> None:
    units = group_index(("a", "b", "a", "", ""), 5)
    assert units.tolist() == [0, 1, 0, 2, 3]  # an unknown patient is nobody else's
    weights = np.concatenate(list(bootstrap_weights(units, 500, seed=0)))
    assert weights.shape == (500, 5)
    assert (weights[:, 0] == weights[:, 2]).all()
    assert (weights[:, [0, 1, 3, 4]].sum(axis=1) == 4).all()
    assert weights.mean(axis=0) == pytest.approx(1, abs=0.15)


def test_one_class_only() -> None:
    p = Predictions(
        ("a", "b"), ("x",) * 6, None, np.zeros(6, np.int64), np.eye(2, dtype=np.float32)[[0, 0, 0, 0, 1, 1]]
    )
    result = quiet(p)
    assert result["undefined"]["auroc"] == "there is no image of class 'b'"
    assert result["undefined"]["mcc"] == "all images are of one class"
    assert result["undefined"]["specificity_macro"] == "every image is of class 'a'"
    for name in ("balanced_accuracy", "sensitivity_macro"):  # a mean over the class that is there is another number
        assert result["overall"][name]["value"] is None
        assert result["undefined"][name] == "there is no image of class 'b'"
    assert any("no image of class 'b'" in note for note in result["notes"])
    for name in ("ppv", "npv", "f1", "average_precision"):  # they would be 1, 0, 0.8 and 1, whatever the scores
        assert result["undefined"][f"{name} of a"] == "every image is of class 'a'"
        assert result["undefined"][f"{name} of b"] == "there is no image of class 'b'"
    assert result["undefined"]["cohen_kappa"] == "all images are of one class"


def test_constant_scores() -> None:
    p = Predictions(("a", "b", "c"), ("x",) * 9, None, np.arange(9) % 3, np.zeros((9, 3), np.float32))
    result = quiet(p)
    assert result["overall"]["auroc"]["value"] == 0.5  # ties count half
    assert result["overall"]["average_precision"]["value"] == pytest.approx(1 / 3)
    assert result["overall"]["mcc"]["value"] == 0
    assert all(result["overall"][name]["low"] is None for name in ("auroc", "log_loss", "brier"))  # nothing varies
    assert result["undefined"]["ppv_macro"] == result["undefined"]["ppv of b"] == "no image was predicted as 'b'"
    assert result["undefined"]["npv of a"] == "every image was predicted as 'a'"


@pytest.mark.parametrize("size", [0, 1])
def test_hardly_any_image(size: int) -> None:
    p = Predictions(("a", "b"), ("x",) * size, None, np.ones(size, np.int64), np.zeros((size, 2), np.float32))
    result = quiet(p)
    assert all(entry["low"] is None for entry in result["overall"].values())
    assert "needs at least 2 images" in " ".join(result["notes"])
    if not size:
        assert set(result["undefined"].values()) == {"there are no images"}


def test_few_patients_are_told() -> None:
    assert any("only 5 patients" in note for note in quiet(draw(2, groups=5))["notes"])
    one = quiet(draw(2, groups=1))
    assert "at least 2 patients" in one["notes"][0] and one["overall"]["accuracy"]["low"] is None
    p = draw(2, size=40)
    groups = tuple("P0" if label else f"P{i}" for i, label in enumerate(p.labels))
    notes = quiet(Predictions(p.classes, p.paths, groups, p.labels, p.logits))["notes"]
    assert any("'class 1' come from one patient" in note for note in notes)
    groups = ("", "", *(f"P{i}" for i in range(38)))
    notes = quiet(Predictions(p.classes, p.paths, groups, p.labels, p.logits))["notes"]
    assert any("2 images have no patient" in note for note in notes)


def test_without_labels_there_is_nothing_to_measure() -> None:
    with pytest.raises(DataError, match="no labels"):
        metric_values(Predictions(("a", "b"), ("x",), None, None, np.zeros((1, 2), np.float32)))


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (("infected", "uninfected"), "infected"),
        (("Parasitized", "Uninfected"), "Parasitized"),
        (("NORMAL", "PNEUMONIA"), "PNEUMONIA"),
        (("abnormal", "normal"), "abnormal"),
        (("healthy", "unhealthy"), "unhealthy"),
        (("COVID", "Non-COVID"), "COVID"),
        (("benign", "malignant"), "malignant"),
        (("glioma", "no_tumor"), "glioma"),
        (("notumor", "tumor"), "tumor"),
        (("normal", "not normal"), "not normal"),
        (("0", "1"), "1"),
        (("cat", "dog"), "dog"),
        (("nodule", "other"), "other"),
        (("---", "x"), "x"),
    ],
)
def test_positive_class(classes: tuple[str, ...], expected: str) -> None:
    assert classes[positive_class(classes)] == expected
    if set(classes) & {"dog", "other", "x"}:  # no name tells: the last
        assert positive_class(classes[::-1]) == 1
    else:
        assert classes[::-1][positive_class(classes[::-1])] == expected


def test_threshold_counts_are_sklearns_curve() -> None:
    p = draw(2)
    tp, fp = threshold_counts(p.probabilities[:, 1], p.labels == 1)
    fpr, tpr, _ = sk.roc_curve(p.labels, p.probabilities[:, 1], drop_intermediate=False)
    assert (tp / tp[-1]).tolist() == tpr.tolist() and (fp / fp[-1]).tolist() == fpr.tolist()


def test_percentile_interval() -> None:
    assert percentile_interval(np.array([np.nan, *np.arange(101.0)])) == pytest.approx((2.5, 97.5))
    assert np.isnan(percentile_interval(np.array([np.nan]))).all()


def two_models(seed: int = 0, count: int = 60) -> tuple[Predictions, Predictions]:
    """Two models of unlike skill on the same images, three images a patient."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    truth = np.stack([-labels, labels], axis=1).astype(np.float32)
    paths, groups = tuple(f"{i}.png" for i in range(count)), tuple(str(i // 3) for i in range(count))
    made = [
        Predictions(
            ("a", "b"), paths, groups, labels, (truth + noise * rng.normal(size=truth.shape)).astype(np.float32)
        )
        for noise in (0.5, 2.0)
    ]
    return made[0], made[1]


def test_two_models_are_compared_on_the_same_patients() -> None:
    good, poor = two_models()
    result = compare_predictions(good, poor)
    separate = [evaluate_predictions(p)["overall"] for p in (good, poor)]
    assert set(result["difference"]) == set(METRICS)
    for name, entry in result["difference"].items():
        assert entry["value"] == pytest.approx(separate[0][name]["value"] - separate[1][name]["value"]), name
        assert result["overall"][name] == separate[1][name], name
    # By hand: the mean loss of a patient's three images; the jackknife of a mean is its standard error.
    lost = [-np.log(p.probabilities[np.arange(60), p.labels]).reshape(20, 3).mean(axis=1) for p in (good, poor)]
    gaps = lost[0] - lost[1]
    degrees = min(19, 2 / ((stats.kurtosis(gaps, fisher=False) - 1) / 20))
    reach = stats.t.ppf(0.975, degrees) * stats.sem(gaps)
    loss = result["difference"]["log_loss"]
    assert loss["method"] == "jackknife"
    assert (loss["low"], loss["high"]) == pytest.approx((gaps.mean() - reach, gaps.mean() + reach))


@pytest.mark.slow
def test_intervals_of_differences_are_those_of_a_bootstrap_by_patient() -> None:
    """150 patients of three images: each end within a tenth of the width."""
    first = draw(3, size=450, ties=False)
    groups = tuple(f"P{i // 3}" for i in range(450))
    noise = 0.6 * np.random.default_rng(1).normal(size=first.logits.shape)
    first, second = (replace(first, logits=logits, groups=groups) for logits in (first.logits, first.logits + noise))
    weights = np.concatenate(list(bootstrap_weights(first.units, 500, seed=3)))
    drawn = [redrawn(PreparedPredictions, p, weights) for p in (first, second)]
    jackknifed = {n: e for n, e in compare_predictions(first, second).difference.items() if e.method == "jackknife"}
    macro = {f"{name}_macro" for name in ("specificity", "ppv", "npv", "f1")}
    assert jackknifed.keys() == {"mcc", "cohen_kappa", "log_loss", "brier", *macro}
    for name, found in jackknifed.items():
        assert found.low is not None and found.high is not None
        expected = percentile_interval(drawn[0][name] - drawn[1][name])
        assert (found.low, found.high) == pytest.approx(expected, abs=0.1 * (found.high - found.low)), name
    # Of two images of a patient, one of each class, both models are right on as many: no draw of patients shows a gap.
    labels, patients = np.repeat([0, 1], 20), tuple(str(i % 20) for i in range(40))
    first, second = (
        Predictions(("a", "b"), patients, patients, labels, np.float32(np.eye(2))[labels ^ np.isin(range(40), wrong)])
        for wrong in ([0, 1, 2, 23, 24, 25], [3, 4, 5, 20, 21, 22])
    )
    found = compare_predictions(first, second).difference["balanced_accuracy"]
    assert (found.value, found.low, found.high) == pytest.approx((0, 0, 0))


def test_a_model_is_not_different_from_itself() -> None:
    good, _ = two_models()
    entries = compare_predictions(good, good)["difference"]
    assert {name: (e["value"], e["low"], e["high"]) for name, e in entries.items()} == dict.fromkeys(METRICS, (0, 0, 0))


def test_a_difference_of_unknown_variance_has_no_interval_and_a_known_one_stays_within_its_range() -> None:
    good, poor = two_models(count=9)
    one = tuple(
        "A" if label else "BCD"[i % 3] for i, label in enumerate(good.labels if good.labels is not None else ())
    )
    first, second = (replace(p, groups=one) for p in (good, poor))  # all positives are of one patient
    found = compare_predictions(first, second)["difference"]["auroc"]
    assert found["value"] is not None and found["low"] is found["high"] is None
    for other, gap in ((-good.logits, 1), (0 * good.logits, 0.5)):  # nine patients, all ranked right
        found = compare_predictions(good, replace(good, logits=other))
        assert found.difference["auroc"].value == gap and found.tests["auroc"].p is None
        assert found.difference["auroc"].low is found.difference["auroc"].high is None
    noisy = replace(poor, logits=poor.logits[::-1], groups=None)
    wide = compare_predictions(replace(good, groups=None), noisy).difference["auroc"]
    assert wide.low is not None and -1 <= wide.low < wide.high <= 1


def test_models_of_other_images_are_not_compared() -> None:
    good, poor = two_models()
    with pytest.raises(DataError, match="not of the same images"):
        compare_predictions(good, replace(poor, paths=poor.paths[::-1]))
    with pytest.raises(DataError, match="different labels"):
        compare_predictions(good, replace(poor, labels=1 - good.labels))


def test_without_an_error_no_loss_has_an_interval() -> None:
    """What an error would cost is not among the images, so no resample knows it; the shares do have intervals."""
    labels = np.arange(30) % 2
    logits = np.stack([np.zeros(30), (labels - 0.5) * np.linspace(6, 9, 30)], axis=1).astype(np.float32)
    overall = quiet(Predictions(("a", "b"), ("x",) * 30, None, labels, logits))["overall"]
    assert overall["accuracy"]["low"] > 0.8 and overall["auroc"]["low"] > 0.8
    assert all(overall[name]["value"] < 0.06 and overall[name]["low"] is None for name in ("log_loss", "brier"))


@pytest.mark.parametrize("separation", [4, 9])
def test_numbers_of_probabilities_do_not_depend_on_the_threshold(separation: int) -> None:
    """Patients of 1 to 12 images: an interval without errors took its degrees of freedom from the decisions."""
    rng, patients = np.random.default_rng(1), np.repeat(np.arange(12), [12, 8, 6, 5, 4, 3, 3, 2, 2, 1, 1, 1])
    labels = patients % 2
    scores = separation * (labels - 0.5) + rng.normal(size=12)[patients] + 0.5 * rng.normal(size=48)
    groups, paths = (tuple(str(i) for i in each) for each in (patients, range(48)))
    logits = np.stack([np.zeros(48), scores], axis=1).astype(np.float32)
    predictions = Predictions(("no", "yes"), paths, groups, labels.astype(np.int64), logits, positive="yes")
    numbers = [evaluate_predictions(replace(predictions, threshold=threshold)) for threshold in (None, 0.01, 0.99)]
    assert len({entry.overall["accuracy"].value for entry in numbers}) > 1
    for name in ("auroc", "average_precision", "brier", "log_loss"):
        assert len({str(entry.overall[name]) for entry in numbers}) == 1
    assert len({str(entry.no_interval.get("brier")) for entry in numbers}) == 1
