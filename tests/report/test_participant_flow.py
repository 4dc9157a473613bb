"""Where images come from and go: counted by hand, on splits of all kinds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import BARE, TINY_SETS, Trained, draw_classes, listing
from matplotlib.text import Text

from vitmed import train
from vitmed.data.samples import Sample, Splits
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.predictions import Predictions
from vitmed.report import participant_flow
from vitmed.report.chapters import document, render
from vitmed.report.participant_flow import characteristics, flow, flow_of
from vitmed.report.plots.drawing import png
from vitmed.report.results import EvaluatedImages, Results


def splits(groups: dict[str, list[tuple[int, str | None]]]) -> Splits:
    """Split name -> (label, patient) of each image."""
    samples = {
        name: tuple(Sample(f"{name}/{i}.png", label, group) for i, (label, group) in enumerate(part))
        for name, part in groups.items()
    }
    return Splits(Path("x"), ("a", "b"), samples, {name: f"folder {name}/" for name in samples}, patients="by table")


GROUPED = {
    "train": [(0, "P1"), (0, "P1"), (1, "P1"), (1, "P2")],
    "val": [(0, "P3"), (1, "P3")],
    "test": [(0, "P4"), (1, "P5")],
}
HASHES = {"train": ["h1", "h2", "h3", "h4"], "val": ["h5", "h6"], "test": ["h7", "h8"]}


def test_patients_and_images_are_counted_by_split_and_class() -> None:
    found = flow_of(
        splits(GROUPED), HASHES, {"found": 11, "unreadable": 1, "exact_duplicates": 2, "near_duplicates": 1}
    )
    assert (found["level"], found["patients"], found["patients_in_two"], found["copies_in_two"]) == ("patient", 5, 0, 0)
    assert (found["found"], found["used"], found["left_out"]) == (11, 8, 2)  # each file once: 8 + 1 + 2
    train = found["splits"]["train"]
    assert (train["images"], train["patients"]) == (4, 2)
    assert train.to_dict()["classes"] == {"a": {"images": 2, "patients": 1}, "b": {"images": 2, "patients": 2}}
    assert "P1" not in json.dumps(found.to_dict())


def test_a_patient_and_a_file_in_two_splits_are_told() -> None:
    shared = {**GROUPED, "test": [(0, "P1"), (1, "P5")]}
    found = flow_of(splits(shared), {**HASHES, "test": ["h1", "h5"]})
    assert (found["level"], found["patients"], found["patients_in_two"], found["copies_in_two"]) == ("none", 4, 1, 2)
    assert found["found"] is found["left_out"] is found["unreadable"] is None  # nobody counted


def test_unknown_patients_are_not_counted() -> None:
    found = flow_of(splits({**GROUPED, "test": [(0, None), (1, "P5")]}), HASHES)
    assert (found["level"], found["patients"], found["patients_in_two"], found["how"]) == ("image", None, None, "")
    assert found["splits"]["train"]["patients"] is None
    assert found["splits"]["train"]["classes"]["a"]["patients"] is None


def test_an_exported_model_counts_its_files_and_claims_no_patients() -> None:
    """It names no images; by patient its splits are only where the run knew patients."""
    counts, bare = {"found": 11, "unreadable": 1}, replace(splits({}), samples={})
    unknown, known = (flow_of(replace(bare, patients=how), HASHES, counts) for how in ("", "by table"))
    assert [(each.used, each.left_out, each.patients, each.patients_in_two) for each in (unknown, known)] == [
        (8, 2, None, None)
    ] * 2
    assert [(each.level, each.how) for each in (unknown, known)] == [("image", ""), ("patient", "by table")]


@pytest.mark.parametrize(
    "evaluated", [{"split": "test", "images": 2, "patients": 2}, {"split": None, "images": 7, "patients": None}]
)
def test_the_diagram_holds_the_numbers(evaluated: dict[str, object]) -> None:
    p = Predictions(("a", "b"), ("x",), None, np.zeros(1, np.int64), np.zeros((1, 2), np.float32))
    counts = {"found": 11, "unreadable": 0, "exact_duplicates": 2, "near_duplicates": 1}
    told = flow_of(splits(GROUPED), HASHES, counts, "outside the folders")
    told = told.model_copy(update={"evaluated": EvaluatedImages.model_validate(evaluated)})
    numbers = evaluate_predictions(p)
    figure = flow(p, Results.of(numbers, flow=told))
    texts = [line for item in figure.findobj(Text) for line in item.get_text().splitlines()]
    assert {"11 image files", "3 in no split", "8 images, 5 patients", "a: 2 / 1", "b: 2 / 2"} <= set(texts)
    assert ("test (evaluated)" in texts) is (evaluated["split"] == "test")
    assert ("others (evaluated)" in texts) is (evaluated["split"] is None)
    assert png(figure).startswith(b"\x89PNG")
    assert flow(p, Results.of(numbers)) is None


def test_no_class_is_cut_beside_its_numbers() -> None:
    p = Predictions(("infected", "uninfected"), ("x",), None, np.zeros(1, np.int64), np.zeros((1, 2), np.float32))
    many = {name: [(i % 2, f"{name}{i}") for i in range(1200)] for name in ("train", "val", "test")}
    told = flow_of(replace(splits(many), classes=p.classes), HASHES)
    told = told.model_copy(update={"evaluated": participant_flow.evaluated_images(p, None)})
    figure = flow(p, Results.of(evaluate_predictions(p), flow=told))
    texts = [line for item in figure.findobj(Text) for line in item.get_text().splitlines()]
    assert texts.count("infected: 600 / 600") == texts.count("uninfected: 600 / 600") == 3
    assert {"others (evaluated)", "1 image, patients unknown", "infected: 1", "uninfected: 0"} <= set(
        texts
    ) and "…" not in "".join(texts)


def test_quartiles_of_few_patients_are_not_told() -> None:
    dealt = {"train": [Sample(f"{i}.png", 0, f"P{i}", columns=(str(20 + i),)) for i in range(27)]}
    found = Splits(Path("x"), ("a",), {k: tuple(v) for k, v in dealt.items()}, {}, columns=("age",))
    told = characteristics(found, ["age"])
    assert told["age"]["rows"] == [] and "fewer than 10 patients" in told["age"]["reason"]


def test_a_run_tells_its_flow(trained: Trained) -> None:
    for name in ("val", "test"):
        told = json.loads((trained.folder / name / "metrics.json").read_text())["flow"]
        part = told["splits"][name]
        assert told["evaluated"] == {
            "split": name, "images": part["images"], "patients": None, "classes": part["classes"], "seen": {},
            "folds": None,
        }  # fmt: skip
        assert told["found"] == told["used"] == sum(part["images"] for part in told["splits"].values())
        assert (told["left_out"], told["unreadable"], told["exact_duplicates"]) == (0, 0, 0)
    html = (trained.folder / "test" / "report.html").read_text()
    assert "disjoint by image only" in html and "test, evaluated here" in html


@pytest.mark.usefixtures("no_figures")
def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 20)
    (data / "loose.png").write_bytes((data / "amber" / "amber_0.png").read_bytes())
    before = listing(data)
    result = train(data, output=tmp_path / "runs", name="a", sets=TINY_SETS, max_train=20, **BARE)
    told = result.test.metrics["flow"]
    assert told["found"] == 41 and told["splits"]["train"]["images"] == 20
    assert told["left_out"] == 41 - told["used"] > 1 and "a sample of 20" in told["why_left_out"]
    assert listing(data) == before


def test_characteristics_by_hand() -> None:
    """30 of 50 patients of train are women and 10 of 40 of the test: 0.25 - 0.6 over the root of the mean variance."""

    def part(name: str, women: int, men: int, few: int = 0) -> tuple[Sample, ...]:
        sexes = ["F"] * women + ["M"] * men + ["X"] * few
        return tuple(Sample(f"{name}/{i}{j}.png", 0, f"{name}{i}", (sex,)) for i, sex in enumerate(sexes) for j in "ab")

    samples = {"train": part("train", 30, 20), "val": part("val", 9, 11, 2), "test": part("test", 10, 30)}
    found = characteristics(Splits(Path("x"), ("a", "b"), samples, columns=("sex",)), ["sex"])["sex"]
    assert found["unit"] == "patients" and [row["name"] for row in found["rows"]] == ["F", "M"] and found["rare"] == 1
    women = found["rows"][0]["splits"]
    assert women["train"].to_dict() == {"n": 30, "share": 0.6, "difference": None}
    assert women["val"].to_dict() == {"n": None, "share": None, "difference": None}  # nine
    assert women["test"]["share"] == 0.25
    assert women["test"]["difference"] == pytest.approx((0.25 - 0.6) / ((0.25 * 0.75 + 0.6 * 0.4) / 2) ** 0.5)
    assert "train1" not in json.dumps(found.to_dict())


def test_characteristics_of_a_handful_leave_no_empty_table() -> None:
    women = {name: tuple(Sample(f"{name}{i}", 0, f"{name}{i}", ("F",)) for i in range(4)) for name in ("train", "test")}
    few = Splits(Path("x"), ("a", "b"), women, columns=("sex",))
    flow = flow_of(few, {name: [] for name in women})
    flow = flow.model_copy(update={"characteristics": characteristics(few, ["sex"])})
    p = Predictions(("a", "b"), ("x", "y"), None, np.array([0, 1]), np.eye(2, dtype=np.float32))
    metrics = Results.of(evaluate_predictions(p), flow=flow)
    html = render(metrics, document(metrics, {}))
    assert "no value has 10 patients in any split" in html and "standardised difference" not in html
