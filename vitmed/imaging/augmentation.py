"""Random changes of training images, by modality. The only module that uses albumentations.

Images come in and leave as (S, S, C) uint8; orientation, resizing, padding and normalisation happen elsewhere.
`POLICIES` states what each policy does and leaves out, with its source in brackets:
Tellez 2019, arXiv 1902.06543 (stain in histology); Elgendi 2021, Front Med 8:629134 (chest X-ray);
DeepDRiD, PMC9214346 (fundus); EAGT, arXiv 2605.16427 (ultrasound); He 2021, arXiv 2111.06377 (MAE).
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitmed.core.errors import UsageError, unknown_key


@dataclass(frozen=True)
class Policy:
    """A set of random changes.

    Attributes:
        build: (size S in px, whether flips are allowed, whether images have colour) -> albumentations transforms.
        flips: whether the policy mirrors images if flips are allowed.
        text: one line: what the policy does, what it must not do, and why.
    """

    build: Callable[[int, bool, bool], list[Any]]
    flips: bool
    text: str


class Augmenter:
    """Applies one policy; the result depends on nothing but the image and the seed.

    So a resumed run, and a run with another number of workers, see the same images. Can be pickled.

    Args:
        policy: a key of `POLICIES`.
        size: side S of the images, px.
        channels: C, 1 to 4. Colour changes need exactly 3.
        flips: False forbids mirroring; turns remain.

    Raises:
        UsageError: there is no such policy.
    """

    def __init__(self, policy: str, size: int, channels: int, flips: bool = True):
        if policy not in POLICIES:
            raise unknown_key("policy", policy, POLICIES)
        self.policy, self.size, self.channels, self.flips = policy, size, channels, flips
        self._compose: Any = None  # built on the first call, in the process that uses it

    def __call__(self, image: np.ndarray, seed: tuple[int, ...]) -> np.ndarray:
        """(S, S, C) uint8 -> (S, S, C) uint8, contiguous; policy `none` returns the same array.

        Args:
            image: not changed.
            seed: non-negative numbers, always the same count; in training (run seed, epoch, image index).
        """
        shape = (self.size, self.size, self.channels)
        assert image.shape == shape and image.dtype == np.uint8, (image.shape, image.dtype, shape)
        if self.policy == "none":
            return image
        if self._compose is None:
            self._build()
        sequence = np.random.SeedSequence(seed)
        self._numpy.bit_generator.state = np.random.PCG64(sequence).state
        self._python.seed(int.from_bytes(sequence.generate_state(4).tobytes(), "little"))
        changed = self._compose(image=image)["image"]
        assert changed.shape == shape and changed.dtype == np.uint8, (self.policy, changed.shape, changed.dtype)
        return np.ascontiguousarray(changed)

    def __getstate__(self) -> dict[str, Any]:
        keep = ("policy", "size", "channels", "flips")
        return {**{name: getattr(self, name) for name in keep}, "_compose": None}

    def _build(self) -> None:
        A = _albumentations()
        transforms = POLICIES[self.policy].build(self.size, self.flips, self.channels == 3)
        # albumentations draws from two generators that all transforms share, and seeds them once. We set their state
        # on each call instead, since every worker would draw the same numbers otherwise (its issue 266).
        self._compose = A.Compose(transforms, seed=0)
        self._numpy, self._python = np.random.Generator(np.random.PCG64(0)), random.Random(0)
        self._compose.set_random_state(self._numpy, self._python)


def refuse_flips(classes: Iterable[str], policy: str, flips: bool) -> None:
    """Raise UsageError if the policy mirrors and two class names differ only by their side.

    Examples are kidney-L and kidney-R, left lung and right lung, OD and OS. A side is a separate word (`kidney_l`,
    `kidneyL`), never a letter within one.
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
        words = _words(name)
        sides = {_SIDE_OF[word] for word in words if word in _SIDE_OF}
        if len(sides) != 1:
            continue  # neither, or both as in left-to-right shunt
        rest = tuple(sorted("<side>" if word in _SIDE_OF else word for word in words))
        pair = seen.setdefault(rest, {})
        pair[sides.pop()] = name
        if len(pair) == 2:
            return pair["left"], pair["right"]
    return None


def _words(name: str) -> list[str]:
    """The lower-case words of a class name, split at punctuation, digits, capitals and the long words for sides."""
    words: list[str] = []
    for part in _LONG_SIDES.split(name):
        words += [part] if _LONG_SIDES.fullmatch(part) else re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+", part)
    return [word.lower() for word in words]


