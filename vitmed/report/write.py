"""A report: its numbers and figures from `Predictions`, and its folder of tables, figures and one HTML file.

`Report.of(predictions, origin, config, extra)` reads and writes nothing but the images that `extra.read` gives, so
`Report.of(Predictions.from_csv(file), Origin(title="cells")).write(folder)` makes a report without model or images.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from vitmed.core.base_models import CLASSES
from vitmed.core.config import EvaluateConfig
from vitmed.core.files import make_folder, whole_folder, write_bytes, write_json, write_text
from vitmed.core.messages import gravest_first
from vitmed.core.run_folder import BASELINE, ISSUES, METHODS_TEXT, NUMBERS, PREDICTIONS, REPORT
from vitmed.core.text import counted, now, visible
from vitmed.core.text_files import csv_text
from vitmed.decisions.evaluation_folder import fold_notes
from vitmed.decisions.targets import TARGETS
from vitmed.metrics.estimates import FEWEST, learnt_nothing, missing_interval_note
from vitmed.metrics.kinds.findings import fewer_holders
from vitmed.metrics.mistakes import issues_csv
from vitmed.metrics.predictions import Predictions, target_of
from vitmed.metrics.predictions_csv import ANSWER, SET
from vitmed.metrics.predictions_files import read_predictions
from vitmed.metrics.readers import reversed_scores
from vitmed.report.analyses import ANALYSES, Extra, Material
from vitmed.report.blocks import Block, Cell, Document, Group, Picture, Table, Text, escape_markdown, grid, to_markdown
from vitmed.report.chapters import MAIN, MANY, baseline_verdicts, document, plots, render, text_of
from vitmed.report.methods_text import methods_text
from vitmed.report.participant_flow import counted_again
from vitmed.report.plots.curves import drawn_curves
from vitmed.report.plots.drawing import Drawn, drawn
from vitmed.report.results import Baseline, Origin, Results
from vitmed.report.templates import fill, results_sentence

TABLE_ALONE = "Made from a table alone: the split and the model are unknown."
ONE_FINDING = "One of {} findings: only vitmed compare adjusts a difference from a baseline for the others."
BASELINES = {
    # key in metrics.json and file name -> what it is, of `TargetKind.linear`
    "frozen_features": "{} on the features of the pretrained network, not fine-tuned",
    "colour_and_size": "{} that sees the colours and the size of an image, but no shapes",
}


@dataclass(frozen=True)
class Report:
    """All that the folder of a report holds, before it is written."""

    predictions: Predictions
    baselines: Mapping[str, Predictions]  # of the same images, by their key in `BASELINES`
    results: Results  # what metrics.json holds
    figures: Mapping[str, Drawn]  # by their name in `plots`
    formats: Collection[str]  # "html", "md" and "paper"; none where the numbers alone are asked for
    findings: Mapping[str, "Report"]  # folder below this one -> the report of a finding, as of two classes
    content: Document | None  # of the pages; None where there are no pages

    @classmethod
    def of(
        cls, predictions: Predictions, origin: Origin, config: EvaluateConfig | None = None, extra: Extra | None = None
    ) -> "Report":
        """Compute the numbers and draw the figures; of findings, also the report of each. A picture is known by its row
        in predictions.csv, and by its file name only where `config.show_names` asks. `origin` keeps when the images
        were evaluated where it says that the report is `rebuilt`. Raises DataError for predictions without labels,
        UsageError where a column of `config.subgroups` is not there."""
        config, extra = config or EvaluateConfig(), extra or Extra()
        predictions = replace(predictions, named=config.show_names)
        target = target_of(predictions, config.ordinal)
        kind = TARGETS[target.kind].numbers
        numbers = kind.evaluate(predictions)
        material = Material(predictions, numbers, config, extra, kind)
        policy = None if extra.policy is None else extra.policy.to_json()
        made = dict(origin) | {"evaluate": config.model_dump(), "policy": policy}
        if origin.rebuilt is None:
            made["created"] = now()
            del made["rebuilt"]
        parts: dict[str, Any] = {
            "baselines": {key: _beside(key, target.kind, material) for key in extra.baselines},
            **{key: analyse(material) for key, analyse in ANALYSES[target.kind].items()},
            "report": Origin(**made),
            "weights_hash": extra.weights_hash,
            "flow": extra.flow,
            "folds": extra.folds,
            **({"target": target} if target != CLASSES else {}),
            **extra.parts,
        }
        notes = [*learnt_nothing(numbers), *origin.notes, *numbers.notes, *missing_interval_note(numbers)]
        notes += reversed_scores(parts.get("readers"))
        if (answers := parts.get("answers")) and 2 * answers.n_answered < answers.n:
            left = f"The model leaves {answers.n - answers.n_answered:,} of {answers.n:,} images to a person"
            notes.append(f"{left}; these numbers count its decision for all of them.")
        if predictions.errors:
            unread = counted(len(predictions.errors), "image")
            notes.append(f"{unread} could not be read; only those that could are counted.")
        if config.subgroups and predictions.kind == "findings" and max(fewer_holders(predictions)) < FEWEST:
            notes.append(f"No subgroups: fewer than {FEWEST} patients or images have each finding, or are without it.")
        notes = gravest_first(notes)  # the page shows the first and folds the others
        notes.sort(key=lambda note: note == TABLE_ALONE)
        results = Results.of(numbers, notes=notes, **parts)
        formats = config.format.split(",") if config.report else ()
        figures = _draw(predictions, results, extra, "paper" in formats) if config.report else {}
        findings: dict[str, tuple[str, Report]] = {}
        if predictions.kind == "findings":
            findings = _of_findings(material, origin)
            pages = {name: f"{place}/{REPORT}" if own.formats else place for name, (place, own) in findings.items()}
            results = results.model_copy(update={"finding_reports": pages})
        content = document(results, figures) if formats else None
        return cls(predictions, extra.baselines, results, figures, formats, dict(findings.values()), content)

    def write(self, folder: str | Path) -> Results:
        """Write tables, figures and pages into a folder that is not there yet, or empty: all or nothing. Returns what
        metrics.json holds. Raises UsageError where the folder cannot be written."""
        predictions, results = self.predictions, self.results
        doubted = results.label_errors
        with whole_folder(Path(folder)) as part:
            for place, report in self.findings.items():
                report.write(part / place)
            write_text(part / PREDICTIONS, predictions.to_csv())
            for key, other in self.baselines.items():
                write_text(part / f"{BASELINE}{key}.csv", other.to_csv())
            if doubted is not None and doubted.reason is None:
                write_text(part / ISSUES, issues_csv(predictions))
            write_json(part / NUMBERS, results.to_dict())
            for name, figure in self.figures.items():
                write_bytes(part / f"{name}.png", figure.png)
                write_bytes(part / f"{name}.svg", figure.svg)
            if self.content is not None:
                write_text(part / REPORT, render(results, self.content))
                methods = methods_text(results, lambda name: escape_markdown(" ".join(visible(name).split())))
                methods_page = fill("methods.md.j2", metrics=results, methods=methods) + "\n"
                write_text(part / METHODS_TEXT, methods_page)
                if "md" in self.formats:
                    write_text(part / "report.md", to_markdown(self.content))
                if "paper" in self.formats:
                    write_paper(part / "paper", results, self.content)
                    write_text(part / "paper" / METHODS_TEXT, methods_page)
        return results


def _of_findings(material: Material, origin: Origin) -> dict[str, tuple[str, Report]]:
    """Finding -> folder and report, for every finding with at least `FEWEST` patients (or images, where patients are
    unknown) who have it and as many who have an image without; of validation, which chose decisions, the tables alone.

    Of more than `MANY` findings, each report has the figures in `MAIN` alone.
    """
    predictions, config, extra = material.predictions, material.config, material.extra
    evaluated, held = extra.flow and extra.flow.evaluated, fewer_holders(predictions)
    solid = sum(count >= FEWEST for count in held)
    alone = [ONE_FINDING.format(len(held))] if solid > 1 and extra.baselines else []
    figures = MAIN if solid > MANY else None
    pages = config.report and not (evaluated and evaluated.split == "val")
    reports, policies = {}, material.chosen("findings")
    for (name, place), count in zip(folder_names(predictions.classes).items(), held, strict=True):
        if count < FEWEST:
            continue
        policy = None if policies is None else policies[name]
        folds = None if extra.folds is None else extra.folds.findings[name]
        view = predictions.of(name)
        columns = {key: cells for key, cells in view.columns.items() if key not in (SET, ANSWER)}  # of all findings
        view = replace(view, columns=columns) if policy is None else policy.apply(view)
        notes = [*(policy.notes if policy else ()), *(fold_notes(folds) if folds else ()), *alone]
        own = Extra(
            flow=counted_again(extra.flow, view),
            weights_hash=extra.weights_hash,
            internal=None if extra.internal is None else cast(Any, extra.internal).of(name),
            policy=policy,
            folds=folds,
            baselines={key: cast(Any, other).of(name) for key, other in extra.baselines.items()},
            read=extra.read,
            figures=figures,
        )
        of_finding = origin.model_copy(update={"notes": notes, "title": f"{name}: {origin.title}"})
        settings = config.model_copy(update={"report": pages})
        reports[name] = f"findings/{place}", Report.of(view, of_finding, settings, own)
    return reports


def folder_names(findings: tuple[str, ...]) -> dict[str, str]:
    """Finding -> the name of its folder, in letters, digits and hyphens; no two are the same."""
    names: dict[str, str] = {}
    for finding in findings:
        name = plain = re.sub(r"[^a-z0-9]+", "-", finding.lower()).strip("-")[:60] or "finding"
        number = 2
        while name in names.values():
            name, number = f"{plain}-{number}", number + 1
        names[finding] = name
    return names


def _beside(key: str, of: str, material: Material) -> Baseline:
    """The comparison with a baseline, of labels of a kind."""
    kind, predictions, other = material.kind, material.predictions, material.extra.baselines[key]
    given = material.extra.folds or material.chosen("operating")
    if given is not None and given.costs and len(other.classes) > 2:
        other = replace(other, costs=tuple(map(tuple, given.costs)))  # which need no threshold of validation
    likeliest = of != "number" and predictions.at_point != other.at_point
    both = (predictions.without_point(), other.without_point()) if likeliest else (predictions, other)
    text = BASELINES[key].format(TARGETS[of].linear)
    return Baseline(text=text, likeliest=likeliest, **dict(kind.compare(*both)))


def _draw(predictions: Predictions, results: Results, extra: Extra, pdf: bool) -> dict[str, Drawn]:
    """The figures of `plots` that have something to show, or those of them that are asked for."""
    figures = {}
    doubted = results.label_errors
    for name, plot in plots().items():
        if results.target.kind not in plot.kinds or (extra.figures is not None and name not in extra.figures):
            continue
        if name == "suspected_labels" and (doubted is None or doubted.reason is not None):
            continue
        source = extra.maps if plot.maps else extra.read if plot.pictures else results
        figure = None if source is None else plot.draw(predictions, source)
        if figure is not None:
            figures[name] = drawn(figure, plot.pictures or plot.maps, pdf)
    if extra.records:
        figures["training_curves"] = drawn_curves(extra.records, pdf)
    return figures


def read_baselines(folder: Path) -> dict[str, Predictions]:
    """The baselines that stand beside a predictions.csv."""
    files = {key: folder / f"{BASELINE}{key}.csv" for key in BASELINES}
    return {key: read_predictions(file, labelled=True) for key, file in files.items() if file.is_file()}


# --- --format paper: sentences of results, tables as LaTeX and CSV, figures as PDF

LEFT_OUT, CHECKLIST = "prose", "checklist"  # tables of explanations, which methods.md has; those of text, no LaTeX
PREAMBLE = "% \\usepackage{adjustbox, booktabs}; below the numbers: confidence intervals; other letters: lualatex"
NUMBER = re.compile(r"^-?\d{1,3}(,\d{3})+(\.\d+)?$")  # 1,234: no number for a program
SPECIAL = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
MATH = {"≥": "ge", "≤": "le", "≠": "ne", "≈": "approx", "→": "to", "α": "alpha", "β": "beta", "γ": "gamma", "μ": "mu"}
SIGNS = {sign: rf"\text{name}{{}}" for sign, name in SPECIAL.items()} | {sign: f"\\{sign}" for sign in "&%$#_{}"}
SIGNS |= {sign: rf"\ensuremath{{\{name}}}" for sign, name in MATH.items()} | {"[": "{[}", "*": "{*}"}  # no arguments


def write_paper(folder: Path, metrics: Results, content: Document) -> None:
    """Write sentences, the tables (CHAPTER-HEADING.csv; those of numbers also in tables.tex), and figures as PDF."""
    make_folder(folder)
    lines, tables = [PREAMBLE], list[str]()
    write_text(folder / "results.txt", "\n".join([results_sentence(metrics), *baseline_verdicts(metrics), ""]))
    for chapter in content.chapters:
        heading = ""
        for block in _inside(chapter.blocks):
            if isinstance(block, Text) and block.level:
                heading = f": {text_of(block.words)}"
            elif isinstance(block, Picture):
                write_bytes(folder / f"{block.name}.pdf", block.drawn.pdf)
            elif isinstance(block, Table) and block.head and block.css != LEFT_OUT:
                title = heading
                while chapter.key + title in tables:  # a second table below one heading
                    title += f": {text_of(block.head[0])}"
                tables.append(chapter.key + title)
                name = folder_names(tuple(tables))[tables[-1]]
                write_text(folder / f"{name}.csv", csv_text(_columns(block)))
                lines += ["", *latex(block, chapter.title + title, name)] * (block.css != CHECKLIST)
    write_text(folder / "tables.tex", "\n".join(lines) + "\n")


def _inside(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Group) and (title := block.title or block.summary):  # it stands above
            yield Text(title, level=3)
        yield from _inside(block.blocks) if isinstance(block, Group) else (block,)


def _columns(table: Table) -> list[list[str]]:
    """Title and cells of a table: numbers unrounded, the interval and a text beside another in columns of their own."""
    rows, titles = grid(table), [text_of(title) for title in table.head]
    lines: list[list[str]] = [[], *([] for _ in rows)]
    for k, column in enumerate(zip(*rows, strict=True)):
        title = titles[k] if titles.count(titles[k]) == 1 else f"{titles[k - 1]}, {titles[k]}"  # of the column before
        ends = ("", ", low", ", high", ", p")[: max([1, *(len(cell.numbers) for cell in column)])]
        notes = [text_of(cell.small) if cell.small and cell.numbers[1:2] in ((), (None,)) else "" for cell in column]
        beside = (", note",) if any(notes) else ()
        lines[0] += [f"{title}{end}" for end in (*ends, *beside)]
        for line, cell, note in zip(lines[1:], column, notes, strict=True):
            text = NUMBER.sub(lambda found: found[0].replace(",", ""), text_of(cell.words))
            numbers = ["" if x is None else f"{x:.6g}" for x in cell.numbers] or ["" if text == "undefined" else text]
            line += [*numbers, *[""] * (len(ends) - len(numbers)), *([note] if beside else [])]
    return lines


def latex(table: Table, caption: str, label: str) -> Iterator[str]:
    rows, lines = [[Cell(title) for title in table.head], *grid(table)], list[str]()
    for row in rows:
        shown = [_escaped(text_of(cell.words)) for cell in row]
        for k, cell in enumerate(row):
            if cell.small:
                beneath = _escaped(text_of(cell.small))
                shown[k] = rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{shown[k]}\\({beneath})\end{{tabular}}"
        lines.append(" & ".join(shown) + r" \\")
    forms = []  # of columns; one with a cell of more than 60 characters breaks lines
    for column in zip(*rows, strict=True):
        texts = [text_of(cell.words) for cell in column]
        numeric = any(re.match(r"[-+<]?\d", text) for text in texts)
        forms.append(r"p{6cm}" if max(map(len, texts)) > 60 else "r" if numeric else "l")
    yield from (r"\begin{table}", r"\centering", rf"\caption{{{_escaped(caption)}}}", rf"\label{{tab:{label}}}")
    yield r"\begin{adjustbox}{max width=\textwidth, max totalheight=0.85\textheight}"
    first, *others = forms  # names, also where one begins with a digit
    yield from (rf"\begin{{tabular}}{{{first.replace('r', 'l')}{''.join(others)}}}", r"\toprule")
    yield from (lines[0], r"\midrule", *lines[1:])
    yield from (r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}", r"\end{table}")


def _escaped(text: str) -> str:
    """Text that LaTeX shows as it is: two hyphens are no dash, and one before a number is a minus."""
    shown = re.sub("-(?=-)", "-{}", "".join(SIGNS.get(sign, sign) for sign in text))
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", shown)
