"""Errors counted by pair of classes."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from vitmed.metrics.confusions import Mistakes, error_pairs, mistakes
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
