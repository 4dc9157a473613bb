"""MedMNIST files open as they are: the same pixels as NumPy reads, never more of them in memory than is looked at."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import pickle
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import COLOURS, TINY, TINY_NETWORK, TINY_SETS, Answer, Recorder, draw_image
from PIL import Image

from vitmed import evaluate, pretrain, train
from vitmed.core.data_config import DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.pretrain_config import PretrainDataConfig
from vitmed.data.pretraining_splits import pretraining_splits
from vitmed.data.split_names import SPLITS
from vitmed.data.splits import make_splits
from vitmed.imaging import npz
from vitmed.imaging.decode import read_header, read_image, read_size
from vitmed.training import run_setup

RUN = Callable[..., Answer]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    npz._open.cache_clear()
    return tmp_path / "cache"


def arrays(
    colour: bool = True, classes: int = 3, counts: tuple[int, ...] = (12, 6, 6), seed: int = 0
) -> dict[str, Any]:
    """What a file of MedMNIST holds: a blob of the class's colour on noise."""
    rng, colours, content = np.random.default_rng(seed), list(COLOURS.values()), {}
    for name, count in zip(SPLITS, counts, strict=True):
        labels = np.arange(count) % classes
        images = np.stack([draw_image(rng, colours[k % len(colours)]) for k in labels])
        content[f"{name}_images"] = images if colour else images[..., 0]
        content[f"{name}_labels"] = labels[:, None].astype(np.uint8)
    return content


def save(path: Path, compressed: bool = True, **content: Any) -> Path:
    (np.savez_compressed if compressed else np.savez)(path, **content)
    return path


@pytest.mark.parametrize("header", ["{'descr': (", "-" * 9000 + "1", "(" * 9000])
def test_a_header_that_is_no_header_is_refused_by_name(tmp_path: Path, header: str) -> None:
    """NumPy parses it as Python, which fails in ways of its own."""
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as archive:
        for member in ("test_images.npy", "test_labels.npy"):
            archive.writestr(member, b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    with pytest.raises(DataError, match=r"mine\.npz: test_images\.npy is not an array"):
        npz.open_npz(tmp_path / "mine.npz")


def test_an_offset_outside_the_file_is_damage_and_no_full_disk(tmp_path: Path) -> None:
    file = save(tmp_path / "mine.npz", **arrays())
    data = bytearray(file.read_bytes())
    end = data.rindex(b"PK\x05\x06")
    data[end + 16 : end + 20] = b"\xf0\xff\xff\x7f"  # where the list of members begins
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"mine\.npz: not a whole \.npz file"):
        npz.open_npz(file)


@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize("compressed", [True, False])
def test_every_image_is_what_numpy_reads(tmp_path: Path, colour: bool, compressed: bool) -> None:
    content = arrays(colour)
    file = save(tmp_path / "mine.npz", compressed, **content)
    splits = make_splits(DataConfig(root=str(file)))
    assert splits.classes == ("0", "1", "2") and splits.root == file and not splits.grouped
    assert splits.made == {name: f"folder {name}/" for name in SPLITS}  # its own splits, as they are
    for name in SPLITS:
        samples = sorted(splits.samples[name], key=lambda sample: sample.path.rpartition("/")[2])  # as in the file
        images = content[f"{name}_images"]
        assert [s.path for s in samples[:2]] == [f"{name}/0/000000", f"{name}/1/000001"]
        assert [s.label for s in samples] == content[f"{name}_labels"][:, 0].tolist()
        for sample, pixels in zip(samples, images, strict=True):
            path = file / sample.path
            assert np.array_equal(np.asarray(read_image(path, 3 if colour else 1)), pixels)
            assert npz.content(path) == pixels.tobytes()
            assert read_size(path) == (20, 20)
    facts = read_header(file / "val/0/000000")
    assert (facts.format, facts.mode, facts.bits) == ("NPZ", "RGB" if colour else "L", 8)


