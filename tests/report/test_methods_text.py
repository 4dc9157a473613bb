"""The statistical methods of a report: what the text names is what the numbers used, and nothing else."""

from __future__ import annotations

import html
import json
import re
import typing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel
from reports import write_report

from vitmed.core.base_models import Target
from vitmed.core.config import EvaluateConfig
from vitmed.decisions.policy import choose_policy
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.metric_table import TITLES, methods
from vitmed.metrics.predictions import Predictions
from vitmed.report.methods_text import KEYED, SAME, methods_text
from vitmed.report.results import Results
from vitmed.report.templates import name_of

pytestmark = pytest.mark.usefixtures("no_figures")


def draw(classes: tuple[str, ...] = ("healthy", "ill"), n: int = 240, patients: int | None = 24) -> Predictions:
    rng = np.random.default_rng(len(classes))
    labels = rng.integers(len(classes), size=n)
    logits = rng.normal(size=(n, len(classes)))
    logits[np.arange(n), labels] += 1.5
    groups = None if patients is None else tuple(f"P{i % patients}" for i in range(n))
    columns = {"site": tuple("AB"[i % (patients or 2) % 2] for i in range(n))}
    columns["reader"] = tuple(classes[k] for k in np.where(rng.random(n) < 0.2, 0, labels))
    return Predictions(classes, tuple(map(str, range(n))), groups, labels, logits.astype(np.float32), columns=columns)


def write(folder: Path, p: Predictions, **more: Any) -> Results:
    config = EvaluateConfig(resamples=600, subgroups=["site"], raters=["reader"])
    other = replace(p, logits=np.random.default_rng(9).normal(size=p.logits.shape).astype(np.float32) + p.logits / 2)
    return write_report(folder, p, title="t", facts={}, config=config, baselines={"colour_and_size": other}, **more)


