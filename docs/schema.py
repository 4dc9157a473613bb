"""Writes docs/metrics.schema.json from the code: the JSON schema of metrics.json.

python docs/schema.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("metrics.schema.json")


def text() -> str:
    """The whole file."""
    from vitmed.report.results import Results

    return json.dumps(untitled(Results.model_json_schema()), indent=1, ensure_ascii=False) + "\n"


def untitled(schema: Any) -> Any:
    """A schema without the titles, which repeat the names of the fields."""
    if isinstance(schema, list):
        return [untitled(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: untitled(part) for key, part in schema.items() if key != "title" or isinstance(part, dict)}


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
