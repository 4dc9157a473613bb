"""`Accept: application/dicom`: the Structured Report on an image over HTTP."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pydicom
import pytest
from conftest import Trained
from dicom_files import NAME, dicom_image
from highdicom.sr import ComprehensiveSR
from served import Served, serving

SR = {"headers": {"Accept": "application/dicom"}}


@pytest.fixture(scope="module")
def server(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(exported, scores=tmp_path_factory.mktemp("scores") / "scores.csv") as found:
        yield found
        assert not [line for line in found.log if "entinel" in line]


@pytest.fixture(scope="module")
def image(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    picture = sorted((trained.data / "test").rglob("*.png"))[0]
    return dicom_image(tmp_path_factory.mktemp("dicom") / f"{NAME}.dcm", picture)


def test_the_report_says_what_the_json_says_and_is_the_same_object_again(server: Served, image: Path) -> None:
    first, again = (server.post(image, **SR) for _ in range(2))
    assert first.status_code == 200 and first.headers["content-type"] == "application/dicom"
    one, other = (pydicom.dcmread(BytesIO(reply.content)) for reply in (first, again))
    assert one.SOPInstanceUID == other.SOPInstanceUID and one.SeriesInstanceUID == other.SeriesInstanceUID
    header, said = pydicom.dcmread(image), server.post(image).json()["images"][0]
    for keyword in ("StudyInstanceUID", "PatientID", "PatientName"):
        assert one[keyword].value == header[keyword].value
    report = ComprehensiveSR.from_dataset(one)
    assert report.get_evidence()[0][2] == header.SOPInstanceUID
    (group,) = report.content.get_image_measurement_groups()
    numbers = {found.name.meaning: found.value for found in group.get_measurements()}
    for name, probability in said["probabilities"].items():
        assert numbers[f"Probability of {name}"] == float(f"{probability:.4g}")


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/dicom+json", ""])
def test_whoever_asks_for_something_else_gets_json(server: Served, image: Path, accept: str) -> None:
    reply = server.post(image, headers={"Accept": accept})
    assert reply.status_code == 200 and reply.json()["images"][0]["image"] == image.name


def test_what_gets_no_report_and_why(server: Served, image: Path, trained: Trained, tmp_path: Path) -> None:
    before = server.service.scores.file.read_text()
    picture = sorted((trained.data / "test").rglob("*.png"))[0]
    stray = dicom_image(tmp_path / "stray.dcm", picture, StudyInstanceUID="")
    deep = dicom_image(tmp_path / "deep.dcm", np.zeros((20, 20), np.uint16))
    frames = dicom_image(tmp_path / "frames.dcm", np.zeros((2, 20, 20, 3), np.uint8), frames=2)
    torn = tmp_path / "torn.dcm"
    torn.write_bytes(image.read_bytes()[:900])
    private = dicom_image(tmp_path / "private.dcm", picture, SOPClassUID="1.2.840.113619.4.26")
    unreadable = tmp_path / "unreadable.dcm"
    unreadable.write_bytes(image.read_bytes().replace(b"\x08\0\x50\0SH", b"\x08\0\x50\0ZZ"))
    number = tmp_path / "number.dcm"
    number.write_bytes(image.read_bytes().replace(b"\x10\0\x10\0PN", b"\x10\0\x10\0SS"))
    for status, problem, *files in (
        (406, "is about one image, and the request has 2 images", image, image),
        (415, "not a readable DICOM file", picture),
        (422, "no StudyInstanceUID", stray),
        (422, "need a window", deep),
        (422, "2 frames", frames),
        (422, "", torn),
        (422, "its SOP class is not of the standard", private),
        (422, "its header is damaged", unreadable),
        (422, "its header is damaged", number),
    ):
        reply = server.post(*files, **SR)
        assert reply.status_code == status and problem in reply.json()["problem"] and reply.json()["fix"], reply.text
        assert "entinel" not in reply.text
    assert server.service.scores.file.read_text() == before


def test_without_highdicom_the_server_names_the_command(
    server: Served, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reply = server.post(image, **SR)
    assert reply.status_code == 406 and "pip install 'vitmed[pacs]'" in reply.json()["fix"]
