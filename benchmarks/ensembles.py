"""One model, the mean of five folds, and copies of an image, on images that none of them saw.

    python benchmarks/ensembles.py DATA WORK --sets busi herlev_pap --minutes 2
    python benchmarks/ensembles.py DATA WORK --table

The parts are those of medical_sets.py: the folds divide train and val by patient or group, and the test is scored here.
Each fold trains for `--minutes`. "one" is the mean over the five folds; other rows are differences from it, in one
bootstrap by patient (or group) of all five and the row.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from medical_sets import SETS, folder_of, split_table

import vitmed
from vitmed.core.files import write_text
from vitmed.core.text_files import csv_text
from vitmed.data.samples import labelled_by
from vitmed.decisions.targets import TARGETS
from vitmed.inference.ensemble import load_ensemble
from vitmed.inference.predict import TorchNetwork
from vitmed.metrics.ensembles import averaged
from vitmed.metrics.estimates import finite
from vitmed.metrics.intervals import Units, jackknife_interval

METRICS = ("auroc", "balanced_accuracy", "log_loss")
FOLDS, MOST_TESTED = 5, 2000
QUICK = ("evaluate.report=false", "evaluate.map_images=0", "train.baseline=false")


def main() -> None:
    """Run the sets, or print the table of what ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--sets", nargs="+", default=["busi", "herlev_pap"], choices=list(SETS))
    parser.add_argument("--minutes", type=float, default=2, help="of a fold")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    results = options.work / "ensembles.jsonl"
    if not options.table:
        for name in options.sets:
            for row in folds(name, options):
                with results.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(row) + "\n")
    for line in results.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        numbers = [f"{metric} {_text(row[metric], row['row'])}" for metric in METRICS]
        print(f"{row['set']:16} {row['row']:24} {'  '.join(numbers)}")


def _text(one: dict[str, Any], row: str) -> str:
    sign = "" if row == "one" else "+"
    return f"{one['value']:{sign}.3f} ({one['low']:{sign}.3f} to {one['high']:{sign}.3f})"


def table_of(name: str, options: argparse.Namespace, parts: dict[str, str]) -> tuple[Path, Path]:
    """The folder of a set, and a table of its labels with the given splits; at most `MOST_TESTED` test images."""
    rows = [row for row in split_table(name, options.data, options.work) if row.part in parts]
    tested = [row for row in rows if row.part == "test"]
    rows = [row for row in rows if row.part != "test"] + tested[:: max(1, -(-len(tested) // MOST_TESTED))]
    file = options.work / "sets" / f"{name}_{'_'.join(sorted(set(parts.values())))}.csv"
    cells = [[row.path, row.label, row.group, parts[row.part]] for row in rows]
    write_text(file, csv_text([["path", "label", "patient", "split"], *cells]))
    return folder_of(name, options.data, options.work), file


def folds(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One model, the mean of the folds, and both with copies of every image, on the held-out test."""
    root, table = table_of(name, options, {"train": "train", "val": "train", "test": "test"})
    place = options.work / "folds" / name
    if not (place / "ensemble" / "ensemble.json").is_file():
        began = time.process_time()
        settings = {"resume": place} if place.is_dir() else {
            "labels": str(table), "folds": FOLDS, "time": f"{options.minutes * FOLDS * 60:.0f}s", "sets": QUICK,
            "output": place.parent, "name": name, "allow_leakage": True,
        }  # fmt: skip
        vitmed.cross_validate(None if "resume" in settings else root, **settings)  # type: ignore[arg-type]
        print(f"{name}: {time.process_time() - began:.0f} s of CPU")
    joined = load_ensemble(place / "ensemble" / "ensemble.json")
    given = joined.members[0].config.augment.views
    plain = [tested(one, joined.splits.samples["test"], root, given) for one in joined.members]
    rows = {"one": ([], plain), "mean of five folds": ([averaged(plain)], plain)}
    for views in ("mirror", "all") if SETS[name].turns else ("mirror",):
        if views != given:
            copies = [tested(one, joined.splits.samples["test"], root, views) for one in joined.members]
            rows[f"copies ({views})"] = (copies, plain)
            rows[f"five folds, {views}"] = ([averaged(copies)], plain)
    return [
        {"set": name, "views of the plan": given, "minutes": options.minutes, "row": row, **differences(first, second)}
        for row, (first, second) in rows.items()
    ]


def tested(saved: Any, samples: Sequence[Any], root: Path, views: str) -> Any:
    """What a checkpoint predicts for the test images with these copies of each; calibrated by its own policy."""
    augment = saved.config.augment.model_copy(update={"views": views})
    saved = replace(saved, config=saved.config.model_copy(update={"augment": augment}))
    network = TorchNetwork(saved, None, torch.device("cpu"))
    found = network.outputs(lambda i: saved.preprocessing.read(root / samples[i].path), len(samples), lambda a, b: None)
    positive = saved.config.data.positive
    return saved.policy.apply(labelled_by(saved.splits.target, saved.classes, samples, found.logits, positive))


def differences(first: Sequence[Any], second: Sequence[Any]) -> dict[str, dict[str, float | None]]:
    """Of each metric the mean over `first` less that over `second`, or that of `second` alone; with intervals."""
    kind, units = TARGETS["classes"].numbers, Units(second[0].units)

    def mean(parts: Sequence[Any], metric: str) -> np.ndarray:
        """The mean of all images, then without each patient."""
        each = [np.append(kind(part).point[metric], kind(part).without(units)[metric]) for part in parts]
        return np.mean(each, axis=0)

    found: dict[str, dict[str, float | None]] = {}
    for metric in METRICS:
        value, *left = mean(second, metric) if not first else mean(first, metric) - mean(second, metric)
        low, high = map(finite, jackknife_interval(float(value), np.array(left), skewed=False))
        found[metric] = {"value": finite(value), "low": low, "high": high}
    return found


if __name__ == "__main__":
    main()
