"""The decision policy of a run: chosen after training, stored in best.pt, applied by evaluate and predict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vitmed.core.errors import CheckpointError, DataError, UsageError
from vitmed.core.evaluate_config import EvaluateConfig
from vitmed.core.hardware import Precision, pick_precision
from vitmed.core.text import counted
from vitmed.core.ui import Ui
from vitmed.data.folders import image_files
from vitmed.data.loading import Images
from vitmed.data.samples import labelled_by
from vitmed.decisions.evaluation_folder import validation_of
from vitmed.decisions.operating_points import asked_point
from vitmed.decisions.out_of_distribution import MOST_FITTED, fit_ood_score
from vitmed.decisions.policy import DecisionPolicy, policy_settings
from vitmed.decisions.reduced_precision import FASTER, ReducedPrecision, compare_precision
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.any_predictions import AnyPredictions
from vitmed.metrics.predictions_csv import OOD_SCORE
from vitmed.models.inference import (
    FP32,
    check_finite,
    check_readable,
    logits_of,
    mean_features,
    predict_all,
    predict_logits,
    speedup,
)
from vitmed.models.vit import ViT
from vitmed.training.checkpoint import Checkpoint, add_policy, load_checkpoint

MOST_OTHERS = 2000  # other images to score at most
MOST_COMPARED = 2000  # validation images to predict again in reduced precision at most
Forward = Callable[[torch.Tensor], torch.Tensor]


def fit_decision_policy(best: Path, images: dict[str, Images], device: torch.device, ui: Ui) -> None:
    """Choose the decision policy on validation and write it into best.pt; reads the images of train and val."""
    saved = load_checkpoint(best)
    model = saved.model().to(device)

    def features_of(x: torch.Tensor) -> torch.Tensor:
        return mean_features(model, x, saved.config.augment.views)  # (B, D)

    def logits_and_features(x: torch.Tensor) -> torch.Tensor:
        features = features_of(x)
        return torch.cat([logits_of(model, features), features], dim=1)  # (B, K + D)

    def outputs(split: str, forward: Forward, rows: list[int] | None = None) -> np.ndarray:
        with ui.bar(f"predicting {split}") as advance:
            return predict_all(model, images[split], device, progress=advance, forward=forward, rows=rows)

    val, splits = outputs("val", logits_and_features), saved.splits
    logits, features = val[:, : splits.outputs], val[:, splits.outputs :]
    check_finite(logits, best)
    labels = images["train"].labels
    rows = np.sort(np.random.default_rng(0).permutation(len(labels))[:MOST_FITTED])
    ood_score = fit_ood_score(outputs("train", features_of, rows.tolist()), labels[rows], features)
    validation = labelled_by(splits.target, saved.classes, splits.samples["val"], logits, saved.config.data.positive)
    policy = TARGETS[splits.target.kind].choose(validation, saved.config.evaluate, ood_score, saved.weights_hash)
    scores = {} if policy.ood_score is None else _score_column(policy.ood_score.score(features))
    exact = policy.apply(replace(validation, columns=scores))
    reduced = _compare_precision(saved, model, policy, images["val"], exact, ui)
    add_policy(best, policy, reduced)
    ui.say(f"decision policy, chosen on {policy.n:,} validation images: {policy.summary}")
    for note in policy.notes:
        ui.warn(note)
    if reduced is not None:
        ui.say(f"precision of vitmed predict on this kind of device: {reduced.choice}")


def _compare_precision(
    saved: Checkpoint, model: ViT, policy: DecisionPolicy, val: Images, exact: AnyPredictions, ui: Ui
) -> ReducedPrecision | None:
    """What the fastest precision of this device changes on at most `MOST_COMPARED` validation images, evenly spread.

    Args:
        saved: the checkpoint; model: its network, on its device.
        exact: what it predicts for validation in fp32, with the policy applied.

    Returns:
        None where the device is made for fp32.
    """
    device = next(model.parameters()).device
    precision = pick_precision("auto", device)
    if not precision.mixed:
        return None
    faster = speedup(model, saved.preprocessing, device, precision)
    found = ReducedPrecision(precision=precision.name, device=device.type, speedup=round(faster, 2))
    if faster < FASTER:
        return found
    rows = np.linspace(0, len(val) - 1, min(len(val), MOST_COMPARED)).round().astype(np.int64)
    try:
        with ui.bar(f"predicting val in {precision.name}") as advance:
            again = predict_images(
                saved, model, policy, lambda i: val.read(int(rows[i])), len(rows), advance, precision=precision
            )
    except CheckpointError:  # numbers that fp32 holds and fp16 does not
        return found.model_copy(update={"images": len(rows), "flipped": len(rows), "largest": 1.0, "largest_raw": 1.0})
    check_readable(again.problems)
    exact = exact.take(rows)
    return compare_precision(found, exact, policy.apply(replace(exact, logits=again.logits, columns=again.columns)))


def _score_column(scores: np.ndarray) -> dict[str, tuple[str, ...]]:
    """The column of OOD scores (S,)."""
    return {OOD_SCORE: tuple(f"{score:.6g}" for score in scores)}


def policy_for(saved: Checkpoint, config: EvaluateConfig) -> DecisionPolicy | None:
    """The policy of a checkpoint, or one newly chosen on the validation of its run if the configuration differs.

    Raises UsageError if the predictions of this checkpoint for validation are missing.
    """
    asked_point(config, saved.splits.choices)
    if policy_settings(config) == policy_settings(saved.config.evaluate):
        return saved.policy
    validation = validation_of(saved.path, saved.weights_hash, saved.policy, saved.config.data.positive)
    ood_score = saved.policy.ood_score if saved.policy else None
    return TARGETS[saved.splits.target.kind].choose(validation, config, ood_score, saved.weights_hash)


def forward_with_scores(
    saved: Checkpoint, model: ViT, policy: DecisionPolicy | None, also_features: bool = False
) -> Forward:
    """The function that returns logits, then the OOD score if it is known, then the features if asked for; float32.

    All three are of the mean over the views of the checkpoint.
    """
    known = None if policy is None else policy.ood_score

    def forward(x: torch.Tensor) -> torch.Tensor:
        features = mean_features(model, x, saved.config.augment.views)
        columns = [logits_of(model, features)]
        if known is not None:
            columns.append(torch.from_numpy(known.score(features.cpu().numpy())).to(features.device)[:, None])
        return torch.cat([*columns, *([features] if also_features else [])], dim=1)  # (B, K + 1 + D)

    return forward


class Outputs(NamedTuple):
    """What the network gives for images, of which S can be read."""

    indices: list[int]  # of the S readable images, ascending
    logits: np.ndarray  # (S, K) float32
    columns: dict[str, tuple[str, ...]]  # their OOD scores, if known
    problems: dict[int, str]  # index -> problem of the others
    features: np.ndarray  # (S, D) float32; D is 0 unless asked for


def predict_images(
    saved: Checkpoint, model: ViT, policy: DecisionPolicy | None, read: Callable[[int], np.ndarray], count: int,
    progress: Callable[[int, int], None], also_features: bool = False, precision: Precision = FP32,
) -> Outputs:  # fmt: skip
    """Run the network over `count` images.

    Args:
        model: of the checkpoint, on its device; policy: None leaves the scores out.
        read: index -> (S, S, C) uint8; may raise DataError.
        also_features: return the features of each image, too.
        precision: of the network; what it returns is float32.

    Raises:
        CheckpointError: a logit is not finite.
    """
    device, forward = next(model.parameters()).device, forward_with_scores(saved, model, policy, also_features)
    indices, found, problems = predict_logits(
        model, saved.preprocessing, read, count, device, precision, progress, forward
    )
    check_finite(found, saved.path)
    known, outputs = int(policy is not None and policy.ood_score is not None), saved.splits.outputs
    if not indices:
        width = model.head.in_features if also_features else 0
        found = np.empty((0, outputs + known + width), np.float32)
    logits, scores, features = np.split(found, [outputs, outputs + known], axis=1)
    columns = _score_column(scores[:, 0]) if known else {}
    return Outputs(indices, logits, columns, problems, features)


def score_other_images(
    folder: Path, saved: Checkpoint, model: ViT, policy: DecisionPolicy | None, ui: Ui, precision: Precision = FP32
) -> DecisionPolicy:
    """The policy with the OOD scores of at most `MOST_OTHERS` images of a folder, evenly spread.

    Raises:
        UsageError: the checkpoint has no OOD score. DataError: no image in the folder can be read.
    """
    if policy is None or policy.ood_score is None:
        raise UsageError(
            f"{saved.path}: has no out-of-distribution score, which --unlike needs", "train again with this version"
        )
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder", "--unlike DIR names a folder of other images")
    files = image_files(folder)
    files = files[:: max(1, -(-len(files) // MOST_OTHERS))]
    with ui.bar("other images") as advance:
        _, found, problems = predict_logits(
            model, saved.preprocessing, lambda i: saved.preprocessing.read(files[i]), len(files),
            next(model.parameters()).device, precision, advance, forward_with_scores(saved, model, policy),
        )  # fmt: skip
    if not len(found):
        raise DataError(f"{folder}: holds no image that can be read", "--unlike DIR names a folder of other images")
    if problems:
        ui.warn(f"{folder}: {len(problems):,} of {counted(len(files), 'image')} could not be read")
    return policy.model_copy(update={"other_scores": tuple(float(score) for score in found[:, -1])})
