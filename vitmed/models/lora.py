"""Low-rank adaptation, LoRA (Hu et al. 2021, arXiv 2106.09685).

The pretrained matrices W (out, in) of the blocks stay as they are. Each gets an addition B A of rank r, which learns,
as the head does: r (in + out) numbers instead of in x out. It is not scaled: alpha / r is 1 in other libraries' terms.
The optimiser keeps state for these alone, so fine-tuning takes less memory; a checkpoint holds W + B A, a plain network
that answers as fast as any other.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitmed.core.errors import UsageError
from vitmed.models.vit import ViT

ADAPTED = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")  # every matrix of a block


class LowRank(nn.Module):
    """W (out, in) -> W + B A. Only A (r, in) and B (out, r) learn. They start as in loralib: B at zero."""

    def __init__(self, out: int, inside: int, rank: int):
        super().__init__()
        self.A = nn.Parameter(torch.empty(rank, inside))
        self.B = nn.Parameter(torch.zeros(out, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        """W (out, in) -> the matrix that the layer multiplies by, (out, in)."""
        return weight + self.B @ self.A


def add_low_rank(model: ViT, rank: int) -> None:
    """Freeze all but the head, and add `LowRank` to every matrix of the blocks. Raises UsageError if the rank is as
    large as the network is wide, or larger."""
    width = model.width
    if rank >= width:
        problem = f"--lora {rank}: the network is only {width} wide"
        raise UsageError(problem, f"use a much lower rank, such as {width // 16 or 1}")
    model.freeze(0)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    for block in model.blocks:
        for name in ADAPTED:
            linear = block.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            addition = LowRank(linear.out_features, linear.in_features, rank).to(linear.weight)
            parametrize.register_parametrization(linear, "weight", addition)


def merged(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the plain ViT, for a checkpoint: names and shapes as before `add_low_rank`, the additions
    merged into the matrices. Without additions it is `model.state_dict()`."""
    state = {name: value for name, value in model.state_dict().items() if ".parametrizations." not in name}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module, "weight"):
            state[f"{name}.weight"] = module.weight.detach()
    return state
