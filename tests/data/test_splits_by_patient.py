"""Folds, patients in two splits, guessed patients, copies, and the speed of dividing many patients."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from dicom_files import RAMP, write
from PIL import Image
from sklearn.model_selection import StratifiedGroupKFold

from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.load_config import build_config
from vitmed.data.folders import image_names
from vitmed.data.image_cache import first_copies
from vitmed.data.patients import patient_id, patient_notes
from vitmed.data.samples import Sample, Splits
from vitmed.data.splits import grouped_folds, held_out, make_splits, site_names


def files(root: Path, names: list[str]) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def config_of(root: Path, **fields: object) -> DataConfig:
    return DataConfig(root=str(root), **fields)  # type: ignore[arg-type]


def split(root: Path, **fields: object) -> Splits:
    return make_splits(config_of(root, **fields))


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """20 patients; most with both classes, some with one."""
    rng = np.random.default_rng(0)
    names = [
        f"{'ab'[int(rng.random() < share)]}/P{i:02}_{j}.png"
        for i, share in enumerate([0, 0, 1, 1, *rng.random(16)])
        for j in range(rng.integers(5, 30))
    ]
    return files(tmp_path / "cells", names)


@pytest.mark.parametrize("regex", [None, r"(P\d+)_"])
@pytest.mark.parametrize("folds", [2, 5])
def test_every_image_is_in_the_test_of_one_fold(cells: Path, regex: str | None, folds: int) -> None:
    runs = [split(cells, folds=folds, fold=i + 1, group_regex=regex, split_seed=3) for i in range(folds)]
    tests = [s.path for run in runs for s in run.samples["test"]]
    assert sorted(tests) == sorted(image_names(cells))
    for i, run in enumerate(runs):
        every = [s.path for part in run.samples.values() for s in part]
        assert sorted(every) == sorted(tests) and min(run.counts("test")) > 0 and min(run.counts("val")) > 0
        assert run.made["test"].startswith(f"fold {i + 1} of {folds} by {'patient' if regex else 'image'}, seed 3")
        assert run.shared() == {}
        assert run.samples == split(cells, folds=folds, fold=i + 1, group_regex=regex, split_seed=3).samples
    if regex is None:  # images are dealt out evenly, each class and all
        for k in range(2):
            sizes = [run.counts("test")[k] for run in runs]
            assert max(sizes) - min(sizes) <= 1
        assert runs[0].samples != split(cells, folds=folds, fold=1, split_seed=4).samples
        assert max(sizes := [len(run.samples["test"]) for run in runs]) - min(sizes) <= 1


def test_folds_by_patient_are_those_of_scikit_learn(cells: Path) -> None:
    paths = image_names(cells)
    labels = [path[0] for path in paths]
    groups = [path[2:5] for path in paths]
    reference = StratifiedGroupKFold(5, shuffle=True, random_state=7).split(paths, labels, groups)
    for i, (_, test) in enumerate(reference):
        for seed in (7, 2**32 + 7):  # a time in milliseconds is larger than scikit-learn takes
            found = split(cells, folds=5, fold=i + 1, group_regex=r"(P\d+)_", split_seed=seed).samples["test"]
            assert [s.path for s in found] == [paths[j] for j in test]


def test_folds_that_cannot_be(cells: Path, tmp_path: Path) -> None:
    brought = files(
        tmp_path / "brought", [f"{s}/{c}/{i}.png" for s in ("train", "test") for c in "ab" for i in range(9)]
    )
    with pytest.raises(UsageError, match="has its own test"):
        split(brought, folds=3, hold_out=0.2)
    with pytest.raises(DataError, match=r"9 patients are in two splits:\n'0' in train and the held-out test"):
        split(brought, folds=3, group_regex=r"(\d+)\.png")
    with pytest.raises(DataError, match="20 patients are too few for 21 folds"):
        split(cells, folds=21, group_regex=r"(P\d+)_")
    one = files(tmp_path / "one", [f"a/P{i}_{i}.png" for i in range(9)] + [f"b/P7_{i}.png" for i in range(20, 29)])
    with pytest.raises(DataError, match="class 'b' has 9 images of 1 patient, too few to split off") as error:
        split(one, group_regex=r"(P\d+)_")
    assert error.value.fix.startswith("add patients of this class, --resplit")
    few = files(tmp_path / "few", [f"a/{i}.png" for i in range(20)] + ["b/0.png", "b/1.png"])
    with pytest.raises(DataError, match="class 'b' has too few images for fold 2 of 3"):
        split(few, folds=3, fold=2)
    with pytest.raises(DataError, match="class 'b' has too few images for fold 2 of 3"):
        split(few, folds=3, fold=1)  # before the first one is trained in vain
    rare = files(tmp_path / "rare", [f"{c}/P{c}{i}_0.png" for c in "ab" for i in range(4)])
    with pytest.raises(DataError, match=r"class '.' has too few patients for fold . of 5"):
        split(rare, folds=5, group_regex=r"(P\w+)_")  # of no class as many as folds
    for data in ({"folds": 3, "fold": 4}, {"fold": 2}):
        with pytest.raises(UsageError, match=r"there is no such fold|data\.fold needs data\.folds"):
            build_config({"data": data})
    with pytest.raises(UsageError, match="leave nothing to train on"):
        build_config({"data": {"folds": 2, "val_fraction": 0.5}})
    with pytest.raises(UsageError, match="all folds are of all repeats"):
        build_config({"data": {"folds": 2, "repeats": 2, "repeat": 2}})


def test_a_test_of_its_own_and_a_share_are_in_no_fold(cells: Path, tmp_path: Path) -> None:
    """The folder's own test, or a share of whole patients that is the same in every repeat, is in no fold."""
    brought = files(
        tmp_path / "brought", [f"{s}/{c}/{i}.png" for s in ("train", "test") for c in "ab" for i in range(9)]
    )
    kept = {sample.path for sample in held_out(config_of(brought, folds=3))}
    assert kept == {f"test/{c}/{i}.png" for c in "ab" for i in range(9)}
    tests = [{s.path for s in split(brought, folds=3, fold=fold).samples["test"]} for fold in (1, 2, 3)]
    assert set().union(*tests) == {f"train/{c}/{i}.png" for c in "ab" for i in range(9)}
    for repeat in (1, 2):
        settings = {"folds": 2, "hold_out": 0.25, "group_regex": r"(P\d+)_", "repeats": 2, "repeat": repeat}
        away = held_out(config_of(cells, **settings))
        runs = [split(cells, **settings, fold=fold) for fold in (1, 2)]
        inside = {s.group for run in runs for part in run.samples.values() for s in part}
        assert 0.15 < len(away) / len(image_names(cells)) < 0.35 and not {s.group for s in away} & inside
        assert repeat == 1 or away == held_out(config_of(cells, **{**settings, "repeat": 1}))
    one, two = (split(cells, folds=2, repeats=2, repeat=repeat) for repeat in (1, 2))
    assert one.samples["test"] != two.samples["test"]
    assert two.made["test"] == "fold 1 of 2 by image, seed 1, repeat 2 of 2"
    assert split(cells, folds=2).made["test"] == "fold 1 of 2 by image, seed 0"


