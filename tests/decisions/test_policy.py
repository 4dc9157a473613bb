"""The decision policy: stored in best.pt, applied by evaluate and predict, chosen again and made again."""

from __future__ import annotations

import copy
import csv
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import save
from conftest import TINY, TINY_NETWORK, Trained, draw_splits, once, recording
from reports import write_report
from scipy.special import softmax

from vitmed import evaluate, predict, train
from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.decisions.conformal import report_sets
from vitmed.decisions.evaluation_folder import validation_of
from vitmed.decisions.operating_points import asked_point, report_points
from vitmed.decisions.out_of_distribution import report_ood_scores
from vitmed.decisions.policy import (
    ClassPolicy,
    choose_policy,
    count_answers,
    notes_of,
    policy_of,
    policy_settings,
    unlike_training,
)
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.predictions import Predictions


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two classes, enough validation images to fit a temperature, and a point that was asked for."""

    def make(place: Path) -> Trained:
        data, ui = draw_splits(place / "data", train=30, val=30, test=12), recording()
        settings = TINY | {"epochs": 3, "resamples": 50, "target_sensitivity": 0.9, "baseline": False}
        settings |= {"calibration": "temperature"}
        result = train(data, output=place / "runs", name="two", sets=TINY_NETWORK, **settings)
        return Trained(data, result.folder, result, ui, [], [])

    return once(tmp_path_factory, "policy", make)


@pytest.fixture(autouse=True)
def _quick(no_figures: None) -> None:
    """Figures are looked at elsewhere."""


def table(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_best_holds_it_in_plain_types_and_the_others_do_not(run: Trained) -> None:
    content = torch.load(run.best, weights_only=True)["policy"]
    assert content["calibration"]["method"] == "temperature" and content["n"] == 60
    assert content["asked"]["target_sensitivity"] == 0.9 and content["operating"]["chosen"] == "target_sensitivity"
    assert isinstance(content["ood_score"]["precision"], torch.Tensor)
    assert content["weights_hash"] == load_checkpoint(run.best).weights_hash
    assert load_checkpoint(run.folder / "last.pt").policy is None
    assert any(
        "chosen on 60 validation images: the probabilities are calibrated by temperature" in text
        for text in run.ui.said
    )


def test_it_follows_from_validation_alone(run: Trained) -> None:
    """From the raw logits of the network and the configuration, without the test images; the table holds the logits."""
    saved = load_checkpoint(run.best)
    stored = saved.policy
    validation = Predictions.from_csv(run.folder / "val" / "predictions.csv")
    with torch.no_grad():
        images = np.stack([saved.preprocessing.read(run.data / path) for path in validation.paths])
        raw = saved.model()(saved.preprocessing.normalise(torch.from_numpy(images))).numpy()
    again = choose_policy(replace(validation, logits=raw), saved.config.evaluate)
    assert again.calibration.scale == pytest.approx(stored.calibration.scale, rel=1e-3)
    assert again.operating.chosen == stored.operating.chosen == "target_sensitivity"
    assert again.operating.threshold == pytest.approx(stored.operating.threshold, rel=1e-2)
    assert validation.logits == pytest.approx(raw, rel=1e-3, abs=1e-4)
    scaled = raw.astype(np.float64) / (1 / stored.calibration.scale[0])  # Guo et al. 2017, equation 9
    assert validation.probabilities == pytest.approx(softmax(scaled, axis=1), abs=1e-4)


def test_predict_gives_what_evaluate_gives(run: Trained) -> None:
    evaluated = table(run.folder / "test" / "predictions.csv")
    said = predict(run.data / "test", checkpoint=run.best)
    stored = load_checkpoint(run.best).policy
    assert said.threshold == stored.operating.points["target_sensitivity"].threshold
    assert said.positive == "blue" and len(evaluated) > 0
    assert [said.classes[k] for k in said.predicted] == [row["prediction"] for row in evaluated]
    for name in ("set", "answer", "ood_score"):
        assert list(said.columns[name]) == [row[name] for row in evaluated]
    for row in evaluated:
        assert row["prediction"] == ("blue" if float(row["prob_blue"]) >= said.threshold else "amber")
        assert row["prediction"] in row["set"].split(" | ") and row["answer"].partition(":")[0] in ("yes", "no")


def test_unlike_images_are_not_answered_and_are_told(run: Trained, tmp_path: Path, vitmed: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    from PIL import Image

    (tmp_path / "noise").mkdir()
    for i in range(8):
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(tmp_path / "noise" / f"{i}.png")
    said = predict(tmp_path / "noise", checkpoint=run.best)
    assert sum("unlike the training images" in cell for cell in said.columns["answer"]) >= 3
    found = evaluate(run.best, output=tmp_path / "r", resamples=20)
    again = evaluate(tmp_path / "r" / "predictions.csv", output=tmp_path / "s")
    assert again.metrics["out_of_distribution"] == found.metrics["out_of_distribution"]
    answer = vitmed("predict", tmp_path / "noise", "--checkpoint", run.best, "--json")
    image = json.loads(answer.out)["images"][0]
    assert {"set", "answer", "ood_score"} <= set(image) and json.loads(answer.out)["threshold"] == said.threshold
    assert "answer" in vitmed("predict", tmp_path / "noise", "--checkpoint", run.best).out


def test_another_point_is_chosen_on_the_same_validation(run: Trained, tmp_path: Path) -> None:
    found = evaluate(run.best, target_specificity=0.8, output=tmp_path / "a")
    points = found.metrics["operating_points"]
    assert points["chosen"] == "target_specificity" and "target_sensitivity" not in points["points"]
    before = run.result.test.predictions
    assert found.predictions.logits.tobytes() == before.logits.tobytes()
    assert found.predictions.probabilities.tobytes() == before.probabilities.tobytes()  # the calibration stays
    raw = evaluate(run.best, calibration="none", output=tmp_path / "b")
    assert raw.predictions.logits.tobytes() == before.logits.tobytes() and raw.predictions.calibrated is None
    assert raw.metrics["calibration"]["method"] == "none" and raw.metrics["calibration"]["before"] is None


def test_the_report_is_made_again_from_the_table_as_it_was_or_with_another_point(run: Trained, tmp_path: Path) -> None:
    file = run.folder / "test" / "predictions.csv"
    before = json.loads(file.with_name("metrics.json").read_text())
    again = evaluate(file, output=tmp_path / "a")
    found = again.metrics.to_dict()
    assert found["report"].pop("rebuilt") and found == before
    assert (tmp_path / "a" / "predictions.csv").read_bytes() == file.read_bytes()
    other = evaluate(file, output=tmp_path / "b", cost="50:1")
    assert other.metrics["report"]["policy"]["asked"]["cost"] == "50:1"
    assert other.predictions.logits.tobytes() == run.result.test.predictions.logits.tobytes()
    direct = evaluate(run.best, output=tmp_path / "c", cost="50:1")
    assert other.metrics["operating_points"]["chosen"] == direct.metrics["operating_points"]["chosen"]
    assert (other.predictions.predicted == direct.predictions.predicted).all()


def rewrite_weights(file: Path) -> Path:
    """Other weights in place of those of a checkpoint."""
    content = torch.load(file, weights_only=True)
    content["weights"] = {name: tensor + 0.5 for name, tensor in content["weights"].items()}
    save(content, file)
    return file


def test_nothing_can_be_chosen_where_validation_is_not_known(run: Trained, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "run")
    for name in ("predictions.csv", "metrics.json"):
        shutil.copy(run.folder / "test" / name, tmp_path / name)
    shutil.rmtree(tmp_path / "run" / "val")
    for file, given in ((tmp_path / "run" / "best.pt", {"data": run.data}), (tmp_path / "predictions.csv", {})):
        with pytest.raises(UsageError, match=r"val.predictions\.csv: missing"):
            evaluate(file, youden=True, output=tmp_path / "r", **given)
    with pytest.raises(UsageError, match=r"val.predictions\.csv: missing or not of m\.onnx") as told:
        validation_of(tmp_path / "run" / "m.onnx", "0", None)
    assert told.value.fix.endswith("vitmed evaluate RUN --data DIR with this flag")
    shutil.copytree(run.folder / "val", tmp_path / "run" / "val")
    with pytest.raises(UsageError, match=r"val.predictions\.csv: missing or not of last\.pt"):
        evaluate(rewrite_weights(tmp_path / "run" / "last.pt"), data=run.data, youden=True)
    report = json.loads((tmp_path / "metrics.json").read_text())  # as of `vitmed probe`, which has no weights
    (tmp_path / "metrics.json").write_text(json.dumps({**report, "weights_hash": None}))
    with pytest.raises(UsageError, match=r"predictions\.csv: is of no network, so it has no policy"):
        evaluate(tmp_path / "predictions.csv", youden=True, output=tmp_path / "r")


def test_a_checkpoint_without_it_gives_raw_probabilities_and_a_note(run: Trained, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "run")
    best = tmp_path / "run" / "best.pt"
    save({k: v for k, v in torch.load(best, weights_only=True).items() if k != "policy"}, best)
    for file in (best, tmp_path / "run" / "last.pt"):
        ui = recording()
        found = evaluate(file, data=run.data, output=tmp_path / file.stem, resamples=20)
        assert any("its probabilities are raw" in note for note in ui.warned)
        assert not {"set", "answer"} & set(found.predictions.columns) and found.predictions.threshold is None
        assert "conformal" not in found.metrics and found.metrics["operating_points"]["chosen"] == "default"
    assert predict(run.data / "test", checkpoint=best).columns == {}


def test_a_damaged_one_is_a_checkpoint_error(run: Trained, tmp_path: Path) -> None:
    content = torch.load(run.best, weights_only=True)
    for change in (
        {"calibration": {"method": "temperature", "scale": [1.0], "bias": [0.0]}},
        {"prediction_sets": 5},
        {"n": "x"},
        {"weights_hash": "0" * 64},
    ):
        save(content | {"policy": content["policy"] | change}, tmp_path / "best.pt")
        with pytest.raises(CheckpointError, match="damaged") as error:
            predict(run.data / "test", checkpoint=tmp_path / "best.pt")
        assert str(error.value).count("best.pt") == 1


def parts(tree: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The way to every key of a tree of dicts."""
    for key, part in tree.items() if isinstance(tree, dict) else ():
        yield (*where, key)
        yield from parts(part, (*where, key))


