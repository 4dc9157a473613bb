"""`vitmed check`: every kind of trouble made by hand, and found by its name; a sound folder is called sound."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import html
import io
import json
import os
import re
import shutil
import socket
import sqlite3
import time
import warnings
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import BARE, TINY, TINY_SETS, Answer, Recorder, Trained, draw_classes, draw_image, draw_splits, recording
from dicom_files import RAMP, write
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vitmed import VitmedError, check, train
from vitmed.checks.detect import PROBLEMS
from vitmed.commands import check as check_command
from vitmed.commands.check import DataCheck
from vitmed.core.config import DataConfig
from vitmed.core.dataset_cards import cards
from vitmed.core.errors import DataError, UsageError
from vitmed.data.image_cache import VERSION, ImageCache, digests_of, hash_files, scan
from vitmed.data.splits import make_splits

RUN = Callable[..., Answer]
DAMAGE: dict[str, tuple[str, str]] = {}  # name of a fixture -> code, severity
MAKERS: dict[str, Callable[[Path], None]] = {}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))


def made(code: str, severity: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    def keep(maker: Callable[[Path], None]) -> Callable[[Path], None]:
        DAMAGE[maker.__name__], MAKERS[maker.__name__] = (code, severity), maker
        return maker

    return keep


def picture(seed: int = 99, side: int = 20) -> Image.Image:
    return Image.fromarray(draw_image(np.random.default_rng(seed), (200, 50, 90), side))


def state(root: Path) -> list[tuple[Path, int, int]]:
    return [(path, path.lstat().st_size, path.lstat().st_mtime_ns) for path in sorted(root.rglob("*"))]


def photo(seed: int = 7) -> Image.Image:
    """Clouds, 64 x 64 px."""
    small = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((64, 64), Image.Resampling.BICUBIC)


def truncated(root: Path) -> None:
    data = (root / "amber" / "amber_0.png").read_bytes()
    (root / "amber" / "amber_0.png").write_bytes(data[: len(data) // 2])


def same_file_two_labels(root: Path) -> None:
    shutil.copy(root / "amber" / "amber_0.png", root / "blue" / "copy.png")


@made("class_names_alike", "error")
def case_variant(root: Path) -> None:
    draw_classes(root, 12, ["Amber"], seed=5)


@made("class_names_alike", "error")
def trailing_blank(root: Path) -> None:
    draw_classes(root, 12, ["amber "], seed=5)


@made("class_names_alike", "error")
def unicode_form(root: Path) -> None:
    draw_classes(root, 12, ["na\u00efve", "nai\u0308ve"], seed=5)


@made("nested_root", "error")
def classes_once_more(root: Path) -> None:
    shutil.copytree(root, root / "cells")


@made("nested_root", "warning")
def folder_in_folder(root: Path) -> None:
    inner = root / "archive" / "cells"
    inner.mkdir(parents=True)
    for name in ("amber", "blue"):
        (root / name).rename(inner / name)


@made("too_small_class", "error")
def class_of_two(root: Path) -> None:
    for i in range(10):
        (root / "amber" / f"amber_{i}.png").unlink()


@made("tiny", "warning")
def thumbnails(root: Path) -> None:
    for file in (root / "amber").iterdir():
        Image.open(file).resize((8, 8)).save(file)


@made("small_class", "warning")
def small_class(root: Path) -> None:
    draw_classes(root, 3, ["green"], seed=5)


@made("one_class", "error")
def one_class(root: Path) -> None:
    shutil.rmtree(root / "blue")


@made("no_classes", "error")
def no_classes(root: Path) -> None:
    for file in [*(root / "amber").iterdir(), *(root / "blue").iterdir()]:
        file.rename(root / file.name)
    (root / "amber").rmdir()
    (root / "blue").rmdir()


@made("left_right", "note")
def left_and_right(root: Path) -> None:
    (root / "amber").rename(root / "kidney-left")
    (root / "blue").rename(root / "kidney-right")


@made("class_of_one_patient", "error")
def one_patient(root: Path) -> None:
    for name, patients in (("amber", 1), ("blue", 4)):
        for i in range(12):
            (root / name / f"{name}_{i}.png").rename(root / name / f"patient{i % patients + 1}_{i}.png")


@made("class_is_patient", "error")
def classes_are_patients(root: Path) -> None:
    for first, name in ((1, "amber"), (7, "blue")):
        for i in range(12):
            (root / name / f"{name}_{i}.png").rename(root / name / f"patient{i % 3 + first}_{i}.png")


@made("shortcut_format", "warning")
def format_is_label(root: Path) -> None:
    for file in list((root / "amber").iterdir()):
        Image.open(file).save(file.with_suffix(".jpg"))
        file.unlink()


@made("shortcut_geometry", "warning")
def size_is_label(root: Path) -> None:
    for file in list((root / "amber").iterdir()):
        Image.open(file).resize((26, 24)).save(file)


@made("augmented_copies", "warning")
def flipped_copies(root: Path) -> None:
    for name in ("amber", "blue"):
        for i in range(1, 12, 2):
            (root / name / f"{name}_{i}.png").rename(root / name / f"{name}_{i - 1}_flip.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return draw_classes(tmp_path / "data", 12)


def run(root: Path, tmp_path: Path, **options: object) -> DataCheck:
    return check(root, output=tmp_path / "report", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MAKERS)
def test_each_trouble_is_found_by_its_name(
    folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_command, "write_data_report", lambda *_: None)  # most of the time goes into drawing it
    MAKERS[name](folder)
    before = state(folder)
    code, severity = DAMAGE[name]
    found = {(f.code, f.severity): f for f in run(folder, tmp_path).problems}
    assert (code, severity) in found
    assert found[code, severity].text and found[code, severity].fix
    assert state(folder) == before  # nothing of the user's was touched


IN_ONE_FOLDER = {  # code -> severity and the files that are named
    "empty_file": ("error", {"amber/zero.png"}),
    "truncated": ("error", {"amber/amber_0.png"}),
    "unreadable": ("error", {"amber/letter.png", "amber/link.png"}),
    "multi_frame": ("error", {"amber/pages.tif"}),
    "rubbish": ("note", {f"amber/{name}" for name in ("Thumbs.db", ".DS_Store", "desktop.ini", "._amber_1.png")}),
    "other_files": ("note", set()),
    "empty_class": ("error", {"green"}),
    "loose_images": ("warning", {"loose.png"}),
    "mixed_sizes": ("note", set()),
    "thin": ("warning", {"amber/thin.png"}),
    "masks": ("error", {"amber/grey_mask.png"}),
    "mixed_modes": ("warning", set()),
    "mixed_depths": ("warning", set()),
    "mixed_formats": ("note", set()),
    "rotated": ("note", {"amber/turned.jpg"}),
    "constant": ("warning", {"amber/flat.png"}),
    "two_labels": ("error", {"amber/amber_2.png = blue/copy.png"}),
    "copies": ("warning", {"amber/amber_3.png = amber/copy.png"}),
    "near_two_labels": ("warning", {"amber/cloud.png = blue/cloud.jpg"}),
    "near_copies": ("note", {"amber/sky.png = amber/sky2.png"}),
    "person_in_name": ("warning", {"amber/DOE_JANE_1960.png"}),
    "person_in_file": ("warning", {"amber/exif.jpg", "amber/text.png"}),
}


def test_the_troubles_of_one_folder_are_told_apart(folder: Path, tmp_path: Path) -> None:
    amber, exif, info = folder / "amber", Image.Exif(), PngInfo()
    truncated(folder)
    (folder / "green").mkdir()
    (amber / "link.png").symlink_to(folder / "nowhere.png")
    for name in ("Thumbs.db", ".DS_Store", "desktop.ini", "._amber_1.png", "volume.nii", "letter.png", "zero.png"):
        (amber / name).write_bytes(b"dear doctor" if name != "zero.png" else b"")
    picture(0).save(amber / "pages.tif", save_all=True, append_images=[picture(98)])
    picture(1).save(folder / "loose.png")
    picture(2, side=100).resize((100, 20)).save(amber / "thin.png")
    picture(3).convert("L").save(amber / "grey.png")
    picture(4).convert("1").save(amber / "bits.png")
    picture(9).save(amber / "grey_mask.png")
    Image.new("RGB", (20, 20), (10, 200, 30)).save(amber / "flat.png")
    shutil.copy(amber / "amber_2.png", folder / "blue" / "copy.png")
    shutil.copy(amber / "amber_3.png", amber / "copy.png")
    photo().save(amber / "cloud.png")
    photo().save(folder / "blue" / "cloud.jpg", quality=85)
    photo(8).save(amber / "sky.png")
    photo(8).resize((128, 128)).save(amber / "sky2.png")
    picture(5).save(amber / "DOE_JANE_1960.png")
    exif[0x0112] = 6
    picture(6).save(amber / "turned.jpg", exif=exif)
    exif[0x0112], exif[0x013B] = 1, "Jane Doe"
    picture(7).save(amber / "exif.jpg", exif=exif)
    info.add_text("PatientName", "Doe^Jane")
    picture(8).save(amber / "text.png", pnginfo=info)
    before, found = state(folder), run(folder, tmp_path)
    for code, (severity, files) in IN_ONE_FOLDER.items():
        problems = [problem for problem in found.problems if problem.code == code]
        assert problems and all(one.severity == severity and one.text and one.fix for one in problems), code
        assert files <= {file for one in problems for file in one.files}, problems
    assert state(folder) == before  # nothing of the user's was touched
    assert "EXIF Artist" in " ".join(
        problem.text for problem in found.problems
    )  # metadata are named and never repeated
    assert not any(b"Jane" in file.read_bytes() for file in found.folder.iterdir())


def test_every_problem_is_made_here() -> None:
    elsewhere = {  # of splits, patients and pixels; the tests beside this one
        "copies_across_splits", "near_copies_across_splits", "patients_across_splits", "missing_class",
        "outside_splits", "two_split_folders", "class_of_few_patients", "patients_guessed", "patients_unknown",
        "shortcut_file", "shortcut_colour", "shortcut_border", "text_in_picture",
    }  # fmt: skip
    assert {code for code, _ in DAMAGE.values()} | set(IN_ONE_FOLDER) | elsewhere == set(PROBLEMS)


def test_the_card_that_is_named(folder: Path, tmp_path: Path) -> None:
    card, ui = cards()["busi"], recording()
    found = check(folder, card="busi", output=tmp_path / "report")
    assert found.content["card"]["pitfalls"] == card.pitfalls
    assert ui.warned[0] == f"the card of busi ({card.title}) warns:" and f"  - {card.pitfalls[0]}" in ui.said
    page = (found.folder / "data_report.html").read_text(encoding="utf-8")
    assert "The card of busi warns" in page and all(text[:60] in html.unescape(page) for text in card.pitfalls)
    assert run(folder, tmp_path).content["card"] is None


def test_copies_of_one_original_in_two_splits(tmp_path: Path) -> None:
    root = draw_splits(tmp_path / "data", train=12, val=0, test=12)
    for name in ("amber", "blue"):
        for i in range(12):
            (root / f"test/{name}/{name}_{i}.png").rename(root / f"test/{name}/{name}_{i}_rot90.png")
    found = next(f for f in run(root, tmp_path).problems if f.code == "augmented_copies")
    assert "24 of 48 file names" in found.text and "24 originals, 24 of them in two splits" in found.text


def test_problems_of_splits(tmp_path: Path) -> None:
    root = draw_splits(tmp_path / "data", train=12, val=0, test=12)
    shutil.copy(root / "train/amber/amber_0.png", root / "test/amber/copy.png")
    shutil.rmtree(root / "test" / "blue")
    photo().save(root / "train/amber/p9_1.png")
    photo().save(root / "test/amber/p9_2.jpg", quality=85)
    picture(5).save(root / "beside.png")
    found = run(root, tmp_path, group_regex=r"(p9)_|/[a-z]+_\d+\.|copy")
    codes = [f.code for f in found.problems]
    assert {"copies_across_splits", "near_copies_across_splits", "missing_class", "outside_splits"} <= set(codes)
    assert found.content["duplicates_across_splits"] == 2 and found.content["duplicates"] == 2
    across = next(f for f in found.problems if f.code == "patients_across_splits")
    assert across.severity == "error" and across.files == ("p9",)


def test_a_table_says_class_patient_and_split(folder: Path, tmp_path: Path, vitmed: RUN) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    files = sorted(folder.glob("*/*.png"))
    rows = ["path,label,patient,split"]
    for i, file in enumerate(files):
        shutil.copy(file, flat / f"{i}.png")
        label = "benign" if file.parent.name == "amber" else "malignant"
        rows.append(f"{i}.png,{label},p{i // 3},{('train', 'val', 'test')[i % 3]}")
    shutil.copy(files[0], flat / "99.png")
    rows.append("99.png,malignant,p99,train")
    picture(5).save(flat / "in_no_row.png")
    table = flat / "labels.csv"
    table.write_text("\n".join(rows))
    assert "--labels" in next(one.fix for one in run(flat, tmp_path).problems if one.code == "other_files")
    found = run(flat, tmp_path, labels=table)
    assert "other_files" not in {one.code for one in found.problems}
    assert (found.content["images"], found.content["classes"]) == (len(files) + 1, 2)
    assert found.content["patients_from"] == "by table (--labels)"
    codes = {f.code: f for f in found.problems}
    assert codes["two_labels"].severity == "error" and "loose_images" not in codes and "no_classes" not in codes
    each, two = -(-len(files) // 3), len(files) // 3
    assert (
        found.content["splits"] == f"patients: {each + 1} in train, {each} in val, {two} in test; {two} in two splits"
    )
    apart = [row if not row[0].isdigit() else f"{row.rpartition(',')[0]},train" for row in rows]
    apart[-1] = "99.png,malignant,p99,val"
    table.write_text("\n".join(apart))
    answer = vitmed("check", str(flat), "--labels", str(table), "-o", str(tmp_path / "apart"))
    assert f"patients: {each} in train, 1 in val; none in two splits" in answer.out
    table.write_text("\n".join(rows))
    answer = vitmed("check", str(flat), "--labels", str(table), "-o", str(tmp_path / "again"), "--json")
    assert answer.code == 3 and json.loads(answer.out)["images"] == len(files) + 1
    table.write_text("path,label\nnone.png,benign\n")
    with pytest.raises(DataError, match="1 row matches no image"):
        run(flat, tmp_path, labels=table)


def test_what_folders_cannot_say_is_refused_as_train_refuses_it(folder: Path, tmp_path: Path) -> None:
    for options, told in (
        ({"uncertain": "ones"}, "changes nothing for labels of the kind classes"),
        ({"ordinal": ("amber", "none")}, "is not on the scale amber, none"),
        ({"target": "grades"}, "the names of the grades have no order"),
        ({"target": "number"}, "folders name one class"),
    ):
        with pytest.raises(VitmedError, match=told):
            run(folder, tmp_path, **options)


def test_a_file_without_patient_id_is_one_problem_of_several(tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    root = tmp_path / "data"
    for i in range(8):
        (root / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        write(root / "ab"[i % 2] / f"{i}.dcm", RAMP + np.uint16(i), PatientID="" if i == 3 else f"P{i}")
    (root / "b" / "empty.dcm").touch()
    problems = {p.code: p for p in check(root, output=tmp_path / "out", groups="dicom").problems}
    nobody = problems["patients_unknown"]
    assert (nobody.severity, nobody.text, nobody.files) == ("error", "no PatientID in 1 of 9 files", ("b/3.dcm",))
    assert "--groups TABLE" in nobody.fix and problems["empty_file"].files == ("b/empty.dcm",)


def test_an_expression_that_finds_no_patient_leaves_patients_unknown(
    folder: Path, tmp_path: Path, ui: Recorder
) -> None:
    found = run(folder, tmp_path, group_regex="(nobody)")
    assert found.content["patients_from"] is None and any("finds no patient in" in text for text in ui.warned)


def test_a_sound_folder_has_no_error_and_strict_lets_it_pass(tmp_path: Path, vitmed: RUN) -> None:
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for _ in range(30):
            pixels = rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{rng.integers(1 << 40):x}z.png")
    answer = vitmed("check", tmp_path / "data", "--strict", "--output", tmp_path / "report", "--json")
    told = json.loads(answer.out)
    assert answer.code == 0 and {f["severity"] for f in told["problems"]} <= {"note"}
    keys = "images classes patients unreadable duplicates duplicates_across_splits patients_across_splits problems"
    assert set(keys.split()) <= set(told)
    assert (told["images"], told["classes"], told["unreadable"], told["duplicates"]) == (60, 2, 0, 0)


def test_errors_and_with_strict_warnings_end_with_3_after_the_report_is_written(
    folder: Path, tmp_path: Path, vitmed: RUN
) -> None:
    (folder / "amber" / "amber_0.png").rename(folder / "amber" / "DOE_JANE_1960.png")
    found = run(folder, tmp_path)
    assert found.count("warning") and not found.count("error")
    assert vitmed("check", folder, "--output", tmp_path / "report").code == 0
    assert vitmed("check", folder, "--output", tmp_path / "report", "--strict").code == 3
    (folder / "amber" / "zero.png").write_bytes(b"")
    answer = vitmed("check", folder, "--output", tmp_path / "new", "--json")
    assert answer.code == 3 and "error: 1 error and " in answer.err
    assert any(found["severity"] == "error" for found in json.loads(answer.out)["problems"])
    assert run(folder, tmp_path).count("error") == 1  # in Python it is returned
    answer = vitmed("check", folder, "--output", tmp_path / "new", "--strict")
    assert answer.code == 3 and "zero.png" in answer.out and "Traceback" not in answer.err
    assert answer.out.count("    fix: ") == 1 and "DOE_JANE" not in answer.out  # of the worst problem alone
    spoken = vitmed("check", folder, "--output", tmp_path / "new", "--verbose").out
    assert spoken.count("    fix: ") == len(run(folder, tmp_path).problems) and "DOE_JANE" in spoken
    assert (tmp_path / "new-2" / "data_report.json").is_file()  # never overwritten
    with pytest.raises(DataError):
        run(folder, tmp_path, strict=True)
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "empty"):
        assert vitmed("check", tmp_path / name).code == 3


def test_the_page_needs_nothing_else_and_the_problems_stand_in_it(folder: Path, tmp_path: Path) -> None:
    same_file_two_labels(folder)
    found = run(folder, tmp_path)
    page = (found.folder / "data_report.html").read_text()
    assert "Do not share it" in page and "copy.png" in page
    assert str(tmp_path) not in page and "<script" not in page and "http" not in page.replace("http-equiv", "")
    told = json.loads((found.folder / "data_report.json").read_text())
    assert [f["code"] for f in told["problems"]] == [f.code for f in found.problems]
    assert str(tmp_path) not in (found.folder / "data_report.json").read_text()
    ranks = ["error", "warning", "note"]
    assert [f.severity for f in found.problems] == sorted((f.severity for f in found.problems), key=ranks.index)


def test_dicom_tags(folder: Path, tmp_path: Path) -> None:
    for i, tags in enumerate(({"PatientName": "Doe^Jane"}, {"BurnedInAnnotation": "YES"}, {"Modality": "US"})):
        write(folder / "amber" / f"{i}.dcm", RAMP + i, **tags)
    write(folder / "amber" / "3.dcm", RAMP + 3, PatientName="")
    problems = " ".join(f.text for f in run(folder, tmp_path).problems)
    assert "DICOM PatientName in 1 file" in problems
    assert "BurnedInAnnotation YES in 1 file" in problems and "modality US" in problems


def old(root: Path) -> None:
    """As if no file had changed for an hour."""
    for file in root.rglob("*.png"):
        os.utime(file, (time.time() - 3600,) * 2)


def test_a_second_run_decodes_nothing_and_a_changed_file_is_seen(folder: Path, tmp_path: Path) -> None:
    old(folder)
    ui = recording()
    first = check(folder, output=tmp_path / "report")
    assert any("24 files decoded" in line for line in ui.said)
    ui = recording()
    second = check(folder, output=tmp_path / "report")
    assert not any("decoded" in line for line in ui.said)
    assert first.problems == second.problems and first.content == second.content
    truncated(folder)
    assert "truncated" in {f.code for f in run(folder, tmp_path).problems}
    assert (tmp_path / "cache" / "index").stat().st_mode & 0o077 == 0


def test_a_damaged_index_is_made_anew_and_a_closed_cache_is_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old(folder)
    expected = run(folder, tmp_path).content
    file = tmp_path / "cache" / "index" / f"images-{VERSION}.sqlite"
    file.write_bytes(b"this is no database" * 1000)
    assert run(folder, tmp_path).content == expected
    with sqlite3.connect(file) as database:
        assert database.execute("SELECT count(*) FROM images").fetchone() == (24,)
        database.execute("UPDATE images SET facts = 'x', pixels = x'00'")
    assert run(folder, tmp_path).content == expected
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "a file"))
    ui = recording()
    assert check(folder, output=tmp_path / "report").content == expected
    assert len(ui.warned) == 1 and "decoded again" in ui.warned[0]


def test_many_may_write_at_once(folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    old(folder)
    names = [f"{name}/{name}_{i}.png" for name in ("amber", "blue") for i in range(12)]
    files = [str(folder / name) for name in names]
    digests = digests_of(hash_files(files), files)

    def one(_: int) -> int:
        index = ImageCache()
        scan(folder, names, index)
        return sum(record is not None for record in index.records(digests))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(4))) == [24] * 4


def test_a_file_changed_just_now_is_not_remembered(folder: Path) -> None:
    index = ImageCache()
    file = folder / "amber" / "amber_0.png"
    (before,) = hash_files([str(file)], index)
    times = file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)  # of the same size, within the same tick of a coarse clock
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    (after,) = hash_files([str(file)], index)
    assert after == hashlib.sha256(data).hexdigest() != before


def closed(patch: pytest.MonkeyPatch, path: Path) -> None:
    """As if the user had no permission to read a file or list a folder (root, who runs the tests, always has)."""
    opened, scanned = Path.open, os.scandir

    def open_file(self: Path, *args: object, **settings: object) -> object:
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return opened(self, *args, **settings)  # type: ignore[call-overload]

    def scan_folder(folder: str | Path | int) -> object:
        if not isinstance(folder, int) and Path(folder) == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scanned(folder)

    patch.setattr(Path, "open", open_file)
    patch.setattr(os, "scandir", scan_folder)


def test_a_file_that_may_be_read_now_is_read(folder: Path, tmp_path: Path) -> None:
    """`chmod` changes neither size nor time of a file: what was unreadable must not be remembered as broken."""
    old(folder)
    with pytest.MonkeyPatch.context() as patch:
        closed(patch, folder / "amber" / "amber_0.png")
        (problem,) = [f for f in run(folder, tmp_path).problems if f.code == "unreadable"]
        assert "Permission denied" in problem.text and "permissions" in problem.fix
    assert "unreadable" not in {f.code for f in run(folder, tmp_path).problems}


def test_a_class_folder_that_cannot_be_read_is_not_called_empty(folder: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        closed(patch, folder / "blue")
        found = {f.code: f for f in run(folder, tmp_path).problems}
        assert "folder blue cannot be read (Permission denied)" in found["unreadable"].text
        assert found["unreadable"].fix == "check its permissions; or move it, if its path is too long"
        assert not {"empty_class", "one_class"} & set(found)
        with pytest.raises(DataError, match=r"blue: cannot be read \(Permission denied\)"):
            train(folder, output=tmp_path / "runs", **TINY)
    with pytest.MonkeyPatch.context() as patch:
        closed(patch, folder)
        with pytest.raises(DataError, match="cannot be read"):
            run(folder, tmp_path)
    with pytest.MonkeyPatch.context() as patch:  # its files can be listed but not opened
        real = os.access
        patch.setattr(os, "access", lambda path, mode: "amber" not in str(path) and real(path, mode))
        assert [f.files for f in run(folder, tmp_path).problems if f.code == "unreadable"] == [("amber",)]


def test_folders_of_the_system_are_no_classes(folder: Path, tmp_path: Path) -> None:
    """macOS and network drives leave thumbnails in folders of their own; neither check nor training takes them."""
    shutil.copytree(folder / "amber", folder / "__MACOSX")
    shutil.copytree(folder / "amber", folder / "amber" / "@eaDir")
    assert run(folder, tmp_path).content["images"] == 24
    splits = make_splits(DataConfig(root=str(folder)))
    assert splits.classes == ("amber", "blue") and sum(map(len, splits.samples.values())) == 24


def test_training_says_the_problems_and_puts_them_into_the_report(trained: Trained) -> None:
    """Amber, blue and green can be told by their mean colour."""
    assert any("the mean colour" in text and "(shortcut_colour)" in text for text in trained.ui.warned)
    notes = trained.result.test.metrics["report"]["notes"]
    assert any(note.startswith("Data: train: the label can be predicted from the mean colour alone") for note in notes)


def test_where_near_copies_are_found_the_flag_that_keeps_them_together_is_named(
    tmp_path: Path, vitmed: RUN, ui: Recorder, no_figures: None
) -> None:
    root = draw_splits(tmp_path / "data", train=12, val=6, test=6)
    photo().save(root / "train/amber/first.png")
    photo().save(root / "test/amber/second.jpg", quality=85)
    train(root, output=tmp_path / "runs", sets=TINY_SETS, **TINY | {"epochs": 1, "baseline": False, "report": False})
    (said,) = [text for text in ui.warned if "near_copies_across_splits" in text]
    assert "(near_copies_across_splits; without patients, --groups copies keeps them in one split): " in said
    shutil.copy(root / "train/amber/first.png", root / "train/blue/first.png")
    (root / "test/amber/second.jpg").rename(root / "train/amber/second.jpg")
    lines = vitmed("check", root, "-o", tmp_path / "report").out.splitlines()
    (place,) = [k for k, line in enumerate(lines) if "(near_copies)" in line]
    assert any(line.startswith("error: ") for line in lines[:place])  # the flag is named beside a graver problem too
    assert "--groups copies, which keeps copies in one split" in lines[place + 1]


def test_training_refuses_an_image_under_two_labels(folder: Path, tmp_path: Path) -> None:
    same_file_two_labels(folder)
    with pytest.raises(DataError, match="the same file under two labels: 1 file") as error:
        train(folder, output=tmp_path / "runs", sets=TINY_SETS, **TINY)
    assert "amber/amber_0.png = blue/copy.png" in str(error.value) and error.value.exit_code == 3
    assert not any((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("regex", [r"(?:^|/)(C\d+)[^/]*$", pytest.param(None, marks=pytest.mark.slow)])
def test_the_patients_of_the_small_malaria_set_come_first(data_dir: Path, tmp_path: Path, regex: str | None) -> None:
    if not (data_dir / "malaria").is_dir():
        pytest.skip("no malaria/")
    found = run(data_dir / "malaria", tmp_path, group_regex=regex)
    assert [f.code for f in found.problems[:2]] == ["class_of_one_patient", "class_is_patient"]
    first, second = found.problems[:2]
    assert first.text.startswith("train: all 200 images of 'infected' come from one patient")
    assert second.text.startswith("test: ") and found.content["patients"] == 8


def test_every_problem_has_a_row_in_the_docs_with_its_severity() -> None:
    text = (Path(__file__).parents[2] / "docs" / "checking.md").read_text(encoding="utf-8")
    for code, (severity, _, _) in PROBLEMS.items():
        assert f"| `{code}` | {severity} |" in text, code


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_file_is_never_opened(tmp_path: Path, vitmed: RUN, trained: Trained) -> None:
    """Reading a pipe without a writer would wait for ever."""
    root = draw_classes(tmp_path / "data", 12)
    os.mkfifo(root / "amber" / "x.png")
    os.mkfifo(root / "amber" / "IM-0001")
    (root / "amber" / "loop.png").symlink_to("loop.png")
    (root / "amber" / "gone.dcm").symlink_to("nowhere.dcm")
    with socket.socket(socket.AF_UNIX) as server:
        with contextlib.chdir(root / "blue"):  # the path of a socket is short
            server.bind("s.png")
        found = check(root, output=tmp_path / "out")
        (problem,) = [problem for problem in found.problems if problem.code == "unreadable"]
        assert problem.files == ("amber/gone.dcm", "amber/loop.png", "amber/x.png", "blue/s.png")
        answer = vitmed("train", root, "-o", tmp_path / "runs", "--groups", "dicom")
        assert answer.code == 3 and "no PatientID in 24 of 28 files" in answer.err
        answer = vitmed("train", root, "-o", tmp_path / "runs")
        for text in ("x.png: a named pipe (FIFO)", "loop.png: a link that leads back to itself", "s.png: a socket"):
            assert answer.code == 3 and text in answer.err, answer.err
        answer = vitmed("predict", root / "amber", "--checkpoint", trained.best, "--json")
        errors = {Path(row["path"]).name: row["error"] for row in json.loads(answer.out)["errors"]}
        assert "a named pipe (FIFO)" in errors["x.png"] and "a broken link" in errors["gone.dcm"]


@pytest.mark.slow
def test_no_library_warns_on_the_terminal(tmp_path: Path, vitmed: RUN) -> None:
    """Pillow's and pydicom's warnings show a path of theirs, and Pillow's another limit of pixels."""
    root = draw_classes(tmp_path / "data", 3)
    Image.new("1", (10_000, 9_500)).save(root / "amber" / "large.png")
    exif = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 40
    Image.new("RGB", (50, 50)).save(root / "amber" / "exif.jpg", exif=exif)
    write(root / "blue" / "odd.dcm", RAMP, PatientID="P" * 100, WindowCenter=40, WindowWidth=400)
    data = (root / "blue" / "odd.dcm").read_bytes()
    (root / "blue" / "odd.dcm").write_bytes(data.replace(b"1.2.840.10008.5.1.4.1.1.2", b"1.2.840.10008.5.01.4.1.02"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = vitmed("check", root, "-o", tmp_path / "out")
    assert answer.code == 0 and "Warning:" not in answer.err and "site-packages" not in answer.err, answer.err
    assert [str(one.message) for one in caught if not issubclass(one.category, DeprecationWarning)] == []


def test_counts_and_depths_cannot_be_confused(tmp_path: Path, ui: Recorder) -> None:
    root = draw_classes(tmp_path / "data", 11)
    np.save(root / "amber" / "deep.npy", np.random.default_rng(0).normal(size=(20, 20)))
    found = check(root, output=tmp_path / "out")
    assert "8 bits: 22 images, 64 bits: 1 image" in {problem.text for problem in found.problems}


# --- deep images


def draw_deep(root: Path, frame: int) -> Path:
    """16-bit images with the same border in both classes, but brighter spots in one; `frame`: added to its border."""
    rng = np.random.default_rng(0)
    for k, name in enumerate(("normal", "sick")):
        (root / name).mkdir(parents=True)
        for i in range(30):
            image = rng.normal(10_000, 300, (48, 48))
            image[16:32, 16:32] = rng.normal(45_000 if k else 15_000, 5_000, (16, 16))
            image[:3] += k * frame
            Image.fromarray(image.clip(0, 65_535).astype(np.uint16)).save(root / name / f"{i}.png")
    return root


@pytest.mark.parametrize("frame", [0, 4_000])
def test_the_border_of_deep_images_is_seen_in_the_window_of_the_run(tmp_path: Path, frame: int) -> None:
    """Each image stretched alone would show a border that is the darker the brighter the spot."""
    root, ui = draw_deep(tmp_path / "data", frame), recording()
    expected = {"shortcut_border"} if frame else set()
    found = check(root, output=tmp_path / "out")
    assert {problem.code for problem in found.problems} & {"shortcut_border"} == expected
    assert any(text.startswith("16-bit images: window ") for text in ui.said)
    files, seen = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png")), []
    for window in (None, (0.0, 60_000.0), (0.0, 50_000.0), None):  # what one window kept does not answer for another
        records = scan(root, files, ImageCache(window=window))
        seen.append([float(record.numbers[0]) for record in records if record.numbers is not None])
    assert seen[0] == seen[3] and len({tuple(means) for means in seen}) == 3


def test_the_page_shows_the_chosen_page_of_deep_images_in_their_window(tmp_path: Path) -> None:
    values = np.linspace(1000, 3000, 400).reshape(20, 20)
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(2):
            pages = [Image.fromarray((values + k).astype(np.uint16)) for k in (40_000 + i, i)]
            pages[0].save(tmp_path / "data" / name / f"{i}.tif", save_all=True, append_images=pages[1:])
    found = check(tmp_path / "data", output=tmp_path / "out", frame=1)
    page = (found.folder / "data_report.html").read_text()
    shown = re.findall(r'src="data:image/png;base64,([^"]+)" alt="a/0.tif"', page)
    picture = np.asarray(Image.open(io.BytesIO(b64decode(shown[0]))).convert("L"))
    low, high = found.content["window"]
    assert 1000 < low < high < 3002
    assert np.abs(picture - np.clip((values - low) / (high - low), 0, 1) * 255).max() <= 1


def test_training_sees_the_border_of_deep_images_in_its_window(tmp_path: Path, no_figures: None, ui: Recorder) -> None:
    train(draw_deep(tmp_path / "data", 0), output=tmp_path / "runs", sets=TINY_SETS, **BARE | {"epochs": 1})
    assert not any("shortcut_border" in text for text in ui.warned)


def test_lists_of_many_classes_are_cut(tmp_path: Path, vitmed: RUN) -> None:
    folder = draw_classes(tmp_path / "data", 3, [f"c{i:03}" for i in range(120)])
    answer = vitmed("check", folder, "-o", tmp_path / "out")
    assert answer.code == 0, answer.err
    assert (
        "c049" in answer.out and "c050" not in answer.out and "... and 70 more rows, in data_report.json" in answer.out
    )
    assert "3 of 'c009' and 110 more" in answer.out
    page = (tmp_path / "out" / "data_report.html").read_text()
    assert "100 of 120 rows shown; data_report.json has all" in page
    assert len(json.loads((tmp_path / "out" / "data_report.json").read_text())["table"]) == 120


def test_findings_that_are_hard_to_tell_apart_are_mended_in_the_table(tmp_path: Path) -> None:
    """There are no class folders whose images could be put together."""
    root = draw_classes(tmp_path / "data", 12)
    paths = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.png"))
    rows = [f"{path},{['Fluid', 'fluid|mass', 'mass'][i % 3]}" for i, path in enumerate(paths)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]), encoding="utf-8")
    found = check(root, labels=tmp_path / "t.csv", output=tmp_path / "check")
    alike = next(problem for problem in found.problems if problem.code == "class_names_alike")
    assert alike.text == "labels 'Fluid' and 'fluid' are hard to tell apart by eye"
    assert alike.fix == "rename one of them in the table"


