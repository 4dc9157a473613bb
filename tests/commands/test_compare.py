"""Models on the same images: matched by path, tested against scipy and by hand, and told in a sentence."""

import csv
import hashlib
import html
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Answer, Trained, recording
from every_kind import compare_findings, compare_predictions
from reports import write_report
from scipy import stats

from vitmed import compare
from vitmed.commands.compare import Comparison
from vitmed.core.base_models import Target
from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.decisions.evaluation_folder import Evaluated, read_evaluation
from vitmed.decisions.policy import choose_policy
from vitmed.metrics.intervals import Units, share
from vitmed.metrics.kinds.classes import PreparedPredictions
from vitmed.metrics.kinds.findings import FindingPredictions, PreparedFindings
from vitmed.metrics.kinds.number import NumberPredictions, distribution_scores
from vitmed.metrics.paired_comparison import holm
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.report.analyses import Extra
from vitmed.report.results import Origin
from vitmed.report.write import Report
from vitmed.studies.comparison import Model, compare_models, operating_points, read_all


def draw(noise: float, size: int = 120, classes: int = 2, each: int | None = 3, seed: int = 0) -> Predictions:
    """One model's answer to a test that is the same for every noise and seed."""
    labels = np.arange(size) % classes
    rng = np.random.default_rng([seed, int(noise * 100)])
    logits = 2 * np.eye(classes)[labels] + noise * rng.normal(size=(size, classes))
    groups = None if each is None else tuple(f"P{i // each}" for i in range(size))
    names = ("healthy", "sick", "other", "more")[:classes]
    return Predictions(names, tuple(f"{i}.png" for i in range(size)), groups, labels, logits.astype(np.float32))


