"""`vitmed monitor`: whether a model still does on new images what it did on those that evaluated it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from vitmed.core import files, places
from vitmed.core.errors import GateError, UsageError
from vitmed.core.messages import say, warn
from vitmed.core.options import FIRST, Argument, Option
from vitmed.data.folders import new_outside_data
from vitmed.deploy.monitor import SHORTEST, in_order, read_reference, watch, write_monitoring
from vitmed.metrics.control_charts import Monitoring
from vitmed.metrics.predictions_csv import read_table


@dataclass(frozen=True)
class Monitored:
    """The content of monitoring.json, and its folder."""

    content: Monitoring
    folder: Path


def monitor(
    run: Annotated[Path | str, Argument("A run folder, or the folder of an evaluation in it.")],
    new: Annotated[
        Path | str, Argument("What the model predicted since: of predict --csv, or the log of serve --scores.")
    ],
    *,
    output: Annotated[
        Path | str | None, Option("New folder; default RUN/monitoring.", "--output -o", panel=FIRST)
    ] = None,
    split: Annotated[str | None, Option("The reference; default the test.", metavar="test|val", panel=FIRST)] = None,
    period: Annotated[int, Option("Newest images that are watched, 100 or more; default 1000.", panel=FIRST)] = 1000,
    false_alarms: Annotated[
        float, Option("Share of periods without a change with an alarm; default 0.05.", panel=FIRST)
    ] = 0.05,
    shift: Annotated[float, Option("Found soonest, in standard deviations of a mean; default 0.5.", panel=FIRST)] = 0.5,
) -> Monitored:
    """Watch what a model predicts at work: charts of its probabilities, of images unlike those of training, of images
    without an answer and, where labels are known, of calibration, sensitivity and specificity.

    Args:
        run: a run folder, or the folder of an evaluation in it, which needs no torch.
        new: labels may be filled in for any of its rows. Rows are read in the order of a column `time` (ISO 8601), else
            at random.

    Raises:
        GateError: a chart gives an alarm.
        CheckpointError, DataError, UsageError: an argument that cannot be used.
    """
    if not (period >= SHORTEST and 0.01 <= false_alarms < 1 and 0 < shift <= 5):
        fix = f"--period is {SHORTEST} or more, --false-alarms from 0.01 to below 1, --shift above 0 and up to 5"
        raise UsageError(f"--period {period}, --false-alarms {false_alarms:g}, --shift {shift:g}", fix)
    folder, reference = read_reference(Path(run), split)
    table, notes = in_order(read_table(new))
    place = places.output_folder(output, folder.parent / "monitoring")
    new_outside_data(place)
    content, tracks = watch(folder, reference, table, notes, (period, false_alarms, shift))
    with files.whole_folder(place) as part:
        write_monitoring(part, content, tracks)
    for note in content.notes:
        warn(note)
    say(f"monitoring: {place / 'monitoring.html'}")
    result = Monitored(content, place)
    if content.alarms:
        raise GateError(content.verdict, f"look at these images and at {place / 'monitoring.html'}", result)
    say(content.verdict)
    return result
