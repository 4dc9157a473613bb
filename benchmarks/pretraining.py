"""What pretraining on unlabelled images buys when labels are few: blood cells, by patient, against scratch.

    python benchmarks/pretraining.py DATA_FOLDER WORK_FOLDER [--seeds 0 1 2] [--shares 0.01 0.1 1] [--threads N]
    python benchmarks/pretraining.py DATA_FOLDER WORK_FOLDER --validation    # for choosing settings: no test is used

DATA_FOLDER holds malaria_gray50.tar.gz and its table of patients. One encoder is pretrained on the training patients
of the first of five folds; the 40 patients of the test are in no step. Then, for each share of the labels and each
seed, whole patients are drawn until they bring that share of the training images, and each way of `WAYS` learns from
them: the encoder fine-tuned, the same network from scratch, and vitmed's own choice from scratch (convolutional stem).
The last epoch is judged, so that no label of the validation patients chooses anything. A step that is finished in
WORK_FOLDER is not repeated, and an interrupted one goes on.
"""

import argparse
import csv
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trees import PATIENT, gray50_by_patient

NETWORK = "image_size=48 patch_size=8 channels=1 width=128 depth=6 heads=4"
PRETRAIN = ["--group-regex", PATIENT, "--set", "data.val_fraction=0.1", "-b", "64", "--lr", "1.5e-3", "--epochs", "40"]
PRETRAIN += ["--warmup-epochs", "2"]
TRAIN = ["--policy", "blood_smear", "-b", "64", "--set", "train.choose=last"]
EPOCHS = {0.01: 200, 0.1: 30, 1.0: 7}  # share of the labels -> passes over them
WAYS = {
    "pretrained": ["--lr", "1e-3", "--layer-decay", "0.75"],
    "scratch": ["--lr", "1e-3", "--stem", "patch"],
    "scratch, conv stem": ["--lr", "1e-3", "--stem", "conv"],
}
LEAST = 10  # images of each class that the drawn patients must bring
METRICS = ("accuracy", "auroc")


def vitmed(arguments: Sequence[str], log: Path, threads: int | None) -> dict:
    """Run a command; what its --json said, and what it cost."""
    environment = dict(os.environ) | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    with log.open("a") as stream:
        out = subprocess.run(
            [sys.executable, "-m", "vitmed", *arguments, "--json"],
            stdout=subprocess.PIPE, stderr=stream, env=environment, check=True, text=True,
        )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(out.stdout) | {"wall_seconds": time.time() - start, "cpu_seconds": cpu, "threads": threads}


def network() -> list[str]:
    """The flags of the network."""
    return [part for field in NETWORK.split() for part in ("--set", f"model.{field}")]


def run(name: str, command: Sequence[str], work: Path, threads: int | None) -> dict:
    """A command with its run folder and its JSON, once; one that was interrupted goes on."""
    done, folder = work / f"{name}.json", work / "runs" / name
    if done.is_file():
        return json.loads(done.read_text())
    if (folder / "last.pt").is_file():
        command = [command[0], "--resume", str(folder)]
    else:
        command = [*command, "--output", str(work / "runs"), "--name", name]
    result = vitmed(command, work / f"{name}.log", threads)
    done.write_text(json.dumps(result))
    return result


def draw_patients(rows: Sequence[dict], share: float, seed: int) -> list[dict]:
    """The images of whole patients, in a random order of patients, until they are a share of all, of both classes."""
    patients = sorted({row["group"] for row in rows})
    random.Random(seed).shuffle(patients)
    drawn: list[dict] = []
    for patient in patients:
        counts = [sum(row["class"] == name for row in drawn) for name in ("Parasitized", "Uninfected")]
        if len(drawn) >= share * len(rows) and min(counts) >= LEAST:
            break
        drawn += [row for row in rows if row["group"] == patient]
    return drawn


def label_tree(folder: Path, source: Path, share: float, seed: int, splits: Path, validation: bool) -> dict:
    """folder/{train,val,test}/<class>/ as links: the drawn patients, the validation patients, the test patients.

    Returns:
        how many patients and images of each class there are to learn from.
    """
    with splits.open() as stream:
        rows = list(csv.DictReader(stream))
    drawn = draw_patients([row for row in rows if row["split"] == "train"], share, seed)
    val = [row["path"] for row in rows if row["split"] == "val"]
    test = val if validation else [f.relative_to(source).as_posix() for f in sorted((source / "test").glob("*/*"))]
    for name, paths in (("train", [row["path"] for row in drawn]), ("val", val), ("test", test)):
        for path in paths:
            link = folder / name / Path(path).parent.name / Path(path).name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to((source / path).resolve())
    counts = {name: sum(row["class"] == name for row in drawn) for name in ("Parasitized", "Uninfected")}
    return {"patients": len({row["group"] for row in drawn}), **counts}


def table_row(share: float, way: str, results: Sequence[dict]) -> str:
    """Mean and spread over the seeds, and each."""
    cells = [f"{share:.0%}", way]
    for metric in METRICS:
        values = [result["test"]["overall"][metric]["value"] for result in results]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        each = ", ".join(f"{value:.4f}" for value in values)
        cells.append(f"{statistics.mean(values):.4f} +- {spread:.4f} ({each})")
    cells.append(", ".join("{patients}: {Parasitized} + {Uninfected}".format(**result["labels"]) for result in results))
    cells.append(f"{statistics.mean(r['cpu_seconds'] for r in results) / 60:.1f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--shares", type=float, nargs="+", choices=EPOCHS, default=list(EPOCHS))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--validation", action="store_true", help="judge on the validation patients, never the test")
    options = parser.parse_args()
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    source = gray50_by_patient(options.data, work)
    pretrained = run("pretrain", ["pretrain", str(source), *network(), *PRETRAIN], work, options.threads)
    encoder, splits = work / "runs" / "pretrain" / "encoder.pt", work / "runs" / "pretrain" / "splits.csv"
    print(f"pretraining: {json.dumps(pretrained['last'])}, {pretrained['cpu_seconds'] / 60:.0f} CPU minutes")
    # Where validation stands in for the test, its patients are in two splits, which training by patient refuses.
    patients = [] if options.validation else ["--group-regex", PATIENT]
    where = "validation" if options.validation else "test"
    heads = [*(f"{where} {metric}" for metric in METRICS), "patients: infected + other images", "CPU minutes a run"]
    print(f"| labels | start | {' | '.join(heads)} |")
    print("|---" * (2 + len(heads)) + "|")
    for share in options.shares:
        for way, flags in WAYS.items():
            start = ["--weights", str(encoder)] if way == "pretrained" else network()
            results = []
            for seed in options.seeds:
                of = f"{share:g}-seed{seed}" + ("-validation" if options.validation else "")
                tree = work / f"labels-{of}"
                labels = label_tree(tree, source, share, seed, splits, options.validation)
                name = f"{way.replace(', ', '-').replace(' ', '-')}-{of}"
                command = ["train", str(tree), *patients, *TRAIN, "--epochs", str(EPOCHS[share]), *start, *flags]
                results.append(run(name, [*command, "--seed", str(seed)], work, options.threads) | {"labels": labels})
            print(table_row(share, way, results), flush=True)


if __name__ == "__main__":
    main()
