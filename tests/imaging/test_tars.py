"""WebDataset tars: the same images as in folders, for predict, check, train and evaluate; hostile and torn tars."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY, TINY_SETS, Recorder, Trained, draw_classes
from PIL import Image

from vitmed import check, evaluate, predict, train
from vitmed.core.errors import DataError
from vitmed.imaging import tars
from vitmed.imaging.decode import read_image

ANSWER = Callable[..., Any]


def write(
    file: Path, members: Mapping[str, bytes], kind: bytes = tarfile.REGTYPE, format: int = tarfile.PAX_FORMAT
) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w", format=format) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.type = len(data), kind
            archive.addfile(info, io.BytesIO(data))
    return file


def pack(folder: Path, file: Path, labels: str = "cls") -> Path:
    """The images of class folders as a WebDataset tar: KEY.png and KEY.cls, or KEY.json."""
    members = {}
    for i, image in enumerate(sorted(folder.rglob("*.png"))):
        name = image.parent.name
        members[f"{i:06}.png"] = image.read_bytes()
        if labels:
            members[f"{i:06}.{labels}"] = name.encode() if labels == "cls" else json.dumps({"label": name}).encode()
    return write(file, members)


def test_predictions_are_those_of_the_files(trained: Trained, tmp_path: Path, vitmed: ANSWER) -> None:
    files = predict(trained.data / "test", checkpoint=trained.best, ui=Recorder())
    pack(trained.data / "test", tmp_path / "tars" / "a-000.tar")
    for images in (tmp_path / "tars", tmp_path / "tars" / "a-000.tar", f"{tmp_path}/tars/*.tar"):
        found = predict(images, checkpoint=trained.best, ui=Recorder())
        assert found.logits.tobytes() == files.logits.tobytes() and found.errors == ()
    assert found.paths[3] == f"{tmp_path.as_posix()}/tars/a-000.tar/000003.png"
    answer = vitmed("predict", found.paths[3], "--checkpoint", trained.best, "--csv", tmp_path / "p.csv")
    assert answer.code == 0 and list(tmp_path.glob("**/*.png")) == []
    gone = predict([found.paths[3], tmp_path / "tars/a-000.tar/none.png"], checkpoint=trained.best, ui=Recorder())
    assert len(gone) == 1 and "no such member" in gone.errors[0][1]


@pytest.mark.parametrize("labels", ["cls", "json"])
@pytest.mark.usefixtures("no_figures")
def test_train_and_evaluate_on_tars_are_those_on_folders(tmp_path: Path, labels: str) -> None:
    for split, seed in (("train", 1), ("val", 2), ("test", 3)):
        draw_classes(tmp_path / "folders" / split, 6, seed=seed)
        pack(tmp_path / "folders" / split, tmp_path / "tars" / split / "x.tar", labels)
    options: dict[str, Any] = {"output": tmp_path / "runs", "sets": TINY_SETS, **TINY}
    one, other = (train(tmp_path / kind, name=kind, ui=Recorder(), **options) for kind in ("folders", "tars"))
    assert one.test.predictions.logits.tobytes() == other.test.predictions.logits.tobytes()
    assert other.test.predictions.paths[0] == "test/x.tar/000000.png"
    found = evaluate(
        one.checkpoint, data=tmp_path / "tars" / "test", output=tmp_path / "e", allow_leakage=True, ui=Recorder()
    )
    assert found.predictions.logits.tobytes() == one.test.predictions.logits.tobytes()


def test_the_data_check_reads_tars(tmp_path: Path) -> None:
    draw_classes(tmp_path / "folders", 6)
    pack(tmp_path / "folders", tmp_path / "tars" / "a.tar")
    write(tmp_path / "tars" / "b.tar", {"0.png": b"no image", "0.cls": b"blue"})
    (tmp_path / "tars" / "c.tar").write_bytes(b"no tar" * 1000)
    content = check(tmp_path / "tars", output=tmp_path / "check", ui=Recorder()).content
    assert content["images"] == 13 and content["classes"] == 2
    told = [(f["text"], f["files"]) for f in content["problems"] if f["code"] == "unreadable"]
    assert any(files == ["b.tar/0.png"] for _, files in told)
    assert any("c.tar cannot be read (not a complete tar" in problem for problem, _ in told), told


def test_a_tar_beside_class_folders_is_no_data(trained: Trained, tmp_path: Path) -> None:
    draw_classes(tmp_path, 2)
    pack(tmp_path, tmp_path / "all.tar")
    assert len(predict(tmp_path, checkpoint=trained.best, ui=Recorder())) == 4


def test_images_without_a_class(tmp_path: Path) -> None:
    draw_classes(tmp_path / "folders", 2)
    pack(tmp_path / "folders", tmp_path / "tars" / "a.tar", labels="")
    with pytest.raises(DataError, match=r"4 of 4 images of the tars have no class") as error:
        train(tmp_path / "tars", output=tmp_path / "runs", ui=Recorder(), **TINY)
    assert "KEY.cls" in error.value.fix


def test_formats_in_a_tar(tmp_path: Path) -> None:
    """TIFF, deep PNG and arrays are read as from files; long names, too."""
    deep = np.arange(400, dtype=np.uint16).reshape(20, 20) * 100
    Image.fromarray(deep).save(tmp_path / "deep.png")
    Image.fromarray(deep.astype(np.uint8)).save(tmp_path / "page.tif")
    np.save(tmp_path / "array.npy", deep.astype(np.uint8))
    files = {name: tmp_path / name for name in ("deep.png", "page.tif", "array.npy")}
    long = "folder/" * 30
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        tar = write(tmp_path / f"{format}.tar", {long + n: f.read_bytes() for n, f in files.items()}, format=format)
        for name, file in files.items():
            window = (0.0, 40000.0) if name == "deep.png" else None
            inside = read_image(tar / long / name, window=window)
            assert np.array_equal(np.asarray(inside), np.asarray(read_image(file, window=window)))


def test_torn_and_hostile_tars(trained: Trained, tmp_path: Path) -> None:
    whole = pack(trained.data / "test", tmp_path / "whole.tar").read_bytes()
    end = whole.rstrip(b"\0")
    cuts = {f"cut at {n}": whole[:n] for n in (0, 100, 512, 700, len(whole) // 2, len(end) // 512 * 512)}
    spoilt = bytearray(whole)
    spoilt[whole.index(b"000007.png")] ^= 0xFF  # a header that is not the first
    for name, data in {**cuts, "spoilt": bytes(spoilt)}.items():
        file = tmp_path / f"{name}.tar"
        file.write_bytes(data)
        with pytest.raises(DataError, match="not a complete tar"):
            tars.members(file)
    for name, kind, told in (
        ("../x.png", tarfile.REGTYPE, "not a plain file"),
        ("/x.png", tarfile.REGTYPE, "not a plain file"),
        ("x.png", tarfile.SYMTYPE, "not a plain file"),
        ("x.png", tarfile.FIFOTYPE, "not a plain file"),
    ):
        file = write(tmp_path / "hostile.tar", {name: b""}, kind)
        with pytest.raises(DataError, match=told):
            predict(file, checkpoint=trained.best, ui=Recorder())
        file.unlink()
