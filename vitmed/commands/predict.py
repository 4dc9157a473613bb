"""`vitmed predict`: images -> the class of each with its probability, the findings, or the number."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from vitmed.core.errors import UsageError
from vitmed.core.files import is_stream
from vitmed.core.messages import bar
from vitmed.core.options import CHECKPOINT, AskedWindow, Images, Precision, Runs
from vitmed.core.places import new_file
from vitmed.core.run_folder import address_of, copies
from vitmed.inference.open_model import files_for, find_checkpoint, find_named, list_images, open_network, warn_of_seen
from vitmed.inference.saved_model import SavedModel, check_precision
from vitmed.metrics.predictions import Predictions


def predict(
    images: Images,
    *,
    checkpoint: Annotated[Path | str | SavedModel | None, CHECKPOINT] = None,
    runs: Runs = "runs",
    device: str = "auto",
    precision: Precision = "auto",
    frame: int | None = None,
    window: AskedWindow = None,
) -> Predictions:
    """Predict the labels of images with a checkpoint and its preprocessing.

    Args:
        images: files, folders (searched with their subfolders), and glob patterns.
        checkpoint: a checkpoint, a run folder, an exported .onnx file, or what `open_model` read; default the best of
            the newest run in `runs`.
        precision: "fp32"; "bf16"; or "auto": 16-bit floats if they are faster on this device and changed no decision on
            the validation images of the run.
        frame: the frame of files with several, from 0; default: the frame of the run.
        window: centre and width, such as "40/400", of grey DICOM and other deep images, for a model of 8-bit images;
            the column `window` states it.

    Returns:
        the predictions, paths as given; `errors` names the files that could not be read.

    Raises:
        DataError: nothing to predict. CheckpointError: no run, or a checkpoint that cannot be used.
    """
    check_precision(precision)
    saved = find_checkpoint(checkpoint, runs)
    names, cache = list_images(images), copies().as_posix()  # whose images are shown by their addresses
    warn_of_seen(names, saved)
    shown = [(name.startswith(cache) and address_of(Path(name))) or name for name in names]
    files = files_for(shown, saved, frame, window, dict(zip(shown, map(Path, names), strict=True)))
    network = open_network(saved, saved.policy, device, precision)
    with bar("predicting") as advance:
        return saved.decided(files.predictions(saved, network.outputs(files.read, len(files), advance)))


def find_checkpoint_and_check(
    csv: Path | None,
    plot: Path | None,
    images: Sequence[str | Path],
    checkpoint: str | Path | None,
    runs: str | Path,
    force: bool,
) -> SavedModel:
    """Do as `find_checkpoint`, and check, before the images are read, that a table and a picture may be written: not
    into folders of images, nor into the data folder of the checkpoint. Raises UsageError, DataError."""
    files, named = [file for file in (csv, plot) if file is not None], find_named(images)
    for file in files:  # --force is advised below, where nothing else forbids it
        new_file(file, force=True, data=[path for path in named if path.is_dir()], inputs=named, png=file is plot)
    if csv is not None and plot is not None and csv.resolve() == plot.resolve():
        raise UsageError(f"{csv}: is named as table and as picture", "name two files")
    saved = find_checkpoint(checkpoint, runs)
    for file in files:
        new_file(file, force=force, data=[saved.splits.root])
    if csv is not None and csv.suffix.lower() not in (".csv", ".txt") and not is_stream(csv):
        raise UsageError(f"{csv}: --csv writes a CSV file", "name it so, such as new.csv; or /dev/stdout")
    return saved
