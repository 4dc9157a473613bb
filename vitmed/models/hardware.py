"""What the machine offers: device, arithmetic, random numbers, versions; and compiling a network for training."""

import contextlib
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitmed import __version__
from vitmed.core.errors import UsageError
from vitmed.core.process import SharedContext, changed, cores
from vitmed.core.run_folder import cache_folder
from vitmed.core.text import counted


@dataclass(frozen=True)
class Precision:
    """The arithmetic of training: name, the dtype of autocast, and why it was chosen."""

    name: str
    dtype: torch.dtype
    reason: str

    @property
    def mixed(self) -> bool:
        """Whether autocast is on."""
        return self.dtype is not torch.float32


def pick_device(name: str = "auto") -> torch.device:
    """The device of that name, such as "cuda" or "cuda:1"; auto picks cuda, then mps, then the CPU.

    Raises UsageError if this machine has no such device.
    """
    have = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in have.items() if there))
    if not have.get(kind := name.split(":")[0], False):
        there = ", ".join(kind for kind, yes in have.items() if yes)
        fix = "use --device auto" if kind in have else f"devices are called auto, {', '.join(have)}"
        raise UsageError(f"--device {name}: this machine has {there}", fix)
    try:
        return torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device {name}: no name of a device", "use --device auto") from None


def pick_precision(name: str, device: torch.device) -> Precision:
    """The arithmetic of that name; auto picks 16-bit floats only if the hardware computes in them."""
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if name != "auto":
        if name == "fp16" and device.type == "cpu":
            raise UsageError("train.precision=fp16 on the CPU, expected fp32 or bf16", "use fp32 or bf16")
        return Precision(name, dtypes[name], "as asked")
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Precision("bf16", torch.bfloat16, "supported by this GPU")
        return Precision("fp16", torch.float16, "this GPU has no bf16; the loss is scaled")
    if device.type == "cpu":
        # Without these instructions bf16 is emulated: a tenth of the fp32 speed, measured on an AVX2 machine.
        features = cpu_features()
        if features.get("amx_bf16") or features.get("avx512_bf16") or features.get("bf16"):
            return Precision("bf16", torch.bfloat16, "supported by this CPU")
        return Precision("fp32", torch.float32, "this CPU has no bf16 instructions")
    return Precision("fp32", torch.float32, f"the safe choice on {device.type}")


def cpu_features() -> Mapping[str, Any]:
    """What the CPU can do, by torch's names, such as "amx_bf16"; torch 2.10 knows only the three below."""
    if hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu.get_capabilities()
    amx = torch.cpu._is_amx_tile_supported()
    return {"amx_tile": amx, "amx_bf16": amx, "avx512_bf16": torch.cpu._is_avx512_bf16_supported()}


@contextlib.contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch, the CPU and perhaps a second device, within the block as `torch.manual_seed` would, then restore the
    caller's generators."""
    backend = None if device is None else {"cuda": torch.cuda, "mps": torch.mps}.get(device.type)
    before = torch.get_rng_state()
    before_there = None if backend is None else backend.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed)
        if backend is not None:
            backend.manual_seed(seed)
        yield
    finally:
        torch.set_rng_state(before)
        if backend is not None:
            backend.set_rng_state(before_there)


@contextlib.contextmanager
def _full_fp32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        with changed(torch.set_float32_matmul_precision, "highest", torch.get_float32_matmul_precision()):
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


FULL_FP32 = SharedContext(_full_fp32)  # on a GPU, PyTorch rounds the inputs of fp32 convolutions to 10 bits (TF32)


def using_threads(count: int | None) -> contextlib.AbstractContextManager[None]:
    """Compute with `count` CPU threads within the block, at most one per core; None changes nothing."""
    before = torch.get_num_threads()
    return changed(torch.set_num_threads, before if count is None else min(count, cores()), before)


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type in ("cuda", "mps"):
        (torch.cuda if device.type == "cuda" else torch.mps).synchronize()


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that a function takes, until the device has done what it was given."""
    synchronise(device)
    start = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - start


def busy() -> str | None:
    """How much other programs compute just now, in words, if they take cores from this one; None if they do not, or
    where nothing counts it (/proc/stat of Linux). Takes 0.1 s."""

    def others() -> float:  # s of processor time on the cores of this process
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        rows = map(str.split, Path("/proc/stat").read_text(encoding="ascii").splitlines())
        ticks = sum(sum(map(int, row[1:4])) for row in rows if row[0] in mine)  # user, nice and system
        return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()

    try:
        start, before = time.perf_counter(), others()
        time.sleep(0.1)
        used = (others() - before) / (time.perf_counter() - start)
    except (OSError, AttributeError):
        return None
    left = len(os.sched_getaffinity(0)) - used
    return f"other programs use {used:.1f} of {counted(cores(), 'core')}" if left < cores() - 0.5 else None


def machine(device: torch.device) -> str:
    """What decides how fast a device is, without a host name."""
    if device.type == "cuda":
        return f"{describe(device)}, CUDA {torch.version.cuda}"
    spin = os.environ.get("GOMP_SPINCOUNT"), os.environ.get("OMP_WAIT_POLICY")
    features = [name for name, there in sorted(cpu_features().items()) if there]
    return f"{device.type} {platform.machine()}, {cores()} cores, {torch.get_num_threads()} threads, {features}, {spin}"


PACKAGES = ("torch", "torchvision", "albumentations", "numpy", "pillow", "scikit-learn")


@cache
def versions() -> Mapping[str, str]:
    """The versions of the packages that decide the numbers."""
    return {"vitmed": __version__, **{package: version(package) for package in PACKAGES}}


def describe(device: torch.device) -> str:
    """The device in words, without a host name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {counted(torch.get_num_threads(), 'thread')}"


def compile_network(model: nn.Module, on: bool = True) -> None:
    """Compile a network when it is first called, and again for other shapes; with `on=False` undo that.

    Random masks stay those of the network that is not compiled. The compiler's cache goes into vitmed's cache folder,
    unless TORCHINDUCTOR_CACHE_DIR names another; its default is named after the user, who may have no name in a
    container.
    """
    named = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "torchinductor_"))
    if on and named.name.startswith("torchinductor_"):  # unset
        with contextlib.suppress(OSError):
            (folder := cache_folder() / "compiled").mkdir(parents=True, exist_ok=True)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    whole = on and next(model.parameters()).device.type == "cpu"
    for module in model.modules():
        if getattr(module, "gelu", None) in (F.gelu, whole_gelu):  # of `layers.Mlp`, and not an approximation of it
            module.gelu = whole_gelu if whole else F.gelu  # type: ignore[assignment]
    model._compiled_call_impl = None
    if on:
        model.compile(options={"fallback_random": True})


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
    """Raise UsageError if the user asked to compile and this machine cannot."""
    if asked and (problem := missing_compiler(device)) is not None:
        raise UsageError(f"--compile: {problem}", "leave --compile out")


def is_of_compiler(error: BaseException) -> bool:
    """Whether an error comes from the compiler."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def uncompiled(config_compiles: bool | None) -> contextlib.AbstractContextManager[object]:
    """Compute without compiled code, which would be compiled again for inference."""
    return torch.compiler.set_stance("force_eager") if config_compiles else contextlib.nullcontext()
