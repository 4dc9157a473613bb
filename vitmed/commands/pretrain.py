"""`vitmed pretrain`: from images without labels to a run folder with an encoder for `train --weights`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from vitmed.core.config import PRETRAIN_FLAGS, Config, PretrainConfig, read_overrides
from vitmed.core.dataset_cards import report_card
from vitmed.core.errors import DataError, Interrupted, UsageError, unknown_key
from vitmed.core.files import write_bytes
from vitmed.core.load_config import build_config, load_config
from vitmed.core.messages import bar, say, warn
from vitmed.core.options import Argument, ConfigFile, Fields, Resume, RunName, RunsFolder, Sets
from vitmed.core.places import check_run_place, data_folder
from vitmed.core.process import is_rank
from vitmed.core.run_folder import RunFolder, run_lock
from vitmed.core.text import counted
from vitmed.data.folders import has_classes
from vitmed.data.loading import ReadSplits, images_of, read_all, read_splits
from vitmed.data.patients import show_expression
from vitmed.data.samples import Splits
from vitmed.data.splits import pretraining_splits
from vitmed.imaging.augmentation import POLICIES
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import load_pretraining
from vitmed.models.hardware import pick_device
from vitmed.report.plots.curves import loss_curves, reconstruction_figure
from vitmed.report.plots.drawing import png
from vitmed.studies.one_run import NO_RESULT, default_name
from vitmed.training.early_stopping import finished
from vitmed.training.environment import all_its_images, check_unchanged
from vitmed.training.out_of_memory import one_batch
from vitmed.training.plan.make_plan import median_side, with_window
from vitmed.training.plan.rules import SCRATCH, PlanInputs, plan_settings
from vitmed.training.pretraining import Pretrain, reconstructions
from vitmed.training.run import Run, Session, folder_to_resume, resumed_settings, train_and_draw

UNLABELLED_VAL = 0.05  # share of images for validation where there are no classes


@dataclass(frozen=True)
class PretrainResult:
    """The run folder, the weight file, and the records of the epochs."""

    folder: Path
    encoder: Path
    records: list[dict[str, Any]]


def pretrain(
    data: Annotated[Path | str | None, Argument("Folder of images, with or without class folders.")] = None,
    *,
    config: ConfigFile = None,
    sets: Sets = (),
    output: RunsFolder = "runs",
    name: RunName = None,
    resume: Resume = None,
    **flags: Annotated[Any, Fields(PretrainConfig, PRETRAIN_FLAGS)],
) -> PretrainResult:
    """Pretrain an encoder as a masked autoencoder, without labels; `train(weights=...)` takes the result.

    Pretraining never uses test images: those that `train` would hold out with the same data settings or, without
    class folders, those in a test folder.

    Args:
        data: the folder, with images at any depth; config, sets, output, name, resume: as in `train`.
        **flags: the names in `PRETRAIN_FLAGS`, as on the command line: epochs=100, mask_ratio=0.6.

    Raises:
        VitmedError: a subclass for each kind of problem.
    """
    if is_rank():
        raise UsageError("vitmed pretrain runs as one process", "start it without torchrun")
    overrides = read_overrides(flags, PRETRAIN_FLAGS, "pretrain")
    if resume is not None:
        changes = [*overrides, *sets] + ["config"] * (config is not None)
        folder = folder_to_resume(Path(resume), name, changes, PRETRAIN_FLAGS, NO_RESULT)
        with run_lock(folder):
            return _train(*_resume_run(folder, data, overrides))
    settings = load_config(config, {"data.root": data, **overrides}, sets, PretrainConfig)
    run, task = _new_run(settings, output, name)
    with run_lock(run.folder):
        return _train(run, task)


def _train(run: Run[PretrainConfig], task: Pretrain) -> PretrainResult:
    """Train to the end, and draw."""
    folder = run.folder

    def draw() -> None:
        """The loss curves and some reconstructions."""
        if run.state.history:
            write_bytes(folder.training_curves, png(loss_curves(run.state.history)))
            pictures = reconstructions(task.model, run.images["val"], run.config.train.seed, run.device)
            write_bytes(folder.reconstructions, png(reconstruction_figure(pictures)))

    try:
        train_and_draw(run, draw)
    except (UsageError, DataError) as error:
        raise run.resumable(error) from None
    except KeyboardInterrupt:
        if not folder.last.is_file():
            raise
        raise Interrupted(f"stopped at once; {folder.last} is saved", run.go_on) from None
    say(f"to fine-tune the encoder: vitmed train DIR --weights {folder.encoder}")
    return PretrainResult(folder.path, folder.encoder, run.state.history)


def _new_run(config: PretrainConfig, output: str | Path, name: str | None) -> tuple[Run[PretrainConfig], Pretrain]:
    check_run_place(config, output, name)
    if config.augment.policy not in POLICIES:
        raise unknown_key("policy", config.augment.policy, POLICIES)
    model, data = config.model, config.data
    if model.weights is not None:
        raise UsageError("pretraining starts from random weights", "leave model.weights out")
    stem, pool = ("patch" if model.stem == "auto" else model.stem), ("mean" if model.pool == "auto" else model.pool)
    positions = model.positions if "positions" in model.model_fields_set else "sincos_2d"
    # The class token learns nothing, so a later head uses the mean of the patches, as in the paper.
    model = model.model_copy(update={"stem": stem, "pool": pool, "positions": positions})
    if data.unlabelled or not (data.labels is not None or has_classes(data_folder(data.root))):
        fraction = data.val_fraction if "val_fraction" in data.model_fields_set else UNLABELLED_VAL
        data = data.model_copy(update={"unlabelled": True, "val_fraction": fraction})
    config = config.model_copy(update={"model": model, "data": data})
    report_card(config.data.card)
    show_expression(config.data.group_regex)
    with bar("finding images", unit="files") as advance:
        splits, held_out = pretraining_splits(config.data, advance)
    config = with_window(one_batch(_default_sizes(config, splits)), splits)
    session = Session.of(config, pick_device(config.train.device))
    task = Pretrain.new(config, splits, session)
    if held_out:
        say(f"test:  {counted(held_out, 'image')}, left out: pretraining never uses them")
    else:
        warn("no test images were left out: keep the images of a later test out of this folder")
    RunFolder.probe(output)
    read = read_splits(splits, Preprocessing.of(config), config.data, False)
    folder = RunFolder.create(output, name or f"{default_name(splits.root, config)}_mae")
    run = Run.new(task, config, read, folder, session)
    say(f"run folder: {folder.path}")
    return run, task


def _default_sizes(config: PretrainConfig, splits: Splits) -> PretrainConfig:
    """Image and patch size that were not set by hand, as `train` would plan them for random weights."""
    count, val = (len(splits.samples[name]) for name in ("train", "val"))
    device = pick_device(config.train.device).type
    situation = PlanInputs(SCRATCH, count, val, median_side(splits), device, width=0)
    update = {}
    for decision in plan_settings(Config(model=config.model), situation):
        if decision.field in ("model.image_size", "model.patch_size"):
            say(f"{decision.field} {decision.value}: {decision.when}; {decision.why}")
            update[decision.field.removeprefix("model.")] = decision.value
    return config.model_copy(update={"model": config.model.model_copy(update=update)})


def _resume_run(
    folder: RunFolder, data: str | Path | None, overrides: dict[str, Any]
) -> tuple[Run[PretrainConfig], Pretrain]:
    saved = load_pretraining(folder.last)
    root = data_folder(data if data is not None else saved.splits.root)
    settings = resumed_settings(saved.config, folder, root, overrides)
    config, splits = build_config(settings, PretrainConfig), replace(saved.splits, root=root)
    session = Session.of(config, pick_device(config.train.device))
    task = Pretrain.new(config, splits, session)
    images = images_of(splits, Preprocessing.of(config))
    with all_its_images():
        read = ReadSplits(splits, images, read_all(images, config.data), [])
    check_unchanged(splits, read.hashes, saved.hashes)
    run = Run.resumed(task, config, read, folder, session, saved)
    if finished(run.state, run.config):
        raise UsageError(f"{folder.path}: this run is finished", f"vitmed train DIR --weights {folder.encoder}")
    return run, task
