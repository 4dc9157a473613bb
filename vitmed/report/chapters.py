"""The chapters of the page and their figures: `sections` and `plots`, whose words are in chapters.yaml.

A chapter is an entry there, a template in sections/ and its figures. A figure is an entry there, and its function here
in `DRAWN`. Pictures are labelled by their row in `predictions.csv` (the first image is row 1), never by a file name,
which may contain the name of a patient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import yaml
from matplotlib.figure import Figure

from vitmed.report.plots import classification, comparisons, curves, decisions, kinds, participant_flow, pictures

MANY = 12  # own reports of findings, beyond which each has the figures in `MAIN` alone: drawing takes 2 s a report
MAIN = ("roc", "precision_recall", "reliability")
KINDS = ("classes", "grades")  # of labels that have a chapter or a figure where it names none


@dataclass(frozen=True)
class Plot:
    """A figure of the report.

    Attributes:
        text: one to three sentences below it, for a reader who sees such a figure for the first time.
        draw: (predictions, `Results`) -> Figure; with `pictures` (predictions, read), with `maps` (predictions, maps).
            None if there is nothing to draw.
        pictures: it shows the images themselves.
        maps: it shows attention maps.
        kinds: of labels that have it, keys of `TARGETS`.
    """

    title: str
    text: str
    draw: Callable[..., Figure | None]
    pictures: bool = False
    maps: bool = False
    kinds: tuple[str, ...] = KINDS


class Section(NamedTuple):
    """What a chapter is: see `Chapter`; the kinds of labels that have it, keys of `TARGETS`; and its figures."""

    title: str
    question: str
    part: str
    kinds: tuple[str, ...] = KINDS
    figures: Mapping[str, Plot] = MappingProxyType({})


DRAWN: dict[str, Callable[..., Figure | None]] = {
    "flow": participant_flow.flow,
    "by_finding": kinds.by_finding,
    "co_occurrence": kinds.co_occurrence,
    "cuts": kinds.cuts,
    "worst_errors": pictures.finding_errors,
    "predicted_and_true": kinds.predicted_and_true,
    "bland_altman": kinds.bland_altman,
    "confusion_matrix": classification.confusion_matrix,
    "roc": classification.roc,
    "precision_recall": classification.precision_recall,
    "per_patient": comparisons.patient_spread,
    "subgroups": comparisons.forest,
    "beside_own_test": comparisons.beside_own_test,
    "prevalence": decisions.prevalence,
    "decision_curve": decisions.decision_curve,
    "decision_curves": decisions.one_against_rest,
    "reliability": decisions.reliability,
    "risk_coverage": decisions.risk_coverage,
    "out_of_distribution": decisions.out_of_distribution,
    "errors": pictures.errors,
    "errors_by_pair": pictures.errors_by_pair,
    "errors_by_patient": pictures.errors_by_patient,
    "suspected_labels": pictures.suspected_labels,
    "grid": pictures.grid,
    "attention_maps": pictures.attention_maps,
    "robustness": curves.robustness,
    "training_curves": curves.training_curves,
}


@cache
def sections() -> dict[str, Section]:
    """The chapters in their order, by key."""
    found = {}
    for key, section in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items():
        figures = {name: Plot(draw=DRAWN[name], **figure) for name, figure in section.pop("figures", {}).items()}
        found[key] = Section(**section, figures=figures)
    return found


def plots() -> dict[str, Plot]:
    """The figures that are drawn from predictions, by name; training curves are drawn from the records of training."""
    figures = {name: plot for section in sections().values() for name, plot in section.figures.items()}
    return {name: plot for name, plot in figures.items() if name != "training_curves"}
