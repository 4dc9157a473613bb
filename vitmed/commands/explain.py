"""`vitmed explain`: attention maps of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.commands.predict import answer_json, find_checkpoint, find_named, list_images, predict, preprocessing_of
from vitmed.core.errors import DataError, UsageError, unknown_key
from vitmed.core.files import whole_folder, write_bytes, write_json
from vitmed.core.messages import bar, say
from vitmed.core.targets import SIDES
from vitmed.core.text import NOTICE, counted
from vitmed.data.thread_batches import read_batches
from vitmed.explanation.attention import METHODS, attention_maps
from vitmed.explanation.results import TITLES, UNCHECKED, Maps, joined, known_verdicts, mean_of_maps
from vitmed.imaging.joint_preprocessing import JointPreprocessing
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.ensemble import Ensemble
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.models.hardware import pick_device
from vitmed.models.vit import ViT
from vitmed.report.plots.attention import attention_maps as draw
from vitmed.report.plots.drawing import png
from vitmed.report.rebuild import new_folder

FOLDER, NUMBERS = "explain", "explain.json"
BATCH = 16  # images to read and explain at once


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`.

    Attributes:
        predictions: of the images that could be read; its `errors` names the others.
        maps: method -> (S, h, w) float32 in 0..1, in the order of the predictions.
        targets: (S,) which of `predictions.answers` is explained.
        verdicts: method -> its verdict in the newest evaluation of the run, where there is one.
        folder: explain.json and a picture for each image.
        shift: for `on_image`, which draws a map over its image.
    """

    predictions: AnyPredictions
    maps: dict[str, np.ndarray]
    targets: np.ndarray
    verdicts: dict[str, str]
    folder: Path
    shift: float = 0.0


def explain(
    images: str | Path | Sequence[str | Path],
    *,
    checkpoint: str | Path | Checkpoint | None = None,
    runs: str | Path = "runs",
    methods: Sequence[str] = (),
    target: str | None = None,
    output: str | Path | None = None,
    device: str = "auto",
    frame: int | None = None,
) -> Explanation:
    """Draw where the network looked when it answered.

    Args:
        images, checkpoint, runs, frame: as in `predict`.
        methods: keys of `attention.METHODS`; none: all of them.
        target: the class or the finding to explain, of a number "higher" or "lower" than the mean of training; default
            the predicted class of each image, the likeliest finding beside its threshold, the side of the prediction.
        output: a new folder for the pictures and explain.json; default `explain`.

    Raises:
        DataError: no readable image. CheckpointError: no run, or a checkpoint that cannot be used.
        UsageError: an unknown method or class, or an output that cannot be used.
    """
    for name in methods:
        if name not in METHODS:
            raise unknown_key("method", name, METHODS)
    saved = find_checkpoint(checkpoint, runs)
    members = saved.members if isinstance(saved, Ensemble) else (saved,)
    joint = isinstance(saved.preprocessing, JointPreprocessing)
    if joint or not all(isinstance(one, Checkpoint) for one in members):
        what = "members that read images differently have" if joint else "an exported model has"
        raise UsageError(f"{saved.path}: {what} no attention maps", "name the best.pt of a run")
    answers = SIDES if saved.splits.target.kind == "number" else saved.classes
    if target is not None and target not in answers:
        raise unknown_key(
            {"findings": "finding", "number": "side"}.get(saved.splits.target.kind, "class"), target, answers
        )
    named = [images] if isinstance(images, str | Path) else images
    how = preprocessing_of(saved, frame)
    folder = new_folder(output, Path(FOLDER), saved.splits.root, *filter(Path.is_dir, find_named(named)))
    predictions = predict(list_images(named), checkpoint=saved, device=device, precision="fp32", frame=frame)
    if not len(predictions):
        raise DataError("\n".join(text for _, text in predictions.errors[:20]), "name images that can be read")
    chosen = predictions.explained if target is None else np.full(len(predictions), answers.index(target))
    each = []
    for one in members:
        assert isinstance(one, Checkpoint)
        own = replace(one.preprocessing, frame=how.frame)
        asked = chosen  # places in the order of the member
        if one.classes != saved.classes:
            asked = np.array([one.classes.index(name) for name in saved.classes])[chosen]
        each.append(_maps_of(one.model().to(pick_device(device)), own, predictions, asked))
    maps = replace(mean_of_maps(each, saved.shares if isinstance(saved, Ensemble) else (1.0,)), targets=chosen)
    maps = replace(maps, grids={name: maps.grids[name] for name in METHODS if name in (methods or METHODS)})
    verdicts = {name: text for name, text in known_verdicts(saved).items() if name in maps.grids}
    found = Explanation(predictions, maps.grids, maps.targets, verdicts, folder, maps.shift)
    with whole_folder(folder) as part, bar("drawing", unit="pictures") as advance:
        for i in range(len(predictions)):
            figure = draw(predictions, maps.one(i))
            assert figure is not None
            write_bytes(part / picture_name(i), png(figure))
            advance(i + 1, len(predictions))
        write_json(part / NUMBERS, explanation_json(found, saved.path.name))
    for name in maps.grids:
        say(f"{TITLES[name]}: {verdicts.get(name, UNCHECKED)}")
    say(f"{counted(len(predictions), 'picture')}: {folder}")
    return found


def _maps_of(model: ViT, how: Preprocessing, predictions: AnyPredictions, targets: np.ndarray) -> Maps:
    """The maps of images that `predict` could read."""
    paths, parts = predictions.paths, []
    with bar("explaining") as advance:
        for rows, squares, problems in read_batches(lambda i: how.read(paths[i]), len(paths), BATCH):
            if problems:
                raise DataError("\n".join(problems.values()), "the files changed during the command: run it again")
            parts.append(attention_maps(model, how, squares, targets[rows], np.array(rows), predictions.kind))
            advance(rows[-1] + 1, len(paths))
    return joined(parts)


def picture_name(row: int) -> str:
    """The file of a picture: named by row, because the name of an image may hold the name of a patient."""
    return f"row-{row + 1}.png"


def explanation_json(found: Explanation, checkpoint: str) -> dict[str, Any]:
    """The content of explain.json, the only file with the paths."""
    p, grids = found.predictions, {name: grid.astype(float).round(4) for name, grid in found.maps.items()}
    rows = [
        {
            "row": i + 1,
            "path": path,
            "picture": picture_name(i),
            **_answer(p, i),
            "explained": p.answers[found.targets[i]],
            "maps": {name: grid[i].tolist() for name, grid in grids.items()},
        }
        for i, path in enumerate(p.paths)
    ]
    return {
        "notice": NOTICE,
        "checkpoint": checkpoint,
        "methods": {k: {"title": TITLES[k], "verdict": found.verdicts.get(k, UNCHECKED)} for k in grids},
        "shift": found.shift,
        "images": rows,
        "errors": [{"path": path, "error": problem} for path, problem in p.errors],
    }


def _answer(p: AnyPredictions, i: int) -> dict[str, Any]:
    """The prediction for one image; of findings and numbers as `predict` gives it."""
    if not isinstance(p, Predictions):
        return answer_json(p, i, 0)
    chances = {name: float(value) for name, value in zip(p.classes, p.probabilities[i], strict=True)}
    return {
        "prediction": p.classes[p.predicted[i]],
        "probability": float(p.confidence[i]),
        "probabilities": chances,
    }
