"""`vitmed serve`: its answers are those of `vitmed predict`; keys, statuses, health, and a process that stops."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import checkpoints
import httpx
import numpy as np
import pytest
from conftest import Answer, Trained, images_of
from served import Served, serving
from test_export import WITHOUT_TORCH

import vitmed as package
from vitmed.core.text import NOTICE
from vitmed.deploy.http import app
from vitmed.deploy.http.app import Service

KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def server(trained: Trained) -> Iterator[Served]:
    with serving(trained.folder) as found:
        yield found


@pytest.fixture(scope="module")
def exported_server(exported: Path) -> Iterator[Served]:
    with serving(exported) as found:
        yield found


@pytest.mark.parametrize("source", ["server", "exported_server"])
def test_the_answers_are_those_of_predict(trained: Trained, source: str, request: pytest.FixtureRequest) -> None:
    served: Served = request.getfixturevalue(source)
    own = package.predict(images_of(trained), checkpoint=trained.best, precision="fp32")
    for start in range(0, len(own), 16):
        reply = served.post(*images_of(trained)[start : start + 16])
        assert reply.status_code == 200, reply.text
        content = reply.json()
        assert content["notice"] == NOTICE
        assert content["model"]["weights_sha256"] == trained.result.test.metrics.weights_hash
        assert len(content["images"]) == min(16, len(own) - start)
        for row, image in enumerate(content["images"], start):
            assert image["image"] == Path(own.paths[row]).name
            assert image["prediction"] == own.classes[own.predicted[row]]
            assert list(image["probabilities"]) == list(own.classes)
            np.testing.assert_allclose(list(image["probabilities"].values()), own.probabilities[row], atol=1e-5)
            assert " | ".join(image["prediction_set"]) == own.columns["set"][row]
            assert ("yes" if image["answered"] else f"no: {image['reason']}") == own.columns["answer"][row]
            assert image["ood_score"] == pytest.approx(float(own.columns["ood_score"][row]), rel=1e-4)


def test_requests_at_once_get_each_their_own_answer(trained: Trained, server: Served) -> None:
    images = images_of(trained) * 2
    alone = {image: server.post(image).json()["images"][0]["probabilities"] for image in images_of(trained)}
    with ThreadPoolExecutor(32) as pool:
        replies = list(pool.map(server.post, images))
    assert len(replies) == len(images)
    for image, reply in zip(images, replies, strict=True):
        assert reply.json()["images"][0]["probabilities"] == pytest.approx(alone[image], abs=1e-5, rel=0)


def test_pictures_come_when_they_are_asked_for(trained: Trained, server: Served, exported_server: Served) -> None:
    image = images_of(trained)[0]
    plain = server.post(image).json()["images"][0]
    assert plain["picture"] is None
    shown = server.post(image, params={"pictures": "true"}).json()["images"][0]
    assert shown["picture"].startswith("data:image/png;base64,")
    other = exported_server.post(image, params={"pictures": "true"}).json()["images"][0]
    assert other["picture"] == shown["picture"]


def test_an_image_that_cannot_be_read_stands_among_the_others(trained: Trained, server: Served) -> None:
    good = images_of(trained)[0]
    reply = server.post(good, b"%PDF-1.7", good.read_bytes()[:150])
    first, pdf, torn = reply.json()["images"]
    assert reply.status_code == 200 and first["prediction"] and pdf["problem"] and torn["problem"] and torn["fix"]
    assert "/" not in torn["problem"]  # no path of the server


def test_the_card_names_no_place(trained: Trained, server: Served, exported_server: Served) -> None:
    with server.client() as client:
        reply = client.get("/v1/model")
    card = reply.json()
    assert card["classes"] == list(trained.result.test.metrics.classes) and card["kind"] == "classes"
    for secret in (str(trained.folder), str(trained.data), trained.folder.name, os.uname().nodename):
        assert secret not in reply.text.replace(card["name"], "")  # vit_tiny
    with exported_server.client() as client:
        card = client.get("/v1/model").json()
    assert card["source"] == "onnx"


def test_ready_notices_a_model_that_has_changed(trained: Trained) -> None:
    with serving(trained.folder) as served, served.client() as client:
        assert client.get("/health/ready").status_code == 200
        network = served.service.model.network.model
        network.head.weight.data.mul_(3)
        assert client.get("/health/ready").status_code == 200  # an answer counts for two seconds
        served.service.checked = (-1e9, "")
        reply = client.get("/health/ready")
        assert reply.status_code == 503 and "another answer" in reply.json()["problem"]
        network.head.weight.data.fill_(float("nan"))
        served.service.checked = (-1e9, "")
        assert client.get("/health/ready").status_code == 503
        reply = served.post(images_of(trained)[0])
        assert reply.status_code == 503 and "not finite" in reply.json()["problem"]
        assert client.get("/health/live").status_code == 200


def test_ready_is_the_answer_that_training_stored(
    trained: Trained, server: Served, exported_server: Served, tmp_path: Path
) -> None:
    """A machine that computes otherwise than the one that trained is not ready, also where it agrees with itself."""
    for served in (server, exported_server):
        policy = served.service.model.saved.policy
        assert policy is not None and len(policy.known_logits) == 3
        with served.client() as client:
            assert client.get("/health/ready").status_code == 200
    holder = checkpoints.content(trained.best)["policy"]
    first, *others = holder["known_logits"]
    changed, old = (holder | {"known_logits": known} for known in ([first + 0.1, *others], []))
    for policy, status in ((changed, 503), (old, 200), (None, 200)):
        file = checkpoints.rewrite(trained.best, tmp_path / "other.pt", policy=policy)
        with serving(file) as served, served.client() as client:
            reply, card = client.get("/health/ready"), client.get("/v1/model").json()
            page = client.get("/").text
            answer = served.post(images_of(trained)[0]).json()["images"][0]
        assert reply.status_code == status, reply.text
        assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-6)
        # A model without a policy answers and says so.
        assert ("holds no decision policy" in page) == (card["policy"] is None) == (policy is None)
        assert ("it answers every image that has content" in page) == (policy is None)
        assert ((answer["prediction_set"] is None) and (answer["ood_score"] is None)) == (policy is None)
        assert answer["answered"] or policy is not None


def test_metrics_count_requests_images_and_decisions(trained: Trained) -> None:
    """And one image at a time gets the answers of predict."""
    images = images_of(trained)[:5]
    own = package.predict(images, checkpoint=trained.best, precision="fp32")
    with serving(trained.folder, batch=1) as served, served.client() as client:
        found = [one for part in (images[:3], images[3:]) for one in served.post(*part).json()["images"]]
        served.post(b"no image")
        text = client.get("/metrics").text
    chances = [list(image["probabilities"].values()) for image in found]
    np.testing.assert_allclose(chances, own.probabilities, atol=1e-5)  # type: ignore[union-attr]
    for name in {one["prediction"] for one in found if one["answered"]}:
        count = sum(one["answered"] and one["prediction"] == name for one in found)
        assert f'vitmed_answers_total{{decision="{name}"}} {count}.0' in text
    for line in (
        'vitmed_images_total{result="read"} 5.0',
        'vitmed_images_total{result="unreadable"} 1.0',
        'vitmed_requests_total{method="POST",route="/v1/predict",status="200"} 2.0',
        'vitmed_requests_total{method="POST",route="/v1/predict",status="415"} 1.0',
        "vitmed_queue_images 0.0",
        "vitmed_batch_images_sum 6.0",  # one at the start
        "vitmed_batch_images_count 6.0",
    ):
        assert line in text


def test_a_key_is_asked_for_where_there_is_something_to_see(trained: Trained) -> None:
    image = images_of(trained)[0]
    right = {"Authorization": f"Bearer {KEY}"}
    with serving(trained.folder, key=KEY) as served, served.client() as client:
        for given in ("", f"Bearer {KEY}x", KEY, "Bearer \xfc"):
            headers = {"Authorization": given.encode("latin-1")} if given else {}
            for path in ("/v1/model", "/metrics", "/nothing"):
                reply = client.get(path, headers=headers)
                assert reply.status_code == 401 and reply.headers["WWW-Authenticate"] == "Bearer"
            assert client.post("/v1/predict", files={"images": image.read_bytes()}, headers=headers).status_code == 401
        for path in ("/", "/docs", "/openapi.json", "/health/live", "/health/ready"):
            assert client.get(path).status_code == 200
        assert "amber" not in client.get("/").text  # the page says nothing of the model
        assert client.get("/v1/model", headers=right).status_code == 200
        assert served.post(image, headers=right).status_code == 200


def test_a_web_page_of_another_host_cannot_reach_a_local_server(trained: Trained) -> None:
    with serving(trained.folder, hosts=("127.0.0.1", "localhost")) as served, served.client() as client:
        assert client.get("/v1/model", headers={"Host": "evil.example"}).status_code == 400
        assert client.get("/v1/model", headers={"Host": f"localhost:{served.port}"}).status_code == 200
        image = images_of(trained)[0]
        assert served.post(image, headers={"Origin": "https://evil.example"}).status_code == 400
        assert served.post(image, headers={"Origin": "null"}).status_code == 400
        assert served.post(image, headers={"Origin": served.url}).status_code == 200


def test_pages_load_nothing_and_allow_only_their_own_script(server: Served) -> None:
    with server.client() as client:
        for path in ("/", "/docs"):
            reply = client.get(path)
            policy = reply.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'") and "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", reply.text)
        docs = client.get("/docs").text
        assert all(path in docs for path in client.get("/openapi.json").json()["paths"])
        assert client.get("/v1/model").headers["Cache-Control"] == "no-store"


def test_what_is_refused_has_a_problem_and_a_fix(server: Served) -> None:
    with server.client() as client:
        for reply, status in (
            (client.get("/nothing"), 404),
            (client.get("/v1/predict"), 405),
            (client.post("/v1/predict/", files={"images": b"x"}, follow_redirects=False), 404),  # sent nowhere else
            (client.post("/v1/predict", content=b"x", headers={"Content-Type": "image/png"}), 415),
            (client.post("/v1/predict", files={"pictures": b"x"}), 422),
            (client.post("/v1/predict", data={"images": "text"}, files={"x": b""}), 422),
            (client.post("/v1/predict", params={"pictures": "maybe"}, files={"images": b"x"}), 422),
        ):
            assert reply.status_code == status, reply.text
            assert reply.json()["problem"] and reply.json()["fix"]
        long = client.post("/v1/predict", data={"note": "x" * 2**21}, files={"images": b"x"})
        assert long.status_code == 422 and "has a text above 1 MB" in long.json()["problem"]


def test_the_log_holds_method_route_status_and_time_alone(trained: Trained, tmp_path: Path) -> None:
    secret = tmp_path / "Miller_Anna_1950.png"
    secret.write_bytes(images_of(trained)[0].read_bytes())
    with serving(trained.folder) as served, served.client() as client:
        served.post(secret)
        served.post(secret, params={"patient": "Miller"})
        client.get("/patients/Miller")
        client.request("MILLER", "/v1/model")
        served.service.model.predictions = lambda *args: [][0]  # type: ignore[method-assign, assignment]  # a bug
        assert served.post(secret).status_code == 500
    assert len(served.log) == 6 and served.log[4].startswith("warning: IndexError at test_serve.py:")
    for line in served.log[:4] + served.log[5:]:
        assert re.fullmatch(r"(GET|POST|other) (/v1/predict|/v1/model|other) \d{3} \d+ ms", line), line


def start(*args: object, **environment: str) -> tuple[subprocess.Popen[str], str]:
    """A process of `vitmed serve` on a free port, and its address."""
    command = [sys.executable, *map(str, args), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment)
    line = process.stderr.readline()
    assert "answers at" in line, line + process.stderr.read()
    return process, line.split()[-1]


def test_a_process_without_torch_answers_and_sigterm_ends_it_with_0(trained: Trained, exported: Path) -> None:
    process, url = start("-c", WITHOUT_TORCH, "serve", exported)
    try:
        files = [("images", image.read_bytes()) for image in images_of(trained)[:16]]

        def ask(_: int) -> int:
            return httpx.post(f"{url}/v1/predict", files=files, timeout=60, trust_env=False, verify=False).status_code

        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, i) for i in range(8)]
            assert asked[0].result() == 200
            process.send_signal(signal.SIGTERM)
            left = [one.exception() or one.result() for one in asked]
        # What came in before the signal is answered; what came after is told so, or finds nobody.
        assert all(one in (200, 503) or isinstance(one, httpx.TransportError) for one in left), left
        assert process.wait(60) == 0
        assert process.stderr is not None
        lines = process.stderr.read()
        assert "stopped" in lines and re.search(r"\d{4}-\d\d-\d\dT[\d:]{8}[+-]\d\d:\d\d POST /v1/predict 200", lines)
    finally:
        process.kill()


def test_a_stop_answers_what_waits(trained: Trained) -> None:
    """Eight requests wait for a slow model when the server is asked to stop: all of them are answered."""

    def slow(service: Service) -> None:
        def late(*args: Any) -> Any:
            time.sleep(0.2)
            return service._work(*args)

        service.batcher.work, service.batcher.size = late, 2

    with ThreadPoolExecutor(8) as pool:
        with serving(trained.folder, change=slow) as served:
            asked = [pool.submit(served.post, image) for image in images_of(trained)[:8]]
            while served.service.load.images < 8 and not all(one.done() for one in asked):
                time.sleep(0.01)
        assert [one.result().status_code for one in asked] == [200] * 8
    with pytest.raises(httpx.ConnectError):
        served.post(images_of(trained)[0])


def test_the_server_answers_by_the_name_that_it_was_given() -> None:
    with app.open_door("127.0.0.2", 0, None, no_key=False) as door:
        assert "127.0.0.2" in door.hosts and door.address.startswith("http://127.0.0.2:")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--host", "0.0.0.0"], "there is no key"),
        (["--host", "no-such-host.invalid"], "no such address"),
        (["--max-images", "9", "--queue", "8"], "queue that holds the images of one request"),
        (["--timeout", "0"], "expected finite numbers above 0"),
        (["--max-megabytes", "inf"], "expected finite numbers above 0"),
        (["--tls-cert", "chain.pem"], "let a proxy in front encrypt"),
        (["--api-key-file", "nothing.txt"], "cannot be read as a key"),
        (["--port", "70000"], "70000"),
    ],
)
def test_what_cannot_be_served_is_an_error_of_two_sentences(
    trained: Trained, vitmed: Callable[..., Answer], args: list[str], message: str
) -> None:
    found = vitmed("serve", trained.folder, *args)
    assert found.code == 2 and message in found.err and "Traceback" not in found.err


def test_a_port_in_use_a_missing_model_and_a_short_key_are_refused_and_the_environment_gives_a_key(
    trained: Trained, vitmed: Callable[..., Answer], tmp_path: Path, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = vitmed("serve", trained.folder, "--port", server.port)
    assert found.code == 2 and "in use" in found.err and f"--port {server.port + 1}" in found.err
    assert vitmed("serve", tmp_path / "none.pt").code == 4
    found = vitmed("serve", trained.folder, "--port", 0, "--scores", trained.data / "scores.csv")
    assert found.code == 2 and "lies in the data folder" in found.err and not (trained.data / "scores.csv").exists()
    (tmp_path / "key").write_text("short\n")
    short = vitmed("serve", trained.folder, "--api-key-file", tmp_path / "key").err
    assert "at least 16" in short and f"fill {tmp_path / 'key'} with what `openssl rand -hex 32` prints" in short
    monkeypatch.setenv(app.KEY, KEY)
    assert app.read_key(None) == KEY
    assert "--no-key" in vitmed("serve", trained.folder, "--no-key").err
    (tmp_path / "key").write_text(f"{KEY}{KEY}\n")
    assert app.read_key(tmp_path / "key") == KEY + KEY


def test_a_missing_package_is_named_with_its_command(
    trained: Trained, vitmed: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("vitmed.deploy.http")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    found = vitmed("serve", trained.folder)
    assert found.code == 2 and "uvicorn" in found.err and "pip install 'vitmed[serve]'" in found.err
