"""`vitmed compare --accept`: pre-stated criteria are met only where the intervals of the comparison show it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Answer
from sklearn.metrics import cohen_kappa_score

import vitmed as package
from vitmed.core.errors import GateError, UsageError
from vitmed.deploy.acceptance import Acceptance
from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.paired_comparison import share_difference
from vitmed.metrics.predictions import Predictions


def draw(noise: float, seed: int = 0) -> Predictions:
    """120 patients with 3 images each, at two large sites and a small one."""
    labels = np.arange(360) % 2
    logits = 2 * np.eye(2)[labels] + noise * np.random.default_rng([seed, 5]).normal(size=(360, 2))
    groups = tuple(f"P{i // 3}" for i in range(360))
    site = tuple("c" if i < 12 else "ab"[i // 3 % 2] for i in range(360))
    paths = tuple(f"{i}.png" for i in range(360))
    return Predictions(("healthy", "sick"), paths, groups, labels, logits.astype(np.float32), columns={"site": site})


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    """A new model and an old one that is a little worse."""
    files = []
    for name, noise in (("new", 1.0), ("old", 1.3)):
        (tmp_path / name).mkdir()
        files.append(tmp_path / name / "predictions.csv")
        files[-1].write_text(draw(noise).to_csv(), newline="")
    return files[0], files[1]


def judge(tables: tuple[Path, ...], *criteria: dict[str, object]) -> Acceptance:
    file = tables[0].parent / "criteria.yaml"
    file.write_text(json.dumps({"criteria": criteria}))  # JSON is YAML
    try:
        found = package.compare(*tables, accept=file).acceptance
    except GateError as error:
        found = error.result.acceptance  # type: ignore[attr-defined]
    assert found is not None
    return found


def states(tables: tuple[Path, ...], *criteria: dict[str, object]) -> list[str]:
    return [one.state for one in judge(tables, *criteria).judged]


def test_the_interval_decides(tables: tuple[Path, Path]) -> None:
    own = evaluate_predictions(draw(1.0)).per_class["sick"].sensitivity
    assert own.low is not None and own.value is not None
    limits = (own.low - 0.001, own.low + 0.001, own.value + 0.001)
    asked = [{"metric": "sensitivity", "at_least": limit} for limit in limits]
    assert states(tables, *asked) == ["met", "not shown", "not met"]
    assert states(tables, {**asked[1], "by": "estimate"}) == ["met"]
    loss = evaluate_predictions(draw(1.0)).overall["log_loss"]
    assert loss.high is not None and loss.value is not None
    asked = [{"metric": "log_loss", "at_most": limit} for limit in (loss.high + 0.01, loss.value + 0.001)]
    assert states(tables, *asked) == ["met", "not shown"]


def test_non_inferiority_on_the_same_images(tables: tuple[Path, Path]) -> None:
    new, old = draw(1.0), draw(1.3)
    sick = new.labels == 1
    gap = share_difference(new.predicted == 1, old.predicted == 1, sick, Units(new.units))[0]
    found = judge(
        tables,
        {"metric": "sensitivity", "worse_by_less_than": -gap.low + 0.001 if gap.low < 0 else 0.001},
        {"metric": "auroc", "worse_by_less_than": 0.02},
        {"metric": "log_loss", "worse_by_less_than": 0.001},
    )
    assert found.judged[0].found.low == pytest.approx(gap.low) and found.judged[0].state == "met"
    assert found.accepted
    other = judge(tables[::-1], {"metric": "log_loss", "worse_by_less_than": 0.001})  # the old model instead of the new
    assert other.judged[0].state == "not met" and not other.accepted
    assert states(tables[::-1], {"metric": "sensitivity", "worse_by_less_than": 0.001})[0] != "met"


def test_a_model_is_no_worse_than_itself(tables: tuple[Path, Path]) -> None:
    asked = [{"metric": name, "worse_by_less_than": 0.001} for name in ("sensitivity", "specificity", "auroc")]
    found = judge((tables[0], tables[0]), *asked)
    assert [(one.state, one.found.low, one.found.high) for one in found.judged] == [("met", 0, 0)] * 3


def test_each_subgroup_counts_and_a_small_one_is_not_shown(tables: tuple[Path, Path]) -> None:
    found = judge(tables, {"metric": "specificity", "at_least": 0.6, "in_each": "site"})
    assert {one.where: one.state for one in found.judged} == {
        "site a": "met", "site b": "met", "site c": "not shown",
    }  # fmt: skip
    assert "fewer than 10 patients" in found.judged[2].why and not found.accepted


def test_findings_are_judged_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random((200, 2)) < 0.5).astype(np.int8)
    labels[:50, 1] = -1
    logits = (3.0 * labels.clip(0) - 1.5 + rng.normal(size=(200, 2))).astype(np.float32)
    known = FindingPredictions(("edema", "mass"), tuple(f"{i}.png" for i in range(200)), None, labels, logits)
    worse = replace(known, logits=known.logits * 0.1 + rng.normal(size=(200, 2)).astype(np.float32))
    files = tmp_path / "new.csv", tmp_path / "old.csv"
    for file, one in zip(files, (known, worse), strict=True):
        file.write_text(one.to_csv(), newline="")
    found = judge(
        files,
        {"metric": "auroc", "of": "mass", "at_least": 0.85},
        {"metric": "auroc", "of": "edema", "worse_by_less_than": 0.01},
        {"metric": "sensitivity", "of": "mass", "worse_by_less_than": 0.01},
    )
    assert [one.state for one in found.judged] == ["met", "met", "met"]
    hits = (known.predicted[:, 1] & (labels[:, 1] == 1)).sum() - (worse.predicted[:, 1] & (labels[:, 1] == 1)).sum()
    assert found.judged[2].found.value == pytest.approx(hits / (labels[:, 1] == 1).sum())


def test_the_command_and_the_page(tables: tuple[Path, Path], tmp_path: Path, vitmed: Callable[..., Answer]) -> None:
    file = tmp_path / "criteria.yaml"
    file.write_text("title: Autumn\ncriteria:\n  - metric: auroc\n    at_least: 0.8\n    why: the old model had it\n")
    answer = vitmed("compare", *tables, "--accept", file, "--output", tmp_path / "out", "--json")
    assert answer.code == 0, answer.err
    content = json.loads((tmp_path / "out" / "acceptance.json").read_text())
    assert content["accepted"] and content["models"][0]["name"] == "new"
    assert json.loads(answer.out)["acceptance"] == content
    page = (tmp_path / "out" / "acceptance.html").read_text()
    assert "Autumn: accepted" in page and "the old model had it" in page and "Approved by" in page
    file.write_text("criteria:\n  - metric: auroc\n    at_least: 0.999\n")
    answer = vitmed("compare", *tables, "--accept", file)
    assert answer.code == 6 and "auroc at least 0.999 is not" in answer.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("criteria: []", "criteria: List should have at least 1 item"),
        ("criteria: [{metric: auroc}]", "expected one of at_least, at_most and worse_by_less_than, found 0"),
        ("criteria: [{metric: auroc, at_least: 0.9, at_most: 1}]", "found 2"),
        ("criteria: [{metric: auroc, at_least: true}]", "found true or false"),
        ("criteria: [{metric: log_loss, at_least: 0.2}]", "log_loss limits it on the better side"),
        ("criteria: [{metric: sensitivity, of: sick, at_most: 0.9}]", "sensitivity limits it on the better side"),
        ("criteria: [{metric: auroc, worse_by_less_than: -0.1}]", "greater than 0"),
        ("criteria: [{metric: aurroc, at_least: 0.9}]", "did you mean 'auroc'"),
        ("criteria: [{metric: sensitivity, of: ill, at_least: 0.9}]", "unknown class 'ill'"),
        ("criteria: [{metric: accuracy, of: sick, at_least: 0.9}]", "accuracy is not a number of one class"),
        ("criteria: [{metric: auroc, at_least: 0.9, in_each: scanner}]", "unknown column for in_each: 'scanner'"),
        ("criteria: [{metric: ppv, of: sick, worse_by_less_than: 0.1}]", "no paired difference of the ppv"),
        ("criteria: [{metric: auroc, of: sick, worse_by_less_than: 0.1}]", "specificity; or leave out of: sick"),
        ("criteria: [{metric: auroc, at_least: 0.9, margin: 1}]", "criteria.1.margin: Extra inputs"),
        ("criteria: [{metric: auroc, worse_by_less_than: 5}]", "auroc is at most 1, and the limit is 5"),
        ("criteria: [{metric: sensitivity, of: sick, at_most: 90}]", "sensitivity is at most 1, and the limit is 90"),
        ("criteria: [", "line 1"),
        ("criteria: [{metric: auroc, at_least: '0.9'}]", "criteria.1.at_least: expected a number, found '0.9'"),
        ("criteria: [{metric: auroc, at_least: high}]", "criteria.1.at_least: expected a number, found 'high'"),
        ("criteria: [{metric: auroc, at_least: one}]", "at_least: Input should be a valid number, unable to parse"),
        ("criteria: [{metric: auroc, at_least: '0,9e0'}]", "as a number, found '0,9e0'"),
        ("criteria: [{metric: auroc, at_least: [0.9]}]", "at_least: Input should be a valid number, found [0.9]"),
        ("criteria: [{metric: auroc, at_least: .nan}]", "at_least: Input should be a finite number, found nan"),
        ("criteria: [{metric: auroc, at_most: .inf}]", "at_most: Input should be a finite number, found inf"),
        ("criteria: [{metric: auroc, at_least: 1e999}]", "at_least: Input should be a finite number, found '1e999'"),
        (f"criteria: [{{metric: auroc, at_least: {10**400}}}]", "criteria.1.at_least: "),
        ("criteria: [{metric: auroc, worse_by_less_than: 0}]", "Input should be greater than 0, found 0"),
        ("criteria: [{metric: auroc, at_least: 0.7}, {at_least: 0.9}]", "criteria.2.metric: Field required, found {"),
        ("criteria: [{metric: auroc, at_least: null}]", "at_least, at_most and worse_by_less_than, found 0"),
        ("title: spring", "criteria: Field required, found {'title': 'spring'}"),
        ("", "criteria: Input should be a valid dictionary, found None"),
        ("criteria: [auroc]", "criteria.1: Input should be a valid dictionary, found 'auroc'"),
        ("criteria: [{metric: auroc, at_least: 90}]", "criteria.1: at_least: auroc is at most 1, and the limit is 90"),
        ("criteria: [{metric: auroc, at_least: -0.1}]", "at_least: auroc is at least 0, and the limit is -0.1"),
        ("criteria: [{metric: mcc, at_least: -2}]", "at_least: mcc is at least -1, and the limit is -2"),
        ("criteria: [{metric: log_loss, at_most: -1}]", "at_most: log_loss is at least 0, and the limit is -1"),
        ("criteria: [{metric: brier, at_most: 20}]", "at_most: brier is at most 1, and the limit is 20"),
    ],
)
def test_bad_criteria(
    tables: tuple[Path, Path], tmp_path: Path, text: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitmed.commands.compare.compare_models", None)  # they are refused before the long work
    (tmp_path / "criteria.yaml").write_text(text)
    with pytest.raises(UsageError) as error:
        package.compare(*tables, accept=tmp_path / "criteria.yaml", output=tmp_path / "out")
    assert problem in str(error.value) and not (tmp_path / "out").exists()
    assert error.value.problem.startswith(f"{tmp_path / 'criteria.yaml'}: ") and "\n" not in error.value.problem
    assert len(error.value.problem) < 400 and "pydantic" not in str(error.value)
    names = re.findall(r"\w+", str(error.value).partition("expected one of: ")[2].partition("\n")[0])
    assert len(names) == len(set(names))


def test_limits_that_are_rare_but_right(tables: tuple[Path, Path]) -> None:
    """PyYAML takes 1e-2 for a text; a correlation may be negative; an end of the scale is a limit."""
    (tables[0].parent / "criteria.yaml").write_text("criteria: [{metric: auroc, worse_by_less_than: 5e-1}]")
    assert package.compare(*tables, accept=tables[0].parent / "criteria.yaml").acceptance is not None
    asked = [{"metric": "mcc", "at_least": -0.5}, {"metric": "auroc", "at_least": 1}, {"metric": "brier", "at_most": 1}]
    assert states(tables, *asked) == ["met", "not met", "met"]


def test_the_ends_of_the_numbers(tmp_path: Path) -> None:
    """R2, bias and log score have no lower end; R2 and correlations end at 1, distances nowhere."""
    file = tmp_path / "criteria.yaml"
    header = "path,label,raw_location,raw_log_scale,target_centre,target_spread,target_name"
    for name in ("new", "old"):
        rows = [f"{i}.png,{20 + i},{20 + i + i % 3},0,0,1,number" for i in range(30)]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *rows]))
    tables = tmp_path / "new.csv", tmp_path / "old.csv"
    right = ["{metric: r2, at_least: -3}", "{metric: r2, worse_by_less_than: 2}", "{metric: bias, at_least: -3}"]
    right += ["{metric: bias, at_most: 5}", "{metric: mae, at_most: 20}", "{metric: log_score, at_most: 90}"]
    file.write_text(f"criteria: [{', '.join(right)}]")
    assert package.compare(*tables, accept=file).acceptance is not None
    for wrong, why in (
        ("{metric: r2, at_least: 1.5}", "r2 is at most 1, and the limit is 1.5"),
        ("{metric: pearson, at_least: -1.5}", "pearson is at least -1, and the limit is -1.5"),
        ("{metric: mae, at_most: -3}", "mae is at least 0, and the limit is -3"),
        ("{metric: coverage, at_least: 95}", "coverage is at most 1, and the limit is 95"),
    ):
        file.write_text(f"criteria: [{wrong}]")
        with pytest.raises(UsageError, match=why):
            package.compare(*tables, accept=file)


def test_the_report_of_either_model_says_that_classes_are_grades(tmp_path: Path) -> None:
    """A table alone is judged by the order of the grades, whatever the order of its columns."""
    labels, rng = np.arange(120) % 3, np.random.default_rng(0)
    paths, old = tuple(f"{i}.png" for i in range(120)), tmp_path / "old"
    for name, classes in (("new", ("mild", "severe", "none")), ("old", ("none", "mild", "severe"))):
        truth = np.array([classes.index(("none", "mild", "severe")[k]) for k in labels])
        logits = (2 * np.eye(3)[truth] + rng.normal(size=(120, 3))).astype(np.float32)
        (tmp_path / f"{name}.csv").write_text(Predictions(classes, paths, None, truth, logits).to_csv(), newline="")
    package.evaluate(tmp_path / "old.csv", ordinal=["none", "mild", "severe"], report=False, output=old)
    tables, criterion = (tmp_path / "new.csv", old), {"metric": "quadratic_kappa", "worse_by_less_than": 0.9}
    read = Predictions.from_csv(tables[0])
    grade = np.array([1, 2, 0])
    kappa = cohen_kappa_score(grade[read.labels], grade[read.predicted], weights="quadratic")
    found = judge(tables, criterion, {"metric": "quadratic_kappa", "at_least": 0.1})
    assert found.accepted and found.judged[1].found.value == pytest.approx(kappa)
    other = judge(tables[::-1], criterion)
    assert found.judged[0].found.value == pytest.approx(-other.judged[0].found.value)


def test_a_bias_is_no_margin(tmp_path: Path) -> None:
    """More bias is neither better nor worse, so a model that is off by 15 years is not accepted for it."""
    file, ages = tmp_path / "criteria.yaml", [20 + i for i in range(30)]
    file.write_text("criteria: [{metric: bias, worse_by_less_than: 0.5}]")
    for name, off in (("new", 15), ("old", 0)):
        rows = [f"{i}.png,{age},{age + off + i % 3},0,0,1,number" for i, age in enumerate(ages)]
        header = "path,label,raw_location,raw_log_scale,target_centre,target_spread,target_name"
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *rows]))
    with pytest.raises(UsageError, match="more of it is neither better nor worse"):
        package.compare(tmp_path / "new.csv", tmp_path / "old.csv", accept=file)
