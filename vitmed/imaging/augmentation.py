"""Random changes of training images, by modality; and the exact copies of an image, mirrored and turned, over which a
network's output is averaged (test-time augmentation). The only module that uses albumentations.

Images come in and leave as (S, S, C) uint8; orientation, resizing, padding and normalisation happen elsewhere.
`POLICIES` states what each policy does and leaves out, with its source in brackets:
Tellez 2019, arXiv 1902.06543 (stain in histology); Elgendi 2021, Front Med 8:629134 (chest X-ray);
DeepDRiD, PMC9214346 (fundus); EAGT, arXiv 2605.16427 (ultrasound); He 2021, arXiv 2111.06377 (MAE).
"""

import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vitmed.core.errors import UsageError, unknown_key
from vitmed.core.process import changed

if TYPE_CHECKING:  # policies and views are known without torch
    import torch


class Change:
    """A random change as `Changes` has it: its name and its arguments."""

    def __init__(self, name: str, *values: Any, **named: Any):
        self.name, self.values, self.named = name, values, named


@dataclass(frozen=True)
class Policy:
    """A set of random changes."""

    flips: bool  # whether the policy mirrors images if flips are allowed
    text: str  # one line: what the policy does, what it must not do, and why
    changes: Sequence[Change]
    turns: bool = False  # whether the changes include quarter turns, each as likely as the image as it is

    def steps(self, flips: bool, channels: int, crop: float = 1.0) -> list[Change]:
        """The changes of images with this number of channels, with or without the policy's flips. A `crop` below 1 is
        the least area of a random crop, in place of the policy's."""
        left_out = (() if flips else ("mirror",)) + (() if channels >= 3 else ("hue", "stain"))
        first = [Change("crop", crop)] if crop < 1 else []
        return first + [change for change in self.changes if change.name not in (*left_out, *(c.name for c in first))]


class Augmenter:
    """Applies one policy; the result depends on nothing but the image and the seed.

    So a resumed run, and a run with another number of workers, see the same images. Can be pickled. UsageError for an
    unknown policy.

    Args:
        size: side S of the images, px.
        channels: C, 1 to 4. Colour changes need 3 or 4. Alpha, the last of 2 or 4, only moves with the image.
        flips: False forbids mirroring; turns remain.
        crop: the least area of random crops instead of the policy's; 1: as the policy.
    """

    def __init__(self, policy: str, size: int, channels: int, flips: bool = True, crop: float = 1.0):
        if policy not in POLICIES:
            raise unknown_key("policy", policy, POLICIES)
        self.policy, self.size, self.channels, self.flips, self.crop = policy, size, channels, flips, crop
        self.steps = POLICIES[policy].steps(flips, channels, crop)
        self._compose: Any = None  # built on the first call, in the process that uses it

    def __call__(self, image: np.ndarray, seed: tuple[int, ...]) -> np.ndarray:
        """(S, S, C) uint8 -> (S, S, C) uint8, contiguous; without any change, the same array.

        Args:
            image: not changed. One whose three channels are equal everywhere stays grey.
            seed: non-negative numbers, always the same count; in training (run seed, epoch, image index).
        """
        shape, colours = (self.size, self.size, self.channels), 1 if self.channels < 3 else 3
        assert image.shape == shape and image.dtype == np.uint8, (image.shape, image.dtype, shape)
        if not self.steps:
            return image
        if self._compose is None:
            do, steps = Changes(self.size, self.flips, colours == 3), list[Any]()
            for change in self.steps:
                made = getattr(do, change.name)(*change.values, **change.named)
                steps += made if isinstance(made, list) else [made]
            # albumentations draws from two generators that all transforms share, and seeds them once. We set their
            # state on each call instead, since every worker would draw the same numbers otherwise (its issue 266).
            self._compose = do.A.Compose(steps, seed=0)
            self._numpy, self._python = np.random.Generator(np.random.PCG64(0)), random.Random(0)
            self._compose.set_random_state(self._numpy, self._python)
        sequence = np.random.SeedSequence(seed)
        self._numpy.bit_generator.state = np.random.PCG64(sequence).state
        self._python.seed(int.from_bytes(sequence.generate_state(4).tobytes(), "little"))
        alpha = {"mask": np.ascontiguousarray(image[..., -1])} if self.channels > colours else {}
        made = self._compose(image=np.ascontiguousarray(image[..., :colours]), **alpha)
        changed = made["image"]
        if colours == 3 and (image[..., :3] == image[..., :1]).all():  # grey, whatever the file says: no coloured noise
            changed = changed[..., :1].repeat(3, axis=2)
        if alpha:
            changed = np.dstack([changed, made["mask"]])
        assert changed.shape == shape and changed.dtype == np.uint8, (self.policy, changed.shape, changed.dtype)
        return np.ascontiguousarray(changed)

    def __reduce__(self) -> tuple[Any, ...]:
        return Augmenter, (self.policy, self.size, self.channels, self.flips, self.crop)


