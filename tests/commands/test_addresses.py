"""`train` and `predict` of s3:// addresses, against a local server of the S3 protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BARE, draw_classes
from object_store import google_store, object_store, upload

from vitmed import evaluate, merge, predict, predict_shard, train
from vitmed.commands import predict_shard as verb
from vitmed.core import remote
from vitmed.core.errors import DataError
from vitmed.core.run_folder import copies, place_of
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.pictures import prediction_picture
from vitmed.studies.one_run import TrainResult

pytestmark = pytest.mark.slow
s3fs = pytest.importorskip("s3fs")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """12 images a class, in `local` and in the store."""
    with object_store(draw_classes(tmp_path / "local", 12), tmp_path / "cache") as client:
        yield client


def lines(run: TrainResult) -> list[str]:
    return (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()


def test_a_run_trains_on_an_address_and_names_it(store: Any, tmp_path: Path) -> None:
    settings = BARE | {"output": tmp_path / "runs", "weights": "none"}
    there = train("s3://lab/cells", **settings)
    here = train(tmp_path / "local", **settings, name="here")
    assert "root: s3://lab/cells\n" in (there.folder / "config.yaml").read_text()
    losses = [[json.loads(line)["train_loss"] for line in lines(run)] for run in (there, here)]
    assert losses[0] == losses[1]

    found = evaluate(there.folder, output=tmp_path / "again")
    assert found.predictions.paths == evaluate(here.folder, output=tmp_path / "local-again").predictions.paths
    rows = predict("s3://lab/cells/amber", checkpoint=there.folder)
    assert len(rows.paths) == 12 and not rows.errors
    assert all(path.startswith("s3://lab/cells/amber/") and place_of(path).is_file() for path in rows.paths)
    assert prediction_picture(rows, load_checkpoint(there.folder / "best.pt").preprocessing).startswith(b"\x89PNG")


def test_a_changed_image_is_seen(store: Any, tmp_path: Path) -> None:
    """A run resumes on the same images only, as one of a folder."""
    run = train("s3://lab/cells", **BARE, output=tmp_path / "runs", weights="none")
    upload(store, draw_classes(tmp_path / "other", 12, seed=5))
    remote.copied.cache_clear()
    with pytest.raises(DataError, match="changed"):
        train(resume=run.folder, epochs=3)


def test_an_image_that_vanished_is_a_row(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that cannot be reached, or a name that is refused, ends the command."""
    run = train(tmp_path / "local", **BARE, output=tmp_path / "runs", weights="none")
    listed, gone = verb.names_below, "s3://lab/cells/blue/gone.png"
    monkeypatch.setattr(verb, "names_below", lambda address: listed(address) | {gone: "1 etag"})
    written = predict_shard("s3://lab/cells", checkpoint=run.folder, output=tmp_path / "there", device="cpu")
    (error,) = written.errors
    assert written.read == 24 and error[0] == gone and error[1].startswith(f"{gone}: no such file")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(DataError, match="s3://lab/cells: cannot be read"):
        predict_shard("s3://lab/cells", checkpoint=run.folder, output=tmp_path / "away", device="cpu")


def test_parts_copy_their_images_for_a_moment(store: Any, tmp_path: Path) -> None:
    run = train(tmp_path / "local", **BARE, output=tmp_path / "runs", weights="none")
    for way in ("here", "there"):
        images = tmp_path / "local" if way == "here" else "s3://lab/cells"
        written = predict_shard(images, checkpoint=run.folder, output=tmp_path / way, device="cpu", precision="fp32")
        assert (written.read, written.errors) == (24, ())
        merge(tmp_path / way, output=tmp_path / f"{way}.csv")
    assert [path for path in copies().rglob("*") if path.is_file()] == []
    here, there = (Predictions.from_csv(tmp_path / f"{way}.csv") for way in ("here", "there"))
    assert there.paths == tuple(path.replace(f"{tmp_path.as_posix()}/local", "s3://lab/cells") for path in here.paths)
    assert (there.logits == here.logits).all()
    assert predict("s3://lab/cells", checkpoint=run.folder).paths == there.paths
    upload(store, draw_classes(tmp_path / "other", 12, seed=5))
    with pytest.raises(DataError, match=r"s3://lab/cells/.*png: has changed since"):
        predict_shard("s3://lab/cells", checkpoint=run.folder, output=tmp_path / "there", device="cpu")


def test_google_cloud_storage_is_read_in_the_same_way(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    images = draw_classes(tmp_path / "local", 12)
    run = train(images, **BARE, output=tmp_path / "runs", weights="none")
    with google_store(images, tmp_path / "cache") as store:
        place = remote.copied("gs://lab/cells", place_of("gs://lab/cells"))
        files = [file.relative_to(images) for file in images.rglob("*.png")]
        assert len(files) == 24
        assert all((place / file).read_bytes() == (images / file).read_bytes() for file in files)
        again = train("gs://lab/cells", **BARE, output=tmp_path / "runs", weights="none", name="there")
        assert [json.loads(line)["train_loss"] for line in lines(again)] == [
            json.loads(line)["train_loss"] for line in lines(run)
        ]
        written = predict_shard("gs://lab/cells", checkpoint=run.folder, output=tmp_path / "parts", device="cpu")
        assert (written.read, written.errors) == (24, ())
        changed = files[0].as_posix()
        store.pipe(f"lab/cells/{changed}", (images / files[1]).read_bytes())
        remote.copied.cache_clear()
        remote.copied("gs://lab/cells", place)
        assert (place / changed).read_bytes() == (images / files[1]).read_bytes()
    assert "Could not determine" not in capfd.readouterr().err
