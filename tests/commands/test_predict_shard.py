"""`vitmed predict --shard --output` and `vitmed merge`: the table of one process, in parts, each image once."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Trained, listing
from predicted import assert_agree

from vitmed import merge, predict, predict_shard
from vitmed.commands import predict_shard as verb
from vitmed.core.errors import DataError, UsageError
from vitmed.metrics.predictions import Predictions

pa, pc = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.compute")
pq = pytest.importorskip("pyarrow.parquet")
ANSWER = Callable[..., Any]


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
        predict_shard(images, output=output, shard=f"{number}/3", checkpoint=trained.best, **options)
    return output


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def test_the_merged_table_is_that_of_one_process(
    trained: Trained, images: Path, tmp_path: Path, vitmed: ANSWER
) -> None:
    whole = vitmed("predict", images, "--checkpoint", trained.best, "--csv", tmp_path / "p.csv")
    for number in (3, 1, 2):
        given = "--shard", f"{number}/3", "-o", tmp_path / "parts"
        answer = vitmed("predict", images, "--checkpoint", trained.best, *given)
        assert answer.code == (3 if number == 2 else 0), answer.err
    again = "predict", images, "--checkpoint", trained.best, "--shard", "2/3", "-o", tmp_path / "parts"
    before = listing(tmp_path / "parts")  # with sizes and times
    repeated = vitmed(*again).err
    assert "1 of 6 images could not be read" in repeated and "which was finished before" in repeated
    assert listing(tmp_path / "parts") == before
    answer = vitmed("merge", tmp_path / "parts", "--json")
    assert answer.code == whole.code == 3 and "blue_1a.png" in answer.err
    assert json.loads(answer.out)["images"] == 18 and json.loads(answer.out)["unreadable"] == 1
    assert_agree(*(file.read_text() for file in (tmp_path / "parts" / "predictions.csv", tmp_path / "p.csv")))
    assert len(parts(tmp_path / "parts")) == 3 and len(listing(tmp_path / "parts")) == 4
    parquet = vitmed("merge", tmp_path / "parts", "-o", tmp_path / "all.parquet")
    assert parquet.code == 2 and "merge writes a CSV table; vitmed 0.2.0 also Parquet" in parquet.err
    again = vitmed("merge", tmp_path / "parts")
    assert again.code == 2 and "is there already" in again.err
    for image in images.rglob("*.png"):
        os.utime(image, ns=(later := (tmp_path / "p.csv").stat().st_mtime_ns + 10**12, later))
    with pytest.raises(DataError, match=r"png: has changed since .*part-00002-of-00003.parquet was written"):
        shards(images, tmp_path / "parts", trained, [2])


def test_an_image_that_was_deleted_after_its_part_was_written_is_named(
    trained: Trained, images: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"output": tmp_path / "parts", "checkpoint": trained.best}
    named = [images / "amber" / "amber_0.png", images / "amber" / "amber_1.png", images / "never.png"]
    first = predict_shard(named, **given)
    assert predict_shard(named, **given) == first and [name for name, _ in first.errors] == [str(named[2])]
    named[0].unlink()
    with pytest.raises(DataError, match=r"amber_0.png: is missing, and was there when .* was written"):
        predict_shard(named, **given)


def test_an_image_that_was_replaced_by_an_older_one_or_in_the_store_has_changed(
    trained: Trained, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(names: Sequence[str]) -> AbstractContextManager[dict[str, Path]]:
        return nullcontext({name: images / name.removeprefix("s3://lab/") for name in names})

    folder, etags = shards(images / "amber", tmp_path / "here", trained, (1,)), {"s3://lab/amber/amber_0.png": "9 old"}
    other = images / "blue" / "blue_0.png"
    os.utime(other, (0, 0))
    shutil.copy2(other, images / "amber" / "amber_0.png")  # as rsync -a and tar x do
    with pytest.raises(DataError, match=r"amber_0.png: has changed since .*part-00001-of-00003.parquet was written"):
        shards(images / "amber", folder, trained, (1,))
    monkeypatch.setattr(verb, "names_below", lambda address: dict(etags))
    monkeypatch.setattr(verb, "fetched", copied)
    given: dict[str, Any] = {"output": tmp_path / "there", "checkpoint": trained.best}
    assert predict_shard("s3://lab/amber", **given) == predict_shard("s3://lab/amber", **given)
    etags["s3://lab/amber/amber_0.png"] = "9 new"
    with pytest.raises(DataError, match=r"s3://lab/amber/amber_0.png: has changed since .* was written"):
        predict_shard("s3://lab/amber", **given)


@pytest.mark.slow
def test_an_array_of_100_tasks_of_which_one_was_killed(
    trained: Trained, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task is run again, by itself, when all others are done; tasks without an image write nothing."""
    folder, killed = tmp_path / "parts", 43  # it holds one image
    for name, value in (("MIN", 0), ("MAX", 99), ("COUNT", 100)):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
    for task in [*(task for task in range(100) if task != killed - 1), killed - 1]:
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(task))
        if task == killed - 1:
            left = folder / ".part-00043-of-00100.parquet.0123456789abcdef.part"
            left.write_bytes(b"what the killed task left")
            os.utime(left, (0, 0))
            with pytest.raises(DataError, match=r"1 of 100 parts missing:\n--shard 43/100") as error:
                merge(folder)
            assert "again with --shard 43/100" in error.value.fix
        predict_shard(images, output=folder, shard="auto", checkpoint=trained.best, device="cpu")
    done = merge(folder)
    whole = predict(images, checkpoint=trained.best, device="cpu")
    assert_agree(done.file.read_text(), whole.to_csv(errors=True))
    assert len(parts(folder)) == 19
    assert not list(folder.glob(".*"))


