"""The decision policies by the kind of label: choosing one, and reading one back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitmed.decisions.policy import ClassPolicy, DecisionPolicy, FindingPolicy, NumberPolicy


def policy_of(content: Mapping[str, Any], classes: Sequence[str]) -> DecisionPolicy:
    """Read what a checkpoint or a metrics.json holds. Raises ValueError for anything else."""
    kinds: dict[str, type[DecisionPolicy]] = {"findings": FindingPolicy, "intervals": NumberPolicy}
    kind = next((kind for key, kind in kinds.items() if isinstance(content, Mapping) and key in content), ClassPolicy)
    return kind.of(content, classes)
