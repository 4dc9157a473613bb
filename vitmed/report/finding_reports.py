"""The report of each finding: that of two classes, in a folder of its own below the report of all findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vitmed.core.run_folder import REPORT
from vitmed.decisions.folds import fold_notes
from vitmed.decisions.policy import FindingPolicy
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.kinds.findings import FindingPredictions, fewer_holders
from vitmed.metrics.notes import FEWEST
from vitmed.metrics.predictions import Predictions
from vitmed.report.analyses import Material
from vitmed.report.chapters import MAIN, MANY
from vitmed.report.participant_flow import evaluated_images
from vitmed.report.results import Flow, Results

FOLDER = "findings"


def write_finding_reports(
    folder: Path, material: Material, write: Callable[..., Results], baselines: Mapping[str, AnyPredictions],
    flow: Flow | None,
) -> dict[str, str]:  # fmt: skip
    """Write the report of every finding that at least `FEWEST` patients (or images, where patients are unknown) have,
    and as many have an image without; of validation, on which decisions were chosen, the tables alone.
    Of more than `MANY` findings, each report has the figures in `MAIN` alone.

    Args:
        folder: of the report of all findings.
        material: of that report.
        write: `write_report`, with what all reports share.

    Returns:
        finding -> its page, relative to the folder; its folder of tables where no pages are asked for.
    """
    predictions, policy, folds = material.predictions, material.policy, material.folds
    assert isinstance(predictions, FindingPredictions) and (policy is None or isinstance(policy, FindingPolicy))
    found, held = {}, fewer_holders(predictions)
    figures = MAIN if sum(count >= FEWEST for count in held) > MANY else None
    for (name, place), count in zip(folder_names(predictions.classes).items(), held, strict=True):
        if count < FEWEST:
            continue
        view = predictions.of(name)
        own = None if policy is None else policy.findings[name]
        view = view if own is None else own.apply(view)
        evaluated = flow and flow.evaluated
        pages = material.config.report and not (evaluated and evaluated.split == "val")
        about = evaluated and evaluated_images(view, evaluated.split, evaluated.seen, evaluated.folds)
        of_folds = None if folds is None else folds.findings[name]
        notes = [*(own.notes if own else ()), *(fold_notes(of_folds) if of_folds else ())]
        write(
            folder / FOLDER / place, view, validation=_view(material.validation, name),
            internal=_view(material.internal, name), policy=own, notes=notes, folds=of_folds,
            config=material.config.model_copy(update={"report": pages}),
            baselines={key: _view(other, name) for key, other in baselines.items()},
            flow=flow and flow.model_copy(update={"evaluated": about}), figures=figures,
        )  # fmt: skip
        found[name] = f"{FOLDER}/{place}/{REPORT}" if pages else f"{FOLDER}/{place}"
    return found


def _view(predictions: Any, finding: str) -> Predictions | None:
    return predictions.of(finding) if isinstance(predictions, FindingPredictions) else None


def folder_names(findings: tuple[str, ...]) -> dict[str, str]:
    """Finding -> the name of its folder, in letters, digits and hyphens; no two are the same."""
    names: dict[str, str] = {}
    for finding in findings:
        plain = re.sub(r"[^a-z0-9]+", "-", finding.lower()).strip("-")[:60] or "finding"
        taken, number = set(names.values()), 2
        name = plain
        while name in taken:
            name, number = f"{plain}-{number}", number + 1
        names[finding] = name
    return names
