"""`vitmed evaluate`: the right images, the right classes, no flattered numbers."""

from __future__ import annotations

import csv
import datetime
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import COLOURS, Trained, draw_classes, draw_splits, recording
from reports import write_report
from scipy.special import softmax
from sklearn.metrics import recall_score, roc_auc_score

from vitmed import evaluate, monitor, pretrain, train
from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import DataError, GateError, UsageError
from vitmed.decisions.policy import choose_policy
from vitmed.metrics.predictions import Predictions
from vitmed.report.headline import check_gates
from vitmed.report.participant_flow import evaluated_images
from vitmed.report.results import Flow

pytestmark = pytest.mark.usefixtures("no_figures")
CLASSES = tuple(COLOURS)


def judge(trained: Trained, tmp_path: Path, **options: Any) -> Any:
    options = {"resamples": 50, "map_images": 0} | options
    return evaluate(trained.best, output=tmp_path / "report", **options)


def test_training_ends_with_the_evaluation_of_its_best_checkpoint(trained: Trained, tmp_path: Path) -> None:
    """The command alone, later, on the run folder, which stands for its best.pt, gives the same bytes."""
    again = evaluate(trained.folder, output=tmp_path / "report", resamples=50, map_images=0)
    assert (again.folder / "predictions.csv").read_bytes() == (trained.folder / "test" / "predictions.csv").read_bytes()
    assert sorted(p.name for p in (trained.folder / "test").iterdir() if p.suffix not in (".png", ".svg")) == [
        "baseline_colour_and_size.csv", "label_issues.csv", "methods.md", "metrics.json", "predictions.csv",
        "report.html",
    ]  # fmt: skip
    for one, other in (
        (again.metrics, trained.result.test.metrics),
        *[[e.metrics["baselines"]["colour_and_size"] for e in (again, trained.result.test)]],
    ):
        assert one["overall"]["auroc"]["value"] == other["overall"]["auroc"]["value"]


