"""Every format gives the values that were written, or is refused by its name."""

from __future__ import annotations

import io
import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tifffile
from image_files import ORIENTATIONS, chunk, pixel, profile, raw_png
from PIL import Image, ImageDraw, ImageFilter

from vitmed.core.errors import DataError
from vitmed.imaging import rasters, raw_image
from vitmed.imaging.decode import decode, is_image, read_header, read_image
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.imaging.raw_image import RawImage

RAMP = np.linspace(0, 65535, 48).reshape(6, 8).astype(np.uint16)
COLOUR = np.stack([RAMP, RAMP[::-1], RAMP // 3], axis=-1)  # R, G, B


def values(file: Path, frame: int | None = None) -> np.ndarray:
    found = decode(file, frame)
    assert isinstance(found, RawImage), "taken for 8 bits"
    return found.values


def opencv(file: Path, array: np.ndarray) -> Path:
    """Written by OpenCV, which wants blue first."""
    import cv2

    assert cv2.imwrite(str(file), array if array.ndim == 2 else array[..., [2, 1, 0, 3][: array.shape[2]]])
    return file


# --- deep values


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
@pytest.mark.parametrize("colour", [False, True])
def test_16_bits_come_out_as_they_were_written(tmp_path: Path, name: str, colour: bool) -> None:
    ramp = np.linspace(0, 65535, 32 * 40).reshape(32, 40).astype(np.uint16)
    array = np.stack([ramp, ramp[::-1], ramp // 3], axis=-1) if colour else ramp
    file = opencv(tmp_path / name, array)
    assert np.array_equal(values(file), array)
    facts = read_header(file)
    assert (facts.bits, facts.needs_window, facts.width, facts.height, facts.frames) == (16, True, 40, 32, 1)


@pytest.mark.parametrize(
    "dtype", [np.uint16, np.int16, np.int32, np.uint32, np.float32, np.float64, np.int8], ids=lambda d: d.__name__
)
def test_tiff_of_every_type(tmp_path: Path, dtype: type) -> None:
    info = np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else np.finfo(np.float32)
    array = np.linspace(float(info.min) * 0.9, float(info.max) * 0.9, 48).reshape(6, 8).astype(dtype)
    tifffile.imwrite(tmp_path / "a.tif", array)
    assert np.array_equal(values(tmp_path / "a.tif"), array)
    tifffile.imwrite(tmp_path / "big.tif", array, bigtiff=True)
    assert np.array_equal(values(tmp_path / "big.tif"), array)
    for more in ({}, {"compression": "deflate"}):
        tifffile.imwrite(tmp_path / "big.tif", array, byteorder=">", **more)
        assert np.array_equal(values(tmp_path / "big.tif"), array)
    tifffile.imwrite(tmp_path / "pages.tif", np.stack([array, array[::-1]]), photometric="minisblack")
    assert np.array_equal(values(tmp_path / "pages.tif", 1), array[::-1])
    assert read_header(tmp_path / "pages.tif").frames == 2


def test_white_is_zero_where_a_tiff_says_so_and_float_colours_are_read(tmp_path: Path) -> None:
    for array, top in ((RAMP, 65535), ((RAMP >> 8).astype(np.uint8), 255)):
        tifffile.imwrite(tmp_path / "a.tif", array, photometric="miniswhite")
        found = np.asarray(read_image(tmp_path / "a.tif", 1, window=(0.0, float(top))))
        assert np.abs(255 - 255.0 * array / top - found).max() <= 0.5
    signed = ((RAMP >> 8).astype(np.int16) - 128).astype(np.int8)
    tifffile.imwrite(tmp_path / "a.tif", signed, photometric="miniswhite")
    found = np.asarray(read_image(tmp_path / "a.tif", 1, window=(-128.0, 127.0)))
    assert np.array_equal(found, 127 - signed.astype(int))
    array = (COLOUR / 65535).astype(np.float32)
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="rgb")
    assert np.array_equal(values(tmp_path / "a.tif"), array)
    found = np.asarray(read_image(tmp_path / "a.tif", window=(0.0, 1.0)))
    assert np.abs(found - 255 * array).max() <= 0.5


def test_a_tiff_of_too_many_bytes_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """48 pixels: three samples of two bytes are 288 bytes, a plain one of 16 bits 96, an 8-bit colour four each."""
    for array, size in ((COLOUR, 384), (RAMP, 96), ((COLOUR >> 8).astype(np.uint8), 192)):
        tifffile.imwrite(tmp_path / "a.tif", array, photometric="rgb" if array.ndim == 3 else "minisblack")
        monkeypatch.setattr(raw_image, "BYTES", size)
        decode(tmp_path / "a.tif")
        monkeypatch.setattr(raw_image, "BYTES", 287 if array is COLOUR else size - 1)
        with pytest.raises(DataError, match="bytes of pixels, more than"):
            decode(tmp_path / "a.tif")


@pytest.mark.parametrize("kind", ["planar", "grey", "premultiplied", "half", "five", "stains", "signed"])
def test_tiffs_that_would_come_out_wrong_are_refused(tmp_path: Path, kind: str) -> None:
    array, options = {
        "planar": (np.moveaxis(COLOUR, 2, 0), {"photometric": "rgb", "planarconfig": "separate"}),
        "grey": (
            np.stack([RAMP, RAMP]).astype(np.uint8),  # of which Pillow reads no opacity
            {"photometric": "minisblack", "planarconfig": "separate", "extrasamples": [2], "compression": "zlib"},
        ),
        "premultiplied": (
            np.dstack([COLOUR, RAMP]),
            {"photometric": "rgb", "extrasamples": ["assocalpha"]},
        ),
        "half": ((RAMP // 9).astype(np.float16), {}),
        "stains": (COLOUR, {"photometric": "minisblack", "planarconfig": "contig"}),
        "signed": (np.dstack([COLOUR, RAMP]).astype(np.int8), {"photometric": "rgb", "extrasamples": ["unassalpha"]}),
        "five": (np.dstack([COLOUR, COLOUR])[..., :5], {"photometric": "minisblack", "planarconfig": "contig"}),
    }[kind]
    tifffile.imwrite(tmp_path / "a.tif", array, **options)
    with pytest.raises(DataError, match=r"a\.tif: .* kind") as error:
        read_image(tmp_path / "a.tif", window=(0.0, 65535.0))
    assert "save it as" in error.value.fix


def test_16_bit_alpha_is_put_on_black(tmp_path: Path) -> None:
    half = np.full_like(RAMP, 65535 // 2)
    file = opencv(tmp_path / "a.png", np.dstack([COLOUR, half]))
    found = np.asarray(read_image(file, window=(0.0, 65535.0)))
    assert np.abs(found - COLOUR / 65535 * 127.5).max() <= 1
    assert np.asarray(read_image(file, 4, window=(0.0, 65535.0)))[..., 3].tolist() == [[127] * 8] * 6
    for kind, shown in (("unassalpha", COLOUR / 65535 * 127.5), ("unspecified", COLOUR / 257)):  # infrared, say
        for dtype in (np.uint16, np.float32):
            array = np.dstack([COLOUR, half]) if dtype == np.uint16 else np.dstack([COLOUR, half]) / np.float32(65535)
            tifffile.imwrite(tmp_path / "a.tif", array, photometric="rgb", extrasamples=[kind])
            found = np.asarray(read_image(tmp_path / "a.tif", window=(0.0, float(array.max()))))
            assert np.abs(found - shown).max() <= 1
    rows = b"".join(b"\0" + row.tobytes() for row in np.stack([RAMP, half], axis=-1).astype(">u2"))
    (tmp_path / "la.png").write_bytes(raw_png(8, 6, 16, 4, rows))
    assert np.array_equal(values(tmp_path / "la.png"), RAMP)
    grey = b"".join(b"\0" + row.tobytes() for row in RAMP.astype(">u2"))
    clear = chunk(b"tRNS", struct.pack(">H", int(RAMP[2, 3])))
    (tmp_path / "clear.png").write_bytes(raw_png(8, 6, 16, 0, grey, clear))
    found = np.asarray(read_image(tmp_path / "clear.png", 1, window=(-65535.0, 65535.0)))
    assert found[2, 3] == 0 and found.min() == 0 and np.sort(found.ravel())[1] >= 127


def test_jpeg_2000_of_8_bits_is_read_and_of_12_refused(tmp_path: Path) -> None:
    utils = pytest.importorskip("openjpeg.utils", reason="pip install '.[dicom]'")
    y, x = np.mgrid[:64, :64]
    array = ((x * 40 + y * 20) % 4096).astype(np.uint16)
    (tmp_path / "a.j2k").write_bytes(utils.encode_array(array, bits_stored=12, photometric_interpretation=2))
    assert read_header(tmp_path / "a.j2k").bits == 12
    with pytest.raises(DataError, match=r"a\.j2k: a JPEG 2000 of 12 bits, expected 8") as error:
        read_image(tmp_path / "a.j2k", window=(0.0, 4095.0))
    assert error.value.fix == "save it as PNG or TIFF of 16 bits"
    image = Image.new("RGB", (40, 40), (10, 200, 30))
    for suffix in (".jp2", ".j2k", ".jpx"):
        image.save(tmp_path / f"a{suffix}", "JPEG2000")
        assert pixel(tmp_path / f"a{suffix}") == (10, 200, 30)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_deep_colours_of_a_tiff_are_turned_once(tmp_path: Path, orientation: int) -> None:
    upright = np.random.default_rng(0).integers(0, 65536, (6, 9, 3), dtype=np.uint16)
    back = {6: 8, 8: 6}.get(orientation, orientation)  # the others undo themselves
    stored = np.ascontiguousarray(ORIENTATIONS[back](upright))
    tag = [(0x0112, "H", 1, orientation, True)]
    for frame in (0, 1):
        tifffile.imwrite(tmp_path / "a.tif", stored, photometric="rgb", extratags=tag, append=frame > 0)
        found = np.asarray(read_image(tmp_path / "a.tif", 3, frame=frame, window=(0.0, 65535.0)))
        assert found.shape == upright.shape and np.abs(found - upright / 257).max() <= 1


def test_a_jpeg_2000_of_16_bits_behind_long_boxes_is_not_read_as_8(tmp_path: Path) -> None:
    Image.fromarray(RAMP).save(tmp_path / "a.jp2")
    data = (tmp_path / "a.jp2").read_bytes()
    at, box = data.index(b"jp2c") - 4, struct.pack(">I", 100_024) + b"uuid" + bytes(16) + bytes(100_000)
    (tmp_path / "long.jp2").write_bytes(data[:at] + box + data[at:])
    assert read_header(tmp_path / "long.jp2").bits == 16
    with pytest.raises(DataError, match="a JPEG 2000 of 16 bits"):
        read_image(tmp_path / "long.jp2", window=(0.0, 65535.0))


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_deep_images_are_turned_too(tmp_path: Path, orientation: int) -> None:
    image = Image.fromarray(RAMP)
    exif = image.getexif()
    exif[0x0112] = orientation
    turns = {1: 0, 3: 2, 6: -1, 8: 1}
    for suffix in (".png", ".tif"):
        image.save(tmp_path / f"a{suffix}", exif=exif)
        found = np.asarray(read_image(tmp_path / f"a{suffix}", 1, window=(0.0, 65535.0)))
        expected = np.rint(np.rot90(RAMP, turns[orientation]) / 257)
        assert found.shape == expected.shape and np.abs(found - expected).max() <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, bad: float) -> None:
    array = np.ones((8, 8), np.float32)
    array[3, 3] = bad
    Image.fromarray(array).save(tmp_path / "a.tif")
    np.save(tmp_path / "a.npy", array)
    for name in ("a.tif", "a.npy"):
        with pytest.raises(DataError, match=rf"{name}: holds values that are not finite"):
            read_image(tmp_path / name, window=(0.0, 1.0))


# --- arrays


def test_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for shape, dtype in (((6, 8), np.uint8), ((6, 8, 3), np.uint8), ((6, 8, 4), np.uint8), ((6, 8), bool)):
        array = rng.integers(0, 2 if dtype is bool else 256, shape).astype(dtype)
        np.save(tmp_path / "a.npy", array)
        channels = shape[2] if len(shape) == 3 else 1
        found = np.asarray(read_image(tmp_path / "a.npy", channels)).reshape(shape)
        assert np.array_equal(found, array * 255 if dtype is bool else array)
        assert not read_header(tmp_path / "a.npy").needs_window
    for dtype in (">u2", np.int16, np.float16, np.float32, np.float64, np.uint64):
        array = (rng.random((6, 8, 3)) * 100).astype(dtype)
        np.save(tmp_path / "a.npy", np.asfortranarray(array))
        assert np.array_equal(values(tmp_path / "a.npy"), array) and read_header(tmp_path / "a.npy").needs_window
    array = np.arange(5 * 6 * 7, dtype=np.uint8).reshape(5, 6, 7)
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match="5 frames"):
        read_image(tmp_path / "a.npy", 1)
    assert np.array_equal(np.asarray(read_image(tmp_path / "a.npy", 1, frame=4)), array[4])


@pytest.mark.parametrize(
    ("shape", "dtype", "mode", "bits", "frames", "channels"),
    [
        ((6, 8), bool, "L", 1, 1, 1), ((6, 8), np.uint8, "L", 8, 1, 1), ((6, 8), np.uint16, "L", 16, 1, 1),
        ((6, 8), np.float64, "L", 64, 1, 1), ((6, 8, 2), np.uint8, "LA", 8, 1, 2),
        ((6, 8, 4), np.uint8, "RGBA", 8, 1, 4),
        ((5, 6, 8), np.uint8, "L", 8, 5, 1), ((2, 6, 5), np.int16, "L", 16, 2, 1),
        ((3, 6, 8, 4), np.uint8, "RGBA", 8, 3, 4),
        ((2, 6, 8, 3), np.float32, "RGB", 32, 2, 3), ((1, 6, 8, 1), np.uint8, "L", 8, 1, 1),
    ],
)  # fmt: skip
def test_what_the_shape_of_an_array_means(
    tmp_path: Path, shape: tuple[int, ...], dtype: type, mode: str, bits: int, frames: int, channels: int
) -> None:
    """Three axes are height, width and up to four channels, or else frames; four are frames of the former."""
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    found = read_header(tmp_path / "a.npy")
    height, width = shape[-3:-1] if len(shape) == 4 or (len(shape) == 3 and frames == 1) else shape[-2:]
    assert (found.format, found.mode, found.bits, found.frames) == ("NPY", mode, bits, frames)
    assert (found.width, found.height, found.orientation) == (width, height, 1)
    assert found.needs_window == (dtype not in (bool, np.uint8))
    last = decode(tmp_path / "a.npy", frames - 1)
    plain = array[frames - 1] if frames > 1 or len(shape) == 4 else array
    pixels = last.values if isinstance(last, RawImage) else np.asarray(last)
    assert np.array_equal(
        pixels.reshape(height, width, channels), plain.reshape(height, width, channels) * (255 if dtype is bool else 1)
    )
    assert not isinstance(last, RawImage) or last.bits == bits


def test_an_array_of_too_many_bytes_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """48 pixels of three doubles are 1,152 bytes."""
    np.save(tmp_path / "a.npy", np.zeros((6, 8, 3)))
    monkeypatch.setattr(raw_image, "BYTES", 1152)
    assert values(tmp_path / "a.npy").shape == (6, 8, 3)
    monkeypatch.setattr(raw_image, "BYTES", 1151)
    with pytest.raises(DataError, match="1,152 bytes of pixels, more than 1,151, refused"):
        read_image(tmp_path / "a.npy", window=(0.0, 1.0))


@pytest.mark.parametrize(
    "array",
    [np.zeros(5), np.zeros((2, 0)), np.zeros((2, 2, 2, 9)), np.zeros((4, 4), complex), np.array([{}, 1], object)],
    ids=["line", "empty", "channels", "complex", "objects"],
)
def test_arrays_that_are_no_picture(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(DataError, match=r"a\.npy"):
        read_image(tmp_path / "a.npy", window=(0.0, 1.0))


def test_an_array_that_says_more_than_it_holds(tmp_path: Path) -> None:
    """The declared shape would take 40 GB."""
    np.save(tmp_path / "a.npy", np.zeros((6, 8), np.float32))
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(data.replace(b"(6, 8)", b"(99999, 99999)").replace(b"        \n", b"\n"))
    with pytest.raises(DataError, match=r"a\.npy"):
        read_image(tmp_path / "a.npy", window=(0.0, 1.0))


# --- frames


def test_a_frame_is_read_where_it_is_told(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), (40 * i, 0, 0)) for i in range(3)]
    for name in ("moving.gif", "pages.tif", "moving.webp", "moving.png"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], lossless=True)
        for i in range(3):
            assert np.asarray(read_image(tmp_path / name, frame=i))[0, 0, 0] == 40 * i, name
        with pytest.raises(DataError, match=rf"{name}: holds 3 frames, asked for frame 3"):
            read_image(tmp_path / name, frame=3)
        with pytest.raises(DataError, match=rf"{name}: holds 3 frames") as error:
            read_image(tmp_path / name)
        assert "train, predict, explain or serve with --frame 0" in str(error.value)
    frames[0].save(tmp_path / "one.png")
    assert read_image(tmp_path / "one.png", frame=0).size == (8, 8)
    with pytest.raises(DataError, match="holds 1 frame, asked for frame 1"):
        read_image(tmp_path / "one.png", frame=1)


# --- colour


def jpeg_segments(data: bytes) -> list[bytes]:
    """SOI, the marker segments, and the rest from the first scan on."""
    parts, at = [data[:2]], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        parts.append(data[at:end])
        at = end
    return [*parts, data[at:]]


def test_cmyk_with_and_without_the_marker_of_adobe(tmp_path: Path) -> None:
    """With it, 255 is no ink; without it 0 is (ITU-T T.872, 6.1). Pillow writes the marker and inverts."""
    Image.new("CMYK", (16, 16), (51, 0, 255, 51)).save(tmp_path / "adobe.jpg", quality=100)
    plain = b"".join(s for s in jpeg_segments((tmp_path / "adobe.jpg").read_bytes()) if s[:2] != b"\xff\xee")
    (tmp_path / "plain.jpg").write_bytes(plain)
    assert pixel(tmp_path / "adobe.jpg") == pytest.approx((163, 204, 0), abs=2)
    assert pixel(tmp_path / "plain.jpg") == pytest.approx((10, 0, 51), abs=2)  # 255 - each ink: (204, 255, 0, 204)


def test_ycck(tmp_path: Path) -> None:
    """Three components of the CMYK are YCbCr of inverted ink: marker of Adobe with transform 2."""
    grey = Image.new("CMYK", (16, 16), (0, 0, 0, 102))
    grey.save(tmp_path / "cmyk.jpg", quality=100)
    parts = jpeg_segments((tmp_path / "cmyk.jpg").read_bytes())
    parts = [s[:-1] + b"\x02" if s[:2] == b"\xff\xee" else s for s in parts]
    (tmp_path / "ycck.jpg").write_bytes(b"".join(parts))
    # The stored 255, 255, 255 are now Y, Cb and Cr: R and B = 255 + more, clipped; G = 255 - (0.344 + 0.714) x 127 =
    # 121. Those are 255 - (C, M, Y) as stored (libjpeg), and Adobe stores 255 - ink: ink (255, 121, 255), K 102.
    assert pixel(tmp_path / "ycck.jpg") == pytest.approx((0, (255 - 121) * 0.6, 0), abs=3)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".webp"])
