"""Figures that show the images: galleries of errors and doubtful labels, a sample, the contact sheet.

A picture is labelled by its row, unless the predictions allow its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitmed.core.errors import VitmedError
from vitmed.core.targets import UNKNOWN
from vitmed.core.text import counted
from vitmed.imaging.decode import read_image
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.confusions import error_pairs, wrong_rows
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.label_errors import find_suspects
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.report.plots.drawing import GREEN, GREY, RED, hide_ticks, path_label, percent, png, sheet, short, show

PICTURES = 24  # images in a gallery
LINES, WIDE = 4, 6  # lines of a gallery by pair or patient, pictures in a line
SUSPECTS = 18
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


def errors_by_patient(predictions: Predictions, read: Read) -> Figure | None:
    """The patients with the most errors, a line each; None without errors, or where patients are unknown."""
    wrong = predictions.mistakes()
    if predictions.groups is None or not len(wrong):
        return None
    units = predictions.units
    images, errors = np.bincount(units), np.bincount(units[wrong], minlength=int(units.max()) + 1)
    if images.max() == 1:
        return None
    lines = []
    for patient in [k for k in np.lexsort([images, -errors])[:LINES] if errors[k]]:
        rows = wrong[units[wrong] == patient][:WIDE]
        titles = [
            f"{short(predictions.classes[known_labels(predictions)[i]], 14)} →\n"
            f"{short(predictions.classes[predictions.predicted[i]], 14)} {percent(predictions.confidence[i])}"
            for i in rows
        ]
        lines.append((f"patient {patient + 1}: {errors[patient]:,} of {images[patient]:,} wrong", rows, titles))
    return _in_lines(predictions, read, lines)


def finding_errors(predictions: FindingPredictions, read: Read) -> Figure | None:
    """The findings with the most misses or false alarms, a line each, with their worst images; None without errors."""
    lines = []
    for f, name in enumerate(predictions.classes):
        known = known_labels(predictions)[:, f]
        for rows, what, value in zip(wrong_rows(predictions, f), ("missed", "false alarm"), (1, 0), strict=True):
            of = int((known == value).sum())
            text = f"{short(name, 40)}, {what}: {len(rows):,} of {of:,} ({percent(len(rows) / max(1, of))})"
            lines.append((text, rows, [percent(predictions.probabilities[i, f]) for i in rows[:WIDE]]))
    lines = sorted((line for line in lines if len(line[1])), key=lambda line: -len(line[1]))[: 2 * LINES]
    return _in_lines(predictions, read, [(text, rows[:WIDE], titles) for text, rows, titles in lines])


def suspected_labels(predictions: Predictions, read: Read) -> Figure | None:
    """The images with the most doubtful labels, and the suggestions; None without any.

    Args:
        predictions: with labels, of images that the model was not trained on.
    """
    found = find_suspects(predictions)
    rows, labels, names = found.rows[:SUSPECTS], known_labels(predictions), predictions.classes
    titles = [
        f"label: {short(names[labels[i]], 14)}\nsuggested: {short(names[other], 12)}"
        for i, other in zip(rows, found.suggested, strict=False)
    ]
    parts = range(0, len(rows), WIDE)
    figure = _in_lines(predictions, read, [("", rows[k : k + WIDE], titles[k : k + WIDE]) for k in parts])
    if figure is not None:
        figure.suptitle(f"{len(rows)} of {len(found.rows):,}, the most doubtful first", fontsize=10)
    return figure


def grid(predictions: AnyPredictions, read: Read) -> Figure:
    """Images drawn at random (always the same ones), with prediction and truth; without labels, the prediction.

    Args:
        predictions: of one image or more.
    """
    shown = np.sort(np.random.default_rng(0).permutation(len(predictions))[:PICTURES])
    figure = _gallery(predictions, read, shown)
    if len(shown) < len(predictions):
        figure.suptitle(f"{len(shown)} of {len(predictions):,} images, drawn at random", fontsize=12)
    return figure


def contact_sheet(images: Mapping[str, Sequence[np.ndarray]], classes: int) -> Figure:
    """What the network is shown: one row of images per class.

    Args:
        images: class name -> uint8 arrays (H, W) or (H, W, 3).
        classes: how many there are; the figure says so where it shows fewer.
    """
    columns = max([1, *map(len, images.values())])
    size = 1.2 * columns + 1.6, max(1.0, 1.2 * len(images))
    figure, _ = sheet(size, [(short(name, 20), pictures) for name, pictures in images.items()])
    if len(images) < classes:
        figure.suptitle(f"{len(images):,} of {classes:,} classes shown", fontsize=12)
    return figure


def _gallery(predictions: AnyPredictions, read: Read, rows: np.ndarray) -> Figure:
    """Images of the given rows, one or more, with what was predicted and what is true."""
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
    predictions: Predictions | FindingPredictions, read: Read, lines: Sequence[tuple[str, np.ndarray, Sequence[str]]]
) -> Figure | None:
    """Lines of pictures, each with a heading and a title over each picture."""
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


class Outcome(NamedTuple):
    """The answer that a map explains, in words; `truth` is "" and `right` None where they are unknown."""

    answer: str
    sure: str
    truth: str
    right: bool | None


def outcome_of(predictions: AnyPredictions, row: int, most: int) -> Outcome:
    """The answer for one image: class, likeliest finding, or number with its interval; names of `most` letters."""
    labels = predictions.labels
    if isinstance(predictions, NumberPredictions):
        ends = predictions.intervals
        text = "" if ends is None else f"({ends[row, 0]:.3g} to {ends[row, 1]:.3g})"
        truth = "" if labels is None else f"truth: {labels[row]:.3g}"
        right = bool(predictions.right[row]) if labels is not None and ends is not None else None
        return Outcome(f"{predictions.values[row]:.3g} {predictions.target.unit}".rstrip(), text, truth, right)
    k = int(predictions.explained[row])
    name, sure = short(predictions.classes[k], most), percent(predictions.probabilities[row, k])
    if isinstance(predictions, FindingPredictions):
        words, called = ("absent", "present"), bool(predictions.predicted[row, k])
        if labels is None or labels[row, k] == UNKNOWN:
            return Outcome(name, f"{sure}: {words[called]}", "", None)
        there = bool(labels[row, k])
        return Outcome(name, sure, f"{words[called]}; truth: {words[there]}", called == there)
    if labels is None:
        return Outcome(name, sure, "", None)
    return Outcome(name, sure, f"truth: {short(predictions.classes[labels[row]], most)}", bool(labels[row] == k))


def label_outcome(axes: Axes, predictions: AnyPredictions, row: int, most: int) -> None:
    """What was predicted and, with labels, the truth; in a frame that is green where they agree."""
    found = outcome_of(predictions, row, most)
    mark = {True: "✓ ", False: "✗ ", None: ""}[found.right]
    lines = f"{mark}{found.answer} {found.sure}\n{found.truth}" if found.truth else f"{found.answer}\n{found.sure}"
    axes.set_title(lines, fontsize=8)
    axes.spines[:].set(color={True: GREEN, False: RED, None: GREY}[found.right], linewidth=3)


def show_row(axes: Axes, predictions: AnyPredictions, read: Read, row: int) -> None:
    """The image of a row, or a grey field where it cannot be read, with its name beneath."""
    try:
        show(axes, read(predictions.paths[row]))
    except (VitmedError, OSError, ValueError):
        show(axes, np.full((8, 8), 200, np.uint8))
        axes.text(0.5, 0.5, "cannot be read", transform=axes.transAxes, ha="center", va="center", fontsize=8)
    axes.set_anchor("N")  # the titles of a line are level
    axes.set_xlabel(path_label(predictions.name(int(row)), 24), fontsize=8)


def prediction_picture(predictions: AnyPredictions, how: Preprocessing) -> bytes:
    """Draw a PNG of up to 24 of the images with their predictions, in the window and of the frame of `how`."""
    return png(grid(predictions, lambda path: np.asarray(read_image(path, frame=how.frame, window=how.window))))
