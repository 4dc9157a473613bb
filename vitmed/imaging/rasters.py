"""PNG, JPEG, TIFF, BMP, WebP, GIF, JPEG 2000, NumPy: Pillow reads 8 bits, Pillow or OpenCV more, without loss."""

import contextlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from PIL import Image, ImageChops, TiffImagePlugin, UnidentifiedImageError

from vitmed.core.errors import DataError
from vitmed.core.process import SharedContext, changed
from vitmed.imaging.raw_image import BYTES, MODES, ImageHeader, RawImage, pick_frame, refuse_large

# Only these: Pillow would pass a PostScript file with any suffix to an external program.
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP", "GIF", "JPEG2000")
NUMPY = b"\x93NUMPY"
PNG = b"\x89PNG\r\n\x1a\n"
JPEG, SCAN = b"\xff\xd8", b"\xff\xda"  # how the file and a scan of it begin
TIFF = (b"II*\x00", b"MM\x00*", b"II+\x00")
HEAD = 2**22  # bytes within which the codestream of a JPEG 2000 file begins
SCANS = 200  # most scans of a JPEG; each decodes the whole image
FRAMES = 100_000  # counting of frames or pages stops here
FRAME_MARKERS = frozenset({*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0), 0xF7})
ORIENTATION = 0x0112
Tags = TiffImagePlugin.ImageFileDirectory_v2


class Stream(NamedTuple):
    """What the head of a JPEG, JPEG-LS or JPEG 2000 stream states (ITU-T T.81 B.2.2, T.87 C.2.2, T.800 A.5.1)."""

    width: int
    height: int
    components: int
    bits: int


def read_header(path: Path) -> ImageHeader:
    """The header of a raster file or an array. Raises DataError, and errors of Pillow and NumPy."""
    with path.open("rb") as stream:
        head = stream.read(26)
        if head.startswith(NUMPY):
            array, (frames, height, width, channels) = _open_array(path)
            bits = 1 if array.dtype == bool else 8 * array.dtype.itemsize
            deep = array.dtype not in (bool, np.uint8)
            return ImageHeader("NPY", MODES[channels], bits, width, height, frames, 1, deep)
        if head.startswith(TIFF):
            pages, first = _tiff_pages(path, stream)
            stream.seek(pages[0])
            first.load(stream)  # type: ignore[no-untyped-call]
            bits, kind = _tiff_depth(first)
            try:
                with Image.open(stream, formats=FORMATS) as image:
                    mode = image.mode
            except UnidentifiedImageError:
                mode = f"{first.get(277, 1)} x {bits} bits"
            size = int(first.get(256, 0)), int(first.get(257, 0))
            return ImageHeader("TIFF", mode, bits, *size, len(pages), _orientation(first), bits > 8 or kind > 1)
        with Image.open(stream, formats=FORMATS) as image:
            frames, bits = _frames_and_bits(image, stream, head)
            turned, name = _orientation(image.getexif()), str(image.format)
            return ImageHeader(name, image.mode, bits, *image.size, frames, turned, bits > 8)


