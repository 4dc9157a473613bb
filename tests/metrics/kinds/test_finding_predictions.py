"""predictions.csv holds the predictions of findings completely, and each finding is a prediction of two classes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from predicted import rewritten

from vitmed.core.base_models import UNKNOWN
from vitmed.core.errors import DataError
from vitmed.decisions.evaluation_folder import read_evaluation
from vitmed.metrics.kinds.findings import FindingPredictions, is_of_findings
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import read_table
from vitmed.metrics.predictions_files import read_predictions

NASTY = ("a,b", 'say "cheese"', "naïve Ω 細胞", "logit_x", "label_y", " spaced ", "a|b")


def draw(classes: tuple[str, ...] = ("edema", "mass"), size: int = 40, **more: object) -> FindingPredictions:
    rng = np.random.default_rng(0)
    shape = (size, len(classes))
    found = FindingPredictions(
        classes=classes,
        paths=tuple(f'sub folder/"{i}", é\n{i}.png' for i in range(size)),
        groups=tuple(f"P,{i % 7}" for i in range(size)),
        labels=rng.integers(UNKNOWN, 2, size=shape).astype(np.int8),
        logits=rng.normal(scale=3, size=shape).astype(np.float32),
    )
    return replace(found, **more)


def put(file: Path, text: str) -> FindingPredictions:
    file.write_bytes(text.encode())
    return FindingPredictions.from_csv(file)


def assert_same(after: FindingPredictions, before: FindingPredictions) -> None:
    assert (after.classes, after.paths, after.groups) == (before.classes, before.paths, before.groups)
    assert after.logits.dtype == np.float32 and after.logits.tobytes() == before.logits.tobytes()
    assert after.probabilities.tobytes() == before.probabilities.tobytes()
    assert (after.columns, after.errors, after.notes) == (before.columns, before.errors, ())
    if before.labels is None:
        assert after.labels is None
    else:
        assert after.labels.dtype == np.int8
        assert after.labels.tobytes() == before.labels.tobytes()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"groups": None},
        {"labels": None},
        {"columns": {"age": ("63.5",) * 40, "label": ("7",) * 40}, "errors": (("broken.png", "empty"),)},
        {"logits": (10.0 ** np.random.default_rng(1).uniform(-40, 30, (40, 7))).astype(np.float32)},
        {"thresholds": (0.1, 0.9, None, 0.5, 0.2, 0.0, 1.0)},
    ],
)
def test_csv_round_trip_is_bit_for_bit(tmp_path: Path, more: dict[str, object]) -> None:
    before = draw(NASTY, **more)
    text = before.to_csv(errors=True)
    after = put(tmp_path / "p.csv", text)
    assert_same(after, before)
    assert replace(after, thresholds=before.thresholds).to_csv(errors=True) == text


def test_the_documented_form() -> None:
    p = FindingPredictions(
        classes=("edema", "mass"),
        paths=("a.png", "b.png", "c.png"),
        groups=("P1", "P1", ""),
        labels=np.array([[1, 0], [0, 0], [UNKNOWN, 1]], np.int8),
        logits=np.array([[2, 0], [-2, -1], [-2, 1]], np.float32),
        columns={"age": ("50", "60", "")},
    )
    low, one = 0.11920292202211755, 0.7310585786300049  # 1 / (1 + exp(2)), 1 / (1 + exp(-1))
    rows = [line.split(",") for line in p.to_csv().splitlines()]
    head = "path,group,prediction,label_edema,prob_edema,logit_edema,label_mass,prob_mass,logit_mass,age"
    assert ",".join(rows[0]) == head
    assert [row[2] for row in rows[1:]] == ["edema | mass", "no finding", "mass"]  # one half is called
    assert [row[3] for row in rows[1:]] == ["1", "0", ""] and [row[6] for row in rows[1:]] == ["0", "0", "1"]
    assert [float(row[4]) for row in rows[1:]] == pytest.approx([1 - low, low, low], abs=1e-15)
    assert [float(row[7]) for row in rows[1:]] == pytest.approx([0.5, 1 - one, one], abs=1e-15)


def test_calibrated_probabilities_and_decisions_of_several_models_come_back(tmp_path: Path) -> None:
    """Pooled folds: each image keeps the calibration and the thresholds of its own model."""
    rng, plain = np.random.default_rng(3), draw()
    calibrated = replace(plain, calibrated=replace(plain, logits=plain.logits / 2).probabilities)
    assert_same(put(tmp_path / "p.csv", calibrated.to_csv()), calibrated)
    pooled = replace(calibrated, calibrated=rng.random((40, 2)), decided=rng.random((40, 2)) < 0.3)
    (tmp_path / "p.csv").write_bytes(pooled.to_csv().encode())
    after = FindingPredictions.from_csv(tmp_path / "p.csv", as_decided=True)
    assert_same(after, pooled)
    assert after.predicted.tolist() == pooled.predicted.tolist() and after.to_csv() == pooled.to_csv()
    assert after.take(np.array([5, 2])).predicted.tolist() == pooled.predicted[[5, 2]].tolist()
    assert after.of("mass").predicted.tolist() == pooled.predicted[pooled.labels[:, 1] >= 0, 1].tolist()
    policy = FindingPredictions.from_csv(tmp_path / "p.csv", calibrate=lambda p: replace(p, calibrated=p.logits * 0.0))
    assert not policy.probabilities.any() and "a cell that does not follow" in policy.notes[0]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_what_a_spreadsheet_makes_of_it_reads_the_same(tmp_path: Path, separator: str) -> None:
    def german(row: dict[str, str]) -> None:
        for name, cell in row.items():
            if name.startswith(("prob", "logit")) and separator != ",":
                row[name] = cell.replace(".", ",")
            elif name.startswith("label") and cell:
                row[name] = f" {cell}.0"

    text = "\ufeff" + rewritten(draw(), german, separator)
    for name in ("path", "prediction", "label_", "prob_", "logit_"):
        text = text.replace(name, name.capitalize())
    after = put(tmp_path / "p.csv", text)
    assert_same(after, draw())
    assert is_of_findings(read_table(tmp_path / "p.csv").header)


GOOD = "path,group,prediction,label_a,prob_a,logit_a,label_b,prob_b,logit_b\nx.png,,a,1,0.75,1.1,0,0.25,-1.1\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            GOOD.replace("logit_", "score_").replace("prob_", "p_"),
            "lacks the columns prob_<class> of every class, or logit_<class>; its first line",
        ),
        (GOOD.replace("logit_b", "score_b"), "lacks the column logit_b"),
        (GOOD.replace("label_b", "label_a"), "twice"),
        (GOOD.replace(",1,", ",2,"), "row 1 has '2' as label_a, expected 1 (present), 0 (absent) or an empty cell"),
        (GOOD.replace(",0,", ",yes,"), "row 1 has 'yes' as label_b, expected 1 (present), 0 (absent) or an empty cell"),
        (GOOD.replace(",0,", ",nan,"), "row 1 has 'nan' as label_b"),
        (GOOD.replace("-1.1", "low"), "row 1 has 'low' as logit_b, expected a finite number"),
        (GOOD.replace("-1.1", "-1e99"), "finite"),
        (GOOD.replace(",-1.1", ""), "row 1 has no cell as logit_b"),
        (GOOD + "x.png,,a,1,0.75,1.1,0,0.25,-1.1\n", "names x.png more than once, in rows 1 and 2"),
        (GOOD.replace("logit_", "l_").replace("0.75", "1.75"), "row 1 has '1.75' as prob_a, expected a probability"),
    ],
)
def test_an_edited_file_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(DataError, match=r"edited\.csv") as error:
        put(tmp_path / "edited.csv", text)
    assert told in str(error.value)
    assert put(tmp_path / "good.csv", GOOD).notes == ()


def test_a_table_without_labels_cannot_be_evaluated(tmp_path: Path) -> None:
    for change, told in (("label_b", "its column label_<finding> is empty"), ("b", "has no column label_<finding>")):
        text = draw(("a", "b"), labels=None).to_csv().replace("label_b", change)
        (tmp_path / "p.csv").write_text(text.replace("label_a", "was_a") if change == "b" else text, newline="")
        with pytest.raises(DataError, match="nothing can be evaluated") as error:
            FindingPredictions.from_csv(tmp_path / "p.csv", labelled=True)
        assert told in str(error.value)
    with pytest.raises(DataError, match="expected the findings that are called"):
        (tmp_path / "p.csv").write_text(GOOD.replace(",a,", ",a | c,"))
        FindingPredictions.from_csv(tmp_path / "p.csv", as_decided=True)


def test_images_without_a_known_label_are_no_patients_of_an_evaluation(tmp_path: Path) -> None:
    p = draw(("a", "b"))
    labels = np.where(np.arange(2 * len(p)).reshape(-1, 2) < 10, 1, UNKNOWN).astype(np.int8)
    (tmp_path / "p.csv").write_text(replace(p, labels=labels).to_csv(), newline="")
    read = read_predictions(tmp_path / "p.csv", labelled=True)
    assert read.paths == p.paths[:5] and f"{len(p) - 5} images have no known label and are left out." in read.notes
    assert len(read_predictions(tmp_path / "p.csv")) == len(p)


def test_probabilities_alone_are_taken(tmp_path: Path) -> None:
    found = put(tmp_path / "p.csv", "label_a,prob_a,prob_b\n1,0.7,1\n,0,0.3\n")
    assert found.probabilities == pytest.approx(np.array([[0.7, 1], [0, 0.3]]), abs=1e-7)
    assert found.labels.tolist() == [[1, UNKNOWN], [UNKNOWN, UNKNOWN]]
    assert found.notes == ("The table has no logits: the log odds of its probabilities replace them.",)


@pytest.mark.parametrize("cell", ["zebra", "no finding"])
def test_what_contradicts_the_logits_is_told_and_they_count(tmp_path: Path, cell: str) -> None:
    before = draw()
    row = int(before.probabilities.min(axis=1).argmax())  # both are called
    assert before.predicted[row].all()

    def change(cells: dict[str, str]) -> None:
        if cells["path"] == before.paths[row]:
            cells["prediction"] = cell

    (tmp_path / "p.csv").write_text(rewritten(before, change), newline="")
    after = read_evaluation(tmp_path / "p.csv", labelled=False).predictions
    assert after.probabilities.tobytes() == before.probabilities.tobytes()
    told = f"1 prediction in the table was decided otherwise, the first in row {row + 1}; these numbers decide"
    assert after.notes == (f"{told} at a probability of 0.5.",)


def test_rounded_probabilities_are_those_of_the_logits_and_empty_cells_are_none(tmp_path: Path) -> None:
    def rounded(cells: dict[str, str]) -> None:
        for name in ("edema", "mass"):
            cells[f"prob_{name}"] = f"{float(cells[f'prob_{name}']):.2f}"

    def empty(cells: dict[str, str]) -> None:
        cells["prob_edema"] = cells["prob_mass"] = ""

    for change in (rounded, empty):
        after = put(tmp_path / "p.csv", rewritten(draw(), change))
        assert after.probabilities.tobytes() == draw().probabilities.tobytes() and after.notes == ()


def test_the_mark_between_findings_may_stand_in_a_name(tmp_path: Path) -> None:
    """A cell that is the whole name of a finding names that one, and not its parts."""
    found = tmp_path / "p.csv"
    found.write_text("prediction,label_a | b,prob_a | b,prob_a,prob_b\na | b,1,0.9,0.1,0.2\na,1,0.9,0.1,0.2\n")
    assert FindingPredictions.from_csv(found, as_decided=True).decided.tolist() == [
        [True, False, False],
        [False, True, False],
    ]


def test_which_tables_are_of_findings() -> None:
    classes = Predictions(
        ("edema", "mass"), ("1",), None, None, np.zeros((1, 2), np.float32), columns={"label_mass": ("1",)}
    )
    assert not is_of_findings(classes.header()) and not is_of_findings(replace(classes, columns={}).header())
    assert is_of_findings(draw().header()) and is_of_findings(draw(("edema",)).header())
    assert is_of_findings([name for name in draw().header() if name != "label_mass"])
    assert is_of_findings([*draw().header(), "label", "confidence"]) and not is_of_findings(["path", "label_a"])


def test_a_table_of_classes_may_hold_them_once_more_one_by_one(tmp_path: Path) -> None:
    """Where in each row `label` names the one class of which label_<class> is 1; else the columns are of findings."""
    text = "path,label,label_a,label_b,prob_a,prob_b\nx,a,1,0,0.7,0.3\ny,b,0,1.0,0.6,0.4\n"
    for more, kind in (("", "classes"), ("z,a,1,1,0.2,0.8\n", "findings"), ("z,b,1,0,0,1\n", "findings")):
        (tmp_path / "p.csv").write_text(text + more, encoding="utf-8")
        assert read_predictions(tmp_path / "p.csv").kind == kind


def test_a_finding_is_a_prediction_of_two_classes() -> None:
    """Of the images whose label is known, with the same probability to the bit: a tie is one in both."""
    p = draw(size=500)
    chosen = float(p.probabilities[3, 0])
    limited = replace(p, thresholds=(chosen, None))
    for f, name in enumerate(p.classes):
        known, own = p.labels[:, f] != UNKNOWN, limited.of(name)
        assert own.classes == (f"no {name}", name) and own.positive == name
        assert own.labels.tolist() == p.labels[known, f].tolist()
        assert own.probabilities[:, 1].tobytes() == p.probabilities[known, f].tobytes()
        assert own.predicted.tolist() == limited.predicted[known, f].tolist()
        assert own.groups == tuple(np.array(p.groups)[known])
    assert limited.predicted[3, 0]
    assert p.probabilities == pytest.approx(1 / (1 + np.exp(-p.logits.astype(np.float64))), abs=1e-15)


def test_the_explained_finding_is_the_likeliest_beside_its_threshold() -> None:
    """And the errors begin with the most confident; one whose label is unknown is none."""
    chances = np.array([[0.3, 0.4], [0.1, 0.45], [0.02, 0.3], [0.3, 0.1]])
    labels = np.array([[1, 0], [1, 0], [0, 1], [UNKNOWN, 1]], dtype=np.int8)
    p = FindingPredictions(
        ("a", "b"), tuple("1234"), None, labels, np.zeros((4, 2), np.float32), thresholds=(0.2, 0.4), calibrated=chances
    )
    assert p.explained.tolist() == [0, 1, 1, 0]
    assert p.mistakes().tolist() == [2, 1]  # b is missed at 0.3, so with 0.7; and called at 0.45


def test_an_image_is_right_where_each_known_label_is() -> None:
    """One bool for each image: both findings right, one wrong, the known one right, and nothing known."""
    labels = np.array([[1, 0], [1, 1], [UNKNOWN, 0], [UNKNOWN, UNKNOWN]], dtype=np.int8)
    logits = np.array([[2, -2], [2, -2], [2, -2], [2, -2]], dtype=np.float32)
    p = FindingPredictions(("edema", "mass"), tuple("abcd"), None, labels, logits)
    assert p.right.tolist() == [True, False, True, False]
    truth, known, called = p.outcomes
    assert known.tolist() == (labels >= 0).tolist() and truth.tolist() == (labels == 1).tolist()
    assert called.tolist() == [[True, False]] * 4
