"""Output in the terminal: lines, progress bars, tables and JSON, also when a gate fails."""

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
    """Run a command that ends in an evaluation, and print its JSON even if a gate is not met."""
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
    """Raises DataError if images could not be read, with the first twenty."""
    if found.errors:
        problems = "\n".join(problem for _, problem in found.errors[:20])
        raise DataError(
            f"{len(found.errors):,} of {len(found) + len(found.errors):,} images could not be read:\n{problems}"
        )


def print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_rich(*parts: Any, width: int = 10_000) -> None:
    """Print tables and lines of markup; off a terminal every path stays on one line of up to `width` characters."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else width, highlight=False)
    with console.capture() as text:  # rich would answer a closed pipe with exit code 1
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, str))
    sys.stdout.write(text.get())
    sys.stdout.flush()


def print_table(found: Any, top_k: int, rows: int = 50) -> None:
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
        taken = found.classes[found.predicted[row]]  # with a threshold, not always the likeliest
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
    hidden = len(found) + len(found.errors) - table.row_count
    print_rich(table, *([f"... and {hidden:,} more; --csv FILE writes all"] if hidden > 0 else []))


def print_check(found: Any) -> None:
    """The table of splits and classes, then the findings, worst first."""
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
    lines = []
    for finding in found.findings:
        colour = {"error": "red", "warning": "yellow", "note": "cyan"}[finding.severity]
        lines.append(f"[{colour}]{finding.severity}[/]: {plain(finding.problem)} [dim]({finding.code})[/]")
        lines += [f"    {plain(file)}" for file in finding.files[:3]]
        if finding.count > 3:
            lines.append(f"    ... {finding.count:,} in all")
        lines.append(f"    fix: {plain(finding.fix)}")
    print_rich(table, *(lines or ["nothing found"]))


def plain(text: str) -> str:
    from rich.markup import escape

    return escape(text.encode("utf-8", "replace").decode())


def print_comparison(found: Comparison) -> None:
    """A row for each pair and number; then the verdict of each pair, the last line that of the first two."""
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
    others = [pair.verdict for pair in found.content.pairs if pair.verdict != found.verdict]
    print_rich(table, *map(plain, [*others, found.verdict]))
