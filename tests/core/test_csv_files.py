"""A cell of a CSV file reads back exactly, and no spreadsheet runs it."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path

import numpy as np
import pytest

from vitmed.core.config import DataConfig
from vitmed.core.text_files import csv_text, from_cell, read_csv, to_cell
from vitmed.data.label_kinds import LabelRequest
from vitmed.data.listing import labels_from_table
from vitmed.data.samples import ALL
from vitmed.data.tables import read_table
from vitmed.metrics.predictions import Predictions

PIECES = (*"=+-@\t\r\n'\\1.,\"; é", "udce9", "\udce9", "\ud83d", "e5")
NASTY = ["".join(parts) for count in range(4) for parts in itertools.product(PIECES, repeat=count)]
FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-inf", "+-1", "'=1", "''@x")


def test_every_text_reads_back_exactly() -> None:
    for text in NASTY:
        assert from_cell(to_cell(text)) == text, ascii(text)
    assert len({to_cell(text) for text in NASTY}) == len(NASTY)


def test_no_cell_begins_a_formula() -> None:
    for text in NASTY:
        cell = to_cell(text)
        if cell[:1] in ("=", "+", "-", "@", "\t", "\r"):
            float(cell)  # a plain number
    assert [to_cell(text) for text in FORMULAS] == [f"'{text}" for text in FORMULAS]


def test_numbers_and_usual_names_are_written_as_they_are() -> None:
    usual = "-0.5", "+3", "-1.5e-30", "", "P-1", "O'Hara", "'quoted'", "a=b", "naïve Ω 細胞", r"C:\users\udo", r"\x"
    for text in usual:
        assert to_cell(text) == from_cell(text) == text


def test_a_file_can_be_encoded_and_holds_lines_in_cells() -> None:
    rows = [["a", "b"], *([text, text] for text in NASTY if text)]
    data = csv_text(rows).encode("utf-8")
    read = list(csv.reader(io.StringIO(data.decode("utf-8"), newline="")))
    assert [[from_cell(cell) for cell in row] for row in read] == rows
    assert csv_text([["a\0b"]]) == "a\ufffdb\r\n"  # a damaged file's; no program reads a table with NUL


def test_predictions_with_such_names_read_back_exactly(tmp_path: Path) -> None:
    names = list(dict.fromkeys([*(text for text in NASTY[1:] if "\0" not in text), *FORMULAS]))[-2000:]
    groups = tuple(f"{name}|{i}" for i, name in enumerate(reversed(names)))
    before = Predictions(
        classes=("=b", "+a", "caf\udce9"), paths=tuple(names), groups=groups,
        labels=np.arange(len(names)) % 3, logits=np.random.default_rng(0).normal(size=(len(names), 3)).astype("f4"),
        columns={"@site": tuple(names)}, errors=(("=bad.png", "-broken"),),
    )  # fmt: skip
    file = tmp_path / "predictions.csv"
    file.write_bytes(before.to_csv(errors=True).encode("utf-8"))
    after = Predictions.from_csv(file)
    assert (after.classes, after.paths, after.groups) == (before.classes, before.paths, before.groups)
    assert after.columns == before.columns and after.errors == before.errors
    assert after.labels is not None and before.labels is not None
    assert after.labels.tolist() == before.labels.tolist() and after.logits.tobytes() == before.logits.tobytes()
    assert "'@site" in file.read_text(encoding="utf-8").splitlines()[0].split(",")


def test_a_table_without_quotes_reads_as_it_did(tmp_path: Path) -> None:
    """As 0.1.0, or another program, wrote it: no text in it is protected against spreadsheets."""
    file = tmp_path / "predictions.csv"
    file.write_text(
        "path,label,group,prediction,confidence,prob_a,prob_b,logit_a,logit_b\r\n=1.png,a,-p,a,0.5,0.5,0.5,0.0,0.0\r\n"
    )
    read = Predictions.from_csv(file)
    assert read.paths == ("=1.png",) and read.groups == ("-p",)


def test_a_table_of_labels_finds_the_files_again(tmp_path: Path) -> None:
    paths = ["=1.png", "caf\udce9.png", r"back\udce9.png", "'+x.png"]
    rows = [["path", "label", "-site"], *([path, f"={i % 2}", "@x"] for i, path in enumerate(paths))]
    file = tmp_path / "labels.csv"
    file.write_text(csv_text(rows), encoding="utf-8", newline="")
    found = labels_from_table(file, tmp_path, paths, LabelRequest(DataConfig()))
    images = found.samples[ALL]
    assert [sample.path for sample in images] == paths and found.classes == ("=0", "=1")
    assert [sample.label for sample in images] == [0, 1, 0, 1]
    assert found.columns == ("-site",) and {sample.columns for sample in images} == {("@x",)}
    assert read_table(file).rows[1][0] == "caf\udce9.png"


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_spreadsheet_may_save_it_with_another_separator(separator: str) -> None:
    texts = [text for text in FORMULAS if "\r" not in text]
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=separator).writerows(
        [["a, b", "c", "d"], *([to_cell(text), "x", ""] for text in texts)]
    )
    for first in ("", f"sep={separator}\r\n", "\r\n"):
        found, rows = read_csv(Path("a.csv"), first + stream.getvalue())
        assert found == separator and [row for _, row in rows] == [
            ["a, b", "c", "d"],
            *([text, "x", ""] for text in texts),
        ]
    semicolons = "path;label;prob_a, b;prob_c, d, e, f\nx.png;a, b;0,5;0,5\n"  # names and decimals with commas
    assert read_csv(Path("a.csv"), semicolons)[0] == ";"
    assert read_csv(Path("a.csv"), "path,label\n")[0] == ","
