"""A run from a table of labels, from end to end: patients, further columns, resuming and judging without the table."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from checkpoints import save
from conftest import TINY, TINY_SETS, draw_classes, draw_splits, once, recording
from label_sets import FINDINGS

from vitmed import evaluate, train
from vitmed.core.base_models import Target
from vitmed.core.errors import DataError, UsageError
from vitmed.data.samples import labelled_by
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.studies.one_run import TrainResult

pytestmark = pytest.mark.usefixtures("no_figures")
QUICK = TINY | {"epochs": 1, "baseline": False, "resamples": 20, "map_images": 0}


def draw_table(place: Path, seed: int = 0, first: int = 0) -> tuple[Path, Path]:
    """place/images/<no class>.png and place/labels.csv: 48 images, 12 patients from `first` on, two sites."""
    draw_classes(place / "drawn", 24, seed=seed)
    images = place / "images" / "all"
    images.mkdir(parents=True)
    rows = ["path;dx;patient;site"]
    for i, file in enumerate(sorted((place / "drawn").rglob("*.png"))):
        shutil.move(file, images / f"{i:02}.png")
        rows.append(f"all/{i:02}.png;{file.parent.name};P{first + i % 12};{'NS'[i % 12 < 4]}")
    (place / "labels.csv").write_text("\n".join(rows))
    return place / "images", place / "labels.csv"


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    def make(place: Path) -> TrainResult:
        data, table = draw_table(place)
        options = QUICK | {"labels": str(table), "folds": 3, "fold": 2}
        return train(data, output=place / "runs", name="run", sets=TINY_SETS, **options)

    return once(tmp_path_factory, "table", make)


def test_further_columns_and_the_proof_of_patients_come_through(run: TrainResult) -> None:
    """splits.csv, predictions.csv, the checkpoint and Python; at the end, as they were."""
    with (run.folder / "splits.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["path", "sha256", "class", "group", "split", "site"] and len(rows) == 48
    assert all(row["site"] == "NS"[int(row["group"][1:]) < 4] for row in rows)
    text = (run.folder / "test" / "predictions.csv").read_text()
    assert text.splitlines()[0].startswith("path,label,group") and text.splitlines()[0].endswith(",site")
    said = Predictions.from_csv(run.folder / "test" / "predictions.csv")
    assert said.columns == run.test.predictions.columns and list(said.columns)[-1] == "site"
    assert said.columns["site"] == tuple("NS"[int(group[1:]) < 4] for group in said.groups)
    assert said.to_csv() == Predictions.from_csv(run.folder / "test" / "predictions.csv").to_csv()
    saved = load_checkpoint(run.folder)
    assert saved.splits.columns == ("site",) and saved.splits.patients == "by table (--labels)"
    again = labelled_by(
        saved.splits.target, saved.classes, saved.splits.samples["test"], said.logits, columns=("site",)
    )
    assert again.columns == {"site": said.columns["site"]}
    report, groups = json.loads((run.folder / "test" / "metrics.json").read_text()), saved.splits.groups()
    told = report["report"]["facts"]["Patients of the run"]
    counts = ", ".join(f"{len(groups[name])} in {name}" for name in ("train", "val", "test"))
    assert told == f"{counts}, none in two splits; identified by table (--labels)"
    assert sum(map(len, groups.values())) == 12 and report["resampling"] == "by patient"
    assert all(note.startswith("Data: ") for note in report["report"]["notes"])
    assert "fold 2 of 3 by patient" in report["report"]["facts"]["Splits of the run"]


def test_the_table_is_named_relative_to_the_run_and_not_needed_again(run: TrainResult, tmp_path: Path) -> None:
    place = run.folder.parents[1]
    assert yaml.safe_load((run.folder / "config.yaml").read_text())["data"]["labels"] == "../../labels.csv"
    shutil.copytree(place, tmp_path / "moved")
    (tmp_path / "moved" / "labels.csv").unlink()
    folder = tmp_path / "moved" / "runs" / "run"
    again = evaluate(folder, resamples=20)
    assert again.predictions.to_csv() == run.test.predictions.to_csv()
    resumed = train(resume=folder, epochs=2)
    assert resumed.test.predictions.columns["site"] == run.test.predictions.columns["site"]
    assert yaml.safe_load((folder / "config.yaml").read_text())["data"]["labels"] == "../../labels.csv"


def test_images_of_another_place_by_its_own_table(run: TrainResult, tmp_path: Path) -> None:
    data, table = draw_table(tmp_path, seed=5, first=90)
    found = evaluate(run.folder, data=data, labels=table, output=tmp_path / "a", resamples=20)
    assert found.metrics["n"] == 48 and found.metrics["resampling"] == "by patient"
    assert list(found.predictions.columns)[-1] == "site" and found.metrics["report"]["title"] == "images, all images"
    rows = [line.split(";") for line in table.read_text().splitlines()]
    (tmp_path / "who.csv").write_text("\n".join(["path,who", *(f"{r[0]},{r[3]}" for r in rows[1:])]))
    who = {"groups": tmp_path / "who.csv", "output": tmp_path / "b"}
    found = evaluate(run.folder, data=data, labels=table, resamples=20, **who)
    assert set(found.predictions.groups or ()) == {"N", "S"} and {"patient", "site"} <= set(found.predictions.columns)
    with pytest.raises(UsageError, match="--groups and --group-regex both define the patients"):
        evaluate(run.folder, data=data, labels=table, group_regex="x", **who | {"output": tmp_path / "c"})
    table.write_text(table.read_text().replace("blue", "violet"))
    with pytest.raises(DataError, match="class 'violet' is not one of the classes amber, blue"):
        evaluate(run.folder, data=data, labels=table, output=tmp_path / "c")
    with pytest.raises(DataError, match=r"labels\.csv: line \d+: all/\d+\.png is 'violet' here and 'blue' in the run"):
        evaluate(run.folder, labels=table, output=tmp_path / "d")
    with pytest.raises(UsageError, match="--groups and --group-regex describe other images"):
        evaluate(run.folder, groups=tmp_path / "who.csv", output=tmp_path / "d")


def test_other_findings_or_numbers_than_those_of_the_run_are_refused(
    findings: TrainResult, ages: TrainResult, tmp_path: Path
) -> None:
    table, root = tmp_path / "other.csv", load_checkpoint(findings.folder).splits.root
    effusion = [*csv.reader((root / "labels.csv").read_text().splitlines())]
    column = effusion[0].index(FINDINGS[0])
    flipped = [[*row[:column], {"1": "0", "0": "1"}.get(row[column], ""), *row[column + 1 :]] for row in effusion[1:]]
    number = ages.test.predictions
    changes = {
        findings.folder: ([effusion[0], *flipped], f"{FINDINGS[0]} of .* is '[01]' here and [01] in the run"),
        ages.folder: ([["path", number.classes[0]], [number.paths[0], "-1000"]], "is '-1000' here and .* in the run"),
    }
    label = [["path", "label"], *([path, f"{1000 + i}"] for i, path in enumerate(number.paths))]  # of another name
    for folder, (rows, match) in [*changes.items(), (ages.folder, (label, "is '1000' here and .* in the run"))]:
        table.write_text("\n".join(map(",".join, rows)))
        for source in (folder, folder / "test" / "predictions.csv"):
            with pytest.raises(DataError, match=match):
                evaluate(source, labels=table, output=tmp_path / "no", report=False)
    same = root / "labels.csv"
    found = evaluate(findings.folder, labels=same, output=tmp_path / "yes", resamples=0, report=False)
    assert found.metrics.n == findings.test.metrics.n
    for run, name in ((ages, "diagnosis"), (findings, "target")):  # a label of something else contradicts nothing
        paths = run.test.predictions.paths
        table.write_text(f"path,{name},sex\n" + "".join(f"{path},1,{i % 2}\n" for i, path in enumerate(paths)))
        evaluate(run.folder, labels=table, output=tmp_path / name, resamples=0, report=False)


def test_a_table_brings_readers_and_subgroups_to_the_run_and_to_its_predictions(
    run: TrainResult, tmp_path: Path
) -> None:
    known, ui = run.test.predictions, recording()
    truth = [known.classes[k] for k in known_labels(known)]
    table = tmp_path / "later.csv"
    rows = [f"{path},{i % 2},{truth[i]}" for i, path in enumerate(known.paths)]
    table.write_text("\n".join(["path,scanner,reader", *rows[:-1]]))
    flags = {"labels": table, "resamples": 0}
    for place, source in enumerate((run.folder, run.folder / "test" / "predictions.csv")):
        found = evaluate(source, rater=["reader"], output=tmp_path / f"{place}-rater", **flags)
        pairs = found.metrics["agreement"]["pairs"]
        assert (pairs[0]["first"], pairs[0]["agreement"]["value"]) == ("reader", 1.0)
        assert pairs[0]["n"] == len(known) - 1 and any("1 of 16 images are not in" in n for n in found.metrics["notes"])
        calls = tmp_path / "calls.csv"
        of_calls = zip(known.paths, ("yes" if name == known.classes[-1] else "no" for name in truth), strict=True)
        calls.write_text("\n".join(["path,call", *map(",".join, of_calls)]))
        found = evaluate(source, rater=["call"], output=tmp_path / f"{place}-call", labels=calls, resamples=0)
        assert found.metrics["agreement"]["pairs"][0]["agreement"]["value"] == 1.0
        found = evaluate(source, output=tmp_path / f"{place}-all", **flags)
        assert list(found.metrics["subgroups"]) == ["scanner"] and "site" in found.predictions.columns
        with pytest.raises(UsageError, match="unknown column for --rater 'nobody'"):
            evaluate(source, rater=["nobody"], output=tmp_path / "none", **flags)
    assert any(text.startswith("subgroups by scanner") for text in ui.said)
    table.write_text("path,scanner\nelsewhere.png,1\n")
    with pytest.raises(DataError, match=r"later\.csv: no row names one of the 16 images"):
        evaluate(run.folder, output=tmp_path / "none", **flags)


@pytest.mark.parametrize("kind", ["classes", "findings", "number"])
def test_a_table_fills_the_labels_of_predictions_without_labels(kind: str, tmp_path: Path) -> None:
    """The paths are as `predict` saw them, those of the table relative to the data root."""
    rng, paths = np.random.default_rng(0), tuple(f"disk/data/{i % 3}/{i}.png" for i in range(60))
    logits, truth = rng.normal(size=(60, 2)).astype(np.float32), rng.integers(0, 2, (60, 2))
    if kind == "classes":
        p, header = Predictions(("1", "2"), paths, None, None, logits), "label"
        cells, labels = [f"{k + 1}.0" for k in truth[:, 0]], truth[:, 0]  # as a spreadsheet writes a grade
    elif kind == "findings":
        p, header = FindingPredictions(("mass", "nodule"), paths, None, None, logits), "mass,nodule"
        cells, labels = [f"{a},{b}" for a, b in truth], truth
    else:
        target = Target(kind="number", unit="years", centre=50, spread=10)
        p, header = NumberPredictions(("age",), paths, None, None, logits, target=target), "label"
        labels = rng.integers(20, 90, 60)
        cells = [f"{age}" for age in labels]
    file, table = tmp_path / "predictions.csv", tmp_path / "truth" / "labels.csv"
    file.write_text(p.to_csv())
    with pytest.raises(DataError, match="nothing can be evaluated") as refused:
        evaluate(file, output=tmp_path / "none")
    assert f"vitmed evaluate {file} --labels TABLE" in refused.value.fix
    table.parent.mkdir()
    rows = [f"data/{i % 3}/{i}.png,{cells[i]},P{i // 2},{'NS'[i % 2]}" for i in range(5, 60)]
    table.write_text("\n".join([f"path,{header},patient,site", *rows, f"data/0/none.png,{cells[0]},P9,N"]))
    found = evaluate(
        file, labels=table, subgroup=["site"], resamples=0 if kind == "number" else 20, output=tmp_path / "found"
    )
    filled = found.predictions
    assert filled.paths == paths[5:] and filled.labels is not None and filled.labels.tolist() == labels[5:].tolist()
    assert filled.groups == tuple(f"P{i // 2}" for i in range(5, 60)) and filled.columns["site"][0] == "S"
    notes = " ".join(found.metrics["report"]["notes"])
    assert f"5 of 60 images have no label in {table} and are left out" in notes
    assert "1 row is of other images, and ignored" in notes
    table.write_text(f"path,{header}\nother.png,{cells[0]}\n")
    with pytest.raises(DataError, match=r"no row has a label of one of the 60 images, such as disk/data/0/0\.png"):
        evaluate(file, labels=table, output=tmp_path / "none")
    if kind == "classes":
        table.write_text("path,label\n0/0.png,3\n1/1.png,\n")
        with pytest.raises(DataError, match="class '3' is not one of the classes 1, 2"):
            evaluate(file, labels=table, output=tmp_path / "none")


def test_leakage_that_was_allowed_stands_at_the_head(tmp_path: Path) -> None:
    data, ui = draw_splits(tmp_path / "data", 6, 4, 4), recording()
    options = QUICK | {"group_regex": r"_(\d+)\.png"}  # every split has a patient 0
    with pytest.raises(DataError, match="in two splits"):
        train(data, output=tmp_path / "runs", sets=TINY_SETS, **options)
    result = train(data, output=tmp_path / "runs", sets=TINY_SETS, allow_leakage=True, **options)
    assert any("in two splits (--allow-leakage)" in text for text in ui.warned)
    notes = json.loads((result.folder / "test" / "metrics.json").read_text())["notes"]
    leaks = [note for note in notes[:2] if note.startswith("Leakage: 4 patients of this split have images in another")]
    assert leaks and leaks[0] in (result.folder / "test" / "report.html").read_text()
    assert "4 OF THEM IN TWO SPLITS" in result.test.metrics["report"]["facts"]["Patients of the run"]


def test_a_run_without_patients_says_so_at_the_head_and_shows_its_guess(tmp_path: Path) -> None:
    data, ui = draw_classes(tmp_path / "data", 24), recording()
    for file in sorted(data.rglob("*.png")):
        i = int(file.stem.split("_")[1])
        file.rename(file.with_name(f"P{i % 6}_{i}.png"))
    result = train(data, output=tmp_path / "runs", sets=TINY_SETS, **QUICK)
    assert any("look like 6 patients (P0, P1, P2, ...): confirm with --groups names" in text for text in ui.warned)
    assert "split by image: likely optimistic" in (result.folder / "test" / "report.html").read_text()
    metrics = json.loads((result.folder / "test" / "metrics.json").read_text())
    assert metrics["notes"][0].startswith("Data: 6 patients in two splits (guessed from the file names).")
    assert metrics["notes"][1].startswith("Split by image: likely optimistic.") and metrics["n_groups"] is None
    assert any(text.endswith("likely optimistic") for text in ui.said)


def test_a_column_set_of_an_earlier_version_is_no_subgroup(run: TrainResult) -> None:
    """vitmed 0.2.0 took tables that have a column with the name of one that a policy writes."""
    content = torch.load(run.folder / "best.pt", weights_only=True)
    content["data"]["columns"] = ["set"]
    file = save(content, shutil.copytree(run.folder, run.folder.parent / "earlier") / "best.pt")
    with pytest.raises(UsageError, match="these images have no further columns"):
        evaluate(file, subgroup=["set"])
