"""Output in the terminal: lines, progress bars, tables and JSON, also when a gate fails."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vitmed.core.errors import DataError, VitmedError
from vitmed.core.text import lines_of
from vitmed.core.ui import Advance, Ui

if TYPE_CHECKING:  # loads torch
    from vitmed.commands.compare import Comparison


RESEARCH = "Research use only; not a medical device."
TYPER: dict[str, Any] = {  # of every typer application
    "rich_markup_mode": None,
    "no_args_is_help": True,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 120},
}


class Terminal(Ui):
    """Rich progress bars on stderr where it is a terminal; plain lines elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        self.console.print(plain(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(f"[yellow]warning:[/yellow] {plain(text)}", soft_wrap=True)

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


def answer(
    run: Callable[..., Any],
    options: dict[str, Any],
    as_json: bool,
    content: Callable[[Any], dict[str, Any]],
    show: Callable[[Any], None] = lambda found: None,
) -> None:
    """Run a command and print its result, also if a gate is not met.

    Args:
        run: the Python function; options: its keywords.
        content: the result as JSON.
        show: prints the result without `as_json`.
    """
    found = None
    try:
        found = run(**options, ui=Terminal())
    except VitmedError as error:
        found = getattr(error, "result", None)
        raise
    finally:
        if found is not None and as_json:
            print_json(content(found))
        elif found is not None:
            show(found)


def train_json(result: Any) -> dict[str, Any]:
    val = result.val and result.val.metrics.to_dict()
    return {"run": str(result.folder), "val": val, "test": result.test.metrics.to_dict()}


def in_folder(found: Any, content: dict[str, Any]) -> dict[str, Any]:
    return {"folder": str(found.folder), **content}


def refuse_unread(found: Any) -> None:
    """Raises DataError if images could not be read, with the first twenty."""
    if found.errors:
        problems = lines_of([problem for _, problem in found.errors], 20)
        raise DataError(
            f"{len(found.errors):,} of {len(found) + len(found.errors):,} images could not be read:\n{problems}"
        )


def print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_rows(
    columns: str, rows: Iterable[Sequence[str]], *lines: str, caption: str = RESEARCH, width: int = 10_000
) -> None:
    """Print a table, then lines of markup.

    Args:
        columns: the titles, separated by "|"; one that begins with ">" is aligned to the right.
        rows: the text of the cells.
        width: off a terminal, the most characters of a line.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(caption=caption)
    for title in columns.split("|"):
        table.add_column(title.removeprefix(">"), justify="right" if title[0] == ">" else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(plain, row))
    console = Console(width=None if sys.stdout.isatty() else width, highlight=False)
    with console.capture() as text:  # rich would answer a closed pipe with exit code 1
        for part in (table, *lines):
            console.print(part, soft_wrap=isinstance(part, str))
    sys.stdout.write(text.get())
    sys.stdout.flush()


def plain(text: str) -> str:
    from rich.markup import escape

    return escape(text.encode("utf-8", "replace").decode())


def print_predictions(found: Any, top_k: int, most: int = 50) -> None:
    """A row for each image with its class, probability and runners-up; then those that could not be read."""
    from vitmed.commands.predict import ranking

    extra = [name for name in ("set", "answer") if name in found.columns]
    rows = []
    for i in range(min(most, len(found))):
        taken = found.classes[found.predicted[i]]  # with a threshold, not always the likeliest
        others = ", ".join(f"{name} {p:.3f}" for name, p in ranking(found, i, top_k) if name != taken)
        rows.append(
            [found.paths[i], taken, f"{found.confidence[i]:.3f}", others, *(found.columns[c][i] for c in extra)]
        )
    rows += [[path, "not read"] for path, _ in found.errors[: most - len(rows)]]
    hidden = len(found) + len(found.errors) - len(rows)
    more = [f"... and {hidden:,} more; --csv FILE writes all"] if hidden > 0 else []
    print_rows("|".join(["image", "class", ">probability", "next", *extra]), rows, *more)


def print_check(found: Any, most: int = 50) -> None:
    """The table of splits and classes, then the findings, worst first."""
    rows, table = [], found.content["table"]
    for row in table[:most]:
        patients = "?" if row["patients"] is None else f"{row['patients']:,}"
        rows.append(
            [row["split"] or "-", row["class"] or "-", f"{row['images']:,}", patients, f"{row['unreadable']:,}"]
        )
    hidden = len(table) - most
    lines = [f"... and {hidden:,} more rows, in data_report.json"] if hidden > 0 else []
    for finding in found.findings:
        colour = {"error": "red", "warning": "yellow", "note": "cyan"}[finding.severity]
        lines.append(f"[{colour}]{finding.severity}[/]: {plain(finding.problem)} [dim]({finding.code})[/]")
        lines += [f"    {plain(file)}" for file in finding.files[:3]]
        if finding.count > 3:
            lines.append(f"    ... {finding.count:,} in all")
        lines.append(f"    fix: {plain(finding.fix)}")
    if not found.findings:
        lines.append("nothing found")
    print_rows("split|class|>images|>patients|>not readable", rows, *lines)


def print_comparison(found: Comparison) -> None:
    """A row for each pair and number; then the verdict of each pair, the last line that of the first two."""
    rows = []
    for pair in found.content.pairs:
        for name in ("auroc", "balanced_accuracy", "accuracy"):
            gap, test = pair.difference[name], None if name == "balanced_accuracy" else pair.tests[name]
            value = "undefined" if gap.value is None else f"{gap.value:+.3f}"
            interval = "" if gap.low is None else f"{gap.low:+.3f} to {gap.high:+.3f}"
            known = (None, None) if test is None else (test.p, test.p_holm)
            ps = ["" if p is None else "<0.0001" if p < 1e-4 else f"{p:.4f}" for p in known]
            rows.append([pair.first, pair.second, name.replace("_", " "), value, interval, *ps])
    others = [pair.verdict for pair in found.content.pairs if pair.verdict != found.verdict]
    columns = "first|second|number|>difference|>95 % interval|>p|>p, Holm"
    print_rows(columns, rows, *map(plain, [*others, found.verdict]))


def print_datasets(datasets: list[dict[str, Any]]) -> None:
    rows, lines = [], []
    for row in datasets:
        classes = "" if row["classes"] is None else str(row["classes"])
        fetched = "set by set" if len(row["sets"]) > 1 else "yes" if row["fetched"] else "by hand"
        rows.append(
            [row["name"], row["title"], f"{row['images']:,}", classes, row["licence"], row["patients"], fetched]
        )
        if len(row["sets"]) > 1:
            lines.append(f"{row['name']}, set by set: {', '.join(sorted(row['sets']))}")
    caption = "vitmed data get NAME DIR; docs/datasets.md"
    print_rows("name|title|>images|>classes|licence|patients|fetched", rows, *lines, caption=caption, width=200)


def print_weights(weights: list[dict[str, Any]]) -> None:
    rows = []
    for row in weights:
        licence = row["licence"] + (" (token)" if row["gated"] else "")
        size, here = f"{row['size'] / 1e6:,.0f}", "yes" if row["here"] else "no"
        rows.append([row["name"], row["model"], row["kind"], size, str(row["image_size"]), licence, here])
    caption = "MB: of the file. vitmed weights fetch NAME; docs/weights.md"
    print_rows("name|model|trained|>MB|>px|licence|here", rows, caption=caption, width=200)
