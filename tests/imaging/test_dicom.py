"""DICOM by hand-worked examples of the standard: modality, window, inversion, colour, frames, odd and hostile files."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicom_files import RAMP, compress, write
from image_files import pixel, profile
from PIL import Image

from vitmed.core.errors import DataError, UsageError
from vitmed.imaging.choose_window import lost_outside
from vitmed.imaging.decode import decode, read_header, read_image
from vitmed.imaging.raw_image import RawImage

pydicom = pytest.importorskip("pydicom", reason="pip install '.[dicom]'")


def deep(file: Path, frame: int | None = None) -> RawImage:
    found = decode(file, frame)
    assert isinstance(found, RawImage)
    return found


def grey(file: Path, window: Any) -> np.ndarray:
    return np.asarray(read_image(file, 1, window=window)).astype(float)


def test_values_are_those_of_the_modality(tmp_path: Path) -> None:
    file = write(tmp_path / "a.dcm", RAMP, RescaleSlope="2.5", RescaleIntercept="-1024", BitsStored=12)
    assert np.array_equal(deep(file).values, RAMP * 2.5 - 1024)
    facts = read_header(file)
    assert (facts.format, facts.mode, facts.bits, facts.needs_window) == ("DICOM", "MONOCHROME2", 12, True)
    assert (facts.width, facts.height, facts.frames, facts.windows) == (8, 8, 1, 0)
    signed = RAMP.astype(np.int16) - 2000
    assert np.array_equal(deep(write(tmp_path / "b.dcm", signed)).values, signed)


@pytest.mark.parametrize("slope", ["1", "0.5"])
def test_values_of_32_bits_are_rescaled_without_loss(tmp_path: Path, slope: str) -> None:
    """Neighbours beyond 2^24, which float32 cannot tell apart, stay different and get their grey levels."""
    array = np.arange(4, dtype=np.uint32).reshape(2, 2) + 2**30
    file = write(tmp_path / "a.dcm", array, RescaleSlope=slope, RescaleIntercept="-3")
    values = [float(slope) * value - 3 for value in (2**30, 2**30 + 1, 2**30 + 2, 2**30 + 3)]
    assert deep(file).values.ravel().tolist() == values
    assert grey(file, (values[0], values[3])).ravel().tolist() == [0, 85, 170, 255]


def test_a_modality_table(tmp_path: Path) -> None:
    from pydicom.dataset import Dataset

    item = Dataset()
    item.LUTDescriptor, item.ModalityLUTType = [4, 10, 16], "US"
    item.add_new(0x00283006, "US", [100, 300, 700, 1500])
    array = np.array([[0, 10, 11], [12, 13, 99]], np.uint16)
    file = write(tmp_path / "a.dcm", array, ModalityLUTSequence=[item])
    assert deep(file).values.tolist() == [[100, 100, 300], [700, 1500, 1500]]


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID", None])
def test_windows_by_the_formulas_of_the_standard(tmp_path: Path, function: str | None) -> None:
    """PS3.3, C.11.2.1.2.1 and C.11.2.1.3, with ymin 0 and ymax 255; within one grey level."""
    c, w = 40.0, 400.0
    tags = {"VOILUTFunction": function} if function else {}
    file = write(
        tmp_path / "a.dcm",
        RAMP,
        RescaleSlope="1",
        RescaleIntercept="-1024",
        WindowCenter="40",
        WindowWidth="400",
        **tags,
    )
    x = RAMP.astype(float) - 1024
    if function == "SIGMOID":
        y = 255 / (1 + np.exp(-4 * (x - c) / w))
    elif function == "LINEAR_EXACT":
        y = np.where(x <= c - w / 2, 0, np.where(x > c + w / 2, 255, ((x - c) / w + 0.5) * 255))
    else:
        y = ((x - (c - 0.5)) / (w - 1) + 0.5) * 255
        y = np.where(x <= c - 0.5 - (w - 1) / 2, 0, np.where(x > c - 0.5 + (w - 1) / 2, 255, y))
    assert np.abs(grey(file, "dicom") - y).max() <= 1
    assert read_header(file).windows == 1


def test_windows_against_pydicom(tmp_path: Path) -> None:
    from pydicom.pixels import apply_modality_lut, apply_windowing

    tags = {"WindowCenter": ["600", "1500"], "WindowWidth": ["800", "301"]}
    file = write(tmp_path / "a.dcm", RAMP, BitsStored=12, RescaleSlope="1", RescaleIntercept="-100", **tags)
    ds = pydicom.dcmread(file)
    for index, name in enumerate(("dicom", "dicom:1")):
        theirs = apply_windowing(apply_modality_lut(ds.pixel_array, ds), ds, index)
        low, high = -100, 4095 - 100  # the range that pydicom maps to
        assert np.abs(grey(file, name) - (theirs - low) / (high - low) * 255).max() <= 1
    with pytest.raises(DataError, match=r"has 2 windows of its own.*'dicom:2'"):
        read_image(file, window="dicom:2")
    with pytest.raises(DataError, match="--window CENTRE/WIDTH, such as 40/400") as error:
        read_image(file, window=None)
    assert "need a window" in str(error.value)
    assert (grey(file, "600/800") == grey(file, "dicom")).all()


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT"])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_narrow_windows_by_the_formulas_and_by_pydicom(tmp_path: Path, function: str, width: int) -> None:
    """Every value around the window is the nearest grey level: half a level in the centre is a third of a window."""
    from pydicom.pixels import apply_windowing

    c, w, x = 1000.0, float(width), np.arange(990, 1010, dtype=np.uint16).reshape(4, 5)
    file = write(tmp_path / "a.dcm", x, WindowCenter="1000", WindowWidth=str(width), VOILUTFunction=function)
    theirs = apply_windowing(x, pydicom.dcmread(file)) / 65535 * 255  # to the range of 16 bits
    x = x.astype(float)
    if function == "LINEAR_EXACT":  # PS3.3, C.11.2.1.3.2
        y = np.where(x <= c - w / 2, 0, np.where(x > c + w / 2, 255, ((x - c) / w + 0.5) * 255))
    else:  # C.11.2.1.2.1; a width of 1 is a threshold
        line = ((x - (c - 0.5)) / max(w - 1, 1) + 0.5) * 255
        y = np.where(x <= c - 0.5 - (w - 1) / 2, 0, np.where(x > c - 0.5 + (w - 1) / 2, 255, line))
    assert theirs == pytest.approx(y, abs=0.01)
    assert np.abs(grey(file, "dicom") - y).max() <= 0.5 + 1e-3


def test_a_window_table(tmp_path: Path) -> None:
    from pydicom.dataset import Dataset

    item = Dataset()
    item.LUTDescriptor = [3, 5, 12]
    item.add_new(0x00283006, "US", [0, 2048, 4095])
    file = write(tmp_path / "a.dcm", np.array([[0, 5, 6], [7, 8, 999]], np.uint16), VOILUTSequence=[item])
    assert grey(file, "dicom").tolist() == [[0, 0, 128], [255, 255, 255]]
    ds = pydicom.dcmread(file)  # a table of Hounsfield units from -3, where nothing names the type of the -3
    ds.RescaleSlope, ds.RescaleIntercept = 1, -8
    ds.VOILUTSequence[0].add_new(0x00283002, "SS", [3, -3, 12])
    ds.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian
    ds.save_as(file, implicit_vr=True)
    assert grey(file, "dicom").tolist() == [[0, 0, 128], [255, 255, 255]]


def test_tables_of_4096_entries_of_8_and_of_12_bits(tmp_path: Path) -> None:
    """Entry by entry; pydicom reads the former modulo 256, and none of the latter for the modality."""
    from pydicom.dataset import Dataset

    for bits, tag in ((8, "VOILUTSequence"), (12, "ModalityLUTSequence")):
        item = Dataset()
        item.LUTDescriptor = [4096, 0, bits]
        item.add_new(0x00283006, "US", [*(np.arange(4096) >> (12 - bits))])
        array = np.array([[0, 255, 256], [1000, 4000, 4095]], np.uint16)
        shown = grey(write(tmp_path / "a.dcm", array, **{tag: [item]}), "dicom" if bits == 8 else (0.0, 4095.0))
        assert np.abs(shown.astype(float) - array / 4095 * 255).max() <= 1
    item.LUTDescriptor = [5000, 0, 12]  # more than there are
    assert np.array_equal(grey(write(tmp_path / "a.dcm", array, ModalityLUTSequence=[item]), (0.0, 4095.0)), shown)
    item = Dataset()
    item.LUTDescriptor = [256, 0, 8]
    item.add_new(0x00283006, "OW", bytes(range(256)))  # two entries in a word
    file = write(tmp_path / "a.dcm", np.array([[0, 1, 2], [100, 254, 255]], np.uint16), VOILUTSequence=[item])
    assert grey(file, "dicom").tolist() == [[0, 1, 2], [100, 254, 255]]


def test_bits_that_do_not_begin_at_the_lowest_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.dcm", RAMP << 4, BitsStored=12, HighBit=15)
    with pytest.raises(DataError, match=r"a.dcm: 12 bits up to bit 15, not from bit 0"):
        read_image(file, window="full")
    file = write(tmp_path / "b.dcm", RAMP, BitsStored=12, HighBit=15)  # the tag alone is wrong
    assert np.array_equal(grey(file, (0.0, 4095.0)), grey(write(tmp_path / "c.dcm", RAMP), (0.0, 4095.0)))


def test_a_window_of_one_value_is_a_threshold_and_a_senseless_one_is_none(tmp_path: Path) -> None:
    file = write(tmp_path / "a.dcm", RAMP, WindowCenter="1000.5", WindowWidth="1")
    assert np.array_equal(grey(file, "dicom"), np.where(RAMP > 1000, 255, 0))
    file = write(tmp_path / "b.dcm", RAMP, WindowCenter="1000", WindowWidth="0")
    assert read_header(file).windows == 0
    with pytest.raises(DataError, match="no window of its own"):
        read_image(file, window="dicom")
    for function, windows in (("LINEAR", 0), ("LINEAR_EXACT", 1), ("SIGMOID", 1)):  # only LINEAR needs a width of 1
        tags = {"WindowCenter": "1000", "WindowWidth": "0.5", "VOILUTFunction": function}
        assert read_header(write(tmp_path / "c.dcm", RAMP, **tags)).windows == windows
    for function in ("LINEAR_EXACT", "SIGMOID"):
        tags = {"WindowCenter": "1000", "WindowWidth": "0", "VOILUTFunction": function}
        assert read_header(write(tmp_path / "d.dcm", RAMP, **tags)).windows == 0


def test_inversion_comes_last_and_padding_is_known(tmp_path: Path) -> None:
    plain = grey(write(tmp_path / "plain.dcm", RAMP), (0.0, 4032.0))
    assert plain[0, 0] == 0 and plain[-1, -1] == 255
    mono, shape = {"PhotometricInterpretation": "MONOCHROME1"}, {"PresentationLUTShape": "INVERSE"}
    for tags in (mono, shape, mono | shape):
        assert np.array_equal(grey(write(tmp_path / "i.dcm", RAMP, **tags), (0.0, 4032.0)), 255 - plain), tags
    array = RAMP.copy()
    array[:2] = 63536
    found = deep(write(tmp_path / "p.dcm", array, PixelPaddingValue=63536))
    assert found.valid is not None and not found.valid[:2].any() and found.valid[2:].all()
    found = deep(write(tmp_path / "r.dcm", array, PixelPaddingValue=63536, PixelPaddingRangeLimit=0))
    assert found.valid is not None and not found.valid.any()  # 0 is a limit too
    assert grey(tmp_path / "r.dcm", (0.0, 4032.0)).any()  # where all is said to be padding, none is
    file = write(tmp_path / "s.dcm", np.where(array == 63536, -2000, array.astype(int)).astype(np.int16))
    data = pydicom.dcmread(file)
    data.add_new("PixelPaddingValue", "US", 63536)  # of signed values: -2000
    data.save_as(file)
    found = deep(file)
    assert found.valid is not None and not found.valid[:2].any() and found.valid[2:].all()
    for tags in ({}, mono):  # it is black like the bars that make an image square, whatever its value
        shown = np.where(array == 63536, 0, 255 - plain if tags else plain)
        found = grey(write(tmp_path / "p.dcm", array, PixelPaddingValue=63536, **tags), (0.0, 4032.0))
        assert np.array_equal(found, shown)
    found = grey(write(tmp_path / "p.dcm", RAMP, PixelPaddingValue=0, **mono), (0.0, 4032.0))
    assert np.array_equal(found, np.where(RAMP == 0, 0, 255 - plain))
    tags = {"PhotometricInterpretation": "MONOCHROME1", "WindowCenter": "0.5", "WindowWidth": "1001"}
    file = write(tmp_path / "a.dcm", RAMP, RescaleSlope="1", RescaleIntercept="-2048", **tags)
    x = RAMP.astype(float) - 2048
    assert np.abs(grey(file, "dicom") - (255 - np.clip((x + 500) / 1000, 0, 1) * 255)).max() <= 1


SYNTAXES = ["RLELossless", "JPEGLSLossless", "JPEG2000Lossless"]


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_lossless_compression(tmp_path: Path, syntax: str) -> None:
    array = np.random.default_rng(0).integers(0, 4096, (64, 64)).astype(np.uint16)
    file = compress(write(tmp_path / "a.dcm", array, BitsStored=12), syntax)
    assert np.array_equal(deep(file).values, array)
    colour = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    file = compress(write(tmp_path / "b.dcm", colour), syntax)
    assert np.array_equal(np.asarray(read_image(file)), colour)


@pytest.mark.parametrize(("entries", "word"), [(4096, np.uint8), (256, "<u2")])
def test_a_palette_of_eight_bits_by_hand(tmp_path: Path, entries: int, word: Any) -> None:
    """Of more entries than 256, or with each in a word of its own; a value beyond the table has its last colour."""
    ramp = np.arange(entries) * 255 // (entries - 1)
    tables = dict(zip(("Red", "Green", "Blue"), (ramp, ramp[::-1], np.roll(ramp, 7)), strict=True))
    tags = {f"{name}PaletteColorLookupTableDescriptor": [entries, 0, 8] for name in tables}
    tags |= {f"{name}PaletteColorLookupTableData": ramp.astype(word).tobytes() for name, ramp in tables.items()}
    array = np.array([[0, 1, 100], [255, entries - 1, 4095]], np.uint16)
    file = write(tmp_path / "a.dcm", array, PhotometricInterpretation="PALETTE COLOR", **tags)
    inside = np.minimum(array, entries - 1)
    assert np.array_equal(np.asarray(read_image(file)), np.stack([ramp[inside] for ramp in tables.values()], axis=-1))


def test_colours_of_eight_bits_in_words_of_sixteen(tmp_path: Path) -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(np.uint16)
    assert np.array_equal(np.asarray(read_image(write(tmp_path / "a.dcm", rgb, BitsStored=8))), rgb)


def test_a_window_that_is_no_number_is_none(tmp_path: Path) -> None:
    file = write(tmp_path / "a.dcm", RAMP, WindowCenter="123456", WindowWidth="2000")
    file.write_bytes(file.read_bytes().replace(b"123456", b"1000,5"))
    assert read_image(file, 1, window=(0.0, 65535.0)).size == RAMP.shape[::-1]
    with pytest.raises(DataError, match=r"a\.dcm: has no window of its own"):
        read_image(file, 1, window="dicom")


def test_eight_bits_in_the_window_of_deeper_images_are_said_to_be_nearly_one_grey(tmp_path: Path) -> None:
    file = write(tmp_path / "a.dcm", np.arange(256, dtype=np.uint8).reshape(16, 16))
    assert grey(file, (0.0, 4095.0)).max() <= 16
    (text,) = lost_outside([file], None, (0.0, 4095.1))
    assert text == "1 image has values in less than 1/16 of it, as of 8 bits: uniform"
    assert lost_outside([file], None, (0.0, 255.0)) == []


def test_bits_that_are_not_stored_do_not_count(tmp_path: Path) -> None:
    """As DCMTK's dcmcjpls writes it: a stream of 16 bits, of which 12 are stored, with the sign in the twelfth."""
    signed = np.random.default_rng(0).integers(-2048, 2048, (64, 64)).astype(np.int16)
    file = compress(write(tmp_path / "a.dcm", signed.view(np.uint16) & 0xFFF), "JPEGLSLossless")
    ds = pydicom.dcmread(file)
    ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 12, 11, 1
    ds.save_as(file)
    assert np.array_equal(deep(file).values, signed)


