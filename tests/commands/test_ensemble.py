"""`vitmed ensemble`: folds or runs as one model, which the other commands take."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from conftest import BARE, TINY_SETS, Answer, Recorder, draw_nothing, draw_pairs
from PIL import Image
from served import serving
from sklearn.metrics import roc_auc_score

from vitmed import cross_validate, ensemble, evaluate, explain, export, load, monitor, predict, stress, train
from vitmed.core.errors import CheckpointError, DataError, UsageError
from vitmed.core.messages import gravity, listening
from vitmed.core.run_folder import RunFolder
from vitmed.deploy.http.app import PICTURE
from vitmed.explanation.results import OF_ENSEMBLE, TITLES
from vitmed.imaging.preprocessing import JointPreprocessing
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.inference.ensemble import load_ensemble
from vitmed.inference.load import png_address
from vitmed.inference.onnx_model import describe_export
from vitmed.inference.open_model import open_model
from vitmed.metrics.predictions import Predictions
from vitmed.report.results import Results
from vitmed.report.templates import blocks_of, results_sentence

RUN = Callable[..., Answer]
VAL = "val/metrics.json"
SETTINGS = BARE | {"epochs": 1, "group_regex": r"(p\d+)_", "resamples": 20}


@pytest.fixture(scope="module", autouse=True)
def _small() -> None:
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen patients with two images of each class."""
    return draw_pairs(tmp_path_factory.mktemp("joined") / "data", 30)


