"""`vitmed predict`: the same numbers as evaluate, an answer for every image, and nothing else loaded."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Trained, draw_classes, python, recording
from dicom_files import write
from PIL import Image

from vitmed import explain, predict, predict_shard
from vitmed.core.errors import CheckpointError, DataError, UsageError
from vitmed.core.load_config import with_values
from vitmed.inference import checkpoint
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.predictions import Predictions
from vitmed.models.weights.files import safe_load

ANSWER = Callable[..., Any]


def table(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_any_images_in_any_order_are_evaluate_within_a_hundred_thousandth(trained: Trained) -> None:
    evaluated = Predictions.from_csv(trained.folder / "test" / "predictions.csv")
    rng = np.random.default_rng(0)
    for count in (1, 5, len(evaluated)):
        rows = rng.permutation(len(evaluated))[:count]
        said = predict([trained.data / evaluated.paths[i] for i in rows], checkpoint=trained.best, precision="fp32")
        np.testing.assert_allclose(said.probabilities, evaluated.probabilities[rows], atol=1e-5, rtol=0)
        assert said.columns.keys() == evaluated.columns.keys() and (said.predicted == evaluated.predicted[rows]).all()


def test_the_same_at_the_command_line(trained: Trained, tmp_path: Path, vitmed: ANSWER) -> None:
    answer = vitmed("predict", trained.data / "test", "--checkpoint", trained.best, "--csv", tmp_path / "p.csv")
    assert answer.code == 0, answer.err
    evaluated, said = table(trained.folder / "test" / "predictions.csv"), table(tmp_path / "p.csv")
    assert list(said[0]) == [*evaluated[0], "error"]
    for one, other in zip(said, evaluated, strict=True):
        assert one["path"].endswith(other["path"]) and one["label"] == one["error"] == ""
        assert all(one[key] == other[key] for key in other if key not in ("path", "label"))


def test_preprocessing_is_the_checkpoints(trained: Trained, tmp_path: Path) -> None:
    """An image far from square, in another mode: padded, resized and normalised as when it was trained."""
    import torch

    image = Image.new("RGBA", (64, 32), (230, 160, 30, 255))
    image.save(tmp_path / "wide.png")
    said = predict(tmp_path / "wide.png", checkpoint=trained.best)
    pixels = np.zeros((16, 16, 3))
    pixels[4:12] = np.array([230, 160, 30]) / 255  # black above and below
    x = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    with torch.no_grad():
        expected = load_checkpoint(trained.best).model()(torch.tensor(x).permute(2, 0, 1)[None].float())
    assert said.logits[0] == pytest.approx(expected[0].numpy(), abs=1e-4)


def test_raw_probabilities_are_warned_of_once(trained: Trained) -> None:
    image = next(trained.data.rglob("*.png"))
    for file, told in ((trained.best, 0), (trained.best.with_name("last.pt"), 1)):
        ui = recording()
        predict([image], checkpoint=file)
        assert sum("probabilities are raw" in text and "best.pt" in text for text in ui.warned) == told


def test_images_that_made_the_model_are_warned_of(trained: Trained, tmp_path: Path, monkeypatch: Any) -> None:
    splits = load_checkpoint(trained.best).splits.samples
    paths = {name: [sample.path for sample in part] for name, part in splits.items()}
    (tmp_path / "link").symlink_to(trained.data)
    monkeypatch.chdir(trained.data.parent)
    here = Path(trained.data.name)
    images = [tmp_path / "link" / paths["train"][0], here / paths["train"][1], here / paths["val"][0]]
    ui = recording()
    predict([*images, here / paths["test"][0]], checkpoint=trained.best)
    told = (
        "3 of 4 images were used to make this model (2 in the training split and 1 in the validation split of the run)"
    )
    assert [text for text in ui.warned if "used to make" in text] == [f"{told}: numbers from them are too good"]
    ui = recording()
    predict(here / paths["test"][0], checkpoint=trained.best)
    predict_shard(images[:1], checkpoint=trained.best, output=tmp_path / "parts")
    assert [text[:38] for text in ui.warned if "made" in text or "make" in text] == [
        "1 of 1 image was used to make this mod"
    ]


def test_files_folders_and_patterns_in_their_order(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained.data / "test")
    names = ["green/green_0.png", "amber", "blue/blue_[12].png"]
    said = predict(names, checkpoint=trained.best)
    assert list(said.paths) == [
        "green/green_0.png", *(f"amber/amber_{i}.png" for i in range(6)), "blue/blue_1.png", "blue/blue_2.png",
    ]  # fmt: skip
    shutil.copy("amber/amber_0.png", tmp_path / "scan[1].png")  # a file first, then a pattern
    for name, count in (("**/*.png", 18), (Path("amber/amber_0.png"), 1), (tmp_path / "scan[1].png", 1)):
        assert len(predict(name, checkpoint=trained.best)) == count


def test_the_newest_run_is_taken_and_named(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vitmed: ANSWER
) -> None:
    for i, name in enumerate(("old", "newest", "older")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        shutil.copy(trained.best, tmp_path / "runs" / name)
        when = [100, 300, 200][i]
        os.utime(tmp_path / "runs" / name / "best.pt", (when, when))
    monkeypatch.chdir(tmp_path)
    answer = vitmed("predict", trained.data / "test" / "amber" / "amber_0.png")
    assert answer.code == 0 and "newest" in answer.err and "old/" not in answer.err
    folder = vitmed("predict", trained.data / "test" / "amber", "--checkpoint", tmp_path / "runs" / "old")
    assert folder.code == 0  # a run folder stands for its best checkpoint


def test_no_run_and_no_image_to_be_found(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vitmed: ANSWER
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = vitmed("predict", "image.png")
    assert answer.code == 4 and "no run with a best.pt" in answer.err and "vitmed train" in answer.err
    for names, file, kind, told in (
        ("image.png", "none.pt", CheckpointError, r"none\.pt"),
        ([], trained.best, DataError, "no image is named"),
        ([tmp_path], trained.best, DataError, "no images in this folder"),
        ([trained.best.parent], trained.best, UsageError, "is a run, expected images"),  # its figures are images, too
        (["x*.png"], trained.best, DataError, "no file matches"),
    ):
        with pytest.raises(kind, match=told):
            predict(names, checkpoint=file)


@pytest.fixture
def mixed(trained: Trained, tmp_path: Path) -> Path:
    """Three good images among five that cannot be read."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    for i, name in enumerate(("amber", "blue", "green")):
        shutil.copy(trained.data / "test" / name / f"{name}_0.png", folder / f"{2 * i}_{name}.png")
    (folder / "1_empty.png").write_bytes(b"")
    (folder / "3_text.jpg").write_text("hello")
    (folder / "5_cut.png").write_bytes((folder / "0_amber.png").read_bytes()[:100])
    (folder / "7_link.png").symlink_to(folder / "gone.png")
    (folder / "8_scan.dcm").write_bytes(bytes(128) + b"DICM")
    return folder


