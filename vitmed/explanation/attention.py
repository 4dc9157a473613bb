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

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitmed.core.base_models import Kind
from vitmed.core.errors import DataError, UsageError
from vitmed.core.messages import bar
from vitmed.core.text import NOTICE
from vitmed.data.thread_batches import read_batches
from vitmed.explanation.results import TITLES, UNCHECKED, Maps, spread
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.ensemble import Ensemble
from vitmed.inference.load import Answer
from vitmed.inference.saved_model import SavedModel
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import OOD_SCORE
from vitmed.models.hardware import FULL_FP32, pick_device
from vitmed.models.vit import ViT
from vitmed.training.losses import LEARNING

MEMORY = 2**26  # bytes of attention kept at once, of a batch; the gradients take as much again
BATCH = 16  # images to read and explain at once
PICTURE = "row-{}.png"  # by row, because the name of an image may hold the name of a patient


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

        `pooling` are the weights of the tokens in attention pooling, (B, N).
        """
        if pooling is not None:
            return (pooling[:, None] @ relevance)[:, 0, self.patches]
        mean = relevance[:, self.patches].mean(dim=1)
        row = {"cls": relevance[:, 0], "mean": mean, "cls_mean": (relevance[:, 0] + mean) / 2}[self.pool]
        return row[:, self.patches]


def trace(model: ViT, x: Tensor, targets: Tensor | None = None, kind: Kind = "classes") -> Trace:
    """Run the network with explicit attention, and differentiate the logit of one answer per image.

    Args:
        model: in evaluation mode.
        x: (B, C, S, S) normalised.
        targets: (B,) classes, findings, or sides of a number; default the ones with the largest logit.
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
        pooling = F.pad(attention.pop(), (unread, 0)), F.pad(attention_gradient.pop(), (unread, 0))
    return Trace(
        logits.detach(), attention, attention_gradient, pooling, tokens, token_gradient[:, patches], patches, model.pool
    )


def rollout(trace: Trace) -> Tensor:
    """(B, L), at least 0: attention rollout, from the mean of the heads and half an identity per block."""
    identity = torch.eye(trace.attention[0].shape[-1]).to(trace.attention[0])[None]  # (1, N, N)
    total = identity
    for attention in trace.attention:
        total = (0.5 * attention.mean(dim=1) + 0.5 * identity) @ total
    return trace.read_by_the_head(total, trace.pooling and trace.pooling[0].mean(dim=1)[:, 0])


def gradient_rollout(trace: Trace) -> Tensor:
    """(B, L), at least 0: R becomes R + mean over heads of (gradient x attention)+ R, block after block."""
    added = torch.zeros_like(trace.attention[0][:, 0])  # R - identity: beside it, float32 would lose small gradients
    for attention, gradient in zip(trace.attention, trace.attention_gradient, strict=True):
        supporting = _supporting(attention, gradient)
        added = added + supporting + supporting @ added
    pooling = trace.pooling and _supporting(*trace.pooling)[:, 0]
    row = trace.read_by_the_head(added, pooling)
    return row if pooling is None else row + pooling[:, trace.patches]  # in a mean, the identity gives all the same


def _supporting(attention: Tensor, gradient: Tensor) -> Tensor:
    """The attention that supports the class, (B, A, R, N) -> (B, R, N): positive where more of it raises the logit."""
    return (gradient * attention).clamp(min=0).mean(dim=1)


def grad_cam(trace: Trace) -> Tensor:
    """(B, L), at least 0: the positive part of the patch tokens, weighted by the mean of their gradient."""
    weight = trace.token_gradient.mean(dim=1, keepdim=True)  # (B, 1, D)
    return (weight * trace.tokens).sum(dim=2).clamp(min=0)


