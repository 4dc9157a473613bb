"""What pretraining without labels buys from scratch: few labels, many images, at equal steps and at equal time.

    python benchmarks/pretraining.py DATA_FOLDER WORK_FOLDER [--sets pbc_blood ...] [--labels 100 500 0]
        [--seeds 0 1] [--ways scratch longer masked]

DATA_FOLDER holds the development sets, unpacked. Validation images of vitmed's split are judged, up to JUDGED of
them; never the test. The training images, up to MOST, are there to pretrain on; some of them, drawn by seed and by
class, have labels (0: all of them). The network is that of the plan, at 64 px and half as wide, so that a run takes a
minute or two:

    scratch    from random weights, STEPS steps
    masked     with the plain stem, a masked autoencoder for PRETRAIN_STEPS steps of 64 images, then as scratch
    longer     from random weights, for the processor time of `masked` together with its pretraining

The last epoch is judged. Every finished run is a line of WORK_FOLDER/results.jsonl and is not repeated; the table is of
all lines there. Times are seconds of one processor core in the process.
"""

import argparse
import json
import math
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from trees import PATIENT

from vitmed import pretrain, train
from vitmed.core.load_config import load_config
from vitmed.data.splits import make_splits

SETS = {  # the settings of each
    "pbc_blood": {}, "busi": {}, "herlev_pap": {}, "knee_oa_kl": {}, "malaria_gray50": {"group_regex": PATIENT},
}  # fmt: skip
STEPS, PRETRAIN_STEPS, BATCH = 600, 400, 32
MOST, JUDGED = 4000, 500  # images to learn from, and to be judged on
EACH_EPOCH = 1000  # labelled images, if need be the same ones several times: validation would take longer than training
NETWORK = ("model.width=64", "model.depth=4", "model.heads=4")
COMMON = {"image_size": 64, "patch_size": 16, "workers": 0, "device": "cpu"}
METRICS = ("auroc", "balanced_accuracy", "log_loss")


def link(folder: Path, source: Path, paths: list[str], labels: list[str], copies: int = 1) -> None:
    for path, label in zip(paths, labels, strict=True):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for copy in range(copies):
            place = folder / label / f"{copy}-{path.replace('/', '-')}"
            if not place.is_symlink():
                place.symlink_to((source / path).resolve())


def trees(data: Path, work: Path, name: str, labels: int, seed: int) -> tuple[Path, Path]:
    """The folders to pretrain on and to train on: links to images; what is called test there is validation."""
    source = data / name
    config = load_config(None, {"data.root": str(source), **{f"data.{k}": v for k, v in SETS[name].items()}})
    splits, rng = make_splits(config.data), random.Random(0)
    parts = {part: list(splits.samples[part]) for part in ("train", "val")}
    parts = {
        part: rng.sample(parts[part], min(most, len(parts[part]))) for part, most in (("train", MOST), ("val", JUDGED))
    }
    class_of = [splits.classes[sample.label] for sample in parts["train"]]
    every = [sample.path for sample in parts["train"]]
    draw, chosen = random.Random(seed), []
    for kind in splits.classes:
        own = [i for i, one in enumerate(class_of) if one == kind]
        count = len(own) if not labels else max(2, round(labels * len(own) / len(every)))
        chosen += draw.sample(own, min(count, len(own)))
    val = [sample.path for sample in parts["val"]], [splits.classes[sample.label] for sample in parts["val"]]
    unlabelled, tree = work / f"{name}-images", work / f"{name}-{labels}-{seed}"
    link(unlabelled / "train", source, every, class_of)
    link(tree / "train", source, [every[i] for i in chosen], [class_of[i] for i in chosen],
         max(1, EACH_EPOCH // len(chosen)))  # fmt: skip
    for part in ("val", "test"):
        link(unlabelled / part, source, *val)
        link(tree / part, source, *val)
    return unlabelled, tree


def passes(tree: Path, steps: float, batch: int) -> int:
    """Epochs of so many steps."""
    return max(1, round(steps / max(1, len(list((tree / "train").rglob("*-*.*"))) // batch)))


def one_run(data: Path, work: Path, name: str, labels: int, seed: int, way: str, known: dict) -> dict:
    unlabelled, tree = trees(data, work, name, labels, seed)
    before = 0.0
    flags: dict[str, Any] = {**COMMON, "seed": seed}
    output = work / "runs"
    if way == "masked":
        folder, file = output / f"{name}-{way}-{seed}", work / f"{name}-{way}-{seed}.seconds"
        if not file.is_file():
            start = time.process_time()
            epochs = passes(unlabelled, PRETRAIN_STEPS, 64)
            pretrain(unlabelled, output=output, name=folder.name, epochs=epochs, batch_size=64, lr=1e-3,
                     warmup_epochs=epochs / 20, sets=NETWORK, **flags)  # fmt: skip
            file.write_text(str(time.process_time() - start))
        before, flags["weights"] = float(file.read_text()), folder / "encoder.pt"
        network: tuple[str, ...] = ()
    else:
        flags["stem"], network = "residual", NETWORK
    share = 1.0
    if way == "longer":
        paid, alone = (known[(name, labels, seed, kind)]["seconds"] for kind in ("masked", "scratch"))
        share = paid / alone
    epochs = passes(tree, STEPS * share, BATCH)
    sets = (*network, "train.choose=last", "evaluate.map_images=0")
    start = time.process_time()
    result = train(tree, output=output, name=f"{way}-{name}-{labels}-{seed}", batch_size=BATCH, epochs=epochs, lr=1e-3,
                   warmup_epochs=epochs / 10, layer_decay=1.0, probe_first=False, drop_path=0.0, pool="mean",
                   baseline=False, report=False, resamples=0, sets=sets, **flags)  # fmt: skip
    seconds = before + time.process_time() - start
    assert result.test is not None
    overall = result.test.metrics["overall"]
    values = {metric: overall[metric]["value"] for metric in METRICS}
    return {"set": name, "labels": labels, "seed": seed, "way": way, "seconds": seconds, "epochs": epochs, **values}


def table(lines: list[dict]) -> str:
    """Mean over the seeds, and each."""
    rows = defaultdict(list)
    for line in lines:
        rows[line["set"], line["labels"], line["way"]].append(line)
    text = [f"| set | labels | start | {' | '.join(METRICS)} | CPU s |", "|---" * (4 + len(METRICS)) + "|"]
    for (name, labels, way), found in sorted(rows.items()):
        cells = [name, str(labels or "all"), way]
        for metric in METRICS:
            values = [line[metric] for line in sorted(found, key=lambda line: line["seed"])]
            each = f" ({', '.join(f'{value:.3f}' for value in values)})" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{each}")
        text.append(f"| {' | '.join(cells)} | {math.ceil(statistics.mean(line['seconds'] for line in found))} |")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 500, 0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--ways", nargs="+", default=["scratch", "masked", "longer"])
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    file = options.work / "results.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    for seed in options.seeds:
        for labels in options.labels:
            for name in options.sets:
                for way in options.ways:
                    known = {(one["set"], one["labels"], one["seed"], one["way"]): one for one in lines}
                    if (name, labels, seed, way) in known:
                        continue
                    lines.append(one_run(options.data, options.work, name, labels, seed, way, known))
                    with file.open("a") as stream:
                        stream.write(json.dumps(lines[-1]) + "\n")
                    print(json.dumps(lines[-1]), flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