def test_every_part_that_is_used_later_is_looked_at_when_it_is_read(run: Trained) -> None:
    """Any key that is gone, or holds something else, is a ValueError at once; the rest is not missed later."""
    whole = load_checkpoint(run.best).policy
    stored, caught = whole.model_dump(), 0
    for way in parts(stored):
        for change in ("gone", "other"):
            damaged = copy.deepcopy(stored)
            inside = damaged
            for key in way[:-1]:
                inside = inside[key]
            if change == "gone":
                del inside[way[-1]]
            else:
                inside[way[-1]] = {1}
            try:
                policy = policy_of(damaged, ("amber", "blue"))
            except ValueError:
                caught += 1
                continue
            p = draw(6)
            p = replace(p, classes=("amber", "blue"), columns={"ood_score": ("0.5",) * 6})
            with_it = policy.apply(p)
            json.dumps(policy.to_json(), allow_nan=False)
            config = EvaluateConfig(resamples=0)
            report_points(with_it, policy.operating, config)
            report_sets(with_it, policy.prediction_sets, config)
            report_ood_scores(with_it, policy.ood_score)
            notes_of(policy)
    assert caught > 100


@pytest.mark.parametrize("way", ["operating.chosen", "prediction_sets.by", "ood_score.means"])
def test_what_is_missing_inside_is_told(run: Trained, tmp_path: Path, vitmed: Callable[..., Any], way: str) -> None:
    content = torch.load(run.best, weights_only=True)
    part, key = way.split(".")
    del content["policy"][part][key]
    save(content, tmp_path / "best.pt")
    for args in (("predict", run.data / "test", "--checkpoint"), ("evaluate", "--data", run.data)):
        answer = vitmed(*args, tmp_path / "best.pt")
        assert answer.code == 4 and "its decision policy is damaged" in answer.err and part in answer.err
    if part == "ood_score":
        return
    shutil.copytree(run.folder / "test", tmp_path / "test")
    said = json.loads((tmp_path / "test" / "metrics.json").read_text())
    del said["report"]["policy"][part][key]
    (tmp_path / "test" / "metrics.json").write_text(json.dumps(said))
    answer = vitmed("evaluate", tmp_path / "test" / "predictions.csv")
    assert answer.code == 3 and "metrics.json: its decision policy is damaged" in answer.err


