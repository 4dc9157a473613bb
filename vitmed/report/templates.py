"""The templates of every page and card, and the words that they share: numbers, intervals, titles, the sample.

Every template sees `metrics` (the `Results`), the functions and tables in `IN_TEMPLATES`, and those of a
`Sheet`. A page has neither style attributes nor scripts of others: its Content-Security-Policy forbids them.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vitmed.core.messages import is_warning
from vitmed.core.text import LISTED, NOTICE, counted, counted_doing, format_probability, grouped, listed
from vitmed.decisions.evaluation_folder import spread_of
from vitmed.decisions.operating_points import DECIDES, DecisionShares
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.clinical_utility import percentage
from vitmed.metrics.estimates import APART, FEW_GROUPS, FEWEST, Estimate, decimals, value_text
from vitmed.metrics.intervals import LIKENESS
from vitmed.metrics.metric_table import PER_CLASS, TITLES, methods, phrase
from vitmed.report.blocks import Block, Page, Sheet, cell, cells, escape_markdown, interval, number, signed, td, value
from vitmed.report.plots.drawing import RTL, plain
from vitmed.report.results import Results

FOLDER = Path(__file__).parent
RATES = ("sensitivity", "specificity", "ppv", "npv")
BALANCED, LIKELIEST = "Balanced accuracy with --balanced", "Balanced accuracy by the likeliest class"
BESIDE_RATES = ("auroc", "balanced_accuracy")  # what the summary shows of the headline where it shows `RATES`
MOST_CLASSES = 100  # rows of a table of classes


def fill(template: str, **context: Any) -> str:
    """The text of a template of this room. On a page, words written from right to left move nothing beside them."""
    text = environment().get_template(template).render(Page().functions | context)
    if not template.endswith(".html.j2") or not RTL.search(text):
        return text
    return re.sub(">[^<]*", lambda found: RTL.sub("\u2068\\g<0>\u2069", found[0]), text)  # not inside a tag


def blocks_of(template: str, **context: Any) -> list[Block]:
    """The blocks that a template makes; it writes nothing outside of them."""
    sheet = Sheet()
    text = environment().get_template(template).render(sheet.functions | context)
    assert not text.strip(), f"{template}: {text.strip()[:80]}"
    return sheet.blocks


@cache
def environment() -> Environment:
    """It keeps the compiled templates: compiling them takes most of the time of a page."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=lambda name: (name or "").endswith(".html.j2"),
        undefined=StrictUndefined,
        finalize=lambda x: plain(x) if type(x) is str else x,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= IN_TEMPLATES
    environment.filters |= {"breaks": breaks, "cell": cell}
    environment.tests["warning"] = is_warning
    # headings of columns: every pattern, such as "{}, images", for each name
    environment.filters["each"] = lambda names, *patterns: [one.format(name) for name in names for one in patterns]
    environment.filters["md"] = lambda text: escape_markdown(" ".join(str(text).split()))
    return environment


def headline_of(metrics: Results) -> list[tuple[str, str, Estimate]]:
    """The first numbers: (key, title, number); with two classes also the rates of the positive class."""
    numbers = [(name, title_of(metrics, name), metrics.overall[name]) for name in TARGETS[metrics.target.kind].headline]
    if metrics.positive_class is not None:
        numbers += [(name, TITLES[name], metrics.per_class[metrics.positive_class][name]) for name in RATES]
    return numbers


def title_of(metrics: Results, name: str) -> str:
    """The title of an overall number, with its unit."""
    metric, unit = TARGETS[metrics.target.kind].metrics[name], metrics.target.unit
    return f"{metric.title} ({unit})" if unit and metric.in_unit else metric.title


def if_balanced(metrics: Results) -> list[tuple[str, str, Estimate]]:
    """What `--balanced` would reach, or the likeliest class where it decides, of classes more than `APART`:1 apart."""
    points, counts = metrics.operating_points, [rates.n for rates in metrics.per_class.values() if rates.n]
    apart = max(counts, default=0) > APART * min(counts, default=0)
    if not apart or points is None or "balanced_accuracy" not in TARGETS[metrics.target.kind].headline:
        return []
    key, title = ("default", LIKELIEST) if points.chosen == "balanced" else ("balanced", BALANCED)
    reached = getattr(points.points.get(key), "reached", None)
    return [("if_balanced", title, reached.balanced_accuracy)] if isinstance(reached, DecisionShares) else []


def share(estimate: Estimate) -> str:
    """`0.911 (0.900 to 0.934)`: a value with its interval, inside a sentence."""
    return value_text(estimate) + " (no interval)" * (estimate.value is not None and estimate.low is None)


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


