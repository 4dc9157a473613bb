"""Other images beside the run's own test: differences against a published example, and what is said of a run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Trained, draw_classes, draw_nothing, recording
from sklearn.metrics import roc_auc_score

from vitmed import evaluate
from vitmed.core.config import EvaluateConfig
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import OOD_SCORE
from vitmed.report.analyses import Extra, Material, compare_with_own_test
from vitmed.report.results import Beside


def of(found: int, positives: int, kept: int, negatives: int, scores: np.ndarray | None = None) -> Predictions:
    """So many of the positives called positive, and of the negatives negative."""
    labels = np.repeat([1, 0], [positives, negatives])
    called = np.concatenate([np.arange(positives) < found, np.arange(negatives) >= kept])
    logits = np.stack([np.zeros(len(labels)), np.where(called, 2.0, -2.0)], axis=1).astype(np.float32)
    columns = {} if scores is None else {OOD_SCORE: tuple(map(str, scores))}
    paths = tuple(f"{i}.png" for i in range(len(labels)))
    return Predictions(("healthy", "ill"), paths, None, labels, logits, columns=columns)


def compared(own: Predictions, other: Predictions) -> dict:  # type: ignore[type-arg]
    config, extra = EvaluateConfig(resamples=50), Extra(internal=own)
    found = compare_with_own_test(Material(other, evaluate_predictions(other), config, extra))
    json.dumps(found.to_dict(), allow_nan=False)
    return found


def test_newcombes_example() -> None:
    """Stat. Med. 17 (1998) 873, table II, example (a): 56 / 70 - 48 / 80 = 0.2, by method 10 0.0524 to 0.3339."""
    found = compared(of(48, 80, 30, 50), of(56, 70, 20, 50))
    gap = found["numbers"]["sensitivity"]["difference"]
    assert gap["value"] == pytest.approx(0.2) and (gap["low"], gap["high"]) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert found["numbers"]["specificity"]["difference"]["value"] == pytest.approx(0.4 - 0.6)
    assert found["prevalence"] == Beside(internal=80 / 130, external=70 / 120) and found["n"] == 130


def test_a_shift_is_reported_by_the_out_of_distribution_scores() -> None:
    rng = np.random.default_rng(0)
    own, other = rng.random(40), rng.random(30) + 0.4
    found = compared(of(18, 20, 18, 20, own), of(13, 15, 12, 15, other))["shift"]
    truth = np.repeat([0, 1], [40, 30])
    assert found["auroc"]["value"] == pytest.approx(roc_auc_score(truth, np.concatenate([own, other])))
    assert found["auroc"]["low"] < found["auroc"]["value"] < found["auroc"]["high"]
    assert found["flagged"] == Beside(internal=0.0, external=(other > 1).mean())


def test_what_is_undefined_has_no_difference() -> None:
    found = compared(of(48, 80, 30, 50), of(56, 70, 0, 0))["numbers"]
    assert found["auroc"]["difference"]["value"] is None and found["specificity"]["external"]["value"] is None
    assert found["sensitivity"]["difference"]["low"] is not None
    assert found["balanced_accuracy"]["difference"]["value"] is None  # of one class it is another number
    assert compared(of(48, 80, 30, 50), of(56, 70, 0, 0))["absent"] == ["healthy"]
    p = of(1, 2, 1, 2)
    assert compare_with_own_test(Material(p, evaluate_predictions(p))) is None


def test_of_a_run(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder stands beside the run's own test; the report is made again with it."""
    draw_nothing(monkeypatch)
    run, ui = tmp_path / "run", recording()
    shutil.copytree(trained.folder, run)
    other = draw_classes(tmp_path / "other", 6, trained.result.test.predictions.classes, seed=9)
    test = next((trained.data / "test" / "blue").iterdir())
    shutil.copy(test, other / "blue" / "copy.png")
    found = evaluate(run / "best.pt", data=other, resamples=50)
    pair = found.metrics["external"]["numbers"]["accuracy"]
    assert pair["internal"]["value"] == trained.result.test.metrics["overall"]["accuracy"]["value"]
    assert pair["external"] == found.metrics["overall"]["accuracy"]
    assert any("on the run's own test set: AUROC" in text for text in ui.said)
    assert any("1 of 19 images is also in the run's own test" in text for text in ui.warned)
    html = (found.folder / "report.html").read_text(encoding="utf-8")
    assert "Comparison with the run's own test" in html.replace("&#39;", "'")
    again = evaluate(found.folder / "predictions.csv", output=tmp_path / "again")
    assert again.metrics["external"] == found.metrics["external"]
    shutil.copytree(found.folder, tmp_path / "elsewhere")
    far = evaluate(tmp_path / "elsewhere" / "predictions.csv", output=tmp_path / "far")
    assert far.metrics["external"] == found.metrics["external"]
    assert "external" not in trained.result.test.metrics
    evaluate(run / "best.pt", data=other, resamples=50, ordinal=["amber", "blue", "green"], output=tmp_path / "grades")
    assert any("on the run's own test set: quadratic kappa" in text for text in ui.said)  # what decides of grades
