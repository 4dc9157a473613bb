"""Findings from a table: a column of 1 and 0 for each, or their names joined by |.

A finding is 1 or 0, empty where nobody has looked, or -1 where the reader was uncertain (CheXpert: Irvin et al. 2019,
arXiv 1901.07031). Labels joined by | are those of ChestX-ray14 (Wang et al. 2017, arXiv 1705.02315).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from vitmed.core.base_models import NO_FINDING, Target
from vitmed.core.errors import DataError, unknown_key
from vitmed.core.targets import UNKNOWN
from vitmed.core.text import counted, listed
from vitmed.data.label_kinds import MISSING, Asked, Read, number_in
from vitmed.data.tables import LABEL_NAMES, Table

BAR = "|"
PRESENT = {"yes", "y", "true", "t", "+", "pos", "positive", "present", "ja", "j", "wahr", "oui", "vrai", "si", "sí",
           "sì", "vero", "verdadero", "sim"}  # fmt: skip
ABSENT = {"no", "n", "false", "f", "-", "neg", "negative", "absent", "nein", "falsch", "non", "faux", "falso", "não",
          "nao"}  # fmt: skip
NONE_WORDS = {"no finding", "no findings", "none", "normal"}  # instead of findings, or the column of images without any
CLEAR = 0.9  # share of 1 and 0 among the cells of a column from which another cell looks like a mistake
BIT = "1 (present), 0 (absent), -1 (uncertain), or nothing (not known)"


def read_findings(table: Table, label: int | None, others: Sequence[int], asked: Asked) -> Read:
    """Findings of columns, or of labels joined by |.

    Args:
        label, others: as in `read_targets`.

    Raises:
        DataError: no findings, none of a model's, or a cell that is no label; with the line.
        UsageError: a finding that is no column.
    """
    if asked.findings:
        if unknown := [name for name in asked.findings if name not in table.header]:
            raise unknown_key("column of --finding", unknown[0], [table.header[i] for i in others])
        return _of_columns(table, [table.header.index(name) for name in asked.findings], asked)
    bits = {i: share for i in others if (share := share_of_bits(table, i)) >= CLEAR}
    columns = [i for i, share in bits.items() if share == 1]
    if label is not None and (not columns or any(BAR in row[label] for row in table.rows)):
        return _of_bars(table, label, columns, asked)
    if not columns:
        _refuse_odd(table, bits)
        problem = f"{table.file}: no column of findings; it has {table.names}"
        raise DataError(problem, f"--finding COLUMN; its cells are {BIT}")
    read = _of_columns(table, columns, asked)
    return replace(read, notes=(*(_doubt(table, i) for i, share in bits.items() if share < 1), *read.notes))


def _of_columns(table: Table, columns: Sequence[int], asked: Asked) -> Read:
    """Findings of which each has a column."""
    without = None
    if not asked.findings and not asked.outputs and len(columns) > 1:
        without = next((i for i in columns if table.header[i].lower().replace("_", " ") in NONE_WORDS), None)
    used, columns = tuple(columns), [i for i in columns if i != without]
    values = np.stack([_cells_of_finding(table, i) for i in columns], axis=1)  # (R, F): 1, 0, -1, NaN for empty
    notes = []
    if without is not None:
        clear = (_cells_of_finding(table, without) == 1)[:, None] & np.isnan(values)
        values[clear] = 0
        notes.append(f"{table.file}: {table.header[without]!r} is no finding; where it is 1, empty cells mean absent")
    uncertain = values == -1
    if uncertain.any():
        values[uncertain] = {"ignore": np.nan, "ones": 1.0, "zeros": 0.0}[asked.uncertain]
        meaning = {"ignore": "not known", "ones": "present", "zeros": "absent"}[asked.uncertain]
        others = "|".join(way for way in ("ignore", "ones", "zeros") if way != asked.uncertain)
        notes.append(
            f"{table.file}: {counted(int(uncertain.sum()), 'label')} of -1 (uncertain) count as {meaning} "
            f"(--uncertain {others})"
        )
    empty = np.isnan(values) & ~uncertain
    if empty.mean() > 0.5:
        notes.append(
            f"{table.file}: {empty.mean():.0%} of the labels of findings are empty, which is not known; "
            "write 0 where an empty cell means absent, as some read CheXpert"
        )
    names = tuple(table.header[i] for i in columns)
    source = f"{counted(len(names), 'finding')}, from columns of {table.file.name}"
    return findings_in(np.nan_to_num(values, nan=UNKNOWN), names, asked, source, str(table.file), notes, used)


def _of_bars(table: Table, label: int, columns: Sequence[int], asked: Asked) -> Read:
    """Findings whose names are joined by |; from the columns of the same names, where there are such that agree."""
    cells = [row[label].strip() for row in table.rows]
    sets = {cell: _names_in(cell, table, label) for cell in set(cells)}
    names = sorted(set().union(*sets.values()))
    of_name = {table.header[i]: i for i in columns}
    if names and set(names) <= set(of_name):
        read = _of_columns(table, [i for i in columns if table.header[i] in (asked.outputs or names)], asked)
        _check_agreement(table, label, [sets[cell] for cell in cells], read)
        return replace(read, used=(*read.used, label), source=f"{read.source}, as in {table.header[label]!r}")
    if not names:
        raise DataError(f"{table.file}: no row has a finding in {table.header[label]!r}", "add findings to the labels")
    empty_is_none = not any(cell.lower() in NONE_WORDS for cell in sets)
    values = np.zeros((len(cells), len(names)))
    for row, cell in enumerate(cells):
        values[row, [names.index(name) for name in sets[cell]]] = 1
        if cell.lower() in MISSING and not (cell == "" and empty_is_none):
            values[row] = UNKNOWN
    notes = []
    if empty_is_none and (empty := cells.count("")):
        notes.append(f"{table.file}: {counted(empty, 'empty label')} mean that the image has no finding")
    source = f"{counted(len(names), 'finding')}, from {table.header[label]!r} of {table.file.name}, joined by {BAR}"
    return findings_in(values, tuple(names), asked, source, str(table.file), notes, (label,))


def _names_in(cell: str, table: Table, label: int) -> set[str]:
    """The findings of a cell. Raises DataError for "No Finding" beside a finding."""
    names = {name.strip() for name in cell.split(BAR)} - {""}
    none = {name for name in names if name.lower() in NONE_WORDS}
    if none and len(names) > len(none):
        line = next(line for line, row in zip(table.lines, table.rows, strict=True) if row[label].strip() == cell)
        raise DataError(
            f"{table.file}: line {line}: {cell!r} names a finding beside {none.pop()!r}", "keep one of the two"
        )
    return names if not none and cell.lower() not in MISSING else set()


def _check_agreement(table: Table, label: int, named: Sequence[set[str]], read: Read) -> None:
    """Raises DataError for a row whose label names other findings than its columns."""
    assert read.values is not None
    of_label = np.array([[name in names for name in read.outputs] for names in named])
    for row, k in np.argwhere((read.values != UNKNOWN) & (of_label != (read.values == 1))).tolist():
        name = read.outputs[k]
        says = f"{table.header[label]!r} is {table.rows[row][label].strip()!r}"
        raise DataError(
            f"{table.file}: line {table.lines[row]}: {says}, but the column {name!r} is "
            f"{table.rows[row][table.header.index(name)].strip()!r}",
            f"correct the row, or name the columns that count: --finding {','.join(read.outputs[:3])},...",
        )


def findings_in(
    values: np.ndarray, names: tuple[str, ...], asked: Asked, source: str, where: str,
    notes: Sequence[str] = (), used: tuple[int, ...] = (),
) -> Read:  # fmt: skip
    """Findings (R, F) as a `Read`: those that you ask for, or for a model all of its outputs in their order.

    Raises:
        DataError: nothing is known, or of no finding of the model, or a name that would make predictions.csv ambiguous;
            `where` names the file.
        UsageError: a finding that is not there.
    """
    wanted = asked.outputs or asked.findings or names
    for name in () if asked.outputs else wanted:
        if name.lower() == NO_FINDING:
            problem = f"{where}: {name!r} cannot be a finding, since predictions.csv writes it where none is called"
            raise DataError(problem, "rename it, or omit it from --finding")
        if BAR in name:
            raise DataError(f"{where}: the finding {name!r} has a {BAR}, which separates findings", "rename it")
    missing = [name for name in wanted if name not in names]
    if missing and not asked.outputs:
        raise unknown_key("finding", missing[0], names)
    if len(missing) == len(wanted):
        raise DataError(
            f"{where}: none of the model's findings {listed(wanted)}; it has {listed(names)}", "rename its findings"
        )
    if missing:
        notes = [*notes, f"{where}: no labels of {listed(missing)}, which count as not known"]
    column = {name: values[:, k] for k, name in enumerate(names)}
    values = np.stack([column.get(name, np.full(len(values), float(UNKNOWN))) for name in wanted], axis=1)
    if not (values != UNKNOWN).any():
        raise DataError(f"{where}: no label of {listed(wanted)} is known: all are empty or uncertain", f"write {BIT}")
    known, classes = (values != UNKNOWN).any(axis=1), (*wanted, NO_FINDING)
    strata = zip(finding_strata(values).tolist(), known.tolist(), strict=True)
    labels = [classes[k] if there else "" for k, there in strata]
    return Read(Target(kind="findings"), labels, classes, wanted, values, source, tuple(notes), used)


def finding_strata(values: np.ndarray) -> np.ndarray:
    """(S,) int64: of findings (S, F) the rarest that each image has, or F where it has none."""
    present = values == 1
    by_rarity = np.argsort(present.sum(axis=0), kind="stable")
    first = present[:, by_rarity].argmax(axis=1)
    return np.where(present.any(axis=1), by_rarity[first], values.shape[1]).astype(np.int64)


def share_of_bits(table: Table, column: int) -> float:
    """The share of 1 and 0 among the cells of a column that are not empty; 0 where all are."""
    counts = Counter(row[column].strip() for row in table.rows)
    kinds = {cell: _finding(cell) for cell in counts}
    filled = [cell for cell in counts if (value := kinds[cell]) is None or not math.isnan(value)]
    total = sum(counts[cell] for cell in filled)
    return sum(counts[cell] for cell in filled if kinds[cell] is not None) / total if total else 0.0


def columns_of_findings(table: Table, others: Sequence[int]) -> list[int]:
    """The columns that hold findings, at least two. Raises DataError without these, with the line of a cell that may be
    the reason."""
    bits = {i: share for i in others if (share := share_of_bits(table, i)) >= CLEAR}
    columns = [i for i, share in bits.items() if share == 1]
    if len(columns) < 2:
        if len(bits) > 1:
            _refuse_odd(table, bits)
        raise DataError(
            f"{table.file}: no column for the label, nor two of 1 and 0 (findings); it has {table.names}",
            f"name it {LABEL_NAMES[0]} (or {', '.join(LABEL_NAMES[1:])}) in the first line, or --finding COLUMN",
        )
    return columns


def _refuse_odd(table: Table, columns: Iterable[int]) -> None:
    """Raises DataError for the first cell of these columns that is no label of a finding."""
    for column in columns:
        _cells_of_finding(table, column)


def _doubt(table: Table, column: int) -> str:
    """A note on a column that nearly is a finding."""
    line, cell = _first_odd(table, column)
    name = table.header[column]
    return (
        f"{table.file}: the column {name!r} holds 1 and 0, but in line {line} {cell!r}, so it is not taken for a "
        f"finding (correct the cell; it must be {BIT})"
    )


def _first_odd(table: Table, column: int) -> tuple[int, str]:
    """Line and text of the first cell that is no label of a finding."""
    cells = ((line, row[column].strip()) for line, row in zip(table.lines, table.rows, strict=True))
    return next((line, cell) for line, cell in cells if _finding(cell) is None)


def _cells_of_finding(table: Table, column: int) -> np.ndarray:
    """(R,) float64: 1, 0, -1 for uncertain, NaN for empty. Raises DataError with the line of another cell."""
    value_of = {cell: _finding(cell) for cell in {row[column].strip() for row in table.rows}}
    if odd := [cell for cell, value in value_of.items() if value is None]:
        line, cell = _first_odd(table, column)
        more = f" (and {counted(len(odd) - 1, 'other text')})" if len(odd) > 1 else ""
        raise DataError(
            f"{table.file}: line {line}: {cell!r} in the column {table.header[column]!r}{more}, expected {BIT}",
            "correct the cell",
        )
    return np.array([value_of[row[column].strip()] for row in table.rows], dtype=np.float64)


def _finding(cell: str) -> float | None:
    """1, 0, -1, or NaN for an empty cell; None for anything else."""
    text = cell.lower()
    if text in MISSING:
        return math.nan
    if text in PRESENT or text in ABSENT:
        return float(text in PRESENT)
    value = number_in(text)
    return value if value in (1.0, 0.0, -1.0) else None
