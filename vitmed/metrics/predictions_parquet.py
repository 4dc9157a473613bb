"""A predictions.csv as a Parquet file, the part of one shard of a long list of images; the extra `scale`.

A part has the columns of `predict --csv` of its kind of label, and `features` if asked for. Its numbers have their
types and bits; its texts are the cells of the CSV file.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitmed.core.csv_files import from_cell
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import whole_file
from vitmed.core.upgrade import READER
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.predictions_csv import OOD_SCORE

KEY = b"vitmed predictions 2"  # of the description in the file
FEATURES, ERROR = "features", "error"


class WrittenPredictions(NamedTuple):
    """A file of predictions, how many images they are of, and path and problem of those that could not be read."""

    file: Path
    read: int
    errors: tuple[tuple[str, str], ...]


def check_pyarrow(wanted: object) -> None:
    """Raise UsageError, which names what is wanted, if pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError(f"{wanted}: Parquet files need one more package", "pip install 'vitmed[scale]'")


def write_part(file: Path, about: dict[str, Any], predictions: AnyPredictions, features: np.ndarray) -> None:
    """Write a part, with what it says of itself, completely or not at all.

    `features` are (S, D) float32 of the S images that could be read; D is 0 without them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    header, *rows = csv.reader(io.StringIO(predictions.to_csv(errors=True), newline=""))
    types = {name: array.dtype for name, array in predictions.numbers().items()} | {OOD_SCORE: np.dtype(float)}
    columns: dict[str, Any] = dict(zip(header, zip(*rows, strict=True), strict=True))
    for name, cells in columns.items():
        if kind := types.get(from_cell(name)):
            columns[name] = pa.array((float(cell) if cell else None for cell in cells), pa.from_numpy_dtype(kind))
    if features.shape[1]:
        columns[FEATURES] = pa.array([*features, *[None] * (len(rows) - len(features))], pa.list_(pa.float32()))
    with whole_file(file) as stream:
        table = pa.table(columns).replace_schema_metadata({KEY: json.dumps(about)})
        pq.write_table(table, stream, write_page_checksum=True)


def read_part(file: Path) -> tuple[dict[str, Any], Any]:
    """What a part says of itself, and its rows, checked: a `pyarrow.Table` without the features.

    Raises DataError if it is damaged; UsageError if it is of another version.
    """
    import pyarrow.dataset as ds

    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    try:
        parts = ds.dataset(file, format=ds.ParquetFileFormat(default_fragment_scan_options=options))
        table = parts.to_table(columns=[name for name in parts.schema.names if name != FEATURES])
    except (ValueError, OSError) as error:
        problem = f"{file}: not a whole part ({' '.join(str(error).split())[:200]})"
        raise DataError(problem, "remove it, and run the vitmed predict that wrote it again") from None
    if KEY not in (table.schema.metadata or {}):
        fix = f"name a folder of this version's parts; vitmed {READER} merges its own"
        raise UsageError(f"{file}: not a part of this version of vitmed", fix)
    return json.loads(table.schema.metadata[KEY]), table
