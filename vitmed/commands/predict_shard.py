"""`vitmed predict --output FOLDER`: many images, in shards, as numbered Parquet parts; `vitmed merge` joins them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitmed.commands.predict import (
    RAW,
    find_checkpoint,
    find_named,
    list_images,
    predict_named,
    preprocessing_of,
    warn_of_flat,
)
from vitmed.core.csv_files import to_unicode
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import make_folder, remove_abandoned
from vitmed.core.outputs import refuse_file, refuse_inside
from vitmed.core.shards import AUTO, Shard, read_shard
from vitmed.core.text import counted
from vitmed.core.ui import Ui
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics import predictions_parquet
from vitmed.metrics.predictions_parquet import (
    PartAbout,
    check_pyarrow,
    listing_digest,
    part_file,
    part_files,
    read_about,
    write_part,
)
from vitmed.training.open_model import open_network
from vitmed.training.saved_model import SavedModel, check_precision

SHOWN = 20  # unreadable images that a message names


@dataclass(frozen=True)
class ShardResult:
    """What the parts of a shard hold.

    Attributes:
        read, unread: images with a prediction, and images that could not be read.
        parts, skipped: all parts of the shard, and those that were finished before.
        errors: path and problem of the first unreadable images of the new parts.
    """

    folder: Path
    shard: Shard
    read: int
    unread: int
    parts: int
    skipped: int
    errors: tuple[tuple[str, str], ...] = ()


def predict_shard(
    images: str | Path | Sequence[str | Path],
    *,
    output: str | Path | None = None,
    shard: str = "1/1",
    features: bool = False,
    checkpoint: str | Path | SavedModel | None = None,
    runs: str | Path = "runs",
    device: str = "auto",
    precision: str = "auto",
    frame: int | None = None,
    ui: Ui | None = None,
) -> ShardResult:
    """Predict one shard of many images and write Parquet parts; memory does not grow with the number of images.

    Finished parts are skipped, so an interrupted shard continues. Every shard must name the same images.

    Args:
        images, checkpoint, runs, device, precision, frame: as in `predict`; an image that is named twice counts once.
        output: the folder of the parts, the same for all shards.
        shard: "2/4", the second of four blocks of the list; "auto": see `core.shards`.
        features: keep the features of each image, too: D float32, the input of the head.

    Raises:
        UsageError: no such shard, parts of another checkpoint or list in the folder, or pyarrow is not installed.
        DataError, CheckpointError: as in `predict`.
    """
    ui = ui or Ui()
    if output is None:
        raise UsageError("--shard and --features write parts into a folder", "name it: --output FOLDER")
    check_precision(precision)
    own, folder = read_shard(shard, os.environ), Path(output)
    check_pyarrow(folder)
    refuse_file(folder)
    sources: list[str | Path] = [images] if isinstance(images, str | Path) else list(images)
    for named in find_named(sources):
        if named.is_dir():
            refuse_inside(named, folder)
    saved = find_checkpoint(checkpoint, runs, ui)
    refuse_inside(saved.splits.root, folder)
    how = preprocessing_of(saved, frame)
    if saved.policy is None:
        ui.warn(f"{saved.path}: {RAW}")
    names = list(dict.fromkeys(list_images(sources)))
    network = open_network(saved, saved.policy, _own_device(device, shard), precision, ui)
    about = _about(saved, how, names, own, features, network.precision)
    rows = own.rows(len(names))
    names = names[rows.start : rows.stop]
    make_folder(folder)
    remove_abandoned(folder)
    for file in part_files(folder)[:1]:  # of any shard
        _check_same_run(about, file, ui)
    most = predictions_parquet.ROWS
    starts = range(0, len(names), most)
    finished = [_finished(part_file(folder, own, k), about, rows.start + start, ui) for k, start in enumerate(starts)]
    skipped, read, unread = sum(part is not None for part in finished), 0, 0
    if skipped:
        ui.say(f"{folder}: {skipped:,} of {counted(len(starts), 'part')} of shard {own} are finished and skipped")
    errors = list[tuple[str, str]]()
    if skipped < len(starts):
        warn_of_flat(names, how, ui)
    with ui.bar(f"predicting shard {own}") as advance:
        for k, start in enumerate(starts):
            part, known = names[start : start + most], finished[k]
            if known is None:
                progress = lambda done, _, start=start: advance(start + done, len(names))  # noqa: E731
                predictions, found = predict_named(saved, network, how, part, progress, features)
                known = about.model_copy(
                    update={"first": rows.start + start, "rows": len(part), "unread": len(predictions.errors)}
                )
                write_part(part_file(folder, own, k), known, part, predictions, found)
                errors += predictions.errors[: SHOWN - len(errors)]
            read, unread = read + known.rows - known.unread, unread + known.unread
    ui.say(f"shard {own}: {counted(read + unread, 'image')} in {counted(len(starts), 'part')} in {folder}")
    return ShardResult(folder, own, read, unread, len(starts), skipped, tuple(errors))


def _about(
    saved: SavedModel, how: Preprocessing, names: Sequence[str], shard: Shard, features: bool, precision: str
) -> PartAbout:
    """What every part of a shard says of itself, before its own rows are known."""
    settings = [saved.policy and saved.policy.to_json(), how.to_dict(), features]
    return PartAbout(
        checkpoint=saved.weights_hash,
        settings=hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest(),
        listing=listing_digest(names).hexdigest(),
        images=len(names),
        shard=shard.number,
        shards=shard.count,
        first=0,
        rows=0,
        unread=0,
        names=tuple(map(to_unicode, saved.classes)),
        precision=precision,
        target=saved.splits.target,
    )


def _own_device(device: str, shard: str) -> str:
    """That device; for a process that torchrun started on a machine with several GPUs, its own."""
    local = os.environ.get("LOCAL_RANK", "")
    if device != "auto" or shard != AUTO or not local.isdecimal():
        return device
    import torch

    return f"cuda:{int(local) % torch.cuda.device_count()}" if torch.cuda.is_available() else device


def _check_same_run(about: PartAbout, file: Path, ui: Ui) -> PartAbout | None:
    """What a part holds; None, with a message, if it is torn. Raises UsageError if it belongs to other predictions."""
    try:
        found = read_about(file)
    except DataError as error:
        ui.warn(f"{error.problem}; it is predicted again")
        return None
    if why := found.difference(about):
        fix = "name a new folder: --output FOLDER"
        if found.precision != about.precision:
            fix += f"; or continue this one with --precision {found.precision}"
        raise UsageError(f"{file}: this part and the new ones {why}", fix)
    return found


def _finished(file: Path, about: PartAbout, first: int, ui: Ui) -> PartAbout | None:
    """The description of a finished part; None if it is to be predicted."""
    found = _check_same_run(about, file, ui) if file.exists() else None
    return found if found is not None and found.first == first else None
