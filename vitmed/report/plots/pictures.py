"""Figures that show the images: errors, doubtful labels, samples, attention maps, the contact sheet.

A picture is labelled by its row, unless the predictions allow its name.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from vitmed.core.base_models import UNKNOWN
from vitmed.core.errors import VitmedError
from vitmed.core.run_folder import is_remote, place_of
from vitmed.core.text import counted
from vitmed.explanation.results import TITLES, Maps, cells
from vitmed.imaging.decode import read_image
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.mistakes import error_pairs, find_suspects, wrong_rows
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.predictions_csv import ANSWER, NO
from vitmed.report.plots.drawing import GREEN, GREY, RED, hide_ticks, path_label, percent, png, sheet, short, show

PICTURES = 24  # images in a gallery
LINES, WIDE = 4, 6  # lines of a gallery by pair or patient, pictures in a line
Read = Callable[[str], np.ndarray]  # path of an image -> uint8 (H, W) or (H, W, 3)


def errors(predictions: Predictions, read: Read) -> Figure:
    """The wrong predictions with the highest confidence, the most confident first."""
    wrong = predictions.mistakes()
    if not len(wrong):
        figure = Figure(figsize=(8, 1.5))
        text = f"no errors among {counted(len(predictions), 'image')}"
        figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=14)
        return figure
    figure = _gallery(predictions, read, wrong[:PICTURES])
    several = "errors, the most confident first" if len(wrong) > 1 else "error"
    figure.suptitle(f"{min(len(wrong), PICTURES)} of {len(wrong):,} {several}", fontsize=12)
    return figure


def errors_by_pair(predictions: Predictions, read: Read) -> Figure | None:
    """The most frequent confusions, a line each, with the most confident of their errors; None without errors."""
    support = np.bincount(known_labels(predictions), minlength=len(predictions.classes))
    lines = []
    for truth, predicted, rows in error_pairs(predictions)[:LINES]:
        first, other = (short(predictions.classes[k], 26) for k in (truth, predicted))
        share = percent(len(rows) / support[truth])
        text = f"{first} predicted as {other}: {len(rows):,} of {support[truth]:,} ({share})"
        lines.append((text, rows[:WIDE], [percent(predictions.confidence[i]) for i in rows[:WIDE]]))
    return _in_lines(predictions, read, lines)


def finding_errors(predictions: FindingPredictions, read: Read) -> Figure | None:
    """The findings with the most misses or false alarms, a line each, with their worst images; None without errors."""
    lines = []
    for f, name in enumerate(predictions.classes):
        labels = known_labels(predictions)[:, f]
        for rows, what, value in zip(wrong_rows(predictions, f), ("missed", "false alarm"), (1, 0), strict=True):
            of = int((labels == value).sum())
            text = f"{short(name, 40)}, {what}: {len(rows):,} of {of:,} ({percent(len(rows) / max(1, of))})"
            lines.append((text, rows, [percent(predictions.probabilities[i, f]) for i in rows[:WIDE]]))
    lines = sorted((line for line in lines if len(line[1])), key=lambda line: -len(line[1]))[: 2 * LINES]
    return _in_lines(predictions, read, [(text, rows[:WIDE], titles) for text, rows, titles in lines])


def suspected_labels(predictions: Predictions, read: Read) -> Figure | None:
    """The images with the most doubtful labels, and the suggestions; None without any."""
    suspects, suggested, _ = find_suspects(predictions)
    rows, labels, names = suspects[:18], known_labels(predictions), predictions.classes
    pairs = zip(rows, suggested, strict=False)
    titles = [f"label: {short(names[labels[i]], 14)}\nsuggested: {short(names[k], 12)}" for i, k in pairs]
    parts = range(0, len(rows), WIDE)
    figure = _in_lines(predictions, read, [("", rows[k : k + WIDE], titles[k : k + WIDE]) for k in parts])
    if figure is not None:
        figure.suptitle(f"{len(rows)} of {len(suspects):,}, the most doubtful first", fontsize=10)
    return figure


def grid(predictions: Predictions, read: Read) -> Figure:
    """Images drawn at random (always the same ones), with prediction and truth; without labels, the prediction."""
    shown = np.sort(np.random.default_rng(0).permutation(len(predictions))[:PICTURES])
    figure = _gallery(predictions, read, shown)
    if len(shown) < len(predictions):
        figure.suptitle(f"{len(shown)} of {len(predictions):,} images, drawn at random", fontsize=12)
    return figure


def contact_sheet(images: Mapping[str, Sequence[np.ndarray]], classes: int, title: str) -> Figure:
    """What the network sees: a row of uint8 arrays (H, W) or (H, W, 3) for each class shown, of `classes` in all."""
    columns = max([1, *map(len, images.values())])
    size = 1.2 * columns + 1.6, max(1.0, 1.2 * len(images))
    figure, _ = sheet(size, [(short(name, 20), pictures) for name, pictures in images.items()])
    title += f"; {len(images):,} of {classes:,} classes shown" if len(images) < classes else ""
    figure.suptitle(title, fontsize=12 if columns > 4 else 8)
    return figure


def _gallery(predictions: Predictions, read: Read, rows: np.ndarray) -> Figure:
    columns = min(len(rows), 6)
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(max(4.5, 1.75 * columns + 0.4), 2.35 * lines + 0.5), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False)
    for axes, i in zip(panels.flat, rows, strict=False):
        show_row(axes, predictions, read, i)
        label_outcome(axes, predictions, i, 16)
    hide_ticks(panels.flat)
    return figure


def _in_lines(
    predictions: Predictions, read: Read, lines: Sequence[tuple[str, np.ndarray, Sequence[str]]]
) -> Figure | None:
    if not lines:
        return None
    deep = max(title.count("\n") for _, _, titles in lines for title in titles)
    height = 1.72 + 0.16 * deep + 0.24 * any(text for text, _, _ in lines)
    figure = Figure(figsize=(9.2, height * len(lines) + 0.2), layout="constrained")
    for part, (text, rows, titles) in zip(figure.subfigures(len(lines), 1, squeeze=False)[:, 0], lines, strict=True):
        if text:
            part.suptitle(text, fontsize=10, x=0.01, ha="left")
        panels = part.subplots(1, WIDE)
        for axes, i, title in zip(panels, rows, titles, strict=False):
            show_row(axes, predictions, read, int(i))
            axes.set_title(title, fontsize=8)
            axes.spines[:].set(color=RED, linewidth=2)
        hide_ticks(panels)
    return figure


def label_outcome(axes: Axes, predictions: Predictions, row: int, most: int) -> None:
    """What was predicted and how surely: a class, the likeliest finding or a number; with labels also the truth, in a
    frame that is green where they agree."""
    labels, truth, right = predictions.labels, "", None
    if predictions.kind == "number":
        ends = predictions.intervals
        answer = f"{predictions.amounts[row, 0]:.3g} {predictions.target.unit}".rstrip()
        sure = "" if ends is None else f"({ends[row, 0]:.3g} to {ends[row, 1]:.3g})"
        if labels is not None:
            truth, right = f"truth: {labels[row]:.3g}", None if ends is None else bool(predictions.right[row])
    else:
        k = int(predictions.explained[row])
        answer, sure = short(predictions.classes[k], most), percent(predictions.probabilities[row, k])
        if predictions.kind == "findings":
            words, called = ("absent", "present"), bool(predictions.predicted[row, k])
            if labels is None or labels[row, k] == UNKNOWN:
                sure += f": {words[called]}"
            else:
                truth, right = f"{words[called]}; truth: {words[labels[row, k]]}", called == labels[row, k]
        elif labels is not None:
            truth, right = f"truth: {short(predictions.classes[labels[row]], most)}", bool(labels[row] == k)
    if predictions.columns.get(ANSWER, ("",) * len(predictions))[row].startswith(NO):
        truth += "\n" * bool(truth) + "no answer"  # a line of its own: beside the name of a class it is too wide
    mark, colour = {True: ("✓ ", GREEN), False: ("✗ ", RED), None: ("", GREY)}[right]
    axes.set_title(f"{mark}{answer} {sure}\n{truth}" if truth else f"{answer}\n{sure}", fontsize=8)
    axes.spines[:].set(color=colour, linewidth=3)


def show_row(axes: Axes, predictions: Predictions, read: Read, row: int) -> None:
    """The image of a row, or a grey field where it cannot be read, with its name beneath."""
    try:
        show(axes, read(predictions.paths[row]))
    except (VitmedError, OSError, ValueError):
        show(axes, np.full((8, 8), 200, np.uint8))
        axes.text(0.5, 0.5, "cannot be read", transform=axes.transAxes, ha="center", va="center", fontsize=8)
    axes.set_anchor("N")  # the titles of a line are level
    axes.set_xlabel(path_label(predictions.name(int(row)), 24), fontsize=8)


def prediction_picture(predictions: Predictions, how: Preprocessing) -> bytes:
    """Draw a PNG of up to 24 of the images with their predictions, in the window and of the frame of `how`."""
    at = {path: place_of(path) if is_remote(path) else path for path in predictions.paths}
    return png(grid(predictions, lambda path: np.asarray(read_image(at[path], frame=how.frame, window=how.window))))


MAP_COLOURS = "cividis"  # dark blue to yellow: made for colour-blind readers, and it rises in lightness


def attention_maps(predictions: Predictions, maps: Maps) -> Figure | None:
    """A line of panels for every image that has maps, two images beside each other where there are several."""
    count, across = len(maps.rows), 1 + len(maps.grids)
    if not count:
        return None
    beside = min(2, count)
    lines = -(-count // beside)
    size = 2.4 if beside == 1 else 1.32  # inches a panel
    before = 0.1 if beside == 1 else 0.4  # inches: the title of a small picture is wider than the picture
    width, height = (size + 0.08) * across * beside + 0.9 + before, (size + 0.68) * lines + 0.32
    # Placed by hand: the layout "constrained" takes a second and a half.
    figure = Figure(figsize=(width, height))
    places = {"left": before / width, "right": 1 - 0.9 / width, "top": 1 - 0.56 / height, "bottom": 0.44 / height}
    panels = figure.subplots(
        lines, across * beside, squeeze=False, gridspec_kw=places | {"wspace": 0.08 / size, "hspace": 0.68 / size}
    )
    for axes in panels.flat:
        axes.set_axis_off()
    grey = maps.images[..., : 3 if maps.images.shape[3] >= 3 else 1].mean(axis=3)  # (B, S, S)
    for i, row in enumerate(maps.rows):
        line, column = i // beside, i % beside * across
        picture = panels[line, column]
        picture.set_axis_on()
        show(picture, maps.images[i])
        target, most = int(maps.targets[i]), 16 if beside == 2 else 30
        label_outcome(picture, predictions, int(row), most)
        text = path_label(predictions.name(int(row)), 24)
        if predictions.kind == "number":
            mean = f"{predictions.target.centre:.3g} {predictions.target.unit}".rstrip()
            text += f"\nmaps for {predictions.answers[target]} than {mean}"
        elif target != predictions.explained[row]:  # else the prediction says it
            sure = percent(predictions.probabilities[row, target])
            text += f"\nmaps for {short(predictions.classes[target], most)} {sure}"
        picture.set_xlabel(text, fontsize=8)
        picture.set(xticks=[], yticks=[])
        for axes, (name, grid) in zip(panels[line, column + 1 : column + across], maps.grids.items(), strict=True):
            near = cells(maps.images.shape[1], grid.shape[1], maps.shift)
            values = grid[i][np.ix_(near, near)]  # (S, S), not smoothed, which would suggest more detail than there is
            axes.set_axis_on()
            axes.imshow(grey[i], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            if not values.any():  # a Grad-CAM of an answer that nothing in the image speaks for
                nothing = axes.text(0.5, 0.5, "nothing marked", transform=axes.transAxes, ha="center", fontsize=8)
                nothing.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 2})
            axes.imshow(values, cmap=MAP_COLOURS, vmin=0, vmax=1, alpha=0.25 + 0.5 * values, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            if line == 0 or beside == 1:
                axes.set_title(TITLES[name].replace("-weighted ", "-weighted\n"), fontsize=8 if beside == 2 else 10)
    place = figure.add_axes((1 - 0.78 / width, places["bottom"], 0.16 / width, min(3, height - 1) / height))
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), MAP_COLOURS), cax=place)
    bar.set_ticks([0, 1], labels=["least", "most"])
    bar.set_label("weight within one map", fontsize=8, labelpad=-14)
    bar.ax.tick_params(labelsize=8)
    return figure
