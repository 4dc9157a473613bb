"""What occurs together and what is called wrongly: worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
from vitmed.metrics.kinds.findings import FindingPredictions

from vitmed.core.errors import DataError
from vitmed.core.targets import UNKNOWN
from vitmed.metrics.confusions import CoOccurrence, FindingErrors, co_occurrence, finding_errors

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
