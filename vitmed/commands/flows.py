"""The flow of a run's images, for its reports: from the checkpoint and what the check before the training counted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vitmed.checkpoint import Checkpoint
from vitmed.config import DataConfig
from vitmed.flow import characteristics, copies_in_two, flow_of
from vitmed.metrics import group_index
from vitmed.predictions import Predictions
from vitmed.run import RunFolder


def run_flow(
    saved: Checkpoint,
    run: RunFolder,
    split: str | None,
    predictions: Predictions,
    columns: Sequence[str],
    seen: Mapping[str, int | None],
) -> dict[str, Any]:
    """`flow.flow_of` of a run; `judged`: what this report is about; and `characteristics` of the splits.

    Args:
        split: of the run that is judged; None for other images.
        columns: that subgroups were asked for; those that the run's own table has not are left out.
        seen: of other images, as `membership.Chosen` has it.
    """
    flow = flow_of(saved.splits, saved.hashes, data_counts(run), why_left_out(saved.config.data))
    known = [name for name in columns if name in saved.splits.columns]
    return {**flow, "judged": judged(predictions, split, seen), "characteristics": characteristics(saved.splits, known)}


def judged(predictions: Predictions, split: str | None, seen: Mapping[str, int | None] | None = None) -> dict[str, Any]:
    """Which images a report is about: of which split, how many, by class, and what of them the model had seen."""
    units = None if predictions.groups is None else group_index(predictions.groups, len(predictions))
    found: dict[str, Any] = {"split": split, "images": len(predictions)}
    found["patients"] = None if units is None else len(np.unique(units))
    if predictions.labels is not None:
        images = {c: predictions.labels == k for k, c in enumerate(predictions.classes)}
        found["classes"] = {
            c: {"images": int(of.sum()), "patients": None if units is None else len(np.unique(units[of]))}
            for c, of in images.items()
        }
    return {**found, "seen": dict(seen or {})}


def folds_flow(
    folds: Sequence[Checkpoint], runs: Sequence[RunFolder], predictions: Predictions, columns: Sequence[str]
) -> dict[str, Any]:
    """The flow of pooled folds: the test of each takes the place of a split.

    Patients and files count as in two where they are in two tests, or in two splits of one fold.

    Args:
        predictions: of all folds.
        columns: as of `run_flow`.
    """
    first, names = folds[0].splits, [f"fold {number}" for number in range(1, len(folds) + 1)]
    tests = replace(
        first,
        samples={name: fold.splits.samples["test"] for name, fold in zip(names, folds, strict=True)},
        made={name: fold.splits.made.get("test", "") for name, fold in zip(names, folds, strict=True)},
    )
    hashes = {name: fold.hashes["test"] for name, fold in zip(names, folds, strict=True)}
    counts = [data_counts(run) for run in runs]
    crossing = [int(count["duplicates_across_splits"]) for count in counts if "duplicates_across_splits" in count]
    most = {"duplicates_across_splits": max(crossing) if len(crossing) == len(folds) else None}
    flow = flow_of(tests, hashes, {**counts[0], **most}, why_left_out(folds[0].config.data))
    shared = set(tests.shared()).union(*(fold.splits.shared() for fold in folds))
    flow["copies_in_two"] = len(copies_in_two(hashes).union(*(copies_in_two(fold.hashes) for fold in folds)))
    if tests.grouped:
        flow |= {"level": "none" if shared else "patient", "patients_in_two": len(shared)}
    known = [name for name in columns if name in first.columns]
    told = {**judged(predictions, "test"), "folds": len(folds)}
    return {**flow, "judged": told, "characteristics": characteristics(tests, known)}


def data_counts(run: RunFolder) -> Mapping[str, Any]:
    """What the check before the training counted; nothing for a run of before there was such a file."""
    try:
        counts = json.loads(run.data_check.read_text(encoding="utf-8"))["counts"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return counts if isinstance(counts, dict) else {}


def why_left_out(data: DataConfig) -> str:
    """Why files of the data folder are in no split, in words."""
    reasons = [] if data.max_train is None else [f"a sample of {data.max_train:,} for training was asked for"]
    reasons.append("not named in the table of labels" if data.labels else "outside the folders of classes and splits")
    return ", or ".join(reasons)
