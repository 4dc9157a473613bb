"""Names of version 0.1.0 in a user's files, and their current names.

An old name keeps working; vitmed reports it once, as an `OldNameWarning`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

COLUMNS = {"unfamiliarity": "ood_score"}  # of predictions.csv
HOLDER = {"judgement": "policy"}  # key in best.pt, and in metrics.json under `report`
RESULTS = {"familiarity": "out_of_distribution"}  # keys of metrics.json
FLOW = {"judged": "evaluated"}  # keys of metrics.json under `flow`
OUT_OF_DISTRIBUTION = {  # and of that part of it
    "n_unfamiliar": "n_above",
    "error_rate_familiar": "error_rate_below",
    "error_rate_unfamiliar": "error_rate_above",
}
POLICY = {  # keys of the decision policy
    "sets": "prediction_sets",
    "answers": "abstention",
    "familiarity": "ood_score",
    "unlike": "other_scores",
}


class OldNameWarning(FutureWarning):
    """A file uses a name of 0.1.0."""


def report_alias(old: str, new: str) -> None:
    """Warn that a file uses a name of 0.1.0; Python shows each warning once."""
    warnings.warn(f"the name '{old}' of vitmed 0.1.0 is read as '{new}'", OldNameWarning, stacklevel=2)


def with_new_names(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The same content under the names of today; a name of today wins over its old one."""
    old = [key for key in content if key in names and names[key] not in content]
    for key in old:
        report_alias(key, names[key])
    return {names[key] if key in old else key: part for key, part in content.items()}
