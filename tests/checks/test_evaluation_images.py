"""Patients and copies: what is said of the images before the numbers are believed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import BARE, TINY, TINY_SETS, draw_classes, draw_patients, draw_splits, once, recording
from label_sets import label_set
from PIL import Image

from vitmed import evaluate, train
from vitmed.checks.evaluation_images import ImageRequest, foreign_images, leakage
from vitmed.core.base_models import Target
from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.data import image_cache, patients
from vitmed.data.samples import ALL, Sample, Splits
from vitmed.models.weights.files import digests_of
from vitmed.studies.one_run import TrainResult

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run that knows its patients, and for which amber is the finding."""

    def make(place: Path) -> TrainResult:
        for k, part in enumerate(("train", "val", "test")):
            draw_patients(place / "data" / part, 3 * k, seed=k)
        settings = TINY | {"epochs": 1, "group_regex": r"(P\d+)_", "positive": "amber", "report": False}
        settings |= {"baseline": False, "map_images": 0}
        return train(place / "data", output=place / "runs", name="run", sets=TINY_SETS, **settings)

    return once(tmp_path_factory, "patients", make)


def judge(run: TrainResult, tmp_path: Path, **options: Any) -> dict[str, Any]:
    """What the metrics.json of an evaluation holds."""
    found = evaluate(run.folder, output=tmp_path / "report", resamples=20, **options)
    written: dict[str, Any] = json.loads((found.folder / "metrics.json").read_text())
    return written


def test_a_run_by_patient_has_nothing_to_confess(run: TrainResult, tmp_path: Path) -> None:
    metrics = judge(run, tmp_path)
    assert metrics["resampling"] == run.test.metrics["resampling"] == "by patient"
    assert metrics["report"]["notes"] == []


def test_the_positive_class_is_as_was_said(run: TrainResult, tmp_path: Path) -> None:
    """Also in the report that is made again; of two classes the headline numbers are the finding's."""
    metrics = judge(run, tmp_path)
    assert metrics["positive_class"] == "amber"
    assert metrics["overall"]["average_precision"] == metrics["per_class"]["amber"]["average_precision"]
    again = evaluate(tmp_path / "report" / "predictions.csv", resamples=20).metrics
    found = again.to_dict()
    assert found["report"].pop("rebuilt") and found == metrics


def test_names_in_which_the_runs_expression_finds_no_patient(run: TrainResult, tmp_path: Path) -> None:
    other = draw_classes(tmp_path / "other", 20, seed=70)
    metrics = judge(run, tmp_path, data=other)
    assert metrics["n"] == 40 and metrics["resampling"] == "by image"
    assert not any("near cop" in note for note in metrics["notes"])
    assert any("finds no patient" in note and "--group-regex" in note for note in metrics["notes"])
    assert any("Patients are unknown" in note for note in metrics["notes"])