def test_the_membership_is_part_of_the_result(trained: Trained) -> None:
    import hashlib

    with (trained.folder / "splits.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["path", "sha256", "class", "group", "split"] and len(rows) == 66
    for row in rows:
        data = (trained.data / row["path"]).read_bytes()
        assert row["sha256"] == hashlib.sha256(data).hexdigest()
        assert row["path"].split("/")[:2] == [row["split"], row["class"]]


def test_columns_of_predictions_csv(trained: Trained) -> None:
    with (trained.folder / "test" / "predictions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == [
        "path", "label", "group", "prediction", "confidence", "prob_amber", "prob_blue", "prob_green", "logit_amber",
        "logit_blue", "logit_green", "ood_score", "set", "answer",
    ]  # fmt: skip
    for row in rows:
        logits = np.array([float(row[f"logit_{name}"]) for name in CLASSES])
        probabilities = np.exp(logits) / np.exp(logits).sum()
        assert [float(row[f"prob_{name}"]) for name in CLASSES] == pytest.approx(probabilities.tolist())
        assert row["prediction"] == CLASSES[int(logits.argmax())]
        assert float(row["confidence"]) == pytest.approx(probabilities.max())
        assert row["path"] == f"test/{row['label']}/{Path(row['path']).name}" and row["group"] == ""


def test_the_headline_numbers_by_hand(trained: Trained) -> None:
    said = Predictions.from_csv(trained.folder / "test" / "predictions.csv")
    assert said.labels is not None
    overall = json.loads((trained.folder / "test" / "metrics.json").read_text())["overall"]
    right = said.predicted == said.labels
    assert overall["accuracy"]["value"] == pytest.approx(right.mean())
    assert overall["balanced_accuracy"]["value"] == pytest.approx(
        np.mean([right[said.labels == k].mean() for k in range(3)])
    )
    truth = said.probabilities[np.arange(len(said)), said.labels]
    assert overall["log_loss"]["value"] == pytest.approx(-np.log(truth).mean())


def test_a_few_validation_images_leave_the_probabilities_as_they_are(trained: Trained) -> None:
    found = trained.result.test.metrics["calibration"]
    assert found["method"] == "none" and "12 validation images are too few" in found["note"]


def test_val_and_train_are_told_to_be_optimistic(trained: Trained, tmp_path: Path) -> None:
    for split, count in (("val", 12), ("train", 36)):
        ui = recording()
        found = judge(trained, tmp_path / split, split=split)
        assert len(found.predictions) == count
        assert any("optimistic" in text and split in text for text in ui.warned)
        assert any("optimistic" in text for text in found.metrics["notes"])
    with pytest.raises(UsageError, match="train, val, test"):
        judge(trained, tmp_path, split="tests")


def test_a_folder_that_moved_is_found_by_data(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.data, tmp_path / "moved")
    ui = recording()
    found = judge(trained, tmp_path, data=tmp_path / "moved")
    assert found.predictions.logits.tobytes() == trained.result.test.predictions.logits.tobytes()
    assert any("using the run's own test split" in text for text in ui.said)
    shutil.copytree(trained.folder, tmp_path / "far" / "away" / "run")
    lost = tmp_path / "far" / "away" / "run" / "best.pt"
    with pytest.raises(DataError, match="--data"):
        evaluate(lost)
    assert len(evaluate(lost, data=tmp_path / "moved", resamples=20, map_images=0).predictions) == 18


def test_classes_are_matched_by_name(trained: Trained, tmp_path: Path) -> None:
    """Another folder, with the classes in another order of making, one of them missing, other files."""
    draw_classes(tmp_path / "other", 5, ("green", "amber"), seed=77)
    ui = recording()
    found = judge(trained, tmp_path, data=tmp_path / "other")
    assert found.predictions.classes == CLASSES
    assert [path.split("/")[0] for path in found.predictions.paths] == ["amber"] * 5 + ["green"] * 5
    assert found.predictions.labels.tolist() == [0] * 5 + [2] * 5
    assert found.metrics["overall"]["accuracy"]["value"] >= 0.8  # the labels fit the images
    assert sum("no image of class 'blue'" in text for text in ui.warned) == 1
    first = found.metrics["notes"][0]  # these images have no splits, in which a patient could be twice
    assert first.startswith("Patients are unknown. One may also be in the training images") and "split" not in first


def test_a_report_says_which_images_it_judged(trained: Trained, tmp_path: Path) -> None:
    flat, parts = draw_classes(tmp_path / "flat", 3, seed=5), draw_splits(tmp_path / "parts", 2, 2, 0, seed=6)
    for data, split, title in (
        (trained.data, "val", "data, val split"),
        (flat, "test", "flat, all images"),
        (parts, "val", "parts, val split"),
    ):
        report = judge(trained, tmp_path / title, data=data, split=split).metrics["report"]
        assert report["title"] == title
    assert report["facts"]["Images"].startswith("val of parts: ")
    with pytest.raises(DataError, match="has train, val but no test folder") as error:
        judge(trained, tmp_path, data=parts)
    assert "--split" in error.value.fix


def test_a_class_that_the_model_does_not_know(trained: Trained, tmp_path: Path) -> None:
    draw_classes(tmp_path / "other", 3, ("amber", "violet", "white"))
    with pytest.raises(DataError, match="does not know class violet, white") as error:
        judge(trained, tmp_path, data=tmp_path / "other")
    assert "amber, blue, green" in str(error.value) and not (tmp_path / "report").exists()


def test_images_that_the_model_was_made_with_are_refused(trained: Trained, tmp_path: Path) -> None:
    other = draw_classes(tmp_path / "other", 3, CLASSES, seed=50)
    for split in ("train", "val"):
        shutil.copy(trained.data / split / "blue" / "blue_1.png", other / "blue" / "renamed.png")
        with pytest.raises(DataError, match=r"1 of 10 images was used to make this model.*renamed\.png"):
            judge(trained, tmp_path, data=other)
    ui = recording()
    found = judge(trained, tmp_path, data=other, allow_leakage=True)
    assert len(found.predictions) == 10 and any("Leakage: 1 of 10" in text for text in ui.warned)
    assert any("Leakage" in text for text in found.metrics["notes"])
    grown = shutil.copytree(trained.data, tmp_path / "grown")  # the test of the run, and one image more
    shutil.copy(trained.data / "train" / "blue" / "blue_1.png", grown / "test" / "blue" / "more.png")
    own = judge(trained, tmp_path / "own", data=grown).predictions
    every = judge(trained, tmp_path / "every", data=grown, allow_leakage=True).predictions
    assert len(every) == len(own) + 1


def test_a_report_is_never_overwritten(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.data.parent, tmp_path / "moved")
    best = tmp_path / "moved" / "runs" / "tiny" / "best.pt"
    folders = [evaluate(best, resamples=20, map_images=0).folder.name for _ in range(2)]
    assert folders == ["test-2", "test-3"]
    (best.parent / "test-9" / "cats").mkdir(parents=True)  # not a folder of an evaluation
    ui = recording()
    evaluate(best, resamples=20, map_images=0, report=False)  # the same weights and policy: nothing to choose from
    assert not any("already evaluated" in text for text in ui.warned)
    other = evaluate(best, resamples=20, map_images=0, report=False, balanced=True)
    text = "already evaluated with other weights or another decision policy: test, test-2, test-3, test-4."
    assert any(text in note for note in other.metrics["notes"]) and any(text in said for said in ui.warned)
    again = evaluate(best, resamples=0, map_images=0, report=False, calibration="none")  # as "auto" chose
    assert [note.partition("policy: ")[2][:7] for note in again.metrics["notes"] if "already" in note] == ["test-5."]
    with pytest.raises(UsageError, match="not empty"):
        evaluate(best, output=best.parent / "test")


def test_the_report_comes_again_from_the_csv_alone(trained: Trained, tmp_path: Path) -> None:
    shutil.copy(trained.folder / "test" / "predictions.csv", tmp_path / "p.csv")
    found = evaluate(tmp_path / "p.csv", resamples=2000)
    assert found.metrics["overall"] == trained.result.test.metrics["overall"]
    assert (found.folder / "report.html").is_file()


def test_gates(trained: Trained, tmp_path: Path) -> None:
    judge(trained, tmp_path / "a", fail_under=["auroc=0.5", "log_loss=50"])
    with pytest.raises(GateError, match=r"accuracy .*, asked for 1.5"):  # greater is better
        check_gates({"accuracy": 1.5}, trained.result.test.metrics, None)
    with pytest.raises(GateError, match=r"log_loss .*, asked for 0") as error:
        judge(trained, tmp_path / "b", fail_under=["log_loss=0.0", "auroc=0.1"])
    assert error.value.exit_code == 6 and "auroc" not in error.value.problem
    assert (tmp_path / "b" / "report" / "report.html").is_file()  # the report is there to look at
    for text, told in (
        ("aurok=0.9", "did you mean 'auroc'"),
        ("acc=0.9", "did you mean 'accuracy'"),
        ("f1=0.9", "did you mean 'f1_m"),
        ("AUC=0.9", "did you mean 'auroc'"),
        ("auroc=high", "metric=value"),
        ("auroc=nan", "metric=value"),
        ("auroc=90", "not auroc=90"),
        ("auroc=1.5", "metric=value"),
        ("auroc", "metric=value"),
    ):
        with pytest.raises(UsageError, match=told):
            judge(trained, tmp_path / "d", fail_under=[text])
    with pytest.raises(UsageError, match="unknown metric of classes 'mae'"):
        judge(trained, tmp_path / "d", fail_under=["mae=3"])
    with pytest.raises(UsageError, match="unknown metric of classes 'mae'"):  # before the training
        train(trained.data, output=tmp_path / "runs", fail_under=["mae=3"])
    assert not (tmp_path / "runs").exists()


def test_a_report_made_again_says_what_the_first_said(trained: Trained, tmp_path: Path) -> None:
    """From predictions.csv: with the metrics.json beside it, without, and with one that is none."""
    for name in ("predictions.csv", "metrics.json", "baseline_colour_and_size.csv"):
        shutil.copy(trained.folder / "test" / name, tmp_path / name)
    before = json.loads((tmp_path / "metrics.json").read_text())
    found = evaluate(tmp_path / "predictions.csv").metrics
    again = found.to_dict()
    assert again["report"].pop("rebuilt") >= before["report"]["created"] and "rebuilt" in found.identity
    assert again == before and before["report"]["title"] == "data, test split" and "Seed" in before["report"]["facts"]
    assert any("Patients are unknown" in note for note in again["report"]["notes"])
    for other in ("{}", json.dumps(before | {"positive_class": "violet"})):
        (tmp_path / "metrics.json").write_text(other)
        with pytest.raises(DataError, match=r"metrics\.json: not the metrics\.json of a report"):
            evaluate(tmp_path / "predictions.csv")
    (tmp_path / "metrics.json").unlink()
    alone = evaluate(tmp_path / "predictions.csv", resamples=20).metrics
    assert any("table alone" in note for note in alone["notes"])


def test_two_reports_of_one_title_are_told_apart(trained: Trained, tmp_path: Path) -> None:
    """By the run, the date and the weights: in metrics.json, on the page, in the terminal and in the model card."""
    content = json.loads((trained.folder / "test" / "metrics.json").read_text())
    run, created, weights = content["report"]["run"], content["report"]["created"], content["weights_hash"]
    assert run == trained.folder.name and datetime.datetime.fromisoformat(created).utcoffset() == datetime.timedelta(0)
    line = f"run {run}, {created[:10]} {created[11:16]} UTC, weights {weights[:12]}"
    page = (trained.folder / "test" / "report.html").read_text()
    assert line in page and f"<title>data, test split ({run})</title>" in page
    assert line.replace("_", r"\_") in (trained.folder / "model_card.md").read_text()
    assert line in trained.ui.said and f"<td>{weights}</td>" in page
    assert str(tmp_path) not in page
    shutil.copy(trained.best, tmp_path / "best.pt")  # a checkpoint that was sent has no run folder
    sent = evaluate(tmp_path / "best.pt", data=trained.data, allow_leakage=True).metrics
    assert sent.report.run == "" and sent.identity.endswith(f"weights {weights[:12]}")


def test_a_test_image_that_became_unreadable(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.data, tmp_path / "data")
    victim = tmp_path / "data" / "test" / "green" / "green_2.png"
    victim.write_bytes(b"")
    with pytest.raises(DataError, match=r"green_2\.png"):
        judge(trained, tmp_path, data=tmp_path / "data")
    assert not (tmp_path / "report").exists()


def test_the_command_line(trained: Trained, tmp_path: Path, vitmed: Callable[..., Any]) -> None:
    answer = vitmed("evaluate", trained.best, "-o", tmp_path / "r", "--json", "--fail-under", "auroc=0.5")
    assert answer.code == 0, answer.err
    given = json.loads(answer.out)
    assert given["folder"] == str(tmp_path / "r") and given["overall"]["auroc"]["value"] is not None
    answer = vitmed("evaluate", trained.best, "-o", tmp_path / "s", "--fail-under", "log_loss=0", "--json")
    assert answer.code == 6 and "gate is not met" in answer.err and "Traceback" not in answer.err
    assert json.loads(answer.out)["overall"]


def test_other_images_of_the_same_names_are_not_the_runs_own(trained: Trained, tmp_path: Path) -> None:
    """Neither the split of the run nor its baselines, which are stored by name."""
    data = draw_splits(tmp_path / "data", classes=CLASSES, seed=9)
    found, own = judge(trained, tmp_path, data=data), trained.result.test
    assert found.predictions.paths == own.predictions.paths
    assert found.metrics.external is not None and own.metrics.external is None
    assert not found.metrics.baselines and own.metrics.baselines
    draw_splits(tmp_path / "more", test=9, classes=CLASSES, seed=5)  # the names of the run's files, and more
    paths = judge(trained, tmp_path / "b", data=tmp_path / "more").predictions.paths
    assert len(paths) == 27 and all(path.startswith("test/") for path in paths)


def test_a_table_alone_warns_first_of_its_rare_class(tmp_path: Path, vitmed: Callable[..., Any]) -> None:
    """The page shows the first warning and folds the others. And only a file that is there is announced."""
    labels = (np.arange(60) < 3).astype(np.int64)
    logits = np.stack([0 * labels, 4 * labels - 2 + np.arange(60) / 100], axis=1).astype(np.float32)
    table = tmp_path / "table.csv"
    names = tuple(f"{i}.png" for i in range(60))
    table.write_text(Predictions(("no", "yes"), names, None, labels, logits).to_csv())
    answer = vitmed("evaluate", table, "--no-report", "-o", tmp_path / "report")
    papers = vitmed("evaluate", table, "--format", "html,md,paper", "-o", tmp_path / "all")
    assert f"report: {tmp_path / 'all' / 'report.html'}, report.md, paper\n" in papers.err
    refused = vitmed("evaluate", table, "--no-report", "--format", "paper", "-o", tmp_path / "paper")
    assert refused.code == 2 and "--format: --no-report writes no page" in refused.err
    refused = vitmed("train", tmp_path, "--no-report", "--show-names")
    assert refused.code == 2 and "--show-names: --no-report writes no page" in refused.err
    notes = json.loads((tmp_path / "report" / "metrics.json").read_text())["notes"]
    assert answer.code == 0 and notes[0].startswith("Class 'yes' has only 3 images")
    assert notes[-1] == "Made from a table alone: the split and the model are unknown."
    assert not (tmp_path / "report" / "methods.md").exists() and "methods.md" not in answer.err + answer.out
    assert vitmed("evaluate", table, "-o", tmp_path / "page", "--verbose").err.count("methods.md") == 1


def test_one_class_of_three_against_the_rest_has_its_own_threshold(tmp_path: Path) -> None:
    """AUROC as scikit-learn computes it; the threshold is chosen on validation, readers are compared, and what the run
    knows of its images is kept: also what one of its groups is called."""
    known: dict[str, Any] = dict.fromkeys(("unreadable", "exact_duplicates", "near_duplicates"), 0)
    known |= {
        "found": 540,
        "duplicates_across_splits": 0,
        "used": 540,
        "left_out": 0,
        "why_left_out": "",
        "patients": 270,
    }
    how = "as originals of augmented copies, by their pixels"
    flow = Flow(**known, level="patient", how=how, patients_in_two=0, copies_in_two=0, splits={})
    classes, rng, run = ("benign", "malignant", "normal"), np.random.default_rng(0), tmp_path / "run"
    config, policy = EvaluateConfig(resamples=0, report=False), None
    for split, size in (("val", 300), ("test", 240)):
        labels = np.arange(size) % 3
        logits = (np.eye(3)[labels] + rng.normal(size=(size, 3))).astype(np.float32)
        paths, reader = tuple(f"{split}-{i}.png" for i in range(size)), [classes[k] for k in labels]
        reader[:3] = ["normal", "benign", "malignant"]  # wrong three times, but once not about malignant
        groups = tuple(f"{split}-{i // 2}" for i in range(size))
        drawn = Predictions(classes, paths, groups, labels, logits, columns={"reader": tuple(reader)})
        policy = policy or choose_policy(drawn, config, None, "ab")  # on validation, the first
        of_split = flow.model_copy(update={"evaluated": evaluated_images(drawn, split)})
        about: dict[str, Any] = {"title": split, "weights_hash": "ab", "flow": of_split}
        write_report(run / split, policy.apply(drawn), config, policy=policy, **about)
    found = evaluate(run, positive="malignant", target_sensitivity=0.9, rater=["reader"], resamples=0)
    assert found.folder == run / "test" / "against-rest" and found.metrics["positive_class"] == "malignant"
    chance, truth = softmax(logits, axis=1)[:, 1], labels == 1
    assert found.metrics["overall"]["auroc"]["value"] == pytest.approx(roc_auc_score(truth, chance))
    points = found.metrics["operating_points"]
    point = points["points"][points["chosen"]]
    assert points["chosen"] == "target_sensitivity" and point["promised"]["sensitivity"]["value"] >= 0.9
    called = found.predictions.predicted == 1
    assert called.any() and chance[called].min() > chance[~called].max()  # a threshold of its probability
    assert point["reached"]["sensitivity"]["value"] == pytest.approx(recall_score(truth, called))
    assert point["reached"]["specificity"]["value"] == pytest.approx(recall_score(~truth, ~called))
    of_reader = {one["number"]: one["readers"]["reader"]["value"] for one in found.metrics["readers"]}
    assert of_reader == {"sensitivity": pytest.approx(79 / 80), "specificity": pytest.approx(159 / 160)}
    assert "malignant against the rest" in found.metrics["report"]["title"]
    assert found.metrics.unit == "original" and found.metrics["flow"]["evaluated"]["split"] == "test"
    assert [own["images"] for own in found.metrics["flow"]["evaluated"]["classes"].values()] == [160, 80]
    several = evaluate(run, positive="normal, malignant,normal", resamples=0).metrics
    chances = softmax(logits, axis=1)[:, 1:].sum(axis=1)
    assert several["overall"]["auroc"]["value"] == pytest.approx(roc_auc_score(labels > 0, chances))
    assert several["positive_class"] == "malignant or normal" and several["classes"][0] == "not (malignant or normal)"
    with pytest.raises(UsageError, match="expected each class once") as told:
        evaluate(run, positive="malignant,normal", ordinal=list(classes), resamples=0, output=tmp_path / "none")
    assert (
        told.value.fix
        == "leave it out: 'not (malignant or normal)' and 'malignant or normal' are two classes, which need no order"
    )
    table = shutil.copytree(run, tmp_path / "shorter") / "test" / "predictions.csv"
    shutil.copy(table, table.with_name("baseline_colour_and_size.csv"))
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    notes = evaluate(table, positive="malignant", resamples=0, report=False).metrics["notes"]
    assert "The table has 239 of the 240 rows that the report was made of." in notes
    assert any(note.startswith("baseline_colour_and_size.csv beside the table is left out") for note in notes)
    for wrong, why in (("maligant", "did you mean 'malignant'"), ("benign,malignant,normal", "no class is left")):
        with pytest.raises(UsageError, match=why):
            evaluate(run, positive=wrong, output=tmp_path / "none")
    rows = [
        f"{i}.png,{classes[k]},{','.join(map(repr, row))}"
        for i, (k, row) in enumerate(zip(labels, softmax(logits, 1).tolist(), strict=True))
    ]
    (tmp_path / "other.csv").write_text("\n".join(["path,label,prob_benign,prob_malignant,prob_normal", *rows]))
    (tmp_path / "people.csv").write_text("\n".join(["path,patient", *(f"{i}.png,p{i // 4}" for i in range(240))]))
    usual = {"labels": tmp_path / "people.csv", "resamples": 0, "report": False}
    foreign = evaluate(tmp_path / "other.csv", positive="malignant,normal", **usual)
    assert foreign.metrics["overall"]["auroc"]["value"] == pytest.approx(roc_auc_score(labels > 0, chances))
    assert foreign.metrics["n_groups"] == 60, "the table of labels names the patients"
    text = (tmp_path / "other.csv").read_text().splitlines()
    people = ["Patient,path", *(f"p{i // 4},{line}" for i, line in enumerate(text[1:]))]
    (tmp_path / "own.csv").write_text("\n".join([f"Patient,{text[0]}", *people[1:]]))
    assert evaluate(tmp_path / "own.csv", resamples=0, report=False, output=tmp_path / "own").metrics["n_groups"] == 60
    with pytest.raises(UsageError, match="a table alone shows no validation images"):
        evaluate(tmp_path / "other.csv", positive="malignant", youden=True, output=tmp_path / "none")
    with pytest.raises(UsageError, match=r"--data: --positive evaluates .*test.predictions.csv, without model") as told:
        evaluate(run, positive="malignant", data=tmp_path)
    assert told.value.fix == "leave it out; or evaluate without --positive, then the predictions.csv of that with it"
    made = evaluate(run / "val" / "predictions.csv", positive="malignant", resamples=0, report=False)  # as it says
    assert made.metrics["positive_class"] == "malignant" and made.metrics["n"] == 300
    with pytest.raises(UsageError, match="--positive malignant: one class against the rest is for three") as told:
        evaluate(found.folder / "predictions.csv", positive="malignant", output=tmp_path / "none")
    assert told.value.fix == "leave it out"


def test_a_table_names_the_patients_of_a_run_that_knows_none(trained: Trained, tmp_path: Path) -> None:
    """Those of its own test images; an image without one is a patient of its own, and the warning stays true."""
    paths = Predictions.from_csv(trained.folder / "test" / "predictions.csv").paths
    rows = [f"{path},{'' if i == len(paths) - 1 else f'p{i // 2}'}" for i, path in enumerate(paths)]
    (tmp_path / "people.csv").write_text("\n".join(["path,patient", *rows]))
    found = judge(trained, tmp_path, labels=tmp_path / "people.csv", report=False)
    assert found.metrics["n_groups"] == len({row.split(",")[1] or row for row in rows})
    assert found.predictions.groups[:3] == ("p0", "p0", "p1") and "patient" not in found.predictions.columns
    notes = found.metrics["notes"]
    assert any("The run knows no patients: one may be in two of its splits. Here they are" in note for note in notes)
    assert not any(note.startswith("Patients are unknown") for note in notes)


def test_options_that_would_change_nothing_are_refused(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"last\.pt: a model, not its predictions"):
        evaluate(trained.folder / "last.pt", positive="blue")
    shutil.copytree(trained.data / "test", tmp_path / "flat")
    with pytest.raises(UsageError, match=r"--split val: .*flat is not divided into splits"):
        evaluate(trained.best, data=tmp_path / "flat", split="val", output=tmp_path / "r")
    with pytest.raises(UsageError, match=r"--split val: .*test is an evaluation, itself the reference"):
        monitor(trained.folder / "test", trained.folder / "val" / "predictions.csv", split="val")
    with pytest.raises(UsageError, match="--resume continues in the run's own folder"):
        train(resume=trained.folder, output=tmp_path / "other")
    with pytest.raises(UsageError, match="--sites and --unlabelled exclude each other"):
        pretrain(trained.data, unlabelled=True, sites="hospital", output=tmp_path / "p")


def test_without_the_images_the_stored_predictions_are_named(trained: Trained, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained.folder, tmp_path / "elsewhere" / "run"))
    with pytest.raises(DataError) as error:
        evaluate(run)
    assert error.value.fix.endswith(f"vitmed evaluate {run / 'test' / 'predictions.csv'}")


