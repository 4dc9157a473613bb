"""Grades stand in their order, whatever the alphabet says; what is not on the scale is refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import draw_classes
from label_sets import label_set, split

from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.data.label_kinds import grade_order
from vitmed.data.samples import Splits
from vitmed.data.splits import make_splits


def graded(folder: Path, names: list[str]) -> Path:
    rows = [[f"{k}_{i}.png", name] for i in range(6) for k, name in enumerate(names)]
    return label_set(folder / "set", ["path", "label"], rows)


def grades(splits: Splits) -> dict[str, str]:
    """The number before _ of each path -> its grade."""
    found = {(s.path[0], splits.classes[s.label]) for part in splits.samples.values() for s in part}
    assert len(found) == len(splits.classes)
    return dict(found)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["KL0", "KL10", "KL2"], ["KL0", "KL2", "KL10"]),
        (["grade 3", "grade 1", "grade 2"], ["grade 1", "grade 2", "grade 3"]),
        (["2.0", "0.0", "1"], ["0", "1", "2"]),  # as pandas writes integers beside an empty cell
    ],
)
def test_names_with_a_number_are_in_its_order(tmp_path: Path, names: list[str], expected: list[str]) -> None:
    splits = split(graded(tmp_path, names), target="grades")
    assert splits.target.kind == "grades" and list(splits.classes) == expected
    assert grades(splits) == {str(k): name.removesuffix(".0") for k, name in enumerate(names)}
    assert splits.recognised == "3 grades, from 'label' of labels.csv"
    assert splits.targets("train").shape == (len(splits.samples["train"]), 0)


@pytest.mark.parametrize("target", ["auto", "grades", "classes"])
def test_the_order_that_you_name(tmp_path: Path, target: str) -> None:
    order = ["none", "mild", "severe"]
    splits = split(graded(tmp_path, ["severe", "none", "mild"]), ordinal=order, target=target)
    kind = "classes" if target == "classes" else "grades"  # they stay classes if you say so
    assert list(splits.classes) == (sorted(order) if kind == "classes" else order) and splits.target.kind == kind
    assert grades(splits) == {"0": "severe", "1": "none", "2": "mild"}


def test_folders_of_grades(tmp_path: Path) -> None:
    root = draw_classes(tmp_path / "images", 5, ("KL2", "KL0", "KL10"))
    splits = make_splits(DataConfig(root=str(root), target="grades"))
    assert splits.classes == ("KL0", "KL2", "KL10") and splits.recognised == "3 grades, from folders"
    for sample in (s for part in splits.samples.values() for s in part):
        assert sample.path.startswith(splits.classes[sample.label] + "/")
    reverse = make_splits(DataConfig(root=str(root)), ordinal=["KL10", "KL2", "KL0"])
    assert reverse.classes == ("KL10", "KL2", "KL0")
    assert make_splits(DataConfig(root=str(root))).classes == ("KL0", "KL10", "KL2")
    assert grade_order(["0", "-1", "1"], (), "x") == ("-1", "0", "1")  # a sign, and not the hyphen of grade-1
    assert grade_order(["grade-2", "grade-0", "grade-1"], (), "x") == ("grade-0", "grade-1", "grade-2")
    assert grade_order(["level 0", "level -1", "level -2"], (), "x") == ("level -2", "level -1", "level 0")
    assert grade_order(["T -1.0", "T 0", "T -2.5"], (), "x") == ("T -2.5", "T -1.0", "T 0")


def test_folders_of_grades_that_are_words(tmp_path: Path) -> None:
    """By the alphabet mild stands before none: the images of a folder keep its grade, not its place."""
    root = draw_classes(tmp_path / "images", 5, ("none", "mild", "moderate", "severe"))
    order = ("none", "mild", "moderate", "severe")
    splits = make_splits(DataConfig(root=str(root), target="grades"), ordinal=order)
    assert splits.classes == order and splits.target.kind == "grades"
    placed = [(s.path.split("/")[0], splits.classes[s.label]) for part in splits.samples.values() for s in part]
    assert sorted(placed) == sorted((name, name) for name in order for _ in range(5))
    assert all([s.label for s in part] == sorted(s.label for s in part) for part in splits.samples.values())


@pytest.mark.parametrize(
    ("names", "order", "kind", "found"),
    [
        (["none", "mild"], (), DataError, "the names of the grades have no order: 'mild', 'none'"),
        (["G1a", "G1b"], (), DataError, "have no order"),
        (["z-2", "z-1", "z0"], (), DataError, "have no order: 'z-1', 'z-2', 'z0'"),  # a minus, or a hyphen?
        (["\u22122", "\u22121", "0"], (), DataError, "have no order"),
        (["0", "1", "5"], ("0", "1", "2"), DataError, r"line 4: the grade '5' is not on the scale 0, 1, 2"),
        (["0", "1"], ("0", "1", "2"), UsageError, "no image has the grade '2'"),
    ],
)
def test_labels_outside_the_scale(
    tmp_path: Path, names: list[str], order: tuple[str, ...], kind: type[Exception], found: str
) -> None:
    with pytest.raises(kind, match=found):
        split(graded(tmp_path, names), ordinal=order, target="grades")


def test_a_folder_outside_the_scale(tmp_path: Path) -> None:
    root = draw_classes(tmp_path / "images", 5, ("0", "1", "9"))
    with pytest.raises(DataError, match="the grade '9' is not on the scale 0, 1"):
        make_splits(DataConfig(root=str(root), target="grades"), ordinal=["0", "1"])
    with pytest.raises(UsageError, match="--ordinal is for --target grades, not for --target number"):
        make_splits(DataConfig(root=str(root), target="number"), ordinal=["0", "1"])
