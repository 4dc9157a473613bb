"""A folder that tells what a model is worth: table, numbers, figures and one HTML file that needs nothing else.

Everything is made from `Predictions`; `read` is needed only for the figures that show the images. So
`write_report(folder, Predictions.from_csv(file), read=None, ...)` rebuilds a report without model or images.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vitmed.metrics import FEW_GROUPS, METRICS, PER_CLASS, compare_predictions, evaluate_predictions
from vitmed.plots import PLOTS, Read, png, training_curves
from vitmed.predictions import Predictions
from vitmed.run import make_folder, write_bytes, write_json, write_text

PREDICTIONS, NUMBERS, REPORT, BASELINE = "predictions.csv", "metrics.json", "report.html", "baseline_"
HEADLINE = ("auroc", "balanced_accuracy", "accuracy", "mcc")  # after them, of two classes, those of the positive one
BASELINES = {
    # key in metrics.json and file name -> what it is, in the words of the report
    "frozen_features": "logistic regression on the features of the pretrained network, not fine-tuned",
    "nearest_neighbours": "nearest neighbours in the features of the pretrained network, not fine-tuned",
    "colour_and_size": "logistic regression on the colours and the size of the image, which sees no shapes",
}
CLASS_TITLES = {
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "f1": "F1",
    "auroc": "AUROC",
    "average_precision": "Average precision",
}


def write_report(
    folder: str | Path,
    predictions: Predictions,
    *,
    title: str,
    facts: Mapping[str, str],
    read: Read | None = None,
    records: Sequence[Mapping[str, Any]] | None = None,
    resamples: int = 2000,
    notes: Sequence[str] = (),
    baselines: Mapping[str, Predictions] | None = None,
) -> dict[str, Any]:
    """Write predictions.csv, metrics.json, the figures as PNG, and report.html; each whole or not at all.

    report.html holds no file name and no patient: a picture is known by its row in predictions.csv. What stands in
    `title`, `facts` and `notes` is the caller's to keep free of them.

    Args:
        folder: made if it is not there.
        predictions: with labels.
        title: headline of the report.
        facts: name -> value, about data, model and training, as a table.
        read: path of an image as in `predictions.paths` -> uint8 (H, W) or (H, W, 3); None leaves pictures out.
        records: of metrics.jsonl, for the training curves; None or empty leaves them out.
        resamples: of the bootstrap.
        notes: what must be known before the numbers are believed; shown above them.
        baselines: key in `BASELINES` -> what it says of the same images; kept as baseline_<key>.csv.

    Returns:
        what metrics.json holds: `evaluate_predictions` with all notes, `baselines` {key: `compare_predictions`}, and
        `report`: title, facts, notes as given.

    Raises:
        DataError: the predictions have no labels.
        UsageError: the folder cannot be written.
    """
    folder = Path(folder)
    metrics = evaluate_predictions(predictions, resamples=resamples)
    metrics["baselines"] = {
        key: {"text": BASELINES[key], **compare_predictions(predictions, other, resamples)}
        for key, other in (baselines or {}).items()
    }
    metrics["report"] = {"title": title, "facts": dict(facts), "notes": list(notes)}  # so that it can be made again
    metrics["notes"] = [*notes, *metrics["notes"]]
    if predictions.errors:
        metrics["notes"].append(f"{len(predictions.errors)} images could not be read and are not counted.")

    figures: dict[str, bytes] = {}
    for name, plot in PLOTS.items():
        if plot.pictures and read is None:
            continue
        figures[name] = png(plot.draw(predictions, read if plot.pictures else metrics))
    if records:
        figures["training_curves"] = png(training_curves(records))
    html = render(metrics, figures, title=title, facts=facts)

    make_folder(folder)
    write_text(folder / PREDICTIONS, predictions.to_csv())
    for key, other in (baselines or {}).items():
        write_text(folder / f"{BASELINE}{key}.csv", other.to_csv())
    write_json(folder / NUMBERS, metrics)
    for name, data in figures.items():
        write_bytes(folder / f"{name}.png", data)
    write_text(folder / REPORT, html)
    return metrics


def render(metrics: Mapping[str, Any], figures: Mapping[str, bytes], *, title: str, facts: Mapping[str, str]) -> str:
    """The text of report.html: one file without scripts, that loads nothing.

    Args:
        metrics: from `evaluate_predictions`.
        figures: name in `PLOTS`, or training_curves -> PNG.
    """
    positive = metrics["positive_class"]
    headline = [(METRICS[name].title, metrics["overall"][name]) for name in HEADLINE]
    if positive is not None:
        names = ("sensitivity", "specificity", "ppv", "npv")
        headline += [(CLASS_TITLES[name], metrics["per_class"][positive][name]) for name in names]
    shown = [
        {
            "title": PLOTS[name].title if name in PLOTS else "Training",
            "text": PLOTS[name].text if name in PLOTS else "Loss, validation metrics and learning rate by epoch.",
            "source": "data:image/png;base64," + base64.b64encode(data).decode(),
        }
        for name, data in figures.items()
    ]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        title=title,
        facts=facts,
        metrics=metrics,
        headline=headline,
        sampling=_sampling(metrics),
        overall=[(metric, metrics["overall"][name]) for name, metric in METRICS.items()],
        class_titles=[(name, CLASS_TITLES[name]) for name in PER_CLASS],
        figures=shown,
        few_groups=FEW_GROUPS,
        compared=[(name, METRICS[name].title) for name in HEADLINE[:3]],
        signed=lambda entry: "undefined" if entry["value"] is None else f"{entry['value']:+.3f}",
        value=lambda entry: "undefined" if entry["value"] is None else f"{entry['value']:.3f}",
        interval=lambda entry: "" if entry["low"] is None else f"{entry['low']:.3f} to {entry['high']:.3f}",
    )


def read_baselines(folder: Path) -> dict[str, Predictions]:
    """The baselines that stand beside a predictions.csv."""
    files = {key: folder / f"{BASELINE}{key}.csv" for key in BASELINES}
    return {key: Predictions.from_csv(file) for key, file in files.items() if file.is_file()}


def _sampling(metrics: Mapping[str, Any]) -> str:
    """How the intervals came about, in a sentence for a reader who does not know the bootstrap."""
    what = f"{metrics['level']:.0%} intervals: the middle of {metrics['resamples']:,} resamples (percentile bootstrap)."
    if metrics["resampling"] == "by patient":
        return (
            f"{what} Each resample draws {metrics['n_groups']:,} of the {metrics['n_groups']:,} patients with "
            "replacement, each with all images, so the intervals show how the numbers would differ with other patients."
        )
    return (
        f"{what} Each resample draws {metrics['n']:,} of the {metrics['n']:,} images with replacement. The patients "
        "are unknown: if they have several images each, the intervals are too narrow."
    )
