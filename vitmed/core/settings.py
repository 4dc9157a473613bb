"""How a setting is declared: a field of a section, with its type, range, flag and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

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


def setting(default: Any, description: str, flag: Flag | None = None, **limits: Any) -> Any:
    """A field of a section, with the limits of `pydantic.Field`. One without a flag is set in YAML or with --set."""
    field = Field(default, description=description, **limits)
    field.metadata += [flag] if flag else []
    return field


class Section(BaseModel):
    """Fields that belong together; `panel` is the heading of their flags in --help."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)
    panel: ClassVar[str] = ""
