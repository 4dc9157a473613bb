"""A model that says nearly the same of every image is never praised, whatever the kind of label."""

import html
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Trained, recording
from reports import write_report

from vitmed.core.base_models import Target
from vitmed.core.config import EvaluateConfig
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.report.headline import Evaluation, report_evaluation
from vitmed.studies.one_run import TrainResult

KL = ("KL0", "KL1", "KL2", "KL3", "KL4")
SIZE = 400
PATHS = tuple(f"{i}.png" for i in range(SIZE))


def grades(right: float = 0.0) -> Predictions:
    """What the knees of a short run looked like: all but one image in one grade; or a share of them right."""
    rng = np.random.default_rng(0)
    labels = rng.choice(5, SIZE, p=(0.38, 0.18, 0.26, 0.13, 0.05))
    logits = np.where(np.arange(5) == 0, 1.0, rng.normal(0, 0.1, (SIZE, 5)))
    logits[0, 2] += 3
    known = rng.random(SIZE) < right
    logits[known, labels[known]] += 5
    return Predictions(KL, PATHS, None, labels, logits.astype(np.float32))


def findings(shift: float = -3.0) -> FindingPredictions:
    """What the chests of a short run looked like: the AUROC is above 0.5, and nothing reaches its threshold."""
    rng = np.random.default_rng(0)
    labels = (rng.random((SIZE, 3)) < (0.2, 0.1, 0.05)).astype(np.int8)
    logits = rng.normal(0, 0.2, (SIZE, 3)) + labels * 1.0 + shift
    return FindingPredictions(("edema", "effusion", "mass"), PATHS, None, labels, logits.astype(np.float32))


def ages(learned: float = 0.0) -> NumberPredictions:
    rng = np.random.default_rng(0)
    truth = rng.normal(50, 10, SIZE)
    place = rng.normal(0, 0.1, SIZE) + learned * (truth - 50) / 10
    logits = np.stack([place, np.zeros(SIZE)], axis=1).astype(np.float32)
    target = Target(kind="number", unit="years", centre=50, spread=10)
    return NumberPredictions(("age",), PATHS, None, truth, logits, target=target)


NOTHING = {
    "classes": (grades(), "399 of 400 images are predicted as 'KL0': the model does not distinguish the classes"),
    "grades": (grades(), "399 of 400 images are predicted as 'KL0': the model does not distinguish the classes"),
    "findings": (findings(), "No finding is called: the model finds 0 of "),
    "number": (ages(), "one number for all images would be about as good, so the model does not predict it"),
    "worse": (ages(-0.8), "one number for all images would be better, so the model does not predict it"),
}


def page(folder: Path, predictions: Predictions, kind: str) -> tuple[list[str], str, list[str]]:
    """The notes of metrics.json, the text of the page down to its first table, and the warnings of the terminal."""
    config, ui = EvaluateConfig(resamples=0, ordinal=list(KL) if kind == "grades" else []), recording()
    metrics = write_report(folder, predictions, title="test", facts={}, config=config)
    report_evaluation(Evaluation(predictions, metrics, folder), {})
    text = html.unescape((folder / "report.html").read_text())
    head = text[text.index("<body") :][:8000]
    return json.loads((folder / "metrics.json").read_text())["notes"], head, ui.warned


@pytest.mark.parametrize("kind", NOTHING)
def test_a_run_that_learnt_nothing_is_named_first(kind: str, tmp_path: Path, no_figures: None) -> None:
    predictions, said = NOTHING[kind]
    notes, head, warned = page(tmp_path / "report", predictions, kind)
    assert said in notes[0]
    assert notes[0] in head  # the first screen shows the first note
    assert notes[0] in warned


@pytest.mark.parametrize(
    ("kind", "predictions"),
    [("classes", grades(0.4)), ("grades", grades(0.4)), ("findings", findings(-0.5)), ("number", ages(0.8))],
)
def test_a_weak_model_is_none(kind: str, predictions: Predictions, tmp_path: Path, no_figures: None) -> None:
    notes, _, _ = page(tmp_path / "report", predictions, kind)
    assert not any("does not distinguish" in note or "as good" in note for note in notes)


def test_nor_is_a_rare_class_that_is_half_found(tmp_path: Path, no_figures: None) -> None:
    """98 % of the images are healthy, and 99 % are called so."""
    labels = (np.arange(SIZE) < 8).astype(np.int64)
    logits = np.zeros((SIZE, 2), np.float32)
    logits[:, 1] = np.where(np.arange(SIZE) < 4, 1, -1)
    notes, _, _ = page(tmp_path / "report", Predictions(("healthy", "ill"), PATHS, None, labels, logits), "classes")
    assert not any("does not distinguish" in note for note in notes)


@pytest.mark.slow
def test_runs_that_learned_are_left_in_peace(
    trained: Trained, findings: TrainResult, ages: TrainResult, graded: TrainResult
) -> None:
    for result in (trained.result, findings, ages, graded):
        assert result.test is not None
        notes = result.test.metrics.notes
        assert not any("does not distinguish" in note or "as good" in note for note in notes), notes
