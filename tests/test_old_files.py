"""Files of version 0.1.0 are refused, each by a sentence with the version that reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Answer, Trained

WHY = "vitmed 0.1.0 wrote it; vitmed 0.2.0 reads it"


@pytest.fixture
def old(trained: Trained, tmp_path: Path) -> Path:
    """A folder with a checkpoint, numbers and predictions under the names that 0.1.0 used."""
    saved = torch.load(trained.best, weights_only=True)
    saved["versions"]["vitmed"] = "0.1.0"
    del saved["digests"]
    torch.save(saved, tmp_path / "best.pt")
    numbers = json.loads((trained.folder / "test" / "metrics.json").read_text())
    numbers["report"]["judgement"] = numbers["report"].pop("policy")
    numbers["flow"]["judged"] = numbers["flow"].pop("evaluated")
    table = (trained.folder / "test" / "predictions.csv").read_text()
    for name in ("test", "table"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "predictions.csv").write_text(table.replace("ood_score", "unfamiliarity"))
    (tmp_path / "test" / "metrics.json").write_text(json.dumps(numbers))
    (tmp_path / "config.yaml").write_text((trained.folder / "config.yaml").read_text())
    return tmp_path


@pytest.mark.parametrize(
    ("command", "name", "code"),
    [
        ("evaluate", "best.pt", 4),
        ("evaluate", "test/predictions.csv", 3),
        ("evaluate", "table/predictions.csv", 3),
        ("stress", "best.pt", 4),
    ],
)
def test_a_file_of_0_1_0_is_refused(
    old: Path, vitmed: Callable[..., Answer], command: str, name: str, code: int
) -> None:
    answer = vitmed(command, old / name)
    assert answer.code == code and WHY in answer.err and "Fix: " in answer.err, answer.err


def test_the_list_of_runs_names_it(old: Path, vitmed: Callable[..., Answer]) -> None:
    answer = vitmed("runs", old, "--json")
    assert answer.code == 0
    run = json.loads(answer.out)["runs"][0]
    assert run["state"] == "damaged" and WHY in run["problem"]
