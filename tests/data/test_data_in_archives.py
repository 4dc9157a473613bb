"""A tar of images becomes a folder with the same files; archives are never read as folders of images."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import content, save
from conftest import BARE, Answer, Trained, draw_classes, recording
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


def pack(folder: Path, file: Path) -> Path:
    """The images of class folders as a tar, without the folders."""
    images = sorted(folder.rglob("*.png"))
    return write(file, {f"{i:06}.png": image.read_bytes() for i, image in enumerate(images)})


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_images_without_classes_are_to_be_predicted(trained: Trained, tmp_path: Path, vitmed: RUN) -> None:
    files = predict(trained.data / "test", checkpoint=trained.best)
    answer = vitmed("data", "import", pack(trained.data / "test", tmp_path / "a-000.tar"), tmp_path / "out")
    assert answer.code == 0 and f"vitmed train {tmp_path / 'out'} --labels TABLE" in answer.err
    found = predict(tmp_path / "out", checkpoint=trained.best)
    assert found.logits.tobytes() == files.logits.tobytes()
    assert found.paths[3] == f"{tmp_path.as_posix()}/out/000003.png"


def test_class_folders_in_a_tar_stay_the_classes(tmp_path: Path) -> None:
    pixels = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(pixels, "PNG")
    files = {f"set/{kind}/{kind}.png": pixels.getvalue() for kind in ("a", "b")}
    ui = recording()
    import_dataset(write(tmp_path / "folders.tar", files | {"set/a/a.json": b"{}"}), tmp_path / "folders")
    assert tree(tmp_path / "folders") == ["a/a.json", "a/a.png", "b/b.png"]
    assert ui.said[-1].endswith(f"vitmed train {tmp_path / 'folders'}")


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"0.txt": b"a"}, "holds no kind of file that vitmed knows"),
        ({"../0.png": b"x"}, "would lie outside its folder"),
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
    folder, options = archives[1].parent, {"output": tmp_path / "runs", **BARE}
    draw_classes(tmp_path / "split" / "other", 1)
    write(tmp_path / "shards" / "train" / "cells.tar", {"0.png": b"x"})
    calls: list[tuple[Path, Callable[..., Any]]] = [
        (archives[1], lambda: train(folder, **options)),
        (archives[1], lambda: check(folder)),
        (archives[1], lambda: predict(folder, checkpoint=trained.best)),
        (archives[1], lambda: evaluate(trained.best, data=folder)),
        (tmp_path / "shards" / "train" / "cells.tar", lambda: train(tmp_path / "shards", **options)),
        (tmp_path / "shards" / "train" / "cells.tar", lambda: check(tmp_path / "shards")),
    ]
    for name in ("set.zip", "set.tar.gz", "set.tgz"):  # as they are downloaded
        zipped = tmp_path / name.replace(".", "_") / name
        zipped.parent.mkdir()
        zipped.write_bytes(b"not read")
        calls += [(zipped, lambda zipped=zipped: check(zipped.parent))]  # type: ignore[misc]
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
