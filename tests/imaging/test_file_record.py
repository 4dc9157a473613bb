"""One decode gives what two gave: the square is that of `Preprocessing.read`, the record that of a file alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from vitmed.imaging.file_record import NUMBERS, examine
from vitmed.imaging.preprocessing import Preprocessing


def photo(side: int = 60, seed: int = 0) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((side, side * 3 // 4), Image.Resampling.BICUBIC)


def turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photo().save(path.with_suffix(".jpg"), exif=exif)


def in_another_space(path: Path) -> None:
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ"))
    photo().save(path, icc_profile=lab.tobytes())


def sixteen_bits(path: Path) -> None:
    values = np.random.default_rng(1).integers(900, 3000, (40, 50), dtype=np.uint16)
    Image.fromarray(values).save(path)


def palette(path: Path) -> None:
    image = photo().convert("P")
    image.save(path, transparency=3)


KINDS: dict[str, Callable[[Path], None]] = {
    "colour": lambda path: photo().save(path),
    "grey": lambda path: photo().convert("L").save(path),
    "transparent": lambda path: Image.merge("RGBA", (*photo().split(), photo(seed=5).split()[0])).save(path),
    "palette": palette,
    "cmyk": lambda path: photo().convert("CMYK").save(path.with_suffix(".jpg")),
    "turned": turned,
    "profile": in_another_space,
    "deep": sixteen_bits,
}


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_one_decode_serves_the_check_and_the_network(tmp_path: Path, kind: str, channels: int) -> None:
    KINDS[kind](tmp_path / "image.png")
    (path,) = tmp_path.iterdir()
    how = Preprocessing(32, channels, "pad", "imagenet", window=(1000.0, 2500.0))
    both, alone = examine(path, "aa", None, how), examine(path, "aa", None)
    assert both.error is None and both.square is not None and alone.square is None
    assert np.array_equal(both.square, how.read(path))
    assert both.record is not None and alone.record is not None
    assert both.record.header == alone.record.header and not both.record.reduced
    for name in ("numbers", "thumbnail"):
        assert np.array_equal(getattr(both.record, name), getattr(alone.record, name))


def test_a_large_jpeg_decoded_in_part_is_marked(tmp_path: Path) -> None:
    """Its thumbnail and mean colour are nearly those of the whole image."""
    path = tmp_path / "large.jpg"
    photo(1600).save(path, quality=95)
    how = Preprocessing(32, 3, "pad", "imagenet")
    part, whole = examine(path, "aa", None, how), examine(path, "aa", None)
    assert np.array_equal(part.square, how.read(path))
    assert part.record is not None and whole.record is not None
    assert part.record.reduced and not whole.record.reduced
    assert part.record.thumbnail is not None and whole.record.thumbnail is not None
    correlation = np.corrcoef(part.record.thumbnail.ravel(), whole.record.thumbnail.ravel())[0, 1]
    assert correlation > 0.999  # near copies are those from 0.99 on
    assert part.record.numbers is not None and whole.record.numbers is not None
    assert np.abs(part.record.numbers[:3] - whole.record.numbers[:3]).max() < 1  # mean colour


def test_a_file_that_makes_no_square_still_has_a_record(tmp_path: Path) -> None:
    path = tmp_path / "thin.png"
    photo().resize((400, 2)).save(path)
    found = examine(path, "aa", None, Preprocessing(32, 3, "pad", "imagenet"))
    assert found.record is not None and found.record.kind == "" and found.square is None
    assert "too thin" in str(found.error)


def test_the_numbers_of_an_image_by_hand(tmp_path: Path) -> None:
    """64 x 64 px: a border of 2 px of one colour around another; as thumbnail every 2 x 2 px are one."""
    pixels = np.full((64, 64, 3), (10, 100, 200), np.uint8)
    pixels[2:-2, 2:-2] = (50, 60, 70)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = examine(tmp_path / "a.png", "aa", None).record
    assert found is not None and found.size == (tmp_path / "a.png").stat().st_size and found.sha256 == "aa"
    assert len(NUMBERS) == 8 and NUMBERS[3:] == ("border_red", "border_green", "border_blue", "low", "high")
    assert found.numbers.tolist() == pytest.approx([*pixels.mean(axis=(0, 1)), 10, 100, 200, 10, 200], abs=1e-4)
    luma = [(299 * r + 587 * g + 114 * b) / 1000 for r, g, b in ((10, 100, 200), (50, 60, 70))]
    assert found.thumbnail.shape == (32, 32) and found.thumbnail[0, 5] == pytest.approx(luma[0], abs=1)
    assert found.thumbnail[16, 16] == pytest.approx(luma[1], abs=1) and found.thumbnail[1, 1] == found.thumbnail[16, 16]
    mixed = pixels.copy()
    mixed[0, 0], mixed[31, 40, 1] = (0, 0, 0), 255  # one pixel is enough for the extremes
    Image.fromarray(mixed).save(tmp_path / "b.png")
    assert examine(tmp_path / "b.png", "aa", None).record.numbers[6:].tolist() == [0, 255]
    Image.new("RGB", (40, 40), (10, 100, 200)).save(tmp_path / "c.png")
    numbers = examine(tmp_path / "c.png", "aa", None).record.numbers.tolist()
    assert numbers == [10, 100, 200, 10, 100, 200, 10, 10]  # one colour: the extremes are equal


def test_what_is_wrong_with_a_file_has_a_kind(tmp_path: Path) -> None:
    photo().save(tmp_path / "whole.png")
    whole = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("no image at all")
    photo().save(tmp_path / "two.tif", save_all=True, append_images=[photo(seed=2)])
    kinds = {"whole.png": "", "cut.png": "truncated", "empty.png": "empty_file", "text.png": "unreadable"}
    for name, kind in (kinds | {"two.tif": "multi_frame", "gone.png": "unreadable"}).items():
        found = examine(tmp_path / name, "aa", None)
        assert found.record.kind == kind and (found.error is None) == (kind == ""), name
        assert (found.record.numbers is not None) == (kind == "")
        assert found.record.size == ((tmp_path / name).stat().st_size if name != "gone.png" else -1)
        assert str(tmp_path) not in found.record.problem and bool(found.record.problem) == bool(kind)
    assert examine(tmp_path / "cut.png", "aa", None, record=False).record is None
