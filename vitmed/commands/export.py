"""`vitmed export`: a checkpoint -> a file that other programs run, if it decides as the checkpoint does."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitmed.core.errors import GateError, UsageError
from vitmed.core.files import whole_file
from vitmed.core.outputs import check_output
from vitmed.core.text import counted, counted_doing, first_line
from vitmed.core.ui import Ui
from vitmed.data.thread_batches import check_readable
from vitmed.decisions.policy import ANSWER, MOST_NAMES, SET, YES
from vitmed.decisions.reduced_precision import MOST_MOVED, ReducedPrecision, compare_precision
from vitmed.imaging.decode import read_image
from vitmed.metrics.any_predictions import AnyPredictions, unlabelled
from vitmed.metrics.number_predictions import NumberPredictions
from vitmed.training.checkpoint import Checkpoint, load_checkpoint
from vitmed.training.exported_graph import ExportedGraph
from vitmed.training.onnx_model import FIX, IMAGES, KEY, NEEDED, describe_export, open_session
from vitmed.training.saved_model import ONNX, score_column
from vitmed.training.torch_network import TorchNetwork

PT2 = ".pt2"
MOST = 500  # validation images that are compared at most
OPSET = 20
Run = Callable[[np.ndarray], dict[str, np.ndarray]]  # (B, H, W, C) uint8 -> outputs by name


@dataclass(frozen=True)
class ExportGate:
    """The exported file beside the checkpoint, on validation images as they are, in their own sizes.

    Attributes:
        images: how many were compared.
        flipped: images with another decision.
        largest: the largest difference of a calibrated probability; of a number in units of its spread.
        resized: whether the file resizes the images; else they were resized before.
    """

    images: int
    flipped: int
    largest: float
    resized: bool

    @property
    def passed(self) -> bool:
        """Whether no decision differs, and no probability by more than `MOST_MOVED`."""
        return not self.flipped and self.largest <= MOST_MOVED

    @property
    def in_words(self) -> str:
        """What was found, as a clause."""
        flips = counted_doing(self.flipped, "decision", "differs", "differ") if self.flipped else "no decision differs"
        return f"on {counted(self.images, 'validation image')} {flips}; the largest difference is {self.largest:.1g}"


@dataclass(frozen=True)
class Exported:
    """The file that `export` wrote, its size in bytes, and what it was compared with."""

    file: Path
    size: int
    gate: ExportGate


def export(
    checkpoint: str | Path,
    *,
    to: str | Path,
    data: str | Path | None = None,
    force: bool = False,
    ui: Ui | None = None,
) -> Exported:
    """Write a checkpoint as one file that other programs run, and compare the file with it on validation images.

    Args:
        checkpoint: a run folder or its best.pt, with a decision policy.
        to: a new file; its suffix is the format: .onnx for ONNX Runtime and others, .pt2 for torch.export.
        data: the data folder of the run, where it has moved.
        force: replace an existing file.

    Raises:
        GateError: the file decides otherwise than the checkpoint, and is not written.
        CheckpointError, DataError, UsageError: an argument that cannot be used.
    """
    ui, file = ui or Ui(), Path(to)
    if file.suffix not in FORMATS:
        raise UsageError(
            f"{file}: expected a name that ends in {' or '.join(FORMATS)}", "vitmed export RUN --to model.onnx"
        )
    saved = load_checkpoint(checkpoint)
    check_output(file, force=force, data=[saved.splits.root, *([] if data is None else [data])])
    if file.suffix == ONNX:
        _check_packages(file)
    root = saved.data_root("name its current place: --data DIR") if data is None else Path(data)
    graph = ExportedGraph(saved, resize=saved.preprocessing.channels in (1, 3)).eval()
    if not graph.resize:
        ui.warn("images with alpha must be resized before: the file takes squares only")
    ui.say(f"exporting {saved.path}; torch needs about a quarter of a minute")
    content, run = FORMATS[file.suffix](graph, saved)
    gate = compare_export(saved, graph, run, root, ui)
    if not gate.passed:
        raise GateError(
            f"{file}: not written, since the exported network differs from {saved.path}: {gate.in_words}",
            f"no decision may differ, and no probability by more than {MOST_MOVED:g}; please report it",
        )
    with whole_file(file) as stream:
        stream.write(content(gate))
    ui.say(f"{file}: {gate.in_words}")
    return Exported(file, file.stat().st_size, gate)


def compare_export(saved: Checkpoint, graph: ExportedGraph, run: Run, root: Path, ui: Ui) -> ExportGate:
    """Compare an exported network with its checkpoint on at most `MOST` validation images, evenly spread.

    The checkpoint resizes with Pillow and decides with numpy; the exported network does all in its graph, where it may.

    Args:
        run: the exported network.
        root: the data folder.

    Raises:
        DataError: an image cannot be read.
    """
    samples, how = saved.splits.samples["val"], saved.preprocessing
    rows = np.linspace(0, len(samples) - 1, min(len(samples), MOST)).round().astype(np.int64)
    paths = [root / samples[row].path for row in rows]
    found = dict[str, list[np.ndarray]]()

    def read(index: int) -> np.ndarray:
        return how.read(paths[index])

    with ui.bar("comparing: checkpoint") as advance:
        outputs = TorchNetwork(saved, saved.policy, torch.device("cpu")).outputs(read, len(paths), advance)
    check_readable(outputs.problems)
    with ui.bar("comparing: exported") as advance:
        for index, path in enumerate(paths):
            image = read(index)
            if graph.resize:
                whole = read_image(path, how.channels, frame=how.frame, window=how.window)
                image = np.asarray(whole).reshape(whole.height, whole.width, how.channels)
            for name, value in run(image[None]).items():
                found.setdefault(name, []).append(value)
            advance(index + 1, len(paths))
    theirs = {name: np.concatenate(values) for name, values in found.items()}
    names = tuple(str(i) for i in range(len(paths)))

    def decided(logits: np.ndarray, columns: dict[str, tuple[str, ...]]) -> Any:
        assert saved.policy is not None
        return saved.policy.apply(unlabelled(saved.splits.target, saved.classes, names, logits, (), columns))

    exact = decided(outputs.logits, outputs.columns)
    scores = score_column(theirs["ood_score"]) if "ood_score" in theirs else {}
    flipped, largest = _differences(exact, decided(theirs["logits"], scores), theirs)
    return ExportGate(len(paths), flipped, largest, graph.resize)


def _differences(exact: AnyPredictions, again: AnyPredictions, theirs: Mapping[str, np.ndarray]) -> tuple[int, float]:
    """Images with another decision, and the largest difference of a probability.

    Args:
        exact: of the checkpoint; again: of the exported logits with the policy in numpy.
        theirs: outputs of the exported network, whose decisions must be those of `again`.
    """
    answered = np.array([cell == YES for cell in again.columns[ANSWER]])
    own = theirs["answered"] != answered
    if isinstance(exact, NumberPredictions) or isinstance(again, NumberPredictions):
        spread = exact.target.spread if isinstance(exact, NumberPredictions) else 1.0
        moved = np.abs(exact.values - theirs["value"]).max(initial=0) / spread  # type: ignore[union-attr]
        return int(own.sum()), float(moved)
    named = again.columns.get(SET)
    own |= np.any((theirs["prediction"] != again.predicted).reshape(len(answered), -1), axis=1)
    if named is not None and "in_set" in theirs:
        sizes = np.array([0 if not cell else cell.count(" | ") + 1 for cell in named])  # a cell names `MOST_NAMES`
        own |= np.minimum(theirs["in_set"].sum(axis=1), MOST_NAMES + 1) != sizes
    found = compare_precision(ReducedPrecision(precision="fp32", device="cpu", speedup=1.0), exact, again)
    moved = np.abs(exact.probabilities - theirs["probabilities"]).max(initial=0)
    return found.flipped + int(own.sum()), float(moved)


def _check_packages(file: Path) -> None:
    """Raises UsageError where a package for ONNX files is not installed."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UsageError(f"{file}: {NEEDED}", FIX) from None