def save(predictions: Predictions, folder: Path, name: str = "predictions.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(predictions.to_csv(), newline="")
    return folder / name


def judge(*paths: Path, **options: Any) -> Comparison:
    return compare(*paths, **options)


def test_a_clear_difference_and_none(tmp_path: Path) -> None:
    files = [save(draw(noise), tmp_path / name) for name, noise in (("good", 1.0), ("near", 1.05), ("poor", 4.0))]
    found = judge(*files, output=tmp_path / "out")
    content = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert content == found.content.to_dict()
    assert (content["images"], content["patients"], content["resampling"]) == (120, 40, "by patient")
    assert [(p["first"], p["second"]) for p in content["pairs"]] == [
        ("good", "near"),
        ("good", "poor"),
        ("near", "poor"),
    ]
    by_pair = {(p["first"], p["second"]): p for p in content["pairs"]}
    assert by_pair["good", "poor"]["verdict"].startswith("good is better than poor: AUROC difference +0.")
    assert "40 patients, p " in by_pair["good", "poor"]["verdict"]
    assert by_pair["good", "poor"]["verdict"].endswith(" adjusted for 3 pairs")  # the interval beside it is not
    assert "is not clearly better or worse than" in by_pair["good", "near"]["verdict"]
    assert found.verdict == by_pair["good", "near"]["verdict"]  # the two best
    for pair in content["pairs"]:
        for name in ("auroc", "accuracy"):
            assert pair["tests"][name]["p"] <= pair["tests"][name]["p_holm"] <= 1
    with pytest.raises(UsageError, match="not empty"):
        judge(*files, output=tmp_path / "out")


def test_the_page_names_its_tests_and_carries_the_grave_warnings_of_the_reports(
    tmp_path: Path, no_figures: None
) -> None:
    leak = (
        "Leakage: 9 of 120 images were used to make this model (train, val or pretraining); the result is optimistic."
    )
    notes = {"a": [leak], "b": [leak, "Data: val: the 10 images of 'sick' come from 2 patients."], "c": []}
    for name in notes:
        same = np.zeros_like(draw(1.0).logits) + np.float32([2, 1])  # c calls every image healthy
        given = replace(draw(1.0), logits=same) if name == "c" else draw(1.0, seed=ord(name))
        write_report(tmp_path / name, given, EvaluateConfig(resamples=20), title=name, notes=notes[name])
    ui = recording()
    found = judge(*(tmp_path / name for name in notes), output=tmp_path / "out").content.notes
    assert found[0] == f"a, b: {leak}" and found[0] in ui.warned
    assert any(note.startswith("c: Every image is predicted as 'healthy'") for note in found)
    assert not any("come from" in note for note in found)  # of the data, not of this comparison
    page = html.unescape((tmp_path / "out" / "comparison.html").read_text())
    for text in (
        leak,
        "For differences in accuracy, sensitivity and specificity, P-values were computed with McNemar's test for the "
        "effective number of images, with Student's t [",
        "For differences in balanced accuracy, intervals were computed with the method of variance estimates recovery",
        "adjusted for several pairs by the method of Holm",
        "<li>McNemar Q.",
    ):
        assert text in page, text


def test_the_tests_without_patients_are_scipys() -> None:
    first, second = draw(2.0, each=None), draw(3.0, each=None)
    tests = compare_predictions(first, second)["tests"]
    right = [p.predicted == p.labels for p in (first, second)]
    b, c = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    assert (tests["accuracy"]["only_first"], tests["accuracy"]["only_second"]) == (b, c)
    assert tests["accuracy"]["p"] == pytest.approx(stats.chi2.sf((b - c) ** 2 / (b + c), 1), abs=1e-9)  # McNemar's
    assert tests["accuracy"]["method"] == "mcnemar" and tests["auroc"]["method"] == "delong"
    assert tests["auroc"]["p"] == pytest.approx(2 * stats.norm.sf(abs(tests["auroc"]["statistic"])))


def test_the_test_of_accuracy_by_patient_by_hand() -> None:
    """Twelve patients of two images: how many more of them the first model gets right than the second."""
    gaps = [2, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, -1]
    labels = np.zeros(24, np.int64)
    groups = tuple(f"P{i // 2}" for i in range(24))
    d = np.array([[1, 1] if gap == 2 else [gap, 0] for gap in gaps]).ravel()
    logits = [np.eye(2, dtype=np.float32)[np.where(right, 0, 1)] for right in (d >= 0, d <= 0)]
    first, second = (Predictions(("a", "b"), tuple(map(str, range(24))), groups, labels, z) for z in logits)
    found = compare_predictions(first, second)
    value = 8 / 24
    variance = sum((gap - 2 * value) ** 2 for gap in gaps) / (1 - 2 / 24) / 24**2
    effect = max(1.0, variance / ((10 / 24 - value**2) / 24))  # nine patients differ: also that of each model's errors
    units = Units(first.units)
    effect = max(effect, *(share(right, np.ones(24, bool), units).design_effect for right in (d >= 0, d <= 0)))
    assert found.tests["accuracy"].statistic == pytest.approx(8 / np.sqrt(10) / np.sqrt(effect))
    assert found.tests["accuracy"].p == pytest.approx(2 * stats.t.sf(found.tests["accuracy"].statistic, 11))
    assert (found.tests["accuracy"].method, found.difference["accuracy"].method) == ("mcnemar-cluster", "tango-cluster")
    assert found.tests["auroc"].p is None  # one class


@pytest.mark.slow
def test_chance_alone_is_called_clear_one_time_in_twenty() -> None:
    """Two models of the same skill, 200 times, 30 patients with four images that are alike."""
    wrong = {"auroc": 0, "accuracy": 0}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        labels, patients = np.arange(120) % 2, np.repeat(np.arange(30), 4)
        groups, paths = tuple(f"P{i}" for i in patients), tuple(map(str, range(120)))
        made = []
        for _ in range(2):
            scores = 1.5 * labels - 0.75 + rng.normal(size=120) + rng.normal(size=30)[patients]
            logits = np.stack([np.zeros(120), scores], axis=1).astype(np.float32)
            made.append(Predictions(("a", "b"), paths, groups, labels, logits))
        tests = compare_predictions(*made)["tests"]
        for name in wrong:
            wrong[name] += tests[name]["p"] < 0.05
    assert all(2 <= count <= 21 for count in wrong.values()), wrong  # 10 expected; 99.9 % of tries lie within


def test_holm_as_rs_p_adjust() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([None, 0.6, 0.5]) == [None, pytest.approx(1.0), pytest.approx(1.0)]
    assert holm([]) == []


def test_each_class_has_its_difference(tmp_path: Path) -> None:
    first, second = draw(1.0, classes=3), draw(3.0, classes=3)
    found = judge(save(first, tmp_path / "a"), save(second, tmp_path / "b")).content["pairs"][0]["classes"]
    assert set(found) == {"healthy", "sick", "other"}
    for entry in found.values():
        assert entry["low"] < entry["value"] < entry["high"] and entry["p"] <= entry["p_holm"]
    mean = np.mean(
        [
            entry["value"]
            for entry in PreparedPredictions(first).class_gaps(PreparedPredictions(second))["auroc"].values()
        ]
    )
    assert mean == pytest.approx(compare_predictions(first, second)["difference"]["auroc"]["value"])


def test_images_are_matched_by_path_and_classes_by_name(tmp_path: Path) -> None:
    first, second = draw(1.0), draw(2.0)
    plain = judge(save(first, tmp_path / "a"), save(second, tmp_path / "b")).content
    turned = Predictions(
        ("sick", "healthy"), second.paths[::-1], second.groups[::-1], 1 - second.labels[::-1], second.logits[::-1, ::-1]
    )  # fmt: skip
    again = judge(tmp_path / "a" / "predictions.csv", save(turned, tmp_path / "turned" / "b")).content
    assert again["pairs"][0]["difference"] == plain["pairs"][0]["difference"]
    assert again["notes"] == []
    fewer = Predictions(second.classes, second.paths[:90], second.groups[:90], second.labels[:90], second.logits[:90])
    ui = recording()
    assert judge(tmp_path / "a", save(fewer, tmp_path / "fewer")).content["images"] == 90
    assert "90 images are shared; left out because not all have them: 30 of a." in ui.warned


def test_runs_reports_and_a_baseline_that_is_named(trained: Trained, tmp_path: Path) -> None:
    test, known = trained.folder / "test", trained.result.test.metrics
    evaluated = trained.result.test.predictions
    noisy = replace(evaluated, logits=evaluated.logits + np.random.default_rng(0).normal(size=evaluated.logits.shape))
    save(replace(noisy, logits=noisy.logits.astype(np.float32)), tmp_path / "other" / "test")
    found = judge(test, tmp_path / "other")
    assert list(found.content["models"]) == [
        trained.folder.name,
        "other",
    ]  # the baseline beside the report is not asked
    assert found.content["models"][trained.folder.name]["overall"]["auroc"] == known["overall"]["auroc"]
    assert "images" in found.verdict and any("Patients are unknown" in note for note in found.content["notes"])
    (pair,) = judge(trained.folder, test / "baseline_colour_and_size.csv").content.pairs
    assert (pair.first, pair.second) == (trained.folder.name, "baseline_colour_and_size")
    beside = known.baselines["colour_and_size"]
    assert pair.difference["auroc"] == beside.difference["auroc"] and pair.tests["auroc"].p == beside.tests["auroc"].p
    criteria = tmp_path / "criteria.yaml"  # as docs/acceptance.md says for a model that replaces none
    criteria.write_text("criteria: [{metric: auroc, at_least: 0, by: estimate}]")
    accepted = judge(trained.folder, test / "baseline_colour_and_size.csv", accept=criteria).acceptance
    assert accepted is not None and accepted.judged[0].found.value == known["overall"]["auroc"]["value"]


def test_runs_of_one_name_are_told_apart_by_date_and_weights(tmp_path: Path, vitmed: Any, no_figures: None) -> None:
    lines = []
    for noise, place, seconds in ((1.0, "a", 1_700_000_000), (4.0, "b", 1_710_000_000)):
        folder, weights = tmp_path / place / "cells" / "test", hashlib.sha256(place.encode()).hexdigest()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SOURCE_DATE_EPOCH", str(seconds))
            about = {"title": "test of cells", "facts": {}, "run": "cells", "weights_hash": weights}
            write_report(folder, draw(noise), config=EvaluateConfig(resamples=20), **about)
        date = "2023-11-14 22:13" if place == "a" else "2024-03-09 16:00"
        letter = place.upper()
        lines.append(f"{letter}: {place}/cells (run cells, {date} UTC, weights {weights[:12]})")
    answer = vitmed("compare", tmp_path / "a" / "cells", tmp_path / "b" / "cells")
    assert answer.code == 0 and all(line in answer.out for line in lines), answer.out


def test_the_same_table_twice_is_the_same(tmp_path: Path) -> None:
    file = save(draw(1.0), tmp_path / "a")
    found = judge(file, file)
    assert list(found.content["models"]) == ["a (1)", "a (2)"]
    same = "AUROC difference +0.000 (+0.000 to +0.000), 40 patients"
    assert found.verdict == f"a (1) and a (2) are alike: {same}"
    few = save(draw(1.0, 12), tmp_path / "few")
    assert "are alike: AUROC difference +0.000 (+0.000 to +0.000), 4 patients" in judge(few, few).verdict


def test_a_table_at_the_top_of_a_file_system_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = save(draw(1.0), tmp_path / "a"), save(draw(2.0), tmp_path / "b", "other.csv")
    monkeypatch.setattr(Path, "resolve", lambda self: Path("/", self.name))  # as in a container
    assert [model.name for model in read_all(tables)] == ["predictions", "other"]


def test_the_same_auroc_is_not_alike_where_the_accuracy_differs(tmp_path: Path) -> None:
    """A monotone change of the log odds keeps every rank and moves the decisions."""
    first = draw(2.0)
    moved = replace(first, logits=first.logits + np.array([0, 1.5], dtype=np.float32))
    found = judge(save(first, tmp_path / "a"), save(moved, tmp_path / "b"))
    gap = found.content["pairs"][0]["difference"]
    assert gap["auroc"]["value"] == 0 and gap["accuracy"]["value"] != 0
    assert "alike" not in found.verdict and "the same AUROC, accuracy difference +0." in found.verdict


def test_holm_counts_the_pairs(tmp_path: Path, vitmed: Any) -> None:
    folders = [tmp_path / run for run in "ab"]
    for noise, folder in enumerate(folders, start=3):
        save(draw(float(noise)), folder)
    (pair,) = judge(*folders).content["pairs"]
    for name in ("auroc", "accuracy"):
        assert pair["tests"][name]["p_holm"] == pair["tests"][name]["p"]
    assert "adjusted" not in pair["verdict"]
    save(draw(6.0), tmp_path / "c")
    assert "p, Holm" in vitmed("compare", *folders, tmp_path / "c").out


def test_models_of_other_operating_points_are_compared_by_the_likeliest_class(tmp_path: Path) -> None:
    usual, other, folders = draw(2.0, each=None), draw(2.5, each=None), [tmp_path / run for run in "abc"]
    asked = EvaluateConfig(target_sensitivity=0.99, calibration="none", resamples=0, report=False)
    for folder, predictions, config in zip(
        folders,
        (usual, other, other),
        (asked.model_copy(update={"target_sensitivity": None}), asked, asked),
        strict=True,
    ):
        policy = choose_policy(draw(3.0, each=None, seed=7), config)
        write_report(folder, policy.apply(predictions), config, policy=policy, title=folder.name)
    assert read_evaluation(folders[1] / "predictions.csv").predictions.threshold is not None
    found = judge(*folders[:2]).content
    at_half = [(p.logits.argmax(axis=1) == p.labels).mean() for p in (usual, other)]
    assert found["pairs"][0]["difference"]["accuracy"]["value"] == pytest.approx(at_half[0] - at_half[1])
    (note,) = [note for note in found["notes"] if "operating points differ" in note]
    assert "a by the likeliest class; b by --target-sensitivity 0.99" in note
    (note,) = [note for note in judge(*folders).content["notes"] if "operating points differ" in note]
    assert "a by the likeliest class; b, c by --target-sensitivity 0.99" in note
    policy = choose_policy(draw(3.0, each=None, seed=7), asked.model_copy(update={"target_sensitivity": None}))
    write_report(tmp_path / "d", policy.apply(other), asked, policy=policy, title="d")
    verdict = judge(folders[1], tmp_path / "d").verdict  # the same model at two points: its decisions differ
    assert verdict.startswith("b and d are alike but for their operating points: AUROC difference +0.000 (+0.000 to ")
    judge(*folders[:2], output=tmp_path / "out")  # a row has both numbers and their difference at one point
    rows = list(csv.DictReader((tmp_path / "out" / "comparison.csv").open(newline="")))
    assert [row["number"] for row in rows if row["number"].endswith(", likeliest class")] == [
        f"{name}, likeliest class"
        for name in ("balanced accuracy", "accuracy", "sick: sensitivity", "sick: specificity")
    ]
    for row in rows:
        assert float(row["first_value"]) - float(row["second_value"]) == pytest.approx(
            float(row["difference"]), abs=2e-6
        )
    assert "b (-{}-target-sensitivity 0.99)" in (tmp_path / "out" / "comparison.tex").read_text()  # no en dash
    found = judge(*folders[1:]).content  # both at their own threshold
    assert all(model["likeliest"] is None for model in found["models"].values())
    assert not any("operating points" in note for note in found["notes"])
    assert found["models"]["b"]["overall"]["accuracy"]["value"] != pytest.approx(at_half[1])


def test_the_same_costs_at_two_prevalences_are_two_operating_points() -> None:
    def model(name: str, prevalence: float | None) -> Model:
        asked = {"report": {"evaluate": {"cost": "10:1", "prevalence": prevalence}}}
        return Model(name, (p := replace(draw(2.0), positive="sick", threshold=0.3)), known=Evaluated(p, None, asked))

    points, notes = operating_points([model("a", 0.1), model("b", 0.6), model("c", None)])
    assert list(points.values()) == ["--cost 10:1 --prevalence 0.1", "--cost 10:1 --prevalence 0.6", "--cost 10:1"]
    assert notes and not operating_points([model("a", 0.1), model("b", 0.1)])[1]


def test_few_patients_tell_nothing(tmp_path: Path) -> None:
    files = [save(draw(noise, size=60, each=20), tmp_path / str(noise)) for noise in (0.5, 4.0)]
    found = judge(*files)
    assert found.verdict.endswith("3 patients, too few to decide") and "not clearly better or worse" in found.verdict
    one = [save(draw(noise, size=60, each=60), tmp_path / f"one{noise}") for noise in (0.5, 4.0)]
    assert "1 patient, too few" in judge(*one).verdict


def test_one_class_is_compared_by_accuracy(tmp_path: Path) -> None:
    files = []
    for noise in (1.0, 5.0):
        p = draw(noise, each=None)
        files.append(save(replace(p, labels=np.zeros(120, np.int64)), tmp_path / str(noise)))
    found = judge(*files)
    assert "accuracy difference" in found.verdict and "120 images" in found.verdict
    assert found.content["pairs"][0]["difference"]["auroc"]["value"] is None
    judge(*files, output=tmp_path / "out")  # the picture says that AUROC is undefined


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda p: replace(p, classes=("healthy", "ill")), "has the classes healthy, ill"),
        (lambda p: replace(p, paths=tuple(f"x{path}" for path in p.paths)), "no image in common"),
        (lambda p: replace(p, labels=1 - p.labels), "differ in the labels of 120 of 120 images, the first is 0.png"),
        (lambda p: replace(p, labels=None), "since its column label is empty"),
        (lambda p: replace(p, paths=("0.png",) * 120), "names 0.png more than once"),
    ],
)
def test_what_cannot_be_compared_is_said(
    tmp_path: Path, change: Callable[[Predictions], Predictions], told: str
) -> None:
    first, other = save(draw(1.0), tmp_path / "a"), save(change(draw(2.0)), tmp_path / "b")
    with pytest.raises(DataError) as error:
        judge(first, other)
    assert told in str(error.value) and error.value.fix


