"""What corruptions cost: the numbers of `vitmed stress`, from predictions of the same images, clean and corrupted.

The error is 1 - balanced accuracy; of grades 1 - quadratic kappa; of findings 1 - mean AUROC; of a number the mean
absolute error: 1 minus the first
of `Stressed.names`, or that number itself where lower is better. Mean corruption error is its plain mean over all
corruptions and strengths (Hendrycks & Dietterich 2019, section 4.2, without the division by AlexNet's errors, of which
there are none on your images); `relative` is the mean of error - clean error: what the corruptions add. Every resample
draws the same images, or patients, for the clean and all corrupted predictions, so that the intervals of differences
are paired.

Letters: S images, R resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vitmed.core.targets import Target
from vitmed.core.text import counted
from vitmed.decisions.targets import ALL_METRICS, TARGETS, TargetKind
from vitmed.explanation.corruptions import CORRUPTIONS
from vitmed.explanation.results import CorruptionCost, Robustness, Strength
from vitmed.metrics.bootstrap import bootstrap_weights, percentile_interval
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.any_predictions import AnyPredictions, target_of
from vitmed.metrics.notes import FEW_GROUPS
from vitmed.metrics.predictions import Predictions, known_labels, positive_index

FOLDER, NUMBERS = "stress", "stress.json"  # beside the checkpoint
PART = "auroc of "  # opens the name of the AUROC of a finding among drawn numbers
MANY = 30  # classes; with more, AUROC has no interval, which would take minutes

Drawn = dict[str, np.ndarray]  # name -> (1 + R,): the value itself, then of each resample


def measure_robustness(
    clean: AnyPredictions,
    corrupted: Mapping[str, Sequence[AnyPredictions]],
    resamples: int = 500,
    seed: int = 0,
    target: Target | None = None,
) -> Robustness:
    """The numbers of clean and corrupted images.

    Args:
        clean: of any kind, with labels.
        corrupted: key in `CORRUPTIONS` -> predictions of the same images at strengths 1 to 5.
        resamples: behind the intervals of losses and errors.
        target: what the labels are; None: what the predictions say, which cannot tell grades from classes.

    Raises:
        DataError: the predictions have no labels.
    """
    target = target_of(clean) if target is None else target
    units, kind = clean.units, TARGETS[target.kind]
    number, guess = kind.stress.names[0], kind.stress.guess(clean)
    positive = positive_index(clean) if isinstance(clean, Predictions) else None
    weights = np.ones((1, len(known_labels(clean))))  # (1 + R, S): then how often each image was drawn
    if units.max(initial=0) > 0:
        weights = np.concatenate([weights, *bootstrap_weights(units, resamples, seed)])
    whole = kind.stress.draw(clean, weights)
    drawn = {key: [kind.stress.draw(p, weights) for p in part] for key, part in corrupted.items()}
    costs = {}
    for key, part in corrupted.items():
        numbers = [_numbers(kind, p, own, resamples) for p, own in zip(part, drawn[key], strict=True)]
        costs[key] = _cost(key, number, whole, drawn[key], numbers)
    errors = [_error(number, one) for part in drawn.values() for one in part]
    error = np.mean(errors, axis=0) if errors else np.array([np.nan])
    found = Robustness(
        n=len(clean), n_groups=None if clean.groups is None else int(units.max(initial=-1)) + 1,
        resampling="by image" if clean.groups is None else "by patient",
        resamples=resamples if len(weights) > 1 else 0, level=0.95,
        classes=list(clean.classes), positive_class=None if positive is None else clean.classes[positive],
        target=target, number=number, guess=guess if np.isfinite(guess) else None,
        clean=_numbers(kind, clean, whole, resamples), corruptions=costs,
        mean_corruption_error=_estimate(error),
        relative=_estimate(error - _error(number, whole) if errors else error),
    )  # fmt: skip
    worst, sentence = _verdict(found)
    words = {"undefined": _undefined(found, clean), "worst": worst, "verdict": sentence, "notes": _notes(found)}
    return found.model_copy(update=words)


def _error(number: str, drawn: Drawn) -> np.ndarray:
    """(1 + R,): lower is better."""
    return 1 - drawn[number] if ALL_METRICS[number].higher_is_better else drawn[number]


def _estimate(drawn: np.ndarray) -> Estimate:
    numbers = [float(drawn[0]), *percentile_interval(drawn[1:])]
    known = np.isfinite(numbers[0])
    value, low, high = (round(n, 12) + 0.0 if known and np.isfinite(n) else None for n in numbers)  # + 0.0: never -0
    return Estimate(value=value, low=low, high=high, method="percentile", resamples=len(drawn) - 1)


def _numbers(kind: TargetKind, predictions: AnyPredictions, drawn: Drawn, resamples: int) -> dict[str, Estimate]:
    """The numbers with the intervals of a report; with more than `MANY` classes, those of the resamples."""
    if isinstance(predictions, Predictions) and len(predictions.classes) > MANY:
        auroc = np.array([kind.values(predictions)["auroc"]])
        return {name: _estimate(auroc if name == "auroc" else drawn[name]) for name in kind.stress.names}
    overall = kind.evaluate(predictions, resamples).overall
    return {name: overall[name] for name in kind.stress.names if name in overall}


def _cost(
    key: str, number: str, clean: Drawn, strengths: Sequence[Drawn], numbers: Sequence[dict[str, Estimate]]
) -> CorruptionCost:
    what, before = CORRUPTIONS[key], _error(number, clean)
    rows = [
        Strength(strength=i, value=value, **own, lost=_estimate(_error(number, drawn) - before))
        for i, (value, drawn, own) in enumerate(zip(what.values, strengths, numbers, strict=True), 1)
    ]
    mean = np.mean([_error(number, drawn) for drawn in strengths], axis=0)
    each = {
        name.removeprefix(PART): _estimate(own - np.mean([drawn[name] for drawn in strengths], axis=0))
        for name, own in clean.items() if name.startswith(PART)
    }  # fmt: skip
    found = CorruptionCost(
        title=what.title, text=what.text, source=what.source,
        strengths=rows, error=_estimate(mean), lost=_estimate(mean - before),
    )  # fmt: skip
    return found.model_copy(update={"each": each}) if each else found


def _verdict(found: Robustness) -> tuple[str | None, str]:
    """The corruption that hurts most, and a sentence."""
    parts = {key: part for key, part in found.corruptions.items() if part.lost.low is not None}
    if not parts:
        return None, "No corruption is shown to hurt: the loss has no interval."
    worst = max(parts, key=lambda key: parts[key].lost.value or 0.0)
    part, lost, rises = parts[worst], parts[worst].lost, not ALL_METRICS[found.number].higher_is_better
    number = TARGETS[found.target.kind].metrics[found.number].phrase
    unit = f" {found.target.unit}" if found.target.unit else ""
    change = f"{lost.value:.3f}{unit} ({lost.low:.3f} to {lost.high:.3f})"
    spared = [other.title for other in parts.values() if other.lost.low is not None and other.lost.low <= 0]
    if part.title in spared:
        verb, noun = ("raise", "rise") if rises else ("lower", "fall")
        return None, f"No corruption is shown to {verb} {number}; the largest {noun} is {change}, by {part.title}."
    clean, last = found.clean[found.number].value, part.strengths[-1][found.number].value
    text = (
        f"{part.title} hurts most: {number} {'rises' if rises else 'falls'} by {change} on the mean of the five "
        f"strengths, and from {clean:.3f} to {last:.3f} at the strongest."
    )
    return worst, text + (f" No loss is shown for: {', '.join(spared)}." if spared else "")


def _undefined(found: Robustness, clean: AnyPredictions) -> dict[str, str]:
    reasons = {}
    for name, one in found.clean.items():
        if one.value is None:
            alike = "all images are of one class" if clean.kind == "classes" else "it is undefined without corruption"
            reasons[name] = alike if found.n else "there are no images"
    if isinstance(clean, Predictions) and len(clean.classes) > MANY and "auroc" not in reasons:
        reasons["auroc"] = f"no interval: there are more than {MANY} classes"
    if not found.resamples:
        reasons["intervals"] = f"they need two {'images' if found.n_groups is None else 'patients'} or more"
    return reasons


def _notes(found: Robustness) -> list[str]:
    """What a reader must know before believing the numbers."""
    notes, own = [], found.clean[found.number]
    higher = ALL_METRICS[found.number].higher_is_better
    end = own.low if higher else own.high  # nearer to guessing
    if end is not None and found.guess is not None and (end <= found.guess < 1 if higher else end >= found.guess):
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