def test_a_colour_profile_is_applied(tmp_path: Path, suffix: str) -> None:
    image, options = Image.new("RGB", (16, 16), (200, 100, 50)), {"quality": 100, "lossless": True}
    for name, colour in (("sRGB", (200, 100, 50)), ("swapped", (50, 100, 200)), ("damaged", (200, 100, 50))):
        data = b"no profile at all" if name == "damaged" else profile(name)
        image.save(tmp_path / f"a{suffix}", icc_profile=data, **options)
        assert pixel(tmp_path / f"a{suffix}") == pytest.approx(colour, abs=2), name


def test_a_profile_leaves_grey_and_alpha_alone(tmp_path: Path) -> None:
    Image.new("L", (8, 8), 77).save(tmp_path / "l.png", icc_profile=profile("swapped"))
    assert pixel(tmp_path / "l.png") == (77, 77, 77)
    Image.new("RGBA", (8, 8), (200, 100, 50, 51)).save(tmp_path / "a.png", icc_profile=profile("swapped"))
    assert pixel(tmp_path / "a.png", 4) == pytest.approx((50, 100, 200, 51), abs=2)


# --- names


def test_no_other_program_is_called_for_a_postscript_file(tmp_path: Path) -> None:
    for name in ("a.png", "a.jpg"):
        (tmp_path / name).write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n" + bytes(500))
        with pytest.raises(DataError, match=rf"{name}: not an image"):
            read_image(tmp_path / name)


