"""Figures about predictions: pure functions to a matplotlib `Figure`, without pyplot's global state.

Colours are Okabe & Ito's, which colour-blind readers can tell apart, and no meaning rests on colour alone.
Pictures are labelled by their row in `predictions.csv` (the first image is row 1), never by a file name,
which may hold a patient's.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmed.errors import VitmedError
from vitmed.lr_range import Range
from vitmed.metrics import METRICS, finding, known_labels, threshold_counts
from vitmed.predictions import Predictions

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
COLOURS = (BLUE, RED, GREEN, ORANGE, "#CC79A7", "#56B4E9", "#000000", "#B8A800")
GREY = "#8A8A8A"
LEGEND = 8  # classes that a legend names; of more, only the worst
PICTURES = 24  # images in a gallery
DPI = 120

Read = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Plot:
    """A figure of the report.

    Attributes:
        title: its heading.
        text: one or two sentences under it, for a reader who sees such a figure for the first time.
        draw: (predictions, metrics) -> Figure, or (predictions, read) -> Figure where `pictures` is set.
        pictures: it shows the images themselves.
    """

    title: str
    text: str
    draw: Callable[..., Figure]
    pictures: bool = False


def png(figure: Figure) -> bytes:
    """The figure as a PNG file at 120 dots per inch."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script that the font lacks shows boxes
        figure.savefig(stream, format="png", dpi=DPI, facecolor="white")
    return stream.getvalue()


