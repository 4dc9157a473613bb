"""`vitmed evaluate`, `vitmed predict` and `vitmed summary`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.app import app
from vitmed.cli.options import (
    AsJson,
    Calibration,
    Cost,
    Coverage,
    Device,
    Fail,
    Format,
    Frame,
    Groups,
    Labels,
    MapImages,
    MaxRisk,
    Ordinal,
    Prevalence,
    Rater,
    Resamples,
    ShowNames,
    Subgroup,
    TargetSensitivity,
    TargetSpecificity,
    Youden,
)
from vitmed.cli.terminal import judged, print_json, print_table, ui
from vitmed.core.errors import DataError, UsageError


@app.command()
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="best.pt of a run, or a predictions.csv.")],
    data: Annotated[Path | None, typer.Option(help="Another labelled folder; classes matched by name.")] = None,
    split: Annotated[str, typer.Option(help="test, val or train.")] = "test",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the report.")] = None,
    device: Device = "auto",
    labels: Labels = None,
    groups: Groups = None,
    group_regex: Annotated[str | None, typer.Option(help="Finds the patient in a path of --data.")] = None,
    resamples: Resamples = None,
    subgroup: Subgroup = None,
    rater: Rater = None,
    ordinal: Ordinal = None,
    calibration: Calibration = None,
    youden: Youden = None,
    target_sensitivity: TargetSensitivity = None,
    target_specificity: TargetSpecificity = None,
    cost: Cost = None,
    prevalence: Prevalence = None,
    coverage: Coverage = None,
    max_risk: MaxRisk = None,
    unlike: Annotated[
        Path | None, typer.Option(help="Folder of other images, to see whether they are noticed.")
    ] = None,
    map_images: MapImages = None,
    format: Format = None,
    show_names: ShowNames = None,
    fail_under: Fail = None,
    allow_leakage: Annotated[bool, typer.Option(help="Judge images although the model was made with them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Judge a checkpoint on its held-out test split, or on another labelled folder, and write the report."""
    from vitmed.commands.evaluate import evaluate as command

    options: dict[str, Any] = {"data": data, "split": split, "output": output, "device": device}
    options |= {"labels": labels, "groups": groups, "group_regex": group_regex, "resamples": resamples}
    options |= {"subgroup": subgroup, "rater": rater, "ordinal": ordinal}
    options |= {"calibration": calibration, "youden": youden, "target_sensitivity": target_sensitivity}
    options |= {"target_specificity": target_specificity, "cost": cost, "prevalence": prevalence}
    options |= {"coverage": coverage, "max_risk": max_risk, "unlike": unlike}
    options |= {"map_images": map_images}
    options |= {"format": format, "show_names": show_names}
    judged(
        lambda: command(checkpoint, fail_under=fail_under or (), allow_leakage=allow_leakage, ui=ui(), **options),
        as_json,
        lambda result: {"folder": str(result.folder), **result.metrics.to_dict()},
    )


@app.command()
def predict(
    images: Annotated[list[str], typer.Argument(help="Image files, folders or patterns.")],
    checkpoint: Annotated[Path | None, typer.Option(help="Default: best.pt of the newest run in --runs.")] = None,
    runs: Annotated[Path, typer.Option(help="Where runs are looked for.")] = Path("runs"),
    top_k: Annotated[int, typer.Option(min=1, help="Classes to show.")] = 3,
    csv: Annotated[Path | None, typer.Option(help="Write all predictions to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG of images with their predictions.")] = None,
    device: Device = "auto",
    frame: Frame = None,
    as_json: AsJson = False,
) -> None:
    """Classify images: the class, its probability and the runners-up."""
    from vitmed.commands import predict as command
    from vitmed.core.files import check_writable, write_bytes, write_text

    for file in (csv, plot):
        if file is not None:
            check_writable(file)  # now, not after all images
    if plot is not None and plot.suffix.lower() != ".png":
        raise UsageError(f"{plot}: the picture is a PNG", f"--plot {plot.with_suffix('.png')}")
    found = command.predict(images, checkpoint=checkpoint, runs=runs, device=device, frame=frame, ui=ui())
    if csv is not None:
        write_text(csv, found.to_csv(errors=True))
    if as_json:
        print_json(command.predictions_json(found, top_k))
    else:
        print_table(found, top_k)
    if plot is not None and len(found):
        how = command.preprocessing_of(checkpoint, runs, frame)
        write_bytes(plot, command.prediction_picture(found, how))
    if found.errors:
        problems = "\n".join(problem for _, problem in found.errors[:20])
        raise DataError(f"{len(found.errors):,} of {len(found) + len(found.errors):,} images not read:\n{problems}")


@app.command()
def summary(
    model: Annotated[str, typer.Argument(help="A size (vit_tiny), a recipe (mnist), or a checkpoint.")] = "vit_tiny",
    num_classes: Annotated[int | None, typer.Option(help="Default 1000, or the checkpoint's.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the input, px.")] = None,
    patch_size: Annotated[int | None, typer.Option(help="Side of a patch, px.")] = None,
    channels: Annotated[int | None, typer.Option(help="Input channels.")] = None,
) -> None:
    """Print torchinfo's table of a model: layers, shapes, parameters, multiply-adds."""
    from vitmed.commands.summary import summary as command

    fields = {"image_size": image_size, "patch_size": patch_size, "channels": channels}
    fields = {key: value for key, value in fields.items() if value is not None}
    typer.echo(command(model, num_classes, **fields))
