"""`vitmed push` against a hub on this machine: what is uploaded, and what stops it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer, recording
from local_server import serving

import vitmed as package
from vitmed.commands.push import push
from vitmed.core.errors import UsageError

hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("huggingface_hub.constants")  # of the library, loaded when it is used


class Hub:
    """A hub with one token. `visible`: whether everybody sees lab/first; None: it is not there."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.visible: bool | None = None
        self.made: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.asked.append(f"{request.command} {path}")
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        allowed = request.headers.get("Authorization") == "Bearer hf_secret"
        port = request.server.server_address[1]  # type: ignore[index]
        status, found = 200, dict[str, Any]()
        if path == "/blob":
            self.files["model.safetensors"] = body
        elif not allowed:
            status, found = 401, {"error": "Invalid username or password."}
        elif path == "/api/models/lab/first" and self.visible is None:
            status = 404
        elif path == "/api/models/lab/first":
            found = {"id": "lab/first", "private": not self.visible, "siblings": [], "tags": [], "downloads": 0}
        elif path == "/api/repos/create":
            self.made = json.loads(body)
            found = {"url": f"http://127.0.0.1:{port}/lab/first"}
        elif path.endswith("/preupload/main"):  # large files go elsewhere, as at the hub
            modes = {True: "lfs", False: "regular"}
            paths = [file["path"] for file in json.loads(body)["files"]]
            how = [modes[path.endswith("safetensors")] for path in paths]
            found["files"] = [
                {"path": path, "uploadMode": one, "shouldIgnore": False} for path, one in zip(paths, how, strict=True)
            ]
        elif path.endswith("/objects/batch"):
            wanted = json.loads(body)["objects"]
            actions = {"upload": {"href": f"http://127.0.0.1:{port}/blob"}}
            found = {"transfer": "basic", "objects": [{**one, "actions": actions} for one in wanted]}
        elif path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            found = {"commitUrl": f"http://127.0.0.1:{port}/lab/first/commit/1", "commitOid": "1" * 40}
        text = json.dumps(found).encode()
        request.send_response(status)
        if status == 404:
            request.send_header("X-Error-Code", "RepoNotFound")
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(text)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub of this process."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VITMED_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    about = Hub()
    with serving(about.answer) as port:
        monkeypatch.setattr(hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setattr(hub.constants, "HF_HUB_DISABLE_XET", True)
        yield about


def test_weights_preprocessing_and_card_and_nothing_else_are_uploaded(
    plain_run: Path, server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ui = recording()
    found = package.push(plain_run, "lab/first", form="timm")
    assert found.private and server.made["name"] == "first" and server.made["organization"] == "lab"
    assert server.made.get("visibility") == "private" or server.made.get("private") is True
    assert set(server.files) == set(found.files) == {"README.md", "config.json", "model.safetensors"}
    assert 'timm.create_model("hf-hub:lab/first", pretrained=True)' in ui.said[-1] and "only its owner" in ui.said[-1]
    card = server.files["README.md"].decode()
    assert "# first" in card and '"hf-hub:lab/first"' in card and "Research use only" in card
    local = package.export(plain_run, to=tmp_path / "first", form="timm").file
    for name in ("config.json", "model.safetensors"):
        assert server.files[name] == (local / name).read_bytes()
    for content in server.files.values():
        for secret in (b"SECRET", b"PATIENT", str(plain_run.parents[1]).encode()):
            assert secret not in content


def test_a_public_repository_needs_the_flag(plain_run: Path, server: Hub) -> None:
    server.visible = True
    with pytest.raises(UsageError, match="everybody can see this repository"):
        push(plain_run, "lab/first", form="timm")
    assert not server.files and not server.made
    assert not push(plain_run, "lab/first", form="timm", public=True).private
    assert "README.md" in server.files


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VITMED_OFFLINE", None])
def test_offline_nothing_is_asked(
    plain_run: Path, server: Hub, vitmed: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    found = vitmed("push", plain_run, "lab/first", *([] if variable else ["--offline"]))
    assert found.code == 2 and "lab/first: vitmed is offline, and a push needs the hub" in found.err
    assert not server.asked


def test_a_wrong_token_a_wrong_name_and_an_unreachable_hub(
    plain_run: Path, server: Hub, vitmed: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = vitmed("push", plain_run, "first")
    assert found.code == 2 and "owner/name" in found.err and not server.asked
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    found = vitmed("push", plain_run, "lab/first", "--form", "timm")
    assert found.code == 2 and "nothing was uploaded" in found.err and "HF_TOKEN" in found.err, found.err
    assert "Traceback" not in found.err and "hf_other" not in found.err and not server.files
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    found = vitmed("push", plain_run, "lab/first", "--form", "timm")
    assert found.code == 2 and "nothing was uploaded" in found.err and "Traceback" not in found.err


def test_a_licence_that_forbids_sharing_stops_it(plain_run: Path, server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from vitmed.commands import push as module
    from vitmed.inference.checkpoint import load_checkpoint

    def stated(licence: str) -> Callable[..., Any]:
        saved = load_checkpoint(plain_run)
        model = saved.config.model.model_copy(update={"weights": "uni", "licence": licence})
        return lambda path: replace(saved, config=saved.config.model_copy(update={"model": model}))

    monkeypatch.setattr(module, "load_checkpoint", stated("CC-BY-NC-ND-4.0"))
    with pytest.raises(UsageError, match=r"CC-BY-NC-ND-4\.0, forbids sharing") as stopped:
        push(plain_run, "lab/first", form="timm")
    assert "--may-share" in str(stopped.value.fix) and not server.asked
    push(plain_run, "lab/first", form="timm", may_share=True)
    assert "CC-BY-NC-ND-4.0" in server.files["README.md"].decode()
    ui = recording()
    monkeypatch.setattr(module, "load_checkpoint", stated("LicenseRef-HAI-DEF"))
    push(plain_run, "lab/first", form="timm")
    assert any("Health AI Developer Foundations" in text for text in ui.warned)
    assert "Health AI Developer Foundations" in server.files["README.md"].decode()
