"""`vitmed check`: what is wrong with a data folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from vitmed.checks.data_check import check_data
from vitmed.checks.detect import Problem
from vitmed.core import dataset_cards, files, places
from vitmed.core.config import Config
from vitmed.core.errors import DataError
from vitmed.core.load_config import load_config, read_overrides
from vitmed.core.messages import bar, say
from vitmed.core.options import CHECK_FLAGS, Argument, Fields, Option
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
    output: Annotated[
        Path | str, Option("Folder of the report, never overwritten; default data-check.", "--output -o")
    ] = "data-check",
    strict: Annotated[bool, Option("Exit code 3 if there is a warning, as for an error.")] = False,
    index: bool = True,
    **flags: Annotated[Any, Fields(Config, CHECK_FLAGS)],
) -> DataCheck:
    """Decode every file once and report what is wrong with the data: files, copies, patients, shortcuts, names.

    Continues where training would refuse, and changes nothing in the folder.

    Args:
        strict: raise after the report is written.
        index: keep the results in the cache folder, so that the next check is quick.
        **flags: the names in `CHECK_FLAGS`, as for `train`: card, group_regex, groups, labels, split_column, target,
            finding, uncertain, unit, ordinal and frame. Without patients, these are guessed from the file names, for
            these problems only. With a table of labels, folder names are no classes, and images without a row are
            ignored.

    Raises:
        DataError: no such folder, or no image in it; with `strict`, errors or warnings.
        UsageError: an output folder inside the data, or a `group_regex` that is not one.
    """
    root = places.data_folder(data)
    overrides = read_overrides(flags, CHECK_FLAGS, "check")
    labels = overrides.pop("data.labels", None)
    config = load_config(overrides={"data.root": str(root), "data.on_bad_file": "skip", **overrides})
    dataset_cards.report_card(config.data.card)
    compile_group(config.data.group_regex or "")  # raises now, not after the scan
    places.new_folder(output, [root], filled=True)
    files.probe(Path(output).parent)
    checked, content = check_data(root, config, labels, index)
    folder = files.free_name(Path(output))
    with files.whole_folder(folder) as part, bar("writing the report", unit="steps"):
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
