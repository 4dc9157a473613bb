"""Weight files of unknown origin: read without running code, refused if no plain ViT; digests show any change."""

import argparse
import contextlib
import hashlib
import math
import pickle
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.files import why_unreadable
from vitmed.core.text import first_line

State = dict[str, torch.Tensor]
AGAIN = "copy it again from where it came from"
MOST_DEPTH = 100  # of dicts and lists inside each other
# Pickle's codes that begin an empty list, dict or tuple, each perhaps with a number for later reference.
NESTED = re.compile(rb"(?:[\]})](?:q.|r.{4}|\x94)?){10000}", re.DOTALL)
DIGESTS = "digests"  # key of the digests in a file


@contextlib.contextmanager
def _reading(path: Path, problem: str) -> Iterator[None]:
    """Turn every error of a reader into a CheckpointError; `problem` describes a damaged file."""
    try:
        yield
    except CheckpointError:
        raise
    except MemoryError:
        raise CheckpointError(f"{path}: needs more memory than there is", "end other programs") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})", "check the disk") from None
    except Exception as error:  # torch, zipfile, zlib, numpy and safetensors raise errors of every kind
        raise CheckpointError(f"{path}: {problem} ({first_line(error)})", AGAIN) from None


def safe_load(path: Path, foreign: bool = False) -> Any:
    """Read a torch file with `weights_only=True`: tensors and plain types, no code; if `foreign` also
    argparse.Namespace, in which training scripts keep their settings. Checks the CRC of every member. Raises
    CheckpointError: missing, damaged, with code in it, or with a container that contains itself."""
    start, zipped = magic(path)[:2], True
    if start == b"PK":
        _check_members(path)
    elif start == b"\x80\x02":  # torch's older format, which has no checksums
        zipped = False
    else:
        what = "not a checkpoint or weight file" if start else "the file is empty (0 bytes)"
        raise CheckpointError(f"{path}: {what}", "name the .pt file of a run, or a .pth file")
    allowed: list[Any] = [argparse.Namespace] if foreign else []
    with _reading(path, "not a readable checkpoint"), torch.serialization.safe_globals(allowed):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            damaged = "" if zipped else "is damaged, or "
            problem = f"{path}: refused: it {damaged}holds more than tensors and plain values, which could run code"
            raise CheckpointError(problem, "use a file that vitmed wrote, or a plain state dict") from None
    if reason := _refused(content, path.stat().st_size):
        raise CheckpointError(f"{path}: refused: {reason}", "use a plain state dict")
    return content


