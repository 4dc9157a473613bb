"""The command line: parse, call one command, print, exit code. No logic.

The commands are imported inside their functions, so that `vitmed --help` loads no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.errors import DataError, GateError, Interrupted, UsageError, VitmedError
from vitmed.tuning import tune_process
from vitmed.ui import Advance, Ui

RESEARCH = "Research use only; not a medical device."

app = typer.Typer(
    help=f"Fine-tune Vision Transformers on folders of medical images. {RESEARCH}",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Fail = Annotated[list[str] | None, typer.Option("--fail-under", metavar="METRIC=VALUE", help="Exit code 6 if worse.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Any configuration field.")
]


def _print_version(asked: bool) -> None:
    if asked:
        from vitmed import __version__

        typer.echo(f"vitmed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    data: Annotated[Path | None, typer.Argument(help="Folder: <class>/ or {train,val,test}/<class>/.")] = None,
    config: Annotated[str | None, typer.Option("--config", "-c", help="YAML file or the name of a recipe.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder that run folders are made in.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run folder.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Run folder to go on with, to the same weights.")] = None,
    model: Annotated[str | None, typer.Option(help="vit_tiny, vit_small, vit_base, vit_large.")] = None,
    weights: Annotated[str | None, typer.Option(help="Weight file to start from; it decides the network.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the input, px.")] = None,
    patch_size: Annotated[int | None, typer.Option(help="Side of a patch, px.")] = None,
    channels: Annotated[int | None, typer.Option(help="1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha.")] = None,
    stem: Annotated[str | None, typer.Option(help="auto, patch or conv.")] = None,
    pool: Annotated[str | None, typer.Option(help="auto, cls or mean.")] = None,
    positions: Annotated[str | None, typer.Option(help="learned, sincos_1d or sincos_2d.")] = None,
    drop_path: Annotated[float | None, typer.Option(help="Stochastic depth.")] = None,
    resize: Annotated[str | None, typer.Option(help="pad, squash or crop.")] = None,
    normalize: Annotated[str | None, typer.Option(help="imagenet, half, or image (against stain and light).")] = None,
    max_train: Annotated[int | None, typer.Option(help="Train on a stratified sample of so many.")] = None,
    group_regex: Annotated[str | None, typer.Option(help="Finds the patient in a file's path.")] = None,
    positive: Annotated[str | None, typer.Option(help="Of two classes the finding.")] = None,
    policy: Annotated[str | None, typer.Option("--policy", "--augment", help="Augmentation for the modality.")] = None,
    mixup: Annotated[float | None, typer.Option(help="Alpha of mixup; 0 is off.")] = None,
    cutmix: Annotated[float | None, typer.Option(help="Alpha of cutmix; 0 is off.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", "-b", help="Images per forward pass.")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Batches per optimiser step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of AdamW.")] = None,
    layer_decay: Annotated[float | None, typer.Option(help="Learning rate factor per block.")] = None,
    warmup_epochs: Annotated[float | None, typer.Option(help="Linear warm-up.")] = None,
    smoothing: Annotated[float | None, typer.Option(help="Label smoothing.")] = None,
    balance: Annotated[str | None, typer.Option(help="none, loss or sampler; ruins calibration.")] = None,
    ema: Annotated[bool | None, typer.Option("--ema/--no-ema", help="Average the weights.")] = None,
    monitor: Annotated[str | None, typer.Option(help="Validation metric that picks the best epoch.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many epochs without a better one.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Also keep a checkpoint every N epochs.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order, augmentation and dropout.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32, bf16 or fp16.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-j", help="Processes that load images.")] = None,
    sets: Sets = None,
    fail_under: Fail = None,
    as_json: AsJson = False,
) -> None:
    """Train on a folder of labelled images, then evaluate the best checkpoint on the test split."""
    flags = {k: v for k, v in locals().items() if k not in _NOT_FLAGS}
    from vitmed import commands

    options = {"config": config, "sets": sets or (), "output": output, "name": name, "resume": resume}
    _judged(
        lambda: commands.train(data, fail_under=fail_under or (), ui=_ui(), **options, **flags), as_json, _train_json
    )


_NOT_FLAGS = {"data", "config", "sets", "output", "name", "resume", "fail_under", "as_json"}


@app.command()
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="best.pt of a run, or a predictions.csv.")],
    data: Annotated[Path | None, typer.Option(help="Another labelled folder; classes matched by name.")] = None,
    split: Annotated[str, typer.Option(help="test, val or train.")] = "test",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the report.")] = None,
    device: Device = "auto",
    group_regex: Annotated[str | None, typer.Option(help="Finds the patient in a path of --data.")] = None,
    fail_under: Fail = None,
    allow_leakage: Annotated[bool, typer.Option(help="Judge images although the model was made with them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Judge a checkpoint on its held-out test split, or on another labelled folder, and write the report."""
    from vitmed import commands

    options = {"data": data, "split": split, "output": output, "device": device, "group_regex": group_regex}
    _judged(
        lambda: commands.evaluate(
            checkpoint, fail_under=fail_under or (), allow_leakage=allow_leakage, ui=_ui(), **options
        ),  # type: ignore[arg-type]
        as_json,
        lambda result: {"folder": str(result.folder), **result.metrics},
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
    as_json: AsJson = False,
) -> None:
    """Classify images: the class, its probability and the runners-up."""
    from vitmed.commands import predict as run
    from vitmed.commands import prediction
    from vitmed.run import check_writable, write_bytes, write_text

    for file in (csv, plot):
        if file is not None:
            check_writable(file)  # now, not after all images
    if plot is not None and plot.suffix.lower() != ".png":
        raise UsageError(f"{plot}: the picture is a PNG", f"--plot {plot.with_suffix('.png')}")
    found = run(images, checkpoint=checkpoint, runs=runs, device=device, ui=_ui())
    if csv is not None:
        write_text(csv, found.to_csv(errors=True))
    if as_json:
        _print_json(prediction.predictions_json(found, top_k))
    else:
        _print_table(found, top_k)
    if plot is not None and len(found):
        write_bytes(plot, prediction.prediction_picture(found))
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
    from vitmed import commands

    fields = {"image_size": image_size, "patch_size": patch_size, "channels": channels}
    fields = {key: value for key, value in fields.items() if value is not None}
    typer.echo(commands.summary(model, num_classes, **fields))


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for images and runs.")] = Path("vitmed-demo"),
    seed: Annotated[int, typer.Option(help="Of the drawing and of the training.")] = 0,
    cells: Annotated[int, typer.Option(min=200, max=100_000, help="About how many cells to draw.")] = 1000,
    device: Device = "auto",
    fail_under: Fail = None,
    as_json: AsJson = False,
) -> None:
    """Draw blood-smear cells, train a small ViT, evaluate it on patients that it never saw (minutes on a CPU)."""
    from vitmed import commands

    options = {"seed": seed, "cells": cells, "device": device, "fail_under": tuple(fail_under or ())}
    _judged(lambda: commands.demo(output, ui=_ui(), **options), as_json, _train_json)  # type: ignore[arg-type]


