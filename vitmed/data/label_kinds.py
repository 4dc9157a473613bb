"""The kinds of labels: what you request of them, what was read, and how a table holds grades, a number or findings.

Grades are classes in order. A number, such as an age, has ranges in proportion to which images are split. Findings
are columns of 1 and 0, or names joined by |, as in ChestX-ray14 (Wang et al. 2017, arXiv 1705.02315). One is 1 or 0,
empty where nobody has looked, or -1 where the reader was uncertain (CheXpert: Irvin et al. 2019, arXiv 1901.07031).
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from vitmed.core.base_models import CLASSES, NO_FINDING, UNKNOWN, Target
from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError, UsageError, unknown_key
from vitmed.core.text import counted, counted_doing, listed
from vitmed.core.text_files import MISSING, NO_NUMBER
from vitmed.data.tables import LABEL_NAMES, Table

CLEAR = 0.9  # share of numbers, or of 1 and 0, in a column from which another cell looks like a mistake
MOST = 1e15  # beyond it, squares lose the digits of other numbers
MANY_VALUES = 20  # numbers with fractions of more different values are a quantity
MOST_BINS, IN_BIN = 10, 10  # ranges of a number, and images that each needs


class LabelRequest(NamedTuple):
    """What you request of the labels: as configured, with the grades in order; or the outputs of a model to evaluate.

    The findings of a model that a table lacks are not known; other findings of the table do not count.
    """

    data: DataConfig
    kind: str = "auto"
    order: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: DataConfig, ordinal: Sequence[str] = ()) -> Self:
        """The request of a configuration. Raises UsageError for fields that do not go together."""
        kind: str = config.target
        for flag, given, needed in (
            ("--finding", config.findings, "findings"),
            ("--unit", config.unit, "number"),
            ("--ordinal", ordinal, "grades"),
        ):
            if given and kind not in ("auto", needed) and (flag, kind) != ("--ordinal", "classes"):
                raise UsageError(f"{flag} is for --target {needed}, not for --target {kind}", f"omit {flag}")
            kind = needed if given and kind == "auto" else kind
        return cls(config, kind, tuple(ordinal) if kind == "grades" else ())

    def check_folders(self) -> None:
        """Raises UsageError for labels that no folder can name, and for a column without a table."""
        if self.data.split_column is not None:
            raise UsageError("--split-column: is a column of a table of labels", "add --labels TABLE")
        if self.kind in ("findings", "number"):
            raise UsageError(f"--target {self.kind}: folders name one class of an image", "add --labels TABLE")


@dataclass(frozen=True)
class Labels:
    """The labels of the R rows of a table."""

    target: Target
    strata: np.ndarray  # (R,) int64, the class, the grade or the stratum of each, -1 where nothing is known
    classes: tuple[str, ...]  # their names
    values: np.ndarray  # float64: of findings (R, F) 1, 0 or `UNKNOWN`, of a number (R, 1), else (R, 0)
    outputs: tuple[str, ...] = ()  # names of the findings, or of the number; () for classes and grades
    source: str = ""  # what was recognised, in words
    notes: tuple[str, ...] = ()  # warnings for the user
    used: tuple[int, ...] = ()  # the columns that hold the labels


def number_in(cell: str) -> float | None:
    """The number in a cell, NaN for an empty one, also for `-`; None for anything else, such as the grade `none`."""
    if cell.lower() in NO_NUMBER:
        return math.nan
    with contextlib.suppress(ValueError):
        return float(cell) if "_" not in cell else None
    return None


def plain_grade(name: str) -> str:
    """The name of a grade, without the fraction that a program wrote: "2.0" -> "2"."""
    value = number_in(name)
    return str(int(value)) if value is not None and value == value // 1 else name


def grade_order(classes: Sequence[str], order: Sequence[str], where: str) -> tuple[str, ...]:
    """Order the classes from the lowest grade to the highest: as `order` says, else by the one number in each name.

    Raises:
        DataError: a class that is not in the order, or no order in the names.
        UsageError: an order with a class that is not there.
    """
    if order:
        if strange := [name for name in classes if name not in order]:
            problem = f"{where}: the grade {strange[0]!r} is not on the scale {', '.join(order)}"
            raise DataError(problem, "rename it, remove it, or add it to --ordinal")
        if missing := [name for name in order if name not in classes]:
            problem = f"--ordinal {','.join(order)}: no image has the grade {missing[0]!r}; there are {listed(classes)}"
            raise UsageError(problem, "omit it, or correct the name")
        return tuple(dict.fromkeys(order))
    dashes = {bool(re.search(r"(\S-|[\u2012-\u2015\u2212])\d", name)) for name in classes}  # z-1 beside z0: a minus?
    numbers = [re.findall(r"(?:(?<!\S)-)?\d+(?:\.\d+)?", name) for name in classes if len(dashes) == 1]
    if any(len(found) != 1 for found in numbers) or len({float(found[0]) for found in numbers}) < len(classes):
        problem = f"{where}: the names of the grades have no order: {listed([*map(repr, classes)])}"
        raise DataError(problem, "name them from the lowest to the highest: --ordinal LOWEST,...,HIGHEST")
    return tuple(sorted(classes, key=lambda name: float(numbers[classes.index(name)][0])))


def read_number(table: Table, label: int | None, others: Sequence[int], request: LabelRequest) -> Labels:
    """Read a quantity. Empty cells are not known. Raises DataError: a cell that is no number, or a number too large to
    compute with; or all are the same."""
    named = [i for i in others if table.header[i] in request.outputs][:1]  # the number of a model
    if label is None or named:  # else the one column of more than two numbers, or of little else
        of_columns = {i: [number_in(cell) for row in table.rows if (cell := row[i].strip())] for i in others}
        finite = {i: [v for v in column if v is not None and math.isfinite(v)] for i, column in of_columns.items()}
        clear = [i for i in others if None not in of_columns[i] and len(set(finite[i])) > 2]
        near = [i for i in others if finite[i] and len(finite[i]) >= CLEAR * len(of_columns[i])]
        column = next((columns[0] for columns in (named, clear, near) if len(columns) == 1), None)
        label = table.required(column, "number", LABEL_NAMES)
    cells = [row[label].strip() for row in table.rows]
    values = [number_in(cell) for cell in cells]
    for line, cell, value in zip(table.lines, cells, values, strict=True):
        if value is None or math.isinf(value):
            wrong = sum(v is None or math.isinf(v) for v in values)
            more = f", and {counted_doing(wrong - 1, 'other cell', 'is', 'are')} not either" if wrong > 1 else ""
            problem = f"{table.file}: line {line}: {cell!r} in the column {table.header[label]!r} is not a number{more}"
            fix = "write numbers such as 63 or 63.5, with a point and without a unit, and nothing where it is not known"
            raise DataError(problem, fix)
    numbers = np.array(values, dtype=np.float64)  # (R,), NaN where not known
    known = np.isfinite(numbers)
    if (large := numbers[known & (np.abs(numbers) > MOST)]).size:
        problem = f"{table.file}: the number {large[0]:g} is too large to compute with"
        raise DataError(problem, "correct it, or choose a larger unit")
    different = np.unique(numbers[known])
    if len(different) < 2:
        what = f"all numbers are {numbers[known][0]:g}" if known.any() else "no number is known"
        raise DataError(f"{table.file}: {what}", "a model of a number needs different ones")
    strata = np.full(len(numbers), -1)
    strata[known], ranges = number_strata(numbers[known])
    name = "number" if table.find(LABEL_NAMES) == label else table.header[label]
    name = request.outputs[0] if request.outputs else name
    source = f"a number, {name!r}{f' in {request.data.unit}' * bool(request.data.unit)}, from {table.file.name}"
    target = Target(kind="number", unit=request.data.unit)
    ends = [(different[0], different[1] >= 0), (different[-1], different[-1] > 2 * different[-2])]
    marks = [f"{value:.15g}" for value, apart in ends if apart and re.fullmatch("-1|-9+|999+", f"{value:.15g}")]
    notes = tuple(f"{table.file}: {mark} counts as a number; leave empty what is not known" for mark in marks)
    return Labels(target, strata, ranges, numbers[:, None], (name,), source, notes, used=(label,))


def number_strata(values: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Ranges with about as many of the numbers (S,) in each: the index of each number's range, and their names."""
    bins = max(1, min(MOST_BINS, len(values) // IN_BIN))
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)))
    strata = np.searchsorted(edges[1:-1], values, side="right")
    strata = np.unique(strata, return_inverse=True)[1]  # no range without a number
    inside = [values[strata == k] for k in range(int(strata.max()) + 1)]
    names = [f"{part.min():g} to {part.max():g}" if part.min() < part.max() else f"{part[0]:g}" for part in inside]
    seen = Counter(names)
    apart = (name if seen[name] == 1 else f"{name} ({k})" for k, name in enumerate(names))
    return strata.astype(np.int64), tuple(apart)


