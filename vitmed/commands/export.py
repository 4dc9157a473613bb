"""`vitmed export`: a checkpoint -> a file that other programs run, if it decides as the checkpoint does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitmed.commands.export_formats import FORMATS, Format
from vitmed.commands.export_gate import ExportGate, compare_export
from vitmed.core.errors import GateError, UsageError
from vitmed.core.files import whole_file
from vitmed.core.outputs import check_output
from vitmed.core.ui import Ui
from vitmed.decisions.reduced_precision import MOST_MOVED
from vitmed.training.checkpoint import load_checkpoint
from vitmed.training.exported_graph import ExportedGraph
from vitmed.training.onnx_model import ONNX


@dataclass(frozen=True)
class Exported:
    """The file that `export` wrote, its size in bytes, and how it compares with the checkpoint."""

    file: Path
    size: int
    gate: ExportGate


def export(
    checkpoint: str | Path,
    *,
    to: str | Path | None = None,
    data: str | Path | None = None,
    int8: bool = False,
    force: bool = False,
    ui: Ui | None = None,
) -> Exported:
    """Write a checkpoint as one file that other programs run, and compare the file with it on validation images.

    Args:
        checkpoint: a run folder or its best.pt, with a decision policy.
        to: a new file; its suffix is the format: .onnx for ONNX Runtime and others, .pt2 for torch.export.
        data: the data folder of the run, where it has moved.
        int8: store the weights of an ONNX file in 8 bits. Its decisions may differ: what that costs is reported.
        force: replace an existing file.

    Raises:
        GateError: the file decides otherwise than the checkpoint, and is not written.
        CheckpointError, DataError, UsageError: an argument that cannot be used.
    """
    if to is None:
        raise UsageError("no file is named", "--to model.onnx")
    ui, file = ui or Ui(), Path(to)
    if file.suffix not in FORMATS:
        raise UsageError(f"{file}: expected a name that ends in {' or '.join(FORMATS)}", "--to model.onnx")
    if int8 and file.suffix != ONNX:
        raise UsageError(f"{file}: --int8 is for ONNX files", "--to model.onnx")
    saved = load_checkpoint(checkpoint)
    check_output(file, force=force, data=[saved.splits.root, *([] if data is None else [data])])
    root = saved.data_root() if data is None else Path(data)
    graph = ExportedGraph(saved, resize=saved.preprocessing.channels in (1, 3)).eval()
    if not graph.resize:
        ui.warn("an image with alpha must be made square before: the file takes squares only")
    ui.say(f"exporting {saved.path}; torch needs about a quarter of a minute")
    made: Format = FORMATS[file.suffix](graph, saved, file, int8)
    gate = compare_export(saved, graph, made.run, made.speedup, root, ui)
    if not gate.passed:
        raise GateError(
            f"{file}: not written, since the exported network differs from {saved.path}: {gate.in_words}",
            f"no decision may differ, and no probability by more than {MOST_MOVED:g}; please report it",
        )
    with whole_file(file) as stream:
        stream.write(made.content(gate))
    ui.say(f"{file}: {gate.in_words}")
    return Exported(file, file.stat().st_size, gate)
