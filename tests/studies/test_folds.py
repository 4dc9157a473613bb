"""Folds: every image evaluated once, by a model that never saw it nor its patient; also repeated, and in parallel."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from conftest import TINY, TINY_ARGS, TINY_SETS, Answer, Recorder, draw_classes, draw_nothing, draw_pairs, recording
from matplotlib.text import Text
from PIL import Image
from sklearn.metrics import roc_auc_score

from vitmed import compare, cross_validate, evaluate, train
from vitmed.core.config import Config
from vitmed.core.errors import CheckpointError, DataError, Interrupted, UsageError
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import RunFolder
from vitmed.data.folders import image_names
from vitmed.data.samples import Sample, Splits
from vitmed.data.splits import held_out, make_splits
from vitmed.decisions.evaluation_folder import Fold, Folds, fold_notes, read_evaluation
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.classes import evaluate_predictions, metric_values
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.report import participant_flow
from vitmed.report.methods_text import methods_text
from vitmed.report.results import Count, Results
from vitmed.report.templates import results_sentence
from vitmed.studies.cluster import HERE
from vitmed.studies.folds import CrossValidation, _images, _trained_on_test, by_name
from vitmed.studies.one_run import TrainResult
from vitmed.studies.study import Job
from vitmed.training.finetune import Finetune
from vitmed.training.plan.time import Clock
from vitmed.training.run import Run

RUN = Callable[..., Answer]
SETTINGS = TINY | {"epochs": 1, "folds": 3, "group_regex": r"(p\d+)_", "resamples": 20, "map_images": 0}


@pytest.fixture(scope="module", autouse=True)
def _small() -> None:
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine patients with two images of each class."""
    return draw_pairs(tmp_path_factory.mktemp("folds") / "data", 18)


def run(data: Path, output: Path, **options: object) -> Path:
    options = SETTINGS | options
    return train(data, output=output, name="all", sets=TINY_SETS, **options).folder  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(data, tmp_path_factory.mktemp("runs"))


POINT = {"target_sensitivity": 0.75, "prevalence": 0.01}


