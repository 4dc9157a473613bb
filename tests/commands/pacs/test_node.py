"""`DicomNode` between other nodes: pynetdicom's, dcmtk's, and a folder."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import highdicom
import numpy as np
import pydicom
import pytest
from conftest import Recorder, Trained
from dicom_network import NAME, Archive, archive, dcmtk, dicom_image, send, until

import vitmed
from vitmed.commands.pacs import destinations, receiving, sending, spool
from vitmed.commands.pacs.node import DicomNode
from vitmed.commands.pacs.settings import NodeSettings
from vitmed.commands.serving.scores import ScoreLog
from vitmed.core.errors import UsageError
from vitmed.core.process import NO_WARNINGS

Start = Callable[..., AbstractContextManager[DicomNode]]


@pytest.fixture(scope="module")
def model(exported: Path) -> vitmed.Model:
    return vitmed.load(exported)


@pytest.fixture(scope="module")
def images(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Six images of one study."""
    place, study = tmp_path_factory.mktemp("images"), pydicom.uid.generate_uid()
    pictures = sorted((trained.data / "test").rglob("*.png"))[::3]
    return [
        dicom_image(place / f"{NAME}{i}.dcm", picture, StudyInstanceUID=study) for i, picture in enumerate(pictures)
    ]


@pytest.fixture
def ui() -> Iterator[Recorder]:
    """No log names a patient or a file, whatever a test does."""
    recorder = Recorder()
    yield recorder
    for line in recorder.said + recorder.warned:
        assert "sentinel" not in line.lower(), line


@pytest.fixture
def start(model: vitmed.Model, ui: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setattr(sending, "FIRST", 0.05)
    monkeypatch.setattr(receiving, "LOOK", 0.05)

    @contextmanager
    def run(to: Archive | None = None, **how: Any) -> Iterator[DicomNode]:
        if to is not None:
            how["to"] = to.address
        else:
            how.setdefault("output", tmp_path / "reports")
        frame = how.pop("frame", None)
        own = model
        if frame is not None:
            own = vitmed.load(replace(model.saved, preprocessing=replace(model.preprocessing, frame=frame)))
        with DicomNode(own, NodeSettings(**{"spool": tmp_path / "spool", "port": 0, **how}), ui) as node:
            yield node

    return run


def test_scores_have_a_line_for_each_report(model: vitmed.Model, images: list[Path], tmp_path: Path) -> None:
    """An image that comes again has its report already, and no second line."""
    log = ScoreLog(tmp_path / "scores.csv", model, pytest.fail)
    settings = NodeSettings(spool=tmp_path / "spool", port=0, output=tmp_path / "reports")
    with DicomNode(model, settings, Recorder(), log) as node:
        for image in (*images, images[0]):
            node.take(image.read_bytes())
    log.close()
    text = (tmp_path / "scores.csv").read_text()
    assert len(text.splitlines()) == 1 + len(images) and "entinel" not in text


def waiting(place: Path) -> list[Path]:
    return sorted((place / "spool" / "unsent").glob("*.dcm"))


def test_each_image_gets_one_report_in_its_study(
    start: Start, images: list[Path], model: vitmed.Model, ui: Recorder, tmp_path: Path
) -> None:
    with archive() as store, start(store) as node:
        assert [answer.Status for answer in send(node.port, images)] == [0] * len(images)
        store.wait(len(images))
        until(lambda: sum("SR sent" in line for line in ui.said) == len(images))
    assert not waiting(tmp_path)
    by_image = {highdicom.sr.ComprehensiveSR.from_dataset(one).get_evidence()[0][2]: one for one in store.got}
    for file in images:
        image = pydicom.dcmread(file)
        report = by_image[image.SOPInstanceUID]
        for keyword in ("StudyInstanceUID", "PatientID", "PatientName", "PatientBirthDate", "AccessionNumber"):
            assert report[keyword].value == image[keyword].value
        found = highdicom.sr.ComprehensiveSR.from_dataset(report).content.get_image_measurement_groups()[0]
        answer = model.predict(file)
        assert found.finding_type.meaning == (answer.prediction if answer.answered else "no answer")
        numbers = {one.name.meaning: one.value for one in found.get_measurements()}
        for name, probability in answer.probabilities.items():
            assert numbers[f"Probability of {name}"] == pytest.approx(probability, abs=1e-6)
    assert len({one.SeriesInstanceUID for one in store.got}) == 1  # a series of reports for the study
    assert len(set(store.uids)) == len(images)


def test_an_image_that_comes_again_is_answered_once(start: Start, images: list[Path], ui: Recorder) -> None:
    with archive() as store:
        with start(store) as node:
            for _ in range(2):
                assert [answer.Status for answer in send(node.port, images[:2])] == [0, 0]
            store.wait(2)
            until(lambda: sum("SR sent" in line for line in ui.said) == 2)
        with start(store) as node:  # also after a new start
            assert [answer.Status for answer in send(node.port, images[:2])] == [0, 0]
            assert sum("answered before" in line for line in ui.said) == 4
    assert len(store.got) == 2


def test_senders_at_once(start: Start, images: list[Path]) -> None:
    with archive() as store, start(store) as node:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda files: send(node.port, files), [images, images[::-1], images[:3], images[3:]]))
        assert all(answer.Status == 0 for answers in found for answer in answers)
        store.wait(len(images))
    assert sorted(store.uids) == sorted(set(store.uids))


