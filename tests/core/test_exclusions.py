"""The table of options that exclude each other: it names options that exist, and every row is an error of a command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

import vitmed
from vitmed.cli.commands import APPS
from vitmed.core.errors import excluded, exclusions

ROOT = Path(vitmed.__file__).parent


@pytest.mark.parametrize("key", exclusions())
def test_a_row_names_options_of_its_commands(key: str) -> None:
    row = exclusions()[key]
    named = re.findall(r"--[a-z][a-z-]+", " ".join(text for field, text in row.items() if field != "commands"))
    assert named
    for command in row["commands"].split():
        has = {flag for param in get_command(APPS[command]).params for flag in (*param.opts, *param.secondary_opts)}
        assert set(named) <= has, command


def test_every_row_is_raised_in_one_place() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in ROOT.rglob("*.py"))
    assert sorted(re.findall(r'raise (?:errors\.)?excluded\("([^"]+)"', text)) == sorted(exclusions())


def test_the_message_holds_what_was_given() -> None:
    assert str(excluded("parallel", given="--parallel 3")).startswith("--parallel 3: one run is not divided")
