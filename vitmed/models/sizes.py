"""`SIZES`: the sizes of a ViT by name, as in timm; and a network in words. Imports torch only for torchinfo's table."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vitmed.core.config import ModelConfig
from vitmed.core.errors import unknown_key
from vitmed.core.text import counted, file_name

if TYPE_CHECKING:  # an exported model is described without torch
    from torch import nn


class Size(NamedTuple):
    """Width D, number of blocks, heads A."""

    width: int
    depth: int
    heads: int


SIZES = {
    "vit_tiny": Size(192, 12, 3),
    "vit_small": Size(384, 12, 6),
    "vit_base": Size(768, 12, 12),
    "vit_large": Size(1024, 24, 16),
}


def size_of(model: ModelConfig) -> Size:
    """The size of a network: what is set, else the size of its name. Raises UsageError: no such name."""
    if model.name not in SIZES:
        raise unknown_key("model", model.name, SIZES)
    usual = SIZES[model.name]
    return Size(model.width or usual.width, model.depth or usual.depth, model.heads or usual.heads)


def resolved(model: ModelConfig) -> ModelConfig:
    """A configuration with its size, and the plain stem and pooling where they are `auto`, which `train` resolves
    earlier. Raises UsageError: no such name."""
    usual = {"stem": "patch", "pool": "cls", **size_of(model)._asdict()}
    return model.model_copy(update={field: v for field, v in usual.items() if getattr(model, field) in (None, "auto")})


def model_label(model: ModelConfig) -> str:
    """A short name of the network: the name of its weights, or `size_label`."""
    if model.start is not None:
        file = Path(model.start)
        ours = file.name in ("best.pt", "last.pt", "encoder.pt")
        return file_name(file.resolve().parent.name if ours else file.stem) or "weights"
    return size_label(model)


def size_label(model: ModelConfig) -> str:
    """The name of the size, as vit-tiny, or the width and depth, as vit-128x4; no file's name."""
    width, depth, _ = size_of(model)
    return model.name.replace("_", "-") if (width, depth) == SIZES[model.name][:2] else f"vit-{width}x{depth}"


def describe_model(model: ModelConfig) -> str:
    """The network in a few words."""
    size = size_of(model)
    words = f"ViT of width {size.width}, {counted(size.depth, 'block')}, {counted(size.heads, 'head')}"
    name = model.name if size == SIZES[model.name] else words
    sides = f"{model.image_size} px images, {model.patch_size} px patches"
    return f"{name}, {sides}, {model.stem} stem, {model.pool} pooling"


def summarise(model: "nn.Module", config: ModelConfig) -> str:
    """Layers, shapes, parameters and multiply-adds for one image, by torchinfo; the multiply-adds by PyTorch's counter,
    since torchinfo counts a layer once, however many patches it is applied to, and no product of attention."""
    import torch
    import torchinfo  # noqa: TID251
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    device = next(model.parameters()).device
    side, columns = config.image_size, ("input_size", "output_size", "num_params", "mult_adds")
    image = torch.zeros(1, config.channels, side, side, device=device, dtype=torch.float32)
    table = torchinfo.summary(model, input_data=image, depth=3, col_names=columns, verbose=0, device=device)
    # On the way of plain matrix products, which the counter knows; a multiply-add is two operations.
    counter, before = FlopCounterMode(display=False), model.training
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model.eval()(image)
    model.train(before)
    names = {module: f"{type(model).__name__}.{name}" for name, module in model.named_modules()}
    for layer in table.summary_list:
        layer.macs = sum(counter.get_flop_counts().get(names.get(layer.module, ""), {}).values()) // 2
    table.total_mult_adds = counter.get_total_flops() // 2
    text = str(table)
    for unit in ("MEGA", "GIGA", "TERA"):  # torchinfo prints the name of its own constant
        text = text.replace(f"Units.{unit}BYTES", unit[0])
    return text + "\n"
