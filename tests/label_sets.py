"""Tables of labels for tests, and the splits that they give; the images are empty files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitmed.core.data_config import DataConfig
from vitmed.data.samples import Splits
from vitmed.data.splits import make_splits


def label_set(folder: Path, header: Sequence[object], rows: Sequence[Sequence[object]]) -> Path:
    """folder/labels.csv, whose first column is the path, and the files that it names."""
    folder.mkdir(exist_ok=True)
    for path, *_ in rows:
        (folder / str(path)).parent.mkdir(exist_ok=True)
        (folder / str(path)).touch()
    lines = [",".join(map(str, row)) for row in (header, *rows)]
    (folder / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def split(folder: Path, ordinal: Sequence[str] = (), **fields: Any) -> Splits:
    fields = {"labels": str(folder / "labels.csv"), "cache": False, **fields}
    return make_splits(DataConfig(root=str(folder), **fields), ordinal=ordinal)


def by_path(splits: Splits) -> dict[str, tuple[float, ...]]:
    """Path -> targets, of all splits."""
    return {sample.path: sample.targets for part in splits.samples.values() for sample in part}