def without_opencv_threads() -> AbstractContextManager[None]:
    """Keep OpenCV to the calling thread: its own threads compete with torch and the loaders, and can hang a fork."""
    import cv2

    return changed(cv2.setNumThreads, 0, cv2.getNumThreads())


class Changes:
    """The changes that policies choose from, as albumentations transforms; `size`: side S of the images, px."""

    def __init__(self, size: int, flips: bool, colour: bool):
        # Imported on demand: it takes a second, and looks for updates online unless the variable is set.
        before = os.environ.get("NO_ALBUMENTATIONS_UPDATE")
        os.environ["NO_ALBUMENTATIONS_UPDATE"] = before or "1"
        try:
            import albumentations
        finally:
            if before is None:
                del os.environ["NO_ALBUMENTATIONS_UPDATE"]
        self.A: Any = albumentations
        self.size, self.flips, self.colour = size, flips, colour

    def symmetry(self) -> Any:
        """One of the 8 symmetries of the square, or of the 4 quarter turns if flips are forbidden, equally likely."""
        return self.A.SquareSymmetry(p=1) if self.flips else self.A.RandomRotate90(p=1)

    def mirror(self) -> Any:
        """Mirror left-right every second image."""
        return self.A.HorizontalFlip(p=0.5)

    def affine(self, rotate: float, shift: float, scale: float, p: float) -> Any:
        """Turn by up to `rotate` degrees, shift by up to `shift` of the side, scale by 1 +- `scale`; black outside."""
        return self.A.Affine(
            rotate=(-rotate, rotate),
            translate_percent=(-shift, shift),
            scale=(1 - scale, 1 + scale),
            keep_ratio=True,  # otherwise the axes scale separately, which changes the shape of cells and organs
            border_mode=0,
            fill=0,
            p=p,
        )

    def crop(
        self, least: float, most: float = 1.0, ratio: tuple[float, float] = (0.9, 1.1), interpolation: int = 1
    ) -> Any:
        """A part of `least` to `most` of the area, enlarged to the full size: bilinear (1) or bicubic (2)."""
        side = self.size, self.size
        return self.A.RandomResizedCrop(side, scale=(least, most), ratio=ratio, interpolation=interpolation)

    def brightness(self, amount: float, p: float) -> Any:
        """Add up to `amount` x 255 and multiply by 1 +- `amount`."""
        return self.A.RandomBrightnessContrast((-amount, amount), (-amount, amount), p=p)

    def gamma(self, least: float = 80, most: float = 120, p: float = 0.5) -> Any:
        """Raise values of 0..1 to a power of `least` to `most` percent."""
        return self.A.RandomGamma((least, most), p=p)

    def hue(self, p: float) -> Any:
        """Small steps of hue (of 180), saturation and value (of 255)."""
        return self.A.HueSaturationValue((-5, 5), (-15, 15), (-10, 10), p=p)

    def stain(self, p: float) -> Any:
        """Other amounts of H&E. The method "macenko" fails on a blank patch, and "vahadane" turns a white one black."""
        ranges = {"intensity_scale_range": (0.8, 1.2), "intensity_shift_range": (-0.1, 0.1)}
        return self.A.HEStain(method="random_preset", **ranges, p=p)

    def blur(self, p: float) -> Any:
        """Blur by a Gaussian of 3 or 5 px, or out of focus by a radius of 1 to 3 px, whatever the size of the image."""
        return self.A.OneOf([self.A.GaussianBlur(blur_limit=(3, 5)), self.A.Defocus(radius=(1, 3))], p=p)

    def speckle(self) -> Any:
        """Multiply each pixel by 0.9 to 1.1, in 30 % of the images."""
        return self.A.MultiplicativeNoise(multiplier=(0.9, 1.1), elementwise=True, p=0.3)

    def noise(self, most: float = 0.03, p: float = 0.2, grey: bool = True) -> Any:
        """Gaussian noise with a standard deviation of 0.01 to `most` (white = 1); grey: the same in all channels."""
        return self.A.GaussNoise(std_range=(0.01, most), per_channel=self.colour and not grey, p=p)

    def holes(self, p: float) -> Any:
        """One to three black rectangles with sides of 5 to 12 % of the image's."""
        sides = {"hole_height_range": (0.05, 0.12), "hole_width_range": (0.05, 0.12)}
        return self.A.CoarseDropout(num_holes_range=(1, 3), **sides, fill=0, p=p)

    def compression(self, least: int, p: float) -> Any:
        """JPEG of a quality from `least` to 100."""
        return self.A.ImageCompression(quality_range=(least, 100), p=p)

    def bending(self, p: float) -> Any:
        """Move pixels smoothly, by less than one away from the rim (elastic, alpha 20, sigma 8 px)."""
        return self.A.ElasticTransform(alpha=20, sigma=8, border_mode=0, fill=0, p=p)

    def shift_and_scale(self) -> list[Any]:
        """Scale by 0.9 to 1.1 and shift within a margin of a tenth of the side, as a crop of the padded image: by up to
        a sixth where it is enlarged, up to a twentieth where it is shrunk."""
        margin = max(1, round(0.1 * self.size))
        least, most = (((1 + change) * self.size / (self.size + 2 * margin)) ** 2 for change in (-0.1, 0.1))
        return [self.A.Pad(margin, border_mode=0, fill=0), self.crop(least, most, ratio=(1.0, 1.0))]


