"""What corruptions cost: the numbers of `vitmed stress`, from predictions of the same images, clean and corrupted.

The error is 1 - balanced accuracy. Mean corruption error is its plain mean over all corruptions and strengths
(Hendrycks & Dietterich 2019, section 4.2, without the division by AlexNet's errors, of which there are none on your
images); `relative` is the mean of error - clean error: what the corruptions add. Every resample draws the same images,
or patients, for the clean and all corrupted predictions, so that the intervals of differences are paired.

Letters: S images, K classes, R resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vitmed.core.text import counted
from vitmed.explanation.corruptions import CORRUPTIONS
from vitmed.explanation.results import CorruptionCost, Robustness, Strength
from vitmed.metrics.bootstrap import bootstrap_weights, percentile_interval
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.evaluation import evaluate_predictions
from vitmed.metrics.notes import FEW_GROUPS
from vitmed.metrics.predictions import Predictions, known_labels, positive_index
from vitmed.metrics.scoring import Scorer, metric_values

FOLDER, NUMBERS = "stress", "stress.json"  # beside the checkpoint
NAMES = ("accuracy", "balanced_accuracy", "auroc")
MANY = 30  # classes; with more, AUROC has no interval, which would take minutes

Drawn = dict[str, np.ndarray]  # name -> (1 + R,): the value itself, then of each resample


def measure_robustness(
    clean: Predictions, corrupted: Mapping[str, Sequence[Predictions]], resamples: int = 500, seed: int = 0
) -> Robustness:
    """The numbers of clean and corrupted images.

    Args:
        clean: with labels.
        corrupted: key in `CORRUPTIONS` -> predictions of the same images at strengths 1 to 5.

    Raises:
        DataError: the predictions have no labels.
    """
    labels, units, positive = known_labels(clean), clean.units, positive_index(clean)
    weights = np.ones((1, len(labels)))  # (1 + R, S): then how often each image was drawn
    if units.max(initial=0) > 0:
        weights = np.concatenate([weights, *bootstrap_weights(units, resamples, seed)])
    whole = _draw(clean, weights)
    drawn = {key: [_draw(p, weights) for p in part] for key, part in corrupted.items()}
    costs = {}
    for key, part in corrupted.items():
        numbers = [_numbers(p, own, resamples) for p, own in zip(part, drawn[key], strict=True)]
        costs[key] = _cost(key, whole, drawn[key], numbers)
    errors = [1 - one["balanced_accuracy"] for part in drawn.values() for one in part]
    error = np.mean(errors, axis=0) if errors else np.array([np.nan])
    found = Robustness(
        n=len(labels), n_groups=None if clean.groups is None else int(units.max(initial=-1)) + 1,
        resampling="by image" if clean.groups is None else "by patient",
        resamples=resamples if len(weights) > 1 else 0, level=0.95,
        classes=list(clean.classes), positive_class=None if positive is None else clean.classes[positive],
        clean=_numbers(clean, whole, resamples), corruptions=costs,
        mean_corruption_error=_estimate(error),
        relative=_estimate(error - (1 - whole["balanced_accuracy"]) if errors else error),
    )  # fmt: skip
    worst, sentence = _verdict(found)
    words = {"undefined": _undefined(found, labels), "worst": worst, "verdict": sentence, "notes": _notes(found)}
    return found.model_copy(update=words)


def _draw(predictions: Predictions, weights: np.ndarray) -> Drawn:
    """Numbers that need no ranking, for image weights (1 + R, S)."""
    return Scorer(known_labels(predictions), predictions).counted(weights)[0]


def _estimate(drawn: np.ndarray) -> Estimate:
    numbers = [float(drawn[0]), *percentile_interval(drawn[1:])]
    known = np.isfinite(numbers[0])
    value, low, high = (round(n, 12) + 0.0 if known and np.isfinite(n) else None for n in numbers)  # + 0.0: never -0
    return Estimate(value=value, low=low, high=high, method="percentile", resamples=len(drawn) - 1)


def _numbers(predictions: Predictions, drawn: Drawn, resamples: int) -> dict[str, Estimate]:
    """The numbers with the intervals of a report; with more than `MANY` classes, those of the resamples."""
    if len(predictions.classes) <= MANY:
        overall = evaluate_predictions(predictions, resamples=resamples).overall
        return {name: overall[name] for name in NAMES}
    auroc = np.array([metric_values(predictions)["auroc"]])
    return {name: _estimate(auroc if name == "auroc" else drawn[name]) for name in NAMES}


def _cost(
    key: str, clean: Drawn, strengths: Sequence[Drawn], numbers: Sequence[Mapping[str, Estimate]]
) -> CorruptionCost:
    what, name = CORRUPTIONS[key], "balanced_accuracy"
    rows = [
        Strength(strength=i, value=value, **own, lost=_estimate(clean[name] - drawn[name]))
        for i, (value, drawn, own) in enumerate(zip(what.values, strengths, numbers, strict=True), 1)
    ]
    mean = np.mean([drawn[name] for drawn in strengths], axis=0)
    words = {"title": what.title, "text": what.text, "source": what.source}
    return CorruptionCost(**words, strengths=rows, error=_estimate(1 - mean), lost=_estimate(clean[name] - mean))


def _verdict(found: Robustness) -> tuple[str | None, str]:
    """The corruption that hurts most, and a sentence."""
    parts = {key: part for key, part in found.corruptions.items() if part.lost.low is not None}
    if not parts:
        return None, "No corruption is shown to hurt: the loss has no interval."
    worst = max(parts, key=lambda key: parts[key].lost.value or 0.0)
    part, lost = parts[worst], parts[worst].lost
    fall = f"{lost.value:.3f} ({lost.low:.3f} to {lost.high:.3f})"
    spared = [other.title for other in parts.values() if other.lost.low is not None and other.lost.low <= 0]
    if part.title in spared:
        return None, f"No corruption is shown to lower balanced accuracy; the largest fall is {fall}, by {part.title}."
    clean, last = found.clean["balanced_accuracy"].value, part.strengths[-1].balanced_accuracy.value
    text = (
        f"{part.title} hurts most: balanced accuracy falls by {fall} on the mean of the five strengths, and from "
        f"{clean:.3f} to {last:.3f} at the strongest."
    )
    return worst, text + (f" No loss is shown for: {', '.join(spared)}." if spared else "")


def _undefined(found: Robustness, labels: np.ndarray) -> dict[str, str]:
    reasons = {}
    if len(np.unique(labels)) < 2:
        reasons["auroc"] = "all images are of one class" if len(labels) else "there are no images"
    elif len(found.classes) > MANY:
        reasons["auroc"] = f"no interval: there are more than {MANY} classes"
    if not found.resamples:
        reasons["intervals"] = f"they need two {'images' if found.n_groups is None else 'patients'} or more"
    return reasons


def _notes(found: Robustness) -> list[str]:
    """What a reader must know before believing the numbers."""
    notes = []
    balanced, chance = found.clean["balanced_accuracy"], 1 / max(1, len(found.classes))
    if balanced.low is not None and balanced.low <= chance < 1:
        notes.append("On the clean images the model is not shown to be better than guessing: there is little to lose.")
    if found.n_groups is None:
        notes.append("Patients are unknown: if they have several images each, the intervals are too narrow.")
    elif found.n_groups < FEW_GROUPS:
        notes.append(f"There are only {counted(found.n_groups, 'patient')}: the intervals themselves are unreliable.")
    return notes


def known_stress(run: Path, weights_hash: str) -> Robustness | None:
    """The newest stress test of these weights in a run folder; None where there is none."""
    files = sorted(run.glob(f"{FOLDER}*/{NUMBERS}"), key=lambda file: file.stat().st_mtime_ns)
    for file in reversed(files):
        try:
            found = Robustness.model_validate_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # a file that vitmed did not write
            continue
        if found.weights_sha256 == weights_hash:
            return found
    return None