@pytest.fixture(scope="module")
def folds(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three folds of four fifths of the patients, and the ensemble of them."""
    place = tmp_path_factory.mktemp("folds")
    settings = SETTINGS | {"folds": 3, "hold_out": 0.2}
    found = cross_validate(data, output=place, name="cv", sets=TINY_SETS, **settings)  # type: ignore[arg-type]
    assert found is not None
    return found.folder


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run, and one that began with its weights, with the same splits."""
    place = tmp_path_factory.mktemp("runs")

    def run(name: str, **options: object) -> Path:
        return train(data, output=place, name=name, sets=TINY_SETS, **SETTINGS | options).folder  # type: ignore[arg-type]

    start = run("start")
    return [run("two", weights=start / "best.pt", seed=1, lr=0.01), start]


def images_of(data: Path) -> list[Path]:
    return sorted(data.glob("*/*.png"))[:7]


def test_an_ensemble_predicts_the_mean_of_the_calibrated_probabilities(folds: Path, data: Path) -> None:
    found = predict(images_of(data), checkpoint=folds, precision="fp32")
    each = [predict(images_of(data), checkpoint=folds / f"fold-{k}", precision="fp32") for k in (1, 2, 3)]
    mean = np.mean([one.probabilities for one in each], axis=0)
    assert isinstance(found, Predictions)
    assert np.exp(found.logits) == pytest.approx(mean, abs=1e-6)
    scores = np.mean([np.array(one.columns["ood_score"], float) for one in each], axis=0)
    assert np.array(found.columns["ood_score"], float) == pytest.approx(scores, rel=1e-4)
    assert len(found) == 7 and "answer" in found.columns


def test_the_test_is_what_no_fold_contains(folds: Path) -> None:
    """The ensemble was tested once, on whole patients that no fold has; the policy comes from the folds' own tests."""
    test = json.loads((folds / "ensemble" / "test" / "metrics.json").read_text())
    table = Predictions.from_csv(folds / "ensemble" / "test" / "predictions.csv")
    inside = {
        line.split(",")[0] for k in (1, 2, 3) for line in (folds / f"fold-{k}" / "splits.csv").read_text().split()
    }
    assert test["n"] == 12 and not inside & set(table.paths)  # a fifth of 60
    area = roc_auc_score(table.labels, table.probabilities[:, 1])
    assert test["overall"]["auroc"]["value"] == pytest.approx(area)
    pooled = Predictions.from_csv(folds / "test" / "predictions.csv")
    chosen_on = Predictions.from_csv(folds / "ensemble" / "val" / "predictions.csv")
    assert set(chosen_on.paths) == set(pooled.paths) and len(pooled) == 48
    notes = json.loads((folds / "ensemble" / "val" / "metrics.json").read_text())["report"]["notes"]
    assert any("1 model of 3 said of each image" in note for note in notes)
    val = Results.read(json.loads((folds / "ensemble" / VAL).read_text()))  # no result: it chose what decides
    assert results_sentence(val).startswith("On 48 out-of-fold validation images of 12 patients, the models reached")
    assert val.notes[0].startswith("These images chose the decision policy") and gravity(val.notes[0]) == 3
    assert val.flow is not None and [*val.flow.splits] == ["fold 1", "fold 2", "fold 3", "held out"]
    words = str(blocks_of("sections/summary.html.j2", metrics=val, limitations=[""], found=True))
    assert "none of them in the training images of the model that predicted it." in " ".join(words.split())
    facts = test["report"]["facts"]
    assert facts["Model"] == "the mean of 3 models (0.333 + 0.333 + 0.333)"


def test_an_operating_point_of_the_ensemble_is_chosen_out_of_fold(folds: Path, tmp_path: Path) -> None:
    found = evaluate(folds, output=tmp_path / "again", target_sensitivity=0.9)
    assert found.metrics.operating_points is not None and found.metrics.operating_points.chosen == "target_sensitivity"
    with pytest.raises(UsageError, match="no val images of its own"):
        evaluate(folds, split="val")


def test_images_of_the_folds_are_not_evaluated_again(folds: Path, data: Path, tmp_path: Path) -> None:
    for name in ("amber", "blue"):
        (tmp_path / "again" / name).mkdir(parents=True)
        for path in sorted((data / name).iterdir())[:20]:
            shutil.copy(path, tmp_path / "again" / name / f"x{path.name}")
    with pytest.raises(DataError, match="used to make this model"):
        evaluate(folds, data=tmp_path / "again")


def test_an_ensemble_moves_with_its_folds_and_notices_what_changed(folds: Path, data: Path, tmp_path: Path) -> None:
    there = tmp_path / "moved"
    shutil.copytree(folds, there)
    before = predict(images_of(data), checkpoint=folds)
    again = predict(images_of(data), checkpoint=there)
    assert np.array_equal(before.logits, again.logits)
    shutil.copy(there / "fold-2" / "best.pt", there / "fold-1" / "best.pt")
    with pytest.raises(CheckpointError, match=r"fold-1/best\.pt holds other weights"):
        open_model(there)
    (there / "fold-1" / "best.pt").unlink()
    with pytest.raises(CheckpointError, match=r"fold-1/best\.pt is missing"):
        open_model(there)
    file = there / "ensemble" / "ensemble.json"
    future = '{"format": "vitmed ensemble", "version": 2}'
    for content in ("{", "[]", future, file.read_text().replace("paths", "path")):
        file.write_text(content)
        with pytest.raises(CheckpointError, match="damaged"):
            open_model(there)


def test_an_ensemble_of_0_2_is_read(folds: Path, data: Path, tmp_path: Path) -> None:
    """Its hash is made of the members' policies, which then stated the score of prediction sets."""
    place = tmp_path / "folds"
    shutil.copytree(folds, place)
    file = place / "ensemble" / "ensemble.json"
    content, members = json.loads(file.read_text()), load_ensemble(file).members
    told = []
    for member, row in zip(members, content["members"], strict=True):
        policy = member.policy.to_json()
        policy["asked"]["conformal"] = "lac"
        if policy["prediction_sets"] is not None:  # too few images of validation for sets
            policy["prediction_sets"]["score"] = "lac"
        told.append([member.weights_hash, row["share"], policy])
    content["weights_hash"] = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps(content))
    assert load_ensemble(file).weights_hash == content["weights_hash"]
    file.write_text(json.dumps(content | {"weights_hash": "0" * 64}))
    with pytest.raises(CheckpointError, match="another decision policy"):
        load_ensemble(file)


