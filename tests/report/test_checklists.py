"""The checklists are complete, point only to what is there, and say honestly what is not."""

import re
from typing import Any

import numpy as np
import pytest

from vitmed.checks.data_check import COUNTS
from vitmed.decisions.operating_points import OperatingPoint, OperatingPoints, Rates
from vitmed.decisions.reliability import CalibrationReport
from vitmed.explanation.results import Robustness
from vitmed.metrics.clinical_utility import DecisionCurve
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.subgroups import Stratum, Subgroups
from vitmed.report.chapters import checklists, content, limitations, sections
from vitmed.report.results import Characteristic, EvaluatedImages, Flow, Results, Seen, Value


def found(groups: bool = True, n: int = 200, **more: Any) -> Results:
    rng = np.random.default_rng(0)
    patients = tuple(f"p{i % 60}" for i in range(n)) if groups else None
    p = Predictions(("a", "b"), ("x",) * n, patients, np.arange(n) % 2, rng.normal(size=(n, 2)).astype(np.float32))
    return Results.of(evaluate_predictions(p)).model_copy(update=more)


def flow(split: str | None, seen: Seen | None = None, **more: Any) -> Flow:
    """Of a run of two splits without images."""
    evaluated = EvaluatedImages(split=split, images=200, patients=60, seen=seen or Seen())
    counted = dict.fromkeys((*COUNTS, "left_out", "patients", "patients_in_two"))
    told = {"used": 0, "why_left_out": "", "level": "patient", "how": "", "copies_in_two": 0, "splits": {}, **more}
    return Flow.model_validate({**counted, "evaluated": evaluated, **told})


def points(threshold: float | None, chosen: str) -> OperatingPoints:
    return OperatingPoints(positive="b", chosen=chosen, threshold=threshold, points={}, notes=[])


def stratum(name: str) -> Stratum:
    return Stratum(name=name, n=20, overall={"auroc": Estimate(value=0.5, low=None, high=None)})


NO_GAPS: dict[str, Any] = {"cut": "", "further": 0, "too_small": 0, "gaps": {}, "worst": {}}
JUDGED = {"site": Subgroups(strata=[stratum("N"), stratum("S")], **NO_GAPS)}
SUPPRESSED = {"site": Subgroups(strata=[Stratum(name="N", n="<10", suppressed=True)], reason="too few", **NO_GAPS)}
CALIBRATED = CalibrationReport.model_construct()  # that it is there is enough


def test_every_item_is_there_once_and_in_order() -> None:
    """44, 27 and 40 items; those with parts are 52 of TRIPOD+AI and 48 of STARD-AI."""
    for guideline, items, lines in zip(content().guidelines, (44, 27, 40), (44, 52, 48), strict=True):
        numbers = [item.number for item in guideline.items]
        assert len(numbers) == len(set(numbers)) == lines
        whole = [int(re.match(r"\d+", number).group()) for number in numbers]  # type: ignore[union-attr]
        assert whole == sorted(whole) and set(whole) == set(range(1, items + 1))


def test_every_item_has_an_answer_or_asks_for_one() -> None:
    for guideline in content().guidelines:
        for item in guideline.items:
            assert item.topics or item.author, item
            assert set(item.topics) <= set(content().topics)
            assert (len(item.asks) < 70 and item.asks[0].islower()) or item.asks.startswith("ROC"), item
    assert {topic.section for topic in content().topics.values()} <= set(sections()) | {
        "operating", "calibration", "patients", "subgroups", "uncertainty", "attention", "robustness",
    }  # fmt: skip


def line(metrics: Results, name: str, number: str, shown: tuple[str, ...] = tuple(sections())) -> Any:
    (lines,) = [lines for guideline, lines in checklists(metrics, shown) if guideline.name == name]
    return next(line for line in lines if line.item.number == number)


def test_a_pointer_depends_on_what_is_there() -> None:
    bare = found()
    assert line(bare, "CLAIM 2024", "20").state == "not supplied"  # no flow: the level is unknown
    assert line(bare, "CLAIM 2024", "44").state == "not supplied"  # funding: no program knows
    assert line(bare, "CLAIM 2024", "38").state == "answered"
    assert line(bare, "CLAIM 2024", "29").state == "answered"
    own = flow("test")
    assert line(found(flow=own), "CLAIM 2024", "20").state == "answered"
    assert line(found(flow=own), "CLAIM 2024", "32").state == "answered"
    assert line(found(flow=own), "CLAIM 2024", "33").state == "not supplied"
    elsewhere = flow(None)
    assert line(found(flow=elsewhere), "CLAIM 2024", "33").state == "answered"
    assert line(found(flow=elsewhere), "CLAIM 2024", "32").state == "not supplied"
    calibrated = found(calibration=CALIBRATED)
    assert line(calibrated, "TRIPOD+AI", "12e", (*sections(), "calibration")).state == "in part"  # no decision curve
    everything = found(calibration=CALIBRATED, decision_curve=DecisionCurve(positive="b", thresholds=[0.5], why=""))
    assert line(everything, "TRIPOD+AI", "12e", (*sections(), "calibration", "operating")).state == "answered"


def test_groups_that_were_too_small_answer_nothing() -> None:
    shown = (*sections(), "subgroups", "patients", "errors", "robustness")
    asked = (("TRIPOD+AI", "23a"), ("TRIPOD+AI", "23b"), ("TRIPOD+AI", "12d"), ("STARD-AI", "23"), ("CLAIM 2024", "30"))
    for guideline, number in asked:
        assert "results by subgroup" in line(found(subgroups=SUPPRESSED), guideline, number, shown).missing
        assert "results by subgroup" not in line(found(subgroups=JUDGED), guideline, number, shown).missing
    assert any(
        "No subgroups were compared, as those requested have too few" in t
        for t in limitations(found(subgroups=SUPPRESSED))
    )


