"""What looks like a person in names and metadata of files: named by its field, never by its value."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from dicom_files import write
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo

from vitmed.imaging.file_record import looks_like_a_person, personal_fields


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("jane.doe+1@clinic.example.org.png", "an e-mail address"),
        ("DOE^JANE.dcm", "a name"),
        ("Frau_Meier_left.png", "a name with a title"),
        ("scan of Mr Smith", "a name with a title"),
        ("img_dob-1960.png", "a date of birth"),
        ("geboren 3.4.1960", "a date of birth"),
        ("patient_name=Doe", "a named field"),
        ("123-45-6789.png", "a social security number"),
        ("DOE_JANE_1960.png", "a name and a year of birth"),
        ("Doe-Jane-19600412.png", "a name and a year of birth"),
        ("1960_DOE_JANE.png", "a name and a year of birth"),
        ("CHEST_XRAY_1960_and_DOE_JANE_1961", "a name and a year of birth"),
    ],
)
def test_what_looks_like_a_person(text: str, what: str) -> None:
    assert looks_like_a_person(text) == what


@pytest.mark.parametrize(
    "text",
    [
        "", "P007_c012.png", "infected/cell_12.png", "CHEST_XRAY_1998.png", "LEFT_BREAST_2019", "DOE_CHEST_1960",
        "jdoe3", "DOE_JANE_1860", "DOE_JANE_19601350", "1234-45-6789", "123-45-67890", "stubborn1", "user@localhost",
        "1960_LUNG_JANE.png", "A^B", "thin_smear_3.png",
    ],
)  # fmt: skip
def test_what_does_not(text: str) -> None:
    assert looks_like_a_person(text) is None


def picture(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)).convert(mode)


def png(**texts: str) -> bytes:
    info, file = PngInfo(), io.BytesIO()
    for key, value in texts.items():
        info.add_text(key, value)
    picture().save(file, "PNG", pnginfo=info)
    return file.getvalue()


def jpeg(
    tags: dict[int, object], inner: dict[int, object] | None = None, gps: dict[int, object] | None = None
) -> bytes:
    exif, file = Image.Exif(), io.BytesIO()
    for tag, value in tags.items():
        exif[tag] = value
    for kind, part in ((ExifTags.IFD.Exif, inner), (ExifTags.IFD.GPSInfo, gps)):
        if part:
            exif.get_ifd(kind).update(part)
    picture().save(file, "JPEG", exif=exif)
    return file.getvalue()


def test_texts_of_a_png() -> None:
    """A field by its name, unless it says that nobody is in it; any other by what it says."""
    file = Path("a.png")
    assert personal_fields(file, png()) == ()
    found = personal_fields(
        file, png(PatientName="Doe", Author="removed", Comment="made by jane@x.org", Software="GIMP")
    )
    assert found == ("PNG text 'Comment'", "PNG text 'PatientName'")
    assert personal_fields(file, png(birth="  ", Owner="anonymous", Phone="123")) == ("PNG text 'Phone'",)
    assert personal_fields(file, png(**{"E-mail" + "x" * 60: "j"})) == (f"PNG text '{('E-mail' + 'x' * 60)[:40]}'",)
    after = png(Comment="nothing")
    at = after.index(b"IEND") - 4
    late = png(Author="Doe")
    text = late[late.index(b"tEXt") - 4 : late.index(b"IDAT") - 4]
    assert personal_fields(file, after[:at] + text + after[at:]) == ("PNG text 'Author'",)  # behind the pixels


def test_exif_fields() -> None:
    base = ExifTags.Base
    assert personal_fields(Path("a.jpg"), jpeg({})) == ()
    assert personal_fields(Path("a.jpg"), jpeg({base.Artist: "x", base.ImageDescription: "a cell"})) == ("EXIF Artist",)
    assert personal_fields(Path("a.jpg"), jpeg({base.Artist: " \x00", base.Model: "Canon"})) == ()
    empty = jpeg({base.XPAuthor: b"\x00\x00", base.XPTitle: b" "})
    assert personal_fields(Path("a.jpg"), empty) == ()  # bytes without a letter
    assert personal_fields(Path("a.jpg"), jpeg({base.XPAuthor: b"J\x00"})) == ("EXIF XPAuthor",)
    described = jpeg({base.ImageDescription: "DOE^JANE"}, {base.CameraOwnerName: "somebody"})
    assert personal_fields(Path("a.jpg"), described) == ("EXIF CameraOwnerName", "EXIF ImageDescription")
    for gps, known in (
        ({1: "N", 2: (52.0, 30.0, 0.0)}, True),
        ({4: (13.0, 0.0, 0.0)}, True),
        ({29: "2020:01:01"}, False),
    ):
        found = personal_fields(Path("a.jpg"), jpeg({base.Make: "x"}, gps=gps))
        assert found == (("EXIF GPS position",) if known else ())


def test_a_file_without_metadata_or_with_damage_names_nothing() -> None:
    assert personal_fields(Path("a.png"), b"not an image tEXt PatientName Doe") == ()
    assert personal_fields(Path("a.png"), png(PatientName="Doe")[:60]) == ()
    assert personal_fields(Path("a.dcm"), b"PatientName") == ()


def dicom(folder: Path, **tags: str) -> tuple[str, ...]:
    file = write(folder / "a.dcm", np.zeros((8, 8), np.uint16), **tags)
    return personal_fields(Path("any.name"), file.read_bytes())


def test_fields_of_dicom(tmp_path: Path) -> None:
    assert dicom(tmp_path) == ()
    found = dicom(tmp_path, PatientName="Doe^Jane", PatientBirthDate="19600412", PatientID="7", Modality="CT")
    assert found == ("DICOM PatientName", "DICOM PatientBirthDate")
    for name in ("Anonymous", "^", "case 12", "7", "", "REMOVED"):
        assert dicom(tmp_path, PatientName=name, PatientID="7") == ()
    assert dicom(tmp_path, PatientAddress="Main St 1") == ("DICOM PatientAddress",)


def test_text_that_may_be_burned_into_the_picture(tmp_path: Path) -> None:
    told = "DICOM modality {} ({}), which often has text in the image"
    for modality, name in (("US", "ultrasound"), ("SC", "secondary capture"), ("XA", "angiography")):
        assert dicom(tmp_path, Modality=modality) == (told.format(modality, name),)
        assert dicom(tmp_path, Modality=modality, BurnedInAnnotation="YES") == ("DICOM BurnedInAnnotation YES",)
    assert dicom(tmp_path, Modality="CT", BurnedInAnnotation="NO") == ()
