"""What `--format paper` writes says the same as metrics.json, in files that LaTeX, a spreadsheet and a journal take."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import draw_only
from markupsafe import Markup
from reports import write_report

from vitmed.core.config import EvaluateConfig
from vitmed.metrics.predictions import Predictions
from vitmed.report.blocks import Table, td
from vitmed.report.write import latex

CLASSES = ("50 % & more_{a}", "#2 \\ ^~$")


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=60)
    logits = rng.normal(size=(60, 2)).astype(np.float32) + np.eye(2, dtype=np.float32)[labels]
    p = Predictions(
        CLASSES, tuple(f"{i}.png" for i in range(60)), tuple(f"p{i % 12}" for i in range(60)), labels, logits
    )
    config = EvaluateConfig(resamples=20, format="html,paper")
    better = replace(p, logits=p.logits + np.eye(2, dtype=np.float32)[labels])
    folder = tmp_path_factory.mktemp("paper") / "report"
    with pytest.MonkeyPatch.context() as patch:
        draw_only(patch, "roc")
        write_report(folder, p, title="t", facts={}, config=config, baselines={"colour_and_size": better})
    return folder / "paper", json.loads((folder / "metrics.json").read_text())


def test_tables_are_numbers_and_intervals_of_metrics_json(paper: tuple[Path, Any]) -> None:
    folder, metrics = paper
    rows = {row["Class"]: row for row in csv.DictReader((folder / "results-by-class.csv").open(newline=""))}
    assert rows.keys() == set(CLASSES)
    for name, row in zip(metrics["per_class"], rows.values(), strict=True):
        own = metrics["per_class"][name]["sensitivity"]
        read = [float(row[f"Sensitivity{end}"]) for end in ("", ", low", ", high")]  # as a spreadsheet and R read them
        assert read == pytest.approx([own["value"], own["low"], own["high"]], rel=1e-5)


def test_a_negative_difference_is_a_number_and_only_text_is_kept_from_being_a_formula(paper: tuple[Path, Any]) -> None:
    folder, metrics = paper
    text = (folder / "results-comparison-with-baselines.csv").read_text()
    (row,) = csv.DictReader(text.splitlines())
    gap = metrics["baselines"]["colour_and_size"]["difference"]["accuracy"]
    read = [float(row[f"Accuracy, model minus baseline{end}"]) for end in ("", ", low", ", high")]
    assert read == pytest.approx([gap["value"], gap["low"], gap["high"]], rel=1e-5) and gap["high"] < 0
    assert "'" not in text and " to " not in text


def test_latex_has_no_open_special_character_and_as_many_cells_as_columns(paper: tuple[Path, Any]) -> None:
    text = (paper[0] / "tables.tex").read_text()
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") >= 3
    assert r"\caption{All results and baselines: All numbers}" in text
    for columns, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.S):
        for line in (line for line in body.splitlines() if line.endswith(r" \\")):
            assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1
            shown = re.sub(r"\$-\$(?=\d)", "", line)  # a minus sign
            assert not re.search(r"(?<!\\)[%#$_~^]", shown), line
    labels = re.findall(r"\\label\{tab:([a-z0-9-]+)\}", text)
    assert len(labels) == len(set(labels)) == text.count(r"\begin{table}") and "results-by-class" in labels
    assert {f"{label}.csv" for label in labels} <= {file.name for file in paper[0].iterdir()}
    captions = re.findall(r"\\caption\{(.*)\}", text)
    assert len(captions) == len(set(captions)) == len(labels)
    assert {"Calibration of probabilities", "Calibration of probabilities: Class"} <= {*captions}  # below no heading
    assert r"50 \% \& more\_\{a\}" in text and r"\#2 \textbackslash{} \textasciicircum{}\textasciitilde{}\$" in text


def test_latex_takes_every_name_as_it_is_and_shows_minus_signs() -> None:
    """A bracket or star that begins a row is else an argument of the row above, and pdflatex knows no such signs; two
    hyphens would be a dash, and a hyphen before a digit is no minus."""
    names = {
        "[grade] 2": "{[}grade] 2",
        "*": "{*}",
        "≥2 μm": r"\ensuremath{\ge}2 \ensuremath{\mu}m",
        "a|b": r"a\textbar{}b",
        "--youden": "-{}-youden",
        "-0.5": "$-$0.5",
        "2026-11-30 G-3": "2026-11-30 G-3",
    }
    table = Table([Markup("Name"), Markup("Number")], [[td(name), td("1", "-0.2 to 0.1")] for name in names])
    lines = list(latex(table, "--cost", "x"))
    number = r"\begin{tabular}[t]{@{}r@{}}1\\($-$0.2 to 0.1)\end{tabular}"
    assert [line for line in lines if number in line] == [rf"{name} & {number} \\" for name in names.values()]
    assert r"\caption{-{}-cost}" in lines


def test_a_group_that_is_too_small_and_a_small_p_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three classes, whose table of groups has no column of positive images."""
    draw_only(monkeypatch, "roc")
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=90)
    logits = (rng.normal(size=(90, 3)) + 3 * np.eye(3)[labels]).astype(np.float32)
    sites = tuple("rare" if i < 6 else "AB"[i % 2] for i in range(90))
    for groups in (None, tuple(f"p{i // 2}" for i in range(90))):
        p = Predictions(("a", "b", "<c>"), tuple(f"{i}.png" for i in range(90)), groups, labels, logits)
        config = EvaluateConfig(resamples=20, format="html,paper", subgroups=["site"])
        folder = tmp_path / f"report-{groups is None}"
        write_report(folder, replace(p, columns={"site": sites}), title="t", facts={}, config=config)
        rows = list(csv.reader((folder / "paper" / "subgroups-by-site.csv").open(newline="")))
        assert len({len(row) for row in rows}) == 1
        (rare,) = (row for row in rows if row[0] == "rare")
        assert rare[1].startswith("fewer than 10 images") and not any(rare[2:])
        text = (folder / "paper" / "tables.tex").read_text()
        assert r"\textless{}c\textgreater{}" in text and "<" not in text.split(r"\begin{table}", 1)[1]


