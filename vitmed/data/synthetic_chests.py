"""Draw the images of `vitmed demo --target findings` and `--target number`: grey frontal chests.

Each patient has their own build, ribs and noise, and several images, which differ in position, tilt, breath and
exposure. A finding changes what a reader looks for: an effusion fills the bottom of a lung with a curved upper edge, a
large heart is wider than half the chest, a nodule is a round spot in a lung, and a catheter is a line beside the spine.
The exposure does not depend on the findings, and every image has a bright marker of lead, so colours show little. Two
fifths of the images have no finding. Large hearts often come with effusions. Of one label in twenty nobody has written
anything down. The number is the width of the heart, measured with an error. Results on these images mean nothing for
medicine.

Lengths are shares of the image's side, brightness is 0 (black, air) to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from vitmed.core.text_files import csv_text
from vitmed.data.synthetic import smooth_noise, whole_set

FINDINGS = ("effusion", "large_heart", "nodule", "catheter")
SHARES = (0.25, 0.2, 0.25, 0.15)  # of the images; an effusion is likelier beside a large heart
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

    The same arguments draw the same images; `root` is made as by `draw_cells`.

    Args:
        images: divided evenly among the patients, at least one for each.
        size: side of the square images, px.
        progress: called after each image with (done, total).
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
    heart = bool(rng.random() < SHARES[1])
    effusion = bool(rng.random() < (0.5 if heart else (SHARES[0] - 0.5 * SHARES[1]) / (1 - SHARES[1])))
    return [effusion, heart, *(bool(one) for one in rng.random(2) < SHARES[2:])]


def _chest(
    build: np.random.Generator, rng: np.random.Generator, there: list[bool], size: int
) -> tuple[np.ndarray, float]:
    """(size, size) uint8, and the width of the heart; `build` draws what a patient's images share, `rng` the image."""
    axis = (np.arange(size) + 0.5) / size - 0.5
    x, y = np.meshgrid(axis - rng.normal(0, 0.025), axis - rng.normal(0, 0.025))  # 2 x (S, S), from the middle
    tilt, zoom = rng.normal(0, 0.06), build.uniform(0.88, 1.08) * rng.uniform(0.95, 1.05)
    x, y = (x * np.cos(tilt) + y * np.sin(tilt)) / zoom, (y * np.cos(tilt) - x * np.sin(tilt)) / zoom
    belly, width, top = build.uniform(0.38, 0.5), build.uniform(0.135, 0.165), build.uniform(0.34, 0.4)
    steep, gap, ribs = build.uniform(0.2, 0.6), build.uniform(0.065, 0.09), build.uniform(0.05, 0.12)
    spine, breath = build.uniform(0.62, 0.72), build.uniform(0.22, 0.27) + rng.normal(0, 0.02)
    cloud = smooth_noise(rng, size, 6)
    tissue = build.uniform(0.5, 0.6) + 0.1 * y + 0.04 * cloud
    picture = tissue.copy()
    middles = []
    for side in (-1, 1):
        middle = side * (width + build.uniform(0.03, 0.05))
        floor = breath + 0.02 * side + build.uniform(3, 6) * (x - 0.9 * middle) ** 2  # the diaphragm
        lung = _ellipse(x, y, (middle, 0.02), (width, top + 0.02), 0.02) * _step(floor - y, 0.008)
        bone = np.cos(2 * np.pi * (y - steep * np.abs(x) + 2 * (x - middle) ** 2) / gap)
        picture += lung * (0.17 + ribs * bone.clip(0) + 0.02 * cloud - picture)
        middles.append(middle)
    picture += (spine - picture) * 0.8 * np.exp(-((x / 0.045) ** 2))
    low = breath - 0.05  # the heart lies on the diaphragm
    beat = build.uniform(0.115, 0.135) * rng.uniform(0.97, 1.03) + (rng.uniform(0.055, 0.085) if there[1] else 0)
    picture += _ellipse(x + 0.3 * (y - low), y, (0.05, low), (beat, 0.12), 0.015) * (spine + 0.02 - picture)
    if there[0]:
        middle = middles[rng.integers(2)]
        rise = ((x - 0.6 * middle) * np.sign(middle)).clip(0)  # towards the chest wall
        level = breath - rng.uniform(0.04, 0.14) - 4 * rise**2
        picture = np.maximum(picture, tissue * _step(y - level, 0.012) * (x * middle > 0))
    if there[2]:
        turn, middle = rng.uniform(0, 2 * np.pi), middles[rng.integers(2)]
        at = (1.1 * middle + 0.07 * np.cos(turn), -0.06 + 0.13 * np.sin(turn))
        radius = rng.uniform(0.06, 0.085)
        picture += rng.uniform(0.4, 0.5) * _ellipse(x, y, at, (radius, radius), 0.006)
    if there[3]:
        bend, end = rng.uniform(0.03, 0.06), rng.uniform(0.05, 0.15)
        way = -0.06 - bend * np.sin(6 * y + rng.uniform(0, 2))
        picture += 0.45 * np.exp(-(((x - way) / 0.02) ** 2)) * (y < end)
    outline = 0.12 + (belly - 0.12) * _step(y + 0.4, 0.025)
    picture *= _step(outline - np.abs(x), 0.006)
    tall, wide = (size * rng.uniform((0.04, 0.08), 0.18)).astype(int)  # the marker in an upper corner
    picture[:tall, :: rng.choice((-1, 1))][:, :wide] = rng.uniform(0.7, 1.05)
    picture = (picture - picture.mean()) / picture.std()  # as the machine sets the exposure
    seen = (0.5 + rng.uniform(0.16, 0.22) * (picture + 0.15 * cloud) + rng.normal(0, 0.06)).clip(0, 1)
    seen = seen ** rng.uniform(0.8, 1.25) + rng.normal(0, build.uniform(0.015, 0.035), (size, size))
    blurred = Image.fromarray((255 * seen.clip(0, 1)).astype(np.uint8)).filter(ImageFilter.GaussianBlur(0.006 * size))
    return np.asarray(blurred), 2 * beat * zoom


def _step(distance: np.ndarray, edge: float) -> np.ndarray:
    """(S, S) 1 where the distance is positive, 0 where it is negative, with a soft margin."""
    return 1 / (1 + np.exp(-np.clip(distance / edge, -50, 50)))


def _ellipse(
    x: np.ndarray, y: np.ndarray, middle: tuple[float, float], radii: tuple[float, float], edge: float
) -> np.ndarray:
    """(S, S) 1 inside an ellipse, 0 outside, with a soft margin."""
    (cx, cy), (a, b) = middle, radii
    distance = (np.hypot((x - cx) / a, (y - cy) / b) - 1) * min(a, b)
    return 1 / (1 + np.exp(np.clip(distance / (edge / 2), -50, 50)))
