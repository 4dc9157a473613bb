"""From scratch on a few thousand images: which network, trained how? Judged on validation, many runs on one GPU.

    VITMED_DATA=path/to/data python benchmarks/gpu_search.py WORK_FOLDER [--candidates NAME ...] [--sets NAME ...]
    python benchmarks/gpu_search.py WORK_FOLDER --tell                          # only the tables of what is finished
    python benchmarks/gpu_search.py WORK_FOLDER --device cpu --steps 5 --sets busi --folds 0        # only that it works

VITMED_DATA holds the sets of medical_sets.py, which says what their parts are; the test is not used. A fold is a
quarter of the groups of train and val, and the rest of these trains. The averaged last weights are judged on

    random     the images of the fold; `flips` averages the probabilities over flipped (and turned) images
    corrupted  the same with noise, blur, other brightness, contrast and gamma, and pixels of twice the size: the mean
    shift      the part of that name: brighter images or larger files, as another scanner brings

All runs of a candidate train in one CUDA graph, each on its own stream, in fp32 with TF32 products. Results are lines
of WORK_FOLDER/gpu_search.jsonl; a run that is there is skipped.

The figures in docs/recipes.md were made on an NVIDIA H100 by the prototype of this script (2026-11-22), with other
parts of the sets, as described there. Its layers are identical and its steps the same, with three exceptions:
convolutions of residual networks started with He's scale, sqrt(2 / fan-in), instead of vitmed's sqrt(1 / fan-in); drop
path was in the stem too, at half the rate; images of busi and oscc_histology were stored as WebP of 144 px first.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from medical_sets import SETS, folder_of, split_table
from PIL import Image, ImageOps
from torch import Tensor, nn
from torchvision.models import resnet18

from vitmed.core.config import ModelConfig
from vitmed.imaging.preprocessing import CONSTANTS
from vitmed.metrics.kinds.classes import metric_values
from vitmed.metrics.predictions import Predictions
from vitmed.models.vit import ViT

BATCH, WEIGHT_DECAY, SMOOTHING, WARMUP = 32, 0.05, 0.05, 0.1  # warm-up: share of the steps
FOLDS = 4
METRICS = ("auroc", "balanced_accuracy", "accuracy", "log_loss")
COLUMNS = {  # of the first table: what is judged, and by which metric
    "AUROC": ("random", "auroc"), "balanced accuracy": ("random", "balanced_accuracy"),
    "accuracy": ("random", "accuracy"), "log loss": ("random", "log_loss"), "AUROC, shift": ("shift", "auroc"),
    "AUROC, corrupted": ("corrupted", "auroc"), "AUROC, flips": ("flips", "auroc"),
}  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A network, and how it is trained."""

    network: dict[str, Any] | None  # arguments of ViT; None: ResNet-18
    size: int  # px
    lr: float = 1e-3
    steps: int = 3000
    augmentation: str = "standard"
    mixup: float = 0.0  # share of the images
    adjusted: bool = False  # logit adjustment (Menon et al. 2021, arXiv 2007.07314)


class Images(NamedTuple):
    """The images of a set outside its test."""

    pixels: Tensor  # (S, 3, H, W) uint8
    labels: np.ndarray  # (S,) numbers of the classes
    groups: np.ndarray  # (S,) numbers of the groups
    shifted: np.ndarray  # (S,) bool: of the part `shift`


@functools.cache
def read(name: str, side: int, data: Path, work: Path) -> Images:
    """The images, padded with black to squares of `side` px."""
    rows = [row for row in split_table(name, data, work) if row.part != "test"]
    folder = folder_of(name, data, work)
    pixels = torch.from_numpy(np.stack([square(folder / row.path, side) for row in rows]))
    labels, groups = (
        np.unique(names, return_inverse=True)[1] for names in zip(*(row[1:3] for row in rows), strict=True)
    )
    shifted = np.array([row.part == "shift" for row in rows])
    return Images(pixels.permute(0, 3, 1, 2).contiguous(), labels, groups, shifted)


