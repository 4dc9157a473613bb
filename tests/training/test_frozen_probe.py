"""Held-out predictions of frozen features: scikit-learn's own, and no patient on both sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Recorder, draw_classes, draw_patients
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitmed.core.data_config import DataConfig
from vitmed.core.errors import DataError
from vitmed.data.splits import make_splits
from vitmed.metrics.predictions import softmax
from vitmed.training import frozen_probe
from vitmed.training.baselines import C_VALUES, LEAST, NEIGHBOURS
from vitmed.training.frozen_probe import Pool, Round, describe_rounds, held_out_logits


def pool_of(root: Path, **settings: object) -> Pool:
    data = DataConfig(root=str(root), **settings)  # type: ignore[arg-type]
    return Pool(make_splits(data), data, Recorder())


def patients(root: Path) -> Path:
    """Twenty-one patients with images of both classes."""
    for part, first in enumerate(range(0, 21, 3)):
        draw_patients(root / f"part{part}", first, seed=part)
    for file in sorted(root.rglob("*.png")):
        target = root / file.parent.name / f"{file.parents[1].name}_{file.name}"
        target.parent.mkdir(exist_ok=True)
        file.rename(target)
    for part in range(7):
        for name in ("amber", "blue"):
            (root / f"part{part}" / name).rmdir()
        (root / f"part{part}").rmdir()
    return root


def check_rounds(pool: Pool, rounds: list[Round]) -> None:
    held = np.concatenate([one.held for one in rounds])
    assert len(set(held.tolist())) == len(held)
    for one in rounds:
        parts = [{pool.samples[row].group or pool.hashes[row] for row in rows} for rows in one]
        assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
        assert all(set(pool.labels[rows]) == set(range(len(pool.splits.classes))) for rows in one)


def test_every_image_is_held_out_once_and_no_patient_is_on_both_sides(tmp_path: Path) -> None:
    pool = pool_of(patients(tmp_path / "data"), group_regex=r"(P\d+)")
    rounds = pool.rounds(seed=3)
    check_rounds(pool, rounds)
    assert len(rounds) == 5 and sum(len(one.held) for one in rounds) == len(pool.samples)
    assert "5-fold cross-validation by patient" in describe_rounds(pool, rounds)
    test = {sample.path for sample in make_splits(pool.data).samples["test"]}
    assert test and not test & {sample.path for sample in pool.samples}


def test_a_large_validation_is_held_out_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_probe, "ENOUGH", 6)
    pool = pool_of(patients(tmp_path / "data"), group_regex=r"(P\d+)")
    rounds = pool.rounds(seed=0)
    check_rounds(pool, rounds)
    assert len(rounds) == 1 and rounds[0].held.tolist() == np.flatnonzero(pool.is_val).tolist()
    assert "validation images held out, by patient" in describe_rounds(pool, rounds)


def test_copies_stay_together_where_patients_are_unknown(tmp_path: Path) -> None:
    root = draw_classes(tmp_path / "data", 20)
    for file in sorted((root / "amber").glob("*.png")):
        file.with_name(f"again_{file.name}").write_bytes(file.read_bytes())
    pool = pool_of(root)
    check_rounds(pool, pool.rounds(seed=0))


@pytest.mark.parametrize("count", [1, 2])
def test_a_class_of_one_or_two_images_is_named(tmp_path: Path, count: int) -> None:
    for name in ("train", "val", "test"):
        draw_classes(tmp_path / name, 8, seed=len(name))
    for i, file in enumerate(sorted((tmp_path / "train" / "blue").iterdir())):
        if i >= 1:
            file.unlink()
    for i, file in enumerate(sorted((tmp_path / "val" / "blue").iterdir())):
        if i == 0 and count == 1:
            file.write_bytes(next((tmp_path / "train" / "blue").iterdir()).read_bytes())  # the same image again
        elif i >= 1:
            file.unlink()
    found = "1 image" if count == 1 else "2 images"
    with pytest.raises(DataError, match=f"class 'blue' has {found} outside the test, expected 3 or more") as error:
        pool_of(tmp_path).rounds(seed=0)
    assert error.value.fix.startswith("add images")


def test_the_predictions_are_those_of_scikit_learn() -> None:
    """The pipelines a user would write: standardised logistic regression, and neighbours weighted by similarity."""
    rng = np.random.default_rng(0)
    labels = np.arange(150) % 3
    features = (rng.normal(size=(150, 6)) + 1.2 * np.eye(3)[labels] @ rng.normal(size=(3, 6))).astype(np.float32)
    fold = rng.permutation(150) % 3
    rounds = [Round(*(np.flatnonzero(fold == (i + k) % 3) for k in range(3))) for i in range(3)]
    found = held_out_logits(features, labels, rounds, 3)
    for fit, choose, held in rounds:
        lines = [make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=5000)) for C in C_VALUES]
        near = [
            KNeighborsClassifier(k, metric="cosine", algorithm="brute", weights=lambda d: 1 / (d + 1e-3))
            for k in NEIGHBOURS
            if k <= len(fit)
        ]
        for name, models, tolerance in (("logistic", lines, 2e-3), ("neighbours", near, 1e-6)):
            for model in models:
                model.fit(features[fit], labels[fit])
            losses = [log_loss(labels[choose], least(model.predict_proba(features[choose]), name)) for model in models]
            expected = least(models[int(np.argmin(losses))].predict_proba(features[held]), name)
            np.testing.assert_allclose(softmax(found[name][held]), expected, atol=tolerance)


def least(chances: np.ndarray, name: str) -> np.ndarray:
    """A class without a neighbour has a small chance."""
    if name == "logistic":
        return chances
    chances = np.maximum(chances, LEAST)
    return chances / chances.sum(axis=1, keepdims=True)
