"""`vitmed serve --scores`: a line for each image, without names, that `vitmed monitor` reads; no line is ever torn."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from conftest import Trained, images_of
from PIL import Image
from served import serving

import vitmed as package
from vitmed.core.errors import UsageError
from vitmed.deploy.http.scores import ScoreLog
from vitmed.inference.load import Model


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_log_holds_what_predict_says_and_monitor_reads_it(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitmed.deploy.monitor.SIMULATIONS", 300)  # the limits are tested in tests/metrics
    monkeypatch.setattr("vitmed.deploy.monitor.png", lambda figure: b"a figure")
    images, file = images_of(trained)[:12], tmp_path / "scores.csv"
    with serving(trained.folder, scores=file) as served:
        ids = [served.post(image).json()["images"][0]["id"] for image in images]
        served.post(b"no image")
    own = package.predict(images, checkpoint=trained.best, precision="fp32")
    found = rows(file)
    assert [row["prediction"] for row in found] == [own.classes[k] for k in own.predicted]
    assert [float(row["ood_score"]) for row in found] == pytest.approx(
        [float(s) for s in own.columns["ood_score"]], abs=1e-5
    )
    assert [row["id"] for row in found] == ids and len(set(ids)) == 12
    assert {row["label"] for row in found} == {""} and "path" not in found[0]
    assert images[0].name not in file.read_text()
    content = package.monitor(trained.folder / "test", file, output=tmp_path / "m", period=200).content
    assert content.images == 12 and content.first == found[0]["time"]


def log_of(file: Path, model: Model, images: list[Path]) -> None:
    log = ScoreLog(file, model, pytest.fail)
    log.add(model.predictions([model.square(image) for image in images]))
    log.stream.close()


def test_a_torn_line_is_dropped_and_the_log_goes_on(trained: Trained, exported: Path, tmp_path: Path) -> None:
    file, model = tmp_path / "scores.csv", package.load(exported)
    log_of(file, model, images_of(trained)[:3])
    whole = file.read_bytes()
    file.write_bytes(whole + b"2026-11-23T15:00:00+00:00,ab")  # as after kill -9
    log_of(file, model, images_of(trained)[:1])
    assert file.read_bytes().startswith(whole) and len(rows(file)) == 4
    assert len({row["weights_hash"] for row in rows(file)}) == 1
    header, first, *_ = whole.splitlines(keepends=True)
    for torn in (header[:30], header + first[:40]):
        file.write_bytes(torn)
        log_of(file, model, images_of(trained)[:1])
        assert file.read_bytes().startswith(header) and len(rows(file)) == 1


def test_two_servers_write_no_log_together(trained: Trained, exported: Path, tmp_path: Path) -> None:
    file, model = tmp_path / "scores.csv", package.load(exported)
    log = ScoreLog(file, model, pytest.fail)
    with pytest.raises(UsageError, match="is open in another server"):
        ScoreLog(file, model, pytest.fail)
    file.rename(tmp_path / "old.csv")
    log.add(model.predictions([model.square(images_of(trained)[0])]))  # begins the file anew
    with pytest.raises(UsageError, match="is open in another server"):
        ScoreLog(file, model, pytest.fail)
    log.stream.close()
    log_of(file, model, images_of(trained)[:1])
    assert len(rows(file)) == 2


def test_another_file_is_left_as_it_is(trained: Trained, exported: Path, tmp_path: Path) -> None:
    other, file, model = tmp_path / "other.csv", tmp_path / "scores.csv", package.load(exported)
    other.write_text("name,age\nMiller,50\n")
    log_of(file, model, images_of(trained)[:1])
    file.write_text(file.read_text().replace(model.saved.weights_hash, "0" * 64))  # of another model
    for wrong in (other, file):
        before = wrong.read_text()
        with pytest.raises(UsageError, match="not the log of scores of this model"):
            ScoreLog(wrong, model, pytest.fail)
        assert wrong.read_text() == before


def test_a_full_disk_costs_the_log_and_no_answer(trained: Trained, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with serving(trained.folder, scores=tmp_path / "scores.csv") as served:
        log = served.service.scores
        log.stream, log.file = Path("/dev/full").open("wb", buffering=0), Path("/dev/full")  # noqa: SIM115
        for _ in range(2):
            answer = served.post(images_of(trained)[0])
            assert answer.status_code == 200 and answer.json()["images"][0].get("id") is None  # no line, no id
        with served.client() as client:
            assert "vitmed_unlogged_images 2.0" in client.get("/metrics").text
        log.file = tmp_path  # what cannot be opened
        assert served.post(images_of(trained)[0]).json()["images"][0].get("id") is None
        log.file = tmp_path / "gone" / "scores.csv"
        assert served.post(images_of(trained)[0]).json()["images"][0].get("id") is None
        log.file = tmp_path / "scores.csv"  # there is room again
        named = served.post(images_of(trained)[0]).json()["images"][0]["id"]
        assert [row["id"] for row in rows(tmp_path / "scores.csv")] == [named]
    warned = [line for line in served.log if "scores are" in line]
    assert len(warned) == 2 and "no longer logged" in warned[0] and "the lines of 4 images are missing" in warned[1]


def test_a_log_that_was_moved_or_emptied_begins_anew(trained: Trained, tmp_path: Path) -> None:
    """As logrotate does it, with and without copytruncate."""
    file, image = tmp_path / "scores.csv", images_of(trained)[0]
    with serving(trained.folder, scores=file) as served:
        for rotate in (lambda: file.rename(tmp_path / "old.csv"), lambda: file.write_bytes(b"")):
            served.post(image)
            rotate()
            named = served.post(image).json()["images"][0]["id"]
            assert [row["id"] for row in rows(file)] == [named]
        with served.client() as client:
            assert client.head("/health/ready").status_code == client.head("/health/live").status_code == 200


def test_a_disk_that_fills_up_within_a_line_leaves_whole_lines(
    trained: Trained, exported: Path, tmp_path: Path
) -> None:
    """A file system writes what still fits and reports no error; here the limit of the process says what fits."""
    resource = pytest.importorskip("resource")
    file, model, warned = tmp_path / "scores.csv", package.load(exported), list[str]()
    log = ScoreLog(file, model, warned.append)
    predictions = model.predictions([model.square(images_of(trained)[0])])
    log.add(predictions)
    before, (_, hard) = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        log.add(predictions)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_bytes() == before and len(warned) == 1
    log.stream.close()
    log_of(file, model, images_of(trained)[:1])
    assert len(rows(file)) == 2


@pytest.mark.parametrize("file", ["best.pt", "last.pt"])
def test_an_image_without_content_is_told_and_shifts_no_column(trained: Trained, tmp_path: Path, file: str) -> None:
    """Also by a checkpoint without a policy, whose log has no column for that."""
    blank = tmp_path / "black.png"
    Image.new("RGB", (40, 30)).save(blank)
    with serving(trained.folder / file, scores=tmp_path / "scores.csv") as served:
        alone, answer = served.post(images_of(trained)[0]), served.post(blank, images_of(trained)[0])
    black, other = answer.json()["images"]
    assert not black["answered"] and black["reason"].startswith("the image has no content")
    assert other["answered"] == alone.json()["images"][0]["answered"] and "content" not in other["reason"]
    with (tmp_path / "scores.csv").open(newline="") as stream:
        head, *rows = csv.reader(stream)
    assert [len(row) for row in rows] == [len(head)] * 3
    answers = [[float(cell) if "." in cell else cell for cell in row[3:]] for row in rows]
    assert any(isinstance(cell, float) for cell in answers[0])
    assert any(_close(answers[0], answer) for answer in answers[1:])  # in the order in which they were decoded


def _close(a: list[float | str], b: list[float | str]) -> bool:
    return all(x == (y if isinstance(y, str) else pytest.approx(y, abs=1e-5)) for x, y in zip(a, b, strict=True))
