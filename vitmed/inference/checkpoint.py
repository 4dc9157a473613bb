"""Checkpoints: everything that evaluation and prediction need, in plain types.

`best.pt` holds the weights to evaluate (the moving average, if there is one); `last.pt` also holds the training state
from which `--resume` continues.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitmed import __version__
from vitmed.core import upgrade
from vitmed.core.config import Config, PretrainConfig
from vitmed.core.errors import CheckpointError, VitmedError
from vitmed.core.files import whole_file
from vitmed.core.load_config import AnyConfig, build_config, store_paths, without_places
from vitmed.core.run_folder import NOWHERE, RunFolder, is_running, store_path
from vitmed.core.text import first_line, quoted
from vitmed.data.samples import Splits
from vitmed.decisions.policy import DecisionPolicy, ReducedPrecision, policy_of
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.saved_model import Hashes, SavedModel, damage, expect, membership_of, read_membership
from vitmed.models.hardware import seeded
from vitmed.models.vit import ViT
from vitmed.models.weights.files import AGAIN, DIGESTS, State, check_digests, digests_of, hash_of, safe_load
from vitmed.models.weights.pretrained import ENCODER, FORMAT, is_text

VERSION = 1
PRETRAINING = "vitmed pretraining"
Tree = dict[str, Any]  # of tensors and plain types


@dataclass(frozen=True)
class Checkpoint(SavedModel):
    """A checkpoint as read from its file."""

    weights: State = field(default_factory=dict)  # to evaluate
    training: Tree | None = field(default=None, repr=False)  # the state of training, in last.pt alone
    reduced_precision: ReducedPrecision | None = None  # 16-bit floats under this policy; None: not compared with fp32

    def model(self) -> ViT:
        """The network with `weights` themselves, on the CPU, in evaluation mode. CheckpointError: a misfit."""
        try:
            with seeded(0), torch.device("meta"):  # without memory, however large the config says it is
                model = ViT(self.config.model, self.splits.outputs)
            for name, expected in model.state_dict().items():
                if name in self.weights and self.weights[name].dtype != expected.dtype:
                    raise RuntimeError(f"{name}: {self.weights[name].dtype}, expected {expected.dtype}")
            model.load_state_dict(self.weights, assign=True)
        except (RuntimeError, VitmedError) as error:
            problem = f"{self.path}: the weights do not fit their own model config ({first_line(error)})"
            raise CheckpointError(problem, AGAIN) from None
        for name, value in self.weights.items():
            if not (value.sum().isfinite() or value.isfinite().all()):  # a sum is fast, and may be too large
                problem = f"{self.path}: {name} holds numbers that are not finite"
                raise CheckpointError(problem, "use another checkpoint, or train again with a lower --lr")
        return model.eval()


def save_checkpoint(
    path: Path, config: Config, splits: Splits, hashes: Hashes, seen: Sequence[str] = (), **content: Any
) -> None:
    """Write a checkpoint. Paths are stored relative to its folder. Arguments and `content`, which is weights, record,
    and perhaps training and fingerprints, are as in `Checkpoint`."""
    data = membership_of(splits, hashes, path)
    data |= {"seen": list(seen), "fingerprints": content.pop("fingerprints", None) or {}}
    about = {"classes": list(splits.classes), "preprocessing": Preprocessing.of(config).to_dict(), "data": data}
    content.setdefault("training", None)
    _save(path, FORMAT, config, **about, **content)


def _save(path: Path, format: str, config: AnyConfig, **content: Any) -> None:
    """Write a file of vitmed: what all have in common, and its content."""
    if "weights" in content:
        content["weights"] = {name: tensor.detach().cpu() for name, tensor in content["weights"].items()}
    versions, stored = {"vitmed": __version__, "torch": str(torch.__version__)}, store_paths(config, path.parent)
    _write(path, {"format": format, "version": VERSION, "versions": versions, "config": stored.model_dump()} | content)


def _write(path: Path, content: dict[str, Any]) -> None:
    content[DIGESTS] = digests_of(content)
    with whole_file(path) as stream:
        try:
            torch.save(content, stream)
        except RuntimeError as error:  # torch hides that the disk is full
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def add_policy(path: Path, policy: DecisionPolicy, reduced: ReducedPrecision | None = None) -> None:
    """Store the decision policy in a checkpoint, and how reduced precision compares with fp32 under it."""
    content = _load(path, FORMAT, "a vitmed checkpoint", "name the best.pt of a run")
    content["policy"], score = policy.to_json(), policy.ood_score
    if score is not None:
        arrays = {"means": score.means, "precision": score.precision}
        content["policy"]["ood_score"] |= {name: torch.from_numpy(array) for name, array in arrays.items()}
    content["reduced_precision"] = None if reduced is None else reduced.model_dump()
    _write(path, content)


def set_data_root(path: Path, root: Path) -> None:
    """Store the current place of the data folder in a checkpoint of training or pretraining."""
    content = safe_load(path)
    if isinstance(content, dict) and is_text(content.get("format"), FORMAT, PRETRAINING):
        check_digests(path, content)
        content["data"]["root"] = content["config"]["data"]["root"] = store_path(root, path.parent)
        _write(path, content)


def write_without_names(source: Path, target: Path) -> None:
    """Copy a checkpoint for a file that leaves the machine: without names of places, images and patients.

    Images become numbers, patients too; further columns of the table of labels and the training state are left out.
    What stays says nothing without the images: their sha256, labels and splits, so that `evaluate` can refuse to test
    the model on its own training images.
    """
    content = _load(source, FORMAT, "a vitmed checkpoint", "name the best.pt of a run")
    data, numbers = content["data"], dict[str | None, str | None]({None: None})
    for part in data["splits"].values():
        part["paths"] = [f"{i:06d}" for i in range(len(part["paths"]))]
        part["groups"] = [numbers.setdefault(group, str(len(numbers))) for group in part["groups"]]
        part.pop("columns", None)
    data |= {"root": NOWHERE, "columns": []}
    config = without_places(build_config(content["config"], Config)).model_dump()
    _write(target, content | {"config": config, "training": None})


def save_encoder(path: Path, config: PretrainConfig, hashes: Hashes, weights: State, record: Tree) -> None:
    """Write the pretrained encoder as a weight file for `pretrained.read_weights`.

    It also holds the sha256 of every image that pretraining used, so a later training notices a test image among them.
    """
    seen = [digest for name in hashes for digest in hashes[name]]
    how = Preprocessing.of(config).to_dict()
    _save(path, ENCODER, config, preprocessing=how, seen=seen, weights=weights, record=record)


@dataclass(frozen=True)
class PretrainingState:
    """The last.pt of a pretraining run: its configuration, its images, and the state of training."""

    config: PretrainConfig
    splits: Splits
    hashes: Hashes
    training: Tree = field(repr=False)


def save_pretraining(path: Path, config: PretrainConfig, splits: Splits, hashes: Hashes, training: Tree) -> None:
    """Write the state of a pretraining run. Paths are stored relative to its folder."""
    classes, data = list(splits.classes), membership_of(splits, hashes, path)
    _save(path, PRETRAINING, config, classes=classes, data=data, training=training)


def load_pretraining(path: Path) -> PretrainingState:
    """Read the last.pt of a pretraining run. Raises CheckpointError if it is something else, or damaged."""
    content = _load(path, PRETRAINING, "the last.pt of a pretraining run", "name the run folder of `vitmed pretrain`")
    with damage(path, AGAIN):
        splits, hashes = read_membership(path, content)
        config, training = build_config(content["config"], PretrainConfig), dict(content["training"])
        with seeded(0), torch.device("meta"):  # without memory, however large the config says it is
            expected = ViT(config.encoder, 1).state_dict()
        for name, value in expected.items():
            if training["model"][f"encoder.{name}"].shape != value.shape:
                raise ValueError(f"encoder.{name} does not fit the model config")
        return PretrainingState(config, splits, hashes, training)


def _load(path: Path, format: str, what: str, fix: str) -> dict[str, Any]:
    content = safe_load(path)
    found = content.get("format") if isinstance(content, dict) else None
    if not is_text(found, format):
        if is_text(found, PRETRAINING):
            problem = f"{path}: the state of a pretraining run, which has no classifier"
            fix = f"vitmed pretrain --resume {quoted(path.parent)}; where it is finished: vitmed train DIR --weights "
            raise CheckpointError(problem, f"{fix}{quoted(path.parent / 'encoder.pt')}")
        raise CheckpointError(f"{path}: not {what}", fix)
    if str(content.get("version")) != str(VERSION):
        problem = f"{path}: checkpoint version {str(content.get('version'))[:20]}, this vitmed reads {VERSION}"
        raise CheckpointError(problem, "use the vitmed that wrote it")
    check_digests(path, content)
    with damage(path, AGAIN):
        return upgrade.checkpoint(content)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint, or the best.pt of a run folder, with `weights_only=True`, so no code in it can run.

    Raises:
        CheckpointError: missing, not a vitmed checkpoint, of another version, damaged, or with code in it.
    """
    path = Path(path)
    if (path / "best.pt").is_file():
        path = path / "best.pt"
    fold, report = path / "fold-1", path / "test" / "predictions.csv"
    running = path.is_dir() and is_running(RunFolder(path))
    ended = "it is being trained" if running else "it stopped before its first epoch ended, or it trained no network"
    for mark, what, fix in (
        ("ensemble.json", "an ensemble, where one network is expected", "name the best.pt of a member"),
        ("ensemble/ensemble.json", "folds and their ensemble, where one network is expected", f"name {fold}"),
        (
            "encoder.pt",
            "a pretraining run, which has no classifier",
            f"vitmed train DIR --weights {quoted(path / 'encoder.pt')}",
        ),
        (
            "folds.json",
            f"holds a run for each fold and no ensemble of them, expected a run such as {fold}",
            f"to join them: vitmed ensemble {quoted(path)}; for their report: vitmed evaluate {report}",
        ),
        ("splits.csv", f"a run without best.pt: {ended}", "wait; vitmed runs shows it" if running else "train first"),
    ):
        if (path / mark).is_file():
            raise CheckpointError(f"{path}: {what}", fix)
    fix = "weights alone have no classes: train --weights FILE, or vitmed.build_model(weights=FILE)"
    content = _load(path, FORMAT, "a vitmed checkpoint", fix)
    with damage(path, AGAIN):
        checkpoint = _parse(path, content)
        if checkpoint.policy is not None and checkpoint.policy.weights_hash not in (None, checkpoint.weights_hash):
            raise ValueError("its decision policy was chosen for other weights")
        return checkpoint


