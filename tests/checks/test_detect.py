"""The data check on labels of every kind: by finding where a finding is meant, and never stopped by a rare one."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import draw_image, recording
from PIL import Image as Picture

from vitmed import check
from vitmed.checks.data_check import _report, check_before_training, check_folder
from vitmed.checks.detect import Image, _patients_by_class, _shortcut_problems, make, run_checks
from vitmed.checks.shortcuts import Shortcut
from vitmed.commands.check import DataCheck
from vitmed.core.config import Config, DataConfig
from vitmed.core.errors import DataError
from vitmed.core.messages import gravest_first
from vitmed.data.image_cache import ImageCache, scan
from vitmed.data.splits import make_splits
from vitmed.imaging.file_record import FileRecord


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))


def drawn(folder: Path, header: list[str], rows: list[list[Any]], copies: dict[int, int] | None = None) -> Path:
    """Images of noise, one a row of labels.csv; `copies`: row -> the row whose image it repeats, byte for byte."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(len(rows)):
        Picture.fromarray(draw_image(rng, (200, 60, 60))).save(folder / f"{i}.png")
    for copy, original in (copies or {}).items():
        (folder / f"{copy}.png").write_bytes((folder / f"{original}.png").read_bytes())
    lines = [["path", *header], *([f"{i}.png", *row] for i, row in enumerate(rows))]
    (folder / "labels.csv").write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    return folder


def checked(folder: Path, tmp_path: Path, **options: Any) -> DataCheck:
    return check(folder, labels=folder / "labels.csv", output=tmp_path / "report", **options)


def codes(found: DataCheck) -> dict[str, list[str]]:
    """Code -> what was found."""
    kinds: dict[str, list[str]] = {}
    for problem in found.problems:
        kinds.setdefault(problem.code, []).append(problem.text)
    return kinds


def test_findings_are_counted_one_by_one(tmp_path: Path) -> None:
    """Mass in 30 images of one patient, edema in 12 of them; none in the test. No stratum is called a class."""
    rows = [["train" if i < 50 else "test", f"P{0 if i < 30 else i}", int(i < 30), int(i < 12)] for i in range(60)]
    found = checked(drawn(tmp_path / "set", ["split", "patient", "mass", "edema"], rows), tmp_path)
    table = {(row["split"], row["class"]): row["images"] for row in found.content["table"]}
    assert table == {
        ("train", "mass"): 30,
        ("train", "edema"): 12,
        ("train", "no finding"): 20,
        ("test", "no finding"): 10,
    }
    assert found.content["classes"] == 2 and found.content["patients"] == 31
    problems = codes(found)
    assert any("all 30 images of 'mass' come from one patient" in text for text in problems["class_of_one_patient"])
    assert problems["missing_class"] == ["test: no image has 'mass', 'edema'"]
    assert not {"one_class", "too_small_class", "empty_class"} & set(problems)


def test_a_finding_of_every_image_is_a_warning(tmp_path: Path) -> None:
    """Mass is present wherever it is known, edema is not."""
    rows = [[f"P{i}", "" if i % 3 else 1, i % 2] for i in range(60)]
    problems = codes(checked(drawn(tmp_path / "set", ["patient", "mass", "edema"], rows), tmp_path))
    assert problems["missing_class"] == ["every image with a label has 'mass'"]


def test_the_shortcut_to_one_of_two_findings_is_named(tmp_path: Path) -> None:
    """The brightness gives edema away, and says nothing of the rarer mass."""
    folder = drawn(tmp_path / "set", ["mass", "edema"], [[int(i % 8 == 0), int(i % 2)] for i in range(80)])
    for i in range(80):
        noise = np.random.default_rng(i).integers(0, 60, (24, 24, 3), dtype=np.uint8)
        Picture.fromarray(noise + np.uint8(120 * (i % 2))).save(folder / f"{i}.png")
    (text,) = codes(checked(folder, tmp_path))["shortcut_colour"]
    assert text.startswith("the finding 'edema' can be predicted from the mean colour alone, AUROC 1.000")