BAR = "|"
_YES = "yes y true t + pos positive present ja j wahr oui vrai si sí sì vero verdadero sim"
_NO = "no n false f neg negative absent nein falsch non faux falso não nao"
PRESENT, ABSENT = set(_YES.split()), set(_NO.split())
# instead of findings, or the column of images without any
NONE_WORDS = {"no finding", "no_finding", "no findings", "no_findings", "none", "normal", "healthy"}
OF_A_SPLIT_OR_SEX = re.compile(r"(?i)((is|in)[_ ])?(train|test|val|valid|validation|fold|split|male|female|sex|gender)")
BIT = "1 (present), 0 (absent), -1 (uncertain), or nothing (not known)"


def read_findings(table: Table, label: int | None, others: Sequence[int], request: LabelRequest) -> Labels:
    """Findings of columns, or of labels joined by |; arguments and errors as of `read_targets`."""
    if asked := request.data.findings:
        if unknown := [name for name in asked if name not in table.header]:
            joins = label is not None and any(BAR in row[label] for row in table.rows)
            if label is not None and joins and not bit_columns(table, others)[0]:
                joined = f"the findings are those that {table.header[label]!r} joins by {BAR}"
                raise UsageError(f"{table.file}: no column {unknown[0]!r} (--finding); {joined}", "omit --finding")
            raise unknown_key("column of --finding", unknown[0], [table.header[i] for i in others])
        return _of_columns(table, [table.header.index(name) for name in asked], request)
    columns, doubtful = bit_columns(table, others)
    if label is not None and (not columns or any(BAR in row[label] for row in table.rows)):
        return _of_bars(table, label, columns, request)
    if not columns:
        for column in doubtful:
            cells_of_finding(table, column)  # raises
        problem = f"{table.file}: no column of findings; it has {table.names}"
        raise DataError(problem, f"--finding COLUMN; its cells are {BIT}")
    read, notes = _of_columns(table, columns, request), []
    for column in doubtful:
        cells = [row[column].strip() for row in table.rows]
        first = next(row for row, cell in enumerate(cells) if _finding(cell) is None)
        notes.append(
            f"{table.file}: the column {table.header[column]!r} holds 1 and 0, but in line {table.lines[first]} "
            f"{cells[first]!r}, so it is not taken for a finding (correct the cell; it must be {BIT})"
        )
    return replace(read, notes=(*notes, *read.notes))


