"""Tables of patients and labels: matched with the images however they are written, or refused by name and line."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import pytest
from conftest import draw_classes

from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.load_config import build_config, find_paths, load_config, store_paths
from vitmed.data.listing import further_columns
from vitmed.data.samples import Splits
from vitmed.data.splits import make_splits
from vitmed.data.tables import read_table


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """data/{a,b}/i0.png ... i29.png, and nothing in them."""
    for name in "ab":
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(30):
            (tmp_path / "data" / name / f"i{i}.png").touch()
    return tmp_path / "data"


def paths(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))


def patient(path: str) -> str:
    return f"P{int(path[3:-4]) % 10}"


def table(file: Path, rows: list[list[str]], separator: str = ",", encoding: str = "utf-8") -> Path:
    file.write_bytes("".join(separator.join(row) + "\r\n" for row in rows).encode(encoding))
    return file


def split(root: Path, **fields: object) -> Splits:
    return make_splits(
        DataConfig(root=str(root), **{k: str(v) if isinstance(v, Path) else v for k, v in fields.items()})
    )  # type: ignore[arg-type]


def samples(splits: Splits) -> dict[str, tuple[str, str | None, tuple[str, ...]]]:
    """path -> class, patient, further columns."""
    return {s.path: (splits.classes[s.label], s.group, s.columns) for part in splits.samples.values() for s in part}


def told(root: Path, **fields: object) -> str:
    with pytest.raises(DataError) as error:
        split(root, **fields)
    return str(error.value)


# --- patients


@pytest.mark.parametrize(
    ("separator", "encoding", "header"),
    [
        *((s, e, ["path", "patient"]) for s in (",", ";", "\t") for e in ("utf-8", "utf-8-sig", "utf-16")),
        *((",", "utf-8", header) for header in (["Image Index", "Patient ID"], ["file", "who"], ["x", "case"])),
    ],
)
def test_a_table_of_patients(root: Path, tmp_path: Path, separator: str, encoding: str, header: list[str]) -> None:
    rows = [
        header,
        [""],
        *([path, patient(path)] for path in paths(root)),
        ["", " "],
        ["", " ", ""],
    ]  # with empty lines
    splits = split(root, groups=table(tmp_path / "t.csv", rows, separator, encoding))
    if header == ["x", "case"]:  # a blank behind a comma, and a comma in quotes
        text = "path, case\n" + "".join(f'{path}, "{patient(path)}, x"\n' for path in paths(root))
        (tmp_path / "t.csv").write_text(text)
        found = samples(split(root, groups=tmp_path / "t.csv"))
        assert {path: group for path, (_, group, _) in found.items()} == {p: f"{patient(p)}, x" for p in paths(root)}
    assert {path: group for path, (_, group, _) in samples(splits).items()} == {p: patient(p) for p in paths(root)}
    if encoding == "utf-8" and header[0] == "path":  # as some programs tell Excel the separator; it counts as a line
        (tmp_path / "t.csv").write_text(f"sep={separator}\n" + (tmp_path / "t.csv").read_text())
        assert samples(split(root, groups=tmp_path / "t.csv")) == samples(splits)
        assert read_table(tmp_path / "t.csv").lines[0] == 4
    assert splits.grouped and splits.shared() == {} and splits.notes == ()
    unit, known = ("who group", "as who groups, ") if "who" in header else ("patient", "")
    assert splits.patients == f"{known}by table (--groups)" and f"by {unit}" in splits.made["test"]


@pytest.mark.parametrize(
    "written",
    [
        lambda root, path: f"data/{path}",  # relative to the table
        lambda root, path: f"./{path}",
        lambda root, path: path.replace("/", "\\"),
        lambda root, path: f" {path} ",
        lambda root, path: (root / path).as_posix(),
    ],
)
def test_paths_as_people_write_them(root: Path, tmp_path: Path, written: object) -> None:
    rows = [["path", "patient"], *([written(root, path), patient(path)] for path in paths(root))]  # type: ignore[operator]
    (root / "a" / "u\u0308ber.png").touch()  # the accent of a Mac, and of a spreadsheet
    rows.append(["a/\u00fcber.png", "P1"])
    found = samples(split(root, groups=table(tmp_path / "t.csv", rows)))
    assert (found["a/i7.png"][1], found["a/u\u0308ber.png"][1]) == ("P7", "P1")


def test_a_bare_name_is_enough_where_it_is_unique(root: Path, tmp_path: Path) -> None:
    for path in list(root.rglob("*.png")):
        path.rename(path.with_name(f"{path.parent.name}{path.name}"))
    rows = [["image_id", "patient"], *([Path(p).stem, f"P{Path(p).stem[2:]}"] for p in paths(root))]
    assert samples(split(root, groups=table(tmp_path / "t.csv", rows)))["b/bi7.png"][1] == "P7"
    (root / "a" / "bi7.png").touch()  # now bi7 may be either
    both = "bi7 matches 2 images: a/bi7.png, b/bi7.png"
    assert both in told(root, groups=tmp_path / "t.csv")
    (tmp_path / "l.csv").write_text("path,label\n" + "".join(f"{path},{path[0]}\n" for path in paths(root)) + "bi7,b\n")
    message = told(root, labels=tmp_path / "l.csv")
    assert f"1 row matches no image below {root}, or several:" in message and f"line 63: {both}" in message


def test_a_path_below_the_data_folder_and_below_that_of_the_table_is_refused(root: Path) -> None:
    """Which of a/i0.png and b/a/i0.png the table in b/ means, nobody knows; in the data folder it means the first."""
    (root / "b" / "a").mkdir()
    (root / "b" / "a" / "i0.png").touch()
    rows = [["path", "label"], ["a/i0.png", "x"], *([f"{k}/i{i}.png", k] for k in "ab" for i in range(5, 9))]
    message = told(root, labels=table(root / "b" / "t.csv", rows))
    assert "line 2: a/i0.png matches 2 images: a/i0.png, b/a/i0.png" in message
    assert f"use paths relative to {root}, with the table there" in message
    rows[1][1] = "a"
    found = samples(split(root, labels=table(root / "t.csv", rows)))
    assert len(found) == 9 and found["a/i0.png"][0] == "a"


def test_what_matches_on_neither_side_is_named(root: Path, tmp_path: Path) -> None:
    rows = [["path", "patient"], *([p, patient(p)] for p in paths(root)[7:]), ["gone/1.png", "P1"]]
    message = told(root, groups=table(tmp_path / "t.csv", rows))
    assert "7 of 60 images have no row" in message and "a/i0.png" in message and "and 2 more" in message
    assert "1 row matches no image" in message and "gone/1.png" in message
    assert "no image, or several" not in told(root, groups=table(tmp_path / "t.csv", rows[:-1]))
    rows = [["path", "patient"], *([p, patient(p)] for p in paths(root)), ["gone/1.png", "P1"]]
    (message,) = split(root, groups=table(tmp_path / "t.csv", rows)).notes
    assert "1 row matches no image" in message and "line 62: gone/1.png" in message


def test_tables_that_cannot_be_used(root: Path, tmp_path: Path) -> None:
    file, rows = tmp_path / "t.csv", [[p, patient(p)] for p in paths(root)]
    assert "no such file" in told(root, groups=tmp_path / "none.csv").lower()
    assert "no rows" in told(root, groups=table(file, [["path", "patient"]]))
    assert "no column for the patient; it has 'path', 'x' (empty), 'y' (empty)" in told(
        root, groups=table(file, [["path", "x", "y"], ["1.png", "", ""]])
    )
    assert "no rows" in told(root, groups=table(file, [["path", "x", "y"], ["", " ", ""]]))
    others = [["path", "slide", "view", "md5"], *([p, patient(p), "ap", str(i)] for i, (p, _) in enumerate(rows))]
    named = told(root, groups=table(file, others))
    assert (
        named.endswith("of a copy of the table if need be; rows share a value of slide") and "name it patient" in named
    )
    assert "no column for the path" in told(root, groups=table(file, rows))
    assert "line 4 has 3 cells, the header 2" in told(  # an empty first line is no header
        root, groups=table(file, [[], ["path", "patient"], rows[0], [*rows[1], "x"]])
    )
    assert "line 3 has 3 cells" in told(root, groups=table(file, [["path", "patient"], rows[0], [*rows[1], "x"]]))
    assert "no patient (column 'patient'): line 2, 3" in told(
        root, groups=table(file, [["path", "patient"], *([p, ""] for p, _ in rows)])
    )
    assert "has patient 'P9' here and 'P0' above" in told(
        root, groups=table(file, [["path", "patient"], *rows, ["a/i0.png", "P9"]])
    )
    assert "twice" in told(root, groups=table(file, [["path", "patient", "patient"], ["a", "b", "c"]]))
    file.write_bytes("path,patient\na/ü.png,1\n".encode("latin-1"))
    assert "not UTF-8" in told(root, groups=file)


def test_patients_are_known_one_way(root: Path) -> None:
    with pytest.raises(UsageError, match="both define the patients"):
        build_config({"data": {"root": str(root), "groups": "names", "group_regex": "x"}})


# --- labels


def labels(file: Path, root: Path, header: str = "path,label", every: int = 1, **columns: object) -> Path:
    """A table that gives every image its class by the number in its name: 0, 1 or 2 of three."""
    rows = [[p, str(int(p[3:-4]) % 3), *(str(f(p)) for f in columns.values())] for p in paths(root)[::every]]  # type: ignore[operator]
    return table(file, [[*header.split(","), *columns], *rows])


def test_a_table_of_labels(root: Path, tmp_path: Path) -> None:
    """Folders mean nothing, numbers are names; what the table knows beyond comes along."""
    file = labels(tmp_path / "t.csv", root, site=lambda p: p[0].upper(), age=lambda p: p[3:-4])
    splits = split(root, labels=file)
    assert splits.classes == ("0", "1", "2") and splits.columns == ("site", "age") and not splits.grouped
    assert samples(splits) == {p: (str(int(p[3:-4]) % 3), None, (p[0].upper(), p[3:-4])) for p in paths(root)}
    assert splits.counts("test") == [3, 3, 3]


def test_the_column_of_labels_is_named_where_there_are_several(root: Path, tmp_path: Path) -> None:
    """As in ISIC 2020, whose classes are those of benign_malignant."""
    columns = {"benign_malignant": lambda p: p[0], "target": lambda p: p[0] == "b"}
    file = labels(tmp_path / "t.csv", root, "image_name,diagnosis", **columns)
    found = split(root, labels=file)
    told = f"{file}: the labels are of 'diagnosis', not target; to take another, rename 'diagnosis'"
    assert found.classes == ("0", "1", "2") and found.notes == (told,)
    found = split(root, labels=file, card="isic_2020")
    assert found.classes == ("a", "b") and found.notes == ()
    assert split(root, labels=labels(file, root, "path,label", age=patient)).notes == ()


def test_a_patient_of_one_image_beside_a_patient_of_several_is_noted(root: Path, tmp_path: Path) -> None:
    file = labels(tmp_path / "t.csv", root, patient=lambda p: p, patient_id=patient)
    (note,) = split(root, labels=file).notes
    assert note == (
        f"{file}: each image has a 'patient' of its own, which counts as its patient; if the patient is 'patient_id', "
        "remove or rename the other column"
    )
    file = labels(tmp_path / "t.csv", root, case=lambda p: "c" + p[3:-5], participant_id=patient)
    (note,) = split(root, labels=file).notes
    assert note == (
        f"{file}: 'case' counts as the patient; one person who has several may be in two splits; if the patient is "
        "'participant_id', remove or rename the other column"
    )
    file = labels(tmp_path / "t.csv", root, case=patient, participant_id=lambda p: patient(p) + "x")  # two names of one
    assert split(root, labels=file).notes == ()
    file = labels(
        tmp_path / "t.csv", root, patient=lambda p: p, case=lambda p: p[0], patient_age=lambda p: p[0]
    )  # such as a study
    assert split(root, labels=file).notes == ()


@pytest.mark.parametrize("name", ["label", "Class", "diagnosis", "target", "dx"])
def test_names_of_the_label_column(root: Path, tmp_path: Path, name: str) -> None:
    assert split(root, labels=labels(tmp_path / "t.csv", root, f"image,{name}")).classes == ("0", "1", "2")


def test_patients_and_splits_of_the_table(root: Path, tmp_path: Path) -> None:
    part = {0: "Training", 1: "train", 2: "test"}
    file = labels(tmp_path / "t.csv", root, patient=patient, split=lambda p: part[int(p[3:-4]) % 10 % 3])
    splits = split(root, labels=file, val_fraction=0.3)
    assert splits.patients == "by table (--labels)" and splits.made["test"] == "table t.csv"
    assert splits.groups()["test"] == {"P2", "P5", "P8"} and "by patient" in splits.made["val"]
    assert splits.groups()["train"] | splits.groups()["val"] == {f"P{i}" for i in (0, 1, 3, 4, 6, 7, 9)}
    over = split(root, labels=file, group_regex=r"(\d)\.png", allow_leakage=True)
    assert over.patients == "from the file paths (--group-regex)" and over.columns == ("patient",)
    file.write_text(file.read_text().replace("patient", "group"))  # a name of predictions.csv
    over = split(root, labels=file, group_regex=r"(\d)\.png", allow_leakage=True)
    assert over.patients == "from the file paths (--group-regex)" and over.columns == ()  # and no error


def test_a_column_of_splits_with_another_name_is_noted_until_it_is_taken(root: Path, tmp_path: Path) -> None:
    """And a column in which one cell is no split is none of splits."""
    part = {0: "Train", 1: "train", 2: "test"}
    columns = {"Used in": lambda p: part[int(p[3:-4]) % 10 % 3], "arm": lambda p: "train" if "1" in p else "control"}
    file = labels(tmp_path / "t.csv", root, **columns)
    (note,) = split(root, labels=file).notes
    assert note == f"{file}: the splits in 'Used in' are not used; --split-column 'Used in' takes them"
    assert split(root, labels=file, resplit=True).notes == ()
    taken = split(root, labels=file, split_column="Used in", val_fraction=0.3)
    assert taken.notes == () and taken.made["test"] == "table t.csv"


@pytest.mark.parametrize("name", ["Patient Nr.", "patient-no", "MRN", "Pat ID", "subject"])
def test_the_patient_is_not_the_arm_of_the_study(root: Path, tmp_path: Path, name: str) -> None:
    file = labels(tmp_path / "t.csv", root, **{name: patient, "case": lambda p: "control"})
    splits = split(root, labels=file)
    assert splits.unit == "patient" and {s.group for s in splits.every} == set(map(patient, paths(root)))
    file = labels(tmp_path / "t.csv", root, **{"group": lambda p: p[0], name: patient})
    assert "the column group has a name that" in told(root, labels=file)


def test_a_column_of_labels_that_is_shifted_contradicts_the_folders(root: Path, tmp_path: Path) -> None:
    """The table counts, but a note says so."""
    told = [path.partition("/")[0] for path in paths(root)]
    for shift in (0, 3):
        rows = [["path", "label"], *map(list, zip(paths(root), told[shift:] + told[:shift], strict=True))]
        notes = [note for note in split(root, labels=table(tmp_path / "t.csv", rows)).notes if "folder" in note]
        assert len(notes) == bool(shift) and all("of another class: 6, such as a/" in note for note in notes)


def test_split_folders_count_where_the_table_says_nothing(root: Path, tmp_path: Path) -> None:
    (root / "a").rename(root / "train")
    (root / "b").rename(root / "test")
    rows = [["path", "label"], *([p, str(int(p.partition("/i")[2][:-4]) % 2)] for p in paths(root))]
    splits = split(root, labels=table(tmp_path / "t.csv", rows))
    assert all(s.path.startswith("test/") for s in splits.samples["test"]) and splits.counts("test") == [15, 15]
    (root / "more").mkdir()  # one image elsewhere, and the folders state no split any more
    (root / "test" / "i0.png").rename(root / "more" / "i0.png")
    rows[1][0] = "more/i0.png"
    mixed = split(root, labels=table(tmp_path / "t.csv", rows))
    told = f"{tmp_path / 't.csv'} has no column split: images of folders of test, train are mixed and divided anew"
    assert mixed.notes == (told,) and any(s.path.startswith("train/") for s in mixed.samples["test"])
    assert split(root, labels=tmp_path / "t.csv", resplit=True).notes == ()


def test_images_that_all_lie_below_train_are_divided(root: Path, tmp_path: Path) -> None:
    """A folder that only holds train/ states no split: its images give validation and test as well."""
    (root / "train").mkdir()
    for name in "ab":
        (root / name).rename(root / "train" / name)
    rows = [["path", "label"], *([p, p.split("/")[1]] for p in paths(root))]
    splits = split(root, labels=table(tmp_path / "t.csv", rows))
    assert {name: splits.counts(name) for name in splits.samples} == {
        "train": [22, 22], "val": [4, 4], "test": [4, 4],
    }  # fmt: skip
    assert not splits.made["test"].startswith(("folder", "table")) and splits.classes == ("a", "b")


def test_images_that_the_table_does_not_name_are_left_out_and_counted(root: Path, tmp_path: Path) -> None:
    splits = split(root, labels=labels(tmp_path / "t.csv", root, every=2))
    assert len(samples(splits)) == 30
    assert splits.notes == (f"30 of 60 images are not in {tmp_path / 't.csv'} and are left out",)


def test_label_tables_that_cannot_be_used(root: Path, tmp_path: Path) -> None:
    file, rows = tmp_path / "t.csv", [[p, str(i % 2)] for i, p in enumerate(paths(root))]
    head = ["path", "label"]

    def refused(*rows: list[str]) -> str:
        return told(root, labels=table(file, list(rows)))

    assert "2 rows match no image" in (text := refused(head, *rows, ["x.png", "0"], ["y.png", "1"]))
    assert "line 62: x.png" in text
    assert "no label (column 'label'): line 61" in refused(head, *rows[:-1], [rows[-1][0], " "])
    assert "a/i0.png is named in line 2 and in line 62" in refused(head, *rows, ["a/i0.png", "1"])
    assert "all rows have the class 'x'" in refused(head, *([p, "x"] for p, _ in rows))
    assert "no column for the label" in refused(["path", "finding"], *rows)
    assert "'later' in column 'split' is not a split" in refused([*head, "split"], *([*row, "later"] for row in rows))
    assert "has test but no train" in refused([*head, "split"], *([*row, "test"] for row in rows))
    for name in ("prediction", "confidence", "class", "sha256", "prob_0", "logit_x", "set", "answer"):
        text = refused([*head, name], *([*row, "1"] for row in rows))
        assert f"the column {name} has a name that" in text and "(the label comes from 'label')" in text


def test_a_yaml_names_tables_relative_to_itself(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("data: {root: images, labels: l.csv, groups: g.csv}")
    data = load_config(file).data
    assert (data.labels, data.groups) == (str(tmp_path / "l.csv"), str(tmp_path / "g.csv"))
    moved = store_paths(load_config(file), tmp_path / "runs" / "a").data
    assert (moved.root, moved.labels, moved.groups) == ("../../images", "../../l.csv", "../../g.csv")
    tree = find_paths(store_paths(load_config(file), tmp_path / "runs" / "a").model_dump(), tmp_path / "runs" / "a")
    assert (tree["data"]["root"], tree["data"]["labels"]) == (str(tmp_path / "images"), data.labels)
    for word in ("names", "dicom"):
        file.write_text(f"data: {{groups: {word}}}")
        assert load_config(file).data.groups == store_paths(load_config(file), tmp_path).data.groups == word


# --- files of spreadsheets


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
def test_a_table_in_an_old_encoding_is_read_and_named(tmp_path: Path, encoding: str) -> None:
    """Excel's plain CSV; \x81 is in no table of Windows."""
    odd = "\x81" if encoding == "latin-1" else "ü"
    root = draw_classes(tmp_path / "data", 12)
    paths = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.png"))
    rows = [["path", "label"], *([path, f"Gr{odd}n" if "amber" in path else "blau"] for path in paths)]
    found = split(root, labels=table(tmp_path / "t.csv", rows, ";", encoding))
    assert found.classes == (f"Gr{odd}n", "blau")
    assert any(f"t.csv: not UTF-8; read as {encoding}" in note for note in found.notes)


