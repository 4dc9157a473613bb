"""`vitmed predict --output FOLDER`: one shard of many images as a Parquet file."""

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from vitmed.core.errors import CheckpointError, DataError, UsageError, excluded
from vitmed.core.files import make_folder, remove_abandoned
from vitmed.core.messages import bar, say
from vitmed.core.options import CHECKPOINT, Images, On, Option, Precision, Runs, Strict
from vitmed.core.places import new_folder
from vitmed.core.remote import fetched, names_below
from vitmed.core.run_folder import is_remote
from vitmed.core.text import counted, quoted
from vitmed.core.text_files import from_cell
from vitmed.imaging.decode import is_image
from vitmed.inference import open_model as models
from vitmed.inference.saved_model import Network, SavedModel, check_precision
from vitmed.metrics import predictions_files as parts
from vitmed.metrics.predictions_files import Shard, WrittenPredictions
from vitmed.studies.cluster import VARIABLE, each, opened, prepare, three

ALL = "1/1"
PARTS, FEWEST, MOST = 400, 256, 16_384  # with `on`: about so many parts, and images of one


class How(NamedTuple):
    """What is the same for every shard: the file of the checkpoint, how it predicts, and what each part states."""

    checkpoint: Path
    device: str
    precision: str
    frame: int | None
    features: bool
    folder: Path
    about: dict[str, Any]


