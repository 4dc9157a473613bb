"""Data, model and training of a checkpoint in words."""

from __future__ import annotations

from pathlib import Path

from vitmed.checks.evaluation_images import EvaluationImages
from vitmed.core.sections import TrainConfig
from vitmed.core.text import duration_text
from vitmed.data.patients import describe_patients
from vitmed.decisions.targets import TARGETS
from vitmed.imaging.exact_views import VIEWS
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.saved_model import SavedModel
from vitmed.models.sizes import describe_model


def facts(saved: SavedModel, what: str, images: int, device: str) -> dict[str, str]:
    """The table of data, model and training in a report."""
    model, train, config = saved.config.model, saved.config.train, saved.config
    counts = {name: len(samples) for name, samples in saved.splits.samples.items()}
    views = config.augment.views
    terms = f"{model.licence or 'not known to vitmed'}{f'. {model.terms}' if model.terms else ''}"
    copies = "the image alone" if views == "one" else f"mean output of {len(VIEWS[views])} copies of an image ({views})"
    return {
        "Images": f"{what}: {images:,} evaluated; the run had "
        + ", ".join(f"{n:,} {name}" for name, n in counts.items()),
        "Patients of the run": describe_patients(saved.splits),
        "Splits of the run": "; ".join(f"{name}: {text}" for name, text in saved.splits.made.items()),
        "Model": describe_model(model),
        "Started from": "random weights" if model.weights is None else f"{Path(model.weights).name}, licence {terms}",
        "Preprocessing": f"resize {config.data.resize}, {config.data.interpolation}, normalize "
        f"{config.data.normalize}, channels {model.channels}{describe_window(saved.preprocessing)}",
        "Augmentation": f"{config.augment.policy}, mixup {config.augment.mixup:g}, cutmix {config.augment.cutmix:g}",
        "Views": copies,
        "Optimisation": optimisation(train, saved.splits.target.kind),
        "Model choice": model_choice(saved),
        "Seed": str(train.seed),
        "Device of this evaluation": device,
        "Versions": ", ".join(f"{package} {number}" for package, number in saved.versions.items()),
        **saved.facts,
    }


def describe_images(chosen: EvaluationImages) -> tuple[str, str]:
    """Which images are evaluated, in words; and the name of the folder."""
    data, part = chosen.root.resolve().name, chosen.part
    if part is None:
        return f"all of {data}", data
    return f"{part} of {data}", part if chosen.own else f"{data}_{part}"


def describe_window(how: Preprocessing) -> str:
    """The window of deep images, and the frame of several, in words; "" where there are none."""
    parts = ["" if how.frame is None else f"frame {how.frame}"]
    if isinstance(how.window, tuple):
        parts.append(f"window {how.window[0]:g} .. {how.window[1]:g}")
    elif how.window is not None:
        parts.append(f"window of each file ({how.window})")
    return "".join(f", {part}" for part in parts if part)


def optimisation(train: TrainConfig, kind: str) -> str:
    """How the network was trained on labels of a kind, in words."""
    if train.freeze:
        return "network frozen; logistic regression with an L2 penalty on its features"
    ways = [f"layer decay {train.layer_decay:g}"] if train.layer_decay < 1 else []
    ways += [f"LoRA of rank {train.lora}, other weights frozen"] if train.lora is not None else []
    ways += [f"embedding and first {train.freeze_blocks} blocks frozen"] if train.freeze_blocks is not None else []
    ways += ["head started from a logistic regression"] if train.probe_first else []
    loss = TARGETS[kind].loss
    smoothed = loss == "cross_entropy"
    limit = "" if train.time is None else f" in {duration_text(train.time)}"
    return ", ".join(
        [
            f"AdamW, lr {train.lr:g}, weight decay {train.weight_decay:g}",
            f"batch {train.batch_size} x {train.accumulate}, at most {train.epochs} epochs{limit}",
            f"label smoothing {train.smoothing:g}" if smoothed else f"loss {loss}",
            f"balance {train.balance}",
            *ways,
        ]
    )


def model_choice(saved: SavedModel) -> str:
    """How this checkpoint was chosen, in words."""
    train, record = saved.config.train, saved.record
    if "C" in record:
        each = "an inverse penalty for each finding" if record["C"] is None else f"inverse penalty C = {record['C']:g}"
        return f"{each}, by the loss on validation; the test set was not used"
    how = f"the best by validation {train.monitor}" if train.choose == "best" else "the last"
    return f"epoch {record.get('epoch')}, {how}; the test set was not used"