def square(path: Path, side: int) -> np.ndarray:
    """(side, side, 3) uint8."""
    with Image.open(path) as image:
        how = Image.Resampling.BILINEAR if side > max(image.size) else Image.Resampling.BICUBIC
        return np.asarray(ImageOps.pad(image.convert("RGB"), (side, side), how))


def split(images: Images, fold: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices of the training images, of the fold and of `shift`; no group is in two of these."""
    place = np.argsort(np.random.default_rng(100).permutation(images.groups.max() + 1))
    val = place[images.groups] % FOLDS == fold
    train, here = ~val & ~images.shifted, val & ~images.shifted
    return np.flatnonzero(train), np.flatnonzero(here), np.flatnonzero(images.shifted)


def augment(x: Tensor, strength: str, turns: bool, colour: bool) -> Tensor:
    """(B, 3, H, H) of 0 to 1 -> the same, each image changed at random by up to `STRENGTHS[strength]`."""
    B, H, device = len(x), x.shape[-1], x.device
    degrees, scale, shift, contrast, gamma, tint, noise, blurred, hidden = STRENGTHS[strength]
    random = functools.partial(torch.rand, device=device)

    def either(*shape: int) -> Tensor:  # -1 to 1
        return random(*shape) * 2 - 1

    angle = either(B) * degrees * math.pi / 180
    if turns:
        angle = angle + torch.randint(0, 4, (B,), device=device) * (math.pi / 2)
    zoom, flip = torch.exp(either(B) * scale), torch.where(random(B) < 0.5, -1.0, 1.0)
    c, s = torch.cos(angle) / zoom, torch.sin(angle) / zoom
    rows = [torch.stack([c * flip, -s, either(B) * 2 * shift], 1), torch.stack([s * flip, c, either(B) * 2 * shift], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="zeros", align_corners=False)
    x = (x * (1 + either(B, 1, 1, 1) * contrast) + either(B, 1, 1, 1) * contrast * 0.6).clamp(1e-4, 1)
    if colour:
        x = (x * (1 + either(B, 3, 1, 1) * tint)).clamp(1e-4, 1)
    x = x ** torch.exp(either(B, 1, 1, 1) * gamma)
    x = x + (blur(x) - x) * ((random(B, 1, 1, 1) < blurred) * random(B, 1, 1, 1))
    x = x + torch.randn_like(x[:, :1]) * (random(B, 1, 1, 1) * noise)
    if hidden:
        down, right, half = random(B, 1, 1), random(B, 1, 1), 0.05 + 0.12 * random(B, 1, 1)
        places = torch.linspace(0, 1, H, device=device)
        hole = ((places[:, None] - down).abs() < half) & ((places - right).abs() < half)  # (B, H, H)
        x = x * ~(hole & (random(B, 1, 1) < hidden))[:, None]
    return x.clamp(0, 1)


def blur(x: Tensor) -> Tensor:
    """Each pixel the mean of 3 x 3."""
    return F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)


def corruptions(x: Tensor) -> Iterator[Tensor]:
    """Changes of one strength that the network is judged on."""
    mean = x.mean((1, 2, 3), keepdim=True)
    generator = torch.Generator(x.device).manual_seed(0)
    yield (x + 0.08 * torch.randn(x.shape, generator=generator, device=x.device)).clamp(0, 1)
    yield blur(blur(x))
    yield (x + 0.15).clamp(0, 1)
    yield (x - mean) * 0.6 + mean
    yield x**0.65
    yield x**1.5
    yield F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode="nearest")


def views(x: Tensor, turns: bool) -> list[Tensor]:
    """The images and their mirror images; with `turns`, all eight of a square."""
    turned = [x.rot90(k, (2, 3)) for k in range(4 if turns else 1)]
    return [*turned, *(y.flip(3) for y in turned)]


class Run:
    """One training. A step reads nothing back from the device, so that a CUDA graph can hold it."""

    def __init__(self, candidate: Candidate, name: str, fold: int, steps: int, images: Images, parts: Any, device: str):
        self.candidate, self.set, self.steps, self.labels = candidate, SETS[name], steps, images.labels
        rows, *self.judged = parts
        self.images, self.pixels = len(rows), images.pixels.to(device)
        self.targets = F.one_hot(torch.from_numpy(images.labels)).float().to(device)  # (S, K)
        norm = torch.tensor(CONSTANTS["imagenet"], device=device)[..., None, None]
        self.mean, self.std = norm.unbind()  # (3, 1, 1) each
        torch.manual_seed(1000 + fold)
        self.model = build(candidate, self.targets.shape[1]).to(device).to(memory_format=torch.channels_last)
        self.params = list(self.model.parameters())
        self.live = [*self.params, *(buffer for buffer in self.model.buffers() if buffer.is_floating_point())]
        self.average = [tensor.detach().clone() for tensor in self.live]
        self.lr, cuda = torch.tensor(0.0, device=device), device == "cuda"
        groups = [
            {"params": [p for p in self.params if (p.ndim > 1) == matrix], "weight_decay": WEIGHT_DECAY * matrix}
            for matrix in (True, False)
        ]
        self.optimiser = torch.optim.AdamW(groups, lr=self.lr, fused=cuda, capturable=cuda)
        rng, epochs = np.random.default_rng(7 + fold), math.ceil(steps * BATCH / len(rows))
        order = np.concatenate([rng.permutation(rows) for _ in range(epochs)])[: steps * BATCH]
        self.order = torch.from_numpy(order.reshape(steps, BATCH)).to(device)
        t, warm = np.arange(steps), max(1, int(WARMUP * steps))
        cosine = 0.5 * (1 + np.cos(np.pi * (t - warm) / max(1, steps - warm)))
        self.rates = torch.tensor(candidate.lr * np.where(t < warm, (t + 1) / warm, cosine)).float().to(device)
        self.t = torch.zeros(1, dtype=torch.long, device=device)
        prior = self.targets[torch.from_numpy(rows).to(device)].mean(0)
        self.adjustment = prior.log() if candidate.adjusted else torch.zeros_like(prior)

    def step(self) -> None:
        """Batch, gradient clipped to 1, AdamW, moving average."""
        self.lr.copy_(self.rates.index_select(0, self.t)[0])
        gradients = torch.autograd.grad(self.loss(self.order.index_select(0, self.t)[0]), self.params)
        for p, gradient in zip(self.params, gradients, strict=True):  # in the memory layout of the parameter
            p.grad = gradient if gradient.stride() == p.stride() else torch.empty_like(p).copy_(gradient)
        nn.utils.clip_grad_norm_(self.params, 1.0)
        self.optimiser.step()
        decay = ((1.0 + self.t[0]) / (10.0 + self.t[0])).clamp(max=max(0.0, 1 - 10 / self.steps))
        away = torch._foreach_sub([tensor.detach() for tensor in self.live], self.average)
        torch._foreach_mul_(away, 1 - decay)
        torch._foreach_add_(self.average, away)
        self.t += 1

    def loss(self, chosen: Tensor) -> Tensor:
        """Of the images with these indices, augmented and perhaps mixed."""
        x, y = self.pixels.index_select(0, chosen).float() / 255, self.targets.index_select(0, chosen)
        x = augment(x, self.candidate.augmentation, self.set.turns, self.set.colour)
        if self.candidate.mixup:
            on, share = torch.rand(len(y), device=x.device) < self.candidate.mixup, torch.rand(len(y), device=x.device)
            own = (1 - on * share * 0.5)[:, None]
            y = y * own + y.flip(0) * (1 - own)
            x = x * own[..., None, None] + x.flip(0) * (1 - own[..., None, None])
        return F.cross_entropy(self.logits(x) + self.adjustment, y, label_smoothing=SMOOTHING)

    def logits(self, x: Tensor) -> Tensor:
        """(B, K)."""
        return self.model(((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last))

    @torch.no_grad()
    def judge(self) -> dict[str, dict[str, float]]:
        """What is judged -> metric -> value, of the averaged weights."""
        for tensor, average in zip(self.live, self.average, strict=True):
            tensor.copy_(average)
        self.model.eval()
        random, shifted = (self.pixels[torch.from_numpy(rows)].float() / 255 for rows in self.judged)
        y, y_shifted = (self.labels[rows] for rows in self.judged)
        each = [self.score([changed], y) for changed in corruptions(random)]
        return {
            "random": self.score([random], y),
            "flips": self.score(views(random, self.set.turns), y),
            "corrupted": {name: statistics.mean(values[name] for values in each) for name in METRICS},
            "shift": self.score([shifted], y_shifted),
        }

    def score(self, several: Sequence[Tensor], labels: np.ndarray) -> dict[str, float]:
        """Metrics of the probabilities, averaged over several views of the images."""
        found = [torch.cat([self.logits(b) for b in x.split(512)]).double().softmax(1) for x in several]
        logs = (torch.stack(found).mean(0) + 1e-12).log().cpu().numpy()
        names, paths = tuple(map(str, range(logs.shape[1]))), ("",) * len(labels)
        values = metric_values(Predictions(names, paths, None, labels, logs))
        return {name: values[name] for name in METRICS}


def build(candidate: Candidate, classes: int) -> nn.Module:
    """The network, with random weights."""
    if candidate.network is None:
        return resnet18(num_classes=classes)  # type: ignore[no-any-return]
    fields: dict[str, Any] = {"depth": 4, "heads": 4, "pool": "mean"} | candidate.network
    return ViT(ModelConfig(image_size=candidate.size, **fields), classes)


def train(runs: list[Run], steps: int, device: str) -> None:
    """All steps of all runs, on the GPU as replays of one CUDA graph."""
    if device == "cpu":
        for run in runs * steps:
            run.step()
        return
    streams, main = [torch.cuda.Stream() for _ in runs], torch.cuda.Stream()
    eager = 3  # steps before the capture, which allocate what the libraries keep
    torch.cuda.synchronize()
    for run, stream in zip(runs * eager, streams * eager, strict=True):
        with torch.cuda.stream(stream):
            run.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=main):
        for run, stream in zip(runs, streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                run.step()
        for stream in streams:
            main.wait_stream(stream)
    for i in range(steps - eager):
        graph.replay()
        if i % 200 == 199:  # no long queue
            torch.cuda.synchronize()
    torch.cuda.synchronize()


def tell(found: dict[str, list[dict]], sets: Sequence[str], folds: Sequence[int]) -> None:
    """Two tables: means over the sets, of candidates that finished in all of them; each set, ± over the folds."""
    print(f"| {len(sets)} sets | runs | {' | '.join(COLUMNS)} |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for name, runs in found.items():
        if len(runs) == len(sets) * len(folds):
            means = [statistics.mean(run[kind][metric] for run in runs) for kind, metric in COLUMNS.values()]
            print(f"| {name} | {len(runs)} | {' | '.join(f'{mean:.3f}' for mean in means)} |")
    print(f"\n| AUROC; balanced accuracy | runs | {' | '.join(sets)} |")
    print("|---" * (len(sets) + 2) + "|")
    for name, runs in found.items():
        cells = [[run["random"] for run in runs if run["set"] == chosen] for chosen in sets]
        texts = [
            "; ".join(spread([run[metric] for run in cell]) for metric in METRICS[:2]) if cell else "" for cell in cells
        ]
        print(f"| {name} | {len(runs)} | {' | '.join(texts)} |")


def spread(values: list[float]) -> str:
    """Mean ± standard deviation."""
    return f"{statistics.mean(values):.3f}" + (f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else "")


def search(name: str, chosen: list[tuple[str, int]], steps: int, work: Path, device: str) -> list[dict]:
    """Train a candidate on these folds of sets, all at once; the results."""
    data, candidate, runs = Path(os.environ["VITMED_DATA"]), CANDIDATES[name], []
    for where, fold in chosen:
        parts = split(read(where, 64, data, work), fold)
        runs.append(Run(candidate, where, fold, steps, read(where, candidate.size, data, work), parts, device))
    train(runs, steps, device)
    return [
        {"candidate": name, "set": where, "fold": fold, "steps": steps, "images": run.images, **run.judge()}
        for (where, fold), run in zip(chosen, runs, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=list(CANDIDATES), metavar="NAME")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--folds", nargs="+", type=int, choices=range(FOLDS), default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="instead of the candidate's")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tell", action="store_true", help="only the tables of what is finished")
    options = parser.parse_args()
    if not options.tell and "VITMED_DATA" not in os.environ:
        parser.error("VITMED_DATA does not say where the images are")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    options.work.mkdir(parents=True, exist_ok=True)
    file, wanted = options.work / "gpu_search.jsonl", list(itertools.product(options.sets, options.folds))
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    found: dict[str, list[dict]] = {}
    for name in options.candidates:
        steps = options.steps or CANDIDATES[name].steps
        own = [line for line in lines if (line["candidate"], line["steps"]) == (name, steps)]
        done = {(line["set"], line["fold"]): line for line in own}
        missing = [key for key in wanted if key not in done]
        if missing and not options.tell:
            made = search(name, missing, steps, options.work, options.device)
            with file.open("a") as stream:
                stream.writelines(json.dumps(line) + "\n" for line in made)
            done |= dict(zip(missing, made, strict=True))
            print(f"{name}: {len(made)} runs", file=sys.stderr, flush=True)
        found[name] = [done[key] for key in wanted if key in done]
    tell({name: runs for name, runs in found.items() if runs}, options.sets, options.folds)


# Degrees; logarithm of the scale; shift (share of the side); contrast (0.6 of it: brightness); logarithm of gamma;
# colour; standard deviation of the noise; probabilities of blur and of a hole.
STRENGTHS = {
    "standard": (15, 0.1, 0.08, 0.15, 0.15, 0.05, 0.02, 0.1, 0.0),
    "strong": (30, 0.25, 0.15, 0.3, 0.35, 0.12, 0.05, 0.25, 0.25),
    "photometric": (15, 0.1, 0.08, 0.35, 0.4, 0.15, 0.06, 0.3, 0.0),
}
CONV = {"stem": "conv", "patch_size": 8, "width": 64}
RESIDUAL = {"stem": "residual", "patch_size": 16, "width": 128}
CANDIDATES = {  # residual: patch 16, width 128, learning rate 1e-3, unless the name says otherwise
    "conv-64 (the old plan)": Candidate(CONV, 64, 2e-3),
    "resnet18": Candidate(None, 64),
    "residual-64, patch 8, width 64, lr 2e-3": Candidate(CONV | {"stem": "residual"}, 64, 2e-3),
    "residual-64, patch 8": Candidate(RESIDUAL | {"patch_size": 8}, 64),
    "residual-64, lr 2e-3": Candidate(RESIDUAL, 64, 2e-3),
    "residual-96, lr 2e-3": Candidate(RESIDUAL, 96, 2e-3),
    "residual-96, lr 2e-3, strong": Candidate(RESIDUAL, 96, 2e-3, augmentation="strong"),
    "residual-96": Candidate(RESIDUAL, 96),
    # The following were measured on busi, herlev_pap, knee_oa_kl, oscc_histology and nih_cxr_multilabel.
    "residual-96, photometric": Candidate(RESIDUAL, 96, augmentation="photometric"),
    "residual-96, logit adjustment": Candidate(RESIDUAL, 96, adjusted=True),
    "residual-96, drop path 0.1": Candidate(RESIDUAL | {"drop_path": 0.1}, 96),
    "residual-96, mixup": Candidate(RESIDUAL, 96, mixup=0.5),
    "residual-96, 6000 steps": Candidate(RESIDUAL, 96, steps=6000),
    "residual-128": Candidate(RESIDUAL, 128),
}

if __name__ == "__main__":
    main()
