"""Writes docs/configuration.md from the code: the fields of the configuration, the policies, the metrics, the models.

python docs/configuration.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

FILE = Path(__file__).with_name("configuration.md")
WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null"}
SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}

INTRODUCTION = """\
# Configuration

Written by `python docs/configuration.py` from the code; do not edit it by hand.

A value comes from the first of these that names it: a flag of `vitmed train`, `--set section.field=value` (any field,
as often as needed), the YAML file or recipe of `--config`, the default. Without `--config`, the [plan](planning.md)
comes before the default. An unknown key, a wrong type or a value out of range ends with exit code 2 and a message that
says what is accepted.

```yaml
# blood.yaml: only what differs from the defaults
data:
  group_regex: '(P\\d+)_'
augment:
  policy: blood_smear
train:
  epochs: 50
```

    vitmed train path/to/data --config blood.yaml --lr 3e-4 --set model.dropout=0.1 --set train.patience=null

Every run writes the configuration that it used, complete, as `config.yaml` into its folder; `--config` on that file
repeats the run.
"""


def written(change: Any) -> str:
    """A change as a call, such as `noise(0.1, p=0.25)`."""
    named = [f"{key}={value}" for key, value in change.named.items()]
    return f"`{change.name}({', '.join([*map(str, change.values), *named])})`"


def meaning(name: str) -> tuple[str, str]:
    """The call of a change with its defaults, and what it does."""
    from vitmed.imaging.augmentation import Changes

    method = getattr(Changes, name)
    numbers = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    defaults = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in numbers]
    return f"`{name}({', '.join(defaults)})`", f"{inspect.getdoc(method)}".split("\n\n")[0].replace("\n", " ")


def text() -> str:
    """The whole page."""
    from vitmed.core.config import Config, DataConfig, PretrainConfig
    from vitmed.core.errors import exclusions
    from vitmed.decisions.targets import RANKING, TARGETS
    from vitmed.imaging.augmentation import POLICIES, safe_views
    from vitmed.models.sizes import SIZES

    parts = [INTRODUCTION, *sections(Config)]
    parts.append("## Models\n\nValues of `model.name`.\n\n")
    sizes = [(f"`{name}`", str(s.width), str(s.depth), str(s.heads)) for name, s in SIZES.items()]
    parts.append(table(("name", "width", "blocks", "heads"), sizes))
    parts.append(
        "## Policies\n\nValues of `augment.policy`; how to choose: [training.md](training.md#augmentation).\n\n"
    )
    policies = [
        (f"`{name}`", "yes" if p.flips else "no", f"`{safe_views(name, True)}`", p.text) for name, p in POLICIES.items()
    ]
    parts.append(table(("policy", "mirrors", "most views", "what it does and leaves out"), policies))
    parts.append("How strong the changes are, in the order in which an image meets them; `p`: of how many images.\n\n")
    strengths = [(f"`{name}`", ", ".join(map(written, p.changes))) for name, p in POLICIES.items() if p.changes]
    parts.append(table(("policy", "changes"), strengths))
    used = dict.fromkeys(change.name for policy in POLICIES.values() for change in policy.changes)
    parts.append(table(("change", "what its numbers mean"), list(map(meaning, used))))
    parts.append("## Metrics\n\nValues of `train.monitor`, and names for `--fail-under`, by the kind of label.\n\n")
    kinds_of: dict[tuple[str, str, str], list[str]] = {}
    for kind, of in TARGETS.items():
        for name, m in of.metrics.items():
            if name in RANKING:
                row = f"`{name}`", "higher" if m.higher_is_better else "lower", m.text
                kinds_of.setdefault(row, []).append(kind)
    metrics = [(*row, ", ".join(of_kinds)) for row, of_kinds in kinds_of.items()]
    parts.append(table(("metric", "better", "what it is", "of labels"), metrics))
    parts.append(
        "## Pretraining\n\nWhat configures `vitmed pretrain`. Its `model` section is that above; its `data` section "
        "has one field more.\n\n"
    )
    parts += sections(PretrainConfig, known={"model": None, "data": DataConfig}, title="### Pretraining: {}")
    parts.append("## What excludes each other\n\nThese end with exit code 2 before any work.\n\n")
    rows = [
        (
            row["commands"].replace(" ", ", "),
            *(re.sub("(--[a-z-]+)", r"`\1`", cell) for cell in (row["options"], row["beside"], row["fix"])),
        )
        for row in exclusions().values()
    ]
    parts.append(table(("command", "option", "not with", "instead"), rows))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def sections(config: Any, known: dict[str, Any] | None = None, title: str = "## {}") -> list[str]:
    """A heading and a table for each section of a configuration; without sections and fields `known` from above."""
    parts, known = [], known or {}
    for section, holder in config.model_fields.items():
        fields: Any = holder.annotation
        above = known[section].model_fields if known.get(section) else {}
        if section in known and not above:
            continue
        rows = [
            (
                f"`{name}`",
                flags(name, field),
                accepted(field),
                f"`{shown(field.default)}`",
                field.description or "",
            )
            for name, field in fields.model_fields.items()
            if name not in above
        ]
        parts.append(f"{title.format(section)}\n\n{fields.__doc__.strip()}\n\n")
        parts.append(table(("field", "flag", "accepted", "default", "what it is"), rows))
    return parts


def flags(name: str, field: FieldInfo) -> str:
    """`--batch-size`, `-b`, or nothing where a field has no flag."""
    from vitmed.core.base_models import flag_of, spellings

    flag = flag_of(field)
    words = spellings(flag.name or name, field) if flag else []
    return ", ".join(f"`{word}`" for text in words for word in text.split("/"))


def accepted(field: FieldInfo) -> str:
    """The type and range of a field, in words."""
    ranges = [f"{sign} {getattr(m, key):g}" for m in field.metadata for key, sign in SIGNS.items() if hasattr(m, key)]
    return ", ".join([" or ".join(kinds(field.annotation)), *ranges])


def kinds(annotation: Any) -> Iterable[str]:
    """The words for a type: those of its parts for a union, its values for a literal."""
    if annotation in WORDS:
        return [WORDS[annotation]]
    if get_origin(annotation) is Literal:
        return [", ".join(f"`{value}`" for value in get_args(annotation))]
    words = [word for part in get_args(annotation) for word in kinds(part)]
    if get_origin(annotation) is not list:
        return words
    return [f"list of {word.replace('list', 'lists', 1) if 'list' in word else word + 's'}" for word in words]


def shown(value: Any) -> str:
    """A default as YAML has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
