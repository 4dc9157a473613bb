"""Output in the terminal: lines, progress bars, tables and JSON, also when a gate fails."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from vitmed.core.errors import DataError, VitmedError
from vitmed.core.messages import Advance, Ui, listener
from vitmed.core.text import MEMBERS, NOTICE, counted, grouped, listed, visible

if TYPE_CHECKING:  # loaded late
    from pathlib import Path

    from rich.text import Text

    from vitmed.commands.compare import Comparison
    from vitmed.commands.runs import RunList
    from vitmed.studies.difference import RunDiff


FRAME, SHORTEST = 2, 16  # characters around a cell; of a path
MOST, FEW, LINES = 50, 10, 8  # rows of a long table, of predictions and problems without --verbose
STARTED: ContextVar[float] = ContextVar("STARTED")  # when the process started, on `time.monotonic`
TYPER: dict[str, Any] = {  # of every typer application
    "rich_markup_mode": None,
    "no_args_is_help": True,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 120},
}


class Terminal(Ui):
    """Rich progress bars on stderr where it is a terminal that can draw them; plain lines elsewhere."""

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        from rich.console import Console

        self.console, self.quiet, self.verbose = Console(stderr=True, highlight=False), quiet, verbose
        self.began = STARTED.get(None)

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(plain(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(plain("warning:", "yellow"), plain(text), soft_wrap=True)

    @contextlib.contextmanager
    def bar(self, title: str, unit: str = "images") -> Iterator[Advance]:
        if self.quiet or not self.console.is_terminal or self.console.is_dumb_terminal:
            with super().bar(title, unit) as advance:
                yield advance
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        own = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[text]}", markup=False)
        columns = own[0], BarColumn(), own[1], TimeElapsedColumn(), TimeRemainingColumn()
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(title, total=None, text="")

            def advance_bar(done: int, total: int, text: str = "") -> None:
                speed = progress.tasks[0].speed
                shown = text or f"{done:,}/{total:,} {unit}" + (f"  {speed:,.0f} {unit}/s" if speed else "")
                progress.update(task, completed=done, total=total, text=visible(shown))

            yield advance_bar


def answer(
    run: Callable[..., Any],
    options: dict[str, Any],
    as_json: bool,
    content: Callable[[Any], dict[str, Any]],
    show: Callable[[Any], None] = lambda result: None,
) -> Any:
    """Run a command, print its result (`content` as JSON, else by `show`), also if a gate is not met, and return it."""
    result = None
    try:
        result = run(*options.pop("results", ()), **options)  # those of compare are named by their places
    except VitmedError as error:
        result = getattr(error, "result", None)
        raise
    finally:
        if result is not None and as_json:
            print_json(content(result))
        elif result is not None:
            show(result)
    return result


def train_json(result: Any) -> dict[str, Any]:
    val, test = (found and found.metrics.to_dict() for found in (result.val, result.test))
    return {"run": str(result.folder), "val": val, "test": test}


def written_json(result: Any) -> dict[str, Any]:
    return {"file": str(result.file), "images": result.read, "unreadable": len(result.errors)}


def in_folder(result: Any, content: dict[str, Any]) -> dict[str, Any]:
    return {"folder": str(result.folder), **content}


def refuse_unread(read: int, errors: Sequence[tuple[str, str]]) -> None:
    """Raises DataError if images could not be read, with the first twenty, and a cause that several share once."""
    if errors:
        causes = grouped((text.replace(path, "\0", 1), path) for path, text in errors[:20])
        lines = [cause.replace("\0", ",\n".join(paths), 1) for cause, paths in causes.items()]
        problems = "\n".join(lines) + f"\n... and {len(errors) - 20:,} more" * (len(errors) > 20)
        of = counted(read + len(errors), "image")
        raise DataError(f"{len(errors):,} of {of} could not be read:\n{problems}")


def print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def print_rows(
    columns: str, rows: Iterable[Sequence[str]], *lines: str | Text, caption: str = NOTICE, width: int = 10_000
) -> None:
    """Print a table, then lines. No word is broken: where a table is too wide, each row is some lines.

    Args:
        columns: the titles, separated by "|"; ">" before one: its cells are aligned to the right; "/": they are
            paths, of which a narrow terminal shows the end.
        rows: the text of the cells; the last cells of a row may be missing.
        lines: markup, after the caption.
        caption: a line below the table.
        width: off a terminal and without COLUMNS, the most characters of a line.
    """
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    is_sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(width=None if is_sized else width, highlight=False)
    titles, cells = columns.split("|"), [[visible(text) for text in row] for row in rows]
    inside = console.width - FRAME * len(titles)
    texts = [[title.lstrip(">/"), *(row[i] for row in cells if i < len(row))] for i, title in enumerate(titles)]
    natural = [max(map(cell_len, column)) for column in texts]
    narrow = [max(cell_len(word) for text in column for word in text.split()) for column in texts]
    paths = [i for i, title in enumerate(titles) if title[0] == "/"]
    for i in paths:
        beside = inside - sum(natural) + natural[i]
        narrow[i] = natural[i] = min(natural[i], max(SHORTEST, beside))
    fits = sum(narrow) <= inside
    for i in paths:
        room = narrow[i] if fits else console.width
        for row in cells:
            if len(row[i]) > room:  # the end of a long path tells images apart: `…/cells/17.png`
                row[i] = "…" + row[i][len(row[i]) - room + 1 :]
    while fits and sum(natural) > inside:  # rich alone would cut words
        natural[max(range(len(titles)), key=lambda i: (natural[i] > narrow[i], natural[i]))] -= 1
    if fits:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for title, size in zip(titles, natural, strict=True):
            table.add_column(title.lstrip(">/"), justify="right" if title[0] == ">" else "left", width=size)
        for row in cells:
            table.add_row(*map(plain, row))
        console.print(table)
    else:  # a narrow terminal: each row as its first cell, and below it the others with their titles
        wrapped = []
        for first, *others in cells:
            named = zip(titles[1:], others, strict=False)
            about = " · ".join(f"{title.lstrip('>/')} {text}" for title, text in named if text)
            wrapped += wrap(first, console.width, break_on_hyphens=False)
            wrapped += wrap(about, console.width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        console.print(plain("\n".join(wrapped)))
    for line in (caption, *lines):
        console.print(plain(line) if isinstance(line, str) else line, soft_wrap=True)


def plain(text: str, style: str = "") -> Text:
    """Text that rich prints as it is, perhaps in a colour: without markup, emoji and escape sequences."""
    from rich.text import Text

    return Text(visible(text), style)


def print_predictions(predictions: Any, top_k: int, table: Path | None, policy: Any) -> None:
    """Print a row for each image with its class, probability and runners-up; then those that could not be read, and how
    the `policy` decides. `table`: the file that holds all of them."""
    from vitmed.inference.load import Answer, answer_columns
    from vitmed.metrics.predictions_csv import ANSWER, BETWEEN, NO, SET

    extra = [name for name in (SET, ANSWER) if name in predictions.columns]
    rows = []
    most = MOST if listener().verbose else FEW
    for i in range(min(most, len(predictions))):
        cells = [predictions.columns[name][i] for name in extra]
        if predictions.members is not None:
            cells[0] = listed(predictions.set_of(i), MEMBERS, BETWEEN)
        rows.append([predictions.paths[i], *Answer.of(predictions, i).cells(top_k), *cells])
    rows += [[path, "not read"] for path, _ in predictions.errors[: most - len(rows)]]
    hidden = len(predictions) + len(predictions.errors) - len(rows)
    where = "--csv FILE writes all" if table is None else f"all: {table}"
    more: list[str | Text] = [f"... and {hidden:,} more; {where}"] * (hidden > 0)
    if reasons := Counter(cell for cell in predictions.columns.get(ANSWER, ()) if cell.startswith(NO)):
        answered, (why, count) = len(predictions) - reasons.total(), reasons.most_common(1)[0]
        more.append(plain(f"{answered:,} of {counted(len(predictions), 'image')} answered; {why!r} for {count:,}"))
    more += [plain(f"decision policy: {policy.summary}")] if policy else []
    print_rows("|".join(["/image", *answer_columns(predictions), *extra]), rows, *more)


def print_check(checked: Any) -> None:
    """Print the table of splits and classes, then the problems, worst first; without --verbose only that with files."""
    rows, table = [], checked.content["table"]
    for row in table[:MOST]:
        patients = "?" if row["patients"] is None else f"{row['patients']:,}"
        counts = [f"{row['images']:,}", patients, f"{row['unreadable']:,}"]
        rows.append([row["split"] or "-", row["class"] or "-", *counts])
    hidden = len(table) - MOST
    lines = [plain(f"... and {hidden:,} more rows, in data_report.json")] if hidden > 0 else []
    lines += [plain(text)] if (text := checked.content["splits"]) else []
    whole = len(checked.problems) if listener().verbose else 1
    for number, problem in enumerate(checked.problems[: max(whole, LINES)]):
        colour = {"error": "red", "warning": "yellow", "note": "cyan"}[problem.severity]
        lines.append(plain(problem.severity, colour) + plain(f": {problem.text}") + plain(f" ({problem.code})", "dim"))
        if number >= whole:
            lines += [plain(f"    fix: {problem.fix}")] * problem.code.startswith("near_copies")
            continue
        lines += [plain(f"    {file}") for file in problem.files[:3]]
        if problem.count > 3:
            lines.append(plain(f"    ... {problem.count:,} in all"))
        lines.append(plain(f"    fix: {problem.fix}"))
    if (more := len(checked.problems) - max(whole, LINES)) > 0:
        lines.append(plain(f"... and {counted(more, 'problem')} more, in the report"))
    if whole < len(checked.problems):
        lines.append(plain("files and fixes: in the report, or --verbose"))
    print_rows("split|class|>images|>patients|>not readable", rows, *(lines or [plain("nothing found")]))


def print_comparison(comparison: Comparison) -> None:
    """Print the numbers of each model and the differences; then the verdict of each pair, the best two first."""
    from vitmed.decisions.targets import TARGETS
    from vitmed.metrics.estimates import value_text
    from vitmed.report.comparison_page import ComparisonTables

    content, tables = comparison.content, ComparisonTables(comparison.content)
    others = [pair.verdict for pair in content.pairs if pair.verdict != comparison.verdict]
    kind = TARGETS[content.kind]
    for columns, rows, lines in tables.for_terminal():
        print_rows(columns, rows, *lines, caption="")
    for group in content.seeds:
        rows = []
        for name, spread in ((name, group.numbers.get(name)) for name in kind.headline[:3]):
            if spread:
                interval = "" if spread.low is None else f"{spread.low:.3f} to {spread.high:.3f}"
                rows.append([kind.metrics[name].phrase, f"{spread.mean:.3f}", f"{spread.sd:.3f}", interval])
        of = listed([tables.letters[name] for name in group.seeds])
        columns = f"number, {of}|>mean|>SD over seeds|>95 % interval of one run"
        print_rows(columns, rows, caption="")
        others += [group.text] * (group.text != comparison.verdict)
    if content.kind == "classes" and len(content.classes) > 2:
        others.append("one class against the rest: evaluate each with --positive CLASS, then compare these reports")
    for line in (NOTICE, comparison.verdict, *others):
        sys.stdout.write(f"{visible(line)}\n")
    if comparison.acceptance is not None:
        judged = comparison.acceptance.judged
        rows = [[row.criterion.text, row.where, row.why or value_text(row.found), row.state] for row in judged]
        print_rows("criterion|for|>found|result", rows, comparison.acceptance.verdict)


def print_tune(result: Any) -> None:
    """Print the table of the best combinations."""
    from vitmed.metrics.estimates import value_text

    study, rows = result.study, []
    settings = list(study.of(study.best).values)
    for trial in study.ranked[:10]:
        value = "" if trial.value is None else f"{trial.value:.3f}"
        if trial.estimate is not None:
            value = value_text(trial.estimate)
        name = f"{trial.number} (plan)" if trial.number == study.plan else f"{trial.number}"
        shown = [str(trial.values.get(place, "")) for place in settings]
        value += "" if trial.sd is None else f" ± {trial.sd:.3f}"
        rows.append([name, *shown, value, f"{trial.epochs}", f"{trial.seconds:,.0f}", trial.reason or trial.state])
    titles = "|".join(f">{place.partition('.')[2]}" for place in settings)
    spread = "; ±: standard deviation over seeds" if study.seeds else ""
    failed = sum(combination.state == "failed" for combination in study.combinations)
    best = f"the best {len(rows)} of {len(study.combinations)}{f', {failed} failed' if failed else ''}"
    caption = f"on validation{spread}; {best}. Table and picture: {result.folder}"
    print_rows(f">trial|{titles}|{study.title} (95 %)|>epochs|>seconds|state", rows, caption)


def print_runs(listed_runs: RunList) -> None:
    """Print a row for each run, those inside it indented below it; then why some are not finished."""
    from vitmed.studies.run_list import COLUMNS

    if not listed_runs.runs:
        sys.stdout.write(f"{plain(str(listed_runs.folder))}: no runs\n")
        return
    rows = [[text(run) for text in COLUMNS.values()] for run in listed_runs.runs]
    for run, row in zip(listed_runs.runs, rows, strict=True):
        row[0] = "  " * (run.parent is not None) + row[0]
    lines = [f"{run.run}: {run.state}, {run.problem}" for run in listed_runs.runs if run.problem]
    hidden = [f"... and {len(lines) - 10:,} more, in --json"] * (len(lines) > 10)
    titles = "|".join(COLUMNS).replace("run|", "/run|", 1).replace("|epochs|time ", "|>epochs|>time ")
    print_rows(titles, rows, *lines[:10], *hidden, caption=listed_runs.summary, width=200)


def print_diff(diff: RunDiff) -> None:
    """Tables of what differs, images with the first paths of each kind, and last the sentences."""
    for what, differences in (("setting", diff.settings), ("version or machine", diff.environment or [])):
        rows = [
            [gap.name, *("none" if value is None else str(value) for value in (gap.first, gap.second)), gap.meaning]
            for gap in differences
        ]
        if rows:
            meaning = "|meaning" * any(row[3] for row in rows)
            print_rows(f"{what}|{diff.first}|{diff.second}{meaning}", rows, caption="", width=200)
    if diff.images is not None and diff.images.counts:
        changes = [[what, f"{n:,}", listed(diff.images.files[what], 3)] for what, n in diff.images.counts.items()]
        print_rows("images|>count|the first of them", changes, caption="", width=200)
    numbers = [metric.text if metric else "none" for metric in diff.metrics]
    print_rows(f"first number|{diff.first}|{diff.second}", [["", *numbers]], caption="", width=200)
    for line in (*diff.notes, diff.verdict):
        sys.stdout.write(f"{visible(line)}\n")


def print_datasets(datasets: list[dict[str, Any]]) -> None:
    rows, lines = [], []
    for row in datasets:
        classes = "" if row["classes"] is None else str(row["classes"])
        way = "set by set" if len(row["sets"]) > 1 else "data get" if row["downloadable"] else "by hand"
        rows.append([row["name"], row["title"], f"{row['images']:,}", classes, row["licence"], row["patients"], way])
        if len(row["sets"]) > 1:
            lines.append(f"{row['name']}, set by set: {', '.join(sorted(row['sets']))}")
    caption = "vitmed data get NAME DIR; docs/datasets.md"
    print_rows("name|title|>images|>classes|licence|patients|to get it", rows, *lines, caption=caption, width=200)


def print_weights(weights: list[dict[str, Any]]) -> None:
    rows = []
    for row in weights:
        licence = row["licence"] + (" (token)" if row["gated"] else "")
        size, here = f"{row['size'] / 1e6:,.0f}" if row["size"] else "", "yes" if row["here"] else "no"
        allowed, seen = {True: "yes", False: "no", None: "unclear"}[row["commercial"]], ", ".join(row["seen"])
        about = [row["name"], row["model"], row["kind"], size, str(row["image_size"]), licence]
        rows.append([*about, allowed, here, seen])
    caption = "MB: of the file. vitmed weights fetch NAME; docs/weights.md"
    print_rows("name|model|trained|>MB|>px|licence|commercial|here|made with", rows, caption=caption, width=240)
