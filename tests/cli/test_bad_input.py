"""Whatever is wrong: one clear message with the name in it, its exit code, no traceback, nothing half-written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import Hostile, rewrite
from conftest import TINY_ARGS, Answer, Trained, draw_classes, draw_splits
from image_files import bomb
from PIL import Image

from vitmed.inference.checkpoint import load_checkpoint

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


def test_folders_that_hold_no_classes_to_learn(refused: Callable[..., Answer], vitmed: RUN, tmp_path: Path) -> None:
    clean(vitmed("train"), 2, "no data folder is named")
    refused(3, tmp_path / "nowhere", "nowhere: no such folder")
    (tmp_path / "empty").mkdir()
    refused(3, tmp_path / "empty", "neither class folders nor images")
    data = draw_classes(tmp_path / "one", 6, ("amber",))
    refused(3, data / "amber", "6 images but no class folders")
    refused(3, data, "one class folder, 'amber'")
    draw_classes(data, 6, ("blue",))
    (data / "green").mkdir()
    refused(3, data, "green", "no image")
    draw_classes(data, 1, ("green",))
    refused(3, data, "green", "1 image", "too few")
    data = draw_splits(tmp_path / "splits", 4, 2, 2, ("amber", "blue", "green"))
    for part in ("test", "val"):
        shutil.rmtree(data / part / "green")
        refused(3, data, "'green'", part)


def test_folders_of_other_files_name_their_types(refused: Callable[..., Answer], vitmed: RUN, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "nifti" / name).mkdir(parents=True)
        (tmp_path / "nifti" / name / "x.nii.gz").write_bytes(b"x")
    clean(
        vitmed("plan", tmp_path / "nifti"), 3, "no image of a type that vitmed reads; the files are 2 .gz (no_classes)"
    )
    clean(vitmed("check", tmp_path / "nifti"), 3, "nifti: no image of a type that vitmed reads")
    refused(3, tmp_path / "nifti", "class 'a' has no image", "add images of a type that vitmed reads")


# --- files


def test_files_that_are_no_images(refused: Callable[..., Answer], tmp_path: Path) -> None:
    """All of them at once, each with what is wrong; before the first batch, whatever split they are in."""
    data = draw_splits(tmp_path / "data", 4, 4, 4)
    train, val, test = (data / part / "amber" for part in ("train", "val", "test"))
    whole = (train / "amber_0.png").read_bytes()
    (train / "zero.png").write_bytes(b"")
    (train / "cut.png").write_bytes(whole[: len(whole) // 2])
    (train / "text.jpg").write_text("no image")
    (val / "link.png").symlink_to(val / "gone.png")
    (val / "scan.dcm").write_bytes(bytes(128) + b"DICM" + bytes(64))
    Image.fromarray(np.full((4, 4), np.nan, np.float32)).save(test / "nan.tif")
    bomb(test / "bomb.png")
    refused(
        3, data, "7 of 31 images cannot be used", "zero.png: the file is empty",
        "cut.png: cannot be decoded", "text.jpg: not an image", "link.png: a broken link",
        "scan.dcm: a DICOM file without an image", "nan.tif: holds values that are not finite",
        "bomb.png: more than", "pixels, refused",
    )  # fmt: skip


def test_names_with_spaces_accents_and_250_characters_in_a_read_only_folder(vitmed: RUN, tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "my data é", 4, 2, 2, ("malaria negativ", "parasité 細胞"))
    names = ["a b.png", "naïve ü.png", "n" * 246 + ".png", "100%.png", "[bold].png", "quote\"'.png"]
    if os.name == "posix":
        names.append(os.fsdecode(b"latin-1 caf\xe9.png"))
    for part in ("train", "val", "test"):
        for name in names:
            folder = data / part / "parasité 細胞"
            shutil.copy(next(iter(sorted(folder.glob("par*.png")))), folder / name)
    everything = [data, *data.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        answer = vitmed("train", data, "-o", tmp_path / "runs", "--name", "läuft [x]", *TINY_ARGS, "--no-baseline")
    finally:
        for path in everything:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert answer.code == 0, answer.err
    run = tmp_path / "runs" / "läuft [x]"
    assert {p.name for p in run.iterdir()} >= {"best.pt", "last.pt", "splits.csv", "test"}
    text = (run / "splits.csv").read_text(encoding="utf-8")
    assert "naïve ü.png" in text and "n" * 246 in text
    assert vitmed("evaluate", run / "best.pt").code == 0


# --- the output folder


def test_an_output_that_cannot_be_made_is_told_before_the_work(trained: Trained, vitmed: RUN, tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    (tmp_path / "file").write_text("x")
    places = [tmp_path / "file" / "runs", tmp_path / "file"]
    if Path("/proc").is_dir():  # no user may write there, not even root
        places.append(Path("/proc/runs"))
    for place in places:
        clean(vitmed("train", data, "-o", place, *TINY_ARGS), 2, f"{place}: cannot be written")
        for source in (trained.best, trained.folder / "test" / "predictions.csv"):
            answer = vitmed("evaluate", source, "-o", place)
            assert answer.code == 2 and "evaluating" not in answer.err and "Traceback" not in answer.err, answer.err
            assert "cannot be written" in answer.err
    assert (tmp_path / "file").read_text() == "x"


def test_a_refused_image_is_told_with_its_fix(vitmed: RUN, tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    deep = next((data / "train").rglob("*.png")).with_name("deep.png")
    Image.fromarray(np.zeros((20, 20), np.uint16)).save(deep)
    args = ("-o", tmp_path / "runs", *TINY_ARGS, "--set", "data.window=null")
    clean(vitmed("train", data, *args), 3, "deep.png: 16 bits", "convert it to 8 bits")


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
        (("--lr", "nan"), ["train.lr"]),
        (("--resize", "stretch"), ["data.resize", "pad", "squash", "crop"]),
        (("--group-regex", "("), ["not a regular expression"]),
        (("--fail-under", "aurok=1"), ["unknown metric 'aurok'", "did you mean 'auroc'"]),
        (("--set", "data.val_fraction=0.4", "--set", "data.test_fraction=0.6"), ["leave nothing to train on"]),
        (
            ("--positive", "amber"),
            [
                "--positive amber: there are 3 classes",
                "omit it; vitmed evaluate RUN --positive amber takes it against the rest",
            ],
        ),
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


@pytest.mark.parametrize(
    "name",
    [
        "ensemble.json",
        "test/metrics.json",
        pytest.param("metrics.jsonl", marks=pytest.mark.slow),
        pytest.param("environment.json", marks=pytest.mark.slow),
    ],
)
def test_json_that_nests_without_end(trained: Trained, vitmed: RUN, tmp_path: Path, name: str) -> None:
    run = shutil.copytree(trained.folder, tmp_path / "run")
    (run / name).write_text('{"a":' * 100_000)
    answer = vitmed("predict", trained.data / "test", "--checkpoint", run)
    if name != "ensemble.json":
        answer = vitmed("compare", trained.folder, run, "-o", tmp_path / "compared")
    assert "bug in vitmed" not in answer.err and answer.code in (0, 2, 3, 4), answer.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("predict", "IMAGE", "--checkpoint", "RUN", "--runs", "elsewhere"), "--runs finds the newest run"),
        (("explain", "IMAGE", "--checkpoint", "RUN", "--runs", "elsewhere"), "--runs finds the newest run"),
        (("predict", "IMAGE", "--checkpoint", "RUN", "--force"), "no file is named"),
        (("predict", "IMAGE", "--checkpoint", "RUN", "--strict"), "--strict are about parts in a folder"),
        (("predict", "IMAGE", "--checkpoint", "RUN", "--output", "parts", "--strict"), "--strict is about the nodes"),
        (("tune", "DATA", "--trials", "2", "--strict"), "--strict is about the nodes"),
        (("sample-size", "sensitivity", "0.9", "--half-width", "0.05", "--icc", "0.5"), "each patient has one"),
        (("stress", "RUN", "--labels", "TABLE"), "--labels describes other images"),
        (("stress", "RUN", "--allow-leakage"), "--allow-leakage is about other images"),
        (("evaluate", "RUN", "--allow-leakage"), "--allow-leakage is about other images"),
        (("evaluate", "RUN", "--no-report", "--format", "md", "--show-names"), "--format, --show-names: --no-report"),
        (("export", "RUN"), "Missing option '--to'"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    vitmed: RUN, trained: Trained, tmp_path: Path, args: tuple[str, ...], message: str
) -> None:
    (tmp_path / "t.csv").write_text("path,label\n")
    names = {"DATA": trained.data, "IMAGE": trained.data / "test" / "amber", "RUN": trained.folder}
    names["TABLE"] = tmp_path / "t.csv"
    clean(vitmed(*(names.get(word, word) for word in args)), 2, message)


def test_a_missing_torch_is_no_bug(vitmed: RUN, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **given: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("vitmed.commands.summary.summary", missing)
    advice = "pip install torch torchvision; with a model.onnx, predict,"
    clean(vitmed("summary", trained.best), 1, "needs PyTorch, which is not installed here", advice)


# --- the machine


@pytest.mark.parametrize(
    "problem", ["Matplotlib requires access to a writable cache directory", "No usable temporary directory found in x"]
)
def test_no_place_for_temporary_files(vitmed: RUN, monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(problem)

    monkeypatch.setattr("vitmed.commands.summary.summary", fails)
    clean(vitmed("summary", "vit_tiny"), 2, "no folder for temporary files can be written", "--tmpfs /tmp")


def test_a_user_without_a_home(vitmed: RUN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("VITMED_CACHE", raising=False)
    monkeypatch.setattr("vitmed.core.run_folder.user_cache_path", fails)
    clean(vitmed("check", tmp_path), 2, "no home folder is known", "set VITMED_CACHE, or HOME, to a folder")


def test_no_memory_left(trained: Trained, vitmed: RUN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitmed.models.vit import ViT

    def explode(self: ViT, x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(ViT, "forward", explode)
    monkeypatch.setattr("vitmed.training.finetune.summarise", lambda *_: "")
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


@pytest.mark.parametrize("part", ["shutil.copyfile", "tempfile.mkdtemp"])
def test_a_full_disk_is_no_bug(
    exported: Path, vitmed: RUN, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str
) -> None:
    """Also where it is that of temporary files, or `shutil` gives the errors of many files as text."""

    def full(*args: object, **how: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "place")

    monkeypatch.setattr("vitmed.commands.bundle.TOOLS", ())
    monkeypatch.setattr(part, full)
    answer = vitmed("bundle", exported, "--to", tmp_path / "model.tar")
    clean(answer, 2, "a disk is full", "make room", "TMPDIR")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("train", "DIR"), ("runs", "DIR"), ("evaluate", "DIR"), ("check", ".", "-o", "DIR")])
def test_a_folder_of_somebody_else_is_no_bug(
    vitmed: RUN, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The tests may run as root, who may enter every folder."""
    stat = os.stat

    def closed(path: Any, *args: Any, **how: Any) -> os.stat_result:
        if str(path).startswith(f"{tmp_path}/own"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *args, **how)

    monkeypatch.setattr(os, "stat", closed)
    place = tmp_path / "own" / "images"
    answer = vitmed(*[str(place) if word == "DIR" else word for word in words])
    clean(answer, 2, str(place), "Permission denied", "ask the owner")


@pytest.mark.parametrize("verb", ["train", "evaluate", "runs", "check"])
def test_a_name_that_no_file_can_have_is_no_bug(vitmed: RUN, verb: str) -> None:
    clean(vitmed(verb, "a" * 300), 2, "a" * 300, "File name too long", "another place")


def test_a_current_folder_that_is_gone_is_no_bug(vitmed: RUN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    clean(vitmed("check", tmp_path), 2, "the current folder was removed", "cd to one that exists")


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

    monkeypatch.setattr("vitmed.data.image_cache.Scan.decode", interrupt)
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
