"""What earlier versions had and this one lacks: for each command, flag and setting, what to use instead.

An entry stays for one version, then it goes. A stored setting at its old default changes nothing and is dropped; any
other value needs the version that still has it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Mapping
from typing import Any

from vitmed.core.aliases import OldNameWarning
from vitmed.core.errors import UsageError

READER = "0.2.0"  # the last version that has what is listed here
ANY = object()  # every value may be dropped: the setting never changed a result

COMMANDS: dict[str, str] = {  # `vitmed NAME` -> what to use instead
    "lr-find": "the plan sets the rate: vitmed plan DATA shows it, vitmed train --lr sets another",
}
FLAGS: dict[str, str] = {  # "--flag" -> what to use instead
    "--wheels": "PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR before the command",
    "--report": "copy report.html of the test yourself",
    "--int8": "export without it and quantise the file with onnxruntime, see docs/export.md",
}
SETTINGS: dict[str, tuple[Any, str]] = {  # "section.field" -> its old default, what to use instead
    "data.cache_mb": (ANY, "leave it out"),
}
VALUES: dict[str, dict[Any, str]] = {}  # "section.field" -> {value that is gone: what to use instead}
NAMES: dict[str, dict[str, str]] = {  # "section.field" -> {name in its list that never changed a result: what to use}
    "evaluate.format": {"pdf": "print report.html from any browser"},
    "train.track": {"tensorboard": "--track mlflow or --track wandb"},
}


def without_gone(tree: dict[str, Any], given: Collection[str] = ()) -> dict[str, Any]:
    """The sections of a configuration without settings that are gone. Raises UsageError for one that mattered.

    Args:
        given: "section.field" of values that came from flags: there every name of `NAMES` is refused.
    """
    tree = copy.deepcopy(tree)
    for key, (default, instead) in SETTINGS.items():
        section, _, field = key.partition(".")
        fields = tree.get(section)
        if isinstance(fields, dict) and field in fields:
            value = fields.pop(field)
            if default is not ANY and value != default:
                raise UsageError(f"{key} = {value!r} is no longer there; vitmed {READER} has it", instead)
    for key, values in VALUES.items():
        section, _, field = key.partition(".")
        fields = tree.get(section)
        value = fields.get(field) if isinstance(fields, dict) else None
        if isinstance(value, str | int | float | bool) and value in values:
            raise UsageError(f"{key} = {value!r} is no longer there; vitmed {READER} has it", values[value])
    for key, names in NAMES.items():
        section, _, field = key.partition(".")
        fields = tree.get(section)
        value = fields.get(field) if isinstance(fields, dict) else None
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(part, str) for part in listed):
            continue
        parts = [part.strip() for part in ",".join(listed).split(",")]
        for name in [name for name in names if name in parts]:
            what = f"--{field} {name}" if key in given else f"{key} {name}"
            if key in given:
                raise UsageError(f"{what} is no longer there; vitmed {READER} has it", names[name])
            warnings.warn(f"{what} is no longer there: {names[name]}", OldNameWarning, stacklevel=2)
            parts.remove(name)
            fields |= {field: ",".join(parts) if isinstance(value, str) else parts}  # type: ignore[operator]
            if not parts:
                del fields[field]  # type: ignore[union-attr]
    return tree


def results_without_gone(content: Mapping[str, Any]) -> dict[str, Any]:
    """A metrics.json of 0.2.0 or earlier without what is gone: `specificity` of `fixed_rates`."""
    rates = content.get("fixed_rates")
    if not isinstance(rates, Mapping):
        return dict(content)
    return {**content, "fixed_rates": {key: part for key, part in rates.items() if key != "specificity"}}


def gone(words: list[str], message: str) -> UsageError | None:
    """What to use instead of the command or flag that the parser did not know; None where it never existed."""
    for word in words:
        name = word.partition("=")[0]
        instead = FLAGS.get(name) or COMMANDS.get(name)
        if instead is not None and name in message:
            what = name if name.startswith("-") else f"vitmed {name}"
            return UsageError(f"{what} is no longer there; vitmed {READER} has it", instead)
    return None
