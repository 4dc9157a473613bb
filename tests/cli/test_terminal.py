"""Tables in the terminal, from 40 columns up."""

import pytest

from vitmed.cli.terminal import print_rows

COLUMNS = "/image|class|>probability|next|answer"
ROWS = [
    ["hospital/archive/2026/patient_0017/slide_0003.png", "basal_cell_carcinoma", "0.913", "naevus 0.087", "yes"],
    ["a.png", "naevus", "0.700", "basal_cell_carcinoma 0.300", "no: several classes are possible"],
    ["broken.png", "not read"],
]


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int | None) -> str:
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    print_rows(COLUMNS, ROWS, "a line below")
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_breaks_no_word(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(monkeypatch, capsys, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    words = text.split()
    for word in ("basal_cell_carcinoma", "0.913", "0.700", "naevus", "possible", "a.png", "broken.png"):
        assert word in words
    (path,) = [word for word in words if word.endswith("_0003.png")]
    assert ROWS[0][0].endswith(path.removeprefix("…")) and len(path) >= 16


@pytest.mark.parametrize("width", range(80, 90))
def test_columns_that_fit_are_whole(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    row = ["cells/C137P98ThinF_cell_82.png", "infected", "0.682", "uninfected 0.318", "infected | uninfected"]
    print_rows("/image|class|>probability|next|set|answer", [[*row, "no: 2 classes are possible"]])
    text = capsys.readouterr().out.split()
    assert {"infected", "0.682", "uninfected", "0.318", "no:", "classes", "are", "possible"} <= {*text}


def test_off_a_terminal_nothing_is_shortened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(monkeypatch, capsys, None)
    for row in ROWS:
        assert any(all(cell in line for cell in row) for line in text.splitlines())
