"""Compares the answer on stdin with a stored one; runs in the bundle, with the standard library alone."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

CLOSE = 1e-3  # how far a number may be: another processor computes the last digits otherwise


def differences(found: Any, stored: Any, place: str = "answer") -> list[str]:
    """Where two answers differ."""
    if isinstance(stored, dict) and isinstance(found, dict) and found.keys() == stored.keys():
        return [text for key in stored for text in differences(found[key], stored[key], f"{place}.{key}")]
    if isinstance(stored, list) and isinstance(found, list) and len(found) == len(stored):
        pairs = enumerate(zip(found, stored, strict=True))
        return [text for i, pair in pairs for text in differences(*pair, f"{place}[{i}]")]
    if isinstance(stored, float) and isinstance(found, float | int):
        same = math.isclose(found, stored, rel_tol=CLOSE, abs_tol=CLOSE)
    else:
        same = found == stored
    return [] if same else [f"{place} is {found}, expected {stored}"]


if __name__ == "__main__":
    wrong = differences(json.load(sys.stdin), json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    sys.exit("; ".join(wrong) or 0)