@pytest.mark.parametrize("top", [4096, 65536])
def test_values_of_more_bits_than_stated_are_refused(tmp_path: Path, top: int) -> None:
    """Not shown modulo 4096: a JPEG 2000 stream of 16 bits, of which the header states 12."""
    array = np.random.default_rng(0).integers(0, top, (64, 64)).astype(np.uint16)
    file = compress(write(tmp_path / "a.dcm", array), "JPEG2000Lossless")
    ds = pydicom.dcmread(file)
    ds.BitsStored, ds.HighBit = 12, 11
    ds.save_as(file)
    if top == 4096:
        assert np.array_equal(deep(file).values, array)
    else:
        with pytest.raises(DataError, match="12 bits stated, but the values have more"):
            deep(file)


def test_colours_that_cannot_be_compressed_are_read(tmp_path: Path) -> None:
    """A frame of noise is larger compressed than plain, of three samples and of two bytes."""
    rng = np.random.default_rng(0)
    rgb = rng.integers(0, 256, (220, 240, 3), dtype=np.uint8)
    file = compress(write(tmp_path / "a.dcm", rgb), "RLELossless")
    assert np.array_equal(np.asarray(read_image(file)), rgb)
    grey16 = rng.integers(0, 65536, (260, 280)).astype(np.uint16)
    file = compress(write(tmp_path / "b.dcm", grey16), "RLELossless")
    assert np.array_equal(deep(file).values, grey16)


