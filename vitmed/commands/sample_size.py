"""`vitmed sample-size`: how many images and patients a goal for an evaluation needs."""

from typing import Annotated

from vitmed.core.errors import UsageError, excluded, unknown_key
from vitmed.core.messages import warn
from vitmed.core.options import Argument, Option
from vitmed.metrics.sample_size import MOST, NUMBERS, Design, Goal, NeededSample, needed_sample


def sample_size(
    number: Annotated[str, Argument("sensitivity, specificity or auroc.", "NUMBER")],
    expected: Annotated[float, Argument("The value that you expect, such as 0.9.", "VALUE")],
    *,
    half_width: Annotated[float | None, Option("Half the width of the 95 % interval, such as 0.05.")] = None,
    lower_bound: Annotated[float | None, Option("Instead: what the lower end of the interval is to exceed.")] = None,
    power: Annotated[float | None, Option("The chance that the lower end exceeds --lower-bound; default 0.8.")] = None,
    prevalence: Annotated[float | None, Option("Share of positive images; an AUROC needs it.")] = None,
    images_per_patient: Annotated[float, Option("Images of a patient, all of one class; default 1.")] = 1.0,
    icc: Annotated[float, Option("How alike images of a patient are in being right, 0 to 1; default 0.")] = 0.0,
) -> NeededSample:
    """Report how many images and patients an evaluation needs. Give half_width or lower_bound.

    Args:
        expected: above 0 and below 1; of an AUROC above 0.5.
        power: the chance that the lower end exceeds `lower_bound`, if the expected value is the true one; 0.5 or more.
        images_per_patient: on average, at least 1; all images of a patient are of one class.
        icc: intraclass correlation of being right, 0 (images of a patient are independent) to 1 (all are alike).

    Raises:
        UsageError: a value out of its range, no goal or two, or a goal beyond any sample.
    """
    if number not in NUMBERS:
        raise unknown_key("number", number, NUMBERS)
    _check("the expected value", expected, 0.5 if number == "auroc" else 0.0, 1)
    if (half_width is None) == (lower_bound is None):
        raise excluded("goal")
    if half_width is not None:
        _check("--half-width", half_width, 0, 0.5)
    if lower_bound is not None:
        _check("--lower-bound", lower_bound, 0, expected, "the expected value")
    if power is not None and half_width is not None:
        raise excluded("power")
    power = 0.8 if power is None else power
    if not 0.5 <= power < 1:
        raise UsageError(f"--power {power:g}: expected 0.5 or more, and below 1", "for example --power 0.8")
    if prevalence is not None:
        _check("--prevalence", prevalence, 0, 1)
    elif number == "auroc":
        raise UsageError("an AUROC needs --prevalence, the share of positive images", "for example --prevalence 0.1")
    if not 1 <= images_per_patient < MOST:
        raise UsageError(f"--images-per-patient {images_per_patient:g}: expected 1 or more", "give the average number")
    if icc and images_per_patient == 1:
        raise excluded("icc")
    if images_per_patient > 1 and not icc:
        warn("the images of a patient count as independent, which they seldom are: --icc says how alike they are")
    if not 0 <= icc <= 1:
        raise UsageError(f"--icc {icc:g}: expected 0 to 1", "a report of similar images states it in its summary")
    goal = Goal(half_width=half_width, lower_bound=lower_bound, power=power)
    design = Design(images_per_patient=images_per_patient, icc=icc, prevalence=prevalence)
    needed = needed_sample(number, expected, goal, design)
    if needed is None:
        raise UsageError(f"the goal needs more than {MOST:,} patients", "choose a wider interval or a lower bound")
    return needed


def _check(name: str, value: float, low: float, high: float, top: str = "") -> None:
    if not low < value < high:
        problem = f"{name} {value:g}: expected a number above {low:g} and below {f'{top}, ' if top else ''}{high:g}"
        fix = f"give a share between the two{f' (for {value:g} %: {value / 100:g})' if 1 < value < 100 else ''}"
        raise UsageError(problem, fix)