def test_which_files_are_taken_for_images(tmp_path: Path) -> None:
    dicom = bytes(128) + b"DICM"
    for name, data, yes in (
        ("a.png", b"", True), ("a.DCM", b"", True), ("IM-0001", dicom, True), ("1.2.840.10008", dicom, True),
        ("noise", b"x" * 200, False), ("DICOMDIR", dicom, False), ("notes.txt", dicom, False), ("a.npz", b"", False),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        assert is_image(tmp_path / name) is yes, name
    assert not is_image(tmp_path / "gone")


# --- reduced scale


@cache
def photograph(width: int, height: int) -> Image.Image:
    """Blobs, edges and a little grain, like the photograph of a smear."""
    rng = np.random.default_rng(0)
    image = Image.new("RGB", (width, height), (220, 200, 210))
    draw = ImageDraw.Draw(image)
    for _ in range(150):
        x, y, r = rng.integers(0, width), rng.integers(0, height), rng.integers(4, 4 + width // 12)
        draw.ellipse((x - r, y - r, x + r, y + r), fill=tuple(int(v) for v in rng.integers(40, 230, 3)))
    image = image.filter(ImageFilter.GaussianBlur(1.5))
    noisy = np.asarray(image).astype(np.float32) + rng.normal(0, 4, (height, width, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def test_a_large_jpeg_is_decoded_as_pillow_does(tmp_path: Path) -> None:
    """At its full size, so that a file, its bytes and its pixels get one answer."""
    photograph(1200, 900).save(tmp_path / "a.jpg", quality=92)
    how = Preprocessing(32, 3, "pad", "half")
    with Image.open(tmp_path / "a.jpg") as image:
        assert np.array_equal(how.read(tmp_path / "a.jpg"), how.fit(image.convert("RGB")))


@pytest.mark.parametrize("suffix", [".png", ".deep.png", ".jpg"])
def test_a_file_that_ends_in_zeros_as_of_a_broken_copy_is_refused(tmp_path: Path, suffix: str) -> None:
    """The decoders read many such files without an error; zeros behind a whole file are harmless."""
    file, picture = tmp_path / f"a{suffix}", photograph(224, 224)
    deep = np.asarray(picture.convert("L")).astype(np.uint16) * 200
    (Image.fromarray(deep) if suffix == ".deep.png" else picture).save(file, quality=95)
    whole, before = file.read_bytes(), read_image(file, window=(0.0, 65535.0)).tobytes()
    file.write_bytes(whole + bytes(512))
    assert read_image(file, window=(0.0, 65535.0)).tobytes() == before
    file.write_bytes(whole + b"\xff\xda of a maker" + bytes(512))  # some cameras add their own data
    assert read_image(file, window=(0.0, 65535.0)).tobytes() == before
    for kept in np.linspace(0.3, 0.97, 10) * len(whole):
        file.write_bytes(whole[: int(kept)] + bytes(len(whole) - int(kept)))
        with pytest.raises(DataError, match=r"a\..*cannot be decoded"):
            read_image(file, window=(0.0, 65535.0))


def test_a_png_with_a_wrong_checksum_or_of_too_many_bytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = raw_png(8, 6, 8, 0, bytes(9 * 6))
    (tmp_path / "a.png").write_bytes(data)
    read_image(tmp_path / "a.png")
    at = data.index(b"IEND") - 8  # of the checksum of the pixels
    (tmp_path / "a.png").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(DataError, match=r"a\.png: cannot be decoded"):
        read_image(tmp_path / "a.png")
    monkeypatch.setattr(rasters, "BYTES", len(data) - 1)
    with pytest.raises(DataError, match=rf"a\.png: a file of {len(data)} bytes, more than {len(data) - 1}, refused"):
        read_image(tmp_path / "a.png")


def test_a_jpeg_of_many_scans_is_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    photograph(64, 64).save(stream, "JPEG", progressive=True)
    data = stream.getvalue()
    last = data.rindex(b"\xff\xda")
    (tmp_path / "a.jpg").write_bytes(data[:-2] + data[last:-2] * 300 + data[-2:])
    with pytest.raises(DataError, match=r"a\.jpg: a JPEG of 3\d\d scans"):
        read_image(tmp_path / "a.jpg")