def test_every_copy_is_in_the_table_and_groups_copies_keeps_them_in_one_split(tmp_path: Path) -> None:
    root = draw_classes(tmp_path / "data", 40)
    for i in range(25):  # more than a problem names
        shutil.copy(root / f"amber/amber_{i}.png", root / f"amber/again_{i}.png")
    photo().save(root / "amber/first.png")
    photo().save(root / "amber/second.jpg", quality=85)
    found = run(root, tmp_path)
    with (found.folder / "copies.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    pairs = {(row["same"], *sorted((row["first"], row["second"]))) for row in rows}
    assert pairs == {
        *(("file", f"amber/again_{i}.png", f"amber/amber_{i}.png") for i in range(25)),
        ("picture", "amber/first.png", "amber/second.jpg"),
    }
    assert {(row["where"], row["first_label"], row["second_label"]) for row in rows} == {
        ("with one label", "amber", "amber")
    }
    for seed in range(3):
        splits = make_splits(DataConfig(root=str(root), groups="copies", split_seed=seed))
        place = {sample.path: name for name, samples in splits.samples.items() for sample in samples}
        assert len(place) == 107 and all(place[first] == place[second] for _, first, second in pairs)
    assert any("26 images are a copy" in note for note in splits.notes)


@pytest.mark.parametrize(
    ("first", "second", "asked"),
    [
        ("unifected", "uninfected", True),
        ("neutrophil", "neutrophils", True),
        ("Parasitized cell", "parasitised cell", True),
        ("benign", "bengin", True),
        ("typical", "atypical", False),
        ("grade a", "grade b", False),
        ("gradeA", "gradeB", False),
        ("KL0", "KL1", False),
        ("infected", "uninfected", False),
    ],
)
def test_class_folders_that_differ_by_a_letter_are_asked_about(
    tmp_path: Path, first: str, second: str, asked: bool
) -> None:
    for name in (first, second, "other things"):
        (tmp_path / "data" / name).mkdir(parents=True)
        picture().save(tmp_path / "data" / name / "1.png")
    texts = [
        problem.text for problem in run(tmp_path / "data", tmp_path).problems if problem.code == "class_names_alike"
    ]
    named = sorted((first, second))
    assert texts == ([f"class folders {named[0]!r} and {named[1]!r} differ by one letter"] if asked else [])


def test_settings_are_those_of_train_and_others_are_refused(tmp_path: Path) -> None:
    draw_classes(tmp_path / "data")
    with pytest.raises(UsageError, match="check has no option grups") as refused:
        check(tmp_path / "data", grups="names", output=tmp_path / "check")
    assert refused.value.fix == "did you mean groups?" and not (tmp_path / "check").exists()
    with pytest.raises(UsageError, match="--target sort: Input should be 'auto'"):
        check(tmp_path / "data", target="sort", output=tmp_path / "check")
