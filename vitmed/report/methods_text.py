"""The statistical methods of a report: a paragraph for a paper, a table, and the references, from its own estimates."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from vitmed import __version__
from vitmed.core.base_models import Frozen
from vitmed.decisions.operating_points import TITLES as POINTS
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.metric_table import methods, phrase
from vitmed.metrics.readers import ReaderComparison
from vitmed.report.results import Results
from vitmed.report.templates import fill, joined, name_of

KEYED = ("overall", "difference", "numbers", "gaps", "clean", "change")  # fields whose keys are names of numbers
MAIN = ("overall", "per_class", "patient_level", "operating_points", "prevalence")  # parts of the first paragraph
SAME = ("internal", "external", "difference")  # fields of a number that is named above them
PARTLY = "(in part)"
PREFIXES = {"difference": "differences in ", "gaps": "gaps in ", "change": "changes by the calibration in "}
PREFIXES["promised"] = "validation values of "


class Row(NamedTuple):
    """Numbers whose intervals come from one method; `cites` are numbers in the list of references, such as [1, 2]."""

    numbers: str
    method: str
    resamples: int | None
    cites: str


class MethodsText(NamedTuple):
    """The paragraphs for a paper, the table behind them, and the references that both cite, the first is [1]."""

    paragraphs: list[str]
    rows: list[Row]
    references: list[str]


def methods_text(metrics: Results, shown: Callable[[str], str] = str) -> MethodsText:
    """Describe the methods of the intervals that this report has, with the names of classes as `shown`."""
    cited, table = list[str](), methods()
    primary = [("", table.parts[part]) for part in MAIN]

    def cite(sources: Sequence[str]) -> str:
        cited.extend(source for source in sources if source not in cited)
        return str(sorted(cited.index(source) + 1 for source in sources))

    groups, unit = _by_method(metrics), "image" if metrics.n_groups is None else "patient"
    main, further = list[str](), list[str]()
    for lines in (main, further):
        for (key, resamples), names in groups.items():
            which = [f"for {text}" for about, text in names.items() if (about in primary) == (lines is main)]
            drawn = "" if resamples is None else f" ({resamples:,} resamples)"
            if which:
                how, numbers = table.intervals[key], joined(which).replace("for", "For", 1)
                way = f"{how.text.format(unit=unit)}{drawn} {cite(how.sources)}"
                lines.append(f"{numbers}, intervals were computed with {way}.")
    estimates, baselines = [*_estimates(metrics)], metrics.baselines.values()
    used = {(field, of.method) for _, prefix, field, of in estimates if not prefix}
    by_variance = {field for field, method in used if method in ("delong", "obuchowski", "influence", "jackknife")}
    scales = {text: [name_of(name) for name in names if name in by_variance] for text, names in table.scales.items()}
    of_readers = [test for found in metrics.readers or () for test in (found.random_readers, found.fixed_readers)]
    shuffles = [0]
    for cut in (metrics.subgroups or {}).values():
        shuffles += [cut.shuffles or 0 for gap in cut.gaps.values() if gap.by_chance is not None]
    text = fill(
        "methods.txt.j2",
        metrics=metrics,
        shown=lambda name: " ".join(shown(name).split()),
        cite=cite,
        sources=table.definitions,
        how=table.tests,
        thresholds=_thresholds(metrics),
        main=main,
        further=further,
        scales=[text.format(joined(names)) for text, names in scales.items() if names],
        used=used,
        methods={method for _, method in used},
        uneven=unit == "patient" and {"wilson-cluster", "obuchowski", "influence"} & {key for key, _ in groups},
        partly=any(PARTLY in text for names in groups.values() for text in names.values()),
        readers_tested=any(test is not None and test.p is not None for test in of_readers),
        shuffles=max(shuffles),
        tests=sorted(
            {(name, test.method) for of in baselines for name, test in of.tests.items() if test.p is not None}
        ),
        fields=[field for field in dict.fromkeys(of[2] for of in estimates) if field in table.definitions],
        resampled=any(of.resamples is not None for *_, of in estimates),
        version=__version__,
    )
    paragraphs = [part.replace("\n", " ") for part in re.split("\n\n+", text.strip("\n"))]
    rows = []
    for (key, resamples), names in groups.items():
        how = table.intervals[key]
        rows.append(Row("; ".join(names.values()), how.title, resamples, cite(how.sources)))
    return MethodsText(paragraphs, rows, [table.references[key] for key in cited])


def _thresholds(metrics: Results) -> str:
    """From what findings were called, and by which rule that was chosen."""
    points = [of["operating"] for of in (metrics.report.policy or {}).get("findings", {}).values()]
    asked = {point["chosen"]: point["points"][point["chosen"]]["asked"] for point in points}
    for folds in (metrics.folds.findings if metrics.folds else {}).values():
        asked |= {fold.point: folds.target for fold in folds.each}
    half = ", or from 0.5 where none could be chosen" * ("default" in asked)
    ways = {phrase(POINTS[key]): x for key, x in asked.items() if key != "default"}
    rules = [name if x is None or isinstance(x, list) else f"{name} {x}" for name, x in ways.items()]
    own = f"a threshold of its own{' in each fold' * (metrics.folds is not None)}, chosen on validation images"
    return f"{own} ({joined(rules)}){half}" if rules else "a probability of 0.5"


def _estimates(metrics: Results) -> Iterator[tuple[str, str, str, Estimate]]:
    """(part, prefix, field, estimate) of every number that has an interval; the prefix is one of `PREFIXES`, or ""."""
    for part in methods().parts:
        for prefix, field, found in _inside(metrics[part], part, part in KEYED):
            if found.low is not None:
                yield part, prefix, field, found


def _inside(part: Any, field: str, keyed: bool = False, prefix: str = "") -> Iterator[tuple[str, str, Estimate]]:
    if isinstance(part, Estimate):
        yield prefix, field, part
    elif isinstance(part, Frozen):
        for name, value in part:
            named = field if name in SAME and isinstance(value, Estimate) else name
            named = "readers" if named == "model" and isinstance(part, ReaderComparison) else named
            yield from _inside(value, named, name in KEYED, PREFIXES.get(name, prefix))
    elif isinstance(part, dict):
        for key, value in part.items():
            yield from _inside(value, key if keyed else field, prefix=prefix)
    elif isinstance(part, list):
        for value in part:
            yield from _inside(value, field, prefix=prefix)


def _by_method(metrics: Results) -> dict[tuple[str, int | None], dict[tuple[str, str], str]]:
    """(method, resamples) -> (prefix, what the numbers are about) -> their names, in the order of methods.yaml. A
    number that one method serves for all images and in a part is named once, for all images; `PARTLY` stands behind a
    number that has two methods, such as one for small samples."""
    groups: dict[tuple[str, int | None], dict[tuple[str, str], list[str]]] = {}
    parts = methods().parts
    for part, prefix, field, estimate in _estimates(metrics):
        names = groups.setdefault((estimate.method or "", estimate.resamples), {})
        name, about = name_of(field), (prefix, parts[part])
        wholes = [about, *([] if prefix else [("", parts["overall"]), ("", parts["per_class"])])]
        if not any(name in names.get(whole, []) for whole in wholes):
            names.setdefault(about, []).append(name)
    several = Counter((about, name) for names in groups.values() for about, own in names.items() for name in own)
    texts: dict[tuple[str, int | None], dict[tuple[str, str], str]] = {}
    order = list(methods().intervals)
    for key in sorted(groups, key=lambda key: (order.index(key[0]), -(key[1] or 0))):
        texts[key] = {}
        for place, own in groups[key].items():
            each = [f"{name} {PARTLY}" if several[place, name] > 1 else name for name in own]
            texts[key][place] = f"{place[0]}{joined(each)} {place[1]}".strip()
    return texts
