"""An answer of the model as a DICOM Structured Report by TID 1500 (PS3.16). Importing this needs highdicom.

What the standard has no code for gets one of the private scheme `SCHEME`: its meaning is the text that a reader sees,
its value a hash of the text, so that the same class has the same code in every report.
"""

import contextlib
import hashlib
import json
import unicodedata
import uuid
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import highdicom
import numpy as np
from highdicom import sr
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.valuerep import DA, TM

from vitmed import __version__
from vitmed.core.text import NOTICE, format_number, format_probability
from vitmed.decisions.policy import ClassPolicy, DecisionPolicy, FindingPolicy, NumberPolicy
from vitmed.inference.load import Answer, Model
from vitmed.models.sizes import size_label

SCHEME, FORM = "99VITMED", "4"  # the private codes; a new form of the report is another object, so has another UID
LONGEST = 64  # characters of a code's meaning (VR LO)
MOST_CLASSES = 20  # likeliest classes whose probability a report has
SERIES = 9100  # number of the series of reports in a study, far from those of a scanner
UCUM = {  # what users call a unit -> its code
    "years": "a",
    "year": "a",
    "months": "mo",
    "weeks": "wk",
    "days": "d",
    "hours": "h",
    "minutes": "min",
    "percent": "%",
    "degrees": "deg",
    "HU": "[hnsf'U]",
    "mmHg": "mm[Hg]",
    "ml": "mL",
    **{unit: unit for unit in ("%", "mm", "cm", "mm2", "cm2", "mL", "g", "kg", "mg", "ms", "s", "kg/m2", "g/L")},
}
UIDS = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")  # that an image needs
TYPE_2 = (  # what each report must have, if only empty
    *("PatientID", "PatientName", "AccessionNumber", "StudyID", "ReferringPhysicianName"),
    *("PatientBirthDate", "PatientSex", "StudyDate", "StudyTime"),
)


def derived_uid(*parts: str) -> str:
    """A UID that the same parts give again (PS3.5, B.2: 2.25 and a UUID, here of version 5)."""
    return f"2.25.{uuid.uuid5(uuid.NAMESPACE_OID, ' '.join(parts)).int}"


def report_uid(model: Model, image: str) -> str:
    """The SOP Instance UID of the report on the image with this one: one for each model, precision, policy, frame, and
    form of the report."""
    return derived_uid(FORM, _identity(model), image)


def _identity(model: Model) -> str:
    policy, how = model.saved.policy, model.preprocessing
    decides = json.dumps(policy.to_json(), sort_keys=True) if policy else ""
    read = f"{how.frame}{how.window if '/' in str(how.window) else ''}"  # a window that serve was given
    read += "" if model.network.precision == "fp32" else f" {model.network.precision}"
    return hashlib.sha256(f"{model.saved.weights_hash} {read} {decides}".encode()).hexdigest()


@dataclass
class Group:
    """A measurement group (TID 1501): the name of what it is about, a finding, coded values, numbers and texts."""

    name: str
    finding: Any = None
    evaluations: list[Any] = field(default_factory=list)
    measurements: list[Any] = field(default_factory=list)
    texts: list[tuple[Any, str]] = field(default_factory=list)

    def say(self, name: Any, value: Any) -> None:
        self.evaluations.append(sr.QualitativeEvaluation(name=name, value=value))

    def measure(self, name: str, value: float | None, unit: Any = None, beside: float | None = None) -> None:
        """Add a number, in four digits or those that tell it from one `beside`; left out if unknown or not finite."""
        if value is not None and np.isfinite(value):
            of = codes.UCUM.NoUnits if unit is None else unit
            digits = next((n for n in range(4, 13) if beside is None or f"{value:.{n}g}" != f"{beside:.{n}g}"), 4)
            value = float(format_number(value) if digits == 4 else f"{value:.{digits}g}")
            self.measurements.append(sr.Measurement(name=coded(name), value=value, unit=of))


def coded(text: str) -> Any:
    """The private code of a text, such as the name of a class."""
    value = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16].upper()
    meaning = "".join(c if c.isprintable() and c != "\\" else " " for c in text)[:LONGEST].strip()
    return sr.CodedConcept(value, SCHEME, meaning or value)


