"""Parts of a large set of predictions as Parquet files, each with a description of its origin. Needs pyarrow, the extra
`scale`.

A part has the columns of predictions.csv of any kind of label, without those of labels and patients; `error` with the
problem of an image that could not be read, and `features` if asked for. Numbers keep their bits.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import ValidationError

from vitmed.core.base_models import Names, Stored
from vitmed.core.csv_files import from_unicode, to_unicode
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import whole_file
from vitmed.core.shards import Shard
from vitmed.core.targets import CLASSES, Target
from vitmed.metrics.any_predictions import AnyPredictions, unlabelled
from vitmed.metrics.predictions_csv import LABEL, OOD_SCORE

if TYPE_CHECKING:
    import pyarrow

ROWS = 16_384  # images of a part, at most
KEY = b"vitmed"  # of the description in the file
FEATURES, ERROR = "features", "error"


class PartAbout(Stored):
    """The origin of a part: which network, which list of images, and which rows of it."""

    format: Literal["vitmed predictions"] = "vitmed predictions"
    version: Literal[1] = 1
    checkpoint: str  # hash of the weights
    settings: str  # digest of all else that decides: policy, preprocessing, features
    listing: str  # digest of the names of all images, in order
    images: int  # of the list
    shard: int  # from 1
    shards: int
    first: int  # the first row of the list in this part, from 0
    rows: int
    unread: int  # images of the part that could not be read
    names: Names  # of the classes, as `to_unicode` writes them
    precision: str = "fp32"  # of the network
    target: Target = CLASSES

    @property
    def outputs(self) -> int:
        """How many numbers the network gives of an image."""
        return 2 if self.target.kind == "number" else len(self.names)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits."""
        return tuple(map(from_unicode, self.names))

    @property
    def end(self) -> int:
        """The first row after this part."""
        return self.first + self.rows

    def difference(self, other: PartAbout) -> str | None:
        """What differs between two parts that cannot belong together, in words; None if they can."""
        if self.checkpoint != other.checkpoint:
            return f"are of different checkpoints (weights {self.checkpoint[:12]} and {other.checkpoint[:12]})"
        if self.settings != other.settings:
            return "were predicted with different settings (decision policy, --frame or --features)"
        if self.precision != other.precision:
            return f"were predicted in different precision ({self.precision} and {other.precision})"
        if (self.listing, self.images) != (other.listing, other.images):
            return f"are of different lists of images ({self.images:,} and {other.images:,} images)"
        if self.shards != other.shards:
            return f"are of {self.shards:,} and of {other.shards:,} shards"
        return None


def check_pyarrow(wanted: object) -> None:
    """Raise UsageError, which names what is wanted, if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UsageError(f"{wanted}: Parquet files need one more package", "pip install 'vitmed[scale]'") from None


def part_file(folder: Path, shard: Shard, number: int) -> Path:
    """The file of part `number`, from 0, of a shard."""
    return folder / f"part-{shard.number:05d}-of-{shard.count:05d}-{number:06d}.parquet"


def part_files(folder: Path) -> list[Path]:
    """All parts in a folder, by name."""
    return sorted(folder.glob("part-*-of-*-*.parquet"))


def listing_digest(names: Iterable[str], digest: Any = None) -> Any:
    """The sha256 of names in their order; continues `digest` if it is given."""
    digest = digest or hashlib.sha256()
    for name in names:
        digest.update(os.fsencode(name) + b"\0")
    return digest


def write_part(
    file: Path, about: PartAbout, names: Sequence[str], predictions: AnyPredictions, features: np.ndarray
) -> None:
    """Write a part completely or not at all.

    Args:
        names: of all its images, in order; predictions: of the S that could be read, in the same order, and the
            problems of the others.
        features: (S, D) float32; D is 0 without them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    problems = dict(predictions.errors)
    read = np.array([name not in problems for name in names], bool)  # (N,)

    def numbers(values: np.ndarray) -> pyarrow.Array:
        every = np.full(len(names), np.nan, values.dtype)
        every[read] = values
        return pa.array(every, mask=np.isnan(every))

    def texts(values: Iterable[str]) -> pyarrow.Array:
        rest = iter(values)
        return pa.array([to_unicode(next(rest)) if good else None for good in read.tolist()], pa.string())

    columns: dict[str, pyarrow.Array] = {"path": pa.array([to_unicode(name) for name in names], pa.string())}
    own, rows = predictions.numbers(), predictions.rows()
    for place, name in enumerate(predictions.header()):
        if name in own or name == OOD_SCORE:
            cells = own[name] if name in own else np.array(predictions.columns[name], np.float64)
            columns[to_unicode(name)] = numbers(cells)
        elif name in predictions.columns or name not in _unknown(predictions.classes):
            columns[to_unicode(name)] = texts(row[place] for row in rows)
    if features.shape[1]:
        every = np.full((len(names), features.shape[1]), np.nan, np.float32)
        every[read] = features
        columns[FEATURES] = pa.FixedSizeListArray.from_arrays(pa.array(every.ravel()), features.shape[1])
    columns[ERROR] = pa.array([to_unicode(problems[name]) if name in problems else None for name in names], pa.string())
    table = pa.table(columns).replace_schema_metadata({KEY: about.model_dump_json()})
    with whole_file(file) as stream:
        pq.write_table(table, stream, write_page_checksum=True)


