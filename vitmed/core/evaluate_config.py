"""The section `evaluate`: what an evaluation reports, and how."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

from pydantic import field_validator

from vitmed.core.settings import Flag, Section, names_in, setting

GRADE_ERRORS = ("absolute", "squared")  # values of evaluate.cost that follow from the order of grades


def read_cost(value: Any) -> str | list[list[float]] | None:
    """Read `evaluate.cost` from YAML or the command line: null, a value of `GRADE_ERRORS`, two numbers with a colon, or
    a square matrix (also as JSON). Raises ValueError for anything else, or a cost below 0."""
    if value is None or value in GRADE_ERRORS:
        return value  # type: ignore[no-any-return]
    given = value
    try:
        if isinstance(value, str) and value.lstrip().startswith("["):
            value = json.loads(value)
        if isinstance(value, str):
            costs = [float(part) for part in value.split(":")]
            good = len(costs) == 2 and all(0 < cost < math.inf for cost in costs)
        else:
            value = [[float(cost) for cost in row] for row in value]
            good = all(len(row) == len(value) and all(0 <= cost < math.inf for cost in row) for row in value)
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ValueError(
            f"evaluate.cost {given}: expected two numbers above 0 such as 10:1 (in YAML with quotes), a square "
            "matrix of numbers from 0 such as [[0,10],[1,0]], with the true class as row, or absolute or squared for "
            "grades"
        )
    return value


SHARES = ("target_sensitivity", "target_specificity", "prevalence", "coverage", "max_risk")  # fields between 0 and 1
FORMATS = ("html", "md", "json")  # that a report can be written as


class EvaluateConfig(Section):
    """What an evaluation reports, and how. It changes no weight; everything is chosen on validation."""

    panel = "Evaluation"

    resamples: int = setting(
        2000, "Bootstrap resamples behind the intervals of curves and differences; 0: none.", Flag(), ge=0
    )
    subgroups: list[str] = setting(
        [],
        "Column of the table of labels, such as site; the images of each value are also evaluated separately.",
        Flag("subgroup", metavar="COLUMN"),
    )
    raters: list[str] = setting(
        [],
        "Column of the table of labels with the class that a human reader assigned.",
        Flag("rater", metavar="COLUMN"),
    )
    rater_scores: list[str] = setting(
        [],
        "Two classes: column of the table of labels with a reader's score, higher for the positive class.",
        Flag("rater_score", metavar="COLUMN"),
    )
    ordinal: list[str] = setting(
        [], "The classes from the lowest grade to the highest, where they are grades.", Flag(metavar="CLASS,CLASS,...")
    )
    calibration: Literal["auto", "none", "temperature", "vector"] = setting(
        "auto", "How the probabilities are calibrated; fitted, and by auto chosen, on validation.", Flag()
    )
    youden: bool = setting(False, "Two classes: decide at the threshold of the highest Youden index.", Flag())
    balanced: bool = setting(
        False,
        "Three classes or more: decide for the highest balanced accuracy, by probability / prevalence in validation.",
        Flag(),
    )
    target_sensitivity: float | None = setting(
        None, "Two classes: decide at the highest threshold with this sensitivity.", Flag(metavar="SHARE"), gt=0, lt=1
    )
    target_specificity: float | None = setting(
        None, "Two classes: decide at the lowest threshold with this specificity.", Flag(metavar="SHARE"), gt=0, lt=1
    )
    cost: str | list[list[float]] | None = setting(
        None,
        "Decide for the lowest expected cost: 10:1, or [[0,10],[1,0]] with the truth as row. Of two classes '10:1' "
        "means that a missed positive costs 10 times a false alarm; of more, give a matrix whose columns are the "
        "predictions. Of grades, 'absolute' costs the error in grades and 'squared' its square.",
        Flag(metavar="MISSED:ALARM|MATRIX|absolute|squared"),
    )
    prevalence: float | None = setting(
        None,
        "Two classes: how common the positive class is where the model is to be used.",
        Flag(metavar="SHARE"),
        gt=0,
        lt=1,
    )
    coverage: float = setting(
        0.9, "How often the prediction set of an image holds its true class.", Flag(metavar="SHARE"), gt=0, lt=1
    )
    max_risk: float | None = setting(
        None,
        "Abstain on uncertain images, to keep the share of wrong answers at or below this.",
        Flag(metavar="SHARE"),
        gt=0,
        lt=1,
    )
    map_images: int | None = setting(
        None,
        "Images on which attention maps are evaluated; 0: no maps. null: as many as take some seconds, and none of "
        "train and val.",
        Flag(metavar="N"),
        ge=0,
    )
    format: str = setting(
        "html",
        "Formats of the report: html, md, json. html and json are always written.",
        Flag(panel="Output", metavar="FORMAT,..."),
    )
    report: bool = setting(
        True,
        "Draw figures and write report.html. false: only predictions.csv and metrics.json; `vitmed evaluate` makes "
        "the page later.",
        Flag(panel="Output"),
    )
    show_names: bool = setting(
        False,
        "Name images by their paths in the report. false: by their rows in predictions.csv.",
        Flag(panel="Output"),
    )

    @field_validator("subgroups", "raters", "rater_scores", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return list(dict.fromkeys([value] if isinstance(value, str) else value)) if value else []

    _ordinal = field_validator("ordinal", mode="before")(names_in)
    _cost = field_validator("cost", mode="before")(read_cost)

    @field_validator("format")
    @classmethod
    def _known_formats(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")]
        if unknown := [name for name in names if name not in FORMATS]:
            raise ValueError(f"evaluate.format {unknown[0]}: expected {', '.join(FORMATS)}")
        return ",".join(dict.fromkeys(names))
