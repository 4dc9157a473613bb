"""Findings from tables: every usual way to write them gives the same targets; what is no finding is refused by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from label_sets import by_path, label_set, split

from vitmed.core.base_models import UNKNOWN
from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.data.label_kinds import LabelRequest, finding_strata
from vitmed.data.listing import list_by_table
from vitmed.data.loading import UnusableFiles, _without
from vitmed.data.samples import Splits

YES, NO = (1.0,), (0.0,)


def table(folder: Path, header: list[str], rows: list[list[Any]]) -> Path:
    """A table of ten copies of each row, with images of their own."""
    images = [[f"{i:02}_{k}.png", *row] for k in range(10) for i, row in enumerate(rows)]
    return label_set(folder / "set", ["path", *header], images)


def targets(splits: Splits) -> list[tuple[float, ...]]:
    """Of the first copy of each row, in their order."""
    return [values for path, values in sorted(by_path(splits).items()) if path.endswith("_0.png")]


@pytest.mark.parametrize(
    ("present", "absent"),
    [
        ("1", "0"),
        ("1.0", "0.0"),
        ("yes", "no"),
        ("TRUE", "FALSE"),
        ("+", "-"),
        ("Ja", "nein"),
        ("oui", "non"),
        ("sí", "NO"),
    ],
)
def test_a_finding_is_written_in_many_ways(tmp_path: Path, present: str, absent: str) -> None:
    folder = table(tmp_path, ["Mass", "Edema"], [[present, absent], [absent, present], [absent, absent], ["", present]])
    splits = split(folder)
    assert splits.classes == ("Mass", "Edema") and splits.target.kind == "findings"
    assert targets(splits) == [(1, 0), (0, 1), (0, 0), (UNKNOWN, 1)]
    assert "2 findings" in splits.recognised and "columns of labels.csv" in splits.recognised


def test_a_dash_is_absent_beside_a_plus_and_otherwise_not_known(tmp_path: Path) -> None:
    rows = [[1, "+", "yes"], [0, "-", "no"], ["-", "+", "-"]]
    assert targets(split(table(tmp_path, ["A", "B", "C"], rows))) == [(1, 1, 1), (0, 0, 0), (UNKNOWN, 1, UNKNOWN)]


def test_a_column_of_a_split_or_of_sex_is_a_finding_only_by_its_name(tmp_path: Path) -> None:
    folder = table(
        tmp_path, ["Mass", "Edema", "is_test", "Male"], [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 0], [1, 1, 0, 0]]
    )
    splits = split(folder)
    assert splits.classes == ("Mass", "Edema") and splits.columns == ("is_test", "Male")
    assert split(folder, findings=["Mass", "Male"]).classes == ("Mass", "Male")


@pytest.mark.parametrize(
    ("uncertain", "expected"),
    [("ignore", (UNKNOWN, UNKNOWN)), ("ones", (1, 1)), ("zeros", (0, 0))],
)
def test_uncertain_findings_as_in_chexpert(tmp_path: Path, uncertain: str, expected: tuple[float, float]) -> None:
    """1, 0, -1 and blank: Irvin et al. 2019, table 1 and section 3."""
    folder = table(tmp_path, ["Edema", "Mass"], [["1.0", ""], ["-1.0", "0.0"], ["-1", "1"], ["0", "1"]])
    splits = split(folder, uncertain=uncertain)
    assert targets(splits) == [(1, UNKNOWN), (expected[0], 0), (expected[1], 1), (0, 1)]
    (note,) = [note for note in splits.notes if "uncertain" in note]
    assert "20 labels of -1" in note and "--uncertain" in note
    request = LabelRequest(DataConfig(uncertain=uncertain), "findings", outputs=("Edema", "Mass"))
    evaluated = list_by_table(folder, folder / "labels.csv", request)  # evaluate has no such flag
    assert targets(evaluated) == targets(splits) and not any("--uncertain" in note for note in evaluated.notes)


def test_no_finding_of_chexpert_says_that_the_others_are_absent(tmp_path: Path) -> None:
    folder = table(tmp_path, ["No Finding", "Mass", "Edema"], [[1, "", ""], ["", 1, ""], ["", "", 1], [1, "", 1]])
    splits = split(folder)
    assert splits.classes == ("Mass", "Edema")
    assert targets(splits) == [(0, 0), (1, UNKNOWN), (UNKNOWN, 1), (0, 1)]
    (note,) = [note for note in splits.notes if "'No Finding' is no finding" in note]
    assert note.endswith("empty cells mean absent, and 10 images have a finding too")
    assert targets(split(folder, findings=["Mass", "Edema"])) == targets(splits)
    request = LabelRequest(DataConfig(), "findings", outputs=("Mass", "Edema"))  # as of a model that is evaluated
    assert targets(list_by_table(folder, folder / "labels.csv", request)) == targets(splits)


def test_findings_whose_predictions_look_like_classes_say_which_columns_make_them_findings(tmp_path: Path) -> None:
    folder = table(tmp_path, ["Mass", "Edema"], [[1, 0], [0, 1]])
    with pytest.raises(DataError, match="a column for each of Mass, Edema") as told:
        list_by_table(folder, folder / "labels.csv", LabelRequest(DataConfig(), "classes", outputs=("Mass", "Edema")))
    assert "a column label_<finding> for each" in told.value.fix


@pytest.mark.parametrize(
    ("last", "told"), [([0, 1], True), ([1, 1], False), ([0, 0], False), ([1, -1], False), ([1, ""], False)]
)
def test_one_finding_in_each_row_may_be_a_class(tmp_path: Path, last: list[Any], told: bool) -> None:
    """As ISIC 2018 writes its seven classes."""
    notes = split(table(tmp_path, ["nevus", "melanoma"], [[1, 0], [0, 1], [1, 0], last])).notes
    assert any("if they are classes, name it in a column label" in note for note in notes) == told


def test_a_table_with_nothing_but_no_finding_has_none_of_the_models(tmp_path: Path) -> None:
    folder = table(tmp_path, ["No Finding", "age"], [[1, 50], [0, 60]])
    with pytest.raises(DataError, match="none of the model's findings Mass"):
        list_by_table(folder, folder / "labels.csv", LabelRequest(DataConfig(), "findings", outputs=("Mass",)))


def test_a_finding_of_one_site_is_left_out_where_the_sites_are_folds(tmp_path: Path) -> None:
    rows = [["A", 0, 1, 1], ["A", 1, 0, 0], ["B", 1, 0, 0], ["B", 0, 0, 0]]
    folder = table(tmp_path, ["site", "Mass", "Rare", "Other"], rows)
    assert split(folder).classes == ("Mass", "Rare", "Other")
    splits = split(folder, sites="site", fold=1)
    assert splits.classes == ("Mass",) and any("Rare, Other are left out: every fold must" in n for n in splits.notes)


def test_resplit_does_not_read_the_column_that_it_ignores(tmp_path: Path) -> None:
    folder = table(tmp_path, ["split", "Mass", "Edema"], [["internal", 1, 0], ["external", 0, 1], ["", 1, 1]])
    with pytest.raises(DataError, match="have no split"):
        split(folder)
    assert sum(len(samples) for samples in split(folder, resplit=True).samples.values()) == 30


def test_no_finding_is_lost_with_unreadable_files(tmp_path: Path) -> None:
    """All images of one of two findings cannot be read: leaving them out would leave nothing to learn."""
    splits = split(table(tmp_path, ["Mass", "Rare"], [[1, 0], [0, 0], [0, 0], [1, 0], [0, 1]]))
    places = [sample for part in splits.samples.values() for sample in part]
    bad = {i: DataError("torn") for i, sample in enumerate(places) if sample.targets[1] == 1}
    with pytest.raises(DataError, match=r"10 of 10 images of finding 'Rare' cannot be used"):
        _without(splits, UnusableFiles(bad, len(places)))


def test_names_joined_by_a_bar(tmp_path: Path) -> None:
    """As in ChestX-ray14, whose columns have these names."""
    folder = tmp_path / "set"
    cells = ["No Finding", "Mass", "Mass|Edema", "Edema | Nodule"] * 10
    rows = [[f"{i:03}.png", cell, i // 2] for i, cell in enumerate(cells)]
    label_set(folder, ["Image Index", "Finding Labels", "Patient ID"], rows)
    splits = split(folder)
    assert splits.classes == ("Edema", "Mass", "Nodule") and splits.grouped
    found = by_path(splits)
    assert [found[f"{i:03}.png"] for i in range(4)] == [(0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 1)]


@pytest.mark.parametrize(
    ("cell", "others", "advice"),
    [
        ("Mass;Edema", ["Mass", "Edema"], "Mass|Edema"),
        ("Mass, Edema", ["Mass", "Nodule; Edema", "Nodule"], "Mass|Edema"),
        ("Carcinoma, ductal", ["Carcinoma", "benign"], ""),
    ],
)
def test_findings_that_something_else_joins_are_told_what_joins_them(
    tmp_path: Path, cell: str, others: list[str], advice: str
) -> None:
    cells = [cell, *others] * 10
    rows = [[f"{i:03}.png", f'"{cell}"'] for i, cell in enumerate(cells)]
    splits = split(label_set(tmp_path / "set", ["path", "label"], rows))
    notes = [note for note in splits.notes if "join them by |" in note]
    assert splits.target.kind == "classes" and len(notes) == bool(advice) and all(advice in note for note in notes)
    assert not split(tmp_path / "set", target="classes").notes


def test_columns_beside_names_are_used_and_must_agree(tmp_path: Path) -> None:
    rows = [["Mass|Edema", 1, 1, 0], ["No Finding", 0, 0, 1], ["Mass", 1, "", 0], ["Edema", 0, 1, 1]]
    folder = table(tmp_path, ["label", "Mass", "Edema", "male"], rows)
    splits = split(folder)
    assert targets(splits) == [(1, 1), (0, 0), (1, UNKNOWN), (0, 1)]
    assert splits.columns == ("male",)  # which no label names
    text = (folder / "labels.csv").read_text().replace("01_3.png,No Finding,0,0", "01_3.png,No Finding,1,0")
    (folder / "labels.csv").write_text(text)
    with pytest.raises(DataError, match=r"line 15: 'label' is 'No Finding', but the column 'Mass' is '1'"):
        split(folder)
    chosen = split(folder, findings=["Edema", "Mass"])
    assert chosen.classes == ("Edema", "Mass") and by_path(chosen)["01_3.png"] == (0, 1)


def test_one_column_by_name_and_an_empty_label_of_names(tmp_path: Path) -> None:
    folder = table(tmp_path, ["label", "Mass"], [["a|b", "yes"], ["a", "no"], ["", "yes"]])
    assert targets(split(folder, findings="Mass")) == [YES, NO, YES]
    splits = split(folder)
    assert targets(splits) == [(1, 1), (1, 0), (0, 0)]
    assert any("10 empty labels mean that the image has no finding" in note for note in splits.notes)
    joined = r"no column 'mass' \(--finding\); the findings are those that 'label' joins by \|"
    with pytest.raises(UsageError, match="expected one of: Mass") as error:
        split(folder, findings=["mass"])
    assert error.value.fix == "did you mean 'Mass'?"
    folder = table(tmp_path, ["label"], [["a|b"], ["a"], ["No_Finding"], ["healthy"]])
    assert targets(split(folder)) == [(1, 1), (1, 0), (0, 0), (0, 0)]
    old = LabelRequest(DataConfig(), "findings", outputs=("a", "healthy"))  # a model that learned it as a finding
    assert targets(list_by_table(folder, folder / "labels.csv", old)) == [(1, 0), (1, 0), (0, 0), (0, 1)]
    with pytest.raises(UsageError, match=joined):
        split(table(tmp_path, ["label"], [["a|b"], ["a"], [""]]), findings=["mass"])
    with pytest.raises(UsageError, match="unknown column of --finding 'mass', expected one of: Mass, Edema"):
        split(table(tmp_path, ["Mass", "Edema"], [[1, 0], [0, 1]]), findings=["mass"])


@pytest.mark.parametrize("name", ["path", "patient", "group", "split"])
def test_a_column_with_a_meaning_of_its_own_is_no_finding(tmp_path: Path, name: str) -> None:
    """Even where its cells are 1 and 0."""
    rows = [[i % 2, "train" if name == "split" else i // 2] for i in range(4)]
    folder = table(tmp_path, ["Mass", "site" if name == "path" else name], rows)
    meaning = {"group": "patient"}.get(name, name)
    with pytest.raises(UsageError, match=f"the column '{name}' holds the {meaning} of each image") as error:
        split(folder, findings=["Mass", name])
    assert "--finding" in error.value.fix


def test_an_image_of_which_nothing_is_known_is_left_out(tmp_path: Path) -> None:
    folder = table(tmp_path, ["Mass", "Edema"], [[1, 0], [0, 1], [0, 0], ["", "nan"]])
    splits = split(folder)
    assert len(by_path(splits)) == 30 and not any("03_" in path for path in by_path(splits))
    assert any("10 images have no label and are left out: line 5, 9" in note for note in splits.notes)


@pytest.mark.parametrize(
    ("header", "rows", "fields", "found"),
    [
        (["Mass", "Edema"], [[1, 0], ["maybe", 1]], {"findings": ["Mass"]}, r"line 3: 'maybe' in the column 'Mass'"),
        (["Mass", "Edema"], [[1, 0], ["2", 1]], {"findings": ["Mass"]}, r"line 3: '2' in the column 'Mass'"),
        (["Mass", "Edema"], [["", -1], [-1, ""]], {}, r"no label of Mass, Edema is known"),
        (["label"], [["No Finding|Mass"], ["Mass"]], {}, r"line 2: 'No Finding\|Mass' names a finding beside 'No Find"),
        (["label"], [["No Finding"], ["normal"]], {"target": "findings"}, "no row has a finding in 'label'"),
        (["Mass"], [[1], [0]], {}, r"no column for the label, nor two of 1 and 0"),
        (["age"], [[31], [40]], {"target": "findings"}, "no column of findings"),
        (["Mass", "Edema"], [["", ""], ["", "nan"]], {}, r"it has 'path', 'Mass' \(empty\), 'Edema'"),
        (["No finding"], [[1], [0]], {"findings": ["No finding"]}, "'No finding' cannot be a finding"),
        (["Mass | left", "Edema"], [[1, 0], [0, 1]], {}, r"the finding 'Mass \| left' has a \|, which separates"),
        (["Mass", "Edema", "label_Mass"], [[1, 0, "x"], [0, 1, "y"]], {}, "label_Mass has a name that predictions.csv"),
    ],
)
def test_what_is_no_finding(
    tmp_path: Path, header: list[str], rows: list[list[Any]], fields: dict[str, Any], found: str
) -> None:
    with pytest.raises(DataError, match=found) as error:
        split(table(tmp_path, header, rows), **fields)
    assert error.value.fix and "labels.csv" in error.value.problem


def test_a_column_with_a_typing_error_is_named(tmp_path: Path) -> None:
    """As a note where other findings are left, else as an error."""
    rows = [[1, 0, 1], [0, 1, 0], [0, 0, 1], [1, 1, 0]]
    folder = table(tmp_path, ["Mass", "Edema", "Nodule"], rows)
    file = folder / "labels.csv"
    file.write_text(file.read_text().replace("02_2.png,0,0,1", "02_2.png,0,0,l"))
    splits = split(folder)
    assert splits.classes == ("Mass", "Edema") and splits.columns == ("Nodule",)
    assert any("'Nodule' holds 1 and 0, but in line 12 'l'" in note for note in splits.notes)
    table(tmp_path, ["Mass", "Edema"], [[1, 0], [0, 1], [0, 0]])
    file.write_text(file.read_text().replace("02_2.png,0,0", "02_2.png,2,0"))
    with pytest.raises(DataError, match=r"labels\.csv: line 10: '2' in the column 'Mass', expected 1 \(present\)"):
        split(folder)


def test_two_rows_of_an_image_that_disagree(tmp_path: Path) -> None:
    rows = [["a.png", 1, 0], ["b.png", 0, 1], ["c.png", 0, 0], ["b.png", 1, 1]]
    folder = label_set(tmp_path / "set", ["path", "Mass", "Edema"], rows)
    with pytest.raises(
        DataError, match=r"b\.png is named in line 3 and in line 5, which disagree: 'Mass' is '0' and '1'"
    ):
        split(folder)


def test_the_stratum_of_an_image_is_its_rarest_finding() -> None:
    values = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 0], [1, UNKNOWN, UNKNOWN], [0, 1, 1], [0, 1, 0]])
    assert finding_strata(values).tolist() == [1, 0, 2, 3, 0, 2, 1]  # 4, 3 and 2 positives