def test_rows_that_were_taken_out_are_counted_anew(run: Trained, tmp_path: Path) -> None:
    shutil.copytree(run.folder / "test", tmp_path / "test")
    file, ui = tmp_path / "test" / "predictions.csv", recording()
    lines = file.read_bytes().split(b"\r\n")
    file.write_bytes(b"\r\n".join(lines[:16]) + b"\r\n")
    (tmp_path / "test" / "baseline_colour_and_size.csv").write_bytes(b"\r\n".join(lines))
    found = evaluate(file, resamples=20).metrics
    evaluated = found["flow"]["evaluated"]
    assert (evaluated["split"], evaluated["images"], evaluated["patients"]) == ("test", 15, None)
    assert {name: part["images"] for name, part in evaluated["classes"].items()} == {"amber": 12, "blue": 3}
    assert found["report"]["facts"]["Images"].startswith("test of data: 15 evaluated")
    for note in (
        "The table has 15 of the 24 rows that the report was made of.",
        "baseline_colour_and_size.csv beside the table is left out: it is not of the same images, classes and labels.",
    ):
        assert note in found["notes"] and f"predictions.csv: {note}" in ui.warned
    assert found["baselines"] == {} and "external" not in found


def test_a_baseline_is_not_compared_with_itself(run: Trained, tmp_path: Path) -> None:
    shutil.copytree(run.folder / "test", tmp_path / "test")
    file = tmp_path / "test" / "baseline_colour_and_size.csv"
    shutil.copy(tmp_path / "test" / "predictions.csv", file)
    found = evaluate(file, resamples=20)
    assert found.metrics["baselines"] == {} and found.predictions.threshold is None  # which is the model's
    assert found.metrics["report"]["title"] == "Report of baseline_colour_and_size.csv"


