"""What a reader should hold against a report: seeded from what was not supplied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FEW_PATIENTS = 50  # below, an interval by patient is wide, and a subgroup has hardly anyone
FEW_IMAGES = 100  # of a class: below, its sensitivity is known to about 10 points at best


def limitations(metrics: Mapping[str, Any]) -> list[str]:
    """Sentences, the gravest first.

    Args:
        metrics: all that metrics.json holds.
    """
    flow = metrics.get("flow") or {}
    judged = flow.get("judged") or {}
    patients, told = metrics["n_groups"], []
    if patients is None:
        told.append(
            "Patients are unknown. A patient may be in training and test, which flatters every number, and intervals "
            "take each image as independent, which makes them too narrow."
        )
    elif patients < FEW_PATIENTS:
        told.append(f"Only {patients:,} patients are judged: another {patients:,} may give other numbers.")
    if flow.get("level") == "none":
        told.append(f"{flow['patients_in_two']:,} patients are in more than one split: the numbers are flattered.")
    if flow.get("copies_in_two"):
        told.append(f"{flow['copies_in_two']:,} files lie in more than one split, byte for byte.")
    if not judged:
        told.append("Whether these images come from the same collection as those of training, is not known.")
    elif judged["split"] is None:
        told.append(
            "These images are not of the run. Whether they are from another site, device or time, is not known."
        )
    else:
        told.append(
            "No external test: these images come from the same collection as those of training. Another site, device "
            "or population may give other numbers."
        )
    few = [f"'{c}' ({entry['n']:,})" for c, entry in metrics["per_class"].items() if entry["n"] < FEW_IMAGES]
    if few:
        more = f" and {len(few) - 5:,} other classes" if len(few) > 5 else ""
        told.append(f"Few images of {', '.join(few[:5])}{more}: what is said of them is uncertain.")
    if not metrics.get("subgroups"):
        told.append(
            "No subgroups were compared: a group of patients, a site or a device for which the model fails would not "
            "show."
        )
    points = metrics.get("operating_points") or {}
    if metrics["positive_class"] is not None and not (points.get("threshold") or "by_fold" in points):
        told.append("No threshold was chosen on validation: the likelier class wins, whatever an error costs.")
    if not metrics.get("calibration"):
        told.append("The probabilities were not checked against how often they come true.")
    if not metrics.get("robustness"):
        told.append("Not tried on blurred, noisy, darker or compressed images (vitmed stress).")
    if not metrics.get("baselines"):
        told.append(
            "Not compared with a baseline that sees no shapes: a shortcut through colour or size would not show."
        )
    if len((metrics.get("agreement") or {"pairs": ()})["pairs"]) < 2:
        told.append("One label is taken as the truth; how far those who labelled agree is not known to vitmed.")
    told.append(
        "How common the classes are here is how the images were collected, not how common they are in practice; PPV "
        "and NPV change with it."
    )
    return told
