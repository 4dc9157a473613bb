"""Patients by an expression: what `re` finds, within a time that no expression can exceed."""

from __future__ import annotations

import re
import time
from itertools import product
from pathlib import Path

import pytest
import yaml
from conftest import Recorder

from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.data import patients
from vitmed.data.patients import compile_group, groups_from_table, groups_of
from vitmed.data.splits import make_splits

ROOT = Path(__file__).parents[2]
DOCUMENTED = re.compile(r"--group-regex '([^']+)'|group_regex[:=] *[r\"']+([^\"'\n]+)")
PATHS = [
    f"{split}{label}/{name}"
    for split in ("", "train/", "Val/")
    for label in ("infected", "uninfected", "Grüße 1")
    for name in (
        "P007_c012.png", "C33P1thinF_IMG_20150619_114756a_cell_179.png", "person1_bacteria_2.jpeg", "0001234/s3.dcm",
        "TCGA-AB-1234-01A.tif", "sub-01_ses-2_T1w.png", "a.png", "patient 7/left.png", "x_\n.png", "12345_left.jpg",
    )
]  # fmt: skip


def documented() -> list[str]:
    """Every expression in the recipes, the cards, the documentation and the tests."""
    found = []
    for file in (*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("tests/*/*.py")):
        found += [a or b for a, b in DOCUMENTED.findall(file.read_text(encoding="utf-8"))]
    for file in (*ROOT.glob("configs/*.yaml"), *ROOT.glob("datasets/*.yaml")):
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        found.append((content.get("data") or {}).get("group_regex") or content.get("group_regex"))
    return sorted({expression for expression in found if expression and _valid(expression)})


def _valid(expression: str) -> bool:
    try:
        return re.compile(expression) is not None
    except re.error:
        return False


def test_the_same_patients_as_re() -> None:
    assert len(documented()) >= 5
    for expression in documented():
        matches = [re.search(expression, path) for path in PATHS]
        expected = [(match and (match[match.lastindex] if match.lastindex else match[0])) or None for match in matches]
        assert groups_of(expression, PATHS) == expected, expression


def test_an_alternative_for_each_shape_of_name() -> None:
    """The names of Kermany's chest X-rays, as published."""
    paths = {
        "train/PNEUMONIA/person12_bacteria_48.jpeg": "person12",
        "train/PNEUMONIA/person12_virus_3.jpeg": "person12",
        "train/NORMAL/IM-0115-0001.jpeg": "IM-0115",
        "test/NORMAL/NORMAL2-IM-0115-0001.jpeg": "IM-0115",
        "test/NORMAL/IM115.jpeg": None,
    }
    assert groups_of(r"(person\d+)_|(IM-\d+)-", list(paths)) == list(paths.values())
    assert groups_of(r"(?P<a>IM-\d+)-|(person\d+)_", list(paths)) == list(paths.values())


def test_an_expression_that_backtracks_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """(x|xx)+[yz] on 60 letters takes `re` longer than the universe is old."""
    monkeypatch.setattr(patients, "SECONDS", 0.5)
    for name in ("amber", "blue"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{'x' * 60}.png").write_bytes(b"")
    start = time.monotonic()
    with pytest.raises(UsageError, match=r"\(x\|xx\)\+\[yz\].*backtracks"):
        make_splits(DataConfig(root=str(tmp_path), group_regex="(x|xx)+[yz]"))
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    "expression", ["(?:(?:a{9999}){9999}){9999}", "a{2000000000}", "(?x)((a{99} )#\n{99})", "a" * 100_001]
)
def test_an_expression_that_would_fill_the_memory_is_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="too many repetitions"):
        compile_group(expression)


@pytest.mark.parametrize("expression", ["(", "(?R)", "(" * 5000 + ")" * 5000, r"\p{L}"])
def test_the_syntax_is_that_of_re(expression: str) -> None:
    with pytest.raises(UsageError, match="not a regular expression"):
        compile_group(expression)


def test_a_long_identifier_in_braces_is_allowed() -> None:
    uuid = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    path = "infected/6f1c0d2e-0a1b-4c3d-8e9f-0123456789ab_1.png"
    assert groups_of(f"({uuid})_{uuid}|({uuid})", [path]) == ["6f1c0d2e-0a1b-4c3d-8e9f-0123456789ab"]
    assert groups_of(f"({uuid})", [path]) == ["6f1c0d2e-0a1b-4c3d-8e9f-0123456789ab"]


def test_an_expression_is_printed_as_text(ui: Recorder) -> None:
    patients.show_expression("(\x1b[31mP)")
    patients.show_expression(r"(P\d+)_")
    assert ui.said == [
        r"looking for patients in the file paths by --group-regex '(\x1b[31mP)'",
        r"looking for patients in the file paths by --group-regex '(P\d+)_'",  # as a shell reads it
    ]


