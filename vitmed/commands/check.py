"""`vitmed check`: what is wrong with a data folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from vitmed.checks.data_check import check_data
from vitmed.checks.detect import Problem
from vitmed.core.dataset_cards import report_card
from vitmed.core.errors import DataError
from vitmed.core.files import free_name, probe, whole_folder
from vitmed.core.load_config import load_config
from vitmed.core.messages import bar, say
from vitmed.core.options import Argument, Option
from vitmed.core.places import data_folder, new_folder
from vitmed.core.text import counted
from vitmed.data.patients import compile_group
from vitmed.report.data_check_page import NUMBERS, PAGE, PAIRS_TABLE, write_data_report


@dataclass(frozen=True)
class DataCheck:
    """What `check` found: the folder of its report, the problems, worst first, and the content of data_report.json."""

    folder: Path
    problems: tuple[Problem, ...]
    content: dict[str, Any]

    @property
    def clean(self) -> bool:
        """Whether there is neither error nor warning."""
        return not self.count("error") + self.count("warning")

    def count(self, severity: str) -> int:
        """Count the problems that are an "error", a "warning" or a "note"."""
        return sum(problem.severity == severity for problem in self.problems)


def check(
    data: Annotated[Path | str, Argument("Any folder of images, with or without classes and splits.")],
    *,
    card: str | None = None,
    group_regex: str | None = None,
    groups: str | Path | None = None,
    labels: str | Path | None = None,
    split_column: str | None = None,
    target: str = "auto",
    finding: str | Sequence[str] = (),
    uncertain: str = "ignore",
    unit: str | None = None,
    ordinal: str | Sequence[str] = (),
    output: Annotated[
        Path | str, Option("Folder of the report, never overwritten; default data-check.", "--output -o")
    ] = "data-check",
    strict: Annotated[bool, Option("Exit code 3 if there is a warning, as for an error.")] = False,
    frame: int | None = None,
    index: bool = True,
) -> DataCheck:
    """Decode every file once and report what is wrong with the data: files, copies, patients, shortcuts, names.

    Continues where training would refuse, and changes nothing in the folder.

    Args:
        card: the public set that the images are; its card warns, and says how to find the patients, as for `train`.
        group_regex: finds the patient in a path relative to `data`; without it the patients are guessed from the file
            names, for these problems only.
        groups: a table of patients (path, patient), "dicom" for DICOM's PatientID, or "copies" for copies of a picture.
        labels, split_column: as for `train`, of the images to check: a CSV table with the class, and optionally
            patient and split; folder names are then no classes, and images without a row are ignored.
        target, finding, uncertain, ordinal, unit: what the labels of the table are, as for `train`.
        strict: raise after the report is written.
        index: keep the results in the cache folder, so that the next check is quick.

    Raises:
        DataError: no such folder, or no image in it; with `strict`, errors or warnings.
        UsageError: an output folder inside the data, or a `group_regex` that is not one.
    """
    root = data_folder(data)
    groups = None if groups is None else str(groups)
    given = {"root": str(root), "card": card, "group_regex": group_regex, "groups": groups, "on_bad_file": "skip"}
    kind = {"target": target, "findings": finding, "uncertain": uncertain, "unit": unit, "frame": frame}
    flags: dict[str, Any] = {f"data.{name}": value for name, value in {**given, **kind}.items()}
    config = load_config(overrides={**flags, "data.split_column": split_column, "evaluate.ordinal": ordinal})
    report_card(config.data.card)
    compile_group(config.data.group_regex or "")  # raises now, not after the scan
    new_folder(output, [root], filled=True)
    probe(Path(output).parent)
    checked, content = check_data(root, config, labels, index)
    folder = free_name(Path(output))
    with whole_folder(folder) as part, bar("writing the report", unit="steps"):
        write_data_report(part, root, checked, content)
    say(f"report: {folder / PAGE}, {folder / NUMBERS}; all copies: {folder / PAIRS_TABLE}")
    result = DataCheck(folder, tuple(checked.problems), content)
    if strict and not result.clean:
        raise CheckFailed(result)
    return result


class CheckFailed(DataError):
    """There are errors, or with `strict` warnings; `result` is what `check` returns."""

    def __init__(self, result: DataCheck):
        counts = f"{counted(result.count('error'), 'error')} and {counted(result.count('warning'), 'warning')}"
        first = result.problems[0]
        super().__init__(f"{counts}; the first: {first.text}", first.fix)
        self.result = result
