"""`vitmed merge`: the parts of all shards to one predictions.csv, with every image once."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from vitmed.core.csv_files import from_cell
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import whole_file
from vitmed.core.messages import bar, say
from vitmed.core.outputs import check_output
from vitmed.core.run_folder import PREDICTIONS
from vitmed.core.shards import Shard
from vitmed.core.text import counted, lines_of
from vitmed.core.upgrade import READER
from vitmed.metrics.predictions_csv import OOD_SCORE
from vitmed.metrics.predictions_parquet import WrittenPredictions, check_pyarrow, read_part


def merge(
    folder: str | Path,
    *,
    output: str | Path | None = None,
    force: bool = False,
) -> WrittenPredictions:
    """Join the parts that `predict_shard` wrote, after checking that they hold every image of the list exactly once.

    Args:
        output: the CSV file; default predictions.csv in the folder. force: replace an existing file.

    Raises DataError if a part is missing, damaged, there twice, or of another checkpoint or list of images.
    """
    folder = Path(folder)
    check_pyarrow(folder)
    files = sorted(folder.glob("part-*.parquet"))
    if not files:
        raise DataError(f"{folder}: holds no part of predictions", "vitmed predict IMAGES --output FOLDER")
    file = Path(folder / PREDICTIONS if output is None else output)
    if file.suffix.lower() == ".parquet":
        raise UsageError(f"{file}: merge writes a CSV table; vitmed {READER} also Parquet", "name a .csv file")
    check_output(file, force=force, inputs=files)
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
                cells = [_cell(name, row.get(name)) for name in header]
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
