"""A Python user's process is left as it was: no seed, filter, handler or setting of another library changes."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import albumentations  # noqa: F401 - first imports of libraries change the filters of warnings themselves
import cv2
import matplotlib as mpl
import numpy as np
import pytest
import sklearn.linear_model
import sklearn.neighbors  # noqa: F401
import torch
import torchvision.transforms.v2  # noqa: F401
from conftest import BARE, TINY, TINY_NETWORK, TINY_SETS, Trained, draw_image, draw_only, draw_splits
from PIL import Image

import vitmed
from vitmed.checks.shortcuts import divide

LOGGERS = ("", "pydicom", "matplotlib", "PIL", "torch", "vitmed")
THREADS = 2  # of OpenCV, as a user may have set them


def state_of_the_process() -> dict[str, Any]:
    """What a library must not change, by name."""
    return {
        "torch seed": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy": str(np.random.get_state()),
        "OpenCV threads": cv2.getNumThreads(),
        "OpenCV log": cv2.utils.logging.getLogLevel(),
        "torch": (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(),
                  torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()),
        "warnings": [str(entry) for entry in warnings.filters],
        "loggers": [(logging.getLogger(name).level, len(logging.getLogger(name).handlers)) for name in LOGGERS],
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "matplotlib": str(mpl.rcParams),
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "pillow": (Image.MAX_IMAGE_PIXELS, Image.preinit.__name__),
        "threads": sorted(thread.name for thread in threading.enumerate() if not thread.daemon),
        "umask": next((line for line in _status() if line.startswith("Umask")), ""),
    }  # fmt: skip


def _status() -> list[str]:
    file = Path("/proc/self/status")
    return file.read_text().splitlines() if file.is_file() else []


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], object]:
    """Runs something, and compares the state of the process before and after."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask was changed"))
    monkeypatch.delenv("NO_ALBUMENTATIONS_UPDATE")
    threads = cv2.getNumThreads()

    def watch(what: Callable[[], object]) -> object:
        torch.manual_seed(123)
        random.seed(5)
        np.random.seed(7)
        cv2.setNumThreads(THREADS)
        torch.rand(3), random.random(), np.random.rand(2)
        before = state_of_the_process()
        result = what()
        after = state_of_the_process()
        assert [name for name in before if before[name] != after[name]] == []
        return result

    yield watch
    cv2.setNumThreads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_splits(tmp_path_factory.mktemp("state") / "data")


SMALL = TINY | {"epochs": 1, "policy": "blood_smear", "resamples": 20, "map_images": 1}


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    "more",
    [
        {"drop_path": 0.2, "mixup": 0.4, "stem": "conv", "workers": 1},
        pytest.param({"baseline": True, "lora": 2}, marks=pytest.mark.slow),
    ],
    ids=["mixing and workers", "lora"],
)
def test_train(unchanged: Any, data: Path, tmp_path: Path, trained: Trained, more: dict[str, Any]) -> None:
    if "lora" in more:
        more = {**more, "weights": str(trained.best)}
    unchanged(lambda: vitmed.train(data, output=tmp_path, sets=() if "lora" in more else TINY_SETS, **SMALL | more))


@pytest.mark.slow
def test_train_with_figures(unchanged: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, "confusion_matrix", "reliability", "grid", "attention_maps")
    unchanged(lambda: vitmed.train(data, output=tmp_path, sets=TINY_SETS, **SMALL))


def test_a_run_that_fails(unchanged: Any, data: Path, tmp_path: Path) -> None:
    def fail() -> None:
        with pytest.raises(vitmed.VitmedError, match="NaN"):
            sets = (*TINY_NETWORK, "train.warmup_epochs=0")
            vitmed.train(data, output=tmp_path, sets=sets, **SMALL | {"lr": 1e30, "epochs": 3})

    unchanged(fail)


