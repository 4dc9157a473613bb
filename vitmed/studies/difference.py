"""What differs between two runs: settings, images and versions, and the first number of each."""

import contextlib
import csv
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from vitmed.core.base_models import Frozen, fields_of
from vitmed.core.config import RunConfig
from vitmed.core.errors import CheckpointError, DataError, UsageError, VitmedError
from vitmed.core.files import json_of, read_json_lines
from vitmed.core.load_config import paths_in
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted, listed
from vitmed.core.text_files import from_cell
from vitmed.studies.comparison import split_rows
from vitmed.studies.run_list import RunMetric, best_hash, config_of, read_run

SURROUNDINGS = ("python", "system", "device", "precision")  # of environment.json, beside the versions
SEED = "train.seed"
ELSEWHERE = "The same name in two places"


class Difference(Frozen):
    """A setting, or a version, that differs; None where one of the runs does not have it."""

    name: str
    first: Any
    second: Any
    meaning: str = ""


class ImageDifferences(Frozen):
    """How the images of the second run differ from those of the first. Images are matched by path."""

    first: int
    second: int
    same_file: int  # of those in both runs, how many are known to be the same file, by SHA-256
    counts: dict[str, int]  # what happened -> how many images, such as "added" or "moved from train to test"
    files: dict[str, list[str]] = Field(default={}, exclude=True)  # not in the JSON: a path may name a patient


class RunDiff(Frozen):
    """What differs between two runs."""

    first: str  # the folders of the runs, as they were named
    second: str
    settings: list[Difference]  # that differ
    images: ImageDifferences | None  # None where the images of a run are not known
    environment: list[Difference] | None  # versions and machine; None where one run does not say
    metrics: list[RunMetric | None]  # the first number of each run, as `vitmed runs` lists it
    notes: list[str]  # what is not known of a run, and how to compare their numbers
    verdict: str = ""  # whether the weights in both best.pt are known to be identical; what differs, in a sentence


