"""The table of a comparison of models: own numbers, differences and p values, as a page, CSV and LaTeX."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vitmed.core.files import write_text
from vitmed.core.text import counted
from vitmed.core.text_files import csv_text
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.estimates import Estimate, value_text
from vitmed.metrics.metric_table import METRICS, methods
from vitmed.metrics.paired_comparison import ComparedPair, ComparisonResults
from vitmed.report.blocks import Table, cell, html, p_cell, p_text, p_words, signed, td, words
from vitmed.report.templates import fill, joined
from vitmed.report.write import PREAMBLE, latex

PAGE, TABLE, LATEX = "comparison.html", "comparison.csv", "comparison.tex"
COLUMNS = "first_value,first_value_low,first_value_high,second_value,second_value_low,second_value_high"
COLUMNS = f"first,second,number,{COLUMNS},difference,difference_low,difference_high,p,p_holm"


class Row(NamedTuple):
    """A number of two models: of the first, of the second, and the first minus the second."""

    pair: ComparedPair
    title: str
    first: Estimate
    second: Estimate
    gap: Estimate
    p: float | None
    p_holm: float | None
    part: str = ""  # the class or finding, where it is of one


class ComparisonTables:
    """The rows of the pairs, and the letter that stands for each model, a number after 26. Drawn as tables."""

    def __init__(self, content: ComparisonResults) -> None:
        self.content, self.rows, kind = content, list[Row](), TARGETS[content.kind]
        self.usual = f", {kind.words.usual}"  # behind numbers that are not at the operating points, which differ
        for pair in content.pairs:
            models = [content.models[name] for name in (pair.first, pair.second)]
            both = [(model.likeliest if pair.likeliest else None) or model for model in models]
            for name in dict.fromkeys([*kind.headline[:3], *pair.tests]):
                test, (first, second) = pair.tests.get(name), [numbers.overall[name] for numbers in both]
                ps = (test.p, test.p_holm) if test else (None, None)
                moved = [first.value, second.value] != [model.overall[name].value for model in models]
                title = kind.metrics[name].phrase + self.usual * moved
                self.rows.append(Row(pair, title, first, second, pair.difference[name], *ps))
            parts = {"sensitivity": pair.sensitivity, "specificity": pair.specificity}
            if content.kind == "findings":
                parts |= {"auroc": pair.classes, "average_precision": pair.average_precision}
            for part in content.classes:
                for name, gaps in parts.items():
                    if gap := (gaps or {}).get(part):
                        first, second = (numbers.per_class[part][name] for numbers in both)
                        moved = [first.value, second.value] != [model.per_class[part][name].value for model in models]
                        title = f"{part}: {METRICS[name].phrase if name in METRICS else name}{self.usual * moved}"
                        self.rows.append(Row(pair, title, first, second, gap, gap.p, gap.p_holm, part))
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        self.letters = {name: (alphabet[k : k + 1] or str(k + 1)) for k, name in enumerate(content.models)}
        self.adjusted = any(row.p_holm not in (None, row.p) for row in self.rows)  # p, for several pairs
        self.unit = content.resampling.removeprefix("by ")

    def for_terminal(self) -> Iterator[tuple[str, list[list[str]], list[str]]]:
        """Columns, rows and the lines below them: the numbers of each model, then the differences of two."""
        content, letter, numbers = self.content, self.letters, dict[str, dict[str, str]]()
        for row in self.rows:
            values = {row.pair.first: value_text(row.first), row.pair.second: value_text(row.second)}
            numbers[row.title] = numbers.get(row.title, {}) | values
        named = []
        for name, model in content.models.items():
            named.append(f"{letter[name]}: {name}" + f" ({model.identity})" * bool(model.identity))
        lines = [[title, *(values.get(name, "") for name in letter)] for title, values in numbers.items()]
        yield f"number (95 % interval)|{'|'.join(f'>{of}' for of in letter.values())}", lines, named
        lines = []
        for row in self.rows:
            pair = f"{letter[row.pair.first]} - {letter[row.pair.second]}"
            ps = [p_text(row.p), p_text(row.p_holm)][: 1 + self.adjusted]
            lines.append([pair, row.title, value_text(row.gap, "+"), *ps])
        columns = f"pair|number|>difference (95 % interval)|>p{'|>p, Holm' * self.adjusted}"
        yield columns, lines, []

    def sentences(self) -> list[str]:
        """For each pair a sentence for a paper: the tested numbers of both models, their difference and p; for findings
        only the numbers over all."""
        content, lines = self.content, dict[tuple[str, str], list[str]]()
        for row in self.rows:
            if row.p is not None and row.gap.value is not None and (content.kind != "findings" or not row.part):
                holm = f", adjusted {p_words(row.p_holm)}" if self.adjusted and row.p_holm is not None else ""
                first, second, gap = value_text(row.first), value_text(row.second), value_text(row.gap, "+")
                text = f"{row.title} {first} and {second} (difference {gap}, {p_words(row.p)}{holm})"
                lines.setdefault((row.pair.first, row.pair.second), []).append(text)
        of = "" if content.patients is None else f" of {counted(content.patients, self.unit)}"
        same = f"On the same {counted(content.images, 'image')}{of}"
        brackets = f"in brackets: {100 * content.level:.0f} % confidence intervals {content.resampling}"
        spread = [f"{of.text}." for of in content.seeds]
        reached = [(" and ".join(pair), "; ".join(texts)) for pair, texts in lines.items()]
        return spread + [f"{same}, {models} reached {texts}; {brackets}." for models, texts in reached]

    def methods(self) -> tuple[list[str], list[str]]:
        """How the p values and the intervals of the differences were computed, for a paper, and the references."""
        of, cited, lines = methods(), list[str](), ["Differences were paired: both models saw the same images."]
        used = dict[tuple[str, str, int | None], dict[str, None]]()
        for row in self.rows:
            number, how = row.title.removesuffix(self.usual).removeprefix(f"{row.part}: "), row.gap.method or ""
            for what, key, end in (
                ("P-values", how.replace("tango", "mcnemar").removeprefix("mover-"), row.p),
                ("intervals", how, row.gap.low),
            ):
                if end is not None and how:
                    used.setdefault((what, key, row.gap.resamples), {})[number] = None
        for (what, how, resamples), numbers in sorted(used.items(), key=lambda item: item[0][0]):
            known = (of.tests if what == "P-values" else of.intervals)[how]
            cited += [source for source in known.sources if source not in cited]
            by = f"{known.text.format(unit=self.unit)}{'' if resamples is None else f' ({resamples:,} resamples)'}"
            cites = sorted(cited.index(source) + 1 for source in known.sources)
            lines.append(f"For differences in {joined([*numbers])}, {what} were computed with {by} {cites}.")
        cited += ["holm"] * self.adjusted
        too = " (of findings or classes: for all of these)" * any(row.part for row in self.rows)
        wide = any(row.p_holm not in (None, row.p) and not row.part for row in self.rows)
        how = "several pairs" if wide else "all findings or classes of a pair"
        lines += [f"P-values were adjusted for {how} by the method of Holm{too * wide} [{len(cited)}]."] * self.adjusted
        return lines, [of.references[source] for source in cited]

    def table(self) -> Table:
        """A table of blocks; the columns of a pair are its letters where there is one pair, else first and second."""
        letter, adjusted, lines = self.letters, self.adjusted, []
        pairs = {(letter[row.pair.first], letter[row.pair.second]) for row in self.rows}
        one = len(pairs) == 1
        first, second = next(iter(pairs)) if one else ("First", "Second")
        head = ["Number", first, second, f"{first} minus {second if one else 'second'}", "p", "p, Holm"][: 5 + adjusted]
        for row in self.rows:
            pair = [] if one else [f"{letter[row.pair.first]} minus {letter[row.pair.second]}"]
            ps = [row.p, row.p_holm][: 1 + adjusted]
            values = [cell(row.first), cell(row.second), cell(row.gap, signed), *map(p_cell, ps)]
            lines.append([td(text, head=k == 0) for k, text in enumerate((*pair, row.title, *values))])
        return Table([words(title) for title in ["Pair"] * (not one) + head], lines)


def write_comparison(folder: Path, content: ComparisonResults) -> None:
    """The page, and the table as CSV and LaTeX."""
    tables = ComparisonTables(content)
    table = tables.table()
    lines = [COLUMNS.split(",")]  # every number in a column of its own, empty where there is none
    for row in tables.rows:
        numbers = [end for found in (row.first, row.second, row.gap) for end in (found.value, found.low, found.high)]
        shown = ("" if x is None else f"{x:.6g}" for x in (*numbers, row.p, row.p_holm))
        lines.append([row.pair.first, row.pair.second, row.title, *shown])
    write_text(folder / TABLE, csv_text(lines))
    points = {name: f" ({model.point})" if model.point else "" for name, model in content.models.items()}
    names = "; ".join(f"{letter}: {name}{points[name]}" for name, letter in tables.letters.items())
    about = f"{counted(content.images, 'image')}, {100 * content.level:.0f} % intervals {content.resampling}"
    positive = f", positive class {content.positive_class}" if content.positive_class else ""
    caption = f"Comparison of models{positive}: {about}. {names}."
    write_text(folder / LATEX, "\n".join([PREAMBLE, "", *latex(table, caption, "comparison")]) + "\n")
    named = {letter: (name, content.models[name].identity) for name, letter in tables.letters.items()}
    context: dict[str, Any] = {"about": about, "named": named, "table": table}
    context |= {"sentences": tables.sentences(), "methods": tables.methods()}
    write_text(folder / PAGE, fill("comparison.html.j2", content=content, html=html, usual=tables.usual[2:], **context))
