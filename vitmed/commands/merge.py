"""`vitmed merge`: the parts of `predict --shard` as one table. No torch."""

from pathlib import Path
from typing import Annotated

from vitmed.core.errors import DataError, UsageError
from vitmed.core.options import Argument, Force, Option
from vitmed.core.places import new_file
from vitmed.core.run_folder import PREDICTIONS
from vitmed.core.upgrade import READER
from vitmed.metrics.predictions_files import WrittenPredictions, check_pyarrow, merge_parts


def merge(
    folder: Annotated[Path | str, Argument("The --output of vitmed predict.")],
    *,
    output: Annotated[
        Path | str | None, Option("CSV file to write; default predictions.csv in the folder.", "--output -o")
    ] = None,
    force: Force = False,
) -> WrittenPredictions:
    """Join the parts that `predict_shard` wrote, after checking that they hold every image of the list exactly once.

    Raises:
        DataError: a part is missing, damaged, there twice, or of another checkpoint or list of images.
    """
    folder = Path(folder)
    check_pyarrow(folder)
    files = sorted(folder.glob("part-*.parquet"))
    if not files:
        what = "holds no part of predictions" if folder.is_dir() else "no such folder"
        raise DataError(f"{folder}: {what}", "vitmed predict IMAGES --output FOLDER")
    file = Path(folder / PREDICTIONS if output is None else output)
    if file.suffix.lower() == ".parquet":
        raise UsageError(f"{file}: merge writes a CSV table; vitmed {READER} also Parquet", "name a .csv file")
    new_file(file, force=force, inputs=files)
    return merge_parts(folder, files, file)
