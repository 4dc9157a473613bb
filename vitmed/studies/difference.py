"""What differs between two runs: settings, images, versions and result."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from vitmed.core.base_models import Frozen, fields_of
from vitmed.core.config import PATHS, Config, PretrainConfig, RunConfig
from vitmed.core.errors import CheckpointError, DataError, UsageError, VitmedError
from vitmed.core.files import json_of
from vitmed.core.load_config import is_keyword
from vitmed.core.run_folder import NUMBERS, RunFolder, find_path
from vitmed.core.text import counted, counted_doing, listed
from vitmed.core.text_files import YamlError, from_cell, read_yaml
from vitmed.data.samples import Splits
from vitmed.decisions.evaluation_folder import find_evaluation, read_evaluation
from vitmed.decisions.targets import TARGETS
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.estimates import Estimate
from vitmed.studies.comparison import Model, align, compare_models, split_rows, table_of
from vitmed.studies.run_list import RunMetric, natural, read_head, read_run

NO_FOLD = "no fold yet"
SURROUNDINGS = ("python", "system", "device", "precision", "git")  # of environment.json, beside the versions

SEED, OF_A_FOLD = "train.seed", ("data.fold", "data.repeat")
ELSEWHERE = "The same name in two places"
RESAMPLES = 2000  # behind the intervals of differences


class Difference(Frozen):
    """A setting, or a version, that differs; None where one of the runs does not have it."""

    name: str
    first: Any
    second: Any
    meaning: str = ""


class ImageDifferences(Frozen):
    """How the images of the second run differ from those of the first. Images are matched by path.

    Attributes:
        same_file: of those in both runs, how many are known to be the same file, by SHA-256.
        counts: what happened -> how many images, such as "added" or "moved from train to test".
        files: what happened -> paths. Not in the JSON, since a path may name a patient.
    """

    first: int
    second: int
    same_file: int
    counts: dict[str, int]
    classes_added: list[str]
    classes_removed: list[str]
    files: dict[str, list[str]] = Field(default={}, exclude=True)


class ComparedNumber(Frozen):
    """A number of both runs; `difference`, first minus second with p, where their test images are the same."""

    name: str
    title: str
    first: Estimate
    second: Estimate
    difference: Estimate | None = None
    p: float | None = None


class RunDiff(Frozen):
    """What differs between two runs.

    Attributes:
        settings, environment: what differs; `environment` is None where one run does not say.
        images: None where the images of a run are not known.
        numbers: the first numbers of their tests.
        result: which run is better, or why that cannot be said, in a sentence; verdict: what differs.
    """

    first: str
    second: str
    settings: list[Difference]
    images: ImageDifferences | None
    environment: list[Difference] | None
    numbers: list[ComparedNumber]
    result: str
    notes: list[str]
    verdict: str


def _settings(first: RunFacts, second: RunFacts) -> list[Difference]:
    """The settings that differ, in the order of the documentation, each with what it means."""
    differences = []
    folds = "cross-validation" in (first.kind, second.kind)
    for key in dict.fromkeys((*first.settings, *second.settings)):
        if first.compared.get(key) == second.compared.get(key) or (folds and key in OF_A_FOLD):
            continue
        section, _, name = key.partition(".")
        fields = fields_of(first.fields, section) if section in first.fields.model_fields else {}
        text = (fields[name].description or "").partition(". ")[0].rstrip(".") if name in fields else ""
        before, after = first.settings.get(key), second.settings.get(key)
        meaning = ELSEWHERE if before == after else text
        differences.append(Difference(name=key, first=before, second=after, meaning=meaning))
    return differences


def _image_differences(first: RunFacts, second: RunFacts) -> ImageDifferences:
    """The images that were added, removed, renamed, changed or moved, and the classes.

    Splits are compared of two runs, or of two cross-validations.
    """
    before, after, files = first.images or {}, second.images or {}, dict[str, list[str]]()
    both = [path for path in before if path in after]
    added, removed = [p for p in after if p not in before], [p for p in before if p not in after]
    moved = Counter(after[path].sha256 for path in added) & Counter(before[path].sha256 for path in removed)
    for what, images, paths in (("removed", before, removed), ("added", after, added)):
        left = Counter({digest: n for digest, n in moved.items() if digest})  # the same file under another path
        for path in paths:
            digest = images[path].sha256
            left[digest] -= 1
            if left[digest] < 0:
                files.setdefault(what, []).append(path)
            elif what == "added":
                files.setdefault("renamed", []).append(path)
    for path in both:
        a, b = before[path], after[path]
        if first.kind == second.kind and a.split != b.split and NO_FOLD not in (a.split, b.split):
            files.setdefault(f"moved from {a.split} to {b.split}", []).append(path)
        for what, differs in (
            ("another content", a.sha256 and b.sha256 and a.sha256 != b.sha256),
            ("another label", a.label != b.label),
            ("another patient", a.group != b.group),
        ):
            if differs:
                files.setdefault(what, []).append(path)
    return ImageDifferences(
        first=len(before),
        second=len(after),
        same_file=sum(before[path].sha256 == after[path].sha256 != "" for path in both),
        counts={what: len(paths) for what, paths in files.items()},
        classes_added=sorted(second.classes - first.classes),
        classes_removed=sorted(first.classes - second.classes),
        files=files,
    )


def _result(first: RunFacts, second: RunFacts, names: Sequence[str]) -> tuple[list[ComparedNumber], str, list[str]]:
    """The numbers of both, which is better in a sentence, and notes."""
    if first.last is not None and second.last is not None:
        ends: dict[str, Any] = {"first": first.last.estimate, "second": second.last.estimate}
        losses = "Pretraining has no test. The losses can be compared only with the same images and masks."
        return [ComparedNumber(name="loss", title="Validation loss", **ends)], losses, []
    if first.table is None or second.table is None:
        missing = [f"{n}: {run.why_not}" for n, run in zip(names, (first, second), strict=True) if run.table is None]
        return [], f"There is no result to compare. {'; '.join(missing)}.", []
    heads = []
    for file in (table.with_name(NUMBERS) for table in (first.table, second.table)):
        try:
            heads.append(read_head(file))
        except (OSError, ValueError):
            raise DataError(f"{file}: not the metrics.json of a report", "vitmed evaluate writes a new one") from None
    targets = [(head.target.kind, head.target.unit) for head in heads]
    if targets[0] != targets[1]:
        of = [f"{'a ' * (kind == 'number')}{kind}{f' in {unit}' if unit else ''}" for kind, unit in targets]
        return [], f"The results cannot be compared: {names[0]} predicts {of[0]}, {names[1]} predicts {of[1]}.", []
    kind, (before, after) = TARGETS[heads[0].target.kind], [head.overall for head in heads]
    both = [name for name in kind.headline if name in before and name in after]
    numbers = [
        ComparedNumber(name=name, title=kind.metrics[name].title, first=before[name], second=after[name])
        for name in both
    ]
    read = [(table, read_evaluation(table)) for table in (first.table, second.table)]
    models = [Model(name, e.predictions, known=e, file=file) for name, (file, e) in zip(names, read, strict=True)]
    paths, expected = (set(model.predictions.paths) for model in models)
    if paths != expected:
        shared = counted_doing(len(paths & expected), "image")
        why = f"The test images are not the same ({shared} in both): the numbers may differ for that reason alone."
        return numbers, f"{why} vitmed compare takes the shared images." if paths & expected else why, []
    try:
        models, notes = align(models)
    except DataError as error:
        return numbers, f"The tests are not the same: {error.problem}.", []
    compared = compare_models(models, RESAMPLES)
    gaps, tests = compared.pairs[0].difference, compared.pairs[0].tests
    further = [{"difference": gaps.get(name), "p": tests[name].p if name in tests else None} for name in both]
    numbers = [number.model_copy(update=more) for number, more in zip(numbers, further, strict=True)]
    return numbers, f"{compared.verdict}.", [*notes, *compared.notes]


def _verdict(diff: RunDiff) -> str:
    keys, images = [setting.name for setting in diff.settings], diff.images
    data = images is not None and bool(images.counts or images.classes_added or images.classes_removed)
    parts = [f"{counted(len(keys), 'setting')} ({listed(keys, 5)})"] * bool(keys)
    parts += ["the images"] * data + ["the versions or the machine"] * bool(diff.environment)
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


def difference(first: RunFacts, second: RunFacts, names: Sequence[str]) -> RunDiff:
    """Report what differs between two runs of one kind, by their short names. Raises DataError for a result that cannot
    be read."""
    notes = list[str]()
    settings = _settings(first, second)
    if first.kind != second.kind:
        notes.append("One is a cross-validation and the other a single run, so their splits are not compared.")
    images = None
    if first.images is None or second.images is None:
        unknown = listed([name for name, run in zip(names, (first, second), strict=True) if run.images is None])
        notes.append(f"The images of {unknown} are not known: splits.csv is missing.")
    else:
        images = _image_differences(first, second)
        if images.same_file == len(first.images) == len(second.images):  # a folder that was moved or copied
            settings = [setting for setting in settings if setting.meaning != ELSEWHERE]
    environment = None
    if first.environment is None or second.environment is None:
        notes.append("The versions of one run are not known: environment.json is missing.")
    else:
        keys = dict.fromkeys((*first.environment, *second.environment))
        pairs = ((key, first.environment.get(key), second.environment.get(key)) for key in keys)
        environment = [Difference(name=key, first=a, second=b) for key, a, b in pairs if a != b]
    numbers, result, more = _result(first, second, names)
    diff = RunDiff(
        first=names[0],
        second=names[1],
        settings=settings,
        images=images,
        environment=environment,
        numbers=numbers,
        result=result,
        notes=notes + more,
        verdict="",
    )
    return diff.model_copy(update={"verdict": _verdict(diff)})


class Image(NamedTuple):
    """An image of a run; `split` is train, validation or test, or the fold that tests it."""

    sha256: str
    label: str
    group: str
    split: str


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run.

    Attributes:
        kind: "training", "pretraining" or "cross-validation".
        settings: "section.field" -> value as it is shown; compared: what decides whether two are the same.
        images: path -> image; environment: versions and machine; None where they are not known.
        table: predictions.csv of its test, or else `why_not`; last: of pretraining, its last number.
    """

    path: Path
    kind: str
    settings: dict[str, Any]
    compared: dict[str, Any]
    images: dict[str, Image] | None
    environment: dict[str, str] | None
    table: Path | None = None
    why_not: str = ""
    last: RunMetric | None = None

    @property
    def fields(self) -> type[RunConfig]:
        """The configuration of its kind."""
        return PretrainConfig if self.kind == "pretraining" else Config

    @property
    def classes(self) -> set[str]:
        """The names in its labels; none of a number."""
        if self.images is None or self.settings.get("data.target") == "number":
            return set()
        return {part.rstrip("?") for image in self.images.values() for part in image.label.split("|")}


