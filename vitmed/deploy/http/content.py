"""What the addresses return: typed data, which is also what /docs describes; pages, which load nothing else; and a
Structured Report of one DICOM image, for a request with `Accept: application/dicom`."""

import importlib.util
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse

from vitmed import __version__
from vitmed.core.base_models import Kind
from vitmed.core.process import SharedContext
from vitmed.core.text import NOTICE, counted, csp_hash, format_probability
from vitmed.decisions.operating_points import DECIDES
from vitmed.decisions.policy import ClassPolicy, FindingPolicy
from vitmed.deploy.http.limits import Refusal, Upload
from vitmed.imaging.dicom import QUIET, silence
from vitmed.inference.ensemble import Ensemble
from vitmed.inference.load import Answer, Model
from vitmed.models.sizes import size_label

DICOM = "application/dicom"
FOLDER = Path(__file__).parent
TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


class Problem(BaseModel):
    """Why a request was refused, and what to do."""

    problem: str
    fix: str


class ImageAnswer(BaseModel):
    """What the model says of an image."""

    image: str = Field(description="the file name that the sender gave")
    prediction: str | list[str] | float = Field(description="class or grade; called findings; number in `unit`")
    probability: float | None = Field(description="of the predicted class, calibrated")
    probabilities: dict[str, float] = Field(description="of every class or finding, calibrated; empty for a number")
    prediction_set: list[str] | None = Field(description="classes or findings that cannot be excluded")
    interval: tuple[float, float] | None = Field(description="of a number")
    unit: str = ""
    answered: bool = Field(description="whether the model answers by its policy")
    reason: str = Field(description="why it does not answer, else empty")
    ood_score: float | None = Field(description="above 1 the image is unlike those of training")
    note: str = Field(default="", description="what to know of this image")
    id: str | None = Field(default=None, description="of the line in the log of scores, to which a label can be added")
    picture: str | None = Field(
        default=None, description="what the network saw, PNG as a data: address; with pictures=true"
    )


class ImageProblem(Problem):
    """An image that cannot be read, among others that can."""

    image: str


class ModelHash(BaseModel):
    """Which model answered."""

    weights_sha256: str
    vitmed: str = __version__


class Reply(BaseModel):
    """The answers, one for each image, in their order."""

    images: list[ImageAnswer | ImageProblem]
    model: ModelHash
    notice: str = NOTICE


class ModelCard(ModelHash):
    """What the model is. It names no file and no machine."""

    name: str = Field(description="of the network: its size, as vit-tiny, or its width and depth, as vit-128x4")
    decides: str | None = Field(
        description="at which probability, in words; null where the likeliest class is predicted"
    )
    kind: Kind
    classes: list[str]
    unit: str
    image_size: int
    channels: int
    source: Literal["checkpoint", "ensemble", "onnx"]
    precision: str
    policy: str | None = Field(description="what validation chose, in words; null: the probabilities are raw")
    policy_notes: list[str]
    licence: str | None = Field(description="of the starting weights")
    terms: str | None
    notice: str = NOTICE


def model_card(model: Model) -> ModelCard:
    """What the model is, as far as its file says."""
    saved, policy = model.saved, model.saved.policy
    decides = f"Decision: {policy.summary}" if isinstance(policy, FindingPolicy) else None
    if isinstance(policy, ClassPolicy):
        threshold, positive = policy.operating.threshold, policy.operating.positive
        if positive is None:
            way = DECIDES.get(policy.operating.chosen)
            decides = way and f"It says the class with the {way}"
        else:
            least = format_probability(0.5 if threshold is None else threshold)
            decides = f"It says {positive} from a probability of {least}"
    single: Literal["checkpoint", "onnx"] = "onnx" if model.network.model is None else "checkpoint"
    return ModelCard(
        weights_sha256=saved.weights_hash,
        name=size_label(saved.config.model),
        decides=decides,
        kind=model.kind,
        classes=list(saved.classes),
        unit=model.unit,
        image_size=saved.preprocessing.image_size,
        channels=saved.preprocessing.channels,
        source="ensemble" if isinstance(saved, Ensemble) else single,
        precision=model.network.precision,
        policy=None if policy is None else policy.summary,
        policy_notes=[] if policy is None else list(policy.notes),
        licence=saved.config.model.licence,
        terms=saved.config.model.terms,
    )


def page(template: str, script: str | None = None, **context: Any) -> HTMLResponse:
    """A page from a template, with its style and perhaps a script, and the policy that lets nothing else in."""
    style, code = ((FOLDER / name).read_text(encoding="utf-8") if name else "" for name in ("page.css", script))
    scripts = f"; script-src '{csp_hash(code)}'; connect-src 'self'" if code else ""
    policy = (
        f"default-src 'none'; style-src '{csp_hash(style)}'; img-src data: blob:{scripts}; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    text = TEMPLATES.get_template(template).render(style=Markup(style), script=Markup(code), **context)
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


OR_JSON = "or leave the header Accept out: the answer is then JSON"


SILENT = SharedContext(partial(silence, "highdicom"))  # a line might hold what stands in an image


@QUIET
@SILENT
def read_head(model: Model, uploads: Sequence[Upload]) -> Any:
    """The header of the only image of a request, as a pydicom data set. Raises Refusal 406: several images, or
    highdicom is missing; 415: not DICOM; 422: without a study, or damaged."""
    if importlib.util.find_spec("highdicom") is None:
        problem = "the server makes no Structured Reports: it lacks the package highdicom"
        raise Refusal(406, problem, f"pip install 'vitmed[pacs]', and start the server again; {OR_JSON}")
    if len(uploads) > 1:
        problem = f"a Structured Report is about one image, and the request has {counted(len(uploads), 'image')}"
        raise Refusal(406, problem, f"send one image a request; {OR_JSON}")
    import pydicom

    from vitmed.deploy.structured_report import UIDS, check_header

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
    """The DICOM file of a report on the image of `read_head`, with a note about it; the same image and model give the
    same SOP Instance UID again."""
    from vitmed.deploy.structured_report import report_uid, structured_report

    return structured_report(answer, model, header, report_uid(model, str(header.SOPInstanceUID)), note)
