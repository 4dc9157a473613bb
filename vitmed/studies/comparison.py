"""Which of several models is better on the same images: their tables, the common images, every two, and a verdict."""

import csv
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vitmed.core.base_models import Kind
from vitmed.core.errors import DataError, UsageError
from vitmed.core.load_config import paths_in
from vitmed.core.messages import bar, gravest_first
from vitmed.core.run_folder import BASELINE, PREDICTIONS, RunFolder, find_path, is_elsewhere
from vitmed.core.text import counted, listed, quoted
from vitmed.core.text_files import YamlError, from_cell, read_yaml
from vitmed.data.patient_names import group_word
from vitmed.decisions.evaluation_folder import Evaluated, find_evaluation, read_evaluation
from vitmed.decisions.operating_points import TITLES
from vitmed.decisions.targets import ALL_METRICS, TARGETS, TargetKind
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics import paired_comparison as paired
from vitmed.metrics.estimates import FEW_GROUPS, FEW_IMAGES, value_text
from vitmed.metrics.predictions import Predictions, known_labels, target_of
from vitmed.report.evaluate import AGAINST_REST

LEVEL = 0.95
UNKNOWN = "Patients are unknown: each image counts as independent, so the comparison is more certain than it should be."
OTHERS = "Patients are unknown, {}s are compared: more certain than it should be, if a patient has several."
Test = TypeVar("Test", paired.ComparisonTest, paired.ClassDifference)

UNCLEAR = "not clearly better or worse"
Runs = list[list[tuple[str, ...]]]  # of each run or fold: path, SHA-256, patient and split of its images


@dataclass(frozen=True)
class Model:
    """A model; `known` is what its report says of it, `file` its table; a table of a baseline has neither."""

    name: str
    predictions: Predictions
    known: Evaluated | None = None
    file: Path | None = None
    graded: bool = False  # whether its classes are grades, by its report or that of another model

    @property
    def kind(self) -> Kind:
        return "grades" if self.graded else self.predictions.kind

    @property
    def unit(self) -> str:
        """What the groups of its images are: patients, or what its report says, such as originals of copies."""
        flow = None if self.known is None else self.known.metrics.get("flow")
        return group_word(flow.get("how") or "") if isinstance(flow, Mapping) else "patient"


def read_all(paths: Sequence[Path]) -> list[Model]:
    """Read the models, each under a unique name."""
    if len(paths) < 2:
        raise UsageError("nothing to compare: one model", "vitmed compare RUN RUN_2, or RUN RUN/test/baseline_NAME.csv")
    tables, parts, models = [table_of(path) for path in paths], list[list[str]](), list[Model]()
    for file in tables:
        names = [*file.resolve().parent.parts[1:], *([] if file.name == PREDICTIONS else [file.stem])] or [file.stem]
        inside_run = file.name == PREDICTIONS and names[-1:] == ["test"] and len(names) > 1
        if names[-1].startswith(AGAINST_REST) and len(names) > 2:  # the run is part of the name
            names = [*names[:-3], "/".join(names[-3:])]
        parts.append(names[:-1] if inside_run else names)
    for name, file in zip(short_names(parts), tables, strict=True):
        read, of_run = read_evaluation(file), not file.name.startswith(BASELINE)
        known, own = (read, file) if of_run else (None, None)
        graded = read.metrics.get("target", {}).get("kind") == "grades"
        models.append(Model(name, read.predictions, known=known, file=own, graded=graded))
    for form in [model.predictions for model in models if model.kind == "grades"][:1]:  # they order the classes of all
        for k, model in enumerate(models):
            if model.kind == "classes" and {*model.predictions.classes} == {*form.classes}:
                models[k] = replace(model, graded=True, predictions=model.predictions.like(form))
    return models


def table_of(path: Path) -> Path:
    """Find the predictions.csv of a report folder or run folder, or the file itself. DataError where there is none."""
    run = RunFolder(path if path.is_dir() else path.parent)
    if path in (run.best, run.ensemble):
        path = run.path
    elif path.suffix in (".pt", ".pt2", ".onnx"):
        images = "" if path.suffix == ".pt" else " --data DIR"  # an exported model knows none
        fix = f"vitmed evaluate {quoted(path)}{images}, then name its report"
        raise DataError(f"{path}: a model, not its predictions", fix)
    elif not path.is_dir():
        return path
    if (path / PREDICTIONS).is_file():
        return path / PREDICTIONS
    if run.best.is_file():
        saved = load_checkpoint(run.best)
        if file := find_evaluation(run, "test", saved.weights_hash, saved.policy):
            return file
        val = quoted(path / "val")  # as of a trial of tune, which leaves the test out
        fix = f"vitmed evaluate {quoted(path)}; or, where the test is not to be read, compare {val}"
        raise DataError(f"{path}: has no evaluation of its best.pt by its own policy on its test", fix)
    if (path / "test" / PREDICTIONS).is_file():  # of folds, or of a run without a network
        return path / "test" / PREDICTIONS
    raise DataError(f"{path}: has no {PREDICTIONS}, nor test/{PREDICTIONS}", "name a predictions.csv, report or run")