def excel(file: Path, rows: list[list[object]]) -> Path:
    from openpyxl import Workbook

    book = Workbook()
    for row in rows:
        book.worksheets[0].append(row)
    book.create_sheet("second").append(["nothing"])
    book.save(file)
    return file


def test_an_excel_table(tmp_path: Path) -> None:
    root = draw_classes(tmp_path / "data", 12)
    paths = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.png"))
    born = datetime.datetime(1960, 4, 12)
    rows = [[path, path.split("/")[0], i // 2, born, 0.125, True, 3.0, i] for i, path in enumerate(paths)]
    file = excel(tmp_path / "t.xlsx", [["path", "label", "patient", "born", "dose", "smokes", "stage", ""], *rows])
    found = samples(split(root, labels=file))
    assert found["amber/amber_0.png"] == ("amber", "0", ("1960-04-12", "0.125", "TRUE", "3"))
    assert len(found) == 24  # and the column without a name, as pandas writes it, is left out


def test_merged_cells_have_one_value_and_hidden_rows_are_noted(tmp_path: Path) -> None:
    """Findings of a patient over both images, and a heading in the first row that is none of a column."""
    from openpyxl import load_workbook

    root = draw_classes(tmp_path / "data", 12)
    paths = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.png"))
    rows = [[path, *((i // 2, i // 2 % 2, i // 4 % 2) if i % 2 == 0 else ())] for i, path in enumerate(paths)]
    file = excel(tmp_path / "t.xlsx", [["path", "patient", "fluid", "scar", "seen by", None], *rows])
    book = load_workbook(file)
    sheet = book.worksheets[0]
    for i in range(2, 26, 2):
        for column in "BCD":
            sheet.merge_cells(f"{column}{i}:{column}{i + 1}")
    sheet["E2"] = "Roe"
    sheet.merge_cells("E1:F1")
    sheet.merge_cells("E2:F25")
    for i in (4, 5, 9):
        sheet.row_dimensions[i].hidden = True
    book.save(file)
    found = split(root, labels=file)
    assert {s.path: (s.group, s.targets, s.columns) for s in found.every} == {
        path: (str(i // 2), (i // 2 % 2, i // 4 % 2), ("Roe",)) for i, path in enumerate(paths)
    }
    (note,) = found.notes
    assert (
        note == f"{file}: 3 rows are hidden in Excel, such as by a filter, and yet used; to leave rows out, delete them"
    )


def test_merged_cells_of_a_heading_and_below_the_last_row_add_nothing(tmp_path: Path) -> None:
    """The heading is the first row that is not empty, here the second."""
    from openpyxl import load_workbook

    root = tmp_path / "set"
    root.mkdir()
    paths = [f"{i}.png" for i in range(24)]
    for path in paths:
        (root / path).touch()
    rows = [[path, "ab"[i % 2], f"P{i}", None] for i, path in enumerate(paths)]
    file = excel(tmp_path / "t.xlsx", [[None], ["path", "label", "patient", None], *rows])
    book = load_workbook(file)
    book.worksheets[0].merge_cells("C2:D2")
    book.worksheets[0].merge_cells("C26:C40")
    book.save(file)
    assert len(split(root, labels=file).every) == 24


def test_a_formula_without_a_stored_value_is_not_read_as_an_empty_cell(tmp_path: Path) -> None:
    """A program writes formulas without their values: an empty column would lose a finding without a word."""
    root = draw_classes(tmp_path / "data", 12)
    paths = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.png"))
    rows = [[path, i % 2, i % 3 == 0, "=1-1" if i == 4 else 0] for i, path in enumerate(paths)]
    file = excel(tmp_path / "t.xlsx", [["path", "fluid", "mass", "scar"], *rows])
    problem = told(root, labels=file)
    assert "t.xlsx: the cell D6 holds a formula whose value is not stored" in problem


@pytest.mark.parametrize("content", [b"", b"path,label\n", b"PK\x03\x04" + bytes(200)])
def test_a_damaged_excel_table_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """And a picture is no table, and without its package one sentence says what to install."""
    root, file = draw_classes(tmp_path / "data", 12), tmp_path / "t.xlsx"
    file.write_bytes(content)
    assert "t.xlsx: not an Excel file" in told(root, labels=file)
    assert "not UTF-8 text" in told(root, labels=root / "amber" / "amber_0.png")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(UsageError, match=r"pip install 'vitmed\[xlsx\]'"):
        split(root, labels=file)


def test_the_patients_for_images_of_a_run_are_written_as_elsewhere(tmp_path: Path) -> None:
    """In a table beside a predictions.csv: P01 and p01 are one patient, NA and None are none."""
    rows = [f"{i}.png,{patient}" for i, patient in enumerate(("P01", "p01", "NA", "None", "P02"))]
    (tmp_path / "t.csv").write_text("\n".join(["path,patient", *rows]))
    truth = {"": ["a"] * 5}
    _, people, notes = further_columns(tmp_path / "t.csv", None, [f"{i}.png" for i in range(5)], "classes", truth)
    assert people == ("P01", "P01", "", "", "P02") and any("2 instead of 3 patients" in note for note in notes)
