"""predictions.csv holds a Predictions completely."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from predicted import rewritten

from vitmed.core.errors import DataError
from vitmed.core.text import one_spelling
from vitmed.decisions.evaluation_folder import read_evaluation
from vitmed.metrics.predictions import Predictions, softmax

NASTY = ("a,b", 'say "cheese"', "naïve Ω 細胞", "logit_x", " spaced ", "semi;colon\ttab")


def draw(classes: tuple[str, ...] = NASTY, size: int = 50, groups: bool = True, labels: bool = True) -> Predictions:
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(size, len(classes))) * 10.0 ** rng.integers(-30, 30, (size, 1))).astype(np.float32)
    return Predictions(
        classes=classes,
        paths=tuple(f'sub folder/"{i}", é\n{i}\r.png' for i in range(size)),
        groups=tuple(f"P,{i % 7}" for i in range(size)) if groups else None,
        labels=rng.integers(len(classes), size=size) if labels else None,
        logits=logits,
    )


@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("labels", [True, False])
def test_csv_round_trip_is_bit_for_bit(tmp_path: Path, groups: bool, labels: bool) -> None:
    before = draw(groups=groups, labels=labels)
    file = tmp_path / "predictions.csv"
    file.write_bytes(before.to_csv().encode())
    after = Predictions.from_csv(file)
    assert (after.classes, after.paths, after.groups) == (before.classes, before.paths, before.groups)
    assert after.logits.dtype == np.float32
    assert after.logits.tobytes() == before.logits.tobytes()
    assert after.probabilities.tobytes() == before.probabilities.tobytes()
    if before.labels is None:
        assert after.labels is None
    else:
        assert after.labels.tobytes() == before.labels.astype(np.int64).tobytes()
    assert after.to_csv() == before.to_csv()


def whole() -> Predictions:
    """Three images of three classes, with everything that a prediction can hold."""
    logits = np.array([[1, 2, 3], [6, 5, 4], [7, 9, 8]], np.float32)
    return Predictions(
        ("a", "b", "c"), ("x", "y", "z"), ("P", "Q", "P"), np.array([2, 0, 1]), logits, errors=(("w", "broken"),),
        columns={"site": ("N", "S", "E")}, costs=((0.0, 1.0, 2.0), (3.0, 0.0, 4.0), (5.0, 6.0, 0.0)),
        decided=np.array([1, 0, 2]), calibrated=np.array([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.2, 0.5, 0.3]]),
        members=np.array([[True, False, True], [False, False, False], [False, True, False]]),
    )  # fmt: skip


def test_the_classes_in_another_order_say_the_same() -> None:
    p = whole()
    turned = p.like(replace(p, classes=("c", "a", "b")))
    assert turned.classes == ("c", "a", "b") and turned.logits.tolist() == [[3, 1, 2], [4, 6, 5], [8, 7, 9]]
    assert turned.probabilities.tolist() == [[0.7, 0.1, 0.2], [0.1, 0.6, 0.3], [0.3, 0.2, 0.5]]
    for part in ("labels", "decided"):
        own, other = getattr(p, part), getattr(turned, part)
        assert [turned.classes[k] for k in other] == [p.classes[k] for k in own]
    assert [set(turned.set_of(row)) for row in range(3)] == [{"a", "c"}, set(), {"b"}]
    for i, first in enumerate(turned.classes):
        for j, second in enumerate(turned.classes):
            assert turned.costs[i][j] == p.costs[p.classes.index(first)][p.classes.index(second)]
    assert turned.like(p).logits.tolist() == p.logits.tolist() and turned.columns == p.columns
    bare = Predictions(p.classes, p.paths, None, None, p.logits)
    other = bare.like(turned)
    assert other.labels is other.calibrated is other.decided is other.members is other.costs is None
    assert bare.set_of(0) == () and p.set_of(0) == ("a", "c")


def test_some_rows_in_another_order() -> None:
    p = whole()
    part = p.take(np.array([2, 0]))
    assert (part.paths, part.groups, part.columns, part.errors) == (("z", "x"), ("P", "P"), {"site": ("E", "N")}, ())
    for name in ("labels", "logits", "decided", "calibrated", "members"):
        assert getattr(part, name).tolist() == getattr(p, name)[[2, 0]].tolist(), name
    assert (
        part.costs == p.costs and p.units.tolist() == [0, 1, 0] and replace(p, groups=None).units.tolist() == [0, 1, 2]
    )
    assert (p.name(1), replace(p, named=True).name(1)) == ("row 2", "y")
    assert not whole().named  # no path in a report unless somebody asks for it


def test_what_several_models_decided_is_kept(tmp_path: Path) -> None:
    """Not the likeliest class, and no threshold gives it: the column `prediction` does."""
    before = replace(draw(), decided=np.arange(50) % len(NASTY))
    file = tmp_path / "predictions.csv"
    file.write_bytes(before.to_csv().encode())
    after = Predictions.from_csv(file, as_decided=True)
    assert after.predicted.tolist() == before.predicted.tolist() == [i % len(NASTY) for i in range(50)]
    assert after.to_csv() == before.to_csv()
    assert after.take(np.array([7, 3])).predicted.tolist() == [7 % len(NASTY), 3]
    assert after.confidence[3] == after.probabilities[3, 3]
    assert Predictions.from_csv(file).predicted.tolist() == before.logits.argmax(axis=1).tolist()


def test_columns_stand_in_class_order() -> None:
    predictions = draw(("b", "a"), size=1)
    head = predictions.to_csv().splitlines()[0]
    assert head == "path,label,group,prediction,confidence,prob_b,prob_a,logit_b,logit_a"


def test_a_file_name_that_is_no_unicode_is_written() -> None:
    odd = Predictions(("a", "b"), ("caf\udce9.png",), None, None, np.zeros((1, 2), np.float32))
    row = odd.to_csv().encode("utf-8").decode().splitlines()[1]
    assert row.split(",")[0] == r"caf\udce9.png"


GOOD = "path,label,group,prediction,confidence,prob_a,prob_b,logit_a,logit_b\r\nx.png,a,,a,0.7,0.7,0.3,1.0,0.0\r\n"
BARE = "path,label,prob_a,prob_b\r\nx.png,a,0.7,0.3\r\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            GOOD.replace("logit_", "score_").replace("prob_", "p_"),
            "lacks the columns prob_<class> of every class, or logit_<class>; its first line",
        ),
        (GOOD.replace("logit_b", "score_b"), "lacks the column logit_b"),
        (GOOD.replace(",", "|"), "its first line, split at commas, has 'path|label|"),
        (GOOD.replace("logit_b", "logit_a"), "twice"),
        (GOOD.replace("x.png,a,", "x.png,c,"), "row 1 has the label 'c', expected one of a, b"),
        (GOOD.replace("1.0,0.0", "1.0,high"), "row 1 has 'high' as logit_b, expected a finite number"),
        (GOOD.replace("1.0,0.0", "1.0"), "row 1 has no cell as logit_b"),
        (GOOD.replace("1.0,0.0", "1.0,0.0,0.0"), "row 1 has more cells"),
        (GOOD.replace("1.0,0.0", "1.0,nan"), "row 1 has 'nan' as logit_b, expected a finite number"),
        (GOOD.replace("1.0,0.0", "1.0,1e99"), "finite"),
        (GOOD + "y.png,,,a,0.7,0.7,0.3,1.0,0.0\r\n", "some have none, the first is row 2"),
        ("", "is empty"),
        (" \r\n,,,\r\n", "is empty"),
        ("\x00\x01", "not UTF-8"),
        ("PAR1\x00", "join its parts: vitmed merge FOLDER"),  # of predict --output
        ("path," + "a" * 200_000, "is not CSV (field larger than field limit"),
        (BARE.replace("0.7,0.3", "1.7,-0.7"), "row 1 has '1.7' as prob_a, expected a probability from 0 to 1"),
        (BARE.replace("0.7,0.3", "0.7,"), "row 1 has '' as prob_b"),
        (BARE.replace("0.7,0.3", "0.7,0.4"), "row 1 has probabilities that sum to 1.1, expected 1"),
        (BARE.replace("0.7,0.3", "0.7,0.4"), "give every class; findings need columns label_<finding>"),
    ],
)
def test_an_edited_file_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "edited.csv"
    file.write_text(text, newline="")
    with pytest.raises(DataError, match=r"edited\.csv") as error:
        Predictions.from_csv(file)
    assert told in str(error.value)


def test_missing_or_binary_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv"):
        Predictions.from_csv(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(bytes(range(128, 256)))
    with pytest.raises(DataError, match=r"binary\.csv"):
        Predictions.from_csv(tmp_path / "binary.csv")


def put(file: Path, text: str, encoding: str = "utf-8") -> Predictions:
    file.write_bytes(text.encode(encoding))
    return Predictions.from_csv(file)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("separator", "decimal"), [(",", "."), (";", "."), (";", ","), ("\t", ","), ("\t", ".")])
def test_what_a_spreadsheet_makes_of_it_reads_the_same(
    tmp_path: Path, encoding: str, separator: str, decimal: str
) -> None:
    before = replace(draw(("infected", "healthy")), columns={"age": ("63.5",) * 50, "site": ("1,2",) * 50})

    def german(row: dict[str, str]) -> None:
        for name in row:
            if name.startswith(("prob", "logit", "conf", "age")):
                row[name] = row[name].replace(".", decimal)

    text = rewritten(before, german, separator).replace("path", "Path", 1).replace("label", "Label", 1)
    after = put(tmp_path / "p.csv", text + separator * 9 + "\r\n", encoding)
    assert after.logits.tobytes() == before.logits.tobytes() and after.labels.tolist() == before.labels.tolist()
    assert after.groups == before.groups and after.notes == () and after.paths == before.paths
    assert set(after.columns["age"]) == {"63.5"}


def test_blanks_after_the_commas_of_the_header_and_no_rows(tmp_path: Path) -> None:
    after = put(tmp_path / "p.csv", GOOD.replace(",", ", "))
    assert after.classes == ("a", "b") and after.labels.tolist() == [0] and after.groups is None
    empty = put(tmp_path / "p.csv", Predictions(("a", "b"), (), None, None, np.zeros((0, 2), np.float32)).to_csv())
    assert len(empty) == 0 and empty.classes == ("a", "b") and empty.probabilities.shape == (0, 2)


def test_columns_that_follow_from_others_may_be_missing(tmp_path: Path) -> None:
    bare = put(tmp_path / "p.csv", "logit_a,logit_b,label\n1.0,0.0,a\n0.0,2.0,b\n")
    assert bare.paths == ("1", "2") and bare.groups is None and bare.notes == ()
    assert bare.predicted.tolist() == [0, 1] and bare.labels.tolist() == [0, 1]
    with pytest.raises(DataError, match=r"p\.csv: nothing can be evaluated, since it has no column label"):
        put(tmp_path / "p.csv", "logit_a,logit_b\n1.0,0.0\n") and Predictions.from_csv(tmp_path / "p.csv", True)
    (tmp_path / "p.csv").write_text("logit_a,logit_b,label\n1.0,0.0,\n")
    with pytest.raises(DataError, match="since its column label is empty"):
        Predictions.from_csv(tmp_path / "p.csv", labelled=True)
    (tmp_path / "p.csv").write_text("logit_a,logit_b,label\n")
    with pytest.raises(DataError, match="since it has no rows"):
        Predictions.from_csv(tmp_path / "p.csv", labelled=True)


def test_probabilities_alone_are_taken(tmp_path: Path) -> None:
    found = put(tmp_path / "p.csv", BARE + "y.png,b,0,1\r\n")
    assert found.probabilities == pytest.approx(np.array([[0.7, 0.3], [0, 1]]), abs=1e-7)
    assert found.notes == ("The table has no logits: the logarithms of its probabilities replace them.",)


def test_probabilities_of_another_program_are_not_rounded(tmp_path: Path) -> None:
    """A forest of 100 trees has hundredths, and acts from 0.15 on, which is more than the float32 nearest to it."""
    rows = "".join(f"{i},a,{1 - i / 100:.2f},{i / 100:.2f}\n" for i in range(101))
    found = put(tmp_path / "p.csv", "path,label,prob_a,prob_b\n" + rows)
    assert all((found.probabilities[:, 1] >= i / 100).sum() == 101 - i for i in range(101))
    thirds = put(tmp_path / "p.csv", "path,prob_a,prob_b,prob_c\nx,0.33,0.33,0.33\n")  # written with two digits
    assert thirds.probabilities[0] == pytest.approx([1 / 3] * 3)


def test_two_columns_that_may_name_the_patient_are_told(tmp_path: Path) -> None:
    found = put(tmp_path / "p.csv", "path,label,patient,case_id,prob_a,prob_b\nx,a,1,7,0.5,0.5\n")
    assert found.groups is None and "columns patient, case_id may each name the patient" in found.notes[0]


def test_predictions_of_another_program_that_are_not_the_likeliest_class_are_told(tmp_path: Path) -> None:
    rows = "x.png,a,a,0.7,0.3\ny.png,b,b,0.8,0.2\nz.png,b,a,0.9,0.1\n"  # decided from 0.15 or 0.2 on
    (tmp_path / "p.csv").write_text("path,label,prediction,prob_a,prob_b\n" + rows)
    found = read_evaluation(tmp_path / "p.csv").predictions
    decided = "1 prediction in the table was decided otherwise, the first in row {}; these numbers decide {}."
    assert found.predicted.tolist() == [0, 0, 0]
    assert found.notes[-1] == decided.format(2, "by the largest probability")
    (tmp_path / "p.csv").write_text("path,label_f,prediction,prob_f\nx,1,f,0.3\n")
    found = read_evaluation(tmp_path / "p.csv").predictions
    assert found.notes[-1] == decided.format(1, "at a probability of 0.5")


def changed(p: Predictions, row: int, column: str, cell: str) -> str:
    def change(cells: dict[str, str]) -> None:
        if cells["path"] == str(row):
            cells[column] = cell

    return rewritten(p, change=change)


def ten() -> Predictions:
    logits = np.random.default_rng(1).normal(size=(10, 2)).astype(np.float32)
    return Predictions(("a", "b"), tuple("0123456789"), None, None, logits)


def test_a_confidence_that_contradicts_the_logits_is_told_and_they_count(tmp_path: Path) -> None:
    before = ten()
    after = put(tmp_path / "p.csv", changed(before, 7, "confidence", "0.1234"))
    assert after.logits.tobytes() == before.logits.tobytes()
    told = "1 row of the table has a cell that does not follow from the logits, the first is row 8 (confidence)"
    assert after.notes == (f"{told}; the logits count.",)


@pytest.mark.parametrize(("column", "cell"), [("prob_a", "1.7"), ("prob_a", "nan"), ("prob_b", ""), ("prob_b", "0,99")])
def test_a_probability_that_is_none_is_an_error(tmp_path: Path, column: str, cell: str) -> None:
    with pytest.raises(DataError, match=rf"row 8 has '{re.escape(cell)}' as {column}"):
        put(tmp_path / "p.csv", changed(ten(), 7, column, cell))


def test_an_ood_score_that_is_not_a_number_is_reported(tmp_path: Path) -> None:
    odd = replace(draw(("a", "b"), size=2), columns={"ood_score": ("0.5", "abc")})
    assert (
        "1 row of the table has an ood_score that is not a number, the first is row 2"
        in (put(tmp_path / "p.csv", odd.to_csv()).notes[0])
    )


def test_unreadable_images_of_a_prediction_are_errors_again(tmp_path: Path) -> None:
    before = replace(draw(("a", "b")), errors=(("broken.png", "broken.png: empty"),))
    after = put(tmp_path / "p.csv", before.to_csv(errors=True))
    assert after.errors == before.errors and len(after) == 50 and "error" not in after.columns


def calibrated(size: int = 40) -> Predictions:
    """Raw logits, and probabilities at temperature 2."""
    rng = np.random.default_rng(2)
    logits = rng.normal(scale=3, size=(size, 2)).astype(np.float32)
    p = Predictions(("a", "b"), tuple(map(str, range(size))), None, rng.integers(2, size=size), logits)
    return replace(p, calibrated=softmax(logits / 2))


def test_a_class_against_the_rest_keeps_the_calibration() -> None:
    logits = np.random.default_rng(0).normal(scale=3, size=(9, 3)).astype(np.float32)
    p = Predictions(tuple("abc"), tuple("123456789"), None, np.arange(9) % 3, logits, calibrated=softmax(logits / 3))
    two = p.against_rest("a,c")
    assert two.probabilities[:, 0] == pytest.approx(softmax(logits / 3)[:, 1])
    assert two.probabilities.sum(axis=1) == pytest.approx(1)
    assert softmax(two.logits)[:, 0] == pytest.approx(softmax(logits)[:, 1], abs=1e-6)


def test_raw_logits_and_calibrated_probabilities_are_both_kept(tmp_path: Path) -> None:
    before = calibrated()
    after = put(tmp_path / "p.csv", before.to_csv())
    assert after.logits.tobytes() == before.logits.tobytes() and after.notes == ()
    assert after.probabilities.tobytes() == before.probabilities.tobytes()
    assert after.to_csv() == before.to_csv()
    assert after.take(np.array([5])).probabilities.tolist() == [before.probabilities[5].tolist()]
    assert softmax(after.calibrated_logits) == pytest.approx(before.probabilities, abs=1e-15)


def test_a_table_of_models_with_and_without_calibration_comes_back(tmp_path: Path) -> None:
    """Pooled folds: each image keeps the calibration and the decision of its own model."""
    first, second = calibrated(30), replace(calibrated(10), calibrated=None)
    chances = np.concatenate([first.probabilities, second.probabilities])
    decided = np.concatenate([first.probabilities[:, 0] < 0.7, second.probabilities[:, 0] < 0.2]).astype(np.int64)
    logits = np.concatenate([first.logits, second.logits])
    pooled = Predictions(("a", "b"), tuple(map(str, range(40))), None, None, logits, calibrated=chances)
    pooled = replace(pooled, decided=decided)
    (tmp_path / "p.csv").write_text(pooled.to_csv(), newline="")
    after = Predictions.from_csv(tmp_path / "p.csv", as_decided=True)
    assert after.to_csv() == pooled.to_csv() and after.predicted.tolist() == decided.tolist()
    assert after.logits.tobytes() == logits.tobytes() and after.probabilities.tobytes() == chances.tobytes()


def test_an_edited_probability_of_a_calibrated_table_is_an_error_without_its_policy(tmp_path: Path) -> None:
    def change(cells: dict[str, str]) -> None:
        if cells["path"] == "7":
            cells["prob_a"] = "1.7"

    text = rewritten(calibrated(), change=change)
    with pytest.raises(DataError, match=r"row 8 has '1\.7' as prob_a"):
        put(tmp_path / "p.csv", text)
    after = Predictions.from_csv(
        tmp_path / "p.csv", calibrate=lambda read: replace(read, calibrated=softmax(read.logits / 2))
    )
    assert after.probabilities.tobytes() == calibrated().probabilities.tobytes()
    assert (
        "1 row of the table has a cell that does not follow from the logits, the first is row 8 (prob_a)"
        in after.notes[0]
    )


def table(size: int = 40, patients: int = 8) -> Predictions:
    rng = np.random.default_rng(4)
    labels, groups = rng.integers(2, size=size), tuple(f"P{i % patients}" for i in range(size))
    logits = (rng.normal(size=(size, 2)) + 1.5 * np.eye(2)[labels]).astype(np.float32)
    return Predictions(("a", "b"), tuple(f"{i}.png" for i in range(size)), groups, labels, logits)


def test_a_path_that_stands_twice_is_refused_with_both_rows(tmp_path: Path) -> None:
    lines = table().to_csv().splitlines(keepends=True)
    with pytest.raises(DataError, match=r"p\.csv: names 2\.png more than once, in rows 3 and 41"):
        put(tmp_path / "p.csv", "".join([*lines, lines[3]]))
    nameless = rewritten(table(), change=lambda cells: cells.update(path=""))
    assert len(put(tmp_path / "p.csv", nameless)) == 40  # rows are no duplicates because they have no path


@pytest.mark.parametrize("other", ["{} ".format, str.lower, lambda name: f"  {name.lower()}", "{}\u200b".format])
def test_names_that_differ_in_spaces_or_capitals_are_one_patient(tmp_path: Path, other: Callable[[str], str]) -> None:
    def change(cells: dict[str, str]) -> None:
        if int(cells["path"].removesuffix(".png")) >= 20:
            cells["group"] = other(cells["group"])

    after = put(tmp_path / "p.csv", rewritten(table(), change=change))
    assert after.groups == table().groups and len(after.notes) == 1
    assert "16 names" in after.notes[0] and "the first in row 21" in after.notes[0]
    assert after.notes[0].endswith("They count as one patient: 8 instead of 16 patients.")
    assert "P0" not in after.notes[0]  # a report names no patient
    spaced = rewritten(table(), change=lambda cells: cells.update(group=f"{cells['group']} "))
    assert put(tmp_path / "p.csv", spaced).notes == ()  # nothing to join: the names stay as they are

    blank = rewritten(table(), change=lambda cells: cells.update(group=cells["group"].replace("P0", "  ")))
    found = put(tmp_path / "p.csv", blank)
    assert found.groups[0] == "" and found.notes == ()  # a blank is no patient


@pytest.mark.parametrize(
    ("names", "patients"),
    [
        (["007", "7", "7.0", "70"], ["007", "007", "007", "70"]),  # Excel drops zeros, pandas adds a fraction
        (["0", "000", "1.5", "1.50"], ["0", "0", "1.5", "1.50"]),
        (["P_01", "P-01", "p_01 ", "P_01\u200b", ""], ["P_01", "P-01", "P_01", "P_01", ""]),  # img_1 is not img-1
        (["A1", "A11", "1A"], ["A1", "A11", "1A"]),
    ],
)
def test_one_number_in_two_forms_is_one_patient(names: list[str], patients: list[str]) -> None:
    joined, notes = one_spelling(names, "patient", names)
    assert list(joined) == patients and bool(notes) == (names != patients)
    backwards, _ = one_spelling(names[::-1], "patient", names[::-1])
    assert list(backwards[::-1]) == patients  # so a split does not depend on the order of rows


def test_probabilities_rounded_to_two_digits_are_those_of_the_logits(tmp_path: Path) -> None:
    def change(cells: dict[str, str]) -> None:
        cells["prob_a"] = f"{float(cells['prob_a']):.2f}"
        cells["prob_b"] = f"{1 - float(cells['prob_a']):.2f}"

    found = put(tmp_path / "p.csv", rewritten(table(), change=change))
    assert found.probabilities.tobytes() == table().probabilities.tobytes() and found.notes == ()


@pytest.mark.parametrize("cell", ["b", "zebra", ""])
def test_an_edited_prediction_is_reported_as_such(tmp_path: Path, cell: str) -> None:
    p = table()
    sure = int(np.argmax(p.probabilities[:, 0]))

    def change(cells: dict[str, str]) -> None:
        if cells["path"] == f"{sure}.png":
            cells["prediction"] = cell

    (tmp_path / "p.csv").write_text(rewritten(p, change=change), newline="")
    after = read_evaluation(tmp_path / "p.csv").predictions
    assert after.predicted.tolist() == p.predicted.tolist() and after.notes == (
        f"1 prediction in the table was decided otherwise, the first in row {sure + 1}; these numbers decide by the "
        "largest probability.",
    )


def decided(column: str, cell: str) -> str:
    """A table with what a policy writes, and one cell of it changed in the second row."""
    cells = {"set": ["a | b", "b"], "answer": ["no: 2 classes are possible", "yes"]}
    cells[column][1] = cell
    head, row = GOOD.splitlines()
    rows = [f"{row.replace('x.png', f'{i}.png')},{cells['set'][i]},{cells['answer'][i]}" for i in range(2)]
    return "\r\n".join([f"{head},set,answer", *rows]) + "\r\n"


@pytest.mark.parametrize("text", [decided("set", "a"), decided("set", "a | b | and 6 more"), decided("set", "")])
def test_what_vitmed_wrote_into_set_and_answer_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    assert list(Predictions.from_csv(tmp_path / "p.csv").columns) == ["set", "answer"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (decided("set", "training"), "p.csv: row 2 has 'training' as set"),
        (decided("answer", "perhaps"), "p.csv: row 2 has 'perhaps' as answer"),
        (decided("set", "a").replace(",answer", ",remark"), "p.csv: row 1 has 'a | b' as set"),
    ],
)
def test_a_users_column_with_a_name_that_vitmed_writes_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        Predictions.from_csv(tmp_path / "p.csv")
    assert told in caught.value.problem and "vitmed writes this column itself" in caught.value.problem
    assert caught.value.fix.startswith("rename the column ")


def test_a_foreign_table_of_scores_is_told_that_probabilities_are_enough(tmp_path: Path) -> None:
    rows = [("a.png", "ill", 0.9), ("b.png", "healthy", 0.2), ("c.png", "ill", 0.7), ("d.png", "healthy", 0.4)]
    file = tmp_path / "scores.csv"
    file.write_text("path,label,score\n" + "".join(f"{path},{label},{score}\n" for path, label, score in rows))
    with pytest.raises(DataError, match="lacks the columns prob_<class> of every class") as refused:
        Predictions.from_csv(file, labelled=True)
    for part in ("prob_<class> for every class", "1 - p", "logit_<class>"):
        assert part in str(refused.value.fix)
    file.write_text("path,label,prob_ill\n" + "".join(f"{path},{label},{score}\n" for path, label, score in rows))
    with pytest.raises(DataError, match="only one class, 'ill', has a column") as refused:
        Predictions.from_csv(file, labelled=True)
    assert "prob_<class>" in str(refused.value.fix)
    file.write_text(  # what the fix says
        "path,label,prob_ill,prob_healthy\n" + "".join(f"{path},{label},{p},{1 - p:.1f}\n" for path, label, p in rows)
    )
    read = Predictions.from_csv(file, labelled=True)
    assert read.probabilities[:, 0] == pytest.approx([0.9, 0.2, 0.7, 0.4])
    file.write_text("path,label,prob_ill,prob_healthy\na.png,sick,0.9,0.1\n")
    with pytest.raises(DataError, match="or the table lacks the column prob_sick"):
        Predictions.from_csv(file, labelled=True)


def test_a_column_of_patients_has_several_names_and_ours_counts(tmp_path: Path) -> None:
    lines = ["a.png,x,0.9,0.1,P1", "b.png,y,0.2,0.8,P1", "c.png,y,0.4,0.6,P2"]
    for name, known in (("Patient ID", True), ("patient-id", True), ("SUBJECT", True), ("case", False), ("ward", 0)):
        (tmp_path / "t.csv").write_text("\n".join([f"path,label,prob_x,prob_y,{name}", *lines]))
        assert (Predictions.from_csv(tmp_path / "t.csv").groups == ("P1", "P1", "P2")) == known, name
    p = Predictions(("x", "y"), ("a", "b"), ("p", "q"), np.array([0, 1]), np.eye(2, dtype=np.float32))
    arms = replace(p, columns={"Group": ("drug", "placebo"), "Patient": ("1", "2")})
    (tmp_path / "own.csv").write_text(arms.to_csv(), newline="")
    again = Predictions.from_csv(tmp_path / "own.csv")
    assert again.groups == p.groups and again.columns == arms.columns


def test_the_patients_of_our_own_table_are_as_they_were(tmp_path: Path) -> None:
    """An expression may find "NA" in a path: only for another program is it no patient."""
    p = replace(table(), groups=tuple(("NA", "unknown", "P1", "P2")[i % 4] for i in range(40)))
    assert put(tmp_path / "p.csv", p.to_csv()).groups == p.groups
    foreign = "path,label,patient,prob_a,prob_b\nx,a,NA,0.5,0.5\ny,b,P1,0.4,0.6\nz,b,None,0.4,0.6\n"
    assert put(tmp_path / "q.csv", foreign).groups == ("", "P1", "")