def test_each_checklist_is_a_table_to_fill_in(paper: tuple[Path, Any]) -> None:
    claim, tripod, stard = (
        list(csv.reader((paper[0] / f"checklists-{name}.csv").open(newline="")))
        for name in ("claim-2024", "tripod-ai", "stard-ai")
    )
    assert claim[0] == ["Item", "Asks for", "Here", "Left to the author"]
    assert len(claim) == 45 and claim[1][0] == "1"  # CLAIM 2024 has 44 items
    assert any("ROC curve" in row[2] for row in claim) and any(row[2] == "not supplied" and row[3] for row in claim)
    assert len(tripod) > 40 and len(stard) > 30
    assert "checklist" not in (paper[0] / "tables.tex").read_text()


def test_a_figure_is_a_pdf_with_its_fonts(paper: tuple[Path, Any]) -> None:
    content = (paper[0] / "roc.pdf").read_bytes()
    assert content.startswith(b"%PDF") and b"/FontFile2" in content and b"/Type3" not in content


def test_the_sentences_have_the_first_numbers_with_intervals_and_the_baseline(paper: tuple[Path, Any]) -> None:
    folder, metrics = paper
    (sentence, worse), area = (folder / "results.txt").read_text().splitlines(), metrics["overall"]["auroc"]
    assert sentence.startswith("On 60 images of 12 patients, the model reached AUROC ")
    assert f"AUROC {area['value']:.3f} ({area['low']:.3f} to {area['high']:.3f})" in sentence
    assert "95 % confidence intervals" in sentence
    assert worse.startswith("The model is worse than a baseline, the ") and " Model minus baseline: -" in worse
    assert (folder / "methods.md").read_text() == (folder.parent / "methods.md").read_text()
