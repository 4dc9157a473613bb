"""Device and arithmetic: as asked where they exist, else told what there is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vitmed.core.config import ModelConfig
from vitmed.core.errors import UsageError
from vitmed.core.process import cores
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.predict import predict_logits
from vitmed.models import hardware
from vitmed.models.hardware import busy, describe, pick_device, pick_precision
from vitmed.models.vit import ViT

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


def machine(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(("cuda", "mps", "kind"), [(1, 1, "cuda"), (0, 1, "mps"), (0, 0, "cpu"), (1, 0, "cuda")])
def test_auto_takes_the_fastest(monkeypatch: pytest.MonkeyPatch, cuda: int, mps: int, kind: str) -> None:
    machine(monkeypatch, bool(cuda), bool(mps))
    assert pick_device().type == kind and pick_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", ["cuda", "mps", "tpu"])
def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    machine(monkeypatch, False, False)
    with pytest.raises(UsageError, match=f"--device {name}: this machine has cpu") as refused:
        pick_device(name)
    assert ("devices are called auto, cuda, mps, cpu" in refused.value.fix) == (name == "tpu")  # which is no name
    with pytest.raises(UsageError, match="--device cpu:x: no name of a device"):
        pick_device("cpu:x")


@pytest.mark.parametrize(
    ("features", "name"),
    [({}, "fp32"), ({"amx_bf16": True}, "bf16"), ({"avx512_bf16": True}, "bf16"), ({"avx2": True}, "fp32")],
)
def test_a_cpu_takes_bf16_only_where_it_computes_in_it(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool], name: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
    precision = pick_precision("auto", CPU)
    assert precision.name == name and precision.mixed == (name == "bf16") and precision.reason


@pytest.mark.parametrize(("has_bf16", "name"), [(True, "bf16"), (False, "fp16")])
def test_a_gpu_and_as_asked(monkeypatch: pytest.MonkeyPatch, has_bf16: bool, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: has_bf16)
    assert pick_precision("auto", CUDA).name == name and pick_precision("auto", MPS).name == "fp32"
    assert pick_precision("fp32", CUDA).dtype is torch.float32 and pick_precision("bf16", CPU).dtype is torch.bfloat16
    with pytest.raises(UsageError, match="fp16 on the CPU"):
        pick_precision("fp16", CPU)


def test_the_description_is_no_host_name() -> None:
    assert describe(CPU) == ("cpu, 1 thread" if (n := torch.get_num_threads()) == 1 else f"cpu, {n} threads")
    assert os.uname().nodename not in describe(CPU)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
def test_cores_are_those_of_this_process() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert cores() == len(before)


def test_reports_are_full_fp32_on_a_gpu_too() -> None:
    """PyTorch lets a GPU round the inputs of fp32 convolutions to 10 bits, and a user may let it round products too."""
    found = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        found.append((torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()))
        return torch.zeros(len(x), 2)

    model = ViT(ModelConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2), 2)
    torch.set_float32_matmul_precision("high")
    try:
        predict_logits(
            model, Preprocessing(8, 3, "pad", "half"), lambda i: np.zeros((8, 8, 3), np.uint8), 1,
            torch.device("cpu"), forward=forward,
        )  # fmt: skip
        assert found == [(False, "highest")]
        assert torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def told(monkeypatch: pytest.MonkeyPatch, user: int, own: float, wanted: int = 2) -> str | None:
    """What `busy` says where two cores have so many more ticks of 0.01 s after 0.1 s, and this process so many s."""
    times: Iterator[float] = iter([5.0, 5.0 + own])
    clock = iter([100.0, 100.1])
    texts = iter(f"cpu 9 9\ncpu0 {n} 7 0 50\ncpu1 70 0 3 9\ncpu7 {9 * n} 0 0 0\nintr 5\n" for n in (40, 40 + user))
    place = SimpleNamespace(read_text=lambda encoding: next(texts))
    monkeypatch.setattr(hardware, "Path", lambda name: place)
    monkeypatch.setattr(hardware, "cores", lambda: wanted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    fake = SimpleNamespace(
        process_time=lambda: next(times), perf_counter=lambda: next(clock), sleep=lambda seconds: None
    )
    monkeypatch.setattr(hardware, "time", fake)
    return busy()


def test_another_program_on_the_cores_of_this_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, 12, 0.02) == "other programs use 1.0 of 2 cores"
    assert told(monkeypatch, 12, 0.1) is None  # its own work
    assert told(monkeypatch, 4, 0.0) is None
    assert told(monkeypatch, 12, 0.02, wanted=1) is None  # a container that may use one of two


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="nothing counts it")
def test_a_program_that_computes_is_seen() -> None:
    loop = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(loop) for _ in os.sched_getaffinity(0)]
    try:
        assert any((busy() or "").startswith("other programs use") for _ in range(20))
    finally:
        for program in programs:
            program.kill()
            program.wait()