def _of_columns(table: Table, columns: Sequence[int], request: LabelRequest) -> Labels:
    asked, header = {*(request.data.findings or request.outputs)}, table.header
    named = [i for i, name in enumerate(header) if name.lower() in NONE_WORDS - {"healthy"} and name not in asked]
    without = next((i for i in bit_columns(table, named)[0] if [*columns] != [i]), None)
    used, columns = tuple(columns), [i for i in columns if i != without]
    values = np.stack([cells_of_finding(table, i) for i in columns], axis=1)  # (R, F): 1, 0, -1, NaN for empty
    one_each = len(columns) > 1 and not request.outputs and (values >= 0).all() and (values.sum(axis=1) == 1).all()
    notes = [f"{table.file}: each row has one finding; if they are classes, name it in a column label"] * bool(one_each)
    if without is not None:
        none = cells_of_finding(table, without) == 1
        count = int(np.sum((values == 1).any(axis=1) & none))
        both = f", and {counted_doing(count, 'image', 'has', 'have')} a finding too" * bool(count)
        values[none[:, None] & np.isnan(values)] = 0
        what = f"{table.header[without]!r} is no finding; where it is 1, empty cells mean absent{both}"
        notes.append(f"{table.file}: {what}")
    uncertain = values == -1
    if uncertain.any():
        ways = {"ignore": (np.nan, "not known"), "ones": (1.0, "present"), "zeros": (0.0, "absent")}
        values[uncertain], meaning = ways.pop(request.data.uncertain)
        meaning += "" if request.outputs else f" (--uncertain {'|'.join(ways)})"  # a flag of training alone
        notes.append(f"{table.file}: {counted(int(uncertain.sum()), 'label')} of -1 (uncertain) count as {meaning}")
    empty = np.isnan(values) & ~uncertain
    if empty.mean() > 0.5:
        notes.append(
            f"{table.file}: {empty.mean():.0%} of the labels of findings are empty, which is not known; "
            "write 0 where an empty cell means absent, as some read CheXpert"
        )
    names = tuple(table.header[i] for i in columns)
    source = f"{counted(len(names), 'finding')}, from columns of {table.file.name}"
    read = _chosen(table, np.nan_to_num(values, nan=UNKNOWN), names, request, source)
    return replace(read, notes=(*notes, *read.notes), used=used)


