"""How many images and patients an interval of a given width needs, or a lower bound above a given value.

The intervals are those of the report at the expected value. Sensitivity and specificity: Wilson's, which needs nearly
as many images as the formula of Buderer, Acad. Emerg. Med. 3 (1996) 895. AUROC: on the logit scale with the variance of
Hanley & McNeil, Radiology 143 (1982) 29, which is usually too large, so the sample is on the safe side. Where patients
have several images, their number is divided by the design effect of Kish, Survey Sampling (1965), 1 + (m - 1) icc, and
Student's t replaces the normal quantile. The chance that sensitivity or specificity lies above a bound is that of the
report's own interval: `chance_above`.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.text import counted
from vitmed.metrics.intervals import INFINITE, LEVEL, NONE, Units, logit_interval, quantile, share, wilson

MOST = 10**8  # patients; a goal that needs more has no answer
TESTS = 1000  # simulated; the standard error of a chance of 0.8 is 0.013
SIMULATED = 40_000  # images of a test at most; with more the formula decides, whose chance may be 0.1 lower
ROUNDING = 1 - 1e-9  # 158.00000000000003 images are 158
NUMBERS = ("sensitivity", "specificity", "auroc")


class Goal(Frozen):
    """Either half the width of the interval, or a value below its lower bound.

    The lower bound is to lie above `lower_bound` with the chance `power`, if the expected value is the true one.
    """

    half_width: float | None = None
    lower_bound: float | None = None
    power: float = 0.8

    def smallest(self, ends: Callable[[int, float], tuple[float, float]]) -> int | None:
        """The smallest number of patients whose interval `ends(patients, luck)` reaches the goal; None for too many.
        The value lies `luck` standard errors below what is expected: by bad luck, where a lower bound is the goal."""
        luck = 0.0 if self.lower_bound is None else NormalDist().inv_cdf(self.power)

        def reached(patients: int) -> bool:
            low, high = ends(patients, luck)
            if self.half_width is None:
                return self.lower_bound is not None and low >= self.lower_bound
            return (high - low) / 2 <= self.half_width

        place = bisect_left(range(2, MOST + 1), True, key=reached)
        return place + 2 if place + 2 <= MOST else None


class Design(Frozen):
    """Who is evaluated: the images of each patient, all of one class, and how alike they are."""

    images_per_patient: float = 1.0  # at least 1
    icc: float = 0.0  # intraclass correlation of being right, 0..1
    prevalence: float | None = None  # share of positive images

    @property
    def design_effect(self) -> float:
        """Variance over that of as many independent images."""
        return 1 + (self.images_per_patient - 1) * self.icc


class NeededSample(Frozen):
    """What a goal needs; `low` and `high` are the interval at the expected value.

    `counted` images of `counted_patients` are of the class that the number counts: positive for sensitivity, negative
    for specificity, all for AUROC. `images` and `patients` are all at the prevalence; None where it is not given.
    """

    number: str
    expected: float
    goal: Goal
    design: Design
    design_effect: float
    low: float
    high: float
    counted: int
    counted_patients: int
    images: int | None
    patients: int | None


def needed_sample(number: str, expected: float, goal: Goal, design: Design) -> NeededSample | None:
    """The smallest sample with which one of `NUMBERS` reaches a goal; None where it has more than `MOST` patients. The
    expected value is in (0, 1), of an AUROC in (0.5, 1) and with a prevalence."""
    each, effect, prevalence = design.images_per_patient, design.design_effect, design.prevalence
    ends = partial(interval_ends, number, expected, design)
    patients = goal.smallest(ends)
    if patients is None:
        return None
    if goal.lower_bound is not None and number != "auroc" and (each == 1 or patients * each <= SIMULATED):
        above = partial(chance_above, goal.lower_bound, expected, design)
        if each == 1:  # hits are whole, so with more images the chance may fall again: from above all such sizes down
            smaller = range(2 * patients + 20, 1, -1 - patients // 5_000)
            *_, patients = itertools.takewhile(lambda size: above(size) >= goal.power, smaller)
        else:
            larger = itertools.count(patients, 1 + patients // 25)
            patients = next(size for size in larger if above(size) >= goal.power)
    counted, total = math.ceil(patients * each * ROUNDING), dict[str, Any](images=None, patients=None)
    if prevalence is not None:
        of_kind = {"auroc": 1.0, "specificity": 1 - prevalence}.get(number, prevalence)
        images = math.ceil(counted / of_kind * ROUNDING)
        total = {"images": images, "patients": math.ceil(images / each * ROUNDING)}
    low, high = ends(patients, 0.0)
    about: dict[str, Any] = {"number": number, "expected": expected, "goal": goal, "design": design}
    interval: dict[str, Any] = {"design_effect": effect, "low": low, "high": high}
    return NeededSample(**about, **interval, counted=counted, counted_patients=patients, **total)


def interval_ends(number: str, value: float, design: Design, patients: int, luck: float) -> tuple[float, float]:
    """The interval of a number for `Goal.smallest`."""
    each, prevalence = design.images_per_patient, design.prevalence
    n = patients * each / design.design_effect
    if number != "auroc":
        seen = value - luck * math.sqrt(value * (1 - value) / n)
        return wilson(seen, n, quantile(max(1, patients - 1) if each > 1 else INFINITE)) if seen >= 0 else NONE
    assert prevalence is not None
    if (fewer := patients * min(prevalence, 1 - prevalence)) < 2:
        return NONE
    z = quantile(fewer - 1 if each > 1 else INFINITE)
    return logit_interval(value, area_error(value, n * prevalence, n * (1 - prevalence)), z + luck)


def chance_above(bound: float, value: float, design: Design, patients: int) -> float:
    """The chance that the interval of a proportion that is truly `value` lies above `bound`. Of independent images by
    the binomial distribution; else by tests drawn with a fixed seed, in which being right is beta-binomial."""
    if design.images_per_patient == 1:
        from scipy.special import bdtrc  # imported here: predict starts without it

        hits = range(patients + 1)
        least = bisect_left(hits, True, key=lambda k: wilson(k / patients, patients, quantile())[0] >= bound)
        return float(bdtrc(least - 1, patients, value))
    places = np.floor(np.arange(patients + 1) * design.images_per_patient + 1e-9).astype(np.int64)
    units, rng = Units(np.repeat(np.arange(patients), np.diff(places))), np.random.default_rng(0)
    odds = 1 / min(max(design.icc, 1e-6), 1 - 1e-6) - 1
    above = 0
    for _ in range(TESTS):
        right = rng.beta(value * odds, (1 - value) * odds, size=patients)
        above += share(rng.random(len(units.index)) < right[units.index], None, units).low >= bound
    return above / TESTS


def area_error(value: float, positives: float, negatives: float) -> float:
    """Standard error of an AUROC from these numbers of independent images: Hanley & McNeil 1982, eq. 1 and 2, which
    assume scores that vary more among positives. Where positives are the commoner kind, that variance is far too small
    for other scores; then the two kinds change places."""
    fewer, more = sorted((positives, negatives))
    of_fewer, of_more = value / (2 - value) - value**2, 2 * value**2 / (1 + value) - value**2
    spread = value * (1 - value) + (fewer - 1) * of_fewer + (more - 1) * of_more
    return math.sqrt(spread / (positives * negatives))


def in_words(sample: NeededSample) -> list[str]:
    """The answer, line by line."""
    goal, design, several = sample.goal, sample.design, sample.design.images_per_patient > 1
    number = "AUROC" if sample.number == "auroc" else sample.number
    kind = {"sensitivity": "positive ", "specificity": "negative "}.get(sample.number, "")

    def size(images: int, patients: int, which: str = "") -> str:
        return counted(images, f"{which}image") + (f" of {counted(patients, 'patient')}" if several else "")

    who, level = size(sample.counted, sample.counted_patients, kind), f"{100 * LEVEL:.0f} % interval"
    if not kind:
        who += f", {sample.counted * (design.prevalence or 0):,.0f} of them positive,"
    most = "" if kind else "at most "  # the variance of an AUROC is on the safe side
    what = f"of {sample.low:.3f} to {sample.high:.3f}, {most}{goal.half_width} to either side on average"
    if goal.half_width is None:
        chance = "about" if several or not kind else "at least"  # of single images also with more of them
        what = f"that lies above {goal.lower_bound:g} with a chance of {chance} {100 * goal.power:g} %"
    lines = [f"If the {number} is {sample.expected:g}, {who} give a {level} {what}."]
    if kind and sample.images is not None and sample.patients is not None:
        lines.append(f"At a prevalence of {design.prevalence:g} these are in {size(sample.images, sample.patients)}.")
    if kind and design.prevalence is None:
        lines.append("--prevalence adds in how many images of all these are.")
    each = "Each image counts as independent: with several for each patient, add --images-per-patient and --icc."
    if several:
        each = f"{design.images_per_patient:g} images for each patient, design effect {sample.design_effect:.3g}."
    return [*lines, each]
