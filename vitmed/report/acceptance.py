"""Pre-stated criteria for a new model, how it was judged by them, and the page that is signed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from vitmed.core.base_models import Frozen
from vitmed.core.files import write_json, write_text
from vitmed.core.text import NOTICE
from vitmed.metrics.estimates import Estimate
from vitmed.report.page import fill

State = Literal["met", "not met", "not shown"]
NUMBERS, PAGE = "acceptance.json", "acceptance.html"


class Criterion(Frozen):
    """One criterion: exactly one of `at_least`, `at_most` and `worse_by_less_than`.

    Attributes:
        metric: its name in metrics.json. of: a class or finding.
        worse_by_less_than: the margin of non-inferiority against the second model, above 0.
        in_each: a column of the table; each of its strata must meet the criterion.
        by: whether the interval must show it, or the number alone.
        why: where the limit comes from.
    """

    metric: str
    of: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    worse_by_less_than: float | None = Field(None, gt=0)
    in_each: str | None = None
    by: Literal["interval", "estimate"] = "interval"
    why: str = ""

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        given = [one for one in (self.at_least, self.at_most, self.worse_by_less_than) if one is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of at_least, at_most and worse_by_less_than, found {len(given)}")
        if self.in_each is not None and self.worse_by_less_than is not None:
            raise ValueError("in_each goes with at_least or at_most")
        return self

    @property
    def limit(self) -> float:
        """The number in the criterion."""
        return next(one for one in (self.at_least, self.at_most, self.worse_by_less_than) if one is not None)

    @property
    def text(self) -> str:
        """`sensitivity of sick at least 0.9 in each site`"""
        name = self.metric.replace("_", " ") + (f" of {self.of}" if self.of else "")
        kinds = {"at least": self.at_least, "at most": self.at_most, "worse by less than": self.worse_by_less_than}
        kind, limit = next((kind, limit) for kind, limit in kinds.items() if limit is not None)
        where = f" in each {self.in_each}" if self.in_each else ""
        return f"{name} {kind} {limit:g}{where}{' (the number alone)' if self.by == 'estimate' else ''}"


class Criteria(Frozen):
    """The content of the YAML file."""

    title: str = "Acceptance of a model"
    criteria: list[Criterion] = Field(min_length=1)


class Judged(Frozen):
    """A criterion for all images, or for one stratum, `where`; `why` it cannot be judged."""

    criterion: Criterion
    where: str
    found: Estimate
    state: State
    why: str


class Acceptance(Frozen):
    """The content of acceptance.json. `models`: the new one, and the one that it is compared with."""

    title: str
    criteria_sha256: str
    created: str
    models: list[dict[str, str]]
    images: int
    judged: list[Judged]

    @property
    def accepted(self) -> bool:
        """Whether every criterion is met."""
        return all(one.state == "met" for one in self.judged)

    @property
    def verdict(self) -> str:
        """`not accepted: sensitivity of sick at least 0.9 is not shown`"""
        open_ = [one for one in self.judged if one.state != "met"]
        if not open_:
            return "accepted: every criterion is met"
        names = [f"{one.criterion.text}{f', {one.where}' if one.where else ''} is {one.state}" for one in open_]
        return f"not accepted: {'; '.join(names)}"

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"accepted": self.accepted}


def write_acceptance(folder: Path, found: Acceptance) -> None:
    """acceptance.json and the page."""
    write_json(folder / NUMBERS, found.to_dict())
    write_text(folder / PAGE, fill("acceptance.html.j2", found=found, notice=NOTICE))
