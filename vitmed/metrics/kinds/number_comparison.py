"""Two models of one number on the same images: the differences of their errors, and the tests of no difference."""

from __future__ import annotations

from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.number import NumberPredictions, evaluate_number
from vitmed.metrics.kinds.number_scoring import of_sums, summands
from vitmed.metrics.paired_comparison import PairedComparison, check_alike, gap_of, jackknifed_gaps

TESTED = ("mae", "rmse", "r2", "ccc")


def compare_numbers(
    predictions: NumberPredictions, other: NumberPredictions, resamples: int = 2000
) -> PairedComparison:
    """The numbers of the other model, and the differences, first minus other, on the same images.

    Each interval and test is by `jackknifed_gaps`. The median absolute error is left out: it is no function of sums.

    Args:
        predictions, other: with one `Target.centre` and `Target.spread`, else log scores are not comparable.
        resamples: only recorded: no interval here needs any.

    Raises:
        DataError: not the same images, labels or number; or no labels.
    """
    check_alike(predictions, other)
    own, theirs = (evaluate_number(one, resamples).overall for one in (predictions, other))
    found = jackknifed_gaps(summands(predictions), summands(other), of_sums, Units(predictions.units))
    shared = (name for name in own if name in theirs and name in found)
    difference = {name: gap_of(own[name], theirs[name], found[name]) for name in shared}
    return PairedComparison(overall=theirs, difference=difference, tests={name: found[name][1] for name in TESTED})
