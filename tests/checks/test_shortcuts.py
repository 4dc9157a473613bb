"""What a label can be predicted from without anatomy: by whole patients where they are known, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitmed.checks.shortcuts import divide, find_shortcuts, held_out
from vitmed.imaging.file_record import FileRecord
from vitmed.imaging.raw_image import ImageHeader


@pytest.mark.parametrize(
    ("patients", "known", "folds"),
    [((8, 6), True, 5), ((8, 3), True, 3), ((8, 6), False, 5), ((8, 1), True, 5), ((8, 6, 2), True, 2)],
)
def test_scores_are_of_images_or_patients_held_out(patients: tuple[int, ...], known: bool, folds: int) -> None:
    """Five folds, fewer where a class has fewer patients; by image where a class has one patient, or none is known."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(sum(patients)), 6)
    y = np.repeat(np.arange(len(patients)), patients)[codes]
    x = rng.normal(size=(sum(patients), 3))[codes] + rng.normal(size=(len(y), 3)) / 10  # what tells patients apart
    whole = known and min(patients) > 1
    solver = "newton-cholesky" if len(patients) == 2 else "lbfgs"
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300, solver=solver))
    cut = (StratifiedGroupKFold if whole else StratifiedKFold)(folds, shuffle=True, random_state=0)
    expected = cross_val_predict(model, x, y, groups=codes if whole else None, cv=cut, method="predict_proba")
    divided, by_patient = divide(y, [f"P{code}" for code in codes] if known else None)
    scores = held_out(x, y, divided)
    np.testing.assert_allclose(scores, expected)
    assert by_patient == whole


def test_a_label_that_the_size_of_the_image_gives_away() -> None:
    """Healthy images are narrower or wider than sick ones; noise in all else. Nine images of a class are left out, and
    then there is only one."""
    rng, labels = np.random.default_rng(0), np.repeat([0, 1], [120, 60])
    records = [
        FileRecord(
            size=int(rng.integers(900, 1100)),
            header=ImageHeader("PNG", "RGB", 8, 96 if label else 64 + 64 * (i % 2), 64, 1, 1),
            numbers=rng.random(8).astype(np.float32),
        )
        for i, label in enumerate(labels)
    ]
    found = {shortcut.family: shortcut for shortcut in find_shortcuts(records, labels, None)}
    assert set(found) == {"geometry", "file", "colour", "border", "all"}  # all have one format
    assert (found["geometry"].auroc, found["geometry"].high, found["geometry"].images) == (1, 1, 180)
    low = found["geometry"].low  # Newcombe's method 5 for 120 and 60 images without an error
    variance = low * (1 - low) * (1 + 89 * (1 - low) / (2 - low) + 89 * low / (1 + low)) / 7200
    assert 1 - low == pytest.approx(1.96 * variance**0.5, rel=1e-3)
    colour = found["colour"]
    assert colour.low < 0.5 < colour.high and not colour.by_patient
    numbers = np.array([record.numbers[:3] for record in records if record.numbers is not None], np.float64)
    features = np.concatenate([numbers, (numbers - numbers.mean(axis=0)) ** 2], axis=1)
    scores = held_out(features, labels, divide(labels, None)[0])[:, 1]
    drawn = [roc_auc_score(labels[r], scores[r]) for r in rng.integers(180, size=(400, 180))]  # a bootstrap by image
    assert colour.auroc == pytest.approx(roc_auc_score(labels, scores))
    assert colour.high - colour.low == pytest.approx(np.diff(np.quantile(drawn, [0.025, 0.975]))[0], rel=0.15)
    assert find_shortcuts(records[:129], labels[:129], None) == []