def test_the_same_path_with_other_content_is_another_image(
    trained: Trained, tmp_path: Path, vitmed: Callable[..., Any]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained.folder, run)
    judge(trained.folder, run)
    head, *rows = (run / "splits.csv").read_text().splitlines()
    other = [",".join([path, "0" * 64, *rest]) for path, _, *rest in (row.split(",") for row in rows)]
    (run / "splits.csv").write_text("\n".join([head, *other]))
    answer = vitmed("compare", trained.folder, run)
    count = len(trained.result.test.predictions)
    assert answer.code == 3 and f"the content of {count} of {count} images of the same path" in answer.err
    copies = [shutil.copytree(folder / "test", tmp_path / name) for name, folder in (("a", trained.folder), ("b", run))]
    judge(*copies)  # nobody knows
    for name, folder in (("c", trained.folder), ("d", run)):  # of pooled folds, theirs say it
        shutil.copytree(folder / "test", tmp_path / name / "test")
        shutil.copytree(folder, tmp_path / name / "fold-1")
    with pytest.raises(DataError, match="differ in the content of"):
        judge(tmp_path / "c", tmp_path / "d")
    for damaged in ("", "path,sha256\n"):
        (run / "splits.csv").write_text(damaged)
        judge(trained.folder, run)


def test_nothing_to_compare_with(tmp_path: Path) -> None:
    file = save(draw(1.0), tmp_path / "a")
    with pytest.raises(UsageError, match="nothing to compare"):
        judge(file)
    for other, told in ((tmp_path, r"has no predictions\.csv"), (tmp_path / "gone.csv", r"gone\.csv")):
        with pytest.raises(DataError, match=told):
            judge(file, other)


