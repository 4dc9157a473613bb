"""Whatever is wrong: one clear message with the name in it, its exit code, no traceback, nothing half-written."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import Hostile, rewrite
from conftest import TINY_ARGS, Answer, Trained, draw_classes, draw_splits
from image_files import bomb
from PIL import Image

from vitmed.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.usefixtures("no_figures")
RUN = Callable[..., Answer]


def clean(answer: Answer, code: int, *told: str, place: Path | None = None) -> Answer:
    """An answer that a user can act on; `place` is the output folder, with nothing half-made in it."""
    assert answer.code == code, f"exit {answer.code}\n{answer.err}"
    assert "Traceback" not in answer.err and "bug in vitmed" not in answer.err, answer.err
    for text in told:
        assert text in answer.err, f"{text!r} is not in\n{answer.err}"
    assert answer.out == ""
    if place is not None:
        left = [p for p in place.rglob("*") if p.is_file()] if place.exists() else []
        assert left == [], left
        assert not place.exists() or list(place.iterdir()) == []
    return answer


@pytest.fixture
def refused(vitmed: RUN, tmp_path: Path) -> Callable[..., Answer]:
    """`vitmed train DATA ...` that must end before there is a run folder."""

    def run(code: int, data: object, *told: str, args: tuple[object, ...] = ()) -> Answer:
        runs = tmp_path / "runs"
        return clean(vitmed("train", data, "-o", runs, *TINY_ARGS, *args), code, *told, place=runs)

    return run


# --- folders


def test_no_such_folder(refused: Callable[..., Answer], tmp_path: Path) -> None:
    refused(3, tmp_path / "nowhere", "nowhere: no such folder")


def test_no_folder_named(vitmed: RUN) -> None:
    clean(vitmed("train"), 2, "no data folder is named")


def test_images_without_class_folders(refused: Callable[..., Answer], tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 4) / "amber"
    refused(3, data, "4 images but no class folders")


def test_an_empty_folder(refused: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    refused(3, tmp_path / "data", "neither class folders nor images")


def test_one_class(refused: Callable[..., Answer], tmp_path: Path) -> None:
    refused(3, draw_classes(tmp_path / "data", 4, ("amber",)), "one class folder, 'amber'")


def test_an_empty_class(refused: Callable[..., Answer], tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 6)
    (data / "green").mkdir()
    refused(3, data, "green", "no image")


def test_a_class_with_one_image(refused: Callable[..., Answer], tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 6)
    draw_classes(data, 1, ("green",))
    refused(3, data, "green", "1 image", "too few")


@pytest.mark.parametrize("part", ["val", "test"])
def test_a_class_missing_from_a_split(refused: Callable[..., Answer], tmp_path: Path, part: str) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2, ("amber", "blue", "green"))
    shutil.rmtree(data / part / "green")
    refused(3, data, "'green'", part)


# --- files


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_files_that_are_no_images(refused: Callable[..., Answer], tmp_path: Path, part: str) -> None:
    """All of them at once, each with what is wrong; before the first batch, whatever split they are in."""
    data = draw_splits(tmp_path / "data", 4, 4, 4)
    folder = data / part / "amber"
    whole = (folder / "amber_0.png").read_bytes()
    (folder / "zero.png").write_bytes(b"")
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "text.jpg").write_text("no image")
    (folder / "link.png").symlink_to(folder / "gone.png")
    (folder / "scan.dcm").write_bytes(bytes(128) + b"DICM" + bytes(64))
    Image.fromarray(np.full((4, 4), np.nan, np.float32)).save(folder / "nan.tif")
    refused(
        3, data, "6 of 30 images cannot be used", "zero.png: the file is empty",
        "cut.png: cannot be decoded", "text.jpg: not an image", "link.png: a broken link",
        "scan.dcm: a DICOM file without an image", "nan.tif: holds values that are not finite",
    )  # fmt: skip


def test_bad_files_of_all_splits_are_told_together(refused: Callable[..., Answer], tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    for part in ("train", "val", "test"):
        (data / part / "blue" / f"bad_{part}.png").write_bytes(b"")
    refused(3, data, "3 of 19 images", "bad_train.png", "bad_val.png", "bad_test.png")


def test_a_bomb(refused: Callable[..., Answer], tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    bomb(data / "train" / "blue" / "bomb.png")
    refused(3, data, "bomb.png: more than", "pixels, refused")


def test_names_with_spaces_accents_and_250_characters(vitmed: RUN, tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "my data é", 4, 2, 2, ("malaria negativ", "parasité 細胞"))
    names = ["a b.png", "naïve ü.png", "n" * 246 + ".png", "100%.png", "[bold].png", "quote\"'.png"]
    if os.name == "posix":
        names.append(os.fsdecode(b"latin-1 caf\xe9.png"))
    for part in ("train", "val", "test"):
        for name in names:
            folder = data / part / "parasité 細胞"
            shutil.copy(next(iter(sorted(folder.glob("par*.png")))), folder / name)
    answer = vitmed("train", data, "-o", tmp_path / "runs", "--name", "läuft [x]", *TINY_ARGS)
    assert answer.code == 0, answer.err
    run = tmp_path / "runs" / "läuft [x]"
    assert {p.name for p in run.iterdir()} >= {"best.pt", "last.pt", "splits.csv", "test"}
    text = (run / "splits.csv").read_text(encoding="utf-8")
    assert "naïve ü.png" in text and "n" * 246 in text
    assert vitmed("evaluate", run / "best.pt").code == 0


@pytest.mark.skipif(os.name != "posix", reason="needs modes of files")
def test_a_read_only_data_folder(vitmed: RUN, tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    everything = [data, *data.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        answer = vitmed("train", data, "-o", tmp_path / "runs", *TINY_ARGS)
    finally:
        for path in everything:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert answer.code == 0, answer.err


# --- the output folder


def test_an_output_that_cannot_be_made(refused: Callable[..., Answer], vitmed: RUN, tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    (tmp_path / "file").write_text("x")
    answer = vitmed("train", data, "-o", tmp_path / "file" / "runs", *TINY_ARGS)
    clean(answer, 2, "file/runs: cannot be written")
    assert (tmp_path / "file").read_text() == "x"
    clean(vitmed("train", data, "-o", tmp_path / "file", *TINY_ARGS), 2, "file: cannot be written")
    if Path("/proc").is_dir():  # no user may write there, not even root
        clean(vitmed("train", data, "-o", "/proc/runs", *TINY_ARGS), 2, "/proc/runs: cannot be written")


def test_an_output_inside_the_data(trained: Trained, vitmed: RUN, tmp_path: Path) -> None:
    """Its pictures would be a class of the next run."""
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    before = sorted(data.rglob("*"))
    clean(vitmed("train", data, "-o", data / "runs", *TINY_ARGS), 2, "lies in the data folder")
    answer = vitmed("evaluate", trained.best, "--data", data, "-o", data / "new" / "report")
    assert answer.code == 2 and "lies in the data folder" in answer.err
    assert sorted(data.rglob("*")) == before


@pytest.mark.parametrize("where", ["file/report", "file"])
def test_a_report_that_cannot_be_written_is_told_before_the_work(
    trained: Trained, vitmed: RUN, tmp_path: Path, where: str
) -> None:
    (tmp_path / "file").write_text("x")
    for source in (trained.best, trained.folder / "test" / "predictions.csv"):
        answer = vitmed("evaluate", source, "-o", tmp_path / where)
        assert answer.code == 2 and "evaluating" not in answer.err and "Traceback" not in answer.err, answer.err
    if Path("/proc").is_dir():  # no user may write there, not even root
        answer = vitmed("evaluate", trained.best, "-o", "/proc/report")
        assert answer.code == 2 and "cannot be written" in answer.err


def test_a_refused_image_is_told_with_its_fix(vitmed: RUN, tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    deep = next((data / "train").rglob("*.png")).with_name("deep.png")
    Image.fromarray(np.zeros((20, 20), np.uint16)).save(deep)
    args = ("-o", tmp_path / "runs", *TINY_ARGS, "--set", "data.window=null")
    clean(vitmed("train", data, *args), 3, "deep.png: 16 bits", "convert it to 8 bits")


def test_an_output_that_holds_a_run(trained: Trained, vitmed: RUN) -> None:
    before = sorted(p.name for p in trained.folder.iterdir())
    clean(vitmed("train", trained.data, "-o", trained.folder, *TINY_ARGS), 2, "holds a run", "--resume")
    assert sorted(p.name for p in trained.folder.iterdir()) == before


def test_another_run_of_that_name_stays_as_it_is(vitmed: RUN, tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    args = [
        "train",
        data,
        "-o",
        tmp_path / "runs",
        "--name",
        "a",
        *TINY_ARGS,
        "--epochs",
        1,
        "--no-report",
        "--no-baseline",
    ]
    assert vitmed(*args).code == 0
    before = (tmp_path / "runs" / "a" / "best.pt").read_bytes()
    assert vitmed(*args).code == 0
    assert (tmp_path / "runs" / "a" / "best.pt").read_bytes() == before
    assert (tmp_path / "runs" / "a-2" / "best.pt").is_file()


@contextlib.contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    """A real disk of that size where we may mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True, capture_output=True)


