"""Which image belongs where: every layout, never a leak, never a changed file."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Trained, listing

from vitmed.core.config import DataConfig
from vitmed.core.dataset_cards import cards
from vitmed.core.errors import DataError, UsageError
from vitmed.core.load_config import load_config
from vitmed.data.patients import groups_of
from vitmed.data.samples import Splits
from vitmed.data.splits import make_splits


def touch(root: Path, tree: dict[str, int]) -> Path:
    """{"train/a": 3} -> root/train/a/0.png, 1.png, 2.png. The content is never looked at here."""
    for folder, count in tree.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            (root / folder / f"{i}.png").write_text(f"{folder} {i}")  # no copies of each other
    return root


def split(root: Path, **fields: object) -> Splits:
    return make_splits(DataConfig(root=str(root), **fields))  # type: ignore[arg-type]


def paths(splits: Splits) -> dict[str, set[str]]:
    return {name: {s.path for s in samples} for name, samples in splits.samples.items()}


def told(root: Path, **fields: object) -> str:
    with pytest.raises(DataError) as error:
        split(root, **fields)
    return str(error.value)


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [
        ("train", "val", "test"),
        ("training", "valid", "testing"),
        ("Train", "validation", "test"),
        ("TRAIN", "dev", "Test"),
        ("training_set", "valid data", "test-set"),
        ("TrainDataset", "Val_images", "testsplit"),
    ],
)
def test_every_spelling_of_the_split_folders(tmp_path: Path, train: str, val: str, test: str) -> None:
    tree = {f"{s}/{c}": n for s, n in ((train, 5), (val, 2), (test, 3)) for c in "ab"}
    splits = split(touch(tmp_path, tree))
    assert {name: splits.counts(name) for name in splits.samples} == {"train": [5, 5], "val": [2, 2], "test": [3, 3]}
    assert all(path.startswith(f"{val}/") for path in paths(splits)["val"])
    assert splits.made == {"train": f"folder {train}/", "val": f"folder {val}/", "test": f"folder {test}/"}


@pytest.mark.parametrize(
    ("tree", "shares", "counts"),  # of test, val and train
    [
        ({"a": 100, "b": 200}, {}, ([15, 30], [15, 30], [70, 140])),
        ({"a": 100, "b": 200}, {"val_fraction": 0.1, "test_fraction": 0.4}, ([40, 80], [10, 20], [50, 100])),
        (
            {"train/a": 100, "train/b": 40, "test/a": 7, "test/b": 9},
            {"val_fraction": 0.2},
            ([7, 9], [20, 8], [80, 32]),
        ),
        (
            {"train/a": 100, "train/b": 40, "valid/a": 7, "valid/b": 9},
            {"test_fraction": 0.1},
            ([10, 4], [7, 9], [90, 36]),
        ),
        ({"train/a": 20, "train/b": 20}, {}, ([3, 3], [3, 3], [14, 14])),
        ({"a/p1/left": 10, "a/p2": 10, "b": 20}, {}, ([3, 3], [3, 3], [14, 14])),  # below a class too
    ],
)
def test_what_the_folder_does_not_split_is_split(
    tmp_path: Path, tree: dict[str, int], shares: dict[str, float], counts: tuple[list[int], ...]
) -> None:
    splits = split(touch(tmp_path, tree), **shares)
    assert tuple(splits.counts(name) for name in ("test", "val", "train")) == counts
    for name, folder in (("test", "test"), ("val", "valid")):
        if f"{folder}/a" in tree:
            assert splits.made[name] == f"folder {folder}/"
        else:
            assert "seed 0" in splits.made[name] and ("20%" in splits.made[name]) == ("test/a" in tree)
            assert "train/a" not in tree or all(path.startswith("train/") for path in paths(splits)[name])


@pytest.mark.parametrize("layout", ["", "train/"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_image_is_in_two_splits_and_none_is_lost(tmp_path: Path, layout: str, seed: int) -> None:
    touch(tmp_path, {f"{layout}a": 13, f"{layout}b": 31, f"{layout}c": 5})
    found = paths(split(tmp_path, split_seed=seed))
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 49
    labels = {s.label for s in split(tmp_path, split_seed=seed).samples["test"]}
    assert labels == {0, 1, 2}


def test_the_seed_decides_and_nothing_else(tmp_path: Path) -> None:
    touch(tmp_path / "one", {"a": 40, "b": 40})
    first = paths(split(tmp_path / "one", split_seed=3))
    assert paths(split(tmp_path / "one", split_seed=3)) == first
    assert paths(split(tmp_path / "one", split_seed=4)) != first
    for folder in ("b", "a"):  # another order of making, another place, other times
        (tmp_path / "two" / folder).mkdir(parents=True)
        for i in np.random.default_rng(1).permutation(40):
            shutil.copy(tmp_path / "one" / folder / f"{i}.png", tmp_path / "two" / folder)
    assert paths(split(tmp_path / "two", split_seed=3)) == first


def test_test_and_val_are_drawn_apart(tmp_path: Path) -> None:
    """Were both taken by the same permutation, a larger test set would only eat the old validation set in order."""
    touch(tmp_path, {"a": 40, "b": 40})
    found = [paths(split(tmp_path, test_fraction=f))["test"] for f in (0.1, 0.3)]
    assert found[0] < found[1]  # a larger test set holds the smaller one


def test_classes_stand_by_name_in_every_split(tmp_path: Path) -> None:
    names = ["2", "10", "B", "a", "ä", "Z z"]
    splits = split(touch(tmp_path, {f"{s}/{c}": 3 for c in names for s in ("train", "val", "test")}))
    assert splits.classes == ("10", "2", "B", "Z z", "a", "ä") == tuple(sorted(names))
    assert {name: splits.counts(name) for name in splits.samples} == dict.fromkeys(("train", "val", "test"), [3] * 6)
    for samples in splits.samples.values():
        assert all(s.path.split("/")[1] == splits.classes[s.label] for s in samples)
        assert [s.path for s in samples] == [s.path for s in sorted(samples, key=lambda s: (s.label, s.path))]


def test_patients_are_never_split(tmp_path: Path) -> None:
    for i in range(300):
        folder = tmp_path / ("a" if i % 3 else "b")
        folder.mkdir(exist_ok=True)
        (folder / f"P{i % 20:02}_{i}.png").write_text(str(i))
    for seed in range(3):
        splits = split(tmp_path, group_regex=r"(P\d+)_", split_seed=seed)
        groups = {name: {s.group for s in samples} for name, samples in splits.samples.items()}
        assert sum(map(len, groups.values())) == len(set.union(*groups.values())) == 20
        assert splits.grouped and all(len(g) >= 2 for g in groups.values())
        assert all(s.group == s.path[2:5] for samples in splits.samples.values() for s in samples)
        assert "by patient" in splits.made["test"]
    assert not split(tmp_path).grouped


def test_the_group_is_the_bracket_or_the_match_and_must_be_found(tmp_path: Path) -> None:
    touch(tmp_path, {"a/p1": 2, "a/p2": 2, "a/p3": 2, "a/p4": 2, "b/p5": 2, "b/p6": 2, "b/p7": 2, "b/p8": 2})
    for expression, group in ((r"/(p\d)/", "p1"), (r"p\d", "p1"), (r"p(\d)", "1")):
        samples = [s for part in split(tmp_path, group_regex=expression).samples.values() for s in part]
        assert next(s.group for s in samples if s.path.startswith("a/p1/")) == group
    assert "a/p1/0.png" in told(tmp_path, group_regex=r"patient(\d+)")
    few = touch(tmp_path / "few", {"a/p1": 20, "b/p1": 20})
    assert "1 patient identified from the file paths (--group-regex): '1'; '1' alone" in told(few, group_regex=r"p(\d)")
    assert "too few" in told(touch(few, {"b/p2": 20}), group_regex=r"p\d")
    last = touch(tmp_path / "digits", {"a/x1": 9, "b/x1": 9, "a/x21": 9, "b/x21": 9, "a/x12": 9, "b/x12": 9})
    assert "2 patients identified from the file paths (--group-regex): '1', '2'; " in told(last, group_regex=r"x(\d)")
    with pytest.raises(UsageError, match="not a regular expression"):
        split(tmp_path, group_regex="(")


def test_max_train_takes_every_class_in_proportion(tmp_path: Path) -> None:
    touch(tmp_path, {f"{s}/{c}": n for s in ("train", "val", "test") for c, n in (("a", 80), ("b", 20), ("c", 1))})
    splits = split(tmp_path, max_train=20)
    assert splits.counts("train") == [15, 4, 1]  # at least one of each
    assert splits.counts("val") == splits.counts("test") == [80, 20, 1]
    assert paths(splits) == paths(split(tmp_path, max_train=20)) != paths(split(tmp_path, max_train=20, split_seed=1))
    assert split(tmp_path, max_train=10_000).counts("train") == [80, 20, 1]


def test_hidden_files_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, {"a": 9, "b": 9, ".git": 3, "a/.thumbs": 3})
    for name in (".DS_Store", "._0.png", "notes.txt", "Thumbs.db"):
        (tmp_path / "a" / name).write_text("x")
    (tmp_path / "README.md").write_text("x")
    splits = split(tmp_path)
    assert splits.classes == ("a", "b") and sum(map(len, splits.samples.values())) == 18


def test_links_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    touch(tmp_path / "store", {"images": 10, "more": 10})
    root = tmp_path / "root"
    (root / "b").mkdir(parents=True)
    (root / "a").symlink_to(tmp_path / "store" / "images", target_is_directory=True)
    for i in range(10):
        (root / "b" / f"{i}.png").symlink_to(tmp_path / "store" / "more" / f"{i}.png")
    assert sum(map(len, split(root).samples.values())) == 20
    (tmp_path / "store" / "images" / "again").symlink_to(tmp_path / "store" / "images", target_is_directory=True)
    (root / "b" / "up").symlink_to(root, target_is_directory=True)
    found = [path for part in paths(split(root)).values() for path in part]
    assert sum(path.startswith("a/") for path in found) == 10
    assert len({Path(root, path).resolve() for path in found if path.startswith("b/") and "up" not in path}) == 10


def test_names_of_every_kind(tmp_path: Path) -> None:
    names = [
        "with space",
        "naïve é ü",
        "細胞",
        "a" * 250,
        "semi;colon,comma",
        "quote'\"",
        "new\nline",
        "-dash",
        "%d{x}",
    ]
    for folder in ("one class", "zwölf"):
        for i in range(2):
            touch(tmp_path, {folder: 0})
            for name in names:
                (tmp_path / folder / f"{name[: 245 if i else 250]}{i}.png"[-255:]).write_text(
                    f"{folder}{name}{i}", errors="replace"
                )
    splits = split(tmp_path)
    found = set.union(*paths(splits).values())
    on_disk = {p.relative_to(tmp_path).as_posix() for p in tmp_path.glob("*/*")}
    assert found == on_disk and splits.classes == ("one class", "zwölf")


def test_no_such_folder(tmp_path: Path) -> None:
    assert "no such folder" in told(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    assert "is a file" in told(tmp_path / "file")
    with pytest.raises(UsageError):
        make_splits(DataConfig())


def test_folders_that_are_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "neither class folders nor images" in told(tmp_path / "empty")
    assert "3 images but no class folders" in told(touch(tmp_path / "loose", {"": 3}))
    assert "one class folder, 'a'" in told(touch(tmp_path / "one", {"a": 3}))
    assert all("--labels TABLE, with the columns path and label" in told(tmp_path / name) for name in ("loose", "one"))
    for inner in ("set", "archive/set"):  # as Kaggle's archives unpack
        message = told(touch(tmp_path / "deep" / inner[0], {f"{inner}/a": 3, f"{inner}/b": 3}))
        assert f"name {tmp_path / 'deep' / inner[0] / inner}" in message
    assert "no train folder" in told(touch(tmp_path / "notrain", {"val/a": 3, "val/b": 3, "test/a": 3, "test/b": 3}))
    both = touch(tmp_path / "both", {f"{s}/{c}": 3 for s in ("train", "val", "valid", "test") for c in "ab"})
    assert "val/ and valid/" in told(both)


def test_classes_that_are_too_small_or_missing(tmp_path: Path) -> None:
    message = told(touch(tmp_path / "empty", {"a": 9, "b": 0}))
    assert "'b' has no image" in message and "add images of a type that vitmed reads" in message
    message = told(touch(tmp_path / "single", {"a": 9, "b": 1}))
    assert "single/b" in message and "1 image" in message
    message = told(touch(tmp_path / "two", {"a": 9, "b": 2, "c": 1}))
    assert "class 'b' has 2 images, 'c' has 1 image, too few for train, val and test, which need one each" in message
    message = told(touch(tmp_path / "own test", {"train/a": 9, "train/b": 1, "test/a": 9, "test/b": 9}))
    assert "class 'b' has 1 image, too few for train and val, which need one each" in message
    assert sum(map(len, split(touch(tmp_path / "three", {"a": 9, "b": 3})).samples.values())) == 12
    full = {f"{s}/{c}": 3 for s in ("train", "val", "test") for c in "ab"}
    for part in ("train", "val", "test"):
        for how in ("empty", "missing"):
            root = touch(tmp_path / f"{part}-{how}", {k: v for k, v in full.items() if k != f"{part}/b"})
            if how == "empty":
                touch(root, {f"{part}/b": 0})
            message = told(root)
            one_class = (part, how) == ("train", "missing")  # train/ names the classes
            assert part in message and ("one class folder, 'a'" if one_class else "'b'") in message, message
    foreign = touch(tmp_path / "foreign", full | {"test/c": 2})
    message = told(foreign)
    assert "'c'" in message and "a, b" in message


def test_a_data_folder_is_only_read(trained: Trained) -> None:
    """Byte for byte, after training and two evaluations: no file made, changed or touched."""
    assert trained.before == trained.after == listing(trained.data)


@pytest.mark.skipif(os.name != "posix", reason="needs modes of files")
def test_a_read_only_folder_is_enough(tmp_path: Path) -> None:
    root = touch(tmp_path / "data", {"a": 9, "b": 9})
    folders = [root, *root.iterdir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert sum(map(len, split(root).samples.values())) == 18
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_real_images(data_dir: Path) -> None:
    splits = split(data_dir / "malaria")
    assert splits.classes == ("infected", "uninfected") and splits.counts("test") == [50, 50]
    assert sum(splits.counts("train")) + sum(splits.counts("val")) == 400


def test_patients_of_real_file_names(data_dir: Path) -> None:
    """The recipe's expression finds the patient in 18 shapes of file name, as a table that somebody else made says."""
    expression = load_config("malaria_gray50").data.group_regex
    with (data_dir / "malaria_gray50_patients.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 27_558 and len({row["patient"] for row in rows}) == 200
    assert expression is not None and expression == cards()["nih_malaria"].group_regex
    assert groups_of(expression, [row["path"] for row in rows]) == [row["patient"] for row in rows]