def _check_members(path: Path) -> None:
    """Raise CheckpointError for a torch file whose zip archive is cut off, damaged, packed or nested without end."""
    if not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path}: not a whole checkpoint or weight file (its end is missing)", AGAIN)
    with _reading(path, "not a whole checkpoint or weight file"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(member.filename.endswith("/constants.pkl") for member in members):
            problem = f"{path}: refused: a TorchScript program, expected weights"
            raise CheckpointError(problem, "save the state_dict() of the model")
        stated = sum(member.file_size for member in members)
        if stated > path.stat().st_size or any(member.compress_type for member in members):
            problem = f"its members state {stated:,} bytes, in a file of {path.stat().st_size:,}"
            raise CheckpointError(f"{path}: refused: {problem}", "use the file as torch.save wrote it, unpacked")
        if len({member.filename for member in members}) < len(members):
            raise CheckpointError(f"{path}: refused: two members have one name", AGAIN)
        if damaged := archive.testzip():
            raise CheckpointError(f"{path}: damaged: the checksum of its member {damaged} is wrong", AGAIN)
        for member in members:
            if member.filename.endswith("/data.pkl") and NESTED.search(archive.read(member)):
                problem = f"nested deeper than {MOST_DEPTH} levels"
                raise CheckpointError(f"{path}: refused: {problem}", "use a plain state dict")


def _refused(tree: Any, size: int) -> str | None:
    """What forbids to work with what a file of `size` bytes held; None for plain tensors in plain containers.

    A search through a container that lies inside itself, at any depth, would never end. A tensor that repeats one
    number may state any shape.
    """
    above: set[int] = set()  # the containers around the current one
    finished: set[int] = set()
    stack = [(tree, False)]
    while stack:
        value, leave = stack.pop()
        if leave:
            above.remove(id(value))
            finished.add(id(value))
        elif id(value) in above:
            return "a part of it contains itself"
        elif isinstance(value, dict | list | tuple) and id(value) not in finished:
            above.add(id(value))
            if len(above) > MOST_DEPTH:
                return f"nested deeper than {MOST_DEPTH} levels"
            stack.append((value, True))
            stack += [(part, False) for part in (value.values() if isinstance(value, dict) else value)]
        elif isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.is_nested or value.device.type != "cpu":
                return "it holds tensors that are not plain arrays"
            if value.numel() > size:
                return f"a tensor states the shape {tuple(value.shape)}, in a file of {size:,} bytes"
    return None


def magic(path: Path) -> bytes:
    """The first 32 bytes of a file. Raises CheckpointError if it cannot be read."""
    if reason := why_unreadable(path):
        problem, fix = reason
        if path.is_dir():
            inside = [path / name for name in ("model.safetensors", "pytorch_model.bin") if (path / name).is_file()]
            inside += sorted(path.glob("*/best.pt"), key=lambda file: -file.stat().st_mtime_ns)  # the newest run first
            problem, fix = "is a folder, expected a file such as best.pt", f"name {inside[0]}" if inside else ""
        elif problem == "no such file":
            fix = ""
        raise CheckpointError(f"{path}: {problem}", fix or "name a run folder, a checkpoint or a weight file")
    with _reading(path, "not readable"), path.open("rb") as stream:
        return stream.read(32)


def read_npz(path: Path) -> State:
    """The arrays of a `.npz` file as float32 tensors. Pickled arrays are refused, and members that have another size
    than their header states or unpack without end. Raises CheckpointError."""
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with _reading(path, "not a readable .npz file"):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name, size, packed = member.filename, member.file_size, member.compress_size
                if size > 100_000_000 + 100 * packed:
                    raise ValueError(f"{name} states {size:,} bytes, packed into {packed:,}")
                with archive.open(member) as stream:
                    shape, _, dtype = header[np.lib.format.read_magic(stream)](stream)
                    if dtype.hasobject:
                        problem = f"{path}: refused: it holds Python objects; loading them could run code"
                        raise CheckpointError(problem, "use a file of plain arrays")
                    if stream.tell() + math.prod(shape) * dtype.itemsize != size:
                        raise ValueError(f"{name} states {dtype} {shape}, and has {size:,} bytes")
        with np.load(path, allow_pickle=False) as arrays:  # checks each CRC
            return {name: torch.from_numpy(np.asarray(arrays[name], dtype=np.float32)) for name in arrays.files}


def read_safetensors(path: Path) -> State:
    """The tensors of a `.safetensors` file. Raises CheckpointError; UsageError if the package is missing."""
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise UsageError(f"{path}: .safetensors files need one more package", "pip install 'vitmed[weights]'") from None
    with _reading(path, "not a readable .safetensors file"):
        return load_file(path)


def digests_of(content: Mapping[str, Any]) -> dict[str, str]:
    """Name -> sha256: of every tensor ("weights.head.bias"), and of the plain values of every other entry ("config").

    A tensor's digest covers its type, shape and bytes.
    """
    digests, tensors = {}, dict[str, torch.Tensor]()
    for name, entry in content.items():
        if name == DIGESTS:
            continue
        text = "".join(_walk(entry, name, tensors))
        digests[name] = hashlib.sha256(text.encode()).hexdigest()
    large = sum(tensor.nbytes for tensor in tensors.values()) > 10_000_000  # below it, threads take longer to start
    with ThreadPoolExecutor() as pool:  # hashing releases Python's lock
        hashed = (pool.map if large else map)(_digest, tensors.values())
        return digests | dict(zip(tensors, hashed, strict=True))


def check_digests(path: Path, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError, which names the part, for content that is not what was saved.

    A file without digests passes.
    """
    if DIGESTS not in content:
        return
    stated = content[DIGESTS]
    try:
        digests = digests_of(content)
        changed = [str(name) for name in [*digests, *stated] if digests.get(name) != stated.get(name)]
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: damaged: its digests cannot be read ({first_line(error)})", AGAIN) from None
    if changed:
        raise CheckpointError(f"{path}: damaged: {changed[0][:100]} is not what was saved", AGAIN)


def hash_of(digests: Mapping[str, str]) -> str:
    """The sha256 of the digests of the weights."""
    lines = [f"{name} {digest}\n" for name, digest in digests.items() if name.startswith("weights.")]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _digest(tensor: torch.Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _walk(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Iterator[str]:
    """Exact text of all plain values in a tree; its tensors go into `tensors` by name."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value
        yield "tensor\n"
    elif isinstance(value, Mapping):
        yield f"{len(value)} entries\n"
        for key, part in value.items():
            yield f"{key!r}\n"
            yield from _walk(part, f"{name}.{key}", tensors)
    elif isinstance(value, list | tuple) and not {str, int, float, bool, type(None)}.issuperset(map(type, value)):
        yield f"{type(value).__name__} of {len(value)}\n"
        for index, part in enumerate(value):
            yield from _walk(part, f"{name}.{index}", tensors)
    else:
        yield f"{value!r}\n"


# --- what is refused: a network that is no plain ViT


def not_plain(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path}: not a plain ViT: {what}", "use the weights of a plain ViT; see docs/weights.md")


@cache
def tensor_names() -> dict[str, Any]:
    """What layouts.yaml holds, read once."""
    return dict(yaml.safe_load(Path(__file__).with_name("layouts.yaml").read_text(encoding="utf-8")))


def refuse_others(names: Iterable[str], state: State, path: Path) -> None:
    """Raise CheckpointError for other kinds of networks, and name the kind; `names` are of the tensors that vitmed does
    not use, and a text encoder among them does not count."""
    names = [name for name in names if not name.startswith("text")]
    for pattern, what in tensor_names()["refused"]:
        name = next((name for name in names if re.fullmatch(pattern, name)), None)
        if name is not None:
            raise not_plain(path, f"{name} belongs to {what}")
    odd = next((n for n, v in state.items() if v.is_complex() or (v.dtype.itemsize == 1 and v.dtype != torch.bool)), "")
    if odd:
        raise CheckpointError(f"{path}: {odd} is quantised or complex ({state[odd].dtype})", "use fp32, fp16 or bf16")
    kernels = [name for name, value in state.items() if value.ndim == 4 and value.shape[-1] > 1]
    if len(kernels) > 8:
        raise not_plain(path, f"{len(kernels)} convolutions, such as {kernels[0]}: a CNN")


def refuse_not_finite(state: State, path: Path) -> None:
    """Raise CheckpointError for numbers that are not finite."""
    broken = next((name for name, value in state.items() if not bool(value.isfinite().all())), None)
    if broken is not None:
        raise CheckpointError(f"{path}: {broken} holds numbers that are not finite", "use another file")


def refuse_incomplete(state: State, unused: Iterable[str], path: Path) -> None:
    """Raise CheckpointError unless the tensors, in timm's names, are a network that vitmed has."""
    strange = next((name for name in unused if name.startswith("blocks.")), None)
    if strange is not None:
        raise not_plain(path, f"its blocks hold {strange}")
    if "patch_embed.proj.weight" not in state or any(name.startswith("patch_embed.backbone.") for name in unused):
        raise not_plain(path, "it has no patch embedding by one convolution")
    if {"norm_pre.weight", "attn_pool.latent"} <= state.keys():
        raise not_plain(path, "it has CLIP's first norm and an attention pooling, so rotary positions too (PE-Core)")
    if not {"blocks.0.norm1.weight", "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight"} <= state.keys():
        raise not_plain(path, "it has no blocks")
    refuse_shapes(state, path)
    hub = path.with_name("config.json")
    named = f"{path.absolute().parent.name}/{path.name} {hub.read_bytes()[:10_000] if hub.is_file() else ''!r}"
    if other := re.search(r"vit_[a-z]+_patch\d+_(rope|rpn)_", named):  # with the tensors of a plain ViT
        raise not_plain(path, f"its name, or its config.json, says {other[0]}; if it is none of timm's, rename it")
    if not {"cls_token", "attn_pool.latent", "fc_norm.weight"} & state.keys():
        raise not_plain(path, "it has no class token, and reads the mean of normalised patches (SigLIP's gap models)")
    if "pos_embed" not in state and not is_rotary(state):
        raise not_plain(path, "it has no learned positions, nor DINOv3's rotary ones with four storage tokens")
    given, taken = (state[f"blocks.0.mlp.fc{i}.weight"].shape[i - 1] for i in (1, 2))
    if given not in (taken, 2 * taken):
        expected = f"{taken} (an MLP) or {2 * taken} (packed SwiGLU)"
        raise not_plain(path, f"blocks.0.mlp.fc1 gives {given} numbers and fc2 takes {taken}, expected {expected}")
    if given == taken and "blocks.0.mlp.norm.weight" in state:
        raise not_plain(path, "a norm inside an MLP that is not gated")


def refuse_shapes(state: State, path: Path) -> None:
    """Raise CheckpointError for a tensor with another number of dimensions than layouts.yaml states."""
    for name, count in tensor_names()["dimensions"].items():
        shape = tuple(state[name].shape) if name in state else (1,) * count
        if len(shape) != count or 0 in shape:
            raise not_plain(path, f"{name} has the shape {shape}, expected {count} dimensions")


def is_rotary(state: State) -> bool:
    """Whether a state dict is DINOv3's: no positions, but storage tokens and LayerScale.

    Other networks with rotary positions compute them otherwise, and their files may not show it.
    """
    storage = "reg_token" in state and state["reg_token"].shape[1] == 4 and "blocks.0.ls1.gamma" in state
    return "pos_embed" not in state and "cls_token" in state and ("rope.periods" in state or storage)