def read_facts(path: Path) -> RunFacts:
    """Read the facts of a run folder, of a folder of folds, or of a checkpoint.

    Raises:
        UsageError: something else.
        DataError, CheckpointError: a file of it cannot be read.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder", "name a run folder, or its best.pt")
    run = RunFolder(path if path.is_dir() else path.parent)
    if path.is_file() and path.suffix != ".pt":
        raise UsageError(f"{path}: is a file, expected a run", "name a run folder, or its best.pt")
    if path.is_file() and not run.config.is_file():  # taken out of its run
        saved = load_checkpoint(path)
        facts = _facts(path.parent, "training", saved.config.model_dump(), _members(saved.splits, saved.hashes), None)
        return replace(facts, path=path, why_not="it is a checkpoint without its run")
    if run.folds.is_file():
        return _of_folds(run)
    if run.ensemble.is_file():
        raise UsageError(f"{path}: is an ensemble, expected a run", "compare tests: vitmed compare ENSEMBLE RUN")
    if run.ranking.is_file() or not run.config.is_file():
        problem = "holds a ranking of weights" if run.ranking.is_file() else "holds no run"
        raise UsageError(f"{path}: {problem}, expected a run folder", "name two of the runs that vitmed runs lists")
    facts = _of_run(run)
    if path.is_dir() or facts.kind == "pretraining":
        return facts
    saved = load_checkpoint(path)
    table = find_evaluation(run, "test", saved.weights_hash)
    why_not = "" if table is not None else f"{path.name} was not evaluated on its test"
    return replace(facts, path=path, table=table, why_not=why_not)


def _of_run(run: RunFolder) -> RunFacts:
    try:
        tree = read_yaml(run.config)
    except YamlError as error:
        raise DataError(f"{run.config}: not a readable YAML file ({error})", error.fix) from None
    if not isinstance(tree, dict) or not all(isinstance(fields, dict) for fields in tree.values()):
        raise DataError(f"{run.config}: not the configuration of a run", "name another run")
    kind = "training" if "evaluate" in tree else "pretraining"
    facts = _facts(run.path, kind, tree, _images(run), _environment(run))
    if kind == "pretraining":
        return replace(facts, last=read_run(run, "", None).metric, why_not="pretraining is not tested")
    return _with_table(facts)


def _facts(
    path: Path, kind: str, tree: Mapping[str, Any], images: dict[str, Image] | None, environment: dict[str, str] | None
) -> RunFacts:
    """Fields that an older vitmed did not write have their default, as when the run is resumed."""
    fields: Any = PretrainConfig if kind == "pretraining" else Config
    whole = fields().model_dump()
    shown = {
        f"{section}.{name}": value
        for section in {**whole, **tree}
        for name, value in {**whole.get(section, {}), **tree.get(section, {})}.items()
    }
    compared = dict(shown)
    for section, name in PATHS:
        value = shown.get(f"{section}.{name}")
        if isinstance(value, str) and not is_keyword(name, value, path):
            place = os.path.normpath(find_path(value, path).absolute())
            compared[f"{section}.{name}"], shown[f"{section}.{name}"] = place, Path(place).name
    return RunFacts(path, kind, shown, compared, images, environment)


def _with_table(facts: RunFacts) -> RunFacts:
    try:
        return replace(facts, table=table_of(facts.path))
    except VitmedError as error:
        why = error.problem.replace(f"{facts.path}{os.sep}", "").replace(f"{facts.path}: ", "")
        return replace(facts, why_not=why)


def _images(run: RunFolder) -> dict[str, Image] | None:
    if not run.splits.is_file():
        return None
    try:
        return {
            path: Image(row["sha256"], from_cell(row["class"]), from_cell(row["group"]), row["split"])
            for path, row in split_rows(run).items()
        }
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        raise DataError(f"{run.splits}: not the splits.csv of a run", "restore it, or name another run") from None


def _environment(run: RunFolder) -> dict[str, str] | None:
    if not run.environment.is_file():
        return None
    try:
        content = json_of(run.environment.read_text(encoding="utf-8"))
        versions = {str(name): str(version) for name, version in content["versions"].items()}
        return versions | {name: str(content[name]) for name in SURROUNDINGS if content.get(name) is not None}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{run.environment}: not the file of a run", "restore it, or name another run") from None


def _of_folds(run: RunFolder) -> RunFacts:
    """The settings of the first fold; the images of all, each in the split "fold K" that tests it."""
    folds = [RunFolder(path) for path in run.path.glob("fold-*") if RunFolder(path).config.is_file()]
    folds.sort(key=lambda fold: natural(fold.path.name))
    if not folds:
        raise DataError(f"{run.path}: none of its folds has begun", f"vitmed cross-validate --resume {run.path}")
    facts = _of_run(folds[0])
    images = None if facts.images is None else {p: i._replace(split=NO_FOLD) for p, i in facts.images.items()}
    for fold in folds:
        for path, image in (_images(fold) or {}).items():
            if images is not None and image.split == "test":
                images[path] = image._replace(split=" ".join(fold.path.name.split("-")[:2]))  # of fold-1-2, "fold 1"
    facts = replace(facts, path=run.path, kind="cross-validation", images=images, table=None)
    return _with_table(facts)


def _members(splits: Splits, hashes: Mapping[str, Sequence[str]]) -> dict[str, Image]:
    return {
        sample.path: Image(digest, splits.text_of(sample), sample.group or "", name)
        for name, samples in splits.samples.items()
        for sample, digest in zip(samples, hashes.get(name, []) or [""] * len(samples), strict=False)
    }
