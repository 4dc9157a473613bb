"""`vitmed predict --output FOLDER`: one shard of many images as a Parquet file; `vitmed merge`: all parts as one."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vitmed.core.errors import UsageError, excluded
from vitmed.core.files import make_folder, remove_abandoned
from vitmed.core.messages import bar, say
from vitmed.core.options import CHECKPOINT, Images, Option, Precision, Runs
from vitmed.core.places import refuse_file, refuse_inside
from vitmed.core.text import counted
from vitmed.core.text_files import from_cell
from vitmed.metrics.predictions_files import (
    AUTO,
    ERROR,
    WrittenPredictions,
    check_pyarrow,
    read_part,
    read_shard,
    write_part,
)

if TYPE_CHECKING:
    from vitmed.inference.saved_model import SavedModel


def predict_shard(
    images: Images,
    *,
    checkpoint: Annotated[Path | str | SavedModel | None, CHECKPOINT] = None,
    runs: Runs = "runs",
    shard: Annotated[
        str, Option("Only this share of the images, from 1/N to N/N; with --output.", metavar="I/N|auto")
    ] = "1/1",
    precision: Precision = "auto",
    features: Annotated[bool, Option("Also write the features of each image; with --output.")] = False,
    output: Annotated[
        Path | str | None,
        Option("Folder of Parquet parts, one a shard, for many images; vitmed merge joins them.", "--output -o"),
    ] = None,
    device: str = "auto",
    frame: int | None = None,
) -> WrittenPredictions:
    """Predict one shard of many images and write it as a Parquet file. A shard that is finished is skipped.

    All but `shard` is the same for every shard, and as in `predict`; an image that is named twice counts once.
    `features` are D float32 of each image, the input of the head.

    Raises:
        UsageError: no such shard, or a part of it that is of another checkpoint or list of images.
    """
    # Here, since merge needs no torch.
    from vitmed.inference.open_model import find_checkpoint, find_named, list_images, open_files
    from vitmed.inference.saved_model import check_precision

    if output is None:
        raise excluded("folder of parts")
    check_precision(precision)
    part, folder = read_shard(shard, os.environ), Path(output)
    check_pyarrow(folder)
    refuse_file(folder)
    sources: list[str | Path] = [images] if isinstance(images, str | Path) else list(images)
    saved = find_checkpoint(checkpoint, runs)
    for place in (*filter(Path.is_dir, find_named(sources)), saved.splits.root):
        refuse_inside(place, folder)
    every = list(dict.fromkeys(list_images(sources)))
    rows = part.rows(len(every))
    names = every[rows.start : rows.stop]
    device = _device_of_rank() if device == "auto" and shard == AUTO else device
    network, files = open_files(names, saved, device, precision, frame)
    settings = [saved.policy and saved.policy.to_json(), files.how.to_dict(), features]
    about = {
        "checkpoints": saved.weights_hash,
        "settings": hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest(),
        "precision": network.precision,
        "lists of images": hashlib.sha256(b"".join(os.fsencode(name) + b"\0" for name in every)).hexdigest(),
        "images": len(every),
        "shards": part.count,
        "shard": part.number,
    }
    make_folder(folder)
    remove_abandoned(folder)
    file, errors = folder / f"part-{part.number:05d}-of-{part.count:05d}.parquet", tuple[tuple[str, str], ...]()
    if file.exists():
        written, table = read_part(file)
        if differing := [name for name in about if written[name] != about[name]]:
            raise UsageError(f"{file} is there, of other {differing[0]}", "name a new folder: --output FOLDER")
        cells = zip(table["path"].to_pylist(), table[ERROR].to_pylist(), strict=True)
        errors = tuple((from_cell(path), from_cell(problem)) for path, problem in cells if problem)
    elif names:
        with bar(f"predicting shard {part}") as advance:
            outputs = network.outputs(files.read, len(files), advance, features)
        predictions = saved.decided(files.predictions(saved, outputs))
        errors = predictions.errors
        write_part(file, about, predictions, outputs.features)
    say(f"shard {part}: {counted(len(names), 'image')} in {file}")
    return WrittenPredictions(file, len(names) - len(errors), errors)


def _device_of_rank() -> str:
    """The GPU of this process where torchrun started one for each GPU of a machine, else "auto"."""
    import torch

    local = os.environ.get("LOCAL_RANK", "")
    chosen = local.isdecimal() and torch.cuda.is_available()
    return f"cuda:{int(local) % torch.cuda.device_count()}" if chosen else "auto"
