"""The commands about many runs: training them, joining them, and looking at them together."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

import vitmed
from vitmed.cli.options import (
    FIRST,
    GATES,
    OFFLINE,
    PARALLEL,
    RESUME,
    RUN,
    SETTINGS,
    AsJson,
    Devices,
    argument,
    command,
    flag,
    output,
)
from vitmed.cli.terminal import answer, in_folder, print_diff, print_rows, print_runs, train_json
from vitmed.core.config import Config
from vitmed.core.flags import flags_of


@command({**SETTINGS, **RUN, **RESUME, **PARALLEL, **GATES, **OFFLINE})
def cross_validate(as_json: AsJson = False, **options: Any) -> None:
    """Train and test on every fold in turn, 5 by default; pool what each model says of images it never saw."""
    answer(vitmed.cross_validate, options, as_json, train_json)


@command(
    {
        **output("A new folder; default: ensemble in the only folder of folds.", FIRST),
        "way": flag(str, metavar="mean|greedy", help="How to join them; default mean.", panel=FIRST),
    },
    fields={},
)
def ensemble(
    runs: Annotated[list[Path], typer.Argument(help="Folders of cross-validate, or run folders with the same splits.")],
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Join folds or runs into one model, which every other command takes."""

    def content(found: Any) -> dict[str, Any]:
        return in_folder(found, {"shares": found.shares, "val": found.val.metrics.to_dict()})

    answer(functools.partial(vitmed.ensemble, runs), options, as_json, content)


@command(
    {
        **SETTINGS,
        "trials": flag(int, min=1, metavar="N", help="Trials; default 20, or as many as --time allows.", panel=FIRST),
        "time": flag(str, metavar="TIME", help="How long the whole command may take, such as 2h.", panel=FIRST),
        "space": flag(
            list[str], metavar="SETTING=LOW..HIGH|A,B", panel=FIRST,
            help="A setting to search, instead of the plan's; can be repeated.",
        ),
        "grid": flag(
            list[str], metavar="SETTING=A,B,C", panel=FIRST,
            help="Train every combination of these values instead; can be repeated.",
        ),
        "seeds": flag(str, metavar="A,B,C", help="With --grid, seeds of training; default 0.", panel=FIRST),
        "prune": flag(bool, "--prune/--no-prune", help="Stop poor trials early, as by default.", panel=FIRST),
        **RUN, **RESUME, **PARALLEL, **OFFLINE,
    },
    fields=flags_of(Config, without=("train.time",)),
)  # fmt: skip
def tune(as_json: AsJson = False, devices: Devices = None, **options: Any) -> None:
    """Search for better settings on validation; train the winner once more, and test that once."""
    run = functools.partial(vitmed.tune, devices=devices)
    answer(run, options, as_json, lambda found: in_folder(found, found.to_dict()), print_tune)


def print_tune(found: Any) -> None:
    """The table of the best combinations on stdout."""
    from vitmed.metrics.estimates import value_text

    study, rows = found.study, []
    settings = list(study.of(study.best).values)
    for one in study.ranked[:10]:
        value = "" if one.value is None else f"{one.value:.3f}"
        if one.estimate is not None:
            value = value_text(one.estimate)
        name = f"{one.number} (plan)" if one.number == study.plan else f"{one.number}"
        shown = [str(one.values.get(place, "")) for place in settings]
        value += "" if one.sd is None else f" ± {one.sd:.3f}"
        rows.append([name, *shown, value, f"{one.epochs}", f"{one.seconds:,.0f}", one.reason or one.state])
    titles = "|".join(f">{place.partition('.')[2]}" for place in settings)
    spread = "; ±: standard deviation over seeds" if study.seeds else ""
    print_rows(
        f">trial|{titles}|{study.title} (95 %)|>epochs|>seconds|state", rows,
        f"on validation{spread}; the best {len(rows)} of {len(study.combinations)}. Table and picture: {found.folder}",
    )  # fmt: skip


@command(
    {
        "folder": argument(Path | None, "Folder of the runs; default runs.", "DIR"),
        "sort": flag(
            str, metavar="COLUMN", help="run, kind, data, model, metric, epochs, time or state; default started."
        ),
    },
    fields={},
)
def runs(as_json: AsJson = False, **options: Any) -> None:
    """List runs with their data, model, metric, time and state; folds below their cross-validation."""
    answer(vitmed.runs, options, as_json, lambda found: found.to_dict(), print_runs)


@command(
    {
        "first": argument(Path, "A run folder, a folder of folds, or a checkpoint.", "RUN"),
        "second": argument(Path, "Another one.", "RUN"),
    },
    fields={},
)
def diff(as_json: AsJson = False, **options: Any) -> None:
    """Report what differs between two runs: settings, images, versions, and the result on the same test images."""
    answer(vitmed.diff, options, as_json, lambda found: found.to_dict(), print_diff)


@command({**SETTINGS, **RUN, **RESUME, **PARALLEL, **OFFLINE})
def auto(as_json: AsJson = False, **options: Any) -> None:
    """Find the best model that a time allows: check, compare ways to train, cross-validate, join, test once."""
    answer(vitmed.auto, options, as_json, lambda found: in_folder(found, found.content))


MANY_RUNS: dict[str, typer.Typer] = {
    "auto": auto,
    "cross-validate": cross_validate,
    "ensemble": ensemble,
    "tune": tune,
    "runs": runs,
    "diff": diff,
}
