"""The header of an image that came in: whether the node takes it, and what of it a log may hold."""

from __future__ import annotations

import hashlib
import re
from io import BytesIO
from typing import Any

from vitmed.commands.pacs.settings import NodeSettings

# Statuses of C-STORE (PS3.4, B.2.3): 0xA7.. is for want of room, 0xC... for what cannot be processed.
SUCCESS, FAILED, NO_ROOM = 0x0000, 0x0110, 0xA700
UNREADABLE, NOT_FOR_THIS_MODEL = 0xC001, 0xC002
CODE = re.compile(r"[A-Z0-9_ ]{1,16}")  # VR CS: other text in its place may be anything
SHORT = 12  # characters of a hash in a log


class Refused(Exception):
    """An image that gets no report; `status` of C-STORE, `reason` without anything of the patient."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


def read_head(data: bytes) -> Any:
    """The header of a DICOM file as a pydicom data set. Raises Refused."""
    import pydicom

    try:
        header = pydicom.dcmread(BytesIO(data), stop_before_pixels=True)
        for keyword in ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID"):
            if not str(header.get(keyword) or "").strip():
                raise Refused(UNREADABLE, f"no {keyword}, which a report needs")
    except Refused:
        raise
    except Exception:  # pydicom's words may hold what stands in the file
        raise Refused(UNREADABLE, "not a readable DICOM file") from None
    return header


def check_kind(header: Any, settings: NodeSettings) -> None:
    """Raise Refused for an image of another modality, body part or view than the model is for."""
    for keyword, allowed in (
        ("Modality", settings.modality),
        ("BodyPartExamined", settings.body_part),
        ("ViewPosition", settings.view),
    ):
        found = code(header, keyword)
        if allowed and found.upper() not in {name.upper() for name in allowed}:
            expected = f"expected {' or '.join(allowed)}"
            raise Refused(NOT_FOR_THIS_MODEL, f"{keyword} {found or 'missing'}, {expected}")


def code(header: Any, keyword: str) -> str:
    """A coded string of the header, "" where it is missing; what is no code is "?"."""
    found = str(header.get(keyword) or "").strip()
    return found if not found or CODE.fullmatch(found) else "?"


def short_hash(text: str) -> str:
    """What a log calls an image or a file: `printf %s TEXT | sha256sum | cut -c -12`."""
    return sha256(text)[:SHORT]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
