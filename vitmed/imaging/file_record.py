"""One decode of a file gives a record for the data check, which names personal data, and a square for the network."""

import io
import re
import unicodedata
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import regex
from PIL import ExifTags, Image, ImageFile

from vitmed.core.errors import VitmedError
from vitmed.core.files import check_regular
from vitmed.core.process import NO_WARNINGS
from vitmed.imaging.decode import decode, read_header, to_8_bit
from vitmed.imaging.dicom import QUIET
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.imaging.raw_image import ImageHeader, RawImage
from vitmed.imaging.window import Window

# --- personal data in file names and in the metadata of image files

MARKS = (b"Exif", b"tEXt", b"iTXt", b"zTXt", b"eXIf", b"xmpmeta", b"\xff\xfe", b"II*\x00", b"MM\x00*", b"GIF8")
EXIF_FIELDS = ("Artist", "XPAuthor", "CameraOwnerName", "Copyright", "HostComputer")
KEYS = re.compile(r"patient|birth|\bdob\b|\bmrn\b|author|owner|physician|doctor|full.?name|e-?mail|address|phone", re.I)
_NOBODY = r"anonym[a-z]*|de-?ident[a-z]*|removed|redacted|unknown|none|n/?a|test|phantom|subject|patient|case"
NO_PERSON = re.compile(rf"(?<![a-z])(?:{_NOBODY})(?![a-z])", re.I)  # whole words: ANNA and CASEY are names
DICOM_FIELDS = (
    *("PatientName", "PatientBirthDate", "PatientAddress", "PatientTelephoneNumbers", "OtherPatientNames"),
    *("AccessionNumber", "ReferringPhysicianName", "InstitutionName", "PatientID"),
)
BURNED = {"US": "ultrasound", "SC": "secondary capture", "XA": "angiography"}
_YEAR = r"(?:19\d\d|20[0-2]\d)"
_MONTH, _DAY = "(?:0[1-9]|1[0-2])", r"(?:0[1-9]|[12]\d|3[01])"
_DATE = rf"(?:{_YEAR}(?:[-_.]?{_MONTH}[-_.]?{_DAY})?|{_DAY}[-_.]{_MONTH}[-_.]{_YEAR})(?!\d)"
_NAME = r"(?:\p{Lu}{2,}|\p{Lu}\p{Ll}+(?:-\p{Lu}\p{Ll}+)?)"
_NAMES = regex.compile(
    rf"(?<![\p{{L}}0-9])(?:({_NAME})[_ ,.-]+({_NAME})[_ ,.-]+{_DATE}|"
    rf"{_DATE}[_ ,.-]+({_NAME})[_ ,.-]+({_NAME})(?!\p{{L}}))"
)
_WORDS = (
    "img image scan slide slice cell cells thin thinf thick original copy frame crop patch tile stain series study "
    "view left right front side normal abnormal positive negative benign malignant infected uninfected parasitized "
    "chest xray lung heart brain liver kidney breast skin eye fundus retina blood smear bone knee spine train test "
    "val validation training data dataset site hospital clinic center centre camera canon nikon olympus zeiss leica "
    "motic sony png jpg mask label class screenshot dsc photo pic dcim batch visit session january february march "
    "april may june july august september october november december jan feb mar apr jun jul aug sep oct nov dec he "
    "pas ihc ct mr mri pet us isic ham bcn tcga luad lusc brca patient subject case person exam report pneumonia "
    "covid tumor tumour röntgen thorax aufnahme снимок мрт рентген grad cam "
)
_NO_NAMES = frozenset(_WORDS.split())
PATTERNS = {
    "an e-mail address": re.compile(r"[\w.+-]+@[\w-]+\.[a-z]{2,}", re.I),
    "a name": regex.compile(r"(?<!\p{L})\p{Lu}\p{L}+\^\p{Lu}\p{L}+"),  # DOE^JANE, as in DICOM
    "a name with a title": regex.compile(r"(?:^|\P{L})(?:Mrs?|Ms|Frau|Herr|Dr|Mme|Sra?)[._ ]+\p{Lu}\p{Ll}{2,}"),
    "a date of birth": re.compile(r"(?:^|[^a-z])(?:dob|born|birth(?:date|day)?|geb(?:oren)?|naissance)[-_. ]*\d", re.I),
    "a named field": re.compile(r"(?:first|last|sur|full|patient)[-_ ]?name[-_ =:]+[A-Za-z]{2,}", re.I),
    "a social security number": re.compile(r"(?<!\d)\d{3}-\d{2}-\d{4}(?!\d)"),
}


