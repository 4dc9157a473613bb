"""`vitmed export`: a checkpoint as a file or folder that other programs run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from vitmed.core.errors import UsageError
from vitmed.core.messages import say
from vitmed.core.options import FIRST, Force, Option, RunFile
from vitmed.core.places import new_file, new_folder
from vitmed.core.upgrade import READER
from vitmed.deploy.export import WEIGHTS, ExportGate, write_onnx, write_weights
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.onnx_model import ONNX, OnnxModel
from vitmed.inference.open_model import open_model


@dataclass(frozen=True)
class Exported:
    """The file or folder that `export` wrote, its size in bytes, and how a file compares with the checkpoint."""

    file: Path
    size: int
    gate: ExportGate | None = None


def export(
    checkpoint: RunFile,
    *,
    to: Annotated[
        Path | str, Option("What to write: a file .onnx, or a folder for timm and transformers.", panel=FIRST)
    ],
    data: Annotated[Path | str | None, Option("For .onnx: the data folder, if it has moved.", panel=FIRST)] = None,
    force: Force = False,
) -> Exported:
    """Write a checkpoint as a file or folder that other programs run; a file is compared with it on validation images.

    Args:
        checkpoint: with a decision policy; for .onnx also an ensemble.
        to: a new file that ends in .onnx, for ONNX Runtime and others; without a suffix a new folder with the weights
            for timm, which transformers reads too.

    Raises:
        GateError: the file decides otherwise than the checkpoint, and is not written.
        CheckpointError, DataError, UsageError: an argument that cannot be used.
    """
    file = Path(to)
    if file.suffix == ".pt2":
        raise UsageError(f"{file}: vitmed writes no .pt2 any more; vitmed {READER} does", "--to model.onnx")
    if file.suffix not in (ONNX, ""):
        problem = f"{file}: expected a name that ends in {ONNX}, or without a dot for a folder"
        raise UsageError(problem, f"--to model.onnx; or --to FOLDER, in which {WEIGHTS} has the weights")
    saved = open_model(checkpoint)
    if isinstance(saved, OnnxModel):
        raise UsageError(f"{saved.path}: is exported already", "name the run folder")
    roots = [saved.splits.root, *([] if data is None else [data])]
    if file.suffix:
        new_file(file, force=force, data=roots)
    elif force or data is not None:
        raise UsageError(f"{'--force' if force else '--data'}: is for {ONNX} files, {file} is a folder", "leave it out")
    else:
        new_folder(file, roots)
    if file.suffix != ONNX:
        if not isinstance(saved, Checkpoint):
            raise UsageError(f"{saved.path}: timm has no ensembles", "--to model.onnx, or export a member")
        write_weights(saved, file)
        load = f'timm.create_model("local-dir:{file}", pretrained=True)'
        say(f"{file}: load it with\n{load}")
        return Exported(file, sum(part.stat().st_size for part in file.iterdir()))
    gate = write_onnx(saved, file, saved.data_root() if data is None else Path(data))
    say(f"{file}: {gate.in_words}")
    return Exported(file, file.stat().st_size, gate)
