"""A part of predictions reads back exactly, whatever the names are: `vitmed merge` gives the table that was written."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from vitmed import merge
from vitmed.core.base_models import Target
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_files import read_part, write_part


def merged(folder: Path, before: Predictions, features: int = 0) -> bytes:
    """The table of a list of one shard, written as a part and merged."""
    count = len(before) + len(before.errors)
    about = {"checkpoints": "w", "lists of images": "l", "images": count, "shards": 1, "shard": 1}
    file = folder / "part-00001-of-00001.parquet"
    write_part(file, about, before, np.ones((len(before), features), np.float32), {})
    assert read_part(file)[0] == about
    done = merge(folder, force=True)
    assert done.read == len(before) and done.errors == before.errors
    return done.file.read_bytes()


@pytest.mark.parametrize("readable", [3, 0])
def test_a_part_reads_back_to_the_byte(tmp_path: Path, readable: int) -> None:
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
    assert merged(tmp_path, before, features=5) == before.to_csv(errors=True).encode()


@pytest.mark.parametrize("reach", [2.5, None])
def test_parts_of_findings_and_of_numbers_too(tmp_path: Path, reach: float | None) -> None:
    rng, columns = np.random.default_rng(1), {"ood_score": ("0.5", "1e-09"), "answer": ("yes", "")}
    names, logits = ("a.png", "b.png"), rng.normal(size=(2, 2)).astype(np.float32)
    age = Target(kind="number", unit="years", centre=1 / 3, spread=2.7)
    chances = 1 / (1 + np.exp(-logits.astype(np.float64) / 2))
    for before in (
        FindingPredictions(
            ("Mass", "a|b"), names, None, None, logits, (), columns=columns, thresholds=(0.3, None), calibrated=chances
        ),
        NumberPredictions(("age",), names, None, None, logits, target=age, errors=(), columns=columns, reach=reach),
    ):
        assert merged(tmp_path, before) == before.to_csv(errors=True).encode()
        table = read_part(tmp_path / "part-00001-of-00001.parquet")[1]
        raw = {"raw_location", "raw_log_scale", "logit_Mass", "logit_a|b"}  # float32, as the network gives them
        assert {field.name for field in table.schema if str(field.type) == "float"} == raw & {*table.column_names}
        assert table["ood_score"].to_pylist() == [0.5, 1e-09]
        two = tmp_path / "two"
        two.mkdir(exist_ok=True)
        for shard, name in ((2, "part-a.parquet"), (1, "part-b.parquet")):  # the shards order the rows, no file name
            about = {"checkpoints": "w", "lists of images": "l", "images": 2, "shards": 2, "shard": shard}
            write_part(two / name, about, before.take(np.array([shard - 1])), np.ones((1, 0), np.float32), {})
        assert merge(two, force=True).file.read_bytes() == before.to_csv(errors=True).encode()
        if before.kind == "number":
            assert table["target_spread"].to_pylist() == [2.7, 2.7] and table["reach"].to_pylist() == [reach, reach]


def test_a_part_without_a_blank_image_gets_the_answers_of_the_whole_table(tmp_path: Path) -> None:
    """A model without a policy writes `answer` only beside a blank image; an unreadable one has none."""
    blank = "no: the image has no content"
    for shard, cells, errors in ((1, {"answer": (blank,)}, ()), (2, {}, (("c.png", "no image"),))):
        name, logits = "ab"[shard - 1] + ".png", np.zeros((1, 2), np.float32)
        about = {"checkpoints": "w", "lists of images": "l", "images": 3, "shards": 2, "shard": shard}
        part = Predictions(("x", "y"), (name,), None, None, logits, errors, columns=cells)
        write_part(tmp_path / f"part-{shard}.parquet", about, part, np.ones((1, 0), np.float32), {})
    found = list(csv.DictReader(merge(tmp_path).file.open(newline="")))
    assert [(row["path"], row["answer"]) for row in found] == [("a.png", blank), ("b.png", "yes"), ("c.png", "")]