def _albumentations() -> Any:
    """The library, imported on demand: it takes a second, and looks for updates online unless the variable is set."""
    before = os.environ.get("NO_ALBUMENTATIONS_UPDATE")
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = before or "1"
    try:
        import albumentations
    finally:
        if before is None:
            del os.environ["NO_ALBUMENTATIONS_UPDATE"]
    return albumentations


@contextlib.contextmanager
def without_opencv_threads() -> Iterator[None]:
    """Keep OpenCV to the calling thread: its own threads compete with torch and the loaders, and can hang a fork."""
    import cv2

    threads = cv2.getNumThreads()
    cv2.setNumThreads(0)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)


def _symmetry(flips: bool) -> Any:
    """One of the 8 symmetries of the square, or of the 4 quarter turns if flips are forbidden, equally likely."""
    A = _albumentations()
    return A.SquareSymmetry(p=1) if flips else A.RandomRotate90(p=1)


def _mirror(flips: bool) -> list[Any]:
    return [_albumentations().HorizontalFlip(p=0.5)] if flips else []


def _affine(rotate: float, shift: float, scale: float, p: float) -> Any:
    """Turn by up to `rotate` degrees, shift by up to `shift` of the side, scale by 1 +- `scale`; black outside."""
    return _albumentations().Affine(
        rotate=(-rotate, rotate),
        translate_percent=(-shift, shift),
        scale=(1 - scale, 1 + scale),
        keep_ratio=True,  # otherwise the axes scale separately, which changes the shape of cells and organs
        border_mode=0,
        fill=0,
        p=p,
    )


def _brightness(amount: float, p: float) -> Any:
    """Add up to `amount` x 255 and multiply by 1 +- `amount`."""
    return _albumentations().RandomBrightnessContrast((-amount, amount), (-amount, amount), p=p)


def _colour(colour: bool, p: float) -> list[Any]:
    """Small steps of hue (of 180), saturation and value (of 255)."""
    return [_albumentations().HueSaturationValue((-5, 5), (-15, 15), (-10, 10), p=p)] if colour else []


def _blur(p: float) -> Any:
    A = _albumentations()
    return A.OneOf([A.GaussianBlur(blur_limit=(3, 5)), A.Defocus(radius=(1, 3))], p=p)


def _speckle(p: float) -> Any:
    return _albumentations().MultiplicativeNoise(multiplier=(0.9, 1.1), elementwise=True, p=p)


def _noise(p: float) -> Any:
    """Grey noise: the same in all channels, for modalities without colour."""
    return _albumentations().GaussNoise(std_range=(0.01, 0.03), per_channel=False, p=p)


def _none(size: int, flips: bool, colour: bool) -> list[Any]:
    return []


def _light(size: int, flips: bool, colour: bool) -> list[Any]:
    A = _albumentations()
    margin = max(1, round(0.1 * size))
    # A crop of a padded image shifts and scales like an affine transform, in a quarter of the time.
    least, most = (((1 + change) * size / (size + 2 * margin)) ** 2 for change in (-0.1, 0.1))
    crop = A.RandomResizedCrop((size, size), scale=(least, min(1.0, most)), ratio=(1.0, 1.0))
    return [*_mirror(flips), A.Pad(margin, border_mode=0, fill=0), crop]


def _medical(size: int, flips: bool, colour: bool) -> list[Any]:
    return [_affine(10, 0.05, 0.1, p=0.7), _brightness(0.1, p=0.5)]


def _blood_smear(size: int, flips: bool, colour: bool) -> list[Any]:
    A = _albumentations()
    return [
        _symmetry(flips),
        _affine(180, 0.05, 0.1, p=0.5),
        _brightness(0.15, p=0.5),
        *_colour(colour, p=0.5),
        _blur(p=0.1),
        A.ImageCompression(quality_range=(70, 100), p=0.2),
    ]


def _histology(size: int, flips: bool, colour: bool) -> list[Any]:
    A = _albumentations()
    # "macenko" fails on a blank patch, and "vahadane" turns a white patch black.
    stain = A.HEStain(
        method="random_preset", intensity_scale_range=(0.8, 1.2), intensity_shift_range=(-0.1, 0.1), p=0.5
    )
    return [
        A.RandomResizedCrop((size, size), scale=(0.7, 1.0), ratio=(0.9, 1.1)),
        _symmetry(flips),
        *([stain] if colour else []),
        _brightness(0.1, p=0.3),
        _blur(p=0.15),
        A.ImageCompression(quality_range=(60, 100), p=0.2),
    ]


