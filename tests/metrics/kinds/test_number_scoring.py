"""The numbers that judge a predicted quantity, against scikit-learn, scipy and numerical integration."""

from dataclasses import replace

import numpy as np
import pytest
from every_kind import number_values, redrawn
from scipy import integrate, stats
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from vitmed.core.base_models import Target
from vitmed.core.errors import DataError
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.kinds.number import NumberPredictions, PreparedNumbers, distribution_scores
from vitmed.metrics.metric_table import NUMBER_METRICS


def of(
    labels: list[float] | np.ndarray | None, values: list[float] | np.ndarray, scales: float = 1.0,
    reach: float | None = None, groups: tuple[str, ...] | None = None,
) -> NumberPredictions:  # fmt: skip
    """Predictions with a centre of 0 and a spread of 2."""
    logits = np.stack([np.asarray(values) / 2, np.full(len(values), np.log(scales / 2))], axis=1).astype(np.float32)
    target = Target(kind="number", spread=2.0)
    paths = tuple(f"{i}.png" for i in range(len(values)))
    return NumberPredictions(
        ("age",), paths, groups, None if labels is None else np.array(labels), logits, target=target, reach=reach
    )


def drawn(size: int = 300, reach: float | None = None) -> NumberPredictions:
    rng = np.random.default_rng(1)
    labels = rng.normal(50, 10, size)
    return of(labels, 5 + 0.8 * labels + rng.normal(0, 4, size), 3.0, reach=reach)


def test_the_values_are_those_of_scikit_learn_and_scipy() -> None:
    p = drawn(reach=1.5)
    y, x, found = p.labels, p.values, number_values(p)
    assert list(found) == list(NUMBER_METRICS)
    assert found["mae"] == pytest.approx(mean_absolute_error(y, x))
    assert found["rmse"] == pytest.approx(root_mean_squared_error(y, x))
    assert found["r2"] == pytest.approx(r2_score(y, x))
    assert found["pearson"] == pytest.approx(stats.pearsonr(y, x).statistic)
    assert found["bias"] == pytest.approx(x.mean() - y.mean())
    assert found["width"] == pytest.approx(9.0) and found["coverage"] == np.mean(np.abs(x - y) <= 4.5)
    assert np.isnan(number_values(drawn())["coverage"]) and np.isnan(number_values(drawn())["width"])


def test_concordance_by_hand() -> None:
    """Truth 1, 2, 3 and 2, 3, 4: covariance 2/3, variances 2/3 each, apart by 1: (4/3) / (4/3 + 1) = 4/7."""
    found = number_values(of([1, 2, 3], [2, 3, 4]))
    assert (found["ccc"], found["pearson"], found["r2"]) == pytest.approx((4 / 7, 1.0, -0.5))


@pytest.mark.parametrize("truth", [-4.0, 2.9, 3.0, 11.0])
def test_the_scores_of_a_distribution(truth: float) -> None:
    """CRPS is the integral of (F - 1[x >= truth])^2; the log score is that of the standardised number (spread 2)."""
    reference = stats.norm(3, 2.5)
    crps, log_score = distribution_scores(of([truth], [3.0], 2.5))
    below = integrate.quad(lambda x: reference.cdf(x) ** 2, -60, truth)[0]
    above = integrate.quad(lambda x: reference.sf(x) ** 2, truth, 60)[0]
    assert crps[0] == pytest.approx(below + above, rel=1e-5)
    assert log_score[0] == pytest.approx(-reference.logpdf(truth) - np.log(2), rel=1e-5)


def test_a_large_offset_costs_no_digits() -> None:
    """R2 and correlations of numbers around a million are those of the same numbers around 0."""
    rng = np.random.default_rng(4)
    labels = np.round(rng.normal(0, 8, 200))
    values = np.round(labels + rng.normal(0, 4, 200))
    near = number_values(of(labels, values))
    target = Target(kind="number", centre=2.0**20, spread=2.0)
    far = number_values(replace(of(labels, values), target=target, labels=labels + 2.0**20))
    assert all(far[name] == pytest.approx(near[name], rel=1e-9) for name in ("r2", "ccc", "pearson", "mae", "bias"))


def test_what_is_undefined() -> None:
    same = number_values(of([3.0, 3.0], [2.0, 4.0]))
    assert np.isnan(same["r2"]) and np.isnan(same["pearson"]) and same["ccc"] == 0 and same["mae"] == 1
    assert np.isnan(list(number_values(of([], [])).values())).all()
    with pytest.raises(DataError, match="no labels"):
        number_values(of(None, [1.0]))


def test_numbers_of_resamples_are_those_of_scikit_learn_with_weights() -> None:
    p, weights = drawn(), np.random.default_rng(1).integers(0, 4, (3, 300)).astype(float)
    found = redrawn(PreparedNumbers, p, weights)
    for r, weight in enumerate(weights):
        assert found["mae"][r] == pytest.approx(mean_absolute_error(p.labels, p.values, sample_weight=weight))
        assert found["bias"][r] == pytest.approx(np.average(p.values - p.labels, weights=weight))
    assert TARGETS["number"].guess(p) == pytest.approx(mean_absolute_error(p.labels, np.zeros(300)))  # the centre is 0
