"""`vitmed predict --shard --output` and `vitmed merge`: the table of one process, in parts, each image once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Recorder, Trained, listing, python

from vitmed import merge, predict, predict_shard
from vitmed.core.errors import DataError, UsageError
from vitmed.metrics import predictions_parquet
from vitmed.metrics.predictions import Predictions

pq = pytest.importorskip("pyarrow.parquet")
ANSWER = Callable[..., Any]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions_parquet, "ROWS", 4)


@pytest.fixture
def images(trained: Trained, tmp_path: Path) -> Path:
    """Eighteen images, one that is none, and one with a name that a spreadsheet would run."""
    folder = tmp_path / "images"
    shutil.copytree(trained.data / "test", folder)
    (folder / "blue" / "blue_1a.png").write_text("hello")
    (folder / "blue" / "blue_2.png").rename(folder / "=1+1 \u00e9.png")
    return folder


def shards(images: Path, output: Path, trained: Trained, numbers: Sequence[int] = (2, 1, 3), **options: Any) -> Path:
    for number in numbers:
        predict_shard(images, output=output, shard=f"{number}/3", checkpoint=trained.best, ui=Recorder(), **options)
    return output


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def test_the_merged_table_is_that_of_one_process_to_the_byte(
    trained: Trained, images: Path, tmp_path: Path, vitmed: ANSWER
) -> None:
    whole = vitmed("predict", images, "--checkpoint", trained.best, "--csv", tmp_path / "p.csv")
    for number in (3, 1, 2):
        given = "--shard", f"{number}/3", "-o", tmp_path / "parts"
        answer = vitmed("predict", images, "--checkpoint", trained.best, *given)
        assert answer.code == (3 if number == 2 else 0), answer.err
    assert "1 of 6 images could not be read" in vitmed(
        "predict", images, "--checkpoint", trained.best, "--shard", "2/3", "-o", tmp_path / "parts"
    ).err  # fmt: skip
    answer = vitmed("merge", tmp_path / "parts", "--json")
    assert answer.code == whole.code == 3 and "blue_1a.png" in answer.err
    assert json.loads(answer.out)["images"] == 18 and json.loads(answer.out)["unreadable"] == 1
    assert (tmp_path / "parts" / "predictions.csv").read_bytes() == (tmp_path / "p.csv").read_bytes()
    assert len(parts(tmp_path / "parts")) == 6 and len(listing(tmp_path / "parts")) == 7
    again = vitmed("merge", tmp_path / "parts")
    assert again.code == 2 and "is there already" in again.err


def test_one_parquet_file_with_features(trained: Trained, images: Path, tmp_path: Path) -> None:
    folder = shards(images, tmp_path / "parts", trained, features=True)
    done = merge(folder, output=tmp_path / "all.parquet", ui=Recorder())
    table, expected = pq.read_table(done.file), predict(images, checkpoint=trained.best, ui=Recorder())
    assert (done.read, done.unread) == (18, 1) and table.num_rows == 19
    assert table["ood_score"].type == "double" and table["logit_blue"].type == "float"
    read = table.filter(table["error"].is_null())
    assert read["path"].to_pylist() == list(expected.paths)
    assert np.array_equal(read["logit_blue"].to_numpy(), expected.logits[:, 1])
    features = np.array(read["features"].to_pylist(), np.float32)  # (18, D)
    assert features.shape == (18, 16) and np.isfinite(features).all() and len(np.unique(features, axis=0)) == 18
    merge(folder, output=tmp_path / "all.csv", ui=Recorder())
    assert (Predictions.from_csv(tmp_path / "all.csv").logits == expected.logits).all()


def test_finished_parts_are_skipped_and_a_torn_one_is_predicted_again(
    trained: Trained, images: Path, tmp_path: Path
) -> None:
    folder = shards(images, tmp_path / "parts", trained)
    before = {file.name: file.read_bytes() for file in parts(folder)}
    times = {file: file.stat().st_mtime_ns for file in parts(folder)}
    first, second, third, *_ = parts(folder)
    first.write_bytes(before[first.name][:-100])
    second.unlink()
    (folder / ".part-x.parquet.0123456789abcdef.part").write_bytes(b"what a killed process left")
    ui = Recorder()
    done = predict_shard(images, output=folder, shard="1/3", checkpoint=trained.best, ui=ui)
    assert (done.parts, done.skipped) == (2, 0) and f"{first}: not a whole part" in ui.warned[0]
    assert {file.name: file.read_bytes() for file in parts(folder)} == before
    assert third.stat().st_mtime_ns == times[third]
    assert predict_shard(images, output=folder, shard="2/3", checkpoint=trained.best, ui=Recorder()).skipped == 2


def test_a_part_that_is_missing_torn_or_there_twice(trained: Trained, images: Path, tmp_path: Path) -> None:
    folder = shards(images, tmp_path / "parts", trained)
    names = parts(folder)
    data = names[3].read_bytes()
    names[3].unlink()
    with pytest.raises(DataError, match=r"2 of 19 images are missing: shard 2/3 \(2 images\)") as error:
        merge(folder, ui=Recorder())
    assert "--shard 2/3" in error.value.fix
    names[3].write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=f"{names[3].name}: not a whole part"):
        merge(folder, ui=Recorder())
    spoilt = bytearray(data)
    spoilt[40] ^= 0xFF  # in a page, not in the footer
    names[3].write_bytes(spoilt)
    with pytest.raises(DataError, match=f"{names[3].name}: not a whole part"):
        merge(folder, ui=Recorder())
    names[3].write_bytes(data)
    shutil.copy(names[0], folder / "part-00001-of-00003-000007.parquet")
    with pytest.raises(DataError, match="hold the same images"):
        merge(folder, ui=Recorder())
    assert not (folder / "predictions.csv").exists() and list(folder.glob(".*")) == []


def test_parts_of_another_checkpoint_list_or_number_of_shards(trained: Trained, images: Path, tmp_path: Path) -> None:
    folder = shards(images, tmp_path / "parts", trained)
    before = listing(folder)
    other = trained.folder / "epoch_0002.pt"
    for given, why in (
        ({"checkpoint": other}, "different checkpoints"),
        ({"shard": "1/4"}, "are of 3 and of 4 shards"),
        ({"features": True}, "different settings"),
        ({"images": images / "amber"}, "different lists of images"),
    ):
        options: dict[str, Any] = {"images": images, "shard": "1/3", "checkpoint": trained.best, **given}
        with pytest.raises(UsageError, match=why) as error:
            predict_shard(output=folder, ui=Recorder(), **options)
        assert "name a new folder" in error.value.fix
    assert listing(folder) == before
    predict_shard(images, output=tmp_path / "other", shard="1/3", checkpoint=other, ui=Recorder())
    for file in parts(tmp_path / "other"):
        shutil.copy(file, folder)
    with pytest.raises(DataError, match="different checkpoints"):
        merge(folder, ui=Recorder())


def test_more_shards_than_images(trained: Trained, tmp_path: Path) -> None:
    file = trained.data / "test" / "blue" / "blue_0.png"
    for number in (1, 2):
        given = {"output": tmp_path / "parts", "shard": f"{number}/2", "checkpoint": trained.best}
        predict_shard([file, file], ui=Recorder(), **given)  # named twice, once in the list
    assert len(parts(tmp_path / "parts")) == 1 and merge(tmp_path / "parts", ui=Recorder()).read == 1


def test_wrong_commands(trained: Trained, images: Path, tmp_path: Path, vitmed: ANSWER) -> None:
    given = "predict", images, "--checkpoint", trained.best
    for args, code, told in (
        ((*given, "--shard", "5/4", "-o", tmp_path / "p"), 2, "there is no shard 5/4"),
        ((*given, "--shard", "1/4"), 2, "--output FOLDER"),
        ((*given, "--features"), 2, "--output FOLDER"),
        ((*given, "-o", tmp_path / "p", "--csv", tmp_path / "p.csv"), 2, "vitmed merge"),
        ((*given, "-o", images / "parts"), 2, "lies in the data folder"),
        ((*given, "-o", trained.best), 2, "it is a file, expected a folder"),
        (("merge", tmp_path / "none"), 3, "no such folder"),
        (("merge", images), 3, "holds no part of predictions"),
    ):
        answer = vitmed(*args)
        assert answer.code == code and told in answer.err and "Traceback" not in answer.err, answer.err
    assert not (tmp_path / "p").exists() and not (images / "parts").exists()


def test_no_other_command_needs_pyarrow(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["pyarrow"] = None
from vitmed.commands import evaluate, predict, train
from vitmed.cli import main
main(["merge", {str(tmp_path)!r}])
"""
    done = python("-c", code)
    assert done.returncode == 2 and "pip install 'vitmed[scale]'" in done.stderr, done.stderr
