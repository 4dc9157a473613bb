"""The out-of-distribution score against scikit-learn, its size in a checkpoint, and what it notices."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from vitmed.decisions.out_of_distribution import OodScore, detection_auroc, fit_ood_score, report_ood_scores, scores_of
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import OOD_SCORE


def features(rng: np.random.Generator, size: int, width: int = 8, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(3, size=size)
    mixed = rng.normal(size=(size, width)) @ np.random.default_rng(9).normal(size=(width, width))
    return (mixed + 6 * np.eye(3, width)[labels] + shift).astype(np.float32), labels


def known(width: int = 8, size: int = 1500) -> OodScore:
    rng = np.random.default_rng(0)
    found = fit_ood_score(*features(rng, size, width), features(rng, 1000, width)[0])
    assert found is not None
    return found


def test_it_is_the_mahalanobis_distance_to_the_nearest_class() -> None:
    from sklearn.covariance import LedoitWolf

    rng = np.random.default_rng(0)
    (x, y), (v, _), (t, _) = features(rng, 1500), features(rng, 1000), features(rng, 50)
    means = np.stack([x[y == c].mean(axis=0) for c in range(3)]).astype(float)
    spread = LedoitWolf(assume_centered=True).fit(x - means[y])

    def distance(part: np.ndarray) -> np.ndarray:
        return np.sqrt(np.min([spread.mahalanobis(part - mean) for mean in means], axis=0))

    edge = np.quantile(distance(v), 0.99)
    ours = fit_ood_score(x, y, v)
    assert ours.score(t) == pytest.approx(distance(t) / edge, rel=5e-3)
    assert (ours.score(v) > 1).mean() <= 0.01


def test_new_images_of_the_same_kind_are_rarely_called_unlike_and_others_are() -> None:
    rng, found = np.random.default_rng(5), known()
    assert (found.score(features(rng, 4000)[0]) > 1).mean() == pytest.approx(0.01, abs=0.008)
    assert (found.score(features(rng, 500, shift=30.0)[0]) > 1).mean() > 0.9


@pytest.mark.parametrize("size", [25, 99, 150, 250, 1000])
def test_a_new_image_of_the_same_kind_is_called_unlike_in_at_most_a_hundredth_of_the_cases(size: int) -> None:
    """A new score is equally likely to have each rank among n + 1, so the limit is the score of rank 0.99 (n + 1).

    Below 200 images it is the largest, as docs/decisions.md and the report say.
    """
    rng = np.random.default_rng(1)
    validation = features(rng, size)[0]
    scores = np.sort(fit_ood_score(*features(rng, 300), validation).score(validation))
    rank = min(size, math.ceil(0.99 * (size + 1) - 1e-9))
    assert scores[rank - 1] == pytest.approx(1, abs=1e-6) and (rank == size) is (size < 200)


@pytest.mark.parametrize(
    ("means", "precision"),
    [((3, 8), 35), ((3, 8), None), (None, 36), ((8,), 36), ((3, 0), 0), ((3, 7), 36)],
)
def test_a_damaged_score_is_refused(means: tuple[int, ...] | None, precision: int | None) -> None:
    """Of features of width 8 the lower triangle has 36 numbers."""
    sizes = {"means": means, "precision": precision}
    arrays = {name: None if size is None else np.ones(size, np.float32) for name, size in sizes.items()}
    OodScore(n=20, scale=1.0, means=np.ones((3, 8), np.float32), precision=np.ones(36, np.float32))
    left_out = OodScore(n=20, scale=1.0)  # as in metrics.json
    assert OodScore.model_validate(left_out.model_dump()) == left_out
    with pytest.raises(ValueError, match="do not fit each other, or one is missing"):
        OodScore(n=20, scale=1.0, **arrays)


def test_it_is_small_in_a_checkpoint() -> None:
    rng = np.random.default_rng(0)
    found = fit_ood_score(rng.normal(size=(2000, 768)), rng.integers(10, size=2000), rng.normal(size=(100, 768)))
    assert found.means.nbytes + found.precision.nbytes < 1_300_000


def test_what_cannot_be_fitted() -> None:
    rng = np.random.default_rng(0)
    x, y = features(rng, 30)
    assert fit_ood_score(x[:10], y[:10], x) is None
    assert fit_ood_score(x[:19], y[:19], x) is None and fit_ood_score(x[:20], y[:20], x).n == 20
    assert fit_ood_score(np.ones((30, 4)), y, np.ones((5, 4))) is None
    assert fit_ood_score(x, y, x[:0]) is None
    few = fit_ood_score(x, y, x[:5])  # more features than a class has images: the covariance is shrunk
    assert np.isfinite(few.score(x)).all()


def test_a_thousand_classes_have_one_mean() -> None:
    rng = np.random.default_rng(0)
    found = fit_ood_score(rng.normal(size=(2000, 4)), rng.integers(1000, size=2000), rng.normal(size=(50, 4)))
    assert found.means.shape == (1, 4)


def scored(scores: np.ndarray) -> Predictions:
    size = len(scores)
    labels, cells = np.arange(size) % 2, tuple(f"{score:.6g}" for score in scores)
    logits = np.eye(2, dtype=np.float32)[np.where(scores > 1, 1 - labels, labels)]  # every unlike one is wrong
    return Predictions(("a", "b"), ("x",) * size, None, labels, logits, columns={OOD_SCORE: cells})


def test_the_report_against_scikit_learn() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    scores, others = rng.lognormal(-0.6, 0.3, 300), rng.lognormal(0.2, 0.4, 100)
    p = scored(scores)
    detection = detection_auroc(scores, None, others)
    truth = np.repeat([0, 1], [300, 100])
    assert detection.value == pytest.approx(roc_auc_score(truth, np.concatenate([scores, others])), abs=1e-4)
    assert detection.low < detection.value < detection.high
    found = report_ood_scores(p, OodScore(n=50, scale=1.0))
    assert found["flagged"]["value"] == pytest.approx((scores > 1).mean())
    assert found["error_rate_above"]["value"] == 1 and found["error_rate_below"]["value"] == 0


@pytest.mark.parametrize("images", [1, 5])
def test_the_interval_of_the_detection_counts_every_patient_once(images: int) -> None:
    """That of an evaluation of both together, where the patients of other images have names of their own."""
    rng = np.random.default_rng(0)
    scores, others = rng.lognormal(-0.6, 0.3, 60), rng.lognormal(-0.2, 0.4, 40)
    groups, other_groups = (tuple(f"P{i // images}" for i in range(n)) for n in (60, 40))
    found = detection_auroc(scores, groups, others, other_groups)
    owner = (*groups, *(f"other {name}" for name in other_groups))
    both = np.concatenate([scores, others])
    logits = np.stack([np.zeros(100), both], axis=1).astype(np.float32)
    labels = np.repeat([0, 1], [60, 40])
    whole = Predictions(("own", "other"), ("x",) * 100, owner, labels, logits, positive="other")
    expected = evaluate_predictions(whole).overall["auroc"]
    assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_the_shares_above_by_hand() -> None:
    scores = np.array([0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.0])
    found = report_ood_scores(scored(scores), OodScore(n=50, scale=1.0))
    assert (found.n, found.n_above) == (50, 2) and found.flagged.value == 0.25
    unknown = replace(scored(scores), labels=None)
    assert report_ood_scores(unknown, OodScore(n=50, scale=1.0)).error_rate_above is None


@pytest.mark.parametrize("unit", [1e-3, 1e4])
def test_the_unit_of_the_features_does_not_matter(unit: float) -> None:
    rng = np.random.default_rng(2)
    (x, y), (v, _), (t, _) = features(rng, 200), features(rng, 100), features(rng, 20)
    assert fit_ood_score(unit * x, y, unit * v).score(unit * t) == pytest.approx(
        fit_ood_score(x, y, v).score(t), rel=1e-3
    )


def test_twenty_training_images_are_enough_and_a_hundred_classes_have_their_own_means() -> None:
    rng = np.random.default_rng(0)
    x, y = features(rng, 20)
    assert fit_ood_score(x[:19], y[:19], x) is None and fit_ood_score(x, y, x).n == 20
    labels = np.arange(202) % 101
    values = rng.normal(size=(202, 4))
    assert fit_ood_score(values, labels % 100, values).means.shape == (100, 4)
    assert fit_ood_score(values, labels, values).means == pytest.approx(values.mean(axis=0)[None], abs=1e-6)


def test_without_scores_there_is_nothing_to_say() -> None:
    p = scored(np.ones(4))
    assert report_ood_scores(replace(p, columns={}), OodScore(n=5, scale=1.0)) is None
    assert report_ood_scores(p, None) is None


@pytest.mark.parametrize("cell", ["a word", "", "nan", "inf"])
def test_a_table_with_another_score_has_none(cell: str) -> None:
    """Somebody edited the table."""
    p = replace(scored(np.ones(4)), columns={OOD_SCORE: ("0.5", "2", "1", cell)})
    assert scores_of(p) is None and report_ood_scores(p, OodScore(n=5, scale=1.0)) is None
