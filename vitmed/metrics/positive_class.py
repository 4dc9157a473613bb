"""The positive class of two: the one that is looked for."""

from __future__ import annotations

import re
from collections.abc import Sequence

NEGATIONS = {"no", "non", "not", "without"}
PREFIXES = ("no", "non", "not", "un")
NEGATIVES = {
    *("normal", "healthy", "negative", "neg", "benign", "uninfected", "unaffected", "control", "controls"),
    *("absent", "clean", "none", "false", "0"),
}


def positive_class(classes: Sequence[str]) -> int:
    """Which of two classes is the positive one: the one whose name is not that of an absence, else the last.

    `normal`, `no_tumor`, `NOT INFECTED`, `uninfected`, `0` are names of an absence; `abnormal` is not.
    """
    absent = [_names_absence(name, classes) for name in classes]
    return absent.index(False) if absent.count(False) == 1 else len(classes) - 1


def _names_absence(name: str, classes: Sequence[str]) -> bool:
    words = [word for word in re.split(r"[\W_]+", name.lower()) if word]
    if words and words[0] in NEGATIONS:
        return not _names_absence(" ".join(words[1:]), classes)
    if any(word in NEGATIVES for word in words):
        return True
    joined = "".join(words)
    others = {"".join(re.split(r"[\W_]+", c.lower())) for c in classes} - {joined, ""}
    return any(joined == prefix + other and other not in NEGATIVES for other in others for prefix in PREFIXES)