def test_only_the_users_own_columns_are_offered(run: Trained, tmp_path: Path) -> None:
    for name in ("site", "set", "answer", "ood_score"):
        with pytest.raises(UsageError, match="these images have no further columns"):
            evaluate(run.folder / "test" / "predictions.csv", output=tmp_path / "r", subgroup=[name])


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--prevalence", "50", "--prevalence 50: expected a share above 0 and below 1 (for 50 %: 0.5)"),
        (
            "--target-sensitivity",
            "95",
            "--target-sensitivity 95: expected a share above 0 and below 1 (for 95 %: 0.95)",
        ),
        ("--coverage", "1.5", "--coverage 1.5: expected a share above 0 and below 1"),
        ("--max-risk", "0", "--max-risk 0: expected a share above 0 and below 1"),
        ("--resamples", "-5", "--resamples -5: Input should be greater than or equal to 0"),
        (
            "--format",
            "docx",
            "--format docx: expected html, md, json, paper\nFix: see evaluate.format in docs/configuration.md",
        ),
        ("--calibration", "platt", "--calibration"),
        ("--cost", "[[0,1],[1]]", "--cost [[0,1],[1]]: expected two numbers above 0 such as 10:1"),
    ],
)
def test_a_wrong_value_names_flag_and_value(
    run: Trained, vitmed: Callable[..., Any], option: str, value: str, told: str
) -> None:
    for command, subject in (("evaluate", run.best), ("train", run.data)):
        answer = vitmed(command, subject, option, value)
        assert answer.code == 2 and told in answer.err


def test_the_fix_for_more_classes_can_be_followed() -> None:
    for asked in ({"youden": True}, {"target_sensitivity": 0.9}, {"cost": "10:1"}, {"cost": [[0, 1], [1, 0]]}):
        with pytest.raises(UsageError) as error:
            asked_point(EvaluateConfig(**asked), 3)
        matrix = error.value.fix.partition("--cost '")[2].removesuffix("'")
        config = EvaluateConfig(cost=matrix)
        assert config.cost == [[0, 1, 1], [1, 0, 1], [1, 1, 0]] and asked_point(config, 3) == "cost"


