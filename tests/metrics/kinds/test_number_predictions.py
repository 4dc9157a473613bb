"""The table of predicted numbers holds them completely; bad cells are named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitmed.core.base_models import Target
from vitmed.core.errors import DataError
from vitmed.metrics.kinds.number import NumberPredictions

AGE = Target(kind="number", unit="years", centre=61.237, spread=11.0049)


def draw(size: int = 40, labels: bool = True, groups: bool = True, reach: float | None = 1.7) -> NumberPredictions:
    rng = np.random.default_rng(0)
    return NumberPredictions(
        classes=("age, at scan",),
        paths=tuple(f'sub folder/"{i}", é\n.png' for i in range(size)),
        groups=tuple(f"P,{i % 7}" for i in range(size)) if groups else None,
        labels=rng.normal(60, 12, size) if labels else None,
        logits=rng.normal(size=(size, 2)).astype(np.float32),
        target=AGE,
        columns={"site": tuple("=A;B"[i % 4] for i in range(size))},
        reach=reach,
    )


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "predictions.csv"
    file.write_text(text, encoding="utf-8", newline="")
    return file


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("reach", [None, 1 / 3])
def test_csv_round_trip_is_bit_for_bit(tmp_path: Path, labels: bool, groups: bool, reach: float | None) -> None:
    before = draw(labels=labels, groups=groups, reach=reach)
    after = NumberPredictions.from_csv(write(tmp_path, before.to_csv()))
    for name in ("classes", "paths", "groups", "target", "reach", "columns"):
        assert getattr(after, name) == getattr(before, name), name
    assert after.logits.dtype == np.float32 and after.logits.tobytes() == before.logits.tobytes()
    assert after.values.tobytes() == before.values.tobytes() and after.notes == ()
    assert (after.labels is None) == (not labels)
    if labels:
        assert after.labels.tobytes() == before.labels.tobytes()
    if reach is not None:
        assert after.intervals.tobytes() == before.intervals.tobytes()
    assert after.to_csv() == before.to_csv()
    assert after.predicted is after.values  # a number has no class, and no chance
    with pytest.raises(AttributeError, match="a number has no probability or confidence: see `values`"):
        after.confidence  # noqa: B018


def test_the_intervals_of_several_models_come_back_as_they_are(tmp_path: Path) -> None:
    """Pooled folds have no reach of their own: the ends in the table count, if it is read as it was decided."""
    ends = np.stack([np.arange(40.0), np.arange(40.0) + 30.5], axis=1)
    before = replace(draw(reach=None), decided=ends)
    file = write(tmp_path, before.to_csv())
    assert NumberPredictions.from_csv(file, as_decided=True).intervals.tolist() == ends.tolist()
    assert NumberPredictions.from_csv(file).intervals.tolist() == ends.tolist()  # also of a table alone
    by_policy = NumberPredictions.from_csv(file, calibrate=lambda p: replace(p, reach=2.5))
    assert by_policy.reach == 2.5 and by_policy.decided is None and len(by_policy.notes) == 1
    reached = NumberPredictions.from_csv(write(tmp_path, draw().to_csv()), as_decided=True)
    assert reached.decided is None and reached.intervals.tobytes() == draw().intervals.tobytes()
    assert not before.named


def test_the_form_and_what_it_states(tmp_path: Path) -> None:
    one = replace(draw(1), errors=(("b.png", "is empty"),))
    head = one.to_csv().splitlines()[0].split(",")
    assert head == [
        *("path", "label", "group", "prediction", "low", "high", "raw_location", "raw_log_scale", "reach"),
        *("target_name", "target_unit", "target_centre", "target_spread", "target_distribution", "site"),
    ]
    read = NumberPredictions.from_csv(write(tmp_path, one.to_csv(errors=True)))
    assert read.errors == (("b.png", "is empty"),) and len(read) == 1
    half_width = AGE.spread * np.exp(np.float64(one.logits[0, 1])) * 1.7
    middle = AGE.centre + AGE.spread * np.float64(one.logits[0, 0])
    assert read.intervals[0].tolist() == [middle - half_width, middle + half_width]


def test_what_the_caller_knows_counts(tmp_path: Path) -> None:
    before = draw()
    other = Target(kind="number", unit="months", centre=0.0, spread=2.0)
    file = write(tmp_path, before.to_csv())
    assert NumberPredictions.from_csv(file, target=other).target == other
    wider = NumberPredictions.from_csv(file, calibrate=lambda p: replace(p, reach=9.0))
    assert wider.reach == 9 and NumberPredictions.from_csv(file, as_decided=True, calibrate=lambda p: p).reach == 1.7
    bare = "path,raw_location,raw_log_scale\na.png,1.5,0\n"
    read = NumberPredictions.from_csv(write(tmp_path, bare), target=other)
    assert read.values.tolist() == [3.0] and read.scales.tolist() == [2.0] and read.intervals is None
    empty = NumberPredictions.from_csv(write(tmp_path, draw(0).to_csv()))
    assert len(empty) == 0 and empty.logits.shape == (0, 2)


def test_a_spreadsheet_with_semicolons_and_decimal_commas(tmp_path: Path) -> None:
    before = replace(draw(5), paths=tuple("abcde"), columns={}, classes=("age",))
    text = before.to_csv().replace("P,", "P").replace('"', "").replace(",", ";").replace(".", ",")
    after = NumberPredictions.from_csv(write(tmp_path, text))
    assert after.labels.tobytes() == before.labels.tobytes() and after.target == before.target
    assert after.logits.tobytes() == before.logits.tobytes() and after.notes == ()


@pytest.mark.parametrize("column", ["prediction", "low", "high"])
def test_an_edited_prediction_or_interval_is_noted(tmp_path: Path, column: str) -> None:
    before = replace(draw(3), paths=("a", "b", "c"), groups=None, classes=("age",))
    rows = [line.split(",") for line in before.to_csv().splitlines()]
    rows[2][rows[0].index(column)] = "1.0"
    read = NumberPredictions.from_csv(write(tmp_path, "\n".join(map(",".join, rows))))
    assert read.notes == (
        "1 row of the table has a cell that does not follow from the raw_location, raw_log_scale and reach, the first "
        f"is row 2 ({column}); the raw_location, raw_log_scale and reach count.",
    )
    assert read.amounts.tolist() == before.amounts.tolist()


@pytest.mark.parametrize(("low", "high"), [("", "2"), ("3", "2"), ("x", "4"), ("-inf", "2")])
def test_an_interval_that_the_table_alone_states_has_two_ends(tmp_path: Path, low: str, high: str) -> None:
    head = "path,low,high,raw_location,raw_log_scale,target_centre,target_spread\n"
    text = f"{head}a.png,1,1,0,0,0,1\nb.png,{low},{high},0,0,0,1\n"
    with pytest.raises(DataError, match=f"row 2 has '{low}' as low, expected a finite number, low not above high"):
        NumberPredictions.from_csv(write(tmp_path, text))


def replaced(column: str, cell: str) -> Callable[[list[list[str]]], None]:
    def change(rows: list[list[str]]) -> None:
        rows[2][rows[0].index(column)] = cell

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (replaced("label", "sixty"), "row 2 has 'sixty' as label, expected a finite number"),
        (replaced("label", "inf"), "row 2 has 'inf' as label"),
        (replaced("label", ""), "some rows have a label and some have none, the first is row 2\nFix: take out the"),
        (replaced("raw_location", "x"), "row 2 has 'x' as raw_location"),
        (replaced("raw_log_scale", "nan"), "row 2 has 'nan' as raw_log_scale"),
        (replaced("raw_location", "1e300"), "row 2 has '1e300' as raw_location"),
        (replaced("target_spread", "3"), "row 2 has '3' as target_spread, expected '11.0049' as in the first row"),
        (replaced("reach", ""), "row 2 has '' as reach, expected '1.7'"),
        (replaced("path", "a"), "names a more than once"),
        (lambda rows: [row.pop(7) for row in rows], "lacks the column raw_log_scale"),
        (lambda rows: [row.pop(11) for row in rows], "lacks the column target_centre"),
        (lambda rows: [row.__setitem__(12, "0") for row in rows[1:]], "'0' as target_spread, expected a finite"),
        (lambda rows: [row.__setitem__(8, "-1") for row in rows[1:]], "'-1' as reach, expected a finite number of "),
        (lambda rows: [row.__setitem__(13, "cauchy") for row in rows[1:]], "'cauchy' as target_distribution"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, change: Callable[[list[list[str]]], None], said: str) -> None:
    before = replace(draw(3), paths=("a", "b", "c"), groups=None, classes=("age",))
    rows = [line.split(",") for line in before.to_csv().splitlines()]
    change(rows)
    with pytest.raises(DataError) as error:
        NumberPredictions.from_csv(write(tmp_path, "\n".join(",".join(row) for row in rows)))
    assert said in str(error.value) and "predictions.csv" in str(error.value)


def test_labels_that_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing can be evaluated"):
        NumberPredictions.from_csv(write(tmp_path, draw(labels=False).to_csv()), labelled=True)


def test_the_explained_side_and_the_largest_errors_outside_the_interval() -> None:
    logits, labels = np.array([[1, 0], [-1, 0], [0.5, 0], [-2, 0]], np.float32), np.array([14.0, 0.0, 11.0, 5.0])
    p = NumberPredictions(
        ("age",), tuple("1234"), None, labels, logits, target=Target(kind="number", centre=10, spread=2), reach=0.75
    )
    assert [p.answers[side] for side in p.explained] == ["higher", "lower", "higher", "lower"]  # 12, 8, 11, 6
    assert p.right.tolist() == [False, False, True, True] and p.mistakes().tolist() == [1, 0]
    assert replace(p, reach=None).mistakes().tolist() == [1, 0, 3, 2]  # by the error alone