@pytest.mark.usefixtures("no_figures")
def test_the_other_commands(unchanged: Any, data: Path, tmp_path: Path, trained: Trained) -> None:
    image = next((data / "test").rglob("*.png"))

    def all_of_them() -> None:
        vitmed.evaluate(trained.best, output=tmp_path / "e", device="cpu", resamples=20, map_images=0)
        vitmed.predict([image], checkpoint=trained.best, device="cpu")
        vitmed.explain(image, checkpoint=trained.best, device="cpu", output=tmp_path / "maps")
        vitmed.stress(trained.best, device="cpu", output=tmp_path / "stress")
        vitmed.check(data, output=tmp_path / "check")
        vitmed.summary(str(trained.best))
        vitmed.plan(data, output=tmp_path / "plan.yaml", sets=TINY_SETS, **TINY)
        own = {key: value for key, value in TINY.items() if key != "patch_size"} | {"epochs": 1, "patch_size": 4}
        sets = TINY_NETWORK
        vitmed.pretrain(data, output=tmp_path, sets=sets, **own)
        vitmed.probe(data, weights=trained.best, output=tmp_path, resamples=20, map_images=0)

    unchanged(all_of_them)


def test_a_random_network_follows_the_seed_of_the_user() -> None:
    """`build_model` is as torch's own layers: it draws from the generator that `torch.manual_seed` seeds."""
    torch.manual_seed(3)
    first = vitmed.build_model(image_size=16, patch_size=8, width=16, depth=1, heads=2).state_dict()
    torch.manual_seed(3)
    again = vitmed.build_model(image_size=16, patch_size=8, width=16, depth=1, heads=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_another_default_dtype(trained: Trained, tmp_path: Path) -> None:
    image = next(trained.data.rglob("*.png"))
    given: dict[str, Any] = BARE | {"output": tmp_path, "epochs": 1}
    before = vitmed.load(trained.best, precision="fp32").predict(image)
    torch.set_default_dtype(torch.float64)
    try:
        assert vitmed.load(trained.best, precision="fp32").predict(image) == before
        vitmed.train(trained.data, sets=TINY_SETS, **given)
        vitmed.train(trained.data, weights=trained.best, lora=2, **given)
        vitmed.pretrain(trained.data, sets=TINY_NETWORK, output=tmp_path, epochs=1, image_size=16, patch_size=8)
    finally:
        torch.set_default_dtype(torch.float32)


def test_reading_in_threads(unchanged: Any, tmp_path: Path) -> None:
    """Two threads that silence pydicom or OpenCV at once, the first one leaving last."""
    from concurrent.futures import ThreadPoolExecutor

    import pydicom

    from vitmed.imaging.decode import read_image

    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.SOPClassUID, data.SOPInstanceUID = pydicom.uid.SecondaryCaptureImageStorage, pydicom.uid.generate_uid()
    data.Rows = data.Columns = 20
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated = data.BitsStored = 8
    data.HighBit, data.PixelRepresentation = 7, 0
    data.PixelData = draw_image(np.random.default_rng(0), (0, 0, 0))[..., 0].tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data.add_new(0x00100030, "DA", "not a date")  # of which pydicom warns
        data.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    deep = draw_image(np.random.default_rng(0), (0, 0, 0)).astype(np.uint16) << 8
    cv2.imwrite(str(tmp_path / "a.png"), deep)

    def read() -> None:
        with ThreadPoolExecutor(4) as pool, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(pool.map(lambda name: read_image(tmp_path / name, window=(0, 255)), ["a.dcm", "a.png"] * 20))
        assert not caught

    unchanged(read)


def test_threads_leave_the_filters_of_warnings() -> None:
    """As two trainings in two threads do; `warnings.catch_warnings` of two threads would undo each other's."""
    labels, groups = np.arange(40) % 2, [f"p{i // 2}" for i in range(40)]
    divide(labels, groups)
    before, interval = list(warnings.filters), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that threads take turns within a call
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: divide(labels, groups), range(200)))
    finally:
        sys.setswitchinterval(interval)
    assert warnings.filters == before
