"""`vitmed pretrain`: from images without labels to a run folder with an encoder for `train --weights`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from vitmed.core import files, process, run_folder
from vitmed.core.config import PretrainConfig
from vitmed.core.errors import UsageError
from vitmed.core.load_config import load_config, read_overrides
from vitmed.core.messages import say
from vitmed.core.options import PRETRAIN_FLAGS, Argument, ConfigFile, Fields, Resume, RunName, RunsFolder, Sets
from vitmed.core.text import quoted
from vitmed.report.plots.curves import training_curves
from vitmed.report.plots.drawing import png
from vitmed.studies.one_run import NO_RESULT, advising, new_pretraining, resumed_pretraining
from vitmed.training.run import Run, folder_to_resume


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
    if process.is_rank():
        raise UsageError("vitmed pretrain runs as one process", "start it without torchrun")
    overrides = read_overrides(flags, PRETRAIN_FLAGS, "pretrain")
    if resume is not None:
        changes = [*overrides, *sets] + ["config"] * (config is not None)
        folder = folder_to_resume(Path(resume), name, output, changes, PRETRAIN_FLAGS, NO_RESULT)
        with run_folder.run_lock(folder):
            return _train(resumed_pretraining(folder, data, overrides))
    run = new_pretraining(load_config(config, {"data.root": data, **overrides}, sets, PretrainConfig), output, name)
    with run_folder.run_lock(run.folder):
        return _train(run)


def _train(run: Run[PretrainConfig]) -> PretrainResult:
    folder = run.folder

    def draw() -> None:
        if run.state.history:
            curves = training_curves(run.state.history, "mean squared error of hidden patches")
            files.write_bytes(folder.training_curves, png(curves))

    with advising(run):
        run.train(draw)
    say(f"to fine-tune the encoder: vitmed train DIR --weights {quoted(folder.encoder)}")
    return PretrainResult(folder.path, folder.encoder, run.state.history)