def test_each_site_is_a_fold(tmp_path: Path) -> None:
    root = files(tmp_path / "cells", [f"{i}.png" for i in range(12)])
    rows = [f"{i}.png,{'ab'[i % 2]},{['north', 'east', 'south'][i // 4]}" for i in range(12)]
    (root / "labels.csv").write_text("\n".join(["path,label,hospital", *rows]))
    settings = {"labels": str(root / "labels.csv"), "sites": "hospital"}
    assert site_names(config_of(root, **settings)) == ["east", "north", "south"]
    runs = [split(root, **settings, fold=fold) for fold in (1, 2, 3)]
    assert [{s.columns for s in run.samples["test"]} for run in runs] == [{("east",)}, {("north",)}, {("south",)}]
    assert runs[0].made["test"] == "hospital east, fold 1 of 3"
    for name in ("ward", "label"):  # the table has a label, but no site of this name
        there = rf"beside path, label, patient and split there is no column '{name}' .--sites.; the others are hospital"
        with pytest.raises(UsageError, match=there):
            split(root, **settings | {"sites": name})
    for cell, wrong in (
        ("", "11.png has no hospital ('')"),
        ("NA", "11.png has no hospital ('NA')"),
        ("South", "hospital 'South' is also written 'south'"),
    ):
        (root / "labels.csv").write_text("\n".join(["path,label,hospital", *rows[:-1], f"11.png,b,{cell}"]))
        with pytest.raises(DataError) as error:
            site_names(config_of(root, **settings))
        assert error.value.problem.endswith(wrong)
    one = [f"{i}.png,{'ab'[i % 2]},{'ab'[i % 2]}" for i in range(12)]
    (root / "labels.csv").write_text("\n".join(["path,label,hospital", *one]))
    with pytest.raises(DataError, match="without hospital 'a' no image of class 'a' is left"):
        split(root, **settings)


