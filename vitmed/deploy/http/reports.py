"""The answer to one DICOM image as a Structured Report, for a request with `Accept: application/dicom`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from typing import Any

from starlette.requests import Request

from vitmed.core.process import SharedContext
from vitmed.core.text import counted
from vitmed.deploy.http.limits import Refusal, Upload
from vitmed.deploy.structured_report import UIDS, check_header, report_uid, structured_report
from vitmed.imaging.dicom import QUIET, silence
from vitmed.inference.load import Answer, Model

DICOM = "application/dicom"
OR_JSON = "or leave the header Accept out: the answer is then JSON"


def is_wanted(request: Request) -> bool:
    """Whether the sender asks for a Structured Report."""
    kinds = request.headers.get("accept", "").lower().split(",")
    return any(kind.partition(";")[0].strip() == DICOM for kind in kinds)


SILENT = SharedContext(partial(silence, "highdicom"))  # a line might hold what stands in an image


@QUIET
@SILENT
def read_head(model: Model, uploads: Sequence[Upload]) -> Any:
    """The header of the only image of a request, as a pydicom data set.

    Raises:
        Refusal: 406 several images, or highdicom is missing; 415 not DICOM; 422 without a study, or damaged.
    """
    if importlib.util.find_spec("highdicom") is None:
        problem = "the server makes no Structured Reports: it lacks the package highdicom"
        raise Refusal(406, problem, f"pip install 'vitmed[pacs]', and start the server again; {OR_JSON}")
    if len(uploads) > 1:
        problem = f"a Structured Report is about one image, and the request has {counted(len(uploads), 'image')}"
        raise Refusal(406, problem, f"send one image a request; {OR_JSON}")
    import pydicom

    try:
        header = pydicom.dcmread(BytesIO(uploads[0].data), stop_before_pixels=True)
        missing = [name for name in UIDS if not str(header.get(name) or "").strip()]
    except Exception:  # the words of pydicom may hold what stands in the file
        raise Refusal(415, "not a readable DICOM file", f"send a DICOM image; {OR_JSON}") from None
    if missing:
        problem = f"the image has no {', '.join(missing)}, which a report needs"
        raise Refusal(422, problem, f"send the image as its archive has it; {OR_JSON}")
    try:
        check_header(model, header)
    except Exception:  # before the model answers: what fails later is no fault of the image
        problem = "no report can refer to the image: its header is damaged, or its SOP class is not of the standard"
        raise Refusal(422, problem, f"send the image as its archive has it; {OR_JSON}") from None
    return header


@QUIET
@SILENT
def write_report(model: Model, header: Any, answer: Answer, note: str) -> bytes:
    """The DICOM file of a report; the same image and model give the same SOP Instance UID again.

    Args:
        header: from `read_head`; note: what to know of the image.
    """
    return structured_report(answer, model, header, report_uid(model, str(header.SOPInstanceUID)), note)