def test_a_prevalence_for_more_classes_is_told(tmp_path: Path, no_figures: None) -> None:
    told = "The prevalence that was given changes nothing: it is for two classes, and there are 3."
    labels, scores = np.arange(60) % 3, np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    paths = tuple(f"{i}.png" for i in range(60))
    three = Predictions(("a", "b", "c"), paths, None, labels, scores)
    two = Predictions(("a", "b"), paths, None, labels % 2, scores[:, :2])
    findings = FindingPredictions(("a", "b", "c"), paths, None, (scores > 0).astype(np.int8), scores)
    for name, predictions in {"three": three, "two": two, "findings": findings}.items():
        (tmp_path / f"{name}.csv").write_text(predictions.to_csv(), newline="")
        brief = {"resamples": 5, "report": False}
        found = evaluate(tmp_path / f"{name}.csv", output=tmp_path / name, prevalence=0.01, **brief)
        again = evaluate(found.folder / "predictions.csv", output=tmp_path / f"{name}-2", **brief)
        for report in (found, again):
            assert report.metrics.notes.count(told) == (name == "three")


def test_a_point_that_three_classes_do_not_have_ends_before_the_training(tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 3, 2, 2, classes=("a", "b", "c"))
    with pytest.raises(UsageError, match="there are 3"):
        train(data, output=tmp_path / "runs", target_sensitivity=0.9, **TINY)
    assert not list((tmp_path / "runs").glob("*"))


def draw(size: int = 40, columns: dict[str, tuple[str, ...]] | None = None) -> Predictions:
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=size)
    logits = (rng.normal(size=(size, 2)) + 2 * np.eye(2)[labels]).astype(np.float32)
    paths = tuple(map(str, range(size)))
    return Predictions(("ill", "normal"), paths, None, labels, logits, columns=columns or {})


def test_what_a_policy_writes_is_its_own_and_is_the_same_again() -> None:
    policy = choose_policy(draw(), EvaluateConfig(resamples=0))
    ours = policy.apply(draw(columns={"site": ("N",) * 40}))
    assert list(ours.columns) == ["set", "answer", "site"]
    again = policy.apply(ours)
    assert again.columns == ours.columns and np.array_equal(again.members, ours.members)
    former = policy.apply(draw(columns={"set": ("x",) * 40, "answer": ("no: x",) * 40}))
    assert former.columns == policy.apply(draw()).columns


def test_a_large_set_names_every_member_and_no_other() -> None:
    """Thirty classes that no image tells apart: every set holds most of them; one class has the mark in its name."""
    names = ("left | right", *(f"c{k:02}" for k in range(29)))
    rng = np.random.default_rng(0)
    labels, logits = np.arange(600) % 30, rng.normal(size=(600, 30)).astype(np.float32)
    p = Predictions(names, tuple(map(str, range(600))), None, labels, logits)
    found = choose_policy(p, EvaluateConfig(resamples=0, coverage=0.95, calibration="none")).apply(p)
    sizes = found.members.sum(axis=1)
    assert sizes.min() > 20 and "more" not in " ".join(found.columns["set"])
    for row in range(600):
        assert found.columns["set"][row] == " | ".join(names[k] for k in np.flatnonzero(found.members[row]))
        assert found.set_of(row) == tuple(names[k] for k in np.flatnonzero(found.members[row]))
    assert np.array_equal(found.take(np.array([5, 3])).members, found.members[[5, 3]])
    turned = found.like(replace(p, classes=names[::-1]))
    assert set(turned.set_of(5)) == set(found.set_of(5))


def three(**asked: Any) -> ClassPolicy:
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    logits = (rng.normal(size=(90, 3)) + 2 * np.eye(3)[labels]).astype(np.float32)
    p = Predictions(tuple("abc"), tuple(map(str, range(90))), None, labels, logits)
    return choose_policy(p, EvaluateConfig(resamples=0, **asked))


COSTS = [[0, 1, 5], [1, 0, 1], [4, 1, 0]]


