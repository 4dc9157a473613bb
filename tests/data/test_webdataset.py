"""WebDataset tars become class folders with the same pixels; archives are never read as folders of images."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import content, save
from conftest import TINY, TINY_SETS, Answer, Trained, draw_classes, recording
from PIL import Image

from vitmed import check, evaluate, predict, train
from vitmed.commands.data import import_dataset
from vitmed.core.errors import DataError, VitmedError

RUN = Callable[..., Answer]


def write(file: Path, members: Mapping[str, bytes]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
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


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.usefixtures("no_figures")
def test_training_on_what_was_imported_is_that_on_the_folders(tmp_path: Path) -> None:
    for split, seed in (("train", 1), ("val", 2), ("test", 3)):
        draw_classes(tmp_path / "folders" / split, 6, seed=seed)
        for labels in ("cls", "json"):
            pack(tmp_path / "folders" / split, tmp_path / labels / split / "x.tar", labels)
    ui = recording()
    import_dataset(tmp_path / "cls", tmp_path / "imported")
    assert f"to train on it: vitmed train {tmp_path / 'imported'}" in ui.said
    found = tree(tmp_path / "imported")
    assert "test/amber/x.tar/000000.png" in found
    import_dataset(tmp_path / "json", tmp_path / "again")
    assert tree(tmp_path / "again") == found
    assert all((tmp_path / "again" / p).read_bytes() == (tmp_path / "imported" / p).read_bytes() for p in found)
    options: dict[str, Any] = {"output": tmp_path / "runs", "sets": TINY_SETS, **TINY}
    one, other = (train(tmp_path / kind, name=kind, **options) for kind in ("folders", "imported"))
    assert one.test.predictions.logits.tobytes() == other.test.predictions.logits.tobytes()


def test_several_tars_and_only_images_are_kept(tmp_path: Path, vitmed: RUN) -> None:
    draw_classes(tmp_path / "folders", 3)
    files = [pack(tmp_path / "folders", tmp_path / f"cells-{k}.tar") for k in range(3)]
    answer = vitmed("data", "import", *files, tmp_path / "out")
    assert answer.code == 0 and "18 images, patients unknown" in answer.err, answer.err
    found = tree(tmp_path / "out")
    assert len(found) == 18 and found[0] == "amber/cells-0.tar/000000.png"
    one = vitmed("data", "import", files[0], tmp_path / "one")
    assert one.code == 0 and tree(tmp_path / "one") == [name for name in found if "cells-0" in name]
    again = vitmed("data", "import", *files)
    assert again.code == 2 and "is not a folder" in again.err  # the last one names the folder to be written


def test_without_classes_the_images_are_to_be_predicted(trained: Trained, tmp_path: Path) -> None:
    files = predict(trained.data / "test", checkpoint=trained.best)
    tar = pack(trained.data / "test", tmp_path / "a-000.tar", labels="")
    ui = recording()
    import_dataset(tar, tmp_path / "out")
    assert f"vitmed predict {tmp_path / 'out'}" in ui.said[-1]
    found = predict(tmp_path / "out", checkpoint=trained.best)
    assert found.logits.tobytes() == files.logits.tobytes()
    assert found.paths[3] == f"{tmp_path.as_posix()}/out/a-000.tar/000003.png"


def test_class_folders_in_a_tar_stay_the_classes(tmp_path: Path) -> None:
    """A .json beside an image of a class folder is no label; a .cls is."""
    pixels = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(pixels, "PNG")
    named = {f"{kind}/{kind}.png": pixels.getvalue() for kind in ("a", "b")}
    about = {f"{kind}/{kind}.json": b'{"label": "other"}' for kind in ("a", "b")}
    import_dataset(write(tmp_path / "folders.tar", named | about), tmp_path / "folders")
    assert tree(tmp_path / "folders") == ["a/a.json", "a/a.png", "b/b.json", "b/b.png"]
    classes = {f"{kind}/{kind}.cls": kind.upper().encode() for kind in ("a", "b")}
    import_dataset(write(tmp_path / "keys.tar", named | classes), tmp_path / "keys")
    assert tree(tmp_path / "keys") == ["A/keys.tar/a/a.png", "B/keys.tar/b/b.png"]


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"0.png": b"x", "0.cls": b"a", "1.png": b"x"}, "1 of 2 images have no class, the first is bad.tar/1.png"),
        ({"0.cls": b"a"}, "holds no image"),
        ({"0.png": b"x", "0.cls": b"../../out"}, "class names that cannot name folders"),
        ({"0.png": b"x", "0.cls": b"a", "1.png": b"x", "1.cls": b"A"}, "class names that cannot name folders"),
        ({"../0.png": b"x", "0.cls": b"a"}, "would lie outside its folder"),
    ],
)
def test_what_is_refused_leaves_nothing(tmp_path: Path, members: dict[str, bytes], told: str) -> None:
    tar = write(tmp_path / "bad.tar", members)
    with pytest.raises(DataError, match=told):
        import_dataset(tar, tmp_path / "out")
    assert tree(tmp_path) == ["bad.tar"]


# --- an archive in the place of a folder


@pytest.fixture
def archives(tmp_path: Path) -> list[Path]:
    np.savez(tmp_path / "blood.npz", train_images=np.zeros((2, 4, 4), np.uint8), train_labels=np.arange(2))
    return [tmp_path / "blood.npz", write(tmp_path / "tars" / "cells.tar", {"0.png": b"x", "0.cls": b"a"})]


def test_every_command_names_the_one_that_unpacks(trained: Trained, archives: list[Path], vitmed: RUN) -> None:
    for archive in archives:
        fix = f"vitmed data import {archive} FOLDER"
        for args in (
            ("train", archive),
            ("plan", archive),
            ("check", archive),
            ("pretrain", archive),
            ("probe", archive),
            ("evaluate", trained.best, "--data", archive),
            ("predict", archive, "--checkpoint", trained.best),
            ("predict", archive / "test/3/000017", "--checkpoint", trained.best),
            ("explain", archive, "--checkpoint", trained.best),
        ):
            answer = vitmed(*args)
            assert answer.code == 3 and fix in answer.err, (args, answer.err)
            assert f"{archive}: vitmed reads no images from archives; vitmed 0.2.0 does" in answer.err


def test_a_folder_of_tars(trained: Trained, archives: list[Path], tmp_path: Path) -> None:
    folder, options = archives[1].parent, {"output": tmp_path / "runs", **TINY}
    draw_classes(tmp_path / "split" / "other", 1)
    write(tmp_path / "shards" / "train" / "cells.tar", {"0.png": b"x"})
    calls: list[tuple[Path, Callable[..., Any]]] = [
        (folder, lambda: train(folder, **options)),
        (folder, lambda: check(folder)),
        (folder, lambda: predict(folder, checkpoint=trained.best)),
        (folder, lambda: evaluate(trained.best, data=folder)),
        (tmp_path / "shards", lambda: train(tmp_path / "shards", **options)),
        (tmp_path / "shards", lambda: check(tmp_path / "shards")),
    ]
    for named, call in calls:
        with pytest.raises(VitmedError) as error:
            call()
        assert error.value.fix == f"vitmed data import {named} FOLDER", error.value


def test_a_tar_beside_class_folders_is_no_data(trained: Trained, tmp_path: Path) -> None:
    draw_classes(tmp_path, 2)
    pack(tmp_path, tmp_path / "all.tar")
    assert len(predict(tmp_path, checkpoint=trained.best)) == 4


def test_a_checkpoint_whose_data_are_an_archive(
    trained: Trained, archives: list[Path], tmp_path: Path, vitmed: RUN
) -> None:
    """It still predicts; its own test images are in an archive that 0.2.0 reads."""
    changed: Any = content(trained.best)
    changed["data"]["root"] = str(archives[0])
    save(changed, tmp_path / "best.pt")
    image = trained.data / "test" / "blue" / "blue_0.png"
    assert vitmed("predict", image, "--checkpoint", tmp_path / "best.pt").code == 0
    answer = vitmed("evaluate", tmp_path / "best.pt")
    assert answer.code == 3 and "blood.npz: vitmed reads no images from archives; vitmed 0.2.0 does" in answer.err
    assert f"vitmed data import {archives[0]} FOLDER" in answer.err
