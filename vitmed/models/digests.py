"""Digests of everything in a checkpoint, by which a change of any number is noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from vitmed.core.errors import CheckpointError
from vitmed.core.text import first_line
from vitmed.models.weights.files import AGAIN

DIGESTS = "digests"  # key of the digests in a file
PLAIN = {str, int, float, bool, type(None)}
SMALL = 2**20  # bytes that are hashed before the threads of a pool have started


def digests_of(content: Mapping[str, Any]) -> dict[str, str]:
    """Name -> sha256: of every tensor ("weights.head.bias"), and of the plain values of every other entry ("config").

    A tensor's digest covers its type, shape and bytes.
    """
    found, tensors = {}, dict[str, torch.Tensor]()
    for name, entry in content.items():
        if name == DIGESTS:
            continue
        plain = hashlib.sha256()
        for text in _walk(entry, name, tensors):
            plain.update(text.encode())
        found[name] = plain.hexdigest()
    if sum(tensor.nbytes for tensor in tensors.values()) < SMALL:
        return found | {name: _digest(tensor) for name, tensor in tensors.items()}
    with ThreadPoolExecutor() as pool:  # hashing releases Python's lock
        return found | dict(zip(tensors, pool.map(_digest, tensors.values()), strict=True))


def check_digests(path: Path, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError, which names the part, for content that is not what was saved.

    A file without digests passes.
    """
    if DIGESTS not in content:
        return
    stated = content[DIGESTS]
    try:
        found = digests_of(content)
        changed = [str(name) for name in [*found, *stated] if found.get(name) != stated.get(name)]
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: damaged: its digests cannot be read ({first_line(error)})", AGAIN) from None
    if changed:
        raise CheckpointError(f"{path}: damaged: {changed[0][:100]} is not what was saved", AGAIN)


def hash_of(digests: Mapping[str, str], entry: str) -> str:
    """The sha256 of the digests of an entry and its tensors."""
    lines = [f"{name} {digest}\n" for name, digest in digests.items() if name.startswith(f"{entry}.")]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _digest(tensor: torch.Tensor) -> str:
    head = f"{tensor.dtype} {tuple(tensor.shape)}\n".encode()
    digest = hashlib.sha256(head)
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
    elif isinstance(value, list | tuple) and not PLAIN.issuperset(map(type, value)):
        yield f"{type(value).__name__} of {len(value)}\n"
        for index, part in enumerate(value):
            yield from _walk(part, f"{name}.{index}", tensors)
    else:
        yield f"{value!r}\n"