@FULL_FP32
def relevance(model: ViT, x: Tensor, targets: np.ndarray, kind: Kind) -> dict[str, np.ndarray]:
    """For each method, the relevance of each patch, (B, L) float32, on its own scale; arguments as in `trace`."""
    heads = sum(block.attn.heads for block in model.blocks)  # type: ignore[union-attr, misc]
    size = max(1, MEMORY // (4 * heads * model.tokens**2))
    parts = zip(x.split(size), torch.from_numpy(targets).to(x.device).split(size), strict=True)
    traces = (trace(model, part, chosen, kind) for part, chosen in parts)
    each = [{name: method(passed).cpu().numpy() for name, method in METHODS.items()} for passed in traces]
    return {name: np.concatenate([maps[name] for maps in each]) for name in METHODS}


def attention_maps(
    model: ViT, how: Preprocessing, images: np.ndarray, targets: np.ndarray, rows: np.ndarray, kind: Kind = "classes"
) -> Maps:
    """Map images (B, S, S, C) uint8 from `Preprocessing.read` by every method, at (B,) `rows`; see `trace`."""
    x = how.normalise(torch.from_numpy(images).to(next(model.parameters()).device))
    side = round(model.patches**0.5)  # patches in a row: images are square
    maps = relevance(model, x, targets, kind)
    grids = {name: spread(values).reshape(-1, side, side) for name, values in maps.items()}
    return Maps(images, targets, grids, rows, centre_shift(model))


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


METHODS: dict[str, Callable[[Trace], Tensor]] = {
    "rollout": rollout,
    "gradient_rollout": gradient_rollout,
    "grad_cam": grad_cam,
}


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`, in the order of the predictions, whose `errors` name the images that cannot be read."""

    predictions: Predictions
    maps: dict[str, np.ndarray]  # method -> (S, h, w) float32 in 0..1
    targets: np.ndarray  # (S,) which of `predictions.answers` is explained
    verdicts: dict[str, str]  # method -> its verdict in the newest evaluation of the run, where there is one
    folder: Path  # explain.json and a picture for each image
    shift: float = 0.0  # of `centre_shift`, with which a map is drawn over its image


def explain_predictions(
    saved: SavedModel, predictions: Predictions, chosen: np.ndarray, device: str, how: Preprocessing
) -> Maps:
    """Map where the network, or each member of an ensemble, looked in images that it predicted, for the `chosen` (S,)
    of `predictions.answers`; `how` the files are read. Raises DataError for an image that could be read before and
    cannot be read now, UsageError for members whose patches differ in size or place."""
    paths, maps = predictions.paths, list[Maps]()
    for member in saved.members if isinstance(saved, Ensemble) else (saved,):
        assert isinstance(member, Checkpoint)
        targets = chosen  # places in the order of the member
        if member.classes != saved.classes:
            targets = np.array([member.classes.index(name) for name in saved.classes])[chosen]
        model, parts = member.model().to(pick_device(device)), list[Maps]()
        with bar("explaining") as advance:
            for rows, squares, problems in read_batches(lambda i: how.read(paths[i]), len(paths), BATCH):
                if problems:
                    raise DataError("\n".join(problems.values()), "the files changed during the command: run it again")
                of_batch = member.preprocessing, squares, targets[rows], np.array(rows), predictions.kind
                parts.append(attention_maps(model, *of_batch))
                advance(rows[-1] + 1, len(paths))
        grids = {name: np.concatenate([part.grids[name] for part in parts]) for name in METHODS}
        images, places = (np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "rows"))
        maps.append(Maps(images, targets, grids, places, parts[0].shift))
        del model  # before the next member takes its place on the device
    if len({(m.shift, *grid.shape[1:]) for m in maps for grid in m.grids.values()}) > 1:
        problem = f"{saved.path}: the patches of its members differ in size or place, so their maps have no mean"
        raise UsageError(problem, "name the best.pt of one of them")
    shares = saved.shares if isinstance(saved, Ensemble) else (1.0,)
    each = [{name: share * grid for name, grid in m.grids.items()} for share, m in zip(shares, maps, strict=True)]
    mean = {name: np.sum([grids[name] for grids in each], axis=0).astype(np.float32) for name in METHODS}
    return replace(maps[0], targets=chosen, grids=mean)


def explanation_json(explanation: Explanation, checkpoint: str) -> dict[str, object]:
    """List the content of explain.json, the only file with the paths."""
    p, grids = explanation.predictions, {name: grid.astype(float).round(4) for name, grid in explanation.maps.items()}
    rows = []
    for i, path in enumerate(p.paths):
        said = Answer.of(p, i)
        answer = said.to_json()  # of findings and numbers as `predict` gives it
        if p.kind == "classes":
            answer = {name: getattr(said, name) for name in ("prediction", "probability", "probabilities")}
        row = {
            **{name: cells[i] for name, cells in p.columns.items()},
            **({} if said.ood_score is None else {OOD_SCORE: said.ood_score}),
            "row": i + 1,
            "path": path,
            "picture": PICTURE.format(i + 1),
            **answer,
            "explained": p.answers[explanation.targets[i]],
            "maps": {name: grid[i].tolist() for name, grid in grids.items()},
        }
        rows.append(row)
    return {
        "notice": NOTICE,
        "checkpoint": checkpoint,
        "methods": {k: {"title": TITLES[k], "verdict": explanation.verdicts.get(k, UNCHECKED)} for k in grids},
        "shift": explanation.shift,
        "images": rows,
        "errors": [{"path": path, "error": problem} for path, problem in p.errors],
    }
