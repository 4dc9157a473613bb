"""`vitmed monitor`: quiet where nothing changed, exit code 6 and a page where something did, labels when they come."""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Answer, Trained, recording

import vitmed as package
from vitmed.core.errors import DataError, GateError, UsageError
from vitmed.deploy.monitor import in_order, mean_of
from vitmed.metrics.control_charts import Stream
from vitmed.metrics.intervals import Units
from vitmed.metrics.predictions_csv import read_table

Rows = list[dict[str, str]]


@pytest.fixture(autouse=True)
def few_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """300, not thousands: the limits are tested in tests/metrics."""
    monkeypatch.setattr("vitmed.deploy.monitor.SIMULATIONS", 300)


@pytest.fixture(autouse=True)
def charts_are_drawn_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `test_quiet_where_nothing_changed`."""
    if request.node.name != "test_quiet_where_nothing_changed":
        monkeypatch.setattr("vitmed.deploy.monitor.png", lambda figure: b"a figure")


@pytest.fixture
def run(trained: Trained, tmp_path: Path) -> Path:
    """A copy of the run; its test has 18 images."""
    shutil.copytree(trained.data, tmp_path / "data")
    shutil.copytree(trained.folder, tmp_path / "runs" / "tiny")
    return tmp_path / "runs" / "tiny"


def work(run: Path, count: int, change: Callable[[int, dict[str, str]], None] = lambda i, row: None) -> Path:
    """A log of the images of the test, drawn again and again, an hour apart and out of order."""
    with (run / "test" / "predictions.csv").open() as file:
        known = list(csv.DictReader(file))
    dice, rows = random.Random(0), []
    for i in range(count):
        row = {**dice.choice(known), "path": "", "label": ""}
        row["time"] = (datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=i)).isoformat()
        change(i, row)
        rows.append(row)
    dice.shuffle(rows)
    return save(run.parent / "new.csv", rows)


def save(file: Path, rows: Rows) -> Path:
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


def monitor(run: Path, new: Path, **options: Any) -> package.commands.monitor.Monitored:  # type: ignore[name-defined]
    return package.monitor(run, new, period=200, **options)


def test_quiet_where_nothing_changed(run: Path, vitmed: Callable[..., Answer]) -> None:
    answer = vitmed("monitor", run, work(run, 200), "--period", 300, "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    folder = Path(found.pop("folder"))
    assert folder == run / "monitoring" and json.loads((folder / "monitoring.json").read_text()) == found
    assert sorted(path.name for path in folder.iterdir()) == [
        "monitoring.html", "monitoring.json", "monitoring.png",
    ]  # fmt: skip
    assert (folder / "monitoring.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (found["images"], found["labelled"], found["split"], found["reference_images"]) == (200, 0, "test", 18)
    assert found["first"] == "2026-03-01T00:00:00+00:00" and found["last"] == "2026-03-09T07:00:00+00:00"
    assert "no alarm" in answer.err and "--period 200 sees a change sooner" in answer.err
    assert str(run.parent) not in (folder / "monitoring.json").read_text()
    own = json.loads((run / "test" / "metrics.json").read_text())["per_class"]["blue"]
    charts = {one["name"]: one for one in found["charts"]}
    assert charts["sensitivity of blue"]["reference"]["value"] == pytest.approx(own["sensitivity"]["value"])
    assert charts["sensitivity of blue"]["why_not"].startswith("the reference has 6 such images")
    assert charts["calibration of blue"]["why_not"] == "the new images have no labels"


def test_a_change_is_found_and_dated(run: Path, vitmed: Callable[..., Answer]) -> None:
    def change(i: int, row: dict[str, str]) -> None:
        if i >= 100:
            row["ood_score"] = "1.4"

    answer = vitmed("monitor", run, work(run, 200, change), "--period", 300)
    assert answer.code == 6 and "unlike the training images rises at image 1" in answer.err
    found = json.loads((run / "monitoring" / "monitoring.json").read_text())
    alarm = next(one for one in found["charts"] if one["name"] == "unlike the training images")["alarm"]
    assert 101 <= alarm["row"] <= 150 and abs(alarm["since_row"] - 101) <= 12 and alarm["side"] == "rise"
    assert "<b>Alarm.</b>" in (run / "monitoring" / "monitoring.html").read_text()


def test_a_reference_without_scores_of_unlike_images_says_so(run: Path, tmp_path: Path) -> None:
    """As of the pooled folds, whose ensemble has such scores."""
    copied = shutil.copytree(run, tmp_path / "run")
    table = copied / "test" / "predictions.csv"
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    with table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [name for name in rows[0] if name != "ood_score"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    told = "The reference has no out-of-distribution scores"
    assert [told in note for note in monitor(copied, work(run, 200)).content.notes].count(True) == 1
    assert not any(told in note for note in monitor(run, work(run, 200)).content.notes)


def test_labels_of_some_images(run: Path) -> None:
    """Half of the images have a label, and it is the wrong one."""

    def change(i: int, row: dict[str, str]) -> None:
        row |= {"label_source": "nurse", "label_blue": "1"}  # are no labels
        if i % 2:
            row["label"] = "blue" if row["prediction"] == "amber" else "amber"

    with pytest.raises(GateError, match="accuracy falls") as error:
        monitor(run, work(run, 200, change))
    found = error.value.result.content  # type: ignore[attr-defined]
    chart = next(one for one in found.charts if one.name == "accuracy")
    assert (found.labelled, chart.n) == (100, 100)


def test_a_chart_that_counts_no_new_image_says_so(run: Path) -> None:
    def change(i: int, row: dict[str, str]) -> None:
        row["ood_score"] = "" if i == 3 else row["ood_score"]
        row["label"] = "amber" if i % 2 and row["prediction"] == "amber" else ""

    charts = {one.name: one for one in monitor(run, work(run, 200, change)).content.charts}
    assert charts["unlike the training images"].why_not == "not every new image has a score"
    for name in ("sensitivity of blue", "sensitivity of green"):
        assert (charts[name].n, charts[name].limit) == (0, None) and charts[name].why_not
    assert charts["specificity of amber"].why_not == "it counts none of the new images"
    assert charts["accuracy"].n > 0 and charts["accuracy"].limit is not None
    few = work(run, 200, lambda i, row: row.update(label="blue" if row["prediction"] == "blue" else ""))
    assert {one.name: one for one in monitor(run, few).content.charts}["sensitivity of blue"].n > 0


def test_an_evaluation_folder_is_read_without_torch(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import vitmed.inference.open_model as opened

    monkeypatch.setattr(opened, "open_model", lambda path: pytest.fail("the checkpoint was opened"))
    found = monitor(run / "val", work(run, 60)).content
    assert (found.split, found.run) == ("val", "tiny")


def test_a_table_without_times_is_read_in_random_order(run: Path) -> None:
    """It is sorted by class, which would look like a change."""
    ui = recording()
    found = monitor(run, run / "test" / "predictions.csv").content
    assert found.first is None and any("random order" in text for text in ui.warned)
    assert found.labelled == found.images == 18


def test_rows_of_one_time_are_read_in_random_order(tmp_path: Path) -> None:
    """A table with dates alone is sorted by class within each."""
    rows = [{"path": f"{k}/{i}", "time": f"2026-03-0{day}"} for day in (2, 1) for k in "ab" for i in range(20)]
    table, notes = in_order(read_table(save(tmp_path / "new.csv", rows)))
    assert table.cells("time") == 20 * 2 * ["2026-03-01"] + 20 * 2 * ["2026-03-02"] and not notes
    first = "".join(path[0] for path in table.cells("path")[:20])
    assert 5 <= first.count("a") <= 15 and table.rows == in_order(read_table(tmp_path / "new.csv"))[0].rows
    rows[3]["time"] = "2026-03-01T10:00+01:00"
    with pytest.raises(DataError, match="some times have a zone"):
        in_order(read_table(save(tmp_path / "new.csv", rows)))


def test_a_reference_of_few_patients(run: Path) -> None:
    """9 are refused; of 18 the page says how often alarms are false."""
    table, file = work(run, 60), run / "test" / "predictions.csv"
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    for count in (9, 18):
        save(file, [row | {"group": f"p{i % count}"} for i, row in enumerate(rows)])
        if count == 9:
            with pytest.raises(DataError, match="the reference has 9 patients"):
                monitor(run / "test", table)
    assert any("false alarms are up to 4 times as many" in note for note in monitor(run / "test", table).content.notes)


def test_the_interval_of_a_mean_probability_ends_at_0_and_1() -> None:
    found = mean_of(Stream(np.array([0.05, 0.9]), ends=(0, 1)), Units(np.arange(2)))
    assert (found.value, found.low, found.high) == (pytest.approx(0.475), 0, 1)
    assert mean_of(Stream(np.array([0.5]), ends=(0, 1)), Units(np.arange(1))).low is None


def test_bad_tables_and_arguments(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row .* has '23.11.2026 12:40' as time") as error:
        monitor(run, work(run, 10, lambda i, row: row.update(time="23.11.2026 12:40") if i == 3 else None))
    assert "ISO 8601" in error.value.fix and "vitmed evaluate" not in error.value.fix  # which writes no times
    with pytest.raises(DataError, match="weights_hash abc, and the reference"):
        monitor(run, work(run, 10, lambda i, row: row.update(weights_hash="abc")))
    for columns, problem in ((("logit_",), "probabilities and no logits"), (("prob_", "logit_"), "lacks the column")):
        with work(run, 10).open() as file:
            rows = [{k: v for k, v in row.items() if not k.startswith(columns)} for row in csv.DictReader(file)]
        with pytest.raises(DataError, match=problem):
            monitor(run, save(tmp_path / "less.csv", rows))
    text = work(run, 10).read_text()
    (tmp_path / "other.csv").write_text(text.replace("amber", "violet"))
    with pytest.raises(DataError, match="is of violet, blue, green, the model of amber, blue, green"):
        monitor(run, tmp_path / "other.csv")
    (tmp_path / "empty.csv").write_text(text.splitlines()[0] + "\n")
    with pytest.raises(DataError, match="has no image"):
        monitor(run, tmp_path / "empty.csv")
    with pytest.raises(UsageError, match="--period 10"):
        package.monitor(run, work(run, 10), period=10)
    with pytest.raises(UsageError, match="looks like a data folder"):
        monitor(run, work(run, 10), output=tmp_path / "data" / "mon")
    with pytest.raises(UsageError, match="holds no evaluation of best"):
        monitor(run, work(run, 10), split="train")
    assert not (run / "monitoring").exists()


def test_predictions_of_fewer_classes_are_refused_where_the_model_is_calibrated(run: Path, tmp_path: Path) -> None:
    numbers = json.loads((run / "val" / "metrics.json").read_text())
    calibration = {"method": "vector", "scale": [2.0, 2.0, 2.0], "bias": [0.0, 0.1, 0.2]}
    numbers["report"]["policy"]["calibration"] |= calibration
    (run / "val" / "metrics.json").write_text(json.dumps(numbers))
    rows = csv.DictReader(work(run, 10).read_text().splitlines())
    two = [{k: v for k, v in row.items() if not k.endswith("_green")} for row in rows]
    new = save(tmp_path / "two.csv", [row | {"prediction": "blue", "set": ""} for row in two])
    with pytest.raises(DataError, match=r"two.csv: is of .*, the model of amber, blue, green"):
        monitor(run / "val", new)


@pytest.mark.slow
def test_limits_do_not_depend_on_the_new_images(run: Path) -> None:
    few, many = (monitor(run, work(run, count), output=run / f"m{count}").content for count in (50, 150))
    assert [one.limit for one in few.charts] == [one.limit for one in many.charts]
    assert np.isfinite([one.limit for one in few.charts if one.limit is not None]).all()


@pytest.mark.slow
def test_what_is_older_than_the_period_gives_no_alarm(run: Path) -> None:
    """A log of any length is judged by its newest period; the page says so, and a longer period reads it all."""

    def change(i: int, row: dict[str, str]) -> None:
        row["ood_score"] = "1.4" if i < 150 else "0.5"

    new, ui = work(run, 900, change), recording()
    found = monitor(run, new).content
    assert found.images == 900 and {one.n for one in found.charts if not one.why_not} == {200}
    note = next(note for note in found.notes if "newest 200 of the 900 images" in note)
    assert "--period 900" in note and note in ui.warned
    assert "newest 200 of the 900 images" in (run / "monitoring" / "monitoring.html").read_text()
    with pytest.raises(GateError, match="unlike the training images rises"):
        package.monitor(run, new, period=900)


@pytest.mark.slow
def test_labels_that_come_later_than_a_period_still_count(run: Path) -> None:
    def change(i: int, row: dict[str, str]) -> None:
        if 100 <= i < 300:
            row["label"] = "blue" if row["prediction"] == "amber" else "amber"

    with pytest.raises(GateError, match="accuracy falls") as error:
        monitor(run, work(run, 900, change))
    found = error.value.result.content  # type: ignore[attr-defined]
    chart = next(one for one in found.charts if one.name == "accuracy")
    assert chart.n == 200 and 101 <= chart.alarm.row <= 300
