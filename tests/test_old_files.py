"""Files of version 0.1.0 open: its run folder, checkpoints and predictions.csv, with the numbers that it printed.

`runs_of_0.1.0` was made with that version: the run, its images, and `printed.json`, its answers to other commands.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Answer

from vitmed import compare, evaluate, explain, predict, train
from vitmed.core.base_models import Frozen
from vitmed.core.errors import CheckpointError
from vitmed.core.upgrade import OldNameWarning
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.predictions import Predictions
from vitmed.report.results import Results

pytestmark = pytest.mark.usefixtures("no_figures")
OLD = Path(__file__).parent / "runs_of_0.1.0"
PRINTED = json.loads((OLD / "printed.json").read_text())


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A copy of the run folder, beside its images; old names are reported elsewhere."""
    shutil.copytree(OLD, tmp_path / "old")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OldNameWarning)
        yield tmp_path / "old" / "run"


def metrics(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


MORE_EXACT = {  # what 0.1.0 called all of these, though some had another interval
    "bootstrap": {"bootstrap", "wilson-bootstrap", "influence", "mover"},
    "wilson-cluster": {"wilson-cluster", "mover"},
    "wilson": {"wilson", "mover"},
    "obuchowski": {"obuchowski", "newcombe", "influence", "mover"},
    "delong": {"delong", "newcombe", "influence", "mover"},
    "influence": {"influence", "newcombe", "mover"},
}
KEPT = ("wilson", "bootstrap", "sandwich", "t")  # methods of intervals that are computed as they were


def close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """The same tree, numbers to the tolerance; of an interval by another method than before, only the value."""
    found = found.to_dict() if isinstance(found, Frozen) else found
    if isinstance(expected, dict) and "method" in expected and not found["method"] == expected["method"] in KEPT:
        close(found["value"], expected["value"], tolerance)
        assert found["method"] in MORE_EXACT.get(expected["method"], {expected["method"]})
        assert found["low"] is None or found["low"] <= found["value"] + 1e-12 <= found["high"] + 2e-12
    elif isinstance(expected, dict):
        expected = {key: value for key, value in expected.items() if key != "notes" or value}  # there are more by now
        expected = {key: value for key, value in expected.items() if not key.endswith("_weighted")}  # gone since
        found = {key: value for key, value in found.items() if key != "notes" or "notes" in expected}
        found = {key: value for key, value in found.items() if key != "resamples" or "resamples" in expected}
        assert set(found) == set(expected)
        for key in expected:
            close(found[key], expected[key], tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other, tolerance)
    else:
        if isinstance(expected, int) and not isinstance(expected, bool):
            tolerance *= 50  # a number of images
        number = isinstance(expected, int | float) and not isinstance(expected, bool)
        assert found == (pytest.approx(expected, abs=tolerance, rel=tolerance) if number else expected)


def same_numbers(
    found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-12, at_bounds: float = 1e-12
) -> None:
    """What both versions report: the numbers, the policy's results, and the images that are answered.

    Args:
        at_bounds: the tolerance of what one image at a bound changes, as a share of about 50 images.
    """
    for part in ("n", "overall", "per_class", "confusion_matrix", "operating_points"):
        close(found[part], expected[part], tolerance)
    level, before = (dict(content["patient_level"]) for content in (found, expected))
    before = {name: part for name, part in before.items() if name not in ("noisy_or", "best_on_validation")}
    level = {name: level[name] for name in before}
    notes = level.pop("notes")
    assert not before["notes"] and all("has only" in note for note in notes), notes  # 0.1.0 was silent
    close(level, {name: part for name, part in before.items() if name in level}, tolerance)
    after = [by_the_old_intervals(part["calibration"]["after"]) for part in (found, expected)]
    close(after[0], after[1], tolerance)
    sets = found["conformal"].to_dict() if isinstance(found["conformal"], Frozen) else dict(found["conformal"])
    for part, content in (("answers", found["answers"]), ("abstention", found["abstention"]), ("conformal", sets)):
        close(content, expected[part], at_bounds)


def by_the_old_intervals(after: Any) -> dict[str, Any]:
    """The measures of calibration without the intervals that a later version computes in another way or leaves out."""
    content = after.to_dict() if isinstance(after, Frozen) else json.loads(json.dumps(after))
    content["ece"] = content["ece"]["value"]
    for name in ("ece_if_right", "ece_classwise", "ece_classwise_if_right"):
        content.pop(name, None)
    for of_class in content["per_class"].values():
        of_class |= {name: of_class[name]["value"] for name in ("intercept", "slope")}
    return content


def test_the_logits_of_its_table_are_calibrated() -> None:
    """What this test folder is for: softmax(logit_) is prob_, and not the output of the network."""
    content = metrics(OLD / "run" / "test")
    scale = content["report"]["judgement"]["calibration"]["scale"]
    assert scale[0] > 1 and "weights_hash" not in content
    with (OLD / "run" / "test" / "predictions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        z = np.array([float(row["logit_healthy"]), float(row["logit_ill"])])
        assert float(row["prob_ill"]) == pytest.approx((np.exp(z) / np.exp(z).sum())[1], abs=1e-9)


def test_a_checkpoint_holds_its_policy(run: Path) -> None:
    policy = load_checkpoint(run).policy
    assert policy is not None and policy.weights_hash is None and policy.n == 54
    stored = torch.load(run / "best.pt", weights_only=True)["judgement"]
    assert policy.calibration.scale == tuple(stored["calibration"]["scale"])
    assert policy.operating.threshold == stored["operating"]["points"]["target_sensitivity"]["threshold"]
    assert policy.prediction_sets.least == tuple(stored["sets"]["least"])
    assert policy.abstention.least == stored["answers"]["least"]
    assert policy.ood_score.scale == stored["familiarity"]["scale"]


def test_evaluate(run: Path, tmp_path: Path) -> None:
    """To 1e-5: another machine and version of torch computes the logits."""
    for split in ("val", "test"):
        found = evaluate(run, split=split, output=tmp_path / split, map_images=0)
        before = metrics(run / split)
        # The bounds of sets and abstention are scores of validation images, which another CPU may round to either side.
        same_numbers(found.metrics, before, 1e-4, at_bounds=0.1 if split == "val" else 1e-4)
        assert found.metrics["weights_hash"] == load_checkpoint(run).weights_hash
        stored = Predictions.from_csv(run / split / "predictions.csv")
        assert found.predictions.paths == stored.paths
        assert found.predictions.probabilities == pytest.approx(stored.probabilities, abs=1e-5)


def test_another_point_is_chosen_on_the_validation_of_the_old_run(run: Path, tmp_path: Path) -> None:
    for subject in (run, run / "test" / "predictions.csv"):
        found = evaluate(subject, target_specificity=0.8, output=tmp_path / f"{subject.name}_", map_images=0)
        expected = PRINTED["target_specificity"]
        close(found.metrics["overall"], expected["overall"], 1e-4)
        assert found.predictions.threshold == pytest.approx(expected["threshold"], rel=1e-4)
        assert found.predictions.predicted.tolist() == expected["predicted"]


def test_predict(run: Path) -> None:
    found, expected = predict(run.parent / "data" / "test", checkpoint=run), PRINTED["predict"]
    assert [Path(path).name for path in found.paths] == expected["paths"]
    assert found.probabilities == pytest.approx(np.array(expected["probabilities"]), abs=1e-5)
    assert found.predicted.tolist() == expected["predicted"] and found.threshold == expected["threshold"]
    for name in ("set", "answer"):
        assert list(found.columns[name]) == expected["columns"][name]
    scores = [float(cell) for cell in expected["columns"]["unfamiliarity"]]
    assert [float(cell) for cell in found.columns["ood_score"]] == pytest.approx(scores, rel=1e-4)


def test_the_report_of_a_table_is_made_again(run: Path, tmp_path: Path) -> None:
    """With the metrics.json beside it every number is the old one; the new table holds the raw logits."""
    for split in ("val", "test"):
        file, before = run / split / "predictions.csv", metrics(run / split)
        found = evaluate(file, output=tmp_path / split)
        same_numbers(found.metrics, before)
        about = found.metrics.report
        assert (about.run, about.created) == ("run", None) and about.rebuilt is not None
        old, new = Predictions.from_csv(file), Predictions.from_csv(tmp_path / split / "predictions.csv")
        assert new.probabilities == pytest.approx(old.probabilities, abs=1e-12)
        scale = before["report"]["judgement"]["calibration"]["scale"][0]
        assert new.logits * scale == pytest.approx(old.logits, rel=1e-6, abs=1e-6)
    again = evaluate(tmp_path / "test" / "predictions.csv", output=tmp_path / "again")
    same_numbers(again.metrics, before, 1e-6)
    shutil.copy(run / "test" / "predictions.csv", tmp_path / "p.csv")  # alone, it keeps its probabilities
    found = evaluate(tmp_path / "p.csv", resamples=20)
    for name in ("auroc", "log_loss", "brier"):  # which no threshold changes
        assert found.metrics["overall"][name]["value"] == pytest.approx(before["overall"][name]["value"], abs=1e-12)


def test_compare(run: Path) -> None:
    found = compare(run, resamples=20)
    in_brackets = re.sub(r"\((\S+) to (\S+)\)", r"[\1, \2]", found.verdict)  # as 0.1.0 wrote an interval
    assert in_brackets == PRINTED["compare"]["verdict"]
    expected = PRINTED["compare"]["models"]
    close({name: model["overall"] for name, model in found.content["models"].items()}, expected)


def test_explain(run: Path, tmp_path: Path) -> None:
    image = next((run.parent / "data" / "test" / "ill").iterdir())
    found = explain(image, checkpoint=run, output=tmp_path / "maps")
    old = metrics(run / "test")["attention"]["methods"]
    assert {name: text.startswith(old[name]["verdict"]) for name, text in found.verdicts.items()} == dict.fromkeys(
        old, True
    )


def test_resume(run: Path) -> None:
    """Longer, with the policy chosen anew; the old evaluations stay, and are not taken for those of the new weights."""
    result = train(resume=run, epochs=6, data=run.parent / "data")
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 6
    saved = load_checkpoint(run)
    assert saved.policy is not None and saved.policy.weights_hash == saved.weights_hash
    assert result.test.metrics["weights_hash"] == saved.weights_hash
    assert (result.test.folder.name, "weights_hash" in metrics(run / "test")) == ("test-2", False)


@pytest.mark.parametrize("balance", ["loss", "sampler"])
def test_a_balanced_run_is_not_resumed(run: Path, balance: str) -> None:
    """The loss of 0.1.0 had no shift by the prevalence: its weights would go on towards other logits."""
    before = torch.load(run / "last.pt", weights_only=True)
    before["config"]["train"]["balance"] = balance
    torch.save(before, run / "last.pt")
    content = (run / "last.pt").read_bytes()
    with pytest.raises(CheckpointError, match=f"vitmed 0.1.0 began this run with --balance {balance}") as error:
        train(resume=run, epochs=6, data=run.parent / "data")
    assert error.value.fix == f"start a new run: vitmed train --config {run / 'config.yaml'}"
    assert error.value.exit_code == 4
    assert (run / "last.pt").read_bytes() == content


def test_the_command_line_reports_an_old_name_in_a_line(run: Path, vitmed: Callable[..., Answer]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        answer = vitmed("predict", run.parent / "data" / "test", "--checkpoint", run)
    assert answer.code == 0 and "FutureWarning" not in answer.err
    assert answer.err.count("note: the name 'judgement' of vitmed 0.1.0 is read as 'policy'") == 1


def test_old_names_are_reported_once(run: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            load_checkpoint(run)
            Predictions.from_csv(run / "test" / "predictions.csv")
    told = [str(one.message) for one in caught if one.category is OldNameWarning]
    assert len(set(told)) == len(told)
    assert any("'judgement'" in text and "'policy'" in text for text in told)
    assert any("'unfamiliarity'" in text and "'ood_score'" in text for text in told)


@pytest.mark.filterwarnings("ignore::vitmed.core.upgrade.OldNameWarning")
def test_metrics_json_has_the_names_of_today() -> None:
    before = metrics(OLD / "run" / "test")
    with pytest.warns(OldNameWarning, match="familiarity"):
        found = Results.read(before)
    old, today = before["familiarity"], found.out_of_distribution
    assert today is not None and today.n_above == old["n_unfamiliar"]
    close(today.error_rate_below, old["error_rate_familiar"])
    close(today.error_rate_above, old["error_rate_unfamiliar"])
    policy, stored = found.report.policy, before["report"]["judgement"]
    assert (
        policy is not None
        and policy["prediction_sets"] == stored["sets"]
        and policy["ood_score"] == stored["familiarity"]
    )
    assert found.report.facts["Images"].startswith("test of data: 24 evaluated") and found.weights_hash is None
