"""The statistical methods of a report: a paragraph for a paper, a table, and the references, from its own estimates."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from vitmed import __version__
from vitmed.core.base_models import Frozen
from vitmed.core.config import GRADE_ERRORS
from vitmed.core.text import counted, format_probability
from vitmed.decisions.operating_points import DECIDES
from vitmed.decisions.operating_points import TITLES as POINTS
from vitmed.metrics.estimates import FEWEST, Estimate
from vitmed.metrics.metric_table import TITLES, methods, phrase
from vitmed.metrics.readers import ReaderComparison
from vitmed.report.results import Results

KEYED = ("overall", "difference", "numbers", "gaps", "clean", "change")  # fields whose keys are names of numbers
MAIN = ("overall", "per_class", "patient_level", "operating_points", "prevalence")  # parts of the first paragraph
SAME = ("internal", "external", "difference")  # fields of a number that is named above them
PARTLY = "(in part)"
UNEVEN = (
    "Where a few patients held most images, the variances were those of independent images times Kish's design effect "
    "{} at the intraclass correlation of all patients."
)
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
    estimates = [*_estimates(metrics)]
    main += _scales({(field, of.method) for _, prefix, field, of in estimates if not prefix})
    if unit == "patient" and {"wilson-cluster", "obuchowski", "influence"} & {key for key, _ in groups}:
        main.append(UNEVEN.format(cite(table.definitions["uneven"])))
    if any(PARTLY in text for names in groups.values() for text in names.values()):
        main.append("'In part' marks a number whose values came from more than one method, such as one for few images.")
    further += _tests(metrics, cite)
    fitted, choice = metrics.calibration, metrics.report.facts.get("Model choice")
    chosen = [f"Choice of the model: {choice}."] if choice else []
    if metrics.finding_reports and metrics.report.policy:
        chosen.append("The report of each finding says how its probabilities were calibrated on validation images.")
    if fitted is not None and (fitted.folds or metrics.report.policy):
        ways = {"temperature": "by temperature scaling", "vector": "by vector scaling", "none": "not calibrated"}
        method = "none" if {fold.method for fold in fitted.folds or ()} == {"none"} else fitted.method
        fit = ways.get(method, "for each fold by itself, as its report says")
        source = "" if fit == ways["none"] else f" {cite(table.definitions['calibration'])}"
        chosen.append(f"Calibration of the probabilities, as chosen on validation images: {fit}{source}.")
    kinds = (("conformal", "Prediction sets, with a threshold for each class,"), ("intervals", "Prediction intervals"))
    for key, what in kinds:
        if (sets := metrics[key]) is not None:
            by = f"split conformal prediction {cite(table.definitions[key])}, by {sets.by} on validation images"
            chosen.append(f"{what} came from {by}, for a coverage of {sets.asked:g}.")
    fields = [field for field in dict.fromkeys(field for _, _, field, _ in estimates) if field in table.definitions]
    defined = [f"{name_of(field)} {cite(table.definitions[field])}" for field in fields]
    follow = f"follow{'' if len(defined) > 1 else 's'} the definition{'s' if len(defined) > 1 else ''} cited"
    last = [f"{joined(defined)[0].upper()}{joined(defined)[1:]} {follow}."] if defined else []
    if metrics.calibration is not None and metrics.calibration.after.ece_if_right is not None:
        last.append(
            f"The expected calibration error {cite(table.definitions['ece'])} was compared with its distribution under "
            f"perfect calibration, simulated by drawing labels from the probabilities "
            f"{cite(table.definitions['ece_if_right'])}."
        )
    last.append(f"All numbers were computed with vitmed {__version__}.")
    paragraphs = [_design(metrics, shown), *(" ".join(part) for part in (main, further, chosen, last) if part)]
    rows = []
    for (key, resamples), names in groups.items():
        how = table.intervals[key]
        rows.append(Row("; ".join(names.values()), how.title, resamples, cite(how.sources)))
    return MethodsText(paragraphs, rows, [table.references[key] for key in cited])


def _scales(used: set[tuple[str, str | None]]) -> Iterator[str]:
    """On which scale an interval was computed from its variance, and its other limits, for each (field, method)."""
    by_variance = {field for field, method in used if method in ("delong", "obuchowski", "influence", "jackknife")}
    for text, names in methods().scales.items():
        if found := [name_of(name) for name in names if name in by_variance]:
            yield text.format(joined(found))
    if used & {("f1", "wilson"), ("f1", "wilson-cluster")}:
        yield "The interval of the F1 of a class was derived from that of TP / (TP + FP + FN)."
    if {"wilson-cluster", "delong", "obuchowski"} & {method for _, method in used}:
        what = "a proportion" + " or AUROC" * any(field == "auroc" for field, _ in used)
        yield f"The lower limit of {what} was capped at that of as many images without an error."


def _tests(metrics: Results, cite: Callable[[Sequence[str]], str]) -> list[str]:
    """What is said of tests: against readers, between subgroups, and against baselines; nothing without them."""
    tests = [pair for baseline in metrics.baselines.values() for pair in baseline.tests.items()]
    used, how = {(name, test.method) for name, test in tests if test.p is not None}, methods().tests
    of_readers = [test for found in metrics.readers or () for test in (found.random_readers, found.fixed_readers)]
    others = []
    if any(test is not None and test.p is not None for test in of_readers):
        others.append("P-values of the comparison with readers were two-sided and came from the same methods.")
    cut = [one for one in (metrics.subgroups or {}).values() if any(g.by_chance is not None for g in one.gaps.values())]
    if drawn := max((one.shuffles or 0 for one in cut), default=0):
        units = "images" if metrics.n_groups is None else "patients"
        dealt = f"estimated by assigning the groups to the {units} at random ({drawn:,} times)"
        others.append(f"How often chance alone would give gaps between subgroups as large was {dealt}.")
    each = [f"in {name_of(name)} with {how[key].text} {cite(how[key].sources)}" for name, key in sorted(used)]
    if any(gap.p_holm is not None for baseline in metrics.baselines.values() for gap in baseline.findings.values()):
        holm = cite(methods().definitions["p_holm"])
        others.append(f"P-values of single findings were adjusted for all findings by the method of Holm {holm}.")
    if not each:
        return others
    paired = "Differences from the baselines were paired, and their intervals were computed on the original scale."
    if any(baseline.likeliest for baseline in metrics.baselines.values()):
        decided = "side of 0.5" if metrics.target.kind == "findings" else "likeliest class"
        paired += f" For these, the model, too, decided by the {decided}, since no baseline has its operating point."
    return [*others, paired, f"Differences from the baselines were tested {joined(each)}."]


def _design(metrics: Results, shown: Callable[[str], str]) -> str:
    positive, sizes, points = metrics.positive_class, metrics.sample.images_per_patient, metrics.operating_points
    unit = metrics.unit
    patients = "" if metrics.n_groups is None else f" of {counted(metrics.n_groups, metrics.unit)}"
    per_class = [f"{shown(name)}: {entry.n:,}" for name, entry in metrics.per_class.items()]
    many = ("with {:,} findings" if metrics.target.kind == "findings" else "in {:,} classes").format(len(per_class))
    classes = f" {many}" if len(per_class) > 10 else f" ({', '.join(per_class)})" * bool(per_class)
    images = f"{metrics.images}{patients}{classes}"
    text = [f"The model was evaluated on {images}."]
    folds, times = metrics.divided
    if folds:
        by = f"the mean of the {times} models" if times > 1 else "the model of the fold"
        often = f", divided {times} times" if times > 1 else ""
        text = [f"The models of a cross-validation were evaluated on {images}, in {folds} folds{often}."]
        text.append(f"Each image was evaluated by {by} that held it out.")
    if metrics.target.kind == "classes" and len(per_class) > 2:
        text.append("AUROC and average precision are the means over the classes, each against the rest.")
    text += [f"Macro numbers are {over}." for over in [means_over(metrics)] if over]
    if positive is not None:
        decided = "if this was the more likely class"
        if points is not None and points.by_fold:
            most = "if most of these models (of a tie, their mean) called it so, each " if times > 1 else ""
            decided = f"{most}from the threshold that each fold chose on its own validation images"
            decided += ", or from 0.5 where it could choose none" * (None in points.by_fold)
        elif points is not None and points.threshold is not None:
            decided = f"from a probability of {format_probability(points.threshold)}, chosen on validation images"
        text.append(f"The positive class was {shown(positive)}; an image was called positive {decided}.")
    elif metrics.n and metrics.target.kind in ("classes", "grades"):
        way = DECIDES.get("default" if points is None else points.chosen, "largest probability")
        if way == DECIDES["cost"] and (error := metrics.report.evaluate.get("cost")) in GRADE_ERRORS:
            way = f"lowest expected {error} error in grades"
        text.append(f"The class with the {way} was predicted.")
    elif metrics.n and metrics.target.kind == "findings":
        text.append(f"Each finding was called from {_thresholds(metrics)}.")
    if (agreed := metrics.bland_altman) is not None:
        parts = f", from components of variance between and within {unit}s, none below 0" * agreed.repeated
        text.append(f"Limits of agreement are the mean error -/+ 1.96 standard deviations of the error{parts}.")
        text.append("The trend is the slope of the regression of the error on the mean of predicted and true.")
    if metrics.n >= 2 and metrics.n_groups != 1:
        text.append(f"Two-sided {100 * metrics.level:.0f} % confidence intervals were computed.")
        if metrics.n_groups is None:
            text.append("The patients were unknown, so each image counted as independent.")
        elif sizes is not None and sizes.max > 1:
            text.append(f"The {unit} was the unit of sampling, so intervals reflect the variance between {unit}s.")
            if any(one.resamples is not None for _, _, _, one in _estimates(metrics)):
                text.append(f"Bootstrap resamples were drawn by {unit}.")
        else:
            text.append(f"Each {unit} had one image.")
    if unit != "patient" and metrics.n_groups is not None:
        text.append(f"Where this text says patient, read {unit}.")
    return " ".join(text)


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


def means_over(metrics: Results) -> str:
    """What the means over findings count, where they leave any out; else ""."""
    of, every = len(metrics.finding_reports), len(metrics.classes)
    enough = f"{FEWEST} {'images' if metrics.n_groups is None else f'{metrics.unit}s'} have and {FEWEST} lack"
    return f"means over {of} of {every:,} findings, those that at least {enough}" if 0 < of < every else ""


def name_of(field: str) -> str:
    """A number inside a sentence: `macro sensitivity`, `Cohen's kappa`, `the error rate`."""
    return methods().names.get(field) or phrase(TITLES.get(field, field))


def joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
