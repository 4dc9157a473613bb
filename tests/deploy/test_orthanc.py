"""deploy/orthanc in the real Orthanc: image by storescu, report by findscu; who is killed, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import local_server
import numpy as np
import pydicom
import pytest
from conftest import Trained
from dicom_files import NAME, dcmtk, dicom_image
from highdicom.sr import ComprehensiveSR
from served import serving

import vitmed
from vitmed.deploy.http.app import Service

DEPLOY = Path(__file__).parents[2] / "deploy" / "orthanc"
PROGRAM = Path("/usr/sbin/Orthanc")
Tree = dict[str, Any]


def until(true: Callable[[], Any], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"too late: {what}"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def uid_of(file: Path) -> str:
    return str(pydicom.dcmread(file, stop_before_pixels=True).SOPInstanceUID)


@dataclass
class Orthanc:
    """An Orthanc with the sample configuration on free ports; `start` and `kill` it as often as you like."""

    folder: Path
    own: Tree
    port: int = field(default_factory=free_port)
    dicom: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        config = json.loads((DEPLOY / "orthanc.json").read_text())
        config |= {"HttpPort": self.port, "DicomPort": self.dicom, "PythonScript": str(DEPLOY / "vitmed_plugin.py")}
        config |= {"DicomModalities": {"finder": ["FINDER", "127.0.0.1", 104]}, "DicomAlwaysAllowEcho": True}
        config["Vitmed"] |= {"Only": {"Modality": ["OT"]}, "LongestPause": 0.2, "Timeout": 30}
        for name, value in self.own.items():
            config[name] = config[name] | value if isinstance(value, dict) else value
        self.folder.mkdir(exist_ok=True)
        (self.folder / "orthanc.json").write_text(json.dumps(config))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        clean["PYTHONDONTWRITEBYTECODE"] = "1"
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "orthanc.json"], cwd=self.folder, stdout=log, stderr=log, env=clean
            )
        until(lambda: self.process.poll() is not None or self.answers(), f"Orthanc answers\n{self.log}")
        assert self.process.poll() is None, self.log

    def answers(self) -> bool:
        try:
            return self.get("/vitmed")["since"] is not None
        except httpx.HTTPError:
            return False

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def end(self, how: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)

    def get(self, path: str) -> Any:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", trust_env=False, verify=False).raise_for_status().json()

    def post(self, path: str, content: str) -> Any:
        return httpx.post(f"http://127.0.0.1:{self.port}{path}", content=content, trust_env=False, verify=False).json()

    def store(self, files: list[Path]) -> None:
        command = [dcmtk("storescu"), "-aet", "SCANNER", "-aec", "ORTHANC", "127.0.0.1", str(self.dicom)]
        told = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, timeout=60)
        assert told.returncode == 0, told.stderr

    def reports(self) -> list[pydicom.Dataset]:
        """Every report that it holds."""
        found = self.post("/tools/find", '{"Level": "Instance", "Query": {"Modality": "SR"}}')
        files = [
            httpx.get(f"http://127.0.0.1:{self.port}/instances/{one}/file", trust_env=False, verify=False).content
            for one in found
        ]
        return [pydicom.dcmread(BytesIO(file)) for file in files]

    def mark(self, file: Path) -> str:
        """What the plugin has noted of an image, empty before."""
        (one,) = self.post("/tools/lookup", uid_of(file))
        path = f"http://127.0.0.1:{self.port}/instances/{one['ID']}/metadata/vitmed"
        reply = httpx.get(path, trust_env=False, verify=False)
        return reply.text if reply.status_code == 200 else ""

    def is_done(self) -> bool:
        found = self.get("/vitmed")
        return bool(found["since"] == found["last"])


@pytest.fixture
def orthanc(tmp_path: Path) -> Iterator[Callable[..., Orthanc]]:
    """Starts an Orthanc: `orthanc(url, "name", the Orthanc that gets its reports too)`."""
    plugins = json.loads((DEPLOY / "orthanc.json").read_text())["Plugins"]
    if not all(Path(one).exists() for one in (PROGRAM, *plugins)):
        pytest.skip("Orthanc with its Python plugin is not installed (apt install orthanc orthanc-python)")
    dcmtk("storescu")  # skips without it, before anything is trained
    with ExitStack() as stack:

        def run(url: str, name: str = "orthanc", send_to: Orthanc | None = None, begin: bool = True) -> Orthanc:
            own: Tree = {"Vitmed": {"Url": url}, "CheckRevisions": True}
            if send_to is not None:
                own["Vitmed"]["SendTo"] = "modalities/archive"
                own["DicomModalities"] = {"archive": ["ORTHANC", "127.0.0.1", send_to.dicom]}
            found = Orthanc(tmp_path / name, own)
            stack.callback(found.end)
            if begin:
                found.start()
            return found

        yield run


@pytest.fixture(scope="module")
def images(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Eight images of one study."""
    place, study = tmp_path_factory.mktemp("images"), pydicom.uid.generate_uid()
    pictures = sorted((trained.data / "test").rglob("*.png"))[:16:2]
    return [dicom_image(place / f"{i}.dcm", picture, StudyInstanceUID=study) for i, picture in enumerate(pictures)]