Image = dict[str, str]  # its row in splits.csv: sha256, class, group and split


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run."""

    fields: type[RunConfig]  # the configuration of its kind
    settings: dict[str, Any]  # "section.field" -> value as it is shown
    compared: dict[str, Any]  # what decides whether two settings are the same
    images: dict[str, Image] | None  # by path; None where they are not known
    environment: dict[str, str] | None  # versions and machine
    metric: RunMetric | None
    weights: str | None  # the hash of those in best.pt
    trained: str  # for how long; "" where nothing says


def read_facts(path: Path) -> RunFacts:
    """Read the facts of a run folder, or of the one that a checkpoint lies in. Raises UsageError for something else,
    DataError or CheckpointError for a file that cannot be read."""
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder", "name a run folder, or its best.pt")
    run = RunFolder(path.parent if path.suffix == ".pt" else path)
    if path.suffix == ".pt" and path not in (run.best, run.encoder):
        raise UsageError(f"{path}: runs are compared by their best.pt", f"name the run folder: {run.path}")
    if run.folds.is_file():
        raise UsageError(f"{path}: holds folds, expected a run", f"name a fold of each: {path / 'fold-1'}")
    if run.ensemble.is_file() or run.ranking.is_file() or not run.config.is_file():
        raise UsageError(f"{path}: expected a run folder", "name the folders of two trainings, such as a fold")
    try:
        config = config_of(run)
    except VitmedError as error:
        problem = error.problem.removeprefix(f"{run.config}: ")
        raise DataError(f"{run.config}: {problem}", "name another run") from None
    tree = config.model_dump()
    shown = {f"{section}.{name}": v for section, part in tree.items() for name, v in part.items()}
    compared = dict(shown)
    for section, name, place in paths_in(tree, run.path):
        key = f"{section}.{name}"
        compared[key], shown[key] = os.path.normpath(Path(place).absolute()), Path(place).name
    weights, metric, trained = None, read_run(run, "", None).metric, ""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        weights = best_hash(run)
        last = read_json_lines(run.metrics)[-1]
        trained = f"{last['epoch']} of {config.train.epochs} epochs ({counted(last['step'], 'step')})"
    images, environment, reading = None, None, f"{run.splits}: not the splits.csv"
    try:
        if run.splits.is_file():
            keys, rows = ("sha256", "class", "group", "split"), split_rows(run)
            images = {path: {key: from_cell(row[key]) for key in keys} for path, row in rows.items()}
        reading = f"{run.environment}: not the file"
        if run.environment.is_file():
            content = json_of(run.environment.read_text(encoding="utf-8"))
            environment = {str(name): str(version) for name, version in content["versions"].items()}
            environment |= {name: str(content[name]) for name in SURROUNDINGS if content.get(name) is not None}
            if "precision" in environment:  # "bf16: as asked" and "bf16: measured" are the same arithmetic
                environment["precision"] = environment["precision"].partition(":")[0]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error):
        raise DataError(f"{reading} of a run", "restore it, or name another run") from None
    return RunFacts(type(config), shown, compared, images, environment, metric, weights, trained)


def difference(first: RunFacts, second: RunFacts, names: Sequence[str]) -> RunDiff:
    """Report what differs between two runs of one kind, by their short names."""
    notes, settings, images, environment = list[str](), list[Difference](), None, None
    for key in first.settings:  # in the order of the documentation, each with what it means
        if first.compared[key] != second.compared[key]:
            section, _, name = key.partition(".")
            before, after = first.settings[key], second.settings[key]
            text = (fields_of(first.fields, section)[name].description or "").partition(". ")[0].rstrip(".")
            meaning = ELSEWHERE if before == after else text
            settings.append(Difference(name=key, first=before, second=after, meaning=meaning))
    if first.images is None or second.images is None:
        unknown = listed([name for name, run in zip(names, (first, second), strict=True) if run.images is None])
        notes.append(f"The images of {unknown} are not known: splits.csv is missing.")
    else:
        images = _image_differences(first, second)
        if images.same_file == len(first.images) == len(second.images):  # a folder that was moved or copied
            settings = [setting for setting in settings if setting.meaning != ELSEWHERE]
    if first.environment is None or second.environment is None:
        notes.append("The versions of one run are not known: environment.json is missing.")
    else:
        keys = dict.fromkeys((*first.environment, *second.environment))
        pairs = ((key, first.environment.get(key), second.environment.get(key)) for key in keys)
        environment = [Difference(name=key, first=a, second=b) for key, a, b in pairs if a != b]
    unequal = first.trained != second.trained and "" not in (first.trained, second.trained)
    if unequal:
        timed = "; with --time, the speed of the machine decides" if first.settings.get("train.time") else ""
        notes.append(f"{names[0]} trained {first.trained}, {names[1]} {second.trained}{timed}.")
    metrics = [first.metric, second.metric]
    tests = [{path for path, row in (run.images or {}).items() if row["split"] == "test"} for run in (first, second)]
    moved = any(what.startswith("moved") and "test" in what for what in (images.counts if images else ()))
    if not moved and (images is None or tests[0] & tests[1]) and all(m is not None and m.of == "test" for m in metrics):
        notes.append("Whether one is better, on the same test images: vitmed compare.")
    parts: dict[str, Any] = {"settings": settings, "images": images, "environment": environment}
    diff = RunDiff(first=names[0], second=names[1], **parts, metrics=metrics, notes=notes)
    same = "The weights are identical. " if first.weights is not None and first.weights == second.weights else ""
    return diff.model_copy(update={"verdict": same + _verdict(diff, unequal)})


def _image_differences(first: RunFacts, second: RunFacts) -> ImageDifferences:
    before, after, files = first.images or {}, second.images or {}, defaultdict[str, list[str]](list)
    both = [path for path in before if path in after]
    for what, paths in (("removed", before.keys() - after.keys()), ("added", after.keys() - before.keys())):
        if paths:
            files[what] = sorted(paths)
    for path in both:
        a, b = before[path], after[path]
        for what, differs in (
            (f"moved from {a['split']} to {b['split']}", a["split"] != b["split"]),
            ("another content", a["sha256"] and b["sha256"] and a["sha256"] != b["sha256"]),
            ("another label", a["class"] != b["class"]),
            ("another patient", a["group"] != b["group"]),
        ):
            if differs:
                files[what].append(path)
    return ImageDifferences(
        first=len(before),
        second=len(after),
        same_file=sum(before[path]["sha256"] == after[path]["sha256"] != "" for path in both),
        counts={what: len(paths) for what, paths in files.items()},
        files=dict(files),
    )


def _verdict(diff: RunDiff, unequal: bool) -> str:
    keys, images = [setting.name for setting in diff.settings], diff.images
    data = images is not None and bool(images.counts)
    parts = [f"{counted(len(keys), 'setting')} ({listed(keys, 5)})"] * bool(keys)
    parts += ["the images"] * data + ["the versions or the machine"] * bool(diff.environment)
    parts += ["how long they trained"] * (unequal and not keys)
    unknown = ["images"] * (images is None) + ["versions"] * (diff.environment is None)
    but = f" The {' and '.join(unknown)} could not be compared." if unknown else ""
    if keys == [SEED] and len(parts) == 1:
        seed = diff.settings[0]
        return f"Only the seed differs: {seed.first} in {diff.first}, {seed.second} in {diff.second}.{but}"
    *before, last = parts or [part for part in ("settings", "images", "versions") if part not in unknown]
    what = f"{', '.join(before)} and {last}" if before else last
    if not parts:
        return f"Nothing differs: {diff.first} and {diff.second} have the same {what}.{but}"
    return f"{diff.first} and {diff.second} differ in {what}.{but}"
