"""Agreement of readers against scikit-learn and a worked example; grades; and what cannot be."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import COLOURS, TINY, TINY_SETS, draw_classes, recording
from sklearn.metrics import cohen_kappa_score

from vitmed import evaluate, train
from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.readers import agreement, readings

GRADES = ("none", "mild", "severe")


def draw(size: int = 200, patients: int = 40) -> Predictions:
    """Three grades; two readers and the model, each off by a grade now and then."""
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=size)

    def read(off: float) -> np.ndarray:
        return np.clip(truth + rng.choice([-1, 0, 1], size, p=[off, 1 - 2 * off, off]), 0, 2)

    called, order = read(0.1), ("mild", "none", "severe")  # classes are sorted by name, grades are not
    place = np.array([order.index(name) for name in GRADES])
    logits = np.eye(3)[place[called]].astype(np.float32)
    columns = {name: tuple(GRADES[k] for k in read(off)) for name, off in (("anna", 0.05), ("ben", 0.2))}
    columns["ben"] = ("",) * 10 + columns["ben"][10:]
    groups = tuple(f"SECRET{i % patients}" for i in range(size))
    return Predictions(order, tuple(f"{i}.png" for i in range(size)), groups, place[truth], logits, columns=columns)


def agreed(
    p: Predictions,
    raters: Sequence[str],
    ordinal: Sequence[str] = (),
    resamples: int = 2000,
    kappa: Estimate | None = None,
) -> Any:
    return agreement(p, EvaluateConfig(raters=[*raters], ordinal=[*ordinal], resamples=resamples), kappa)


def told(p: Predictions, *args: Any) -> dict[str, Any]:
    found = agreed(p, *args)
    json.dumps(found.to_dict(), allow_nan=False)
    return found


@pytest.mark.parametrize("positive", ["healthy", "sick"])
def test_yes_and_no_name_the_positive_class_and_the_other_wherever_it_stands(positive: str) -> None:
    """A reader who calls each image as it is agrees with the reference, in every spelling."""
    classes, cells = ("healthy", "sick"), ("yes", "No", "1", "0", "TRUE", "false", positive)
    k = classes.index(positive)
    labels, logits = np.where([1, 0, 1, 0, 1, 0, 1], k, 1 - k), np.zeros((7, 2), np.float32)
    p = Predictions(classes, tuple("abcdefg"), None, labels, logits, positive=positive, columns={"anna": cells})
    pair = agreed(p, ("anna",), resamples=0).pairs[0]
    assert (pair.second, pair.n, pair.agreement.value, pair.kappa.value) == ("the reference", 7, 1.0, 1.0)


@pytest.mark.parametrize("ordinal", [(), GRADES])
def test_kappa_is_scikit_learns(ordinal: tuple[str, ...]) -> None:
    p = draw()
    found = told(p, ("anna", "ben"), ordinal, 200)
    assert [(pair["first"], pair["second"], pair["n"]) for pair in found["pairs"]] == [
        ("anna", "ben", 190), ("anna", "the reference", 200), ("anna", "the model", 200), ("ben", "the reference", 190),
        ("ben", "the model", 190), ("the model", "the reference", 200),
    ]  # fmt: skip
    seen = {name: np.array(cells) for name, cells in p.columns.items()}
    seen |= {"the reference": np.array(p.classes)[p.labels], "the model": np.array(p.classes)[p.predicted]}
    for pair in found["pairs"]:
        one, two = (
            seen[pair[side]][10 if "ben" in (pair["first"], pair["second"]) else 0 :] for side in ("first", "second")
        )
        theirs = cohen_kappa_score(one, two, labels=GRADES, weights="quadratic" if ordinal else None)
        assert pair["kappa"]["value"] == pytest.approx(theirs)
        assert pair["kappa"]["low"] < theirs < pair["kappa"]["high"] and pair["agreement"]["method"] == "wilson-cluster"
        assert pair["agreement"]["value"] == pytest.approx((one == two).mean())


def test_the_textbook_example() -> None:
    """Both yes 20, both no 15, one alone 5 and 10: agreement 0.7, by chance 0.5, so kappa 0.4."""
    labels = np.repeat([1, 0, 1, 0], [20, 15, 5, 10])
    cells = ("yes",) * 20 + ("no",) * 15 + ("no",) * 5 + ("yes",) * 10
    p = Predictions(("no", "yes"), ("x",) * 50, None, labels, np.zeros((50, 2), np.float32), columns={"r": cells})
    pair = told(p, ("r",))["pairs"][0]
    assert (pair["agreement"]["value"], pair["kappa"]["value"]) == pytest.approx((0.7, 0.4))


def test_one_number_has_one_interval() -> None:
    p = draw()
    own = evaluate_predictions(p)["overall"]["cohen_kappa"]
    assert told(p, ("anna",), (), 2000, own)["pairs"][-1]["kappa"] == own
    pair = told(p, ("anna",), (), 2000)["pairs"][-1]["kappa"]  # found by itself it is nearly the same
    assert (pair["low"], pair["high"]) == pytest.approx((own["low"], own["high"]), abs=0.03)


def test_no_disagreement_and_nobody() -> None:
    p = draw(30, 10)
    columns = {"same": tuple(p.classes[k] for k in p.predicted), "nobody": ("",) * 30}
    q = Predictions(p.classes, p.paths, p.groups, p.labels, p.logits, columns=columns)
    pairs = {(pair["first"], pair["second"]): pair for pair in told(q, ("same", "nobody"))["pairs"]}
    same = pairs["same", "the model"]
    assert same["kappa"]["value"] == 1 and same["kappa"]["low"] is None and "no disagreement" in same["why"]
    assert pairs["nobody", "the model"]["kappa"]["value"] is None
    assert pairs["nobody", "the model"]["why"] == "no image was read by both"


def test_who_read_a_few_patients_is_judged_by_these_patients() -> None:
    p = draw()
    rows = np.flatnonzero(np.arange(200) % 40 < 3)  # 15 images of 3 of 40 patients
    few = tuple(cell if row in rows else "" for row, cell in enumerate(p.columns["anna"]))
    pairs = told(replace(p, columns={"few": few}), ("few",))["pairs"]
    alone = told(replace(p, columns={"few": few}).take(rows), ("few",))["pairs"]
    assert pairs[:2] == alone[:2]


def test_a_column_of_whole_numbers_as_pandas_writes_it_where_a_cell_is_empty() -> None:
    found = readings(["2.0", "", "0.0", "1"], ("0", "1", "2"), ["a", "b", "c", "d"], "r")
    assert found.tolist() == readings(["2", "", "0", "1"], ("0", "1", "2"), ["a", "b", "c", "d"], "r").tolist()
    assert readings(["1.0", "0.0"], ("no", "yes"), ["a", "b"], "r", "yes").tolist() == [1, 0]


def test_a_reader_of_zeros_and_ones_is_refused_where_a_class_is_called_1() -> None:
    """The positive class is 2, so a 1 could be a call of it or the name of the other class."""
    assert readings(["1", "2.0"], ("1", "2"), ["a", "b"], "r", "2").tolist() == [0, 1]
    with pytest.raises(DataError, match="b: '0' in the column r is no class") as refused:
        readings(["1", "0"], ("1", "2"), ["a", "b"], "r", "2")
    assert refused.value.fix == "a reader's cell is one of 1, 2; or empty where the image was not read"
    assert readings(["no", "1"], ("0", "1"), ["a", "b"], "r", "1").tolist() == [0, 1]  # names of the same meaning


def test_what_cannot_be() -> None:
    p = draw()
    assert agreed(p, ()) is None
    with pytest.raises(UsageError, match="each class once"):
        agreed(p, (), ("none", "mild"))
    many = replace(p, columns={f"r{i}": p.columns["anna"] for i in range(7)})
    assert len(agreed(many, tuple(many.columns)[:6], (), 0).pairs) == 15 + 12 + 1  # of six readers
    with pytest.raises(UsageError, match="7 columns, and at most 6 readers"):
        agreed(many, tuple(many.columns))
    odd = Predictions(p.classes, p.paths, None, p.labels, p.logits, columns={"r": ("none",) * 199 + ("moderate",)})
    with pytest.raises(DataError, match=r"199\.png: 'moderate' in the column r is no class") as refused:
        agreed(odd, ("r",))
    assert "vitmed evaluate --positive CLASS, for calls of yes/no, 1/0 or true/false" in refused.value.fix


@pytest.mark.usefixtures("no_figures")
def test_a_run_with_a_reader_and_grades(tmp_path: Path) -> None:
    """Told before the long work where it cannot be; kept by the run; and its table by splits stands in the report."""
    names = tuple(sorted(COLOURS)[:2])
    data = draw_classes(tmp_path / "data", 40, names)
    lines = ["path,label,sex,reader"]
    for i, file in enumerate(sorted(data.rglob("*.png"))):
        lines.append(f"{file.relative_to(data).as_posix()},{file.parent.name},{'FM'[i % 2]},{names[i % 3 == 0]}")
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(lines))
    wanted: dict[str, Any] = TINY | {
        "epochs": 1,
        "resamples": 20,
        "baseline": False,
        "labels": table,
        "sets": TINY_SETS,
    }
    for wrong in ({"rater": "doctor"}, {"rater": "sex"}, {"ordinal": "low,high"}, {"rater_score": "sex"}):
        with pytest.raises((UsageError, DataError)):
            train(data, output=tmp_path / "runs", **wanted, **wrong)
    assert not (tmp_path / "runs").exists()
    result = train(data, output=tmp_path / "runs", subgroup="sex", rater="reader", ordinal=",".join(names), **wanted)
    found = result.test.metrics
    assert len(found["agreement"]["pairs"]) == 3 and found["agreement"]["grades"]["order"] == list(names)
    sexes = found["flow"]["characteristics"]["sex"]
    assert sexes["unit"] == "images" and [row["name"] for row in sexes["rows"]] == ["F", "M"]
    html = (result.folder / "test" / "report.html").read_text(encoding="utf-8")
    assert "reader and the model" in html and "Quadratic kappa" in html and "The images of the splits, by sex" in html
    assert "how far those who labelled agree is not known" not in html
    other = draw_classes(tmp_path / "other", 6, names, seed=9)
    ui = recording()
    elsewhere = evaluate(result.folder, data=other, resamples=20).metrics
    assert elsewhere.agreement is None and elsewhere.grades is not None and elsewhere.grades.order == list(names)
    assert any("No agreement with reader: these images have no such column" in text for text in ui.said)


def test_the_order_in_which_two_readers_are_named_does_not_matter() -> None:
    p = draw()
    one, other = (agreed(p, raters, GRADES).pairs[0].kappa for raters in (("anna", "ben"), ("ben", "anna")))
    assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), abs=1e-12)