def test_patients_that_only_one_table_knows_are_used(tmp_path: Path) -> None:
    known, unknown = draw(1.0), draw(2.0, each=None)
    content = judge(save(unknown, tmp_path / "a"), save(known, tmp_path / "b")).content
    assert content["patients"] == 40 and content["notes"] == []
    other = replace(known, groups=tuple(f"Q{i // 4}" for i in range(120)))
    notes = judge(save(known, tmp_path / "c"), save(other, tmp_path / "d")).content["notes"]
    assert notes == ["The tables disagree on the patients; those of c are used."]


def test_a_model_that_was_trained_on_other_images_of_these_patients_is_named(tmp_path: Path) -> None:
    files = [save(draw(noise), tmp_path / name / "test") for name, noise in (("known", 2.0), ("unknown", 1.0))]
    rows = "path,sha256,class,group,split\n" + "".join(f"{i}.png,0,sick,P{i // 3},test\n" for i in range(120))
    (tmp_path / "known" / "splits.csv").write_text(rows + "more.png,0,sick,P40,train\nlast.png,0,sick,P41,val\n")
    assert judge(*files).content.notes == []
    rows += "more.png,0,sick,P3,train\nlast.png,0,sick,P3,val\n"
    (tmp_path / "known" / "splits.csv").write_text(rows)
    (tmp_path / "unknown" / "splits.csv").write_text(re.sub(r",P\d+,", ",,", rows))  # it was divided by image
    told = "was trained on, or chosen with, other images of 1 of the 40 patients: its result is too good."
    assert [*judge(*files).content.notes] == [f"known {told}", f"unknown {told}"]
    elsewhere = re.sub(r"(\d+).png", r"site/\1.png", rows)  # other images, whose patients may be other people
    for name in ("known", "unknown"):
        (tmp_path / name / "splits.csv").write_text(elsewhere)
    assert judge(*files).content.notes == []


