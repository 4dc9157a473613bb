"""How a setting is declared: a field of a section, with its type, range, flag and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

PANELS = ("Most used", "Data", "Patients", "Model", "Training", "Evaluation", "Output")  # headings of --help, in order


@dataclass(frozen=True)
class Flag:
    """The flag and Python keyword of a field. The first sentence of the field's description is its help.

    Attributes:
        name: of the keyword and, with hyphens, of the flag. Default: the name of the field.
        also: another spelling of the flag, such as "-b".
        metavar: what --help shows for the value. Default: the choices, or the type.
        panel: heading of the flag in --help. Default: the panel of the section.
        first: whether --help lists the flag under "Most used" instead.
        text: whether the command line takes any text, for a number that may also be a word.
    """

    name: str = ""
    also: str = ""
    metavar: str = ""
    panel: str = ""
    first: bool = False
    text: bool = False


SHARE = Flag(metavar="SHARE")


def setting(default: Any, description: str, flag: Flag | None = None, **limits: Any) -> Any:
    """A field of a section, with the limits of `pydantic.Field`. One without a flag is set in YAML or with --set."""
    field = Field(default, description=description, **limits)
    field.metadata += [flag] if flag else []
    return field


def share(default: Any, description: str, flag: Flag = SHARE) -> Any:
    """A field above 0 and below 1."""
    return setting(default, description, flag, gt=0, lt=1)


def names_in(value: Any) -> Any:
    """The names of a flag that is repeated, or holds them with commas between; anything else as it is."""
    if isinstance(value, list | tuple) and len(value) != 1:
        return list(dict.fromkeys(value))
    text = value[0] if isinstance(value, list | tuple) else value
    return list(dict.fromkeys(part.strip() for part in text.split(","))) if isinstance(text, str) else value


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
    long = f"--{name}/--no-{name}" if field.annotation is bool else f"--{name}"
    return [long, *([flag.also] if flag and flag.also else [])]
