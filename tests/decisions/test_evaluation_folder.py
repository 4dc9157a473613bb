"""Nothing is read from an evaluation of other weights; later commands find the one that fits."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY, TINY_SETS, Trained, draw_classes, draw_splits, once, recording

from vitmed import compare, evaluate, train
from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import DataError
from vitmed.core.run_folder import ISSUES, RunFolder
from vitmed.decisions.evaluation_folder import Evaluated, earlier_choices, find_evaluation, read_evaluation, take_place
from vitmed.decisions.policy import choose_policy
from vitmed.deploy.monitor import read_reference
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.report.headline import known_evaluation
from vitmed.studies.comparison import table_of

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="session")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A finished run that was resumed for longer, so that val/ and test/ are of former weights."""

    def make(place: Path) -> Trained:
        data, ui = draw_splits(place / "data", train=16, val=30, test=8), recording()
        settings = TINY | {"epochs": 1, "resamples": 10, "baseline": False, "map_images": 0, "report": False}
        train(data, output=place / "runs", name="run", sets=TINY_SETS, **settings)
        result = train(resume=place / "runs" / "run", epochs=5)
        assert result.test.folder.name == "test-2"
        return Trained(data, result.folder, result, ui, [], [])

    return once(tmp_path_factory, "longer", make)


