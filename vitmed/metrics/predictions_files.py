"""Predictions of any kind of label in files: a predictions.csv, and the same as Parquet files, one for each shard of a
long list of images (the extra `scale`).

A part has the columns of `predict --csv` of its kind of label, `version` (what changes with the content of the image)
and, if asked for, `features`. Its numbers have their types and bits; its texts are the cells of the CSV file.
"""

import csv
import importlib.util
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitmed.core.base_models import Kind, Target
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import whole_file
from vitmed.core.messages import bar, say
from vitmed.core.text import counted, counted_doing, lines_of
from vitmed.core.text_files import from_cell
from vitmed.core.upgrade import READER
from vitmed.metrics.kinds.findings import FindingPredictions, is_of_findings
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import ANSWER, OOD_SCORE, RAW, YES, Table, read_table

KEY = b"vitmed predictions 3"  # of the description in the file
FEATURES, ERROR, VERSION = "features", "error", "version"

PREDICTIONS: dict[Kind, type[Predictions]] = {
    "classes": Predictions,
    "grades": Predictions,
    "findings": FindingPredictions,
    "number": NumberPredictions,
}


def read_predictions(
    file: str | Path | Table,
    target: Target | None = None,
    labelled: bool = False,
    as_decided: bool = False,
    calibrate: Callable[[Any], Any] | None = None,
) -> Predictions:
    """Read a predictions.csv; its columns say of which kind it is. The other arguments are those of `from_csv`. Of
    findings that must be `labelled`, images without a known label are left out."""
    table = read_table(file)
    kind: Kind = "number" if {*RAW} <= {*table.header} else "classes"
    kind = "findings" if is_of_findings(table.header, table.rows) else kind
    read = PREDICTIONS[kind].from_csv(table, labelled, as_decided, calibrate, target)
    if labelled and kind == "findings" and not (known := read.outcomes[1].any(axis=1)).all():
        lack = counted_doing(int((~known).sum()), "image", "has no known label and is", "have no known label and are")
        left = read.take(np.flatnonzero(known))
        return replace(left, errors=read.errors, notes=(*read.notes, f"{lack} left out."))
    return read


class WrittenPredictions(NamedTuple):
    """A file of predictions, its number of images, and path and problem of each image that could not be read."""

    file: Path
    read: int
    errors: tuple[tuple[str, str], ...]


def check_pyarrow(wanted: object) -> None:
    """Raise UsageError, which names what is wanted, if pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError(f"{wanted}: Parquet files need one more package", "pip install 'vitmed[scale]'")


def write_part(
    file: Path, about: dict[str, Any], predictions: Predictions, features: np.ndarray, versions: Mapping[str, str]
) -> None:
    """Write a part, with what it says of itself, completely or not at all. `features` are (S, D) float32 of the S
    images that could be read; D is 0 without them. `versions` are of the images, by name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    header, *rows = csv.reader(io.StringIO(predictions.to_csv(errors=True), newline=""))
    numbers = {name: cells for name, cells in predictions.cells().items() if isinstance(cells, np.ndarray)}
    types = {name: cells.dtype for name, cells in numbers.items()} | {OOD_SCORE: np.dtype(float)}
    columns: dict[str, Any] = dict(zip(header, zip(*rows, strict=True), strict=True))
    for name, cells in columns.items():
        if kind := types.get(from_cell(name)):
            columns[name] = pa.array((float(cell) if cell else None for cell in cells), pa.from_numpy_dtype(kind))
    columns[VERSION] = [versions.get(name, "") for name in (*predictions.paths, *dict(predictions.errors))]
    if features.shape[1]:
        columns[FEATURES] = pa.array([*features, *[None] * (len(rows) - len(features))], pa.list_(pa.float32()))
    with whole_file(file) as stream:
        table = pa.table(columns).replace_schema_metadata({KEY: json.dumps(about)})
        pq.write_table(table, stream, write_page_checksum=True)


def read_part(file: Path, without: Sequence[str] = (FEATURES, VERSION)) -> tuple[dict[str, Any], Any]:
    """What a part says of itself, and its rows, checked: a `pyarrow.Table` without these columns. Raises DataError if
    it is damaged; UsageError if it is of another version."""
    import pyarrow.dataset as ds

    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    try:
        parts = ds.dataset(file, format=ds.ParquetFileFormat(default_fragment_scan_options=options))
        table = parts.to_table(columns=[name for name in parts.schema.names if name not in without])
    except (ValueError, OSError) as error:
        problem = f"{file}: not a whole part ({' '.join(str(error).split())[:200]})"
        raise DataError(problem, "remove it, and run the vitmed predict that wrote it again") from None
    if KEY not in (table.schema.metadata or {}):
        fix = f"name a folder of this version's parts; vitmed {READER} merges its own"
        raise UsageError(f"{file}: not a part of this version of vitmed", fix)
    return json.loads(table.schema.metadata[KEY]), table


