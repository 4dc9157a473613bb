"""`vitmed compare`: which of several models is better on the same images, if the data can show it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vitmed.commands.accept import accept as judge
from vitmed.commands.accept import check_criteria, read_criteria
from vitmed.core.errors import GateError
from vitmed.core.files import whole_folder, write_bytes, write_json
from vitmed.core.messages import bar, warn
from vitmed.core.outputs import data_of_runs
from vitmed.core.run_folder import RunFolder
from vitmed.core.targets import Kind
from vitmed.core.text import counted
from vitmed.core.yaml_files import YamlError, read_yaml
from vitmed.decisions.targets import ALL_METRICS, TARGETS, TargetKind
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.any_predictions import target_of
from vitmed.metrics.metric_table import METRICS, Metric
from vitmed.metrics.notes import FEW_GROUPS
from vitmed.metrics.paired_comparison import (
    ClassDifference,
    ComparedModel,
    ComparedPair,
    ComparisonResults,
    ComparisonTest,
    holm,
)
from vitmed.metrics.seed_spread import seed_spread
from vitmed.report.acceptance import Acceptance, write_acceptance
from vitmed.report.rebuild import new_folder
from vitmed.studies.compared_tables import Model, align, positive_of, read_all, same_predictions

LEVEL = 0.95
UNKNOWN = "Patients are unknown: each image counts as independent, so the comparison is more certain than it should be."

Test = TypeVar("Test", ComparisonTest, ClassDifference)


@dataclass(frozen=True)
class Comparison:
    """The content of compare.json, the verdict in one sentence, the folder of compare.json and the picture, and how the
    first model was judged by pre-stated criteria."""

    content: ComparisonResults
    verdict: str
    folder: Path | None
    acceptance: Acceptance | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain types: compare.json, and acceptance.json as `acceptance`."""
        content = self.content.to_dict()
        return content if self.acceptance is None else content | {"acceptance": self.acceptance.to_dict()}


def compare(
    *results: str | Path, output: str | Path | None = None, resamples: int = 2000, accept: str | Path | None = None,
    ) -> Comparison:  # fmt: skip
    """Compare models by their predictions for the same images.

    Images are matched by path; an image that a table lacks is left out. Baselines beside a report are compared too.
    Of runs that differ by their seed only, the spread over seeds is reported too.

    Args:
        *results: predictions.csv files, folders of a report, or run folders (their test); at least two, or one with
            baselines in its folder.
        output: a new folder for compare.json and differences.png.
        resamples: bootstrap resamples behind the intervals.
        accept: a YAML file of pre-stated criteria for the first model; some of them compare it with the second.

    Raises:
        GateError: the first model does not meet the criteria.
        DataError: the tables differ in the kind of label, classes, findings, unit, labels or the content of images, or
            have no image in common.
        UsageError: nothing to compare, or an output that exists.
    """
    paths = [Path(result) for result in results]
    folder = None if output is None else new_folder(output, Path(output), *data_of_runs(paths))
    stated = None if accept is None else read_criteria(Path(accept))
    read = read_all(paths)
    if stated is not None:
        check_criteria(stated[0], read, len(paths))
    models, notes = align(read)
    notes += [f"{model.name}: {note}" for model in read for note in model.predictions.notes]
    content = compare_models(models, resamples, notes)
    judged = None
    if stated is not None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        judged = judge(*stated, read, models, content.pairs, resamples, now)
    if folder is not None:
        from vitmed.report.plots.comparisons import differences
        from vitmed.report.plots.drawing import png

        picture = png(differences(content))
        with whole_folder(folder) as part:
            write_json(part / "compare.json", content.to_dict())
            write_bytes(part / "differences.png", picture)
            if judged is not None:
                write_acceptance(part, judged)
    for note in content.notes:
        warn(note)
    found = Comparison(content, content.verdict, folder, judged)
    if judged is not None and not judged.accepted:
        raise GateError(judged.verdict, "the criteria were stated before: improve the model, not the criteria", found)
    return found


