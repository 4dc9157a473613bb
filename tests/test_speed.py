"""benchmarks/speed.py: every contender builds and steps; what cannot run is left out with its reason."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MISSING = ", ".join(name for name in ("timm", "transformers", "accelerate") if find_spec(name) is None)


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import speed

    yield speed
    for name in ("speed", "turns", "networks", "end_to_end"):
        sys.modules.pop(name, None)


@pytest.fixture
def options(speed: ModuleType) -> argparse.Namespace:
    model = speed.NETWORKS["tiny"] | {"image_size": 16, "patch_size": 8, "width": 16, "depth": 1, "heads": 2}
    return argparse.Namespace(
        model=model,
        bf16=False,
        device="cpu",
        batch=2,
        rounds=1,
        turn=0.0,
        core=None,
        cpu_time=False,
        rows=[],
        images=60,
    )


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")
@pytest.mark.parametrize(("training", "bf16"), [(True, False), (False, False), (True, True), (False, True)])
def test_every_contender_builds_and_steps(
    speed: ModuleType, options: argparse.Namespace, training: bool, bf16: bool
) -> None:
    options.bf16 = bf16
    rows = speed.compete(speed.contenders(options, training), options)
    assert {name: row["left_out"] for name, row in rows.items() if "left_out" in row} == {}
    assert {
        "vitmed",
        "plain fp32",
        *(f"{name} {'bf16' if bf16 else 'fp32'}" for name in ("timm", "torchvision")),
    } <= set(rows)
    assert all(len(row["seconds"]) == 1 and row["seconds"][0] > 0 and row["peak_mb"] > 0 for row in rows.values())


@pytest.mark.slow
@pytest.mark.skipif(find_spec("timm") is None, reason="not installed: timm")
def test_epochs_from_files_and_commands(speed: ModuleType, options: argparse.Namespace) -> None:
    files = speed.from_files(options)
    assert set(files["rows"]) == {
        f"{name}, {epochs}"
        for name in ("vitmed train", "timm fp32, ImageFolder")
        for epochs in ("first epoch", "later epochs")
    }
    assert files["images"] > 20 and not any("left_out" in row for row in files["rows"].values())
    commands = speed.startup(options)
    assert "vitmed predict IMAGE" in speed.ran(commands["rows"])


def test_figures_ratios_and_the_picture(speed: ModuleType, tmp_path: Path) -> None:
    rows = {
        "vitmed": {"seconds": [1.0, 2.0, 4.0], "peak_mb": 1.0},
        "timm": {"seconds": [2.0, 4.0, 8.0], "peak_mb": 1.0},
    }
    part = {"unit": "images/s", "images": 8, "rows": rows | {"other": {"left_out": "no compiler"}}}
    assert speed.figures(part, "vitmed") == [8, 4, 2]
    assert speed.figures(part | {"unit": "ms"}, "timm") == [2000, 4000, 8000]
    import turns

    assert turns.ratio(rows, slow="timm", fast="vitmed") == (2, 2, 2)
    about = {"device": "cpu", "cpu": "some CPU", "threads": 2, "network": "tiny", "date": "2026-11-22"}
    speed.draw_plot(json.loads(json.dumps({"machine": about, "parts": {"train": part}})), tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_a_contender_that_cannot_run_is_left_out_with_its_reason(
    speed: ModuleType, options: argparse.Namespace
) -> None:
    import turns

    rows = turns.compete({"missing": turns.Contender(_without_a_package)}, options)
    assert rows == {"missing": {"left_out": "ModuleNotFoundError: No module named 'no_such_package'"}}


def _without_a_package(options: argparse.Namespace) -> None:
    import no_such_package  # noqa: F401
