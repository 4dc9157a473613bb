"""Draw the images of `vitmed demo --target findings` and `--target number`: grey frontal chests.

Each patient has their own build, exposure and noise, and several images with up to four findings. A finding changes
what a reader looks for: an effusion fills the bottom of a lung with a curved upper edge, a large heart is wider than
half the chest, a nodule is a small round spot in a lung, and a catheter is a thin line. Half of the images have none.
Large hearts often come with effusions. Of one label in twenty nobody has written anything down. The number is the
width of the heart, measured with an error. Results on these images mean nothing for medicine.

Lengths are shares of the image's side, brightness is 0 (black, air) to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from vitmed.core.csv_files import csv_text
from vitmed.data.synthetic import whole_set

FINDINGS = ("effusion", "large_heart", "nodule", "catheter")
SHARES = (0.25, 0.2, 0.25, 0.08)  # of the images; an effusion is likelier beside a large heart
UNKNOWN_LABELS = 0.05
SIDE = 380.0  # mm, of an image
MEASURED = 2.0  # mm, standard deviation of a measurement
DRAWING = 2  # increase it when the same arguments draw different images or tables
TABLE, HEARTS = "labels.csv", "hearts.csv"


def draw_chests(
    root: Path,
    seed: int = 0,
    images: int = 1000,
    patients: int = 200,
    size: int = 96,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Draw `root/images/P007_01.png`, and two tables with path and patient: `root/labels.csv` with a column for each
    finding, and `root/hearts.csv` with the width of the heart in mm.

    The same arguments draw the same images. The set appears at `root` only when it is complete; a complete set with the
    same arguments is kept.

    Args:
        root: the folder to make; may exist if it is empty.
        images: divided evenly among the patients, at least one for each.
        size: side of the square images, px.
        progress: called after each image with (done, total).

    Raises:
        UsageError: `root` cannot be written. DataError: it holds something else.
    """
    arguments = {"drawing": DRAWING, "seed": seed, "images": images, "patients": patients, "size": size}
    with whole_set(root, arguments, "images/P*.png", images) as folder:
        if folder is None:
            return
        (folder / "images").mkdir()
        rows: list[list[str]] = [["path", "patient", *FINDINGS]]
        hearts = [["path", "patient", "heart_width"]]
        for done in range(images):
            patient, number = done % patients, done // patients
            build, rng = np.random.default_rng((seed, patient, 0)), np.random.default_rng((seed, patient, number + 1))
            there = _findings(rng)
            path = f"images/P{patient + 1:03d}_{number + 1:02d}.png"
            pixels, width = _chest(build, rng, there, size)
            Image.fromarray(pixels).save(folder / path)
            known = rng.random(len(FINDINGS)) >= UNKNOWN_LABELS
            cells = [str(int(one)) if read else "" for one, read in zip(there, known, strict=True)]
            rows.append([path, f"P{patient + 1:03d}", *cells])
            hearts.append([*rows[-1][:2], f"{SIDE * width + rng.normal(0, MEASURED):.1f}"])
            if progress is not None:
                progress(done + 1, images)
        for name, table in ((TABLE, rows), (HEARTS, hearts)):
            (folder / name).write_text(csv_text(table), encoding="utf-8")


def _findings(rng: np.random.Generator) -> list[bool]:
    """Which findings an image has."""
    heart = bool(rng.random() < SHARES[1])
    effusion = bool(rng.random() < (0.5 if heart else (SHARES[0] - 0.5 * SHARES[1]) / (1 - SHARES[1])))
    return [effusion, heart, *(bool(one) for one in rng.random(2) < SHARES[2:])]


def _chest(
    build: np.random.Generator, rng: np.random.Generator, there: list[bool], size: int
) -> tuple[np.ndarray, float]:
    """(size, size) uint8, and the width of the heart; `build` draws what a patient's images share, `rng` the image."""
    axis = (np.arange(size) + 0.5) / size
    x, y = np.meshgrid(axis - rng.normal(0, 0.01), axis - rng.normal(0, 0.01))  # 2 x (S, S)
    width, height = build.uniform(0.36, 0.44), build.uniform(0.62, 0.74)
    dark, spine, noise = build.uniform(0.16, 0.26), build.uniform(0.62, 0.74), build.uniform(0.015, 0.035)
    ribs = build.uniform(0.04, 0.09) * (np.cos((y - 0.35 * np.abs(x - 0.5)) * build.uniform(52, 62)) > 0.55)
    picture = np.full((size, size), build.uniform(0.55, 0.65))
    lungs = []
    for side in (-1, 1):
        lung = _ellipse(x, y, 0.5 + side * 0.21, 0.47, width / 2, height / 2, 0.02)
        picture = picture * (1 - lung) + lung * (dark + ribs)
        lungs.append(lung)
    picture += (spine - picture) * 0.8 * np.exp(-(((x - 0.5) / 0.045) ** 2))
    beat = build.uniform(0.125, 0.145) * rng.uniform(0.97, 1.03) + (rng.uniform(0.05, 0.08) if there[1] else 0)
    heart = _ellipse(x, y, 0.55, 0.62, beat, 0.13, 0.015)
    picture = picture * (1 - heart) + heart * (spine + 0.08)
    if there[0]:
        side = int(rng.integers(2))
        level = 0.47 + height / 2 - rng.uniform(0.12, 0.24)
        curve = level + 1.6 * (0.21 - np.abs(x - (0.29 if side == 0 else 0.71))).clip(0) * 0.25
        fluid = lungs[side] / (1 + np.exp(-(y - curve) / 0.012))
        picture = picture * (1 - fluid) + fluid * 0.66
    if there[2]:
        side, turn = int(rng.integers(2)), rng.uniform(0, 2 * np.pi)
        at = (0.5 + (2 * side - 1) * 0.22 + 0.08 * np.cos(turn), 0.42 + 0.14 * np.sin(turn))
        radius = rng.uniform(0.035, 0.055)
        picture += rng.uniform(0.25, 0.35) * _ellipse(x, y, *at, radius, radius, 0.006)
    if there[3]:
        way = 0.5 + rng.uniform(0.03, 0.09) + 0.05 * np.sin(5 * y + rng.uniform(0, 2))
        picture += 0.35 * np.exp(-(((x - way) / 0.011) ** 2)) * (y < rng.uniform(0.5, 0.65))
    seen = np.clip(picture * rng.uniform(0.93, 1.07) + rng.normal(0, noise, (size, size)), 0, 1)
    blurred = Image.fromarray((255 * seen).astype(np.uint8)).filter(ImageFilter.GaussianBlur(0.006 * size))
    return np.asarray(blurred), 2 * beat


def _ellipse(x: np.ndarray, y: np.ndarray, cx: float, cy: float, a: float, b: float, edge: float) -> np.ndarray:
    """(S, S) 1 inside an ellipse, 0 outside, with a soft margin."""
    distance = (np.hypot((x - cx) / a, (y - cy) / b) - 1) * min(a, b)
    return 1 / (1 + np.exp(np.clip(distance / (edge / 2), -50, 50)))
