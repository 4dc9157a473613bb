"""Which image is in which split, with its labels of any kind: stored in plain types, read back to the bit."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vitmed.core.base_models import UNKNOWN, Target
from vitmed.data.samples import Sample, Splits
from vitmed.inference.saved_model import membership_of, read_membership
from vitmed.training.run import splits_csv

NAMES = ("train", "val", "test")


def findings(root: Path) -> Splits:
    rows = ((1.0, 0.0), (0.0, float(UNKNOWN)), (0.0, 0.0))
    samples = {
        name: tuple(
            Sample(f"{name}{i}.png", k, f"P{i}", ("site",), values)
            for i, (k, values) in enumerate(zip((0, 2, 2), rows, strict=True))
        )
        for name in NAMES
    }
    return Splits(root, ("Mass", "Edema"), samples, dict.fromkeys(NAMES, "table"), ("site",), "by table",
                  target=Target(kind="findings"), bins=("Mass", "Edema", "no finding"))  # fmt: skip


def number(root: Path) -> Splits:
    samples = {
        name: (Sample("a.png", 0, None, (), (0.1 + 0.2,)), Sample("b.png", 1, None, (), (1e-300,))) for name in NAMES
    }
    target = Target(kind="number", unit="years", centre=0.15, spread=1 / 3)
    return Splits(root, ("age",), samples, dict.fromkeys(NAMES, ""), target=target, bins=("0 to 1", "2"))


def grades(root: Path) -> Splits:
    samples = {name: tuple(Sample(f"{k}.png", k, None) for k in range(3)) for name in NAMES}
    return Splits(root, ("low", "middle", "high"), samples, dict.fromkeys(NAMES, ""), target=Target(kind="grades"))


def classes(root: Path) -> Splits:
    return Splits(root, ("a", "b"), {name: (Sample("a.png", 0, None), Sample("b.png", 1, None)) for name in NAMES})


def stored(splits: Splits, folder: Path) -> dict[str, Any]:
    """What a file holds of it, through the reader that runs no code."""
    data = membership_of(splits, {}, folder / "best.pt")
    torch.save({"classes": list(splits.classes), "data": data}, folder / "file.pt")
    return torch.load(folder / "file.pt", weights_only=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [findings, number, grades, classes])
def test_the_splits_come_back(tmp_path: Path, make: Callable[[Path], Splits]) -> None:
    splits = make(tmp_path / "data")
    found, hashes = read_membership(tmp_path / "best.pt", stored(splits, tmp_path))
    for name in ("classes", "samples", "made", "columns", "patients", "target", "bins", "strata"):
        assert getattr(found, name) == getattr(splits, name), name
    assert hashes == {name: [] for name in NAMES}


def test_classes_are_stored_as_in_earlier_versions(tmp_path: Path) -> None:
    """So an earlier vitmed reads them, and files without the new entries are classes."""
    content = stored(classes(tmp_path / "data"), tmp_path)
    assert set(content["data"]) == {"root", "splits", "made", "columns", "patients"}
    assert set(content["data"]["splits"]["train"]) == {"paths", "labels", "groups", "sha256"}


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (findings, lambda data: data["splits"]["train"]["targets"].__setitem__(0, [1.0, 2.0])),
        (findings, lambda data: data["splits"]["train"]["targets"].__setitem__(0, [1.0])),
        (findings, lambda data: data["splits"]["train"]["targets"].__setitem__(0, ["1", 0.0])),
        (findings, lambda data: data["splits"]["train"]["targets"].pop()),
        (findings, lambda data: data["splits"]["train"].pop("targets")),
        (findings, lambda data: data["splits"]["train"]["labels"].__setitem__(0, 3)),
        (findings, lambda data: data.__setitem__("bins", [])),
        (findings, lambda data: data.__setitem__("bins", "Mass")),
        (findings, lambda data: data["target"].__setitem__("kind", "anything")),
        (findings, lambda data: data["target"].__setitem__("more", 1)),
        (number, lambda data: data["splits"]["val"]["targets"].__setitem__(0, [float("nan")])),
        (number, lambda data: data["splits"]["val"]["targets"].__setitem__(0, [1.0, 2.0])),
        (number, lambda data: data["target"].__setitem__("spread", float("inf"))),
        (number, lambda data: data["target"].__setitem__("spread", 0.0)),
        (grades, lambda data: data.__setitem__("bins", ["low"])),
    ],
)
def test_other_values_are_refused(
    tmp_path: Path, make: Callable[[Path], Splits], change: Callable[[dict[str, Any]], None]
) -> None:
    content = stored(make(tmp_path / "data"), tmp_path)
    change(content["data"])
    with pytest.raises((ValueError, TypeError, KeyError)):
        read_membership(tmp_path / "best.pt", content)


@pytest.mark.parametrize(
    ("make", "labels"),
    [
        (findings, ["Mass", "Edema?", "no finding"]),
        (number, ["0.3", "1e-300"]),
        (grades, ["low", "middle", "high"]),
    ],
)
def test_splits_csv_names_the_labels(tmp_path: Path, make: Callable[[Path], Splits], labels: list[str]) -> None:
    splits = make(tmp_path)
    text = splits_csv(splits, {name: ["0"] * len(part) for name, part in splits.samples.items()})
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["class"] for row in rows if row["split"] == "val"] == labels
