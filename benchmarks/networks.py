"""The contenders of speed.py that train and predict in one process: vitmed, timm and others of the same size."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from turns import Contender, Step

CLASSES = 10
PLAIN = {"stem": "patch", "pool": "cls", "image_size": 224, "patch_size": 16}
SMALL = {"stem": "conv", "pool": "mean", "patch_size": 8, "depth": 4, "heads": 4}
NETWORKS: dict[str, dict[str, Any]] = {  # the section `model` of vitmed's configuration
    "tiny": PLAIN | {"width": 192, "depth": 12, "heads": 3},
    "small": PLAIN | {"width": 384, "depth": 12, "heads": 6},
    "base": PLAIN | {"width": 768, "depth": 12, "heads": 12},
    "large": PLAIN | {"width": 1024, "depth": 24, "heads": 16},
    "small-plan": SMALL | {"width": 64, "image_size": 64},  # the plan for up to 5,000 images on a CPU, from scratch
    "demo": SMALL | {"width": 96, "image_size": 48},  # configs/demo.yaml
}


# vitmed.


def train_vitmed(options: argparse.Namespace) -> Step:
    """The real loop as the autotuner sets it for a long run: a batch out of the memory cache, normalised, trained on,
    gradient clipped, EMA kept."""
    import numpy as np
    import torch

    from vitmed.core.load_config import build_config, with_values
    from vitmed.data.loading import Images
    from vitmed.data.samples import Sample
    from vitmed.imaging.preprocessing import Preprocessing
    from vitmed.models.hardware import compile_network, pick_device, pick_precision
    from vitmed.models.vit import ViT, use_attention
    from vitmed.training.loop import Batch, Control, Gradients, Stream, optimiser_step
    from vitmed.training.losses import objective_of
    from vitmed.training.optimiser import scheduled_lr
    from vitmed.training.plan.autotune import autotune, open_fields
    from vitmed.training.processes import ALONE
    from vitmed.training.train_state import new_state

    train = {"batch_size": options.batch, "precision": "auto" if options.bf16 else "fp32"}
    config = build_config({"model": options.model, "train": train, "augment": {"policy": "none"}})
    side = options.model["image_size"]
    samples = [Sample("", i % CLASSES, None) for i in range(1000 * options.batch)]
    images = Images(Path(), samples, Preprocessing.of(config))
    picture = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    images.cache = np.broadcast_to(picture, (len(images), side, side, 3))
    device = pick_device(options.device)
    stream = Stream.of(images, config, device)
    model = ViT(config.model, CLASSES).to(device)
    os.environ["VITMED_CACHE"] = tempfile.mkdtemp()  # measured now, not on another day

    objective = objective_of(images, CLASSES, config, pick_precision(config.train.precision, device), device)
    tuned = autotune(model, objective, config, 10**6, torch.arange(CLASSES))
    print(f"  {tuned}", file=sys.stderr)
    config = with_values(config, {f"train.{name}": getattr(tuned.engine, name) for name in open_fields(config)})
    precision = pick_precision(config.train.precision, device)
    state = new_state(model, config, stream.batches.batches, device, precision)
    use_attention(model, config.train.attention)
    torch.set_num_threads(config.train.threads or torch.get_num_threads())
    if config.train.compile:
        compile_network(model)
    objective = objective_of(images, CLASSES, config, precision, device)
    gradients, count = Gradients(state, stream, objective, Control(config)), stream.batches.batches
    model.train()

    def batches() -> Iterator[Batch]:
        while True:
            yield from stream.rest(state, ALONE)
            state.epoch, state.batch = state.epoch + 1, 0

    left = batches()

    def step() -> None:
        batch = next(left)
        gradients.add(batch)
        state.batch += 1
        if batch.last:
            optimiser_step(state, scheduled_lr(state.step, count, config), config.train.clip_norm)

    return step


def infer_vitmed(options: argparse.Namespace, precision: str) -> Step:
    """`predict_logits`, which `predict` and `evaluate` call: images in memory to logits in memory."""
    import numpy as np

    from vitmed.core.load_config import build_config
    from vitmed.imaging.preprocessing import Preprocessing
    from vitmed.inference.predict import predict_logits
    from vitmed.models.hardware import pick_device, pick_precision
    from vitmed.models.vit import ViT

    config, side = build_config({"model": options.model}), options.model["image_size"]
    device = pick_device(options.device)
    how, arithmetic = Preprocessing.of(config), pick_precision(precision, device)
    model = ViT(config.model, CLASSES).to(device)
    picture = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return lambda: predict_logits(model, how, lambda i: picture, options.batch, device, arithmetic)


# The others.


def usual(
    options: argparse.Namespace,
    network: Callable[[dict[str, Any]], Any],
    training: bool,
    bf16: bool = False,
    explicit: bool = False,
    compiled: bool = False,
    accelerated: bool = False,
) -> Step:
    """A step on a ready batch in the usual loop; of training with the fused AdamW.

    Args:
        network: makes the module, from the section `model`.
        bf16: by autocast.
        explicit: timm's hidden switch: attention by plain matrices instead of PyTorch's fused kernel.
        compiled: by `torch.compile` as it comes.
        accelerated: the loop is Hugging Face's accelerate.
    """
    import torch

    if explicit:
        import timm

        timm.layers.set_fused_attn(False)
    device, side = torch.device(options.device), options.model["image_size"]
    model = network(options.model).to(device).train(training)
    if compiled:
        model = torch.compile(model)
    x = torch.randn(options.batch, 3, side, side, device=device)
    y = torch.arange(options.batch, device=device) % CLASSES

    def forward() -> Any:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16 and not accelerated):
            found = model(x)
            return getattr(found, "logits", found)  # transformers returns an object

    def infer() -> None:
        with torch.inference_mode():
            forward()

    if not training:
        return infer
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05, fused=True)
    backward: Callable[[Any], Any] = torch.Tensor.backward
    if accelerated:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision="bf16" if bf16 else "no")
        model, optimiser = accelerator.prepare(model, optimiser)
        backward = accelerator.backward

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16 and not accelerated):
            loss = torch.nn.functional.cross_entropy(forward(), y, label_smoothing=0.05)
        backward(loss)
        optimiser.step()

    return step


def timm_vit(model: dict[str, Any]) -> Any:
    """timm's network of that size, its stem one convolution; the class token or the mean as in vitmed's."""
    from timm.models import VisionTransformer

    return VisionTransformer(
        img_size=model["image_size"], patch_size=model["patch_size"], embed_dim=model["width"], depth=model["depth"],
        num_heads=model["heads"], num_classes=CLASSES, global_pool="avg" if model["pool"] == "mean" else "token",
    )  # fmt: skip


def torchvision_vit(model: dict[str, Any]) -> Any:
    """torchvision's network of that size."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        model["image_size"], model["patch_size"], model["depth"], model["heads"], model["width"], 4 * model["width"],
        num_classes=CLASSES,
    )  # fmt: skip


