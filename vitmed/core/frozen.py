"""The base of every result: what metrics.json, compare.json and stress.json hold, as typed fields."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Read-only typed fields; unknown keys and infinite numbers are errors.

    A field that nothing has set is left out of the JSON. `found["name"]` is `found.name`, and `"name" in found` says
    whether the field is set, as in the dict that the JSON holds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __getitem__(self, name: str) -> Any:
        if name not in type(self).model_fields:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return name in self.model_fields_set

    def to_dict(self) -> dict[str, Any]:
        """Plain types, as they stand in the JSON."""
        return self.model_dump(by_alias=True, exclude_unset=True)