def _of_bars(table: Table, label: int, columns: Sequence[int], request: LabelRequest) -> Labels:
    """Findings whose names are joined by |; from columns of the same names instead, if there are any and they agree."""
    cells = [row[label].strip() for row in table.rows]
    sets: dict[str, set[str]] = {}
    for line, cell in zip(table.lines, cells, strict=True):
        findings = {name.strip() for name in cell.split(BAR)} - {""}
        none = {name for name in findings if name.lower() in NONE_WORDS and name not in request.outputs}
        if none and len(findings) > len(none):
            problem = f"{table.file}: line {line}: {cell!r} names a finding beside {none.pop()!r}"
            raise DataError(problem, "keep one of the two")
        sets[cell] = findings if not none and cell.lower() not in MISSING else set()
    names = sorted(set().union(*sets.values()))
    if names and set(names) <= {table.header[i] for i in columns}:
        read = _of_columns(table, [i for i in columns if table.header[i] in (request.outputs or names)], request)
        of_label = np.array([[name in sets[cell] for name in read.outputs] for cell in cells])
        for row, k in np.argwhere((read.values != UNKNOWN) & (of_label != (read.values == 1))).tolist():
            name, says = read.outputs[k], f"{table.header[label]!r} is {cells[row]!r}"
            raise DataError(
                f"{table.file}: line {table.lines[row]}: {says}, but the column {name!r} is "
                f"{table.rows[row][table.header.index(name)].strip()!r}",
                f"correct the row, or name the columns that count: --finding {','.join(read.outputs[:3])},...",
            )
        return replace(read, used=(*read.used, label), source=f"{read.source}, as in {table.header[label]!r}")
    if not names:
        raise DataError(f"{table.file}: no row has a finding in {table.header[label]!r}", "add findings to the labels")
    empty_is_none = not any(cell.lower() in NONE_WORDS and cell not in request.outputs for cell in sets)
    values = np.zeros((len(cells), len(names)))
    for row, cell in enumerate(cells):
        values[row, [names.index(name) for name in sets[cell]]] = 1
        if cell.lower() in MISSING and not (cell == "" and empty_is_none):
            values[row] = UNKNOWN
    notes = []
    if empty_is_none and (empty := cells.count("")):
        notes.append(f"{table.file}: {counted(empty, 'empty label')} mean that the image has no finding")
    source = f"{counted(len(names), 'finding')}, from {table.header[label]!r} of {table.file.name}, joined by {BAR}"
    read = _chosen(table, values, tuple(names), request, source)
    return replace(read, notes=(*notes, *read.notes), used=(label,))


def _chosen(table: Table, values: np.ndarray, names: tuple[str, ...], request: LabelRequest, source: str) -> Labels:
    """Findings (R, F), for a model all of its outputs in their order. Raises DataError: nothing is known, or of no
    finding of the model, or a name that would make predictions.csv ambiguous."""
    wanted = request.outputs or names
    for name in () if request.outputs else wanted:
        if name.lower() == NO_FINDING:
            problem = f"{name!r} cannot be a finding, since predictions.csv writes it where none is called"
            raise DataError(f"{table.file}: {problem}", "rename it, or omit it from --finding")
        if BAR in name:
            raise DataError(f"{table.file}: the finding {name!r} has a {BAR}, which separates findings", "rename it")
    missing = [name for name in wanted if name not in names]
    if len(missing) == len(wanted):
        problem = f"{table.file}: none of the model's findings {listed(wanted)}; it has {listed(names)}"
        raise DataError(problem, "rename its findings")
    notes = (f"{table.file}: no labels of {listed(missing)}, which count as not known",) * bool(missing)
    column = {name: values[:, k] for k, name in enumerate(names)}
    values = np.stack([column.get(name, np.full(len(values), float(UNKNOWN))) for name in wanted], axis=1)
    if not (values != UNKNOWN).any():
        problem = f"{table.file}: no label of {listed(wanted)} is known: all are empty or uncertain"
        raise DataError(problem, f"write {BIT}")
    strata = np.where((values != UNKNOWN).any(axis=1), finding_strata(values), -1)
    return Labels(Target(kind="findings"), strata, (*wanted, NO_FINDING), values, wanted, source, notes)


