"""Draw the images of `vitmed demo`: stained blood cells, some with malaria parasites.

Results on these images mean nothing for medicine. Like the NIH malaria images, an image of a cell shows one red cell,
cut out, on black. A stained cell absorbs light by the law of Beer and Lambert, I = I0 exp(-sum of density x
absorbance), so stain, light and thickness vary as on a slide. Each patient has their own stain, light, focus and cell
size. The classes differ only in the parasite: a ring or a blob with a dark dot. Both classes have specks of stain,
platelets and pale spots. Lengths of cells are in cell radii (about 0.4 of the image), absorbances in nepers for red,
green and blue.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from vitmed.core.errors import DataError
from vitmed.core.files import is_empty, whole_folder

CLASSES = ("infected", "uninfected")
DRAWING = 1  # increase it when the same arguments draw different images
# Absorbance of cells that are salmon, rose, lilac and beige; a patient has a mixture.
STAINS = np.array([[0.10, 0.47, 0.50], [0.17, 0.60, 0.56], [0.45, 0.50, 0.22], [0.22, 0.32, 0.36]])


@dataclass(frozen=True)
class Patient:
    """The common properties of the cells on one patient's slide."""

    light: np.ndarray  # (3,) intensity where nothing absorbs, 0..255
    red: np.ndarray  # (3,) absorbance of the cell itself
    purple: np.ndarray  # (3,) absorbance of stained parasites, platelets and specks
    radius: float  # of a cell, as a share of half the image
    pallor: float  # how much paler the middle of a cell is, 0..1
    blur: float  # standard deviation of the blur, as a share of the image's side


