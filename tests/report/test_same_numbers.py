"""A number in two places of one report is the same string in both: page, terminal, model card, metrics.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from conftest import draw_only
from reports import write_report

from vitmed.core.config import EvaluateConfig
from vitmed.core.text import format_probability
from vitmed.decisions.policy import choose_policy
from vitmed.metrics.metric_table import METRICS, PER_CLASS, TITLES
from vitmed.metrics.predictions import Predictions
from vitmed.report.blocks import p_words
from vitmed.report.headline import headline
from vitmed.report.model_card import HUB, model_card
from vitmed.report.templates import in_percent

TRIPLE = re.compile(r"(-?\d+\.\d{3}) \((-?\d+\.\d{3}) to (-?\d+\.\d{3})\)")


class Report(NamedTuple):
    """A report as a reader has it; `page` is report.html as text, its tables as lines of cells."""

    metrics: dict[str, Any]
    page: str
    card: str
    terminal: str
    methods: str


def draw(classes: tuple[str, ...], seed: int) -> Predictions:
    """80 images of each class, ten patients: shares such as 37/80 lie in the middle of two rounded numbers."""
    rng = np.random.default_rng(seed)
    n, size = 80 * len(classes), len(classes)
    labels = np.arange(n) % size
    logits = rng.normal(size=(n, size)) + 0.4 * rng.normal(size=(20, size))[np.arange(n) // size % 20]
    logits[np.arange(n), labels] += 1.2
    reader = tuple(classes[k] for k in np.where(rng.random(n) < 0.2, 0, labels))
    return Predictions(
        classes, tuple(f"{i}.png" for i in range(n)), tuple(f"P{i // size % 20}" for i in range(n)), labels,
        logits.astype(np.float32), columns={"reader": reader},
    )  # fmt: skip


@pytest.fixture(scope="module", params=[("healthy", "ill"), ("a", "b", "c")], ids=["two", "three"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    classes, folder = request.param, tmp_path_factory.mktemp("same") / "test"
    target = {"target_sensitivity": 0.85} if len(classes) == 2 else {}
    config = EvaluateConfig(resamples=300, raters=["reader"], format="html,md", **target)
    validation, test = draw(classes, 1), draw(classes, 2)
    policy = choose_policy(validation, config, None, None)
    baseline = replace(test, logits=draw(classes, 3).logits, columns={})
    with pytest.MonkeyPatch.context() as patch:
        draw_only(patch, "confusion_matrix", "roc", "precision_recall", "reliability")
        metrics = write_report(
            folder, policy.apply(test), title="test of cells", facts={}, config=config, policy=policy,
            baselines={"colour_and_size": baseline},
        )  # fmt: skip
    page = (folder / "report.md").read_text(encoding="utf-8")
    content = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    methods = (folder / "methods.md").read_text(encoding="utf-8")
    return Report(content, page, model_card(metrics, "cells", "test"), headline(metrics), methods)


def shown(entry: dict[str, Any]) -> str:
    """A number as the page writes it."""
    if entry["value"] is None:
        return "undefined"
    limits = "" if entry["low"] is None else f" ({entry['low']:.3f} to {entry['high']:.3f})"
    return f"{entry['value']:.3f}{limits}"


def estimates(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, dict):
        if {"value", "low", "high"} <= content.keys():
            yield content
        for value in content.values():
            yield from estimates(value)
    elif isinstance(content, list):
        for value in content:
            yield from estimates(value)


def chapter(text: str, title: str) -> str:
    """What stands below a heading, up to the next one of its level."""
    level = re.search(rf"^(#+) {re.escape(title)}$", text, re.M)
    assert level is not None, title
    rest = text[level.end() :]
    return re.split(rf"^#{{1,{len(level[1])}}} ", rest, maxsplit=1, flags=re.M)[0]


def rows(text: str) -> dict[str, list[str]]:
    """The first cell of every row of every table -> the others."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in reversed(cells)}


def test_the_first_sentence_names_the_threshold_and_its_aim(report: Report) -> None:
    points = report.metrics["operating_points"]
    if report.metrics["positive_class"] is None:
        assert ", deciding by the largest probability" in report.page
        return
    threshold = format_probability(points["threshold"])
    assert f" at the threshold {threshold} (target sensitivity 0.85), chosen on validation" in report.page


def test_the_tables_have_the_numbers_of_the_file(report: Report) -> None:
    every, overall, per_class = rows(chapter(report.page, "All numbers")), report.metrics["overall"], {}
    assert {name: every[METRICS[name].title][0] for name in METRICS} == {n: shown(e) for n, e in overall.items()}
    by_class = rows(chapter(report.page, "By class"))
    for name, entry in report.metrics["per_class"].items():
        per_class[name] = [str(entry["n"]), *(shown(entry[metric]) for metric in PER_CLASS)]
    assert {name: by_class[name] for name in per_class} == per_class


def test_every_number_with_an_interval_on_the_page_is_in_the_file(report: Report) -> None:
    known = {shown(entry) for entry in estimates(report.metrics)}
    found = {match[0] for match in TRIPLE.finditer(report.page)}
    assert len(found) > 30 and found - known == set()
    found = {match[0] for match in TRIPLE.finditer(report.card)}
    assert len(found) > 4 and found - known == set()


