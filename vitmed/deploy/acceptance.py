"""Pre-stated criteria of `vitmed compare --accept`: what a new model must show before it replaces another.

A predetermined change control plan (FDA, Marketing Submission Recommendations for a PCCP, 2025) names such criteria
before the data are seen. A criterion is met if the interval shows it: the end that speaks against the model must lie on
the right side. All criteria must be met, so no level is adjusted (intersection-union test: Berger, Technometrics 24
(1982) 295).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from vitmed.core.base_models import Frozen
from vitmed.core.errors import UsageError, unknown_key
from vitmed.core.text import now
from vitmed.core.text_files import YamlError, read_yaml
from vitmed.decisions.targets import ALL_METRICS, TARGETS
from vitmed.metrics.estimates import ClassNumbers, Estimate, Numbers, of_share
from vitmed.metrics.intervals import Units
from vitmed.metrics.paired_comparison import share_difference
from vitmed.metrics.predictions import Predictions, positive_index
from vitmed.metrics.subgroups import FEWEST, check_columns, strata
from vitmed.studies.comparison import Model

State = Literal["met", "not met", "not shown"]
UNKNOWN = Estimate(value=None, low=None, high=None)
LIMITS = ("at_least", "at_most", "worse_by_less_than")
LOWEST = dict.fromkeys(("mcc", "cohen_kappa", "quadratic_kappa", "linear_kappa", "ccc", "pearson"), -1.0)
LOWEST |= dict.fromkeys(("r2", "bias", "log_score"), -np.inf)  # of others 0


def read_criteria(file: Path) -> Criteria:
    """The criteria in a YAML file. Raises UsageError for anything else."""
    try:
        criteria = Criteria.model_validate(read_yaml(file))
    except YamlError as error:
        raise UsageError(f"{file}: {error}", error.fix) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
        found = "" if first["type"] == "value_error" else f", found {first['input']!r:.80}"
        message = first["msg"].removeprefix("Value error, ").partition(" or instance")[0]
        problem = f"{file}: {place or 'criteria'}: {message}{found}"
        raise UsageError(problem, "write it as docs/acceptance.md shows") from None
    criteria._sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return criteria


def check_criteria(file: Path, criteria: Criteria, models: Sequence[Model]) -> None:
    """Before the long work, raise UsageError for a criterion in the file that cannot be applied to these models, as
    they were read, the new one first."""
    for number, criterion in enumerate(criteria.criteria, 1):
        try:
            _check(criterion, models)
        except UsageError as error:
            raise UsageError(f"{file}: criteria.{number}: {error.problem}", error.fix) from None


def _check(criterion: Criterion, models: Sequence[Model]) -> None:
    new, kind = models[0].predictions, TARGETS[models[0].kind]
    name, margin = criterion.metric, criterion.worse_by_less_than
    of_class = [field for field in ClassNumbers.model_fields if field != "n" and new.kind != "number"]
    ((key, limit),) = criterion.limits.items()
    if name not in (metrics := dict.fromkeys([*kind.metrics, *of_class])):
        raise unknown_key("metric", name, metrics, " in the criteria")
    if criterion.of is not None and (not of_class or criterion.of not in new.classes):
        raise unknown_key("class", criterion.of, new.classes, f" in the criterion of {name}")
    if criterion.of is not None and name not in of_class:
        raise UsageError(f"{name} is not a number of one class", f"take out of: {criterion.of}")
    if class_of(criterion, new) is None and name not in kind.metrics:
        raise UsageError(f"the criterion of {name} names no class", f"of: {new.classes[0]}")
    share, ranks = (known.higher_is_better, known.ranks) if (known := kind.metrics.get(name)) else (True, True)
    ends = {"brier": 1 + (len(new.classes) > 2 and models[0].kind != "findings"), "hamming_loss": 1.0, "coverage": 1.0}
    low, high = LOWEST.get(name, 0.0), ends.get(name, 1.0 if share and ranks else np.inf)
    if limit < low or (limit > high and (margin is None or low > -np.inf)):
        end, other = (f"at most {high:g}", "smaller") if limit > high else (f"at least {low:g}", "larger")
        problem = f"{key}: {name} is {end}, and the limit is {limit:g}: the criterion can show nothing"
        raise UsageError(problem, f"write a {other} limit, such as {0.8 if key == 'at_least' else 0.05}")
    if ranks and (criterion.at_most if share else criterion.at_least) is not None:
        problem = f"{key}: the criterion of {name} limits it on the better side"
        raise UsageError(problem, f"{'at_least' if share else 'at_most'}: LIMIT")
    if criterion.in_each is not None:
        check_columns([criterion.in_each], new.columns, "in_each:")
    if margin is not None and not ranks:
        problem = f"{name} compares no models: more of it is neither better nor worse"
        raise UsageError(problem, "at_least: LIMIT and at_most: LIMIT")
    if margin is not None and class_of(criterion, new) is not None:
        _gap(criterion, (models[0], models[0]))  # raises if there is no such difference of a class


def judge(criteria: Criteria, read: Sequence[Model], models: Sequence[Model]) -> Acceptance:
    """Judge the first model by each criterion, and against the second, each at its own operating point: as they were
    `read`, with all their images and columns, and the `models` on their common images."""
    kind, new = TARGETS[read[0].kind], read[0].predictions
    numbers: Numbers = kind.numbers.evaluate(new)
    judged = list[Judged]()
    for criterion in criteria.criteria:
        if (column := criterion.in_each) is not None:
            unit = "images" if new.groups is None else "patients"
            cut = strata(new.columns[column], new.units.tolist(), unit)
            if cut.why:
                judged.append(_judged(criterion, column, UNKNOWN, cut.why))
            for g, name in enumerate(cut.names):
                part: Any = new.take(np.flatnonzero(cut.of == g))
                few = len(np.unique(part.units)) < FEWEST
                found = UNKNOWN if few else _number(criterion, part, kind.numbers.evaluate(part))
                judged.append(_judged(criterion, f"{column} {name}", found, f"fewer than {FEWEST} {unit}" * few))
        elif criterion.worse_by_less_than is not None:
            judged.append(_judged(criterion, "", _gap(criterion, models)))
        else:
            judged.append(_judged(criterion, "", _number(criterion, new, numbers)))
    described = list[dict[str, str]]()
    for model in read[:2]:
        facts = model.known
        given = {} if facts is None else {"run": facts.run, "weights": facts.weights_hash, "evaluated": facts.created}
        described.append({"name": model.name} | {key: value for key, value in given.items() if value})
    title, sha = criteria.title, criteria._sha256
    return Acceptance(title=title, criteria_sha256=sha, created=now(), images=len(new), models=described, judged=judged)


def class_of(criterion: Criterion, predictions: Predictions) -> str | None:
    """The class or finding of a criterion: the one it names; of two classes the positive one, where no overall number
    has the name."""
    if criterion.of is not None:
        return criterion.of
    positive = positive_index(predictions)
    overall = criterion.metric in TARGETS["classes"].metrics or criterion.metric in TARGETS["grades"].metrics
    return None if positive is None or overall else predictions.classes[positive]


def _number(criterion: Criterion, predictions: Predictions, numbers: Numbers) -> Estimate:
    of = class_of(criterion, predictions)
    found: Estimate = numbers.overall[criterion.metric] if of is None else numbers.per_class[of][criterion.metric]
    return found


def _gap(criterion: Criterion, models: Sequence[Model]) -> Estimate:
    """The new model minus the old, on the same images."""
    new, old = models[0].predictions, models[1].predictions
    of, name = class_of(criterion, new), criterion.metric
    if of is None:
        return TARGETS[models[0].kind].numbers.compare(new, old).difference.get(name, UNKNOWN)
    if name in ("sensitivity", "specificity"):
        (truth, known, called), (_, _, other) = (
            [each[:, model.classes.index(of)] for each in model.outcomes] for model in (new, old)
        )
        positive = name == "sensitivity"
        gap, _ = share_difference(called == positive, other == positive, known & (truth == positive), Units(new.units))
        return of_share(replace(gap, low=0.0, high=0.0) if new.same_as(old) else gap)
    numbers = TARGETS[models[0].kind].numbers
    gaps: Mapping[str, Mapping[str, Estimate]] = numbers(new).class_gaps(numbers(old))
    if of in gaps.get(name, {}):
        return gaps[name][of]
    both = dict.fromkeys(["sensitivity", "specificity", *gaps])
    alone = f"; or leave out of: {of}" * (name in TARGETS[models[0].kind].metrics)
    raise UsageError(f"there is no paired difference of the {name} of {of}", f"use one of {', '.join(both)}{alone}")


def _judged(criterion: Criterion, where: str, found: Estimate, why: str = "") -> Judged:
    """A criterion is met, not met, or not shown: the number is good enough, but its interval is not."""
    ((key, limit),) = criterion.limits.items()
    above, strict = key != "at_most", key == "worse_by_less_than"
    if strict:
        metric = ALL_METRICS.get(criterion.metric)
        above = metric is None or metric.higher_is_better
        limit = -limit if above else limit
    value = np.nan if found.value is None else found.value
    end = found.low if above else found.high
    against = value if criterion.by == "estimate" else np.nan if end is None else end
    shown, good = (
        (number > limit if above else number < limit) or (number == limit and not strict) for number in (against, value)
    )
    state: State = "met" if shown and not why else "not shown" if np.isnan(value) or good else "not met"
    return Judged(criterion=criterion, where=where, found=found, state=state, why=why)


class Criterion(Frozen):
    """One criterion: exactly one of `at_least`, `at_most` and `worse_by_less_than`."""

    metric: str  # its name in metrics.json
    of: str | None = None  # a class or finding
    at_least: float | None = None
    at_most: float | None = None
    worse_by_less_than: float | None = Field(None, gt=0)  # the margin of non-inferiority against the second model
    in_each: str | None = None  # a column of the table; each of its strata must meet the criterion
    by: Literal["interval", "estimate"] = "interval"  # whether the interval must show it, or the number alone
    why: str = ""  # where the limit comes from

    @property
    def limits(self) -> dict[str, float]:
        """Its key -> the number in the criterion."""
        return {key: self[key] for key in LIMITS if self[key] is not None}

    @field_validator(*LIMITS, mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        if isinstance(value, bool) or (isinstance(value, str) and "e" not in value.lower()):  # PyYAML: 1e-2 is text
            found = "true or false" if isinstance(value, bool) else f"{value!r:.80}"
            raise ValueError(f"expected a number, found {found}")
        return value

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if len(self.limits) != 1:
            raise ValueError(f"expected one of at_least, at_most and worse_by_less_than, found {len(self.limits)}")
        if self.in_each is not None and self.worse_by_less_than is not None:
            raise ValueError("in_each goes with at_least or at_most")
        return self

    @property
    def text(self) -> str:
        """`sensitivity of sick at least 0.9 in each site`"""
        name = self.metric.replace("_", " ") + (f" of {self.of}" if self.of else "")
        ((key, limit),), where = self.limits.items(), f" in each {self.in_each}" if self.in_each else ""
        return f"{name} {key.replace('_', ' ')} {limit:g}{where}{' (the number alone)' * (self.by == 'estimate')}"


class Criteria(Frozen):
    """The content of the YAML file."""

    title: str = "Acceptance of a model"
    criteria: list[Criterion] = Field(min_length=1)
    _sha256: str = PrivateAttr("")  # of the file


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
        return all(entry.state == "met" for entry in self.judged)

    @property
    def verdict(self) -> str:
        """`not accepted: sensitivity of sick at least 0.9 is not shown`"""
        open_ = [entry for entry in self.judged if entry.state != "met"]
        names = [f"{e.criterion.text}{f', {e.where}' if e.where else ''} is {e.state}" for e in open_]
        return f"not accepted: {'; '.join(names)}" if names else "accepted: every criterion is met"

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"accepted": self.accepted}
