"""Read tensors from a file of unknown origin without running code in it."""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.text import first_line
from vitmed.models.weight_layouts import State


def safe_load(path: Path, foreign: bool = False) -> Any:
    """Read a torch file with `weights_only=True`: tensors and plain types, no code.

    Args:
        foreign: also allow argparse.Namespace, a plain container in which training scripts keep their settings.

    Raises:
        CheckpointError: missing, damaged, with code in it, or with a container that contains itself.
    """
    if magic(path)[:2] not in (b"PK", b"\x80\x02"):  # torch's zip files, and its older format
        raise CheckpointError(f"{path}: not a checkpoint or weight file", "name the .pt file of a run, or a .pth file")
    try:
        with torch.serialization.safe_globals([argparse.Namespace] if foreign else []):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path}: refused: it is damaged, or holds more than tensors and plain values, which could run code",
            "use a file that vitmed wrote, or a plain state dict",
        ) from None
    except Exception as error:  # torch raises many errors for damaged files
        raise CheckpointError(f"{path}: not a readable checkpoint ({first_line(error)})", "copy it again") from None
    if _contains_itself(content):
        raise CheckpointError(f"{path}: refused: a part of it contains itself", "use a plain state dict")
    return content


def _contains_itself(tree: Any) -> bool:
    """Whether a dict, list or tuple lies inside itself, at any depth; a search through such a tree never ends."""
    above: set[int] = set()  # the containers around the current one
    finished: set[int] = set()
    stack = [(tree, False)]
    while stack:
        value, leave = stack.pop()
        if leave:
            above.remove(id(value))
            finished.add(id(value))
        elif id(value) in above:
            return True
        elif isinstance(value, dict | list | tuple) and id(value) not in finished:
            above.add(id(value))
            stack.append((value, True))
            stack += [(part, False) for part in (value.values() if isinstance(value, dict) else value)]
    return False


def magic(path: Path) -> bytes:
    """The first 32 bytes of a file. Raises CheckpointError if there is no such file."""
    if not path.is_file():
        inside = [path / name for name in ("model.safetensors", "pytorch_model.bin") if (path / name).is_file()]
        what = "is a folder, expected a file such as best.pt" if path.is_dir() else "no such file"
        raise CheckpointError(f"{path}: {what}", f"name {inside[0] if inside else 'a checkpoint or weight file'}")
    with path.open("rb") as stream:
        return stream.read(32)


def read_npz(path: Path) -> State:
    """The arrays of a `.npz` file as float32 tensors; pickled ones are refused. Raises CheckpointError."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: torch.from_numpy(np.asarray(archive[name], dtype=np.float32)) for name in archive.files}
    except Exception as error:  # zipfile, zlib and numpy raise many errors for damaged files
        if "allow_pickle" in str(error):
            raise CheckpointError(
                f"{path}: refused: it holds Python objects; loading them could run code", "use a file of plain arrays"
            ) from None
        raise CheckpointError(f"{path}: not a readable .npz file ({first_line(error)})", "copy it again") from None


def read_safetensors(path: Path) -> State:
    """The tensors of a `.safetensors` file. Raises CheckpointError; UsageError if the package is missing."""
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise UsageError(f"{path}: .safetensors files need one more package", "pip install 'vitmed[weights]'") from None
    try:
        return load_file(path)
    except Exception as error:  # its own error class is not part of its interface
        why = first_line(error)
        raise CheckpointError(f"{path}: not a readable .safetensors file ({why})", "copy it again") from None
