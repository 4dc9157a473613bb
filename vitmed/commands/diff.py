"""`vitmed diff`: what differs between two runs, in configuration, images, versions and result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from vitmed.commands.compare import compare_models
from vitmed.core.base_models import Frozen
from vitmed.core.errors import DataError, UsageError
from vitmed.core.flags import fields_of
from vitmed.core.run_folder import NUMBERS
from vitmed.core.text import counted, counted_doing, listed
from vitmed.decisions.evaluation_folder import read_evaluation
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.paired_comparison import ComparedPair
from vitmed.studies.compared_tables import Model, align, short_names
from vitmed.studies.run_facts import NO_FOLD, Image, RunFacts, read_facts
from vitmed.studies.run_rows import Head, read_head

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
        first, second: how many images each run has.
        same_file: of those in both, how many are known to be the same file, by SHA-256.
        counts: what happened -> how many images, such as "added" or "moved from train to test".
        classes_added, classes_removed: names.
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
        first, second: short names of the runs.
        settings, environment: what differs; `environment` is None where one run does not say.
        images: None where the images of a run are not known.
        numbers: the first numbers of their tests.
        result: which run is better, or why that cannot be said, in a sentence.
        notes: what must be known of these differences.
        verdict: what differs, in a sentence.
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


def diff(
    first: str | Path,
    second: str | Path,
) -> RunDiff:
    """Report what differs between two runs; no image is read, and no test is predicted again.

    Args:
        first, second: run folders, folders of folds, or checkpoints.

    Raises:
        UsageError: one of them is no run, or only one is pretraining.
        DataError, CheckpointError: a file cannot be read.
    """
    paths = (Path(first), Path(second))
    one, other = (read_facts(path) for path in paths)
    names = short_names([path.resolve().parts[1:] for path in paths])
    if (one.kind == "pretraining") != (other.kind == "pretraining"):
        which = names if one.kind == "pretraining" else names[::-1]
        raise UsageError(f"{which[0]} is a run of pretraining and {which[1]} is not", "name two runs of one kind")
    notes = list[str]()
    settings = _settings(one, other)
    if one.kind != other.kind:
        notes.append("One is a cross-validation and the other a single run, so their splits are not compared.")
    images = None
    if one.images is None or other.images is None:
        unknown = listed([name for name, run in zip(names, (one, other), strict=True) if run.images is None])
        notes.append(f"The images of {unknown} are not known: splits.csv is missing.")
    else:
        images = _image_differences(one, other, one.images, other.images)
        if images.same_file == len(one.images) == len(other.images):  # a folder that was moved or copied
            settings = [setting for setting in settings if setting.meaning != ELSEWHERE]
    environment = None
    if one.environment is None or other.environment is None:
        notes.append("The versions of one run are not known: environment.json is missing.")
    else:
        keys = dict.fromkeys((*one.environment, *other.environment))
        pairs = ((key, one.environment.get(key), other.environment.get(key)) for key in keys)
        environment = [Difference(name=key, first=a, second=b) for key, a, b in pairs if a != b]
    numbers, result, more = _result(one, other, names)
    verdict = _verdict(names, settings, images, environment)
    return RunDiff(
        first=names[0], second=names[1], settings=settings, images=images, environment=environment, numbers=numbers,
        result=result, notes=notes + more, verdict=verdict,
    )  # fmt: skip


def _settings(one: RunFacts, other: RunFacts) -> list[Difference]:
    """The settings that differ, in the order of the documentation, each with what it means."""
    found = []
    folds = "cross-validation" in (one.kind, other.kind)
    for key in dict.fromkeys((*one.settings, *other.settings)):
        if one.compared.get(key) == other.compared.get(key) or (folds and key in OF_A_FOLD):
            continue
        section, _, name = key.partition(".")
        known = fields_of(one.fields, section) if section in one.fields.model_fields else {}
        text = (known[name].description or "").partition(". ")[0].rstrip(".") if name in known else ""
        a, b = one.settings.get(key), other.settings.get(key)
        if a == b:
            text = ELSEWHERE
        found.append(Difference(name=key, first=a, second=b, meaning=text))
    return found


def _image_differences(
    one: RunFacts, other: RunFacts, first: dict[str, Image], second: dict[str, Image]
) -> ImageDifferences:
    """The images that were added, removed, renamed, changed or moved, and the classes.

    Splits are compared of two runs, or of two cross-validations.
    """
    files: dict[str, list[str]] = {}
    both = [path for path in first if path in second]
    added, removed = [p for p in second if p not in first], [p for p in first if p not in second]
    moved = Counter(second[path].sha256 for path in added) & Counter(first[path].sha256 for path in removed)
    for what, images, paths in (("removed", first, removed), ("added", second, added)):
        left = Counter({digest: n for digest, n in moved.items() if digest})  # the same file under another path
        for path in paths:
            digest = images[path].sha256
            left[digest] -= 1
            if left[digest] < 0:
                files.setdefault(what, []).append(path)
            elif what == "added":
                files.setdefault("renamed", []).append(path)
    for path in both:
        a, b = first[path], second[path]
        if one.kind == other.kind and a.split != b.split and NO_FOLD not in (a.split, b.split):
            files.setdefault(f"moved from {a.split} to {b.split}", []).append(path)
        for what, differs in (
            ("another content", a.sha256 and b.sha256 and a.sha256 != b.sha256),
            ("another label", a.label != b.label),
            ("another patient", a.group != b.group),
        ):
            if differs:
                files.setdefault(what, []).append(path)
    return ImageDifferences(
        first=len(first), second=len(second),
        same_file=sum(first[path].sha256 == second[path].sha256 != "" for path in both),
        counts={what: len(paths) for what, paths in files.items()},
        classes_added=sorted(other.classes - one.classes), classes_removed=sorted(one.classes - other.classes),
        files=files,
    )  # fmt: skip


def _result(one: RunFacts, other: RunFacts, names: Sequence[str]) -> tuple[list[ComparedNumber], str, list[str]]:
    """The numbers of both, which is better in a sentence, and notes."""
    if one.last is not None and other.last is not None:
        number = ComparedNumber(
            name="loss", title="Validation loss", first=one.last.estimate, second=other.last.estimate
        )
        return [number], "Pretraining has no test. The losses can be compared only with the same images and masks.", []
    if one.table is None or other.table is None:
        missing = [f"{name}: {run.why_not}" for name, run in zip(names, (one, other), strict=True) if run.table is None]
        return [], f"There is no result to compare. {'; '.join(missing)}.", []
    heads = [_head(table.with_name(NUMBERS)) for table in (one.table, other.table)]
    what = [(head.target.kind, head.target.unit) for head in heads]
    if what[0] != what[1]:
        of = [f"{'a ' * (kind == 'number')}{kind}{f' in {unit}' if unit else ''}" for kind, unit in what]
        return [], f"The results cannot be compared: {names[0]} predicts {of[0]}, {names[1]} predicts {of[1]}.", []
    kind = TARGETS[heads[0].target.kind]
    numbers = [
        ComparedNumber(
            name=name, title=kind.metrics[name].title, first=heads[0].overall[name], second=heads[1].overall[name]
        )
        for name in kind.headline
        if all(name in head.overall for head in heads)
    ]
    models = []
    for name, run in zip(names, (one, other), strict=True):
        assert run.table is not None
        read = read_evaluation(run.table)
        models.append(Model(name, read.predictions, known=read, file=run.table))
    tests = [set(model.predictions.paths) for model in models]
    if tests[0] != tests[1]:
        shared = len(tests[0] & tests[1])
        told = (
            f"The test images are not the same ({counted_doing(shared, 'image')} in both): the numbers may differ for "
        )
        told += "that reason alone."
        return numbers, f"{told} vitmed compare takes the shared images." if shared else told, []
    try:
        aligned, notes = align(models)
    except DataError as error:
        return numbers, f"The tests are not the same: {error.problem}.", []
    compared = compare_models(aligned, RESAMPLES)
    pair = compared.pairs[0]
    numbers = [_with_difference(number, pair) for number in numbers]
    return numbers, f"{compared.verdict}.", [*notes, *compared.notes]


def _head(file: Path) -> Head:
    try:
        return read_head(file)
    except (OSError, ValueError):
        raise DataError(f"{file}: not the metrics.json of a report", "vitmed evaluate writes a new one") from None


def _with_difference(number: ComparedNumber, pair: ComparedPair) -> ComparedNumber:
    test = pair.tests.get(number.name)
    gap = pair.difference.get(number.name)
    return number.model_copy(update={"difference": gap, "p": None if test is None else test.p})


def _verdict(
    names: Sequence[str], settings: Sequence[Difference], images: ImageDifferences | None,
    environment: Sequence[Difference] | None,
) -> str:  # fmt: skip
    """What differs, in a sentence."""
    parts = []
    keys = [one.name for one in settings]
    data = images is not None and bool(images.counts or images.classes_added or images.classes_removed)
    if keys:
        parts.append(f"{counted(len(keys), 'setting')} ({listed(keys, 5)})")
    parts += ["the images"] * data + ["the versions or the machine"] * bool(environment)
    unknown = [what for what, known in (("images", images), ("versions", environment)) if known is None]
    but = f" The {' and '.join(unknown)} could not be compared." if unknown else ""
    if keys == [SEED] and len(parts) == 1:
        seeds = settings[0]
        return f"Only the seed differs: {seeds.first} in {names[0]}, {seeds.second} in {names[1]}.{but}"
    if not parts:
        same = [part for part in ("settings", "images", "versions") if part not in unknown]
        return f"Nothing differs: {names[0]} and {names[1]} have the same {_and(same)}.{but}"
    return f"{names[0]} and {names[1]} differ in {_and(parts)}.{but}"


def _and(parts: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