def test_another_expression_for_another_place(run: TrainResult, tmp_path: Path) -> None:
    other = draw_classes(tmp_path / "other", 4, seed=70)
    metrics = judge(run, tmp_path, data=other, group_regex=r"_(\d+)")
    assert metrics["resampling"] == "by patient" and metrics["report"]["notes"] == []
    with pytest.raises(DataError, match=r"--group-regex '\(Q\\d\+\)' finds no patient in 8 of 8 paths"):
        evaluate(run.folder, data=other, group_regex=r"(Q\d+)", output=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_patients_that_the_model_was_made_with(run: TrainResult, tmp_path: Path) -> None:
    """Other images of P5, a patient of validation, among P6 and P7, which are new or of the test."""
    metrics = judge(run, tmp_path, data=draw_patients(tmp_path / "other", 5, seed=70))
    assert any(
        note.startswith("Patients that share a name with a patient used to make the model: 1")
        for note in metrics["notes"]
    )
    assert metrics["flow"]["evaluated"]["seen"] == {"images": 0, "patients": 1, "test": 0}


def test_leakage_looks_at_the_hashes_of_the_test_once(tmp_path: Path) -> None:
    """Not once an image, which takes hours for 10^5 images."""

    class Counted(list[str]):
        passes = 0

        def __iter__(self) -> Iterator[str]:
            type(self).passes += 1
            return super().__iter__()

    for i in range(40):
        (tmp_path / f"{i}.png").write_text(f"image {i}")
    tested = Counted(hashlib.sha256(f"image {i}".encode()).hexdigest() for i in range(30, 50))
    samples = [Sample(f"{i}.png", 0, None) for i in range(40)]
    saved = SimpleNamespace(splits=SimpleNamespace(samples={"train": []}, grouped=False), seen=())
    saved.hashes = {"train": [], "test": tested}
    seen, notes = leakage(saved, tmp_path, samples, allow=False)  # type: ignore[arg-type]
    assert seen["test"] == 10 and any("own test" in note for note in notes)
    assert Counted.passes <= 2


@pytest.mark.parametrize("where", ["train", "val", "seen", "test"])
def test_an_image_that_made_the_model_is_refused_and_one_of_its_test_is_not(tmp_path: Path, where: str) -> None:
    """One of three images elsewhere is one of train or val, or made the weights that the run began with."""
    for i in range(3):
        (tmp_path / f"{i}.png").write_text(f"image {i}")
    samples = [Sample(f"{i}.png", 0, None) for i in range(3)]
    hashes = {"train": ["a"], "val": ["b"], "test": ["c"], "seen": []}
    hashes[where].append(hashlib.sha256(b"image 1").hexdigest())
    splits = SimpleNamespace(samples={"train": [], "val": [], "test": []}, grouped=False)
    saved: Any = SimpleNamespace(splits=splits, seen=hashes.pop("seen"), hashes=hashes)
    if where != "test":
        with pytest.raises(DataError, match=r"1 of 3 images was used to make this model .*the first is .*1\.png"):
            leakage(saved, tmp_path, samples, allow=False)
    seen, notes = leakage(saved, tmp_path, samples, allow=True)
    assert (seen["images"], seen["test"]) == ((0, 1) if where == "test" else (1, 0))
    assert sum(note.startswith("Leakage: 1 of 3 images was used") for note in notes) == (where != "test")


def test_a_patient_that_made_the_model_is_noticed_in_another_spelling(tmp_path: Path) -> None:
    """Excel drops the zeros of 007, and may have read one of the two tables."""
    samples = [Sample(f"{i}.png", 0, name) for i, name in enumerate(["7", "8.0", "0010", "A  1", ""])]
    for sample in samples:
        (tmp_path / sample.path).write_text(sample.path)
    made = {"train": [Sample("a", 0, "007"), Sample("b", 0, "")], "val": [Sample("c", 0, "a1"), Sample("d", 0, "a 1")]}
    saved: Any = SimpleNamespace(splits=SimpleNamespace(samples=made, grouped=True), seen=())
    saved.hashes = {"train": [], "val": [], "test": []}
    seen, notes = leakage(saved, tmp_path, samples, allow=False)
    assert seen["patients"] == 2 and "used to make the model: 2." in notes[0]


def test_test_images_that_are_copies_of_training_images(tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 6, 2, 3)
    for i in range(2):
        shutil.copy(data / "train" / "blue" / f"blue_{i}.png", data / "test" / "blue" / f"copy_{i}.png")
    ui = recording()
    result = train(data, output=tmp_path / "runs", sets=TINY_SETS, **BARE | {"epochs": 1})
    assert any("the same file in two splits: 2 files, 2 of 8 test images" in text for text in ui.warned)
    notes = json.loads((result.folder / "test" / "metrics.json").read_text())["notes"]
    assert any(note.startswith("Leakage: 2 of these images") for note in notes)
    assert not any("Leakage" in note for note in result.val.metrics["notes"])


def test_near_copies_of_training_images_are_noticed(run: TrainResult, tmp_path: Path) -> None:
    """Three training images, a little paler; their bytes differ, so nothing else notices them."""
    data = draw_classes(tmp_path / "other", 4, seed=70)
    for i, file in enumerate(sorted((run.folder.parents[1] / "data" / "train").rglob("*.png"))[:3]):
        with Image.open(file) as image:
            image.point(lambda value: int(value * 0.9 + 10)).save(data / "amber" / f"again_{i}.png")
    notes = judge(run, tmp_path, data=data)["notes"]
    assert any(note.startswith("Leakage: 3 of 11 images look like near copies") for note in notes), notes


def test_other_images_are_read_for_their_hash_once(
    run: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, hashed = draw_classes(tmp_path / "other", 4, seed=70), Counter[str]()
    for file in data.rglob("*.png"):
        os.utime(file, (0, 0))  # a file that has just changed may change again

    def counted(path: str) -> str:
        hashed[path] += Path(path).is_file()
        return sha256(path)

    sha256 = image_cache._sha256
    monkeypatch.setattr(image_cache, "_sha256", counted)
    judge(run, tmp_path, data=data)
    assert len(+hashed) == 8 and hashed.most_common(1)[0][1] == 1


def test_a_checkpoint_without_fingerprints_says_so(run: TrainResult, tmp_path: Path) -> None:
    old = tmp_path / "best.pt"
    shutil.copy(run.checkpoint, old)
    content = torch.load(old, weights_only=True)
    del content["data"]["fingerprints"]
    content["digests"] = digests_of(content)
    torch.save(content, old)
    ui = recording()
    data = draw_classes(tmp_path / "other", 4, seed=70)
    evaluate(old, data=data, output=tmp_path / "report", resamples=20)
    assert any("near copies of its training images cannot be noticed" in text for text in ui.warned)


def test_an_expression_of_a_checkpoint_that_backtracks(
    run: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's checkpoint: the expression is shown, and its time is limited."""
    hostile, ui = tmp_path / "best.pt", recording()
    content = torch.load(run.checkpoint, weights_only=True)
    content["config"]["data"]["group_regex"] = "(a|aa)+[yz]"
    content["digests"] = digests_of(content)
    torch.save(content, hostile)
    data = draw_classes(tmp_path / "other", 2, seed=70)
    (data / "amber" / "amber_0.png").rename(data / "amber" / f"{'a' * 60}.png")
    monkeypatch.setattr(patients, "SECONDS", 0.5)
    with pytest.raises(UsageError, match="backtracks"):
        evaluate(hostile, data=data, output=tmp_path / "report")
    assert any("--group-regex '(a|aa)+[yz]'" in text for text in ui.said)


# --- images of another place, with labels of another kind than classes


def model_of(kind: str, classes: tuple[str, ...], bins: tuple[str, ...] = ()) -> Any:
    """What `foreign_images` asks of a checkpoint."""
    splits = Splits(Path("data"), classes, {}, target=Target(kind=kind), bins=bins)  # type: ignore[arg-type]
    return SimpleNamespace(classes=classes, splits=splits, config=SimpleNamespace(data=DataConfig()))


def foreign(model: Any, folder: Path, header: list[str], rows: list[list[Any]]) -> tuple[Splits, list[str]]:
    label_set(folder, ["path", *header], [[f"{i}.png", *row] for i, row in enumerate(rows)])
    request = ImageRequest(folder, "test", labels=folder / "labels.csv")
    images, part = foreign_images(model, folder, request)
    assert part == ALL
    return images, [*images.notes]


def test_findings_are_matched_by_name(tmp_path: Path) -> None:
    """In the model's order; what the table lacks is not known, and what the model does not know is ignored."""
    model = model_of("findings", ("Mass", "Edema", "Hernia"), ("Mass", "Edema", "Hernia", "no finding"))
    rows = [[1, 0, 1], [0, 1, ""], [0, 0, -1]]
    images, notes = foreign(model, tmp_path / "columns", ["Edema", "Nodule", "Mass"], rows)
    found = {sample.path: sample.targets for sample in images.samples[ALL]}
    assert found == {"0.png": (1, 1, -1), "1.png": (-1, 0, -1), "2.png": (-1, 0, -1)}
    assert any("no labels of Hernia, which count as not known" in note for note in notes)
    model.config.data = DataConfig(uncertain="ones")  # -1 counts as it did in training
    images, _ = foreign(model, tmp_path / "columns", ["Edema", "Nodule", "Mass"], rows)
    assert {sample.path: sample.targets for sample in images.samples[ALL]} == found | {"2.png": (1, 0, -1)}
    cells = [["Mass|Nodule"], ["No Finding"], ["Edema"]]
    images, notes = foreign(model, tmp_path / "names", ["label"], cells)
    found = {sample.path: sample.targets for sample in images.samples[ALL]}
    assert found == {"0.png": (1, 0, -1), "1.png": (0, 0, -1), "2.png": (0, 1, -1)}
    with pytest.raises(DataError, match="none of the model's findings Mass, Edema, Hernia; it has A, B"):
        foreign(model, tmp_path / "others", ["A", "B"], [[1, 0], [0, 1]])
    with pytest.raises(DataError, match="folders name one class of an image; the model predicts findings"):
        foreign_images(model, draw_classes(tmp_path / "folders", 2), ImageRequest("x", "test"))


def test_patients_of_another_place_are_those_of_its_table_else_found_as_in_the_run(tmp_path: Path) -> None:
    names = [f"{label}/P{i:02}_{j}.png" for label in "ab" for i in range(10) for j in range(3)]
    folder = label_set(tmp_path / "set", ["path", "label"], [[name, name[0]] for name in names])
    model = model_of("classes", ("a", "b"))

    def groups(labels: Path | None, **fields: Any) -> set[tuple[str, str | None]]:
        model.config.data = DataConfig(**fields)
        images, _ = foreign_images(model, folder, ImageRequest(folder, "test", labels=labels))
        return {(sample.path, sample.group) for sample in images.samples[ALL]}

    by_name = {(name, name[2:5]) for name in names}
    assert groups(None, groups="names") == groups(folder / "labels.csv", group_regex=r"(P\d+)_") == by_name
    table = tmp_path / "patients.csv"
    table.write_text("path,label,patient\n" + "".join(f"{name},{name[0]},Q{name[6]}\n" for name in names))
    assert groups(table, group_regex=r"(P\d+)_") == {(name, f"Q{name[6]}") for name in names}
    assert groups(None) == {(name, None) for name in names}


def test_grades_are_matched_by_the_models_scale(tmp_path: Path) -> None:
    model = model_of("grades", ("none", "mild", "severe"))
    images, _ = foreign(model, tmp_path / "set", ["label"], [["severe"], ["none"]])
    assert images.classes == ("none", "mild", "severe")
    assert {s.path: s.label for s in images.samples[ALL]} == {"0.png": 2, "1.png": 0}
    with pytest.raises(DataError, match=r"line 3: the grade 'awful' is not on the scale none, mild, severe"):
        foreign(model, tmp_path / "other", ["label"], [["severe"], ["awful"]])
    floats, _ = foreign(model_of("grades", ("0", "1", "2")), tmp_path / "floats", ["label"], [["2.0"], ["0.0"]])
    assert {s.path: s.label for s in floats.samples[ALL]} == {"0.png": 2, "1.png": 0}


def test_a_number_is_found_by_its_name_or_as_the_label(tmp_path: Path) -> None:
    model = model_of("number", ("age",), ("0 to 9", "10 to 90"))
    images, _ = foreign(model, tmp_path / "named", ["height", "age"], [[180, 31.5], [160, 40], [170, ""]])
    assert {s.path: s.targets for s in images.samples[ALL]} == {"0.png": (31.5,), "1.png": (40,)}
    images, _ = foreign(model, tmp_path / "label", ["label"], [[31.5], [40]])
    assert images.classes == ("age",) and images.samples[ALL][1].targets == (40,)