def looks_like_a_person(text: str) -> str | None:
    """What looks like a person in a file name or comment, such as "a name" or "an e-mail address"; None for nothing.

    It matches patterns of words and dates, so it errs both ways: `AUTUMN_LEAVES_1990` is called a name, `jdoe3` is not.
    """
    text = unicodedata.normalize("NFC", text)  # one letter for e and its accent
    for what, expression in PATTERNS.items():
        if expression.search(text):
            return what
    for match in _NAMES.finditer(text):
        if not any(word and word.lower() in _NO_NAMES for word in match.groups()):
            return "a name and a year of birth"
    return None


def personal_fields(path: Path, data: bytes) -> tuple[str, ...]:
    """Names, never values, of metadata fields that look like a person or locate the picture."""
    if data[128:132] == b"DICM" or path.suffix.lower() in (".dcm", ".dicom", ".ima"):
        signs = list[str]()  # fields of a person, and signs of text in the picture
        with QUIET, suppress(Exception):  # no pydicom; or a damaged file, which the decoder reports
            import pydicom

            tags = [*DICOM_FIELDS, "BurnedInAnnotation", "Modality"]
            about = pydicom.dcmread(io.BytesIO(data), stop_before_pixels=True, specific_tags=tags, force=True)
            filled = {name: str(about.get(name, "") or "").strip(" ^=") for name in DICOM_FIELDS}
            for name, value in filled.items():
                person = value != filled["PatientID"] or looks_like_a_person(value)
                if value and person and not NO_PERSON.search(value):
                    signs.append(f"DICOM {name}")
            if str(about.get("BurnedInAnnotation", "")).upper() == "YES":
                signs.append("DICOM BurnedInAnnotation YES")
            elif (modality := str(about.get("Modality", ""))) in BURNED:
                signs.append(f"DICOM modality {modality} ({BURNED[modality]}), which often has text in the image")
        return tuple(signs)
    head = data if data[:4] == b"\x89PNG" else data[: 1 << 18]
    if not any(mark in head for mark in MARKS):
        return ()
    fields: set[str] = set()
    # Pillow warns and raises for many kinds of damage, which the decoder reports.
    with suppress(Exception), NO_WARNINGS, Image.open(io.BytesIO(data)) as image:
        exif = image.getexif()
        inner, position = exif.get_ifd(ExifTags.IFD.Exif), exif.get_ifd(ExifTags.IFD.GPSInfo)
        for name in (*EXIF_FIELDS, "ImageDescription", "UserComment", "XPComment", "XPTitle"):
            tag = ExifTags.Base[name]
            value = exif.get(tag, inner.get(tag))
            plain = value.replace(b"\0", b"") if isinstance(value, bytes) else value  # also Latin letters of UTF-16
            text = plain.decode("utf-8", "replace") if isinstance(plain, bytes) else str(plain or "")
            if text.strip(" \x00") if name in EXIF_FIELDS else looks_like_a_person(text[:2000]):
                fields.add(f"EXIF {name}")
        if 2 in position or 4 in position:  # latitude, longitude
            fields.add("EXIF GPS position")
        texts = dict(image.info)
        if isinstance(image, ImageFile.ImageFile) and image.format == "PNG":
            texts |= getattr(image, "text", {})  # also texts after the pixels
        for key, value in texts.items():
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            if key in ("exif", "icc_profile", "photoshop") or not isinstance(text, str) or not text.strip():
                continue
            if (KEYS.search(str(key)) and not NO_PERSON.search(text)) or looks_like_a_person(text[:2000]):
                fields.add(f"{image.format} text '{str(key)[:40]}'")
    return tuple(sorted(fields))


