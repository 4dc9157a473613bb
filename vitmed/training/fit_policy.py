"""The decision policy of a run: chosen after training, stored in best.pt, applied by evaluate and predict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.text import counted
from vitmed.core.ui import Ui
from vitmed.data.folders import image_files
from vitmed.data.loading import Images
from vitmed.data.samples import labelled
from vitmed.decisions.calibration import why_chosen
from vitmed.decisions.evaluation_folder import validation_of
from vitmed.decisions.operating_points import asked_point
from vitmed.decisions.out_of_distribution import MOST_FITTED, fit_ood_score
from vitmed.decisions.policy import DecisionPolicy, choose_policy, policy_settings
from vitmed.metrics.predictions_csv import OOD_SCORE
from vitmed.models.inference import check_finite, predict_all, predict_logits
from vitmed.models.vit import ViT
from vitmed.training.checkpoint import Checkpoint, add_policy, load_checkpoint

MOST_OTHERS = 2000  # other images to score at most
Forward = Callable[[torch.Tensor], torch.Tensor]


def fit_decision_policy(best: Path, images: dict[str, Images], device: torch.device, ui: Ui) -> None:
    """Choose the decision policy on validation and write it into best.pt; reads the images of train and val."""
    saved = load_checkpoint(best)
    model = saved.model().to(device)
    classes = saved.classes

    def logits_and_features(x: torch.Tensor) -> torch.Tensor:
        features = model.features(x)  # (B, D)
        return torch.cat([model.head(features), features], dim=1)  # (B, K + D)

    def outputs(split: str, forward: Forward, rows: list[int] | None = None) -> np.ndarray:
        with ui.bar(f"predicting {split}") as advance:
            return predict_all(model, images[split], device, progress=advance, forward=forward, rows=rows)

    val = outputs("val", logits_and_features)
    logits, features = val[:, : len(classes)], val[:, len(classes) :]
    check_finite(logits, best)
    labels = images["train"].labels
    rows = np.sort(np.random.default_rng(0).permutation(len(labels))[:MOST_FITTED])
    ood_score = fit_ood_score(outputs("train", model.features, rows.tolist()), labels[rows], features)
    validation = labelled(classes, saved.splits.samples["val"], logits, saved.config.data.positive)
    policy = choose_policy(validation, saved.config.evaluate, ood_score, saved.weights_hash)
    add_policy(best, policy)
    ui.say(_describe(policy))


def _describe(policy: DecisionPolicy) -> str:
    known, threshold = policy.calibration, policy.operating.threshold
    names = {
        "none": "no calibration",
        "temperature": f"temperature {1 / known.scale[0]:.3g}",
        "vector": "vector scaling",
    }
    text = f"decision policy, chosen on {policy.n:,} validation images: {names[known.method]}"
    text += f" ({known.note})" if known.note else ""
    text += f"; positive at a probability of {threshold:.3g} or more" if threshold is not None else ""
    if known.trials:
        why = why_chosen(known.method, known.trials)
        text += f". {why} Cross-validation: {'; '.join(trial.text for trial in known.trials)}"
    return text


def policy_for(saved: Checkpoint, config: EvaluateConfig) -> DecisionPolicy | None:
    """The policy of a checkpoint, or one newly chosen on the validation of its run if the configuration differs.

    Raises UsageError if the predictions of this checkpoint for validation are missing.
    """
    asked_point(config, len(saved.classes))
    if policy_settings(config) == policy_settings(saved.config.evaluate):
        return saved.policy
    validation = validation_of(saved.path, saved.weights_hash, saved.policy, saved.config.data.positive)
    ood_score = saved.policy.ood_score if saved.policy else None
    return choose_policy(validation, config, ood_score, saved.weights_hash)


def forward_with_scores(model: ViT, policy: DecisionPolicy | None) -> Forward | None:
    """The function that returns logits and, as the last column, the OOD score; None without such a score."""
    known = None if policy is None else policy.ood_score
    if known is None:
        return None

    def forward(x: torch.Tensor) -> torch.Tensor:
        features = model.features(x)
        scores = torch.from_numpy(known.score(features.float().cpu().numpy()))
        return torch.cat([model.head(features), scores.to(features)[:, None]], dim=1)  # (B, K + 1)

    return forward


def predict_images(
    saved: Checkpoint, model: ViT, policy: DecisionPolicy | None, read: Callable[[int], np.ndarray], count: int,
    progress: Callable[[int, int], None],
) -> tuple[list[int], np.ndarray, dict[str, tuple[str, ...]], dict[int, str]]:  # fmt: skip
    """The indices of readable images, their logits (S, K), their OOD scores if known, and index -> problem.

    Args:
        model: of the checkpoint, on its device; policy: None leaves the scores out.
        read: index -> (S, S, C) uint8; may raise DataError.

    Raises:
        CheckpointError: a logit is not finite.
    """
    device, forward = next(model.parameters()).device, forward_with_scores(model, policy)
    indices, found, problems = predict_logits(
        model, saved.preprocessing, read, count, device, progress=progress, forward=forward
    )
    check_finite(found, saved.path)
    if not indices:
        return [], np.empty((0, len(saved.classes)), np.float32), {}, problems
    logits, scores = np.split(found, [len(saved.classes)], axis=1)
    columns = {OOD_SCORE: tuple(f"{score:.6g}" for score in scores[:, 0])} if scores.size else {}
    return indices, logits, columns, problems


def score_other_images(
    folder: Path, saved: Checkpoint, model: ViT, policy: DecisionPolicy | None, ui: Ui
) -> DecisionPolicy:
    """The policy with the OOD scores of at most `MOST_OTHERS` images of a folder, evenly spread.

    Raises:
        UsageError: the checkpoint has no OOD score. DataError: no image in the folder can be read.
    """
    forward = forward_with_scores(model, policy)
    if forward is None or policy is None:
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
            next(model.parameters()).device, progress=advance, forward=forward,
        )  # fmt: skip
    if not len(found):
        raise DataError(f"{folder}: holds no image that can be read", "--unlike DIR names a folder of other images")
    if problems:
        ui.warn(f"{folder}: {len(problems):,} of {counted(len(files), 'image')} could not be read")
    return policy.model_copy(update={"other_scores": tuple(float(score) for score in found[:, -1])})