def test_grey_becomes_colour_and_back_as_for_any_image(tmp_path: Path) -> None:
    content = arrays(colour=False)
    file = save(tmp_path / "mine.npz", **content)
    grey = content["train_images"][0]
    assert np.array_equal(np.asarray(read_image(file / "train/0/000000", 3)), np.stack([grey] * 3, axis=-1))


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("bloodmnist_224.npz", ("basophil", "eosinophil", "erythroblast")),
        ("BloodMNIST.NPZ", ("basophil", "eosinophil", "erythroblast")),
        ("organamnist_64.npz", ("bladder", "femur-left", "femur-right")),
        ("bloodmnistlike.npz", ("0", "1", "2")),
        ("pneumoniamnist.npz", ("0", "1", "2")),  # more classes than the set of that name has
    ],
)
def test_the_names_of_the_classes(tmp_path: Path, name: str, classes: tuple[str, ...]) -> None:
    save(tmp_path / "file.npz", **arrays()).rename(tmp_path / name)
    assert make_splits(DataConfig(root=str(tmp_path / name))).classes == classes


def test_classes_are_sorted_by_name_as_everywhere(tmp_path: Path) -> None:
    content = arrays(classes=3)
    for name in SPLITS:
        content[f"{name}_labels"] = content[f"{name}_labels"][:, 0].astype(np.int64) * 5  # 0, 5, 10; of shape (N,)
    splits = make_splits(DataConfig(root=str(save(tmp_path / "mine.npz", **content))))
    assert splits.classes == ("0", "10", "5")
    found = {s.path: s.label for s in splits.samples["val"]}
    assert [found[path] for path in ("val/0/000000", "val/5/000001", "val/10/000002")] == [0, 2, 1]


def test_a_single_class_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds one class folder, '0'; a classifier needs two"):
        make_splits(DataConfig(root=str(save(tmp_path / "mine.npz", **arrays(classes=1)))))


def test_what_the_file_does_not_bring_is_split_off(tmp_path: Path) -> None:
    content = {k: v for k, v in arrays(counts=(30, 6, 6)).items() if k.startswith("train")}
    splits = make_splits(DataConfig(root=str(save(tmp_path / "mine.npz", **content))))
    assert {name: len(part) for name, part in splits.samples.items()} == {"train": 21, "val": 3, "test": 6}


def test_pretraining_leaves_the_test_out_with_and_without_labels(tmp_path: Path) -> None:
    file = save(tmp_path / "mine.npz", **arrays())
    for unlabelled in (False, True):
        splits, held_out = pretraining_splits(PretrainDataConfig(root=str(file), unlabelled=unlabelled))
        assert {name: len(part) for name, part in splits.samples.items()} == {"train": 12, "val": 6} and held_out == 6
        assert not any(s.path.startswith("test/") for part in splits.samples.values() for s in part)


# --- a training run, and what comes after it


@pytest.mark.usefixtures("no_figures")
def test_train_then_evaluate(tmp_path: Path, vitmed: RUN, cache: Path) -> None:
    content = arrays()
    file = save(tmp_path / "bloodmnist.npz", **content)
    before, ui = file.read_bytes(), Recorder()
    result = train(file, output=tmp_path / "runs", name="a", sets=TINY_SETS, ui=ui, **TINY)
    assert file.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == [
        "bloodmnist.npz",
        "cache",
        "runs",
    ]
    assert any("patients are unknown" in line for line in ui.warned)
    rows = list(csv.DictReader(io.StringIO((result.folder / "splits.csv").read_text())))
    assert next(row for row in rows if row["path"] == "train/1/000001") == {
        "path": "train/1/000001",
        "sha256": hashlib.sha256(content["train_images"][1].tobytes()).hexdigest(),
        "class": "eosinophil",
        "group": "",
        "split": "train",
    }
    assert result.test.predictions.paths[0] == "test/0/000000"
    again = evaluate(result.checkpoint, ui=Recorder(), resamples=10)
    assert np.array_equal(again.predictions.logits, result.test.predictions.logits)
    moved = file.rename(tmp_path / "moved.npz")  # its name tells the classes no more, its content does not change
    same = evaluate(result.checkpoint, data=moved, ui=(heard := Recorder()), resamples=10)
    assert np.array_equal(same.predictions.logits, again.predictions.logits)
    assert any("contains the images of the run" in line for line in heard.said)
    with pytest.raises(DataError, match="--data"):
        evaluate(result.checkpoint, ui=Recorder())


