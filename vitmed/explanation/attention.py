"""Attention maps of a ViT by three methods, on the grid of its patches.

rollout: the product of the attention of all blocks, with the residual connection as an identity (Abnar & Zuidema 2020,
    arXiv 2005.00928, section 3). It does not depend on the class.
gradient_rollout: only attention that supports the class: the positive part of attention times its gradient (Chefer,
    Gur & Wolf 2021, arXiv 2103.15679, equations 5 and 6).
grad_cam: the patch tokens, each channel weighted by its mean gradient (Selvaraju et al. 2017, arXiv 1610.02391,
    equations 1 and 2). With mean pooling it is the contribution of each patch to the class. Where the head reads a
    class token, it uses the tokens that enter the last block, the last place where the class token reads the patches.

Both products end with what the head reads: the class token, the mean of the patches, both by halves, or the tokens that
attention pooling weighs, which is one more layer with one query.

A map covers the network's input, the padded or cropped square. It is not a lesion map, and its marks may mean nothing:
`faithfulness.py` measures whether the answer depends on them. Shapes use the letters of `vitmed.models.vit`; h, w: the
grid, h w = L.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitmed.core.base_models import Kind
from vitmed.explanation.results import Maps, places, spread
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.hardware import FULL_FP32
from vitmed.models.vit import ViT
from vitmed.training.learning import LEARNING

MEMORY = 2**26  # bytes of attention kept at once, of a batch; the gradients take as much again


@dataclass(frozen=True)
class Trace:
    """What the maps need of one forward and backward pass."""

    logits: Tensor  # (B, K)
    attention: list[Tensor]  # per block (B, A, N, N) probabilities
    attention_gradient: list[Tensor]  # with respect to them
    pooling: tuple[Tensor, Tensor] | None  # of attention pooling (B, A, 1, N), and its gradient
    tokens: Tensor  # (B, L, D) patch tokens
    token_gradient: Tensor  # with respect to them
    patches: slice  # positions of the patch tokens among the N
    pool: str  # what the head reads, see `ViT`

    def read_by_the_head(self, relevance: Tensor, pooling: Tensor | None) -> Tensor:
        """(B, N, N) between tokens -> (B, L): relevance of each patch for what the head reads.

        Args:
            pooling: (B, N) weights of the tokens in attention pooling.
        """
        if pooling is not None:
            row = (pooling[:, None] @ relevance)[:, 0]
        else:
            mean = relevance[:, self.patches].mean(dim=1)
            row = {"cls": relevance[:, 0], "mean": mean, "cls_mean": (relevance[:, 0] + mean) / 2}[self.pool]
        return row[:, self.patches]


def trace(model: ViT, x: Tensor, targets: Tensor | None = None, kind: Kind = "classes") -> Trace:
    """Run the network with explicit attention, and differentiate the logit of one answer per image.

    Args:
        model: in evaluation mode.
        x: (B, C, S, S) normalised.
        targets: (B,) classes, findings, or sides of a number; default the ones with the largest logit.
        kind: of labels.
    """
    class_token = model.pool in ("cls", "cls_mean")
    kept: list[Tensor] = []  # the tokens that enter the last block, or leave it
    last = model.blocks[-1]
    hook = last.register_forward_hook(lambda _, given, result: kept.append(given[0] if class_token else result))
    try:
        with torch.enable_grad():
            output, attention = model.attention(x.detach().requires_grad_())  # also when all weights are frozen
            logits = LEARNING[kind].answers(output)
            chosen = logits.argmax(dim=1) if targets is None else targets
            score = logits.gather(1, chosen[:, None]).sum()
            gradients = torch.autograd.grad(score, [*attention, kept[0]])
    finally:
        hook.remove()
    patches = slice(model.prefix, None)
    *attention_gradient, token_gradient = gradients
    tokens, attention = kept[0].detach()[:, patches], [part.detach() for part in attention]
    pooling = None
    if model.attn_pool is not None:
        unread = model.tokens - attention[-1].shape[-1]  # tokens before the patches, which SigLIP's pooling leaves out
        one, other = (F.pad(parts.pop(), (unread, 0)) for parts in (attention, attention_gradient))
        pooling = one, other
    return Trace(
        logits.detach(), attention, attention_gradient, pooling, tokens, token_gradient[:, patches], patches, model.pool
    )


def rollout(found: Trace) -> Tensor:
    """(B, L), at least 0: attention rollout, from the mean of the heads and half an identity per block."""
    total = identity = _identity(found)
    for attention in found.attention:
        total = (0.5 * attention.mean(dim=1) + 0.5 * identity) @ total
    return found.read_by_the_head(total, found.pooling and found.pooling[0].mean(dim=1)[:, 0])


def gradient_rollout(found: Trace) -> Tensor:
    """(B, L), at least 0: R becomes R + mean over heads of (gradient x attention)+ R, block after block."""
    total = _identity(found)
    for attention, gradient in zip(found.attention, found.attention_gradient, strict=True):
        total = total + _supporting(attention, gradient) @ total
    return found.read_by_the_head(total, found.pooling and _supporting(*found.pooling)[:, 0])


def _supporting(attention: Tensor, gradient: Tensor) -> Tensor:
    """The attention that supports the class, (B, A, R, N) -> (B, R, N): positive where more of it raises the logit."""
    return (gradient * attention).clamp(min=0).mean(dim=1)


def grad_cam(found: Trace) -> Tensor:
    """(B, L), at least 0: the positive part of the patch tokens, weighted by the mean of their gradient."""
    weight = found.token_gradient.mean(dim=1, keepdim=True)  # (B, 1, D)
    return (weight * found.tokens).sum(dim=2).clamp(min=0)


def _identity(found: Trace) -> Tensor:
    """(1, N, N)."""
    first = found.attention[0]
    return torch.eye(first.shape[-1], dtype=first.dtype, device=first.device)[None]


@FULL_FP32
def relevance(
    model: ViT, x: Tensor, targets: np.ndarray | None = None, kind: Kind = "classes"
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits (B, K) and, for each method, the relevance of each patch, (B, L) float32, on the method's own scale.

    Args:
        x: (B, C, S, S) normalised.
        targets, kind: as in `trace`.
    """
    heads = sum(block.attn.heads for block in model.blocks)  # type: ignore[union-attr, misc]
    size = max(1, MEMORY // (4 * heads * model.tokens**2))
    chosen = repeat(None) if targets is None else torch.from_numpy(targets).to(x.device).split(size)
    logits, found = [], []
    for part, classes in zip(x.split(size), chosen, strict=False):
        passed = trace(model, part, classes, kind)
        logits.append(passed.logits.cpu().numpy())
        found.append({name: method(passed).cpu().numpy() for name, method in METHODS.items()})
    return np.concatenate(logits), {name: np.concatenate([one[name] for one in found]) for name in METHODS}


def attention_maps(
    model: ViT,
    preprocessing: Preprocessing,
    images: np.ndarray,
    targets: np.ndarray | None = None,
    rows: np.ndarray | None = None,
    kind: Kind = "classes",
) -> Maps:
    """The maps of every method.

    Args:
        images: (B, S, S, C) uint8, from `Preprocessing.read`.
        targets, kind: as in `trace`.
        rows: (B,) indices of the images; default 0, 1, ...
    """
    x = preprocessing.normalise(torch.from_numpy(images).to(next(model.parameters()).device))
    logits, found = relevance(model, x, targets, kind)
    side = math.isqrt(found["rollout"].shape[1])  # patches in a row: images are square
    grids = {name: spread(values).reshape(-1, side, side) for name, values in found.items()}
    explained = logits.argmax(axis=1) if targets is None else targets
    numbers = np.arange(len(images)) if rows is None else rows
    return Maps(images, explained, logits, grids, numbers, centre_shift(model))


def centre_shift(model: ViT) -> float:
    """How far the centre of what a patch reads lies above and left of the middle of its square, in patches, 0 to 0.5.

    What patch i reads is centred at pixel offset + i P. Each convolution adds (kernel - 1) / 2 - padding to the offset,
    times the strides before it (Araujo, Norris & Sim 2019, Computing Receptive Fields of Convolutional Neural Networks,
    Distill, doi 10.23915/distill.00021). One convolution: (P - 1) / 2, the middle of the square. A convolutional stem
    with n halvings: (P - 2^n) / 2, which is (2^n - 1) / 2 pixels less.
    """
    offset, stride = 0.0, 1
    for layer in model.patch_embed.modules():
        if isinstance(layer, nn.Conv2d):
            offset += ((layer.kernel_size[0] - 1) / 2 - int(layer.padding[0])) * stride
            stride *= layer.stride[0]
    return ((stride - 1) / 2 - offset) / stride


def on_image(grids: np.ndarray, side: int, shift: float = 0.0) -> np.ndarray:
    """(B, h, w) -> (B, side, side) float32: grids enlarged to the image, bilinear between patch centres.

    Args:
        shift: of the network, from `centre_shift`.
    """
    h = grids.shape[-1]
    rows = np.array([np.interp(places(side, h, shift), np.arange(h), one) for one in np.eye(h)])  # (h, side)
    return (rows.T @ grids @ rows).astype(np.float32)


Method = Callable[[Trace], Tensor]
METHODS: dict[str, Method] = {"rollout": rollout, "gradient_rollout": gradient_rollout, "grad_cam": grad_cam}
