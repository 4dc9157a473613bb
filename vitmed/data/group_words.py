"""What the groups of images are called: "patients", or what else they come from.

How groups are known is kept in words: in the splits, the checkpoint and the report. These words also say what they are.
"""

from __future__ import annotations

import re

AS_ORIGINALS = "as originals of augmented copies"
PEOPLE = re.compile(
    r"pa[tzc]ien|person|subj|case|donor|particip|proband|mouse|animal|\b(sub|pat|pt|pid|mrn)s?\b|^ids?$"
)


def known_by_column(column: str, flag: str) -> str:
    """How the groups of a column are known, in words: patients where the name of the column says so."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[^A-Za-z]+", " ", column).lower().strip()
    if PEOPLE.search(words):
        return f"by table ({flag})"
    name = "" if words in ("group", "groups") else re.sub(r"[^\w.-]+", "_", column) + " "
    return f"as {name}groups, by table ({flag})"


def group_word(known: str) -> str:
    """One group, from how groups are known: "patient", "original", "slide_field group" or "group"."""
    if known.startswith(AS_ORIGINALS):
        return "original"
    found = re.match(r"as ((?:.* )?group)s, by table", known)
    return found[1] if found else "patient"
