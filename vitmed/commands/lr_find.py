"""`vitmed lr-find`: raise the learning rate while training, and suggest a rate from the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitmed.core.errors import UsageError, VitmedError
from vitmed.core.files import write_bytes
from vitmed.core.flags import FLAGS, read_overrides
from vitmed.core.inputs import data_folder
from vitmed.core.load_config import load_config
from vitmed.core.outputs import numbered_output
from vitmed.core.ui import Ui
from vitmed.data.read_images import read_splits
from vitmed.report.plots.drawing import png
from vitmed.report.plots.training import lr_range
from vitmed.training.epoch_records import end_epoch
from vitmed.training.gradients import Relief
from vitmed.training.loop import train_epoch
from vitmed.training.lr_range import RangeTest, rising_rates, run_range_test
from vitmed.training.prepare import prepare_run
from vitmed.training.training_run import TrainingRun


def lr_find(
    data: str | Path | None = None,
    *,
    config: str | Path | None = None,
    sets: Sequence[str] = (),
    output: str | Path = "lr_find.png",
    force: bool = False,
    low: float = 1e-7,
    high: float = 1.0,
    steps: int = 100,
    offline: bool = False,
    ui: Ui | None = None,
    **flags: Any,
) -> RangeTest:
    """The learning-rate range test: train as `train` would, but raise the rate with every step.

    It reads only training images, makes no run folder and keeps only the picture.

    Args:
        data, config, sets, offline, flags: as in `train`.
        output: the picture (PNG); where it is there already, the next is lr_find-2.png.
        force: replace the picture instead; never an input, a file of a run or one in the data folder.
        low, high: the first and the last learning rate; steps: the number of steps.

    Raises:
        UsageError: rates or steps that make no range; VitmedError: as in `train`.
    """
    ui = ui or Ui()
    if not 0 < low < high or steps < 20:
        raise UsageError(
            f"{low:g} to {high:g} in {steps} steps is no range", "--low above 0, a larger --high, --steps 20 or more"
        )
    overrides = {"data.root": data, **read_overrides(flags, FLAGS, "lr_find")}
    settings = load_config(config, overrides, sets)
    file = numbered_output(output, force, data_folder(settings.data.root), png=True)
    prepared = prepare_run(settings, config is None, offline, ui)
    run = TrainingRun(prepared.config, prepared.splits, prepared.device, ui, prepared.weights)
    train = replace(run.splits, samples={"train": run.splits.samples["train"]})
    run.images |= read_splits(train, run.images["train"].preprocessing, run.config.data, ui, False).images
    run.prepare()
    rates = rising_rates(low, high, steps)
    found = run_range_test(rates, _losses(run, rates, ui))
    write_bytes(file, png(lr_range(found)))
    planned = prepared.config.train.lr
    ui.say(f"{found.course}: {file}")
    if found.valley is None or found.steepest is None:
        ui.warn("the loss never fell, so no learning rate is suggested; try more --steps or another range")
    else:
        ui.say(f"suggested: --lr {found.valley:.1e} (valley); steepest descent at {found.steepest:.1e}")
        ui.say(f"train would use {planned:.1e}; rates within a factor of three are equivalent in this noisy test")
    return found


def _losses(run: TrainingRun, rates: Sequence[float], ui: Ui) -> Iterator[float]:
    """The mean training loss of each optimiser step."""
    config, state, batches = run.config, run.state, run.batches
    loss_of = run.loss_of()
    losses: list[torch.Tensor] = []

    def recorded_loss(images: torch.Tensor, labels: torch.Tensor) -> Callable[[slice], torch.Tensor]:
        part_of = loss_of(images, labels)
        losses.append(torch.zeros((), device=images.device))

        def recorded(rows: slice) -> torch.Tensor:
            loss = part_of(rows)
            losses[-1] += loss.detach()
            return loss

        return recorded

    def ended() -> bool:
        return state.step >= len(rates)

    done = 0
    with ui.bar("raising the learning rate", unit="steps") as advance:
        while not ended():
            events = train_epoch(state, run.loader, batches, recorded_loss, config, ended, lambda step: rates[step])
            try:
                for event in events:
                    if isinstance(event, Relief):
                        ui.warn(str(event))
                        losses.clear()  # the whole step is computed again
                    elif state.step > done:
                        done = state.step
                        advance(done, len(rates))
                        yield float(torch.stack(losses).mean())
                        losses.clear()
            except VitmedError:  # the loss is NaN or infinite
                yield math.nan
                return
            end_epoch(state, {})