def short_names(parts: Sequence[Sequence[str]]) -> list[str]:
    """Give each path a name: its last part, with as many before it as make the names different."""
    for count in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{part[-1]} ({i})" for i, part in enumerate(parts, start=1)]  # the same table twice


def align(models: Sequence[Model]) -> tuple[list[Model], list[str]]:
    """Return the models on their common images, in the order and with the patients of the first, and notes.

    The classes are in the order of the first model of grades, else of the first. Raises DataError: different kinds of
    label, classes, findings, units, labels or files, or no common image.
    """
    first = models[0]
    shared = set(first.predictions.paths)
    for model in models[1:]:
        _check_comparable(model, first)
        shared &= set(model.predictions.paths)
    sure = [model for model in models if model.predictions.positive]
    for model in sure[1:]:
        _check_comparable(model, sure[0])
    if not shared:
        fix = "evaluate both on one folder: vitmed evaluate RUN --data DIR"
        raise DataError("the predictions have no image in common", fix)
    paths = [path for path in first.predictions.paths if path in shared]
    divided = {model.name: _divided(model) for model in models}
    _check_content(models, paths, divided)
    positive = sure[0].predictions.positive if sure else None
    form = next((m for m in models if m.kind == "grades"), first).predictions
    aligned = []
    for model in models:
        picked = replace(model.predictions.at(paths), columns={}, positive=positive)
        aligned.append(replace(model, predictions=picked.like(form)))
    labels = known_labels(aligned[0].predictions)
    for model in aligned[1:]:
        other = np.flatnonzero((known_labels(model.predictions) != labels).reshape(len(paths), -1).any(axis=1))
        if len(other):
            many = f"{len(other):,} of {len(paths):,} images, the first is {paths[other[0]]}"
            problem = f"{model.name} and {first.name} differ in the labels of {many}"
            raise DataError(problem, "evaluate both with the same labels")
    notes = []
    left_out = {m.name: len(m.predictions) - len(paths) for m in models if len(m.predictions) > len(paths)}
    if left_out:
        counts = ", ".join(f"{count:,} of {name}" for name, count in left_out.items())
        notes.append(f"{len(paths):,} images are shared; left out because not all have them: {counts}.")
    grouped = [m for m in aligned if m.predictions.groups is not None]
    if not grouped:
        return aligned, notes
    groups = grouped[0].predictions.groups or ()
    if len({m.predictions.units.tobytes() for m in grouped}) > 1:
        notes.append(f"The tables disagree on the patients; those of {grouped[0].name} are used.")
    aligned = [replace(m, predictions=replace(m.predictions, groups=groups)) for m in aligned]
    return aligned, notes + _patients_seen(divided, dict(zip(paths, groups, strict=True)))


def _check_comparable(model: Model, first: Model) -> None:
    """Raise DataError where two models do not answer the same question."""
    a, b = model.predictions, first.predictions
    words = {"classes": "classes", "findings": "findings", "number": "a number"}
    if a.kind != b.kind:
        of_finding = "; of one finding: RUN/test/findings/FINDING" * ("findings" in (a.kind, b.kind))
        has = f"{model.name} has predictions of {words[a.kind]}, {first.name} of {words[b.kind]}"
        raise DataError(has, f"compare models of one kind of label{of_finding}")
    if set(a.classes) != set(b.classes):
        or_finding = ", or one finding of both: RUN/test/findings/FINDING" * (a.kind == "findings")
        has = f"{model.name} has the {a.kind} {listed(a.classes)}; {first.name} has {listed(b.classes)}"
        raise DataError(has, f"compare models of the same {a.kind}{or_finding}")
    if (unit := target_of(a).unit) != target_of(b).unit:
        has = f"{model.name} predicts in the unit '{unit}', {first.name} in '{target_of(b).unit}'"
        raise DataError(has, "train both with the same --unit")
    if model.kind == first.kind == "grades" and a.classes != b.classes:
        those = f"those of {first.name} in the order {listed(b.classes)}"
        has = f"the grades of {model.name} are in the order {listed(a.classes)}, {those}"
        raise DataError(has, "train both with the same --ordinal")
    if None not in (a.positive, b.positive) and a.positive != b.positive:
        has = f"the positive class of {model.name} is {a.positive}, that of {first.name} {b.positive}"
        raise DataError(has, "train both with the same --positive")


