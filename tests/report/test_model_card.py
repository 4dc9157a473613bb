"""The model card: the hub reads its header, the numbers are the report's, and nothing private is in it."""

import json
import os
import platform
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import Trained, recording

from vitmed import evaluate
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions
from vitmed.report.model_card import CLASSES, model_card
from vitmed.report.results import Origin, Results


def header(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


def of(classes: tuple[str, ...], name: str = "run", title: str = "test of cells", groups: bool = True) -> str:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % len(classes)
    patients = tuple(f"PATIENT{i % 40}" for i in range(300)) if groups else None
    logits = rng.normal(size=(300, len(classes))).astype(np.float32)
    metrics = evaluate_predictions(Predictions(classes, ("SECRET",) * 300, patients, labels, logits))
    report = Origin(title=title, facts={"Model": "vit_tiny", "Seed": "0"})
    return model_card(Results.of(metrics, report=report), name, "test")


def test_a_run_has_one_and_its_numbers_are_those_of_the_test(trained: Trained) -> None:
    text = (trained.folder / "model_card.md").read_text(encoding="utf-8")
    metrics = json.loads((trained.folder / "test" / "metrics.json").read_text())
    (result,) = header(text)["model-index"][0]["results"]
    numbers = {entry["type"]: entry for entry in result["metrics"]}
    auroc = metrics["overall"]["auroc"]
    assert numbers["roc_auc"]["value"] == pytest.approx(auroc["value"], abs=1e-6)
    assert numbers["roc_auc"]["args"]["low"] == pytest.approx(auroc["low"], abs=1e-6)
    assert f"| AUROC | {auroc['value']:.3f} | {auroc['low']:.3f} to {auroc['high']:.3f} |" in text
    assert header(text)["datasets"] == ["data"] == [result["dataset"]["name"]]
    assert header(text)["pipeline_tag"] == "image-classification" and header(text)["library_name"] == "vitmed"
    assert "Research use only; not a medical device" in text and "`test/report.html`" in text
    for word in ("amber", "blue", "green", "Out of scope", "Preprocessing: ", "vitmed predict"):
        assert word in text


def test_nothing_of_the_machine_or_of_a_patient_is_in_it(trained: Trained) -> None:
    text = (trained.folder / "model_card.md").read_text(encoding="utf-8") + of(("a", "b"))
    for secret in (str(trained.data), str(Path.home()), platform.node() or "?", "PATIENT", "SECRET", ".png"):
        assert secret not in text.replace("image.png", "")
    assert not re.search(r"(^|[\s(`'\"])/[a-z]+/", text) and os.sep + "tmp" not in text


def test_the_hub_reads_the_header(trained: Trained) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    for text in ((trained.folder / "model_card.md").read_text(encoding="utf-8"), of(("a", "b")), of(("a", "b", "c"))):
        card = hub.ModelCard(text)
        found = {result.metric_type: result.metric_value for result in card.data.eval_results}
        assert card.data.license == "unknown" and "research-use-only" in card.data.tags
        assert 0 <= found["roc_auc"] <= 1 and set(card.data.metrics) == set(found)
        assert all(result.task_type == "image-classification" for result in card.data.eval_results)


def test_hostile_names_break_neither_header_nor_table() -> None:
    classes = ("a | b\n---\n# c", "<script>alert(1)</script>", "`x` *y* [z](http://w) $$")
    text = of(classes, name="x\n---\nlicense: mit", title="test of 'q': {a}\n---")
    assert header(text)["license"] == "unknown" and header(text)["model-index"][0]["name"] == "x --- license: mit"
    assert "<script>" not in text and "[z](" not in text
    rows = [line for line in text.splitlines() if "a \\| b" in line and line.startswith("|")]
    assert rows and all(len(re.findall(r"(?<!\\)\|", row)) == 7 for row in rows)


def test_many_classes_do_not_make_it_long_and_unknown_patients_are_told() -> None:
    text = of(tuple(f"class {i}" for i in range(100)), groups=False)
    assert f"and {100 - CLASSES} more" in text and "Patients are unknown" in text
    assert len(text) < 30_000


@pytest.mark.usefixtures("no_figures")
def test_it_is_written_again_for_the_runs_own_test_alone(trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "copy"
    shutil.copytree(trained.folder, run)
    card, data = run / "model_card.md", trained.data
    card.unlink()
    for arguments in (
        {"checkpoint": run / "best.pt", "split": "val"},
        {"checkpoint": run / "last.pt"},
        {"checkpoint": run / "best.pt", "output": tmp_path / "elsewhere"},
    ):
        evaluate(**arguments, data=data, resamples=5, device="cpu", report=False)  # type: ignore[arg-type]
        assert not card.exists(), arguments
    result = evaluate(run / "best.pt", data=data, resamples=5, device="cpu")
    assert f"`{result.folder.name}/report.html`" in card.read_text()
    again = evaluate(run / "best.pt", data=data, resamples=5, device="cpu")
    assert f"`{again.folder.name}/report.html`" in card.read_text()
    brief = evaluate(run / "best.pt", data=data, resamples=5, device="cpu", report=False)
    assert f"`{brief.folder.name}/metrics.json`" in card.read_text() and "report.html" not in card.read_text()
    mine, ui = card.read_text().replace("license: unknown", "license: cc-by-4.0"), recording()
    card.write_text(mine)
    evaluate(run / "best.pt", data=data, resamples=5, device="cpu", report=False)
    assert card.read_text() == mine and any("was edited" in text for text in ui.warned)