def test_a_part_without_a_readable_image_has_the_columns_of_the_others(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / "images" / name).write_text("hello")
    shutil.copy(next((trained.data / "test").rglob("*.png")), tmp_path / "images" / "c.png")
    folder = shards(tmp_path / "images", tmp_path / "parts", trained, features=True)
    first, *others = (pq.read_schema(part).names for part in parts(folder))
    assert "features" in first and all(names == first for names in others)


def test_features_stay_in_the_parts(trained: Trained, images: Path, tmp_path: Path) -> None:
    folder = shards(images, tmp_path / "parts", trained, features=True)
    expected = predict(images, checkpoint=trained.best)
    table = pa.concat_tables(map(pq.read_table, parts(folder)), promote_options="default")
    assert table["ood_score"].type == "double" and table["logit_blue"].type == "float" and len(table) == 19
    read = table.filter(pc.equal(table["error"], ""))
    assert read["path"].to_pylist() == list(expected.paths)
    np.testing.assert_allclose(read["logit_blue"].to_numpy(), expected.logits[:, 1], atol=1e-5, rtol=0)
    features = np.array(read["features"].to_pylist(), np.float32)  # (18, D)
    assert features.shape == (18, 16) and np.isfinite(features).all() and len(np.unique(features, axis=0)) == 18
    done = merge(folder, output=tmp_path / "all.csv")
    assert (done.read, len(done.errors)) == (18, 1)
    assert_agree((tmp_path / "all.csv").read_text(), expected.to_csv(errors=True))
    merged = Predictions.from_csv(tmp_path / "all.csv").logits[:, 1]
    assert np.array_equal(merged, read["logit_blue"].to_numpy())  # merging changes no number


def test_a_part_that_is_missing_damaged_or_there_twice(trained: Trained, images: Path, tmp_path: Path) -> None:
    folder = shards(images, tmp_path / "parts", trained)
    first, second, _ = parts(folder)
    data = second.read_bytes()
    second.unlink()
    with pytest.raises(DataError, match=r"1 of 3 parts missing:\n--shard 2/3"):
        merge(folder)
    spoilt = bytearray(data)
    spoilt[40] ^= 0xFF  # in a page, not in the footer
    for content in (data[: len(data) // 2], bytes(spoilt)):
        second.write_bytes(content)
        with pytest.raises(DataError, match=f"{second.name}: not a whole part") as error:
            merge(folder)
        assert "remove it" in error.value.fix
        with pytest.raises(DataError, match=f"{second.name}: not a whole part"):
            predict_shard(images, output=folder, shard="2/3", checkpoint=trained.best)
    second.unlink()
    shards(images, folder, trained, (2,))
    assert second.read_bytes() == data
    shutil.copy(first, folder / "part-00004-of-00003.parquet")
    with pytest.raises(DataError, match="hold the same images"):
        merge(folder)
    (folder / "part-00004-of-00003.parquet").unlink()
    table = pq.read_table(first)
    pq.write_table(table.slice(1), first)  # with its description
    with pytest.raises(DataError, match="holds 5 rows, not those of its shard"):
        merge(folder)
    pq.write_table(table.replace_schema_metadata({}), first)  # as 0.2.0 wrote no such description
    with pytest.raises(UsageError, match="not a part of this version") as usage:
        merge(folder)
    assert "vitmed 0.2.0" in usage.value.fix
    assert not (folder / "predictions.csv").exists() and list(folder.glob(".*")) == []


def test_parts_of_another_checkpoint_list_or_number_of_shards(trained: Trained, images: Path, tmp_path: Path) -> None:
    other = trained.folder / "epoch_0002.pt"
    for place, (given, why) in enumerate(
        (
            ({"checkpoint": other}, "different checkpoints"),
            ({"shard": "1/4"}, "different shards"),
            ({"features": True}, "different settings"),
            ({"images": images / "amber"}, "different lists of images"),
        )
    ):
        folder = shards(images, tmp_path / str(place), trained, (2, 3))
        options: dict[str, Any] = {"images": images, "shard": "1/3", "checkpoint": trained.best, **given}
        foreign = predict_shard(output=folder, **options).file
        with pytest.raises(DataError, match=f"{foreign} and .* are of {why}"):
            merge(folder)
        if foreign.name == "part-00001-of-00003.parquet":  # the right one does not take its place
            with pytest.raises(UsageError, match="is there, of other") as error:
                shards(images, folder, trained, (1,))
            assert "name a new folder" in error.value.fix


def test_a_table_is_no_folder_of_parts(trained: Trained, images: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"new\.csv: --output names a folder") as error:
        predict_shard(images, output=tmp_path / "new.csv", checkpoint=trained.best)
    assert error.value.fix == "--csv FILE writes one table" and not (tmp_path / "new.csv").exists()


def test_more_shards_than_images(trained: Trained, tmp_path: Path) -> None:
    file = trained.data / "test" / "blue" / "blue_0.png"
    for number in (1, 2):
        given = {"output": tmp_path / "parts", "shard": f"{number}/2", "checkpoint": trained.best}
        predict_shard([file, file], **given)  # named twice, once in the list
    assert len(parts(tmp_path / "parts")) == 1 and merge(tmp_path / "parts").read == 1


def test_wrong_commands(trained: Trained, images: Path, tmp_path: Path, vitmed: ANSWER) -> None:
    given = "predict", images, "--checkpoint", trained.best
    for args, code, told in (
        ((*given, "--shard", "5/4", "-o", tmp_path / "p"), 2, "no such shard"),
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


def test_without_pyarrow_the_command_is_named(tmp_path: Path, vitmed: ANSWER, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/commands/test_predict.py: no other command needs it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = vitmed("merge", tmp_path)
    assert answer.code == 2 and "pip install 'vitmed[scale]'" in answer.err, answer.err
