"""Galleries in lines: errors by pair of classes and by patient, and images with a doubtful label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from vitmed.metrics.confusions import error_pairs
from vitmed.metrics.label_errors import find_suspects
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.scoring import known_labels
from vitmed.report.plots.drawing import RED, bare, percent, short
from vitmed.report.plots.pictures import Read, show_row

LINES, WIDE = 4, 6  # lines of a gallery, pictures in a line
SUSPECTS = 18


def errors_by_pair(predictions: Predictions, read: Read) -> Figure | None:
    """The most frequent confusions, a line each, with the most confident of their errors; None without errors."""
    support = np.bincount(known_labels(predictions), minlength=len(predictions.classes))
    lines = []
    for truth, predicted, rows in error_pairs(predictions)[:LINES]:
        first, other = (short(predictions.classes[k], 26) for k in (truth, predicted))
        share = percent(len(rows) / support[truth])
        text = f"{first} predicted as {other}: {len(rows):,} of {support[truth]:,} ({share})"
        lines.append((text, rows[:WIDE], [percent(predictions.confidence[i]) for i in rows[:WIDE]]))
    return _lines(predictions, read, lines)


def errors_by_patient(predictions: Predictions, read: Read) -> Figure | None:
    """The patients with the most errors, a line each; None without errors, or where patients are unknown."""
    wrong = np.flatnonzero(predictions.predicted != known_labels(predictions))
    if predictions.groups is None or not len(wrong):
        return None
    wrong = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")]
    units = predictions.units
    images, errors = np.bincount(units), np.bincount(units[wrong], minlength=int(units.max()) + 1)
    if images.max() == 1:
        return None
    lines = []
    for patient in np.lexsort([images, -errors])[:LINES]:
        if not errors[patient]:
            continue
        rows = wrong[units[wrong] == patient][:WIDE]
        titles = [
            f"{short(predictions.classes[known_labels(predictions)[i]], 14)} →\n"
            f"{short(predictions.classes[predictions.predicted[i]], 14)} {percent(predictions.confidence[i])}"
            for i in rows
        ]
        lines.append((f"patient {patient + 1}: {errors[patient]:,} of {images[patient]:,} wrong", rows, titles))
    return _lines(predictions, read, lines)


def suspected_labels(predictions: Predictions, read: Read) -> Figure | None:
    """The images with the most doubtful labels, and the suggestions; None without any.

    Args:
        predictions: with labels, of images that the model was not trained on.
    """
    found = find_suspects(predictions)
    if not len(found.rows):
        return None
    rows, labels, names = found.rows[:SUSPECTS], known_labels(predictions), predictions.classes
    titles = [
        f"label: {short(names[labels[i]], 14)}\nsuggested: {short(names[other], 12)}"
        for i, other in zip(rows, found.suggested, strict=False)
    ]
    parts = range(0, len(rows), WIDE)
    figure = _lines(predictions, read, [("", rows[k : k + WIDE], titles[k : k + WIDE]) for k in parts])
    if figure is not None:
        figure.suptitle(f"{len(rows)} of {len(found.rows):,}, the most doubtful first", fontsize=10)
    return figure


def _lines(
    predictions: Predictions, read: Read, lines: Sequence[tuple[str, np.ndarray, Sequence[str]]]
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
        bare(panels)
    return figure
