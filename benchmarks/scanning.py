"""Finding and splitting 10^4, 10^5 and 10^6 images: entries a second and peak memory.

    python benchmarks/scanning.py [--sizes 10000 100000 1000000] [--rounds 3] [--folder FOLDER]

makes a tree of empty files, `{negative,positive}/P<patient>_<number>.png`, 50 a patient, in a temporary folder, with a
table of patients and one of labels beside it, and removes it. No image is decoded: this is what comes before. Every
contender is a process of its own, they take turns, and the median of the rounds is told (the files' names are in the
system's cache after the first). Seconds are the processor's own, so that other work on the machine counts little.
Memory is the peak of the process, and what it had before it began: its imports.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EACH = 50  # images a patient
CLASSES = ("negative", "positive")


def make_tree(root: Path, size: int) -> None:
    """`size` empty files, 50 a patient, patients of both classes; and two tables beside the tree."""
    for name in CLASSES:
        (root / "images" / name).mkdir(parents=True)
    with (root / "patients.csv").open("w") as patients, (root / "labels.csv").open("w") as labels:
        patients.write("path,patient\n")
        labels.write("path,label,patient,site\n")
        for i in range(size):
            patient, label = i // EACH, CLASSES[i % 3 == 0]
            path = f"{label}/P{patient:06}_{i:07}.png"
            (root / "images" / path).touch()
            patients.write(f"{path},P{patient:06}\n")
            labels.write(f"{path},{label},P{patient:06},{patient % 7}\n")


def walk(root: Path) -> int:
    """os.walk alone: the names of all files, kept nowhere."""
    import os

    return sum(len(files) for _, _, files in os.walk(root / "images"))


def imagefolder(root: Path) -> int:
    """The list that torchvision's ImageFolder begins with."""
    from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset

    folder = str(root / "images")
    return len(make_dataset(folder, find_classes(folder)[1], extensions=IMG_EXTENSIONS))


def scan(root: Path) -> int:
    """vitmed: the sorted relative paths of all images."""
    from vitmed.data.folders import image_names

    return len(image_names(root / "images"))


def split(root: Path, **fields: object) -> int:
    """vitmed: scan, patients, splits."""
    from vitmed.core.config import DataConfig
    from vitmed.data.splits import make_splits

    made = make_splits(DataConfig(root=str(root / "images"), **fields))  # type: ignore[arg-type]
    return sum(map(len, made.samples.values()))


CONTENDERS = {
    "os.walk alone": walk,
    "torchvision make_dataset": imagefolder,
    "vitmed, scan": scan,
    "vitmed, split by image (and a guess at patients)": split,
    "vitmed, --group-regex": lambda root: split(root, group_regex=r"(P\d+)_"),
    "vitmed, --groups names": lambda root: split(root, groups="names"),
    "vitmed, --groups TABLE": lambda root: split(root, groups=str(root / "patients.csv")),
    "vitmed, --groups TABLE --folds 5": lambda root: split(root, groups=str(root / "patients.csv"), folds=5),
    "vitmed, --labels TABLE": lambda root: split(root, labels=str(root / "labels.csv")),
}


def megabytes() -> float:
    """Peak resident memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def one(name: str, root: Path) -> None:
    """Run a contender in this process and print what it took."""
    if name.startswith("vitmed"):
        import sklearn.model_selection  # noqa: F401

        import vitmed.data.splits  # noqa: F401
    elif name.startswith("torchvision"):
        import torchvision.datasets  # noqa: F401
    before, clock = megabytes(), time.process_time()
    found = CONTENDERS[name](root)
    seconds = time.process_time() - clock
    print(json.dumps({"found": found, "seconds": seconds, "before": before, "peak": megabytes()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="Where the tree is made; default the system's temporary folder.")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one(options.one[0], Path(options.one[1]))
    print("| files | what | CPU seconds | entries/s | peak MB | of which before |\n|---|---|---|---|---|---|")
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            make_tree(Path(folder), size)
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
            for _ in range(options.rounds):
                for name in CONTENDERS:
                    command = [sys.executable, __file__, "--one", name, folder]
                    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                    runs[name].append(json.loads(answer))
                    assert runs[name][-1]["found"] == size, (name, answer)
            for name, of_name in runs.items():
                seconds, before, peak = (
                    statistics.median(run[key] for run in of_name) for key in ("seconds", "before", "peak")
                )
                row = (f"{size:,}", name, f"{seconds:.2f}", f"{size / seconds:,.0f}", f"{peak:,.0f}", f"{before:,.0f}")
                print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
