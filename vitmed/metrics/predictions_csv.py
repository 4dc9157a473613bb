"""The cells of a `predictions.csv`, in any of the forms in which a spreadsheet saves it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitmed.core.errors import DataError
from vitmed.core.text import counted_doing, listed, one_spelling
from vitmed.core.text_files import BLANKS, SEPARATORS, read_csv, read_text
from vitmed.core.upgrade import READER

_PEOPLE = "patient patient_id patientid patient_nr patient_no patient_number pat_id mrn subject subject_id subjectid"
GROUP_NAMES = (*_PEOPLE.split(), "group", "case", "case_id")  # a group may be the arm of a study
FIXED_COLUMNS = ("path", "label", "group", "prediction", "confidence")
# Further columns that vitmed writes: of a model with an out-of-distribution score, and of a policy.
OOD_SCORE, SET, ANSWER = "ood_score", "set", "answer"
WRITTEN = (OOD_SCORE, SET, ANSWER)
YES, NO = "yes", "no: "  # cells of `answer`; behind the second the reasons follow
BLANK = "the image has no content"  # the reason that the network's input gives, also without a policy
BETWEEN = " | "  # called findings of an image, and the members of a set
FURTHER = re.compile(r"and \d+ more")  # vitmed 0.2.0 ended sets of more than 20 members so
PROB, LOGIT = "prob_", "logit_"  # with the name of a class, the columns of its numbers
RAW = ("raw_location", "raw_log_scale")  # of a predicted number: the outputs of the network
TARGET = "target_"  # with the name of a field of `Target`, a column that holds the same in every row
OF_TARGETS = tuple(TARGET + name for name in ("name", "unit", "centre", "spread", "distribution"))
OF_NUMBERS = ("low", "high", *RAW, "reach", *OF_TARGETS)
LABEL = "label_"  # with the name of a finding
ROUNDED = 0.006  # a probability that differs by more is not that of the logits, rounded to two digits
TEXTS = ("path", "label", "group", "prediction", "error")  # columns that hold no numbers of the model
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")


@dataclass(frozen=True)
class Table:
    """The rows of a `predictions.csv`, for images that could be read."""

    file: Path
    found: str  # the first line, for messages
    header: list[str]
    numbers: list[int]  # of each row, the first below the header is 1
    rows: list[dict[str, str]]  # name -> cell
    errors: tuple[tuple[str, str], ...]  # path and problem of the images that could not be read

    def has(self, columns: Sequence[str]) -> bool:
        """Whether there are such columns and, if there are rows, any cell in them is filled."""
        return bool(columns) and (not self.rows or any(row.get(name) for row in self.rows for name in columns))

    def cells(self, column: str) -> list[str]:
        """A column; empty cells if the table lacks it."""
        return [row.get(column, "") for row in self.rows]

    def paths(self) -> tuple[str, ...]:
        """The path of each image, or its row; DataError where two rows have the same."""
        paths = tuple(path or str(number) for number, path in zip(self.numbers, self.cells("path"), strict=True))
        first: dict[str, int] = {}
        for number, path in zip(self.numbers, paths, strict=True):
            if first.setdefault(path, number) != number:
                rows = f"rows {first[path]} and {number}"
                raise DataError(f"{self.file}: names {path} more than once, in {rows}", "keep one row for each image")
        return paths

    def scored(self, least: int = 1) -> tuple[str, tuple[str, ...]]:
        """Whether the `LOGIT` or the `PROB` columns count, and the classes. Raises DataError for fewer than `least`
        classes, or a class with a probability and no logit."""
        logits, chances = ([name for name in self.header if name.startswith(kind)] for kind in (LOGIT, PROB))
        kind = LOGIT if self.has(logits) or not self.has(chances) else PROB
        classes = tuple(name.removeprefix(kind) for name in (logits if kind == LOGIT else chances))
        missing = [LOGIT + name.removeprefix(PROB) for name in chances if name.removeprefix(PROB) not in classes]
        if not missing and len(classes) >= least:
            return kind, classes
        problem = "lacks the columns prob_<class> of every class, or logit_<class>"
        if missing or classes:
            lacks = f"lacks the column {', '.join(missing)}"
            problem = lacks if missing else f"only one class, {classes[0]!r}, has a column"
        raise DataError(
            f"{self.file}: {problem}; {self.found}",
            "give a column prob_<class> for every class (of two classes with one score p: p and 1 - p), or "
            "logit_<class> for every class, with commas, semicolons or tabs between the cells; of a number those of a "
            f"predictions.csv of vitmed ({', '.join(RAW)}, ...)",
        )

    def further(self, ours: Iterable[str], classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The columns that are not the model's. Raises DataError where one in `WRITTEN` holds what vitmed never
        writes."""
        ours, words = {"error", "", *ours}, {"", *BETWEEN.join(classes).split(BETWEEN)}
        for name in [name for name in (SET, ANSWER) if name in self.header]:
            for row, cell in enumerate(self.cells(name)):
                good = cell in ("", YES) or cell.startswith(NO)
                if name == SET:
                    members = cell.split(BETWEEN)
                    good = ANSWER in self.header and all(word in words or FURTHER.fullmatch(word) for word in members)
                if not good:
                    problem = f"'{cell}' as {name}, and vitmed writes this column itself"
                    raise self.error(row, problem, f"rename the column {name}, or remove it")
        return {name: tuple(self.cells(name)) for name in self.header if name not in ours}

    def patients(self) -> tuple[tuple[str, ...] | None, list[str]]:
        """The patient of each image, None where no row has one; and a note where `one_spelling` joins some."""
        ours = any(name.startswith(LOGIT) or name in RAW for name in self.header)  # where a patient may be called NA
        names = ["" if not ours and cell.strip().lower() in BLANKS else cell for cell in self.cells("group")]
        if "group" not in self.header and len(several := _patient_columns(self.header)) > 1:
            return None, [f"The columns {listed(several)} may each name the patient, so none counts; call one group."]
        joined, notes = one_spelling(names, "patient", [f"row {number}" for number in self.numbers])
        return joined if any(joined) else None, notes

    def floats(self, columns: Sequence[str]) -> np.ndarray:
        """(S, C) float64; NaN where a cell holds no number."""
        values = [[as_number(row.get(name)) for name in columns] for row in self.rows]
        return np.array(values, dtype=np.float64).reshape(len(self.rows), len(columns))

    def error(self, row: int | np.integer, problem: str, fix: str) -> DataError:
        return DataError(f"{self.file}: row {self.numbers[row]} has {problem}", fix)

    def wrong(self, row: int | np.integer, column: str, expected: str) -> DataError:
        shown = f"'{self.rows[row][column]}'" if column in self.rows[row] else "no cell"
        fix = "correct it, or write the table again with vitmed evaluate"
        return self.error(row, f"{shown} as {column}, expected {expected}", fix)

    def check(self, columns: Sequence[str], good: np.ndarray, expected: str) -> None:
        """Raise the error for the first cell that is not good, (S, C) bool."""
        if not good.all():
            row, column = np.argwhere(~good)[0]
            raise self.wrong(row, columns[column], expected)

    def logits(self, columns: Sequence[str]) -> np.ndarray:
        """(S, K) float64, each finite as a float32 too."""
        logits = self.floats(columns)
        with np.errstate(over="ignore"):
            self.check(columns, np.isfinite(logits.astype(np.float32)), "a finite number")
        return logits

    def probabilities(self, classes: Sequence[str], one: bool = True) -> np.ndarray:
        """(S, K) float64, the `prob_` columns; `one`: each image is of one class, so that they sum to 1."""
        columns = [PROB + name for name in classes]
        chances = self.floats(columns)
        self.check(columns, (chances >= 0) & (chances <= 1), "a probability from 0 to 1")
        sums = chances.sum(axis=1)
        far = np.flatnonzero(np.abs(sums - 1) > min(0.05, 0.005 * len(classes)) + 1e-9)  # as rounded to two digits
        if one and len(far):
            problem = f"probabilities that sum to {sums[far[0]]:.4g}, expected 1"
            raise self.error(far[0], problem, "correct it, or give every class; findings need columns label_<finding>")
        return chances / np.where(np.abs(sums - 1) > 1e-9, sums, 1)[:, None] if one else chances

    def class_indices(self, column: str, classes: tuple[str, ...]) -> np.ndarray:
        """(S,) int64, the class that each cell names; -1 where it is no class."""
        index = {name: k for k, name in enumerate(classes)}
        return np.array([index.get(cell, -1) for cell in self.cells(column)], dtype=np.int64)

    def some_unlabelled(self, row: int | np.integer) -> DataError:
        """The error for a row without a label among others that have one."""
        problem = f"{self.file}: some rows have a label and some have none, the first is row {self.numbers[row]}"
        return DataError(problem, "take out the rows without a label, or fill them; vitmed monitor takes it as it is")

    def contradictions(self, off: Mapping[str, np.ndarray], source: str) -> list[str]:
        """A note on the rows with a cell that does not follow from the source, and one on those with an
        out-of-distribution score that is not a number; `off`: column -> (S,) bool."""
        wrong = np.any([*off.values(), np.zeros(len(self.rows), bool)], axis=0)
        column = next((name for name, cells in off.items() if cells[wrong.argmax()]), "") if wrong.any() else ""
        strange = ~np.isfinite(self.floats([OOD_SCORE])[:, 0]) & (OOD_SCORE in self.header)
        left_out, notes = "; so the report leaves the out-of-distribution scores out.", list[str]()
        for rows, what, so in (
            (wrong, f"a cell that does not follow from the {source}", f" ({column}); the {source} count."),
            (strange, f"an {OOD_SCORE} that is not a number", left_out),
        ):
            if rows.any():
                have = counted_doing(int(rows.sum()), "row", "of the table has", "of the table have")
                notes.append(f"{have} {what}, the first is row {self.numbers[rows.argmax()]}{so}")
        return notes


