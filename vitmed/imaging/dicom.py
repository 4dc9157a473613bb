"""DICOM: applies the modality LUT, passes the file's windows on, converts colour to RGB (PS3.3, C.7.6.3 and C.11).
Needs pydicom and its decoders, the extra `dicom`."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from vitmed.core.errors import DataError, UsageError
from vitmed.core.process import NO_WARNINGS, SharedContext, changed
from vitmed.imaging.rasters import JPEG, read_stream
from vitmed.imaging.raw_image import BYTES, ImageHeader, RawImage, pick_frame, refuse_large
from vitmed.imaging.window import FileWindow, Linear, Sigmoid, Table

GREY = ("MONOCHROME1", "MONOCHROME2")
DEFLATED = "1.2.840.10008.1.2.1.99"
RLE = "1.2.840.10008.1.2.5"
# Decoders that are safe with damaged files (pyjpegls, for example, never ends on some truncated streams). vitmed uses
# the first one installed, and tries no other if it fails.
DECODERS = {
    "1.2.840.10008.1.2.4.50": ("pillow",),  # JPEG, 8 bits
    "1.2.840.10008.1.2.4.80": ("gdcm",),  # JPEG-LS
    "1.2.840.10008.1.2.4.81": ("gdcm",),
    "1.2.840.10008.1.2.4.90": ("pylibjpeg", "pillow"),  # JPEG 2000
    "1.2.840.10008.1.2.4.91": ("pylibjpeg", "pillow"),
}
LOSSY = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.81", "1.2.840.10008.1.2.4.91")  # or perhaps lossy
HEAD = (
    *("Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation", "BitsAllocated"),
    *("BitsStored", "WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence", "Modality", "SOPClassUID"),
    *("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
)


@contextlib.contextmanager
def silence(name: str) -> Iterator[None]:
    """No warning, and no line of a library's logger."""
    logger = logging.getLogger(name)
    with NO_WARNINGS, changed(logger.setLevel, logging.CRITICAL + 1, logger.level):
        yield


QUIET = SharedContext(lambda: silence("pydicom"))  # it warns about every oddity, even where it reads the file


def has_magic(head: bytes) -> bool:
    """Whether the first 132 bytes of a file are those of DICOM (PS3.10, 7.1)."""
    return head[128:132] == b"DICM"


@QUIET
def read_header(path: Path, frame: int | None = None) -> ImageHeader:
    """The header of a DICOM file, with the windows of the frame. Raises DataError; UsageError without pydicom."""
    with _open(path) as stream:
        head, mode, bits, frames = _head(path, stream, list(HEAD))
    deep = mode in GREY or (bits > 8 and mode != "PALETTE COLOR")
    windows = len(list(_windows(head, frame or 0))) if mode in GREY else 0
    return ImageHeader("DICOM", mode, bits, int(head.Columns), int(head.Rows), frames, 1, deep, windows)


