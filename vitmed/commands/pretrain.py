"""`vitmed pretrain`: a folder of images, labelled or not -> a run folder with an encoder for `train --weights`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from vitmed.commands.train import default_name
from vitmed.core.config import Config, ModelConfig
from vitmed.core.environment import environment
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError, unknown_key
from vitmed.core.files import write_bytes, write_json, write_text
from vitmed.core.flags import read_overrides
from vitmed.core.hardware import describe, pick_device, pick_precision, seeded
from vitmed.core.load_config import build_config, load_config
from vitmed.core.pretrain_config import PRETRAIN_FLAGS, PretrainConfig, PretrainDataConfig
from vitmed.core.run_folder import RunFolder, refuse_inside
from vitmed.core.ui import Ui
from vitmed.data.folders import data_folder, has_classes
from vitmed.data.loading import EpochBatches, Images, TrainImages, pick_workers, train_loader
from vitmed.data.patient_notes import report_patients
from vitmed.data.read_images import read_all
from vitmed.data.samples import Splits
from vitmed.data.splits import pretraining_splits
from vitmed.imaging.augmentation import POLICIES, Augmenter
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.mae import MAE
from vitmed.models.summary import describe_model
from vitmed.models.vit import build_vit
from vitmed.models.weight_layouts import HEAD
from vitmed.report.plots.drawing import png
from vitmed.report.plots.pretraining import loss_curves, reconstruction_figure
from vitmed.training.checkpoint import load_pretraining, placed, portable, save_encoder, save_pretraining
from vitmed.training.loop import TrainState
from vitmed.training.plan_rules import SCRATCH, Situation, decide
from vitmed.training.prepare import median_side, with_window
from vitmed.training.pretraining import build_mae, new_pretraining, pretrain_epochs, reconstructions
from vitmed.training.run import json_line, splits_csv, stop_signals, with_progress

UNLABELLED_VAL = 0.05  # share of images without classes that only the validation loss sees

# What may be said beside --resume: what changes no result.
RESUMABLE = {"train.device", "train.workers", "data.cache", "data.cache_gb"}


@dataclass(frozen=True)
class PretrainResult:
    """What pretraining gave: the run folder, the weight file, and the records of its epochs."""

    folder: Path
    encoder: Path
    records: list[dict[str, Any]]


def pretrain(
    data: str | Path | None = None,
    *,
    config: str | Path | None = None,
    sets: Sequence[str] = (),
    output: str | Path = "runs",
    name: str | None = None,
    resume: str | Path | None = None,
    ui: Ui | None = None,
    **flags: Any,
) -> PretrainResult:
    """Pretrain an encoder on images without using labels, by a masked autoencoder; `train(weights=...)` takes it.

    Test images are never used: those that `train` would hold out with the same data settings and, without class
    folders, those of a test folder.

    Args:
        data: the folder, of images in any folders.
        config: a YAML file; `sets` ("train.lr=1e-3") and flags go over it.
        output: the folder that run folders are made in.
        name: of the run folder; default date, data and model.
        resume: a run folder to go on with, to the same weights as if it had never stopped.
        ui: where messages and progress go.
        **flags: the names in `PRETRAIN_FLAGS`, as on the command line: epochs=100, mask_ratio=0.6.

    Raises:
        VitmedError: a subclass for each kind of problem.
    """
    ui = ui or Ui()
    overrides = read_overrides(flags, PRETRAIN_FLAGS, "pretrain")
    if resume is not None:
        if name is not None:
            raise UsageError("--resume goes on in the run's own folder", "leave --name out")
        run = _resumed(Path(resume), data, config, sets, overrides, ui)
    else:
        if data is not None:
            overrides["data.root"] = str(data)
        run = _fresh(load_config(config, overrides, sets, PretrainConfig), output, name, ui)
    try:
        run.run()
    except KeyboardInterrupt:
        if not run.folder.last.is_file():
            raise
        folder = run.folder
        raise Interrupted(
            f"stopped at once; {folder.last} is saved", f"vitmed pretrain --resume {folder.path}"
        ) from None
    ui.say(f"train with: vitmed train DIR --weights {run.folder.encoder}")
    return PretrainResult(run.folder.path, run.folder.encoder, run.state.history)


def _fresh(config: PretrainConfig, output: str | Path, name: str | None, ui: Ui) -> Run:
    if config.augment.policy not in POLICIES:
        raise unknown_key("policy", config.augment.policy, POLICIES)
    config = config.model_copy(update={"model": _plain(config.model), "data": _which(config.data)})
    with ui.bar("finding images", unit="files") as advance:
        splits, held_out = pretraining_splits(config.data, advance)
    config = with_window(_sized(config, splits, ui), splits, ui)
    run = Run(config, splits, ui)
    if held_out:
        ui.say(f"test  {held_out:,} images, left out: pretraining never sees them")
    else:
        ui.warn("no test images were left out: images that will be judged later must not lie here")
    refuse_inside(splits.root, output)
    RunFolder.probe(output)
    run.hashes = read_all(run.images, config.data, ui)
    run.open(RunFolder.create(output, name or f"{default_name(splits.root, config)}_mae"))
    return run


def _plain(model: ModelConfig) -> ModelConfig:
    """The model with what pretraining decides: no weights, the plain stem, fixed positions, a mean over the patches.

    The class token has learned to hold nothing, so a head that comes later looks at the mean, as in the paper.
    """
    if model.weights is not None:
        raise UsageError("pretraining starts from random weights", "leave model.weights out")
    stem, pool = ("patch" if model.stem == "auto" else model.stem), ("mean" if model.pool == "auto" else model.pool)
    positions = model.positions if "positions" in model.model_fields_set else "sincos_2d"
    return model.model_copy(update={"stem": stem, "pool": pool, "positions": positions})


def _sized(config: PretrainConfig, splits: Splits, ui: Ui) -> PretrainConfig:
    """Image and patch size as the plan of training from scratch has them, where nobody set them."""
    count, val = (len(splits.samples[name]) for name in ("train", "val"))
    device = pick_device(config.train.device).type
    situation = Situation(SCRATCH, count, val, median_side(splits), device, width=0)
    decided = {
        decision.field.removeprefix("model."): decision
        for decision in decide(Config(model=config.model), situation)
        if decision.field in ("model.image_size", "model.patch_size")
    }
    for decision in decided.values():
        ui.say(f"{decision.field} {decision.value}: {decision.when}; {decision.why}")
    update = {name: decision.value for name, decision in decided.items()}
    return config.model_copy(update={"model": config.model.model_copy(update=update)})


def _which(data: PretrainDataConfig) -> PretrainDataConfig:
    """The data section, with what the folder decides: whether there are classes, and so how much validates."""
    if not data.unlabelled and (data.labels is not None or has_classes(data_folder(data.root))):
        return data
    fraction = data.val_fraction if "val_fraction" in data.model_fields_set else UNLABELLED_VAL
    return data.model_copy(update={"unlabelled": True, "val_fraction": fraction})


def _resumed(
    path: Path,
    data: str | Path | None,
    config: str | Path | None,
    sets: Sequence[str],
    overrides: dict[str, Any],
    ui: Ui,
) -> Run:
    folder = RunFolder(path.parent if path.suffix == ".pt" else path)
    if not folder.last.is_file():
        raise CheckpointError(f"{folder.path}: holds no last.pt to resume", "name the run folder of an interrupted run")
    if config is not None or sets or set(overrides) - RESUMABLE:
        raise UsageError("--resume goes on with the run's own configuration", "with it give only --device, --workers")
    saved = load_pretraining(folder.last)
    tree = placed(saved.config, folder.path)
    root = data_folder(data if data is not None else saved.splits.root)
    tree["data"]["root"] = str(root)
    for key, value in overrides.items():
        section, _, field = key.partition(".")
        tree[section][field] = value
    run = Run(build_config(tree, PretrainConfig), replace(saved.splits, root=root), ui)
    run.hashes = read_all(run.images, run.config.data, ui)
    changed = [name for name, hashes in saved.hashes.items() if hashes != run.hashes[name]]
    if changed:
        raise DataError(f"{root}: images of {', '.join(changed)} have changed since the run began", "start a new run")
    run.reopen(folder, saved.training)
    if run.state.epoch >= run.config.train.epochs:
        raise UsageError(f"{folder.path}: this run is finished", f"vitmed train DIR --weights {folder.encoder}")
    return run


class Run:
    """One pretraining run under way."""

    def __init__(self, config: PretrainConfig, splits: Splits, ui: Ui):
        self.config, self.splits, self.ui = config, splits, ui
        self.device = pick_device(config.train.device)
        self.precision = pick_precision(config.train.precision, self.device)
        with seeded(config.train.seed):
            # With `norm` over every token, as the decoder needs it; a head over the mean moves it behind the mean.
            encoder = build_vit(config.model.model_copy(update={"pool": "cls"}), 1)
            self.model = build_mae(encoder, config).to(self.device)
        preprocessing = Preprocessing.of(config)
        self.images = {name: Images(splits.root, part, preprocessing) for name, part in splits.samples.items()}
        self.hashes: dict[str, list[str]] = {}
        for name, samples in splits.samples.items():
            ui.say(f"{name:5} {len(samples):,} images, {splits.made[name]}")
        report_patients(splits, "a patient of a later test may be among these images", ui)
        sizes = [sum(p.numel() for p in part.parameters()) / 1e6 for part in (encoder, self.model)]
        ui.say(f"encoder {describe_model(config.model)}, {sizes[0]:.2f} M parameters")
        ui.say(
            f"decoder {sizes[1] - sizes[0]:.2f} M parameters, which are not kept; {self.model.visible} of "
            f"{self.model.patches} patches are visible"
        )
        ui.say(f"device {describe(self.device)}, {self.precision.name}: {self.precision.reason}")

    def open(self, folder: RunFolder) -> None:
        """Write what is known before the first batch, and make a new state."""
        self.folder = folder
        write_text(folder.config, portable(self.config, folder.path).to_yaml())
        write_json(folder.environment, environment(self.config, self.device, self.precision, self.hashes))
        write_text(folder.splits, splits_csv(self.splits, self.hashes))
        self._prepare()
        self.ui.say(f"run folder {folder.path}")

    def reopen(self, folder: RunFolder, training: dict[str, Any]) -> None:
        """Go back to the state of a last.pt."""
        self.folder = folder
        self._prepare()
        try:
            self.state.load_state_dict(training)
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{folder.last}: its training state does not fit ({error})") from None
        write_text(folder.config, portable(self.config, folder.path).to_yaml())  # the data may lie elsewhere now
        self.ui.say(f"resuming {folder.path} at epoch {self.state.epoch + 1}, batch {self.state.batch + 1}")

    def _prepare(self) -> None:
        train, augment, model, images = self.config.train, self.config.augment, self.config.model, self.images["train"]
        augmenter = Augmenter(augment.policy, model.image_size, model.channels, augment.flips)
        self.batches = EpochBatches(images.labels, train.batch_size, train.seed, balanced=False)
        workers = pick_workers(train.workers, augment.policy != "none", images.in_memory, self.device)
        dataset = TrainImages(images, augmenter, train.seed)
        self.loader = train_loader(dataset, self.batches, workers, self.device.type == "cuda")
        self.state: TrainState = new_pretraining(self.model, self.config, self.device, self.precision)

    def run(self) -> None:
        """Pretrain to the end. Raises Interrupted after last.pt was saved."""
        config, state, folder = self.config, self.state, self.folder
        with stop_signals() as stop, self.ui.bar("training", unit="images") as advance:
            events = pretrain_epochs(
                state, self.loader, self.batches, self.images["val"], config, self.device, self.precision, stop
            )
            for epoch in with_progress(events, config, advance):
                self._end_of_epoch(epoch.record)
            if stop():
                self._save()
                with contextlib.suppress(Exception):  # a figure that fails must not hide how to resume
                    self._draw()
                raise Interrupted(
                    f"interrupted in epoch {state.epoch + 1}; {folder.last} is saved",
                    f"vitmed pretrain --resume {folder.path}",
                )
        self._draw()

    def _draw(self) -> None:
        history, folder = self.state.history, self.folder
        if history:
            write_bytes(folder.training_curves, png(loss_curves(history)))
            pictures = reconstructions(self.model, self.images["val"], self.config.train.seed, self.device)
            write_bytes(folder.reconstructions, png(reconstruction_figure(pictures)))

    def _end_of_epoch(self, record: dict[str, Any]) -> None:
        weights = {k: v for k, v in cast(MAE, self.state.model).encoder.state_dict().items() if k not in HEAD}
        save_encoder(self.folder.encoder, config=self.config, hashes=self.hashes, weights=weights, record=record)
        self._save()
        write_text(self.folder.metrics, "".join(json_line(r) for r in self.state.history))
        self.ui.say(
            f"epoch {record['epoch']:3}/{self.config.train.epochs}  train loss {record['train_loss']:.4f}  "
            f"val loss {record['val_loss']:.4f}  lr {record['lr']:.1e}  {record['images_per_second']:,.0f} images/s  "
            f"{record['wait_share']:.0%} waiting"
        )

    def _save(self) -> None:
        save_pretraining(
            self.folder.last,
            config=self.config,
            splits=self.splits,
            hashes=self.hashes,
            training=self.state.state_dict(),
        )