@pytest.mark.usefixtures("no_figures")
def test_evaluate_on_another_file(tmp_path: Path) -> None:
    file = save(tmp_path / "bloodmnist.npz", **arrays())
    best = train(file, output=tmp_path / "runs", sets=TINY_SETS, ui=Recorder(), **TINY).checkpoint
    assert best is not None
    (tmp_path / "other").mkdir()
    other = save(tmp_path / "other" / "bloodmnist_28.npz", **arrays(seed=1))
    result = evaluate(best, data=other, ui=Recorder(), resamples=10)
    assert len(result.predictions) == 6 and result.predictions.classes[0] == "basophil"
    leaking = arrays(seed=1)
    leaking["test_images"][0] = arrays()["train_images"][0]
    save(other, **leaking)
    with pytest.raises(DataError, match="1 of 6 images was used to make this model"):
        evaluate(best, data=other, ui=Recorder())
    save(other, **arrays(seed=1, classes=2) | {"test_labels": np.full((6, 1), 7)})
    with pytest.raises(DataError, match="does not know class platelet"):
        evaluate(best, data=other, ui=Recorder())


@pytest.mark.usefixtures("no_figures")
def test_plan_probe_and_pretrain(tmp_path: Path, vitmed: RUN) -> None:
    file = save(tmp_path / "mine.npz", **arrays())
    answer = vitmed("plan", file, "--output", tmp_path / "plan.yaml", "--device", "cpu", "--epochs", "1")
    assert answer.code == 0 and "12 training" in answer.err, answer.err
    assert "root: mine.npz" in (tmp_path / "plan.yaml").read_text()
    answer = vitmed("probe", file, "-o", tmp_path / "runs", "--device", "cpu", "--image-size", "16")
    assert answer.code == 0 and "AUROC" in answer.err.upper(), answer.err
    kept = {k: v for k, v in TINY.items() if k != "lr"}
    kept["sets"] = ("mae.decoder_width=16", "mae.decoder_depth=1", "mae.decoder_heads=1", *TINY_NETWORK)
    result = pretrain(file, output=tmp_path / "runs", ui=Recorder(), **kept)
    assert result.encoder.is_file()


def test_an_image_in_two_splits_is_noticed(tmp_path: Path) -> None:
    content = arrays()
    content["test_images"][0] = content["train_images"][0]
    splits = make_splits(DataConfig(root=str(save(tmp_path / "mine.npz", **content))))
    from vitmed.imaging.preprocessing import Preprocessing

    preprocessing = Preprocessing(16, 3, "pad", "imagenet")
    run_setup.check_images(splits, preprocessing, DataConfig(), ui := Recorder())
    assert any("identical copies of 1 test image are in another split" in line for line in ui.warned)


# --- what is refused, and how


def member(array: np.ndarray | None = None, raw: bytes = b"") -> bytes:
    if array is None:
        return raw
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=(1, 0), allow_pickle=True)
    return stream.getvalue()