def compare_models(
    models: Sequence[Model], resamples: int, notes: Sequence[str] = (), labels: Kind | None = None
) -> ComparisonResults:
    """Compare every two of several models, at least two, whose predictions are of the same images in one order.

    Args:
        resamples: 0 leaves out the intervals that need them: of classes all but AUROC, accuracy and balanced accuracy.
        notes: that are known about the models.
        labels: their kind; None: as the tables say.
    """
    notes, first = list(notes), models[0].predictions
    units = int(first.units.max()) + 1
    said: Kind = next((model.kind for model in models if model.kind == "grades"), first.kind)
    of = said if labels is None else labels
    kind = TARGETS[of]
    numbers = {model.name: kind.evaluate(model.predictions, resamples).overall for model in models}
    pairs = _compare_pairs(models, kind, resamples, units)
    unit = "image" if first.groups is None else "patient"
    seeds = [
        seed_spread(group, [numbers[name] for name in group], unit, kind.metrics, list(pairs[0].tests)[:2])
        for group in _seed_groups(models)
    ]
    own = {model.name for model in models if model.baseline_of is None}
    only_seeds = bool(seeds) and own == set(seeds[0].seeds)  # which seed is best says nothing
    last = seeds[0].text if only_seeds else pairs[_best_and_next(models, numbers, pairs)].verdict
    if first.groups is None:
        notes.append(UNKNOWN)
    elif units < FEW_GROUPS:
        verb = "is" if units == 1 else "are"
        notes.append(f"There {verb} only {counted(units, 'patient')}: too few to show which model is better.")
    return ComparisonResults(
        kind=of, images=len(first), patients=None if first.groups is None else units, level=LEVEL,
        resamples=resamples, resampling="by image" if first.groups is None else "by patient",
        classes=list(first.classes), positive_class=positive_of(first),
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


def _compare_pairs(models: Sequence[Model], kind: TargetKind, resamples: int, units: int) -> list[ComparedPair]:
    """Every two models that are not both baselines, with a verdict.

    The p of each test is adjusted over all pairs, that of a class or finding over all pairs and all of these.
    """
    together = [p for p in itertools.combinations(models, 2) if not all(m.baseline_of for m in p)]
    found, each = [], []
    with bar("comparing", unit="pairs") as advance:
        for a, b in together:
            found.append(kind.compare(a.predictions, b.predictions, resamples))
            each.append(kind.compare_each(a.predictions, b.predictions))
            advance(len(found), len(together))
    tests = {name: iter(_adjusted([one.tests[name] for one in found])) for name in found[0].tests}
    areas = {name: iter(_adjusted([gap for own in each for gap in own[name].values()])) for name in each[0]}
    pairs = []
    for (a, b), one, own in zip(together, found, each, strict=True):
        parts = {name: {part: next(areas[name]) for part in own[name]} for name in own}
        further: dict[str, Any] = {name: gaps for name, gaps in parts.items() if name != "auroc"}
        pair = ComparedPair(
            first=a.name, second=b.name, difference=one.difference,
            tests={name: next(adjusted) for name, adjusted in tests.items()}, classes=parts.get("auroc"), **further,
        )  # fmt: skip
        said = _verdict_of(pair, kind, a.predictions, b.predictions, units, len(together))
        pairs.append(pair.model_copy(update={"verdict": said}))
    return pairs


def _adjusted(tests: Sequence[Test]) -> list[Test]:
    return [test.model_copy(update={"p_holm": p}) for test, p in zip(tests, holm([t.p for t in tests]), strict=True)]


def _verdict_of(pair: ComparedPair, kind: TargetKind, one: Any, other: Any, units: int, pairs: int) -> str:
    decided = one.kind == "number" or np.array_equal(one.predicted, other.predicted)
    if decided and same_predictions(one, other):
        return f"{pair.first} and {pair.second} are the same: they predict the same for every image"
    return verdict(pair, units, one.groups is not None, pairs, kind.metrics, target_of(one).unit)


def verdict(
    pair: ComparedPair, units: int, patients: bool, pairs: int = 1, metrics: Mapping[str, Metric] = METRICS,
    unit: str = "",
) -> str:  # fmt: skip
    """Which of two is better, in a sentence: by the first number that is tested, or by the second where the first is
    undefined or the same.

    Args:
        units: how many patients, or images.
        patients: whether the units are patients.
        pairs: that are compared; p is adjusted for them.
        metrics: of the kind of label.
        unit: of a number.
    """
    usual, other = list(pair.tests)[:2]
    name = _deciding(pair)
    same = name == other and pair.difference[usual].value is not None
    gap, p, names = pair.difference[name], pair.tests[name].p_holm, (pair.first, pair.second)
    if gap.value is None:
        both = f"{metrics[other].phrase} and {metrics[usual].phrase}"
        return f"{names[0]} and {names[1]} cannot be compared: {both} are undefined"
    if (gap.value < 0) == metrics[name].higher_is_better and gap.value:
        names, gap = names[::-1], gap.reversed
    count, of = counted(units, "patient" if patients else "image"), f" {unit}" if unit and metrics[name].in_unit else ""
    interval = "" if gap.low is None or gap.high is None else f" ({gap.low:+.3f} to {gap.high:+.3f})"
    result = f"{f'the same {metrics[usual].phrase}, ' if same else ''}{metrics[name].phrase} difference"
    result = f"{result} {gap.value:+.3f}{interval}{of}, {count}"
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
    name = _deciding(pair)
    gap, p = pair.difference[name], pair.tests[name].p_holm
    few = patients and units < FEW_GROUPS
    if few or p is None or p >= 1 - LEVEL or gap.low is None or gap.high is None:
        return None
    above = pair.first if ALL_METRICS[name].higher_is_better else pair.second
    below = pair.second if above == pair.first else pair.first
    return above if gap.low > 0 else below if gap.high < 0 else None


def _deciding(pair: ComparedPair) -> str:
    """The number that decides: the first that is tested, or the second where that is undefined or the same."""
    usual, other = list(pair.tests)[:2]
    same = _no_gap(pair.difference[usual]) and not _no_gap(pair.difference[other])
    return other if same or pair.difference[usual].value is None else usual


def _no_gap(gap: Estimate) -> bool:
    """Whether a difference and its interval are exactly 0."""
    return gap.value == 0 and gap.low in (0, None) and gap.high in (0, None)


def _best_and_next(
    models: Sequence[Model], numbers: Mapping[str, Mapping[str, Estimate]], pairs: Sequence[ComparedPair]
) -> int:
    """The number of the pair of the best model and the next; a baseline comes last."""
    deciding = list(pairs[0].tests)[:2]

    def height(model: Model) -> float:
        known = ((name, numbers[model.name][name].value) for name in deciding)
        name, value = next(((name, value) for name, value in known if value is not None), (deciding[0], 0.0))
        return value if ALL_METRICS[name].higher_is_better else -value

    ranked = sorted(models, key=lambda m: (m.baseline_of is not None, -height(m)))
    wanted = {ranked[0].name, ranked[1].name}
    return next(i for i, pair in enumerate(pairs) if {pair.first, pair.second} == wanted)
