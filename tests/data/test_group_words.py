"""Groups are called patients where the user says so, and otherwise by the column that they come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError
from vitmed.data.patient_names import group_word, known_by_column
from vitmed.data.patients import describe_patients, patient_notes
from vitmed.data.splits import make_splits
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions
from vitmed.report.chapters import limitations
from vitmed.report.headline import headline
from vitmed.report.model_card import model_card
from vitmed.report.participant_flow import flow_of
from vitmed.report.results import Origin, Results


@pytest.mark.parametrize(
    ("column", "word"),
    [
        *(
            (name, "patient")
            for name in ("patient", "Patient ID", "patientId", "PATIENTID", "subject_id", "case", "id")
        ),
        *((name, "patient") for name in ("paziente", "pat_nr", "MRN", "donor", "Person")),
        *((name, f"{name} group") for name in ("slide_field", "lesion_id", "slide", "subtype", "image.no", "who")),
        ("group", "group"),
        ("Group", "group"),
        ("a {b} | c", "a_b_c group"),  # brackets and bars mean something in a report
        ("groups, by table", "groups_by_table group"),
    ],
)
def test_the_name_of_the_column_decides(column: str, word: str) -> None:
    assert group_word(known_by_column(column, "--groups")) == word


def test_words_of_older_checkpoints_and_of_originals() -> None:
    older = ("", "by table (--groups)", "by table (--labels)", "from the file paths (--group-regex)", "--group-regex P")
    assert {group_word(known) for known in older} == {"patient"}
    assert group_word("as originals of augmented copies, by file name (--groups names)") == "original"


def by_slide(root: Path, column: str, split: bool = False) -> DataConfig:
    """Sixty images of twenty groups, two classes; with `split` a table in which a group is in two splits."""
    rows = [f"path,label,{column}" + ",split" * split]
    for i in range(60):
        (root / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        path = f"{'ab'[i % 2]}/{i}.png"
        (root / path).write_text(str(i))
        rows.append(f"{path},{'ab'[i % 2]},S{i // 3}" + (f",{('train', 'val', 'test')[i % 3]}" if split else ""))
    table = root.parent / "labels.csv"
    table.write_text("\n".join(rows))
    if split:
        return DataConfig(root=str(root), labels=str(table), cache=False)
    table.write_text("\n".join(row.replace(",a,", ",").replace(",b,", ",").replace("label,", "") for row in rows))
    return DataConfig(root=str(root), groups=str(table), cache=False)


def test_a_report_of_slides_speaks_of_slides(tmp_path: Path) -> None:
    splits = make_splits(by_slide(tmp_path / "data", "slide_field"))
    assert splits.unit == "slide_field group" and "by slide_field group, seed 0" in splits.made["test"]
    assert describe_patients(splits).endswith("identified as slide_field groups, by table (--groups)")
    (note,) = patient_notes(splits, "test")
    assert "one patient may be in two splits" in note and "read slide_field group" in note
    samples = splits.samples["test"]
    labels, groups = np.array([s.label for s in samples]), tuple(str(s.group) for s in samples)
    logits = np.random.default_rng(0).normal(size=(len(samples), 2)).astype(np.float32)
    numbers = evaluate_predictions(Predictions(splits.classes, tuple(s.path for s in samples), groups, labels, logits))
    metrics = Results.of(numbers, report=Origin(title="test"), flow=flow_of(splits, {}))
    card, count = model_card(metrics, "run", "test"), len(set(groups))
    assert "| split | images | slide_field groups | made |" in card and f"of {count} slide_field groups" in card
    assert "Disjoint by slide_field group: 0 of 20 slide_field groups are in two splits." in card
    assert "They are known as slide\\_field groups, by table" in card
    assert "intervals by slide_field group" in headline(metrics)
    assert any(f"Only {count} slide_field groups are evaluated" in text for text in limitations(metrics))
    plain = Results.of(numbers, report=Origin(title="test"))
    assert plain.unit == "patient" and "intervals by patient" in headline(plain)


@pytest.mark.parametrize(("column", "unit"), [("group", "group"), ("case", "patient")])
def test_an_error_names_what_is_in_two_splits(tmp_path: Path, column: str, unit: str) -> None:
    with pytest.raises(DataError, match=f"20 {unit}s are in two splits"):
        make_splits(by_slide(tmp_path / "data", column, split=True))
