"""Structured Reports, read by highdicom, by dcmtk and by dicom3tools."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import highdicom
import numpy as np
import pydicom
import pytest
from conftest import Trained
from dicom_files import dcmtk, dicom_image
from dicom_files import write as write_dicom
from pydicom.data import get_charset_files, get_testdata_file

import vitmed
from vitmed.core.config import ModelConfig
from vitmed.core.process import NO_WARNINGS
from vitmed.decisions.conformal import IntervalReach
from vitmed.decisions.policy import ClassPolicy, FindingPolicy, NumberPolicy
from vitmed.deploy.structured_report import groups_of, report_uid, structured_report
from vitmed.inference.load import Answer
from vitmed.inference.open_model import open_model, preprocessing_of

ANSWERS: dict[str, Answer] = {
    "classes": Answer("", "grün <x>", 0.7, {"grün <x>": 0.7, "blau": 0.3}, ("grün <x>", "blau"), None, True, "", 0.5),
    "grades": Answer("", "KL2", 0.5, {"KL0": 0.2, "KL1": 0.3, "KL2": 0.5}, None, None, True, "", None),
    "findings": Answer("", ("edema",), None, {"edema": 0.7, "mass": 0.3}, ("edema",), None, True, "", 0.9),
    "number": Answer("", 61.25, None, {}, None, (50.5, 70.125), True, "", 0.25, "years"),
}
UNSURE = {"answered": False, "reason": "unlike the training images, 2 classes are possible", "ood_score": 1.5}


def policy_of(kind: str) -> Any:
    if kind == "number":
        reach = IntervalReach.model_construct(coverage=0.9, by="image", note="", reach=1.0, units=40)
        return NumberPolicy.model_construct(intervals=reach, asked={}, n=40, ood_score=None)
    if kind == "findings":
        points = [
            SimpleNamespace(operating=SimpleNamespace(threshold=one), calibration=SimpleNamespace(method="none"))
            for one in (0.25, None)
        ]
        return FindingPolicy.model_construct(findings=dict(zip(("edema", "mass"), points, strict=True)))
    return None


def model_of(kind: str, policy: Any = None) -> Any:
    """What a report needs of a model."""
    config = SimpleNamespace(model=ModelConfig(width=128, depth=4))
    saved = SimpleNamespace(policy=policy, weights_hash="0123456789abcdef" * 4, config=config)
    how, network = SimpleNamespace(frame=None, window=None), SimpleNamespace(precision="fp32")
    return SimpleNamespace(kind=kind, saved=saved, preprocessing=how, network=network)


def head_of(name: str) -> Any:
    return pydicom.dcmread(get_testdata_file(name), stop_before_pixels=True)


def write(kind: str, header: Any, place: Path, **changes: Any) -> Path:
    with NO_WARNINGS:
        model = model_of(kind, policy_of(kind))
        uid = report_uid(model, str(header.SOPInstanceUID))
        file = place / f"{kind}.dcm"
        file.write_bytes(structured_report(replace(ANSWERS[kind], **changes), model, header, uid))
        return file


def groups(file: Path) -> list[Any]:
    report = highdicom.sr.srread(file)
    assert isinstance(report, highdicom.sr.ComprehensiveSR)
    found: list[Any] = report.content.get_image_measurement_groups()
    return found


def numbers(group: Any) -> dict[str, float]:
    return {one.name.meaning: one.value for one in group.get_measurements()}


def words(group: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in group.get_qualitative_evaluations():
        found.setdefault(one.name.meaning, []).append(one.value.meaning)
    return found


@pytest.fixture(scope="module")
def ct() -> Any:
    return head_of("CT_small.dcm")


def test_a_report_on_classes_grades_and_a_number_says_what_the_model_says(ct: Any, tmp_path: Path) -> None:
    (group,) = groups(write("classes", ct, tmp_path))
    assert group.finding_type.meaning == "grün <x>" and words(group)["Answered"] == ["Yes"]
    assert words(group)["Cannot be excluded"] == ["grün <x>", "blau"]
    assert numbers(group) == {
        "Probability of grün <x>": 0.7, "Probability of blau": 0.3,
        "Out-of-distribution score (above 1: unlike training)": 0.5,
    }  # fmt: skip
    (group,) = groups(write("grades", ct, tmp_path))
    assert group.finding_type.meaning == "KL2" and len(numbers(group)) == 3
    (group,) = groups(write("number", ct, tmp_path))
    assert numbers(group)["Predicted value"] == 61.25
    assert numbers(group)["Lower end of the 90% prediction interval"] == 50.5
    assert numbers(group)["Upper end of the 90% prediction interval"] == 70.12  # four digits
    assert {one.unit.value for one in group.get_measurements()} == {"a", "1"}  # UCUM: year, no units
    for unit, code in (("kg/m²", "{kg/m2}"), ("cells/µL", "{cells/uL}"), ("точки", None)):
        (group,) = groups(write("number", ct, tmp_path, unit=unit, prediction=12345.6, interval=None))
        value, given = numbers(group)["Predicted value"], group.get_measurements()[0].unit
        assert value == 12346 and given.meaning == unit
        assert given.value == code or (code is None and given.scheme_designator == "99VITMED")


@pytest.mark.parametrize(
    ("kind", "changes", "line"),
    [
        ("classes", {}, "grün <x>, probability 0.7. "),
        ("findings", {}, "Present: edema. "),
        ("findings", {"prediction": ()}, "Present: none of the findings. "),
        ("number", {}, "61.25 years (interval 50.5 to 70.12). "),
        ("grades", UNSURE, "No answer: unlike the training images, 2 classes are possible. "),
    ],
)
def test_a_report_opens_with_the_result_in_a_line(
    ct: Any, tmp_path: Path, kind: str, changes: dict[str, Any], line: str
) -> None:
    first = pydicom.dcmread(write(kind, ct, tmp_path, **changes)).ContentSequence[0]
    assert first.ConceptNameCodeSequence[0].CodeMeaning == "Result" and first.TextValue.startswith(line)


def test_a_report_on_findings_has_a_group_for_each(ct: Any, tmp_path: Path) -> None:
    whole, edema, mass = groups(write("findings", ct, tmp_path))
    assert words(whole) == {"Answered": ["Yes"], "Cannot be excluded": ["edema"]}
    assert edema.finding_type.meaning == "edema" and words(edema)["Presence"] == ["Present"]
    assert words(mass)["Presence"] == ["Absent"]
    assert numbers(edema) == {"Probability": 0.7, "Threshold": 0.25}
    assert numbers(mass) == {"Probability": 0.3, "Threshold": 0.5}
    near = write("findings", ct, tmp_path, probabilities={"edema": 0.2500004, "mass": 0.49999})
    _, edema, mass = groups(near)  # what decides is seen: four digits would show 0.25 and 0.25, and absent at 0.5
    assert numbers(edema) == {"Probability": 0.2500004, "Threshold": 0.25}
    assert numbers(mass) == {"Probability": 0.49999, "Threshold": 0.5}
    policy = ClassPolicy.model_construct(operating=SimpleNamespace(positive="blau", threshold=0.181396))  # type: ignore[arg-type]
    answer = replace(ANSWERS["classes"], probabilities={"grün <x>": 0.818624, "blau": 0.181376})
    found = {one.name.meaning: one.value for one in groups_of(answer, policy, "classes")[0].measurements}
    assert (found["Probability of blau"], found["Threshold of blau"]) == (0.18138, 0.1814)


@pytest.mark.parametrize("kind", ANSWERS)
def test_what_the_model_does_not_answer_reads_as_no_finding(kind: str, ct: Any, tmp_path: Path) -> None:
    whole, *parts = groups(write(kind, ct, tmp_path, **UNSURE))
    assert words(whole)["Answered"] == ["No"]
    assert UNSURE["reason"] in [one.value for one in whole[0].ContentSequence if one.ValueType == "TEXT"]
    if kind == "number":
        ends = [f"{end} end of the 90% prediction interval, but not answered" for end in ("Lower", "Upper")]
        assert list(numbers(whole))[:3] == ["Predicted value, but not answered", *ends]
    elif kind == "findings":
        assert [words(part)["Presence"] for part in parts] == [["no answer"]] * 2
    else:
        assert whole.finding_type.meaning == "no answer"


def test_a_note_about_the_image_stands_beside_the_answer(ct: Any, tmp_path: Path) -> None:
    model = model_of("classes")
    data = structured_report(ANSWERS["classes"], model, ct, report_uid(model, ct.SOPInstanceUID), "has 8 bits")
    (tmp_path / "note.dcm").write_bytes(data)
    (group,) = groups(tmp_path / "note.dcm")
    comments = [one.value for one in group[0].ContentSequence if one.name.meaning == "Comment"]
    assert comments == ["The image has 8 bits.", "Research use only; not a medical device."]


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_algorithm_and_the_image_stand_in_every_group(kind: str, ct: Any, tmp_path: Path) -> None:
    policy = policy_of(kind)
    decides = policy.summary if policy else "none, the outputs are raw"
    written = groups(write(kind, ct, tmp_path))
    assert len(written) > 0
    for group in written:
        texts: dict[str, list[str]] = {}  # by the code of their name in PS3.16
        for one in group[0].ContentSequence:
            if one.ValueType == "TEXT":
                texts.setdefault(one.name.value, []).append(one.value)
        assert texts["111001"] == ["vitmed"] and texts["111003"] == [vitmed.__version__]  # Algorithm Name, Version
        assert texts["111002"] == [  # Algorithm Parameters
            "weights sha256 " + "0123456789abcdef" * 4, f"vit-128x4, predicts {kind}", f"decision policy: {decides}",
            "Research use only; not a medical device.",
        ]  # fmt: skip
        assert texts["121106"] == ["Research use only; not a medical device."]  # Comment
        (source,) = group.source_images
        assert source.referenced_sop_instance_uid == ct.SOPInstanceUID
        assert source.referenced_sop_class_uid == ct.SOPClassUID


@pytest.mark.parametrize("name", ["CT_small.dcm", "MR_small.dcm", "JPEG2000.dcm", "image_dfl.dcm", "ExplVR_BigEnd.dcm"])
def test_the_report_stays_with_the_patient_and_the_study(name: str, tmp_path: Path) -> None:
    header = head_of(name)
    report = highdicom.sr.srread(write("classes", header, tmp_path))
    for keyword in ("PatientID", "PatientName", "StudyInstanceUID", "StudyID", "AccessionNumber", "StudyDate"):
        assert str(report[keyword].value or "") == str(header.get(keyword) or ""), keyword
    assert report.get_evidence() == [
        (header.StudyInstanceUID, header.SeriesInstanceUID, header.SOPInstanceUID, header.SOPClassUID)
    ]
    assert report.SeriesInstanceUID != header.SeriesInstanceUID
    assert (report.VerificationFlag, report.PreliminaryFlag, report.Modality) == ("UNVERIFIED", "PRELIMINARY", "SR")


@pytest.mark.parametrize("file", get_charset_files("chr[!S]*.dcm"), ids=lambda file: Path(file).stem)
def test_names_in_every_script(file: str, ct: Any, tmp_path: Path) -> None:
    from copy import deepcopy

    with NO_WARNINGS:
        named = pydicom.dcmread(file)
        header = deepcopy(ct)
        header.SpecificCharacterSet = named.get("SpecificCharacterSet", "")
        header["PatientName"] = named["PatientName"]
    report = pydicom.dcmread(write("classes", header, tmp_path))
    assert str(report.PatientName) == str(named.PatientName)


def test_a_header_with_faults_still_gives_a_report(tmp_path: Path) -> None:
    picture = np.zeros((8, 8, 3), np.uint8)
    with NO_WARNINGS:
        file = dicom_image(
            tmp_path / "image.dcm", picture, PatientSex="X", PatientBirthDate="19809999", StudyTime="25:99",
            InstanceNumber=0, PatientAge="45", PatientWeight="70", BodyPartExamined="lower case",
        )  # fmt: skip
        header = pydicom.dcmread(file, stop_before_pixels=True)
        del header.PatientID, header.AccessionNumber
    report = pydicom.dcmread(write("classes", header, tmp_path))
    assert report.PatientName == header.PatientName and report.PatientID == ""
    assert (report.PatientSex, report.InstanceNumber) == ("", 1)


def test_the_uid_is_one_for_each_image_and_model(ct: Any) -> None:
    model, other = model_of("classes"), model_of("classes")
    uid = report_uid(model, "1.2.3")
    assert uid == report_uid(model, "1.2.3") and len(uid) <= 64 and pydicom.uid.UID(uid).is_valid
    other.saved.weights_hash = "f" * 64
    third = model_of("classes")
    third.saved.policy = SimpleNamespace(to_json=lambda: {"threshold": 0.4})
    framed = model_of("classes")
    framed.preprocessing.frame = 1
    half = model_of("classes")
    half.network.precision = "bf16"
    others = [report_uid(one, "1.2.3") for one in (other, third, framed, half)]
    assert len({uid, report_uid(model, "1.2.4"), *others}) == 6
    assert b"vit-128x4, predicts classes in bf16" in structured_report(ANSWERS["classes"], half, ct, others[3])


@pytest.mark.parametrize("kind", ANSWERS)
def test_dciodvfy_and_dsrdump_find_no_error(kind: str, ct: Any, tmp_path: Path) -> None:
    file = write(kind, ct, tmp_path)
    told = subprocess.run([dcmtk("dsrdump"), "+Pl", file], capture_output=True, text=True)
    assert told.returncode == 0 and "E:" not in told.stderr, told.stderr
    for text in ("Imaging Measurement Report", "Algorithm Name", "0123456789abcdef" * 4, "not a medical device"):
        assert text in told.stdout
    tool = shutil.which("dciodvfy")
    if tool is None:
        pytest.skip("dciodvfy is not installed (apt install dicom3tools)")
    for changes in ({}, UNSURE):
        told = subprocess.run([tool, "-new", write(kind, ct, tmp_path, **changes)], capture_output=True, text=True)
        assert "ComprehensiveSR" in told.stderr and "Error" not in told.stderr, told.stderr


def test_a_window_that_was_asked_for_stands_in_the_report(trained: Trained, ct: Any, tmp_path: Path) -> None:
    """The picture that a clinical workstation shows in this window gives the same answer."""
    values = np.random.default_rng(0).integers(0, 2000, (40, 40)).astype(np.uint16)
    file = write_dicom(tmp_path / "deep.dcm", values, RescaleSlope=1, RescaleIntercept=-1024)
    saved = open_model(trained.best)
    model = vitmed.load(replace(saved, preprocessing=preprocessing_of(saved, None, "40/400")), device="cpu")
    square, note = model.seen(file.read_bytes())
    # PS3.3, C.11.2.1.2.1: y = ((x - (c - 0.5)) / (w - 1) + 0.5) * 255
    grey = np.clip(((values - 1024.0 - 39.5) / 399 + 0.5) * 255, 0, 255).round().astype(np.uint8)
    assert np.array_equal(square, vitmed.load(trained.best, device="cpu").square(grey))
    assert note.startswith("is shown to the model in the window 40/400 (centre/width)")
    assert model.seen(grey)[1] == ""  # 8 bits have no window
    answer, uid = next(iter(model.answers(model.predictions([square]), [square]))), report_uid(model, "1.2.3")
    report = tmp_path / "report.dcm"
    report.write_bytes(structured_report(answer, model, ct, uid, note))
    comments = [one.value for one in groups(report)[0][0].ContentSequence if one.name.meaning == "Comment"]
    assert any("window 40/400" in comment for comment in comments)
    assert uid != report_uid(vitmed.load(saved, device="cpu"), "1.2.3")


def test_a_trained_model_gives_the_same_uid_from_its_file(trained: Trained, exported: Path) -> None:
    picture = sorted((trained.data / "test").rglob("*.png"))[0]
    model = vitmed.load(exported)
    header = pydicom.dcmread(dicom_image(exported.parent / "image.dcm", picture))
    uid = report_uid(model, header.SOPInstanceUID)
    assert uid == report_uid(vitmed.load(exported), header.SOPInstanceUID)
    data = structured_report(model.predict(picture), model, header, uid)
    assert pydicom.dcmread(BytesIO(data)).SOPInstanceUID == uid
