"""Which image is in which split, as a checkpoint stores it."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from vitmed.core.base_models import CLASSES, UNKNOWN, Target
from vitmed.core.run_folder import find_path, store_path
from vitmed.data.samples import Sample, Splits


def membership_of(splits: Splits, hashes: dict[str, list[str]], path: Path) -> dict[str, Any]:
    """Plain types that describe the images of a checkpoint at `path`; the root is relative to its folder.

    Args:
        hashes: split -> sha256 of its files, in the order of the samples; a split may be missing.
    """
    splits_of = {
        name: {
            "paths": [sample.path for sample in samples],
            "labels": [sample.label for sample in samples],
            "groups": [sample.group for sample in samples],
            "sha256": hashes.get(name, []),
            **({"columns": [list(sample.columns) for sample in samples]} if splits.columns else {}),
            **({"targets": [list(sample.targets) for sample in samples]} if splits.bins else {}),
        }
        for name, samples in splits.samples.items()
    }
    return {
        "root": store_path(splits.root, path.parent),
        "splits": splits_of,
        "made": splits.made,
        "columns": list(splits.columns),
        "patients": splits.patients,
        **({"target": splits.target.model_dump(), "bins": list(splits.bins)} if splits.target != CLASSES else {}),
    }


def read_membership(path: Path, content: dict[str, Any]) -> tuple[Splits, dict[str, list[str]]]:
    """The splits and hashes that `membership_of` stored. Raises KeyError, TypeError or ValueError for other content."""
    data, samples, hashes = content["data"], {}, {}
    classes, bins = tuple(content["classes"]), tuple(data.get("bins", ()))
    target = Target.model_validate(data.get("target", {}))
    expect("classes", content["classes"], str)
    expect("data.bins", data.get("bins", ()), str)
    if bool(bins) != (target.kind in ("findings", "number")):
        raise ValueError(f"data.bins: {len(bins)} of {target.kind}")
    strata = bins or classes
    expect("data.made", data["made"].values(), str)
    expect("data.seen", data.get("seen", ()), str)
    for name, part in data["splits"].items():
        for column, kind in (("paths", str), ("labels", int), ("groups", str | None), ("sha256", str)):
            expect(f"data.splits.{name}.{column}", part[column], kind)
        if part["labels"] and not 0 <= min(part["labels"]) <= max(part["labels"]) < len(strata):
            raise ValueError(f"data.splits.{name}.labels: expected classes from 0 to {len(strata) - 1}")
        if len(part["sha256"]) not in (0, len(part["paths"])):
            raise ValueError(f"data.splits.{name}: {len(part['sha256'])} digests of {len(part['paths'])} images")
        further = map(tuple, part["columns"]) if "columns" in part else ((),) * len(part["paths"])
        targets = _targets(name, part, target, len(classes)) if bins else [()] * len(part["paths"])
        rows = zip(part["paths"], part["labels"], part["groups"], further, targets, strict=True)
        samples[name] = tuple(Sample(*row) for row in rows)
        hashes[name] = list(part["sha256"])
    splits = Splits(
        find_path(data["root"], path.parent),
        classes,
        samples,
        dict(data["made"]),
        columns=tuple(data["columns"]),
        patients=data["patients"],
        target=target,
        bins=bins,
    )
    return splits, hashes


def _targets(name: str, part: dict[str, Any], target: Target, size: int) -> list[tuple[float, ...]]:
    """The targets of a split: of findings 1, 0 or `UNKNOWN` for each, of a number one that is finite."""
    found = [tuple(row) for row in part["targets"]]
    for row in found:
        expect(f"data.splits.{name}.targets", row, float)
        good = set(row) <= {0, 1, UNKNOWN} if target.kind == "findings" else all(map(math.isfinite, row))
        if len(row) != size or not good:
            raise ValueError(f"data.splits.{name}.targets: {row} of {size} {target.kind}")
    return found


def expect(what: str, values: Collection[Any], kind: Any) -> None:
    """Raise ValueError for a value of another type."""
    if isinstance(values, str) or not all(isinstance(value, kind) for value in values):
        raise ValueError(f"{what}: expected {getattr(kind, '__name__', kind)}")