def evidence(report: pydicom.Dataset) -> str:
    """The SOP Instance UID of the image that a report is about."""
    return str(ComprehensiveSR.from_dataset(report).get_evidence()[0][2])


def slowly(service: Service) -> None:
    """A model that takes 0.3 s for an image."""
    seen = service.model.seen

    def wait(image: Any) -> Any:
        time.sleep(0.3)
        return seen(image)

    service.model.seen = wait  # type: ignore[method-assign]


def test_an_image_by_storescu_gets_its_report_in_the_archive(
    orthanc: Callable[..., Orthanc], exported: Path, images: list[Path], tmp_path: Path
) -> None:
    study = pydicom.dcmread(images[0]).StudyInstanceUID
    other = dicom_image(tmp_path / "other.dcm", np.zeros((20, 20, 3), np.uint8), Modality="CT")
    grey = dicom_image(tmp_path / "grey.dcm", np.full((20, 20), 7, np.uint16))
    with serving(exported) as served:
        node = orthanc(served.url)
        for _ in range(2):
            node.store([*images[:3], other, grey])
            until(node.is_done, "all images worked off")
        node.post("/vitmed", "0")  # begin again with the first image
        until(lambda: sum("POST /v1/predict" in line for line in served.log) == 8, "again")
        until(node.is_done, "all images worked off again")
        assert len(node.reports()) == 3
        reports = {evidence(one): one for one in node.reports()}
        marks = [node.mark(file) for file in (images[0], other, grey)]
        command = [dcmtk("findscu"), "-S", "-aet", "FINDER", "-aec", "ORTHANC", "127.0.0.1", str(node.dicom)]
        asked = ("QueryRetrieveLevel=IMAGE", f"StudyInstanceUID={study}", "Modality=SR", "SOPInstanceUID")
        (series,) = {str(one.SeriesInstanceUID) for one in reports.values()}
        keys = [part for key in (*asked, f"SeriesInstanceUID={series}") for part in ("-k", key)]
        told = subprocess.run([*command, *keys], capture_output=True, text=True, timeout=60)
    assert all(f"[{one.SOPInstanceUID}" in told.stdout + told.stderr for one in reports.values()), told
    assert set(reports) == {uid_of(file) for file in images[:3]}
    assert marks[0].startswith("report ") and marks[1] == "" and marks[2].startswith("refused 422: ")
    assert "need a window" in marks[2] and NAME not in node.log + "".join(served.log)
    model = vitmed.load(exported, precision="fp32")
    for file in images[:3]:
        image, report = pydicom.dcmread(file), reports[uid_of(file)]
        for keyword in ("StudyInstanceUID", "PatientID", "PatientName", "AccessionNumber"):
            assert report[keyword].value == image[keyword].value
        (group,) = ComprehensiveSR.from_dataset(report).content.get_image_measurement_groups()
        answer = model.predict(file)
        assert group.finding_type.meaning == (answer.prediction if answer.answered else "no answer")
        numbers = {one.name.meaning: one.value for one in group.get_measurements()}
        for name, probability in answer.probabilities.items():
            assert numbers[f"Probability of {name}"] == pytest.approx(float(f"{probability:.4g}"), abs=1e-5)
        report.save_as(tmp_path / "report.dcm")
        shown = subprocess.run([dcmtk("dsrdump"), tmp_path / "report.dcm"], capture_output=True, text=True).stdout
        for text in ("Algorithm Name", "vitmed", vitmed.__version__, model.saved.weights_hash):
            assert text in shown