def test_the_command(vitmed: Any, tmp_path: Path) -> None:
    files = [save(draw(noise), tmp_path / name) for name, noise in (("good", 1.0), ("poor", 4.0))]
    answer = vitmed("compare", *files)
    assert answer.code == 0
    assert answer.out.rstrip("\n").split("\n")[-1].startswith("good is better than poor: AUROC difference +")
    answer = vitmed("compare", *files, "--json")
    assert json.loads(answer.out)["verdict"].startswith("good is better")


def seeded(folder: Path, seed: int, predictions: Predictions, lr: float = 0.001) -> Path:
    """A run folder with its configuration and the evaluation of its test."""
    save(predictions, folder / "test")
    (folder / "config.yaml").write_text(f"data:\n  root: ../data\ntrain:\n  lr: {lr}\n  seed: {seed}\n")
    return folder


def test_runs_that_differ_by_the_seed_have_a_spread_over_seeds(vitmed: Any, tmp_path: Path) -> None:
    made = [draw(2.0 + seed / 100) for seed in range(3)]
    runs = [seeded(tmp_path / f"seed-{seed}", seed, p) for seed, p in enumerate(made[:2])]
    runs.append(seeded(tmp_path / "deep" / "seed-2", 2, made[2]))  # one folder deeper, with the same images
    config = runs[2] / "config.yaml"
    config.write_text(config.read_text().replace("../data", "../../data"))
    found = judge(*runs, output=tmp_path / "out")
    (group,) = found.content.seeds
    assert group.seeds == {"seed-0": 0, "seed-1": 1, "seed-2": 2}
    for name in ("auroc", "accuracy", "log_loss"):
        own = [found.content.models[f"seed-{i}"].overall[name] for i in range(3)]
        values = [one.value for one in own]
        number = group.numbers[name]
        assert (number.mean, number.sd) == pytest.approx((np.mean(values), stats.tstd(values)))
        assert (number.smallest, number.largest) == (min(values), max(values))
        assert number.low == pytest.approx(np.mean([one.low for one in own]))
    assert found.verdict == group.text and "differ by the training seed only (0, 1, 2)" in found.verdict
    assert "SD over 3 seeds" in found.verdict and "interval of one run over patients" in found.verdict
    assert json.loads((tmp_path / "out" / "compare.json").read_text())["seeds"][0]["seeds"]["seed-1"] == 1
    said = vitmed("compare", *runs).out
    assert "SD over seeds" in said
    assert 0 < said.index("training seed only") < said.index("clearly better or worse than")


