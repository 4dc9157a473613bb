"""The page of `vitmed runs --html`: the table with a small curve for each run, in one file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from vitmed.core.text import NOTICE, now
from vitmed.report.page import FOLDER, csp_hash, fill
from vitmed.report.run_list import COLUMNS, STATES, Curve, ListedRun, summary_of

WIDTH, HEIGHT, EDGE = 120, 28, 3  # of a curve, px, and the margin in it
POINTS = 120  # most points of a curve
FILES = "page.css", "runs_page.css", "runs_page.js"


def runs_page(folder: str, runs: Sequence[ListedRun], sort: str) -> str:
    """The text of the page: the rows as they are ordered, which its script orders by another column.

    Args:
        folder: name of the folder of the runs; no path.
        sort: the column in `COLUMNS` that the runs are in the order of.
    """
    ranks = {name: _ranks(name, runs) for name in COLUMNS}
    blocks: list[list[ListedRun]] = []  # a run, and those inside it
    for run in runs:
        if run.parent is None:
            blocks.append([])
        blocks[-1].append(run)
    folds = {run.run: [one.curve for one in runs if one.parent == run.run and one.curve] for run in runs}
    page, own, script = (Markup((FOLDER / name).read_text(encoding="utf-8")) for name in FILES)
    style = page + own
    return fill(
        "runs_page.html.j2", folder=folder, blocks=blocks, columns=COLUMNS, ranks=ranks, sort=sort,
        curves={run.run: _drawn([run.curve] if run.curve else folds[run.run]) for run in runs},
        summary=summary_of(runs), used={state: text for state, text in STATES.items() if state in _states(runs)},
        notice=NOTICE, made=now()[:16].replace("T", " "), style=style, script=script,
        policy={"style": csp_hash(style), "script": csp_hash(script)},
    )  # fmt: skip


def _states(runs: Iterable[ListedRun]) -> set[str]:
    return {run.state for run in runs}


def _ranks(column: str, runs: Sequence[ListedRun]) -> dict[str, int | str]:
    """Run -> its place by a column, which equal runs share; "" where it is not known. The script sorts by it."""
    order = COLUMNS[column].order
    known = {run.run: key for run in runs if (key := order(run)) is not None}
    places: dict[Any, int] = {key: i for i, key in enumerate(sorted(set(known.values())))}
    return {run.run: places[known[run.run]] if run.run in known else "" for run in runs}


def _drawn(curves: Sequence[Curve]) -> dict[str, Any] | None:
    """Lines of points in a box of `WIDTH` x `HEIGHT`, a dot at the epoch of best.pt, and the same in words.

    The curves of folds share the box.
    """
    values = [value for curve in curves for value in curve.values if value is not None]
    if not values:
        return None
    low, high = min(values), max(values)
    epochs = max(len(curve.values) for curve in curves)

    def point(epoch: int, value: float) -> str:
        x = EDGE + (WIDTH - 2 * EDGE) * epoch / max(1, epochs - 1)
        y = EDGE + (HEIGHT - 2 * EDGE) * ((high - value) / (high - low) if high > low else 0.5)
        return f"{x:.1f},{y:.1f}"

    lines = []
    for curve in curves:
        step = -(-len(curve.values) // POINTS)
        shown = [i for i, value in enumerate(curve.values) if value is not None and (i % step == 0 or i == curve.kept)]
        lines.append(" ".join(point(i, curve.values[i] or 0.0) for i in shown))
    title, kept = curves[0].title, curves[0].kept if len(curves) == 1 else None
    text = f"{title}, {epochs} epochs, {low:.3g} to {high:.3g}"
    dot = None
    if kept is not None and (best := curves[0].values[kept]) is not None:
        text += f"; {best:.3g} in epoch {kept + 1}, which is kept"
        dot = point(kept, best).split(",")
    return {"lines": lines, "dot": dot, "text": text, "width": WIDTH, "height": HEIGHT}
