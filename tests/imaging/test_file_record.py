"""One decode gives what two gave: the square is that of `Preprocessing.read`, the record that of a file alone."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dicom_files import write
from PIL import ExifTags, Image, ImageCms
from PIL.PngImagePlugin import PngInfo

from vitmed.imaging.file_record import NUMBERS, examine, looks_like_a_person, personal_fields
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
    assert both.record.header == alone.record.header
    for name in ("numbers", "thumbnail"):
        assert np.array_equal(getattr(both.record, name), getattr(alone.record, name))


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
        ("M\u00fcller_Hans_1950.png", "a name and a year of birth"),
        ("Garci\u0301a_Mari\u0301a_1950.png", "a name and a year of birth"),  # as macOS writes them
        ("\u00d6ZT\u00dcRK_ALI_1950.png", "a name and a year of birth"),
        ("Rossi_Mario_01.02.1950.png", "a name and a year of birth"),
        ("31-12-1950 Rossi Mario", "a name and a year of birth"),
        ("M\u00dcLLER^J\u00dcRGEN", "a name"),
        ("Frau_\u00d6zdemir", "a name with a title"),
    ],
)
def test_what_looks_like_a_person(text: str, what: str) -> None:
    assert looks_like_a_person(text) == what


@pytest.mark.parametrize(
    "text",
    [
        "", "P007_c012.png", "infected/cell_12.png", "CHEST_XRAY_1998.png", "LEFT_BREAST_2019", "DOE_CHEST_1960",
        "jdoe3", "DOE_JANE_1860", "DOE_JANE_19601350", "1234-45-6789", "123-45-67890", "stubborn1", "user@localhost",
        "1960_LUNG_JANE.png", "A^B", "thin_smear_3.png", "Rossi_Mario_01.13.1950", "CHEST_XRAY_01.02.1998",
        "\u00c4_R_1950.png",
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


def test_the_comment_of_a_gif() -> None:
    for comment, named in ((b"Patient DOE^JANE 1960", ("GIF text 'comment'",)), (b"a cell", ())):
        file = io.BytesIO()
        picture().save(file, "GIF", comment=comment)
        assert personal_fields(Path("a.gif"), file.getvalue()) == named


def test_exif_fields() -> None:
    base = ExifTags.Base
    assert personal_fields(Path("a.jpg"), jpeg({})) == ()
    assert personal_fields(Path("a.jpg"), jpeg({base.Artist: "x", base.ImageDescription: "a cell"})) == ("EXIF Artist",)
    assert personal_fields(Path("a.jpg"), jpeg({base.Artist: " \x00", base.Model: "Canon"})) == ()
    empty = jpeg({base.XPAuthor: b"\x00\x00", base.XPTitle: b" "})
    assert personal_fields(Path("a.jpg"), empty) == ()  # bytes without a letter
    assert personal_fields(Path("a.jpg"), jpeg({base.XPAuthor: b"J\x00"})) == ("EXIF XPAuthor",)
    wide = jpeg({base.XPComment: "DOE^JANE".encode("utf-16-le")})
    assert personal_fields(Path("a.jpg"), wide) == ("EXIF XPComment",)
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
    for name in ("Doe^Anna", "CASEY^JIM", "Fernandez^Maria", "Testa^Luca"):
        assert dicom(tmp_path, PatientName=name) == ("DICOM PatientName",)
    fields = {"AccessionNumber": "A17", "ReferringPhysicianName": "Roe^R", "InstitutionName": "General Hospital"}
    assert dicom(tmp_path, **fields) == tuple(f"DICOM {name}" for name in fields)
    for name in ("Anonymous", "^", "case 12", "case12", "TEST^PATIENT", "7", "", "REMOVED"):
        assert dicom(tmp_path, PatientName=name, PatientID="7") == ()
    assert dicom(tmp_path, PatientAddress="Main St 1") == ("DICOM PatientAddress",)
    for name in ("DOE^JANE", "Doe, Jane 1960"):  # --groups dicom would write it into splits.csv
        assert dicom(tmp_path, PatientName=name, PatientID=name) == ("DICOM PatientName", "DICOM PatientID")
    assert dicom(tmp_path, PatientID="ANON^PATIENT") == dicom(tmp_path, PatientID="P_0017_1960") == ()


def test_text_that_may_be_burned_into_the_picture(tmp_path: Path) -> None:
    told = "DICOM modality {} ({}), which often has text in the image"
    for modality, name in (("US", "ultrasound"), ("SC", "secondary capture"), ("XA", "angiography")):
        assert dicom(tmp_path, Modality=modality) == (told.format(modality, name),)
        assert dicom(tmp_path, Modality=modality, BurnedInAnnotation="YES") == ("DICOM BurnedInAnnotation YES",)
    assert dicom(tmp_path, Modality="CT", BurnedInAnnotation="NO") == ()
