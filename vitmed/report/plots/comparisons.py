"""Numbers with their intervals side by side: models, the own test and other images, patients, subgroups."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from vitmed.core.text import counted
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.paired_comparison import ComparisonResults
from vitmed.metrics.patient_level import outside, shares
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.subgroups import Stratum
from vitmed.report.plots.drawing import BLUE, GREY, RED, add_grid, draw_estimate, short
from vitmed.report.results import Results


def differences(content: ComparisonResults) -> Figure:
    """A row for each pair and a column for each of three numbers; a filled blue dot is a clear difference."""
    pairs, count, kind = content.pairs, len(content.pairs), TARGETS[content.kind]
    figure = Figure(figsize=(10, max(2.6, 0.62 * count + 1.9)), layout="constrained")
    columns = figure.subplots(1, 3, sharey=True)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for axes, name in zip(columns, kind.headline[:3], strict=True):
        write = partial(axes.text, 0.5, ha="center", va="center", fontsize=8, transform=axes.get_yaxis_transform())
        axes.axvline(0, color=GREY, linewidth=1)
        for row, pair in enumerate(pairs):
            entry = pair.difference[name]
            if entry.value is None:
                write(row, "undefined")
                continue
            clear, text = False, f"{entry.value:+.3f}, no interval"
            if entry.low is not None and entry.high is not None:
                clear = entry.low > 0 or entry.high < 0
                text = f"{entry.value:+.3f} ({entry.low:+.3f} to {entry.high:+.3f})"
                axes.plot([entry.low, entry.high], [row, row], color=BLUE if clear else RED, linewidth=1.8)
            colour, face = (BLUE, BLUE) if clear else (RED, "white")
            axes.plot(entry.value, row, "o", color=colour, markerfacecolor=face, markersize=6)
            write(row - 0.32, text, bbox=box)
        axes.set_title(kind.metrics[name].title, fontsize=10)
        axes.set_ylim(count - 0.4, -0.7)
        add_grid(axes, "x")
        axes.margins(x=0.12)
        axes.tick_params(axis="x", labelsize=8)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    names = [f"{short(pair.first, 26)}\nminus {short(pair.second, 26)}" for pair in pairs]
    columns[0].set_yticks(range(count), names, fontsize=8)
    patients = "" if content.patients is None else f" of {counted(content.patients, 'patient')}"
    unknown = "; patients unknown, likely too narrow" if content.patients is None else ""
    images = f"n = {counted(content.images, 'image')}{patients}"
    figure.suptitle(f"{images}; {content.level:.0%} intervals{unknown}", fontsize=10)
    meaning = "filled: the interval does not contain 0; not adjusted for several pairs"
    figure.supxlabel(f"difference (first minus second); {meaning}", fontsize=9)
    return figure


FEW = 3  # images of a patient, up to which the share that is right takes too few values for dots
KINDS = {"sensitivity": ", positive class", "specificity": ", negative class", "accuracy": ""}
FOREST = ("auroc", "sensitivity", "specificity")
FOREST_MANY = ("auroc", "balanced_accuracy", "accuracy")


def patient_spread(predictions: Predictions, metrics: Results | None = None) -> Figure | None:
    """A dot per patient: how many images, and the share that is right; with the limits of chance.

    A funnel plot (Spiegelhalter, Stat. Med. 24 (2005) 1185) with exact binomial limits of 95 %. Of two classes a panel
    each for sensitivity and specificity, else one for accuracy. Where no patient has more than `FEW` images, bars of
    patients by how many of their images are right. None where patients are unknown or have one image each.
    """
    if predictions.groups is None or not len(predictions):
        return None
    kinds = shares(predictions)
    images = kinds["accuracy"][0]
    if images.max() == 1 or len(images) == 1:
        return None
    if len(kinds) > 1:  # of two classes
        del kinds["accuracy"]
    figure = Figure(figsize=(9.2 if len(kinds) == 2 else 6.4, 5.0), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    if images.max() <= FEW:
        for axes, (name, (n, right)) in zip(panels, kinds.items(), strict=True):
            _bars(axes, name, n, right)
        panels[0].set_ylabel("patients")
        return figure
    lowest = min(float((right[n > 0] / n[n > 0]).min(initial=1)) for n, right in kinds.values())
    panels[0].set_ylim(1.03 - 1.12 * (1.08 - lowest), 1.03)
    for axes, (name, (n, right)) in zip(panels, kinds.items(), strict=True):
        _funnel(axes, name, n, right)
    panels[0].set_ylabel("share of the patient's images that is right")
    return figure


def _bars(axes: Axes, name: str, images: np.ndarray, right: np.ndarray) -> None:
    from scipy.stats import binom  # here: predict must start without it

    axes.set_title(f"{name}, {counted(int((images > 0).sum()), 'patient')}", fontsize=11)
    axes.set_xlabel(f"images that are right, of all images of the patient{KINDS[name]}")
    add_grid(axes, "y")
    pairs = [(n, k) for n in np.unique(images[images > 0]).tolist() for k in range(n + 1)]
    overall = right.sum() / max(1, images.sum())
    found = [int(((images == n) & (right == k)).sum()) for n, k in pairs]
    alike = [float((images == n).sum() * binom.pmf(k, n, overall)) for n, k in pairs]
    bars = axes.bar(range(len(pairs)), found, color=BLUE, width=0.7, label="patients")
    axes.bar_label(bars, [f"{count:,}" for count in found], fontsize=8, padding=2)
    label = f"if all were alike ({overall:.3f} of all images are right)"
    axes.scatter(range(len(pairs)), alike, marker="_", s=500, color=RED, zorder=3, label=label)
    axes.set_xticks(range(len(pairs)), [f"{k} of {n}" for n, k in pairs])
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)


def _funnel(axes: Axes, name: str, images: np.ndarray, right: np.ndarray) -> None:
    from scipy.stats import binom  # here: predict must start without it

    known = np.flatnonzero(images)
    n, share = images[known], right[known] / images[known]
    axes.set_title(f"{name}, {counted(len(known), 'patient')}", fontsize=11)
    axes.set_xlabel(f"images of the patient{KINDS[name]}")
    add_grid(axes)
    if not len(known):
        axes.text(0.5, 0.5, "no such images", transform=axes.transAxes, ha="center")
        return
    overall = right.sum() / images.sum()
    grid = np.unique(np.geomspace(max(1, n.min()), max(2, n.max()), 200).round())
    axes.axhline(overall, color=GREY, linewidth=1, linestyle="--", label=f"all images: {overall:.3f}")
    limits = [binom.ppf(q, grid, overall) / grid for q in (0.025, 0.975)]
    axes.fill_between(grid, *limits, color="0.9", linewidth=0, label="95 % of patients, if all were alike")
    far = outside(n, right[known])
    size = float(np.clip(2500 / len(known), 8, 36))
    for some, colour, marker, text in ((~far, BLUE, "o", "within"), (far, RED, "^", "outside")):
        dots, count = np.unique(np.stack([n[some], share[some]]), axis=1, return_counts=True)  # (2, D): some lie level
        axes.scatter(dots[0], dots[1], s=size * np.sqrt(count), color=colour, marker=marker, alpha=0.75, linewidths=0)
        axes.plot([], [], marker, color=colour, label=f"{text}: {counted(int(some.sum()), 'patient')}")
    if n.max() > 20 * n.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        axes.set_xlim(n.min() - 0.06 * np.ptp(n) - 0.5, n.max() + 0.06 * np.ptp(n) + 0.5)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)


def forest(predictions: Predictions, metrics: Results) -> Figure | None:
    """Each group of each column with its interval, and all images; None where no subgroups were requested."""
    columns = {name: own for name, own in (metrics.subgroups or {}).items() if any(s.overall for s in own.strata)}
    if not columns:
        return None
    positive, whole = metrics.positive_class, dict(metrics.overall)
    if positive is not None:
        whole |= {kind: metrics.per_class[positive][kind] for kind in FOREST}
    everyone = Stratum(name="all", n=metrics.n, n_groups=metrics.n_groups, overall=whole)
    rows: list[str | Stratum] = [everyone]  # a text is the heading of a column
    for name, found in columns.items():
        rows += [short(name, 30), *found.strata]
    present = {kind for found in columns.values() for stratum in found.strata for kind in stratum.overall}
    kinds = [kind for kind in (FOREST_MANY if positive is None else FOREST) if kind in present]
    figure = Figure(figsize=(9.2, 0.29 * len(rows) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        if (value := whole[kind].value) is not None:
            axes.axvline(value, color=GREY, linestyle="--", linewidth=1)
        for y, row in enumerate(rows):
            if isinstance(row, Stratum) and kind in row.overall:
                draw_estimate(axes, y, row.overall[kind], *(("black", "D") if y == 0 else (BLUE, "o")))
        axes.set_xlabel("AUROC" if kind == "auroc" else kind.replace("_", " "))
        add_grid(axes, "x")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    panels[0].set_yticks(range(len(rows)), [row if isinstance(row, str) else _name(row) for row in rows], fontsize=9)
    for label, row in zip(panels[0].get_yticklabels(), rows, strict=True):
        if isinstance(row, str):
            label.set_fontweight("bold")
        elif not row.overall:
            label.set_color("0.45")
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    return figure


def _name(stratum: Stratum) -> str:
    n = stratum.n if isinstance(stratum.n, str) else f"={stratum.n:,}"
    patients = "" if stratum.n_groups is None else f", {counted(stratum.n_groups, 'patient')}"
    return f"{short(stratum.name, 26)} (n{n}{patients})"
