"""What a rule for the temperature does on images unlike those of validation: the table of docs/decisions.md.

    python benchmarks/temperatures.py WORK_FOLDER busi=runs/busi knee_oa_kl=runs/knees/folds/fold-1 ... [--data DATA]

WORK_FOLDER and DATA are those of `finetune.py`, on whose sets and parts (`medical_sets.py`) the runs were trained.
Each run predicts the images of `shift` and at most 600 of `test` in fp32; the table gives the mean log loss of the
runs with their logits divided by 1, by the temperature of the lowest log loss on validation (a grid of 0.2 to 5), and
by that of `vitmed train --calibration temperature`, which pays for being below 1.
"""

import argparse
import os
from pathlib import Path

import numpy as np
from medical_sets import folder_of, split_table
from scipy.special import log_softmax

import vitmed
from vitmed.decisions.calibration import fit_calibration
from vitmed.metrics.intervals import Units
from vitmed.metrics.predictions import Predictions

MOST = 600  # images of the test
GRID = np.exp(np.linspace(np.log(0.2), np.log(5), 321))


def losses(logits: np.ndarray, labels: np.ndarray, temperature: float) -> np.ndarray:
    """(S,) float64 log loss of each image, of logits (S, K) and labels (S,)."""
    return -log_softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("runs", nargs="+", metavar="SET=RUN")
    parser.add_argument("--data", type=Path, default=os.environ.get("VITMED_DATA"), help="default: VITMED_DATA")
    arguments = parser.parse_args()
    means: dict[str, list[list[float]]] = {}
    for name, _, run in (text.partition("=") for text in arguments.runs):
        table, folder = (
            split_table(name, arguments.data, arguments.work),
            folder_of(name, arguments.data, arguments.work),
        )
        val = Predictions.from_csv(Path(run) / "val" / "predictions.csv")
        assert val.labels is not None
        scaled = fit_calibration(val.logits, val.labels, "temperature", Units(val.units))
        parts = {"val": (val.logits.astype(float), val.labels)}
        for part in ("shift", "test"):
            rows = [row for row in table if row.part == part]
            rows = rows[:: len(rows) // MOST + 1] if part == "test" else rows
            paths = [folder / row.path for row in rows]
            logits = vitmed.predict(paths, checkpoint=run, precision="fp32").logits
            parts[part] = (logits.astype(float), np.array([val.classes.index(row.label) for row in rows]))
        best = float(GRID[np.argmin([losses(*parts["val"], t).mean() for t in GRID])])
        rules = {"none": 1.0, "validation": best, "vitmed": 1 / scaled.scale[0]}
        for rule, temperature in rules.items():
            found = [float(losses(*of, temperature).mean()) for of in parts.values()]
            means.setdefault(rule, []).append(found)
            print(f"{run} {rule:10} T {temperature:.2f}", *map("{} {:.3f}".format, parts, found), flush=True)
    for rule, each in means.items():
        print(f"mean of {len(each)}: {rule:10}", *map("{} {:.3f}".format, parts, np.mean(each, axis=0)))


if __name__ == "__main__":
    main()
