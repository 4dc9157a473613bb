"""What the terminal shows: lines, progress bars, tables, JSON; and the answer of a gate."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from vitmed.cli.app import RESEARCH
from vitmed.core.errors import DataError, GateError
from vitmed.core.ui import Advance, Ui

if TYPE_CHECKING:  # loads torch
    from vitmed.commands.compare import Comparison


def ui() -> Ui:
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

    return Terminal()


def evaluated(run: Callable[[], Any], as_json: bool, content: Callable[[Any], dict[str, Any]]) -> None:
    """Run a command that ends in an evaluation; its JSON is printed also where a gate is not met."""
    try:
        result = run()
    except GateError as error:
        if as_json:
            print_json(content(error.result))
        raise
    if as_json:
        print_json(content(result))


def train_json(result: Any) -> dict[str, Any]:
    val = result.val and result.val.metrics.to_dict()
    return {"run": str(result.folder), "val": val, "test": result.test.metrics.to_dict()}


def refuse_unread(found: Any) -> None:
    """Raises DataError where images of predictions could not be read, naming the first twenty."""
    if found.errors:
        problems = "\n".join(problem for _, problem in found.errors[:20])
        raise DataError(f"{len(found.errors):,} of {len(found) + len(found.errors):,} images not read:\n{problems}")


def print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_table(found: Any, top_k: int, rows: int = 50) -> None:
    from rich.console import Console
    from rich.table import Table

    from vitmed.commands.predict import ranking

    table = Table(caption=RESEARCH)
    table.add_column("image", overflow="fold")
    table.add_column("class")
    table.add_column("probability", justify="right")
    table.add_column("next", overflow="fold")
    shown = [name for name in ("set", "answer") if name in found.columns]
    for name in shown:
        table.add_column(name, overflow="fold")
    for row in range(min(rows, len(found))):
        taken = found.classes[found.predicted[row]]  # with a threshold not always the likeliest
        others = [(name, p) for name, p in ranking(found, row, top_k) if name != taken]
        table.add_row(
            plain(found.paths[row]),
            plain(taken),
            f"{found.confidence[row]:.3f}",
            ", ".join(f"{plain(c)} {p:.3f}" for c, p in others),
            *(plain(found.columns[name][row]) for name in shown),
        )
    for path, _ in found.errors[: rows - min(rows, len(found))]:
        table.add_row(plain(path), "not read", "", "", *("" for _ in shown))
    width = None if sys.stdout.isatty() else 10_000  # a file or a pipe wants every path on one line
    console = Console(width=width)
    with console.capture() as text:  # not printed by rich, which answers a closed pipe with exit code 1
        console.print(table)
    sys.stdout.write(text.get())
    hidden = len(found) + len(found.errors) - table.row_count
    if hidden > 0:
        sys.stdout.write(f"... and {hidden:,} more; --csv FILE writes all\n")
    sys.stdout.flush()


def print_check(found: Any) -> None:
    """The table of splits and classes, then the findings, worst first."""
    from rich.console import Console
    from rich.table import Table

    table = Table(caption=RESEARCH)
    for name in ("split", "class"):
        table.add_column(name, overflow="fold")
    for name in ("images", "patients", "not readable"):
        table.add_column(name, justify="right")
    for row in found.content["table"]:
        patients = "?" if row["patients"] is None else f"{row['patients']:,}"
        names = [plain(row[key] or "-") for key in ("split", "class")]
        table.add_row(*names, f"{row['images']:,}", patients, f"{row['unreadable']:,}")
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as text:
        console.print(table)
        for finding in found.findings:
            colour = {"error": "red", "warning": "yellow", "note": "cyan"}[finding.severity]
            console.print(f"[{colour}]{finding.severity}[/]: {plain(finding.problem)} [dim]({finding.code})[/]")
            for file in finding.files[:3]:
                console.print(f"    {plain(file)}", soft_wrap=True)
            if finding.count > 3:
                console.print(f"    ... {finding.count:,} in all")
            console.print(f"    fix: {plain(finding.fix)}")
        if not found.findings:
            console.print("nothing was found")
    sys.stdout.write(text.get())
    sys.stdout.flush()


def plain(text: str) -> str:
    from rich.markup import escape

    return escape(text.encode("utf-8", "replace").decode())


def print_comparison(found: Comparison) -> None:
    """A row for each pair and number; then the verdict of each pair, the last line that of the first two."""
    from rich.console import Console
    from rich.table import Table

    table = Table(caption=RESEARCH)
    for name in ("first", "second", "number"):
        table.add_column(name, overflow="fold")
    for name in ("difference", "95 % interval", "p", "p, Holm"):
        table.add_column(name, justify="right")
    for pair in found.content.pairs:
        for name in ("auroc", "balanced_accuracy", "accuracy"):
            gap, test = pair.difference[name], None if name == "balanced_accuracy" else pair.tests[name]
            value = "undefined" if gap.value is None else f"{gap.value:+.3f}"
            interval = "" if gap.low is None else f"{gap.low:+.3f} to {gap.high:+.3f}"
            known = (None, None) if test is None else (test.p, test.p_holm)
            ps = ["" if p is None else "<0.0001" if p < 1e-4 else f"{p:.4f}" for p in known]
            table.add_row(plain(pair.first), plain(pair.second), name.replace("_", " "), value, interval, *ps)
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as text:
        console.print(table)
    sys.stdout.write(text.get())
    for pair in found.content.pairs:
        if pair.verdict != found.verdict:
            sys.stdout.write(pair.verdict + "\n")
    sys.stdout.write(found.verdict + "\n")
    sys.stdout.flush()
