"""The folder of a report: table, numbers, figures and one HTML file that needs nothing else.

Everything is made from `Predictions`; `read` is needed only for the figures that show the images. So
`write_report(folder, Predictions.from_csv(file), read=None, ...)` rebuilds a report without model or images.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vitmed.core.base_models import CLASSES, Frozen
from vitmed.core.files import whole_folder, write_bytes, write_json, write_text
from vitmed.core.run_folder import BASELINE, ISSUES, METHODS_TEXT, NUMBERS, PREDICTIONS, REPORT
from vitmed.core.text import counted, now
from vitmed.core.train_config import EvaluateConfig
from vitmed.decisions.folds import Folds
from vitmed.decisions.policy import DecisionPolicy
from vitmed.decisions.targets import TARGETS
from vitmed.explanation.results import Maps
from vitmed.metrics.estimates import Numbers
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.label_errors import issues_csv
from vitmed.metrics.notes import learnt_nothing, missing_interval_note
from vitmed.metrics.paired_comparison import holm
from vitmed.metrics.predictions import Predictions, target_of
from vitmed.metrics.predictions_files import read_predictions
from vitmed.report.analyses import ANALYSES, Material
from vitmed.report.chapters import PLOTS
from vitmed.report.finding_reports import write_finding_reports
from vitmed.report.markdown import to_markdown
from vitmed.report.methods_text import methods_markdown
from vitmed.report.page import render
from vitmed.report.plots.curves import drawn_curves
from vitmed.report.plots.drawing import Drawn, drawn
from vitmed.report.plots.pictures import Read
from vitmed.report.results import Baseline, Flow, Origin, Results
from vitmed.report.slider import slider_data

TABLE_ALONE = "Made from a table alone: the split and the model are unknown."

MARKDOWN = "report.md"
BASELINES = {
    # key in metrics.json and file name -> what it is, for `baseline_text`
    "frozen_features": "{} on the features of the pretrained network, not fine-tuned",
    "nearest_neighbours": "nearest neighbours in the features of the pretrained network, not fine-tuned",
    "colour_and_size": "{} that sees the colours and the size of an image, but no shapes",
}


def write_report(
    folder: str | Path,
    predictions: AnyPredictions,
    *,
    title: str,
    facts: Mapping[str, str],
    read: Read | None = None,
    records: Sequence[Mapping[str, Any]] | None = None,
    validation: AnyPredictions | None = None,
    internal: AnyPredictions | None = None,
    config: EvaluateConfig | None = None,
    notes: Sequence[str] = (),
    baselines: Mapping[str, AnyPredictions] | None = None,
    policy: DecisionPolicy | None = None,
    weights_hash: str | None = None,
    found: Mapping[str, Frozen | None] | None = None,
    maps: Maps | None = None,
    flow: Flow | None = None,
    folds: Folds | None = None,
    run: str = "",
    precision: str = "fp32",
    earlier: Origin | None = None,
    figures: Collection[str] | None = None,
) -> Results:
    """Write predictions.csv, metrics.json, methods.md, label_issues.csv, figures and report.html: all or nothing.

    Of findings, each gets such a folder of its own below `findings/`, as a prediction of two classes.

    Figures are PNG and SVG. And report.md where `config.format` asks for it. Without `config.report` neither figures
    nor pages. A report holds no patient, and unless `config.show_names` no file name: a picture is known by its row in
    predictions.csv. What stands in `title`, `facts` and `notes` is the caller's to keep free of them.

    Args:
        folder: not there yet, or empty.
        predictions: with labels.
        title: headline of the report.
        facts: name -> value, about data, model and training, as a table.
        read: path of an image as in `predictions.paths` -> uint8 (H, W) or (H, W, 3); None leaves pictures out.
        records: of metrics.jsonl, for the training curves; None or empty leaves them out.
        validation: what the same model predicts for the validation images, on which everything is chosen.
        internal: where other images are evaluated, what the same model and policy predict for its own test.
        config: what to find; the defaults otherwise.
        notes: what must be known before the numbers are believed; shown above them.
        baselines: key in `BASELINES` -> what it says of the same images; kept as baseline_<key>.csv.
        policy: the decision policy, as it was applied to `predictions`; None where there is none.
        weights_hash: of the weights that are evaluated; None where there are none, or several.
        found: attention, robustness or external -> what was found with the model itself, or with other tables.
        maps: of attention, of some of the images; None leaves their figure out.
        flow: where the images come from; None where it is not known.
        folds: of pooled folds, what each has; None of one model.
        run: the name of the run folder, not its path.
        precision: in which the network computed the predictions.
        earlier: of the report that is made again from its table; None where the images are evaluated now.
        figures: the names in `PLOTS` that are drawn; None draws all that have something to show.

    Returns:
        what metrics.json holds.

    Raises:
        DataError: the predictions have no labels.
        UsageError: a column of `config.subgroups` is not there, or the folder cannot be written.
    """
    folder, config = Path(folder), config or EvaluateConfig()
    predictions = replace(predictions, named=config.show_names)
    target = target_of(predictions, config.ordinal)
    kind = TARGETS[target.kind]
    numbers = kind.evaluate(predictions, config.resamples)
    compared = {key: _beside(key, target.kind, predictions, other, config) for key, other in (baselines or {}).items()}
    stored = None if policy is None else policy.to_json()
    dates = {"created": now()} if earlier is None else {"created": earlier.created, "rebuilt": now()}
    origin = Origin(
        title=title, run=run, **dates, facts=dict(facts), notes=list(notes), evaluate=config.model_dump(),
        policy=stored, precision=precision,
    )  # fmt: skip
    material = Material(predictions, numbers, validation, internal, config, policy, folds)
    parts: dict[str, Any] = {key: analyse(material) for key, analyse in ANALYSES[target.kind].items()}
    parts |= {"baselines": compared, "report": origin, "weights_hash": weights_hash, "flow": flow, "folds": folds}
    parts |= {"target": target} if target != CLASSES else {}
    shown = numbers.model_copy(update={"notes": _warnings(predictions, numbers, notes)})
    metrics = Results.of(shown, **parts | dict(found or {}))
    pictures = _draw(predictions, metrics, read, maps, figures) if config.report else {}
    if records and config.report:
        pictures["training_curves"] = drawn_curves(records)
    with whole_folder(folder) as part:
        if isinstance(predictions, FindingPredictions):
            reports = write_finding_reports(
                part, material, partial(
                    write_report, title=title, facts=facts, read=read, weights_hash=weights_hash,
                    run=run, precision=precision, earlier=earlier,
                ), baselines or {}, flow,
            )  # fmt: skip
            metrics = metrics.model_copy(update={"finding_reports": reports})
        _write_tables(part, predictions, baselines or {}, metrics)
        if config.report:
            _write_pages(part, predictions, metrics, pictures, "md" in config.format.split(","))
    return metrics


def _beside(key: str, of: str, predictions: AnyPredictions, other: AnyPredictions, config: EvaluateConfig) -> Baseline:
    """The comparison with a baseline, of labels of a kind; of findings also finding by finding."""
    kind = TARGETS[of]
    found = Baseline(text=baseline_text(key, of), **dict(kind.compare(predictions, other, config.resamples)))
    if not isinstance(predictions, FindingPredictions):
        return found
    each = kind.compare_each(predictions, other)["auroc"]
    adjusted = zip(each, holm([gap.p for gap in each.values()]), strict=True)
    return found.model_copy(
        update={"findings": {name: each[name].model_copy(update={"p_holm": p}) for name, p in adjusted}}
    )


def baseline_text(key: str, kind: str) -> str:
    """What a baseline is, in the words of the report."""
    return BASELINES[key].format(TARGETS[kind].linear)


def _warnings(predictions: AnyPredictions, numbers: Numbers, notes: Sequence[str]) -> list[str]:
    """What stands above the numbers: the notes of the caller, and those of the numbers."""
    found = [*learnt_nothing(numbers), *notes, *numbers.notes, *missing_interval_note(numbers)]
    found.sort(key=lambda note: note == TABLE_ALONE)  # last: the page shows the first and folds the others
    if predictions.errors:
        unread = counted(len(predictions.errors), "image")
        found.append(f"{unread} could not be read; only those that could are counted.")
    return found


def _draw(
    predictions: AnyPredictions, metrics: Results, read: Read | None, maps: Maps | None, chosen: Collection[str] | None
) -> dict[str, Drawn]:
    """The figures of `PLOTS` that have something to show, or those `chosen` of them."""
    figures = {}
    doubted = metrics.label_errors
    for name, plot in PLOTS.items():
        if metrics.target.kind not in plot.kinds or (chosen is not None and name not in chosen):
            continue
        if name == "suspected_labels" and (doubted is None or doubted.reason is not None):
            continue
        source = maps if plot.maps else read if plot.pictures else metrics
        figure = None if source is None else plot.draw(predictions, source)
        if figure is not None:
            figures[name] = drawn(figure, plot.pictures or plot.maps)
    return figures


def _write_tables(
    folder: Path, predictions: AnyPredictions, baselines: Mapping[str, AnyPredictions], metrics: Results
) -> None:
    write_text(folder / PREDICTIONS, predictions.to_csv())
    for key, other in baselines.items():
        write_text(folder / f"{BASELINE}{key}.csv", other.to_csv())
    doubted = metrics.label_errors is not None and metrics.label_errors.reason is None
    if doubted and isinstance(predictions, Predictions):
        write_text(folder / ISSUES, issues_csv(predictions))
    write_json(folder / NUMBERS, metrics.to_dict())


def _write_pages(
    folder: Path, predictions: AnyPredictions, metrics: Results, figures: Mapping[str, Drawn], markdown: bool
) -> None:
    slider = slider_data(predictions, metrics.operating_points) if isinstance(predictions, Predictions) else None
    page = partial(render, metrics, figures, slider)
    for name, figure in figures.items():
        write_bytes(folder / f"{name}.png", figure.png)
        write_bytes(folder / f"{name}.svg", figure.svg)
    write_text(folder / REPORT, page())
    write_text(folder / METHODS_TEXT, methods_markdown(metrics))
    if markdown:
        write_text(folder / MARKDOWN, to_markdown(page(linked=True)))


def read_baselines(folder: Path) -> dict[str, AnyPredictions]:
    """The baselines that stand beside a predictions.csv."""
    files = {key: folder / f"{BASELINE}{key}.csv" for key in BASELINES}
    return {key: read_predictions(file, labelled=True) for key, file in files.items() if file.is_file()}
