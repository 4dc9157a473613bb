"""`OnnxFile`: the network and decisions of a checkpoint as a file for ONNX Runtime and others."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitmed.core.errors import UsageError
from vitmed.core.text import first_line
from vitmed.deploy.export_gate import ExportGate
from vitmed.inference.exported_graph import ExportedGraph
from vitmed.inference.onnx_model import FIX, IMAGES, KEY, NEEDED, describe_export, open_session
from vitmed.inference.saved_model import SavedModel

OPSET = 20


class OnnxFile:
    """An exported network, which can be run before its file is written.

    Args:
        graph, saved: the network, and its checkpoint.
        file: that will be written, for messages.

    Raises:
        UsageError: a package is not installed, or torch cannot export the network.
    """

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
        with _quiet(), torch.no_grad():
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
