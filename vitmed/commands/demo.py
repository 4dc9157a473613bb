"""`vitmed demo`: train and evaluate on images that vitmed draws."""

from pathlib import Path
from typing import Annotated

from vitmed.commands.train import train
from vitmed.core.messages import bar, say
from vitmed.core.options import Gates, Option
from vitmed.data import folders, synthetic
from vitmed.studies.one_run import TrainResult


def demo(
    output: Annotated[
        Path | str, Option("Folder for images and runs; default vitmed-demo.", "--output -o")
    ] = "vitmed-demo",
    *,
    seed: Annotated[int, Option("Seed of the drawing and of the training; default 0.", min=0)] = 0,
    cells: Annotated[int, Option("About how many images to draw; default 1000.", min=200, max=100_000)] = 1000,
    device: str = "auto",
    fail_under: Gates = (),
) -> TrainResult:
    """Draw images of simulated patients, train a small ViT on some patients, evaluate it on the others.

    Args:
        output: folder for the images (`cells-<seed>/`) and the runs.
        seed: of the drawing and of the training; cells: approximate number of images.
    """
    folders.new_outside_data(output, filled=True)
    data = Path(output) / f"cells-{seed}"
    with bar("drawing cells") as advance:
        synthetic.draw_cells(data, seed=seed, cells=cells, progress=advance)
    say(f"images: computer-drawn blood-smear cells of simulated patients, in {data}")
    return train(
        data, config="demo", name="demo", output=Path(output) / "runs", seed=seed, device=device, fail_under=fail_under
    )
