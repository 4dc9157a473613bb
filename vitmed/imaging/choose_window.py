"""Which window a run takes, found once over its training images and then fixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitmed.core.errors import DataError
from vitmed.imaging.decode import decode, inspect
from vitmed.imaging.decoded import Deep, FileFacts
from vitmed.imaging.rasters import PNG
from vitmed.imaging.window import Linear, Window, is_own, own_index

IMAGES = 256  # images that the percentiles are taken from, evenly spread over the training images
VALUES = 2**16  # values of each of them, drawn with a fixed seed
LOW, HIGH = 0.5, 99.5  # percentiles that become black and white, as nnU-Net has them (Isensee 2021)
MUCH = 0.05  # share of saturated pixels that is reported
EIGHT = (".jpg", ".jpeg", ".bmp", ".gif", ".webp")  # formats that cannot hold more than 8 bits here


@dataclass(frozen=True)
class Settled:
    """The window of a run, and what is to be said of it."""

    window: Window
    messages: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)


def settle(
    paths: Sequence[Path],
    asked: str | Sequence[float] | None = "auto",
    frame: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Settled:
    """Make a window definite: `auto` and `percentiles` become what the training images need.

    `auto` is None where no image is deep, "dicom" where every image is a DICOM file with a window of its own, else
    the percentiles. Files that cannot be read are skipped here and reported when all images are checked.

    Args:
        paths: the training images.
        asked: `data.window`.
        frame: `data.frame`.
        progress: called with (done, total) while the heads are looked at.

    Raises:
        UsageError: a package that reads such files is not installed.
    """
    if asked is None:
        return Settled(None)
    deep, flat, several = dict[Path, FileFacts](), 0, 0
    for done, path in enumerate(paths, 1):
        facts = _deep_facts(path)
        if isinstance(facts, FileFacts):
            deep[path] = facts
            several += facts.windows > 1
        else:
            flat += facts
        if progress is not None:
            progress(done, len(paths))
    if not deep:
        named = asked not in ("auto", "percentiles")
        return Settled(None, warned=["no training image has more than 8 bits: --window has no effect"] if named else [])
    kind, warned = _kinds(list(deep.values())), list[str]()
    if flat:
        warned.append(
            f"{flat:,} of {len(paths):,} training images have 8 bits and are not windowed, {len(deep):,} are windowed: "
            "the two look different, and a model may learn that"
        )
    if asked == "auto" and not flat and all(facts.windows for facts in deep.values()):
        asked = "dicom"
    if isinstance(asked, str) and is_own(asked):
        some = f"; {several:,} files have several, and the window number {own_index(asked)} is taken" if several else ""
        text = f"{kind}: each by its own window{some} (--window dicom:1 takes the second of each)"
        return Settled(asked, [text, *_saturated(_own_shares(list(deep), frame, own_index(asked)))], warned)
    sample, used = _sample(list(deep), frame)
    if isinstance(asked, str):
        if not len(sample):
            return Settled(None, warned=warned)
        low, high = (float(value) for value in np.percentile(sample, (LOW, HIGH)))
        if low >= high:  # nearly all values are one
            low, high = float(sample.min()), float(sample.max())
        window = low, high if high > low else low + 1
        text = f"{kind}: window {window[0]:g} .. {window[1]:g}, the {LOW} and {HIGH} percentile of {used:,} of "
        return Settled(window, [f"{text}{len(paths):,} training images"], warned)
    window = float(asked[0]), float(asked[1])
    text = f"{kind}: window {window[0]:g} .. {window[1]:g}, as it was given"
    return Settled(window, [text, *_saturated([_shares(sample, Linear(*window))])], warned)


def _deep_facts(path: Path) -> FileFacts | bool:
    """The facts of a deep file; else whether it is one of 8 bits (False: it cannot be read)."""
    suffix = path.suffix.lower()
    if suffix in EIGHT:
        return True
    try:
        if suffix == ".png":  # a million of these are soon looked at
            with path.open("rb") as stream:
                head = stream.read(25)
            if head.startswith(PNG) and len(head) == 25 and head[24] <= 8:
                return True
        facts = inspect(path)
    except (DataError, OSError):
        return False
    return facts if facts.deep else True


def _kinds(facts: Sequence[FileFacts]) -> str:
    """What the deep images are, in words."""
    dicom = sum(f.format == "DICOM" for f in facts)
    bits = sorted({f.bits for f in facts})
    depth = f"{bits[0]}-bit" if len(bits) == 1 else f"{bits[0]}- to {bits[-1]}-bit"
    return f"{depth} {'DICOM ' if dicom == len(facts) else ''}images"


def _spread(paths: Sequence[Path]) -> list[Path]:
    """At most `IMAGES` of them, evenly spread."""
    return [paths[i] for i in np.unique(np.linspace(0, len(paths) - 1, min(IMAGES, len(paths))).round().astype(int))]


def _values(path: Path, frame: int | None) -> tuple[np.ndarray, Deep] | None:
    """Some values of the picture, without padding; the same ones every time."""
    try:
        found = decode(path, frame)
    except DataError:
        return None
    if not isinstance(found, Deep):
        return None
    values = found.values[found.valid] if found.valid is not None and found.valid.any() else found.values.reshape(-1)
    if values.size > VALUES:
        values = values.reshape(-1)[np.random.default_rng(values.size).integers(0, values.size, VALUES)]
    return values.reshape(-1).astype(np.float64 if values.dtype.itemsize > 4 else np.float32), found


def _sample(paths: Sequence[Path], frame: int | None) -> tuple[np.ndarray, int]:
    """Values of the training images, and of how many images they are."""
    parts = [part[0] for path in _spread(paths) if (part := _values(path, frame)) is not None]
    return (np.concatenate(parts) if parts else np.empty(0, np.float32)), len(parts)


def _own_shares(paths: Sequence[Path], frame: int | None, index: int) -> list[tuple[float, float]]:
    """Of some images with a straight window of their own, the shares below and above it."""
    shares = []
    for path in _spread(paths):
        part = _values(path, frame)
        if part is not None and index < len(part[1].windows) and isinstance(own := part[1].windows[index], Linear):
            shares.append(_shares(part[0], own))
    return shares


def _shares(values: np.ndarray, window: Linear) -> tuple[float, float]:
    """Shares of values that lie below and above a window."""
    return (float(np.mean(values < window.low)), float(np.mean(values > window.high))) if len(values) else (0.0, 0.0)


def _saturated(shares: Sequence[tuple[float, float]]) -> list[str]:
    """A line where many pixels lie outside of the window."""
    if not shares:
        return []
    black, white = np.mean(shares, axis=0)
    if black + white <= MUCH:
        return []
    return [f"outside of the window lie {black + white:.0%} of the pixels: {black:.0%} become black, {white:.0%} white"]
