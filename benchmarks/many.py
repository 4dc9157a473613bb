"""Many images: time and memory of each step from a folder to a report, at 10^3, 10^4, 10^5 and 10^6 tiny images.

    python benchmarks/many.py [--sizes 1000 10000 100000] [--folder FOLDER] [--only scan report] [--limit 600]

writes PNG files of 16 px, `{negative,positive}/P<patient>_<number>.png`, 50 a patient, into a temporary folder, and
removes it. Each step is a process of its own. The network is tiny, so that predict shows what vitmed adds to the
network. Memory is the peak of the process; at the smallest size it is that of the imports.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from scanning import CLASSES, EACH, megabytes


def make_tree(root: Path, size: int) -> None:
    """`size` PNG files of 256 different pictures."""
    import numpy as np
    from PIL import Image

    pictures = []
    for pixels in np.random.default_rng(0).integers(0, 256, (256, 16, 16, 3), dtype=np.uint8):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        pictures.append(stream.getvalue())
    for name in CLASSES:
        (root / "images" / name).mkdir(parents=True)
    for i in range(size):
        file = f"{root}/images/{CLASSES[i % 3 == 0]}/P{i // EACH:06}_{i:07}.png"
        with open(file, "wb") as stream_of_file:  # noqa: PTH123
            stream_of_file.write(pictures[i % 256] + b"%08d" % i)  # no two files alike


def make_checkpoint(root: Path) -> None:
    """A run of one epoch on a hundred images."""
    import vitmed

    make_tree(root / "few", 200)
    sets = ("model.width=16", "model.depth=1", "model.heads=2", "train.choose=best")
    vitmed.train(
        root / "few" / "images", output=root / "runs", name="tiny", sets=sets, image_size=16, patch_size=8, epochs=1,
        batch_size=32, policy="none", workers=0, device="cpu", precision="fp32",
    )  # fmt: skip


def listed(root: Path) -> None:
    from vitmed.core.config import DataConfig
    from vitmed.data.splits import make_splits

    make_splits(DataConfig(root=str(root / "images"), group_regex=r"(P\d+)_"))


def scan(root: Path) -> None:
    from vitmed.data.folders import image_names
    from vitmed.data.image_cache import ImageCache
    from vitmed.data.image_cache import scan as scan_files

    scan_files(root / "images", image_names(root / "images"), ImageCache())


def sampling(root: Path) -> None:
    import numpy as np

    from vitmed.data.loading import EpochBatches

    size = int((root / "size").read_text())
    for _ in EpochBatches(np.arange(size) % 3 // 2, 64, seed=0, balanced=False):
        pass


def predict(root: Path) -> None:
    import vitmed

    vitmed.predict_shard(root / "images", output=root / "parts", checkpoint=root.parent / "runs" / "tiny", device="cpu")


def merge(root: Path) -> None:
    import vitmed

    vitmed.merge(root / "parts")


def make_predictions(root: Path, size: int) -> None:
    import numpy as np

    from vitmed.metrics.predictions import Predictions

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, size)
    logits = (rng.normal(size=(size, 2)) + 2 * np.eye(2)[labels]).astype(np.float32)
    paths = tuple(f"{i:07}.png" for i in range(size))
    groups = tuple(f"P{i // EACH}" for i in range(size))
    text = Predictions(CLASSES, paths, groups, labels, logits).to_csv()
    (root / "table").mkdir()
    (root / "table" / "predictions.csv").write_text(text)


def report(root: Path) -> None:
    import vitmed

    vitmed.evaluate(root / "table" / "predictions.csv", output=root / "report")


STEPS: dict[str, Callable[[Path], None]] = {
    "split": listed, "scan": scan, "sampling": sampling, "predict": predict, "merge": merge, "report": report,
}  # fmt: skip


def one(name: str, root: Path) -> None:
    """Run a step in this process and print what it took."""
    begin, clock = time.perf_counter(), time.process_time()
    STEPS[name](root)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - clock
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": megabytes()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--folder", help="Where the files are made; default the system's temporary folder.")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--limit", type=float, default=600, help="Seconds after which a step is stopped.")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one(options.one[0], Path(options.one[1]))
    print("| images | step | seconds | CPU seconds | images/CPU second | peak MB |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        top = Path(folder)
        environment = os.environ | {"VITMED_CACHE": str(top / "cache")}
        if "predict" in options.only:
            make_checkpoint(top)
        for size in options.sizes:
            root = top / str(size)
            root.mkdir()
            (root / "size").write_text(str(size))
            if {"split", "scan", "predict"} & set(options.only):
                make_tree(root, size)
            if "report" in options.only:
                make_predictions(root, size)
            for name in options.only:
                command = [sys.executable, __file__, "--one", name, str(root)]
                try:
                    done = subprocess.run(
                        command,
                        stdout=subprocess.PIPE,
                        stderr=(top / "log").open("w"),
                        text=True,
                        timeout=options.limit,
                        check=True,
                        env=environment,
                    )
                except subprocess.CalledProcessError:
                    sys.exit((top / "log").read_text())
                except subprocess.TimeoutExpired:
                    print(f"| {size:,} | {name} | more than {options.limit:.0f} | | | |", flush=True)
                    continue
                took = json.loads(done.stdout.splitlines()[-1])
                rate = f"{size / took['cpu']:,.0f}"
                cells = (
                    f"{size:,}",
                    name,
                    f"{took['seconds']:.1f}",
                    f"{took['cpu']:.1f}",
                    rate,
                    f"{took['peak']:,.0f}",
                )
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