def _judged(run: Callable[[], Any], as_json: bool, content: Callable[[Any], dict[str, Any]]) -> None:
    """Run a command that ends in an evaluation; its JSON is printed also where a gate is not met."""
    try:
        result = run()
    except GateError as error:
        if as_json:
            _print_json(content(error.result))
        raise
    if as_json:
        _print_json(content(result))


def _train_json(result: Any) -> dict[str, Any]:
    return {"run": str(result.folder), "val": result.val.metrics, "test": result.test.metrics}


def main(args: list[str] | None = None) -> None:
    """Run the command line; every problem of a user's becomes a message and an exit code."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # albumentations would ask the network at import
    tune_process()
    sys.exit(_exit_code(lambda: _run(sys.argv[1:] if args is None else args)))


def _run(args: list[str]) -> None:
    # Not `app(args)`: that turns Ctrl-C and a closed pipe into exit codes of its own, in silence.
    command = typer.main.get_command(app)
    with command.make_context("vitmed", list(args)) as context:
        command.invoke(context)


def _exit_code(run: Callable[[], None]) -> int:
    try:
        run()
        return 0
    except typer.Exit as error:
        return error.exit_code
    except VitmedError as error:
        _stderr(f"{'stopped' if isinstance(error, Interrupted) else 'error'}: {error}")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _stderr("stopped: interrupted before there was anything to save")
        return Interrupted.exit_code
    except BrokenPipeError:  # `vitmed predict ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        _stderr("error: no memory left\nFix: --batch-size with a smaller number, or --set data.cache_mb=0")
        return 5
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # a wrong flag: click's, or typer's copy of it
            error.show()
            return int(error.exit_code)
        traceback.print_exc()
        _stderr("error: this is a bug in vitmed; please report it with the lines above")
        return 1


def _stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def _print_table(found: Any, top_k: int, rows: int = 50) -> None:
    from rich.console import Console
    from rich.table import Table

    from vitmed.commands.prediction import ranking

    table = Table(caption=RESEARCH)
    table.add_column("image", overflow="fold")
    table.add_column("class")
    table.add_column("probability", justify="right")
    table.add_column("next", overflow="fold")
    for row in range(min(rows, len(found))):
        first, *others = ranking(found, row, top_k)
        table.add_row(
            _plain(found.paths[row]),
            _plain(first[0]),
            f"{first[1]:.3f}",
            ", ".join(f"{_plain(c)} {p:.3f}" for c, p in others),
        )
    for path, _ in found.errors[: rows - min(rows, len(found))]:
        table.add_row(_plain(path), "not read", "", "")
    width = None if sys.stdout.isatty() else 10_000  # a file or a pipe wants every path on one line
    console = Console(width=width)
    with console.capture() as text:  # not printed by rich, which answers a closed pipe with exit code 1
        console.print(table)
    sys.stdout.write(text.get())
    hidden = len(found) + len(found.errors) - table.row_count
    if hidden > 0:
        sys.stdout.write(f"... and {hidden:,} more; --csv FILE writes all\n")
    sys.stdout.flush()


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text.encode("utf-8", "replace").decode())


def _ui() -> Ui:
    class Terminal(Ui):
        """Rich progress bars on stderr where it is a terminal; plain lines elsewhere."""

        def __init__(self) -> None:
            from rich.console import Console

            self.console = Console(stderr=True, highlight=False)

        def say(self, text: str) -> None:
            self.console.print(_plain(text), soft_wrap=True)

        def warn(self, text: str) -> None:
            self.console.print(f"[yellow]warning:[/yellow] {_plain(text)}", soft_wrap=True)

        @contextlib.contextmanager
        def bar(self, title: str, unit: str = "images") -> Iterator[Advance]:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            if not self.console.is_terminal:
                with super().bar(title, unit) as advance:
                    yield advance
                return
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            with Progress(
                *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self.console, transient=True
            ) as progress:
                task = progress.add_task(title, total=None, text="")

                def advance_bar(done: int, total: int, text: str = "") -> None:
                    speed = progress.tasks[0].speed
                    shown = text or f"{done:,}/{total:,} {unit}" + (f"  {speed:,.0f} {unit}/s" if speed else "")
                    progress.update(task, completed=done, total=total, text=shown)

                yield advance_bar

    return Terminal()