def _parse(path: Path, content: dict[str, Any]) -> Checkpoint:
    splits, hashes = read_membership(path, content)
    classes = splits.classes
    config = build_config(content["config"], Config)
    how = Preprocessing.of(config)
    if len(set(classes)) != len(classes):
        raise ValueError(f"classes {classes}")
    if Preprocessing(**content["preprocessing"]) != how:
        raise ValueError(f"preprocessing {content['preprocessing']}")
    weights, record, versions = (dict(content[name]) for name in ("weights", "record", "versions"))
    training, seen = content["training"], tuple(content["data"].get("seen", ()))
    expect("weights", weights.values(), torch.Tensor)
    expect("record", record.values(), str | int | float | None)
    expect("training", [training], dict | None)
    weights_hash = hash_of(content.get(DIGESTS) or digests_of({"weights": weights}))
    fingerprints = {name: list(part) for name, part in content["data"]["fingerprints"].items()}
    if not all(re.fullmatch("([0-9a-f]{64})?", text) for part in fingerprints.values() for text in part):
        raise ValueError("fingerprints of images")
    compared = upgrade.reduced_precision(content.get("reduced_precision"))
    reduced = None if compared is None else ReducedPrecision.model_validate(compared)
    policy, stored = None, content.get("policy")
    try:
        if stored is not None:
            policy = policy_of(stored, content["classes"])
        if policy is not None and (score := policy.ood_score) is not None:
            if score.means is None or score.precision is None:
                raise ValueError("ood_score: means and precision are missing")
            if not (np.isfinite(score.means).all() and np.isfinite(score.precision).all()):
                raise ValueError("ood_score: numbers that are not finite")
    except ValueError as error:
        raise CheckpointError(f"its decision policy is damaged ({error})", AGAIN) from None
    about = path, config, classes, how, splits, hashes, record, versions, seen, policy, weights_hash
    return Checkpoint(*about, fingerprints, weights, training, reduced)