def results_sentence(metrics: Results) -> str:
    """The first numbers with their intervals in one sentence, for a paper."""
    unit, of_unit = f" {metrics.target.unit}".rstrip(), f" ({metrics.target.unit})"
    first = [(phrase(title), share(entry)) for _, title, entry in headline_of(metrics) if entry.value is not None]
    phrases = [f"{name.removesuffix(of_unit)} {found}{unit * name.endswith(of_unit)}" for name, found in first]
    return fill("results.txt.j2", metrics=metrics, reached=joined(phrases)).strip().replace("\n", " ")


def breaks(name: str) -> Markup:
    """A class name that may go on in the next line after an underscore."""
    return Markup("_<wbr>").join(plain(name).split("_"))


def percent(estimate: Estimate) -> Markup:
    """`91.1 % (90.0 to 93.4 %)`: a defined value with its interval, for the sentences of the summary."""
    assert estimate.value is not None
    interval, digits = "", decimals(estimate)
    if estimate.low is not None and estimate.high is not None:
        interval = f" ({in_percent(estimate.low, digits)} to {in_percent(estimate.high, digits)} %)"
    return Markup("<b>{} %</b>{}").format(in_percent(estimate.value, digits), interval)


def in_percent(x: float, digits: int = 3) -> str:
    """46.3 for 0.463: the digits of `number`, which rounding 100 x again would not always give."""
    return f"{100 * float(number(x, digits)):.{digits - 2}f}"


def reasons(undefined: Mapping[str, str]) -> list[str]:
    """`why: a, b and 3 more` for each of the first reasons, and one line for the rest."""
    named = ((why, *key.partition(" of ")) for key, why in undefined.items())  # "auroc of ill"
    same = grouped((why, f"{TITLES.get(name, name)}{of}{whom}") for why, name, of, whom in named)
    ordered = sorted(same.items(), key=lambda reason: -len(reason[1]))  # the most frequent first
    lines = [f"{why}: {listed(names)}" for why, names in ordered]
    rest = sum(len(names) for _, names in ordered[LISTED:])
    return [*lines[:LISTED], *([f"and {counted(rest, 'number')} more, in metrics.json"] if rest else [])]


def main_methods(metrics: Results) -> str:
    """`AUROC (DeLong), balanced accuracy (MOVER), accuracy (Wilson)`: of the first numbers that have an interval."""
    first = [(name, metrics.overall[name]) for name in TARGETS[metrics.target.kind].headline[:3]]
    methods_of = {name: methods().intervals[of.method or ""] for name, of in first if of.low is not None}
    return ", ".join(f"{name_of(name)} ({method.title})" for name, method in methods_of.items())


def sampling_of(metrics: Results) -> str:
    """How the intervals were computed, for a reader who knows none of the methods."""
    return fill("sampling.txt.j2", metrics=metrics, by=main_methods(metrics)).strip().replace("\n", " ")


IN_TEMPLATES: dict[str, Any] = {  # what the templates use besides the results
    "titles": TITLES,
    "DECIDES": DECIDES,
    "titled": lambda names: [TITLES[name] for name in names],
    "titles_of": lambda metrics, names: [  # overall with their unit, or of the positive class
        title_of(metrics, name) if name in TARGETS[metrics.target.kind].metrics else TITLES[name] for name in names
    ],
    "summary_of": lambda metrics: [  # the numbers of the first screen
        line
        for line in headline_of(metrics) + if_balanced(metrics)
        if metrics.positive_class is None or line[0] in BESIDE_RATES + RATES
    ],
    "definitions": lambda metrics: TARGETS[metrics.target.kind].metrics,
    "class_numbers": PER_CLASS,
    "point_numbers": (*RATES, "f1", "lr_plus", "lr_minus"),
    "followed": lambda metrics: TARGETS[metrics.target.kind].followed,
    "compared": lambda metrics: [
        name
        for name in TARGETS[metrics.target.kind].headline
        if all(name in baseline.difference for baseline in metrics.baselines.values())
    ][:3],
    "few_groups": FEW_GROUPS,
    "fewest": FEWEST,
    "most_classes": MOST_CLASSES,
    "likeness": LIKENESS,
    "words": lambda metrics: TARGETS[metrics.target.kind].words,
    "thousands": lambda n: "unknown" if n is None else f"{n:,}",
    "chance": format_probability,
    "notice": NOTICE,
    "signed": signed,
    **{
        one.__name__: one
        for one in (
            *(number, value, interval, share, percent, in_percent, percentage, phrase, reasons),
            *(td, cell, cells, counted, counted_doing, title_of, sampling_of),
            *(means_over, name_of, results_sentence, spread_of, value_text),
        )
    },
}
