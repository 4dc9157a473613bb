"""What a reader should hold against a report: seeded from what was not supplied."""

from __future__ import annotations

from vitmed.core.text import counted
from vitmed.metrics.subgroups import compared
from vitmed.report.results import Results, Seen

FEW_PATIENTS = 50  # below, an interval by patient is wide, and a subgroup has hardly anyone
FEW_IMAGES = 100  # of a class: below, its sensitivity is known to about 10 points at best


def limitations(metrics: Results) -> list[str]:
    """Sentences, the gravest first."""
    flow = metrics.flow
    judged = None if flow is None else flow.judged
    patients, told = metrics.n_groups, []
    seen = Seen() if judged is None else judged.seen
    if seen.images:
        told.append(f"The model was made with {counted(seen.images, 'image')} of these: the numbers are flattered.")
    if seen.patients:
        told.append(
            f"The model was made with images of {counted(seen.patients, 'patient')} of the same name as one judged "
            "here; if they are the same people, the numbers are flattered."
        )
    if seen.test:
        told.append(
            f"{counted(seen.test, 'image')} of these {'is' if seen.test == 1 else 'are'} of the run's own test "
            "too, so this is no further test of the model."
        )
    if patients is None:
        told.append(
            "Patients are unknown. A patient may be in training and test, which flatters every number, and intervals "
            "take each image as independent, which makes them too narrow."
        )
    elif patients == 1:
        told.append("Only one patient is judged: what is seen of one says nothing of others.")
    elif patients < FEW_PATIENTS:
        told.append(f"Only {patients:,} patients are judged: another {patients:,} may give other numbers.")
    if flow is not None and flow.level == "none":
        shared = flow.patients_in_two or 0
        verb = "is" if shared == 1 else "are"
        told.append(f"{counted(shared, 'patient')} {verb} in more than one split: the numbers are flattered.")
    if flow is not None and flow.copies_in_two:
        verb = "lies" if flow.copies_in_two == 1 else "lie"
        told.append(f"{counted(flow.copies_in_two, 'file')} {verb} in more than one split, byte for byte.")
    if judged is None:
        told.append("Whether these images come from the same collection as those of training, is not known.")
    elif judged.split is None:
        told.append(
            "These images are not of the run. Whether they are from another site, device or time, is not known."
        )
    else:
        told.append(
            "No external test: these images come from the same collection as those of training. Another site, device "
            "or population may give other numbers."
        )
    few = [f"'{c}' ({own.n:,})" for c, own in metrics.per_class.items() if 0 < own.n < FEW_IMAGES]
    if few:
        more = f" and {counted(len(few) - 5, 'other class')}" if len(few) > 5 else ""
        told.append(f"Few images of {', '.join(few[:5])}{more}: what is said of them is uncertain.")
    if not compared(metrics.subgroups):
        why = ", since too few patients or images are in those that were asked for" if metrics.subgroups else ""
        told.append(
            f"No subgroups were compared{why}: a group of patients, a site or a device for which the model fails would "
            "not show."
        )
    points = metrics.operating_points
    chosen = points is not None and (points.threshold or points.by_fold is not None)
    if metrics.positive_class is not None and not chosen:
        told.append("No threshold was chosen on validation: the likelier class wins, whatever an error costs.")
    if metrics.calibration is None:
        told.append("The probabilities were not checked against how often they come true.")
    if metrics.robustness is None:
        told.append("Not tried on blurred, noisy, darker or compressed images (vitmed stress).")
    if not metrics.baselines:
        told.append(
            "Not compared with a baseline that sees no shapes: a shortcut through colour or size would not show."
        )
    if metrics.agreement is None or len(metrics.agreement.pairs) < 2:
        told.append("One label is taken as the truth; how far those who labelled agree is not known to vitmed.")
    told.append(
        "How common the classes are here is how the images were collected, not how common they are in practice; PPV "
        "and NPV change with it."
    )
    return told