def _dermoscopy(size: int, flips: bool, colour: bool) -> list[Any]:
    A = _albumentations()
    hole = (0.05, 0.12)  # share of the side
    return [
        A.RandomResizedCrop((size, size), scale=(0.6, 1.0), ratio=(0.9, 1.1)),
        _symmetry(flips),
        _affine(180, 0, 0, p=0.5),
        _brightness(0.15, p=0.5),
        *_colour(colour, p=0.3),
        A.CoarseDropout(num_holes_range=(1, 3), hole_height_range=hole, hole_width_range=hole, fill=0, p=0.2),
    ]


def _chest_xray(size: int, flips: bool, colour: bool) -> list[Any]:
    A = _albumentations()
    return [_affine(7, 0.04, 0.07, p=0.7), A.RandomGamma((80, 120), p=0.5), _brightness(0.1, p=0.5), _noise(p=0.2)]


def _fundus(size: int, flips: bool, colour: bool) -> list[Any]:
    A = _albumentations()
    return [*_mirror(flips), _affine(15, 0.04, 0.07, p=0.7), A.RandomGamma((80, 120), p=0.5), _brightness(0.1, p=0.5)]


def _ultrasound(size: int, flips: bool, colour: bool) -> list[Any]:
    A = _albumentations()
    return [*_mirror(flips), _affine(10, 0.05, 0.05, p=0.7), A.RandomGamma((80, 120), p=0.5), _speckle(p=0.3)]


def _oct(size: int, flips: bool, colour: bool) -> list[Any]:
    A = _albumentations()
    return [*_mirror(flips), _affine(8, 0.05, 0, p=0.7), A.RandomGamma((80, 120), p=0.5), _speckle(p=0.3)]


def _ct_mri(size: int, flips: bool, colour: bool) -> list[Any]:
    A = _albumentations()
    return [
        _affine(10, 0.04, 0.1, p=0.7),
        A.ElasticTransform(alpha=20, sigma=8, border_mode=0, fill=0, p=0.2),
        A.RandomGamma((90, 110), p=0.3),
        _noise(p=0.2),
    ]


def _mae(size: int, flips: bool, colour: bool) -> list[Any]:
    A = _albumentations()
    crop = A.RandomResizedCrop((size, size), scale=(0.2, 1.0), ratio=(3 / 4, 4 / 3), interpolation=2)  # bicubic
    return [crop, *_mirror(flips)]


SIDES = {
    "left": "l left lt lft lhs le os sinister sinistra sinistro sx links linke linker linkes gauche izquierda "
    "izquierdo",
    "right": "r right rt rgt rhs re od dexter dextra destra destro dx rechts rechte rechter rechtes droite droit "
    "derecha derecho",
}
_SIDE_OF = {word: side for side, words in SIDES.items() for word in words.split()}
_LONG_SIDES = re.compile(
    f"({'|'.join(sorted((w for w in _SIDE_OF if len(w) > 3), key=len, reverse=True))})", re.IGNORECASE
)

POLICIES: dict[str, Policy] = {
    "none": Policy(_none, False, "Nothing: the image as it is."),
    "light": Policy(
        _light, True, "Mirrors left-right, shifts and scales a little; for everyday objects, not for digits."
    ),
    "medical": Policy(
        _medical,
        False,
        "Modality unknown: small turn, shift, scale, brightness; no flip, as the side may be the label.",
    ),
    "blood_smear": Policy(
        _blood_smear,
        True,
        "All 8 symmetries, any turn, mild light and stain; no erasing or strong blur: parasites are tiny.",
    ),
    "histology": Policy(
        _histology,
        True,
        "All 8 symmetries, crop, H&E stain; no free hue: stain is varied in its own space (Tellez 2019).",
    ),
    "dermoscopy": Policy(
        _dermoscopy,
        True,
        "All 8 symmetries, any turn, crop, mild colour, small holes; no strong hue: colour is diagnostic.",
    ),
    "chest_xray": Policy(
        _chest_xray,
        False,
        "Small turn and shift, gamma, noise; no flip (heart side, markers), no inversion (Elgendi 2021).",
    ),
    "fundus": Policy(
        _fundus, True, "Mirrors OD to OS, small turn, gamma; never upside down: upper and lower rim differ (DeepDRiD)."
    ),
    "ultrasound": Policy(
        _ultrasound, True, "Mirrors left-right, small turn, gamma, speckle; never upside down: depth is an axis (EAGT)."
    ),
    "oct": Policy(
        _oct, True, "Mirrors left-right, small turn, gamma, speckle; never upside down: layers have an order."
    ),
    "ct_mri": Policy(
        _ct_mri, False, "Small turn, scale, weak bending, weak gamma, noise; no flip: organs have sides (OrganMNIST)."
    ),
    "mae": Policy(
        _mae, True, "For `vitmed pretrain`: crops of 20 to 100 % of the area and mirrors left-right (He 2021)."
    ),
}
