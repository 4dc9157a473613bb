"""`FORMATS`: the files that `vitmed export` writes, by their suffix."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitmed.commands.export_gate import ExportGate
from vitmed.core.errors import UsageError
from vitmed.core.text import first_line
from vitmed.training.exported_graph import ExportedGraph
from vitmed.training.onnx_model import FIX, IMAGES, KEY, NEEDED, ONNX, describe_export, open_session
from vitmed.training.saved_model import SavedModel

PT2 = ".pt2"
OPSET = 20
ROUNDS = 20  # of a comparison of speed


class Format(ABC):
    """An exported network, which can be run before its file is written.

    Args:
        graph, saved: the network, and its checkpoint.
        file: that will be written, for messages.
        int8: weights in 8 bits.

    Attributes:
        speedup: of 8 bits, over 32; None without.
    """

    speedup: float | None = None

    def __init__(self, graph: ExportedGraph, saved: SavedModel, file: Path, int8: bool):
        self.graph, self.saved, self.int8 = graph, saved, int8

    @abstractmethod
    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """(B, H, W, C) uint8 -> the outputs of the graph by name."""

    @abstractmethod
    def content(self, gate: ExportGate) -> bytes:
        """The file, which states what the gate found."""

    def about(self, gate: ExportGate) -> str:
        """What the file holds beside the network: JSON."""
        return describe_export(self.saved, gate.to_dict(), "int8" if self.int8 else "fp32")

    @property
    def example(self) -> Tensor:
        """Two images, since a dynamic batch needs at least two; neither square nor of the network's size."""
        side = self.graph.how.image_size
        height, width = (side + 3, side + 5) if self.graph.resize else (side, side)
        return torch.zeros(2, height, width, self.graph.how.channels, dtype=torch.uint8)

    @property
    def dynamic(self) -> dict[int, Any]:
        """The sizes of the input that may differ."""
        sizes = {1: torch.export.Dim("height"), 2: torch.export.Dim("width")} if self.graph.resize else {}
        return {0: torch.export.Dim("batch"), **sizes}


class OnnxFile(Format):
    """A file for ONNX Runtime, OpenVINO and others. Raises UsageError where a package is not installed."""

    def __init__(self, graph: ExportedGraph, saved: SavedModel, file: Path, int8: bool):
        super().__init__(graph, saved, file, int8)
        try:
            import onnx
            import onnxscript  # noqa: F401
        except ImportError:
            raise UsageError(f"{file}: {NEEDED}", FIX) from None
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                graph, (self.example,), dynamo=True, dynamic_shapes=(self.dynamic,), input_names=[IMAGES],
                output_names=list(graph.outputs), opset_version=OPSET, verbose=False,
            )  # fmt: skip
        assert program is not None
        self.model: Any = program.model_proto
        with tempfile.TemporaryDirectory() as folder:
            whole, small = Path(folder) / "fp32.onnx", Path(folder) / "int8.onnx"
            onnx.save(self.model, whole)
            self.session = open_session(whole)
            if int8:
                from onnxruntime.quantization import quantize_dynamic

                with _quiet():
                    quantize_dynamic(whole, small, op_types_to_quantize=["MatMul", "Gemm"])
                self.model, full = onnx.load(small), self.session
                self.session = open_session(small)
                self.speedup = self._seconds(full) / self._seconds(self.session)

    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """As `Format.run`."""
        return dict(zip(self.graph.outputs, self.session.run(None, {IMAGES: images}), strict=True))

    def content(self, gate: ExportGate) -> bytes:
        """As `Format.content`."""
        import onnx

        for node in self.model.graph.node:  # where in whose folders it was traced
            node.ClearField("metadata_props")
        onnx.helper.set_model_props(self.model, {KEY: self.about(gate)})
        return bytes(self.model.SerializeToString())

    def _seconds(self, session: Any) -> float:
        """The fastest run of one square."""
        how, times = self.graph.how, []
        images = np.zeros((1, how.image_size, how.image_size, how.channels), np.uint8)
        for _ in range(ROUNDS):
            start = time.perf_counter()
            session.run(None, {IMAGES: images})
            times.append(time.perf_counter() - start)
        return min(times)


class TorchFile(Format):
    """A file of torch.export, for programs with torch and without vitmed."""

    def __init__(self, graph: ExportedGraph, saved: SavedModel, file: Path, int8: bool):
        super().__init__(graph, saved, file, int8)
        with _quiet(), torch.no_grad():
            self.program = torch.export.export(graph, (self.example,), dynamic_shapes=(self.dynamic,))
        for node in self.program.graph.nodes:
            node.meta.pop("stack_trace", None)  # where in whose folders it was traced
        self.module = self.program.module()

    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """As `Format.run`."""
        with torch.no_grad():
            found = self.module(torch.tensor(images))
        return {name: output.numpy() for name, output in zip(self.graph.outputs, found, strict=True)}

    def content(self, gate: ExportGate) -> bytes:
        """As `Format.content`; the names of the outputs lie in outputs.txt of the file, and all else in vitmed.json."""
        stream = io.BytesIO()
        extra = {"vitmed.json": self.about(gate), "outputs.txt": "\n".join(self.graph.outputs)}
        torch.export.save(self.program, stream, extra_files=extra)
        return stream.getvalue()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings; and with the names that torch looks up of a user without any.

    A container's user id may have no name, and then torch's compiler fails (tesseract-core #425).
    """
    given = {"USER": "vitmed", "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "vitmed-inductor")}
    added = [name for name in given if name not in os.environ]
    before = logging.root.manager.disable
    os.environ.update({name: given[name] for name in added})
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (RuntimeError, ValueError, TypeError) as error:
        raise UsageError(f"torch cannot export this network ({first_line(error)})", "please report it") from error
    finally:
        logging.disable(before)
        for name in added:
            del os.environ[name]


FORMATS: dict[str, type[Format]] = {ONNX: OnnxFile, PT2: TorchFile}
