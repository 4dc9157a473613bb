"""Every section of the report is written for whatever it is given: no exception, no name of a patient, all JSON."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reports import write_report

from vitmed.core.base_models import Target
from vitmed.core.config import EvaluateConfig
from vitmed.core.text import counted, format_probability, listed
from vitmed.decisions.policy import choose_policy, count_answers
from vitmed.metrics.estimates import learnt_nothing
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.report.blocks import Group, Picture
from vitmed.report.chapters import baseline_verdicts, document, first_sentence
from vitmed.report.headline import headline
from vitmed.report.plots.drawing import Drawn
from vitmed.report.results import Results
from vitmed.report.templates import blocks_of, results_sentence, sampling_of

pytestmark = pytest.mark.usefixtures("no_figures")


def draw(case: str) -> Predictions:
    rng = np.random.default_rng(0)
    classes = {"a thousand classes": 1000, "three classes": 3, "a class without images": 3, "mixed": 3}.get(case, 2)
    size = {"ten": 10, "none": 0, "one image": 1}.get(case, 120)
    labels = rng.integers(classes, size=size)
    owner = np.arange(size) // 4
    if case == "one class":
        labels[:] = 1
    if case == "a class without images":
        labels = np.minimum(labels, 1)
    if case == "one patient":
        owner[:] = 0
    if case == "one image each":
        owner = np.arange(size)
    if case in ("pure", "three classes"):
        labels = owner % classes
    if case == "mixed":
        labels = np.arange(size) % 3
    logits = rng.normal(size=(size, classes)) if case != "constant" else np.zeros((size, classes))
    columns = {
        "empty": ("",) * size,
        "one": ("x",) * size,
        "site": tuple("AB"[i % 2] for i in owner),
        "age": tuple(str(20 + i) for i in owner),
        "name": tuple(f"SECRET{i}" for i in owner),
        "small": tuple("tiny" if i < 8 else "large" for i in range(size)),
    }
    groups = None if case == "no patients" else tuple("" if case == "nameless" else f"SECRET{i}" for i in owner)
    return Predictions(
        tuple(f"c{i} <b>" for i in range(classes)), tuple(f"SECRET/{i}.png" for i in range(size)), groups, labels,
        logits.astype(np.float32), columns=columns,
    )  # fmt: skip


CASES = (
    "two classes", "three classes", "pure", "one class", "a class without images", "mixed", "one patient",
    "one image each", "no patients", "nameless", "constant", "ten", "one image", "none",
    pytest.param("a thousand classes", marks=pytest.mark.slow),
)  # fmt: skip


def test_grades_have_a_chapter_with_every_cut(tmp_path: Path) -> None:
    p = draw("three classes")
    metrics = write_report(
        tmp_path, p, title="t", facts={}, config=EvaluateConfig(resamples=20, ordinal=list(p.classes), cost="absolute"),
    )  # fmt: skip
    text = (tmp_path / "report.html").read_text()
    assert metrics.target.kind == "grades" and metrics.grades is not None and 'id="grades"' in text
    for cut in ("c1 &lt;b&gt; or higher", "c2 &lt;b&gt; or higher"):
        assert text.count(cut) == 1
    off = p.predicted - p.labels
    for grades in np.unique(off):
        count, share = (off == grades).sum(), (off == grades).mean()
        cells = rf"<td>{count}</td><td>{share:.3f} <small>\(0\.\d+ to 0\.\d+\)</small></td>"
        assert re.search(cells, text), cells
    assert metrics.overall["quadratic_kappa"] == metrics.grades.quadratic_kappa
    assert Results.read(json.loads((tmp_path / "metrics.json").read_text())) == metrics


@pytest.mark.parametrize("case", CASES)
def test_whatever_comes(case: str, tmp_path: Path) -> None:
    p = draw(case)
    config = EvaluateConfig(resamples=20, subgroups=list(p.columns))
    write_report(tmp_path, p, title="t", facts={}, config=config)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    text = (tmp_path / "report.html").read_text()
    assert "SECRET" not in text and "nan" not in re.sub("nance|wynants", "", text.lower())
    assert "c0 <b>" not in text and "c0 &lt;b&gt;" in text
    assert ("100 of 1,000 classes shown" in text) == (case == "a thousand classes") and text.count("<tr>") < 1000
    for key in ("patient_level", "per_patient"):
        assert (key in metrics) == (p.groups is not None and len(p) > 0)
    decided = "mean" in metrics.get("patient_level", {}) and metrics["positive_class"] is not None
    assert ("was not chosen for patients" in text) == decided
    assert ("subgroups" in metrics) == (len(p) > 0)
    assert (tmp_path / "label_issues.csv").exists() == ("n" in metrics.get("label_errors", {}))


def page(folder: Path, p: Predictions, resamples: int = 20, **more: Any) -> tuple[str, dict[str, Any]]:
    metrics = write_report(folder, p, title="t", facts={}, config=EvaluateConfig(resamples=resamples), **more)
    return " ".join(html.unescape((folder / "report.html").read_text()).split()), metrics


def test_one_patient_gives_no_interval_and_no_promise(tmp_path: Path) -> None:
    text, metrics = page(tmp_path, draw("one patient"))
    assert "No intervals: one patient cannot show how much others would differ." in text
    assert "95% intervals" not in text and "120 images of 1 patient," in text
    assert "Only one patient is evaluated" in text and "1 patients" not in text and "1 of them" not in text
    assert "So few images or patients cannot show how many of 100 positive or negative results" in text
    *numbers, how = headline(metrics).split("\n")
    assert how == "no intervals" and all(re.search(r" (undefined|[\d.]+ \(no interval\))$", line) for line in numbers)


def test_a_name_written_from_right_to_left_stands_in_an_isolate_on_the_page(tmp_path: Path) -> None:
    """Else the numbers behind it are shown in another order: Unicode Bidirectional Algorithm, 2.4."""
    name = "\u0633\u0631\u0637\u0627\u0646 \u062c\u0644\u062f"
    p = replace(draw("pure"), classes=(name, "b"))
    text, _ = page(tmp_path, p)
    spoken = re.sub("<[^>]*>", "", text)
    assert f"\u2068{name}\u2069: " in spoken and spoken.count(name) == spoken.count(f"\u2068{name}\u2069") > 5


def verdict(text: str) -> list[str]:
    """The sentences of the first screen, without what looks like a tag, in class names too."""
    found = re.search('<div class="verdict">(.*?)</div>', text)
    return [re.sub("<.*?>", "", part).strip() for part in re.findall("<p>(.*?)</p>", found[1])]


def test_the_verdict_is_three_sentences_with_the_numbers_of_the_table(tmp_path: Path) -> None:
    p = draw("two classes")
    text, metrics = page(tmp_path / "two", p)
    hit = p.predicted == p.labels
    rates = [100 * hit[p.labels == k].mean() for k in (1, 0)]  # of two classes the last is positive
    how_good, whom, never = verdict(text)
    low, high = (100 * metrics["per_class"]["c1 <b>"]["sensitivity"][end] for end in ("low", "high"))
    assert how_good.startswith(
        f"The model finds {rates[0]:.1f} % ({low:.1f} to {high:.1f} %) of the images of class c1"
    )
    assert f"correctly rules out {rates[1]:.1f} % (" in how_good and "(in brackets: 95 % intervals). It may" in how_good
    threshold = "at the threshold 0.5, the more likely class"
    assert threshold in how_good and threshold in " ".join(first_sentence(metrics).split())  # in the terminal too
    n = np.bincount(p.labels)
    assert whom.startswith(f"It was evaluated on 120 images of 30 patients (c0 : {n[0]}, c1 : {n[1]}), and whether")
    assert never.startswith("Do not use it for diagnosis or treatment")

    text, metrics = page(tmp_path / "three", draw("three classes"))
    (worst, least) = min(
        ((c, entry["sensitivity"]["value"]) for c, entry in metrics["per_class"].items()), key=lambda pair: pair[1]
    )
    how_good = verdict(text)[0]
    assert f"the right class for {100 * metrics['overall']['accuracy']['value']:.1f} %" in how_good
    assert "of the images, deciding by the largest probability. It recognises" in re.sub(r" \(.*?\)", "", how_good)
    assert f"It recognises {worst.removesuffix('<b>')} least often, in {100 * least:.1f} %" in how_good

    guesses = draw("three classes")
    guesses = replace(
        guesses, logits=np.float32([9, 0, 0]) + np.zeros_like(guesses.logits)
    )  # only the first is ever called
    how_good = verdict(page(tmp_path / "never", guesses)[0])[0]
    assert re.search(r"least often, in 0\.0 % \(0\.0 to [\d.]+ %\) of its images, as rarely as c2", how_good), how_good

    right = replace(guesses, logits=9 * np.eye(3, dtype=np.float32)[guesses.labels])
    assert "It recognises" not in verdict(page(tmp_path / "right", right)[0])[0]  # none least often: all are right

    assert "images of unknown patients" in verdict(page(tmp_path / "unknown", draw("no patients"))[0])[1]
    assert verdict(page(tmp_path / "none", draw("none"))[0])[0].startswith("There are no images")
    one = verdict(page(tmp_path / "one", draw("one class"))[0])[0]
    assert one.startswith("The model predicts the right class for") and "undefined" not in one


def of_kind(kind: str, skill: float, patients: int = 40) -> Any:
    """Predictions of three images of each patient, of the same labels; with a `skill` of 0 they are guesses."""
    rng = np.random.default_rng(0)
    n = 3 * patients
    paths, groups = tuple(map(str, range(n))), tuple(f"P{i // 3}" for i in range(n))
    truth, noise = rng.integers(2, size=(n, 2)), rng.normal(size=(n, 2))
    if kind == "findings":
        logits = np.float32(skill * (truth - 0.5) + noise)
        return FindingPredictions(("a", "b"), paths, groups, truth.astype(np.int8), logits)
    if kind == "number":
        ages = 50 + 10 * noise[:, 0]
        raw = np.stack([skill * noise[:, 0] / 9 + noise[:, 1] / 3, np.zeros(n)], axis=1)
        target = Target(kind="number", unit="years", centre=50, spread=10)
        return NumberPredictions(("age",), paths, groups, ages, np.float32(raw), target=target)
    logits = np.stack([np.zeros(n), skill * (truth[:, 0] - 0.5) + noise[:, 0]], axis=1)
    return Predictions(("a", "b"), paths, groups, truth[:, 0], np.float32(logits))


def test_the_page_of_a_number(tmp_path: Path) -> None:
    """A gap of an error is that of the worst group minus that of the best; a model of shrunk ages has a trend."""
    p = replace(of_kind("number", 5), columns={"sex": tuple("FM"[i % 6 > 2] for i in range(120))})
    config = EvaluateConfig(subgroups=["sex"], resamples=0)
    metrics = write_report(tmp_path, p, title="t", facts={}, config=config)
    text = " ".join(html.unescape((tmp_path / "report.html").read_text()).split())
    assert "Worst minus best" in text and "Best minus worst" not in text
    assert (
        "<b>Predicted minus true falls with the number</b>: it changes by -0." in text
        and "constant limits do not hold" in text
    )
    assert (
        "120 images of 40 patients, age in years." in text
        and '<th scope="col">Mean absolute error (years)</th>' in text
    )
    sentence = results_sentence(metrics)
    assert re.search(r"reached mean absolute error \d\.\d+ \(\d\.\d+ to \d\.\d+\) years, R2", sentence)
    assert re.search(
        r"limits of agreement were -\d+\.\d+ \(.*?\) and \d+\.\d+ \(.*?\) years; the trend of the error was -0",
        sentence,
    )
    assert sentence.endswith("constant limits do not hold.") and metrics.bland_altman.drifts


@pytest.mark.parametrize(("times", "word"), [(0.3, "more"), (1.0, ""), (3.0, "fewer")])
def test_a_coverage_far_from_what_was_asked_for_is_named(times: float, word: str, tmp_path: Path) -> None:
    """Of intervals chosen where errors were so many times smaller."""
    p = of_kind("number", 5)
    policy = choose_policy(p, EvaluateConfig())
    p = policy.apply(replace(p, labels=p.values + times * (p.labels - p.values)))
    text, metrics = page(tmp_path, p, policy=policy)
    assert re.findall(r"<b>(\w+) than asked for</b>", text) == [word] * bool(word)
    reached = metrics.overall["coverage"]
    number = f"{reached.value:.3f} ({reached.low:.3f} to {reached.high:.3f})"
    assert results_sentence(metrics).endswith(f"The 90 % prediction intervals had a coverage of {number}.")


@pytest.mark.parametrize("kind", ["classes", pytest.param("findings", marks=pytest.mark.slow), "number"])
def test_the_first_screen_says_where_a_baseline_is_not_beaten(tmp_path: Path, kind: str) -> None:
    """On the page and in the terminal."""
    good, guess = of_kind(kind, 9), of_kind(kind, 0)
    name = {"number": "mae"}.get(kind, "auroc")
    for case, model, baseline, verdict_in_words in (
        ("same", good, good, "do not show that the model is better than"),
        ("better", good, guess, "The model is better than"),
        ("worse", guess, good, "The model is worse than"),
        ("few", of_kind(kind, 9, 9), of_kind(kind, 0, 9), "9 patients are too few to show that"),
        ("few and worse", of_kind(kind, 0, 9), of_kind(kind, 9, 9), "The model is worse than"),
    ):
        text, metrics = page(tmp_path / case, model, baselines={"colour_and_size": baseline})
        beside = metrics.baselines["colour_and_size"]
        (said,) = [sentence for sentence in verdict(text) if "a baseline, the" in sentence]
        assert verdict_in_words in said and [" ".join(said.split())] == baseline_verdicts(metrics)
        unit = " years" * (kind == "number")
        gap = beside.difference[name]
        assert f"{beside.overall[name].value:.3f}{unit}. Model minus baseline: {gap.value:+z.3f} (" in said
        assert f"{gap.low:+z.3f} to {gap.high:+z.3f})" in said
        if case.startswith("few"):
            assert said.rstrip().endswith("An interval of so few is itself uncertain.")


@pytest.mark.parametrize("kind", ["classes", "findings"])
def test_better_than_a_baseline_is_not_better_than_chance(tmp_path: Path, kind: str) -> None:
    """A model that guesses is better than a baseline that ranks upside down, and no reader may take it for good."""
    guess, upside_down = of_kind(kind, -0.3), of_kind(kind, -3)
    text, metrics = page(tmp_path, guess, baselines={"colour_and_size": upside_down})
    low = metrics.overall["auroc"].low
    assert low is not None and low < 0.5 < (metrics.baselines["colour_and_size"].difference["auroc"].low or 0) + 0.5
    assert "It may be no better than chance: its" in verdict(text)[0] and f"({low:.3f} to 0." in verdict(text)[0]
    assert "It may be no better than chance: its" in first_sentence(metrics)
    alone, known = page(tmp_path / "alone", guess)[1], page(tmp_path / "known", of_kind(kind, 3))[1]
    assert "no better than chance" in first_sentence(alone) and "than chance" not in first_sentence(known)
    swapped = page(tmp_path / "swapped", upside_down)[1]
    assert "It is worse than chance: its" in first_sentence(swapped)


def test_an_order_that_chance_may_make_and_patients_in_two_groups_are_said(tmp_path: Path) -> None:
    """Of findings whose intervals overlap, and of knees by side."""
    said = "These intervals overlap, so chance may have made the order."
    guess, apart = of_kind("findings", 0), of_kind("findings", 9)
    assert said in page(tmp_path / "guess", guess)[0]
    apart = replace(apart, logits=np.stack([apart.logits[:, 0], guess.logits[:, 1]], axis=1))
    assert said not in page(tmp_path / "apart", apart)[0]
    p, said = of_kind("classes", 2), "Some patients are in several groups"
    for name, sides in (("side", "LRL"), ("sex", "FFF")):
        cells = tuple(sides[i % 3] if name == "side" else "FM"[i // 3 % 2] for i in range(len(p)))
        config = EvaluateConfig(resamples=20, subgroups=[name])
        write_report(tmp_path / name, replace(p, columns={name: cells}), config, title="t", facts={})
        assert (said in (tmp_path / name / "report.html").read_text()) is (name == "side")


def test_a_baseline_without_an_operating_point_is_compared_by_the_likeliest_class(tmp_path: Path) -> None:
    """As `vitmed compare` does: else the threshold of the model would count for it, or against it."""
    good, guess = of_kind("classes", 9), of_kind("classes", 0.5)
    at_point = replace(good, positive="b", threshold=0.9)
    text, metrics = page(tmp_path, at_point, baselines={"colour_and_size": replace(guess, positive="b")})
    beside = metrics.baselines["colour_and_size"]
    right = [(p.logits.argmax(axis=1) == p.labels).mean() for p in (good, guess)]
    assert beside.likeliest and beside.difference["accuracy"].value == pytest.approx(right[0] - right[1])
    assert metrics.overall["accuracy"].value != pytest.approx(right[0])
    assert "too decides by the likeliest class: its number is that of the baseline plus the difference." in " ".join(
        text.split()
    )


@pytest.mark.parametrize("cost", ["absolute", [[0, 1, 1, 1], [5, 0, 1, 1], [5, 5, 0, 1], [5, 5, 5, 0]]])
def test_costs_decide_for_the_baseline_too(cost: Any, tmp_path: Path) -> None:
    """They need no threshold: the lowest expected cost of its probabilities, as of the model."""
    rng, grades = np.random.default_rng(0), tuple("abcd")
    labels = rng.integers(4, size=120)
    raw = [rng.normal(size=(120, 4)) - skill * np.abs(np.arange(4) - labels[:, None]) for skill in (2.0, 0.3)]
    model, baseline = (Predictions(grades, tuple(map(str, range(120))), None, labels, np.float32(z)) for z in raw)
    config = EvaluateConfig(resamples=20, ordinal=list(model.classes), cost=cost)
    policy = choose_policy(model, config)
    given = {"policy": policy, "baselines": {"colour_and_size": baseline}}
    metrics = write_report(tmp_path / "r", policy.apply(model), config, title="t", **given)
    matrix = np.abs(np.subtract.outer(np.arange(4), np.arange(4))) if cost == "absolute" else np.array(cost)
    cheapest = (baseline.probabilities @ matrix).argmin(axis=1)
    beside = metrics.baselines["colour_and_size"]
    assert not beside.likeliest and (cheapest != baseline.predicted).any()
    assert beside.overall["accuracy"].value == pytest.approx((cheapest == baseline.labels).mean())
    assert metrics.overall["accuracy"].value == pytest.approx((policy.apply(model).predicted == model.labels).mean())


@pytest.mark.parametrize("ordinal", [["a", "b", "c"], []])
def test_a_report_of_grades_says_that_a_set_can_have_holes(ordinal: list[str], tmp_path: Path) -> None:
    labels = np.arange(90) % 3
    logits = 3 * np.eye(3, dtype=np.float32)[np.where(np.arange(90) % 2, labels, 2 - labels)]  # 0 and 2 are confused
    p = Predictions(("a", "b", "c"), tuple(map(str, range(90))), None, labels, logits + np.float32([0, -3, 0]))
    config = EvaluateConfig(resamples=20, ordinal=ordinal)
    decided = choose_policy(p, config).apply(p)
    assert (decided.members == [True, False, True]).all(axis=1).any()
    write_report(tmp_path / "r", decided, config, title="t", policy=choose_policy(p, config))
    text = " ".join((tmp_path / "r" / "report.html").read_text().split())
    assert ("A set can leave out a grade between two that it holds" in text) == bool(ordinal)


def test_a_caption_is_of_this_figure(tmp_path: Path) -> None:
    """Not of what another kind of label, or another number of classes, would have."""

    def caption(name: str, metrics: Results) -> str:
        drawn = Drawn(b"", b"", b"", "", name)
        chapters = document(metrics, {name: drawn}).chapters
        groups = (block for chapter in chapters for block in chapter.blocks if isinstance(block, Group))
        return next(block.caption for group in groups for block in group.blocks if isinstance(block, Picture))

    two, three = (page(tmp_path / case, draw(f"{case} classes"))[1] for case in ("two", "three"))
    number = page(tmp_path / "number", of_kind("number", 5))[1]
    assert "Band: 95 % interval" in caption("roc", two) and "Band" not in caption("roc", three)
    assert "Each curve is that of a class against the rest." in caption("roc", three)
    assert "Bars" not in (dots := caption("per_patient", two)) and "Each dot is a patient" in dots
    assert caption("flow", two).endswith("of each class.") and caption("flow", number).endswith("range of the number.")
    assert "largest errors outside the intervals" in caption("attention_maps", number)
    assert "The most confident errors" in caption("attention_maps", three)
    assert "log score" in caption("training_curves", number) and "log loss" in caption("training_curves", two)
    assert "intended" not in caption("decision_curve", two)


def test_the_most_serious_warning_is_on_the_first_screen_and_none_is_lost(tmp_path: Path) -> None:
    text, metrics = page(tmp_path / "notes", draw("one patient"), notes=["Beware."])
    assert len(metrics["notes"]) == 2
    first = re.search('<p class="note">(.*?)</p> <details class="more"><summary>(.*?)</summary>(.*?)</details>', text)
    assert first[1] == metrics["notes"][0]
    assert first[2] == "1 more warning" and metrics["notes"][1] in first[3]
    text, metrics = page(tmp_path / "quiet", draw("two classes"))
    assert not metrics["notes"] and '<p class="note">Only 30 patients are evaluated' in text


def test_the_method_of_an_auroc_is_its_own(tmp_path: Path) -> None:
    for case, said in (
        (
            "no patients",
            "AUROC (DeLong), balanced accuracy (Wilson, variance of the mean), accuracy (Wilson). Each image counts",
        ),
        (
            "two classes",
            "AUROC (Newcombe, method 5), balanced accuracy (Wilson, variance of the mean), accuracy (Wilson, effective",
        ),
        (
            "three classes",
            "AUROC (Wilson, variance of the mean), balanced accuracy (Wilson, variance of the mean), accuracy (Wilson",
        ),
    ):
        assert said in sampling_of(Results.of(evaluate_predictions(draw(case))))


def test_a_model_that_says_one_thing_is_told(tmp_path: Path) -> None:
    said = (
        "Every image is predicted as 'c1 <b>': the model does not distinguish the classes, or its threshold is wrong."
    )
    text, metrics = page(tmp_path / "constant", draw("constant"))
    assert metrics["notes"][0] == said and said in text
    assert not learnt_nothing(evaluate_predictions(draw("two classes")))
    assert not learnt_nothing(evaluate_predictions(draw("one class")))


def test_the_reasons_of_missing_intervals_are_grouped_and_cut(tmp_path: Path) -> None:
    p = draw("a thousand classes")
    text, metrics = page(tmp_path, p, resamples=2)
    assert len(metrics["undefined"]) > 1000 and text.count("there is no image of class") <= 11 + 1
    assert "more, in metrics.json" in text and max(map(len, metrics["notes"])) < 400
    assert "1,000 classes" in text
    few, metrics = page(tmp_path / "few", draw("ten"), resamples=0)
    assert metrics["no_interval"] and any("below 'All numbers'" in note for note in metrics["notes"])
    for why in set(metrics["no_interval"].values()):
        assert why in few
    told = "because resampling is off (--resamples 0)"
    assert told in " ".join(few.split()) and told not in " ".join(text.split())


def test_a_few_images_are_few_below_thirty() -> None:
    p = draw("no patients")
    assert any("only 29 images" in note for note in evaluate_predictions(p.take(np.arange(29)))["notes"])
    assert not any("There are only" in note for note in evaluate_predictions(p.take(np.arange(30)))["notes"])


def test_the_answers_are_counted(tmp_path: Path) -> None:
    p = draw("no patients")
    several = "no: 2 classes are possible"
    cells = ["yes"] * 60 + [several] * 40 + [f"no: unlike the training images, {several[4:]}"] * 20
    found = count_answers(replace(p, columns={"answer": tuple(cells)}))
    assert (found["n"], found["answered"]["value"]) == (120, 0.5)
    assert found["unanswered"] == {"classes are possible": 60, "unlike the training images": 20}
    wrong = p.predicted != p.labels
    assert found["wrong_answered"]["value"] == pytest.approx(wrong[:60].mean())
    assert found["wrong_unanswered"]["value"] == pytest.approx(wrong[60:].mean())
    assert count_answers(p) is None
    text, metrics = page(tmp_path, replace(p, columns={"answer": (several,) * 120}))
    left = "The model leaves 120 of 120 images to a person"
    assert f"{left}; these numbers count its decision for all of them." in metrics["notes"]
    assert "The model answers 0 of 120 images, a share of 0.000 (0" in text and "classes are possible (120)." in text
    assert "answers every image" not in text and metrics["answers"]["answered"]["value"] == 0


def test_independent_images_are_not_said_to_be_unlike_where_none_was_wrong() -> None:
    p = draw("pure")
    logits = np.eye(2, dtype=np.float32)[p.labels] * 4
    logits[np.flatnonzero(p.labels == 0)[[0, 5, 9]]] *= -1  # all of the second class are right
    found = Results.of(evaluate_predictions(replace(p, logits=logits)))
    told = blocks_of("sections/results.html.j2", metrics=found)[0]
    assert "(all are right; an intraclass correlation of at least 0.05 is assumed)" in str(told)


def test_words() -> None:
    assert (counted(1, "image"), counted(1500, "image"), counted(0, "class")) == (
        "1 image",
        "1,500 images",
        "0 classes",
    )
    assert listed(list("abcdefghijkl")) == "a, b, c, d, e, f, g, h, i, j and 2 more" and listed(["a"]) == "a"
    assert [format_probability(p) for p in (0.3123, 1.0, 0.0, 0.9996, 0.999994, 1 - 2e-12)] == [
        "0.312", "1", "0", "0.9996", "0.99999", "1 - 2e-12",
    ]  # fmt: skip


def test_balanced_accuracy_of_one_class_is_undefined_on_page_and_terminal(tmp_path: Path) -> None:
    text, metrics = page(tmp_path, draw("one class"))
    assert "<dt>Balanced accuracy</dt><dd>undefined" in "".join(text.split("\n"))
    assert "Balanced accuracy undefined" in headline(metrics)


def test_reasons_name_numbers_as_the_tables_do(tmp_path: Path) -> None:
    text, metrics = page(tmp_path, draw("constant"))
    assert metrics["no_interval"] and "log_loss" not in text
    assert "all images agree, so the variance is unknown: MCC" in text


def test_a_range_of_a_number_with_few_images_is_shown_as_not_evaluated(tmp_path: Path) -> None:
    """The rarest values, where the error is often largest, are not left out without a word."""
    rng, target = np.random.default_rng(0), Target(kind="number", unit="years", centre=50.0, spread=10.0)
    ages = np.r_[np.repeat([10.0, 20.0, 30.0], 30), [90.0] * 6]
    raw = np.stack([(ages + rng.normal(0, 3, 96) - 50) / 10, np.zeros(96)], axis=1).astype(np.float32)
    p = NumberPredictions(("age",), tuple(map(str, range(96))), None, ages, raw, target=target)
    few = write_report(tmp_path / "few", replace(p.take(np.arange(15)), labels=np.arange(15.0))).error_by_range
    told = (tmp_path / "few" / "report.html").read_text()
    assert few is not None and few.strata == [] and few.reason and f"Not evaluated: {few.reason}" in told
    found = write_report(tmp_path / "r", p).error_by_range
    assert found is not None and (shown := [one.name for one in found.strata if not one.overall])
    page = (tmp_path / "r" / "report.html").read_text()
    assert (
        "fewer than 10 images or patients: not evaluated" in page[page.index("Error by range") :] and shown[0] in page
    )
