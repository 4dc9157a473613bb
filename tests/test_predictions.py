"""predictions.csv holds a Predictions completely."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitmed.errors import DataError
from vitmed.predictions import Predictions

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
        assert after.labels is not None
        assert after.labels.tobytes() == before.labels.astype(np.int64).tobytes()
    assert after.to_csv() == before.to_csv()


def test_what_several_models_decided_is_kept(tmp_path: Path) -> None:
    """Not the likeliest class, and no threshold gives it: the column `prediction` does."""
    before = replace(draw(), decided=np.arange(50) % len(NASTY))
    file = tmp_path / "predictions.csv"
    file.write_bytes(before.to_csv().encode())
    after = Predictions.from_csv(file, decided=True)
    assert after.predicted.tolist() == before.predicted.tolist() == [i % len(NASTY) for i in range(50)]
    assert after.to_csv() == before.to_csv()
    assert after.take(np.array([7, 3])).predicted.tolist() == [7 % len(NASTY), 3]
    assert after.confidence[3] == after.probabilities[3, 3]
    assert Predictions.from_csv(file).predicted.tolist() == before.logits.argmax(axis=1).tolist()


def test_columns_stand_in_class_order() -> None:
    predictions = draw(("b", "a"), size=1)
    head = predictions.to_csv().splitlines()[0]
    assert head == "path,label,group,prediction,confidence,prob_b,prob_a,logit_b,logit_a"


def test_no_images_round_trip(tmp_path: Path) -> None:
    empty = Predictions(("a", "b"), (), None, None, np.zeros((0, 2), np.float32))
    file = tmp_path / "p.csv"
    file.write_text(empty.to_csv(), newline="")
    after = Predictions.from_csv(file)
    assert len(after) == 0 and after.classes == ("a", "b") and after.probabilities.shape == (0, 2)


def test_a_file_name_that_is_no_unicode_is_written() -> None:
    odd = Predictions(("a", "b"), ("caf\udce9.png",), None, None, np.zeros((1, 2), np.float32))
    odd.to_csv().encode("utf-8")


def test_a_byte_order_mark_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_bytes(b"\xef\xbb\xbf" + draw().to_csv().encode())
    assert Predictions.from_csv(file).classes == NASTY


GOOD = "path,label,group,prediction,confidence,prob_a,prob_b,logit_a,logit_b\r\nx.png,a,,a,0.7,0.7,0.3,1.0,0.0\r\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GOOD.replace("group", "grp"), "lacks the column group"),
        (GOOD.replace("logit_", "score_"), "logit_<class>"),
        (GOOD.replace("logit_b", "logit_a"), "twice"),
        (GOOD.replace("x.png,a,", "x.png,c,"), "row 1 has the label 'c', expected one of a, b"),
        (GOOD.replace("1.0,0.0", "1.0,high"), "row 1 has 'high' as logit_b, expected a number"),
        (GOOD.replace("1.0,0.0", "1.0"), "row 1 has no cell as logit_b"),
        (GOOD.replace("1.0,0.0", "1.0,0.0,0.0"), "row 1 has more cells"),
        (GOOD.replace("1.0,0.0", "1.0,nan"), "row 1 has 'nan' as logit_b, not a finite number"),
        (GOOD.replace("1.0,0.0", "1.0,1e99"), "finite"),
        (GOOD + "y.png,,,a,0.7,0.7,0.3,1.0,0.0\r\n", "some have none, the first is row 2"),
        ("", "lacks the column"),
        ("\x00\x01", "lacks the column"),
    ],
)
def test_an_edited_file_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "edited.csv"
    file.write_text(text, newline="")
    with pytest.raises(DataError, match=r"edited\.csv") as error:
        Predictions.from_csv(file)
    assert told in str(error.value)


def test_good_file_is_good(tmp_path: Path) -> None:
    file = tmp_path / "good.csv"
    file.write_text(GOOD, newline="")
    assert Predictions.from_csv(file).predicted.tolist() == [0]


def test_missing_or_binary_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv"):
        Predictions.from_csv(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(bytes(range(128, 256)))
    with pytest.raises(DataError, match=r"binary\.csv"):
        Predictions.from_csv(tmp_path / "binary.csv")
