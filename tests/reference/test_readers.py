"""Values against readers that share nothing with ours: tifffile, imageio, SimpleITK, OpenCV."""

from __future__ import annotations

import sys
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest
import SimpleITK as sitk
import tifffile
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "imaging"))
from dicom_files import write

from vitmed.imaging.decode import decode, read_image
from vitmed.imaging.raw_image import RawImage

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 65536, (40, 50)).astype(np.uint16)
COLOUR = RNG.integers(0, 65536, (40, 50, 3)).astype(np.uint16)


def values(file: Path) -> np.ndarray:
    found = decode(file)
    assert isinstance(found, RawImage)
    return found.values


@pytest.mark.parametrize("array", [GREY, COLOUR], ids=["grey", "colour"])
def test_16_bit_png(tmp_path: Path, array: np.ndarray) -> None:
    """Written and read by ITK, which has a libpng of its own."""
    file = tmp_path / "a.png"
    sitk.WriteImage(sitk.GetImageFromArray(array, isVector=array.ndim == 3), str(file))
    assert np.array_equal(values(file), sitk.GetArrayFromImage(sitk.ReadImage(str(file))))
    assert np.array_equal(values(file), array)


@pytest.mark.parametrize("compression", [None, "zlib", "lzw"])
@pytest.mark.parametrize("array", [GREY, COLOUR, GREY.astype(np.float32) / 7], ids=["grey", "colour", "float"])
def test_deep_tiff(tmp_path: Path, array: np.ndarray, compression: str | None) -> None:
    file = tmp_path / "a.tif"
    if compression == "lzw":  # tifffile alone does not write it
        if array.ndim == 3:
            pytest.skip("Pillow writes no 16-bit colour")
        Image.fromarray(array).save(file, compression="tiff_lzw")
        theirs = sitk.GetArrayFromImage(sitk.ReadImage(str(file)))
    else:
        tifffile.imwrite(file, array, compression=compression, photometric="rgb" if array.ndim == 3 else "minisblack")
        theirs = tifffile.imread(file)
    assert np.array_equal(theirs, array) and np.array_equal(values(file), theirs)
    if array.dtype == np.uint16:
        theirs = sitk.GetArrayFromImage(sitk.ReadImage(str(file)))
        assert np.array_equal(values(file), theirs)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".gif", ".webp", ".jpg", ".tif", ".tiff", ".PNG"])
def test_8_bits_as_imageio_reads_them(tmp_path: Path, suffix: str) -> None:
    Image.fromarray((COLOUR >> 8).astype(np.uint8)).save(tmp_path / f"a{suffix}", lossless=True)
    theirs = imageio.imread(tmp_path / f"a{suffix}", index=0)[..., :3]
    assert np.array_equal(np.asarray(read_image(tmp_path / f"a{suffix}")), theirs)


@pytest.mark.parametrize(
    "tags",
    [
        {},
        {"RescaleSlope": "2", "RescaleIntercept": "-1024"},
        {"RescaleSlope": "0.25", "RescaleIntercept": "3.5"},
    ],
    ids=["plain", "hounsfield", "fraction"],
)
@pytest.mark.parametrize("signed", [False, True])
def test_dicom_behind_the_modality_lut_as_itk_reads_it(tmp_path: Path, tags: dict[str, str], signed: bool) -> None:
    array = (GREY >> 4).astype(np.int16) - 1000 if signed else GREY >> 4
    file = write(tmp_path / "a.dcm", array, Modality="CT", **tags)
    theirs = sitk.GetArrayFromImage(sitk.ReadImage(str(file)))[0]
    assert np.array_equal(values(file).astype(np.float64), theirs.astype(np.float64))


NAMES = [
    "CT_small.dcm", "MR_small.dcm", "MR_small_RLE.dcm", "MR_small_bigendian.dcm", "MR_small_jp2klossless.dcm",
    "MR_small_jpeg_ls_lossless.dcm", "693_J2KI.dcm",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_pydicoms_own_files_as_itk_reads_them(name: str) -> None:
    """Real scanners, every syntax that ITK's GDCM knows too."""
    file = _installed(name)
    theirs = sitk.GetArrayFromImage(sitk.ReadImage(str(file))).squeeze()
    assert np.allclose(values(file).astype(np.float64), theirs.astype(np.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "name", ["SC_rgb_rle.dcm", "SC_rgb_dcmtk_+eb+cy+n1.dcm", "examples_rgb_color.dcm", "SC_rgb_jpeg_gdcm.dcm"]
)
def test_colour_as_itk_reads_it(name: str) -> None:
    file = _installed(name)
    theirs = sitk.GetArrayFromImage(sitk.ReadImage(str(file))).squeeze()
    assert np.abs(np.asarray(read_image(file)).astype(int) - theirs).max() <= 2


def _installed(name: str) -> Path:
    import pydicom.data

    folder = Path(pydicom.data.__file__).parent / "test_files"
    if not (folder / name).is_file():
        pytest.skip("this pydicom brings no such file")
    return folder / name


def test_cmyk_and_ycck_as_opencv_reads_them(tmp_path: Path) -> None:
    """OpenCV converts CMYK by a formula of its own, a step or two apart."""
    import cv2

    array = np.repeat(np.repeat(RNG.integers(0, 256, (4, 4, 4)).astype(np.uint8), 16, 0), 16, 1)
    Image.fromarray(array, "CMYK").save(tmp_path / "a.jpg", quality=100)
    theirs = cv2.imread(str(tmp_path / "a.jpg"))[..., ::-1].astype(int)
    assert np.abs(np.asarray(read_image(tmp_path / "a.jpg")).astype(int) - theirs).mean() <= 2
