"""A DICOM archive on this machine, images for it, and who sends them."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dicom_files
import numpy as np
import pytest
from PIL import Image

NAME = "Sentinel^Patient"  # of every image here: it may stand in a report, never in a log


def dcmtk(tool: str) -> str:
    """The path of a tool of dcmtk; pynetdicom has some of the same names."""
    for folder in (None, "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"):
        found = shutil.which(tool, path=folder)
        if found and "dcmtk" in subprocess.run([found, "--version"], capture_output=True, text=True).stdout:
            return found
    pytest.skip(f"dcmtk's {tool} is not installed (apt install dcmtk)")


def dicom_image(file: Path, picture: Path | np.ndarray, **tags: Any) -> Path:
    """A picture as a DICOM file of a patient and a study."""
    from pydicom.uid import SecondaryCaptureImageStorage, generate_uid

    array = picture if isinstance(picture, np.ndarray) else np.asarray(Image.open(picture).convert("RGB"))
    usual: dict[str, Any] = {
        "PatientName": NAME, "PatientID": "id-sentinel", "PatientSex": "F", "PatientBirthDate": "19700102",
        "StudyInstanceUID": generate_uid(), "SeriesInstanceUID": generate_uid(), "StudyDate": "20261123",
        "StudyTime": "101500", "AccessionNumber": "A1", "StudyID": "S1", "Modality": "OT", "InstanceNumber": 3,
        "SOPClassUID": SecondaryCaptureImageStorage,
    }  # fmt: skip
    return dicom_files.write(file, array, **{**usual, **tags})


@dataclass
class Archive:
    """A node that keeps what it gets.

    Attributes:
        got: the data sets; status: of its answer to each; delay: s before it answers.
    """

    port: int = 0
    got: list[Any] = field(default_factory=list)
    status: int = 0
    delay: float = 0.0
    news: threading.Condition = field(default_factory=threading.Condition)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}:ARCHIVE"

    @property
    def uids(self) -> list[str]:
        return [str(one.SOPInstanceUID) for one in self.got]

    def wait(self, count: int, seconds: float = 20) -> None:
        """Until so many objects have come."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.got) >= count, seconds), f"{len(self.got)} of {count} came"


@contextmanager
def archive(title: str = "ARCHIVE", port: int = 0, **how: Any) -> Iterator[Archive]:
    from pynetdicom import AE, evt
    from pynetdicom.sop_class import ComprehensiveSRStorage, Verification

    kept = Archive(**how)

    def store(event: Any) -> int:
        found = event.dataset
        found.file_meta = event.file_meta
        with kept.news:
            kept.got.append(found)
            kept.news.notify_all()
        time.sleep(kept.delay)
        return kept.status

    entity = AE(title)
    entity.require_called_aet = True
    entity.add_supported_context(ComprehensiveSRStorage)
    entity.add_supported_context(Verification)
    server = entity.start_server(("127.0.0.1", port), block=False, evt_handlers=[(evt.EVT_C_STORE, store)])
    assert server is not None
    kept.port = server.server_address[1]
    try:
        yield kept
    finally:
        server.shutdown()


def send(port: int, files: Sequence[Path], ae: str = "SENDER", to: str = "VITMED") -> list[Any]:
    """The answers to C-STORE, one for each file; empty where the association is refused."""
    import pydicom
    from pynetdicom import AE

    entity = AE(ae)
    for uid in {pydicom.dcmread(file, stop_before_pixels=True).SOPClassUID for file in files}:
        entity.add_requested_context(uid)
    link = entity.associate("127.0.0.1", port, ae_title=to)
    if not link.is_established:
        return []
    answers = [link.send_c_store(pydicom.dcmread(file)) for file in files]
    link.release()
    return answers


def until(true: Callable[[], Any], seconds: float = 20) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "too late"
        time.sleep(0.02)
