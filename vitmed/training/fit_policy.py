"""What is chosen on validation: made after the training, stored in best.pt, found again by evaluate and predict."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitmed.core.config import Config, EvaluateConfig
from vitmed.core.errors import CheckpointError, DataError, UsageError
from vitmed.core.run_folder import RunFolder
from vitmed.core.ui import Ui
from vitmed.data.folders import image_files
from vitmed.data.loading import Images
from vitmed.data.samples import labelled
from vitmed.decisions.operating_points import asked_point
from vitmed.decisions.out_of_distribution import MOST_FITTED, Familiarity, fit_familiarity
from vitmed.decisions.policy import Judgement, asked_of, make_judgement
from vitmed.metrics.predictions import UNFAMILIARITY, Predictions
from vitmed.models.inference import check_finite, predict_logits
from vitmed.models.vit import ViT
from vitmed.training.checkpoint import Checkpoint, add_judgement, load_checkpoint

MOST_UNLIKE = 2000  # other images that are looked at
Forward = Callable[[torch.Tensor], torch.Tensor]


def check_asked(config: Config, classes: int) -> None:
    """Raises UsageError where `evaluate` asks for what so many classes do not have; before the night, not after it."""
    asked_point(config.evaluate, classes)


def judge_best(best: Path, images: dict[str, Images], device: torch.device, ui: Ui) -> None:
    """Choose calibration, operating point, sets, answers and familiarity on validation, and write them into best.pt.

    Args:
        best: the checkpoint.
        images: of the run's own splits; train and val are read.
    """
    saved = load_checkpoint(best)
    model = saved.model().to(device)
    classes, samples = saved.classes, saved.splits.samples["val"]

    def both(x: torch.Tensor) -> torch.Tensor:
        features = model.features(x)  # (B, D)
        return torch.cat([model.head(features), features], dim=1)  # (B, K + D)

    def look(split: str, rows: np.ndarray, forward: Forward) -> np.ndarray:
        part = images[split]
        with ui.bar(f"judging {split}") as advance:
            _, found, problems = predict_logits(
                model, saved.preprocessing, lambda i: part.read(int(rows[i])), len(rows), device,
                progress=advance, forward=forward,
            )  # fmt: skip
        if problems:
            raise DataError("\n".join(problems.values()), "the files were readable when the run began")
        return found

    val = look("val", np.arange(len(samples)), both)
    logits, features = val[:, : len(classes)], val[:, len(classes) :]
    check_finite(logits, best)
    labels = images["train"].labels
    rows = np.sort(np.random.default_rng(0).permutation(len(labels))[:MOST_FITTED])
    known = fit_familiarity(look("train", rows, model.features), labels[rows], features)
    raw = labelled(classes, samples, logits, saved.config.data.positive)
    judgement = make_judgement(raw, saved.config.evaluate, known)
    add_judgement(best, judgement.to_dict())
    ui.say(in_words(judgement))


def in_words(judgement: Judgement) -> str:
    """What was chosen, in a line."""
    calibration = judgement.calibration
    told = {"none": "none", "temperature": f"temperature {1 / calibration.scale[0]:.3g}", "vector": "vector scaling"}
    text = f"chosen on {judgement.n:,} validation images: calibration {told[calibration.method]}"
    text += f" ({calibration.note})" if calibration.note else ""
    chosen = judgement.operating["chosen"]
    threshold = judgement.operating["points"][chosen]["threshold"]
    return text + (f"; positive from a probability of {threshold:.3g}" if threshold is not None else "")


def judgement_of(saved: Checkpoint) -> Judgement | None:
    """What the checkpoint holds. Raises CheckpointError where that is damaged."""
    if saved.judgement is None:
        return None
    try:
        judgement = Judgement.of(saved.judgement, saved.classes)
        if isinstance(judgement.familiarity, Mapping):
            raise ValueError("familiarity: means and precision are missing")
    except ValueError as error:
        raise CheckpointError(
            f"{saved.path}: what was chosen on validation is damaged ({error})", "copy it again"
        ) from None
    return judgement


def settled(saved: Checkpoint, config: EvaluateConfig) -> Judgement | None:
    """What the checkpoint holds; chosen again on the run's validation where something else is asked for.

    Raises:
        UsageError: what this checkpoint said of validation is not known, so nothing can be chosen on it.
    """
    stored = judgement_of(saved)
    asked_point(config, len(saved.classes))
    if asked_of(config) == asked_of(saved.config.evaluate):
        return stored
    run = RunFolder(saved.path.parent)
    if saved.path.resolve() != run.best.resolve():
        raise UsageError(
            f"{saved.path}: what it said of the validation images is not known; that of best.pt is",
            f"vitmed evaluate {run.best}",
        )
    validation = replace(raw_validation(run), positive=saved.config.data.positive)
    return make_judgement(validation, config, stored.familiarity if stored else None)


def raw_validation(run: RunFolder) -> Predictions:
    """What best.pt said of the validation images, uncalibrated. Raises UsageError where it is not there."""
    file = run.validation
    if not file.is_file():
        raise UsageError(
            f"{file}: is not there, and thresholds and calibration are chosen on it",
            f"vitmed evaluate {run.best} --split val writes it",
        )
    predictions = Predictions.from_csv(file, labelled=True)
    stored = read_judgement(file.with_name("metrics.json"), predictions.classes)
    return predictions if stored is None else stored.raw(predictions)


def read_judgement(metrics: Path, classes: Sequence[str]) -> Judgement | None:
    """What the metrics.json of a report says of it; None where there is none.

    Args:
        classes: of the table beside it.

    Raises:
        DataError: the file is not the metrics.json of a report, or of one of other classes.
    """
    if not metrics.is_file():
        return None
    try:
        content = json.loads(metrics.read_text(encoding="utf-8"))
        stored, own = content["report"].get("judgement"), content["classes"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{metrics}: not the metrics.json of a report", "move it away to go without it") from None
    if stored is None:
        return None
    if own != list(classes):
        raise DataError(
            f"{metrics}: has the classes {own}, the table beside it {list(classes)}",
            "bring the columns of the table into that order, or move metrics.json away to go without it",
        )
    try:
        return Judgement.of(stored, classes)
    except ValueError as error:
        raise DataError(
            f"{metrics}: what was chosen on validation is damaged ({error})", "move it away to go without it"
        ) from None


def forward_of(model: ViT, judgement: Judgement | None) -> Forward | None:
    """What to run for logits and, as a last column, unfamiliarity; None where there is no such score."""
    known = None if judgement is None else judgement.familiarity
    if not isinstance(known, Familiarity):
        return None

    def forward(x: torch.Tensor) -> torch.Tensor:
        features = model.features(x)
        scores = torch.from_numpy(known.score(features.float().cpu().numpy()))
        return torch.cat([model.head(features), scores.to(features)[:, None]], dim=1)  # (B, K + 1)

    return forward


def scored(logits: np.ndarray, classes: int) -> tuple[np.ndarray, dict[str, tuple[str, ...]]]:
    """What `forward_of` gave, parted: logits (S, K), and the column of unfamiliarity where there is one."""
    if logits.shape[1] <= classes:
        return logits, {}
    return logits[:, :classes], {UNFAMILIARITY: tuple(f"{score:.6g}" for score in logits[:, classes])}


def scores_of_folder(folder: Path, saved: Checkpoint, model: ViT, judgement: Judgement | None, ui: Ui) -> Judgement:
    """The judgement with the unfamiliarity of images in a folder, at most `MOST_UNLIKE`, evenly spread.

    Raises:
        UsageError: the checkpoint has no such score. DataError: no image there can be read.
    """
    forward = forward_of(model, judgement)
    if forward is None or judgement is None:
        raise UsageError(
            f"{saved.path}: holds no measure of familiarity, which --unlike needs", "train again with this version"
        )
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder", "--unlike DIR names a folder of other images")
    files = image_files(folder)
    files = files[:: max(1, -(-len(files) // MOST_UNLIKE))]
    with ui.bar("other images") as advance:
        _, found, problems = predict_logits(
            model, saved.preprocessing, lambda i: saved.preprocessing.read(files[i]), len(files),
            next(model.parameters()).device, progress=advance, forward=forward,
        )  # fmt: skip
    if not len(found):
        raise DataError(f"{folder}: no image in it can be read", "--unlike DIR names a folder of other images")
    if problems:
        ui.warn(f"{folder}: {len(problems):,} of {len(files):,} images could not be read")
    return replace(judgement, unlike=tuple(float(score) for score in found[:, -1]))
