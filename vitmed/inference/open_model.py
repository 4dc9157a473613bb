"""Opening what `vitmed train` and `vitmed export` wrote, and choosing what runs it; torch only for a checkpoint."""

import contextlib
import glob
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.core.errors import DataError, UsageError
from vitmed.core.messages import say, warn
from vitmed.core.places import local_path, refuse_archive
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted_doing
from vitmed.data.folders import image_names, import_fix
from vitmed.data.patients import DICOM, patient_id
from vitmed.decisions.policy import DecisionPolicy
from vitmed.imaging.choose_window import lost_outside
from vitmed.imaging.decode import read_header
from vitmed.imaging.preprocessing import JointPreprocessing, Preprocessing
from vitmed.imaging.window import asked_window
from vitmed.inference.ensemble import Ensemble, EnsembleNetwork, load_ensemble
from vitmed.inference.onnx_model import ONNX, OnnxModel, OnnxNetwork, load_onnx
from vitmed.inference.saved_model import Network, Outputs, SavedModel
from vitmed.metrics.predictions import Predictions


def open_model(path: str | Path) -> SavedModel:
    """Read a checkpoint, the best.pt of a run folder, an exported .onnx file, a folder with one of them alone, or an
    ensemble. Raises CheckpointError: missing, not a model of vitmed, damaged, or with code in it."""
    if Path(path).suffix == ONNX:
        return load_onnx(Path(path))
    run, exported = RunFolder(path), list(Path(path).glob(f"*{ONNX}"))
    for place in (Path(path), run.ensemble, RunFolder(run.joined).ensemble):  # the file, its folder, the joined folds
        if place.name == run.ensemble.name and place.is_file():
            return load_ensemble(place)
    if len(exported) == 1 and not run.best.exists() and not run.last.exists():  # of a bundle without torch
        return load_onnx(exported[0])
    from vitmed.inference.checkpoint import load_checkpoint

    return load_checkpoint(path)


def open_network(saved: SavedModel, policy: DecisionPolicy | None, device: str, precision: str) -> Network:
    """What runs a model here, for `policy`; None leaves the OOD scores out. Device and precision are those of
    `predict`. Raises UsageError: this machine, or an exported model, has no such device or precision."""
    if isinstance(saved, OnnxModel):
        return OnnxNetwork(saved, device, precision)
    if isinstance(saved, Ensemble):
        networks = [open_network(member, member.policy, device, precision) for member in saved.members]
        return EnsembleNetwork(saved, networks)
    from vitmed.inference.checkpoint import Checkpoint
    from vitmed.inference.predict import TorchNetwork, choose_precision
    from vitmed.models.hardware import pick_device

    assert isinstance(saved, Checkpoint)
    where = pick_device(device)
    return TorchNetwork(saved, policy, where, choose_precision(precision, saved, policy, where))


def find_checkpoint(checkpoint: str | Path | SavedModel | None, runs: str | Path) -> SavedModel:
    """The named checkpoint, or the best one of the newest run; a message then says which."""
    if isinstance(checkpoint, SavedModel):
        return checkpoint
    if checkpoint is not None:
        return open_model(checkpoint)
    newest = RunFolder.newest(runs)
    saved = open_model(newest.best)
    say(f"checkpoint {newest.best} (the newest run; --checkpoint names another)")
    return saved


IDLE_WINDOW = "--window {} changes nothing: no image has more than 8 bits"
# of deep images that are answered by a model of 8-bit images
WINDOWED = "shown to the model in the window {} (centre/width), which was asked for; it learnt from 8-bit images"
Copies = Mapping[str, Path]  # address -> where its copy lies
RAW = (
    "holds no decision policy: the probabilities are raw and the likeliest class is predicted; predict with the "
    "best.pt of a run, which has calibration, operating point and prediction sets"
)


@dataclass(frozen=True)
class ImageFiles:
    """Image files and how to read them; a file that is named by an address is read from its copy."""

    names: Sequence[str]
    how: Preprocessing
    places: Copies = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> np.ndarray:
        """(S, S, C) uint8. Raises DataError if it cannot be read."""
        path = self.path(name := self.names[index])
        try:
            return self.how.read(path)
        except DataError as error:
            raise DataError(error.problem.replace(f"{path}", name), error.fix) from None

    def path(self, name: str) -> str | Path:
        """Where an image lies, whatever names it."""
        return self.places.get(name, name)

    def predictions(self, saved: SavedModel, outputs: Outputs) -> Predictions:
        """The predictions for the readable files; `errors` names the others."""
        names, window, columns = tuple(self.names[i] for i in outputs.indices), self.how.window, outputs.columns
        if asked_window(window) is not None:  # an image of 8 bits has none
            deep = [read_header(self.path(name)).needs_window for name in names]
            columns = {**columns, "window": tuple(str(window) * needs for needs in deep)}
        errors = tuple((self.names[i], problem) for i, problem in sorted(outputs.problems.items()))
        predictions = saved.predictions(names, outputs.logits, columns, errors)
        if saved.config.data.groups == DICOM:
            with contextlib.suppress(ImportError):  # of pydicom, without which no file here is DICOM
                groups = tuple(patient_id(Path(self.path(name)))[0] for name in names)
                return replace(predictions, groups=groups if any(groups) else None)
        return predictions


