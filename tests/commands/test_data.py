"""`vitmed data`: sets come whole, right and laid out from a local server, or not at all, and say what to do next."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Answer, Recorder
from local_server import serving
from PIL import Image

from vitmed.commands.data import datasets_table, fetch_dataset, import_dataset
from vitmed.core import dataset_cards as card_module
from vitmed.core import downloads
from vitmed.core.config import DataConfig
from vitmed.core.dataset_cards import cards
from vitmed.core.errors import DataError, UsageError
from vitmed.data.splits import make_splits

RUN = Callable[..., Answer]
CELLS = ["C1P1_cell_1", "C1P1_cell_2", "C2P1_cell_1", "C3P1_cell_1", "C4P1_cell_1", "C5P1_cell_9"]


@dataclass
class Server:
    """Serves `files` by the last part of the path; the next answers end after `cut` bytes."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    port: int = 0


@pytest.fixture
def server() -> Iterator[Server]:
    about = Server()

    def answer(request: BaseHTTPRequestHandler) -> None:
        name = request.path.partition("?")[0].rpartition("/")[2]
        begin = int((request.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        about.asked.append(f"{name} from {begin}")
        if name not in about.files:
            request.send_error(404)
            return
        body = about.files[name]
        request.send_response(206 if begin else 200)
        if begin:
            request.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        request.send_header("Content-Length", str(len(body) - begin))
        request.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')
        request.end_headers()
        end = about.cut.pop(0) if about.cut else len(body)
        request.wfile.write(body[begin : begin + end])

    with serving(answer) as about.port:
        yield about


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("VITMED_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(downloads, "PAUSE", 0.01)
    return tmp_path / "cache"


def png(rng: np.random.Generator) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def malaria() -> bytes:
    """As cell_images.zip is laid out, with the rubbish that lies in it."""
    rng, stream = np.random.default_rng(0), io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in ("Parasitized", "Uninfected"):
            for cell in CELLS:
                archive.writestr(zipfile.ZipInfo(f"cell_images/{name}/{cell}.png"), png(rng))
            archive.writestr(zipfile.ZipInfo(f"cell_images/{name}/Thumbs.db"), b"thumbs")
    return stream.getvalue()


def idx(array: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(head + array.tobytes())


def blood() -> bytes:
    rng, stream, arrays = np.random.default_rng(0), io.BytesIO(), {}
    for name, count in (("train", 12), ("val", 6), ("test", 6)):
        arrays[f"{name}_images"] = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
        arrays[f"{name}_labels"] = (np.arange(count) % 3)[:, None].astype(np.uint8)
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def cifar() -> bytes:
    rng, stream = np.random.default_rng(0), io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
            labels = np.arange(10, dtype=np.uint8)[:, None]
            content = np.hstack([labels, rng.integers(0, 256, (10, 3072), dtype=np.uint8)]).tobytes()
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def offer(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts files on the server, and their sums and its address into a card of ours."""
    known = dict(cards())
    monkeypatch.setattr(card_module, "cards", lambda: known)

    def put(name: str, files: dict[str, bytes], kind: str = "sha256") -> None:
        card = known[name]
        assert card.download is not None
        url = card.download.url.replace(card.download.url.partition("{file}")[0], f"http://127.0.0.1:{server.port}/")
        sums = {file: f"{kind}:{hashlib.new(kind, content).hexdigest()}" for file, content in files.items()}
        sizes = {file: len(content) for file, content in files.items()}
        download = card.download.model_copy(update={"url": url, "bytes": sizes})
        known[name] = card.model_copy(update={"download": download, "checksum": {**(card.checksum or {}), **sums}})
        server.files |= files

    return put


def tree(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_class_folders_with_their_patients(
    offer: Callable[..., None], server: Server, tmp_path: Path, ui: Recorder, cache: Path
) -> None:
    offer("nih_malaria", {"cell_images.zip": malaria()})
    folder = fetch_dataset("nih_malaria", tmp_path / "malaria")
    images = [f"{name}/{cell}.png" for name in ("Parasitized", "Uninfected") for cell in CELLS]
    assert [p for p in tree(folder) if p.endswith(".png")] == images
    rows = list(csv.DictReader((folder / "groups.csv").open(newline="")))
    assert [row["path"] for row in rows] == images
    assert [row["patient"] for row in rows] == ["C1", "C1", "C2", "C3", "C4", "C5"] * 2
    assert any("12 images, 5 patients" in line for line in ui.said)
    assert any(f"vitmed train {folder} --group-regex '(?:^|/)(C\\d+)[^/]*$'" in line for line in ui.said)

    splits = make_splits(DataConfig(root=str(folder), group_regex=cards()["nih_malaria"].group_regex))
    assert splits.classes == ("Parasitized", "Uninfected") and splits.grouped
    fetch_dataset("nih_malaria", tmp_path / "again")
    assert len(server.asked) == 1 and tree(tmp_path / "again") == tree(folder)  # the second is from the cache
    assert not list(tmp_path.glob(".*"))


def test_a_medmnist_file(offer: Callable[..., None], tmp_path: Path, ui: Recorder, cache: Path) -> None:
    offer("medmnist_plus", {"bloodmnist_224.npz": blood(), "dermamnist.npz": blood()}, kind="md5")
    folder = fetch_dataset("bloodmnist_224", tmp_path / "blood")
    assert len(tree(folder)) == 24 and tree(folder)[0] == "test/basophil/000000.png"
    assert any(f"vitmed train {folder}" in line for line in ui.said) and not list(folder.rglob("*.npy"))
    assert any("CC BY 4.0" in line for line in ui.said) and ui.warned == []
    fetch_dataset("dermamnist", tmp_path / "derma")
    assert "CC BY-NC 4.0" in ui.warned[0]  # which forbids commercial use


def test_mnist_of_four_files_and_cifar_of_an_archive(
    offer: Callable[..., None], server: Server, tmp_path: Path
) -> None:
    files = {}
    for prefix, count in (("train", 30), ("t10k", 20)):
        files[f"{prefix}-images-idx3-ubyte.gz"] = idx(np.zeros((count, 28, 28), np.uint8))
        files[f"{prefix}-labels-idx1-ubyte.gz"] = idx(np.arange(count, dtype=np.uint8) % 10)
    offer("mnist", files, kind="md5")
    folder = fetch_dataset("mnist", tmp_path / "mnist")
    assert len(tree(folder)) == 50 and tree(folder)[0] == "test/0/000000.png" and len(server.asked) == 4
    offer("cifar10", {"cifar-10-binary.tar.gz": cifar()}, kind="md5")
    folder = fetch_dataset("cifar10", tmp_path / "cifar")
    assert len(tree(folder)) == 60 and tree(folder)[0] == "test/airplane/000000.png"
    assert sorted(p.name for p in folder.iterdir()) == ["test", "train"]


# --- what goes wrong on the way


def test_a_cut_connection_is_taken_up_where_it_broke(
    offer: Callable[..., None], server: Server, tmp_path: Path
) -> None:
    offer("nih_malaria", {"cell_images.zip": malaria()})
    server.cut = [1000, 500]
    fetch_dataset("nih_malaria", tmp_path / "set")
    assert server.asked == [f"cell_images.zip from {k}" for k in (0, 1000, 1500)]


def nothing(tmp_path: Path) -> bool:
    """Neither the set nor a part of it."""
    return not (tmp_path / "set").exists() and not list(tmp_path.glob(".set*"))


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_wrong_checksum(offer: Callable[..., None], server: Server, tmp_path: Path, kind: str) -> None:
    offer("nih_malaria", {"cell_images.zip": malaria()}, kind=kind)
    changed = bytearray(malaria())
    changed[100] ^= 1
    server.files["cell_images.zip"] = bytes(changed)
    with pytest.raises(DataError, match=f"(?s)its {kind} is .* expected .*removed"):
        fetch_dataset("nih_malaria", tmp_path / "set")
    assert nothing(tmp_path)
    server.files["cell_images.zip"] = malaria()
    assert fetch_dataset("nih_malaria", tmp_path / "set").is_dir()


def test_no_server(offer: Callable[..., None], server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer("nih_malaria", {"cell_images.zip": malaria()})
    server.files.clear()
    with pytest.raises(DataError, match="the server answers 404"):
        fetch_dataset("nih_malaria", tmp_path / "set")
    monkeypatch.setattr(downloads, "TRIES", 1)
    monkeypatch.setattr(downloads.urllib.request, "build_opener", lambda *_: Unreachable())
    with pytest.raises(DataError, match="cannot be reached") as error:
        fetch_dataset("nih_malaria", tmp_path / "set")
    assert "vitmed data get nih_malaria DIR continues from there" in error.value.fix and nothing(tmp_path)


class Unreachable:
    def open(self, *args: Any, **kwargs: Any) -> None:
        raise OSError("no route to host")


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_offline(
    offer: Callable[..., None], server: Server, tmp_path: Path, cache: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = malaria()
    offer("nih_malaria", {"cell_images.zip": content})
    if by == "environment":
        monkeypatch.setenv("VITMED_OFFLINE", "1")
    path = cache / "datasets" / "nih_malaria" / "cell_images.zip"
    with pytest.raises(DataError) as error:
        fetch_dataset("nih_malaria", tmp_path / "set", offline=by == "flag")
    for text in (str(path), f"127.0.0.1:{server.port}", hashlib.sha256(content).hexdigest(), "vitmed data get"):
        assert text in str(error.value)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)  # brought on a stick
    assert fetch_dataset("nih_malaria", tmp_path / "set", offline=by == "flag").is_dir()
    assert server.asked == []


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["../../evil.png"], "outside"),
        (["/evil.png"], "outside"),
        (["cell_images/Parasitized/a.png"], "has no folder cell_images/Uninfected"),
    ],
)
def test_an_archive_that_is_hostile_or_another(
    offer: Callable[..., None], tmp_path: Path, names: list[str], told: str
) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    offer("nih_malaria", {"cell_images.zip": stream.getvalue()})
    with pytest.raises(DataError, match=told):
        fetch_dataset("nih_malaria", tmp_path / "set")
    assert nothing(tmp_path) and not list(tmp_path.rglob("evil.png"))


def test_a_folder_that_is_not_empty_is_refused_before_anything_is_fetched(
    offer: Callable[..., None], server: Server, tmp_path: Path, cache: Path
) -> None:
    offer("nih_malaria", {"cell_images.zip": malaria()})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine").touch()
    with pytest.raises(UsageError, match="not empty"):
        fetch_dataset("nih_malaria", tmp_path / "set")
    with pytest.raises(UsageError, match="not empty"):
        import_dataset(tmp_path, tmp_path / "set")
    assert server.asked == [] and tree(tmp_path / "set") == ["mine"]


def test_sets_that_are_not_fetched_say_what_to_do(vitmed: RUN, tmp_path: Path) -> None:
    for name, code, told in (
        ("kermany_chest_xray", 3, "vitmed data import ChestXRay2017.zip DIR"),
        ("ham10000", 3, "https://doi.org/10.7910/DVN/DBW86T"),
        ("medmnist_plus", 2, "bloodmnist_224"),
        ("bloodmist", 2, "did you mean 'bloodmnist'"),
    ):
        answer = vitmed("data", "get", name, tmp_path / "set")
        assert answer.code == code and told in answer.err and "Traceback" not in answer.err, answer.err
    assert nothing(tmp_path)


# --- import


def test_import_an_archive_of_class_folders(tmp_path: Path, ui: Recorder) -> None:
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(tmp_path / "ChestXRay2017.zip", "w") as archive:
        for split in ("train", "test"):
            for name in ("NORMAL", "PNEUMONIA"):
                archive.writestr(f"chest_xray/{split}/{name}/person1_{name}.png", png(rng))
        archive.writestr("__MACOSX/chest_xray/._train", b"x")
    folder = import_dataset(tmp_path / "ChestXRay2017.zip", tmp_path / "set")
    assert tree(folder) == [f"{s}/{n}/person1_{n}.png" for s in ("test", "train") for n in ("NORMAL", "PNEUMONIA")]
    assert any(f"vitmed train {folder}" in line for line in ui.said)


@pytest.mark.parametrize(
    ("beside", "inner", "train"),
    [
        ("top/README.txt", "top/sub", "/sub"),  # the classes lie one folder deeper
        ("top/README.txt", "top\\sub", "/sub"),  # as some programs of Windows write it
        ("top/a.csv", "top/sub/a", " --labels TABLE"),  # one class
    ],
)
def test_import_names_the_folder_to_train_on(tmp_path: Path, ui: Recorder, beside: str, inner: str, train: str) -> None:
    rng, mark = np.random.default_rng(0), "\\" if "\\" in inner else "/"
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr(beside, b"text")
        archive.writestr(f"{inner}{mark}", b"")
        for name in ("a", "b") if train == "/sub" else ("a",):
            archive.writestr(f"{inner}{mark}{name}{mark}1.png", png(rng))
    folder = import_dataset(tmp_path / "set.zip", tmp_path / "out")
    assert ui.said[-1].endswith(f"to train on it: vitmed train {folder}{train}")


def test_import_findings_names_the_table_of_labels(tmp_path: Path, vitmed: RUN) -> None:
    content = {"train_images": np.zeros((3, 8, 8), np.uint8), "train_labels": np.eye(3, 14, dtype=np.uint8)}
    np.savez_compressed(tmp_path / "chestmnist.npz", **content)
    answer = vitmed("data", "import", tmp_path / "chestmnist.npz", tmp_path / "out")
    table = tmp_path / "out" / "labels.csv"
    assert answer.code == 0 and f"vitmed train {tmp_path / 'out'} --labels {table}" in answer.err
    assert tree(tmp_path / "out")[:2] == ["labels.csv", "train/000000.png"]
    assert table.read_text().startswith("path,split,atelectasis,cardiomegaly")


def test_import_by_the_command_line(tmp_path: Path, vitmed: RUN) -> None:
    (tmp_path / "bloodmnist.npz").write_bytes(blood())
    answer = vitmed("data", "import", tmp_path / "bloodmnist.npz", tmp_path / "out", "--json")
    assert answer.code == 0 and json.loads(answer.out) == {"folder": str(tmp_path / "out")}, answer.err
    (tmp_path / "cifar.tgz").write_bytes(cifar())
    assert vitmed("data", "import", tmp_path / "cifar.tgz", tmp_path / "out2").code == 0
    assert len(tree(tmp_path / "out")) == 24 and len(tree(tmp_path / "out2")) == 60
    (tmp_path / "empty").mkdir()
    (tmp_path / "some.txt").touch()
    (tmp_path / "x.zip").write_bytes(b"PK\5\6" + bytes(18))
    for source in ("none", "empty", "some.txt", "x.zip"):
        answer = vitmed("data", "import", tmp_path / source, tmp_path / "set")
        assert answer.code == 3 and source in answer.err and "Traceback" not in answer.err, answer.err
    assert nothing(tmp_path)


def test_killed_while_it_writes(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "bloodmnist.npz").write_bytes(blood())
    code = """
import os, signal, sys
from pathlib import Path
from vitmed.commands.data import import_dataset
from vitmed.data import convert
save = convert.Image.Image.save
def stop(image, path, **kwargs):
    save(image, path, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
convert.Image.Image.save = stop
import_dataset(sys.argv[1], sys.argv[2])
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "bloodmnist.npz", tmp_path / "set"], timeout=120)
    assert done.returncode == -9 and not (tmp_path / "set").exists()
    (part,) = tmp_path.glob(".set.*.part")
    os.utime(part, (1, 1))
    import_dataset(tmp_path / "bloodmnist.npz", tmp_path / "set")
    assert len(tree(tmp_path / "set")) == 24 and not list(tmp_path.glob(".set*"))


# --- list


def test_the_list(vitmed: RUN) -> None:
    answer = vitmed("data", "list")
    assert answer.code == 0 and all(name in answer.out for name in cards())
    assert "27,558" in answer.out and "by hand" in answer.out and "bloodmnist_224" in answer.out
    rows = {row["name"]: row for row in json.loads(vitmed("data", "list", "--json").out)["datasets"]}
    assert rows == {row["name"]: row for row in datasets_table()}
    assert rows["nih_malaria"]["downloadable"] and rows["nih_malaria"]["patients"] == "in the file names"
    assert not rows["ham10000"]["downloadable"] and "Accept the terms" in rows["ham10000"]["by_hand"]
    table = answer.out
    assert "fetched" not in table and re.search("nih_malaria .* data get ", table)
    assert re.search("ham10000 .* by hand ", table)


def test_every_address_is_protected_and_has_a_sum() -> None:
    sources = [source for card in cards().values() for name in card.sets for source in card.sources(name)]
    assert len(sources) > 10
    for source in sources:
        assert source.url.startswith("https://") and source.checksum and source.file in source.url
