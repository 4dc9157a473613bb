"""The bases of what files hold as typed fields: results (metrics.json, compare.json, stress.json) and the policy."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


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
