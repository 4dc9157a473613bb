"""`vitmed merge`: the parts of all shards to one predictions.csv or Parquet file, with every image once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vitmed.core.csv_files import csv_text
from vitmed.core.errors import DataError
from vitmed.core.files import whole_file
from vitmed.core.outputs import check_output
from vitmed.core.run_folder import PREDICTIONS
from vitmed.core.shards import Shard
from vitmed.core.text import counted
from vitmed.core.ui import Advance, Ui
from vitmed.metrics.predictions_parquet import (
    ERROR,
    KEY,
    PartAbout,
    check_pyarrow,
    errors_of,
    header_of,
    in_order,
    part_files,
    read_about,
    rows_of,
)

Parts = list[tuple[PartAbout, Path]]


@dataclass(frozen=True)
class Merged:
    """The file, how many of its images were read and how many not, and path and problem of the latter."""

    file: Path
    read: int
    unread: int
    errors: tuple[tuple[str, str], ...]


def merge(folder: str | Path, *, output: str | Path | None = None, force: bool = False, ui: Ui | None = None) -> Merged:
    """Join the parts that `predict_shard` wrote, after checking that they hold every image of the list exactly once.

    Memory does not grow with the number of images, but for those that could not be read.

    Args:
        folder: the folder of the parts.
        output: the file; default predictions.csv in the folder. A name in .parquet gets one Parquet file, with the
            features if the parts have them; any other a CSV table as `vitmed predict --csv` writes it.
        force: replace an existing file.

    Raises:
        DataError: a part is missing, torn, there twice, or of another checkpoint or list of images.
        UsageError: the file may not be written, or pyarrow is not installed.
    """
    ui, folder = ui or Ui(), Path(folder)
    check_pyarrow(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder", "name the --output of vitmed predict")
    files = part_files(folder)
    file = Path(folder / PREDICTIONS if output is None else output)
    check_output(file, force=force, inputs=files)
    parts = _checked(folder, [(read_about(part), part) for part in files])
    write = _parquet if file.suffix.lower() == ".parquet" else _csv
    with ui.bar("merging") as advance, whole_file(file) as stream:
        errors = write(parts, stream, advance)
    images, unread = parts[0][0].images, sum(about.unread for about, _ in parts)
    ui.say(f"{file}: {counted(images, 'image')} of {counted(len(parts), 'part')}, each once")
    return Merged(file, images - unread, unread, tuple(errors))


def _checked(folder: Path, parts: Parts) -> Parts:
    """The parts in the order of the list. Raises DataError unless their rows are those of one whole list."""
    if not parts:
        raise DataError(f"{folder}: holds no part of predictions", "vitmed predict IMAGES --output FOLDER")
    (about, file), *others = parts
    for other, second in others:
        if why := about.difference(other):
            raise DataError(f"{file} and {second} {why}", "keep the parts of one run in a folder")
    parts, at = sorted(parts, key=lambda part: part[0].first), 0
    missing: dict[str, int] = {}  # shard -> images
    for k, (found, file) in enumerate(parts):
        if found.first < at:
            raise DataError(f"{parts[k - 1][1]} and {file} hold the same images", "remove one of them")
        _count_missing(missing, about, at, found.first)
        at = found.end
    _count_missing(missing, about, at, about.images)
    if missing:
        shards = ", ".join(f"shard {name} ({counted(count, 'image')})" for name, count in list(missing.items())[:20])
        more = f" and {len(missing) - 20:,} more" if len(missing) > 20 else ""
        problem = f"{folder}: {sum(missing.values()):,} of {counted(about.images, 'image')} are missing"
        fix = f"run the same vitmed predict again with --shard {next(iter(missing))}, and so on; it skips what is done"
        raise DataError(f"{problem}: {shards}{more}", fix)
    return parts


def _count_missing(missing: dict[str, int], about: PartAbout, start: int, stop: int) -> None:
    for number in range(1, about.shards + 1) if start < stop else ():
        rows = Shard(number, about.shards).rows(about.images)
        if (count := min(stop, rows.stop) - max(start, rows.start)) > 0:
            name = str(Shard(number, about.shards))
            missing[name] = missing.get(name, 0) + count


def _csv(parts: Parts, stream: BinaryIO, advance: Advance) -> list[tuple[str, str]]:
    errors: list[tuple[str, str]] = []
    columns: list[str] = []
    for about, _, table in in_order(parts):
        text = ""
        if not columns:
            columns = header_of(table, about)
            text = csv_text([[*columns, ERROR]])
        text += csv_text([*row, ""] for row in rows_of(table, columns))
        stream.write(text.encode("utf-8", "backslashreplace"))
        errors += errors_of(table)
        advance(about.end, about.images)
    unread = csv_text([path, *[""] * (len(columns) - 1), problem] for path, problem in errors)
    stream.write(unread.encode("utf-8", "backslashreplace"))
    return errors


def _parquet(parts: Parts, stream: BinaryIO, advance: Advance) -> list[tuple[str, str]]:
    import pyarrow.parquet as pq

    errors: list[tuple[str, str]] = []
    writer = None
    for about, _, table in in_order(parts):
        if writer is None:
            whole = about.model_copy(
                update={"shard": 1, "shards": 1, "rows": about.images, "unread": sum(a.unread for a, _ in parts)}
            )
            schema = table.schema.with_metadata({KEY: whole.model_dump_json()})
            writer = pq.ParquetWriter(stream, schema, write_page_checksum=True)
        writer.write_table(table.replace_schema_metadata(schema.metadata))
        errors += errors_of(table)
        advance(about.end, about.images)
    if writer is not None:
        writer.close()
    return errors