def test_a_threshold_counts_only_where_one_was_chosen() -> None:
    shown = (*sections(), "operating")
    none = found(operating_points=points(None, "default"))
    assert line(none, "TRIPOD+AI", "15", shown).state == "not supplied"
    for chosen in (points(0.3, "youden"), points(None, "cost")):
        assert line(found(operating_points=chosen), "TRIPOD+AI", "15", shown).state == "answered"


def test_the_author_is_asked_for_what_no_column_tells() -> None:
    table = Characteristic(unit="patients", cut="", rows=[Value(name="x", splits={})], rare=0)
    said = found(flow=flow("test", characteristics={"age_years": table, "Sex": table, "hospital": table}))
    for guideline, number in (("CLAIM 2024", "36"), ("TRIPOD+AI", "20b"), ("STARD-AI", "25")):
        assert line(said, guideline, number).missing == "device, severity of the patients of each split"
        assert "age, sex, site, device, severity" in line(found(flow=flow("test")), guideline, number).missing
    hidden = table.model_copy(update={"rows": [], "reason": "too few"})
    assert "age" in line(found(flow=flow("test", characteristics={"age": hidden})), "CLAIM 2024", "36").missing


def test_images_that_the_model_has_seen_are_the_first_limitation() -> None:
    told = limitations(found(flow=flow(None, Seen(images=0, patients=21, test=1))))
    assert told[0].startswith("21 patients of these have the same name as one in training")
    assert told[1].startswith("1 image of these is also in the run's own test")
    assert "Images of the run are among these. It is not known whether any others" in " ".join(told)
    assert "not from the run" not in " ".join(told)
    assert "Few images" not in " ".join(t for t in limitations(found(n=200)) if "(0)" in t)


def test_images_of_the_run_under_another_name_are_no_external_test() -> None:
    """Item 29 of STARD-AI asks how external images differ; one copy among 200 images changes nothing."""
    for seen, told in ((Seen(images=150, test=50), 0), (Seen(images=1, test=0), 1)):
        (line,) = [
            row
            for _, rows in checklists(found(flow=flow(None, seen), n=200), ["results"])
            for row in rows
            if row.item.asks == "how external data differ"
        ]
        assert [topic.text for topic in line.answers].count("images from elsewhere") == told


def test_no_pointer_leads_to_a_section_that_is_not_shown() -> None:
    found_lines = [lines for _, lines in checklists(found(calibration=CALIBRATED), ["results"])]
    assert [len(lines) for lines in found_lines] == [44, 52, 48]  # CLAIM, TRIPOD+AI, STARD
    for lines in found_lines:
        assert {topic.section for line in lines for topic in line.answers} <= {"results"}
        assert {line.state for line in lines} <= {"answered", "in part", "not supplied"}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (found(groups=False), "Patients are unknown"),
        (found(n=20), "Only 20 patients"),
        (found(n=20), "Few images of 'a' (10), 'b' (10)"),
        (found(flow=flow("test")), "No external test"),
        (found(), "is not known"),
        (found(), "No threshold was chosen on validation"),
        (found(flow=flow(None)), "not from the run"),
        (found(flow=flow("test", level="none", patients_in_two=3)), "3 patients are in more than"),
        (found(flow=flow("test", copies_in_two=2)), "2 identical files are in more than one split"),
    ],
)
def test_limitations_grow_from_what_was_not_supplied(metrics: Results, said: str) -> None:
    assert any(said in text for text in limitations(metrics))


@pytest.mark.parametrize(("reached", "said"), [(0.81, True), (0.9, False), (None, False)])
def test_a_target_that_these_images_miss_is_said_in_words(reached: float | None, said: bool) -> None:
    share = Estimate(value=reached, low=None, high=None)
    point = OperatingPoint.model_construct(asked=0.9, reached=Rates.model_construct(specificity=share))
    missed = points(0.7, "target_specificity").model_copy(update={"points": {"target_specificity": point}})
    told = "The target specificity of 0.9 was not reached on these images: 0.810."
    assert (told in limitations(found(operating_points=missed))) == said


def test_what_was_supplied_is_no_limitation() -> None:
    text = " ".join(
        limitations(
            found(
                subgroups=JUDGED,
                operating_points=points(0.3, "youden"),
                calibration=CALIBRATED,
                robustness=Robustness.model_construct(),
            )
        )
    )
    for said in ("Patients are unknown", "No subgroups", "No threshold", "was not checked", "not tested"):
        assert said not in text


def test_no_item_asks_for_readers_and_classes_have_tables_of_their_own() -> None:
    """A study without readers lacks nothing; with three classes the tables of each class answer for prevalence."""
    own = found(flow=flow("test"))
    asked = line(own, "CLAIM 2024", "37")  # the report is of one split: the author adds the others
    assert "readers" not in asked.missing and asked.state == "in part" and "--split val" in asked.missing
    compared = line(found(flow=flow("test"), readers=[object()]), "CLAIM 2024", "37")
    assert "readers" in {topic.section for topic in compared.answers}
    rates = line(found(fixed_rates=object()), "STARD-AI", "31")
    assert "operating" in {topic.section for topic in rates.answers} and rates.state == "answered"