def header(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


CHEST = (
    "atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia", "pneumothorax",
    "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia",
)  # fmt: skip  # the order of medmnist/info.py


def chest(counts: tuple[int, ...] = (40, 20, 20), findings: int = 14) -> dict[str, Any]:
    """What ChestMNIST holds: labels (N, 14) uint8."""
    content, rng = arrays(colour=False, counts=counts), np.random.default_rng(0)
    for name, count in zip(SPLITS, counts, strict=True):
        content[f"{name}_labels"] = (rng.random((count, findings)) < 0.3).astype(np.uint8)
    return content


@pytest.mark.parametrize(
    ("name", "findings", "names"),
    [
        ("chestmnist_64.npz", 14, CHEST),
        ("mine.npz", 3, ("finding 0", "finding 1", "finding 2")),
        ("chestmnist.npz", 3, ("finding 0", "finding 1", "finding 2")),  # other findings than the set of that name
    ],
)
def test_the_findings_of_chestmnist(tmp_path: Path, name: str, findings: int, names: tuple[str, ...]) -> None:
    content = chest(findings=findings)
    file = save(tmp_path / name, **content)
    splits = make_splits(DataConfig(root=str(file)))
    assert splits.classes == names and splits.target.kind == "findings"
    assert splits.made == {part: f"folder {part}/" for part in SPLITS}
    for part in SPLITS:
        for sample in splits.samples[part]:
            split, index = sample.path.split("/")
            assert split == part and sample.targets == tuple(content[f"{part}_labels"][int(index)])
            assert npz.content(file / sample.path) == content[f"{part}_images"][int(index)].tobytes()
    chosen = make_splits(DataConfig(root=str(file), findings=[names[2], names[0]]))
    assert chosen.classes == (names[2], names[0])
    for wrong in ("train/0/000000", "train/000099", "train/-1", "train"):
        with pytest.raises(DataError, match="no such image"):
            npz.read(file / wrong)


def test_findings_that_are_not_known(tmp_path: Path) -> None:
    content = {name: array.astype(np.float32) if "labels" in name else array for name, array in chest().items()}
    content["train_labels"][:5] = np.nan
    content["train_labels"][5:, 0] = -1
    content["train_labels"][5:7, 0] = (0, 1)
    splits = make_splits(DataConfig(root=str(save(tmp_path / "chestmnist.npz", **content))))
    assert len(splits.samples["train"]) == 35
    assert any("5 images are left out, of which no label is known" in note for note in splits.notes)
    assert (splits.targets("train")[:, 0] == -1).sum() == 33


def test_the_grades_of_retinamnist(tmp_path: Path) -> None:
    """In the order of their numbers, also of ten and more."""
    splits = make_splits(DataConfig(root=str(save(tmp_path / "retinamnist.npz", **arrays(classes=5))), target="grades"))
    assert splits.classes == ("0", "1", "2", "3", "4") and splits.target.kind == "grades"
    many = save(tmp_path / "mine.npz", **arrays(classes=11, counts=(22, 22, 22)))
    assert make_splits(DataConfig(root=str(many), target="grades")).classes == tuple(map(str, range(11)))
    assert make_splits(DataConfig(root=str(many))).classes[:3] == ("0", "1", "10")
    reverse = make_splits(DataConfig(root=str(many)), ordinal=[str(k) for k in reversed(range(11))])
    assert reverse.classes == tuple(map(str, reversed(range(11))))


def test_numbers_of_a_file(tmp_path: Path) -> None:
    content = arrays(counts=(40, 20, 20))
    ages = {f"{name}_labels": np.linspace(20, 80.5, len(content[f"{name}_images"])) for name in SPLITS}
    splits = make_splits(DataConfig(root=str(save(tmp_path / "mine.npz", **content | ages)), unit="years"))
    assert splits.target.kind == "number" and splits.classes == ("number",)
    for sample in splits.samples["val"]:
        assert sample.targets == (ages["val_labels"][int(sample.path.removeprefix("val/"))],)
    whole = save(tmp_path / "whole.npz", **arrays())
    assert make_splits(DataConfig(root=str(whole))).target.kind == "classes"
    number = make_splits(DataConfig(root=str(whole), target="number"))
    assert {(s.path.split("/")[1], s.targets) for s in number.samples["test"]} == {
        ("0", (0,)),
        ("1", (1,)),
        ("2", (2,)),
    }
    with pytest.raises(DataError, match="its labels are numbers or classes, not findings"):
        make_splits(DataConfig(root=str(whole), target="findings"))
    with pytest.raises(DataError, match="its labels are 14 findings, not grades"):
        make_splits(DataConfig(root=str(save(tmp_path / "chestmnist.npz", **chest())), target="grades"))


class Bad:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("hacked",)


GOOD = arrays()
LABELS = GOOD["train_labels"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"train_labels": np.eye(12, 14, dtype=np.uint8)}, "labels of several kinds"),
        ({"train_labels": np.eye(12, 14, dtype=np.uint8) * 2}, "14 findings holds 0 to 2"),
        ({"train_labels": LABELS[:-1]}, "expected numbers .12, 1"),
        ({"train_labels": LABELS.astype(np.complex64)}, "complex64"),
        ({"train_labels": LABELS + 0.5}, "labels of several kinds"),
        ({"train_labels": LABELS.astype(np.int64) - 1}, "holds -1 to 1"),
        ({"train_labels": LABELS.astype(np.uint64) + np.uint64(2**63)}, "expected classes"),
        ({"train_images": GOOD["train_images"].astype(np.uint16)}, "train_images is uint16"),
        ({"train_images": np.zeros((12, 28, 28, 28), np.uint8)}, "volume"),
        ({"train_images": np.zeros((12, 28, 28, 4), np.uint8)}, r"expected uint8 \(N, H, W\)"),
        (
            {"train_images": np.zeros((0, 28, 28), np.uint8), "train_labels": np.zeros((0, 1), np.uint8)},
            "expected uint8",
        ),
        ({"train_labels": np.array([Bad()] * 12, dtype=object)}, "Python objects"),
    ],
)
def test_arrays_of_another_kind_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = save(tmp_path / "mine.npz", **GOOD | changes)
    with pytest.raises(DataError, match=told) as error:
        make_splits(DataConfig(root=str(file)))
    assert "mine.npz" in str(error.value) and not Path("hacked").exists()