def hugging_face_vit(model: dict[str, Any]) -> Any:
    """transformers' network of that size."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes: dict[str, Any] = {
        "image_size": model["image_size"], "patch_size": model["patch_size"], "hidden_size": model["width"],
        "num_hidden_layers": model["depth"], "num_attention_heads": model["heads"],
        "intermediate_size": 4 * model["width"], "num_labels": CLASSES,
    }  # fmt: skip
    return ViTForImageClassification(ViTConfig(**sizes))


def plain_vit(model: dict[str, Any]) -> Any:
    """A pre-norm ViT as tutorials write it: softmax(q k') v written out."""
    import torch
    from torch import nn

    width, heads, patch = model["width"], model["heads"], model["patch_size"]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
            self.out = nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm1(x)  # (B, N, D)
            split = (*y.shape[:2], heads, width // heads)
            q, k, v = (layer(y).view(split).transpose(1, 2) for layer in (self.query, self.key, self.value))
            scores = q @ k.transpose(-2, -1) / (width // heads) ** 0.5  # (B, A, N, N)
            x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(y.shape))
            return x + self.mlp(self.norm2(x))

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, patch, patch)
            self.cls = nn.Parameter(torch.zeros(1, 1, width))
            self.positions = nn.Parameter(torch.zeros(1, 1 + (model["image_size"] // patch) ** 2, width))
            self.blocks = nn.Sequential(*(Block() for _ in range(model["depth"])))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.positions
            return self.head(self.norm(self.blocks(x))[:, 0])

    return Plain()


def contenders(options: argparse.Namespace, training: bool) -> dict[str, Contender]:
    """Name -> contender: bf16 where the hardware computes in it, and fp32 as its users run it."""
    kind, bf16 = ("bf16", True) if options.bf16 else ("fp32", False)
    command = "train" if training else "predict"
    timm = partial(usual, network=timm_vit, training=training)
    rows = {"vitmed": Contender(train_vitmed if training else partial(infer_vitmed, precision="fp32"), tuned=command)}
    if bf16 and not training:
        rows["vitmed bf16"] = Contender(partial(infer_vitmed, precision="bf16"), tuned=command)
    for how in ({}, {"explicit": True}, {"compiled": True}, {"explicit": True, "compiled": True}):
        rows[", ".join([f"timm {kind}", *how])] = Contender(partial(timm, bf16=bf16, **how))
    rows[f"tuned timm {kind}"] = Contender(partial(timm, bf16=bf16), tuned=command)
    best = partial(timm, bf16=bf16, explicit=True, compiled=True)
    rows[f"tuned timm {kind}, explicit, compiled"] = Contender(best, tuned=command)
    if bf16:
        rows["timm fp32"] = Contender(timm)
    if options.model["stem"] == "patch":
        if training:
            rows[f"accelerate, timm {kind}"] = Contender(partial(timm, bf16=bf16, accelerated=True))
        for name, network in {"Hugging Face": hugging_face_vit, "torchvision": torchvision_vit}.items():
            rows[f"{name} {kind}"] = Contender(partial(usual, network=network, training=training, bf16=bf16))
        rows["plain fp32"] = Contender(partial(usual, network=plain_vit, training=training))
    return rows
