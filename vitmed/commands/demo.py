"""`vitmed demo`: train and evaluate on images that vitmed draws."""

from __future__ import annotations

from pathlib import Path

from vitmed.commands.train import TrainResult, train
from vitmed.core.outputs import refuse_file
from vitmed.core.ui import Ui
from vitmed.data.folders import refuse_among_classes
from vitmed.data.synthetic import draw_cells


def demo(
    output: str | Path = "vitmed-demo",
    *,
    seed: int = 0,
    cells: int = 1000,
    device: str = "auto",
    fail_under: tuple[str, ...] = (),
    ui: Ui | None = None,
) -> TrainResult:
    """Draw blood-smear cells of simulated patients, train a small ViT on some patients, evaluate it on the others.

    Args:
        output: folder for the images (`cells-<seed>/`) and the runs.
        seed: seed of the drawing and of the training.
        cells: approximate number of cells.
    """
    ui = ui or Ui()
    refuse_file(output)
    refuse_among_classes(output)
    data = Path(output) / f"cells-{seed}"
    with ui.bar("drawing cells") as advance:
        draw_cells(data, seed=seed, cells=cells, progress=advance)
    ui.say(f"images: computer-drawn blood-smear cells of simulated patients, in {data}")
    runs = Path(output) / "runs"
    return train(data, config="demo", output=runs, name="demo", seed=seed, device=device, fail_under=fail_under, ui=ui)