@pytest.mark.parametrize(
    ("images", "told"),
    [
        (header((12, 10**6, 10**6)), "12,000,000,000,"),  # terabytes, in a file of some hundred bytes
        (header((12, 20, 20)) + bytes(12 * 20 * 20 - 1), "4,800|4,928"),
        (header((12, 20, 20)) + bytes(12 * 20 * 20 + 1), "but has"),
        (header((2**62, 2**62, 4)), "but has"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "version 2.0"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 60_000, "not an array"),
        (b"no numpy at all", "not an array"),
        (b"", "not an array"),
        (pickle.dumps(Bad()), "not an array"),
    ],
)
def test_a_header_is_checked_before_anything_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: bytes, told: str, cache: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    file = zipped(tmp_path / "mine.npz", train_images=images, train_labels=member(LABELS))
    with pytest.raises(DataError, match=told):
        make_splits(DataConfig(root=str(file)))
    assert not list(cache.rglob("*.npy")) and not Path("hacked").exists()


def test_files_that_are_no_npz_of_the_kind(tmp_path: Path, vitmed: RUN) -> None:
    file = save(tmp_path / "a.npz", x=np.zeros(3))
    answer = vitmed("train", file)
    assert answer.code == 3 and "not a file of MedMNIST, it holds x.npy" in answer.err and "Traceback" not in answer.err
    (tmp_path / "b.npz").write_bytes(b"no zip")
    answer = vitmed("train", tmp_path / "b.npz")
    assert answer.code == 3 and "not a whole .npz file" in answer.err
    (tmp_path / "c.npz").touch()
    assert vitmed("train", tmp_path / "c.npz").code == 3
    assert vitmed("train", tmp_path / "none.npz").code == 3
    whole = save(tmp_path / "d.npz", **arrays()).read_bytes()
    (tmp_path / "d.npz").write_bytes(whole[: len(whole) // 2])
    assert vitmed("train", tmp_path / "d.npz").code == 3
    flipped = bytearray(whole)
    flipped[300] ^= 0xFF  # inside the first member: the CRC tells
    (tmp_path / "d.npz").write_bytes(flipped)
    answer = vitmed("train", tmp_path / "d.npz")
    assert answer.code == 3 and "Traceback" not in answer.err


def test_only_some_members(tmp_path: Path) -> None:
    content = arrays()
    del content["val_labels"]
    with pytest.raises(DataError, match="not a file of MedMNIST"):
        make_splits(DataConfig(root=str(save(tmp_path / "a.npz", **content))))
    content = {k: v for k, v in arrays().items() if k.startswith("test")}
    with pytest.raises(DataError, match="no train"):
        make_splits(DataConfig(root=str(save(tmp_path / "b.npz", **content))))


def test_patients_cannot_be_found_in_it(tmp_path: Path) -> None:
    file = save(tmp_path / "mine.npz", **arrays())
    with pytest.raises(DataError, match="does not identify patients"):
        make_splits(DataConfig(root=str(file), group_regex=r"\d+"))


@pytest.mark.parametrize(
    "path", ["train/0/000099", "train/1/000000", "nowhere/0/000000", "train/0", "train/0/x", "train/0/-12"]
)
def test_a_path_that_means_no_image(tmp_path: Path, path: str) -> None:
    file = save(tmp_path / "mine.npz", **arrays())
    with pytest.raises(DataError, match=r"no such image in mine\.npz"):
        read_image(file / path)


def test_a_folder_of_such_a_name_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "set.npz" / "a"
    folder.mkdir(parents=True)
    Image.new("L", (4, 4)).save(folder / "x.png")
    assert read_image(folder / "x.png", 1).size == (4, 4) and not npz.inside(folder / "x.png")
    assert npz.content(folder / "x.png") == (folder / "x.png").read_bytes()


# --- the cache


def test_the_cache_is_private_and_holds_one_version(tmp_path: Path, cache: Path) -> None:
    file = save(tmp_path / "mine.npz", **arrays())
    make_splits(DataConfig(root=str(file)))
    places = [p for p in (cache / "npz").rglob("*") if p.is_dir()]
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o700 for p in [cache / "npz", *places]) and len(places) == 2
    inode = {p.name: p.stat().st_ino for p in cache.rglob("*.npy")}
    npz._open.cache_clear()
    make_splits(DataConfig(root=str(file)))
    assert {p.name: p.stat().st_ino for p in cache.rglob("*.npy")} == inode and len(inode) == 6  # not unpacked again
    other = arrays(seed=1)
    save(file, **other)
    os.utime(file, ns=(1, 1))
    assert npz.content(file / "train/0/000000") == other["train_images"][0].tobytes()
    assert len(list(cache.rglob("train_images.npy"))) == 1  # what the old one left is gone


def test_arrays_are_mapped_not_loaded(tmp_path: Path) -> None:
    file = save(tmp_path / "mine.npz", **arrays())
    assert all(isinstance(part.images, np.memmap) for part in npz.open_npz(file).values())


def test_what_a_killed_process_left_is_removed(tmp_path: Path, cache: Path) -> None:
    file = save(tmp_path / "mine.npz", **arrays())
    npz.open_npz(file)
    (place,) = (p for p in (cache / "npz").glob("*/*") if p.is_dir())
    part = place.rename(place.with_name("part"))
    (part / "train_images.npy").write_bytes(b"half")
    npz._open.cache_clear()
    assert npz.content(file / "train/0/000000") == arrays()["train_images"][0].tobytes()
    assert place.is_dir() and not part.exists()


def test_several_processes_unpack_once(tmp_path: Path) -> None:
    file = save(tmp_path / "mine.npz", **arrays(counts=(300, 6, 6)))
    code = "import sys, pathlib\nfrom vitmed.imaging import npz\nprint(len(npz.open_npz(pathlib.Path(sys.argv[1]))))"
    running = [subprocess.Popen([sys.executable, "-c", code, file], stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == [b"3"] * 3


def test_no_room_and_no_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    file = save(tmp_path / "mine.npz", **arrays())
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(npz.shutil, "disk_usage", lambda _: usage._replace(free=100))
        with pytest.raises(UsageError, match="VITMED_CACHE"):
            npz.open_npz(file)
    assert not list(cache.rglob("*.npy"))
    monkeypatch.setenv("VITMED_CACHE", str(file / "cache"))
    with pytest.raises(UsageError, match="VITMED_CACHE"):
        npz.open_npz(file)
