"""`vitmed sample-size`: how many images and patients a goal for an evaluation needs."""

from __future__ import annotations

from vitmed.core.errors import UsageError, unknown_key
from vitmed.core.text import counted
from vitmed.metrics.intervals import LEVEL
from vitmed.metrics.sample_size import MOST, NUMBERS, Design, Goal, NeededSample, needed_sample


def sample_size(
    number: str, expected: float, *, half_width: float | None = None, lower_bound: float | None = None,
    power: float | None = None, prevalence: float | None = None, images_per_patient: float = 1.0, icc: float = 0.0,
    ) -> NeededSample:  # fmt: skip
    """How many images and patients an evaluation needs. Give half_width or lower_bound.

    Args:
        number: sensitivity, specificity or auroc.
        expected: the value that you expect, above 0 and below 1; of an AUROC above 0.5.
        half_width: half the width of the 95 % interval.
        lower_bound: what the lower end of the interval is to exceed.
        power: the chance that it does, if the expected value is the true one, 0.5 or more; default 0.8. Only with
            lower_bound.
        prevalence: share of positive images; an AUROC needs it.
        images_per_patient: on average, at least 1; all images of a patient are of one class.
        icc: intraclass correlation of being right, 0 (images of a patient are independent) to 1 (all are alike).

    Raises:
        UsageError: a value out of its range, no goal or two, or a goal beyond any sample.
    """
    if number not in NUMBERS:
        raise unknown_key("number", number, NUMBERS)
    least = 0.5 if number == "auroc" else 0.0
    _check("the expected value", expected, least, 1)
    if (half_width is None) == (lower_bound is None):
        raise UsageError("expected one goal: --half-width or --lower-bound", "for example --half-width 0.05")
    if half_width is not None:
        _check("--half-width", half_width, 0, 0.5)
    if lower_bound is not None:
        _check("--lower-bound", lower_bound, 0, expected, "the expected value")
    if power is not None and half_width is not None:
        raise UsageError("--power needs --lower-bound", "omit --power: --half-width is the half width on average")
    power = 0.8 if power is None else power
    if not 0.5 <= power < 1:
        raise UsageError(f"--power {power:g}: expected 0.5 or more, and below 1", "for example --power 0.8")
    if prevalence is not None:
        _check("--prevalence", prevalence, 0, 1)
    elif number == "auroc":
        raise UsageError("an AUROC needs --prevalence, the share of positive images", "for example --prevalence 0.1")
    if not 1 <= images_per_patient < MOST:
        raise UsageError(f"--images-per-patient {images_per_patient:g}: expected 1 or more", "give the average number")
    if not 0 <= icc <= 1:
        raise UsageError(f"--icc {icc:g}: expected 0 to 1", "a report of similar images states it in its summary")
    goal = Goal(half_width=half_width, lower_bound=lower_bound, power=power)
    design = Design(images_per_patient=images_per_patient, icc=icc, prevalence=prevalence)
    found = needed_sample(number, expected, goal, design)
    if found is None:
        raise UsageError(f"the goal needs more than {MOST:,} patients", "choose a wider interval or a lower bound")
    return found


def _check(name: str, value: float, low: float, high: float, top: str = "") -> None:
    if not low < value < high:
        raise UsageError(
            f"{name} {value:g}: expected a number above {low:g} and below {f'{top}, ' if top else ''}{high:g}",
            f"give a share between the two{f' (for {value:g} %: {value / 100:g})' if 1 < value < 100 else ''}",
        )


def in_words(found: NeededSample) -> list[str]:
    """The answer, line by line."""
    goal, design = found.goal, found.design
    number = "AUROC" if found.number == "auroc" else found.number
    kind = {"sensitivity": "positive ", "specificity": "negative "}.get(found.number, "")
    several = design.images_per_patient > 1

    def sample(images: int, patients: int, which: str = "") -> str:
        return counted(images, f"{which}image") + (f" of {counted(patients, 'patient')}" if several else "")

    who, level = sample(found.counted, found.counted_patients, kind), f"{100 * LEVEL:.0f} % interval"
    if not kind:
        who += f", {found.counted * (design.prevalence or 0):,.0f} of them positive,"
    most = "" if kind else "at most "  # the variance of an AUROC is on the safe side
    what = f"of {found.low:.3f} to {found.high:.3f}, {most}{goal.half_width} to either side on average"
    if goal.half_width is None:
        what = f"that lies above {goal.lower_bound:g} with a chance of {100 * goal.power:g} %"
    lines = [f"If the {number} is {found.expected:g}, {who} give a {level} {what}."]
    if kind and found.images is not None and found.patients is not None:
        lines.append(f"At a prevalence of {design.prevalence:g} these are in {sample(found.images, found.patients)}.")
    if several:
        lines.append(f"{design.images_per_patient:g} images for each patient, design effect {found.design_effect:.3g}.")
    else:
        lines.append(
            "Each image counts as independent: with several for each patient, add --images-per-patient and --icc."
        )
    return lines
