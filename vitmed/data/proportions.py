"""How the labels are divided over the splits, in words."""

from __future__ import annotations

import numpy as np

from vitmed.core.base_models import NO_FINDING
from vitmed.core.targets import UNKNOWN
from vitmed.core.text import counted, listed
from vitmed.data.samples import Splits

LISTED = 20  # findings with a line of their own


def describe_split(splits: Splits, split: str) -> str:
    """`300 + 120` images of each class or grade; of findings, how many images have none; of numbers, mean and range."""
    targets, unit = splits.targets(split), f" {splits.target.unit}" if splits.target.unit else ""
    if splits.target.kind == "findings":
        return f"{int((~(targets == 1).any(axis=1)).sum()):,} with {NO_FINDING}"
    if splits.target.kind == "number":
        return f"mean {targets.mean():.4g}, {targets.min():g} to {targets.max():g}{unit}"
    return listed([f"{n:,}" for n in splits.counts(split)], mark=" + ")


def proportion_lines(splits: Splits) -> list[str]:
    """What the labels were recognised as; and of findings, a line for each: positives and their share in each split."""
    lines = [f"labels: {splits.recognised}"] if splits.recognised else []
    if splits.target.kind != "findings":
        return lines
    cells = {}
    for name in splits.samples:
        targets = splits.targets(name)
        known, positives = (targets != UNKNOWN).sum(axis=0), (targets == 1).sum(axis=0)
        share = positives / np.maximum(known, 1)
        cells[name] = [
            f"{count:>6,} {part:>6.1%}" if number else f"{'not known':>13}"
            for count, part, number in zip(positives.tolist(), share.tolist(), known.tolist(), strict=True)
        ]
    shown = splits.classes[:LISTED]
    width = max(map(len, ("positives", *shown)))
    lines.append(f"{'positives':{width}}" + "".join(f"  {name:>13}" for name in cells))
    lines += [f"{name:{width}}" + "".join(f"  {of[k]}" for of in cells.values()) for k, name in enumerate(shown)]
    if len(splits.classes) > LISTED:
        lines.append(f"and {counted(len(splits.classes) - LISTED, 'more finding')}")
    return lines