def test_deflated_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.dcm", RAMP)
    ds = pydicom.dcmread(file)
    ds.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    ds.save_as(file)
    with pytest.raises(DataError, match=r"a\.dcm: a deflated DICOM file, which vitmed does not read"):
        read_image(file, window="dicom")


def test_colour(tmp_path: Path) -> None:
    """YBR by PS3.3, C.7.6.3.1.2; planes one after another; the flat colour is orange."""
    rgb = np.broadcast_to(np.array([200, 100, 50], np.uint8), (8, 8, 3)).copy()
    assert (
        pixel(write(tmp_path / "rgb.dcm", rgb)) == (200, 100, 50) and not read_header(tmp_path / "rgb.dcm").needs_window
    )
    planes = np.ascontiguousarray(np.moveaxis(rgb, 2, 0)).reshape(8, 8, 3)
    assert pixel(write(tmp_path / "planes.dcm", planes, PlanarConfiguration=1)) == (200, 100, 50)
    y, cb, cr = 0.299 * 200 + 0.587 * 100 + 0.114 * 50, 0.0, 0.0
    cb, cr = 128 + (50 - y) / 1.772, 128 + (200 - y) / 1.402
    ybr = np.broadcast_to(np.rint([y, cb, cr]).astype(np.uint8), (8, 8, 3)).copy()
    file = write(tmp_path / "ybr.dcm", ybr, PhotometricInterpretation="YBR_FULL")
    assert pixel(file) == pytest.approx((200, 100, 50), abs=2)
    with pytest.raises(DataError, match="photometric interpretation 'HSV'"):
        read_image(write(tmp_path / "hsv.dcm", rgb, PhotometricInterpretation="HSV"))


