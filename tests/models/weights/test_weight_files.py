"""Files that are damaged, hostile or no weight files: refused in a sentence with the fix for their cause, and soon."""

from __future__ import annotations

import os
import re
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vitmed.core.config import ModelConfig
from vitmed.core.errors import CheckpointError
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.models.vit import ViT
from vitmed.models.weights.files import digests_of, hash_of
from vitmed.models.weights.pretrained import read_weights

READERS: list[Callable[[Path], object]] = [read_weights, load_checkpoint]
both = pytest.mark.parametrize("read", READERS)


def told(read: Callable[[Path], object], file: Path) -> CheckpointError:
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match=re.escape(str(file))) as error:
        read(file)
    assert time.perf_counter() - start < 10
    return error.value


def rezip(source: Path, target: Path, method: int = zipfile.ZIP_STORED, **changed: bytes) -> Path:
    """A copy of a torch file with other content in some members, by the last part of their names, and right CRCs."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", method) as new:
        for member in old.infolist():
            data = changed.get(member.filename.rpartition("/")[2].partition(".")[0], old.read(member))
            new.writestr(member.filename, data)
    return target


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    torch.save({"cls_token": torch.ones(1, 1, 64), "big": torch.arange(1000.0)}, tmp_path / "whole.pt")
    return tmp_path / "whole.pt"


@both
def test_every_cause_has_its_own_fix(
    read: Callable[[Path], object], tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    assert "is a pipe or a device" in told(read, tmp_path / "pipe.pt").problem
    (tmp_path / "empty.pt").write_bytes(b"")
    assert "empty (0 bytes)" in told(read, tmp_path / "empty.pt").problem
    (tmp_path / "loop.pt").symlink_to(tmp_path / "loop.pt")
    assert "symbolic links" in told(read, tmp_path / "loop.pt").problem
    (tmp_path / "cut.pt").write_bytes(whole.read_bytes()[:-100])
    found = told(read, tmp_path / "cut.pt")
    assert "its end is missing" in found.problem and found.fix.startswith("copy it again")
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = told(read, whole)
    assert "permission denied" in found.problem and found.fix == f"ask its owner, or: chmod u+r {whole}"


@both
def test_a_flipped_bit_is_noticed_and_its_member_named(read: Callable[[Path], object], whole: Path) -> None:
    data = bytearray(whole.read_bytes())
    data[data.index(np.arange(1000, dtype=np.float32).tobytes()) + 403] ^= 0x80  # the sign of one number
    whole.write_bytes(data)
    assert "the checksum of its member whole/data/1 is wrong" in told(read, whole).problem


@both
def test_bombs_are_refused_before_they_take_memory(read: Callable[[Path], object], whole: Path, tmp_path: Path) -> None:
    packed = rezip(whole, tmp_path / "packed.pt", zipfile.ZIP_DEFLATED, data=bytes(10**8))
    assert "its members state" in told(read, packed).problem
    lists = rezip(whole, tmp_path / "lists.pt", data=b"\x80\x02" + b"]" * 10**7 + b"a" * (10**7 - 1) + b".")
    assert "nested deeper than 100 levels" in told(read, lists).problem
    lists.unlink()
    deep: list[object] = []
    for _ in range(300):
        deep = [deep]
    torch.save({"format": "vitmed checkpoint", "version": 1, "record": deep}, tmp_path / "deep.pt")
    assert "nested deeper than 100 levels" in told(read, tmp_path / "deep.pt").problem
    torch.save({"cls_token": torch.zeros(1).expand(10**6, 10**6)}, tmp_path / "wide.pt")
    assert "states the shape (1000000, 1000000)" in told(read, tmp_path / "wide.pt").problem
    torch.save({"cls_token": torch.eye(3).to_sparse()}, tmp_path / "sparse.pt")
    assert "not plain arrays" in told(read, tmp_path / "sparse.pt").problem


def test_an_npz_that_states_other_sizes_than_it_has(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", cls_token=np.zeros((1, 1, 64), np.float32))
    with zipfile.ZipFile(tmp_path / "w.npz") as archive:
        data = archive.read("cls_token.npy")
    for content in (data[:-100], data.replace(b"64", b"99")):
        with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
            archive.writestr("cls_token.npy", content)
        assert "states float32" in told(read_weights, tmp_path / "w.npz").problem
    with zipfile.ZipFile(tmp_path / "w.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cls_token.npy", bytes(2 * 10**8))
    assert "states 200,000,000 bytes, packed into" in told(read_weights, tmp_path / "w.npz").problem


def test_a_torchscript_program_is_called_one(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "program.pt"))
    found = told(read_weights, tmp_path / "program.pt")
    assert "TorchScript" in found.problem and "state_dict()" in found.fix


def test_digests_know_type_shape_and_bytes_of_tensors_and_every_plain_value() -> None:
    content = {"weights": {"a": torch.arange(4.0), "n": torch.tensor(3)}, "classes": ["x", "y"], "n": [1, {"b": 2.5}]}
    before = digests_of(content)
    assert list(before) == ["weights", "classes", "n", "weights.a", "weights.n"]
    for changed, names in (
        ({"weights": {"a": -torch.arange(4.0), "n": torch.tensor(3)}}, {"weights.a"}),
        ({"weights": {"a": torch.arange(4.0)[None], "n": torch.tensor(3)}}, {"weights.a"}),
        ({"weights": {"a": torch.arange(4.0).view(torch.int32), "n": torch.tensor(3)}}, {"weights.a"}),
        ({"classes": ["y", "x"]}, {"classes"}),
        ({"n": [1, {"b": 2}]}, {"n"}),
    ):  # fmt: skip
        after = digests_of(content | changed)
        assert {name for name in before if before[name] != after[name]} == names
        assert (hash_of(before) != hash_of(after)) == ("weights.a" in names)
    assert digests_of({"e": torch.zeros(0, 3), "b": torch.zeros(2, dtype=torch.bfloat16), "t": torch.ones(2, 3).T})


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("pos_embed", ()), ("pos_embed", (1, 0, 64)), ("pos_embed", (0,)), ("cls_token", ()), ("cls_token", (64,)),
        ("patch_embed.proj.weight", (64, 3, 8)), ("patch_embed.proj.weight", (1, 64, 3, 8, 8)),
        ("blocks.0.mlp.fc1.weight", ()), ("blocks.0.mlp.fc2.weight", None), ("blocks.0.mlp.fc2.weight", (3,)),
    ],
)  # fmt: skip
def test_a_tensor_of_another_shape_is_refused_by_name(tmp_path: Path, name: str, shape: tuple[int, ...] | None) -> None:
    config = ModelConfig(image_size=16, patch_size=8, width=64, depth=1, heads=1)
    state = ViT(config, 3).state_dict()
    state.pop(name)
    torch.save(state if shape is None else {**state, name: torch.zeros(shape)}, tmp_path / "w.pth")
    found = told(read_weights, tmp_path / "w.pth")
    assert ("no blocks" if shape is None else name) in found.problem and "a plain ViT" in found.fix