def finding_strata(values: np.ndarray) -> np.ndarray:
    """(S,) int64: of findings (S, F) the rarest that each image has, or F where it has none."""
    present = values == 1
    by_rarity = np.argsort(present.sum(axis=0), kind="stable")
    first = present[:, by_rarity].argmax(axis=1)
    return np.where(present.any(axis=1), by_rarity[first], values.shape[1]).astype(np.int64)


def bit_columns(table: Table, others: Sequence[int]) -> tuple[list[int], list[int]]:
    """The columns of 1 and 0, and the columns with few other cells, which are mistakes."""
    columns, doubtful = list[int](), list[int]()
    for column in others:
        counts = Counter(row[column].strip() for row in table.rows)
        values = {cell: _finding(cell) for cell in counts}
        filled = {cell: values[cell] is not None for cell in counts if not math.isnan(values[cell] or 0)}
        total = sum(counts[cell] for cell in filled)
        share = sum(counts[cell] for cell, is_bit in filled.items() if is_bit) / total if total else 0.0
        if share >= CLEAR:
            (columns if share == 1 else doubtful).append(column)
    return columns, doubtful


def cells_of_finding(table: Table, column: int) -> np.ndarray:
    """(R,) float64: 1, 0, -1 for uncertain, NaN for empty and for a "-" beside other cells for 0. Raises DataError with
    the line of another cell."""
    cells = [row[column].strip() for row in table.rows]
    value_of = {cell: _finding(cell) for cell in cells}  # in the order of the rows
    value_of |= {"-": 0.0} if "-" in value_of and 0.0 not in value_of.values() else {}
    if odd := [cell for cell, value in value_of.items() if value is None]:
        more = f" (and {counted(len(odd) - 1, 'other text')})" if len(odd) > 1 else ""
        where = f"line {table.lines[cells.index(odd[0])]}: {odd[0]!r} in the column {table.header[column]!r}{more}"
        raise DataError(f"{table.file}: {where}, expected {BIT}", "correct the cell")
    return np.array([value_of[cell] for cell in cells], dtype=np.float64)


def _finding(cell: str) -> float | None:
    """1, 0, -1, or NaN for an empty cell or "-"; None for anything else."""
    text = cell.lower()
    if text in NO_NUMBER:
        return math.nan
    if text in PRESENT or text in ABSENT:
        return float(text in PRESENT)
    value = number_in(text)
    return value if value in (1.0, 0.0, -1.0) else None


def contradicts(cell: str, kind: str, name: str, truth: str | float) -> bool:
    """Whether a cell and the `truth` differ: a class, a number, or whether there is the finding `name`, which may be
    one of several in the cell. What is not known differs from nothing."""
    if isinstance(truth, str):
        return cell != "" and plain_grade(cell) != plain_grade(truth)
    value, names = number_in(cell) if kind == "number" else _finding(cell), {part.strip() for part in cell.split(BAR)}
    if value is None and kind == "findings" and (BAR in cell or name in names or cell.lower() in NONE_WORDS):
        value = float(name in names)
    if value is None or math.isnan(value) or (kind == "findings" and UNKNOWN in (value, truth)):
        return False
    return not math.isclose(value, truth, rel_tol=1e-6)