def test_a_window_answers_dicom_and_stands_in_the_table(trained: Trained, tmp_path: Path, vitmed: ANSWER) -> None:
    values = np.random.default_rng(0).integers(0, 2000, (40, 40)).astype(np.uint16)
    deep = write(tmp_path / "deep.dcm", values, RescaleSlope=1, RescaleIntercept=-1024)
    grey = np.clip(((values - 1024.0 - 39.5) / 399 + 0.5) * 255, 0, 255).round()  # PS3.3, C.11.2.1.2.1
    Image.fromarray(grey.astype(np.uint8)).save(flat := tmp_path / "flat.png")
    given = ("predict", deep, flat, "--checkpoint", trained.best)
    answer = vitmed(*given)
    assert "stress and explain take --window CENTRE/WIDTH, such as 40/400" in answer.err + answer.out
    answer = vitmed(*given, "--window", "40/400", "--csv", tmp_path / "found.csv")
    first, second = table(tmp_path / "found.csv")
    assert answer.code == 0 and (first["window"], second["window"]) == ("40/400", "")
    assert {**first, "path": "", "window": ""} == {**second, "path": ""}
    for wrong in ("40", "40/x", "40/0", "40,400"):
        answer = vitmed(*given, "--window", wrong)
        assert answer.code == 2 and f"--window {wrong}: expected the centre and the width" in answer.err
    dim = write(tmp_path / "dim.dcm", grey.astype(np.uint8))
    answer = vitmed("predict", dim, "--checkpoint", trained.best, "--window", "2048/4096")
    assert answer.code == 3 and "8 bits per channel, and would be black in the window 2048/4096" in answer.err
    assert vitmed("predict", dim, "--checkpoint", trained.best, "--window", "128/256").code == 0
    answer = vitmed(*given, "--window", "40/400", "--output", tmp_path / "parts")
    assert answer.code == 2 and "--window do not go with --output" in answer.err


