"""Errors counted by pair of classes."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from vitmed.core.base_models import UNKNOWN
from vitmed.core.errors import DataError
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.mistakes import (
    FindingErrors,
    LabelErrors,
    Mistakes,
    class_thresholds,
    error_pairs,
    find_suspects,
    finding_errors,
    issues_csv,
    label_errors,
    mistakes,
)
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


def test_images_without_findings() -> None:
    """Two images; effusion is called in one of them, mass where it is not known, which does not count."""
    found = finding_errors(drawn()).without
    assert found.n == 2 and found.specificity.value == 0.5 and found.called == {"effusion": 1}


def test_nothing_is_known_without_labels_and_of_no_image() -> None:
    with pytest.raises(DataError, match="have no labels"):
        finding_errors(replace(drawn(), labels=None))
    none = drawn().take(np.arange(0))
    assert finding_errors(none).without.specificity.value is None


def said(probabilities: list[list[float]], labels: list[int]) -> Predictions:
    p = np.array(probabilities)
    classes = tuple("abcdefgh"[: p.shape[1]])
    paths = tuple(f"{i}, a.png" for i in range(len(p)))
    return Predictions(classes, paths, None, np.array(labels), np.log(p).astype(np.float32))


def test_by_hand_of_two_classes() -> None:
    """Thresholds: a (.9 + .8 + .1 + .45) / 4 = .5625, b (.9 + .7 + .2) / 3 = .6."""
    p = said(
        [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.45, 0.55], [0.1, 0.9], [0.3, 0.7], [0.8, 0.2]], [0, 0, 0, 0, 1, 1, 1]
    )
    assert class_thresholds(p) == pytest.approx([0.5625, 0.6])
    rows, suggested, scores = find_suspects(p)
    # row 3 is called b, but with .55 not as surely as an image of b is; so it is an error and no suspect
    assert rows.tolist() == [2, 6] and suggested.tolist() == [1, 0]
    assert scores == pytest.approx([-0.8, -0.6])


def test_by_hand_where_two_classes_pass() -> None:
    """Row 3 (label a) passes for b (.4 >= .35) and c (.45 >= .425): the likelier is taken."""
    p = said([[0.8, 0.1, 0.1], [0.2, 0.35, 0.45], [0.2, 0.4, 0.4], [0.15, 0.4, 0.45]], [0, 1, 2, 0])
    assert class_thresholds(p) == pytest.approx([0.475, 0.35, 0.4])
    rows, suggested, scores = find_suspects(p)
    assert dict(zip(rows.tolist(), suggested.tolist(), strict=True))[3] == 2
    assert scores[0] == pytest.approx(0.15 - 0.45)


def test_flipped_labels_are_found() -> None:
    """Written digits with some labels flipped, evaluated by models that learned from the flipped ones, out of fold."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    rng = np.random.default_rng(0)
    images, truth = load_digits(return_X_y=True)
    images, truth = images[truth < 6] / 16, truth[truth < 6]
    flipped = rng.permutation(len(truth))[: round(0.1 * len(truth))]
    labels = truth.copy()
    labels[flipped] = (truth[flipped] + rng.integers(1, 6, len(flipped))) % 6
    model = LogisticRegression(C=0.1, max_iter=500)
    p = cross_val_predict(model, images, labels, cv=4, method="predict_proba")
    rows, suggested, _ = find_suspects(said(p.tolist(), labels.tolist()))
    alike = said([[0.4, 0.6]] * 7, [1] * 6 + [0])  # the mean of six 0.6 is 1e-16 more
    assert find_suspects(alike)[0].tolist() == [6]
    hits = np.isin(rows, flipped)
    assert hits.sum() / len(flipped) > 0.55 and hits.mean() > 0.85  # of the flipped, and of the suspects
    assert hits[: len(hits) // 2].mean() >= hits.mean()  # the first ones are the surest
    right = suggested[hits] == truth[rows[hits]]
    assert right.mean() > 0.9


def test_what_is_told_counts_from_one_and_ends_in_the_table() -> None:
    six = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.1, 0.9], [0.3, 0.7], [0.8, 0.2]]
    sure = [[0.75, 0.25]] * 10 + [[0.25, 0.75]] * 10  # else the model would not be better than chance
    p = said(six + sure, [0, 0, 0, 1, 1, 1] + [0] * 10 + [1] * 10)
    told = label_errors(p, evaluate_predictions(p))
    assert told["n"] == 2 and told["of"] == 26
    table = list(csv.reader(io.StringIO(issues_csv(p), newline="")))
    assert tuple(table[0]) == ("row", "path", "label", "suggested", "score")
    assert [row[:4] for row in table[1:]] == [["3", "2, a.png", "a", "b"], ["6", "5, a.png", "b", "a"]]
    assert [float(row[4]) for row in table[1:]] == pytest.approx([-0.8, -0.6])