def groups_of(answer: Answer, policy: DecisionPolicy | None, kind: str) -> list[Group]:
    """What a report says: the image as a whole first, then each finding.

    An answer that the model does not give has no finding that a reader could take for one: its value is "no answer".
    """
    whole, parts = Group("image"), list[Group]()
    whole.say(coded("Answered"), codes.SCT.Yes if answer.answered else codes.SCT.No)
    if answer.reason:
        whole.texts.append((coded("Reason for no answer"), answer.reason))
    if kind == "findings":
        parts = [_finding(name, answer, policy) for name in answer.probabilities]
    elif kind == "number":
        _number(whole, answer, policy)
    else:
        predicted = coded(str(answer.prediction))
        whole.finding = predicted if answer.answered else coded("no answer")
        if not answer.answered:
            whole.say(coded("Predicted, but not answered"), predicted)
        limits = dict[str, float]()
        if isinstance(policy, ClassPolicy) and policy.operating.positive is not None:
            threshold = policy.operating.threshold
            limits[policy.operating.positive] = 0.5 if threshold is None else threshold
        for name, probability in sorted(answer.probabilities.items(), key=lambda item: -item[1])[:MOST_CLASSES]:
            whole.measure(f"Probability of {name}", probability, beside=limits.get(name))
        for name, limit in limits.items():
            whole.measure(f"Threshold of {name}", limit, beside=answer.probabilities[name])
    for member in answer.prediction_set or ():
        whole.say(coded("Cannot be excluded"), coded(member))
    whole.measure("Out-of-distribution score (above 1: unlike training)", answer.ood_score)
    return [whole, *parts]


def _finding(name: str, answer: Answer, policy: DecisionPolicy | None) -> Group:
    assert isinstance(answer.prediction, tuple)
    group = Group(name, coded(name))
    called = codes.SCT.Present if name in answer.prediction else codes.SCT.Absent
    group.say(coded("Presence"), called if answer.answered else coded("no answer"))
    if not answer.answered:
        group.say(coded("Predicted, but not answered"), called)
    own = policy.findings[name].operating.threshold if isinstance(policy, FindingPolicy) else None
    limit, chance = 0.5 if own is None else own, answer.probabilities[name]
    group.measure("Probability", chance, beside=limit)
    group.measure("Threshold", limit, beside=chance)
    return group


def _number(group: Group, answer: Answer, policy: DecisionPolicy | None) -> None:
    assert isinstance(answer.prediction, float)
    if not answer.unit:
        unit: Any = codes.UCUM.NoUnits
    elif code := UCUM.get(answer.unit):
        unit = sr.CodedConcept(code, "UCUM", answer.unit)
    else:  # an annotation, {like this}
        plain = unicodedata.normalize("NFKC", answer.unit).replace("\u03bc", "u")  # kg/m2, uL
        noted = "".join(c for c in plain if c.isprintable() and c not in "{}\\")[:14]
        unit = coded(answer.unit)
        if noted.strip() and noted.isascii():
            unit = sr.CodedConcept(f"{{{noted}}}", "UCUM", unit.meaning)
    but = ", but not answered" * (not answer.answered)
    group.measure(f"Predicted value{but}", answer.prediction, unit)
    if answer.interval is not None and isinstance(policy, NumberPolicy) and policy.intervals is not None:
        for end, value in zip(("Lower", "Upper"), answer.interval, strict=True):
            name = f"{end} end of the {100 * policy.intervals.coverage:.3g}% prediction interval"
            group.measure(name + but, value, unit)


def structured_report(answer: Answer, model: Model, header: Any, uid: str, note: str = "") -> bytes:
    """The DICOM file of a Comprehensive SR on an image, filed in the image's study.

    Args:
        header: the image's pydicom data set; its pixels are not needed.
        uid: of the report, as `report_uid` gives it; note: what to know of the image.

    Raises:
        ValueError: the header has no study, series or SOP instance.
    """
    image, weights = evidence(header), model.saved.weights_hash
    groups = groups_of(answer, model.saved.policy, model.kind)
    if note:
        groups[0].texts.append((codes.DCM.Comment, f"The image {note}."))
    observer = sr.ObserverContext(
        codes.DCM.Device,
        sr.DeviceObserverIdentifyingAttributes(
            derived_uid("device", weights), "vitmed", "vitmed", f"weights {weights[:12]}"
        ),
    )
    content = sr.MeasurementReport(
        sr.ObservationContext(observer),
        procedure_reported=codes.SCT.ImagingProcedure,
        imaging_measurements=[_container(group, model, image) for group in groups],
    )
    if not answer.answered:
        result = f"No answer: {answer.reason}"
    elif isinstance(answer.prediction, tuple):
        result = f"Present: {', '.join(answer.prediction) or 'none of the findings'}"
    elif isinstance(answer.prediction, float):
        ends = "" if answer.interval is None else " (interval {} to {})".format(*map(format_number, answer.interval))
        result = f"{format_number(answer.prediction)} {answer.unit}".strip() + ends
    else:
        result = f"{answer.prediction}, probability {format_probability(answer.probabilities[answer.prediction])}"
    line = sr.TextContentItem(coded("Result"), f"{result}. {NOTICE}", sr.RelationshipTypeValues.CONTAINS)
    content[0].ContentSequence.insert(0, line)  # a viewer shows it first
    return _filed(content[0], model, header, uid)