def test_who_may_call(start: Start, images: list[Path], ui: Recorder) -> None:
    with start(allow=("SCANNER", "ROUTER")) as node:
        assert send(node.port, images[:1], ae="INTRUDER") == []
        assert send(node.port, images[:1], ae="SCANNER", to="ANOTHER") == []
        assert [answer.Status for answer in send(node.port, images[:1], ae="ROUTER")] == [0]
    told = "\n".join(ui.warned)
    assert "AE 'INTRUDER' refused: it is not in --allow" in told
    assert "AE 'SCANNER' refused: it calls 'ANOTHER', and this node is VITMED" in told


def test_more_callers_than_it_takes(start: Start, ui: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    from pynetdicom import AE
    from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]

    monkeypatch.setattr(receiving, "CALLERS", 1)
    entity = AE("SCANNER")
    entity.add_requested_context(Verification)
    with start() as node:
        first, second = (entity.associate("127.0.0.1", node.port, ae_title="VITMED") for _ in range(2))
        assert first.is_established and second.is_rejected
        assert first.send_c_echo().Status == 0
        first.release()
        until(lambda: any("no more than 1 at once" in line for line in ui.warned))


@pytest.mark.parametrize(
    ("how", "tags", "comment"),
    [
        ({"modality": ("DX", "CR")}, {"Modality": "CT"}, "Modality CT, expected DX or CR"),
        ({"body_part": ("CHEST",)}, {"BodyPartExamined": "HAND"}, "BodyPartExamined HAND, expected CHEST"),
        ({"body_part": ("CHEST",)}, {"BodyPartExamined": "Sentinel"}, "BodyPartExamined ?, expected CHEST"),
        ({"view": ("PA",)}, {}, "ViewPosition missing, expected PA"),
        ({}, {"StudyInstanceUID": ""}, "no StudyInstanceUID, which a report needs"),
        ({}, {"PhotometricInterpretation": "XYZ"}, "photometric interpretation 'XYZ'"),
        ({}, {"Rows": 4000}, "cannot be decoded"),
    ],
)
def test_what_is_refused_and_why(
    start: Start, images: list[Path], ui: Recorder, tmp_path: Path, how: Any, tags: Any, comment: str
) -> None:
    changed = pydicom.dcmread(images[0])
    with NO_WARNINGS:
        for keyword, value in tags.items():
            setattr(changed, keyword, value)
    changed.save_as(tmp_path / "changed.dcm")
    with start(**how) as node:
        (answer,) = send(node.port, [tmp_path / "changed.dcm"])
        assert answer.Status == (0xC002 if how else 0xC001) and comment in answer.ErrorComment
    assert any(comment in line and "refused 0xC00" in line for line in ui.warned)
    assert not (tmp_path / "reports").exists() or not list((tmp_path / "reports").iterdir())


def test_a_model_of_8_bit_images_says_that_it_refuses_grey_ones(start: Start, ui: Recorder, tmp_path: Path) -> None:
    grey = dicom_image(tmp_path / "grey.dcm", np.full((8, 8), 7, np.uint16))
    with start() as node:
        (answer,) = send(node.port, [grey])
        assert answer.Status == 0xC001 and "need a window" in answer.ErrorComment
    assert any("refuses grey DICOM images" in line for line in ui.warned)