def test_a_full_disk(vitmed: RUN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fills up when the first checkpoint is written: told, and no half file stays."""
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    real = os.fsync

    def full(handle: int) -> None:
        if os.fstat(handle).st_size > 20_000:  # the checkpoints; what comes before them fits
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    answer = vitmed("train", data, "-o", tmp_path / "runs", "--name", "a", *TINY_ARGS)
    clean(answer, 2, "last.pt: cannot be written (No space left on device; free: ")
    left = {p.name for p in (tmp_path / "runs" / "a").iterdir()}
    assert not {"best.pt", "last.pt"} & left and not [name for name in left if name.endswith(".part")]


def test_a_disk_that_really_is_full(vitmed: RUN, tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    with small_disk(tmp_path / "disk", 64):
        answer = vitmed("train", data, "-o", tmp_path / "disk", "--name", "a", *TINY_ARGS)
        clean(answer, 2, "cannot be written", "No space left")
        assert not list((tmp_path / "disk").rglob("*.part"))
        assert all(p.stat().st_size for p in (tmp_path / "disk").rglob("*") if p.is_file())


# --- configuration


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--model", "resnet50"), ["unknown model 'resnet50'", "vit_tiny, vit_small, vit_base, vit_large"]),
        (("--policy", "medicla"), ["unknown policy 'medicla'", "chest_xray", "did you mean 'medical'"]),
        (("--monitor", "auc"), ["unknown metric 'auc'", "balanced_accuracy", "did you mean 'auroc'"]),
        (("--set", "train.learning_rate=1"), ["unknown key 'learning_rate' in section 'train'", "weight_decay"]),
        (("--set", "optim.lr=1"), ["unknown config section 'optim'", "data, model, augment, train"]),
        (("--set", "train.lr"), ["expected section.field=value"]),
        (("--set", "model.width=wide"), ["model.width", "wide", "docs/configuration.md"]),
        (("--config", "malria"), ["unknown config 'malria'", "did you mean 'malaria'"]),
        (("--config", "none.yaml"), ["none.yaml: no such config file"]),
        (("--image-size", "50"), ["image size 50", "patch size 8", "--image-size 48"]),
        (("--set", "model.heads=3"), ["3 heads do not divide width 16", "1, 2, 4, 8, 16"]),
        (("--epochs", "0"), ["train.epochs", "0"]),
        (("--lr", "nan"), ["train.lr"]),
        (("--resize", "stretch"), ["data.resize", "pad", "squash", "crop"]),
        (("--balance", "yes"), ["train.balance", "none", "adjust", "loss", "sampler"]),
        (("--device", "tpu"), ["train.device", "cuda"]),
        (("--group-regex", "("), ["not a regular expression"]),
        (("--fail-under", "aurok=1"), ["unknown metric 'aurok'", "did you mean 'auroc'"]),
        (("--set", "data.val_fraction=0.4", "--set", "data.test_fraction=0.6"), ["leave nothing to train on"]),
        (("--positive", "amber"), ["unknown positive class (of two) 'amber'"]),  # there are three
        (("--epochs", "many"), ["vitmed train", "--epochs"]),
        (("--leraning-rate", "1"), ["--leraning-rate"]),
    ],
)
def test_a_wrong_value_says_what_is_right(
    trained: Trained, refused: Callable[..., Answer], args: tuple[str, ...], told: list[str]
) -> None:
    refused(2, trained.data, *told, args=args)


def test_a_config_file_with_an_unknown_key(trained: Trained, refused: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("train:\n  epoch: 3\n")
    refused(
        2,
        trained.data,
        "unknown key 'epoch' in section 'train'",
        "did you mean 'epochs'",
        args=("-c", tmp_path / "mine.yaml"),
    )
    (tmp_path / "broken.yaml").write_text("train: [\n")
    refused(2, trained.data, "broken.yaml: not a readable YAML file", args=("-c", tmp_path / "broken.yaml"))


def test_classes_that_differ_by_side(refused: Callable[..., Answer], tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2, ("kidney left", "kidney right"))
    refused(2, data, "left", "right", "flips=false", args=("--policy", "blood_smear"))


def test_an_unknown_command(vitmed: RUN) -> None:
    clean(vitmed("trian", "x"), 2, "trian")


# --- checkpoints


@pytest.fixture
def files(trained: Trained, tmp_path: Path) -> Path:
    """Files that call themselves checkpoints."""
    whole = trained.best.read_bytes()
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "text.pt").write_text("weights")
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "folder.pt").mkdir()
    torch.save({"head.weight": torch.zeros(1)}, tmp_path / "weights.pt")
    rewrite(trained.best, tmp_path / "future.pt", version=99)
    torch.save(Hostile(f"touch {tmp_path / 'ran'}"), tmp_path / "hostile.pt")
    return tmp_path


BAD = {
    "missing.pt": "no such file", "empty.pt": "", "text.pt": "", "cut.pt": "", "folder.pt": "is a folder",
    "weights.pt": "not a vitmed checkpoint", "future.pt": "version 99", "hostile.pt": "could run code",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_checkpoint(vitmed: RUN, files: Path, trained: Trained, name: str) -> None:
    image, file = trained.data / "test" / "amber" / "amber_0.png", files / name
    clean(vitmed("evaluate", file, "-o", files / "report"), 4, name, BAD[name], place=files / "report")
    clean(vitmed("predict", image, "--checkpoint", file), 4, name, BAD[name])
    clean(vitmed("summary", file), 4, name, BAD[name])
    resumed = files / "run"
    resumed.mkdir()
    if file.is_file():
        shutil.copy(file, resumed / "last.pt")
    clean(vitmed("train", "--resume", resumed), 4, "last.pt")
    assert not (files / "ran").exists()


def test_weights_that_are_not_finite(vitmed: RUN, trained: Trained, tmp_path: Path) -> None:
    """No class is read from NaN; also where it stands in one class only."""
    weights = dict(load_checkpoint(trained.best).weights)
    weights["head.bias"] = weights["head.bias"].clone()
    weights["head.bias"][1] = torch.nan
    file = rewrite(trained.best, tmp_path / "nan.pt", weights=weights, policy=None)
    image, report = trained.data / "test" / "amber" / "amber_0.png", tmp_path / "report"
    told = "nan.pt: head.bias holds numbers that are not finite"
    clean(vitmed("predict", image, "--checkpoint", file, "--csv", tmp_path / "p.csv"), 4, told)
    clean(vitmed("evaluate", file, "--data", trained.data, "-o", report), 4, told, place=report)
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize("name", ["missing.pt", "cut.pt", "hostile.pt", "weights.pt"])
def test_weights_that_cannot_be_used(refused: Callable[..., Answer], files: Path, trained: Trained, name: str) -> None:
    refused(4, trained.data, name, args=("--weights", files / name))
    assert not (files / "ran").exists()


# --- the machine


def test_no_memory_left(trained: Trained, vitmed: RUN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitmed.models.vit import ViT

    def explode(self: ViT, x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(ViT, "forward", explode)
    monkeypatch.setattr("vitmed.training.training_run.summarise", lambda *_: "")
    answer = vitmed("train", trained.data, "-o", tmp_path / "runs", *TINY_ARGS)
    clean(answer, 5, "out of memory with batches of 8 images of 16 px", "computed one by one", "--image-size")


@pytest.mark.parametrize("verb", ["predict", "evaluate", "explain"])
def test_a_gpu_that_is_full_is_no_bug(
    trained: Trained, vitmed: RUN, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    def full(*args: object, **how: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr("vitmed.models.vit.ViT.forward_features", full)
    image = sorted(trained.data.rglob("*.png"))[0]
    if verb == "evaluate":
        answer = vitmed(verb, trained.best, "-o", tmp_path / "report")
    else:
        answer = vitmed(verb, image, "--checkpoint", trained.best)
    clean(answer, 5, "the GPU is out of memory", "--device cpu")


def test_a_bug_of_ours_is_told_as_one(trained: Trained, vitmed: RUN, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, with the traceback: the one case for it."""

    def explode(*_: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("vitmed.commands.predict.list_images", explode)
    answer = vitmed("predict", trained.data, "--checkpoint", trained.best)
    assert answer.code == 1 and "Traceback" in answer.err and "please report" in answer.err


def test_ctrl_c_before_training(trained: Trained, vitmed: RUN, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitmed.data.scan.Scan.decode", interrupt)
    answer = vitmed("train", trained.data, "-o", tmp_path / "runs", *TINY_ARGS)
    clean(answer, 130, "interrupted before anything could be saved", place=tmp_path / "runs")


def test_a_network_that_breaks_down(
    trained: Trained, vitmed: RUN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in an image: the batch's files are named, exit code 1 without a traceback."""
    from vitmed.imaging.preprocessing import Preprocessing

    monkeypatch.setattr(Preprocessing, "normalise", lambda self, x: x.permute(0, 3, 1, 2).float() * float("nan"))
    answer = vitmed("train", trained.data, "-o", tmp_path / "runs", *TINY_ARGS)
    clean(answer, 1, "loss became NaN or infinite in epoch 1", "train/", ".png")
