"""The notes beside the numbers: why one is undefined, and what a reader must know about them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from vitmed.core.text import counted, listed
from vitmed.metrics.estimates import Numbers
from vitmed.metrics.metric_table import PER_CLASS

FEW_GROUPS = 10  # below this many groups the spread between them is itself hardly known
FEW_IMAGES = 30  # the same of independent images
NEARLY_ALL = 0.95  # of the images: a model that calls so many the same has learnt nothing
FEW_POSITIVE = 10  # below so many images of a class, their number hardly shows how common it is
BY_PREVALENCE = "PPV, F1, MCC, kappa and average precision"  # numbers that depend on how common a class is
FEWEST = 5  # with fewer patients (or independent images) of a class, only intervals of proportions and AUROC hold


def undefined(found: Numbers) -> dict[str, str]:
    """Why each number without a value has none."""
    n, per_class = found.n, found.per_class
    reasons: dict[str, str] = {}
    for c, own in per_class.items():
        for name in PER_CLASS:
            why = f"{'no' if name == 'ppv' else 'every'} image was predicted as '{c}'"
            if own.n in (0, n):
                why = f"every image is of class '{c}'" if own.n else f"there is no image of class '{c}'"
            if own[name].value is None:
                reasons[f"{name} of {c}"] = why if n else "there are no images"
    for name in [name for name, entry in found.overall.items() if entry.value is None]:
        base = _of_each(name)
        one = found.positive_class if name in ("auroc", "average_precision") else None
        keys = [f"{base} of {c}" for c in ([one] if one else per_class) if per_class[c].n or "_weighted" not in name]
        whys = [reasons[key] for key in keys if key in reasons]
        # without one it is MCC or kappa, which need two classes and not the numbers of each
        reasons[name] = whys[0] if whys else "all images are of one class" if n else "there are no images"
    return reasons


def without_interval(found: Numbers, holders: Mapping[str, int]) -> dict[str, str]:
    """Why each number that has a value has no interval; empty with fewer than 2 units, which `notes` reports.
    `holders`: class -> how many patients (or images, where they are unknown) have it."""
    units, unit = _units(found)
    if units < 2:
        return {}
    entries = {f"{m} of {c}": found.per_class[c][m] for c in found.classes for m in PER_CLASS}
    few = {c: f"too few to say: {counted(n, unit)} of class '{c}'" for c, n in holders.items() if 0 < n < FEWEST}
    of_two = next(iter(few.values()), None) if len(found.classes) == 2 else None
    reasons: dict[str, str] = {}
    for name, entry in (entries | found.overall).items():
        if entry.value is None or entry.low is not None:
            continue
        base = _of_each(name)
        parts = [reasons[key] for c in found.classes if (key := f"{base} of {c}") in reasons]
        if entry.method == "influence":
            why = few.get(name.partition(" of ")[2]) or of_two or "no image shows how much it varies"
            if name in ("log_loss", "brier") and found.overall["accuracy"].value == 1 and not of_two:
                why = "no image is wrong, so none shows what an error costs"
        else:
            area = base.startswith("auroc")
            why = f"the images {'of one kind' if area else 'that it counts'} come from fewer than 2 {unit}s"
            if area and min(n for n in holders.values() if n) > 1 and units > 2:
                why = f"no {unit} changes it, so its variance is unknown"
        reasons[name] = parts[0] if parts else why
    return reasons


def _of_each(name: str) -> str:
    """The number of each class whose mean this one is."""
    return "sensitivity" if name == "balanced_accuracy" else re.sub("_(macro|weighted)$", "", name)


def _units(found: Numbers) -> tuple[int, str]:
    return (found.n, "image") if found.n_groups is None else (found.n_groups, "patient")


def notes(found: Numbers, holders: Mapping[str, int], units: int, groups: Sequence[str] | None) -> list[str]:
    """What a reader must know about the numbers.

    Args:
        holders: class -> how many patients (or images, where they are unknown) have it.
        units: how many patients (or images) there are.
        groups: the patient of each image; None where they are unknown.
    """
    found_notes = []
    if found.n and (absent := [f"'{c}'" for c, entry in found.per_class.items() if not entry.n]):
        missing = f"There is no image of class {listed(absent)}: "
        found_notes.append(f"{missing}numbers that need one, such as balanced accuracy, are undefined.")
    found_notes += few_notes(found, holders, units, groups)
    if units < 2:
        return found_notes
    single = [f"'{c}'" for c, count in holders.items() if count == 1]
    if single and groups is not None:
        whose = "class {} come from one patient: its" if len(single) == 1 else "each of {} come from one patient: their"
        found_notes.append(f"All images of {whose.format(listed(single))} intervals do not hold for other patients.")
    return [*found_notes, *below_chance(found)]


def few_notes(
    found: Numbers, holders: Mapping[str, int], units: int, groups: Sequence[str] | None, noun: str = "class"
) -> list[str]:
    """Notes on few patients, or images, of each class and in all; arguments as in `notes`, `noun` for what is rare."""
    unit = "image" if groups is None else "patient"
    if units < 2:
        return [f"There is no interval: it needs at least 2 {unit}s and there is {units or 'none'}."]
    found_notes = _of_rare_classes(found, holders, unit, units, noun)
    if units < (FEW_IMAGES if groups is None else FEW_GROUPS):
        found_notes.append(f"There are only {units} {unit}s: the intervals are rough.")
    if unknown := sum(not name for name in groups or ()):
        lack = "has no patient; it" if unknown == 1 else "have no patient; each"
        found_notes.append(f"{counted(unknown, 'image')} {lack} counts as a patient of its own.")
    return found_notes


def below_chance(found: Numbers, noun: str = "classes") -> list[str]:
    """A note if the model ranks clearly worse than chance, which a wrong table explains better than a bad model."""
    area = found.overall["auroc"]
    if area.value is None or area.low is None or area.high is None or area.high >= 0.5:
        return []
    what = "the two classes" if found.positive_class is not None else f"the {noun}"
    return [
        f"The AUROC is {area.value:.3f} ({area.low:.3f} to {area.high:.3f}), clearly below 0.5: the labels, or the "
        f"columns of {what}, may be swapped."
    ]


def _of_rare_classes(found: Numbers, holders: Mapping[str, int], unit: str, units: int, noun: str) -> list[str]:
    """A note on the number of images and patients of the classes that have few; empty where all have enough."""
    enough = FEW_IMAGES if unit == "image" else FEW_GROUPS
    enough = FEWEST if units < enough else enough  # another note says that there are few of all
    few = {c: n for c, n in holders.items() if 0 < n < enough}
    if not few:
        return []
    rarest = min(few, key=lambda c: (few[c], found.per_class[c].n))
    n, more = found.per_class[rarest].n, len(few) - 1
    count = f"{noun.capitalize()} '{rarest}' has only {counted(few[rarest], unit)}"
    if n > few[rarest]:
        count += f" ({counted(n, 'image')})"
    also = f" {counted(more, f'other {noun}')} also {'has' if more == 1 else 'have'} few {unit}s." if more else ""
    rest = f"the numbers that depend on this {noun} are uncertain, as their intervals show."
    if few[rarest] < FEWEST:
        rest = (
            f"too few to say how well the model finds it. Numbers that need {FEWEST} {unit}s or more have no interval."
        )
    if n < FEW_POSITIVE:
        rest += f" Intervals of {BY_PREVALENCE} hold only where the {noun} is as common as in these images."
    return [f"{count}: {rest}{also}"]


def learnt_nothing(found: Numbers) -> list[str]:
    """A note if the predictions hardly depend on the image: nearly all are one class (which is not that of the images),
    hardly any finding is called, or one number would do as well; empty otherwise."""
    few = 1 - NEARLY_ALL
    if found.confusion_matrix:
        cells, n = np.asarray(found.confusion_matrix), found.n
        called = cells.sum(axis=0)
        top = int(called.argmax())
        others = n - int(cells[top].sum())  # images of other classes
        if np.count_nonzero(cells.sum(axis=1)) < 2 or called[top] < NEARLY_ALL * max(1, n):
            return []
        if called[top] - cells[top, top] < NEARLY_ALL * others:
            return []
        every = "Every image is" if called[top] == n else f"{called[top]:,} of {n:,} images are"
        return [
            f"{every} predicted as '{found.classes[top]}': the model does not distinguish the classes, or its "
            "threshold is wrong."
        ]
    if "r2" in found.overall:
        r2 = found.overall["r2"].value
        if r2 is None or r2 > few:
            return []
        return [f"R² is {r2:.3f}: one number for all images would be about as good, so the model does not predict it."]
    held = [one for one in found.per_class.values() if one.n and one.sensitivity.value is not None]
    present = sum(one.n for one in held)
    hits = round(sum(one.n * (one.sensitivity.value or 0.0) for one in held))
    specific = [one.specificity.value for one in found.per_class.values() if one.specificity.value is not None]
    if not present or hits > few * present or min(specific, default=1.0) < NEARLY_ALL:
        return []
    what = "No finding is called" if not hits and min(specific, default=1.0) == 1 else "Hardly any finding is called"
    return [
        f"{what}: the model finds {hits:,} of {present:,} that are there. It does not distinguish the images, or its "
        "thresholds are wrong."
    ]


def missing_interval_note(found: Numbers) -> list[str]:
    """A note if numbers have a value and no interval; `no_interval` has the reasons. Empty otherwise."""
    count = len(found.no_interval)
    if not count:
        return []
    lack = "1 number has" if count == 1 else f"{count:,} numbers have"
    unknown = "its uncertainty is unknown, not small" if count == 1 else "their uncertainty is unknown, not small"
    return [f"{lack} no interval: {unknown}. The report gives the reasons below 'All numbers'."]