def test_a_rare_finding_is_a_warning(tmp_path: Path) -> None:
    rows = [[int(i < 2), int(i % 2)] for i in range(40)]
    found = checked(drawn(tmp_path / "set", ["rare", "usual"], rows), tmp_path)
    assert codes(found)["small_class"] == ["very few images: 2 with 'rare'"] and not found.count("error")


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ([1, 0], [0, 0], "two_labels"),
        ([1, 0], [1, 1], "two_labels"),  # both have the same rarest finding or not
        ([1, 0], [1, ""], "copies"),  # nobody has looked for the second one
        ([1, 0], [1, 0], "copies"),
    ],
)
def test_copies_contradict_where_both_are_known(tmp_path: Path, first: list[Any], second: list[Any], code: str) -> None:
    rows = [first, second, *([int(i < 10), int(i < 15)] for i in range(20))]
    folder = drawn(tmp_path / "set", ["mass", "edema"], rows, copies={1: 0})
    assert {"two_labels", "copies"} & set(codes(checked(folder, tmp_path))) == {code}
    data = DataConfig(root=str(folder), labels=str(folder / "labels.csv"))
    splits = make_splits(data)
    paths = [sample.path for part in splits.samples.values() for sample in part]
    records = scan(folder, paths, ImageCache())
    if code == "copies":
        notes, counts = check_before_training(splits, records, 0, Config(data=data))
        assert counts["exact_duplicates"] == 1 and not any("two" in note for note in notes)
    else:
        with pytest.raises(DataError, match="the same file under two labels"):
            check_before_training(splits, records, 0, Config(data=data))


def test_how_far_a_shortcut_predicts_decides_how_it_is_told() -> None:
    """From an AUROC of 0.65 whose interval lies above 0.5 on; from 0.8 on it is a warning."""

    def told(auroc: float, low: float, by_patient: bool = True, family: str = "colour") -> list[tuple[str, str]]:
        shortcut = Shortcut(family, auroc, low, 0.97, by_patient, images=100)
        return [(problem.severity, problem.text) for problem in _shortcut_problems([("train", shortcut)])]

    text = "train: the label can be predicted from the mean colour alone, AUROC "
    assert told(0.8, 0.7) == [("warning", f"{text}0.800 (0.700 to 0.970; whole patients held out)")]
    assert told(0.79, 0.7, False) == [("note", f"{text}0.790 (0.700 to 0.970; images held out, not patients)")]
    assert told(0.65, 0.51)[0][0] == "note"
    assert told(0.64, 0.6) == told(0.9, 0.5) == told(math.nan, math.nan) == told(0.9, 0.8, family="all") == []


@pytest.mark.parametrize(("first", "second", "chance"), [(2, 2, "33%"), (3, 2, "20%"), (5, 4, "2%"), (5, 5, "")])
def test_how_likely_a_trait_that_means_nothing_sorts_the_patients(first: int, second: int, chance: str) -> None:
    """Of the 6 ways to choose 2 of 4 patients, 2 follow the classes; of those to choose 5 of 10, 2 in 252: no note."""
    classes = {name: Counter({f"{name}{i}": 10 for i in range(n)}) for name, n in (("a", first), ("b", second))}
    found = [p.text for p in _patients_by_class("", classes, "patient", "") if p.code == "class_is_patient"]
    assert [text.rpartition(" ")[2] for text in found] == ([chance] if chance else [])
    for where, severity in (("", "error"), ("train: ", "error"), ("val: ", "warning"), ("test: ", "warning")):
        found_there = _patients_by_class(where, classes, "patient", "")  # a model learns patients of training alone
        assert {p.severity for p in found_there if p.code == "class_is_patient"} <= {severity}


@pytest.mark.parametrize(
    ("images", "share"), [([10] * 4, "25%"), ([10] * 5, ""), ([40, *[1] * 20], "67%"), ([40, *[8] * 20], "")]
)
def test_when_a_class_hangs_on_few_patients(images: list[int], share: str) -> None:
    """Where (sum n)^2 / sum n^2 is below 5: 4 of equal shares, or one with 40 images beside 20 others with one each
    (60^2 / 1620 = 2.2), but not beside 20 others with 8 each (200^2 / 2880 = 13.9)."""
    classes = {"sick": Counter({f"P{i}": n for i, n in enumerate(images)})}
    found = [p.text for p in _patients_by_class("", classes, "patient", "") if p.code == "class_of_few_patients"]
    text = f"the {sum(images)} images of 'sick' come from {len(images)} patients, {share} of them from one"
    assert found == ([text] if share else [])


