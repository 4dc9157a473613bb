"""Numbers are read as they stand; what is none is refused by line, or left out where it is empty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from label_sets import by_path, label_set, split

from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.data.label_kinds import LabelRequest, number_strata
from vitmed.data.listing import list_by_table


def ages(folder: Path, cells: list[object], name: str = "label") -> Path:
    return label_set(folder / "set", ["path", name], [[f"{i:03}.png", cell] for i, cell in enumerate(cells)])


def test_numbers_with_fractions_are_recognised(tmp_path: Path) -> None:
    cells = [20 + 0.5 * i for i in range(100)]
    splits = split(ages(tmp_path, list(cells)), unit="years")
    assert splits.target.kind == "number" and splits.target.unit == "years" and splits.classes == ("number",)
    assert {path: value for path, (value,) in by_path(splits).items()} == {
        f"{i:03}.png": v for i, v in enumerate(cells)
    }
    assert split(ages(tmp_path, list(cells))).target.kind == "number"
    assert splits.outputs == 2 and "number" in splits.recognised and "in years" in splits.recognised


def test_numbers_with_a_comma_are_not_a_class_each(tmp_path: Path) -> None:
    cells = [f"{20 + i},5" for i in range(40)]
    with pytest.raises(DataError, match=r"labels.csv: line 2: '20,5' is a number with a comma") as error:
        split(ages(tmp_path, [f'"{cell}"' for cell in cells]))
    assert "write a point, or nothing if it separates thousands; or --target classes" in error.value.fix


@pytest.mark.parametrize(
    ("low", "other", "told"),
    [
        (20, -999, True),
        (0, -1, True),
        (20, 9999, True),
        (20, 9999999, True),
        (-3, -9, False),
        (20, 99, False),
        (600, 999, False),
    ],
)
def test_a_number_that_means_not_known_is_noticed(tmp_path: Path, low: int, other: int, told: bool) -> None:
    notes = split(ages(tmp_path, [low + 0.5 * i for i in range(80)] + [other] * 8)).notes
    assert any(f"{other} counts as a number; leave empty what is not known" in note for note in notes) == told


def test_a_model_of_a_number_is_evaluated_on_its_column_and_not_on_another_label(tmp_path: Path) -> None:
    rows = [[f"{i:03}.png", i % 3, 20 + 0.5 * i] for i in range(40)]
    folder = label_set(tmp_path / "set", ["path", "label", "age"], rows)
    read = list_by_table(folder, folder / "labels.csv", LabelRequest(DataConfig(), "number", outputs=("age",)))
    assert {path: value for path, (value,) in by_path(read).items()} == {path: age for path, _, age in rows}


def test_whole_numbers_stay_classes_and_say_so(tmp_path: Path) -> None:
    splits = split(ages(tmp_path, [i % 3 for i in range(30)]))
    assert splits.target.kind == "classes" and splits.classes == ("0", "1", "2")
    assert "--target grades" in splits.recognised and "--target number" in splits.recognised
    number = split(ages(tmp_path, [i % 3 for i in range(30)]), target="number")
    assert number.target.kind == "number" and number.targets("train").shape[1] == 1


def test_the_one_column_of_numbers_gives_the_name(tmp_path: Path) -> None:
    rows = [[f"{i}.png", f"P{i}", 30 + i, "f"] for i in range(40)]
    folder = label_set(tmp_path / "set", ["path", "patient", "age", "sex"], rows)
    splits = split(folder, target="number")
    assert splits.classes == ("age",) and splits.columns == ("sex",) and splits.grouped
    several = label_set(tmp_path / "set", ["path", "a", "b"], [[f"{i}.png", i, i] for i in range(40)])
    with pytest.raises(DataError, match="no column for the number; it has 'path', 'a', 'b'"):
        split(several, target="number")


def test_an_empty_number_is_left_out(tmp_path: Path) -> None:
    splits = split(ages(tmp_path, [*range(30), "", "NA", "nan", "-", "-"]), target="number")
    assert len(by_path(splits)) == 30
    assert any("5 images have no label and are left out: line 32, 33, 34, 35, 36" in note for note in splits.notes)


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ([*range(30), "63 years"], r"line 32: '63 years' in the column 'NAME' is not a number"),
        ([*range(30), "-inf"], r"line 32: '-inf' in the column 'NAME' is not a number"),
        ([31, "n. a.", 40, "058Y"], r"line 3: 'n\. a\.' in the column 'label' is not a number, and 1 other cell"),
        ([31, "inf", 40], "line 3: 'inf'"),
        ([31, "1e999", 40], "line 3: '1e999'"),
        ([31, "1_000", 40], "line 3: '1_000'"),
        ([31, "1e308", 40], r"the number 1e\+308 is too large"),
        ([31] * 30, "all numbers are 31"),
        ([""] * 30, "no number is known"),
    ],
)
def test_what_is_no_number(tmp_path: Path, cells: list[object], found: str) -> None:
    """In a column of any name, too, unless it is left unknown which column is meant."""
    with pytest.raises(DataError, match=found.replace("NAME", "label")):
        split(ages(tmp_path, cells), target="number")
    if "NAME" in found or "all numbers" in found:
        with pytest.raises(DataError, match=found.replace("NAME", "age")):
            split(ages(tmp_path, cells, "age"), target="number")
    elif not any(cells):
        with pytest.raises(DataError, match=r"no column for the number; it has 'path', 'age' \(empty\)"):
            split(ages(tmp_path, cells, "age"), target="number")


def test_folders_are_no_numbers_and_a_unit_is_of_one(tmp_path: Path) -> None:
    folder = ages(tmp_path, [*range(30)])
    with pytest.raises(UsageError, match="--target number: folders name one class"):
        split(folder, target="number", labels=None)
    named = label_set(tmp_path / "low", ["path", "label", "low"], [[f"{i:03}.png", i, i % 2] for i in range(30)])
    with pytest.raises(DataError, match=r"the column low has a name that predictions\.csv uses itself"):
        split(named, target="number")
    with pytest.raises(UsageError, match="--unit is for --target number, not for --target classes"):
        split(folder, target="classes", unit="years")


def test_ranges_are_the_quantiles_of_numpy() -> None:
    values = np.random.default_rng(0).gamma(2, 20, 1000)
    strata, names = number_strata(values)
    assert np.bincount(strata).tolist() == [100] * 10 and len(set(names)) == 10
    order = np.argsort(values)
    assert np.array_equal(strata[order], np.repeat(np.arange(10), 100))
    assert number_strata(np.array([1.0, 2] * 20))[1] == ("1", "2")
    assert number_strata(np.arange(9.0))[1] == ("0 to 8",)
