"""Maps of where a ViT looked, by three methods, on the grid of its patches.

rollout: the attention of all blocks multiplied up, with the residual connection as an identity (Abnar & Zuidema 2020,
    arXiv 2005.00928, section 3). It knows nothing of the class.
gradient_rollout: only attention that speaks for the class: its positive part after multiplication by its gradient
    (Chefer, Gur & Wolf 2021, arXiv 2103.15679, equations 5 and 6).
grad_cam: the patch tokens themselves, each channel weighted by its mean gradient (Selvaraju et al. 2017, arXiv
    1610.02391, equations 1 and 2). Of a mean pool it is what each patch gives to the class. A class token reads the
    patches in the last block for the last time, so there the tokens are taken that enter it.

A map lies on what the network sees, the padded or cut square. It is no map of a lesion, and it need not explain
anything: `faithfulness.py` measures that. Letters of the shapes as in `vitmed.models.vit`; h, w the grid, h w = L.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitmed.explanation.maps import Maps, spread
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.vit import ViT

MEMORY = 2**26  # bytes of attention that are kept at once; the gradients take as much again


@dataclass(frozen=True)
class Trace:
    """What one pass through the network leaves behind for the maps.

    Attributes:
        logits: (B, K).
        attention, attention_gradient: of every block (B, A, N, N): probabilities, and the logit's gradient.
        tokens, token_gradient: (B, L, D) patch tokens and the gradient with respect to them.
        patches: where the patch tokens stand among the N.
        class_token: whether the head reads the class token; else the mean of the patches.
    """

    logits: Tensor
    attention: list[Tensor]
    attention_gradient: list[Tensor]
    tokens: Tensor
    token_gradient: Tensor
    patches: slice
    class_token: bool

    def read_by_the_head(self, relevance: Tensor) -> Tensor:
        """(B, N, N) token by token -> (B, L): the row of what the head reads, without class token and registers."""
        row = relevance[:, 0] if self.class_token else relevance[:, self.patches].mean(dim=1)
        return row[:, self.patches]


def trace(model: ViT, x: Tensor, targets: Tensor | None = None) -> Trace:
    """Run the network with its attention spelled out, and differentiate the logit of one class of each image.

    Args:
        model: in evaluation mode.
        x: (B, C, S, S) normalised.
        targets: (B,) classes; None takes the predicted ones.
    """
    class_token = model.pool == "cls"
    kept: list[Tensor] = []

    def keep(block: torch.nn.Module, given: tuple[Any, ...], result: Tensor) -> None:
        kept.append(given[0] if class_token else result)

    hook = model.blocks[-1].register_forward_hook(keep)
    try:
        with torch.enable_grad():
            logits, attention = model.attention(x.detach().requires_grad_())  # also where no weight wants a gradient
            chosen = logits.argmax(dim=1) if targets is None else targets
            score = logits.gather(1, chosen[:, None]).sum()
            gradients = torch.autograd.grad(score, [*attention, kept[0]])
    finally:
        hook.remove()
    patches = slice(1 + model.registers, None)
    return Trace(
        logits.detach(),
        [a.detach() for a in attention],
        list(gradients[:-1]),
        kept[0].detach()[:, patches],
        gradients[-1][:, patches],
        patches,
        class_token,
    )


def rollout(found: Trace) -> Tensor:
    """(B, L), at least 0: attention rollout, the mean of the heads and half an identity for every block."""
    total = _identity(found.attention[0])
    for attention in found.attention:
        total = (0.5 * attention.mean(dim=1) + 0.5 * _identity(attention)) @ total
    return found.read_by_the_head(total)


def gradient_rollout(found: Trace) -> Tensor:
    """(B, L), at least 0: R becomes R + mean over heads of (gradient x attention)+ R, block after block."""
    total = _identity(found.attention[0])
    for attention, gradient in zip(found.attention, found.attention_gradient, strict=True):
        total = total + (gradient * attention).clamp(min=0).mean(dim=1) @ total
    return found.read_by_the_head(total)


def grad_cam(found: Trace) -> Tensor:
    """(B, L), at least 0: the positive part of the patch tokens, weighted by the mean of their gradient."""
    weight = found.token_gradient.mean(dim=1, keepdim=True)  # (B, 1, D)
    return (weight * found.tokens).sum(dim=2).clamp(min=0)


def _identity(attention: Tensor) -> Tensor:
    return torch.eye(attention.shape[-1], dtype=attention.dtype, device=attention.device)[None]


def relevance(model: ViT, x: Tensor, targets: Tensor | None = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits (B, K) and, of each method, how much each patch counts, (B, L) float32, on a scale of its own."""
    logits, found = [], []
    for part, chosen in _parts(model, x, targets):
        passed = trace(model, part, chosen)
        logits.append(passed.logits.cpu().numpy())
        found.append({name: method(passed).cpu().numpy() for name, method in METHODS.items()})
    return np.concatenate(logits), {name: np.concatenate([one[name] for one in found]) for name in METHODS}


def attention_maps(
    model: ViT,
    preprocessing: Preprocessing,
    images: np.ndarray,
    targets: np.ndarray | None = None,
    rows: np.ndarray | None = None,
) -> Maps:
    """The maps of every method.

    Args:
        images: (B, S, S, C) uint8, from `Preprocessing.read`.
        targets: (B,) the class to explain of each; None the predicted one.
        rows: (B,) which images they are; None 0, 1, ...
    """
    device = next(model.parameters()).device
    x = preprocessing.normalise(torch.from_numpy(images).to(device))
    chosen = None if targets is None else torch.from_numpy(targets).to(device)
    logits, found = relevance(model, x, chosen)
    side = math.isqrt(found["rollout"].shape[1])  # patches in a row: images are square
    grids = {name: spread(values).reshape(-1, side, side) for name, values in found.items()}
    explained = logits.argmax(axis=1) if targets is None else targets
    return Maps(images, explained, logits, grids, np.arange(len(images)) if rows is None else rows)


def on_image(grids: np.ndarray, side: int) -> np.ndarray:
    """(B, h, w) -> (B, side, side) float32: the grid as large as the picture, bilinear between the patches' centres."""
    grown = F.interpolate(torch.from_numpy(grids)[:, None], size=(side, side), mode="bilinear", align_corners=False)
    return grown[:, 0].numpy()


def _parts(model: ViT, x: Tensor, targets: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """As many images at a time as `MEMORY` holds the attention of."""
    tokens = model.pos_embed.shape[1] + model.registers
    heads = sum(block.attn.heads for block in model.blocks)  # type: ignore[union-attr, misc]
    size = max(1, MEMORY // (4 * heads * tokens**2))
    for start in range(0, len(x), size):
        yield x[start : start + size], None if targets is None else targets[start : start + size]


METHODS: dict[str, Callable[[Trace], Tensor]] = {
    "rollout": rollout,
    "gradient_rollout": gradient_rollout,
    "grad_cam": grad_cam,
}