def test_a_model_of_deeper_images_notes_an_8_bit_one(
    model: vitmed.Model, images: list[Path], ui: Recorder, tmp_path: Path
) -> None:
    """Such as a screenshot, in the study of radiographs."""
    own = vitmed.load(replace(model.saved, preprocessing=replace(model.preprocessing, window=(0.0, 4095.0))))
    settings = NodeSettings(port=0, output=tmp_path / "reports", spool=tmp_path / "spool")
    with DicomNode(own, settings, ui) as node:
        assert send(node.port, images[:1])[0].Status == 0
        until(lambda: list((tmp_path / "reports").glob("*.dcm")))
    assert not any("refuses grey DICOM images" in line for line in ui.warned)
    (file,) = (tmp_path / "reports").iterdir()
    group = highdicom.sr.srread(file).content.get_image_measurement_groups()[0]
    assert any("has 8 bits and is not windowed" in one.value for one in group[0].ContentSequence if "TextValue" in one)


def test_the_kind_that_the_model_is_for_is_taken(start: Start, images: list[Path], tmp_path: Path) -> None:
    changed = pydicom.dcmread(images[0])
    changed.Modality, changed.BodyPartExamined, changed.ViewPosition = "DX", "CHEST", "PA"
    changed.save_as(tmp_path / "changed.dcm")
    with start(modality=("CR", "dx"), body_part=("CHEST",), view=("AP", "PA")) as node:
        assert send(node.port, [tmp_path / "changed.dcm"])[0].Status == 0


def test_several_frames_need_one_to_be_named(start: Start, trained: Trained, tmp_path: Path) -> None:
    from PIL import Image

    picture = np.asarray(Image.open(next((trained.data / "test").rglob("*.png"))).convert("RGB"))
    uid = pydicom.uid.MultiFrameTrueColorSecondaryCaptureImageStorage
    file = dicom_image(tmp_path / "frames.dcm", np.stack([picture, picture[::-1]]), frames=2, SOPClassUID=uid)
    with start() as node:
        (answer,) = send(node.port, [file])
        assert answer.Status == 0xC001 and "2 frames" in answer.ErrorComment
    with archive() as store, start(store, frame=1) as node:
        assert send(node.port, [file])[0].Status == 0
        store.wait(1)
    group = highdicom.sr.ComprehensiveSR.from_dataset(store.got[0]).content.get_image_measurement_groups()[0]
    assert group.source_images[0].referenced_frame_numbers == [2]


def test_reports_wait_for_an_archive_that_is_away(
    start: Start, images: list[Path], ui: Recorder, tmp_path: Path
) -> None:
    with archive() as away:
        pass
    with start(away) as node:
        assert [answer.Status for answer in send(node.port, images[:3])] == [0, 0, 0]
        until(lambda: any("not sent" in line and "next try" in line for line in ui.warned))
    assert len(waiting(tmp_path)) == 3 and "3 reports not sent yet" in ui.warned[-1]
    for file in (tmp_path / "spool").rglob("*"):
        assert file.stat().st_mode & 0o077 == 0, file
    with start(away), archive(port=away.port) as store:  # the archive comes back later
        assert any("3 reports from before" in line for line in ui.said)
        store.wait(3)
        until(lambda: not waiting(tmp_path))


def test_an_archive_that_hangs_gets_the_report_later(
    start: Start, images: list[Path], ui: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destinations, "ANSWER", 0.2)
    with archive(delay=0.6) as store, start(store) as node:
        assert send(node.port, images[:1])[0].Status == 0  # the sender does not wait for the archive
        until(lambda: any("1 report not sent" in line and "no answer" in line for line in ui.warned))
        monkeypatch.setattr(destinations, "ANSWER", 20)
        until(lambda: not waiting(tmp_path))
    assert len(set(store.uids)) == 1


def test_an_archive_without_room_gets_the_report_later(start: Start, images: list[Path], tmp_path: Path) -> None:
    with archive(status=0xA700) as store, start(store) as node:
        send(node.port, images[:1])
        store.wait(2)
        store.status = 0
        until(lambda: not waiting(tmp_path))
    assert len(set(store.uids)) == 1