def _onnx(graph: ExportedGraph, saved: Checkpoint) -> tuple[Callable[[ExportGate], bytes], Run]:
    """The bytes of an ONNX file, once its gate is known, and how to run it."""
    import onnx

    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph, (_example(graph),), dynamo=True, dynamic_shapes=(_dynamic(graph),), input_names=[IMAGES],
            output_names=list(graph.outputs), opset_version=OPSET, verbose=False,
        )  # fmt: skip
    assert program is not None
    model: Any = program.model_proto

    def content(gate: ExportGate) -> bytes:
        onnx.helper.set_model_props(model, {KEY: describe_export(saved, vars(gate), "fp32")})
        return bytes(model.SerializeToString())

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        file.write_bytes(model.SerializeToString())
        session = open_session(file)
    return content, lambda images: dict(zip(graph.outputs, session.run(None, {IMAGES: images}), strict=True))


def _pt2(graph: ExportedGraph, saved: Checkpoint) -> tuple[Callable[[ExportGate], bytes], Run]:
    """The bytes of a file of torch.export, once its gate is known, and how to run it."""
    with _quiet(), torch.no_grad():
        program = torch.export.export(graph, (_example(graph),), dynamic_shapes=(_dynamic(graph),))

    def content(gate: ExportGate) -> bytes:
        stream = io.BytesIO()
        extra = {"vitmed.json": describe_export(saved, vars(gate), "fp32"), "outputs.txt": "\n".join(graph.outputs)}
        torch.export.save(program, stream, extra_files=extra)
        return stream.getvalue()

    module = program.module()

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        with torch.no_grad():
            return {name: out.numpy() for name, out in zip(graph.outputs, module(torch.tensor(images)), strict=True)}

    return content, run


def _example(graph: ExportedGraph) -> Tensor:
    """Two images, since a dynamic batch needs an example of two or more; neither square nor of the network's size."""
    side = graph.how.image_size
    height, width = (side + 3, side + 5) if graph.resize else (side, side)
    return torch.zeros(2, height, width, graph.how.channels, dtype=torch.uint8)


def _dynamic(graph: ExportedGraph) -> dict[int, Any]:
    sizes = {1: torch.export.Dim("height"), 2: torch.export.Dim("width")} if graph.resize else {}
    return {0: torch.export.Dim("batch"), **sizes}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings and progress; and with the names that torch looks up of a user without any."""
    known = {name: os.environ.get(name) for name in ("USER", "TORCHINDUCTOR_CACHE_DIR")}
    os.environ.setdefault("USER", "vitmed")  # a container's user id may have no name (tesseract-core #425)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "vitmed-inductor"))
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        raise UsageError(
            f"torch cannot export this network ({first_line(error)})", "report it with the model's config"
        ) from error
    finally:
        logging.disable(before)
        for name, value in known.items():
            if value is None:
                os.environ.pop(name, None)


FORMATS: dict[str, Callable[[ExportedGraph, Checkpoint], tuple[Callable[[ExportGate], bytes], Run]]] = {
    ONNX: _onnx,
    PT2: _pt2,
}