def _check_content(models: Sequence[Model], paths: Sequence[str], divided: Mapping[str, Runs]) -> None:
    """Raise DataError where two runs know that an image of one path was another file in each."""
    hashed = []
    for model in models:
        flow = None if model.known is None else model.known.metrics.get("flow")
        if isinstance(flow, Mapping) and isinstance(flow.get("evaluated"), Mapping):
            split = flow["evaluated"].get("split")  # None: not the run's own
            digests = {path: sha256 for rows in divided[model.name] for path, sha256, _, part in rows if part == split}
            hashed.append((model.name, digests))
    for (first, before), (name, after) in itertools.combinations(hashed, 2):
        changed = [path for path in paths if path in before and path in after and before[path] != after[path]]
        if changed:
            raise DataError(
                f"{name} and {first} differ in the content of {len(changed):,} of {len(paths):,} images of the same "
                f"path (SHA-256 in splits.csv), the first is {changed[0]}",
                "evaluate both on the same files; to compare versions of the same pictures, name copies of the two "
                "folders of predictions.csv outside the runs",
            )


def _patients_seen(divided: Mapping[str, Runs], groups: Mapping[str, str]) -> list[str]:
    """A note on each model that was trained on other images of the patients, given by path, or chosen with them."""
    patients = {path: group for runs in divided.values() for rows in runs for path, _, group, _ in rows if group}
    these, notes = set(groups.values()), []
    for name, runs in divided.items():
        rows = runs[0] if len(runs) == 1 else []  # each fold predicts the patients that it was not trained on
        if not any(path in groups for path, *_ in rows):  # other people may have these names
            continue
        others = (path for path, _, _, part in rows if part in ("train", "val") and path not in groups)
        if known := {patients.get(path) for path in others} & these:
            share = f"{len(known):,} of the {len(these):,} patients"
            notes.append(f"{name} was trained on, or chosen with, other images of {share}: its result is too good.")
    return notes


def _divided(model: Model) -> Runs:
    """Path, SHA-256, patient and split of every image of a model's run, or of each of its folds; [] if not known."""
    if model.known is None or model.file is None:
        return []
    place = model.file.parent.parent
    try:
        runs = map(RunFolder, [place] if RunFolder(place).splits.is_file() else sorted(place.glob("*fold-*")))
        found = (split_rows(run).items() for run in runs)
        return [[(path, row["sha256"], row.get("group", ""), row["split"]) for path, row in rows] for rows in found]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error):  # not there, or not vitmed's
        return []


def split_rows(run: RunFolder) -> dict[str, dict[str, str]]:
    """Read path -> the row of an image in splits.csv. Raises OSError, ValueError, KeyError, TypeError or csv.Error."""
    with run.splits.open(encoding="utf-8", newline="") as file:
        return {from_cell(row["path"]): row for row in csv.DictReader(file)}


def operating_points(models: Sequence[Model]) -> tuple[dict[str, str], list[str]]:
    """What decides between classes or findings for each model, such as "--target-sensitivity 0.95", "" for the
    likeliest; and a note where they differ."""
    points = dict[str, str]()
    for model in models:
        predictions, report = model.predictions, {} if model.known is None else model.known.metrics.get("report", {})
        points[model.name] = ""
        if predictions.kind != "number" and predictions.at_point:
            settings = report.get("evaluate", {})
            keys = [*TITLES, *["prevalence"] * bool(settings.get("cost"))]  # at another one, costs decide otherwise
            flags = [f"--{key} {settings[key]}".replace("_", "-") for key in keys if settings.get(key)]
            points[model.name] = " ".join(flags).removesuffix(" True") or "the decisions of its table"
    together = {point: listed([name for name in points if points[name] == point]) for point in points.values()}
    usual = f"the {TARGETS[models[0].kind].words.usual}"
    each = "; ".join(f"{names} by {point or usual}" for point, names in together.items())
    how = f"Two models of the same point are compared at it, two of different points by {usual}."
    return points, [f"The operating points differ: {each}. {how}"] * (len(together) > 1)