def read_about(file: Path) -> PartAbout:
    """The description of a part, without its rows. Raises DataError if the file is torn, or no part."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open("rb") as stream:
            head = pq.read_metadata(stream)
        about = PartAbout.model_validate_json((head.metadata or {})[KEY])
        if head.num_rows != about.rows:
            raise ValueError(f"{head.num_rows:,} rows, expected {about.rows:,}")
    except (pa.ArrowException, OSError, ValidationError, ValueError, KeyError) as error:
        why = "has no description by vitmed" if isinstance(error, KeyError | ValidationError) else str(error)
        raise _torn(file, why) from None
    return about


def read_part(file: Path) -> pyarrow.Table:
    """The rows of a part, with their checksums checked. Raises DataError if it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open("rb") as stream:
            return pq.read_table(stream, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise _torn(file, str(error)) from None


def names_of(table: pyarrow.Table) -> list[str]:
    """The names of the images of a part."""
    return [from_unicode(name) for name in table["path"].to_pylist()]


def errors_of(table: pyarrow.Table) -> tuple[tuple[str, str], ...]:
    """Path and problem of the images of a part that could not be read."""
    found = zip(names_of(table), table[ERROR].to_pylist(), strict=True)
    return tuple((name, from_unicode(problem)) for name, problem in found if problem is not None)


def header_of(table: pyarrow.Table, about: PartAbout) -> list[str]:
    """The columns of the predictions.csv of a part, in order."""
    empty = unlabelled(about.target, about.classes, (), np.empty((0, about.outputs), np.float32), (), {}).header()
    further = [from_unicode(name) for name in table.column_names if name not in (FEATURES, ERROR)]
    return [*empty, *(name for name in further if name not in empty)]


def rows_of(table: pyarrow.Table, header: Sequence[str]) -> list[list[str]]:
    """The rows of a predictions.csv: of the images of a part that could be read, as they were before it was written."""
    read = table.filter(table[ERROR].is_null())

    def cells(name: str) -> list[str]:
        if to_unicode(name) not in table.column_names:
            return [""] * len(read)
        values = read[to_unicode(name)].to_pylist()  # a float32 is exact
        if name == OOD_SCORE:
            return [f"{value:.6g}" for value in values]
        texts = (from_unicode(value) if isinstance(value, str) else value for value in values)
        return ["" if value is None else value if isinstance(value, str) else repr(value) for value in texts]

    return [list(row) for row in zip(*map(cells, header), strict=True)]


def _unknown(classes: Sequence[str]) -> set[str]:
    """Columns of labels and patients, which the images of a part have not; and that of their names."""
    return {"path", "label", "group", *(LABEL + name for name in classes)}


def in_order(parts: Sequence[tuple[PartAbout, Path]]) -> Iterator[tuple[PartAbout, Path, pyarrow.Table]]:
    """The rows of parts that together hold a list of images, part by part.

    Raises:
        DataError: a part is damaged; after the last part, if the names are not those of the list.
    """
    digest = listing_digest(())
    for about, file in parts:
        table = read_part(file)
        listing_digest(names_of(table), digest)
        yield about, file, table
    if parts and digest.hexdigest() != parts[0][0].listing:
        problem = "the parts do not hold the images of their list, each once and in order"
        raise DataError(f"{parts[0][1].parent}: {problem}", "predict again into a new folder")


def _torn(file: Path, why: str) -> DataError:
    return DataError(
        f"{file}: not a whole part ({' '.join(why.split())[:200]})",
        "run the vitmed predict that wrote it again: it replaces what is damaged",
    )