@pytest.mark.parametrize(
    "part",
    [{"classes": 3}, {"classes": [1, 2]}, {"flow": "test"}, {"target": {"kind": "x"}}, {"target": 3}, {"folds": 3}],
)
def test_a_metrics_json_with_a_part_of_another_kind_is_refused(part: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").write_text("path,label,prob_a,prob_b\nx.png,a,0.7,0.3\n")
    whole = {"report": {}, "classes": ["a", "b"], "positive_class": "b"}
    (tmp_path / "metrics.json").write_text(json.dumps(whole))
    assert read_evaluation(tmp_path / "predictions.csv").predictions.positive == "b"
    (tmp_path / "metrics.json").write_text(json.dumps(whole | part))
    with pytest.raises(DataError, match=r"not the metrics\.json of a report"):
        read_evaluation(tmp_path / "predictions.csv")
    run = RunFolder(tmp_path.parent)
    assert find_evaluation(run, tmp_path.name, "0" * 64) is None


def stated(folder: Path) -> str:
    return json.loads((folder / "metrics.json").read_text())["weights_hash"]


def test_every_evaluation_states_its_weights(longer: Trained) -> None:
    best = load_checkpoint(longer.folder)
    assert best.policy is not None  # of the resumed run too
    assert [stated(longer.folder / name) == best.weights_hash for name in ("val", "test", "val-2", "test-2")] == [
        False, False, True, True,
    ]  # fmt: skip


def test_a_point_is_chosen_on_the_validation_of_these_weights(longer: Trained, tmp_path: Path) -> None:
    """The same as in a run folder that never had other weights."""
    asked = {"target_specificity": 0.8, "resamples": 10, "map_images": 0, "data": longer.data}
    found = evaluate(longer.folder, output=tmp_path / "a", **asked)
    clean = tmp_path / "clean"
    shutil.copytree(longer.folder, clean)
    for name in ("val", "test"):
        shutil.rmtree(clean / name)
        (clean / f"{name}-2").rename(clean / name)
    expected = evaluate(clean, output=tmp_path / "b", **asked)
    assert found.predictions.threshold == expected.predictions.threshold is not None
    assert found.metrics["report"]["policy"] == expected.metrics["report"]["policy"]
    former, present = (Predictions.from_csv(longer.folder / name / "predictions.csv") for name in ("val", "val-2"))
    assert not np.allclose(former.logits, present.logits)


def test_other_images_stand_beside_the_own_test_of_these_weights(longer: Trained, tmp_path: Path) -> None:
    draw_classes(tmp_path / "other", 5, seed=9)
    found = evaluate(longer.folder, data=tmp_path / "other", output=tmp_path / "r", resamples=10)
    own = found.metrics["external"]["numbers"]["auroc"]["internal"]["value"]
    assert own == longer.result.test.metrics["overall"]["auroc"]["value"]


def test_compare_takes_the_test_of_best_pt(longer: Trained, tmp_path: Path) -> None:
    baseline = tmp_path / "b" / "predictions.csv"
    baseline.parent.mkdir()
    shutil.copy(longer.folder / "test" / "predictions.csv", baseline)
    content = compare(longer.folder, baseline).content
    name = next(name for name in content["models"] if name != "b")
    expected = longer.result.test.metrics["overall"]["log_loss"]["value"]
    assert content["models"][name]["overall"]["log_loss"]["value"] == pytest.approx(expected)
    shutil.copytree(longer.folder, tmp_path / "run")
    for folder in ("val-2", "test-2"):
        shutil.rmtree(tmp_path / "run" / folder)
    with pytest.raises(DataError, match=r"has no evaluation of its best\.pt") as error:
        compare(tmp_path / "run", baseline)
    assert "vitmed evaluate" in error.value.fix


@pytest.mark.parametrize(
    ("beside", "taken"),
    [
        ({}, True),
        ({"metrics.json": "{}"}, True),
        ({"metrics.json": "{}", ISSUES: "", "baseline_predictions.csv": ""}, True),
        ({"report.html": "a page"}, False),
        ({"notes of a physician.txt": "ours"}, False),
        ({"predictions.csv": "path,label\nb.png,ill\n"}, False),  # other predictions
    ],
)
def test_an_evaluation_replaces_only_what_it_holds_itself(tmp_path: Path, beside: dict[str, str], taken: bool) -> None:
    """The folder `test` of a run has the predictions without a report: an evaluation with the same ones and a report
    takes its place. Anything else in the folder is kept, and so is the folder."""
    new, place, table = tmp_path / "test-2", tmp_path / "test", "path,label\na.png,ill\n"
    for folder, files in ((new, {"report.html": "new"}), (place, beside)):
        folder.mkdir()
        for name, text in ({"predictions.csv": table} | files).items():
            (folder / name).write_text(text)
    assert take_place(new, place) == (place if taken else new)
    assert new.exists() != taken and (taken or {file.name for file in place.iterdir()} == {"predictions.csv", *beside})
    assert ((place if taken else new) / "report.html").read_text() == "new"


def test_an_evaluation_without_a_report_replaces_nothing(tmp_path: Path) -> None:
    for name in ("test", "test-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "predictions.csv").write_text("path\na.png\n")
    assert take_place(tmp_path / "test-2", tmp_path / "test") == tmp_path / "test-2"
    assert (tmp_path / "test").is_dir() and (tmp_path / "test-2").is_dir()


def test_only_evaluations_of_other_weights_or_choices_are_named(tmp_path: Path) -> None:
    """Two folders of the test: one of these weights, one of others."""
    for name, weights in (("test", "a" * 64), ("test-2", "b" * 64)):
        (tmp_path / name).mkdir()
        content = {"report": {"policy": None}, "classes": ["x", "y"], "positive_class": None, "weights_hash": weights}
        (tmp_path / name / "metrics.json").write_text(json.dumps(content))
    (note,) = earlier_choices(RunFolder(tmp_path), "a" * 64, None)
    assert "other weights or another decision policy: test-2." in note
    shutil.rmtree(tmp_path / "test-2")
    assert earlier_choices(RunFolder(tmp_path), "a" * 64, None) == []


def test_a_policy_that_decides_alike_is_no_other_choice(tmp_path: Path) -> None:
    """Four evaluations of the test by these weights: by the same policy, by one that decides alike though more was
    asked of it, by one of the same wishes, and by one at another threshold."""
    labels = np.arange(80) % 2
    logits = (np.random.default_rng(0).normal(size=(80, 2)) + np.eye(2)[labels]).astype(np.float32)
    p = Predictions(("x", "y"), tuple(map(str, range(80))), None, labels, logits, positive="y")
    policy, other = (choose_policy(p, EvaluateConfig(youden=youden)) for youden in (False, True))
    alike = policy.model_copy(update={"asked": policy.asked | {"prevalence": 0.1}})
    again = other.model_copy(update={"asked": policy.asked})
    for name, chosen in {"test": policy, "test-2": alike, "test-3": again, "test-4": other}.items():
        (tmp_path / name).mkdir()
        known = {"classes": ["x", "y"], "positive_class": "y", "weights_hash": "a"}
        content = known | {"report": {"policy": chosen.to_json()}}
        (tmp_path / name / "metrics.json").write_text(json.dumps(content))
    (note,) = earlier_choices(RunFolder(tmp_path), "a", policy)
    assert "another decision policy: test-4." in note
    assert Evaluated(p, None, {}).run == "" and Evaluated(p, None, {}).created is None


def test_the_numbers_of_a_model_are_those_of_its_own_policy(trained: Trained, tmp_path: Path) -> None:
    """An older evaluation at another operating point, whose decisions no prediction of the model has; and the card."""
    run, other = RunFolder(tmp_path / "run"), {"balanced": True, "resamples": 5, "report": False}
    shutil.copytree(trained.folder, run.path)
    run.model_card.unlink()
    assert evaluate(run.path, data=trained.data, **other).folder.name == "test-2"
    assert not run.model_card.exists()
    (run.path / "test").rename(tmp_path / "own")
    (run.path / "test-2").rename(run.path / "test")
    saved = load_checkpoint(run.best)
    assert find_evaluation(run, "test", saved.weights_hash) == run.path / "test" / "predictions.csv"
    assert find_evaluation(run, "test", saved.weights_hash, saved.policy) is known_evaluation(saved, "test") is None
    (tmp_path / "own").rename(run.path / "test-3")
    assert find_evaluation(run, "test", saved.weights_hash, saved.policy) == run.path / "test-3" / "predictions.csv"
    assert read_reference(run.path, None)[0].name == table_of(run.path).parent.name == "test-3"


def test_folders_of_somebody_else_are_passed_over(longer: Trained, tmp_path: Path) -> None:
    run, saved = RunFolder(tmp_path / "run"), load_checkpoint(longer.folder)
    shutil.copytree(longer.folder, run.path)
    (run.path / "test" / "metrics.json").write_text("{")
    (run.path / "test-x").mkdir()
    (run.path / "testing").mkdir()
    for number in (3, 10):
        shutil.copytree(run.path / "test-2", run.path / f"test-{number}")
    assert [path.name for path in run.evaluations("test")] == ["test", "test-2", "test-3", "test-10"]
    assert find_evaluation(run, "test", saved.weights_hash) == run.path / "test-2" / "predictions.csv"
    assert find_evaluation(run, "test", "0" * 64) is None


def test_a_table_without_its_policy_counts_what_another_threshold_decided(tmp_path: Path) -> None:
    logits = np.array([[0.0, 3.0], [0.0, -0.2], [0.0, -3.0]], np.float32)
    read = Predictions(("a", "b"), tuple("xyz"), None, np.array([1, 1, 0]), logits, positive="b")
    (tmp_path / "t.csv").write_text(replace(read, threshold=0.4).to_csv())
    found = read_evaluation(tmp_path / "t.csv").predictions
    assert found.predicted.tolist() == [1, 0, 0] and found.notes == (
        "1 prediction in the table was decided otherwise, the first in row 2; these numbers decide by the largest "
        "probability.",
    )
    (tmp_path / "t.csv").write_text(read.to_csv())
    assert read_evaluation(tmp_path / "t.csv").predictions.notes == ()
    labels = np.array([[1, 0], [0, 1], [0, 0]])
    chances = FindingPredictions(("m", "n"), tuple("xyz"), None, labels, logits, thresholds=(0.5, 0.4))
    (tmp_path / "f.csv").write_text(chances.to_csv())
    (note,) = read_evaluation(tmp_path / "f.csv").predictions.notes
    assert note.startswith("1 prediction in the table was decided") and note.endswith("at a probability of 0.5.")
    (tmp_path / "f.csv").write_text(replace(chances, labels=np.array([[1, 0], [0, 1], [-1, -1]])).to_csv())
    assert read_evaluation(tmp_path / "f.csv").predictions.notes == (
        "1 image has no known label and is left out.",
        note,
    )
