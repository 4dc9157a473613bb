"""Attention maps of images that a checkpoint, or an ensemble, predicted, and explain.json."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.messages import bar
from vitmed.core.text import NOTICE
from vitmed.data.thread_batches import read_batches
from vitmed.explanation.attention import attention_maps
from vitmed.explanation.results import TITLES, UNCHECKED, Maps, mean_of_maps
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.ensemble import Ensemble
from vitmed.inference.load import Answer
from vitmed.inference.saved_model import SavedModel
from vitmed.metrics.predictions import Predictions
from vitmed.models.hardware import pick_device
from vitmed.models.vit import ViT

BATCH = 16  # images to read and explain at once


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`, in the order of the predictions, whose `errors` name the images that cannot be read.

    Attributes:
        maps: method -> (S, h, w) float32 in 0..1.
        targets: (S,) which of `predictions.answers` is explained.
        verdicts: method -> its verdict in the newest evaluation of the run, where there is one.
        folder: explain.json and a picture for each image.
        shift: for `on_image`, which draws a map over its image.
    """

    predictions: Predictions
    maps: dict[str, np.ndarray]
    targets: np.ndarray
    verdicts: dict[str, str]
    folder: Path
    shift: float = 0.0


def explain_predictions(
    saved: SavedModel, predictions: Predictions, chosen: np.ndarray, device: str, frame: int | None
) -> Maps:
    """Map where the network, or each member of an ensemble, looked in images that it predicted.

    Args:
        chosen: (S,) which of `predictions.answers` is explained.
        frame: of files with several; None: that of the run.

    Raises:
        DataError: an image that could be read before cannot be read now.
    """
    members = saved.members if isinstance(saved, Ensemble) else (saved,)
    each = []
    for one in members:
        assert isinstance(one, Checkpoint)
        own = replace(one.preprocessing, frame=saved.preprocessing.frame if frame is None else frame)
        asked = chosen  # places in the order of the member
        if one.classes != saved.classes:
            asked = np.array([one.classes.index(name) for name in saved.classes])[chosen]
        each.append(_maps_of(one.model().to(pick_device(device)), own, predictions, asked))
    return replace(mean_of_maps(each, saved.shares if isinstance(saved, Ensemble) else (1.0,)), targets=chosen)


def _maps_of(model: ViT, how: Preprocessing, predictions: Predictions, targets: np.ndarray) -> Maps:
    paths, parts = predictions.paths, list[Maps]()
    with bar("explaining") as advance:
        for rows, squares, problems in read_batches(lambda i: how.read(paths[i]), len(paths), BATCH):
            if problems:
                raise DataError("\n".join(problems.values()), "the files changed during the command: run it again")
            parts.append(attention_maps(model, how, squares, targets[rows], np.array(rows), predictions.kind))
            advance(rows[-1] + 1, len(paths))
    first = parts[0]
    grids = {name: np.concatenate([part.grids[name] for part in parts]) for name in first.grids}
    images, explained, logits, places = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "targets", "logits", "rows")
    )
    return Maps(images, explained, logits, grids, places, first.shift)


def picture_name(row: int) -> str:
    """Name the file of a picture: by row, because the name of an image may hold the name of a patient."""
    return f"row-{row + 1}.png"


def explanation_json(found: Explanation, checkpoint: str) -> dict[str, Any]:
    """List the content of explain.json, the only file with the paths."""
    p, grids = found.predictions, {name: grid.astype(float).round(4) for name, grid in found.maps.items()}
    rows = []
    for i, path in enumerate(p.paths):
        said = Answer.of(p, i)
        answer = said.to_json(0)  # of findings and numbers as `predict` gives it
        if p.kind == "classes":
            answer = {name: getattr(said, name) for name in ("prediction", "probability", "probabilities")}
        row = {
            "row": i + 1,
            "path": path,
            "picture": picture_name(i),
            **answer,
            "explained": p.answers[found.targets[i]],
            "maps": {name: grid[i].tolist() for name, grid in grids.items()},
        }
        rows.append(row)
    return {
        "notice": NOTICE,
        "checkpoint": checkpoint,
        "methods": {k: {"title": TITLES[k], "verdict": found.verdicts.get(k, UNCHECKED)} for k in grids},
        "shift": found.shift,
        "images": rows,
        "errors": [{"path": path, "error": problem} for path, problem in p.errors],
    }
