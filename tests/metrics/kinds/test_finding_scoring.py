"""Numbers of findings: scikit-learn's of several labels, and a case worked by hand."""

import numpy as np
import pytest
from every_kind import finding_values, redrawn
from sklearn import metrics as sk

from vitmed.core.base_models import UNKNOWN
from vitmed.core.errors import DataError
from vitmed.metrics.kinds.findings import FindingPredictions, PreparedFindings
from vitmed.metrics.metric_table import FINDING_METRICS


def draw(size: int = 300, findings: int = 5, unknown: float = 0.0, seed: int = 0) -> FindingPredictions:
    rng = np.random.default_rng(seed)
    labels = (rng.random((size, findings)) < np.linspace(0.1, 0.6, findings)).astype(np.int8)
    logits = (labels + rng.normal(size=labels.shape)).round(1)  # with ties
    labels[rng.random(labels.shape) < unknown] = UNKNOWN
    names, paths = tuple(f"f{i}" for i in range(findings)), tuple(map(str, range(size)))
    return FindingPredictions(names, paths, tuple(f"P{i // 3}" for i in range(size)), labels, logits.astype(np.float32))


def sklearn_values(p: FindingPredictions) -> dict[str, float]:
    """Without unknown labels."""
    truth, called, chance = p.labels, p.predicted, p.probabilities
    assert truth is not None
    found = {
        "hamming_loss": sk.hamming_loss(truth, called),
        "subset_accuracy": sk.accuracy_score(truth, called),
        "log_loss": np.mean([sk.log_loss(t, c) for t, c in zip(truth.T, chance.T, strict=True)]),
        "brier": np.mean([sk.brier_score_loss(t, c) for t, c in zip(truth.T, chance.T, strict=True)]),
        "balanced_accuracy": np.mean([sk.balanced_accuracy_score(*two) for two in zip(truth.T, called.T, strict=True)]),
        "specificity_macro": sk.recall_score(1 - truth, ~called, average="macro"),
        "npv_macro": sk.precision_score(1 - truth, ~called, average="macro"),
        "no_finding_specificity": np.mean([not any(c) for t, c in zip(truth, called, strict=True) if not any(t)]),
    }
    for kind, end in (("macro", "_macro"), ("micro", "_micro")):
        found |= {f"f1{end}": sk.f1_score(truth, called, average=kind)}
        found |= {f"sensitivity{end}": sk.recall_score(truth, called, average=kind)}
        found |= {f"ppv{end}": sk.precision_score(truth, called, average=kind)}
        found |= {"auroc" + "_micro" * (kind == "micro"): sk.roc_auc_score(truth, chance, average=kind)}
        name = "average_precision" + "_micro" * (kind == "micro")
        found |= {name: sk.average_precision_score(truth, chance, average=kind)}
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_every_number_is_sklearns(seed: int) -> None:
    p = draw(seed=seed)
    expected = sklearn_values(p)
    assert set(expected) == set(FINDING_METRICS)
    assert finding_values(p) == pytest.approx(expected, abs=1e-12)


def test_unknown_labels_are_left_out() -> None:
    """Each finding, and the pooled labels, are scikit-learn's of the known ones."""
    p = draw(unknown=0.4)
    known, found = p.labels != UNKNOWN, finding_values(p)
    each = [(p.labels[own, f], p.probabilities[own, f]) for f, own in enumerate(known.T)]
    assert found["auroc"] == pytest.approx(np.mean([sk.roc_auc_score(*two) for two in each]), abs=1e-12)
    assert found["f1_macro"] == pytest.approx(np.mean([sk.f1_score(t, c >= 0.5) for t, c in each]), abs=1e-12)
    truth, chance = p.labels[known], p.probabilities[known]
    assert found["auroc_micro"] == pytest.approx(sk.roc_auc_score(truth, chance), abs=1e-12)
    assert found["ppv_micro"] == pytest.approx(sk.precision_score(truth, chance >= 0.5), abs=1e-12)
    assert found["log_loss"] == pytest.approx(sk.log_loss(truth, chance), abs=1e-12)
    assert found["hamming_loss"] == pytest.approx(np.mean(truth != (chance >= 0.5)), abs=1e-12)


