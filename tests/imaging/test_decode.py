"""Every kind of file comes out as a person would see it, or is refused by its name; never changed in silence."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from image_files import ORIENTATIONS, bomb, chunk, pixel, raw_png
from PIL import Image, ImageFile
from torchvision.transforms import v2

from vitmed.core.errors import DataError, UsageError
from vitmed.core.load_config import load_config
from vitmed.imaging.decode import READERS, is_image, read_image
from vitmed.imaging.preprocessing import CONSTANTS, RESIZES, Preprocessing

SIDE = 4


def save(tmp_path: Path, mode: str, colour: object, name: str = "a.png", **options: object) -> Path:
    file = tmp_path / name
    image = Image.new(mode, (SIDE, SIDE), colour)  # type: ignore[arg-type]
    image.save(file, **options)
    return file


@pytest.mark.parametrize(
    ("mode", "colour", "rgb"),
    [
        ("1", 1, (255, 255, 255)),
        ("L", 77, (77, 77, 77)),
        ("LA", (200, 128), (100, 100, 100)),  # 200 x 128 / 255 = 100.4
        ("RGB", (10, 20, 30), (10, 20, 30)),
        ("RGBA", (200, 100, 50, 51), (40, 20, 10)),  # x 51 / 255 = x 0.2
        ("RGBA", (200, 100, 50, 0), (0, 0, 0)),
        ("RGBA", (200, 100, 50, 255), (200, 100, 50)),
    ],
)
def test_pixel_values_by_hand(tmp_path: Path, mode: str, colour: object, rgb: tuple[int, ...]) -> None:
    assert pixel(save(tmp_path, mode, colour)) == rgb


def test_palette(tmp_path: Path) -> None:
    image = Image.new("P", (SIDE, SIDE), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.save(tmp_path / "p.png")
    assert pixel(tmp_path / "p.png") == (200, 100, 50)
    image.save(tmp_path / "half.png", transparency=bytes([255, 51]))  # a table of alpha: entry 1 has 0.2
    assert pixel(tmp_path / "half.png") == (40, 20, 10)
    image.save(tmp_path / "clear.png", transparency=1)  # entry 1 is transparent
    assert pixel(tmp_path / "clear.png") == (0, 0, 0)
    image.save(tmp_path / "clear.gif", transparency=1)
    assert pixel(tmp_path / "clear.gif") == (0, 0, 0)


def test_a_transparent_grey_or_colour_value_is_black(tmp_path: Path) -> None:
    """A tRNS chunk names one value that is transparent (PNG 11.3.2.1)."""
    grey = bytes([0, 9, 77]) * 2
    (tmp_path / "l.png").write_bytes(raw_png(2, 2, 8, 0, grey, chunk(b"tRNS", struct.pack(">H", 9))))
    assert np.asarray(read_image(tmp_path / "l.png"))[0, :, 0].tolist() == [0, 77]
    for bits, row in ((2, 0b00011011), (4, 0x19)):
        clear = chunk(b"tRNS", struct.pack(">H", 1))
        (tmp_path / "few.png").write_bytes(raw_png(8 // bits, 1, bits, 0, bytes([0, row]), clear))
        expected = [0, 0, 170, 255] if bits == 2 else [0, 9 * 17]  # 1 is transparent
        assert np.asarray(read_image(tmp_path / "few.png"))[0, :, 0].tolist() == expected
    rgb = bytes([0, 1, 2, 3, 40, 50, 60]) * 2
    (tmp_path / "rgb.png").write_bytes(raw_png(2, 2, 8, 2, rgb, chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3))))
    assert np.asarray(read_image(tmp_path / "rgb.png"))[0].tolist() == [[0, 0, 0], [40, 50, 60]]


def test_grey_with_premultiplied_alpha(tmp_path: Path) -> None:
    stored = np.array([[[10, 255], [25, 128], [0, 0]]], np.uint8)  # grey times opacity; opacity
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="minisblack", extrasamples=["assocalpha"])
    assert np.asarray(read_image(tmp_path / "a.tif", 1))[0].tolist() == [10, 25, 0]
    assert np.asarray(read_image(tmp_path / "a.tif"))[0].tolist() == [[10] * 3, [25] * 3, [0] * 3]
    assert np.asarray(read_image(tmp_path / "a.tif", 2))[0].tolist() == [[10, 255], [49, 128], [0, 0]]


def test_few_bits_are_stretched_to_eight(tmp_path: Path) -> None:
    """Four grey values of 2 bits: 0, 85, 170, 255."""
    (tmp_path / "two.png").write_bytes(raw_png(4, 1, 2, 0, bytes([0, 0b00011011])))
    assert np.asarray(read_image(tmp_path / "two.png", 1))[0].tolist() == [0, 85, 170, 255]


def test_ycbcr_jpeg_and_grey_jpeg(tmp_path: Path) -> None:
    assert pixel(save(tmp_path, "RGB", (200, 100, 50), "y.jpg", quality=100)) == pytest.approx((200, 100, 50), abs=2)
    assert pixel(save(tmp_path, "L", 90, "l.jpeg", quality=100)) == pytest.approx((90, 90, 90), abs=1)
    (tmp_path / "l.jpeg").rename(tmp_path / "l.JFIF")  # as Windows saves it from a page
    assert pixel(tmp_path / "l.JFIF") == pytest.approx((90, 90, 90), abs=1) and is_image(tmp_path / "l.JFIF")


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "LA"), (3, "RGB"), (4, "RGBA")])
@pytest.mark.parametrize("source", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_every_mode_gives_every_number_of_channels(tmp_path: Path, source: str, channels: int, mode: str) -> None:
    name = "a.tif" if source == "CMYK" else "a.png"
    Image.new("RGBA", (SIDE, SIDE), (250, 120, 60, 255)).convert("RGB").convert(source).save(tmp_path / name)
    image = read_image(tmp_path / name, channels)
    assert image.mode == mode and image.size == (SIDE, SIDE)


def test_colour_to_grey_is_luma_and_alpha_is_kept_on_request(tmp_path: Path) -> None:
    file = save(tmp_path, "RGBA", (200, 100, 50, 51))
    assert pixel(file, 4) == (200, 100, 50, 51)
    luma = 0.299 * 200 + 0.587 * 100 + 0.114 * 50  # ITU-R BT.601
    assert pixel(file, 2) == pytest.approx((luma, 51), abs=1)
    assert pixel(file, 1) == pytest.approx((0.2 * luma,), abs=1)
    assert pixel(save(tmp_path, "L", 77), 2) == (77, 255)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("suffix", [".png", ".tif", ".jpg", ".webp"])
def test_exif_orientation_is_applied_once(tmp_path: Path, orientation: int, suffix: str) -> None:
    array = np.zeros((16, 24, 3), np.uint8)
    array[:8, :8], array[:8, 8:16], array[8:, :8] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    image = Image.fromarray(array)
    exif = image.getexif()
    exif[0x0112] = orientation
    options = {".jpg": {"quality": 100, "subsampling": 0}, ".webp": {"lossless": True}}.get(suffix, {})
    image.save(tmp_path / f"a{suffix}", exif=exif, **options)
    found = np.asarray(read_image(tmp_path / f"a{suffix}")).astype(int)
    expected = ORIENTATIONS[orientation](array).astype(int)
    assert found.shape == expected.shape
    assert np.abs(found - expected).mean() < 3


def write_16_bit(folder: Path) -> list[Path]:
    """Files that hold more than 8 bits, each of another kind."""
    import cv2

    ramp = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    cv2.imwrite(str(folder / "grey16.png"), ramp)
    cv2.imwrite(str(folder / "rgb16.png"), np.stack([ramp] * 3, axis=-1))
    cv2.imwrite(str(folder / "rgba16.png"), np.stack([ramp] * 4, axis=-1))
    cv2.imwrite(str(folder / "rgb16.tif"), np.stack([ramp] * 3, axis=-1))
    Image.fromarray(ramp).save(folder / "grey16.tif")
    Image.fromarray(ramp.astype(np.float32)).save(folder / "float.tiff")
    Image.fromarray(ramp.astype(np.int32)).save(folder / "int32.tif")
    (folder / "renamed.jpg").write_bytes((folder / "rgb16.png").read_bytes())
    return sorted(folder.iterdir())


def test_more_than_eight_bits_is_refused_by_name_without_a_window(tmp_path: Path) -> None:
    files = write_16_bit(tmp_path)
    assert len(files) == 8
    for file in files:
        with pytest.raises(DataError, match=r"bits per channel") as error:
            read_image(file)
        assert str(file) in str(error.value) and "window" in error.value.fix


def test_broken_files_are_refused_by_name(tmp_path: Path) -> None:
    good = tmp_path / "good.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(good)
    whole = good.read_bytes()
    jpeg = tmp_path / "good.jpg"
    Image.open(good).save(jpeg)
    broken = {
        "empty.png": b"",
        "cut.png": whole[: len(whole) // 2],
        "head.png": whole[:20],
        "text.png": b"not an image at all\n" * 20,
        "html.jpg": b"<html><body>404</body></html>",
        "cut.jpg": jpeg.read_bytes()[: len(jpeg.read_bytes()) // 2],
        "zeros.png": bytes(1000),
        "damaged.png": whole[:200] + bytes(100) + whole[300:],
        "cut.tif": b"II*\x00\xff\xff\xff\x00",
        "cut.gif": b"GIF89a\x10\x00",
        "cut.bmp": b"BM" + bytes(10),
        "cut.webp": b"RIFF\x00\x00\x00\x00WEBPVP8 ",
    }
    for name, data in broken.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=name):
            read_image(tmp_path / name)
    assert read_image(good).size == (40, 40)


def test_a_bomb_is_refused_before_it_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unfold(*_: object) -> None:
        raise AssertionError("its pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", unfold)
    with pytest.raises(DataError, match=r"bomb\.png: more than .* pixels"):
        read_image(bomb(tmp_path / "bomb.png"))


def test_missing_files_and_foreign_suffixes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.png: no such file"):
        read_image(tmp_path / "none.png")
    with pytest.raises(DataError, match=r"none: no such file"):
        read_image(tmp_path / "none")
    (tmp_path / "link.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(DataError, match=r"link\.png: a broken link"):
        read_image(tmp_path / "link.png")
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(DataError, match=r"notes\.txt: not an image type") as error:
        read_image(tmp_path / "notes.txt")
    assert all(suffix in error.value.fix for suffix in READERS)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(DataError, match=r"folder\.png"):
        read_image(tmp_path / "folder.png")


def circle(width: int, height: int, radius: int) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    disc = (x - width / 2 + 0.5) ** 2 + (y - height / 2 + 0.5) ** 2 <= radius**2
    return Image.fromarray((disc * 255).astype(np.uint8))


def fit(image: Image.Image, resize: str, side: int = 64) -> np.ndarray:
    return Preprocessing(side, 1, resize, "half").fit(image)[..., 0]


@pytest.mark.parametrize("size", [(200, 100), (100, 200), (64, 64), (30, 17)])
def test_pad_keeps_a_circle_a_circle_and_all_of_it(size: tuple[int, int]) -> None:
    width, height = size
    radius = min(size) // 2 - 2
    inside = fit(circle(width, height, radius), "pad") > 127
    y, x = np.nonzero(inside)
    across, down = np.ptp(x) + 1, np.ptp(y) + 1
    assert abs(across - down) <= 2
    scale = 64 / max(size)
    assert inside.sum() == pytest.approx(np.pi * (radius * scale) ** 2, rel=0.1)
    assert y.mean() == pytest.approx(31.5, abs=1) and x.mean() == pytest.approx(31.5, abs=1)


def test_pad_is_black_squash_fills_crop_cuts() -> None:
    white = Image.new("L", (200, 100), 255)
    for _ in range(3):  # memory used before does not shine through
        padded = fit(white, "pad")
        assert (padded[:16] == 0).all() and (padded[48:] == 0).all() and (padded[17:47] == 255).all()
    assert (fit(white, "squash") == 255).all()
    sides = np.full((100, 200), 9, np.uint8)
    sides[:, 50:150] = 200
    cropped = fit(Image.fromarray(sides), "crop")
    assert (cropped[:, 2:-2] == 200).all()
    squashed = fit(Image.fromarray(sides), "squash")
    assert (squashed == 9).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_every_way_gives_the_square_and_leaves_a_square_alone(resize: str, channels: int) -> None:
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    way = Preprocessing(16, channels, resize, "half")
    out = way.fit(Image.new(mode, (40, 30)))
    assert out.shape == (16, 16, channels) and out.dtype == np.uint8
    same = np.random.default_rng(0).integers(0, 256, (16, 16, channels), dtype=np.uint8)
    assert np.array_equal(way.fit(Image.fromarray(same.squeeze(), mode)), same)


def test_making_smaller_is_antialiased() -> None:
    """A fine checkerboard becomes its mean, not one of its two values."""
    board = np.indices((256, 256)).sum(axis=0) % 2 * 255
    for resize in RESIZES:
        small = fit(Image.fromarray(board.astype(np.uint8)), resize, side=32)
        assert np.abs(small.astype(int) - 127.5).max() < 5, resize


BATCH = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8))


@pytest.mark.parametrize("given", [None, ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))])
def test_normalisation_is_torchvisions(given: tuple[tuple[float, ...], tuple[float, ...]] | None) -> None:
    mean, std = given or ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    ours = Preprocessing(8, 3, "pad", *(("given", mean, std) if given else ("imagenet",))).normalise(BATCH)
    theirs = v2.functional.normalize(BATCH.permute(0, 3, 1, 2).float() / 255, list(mean), list(std))
    torch.testing.assert_close(ours, theirs)


def test_normalisation_by_half_and_by_image() -> None:
    """From -1 to 1; or mean 0 and deviation 1 of each image and channel, and zeros where all pixels are alike."""
    half, image = (Preprocessing(8, 3, "pad", name).normalise(BATCH).numpy() for name in ("half", "image"))
    x = BATCH.numpy().astype(np.float64).transpose(0, 3, 1, 2) / 255
    np.testing.assert_allclose(half, 2 * x - 1, atol=1e-6)
    expected = (x - x.mean(axis=(2, 3), keepdims=True)) / x.std(axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(image, expected, atol=1e-4)
    constant = torch.full((1, 8, 8, 3), 200, dtype=torch.uint8)
    assert float(Preprocessing(8, 3, "pad", "image").normalise(constant).abs().max()) < 1e-4


def test_image_normalisation_forgets_stain_and_light() -> None:
    base = np.random.default_rng(0).integers(50, 90, (1, 8, 8, 3))
    other = base * np.array([1, 2, 2]) + np.array([7, 3, 60])
    way = Preprocessing(8, 3, "pad", "image")
    a, b = (way.normalise(torch.from_numpy(v.astype(np.uint8))) for v in (base, other))
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("normalize", [*CONSTANTS, "image"])
def test_normalisation_of_every_number_of_channels_comes_back(channels: int, normalize: str) -> None:
    batch = torch.randint(0, 256, (2, 8, 8, channels), dtype=torch.uint8)
    way = Preprocessing(8, channels, "pad", normalize)
    x = way.normalise(batch)
    assert x.shape == (2, channels, 8, 8) and x.dtype == torch.float32
    if normalize != "image":  # which has forgotten the level
        assert (way.display(x).int() - batch.int()).abs().max() <= 1
    assert way.display(x).shape == batch.shape


def test_preprocessing_comes_from_the_config_and_from_plain_types() -> None:
    fields = {"data.resize": "crop", "data.normalize": "image", "model.image_size": 32, "model.channels": 1}
    way = Preprocessing.of(load_config(None, fields))
    assert way == Preprocessing(32, 1, "crop", "image") == Preprocessing(**way.to_dict())


def test_interpolation_is_pillows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8))
    for name, method in (("bilinear", 2), ("bicubic", 3), ("lanczos", 1), ("nearest", 0)):
        ours = Preprocessing(16, 3, "squash", "half", interpolation=name).fit(image)
        assert np.array_equal(ours, np.asarray(image.resize((16, 16), method))), name


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["data.normalize=given"], "go together"),
        (["data.mean=[0.5]"], "go together"),
        (["data.normalize=given", "data.mean=[0.5,0.5]", "data.std=[1,1]"], "2 numbers for 3 channels"),
        (["data.normalize=given", "data.mean=[0.5]", "data.std=[0.0]"], "not above 0"),
    ],
)
def test_a_mean_that_makes_no_sense(sets: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        load_config(None, {}, sets)
