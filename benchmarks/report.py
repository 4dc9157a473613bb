"""How long a report takes and how large it is: every analysis and figure of predictions like those of NIH malaria.

27,558 images of 200 patients, two classes, drawn numbers; with pictures of noise (the worst that a compressor meets)
and without. Each case runs in a process of its own, as `vitmed evaluate` does.

    python benchmarks/report.py
    python benchmarks/report.py --images 5000 --resamples 2000 --json report.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

SIDE = 320  # px, the largest picture that an evaluation hands to a figure


def predictions(images: int, classes: int, patients: int) -> Any:
    """Drawn logits of about AUROC 0.98, patients of unequal size and of their own difficulty."""
    import numpy as np

    from vitmed.metrics.predictions import Predictions

    rng = np.random.default_rng(0)
    weight = rng.lognormal(0, 0.8, patients)
    patient = rng.choice(patients, size=images, p=weight / weight.sum())
    labels = rng.integers(classes, size=images)
    logits = rng.normal(0, 1, (images, classes)) + 0.6 * rng.normal(0, 1, (patients, classes))[patient]
    logits[np.arange(images), labels] += 3.5
    return Predictions(
        classes=("infected", "uninfected") if classes == 2 else tuple(f"class {i:04d}" for i in range(classes)),
        paths=tuple(f"cells/{i:06d}.png" for i in range(images)),
        groups=tuple(f"P{i:04d}" for i in patient),
        labels=labels,
        logits=logits.astype(np.float32),
    )


def noise(path: str) -> Any:
    """A picture that no compressor makes small."""
    import numpy as np

    return np.random.default_rng(abs(hash(path))).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def measure(images: int, classes: int, patients: int, pictures: bool, resamples: int) -> dict[str, Any]:
    """One report, written into a folder that goes again."""
    from vitmed.core.config import EvaluateConfig
    from vitmed.report.analyses import Extra
    from vitmed.report.results import Origin
    from vitmed.report.write import Report

    made = predictions(images, classes, patients)
    with tempfile.TemporaryDirectory() as folder:
        started, cpu = time.perf_counter(), time.process_time()
        extra = Extra(read=noise if pictures else None)
        Report.of(made, Origin(title="benchmark"), EvaluateConfig(resamples=resamples), extra).write(folder)
        return {
            "images": images,
            "classes": classes,
            "pictures": pictures,
            "seconds": round(time.perf_counter() - started, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "html_mb": round(Path(folder, "report.html").stat().st_size / 1e6, 2),
            "folder_mb": round(sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6, 1),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


def main() -> None:
    """Measure every case and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=27_558)
    parser.add_argument("--patients", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=2000)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    asked = parser.parse_args()
    cases = [(asked.images, 2, False), (asked.images, 2, True), (asked.images, 9, True), (2000, 100, False)]
    rows = []
    context = multiprocessing.get_context("spawn")
    print("| images | classes | pictures | s | CPU s | report.html, MB | folder, MB | peak memory, MB |")
    print("|---|---|---|---|---|---|---|---|")
    for images, classes, pictures in cases:
        with context.Pool(1) as pool:
            row = pool.apply(measure, (images, classes, asked.patients, pictures, asked.resamples))
        rows.append(row)
        told = [f"{images:,}", classes, "yes" if pictures else "no", row["seconds"], row["cpu_seconds"]]
        print("| " + " | ".join(map(str, [*told, row["html_mb"], row["folder_mb"], row["peak_mb"]])) + " |", flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