@pytest.mark.parametrize("asked", [{}, {"cost": COSTS}, {"balanced": True}, {"max_risk": 0.3}, {"max_risk": 1e-6}])
def test_a_policy_of_three_classes_is_read_and_its_damaged_parts_are_refused(asked: dict[str, Any]) -> None:
    stored = three(**asked).model_dump(mode="json")
    assert policy_of(stored, tuple("abc")) == three(**asked)
    damages: list[tuple[str, str, Any]] = [
        ("calibration", "scale", [1.0] * 2), ("operating", "positive", "a"), ("operating", "chosen", "youden"),
        ("operating", "expected", [0.5, 0.5]), ("prediction_sets", "least", [0.5] * 2),
        ("prediction_sets", "units", [9]),
        ("operating", "costs", [[0, 1], [1, 0]]), ("operating", "costs", [[0, 1, 1], [1, 0, 1], [1, 0]]),
    ]  # fmt: skip
    if "cost" in asked:
        damages.append(("operating", "costs", None))
    if "balanced" in asked:
        damages.append(("operating", "expected", None))
    if asked.get("max_risk") == 1e-6:
        damages.append(("abstention", "why", ""))
    for part, key, value in damages:
        damaged = copy.deepcopy(stored)
        damaged[part][key] = value
        if key == "scale":
            damaged[part]["bias"] = value
        with pytest.raises(ValueError, match=f"{part}(:|\\.{key}|\\.points)"):
            policy_of(damaged, tuple("abc"))
    for classes in ("ab", "abcd"):
        with pytest.raises(ValueError, match="does not fit the classes"):
            policy_of(stored, tuple(classes))


def test_a_policy_of_two_classes_is_for_these_two() -> None:
    """Its positive class is one of them, and what is wrong in one place is told by its place."""
    policy = choose_policy(draw(), EvaluateConfig(resamples=0, youden=True))
    stored = policy.model_dump(mode="json")
    assert stored["operating"]["positive"] == "ill" and policy_of(stored, ("ill", "normal")) == policy
    for positive in (None, "other"):
        with pytest.raises(ValueError, match=r"operating\.positive: does not fit the classes"):
            policy_of(stored | {"operating": stored["operating"] | {"positive": positive}}, ("ill", "normal"))
    with pytest.raises(ValueError, match=r"^n: "):
        policy_of(stored | {"n": "many"}, ("ill", "normal"))
    with pytest.raises(ValueError, match="expected a decision policy, found list"):
        policy_of([1], ("ill", "normal"))  # type: ignore[arg-type]
    sets = {"prediction_sets": {"score": "raps"}}
    with pytest.raises(UsageError, match="'raps' are no longer there"):
        policy_of({"findings": {"ill": sets}}, ("ill",))


def test_a_score_of_one_is_like_the_training_images() -> None:
    p = draw(4, {"ood_score": ("0.5", "1", "1.001", "0")})
    assert unlike_training(p).tolist() == [False, False, True, False]
    assert not unlike_training(draw(4)).any()


def test_what_was_chosen_in_a_line() -> None:
    plain = choose_policy(draw(), EvaluateConfig(resamples=0, calibration="none"))
    assert plain.summary == "the probabilities are not calibrated: switched off; the likeliest class is predicted"
    point = choose_policy(draw(400), EvaluateConfig(resamples=0, calibration="temperature", youden=True))
    at, scale = point.operating.threshold, point.calibration.scale[0]
    assert point.summary == (
        f"the probabilities are calibrated by temperature {1 / scale:.3g}; "
        f"'ill' is predicted from a probability of {at:.3g}"
    )
    costs = three(cost=COSTS, calibration="none").summary
    usual, lowest = plain.summary.partition("; ")[0], "the class with the lowest expected cost is predicted"
    assert costs == f"{usual}; {lowest}"
    assert three(balanced=True).summary.endswith("largest probability relative to its mean on validation is predicted")


def test_the_answers_are_counted_by_reason() -> None:
    """Five images: two answered, one of them wrong; three not, for four reasons, two of them wrong."""
    cells = (
        "yes", "yes", "no: unlike the training images, 3 classes are possible", "no: 2 classes are possible",
        "no: too unsure for the chosen risk",
    )  # fmt: skip
    logits = np.eye(2, dtype=np.float32)[[0, 1, 0, 1, 0]]
    p = Predictions(("a", "b"), tuple("vwxyz"), None, np.array([0, 0, 1, 0, 0]), logits, columns={"answer": cells})
    found = count_answers(p)
    assert (found.n, found.n_answered, found.answered.value) == (5, 2, 0.4)
    assert (found.wrong_answered.value, found.wrong_unanswered.value) == (0.5, pytest.approx(2 / 3))
    assert found.unanswered == {
        "classes are possible": 2, "unlike the training images": 1, "too unsure for the chosen risk": 1,
    }  # fmt: skip
    assert count_answers(replace(p, columns={})) is None


