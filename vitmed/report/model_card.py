"""model_card.md: what a model is, was made from and is worth, with the header that Hugging Face's hub reads."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import yaml

from vitmed.core.files import write_text
from vitmed.core.messages import warn
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import listed
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.estimates import Estimate
from vitmed.report.headline import Evaluation
from vitmed.report.page import limitations
from vitmed.report.results import Results
from vitmed.report.templates import fill, headline_of

CLASSES = 50  # that the tables list
# Names of the hub for our numbers; those it has no name for keep ours.
HUB = {"auroc": "roc_auc", "mcc": "matthews_correlation", "sensitivity": "recall", "ppv": "precision"}


def model_card(metrics: Results, name: str, folder: str) -> str:
    """The card. It holds no path, no host and no patient, as long as the facts and the title of the report do not.

    Args:
        metrics: of the run's own test.
        name: of the model.
        folder: of the report, relative to the card.
    """
    header = yaml.safe_dump(card_header(metrics, name), sort_keys=False, allow_unicode=True, width=120)
    unknown = "Patients are unknown."
    noted = any(unknown in note for note in metrics.notes)  # they stand above the limitations
    text = fill(
        "model_card.md.j2",
        header=header,
        name=name,
        folder=folder,
        metrics=metrics,
        headline=headline_of(metrics),
        listed=listed(metrics.classes, CLASSES),
        most=CLASSES,
        limitations=[text for text in limitations(metrics) if not (noted and text.startswith(unknown))],
    )
    return f"{text}\n{_stamp(text)}\n"


def edited(card: str) -> bool:
    """Whether somebody wrote in a card after `model_card` made it."""
    text, _, stamp = card.rstrip("\n").rpartition("\n")
    return stamp != _stamp(text)


def _stamp(text: str) -> str:
    return f"<!-- made by vitmed, sha256 of the text above {hashlib.sha256(text.encode()).hexdigest()} -->"


def card_header(metrics: Results, name: str) -> dict[str, Any]:
    """The fields of the YAML header; of the numbers those that are defined, each with its interval."""
    data, name = " ".join(metrics.report.title.split()), " ".join(name.split())  # `---` in a line ends a header
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", data.removeprefix("test of ")).strip("-.")[:90] or "data"
    found = [
        {"type": HUB.get(key, key), "name": title, "value": round(number.value, 6), "args": _interval(number, metrics)}
        for key, title, number in headline_of(metrics)
        if number.value is not None
    ]
    task, title = TARGETS[metrics.target.kind].words.task
    result = {
        "task": {"type": task, "name": title},
        "dataset": {"type": slug, "name": data, "split": "test"},
        "metrics": found,
    }
    return {
        "license": "unknown",
        "library_name": "vitmed",
        "pipeline_tag": task,
        "tags": ["vitmed", "medical-imaging", task, "vision-transformer", "research-use-only"],
        "datasets": [slug],
        "metrics": list(dict.fromkeys(number["type"] for number in found)),
        "model-index": [{"name": name, "results": [result]}],
    }


def _interval(number: Estimate, metrics: Results) -> dict[str, Any]:
    if number.low is None or number.high is None:
        return {"interval": "none"}
    low, high = round(number.low, 6), round(number.high, 6)
    how = f"{number.method or 'bootstrap'}, {metrics.resampling}"
    return {"interval": metrics.level, "low": low, "high": high, "method": how}


def write_card(run: RunFolder, test: Evaluation) -> None:
    """Write model_card.md, unless somebody has edited it."""
    file, card = run.model_card, model_card(test.metrics, run.path.resolve().name, test.folder.name)
    if file.is_file() and edited(file.read_text(encoding="utf-8", errors="replace")):
        warn(f"{file} was edited and is not replaced; remove it to get a new one with these numbers")
    else:
        write_text(file, card)
