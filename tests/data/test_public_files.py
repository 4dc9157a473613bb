"""CIFAR-10, MNIST and MedMNIST files as their owners give them: pixel for pixel what torchvision's readers say."""

from __future__ import annotations

import gzip
import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import recording
from PIL import Image
from torchvision import datasets as reference

from vitmed.commands.data import import_dataset
from vitmed.core.config import DataConfig
from vitmed.core.dataset_cards import cards
from vitmed.core.errors import DataError
from vitmed.data.convert import read_idx, read_public_files, write_folder
from vitmed.data.samples import Splits
from vitmed.data.splits import make_splits

CIFAR10 = cards()["cifar10"].classes
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def batches() -> dict[str, tuple[np.ndarray, list[int]]]:
    """File name -> (N, 3072) planes, and a label each."""
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    return {name: (RNG.integers(0, 256, (12, 3072), dtype=np.uint8), [k % 10 for k in range(12)]) for name in names}


def write_python(folder: Path, made: dict[str, tuple[np.ndarray, list[int]]]) -> None:
    """The python version, which torchvision reads: pickled dicts, in the folder that it expects."""
    where = folder / "cifar-10-batches-py"
    where.mkdir(parents=True)
    for name, (data, labels) in made.items():
        (where / name).write_bytes(pickle.dumps({"labels": labels, "data": data}))
    (where / "batches.meta").write_bytes(pickle.dumps({"label_names": list(CIFAR10)}))


def write_binary(folder: Path, made: dict[str, tuple[np.ndarray, list[int]]]) -> Path:
    """The binary version: records of a label byte and planes."""
    folder.mkdir(parents=True)
    for name, (data, labels) in made.items():
        records = np.hstack([np.array(labels, dtype=np.uint8)[:, None], data])
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


