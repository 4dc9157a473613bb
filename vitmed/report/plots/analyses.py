"""Figures of what is found beyond the curves: of decisions (net benefit, calibration, abstention, OOD score), and of
numbers with their intervals side by side (models, patients, subgroups).
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from vitmed.core.text import counted
from vitmed.decisions.out_of_distribution import scores_of
from vitmed.metrics.clinical_utility import NetBenefit, percentage
from vitmed.metrics.estimates import value_text
from vitmed.metrics.patient_level import outside, shares
from vitmed.metrics.predictions import Predictions, positive_index
from vitmed.report.plots import drawing
from vitmed.report.plots.drawing import BLACK, BLUE, GREY, RED
from vitmed.report.results import Results


def decision_curve(predictions: Predictions, metrics: Results) -> Figure | None:
    """Net benefit of the model, of acting on all and on none; at the intended prevalence above, where one is given."""
    curve = metrics.decision_curve
    if curve is None or curve.prevalence is None:
        return None
    parts: list[tuple[NetBenefit, str]] = [(curve, f"{{}} of n = {counted(len(predictions), 'image')}")]
    if curve.intended is not None:
        parts.insert(0, (curve.intended, "intended prevalence of {}"))
    figure = Figure(figsize=(7.6, 4.6 * len(parts) + 0.6), layout="constrained")
    for axes, (part, what) in zip(figure.subplots(len(parts), squeeze=False).flat, parts, strict=True):
        assert part.prevalence is not None
        top, values = part.prevalence, drawing.numbers(net.value for net in part.model)
        drawing.add_grid(axes)
        drawing.draw_band(axes, curve.thresholds, part.model, BLUE)
        axes.plot(curve.thresholds, values, color=BLUE, linewidth=2, label="model")
        axes.plot(curve.thresholds, part.all, color=RED, linestyle="--", label="act on all")
        axes.axhline(0, color=BLACK, linestyle=":", label="act on none")
        highest = max((net.high for net in part.model if net.high is not None), default=top)
        below = values[drawing.numbers(curve.thresholds) <= 0.9]  # beyond, it may plunge
        lowest = min(-0.15 * max(top, 0.05), 1.1 * float(below.min()))
        axes.set(xlim=(0, 1), ylim=(lowest, max(1.15 * top, 1.05 * highest)))
        for low, high in part.useful or ():  # where the model is clearly better than both alternatives
            axes.plot([low, high], [0.67 * lowest] * 2, color=BLUE, linewidth=5, solid_capstyle="butt")
        if part.useful:
            axes.plot([], [], color=BLUE, linewidth=5, label="clearly better than both")
        axes.set(xlabel="threshold probability (act from it upwards)", ylabel="net benefit (true positives per image)")
        title = f"{drawing.short(curve.positive, 30)}: {what.format(percentage(top))}"
        title += ", band: 95 % interval" * (part.model[0].low is not None)
        axes.set_title(title, fontsize=11)
    drawing.legend_below(figure, 4)
    return figure


def reliability(predictions: Predictions, metrics: Results) -> Figure | None:
    """Predicted against observed frequency in bins of about equally many images; below, the images per probability."""
    report = metrics.calibration
    if report is None or not report.after.curve:
        return None
    after, before = report.after, report.before
    figure = Figure(figsize=(6.4, 8.2), layout="constrained")
    axes, below = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="observed frequency in the bin, 95 % interval")
    below.set(xlabel=drawing.short(report.about, 60), ylabel="images")
    for part in (axes, below):
        drawing.add_grid(part)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
    methods = {fold.method for fold in report.folds or ()} or {report.method}
    shown = [(after, BLUE, "o", 6, "not calibrated" if methods == {"none"} else "after calibration")]
    if before is not None:
        shown.insert(0, (before, GREY, "s", 4, "before calibration"))
    for of, colour, marker, size, name in shown:
        y, low, high = np.array([(bin.seen.value, bin.seen.low, bin.seen.high) for bin in of.curve], float).T
        ends = np.nan_to_num(np.maximum(0, [y - low, high - y]))  # no bar without an interval
        label, x = f"{name}: ECE {value_text(of.ece)}", [bin.said for bin in of.curve]
        bars = axes.errorbar(x, y, yerr=ends, label=label, color=colour, linewidth=1, elinewidth=1.2, capsize=2.5)
        bars.lines[0].set(marker=marker, markersize=size)
    positive, chances = positive_index(predictions), predictions.probabilities
    scores = chances.max(axis=1) if positive is None else chances[:, positive]
    below.hist(scores, bins=np.linspace(0, 1, 21).tolist(), color=BLUE)
    if len(scores) > 200:
        below.set_yscale("log")
        below.set_ylim(bottom=0.7)  # one image is a bar
        below.set_ylabel("images (log)")
        below.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
        below.yaxis.set_minor_formatter(NullFormatter())
    else:
        below.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4, min_n_ticks=1))
    title = f"n = {counted(len(predictions), 'image')}, bins of about {len(predictions) / len(after.curve):,.0f}"
    slopes = [own.slope for own in after.per_class.values()]
    if len(slopes) == 1 and slopes[0].value is not None:
        meaning = "" if slopes[0].low is None else "; 1 is right, below 1 too extreme, above 1 too cautious"
        title += f"\nslope {value_text(slopes[0])}{meaning}"
    figure.suptitle(title, fontsize=11)
    figure.legend(loc="outside lower center", fontsize=9, frameon=False)
    return figure


def risk_coverage(predictions: Predictions, metrics: Results) -> Figure | None:
    """The share of errors among the answered images, the most certain first."""
    abstention = metrics.abstention
    if abstention is None or not abstention.curve.coverage:
        return None
    answered = "share of the images that are answered, the most certain first"
    figure, axes = drawing.plot(answered, "share of errors among them")
    curve, chosen, reached = abstention.curve, abstention.chosen, abstention.reached
    low, high = drawing.numbers(curve.low), drawing.numbers(curve.high)
    banded = bool(np.isfinite([low, high]).all())  # a band with holes would mislead
    if banded:
        axes.fill_between(curve.coverage, low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(curve.coverage, drawing.numbers(curve.risk), color=BLUE, linewidth=2, label="this model")
    (rate,) = drawing.numbers([abstention.error_rate.value])
    axes.axhline(rate, color=GREY, linestyle=":", label=f"all answered: {percentage(rate)}")
    if chosen is not None:
        axes.axhline(chosen.max_risk, color=RED, linestyle="--", label=f"maximum risk: {percentage(chosen.max_risk)}")
    if reached is not None and reached.risk.value is not None:
        at = drawing.numbers([reached.coverage.value])
        text = f"chosen on validation: {percentage(reached.coverage.value or 0.0)} answered"
        axes.plot(at, [reached.risk.value], "o", color=RED, markersize=9, label=text)
    axes.set_xlim(0, 1.01)
    axes.set_ylim(bottom=0)
    title = f"n = {counted(len(predictions), 'image')}, area {value_text(abstention.area)}"
    axes.set_title(title + ", band: 95 % interval" * banded, fontsize=11)
    drawing.legend_below(figure, 2)
    return figure


def out_of_distribution(predictions: Predictions, metrics: Results) -> Figure | None:
    """How unlike the training images the evaluated images are."""
    report, scores = metrics.out_of_distribution, scores_of(predictions)
    if report is None or scores is None:
        return None
    figure, axes = drawing.plot("OOD score (log scale; above 1: unlike the training images)", "share of the images")
    scores = np.maximum(scores, 1e-3)
    low, high = min(float(scores.min()), 0.9), max(float(scores.max()), 1.1) * 1.001
    label = f"evaluated, n = {len(scores):,}: {percentage(report.flagged.value or 0.0)} above 1"
    style: dict[str, Any] = {"color": BLUE, "alpha": 0.55, "hatch": "//", "edgecolor": BLUE, "label": label}
    axes.hist(scores, bins=np.geomspace(low, high, 41).tolist(), weights=np.full(len(scores), 1 / len(scores)), **style)
    axes.axvline(1, color=BLACK, linestyle="--", label="limit, chosen on the validation images")
    axes.set_xscale("log")
    shown = [value for value in (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100) if low <= value <= high]
    axes.set_xticks(shown, [f"{value:g}" for value in shown])
    axes.minorticks_off()
    axes.set_title(f"distance from the features of {counted(report.n, 'training image')}", fontsize=11)
    drawing.legend_below(figure, 2)
    return figure


FEW = 3  # images of a patient, up to which the share that is right takes too few values for dots
KINDS = {"sensitivity": ", positive class", "specificity": ", negative class", "accuracy": ""}
FOREST = ("auroc", "sensitivity", "specificity")
FOREST_MANY = ("quadratic_kappa", "mae", "bias", "auroc", "balanced_accuracy", "accuracy")  # the first three there


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
    few = images.max() <= FEW
    unit = "patient" if metrics is None else metrics.unit
    panels[0].set_ylabel(f"{unit}s" if few else f"share of the {unit}'s images that is right")
    if not few:
        lowest = min(float((right[n > 0] / n[n > 0]).min(initial=1)) for n, right in kinds.values())
        panels[0].set_ylim(1.03 - 1.12 * (1.08 - lowest), 1.03)
    for axes, (name, (n, right)) in zip(panels, kinds.items(), strict=True):
        axes.set_title(f"{name}, {counted(int((n > 0).sum()), unit)}", fontsize=11)
        (_bars if few else _funnel)(axes, name, n, right, unit)
    return figure


def _bars(axes: Axes, name: str, images: np.ndarray, right: np.ndarray, unit: str) -> None:
    from scipy.stats import binom  # here: predict must start without it

    axes.set_xlabel(f"images that are right, of all images\nof the {unit}{KINDS[name]}")
    drawing.add_grid(axes, "y")
    pairs = [(n, k) for n in np.unique(images[images > 0]).tolist() for k in range(n + 1)]
    overall = right.sum() / max(1, images.sum())
    counts = [int(((images == n) & (right == k)).sum()) for n, k in pairs]
    alike = [float((images == n).sum() * binom.pmf(k, n, overall)) for n, k in pairs]
    axes.bar(range(len(pairs)), counts, color=BLUE, width=0.7, label=f"{unit}s")
    for x, (count, expected) in enumerate(zip(counts, alike, strict=True)):  # above the bar and the line
        axes.annotate(
            f"{count:,}", (x, max(count, expected)), (0, 3), textcoords="offset points", ha="center", fontsize=8
        )
    label = f"if all were alike ({overall:.3f} of all images are right)"
    axes.scatter(range(len(pairs)), alike, marker="_", s=500, color=RED, zorder=3, label=label)
    axes.set_xticks(range(len(pairs)), [f"{k} of {n}" for n, k in pairs], fontsize=8)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.19), ncols=2, frameon=False)


def _funnel(axes: Axes, name: str, images: np.ndarray, right: np.ndarray, unit: str) -> None:
    from scipy.stats import binom  # here: predict must start without it

    present = np.flatnonzero(images)
    n, share = images[present], right[present] / images[present]
    axes.set_xlabel(f"images of the {unit}{KINDS[name]}")
    drawing.add_grid(axes)
    if not len(present):
        axes.text(0.5, 0.5, "no such images", transform=axes.transAxes, ha="center")
        return
    overall = right.sum() / images.sum()
    grid = np.unique(np.geomspace(max(1, n.min()), max(2, n.max()), 200).round())
    axes.axhline(overall, color=GREY, linewidth=1, linestyle="--", label=f"all images: {overall:.3f}")
    grid, wide = (grid, 0.0) if len(grid) > 1 else (np.repeat(grid, 2), np.array([-0.4, 0.4]))
    limits = [binom.ppf(q, grid, overall) / grid for q in (0.025, 0.975)]
    alike = f"95 % of {unit}s, if all were alike" if np.ptp(limits) else None  # else there is no band
    axes.fill_between(grid + wide, *limits, color="0.9", linewidth=0, label=alike)
    far = outside(n, right[present])
    size = float(np.clip(2500 / len(present), 8, 36))
    for some, colour, marker, text, least in ((~far, BLUE, "o", "within", 0), (far, RED, "^", "outside", 24)):
        dots, count = np.unique(np.stack([n[some], share[some]]), axis=1, return_counts=True)  # (2, D): some lie level
        axes.scatter(
            dots[0], dots[1], s=max(size, least) * np.sqrt(count), color=colour, marker=marker, alpha=0.75, linewidths=0
        )
        axes.plot([], [], marker, color=colour, label=f"{text}: {counted(int(some.sum()), unit)}")
    if n.max() > 20 * n.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, min_n_ticks=1))
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

    def label(name: str, n: int | str, n_groups: int | None) -> str:
        patients = "" if n_groups is None else f", {counted(n_groups, metrics.unit)}"
        return f"{drawing.short(name, 26)} (n{n if isinstance(n, str) else f'={n:,}'}{patients})"

    rows, headings = [(label("all", metrics.n, metrics.n_groups), whole)], list[int]()
    for name, column in columns.items():
        headings.append(len(rows))
        rows.append((drawing.short(name, 30), {}))
        rows += [(label(stratum.name, stratum.n, stratum.n_groups), stratum.overall) for stratum in column.strata]
    present = {kind for _, numbers in rows[1:] for kind in numbers}
    kinds = [kind for kind in (FOREST_MANY if positive is None else FOREST) if kind in present][:3]
    figure = Figure(figsize=(9.2, 0.29 * len(rows) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    drawing.forest(panels, rows, {kind: whole[kind] for kind in kinds}, diamond=True)
    for y, text in enumerate(panels[0].get_yticklabels()):
        if y in headings:
            text.set_fontweight("bold")
        elif not rows[y][1]:
            text.set_color("0.45")
    return figure