def test_the_summary_repeats_the_tables(report: Report) -> None:
    overall, positive = report.metrics["overall"], report.metrics["positive_class"]
    own = {} if positive is None else report.metrics["per_class"][positive]
    tiles = dict(re.findall(r"^- ([^:\n]+): (.+)$", chapter(report.page, "Summary"), re.M))
    known = {TITLES[name]: shown(entry) for name, entry in {**own, **overall}.items() if name != "n"}
    assert len(tiles) >= 4 and {title: known[title] for title in tiles} == tiles
    said = re.findall(r"\*\*([\d.]+) %\*\* \(([\d.]+) to ([\d.]+) %\)", chapter(report.page, "Summary"))
    worst = min(report.metrics["per_class"].values(), key=lambda entry: entry["sensitivity"]["value"])
    of = [overall["accuracy"], worst["sensitivity"]]
    of = of if positive is None else [own["sensitivity"], own["specificity"]]
    expected = [re.findall(r"\d+\.\d+", shown(entry)) for entry in of]
    assert [[Decimal(part) for part in one] for one in said] == [[100 * Decimal(p) for p in one] for one in expected]


def test_the_other_chapters_repeat_the_tables(report: Report) -> None:
    overall, positive = report.metrics["overall"], report.metrics["positive_class"]
    calibration = rows(chapter(report.page, "Calibration of probabilities"))
    for name in ("log_loss", "brier"):
        assert calibration[TITLES[name]][-1] == shown(overall[name])
    agreement = rows(chapter(report.page, "Agreement with readers"))["the model and the reference"]
    assert agreement == [str(report.metrics["n"]), shown(overall["accuracy"]), shown(overall["cohen_kappa"])]
    if positive is None:
        return
    own = report.metrics["per_class"][positive]
    operating = rows(chapter(report.page, "Threshold, PPV and NPV"))
    (decides,) = (cells for name, cells in operating.items() if name.endswith("(decides)"))
    assert decides[2:7] == [shown(own[name]) for name in PER_CLASS[:5]]
    (here,) = (cells for name, cells in operating.items() if "these images, counted" in name)
    assert here == [shown(own["ppv"]), shown(own["npv"])]
    assert f"from a probability of **{decides[0]}**" in chapter(report.page, "Threshold, PPV and NPV")


def test_the_pictures_repeat_the_tables(report: Report) -> None:
    overall, per_class = report.metrics["overall"], report.metrics["per_class"]
    alts = dict(re.findall(r"^!\[([^.]+)\. (.*?)\]\(", report.page, re.M))
    assert f"Balanced accuracy {shown(overall['balanced_accuracy'])}" in alts["Confusion matrix"]
    names = [report.metrics["positive_class"]] if report.metrics["positive_class"] else list(per_class)
    for name in names:
        assert f"{name}: {shown(per_class[name]['auroc'])}" in alts["ROC curve"]
        assert f"{name}: {shown(per_class[name]['average_precision'])}" in alts["Precision and recall"]
    after = report.metrics["calibration"]["after"]
    assert f"ECE {shown(after['ece'])}" in alts["Reliability diagram"]
    if len(names) == 1:
        assert f"slope {shown(after['per_class'][names[0]]['slope'])}" in alts["Reliability diagram"]


def test_the_terminal_repeats_the_tables(report: Report) -> None:
    for name in ("auroc", "balanced_accuracy", "accuracy"):
        assert f"{TITLES[name]} {shown(report.metrics['overall'][name])}" in report.terminal.splitlines()


def test_the_model_card_repeats_the_tables(report: Report) -> None:
    overall, positive = report.metrics["overall"], report.metrics["positive_class"]
    own = {} if positive is None else report.metrics["per_class"][positive]
    known = {TITLES[name]: entry for name, entry in {**own, **overall}.items() if name != "n"}
    body, found = chapter(report.card, "Evaluation"), 0
    for title, cells in rows(body).items():
        if title in known:
            found += 1
            assert f"{cells[0]} ({cells[1]})" == shown(known[title]), title
    for name, entry in report.metrics["per_class"].items():
        assert rows(body)[name] == [str(entry["n"]), *(shown(entry[metric]) for metric in PER_CLASS[:4])]
    header = yaml.safe_load(report.card.split("---")[1])["model-index"][0]["results"][0]["metrics"]
    assert found == len(header) == (4 if positive is None else 8)
    names = {HUB.get(name, name): entry for name, entry in {**own, **overall}.items()}
    for one in header:
        assert one["value"] == round(names[one["type"]]["value"], 6) and one["args"]["low"] == round(
            names[one["type"]]["low"], 6
        )
    (baseline,) = report.metrics["baselines"].values()
    gap = baseline["difference"]["auroc"]
    assert f"minus the baseline {gap['value']:+.3f} ({gap['low']:.3f} to {gap['high']:.3f})" in body
    p = p_words(baseline["tests"]["auroc"]["p"])  # the text says that it was tested
    assert f"{gap['value']:+.3f} ({gap['low']:.3f} to {gap['high']:.3f}, {p})" in report.page


def test_the_counts_are_the_same_everywhere(report: Report) -> None:
    n, patients = report.metrics["n"], report.metrics["n_groups"]
    for text in (report.page, report.card, report.methods):
        found = set(re.findall(r"(\d+) images of (\d+) patients", text))
        assert found == {(str(n), str(patients))}
    body = re.sub(r"\s+", " ", report.page.replace("\\", ""))
    paragraphs = report.methods.replace("\\", "").split("\n\n")[1:3]
    assert len(paragraphs) == 2 and min(map(len, paragraphs)) > 50
    for paragraph in paragraphs:
        assert paragraph in body


def test_the_checklists_state_no_number_of_their_own(report: Report) -> None:
    assert not re.search(r"\d\.\d{3}\b", re.sub(r"10\.\d+/\S+", "", chapter(report.page, "Reporting checklists")))


def test_a_percentage_has_the_digits_of_the_number() -> None:
    for n in (80, 125, 200, 400, 1000):
        for k in range(n + 1):
            assert Decimal(in_percent(k / n)) == 100 * Decimal(f"{k / n:.3f}")