def test_a_class_without_images_has_no_threshold_and_its_neighbours_keep_theirs() -> None:
    p = said([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.5, 0.2, 0.3]], [0, 2, 0])
    assert class_thresholds(p) == pytest.approx([0.6, np.inf, 0.7])


def test_nothing_to_doubt() -> None:
    one = said([[0.9, 0.1], [0.2, 0.8]], [0, 0])
    assert label_errors(one, evaluate_predictions(one)) == LabelErrors(of=2, reason="all images have the label 'a'")
    sure = said([[0.9, 0.1]] * 9 + [[0.1, 0.9]] * 9, [0] * 9 + [1] * 9)
    none = Predictions(("a", "b"), (), None, np.zeros(0, np.int64), np.zeros((0, 2), np.float32))
    assert label_errors(none, evaluate_predictions(sure)) is None and len(find_suspects(none)[0]) == 0
    assert label_errors(sure, evaluate_predictions(sure)) == LabelErrors(n=0, of=18)
    constant = said([[0.5, 0.5]] * 4, [0, 0, 1, 1])  # no class is likelier than the label
    assert len(find_suspects(constant)[0]) == 0


@pytest.mark.parametrize("spread", [0.0, 1e-6, 0.3])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_model_that_guesses_doubts_no_label(classes: int, spread: float) -> None:
    """The same answer for every image, or one that has nothing to do with the image."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), [111, 89, 50][:classes])
    logits = np.linspace(1, 0, classes) + spread * rng.standard_normal((len(labels), classes))
    p = Predictions(("a", "b", "c")[:classes], tuple(map(str, labels)), None, labels, logits.astype(np.float32))
    told = label_errors(p, evaluate_predictions(p))
    assert len(find_suspects(p)[0]) > 50  # which is why it is not asked
    assert told is not None and told.n is None and "not shown to be better than chance (AUROC 0." in str(told.reason)


def test_a_class_without_images_does_not_make_the_model_one_that_guesses() -> None:
    """Its AUROC is undefined, and wrong labels of the others are found all the same; not with a model that guesses."""
    rng = np.random.default_rng(0)
    truth, flipped = rng.integers(3, size=120), [5, 50, 100]
    labels = truth.copy()
    labels[flipped] = (truth[flipped] + 1) % 3
    p = Predictions(tuple("abcd"), tuple(map(str, truth)), None, labels, 4 * np.eye(4, dtype=np.float32)[truth])
    assert evaluate_predictions(p).overall["auroc"].value is None
    told = label_errors(p, evaluate_predictions(p))
    assert told is not None and told.n == 3 and sorted(find_suspects(p)[0]) == flipped
    guessed = replace(p, logits=rng.normal(size=(120, 4)).astype(np.float32))
    told = label_errors(guessed, evaluate_predictions(guessed))
    assert told is not None and told.n is None and "not shown to be better than chance (MCC " in str(told.reason)


@pytest.mark.parametrize(("high", "doubts"), [(0.2, False), (3.0, True)])
def test_a_model_that_ranks_but_decides_by_guessing_doubts_no_label(high: float, doubts: bool) -> None:
    """Its AUROC lies above 0.5, and most of its decisions are wrong: each would be a label to look at."""
    rng = np.random.default_rng(4)
    labels = np.repeat(np.arange(5), 50)
    logits = high * np.eye(5)[labels] + rng.standard_normal((250, 5))
    p = Predictions(tuple("abcde"), tuple(map(str, range(250))), None, labels, logits.astype(np.float32))
    numbers = evaluate_predictions(p)
    assert numbers.overall["auroc"].low is not None and numbers.overall["auroc"].low > 0.5
    told = label_errors(p, numbers)
    assert told is not None and (told.n is not None) == doubts == ("by guessing" not in str(told.reason))


def test_a_class_without_images_is_never_suggested() -> None:
    p = said([[0.6, 0.1, 0.3], [0.1, 0.2, 0.7], [0.1, 0.8, 0.1]], [0, 0, 1])
    assert 2 not in find_suspects(p)[1]
