"""The bases of typed fields, in files and in the configuration, and `Target`: what the labels are."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

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


Floats = Annotated[tuple[float, ...], Field(strict=False)]  # a list in the file
Ints = Annotated[tuple[int, ...], Field(strict=False)]
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


PANELS = ("Most used", "Data", "Patients", "Model", "Training", "Evaluation", "Output")  # headings of --help, in order


@dataclass(frozen=True)
class Flag:
    """The flag and Python keyword of a field. The first sentence of the field's description is its help."""

    name: str = ""  # of the keyword and, with hyphens, of the flag; default the name of the field
    also: str = ""  # another spelling of the flag, such as "-b"
    metavar: str = ""  # what --help shows for the value; default the choices, or the type
    panel: str = ""  # heading of the flag in --help; default the panel of the section
    first: bool = False  # whether --help lists the flag under "Most used" instead
    text: bool = False  # whether the command line takes any text, for a number that may also be a word


SHARE = Flag(metavar="SHARE")


def setting(default: Any, description: str, flag: Flag | None = None, **limits: Any) -> Any:
    """A field of a section, with the limits of `pydantic.Field`. One without a flag is set in YAML or with --set."""
    field = Field(default, description=description, **limits)
    field.metadata += [flag] if flag else []
    return field


optional = partial(setting, None)  # a field that is None where nothing sets it


def share(description: str, flag: Flag = SHARE, default: float | None = None) -> Any:
    """A field above 0 and below 1."""
    return setting(default, description, flag, gt=0, lt=1)


def names_in(value: Any, scale: str = "") -> Any:
    """The names of a flag that is repeated, or holds them with commas between; anything else as it is. Raises
    ValueError for a name that stands twice on a `scale`."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        return value
    names = given if len(given) != 1 else [part.strip() for part in given[0].split(",")]
    if scale and (twice := [name for name in names if names.count(name) > 1]):
        raise ValueError(f"{scale} names {twice[0]!r} twice")
    return list(dict.fromkeys(names))


class Section(BaseModel):
    """Fields that belong together; `panel` is the heading of their flags in --help."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)
    panel: ClassVar[str] = ""


def flags_of(kind: type[BaseModel], *places: str, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Keyword of each flag -> its field, {"batch_size": "train.batch_size"}; all, or those of some `places`: sections
    ("data") or fields ("train.device"), in this order."""
    return {
        flag.name or name: f"{section}.{name}"
        for place in places or kind.model_fields
        for section, _, wanted in [place.partition(".")]
        for name, field in fields_of(kind, section).items()
        if (flag := flag_of(field)) and wanted in ("", name) and f"{section}.{name}" not in without
    }


def fields_of(kind: type[BaseModel], section: str) -> dict[str, FieldInfo]:
    return kind.model_fields[section].annotation.model_fields  # type: ignore[union-attr]


def flag_of(field: FieldInfo) -> Flag | None:
    return next((part for part in field.metadata if isinstance(part, Flag)), None)


def spellings(keyword: str, field: FieldInfo) -> list[str]:
    """The spellings of a flag: ["--batch-size", "-b"], or ["--ema/--no-ema"] for true and false."""
    name, flag = keyword.replace("_", "-"), flag_of(field)
    long = f"--{name}/--no-{name}" if field.annotation in (bool, bool | None) else f"--{name}"
    return [long, *([flag.also] if flag and flag.also else [])]