def read_targets(table: Table, label: int | None, others: Sequence[int], request: LabelRequest) -> Labels:
    """Read the labels of every row of a table.

    Args:
        label: their column, if it has one of the usual names.
        others: the columns that are neither path, patient, split nor label.

    Raises:
        DataError: no such column, or a cell that is no label; with the line.
        UsageError: a finding that is no column.
    """
    asked = {name.lower() for name in (*request.data.findings, *request.outputs)}
    others = [i for i in others if table.header[i].lower() in asked or not OF_A_SPLIT_OR_SEX.fullmatch(table.header[i])]
    kind = request.kind if request.kind != "auto" else _recognise(table, label, others)
    if read := {"findings": read_findings, "number": read_number}.get(kind):
        return read(table, label, others, request)
    if label is None and request.outputs and {*request.outputs} <= {*table.header}:
        problem = f"{table.file}: has a column for each of {listed(request.outputs)}, the classes of the predictions"
        raise DataError(problem, "of findings, give the predictions a column label_<finding> for each; it may be empty")
    label = table.required(label, "label", LABEL_NAMES)
    cells = table.cells(label, "label")
    if kind == "grades":
        order, names = request.order or request.outputs, {cell: plain_grade(cell) for cell in cells}
        if order:
            scale = {plain_grade(name): name for name in order}
            if strange := [cell for cell, name in names.items() if name not in scale]:
                line = table.lines[cells.index(strange[0])]
                problem = f"{table.file}: line {line}: the grade {strange[0]!r} is not on the scale {', '.join(order)}"
                fix = "correct the grade, or remove its row" + (", or add it to --ordinal" * (not request.outputs))
                raise DataError(problem, fix)
            names = {cell: scale[name] for cell, name in names.items()}
        classes = request.outputs or grade_order(sorted(set(names.values())), request.order, str(table.file))
        strata = np.array([classes.index(names[cell]) for cell in cells], dtype=np.int64)
        source = f"{counted(len(classes), 'grade')}, from {table.header[label]!r} of {table.file.name}"
        return Labels(Target(kind="grades"), strata, classes, np.empty((len(cells), 0)), source=source, used=(label,))
    source, values = "", {number_in(cell) for cell in cells}
    if request.kind == "auto" and len(values) > 2 and None not in values:
        source = (
            f"{counted(len(set(cells)), 'class')} without an order, from the numbers in {table.header[label]!r} of "
            f"{table.file.name} (--target grades if they are in order, --target number if they are a quantity)"
        )
    classes = tuple(sorted(set(cells)))  # not by NumPy, which would make every cell as wide as the longest
    number = {name: k for k, name in enumerate(classes)}
    strata = np.array([number[cell] for cell in cells], np.int64)
    parts = {name: re.split(r"\s*[,;]\s*", name) for name in classes if request.kind == "auto"}
    count = Counter(part for of_name in parts.values() for part in of_name)
    joined = next((name for name, of in parts.items() if len(of) > 1 and all(count[part] > 1 for part in of)), "")
    several = f"{table.file}: {joined!r} is one class; if it is several findings, join them by {BAR}"
    notes = (f"{several}: {BAR.join(parts[joined])!r}",) if joined else ()
    return Labels(CLASSES, strata, classes, np.empty((len(cells), 0)), source=source, notes=notes, used=(label,))


def _recognise(table: Table, label: int | None, others: Sequence[int]) -> str:
    """The kind of the labels. Raises DataError for no column of labels, nor two of findings."""
    if label is None:
        columns, doubtful = bit_columns(table, others)
        if len(columns) < 2:
            for column in doubtful if len(columns) + len(doubtful) > 1 else ():
                cells_of_finding(table, column)  # raises
            problem = f"{table.file}: no column for the label, nor two of 1 and 0 (findings); it has {table.names}"
            fix = f"name it {LABEL_NAMES[0]} (or {', '.join(LABEL_NAMES[1:])}) in the first line, or --finding COLUMN"
            raise DataError(problem, fix)
        return "findings"
    cells = [row[label].strip() for row in table.rows]
    if any(BAR in cell for cell in cells):
        return "findings"
    values, comma = {number_in(cell) for cell in cells}, re.compile(r"-?\d+,\d+")
    if len(set(cells)) > MANY_VALUES and all(comma.fullmatch(cell) or number_in(cell) is not None for cell in cells):
        for line, cell in zip(table.lines, cells, strict=True):
            if comma.fullmatch(cell):
                problem = f"{table.file}: line {line}: {cell!r} is a number with a comma"
                fix = "write a point, or nothing if it separates thousands; or --target classes if they are names"
                raise DataError(problem, fix)
    numbers = {value for value in values if value is not None and math.isfinite(value)}
    fractions = any(value != int(value) for value in numbers)
    return "number" if None not in values and fractions and len(numbers) > MANY_VALUES else "classes"
