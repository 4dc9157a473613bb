"""`vitmed bundle`: a model and all that it needs as one archive; pip fetches the wheels, other programs list them."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from vitmed.core.errors import UsageError, excluded
from vitmed.core.options import FIRST, Argument, Force, Option
from vitmed.core.places import new_file
from vitmed.core.text import listed
from vitmed.deploy.bundle import TOOLS, Bundle, write_bundle
from vitmed.inference.ensemble import Ensemble
from vitmed.inference.onnx_model import OnnxModel, load_onnx
from vitmed.inference.open_model import open_model


def bundle(
    model: Annotated[Path | str, Argument("A run folder, its best.pt, or an exported .onnx file.", "RUN|FILE.onnx")],
    *,
    to: Annotated[Path | str | None, Option("File to write: .tar.", panel=FIRST)] = None,
    onnx: Annotated[Path | str | None, Option("Exported file of the run, to add.", panel=FIRST)] = None,
    no_torch: Annotated[bool, Option("Leave out torch, and best.pt, which needs it.", panel=FIRST)] = False,
    extras: Annotated[
        str | Collection[str], Option("Of vitmed, to add, such as serve,dicom.", metavar="NAME[,NAME]", panel=FIRST)
    ] = (),
    force: Force = False,
) -> Bundle:
    """Write a model and everything that it needs as one archive, for a machine like this one without a network.

    Args:
        model: a run folder, its best.pt, or an exported .onnx file, which needs no torch.
        to: a new file; its suffix is .tar.
        onnx: an exported file of the same weights, to add.
        no_torch: leave out torch, and best.pt, which needs it.
        extras: of vitmed, to add: "serve", "dicom"; a text has commas between them.

    Raises:
        UsageError: an argument that cannot be used, or a wheel that cannot be had. CheckpointError: as of `load`.
    """
    if to is None or Path(to).suffix != ".tar":
        raise UsageError(f"{to}: expected a file that ends in .tar" if to else "no file is named", "--to model.tar")
    file, saved = Path(to), open_model(model)
    if isinstance(saved, Ensemble):
        raise UsageError(f"{saved.path}: a bundle holds one network or file", f"vitmed export {model} --to model.onnx")
    exported = saved if isinstance(saved, OnnxModel) else None if onnx is None else load_onnx(Path(onnx))
    if exported is not None and exported.weights_hash != saved.weights_hash:
        raise UsageError(f"{onnx}: exported from other weights than {saved.path}", "vitmed export RUN --to model.onnx")
    if no_torch and exported is None:
        raise excluded("no torch")
    models = {} if no_torch or saved is exported else {"best.pt": saved}
    models |= {} if exported is None else {"model.onnx": exported}
    roots = [] if saved is exported else [saved.splits.root]
    new_file(file, force=force, data=roots, inputs=[saved.path, *(one.path for one in models.values())])
    if isinstance(extras, str):
        extras = [name.strip() for name in extras.split(",") if name.strip()]
    if missing := [name for name in TOOLS if importlib.util.find_spec(name) is None]:
        raise UsageError(f"a bundle needs {listed(missing)}, which this Python lacks", "pip install 'vitmed[bundle]'")
    return write_bundle(file, saved, models, extras)