def test_other_commands_take_an_ensemble(folds: Path, data: Path, tmp_path: Path, vitmed: RUN) -> None:
    assert str(folds.parent) not in (folds / "ensemble" / "ensemble.json").read_text()  # no folder of the machine
    image = images_of(data)[0]
    expected = predict([image], checkpoint=folds)
    model = load(folds)
    answer = model.predict(image)
    assert answer.probability == pytest.approx(float(expected.confidence[0])) and answer.picture.ndim == 3
    explained = explain([image], checkpoint=folds, output=tmp_path / "maps")
    members = [explain([image], checkpoint=folds / f"fold-{k}", output=tmp_path / str(k)) for k in (1, 2, 3)]
    assert explained.maps.keys() == members[0].maps.keys() >= {"rollout"}
    for name, grid in explained.maps.items():
        assert grid == pytest.approx(np.mean([one.maps[name] for one in members], axis=0), abs=1e-6)
    assert evaluate(folds, output=tmp_path / "tested", resamples=5).metrics["attention"] is None  # as the maps say
    named = explain([image], checkpoint=folds, output=tmp_path / "named", target="amber", methods=["grad_cam"])
    assert explained.verdicts == dict.fromkeys(TITLES, OF_ENSEMBLE) and named.verdicts == {"grad_cam": OF_ENSEMBLE}
    with pytest.raises(UsageError, match="holds no decision policy") as policies:
        monitor(folds / "test", folds / "test" / "predictions.csv")
    assert policies.value.fix == f"vitmed monitor {folds}"
    refused = vitmed("bundle", folds, "--to", tmp_path / "b.tar")
    assert refused.code in (2, 4) and "one network" in refused.err, refused.err
    said = vitmed("predict", str(image), "--checkpoint", str(folds), "--json")
    assert said.code == 0 and json.loads(said.out)["images"][0]["prediction"] == expected.classes[expected.predicted[0]]


@pytest.mark.slow
def test_stress_and_serving_take_an_ensemble(folds: Path, data: Path, tmp_path: Path) -> None:
    found = stress(folds, corruptions=["shot_noise"], images=8, output=tmp_path / "stress")
    assert found.content.n == 8 and list(found.content.corruptions) == ["shot_noise"]
    rows = load(folds).predict_proba([str(path) for path in images_of(data)])
    assert rows == pytest.approx(predict(images_of(data), checkpoint=folds).probabilities)  # type: ignore[union-attr]


@pytest.mark.slow  # torch.export of two networks
def test_an_exported_ensemble_decides_as_the_folder_does(folds: Path, data: Path, tmp_path: Path) -> None:
    found = export(folds, to=tmp_path / "model.onnx")
    assert found.gate.passed
    exact = predict(images_of(data), checkpoint=folds, precision="fp32")
    there, stated = predict(images_of(data), checkpoint=found.file), open_model(found.file).facts
    facts = open_model(folds).facts  # a report of the file describes all models, as that of the folder
    assert (stated["Model"], stated["Seed"]) == (facts["Model"], facts["Seed"])
    assert there.probabilities == pytest.approx(exact.probabilities, abs=1e-5)
    with pytest.raises(UsageError, match="no ensembles"):
        export(folds, to=tmp_path / "weights")


