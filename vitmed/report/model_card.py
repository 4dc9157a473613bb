"""What a model is, was made from and is worth, with the header that Hugging Face's hub reads.

model_card.md of a run, and README.md of weights for timm or transformers.
"""

import hashlib
import re
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from vitmed.core.files import write_text
from vitmed.core.messages import warn
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import listed
from vitmed.decisions.policy import ClassPolicy, DecisionPolicy, FindingPolicy
from vitmed.decisions.targets import TARGETS
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.saved_model import SavedModel
from vitmed.models.weights.catalogue import public_weights, terms_of
from vitmed.report.chapters import limitations
from vitmed.report.headline import Evaluation
from vitmed.report.results import Results
from vitmed.report.templates import fill, headline_of

CLASSES = 50  # that the tables list
# Names of the hub for our numbers; those it has no name for keep ours.
HUB = {"auroc": "roc_auc", "mcc": "matthews_correlation", "sensitivity": "recall", "ppv": "precision"}

_as_yaml = partial(yaml.safe_dump, sort_keys=False, allow_unicode=True, width=120)
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # Pillow's, by channels
FITS = {"pad": "ImageOps.pad(image, {}, {})", "squash": "image.resize({}, {})", "crop": "ImageOps.fit(image, {}, {})"}


def model_card(metrics: Results, name: str, folder: str) -> str:
    """The card, about the run's own test. It holds no path, host or patient, unless facts or title of the report do.

    `folder` is the folder of the report, relative to the card.
    """
    unknown = "Patients are unknown."
    noted = any(unknown in note for note in metrics.notes)  # they stand above the limitations
    text = fill(
        "model_card.md.j2",
        header=_as_yaml(card_header(metrics, name)),
        name=name,
        folder=folder,
        metrics=metrics,
        headline=headline_of(metrics),
        listed=listed(metrics.classes, CLASSES),
        most=CLASSES,
        limitations=[text for text in limitations(metrics) if not (noted and text.startswith(unknown))],
    )
    return f"{text}\n{_stamp(text)}\n"


def _stamp(text: str) -> str:
    return f"<!-- made by vitmed, sha256 of the text above {hashlib.sha256(text.encode()).hexdigest()} -->"


def card_header(metrics: Results, name: str) -> dict[str, Any]:
    """The fields of the YAML header; of the numbers those that are defined, each with its interval."""
    data, name = (" ".join(text.split()) for text in (metrics.report.title, name))  # `---` in a line ends a header
    data = data.removesuffix(", test split")
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", data).strip("-.")[:90] or "data"
    entries = []
    for key, title, number in headline_of(metrics):
        if number.value is None:
            continue
        interval: dict[str, Any] = {"interval": "none"}
        if number.low is not None and number.high is not None:
            interval = {"interval": metrics.level, "low": round(number.low, 6), "high": round(number.high, 6)}
            interval["method"] = f"{number.method or 'bootstrap'}, {metrics.resampling}"
        entries.append({"type": HUB.get(key, key), "name": title, "value": round(number.value, 6), "args": interval})
    task, title = TARGETS[metrics.target.kind].words.task
    of = {"task": {"type": task, "name": title}, "dataset": {"type": slug, "name": data, "split": "test"}}
    return {
        "license": "unknown",
        "library_name": "vitmed",
        "pipeline_tag": task,
        "tags": ["vitmed", "medical-imaging", task, "vision-transformer", "research-use-only"],
        "datasets": [slug],
        "metrics": list(dict.fromkeys(number["type"] for number in entries)),
        "model-index": [{"name": name, "results": [of | {"metrics": entries}]}],
    }


def write_card(run: RunFolder, test: Evaluation) -> None:
    """Write model_card.md, unless somebody has edited it."""
    file = run.model_card
    if file.is_file():
        text, _, stamp = file.read_text(encoding="utf-8", errors="replace").rstrip("\n").rpartition("\n")
        if stamp != _stamp(text):
            warn(f"{file} was edited and is not replaced; remove it to get a new one with these numbers")
            return
    write_text(file, model_card(test.metrics, run.path.resolve().name, test.folder.name))


def weights_card(saved: SavedModel, name: str, metrics: Results | None) -> str:
    """The card: no path, no host, no patient, and not the name of the data folder. `metrics` are of the test of these
    weights, None if not known."""
    target, policy, model = saved.splits.target, saved.chosen_policy(), saved.config.model
    findings = policy.findings.items() if isinstance(policy, FindingPolicy) else ()
    if metrics is not None:  # the title names the data folder, which stays inside
        metrics = metrics.model_copy(update={"report": metrics.report.model_copy(update={"title": "held-out test"})})
    thresholds = {finding: one.operating.threshold for finding, one in findings}
    task = TARGETS[target.kind].words.task[0]
    tags = ["vitmed", "medical-imaging", task, "vision-transformer", "research-use-only"]
    untested = {"license": "unknown", "pipeline_tag": task, "tags": tags}
    header = (untested if metrics is None else card_header(metrics, name)) | {"library_name": "timm"}
    header.pop("datasets", None)  # the hub looks for data sets of its own there
    if model.licence and terms_of(model.licence) is not None:  # it travels with the model; any other is the owner's
        header |= {"license": "other", "license_name": model.licence.lower().removeprefix("licenseref-")}
    base = public_weights().get(model.weights or "")
    header |= {"base_model": base.hub} if base is not None and base.hub else {}
    return fill(
        "weights_card.md.j2",
        header=_as_yaml(header),
        name=name,
        words=TARGETS[target.kind].words,
        saved=saved,
        listed=listed(saved.classes, CLASSES),
        program=program(saved.preprocessing, policy, name),
        policy=policy,
        thresholds={finding: f"{0.5 if at is None else at:.6g}" for finding, at in thresholds.items()},
        metrics=metrics,
        headline=() if metrics is None else headline_of(metrics),
        limitations=() if metrics is None else limitations(metrics),
        started=Path(model.start).name if model.start else None,
        terms=model.terms or terms_of(model.licence),
    )


def program(how: Preprocessing, policy: DecisionPolicy, folder: str) -> str:
    """A program of a few lines that gives the calibrated probabilities of image.png."""
    side, way = f"({how.image_size}, {how.image_size})", f"Image.Resampling.{how.interpolation.upper()}"
    if isinstance(policy, FindingPolicy):  # each finding has its own calibration; of classes they have one together
        each, answer = [one.calibration for one in policy.findings.values()], "sigmoid()"
        scale, bias = [of.scale[1] for of in each], [of.bias[1] - of.bias[0] for of in each]
    else:
        assert isinstance(policy, ClassPolicy)
        scale, bias, answer = [*policy.calibration.scale], [*policy.calibration.bias], "softmax(1)"
    return fill(
        "weights_program.txt.j2",
        folder=folder,
        mode=MODES[how.channels],
        fit=FITS[how.resize].format(side, way),
        scale=[f"{value:.9g}" for value in scale],
        bias=[f"{value:.9g}" for value in bias],
        shifted=any(bias),
        answer=answer,
    )