# --- what one decode gives

SIDE = 32  # of a thumbnail, px
NUMBERS = ("red", "green", "blue", "border_red", "border_green", "border_blue", "low", "high")
CUT = ("truncated", "cannot be decoded", "broken data stream")  # an image with a sound head


@dataclass(frozen=True, eq=False)
class FileRecord:
    """What the data check knows of a file."""

    size: int = -1  # bytes; -1 if there is no such file
    sha256: str = ""  # of its content; "" if it cannot be read
    header: ImageHeader | None = None  # None if it cannot be read
    # (8,) float32, named by NUMBERS: mean colour and colour of the border, 0..255, and the lowest and highest value of
    # any channel, of a deep image in the window of the run; None if it cannot be decoded
    numbers: np.ndarray | None = None
    thumbnail: np.ndarray | None = None  # (32, 32) uint8 grey, squashed; None if it cannot be decoded
    personal: tuple[str, ...] = ()  # names of the metadata fields that look like a person, never their values
    kind: str = ""  # "" for a good file, else empty_file, multi_frame, truncated or unreadable
    problem: str = ""  # in words, without the path, as the fix
    fix: str = ""


class Examined(NamedTuple):
    """The results of one decode, as requested: a record, a square (S, S, C) uint8, and why there is no square."""

    record: FileRecord | None = None
    square: np.ndarray | None = None
    error: VitmedError | None = None


def examine(
    path: Path,
    sha256: str,
    frame: int | None,  # of several, which is decoded
    preprocessing: Preprocessing | None = None,  # makes the square; None if no square is needed
    record: bool = True,  # whether a record is needed, of the content with this sha256
    window: Window = None,  # for the record of an image that needs one; None stretches each such image by itself
) -> Examined:
    """Decode a file once. Never raises for a file that cannot be used: record and error name the problem."""
    begun, made, square = FileRecord(sha256=sha256), None, None
    try:
        if record:
            with suppress(OSError):  # which the decoder raises again
                check_regular(path)
                data = path.read_bytes()
                begun = FileRecord(len(data), sha256, personal=personal_fields(path, data) if data else ())
            if begun.size > 0:
                begun = replace(begun, header=read_header(path))
        decoded = decode(path, frame)
        made = _finished(path, begun, decoded, preprocessing is not None, window) if record else None
        if preprocessing is not None:
            square = preprocessing.square(path, decoded)
    except VitmedError as error:
        problem, kind = error.problem.removeprefix(f"{path}: ").replace(str(path), path.name), "unreadable"
        if begun.size == 0:
            kind = "empty_file"
        elif begun.header is not None and begun.header.frames > 1:
            kind = "multi_frame"
        elif any(sign in problem for sign in CUT):
            kind = "truncated"
        failed = replace(begun, kind=kind, problem=problem, fix=error.fix) if record else None
        return Examined(made or failed, None, error)
    return Examined(made, square)


def _finished(path: Path, begun: FileRecord, pixels: RawImage | Image.Image, again: bool, window: Window) -> FileRecord:
    """The record with what the pixels show; `again`: `pixels` is used again later, so it must not change."""
    header = begun.header or read_header(path)
    if isinstance(pixels, RawImage) and window is None:
        low, high = (float(value) for value in np.percentile(pixels.seen(), (0.5, 99.5)))
        window = low, high
    image = to_8_bit(path, pixels.copy() if again and isinstance(pixels, Image.Image) else pixels, window=window)
    small = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=4))  # (32, 32, 3)
    edge = np.concatenate([small[0], small[-1], small[1:-1, 0], small[1:-1, -1]])
    extrema = np.array(image.getextrema())
    numbers = np.array([*small.mean(axis=(0, 1)), *edge.mean(axis=0), extrema[:, 0].min(), extrema[:, 1].max()], "<f4")
    if (extrema[:, 0] == extrema[:, 1]).all():  # one colour, though its channels differ
        numbers[6:] = numbers[0]
    grey = np.asarray(Image.fromarray(small).convert("L"))
    return replace(begun, header=header, numbers=numbers, thumbnail=grey)