def test_palette(tmp_path: Path) -> None:
    tables = {}
    for colour, value in (("Red", 200), ("Green", 100), ("Blue", 50)):
        tables[f"{colour}PaletteColorLookupTableDescriptor"] = [2, 0, 16]
        tables[f"{colour}PaletteColorLookupTableData"] = struct.pack("<HH", 0, value << 8)
    array = np.array([[0, 1], [1, 0]], np.uint8)
    file = write(tmp_path / "a.dcm", array, PhotometricInterpretation="PALETTE COLOR", **tables)
    found = np.asarray(read_image(file))
    assert found[0, 0].tolist() == [0, 0, 0] and found[0, 1].tolist() == [200, 100, 50]
    assert not read_header(file).needs_window


@pytest.mark.parametrize(("bits", "deep_colour"), [(8, False), (9, True), (12, True)])
def test_colours_of_more_than_eight_bits_need_a_window(tmp_path: Path, bits: int, deep_colour: bool) -> None:
    rgb = np.random.default_rng(0).integers(0, 2**bits, (6, 8, 3)).astype(np.uint8 if bits == 8 else np.uint16)
    file = write(tmp_path / "a.dcm", rgb, BitsStored=bits)
    header = read_header(file)
    assert (header.mode, header.bits, header.needs_window, header.windows) == ("RGB", bits, deep_colour, 0)
    if deep_colour:
        assert np.array_equal(deep(file).values, rgb) and deep(file).bits == bits
    else:
        assert np.array_equal(np.asarray(read_image(file)), rgb)