def theirs(kind: Any, root: Path, train: bool) -> Any:
    """torchvision's reader, its check of the files' hashes passed over: ours are not the published ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_check_integrity", "_check_exists"):
            if hasattr(kind, name):
                patch.setattr(kind, name, lambda self: True)
        patch.setattr("torchvision.datasets.cifar.check_integrity", lambda *args: True)
        return kind(root, train=train)


def test_cifar_as_torchvision_reads_it(tmp_path: Path) -> None:
    made = batches()
    write_python(tmp_path, made)
    found = read_public_files(write_binary(tmp_path / "bin", made))
    assert found is not None and len(found.parts["train"].labels) == 60
    for name in ("train", "test"):
        expected = theirs(reference.CIFAR10, tmp_path, name == "train")
        images, labels = found.parts[name]
        assert np.array_equal(images, expected.data) and labels.tolist() == list(expected.targets)
        assert [found.classes[k] for k in range(10)] == expected.classes


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_mnist(folder: Path, packed: bool, dot: bool = False) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    made = {}
    for prefix, count in (("train", 40), ("t10k", 20)):
        made[prefix] = RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for kind, array in (("images-idx3", made[prefix]), ("labels-idx1", np.arange(count, dtype=np.uint8) % 10)):
            name = f"{prefix}-{kind.replace('-', '.') if dot else kind}-ubyte"
            (folder / name).write_bytes(idx(array))
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
                (folder / name).unlink()
    return made


@pytest.mark.parametrize(("packed", "dot"), [(True, False), (False, False), (False, True)])
def test_mnist_as_torchvision_reads_it(tmp_path: Path, packed: bool, dot: bool) -> None:
    """Packed or not, and with a dot in its names."""
    write_mnist(tmp_path / "ours", packed, dot)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for file in (tmp_path / "ours").iterdir():
        content = file.read_bytes()
        (raw / file.name.removesuffix(".gz").replace(".idx", "-idx")).write_bytes(
            gzip.decompress(content) if packed else content
        )
    found = read_public_files(tmp_path / "ours")
    assert found is not None and found.classes == {k: str(k) for k in range(10)}
    for name in ("train", "test"):
        expected = theirs(reference.MNIST, tmp_path, name == "train")
        assert np.array_equal(found.parts[name].images, expected.data.numpy())
        assert np.array_equal(found.parts[name].labels, expected.targets.numpy())


def unpacked(folder: Path, **arrays: np.ndarray) -> Path:
    """The arrays of a file of MedMNIST, as they lie in a folder once it is unpacked."""
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


@pytest.mark.parametrize("colour", [True, False])
def test_what_is_written_is_read_back_without_loss(tmp_path: Path, colour: bool) -> None:
    images = RNG.integers(0, 256, (20, 9, 7, 3) if colour else (20, 9, 7), dtype=np.uint8)
    labels = (np.arange(20) % 2).astype(np.uint8)[:, None]
    arrays = {"train_images": images, "train_labels": labels, "test_images": images[:4] + 1, "test_labels": labels[:4]}
    found = read_public_files(unpacked(tmp_path / "arrays", **arrays), tmp_path / "pneumoniamnist.npz")
    assert found is not None
    write_folder(found, tmp_path / "out")
    expected = {
        f"{split}/{('normal', 'pneumonia')[k % 2]}/{k:06d}.png": arrays[f"{split}_images"][k]
        for split, count in (("train", 20), ("test", 4))
        for k in range(count)
    }
    written = {p.relative_to(tmp_path / "out").as_posix(): p for p in (tmp_path / "out").rglob("*.png")}
    assert sorted(written) == sorted(expected)
    assert all(np.array_equal(np.asarray(Image.open(written[name])), expected[name]) for name in expected)


def test_other_folders_are_not_taken_for_a_set(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "a" / "x.png")
    assert read_public_files(tmp_path) is None and read_public_files(tmp_path / "a" / "x.png") is None


# --- pickles


class Runs:
    def __init__(self, function: Any, *args: Any):
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


# --- files that are wrong


def test_missing_and_damaged_batches(tmp_path: Path) -> None:
    folder = write_binary(tmp_path / "bin", batches())
    whole = (folder / "data_batch_2.bin").read_bytes()
    for content, told in (
        (whole[:-1], "no whole number of records"),
        (b"", "no whole"),
        (b"\xff" + whole[1:], "label 255"),
    ):
        (folder / "data_batch_2.bin").write_bytes(content)
        with pytest.raises(DataError, match=told):
            read_public_files(folder)
    (folder / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_2\.bin is missing"):
        read_public_files(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        idx(np.zeros((2, 3, 3), np.uint8))[:-1],
        idx(np.zeros((2, 3, 3), np.uint8)) + b"x",
        idx(np.zeros(18, np.uint8)),
        b"\0\0\x0d\x03" + idx(np.zeros((2, 3, 3), np.uint8))[4:],  # floats
        b"\0\0\x08\x03" + b"\xff" * 12 + b"x",
        gzip.compress(idx(np.zeros((2, 3, 3), np.uint8)), mtime=0)[:-9],
        b"\x1f\x8b" + b"x" * 50,
    ],
)
def test_idx_files_that_are_wrong(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match="file"):
        read_idx(tmp_path / "file", 3)


def test_an_idx_file_that_is_a_bomb(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(
        gzip.compress(bytes((0, 0, 8, 1)) + (17_000_000).to_bytes(4, "big") + bytes(17_000_000))
    )
    with pytest.raises(DataError, match="too many for such a file"):
        read_idx(tmp_path / "file", 1)


def test_mnist_with_a_file_missing_or_of_another_length(tmp_path: Path) -> None:
    write_mnist(tmp_path / "set", packed=True)
    labels = tmp_path / "set" / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx(np.zeros(19, np.uint8))))
    with pytest.raises(DataError, match="20 images but 19 labels in test"):
        read_public_files(tmp_path / "set")
    labels.unlink()
    with pytest.raises(DataError, match="t10k-labels is missing"):
        read_public_files(tmp_path / "set")


# --- MedMNIST

CHEST = (
    "atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia", "pneumothorax",
    "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia",
)  # fmt: skip  # the order of medmnist/info.py


def medmnist(classes: int = 3, counts: tuple[int, ...] = (12, 6, 6)) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, count in zip(("train", "val", "test"), counts, strict=True):
        content[f"{name}_images"] = RNG.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
        content[f"{name}_labels"] = (np.arange(count) % classes)[:, None].astype(np.uint8)
    return content


def imported(file: Path, folder: Path, **flags: Any) -> Splits:
    """The splits of the folder that `vitmed data import` writes of a file, all of its images there."""
    import_dataset(file, folder)
    table = folder / "labels.csv"
    return make_splits(DataConfig(root=str(folder), labels=str(table) if table.is_file() else None, **flags))


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
def test_the_splits_and_the_names_of_the_classes(tmp_path: Path, name: str, classes: tuple[str, ...]) -> None:
    content = medmnist()
    np.savez_compressed(tmp_path / "file.npz", **content)
    (tmp_path / "file.npz").rename(tmp_path / name)
    splits = imported(tmp_path / name, tmp_path / "out")
    assert splits.classes == classes
    assert {part: len(samples) for part, samples in splits.samples.items()} == {
        part: len(content[f"{part}_images"]) for part in ("train", "val", "test")
    }
    for part, samples in splits.samples.items():
        for sample in samples:
            k = int(Path(sample.path).stem)
            assert sample.label == content[f"{part}_labels"][k, 0]
            assert np.array_equal(np.asarray(Image.open(splits.root / sample.path)), content[f"{part}_images"][k])


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("chestmnist_64.npz", CHEST),
        ("mine.npz", ("finding 0", "finding 1", "finding 2")),
        ("chestmnist.npz", ("finding 0", "finding 1", "finding 2")),  # other findings than the set of that name
    ],
)
def test_the_findings_of_chestmnist_with_some_not_known(tmp_path: Path, name: str, names: tuple[str, ...]) -> None:
    content = medmnist(counts=(40, 20, 20))
    for part, count in (("train", 40), ("val", 20), ("test", 20)):
        content[f"{part}_labels"] = (RNG.random((count, len(names))) < 0.5).astype(np.float32)
    content["train_labels"][:5] = np.nan
    content["train_labels"][5:, 0] = (0, 1, *[-1] * 33)
    np.savez_compressed(tmp_path / name, **content)
    splits = imported(tmp_path / name, tmp_path / "out")
    assert splits.classes == names and splits.target.kind == "findings" and len(splits.samples["train"]) == 35
    assert (splits.targets("train")[:, 0] == -1).sum() == 33
    assert len(splits.samples["test"]) == 20
    for sample in splits.samples["test"]:
        assert sample.targets == tuple(content["test_labels"][int(Path(sample.path).stem)])


def test_the_grades_of_retinamnist_and_numbers(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "mine.npz", **medmnist(classes=11, counts=(22, 22, 22)))
    grades = imported(tmp_path / "mine.npz", tmp_path / "grades", target="grades")
    ui = recording()
    import_dataset((tmp_path / "mine.npz").rename(tmp_path / "retinamnist_64.npz"), tmp_path / "retina")
    assert ui.said[-1].endswith(f"vitmed train {tmp_path / 'retina'} --target grades")
    assert grades.classes == tuple(map(str, range(11))) and grades.target.kind == "grades"
    content = medmnist(counts=(40, 20, 20))
    ages = {f"{name}_labels": np.linspace(20, 80.5, len(content[f"{name}_images"])) for name in grades.samples}
    np.savez_compressed(tmp_path / "ages.npz", **content | ages)
    ages["val_labels"][:] = np.round(ages["val_labels"])  # whole years by chance
    np.savez_compressed(tmp_path / "ages.npz", **content | ages)
    splits = imported(tmp_path / "ages.npz", tmp_path / "ages", unit="years")
    assert splits.target.kind == "number" and len(splits.samples["val"]) == 20
    for sample in splits.samples["val"]:
        assert sample.targets == (ages["val_labels"][int(Path(sample.path).stem)],)
    years = {name: np.round(values) for name, values in ages.items()}  # whole, and 20 is no class beside 21
    np.savez_compressed(tmp_path / "years.npz", **content | years)
    splits = imported(tmp_path / "years.npz", tmp_path / "years", target="number")
    assert ui.said[-1].endswith(f"--labels {tmp_path / 'years' / 'labels.csv'} --target number")
    assert all(s.targets == (years["test_labels"][int(Path(s.path).stem)],) for s in splits.samples["test"])
    content |= {name: content[name].astype(np.float64) for name in years}  # classes 0.0, 1.0, 2.0
    np.savez_compressed(tmp_path / "whole.npz", **content)
    assert imported(tmp_path / "whole.npz", tmp_path / "whole").classes == ("0", "1", "2")
    content |= {name: content[name] - 1 for name in years}  # -1.0, 0.0, 1.0 are no classes
    np.savez_compressed(tmp_path / "signed.npz", **content)
    signed = imported(tmp_path / "signed.npz", tmp_path / "signed", target="number")
    assert {sample.targets[0] for sample in signed.samples["test"] if sample.targets} == {-1.0, 0.0, 1.0}


LABELS = medmnist()["train_labels"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"train_labels": np.eye(12, 14, dtype=np.uint8)}, "labels of several kinds"),
        pytest.param(
            *({"train_labels": np.eye(12, 14, dtype=np.uint8) * 2}, "14 findings holds 0 to 2"), marks=pytest.mark.slow
        ),
        ({"train_labels": LABELS[:-1]}, "expected numbers .12, 1"),
        pytest.param(*({"train_labels": LABELS.astype(np.complex64)}, "complex64"), marks=pytest.mark.slow),
        ({"train_labels": LABELS + 0.5}, "labels of several kinds"),
        ({"train_labels": LABELS.astype(np.int64) - 1}, "holds -1 to 1"),
        pytest.param(
            *({"train_labels": LABELS.astype(np.uint64) + np.uint64(2**63)}, "expected classes"), marks=pytest.mark.slow
        ),
        ({"train_images": np.zeros((12, 8, 8), np.uint16)}, "train_images is uint16"),
        ({"train_images": np.zeros((12, 28, 28, 28), np.uint8)}, "volume"),
        ({"train_images": np.zeros((12, 28, 28, 4), np.uint8)}, r"expected uint8 \(N, H, W\)"),
        ({"train_images": np.zeros((0, 28, 28), np.uint8), "train_labels": LABELS[:0]}, "0, 28, 28|not an array"),
        ({"train_labels": np.array([Runs(os.mkdir, "hacked")] * 12, dtype=object)}, "not an array .*Python objects"),
    ],
)
def test_arrays_of_another_kind_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez_compressed(tmp_path / "mine.npz", **medmnist() | changes)
    with pytest.raises(DataError, match=told) as error:
        import_dataset(tmp_path / "mine.npz", tmp_path / "out")
    assert "mine.npz" in str(error.value) and not Path("hacked").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("highest", "fits"), [(9_999, True), (10_000, False)])
def test_labels_up_to_ten_thousand_are_classes(tmp_path: Path, highest: int, fits: bool) -> None:
    content = medmnist()
    for name in ("train", "val", "test"):
        content[f"{name}_labels"] = np.where(content[f"{name}_labels"] == 2, highest, 0)
    np.savez_compressed(tmp_path / "mine.npz", **content)
    if fits:
        assert imported(tmp_path / "mine.npz", tmp_path / "out").classes == ("0", str(highest))
    else:
        with pytest.raises(DataError, match="holds 0 to 10000, expected classes"):
            import_dataset(tmp_path / "mine.npz", tmp_path / "out")


def header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return stream.getvalue()


@pytest.mark.parametrize(
    "images",
    [
        header((12, 10**6, 10**6)),  # terabytes, in a file of some hundred bytes
        header((12, 20, 20)) + bytes(12 * 20 * 20 - 1),
        header((12, 20, 20)) + bytes(12 * 20 * 20 + 1),
        header((2**62, 2**62, 4)),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 60_000,
        b"\x93NUMPY\x01\x00" + (9001).to_bytes(2, "little") + b"-" * 9000 + b"1",
        b"\x93NUMPY\x01\x00" + (11).to_bytes(2, "little") + b"{'descr': (",
        b"no numpy at all",
        b"",
        pickle.dumps(Runs(os.mkdir, "hacked")),
    ],
)
def test_a_header_that_is_wrong_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: bytes
) -> None:
    """NumPy parses it as Python, which fails in ways of its own."""
    monkeypatch.chdir(tmp_path)
    folder = unpacked(tmp_path / "set", train_labels=LABELS)
    (folder / "train_images.npy").write_bytes(images)
    with pytest.raises(DataError, match=r"mine\.npz: train_images\.npy is not an array"):
        read_public_files(folder, Path("mine.npz"))
    assert not Path("hacked").exists()


def test_damaged_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    np.savez(file, x=np.zeros(3))
    with pytest.raises(DataError, match=r"mine\.npz: not a file of MedMNIST, it holds x\.npy"):
        import_dataset(file, tmp_path / "out")
    np.savez_compressed(file, **medmnist())
    whole = file.read_bytes()
    flipped, offset = bytearray(whole), bytearray(whole)
    flipped[300] ^= 0xFF  # inside the first member: the CRC tells
    end = whole.rindex(b"PK\x05\x06")
    offset[end + 16 : end + 20] = b"\xf0\xff\xff\x7f"  # where the list of members begins
    for content in (b"no zip", b"", whole[: len(whole) // 2], flipped, offset):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"mine\.npz: not a complete archive"):
            import_dataset(file, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))
