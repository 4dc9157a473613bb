"""The checkpoint: all that evaluation and prediction need, in plain types, written whole, read safely.

`best.pt` holds the weights that are judged (the moving average where there is one); `last.pt` also holds the
training state, from which `--resume` goes on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vitmed.catalogue import is_name
from vitmed.config import Config, ModelConfig, build_config
from vitmed.errors import CheckpointError, DataError, VitmedError
from vitmed.images import Preprocessing
from vitmed.model import ViT, build_vit
from vitmed.run import whole_file
from vitmed.splits import Sample, Splits
from vitmed.weights import FORMAT, safe_load

VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as read from its file.

    Attributes:
        path: the file.
        config: the whole configuration of the run, with the model's sizes resolved.
        classes: names, in the order of the logits.
        preprocessing: how an image becomes the input.
        weights: the state dict that is judged.
        splits: membership; its root is found relative to the file's folder, and may not exist here.
        hashes: split -> sha256 of its files, in the order of the samples.
        record: the epoch record of these weights.
        training: the training state (last.pt only).
        versions: of vitmed and torch, when written.
    """

    path: Path
    config: Config
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    weights: dict[str, torch.Tensor]
    splits: Splits
    hashes: dict[str, list[str]]
    record: dict[str, Any]
    versions: dict[str, str]
    training: dict[str, Any] | None = field(default=None, repr=False)

    def model(self) -> ViT:
        """The network with its weights, on the CPU, ready to judge. Raises CheckpointError where they do not fit."""
        try:
            model = build_vit(self.config.model, len(self.classes))
            model.load_state_dict(self.weights)
        except (RuntimeError, VitmedError) as error:
            raise CheckpointError(
                f"{self.path}: the weights do not fit its own model config ({error})", "copy the file again"
            ) from None
        return model.eval()

    def data_root(self) -> Path:
        """The data folder of the run. Raises DataError where it is not there."""
        if not self.splits.root.is_dir():
            raise DataError(
                f"{self.splits.root}: the data folder of {self.path} is not there", "say where it is now: --data DIR"
            )
        return self.splits.root


def save_checkpoint(
    path: Path,
    *,
    config: Config,
    splits: Splits,
    hashes: dict[str, list[str]],
    weights: dict[str, torch.Tensor],
    record: dict[str, Any],
    training: dict[str, Any] | None = None,
) -> None:
    """Write a checkpoint whole or not at all. Paths are stored relative to its folder."""
    import vitmed

    membership = {
        name: {
            "paths": [sample.path for sample in samples],
            "labels": [sample.label for sample in samples],
            "groups": [sample.group for sample in samples],
            "sha256": hashes.get(name, []),
        }
        for name, samples in splits.samples.items()
    }
    content = {
        "format": FORMAT,
        "version": VERSION,
        "versions": {"vitmed": vitmed.__version__, "torch": str(torch.__version__)},
        "config": portable(config, path.parent).model_dump(),
        "classes": list(splits.classes),
        "preprocessing": Preprocessing.of(config).to_dict(),
        "data": {"root": relative(splits.root, path.parent), "splits": membership, "made": splits.made},
        "weights": {name: tensor.detach().cpu() for name, tensor in weights.items()},
        "record": record,
        "training": training,
    }
    with whole_file(path) as stream:
        torch.save(content, stream)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint with `weights_only=True`: tensors and plain types, nothing that could run.

    Raises:
        CheckpointError: missing, not a vitmed checkpoint, of another version, damaged, or with code in it.
    """
    path = Path(path)
    if (path / "best.pt").is_file():
        path = path / "best.pt"  # a run folder stands for its best checkpoint
    content = safe_load(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a vitmed checkpoint", "to start training from a weight file: --weights")
    if content.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: checkpoint version {content.get('version')}, this vitmed reads {VERSION}",
            "use the vitmed that wrote it",
        )
    try:
        return _parse(path, content)
    except VitmedError as error:
        raise CheckpointError(f"{path}: {error.problem}", error.fix) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: damaged: {type(error).__name__} {error}", "copy it again") from None


def _parse(path: Path, content: dict[str, Any]) -> Checkpoint:
    data = content["data"]
    samples, hashes = {}, {}
    for name, part in data["splits"].items():
        rows = zip(part["paths"], part["labels"], part["groups"], strict=True)
        samples[name] = tuple(Sample(*row) for row in rows)
        hashes[name] = list(part["sha256"])
    classes = tuple(content["classes"])
    config = build_config(content["config"])
    if len(set(classes)) != len(classes) or not all(isinstance(name, str) for name in classes):
        raise ValueError(f"classes {classes}")
    if content["preprocessing"] != Preprocessing.of(config).to_dict():
        raise ValueError(f"preprocessing {content['preprocessing']}")
    root = Path(os.path.normpath(path.parent / data["root"]))
    return Checkpoint(
        path=path,
        config=config,
        classes=classes,
        preprocessing=Preprocessing.of(config),
        weights=dict(content["weights"]),
        splits=Splits(root, classes, samples, dict(data["made"])),
        hashes=hashes,
        record=dict(content["record"]),
        versions=dict(content["versions"]),
        training=content["training"],
    )


def relative(path: str | Path, folder: Path) -> str:
    """A path relative to a folder, so that no absolute path leaves the lab."""
    return Path(os.path.relpath(Path(path).resolve(), folder.resolve())).as_posix()


def portable(config: Config, folder: Path) -> Config:
    """The configuration with its paths relative to a folder; a name of the catalogue is none."""
    data, model = config.data, config.model
    if data.root is not None:
        data = data.model_copy(update={"root": relative(data.root, folder)})
    if model.weights is not None and not is_name(model.weights):
        model = model.model_copy(update={"weights": relative(model.weights, folder)})
    return config.model_copy(update={"data": data, "model": model})


def from_scratch(model: ModelConfig) -> ModelConfig:
    """`auto` made definite for random weights: a convolutional stem and mean pooling learn faster from few images."""
    update = {
        "stem": "conv" if model.stem == "auto" else model.stem,
        "pool": "mean" if model.pool == "auto" else model.pool,
    }
    return model.model_copy(update=update)