@pytest.mark.parametrize("bits", [1, 4, 6])
def test_colours_of_fewer_than_eight_bits_reach_from_black_to_white(tmp_path: Path, bits: int) -> None:
    top = 2**bits - 1
    rgb = np.random.default_rng(0).integers(0, top + 1, (6, 8, 3)).astype(np.uint8)
    file = write(tmp_path / "a.dcm", rgb, BitsStored=bits)
    packed = compress(write(tmp_path / "b.dcm", rgb, BitsStored=bits), "RLELossless")
    for each in (file, packed):
        assert not read_header(each).needs_window
        assert np.array_equal(np.asarray(read_image(each)), np.rint(rgb * 255.0 / top))
    ybr = write(tmp_path / "c.dcm", rgb, BitsStored=bits, PhotometricInterpretation="YBR_FULL")
    for read in (read_header, read_image):  # its colours would be wrong: the middle of 6 bits is 32, not 128
        with pytest.raises(DataError, match=rf"c\.dcm: photometric interpretation 'YBR_FULL' with {bits}-bit values"):
            read(ybr)


def test_a_frame_of_several(tmp_path: Path) -> None:
    array = np.stack([RAMP, RAMP + 1, RAMP + 2])
    file = write(tmp_path / "a.dcm", array, frames=3)
    assert read_header(file).frames == 3
    with pytest.raises(DataError, match=r"a\.dcm: holds 3 frames"):
        read_image(file, window=(0.0, 4095.0))
    packed = compress(write(tmp_path / "b.dcm", array, frames=3), "RLELossless")
    for index in range(3):
        assert np.array_equal(deep(file, index).values, array[index])
        assert np.array_equal(deep(packed, index).values, array[index])


