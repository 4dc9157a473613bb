"""What is said beside the numbers: why one is undefined, and what must be known before they are believed."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from vitmed.core.text import counted, listed
from vitmed.metrics.estimates import Numbers
from vitmed.metrics.table import PER_CLASS

FEW_GROUPS = 10  # below this many groups the spread between them is itself hardly known
FEW_IMAGES = 30  # the same of independent images


def undefined(found: Numbers) -> dict[str, str]:
    """Why each number without a value has none."""
    n, classes, per_class = found.n, found.classes, found.per_class
    reasons: dict[str, str] = {}
    by_class: dict[tuple[str, str], str] = {}
    for c in classes:
        for name in PER_CLASS:
            if per_class[c][name].value is not None:
                continue
            if not n:
                why = "there are no images"
            elif not 0 < per_class[c].n < n:
                why = f"every image is of class '{c}'" if per_class[c].n == n else f"there is no image of class '{c}'"
            elif name == "ppv":
                why = f"no image was predicted as '{c}'"
            else:
                why = f"every image was predicted as '{c}'"
            by_class[name, c] = reasons[f"{name} of {c}"] = why
    for name, entry in found.overall.items():
        if entry.value is not None:
            continue
        base = re.sub("_(macro|weighted)$", "", name)
        if name in ("auroc", "average_precision") and found.positive_class:
            kinds = [found.positive_class]
        else:
            kinds = [c for c in classes if per_class[c].n]
        whys = [by_class[base, c] for c in kinds if (base, c) in by_class]
        # without one it is MCC or kappa, which need two classes and not the numbers of each
        reasons[name] = whys[0] if whys else "all images are of one class" if n else "there are no images"
    return reasons


def without_interval(found: Numbers) -> dict[str, str]:
    """Why each number that has a value has no interval; empty where none could have one, which a note says."""
    units = found.n if found.n_groups is None else found.n_groups
    unit = "image" if found.n_groups is None else "patient"
    if units < 2:
        return {}
    entries = {f"{m} of {c}": found.per_class[c][m] for c in found.classes for m in PER_CLASS}
    reasons = {}
    for name, entry in {**found.overall, **entries}.items():
        if entry.value is None or entry.low is not None:
            continue
        if entry.method == "bootstrap":
            reasons[name] = "nearly all resamples give the same value, or none" if found.resamples else "not asked for"
        elif entry.method == "influence":
            reasons[name] = "no image changes it, so nothing tells how much it varies"
        else:
            reasons[name] = f"what it counts comes from fewer than 2 {unit}s"
    return reasons


def notes(found: Numbers, labels: np.ndarray, units: np.ndarray, groups: Sequence[str] | None) -> list[str]:
    """What a reader must know before believing the numbers."""
    told = []
    n_units = int(units.max()) + 1 if len(units) else 0
    unit = "image" if groups is None else "patient"
    absent = [f"'{c}'" for c, entry in found.per_class.items() if not entry.n]
    if absent and found.n:
        told.append(
            f"There is no image of class {listed(absent)}: what needs one is undefined, and averages over classes are "
            "without it."
        )
    if n_units < 2:
        told.append(f"There is no interval: it needs at least 2 {unit}s and there is {n_units or 'none'}.")
        return told
    if n_units < (FEW_IMAGES if groups is None else FEW_GROUPS):
        told.append(
            f"There are only {n_units} {unit}s: the intervals are rough, and what is outside of them is not excluded."
        )
    unknown = sum(1 for name in groups or () if not name)
    if unknown:
        lack = "has no patient; it" if unknown == 1 else "have no patient; each"
        told.append(f"{counted(unknown, 'image')} {lack} counts as a patient of its own.")
    lonely = [f"'{c}'" for k, c in enumerate(found.classes) if len(np.unique(units[labels == k])) == 1]
    if lonely and groups is not None:
        told.append(
            f"All images of class {listed(lonely)} come from one patient: its intervals say nothing of other patients."
        )
    return told


def single_class_note(found: Numbers) -> list[str]:
    """A note where images of several classes are all called the same; empty otherwise."""
    called = np.asarray(found.confusion_matrix).sum(axis=0)
    kinds = sum(1 for entry in found.per_class.values() if entry.n)
    if kinds < 2 or np.count_nonzero(called) != 1:
        return []
    return [
        f"Every image is called '{found.classes[int(called.argmax())]}': the model has learned nothing that "
        "decides, or its threshold is wrong."
    ]


def missing_interval_note(found: Numbers) -> list[str]:
    """A note where numbers have a value and no interval; `no_interval` has the reasons. Empty otherwise."""
    count = len(found.no_interval)
    if not count:
        return []
    lack = "1 number has no interval; it is" if count == 1 else f"{count:,} numbers have no interval; they are"
    return [f"{lack} no more certain for that. Why stands in the report beneath 'All numbers'."]
