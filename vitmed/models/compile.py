"""Compile a network for training, where the machine can: fused code, the same weights."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitmed.core.errors import UsageError
from vitmed.core.run_folder import cache_folder
from vitmed.models.layers import Mlp


def compile_network(model: nn.Module) -> None:
    """Compile a network when it is first called, and again for other shapes.

    Random masks stay those of the network that is not compiled. The compiler's cache goes into vitmed's cache folder,
    unless TORCHINDUCTOR_CACHE_DIR names another; its default is named after the user, who may have no name in a
    container.
    """
    if Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "torchinductor_")).name.startswith("torchinductor_"):  # unset
        with contextlib.suppress(OSError):
            (folder := cache_folder() / "compiled").mkdir(parents=True, exist_ok=True)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    if next(model.parameters()).device.type == "cpu":
        use_gelu(model, whole_gelu)
    model.compile(options={"fallback_random": True})


def leave_uncompiled(model: nn.Module) -> None:
    """Undo `compile_network`."""
    use_gelu(model, F.gelu)
    model._compiled_call_impl = None


def use_gelu(model: nn.Module, gelu: Callable[[Tensor], Tensor]) -> None:
    """Let every block compute GELU by a function."""
    for module in model.modules():
        if isinstance(module, Mlp) and module.gelu in (F.gelu, whole_gelu):  # not an approximation of it
            module.gelu = gelu


@torch.library.custom_op("vitmed::gelu", mutates_args=())
def whole_gelu(x: Tensor) -> Tensor:
    """GELU that the compiler leaves to PyTorch, whose kernels for bf16 on a CPU are almost twice as fast as its own."""
    return F.gelu(x)


@torch.library.custom_op("vitmed::gelu_backward", mutates_args=())
def gelu_backward(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of `whole_gelu`."""
    return torch.ops.aten.gelu_backward(gradient, x)  # type: ignore[no-any-return]


whole_gelu.register_fake(torch.empty_like)
gelu_backward.register_fake(lambda gradient, x: torch.empty_like(x))
whole_gelu.register_autograd(
    lambda ctx, gradient: gelu_backward(gradient, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def missing_compiler(device: torch.device) -> str | None:
    """Why this machine cannot compile a network for a device; None if it can."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton  # `import torch` alone does not load this module in every version

        return None if has_triton() else "Triton is not installed or does not know this GPU"
    if device.type != "cpu":
        return f"compilation is not tried on {device.type}"
    wanted = os.environ.get("CXX", "g++")
    return None if shutil.which(wanted) or shutil.which("clang++") else f"no C++ compiler ({wanted}) is installed"


def check_compiler(asked: bool | None, device: torch.device) -> None:
    """Raises UsageError if it is asked to compile and this machine cannot."""
    if asked and (problem := missing_compiler(device)) is not None:
        raise UsageError(f"--compile: {problem}", "leave --compile out")


def is_of_compiler(error: BaseException) -> bool:
    """Whether compiling failed."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def uncompiled(config_compiles: bool | None) -> contextlib.AbstractContextManager[object]:
    """Compute without compiled code, which would be compiled again for inference."""
    return torch.compiler.set_stance("force_eager") if config_compiles else contextlib.nullcontext()