@pytest.mark.slow
def test_orthanc_killed_in_the_middle_answers_every_image_once(
    orthanc: Callable[..., Orthanc], exported: Path, images: list[Path]
) -> None:
    """And an archive behind it that comes late gets every report once."""
    archive = orthanc("http://127.0.0.1:9", "archive", begin=False)
    with serving(exported, change=slowly) as served:
        node = orthanc(served.url, send_to=archive)
        node.store(images)
        until(lambda: len(node.reports()) > 0, "the first report")
        node.end()
        node.start()
        until(lambda: node.get("/vitmed")["problem"] == "/modalities/archive does not answer", "the archive is away")
        assert not node.is_done()
        archive.start()
        until(node.is_done, "all images worked off")
        for one in (node, archive):
            assert sorted(map(evidence, one.reports())) == sorted(map(uid_of, images))
        node.end(signal.SIGTERM)
    assert node.process is not None and node.process.returncode == 0  # it stops when it is asked to


@contextmanager
def server(model: Path, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`vitmed serve` in a process that can be killed."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "vitmed", "serve", str(model), "--port", str(port)], stdout=stream, stderr=stream
        )
    try:
        until(lambda: b"answers at" in log.read_bytes() or process.poll() is not None, "vitmed serve", 120)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_vitmed_killed_in_the_middle_answers_every_image_once(
    orthanc: Callable[..., Orthanc], exported: Path, images: list[Path], tmp_path: Path
) -> None:
    port = free_port()
    node = orthanc(f"http://127.0.0.1:{port}")
    with server(exported, port, tmp_path / "first") as process:
        node.store(images[:3])
        until(node.is_done, "the first images worked off")
        process.send_signal(signal.SIGSTOP)
        node.store(images[3:])  # they are on their way to a server that is about to be killed
        time.sleep(0.3)
    assert len(node.reports()) == 3
    until(lambda: node.get("/vitmed")["problem"], "the plugin says that vitmed is away")
    with server(exported, port, tmp_path / "second"):
        until(node.is_done, "all images worked off")
    assert sorted(map(evidence, node.reports())) == sorted(map(uid_of, images))
    assert node.get("/vitmed")["problem"] == ""


@pytest.mark.slow
def test_an_image_is_tried_again_only_where_that_may_help(orthanc: Callable[..., Orthanc], images: list[Path]) -> None:
    """A wrong key waits for the right one; no image holds up the others for ever.

    Neither one that the server fails at, nor one of which a problem quotes characters that Orthanc does not take.
    """
    asked, status = [], 0

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
        ready = request.path == "/health/ready"
        asked.extend([] if ready else [request.path])
        request.send_response(200 if ready else status)
        request.end_headers()
        request.wfile.write(b'{"problem": "cannot be read: \\u0000\\ud800", "fix": "send another"}')

    with local_server.serving(answer) as port:
        node = orthanc(f"http://127.0.0.1:{port}")
        for image, code, mark, times in (
            (images[0], 422, "refused 422: cannot be read: ??; send another", 1),
            (images[1], 500, "failed vitmed answers 500: ", 10),
            (images[2], 408, "failed vitmed answers 408: ", 10),  # too long on its way, and others are shorter
        ):
            status = code
            asked.clear()
            node.store([image])
            until(lambda: node.mark(image), "the image worked off")  # noqa: B023
            assert len(asked) == times and node.mark(image).startswith(mark)
        status = 401
        asked.clear()
        node.store(images[3:4])
        until(lambda: len(asked) >= 12, "the attempts")
        assert not node.is_done() and "401" in node.get("/vitmed")["problem"]
        (study,) = node.get("/studies")
        httpx.delete(f"http://127.0.0.1:{node.port}/studies/{study}", trust_env=False, verify=False).raise_for_status()
        until(node.is_done, "an image that is deleted keeps nobody waiting")
        assert not node.reports()