def read(path: Path, frame: int | None) -> RawImage | Image.Image:
    """Decode. Raises DataError; errors of Pillow and NumPy."""
    with path.open("rb") as stream:
        head = stream.read(26)
        if head.startswith(NUMPY):  # uint8 and bool as an 8-bit image, other types as a `RawImage`
            array, (frames, height, width, channels) = _open_array(path)
            index = pick_frame(path, frames, frame)
            refuse_large(path, width, height, max(4, channels * array.dtype.itemsize))
            part = array if frames == 1 and array.ndim < 4 else array[index]
            shown = np.asarray(part.reshape(height, width, channels))
            if shown.dtype == bool:
                shown = shown.astype(np.uint8) * 255
            shown = np.ascontiguousarray(shown[..., 0] if channels == 1 else shown)
            if shown.dtype == np.uint8:
                return Image.fromarray(shown)
            if channels in (2, 4):
                problem = f"{path}: {channels} channels of {shown.dtype}, expected 1 or 3: "
                raise DataError(f"{problem}it is unknown which one is opacity", "save 1 or 3 channels, or uint8")
            return RawImage(shown.astype(shown.dtype.newbyteorder("="), copy=False), 8 * shown.dtype.itemsize)
        if head.startswith(TIFF):
            return _read_tiff(path, stream, frame)
        if head.startswith((PNG, JPEG)) and (size := path.stat().st_size) > BYTES:  # it is read as a whole
            raise DataError(f"{path}: a file of {size:,} bytes, more than {BYTES:,}, refused", "save it again")
        if head.startswith(PNG):  # decoding ignores the checksums of the pixels
            Image.open(stream, formats=FORMATS).verify()
        with Image.open(stream, formats=FORMATS) as image:
            refuse_large(path, *image.size, pixel_bytes=1 if image.mode in ("1", "L", "P") else 4)
            at = stream.tell()  # of a JPEG, behind the beginning of its first scan
            frames, bits = _frames_and_bits(image, stream, head)
            index = pick_frame(path, frames, frame)
            if bits > 8 and image.format == "JPEG2000":  # which Pillow cuts to 8 bits, or stretches
                raise DataError(f"{path}: a JPEG 2000 of {bits} bits, expected 8", "save it as PNG or TIFF of 16 bits")
            if bits > 8:
                return _read_deep_png(path, image, head, index)
            if image.format in ("JPEG", "MPO"):
                data = path.read_bytes()
                if (scans := data.count(SCAN)) > SCANS:
                    raise DataError(f"{path}: a JPEG of {scans:,} scans, more than {SCANS}, refused", "save it again")
                if data.endswith(bytes(64)) and data.find(b"\xff\xd9", at) < 0:  # decoded as grey
                    raise DataError(f"{path}: cannot be decoded (its end is zeros)", "copy it again, or remove it")
            elif index:
                refuse_large(path, *image.size, (index + 1) // 10)  # Pillow decodes all frames before it
                image.seek(index)
            image.load()
            if image.mode == "L" and head.startswith(PNG) and "transparency" in image.info:
                image.info["transparency"] *= 255 // (2 ** head[24] - 1)  # as Pillow has done with the pixels
            return ImageChops.invert(image) if has_negative_ink(image) else image


def has_negative_ink(image: Image.Image) -> bool:
    """ITU-T T.872, 6.1: in a JPEG 0 is no ink, except after Adobe's marker, which Pillow assumes."""
    return image.mode == "CMYK" and image.format in ("JPEG", "MPO") and "adobe" not in image.info


def _orientation(tags: Mapping[int, Any]) -> int:
    tag = tags.get(ORIENTATION)
    return tag if isinstance(tag, int) and 1 <= tag <= 8 else 1


def _frames_and_bits(image: Image.Image, stream: IO[bytes], head: bytes) -> tuple[int, int]:
    """Number of frames, of which an MPO of a camera has one: its further frames are previews; and bits per channel.

    Pillow's mode is no guide: Pillow silently cuts 16-bit colour to 8 bits.
    """
    frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    if head.startswith(PNG) and head[24] == 16:
        return frames, 16
    if image.format == "JPEG2000":
        at = stream.tell()
        stream.seek(0)
        codestream = read_stream(stream.read(HEAD))
        stream.seek(at)
        if codestream is not None:
            return frames, codestream.bits
    return frames, 1 if image.mode == "1" else 8


def _read_deep_png(path: Path, image: Image.Image, head: bytes, index: int) -> RawImage:
    """A PNG of 16 bits."""
    turned = _orientation(image.getexif())
    if head[25] == 0:  # grey without alpha
        if index:
            refuse_large(path, *image.size, (index + 1) // 10)
            image.seek(index)
        values = np.asarray(image).astype(np.uint16)
        clear = image.info.get("transparency")
        alpha = np.where(values == clear, 0, 255).astype(np.uint8) if isinstance(clear, int) else None
        return RawImage(values, 16, alpha, orientation=turned)
    values, alpha = _opencv(path, index, np.dtype(np.uint16), image.size, animated=index > 0)
    grey = head[25] == 4
    return RawImage(values[..., 0] if grey and values.ndim == 3 else values, 16, alpha, orientation=turned)


def _silence() -> contextlib.AbstractContextManager[None]:
    from cv2.utils import logging

    return changed(logging.setLogLevel, logging.LOG_LEVEL_SILENT, logging.getLogLevel())


OPENCV_QUIET = SharedContext(_silence)  # vitmed's own error names the file


def _opencv(
    path: Path, index: int, dtype: np.dtype, size: tuple[int, int], animated: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """Unchanged values, (H, W) or (H, W, 3) in the order R, G, B; and the alpha channel as uint8. Raises DataError."""
    import cv2  # slow to import, and few images need it

    refuse_large(path, *size, pixel_bytes=4 * dtype.itemsize)
    data, array = np.frombuffer(path.read_bytes(), np.uint8), None
    with contextlib.suppress(cv2.error), OPENCV_QUIET:
        if index == 0:
            array = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
        elif not animated:
            pages = cv2.imdecodemulti(data, cv2.IMREAD_UNCHANGED, range=(index, index + 1))[1]
            array = pages[0] if pages else None
    if array is None or array.dtype != dtype or array.shape[1::-1] != size or array.shape[2:] not in ((), (3,), (4,)):
        fix = "save it as grey or RGB with 8 or 16 bits a channel, or 32-bit floats"
        raise DataError(f"{path}: a kind of {dtype} image that vitmed does not read", fix)
    alpha = None
    if array.shape[2:] == (4,):
        most = np.iinfo(dtype).max if dtype.kind in "iu" else 1.0
        alpha = np.rint(np.clip(array[..., 3] * (255 / most), 0, 255)).astype(np.uint8)
    return (array if array.ndim == 2 else array[..., 2::-1]), alpha


def _read_tiff(path: Path, stream: IO[bytes], frame: int | None) -> RawImage | Image.Image:
    pages, tags = _tiff_pages(path, stream)
    index = pick_frame(path, len(pages), frame)
    stream.seek(pages[index])
    tags.load(stream)  # type: ignore[no-untyped-call]
    (bits, kind), samples = _tiff_depth(tags), int(tags.get(277, 1))
    size = int(tags.get(256, 0)), int(tags.get(257, 0))
    deep = bits > 8 or kind > 1
    refuse_large(path, *size, pixel_bytes=samples * ((bits + 7) // 8) if deep else 4 if samples > 1 else 1)
    planar = samples > 1 and int(tags.get(284, 1)) == 2
    if samples == 1 or not (deep or (planar and samples == 2)):  # of which Pillow loses the second plane
        try:
            with Image.open(stream, formats=FORMATS) as image:
                if index:
                    image.seek(index)
                if image.size not in (size, size[::-1]):
                    both = f"{size[0]} x {size[1]} px in its tags and {image.width} x {image.height} px in Pillow"
                    raise DataError(f"{path}: {both}", "save it again")
                image.load()
                if not deep:
                    return image
                # Pillow takes signed bytes as unsigned, and swaps again what libtiff has swapped when it unpacked.
                swapped = kind > 1 and tags.prefix == b"MM" and tags.get(259, 1) != 1
                if not swapped and not (kind == 2 and bits == 8):
                    values = np.asarray(image)
                    values = values.astype(values.dtype.newbyteorder("="), copy=False)
                    if kind == 1 and bits == 32 and values.dtype == np.int32:  # the label is wrong, the bytes are right
                        values = values.view(np.uint32)
                    return RawImage(values, bits, None, int(tags.get(262, 1)) == 0)
        except UnidentifiedImageError:
            if not deep:
                raise
    colour, extra = int(tags.get(262, 1)), tags.get(338)
    wrong = colour > 2 or planar or (samples > 1 and colour < 2 and bits < 32) or (samples > 3 and bits == 8)
    if wrong or extra == (1,):  # OpenCV mixes samples that are no colours, and signed bytes with their opacity
        problem = f"{path}: a TIFF of {samples} x {bits} bits, a kind that vitmed does not read"
        raise DataError(problem, "save it as grey or RGB, channels side by side, without premultiplied alpha")
    dtype = np.dtype(f"{'?uif'[kind] if kind < 4 else 'u'}{max(1, bits // 8)}")
    # OpenCV turns the pages of a TIFF by their tag.
    values, alpha = _opencv(path, index, dtype, size[::-1] if _orientation(tags) > 4 else size)
    alpha = None if extra == (0,) else alpha  # unspecified: no opacity, as in Pillow with 8 bits
    return RawImage(values, bits, alpha, colour == 0 and bits > 8)  # 8 bits are inverted already


def _tiff_depth(tags: Tags) -> tuple[int, int]:
    """BitsPerSample, the most of all channels; SampleFormat: 1 unsigned, 2 signed, 3 floating point."""
    values = tags.get(258, 1), tags.get(339, 1)
    bits, kind = (max(value, default=1) if isinstance(value, tuple) else int(value) for value in values)
    return bits, kind


def _tiff_pages(path: Path, stream: IO[bytes]) -> tuple[list[int], Tags]:
    """Where the tags of each page are, and no tags, to `load` them (TIFF 6.0, section 2; BigTIFF has numbers of 8
    bytes)."""
    stream.seek(0)
    head = stream.read(8)
    big = head[2:4] == b"+\x00"
    head += stream.read(8) if big else b""
    order: Literal["little", "big"] = "little" if head[:2] == b"II" else "big"
    count, entry, offset = (8, 20, 8) if big else (2, 12, 4)  # bytes of: number of entries, an entry, an offset

    def number(data: bytes, size: int) -> int:
        return int.from_bytes(data, order) if len(data) == size else 0

    pages = dict[int, None]()  # in order
    at = number(head[-offset:], offset)
    while at and at not in pages and len(pages) < FRAMES:
        stream.seek(at)
        data = stream.read(count)
        if len(data) < count:
            break
        pages[at] = None
        stream.seek(entry * number(data, count), 1)
        at = number(stream.read(offset), offset)
    if not pages:
        raise DataError(f"{path}: cannot be decoded (a TIFF without a page)", "copy it again, or remove it")
    return list(pages), Tags(head)


def _open_array(path: Path) -> tuple[np.ndarray, tuple[int, ...]]:
    """The array, mapped from its file, and its frames, height, width and channels.

    Three axes are (H, W, C) if the last is at most 4, else (frames, H, W).
    """
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "buif" or array.dtype.itemsize > 8:
        kind = getattr(array, "dtype", "several arrays")
        raise DataError(f"{path}: holds {kind}, expected integers or real numbers", "save a plain array of the pixels")
    shape = array.shape
    if 0 not in shape:
        if len(shape) == 2:
            return array, (1, *shape, 1)
        if len(shape) == 3:
            return array, (1, *shape) if shape[2] <= 4 else (*shape, 1)
        if len(shape) == 4 and shape[3] <= 4:
            return array, shape
    problem = f"{path}: an array of shape {shape}, expected (H, W) or (H, W, C) with C of 1 to 4, or frames of these"
    raise DataError(problem, "save one image in a file")


def read_stream(data: bytes) -> Stream | None:
    """Size and depth of a stream, or None if there is none."""
    if data[:2] == JPEG:
        at = 2
        while at + 9 < len(data) and data[at] == 0xFF:
            marker = data[at + 1]
            if marker == 0xFF:  # padding
                at += 1
            elif marker in FRAME_MARKERS:
                bits, height, width, components = struct.unpack_from(">BHHB", data, at + 4)
                return Stream(width, height, components, bits)
            elif marker == 0x01 or 0xD0 <= marker <= 0xD7:
                at += 2
            else:
                at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        return None
    start = data.find(b"\xff\x4f\xff\x51")  # a bare codestream, or one in the boxes of a .jp2
    if start < 0 or len(data) - start < 45:
        return None
    right, bottom, left, top = struct.unpack_from(">IIII", data, start + 8)
    components = int.from_bytes(data[start + 40 : start + 42], "big")
    depths = data[start + 42 : start + 42 + 3 * components : 3]
    if not depths:
        return None
    return Stream(right - left, bottom - top, components, 1 + max(depth & 0x7F for depth in depths))
