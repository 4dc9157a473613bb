"""A part of predictions reads back exactly, whatever the names are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitmed.core.csv_files import csv_text, to_unicode
from vitmed.core.targets import Target
from vitmed.metrics.any_predictions import read_predictions, target_of
from vitmed.metrics.finding_predictions import FindingPredictions
from vitmed.metrics.number_predictions import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_parquet import (
    PartAbout,
    errors_of,
    header_of,
    in_order,
    listing_digest,
    read_about,
    read_part,
    rows_of,
    write_part,
)


@pytest.mark.parametrize("readable", [3, 0])
def test_a_part_reads_back_to_the_bit(tmp_path: Path, readable: int) -> None:
    classes, rng = ("=b", "caf\udce9"), np.random.default_rng(0)
    names = ["a/\udce9.png", "\\ud83d.png", "no.png", "=1+1.png"]
    read = [name for name in names if name != "no.png"][:readable]
    logits = rng.normal(size=(readable, 2)).astype(np.float32)
    before = Predictions(
        classes=classes, paths=tuple(read), groups=None, labels=None, logits=logits,
        errors=tuple((name, f"{name}: no image \udce9") for name in names if name not in read),
        columns={"ood_score": ("0.123456", "1e-09", "12")[:readable], "set": ("caf\udce9",) * readable},
        calibrated=rng.dirichlet((1, 1), readable).reshape(readable, 2), decided=np.arange(readable) % 2,
    )  # fmt: skip
    about = PartAbout(
        checkpoint="w", settings="s", listing=listing_digest(names).hexdigest(), images=4, shard=1, shards=1, first=0,
        rows=4, unread=4 - readable, names=tuple(map(to_unicode, classes)),
    )  # fmt: skip
    file = tmp_path / "part-00001-of-00001-000000.parquet"
    write_part(file, about, names, before, rng.normal(size=(readable, 5)).astype(np.float32))
    assert read_about(file) == about and about.classes == classes
    ((_, _, table),) = in_order([(about, file)])
    header = header_of(table, about)
    assert header == before.header() and rows_of(table, header) == before.rows()
    assert errors_of(table) == before.errors


@pytest.mark.parametrize("reach", [2.5, None])
def test_parts_of_findings_and_of_numbers_read_back_to_the_bit(tmp_path: Path, reach: float | None) -> None:
    rng, columns = np.random.default_rng(1), {"ood_score": ("0.5", "1e-09"), "answer": ("yes", "")}
    names, logits = ("a.png", "b.png"), rng.normal(size=(2, 2)).astype(np.float32)
    age = Target(kind="number", unit="years", centre=1 / 3, spread=2.7)
    chances = 1 / (1 + np.exp(-logits.astype(np.float64) / 2))
    for before in (
        FindingPredictions(("Mass", "a|b"), names, None, None, logits, (), columns, (0.3, None), calibrated=chances),
        NumberPredictions(("age",), names, None, None, logits, age, (), columns, reach),
    ):
        about = PartAbout(
            checkpoint="w", settings="s", listing=listing_digest(names).hexdigest(), images=2, shard=1, shards=1,
            first=0, rows=2, unread=0, names=before.classes, target=target_of(before),
        )  # fmt: skip
        file = tmp_path / "part.parquet"
        write_part(file, about, names, before, np.empty((2, 0), np.float32))
        assert read_about(file) == about
        table = read_part(file)
        words = {"path", "prediction", "answer", "error"} if before.kind == "findings" else {
            "path", "target_name", "target_unit", "target_distribution", "answer", "error"
        }  # fmt: skip
        assert {field.name for field in table.schema if str(field.type) == "string"} == words
        raw = {"raw_location", "raw_log_scale", "logit_Mass", "logit_a|b"}  # float32, as the network gives them
        assert {field.name for field in table.schema if str(field.type) == "float"} == raw & {*table.column_names}
        assert rows_of(table, header_of(table, about)) == before.rows() and header_of(table, about) == before.header()
        csv = tmp_path / "p.csv"
        csv.write_text(csv_text([header_of(table, about), *rows_of(table, before.header())]))
        again = read_predictions(csv)
        assert again.rows() == before.rows() and np.array_equal(again.logits, logits)
        if before.kind == "number":
            assert table["target_spread"].to_pylist() == [2.7, 2.7] and table["reach"].to_pylist() == [reach, reach]