def test_runs_with_the_same_splits_are_joined(runs: list[Path], data: Path, tmp_path: Path) -> None:
    found = ensemble(runs, output=tmp_path / "both")
    assert found.shares == {"two": 0.5, "start": 0.5}
    joined = open_model(tmp_path / "both")
    chosen = json.loads((tmp_path / "both" / "ensemble.json").read_text())["chosen"]
    alone = [chosen["numbers"][run.name]["log_loss"]["value"] for run in runs]
    assert chosen["numbers"]["together"]["log_loss"]["value"] <= max(alone) + 1e-9  # the loss is convex
    for name, of_run in chosen["numbers"].items():  # each is decided as in its report
        report = json.loads(((tmp_path / "both" if name == "together" else runs[0].parent / name) / VAL).read_text())
        assert {key: each["value"] for key, each in of_run.items()} == pytest.approx(
            {key: report["overall"][key]["value"] for key in of_run}, abs=1e-9
        )
    stated = json.loads(text := describe_export(joined, {}))
    assert stated["facts"]["Model"] == "the mean of 2 models (0.5 + 0.5)" and stated["record"] == {}
    assert "two" not in re.findall(r"\w+", text)  # the name of a run
    for key in ("Started from", "Optimisation", "Views"):  # what differs is said of both
        each = [json.loads((run / VAL).read_text())["report"]["facts"][key] for run in runs]
        said = json.loads((tmp_path / "both" / VAL).read_text())["report"]["facts"][key]
        assert said == "; ".join(dict.fromkeys(each)) and stated["facts"].get(key, each[0]) == said
        assert (len(set(each)) == 1) is (key == "Views")
    images = len(load_checkpoint(runs[0]).splits.samples["val"])
    assert len(joined.splits.samples["val"]) == images
    val = Results.read(json.loads((tmp_path / "both" / VAL).read_text()))
    assert results_sentence(val).startswith(f"On {images} validation images of") and val.flow is not None
    assert "This is the val split, which was used to make the model, so its numbers are optimistic." in val.notes
    tested = evaluate(tmp_path / "both")
    assert tested.folder == tmp_path / "both" / "test"
    assert tested.metrics.weights_hash == joined.weights_hash


def test_members_with_other_stems_have_no_mean_map(runs: list[Path], data: Path, tmp_path: Path) -> None:
    """Their patches are centred at other pixels, so the cells of one map do not lie on those of the other."""
    sets = [*TINY_SETS, "model.stem=patch"]  # the plan chooses conv
    plain = train(data, output=tmp_path, name="plain", sets=sets, **SETTINGS).folder  # type: ignore[arg-type]
    ensemble([runs[1], plain], output=tmp_path / "both")
    with pytest.raises(UsageError, match="patches of its members differ in size or place"):
        explain(images_of(data)[:1], checkpoint=tmp_path / "both", output=tmp_path / "maps")
    assert not (tmp_path / "maps").exists()


def test_runs_of_the_same_name_in_folders_of_the_same_name_are_told_apart(runs: list[Path], tmp_path: Path) -> None:
    there = [shutil.copytree(run, tmp_path / project / "runs" / "m") for run, project in zip(runs, "xy", strict=True)]
    found = ensemble(there, output=tmp_path / "both")
    assert found.shares == {"x/runs/m": 0.5, "y/runs/m": 0.5}
    chosen = json.loads((tmp_path / "both" / "ensemble.json").read_text())["chosen"]
    assert chosen["words"] == "the mean of x/runs/m, y/runs/m"
    for name, of_run in chosen["numbers"].items():
        report = json.loads((tmp_path / ("both" if name == "together" else name) / VAL).read_text())
        assert of_run["log_loss"]["value"] == pytest.approx(report["overall"]["log_loss"]["value"], abs=1e-9)


def test_settings_of_evaluation_are_those_of_the_first_run_and_said_to_be(runs: list[Path], tmp_path: Path) -> None:
    other = shutil.copytree(runs[1], tmp_path / "other")
    saved = torch.load(other / "best.pt", weights_only=True)
    saved["config"]["evaluate"]["target_sensitivity"] = 0.9
    saved["config"]["data"]["positive"] = saved["classes"][0]
    del saved["digests"]
    torch.save(saved, other / "best.pt")
    with listening(Recorder()) as told:
        ensemble([runs[0], other], output=tmp_path / "both")
    (warning,) = (text for text in told.warned if "differ" in text)
    assert "evaluate.target_sensitivity, data.positive" in warning and "settings of two" in warning


