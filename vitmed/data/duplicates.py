"""The same image twice: byte for byte, or one a copy of the other in another size or quality.

Near duplicates are found in two steps: a perceptual hash (low frequencies of the cosine transform above or below their
median, after Zauner 2010) gives candidates; then their thumbnails are compared, because cells, digits and slides of one
kind can share a hash without being copies.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from vitmed.core.text import grouped
from vitmed.imaging.file_record import FileRecord

LOW = 8  # frequencies a side: 64 bits
BANDS = 8  # of 8 bits each: two hashes that differ in fewer bits have a band in common
DISTANCE = BANDS - 1
FINE = 16  # frequencies a side of a fingerprint: 256 bits
# Bits in which two fingerprints of near copies may differ. Measured: no two of 1,200 different images differ in fewer
# than 46 (malaria cells of 50 px), 68 (blood cells of 160 px) or 26 (MNIST). Of 300 JPEG copies of quality 75, 99 % are
# within 10, of brighter copies within 12, of blood cells at half their size within 22; of 50 px cells most are not.
FINE_DISTANCE = 20
BLOCK = 1 << 22  # comparisons at a time
# Correlation of two thumbnails from which two images count as copies. Measured: no two different images reach 0.983
# among 27,558 cells of 50 px, or 0.987 among 10,000 MNIST digits; among 60,000 CIFAR-10 images 20 pairs reach 0.99, all
# within one class. JPEG copies of quality 75 are above 0.994, brighter or paler copies above 0.99, cells of 80 to 226
# px at half their size at 0.987 or more. Crops, and small images scaled down, are below and are not found.
ALIKE = 0.99
FLAT = 2.0  # standard deviation in grey levels; flatter images are not compared
ASPECT = 1.1  # a copy keeps the proportions of its original, up to rounding


def find_copies(records: Sequence[FileRecord]) -> tuple[list[list[int]], list[list[int]]]:
    """Groups of identical files, and pairs of images that look alike; of identical files the first takes part."""
    groups = grouped((record.sha256, i) for i, record in enumerate(records) if record.sha256 and record.size > 0)
    exact = [group for group in groups.values() if len(group) > 1]
    repeated = {i for group in exact for i in group[1:]}
    good = [i for i in textured(records) if i not in repeated]
    return exact, [[good[i], good[j]] for i, j in near_pairs([records[i] for i in good])]


def textured(records: Sequence[FileRecord]) -> dict[int, np.ndarray]:
    """The thumbnails of images that could be decoded and are not flat, and so can be compared, by their number."""
    shown = {i: record.thumbnail for i, record in enumerate(records) if record.thumbnail is not None}
    return {i: thumbnail for i, thumbnail in shown.items() if thumbnail.std() >= FLAT}


def low_frequencies(thumbnails: np.ndarray, low_side: int) -> np.ndarray:
    """(N, S, S) uint8 -> (N, L^2 / 8) uint8: bit k is 1 where the k-th of L x L low frequencies is above the median."""
    n, side, _ = thumbnails.shape
    wave = np.cos(np.pi / side * np.outer(np.arange(low_side), np.arange(side) + 0.5)).astype(np.float32)  # DCT-II
    hashes = np.empty((n, low_side**2 // 8), dtype=np.uint8)
    for start in range(0, n, 4096):
        part = thumbnails[start : start + 4096].astype(np.float32)
        low = (wave @ part @ wave.T).reshape(len(part), -1)  # (n, L^2)
        middle = np.median(low[:, 1:], axis=1, keepdims=True)  # without the mean, which is far larger
        hashes[start : start + len(part)] = np.packbits(low > middle, axis=1)
    return hashes


def fingerprints(records: Sequence[FileRecord]) -> list[str]:
    """64 hexadecimal digits of each image, alike for near copies; "" where it is flat or could not be decoded.

    A perceptual hash of 16 x 16 frequencies. Unlike one of 64 bits it needs no thumbnails beside it, so a checkpoint
    can keep it without a picture of a patient.
    """
    texts = [""] * len(records)
    shown = textured(records)
    for i, bits in zip(shown, low_frequencies(np.stack([*shown.values()]), FINE) if shown else (), strict=True):
        texts[i] = bits.tobytes().hex()
    return texts


def near_any(fingerprints: Sequence[str], others: Sequence[str]) -> np.ndarray:
    """(N,) bool: whether each of N images is a near copy of one of the others, by `fingerprints`."""
    near, rows = np.zeros(len(fingerprints), bool), [i for i, text in enumerate(fingerprints) if text]
    some, other = (
        np.frombuffer(bytes.fromhex("".join(texts)), np.uint64).reshape(-1, FINE * FINE // 64)
        for texts in (fingerprints, others)
    )
    step = max(1, BLOCK // max(1, 4 * len(other)))
    for start in range(0, len(some) if len(other) else 0, step):
        differ = np.bitwise_count(some[start : start + step, None] ^ other[None]).sum(axis=2)
        near[rows[start : start + step]] = differ.min(axis=1) <= FINE_DISTANCE
    return near


def near_pairs(records: Sequence[FileRecord]) -> list[tuple[int, int]]:
    """Sorted pairs i < j of images that look like copies; all are decoded and textured."""
    if len(records) < 2:
        return []
    thumbnails = np.stack([record.thumbnail for record in records if record.thumbnail is not None])  # (N, S, S)
    headers = [record.header for record in records if record.header is not None]
    aspects = np.array([h.height / h.width if h.orientation >= 5 else h.width / h.height for h in headers])
    pairs: set[tuple[int, int]] = set()
    flat = thumbnails.reshape(len(thumbnails), -1)
    for some, others in candidates(low_frequencies(thumbnails, LOW).view(np.uint64).ravel()):
        ratio = aspects[some] / aspects[others]
        fits = (ratio < ASPECT) & (ratio > 1 / ASPECT)
        for start in range(0, int(fits.sum()), 4096):
            i, j = some[fits][start : start + 4096], others[fits][start : start + 4096]
            a, b = (part - part.mean(axis=1, keepdims=True) for part in (flat[i].astype("f4"), flat[j].astype("f4")))
            power = np.sqrt((a * a).mean(axis=1)), np.sqrt((b * b).mean(axis=1))
            correlation = (a * b).mean(axis=1) / np.maximum(power[0] * power[1], 1e-9)
            alike = correlation >= ALIKE
            pairs.update(zip(i[alike].tolist(), j[alike].tolist(), strict=True))
    return sorted(pairs)


def candidates(hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs i < j with hashes that differ in at most DISTANCE bits, as (P,) arrays; a pair may come more than once."""
    for band in range(BANDS):
        key = (hashes >> np.uint64(8 * band)).astype(np.uint8)
        order = np.argsort(key, kind="stable")
        for begin, end in pairwise(np.flatnonzero(np.diff(key[order], prepend=-1, append=256)).tolist()):
            members = order[begin:end]
            of_band, rows = hashes[members], max(1, BLOCK // max(1, len(members)))
            for start in range(0, len(members), rows):
                alike = np.bitwise_count(of_band[start : start + rows, None] ^ of_band[None, start:]) <= DISTANCE
                i, j = np.nonzero(np.triu(alike, 1))
                a, b = members[start + i], members[start + j]
                yield np.minimum(a, b), np.maximum(a, b)