def compare_models(
    models: Sequence[Model], notes: Sequence[str] = (), labels: Kind | None = None
) -> paired.ComparisonResults:
    """Compare every two of several models, at least two, whose predictions are of the same images in one order, as
    labels of a kind (None: as the tables say). Of two with different `operating_points` the likeliest class decides."""
    (points, differ), first = operating_points(models), models[0].predictions
    notes = [*notes, *differ]
    units = int(first.units.max()) + 1
    of: Kind = labels or ("grades" if any(model.kind == "grades" for model in models) else first.kind)
    kind = TARGETS[of]
    found = {model.name: kind.numbers.evaluate(model.predictions) for model in models}
    notes += [note for note in found[models[0].name].notes if note.startswith("Means over")]  # the same of all
    numbers = {name: evaluated.overall for name, evaluated in found.items()}
    unit = "image" if first.groups is None else next((m.unit for m in models if m.unit != "patient"), "patient")
    pairs = _compare_pairs([*itertools.combinations(models, 2)], kind, points, unit)
    deciding = list(pairs[0].tests)[:2]
    groups = [(group, [numbers[name] for name in group]) for group in _seed_groups(models)]
    seeds = [paired.seed_spread(group, each, unit, kind.metrics, deciding) for group, each in groups]
    only_seeds = bool(seeds) and {*found} == {*seeds[0].seeds}  # which seed is best says nothing
    heights = dict[str, float]()  # the best first
    for model in models:
        values = ((name, numbers[model.name][name].value) for name in deciding)
        name, value = next(((name, value) for name, value in values if value is not None), (deciding[0], 0.0))
        heights[model.name] = -value if ALL_METRICS[name].higher_is_better else value
    best, following = sorted(heights, key=heights.__getitem__)[:2]
    verdict = next(pair.verdict for pair in pairs if {pair.first, pair.second} == {best, following})
    few = f"There {'is' if units == 1 else 'are'} only {counted(units, unit)}: too few to show which model is better."
    doubt = UNKNOWN if unit == "image" else OTHERS.format(unit)
    notes += [few] * (units < (FEW_IMAGES if unit == "image" else FEW_GROUPS)) + [doubt] * (unit != "patient")
    described = dict[str, paired.ComparedModel]()
    for model in models:
        stated = {name: getattr(model.known, name, None) for name in ("run", "created", "weights_hash")}
        facts: dict[str, Any] = {key: value for key, value in stated.items() if value}
        if any(pair.likeliest and model.name in (pair.first, pair.second) for pair in pairs):
            likeliest = kind.numbers.evaluate(model.predictions.without_point())
            facts["likeliest"] = paired.ModelNumbers(overall=likeliest.overall, per_class=likeliest.per_class)
        facts |= {"overall": numbers[model.name], "per_class": found[model.name].per_class, "point": points[model.name]}
        described[model.name] = paired.ComparedModel(**facts)
    return paired.ComparisonResults(
        kind=of,
        images=len(first),
        patients=None if first.groups is None else units,
        level=LEVEL,
        resampling=f"by {unit}",
        classes=list(first.classes),
        positive_class=first.positive,
        models=described,
        pairs=pairs,
        notes=gravest_first(notes),
        verdict=seeds[0].text if only_seeds else verdict,
        **({"seeds": seeds} if seeds else {}),
    )


def _seed_groups(models: Sequence[Model]) -> list[dict[str, int]]:
    """Model -> seed, of each group of runs whose configurations differ by train.seed only."""
    groups: dict[str, dict[str, int]] = {}
    for model in models:
        if model.file is not None:
            try:
                folder = RunFolder(model.file.parent.parent.absolute())
                content = read_yaml(folder.config)
                seed = int(content["train"].pop("seed"))
                for section, field, stored in paths_in(content, folder.path):  # relative, in folders at other depths
                    if not is_elsewhere(place := find_path(stored, folder.path)):
                        content[section][field] = str(place)
            except (YamlError, KeyError, TypeError, ValueError):  # a table without a run, or not vitmed's
                continue
            groups.setdefault(json.dumps(content, sort_keys=True, default=str), {})[model.name] = seed
    return [group for group in groups.values() if len(set(group.values())) == len(group) > 1]