def test_what_cannot_be_joined(runs: list[Path], folds: Path, data: Path, tmp_path: Path) -> None:
    there = {"output": tmp_path / "e"}
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    for given, told, options in (
        (runs[:1], "one run is no ensemble", there),
        ([runs[0], runs[0]], "named twice", there),
        ([runs[0], copy], "hold the same model", there),
        ([runs[0], folds], "some are folds and some are single runs", there),
        (runs, "needs a folder", {}),
        ([folds], "exists already", {}),
        (folds, "exists already", {}),
        (str(runs[0]), "one run is no ensemble", there),
    ):
        with pytest.raises(UsageError, match=told):
            ensemble(given, **options)
    sets = (*TINY_SETS, "data.split_seed=3")
    other = train(data, output=tmp_path, name="other", sets=sets, **SETTINGS).folder  # type: ignore[arg-type]
    with pytest.raises(DataError, match="predictions of some models only"):
        ensemble([runs[0], other], output=tmp_path / "e")
    saved = torch.load(shutil.copytree(runs[1], tmp_path / "changed") / "best.pt", weights_only=True)
    saved["data"]["splits"]["val"]["sha256"][0] = 64 * "0"
    del saved["digests"]
    torch.save(saved, tmp_path / "changed" / "best.pt")
    with pytest.raises(DataError, match="is another file than that of the other runs"):
        ensemble([runs[0], tmp_path / "changed"], output=tmp_path / "e")
    assert not (tmp_path / "e").exists()


@pytest.mark.slow
def test_folds_of_deep_images_have_a_window_each(data: Path, tmp_path: Path) -> None:
    """16-bit images: every fold measures its own window, and the ensemble reads an image once for all of them."""
    rng = np.random.default_rng(1)
    for name, level in (("dark", 9000), ("light", 30000)):
        (tmp_path / "deep" / name).mkdir(parents=True)
        for i in range(18):
            pixels = (level + 400 * i + rng.normal(0, 900, (20, 20))).clip(0, 65535).astype(np.uint16)
            Image.fromarray(pixels).save(tmp_path / "deep" / name / f"p{i // 2}_{i}.png")
    settings = SETTINGS | {"folds": 2}
    found = cross_validate(
        tmp_path / "deep", output=tmp_path, name="cv", sets=(*TINY_SETS, "model.channels=1"), **settings
    )  # type: ignore[arg-type]
    assert found is not None
    joined = open_model(found.folder)
    windows = {load_checkpoint(found.folder / f"fold-{k}").preprocessing.window for k in (1, 2)}
    assert len(windows) == 2 and isinstance(joined.preprocessing, JointPreprocessing)
    image = tmp_path / "deep" / "dark" / "p0_0.png"
    each = [predict([image], checkpoint=found.folder / f"fold-{k}", precision="fp32") for k in (1, 2)]
    both = predict([image], checkpoint=found.folder, precision="fp32")
    assert np.exp(both.logits) == pytest.approx((each[0].probabilities + each[1].probabilities) / 2, abs=1e-6)  # type: ignore[union-attr]
    assert load(found.folder).predict(image).picture.shape[2] == 1
    with serving(found.folder) as server:
        answer = server.post(image, params={"pictures": "true"}).json()["images"][0]
    assert answer["picture"] == png_address(load(found.folder).predict(image).picture, PICTURE)
    with pytest.raises(UsageError, match="its members read images differently"):
        stress(found.folder)
    tifffile.imwrite(tmp_path / "inverted.tif", 65535 - np.asarray(Image.open(image)), photometric="miniswhite")
    one, stored = load(found.folder / "fold-1"), np.asarray(Image.open(tmp_path / "inverted.tif"))
    for way in (tmp_path / "inverted.tif", Image.open(tmp_path / "inverted.tif")):  # high values are black
        assert np.array_equal(one.square(way), 255 - one.square(stored))
    for i in range(2):  # far above all that the model has seen
        (tmp_path / "other" / ("dark", "light")[i]).mkdir(parents=True)
        Image.fromarray(np.full((20, 20), 65000, np.uint16)).save(tmp_path / "other" / ("dark", "light")[i] / "x.png")
    with listening(Recorder()) as ui:
        predict([tmp_path / "other"], checkpoint=found.folder / "fold-1")
        seen = evaluate(found.folder / "fold-1", data=tmp_path / "other", output=tmp_path / "ev", report=False)
    outside = "100% of the pixels lie outside the window: 0% become black, 100% white"
    assert f"the window of the model: {outside}" in ui.warned and f"{outside}." in seen.metrics["notes"]
    with pytest.raises(UsageError, match="which one file cannot hold"):
        export(found.folder, to=tmp_path / "model.onnx")