def confusion_matrix(predictions: Predictions, metrics: Mapping[str, Any] | None = None) -> Figure:
    """Counts and the share of the row (of the truth) in one cell each.

    Args:
        predictions: with labels.
        metrics: from `evaluate_predictions`; with it the title tells balanced accuracy and its interval.
    """
    k = len(predictions.classes)
    counts = np.zeros((k, k), dtype=np.int64)
    np.add.at(counts, (known_labels(predictions), predictions.predicted), 1)
    total = counts.sum(axis=1, keepdims=True)
    share = counts / np.maximum(total, 1)
    cell = float(np.clip(4.2 / k, 0.62, 1.6))  # inches
    figure = Figure(figsize=(cell * k + 2, cell * k + 1.5), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    size = min(13.0, 72 * cell / (0.68 * max(4, len(f"{counts.max(initial=0):,}"))))  # points: the longest text fits
    for row, column in np.ndindex(k, k):
        if k > LEGEND and not counts[row, column]:
            continue  # among hundreds of cells the zeros are clutter
        axes.text(
            column,
            row,
            f"{counts[row, column]:,}\n{_percent(share[row, column])}",
            ha="center",
            va="center",
            fontsize=size,
            color="white" if share[row, column] > 0.62 else "black",
            in_layout=False,  # it lies inside the axes; measuring hundreds of them takes seconds
        )
    names = [_short(c, 18) for c in predictions.classes]
    font = 10 if k <= 15 else 13
    upright = max(map(len, names)) * 0.62 * font / 72 > cell  # would touch its neighbour
    axes.set_xticks(range(k), names, fontsize=font, rotation=90 if upright else 0)
    axes.set_yticks(range(k), [f"{n} (n={t:,})" for n, t in zip(names, total[:, 0], strict=True)], fontsize=font)
    axes.set_xlabel("predicted class", fontsize=font + 1)
    axes.set_ylabel("true class (images)", fontsize=font + 1)
    axes.set_xticks(np.arange(k + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(k + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)
    told = _told(metrics, "balanced_accuracy", "\n")
    figure.suptitle(f"n = {len(predictions):,} images{told}", fontsize=font + 1)
    return figure


def roc(predictions: Predictions, metrics: Mapping[str, Any] | None = None) -> Figure:
    """Sensitivity against 1 - specificity over all thresholds; see `confusion_matrix` for the arguments."""
    k = len(predictions.classes)
    curves = {}
    for c in range(k):
        tp, fp = threshold_counts(predictions.probabilities[:, c], known_labels(predictions) == c)
        if tp[-1] and fp[-1]:
            curves[c] = fp / fp[-1], tp / tp[-1]
    figure, axes = _square("1 - specificity (false positive rate)", "sensitivity (true positive rate)")
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
    areas = {c: float(np.trapezoid(y, x)) for c, (x, y) in curves.items()}
    _lines(axes, predictions, metrics, curves, areas, "auroc", steps=False)
    if k > 2 and curves:
        x = np.linspace(0, 1, 1001)
        y = np.mean([np.interp(x, *curve) for curve in curves.values()], axis=0)
        axes.plot(
            np.append(0, x), np.append(0, y), color="black", linewidth=2.5, linestyle="--", label="mean of classes"
        )
    _finish(figure, axes, predictions, metrics, "auroc")
    return figure


def precision_recall(predictions: Predictions, metrics: Mapping[str, Any] | None = None) -> Figure:
    """Precision (PPV) against recall (sensitivity); see `confusion_matrix` for the arguments."""
    k = len(predictions.classes)
    curves, areas = {}, {}
    for c in range(k):
        tp, fp = threshold_counts(predictions.probabilities[:, c], known_labels(predictions) == c)
        if tp[-1]:
            recall, precision = tp / tp[-1], tp[1:] / (tp[1:] + fp[1:])
            curves[c] = recall, np.append(precision[:1], precision)
            areas[c] = float(np.sum(np.diff(recall) * precision))
    figure, axes = _square("recall (sensitivity)", "precision (PPV)")
    if k == 2 and len(predictions):
        prevalence = float(np.mean(known_labels(predictions) == finding(predictions)))
        axes.axhline(
            prevalence, color=GREY, linestyle=":", linewidth=1, label=f"by chance: prevalence {prevalence:.2f}"
        )
    _lines(axes, predictions, metrics, curves, areas, "average_precision", steps=True)
    _finish(figure, axes, predictions, metrics, "average_precision")
    return figure


def errors(predictions: Predictions, read: Read) -> Figure:
    """The wrong predictions in which the model was surest, from the surest down.

    Args:
        predictions: with labels.
        read: path of an image -> uint8 (H, W) or (H, W, 3).
    """
    wrong = np.flatnonzero(predictions.predicted != known_labels(predictions))
    shown = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")][:PICTURES]
    if not len(shown):
        figure = Figure(figsize=(8, 1.5))
        figure.text(0.5, 0.5, f"no errors among {len(predictions):,} images", ha="center", va="center", fontsize=14)
        return figure
    figure = _gallery(predictions, read, shown)
    order = ", the most confident first" if len(shown) > 1 else ""
    figure.suptitle(f"{len(shown)} of {len(wrong):,} error{'s' * (len(wrong) > 1)}{order}", fontsize=12)
    return figure


def grid(predictions: Predictions, read: Read) -> Figure:
    """Images drawn at random (always the same ones), with prediction and truth; without labels, the prediction.

    Args:
        predictions: of one image or more.
        read: path of an image -> uint8 (H, W) or (H, W, 3).
    """
    shown = np.sort(np.random.default_rng(0).permutation(len(predictions))[:PICTURES])
    figure = _gallery(predictions, read, shown)
    if len(shown) < len(predictions):
        figure.suptitle(f"{len(shown)} of {len(predictions):,} images, drawn at random", fontsize=12)
    return figure


def training_curves(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss, validation metrics and learning rate by epoch, the epoch of best.pt marked.

    Args:
        records: of `metrics.jsonl`: epoch, train_loss, val_loss, val_<metric>, lr; best, whether best.pt was written;
            and monitor, the name of the watched metric. Missing or null values are gaps.
    """
    epochs = [record["epoch"] for record in records]
    monitor = next((str(r["monitor"]) for r in records if r.get("monitor") in METRICS), "auroc")

    def values(key: str) -> np.ndarray:
        return np.array([np.nan if r.get(key) is None else float(r[key]) for r in records])

    chosen = values(f"val_{monitor}")
    best = max((i for i, record in enumerate(records) if record.get("best")), default=None)  # the last that was kept
    bounded = [n for n in ("auroc", "balanced_accuracy", "accuracy", "mcc") if any(f"val_{n}" in r for r in records)]
    if METRICS[monitor].higher_is_better and monitor not in bounded:
        bounded = [monitor, *bounded[:3]]
    losses = {"train_loss": "training", "val_loss": "validation"}
    if not METRICS[monitor].higher_is_better:
        losses[f"val_{monitor}"] = f"validation {METRICS[monitor].title.lower()}"

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    panels = figure.subplots(1, 3)
    for i, (key, name) in enumerate(losses.items()):
        panels[0].plot(epochs, values(key), color=COLOURS[i], marker=".", linestyle=("-", "--", ":")[i], label=name)
    panels[0].set_ylabel("loss (nats)")
    for i, name in enumerate(bounded):
        shown = values(f"val_{name}")
        panels[1].plot(epochs, shown, color=COLOURS[i], marker=".", linestyle="-" if name == monitor else "--")
        panels[1].lines[-1].set_label(METRICS[name].title)
    panels[1].set_ylabel("validation metric")
    panels[2].plot(epochs, values("lr"), color=BLUE, marker=".")
    panels[2].set_ylabel("learning rate")
    for axes, free in zip(panels, ("upper right", "lower right", "lower left"), strict=True):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
        if best is not None:
            axes.axvline(epochs[best], color=GREY, linestyle=":", linewidth=1.5, label=f"best.pt: epoch {epochs[best]}")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=9, framealpha=0.85, loc=free)
    if best is not None:
        figure.suptitle(
            f"best.pt: epoch {epochs[best]}, validation {METRICS[monitor].title} {chosen[best]:.3f}", fontsize=12
        )
    return figure


def lr_range(found: Range) -> Figure:
    """The running mean of the training loss over the learning rate, with the two suggestions."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(found.rates, found.losses, color=COLOURS[0], linewidth=2)
    axes.set_xscale("log")
    for rate, name, colour, marker in (
        (found.valley, "valley", COLOURS[1], "o"),
        (found.steepest, "steepest descent", COLOURS[2], "s"),
    ):
        if rate is not None:
            loss = found.losses[found.rates.index(rate)]
            axes.plot([rate], [loss], marker, color=colour, markersize=9, label=f"{name} {rate:.1e}")
    axes.set_xlabel("Learning rate")
    axes.set_ylabel("Training loss, running mean")
    axes.set_title("Learning rate range test")
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    return figure


def contact_sheet(images: Mapping[str, Sequence[np.ndarray]]) -> Figure:
    """What the network is shown: one row of images per class.

    Args:
        images: class name -> uint8 arrays (H, W) or (H, W, 3).
    """
    columns = max([1, *(len(row) for row in images.values())])
    figure = Figure(figsize=(1.2 * columns + 1.6, max(1.0, 1.2 * len(images))), layout="constrained")
    panels = figure.subplots(max(1, len(images)), columns, squeeze=False)
    for row, (name, pictures) in zip(panels, images.items(), strict=False):
        for axes, picture in zip(row, pictures, strict=False):
            _picture(axes, picture)
        row[0].set_ylabel(_short(name, 20), rotation=0, ha="right", va="center", fontsize=10)
    for axes in panels.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_frame_on(bool(axes.images))
    return figure


def _gallery(predictions: Predictions, read: Read, rows: np.ndarray) -> Figure:
    """Images of the given rows with what was predicted and what is true."""
    columns = int(np.clip(len(rows), 1, 6))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(max(4.5, 1.75 * columns + 0.4), 2.35 * lines + 0.5), layout="constrained")
    panels = figure.subplots(max(1, lines), columns, squeeze=False)
    for axes, i in zip(panels.flat, rows, strict=False):
        try:
            _picture(axes, read(predictions.paths[i]))
        except (VitmedError, OSError, ValueError):
            _picture(axes, np.full((8, 8), 200, np.uint8))
            axes.text(0.5, 0.5, "cannot be read", transform=axes.transAxes, ha="center", va="center", fontsize=8)
        predicted = _short(predictions.classes[predictions.predicted[i]], 16)
        title, colour = f"{predicted}\n{_percent(predictions.confidence[i])}", GREY
        if predictions.labels is not None:
            right = predictions.predicted[i] == predictions.labels[i]
            colour = GREEN if right else RED
            truth = _short(predictions.classes[predictions.labels[i]], 16)
            title = f"{'✓' if right else '✗'} {predicted} {_percent(predictions.confidence[i])}\ntruth: {truth}"
        axes.set_title(title, fontsize=8)
        axes.set_anchor("N")  # so that the titles of a line stand level
        axes.set_xlabel(f"row {i + 1}", fontsize=8)
        for spine in axes.spines.values():
            spine.set(color=colour, linewidth=3)
    for axes in panels.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_frame_on(bool(axes.images))
    return figure


def _picture(axes: Axes, image: np.ndarray) -> None:
    if image.ndim == 3:  # without alpha, which matplotlib would draw on white
        image = image[..., :3] if image.shape[2] >= 3 else image[..., 0]
    axes.imshow(image, cmap="gray" if image.ndim == 2 else None, vmin=0, vmax=255, interpolation="nearest")


def _square(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 7.1), layout="constrained")
    axes = figure.add_subplot(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xlabel=x, ylabel=y)
    axes.set_aspect("equal")
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    return figure, axes


def _lines(
    axes: Axes,
    predictions: Predictions,
    metrics: Mapping[str, Any] | None,
    curves: dict[int, tuple[np.ndarray, np.ndarray]],
    areas: dict[int, float],
    name: str,
    steps: bool,
) -> None:
    """Draw the curves: of two classes the positive one; of many, only the worst four in colour."""
    if len(predictions.classes) == 2:
        curves = {c: curve for c, curve in curves.items() if c == finding(predictions)}
    worst = sorted(curves, key=lambda c: areas[c])[:4]
    named = list(curves) if len(curves) <= LEGEND else worst
    style = "steps-pre" if steps else "default"
    if len(curves) > LEGEND:
        axes.plot([], [], color=GREY, linewidth=0.7, label=f"{len(curves) - 4} other classes")
    for c in curves:
        if c not in named:
            axes.plot(*curves[c], color=GREY, linewidth=0.7, alpha=0.6, drawstyle=style)
    for colour, c in zip(COLOURS, named, strict=False):
        n = int(np.sum(known_labels(predictions) == c))
        entry = metrics["per_class"][predictions.classes[c]][name] if metrics else {"value": areas[c], "low": None}
        text = f"{_short(predictions.classes[c], 26)}: {entry['value']:.3f}{_interval(entry)}, n={n:,}"
        width = 2.2 if len(curves) == 1 else 1.3
        axes.plot(*curves[c], color=colour, linewidth=width, drawstyle=style, label=text)


def _finish(figure: Figure, axes: Axes, predictions: Predictions, metrics: Mapping[str, Any] | None, name: str) -> None:
    """Title, and a legend below, where it hides no curve."""
    many = len(predictions.classes) > 2
    told = _told(metrics, name, "\nmean of classes: ") if many else ""
    kind = ", each class against the rest" if many else ""
    axes.set_title(f"n = {len(predictions):,} images{kind}{told}", fontsize=11)
    handles, texts = axes.get_legend_handles_labels()
    figure.set_figheight(7.1 + 0.2 * len(handles))
    if handles:
        lowest = "lowest " if len(predictions.classes) > LEGEND else ""
        title = lowest + {"auroc": "AUROC", "average_precision": "average precision"}[name]
        figure.legend(handles, texts, loc="outside lower center", fontsize=9, title=title, title_fontsize=9)


def _told(metrics: Mapping[str, Any] | None, name: str, before: str) -> str:
    """`, Balanced accuracy 0.91 (0.88 to 0.93)`; empty where it is not known."""
    if metrics is None or metrics["overall"][name]["value"] is None:
        return ""
    entry = metrics["overall"][name]
    return f"{before}{METRICS[name].title} {entry['value']:.3f}{_interval(entry)}"


def _interval(entry: Mapping[str, float | None]) -> str:
    return "" if entry["low"] is None else f" ({entry['low']:.3f} to {entry['high']:.3f})"


def _percent(share: float) -> str:
    """A share as a percentage that never rounds to 100 % or 0 % what is not."""
    if 0.995 <= share < 1:
        return ">99%"
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def _short(name: str, most: int) -> str:
    """A class name fit for a figure: one line, cut in its middle to `most` characters, no mathtext."""
    name = " ".join(name.split())
    if len(name) > most:  # names of one family often differ at the end
        name = name[: most - most // 2 - 1].rstrip() + "…" + name[-(most // 2) :].lstrip()
    return (f" {name}" if name.startswith("_") else name).replace("$", r"\$")


PLOTS: dict[str, Plot] = {
    "confusion_matrix": Plot(
        "Confusion matrix",
        "Each row is a true class; a cell holds the number of images that were predicted as the column's class and "
        "their share of the row. The diagonal is right. Of many classes, an empty cell is 0.",
        confusion_matrix,
    ),
    "roc": Plot(
        "ROC curve",
        "Sensitivity against false alarms over all thresholds. The dotted diagonal is guessing. The area does not "
        "depend on how common a class is.",
        roc,
    ),
    "precision_recall": Plot(
        "Precision and recall",
        "How many of the images that were called positive are, against how many of the positive were found. It "
        "depends on how common the class is in these images.",
        precision_recall,
    ),
    "errors": Plot(
        "Most confident errors",
        "The wrong predictions in which the model was surest: look here for mislabelled or unusual images.",
        errors,
        pictures=True,
    ),
    "grid": Plot(
        "Predictions and truth",
        "A random sample; a green border and ✓ are right, a red border and ✗ wrong.",
        grid,
        pictures=True,
    ),
}
