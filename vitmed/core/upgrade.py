"""What earlier versions had and this one lacks: for each command, flag and setting, what to use instead.

An entry stays for one version, then it goes. A stored setting at its old default changes nothing and is dropped; any
other value needs the version that still has it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from vitmed.core.errors import UsageError

READER = "0.2.0"  # the last version that has what is listed here
ANY = object()  # every value may be dropped: the setting never changed a result
PRETRAIN_FIRST = "vitmed pretrain DIR, then vitmed train DIR --weights RUN/encoder.pt"

COMMANDS: dict[str, str] = {}  # `vitmed NAME` -> what to use instead
FLAGS: dict[str, str] = {  # "--flag" -> what to use instead
    "--pretrain": PRETRAIN_FIRST,
    "--pretrain-epochs": "vitmed pretrain --epochs",
    "--pretrain-also": "vitmed pretrain --unlabelled",
}
# "section.field" -> its old default, or a frozenset of the values that change nothing; what to use instead
SETTINGS: dict[str, tuple[Any, str]] = {
    "data.cache_mb": (ANY, "leave it out"),
    "evaluate.conformal": ("lac", "leave it out"),
    "model.head": (frozenset({"auto", "linear"}), "leave it out"),
    "train.loss": (frozenset({"auto", "cross_entropy", "binary", "gaussian"}), "leave it out"),
    "train.pretrain": (False, PRETRAIN_FIRST),
    "train.pretrain_epochs": (None, "vitmed pretrain --epochs"),
    "train.pretrain_also": (None, "vitmed pretrain --unlabelled"),
}
# "section.field" or "command.keyword" -> {value that is gone: what to use instead}
VALUES: dict[str, dict[Any, str]] = {
    "augment.policy": {"views": "leave it out"},
    "ensemble.way": {"soup": "--way mean"},
}


def without_gone(tree: dict[str, Any]) -> dict[str, Any]:
    """The sections of a configuration without settings that are gone. Raises UsageError for one that mattered."""
    tree = copy.deepcopy(tree)
    for key, (default, instead) in SETTINGS.items():
        section, _, field = key.partition(".")
        fields = tree.get(section)
        if isinstance(fields, dict) and field in fields:
            value = fields.pop(field)
            same = default if isinstance(default, frozenset) else (default,)
            if default is not ANY and value not in list(same):
                raise UsageError(f"{key} = {value!r} is no longer there; vitmed {READER} has it", instead)
    for key in VALUES:
        section, _, field = key.partition(".")
        fields = tree.get(section)
        check_value(key, fields.get(field) if isinstance(fields, dict) else None)
    return tree


def target(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the labels are. Raises UsageError for a number whose absolute errors were learned."""
    if content.get("distribution") != "laplace":
        return dict(content)
    if content.get("kind") == "number":
        problem = f"a number of train.loss = 'laplace' is no longer there; vitmed {READER} has it"
        raise UsageError(problem, "train again without train.loss")
    return {name: value for name, value in content.items() if name != "distribution"}


def check_value(key: str, value: Any) -> None:
    """Raise UsageError for a value that is gone."""
    if isinstance(value, str | int | float | bool) and value in VALUES[key]:
        raise UsageError(f"{key} = {value!r} is no longer there; vitmed {READER} has it", VALUES[key][value])


def gone(words: list[str], message: str) -> UsageError | None:
    """What to use instead of the command or flag that the parser did not know; None where it never existed."""
    for word in words:
        name = word.partition("=")[0]
        instead = FLAGS.get(name) or COMMANDS.get(name)
        if instead is not None and name in message:
            what = name if name.startswith("-") else f"vitmed {name}"
            return UsageError(f"{what} is no longer there; vitmed {READER} has it", instead)
    return None
