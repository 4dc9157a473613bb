"""How a model does on other images beside its own held-out test: each number here and there, and the difference.

Item 33 of CLAIM 2024, 16 and 20c of TRIPOD+AI and 29 of STARD-AI ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vitmed.decisions.out_of_distribution import detection_auroc, scores_of
from vitmed.metrics.evaluation import Entry, entry, evaluate_predictions
from vitmed.metrics.predictions import Predictions

OVERALL = ("auroc", "balanced_accuracy", "accuracy", "mcc", "log_loss", "brier")
OF_THE_FINDING = ("sensitivity", "specificity")  # PPV and NPV follow the prevalence, and so differ anyway


def beside_internal(
    predictions: Predictions, metrics: Mapping[str, Any], internal: Predictions | None, resamples: int = 2000
) -> dict[str, Any] | None:
    """The judged images beside the run's own test, at the same calibration and operating point.

    Both are taken as independent samples, so the interval of a difference comes from those of both (MOVER: Zou &
    Donner, Stat. Med. 27 (2008) 1693; of two proportions it is Newcombe's of 1998).

    Args:
        predictions: of other images, with labels; metrics: `evaluate_predictions` of them.
        internal: what the same model said of its own test; None where that is not known.

    Returns:
        None without `internal`, or where an image of it is among the judged by its path and patient; else n, n_groups
        (of the own test), prevalence {internal, external} of the finding, numbers {name: {internal, external,
        difference: entry}}, absent: classes that only one of the two has (then only sensitivity and specificity have a
        difference), patients_in_both by name, and shift: {auroc: how well the out-of-distribution score separates the
        images from those of the own test, flagged: {internal, external}}, None where there are no scores.
    """
    if internal is None or not len(internal) or internal.classes != predictions.classes:
        return None
    own = evaluate_predictions(internal, resamples)
    positive = own["positive_class"]
    numbers = {name: _pair(own["overall"][name], metrics["overall"][name]) for name in OVERALL}
    absent = [c for c in own["classes"] if (own["per_class"][c]["n"] > 0) != (metrics["per_class"][c]["n"] > 0)]
    if absent:  # a mean over other classes is another number
        nothing = entry(float("nan"), float("nan"), float("nan"), "mover")
        numbers = {name: pair | {"difference": nothing} for name, pair in numbers.items()}
    if positive is not None:
        here, there = metrics["per_class"][positive], own["per_class"][positive]
        numbers |= {name: _pair(there[name], here[name]) for name in OF_THE_FINDING}
    both = set(internal.groups or ()) & set(predictions.groups or ())
    return {
        "n": own["n"],
        "n_groups": own["n_groups"],
        "prevalence": None
        if positive is None
        else {kind: m["per_class"][positive]["n"] / m["n"] for kind, m in (("internal", own), ("external", metrics))},
        "numbers": numbers,
        "absent": absent,
        "patients_in_both": len(both - {""}),
        "shift": _shift(internal, predictions),
    }


def _pair(own: Entry, other: Entry) -> dict[str, Entry]:
    """A number of both, and external minus internal."""
    value, low, high = float("nan"), float("nan"), float("nan")
    if own["value"] is not None and other["value"] is not None:
        value = other["value"] - own["value"]
        if own["low"] is not None and other["low"] is not None:
            low = value - np.hypot(other["value"] - other["low"], own["high"] - own["value"])
            high = value + np.hypot(other["high"] - other["value"], own["value"] - own["low"])
    return {"internal": own, "external": other, "difference": entry(value, low, high, "mover")}


def _shift(internal: Predictions, external: Predictions) -> dict[str, Any] | None:
    own, other = scores_of(internal), scores_of(external)
    if own is None or other is None:
        return None
    flagged = {"internal": float((own > 1).mean()), "external": float((other > 1).mean())}
    return {"auroc": detection_auroc(own, internal.groups, other, external.groups), "flagged": flagged}