def test_what_a_frame_says_of_itself_goes_first(tmp_path: Path) -> None:
    """Functional groups (PS3.3, C.7.6.16): slope of each frame, window shared."""
    from pydicom.dataset import Dataset

    frames = []
    for slope in (1, 3):
        values, item = Dataset(), Dataset()
        values.RescaleSlope, values.RescaleIntercept = str(slope), "-10"
        item.PixelValueTransformationSequence = [values]
        frames.append(item)
    window, shared = Dataset(), Dataset()
    window.WindowCenter, window.WindowWidth = "500.5", "1001"
    shared.FrameVOILUTSequence = [window]
    groups = {"PerFrameFunctionalGroupsSequence": frames, "SharedFunctionalGroupsSequence": [shared]}
    file = write(tmp_path / "a.dcm", np.stack([RAMP, RAMP]), frames=2, **groups)
    assert np.array_equal(deep(file, 1).values, RAMP * 3.0 - 10)
    assert read_header(file).windows == 1
    found = np.asarray(read_image(file, 1, frame=1, window="dicom")).astype(float)
    assert np.abs(found - np.clip((RAMP * 3.0 - 10) / 1000, 0, 1) * 255).max() <= 1


def test_a_dicom_file_of_any_name(tmp_path: Path) -> None:
    for name in ("a", "a.png", "1.2.840.1", "a.dicom", "a.IMA"):
        write(tmp_path / name, RAMP)
        assert np.array_equal(deep(tmp_path / name).values, RAMP) and read_header(tmp_path / name).format == "DICOM"