POLICIES: dict[str, Policy] = {
    "none": Policy(False, "Nothing: the image as it is.", ()),
    "light": Policy(
        True,
        "Mirrors left-right, shifts and scales a little; for everyday objects, not for digits.",
        [Change("mirror"), Change("shift_and_scale")],
    ),
    "medical": Policy(
        False,
        "Modality unknown: small turn, shift, scale, brightness, blur, noise; no flip, as the side may be the label.",
        [
            Change("affine", 10, 0.05, 0.1, p=0.7),
            Change("brightness", 0.1, p=0.5),
            Change("blur", p=0.2),
            Change("noise", 0.1, p=0.25, grey=False),
        ],
    ),
    "blood_smear": Policy(
        True,
        "All 8 symmetries, any turn, mild light and stain; no erasing or strong blur: parasites are tiny.",
        [
            Change("symmetry"),
            Change("affine", 180, 0.05, 0.1, p=0.5),
            Change("brightness", 0.15, p=0.5),
            Change("hue", p=0.5),
            Change("blur", p=0.1),
            Change("compression", 70, p=0.2),
        ],
        turns=True,
    ),
    "histology": Policy(
        True,
        "All 8 symmetries, crop, H&E stain; no free hue: stain is varied in its own space (Tellez 2019).",
        [
            Change("crop", 0.7),
            Change("symmetry"),
            Change("stain", p=0.5),
            Change("brightness", 0.1, p=0.3),
            Change("blur", p=0.15),
            Change("compression", 60, p=0.2),
        ],
        turns=True,
    ),
    "dermoscopy": Policy(
        True,
        "All 8 symmetries, any turn, crop, mild colour, small holes; no strong hue: colour is diagnostic.",
        [
            Change("crop", 0.6),
            Change("symmetry"),
            Change("affine", 180, 0, 0, p=0.5),
            Change("brightness", 0.15, p=0.5),
            Change("hue", p=0.3),
            Change("holes", p=0.2),
        ],
        turns=True,
    ),
    "chest_xray": Policy(
        False,
        "Small turn and shift, gamma, noise; no flip (heart side, markers), no inversion (Elgendi 2021).",
        [Change("affine", 7, 0.04, 0.07, p=0.7), Change("gamma"), Change("brightness", 0.1, p=0.5), Change("noise")],
    ),
    "fundus": Policy(
        True,
        "Mirrors OD to OS, small turn, gamma; never upside down: upper and lower rim differ (DeepDRiD).",
        [Change("mirror"), Change("affine", 15, 0.04, 0.07, p=0.7), Change("gamma"), Change("brightness", 0.1, p=0.5)],
    ),
    "ultrasound": Policy(
        True,
        "Mirrors left-right, small turn, gamma, speckle; never upside down: depth is an axis (EAGT).",
        [Change("mirror"), Change("affine", 10, 0.05, 0.05, p=0.7), Change("gamma"), Change("speckle")],
    ),
    "oct": Policy(
        True,
        "Mirrors left-right, small turn, gamma, speckle; never upside down: layers have an order.",
        [Change("mirror"), Change("affine", 8, 0.05, 0, p=0.7), Change("gamma"), Change("speckle")],
    ),
    "ct_mri": Policy(
        False,
        "Small turn, scale, weak bending, weak gamma, noise; no flip: organs have sides (OrganMNIST).",
        [
            Change("affine", 10, 0.04, 0.1, p=0.7),
            Change("bending", p=0.2),
            Change("gamma", 90, 110, p=0.3),
            Change("noise"),
        ],
    ),
    "mae": Policy(
        True,
        "For `vitmed pretrain`: crops of 20 to 100 % of the area and mirrors left-right (He 2021).",
        [Change("crop", 0.2, 1, ratio=(3 / 4, 4 / 3), interpolation=2), Change("mirror")],  # bicubic
    ),
}