def test_the_notes_and_the_settings_of_a_policy() -> None:
    never, always = three(max_risk=1e-6), three(max_risk=0.9)
    assert never.notes[-1].startswith("No image is answered: no certainty keeps the share of errors below 1e-06")
    assert not any("No image is answered" in note for note in (*always.notes, *three().notes))
    assert notes_of(never) == list(never.notes) and notes_of(None)[0].startswith("This checkpoint holds no decision")
    assert policy_settings(EvaluateConfig(prevalence=0.1))["prevalence"] is None  # without costs it changes no choice
    assert policy_settings(EvaluateConfig(prevalence=0.1, cost="2:1"))["prevalence"] == 0.1


def test_an_image_is_not_answered_for_each_reason() -> None:
    config = EvaluateConfig(resamples=0, max_risk=0.05, coverage=0.97)
    policy = choose_policy(draw(400), config)
    p = draw(400, {"ood_score": ("0.5",) * 399 + ("1.5",)})
    cells = policy.apply(p).columns["answer"]
    assert cells[399].startswith("no: unlike the training images")
    assert {"yes", "no: too unsure for the chosen risk"} < set(cells[:399])
    assert any("2 classes are possible" in cell for cell in cells)
    unanswerable = choose_policy(draw(20), config.model_copy(update={"max_risk": 0.001}))
    assert all("too unsure" in cell for cell in unanswerable.apply(draw()).columns["answer"])


def test_it_is_the_same_after_json_and_has_no_arrays_there() -> None:
    policy = choose_policy(draw(100), EvaluateConfig(resamples=10, youden=True))
    text = json.dumps(policy.to_json(), allow_nan=False)
    assert policy_of(json.loads(text), ("ill", "normal")) == policy


def test_what_chose_the_calibration_is_printed_and_in_the_report(tmp_path: Path) -> None:
    """The network is right as it is, so nothing is gained; with its logits three times as large, the temperature is."""
    right = draw(300)
    for factor, method, gained, sign in ((1, "none", "scaling raises", "+"), (3, "temperature", "scaling lowers", "-")):
        p = replace(right, logits=right.logits * np.float32(factor * 2))
        policy = choose_policy(p, EvaluateConfig(resamples=10))
        said = policy.summary
        chosen = {
            "none": "the probabilities are not calibrated (",
            "temperature": "the probabilities are calibrated by",
        }
        assert policy.calibration.method == method and said.startswith(chosen[method])
        assert f"log loss in cross-validation: temperature scaling {sign}0." in said and "(standard error 0.0" in said
        assert said.endswith("; the likeliest class is predicted")
        folder = tmp_path / method
        metrics = write_report(folder, policy.apply(p), title="t", facts={}, policy=policy)
        html = (folder / "report.html").read_text()
        assert f"temperature {gained}" in html and "is needed)" in html
        assert (metrics.calibration.change == {}) == (method == "none")
        again = json.loads((folder / "metrics.json").read_text())["calibration"]
        assert [trial["method"] for trial in again["trials"]] == ["temperature"]


@pytest.mark.parametrize("size", [1, 2, 10])
def test_one_to_ten_validation_images(size: int) -> None:
    p = draw(size)
    policy = choose_policy(p, EvaluateConfig(resamples=20, youden=True, max_risk=0.05))
    assert len(policy.apply(draw()).columns["answer"]) == 40
    none = replace(p, paths=(), labels=np.zeros(0, np.int64), logits=np.zeros((0, 2), np.float32))
    assert len(policy.apply(none)) == 0


def test_what_few_validation_images_cannot_give_is_said_where_it_was_asked_for() -> None:
    labels = np.arange(12) % 2
    logits = np.stack([0.0 * labels, 4.0 * labels - 2 + np.arange(12) / 10], axis=1).astype(np.float32)
    few = Predictions(("a", "b"), tuple(map(str, range(12))), None, labels, logits)
    notes = " ".join(choose_policy(few, EvaluateConfig(calibration="temperature", coverage=0.99)).notes)
    assert "--calibration temperature took none: 12 validation images are too few to fit a calibration" in notes
    assert "Validation has too few images for prediction sets at --coverage 0.99." in notes
    assert not any("--c" in note for note in choose_policy(few, EvaluateConfig()).notes)
