"""Subgroups: cut as stated, evaluated as a data set of their own, gaps with the right chance of being wrong."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import BARE, COLOURS, TINY_SETS, draw_classes, recording
from reports import write_report
from sklearn.metrics import recall_score, roc_auc_score

from vitmed import evaluate, train
from vitmed.core.base_models import Target
from vitmed.core.errors import UsageError
from vitmed.metrics.kinds.classes import PreparedPredictions, evaluate_predictions
from vitmed.metrics.kinds.grades import PreparedGrades
from vitmed.metrics.kinds.number import NumberPredictions, PreparedNumbers
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.subgroups import (
    EMPTY,
    TITLES,
    Strata,
    Stratum,
    _comparing,
    _gap,
    compared,
    evaluate_strata,
    strata,
    subgroups,
)


def draw(
    patients: int = 60, images: int = 8, classes: int = 2, seed: int = 0, sites: str = "NS", harm: float = 0.0
) -> Predictions:
    """Patients in sites by turns; `harm` draws the images of the last site towards the wrong class."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(patients), images)
    labels = rng.integers(classes, size=len(owner))
    site = np.array([sites[i % len(sites)] for i in owner])
    logits = rng.normal(size=(len(owner), classes)) + 0.5 * rng.normal(size=(patients, classes))[owner]
    logits[np.arange(len(owner)), labels] += 2 - harm * (site == sites[-1])
    return Predictions(
        ("infected", "uninfected") if classes == 2 else tuple(f"c{i}" for i in range(classes)),
        tuple(f"{i}.png" for i in range(len(owner))),
        tuple(f"SECRET{i}" for i in owner),
        labels,
        logits.astype(np.float32),
        columns={"site": tuple(site), "scanner": tuple(rng.choice(list("xyz"), len(owner)))},
    )


def column(p: Predictions, cells: list[str]) -> dict[str, Any]:
    told = subgroups(replace(p, columns={"c": tuple(cells)}), ["c"])
    json.dumps({name: own.to_dict() for name, own in told.items()}, allow_nan=False)
    return told["c"]


# -- how a column is cut


def cut(cells: list[str], units: list[int] | None = None) -> Strata:
    return strata(cells, units or list(range(len(cells))), "patients")


def test_words_are_strata_in_order_and_numbers_by_size() -> None:
    found = cut(["b", "a", "", " a ", "b"])
    assert found.names == ("a", "b", EMPTY) and found.of.tolist() == [1, 0, 2, 0, 1] and not found.cut
    assert cut(["10", "9", "2"]).names == ("2", "9", "10")
    alike = cut(["f", "F", "F", "1.0", "1", "1"])  # written in two ways; the more frequent one is shown
    assert alike.names == ("1", "F") and alike.of.tolist() == [1, 1, 1, 0, 0, 0]


def test_many_numbers_are_cut_at_their_quartiles() -> None:
    found = cut([str(i) for i in range(20, 100)])  # quartiles of 20 .. 99: 40, 60, 80
    assert found.names == ("under 40", "40 to under 60", "60 to under 80", "80 and above")
    assert np.bincount(found.of).tolist() == [20, 20, 20, 20]
    assert found.cut == "cut at the quartiles of the images: 40, 60, 80"
    assert not any("99" in name or "20 " in name for name in found.names)  # the oldest patient is not told
    assert cut([str(20230000 + i) for i in range(20, 100)]).names[0] == "under 20230040"
    gaps = cut([str(i) for i in range(20, 100)] + ["", "NA", "unknown"])
    assert gaps.names[-1] == EMPTY and gaps.of[-3:].tolist() == [4, 4, 4]
    assert cut([str(i) for i in range(20)] + ["young"]).cut == ""  # a word: no column of numbers
    zeros = cut(["0"] * 90 + [str(i) for i in range(12)])
    close = cut([str(0.123456781 + 1e-9 * i) for i in range(80)])
    assert len(set(close.names)) == 4 and close.names[0] == "under 0.1234568"
    assert zeros.names == ("under 1", "1 and above") and np.bincount(zeros.of).tolist() == [91, 11]