@QUIET
def read(path: Path, frame: int | None) -> RawImage | Image.Image:
    """A grey frame after its modality LUT, with the file's windows; a colour frame of 8 bits as RGB. Raises DataError:
    no image in it, too large, several frames, or damaged. UsageError: a decoder is missing."""
    with _open(path) as stream:
        head, mode, bits, frames = _head(path, stream)
        stored = int(head.get("SamplesPerPixel", 1) or 1) * max(1, int(head.get("BitsAllocated", 8)) // 8)
        # Colours are converted in float; a palette gives three times 16 bits.
        refuse_large(path, int(head.Columns), int(head.Rows), max(4, stored) if mode in GREY else max(12, 2 * stored))
        index = pick_frame(path, frames, frame)
        array = _pixels(path, stream, head, index, frames)
    if mode in GREY:
        inverted = mode == "MONOCHROME1" or str(head.get("PresentationLUTShape", "")).upper() == "INVERSE"
        valid, padding = None, head.get("PixelPaddingValue")
        if padding is not None and padding != "":  # around the image (PS3.3, C.7.5.1.1.2)
            limit = head.get("PixelPaddingRangeLimit")
            ends = int(padding), int(padding if limit in (None, "") else limit)
            signed = array.dtype == np.int16  # whose padding some devices store as unsigned
            low, high = sorted(end - 2**16 if signed and end >= 2**15 else end for end in ends)
            valid = (array < low) | (array > high)
        valid = None if valid is None or valid.all() else valid
        values = _modality(array, head, index)
        windows = tuple(_windows(head, index, bool(values.min() < 0)))
        return RawImage(values, bits, None, inverted, windows, valid)
    if mode == "PALETTE COLOR":
        # The colours of a palette (PS3.3, C.7.6.3.1.5), (H, W, 3) uint8; its full range is black to white.
        names = [f"{colour}PaletteColorLookupTable" for colour in ("Red", "Green", "Blue")]
        if not all(f"{name}Data" in head for name in names):  # in segments
            from pydicom.pixels import apply_color_lut

            array = apply_color_lut(array, head)[..., :3]
        else:
            tables = [_table(head[f"{name}Descriptor"].value, head[f"{name}Data"].value, head) for name in names]
            array = np.stack([_look_up(array, *table[:2]) for table in tables], axis=-1)
        array = (array >> 8).astype(np.uint8) if array.dtype == np.uint16 else array
    if array.ndim != 3 or array.shape[2] != 3:
        raise DataError(f"{path}: {mode} pixels of shape {array.shape}", "export it as RGB")
    if bits > 8 and array.dtype != np.uint8:
        return RawImage(array, bits)
    if bits < 8 and mode != "PALETTE COLOR":  # black to white
        array = np.rint(array * (255 / (2**bits - 1)))
    image = Image.fromarray(array.astype(np.uint8))
    if profile := head.get("ICCProfile"):
        image.info["icc_profile"] = bytes(profile)
    return image


def _open(path: Path) -> BinaryIO:
    """Open the file. Raises DataError for a deflated data set (PS3.5, A.5), which may unpack to any size."""
    try:
        import pydicom.filereader
    except ImportError:
        raise UsageError(f"{path}: DICOM files need one more package", "pip install 'vitmed[dicom]'") from None
    syntax = ""
    with contextlib.suppress(Exception):  # the reader reports it later
        syntax = str(pydicom.filereader.read_file_meta_info(path).get("TransferSyntaxUID", ""))
    if syntax == DEFLATED:
        raise DataError(f"{path}: a deflated DICOM file, which vitmed does not read", "export it uncompressed")
    return path.open("rb")


def _head(path: Path, stream: BinaryIO, tags: list[str] | None = None) -> tuple[Any, str, int, int]:
    """The data set before the pixels, the photometric interpretation, bits per channel, and the number of frames.

    Raises DataError if there is no image, or an unknown interpretation.
    """
    from pydicom import dcmread

    head: Any = dcmread(stream, stop_before_pixels=True, specific_tags=tags)  # type: ignore[arg-type]
    if not head.get("Rows") or not head.get("Columns"):
        name = str(getattr(head.get("SOPClassUID"), "name", None) or head.get("Modality") or "")
        name = name if name.isprintable() else ""  # a damaged length reads on into the name of the patient
        raise DataError(f"{path}: a DICOM file without an image ({name or 'unknown'})", "remove it")
    mode = str(head.get("PhotometricInterpretation", "")).strip().upper()
    bits = int(head.get("BitsStored") or head.get("BitsAllocated") or 8)
    ybr = ("YBR_FULL", "YBR_FULL_422") if bits >= 8 else ()  # pydicom takes 128 as the middle of any depth
    if mode not in (*GREY, "PALETTE COLOR", "RGB", "YBR_ICT", "YBR_RCT", *ybr):
        what = f"photometric interpretation {mode[:16]!r} with {bits}-bit values, which vitmed does not read"
        raise DataError(f"{path}: {what}", "export it as RGB")
    return head, mode, bits, max(1, int(head.get("NumberOfFrames") or 1))


def _pixels(path: Path, stream: BinaryIO, head: Any, index: int, frames: int) -> np.ndarray:
    """One frame as stored, (H, W) or (H, W, 3); YBR becomes RGB."""
    from pydicom import dcmread
    from pydicom.encaps import get_frame
    from pydicom.pixels import get_decoder, pixel_array
    from pydicom.pixels.utils import get_expected_length
    from pydicom.uid import UID

    syntax = UID(head.file_meta.TransferSyntaxUID)
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        name = syntax.name if syntax.is_valid else "of a damaged header"
        raise DataError(f"{path}: vitmed does not read the syntax {name}", "export single frames") from None
    plugins = DECODERS.get(syntax, decoder.available_plugins)
    plugin = next((name for name in plugins if name in decoder.available_plugins), "")
    if not plugin and (syntax.is_encapsulated or not decoder.is_available):
        raise UsageError(f"{path}: {syntax.name} needs one more package", "pip install 'vitmed[dicom]'")
    start = stream.tell()  # pydicom stopped before the pixel data
    explicit = stream.read(8)[4:6].isalpha()
    if syntax.is_encapsulated:
        stream.seek(start + (12 if explicit else 8))  # behind tag, VR and length of the pixel data
        table = None
        if "ExtendedOffsetTable" in head and "ExtendedOffsetTableLengths" in head:
            table = bytes(head.ExtendedOffsetTable), bytes(head.ExtendedOffsetTableLengths)
        data = get_frame(stream, index, extended_offsets=table, number_of_frames=frames)
        _check_packed(path, head, data, syntax == RLE)
    else:
        held = path.stat().st_size - start - (12 if explicit else 8)  # below 0 without pixel data
        if 0 <= held < (expected := get_expected_length(head) // frames * (index + 1)):
            raise ValueError(f"the file is cut: {held:,} bytes of pixel data, expected {expected:,}")
    whole = explicit == syntax.is_implicit_VR  # pydicom reads such a file, whose header is wrong, only as a whole
    if whole and path.stat().st_size > BYTES:
        raise DataError(f"{path}: over {BYTES:,} bytes, and readable only as a whole", "export single frames")
    stream.seek(0)
    bits = int(head.get("BitsStored") or 16)
    shifted = not syntax.is_encapsulated and int(head.get("HighBit") or 0) >= bits
    how: Any = {"correct_unused_bits": False} if shifted else {}
    array = pixel_array(dcmread(stream) if whole else stream, index=index, decoding_plugin=plugin, **how)
    exact = shifted or (syntax.is_encapsulated and syntax not in (RLE, *LOSSY))
    if exact and ((array >> bits != 0) & (array >> (bits - 1) != -1)).any():  # else a tag is wrong
        what = f"up to bit {head.HighBit}, not from bit 0" if shifted else "stated, but the values have more"
        raise DataError(f"{path}: {bits} bits {what}", "export it again" + " (dcmj2pnm reads it)" * shifted)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    unused = 8 * array.dtype.itemsize - bits if syntax.is_encapsulated else 0  # else pydicom has cleared these bits
    if unused > 0 and syntax in LOSSY:  # which leaves values a little outside
        return np.clip(array, np.iinfo(array.dtype).min >> unused, np.iinfo(array.dtype).max >> unused)
    return array << unused >> unused if unused > 0 else array


def _check_packed(path: Path, head: Any, data: bytes, rle: bool) -> None:
    """Raise DataError where a packed frame holds something else than its header states: decoding then takes memory or
    time without bound, and GDCM ends the process."""
    rows, columns, allocated = int(head.Rows), int(head.Columns), int(head.BitsAllocated)
    samples, stored = int(head.get("SamplesPerPixel") or 1), int(head.get("BitsStored") or allocated)
    if rle:
        if len(data) > 2 * rows * columns * samples * max(1, allocated // 8) + 2**16:
            raise DataError(f"{path}: a frame of {len(data):,} bytes for {columns} x {rows} px", "export it again")
        return
    frame = read_stream(data)
    if frame is None or (frame.width, frame.height) != (columns, rows):
        holds = "no image" if frame is None else f"{frame.width:,} x {frame.height:,} px"
        raise DataError(f"{path}: states {columns:,} x {rows:,} px but holds {holds}", "export it again")
    fits = frame.components == samples and 8 <= frame.bits <= allocated and (allocated > 8 or stored == 8)
    if data[:2] == JPEG and not fits:
        holds = f"{frame.components} x {frame.bits} bits for each pixel, the header states {samples} x {stored}"
        raise DataError(f"{path}: the JPEG holds {holds}", "export it without compression")


def _groups(head: Any, index: int, sequence: str) -> Iterator[Any]:
    """Where a frame's settings may be: its own functional group, the shared one, the data set (PS3.3, C.7.6.16)."""
    frames = head.get("PerFrameFunctionalGroupsSequence") or []
    for item in (*frames[index : index + 1], *(head.get("SharedFunctionalGroupsSequence") or [])[:1]):
        yield from (item.get(sequence) or [])[:1]
    yield head


def _look_up(array: np.ndarray, first: int, entries: np.ndarray) -> np.ndarray:
    """The entries of stored values; those beyond the table have its ends. Of signed values the first may be signed."""
    first -= 2**16 if first >= 2**15 and array.min() < 0 else 0
    return np.asarray(entries[np.clip(array.astype(np.int64) - first, 0, len(entries) - 1)])


def _modality(array: np.ndarray, head: Any, index: int) -> np.ndarray:
    """Stored values -> values of the modality: Hounsfield units, counts, ... (PS3.3, C.11.1)."""
    if head.get("ModalityLUTSequence"):
        item = head.ModalityLUTSequence[0]
        return _look_up(array, *_table(item.LUTDescriptor, item.LUTData, head)[:2])
    groups = _groups(head, index, "PixelValueTransformationSequence")
    pairs = ((group.get("RescaleSlope"), group.get("RescaleIntercept")) for group in groups)
    slope, intercept = map(float, next((pair for pair in pairs if None not in pair), (1, 0)))
    if (slope, intercept) == (1, 0):
        return array
    values: np.ndarray = array.astype(np.float64 if array.dtype.itemsize > 2 else np.float32)
    np.multiply(values, slope, out=values)
    return np.add(values, intercept, out=values)


def _table(descriptor: Any, data: Any, head: Any) -> tuple[int, np.ndarray, int]:
    """A look-up table: the value of its first entry, the entries, and their bits. Not by pydicom, which reads indices
    modulo 256 where entries have 8 bits, and in a table of the modality no entries of 12 bits."""
    count, first, bits = (int(number) for number in descriptor)
    if isinstance(data, bytes):
        data = np.frombuffer(data, "<u2" if head.file_meta.TransferSyntaxUID.is_little_endian else ">u2")
    entries, count = np.atleast_1d(data).astype("<u2"), count or 2**16
    if len(entries) < count and (bits <= 8 or (bits == 16 and 2 * len(entries) == count)):  # two in a word
        entries, bits = entries.view(np.uint8), min(bits, 8)
    elif bits <= 8 and entries.max(initial=0) > 255:  # in the upper half of their words
        entries = entries >> 8
    return first, entries[:count].astype(np.uint8 if bits <= 8 else np.uint16), bits


def _windows(head: Any, index: int, signed: bool = False) -> Iterator[FileWindow]:
    """The windows of a frame: tables first, as in pydicom, then centre and width (PS3.3, C.11.2). The values that they
    are for may be negative, `signed`."""
    groups = _groups(head, index, "FrameVOILUTSequence")
    for item in next((tables for group in groups if (tables := group.get("VOILUTSequence"))), []):
        first, entries, bits = _table(item.LUTDescriptor, item.LUTData, head)
        # Without explicit VRs pydicom takes the first value as unsigned where the stored pixels are.
        first -= 2**16 if first >= 2**15 and (signed or first + len(entries) > 2**16) else 0
        yield Table(first, entries.astype(np.float32) * np.float32(255 / (2**bits - 1)))
    for group in _groups(head, index, "FrameVOILUTSequence"):
        centres, widths = _numbers(group, "WindowCenter"), _numbers(group, "WindowWidth")
        how = str(group.get("VOILUTFunction") or "LINEAR").strip().upper()
        for centre, width in zip(centres, widths, strict=False):
            if how == "SIGMOID" and width > 0:
                yield Sigmoid(centre, width)
            elif width >= 1 or (how == "LINEAR_EXACT" and width > 0):
                yield Linear.of(centre, width, how == "LINEAR_EXACT")
        if centres:
            return


def _numbers(group: Any, name: str) -> list[float]:
    """The numbers of a field; none where one is not a finite number, as of a decimal comma."""
    numbers = list[float]()
    with contextlib.suppress(ValueError, TypeError):
        if (value := group.get(name)) is not None and value != "":
            numbers = [float(number) for number in np.atleast_1d(value)]
    return numbers if np.isfinite(numbers).all() else []