def read_table(file: str | Path | Table) -> Table:
    """Read the cells of a file. Raises DataError for no table, a column twice, or a row with too many cells."""
    if isinstance(file, Table):
        return file
    file = Path(file)
    text, _ = read_text(file, "a predictions.csv")
    separator, numbered = read_csv(file, text)
    lines = [cells for _, cells in numbered] or [[]]
    header, patients = list[str](), _patient_columns(lines[0])
    for name in lines[0]:  # ours may be in capitals or have blanks around them; patients have several names
        low = name.strip().lower()
        if low in (*FIXED_COLUMNS, *OF_NUMBERS, OOD_SCORE, "error") and low not in lines[0]:
            name = low
        if name in patients and len(patients) == 1:
            name = "group"
        for kind in (PROB, LOGIT, LABEL):
            if low.startswith(kind) and not any(other.startswith(kind) for other in lines[0]):
                name = kind + name.lstrip()[len(kind) :]
        header.append(name)
    if "unfamiliarity" in header:
        raise DataError(f"{file}: vitmed 0.1.0 wrote it; vitmed {READER} reads it", "predict or evaluate again")
    if twice := sorted({name for name in header if name and header.count(name) > 1}):
        raise DataError(f"{file}: has the column {', '.join(twice)} twice", "rename or remove one of them")
    numbers, rows, errors = [], [], []
    for number, cells in enumerate(lines[1:], start=1):
        if not any(cell.strip() for cell in cells):
            continue
        if any(cell.strip() for cell in cells[len(header) :]):
            problem = f"{file}: row {number} has more cells than the table has columns"
            raise DataError(problem, f"quote a cell that holds a {separator!r}")
        row = dict(zip(header, cells, strict=False))
        if row.get("error", "").strip():
            errors.append((row.get("path") or str(number), row["error"]))
        else:
            numbers.append(number)
            rows.append(row)
    ours = [name for name in header if name in ("confidence", *RAW) or name.startswith((PROB, LOGIT))]
    cells_of_model = (row.get(name, "").strip() for row in rows for name in ours)
    if separator != "," and any(map(DECIMAL_COMMA.fullmatch, cells_of_model)):  # 0,5 becomes 0.5, also of other columns
        texts = {*TEXTS} - {"label", "prediction"} if set(RAW) <= set(header) else {*TEXTS}
        for row in rows:
            for name, cell in row.items():
                if name not in texts and DECIMAL_COMMA.fullmatch(cell.strip()):
                    row[name] = cell.strip().replace(",", ".")
    names = ", ".join(map(repr, lines[0][:12])) + ", ..." * (len(lines[0]) > 12)
    found = f"its first line, split at {SEPARATORS[separator]}, has {names}"
    return Table(file, found, header, numbers, rows, tuple(errors))


def _patient_columns(header: Sequence[str]) -> list[str]:
    """The columns that may name the patient; `case` may be a class. A number beside the usual names is a second one."""
    plain = {name: re.sub("[^a-z0-9]+", "_", name.lower()).strip("_") for name in header}
    found = [name for name in header if plain[name] in {*GROUP_NAMES} - {"case"}]
    return [name for name in found if not re.search("mrn|pat_id|_n|subjectid", plain[name])] or found


def as_number(cell: str | None) -> float:
    """The number that a cell holds; NaN where it holds none."""
    try:
        return float(cell or "")
    except ValueError:
        return np.nan
