"""`vitmed compare`: which of several models is better on the same images, if the data can show it."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from vitmed.core.errors import GateError
from vitmed.core.files import whole_folder, write_json, write_text
from vitmed.core.messages import GRAVEST, gravity, warn
from vitmed.core.options import Argument, Option
from vitmed.core.places import data_of_runs, output_folder
from vitmed.core.text import listed
from vitmed.deploy.acceptance import Acceptance, check_criteria, judge, read_criteria
from vitmed.metrics.paired_comparison import ComparisonResults
from vitmed.studies.comparison import align, compare_models, read_all


@dataclass(frozen=True)
class Comparison:
    """The content of compare.json, the verdict in one sentence, the folder of compare.json, and how the
    first model was judged by pre-stated criteria."""

    content: ComparisonResults
    verdict: str
    folder: Path | None
    acceptance: Acceptance | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain types: compare.json, and acceptance.json as `acceptance`."""
        content = self.content.to_dict()
        return content if self.acceptance is None else content | {"acceptance": self.acceptance.to_dict()}


def compare(
    *results: Annotated[Path | str, Argument("predictions.csv, folder of a report, or run folder.")],
    output: Annotated[Path | str | None, Option("Folder for compare.json, page and tables.", "--output -o")] = None,
    accept: Annotated[
        Path | str | None, Option("Pre-stated criteria (YAML) for the first model; exit code 6 unless all are met.")
    ] = None,
) -> Comparison:
    """Compare models by their predictions for the same images.

    Images are matched by path; an image that a table lacks is left out. Of runs that differ by their seed only, the
    spread over seeds is reported too. `vitmed diff` reports what differs in their settings.

    Args:
        accept: some of the criteria compare the first model with the second.

    Raises:
        GateError: the first model does not meet the criteria.
        DataError: the tables differ in the kind of label, classes, findings, unit, labels or the content of images, or
            have no image in common.
        UsageError: nothing to compare, or an output that exists.
    """
    paths = [Path(result) for result in results]
    folder = None if output is None else output_folder(output, Path(output), *data_of_runs(paths))
    stated = None if accept is None else read_criteria(Path(accept))
    read = read_all(paths)
    if accept is not None and stated is not None:
        check_criteria(Path(accept), stated, read)
    models, notes = align(read)
    said = defaultdict[str, list[str]](list)
    for model in read:
        known = [] if model.known is None else model.known.metrics.get("notes", [])
        for note in (*model.predictions.notes, *(note for note in known if gravity(note) < GRAVEST)):
            said[note].append(model.name)
    notes += [f"{listed(names)}: {note}" for note, names in said.items()]
    content = compare_models(models, notes)
    judged = None if stated is None else judge(stated, read, models)
    if folder is not None:
        from vitmed.report.comparison_page import write_comparison
        from vitmed.report.templates import fill

        with whole_folder(folder) as part:
            write_json(part / "compare.json", content.to_dict())
            write_comparison(part, content)
            if judged is not None:
                write_json(part / "acceptance.json", judged.to_dict())
                write_text(part / "acceptance.html", fill("acceptance.html.j2", found=judged))
    for note in content.notes:
        warn(note)
    found = Comparison(content, content.verdict, folder, judged)
    if judged is not None and not judged.accepted:
        fix = "improve the model, or evaluate more patients; the criteria were stated before, and stay"
        raise GateError(judged.verdict, fix, found)
    return found