def test_a_table_of_patients_that_lies_in_the_folder_is_named(tmp_path: Path, ui: Recorder) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(6):
            (tmp_path / name / f"{i}.png").write_text(f"{name} {i}")
    (tmp_path / "notes.csv").write_text("date;text\n")  # no rows
    (tmp_path / "sizes.csv").write_text("path,width\na/0.png,3\n")  # no patients
    (tmp_path / "predictions.csv").write_text("path,group\na/0.png,\n")  # nor here
    table = tmp_path / "who.csv"
    rows = [f"{name}/{i}.png,p{i // 2}" for name in "ab" for i in range(6)]
    table.write_text("\n".join(["path,patient", *rows]))
    splits = make_splits(DataConfig(root=str(tmp_path)))
    patients.report_patients(splits, "a risk")
    assert ui.warned[-1].endswith(f". The column 'patient' of who.csv seems to name them: --groups {table}")
    grouped = make_splits(DataConfig(root=str(tmp_path), groups=str(table)))
    assert grouped.grouped and not grouped.shared()


@pytest.mark.parametrize(
    ("column", "named"),
    [
        *((name, True) for name in ("participant_id", "PatientName", "Subject No.", "Patienten-ID", "pid")),
        *((name, False) for name in ("patient_age", "site", "PatientSex", "study uid", "ID", "num_patients")),
    ],
)
def test_a_column_of_patients_with_an_unusual_name_is_named_and_taken(
    tmp_path: Path, ui: Recorder, column: str, named: bool
) -> None:
    """By the warning, whose advice works; until then the patients of a table of labels stay unknown."""
    rows = [f"{'ab'[i % 2]}{i}.png,{'ab'[i % 2]},x{i // 4},{i}" for i in range(40)]
    (tmp_path / "set").mkdir()
    for row in rows:
        (tmp_path / "set" / row.partition(",")[0]).touch()
    table = tmp_path / "t.csv"
    table.write_text("\n".join([f"path,label,{column},patient_count", *rows]))
    given = {"root": str(tmp_path / "set"), "labels": str(table)}
    patients.report_patients(splits := make_splits(DataConfig(**given)), "a risk")
    assert not splits.grouped
    if not named:
        assert ui.warned[-1] == "patients are unknown: a risk (use --group-regex or --groups TABLE)"
        return
    assert ui.warned[-1].endswith(f"The column {column!r} of t.csv seems to name them: --groups {table}")
    splits = make_splits(DataConfig(**given, groups=str(table)))
    assert splits.unit == "patient" and len({s.group for s in splits.every}) == 10 and not splits.shared()


@pytest.mark.parametrize("other", ["{}.0", "00{}"])
@pytest.mark.parametrize("flag", ["labels", "groups"])
def test_a_patient_written_in_two_ways_stays_in_one_split(tmp_path: Path, flag: str, other: str) -> None:
    """As where Excel or pandas has read one of two tables before they were joined."""
    rows = ["path,label,patient"]
    for i in range(60):
        name = tmp_path / "set" / "ab"[i // 2 % 2] / f"{i}.png"
        name.parent.mkdir(parents=True, exist_ok=True)
        name.touch()
        patient = str(10 + i // 2)
        rows.append(f"{name.parent.name}/{name.name},{name.parent.name},{other.format(patient) if i % 2 else patient}")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    splits = make_splits(DataConfig.model_validate({"root": str(tmp_path / "set"), flag: str(tmp_path / "table.csv")}))
    groups = splits.groups()
    assert sum(map(len, groups.values())) == len(set().union(*groups.values())) == 30
    assert any("They count as one patient: 30 instead of 60 patients." in note for note in splits.notes)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        *product(["patient"], ["unknown", "nan", "None", "-", "\u200b"]),
        *product(["patient", "label"], ["#N/A", "#DIV/0!"]),
    ],
)
@pytest.mark.parametrize("target", ["classes", "grades"])
def test_a_cell_that_means_nothing_is_no_patient_and_no_class(
    tmp_path: Path, column: str, cell: str, target: str
) -> None:
    rows = [{"path": f"{i}.png", "label": str(i % 3), "patient": str(i)} for i in range(30)]
    rows[4][column] = cell
    for row in rows:
        (tmp_path / row["path"]).touch()
    text = "\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)])
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    config = {"root": str(tmp_path), "labels": str(tmp_path / "t.csv"), "target": target}
    but = "" if cell == "\u200b" else f"but '{cell}' "
    with pytest.raises(DataError, match=rf"1 row has no {column} {but}.*: line 6"):
        make_splits(DataConfig.model_validate(config))


def test_a_column_is_no_table_of_groups(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--groups patient: there is no such table") as error:
        groups_from_table("patient", tmp_path, ["a.png"])
    assert "a column of patients in the table of --labels needs no flag" in error.value.fix
