"""A model of several findings, from a table of labels to every command that takes it."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import BARE, TINY_SETS, interrupt_at
from label_sets import FINDINGS
from predicted import assert_agree
from served import serving
from sklearn.metrics import average_precision_score, roc_auc_score

import vitmed
from vitmed.core.base_models import UNKNOWN
from vitmed.core.errors import Interrupted, UsageError
from vitmed.core.messages import listening
from vitmed.data.splits import make_splits
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.kinds.findings import FindingPredictions


def test_no_patient_is_in_two_splits_and_the_labels_are_those_of_the_table(findings: vitmed.TrainResult) -> None:
    saved = load_checkpoint(findings.folder)
    root = saved.splits.root
    with (root / "labels.csv").open() as stream:
        table = {row["path"]: row for row in csv.DictReader(stream)}
    assert saved.classes == FINDINGS and saved.splits.target.kind == "findings"
    assert not saved.splits.shared()
    known = {path for path, row in table.items() if any(row[name] for name in FINDINGS)}
    assert {sample.path for part in saved.splits.samples.values() for sample in part} == known and len(known) > 100
    for samples in saved.splits.samples.values():
        for sample in samples:
            cells = [table[sample.path][name] for name in FINDINGS]
            assert [UNKNOWN if cell == "" else int(cell) for cell in cells] == list(sample.targets)
    place = {"root": str(root), "labels": str(root / "labels.csv")}  # the checkpoint has them relative to the run
    again = make_splits(saved.config.data.model_copy(update=place))
    assert again.samples == saved.splits.samples and again.strata == saved.splits.strata


def test_the_network_learns_and_its_numbers_are_those_of_scikit_learn(findings: vitmed.TrainResult) -> None:
    predictions, metrics = findings.test.predictions, findings.test.metrics
    assert isinstance(predictions, FindingPredictions) and predictions.labels is not None
    areas = []
    for f, name in enumerate(FINDINGS):
        known = predictions.labels[:, f] != UNKNOWN
        truth, scores = predictions.labels[known, f], predictions.probabilities[known, f]
        own = metrics.per_class[name]
        assert own.auroc.value == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
        assert own.average_precision.value == pytest.approx(average_precision_score(truth, scores), abs=1e-12)
        areas.append(own.auroc.value)
    assert areas[0] is not None and areas[0] > 0.9
    assert metrics.overall["subset_accuracy"].low is not None


def test_each_finding_has_the_report_of_two_classes(findings: vitmed.TrainResult) -> None:
    folder = findings.test.folder
    whole = json.loads((folder / "metrics.json").read_text())
    assert whole["target"]["kind"] == "findings" and (folder / "report.html").is_file()
    assert list(whole["finding_reports"]) == ["blue"]  # the other two are of too few patients of the test
    for name, page in whole["finding_reports"].items():
        own = json.loads((folder / page).with_name("metrics.json").read_text())
        assert own["classes"] == [f"no {name}", name] and own["positive_class"] == name
        assert own["per_class"][name]["auroc"] == whole["per_class"][name]["auroc"]
        assert own["operating_points"] and own["calibration"] and own["decision_curve"]
        assert page in (folder / "report.html").read_text()


def test_predictions_read_back_to_the_bit_and_the_report_is_made_again(
    findings: vitmed.TrainResult, tmp_path: Path, no_figures: None
) -> None:
    again = vitmed.evaluate(findings.test.folder / "predictions.csv", output=tmp_path / "again")
    first, second = findings.test.predictions, again.predictions
    assert isinstance(second, FindingPredictions) and second.thresholds == first.thresholds
    for name in ("labels", "logits", "probabilities", "predicted"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
    assert again.metrics.overall == findings.test.metrics.overall
    text = (findings.test.folder / "predictions.csv").read_text()
    assert (tmp_path / "again" / "predictions.csv").read_text() == text


def test_a_finished_run_predicts_as_it_evaluated(findings: vitmed.TrainResult) -> None:
    root, tested = load_checkpoint(findings.folder).splits.root, findings.test.predictions
    found = vitmed.predict([root / path for path in tested.paths], checkpoint=findings.folder, precision="fp32")
    assert isinstance(found, FindingPredictions)
    assert np.array_equal(found.logits, tested.logits) and np.array_equal(found.predicted, tested.predicted)


def test_the_answers_name_findings(findings: vitmed.TrainResult) -> None:
    from vitmed.inference.load import Answer, predictions_json

    predictions = replace(findings.test.predictions, thresholds=(0.0, 0.0, 1.0))  # two findings of every image
    row = int(np.flatnonzero(predictions.predicted.sum(axis=1) == 2)[0])
    called = {name for name, one in zip(FINDINGS, predictions.predicted[row], strict=True) if one}
    cells = Answer.of(predictions, row).cells(3)
    assert {part.rsplit(" ", 1)[0] for part in cells[0].split(", ")} == called
    image = predictions_json(predictions, 3)["images"][row]
    assert set(image["prediction"]) == called
    assert [one["finding"] for one in image["findings"]] == list(FINDINGS)


@pytest.mark.slow  # as that of classes, which runs always
def test_a_resumed_run_goes_on_with_the_same_weights(findings: vitmed.TrainResult, tmp_path: Path) -> None:
    root = load_checkpoint(findings.folder).splits.root
    settings = BARE | {"batch_size": 32, "labels": root / "labels.csv", "sets": TINY_SETS, "output": tmp_path}
    whole = vitmed.train(root, name="whole", **settings)
    with pytest.raises(Interrupted), listening(interrupt_at(2)):
        vitmed.train(root, name="part", **settings)
    rest = vitmed.train(resume=tmp_path / "part")
    first, second = (load_checkpoint(one.folder).weights for one in (whole, rest))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_stress_judges_the_mean_over_findings(findings: vitmed.TrainResult, tmp_path: Path) -> None:
    flags = {"corruptions": ["gaussian_noise"], "output": tmp_path / "stress"}
    found = vitmed.stress(findings.folder, **flags).content
    overall = findings.test.metrics.overall
    assert found.number == "auroc" and found.clean["auroc"] == overall["auroc"] and found.guess == 0.5
    cost = found.corruptions["gaussian_noise"]
    after = [one["auroc"].value for one in cost.strengths]
    assert cost.lost.value == pytest.approx(overall["auroc"].value - np.mean(after), abs=1e-9)
    assert "macro AUROC" in found.verdict and (tmp_path / "stress" / "stress.png").is_file()


def test_the_parts_of_a_table_are_that_of_one_process(findings: vitmed.TrainResult, tmp_path: Path) -> None:
    root, tested = load_checkpoint(findings.folder).splits.root, findings.test.predictions
    images, usual = [root / path for path in tested.paths], {"checkpoint": findings.folder, "precision": "fp32"}
    whole = vitmed.predict(images, **usual)
    for number in (2, 1):
        vitmed.predict_shard(images, shard=f"{number}/2", output=tmp_path / "parts", **usual)
    vitmed.merge(tmp_path / "parts", output=tmp_path / "all.csv")
    assert_agree((tmp_path / "all.csv").read_text(), whole.to_csv(errors=True))


def test_the_baseline_of_findings_has_the_numbers_of_scikit_learn(findings: vitmed.TrainResult) -> None:
    predictions = FindingPredictions.from_csv(findings.test.folder / "baseline_colour_and_size.csv")
    assert predictions.labels is not None
    (name, page), *others = findings.test.metrics.finding_reports.items()
    known = predictions.labels[:, FINDINGS.index(name)] != UNKNOWN
    of_name = predictions.probabilities[known, FINDINGS.index(name)]
    theirs = roc_auc_score(predictions.labels[known, FINDINGS.index(name)], of_name)
    part = json.loads((findings.test.folder / page).with_name("metrics.json").read_text())
    baseline = part["baselines"]["colour_and_size"]
    assert not others and theirs > 0.9  # a colour is the finding
    assert baseline["overall"]["auroc"]["value"] == pytest.approx(theirs, abs=1e-12)
    own = findings.test.metrics.per_class[name]["auroc"].value
    assert baseline["difference"]["auroc"]["value"] == pytest.approx(own - theirs, abs=1e-12)


def test_the_baseline_is_compared_as_a_whole(findings: vitmed.TrainResult) -> None:
    baseline = findings.test.metrics.baselines["colour_and_size"]
    gap = findings.test.metrics.overall["auroc"].value - baseline.overall["auroc"].value
    predictions = FindingPredictions.from_csv(findings.test.folder / "baseline_colour_and_size.csv")
    areas = []
    for truth, scores in zip(predictions.labels.T, predictions.probabilities.T, strict=True):
        known = truth != UNKNOWN
        if len({*truth[known]}) == 2:
            areas.append(roc_auc_score(truth[known], scores[known]))
    assert len(areas) > 1 and baseline.overall["auroc"].value == pytest.approx(sum(areas) / len(areas), abs=1e-12)
    assert baseline.decides == "auroc" and baseline.difference["auroc"].value == pytest.approx(gap, abs=1e-12)
    page = (findings.test.folder / "report.html").read_text()
    assert "too few to show that the model is better" in " ".join(page.split())


def test_a_map_explains_a_finding_and_is_tested(findings: vitmed.TrainResult, tmp_path: Path) -> None:
    root, tested = load_checkpoint(findings.folder).splits.root, findings.test.predictions
    found, page = findings.test.metrics.attention, (findings.test.folder / "report.html").read_text()
    assert found is not None and found.reason is None and len(found.methods) == 3
    section = page.partition('id="attention"')[2].partition("</section>")[0]
    assert "the probability of the finding that is likeliest beside its threshold" in section
    usual = {"checkpoint": findings.folder, "methods": ["grad_cam"]}
    images = [root / path for path in tested.paths[:3]]
    given = json.loads((vitmed.explain(images, output=tmp_path / "a", **usual).folder / "explain.json").read_text())
    assert len(given["images"]) == 3
    for row, one in enumerate(given["images"]):
        called = {name for name, there in zip(FINDINGS, tested.predicted[row], strict=True) if there}
        assert set(one["prediction"]) == called and (not called or one["explained"] in called)
    rare = vitmed.explain(images[:1], output=tmp_path / "b", target="rare", **usual)
    assert rare.targets.tolist() == [FINDINGS.index("rare")] and (rare.folder / "row-1.png").is_file()
    with pytest.raises(UsageError, match="unknown finding 'violet'"):
        vitmed.explain(images, output=tmp_path / "c", target="violet", **usual)


@pytest.mark.parametrize(
    ("sets", "match"),
    [
        ("augment.mixup=0.2", r"--mixup \(augment.mixup\): changes nothing for labels of the kind findings"),
        ("train.balance=sampler", "balance sampler: not for findings"),
        ("train.monitor=mae", "monitor mae: not for findings"),
    ],
)
def test_a_setting_of_another_kind_is_refused(
    findings: vitmed.TrainResult, sets: str, match: str, tmp_path: Path
) -> None:
    root = load_checkpoint(findings.folder).splits.root
    with pytest.raises(UsageError, match=match):
        vitmed.train(root, labels=root / "labels.csv", sets=[sets], output=tmp_path)


def test_the_server_answers_as_predict_does(findings: vitmed.TrainResult, tmp_path: Path) -> None:
    images = sorted((findings.folder.parents[1] / "data" / "images").glob("*.png"))[:12]
    own = vitmed.predict(images, checkpoint=findings.folder, precision="fp32")
    assert isinstance(own, FindingPredictions)
    with serving(findings.folder, scores=tmp_path / "scores.csv") as served, served.client() as client:
        found = served.post(*images, params={"pictures": "true"}).json()["images"]
        assert client.get("/v1/model").json()["kind"] == "findings"
        numbers = client.get("/metrics").text
    assert len(found) == len(own)
    for row, answer in enumerate(found):
        called = [name for name, there in zip(own.classes, own.predicted[row], strict=True) if there]
        assert answer["prediction"] == called and answer["probability"] is None
        np.testing.assert_allclose(list(answer["probabilities"].values()), own.probabilities[row], atol=1e-5)
        assert " | ".join(answer["prediction_set"]) == own.columns["set"][row]
    amber = own.predicted[:, own.classes.index("amber")]
    answered = np.array([cell == "yes" for cell in own.columns["answer"]])
    if count := int((amber & answered).sum()):
        assert f'vitmed_answers_total{{decision="amber"}} {count}.0' in numbers
    with (tmp_path / "scores.csv").open(newline="") as stream:
        logged = list(csv.DictReader(stream))
    chances = [[float(row[f"prob_{name}"]) for name in own.classes] for row in logged]
    np.testing.assert_allclose(sorted(chances), sorted(own.probabilities.tolist()), atol=1e-5)
