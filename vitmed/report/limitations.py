"""The limitations of a report: what it cannot show because something is missing."""

from __future__ import annotations

from vitmed.core.text import counted
from vitmed.metrics.subgroups import compared
from vitmed.report.results import Results, Seen

FEW_PATIENTS = 50  # below, an interval by patient is wide, and a subgroup has hardly anyone
FEW_IMAGES = 100  # of a class: below, its sensitivity is known to about 10 points at best


def limitations(metrics: Results) -> list[str]:
    """Sentences, the most serious first."""
    flow = metrics.flow
    evaluated = None if flow is None else flow.evaluated
    patients, found = metrics.n_groups, []
    seen = Seen() if evaluated is None else evaluated.seen
    if seen.images:
        these = f"{counted(seen.images, 'image')} of these {'was' if seen.images == 1 else 'were'}"
        found.append(f"{these} used to make the model: the numbers are too good.")
    if seen.patients:
        verb = "has" if seen.patients == 1 else "have"
        found.append(
            f"{counted(seen.patients, 'patient')} of these {verb} the same name as one in training or validation; "
            "if they are the same people, the numbers are too good."
        )
    if seen.test:
        found.append(
            f"{counted(seen.test, 'image')} of these {'is' if seen.test == 1 else 'are'} also in the run's own "
            "test set, so this is not a further test of the model."
        )
    if patients is None:
        found.append(
            "Patients are unknown. A patient may be in the training and the test set, which makes every number too "
            "good; each image counts as independent, which makes the intervals too narrow."
        )
    elif patients == 1:
        found.append("Only one patient is evaluated, which shows nothing about other patients.")
    elif patients < FEW_PATIENTS:
        found.append(f"Only {patients:,} patients are evaluated; another {patients:,} may give other numbers.")
    if flow is not None and flow.level == "none":
        shared = flow.patients_in_two or 0
        verb = "is" if shared == 1 else "are"
        found.append(f"{counted(shared, 'patient')} {verb} in more than one split: the numbers are too good.")
    if flow is not None and flow.copies_in_two:
        verb = "is" if flow.copies_in_two == 1 else "are"
        found.append(f"{counted(flow.copies_in_two, 'identical file')} {verb} in more than one split.")
    if evaluated is None:
        found.append("It is not known whether these images come from the same collection as the training images.")
    elif evaluated.split is None:
        found.append(
            "These images are not from the run. It is not known whether they are from another site, device or time."
        )
    else:
        found.append(
            "No external test set: these images come from the same collection as the training images. Another site, "
            "device or population may give other numbers."
        )
    few = [f"'{c}' ({own.n:,})" for c, own in metrics.per_class.items() if 0 < own.n < FEW_IMAGES]
    if few:
        more = f" and {counted(len(few) - 5, 'other class')}" if len(few) > 5 else ""
        found.append(f"Few images of {', '.join(few[:5])}{more}: the numbers of such a class are uncertain.")
    if not compared(metrics.subgroups):
        why = ", as those requested have too few patients or images" if metrics.subgroups else ""
        found.append(
            f"No subgroups were compared{why}: this report does not show whether the model fails for a group of "
            "patients, a site or a device."
        )
    points = metrics.operating_points
    chosen = points is not None and (points.threshold or points.by_fold is not None)
    if metrics.positive_class is not None and not chosen:
        found.append("No threshold was chosen on validation: the more likely class wins, whatever an error costs.")
    if metrics.calibration is None:
        found.append("The calibration of the probabilities was not checked.")
    if metrics.robustness is None:
        found.append("The model was not tested on blurred, noisy, darker or compressed images (vitmed stress).")
    if not metrics.baselines:
        found.append(
            "The model was not compared with a baseline that sees no shapes and would reveal a shortcut by colour."
        )
    if metrics.agreement is None or len(metrics.agreement.pairs) < 2:
        found.append("One label counts as the truth; vitmed does not know how far the annotators agree.")
    found.append(
        "How common the classes are here depends on how the images were collected and may differ in practice; PPV and "
        "NPV change with it."
    )
    return found
