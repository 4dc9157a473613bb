"""The base class of typed parts in a checkpoint or a metrics.json."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Stored(BaseModel):
    """A frozen part of a file: fields are typed, numbers are finite, and unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)


Numbers = Annotated[tuple[float, ...], Field(strict=False)]  # a list in the file
Counts = Annotated[tuple[int, ...], Field(strict=False)]
Names = Annotated[tuple[str, ...], Field(strict=False)]
