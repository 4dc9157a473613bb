"""`vitmed bundle`: a model and all that it needs as one archive; pip fetches the wheels, other programs list them."""

import importlib.util
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, NamedTuple

from vitmed.core.downloads import digest_of
from vitmed.core.errors import UsageError
from vitmed.core.messages import say
from vitmed.core.options import FIRST, Argument, Force, Option
from vitmed.core.places import new_file
from vitmed.core.text import counted, listed
from vitmed.deploy.bundle import TOOLS, write_bundle
from vitmed.inference.ensemble import Ensemble
from vitmed.inference.onnx_model import OnnxModel
from vitmed.inference.open_model import open_model


class Bundle(NamedTuple):
    """The archive, its size in bytes, its sha256, and the packages in it with their versions."""

    file: Path
    size: int
    sha256: str
    packages: dict[str, str]


def bundle(
    model: Annotated[Path | str, Argument("A run folder, its best.pt, or an exported .onnx file.", "RUN|FILE.onnx")],
    *,
    to: Annotated[Path | str | None, Option("File to write: .tar.", panel=FIRST)] = None,
    extras: Annotated[
        str | Collection[str], Option("Of vitmed, to add, such as serve,dicom.", metavar="NAME[,NAME]", panel=FIRST)
    ] = (),
    force: Force = False,
) -> Bundle:
    """Write a model and everything that it needs as one archive, for a machine like this one without a network.

    Args:
        model: a run folder, its best.pt, or an exported .onnx file, which needs no torch; one in its run folder brings
            the papers of the run, too.

    Raises:
        UsageError: an argument that cannot be used, or a wheel that cannot be had. CheckpointError: as of `load`.
    """
    if to is None or Path(to).suffix != ".tar":
        raise UsageError(f"{to}: expected a file that ends in .tar" if to else "no file is named", "--to model.tar")
    file, saved = Path(to), open_model(model)
    if isinstance(saved, Ensemble):
        raise UsageError(f"{saved.path}: a bundle holds one network or file", f"vitmed export {model} --to model.onnx")
    new_file(file, force=force, data=[] if isinstance(saved, OnnxModel) else [saved.splits.root], inputs=[saved.path])
    if isinstance(extras, str):
        extras = [name.strip() for name in extras.split(",") if name.strip()]
    if missing := [name for name in TOOLS if importlib.util.find_spec(name) is None]:
        raise UsageError(f"a bundle needs {listed(missing)}, which this Python lacks", "pip install 'vitmed[bundle]'")
    packages = write_bundle(file, saved, extras)
    size, digest = file.stat().st_size, digest_of(file)
    say(f"{file}: {counted(len(packages), 'package')}, {size / 2**20:,.0f} MB, sha256 {digest}")
    return Bundle(file, size, digest, packages)