def test_a_model_grouped_by_patient_id_names_the_patients_of_dicom_files(trained: Trained, tmp_path: Path) -> None:
    saved, values = load_checkpoint(trained.best), np.arange(4096, dtype=np.uint16).reshape(64, 64)
    images = [write(tmp_path / f"{i}.dcm", values, PatientID=name) for i, name in enumerate(("P 1", "", "P2"))]
    Image.new("L", (64, 64), 9).save(tmp_path / "flat.png")
    images.append(tmp_path / "flat.png")
    assert predict(images, checkpoint=saved, window="2048/4096").groups is None
    grouped = replace(saved, config=with_values(saved.config, {"data.groups": "dicom"}))
    assert predict(images, checkpoint=grouped, window="2048/4096").groups == ("P 1", "", "P2", "")
    assert predict(images[3:], checkpoint=grouped).groups is None


def test_unreadable_images_are_rows_and_the_rest_is_answered(
    trained: Trained, mixed: Path, tmp_path: Path, vitmed: ANSWER
) -> None:
    missing = tmp_path / "missing.png"
    answer = vitmed("predict", mixed, missing, "--checkpoint", trained.best, "--csv", tmp_path / "p.csv")
    assert answer.code == 3 and "6 of 9 images could not be read" in answer.err and "Traceback" not in answer.err
    rows = {Path(row["path"]).name: row for row in table(tmp_path / "p.csv")}
    assert len(rows) == 9
    bad = {"1_empty.png": "empty", "3_text.jpg": "not an image", "5_cut.png": "cannot be decoded",
           "7_link.png": "broken link", "8_scan.dcm": "DICOM", "missing.png": "no such file"}  # fmt: skip
    for name, row in rows.items():
        if name in bad:
            assert bad[name] in row["error"] and row["prediction"] == row["logit_amber"] == ""
            assert bad[name] in answer.err
        else:
            assert row["error"] == "" and row["prediction"]
    alone = predict(mixed / "4_green.png", checkpoint=trained.best)
    assert float(rows["4_green.png"]["logit_green"]) == pytest.approx(float(alone.logits[0, 2]), abs=1e-5)


def test_all_that_is_unread_is_counted_and_the_csv_is_named(trained: Trained, tmp_path: Path, vitmed: ANSWER) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    for i in range(23):
        (folder / f"{i:02}.png").touch()
    answer = vitmed("predict", folder, "--checkpoint", trained.best, "--csv", tmp_path / "p.csv")
    assert answer.code == 3 and "23 of 23 images could not be read" in answer.err
    assert "19.png" in answer.err and "20.png" not in answer.err and "... and 3 more" in answer.err
    assert f"all predictions: {tmp_path / 'p.csv'}" in answer.err and len(table(tmp_path / "p.csv")) == 23


def test_json_is_one_object_and_nothing_else(trained: Trained, mixed: Path, vitmed: ANSWER) -> None:
    answer = vitmed("predict", mixed, "--checkpoint", trained.best, "--json", "--top-k", 2)
    assert answer.code == 3
    given = json.loads(answer.out)
    assert answer.out.count("\n") == 1
    assert given["classes"] == ["amber", "blue", "green"] and "not a medical device" in given["notice"]
    assert [Path(image["path"]).name for image in given["images"]] == ["0_amber.png", "2_blue.png", "4_green.png"]
    for image in given["images"]:
        first, second = image["top"]
        assert first == {"class": image["prediction"], "probability": image["confidence"]}
        assert first["probability"] >= second["probability"]
    assert len(given["errors"]) == 5 and all(error["error"] for error in given["errors"])


def test_the_table_shows_class_probability_and_runners_up(trained: Trained, vitmed: ANSWER) -> None:
    file = trained.data / "test" / "amber" / "amber_0.png"
    said = predict(file, checkpoint=trained.best)
    answer = vitmed("predict", file, "--checkpoint", trained.best, "--top-k", 3)
    order = np.argsort(-said.probabilities[0])
    flat = " ".join(answer.out.split())
    assert said.classes[order[0]] in flat and f"{said.probabilities[0, order[0]]:.3f}" in flat
    assert all(said.classes[k] in flat for k in order) and "Research use only" in flat


