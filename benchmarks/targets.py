"""Findings and grades of real sets: `vitmed train` beside ResNet-18 and beside the naive treatments.

    python benchmarks/targets.py WORK_FOLDER [--data DATA_FOLDER] [--sets nih_cxr_multilabel knee_oa_kl]
        [--rows plan balance ...] [--folds 0 1 2] [--share 0.5] [--threads N] [--tell]

DATA_FOLDER (default: VITMED_DATA) holds the development sets, packed or unpacked. The official train and val parts are
divided into three folds by patient; the official test part is never read. Each fold is judged once, by a network that
learned from the other two; a fifth of these is its validation part. `--share` shortens all trainings to a share of
the plan's passes.

    plan         `vitmed train --target findings` or `--target grades`, without a further flag
    resnet18     torchvision's, from random weights, 64 px: the same loss, batches and augmentation, for the plan's
                 seconds of CPU

of findings (NIH chest X-rays: 14, of which an image has several or none):

    balance      --balance loss
    classes      the first finding as the class of an image: one of the four commonest, another, or none
    separate     a run of two classes for each of the four commonest findings, each as long as the plan's

of grades (knees, KL 0 to 4):

    number       --target number: the grade as a number

A finished run is a line of WORK_FOLDER/results.jsonl and is not repeated.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from medical import clock, in_memory, of_network, resnet18, train_for
from medical_sets import folder_of
from medical_table import add_line
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    cohen_kappa_score,
    mean_absolute_error,
    roc_auc_score,
)
from sklearn.model_selection import StratifiedGroupKFold
from torch import nn

from vitmed.core.downloads import unconnected
from vitmed.core.files import read_json_lines, write_text
from vitmed.core.load_config import load_config, with_values
from vitmed.core.run_folder import RunFolder
from vitmed.core.text_files import csv_text
from vitmed.data.loading import Images, read_splits
from vitmed.data.samples import labelled_by
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.models.hardware import seeded
from vitmed.training.finetune import Finetune
from vitmed.training.plan.make_plan import Plan, make_plan
from vitmed.training.run import Run, Session

COMMONEST = ("Effusion", "Infiltration", "Atelectasis", "Cardiomegaly")
NONE = "No Finding"
GRADES = ("KL0", "KL1", "KL2", "KL3", "KL4")
FOLDS = 3
Cells = dict[str, str]  # of a row of labels.csv


class Key(NamedTuple):
    """Which run."""

    set: str
    row: str
    fold: int


class Study(NamedTuple):
    """A set: its official split, the rows that are compared, and how the predictions of a row are scored.

    Attributes:
        part: column of the official split.
        stratum: column that the folds keep in proportion.
        rows: name -> labels of an image as columns of a table, settings of `vitmed train`.
        scores: metric -> value, from the table of the fold and the predictions of a row.
    """

    part: str
    stratum: str
    rows: Mapping[str, tuple[Callable[[Cells], Cells], tuple[str, ...]]]
    scores: Callable[[Sequence[Cells], list[Predictions]], dict[str, float]]


# ---- a run ----


def run(options: argparse.Namespace, key: Key) -> None:
    """Train a row on a fold and score it; one line of results."""
    labels, sets = STUDIES[key.set].rows[key.row]
    held_out = [cells for cells in table(options, key) if cells["split"] == "test"]
    wanted: Sequence[Callable[[Cells], Cells]] = [labels]
    if key.row == "separate":
        wanted = [lambda cells, name=name: {"label": ("not ", "")[int(cells[name])] + name} for name in COMMONEST]  # type: ignore[misc]
    seconds, found = 0.0, []
    for number, columns in enumerate(wanted):
        ready = prepared(options, key, columns, sets)
        network, how, cost = (by_time if key.row == "resnet18" else by_plan)(options, key, ready, number)
        images = in_memory(Images(ready.splits.root, ready.splits.samples["test"], how))
        logits = of_network(network, how, {}, "one").logits(images)
        predictions = labelled_by(ready.splits.target, ready.splits.classes, images.samples, logits)
        by_path = dict(zip(predictions.paths, range(len(predictions)), strict=True))
        found.append(predictions.take(np.array([by_path[cells["path"]] for cells in held_out])))
        seconds += cost
    scores = STUDIES[key.set].scores(held_out, found)
    add_line(options.work, {**key._asdict(), "seconds": seconds, "images": len(held_out), "scores": scores})
    print(key, f"{seconds:.0f} s", {name: round(value, 3) for name, value in scores.items()}, flush=True)


def by_plan(options: argparse.Namespace, key: Key, ready: Plan, number: int) -> tuple[nn.Module, Preprocessing, float]:
    """What `vitmed train` trains, without its reports; seconds of CPU."""
    session = Session.of(ready.config)
    task = Finetune.new(ready.config, ready.splits, session)
    read = read_splits(ready.splits, Preprocessing.of(ready.config), ready.config.data)
    place = options.work / "runs" / f"{key.set}_{key.row}{number or ''}_{key.fold}"
    shutil.rmtree(place, ignore_errors=True)  # of a run that was cut off
    place.mkdir(parents=True)
    start = clock()
    run = Run.new(task, ready.config, read, RunFolder(place), session)
    run.train()
    seconds = clock() - start
    saved = load_checkpoint(run.folder.best)
    run.folder.last.unlink()
    return saved.model(), saved.preprocessing, seconds


def by_time(options: argparse.Namespace, key: Key, ready: Plan, number: int) -> tuple[nn.Module, Preprocessing, float]:
    """ResNet-18 with the loss and the seconds of the plan."""
    seconds = finished(options.work)[key._replace(row="plan")]["seconds"]
    with seeded(key.fold):
        network, side = resnet18(ready, 64)
    how = dataclasses.replace(Preprocessing.of(ready.config), image_size=side)
    trained, cost = train_for(seconds, ready, network, how, key.fold)
    return trained.eval(), how, cost["seconds"]


def prepared(options: argparse.Namespace, key: Key, labels: Callable[[Cells], Cells], sets: Sequence[str]) -> Plan:
    """The planned run of a fold, whose labels are these columns."""
    rows = [
        {"path": cells["path"], "patient": cells["patient"], "split": cells["split"], **labels(cells)}
        for cells in table(options, key)
    ]
    name = f"{key.set}_{key.row}_{key.fold}"
    file = options.work / "tables" / f"{name}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, csv_text([[*rows[0]], *([*row.values()] for row in rows)]))
    given = {"data.root": str(folder_of(key.set, options.data, options.work)), "data.labels": str(file)}
    alike = (f"train.threads={torch.get_num_threads()}", "train.workers=0", "train.device=cpu")
    config = load_config(None, {**given, "train.seed": key.fold}, (*alike, *sets))
    with unconnected(True):
        ready = make_plan(config, True)
    train, share = ready.config.train, options.share
    shorter = {"train.epochs": max(1, round(share * train.epochs)), "train.warmup_epochs": share * train.warmup_epochs}
    return dataclasses.replace(ready, config=with_values(ready.config, shorter))


def table(options: argparse.Namespace, key: Key) -> list[Cells]:
    """labels.csv without the official test part; `split` says what an image is in this fold."""
    study, folder = STUDIES[key.set], folder_of(key.set, options.data, options.work)
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as stream:
        rows = [cells for cells in csv.DictReader(stream) if cells[study.part] != "test"]
    strata, patients = (np.array([cells[name] for cells in rows]) for name in (study.stratum, "patient"))
    part = np.full(len(rows), "train")
    rest, held_out = list(StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0).split(rows, strata, patients))[
        key.fold
    ]
    fifth = next(StratifiedGroupKFold(5, shuffle=True, random_state=1).split(rest, strata[rest], patients[rest]))[1]
    part[held_out], part[rest[fifth]] = "test", "val"
    return [{**cells, "split": str(name)} for cells, name in zip(rows, part, strict=True)]


# ---- scores ----


def finding_scores(held_out: Sequence[Cells], found: list[Predictions]) -> dict[str, float]:
    """Means of AUROC and average precision over the findings that the row predicts, and over the commonest."""
    scores: dict[str, np.ndarray] = {}
    for predictions in found:
        chances = np.asarray(predictions.probabilities)  # type: ignore[union-attr]
        scores |= {name: chances[:, k] for k, name in enumerate(predictions.classes) if name in held_out[0]}
    true = {name: np.array([cells[name] == "1" for cells in held_out]) for name in scores}
    areas = {name: roc_auc_score(true[name], scores[name]) for name in scores if true[name].sum() >= 5}
    precise = {name: average_precision_score(true[name], scores[name]) for name in areas}
    means = {"auroc": areas, "ap": precise}
    found_means = {f"{metric}_common": statistics.mean(of[name] for name in COMMONEST) for metric, of in means.items()}
    if len(scores) > len(COMMONEST):
        found_means |= {metric: statistics.mean(of.values()) for metric, of in means.items()}
    return found_means


def grade_scores(held_out: Sequence[Cells], found: list[Predictions]) -> dict[str, float]:
    """Of the likeliest grade, or of the number rounded to a grade; `error_middle` of the median, or of the number."""
    (predictions,) = found
    true = np.array([int(cells["grade"]) for cells in held_out])
    if isinstance(predictions, Predictions):
        order = [predictions.classes.index(name) for name in GRADES]
        chances = predictions.probabilities[:, order]
        said, middle = chances.argmax(axis=1), (chances.cumsum(axis=1) < 0.5).sum(axis=1).astype(float)
    else:
        assert isinstance(predictions, NumberPredictions)
        middle = np.clip(predictions.values, 0, 4)
        said = middle.round().astype(int)
    return {
        "kappa": cohen_kappa_score(true, said, weights="quadratic"),
        "accuracy": accuracy_score(true, said),
        "error": mean_absolute_error(true, said),
        "error_middle": mean_absolute_error(true, middle),
    }


def _findings(cells: Cells) -> Cells:
    return {name: cells[name] for name in list(cells)[6:20]}


def _first(cells: Cells) -> Cells:
    first = cells["label"].partition("|")[0]
    return {"label": first if first in (*COMMONEST, NONE) else "Other"}


def _grade(cells: Cells) -> Cells:
    return {"label": cells["label"]}


def _number(cells: Cells) -> Cells:
    return {"label": cells["grade"]}


_ORDER = ("data.target=grades", f"evaluate.ordinal={','.join(GRADES)}")
STUDIES = {
    "nih_cxr_multilabel": Study(
        "chexnet_split",
        "binary",
        {
            "plan": (_findings, ("data.target=findings",)),
            "resnet18": (_findings, ("data.target=findings",)),
            "balance": (_findings, ("data.target=findings", "train.balance=loss")),
            "classes": (_first, ()),
            "separate": (_first, ()),
        },
        finding_scores,
    ),
    "knee_oa_kl": Study(
        "split",
        "label",
        {
            "plan": (_grade, _ORDER),
            "resnet18": (_grade, _ORDER),
            "number": (_number, ("data.target=number",)),
        },
        grade_scores,
    ),
}


# ---- the tables ----


def finished(work: Path) -> dict[Key, dict[str, Any]]:
    """The finished runs."""
    lines = read_json_lines(work / "results.jsonl")
    return {Key(*(line[name] for name in Key._fields)): line for line in lines}


def print_tables(options: argparse.Namespace) -> None:
    """Mean and standard deviation over the folds, and the difference from the plan on the same fold."""
    done = finished(options.work)
    for name in options.sets:
        metrics = {metric: None for key, line in done.items() if key.set == name for metric in line["scores"]}
        print(f"\n{name}\n\n| row | folds | CPU s | {' | '.join(metrics)} |\n|---" + "|---" * (len(metrics) + 2) + "|")
        for row in STUDIES[name].rows:
            lines = {key.fold: line for key, line in done.items() if (key.set, key.row) == (name, row)}
            if not lines:
                continue
            plans = {fold: done[Key(name, "plan", fold)]["scores"] for fold in lines if Key(name, "plan", fold) in done}
            cells = [cell(lines, plans if row != "plan" else {}, metric) for metric in metrics]
            seconds = statistics.mean(line["seconds"] for line in lines.values())
            print(f"| {row} | {len(lines)} | {seconds:.0f} | {' | '.join(cells)} |")


def cell(lines: Mapping[int, Any], plans: Mapping[int, Any], metric: str) -> str:
    """0.700 ± 0.010; +0.020 ± 0.005: mean and standard deviation, mean difference from the plan and its error."""
    values = [line["scores"][metric] for line in lines.values() if metric in line["scores"]]
    if not values:
        return ""
    text = f"{statistics.mean(values):.3f}" + (f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else "")
    gains = [
        lines[fold]["scores"][metric] - plan[metric]
        for fold, plan in plans.items()
        if metric in plan and metric in lines[fold]["scores"]
    ]
    if gains:
        text += f"; {statistics.mean(gains):+.3f}"
        text += f" ± {statistics.stdev(gains) / len(gains) ** 0.5:.3f}" if len(gains) > 1 else ""
    return text


def main() -> None:
    """Read the options, make the runs that are missing, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--data", type=Path, default=os.environ.get("VITMED_DATA"), help="default: VITMED_DATA")
    parser.add_argument("--sets", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--rows", nargs="+", choices=sorted({row for study in STUDIES.values() for row in study.rows}))
    parser.add_argument("--folds", type=int, nargs="+", choices=range(FOLDS), default=list(range(FOLDS)))
    parser.add_argument("--share", type=float, default=1.0, help="of the passes that the plan makes")
    parser.add_argument("--threads", type=int, help="of PyTorch; set OMP_NUM_THREADS alike")
    parser.add_argument("--tell", action="store_true", help="only the tables of what is finished")
    options = parser.parse_args()
    if options.data is None and not options.tell:
        parser.error("name the folder of the sets with --data or VITMED_DATA")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    options.work, options.data = options.work.resolve(), Path(options.data or "").resolve()
    wanted = [
        Key(name, row, fold)
        for fold in options.folds
        for name in options.sets
        for row in STUDIES[name].rows
        if options.rows is None or row in options.rows
    ]
    for key in [] if options.tell else wanted:
        if key not in finished(options.work):
            run(options, key)
    print_tables(options)


if __name__ == "__main__":
    main()