@pytest.mark.parametrize("odd", [["90+"], ["<1", ">89"], ["61,5"], ["unborn"]])
def test_ages_of_which_some_are_no_numbers_are_not_one_group_each(odd: list[str]) -> None:
    ages = [str(i) for i in range(20, 100)] + ["", "NA"]
    found = cut(ages + odd * 3)
    assert found.names == () and "most of its cells are numbers, but not all" in found.why
    assert "but not all" in cut([f"{i},5" for i in range(20, 100)]).why
    for words in (["site 1", "2"], ["2019-01-01", "2019-01-02"], ["1", "2", "3", odd[0]]):
        assert set(cut(words * 10).names) == set(words)


def test_quartiles_of_few_patients_would_tell_their_ages() -> None:
    ages = [str(20 + i) for i in range(40)]
    assert cut(ages).cut and not cut(ages[:-1]).names  # 10 patients in each quartile, and 9 in one
    pairs = [age for age in ages for _ in range(2)]
    assert cut(pairs, [i // 2 for i in range(80)]).cut  # two images each are still 10 patients
    few = cut(pairs, [i // 4 for i in range(80)])
    assert few.names == () and few.cut == "" and "fewer than 10 patients" in few.why
    p = draw(patients=12, images=10)
    found = column(p, [str(60 + i // 10) for i in range(120)])
    assert found["strata"] == [] and found["gaps"] == {} and "fewer than 10 patients" in found["reason"]
    assert not re.search(r"\b6\d\b|\b7\d\b", json.dumps(found.to_dict()))  # no age of anybody


def test_groups_that_are_alike_have_no_worst() -> None:
    p = draw(patients=40, images=4, sites="NS")
    even = replace(p, labels=np.arange(160) % 2, logits=np.eye(2, dtype=np.float32)[np.arange(160) % 2])
    told = subgroups(even, ["site"])
    assert told["site"]["gaps"]["accuracy"]["value"] == 0 and told["site"]["worst"] == {}
    assert compared(told) and not compared(None) and not compared({"c": column(p, ["one"] * 160)})


# -- what is told of a stratum


def test_a_stratum_is_evaluated_as_if_it_were_alone() -> None:
    p = draw()
    told = subgroups(p, ["site"])
    assert [stratum["name"] for stratum in told["site"]["strata"]] == ["N", "S"]
    for stratum in told["site"]["strata"]:
        rows = np.flatnonzero(np.array(p.columns["site"]) == stratum["name"])
        alone = evaluate_predictions(p.take(rows))
        assert (stratum["n"], stratum["n_groups"]) == (len(rows), 30)
        for name in ("auroc", "balanced_accuracy", "accuracy", "mcc"):
            assert stratum["overall"][name] == alone["overall"][name]
        for name in ("sensitivity", "specificity", "ppv", "npv"):
            assert stratum["overall"][name] == alone["per_class"]["infected"][name]


def test_small_strata_are_named_and_not_evaluated() -> None:
    p = draw(patients=30, images=10)
    cells = ["big"] * 195 + ["few"] * 9 + ["SECRET"] * 5 + ["few patients"] * 91
    found = column(p, cells)
    by_name = {stratum["name"]: stratum for stratum in found["strata"]}
    assert by_name["few"].to_dict() == {"name": "few", "n": "<10", "suppressed": True}
    assert by_name["big"]["n"] == 195 and found["too_small"] == 2
    assert "SECRET" not in by_name  # of one patient: the value may be a name
    assert by_name["few patients"]["n_groups"] == 10
    nine = column(p, ["big"] * 210 + ["nine patients"] * 90)
    assert nine["strata"][1].to_dict() == {"name": "nine patients", "n": "<10", "suppressed": True}
    assert nine["gaps"] == {} and "fewer than two strata" in nine["reason"]


def test_a_column_that_names_patients_is_not_told() -> None:
    p = draw()
    found = column(p, list(p.groups))
    assert "one patient" in found["reason"] and "SECRET" not in json.dumps(found.to_dict())
    halves = [f"{name}{i % 2}" for i, name in enumerate(p.groups)]
    assert "SECRET" not in json.dumps(column(p, halves).to_dict())


def test_many_small_strata_are_only_counted() -> None:
    p = draw(patients=100, images=4)
    found = column(p, [f"DATE{i // 8}" for i in range(400)])
    assert found["too_small"] == 50 and found["strata"] == []
    alone = column(replace(p, groups=None), ["all"] * 400)
    assert alone["strata"][0]["n_groups"] is None and "fewer than two" in alone["reason"]


# -- gaps


def test_the_gap_by_hand() -> None:
    p = draw(harm=2)
    told = subgroups(p, ["site"])
    gap = told["site"]["gaps"]["sensitivity"]
    site, hits = np.array(p.columns["site"]), p.predicted == p.labels
    ill = p.labels == 0
    assert (gap["best"], gap["worst"]) == ("N", "S") and told["site"]["worst"]["sensitivity"] == "S"
    share = {s: hits[ill & (site == s)].mean() for s in "NS"}
    assert gap["value"] == pytest.approx(share["N"] - share["S"])
    # Newcombe's interval of two independent proportions, from the interval of each.
    own = {stratum["name"]: stratum["overall"]["sensitivity"] for stratum in told["site"]["strata"]}
    down = np.hypot(own["N"]["value"] - own["N"]["low"], own["S"]["high"] - own["S"]["value"])
    up = np.hypot(own["N"]["high"] - own["N"]["value"], own["S"]["value"] - own["S"]["low"])
    assert (gap["low"], gap["high"]) == pytest.approx((gap["value"] - down, gap["value"] + up))
    assert gap["low"] > 0 and gap["by_chance"] is None  # the interval is the test
    three = subgroups(draw(harm=2, sites="MNS"), ["site"])  # of three, the best and the worst are picked
    gap = three["site"]["gaps"]["sensitivity"]
    assert (gap["low"], gap["high"], gap["compared"]) == (None, None, 3) and gap["by_chance"] < 0.02


@pytest.mark.parametrize("slow", [False, True])
def test_the_gap_of_every_number_is_the_difference_of_scikit_learns(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best stratum minus the worst of three, of two classes and of three."""
    if slow:
        monkeypatch.setattr("vitmed.metrics.subgroups.PAIRS", 0)
    for classes in (2, 3):
        p = draw(patients=45, images=8, classes=classes, sites="LMN", harm=0.7)
        p = replace(p, logits=p.logits.round(1))  # with ties
        found, chances = subgroups(p, ["site"])["site"], p.probabilities
        own: dict[str, list[float]] = {}
        for name in "LMN":
            rows = np.array(p.columns["site"]) == name
            truth, called, q = p.labels[rows], p.predicted[rows], chances[rows]
            recalls = recall_score(truth, called, average=None)
            areas = [roc_auc_score(truth == c, q[:, c]) for c in range(classes)]
            numbers = {"accuracy": (truth == called).mean(), "balanced_accuracy": recalls.mean()}
            numbers["auroc"] = np.mean(areas)
            if classes == 2:
                numbers |= {"sensitivity": recalls[0], "specificity": recalls[1]}
            for key, value in numbers.items():
                own.setdefault(key, []).append(float(value))
        assert list(found.gaps) == [name for name in TITLES if name in own]
        for key, values in own.items():
            gap = found.gaps[key]
            assert gap.value == pytest.approx(max(values) - min(values)), key
            assert (gap.best, gap.worst) == ("LMN"[np.argmax(values)], "LMN"[np.argmin(values)])
            assert gap.compared == 3 and found.worst[key] == gap.worst
        assert not any(stratum.suppressed for stratum in found.strata)
        assert found.shuffles == (99 if slow else 500)


def test_what_is_cut_off_where_there_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 20 largest strata, numbers of up to 8 values, pairs up to a limit."""
    letters = "ABCDEFGHIJKLMNOPQRSTU"
    p = draw(patients=210, images=1, sites=letters)
    found = subgroups(p, ["site"])["site"]
    assert [stratum.name for stratum in found.strata] == list(letters[:20])
    assert (found.further, found.too_small) == (1, 0)
    assert cut([str(i % 8) for i in range(80)]).names == tuple("01234567")
    assert cut([str(i % 9) for i in range(90)]).cut == "cut at the quartiles of the images: 2, 4, 6"
    p = draw(patients=60)
    for classes, least in ((2, 60**2), (3, 3 * 60**2)):
        for pairs, shuffles in ((least, 500), (least - 1, 99)):
            monkeypatch.setattr("vitmed.metrics.subgroups.PAIRS", pairs)
            assert subgroups(draw(classes=classes), ["site"])["site"].shuffles == shuffles
    monkeypatch.setattr("vitmed.metrics.subgroups.MANY_CLASSES", 3)  # with more, accuracy alone
    for classes, names in ((3, {"accuracy", "auroc", "balanced_accuracy", "mcc"}), (4, {"accuracy"})):
        found = subgroups(draw(classes=classes), ["site"])["site"]
        assert [set(stratum.overall) for stratum in found.strata] == [names] * 2
        assert set(found.gaps) == names - {"mcc"}


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3, 9])
def test_sites_that_do_not_differ_are_called_so_nineteen_times_in_twenty(classes: int) -> None:
    """300 null tests; 99.9 % of tries lie within the limits. Also of the intervals, which exist of two sites."""
    alarms, excluded, times = 0, 0, 300
    for seed in range(times):
        p = draw(patients=60, images=4 * classes, classes=classes, seed=seed, sites="ABCDEF")
        halves = replace(p, columns={**p.columns, "half": tuple("AB"[cell in "DEF"] for cell in p.columns["site"])})
        found = subgroups(halves, ["site", "half"])
        of_many = found["site"].gaps["balanced_accuracy"]
        assert of_many.by_chance is not None
        assert all(gap.low is None for gap in found["site"].gaps.values())
        alarms += of_many.by_chance < 0.05
        gap = found["half"].gaps["auroc"]
        assert gap.low is not None and gap.high is not None
        excluded += gap.low > 0 or gap.high < 0
    assert 3 <= alarms <= 28 and excluded <= 28


def test_shuffles_say_how_often_chance_makes_such_a_gap() -> None:
    """Six sites that do not differ: the best and the worst differ all the same, and chance explains it."""
    by_chance = []
    for seed in range(12):
        told = subgroups(draw(patients=72, seed=seed, sites="ABCDEF"), ["site"])
        by_chance.append(told["site"]["gaps"]["auroc"]["by_chance"])
        assert told["site"]["gaps"]["auroc"]["value"] > 0.01
    assert 0.25 < np.mean(by_chance) < 0.75 and min(by_chance) > 0.001
    across = subgroups(draw(), ["scanner"])  # a patient is on several scanners: there is no such shuffle
    assert across["scanner"]["gaps"]["auroc"]["by_chance"] is None


def test_empty_cells_are_a_group_that_is_shown_and_not_compared() -> None:
    """Rows without a cell change no number of the groups that are stated."""
    p = draw(patients=80, harm=1)
    cells = np.array(p.columns["site"])
    stated = np.arange(len(p)) >= 96  # the first 12 patients have none
    found = column(p, np.where(stated, cells, "").tolist())
    assert [stratum.name for stratum in found.strata] == ["N", "S", EMPTY] and found.strata[-1].n == 96
    alone = column(p.take(np.flatnonzero(stated)), cells[stated].tolist())
    assert found.gaps == alone.gaps and found.worst == alone.worst
    gap = found.gaps["sensitivity"]
    assert {gap.best, gap.worst} == {"N", "S"} and gap.low < gap.value < gap.high


def test_a_small_group_does_not_hide_a_gap_between_large_ones() -> None:
    """Two hospitals of 100 patients differ by 0.2 in sensitivity; a third of 12 patients lies between them."""
    site, labels = np.repeat(["A", "B", "C"], [200, 200, 24]), np.arange(424) % 2  # the first class is the positive one
    misses = {"A": 5, "B": 25, "C": 2}
    ill = {name: np.flatnonzero((site == name) & (labels == 0)) for name in misses}
    called = labels.copy()
    for name, count in misses.items():
        called[ill[name][:count]] = 1
    owners, columns = tuple(str(i // 2) for i in range(424)), {"site": tuple(site)}
    logits = np.eye(2, dtype=np.float32)[called]
    p = Predictions(("infected", "uninfected"), tuple(map(str, range(424))), owners, labels, logits, columns=columns)
    gap = subgroups(p, ["site"])["site"].gaps["sensitivity"]
    assert (gap.best, gap.worst, gap.compared) == ("A", "B", 3) and gap.value == pytest.approx(0.2)
    assert gap.by_chance < 0.01


@pytest.mark.slow
def test_a_gap_is_compared_with_shuffles_that_have_as_many_sites() -> None:
    """Ten positives in each of three sites: most shuffles leave fewer than ten in one, and 20 % of gaps seemed rare."""
    rng, tests, seemed = np.random.default_rng(0), 60, dict.fromkeys(("auroc", "balanced_accuracy"), 0)
    labels = np.repeat([0, 1], [30, 90])  # the first class is the positive one
    columns = {"site": tuple("NSW"[i % 3] for i in range(120))}
    for _ in range(tests):
        logits = (rng.normal(size=(120, 2)) + 2 * np.eye(2)[labels]).astype(np.float32)
        p = Predictions(("infected", "uninfected"), tuple(map(str, range(120))), None, labels, logits, columns=columns)
        told = subgroups(p, ["site"])
        assert told is not None
        for name in seemed:
            chance = told["site"].gaps[name].by_chance
            assert chance is not None
            seemed[name] += chance <= 0.05
    assert max(seemed.values()) / tests <= 0.08, seemed


def test_sensitivity_is_compared_where_there_are_positives() -> None:
    p = draw()
    site = np.array(p.columns["site"])
    labels = np.where(site == "S", 1, p.labels)  # no positive in S
    told = subgroups(replace(p, labels=labels), ["site"])
    assert "fewer than two groups have 10" in told["site"]["gaps"]["sensitivity"]["reason"]
    assert told["site"]["gaps"]["specificity"]["value"] is not None
    alone = {s["name"]: s["overall"] for s in told["site"]["strata"]}
    assert alone["S"]["auroc"]["value"] is None and alone["S"]["specificity"]["value"] is not None


def test_each_difference_of_three_groups_is_divided_by_its_error_in_the_same_shuffle() -> None:
    """A shuffle in which a group has no number does not count."""
    rng = np.random.default_rng(0)
    errors = rng.uniform(0.5, 2, (3, 200)) * [[1], [1], [3]]
    values = rng.normal(size=(3, 200)) * errors
    values[:, 0], values[2, 5] = (0, 2.5, 6), np.nan
    gap = _gap("auroc", values, errors**2, [Stratum(name=name, n=20) for name in "abc"])
    counted = np.arange(200) != 5
    furthest = np.max(
        [
            (np.abs(values[i] - values[k]) / np.hypot(errors[i], errors[k]))[counted]
            for i, k in ((0, 1), (0, 2), (1, 2))
        ],
        axis=0,
    )
    assert gap.by_chance == np.mean(furthest >= furthest[0]) == 10 / 199
    assert (gap.best, gap.worst, gap.value, gap.compared) == ("c", "a", 6, 3)


def test_the_error_of_each_number_is_that_of_leaving_out_each_patient() -> None:
    for classes, kind in ((2, PreparedPredictions), (3, PreparedPredictions), (4, PreparedGrades)):
        p = draw(patients=80, images=5, classes=classes)
        p = replace(p, logits=p.logits.round(1))  # with ties
        numbers, _ = _comparing(p, np.repeat(np.arange(80), 5), kind)
        whole, without = numbers(np.ones((1, 80))), numbers(1 - np.eye(80))
        assert ("quadratic_kappa" in whole) == (classes == 4) and "auroc" in whole
        for name, (value, variance, _) in whole.items():
            assert variance == pytest.approx(((without[name][0] - value) ** 2).sum(), rel=0.08), name


def uneven(seed: int, right: float = 0.8) -> tuple[Predictions, NumberPredictions]:
    """One model at three sites: 40 patients with 15 images each at A and B, with one image each at C."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(120), np.repeat([15, 15, 1], 40))
    paths, groups = tuple(map(str, range(len(owner)))), tuple(map(str, owner))
    columns = {"site": tuple("ABC"[i // 40] for i in owner)}
    labels = rng.integers(2, size=len(owner))
    hits = rng.random(len(owner)) < rng.beta(9 * right, 9 * (1 - right), 120)[owner]
    logits = np.eye(2, dtype=np.float32)[np.where(hits, labels, 1 - labels)]
    off = rng.normal(size=len(owner)) + 0.6 * rng.normal(size=120)[owner]
    outputs = np.stack([off, np.zeros(len(owner))], axis=1).astype(np.float32)
    number = NumberPredictions(
        ("years",), paths, groups, np.zeros(len(owner)), outputs, columns=columns, target=Target(kind="number")
    )
    return Predictions(("a", "b"), paths, groups, labels, logits, columns=columns), number


def test_sites_that_differ_only_in_images_per_patient_are_seldom_called_different() -> None:
    """Chance moves the site with few images most; of 40 tests, 17 seemed to show a difference in error."""
    alarms = 0
    for seed in range(40):
        _, number = uneven(seed)
        chance = evaluate_strata(number, number.columns["site"], PreparedNumbers).gaps["mae"].by_chance
        assert chance is not None
        alarms += chance <= 0.05
    assert alarms <= 5


def test_a_small_site_without_an_error_is_not_a_certain_difference() -> None:
    """All 40 images of a site are right, of the others 95 %: chance explains it, though its own images do not vary."""
    p, _ = uneven(1, right=0.95)
    flawless = np.eye(2, dtype=np.float32)[p.labels]
    p = replace(p, logits=np.where(np.array(p.columns["site"])[:, None] == "C", flawless, p.logits))
    gap = subgroups(p, ["site"])["site"].gaps["accuracy"]
    assert gap.best == "C" and gap.by_chance > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("right", [0.8, 0.95])
def test_uneven_sites_of_classes_are_seldom_called_different(right: float) -> None:
    """100 null tests; 20 to 40 of them seemed to show a difference."""
    alarms = dict.fromkeys(("auroc", "balanced_accuracy", "accuracy", "sensitivity", "specificity"), 0)
    for seed in range(100):
        gaps = subgroups(uneven(seed, right)[0], ["site"])["site"].gaps
        for name in alarms:
            assert gaps[name].compared == 3
            alarms[name] += gaps[name].by_chance <= 0.05
    assert max(alarms.values()) <= 11, alarms  # 99 % of tries at 5 %


def test_many_images_of_two_patients_do_not_show_a_gap() -> None:
    p = draw()
    site, owner = np.array(p.columns["site"]), np.array(p.groups)
    names = [name for name in np.unique(owner) if site[owner == name][0] == "S"]
    for few, shown in ((4, False), (5, True)):  # patients of S with positives, of 8 images each
        held = np.isin(owner, names[:few])
        labels = np.where(site == "S", np.where(held, 0, 1), p.labels)  # 0 is infected
        told = subgroups(replace(p, labels=labels), ["site"])["site"]["gaps"]
        assert (told["auroc"]["value"] is not None) == shown
        assert shown or "from 5 patients" in told["auroc"]["reason"]


def test_more_classes_and_patients_unknown() -> None:
    p = draw(classes=3, harm=1.5)
    told = subgroups(p, ["site"])
    assert set(told["site"]["gaps"]) == {"auroc", "balanced_accuracy", "accuracy"}
    alone = subgroups(replace(p, groups=None), ["site"])
    assert alone["site"]["gaps"]["auroc"]["value"] is not None


def test_fewer_shuffles_change_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    p = draw(harm=1)
    first = subgroups(p, ["site"])
    monkeypatch.setattr("vitmed.metrics.subgroups.PAIRS", 0)
    again = subgroups(p, ["site"])
    assert set(first["site"]["gaps"]) == {"auroc", "balanced_accuracy", "accuracy", "sensitivity", "specificity"}
    for name, gap in first["site"]["gaps"].items():
        for key in ("value", "low", "high"):
            assert again["site"]["gaps"][name][key] == pytest.approx(gap[key]), name


# -- bad input


def test_hopeless_columns() -> None:
    p = draw()
    assert subgroups(p, []) is None
    assert "empty for all" in column(p, [""] * len(p))["reason"]
    assert "fewer than two" in column(p, ["one"] * len(p))["reason"]
    ten = p.take(np.arange(10))
    assert column(ten, ["a", "b"] * 5)["gaps"] == {}
    constant = replace(p, logits=np.zeros_like(p.logits))
    told = subgroups(constant, ["site"])
    assert told["site"]["gaps"]["auroc"]["value"] == 0
    with pytest.raises(UsageError, match=r"unknown column for --subgroup 'sit'.*") as error:
        subgroups(p, ["sit"])
    assert "site" in str(error.value) and "scanner" in str(error.value)
    with pytest.raises(UsageError, match="no further columns"):
        subgroups(replace(p, columns={}), ["site"])
    none = p.take(np.arange(0))
    assert subgroups(none, ["site"]) is None


def test_a_thousand_classes() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(1000, size=2000)
    p = Predictions(
        tuple(f"c{i}" for i in range(1000)), ("x",) * 2000, tuple(str(i // 10) for i in range(2000)), labels,
        np.eye(1000, dtype=np.float32)[labels], columns={"site": tuple("NS"[i // 10 % 2] for i in range(2000))},
    )  # fmt: skip
    told = subgroups(p, ["site"])
    assert set(told["site"]["gaps"]) == {"accuracy"} and len(str(told)) < 1e4


# -- the commands


@pytest.mark.usefixtures("no_figures")
def test_the_report_of_a_table_by_subgroup(tmp_path: Path, vitmed: Any) -> None:
    p = draw(harm=1)
    write_report(tmp_path / "first", p, title="t", facts={})
    file = tmp_path / "first" / "predictions.csv"
    assert "subgroups" not in json.loads((tmp_path / "first" / "metrics.json").read_text())
    answer = vitmed(
        "evaluate", file, "--subgroup", "site", "--subgroup", "scanner", "--resamples", 30, "-o", tmp_path / "a"
    )
    assert answer.code == 0, answer.err
    told = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert list(told["subgroups"]) == ["site", "scanner"]
    html = (tmp_path / "a" / "report.html").read_text()
    assert "By site" in html and "SECRET" not in html
    again = evaluate(tmp_path / "a" / "predictions.csv", output=tmp_path / "b")  # it remembers
    assert again.metrics.to_dict()["subgroups"] == told["subgroups"]
    answer = vitmed("evaluate", file, "--subgroup", "hospital", "-o", tmp_path / "c")
    assert answer.code == 2 and "site, scanner" in answer.err.replace("\n", " ") and not (tmp_path / "c").exists()


@pytest.mark.usefixtures("no_figures")
def test_a_run_with_subgroups(tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 30, tuple(COLOURS)[:2])
    lines = ["path,label,site"]
    for i, file in enumerate(sorted(data.rglob("*.png"))):
        lines.append(f"{file.relative_to(data).as_posix()},{file.parent.name},{'NS'[i % 2]}")
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(lines))
    wanted: dict[str, Any] = BARE | {"epochs": 1, "resamples": 20}
    with pytest.raises(UsageError, match="unknown column for --subgroup 'size'"):
        train(data, labels=table, output=tmp_path / "runs", subgroup=["size"], sets=TINY_SETS, **wanted)
    assert not (tmp_path / "runs").exists()  # before the long work
    result = train(data, labels=table, output=tmp_path / "runs", subgroup="site", sets=TINY_SETS, **wanted)
    assert set(result.test.metrics["subgroups"]) == {"site"}
    other, ui = draw_classes(tmp_path / "other", 6, tuple(COLOURS)[:2], seed=9), recording()
    found = evaluate(result.folder, data=other, resamples=20)  # of the run's wish, of a folder without the column
    assert "subgroups" not in found.metrics and any("No subgroups by site" in text for text in ui.said)
    with pytest.raises(UsageError, match="no further columns"):
        evaluate(result.folder, data=other, resamples=20, subgroup="site")


def test_strata_of_grades_have_their_kappa_and_their_error() -> None:
    from sklearn.metrics import cohen_kappa_score

    rng = np.random.default_rng(0)
    labels, sites = rng.integers(4, size=160), tuple("ab"[i % 2] for i in range(160))
    logits = (rng.normal(size=(160, 4)) - np.abs(np.arange(4) - labels[:, None])).astype(np.float32)
    p = Predictions(tuple("0123"), tuple(f"{i}.png" for i in range(160)), None, labels, logits, columns={"site": sites})
    found = subgroups(p, ["site"], PreparedGrades)
    assert found is not None
    kappas = []
    for name, stratum in zip("ab", found["site"].strata, strict=True):
        rows = np.array(sites) == name
        kappa = cohen_kappa_score(labels[rows], p.predicted[rows], weights="quadratic")
        assert stratum.overall["quadratic_kappa"].value == pytest.approx(kappa)
        kappas.append(kappa)
        assert stratum.overall["grade_error"].value == pytest.approx(np.abs(p.predicted - labels)[rows].mean())
    of_kappa = found["site"].gaps["quadratic_kappa"]
    assert next(iter(found["site"].gaps)) == "quadratic_kappa"  # the number that decides comes first
    assert of_kappa.value == pytest.approx(abs(kappas[0] - kappas[1])) and of_kappa.low < of_kappa.value < of_kappa.high
    assert of_kappa.worst == "ab"[int(np.argmin(kappas))]
    of_three = replace(p, columns={"site": tuple("abc"[i % 3] for i in range(160))})
    assert 0 <= subgroups(of_three, ["site"], PreparedGrades)["site"].gaps["quadratic_kappa"].by_chance <= 1
    assert "quadratic_kappa" not in subgroups(p, ["site"])["site"].gaps  # of classes
    rare = replace(p, labels=np.where((labels == 3) & (np.arange(160) % 2 == 0), 2, labels))
    gap = subgroups(rare, ["site"])["site"].gaps["auroc"]  # type: ignore[index]
    assert gap.value is None and "fewer than two groups have 10" in gap.reason, "a has no image of grade 3"
