"""A part of predictions reads back exactly, whatever the names are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitmed.core.csv_files import to_unicode
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_parquet import (
    PartAbout,
    in_order,
    listing_digest,
    read_about,
    to_predictions,
    write_part,
)

pytest.importorskip("pyarrow")


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
    after = to_predictions(table, classes)
    assert (after.paths, after.errors, after.columns) == (before.paths, before.errors, before.columns)
    assert after.rows() == before.rows() and after.header() == before.header()
