"""`vitmed compare`: which of several models is better on the same images, if the data can show it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from vitmed.commands.compared_tables import Model, align, read_all, same_predictions
from vitmed.core.files import whole_folder, write_bytes, write_json
from vitmed.core.outputs import data_of_runs
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted
from vitmed.core.ui import Ui
from vitmed.core.yaml_files import YamlError, read_yaml
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.evaluation import evaluate_predictions
from vitmed.metrics.metric_table import METRICS
from vitmed.metrics.notes import FEW_GROUPS
from vitmed.metrics.paired_comparison import (
    ClassDifference,
    ComparedModel,
    ComparedPair,
    ComparisonResults,
    ComparisonTest,
    ComparisonTests,
    compare_classes,
    compare_predictions,
    holm,
)
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.seed_spread import seed_spread
from vitmed.report.rebuild import new_folder

LEVEL, MANY_CLASSES = 0.95, 50
UNKNOWN = "Patients are unknown: each image counts as independent, so the comparison is more certain than it should be."

Test = TypeVar("Test", ComparisonTest, ClassDifference)


@dataclass(frozen=True)
class Comparison:
    """The content of compare.json, the verdict in one sentence, and the folder of both compare.json and the picture."""

    content: ComparisonResults
    verdict: str
    folder: Path | None


def compare(
    *results: str | Path, output: str | Path | None = None, resamples: int = 2000, ui: Ui | None = None
) -> Comparison:
    """Compare models by their predictions for the same images.

    Images are matched by path; an image that a table lacks is left out. Baselines beside a report are compared too.
    Of runs that differ by their seed only, the spread over seeds is reported too.

    Args:
        *results: predictions.csv files, folders of a report, or run folders (their test); at least two, or one with
            baselines in its folder.
        output: a new folder for compare.json and differences.png.
        resamples: bootstrap resamples behind the intervals.

    Raises:
        DataError: the tables differ in classes, labels or the content of images, or have no image in common.
        UsageError: nothing to compare, or an output that exists.
    """
    ui = ui or Ui()
    paths = [Path(result) for result in results]
    folder = None if output is None else new_folder(output, Path(output), *data_of_runs(paths))
    read = read_all(paths)
    models, notes = align(read)
    notes += [f"{model.name}: {note}" for model in read for note in model.predictions.notes]
    content = compare_models(models, resamples, ui, notes)
    if folder is not None:
        from vitmed.report.plots.comparisons import differences
        from vitmed.report.plots.drawing import png

        picture = png(differences(content))
        with whole_folder(folder) as part:
            write_json(part / "compare.json", content.to_dict())
            write_bytes(part / "differences.png", picture)
    for note in content.notes:
        ui.warn(note)
    return Comparison(content, content.verdict, folder)


def compare_models(models: Sequence[Model], resamples: int, ui: Ui, notes: Sequence[str] = ()) -> ComparisonResults:
    """Compare every two of several models, at least two, whose predictions are of the same images in one order.

    Args:
        resamples: 0 leaves out the intervals that need them: of all but AUROC, accuracy and balanced accuracy.
        notes: that are known about the models.
    """
    notes, first = list(notes), models[0].predictions
    units = int(first.units.max()) + 1
    numbers = {model.name: evaluate_predictions(model.predictions, resamples).overall for model in models}
    pairs = _compare_pairs(models, resamples, units, ui)
    unit = "image" if first.groups is None else "patient"
    seeds = [seed_spread(group, [numbers[name] for name in group], unit) for group in _seed_groups(models)]
    own = {model.name for model in models if model.baseline_of is None}
    only_seeds = bool(seeds) and own == set(seeds[0].seeds)  # which seed is best says nothing
    last = seeds[0].text if only_seeds else pairs[_best_and_next(models, numbers, pairs)].verdict
    if first.groups is None:
        notes.append(UNKNOWN)
    elif units < FEW_GROUPS:
        verb = "is" if units == 1 else "are"
        notes.append(f"There {verb} only {counted(units, 'patient')}: too few to show which model is better.")
    return ComparisonResults(
        images=len(first), patients=None if first.groups is None else units, level=LEVEL, resamples=resamples,
        resampling="by image" if first.groups is None else "by patient",
        classes=list(first.classes), positive_class=first.positive,
        models={m.name: _described(m, numbers[m.name]) for m in models},
        pairs=pairs, notes=notes, verdict=last, **({"seeds": seeds} if seeds else {}),
    )  # fmt: skip


def _seed_groups(models: Sequence[Model]) -> list[dict[str, int]]:
    """Model -> seed, of each group of runs whose configurations differ by train.seed only."""
    groups: dict[str, dict[str, int]] = {}
    for model in models:
        if model.file is not None:
            config = RunFolder(model.file.parent.parent).config
            try:
                content = read_yaml(config)
                seed = int(content["train"].pop("seed"))
            except (YamlError, KeyError, TypeError, ValueError):  # a table without a run, or not vitmed's
                continue
            groups.setdefault(json.dumps(content, sort_keys=True, default=str), {})[model.name] = seed
    return [group for group in groups.values() if len(set(group.values())) == len(group) > 1]


def _described(model: Model, overall: dict[str, Estimate]) -> ComparedModel:
    """A model in compare.json; the report beside the table of a baseline is about another model."""
    found = model.known
    given = {} if found is None else {"run": found.run, "created": found.created, "weights_hash": found.weights_hash}
    known = {name: value for name, value in given.items() if value}
    return ComparedModel(baseline_of=model.baseline_of, overall=overall, **known)


def _compare_pairs(models: Sequence[Model], resamples: int, units: int, ui: Ui) -> list[ComparedPair]:
    """Every two models that are not both baselines, with a verdict.

    The p of each test is adjusted over all pairs, that of a class over all pairs and classes.
    """
    together = [p for p in itertools.combinations(models, 2) if not all(m.baseline_of for m in p)]
    by_class = 2 < len(models[0].predictions.classes) <= MANY_CLASSES
    found, classes = [], []
    with ui.bar("comparing", unit="pairs") as advance:
        for a, b in together:
            found.append(compare_predictions(a.predictions, b.predictions, resamples))
            classes.append(compare_classes(a.predictions, b.predictions) if by_class else {})
            advance(len(found), len(together))
    auroc, accuracy = _adjusted([one.tests.auroc for one in found]), _adjusted([one.tests.accuracy for one in found])
    of_classes = iter(_adjusted([difference for own in classes for difference in own.values()]))
    pairs = []
    for (a, b), one, area, right, own in zip(together, found, auroc, accuracy, classes, strict=True):
        pair = ComparedPair(
            first=a.name, second=b.name, difference=one.difference,
            tests=ComparisonTests(auroc=area, accuracy=right),
            classes={name: next(of_classes) for name in own} if by_class else None,
        )  # fmt: skip
        said = _verdict_of(pair, a.predictions, b.predictions, units, len(together))
        pairs.append(pair.model_copy(update={"verdict": said}))
    return pairs


def _adjusted(tests: Sequence[Test]) -> list[Test]:
    return [test.model_copy(update={"p_holm": p}) for test, p in zip(tests, holm([t.p for t in tests]), strict=True)]


def _verdict_of(pair: ComparedPair, one: Predictions, other: Predictions, units: int, pairs: int) -> str:
    if same_predictions(one, other) and np.array_equal(one.predicted, other.predicted):
        return f"{pair.first} and {pair.second} are the same: they predict the same for every image"
    return verdict(pair, units, one.groups is not None, pairs)


def verdict(pair: ComparedPair, units: int, patients: bool, pairs: int = 1) -> str:
    """Which of two is better, in a sentence: by AUROC, or by accuracy where AUROC is undefined or the same.

    Args:
        units: how many patients, or images.
        patients: whether the units are patients.
        pairs: that are compared; p is adjusted for them.
    """
    metric = _deciding(pair)
    same = metric == "accuracy" and pair.difference["auroc"].value is not None
    gap, p = pair.difference[metric], pair.tests[metric].p_holm
    names = pair.first, pair.second
    if gap.value is None:
        return f"{names[0]} and {names[1]} cannot be compared: accuracy and AUROC are undefined"
    value, low, high = gap.value, gap.low, gap.high
    if value < 0:
        names = names[::-1]
        value, low, high = -value, None if high is None else -high, None if low is None else -low
    count = counted(units, "patient" if patients else "image")
    name = METRICS[metric].title
    interval = "" if low is None or high is None else f" ({low:+.3f} to {high:+.3f})"
    result = f"{'the same AUROC, ' if same else ''}{name} difference {value:+.3f}{interval}, {count}"
    if patients and units < FEW_GROUPS:
        return f"{names[0]} is not clearly better than {names[1]}: {result}, too few to decide"
    if _no_gap(gap):
        return f"{names[0]} and {names[1]} are alike: {result}"
    clear = better(pair, units, patients) is not None
    shown = "" if p is None else f", p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}"
    shown += f" adjusted for {pairs} pairs" if shown and pairs > 1 else ""
    return f"{names[0]} is {'' if clear else 'not clearly '}better than {names[1]}: {result}{shown}"


def better(pair: ComparedPair, units: int, patients: bool) -> str | None:
    """The better of two; None if they cannot be told apart: too few patients, or a difference that may be chance.

    Args:
        units, patients: as for `verdict`.
    """
    gap, p = pair.difference[_deciding(pair)], pair.tests[_deciding(pair)].p_holm
    few = patients and units < FEW_GROUPS
    if few or p is None or p >= 1 - LEVEL or gap.low is None or gap.high is None:
        return None
    return pair.first if gap.low > 0 else pair.second if gap.high < 0 else None


def _deciding(pair: ComparedPair) -> Literal["auroc", "accuracy"]:
    """The number that decides: AUROC, or accuracy where AUROC is undefined or the same."""
    same = _no_gap(pair.difference["auroc"]) and not _no_gap(pair.difference["accuracy"])
    return "accuracy" if same or pair.difference["auroc"].value is None else "auroc"


def _no_gap(gap: Estimate) -> bool:
    """Whether a difference and its interval are exactly 0."""
    return gap.value == 0 and gap.low in (0, None) and gap.high in (0, None)


def _best_and_next(
    models: Sequence[Model], numbers: Mapping[str, Mapping[str, Estimate]], pairs: Sequence[ComparedPair]
) -> int:
    """The number of the pair of the best model and the next; a baseline comes last."""

    def height(model: Model) -> float:
        auroc, accuracy = (numbers[model.name][name].value for name in ("auroc", "accuracy"))
        return (accuracy or 0.0) if auroc is None else auroc

    ranked = sorted(models, key=lambda m: (m.baseline_of is not None, -height(m)))
    wanted = {ranked[0].name, ranked[1].name}
    return next(i for i, pair in enumerate(pairs) if {pair.first, pair.second} == wanted)