def small(labels: list[list[int]], logits: list[list[float]]) -> FindingPredictions:
    size = len(labels)
    names, paths = tuple("abc"[: len(labels[0])]), tuple(map(str, range(size)))
    return FindingPredictions(names, paths, None, np.array(labels, np.int8), np.array(logits, np.float32))


def test_worked_by_hand() -> None:
    """Of four images the second has no known finding, in the last the second finding is unknown, so none is known."""
    found = finding_values(
        small(
            [[1, 0, 0], [0, 0, 0], [0, 1, UNKNOWN], [UNKNOWN, UNKNOWN, UNKNOWN]],
            [[1.0, -1.0, -1.0], [-1.0, -2.0, 2.0], [2.0, 3.0, 9.0], [5.0, 5.0, 5.0]],
        )
    )
    assert found["subset_accuracy"] == pytest.approx(1 / 3)  # the first; a false alarm in the second and the third
    assert found["no_finding_specificity"] == 0  # the second image, in which c is called
    assert found["hamming_loss"] == pytest.approx(2 / 8)
    assert found["sensitivity_micro"] == 1 and found["ppv_micro"] == pytest.approx(2 / 4)
    assert found["f1_micro"] == pytest.approx(2 * 0.5 / 1.5)
    assert found["auroc"] == pytest.approx((1 / 2 + 1) / 2)  # of a and b; c has no image with it
    assert found["ppv_macro"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["balanced_accuracy"] == pytest.approx(((1 + 1 / 2) / 2 + 1) / 2)


def test_means_leave_out_findings_with_hardly_any_image() -> None:
    """Four patients with the second finding; five with the third, of whom one has two images."""
    labels = np.zeros((40, 3), np.int8)
    labels[:20, 0], labels[:4, 1], labels[[0, 1, 2, 3, 4, 39], 2] = 1, 1, 1
    rng = np.random.default_rng(0)
    patients = tuple(f"P{i % 39}" for i in range(40))
    p = FindingPredictions(tuple("abc"), tuple(map(str, range(40))), patients, labels, rng.normal(size=(40, 3)) * 1.0)
    each = [sk.roc_auc_score(labels[:, f], p.logits[:, f]) for f in range(3)]
    assert finding_values(p)["auroc"] == pytest.approx((each[0] + each[2]) / 2, abs=1e-12)


def test_without_labels_or_images_nothing_is_known() -> None:
    p = draw()
    with pytest.raises(DataError, match="have no labels"):
        finding_values(FindingPredictions(p.classes, p.paths, None, None, p.logits))
    for empty in (p.take(np.arange(0)), small([[0, UNKNOWN]], [[1.0, 1.0]])):
        assert np.isnan(finding_values(empty)["auroc"])


def test_numbers_of_resamples_are_those_of_scikit_learn_with_weights() -> None:
    p, weights = draw(unknown=0.2), np.random.default_rng(1).integers(0, 4, (3, 300)).astype(float)
    found = redrawn(PreparedFindings, p, weights)
    for r, weight in enumerate(weights):
        each, precision = [], []
        for f in range(len(p.classes)):
            known = p.labels[:, f] != UNKNOWN
            given = p.labels[known, f], p.probabilities[known, f]
            each.append(sk.roc_auc_score(*given, sample_weight=weight[known]))
            precision.append(sk.average_precision_score(*given, sample_weight=weight[known]))
        assert found["auroc"][r] == pytest.approx(np.mean(each), abs=1e-12)
        assert found["average_precision"][r] == pytest.approx(np.mean(precision), abs=1e-9)