def _compare_pairs(
    family: Sequence[tuple[Model, Model]], kind: TargetKind, points: Mapping[str, str], unit: str
) -> list[paired.ComparedPair]:
    """Pairs of models with a verdict. The p of a test is adjusted over the pairs; that of a class or finding over the
    pairs and all of these. Two with different `points` are compared by the likeliest class."""
    together = list[list[Any]]()
    for a, b in family:
        both = [a.predictions, b.predictions]
        together.append(both if points[a.name] == points[b.name] else [p.without_point() for p in both])
    overall, each = [], []
    with bar("comparing", unit="pairs") as advance:
        for first, second in together:
            overall.append(kind.numbers.compare(first, second))
            each.append(kind.numbers(first).class_gaps(kind.numbers(second)))
            advance(len(overall), len(together))
    tests = {name: iter(_adjusted([compared.tests[name] for compared in overall])) for name in overall[0].tests}
    areas = {k: iter(_adjusted([g for gaps in each for g in gaps[k].values()])) for k in each[0]}
    pairs = []
    for (a, b), compared, gaps in zip(family, overall, each, strict=True):
        parts: dict[str, Any] = {name: {part: next(areas[name]) for part in gaps[name]} for name in gaps}
        pair = paired.ComparedPair(
            first=a.name,
            second=b.name,
            likeliest=points[a.name] != points[b.name],
            difference=compared.difference,
            tests={name: next(adjusted) for name, adjusted in tests.items()},
            classes=parts.pop("auroc", None),
            **parts,
        )
        text = _verdict(pair, kind, a.predictions, len(family), unit)
        pairs.append(pair.model_copy(update={"verdict": text}))
    return pairs


def _adjusted(tests: Sequence[Test]) -> list[Test]:
    adjusted = zip(tests, paired.holm([test.p for test in tests]), strict=True)
    return [test.model_copy(update={"p_holm": p}) for test, p in adjusted]


def _verdict(pair: paired.ComparedPair, kind: TargetKind, of: Predictions, pairs: int, group: str) -> str:
    """Which of two is better, in a sentence about the first, minus the second; `pairs` are compared, and p is adjusted
    for them. `of`: predictions of one of them; `group`: a patient, or another kind of group."""
    (usual, second), name, metrics = list(pair.tests)[:2], _deciding(pair), kind.metrics
    units, patients, unit = int(of.units.max()) + 1, of.groups is not None, target_of(of).unit
    same = name == second and pair.difference[usual].value is not None
    gap, test, names = pair.difference[name], pair.tests[name], (pair.first, pair.second)
    if gap.value is None:
        undefined = f"{metrics[second].phrase} and {metrics[usual].phrase}"
        return f"{names[0]} and {names[1]} cannot be compared: {undefined} are undefined"
    result = f"{f'the same {metrics[usual].phrase}, ' if same else ''}{metrics[name].phrase} difference"
    in_unit = f" {unit}" if unit and metrics[name].in_unit else ""
    result = f"{result} {value_text(gap, '+')}{in_unit}, {counted(units, group)}"
    if gap.value == gap.low == gap.high == 0:
        return f"{names[0]} and {names[1]} are alike{' but for their operating points' * pair.likeliest}: {result}"
    if patients and units < FEW_GROUPS:
        return f"{names[0]} is {UNCLEAR} than {names[1]}: {result}, too few to decide"
    winner = better(pair, units, patients)
    how = UNCLEAR if winner is None else "better" if winner == pair.first else "worse"
    p = test.p if test.p_holm is None else test.p_holm
    shown = "" if p is None else f", p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}"
    adjusted = f" adjusted for {pairs} pairs" * (p is not None and pairs > 1)
    return f"{names[0]} is {how} than {names[1]}: {result}{shown}{adjusted}"


def better(pair: paired.ComparedPair, units: int, patients: bool) -> str | None:
    """Return the better of two; None where that cannot be said: too few patients (`units` are images unless
    `patients`), or a difference that may be chance."""
    name = _deciding(pair)
    gap, test = pair.difference[name], pair.tests[name]
    p = test.p if test.p_holm is None else test.p_holm
    few = patients and units < FEW_GROUPS
    if few or p is None or p >= 1 - LEVEL or gap.low is None or gap.high is None:
        return None
    names = (pair.first, pair.second) if ALL_METRICS[name].higher_is_better else (pair.second, pair.first)
    return names[0] if gap.low > 0 else names[1] if gap.high < 0 else None


def _deciding(pair: paired.ComparedPair) -> str:
    """The number that decides: the first that is tested, or the second where that is undefined or the same."""
    usual, second = list(pair.tests)[:2]
    gaps = [pair.difference[name] for name in (usual, second)]
    alike = [gap.value == 0 and gap.low in (0, None) and gap.high in (0, None) for gap in gaps]
    return second if alike == [True, False] or gaps[0].value is None else usual