def test_a_patient_of_two_sites_is_not_mended_by_dividing_anew(tmp_path: Path) -> None:
    root, table = files(tmp_path / "cells", [f"{i}.png" for i in range(12)]), tmp_path / "labels.csv"
    rows = [f"{i}.png,{'ab'[i % 2]},p{i // 2 % 5},{['north', 'south'][i // 6]}" for i in range(12)]
    table.write_text("\n".join(["path,label,patient,hospital", *rows]))
    for resplit in (False, True):
        with pytest.raises(DataError, match=r"'p0' in (train|val) and test") as error:
            split(root, labels=str(table), sites="hospital", resplit=resplit)
        assert error.value.fix.startswith("give all images of a patient one value of hospital")
        assert "--resplit" not in error.value.fix and "--allow-leakage" in error.value.fix


def test_many_patients_are_divided_evenly_and_fast() -> None:
    """Whole patients; sizes and classes of the folds within 1 % of each other; the seed decides."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(20_000), rng.geometric(1 / 5, 20_000))
    shares = rng.dirichlet([0.1, 0.2, 0.5], 20_000).cumsum(axis=1)
    labels = (rng.random(len(codes))[:, None] > shares[codes]).sum(axis=1)
    begin = time.process_time()
    number = grouped_folds(labels, codes, 5, seed=0)
    assert time.process_time() - begin < 3  # StratifiedGroupKFold needs a minute
    assert len(np.unique(codes * 5 + number)) == 20_000
    counts = np.array([np.bincount(labels[number == fold]) for fold in range(5)])
    assert (counts.max(axis=0) / counts.min(axis=0)).max() < 1.01
    assert np.array_equal(number, grouped_folds(labels, codes, 5, seed=0))
    assert not np.array_equal(number, grouped_folds(labels, codes, 5, seed=1))


def test_patients_in_two_splits_are_named_or_allowed(tmp_path: Path) -> None:
    parts = {"train": range(20), "val": range(18, 26), "test": range(12, 30)}
    names = [f"{s}/{c}/P{i:02}_0.png" for s, numbers in parts.items() for c in "ab" for i in numbers]
    root = files(tmp_path / "data", names)
    with pytest.raises(DataError, match="14 patients are in two splits") as error:
        split(root, group_regex=r"(P\d+)_")
    message = str(error.value)
    assert "'P12' in train and test" in message and "'P18' in train and val and test" in message
    assert "'P21' in val and test" in message and "'P22'" not in message and "and 4 more" in message
    assert "--allow-leakage" in error.value.fix
    splits = split(root, group_regex=r"(P\d+)_", allow_leakage=True)
    assert splits.shared()["P18"] == ["train", "val", "test"] and len(splits.shared()) == 14
    assert any("14 patients" in text and "optimistic" in text for text in splits.notes)
    assert error.value.fix.startswith("--resplit ignores the splits of the folder and splits by patient")
    anew = split(root, group_regex=r"(P\d+)_", resplit=True)
    assert not anew.shared() and sum(map(len, anew.samples.values())) == len(names)
    assert anew.made["test"].endswith("by patient, seed 0") and splits.made["test"].startswith("folder")
    assert all(0.1 < len(anew.groups()[name]) / 30 < 0.25 for name in ("val", "test"))
    for part in anew.samples.values():
        assert list(part) == sorted(part, key=lambda sample: (sample.label, sample.path))
    assert split(root, group_regex=r"(P\d+)_", resplit=True, folds=3).made["test"].startswith("fold 1 of 3 by patient")


def test_leakage_is_counted_in_the_split_that_it_is_about() -> None:
    """Patient A has images in train and test, B in train and val, C in all, D in train only."""
    parts = {"train": "ABCD", "val": "BC", "test": "ACE"}
    samples = {name: tuple(Sample(f"{name}{who}.png", 0, who) for who in people) for name, people in parts.items()}
    splits = Splits(Path(), ("a",), samples, patients="by table (--groups)")
    counted = {}
    for name in parts:
        (note,) = patient_notes(splits, name)
        counted[name] = note.split(" of this split")[0]
    assert counted == {"train": "Leakage: 3 patients", "val": "Leakage: 2 patients", "test": "Leakage: 2 patients"}


def test_resplit_ignores_the_column_of_a_table(tmp_path: Path) -> None:
    names = [f"P{i:02}_{j}.png" for i in range(20) for j in range(4)]
    root, table = files(tmp_path / "data", names), tmp_path / "labels.csv"
    rows = [f"{name},{'ab'[int(name[1:3]) % 2]},{name[:3]},{'test' if name[4] == '0' else 'train'}" for name in names]
    table.write_text("\n".join(["path,label,patient,split", *rows]))
    with pytest.raises(DataError, match="20 patients are in two splits") as error:
        split(root, labels=str(table))
    assert error.value.fix.startswith("--resplit ignores the splits of the table and splits by patient")
    anew = split(root, labels=str(table), resplit=True)
    assert not anew.shared() and sum(map(len, anew.samples.values())) == 80


def test_resplit_keeps_copies_together_where_patients_are_unknown(tmp_path: Path) -> None:
    root = files(tmp_path / "data", [f"{s}/{c}/{s}{i}.png" for s in ("train", "test") for c in "ab" for i in range(20)])
    for file in root.glob("*/*/*.png"):  # every picture of train is in test too
        file.write_text(f"{file.parent.name}{file.stem.removeprefix('train').removeprefix('test')}")

    def contents(splits: Splits) -> list[set[str]]:
        return [{(root / s.path).read_text() for s in part} for part in splits.samples.values()]

    train, _, test = contents(kept := split(root))
    assert len(train & test) > 30 and any("copies in train are kept in one split" in note for note in kept.notes)
    shutil.copytree(root / "train", root / "val")
    assert not any("kept in one split" in note for note in split(root).notes)  # the folders stay as they are
    train, val, test = contents(split(root, resplit=True))
    assert not (train & test or train & val or val & test) and len(train | val | test) == 40


@pytest.mark.parametrize("apart", [False, True])
def test_copies_in_two_sites_are_not_said_to_be_in_one_split(tmp_path: Path, apart: bool) -> None:
    root, table = files(tmp_path / "cells", [f"{i}.png" for i in range(96)]), tmp_path / "labels.csv"
    rows = [f"{i}.png,{'ab'[i % 2]},{['north', 'south'][i // 2 % 2 if apart else i // 48]}" for i in range(96)]
    table.write_text("\n".join(["path,label,hospital", *rows]))
    for i in range(96):
        (root / f"{i}.png").write_text(f"{i // 4}:{i % 2}")  # 0 and 2, 1 and 3, 4 and 6, ...
    splits = split(root, labels=str(table), sites="hospital")
    train, val, test = ({(root / s.path).read_text() for s in part} for part in splits.samples.values())
    assert not train & val and bool((train | val) & test) == apart
    (note,) = [note for note in splits.notes if "copies" in note]
    kept = "48 images are byte for byte copies of another; copies are kept in one split"
    other = ", but not those with different values of hospital, since each value is a fold"
    assert note == kept + other * apart


def test_a_guess_is_shown_and_used_only_when_confirmed(cells: Path, tmp_path: Path) -> None:
    splits = split(cells)
    assert splits.guess is not None and splits.guess.patients == 20 and not splits.grouped
    named = split(cells, groups="names")
    assert named.patients == "by file name (--groups names)" and named.guess is None
    assert named.samples == split(cells, group_regex=r"(P\d+)_").samples
    silent = files(tmp_path / "data", [f"{c}/{i}.png" for c in "ab" for i in range(9)])
    with pytest.raises(DataError, match="do not identify patients"):
        split(silent, groups="names")


def test_patients_of_dicom_files(tmp_path: Path) -> None:
    root = tmp_path / "data"
    for i in range(24):
        (root / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        write(root / "ab"[i % 2] / f"{i}.dcm", RAMP, PatientID=f"ID {i % 8}", PatientName="Nobody^At all")
    splits = split(root, groups="dicom", val_fraction=0.25, test_fraction=0.25)
    groups = {s.path: s.group for part in splits.samples.values() for s in part}
    assert groups == {f"{'ab'[i % 2]}/{i}.dcm": f"ID {i % 8}" for i in range(24)} and splits.shared() == {}
    utf8 = "Müller 1".encode().decode("latin-1")  # as it is read where no character set is named
    for tags in ({"SpecificCharacterSet": "ISO_IR 192", "PatientID": "Müller 1"}, {"PatientID": utf8}):
        assert patient_id(write(tmp_path / "one.dcm", RAMP, **tags)) == ("Müller 1", "PatientID is missing or empty")
    assert patient_id(write(tmp_path / "one.dcm", RAMP, PatientID="Müller 2"))[0] == "Müller 2"  # as Latin-1
    assert patient_id(Path("/dev/null")) == ("", "a device, expected a file")
    write(root / "a" / "nobody.dcm", RAMP, PatientID="")
    Image.new("L", (8, 8)).save(root / "b" / "drawn.png")
    with pytest.raises(DataError, match="no PatientID in 2 of 26 files") as error:
        split(root, groups="dicom")
    assert "a/nobody.dcm: PatientID is missing" in str(error.value) and "b/drawn.png: not a DICOM" in str(error.value)


def test_a_dicom_file_that_cannot_be_read_needs_no_patient(tmp_path: Path) -> None:
    """It is reported, or left out if asked, when the images are read; one that can be read needs a patient."""
    root = tmp_path / "data"
    for i in range(16):
        (root / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        write(root / "ab"[i % 2] / f"{i}.dcm", RAMP, PatientID=f"ID {i % 8}")
    (root / "a" / "broken.dcm").write_bytes((root / "a" / "0.dcm").read_bytes()[:200])
    (root / "b" / "empty.dcm").touch()
    splits = split(root, groups="dicom")
    groups = {s.path: s.group for part in splits.samples.values() for s in part}
    assert groups["a/2.dcm"] == "ID 2" and groups["a/broken.dcm"] == "a/broken.dcm"
    write(root / "a" / "nobody.dcm", RAMP)
    with pytest.raises(DataError, match=r"no PatientID in 1 of 19 files:\na/nobody.dcm"):
        split(root, groups="dicom", on_bad_file="skip")


def test_links_in_a_circle_of_two_end(tmp_path: Path) -> None:
    root = files(tmp_path / "data", ["a/0.png", "b/1.png"])
    (root / "a" / "x").symlink_to(root / "b", target_is_directory=True)
    (root / "b" / "y").symlink_to(root / "a", target_is_directory=True)
    found = image_names(root)
    assert {"a/0.png", "a/x/1.png", "b/1.png", "b/y/0.png"} <= set(found) and len(found) < 20


def test_copies_stay_in_one_split_where_patients_are_unknown(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(40):  # every content three times, under names that do not tell
            (tmp_path / name / f"{i:02}.png").write_text(f"{name}{i % 20 if i < 30 else i} {'x' * 20_000} {i % 20}")
    splits = split(tmp_path)
    content = {
        name: {(tmp_path / sample.path).read_text() for sample in samples} for name, samples in splits.samples.items()
    }
    assert not content["train"] & content["test"] and not content["train"] & content["val"]
    assert not content["val"] & content["test"]
    assert sum(map(len, splits.samples.values())) == 80
    assert any("byte for byte copies" in told for told in splits.notes)
    named = split(tmp_path, group_regex=r"(\d+)\.png")  # then patients are what no split divides, and copies may be
    assert not any("copies" in told for told in named.notes)
    folds = [split(tmp_path, folds=4, fold=k + 1) for k in range(4)]
    tests = [{(tmp_path / s.path).read_text() for s in fold.samples["test"]} for fold in folds]
    assert sum(map(len, tests)) == len(set().union(*tests))  # no content in two folds


def test_copies_are_found_by_content_alone(tmp_path: Path) -> None:
    long = "x" * 50_000
    contents = ["one", "two", "one", "", "", f"{long}A{long}", f"{long}B{long}", f"{long}A{long}"]
    for i, text in enumerate(contents):
        (tmp_path / f"{i}.png").write_text(text)
    names = [f"{i}.png" for i in range(len(contents))] + ["gone.png"]
    assert first_copies(tmp_path, names).tolist() == [0, 1, 0, 3, 4, 5, 6, 5, 8]


def test_another_column_of_splits_is_named_where_the_usual_one_leaks(tmp_path: Path) -> None:
    """Of 12 images of 4 patients, `split` divides each patient, `by eye` none, `half` one, and `cohort` has no test."""
    names = [f"p{i // 3}_{i}.png" for i in range(12)]
    root = files(tmp_path / "data", names)
    rows = [
        f"{name},{'ab'[i % 2]},p{i // 3},{('train', 'val', 'test')[i % 3]},train,"
        f"{('train', 'train', 'val', 'test')[i // 3]},{('train', 'val', 'val', 'test')[(i + 1) // 4]}"
        for i, name in enumerate(names)
    ]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["path,label,patient,split,cohort,by eye,half", *rows]), encoding="utf-8")
    with pytest.raises(DataError, match="4 patients are in two splits") as error:
        split(root, labels=str(table))
    assert error.value.fix.startswith("--split-column 'by eye', whose splits share no patient; or --resplit")
    made = split(root, labels=str(table), split_column="by eye")
    assert {name: {s.group for s in samples} for name, samples in made.samples.items()} == {
        "train": {"p0", "p1"}, "val": {"p2"}, "test": {"p3"},
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"--split-column eye: .* has no such column; it has 'path', 'label'"):
        split(root, labels=str(table), split_column="eye")
    with pytest.raises(UsageError, match="--split-column"):
        split(root, split_column="by eye")


def test_a_site_of_validation_alone_is_no_fold(tmp_path: Path) -> None:
    """The folds divide the images of train: a fold for a site without any would fail."""
    root, table = tmp_path / "data", tmp_path / "table.csv"
    root.mkdir()
    rows = ["path,label,split,site"]
    for i in range(12):
        Image.new("L", (8, 8), i).save(root / f"{i}.png")
        rows.append(f"{i}.png,{'ab'[i % 2]},{'val,C' if i >= 8 else 'train,' + 'AB'[i // 2 % 2]}")
    table.write_text("\n".join(rows))
    config = DataConfig(root=str(root), labels=str(table), sites="site")
    assert site_names(config) == ["A", "B"]
    made = [make_splits(config.model_copy(update={"fold": fold})).made["test"] for fold in (1, 2)]
    assert made == ["site A, fold 1 of 2", "site B, fold 2 of 2"]
    table.write_text("\n".join(rows).replace("train,B", 'train,"B,\n north"'))
    assert site_names(config) == ["A", "B, north"]


def test_a_site_that_is_held_out_whole_is_no_fold(tmp_path: Path) -> None:
    """A fold has the name of the site whose images it tests, whichever patients the hold-out takes."""
    root, whole = files(tmp_path / "data", [f"{i:02}.png" for i in range(68)]), 0
    rows = [f"{i:02}.png,{'ab'[i % 2]},p{i // 4},{'A' if i < 4 else 'BC'[i // 4 % 2]}" for i in range(68)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,patient,site", *rows]))
    for seed in range(4):  # site A has one patient
        settings = {"labels": str(tmp_path / "t.csv"), "sites": "site", "hold_out": 0.3, "split_seed": seed}
        folds = enumerate(named := site_names(config_of(root, **settings)), 1)
        tested = [{s.columns for s in split(root, **settings, fold=fold).samples["test"]} for fold, _ in folds]
        assert tested == [{(name,)} for name in named] and len(named) > 1
        whole += len(named) < 3
        with pytest.raises(UsageError, match=f"the column site has {len(named)} values"):
            split(root, **settings, fold=len(named) + 1)
    assert 0 < whole < 4
