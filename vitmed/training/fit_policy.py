"""The decision policy of a run: chosen after training, stored in best.pt, applied by evaluate and predict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitmed.core.errors import CheckpointError
from vitmed.core.messages import bar, say, warn
from vitmed.data.loading import Images
from vitmed.data.samples import labelled_by
from vitmed.data.thread_batches import check_readable
from vitmed.decisions.out_of_distribution import MOST_FITTED, fit_ood_score
from vitmed.decisions.policy import FASTER, DecisionPolicy, ReducedPrecision, choose_policy, compare_precision
from vitmed.inference.checkpoint import Checkpoint, add_policy, load_checkpoint
from vitmed.inference.predict import TorchNetwork, logits_of, mean_over_views, predict_all, speedup
from vitmed.inference.saved_model import check_finite, score_column
from vitmed.metrics.predictions import Predictions
from vitmed.models.hardware import pick_precision
from vitmed.models.vit import ViT

MOST_COMPARED = 2000  # validation images to predict again in reduced precision at most
Forward = Callable[[torch.Tensor], torch.Tensor]


def fit_decision_policy(best: Path, images: dict[str, Images], device: torch.device) -> None:
    """Choose the decision policy on validation and write it into best.pt; reads the images of train and val."""
    saved = load_checkpoint(best)
    model = saved.model().to(device)

    def features_of(x: torch.Tensor) -> torch.Tensor:
        return mean_over_views(model, x, saved.config.augment.views)  # (B, D)

    def logits_and_features(x: torch.Tensor) -> torch.Tensor:
        features = features_of(x)
        return torch.cat([logits_of(model, features), features], dim=1)  # (B, K + D)

    def outputs(split: str, forward: Forward, rows: list[int] | None = None) -> np.ndarray:
        with bar(f"predicting {split}") as advance:
            return predict_all(model, images[split], progress=advance, forward=forward, rows=rows)

    val, splits = outputs("val", logits_and_features), saved.splits
    logits, features = val[:, : splits.outputs], val[:, splits.outputs :]
    check_finite(logits, best)
    labels = images["train"].labels
    rows = np.sort(np.random.default_rng(0).permutation(len(labels))[:MOST_FITTED])
    ood_score = fit_ood_score(outputs("train", features_of, rows.tolist()), labels[rows], features)
    validation = labelled_by(splits.target, saved.classes, splits.samples["val"], logits, saved.config.data.positive)
    policy = choose_policy(validation, saved.config.evaluate, ood_score, saved.weights_hash)
    drawn = TorchNetwork(saved, None, device, model=model).outputs(lambda i: saved.preprocessing.drawn(), 1)
    policy = policy.model_copy(update={"known_logits": tuple(drawn.logits[0].tolist())})
    scores = {} if policy.ood_score is None else score_column(policy.ood_score.score(features))
    exact = policy.apply(replace(validation, columns=scores))
    reduced = _compare_precision(saved, model, policy, images["val"], exact)
    add_policy(best, policy, reduced)
    say(f"decision policy, chosen on {policy.n:,} validation images: {policy.summary}")
    for note in policy.notes:
        warn(note)
    if reduced is not None:
        say(f"precision of vitmed predict on this kind of device: {reduced.choice}")


def _compare_precision(
    saved: Checkpoint, model: ViT, policy: DecisionPolicy, val: Images, exact: Predictions
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
        with bar(f"predicting val in {precision.name}") as advance:
            network = TorchNetwork(saved, policy, device, precision, model)
            again = network.outputs(lambda i: val.read(int(rows[i])), len(rows), advance)
    except CheckpointError:  # numbers that fp32 holds and fp16 does not
        return found.model_copy(update={"images": len(rows), "finite": False})
    check_readable(again.problems)
    exact = exact.take(rows)
    return compare_precision(found, exact, policy.apply(replace(exact, logits=again.logits, columns=again.columns)))
