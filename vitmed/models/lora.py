"""Low-rank adaptation, LoRA (Hu et al. 2021, arXiv 2106.09685): a small learned addition to each pretrained matrix.

In training a linear layer has the weight W + B A with A (r, in) and B (out, r); only A and B learn. `merged` adds them
up, so a checkpoint holds a plain ViT.
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
    """(out, in) -> W + B A. B starts at zero, so nothing changes before the first step."""

    def __init__(self, out: int, inside: int, rank: int):
        super().__init__()
        self.A = nn.Parameter(torch.empty(rank, inside))
        self.B = nn.Parameter(torch.zeros(out, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.B @ self.A


def add_low_rank(model: ViT, rank: int) -> None:
    """Freeze all but the head, and add `LowRank` to every matrix of the blocks.

    Raises:
        UsageError: the rank is as large as the head's input is wide, or larger.
    """
    width = model.head.in_features
    if rank >= width:
        raise UsageError(
            f"--lora {rank}: the network is only {width} wide", f"use a much lower rank, such as {width // 16 or 1}"
        )
    model.freeze(0)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    for block in model.blocks:
        for name in ADAPTED:
            linear = block.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            addition = LowRank(linear.out_features, linear.in_features, rank).to(linear.weight.device)
            parametrize.register_parametrization(linear, "weight", addition)


def merged(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the plain ViT, with all additions merged into its matrices."""
    state = {name: value for name, value in model.state_dict().items() if ".parametrizations." not in name}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module, "weight"):
            state[f"{name}.weight"] = module.weight.detach()
    return state
