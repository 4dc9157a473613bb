"""What differs between two runs: changes made by hand to a copy are found, and nothing else is reported."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import Answer, Trained

from vitmed import compare, diff
from vitmed.core.errors import CheckpointError, DataError, UsageError
from vitmed.metrics.predictions import Predictions
from vitmed.studies.difference import RunDiff


@pytest.fixture
def other_seed(trained: Trained, tmp_path: Path) -> Path:
    """As the same training with another seed: its setting, and other answers to the same test."""
    run = Path(shutil.copytree(trained.folder, tmp_path / "seed-1"))
    change_config(run, "train", seed=1)
    table = run / "test" / "predictions.csv"
    said = Predictions.from_csv(table)
    logits = said.logits + np.random.default_rng(0).normal(0, 4, said.logits.shape).astype(np.float32)
    table.write_text(replace(said, logits=logits, columns={}).to_csv(), newline="")
    return run


@pytest.fixture
def copied(trained: Trained, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained.folder, tmp_path / "copied"))


def change_splits(run: Path, change: Callable[[list[dict[str, str]]], list[dict[str, str]]]) -> None:
    with (run / "splits.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    head = list(rows[0])
    with (run / "splits.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, head)
        writer.writeheader()
        writer.writerows(change(rows))


def change_config(run: Path, section: str, **values: Any) -> None:
    tree = yaml.safe_load((run / "config.yaml").read_text())
    tree[section] |= values
    (run / "config.yaml").write_text(yaml.safe_dump(tree))


def found(first: Path, second: Path) -> RunDiff:
    return diff(first, second)


def test_a_copy_in_another_place_does_not_differ(trained: Trained, copied: Path) -> None:
    same = found(trained.folder, copied)
    assert same.verdict == "Nothing differs: tiny and copied have the same settings, images and versions."
    assert (same.settings, same.environment) == ([], []) and same.images is not None and same.images.counts == {}
    assert same.images.same_file == same.images.first == same.images.second > 0
    assert "predict the same for every image" in same.result


def test_only_the_seed_differs_and_the_numbers_are_those_of_compare(trained: Trained, other_seed: Path) -> None:
    seeds = found(trained.folder, other_seed)
    assert seeds.verdict == "Only the seed differs: 0 in tiny, 1 in seed-1."
    assert [(one.name, one.first, one.second) for one in seeds.settings] == [("train.seed", 0, 1)]
    known = compare(trained.folder, other_seed).content
    pair = next(pair for pair in known.pairs if {pair.first, pair.second} == {"tiny", "seed-1"})
    assert {number.name: number.difference for number in seeds.numbers} == {
        number.name: pair.difference[number.name] for number in seeds.numbers
    }
    assert seeds.numbers[0].first == known.models["tiny"].overall["auroc"] and seeds.numbers[0].p is not None


def test_every_kind_of_change_of_the_images(trained: Trained, copied: Path) -> None:
    def change(rows: list[dict[str, str]]) -> list[dict[str, str]]:
        train, test = ([row for row in rows if row["split"] == name] for name in ("train", "test"))
        train[0]["split"] = "val"
        train[1]["sha256"] = "0" * 64
        train[2]["class"] = "green2"
        train[3]["group"] = "P7"
        train[4]["path"] = "elsewhere/renamed.png"
        new = {**train[5], "path": "new.png", "sha256": "1" * 64}
        return [row for row in rows if row is not test[0]] + [new]

    change_splits(copied, change)
    images = found(trained.folder, copied).images
    assert images is not None
    assert images.counts == {
        "removed": 1, "added": 1, "renamed": 1, "moved from train to val": 1, "another content": 1,
        "another label": 1, "another patient": 1,
    }  # fmt: skip
    assert images.files["added"] == ["new.png"] and images.files["renamed"] == ["elsewhere/renamed.png"]
    assert (images.classes_added, images.classes_removed) == (["green2"], [])
    back = found(copied, trained.folder).images
    assert back is not None and back.counts["moved from val to train"] == 1 and back.classes_removed == ["green2"]


def test_settings_and_versions_in_plain_words(trained: Trained, copied: Path) -> None:
    tree = yaml.safe_load((copied / "config.yaml").read_text())
    del tree["data"]["on_bad_file"]  # what an older vitmed did not write has its default
    (copied / "config.yaml").write_text(yaml.safe_dump(tree))
    assert found(trained.folder, copied).settings == []
    change_config(copied, "train", lr=0.5, patience=3)
    environment = json.loads((copied / "environment.json").read_text())
    environment["versions"]["torch"] = "1.0"
    (copied / "environment.json").write_text(json.dumps(environment))
    changed = found(trained.folder, copied)
    assert {one.name: (one.first, one.second) for one in changed.settings}["train.lr"] == (0.003, 0.5)
    assert next(one.meaning for one in changed.settings if one.name == "train.lr").startswith("Peak learning rate")
    assert [one.name for one in changed.environment or []] == ["torch"]
    assert changed.verdict == (
        "tiny and copied differ in 2 settings (train.lr, train.patience) and the versions or the machine."
    )


def test_other_test_images_and_the_same_paths_with_other_content_are_not_compared(
    trained: Trained, copied: Path
) -> None:
    change_splits(copied, lambda rows: [{**row, "sha256": "0" * 64} if row["split"] == "test" else row for row in rows])
    apart = found(trained.folder, copied)
    assert "differ in the content" in apart.result and all(number.difference is None for number in apart.numbers)
    shutil.copy(trained.folder / "splits.csv", copied)
    table = copied / "test" / "predictions.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    apart = found(trained.folder, copied)
    assert "not the same (17 images are in both)" in apart.result and "vitmed compare" in apart.result
    assert apart.numbers and all(number.difference is None for number in apart.numbers)


def test_a_run_without_a_result_and_a_checkpoint_alone(trained: Trained, copied: Path, tmp_path: Path) -> None:
    shutil.rmtree(copied / "test")
    assert "has no evaluation of its best.pt" in found(trained.folder, copied).result
    lone = Path(shutil.copy(trained.best, tmp_path / "lone.pt"))
    alone = found(trained.folder, lone)
    assert "a checkpoint without its run" in alone.result and alone.environment is None
    assert alone.images is not None and alone.images.counts == {} and alone.images.same_file == alone.images.first
    early = found(trained.folder, trained.folder / "epoch_0002.pt")
    assert "epoch_0002.pt was not evaluated on its test" in early.result


def test_folds_are_the_splits_of_a_cross_validation(trained: Trained, copied: Path, tmp_path: Path) -> None:
    """Fold 2 tests what the first one validates; in the other study an image has gone from fold 1 to fold 2."""
    studies = [tmp_path / name for name in ("one", "two")]
    for study in studies:
        for name, test in (("fold-1", "test"), ("fold-2", "val")):
            run = Path(shutil.copytree(copied, study / name))
            swap = {test: "test", "test": test}
            change_splits(run, lambda rows, s=swap: [{**r, "split": s.get(r["split"], r["split"])} for r in rows])  # type: ignore[misc]
            change_config(run, "data", folds=2, fold=int(name[-1]))
        (study / "folds.json").write_text('{"folds": 2, "window": null}')
    same = found(*studies)
    assert same.verdict.startswith("Nothing differs") and same.images is not None and same.images.counts == {}
    moved: list[str] = []

    def take(rows: list[dict[str, str]]) -> list[dict[str, str]]:
        row = next(row for row in rows if row["split"] == "test")
        moved.append(row["path"])
        row["split"] = "train"
        return rows

    change_splits(studies[1] / "fold-1", take)
    change_splits(
        studies[1] / "fold-2", lambda rows: [{**r, "split": "test"} if r["path"] == moved[0] else r for r in rows]
    )
    images = found(*studies).images
    assert images is not None and images.counts == {"moved from fold 1 to fold 2": 1}
    single = found(studies[0], trained.folder)
    assert any("splits are not compared" in note for note in single.notes)
    assert single.images is not None and single.images.counts == {}
    assert [one.name for one in single.settings] == ["data.folds"]


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("config.yaml", "a: [1", "config.yaml"), ("config.yaml", "- 1", "config.yaml"),
        ("splits.csv", "path\na.png\n", "splits.csv"), ("environment.json", "[]", "environment.json"),
        ("test/metrics.json", "high", "not the metrics"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(trained: Trained, copied: Path, file: str, content: str, told: str) -> None:
    if content == "high":
        content = json.dumps(json.loads((copied / file).read_text()) | {"overall": {"auroc": content}})
    (copied / file).write_text(content)
    with pytest.raises(DataError, match=told):
        found(trained.folder, copied)


def test_what_is_no_run_is_refused(trained: Trained, tmp_path: Path) -> None:
    for place in (tmp_path, trained.folder / "test", trained.folder / "config.yaml"):
        with pytest.raises(UsageError, match="expected a run"):
            found(trained.folder, place)
    with pytest.raises(CheckpointError):
        found(trained.folder, tmp_path / "none")


def test_the_command_line_names_files_and_json_does_not(
    vitmed: Callable[..., Answer], trained: Trained, copied: Path, tmp_path: Path
) -> None:
    change_splits(copied, lambda rows: rows[1:])
    shown = vitmed("diff", trained.folder, copied)
    assert shown.code == 0 and "removed" in shown.out and "amber_0.png" in shown.out
    assert shown.out.rstrip().endswith("and the images.")
    text = vitmed("diff", trained.folder, copied, "--json").out
    assert json.loads(text)["images"]["counts"] == {"removed": 1}
    assert ".png" not in text and str(tmp_path) not in text and str(trained.folder.parent) not in text