# --- test-time views: which are safe follows from the augmentation policy, and from classes that are sides

Symmetry = tuple[int, bool]  # quarter turns anticlockwise, after mirroring left-right or not


def views_of(x: "torch.Tensor", views: str) -> "Iterator[torch.Tensor]":
    """The views (a key of `VIEWS`) of images (B, C, S, S), each of this shape and laid out in memory as
    `Preprocessing.normalise` does."""
    import torch

    pixels = x.permute(0, 2, 3, 1)  # (B, S, S, C)
    for turns, mirrored in VIEWS[views]:
        yield torch.rot90(pixels.flip(2) if mirrored else pixels, turns, (1, 2)).contiguous().permute(0, 3, 1, 2)


def safe_views(policy: str, flips: bool) -> str:
    """The key of the most views that this augmentation policy calls safe, with or without its flips."""
    mirrors, turns = flips and POLICIES[policy].flips, POLICIES[policy].turns
    return ("all" if mirrors else "turns") if turns else ("mirror" if mirrors else "one")


def refuse_views(policy: str, flips: bool, views: str) -> None:
    """Raise UsageError for views with a copy that the augmentation policy does not make in training."""
    safe = set(VIEWS[safe_views(policy, flips)])
    if not set(VIEWS[views]) <= safe:
        fit = [name for name, symmetries in VIEWS.items() if set(symmetries) <= safe]
        raise UsageError(
            f"views {views}: has copies of an image that policy '{policy}' does not make"
            f"{'' if flips else ' without flips'}, so they may mean something else",
            f"--set augment.views={' or '.join(fit)}, or the policy of your modality",
        )


def refuse_flips(classes: Iterable[str], policy: str, flips: bool) -> None:
    """Raise UsageError if the policy mirrors and two class names differ only by their side, as kidney-L and kidney-R.

    A side is a separate word (`kidney_l`, `kidneyL`), never a letter within one.
    """
    if flips and POLICIES[policy].flips and (pair := mirrored_pair(classes)) is not None:
        keep = ", ".join(key for key, value in POLICIES.items() if not value.flips)
        raise UsageError(
            f"classes '{pair[0]}' and '{pair[1]}' differ only by left and right, and policy '{policy}' "
            "mirrors images: a mirrored image would carry the wrong label",
            f"--set augment.flips=false, or a policy without flips ({keep})",
        )


def mirrored_pair(classes: Iterable[str]) -> tuple[str, str] | None:
    """Two class names that differ only by their side, the left one first; None if there are none."""
    seen: dict[tuple[str, ...], dict[str, str]] = {}  # words without the side -> {"left" or "right": class}
    for name in classes:
        words = list[str]()  # in lower case, split at punctuation, digits, capitals and the long words for sides
        for part in _LONG_SIDES.split(name):
            split = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+", part)
            words += map(str.lower, [part] if _LONG_SIDES.fullmatch(part) else split)
        sides = {_SIDE_OF[word] for word in words if word in _SIDE_OF}
        if len(sides) != 1:
            continue  # neither, or both as in left-to-right shunt
        pair = seen.setdefault(tuple(sorted("<side>" if word in _SIDE_OF else word for word in words)), {})
        pair[sides.pop()] = name
        if len(pair) == 2:
            return pair["left"], pair["right"]
    return None


_LEFT = "l left lt lft lhs le os sinister sinistra sinistro sx links linke linker linkes gauche izquierda izquierdo"
_RIGHT = (
    "r right rt rgt rhs re od dexter dextra destra destro dx rechts rechte rechter rechtes droite droit derecha derecho"
)
_SIDE_OF = dict.fromkeys(_LEFT.split(), "left") | dict.fromkeys(_RIGHT.split(), "right")
_LONG_SIDES = re.compile(
    f"({'|'.join(sorted((w for w in _SIDE_OF if len(w) > 3), key=len, reverse=True))})", re.IGNORECASE
)
VIEWS: dict[str, tuple[Symmetry, ...]] = {
    "one": ((0, False),),
    "mirror": ((0, False), (0, True)),
    "flips": ((0, False), (0, True), (2, False), (2, True)),
    "turns": tuple((k, False) for k in range(4)),
    "all": tuple((k, mirrored) for mirrored in (False, True) for k in range(4)),
}