def files_for(
    names: Sequence[str], saved: SavedModel, frame: int | None, window: str | None = None, places: Copies | None = None
) -> ImageFiles:
    """Give the files as a model reads them; warns of what makes its answers worse."""
    if saved.policy is None:
        warn(f"{saved.path}: {RAW}")
    files, deep = ImageFiles(names, preprocessing_of(saved, frame, window), places or {}), dict[Path, Any]()  # headers
    for path in (Path(files.path(name)) for name in names) if files.how.window is not None else ():
        with contextlib.suppress(DataError):  # an unreadable image is reported later
            deep[path] = read_header(path)
    flat = sum(not header.needs_window for header in deep.values())
    if window is not None and asked_window(window) is not None:
        warn(IDLE_WINDOW.format(window) if flat and flat == len(deep) else f"deep images are {WINDOWED.format(window)}")
    elif flat:
        found = counted_doing(flat, "image", "has 8 bits and is", "have 8 bits and are")
        warn(f"{found} not windowed; the window of the model is for deeper images")
    by_depth = sorted((path for path in deep if deep[path].needs_window), key=lambda path: deep[path].bits)
    for lost in lost_outside(by_depth, files.how.frame, files.how.window):  # some of them, the flattest too
        warn(f"{'the window of the model' if window is None else f'--window {window}'}: {lost}")
    return files


def warn_of_seen(names: Sequence[str], saved: SavedModel) -> None:
    """Warn of images that made the model, known by their place in its data folder; an exported model names none."""
    splits = {"val": "validation", "train": "training"}
    samples = {each.path: word for part, word in splits.items() for each in saved.splits.samples.get(part, ())}
    files = {path.rpartition("/")[2] for path in samples}
    alike = [name for name in names if name.rpartition("/")[2] in files]  # few, so their folders can be looked up
    if not alike:
        return
    wanted, folder = {name.rpartition("/")[2] for name in alike}, cache(os.path.realpath)

    def place(path: str) -> str:
        above, name = os.path.split(path)
        return f"{folder(above)}/{name}"

    root = local_path(saved.splits.root).as_posix()
    made_with = {place(f"{root}/{path}"): samples[path] for path in samples if path.rpartition("/")[2] in wanted}
    seen = Counter(made_with[at] for at in map(place, alike) if at in made_with)
    if seen:
        which = " and ".join(f"{seen[word]:,} in the {word} split" for word in sorted(seen))
        made = f"{seen.total():,} of {counted_doing(len(names), 'image', 'was', 'were')} used to make this model"
        warn(f"{made} ({which} of the run): numbers from them are too good")


def paths_of(images: str | Path | Iterable[str | Path]) -> list[str | Path]:
    """One path, or several, as a list."""
    return [images] if isinstance(images, str | Path) else list(images)


def list_images(images: str | Path | Iterable[str | Path]) -> list[str]:
    """List files, images in folders, and matches of patterns. Raises DataError without any."""
    files, names = list[str](), paths_of(images)
    for path in find_named(names):
        refuse_archive(path)
        if path.is_dir() and RunFolder(path).is_run:  # its images are figures
            fix = f"name images, and --checkpoint {path}; or {path}/*.png if they are images"
            raise UsageError(f"{path}: is a run, expected images", fix)
        # a missing file becomes a row with its error
        inside = image_names(path, (path / "_").as_posix()[:-1]) if path.is_dir() else [path.as_posix()]
        if not inside and path in map(Path, names):
            raise DataError(f"{path}: no images in this folder", import_fix(path) or "name a folder of images")
        files += inside
    if not files:
        raise DataError("no image is named", "vitmed predict image.png")
    return files


def find_named(names: Sequence[str | Path]) -> list[Path]:
    """Find files and folders by name, and the matches of patterns. Raises DataError for a pattern without any."""
    paths: list[Path] = []
    for name in map(local_path, names):
        if not glob.has_magic(str(name)) or Path(name).exists():
            paths.append(Path(name))
            continue
        matches = sorted(Path(match) for match in glob.glob(str(name), recursive=True))  # noqa: PTH207  absolute too
        if not matches:
            raise DataError(f"{name}: no file matches", "check the pattern, and quote it for the shell")
        paths += matches
    return paths


def with_window(saved: SavedModel, window: str | None) -> SavedModel:
    """The model as it reads deep images by the `window` of `predict`."""
    return saved if window is None else replace(saved, preprocessing=preprocessing_of(saved, None, window))


def preprocessing_of(saved: SavedModel, frame: int | None, window: str | None = None) -> Preprocessing:
    """How `predict` reads an image: of several frames the one of the run, unless `frame` names another; a model of
    8-bit images reads deep ones by the centre and width of `window`. Raises UsageError for a bad window."""
    if frame is not None and frame < 0:
        raise UsageError(f"--frame {frame}: frames are counted from 0", "--frame 0 is the first")
    how = saved.preprocessing if frame is None else replace(saved.preprocessing, frame=frame)
    if window is None:
        return how
    if how.window is not None:
        raise UsageError(f"--window {window}: {saved.path.name} has the window of its training images", "leave it out")
    if asked_window(window) is None:
        raise UsageError(f"--window {window}: expected the centre and the width of the window", "for example 40/400")
    how = replace(how, window=window)
    if isinstance(how, JointPreprocessing):
        return replace(how, each=tuple(replace(reading, window=window) for reading in how.each))
    return how
