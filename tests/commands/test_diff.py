"""What differs between two runs: changes made by hand to a copy are found, and nothing else is reported."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Answer, Trained

from vitmed import diff
from vitmed.core.errors import CheckpointError, DataError, UsageError
from vitmed.studies.difference import RunDiff

SAME = "The weights are identical. "


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


def write_hash(run: Path, digest: str | None) -> None:
    """Let the evaluations of a run be of other weights."""
    for file in run.glob("*/metrics.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "weights_hash": digest}))


def found(first: Path, second: Path) -> RunDiff:
    return diff(first, second)


def test_a_copy_in_another_place_does_not_differ(trained: Trained, copied: Path) -> None:
    same = found(trained.folder, copied)
    assert same.verdict == SAME + "Nothing differs: tiny and copied have the same settings, images and versions."
    assert (same.settings, same.environment) == ([], []) and same.images is not None and same.images.counts == {}
    assert same.images.same_file == same.images.first == same.images.second > 0
    assert same.metrics[0] == same.metrics[1] and same.metrics[0] is not None and same.metrics[0].of == "test"
    assert same.notes == ["Whether one is better, on the same test images: vitmed compare."]


def test_runs_with_other_test_images_are_not_to_be_compared(trained: Trained, copied: Path) -> None:
    """As two folds."""

    def change(rows: list[dict[str, str]]) -> list[dict[str, str]]:
        next(row for row in rows if row["split"] == "test")["split"] = "train"
        return rows

    change_splits(copied, change)
    assert found(trained.folder, copied).notes == []
    change_splits(copied, lambda rows: [row | {"path": f"other/{row['path']}", "split": row["split"]} for row in rows])
    assert found(trained.folder, copied).notes == []


def test_only_the_seed_differs(trained: Trained, copied: Path, vitmed: Callable[..., Answer]) -> None:
    change_config(copied, "train", seed=1)
    file = copied / "environment.json"  # of a run with the config.yaml of the first, which names what auto had chosen
    content = json.loads(file.read_text())
    name = content["precision"].partition(":")[0]
    file.write_text(json.dumps(content | {"precision": f"{name}: as asked"}))
    seeds = found(trained.folder, copied)
    file.write_text(json.dumps(content | {"precision": f"not {name}: as asked"}))
    assert [one.first for one in found(trained.folder, copied).environment or []] == [name]
    assert seeds.verdict == SAME + "Only the seed differs: 0 in tiny, 1 in copied."
    assert [(one.name, one.first, one.second) for one in seeds.settings] == [("train.seed", 0, 1)]
    numbers = json.loads((copied / "test" / "metrics.json").read_text())["overall"]["auroc"]
    assert seeds.metrics[1] is not None and seeds.metrics[1].estimate.value == numbers["value"]
    assert seeds.metrics[1].text in vitmed("diff", trained.folder, copied).out


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
        "removed": 2, "added": 2, "moved from train to val": 1, "another content": 1,
        "another label": 1, "another patient": 1,
    }  # fmt: skip
    assert images.files["added"] == ["elsewhere/renamed.png", "new.png"]
    assert "Whether one is better, on the same test images: vitmed compare." in found(trained.folder, copied).notes
    back = found(copied, trained.folder).images
    assert back is not None and back.counts["moved from val to train"] == 1 and back.counts["another label"] == 1


def test_settings_and_versions_in_plain_words(trained: Trained, copied: Path) -> None:
    tree = yaml.safe_load((copied / "config.yaml").read_text())
    del tree["data"]["on_bad_file"]  # what an older vitmed did not write has its default
    (copied / "config.yaml").write_text(yaml.safe_dump(tree))
    assert found(trained.folder, copied).settings == []
    change_config(copied, "train", lr=0.5, patience=3)
    write_hash(copied, "0" * 64)
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


def test_a_run_without_a_result_and_a_checkpoint_in_its_run(trained: Trained, copied: Path) -> None:
    shutil.rmtree(copied / "test")
    apart = found(trained.folder, copied)
    assert apart.metrics[1] is None or apart.metrics[1].of == "validation"
    assert apart.notes == [] and apart.verdict.startswith(SAME + "Nothing differs")
    assert found(trained.best, copied / "best.pt").verdict.startswith(SAME + "Nothing differs")


def test_weights_that_nothing_states_are_not_called_identical(trained: Trained, copied: Path) -> None:
    assert found(trained.folder, copied).verdict.startswith(SAME)
    write_hash(copied, None)
    assert found(copied, copied).verdict.startswith("Nothing differs")
    (copied / "val" / "metrics.json").write_text("{")
    assert found(trained.folder, copied).verdict.startswith("Nothing differs")


def test_runs_that_trained_for_unequal_times_differ(trained: Trained, copied: Path) -> None:
    lines = (copied / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    lines[-1] = json.dumps(last | {"step": last["step"] - 1})
    (copied / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    apart = found(trained.folder, copied)
    assert apart.verdict.endswith("tiny and copied differ in how long they trained.")
    epochs = f"{last['epoch']} of 6 epochs"
    assert f"tiny trained {epochs} ({last['step']} steps), copied {epochs} ({last['step'] - 1} steps)." in apart.notes


def test_folds_are_named_one_by_one(trained: Trained, copied: Path, tmp_path: Path) -> None:
    shutil.copytree(copied, tmp_path / "study" / "fold-1")
    (tmp_path / "study" / "folds.json").write_text('{"folds": 2, "window": null}')
    with pytest.raises(UsageError, match="holds folds") as error:
        found(tmp_path / "study", trained.folder)
    assert error.value.fix.endswith("fold-1")
    change_config(tmp_path / "study" / "fold-1", "data", folds=2, fold=1)
    assert {one.name for one in found(tmp_path / "study" / "fold-1", trained.folder).settings} == {
        "data.folds",
        "data.fold",
    }


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("config.yaml", "a: [1", "config.yaml"), ("config.yaml", "- 1", "config.yaml"),
        ("splits.csv", "path\na.png\n", "splits.csv"), ("environment.json", "[]", "environment.json"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(trained: Trained, copied: Path, file: str, content: str, told: str) -> None:
    (copied / file).write_text(content)
    with pytest.raises(DataError, match=told) as error:
        found(trained.folder, copied)
    assert error.value.problem.count(str(copied)) == 1


def test_what_is_no_run_is_refused(trained: Trained, tmp_path: Path) -> None:
    for place in (tmp_path, trained.folder / "test", trained.folder / "config.yaml"):
        with pytest.raises(UsageError, match="expected a run"):
            found(trained.folder, place)
    with pytest.raises(CheckpointError):
        found(trained.folder, tmp_path / "none")
    with pytest.raises(UsageError, match="runs are compared by"):
        found(trained.best, trained.folder / "last.pt")


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
