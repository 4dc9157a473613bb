"""What a request may cost: bytes, images, pixels, time, places in the queue; and what stays of it."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import image_files
import numpy as np
import pytest
from conftest import Trained
from dicom_files import NAME, dicom_image
from PIL import Image
from served import Served, serving

import vitmed as package
from vitmed.deploy.http import app
from vitmed.deploy.http.app import Service
from vitmed.deploy.http.limits import Limits

TIMEOUT = 1.0  # s
GATE = threading.Event()  # the model works while it is set


def gated(service: Service) -> None:
    work: Any = service.batcher.work

    def waits(*args: Any) -> Any:
        GATE.wait(30)
        return work(*args)

    GATE.set()
    service.batcher.work = waits


@pytest.fixture(scope="module")
def server(trained: Trained) -> Iterator[Served]:
    with serving(trained.folder, Limits(megabytes=1, images=4, timeout=TIMEOUT, queue=4), change=gated) as found:
        yield found
        GATE.set()


@pytest.fixture(scope="module")
def image(trained: Trained) -> bytes:
    return sorted((trained.data / "test").rglob("*.png"))[0].read_bytes()


def form(content: bytes, length: int | None = None) -> bytes:
    """A request over HTTP; `length`: that it states, None: it comes in chunks."""
    start = b'--b\r\nContent-Disposition: form-data; name="images"; filename="x.png"\r\n\r\n'
    how = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    head = f"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n{how}\r\n\r\n"
    body = start + content + b"\r\n--b--\r\n"
    if length is None:
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:9000], body[9000:])) + b"0\r\n\r\n"
    return head.encode() + body


def status(connection: socket.socket) -> int:
    """Of the answer; 0 if the connection ends without one."""
    line = connection.recv(100)
    return int(line.split()[1]) if line else 0


def test_a_request_of_too_many_bytes_images_or_pixels_gets_413(server: Served, image: bytes, tmp_path: Path) -> None:
    padded = image + bytes(1_100_000)
    for reply, words in (
        (server.post(padded), "1 MB"),
        (server.post(*[image] * 5), "4 images"),
        (server.post(image_files.raw_png(60_000, 60_000, 1, 0, b"")), "pixels"),
    ):
        assert reply.status_code == 413 and words in reply.json()["problem"] and reply.json()["fix"], reply.text
    with server.raw(form(padded)) as chunked, server.raw(form(b"", length=10**12)) as stated:
        assert status(chunked) == 413 and status(stated) == 413
    assert server.post(*[image] * 4).status_code == 200
    assert server.service.load.bytes == 0


def test_short_texts_beside_the_images_are_no_damage(server: Served, image: bytes) -> None:
    texts = {f"note {i}": "x" for i in range(17)}
    with server.client() as client:
        assert client.post("/v1/predict", data=texts, files={"images": image}).status_code == 200


@pytest.mark.parametrize(
    ("charset", "name", "found"), [("unicode_escape", "\\ud800.png", "?.png"), ("undefined", "x.png", None)]
)
def test_a_form_in_an_odd_character_set_is_no_bug(
    server: Served, image: bytes, charset: str, name: str, found: str | None
) -> None:
    start = f'--b\r\nContent-Disposition: form-data; name="images"; filename="{name}"\r\n\r\n'
    headers = {"Content-Type": f"multipart/form-data; boundary=b; charset={charset}"}
    with server.client() as client:
        reply = client.post("/v1/predict", content=start.encode() + image + b"\r\n--b--\r\n", headers=headers)
    if found is None:
        assert reply.status_code == 422 and "the form is damaged" in reply.json()["problem"]
    else:
        assert reply.status_code == 200 and reply.json()["images"][0]["image"] == found


def test_a_full_queue_is_429_a_late_answer_503_and_then_all_is_well(server: Served, image: bytes) -> None:
    GATE.clear()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(server.post, image) for _ in range(4)]
        while server.service.load.images < 4:
            time.sleep(0.01)
        reply = server.post(image)
        assert reply.status_code == 429 and reply.headers["Retry-After"] and "4 images" in reply.json()["problem"]
        late = [one.result() for one in waiting]
    assert {one.status_code for one in late} == {503} and "no answer in 1 s" in late[0].json()["problem"]
    server.service.checked = (-1e9, "")
    with server.client() as client:
        reply = client.get("/health/ready")
        assert reply.status_code == 503 and "no answer in 1 s" in reply.json()["problem"]
        assert client.get("/health/live").status_code == 200
        assert "vitmed_queue_images 0.0" in client.get("/metrics").text
    GATE.set()
    assert server.post(image).status_code == 200


def test_requests_that_fill_the_memory_together_get_429(server: Served, image: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(8):  # none of them ends
            stack.enter_context(server.raw(form(bytes(900_000), length=999_999)))
        while server.service.load.bytes < 7_000_000:
            time.sleep(0.01)
        with server.raw(form(bytes(900_000), length=999_999)) as ninth:
            assert status(ninth) == 429
    while server.service.load.bytes:  # the senders have gone
        time.sleep(0.01)
    assert server.post(image).status_code == 200


def test_a_slow_sender_gets_408_and_a_silent_one_is_cut_off(server: Served, image: bytes) -> None:
    began = time.monotonic()
    with server.raw(form(b"", length=5000)) as slow, server.raw(b"") as silent, server.raw(b"POST /v1") as torn:
        assert status(slow) == 408
        assert status(silent) == 0 and status(torn) == 0
    assert time.monotonic() - began < 10 * TIMEOUT
    assert server.post(image).status_code == 200


def test_no_upload_reaches_a_disk_and_no_name_the_log(
    server: Served, image: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starlette spools uploads of more than 1 MB; there is no folder for that here."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("files in memory are Linux's")
    before = set(Path("/dev/shm").iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    big = tmp_path / "Sentinel.png"
    big.write_bytes(image + bytes(900_000))
    monkeypatch.setattr("starlette.formparsers.MultiPartParser.spool_max_size", 1000)
    assert server.post(big).status_code == 200
    assert set(Path("/dev/shm").iterdir()) <= before
    assert not [line for line in server.log if "Sentinel" in line]


def test_a_dicom_file_is_answered_as_predict_answers_it(trained: Trained, server: Served, tmp_path: Path) -> None:
    png = sorted((trained.data / "test").rglob("*.png"))[0]
    file = dicom_image(tmp_path / "a.dcm", png)
    deep = dicom_image(tmp_path / "deep.dcm", np.arange(400, dtype=np.uint16).reshape(20, 20))
    own = package.predict([file], checkpoint=trained.best, precision="fp32")
    reply = server.post(file, png, deep)
    dicom, same, refused = reply.json()["images"]
    np.testing.assert_allclose(list(dicom["probabilities"].values()), own.probabilities[0], atol=1e-5)
    assert same["probabilities"] == dicom["probabilities"]
    assert "16 bits" in refused["problem"] and refused["fix"]
    assert NAME not in reply.text + "".join(server.log)


def test_a_picture_from_a_camera_is_turned_upright(trained: Trained, server: Served, tmp_path: Path) -> None:
    """As `predict` does: a phone stores its turn in the EXIF block."""
    upright = Image.open(sorted((trained.data / "test").rglob("*.png"))[0]).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = tmp_path / "phone.png"
    upright.rotate(90, expand=True).save(turned, exif=exif)
    upright.save(tmp_path / "upright.png")
    first, second = server.post(turned, tmp_path / "upright.png").json()["images"]
    assert first["probabilities"] == second["probabilities"]


@pytest.mark.parametrize("leaves", [False, True])
def test_large_requests_let_others_in_between_and_end_with_their_sender(
    trained: Trained, image: bytes, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """Two threads decode; four images of one request wait there when the image of another comes."""
    monkeypatch.setattr(app, "cores", lambda: 2)
    opened, order = threading.Event(), list[str]()
    other = sorted((trained.data / "test").rglob("*.png"))[1].read_bytes()

    def slow(service: Service) -> None:
        own: Any = service.model.seen

        def seen(data: bytes) -> Any:
            order.append("other" if data == other else "large")
            opened.wait(30)
            return own(data)

        service.model.seen = seen  # type: ignore[method-assign]

    def until(true: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not true():
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(0.2)  # what follows in the loop of the server

    part = form(image, 0).split(b"\r\n\r\n", 1)[1].removesuffix(b"--b--\r\n")
    body = 4 * part + b"--b--\r\n"
    head = form(b"", len(body)).split(b"\r\n\r\n", 1)[0]
    with serving(trained.folder, Limits(images=4), change=slow) as served, ThreadPoolExecutor(1) as pool:
        with served.raw(head + b"\r\n\r\n" + body) as large:
            until(lambda: len(order) == 2)
            if leaves:
                large.close()
                time.sleep(0.2)
            reply = pool.submit(served.post, other)
            until(lambda: served.service.load.decoding == 5)
            opened.set()
            assert reply.result().status_code == 200
            assert leaves or status(large) == 200
        until(lambda: served.service.load.images == 0)
    assert order == ["large", "large", "other"] + ["large", "large"] * (not leaves)
