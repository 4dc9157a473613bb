"""`vitmed predict`: images -> the class of each with its probability, the findings, or the number."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.core.errors import DataError, UsageError
from vitmed.core.inputs import newest_run, refuse_archive
from vitmed.core.messages import Advance, bar, say, warn
from vitmed.core.outputs import check_output
from vitmed.core.targets import NO_FINDING
from vitmed.core.text import NOTICE, counted_doing
from vitmed.data.folders import image_names, import_fix
from vitmed.imaging.decode import read_header, read_image
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.open_model import open_model, open_network
from vitmed.inference.saved_model import Network, SavedModel, check_precision
from vitmed.metrics.kinds.any_predictions import AnyPredictions, unlabelled
from vitmed.metrics.kinds.finding_predictions import FindingPredictions
from vitmed.metrics.kinds.number_predictions import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import OOD_SCORE

RAW = (
    "holds no decision policy: the probabilities are raw and the likeliest class is predicted; predict with the "
    "best.pt of a run, which has calibration, operating point and prediction sets"
)


def predict(
    images: str | Path | Sequence[str | Path],
    *,
    checkpoint: str | Path | SavedModel | None = None,
    runs: str | Path = "runs",
    device: str = "auto",
    precision: str = "auto",
    frame: int | None = None,
) -> AnyPredictions:
    """Predict the labels of images with a checkpoint and its preprocessing.

    Args:
        images: files, folders (searched with their subfolders), and glob patterns.
        checkpoint: a checkpoint, a run folder, an exported .onnx file, or what `open_model` read; default the best of
            the newest run in `runs`.
        precision: "fp32"; "bf16"; or "auto": 16-bit floats if they are faster on this device and changed no decision on
            the validation images of the run.
        frame: the frame of files with several, from 0; default: the frame of the run.

    Returns:
        the predictions, paths as given; `errors` names the files that could not be read.

    Raises:
        DataError: nothing to predict. CheckpointError: no run, or a checkpoint that cannot be used.
    """
    check_precision(precision)
    saved = find_checkpoint(checkpoint, runs)
    names = list_images([images] if isinstance(images, str | Path) else images)
    network, preprocessing = open_for(names, saved, device, precision, frame)
    with bar("predicting") as advance:
        return predict_named(saved, network, preprocessing, names, advance)[0]


def open_for(
    names: Sequence[str], saved: SavedModel, device: str, precision: str, frame: int | None
) -> tuple[Network, Preprocessing]:
    """What runs the model over these images, and how it reads one; warns of what makes its answers worse."""
    if saved.policy is None:
        warn(f"{saved.path}: {RAW}")
    how, network = preprocessing_of(saved, frame), open_network(saved, saved.policy, device, precision)
    if how.window is not None and (flat := sum(map(_is_flat, names))):
        found = counted_doing(flat, "image", "has 8 bits and is", "have 8 bits and are")
        warn(f"{found} not windowed; the model was trained on deeper ones")
    return network, how


def predict_named(
    saved: SavedModel, network: Network, how: Preprocessing, names: Sequence[str], advance: Advance,
    also_features: bool = False,
) -> tuple[AnyPredictions, np.ndarray]:  # fmt: skip
    """The predictions of images, and the features (S, D) float32 of the S readable ones; D is 0 unless asked for.

    Args:
        saved: the model; network: runs it.
        how: reads an image.
        names: of files.
        advance: called with the number of images done and their total.
    """
    found = network.outputs(lambda i: how.read(names[i]), len(names), advance, also_features)
    predictions = unlabelled(
        saved.splits.target, saved.classes, tuple(names[i] for i in found.indices), found.logits,
        tuple((names[i], problem) for i, problem in sorted(found.problems.items())), found.columns,
    )  # fmt: skip
    return saved.policy.apply(predictions) if saved.policy else predictions, found.features


def _is_flat(path: str) -> bool:
    """Whether an image has 8 bits; an unreadable image is reported later."""
    try:
        return not read_header(path).needs_window
    except DataError:
        return False


def find_checkpoint(checkpoint: str | Path | SavedModel | None, runs: str | Path) -> SavedModel:
    """The named checkpoint, or the best one of the newest run; a message then says which."""
    if isinstance(checkpoint, SavedModel):
        return checkpoint
    if checkpoint is not None:
        return open_model(checkpoint)
    newest = newest_run(runs)
    saved = open_model(newest.best)
    say(f"checkpoint {newest.best} (the newest run; --checkpoint names another)")
    return saved


def list_images(names: Sequence[str | Path]) -> list[str]:
    """Files, images in folders, and matches of patterns. Raises DataError without any."""
    found: list[str] = []
    for path in find_named(names):
        refuse_archive(path)
        # a missing file becomes a row with its error
        inside = image_names(path, (path / "_").as_posix()[:-1]) if path.is_dir() else [path.as_posix()]
        if not inside and path in map(Path, names):
            raise DataError(f"{path}: no images in this folder", import_fix(path) or "name a folder of images")
        found += inside
    if not found:
        raise DataError("no image is named", "vitmed predict image.png")
    return found


def find_named(names: Sequence[str | Path]) -> list[Path]:
    """Files and folders by their names, and the matches of patterns. Raises DataError for a pattern without any."""
    found: list[Path] = []
    for name in names:
        if not glob.has_magic(str(name)) or Path(name).exists():
            found.append(Path(name))
            continue
        matches = sorted(Path(match) for match in glob.glob(str(name), recursive=True))  # noqa: PTH207  absolute ones too
        if not matches:
            raise DataError(f"{name}: no file matches", "check the pattern, and quote it for the shell")
        found += matches
    return found


def find_checkpoint_and_check(
    csv: Path | None,
    plot: Path | None,
    images: Sequence[str | Path],
    checkpoint: str | Path | None,
    runs: str | Path,
    force: bool,
) -> SavedModel:
    """`find_checkpoint`; and check, before the images are read, that a table and a picture may be written.

    Args:
        csv, plot: the files, checked by `check_output`.
        images, checkpoint, runs: as in `predict`. Nothing is written into folders of images, nor into the data folder
            that the checkpoint was trained on.
        force: replace existing files.

    Raises:
        UsageError: a file may not or cannot be written. DataError: as in `predict`.
    """
    files, named = [file for file in (csv, plot) if file is not None], find_named(images)
    for file in files:  # --force is advised below, where nothing else forbids it
        folders = [path for path in named if path.is_dir()]
        check_output(file, force=True, data=folders, inputs=named, png=file is plot)
    if csv is not None and plot is not None and csv.resolve() == plot.resolve():
        raise UsageError(f"{csv}: is named as table and as picture", "name two files")
    saved = find_checkpoint(checkpoint, runs)
    for file in files:
        check_output(file, force=force, data=[saved.splits.root])
    return saved


def ranking(predictions: Predictions | FindingPredictions, row: int, top_k: int) -> list[tuple[str, float]]:
    """The `top_k` most probable classes or findings of a row with their probabilities, the likeliest first."""
    order = np.argsort(-predictions.probabilities[row], kind="stable")[:top_k]
    return [(predictions.classes[k], float(predictions.probabilities[row, k])) for k in order]


def answer_columns(predictions: AnyPredictions) -> list[str]:
    """The headings of `answer_cells`; ">" stands before a column of numbers."""
    if isinstance(predictions, NumberPredictions):
        unit = predictions.target.unit
        named = predictions.classes[0] + (f" ({unit})" if unit else "")
        return [f">{named}", ">interval"]
    first = ["findings"] if isinstance(predictions, FindingPredictions) else ["class", ">probability"]
    return [*first, "next"]


def answer_cells(predictions: AnyPredictions, row: int, top_k: int) -> list[str]:
    """What the model says of an image: class, probability, runners-up; findings and the next; number and interval."""
    if isinstance(predictions, NumberPredictions):
        ends = predictions.intervals
        return [f"{predictions.values[row]:.4g}", "" if ends is None else f"{ends[row, 0]:.4g} to {ends[row, 1]:.4g}"]
    order = ranking(predictions, row, len(predictions.classes))
    if isinstance(predictions, FindingPredictions):
        called = {predictions.classes[f] for f in np.flatnonzero(predictions.predicted[row])}
        taken = [f"{name} {p:.3f}" for name, p in order if name in called]
        rest = [f"{name} {p:.3f}" for name, p in order if name not in called]
        return [", ".join(taken) or NO_FINDING, ", ".join(rest[:top_k])]
    own = predictions.classes[predictions.predicted[row]]  # with a threshold, not always the likeliest
    others = ", ".join(f"{name} {p:.3f}" for name, p in order[:top_k] if name != own)
    return [own, f"{predictions.confidence[row]:.3f}", others]


def answer_json(predictions: AnyPredictions, row: int, top_k: int) -> dict[str, Any]:
    """The same as plain values."""
    if isinstance(predictions, NumberPredictions):
        ends = predictions.intervals
        interval = None if ends is None else [float(ends[row, 0]), float(ends[row, 1])]
        return {"prediction": float(predictions.values[row]), "interval": interval}
    if isinstance(predictions, FindingPredictions):
        cells = zip(predictions.classes, predictions.probabilities[row], predictions.predicted[row], strict=True)
        found = [{"finding": name, "probability": float(p), "called": bool(called)} for name, p, called in cells]
        return {"prediction": [one["finding"] for one in found if one["called"]], "findings": found}
    return {
        "prediction": predictions.classes[predictions.predicted[row]],
        "confidence": float(predictions.confidence[row]),
        "top": [{"class": name, "probability": p} for name, p in ranking(predictions, row, top_k)],
    }


def predictions_json(predictions: AnyPredictions, top_k: int) -> dict[str, Any]:
    """One plain object: classes, one entry per image with its answer, and the unreadable with their problem."""
    images = [
        {
            "path": path,
            **answer_json(predictions, row, top_k),
            **{name: cells[row] for name, cells in predictions.columns.items()},
            **{name: float(cells[row]) for name, cells in predictions.columns.items() if name == OOD_SCORE},
        }
        for row, path in enumerate(predictions.paths)
    ]
    errors = [{"path": path, "error": problem} for path, problem in predictions.errors]
    decided: dict[str, Any] = {"threshold": predictions.threshold} if isinstance(predictions, Predictions) else {}
    if isinstance(predictions, FindingPredictions):
        decided["thresholds"] = list(predictions.thresholds)
    return {
        "classes": list(predictions.classes),
        **decided,
        "images": images,
        "errors": errors,
        "notice": NOTICE,
    }


def preprocessing_of(saved: SavedModel, frame: int | None) -> Preprocessing:
    """How `predict` reads an image: the frame of files with several is that of the run unless `frame` names another."""
    return saved.preprocessing if frame is None else replace(saved.preprocessing, frame=frame)


def prediction_picture(predictions: AnyPredictions, how: Preprocessing) -> bytes:
    """A PNG of up to 24 of the images with their predictions, in the window and of the frame of `how`."""
    from vitmed.report.plots.drawing import png
    from vitmed.report.plots.pictures import grid

    return png(
        grid(
            predictions,
            lambda path: np.asarray(read_image(path, frame=how.frame, window=how.window)),
        )
    )