def test_how_many_of_the_test_images_are_elsewhere_too() -> None:
    """A picture is once in train and twice in test: two of three test images, and one image too many across splits."""
    files = [("train", "a"), ("train", "b"), ("test", "a"), ("test", "a"), ("test", "c"), ("val", "d")]
    images = [
        Image(f"{split}/{i}.png", FileRecord(size=9, sha256=content), "cell", split, None)
        for i, (split, content) in enumerate(files)
    ]
    found = run_checks(images, None, splits=[])
    (copies,) = [problem for problem in found.problems if problem.code == "copies_across_splits"]
    assert copies.text == "the same file in two splits: 1 file, 2 of 3 test images"
    assert copies.files == ("train/0.png = test/2.png = test/3.png",)
    assert (found.counts["exact_duplicates"], found.counts["duplicates_across_splits"]) == (2, 1)


def test_how_many_copies_are_too_many_without_files_that_cannot_be_read() -> None:
    records = [FileRecord(size=9, sha256=content) for content in "aaabbcdd"]
    records[-2:] = [replace(record, kind="truncated", problem="cut off") for record in records[-2:]]
    found = run_checks([Image(f"{i}.png", of, "cell", None, None) for i, of in enumerate(records)], None, splits=[])
    (copies,) = [problem for problem in found.problems if problem.code == "copies"]
    assert copies.text == "the same file with one label: 2 files, 3 too many"
    assert copies.files == ("0.png = 1.png = 2.png", "3.png = 4.png") and found.counts["exact_duplicates"] == 3


@pytest.mark.parametrize("number, code", [(20.5, "near_copies"), (50, "near_two_labels")])
def test_near_copies_may_have_two_measurements_of_a_number(tmp_path: Path, number: float, code: str) -> None:
    """20 and 20.5 may be two measurements where numbers go from 20 to 50; 20 and 50 are two labels."""
    folder = drawn(tmp_path / "set", ["label"], [[20], [number], *([20 + 0.5 * i] for i in range(60))])
    clouds = np.random.default_rng(7).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    photo = Picture.fromarray(clouds).resize((64, 64), Picture.Resampling.BICUBIC)
    photo.save(folder / "0.png")
    photo.resize((128, 128)).save(folder / "1.png")
    assert {"near_two_labels", "near_copies"} & set(codes(checked(folder, tmp_path, target="number"))) == {code}


@pytest.mark.parametrize(("kind", "what"), [("number", "number"), ("classes", "label"), ("findings", "label")])
def test_an_auroc_of_a_number_is_that_of_its_ranges(kind: str, what: str) -> None:
    (problem,) = _shortcut_problems([("train", Shortcut("colour", 0.83, 0.78, 0.87, True, 60))], kind)
    how = "mean over its ranges; " * (kind == "number") + "whole patients held out"
    text = f"train: the {what} can be predicted from the mean colour alone, AUROC 0.830 (0.780 to 0.870; {how})"
    assert problem.text == text and gravest_first(["A remark.", text])[0] == text