def test_folds_that_trained_on_the_same_images_are_joined(folds: Path, tmp_path: Path) -> None:
    there = Path(shutil.copytree(folds, tmp_path / "alike"))
    for fold in (1, 2, 3):
        shutil.copytree(there / f"fold-{fold}", there / f"repeat-2-fold-{fold}")
    content = json.loads((there / "folds.json").read_text())
    (there / "folds.json").write_text(json.dumps(content | {"repeats": 2}))
    found, once = ensemble([there], output=tmp_path / "e"), load_ensemble(folds / "ensemble" / "ensemble.json")
    made = load_ensemble(found.folder / "ensemble.json")
    assert [m.weights_hash for m in made.members] == [m.weights_hash for m in once.members] * 2
    assert made.chosen["words"] == "the mean of 6 folds" and made.shares == pytest.approx([1 / 6] * 6)


def test_folds_that_ended_before_they_were_joined_go_on(folds: Path, tmp_path: Path) -> None:
    there = tmp_path / "torn"
    shutil.copytree(folds, there)
    shutil.rmtree(there / "ensemble")
    assert not RunFolder(there / "ensemble").ensemble.is_file()
    with pytest.raises(CheckpointError, match="vitmed ensemble"):
        open_model(there)
    found = cross_validate(resume=there)
    assert found is not None and (there / "ensemble" / "test" / "metrics.json").is_file()
    with pytest.raises(UsageError, match="finished"):
        cross_validate(resume=there)


def _run_of(data: Path, split_of: Callable[[str, int], str | None], name: str, folder: Path) -> Path:
    """A run of the table that gives each patient's two images of a class a split; None leaves an image out."""
    rows = ["path,label,patient,split"]
    for file in sorted(data.glob("*/*.png")):
        patient, number = file.stem.split("_")
        if split := split_of(patient, int(number) % 2):
            rows.append(f"{file.relative_to(data).as_posix()},{file.parent.name},{patient},{split}")
    (folder / f"{name}.csv").write_text("\n".join(rows))
    settings = {key: value for key, value in SETTINGS.items() if key != "group_regex"}
    labels = folder / f"{name}.csv"
    return train(data, output=folder, name=name, labels=labels, sets=TINY_SETS, **settings).folder  # type: ignore[arg-type]


def test_no_member_was_trained_on_a_patient_of_the_test(data: Path, tmp_path: Path) -> None:
    """The runs have the same validation; one was trained on the other image of a patient whom the first tests."""

    def usual(patient: str, second: int) -> str:
        return {"p0": "test", "p1": "test", "p2": "val", "p3": "val"}.get(patient, "train")

    def first(patient: str, second: int) -> str | None:
        return None if patient == "p0" and second else usual(patient, second)

    def other(patient: str, second: int) -> str | None:
        return ("train" if second else None) if patient == "p0" else usual(patient, second)

    one, two = (_run_of(data, way, way.__name__, tmp_path) for way in (first, other))
    with pytest.raises(DataError, match=r"other.best.pt: was trained on images of 1 patient of the test of"):
        ensemble([one, two], output=tmp_path / "joined")
    # the test of the other holds none of what the first learned from
    ensemble([two, one], output=tmp_path / "fine")
