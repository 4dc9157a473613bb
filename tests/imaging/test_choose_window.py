"""A window is settled once, over the training images, and holds for everything that comes after."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import TINY, TINY_ARGS, TINY_SETS, Answer, Recorder, once, recording
from image_files import raw_png
from PIL import Image

from vitmed import evaluate, predict, train
from vitmed.core.config import Config, DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.load_config import load_config
from vitmed.imaging.choose_window import choose_window as choose
from vitmed.imaging.decode import read_header, read_image
from vitmed.imaging.file_record import examine
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import load_checkpoint

RUN = Callable[..., Answer]


def deep_classes(root: Path, count: int = 8, top: int = 4000) -> Path:
    """root/<class>/*.png of 16 bits: a bright square left or right on noise, values 300 to `top`."""
    rng = np.random.default_rng(0)
    for name, x in (("left_one", 2), ("other", 10)):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            image = rng.integers(300, 1200, (20, 20)).astype(np.uint16)
            image[4:14, x : x + 8] = rng.integers(top - 500, top, (10, 8))
            Image.fromarray(image).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Recorder]:
    """Data, run folder, and what was said: a tiny run on 16-bit images."""

    def make(place: Path) -> tuple[Path, Path, Recorder]:
        data, ui = deep_classes(place / "data"), recording()
        settings = TINY | {"report": False}
        return data, train(data, output=place / "runs", name="deep", sets=TINY_SETS, **settings).folder, ui

    return once(tmp_path_factory, "deep", make)


def test_a_run_settles_its_window_and_keeps_it(run: tuple[Path, Path, Recorder]) -> None:
    data, folder, ui = run
    saved = load_checkpoint(folder)
    assert isinstance(saved.preprocessing.window, tuple)
    low, high = saved.preprocessing.window
    names = [data / s.path for s in saved.splits.samples["train"]]
    pixels = np.concatenate([np.asarray(Image.open(p)).ravel() for p in names])  # fewer than are sampled: all
    assert (low, high) == pytest.approx(tuple(np.percentile(pixels, (0.5, 99.5))))
    told = [line for line in ui.said if line.startswith("16-bit images: window")]
    assert len(told) == 1 and f"{low:g} .. {high:g}" in told[0] and f"{len(names)} training images" in told[0]
    assert yaml.safe_load((folder / "config.yaml").read_text())["data"]["window"] == [low, high]
    array = np.asarray(Image.open(names[0])).astype(float)
    how = replace(saved.preprocessing, image_size=20, channels=1)
    assert np.abs(how.read(names[0])[..., 0] - np.clip((array - low) / (high - low), 0, 1) * 255).max() <= 0.51


def test_prediction_and_evaluation_use_it(run: tuple[Path, Path, Recorder], tmp_path: Path, no_figures: None) -> None:
    data, folder, _ = run
    with (folder / "test" / "predictions.csv").open() as stream:
        row = next(csv.DictReader(stream))
    found = predict(data / row["path"], checkpoint=folder)
    assert float(found.logits[0, 0]) == pytest.approx(float(row["logit_left_one"]), abs=1e-5)
    again = evaluate(folder, output=tmp_path / "again", device="cpu")
    assert "window " in again.metrics["report"]["facts"]["Preprocessing"]
    ui = recording()
    Image.new("L", (20, 20), 9).save(tmp_path / "flat.png")
    predict(tmp_path / "flat.png", checkpoint=folder)
    assert any("1 image has 8 bits" in line for line in ui.warned)


def test_a_model_of_8_bit_images_refuses_deep_ones(run: tuple[Path, Path, Recorder], trained: object) -> None:
    data = run[0]
    found = predict(data / "other", checkpoint=trained.best)  # type: ignore[attr-defined]
    assert len(found) == 0 and len(found.errors) == 8
    assert "16 bits per channel" in found.errors[0][1]


def test_a_window_that_leaves_nothing_to_see_is_a_warning(
    run: tuple[Path, Path, Recorder], trained: object, ui: Recorder, tmp_path: Path
) -> None:
    deep = tmp_path / "deep.png"
    Image.fromarray(np.linspace(1000, 4000, 64 * 64).reshape(64, 64).astype(np.uint16)).save(deep)
    for window, lost in (("2500/3000", False), ("300/500", True)):
        ui.warned.clear()
        predict(deep, checkpoint=trained.best, window=window)  # type: ignore[attr-defined]
        assert any("lie outside the window" in text for text in ui.warned) == lost, window
    flat = tmp_path / "flat.png"
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(flat)
    predict(flat, checkpoint=trained.best, window="40/400")  # type: ignore[attr-defined]
    assert any("changes nothing: no image has more than 8 bits" in text for text in ui.warned)
    shutil.copytree(trained.data / "test", tmp_path / "other")  # type: ignore[attr-defined]
    Image.fromarray(np.full((20, 20, 3), 90, np.uint8)).save(tmp_path / "other" / "amber" / "new.png")
    settings = {"data": tmp_path / "other", "window": "40/400", "output": tmp_path / "w", "allow_leakage": True}
    notes = evaluate(trained.best, **settings, resamples=0, report=False).metrics.notes  # type: ignore[attr-defined]
    assert "--window 40/400 changes nothing: no image has more than 8 bits" in notes


def test_the_command_line(vitmed: RUN, run: tuple[Path, Path, Recorder], tmp_path: Path, no_figures: None) -> None:
    answer = vitmed("plan", run[0], "--window", "500,3000", "-o", tmp_path / "plan.yaml")
    assert answer.code == 0 and "16-bit images: window 500 .. 3000, as given" in answer.err
    assert "of the pixels lie outside the window" in answer.err
    assert yaml.safe_load((tmp_path / "plan.yaml").read_text())["data"]["window"] == [500, 3000]
    for text in ("3000,500", "wide", "1,2,3", "nan,5", "dicom:x"):
        answer = vitmed("plan", run[0], "--window", text, "-o", tmp_path / "x.yaml")
        assert answer.code == 2 and "data.window" in answer.err and "Traceback" not in answer.err, text
    answer = vitmed("train", run[0], "--window", "dicom", "-o", tmp_path / "runs", *TINY_ARGS)
    assert answer.code == 3 and "no window of its own" in answer.err and "--window percentiles" in answer.err
    answer = vitmed("predict", run[0] / "other" / "0.png", "--checkpoint", run[1], "--plot", tmp_path / "p.png")
    assert answer.code == 0 and (tmp_path / "p.png").stat().st_size


def test_images_with_white_and_with_black_at_zero_have_a_window_each(tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    from dicom_files import write

    rng, files = np.random.default_rng(0), list[Path]()
    for i in range(4):
        values = rng.integers(200, 3800, (32, 32)).astype(np.uint16)
        files.append(write(tmp_path / f"{i}.dcm", values))
        files.append(write(tmp_path / f"{i}m1.dcm", 65535 - values, PhotometricInterpretation="MONOCHROME1"))
    alone, mixed = choose(files[::2]).window, choose(files)
    low, high = alone  # type: ignore[misc]
    assert mixed.window == pytest.approx((low, high, 65535 - high, 65535 - low)) and not mixed.warnings
    first, inverted = (np.asarray(read_image(file, 1, window=mixed.window)).astype(int) for file in files[:2])
    assert np.ptp(first) > 250 and np.abs(first - inverted).max() <= 1
    assert (np.asarray(read_image(files[0], 1, window=alone)) == first).all()
    before = read_image(files[1], 1, window=(0.0, 65535.0))  # a pair is for both, as in every model before
    assert np.abs(np.asarray(before).astype(float) - np.asarray(first) * (high - low) / 65535).max() < 2
    (warned,) = choose(files, (200, 3800)).warnings
    assert "MONOCHROME1 images (--window percentiles" in warned and ": 100% become black" in warned
    four = [200.0, 3800.0, 61735.0, 65335.0]
    assert not choose(files, tuple(four)).warnings
    assert Preprocessing.of(Config(data=DataConfig(window=four))).window == tuple(four)


def test_pretraining_settles_one_too(run: tuple[Path, Path, Recorder], tmp_path: Path, no_figures: None) -> None:
    from vitmed import pretrain

    ui = recording()
    sizes = {k: TINY[k] for k in ("image_size", "patch_size", "batch_size", "workers", "device", "precision")}
    made = pretrain(run[0], output=tmp_path, name="p", sets=TINY_SETS[:3], epochs=1, **sizes)
    assert isinstance(yaml.safe_load((made.folder / "config.yaml").read_text())["data"]["window"], list)
    assert any(line.startswith("16-bit images") for line in ui.said)


# --- what auto becomes


def flat(file: Path) -> Path:
    Image.new("L", (8, 8), 5).save(file)
    return file


def test_8_bits_need_no_window_and_unreadable_files_are_left_for_later(tmp_path: Path) -> None:
    (tmp_path / "bad.tif").write_bytes(b"II*\0")
    (tmp_path / "empty.png").write_bytes(b"")
    assert choose([tmp_path / "bad.tif", tmp_path / "empty.png", tmp_path / "gone.png"]).window is None
    paths = [flat(tmp_path / name) for name in ("a.png", "b.jpg", "c.tif")]
    found = choose(paths)
    assert (found.window, found.notes, found.warnings) == (None, [], [])
    assert choose(paths, [1.0, 2.0]).warnings[0].startswith("no training image has more than 8 bits")
    assert "no effect" in choose(paths, "percentiles").warnings[0]  # who names them expects something of them
    found = choose([*deep_classes(tmp_path / "deep").rglob("*.png"), paths[0]])
    assert isinstance(found.window, tuple)
    assert found.warnings[0].startswith("1 of 17 training images have 8 bits and are not windowed, 16 are windowed")


def test_the_sample_is_bounded_and_always_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitmed.imaging import choose_window

    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 60000, (100, 100)).astype(np.uint16)).save(tmp_path / "first.png")
    for i in range(59):
        (tmp_path / f"{i}.png").symlink_to(tmp_path / "first.png")
    paths, read, decode = sorted(tmp_path.iterdir()), [], choose_window.decode
    monkeypatch.setattr(choose_window, "IMAGES", 20)
    monkeypatch.setattr(choose_window, "VALUES", 1000)
    monkeypatch.setattr(choose_window, "decode", lambda path, frame: read.append(path) or decode(path, frame))
    found = choose(paths)
    assert len(set(read)) == 20 and "20 of 60 training images" in found.notes[0]
    assert choose(paths).window == found.window
    assert isinstance(found.window, tuple) and 0 <= found.window[0] < 1500 and 58500 < found.window[1] <= 60000


@pytest.mark.parametrize(("array", "window"), [(np.full((8, 8), 7), (7, 8)), (np.eye(64) * 900, (0, 900))])
def test_images_of_nearly_one_value(tmp_path: Path, array: np.ndarray, window: tuple[float, float]) -> None:
    array = array.astype(np.uint16)
    if array.max() == 900:
        array[1:] = 0  # one value of 4,096: beyond the 99.5 percentile
    Image.fromarray(array).save(tmp_path / "a.png")
    assert choose([tmp_path / "a.png"]).window == window


def test_the_percentiles_and_what_is_said_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All values of two images of 200 each; of a window that is given, how much lies outside."""
    arrays = [np.arange(200).reshape(10, 20) * 10, np.arange(200).reshape(20, 10) * 5 + 7]
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path, array in zip(paths, arrays, strict=True):
        Image.fromarray(array.astype(np.uint16)).save(path)
    every = np.concatenate([array.ravel() for array in arrays])
    low, high = np.percentile(every, (0.5, 99.5))
    told: list[tuple[int, int]] = []
    with monkeypatch.context() as patched:
        bar = nullcontext(lambda *done: told.append(done))
        patched.setattr("vitmed.imaging.choose_window.bar", lambda title: bar)
        found = choose(paths, "percentiles")
    assert found.window == pytest.approx((low, high)) and told == [(1, 2), (2, 2)] and found.warnings == []
    assert found.notes == [
        f"16-bit images: window {low:g} .. {high:g}, the 0.5 and 99.5 percentile of 2 of 2 training images"
    ]
    black, white = np.mean(every < 100), np.mean(every > 1500)
    given = choose(paths, [100.0, 1500.0])
    assert given.window == (100, 1500) and given.notes == [
        "16-bit images: window 100 .. 1500, as given",
        f"{black + white:.0%} of the pixels lie outside the window: {black:.0%} become black, {white:.0%} white",
    ]
    assert len(choose(paths, [0.0, 2000.0]).notes) == 1
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "c.png")
    mixed = choose([*paths, tmp_path / "c.png"])
    assert mixed.window == pytest.approx((low, high)) and "2 of 3 training images" in mixed.notes[0]
    assert mixed.warnings[0].startswith("1 of 3 training images have 8 bits and are not windowed, 2 are windowed: ")
    assert choose([*paths, tmp_path / "gone.png"]).warnings == []


def test_dicom_of_several_depths_is_described(tmp_path: Path) -> None:
    from dicom_files import RAMP, write

    own = {"WindowCenter": "2000", "WindowWidth": "4096"}
    paths = [write(tmp_path / f"{bits}.dcm", RAMP, BitsStored=bits, **own) for bits in (12, 14, 16)]
    found = choose(paths)
    assert found.window == "dicom" and found.notes == [
        "12- to 16-bit DICOM images: each with its own window (--window dicom:1 takes the second of each)"
    ]
    assert choose([paths[1]]).notes[0].startswith("14-bit DICOM images: ")


def test_dicom_with_windows_of_their_own(tmp_path: Path) -> None:
    from dicom_files import RAMP, write

    own = {"WindowCenter": ["100", "2000"], "WindowWidth": ["50", "4000"]}
    paths = [write(tmp_path / f"{i}.dcm", RAMP, **own) for i in range(3)]
    found = choose(paths)
    assert found.window == "dicom" and "each with its own window; 3 files have several" in found.notes[0]
    assert "become white" not in found.notes[1] and "% white" in found.notes[1]  # 100 +- 25 of values up to 4,032
    assert choose(paths, "dicom:1").window == "dicom:1" and len(choose(paths, "dicom:1").notes) == 1
    with pytest.raises(DataError, match="--window dicom:5: no training image has it, but 2 windows at most"):
        choose(paths, "dicom:5")
    assert isinstance(choose(paths, "percentiles").window, tuple)
    paths.append(write(tmp_path / "without.dcm", RAMP))
    assert isinstance(choose(paths).window, tuple)


def test_the_windows_are_those_of_the_frame(tmp_path: Path) -> None:
    """Functional groups (PS3.3, C.7.6.16): frame 0 has no window, 1 has one, 2 has two."""
    from dicom_files import RAMP, write
    from pydicom.dataset import Dataset

    frames = [Dataset() for _ in range(3)]
    for count, item in enumerate(frames[1:], 1):
        window = Dataset()
        window.WindowCenter, window.WindowWidth = ["2000"] * count, ["4000"] * count
        item.FrameVOILUTSequence = [window]
    groups = {"PerFrameFunctionalGroupsSequence": frames}
    paths = [write(tmp_path / f"{i}.dcm", np.stack([RAMP] * 3), frames=3, **groups) for i in range(2)]
    assert [read_header(paths[0], frame).windows for frame in (None, 0, 1, 2)] == [0, 0, 1, 2]
    assert isinstance(choose(paths, frame=0).window, tuple)
    assert choose(paths, frame=1).window == "dicom" and "several" not in choose(paths, frame=1).notes[0]
    assert choose(paths, frame=2).window == "dicom" and "2 files have several" in choose(paths, frame=2).notes[0]


def test_padding_is_left_out(tmp_path: Path) -> None:
    from dicom_files import RAMP, write

    array = RAMP.astype(np.int16)
    array[:4] = -2000
    low, _ = choose([write(tmp_path / "a.dcm", array, PixelPaddingValue=-2000)]).window  # type: ignore[misc]
    assert low >= RAMP[4:].min()


def test_values_that_are_hidden_by_transparency_are_left_out(tmp_path: Path) -> None:
    """Neither the window of a run nor what the data check sees depends on them."""
    visible, windows, seen = np.arange(300, 3000, dtype=np.uint16).reshape(54, 50), set(), list[np.ndarray | None]()
    alpha = np.full_like(visible, 65535)
    alpha[:10] = 0
    for hidden in (0, 1000, 65535):
        stored = np.stack([np.where(alpha > 0, visible, hidden), alpha], axis=-1).astype(">u2")
        file = tmp_path / f"{hidden}.png"
        file.write_bytes(raw_png(50, 54, 16, 4, b"".join(b"\0" + row.tobytes() for row in stored)))
        windows.add(choose([file]).window)
        record = examine(file, "", None).record
        seen.append(record and record.numbers)
    assert windows == {tuple(np.percentile(visible[10:], (0.5, 99.5)).tolist())}
    assert seen[0] is not None and np.array_equal(seen[0], seen[1]) and np.array_equal(seen[0], seen[2])


def test_what_is_not_settled_reads_no_deep_image(tmp_path: Path) -> None:
    for text in ("auto", "percentiles"):
        assert Preprocessing.of(load_config(None, {"data.window": text})).window is None
    assert Preprocessing.of(load_config(None, {"data.window": "40,400"})).window == (40, 400)
    assert Preprocessing.of(load_config(None, sets=["data.window=[-5, 5]", "data.frame=2"])).frame == 2
    assert Preprocessing.of(load_config(None, sets=["data.window=null"])).window is None
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="16 bits per channel"):
        read_image(tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"data\.window"):
        load_config(None, sets=["data.window=[1]"])


def test_images_of_fewer_bits_in_the_window_of_others_are_a_warning(tmp_path: Path) -> None:
    from dicom_files import RAMP, write

    deep = deep_classes(tmp_path / "deep", 2, top=60000).rglob("*.png")
    paths = [*deep, *(write(tmp_path / f"{i}.dcm", RAMP, BitsStored=12) for i in range(3))]
    (warned,) = choose(paths).warnings
    assert warned.startswith("3 of 7 images fill less than 1/8 of the window of all bit depths: ")
    low, high = choose(paths).window  # type: ignore[misc]
    assert np.ptp(np.asarray(read_image(paths[-1], 1, window=(low, high)))) < 256 / 8
    assert not choose([*deep_classes(tmp_path / "like", 2).rglob("*.png"), *paths[4:]]).warnings
    many = deep_classes(tmp_path / "many", 8, top=60000).rglob("*.png")
    assert not choose([*many, paths[-1]]).warnings  # one may be an empty slice


def test_the_check_names_training_images_only_where_there_is_a_split(tmp_path: Path, vitmed: RUN) -> None:
    data = deep_classes(tmp_path / "data", 4)
    assert "percentile of 8 of 8 images" in vitmed("check", data, "--verbose", "-o", tmp_path / "one").err
    split = tmp_path / "split"
    shutil.copytree(data, split / "train")
    shutil.copytree(data, split / "test")
    assert "percentile of 8 of 8 training images" in vitmed("check", split, "--verbose", "-o", tmp_path / "two").err
