"""The results of medical.py: lines of a file, tables and a picture."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitmed.core.files import read_json_lines
from vitmed.report.plots.drawing import BLUE, COLOURS, GREY, ORANGE, RED, add_grid, png

METRICS = {"auroc": "AUROC", "balanced_accuracy": "balanced accuracy", "accuracy": "accuracy", "log_loss": "log loss"}
PARTS = ("val", "shift", "corrupted")
TITLES = {
    "val": "validation",
    "shift": "shift: the brightest fifth, or the largest files",
    "corrupted": "corrupted validation images",
    "test": "test, scored once",
}
PEER = "resnet18"  # the contender that differences are taken to
BETTER_OF = (PEER, "timm")  # what the plan has to reach
PINNED = {"plan": BLUE, PEER: RED, "timm": ORANGE, "colours": GREY}

Line = dict[str, Any]  # of a run: its key, its cost, and part -> metric -> value, low, high


class Key(NamedTuple):
    """Which run; `minutes` is the limit of a shortened one."""

    set: str
    contender: str
    seed: int
    minutes: float | None


def add_line(work: Path, line: Line, name: str = "results.jsonl") -> None:
    """Append a run; a line that a kill has cut off stays alone."""
    file = work / name
    torn = file.is_file() and not file.read_bytes().endswith(b"\n")
    with file.open("a", encoding="utf-8") as stream:
        stream.write("\n" * torn + json.dumps(line) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def finished_lines(work: Path) -> dict[Key, Line]:
    """The finished runs, each with the parts that were scored later."""
    found: dict[Key, Line] = {}
    for line in read_json_lines(work / "results.jsonl"):
        key = Key(*(line[name] for name in Key._fields))
        known = found.setdefault(key, line)
        known["parts"].update(line["parts"])
    return found


def finished_views(work: Path) -> dict[Key, Line]:
    """The runs whose views were compared."""
    lines = read_json_lines(work / "views.jsonl")
    return {Key(*(line[name] for name in Key._fields)): line["parts"] for line in lines}


def tell_views(lines: Mapping[Key, Line]) -> None:
    """Every contender with every kind of views, and what they gain over the image alone in the same run."""
    sets, contenders = names_of(lines)
    for part in ("val", "shift"):
        print(f"\n{TITLES[part]}; mean over the runs, in brackets the gain over one view ± its standard error\n")
        print(f"| contender | runs | views | {' | '.join(METRICS.values())} | AUROC by set: {', '.join(sets)} |")
        print("|---" * (len(METRICS) + 4) + "|")
        for contender in contenders:
            runs = {key: line[part] for key, line in lines.items() if key.contender == contender}
            for views in next(iter(runs.values())):
                cells = [gain_text(list(runs.values()), views, metric) for metric in METRICS]
                of_set = [[run for key, run in runs.items() if key.set == name] for name in sets]
                each = [f"{statistics.mean(gains(some, views, 'auroc')):+.3f}" if some else "" for some in of_set]
                print(f"| {contender} | {len(runs)} | {views} | {' | '.join(cells)} | {', '.join(each)} |")


def gains(runs: Sequence[Line], views: str, metric: str) -> list[float]:
    """Of each run the difference to one view."""
    return [run[views][metric] - run["one"][metric] for run in runs]


def gain_text(runs: Sequence[Line], views: str, metric: str) -> str:
    """`0.812 (+0.004 ± 0.002)`: the mean, its gain over one view, and of several runs the standard error."""
    text, found = f"{statistics.mean(run[views][metric] for run in runs):.3f}", gains(runs, views, metric)
    error = f" ± {statistics.stdev(found) / len(found) ** 0.5:.3f}" if len(found) > 1 else ""
    return text if views == "one" else f"{text} ({statistics.mean(found):+.3f}{error})"


def names_of(lines: Iterable[Key]) -> tuple[list[str], list[str]]:
    """The sets and the contenders, in the order of the runs."""
    keys = list(lines)
    return list(dict.fromkeys(key.set for key in keys)), list(dict.fromkeys(key.contender for key in keys))


def seeds_of(lines: Mapping[Key, Line], name: str, contender: str, part: str) -> dict[int, Line]:
    """Seed -> metric -> value, low, high."""
    runs = {key.seed: line for key, line in lines.items() if (key.set, key.contender) == (name, contender)}
    return {seed: line["parts"][part] for seed, line in runs.items() if part in line["parts"]}


def spread_text(values: Sequence[float], sign: str = "") -> str:
    """`0.812 ± 0.004`: mean and standard deviation over the seeds; of one seed the value."""
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.3f}{spread}"


def cell(own: Mapping[int, Line], peer: Mapping[int, Line], metric: str) -> str:
    """Mean and spread, of one seed the interval; in brackets the difference to the peer over the seeds of both."""
    values = [run[metric][0] for run in own.values()]
    text = spread_text(values)
    if len(values) == 1 and (only := next(iter(own.values()))[metric])[1] is not None:
        text += f" [{only[1]:.3f}, {only[2]:.3f}]"
    gaps = [own[seed][metric][0] - peer[seed][metric][0] for seed in own if seed in peer]
    return text + (f" ({spread_text(gaps, '+')})" if gaps and own is not peer else "")


def tell(lines: Mapping[Key, Line]) -> None:
    """A table for every part, and how often the plan reaches the better of the other networks."""
    sets, contenders = names_of(lines)
    for part in (*PARTS, "test"):
        if not any(part in line["parts"] for line in lines.values()):
            continue
        print(f"\n{TITLES[part]}; in brackets the difference to {PEER}\n")
        print(f"| set | contender | seeds | {' | '.join(METRICS.values())} | log loss, not calibrated | CPU minutes |")
        print("|---" * (len(METRICS) + 5) + "|")
        for name in sets:
            for contender in contenders:
                if own := seeds_of(lines, name, contender, part):
                    peer = own if contender == PEER else seeds_of(lines, name, PEER, part)
                    cells = [name, contender, f"{len(own)}", *(cell(own, peer, metric) for metric in METRICS)]
                    cells.append(spread_text([run["log_loss_raw"][0] for run in own.values()]))
                    cost = [line["seconds"] for k, line in lines.items() if (k.set, k.contender) == (name, contender)]
                    print("| " + " | ".join([*cells, f"{statistics.mean(cost) / 60:.1f}"]) + " |")
        for contender in (c for c in contenders if c.startswith("plan")):
            if sentence := verdict(lines, sets, contender, part):
                print("\n" + sentence)


def verdict(lines: Mapping[Key, Line], sets: Sequence[str], contender: str, part: str) -> str:
    """On how many sets a contender reaches the better of `BETTER_OF`, and by how much; "" where no set has all."""
    texts = []
    for metric, title in METRICS.items():
        sign = -1 if metric == "log_loss" else 1
        gaps = {}
        for name in sets:
            runs = [seeds_of(lines, name, who, part) for who in (contender, *BETTER_OF)]
            if all(runs):
                own, *others = (sign * statistics.mean(run[metric][0] for run in of.values()) for of in runs)
                gaps[name] = own - max(others)
        if gaps:
            reached = sum(gap >= 0 for gap in gaps.values())
            texts.append(f"{title} {reached} of {len(gaps)} sets ({statistics.mean(gaps.values()):+.3f})")
    what = f"{contender} at least as good as the better of {' and '.join(BETTER_OF)} (mean gain)"
    return f"{what}: {', '.join(texts)}" if texts else ""


def draw_plot(lines: Mapping[Key, Line], file: Path) -> None:
    """AUROC and balanced accuracy of every set and contender: a point for each seed, a line for the interval of one."""
    from matplotlib.figure import Figure

    sets, contenders = (
        list(dict.fromkeys(names)) for names in zip(*((k.set, k.contender) for k in lines), strict=True)
    )
    free = iter(colour for colour in COLOURS if colour not in PINNED.values())
    colours = {name: PINNED.get(name) or next(free) for name in contenders}
    shown = ("auroc", "balanced_accuracy")
    figure = Figure(figsize=(12, 1.2 + 0.5 * len(sets) * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), len(PARTS), squeeze=False, sharey=True, sharex="row")
    for line, metric in zip(panels, shown, strict=True):
        for axes, part in zip(line, PARTS, strict=True):
            add_grid(axes, "x")
            for place, name in enumerate(sets):
                for number, contender in enumerate(contenders):
                    y = place + (number - (len(contenders) - 1) / 2) * 0.8 / len(contenders)
                    runs = list(seeds_of(lines, name, contender, part).values())
                    values = [run[metric][0] for run in runs]
                    axes.plot(values, [y] * len(values), "o", color=colours[contender], markersize=4.5)
                    if runs and runs[0][metric][1] is not None:
                        axes.plot(runs[0][metric][1:], [y, y], color=colours[contender], linewidth=1)
            axes.set(yticks=range(len(sets)), yticklabels=sets, ylim=(len(sets) - 0.5, -0.5))
            axes.set_xlabel(METRICS[metric])
            axes.set_title(TITLES[part].partition(":")[0], fontsize=10)
    handles = [panels[0][0].plot([], [], "o-", color=colours[name], label=name)[0] for name in contenders]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(contenders), fontsize=9)
    file.write_bytes(png(figure))
