"""Whether a model at work still does what it did on the images that evaluated it: control charts and their files."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import write_bytes, write_json, write_text
from vitmed.core.messages import say
from vitmed.core.run_folder import NUMBERS, PREDICTIONS, RunFolder
from vitmed.core.text import counted, now, quoted
from vitmed.decisions.evaluation_folder import Evaluated, find_evaluation, read_evaluation
from vitmed.decisions.policy import UNLIKE, DecisionPolicy
from vitmed.decisions.targets import TARGETS, Streams
from vitmed.metrics import control_charts as charts
from vitmed.metrics.estimates import FEW_GROUPS, Estimate, difference, estimate, of_mean, of_share
from vitmed.metrics.intervals import Units, share
from vitmed.metrics.predictions import Predictions, target_of
from vitmed.metrics.predictions_csv import LABEL, PROB, Table
from vitmed.metrics.predictions_files import read_predictions
from vitmed.report.blocks import data_uri
from vitmed.report.plots.curves import control_charts
from vitmed.report.plots.drawing import png
from vitmed.report.templates import fill

TIME, WEIGHTS = "time", "weights_hash"  # columns of the log of `vitmed serve --scores`
SIMULATIONS, SHORTEST = 2000, 100  # of periods; images of the shortest period
Tracks = dict[str, dict[charts.Side, np.ndarray]]  # chart -> side -> (S,) the sum after each new image


def read_reference(run: Path, split: str | None) -> tuple[Path, Evaluated]:
    """The folder of the evaluation that is the reference, and its content."""
    if (run / NUMBERS).is_file() and (run / PREDICTIONS).is_file():
        if split is not None:
            raise UsageError(f"--split {split}: {run} is an evaluation, itself the reference", "name the run folder")
        folder = run
    else:
        from vitmed.inference.open_model import open_model

        saved = open_model(run)
        home = RunFolder(saved.path.parent)
        splits = ("test", "val") if split is None else (split,)
        if split not in (None, "train", "val", "test"):
            raise UsageError(f"--split {split}: a split is train, val or test", "name one of these")
        of = saved.weights_hash, saved.policy
        file = next(filter(None, (find_evaluation(home, name, *of) for name in splits)), None)
        if file is None:
            problem = f"{home.path}: holds no evaluation of {saved.path.name} by its policy on {' or '.join(splits)}"
            if saved.path.suffix == ".onnx":  # an exported model has no images
                raise UsageError(problem, "name the run that it was exported from: vitmed monitor RUN TABLE")
            raise UsageError(problem, f"vitmed evaluate {quoted(saved.path)} --split {splits[0]} writes it")
        folder = file.parent
    reference = read_evaluation(folder / PREDICTIONS)
    if reference.policy is None:
        verb = "monitor" if RunFolder(folder.parent).folds.is_file() else "evaluate"  # each fold has its own policy
        raise UsageError(f"{folder / NUMBERS}: holds no decision policy", f"vitmed {verb} {folder.parent}")
    return folder, reference


def in_order(table: Table) -> tuple[Table, list[str]]:
    """The rows in the order of their times, and notes. Raises DataError for a time that is none.

    A table is often sorted by class, which would look like a change: rows without a time, or of one time, are shuffled.
    """
    notes, shuffled = list[str](), np.random.default_rng(0).permutation(len(table.rows)).tolist()
    if table.errors:
        notes.append(f"{counted(len(table.errors), 'image')} that could not be read are left out.")
    if TIME not in table.header:
        notes.append(f"The table has no column {TIME}: its rows are read in random order, so nothing says since when.")
    times = list[datetime]()
    for row, cell in enumerate(table.cells(TIME) if TIME in table.header else ()):
        try:
            times.append(datetime.fromisoformat(cell.strip()))
        except ValueError:
            problem = f"'{cell}' as {TIME}, expected one as in 2026-03-02T14:05:00+00:00"
            raise table.error(row, problem, "write all times in this way (ISO 8601), or take the column out") from None
    if len({when.tzinfo is None for when in times}) > 1:
        raise DataError(f"{table.file}: some times have a zone (+00:00), and some have none", "give all one, or none")
    order = sorted(shuffled, key=times.__getitem__) if times else shuffled
    return replace(table, numbers=[table.numbers[i] for i in order], rows=[table.rows[i] for i in order]), notes


def watch(
    folder: Path, known: Evaluated, table: Table, notes: Sequence[str], settings: tuple[int, float, float]
) -> tuple[charts.Monitoring, Tracks]:
    """Chart what is watched of a model: the content of monitoring.json, and chart -> side -> (S,) the sums.

    Args:
        folder: of the evaluation that is the reference; known: its content.
        table: new predictions, in the order of time; labels may be known of some rows.
        notes: on the table.
        settings: period in images, share of periods with a false alarm, shift in standard deviations.

    Raises:
        DataError: predictions of another model, of another kind of label or of other classes.
    """
    watched = _Watched(known, table, settings)
    reference, new, (period, false_alarms, shift) = known.predictions, watched.new, settings
    times, rate = watched.times, None
    if watched.limits is not None:
        found = watched.false_alarms / SIMULATIONS
        rate = charts.FalseAlarms(asked=false_alarms, period=period, found=found, simulated=SIMULATIONS)
    content = charts.Monitoring(
        run=RunFolder(folder.parent).name or known.run,
        weights_hash=known.weights_hash,
        created=now(),
        split=folder.name.split("-")[0],
        reference_images=len(reference),
        reference_patients=None if reference.groups is None else watched.units.count,
        images=len(new),
        labelled=watched.labelled,
        patients=None if new.groups is None else Units(new.units).count,
        first=times[0] if times else None,
        last=times[-1] if times else None,
        shift=shift,
        false_alarms=rate,
        charts=[watched.chart(name) for name in watched.reference],
        notes=[*notes, *watched.notes],
    )
    return content, watched.tracks


class _Watched:
    """The streams of the reference and of the new images, the limits of their sums, and the sums of the new images."""

    def __init__(self, known: Evaluated, table: Table, settings: tuple[int, float, float]) -> None:
        period, false_alarms, self.shift = settings
        self.times: list[str] = table.cells(TIME) if TIME in table.header else []
        self.new, streams, self.labelled = _streams_of(table, known)
        self.streams = {name: charts.newest(stream, period) for name, stream in streams.items()}
        self.reference = TARGETS[target_of(known.predictions).kind].watch(known.predictions)
        self.units, self.notes = Units(known.predictions.units), [*self.new.notes]
        usable = {name: stream for name, stream in self.reference.items() if not stream.why_not(self.shift)}
        seen = {name for name, stream in self.streams.items() if np.isfinite(stream.values).any()}
        watched = {name: stream for name, stream in usable.items() if name in seen}
        if known.predictions.groups is None:
            text = "Patients of the reference are unknown: its images count as independent, so the limits are low."
            self.notes.append(text)
        elif self.units.count < FEW_GROUPS:
            problem = f"the reference has {counted(self.units.count, 'patient')}: of so few, charts often alarm falsely"
            raise DataError(problem, f"evaluate the model on images of {FEW_GROUPS} patients or more")
        elif self.units.count < 5 * FEW_GROUPS:
            text = f"The reference has {self.units.count} patients: false alarms are up to 4 times as many as asked."
            self.notes.append(text)
        if UNLIKE in self.streams and UNLIKE not in self.reference:
            lack = "The reference has no out-of-distribution scores (of folds it never has)"
            self.notes.append(f"{lack}: the share of unlike images is not watched.")
        if not watched:
            self.notes.append("Nothing can be watched: the reference is too small.")
        if len(self.new) > period:
            which = "newest" if self.times else "last in that order,"
            self.notes.append(
                f"Each chart watches the {which} {period:,} of the {len(self.new):,} images, with labels those up to "
                "the last label, so that the length of the log raises no false alarms; "
                f"--period {len(self.new)} watches all."
            )
        elif watched and (shorter := max(SHORTEST, len(self.new))) < period:
            self.notes.append(
                f"The limits are for {period:,} images, and the table has {len(self.new):,}: in so few, even a large "
                f"change may give no alarm. --period {shorter} sees a change sooner."
            )
        self.tracks, self.limits = Tracks(), None
        if watched:
            sizes = None if self.new.groups is None else np.bincount(self.new.units)
            self.standard = charts.Reference.of(watched, self.units.index, sizes)
            say(f"simulating {counted(2 * SIMULATIONS, 'period')} of {period:,} images")
            chosen = charts.choose_limits(self.standard, self.shift, period, false_alarms, SIMULATIONS)
            self.limits, self.false_alarms = chosen
            values = self.standard.standardised(self.streams)
            for c, (name, stream) in enumerate(watched.items()):
                signed = {"rise": values[:, c], "fall": -values[:, c]}
                self.tracks[name] = {side: charts.sums(signed[side], self.shift / 2) for side in stream.sides}

    def chart(self, name: str) -> charts.Chart:
        """The chart of a stream, with its alarm."""
        reference, new = self.reference[name], self.streams.get(name)
        before = mean_of(reference, self.units)
        after = Estimate(value=None, low=None, high=None) if new is None else mean_of(new, Units(self.new.units))
        n, gap = 0 if new is None else int(np.isfinite(new.values).sum()), difference(after, before)
        about = charts.Chart(name=name, n=n, reference=before, now=after, difference=gap, sides=list(reference.sides))
        if self.limits is None or name not in self.tracks:
            lack = "the new images have no labels" if new is None else "it counts none of the new images"
            lack = "not every new image has a score" if name == UNLIKE else lack
            why = reference.why_not(self.shift) or lack
            return about.model_copy(update={"why_not": why})
        c, tracks = list(self.tracks).index(name), self.tracks[name]
        limit = float(self.limits[c])
        sign = 1 if "rise" in reference.sides else -1
        shifted = float(self.standard.centre[c] + sign * self.shift * self.standard.spread[c])
        rows = {side: int((track > limit).argmax()) for side, track in tracks.items() if (track > limit).any()}
        alarm = None
        if rows:
            side = min(rows, key=rows.__getitem__)
            since = int(np.flatnonzero(np.append(0, tracks[side][: rows[side]]) == 0)[-1])  # the sum has not been 0
            first, last = [self.times[row] if self.times else None for row in (since, rows[side])]
            alarm = charts.Alarm(side=side, row=rows[side] + 1, time=last, since_row=since + 1, since_time=first)
        return about.model_copy(
            update={
                "limit": limit,
                "last": float(max(track[-1] for track in tracks.values())),
                "peak": float(max(track.max() for track in tracks.values())),
                "found_shift": float(np.clip(shifted, *((0, 1) if reference.share else reference.ends))),
                "alarm": alarm,
            }
        )


def _streams_of(table: Table, known: Evaluated) -> tuple[Predictions, Streams, int]:
    """The new predictions without their labels, what is watched of them, and how many rows have a label."""
    if not table.rows:
        raise DataError(f"{table.file}: has no image", "give a table with a row for each image")
    for row, cell in enumerate(table.cells(WEIGHTS)):
        if cell and known.weights_hash and cell != known.weights_hash:
            problem = f"{WEIGHTS} {cell[:12]}, and the reference is of {known.weights_hash[:12]}"
            raise table.error(row, problem, "name the run of that model, or take these rows out")
    like = known.predictions
    columns = {LABEL + name for name in like.classes} if like.kind == "findings" else {"label"}
    labelled = [i for i, row in enumerate(table.rows) if any((row.get(name) or "").strip() for name in columns)]
    keep = {*table.header} - {"path", *columns}
    bare = replace(table, rows=[{k: v if k in keep else "" for k, v in row.items()} for row in table.rows])
    predictions = _read(bare, known)
    watch = TARGETS[target_of(known.predictions).kind].watch
    streams = watch(predictions)
    if labelled:
        rows = [{**table.rows[i], "path": ""} for i in labelled]
        part = replace(table, numbers=[table.numbers[i] for i in labelled], rows=rows)
        for name, stream in watch(_read(part, known)).items():
            if name not in streams and name != UNLIKE:  # that of some rows alone is none of all
                values = np.full(len(table.rows), np.nan)
                values[labelled] = stream.values
                streams[name] = replace(stream, values=values)
    return predictions, streams, len(labelled)


def _read(table: Table, known: Evaluated) -> Predictions:
    """The predictions of a table, calibrated and decided by the policy of the reference."""
    policy, like = known.policy, known.predictions
    assert isinstance(policy, DecisionPolicy)
    if like.kind != "number" and table.scored()[0] == PROB:
        problem = f"{table.file}: has probabilities and no logits"
        raise DataError(problem, "give a table of vitmed predict --csv or vitmed serve --scores")

    def calibrate(read: Predictions) -> Predictions:
        if read.kind != like.kind:
            problem = f"{table.file}: reads as predictions of {read.kind}, the model is of {like.kind}"
            columns = ", with a column label_<finding> for each, which may be empty" * (like.kind == "findings")
            raise DataError(problem, f"give predictions of this model{columns}")
        if like.kind != "number" and {*read.classes} != {*like.classes}:
            problem = f"{table.file}: is of {', '.join(read.classes)}, the model of {', '.join(like.classes)}"
            raise DataError(problem, "give predictions of this model")
        return policy.calibrate(read)

    read = read_predictions(table, target_of(like), calibrate=calibrate)
    read = replace(read.like(like), positive=like.positive)
    found: Predictions = policy.apply(read)
    return found


def mean_of(stream: charts.Stream, units: Units) -> Estimate:
    """The mean of the values that count, or their share, with its interval."""
    known = np.isfinite(stream.values)
    if not known.any():
        return Estimate(value=None, low=None, high=None)
    if stream.share:
        return of_share(share(np.nan_to_num(stream.values) == 1, known, units))
    _, index = np.unique(units.index[known], return_inverse=True)
    mean = of_mean(stream.values[known].astype(np.float64), Units(index))
    value, low, high = np.clip(np.array([mean.value, mean.low, mean.high], dtype=float), *stream.ends)
    return estimate(value, low, high, "t")


def write_monitoring(folder: Path, found: charts.Monitoring, tracks: Tracks) -> None:
    write_json(folder / "monitoring.json", found.to_dict())
    figure = control_charts(found.charts, tracks)
    picture = None if figure is None else png(figure)
    if picture is not None:
        write_bytes(folder / "monitoring.png", picture)
    page = fill(
        "monitoring.html.j2",
        found=found,
        alarms=[charts.alarm_text(chart) for chart in found.alarms],
        left_out=[chart for chart in found.charts if chart.why_not],
        picture=None if picture is None else data_uri(picture),
    )
    write_text(folder / "monitoring.html", page)