def check_header(model: Model, header: Any) -> None:
    """Make a report without content: raises what pydicom and highdicom raise of a header that no report can have."""
    content = sr.ContainerContentItem(coded("trial"))
    content.ContentSequence = sr.ContentSequence()
    _filed(content, model, header, derived_uid("trial"))


def _filed(content: Any, model: Model, header: Any, uid: str) -> bytes:
    """The DICOM file of a report in the study of an image; see `structured_report`."""
    image, number = evidence(header), 1
    with contextlib.suppress(TypeError, ValueError):
        number = max(1, int(header.get("InstanceNumber") or 1))
    scheme = highdicom.coding_schemes.CodingSchemeIdentificationItem(
        SCHEME, name="vitmed: names of classes", responsible_organization="vitmed"
    )
    report = sr.ComprehensiveSR(
        [image],
        content,
        series_instance_uid=derived_uid("series", _identity(model), str(image.StudyInstanceUID)),
        series_number=SERIES,
        sop_instance_uid=uid,
        instance_number=number,
        manufacturer="vitmed",
        manufacturer_model_name="vitmed",
        software_versions=__version__,
        device_serial_number=model.saved.weights_hash,
        series_description=f"vitmed. {NOTICE}",
        is_complete=True,
        specific_character_set="ISO_IR 192",
        coding_schemes=[scheme],
    )
    for keyword in ("IssuerOfPatientID", "OtherPatientIDsSequence"):
        if keyword in header:
            report.add(header[keyword])
    stream = BytesIO()
    report.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def _container(group: Group, model: Model, image: Any) -> Any:
    """The measurement group with the image that it is about, and the algorithm that made it."""
    saved, arithmetic = model.saved, "" if model.network.precision == "fp32" else f" in {model.network.precision}"
    parameters = [
        f"weights sha256 {saved.weights_hash}",
        f"{size_label(saved.config.model)}, predicts {model.kind}{arithmetic}",
        f"decision policy: {saved.policy.summary if saved.policy else 'none, the outputs are raw'}",
        NOTICE,
    ]
    frame = model.preprocessing.frame
    several = frame is not None and int(image.get("NumberOfFrames") or 1) > 1
    frames = [frame + 1] if frame is not None and several else None
    made = sr.MeasurementsAndQualitativeEvaluations(
        sr.TrackingIdentifier(derived_uid("tracking", group.name, image.SOPInstanceUID), group.name[:LONGEST]),
        finding_type=group.finding,
        algorithm_id=sr.AlgorithmIdentification("vitmed", __version__, parameters),
        measurements=group.measurements,
        qualitative_evaluations=group.evaluations,
        source_images=[sr.SourceImageForMeasurementGroup(image.SOPClassUID, image.SOPInstanceUID, frames)],
    )
    for name, text in (*group.texts, (codes.DCM.Comment, NOTICE)):
        made[0].ContentSequence.append(sr.TextContentItem(name, text, sr.RelationshipTypeValues.CONTAINS))
    return made


def evidence(header: Any) -> Any:
    """What a report keeps of an image's header: its UIDs, the patient and the study; parts that are missing are empty.
    Raises ValueError: a UID is missing, or there are several."""
    kept = Dataset()
    for keyword in UIDS:
        if not isinstance(header.get(keyword) or None, str):
            raise ValueError(f"not one {keyword}")
        setattr(kept, keyword, str(header[keyword].value).strip())
    for element in header:
        of_patient = element.tag.group in (0x0008, 0x0010, 0x0020) or element.keyword == "NumberOfFrames"
        if of_patient and element.tag not in kept and element.VR != "SQ":
            kept.add(element)
    dates: dict[str, Any] = {"PatientBirthDate": DA, "StudyDate": DA, "StudyTime": TM}
    checks = {**dates, "PatientSex": ("M", "F", "O").__contains__}
    for keyword in TYPE_2:
        try:
            valid = keyword in kept and bool(checks.get(keyword, bool)(kept[keyword].value))
        except (ValueError, TypeError):
            valid = False
        if not valid:
            setattr(kept, keyword, "")
    return kept
