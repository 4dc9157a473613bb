"""`vitmed train --pretrain`: the network learns without labels before training begins, in a folder inside the run."""

from __future__ import annotations

from vitmed.checks.further_images import further_images
from vitmed.commands.pretraining_run import PretrainingRun, resumed, with_view_defaults
from vitmed.commands.resuming import train_and_draw
from vitmed.core.config import Config
from vitmed.core.durations import about
from vitmed.core.errors import UsageError
from vitmed.core.load_config import build_config
from vitmed.core.pretrain_config import PretrainConfig
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted
from vitmed.data.read_images import read_splits
from vitmed.data.samples import Splits
from vitmed.models.pretrained import read_weights
from vitmed.training.checkpoint import load_pretraining
from vitmed.training.epoch_records import finished
from vitmed.training.time_plan import PRETRAINING
from vitmed.training.training_run import TrainingRun
from vitmed.training.views import VIEWS

# What both phases share: where and how a step is computed.
SHARED = (
    "seed", "device", "precision", "augment_on", "autotune", "compile", "attention", "threads", "workers",
    "micro_batch", "grad_checkpointing",
)  # fmt: skip


def pretrain_first(run: TrainingRun) -> None:
    """Pretrain on the training images of a run that has not begun, and give it the weights; go on where it stopped.

    Validation and test images, copies of them, and other images of their patients change no weight.

    Raises:
        Interrupted: after saving the state, from which `train --resume` goes on.
        UsageError: several processes.
    """
    if run.ranks.wide:
        raise UsageError("--pretrain runs as one process", "start it without torchrun, or pretrain first")
    folder = run.folder.pretraining
    if folder.last.is_file():
        saved = load_pretraining(folder.last)
        overrides = {f"train.{name}": getattr(run.config.train, name) for name in ("device", "workers")}
        first = resumed(folder, saved, run.splits.root, overrides, run.ui)
        run.clock.go_on(first.state.spent)
    else:
        folder.path.mkdir(exist_ok=True)
        first = _new_run(run, folder)
    first.outer = run.folder
    if not finished(first.state, first.config):
        length = f"{counted(first.config.train.epochs - first.state.epoch, 'epoch')}, about {about(first.seconds())}"
        run.ui.say(f"first pretraining without labels: {length}; then training")
        train_and_draw(first, first.draw)
    run.start_from(read_weights(folder.encoder))


def _new_run(run: TrainingRun, folder: RunFolder) -> PretrainingRun:
    ui = run.ui
    samples = {
        name: tuple(s._replace(label=0, columns=()) for s in run.splits.samples[name]) for name in ("train", "val")
    }
    made = {name: run.splits.made[name] for name in samples}
    if run.config.train.pretrain_also is not None:
        further = further_images(
            run.config.train.pretrain_also, run.splits, run.hashes, run.held_out, run.config.data, ui
        )
        made["train"] += f"; {counted(len(further), 'image')} without labels"
        samples["train"] += further
    images = len(run.splits.samples["train"])
    config = pretraining_config(run.config, images, len(samples["train"]) - images)
    splits = Splits(run.splits.root, ("image",), samples, made, patients=run.splits.patients)
    first = PretrainingRun(config, splits, ui)
    first.splits, first.images, first.hashes, *_ = read_splits(
        splits, first.images["train"].preprocessing, config.data, ui, False
    )
    first.begin(folder)
    return first


def pretraining_config(config: Config, images: int, further: int) -> PretrainConfig:
    """The configuration of the first phase, from that of the training, which is complete.

    Without a number of its own the first phase takes about as long as the training, of whose steps each computes two
    views of an image.

    Args:
        images: of training; further: beside them.
    """
    train = {name: getattr(config.train, name) for name in SHARED}
    passes = config.train.epochs * images / (images + further) / VIEWS
    train["epochs"] = config.train.pretrain_epochs or max(1, round(passes))
    train["warmup_epochs"] = train["epochs"] / 20
    if config.train.time is not None:
        train["time"] = PRETRAINING * config.train.time
    tree = {
        "data": config.data.model_dump(), "model": config.model.model_dump(), "train": train,
        "augment": {"flips": config.augment.flips},
    }  # fmt: skip
    return with_view_defaults(build_config(tree, PretrainConfig))
