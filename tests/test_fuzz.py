"""A short run of benchmarks/fuzz.py: no damaged file crashes, hangs, or passes as another one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    file = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("fuzz", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules["fuzz"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("subject", "count"), [("checkpoints", 12), ("weights", 30), ("configs", 40), ("tables", 40)])
def test_damaged_files(fuzz: ModuleType, subject: str, count: int) -> None:
    outcomes = fuzz.try_cases(subject, range(count), seed=1)
    assert [outcome for outcome in outcomes if outcome.kind in fuzz.FAULTS] == []
    kinds = {outcome.kind for outcome in outcomes}
    assert {"refused", "same"} <= kinds  # the damage is neither always fatal nor always beside the point