def merge_parts(folder: Path, files: Sequence[Path], file: Path) -> WrittenPredictions:
    """Join the parts of all shards to one CSV file, with every image once.

    Args:
        folder: of the parts, for messages; files: the parts, at least one.

    Raises:
        DataError: a part is missing, damaged, there twice, or of another checkpoint or list of images.
    """
    first, header, places = read_part(files[0])[0], list[str](), dict[int, Path]()
    for part in files:
        about, table = read_part(part)
        if differing := [name for name in first if name != "shard" and about[name] != first[name]]:
            problem = f"{files[0]} and {part} are of different {differing[0]}"
            raise DataError(problem, "keep the parts of one run in a folder")
        if (other := places.setdefault(about["shard"], part)) != part:
            raise DataError(f"{other} and {part} hold the same images", "remove one of them")
        if len(table) != len(Shard(about["shard"], about["shards"]).rows(about["images"])):
            raise DataError(f"{part}: holds {len(table):,} rows, not those of its shard", "predict it again")
        header = max(header, table.column_names, key=len)  # all columns, if one of the images could be read
    shards = [Shard(number, first["shards"]) for number in range(1, first["shards"] + 1)]
    if missing := [f"--shard {one}" for one in shards if one.number not in places and one.rows(first["images"])]:
        problem = f"{folder}: {len(missing):,} of {counted(len(shards), 'part')} missing:\n{lines_of(missing)}"
        raise DataError(problem, f"run the same vitmed predict again with {missing[0]}, and so on")
    unread = list[list[str]]()
    with bar("merging", unit="parts") as advance, whole_file(file) as stream:
        text = io.TextIOWrapper(stream, "utf-8", newline="", write_through=True)
        csv.writer(text).writerow(header)
        for done, number in enumerate(sorted(places), 1):
            for row in read_part(places[number])[1].to_pylist():
                cells = [_cell(name, row.get(name, YES * (name == ANSWER and not row[ERROR]))) for name in header]
                if cells[-1]:
                    unread.append(cells)
                else:
                    csv.writer(text).writerow(cells)
            advance(done, len(places))
        csv.writer(text).writerows(unread)
        text.detach()
    say(f"{file}: {counted(first['images'], 'image')} of {counted(len(files), 'part')}, each once")
    errors = ((from_cell(row[0]), from_cell(row[-1])) for row in unread)
    return WrittenPredictions(file, first["images"] - len(unread), tuple(errors))


def _cell(name: str, value: str | float | None) -> str:
    """The cell of a CSV file as it was before the part was written."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.6g}" if name == OOD_SCORE else repr(value)


# --- `--shard 2/4`: one share of a long list of images, or the one that torchrun or a Slurm array gives this process

AUTO = "auto"
FIX = "name it: --shard 1/4 to --shard 4/4, for example"
MALFORMED = "no such shard; expected NUMBER/COUNT, from 1/COUNT to COUNT/COUNT"
UNKNOWN = "neither torchrun (RANK, WORLD_SIZE) nor a Slurm array of even steps started this process"
RANKS, TASKS = ("RANK", "WORLD_SIZE"), tuple(f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "COUNT"))


@dataclass(frozen=True)
class Shard:
    """Share `number` of `count`, from 1: a block of neighbours in the list, as long as the others to within one."""

    number: int
    count: int

    def rows(self, images: int) -> range:
        """The rows of this shard, in a list of this number of images."""
        return range(images * (self.number - 1) // self.count, images * self.number // self.count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def read_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """The shard that `--shard` names: "2/4"; or "auto", from RANK and WORLD_SIZE, as torchrun sets them for several
    processes, else from the SLURM_ARRAY_TASK_ variables, whose lowest task is shard 1. Raises UsageError for none."""
    sources = (TASKS, RANKS) if environment.get("WORLD_SIZE") == "1" else (RANKS, TASKS)
    names = next((names for names in sources if environment.keys() >= {*names}), ())
    words = [environment[name] for name in names] if text == AUTO else text.split("/")
    numbers = [int(word) if re.fullmatch("[0-9]{1,7}", word, re.ASCII) else -1 for word in words]
    if text == AUTO and len(numbers) == 4:  # the lowest task and the highest, with the same step between all
        task, low, high, count = numbers
        step = (high - low) // max(1, count - 1) or 1
        even = low + step * (count - 1) == high and (task - low) % step == 0
        numbers = [(task - low) // step + 1, count * even]
    elif text == AUTO:
        numbers = [number + (k == 0) for k, number in enumerate(numbers)]  # ranks begin at 0
    if len(numbers) == 2 and 1 <= numbers[0] <= numbers[1]:
        return Shard(*numbers)
    raise UsageError(f"--shard {text}: {UNKNOWN if text == AUTO else MALFORMED}", FIX)