def test_the_checkpoint_is_read_once(
    trained: Trained, tmp_path: Path, vitmed: ANSWER, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one takes seconds to read and to check."""
    read: list[Path] = []

    def noted(file: Path) -> Any:
        read.append(file)
        return safe_load(file)

    monkeypatch.setattr(checkpoint, "safe_load", noted)
    given = trained.data / "test" / "amber" / "amber_0.png", "--checkpoint", trained.best
    assert vitmed("predict", *given, "--csv", tmp_path / "p.csv", "--plot", tmp_path / "p.png").code == 0
    assert read == [trained.best]
    with Image.open(tmp_path / "p.png") as image:
        assert image.format == "PNG" and min(image.size) > 50
    assert vitmed("explain", *given, "-o", tmp_path / "maps").code == 0
    assert read == [trained.best] * 2


def test_an_output_that_cannot_be_written(trained: Trained, tmp_path: Path, vitmed: ANSWER) -> None:
    file = trained.data / "test" / "amber" / "amber_0.png"
    answer = vitmed("predict", file, "--checkpoint", trained.best, "--csv", tmp_path)  # a folder is there
    assert answer.code == 2 and f"{tmp_path}: cannot be written" in answer.err and "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("option", "file", "told"),
    [
        ("--csv", "none/p.out", "p.out: its folder is missing"),
        ("--plot", "none/p.out", "p.out: its folder is missing"),
        ("--plot", "p.jpg", "PNG"),
    ],
)
def test_what_cannot_be_written_is_told_before_predicting(
    vitmed: ANSWER, tmp_path: Path, option: str, file: str, told: str
) -> None:
    image, checkpoint = tmp_path / "x.png", tmp_path / "none.pt"
    image.touch()
    checkpoint.touch()
    answer = vitmed("predict", image, "--checkpoint", checkpoint, option, tmp_path / file)
    assert answer.code == 2 and told in answer.err and "none.pt" not in answer.err


def test_names_of_every_kind(trained: Trained, tmp_path: Path, vitmed: ANSWER) -> None:
    names = ["with space.png", "naïve 細胞.png", "[red]markup[bold].png", "comma,quote'\".png", "new\nline.png"]
    names.append("n" * 251 + ".png")
    if os.name == "posix":
        names.append(os.fsdecode(b"latin-1 caf\xe9.png"))  # from an old disk: no valid UTF-8
    folder = tmp_path / "names"
    folder.mkdir()
    for name in names:
        shutil.copy(trained.data / "test" / "amber" / "amber_0.png", folder / name)
    answer = vitmed("predict", folder, "--checkpoint", trained.best, "--csv", tmp_path / "p.csv", "--json")
    assert answer.code == 0, answer.err
    given = [image["path"] for image in json.loads(answer.out)["images"]]
    assert {f"{folder}/{name}" for name in names[:6]} <= set(given) and len(given) == len(names)
    rows = {row["path"] for row in table(tmp_path / "p.csv")}
    assert {f"{folder}/{name}" for name in names[:6]} <= rows and len(rows) == len(names)
    shown = vitmed("predict", folder, "--checkpoint", trained.best)
    assert shown.code == 0 and f"{folder}/{names[5]}" in shown.out  # off a terminal a path stays on one line


@pytest.mark.slow
def test_a_new_process_loads_only_what_it_needs_and_outlives_its_reader(trained: Trained, tmp_path: Path) -> None:
    """`vitmed predict ... | head -0` writes its file and keeps its exit code; nothing for training or drawing loads."""
    (tmp_path / "broken.png").write_bytes(b"")
    code = """
import sys
sys.modules["pyarrow"] = None
from vitmed.cli import main
try:
    main(sys.argv[1:])
finally:
    heavy = ("torch._dynamo", "albumentations", "torchvision", "sklearn", "scipy", "matplotlib", "cv2", "jinja2")
    heavy += ("torch._inductor", "sympy", "filelock", "rich.progress", "rich.live")
    print("loaded:", *[module for module in heavy if module in sys.modules], file=sys.stderr)
    from vitmed.commands import evaluate, train  # they need no pyarrow either
"""
    reader, writer = os.pipe()
    os.close(reader)
    args = [trained.data / "test" / "amber", "broken.png", "--checkpoint", trained.best, "--csv", "p.csv", "--json"]
    command = [sys.executable, "-c", code, "predict", *map(str, args)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=120)
    os.close(writer)
    assert done.returncode == 3 and "BrokenPipe" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.endswith("loaded:\n") and (tmp_path / "p.csv").is_file(), done.stderr


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images(trained: Trained, tmp_path: Path) -> None:
    """3,000 images take as much as 300 do, but for the few bytes of a row each."""
    few = draw_classes(tmp_path / "few", 300, ("amber",), side=200) / "amber"
    many = tmp_path / "many"
    many.mkdir()
    for i in range(3000):
        os.link(few / f"amber_{i % 300}.png", many / f"{i}.png")
    code = """
import resource, sys
from vitmed import explain, predict, predict_shard
assert len(predict(sys.argv[1], checkpoint=sys.argv[2])) == int(sys.argv[3])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    peaks = []
    for folder, count in ((few, 300), (many, 3000)):
        done = python("-c", code, str(folder), str(trained.best), str(count), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 20, f"MiB: {peaks}"


def test_evaluate_stress_and_explain_take_the_window(
    trained: Trained, tmp_path: Path, vitmed: ANSWER, no_figures: None
) -> None:
    """Of a model of 8-bit images; beside the same images as they were windowed elsewhere."""
    rng = np.random.default_rng(0)
    for i, name in enumerate(("amber", "blue", "green") * 2):
        values = rng.integers(0, 2000, (40, 40)).astype(np.uint16)
        grey = np.clip(((values - 1024.0 - 39.5) / 399 + 0.5) * 255, 0, 255).round().astype(np.uint8)
        for folder in ("deep", "flat"):
            (tmp_path / folder / name).mkdir(parents=True, exist_ok=True)
        write(tmp_path / "deep" / name / f"{i}.dcm", values, RescaleSlope=1, RescaleIntercept=-1024)
        Image.fromarray(grey).save(tmp_path / "flat" / name / f"{i}.png")
    given, at = ("--data", tmp_path / "deep"), ("--window", "40/400")
    for command in ("evaluate", "stress"):
        answer = vitmed(command, trained.best, *given, "-o", tmp_path / "refused")
        assert answer.code == 3 and "need a window to become grey" in answer.err, command
        one = ("--corruption", "jpeg") if command == "stress" else ("--no-report", "--resamples", "20")
        answer = vitmed(command, trained.best, *given, *at, "-o", tmp_path / command, "--quiet", *one)
        assert answer.code == 0, answer.err
    assert "shown to the model in the window 40/400" in answer.err
    given = ("--data", tmp_path / "flat")
    assert vitmed("evaluate", trained.best, *given, "-o", tmp_path / "of-flat", "--no-report").code == 0
    found, usual = (table(tmp_path / name / "predictions.csv") for name in ("evaluate", "of-flat"))
    assert [{**row, "path": ""} for row in found] == [{**row, "path": ""} for row in usual]
    report = (tmp_path / "evaluate" / "metrics.json").read_text()
    assert "shown to the model in the window 40/400" in report and "channels 3, window 40/400 (centre/width)" in report
    answer = vitmed("explain", tmp_path / "deep", "--checkpoint", trained.best, *at, "-o", tmp_path / "maps")
    maps, numbers = json.loads((tmp_path / "maps" / "explain.json").read_text()), [row["prob_amber"] for row in found]
    assert answer.code == 0 and [row["answer"] for row in maps["images"]] == [row["answer"] for row in found]
    assert [row["probabilities"]["amber"] for row in maps["images"]] == pytest.approx(list(map(float, numbers)))
    assert "leave it out" in vitmed("evaluate", trained.best, *at).err  # an option that would do nothing
    answer = vitmed("evaluate", tmp_path / "evaluate" / "predictions.csv", *at)
    assert answer.code == 2 and "--window" in answer.err


@pytest.mark.parametrize("images", [3, ["a.png", float("nan")], None])
def test_what_is_no_path_is_refused(trained: Trained, images: Any) -> None:
    with pytest.raises(UsageError, match=r"images=.*: Input should be (an instance of Sequence|a valid string)"):
        predict(images, checkpoint=trained.folder)
    with pytest.raises(UsageError, match=r"images=.*: Input should be (an instance of Sequence|a valid string)"):
        explain(images, checkpoint=trained.folder)
    with pytest.raises(UsageError, match=r"images=.*: Input should be (an instance of Sequence|a valid string)"):
        predict_shard(images, checkpoint=trained.folder, output="parts")


def test_images_may_come_from_any_iterable_of_paths(trained: Trained, tmp_path: Path) -> None:
    folder = next((trained.data / "test").iterdir())
    expected = set(predict(folder, checkpoint=trained.folder).paths)
    for images in (folder.iterdir(), list(os.scandir(folder))):
        assert set(predict(images, checkpoint=trained.folder).paths) == expected  # type: ignore[arg-type]
    two = (path for path in sorted(folder.iterdir())[:2])
    assert len(explain(two, checkpoint=trained.folder, output=tmp_path / "x").predictions) == 2  # type: ignore[arg-type]


def test_a_cause_that_many_files_share_is_said_once(trained: Trained, tmp_path: Path, vitmed: ANSWER) -> None:
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(b"no image")
    answer = vitmed("predict", tmp_path, "--checkpoint", trained.best)
    assert answer.code == 3 and "3 of 3 images could not be read" in answer.err
    assert answer.err.count("not an image") == 1 and all(f"{name}.png" in answer.err for name in "abc")
