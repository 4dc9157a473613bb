"""`examples/` and docs/reading.md, the page that leads through the code with them."""

import re
import runpy
import sys
from pathlib import Path

import pytest
from conftest import draw_splits

ROOT = Path(__file__).parents[1]


def test_the_loop_by_hand_learns_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, here = draw_splits(tmp_path / "data"), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    script = str(ROOT / "examples" / "train_by_hand.py")
    monkeypatch.setattr(sys, "argv", [script, str(data), "5"])
    runpy.run_path(script, run_name="__main__")
    losses = [float(text) for text in re.findall(r"val loss (\d\.\d{4})  AUROC \d\.\d{4}\n", capsys.readouterr().out)]
    assert len(losses) == 5 and losses[-1] < 0.5 * losses[0]
    assert list(here.iterdir()) == []


def test_the_example_fits_on_a_page() -> None:
    assert (ROOT / "examples" / "train_by_hand.py").read_text(encoding="utf-8").count("\n") <= 60


def test_what_the_reader_is_led_to_exists() -> None:
    text = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
    files = re.findall(r"`((?:examples/|vitmed/|metrics/|docs/)[\w/.]+)`", text)
    assert len(re.findall(r"^\d\. ", text, re.M)) == 8 <= len(files)
    assert [name for name in files if not ((ROOT / name).exists() or (ROOT / "vitmed" / name).exists())] == []
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "vitmed").rglob("*.py"))
    names = [name.split(".")[-1] for name in re.findall(r"`([A-Za-z_]+(?:\.\w+)?)`", text)]
    known = {"vitmed", "group", "csv"}  # the package, a column, a file of a run
    assert len(names) > 20
    assert [
        name for name in names if name not in known and not re.search(rf"(class|def) {name}\b|\b{name}:", code)
    ] == []