def test_runs_that_differ_by_more_than_the_seed_have_none(tmp_path: Path) -> None:
    first, second = (seeded(tmp_path / f"s{seed}", seed, draw(2.0 + seed / 100)) for seed in range(2))
    other = seeded(tmp_path / "lr", 2, draw(1.0), lr=0.01)
    both = judge(first, second, other)
    assert [list(group.seeds) for group in both.content.seeds] == [["s0", "s1"]] and both.verdict.startswith(
        "s0 is worse than lr: AUROC difference -0."
    )
    again = seeded(tmp_path / "again", 0, draw(2.5))
    for several in ((first, other), (first, again), (first, save(draw(1.5), tmp_path / "table"))):
        found = judge(*several)
        assert not found.content.seeds and "seeds" not in found.content.to_dict()


def draw_findings(noise: float, findings: tuple[str, ...] = ("edema", "mass", "hernia")) -> FindingPredictions:
    """One model's answer about findings of 40 patients; the labels are the same for every noise."""
    labels = (np.random.default_rng(0).random((120, 3)) < [0.5, 0.4, 0.3]).astype(np.int8)
    scores = 2.0 * labels - 1 + noise * np.random.default_rng([1, int(noise * 100)]).normal(size=(120, 3))
    groups, paths = tuple(f"P{i // 3}" for i in range(120)), tuple(f"{i}.png" for i in range(120))
    return FindingPredictions(findings, paths, groups, labels, scores.astype(np.float32))


def draw_number(noise: float, centre: float = 50.0, unit: str = "years") -> NumberPredictions:
    """One model's answer about the age of 40 patients, standardised in its own way."""
    labels = np.random.default_rng(0).normal(50, 10, 120)
    numbers = labels + noise * np.random.default_rng([1, int(noise * 100)]).normal(size=120)
    logits = np.stack([(numbers - centre) / 9, np.full(120, np.log(noise / 9))], axis=1).astype(np.float32)
    groups, paths = tuple(f"P{i // 3}" for i in range(120)), tuple(f"{i}.png" for i in range(120))
    target = Target(kind="number", unit=unit, centre=centre, spread=9)
    return NumberPredictions(("age",), paths, groups, labels, logits, target=target)