def test_what_is_no_picture_is_refused_by_name(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.dcm", RAMP).read_bytes()
    ds = pydicom.dcmread(tmp_path / "whole.dcm")
    del ds.PixelData
    ds.save_as(tmp_path / "without.dcm")
    del ds.Rows
    ds.save_as(tmp_path / "report.dcm")
    (tmp_path / "cut.dcm").write_bytes(whole[:-40])
    (tmp_path / "text.dcm").write_text("no DICOM" * 50)
    (tmp_path / "head.dcm").write_bytes(bytes(128) + b"DICM" + bytes(64))
    (tmp_path / "new.dcm").write_bytes(whole.replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.9\0"))
    told = {"without": "", "report": "without an image", "cut": "", "text": "not a DICOM file", "head": "a DICOM file"}
    told["new"], size = "does not read the syntax", 2 * RAMP.size
    told["cut"] = rf"the file is cut: {size - 40:,} bytes of pixel data, expected {size:,}\)"
    ds.PatientName, ds.file_meta.TransferSyntaxUID = "Doe^Jane", "1.2.840.10008.1.2.1"
    ds.save_as(tmp_path / "long.dcm")
    bad = bytearray((tmp_path / "long.dcm").read_bytes())
    at = bad.index(b"\x08\0\x16\0UI")
    bad[at + 6 : at + 8] = (len(bad) - at - 8).to_bytes(2, "little")
    (tmp_path / "long.dcm").write_bytes(bad)  # the class of the object reaches over the name of the patient
    told["long"] = r"a DICOM file without an image \(unknown\)"
    for name, text in told.items():
        with pytest.raises(DataError, match=rf"{name}\.dcm.*{text}"):
            read_image(tmp_path / f"{name}.dcm", window=(0.0, 1.0))


def test_declared_sizes_are_looked_at_before_anything_is_unpacked(tmp_path: Path) -> None:
    """Rows and columns beyond the bounds; a stream that is larger than rows and columns say."""
    file = write(tmp_path / "a.dcm", RAMP, Rows=60000, Columns=60000)
    with pytest.raises(DataError, match="pixels, refused"):
        read_image(file, window=(0.0, 1.0))
    array = np.zeros((64, 64), np.uint16)
    for syntax in ("JPEG2000Lossless", "JPEGLSLossless"):
        file = compress(write(tmp_path / f"{syntax}.dcm", array), syntax)
        ds = pydicom.dcmread(file)
        ds.Rows = 8
        ds.save_as(file)
        with pytest.raises(DataError, match="states 64 x 8 px but holds 64 x 64 px"):
            read_image(file, window=(0.0, 1.0))
    file = compress(write(tmp_path / "rle.dcm", array), "RLELossless")
    ds = pydicom.dcmread(file)
    ds.PixelData = pydicom.encaps.encapsulate([bytes(200_000)])
    ds.save_as(file)
    with pytest.raises(DataError, match="a frame of 200,000 bytes"):
        read_image(file, window=(0.0, 1.0))


def test_a_profile_of_dicom_is_applied(tmp_path: Path) -> None:
    rgb = np.broadcast_to(np.array([200, 100, 50], np.uint8), (8, 8, 3)).copy()
    file = write(tmp_path / "a.dcm", rgb, ICCProfile=profile("swapped"))
    assert pixel(file) == pytest.approx((50, 100, 200), abs=2)


def test_without_pydicom_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    file = write(tmp_path / "a.dcm", RAMP)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    for read in (read_header, decode):
        with pytest.raises(UsageError, match=r"a\.dcm: DICOM files need") as error:
            read(file)
        assert error.value.fix == "pip install 'vitmed[dicom]'"


def test_without_a_decoder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = compress(write(tmp_path / "a.dcm", np.tile(RAMP, (8, 8))), "JPEGLSLossless")
    monkeypatch.setitem(pydicom.pixels.get_decoder(pydicom.uid.JPEGLSLossless)._available, "pyjpegls", None)
    monkeypatch.delitem(pydicom.pixels.get_decoder(pydicom.uid.JPEGLSLossless)._available, "gdcm")
    with pytest.raises(UsageError, match="JPEG-LS") as error:
        read_image(file, window=(0.0, 1.0))
    assert "vitmed[dicom]" in error.value.fix


def test_a_stream_that_is_cut_short_ends(tmp_path: Path) -> None:
    """pyjpegls would go on for minutes."""
    file = compress(write(tmp_path / "a.dcm", np.tile(RAMP * 16, (8, 8))), "JPEGLSLossless")
    whole = file.read_bytes()
    for cut in range(600, len(whole), max(1, len(whole) // 60)):
        file.write_bytes(whole[:cut])
        try:
            read_image(file, window=(0.0, 1.0))
        except DataError as error:
            assert "a.dcm" in str(error)


def test_an_old_file_of_pillows_is_not_taken_for_dicom(tmp_path: Path) -> None:
    Image.new("L", (200, 200), 7).save(tmp_path / "a.bmp")
    assert pixel(tmp_path / "a.bmp") == (7, 7, 7)


def test_a_jpeg_that_differs_from_its_header_is_refused(tmp_path: Path) -> None:
    """GDCM would end the process: bits of a sample below the 8 allocated, and channels."""
    stream = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(stream, "JPEG")
    for stored, samples, holds in ((6, 1, "1 x 8 bits .* states 1 x 6"), (8, 3, "1 x 8 bits .* states 3 x 8")):
        file = write(tmp_path / f"{stored}.dcm", np.zeros((8, 8), np.uint8), BitsStored=stored, HighBit=stored - 1)
        ds = pydicom.dcmread(file)
        if samples == 3:
            ds.SamplesPerPixel, ds.PhotometricInterpretation, ds.PlanarConfiguration = 3, "RGB", 0
        ds.PixelData = pydicom.encaps.encapsulate([stream.getvalue()])
        ds["PixelData"].is_undefined_length = True
        ds.file_meta.TransferSyntaxUID = pydicom.uid.JPEGLosslessSV1
        ds.save_as(file)
        with pytest.raises(DataError, match=holds):
            read_image(file)


def test_a_window_table_of_negative_values_and_one_of_a_frame(tmp_path: Path) -> None:
    """A table from -2 is one also for a picture without a negative value, and may stand in the group of a frame."""
    from pydicom.dataset import Dataset

    item, window = Dataset(), Dataset()
    item.add_new(0x00283002, "US", [4, 2**16 - 2, 12])  # as pydicom reads it where the stored values are unsigned
    item.add_new(0x00283006, "US", [0, 1024, 2048, 4095])
    window.VOILUTSequence = [item]
    array = np.array([[0, 1, 2]], np.uint16)
    for tags in ({"VOILUTSequence": [item]}, {"PerFrameFunctionalGroupsSequence": [Dataset()]}):
        for group in tags.get("PerFrameFunctionalGroupsSequence", []):
            group.FrameVOILUTSequence = [window]
        assert grey(write(tmp_path / "a.dcm", array, **tags), "dicom").tolist() == [[128, 255, 255]]