def test_what_the_archive_refuses_is_kept_and_reported(
    start: Start, images: list[Path], ui: Recorder, tmp_path: Path
) -> None:
    with archive(status=0xC123) as store:
        with start(store) as node:
            send(node.port, images[:2])
            store.wait(2)
            until(lambda: sum("SR refused" in line and "0xC123" in line for line in ui.warned) == 2)
            assert len(list((tmp_path / "spool" / "refused").iterdir())) == 2 and not waiting(tmp_path)
        store.status = 0x0111  # it has them already
        with start(store):
            until(lambda: sum("SR sent" in line for line in ui.said) == 2)
    assert not waiting(tmp_path) and not list((tmp_path / "spool" / "refused").iterdir())


def test_a_full_spool_refuses_the_image_and_the_node_goes_on(
    start: Start, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def full(path: Path) -> Iterator[Any]:
        raise UsageError(f"{path}: cannot be written (No space left on device)")
        yield

    with archive() as store, start(store) as node:
        with monkeypatch.context() as patch:
            patch.setattr(spool, "whole_file", full)
            (answer,) = send(node.port, images[:1])
            assert answer.Status == 0xA700 and "disk full" in answer.ErrorComment
        assert send(node.port, images[:1])[0].Status == 0  # sent again when there is room
        store.wait(1)


def test_a_watched_folder(start: Start, images: list[Path], ui: Recorder, tmp_path: Path) -> None:
    watched, reports = tmp_path / "in", tmp_path / "reports"
    (watched / "deep").mkdir(parents=True)
    for file in images[:2]:
        (watched / "deep" / file.name).write_bytes(file.read_bytes())
    (watched / f"{NAME}.txt").write_text("no image")
    (watched / "empty").touch()
    before = {file: file.read_bytes() for file in watched.rglob("*") if file.is_file()}
    with start(watch=watched, port=None) as node:
        assert node.port == 0
        until(lambda: reports.is_dir() and len(list(reports.glob("*.dcm"))) == 2)
        until(lambda: sum("gets no report" in line for line in ui.warned) == 2)
        (watched / images[2].name).write_bytes(images[2].read_bytes())
        until(lambda: len(list(reports.glob("*.dcm"))) == 3)
    refused = len(ui.warned)
    with start(watch=watched, port=None):  # each name is remembered
        (watched / images[3].name).write_bytes(images[3].read_bytes())
        until(lambda: len(list(reports.glob("*.dcm"))) == 4)
    assert sum("answered, " in line for line in ui.said) == 4
    assert not any("gets no report" in line for line in ui.warned[refused:])
    assert before.items() <= {file: file.read_bytes() for file in watched.rglob("*") if file.is_file()}.items()


def test_dcmtk_sends_and_echoes(start: Start, images: list[Path]) -> None:
    echoscu, storescu = dcmtk("echoscu"), dcmtk("storescu")
    with archive() as store, start(store) as node:
        to = ["127.0.0.1", str(node.port)]
        for command in ([echoscu, "-v", "-aec", "VITMED", *to], [storescu, "-v", "-aec", "VITMED", *to, *images[:3]]):
            told = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60)
            assert told.returncode == 0 and "Success" in told.stdout + told.stderr, told.stderr
        store.wait(3)
        wrong = subprocess.run([echoscu, "-aec", "OTHER", *to], capture_output=True, text=True, timeout=60)
        assert wrong.returncode != 0


def test_compressed_images_are_taken_as_they_are(start: Start, images: list[Path], tmp_path: Path) -> None:
    import dicom_files

    file = tmp_path / "compressed.dcm"
    file.write_bytes(images[0].read_bytes())
    dicom_files.compress(file, "RLELossless")
    storescu = dcmtk("storescu")
    with archive() as store, start(store) as node:
        command = [storescu, "-xr", "-aec", "VITMED", "127.0.0.1", str(node.port), str(file)]
        assert subprocess.run(command, timeout=60).returncode == 0
        store.wait(1)


def test_a_port_or_a_spool_in_use(start: Start, tmp_path: Path) -> None:
    with start() as node:
        with pytest.raises(UsageError, match="another node uses this spool"), start():
            pass
        with pytest.raises(UsageError, match="cannot listen there"), start(port=node.port, spool=tmp_path / "other"):
            pass
    with start():  # both are free again
        pass


def test_an_object_without_end_ends_the_association(
    start: Start, images: list[Path], ui: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "BYTES", 1000)
    with start() as node:
        assert not any("Status" in answer for answer in send(node.port, images[:1]))
    assert any("more than 1,000 bytes" in line for line in ui.warned)