def test_a_table_of_two_classes_of_another_program(tmp_path: Path) -> None:
    """Its positive class can be named; a gate of another kind of label ends before anything is written."""
    labels, chance = np.arange(60) % 2, np.random.default_rng(0).random(60).round(2)
    rows = [f"{i}.png,{'ab'[k]},{p},{1 - p:.2f}" for i, (k, p) in enumerate(zip(labels, chance, strict=True))]
    (tmp_path / "other.csv").write_text("\n".join(["path,label,prob_a,prob_b", *rows]))
    found = evaluate(tmp_path / "other.csv", positive="a", resamples=0, report=False).metrics
    assert found["positive_class"] == "a"
    assert found["per_class"]["a"]["sensitivity"]["value"] == recall_score(labels == 0, chance >= 0.5)
    with pytest.raises(UsageError, match="unknown metric of classes 'mae'"):
        evaluate(tmp_path / "other.csv", fail_under=["mae=3"], output=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    rows = [f"{i}.png,{'abc'[i % 3]},0.5,0.3,0.2" for i in range(60)]
    (tmp_path / "grades.csv").write_text("\n".join(["path,label,prob_a,prob_b,prob_c", *rows]))
    gates = {"fail_under": ["quadratic_kappa=-1"], "ordinal": list("abc"), "resamples": 0, "report": False}
    assert evaluate(tmp_path / "grades.csv", **gates).metrics["target"]["kind"] == "grades"
    turned = evaluate(tmp_path / "grades.csv", **(gates | {"ordinal": list("bac")})).metrics  # of columns in another
    assert turned["classes"] == list("bac") and turned["target"]["kind"] == "grades"