@pytest.fixture(scope="module")
def decided(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folds that were asked for an operating point."""
    return run(data, tmp_path_factory.mktemp("decided"), folds=2, baseline=False, **POINT)


def numbers(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "test" / "metrics.json").read_text()))


def page(folder: Path) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", (folder / "test" / "report.html").read_text()))


def rows(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "test" / "predictions.csv").open(newline="") as stream:
        return {row["path"]: row for row in csv.DictReader(stream)}


def members(folder: Path, split: str) -> set[str]:
    with (folder / "splits.csv").open() as stream:
        return {row["path"] for row in csv.DictReader(stream) if row["split"] == split}


def test_every_image_is_judged_once_by_a_model_that_never_saw_its_patient(done: Path, data: Path) -> None:
    pooled = Predictions.from_csv(done / "test" / "predictions.csv")
    every = {path.relative_to(data).as_posix() for path in data.rglob("*.png")}
    assert len(pooled) == len(every) == 36 and set(pooled.paths) == every
    tests = [members(done / f"fold-{k}", "test") for k in (1, 2, 3)]
    assert set().union(*tests) == every and sum(map(len, tests)) == 36
    for k in (1, 2, 3):
        of_fold = Predictions.from_csv(done / f"fold-{k}" / "test" / "predictions.csv")
        rows = [pooled.paths.index(path) for path in of_fold.paths]
        assert np.array_equal(pooled.logits[rows], of_fold.logits)
        patients = {
            split: {path.split("/")[1].split("_")[0] for path in members(done / f"fold-{k}", split)}
            for split in ("train", "val", "test")
        }
        assert not patients["test"] & (patients["train"] | patients["val"])


def test_the_report_pools_and_tells_each_fold_and_can_be_made_again(done: Path, tmp_path: Path) -> None:
    metrics = numbers(done)
    pooled = Predictions.from_csv(done / "test" / "predictions.csv")
    assert pooled.labels is not None
    positive = pooled.classes.index(metrics["positive_class"])
    area = roc_auc_score(pooled.labels == positive, pooled.probabilities[:, positive])
    assert metrics["overall"]["auroc"]["value"] == pytest.approx(area)
    assert metrics["n"] == 36 and metrics["n_groups"] == 9 and "colour_and_size" in metrics["baselines"]
    tables = [Predictions.from_csv(done / f"fold-{k}" / "test" / "predictions.csv") for k in (1, 2, 3)]
    each = [metric_values(table)["accuracy"] for table in tables]
    told = metrics["report"]["facts"]["Accuracy by fold"]
    assert told.startswith(f"{statistics.mean(each):.3f} ± {statistics.stdev(each):.3f}")
    (pooled_over,) = [note for note in metrics["notes"] if "Pooled over 3 models" in note]
    text = (done / "test" / "report.html").read_text()
    assert f'<p class="quiet">{pooled_over}' in text and f'<p class="note">{pooled_over}' not in text
    assert "In a cross-validation of 3 folds, on 36 held-out images of 9 patients, the models reached " in text
    spread = f"{statistics.mean(each):.3f} ± {statistics.stdev(each):.3f}"
    assert re.search(rf"mean ± SD of the folds</th>.*{spread}", text, re.S)
    methods = (done / "test" / "methods.md").read_text()
    assert "The models of a cross-validation were evaluated on 36 held-out images of 9 patients" in methods
    assert "in 3 folds. Each image was evaluated by the model of the fold that held it out." in methods
    configs = [(done / f"fold-{k}" / "config.yaml").read_text() for k in (1, 2, 3)]
    assert len({text.replace(f"fold: {k}", "") for k, text in enumerate(configs, 1)}) == 1  # one plan
    again = evaluate(done / "test" / "predictions.csv", output=tmp_path / "again")
    assert again.metrics.to_dict()["overall"] == metrics["overall"]


def test_each_image_keeps_the_decision_of_its_own_fold(decided: Path, tmp_path: Path) -> None:
    folds, pooled, found = [decided / "fold-1", decided / "fold-2"], rows(decided), numbers(decided)
    own = {path: row["prediction"] for fold in folds for path, row in rows(fold).items()}
    assert {path: row["prediction"] for path, row in pooled.items()} == own
    positive = found["positive_class"]
    thresholds = [numbers(fold)["operating_points"]["threshold"] for fold in folds]
    assert thresholds[0] != thresholds[1] and None not in thresholds
    for fold, threshold in zip(folds, thresholds, strict=True):
        for path in rows(fold):
            called = float(pooled[path][f"prob_{positive}"]) >= threshold
            assert (pooled[path]["prediction"] == positive) is called
    ill = [row for row in pooled.values() if row["label"] == positive]
    seen = sum(row["prediction"] == positive for row in ill) / len(ill)
    assert found["per_class"][positive]["sensitivity"]["value"] == pytest.approx(seen)
    right = sum(row["prediction"] == row["label"] for row in pooled.values()) / len(pooled)
    assert found["overall"]["accuracy"]["value"] == pytest.approx(right)
    point = found["operating_points"]["points"]["target_sensitivity"]
    assert point["reached"]["sensitivity"]["value"] == pytest.approx(seen) and point["asked"] == 0.75
    assert found["operating_points"]["by_fold"] == thresholds and found["operating_points"]["threshold"] is None
    rule = f"(positive class: {positive}, each model from its own threshold, target sensitivity 0.75); in brackets"
    assert rule in results_sentence(Results.read(found))
    each = [numbers(fold)["overall"]["balanced_accuracy"]["value"] for fold in folds]
    told = found["report"]["facts"]["Balanced accuracy by fold"]
    assert told.endswith(f"({each[0]:.3f}, {each[1]:.3f})")
    bayes = found["prevalence"]["rows"]
    assert any(row["prevalence"] == 0.01 for row in bayes)
    text = page(decided)
    assert "from a probability that each fold chose on its own validation" in text and all(
        f"{t:.3g}" in text for t in thresholds
    )
    assert "if it is the more likely class" not in text
    assert "the more likely class wins" not in text and "(in use)" not in text
    assert "abstention" not in found
    (note, *_) = json.loads((decided / "ensemble" / "val" / "metrics.json").read_text())["report"]["notes"]
    assert "The sensitivity that was asked for is that of single models" in note

    again = evaluate(decided / "test" / "predictions.csv", output=tmp_path / "again").metrics.to_dict()
    for part in ("overall", "per_class", "operating_points", "prevalence", "flow", "folds", "notes", "per_patient"):
        assert again[part] == found[part], part
    assert (tmp_path / "again" / "predictions.csv").read_bytes() == (decided / "test/predictions.csv").read_bytes()
    beside = compare(decided, decided / "fold-1").content["models"]
    assert beside["all"]["overall"]["accuracy"] == beside["fold-1"]["overall"]["accuracy"]
    with pytest.raises(UsageError, match="each of which chose on its own validation, so --youden cannot choose"):
        evaluate(decided / "test" / "predictions.csv", output=tmp_path / "more", youden=True, resamples=20)


def test_a_decision_that_is_no_class_is_refused(decided: Path, tmp_path: Path) -> None:
    text = (decided / "test" / "predictions.csv").read_text()
    row = next(iter(rows(decided).values()))
    (tmp_path / "predictions.csv").write_text(text.replace(f",{row['prediction']},", ",green,", 1), newline="")
    (tmp_path / "metrics.json").write_text((decided / "test" / "metrics.json").read_text())
    with pytest.raises(DataError, match="'green', expected one of amber, blue"):
        evaluate(tmp_path / "predictions.csv", output=tmp_path / "again")


def test_the_page_says_what_holds_of_all_folds(decided: Path, done: Path) -> None:
    for folder, count in ((decided, 2), (done, 3)):
        found, text = numbers(folder), page(folder)
        assert "no calibration is known" not in text
        facts = found["report"]["facts"]
        assert "Patients of the run" not in facts and facts["Patients"].startswith("9, each in the test of one fold")
        assert facts["Images"].startswith("36, each evaluated once: fold 1: ")
        assert "environment.json, in the folder of each fold (fold-1, fold-2, ...)" in text
        assert "is not known. No subgroups" not in text and "No external test" in text
        assert len(set(found["notes"])) == len(found["notes"])
        each = [numbers(folder / f"fold-{k}")["overall"]["auroc"]["value"] for k in range(1, count + 1)]
        areas = found["folds"]["auroc"]  # their mean stands beside a pooled AUROC that differs
        assert areas["mean"] == pytest.approx(statistics.mean(each))
        assert areas["pooled"] == pytest.approx(found["overall"]["auroc"]["value"])
        told = any("against each other" in note for note in found["notes"])
        assert told is (abs(areas["pooled"] - areas["mean"]) >= 0.01)
    assert numbers(done)["operating_points"]["chosen"] == "default" and "abstention" in numbers(done)


def test_the_flow_deals_every_image_to_the_test_of_one_fold(done: Path) -> None:
    flow = numbers(done)["flow"]
    tests = [members(done / f"fold-{k}", "test") for k in (1, 2, 3)]
    assert [part["images"] for part in flow["splits"].values()] == [len(test) for test in tests]
    assert [part["patients"] for part in flow["splits"].values()] == [3, 3, 3]
    assert (flow["found"], flow["used"], flow["left_out"], flow["patients"]) == (36, 36, 0, 9)
    assert (flow["level"], flow["patients_in_two"], flow["copies_in_two"]) == ("patient", 0, 0)
    evaluated = flow["evaluated"]
    assert (evaluated["split"], evaluated["images"], evaluated["patients"], evaluated["folds"]) == ("test", 36, 9, 3)
    text = page(done)
    told = "are disjoint by patient, and each from the training and validation images of its model."
    assert f"The tests of the folds {told}" in text
    assert "fold 3, test, evaluated here" in text
    for number in ("19", "20", "32"):
        line = re.search(rf'<th scope="row">{number}</th>.*?</tr>', (done / "test" / "report.html").read_text(), re.S)
        assert line is not None and "not supplied" not in line.group(), number  # of CLAIM, which comes first
    results = Results.model_validate_json((done / "test" / "metrics.json").read_text())
    figure = participant_flow.flow(Predictions.from_csv(done / "test" / "predictions.csv"), results)
    assert figure is not None
    shown = " ".join(text.get_text() for text in figure.findobj(Text))
    assert "fold 3: 12 images, 3 patients" in shown and "never saw it (evaluated)" in shown


def test_notes_are_told_once_or_with_the_name_of_the_fold() -> None:
    assert by_name([["a", "b"], ["a", "c"], ["a", "b"]]) == ["a", "folds 1, 3: b", "fold 2: c"]
    few = [["Validation has 9 positives."], ["Validation has 12 positives."], []]
    assert by_name(few) == ["2 of 3 folds (figures of fold 1): Validation has 9 positives."]


def test_calibration_is_told_of_each_fold(decided: Path, tmp_path: Path) -> None:
    found = numbers(decided)["calibration"]
    own = [numbers(decided / f"fold-{k}")["calibration"] for k in (1, 2)]
    assert found["method"] == "by fold" and found["before"] is None
    for one, other in zip(found["folds"], own, strict=True):
        assert {key: other[key] for key in one} == one
    text = page(decided)
    assert "The probabilities of no fold are calibrated: fold 1 not calibrated (8 val" in text  # too few images
    content = numbers(decided)
    scaled = {"method": "temperature", "scale": [0.5] * 2, "bias": [0.0] * 2, "note": ""}
    content["folds"]["each"][1]["calibration"] = scaled
    (tmp_path / "metrics.json").write_text(json.dumps(content))
    (tmp_path / "predictions.csv").write_bytes((decided / "test" / "predictions.csv").read_bytes())
    evaluate(tmp_path / "predictions.csv", output=tmp_path / "test")
    text = page(tmp_path)
    assert "were calibrated on its own validation images" in text and "fold 2 temperature 2." in text


def test_processes_that_torchrun_started_are_refused_before_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="not as one of the processes of torchrun"):
        cross_validate("data")


def test_images_that_change_while_the_folds_train_end_the_study(
    done: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tests of the folds would overlap. The second fold loses an image, the third one changes it."""
    there, image, trained = shutil.copytree(done, tmp_path / "all"), next(data.rglob("*.png")), list[str]()
    for name in ("fold-2", "fold-3", "test", "ensemble"):
        shutil.rmtree(there / name)
    content = image.read_bytes()

    def stub(name: str, **arguments: object) -> SimpleNamespace:
        trained.append(name)
        shutil.copytree(done / name, there / name)
        if name == "fold-2":
            image.unlink()
        else:
            Image.fromarray(255 - np.asarray(Image.open(image))).save(image)
        return SimpleNamespace(test=None, val=None)

    monkeypatch.setattr("vitmed.studies.study.vitmed.train", stub)
    try:
        with pytest.raises(DataError, match="other images, labels or splits"):
            cross_validate(resume=there)
        image.write_bytes(content)
        assert trained == ["fold-2"]
        with pytest.raises(DataError, match=f"{image.name}: 1 image has changed"):
            cross_validate(resume=there)
    finally:
        image.write_bytes(content)
    assert trained == ["fold-2", "fold-3"] and not (there / "test").exists()


def test_a_refused_beginning_leaves_nothing(data: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "parted").mkdir(exist_ok=True)
        (tmp_path / "parted" / split).symlink_to(data, target_is_directory=True)
    with pytest.raises(UsageError, match="has its own test"):
        run(tmp_path / "parted", tmp_path / "runs", hold_out=0.2)
    assert not list((tmp_path / "runs").glob("*"))


def test_an_interruption_before_the_first_fold_begins_promises_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*names: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitmed.studies.study.vitmed.train", stopped)
    with pytest.raises(Interrupted, match="before its first fold had begun") as told:
        run(data, tmp_path)
    assert told.value.fix == "start again with vitmed cross-validate" and not list(tmp_path.iterdir())


def test_folds_without_a_held_out_test_are_evaluated_on_other_images_alone(done: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the folds tested each image") as own:
        evaluate(done)
    assert str(own.value.fix).endswith(f"what is kept: vitmed evaluate {done / 'test' / 'predictions.csv'}")
    there = tmp_path / "apart"
    shutil.copytree(done, there)
    shutil.rmtree(there / "ensemble")
    with pytest.raises(CheckpointError, match="vitmed ensemble") as told:
        evaluate(there)
    assert str(there / "test" / "predictions.csv") in str(told.value)


def test_folds_of_a_folder_with_its_own_splits_say_first_what_they_leave_out(tmp_path: Path, ui: Recorder) -> None:
    for split, count in (("train", 12), ("val", 4), ("test", 6)):
        draw_pairs(tmp_path / "data" / split, count)
    config = load_config(None, {"data.root": str(tmp_path / "data"), "data.folds": 3})
    CrossValidation.new(config, tmp_path / "runs" / "all", {}, HERE, Clock())
    (line,) = [line for line in ui.said if line.startswith("the folds test")]
    assert "of val validate every fold" in line and "of test are held out" in line and "--resplit" in line


def test_the_flow_of_folds_counts_validation_and_what_is_held_out(tmp_path: Path) -> None:
    """Of a folder with its own splits and one loose file; and no class is lost in the figure."""
    for split, count in (("train", 12), ("val", 4), ("test", 6)):
        draw_pairs(tmp_path / "data" / split, count)
    config = load_config(None, {"data.root": str(tmp_path / "data"), "data.folds": 3})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "data_check.json").write_text('{"notes": [], "counts": {"found": 45, "unreadable": 0}}')
    folds = []
    for fold in (1, 2, 3):
        splits = make_splits(config.data.model_copy(update={"fold": fold}))
        hashes = {name: [sample.path for sample in samples] for name, samples in splits.samples.items()}
        folds.append(cast(Any, SimpleNamespace(splits=splits, hashes=hashes, config=config)))
    paths = tuple(sample.path for fold in folds for sample in fold.splits.samples["test"])
    p = Predictions(("disc", "ring"), paths, None, np.arange(24) % 2, np.zeros((24, 2), np.float32))
    runs = [RunFolder(tmp_path / "run")] * 3
    told = participant_flow.folds_flow(folds, runs, p, held_out(config.data))
    assert {name: part.images for name, part in told.splits.items()} == {
        "fold 1": 8, "fold 2": 8, "fold 3": 8, "val": 8, "held out": 12,
    }  # fmt: skip
    assert (told.used, told.left_out, told.why_left_out) == (44, 1, "outside the folders of classes and splits")
    one = next(iter(told.splits.values()))
    long = {f"grade {k}": Count(images=1000 + k, patients=900 + k) for k in range(5)}
    told = told.model_copy(update={"splits": told.splits | {"fold 1": one.model_copy(update={"classes": long})}})
    figure = participant_flow.flow(p, Results.of(evaluate_predictions(p), flow=told))
    assert figure is not None
    texts = [line for text in figure.findobj(Text) for line in text.get_text().splitlines()]
    assert all(f"grade {k}: {1000 + k:,} / {900 + k}" in " ".join(texts) for k in range(5)) and "…" not in str(texts)
    assert "val: 8 images, patients unknown" in texts and "held out: 12 images, patients unknown" in texts


def test_an_interruption_tells_how_to_go_on_and_that_ends_as_if_nothing_had_been(
    done: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = Run.keep, []

    def stopped(self: Run[Config], *event: Any) -> None:
        original(self, *event)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "keep", stopped)
    with pytest.raises(Interrupted) as told:
        run(data, tmp_path, baseline=False, report=False)
    assert f"--resume {tmp_path / 'all'}" in str(told.value) and "fold 2 of 3" in str(told.value)
    image = next(data.rglob("*.png"))
    extra = Path(shutil.copy(image, image.with_stem(f"{image.stem}_more")))
    with pytest.raises(DataError, match="other images, labels or splits"):
        train(resume=tmp_path / "all")
    extra.unlink()
    original_bytes = image.read_bytes()
    try:
        Image.fromarray(255 - np.asarray(Image.open(image))).save(image)
        with pytest.raises(DataError, match=f"{image.name}: 1 image has changed"):
            train(resume=tmp_path / "all")
    finally:
        image.write_bytes(original_bytes)
    train(resume=tmp_path / "all")
    assert len(calls) == 3  # the first fold was not trained again, the second had ended its epoch
    again, before = (Predictions.from_csv(place / "test" / "predictions.csv") for place in (tmp_path / "all", done))
    assert again.paths == before.paths and np.array_equal(again.logits, before.logits)


@pytest.mark.slow
def test_a_fold_that_learnt_nothing_is_named_on_the_page_of_all(done: Path, tmp_path: Path) -> None:
    there = tmp_path / "all"
    shutil.copytree(done, there)
    for place in ("test", "ensemble"):
        shutil.rmtree(there / place)
    file = there / "fold-1" / "test" / "metrics.json"
    content = json.loads(file.read_text())
    content["confusion_matrix"] = [[sum(row), 0] for row in content["confusion_matrix"]]
    file.write_text(json.dumps(content))
    cross_validate(resume=there)
    notes = numbers(there)["report"]["notes"]  # another fold may have learnt nothing too
    assert any(re.match("(folds? 1.*: )?Every image is predicted as .*does not distinguish", note) for note in notes)


@pytest.mark.slow
def test_folds_of_grades_are_reported_by_what_decides_between_grades(tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 12, ("amber", "blue", "green"))
    asked: dict[str, object] = {"ordinal": "amber,blue,green", "group_regex": None, "folds": 2, "report": False}
    found = numbers(run(data, tmp_path, **asked))
    assert [*found["folds"]["each"][0]["numbers"]][:2] == ["quadratic_kappa", "grade_error"]
    assert "Quadratic kappa by fold" in found["report"]["facts"]


def test_bad_use_and_folds_that_are_done(data: Path, done: Path, tmp_path: Path, vitmed: RUN) -> None:
    with pytest.raises(UsageError, match="finished"):
        train(resume=done)
    with pytest.raises(UsageError, match="alone"):
        train(resume=done, epochs=9)
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "folds.json").write_text('{"folds": 3, "window": null}')
    with pytest.raises(CheckpointError, match="had not begun"):
        train(resume=tmp_path / "lost")
    (tmp_path / "lost" / "folds.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        train(resume=tmp_path / "lost")


def test_the_folder_of_folds_is_not_called_by_a_network_that_no_plan_has_chosen(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(config: Config, folder: Path, *rest: object) -> None:
        raise UsageError(folder.name, "this test ends here")

    monkeypatch.setattr(CrossValidation, "new", begin)
    with pytest.raises(UsageError, match=rf"^\d{{4}}-\d\d-\d\d_{data.name}_3-folds"):
        train(data, folds=3, output=tmp_path)


def draw_table(root: Path, kind: str) -> Path:
    """24 patients with two images: a square for each finding, of which `rare` has one patient; or a brightness."""
    rng, lines = np.random.default_rng(0), []
    root.mkdir()
    for patient, i in itertools.product(range(24), range(2)):
        pixels, path = rng.integers(90, 130, (16, 16, 3), dtype=np.uint8), f"{patient}_{i}.png"
        if kind == "findings":
            labels = [int(rng.random() < 0.5), int(rng.random() < 0.4), int(patient == 3)]
            for f, there in enumerate(labels):
                pixels[4:12, 5 * f : 5 * f + 5] += np.uint8(90 * there)
        else:
            labels = [10 * patient + i]
            pixels[:] = np.clip(pixels + 5 * patient - 60, 0, 255)
        Image.fromarray(pixels).save(root / path)
        lines.append([path, f"P{patient}", *labels])
    names = ["amber", "blue", "rare"] if kind == "findings" else ["label"]
    with (root / "labels.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["path", "patient", *names], *lines])
    return root


OF_TABLE = {key: value for key, value in SETTINGS.items() if key != "group_regex"} | {"folds": 2, "baseline": False}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainResult, Recorder]:
    """Two folds of findings at a target sensitivity; the only patient with `rare` is in the test of one."""
    place, ui = tmp_path_factory.mktemp("findings"), recording()
    root = draw_table(place / "data", "findings")
    settings = OF_TABLE | {"labels": root / "labels.csv", "target_sensitivity": 0.8}
    sets = (*TINY_SETS, "data.normalize=half", "data.val_fraction=0.25")
    return train(root, output=place, name="all", sets=sets, **settings), ui


@pytest.fixture(scope="module")
def number(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Two folds of a number."""
    place = tmp_path_factory.mktemp("number")
    root = draw_table(place / "data", "number")
    settings = OF_TABLE | {"labels": root / "labels.csv", "target": "number", "unit": "mm", "resamples": 0}
    return train(root, output=place, name="all", sets=(*TINY_SETS, "data.val_fraction=0.25"), **settings)


def test_pooled_findings_keep_probabilities_and_calls_of_their_folds(findings: tuple[TrainResult, Recorder]) -> None:
    folder, pooled = findings[0].folder, findings[0].test.predictions
    assert isinstance(pooled, FindingPredictions) and pooled.labels is not None and len(pooled) == 48
    for k in (1, 2):
        own = read_evaluation(folder / f"fold-{k}" / "test" / "predictions.csv").predictions
        rows = [pooled.paths.index(path) for path in own.paths]
        assert isinstance(own, FindingPredictions) and not {*own.groups} & {*pooled.take(other(rows, 48)).groups}  # type: ignore[misc]
        for name in ("labels", "logits", "probabilities", "predicted"):
            assert np.array_equal(getattr(own, name), getattr(pooled, name)[rows]), name
    areas = [roc_auc_score(pooled.labels[:, f] == 1, pooled.probabilities[:, f]) for f in range(len(pooled.classes))]
    overall = findings[0].test.metrics
    assert [overall.per_class[name].auroc.value for name in pooled.classes] == pytest.approx(areas)
    again = read_evaluation(folder / "test" / "predictions.csv").predictions
    assert isinstance(again, FindingPredictions) and np.array_equal(again.predicted, pooled.predicted)


def test_each_finding_of_the_folds_has_its_report(findings: tuple[TrainResult, Recorder], tmp_path: Path) -> None:
    folder, metrics = findings[0].folder / "test", findings[0].test.metrics
    assert metrics.folds is not None and set(metrics.folds.findings) == set(metrics.classes)
    assert set(metrics.finding_reports) >= {"amber", "blue"}
    own = json.loads((folder / "findings" / "amber" / "metrics.json").read_text())
    each = [json.loads((folder.parent / f"fold-{k}" / "test" / "metrics.json").read_text()) for k in (1, 2)]
    assert [fold["numbers"]["auroc"] for fold in own["folds"]["each"]] == [
        one["per_class"]["amber"]["auroc"] for one in each
    ]
    thresholds = [one["report"]["policy"]["findings"]["amber"]["operating"]["chosen"] for one in each]
    assert [fold["point"] for fold in own["folds"]["each"]] == thresholds
    assert any("Pooled over 2 models" in note for note in own["notes"])
    again = evaluate(folder / "predictions.csv", output=tmp_path / "again")
    assert again.metrics.overall == metrics.overall and again.metrics.folds == metrics.folds
    copies = (place / "findings" / "amber" / "predictions.csv" for place in (folder, tmp_path / "again"))
    assert len({copy.read_text() for copy in copies}) == 1


def test_a_finding_that_a_fold_cannot_learn_or_judge_is_a_sentence(findings: tuple[TrainResult, Recorder]) -> None:
    result, ui = findings
    assert "rare" not in result.test.metrics.classes  # its one patient is needed for training and for the test
    assert any(
        "rare is left out: every fold must have images with and without a finding" in text
        for text in ui.said + ui.warned
    )


def test_pooled_numbers_are_those_of_the_folds_in_the_unit(number: TrainResult, tmp_path: Path) -> None:
    pooled, metrics, folder = number.test.predictions, number.test.metrics, number.folder
    assert isinstance(pooled, NumberPredictions) and pooled.labels is not None and pooled.intervals is not None
    targets = []
    for k in (1, 2):
        own = read_evaluation(folder / f"fold-{k}" / "test" / "predictions.csv").predictions
        assert isinstance(own, NumberPredictions) and own.intervals is not None
        rows = [pooled.paths.index(path) for path in own.paths]
        assert np.allclose(pooled.values[rows], own.values, rtol=0, atol=1e-4)
        assert np.allclose(pooled.scales[rows], own.scales, rtol=1e-5)
        assert np.array_equal(pooled.intervals[rows], own.intervals)
        targets.append(own.target)
    assert targets[0] != targets[1]  # each by its own training images
    errors = np.abs(pooled.values - pooled.labels)
    assert metrics.overall["mae"].value == pytest.approx(errors.mean()) and metrics.n_groups == 24
    assert metrics.folds is not None
    each = [fold.numbers["mae"].value for fold in metrics.folds.each]
    assert np.average(each, weights=[fold.images for fold in metrics.folds.each]) == pytest.approx(errors.mean())
    assert "Each fold chose its own intervals of 90 %" in page(folder)
    again = evaluate(folder / "test" / "predictions.csv", output=tmp_path / "again")
    assert again.metrics.overall == metrics.overall


def other(rows: list[int], size: int) -> np.ndarray:
    """The other rows."""
    return np.setdiff1d(np.arange(size), rows)


def test_the_note_names_folds_that_say_nothing_of_a_finding() -> None:
    none, some = (Estimate(value=value, low=None, high=None) for value in (None, 0.7))
    whole = Fold(images=9, patients=3, numbers={})

    def of(*values: Estimate) -> Folds:
        each = [Fold(images=9, patients=3, numbers={"auroc": value}) for value in values]
        return Folds(asked="default", target=None, costs=None, each=each)

    found = {"edema": of(some, some), "mass": of(none, some), "hernia": of(none, none)}
    folds = Folds(asked="default", target=None, costs=None, each=[whole, whole], findings=found)
    assert fold_notes(folds)[2:] == [
        "The AUROC of mass is undefined in fold 1: no test image has it, or every one has it.",
        "The AUROC of hernia is undefined in folds 1, 2: no test image has it, or every one has it.",
    ]
    assert fold_notes(found["edema"])[2:] == []


def test_fold_1_is_not_fold_10(tmp_path: Path) -> None:
    """Of twelve folds the first also finds its own second attempt, but never the folders of folds 10, 11 and 12."""
    for name in ("fold-10", "fold-1-2", "fold-12", "fold-1", "fold-11-2", "fold-2", "fold-1.bak"):
        (tmp_path / name).mkdir()

    def job(fold: int) -> Job:
        return Job(f"fold-{fold}", "")

    found = {fold: {place.path.name for place in job(fold).attempts(RunFolder(tmp_path))} for fold in (1, 2, 11, 12)}
    assert found == {1: {"fold-1", "fold-1-2"}, 2: {"fold-2"}, 11: {"fold-11-2"}, 12: {"fold-12"}}


@pytest.fixture(scope="module")
def repeated(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folds, twice, of the patients that are not held out."""
    place = tmp_path_factory.mktemp("repeated")
    settings = SETTINGS | {"folds": 2, "repeats": 2, "hold_out": 0.2, "report": False, "baseline": False}
    found = cross_validate(data, output=place, name="all", sets=TINY_SETS, **settings)  # type: ignore[arg-type]
    assert found is not None
    return found.folder


@pytest.mark.slow
def test_repeats_average_what_models_say_of_images_that_they_never_saw(repeated: Path, data: Path) -> None:
    names = ("fold-1", "fold-2", "repeat-2-fold-1", "repeat-2-fold-2")
    tests = [Predictions.from_csv(repeated / name / "test" / "predictions.csv") for name in names]
    both = dict(zip(tests[0].paths + tests[1].paths, np.concatenate([t.logits for t in tests[:2]]), strict=True))
    assert both.keys() == set(tests[2].paths + tests[3].paths) and set(tests[0].paths) != set(tests[2].paths)
    pooled = read_evaluation(repeated / "test" / "predictions.csv").predictions
    each = [read_evaluation(repeated / name / "test" / "predictions.csv").predictions for name in names]
    one = {path: row for part in each[:2] for path, row in zip(part.paths, part.probabilities, strict=True)}
    two = {path: row for part in each[2:] for path, row in zip(part.paths, part.probabilities, strict=True)}
    mean = np.array([(one[path] + two[path]) / 2 for path in pooled.paths])
    assert len(pooled) == len(one) < 36  # every image once; some patients are in no fold
    assert np.allclose(pooled.probabilities, mean, atol=1e-6)
    seen = {path for name in names for path in RunFolder(repeated / name).splits.read_text().splitlines()}
    inside = {path.split(",")[0] for path in seen}
    away = {path.split("/")[1].split("_")[0] for path in image_names(data)} - {
        path.split("/")[1].split("_")[0] for path in inside if "/" in path
    }
    assert len(away) == 2  # patients
    found = numbers(repeated)
    assert len(found["folds"]["each"]) == 4 and any("divided 2 times" in note for note in found["report"]["notes"])
    metrics = Results.read(found)
    assert results_sentence(metrics).startswith("In a cross-validation of 2 folds, repeated 2 times, on ")
    (design, *_) = methods_text(metrics, str).paragraphs
    assert (
        "in 2 folds, divided 2 times. Each image was evaluated by the mean of the 2 models that held it out." in design
    )


def test_what_resumes(done: Path, data: Path) -> None:
    with pytest.raises(UsageError, match="finished"):
        cross_validate(resume=done)
    with pytest.raises(CheckpointError, match="holds no folds"):
        cross_validate(resume=data)
    with pytest.raises(UsageError, match="parallel=0"):
        cross_validate(data, parallel=0)
    with pytest.raises(UsageError, match="one run is not divided"):
        train(data, parallel=2)


@pytest.mark.slow
def test_an_end_before_the_held_out_images_were_evaluated(repeated: Path, tmp_path: Path) -> None:
    there = tmp_path / "all"
    shutil.copytree(repeated, there)
    shutil.rmtree(there / "ensemble" / "test")
    cross_validate(resume=there)
    table = Path("ensemble", "test", "predictions.csv")
    assert (there / table).read_bytes() == (repeated / table).read_bytes()


@pytest.mark.slow
def test_a_first_fold_that_could_not_write_begins_again(data: Path, tmp_path: Path) -> None:
    """As on a full disk, which is mended before the folds go on."""

    def refuse(self: Finetune, run: Run[Config]) -> None:
        raise UsageError(f"{run.folder.last}: cannot be written (No space left on device)", "make room on this disk")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Finetune, "save_last", refuse)
        with pytest.raises(UsageError, match="No space left"):
            run(data, tmp_path, folds=2, report=False, baseline=False)
    found = cross_validate(resume=tmp_path / "all")
    assert found is not None and found.test is not None and found.test.metrics.n == 36
    assert sorted(path.name for path in (tmp_path / "all").glob("fold-*")) == ["fold-1", "fold-1-2", "fold-2"]


def test_five_folds_without_asking(data: Path, tmp_path: Path) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "folds"} | {"group_regex": "(amber|blue)"}
    with pytest.raises(DataError, match="2 patients are too few for 5 folds"):
        cross_validate(data, output=tmp_path, sets=TINY_SETS, **settings)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_from_the_command_line_two_at_a_time(data: Path, tmp_path: Path, vitmed: RUN) -> None:
    answer = vitmed(
        "cross-validate", data, *TINY_ARGS, "--epochs", "1", "--folds", "2", "--parallel", 2, "--resamples", "20",
        "--group-regex", r"(p\d+)_", "-o", tmp_path, "--name", "all", "--no-report", "--json",
        "--fail-under", "log_loss=0",
    )  # fmt: skip
    assert answer.code == 6, answer.err  # the numbers are printed nevertheless
    said = json.loads(answer.out)
    assert said["val"] is None and said["test"]["n"] == 36 and said["run"] == str(tmp_path / "all")
    assert len(list((tmp_path / "all").glob("*fold-?.log"))) == 2  # each fold in a process of its own


def test_one_fold_by_its_number_is_an_ordinary_run(data: Path, tmp_path: Path, vitmed: RUN) -> None:
    answer = vitmed(
        "train", data, *TINY_ARGS, "--epochs", "1", "--folds", "3", "--fold", "2", "--group-regex", r"(p\d+)_",
        "-o", tmp_path, "--name", "one", "--fail-under", "log_loss=0", "--no-report",
    )  # fmt: skip
    assert answer.code == 6
    assert (tmp_path / "one" / "best.pt").is_file() and not (tmp_path / "one" / "fold-2").exists()


def test_runs_with_other_columns_and_patients_keep_those_of_the_first() -> None:
    """Two tables of the same images: the second has other columns, in another order, and knows no patient."""

    def member(columns: tuple[str, ...], rows: dict[str, tuple[str | None, tuple[str, ...]]]) -> SimpleNamespace:
        parts = {
            name: tuple(Sample(path, 0, *rows[path]) for path in paths if path in rows)
            for name, paths in {"train": ["c", "d"], "val": ["b"], "test": ["a"]}.items()
        }
        hashes = {name: [sample.path for sample in part] for name, part in parts.items()}
        splits = Splits(Path(), ("x",), parts, columns=columns)
        config = SimpleNamespace(data=SimpleNamespace(allow_leakage=False))
        return SimpleNamespace(splits=splits, hashes=hashes, config=config, path="run")

    site, reader = ("P1", ("A", "Ann")), ("P2", ("B", "Bob"))
    first = member(("site", "reader"), {"a": site, "b": reader, "c": reader})
    second = member(("reader", "age", "site"), dict.fromkeys("abcd", (None, ("Eve", "70", "C"))))
    members: Any = [first, second]
    splits, hashes = _images([SimpleNamespace(folds=False)], members)  # type: ignore[list-item]
    found = {sample.path: (sample.group, sample.columns) for part in splits.samples.values() for sample in part}
    assert found == {"a": site, "b": reader, "c": reader, "d": (None, ("C", "Eve"))}
    assert _trained_on_test(members, splits, hashes) == []
    other: Any = member(("site", "reader"), {"a": site, "b": reader, "c": site})
    leaks = _trained_on_test([second, other], *_images([SimpleNamespace(folds=False)], [second, other]))  # type: ignore[list-item]
    assert leaks == ["run: was trained on images of 1 patient of the test of run"]
