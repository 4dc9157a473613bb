"""How the blocks of a network are computed: which attention kernel, and compiled or not. Neither changes a weight."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from vitmed.core.cache_folder import cache_folder
from vitmed.core.errors import UsageError
from vitmed.models.vit import Attention, Block

FUSED = {"auto": None, "fused": True, "explicit": False}


def use_attention(model: nn.Module, kernel: str) -> None:
    """Let training compute attention by the kernel "fused" (PyTorch's), "explicit" (plain matrices) or "auto"."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.fused = FUSED[kernel]


def compile_blocks(model: nn.Module) -> None:
    """Compile every block when it is first called; one compilation serves all blocks of a size.

    Random masks stay those of the network that is not compiled. The compiler's cache goes into vitmed's cache folder,
    unless TORCHINDUCTOR_CACHE_DIR names another; its default is named after the user, who may have no name in a
    container.
    """
    if Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "torchinductor_")).name.startswith("torchinductor_"):  # unset
        with contextlib.suppress(OSError):
            (folder := cache_folder() / "compiled").mkdir(parents=True, exist_ok=True)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    for block in _blocks(model):
        block.compile(options={"fallback_random": True})


def leave_uncompiled(model: nn.Module) -> None:
    """Undo `compile_blocks`."""
    for block in _blocks(model):
        block._compiled_call_impl = None


def require_compiler(device: torch.device) -> None:
    """Raise UsageError if this machine cannot compile a network for a device."""
    if (problem := missing_compiler(device)) is not None:
        raise UsageError(f"--compile: {problem}", "leave --compile out")


def missing_compiler(device: torch.device) -> str | None:
    """Why this machine cannot compile a network for a device; None if it can."""
    if device.type == "cuda":
        return None if torch.utils._triton.has_triton() else "Triton is not installed or does not know this GPU"
    if device.type != "cpu":
        return f"compilation is not tried on {device.type}"
    wanted = os.environ.get("CXX", "g++")
    return None if shutil.which(wanted) or shutil.which("clang++") else f"no C++ compiler ({wanted}) is installed"


def is_of_compiler(error: BaseException) -> bool:
    """Whether compiling failed."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def uncompiled(config_compiles: bool | None) -> contextlib.AbstractContextManager[object]:
    """Compute without the compiled blocks, which would be compiled again for inference."""
    return torch.compiler.set_stance("force_eager") if config_compiles else contextlib.nullcontext()


def _blocks(model: nn.Module) -> Iterator[Block]:
    return (module for module in model.modules() if isinstance(module, Block))