def predict_shard(
    images: Images,
    *,
    checkpoint: Annotated[Path | str | SavedModel | None, CHECKPOINT] = None,
    runs: Runs = "runs",
    shard: Annotated[
        str, Option("Only this share of the images, from 1/N to N/N; with --output.", metavar="I/N|auto")
    ] = ALL,
    precision: Precision = "auto",
    features: Annotated[bool, Option("Also write the features of each image; with --output.")] = False,
    output: Annotated[
        Path | str | None,
        Option("Folder of Parquet parts, one a shard, for many images; vitmed merge joins them.", "--output -o"),
    ] = None,
    device: str = "auto",
    frame: int | None = None,
    on: On = None,
    strict: Strict = False,
) -> WrittenPredictions:
    """Predict one shard of many images and write it as a Parquet file. A shard that is finished is skipped.

    All but `shard` is the same for every shard, and as in `predict`; an image that is named twice counts once.
    `features` are D float32 of each image, the input of the head. With `on` all shards; their number follows from that
    of the images, and the result names the folder.

    Raises:
        UsageError: no such shard, or a part of it that is of another checkpoint or list of images.
    """
    if output is None:
        raise excluded("folder of parts")
    if on is not None and shard != ALL:
        raise excluded("on and shard")
    check_precision(precision)
    part, folder = parts.read_shard(shard, os.environ), Path(output)
    if folder.suffix.lower() in (".csv", ".tsv", ".txt", ".json", ".parquet") and not folder.is_dir():
        raise UsageError(f"{folder}: --output names a folder of Parquet parts", "--csv FILE writes one table")
    parts.check_pyarrow(folder)
    new_folder(folder, filled=True)
    sources = models.paths_of(images)
    divides = shard == ALL and (on or os.environ.get(VARIABLE)) is not None
    with opened(on if divides else "local", strict=strict) as places:
        saved = models.find_checkpoint(checkpoint, runs)
        named, every, versions = _listed(sources)
        models.warn_of_seen(every, saved)
        new_folder(folder, [*filter(Path.is_dir, named), saved.splits.root], filled=True)
        count = -(-len(every) // min(max(len(every) // PARTS, FEWEST), MOST)) if divides else part.count
        shards = [Shard(number, count) for number in range(1, count + 1)] if divides else [part]
        local = os.environ.get("LOCAL_RANK", "")
        if device == "auto" and shard == parts.AUTO and local.isdecimal():  # torchrun has a process for each GPU
            import torch  # here, since an exported model needs none

            device = f"cuda:{int(local) % torch.cuda.device_count()}" if torch.cuda.is_available() else device
        how = How(saved.path, device, precision, frame, features, folder, _about(saved, every, frame, features))
        versions |= {path.as_posix(): "" for path in named if not path.exists()}
        written = list(_write_shards(places.executor, how, shards, every, versions, saved))
    errors = tuple(error for one in sorted(written) for error in one.errors)
    if divides:
        say(f"{counted(len(every), 'image')} in {counted(count, 'part')}; to join them: vitmed merge {quoted(folder)}")
    return WrittenPredictions(folder if divides else written[0].file, sum(one.read for one in written), errors)


def _listed(sources: list[str | Path]) -> tuple[list[Path], list[str], dict[str, str]]:
    """The files and folders that are named, and the name of every image once; at an address its address -> version."""
    here = [source for source in sources if not is_remote(source)]
    below = {name: at for source in filter(is_remote, sources) for name, at in names_below(f"{source}").items()}
    names = models.list_images(here) if here or not below else []
    every = list(dict.fromkeys([*names, *filter(is_image, below)]))
    if not every:
        raise DataError(f"{sources[0]}: no image lies there", "name an address with images")
    return models.find_named(here), every, below


def _write_shards(
    place: Executor | None, how: How, shards: list[Shard], names: list[str], versions: dict[str, str], saved: SavedModel
) -> Iterator[WrittenPredictions]:
    """Write the shards, here one after another, and yield each that is written."""
    make_folder(how.folder)
    remove_abandoned(how.folder)
    write = write_shard
    if place is None:
        write = partial(write_shard, network=models.open_network(saved, saved.policy, how.device, how.precision))
    prepare(place, [how.checkpoint, *three([name for name in names if not is_remote(name)])], how.folder)
    blocks = ((one, names[(rows := one.rows(len(names))).start : rows.stop]) for one in shards)
    calls = ((how, one, block, {name: versions[name] for name in block if name in versions}) for one, block in blocks)
    for done, one in enumerate(each(place, write, calls), 1):
        if place is not None:
            say(f"{done} of {counted(len(shards), 'part')}: {one.file}")
        yield one


@lru_cache(1)
def _network(path: Path, digest: str, device: str, precision: str) -> Network:
    """Open the model of a worker once. Raises CheckpointError if it is another one than the command's."""
    saved = models.open_model(path)
    if saved.weights_hash != digest:
        raise CheckpointError(f"{path}: has other weights on {platform.node()}", "copy the same file there")
    return models.open_network(saved, saved.policy, device, precision)


def write_shard(
    how: How, part: Shard, names: list[str], versions: dict[str, str], network: Network | None = None
) -> WrittenPredictions:
    """Predict the images of a shard, unless its part is there, and write the part.

    Args:
        versions: of images at addresses; "" of named ones that do not exist. Another that is not here is an error.
        network: opened already; default: that of `how`.
    """
    elsewhere = network is None
    network = network or _network(how.checkpoint, how.about["checkpoints"], how.device, how.precision)
    saved = network.saved
    about = {**how.about, "precision": network.precision, "shards": part.count, "shard": part.number}
    file, errors = how.folder / f"part-{part.number:05d}-of-{part.count:05d}.parquet", tuple[tuple[str, str], ...]()
    for name in names:
        with suppress(OSError, ValueError):  # it is not there
            versions[name] = versions.get(name) or "{0.st_size} {0.st_mtime_ns}".format(Path(name).stat())
    if done := file.exists():
        written, table = parts.read_part(file, [parts.FEATURES])
        if differing := [name for name in about if written[name] != about[name]]:
            raise UsageError(f"{file} is there, of other {differing[0]}", "name a new folder: --output FOLDER")
        cells = (map(from_cell, table[name].to_pylist()) for name in ("path", parts.ERROR, parts.VERSION))
        rows = [*zip(*cells, strict=True)]
        if changed := next((name for name, _, version in rows if versions.get(name) not in (None, version)), None):
            what = "has changed since" if versions[changed] else "is missing, and was there when"
            raise DataError(f"{changed}: {what} {file} was written", f"remove {file}, and run it again")
        errors = tuple((name, problem) for name, problem, _ in rows if problem)
    elif names:
        with fetched(names) as places:
            files = models.files_for(names, saved, how.frame, places=places)
            with bar(f"predicting shard {part}") as advance:
                outputs = network.outputs(files.read, len(files), advance, how.features)
            predictions = saved.decided(files.predictions(saved, outputs))
        errors = predictions.errors
        if unseen := [name for name, _ in errors if elsewhere and name not in versions]:
            raise DataError(f"{platform.node()}: does not see {unseen[0]}", "mount the same files there, and go on")
        parts.write_part(file, about, predictions, outputs.features, versions)
    say(f"shard {part}: {counted(len(names), 'image')} in {file}{', which was finished before' * done}")
    return WrittenPredictions(file, len(names) - len(errors), errors)


def _about(saved: SavedModel, names: list[str], frame: int | None, features: bool) -> dict[str, Any]:
    """What every part of a list of images states, but for its shard and the precision of its network."""
    settings = [saved.policy and saved.policy.to_json(), models.preprocessing_of(saved, frame).to_dict(), features]
    return {
        "checkpoints": saved.weights_hash,
        "settings": hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest(),
        "lists of images": hashlib.sha256(b"".join(os.fsencode(name) + b"\0" for name in names)).hexdigest(),
        "images": len(names),
    }