def test_findings_are_compared_as_a_whole_and_one_by_one(tmp_path: Path, vitmed: Callable[..., Answer]) -> None:
    good, poor = draw_findings(1.0), draw_findings(3.0)
    turned = poor.take(np.arange(120)[::-1]).like(replace(good, classes=("mass", "hernia", "edema")))
    found = judge(save(good, tmp_path / "a"), save(turned, tmp_path / "b"), output=tmp_path / "out").content
    pair = found.pairs[0]
    assert found.kind == "findings" and pair.difference == compare_findings(good, poor).difference
    expected = PreparedFindings(good).class_gaps(PreparedFindings(poor))
    assert pair.classes is not None and pair.average_precision is not None
    for name in good.classes:
        assert pair.classes[name].value == expected["auroc"][name].value
        assert pair.average_precision[name].low == expected["average_precision"][name].low
    ps = [expected["auroc"][name].p for name in good.classes]
    assert [pair.classes[name].p_holm for name in good.classes] == pytest.approx(holm(ps))
    assert found.verdict.startswith("a is better than b: macro AUROC difference +0.") and "40 patients" in found.verdict
    assert "In a row of the likeliest class" not in (tmp_path / "out" / "comparison.html").read_text()
    rare = replace(good, labels=np.where(np.arange(120)[:, None] // 12 > 0, good.labels * [1, 1, 0], good.labels))
    both = (rare, replace(poor, labels=rare.labels))
    notes = judge(*(save(of, tmp_path / f"rare{k}") for k, of in enumerate(both))).content.notes
    assert len(notes) == 1 and "Means over findings leave out 1 finding: 'hernia' (fewer than 5" in notes[0]
    answer = vitmed("compare", tmp_path / "a" / "predictions.csv", tmp_path / "b" / "predictions.csv")
    assert answer.code == 0 and "edema: average precision" in answer.out and "subset accuracy" in answer.out


def test_findings_at_another_point_are_compared_by_the_side_of_0_5_and_areas_need_none(tmp_path: Path) -> None:
    config = EvaluateConfig(target_sensitivity=0.9, report=False)
    for name, settings in (("a", config), ("b", EvaluateConfig(report=False))):
        policy = choose_policy(draw_findings(2.0), settings)
        predictions = policy.apply(draw_findings(1.0 if name == "a" else 1.5))
        Report.of(predictions, Origin(title=name), settings, Extra(policy=policy)).write(tmp_path / name)
    found = judge(tmp_path / "a", tmp_path / "b", output=tmp_path / "out").content
    assert any("b by the side of 0.5. Two models of the same point" in note for note in found.notes)
    titles = {row["number"] for row in csv.DictReader((tmp_path / "out" / "comparison.csv").open(newline=""))}
    assert "subset accuracy, side of 0.5" in titles and "edema: average precision" in titles
    assert not any("likeliest" in title or title.endswith("precision, side of 0.5") for title in titles)
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "In a row of the side of 0.5 both decide" in page and "likeliest" not in page


def test_a_finding_beside_a_baseline_has_an_adjusted_p(tmp_path: Path) -> None:
    good, poor = draw_findings(1.0), draw_findings(3.0)
    files = save(good, tmp_path / "a"), save(poor, tmp_path / "a", "baseline_colour_and_size.csv")
    (pair,) = judge(*files, output=tmp_path / "out").content.pairs
    extra = Extra(baselines={"colour_and_size": poor})
    metrics = Report.of(good, Origin(title="a"), EvaluateConfig(resamples=20, report=False), extra)
    gaps = pair.classes or {}
    assert [gap.p_holm for gap in gaps.values()] == pytest.approx(holm([gap.p for gap in gaps.values()]))
    page = html.unescape((tmp_path / "out" / "comparison.html").read_text())
    assert "adjusted for all findings or classes of a pair by the method of Holm [" in page and "<li>Holm S." in page
    for part in metrics.findings.values():
        assert any("One of 3 findings: only vitmed compare adjusts a difference" in n for n in part.results.notes)


def test_numbers_are_compared_and_the_smaller_error_is_better(tmp_path: Path, vitmed: Callable[..., Answer]) -> None:
    good, poor = draw_number(2.0), draw_number(5.0, centre=40.0)
    found = judge(save(poor, tmp_path / "poor"), save(good, tmp_path / "good"), output=tmp_path / "out")
    gap = found.content.pairs[0].difference["mae"]
    errors = [np.abs(one.values - one.labels).mean() for one in (poor, good) if one.labels is not None]
    assert gap.value == pytest.approx(errors[0] - errors[1], rel=1e-6) and gap.low is not None and gap.low > 0
    assert found.verdict.startswith("poor is worse than good: mean absolute error difference +")  # as in the row
    assert ") years, 40 patients, p < 0.001" in found.verdict
    log_scores = [found.content.models[name].overall["log_score"].value for name in ("poor", "good")]
    assert log_scores[0] == pytest.approx(np.mean(distribution_scores(poor)[1]), rel=1e-5)  # the first keeps its own
    answer = vitmed("compare", tmp_path / "poor" / "predictions.csv", tmp_path / "good" / "predictions.csv")
    assert answer.code == 0 and "concordance" in answer.out and "RMSE" in answer.out
    same = judge(save(good, tmp_path / "one"), save(good, tmp_path / "two"))
    equal = "mean absolute error difference +0.000 (+0.000 to +0.000) years, 40 patients"
    assert same.verdict == f"one and two are alike: {equal}"
    wide = judge(save(replace(good, reach=2.0), tmp_path / "wide"), save(replace(good, reach=1.0), tmp_path / "narrow"))
    still = "mean absolute error difference +0.000 years, 40 patients, p = 1.000"
    assert wide.verdict == f"wide is not clearly better or worse than narrow: {still}"


@pytest.mark.parametrize(
    ("first", "other", "match"),
    [
        (draw_findings(1.0), draw(1.0), "b has predictions of classes, a of findings"),
        (draw_findings(1.0), draw_number(1.0), "b has predictions of a number, a of findings"),
        (draw_findings(1.0), draw_findings(1.0, ("edema", "mass", "nodule")), "b has the findings edema, mass, nodule"),
        (draw_number(1.0), draw_number(2.0, unit="months"), "b predicts in the unit 'months', a in 'years'"),
    ],
)
def test_models_of_other_labels_are_not_compared(
    tmp_path: Path, first: Predictions, other: Predictions, match: str
) -> None:
    with pytest.raises(DataError, match=match) as told:
        judge(save(first, tmp_path / "a"), save(other, tmp_path / "b"))
    assert "months" in match or "RUN/test/findings/FINDING" in told.value.fix


def test_two_classes_are_compared_in_the_sensitivity_and_specificity_of_the_positive_one(tmp_path: Path) -> None:
    """McNemar's test by hand."""
    generator = np.random.default_rng(4)
    labels, paths = generator.integers(0, 2, 120), tuple(f"{i}.png" for i in range(120))
    files, right = [], []
    for k, strength in enumerate((0.6, 1.4)):
        logits = np.stack([np.zeros(120), (2 * labels - 1) * strength + generator.normal(size=120)], axis=1)
        files.append(tmp_path / f"{k}.csv")
        files[-1].write_text(Predictions(("healthy", "ill"), paths, None, labels, logits, positive="ill").to_csv())
        right.append(logits.argmax(axis=1) == labels)
    pair = compare(*files).content.pairs[0]
    assert pair.classes is None
    for name, label, gaps in (("sensitivity", 1, pair.sensitivity), ("specificity", 0, pair.specificity)):
        first, second = (of[labels == label] for of in right)
        only = (first & ~second).sum(), (second & ~first).sum()
        assert gaps is not None and list(gaps) == ["ill"], name
        assert gaps["ill"].value == pytest.approx(first.mean() - second.mean())
        assert gaps["ill"].p == pytest.approx(stats.chi2.sf((only[0] - only[1]) ** 2 / sum(only), 1))
        assert gaps["ill"].p_holm == gaps["ill"].p  # one pair


def test_groups_that_are_no_patients_are_named_as_in_the_reports() -> None:
    """Originals of copies, which `--groups copies` finds: the sentence does not speak of patients."""
    known: Any = SimpleNamespace(metrics={"flow": {"how": "as originals of augmented copies"}})
    models = [Model(name, draw(noise), known=known) for name, noise in (("a", 1.0), ("b", 2.0))]
    found = compare_models(models)
    assert "40 originals" in found.verdict and "patient" not in found.verdict and found.resampling == "by original"
    assert any("Patients are unknown, originals are compared" in note for note in found.notes)


def test_one_grade_against_the_rest_is_compared_as_two_classes(tmp_path: Path) -> None:
    """By AUROC, not by the kappa of grades, which two classes that nobody calls do not have."""
    folders = []
    for name, noise in (("a", 1.0), ("b", 6.0)):
        graded = replace(draw(noise, 240, classes=3, each=None), target=Target(kind="grades"))
        folders.append(tmp_path / name / "against-rest")
        asked = EvaluateConfig(resamples=0, report=False)
        write_report(folders[-1], graded.against_rest("other"), config=asked, title=name)
    pair = judge(*folders).content.pairs[0]
    assert "auroc" in pair.tests and "quadratic_kappa" not in pair.tests
    assert f"{tmp_path.name}/a/against-rest is better than" in pair.verdict


def test_one_class_against_the_rest_at_the_threshold_of_each_model(tmp_path: Path, vitmed: Any) -> None:
    """McNemar's test by hand, at the threshold that the evaluation of that class chose."""
    made, called = [draw(noise, classes=3, each=None) for noise in (2.0, 3.0)], []
    asked = EvaluateConfig(target_sensitivity=0.8, calibration="none", resamples=0, report=False)
    policy = choose_policy(draw(3.0, classes=3, each=None, seed=7).against_rest("sick"), asked)
    for name, predictions in zip("ab", made, strict=True):
        decided = policy.apply(predictions.against_rest("sick"))
        write_report(tmp_path / name / "against-rest", decided, asked, policy=policy, title=name)
        assert decided.threshold is not None and decided.threshold != 0.5
        called.append(predictions.probabilities[:, 1] >= decided.threshold)
    sick = known_labels(made[0]) == 1
    folders = [tmp_path / name / "against-rest" for name in "ab"]
    found = judge(*folders).content
    pair, first = found.pairs[0], found.models[found.pairs[0].first]
    for name, counted, gaps in (("sensitivity", sick, pair.sensitivity), ("specificity", ~sick, pair.specificity)):
        right = [(of == sick)[counted] for of in called]
        b, c = (right[0] & ~right[1]).sum(), (right[1] & ~right[0]).sum()
        assert gaps is not None and gaps["sick"].value == pytest.approx(right[0].mean() - right[1].mean())
        assert gaps["sick"].p == pytest.approx(stats.chi2.sf((b - c) ** 2 / (b + c), 1))
        assert getattr(first.per_class["sick"], name).value == pytest.approx(right[0].mean())
    answer = vitmed("compare", *folders)
    assert answer.code == 0 and "sick: sensitivity" in answer.out, answer.err
    both = [save(predictions, tmp_path / f"table-{k}") for k, predictions in enumerate(made)]
    assert "--positive CLASS" in vitmed("compare", *both).out


def test_the_tables_hold_each_models_own_numbers_beside_the_difference(tmp_path: Path) -> None:
    """One direction everywhere: CSV, LaTeX, page and sentence say the first minus the second."""
    files = [save(draw(noise), tmp_path / name) for name, noise in (("poor", 4.0), ("=good", 1.0))]
    found = judge(*files, output=tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out" / "comparison.csv").open(newline="")))
    assert [row["number"] for row in rows] == [
        "AUROC", "balanced accuracy", "accuracy", "sick: sensitivity", "sick: specificity",
    ]  # fmt: skip
    pair, models = found.content.pairs[0], found.content.models
    assert rows[0]["second"] == "'=good"  # no formula for a spreadsheet
    for row, name in zip(rows, ("auroc", "balanced_accuracy", "accuracy"), strict=False):
        for title, entry in (
            ("first_value", models["poor"].overall[name]),
            ("second_value", models["=good"].overall[name]),
            ("difference", pair.difference[name]),
        ):
            ends = [float(row[title + end]) for end in ("", "_low", "_high")]
            assert ends == pytest.approx([entry.value, entry.low, entry.high], rel=1e-5)
    assert float(rows[0]["p"]) == pytest.approx(pair.tests["auroc"].p, rel=1e-5) and rows[1]["p"] == ""
    assert float(rows[0]["difference"]) < 0
    shown = f"{pair.difference['auroc'].value:+.3f}"
    latex, page = ((tmp_path / "out" / f"comparison.{kind}").read_text() for kind in ("tex", "html"))
    assert r"\label{tab:comparison}" in latex and "A minus B" in latex and shown.replace("-", "$-$") in latex
    assert shown in page and f"poor is worse than =good: AUROC difference {shown}" in page
    for own in (models["poor"].overall["auroc"], models["=good"].overall["auroc"]):
        assert all(f"{own.value:.3f}" in text for text in (latex, page))
    sentence = page[page.index("On the same ") : page.index("confidence intervals by")]
    values = [f"{models[name].overall['auroc'].value:.3f}" for name in ("poor", "=good")]
    assert re.search(
        rf"poor and =good reached AUROC {values[0]} \(.*\) and {values[1]} \(.*\) \(difference {shown} ", sentence
    )
