"""Baselines: features and logistic regression against scikit-learn and hand-worked numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from small_networks import small_vit

from vitmed.core.base_models import UNKNOWN
from vitmed.data.loading import Images
from vitmed.data.samples import Sample
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.training.baselines import (
    C_VALUES,
    colour_and_size,
    fit_finding_head,
    fit_head,
    fit_number_head,
    frozen_features,
)


def blobs(classes: int, count: int, seed: int, shift: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """(S, 5) features of scales far apart, (S,) labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    x = rng.normal(size=(count, 5))
    x[:, 0] += shift * labels
    return (x * [1, 100, 0.01, 1, 1] + [0, 1000, 0, 0, 5]).astype(np.float32), labels


@pytest.mark.parametrize("classes", [2, 3])
def test_the_head_gives_the_probabilities_of_a_standardised_logistic_regression(classes: int) -> None:
    train, val = blobs(classes, 120, 0), blobs(classes, 60, 1)
    head = fit_head(train, val, classes)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=head.C, max_iter=5000, tol=1e-8)).fit(*train)
    ours = torch.from_numpy(head.logits(val[0])).softmax(dim=1).numpy()
    np.testing.assert_allclose(ours, model.predict_proba(val[0]), atol=2e-3)
    assert head.weight.shape == (classes, 5) and head.bias.shape == (classes,)


def test_the_penalty_is_the_best_on_validation() -> None:
    train, val = blobs(2, 40, 0), blobs(2, 40, 1)
    head = fit_head(train, val, 2)
    losses = {}
    for C in C_VALUES:
        chances = (
            make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=5000)).fit(*train).predict_proba(val[0])
        )
        losses[C] = -np.log(chances[np.arange(40), val[1]]).mean()
    assert min(losses, key=lambda C: losses[C]) == head.C
    assert head.val_loss == pytest.approx(min(losses.values()), abs=1e-3)


def test_a_feature_that_never_changes_does_no_harm() -> None:
    (x, y), (x_val, y_val) = blobs(2, 40, 0), blobs(2, 40, 1)
    x[:, 3] = x_val[:, 3] = 7
    head = fit_head((x, y), (x_val, y_val), 2)
    assert np.isfinite(head.weight).all() and (head.logits(x_val).argmax(1) == y_val).mean() > 0.6


def test_a_finding_that_validation_does_not_know_gets_the_usual_penalty() -> None:
    """Chosen on the training images it would be the weakest; nor does their loss count as one of validation."""
    (x, y), (x_val, y_val) = blobs(2, 40, 0), blobs(2, 40, 1)
    both, unknown = np.stack([y, y], axis=1), np.stack([y_val, np.full(40, UNKNOWN)], axis=1)
    head = fit_finding_head((x, both), (x_val, unknown), 2)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1, max_iter=5000, tol=1e-8)).fit(x, y)
    ours = 1 / (1 + np.exp(-head.logits(x_val)[:, 1]))
    np.testing.assert_allclose(ours, model.predict_proba(x_val)[:, 1], atol=2e-3)
    assert head.val_loss == fit_head((x, y), (x_val, y_val), 2).val_loss


def test_the_scale_of_a_number_is_the_likeliest_for_its_gaussian() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)).astype(np.float32)
    y = x[:, 0] + rng.standard_t(3, size=300)
    location, log_scale = fit_number_head((x[:200], y[:200]), (x[200:], y[200:]), 2).logits(x[200:]).T
    assert np.exp(log_scale[0]) == pytest.approx(norm.fit(y[200:] - location, floc=0)[1], rel=1e-4)


def images_of(folder: Path, channels: int = 3) -> Images:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, :4] = [200, 100, 0]
    Image.fromarray(pixels).save(folder / "a.png")
    return Images(folder, [Sample("a.png", 0, None)], Preprocessing(8, channels, "squash", "half"))


def test_colours_and_size_by_hand(tmp_path: Path) -> None:
    (row,) = colour_and_size(images_of(tmp_path), "train")
    red, green, blue, size = row[:9], row[9:18], row[18:27], row[27:]
    assert size.tolist() == [8, 4]  # of the file, not of the square
    assert red[0] == pytest.approx(100, abs=1) and green[0] == pytest.approx(50, abs=1) and not blue.any()
    assert red[1] == pytest.approx(100, abs=12)  # half at 200, half at 0, the border between blurred
    assert red[2:5].tolist() == [0, 0, 0] and red[-3:].tolist() == [200, 200, 200]


def test_features_are_what_the_head_sees(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = images_of(tmp_path)
    for pool in ("cls", "mean"):
        model = small_vit(3, image_size=8, patch_size=4, width=16, depth=1, heads=2, pool=pool).eval()
        features = frozen_features(model, images, "train")
        x = images.preprocessing.normalise(torch.from_numpy(images.read(0).copy())[None])
        with torch.inference_mode():
            torch.testing.assert_close(model.head(torch.from_numpy(features)), model(x))
