"""Duplicates: the hash, the pairs, and that nothing alike is called the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitmed.core.config import DataConfig
from vitmed.data.duplicates import (
    DISTANCE,
    candidates,
    find_copies,
    fingerprints,
    low_frequencies,
    near_any,
    near_pairs,
)
from vitmed.data.splits import make_splits
from vitmed.imaging.file_record import FileRecord
from vitmed.imaging.raw_image import ImageHeader


def smooth(rng: np.random.Generator) -> Image.Image:
    """Clouds, 64 x 64 px grey."""
    small = Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8))
    return small.resize((64, 64), Image.Resampling.BICUBIC)


def records(thumbnails: np.ndarray, wide: int | None = None) -> list[FileRecord]:
    """Records of square images, but for one of 3 to 2."""
    headers = [ImageHeader("PNG", "L", 8, 96 if i == wide else 64, 64, 1, 1) for i in range(len(thumbnails))]
    return [FileRecord(header=head, thumbnail=of) for head, of in zip(headers, thumbnails, strict=True)]


def thumbnail(image: Image.Image) -> np.ndarray:
    return np.asarray(image.resize((32, 32), Image.Resampling.BOX))


def test_exact_groups() -> None:
    files = [FileRecord(size=1, sha256=sha256) for sha256 in ("a", "b", "a", "", "", "b", "a", "c")]
    assert find_copies([*files, FileRecord(size=0, sha256="c")]) == ([[0, 2, 6], [1, 5]], [])


def test_the_hash_is_the_signs_of_scipys_cosine_transform() -> None:
    from scipy.fft import dctn

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 32, 32), dtype=np.uint8)
    for image, found in zip(images, low_frequencies(images, 8).view(np.uint64).ravel(), strict=True):
        low = dctn(image.astype(float), norm=None)[:8, :8].ravel()
        scale = np.outer(*[np.full(8, 2.0)] * 2).ravel()  # scipy's DCT-II counts each side twice
        bits = low / scale > np.median((low / scale)[1:])
        assert np.array_equal(np.unpackbits(np.array([found]).view(np.uint8)), bits.astype(np.uint8))


def test_candidates_are_all_pairs_within_the_distance() -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 1 << 63, 40, dtype=np.uint64)
    hashes = np.concatenate([base, base])
    for i in range(40, 80):  # i - 40 bits differ, up to 12
        for bit in rng.permutation(64)[: i % 13]:
            hashes[i] ^= np.uint64(1) << np.uint64(bit)
    every = {
        (i, j)
        for i in range(80)
        for j in range(i + 1, 80)
        if int(hashes[i] ^ hashes[j]).bit_count() <= DISTANCE
    }  # fmt: skip
    found = {(int(i), int(j)) for some, others in candidates(hashes) for i, j in zip(some, others, strict=True)}
    assert found == every and len(every) >= 20


def test_copies_are_found_and_strangers_are_not() -> None:
    rng = np.random.default_rng(0)
    images = [smooth(rng) for _ in range(200)]
    copy = images[3].resize((128, 128), Image.Resampling.BICUBIC)
    darker = images[7].point(lambda v: int(0.8 * v))
    thumbnails = np.stack([thumbnail(image) for image in [*images, copy, darker]])
    assert near_pairs(records(thumbnails)) == [(3, 200), (7, 201)]
    assert near_pairs(records(thumbnails, wide=200)) == [(7, 201)]  # other proportions


def test_of_identical_files_the_first_is_compared_with_other_pictures() -> None:
    """Two are the same file, and a third is a darker copy: it stands beside the first, once."""
    image = smooth(np.random.default_rng(0))
    same, darker = thumbnail(image), thumbnail(image.point(lambda v: int(0.8 * v)))
    files = [
        replace(record, sha256=digest, size=9)
        for record, digest in zip(records(np.stack([same, same, darker])), "aab", strict=True)
    ]
    assert find_copies(files) == ([[0, 1]], [[0, 2]])


def test_proportions_are_those_of_the_picture_as_it_is_shown() -> None:
    """EXIF 5 to 8 lay a picture on its side; 2 to 4 mirror or turn it by 180 degrees."""
    wide = [(96, 64, 1), (64, 96, 5), (64, 96, 6), (64, 96, 8), (96, 64, 2), (96, 64, 4)]
    shown = thumbnail(smooth(np.random.default_rng(0)))
    headers = [ImageHeader("JPEG", "L", 8, width, height, 1, turn) for width, height, turn in [*wide, (64, 96, 1)]]
    alike = near_pairs([FileRecord(header=header, thumbnail=shown) for header in headers])
    assert alike == list(combinations(range(len(wide)), 2))  # not the upright one


@pytest.mark.parametrize(
    ("correlation", "spread", "width", "copies"),
    [(1, 20, 64, True), (0.995, 20, 64, True), (0.98, 20, 64, False), (1, 3, 64, True), (1, 1.5, 64, False),
     (1, 20, 69, True), (1, 20, 72, False), (1, 20, 57, False)],
)  # fmt: skip
def test_how_alike_copies_are(correlation: float, spread: float, width: int, copies: bool) -> None:
    """They correlate by 0.99 or more, spread by 2 grey levels or more, and their proportions agree within a tenth. A
    chess board changes no low frequency, so their hash is the same."""
    picture = thumbnail(smooth(np.random.default_rng(0))).astype(float)
    picture = (picture - picture.mean()) / picture.std()
    board = np.indices((32, 32)).sum(axis=0) % 2 * 2 - 1
    other = picture + board * (1 / correlation**2 - 1) ** 0.5
    shown = np.rint(128 + spread * np.stack([picture, other])).astype(np.uint8)
    headers = (ImageHeader("PNG", "L", 8, of, 64, 1, 1) for of in (64, width))
    records = [FileRecord(header=head, thumbnail=of) for head, of in zip(headers, shown, strict=True)]
    assert find_copies(records) == ([], [[0, 1]] if copies else [])


def test_copies_by_their_pixels_stay_in_one_split(tmp_path: Path) -> None:
    """Twelve pictures, some of them pale, each also as JPEG and byte for byte under another name: 12 originals."""
    rng, originals = np.random.default_rng(0), {}
    for i in range(12):
        grey = (np.asarray(smooth(rng)) - 128.0) / (1, 3, 8)[i % 3] + 128
        place = tmp_path / "ab"[i % 2] / f"{i}.png"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(grey.astype(np.uint8)).save(place)
        Image.fromarray(grey.astype(np.uint8)).save(place.with_suffix(".jpg"), quality=95)
        place.with_name(f"{i}_again.png").write_bytes(place.read_bytes())
        first = f"{'ab'[i % 2]}/{i}.jpg"
        originals |= {first: first, first.replace(".jpg", ".png"): first, first.replace(".jpg", "_again.png"): first}
    splits = make_splits(DataConfig(root=str(tmp_path), groups="copies", cache=False))
    assert {sample.path: sample.group for part in splits.samples.values() for sample in part} == originals
    assert splits.unit == "original" and splits.shared() == {}
    assert any(note.startswith("24 images are a copy of another; copies stay in one split. ") for note in splits.notes)


def test_a_picture_is_a_copy_at_any_contrast() -> None:
    picture = thumbnail(smooth(np.random.default_rng(0))).astype(float) - 128
    shown = np.rint(128 + picture * np.array([1, 0.5, 0.25])[:, None, None]).astype(np.uint8)
    assert near_pairs(records(shown)) == [(0, 1), (0, 2), (1, 2)]


def test_fingerprints_of_near_copies_differ_in_at_most_20_of_256_bits() -> None:
    base, far = "0" * 64, ["f" * 5 + "0" * 59, "f" * 5 + "1" + "0" * 58]
    assert near_any(far, [base]).tolist() == [True, False]
    assert near_any(far, ["f" * 64, base]).tolist() == [True, False] and not near_any(far, ["", "f" * 64]).any()


def test_blank_images_are_no_copies_of_each_other() -> None:
    blank = np.random.default_rng(0).integers(200, 202, (30, 32, 32), dtype=np.uint8)
    assert find_copies(records(blank)) == ([], [])
    assert near_pairs([]) == []


@pytest.mark.slow
def test_a_hundred_thousand_images_take_seconds() -> None:
    import time

    hashes = np.random.default_rng(0).integers(0, 1 << 63, 100_000, dtype=np.uint64)
    start = time.process_time()
    assert sum(len(i) for i, _ in candidates(hashes)) == 0
    assert time.process_time() - start < 60


def record(image: Image.Image) -> FileRecord:
    side = image.convert("L").resize((32, 32), Image.Resampling.BOX)
    return FileRecord(sha256="x", thumbnail=np.asarray(side))


def textured(rng: np.random.Generator) -> Image.Image:
    """Detail of every size, as in photographs, 128 x 128 px grey."""
    total = np.zeros((128, 128), np.float32)
    for side in (4, 8, 16, 32, 64):
        part = Image.fromarray(rng.normal(0, 1 / side, (side, side)).astype(np.float32))
        total += np.asarray(part.resize((128, 128), Image.Resampling.BICUBIC))
    return Image.fromarray((128 + 40 * total / total.std()).clip(0, 255).astype(np.uint8))


def test_fingerprints_notice_copies_and_no_other_image() -> None:
    images = [textured(np.random.default_rng(seed)) for seed in range(200)]
    copies = [image.resize((64, 64)).point(lambda value: int(value * 0.9 + 10)) for image in images[:100]]
    known = fingerprints([record(image) for image in images[:100]])
    found = near_any(fingerprints([record(image) for image in (*copies, *images[100:])]), known)
    assert found[:100].all() and not found[100:].any()


def test_flat_images_are_copies_of_nothing() -> None:
    flat = fingerprints([record(Image.new("L", (50, 50), 7)), FileRecord()])
    assert flat == ["", ""] and not near_any(flat, flat).any()
