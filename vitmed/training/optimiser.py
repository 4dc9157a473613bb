"""AdamW and its parameter groups, the learning rate as a function of the step, and the moving average."""

import math
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from vitmed.core.config import Config, PretrainConfig

TOKENS = ("cls_token", "reg_token", "pos_embed", "mask_token", "latent")  # parameters that are no weight matrices


def learning_rate(step: float, steps: int, warmup: int, peak: float, low: float) -> float:
    """Linear warm-up, then half a cosine from `peak` to `low` (Loshchilov & Hutter 2017, arXiv 1608.03983). `step` runs
    from 0 to steps - 1, fractions included: the first has the rate peak / warmup, not 0, and the last has `low`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - 1 - warmup)  # 0 .. 1
    return low + (peak - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def parameter_groups(model: nn.Module, weight_decay: float, layer_decay: float) -> list[dict[str, Any]]:
    """Groups for AdamW: no weight decay on biases, norms, class token and positions; `scale` of the rate per block.

    Layer decay (Clark et al. 2020, as in BEiT and MAE): layer_decay^(n - i) for block i = 0 .. n - 1,
    layer_decay^(n + 1) before the blocks, 1 after them. An autoencoder has no layer decay.
    """
    blocks = len(getattr(model, "blocks", ()))
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        plain = parameter.ndim <= 1 or name.rpartition(".")[2] in TOKENS
        if name.startswith("blocks."):
            depth = blocks - int(name.split(".")[1])
        else:
            depth = blocks + 1 if name.startswith(("patch_embed", "norm_pre", *TOKENS)) else 0
        groups.setdefault((0.0 if plain else weight_decay, layer_decay**depth), []).append(parameter)
    return [{"params": p, "weight_decay": decay, "scale": scale} for (decay, scale), p in groups.items()]


def adamw(model: nn.Module, config: Config | PretrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101), fused."""
    train = config.train
    groups = parameter_groups(model, train.weight_decay, train.layer_decay)
    return torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, fused=True)


def steps_per_epoch(batches: int, accumulate: int) -> int:
    """Optimiser steps per epoch; the last may accumulate fewer batches."""
    return -(-batches // accumulate)


def scheduled_lr(step: int, batches: int, config: Config | PretrainConfig, share: float = 0.0) -> float:
    """The learning rate of a step; warm-up takes at most a third of the run. Where more of the time is used (`share`,
    0 to 1) than of the steps, the schedule jumps ahead by whole steps."""
    train = config.train
    per_epoch = steps_per_epoch(batches, train.accumulate)
    steps = train.epochs * per_epoch
    warmup = min(round(train.warmup_epochs * per_epoch), steps // 3)
    return learning_rate(max(step, int(share * (steps - 1))), steps, warmup, train.lr, train.min_lr)


def ema_decay(steps: int) -> float:
    """The decay that averages over a tenth of the run, at most 1,000 steps; 0.9998 is useless in short runs."""
    return min(0.999, max(0.0, 1 - 10 / steps))


class MovingAverage(AveragedModel):
    """An exponential moving average (EMA) of the model, with decay min(decay, (1 + t) / (10 + t)) at update t.

    It is updated without waiting for a GPU; PyTorch's own copies the count there and reads it, every step.
    """

    def __init__(self, model: nn.Module, decay: float):
        super().__init__(model)
        self.decay = decay

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        t = int(self.n_averaged)  # on the CPU
        share = 1 - min(self.decay, (1 + t) / (10 + t)) if t else 1.0  # 1 is a copy
        torch._foreach_lerp_(list(self.module.parameters()), list(model.parameters()), share)
        for buffer, current in zip(self.module.buffers(), model.buffers(), strict=True):
            buffer.copy_(current)
        self.n_averaged += 1
