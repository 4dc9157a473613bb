"""Low-rank adaptation: the pretrained matrices stay, each gets a small learned addition (Hu et al. 2021,
arXiv 2106.09685).

While training, a linear layer's weight is W + B A with A (r, in) and B (out, r); only A and B learn. `merged` adds them
up, so that a checkpoint holds a plain ViT.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitmed.core.errors import UsageError
from vitmed.models.vit import ViT

ADAPTED = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")  # every matrix of a block


class LowRank(nn.Module):
    """(out, in) -> W + B A. B starts at zero, so that nothing changes before the first step."""

    def __init__(self, out: int, inside: int, rank: int):
        super().__init__()
        self.A = nn.Parameter(torch.empty(rank, inside))
        self.B = nn.Parameter(torch.zeros(out, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.B @ self.A


def add_low_rank(model: ViT, rank: int) -> None:
    """Freeze all but the head and give every matrix of the blocks an addition of that rank.

    Raises:
        UsageError: a rank that saves nothing.
    """
    width = model.head.in_features
    if rank >= width:
        raise UsageError(
            f"--lora {rank}: the network is only {width} wide", f"a rank well below it, such as {width // 16 or 1}"
        )
    model.freeze(0)
    for parameter in (*model.blocks.parameters(), *model.norm.parameters(), *model.fc_norm.parameters()):
        parameter.requires_grad_(False)
    for block in model.blocks:
        for name in ADAPTED:
            linear = block.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            addition = LowRank(linear.out_features, linear.in_features, rank).to(linear.weight.device)
            parametrize.register_parametrization(linear, "weight", addition)


def merged(model: nn.Module) -> dict[str, Tensor]:
    """The state dict in plain names, every addition added up; of a network without any, its own state dict."""
    state = {name: value for name, value in model.state_dict().items() if ".parametrizations." not in name}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module, "weight"):
            state[f"{name}.weight"] = module.weight.detach()
    return state
