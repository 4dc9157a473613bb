"""Every section of the report is written for whatever it is given: no exception, no name of a patient, all JSON."""

import json
from pathlib import Path

import numpy as np
import pytest

from vitmed.config import EvaluateConfig
from vitmed.predictions import Predictions
from vitmed.report import write_report

pytestmark = pytest.mark.usefixtures("no_figures")


def draw(case: str) -> Predictions:
    rng = np.random.default_rng(0)
    classes = {"a thousand classes": 1000, "three classes": 3, "a class without images": 3, "mixed": 3}.get(case, 2)
    size = {"ten": 10, "none": 0, "one image": 1}.get(case, 120)
    labels = rng.integers(classes, size=size)
    owner = np.arange(size) // 4
    if case == "one class":
        labels[:] = 1
    if case == "a class without images":
        labels = np.minimum(labels, 1)
    if case == "one patient":
        owner[:] = 0
    if case == "one image each":
        owner = np.arange(size)
    if case in ("pure", "three classes"):
        labels = owner % classes
    if case == "mixed":
        labels = np.arange(size) % 3
    logits = rng.normal(size=(size, classes)) if case != "constant" else np.zeros((size, classes))
    columns = {
        "empty": ("",) * size,
        "one": ("x",) * size,
        "site": tuple("AB"[i % 2] for i in owner),
        "age": tuple(str(20 + i) for i in owner),
        "name": tuple(f"SECRET{i}" for i in owner),
        "small": tuple("tiny" if i < 8 else "large" for i in range(size)),
    }
    groups = None if case == "no patients" else tuple("" if case == "nameless" else f"SECRET{i}" for i in owner)
    return Predictions(
        tuple(f"c{i} <b>" for i in range(classes)), tuple(f"SECRET/{i}.png" for i in range(size)), groups, labels,
        logits.astype(np.float32), columns=columns,
    )  # fmt: skip


CASES = (
    "two classes", "three classes", "pure", "one class", "a class without images", "mixed", "one patient",
    "one image each", "no patients", "nameless", "constant", "ten", "one image", "none", "a thousand classes",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_whatever_comes(case: str, tmp_path: Path) -> None:
    p = draw(case)
    config = EvaluateConfig(resamples=20, subgroups=list(p.columns))
    write_report(tmp_path, p, title="t", facts={}, config=config, validation=draw("pure") if case == "pure" else None)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    html = (tmp_path / "report.html").read_text()
    assert "SECRET" not in html and "nan" not in html.lower().replace("nance", "")
    assert "c0 <b>" not in html and "c0 &lt;b&gt;" in html
    for key in ("patient_level", "per_patient"):
        assert (key in metrics) == (p.groups is not None and len(p) > 0)
    assert ("subgroups" in metrics) == (len(p) > 0)
    assert (tmp_path / "label_issues.csv").exists() == ("n" in metrics.get("label_errors", {}))
