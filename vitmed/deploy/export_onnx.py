"""The .onnx file: a network with its decisions, compared with its checkpoint before it is written."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitmed.core.base_models import Frozen
from vitmed.core.errors import GateError, UsageError
from vitmed.core.files import whole_file
from vitmed.core.messages import Silent, bar, listening, say, warn
from vitmed.core.text import counted, counted_doing, first_line
from vitmed.data.samples import Sample, labelled_by
from vitmed.data.thread_batches import check_readable
from vitmed.decisions.out_of_distribution import scores_of
from vitmed.decisions.policy import unlike_training
from vitmed.imaging.decode import read_image
from vitmed.inference.exported_graph import ExportedGraph
from vitmed.inference.onnx_model import FIX, IMAGES, KEY, NEEDED, describe_export, open_session
from vitmed.inference.open_model import open_network
from vitmed.inference.saved_model import Outputs, SavedModel, score_column
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import ANSWER, YES

OPSET = 20

MOST = 500  # validation images that are compared at most
MOST_MOVED = 1e-3  # of a probability


class ExportGate(Frozen):
    """The exported network beside the checkpoint, on validation images."""

    images: int  # how many were compared
    flipped: int  # how many have another decision
    largest: float  # the largest difference of a calibrated probability; of a number in units of its spread
    resized: bool  # whether the file resizes the images, so they were compared in their own sizes

    @property
    def passed(self) -> bool:
        """Whether no decision differs, and no probability by more than `MOST_MOVED`."""
        return not self.flipped and self.largest <= MOST_MOVED

    @property
    def in_words(self) -> str:
        """What was found, as a clause."""
        flips = counted_doing(self.flipped, "decision", "differs", "differ") if self.flipped else "no decision differs"
        return f"on {counted(self.images, 'validation image')} {flips}; the largest difference is {self.largest:.1g}"


def validation_images(saved: SavedModel) -> list[Sample]:
    """At most `MOST` validation images of a run, evenly spread."""
    samples = saved.splits.samples["val"] or saved.splits.samples["train"]  # joined folds have no validation
    rows = np.linspace(0, len(samples) - 1, min(len(samples), MOST)).round().astype(np.int64)
    return [samples[row] for row in rows]


def checkpoint_outputs(saved: SavedModel, samples: Sequence[Sample], root: Path) -> Outputs:
    """What a model gives for images in a data folder, on the CPU in fp32. Raises DataError if one cannot be read."""
    with bar("comparing: checkpoint") as advance:
        with listening(Silent()):
            network = open_network(saved, saved.policy, "cpu", "fp32")
        outputs = network.outputs(lambda i: saved.preprocessing.read(root / samples[i].path), len(samples), advance)
    check_readable(outputs.problems)
    return outputs


def compare_export(
    saved: SavedModel, graph: ExportedGraph, run: Callable[[np.ndarray], dict[str, np.ndarray]], root: Path
) -> ExportGate:
    """Compare an exported network with its checkpoint on `validation_images`. Raises DataError if one cannot be read.

    The checkpoint resizes with Pillow and decides with numpy; the exported network, `run`, does all in its graph, where
    it may: images (B, H, W, C) uint8 -> outputs by name."""
    assert saved.policy is not None
    how, chosen = saved.preprocessing, validation_images(saved)
    exported = dict[str, list[np.ndarray]]()
    outputs = checkpoint_outputs(saved, chosen, root)
    with bar("comparing: exported") as advance:
        for index, sample in enumerate(chosen):
            if graph.resize:
                whole = read_image(root / sample.path, how.channels, frame=how.frame, window=how.window)
                image = np.asarray(whole).reshape(whole.height, whole.width, how.channels)
            else:
                image = how.read(root / sample.path)
            for name, value in run(image[None]).items():
                exported.setdefault(name, []).append(value)
            advance(index + 1, len(chosen))
    theirs = {name: np.concatenate(values) for name, values in exported.items()}
    undecided = labelled_by(saved.splits.target, saved.classes, chosen, outputs.logits, saved.config.data.positive)
    scores = score_column(theirs.get("ood_score"))
    exact = saved.policy.apply(replace(undecided, columns=outputs.columns))
    again = saved.policy.apply(replace(undecided, logits=theirs["logits"], columns=scores))
    flipped, largest = _differences(exact, again, theirs)
    return ExportGate(images=len(chosen), flipped=flipped, largest=largest, resized=graph.resize)


def _differences(exact: Predictions, again: Predictions, theirs: Mapping[str, np.ndarray]) -> tuple[int, float]:
    """Images with another decision, and the largest difference of a probability: `exact` is of the checkpoint, `again`
    of the exported logits with the policy in numpy, whose decisions `theirs`, of the graph, must be."""
    flipped = theirs["answered"] != np.array([cell == YES for cell in again.columns[ANSWER]])
    if "value" in theirs:
        moved = np.abs(exact.amounts[:, 0] - theirs["value"]).max(initial=0) / exact.target.spread
        return int(flipped.sum()), float(moved)
    flipped |= np.any((theirs["prediction"] != again.predicted).reshape(len(flipped), -1), axis=1)
    if "in_set" in theirs:
        flipped |= np.any(theirs["in_set"] != again.members, axis=1)
    flipped |= np.any((exact.predicted != again.predicted).reshape(len(flipped), -1), axis=1)
    if exact.kind == "classes":
        flipped |= exact.likeliest != again.likeliest
    # One validation image is the edge itself, with a score of 1; any rounding would flip it.
    flipped |= (unlike_training(exact) != unlike_training(again)) & (scores_of(exact) != 1)
    moved = np.abs(exact.probabilities - theirs["probabilities"]).max(initial=0)
    return int(flipped.sum()), float(moved)


class OnnxFile:
    """An exported network, which can be run before its file is written. Raises as `write_onnx`."""

    def __init__(self, graph: ExportedGraph, saved: SavedModel, file: Path):
        self.graph, self.saved = graph, saved
        try:
            import onnx
            import onnxscript  # noqa: F401
        except ImportError:
            raise UsageError(f"{file}: {NEEDED}", FIX) from None
        # Two images, since a dynamic batch needs at least two; neither square nor of the network's size.
        side = graph.how.image_size
        height, width = (side + 3, side + 5) if graph.resize else (side, side)
        example = torch.zeros(2, height, width, graph.how.channels, dtype=torch.uint8)
        sizes = {1: torch.export.Dim("height"), 2: torch.export.Dim("width")} if graph.resize else {}
        with _exporting(), quiet(), torch.no_grad():
            program = torch.onnx.export(
                graph,
                (example,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch"), **sizes},),
                input_names=[IMAGES],
                output_names=list(graph.outputs),
                opset_version=OPSET,
                verbose=False,
            )
        assert program is not None
        self.model: Any = program.model_proto
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(self.model, Path(folder) / "model.onnx")
            self.session = open_session(Path(folder) / "model.onnx")

    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """(B, H, W, C) uint8 -> the outputs of the graph by name."""
        return dict(zip(self.graph.outputs, self.session.run(None, {IMAGES: images}), strict=True))

    def content(self, gate: ExportGate) -> bytes:
        """The file, which states what the gate found."""
        import onnx

        for node in self.model.graph.node:  # where in whose folders it was traced
            node.ClearField("metadata_props")
        onnx.helper.set_model_props(self.model, {KEY: describe_export(self.saved, gate.to_dict())})
        return bytes(self.model.SerializeToString())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the messages, warnings and progress bars of another library."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _exporting() -> Iterator[None]:
    """With the names that torch looks up of a user without any, and its errors as ours.

    A container's user id may have no name, and then torch's compiler fails (tesseract-core #425).
    """
    given = {"USER": "vitmed", "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "vitmed-inductor")}
    added = [name for name in given if name not in os.environ]
    os.environ.update({name: given[name] for name in added})
    try:
        yield
    except (RuntimeError, ValueError, TypeError) as error:
        raise UsageError(f"torch cannot export this network ({first_line(error)})", "please report it") from error
    finally:
        for name in added:
            del os.environ[name]


def write_onnx(saved: SavedModel, file: Path, root: Path) -> ExportGate:
    """Export a model as an .onnx file, compare it with its checkpoint on validation images of the data folder, and
    write it if it decides alike, else raise GateError. Raises UsageError: a package is missing, or torch cannot export
    the network."""
    graph = ExportedGraph(saved, resize=saved.preprocessing.channels in (1, 3)).eval()
    if not graph.resize:
        warn("an image with alpha must be made square before: the file takes squares only")
    say(f"exporting {saved.path}; torch needs about a quarter of a minute")
    made = OnnxFile(graph, saved, file)
    gate = compare_export(saved, graph, made.run, root)
    if not gate.passed:
        raise GateError(
            f"{file}: not written, since the exported network differs from {saved.path}: {gate.in_words}",
            f"no decision may differ, and no probability by more than {MOST_MOVED:g}; please report it",
        )
    with whole_file(file) as stream:
        stream.write(made.content(gate))
    return gate
