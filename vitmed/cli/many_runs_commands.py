"""The commands about many runs: training them, joining them, and looking at them together."""

from __future__ import annotations

import typer

MANY_RUNS: dict[str, typer.Typer] = {}
