"""What a network predicts of an image: one class, several findings, a grade, or a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from vitmed.core import upgrade
from vitmed.core.base_models import Frozen

Kind = Literal["classes", "findings", "grades", "number"]
UNKNOWN = -1  # stands for the label of a finding that nobody has read
NO_FINDING = "no finding"
SIDES = ("lower", "higher")  # a number beside the mean of training


class Target(Frozen):
    """What the labels are.

    Attributes:
        kind: "classes": one of several; "findings": each present or absent; "grades": classes in order, from the lowest
            to the highest; "number": a quantity.
        unit: of a number, such as "years"; "" for none.
        centre, spread: of a number: mean and standard deviation of the training labels. The network predicts
            (number - centre) / spread.
        distribution: of a number around its prediction, whose scale is the standard deviation.
    """

    kind: Kind = "classes"
    unit: str = ""
    centre: float = 0.0
    spread: float = Field(default=1.0, gt=0)
    distribution: Literal["gaussian"] = "gaussian"

    @model_validator(mode="before")
    @classmethod
    def _of_today(cls, content: Any) -> Any:
        return upgrade.target(content) if isinstance(content, Mapping) else content


CLASSES = Target()
