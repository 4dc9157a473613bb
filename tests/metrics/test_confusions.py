"""Errors counted by pair of classes."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from vitmed.core.base_models import UNKNOWN
from vitmed.core.errors import DataError
from vitmed.metrics.confusions import (
    CoOccurrence,
    FindingErrors,
    Mistakes,
    co_occurrence,
    error_pairs,
    finding_errors,
    mistakes,
)
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.predictions import Predictions


def draw(classes: int = 4, size: int = 300, groups: bool = True) -> Predictions:
    rng = np.random.default_rng(classes)
    labels = rng.integers(classes, size=size)
    names = tuple(f"P{i % 17}" for i in range(size)) if groups else None
    logits = rng.normal(size=(size, classes)).astype(np.float32)
    return Predictions(tuple(f"c{i}" for i in range(classes)), ("x",) * size, names, labels, logits)


def test_pairs_are_the_confusion_matrix_off_its_diagonal() -> None:
    p = draw()
    counts = confusion_matrix(p.labels, p.predicted)
    told = mistakes(p)
    assert told["n"] == counts.sum() - counts.trace() and told["further"] == 0
    assert [pair["n"] for pair in told["pairs"]] == sorted((pair["n"] for pair in told["pairs"]), reverse=True)
    assert len(told["pairs"]) == (counts > 0).sum() - (counts.diagonal() > 0).sum() > 0
    for pair in told["pairs"]:
        i, j = int(pair["truth"][1]), int(pair["predicted"][1])
        assert pair["n"] == counts[i, j] and pair["share"] == pytest.approx(counts[i, j] / counts[i].sum())
        rows = (p.labels == i) & (p.predicted == j)
        assert pair["confidence"] == pytest.approx(np.median(p.confidence[rows]))
        assert pair["patients"] == len({p.groups[row] for row in np.flatnonzero(rows)})


def test_rows_of_a_pair_come_surest_first() -> None:
    p = draw()
    pairs = list(error_pairs(p))
    assert sorted(np.concatenate([rows for *_, rows in pairs])) == np.flatnonzero(p.predicted != p.labels).tolist()
    for *_, rows in pairs:
        assert len(rows) > 1 and (np.diff(p.confidence[rows]) <= 0).all()


def test_a_thousand_classes_and_none_wrong() -> None:
    told = mistakes(draw(1000, 500, groups=False))
    assert len(told["pairs"]) == 20
    assert told["further"] + sum(pair["n"] for pair in told["pairs"]) == told["n"]
    assert told["pairs"][0]["patients"] is None
    perfect = Predictions(("a", "b"), ("x", "y"), None, np.array([0, 1]), np.eye(2, dtype=np.float32))
    assert mistakes(perfect) == Mistakes(n=0, of=2, pairs=[], further=0)
    none = Predictions(("a", "b"), (), None, np.zeros(0, np.int64), np.zeros((0, 2), np.float32))
    assert mistakes(none) is None


LABELS = [  # edema, effusion, mass
    [1, 1, 0],
    [1, 0, 0],
    [1, 0, UNKNOWN],
    [0, 1, 0],
    [0, 0, 0],
    [0, 0, UNKNOWN],
]
CALLS = [[1, 1, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 1, 1]]


def drawn(groups: tuple[str, ...] | None = ("P", "P", "P", "Q", "R", "R")) -> FindingPredictions:
    logits = 2 * np.array(CALLS, np.float32) - 1
    paths = tuple(map(str, range(6)))
    return FindingPredictions(("edema", "effusion", "mass"), paths, groups, np.array(LABELS, np.int8), logits)


def test_what_occurs_together() -> None:
    """Four images count for mass, which none has: its two calls are in images in which it is unknown."""
    found = co_occurrence(drawn())
    assert found.known == [[6, 6, 4], [6, 6, 4], [4, 4, 4]]
    assert found.truth == [[3, 1, 0], [1, 2, 0], [0, 0, 0]]
    assert found.calls == [[2, 2, 0], [2, 4, 0], [0, 0, 0]]
    assert found.truth_share == [[1, pytest.approx(1 / 3), 0], [0.5, 1, 0], [None, None, None]]
    assert found.calls_share == [[1, 1, 0], [0.5, 1, 0], [None, None, None]]
    assert CoOccurrence.model_validate(found.to_dict()) == found


def test_errors_of_each_finding() -> None:
    found = finding_errors(drawn())
    counts = [
        (one.finding, one.hits, one.misses, one.false_calls, one.right_absent, one.unknown) for one in found.findings
    ]
    assert counts == [("edema", 2, 1, 0, 3, 0), ("effusion", 1, 1, 3, 1, 0), ("mass", 0, 0, 0, 4, 2)]
    assert FindingErrors.model_validate(found.to_dict()) == found


def test_the_worst_images_are_those_furthest_on_the_wrong_side() -> None:
    """Edema is missed in row 2; effusion is missed in row 4 and called in 2, 3 and 6, of which 3 is the surest."""
    p = drawn()
    p.logits[:, 1] = [1, 0.5, 2, -1, -1, 0.7]
    edema, effusion, _ = finding_errors(p).findings
    assert (edema.worst_misses, edema.worst_false_calls) == ([2], [])
    assert (effusion.worst_misses, effusion.worst_false_calls) == ([4], [3, 6, 2])


def test_a_false_call_names_the_finding_that_is_there() -> None:
    """Effusion is called in both images with edema and without effusion, in one of them instead of edema."""
    (pair,) = finding_errors(drawn()).pairs
    assert (pair.called, pair.present, pair.n, pair.of, pair.share) == ("effusion", "edema", 2, 2, 1)
    assert (pair.otherwise, pair.missed, pair.patients) == (0.5, 1, 1)  # in one of the two images without either
    assert finding_errors(drawn(groups=None)).pairs == [pair.model_copy(update={"patients": None})]


def test_false_calls_are_in_order_of_what_is_not_usual() -> None:
    """c is called in all images: no more often beside a. b is called in 8 of 10 with a, and in 1 of 10 without."""
    labels = np.zeros((20, 3), np.int8)
    labels[:10, 0] = 1
    calls = np.zeros((20, 3))
    calls[:8, 1] = calls[10, 1] = calls[:, 2] = 1
    p = FindingPredictions(tuple("abc"), tuple(map(str, range(20))), None, labels, np.float32(calls - 0.5))
    (pair,) = finding_errors(p).pairs
    assert (pair.called, pair.present, pair.share, pair.otherwise, pair.missed) == ("b", "a", 0.8, 0.1, 8)


def test_images_without_findings() -> None:
    """Two images; effusion is called in one of them, mass where it is not known, which does not count."""
    found = finding_errors(drawn()).without
    assert found.n == 2 and found.specificity.value == 0.5 and found.called == {"effusion": 1}


def test_nothing_is_known_without_labels_and_of_no_image() -> None:
    for function in (co_occurrence, finding_errors):
        with pytest.raises(DataError, match="have no labels"):
            function(replace(drawn(), labels=None))
    none = drawn().take(np.arange(0))
    assert co_occurrence(none).truth == [[0] * 3] * 3 and co_occurrence(none).truth_share == [[None] * 3] * 3
    assert finding_errors(none).pairs == [] and finding_errors(none).without.specificity.value is None
