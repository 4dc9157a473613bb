"""The bases of typed fields in files (metrics.json, compare.json, the policy), and `Target`: what the labels are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vitmed.core import upgrade


class Frozen(BaseModel):
    """Read-only typed fields; unknown keys and infinite numbers are errors, and unset fields are not in the JSON.

    `found["name"]` is `found.name`; `"name" in found` is whether the field is set, as in the dict that the JSON holds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __getitem__(self, name: str) -> Any:
        if name not in type(self).model_fields and name not in (self.model_extra or ()):
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return name in self.model_fields_set

    def to_dict(self) -> dict[str, Any]:
        """Plain types for the JSON."""
        # Not `mode="json"`, which replaces the characters that stand for the bytes of a name that is not UTF-8.
        return dict(json.loads(json.dumps(self.model_dump(by_alias=True, exclude_unset=True))))


class Stored(Frozen):
    """A part of a checkpoint: no value is converted to its type, and unknown keys are left out."""

    model_config = ConfigDict(strict=True, extra="ignore")


Numbers = Annotated[tuple[float, ...], Field(strict=False)]  # a list in the file
Counts = Annotated[tuple[int, ...], Field(strict=False)]
Names = Annotated[tuple[str, ...], Field(strict=False)]


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
