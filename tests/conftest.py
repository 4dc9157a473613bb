"""What the tests share: tiny drawn images, one tiny trained run, the command line called in-process."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a second thread only slows such small tensors
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitmed.ui import Ui

COLOURS = {"amber": (230, 160, 30), "blue": (40, 60, 230), "green": (40, 200, 60)}
# A network that trains in a second; the recipe of nearly every run here.
TINY = {
    "image_size": 16,
    "patch_size": 8,
    "epochs": 2,
    "batch_size": 8,
    "lr": 3e-3,
    "warmup_epochs": 0.5,
    "policy": "none",
    "workers": 0,
    "device": "cpu",
    "precision": "fp32",
}
TINY_SETS = ("model.width=16", "model.depth=1", "model.heads=2")
TINY_ARGS = [
    *(part for key, value in TINY.items() for part in (f"--{key.replace('_', '-')}", str(value))),
    *(part for text in TINY_SETS for part in ("--set", text)),
]


def draw_image(rng: np.random.Generator, colour: Sequence[int], side: int = 20) -> np.ndarray:
    """A blob of one colour anywhere on grey noise, (side, side, 3) uint8: easy to learn, no two alike."""
    image = rng.integers(90, 130, (side, side, 3), dtype=np.uint8)
    size = side // 2
    y, x = rng.integers(0, side - size, 2)
    image[y : y + size, x : x + size] = np.clip(np.array(colour) + rng.integers(-20, 20, 3), 0, 255)
    return image


def draw_classes(
    folder: Path, count: int = 10, classes: Sequence[str] = ("amber", "blue"), seed: int = 0, side: int = 20
) -> Path:
    """folder/<class>/<class>_<i>.png, `count` each; other seeds give other images."""
    rng = np.random.default_rng(seed)
    colours = [COLOURS.get(name, tuple(COLOURS.values())[k % 3]) for k, name in enumerate(classes)]
    for name, colour in zip(classes, colours, strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.fromarray(draw_image(rng, colour, side)).save(folder / name / f"{name}_{i}.png")
    return folder


def draw_splits(
    root: Path, train: int = 12, val: int = 4, test: int = 6, classes: Sequence[str] = ("amber", "blue"), seed: int = 0
) -> Path:
    """root/{train,val,test}/<class>/*.png; a split of 0 images is left out."""
    for k, (name, count) in enumerate({"train": train, "val": val, "test": test}.items()):
        if count:
            draw_classes(root / name, count, classes, seed=10 * seed + k)
    return root


class Recorder(Ui):
    """Keeps what a command says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)


def data_folder() -> Path | None:
    named = os.environ.get("VITMED_DATA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real images: VITMED_DATA, else ../shared/data beside the repository."""
    folder = data_folder()
    if folder is None:
        pytest.skip("no real images: set VITMED_DATA to a folder that holds malaria/, or put them in ../shared/data")
    return folder


@pytest.fixture
def ui() -> Recorder:
    return Recorder()


@contextlib.contextmanager
def quick_reports() -> Iterator[None]:
    """Reports with few, coarse pictures and few resamples: the same code in a tenth of the time."""
    from vitmed import report
    from vitmed.plots import PLOTS

    with pytest.MonkeyPatch.context() as patch:
        from vitmed import plots

        patch.setattr(plots, "DPI", 20)
        patch.setattr(plots, "PICTURES", 2)
        yield


@pytest.fixture(autouse=True)
def _quick_reports() -> Iterator[None]:
    with quick_reports():
        yield