def draw_cells(
    root: Path,
    seed: int = 0,
    cells: int = 1000,  # number of images, divided evenly among the patients; at least 4 per patient
    patients: int = 50,  # at least 4
    size: int = 64,  # side of the square images, px; at least 16
    progress: Callable[[int, int], None] | None = None,  # called after each cell with (done, total)
) -> None:
    """Draw `root/{train,val,test}/{infected,uninfected}/P007_c012.png`, split by patient.

    A quarter of the patients is healthy; about two thirds of the cells of the others are infected. About 65 % of the
    patients go to train, 15 % to val, 20 % to test. The same arguments draw the same images. The set appears at `root`
    only when it is complete; a complete set with the same arguments is kept. Raises DataError where `root` holds
    something else, UsageError where it cannot be written.
    """
    arguments = {"drawing": DRAWING, "seed": seed, "cells": cells, "patients": patients, "size": size}
    if root.exists() and not is_empty(root):
        try:
            stated = json.loads((root / "demo.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise DataError(f"{root}: exists and is not a demo set", "name another folder: --output") from None
        there = sum(1 for _ in root.glob("*/*/P*_c*.png"))
        if stated != arguments or there != cells:
            problem = f"{root}: holds {there} images of the demo set {stated}, wanted {arguments}"
            raise DataError(problem, "name another folder: --output")
        return
    with whole_folder(root) as drawn:
        for split in ("train", "val", "test"):
            for name in CLASSES:
                (drawn / split / name).mkdir(parents=True)
        plan = _plan(seed, cells, patients)
        looks = dict[int, Patient]()
        for number in range(1, patients + 1):
            rng = np.random.default_rng((seed, number, 0))
            share = rng.dirichlet([0.7] * len(STAINS))
            looks[number] = Patient(
                light=rng.uniform(215, 250) * rng.uniform(0.95, 1.02, 3),
                red=share @ STAINS * rng.uniform(0.75, 1.2),
                purple=np.array([0.38, 1.45, 0.28]) * rng.uniform(0.8, 1.1) * rng.uniform(0.85, 1.15, 3),
                radius=rng.uniform(0.78, 0.94),
                pallor=rng.uniform(0, 0.7),
                blur=rng.uniform(0.003, 0.013),
            )
        for done, (split, patient, cell, infected) in enumerate(plan, start=1):
            rng = np.random.default_rng((seed, patient, cell))  # so no cell depends on another
            image = Image.fromarray(_cell(rng, looks[patient], infected, size))
            image.save(drawn / split / CLASSES[0 if infected else 1] / f"P{patient:03d}_c{cell:03d}.png")
            if progress is not None:
                progress(done, len(plan))
        (drawn / "demo.json").write_text(json.dumps(arguments) + "\n", encoding="utf-8")


def _plan(seed: int, cells: int, patients: int) -> list[tuple[str, int, int, bool]]:
    """(split, patient, cell, infected) of every image; patients and cells count from 1."""
    rng = np.random.default_rng((seed, 0, 0))
    numbers = rng.permutation(np.arange(1, patients + 1)).tolist()
    healthy = patients // 4
    plan = []
    for ill, group in ((False, numbers[:healthy]), (True, numbers[healthy:])):
        # Every split needs an ill patient to have both classes; a few healthy patients may all be in train.
        test, val = (max(int(ill), round(share * len(group))) for share in (0.2, 0.15))
        for i, patient in enumerate(group):
            split = "test" if i < test else "val" if i < test + val else "train"
            count = cells // patients + (patient <= cells % patients)
            infected = round(count * rng.uniform(0.5, 0.8)) if ill else 0
            plan += [(split, patient, cell, bool(cell <= infected)) for cell in range(1, count + 1)]
    return plan


def _cell(rng: np.random.Generator, patient: Patient, infected: bool, size: int) -> np.ndarray:
    """One cell, (size, size, 3) uint8, black around it."""
    radius = patient.radius * rng.uniform(0.92, 1.06)
    axis = (np.arange(size) + 0.5) / size * 2 - 1
    x, y = np.meshgrid((axis - rng.normal(0, 0.015)) / radius, (axis - rng.normal(0, 0.015)) / radius)  # 2 x (S, S)
    angle = np.arctan2(y, x)
    edge = np.full_like(x, rng.uniform(0.96, 1.0))  # (S, S) the margin of an uneven cell, in cell radii
    for k, spread in ((2, 0.045), (3, 0.025), (4, 0.018), (5, 0.012), (9, 0.007)):
        edge += rng.normal(0, spread) * np.cos(k * angle + rng.uniform(0, 2 * np.pi))
    depth = edge - np.hypot(x, y)  # distance to the margin, below 0 outside
    if rng.random() < 0.15:  # a bite, where a neighbour was cut off
        turn, out, bite = rng.uniform(0, 2 * np.pi), rng.uniform(1.1, 1.3), rng.uniform(0.2, 0.5)
        depth = np.minimum(depth, np.hypot(x - out * np.cos(turn), y - out * np.sin(turn)) - bite)
    canvas = Canvas(rng, x, y, depth)

    away = np.hypot(x - rng.normal(0, 0.12), y - rng.normal(0, 0.12))
    pale = rng.uniform(0.2, 1) * patient.pallor * np.exp(-(away**2) / rng.uniform(0.1, 0.4))
    margin = 0.55 * np.exp(-((canvas.depth / 0.06) ** 2))
    red = rng.normal(1, 0.1) * (1 - pale) * (1 - margin) * (1 + 0.06 * smooth_noise(rng, size))  # density of the cell
    purple = np.zeros_like(red)  # density of the parasite stain

    for _ in range(rng.poisson(0.35)):  # pale spots: holes with a faint rim of the cell's own colour
        hole, rim = canvas.ring(*canvas.place(0.15), rng.uniform(0.06, 0.15))
        red = red * (1 - 0.6 * hole) + 0.35 * rim
    for _ in range(rng.poisson(1.2)):  # specks of stain, smaller than a parasite's dot
        at = canvas.place(0.0)
        purple += rng.uniform(0.3, 0.9) * canvas.disc(*at, rng.uniform(0.02, 0.055))
    for _ in range(1 + rng.binomial(2, 0.12) if infected else 0):
        red, purple = canvas.parasite(red, purple)
    for _ in range(rng.poisson(0.6)):  # platelets that stick to the margin: grainy, no dot, no hole
        turn, out = rng.uniform(0, 2 * np.pi), rng.uniform(0.88, 1.05)
        shape = canvas.disc(out * np.cos(turn), out * np.sin(turn), rng.uniform(0.1, 0.22), rng.uniform(0.6, 1))
        purple += shape * rng.uniform(0.4, 0.9) * np.clip(1 + 0.6 * smooth_noise(rng, size, size // 4), 0, 2)
        canvas.depth = np.maximum(canvas.depth, shape - 0.5)

    slope = rng.normal(0, 0.07, 2)
    light = patient.light * rng.normal(1, 0.04) * rng.normal(1, 0.03, 3)
    light = light * (1 + slope[0] * x + slope[1] * y)[:, :, None]  # (S, S, 3)
    absorbed = red[:, :, None] * patient.red * rng.normal(1, 0.07, 3) + purple[:, :, None] * patient.purple
    seen = Image.fromarray(np.clip(light * np.exp(-absorbed), 0, 255).astype(np.uint8))
    seen = seen.filter(ImageFilter.GaussianBlur(patient.blur * size))
    noisy = np.asarray(seen) + rng.normal(0, 1.5, (size, size, 3))
    return np.where(canvas.depth[:, :, None] > 0, np.clip(noisy, 1, 255), 0).astype(np.uint8)


@dataclass
class Canvas:
    """Random numbers, (S, S) coordinates from the middle of the cell, and (S, S) the distance to its margin."""

    rng: np.random.Generator
    x: np.ndarray
    y: np.ndarray
    depth: np.ndarray

    def place(self, radius: float) -> tuple[float, float]:
        """A random point of the cell, far enough from the margin for something of that radius."""
        row, column = self.rng.choice(np.argwhere(self.depth > min(radius, 0.5 * self.depth.max())))
        return float(self.x[row, column]), float(self.y[row, column])

    def disc(self, cx: float, cy: float, radius: float, flat: float = 1.0) -> np.ndarray:
        """(S, S) 1 inside, 0 outside, with a soft margin; `flat` < 1 squeezes it along y."""
        inside = radius - np.hypot(self.x - cx, (self.y - cy) / flat)
        return 1 / (1 + np.exp(-np.clip(inside / 0.018, -50, 50)))

    def ring(self, cx: float, cy: float, radius: float) -> tuple[np.ndarray, np.ndarray]:
        """(S, S) inside and rim of an oval ring that is thinner on one side."""
        flat = self.rng.uniform(0.75, 1.3)
        distance = np.hypot(self.x - cx, (self.y - cy) / flat)
        angle = np.arctan2(self.y - cy, self.x - cx) - self.rng.uniform(0, 2 * np.pi)
        rim = np.exp(-(((distance - radius) / self.rng.uniform(0.04, 0.06)) ** 2)) * (0.7 + 0.3 * np.cos(angle))
        return self.disc(cx, cy, 0.8 * radius, flat), rim

    def parasite(self, red: np.ndarray, purple: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both densities with a young or a grown parasite."""
        rng = self.rng
        if rng.random() < 0.65:  # ring form: a thin ring, often open, with one or two dark dots and a paler inside
            radius = rng.uniform(0.14, 0.24)
            cx, cy = self.place(radius)
            hole, rim = self.ring(cx, cy, radius)
            purple = purple + rng.uniform(0.4, 0.75) * rim
            angle = rng.uniform(0, 2 * np.pi)
            for turn in (0.0, rng.uniform(0.7, 2))[: 1 + int(rng.random() < 0.25)]:
                at = cx + radius * np.cos(angle + turn), cy + radius * np.sin(angle + turn)
                purple = purple + rng.uniform(0.8, 1.3) * self.disc(*at, rng.uniform(0.06, 0.09), rng.uniform(0.7, 1))
            return red * (1 - 0.2 * hole), purple
        radius = rng.uniform(0.16, 0.27)  # trophozoite: an uneven blob with a dark dot and a small hole
        cx, cy = self.place(radius)
        body = np.zeros_like(red)
        for _ in range(3):
            at = cx + rng.normal(0, 0.35 * radius), cy + rng.normal(0, 0.35 * radius)
            body = np.maximum(body, self.disc(*at, radius * rng.uniform(0.45, 0.75), rng.uniform(0.6, 1)))
        hole = self.disc(cx + rng.normal(0, 0.3 * radius), cy + rng.normal(0, 0.3 * radius), 0.3 * radius)
        at = cx + rng.normal(0, 0.4 * radius), cy + rng.normal(0, 0.4 * radius)
        dot = self.disc(*at, rng.uniform(0.07, 0.11))
        return red, purple + rng.uniform(0.35, 0.65) * body * (1 - 0.6 * hole) + rng.uniform(0.7, 1.1) * dot


def smooth_noise(rng: np.random.Generator, size: int, grains: int = 9) -> np.ndarray:
    """(S, S) noise of mean 0 and standard deviation about 1, with this number of grains along a side."""
    coarse = Image.fromarray(rng.normal(0, 1.3, (grains, grains)).astype(np.float32))
    return np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC), dtype=np.float64)