def test_a_number_that_the_colour_gives_away_is_called_a_number(tmp_path: Path) -> None:
    folder = drawn(tmp_path / "set", ["label"], [[i // 15] for i in range(60)])
    for i in range(60):
        Picture.new("RGB", (32, 32), (60 * (i // 15) + i % 15, 40, 40 + i)).save(folder / f"{i}.png")
    texts = codes(checked(folder, tmp_path, target="number"))["shortcut_colour"]
    assert any("the number can be predicted" in text and "mean over its ranges" in text for text in texts)


def test_numbers_are_checked(tmp_path: Path) -> None:
    rows = [[f"P{i // 2}", 5 + 0.5 * i] for i in range(60)]
    folder = drawn(tmp_path / "set", ["patient", "label"], rows, copies={1: 0})
    found = checked(folder, tmp_path)
    assert "two_labels" in codes(found) and found.content["classes"] == 1
    assert {row["images"] for row in found.content["table"]} == {10}
    lowest = [float(row["class"].partition(" to ")[0]) for row in found.content["table"]]
    assert lowest == sorted(lowest)
    assert not {"one_class", "small_class", "missing_class", "too_small_class"} & set(codes(found))
    whole = drawn(tmp_path / "whole", ["label"], [[i] for i in range(30)])
    (few,) = [problem for problem in checked(whole, tmp_path).problems if problem.code == "too_small_class"]
    assert few.fix.startswith("--target number if the labels are a number")
    assert not checked(whole, tmp_path, target="number").count("error")


def test_ranges_of_a_number_are_no_classes_that_few_patients_tell_apart(tmp_path: Path) -> None:
    """A patient has one age, so no range shares a patient with another: 24 patients in 10 ranges are no 2 classes."""
    rows = [[f"P{i // 5}", 20.5 + i // 5 if i < 60 else 40 + i // 5] for i in range(120)]
    folder = drawn(tmp_path / "set", ["patient", "label"], rows)
    found = codes(checked(folder, tmp_path, target="number"))
    assert "class_of_few_patients" in found and "class_is_patient" not in found


@pytest.mark.parametrize("fields", [{"target": "grades"}, {"target": "number"}, {}])
def test_the_layout_is_checked_before_training(tmp_path: Path, fields: dict[str, Any]) -> None:
    header, cells = ["label"], [[f"{i % 4}"] for i in range(24)]
    if not fields:
        header, cells = ["mass", "edema"], [[int(i == 0), int(i % 2)] for i in range(24)]
    folder = drawn(tmp_path / "set", header, cells)
    ui = recording()
    check_folder(DataConfig(root=str(folder), labels=str(folder / "labels.csv"), **fields))
    assert any("1 with 'mass'" in text for text in ui.warned) == (not fields), ui.warned


@pytest.mark.parametrize(
    ("places", "made"),  # the last says whether the folders are splits
    [
        (["train/x", "extra/x"], None),
        (["a/train", "a/test", "b/train", "b/test"], None),
        (["train/x", "test_set/x"], "folders"),
    ],
)
def test_a_table_may_name_images_in_any_folders(tmp_path: Path, places: list[str], made: str | None) -> None:
    """Also in those that vitmed would take for splits, or ignore, without the table."""
    rows = [[f"{place}/{i}.png", "ab"[i % 2]] for place in places for i in range(20)]
    rng = np.random.default_rng(0)
    for name, _ in rows:
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        Picture.fromarray(draw_image(rng, (200, 60, 60))).save(tmp_path / "set" / name)
    (tmp_path / "set" / "labels.csv").write_text("\n".join(map(",".join, [["path", "label"], *rows])))
    data = DataConfig(root=str(tmp_path / "set"), labels=str(tmp_path / "set" / "labels.csv"))
    check_folder(data)
    splits, found = make_splits(data), checked(tmp_path / "set", tmp_path)
    assert found.content["images"] == len(rows) == len(splits.every)
    assert (splits.made["test"] == made) if made else ("seed" in splits.made["test"])
    assert {row["split"] for row in found.content["table"]} == ({"train", "test"} if made else {None})


def test_class_folders_that_hold_splits_are_refused(tmp_path: Path) -> None:
    for place in ("a/train", "a/test", "b/train", "b/test"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "1.png").touch()
    for call in (
        lambda: check_folder(DataConfig(root=str(tmp_path))),
        lambda: check(tmp_path, output=tmp_path.parent / "r"),
    ):
        with pytest.raises(DataError, match="a/, b/ each hold folders of splits"):
            call()


@pytest.mark.parametrize(
    "pair", [("1", "1.0"), ("01", "1"), ("Benign", "benign "), ("hand held", "hand-held"), ("a b", "a\u200b b")]
)
def test_a_class_that_is_written_in_two_ways_is_refused(tmp_path: Path, pair: tuple[str, str]) -> None:
    rows = [[f"{i}.png", pair[i % 2] if i < 20 else "9"] for i in range(30)]
    for name, _ in rows:
        (tmp_path / name).touch()
    (tmp_path / "labels.csv").write_text("\n".join(map(",".join, [["path", "label"], *rows])), encoding="utf-8")
    with pytest.raises(
        DataError, match=re.escape(f"labels {pair[0]!r} and {pair[1].strip()!r} are hard to tell apart")
    ):
        check_folder(DataConfig(root=str(tmp_path), labels=str(tmp_path / "labels.csv")))


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["fold1", "fold_2", "Fold 3"], True),
        (["HAM10000_images_part_1", "HAM10000_images_part_2"], True),
        (["images", "masks"], True),
        (["mask", "no_mask"], False),
        (["benign", "masks"], False),
        (["manifold1", "grade1"], False),
    ],
)
def test_parts_of_a_data_set_are_not_taken_for_classes(tmp_path: Path, names: list[str], refused: bool) -> None:
    for place in (f"{name}/{i}.png" for name in names for i in range(12)):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).touch()
    with pytest.raises(DataError, match="named as parts of a data set") if refused else contextlib.nullcontext():
        check_folder(DataConfig(root=str(tmp_path)))


@pytest.mark.parametrize(
    ("image", "other", "is_mask"),
    [
        ("benign (1).png", "benign (1)_mask.png", True),  # BUSI
        ("benign (1).png", "benign (1)_mask_1.png", True),
        ("ISIC_0000000.jpg", "ISIC_0000000_segmentation.png", True),
        ("images/COVID-1.png", "masks/COVID-1.png", True),  # the COVID-19 radiography set
        ("1.png", "2_mask.png", False),
        ("1.png", "1unmask.png", False),
        ("with/1.png", "mask/1.png", False),
    ],
)
def test_masks_beside_images_are_not_trained_on(tmp_path: Path, image: str, other: str, is_mask: bool) -> None:
    for place in (f"{label}/{name}" for label in "ab" for name in (image, other, "3.png", "4.png")):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    with pytest.raises(DataError, match="2 images are named as the mask") if is_mask else contextlib.nullcontext():
        check_folder(DataConfig(root=str(tmp_path)))


def test_training_warns_once_of_a_finding_that_a_split_lacks(tmp_path: Path) -> None:
    rows = [[["train", "val", "test"][i % 3], int(i % 3 != 1 and i % 2), int(i % 4 < 2)] for i in range(60)]
    folder = drawn(tmp_path / "set", ["split", "mass", "edema"], rows)
    data, ui = DataConfig(root=str(folder), labels=str(folder / "labels.csv")), recording()
    check_folder(data)
    warned = [*ui.warned, *make_splits(data).notes]
    assert [text for text in warned if "mass" in text] == ["no image of val has mass, so nothing can be chosen for it"]


def test_a_column_of_patients_with_a_gap_is_no_reason_to_refuse_a_training_that_takes_them_from_the_paths(
    tmp_path: Path,
) -> None:
    rows = [[f"P{i // 2}_{i}.png", "ab"[i // 2 % 2], "" if i == 3 else str(i // 2)] for i in range(40)]
    for name, _, _ in rows:
        (tmp_path / name).touch()
    (tmp_path / "labels.csv").write_text("\n".join(map(",".join, [["path", "label", "patient"], *rows])))
    data = DataConfig(root=str(tmp_path), labels=str(tmp_path / "labels.csv"), group_regex=r"(P\d+)_")
    check_folder(data)
    assert make_splits(data).grouped
    with pytest.raises(DataError, match="1 row has no patient"):
        check_folder(data.model_copy(update={"group_regex": None}))


def test_training_names_the_flag_against_a_split_that_leaks(tmp_path: Path) -> None:
    """And what to do about a class that few patients have, once."""
    rows = [[f"P{i % 2}_{i // 2}", "ab"[i % 2], "train" if i < 40 else "val" if i < 60 else "test"] for i in range(80)]
    folder = drawn(tmp_path / "set", ["name", "label", "split"], rows, copies={70: 0})
    table = tmp_path / "patients.csv"
    table.write_text("path,patient\n" + "".join(f"{i}.png,{i % 2 if i < 40 else i}\n" for i in range(80)))
    warned = {}
    for resplit in (False, True):
        data = DataConfig(root=str(folder), labels=str(folder / "labels.csv"), groups=str(table), resplit=resplit)
        splits = make_splits(data.model_copy(update={"groups": None})) if resplit else make_splits(data)
        ui = recording()
        records = scan(folder, [s.path for part in splits.samples.values() for s in part], ImageCache())
        check_before_training(splits, records, 0, Config(data=data))
        warned[resplit] = ui.warned
    assert "the data's own splits leak: --resplit ignores them and splits by patient" in warned[False]
    assert sum("class_of_one" in text and "--folds 5" in text for text in warned[False]) == 1
    assert not any("leak" in text or "two splits" in text for text in warned[True])


@pytest.mark.parametrize("code", ["class_of_one_patient", "class_of_few_patients"])
def test_a_run_of_folds_is_not_advised_to_train_with_folds(code: str) -> None:
    ui = recording()
    for divided in (False, True):
        _report([make(code, "few images")], divided)
    alone, folds = ui.warned
    assert "--folds" in alone and alone.startswith(folds) and "few images" in folds and "--folds" not in folds
