"""`vitmed demo`: train and evaluate on images that vitmed draws."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from vitmed.commands.train import train
from vitmed.core.errors import unknown_key
from vitmed.core.messages import bar, say
from vitmed.core.options import Gates, Option
from vitmed.core.places import refuse_file
from vitmed.data.folders import refuse_among_classes
from vitmed.data.synthetic import draw_cells, draw_chests
from vitmed.data.synthetic_chests import HEARTS, TABLE
from vitmed.studies.one_run import TrainResult

TABLES = {"findings": TABLE, "number": HEARTS}  # of the chests


def demo(
    output: Annotated[
        Path | str, Option("Folder for images and runs; default vitmed-demo.", "--output -o")
    ] = "vitmed-demo",
    *,
    seed: Annotated[int, Option("Seed of the drawing and of the training; default 0.")] = 0,
    cells: Annotated[int, Option("About how many images to draw; default 1000.", min=200, max=100_000)] = 1000,
    device: str = "auto",
    target: Annotated[
        str, Option("What to learn: classes (of cells), findings or a number (of chests); default classes.")
    ] = "classes",
    fail_under: Gates = (),
) -> TrainResult:
    """Draw images of simulated patients, train a small ViT on some patients, evaluate it on the others.

    Args:
        output: folder for the images (`cells-<seed>/` or `chests-<seed>/`) and the runs.
        seed: of the drawing and of the training; cells: approximate number of images.
        target: "classes": blood cells with and without parasites; "findings": chests with up to four findings;
            "number": the same chests with the width of the heart in mm.

    Raises:
        UsageError: another target.
    """
    if target not in ("classes", *TABLES):
        raise unknown_key("target", target, ("classes", *TABLES))
    refuse_file(output)
    refuse_among_classes(output)
    runs = Path(output) / "runs"
    common: dict[str, Any] = {"output": runs, "seed": seed, "device": device, "fail_under": fail_under}
    if target in TABLES:
        data = Path(output) / f"chests-{seed}"
        with bar("drawing chests") as advance:
            draw_chests(data, seed=seed, images=cells, patients=max(4, cells // 5), progress=advance)
        say(f"images: computer-drawn chests of simulated patients, in {data}")
        recipe = f"demo_{target}"
        return train(data, labels=data / TABLES[target], config=recipe, name=recipe, **common)
    data = Path(output) / f"cells-{seed}"
    with bar("drawing cells") as advance:
        draw_cells(data, seed=seed, cells=cells, progress=advance)
    say(f"images: computer-drawn blood-smear cells of simulated patients, in {data}")
    return train(data, config="demo", name="demo", **common)
