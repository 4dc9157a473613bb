"""The limitations of a report: what it cannot show because something is missing."""

from __future__ import annotations

from collections.abc import Iterator

from vitmed.core.text import counted, counted_doing
from vitmed.metrics.sample_size import Goal, patients_for_rate
from vitmed.metrics.subgroups import compared
from vitmed.report.results import Results, Seen

FEW_PATIENTS = 50  # below, an interval by patient is wide, and a subgroup has hardly anyone
PRECISE = 0.05  # half the width of an interval that is narrow enough for most uses
FEW_IMAGES = 100  # of a class: below, its sensitivity is known to about 10 points at best


def limitations(metrics: Results) -> list[str]:
    """Sentences, the most serious first."""
    return [*_leaks(metrics), *_sample(metrics), *_not_checked(metrics)]


def _leaks(metrics: Results) -> Iterator[str]:
    """Images or patients with which the model was made, or an unknown share of them."""
    flow, patients, unit = metrics.flow, metrics.n_groups, metrics.unit
    seen = flow.evaluated.seen if flow is not None and flow.evaluated is not None else Seen()
    if seen.images:
        these = counted_doing(seen.images, "image", "of these was", "of these were")
        yield f"{these} used to make the model: the numbers are too good."
    if seen.patients:
        these = counted_doing(seen.patients, unit, "of these has", "of these have")
        yield (
            f"{these} the same name as one in training or validation; if they are the same people, the numbers are too "
            "good."
        )
    if seen.test:
        these = counted_doing(seen.test, "image", "of these is", "of these are")
        yield f"{these} also in the run's own test set, so this is not a further test of the model."
    if patients is None:
        yield (
            "Patients are unknown. A patient may be in the training and the test set, which makes every number too "
            "good; each image counts as independent, which makes the intervals too narrow."
        )
    elif patients == 1:
        yield f"Only one {unit} is evaluated, which shows nothing about other {unit}s."
    elif patients < FEW_PATIENTS:
        yield f"Only {patients:,} {unit}s are evaluated; another {patients:,} may give other numbers."
    if flow is not None and flow.level == "none":
        yield f"{counted_doing(flow.patients_in_two or 0, unit)} in more than one split: the numbers are too good."
    if flow is not None and flow.copies_in_two:
        yield f"{counted_doing(flow.copies_in_two, 'identical file')} in more than one split."


def _sample(metrics: Results) -> Iterator[str]:
    """Of whom the images are, and of whom they are too few."""
    evaluated = None if metrics.flow is None else metrics.flow.evaluated
    if evaluated is None:
        yield "It is not known whether these images come from the same collection as the training images."
    elif evaluated.split is None:
        yield "These images are not from the run. It is not known whether they are from another site, device or time."
    else:
        yield (
            "No external test set: these images come from the same collection as the training images. Another site, "
            "device or population may give other numbers."
        )
    few = [f"'{c}' ({own.n:,})" for c, own in metrics.per_class.items() if 0 < own.n < FEW_IMAGES]
    if few:
        more = f" and {counted(len(few) - 5, 'other class')}" if len(few) > 5 else ""
        these = "this class" if len(few) == 1 else "these classes"
        yield f"Few images of {', '.join(few[:5])}{more}: the numbers of {these} are uncertain."
    if (text := more_images(metrics)) is not None:
        yield text
    if not compared(metrics.subgroups):
        why = ", as those requested have too few patients or images" if metrics.subgroups else ""
        yield (
            f"No subgroups were compared{why}: this report does not show whether the model fails for a group of "
            "patients, a site or a device."
        )


def more_images(metrics: Results) -> str | None:
    """With how many images the interval of the sensitivity would reach `PRECISE` to either side, in a sentence.

    Of two classes the sensitivity of the positive one, else the one with the widest interval. The number is that of
    `vitmed sample-size`, with the design effect of these images. None where the interval is that narrow, or unknown.
    """

    def half_width(name: str) -> float:
        found = metrics.per_class[name].sensitivity
        return -1.0 if found.low is None or found.high is None else (found.high - found.low) / 2

    if not metrics.per_class:  # of a number
        return None
    name = metrics.positive_class or max(metrics.classes, key=half_width)
    value, sample = metrics.per_class[name].sensitivity.value, metrics.sample.classes[metrics.classes.index(name)]
    own, reach = sample.sensitivity, half_width(name)
    if value is None or reach <= PRECISE:
        return None
    each = own.n / own.units
    effect = (
        each if own.design_effect is None else max(1.0, own.design_effect)
    )  # without errors each patient counts once
    needed = patients_for_rate(value, Goal(half_width=PRECISE), each, effect)
    if needed is None:
        return None
    have, more = (
        f"{n:,} images" + (f" from {counted(patients, metrics.unit)}" if each > 1 else "")
        for n, patients in ((own.n, own.units), (round(needed * each), needed))
    )
    return (
        f"With {have} of class '{name}', the interval of its sensitivity reaches {reach:.3f} to either side on "
        f"average. About {more} of this class would narrow it to {PRECISE}, at the same sensitivity."
    )


def _not_checked(metrics: Results) -> Iterator[str]:
    points = metrics.operating_points
    chosen = points is not None and (points.threshold or points.by_fold is not None)
    if metrics.positive_class is not None and not chosen:
        yield "No threshold was chosen on validation: the more likely class wins, whatever an error costs."
    if metrics.calibration is None and metrics.target.kind in ("classes", "grades"):
        yield "The calibration of the probabilities was not checked."
    if metrics.robustness is None:
        yield "The model was not tested on blurred, noisy, darker or compressed images (vitmed stress)."
    if not metrics.baselines:
        yield (
            "The model was not compared with a baseline that sees colours but no shapes, which would reveal a shortcut "
            "by colour."
        )
    if metrics.agreement is None or len(metrics.agreement.pairs) < 2:
        yield "One label counts as the truth; vitmed does not know how far the annotators agree."
    if not metrics.per_class:
        return
    yield (
        "How common the classes are here depends on how the images were collected and may differ in practice; PPV and "
        "NPV change with it."
    )
