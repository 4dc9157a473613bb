"""What looks like a person: in file names, and in the metadata that travel inside an image file."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from PIL import ExifTags, Image, ImageFile

# Marks in the bytes of a file without which there is nothing to look for: most files end here.
MARKS = (b"Exif", b"tEXt", b"iTXt", b"zTXt", b"eXIf", b"xmpmeta", b"\xff\xfe", b"II*\x00", b"MM\x00*")
EXIF_FIELDS = {
    0x013B: "Artist",
    0x9C9D: "XPAuthor",
    0xA430: "CameraOwnerName",
    0x8298: "Copyright",
    0x013C: "HostComputer",
}
TEXT_FIELDS = {0x010E: "ImageDescription", 0x9286: "UserComment", 0x9C9C: "XPComment", 0x9C9B: "XPTitle"}
KEYS = re.compile(r"patient|birth|\bdob\b|\bmrn\b|author|owner|physician|doctor|full.?name|e-?mail|address|phone", re.I)
NO_PERSON = re.compile(r"anonym|de-?ident|removed|redacted|unknown|none|n/?a|test|phantom|subject|patient|case", re.I)
DICOM_FIELDS = ("PatientName", "PatientBirthDate", "PatientAddress", "PatientTelephoneNumbers", "OtherPatientNames")
BURNED = {"US": "ultrasound", "SC": "secondary capture", "XA": "angiography"}


def looks_like_a_person(text: str) -> str | None:
    """What in a file name or a comment looks like a person: "a name", "a date of birth", "an e-mail address", ...

    Patterns of words and dates, so it errs both ways: `AUTUMN_LEAVES_1990` is called a name, `jdoe3` is not.
    """
    stem = text.rpartition("/")[2]
    for what, expression in PATTERNS.items():
        if expression.search(stem):
            return what
    return None


_YEAR = r"(?:19[0-9]\d|20[0-2]\d)"
_DAY = r"(?:0[1-9]|[12]\d|3[01])"
_MONTH = r"(?:0[1-9]|1[0-2])"
_STEM_END = r"(?=$|[^A-Za-z])"
PATTERNS = {
    "an e-mail address": re.compile(r"[\w.+-]+@[\w-]+\.[a-z]{2,}", re.I),
    "a name": re.compile(
        # DOE_JANE_1960, DOE^JANE, Doe_Jane_19600412, Mueller-Anna-1951
        rf"(?:^|[^A-Za-z])(?:[A-Z][a-zA-Z]{{1,}}\^[A-Z][a-zA-Z]+|[A-Z][A-Za-z]{{2,}}[_ ,-]+[A-Z][A-Za-z]{{1,}}[_ ,-]+"
        rf"{_YEAR}(?:[-_.]?{_MONTH}[-_.]?{_DAY})?(?!\d))"
    ),
    "a name with a title": re.compile(r"(?:^|[^A-Za-z])(?:Mrs?|Ms|Frau|Herr|Dr|Mme|Sra?)[._ ]+[A-Z][a-z]{2,}"),
    "a date of birth": re.compile(
        rf"(?:^|[^a-z])(?:dob|born|birth(?:date|day)?|geb(?:oren)?|naissance)[-_. ]*\d", re.I
    ),
    "a named field": re.compile(r"(?:first|last|sur|full|patient)[-_ ]?name[-_ =:]+[A-Za-z]{2,}", re.I),
    "a social security number": re.compile(r"(?<!\d)\d{3}-\d{2}-\d{4}(?!\d)"),
}


def personal_fields(path: Path, data: bytes) -> tuple[str, ...]:
    """Fields of the metadata that look like a person or tell where the picture was taken: names, never values."""
    if data[128:132] == b"DICM" or path.suffix.lower() in (".dcm", ".dicom"):
        return _dicom(data)
    head = data if data[:4] == b"\x89PNG" else data[: 1 << 18]
    if not any(mark in head for mark in MARKS):
        return ()
    found: set[str] = set()
    # Pillow warns of, and raises for, much that a damaged file may hold; the decoder will tell of that.
    with contextlib.suppress(Exception), Image.open(io.BytesIO(data)) as image:
        found |= _exif(image)
        texts = dict(image.info)
        if isinstance(image, ImageFile.ImageFile) and image.format == "PNG":
            texts |= getattr(image, "text", {})  # also what stands behind the pixels
        for key, value in texts.items():
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            if key in ("exif", "icc_profile", "photoshop") or not isinstance(text, str) or not text.strip():
                continue
            if (KEYS.search(str(key)) and not NO_PERSON.search(text)) or looks_like_a_person(text[:2000]):
                found.add(f"{image.format} text '{str(key)[:40]}'")
    return tuple(sorted(found))


def _exif(image: Image.Image) -> set[str]:
    found = set()
    exif = image.getexif()
    inner = exif.get_ifd(ExifTags.IFD.Exif)
    for tag, name in EXIF_FIELDS.items():
        value = exif.get(tag, inner.get(tag))
        if value and str(value).strip(" \x00'b"):
            found.add(f"EXIF {name}")
    for tag, name in TEXT_FIELDS.items():
        value = exif.get(tag, inner.get(tag))
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
        if looks_like_a_person(text[:2000]):
            found.add(f"EXIF {name}")
    position = exif.get_ifd(ExifTags.IFD.GPSInfo)
    if 2 in position or 4 in position:  # latitude, longitude
        found.add("EXIF GPS position")
    return found


def _dicom(data: bytes) -> tuple[str, ...]:
    """Of a DICOM file, where pydicom is installed: fields that are filled, and marks of text inside the picture."""
    try:
        import pydicom
    except ImportError:
        return ()
    found = []
    with contextlib.suppress(Exception):  # a damaged file is the reader's to name
        tags = [*DICOM_FIELDS, "BurnedInAnnotation", "Modality", "PatientID"]
        head = pydicom.dcmread(io.BytesIO(data), stop_before_pixels=True, specific_tags=tags, force=True)
        for name in DICOM_FIELDS:
            value = str(head.get(name, "") or "").strip(" ^=")
            if value and not NO_PERSON.search(value) and value != str(head.get("PatientID", "")):
                found.append(f"DICOM {name}")
        if str(head.get("BurnedInAnnotation", "")).upper() == "YES":
            found.append("DICOM BurnedInAnnotation YES")
        elif (modality := str(head.get("Modality", ""))) in BURNED:
            found.append(f"DICOM modality {modality} ({BURNED[modality]}), which often has text in the picture")
    return tuple(found)
