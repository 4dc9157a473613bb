"""benchmarks/medical.py: whose images are in which part, equal time, and lines of results that survive a kill."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PATIENTS, EACH = 40, 3


@pytest.fixture
def medical(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import medical

    yield medical
    for name in ("medical", "medical_sets", "medical_table", "trees"):
        sys.modules.pop(name, None)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A set in the layout of busi: grey images as bright as the number of their patient; the second class darker."""
    folder = tmp_path / "data" / "busi"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    with (folder / "labels.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["path", "label", "dup_group", "label_conflict"])
        for patient in range(PATIENTS):
            for label, base in (("benign", 120), ("malignant", 60)):
                for image in range(EACH):
                    path = f"{label}_{patient}_{image}.png"
                    pixels = rng.integers(0, 9, (32, 32)) + base + patient
                    Image.fromarray(pixels.astype(np.uint8)).save(folder / path)
                    table.writerow([path, label, f"P{patient}", "0"])
        table.writerow(["nowhere.png", "benign", "", "1"])
    return folder.parent


def test_a_patient_is_in_one_part_and_the_brightest_patients_are_the_shift(
    medical: ModuleType, data: Path, tmp_path: Path
) -> None:
    rows = medical.split_table("busi", data, tmp_path / "work")
    assert len(rows) == PATIENTS * 2 * EACH  # without the image whose copies contradict each other
    patients = {part: {int(row.group[1:]) for row in rows if row.part == part} for part in ("train", "val", "shift")}
    test = {int(row.group[1:]) for row in rows if row.part == "test"}
    assert sum(map(len, patients.values())) + len(test) == PATIENTS
    rest = sorted(set(range(PATIENTS)) - test)
    assert patients["shift"] == set(rest[-(len(rest) // 5) :])
    assert medical.split_table("busi", data, tmp_path / "elsewhere") == rows


def test_training_knows_no_image_of_the_test(medical: ModuleType, data: Path, tmp_path: Path) -> None:
    rows = medical.split_table("busi", data, tmp_path / "work")
    with medical.labels_table(rows, tmp_path / "labels.csv").open() as stream:
        table = {row["path"]: row["split"] for row in csv.DictReader(stream)}
    assert set(table) == {row.path for row in rows if row.part != "test"}
    assert {table[row.path] for row in rows if row.part == "shift"} == {"test"}


@pytest.mark.slow
def test_networks_train_as_long_as_the_plan_and_no_run_is_made_twice(
    medical: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    command = ["medical.py", str(work), "--data", str(data), "--sets", "busi", "--seeds", "0"]
    command += ["--minutes", "0.01"]

    def lines(*more: str) -> list[dict[str, object]]:
        monkeypatch.setattr(sys, "argv", [*command, *more])
        medical.main()
        return [json.loads(line) for line in (work / "results.jsonl").read_text().splitlines()]

    done = {line["contender"]: line for line in lines()}
    assert list(done) == ["plan", "resnet18", "timm", "colours"]
    assert all(done[name]["seconds"] >= done["plan"]["seconds"] for name in ("resnet18", "timm"))
    assert all(set(line["parts"]) == {"val", "shift", "corrupted"} for line in done.values())
    assert done["colours"]["parts"]["val"]["auroc"][0] == 1.0  # the classes differ by brightness alone
    assert len(lines()) == 4
    scored = lines("--final")[4:]
    assert [set(line["parts"]) for line in scored] == [{"test"}] * 4
    assert len(lines("--final")) == 8
    for _ in range(2):
        lines("--views")
        compared = [json.loads(line) for line in (work / "views.jsonl").read_text().splitlines()]
        assert [line["contender"] for line in compared] == ["plan", "resnet18", "timm"]
    for line in compared:
        for part, of_views in line["parts"].items():
            assert len(of_views) == 5
            known = done[line["contender"]]["parts"][part]
            assert all(of_views["one"][name] == pytest.approx(known[name][0]) for name in of_views["one"])
    figure = tmp_path / "medical.png"
    lines("--tell", "--plot", str(figure))
    assert Image.open(figure).format == "PNG"


def test_a_line_that_a_kill_cut_off_is_left_out_and_spoils_no_other(medical: ModuleType, tmp_path: Path) -> None:
    key = medical.Key("busi", "plan", 0, None)
    medical.add_line(tmp_path, {**key._asdict(), "parts": {"val": {}}})
    with (tmp_path / "results.jsonl").open("a") as stream:
        stream.write('{"set": "busi", "contender": "resn')
    later = key._replace(seed=1)
    medical.add_line(tmp_path, {**later._asdict(), "parts": {"val": {}}})
    assert set(medical.finished_lines(tmp_path)) == {key, later}


def test_the_table_gives_mean_spread_and_paired_differences(
    medical: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(value: float) -> dict[str, object]:
        numbers = {name: [value, value - 0.1, value + 0.1] for name in (*medical.METRICS, "log_loss_raw")}
        return {"seconds": 60.0, "parts": {"val": numbers}}

    values = {"plan": (0.80, 0.90), "resnet18": (0.80, 0.86), "timm": (0.7, 0.7)}
    lines = {medical.Key("busi", who, i, None): line(v) for who, both in values.items() for i, v in enumerate(both)}
    medical.tell(lines)
    text = capsys.readouterr().out
    assert "| busi | plan | 2 | 0.850 ± 0.071 (+0.020 ± 0.028) |" in text
    assert "| busi | resnet18 | 2 | 0.830 ± 0.042 |" in text
    assert "AUROC 1 of 1 sets (+0.020)" in text
    assert "log loss 0 of 1 sets (-0.150)" in text  # lower is better, and timm has the lowest


def test_the_table_of_views_gives_the_gain_over_one_view(
    medical: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(one: float, mirror: float) -> dict[str, object]:
        part = {"one": dict.fromkeys(medical.METRICS, one), "mirror": dict.fromkeys(medical.METRICS, mirror)}
        return {"val": part, "shift": part}

    lines = {
        medical.Key("busi", "plan", 0, None): line(0.80, 0.82),
        medical.Key("busi", "plan", 1, None): line(0.70, 0.76),
        medical.Key("pbc_blood", "plan", 0, None): line(0.60, 0.61),
    }
    medical.tell_views(lines)
    text = capsys.readouterr().out
    assert text.count("| plan | 3 | one | 0.700 | 0.700 | 0.700 | 0.700 | +0.000, +0.000 |") == 2
    # gains 0.02, 0.06, 0.01: mean 0.030, standard deviation 0.0265, divided by the root of 3
    assert "| plan | 3 | mirror | 0.730 (+0.030 ± 0.015) |" in text and "| +0.040, +0.010 |" in text


def test_a_plan_that_is_not_measured_is_named(medical: ModuleType, tmp_path: Path) -> None:
    options = argparse.Namespace(work=tmp_path)
    with pytest.raises(SystemExit, match="busi, seed 0: the plan is not measured; name plan among --contenders"):
        medical.time_of_plan(options, medical.Key("busi", "timm", 0, None))