def estimates(content: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every estimate and every test in a metrics.json."""
    if isinstance(content, dict):
        if "method" in content and ({"value", "low"} <= content.keys() or "p" in content):
            yield path, content
        for key, value in content.items():
            if key != "report":
                yield from estimates(value, f"{path}.{key}")
    elif isinstance(content, list):
        for value in content:
            yield from estimates(value, path)


CASES = {
    "two": draw(),
    "three": draw(("a", "b", "c")),
    "nobody": draw(patients=None),
    "perfect": replace(draw(), logits=np.eye(2, dtype=np.float32)[draw().labels] * 9),
    "few": draw(n=40, patients=4),
}


@pytest.mark.parametrize("case", CASES)
def test_the_text_names_what_the_numbers_used_and_nothing_else(case: str, tmp_path: Path) -> None:
    """No `method` in metrics.json is without an entry in methods.yaml, nor a bootstrap without its resamples."""
    metrics = write(tmp_path / "r", CASES[case])
    each = list(estimates(json.loads((tmp_path / "r" / "metrics.json").read_text())))
    assert len(each) > 100
    for path, entry in each:
        assert entry["method"] is None or entry["method"] in (
            methods().tests if "p" in entry else methods().intervals
        ), path
        if entry["method"] in ("bootstrap", "wilson-bootstrap", "percentile"):
            assert entry["resamples"] is not None, path
        elif "p" not in entry:
            assert entry.get("resamples") is None, path
    found = methods_text(metrics)
    used = {e["method"] for _, e in each if e.get("low") is not None}
    assert {row.method for row in found.rows} == {methods().intervals[method].title for method in used}
    drawn = {e.get("resamples") for _, e in each if e.get("low") is not None}
    assert {row.resamples for row in found.rows} == drawn
    text = " ".join(found.paragraphs)
    for key in used:
        assert methods().intervals[key].text.format(unit="image" if case == "nobody" else "patient") in text
    gaps = [gap for one in (metrics.subgroups or {}).values() for gap in one.gaps.values()]
    assert ("to the patients at random (" in text) == any(gap.by_chance is not None for gap in gaps)
    assert not re.search(r"[{}]|where patients were", text)
    assert "as described" not in " ".join(found.paragraphs), "each paragraph can be pasted without the others"
    explained = "'In part' marks a number whose values came from more than one method" in text
    assert explained == ("(in part)" in text) == any("(in part)" in row.numbers for row in found.rows)
    cited = {int(n) for cite in re.findall(r"\[([\d, ]+)\]", text) for n in cite.split(", ")}
    assert cited == set(range(1, len(found.references) + 1)) and set(found.references) <= set(
        methods().references.values()
    )


def test_each_number_has_the_method_that_computed_it() -> None:
    overall = evaluate_predictions(CASES["two"]).overall
    known = {name: (found.method, found.resamples) for name, found in overall.items()}
    assert known["accuracy"] == ("wilson-cluster", None) and known["balanced_accuracy"] == ("wilson-mean", None)
    assert known["auroc"] == ("obuchowski", None) and known["average_precision"] == ("influence", None)
    assert known["mcc"] == known["log_loss"] == ("influence", None)
    perfect = evaluate_predictions(CASES["perfect"]).overall
    assert perfect["auroc"].method == "newcombe"
    assert perfect["mcc"].method == perfect["average_precision"].method == "influence"
    assert perfect["mcc"].value == 1 and perfect["mcc"].resamples is None


def test_the_file_and_the_page_say_the_same(tmp_path: Path) -> None:
    found = methods_text(write(tmp_path / "r", CASES["two"]))
    page = html.unescape(" ".join((tmp_path / "r" / "report.html").read_text().split()))
    text = (tmp_path / "r" / "methods.md").read_text()
    for part in (*found.paragraphs, *found.references, *(row.numbers for row in found.rows)):
        assert part in page and part in text
    assert "240 images of 24 patients (" in text and "The positive class was ill" in text
    assert "2,000" not in text and "600 resamples" not in text and "500 resamples" in text
    assert "Bootstrap resamples were drawn by patient." in text
    assert "capped at that of as many images without an error" in text
    assert "each image counted as independent" in methods_text(write(tmp_path / "n", CASES["nobody"])).paragraphs[0]


def test_a_number_has_its_own_words(tmp_path: Path) -> None:
    """Limits and prediction intervals, but no AUROC; and no scale of a difference for the number itself."""
    rng = np.random.default_rng(0)
    labels, logits = rng.normal(50, 10, 90), np.zeros((2, 90, 2), np.float32)
    logits[:, :, 0] = (labels - 50) / 10 + rng.normal(0, 0.5, (2, 90))
    logits[:, :, 1] = rng.normal(0, 0.1, (2, 90))  # intervals of one width have a width without an interval
    groups, target = tuple(f"P{i // 3}" for i in range(90)), Target(kind="number", centre=50, spread=10)
    p, other = (NumberPredictions(("age",), ("",) * 90, groups, labels, of, target=target) for of in logits)
    policy = choose_policy(p, EvaluateConfig())
    about = {"policy": policy, "baselines": {"colour_and_size": other}}
    metrics = write_report(tmp_path / "r", policy.apply(p), title="t", **about)
    text = " ".join(methods_text(metrics).paragraphs)
    assert "lower limit of a proportion was capped" in text and "AUROC" not in text
    assert "-/+ 1.96 standard deviations of the error, from components of variance between and within" in text
    assert "Prediction intervals came from split conformal prediction" in text and "for a coverage of 0.9." in text
    assert "of the agreement with" not in text and "the upper limit of agreement, intervals were computed" in text
    on_log = "Intervals of mean absolute error and interval width were computed on the logarithmic scale."
    assert metrics.baselines["colour_and_size"].difference["rmse"].method == "jackknife" and on_log in text


def test_the_text_says_what_validation_chose(tmp_path: Path) -> None:
    """The epoch, the calibration and the prediction sets stand on the page with numbers, so the text for a paper has
    them; an operating point is in its first paragraph."""
    p = draw(n=480, patients=48)
    policy = choose_policy(p, EvaluateConfig(coverage=0.8, calibration="temperature"))
    facts = {"Model choice": "epoch 3, the best by validation auroc; the test set was not used"}
    write_report(
        tmp_path / "r", policy.apply(p), title="t", facts=facts, config=EvaluateConfig(resamples=20), policy=policy
    )
    text = " ".join((tmp_path / "r" / "methods.md").read_text().split())
    assert "Choice of the model: epoch 3, the best by validation auroc; the test set was not used." in text
    assert re.search(r"as chosen on validation images: by temperature scaling \[\d+\]\.", text)
    assert re.search(
        r"split conformal prediction \[[\d, ]+\], by patient on validation images, for a coverage of 0.8", text
    )
    assert "Guo C" in text and "Sadinle M" in text
    assert "Holm" not in text and "Calibration of the" not in " ".join(
        methods_text(write(tmp_path / "n", p)).paragraphs
    )


def test_what_holds_of_the_baselines_or_of_validation_is_not_said_of_the_others(tmp_path: Path) -> None:
    """The readers are compared at the threshold of the model, the baselines are not; the images have no patients, those
    of validation have."""
    p, config = draw(), EvaluateConfig(resamples=20, raters=["reader"], target_sensitivity=0.8)
    policy, alone = choose_policy(p, config), replace(p, groups=None)
    given = {"policy": policy, "baselines": {"colour_and_size": replace(alone, logits=alone.logits / 2)}}
    metrics = write_report(tmp_path / "r", policy.apply(alone), config, title="t", **given)
    _, here, others, *_ = methods_text(metrics).paragraphs
    assert "For these, the model, too, decided by the likeliest class" in others
    assert "from the same methods. Differences from the baselines were paired" in others
    assert "effective number" not in here and "patient" not in here
    assert re.search("validation values of sensitivity, .* of the operating points.* effective number", others)


def test_names_of_classes_are_text(tmp_path: Path) -> None:
    write(tmp_path / "r", draw(("no_tumour", "<b>|x")))
    assert "no\\_tumour" in (text := (tmp_path / "r" / "methods.md").read_text()) and "\\<b\\>\\|x" in text


def fields(kind: Any, field: str, keyed: bool = False, inside: tuple[Any, ...] = ()) -> Iterator[str]:
    """The fields of all estimates in a type; "" for a key that is the name of a number. `Folds` may hold `Folds`."""
    if isinstance(kind, type) and issubclass(kind, Estimate):
        yield "" if keyed or field in SAME else field
    elif isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in inside:
        for name, info in kind.model_fields.items():
            yield from fields(info.annotation, name, name in KEYED, (*inside, kind))
    for part in typing.get_args(kind):
        yield from fields(part, field, keyed, inside)


def test_every_number_has_a_name_and_every_part_stands_in_the_text() -> None:
    known = {*TITLES, *methods().names, ""}
    for part, info in Results.model_fields.items():
        found = set(fields(info.annotation, part, part in KEYED))
        assert found <= known, part
        assert not found or part in methods().parts, part


def test_every_number_that_a_source_defines_has_a_name_in_words() -> None:
    """docs/methods.md and the methods of a report name it so, and not by its key."""
    assert not [key for key in methods().definitions if "_" in name_of(key)]
    assert name_of("uneven") != "uneven"
