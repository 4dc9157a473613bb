"""`train` and `predict` of s3:// addresses, against a local server of the S3 protocol. `pip install 'moto[server]'`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BARE, draw_classes

from vitmed import evaluate, merge, predict, predict_shard, train
from vitmed.core import remote
from vitmed.core.errors import DataError
from vitmed.core.run_folder import copies
from vitmed.metrics.predictions import Predictions
from vitmed.studies.one_run import TrainResult

s3fs = pytest.importorskip("s3fs")
moto = pytest.importorskip("moto.server")
pytestmark = pytest.mark.slow


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A client of a server with the bucket `lab`: 12 images a class in `cells/`."""
    import boto3

    server = moto.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "VITMED_CACHE": f"{tmp_path / 'cache'}",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("VITMED_OFFLINE", raising=False)
    client = boto3.client("s3")
    client.create_bucket(Bucket="lab")
    for file in draw_classes(tmp_path / "local", 12).rglob("*.png"):
        client.upload_file(f"{file}", "lab", f"cells/{file.relative_to(tmp_path / 'local').as_posix()}")
    yield client
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()  # which keeps the host
    remote.copied.cache_clear()


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
    assert all(Path(path).is_relative_to(copies()) for path in rows.paths)


def test_a_changed_image_is_seen(store: Any, tmp_path: Path) -> None:
    """A run resumes on the same images only, as one of a folder."""
    run = train("s3://lab/cells", **BARE, output=tmp_path / "runs", weights="none")
    for file in draw_classes(tmp_path / "other", 12, seed=5).rglob("*.png"):
        store.upload_file(f"{file}", "lab", f"cells/{file.relative_to(tmp_path / 'other').as_posix()}")
    remote.copied.cache_clear()
    with pytest.raises(DataError, match="changed"):
        train(resume=run.folder, epochs=3)


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
