"""`--weights auto`: what lies on this machine, else a download from a local server, else random weights."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import BARE, Recorder, draw_splits
from local_server import serving
from timm.models.vision_transformer import VisionTransformer

import vitmed
from vitmed.core import downloads
from vitmed.core.config import ModelConfig
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.models.weights import choice
from vitmed.models.weights.catalogue import forbids_commerce, public_weights, weight_path
from vitmed.models.weights.choice import Choice, choose_weights, unasked
from vitmed.models.weights.pretrained import open_weights

TINY = "deit_tiny_patch16_224"  # which needs no further package


def weight_file(seed: int = 0) -> bytes:
    """A network of width 192 and one block, in timm's names."""
    torch.manual_seed(seed)
    stream = io.BytesIO()
    network = VisionTransformer(img_size=32, patch_size=16, embed_dim=192, depth=1, num_heads=3, num_classes=0)
    torch.save(network.state_dict(), stream)
    return stream.getvalue()


FILE = weight_file()


@dataclass
class Server:
    """Answers with the file, or as `behave` says; keeps what it was asked."""

    behave: Callable[[BaseHTTPRequestHandler], bool] = lambda request: False
    asked: list[dict[str, str]] = field(default_factory=list)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        self.asked.append({"path": request.path, "body": body.decode(), **request.headers})
        if not self.behave(request):
            send(request, FILE)


def send(request: BaseHTTPRequestHandler, content: bytes, announced: int | None = None) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(announced or len(content)))
    request.end_headers()
    if request.command == "GET":
        request.wfile.write(content)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    draw_splits(tmp_path / "images")
    return tmp_path / "images"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """The host of the catalogue's choice; the cache is empty and connections are allowed."""
    for name in (*downloads.OFFLINE, "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("VITMED_CACHE", "HF_HOME", "TORCH_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(downloads, "PAUSE", 0.01)
    monkeypatch.setattr(choice, "TINY", (TINY,))
    monkeypatch.setattr(choice, "SMALL", ())
    about = Server()
    with serving(about.answer) as port:
        sha256 = hashlib.sha256(FILE).hexdigest()
        entry = public_weights()[TINY]._replace(
            url=f"http://127.0.0.1:{port}/{public_weights()[TINY].file}", size=len(FILE), sha256=sha256
        )
        monkeypatch.setitem(public_weights(), TINY, entry)
        yield about


def chosen(**fields: Any) -> Choice:
    found = choose_weights(ModelConfig(**fields), False)
    assert found is not None
    return found


def test_a_download_is_announced_with_how_to_say_no_and_sends_nothing(server: Server, ui: Recorder) -> None:
    said: list[int] = []
    server.behave = lambda request: said.append(len(ui.said)) or False  # type: ignore[func-returns-value]
    found = chosen()
    entry = public_weights()[TINY]
    assert said[0] == 1  # the line comes before the connection
    for part in (TINY, entry.url, downloads.megabytes(entry.size), "Apache-2.0", "--weights none"):
        assert part in ui.said[0]
    assert found.value == TINY and found.weights is not None and found.weights.model["width"] == 192
    assert hashlib.sha256(found.weights.path.read_bytes()).hexdigest() == entry.sha256
    names = {"path", "body", "Host", "User-Agent", "Accept-Encoding", "Connection"}
    assert all(set(asked) <= names and not asked["body"] and asked["User-Agent"] == "vitmed" for asked in server.asked)
    before = len(server.asked)
    assert chosen().value == TINY and len(server.asked) == before  # now from the cache


def no_answer(request: BaseHTTPRequestHandler) -> bool:
    time.sleep(1)
    return True


def login_page(request: BaseHTTPRequestHandler) -> bool:
    send(request, b"<html>Please log in</html>")
    return True


def always_cut(request: BaseHTTPRequestHandler) -> bool:
    send(request, FILE[:1000], len(FILE))
    return True


def other_file(request: BaseHTTPRequestHandler) -> bool:
    send(request, FILE[:-1] + b"x")
    return True


def fault(request: BaseHTTPRequestHandler) -> bool:
    request.send_error(503)
    return True


@pytest.mark.parametrize(
    "behave, why",
    [
        (no_answer, "does not answer within 0.2 s"),
        (login_page, "the server offers: 26 bytes"),
        (always_cut, "5 tries without new data"),
        (other_file, "its sha256 is"),
        (fault, "the server answers 503"),
    ],
)
def test_without_the_right_file_from_the_host_weights_are_random(
    server: Server, monkeypatch: pytest.MonkeyPatch, behave: Any, why: str
) -> None:
    monkeypatch.setattr(downloads, "ANSWER", 0.2 if behave is no_answer else 3.0)
    server.behave, began = behave, time.monotonic()
    found = chosen()
    assert found.value is None and found.weights is None and why in found.reason
    assert behave is not no_answer or time.monotonic() - began < 0.9
    assert not weight_path(TINY).exists()


def test_an_absent_host_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = public_weights()[TINY]
    monkeypatch.setitem(public_weights(), TINY, entry._replace(url=f"http://127.0.0.1:9/{entry.file}"))
    assert "127.0.0.1 cannot be reached" in chosen().reason


def test_offline_opens_no_connection(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with downloads.unconnected(True):
        found = choose_weights(ModelConfig(), False)
    assert found == Choice(None, None, "no weights are on this machine, and it is offline")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert chosen() == found and server.asked == []


@pytest.mark.parametrize("fields", [{"width": 64}, {"depth": 4}, {"name": "vit_base"}, {"stem": "conv"}])
def test_weights_of_another_network_than_you_set_are_not_chosen(server: Server, fields: dict[str, Any]) -> None:
    assert choose_weights(ModelConfig(**fields), False) is None and server.asked == []


def test_only_free_open_and_checked_weights_come_unasked() -> None:
    for name in (*choice.TINY, *choice.SMALL):
        entry = public_weights()[name]
        assert entry.licence == "Apache-2.0" and not entry.gated and not forbids_commerce(entry.licence)
    never = ("mae_vit_base", "dinov3_vits16", "virchow", "phikon", "uni", "medsiglip", "vit_tiny_augreg_in21k")
    assert not any(unasked(public_weights()[name]) for name in never)
    assert unasked(public_weights()["timm_vit_tiny_augreg"]) and unasked(public_weights()[TINY])


def test_the_caches_of_the_hubs_are_used(server: Server, tmp_path: Path) -> None:
    entry = public_weights()[TINY]
    place = tmp_path / "TORCH_HOME" / "hub" / "checkpoints"
    place.mkdir(parents=True)
    (place / entry.file).write_bytes(FILE)
    assert entry.sha256 is not None
    public_weights()[TINY] = entry._replace(sha256="a1311bcf")  # its first digits, in the name
    found = chosen()
    assert found.value == str(place / entry.file) and "PyTorch" in found.reason and server.asked == []


def test_a_folder_of_weights_comes_first(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    monkeypatch.setenv("VITMED_WEIGHTS", str(folder))
    with pytest.raises(UsageError, match="no such file or folder"):
        chosen()
    folder.mkdir()
    with pytest.raises(UsageError, match="holds no weight file"):
        chosen()
    (folder / "half.pth").write_bytes(FILE[:5000])
    with pytest.raises(CheckpointError, match=r"half.pth: not a whole .*"):
        chosen()
    (folder / "deit.pth").write_bytes(FILE)
    assert chosen().value == str(folder / "deit.pth")
    (folder / "vit_augreg.pth").write_bytes(FILE)
    found = chosen()
    assert found.value == str(folder / "vit_augreg.pth") and found.weights is not None
    assert found.weights.normalize == "half" and server.asked == []
    assert open_weights("deit").path == folder / "deit.pth"
    (folder / "deit.pt").write_bytes(FILE)
    with pytest.raises(UsageError, match=r"--weights deit: VITMED_WEIGHTS has deit\.pt and deit\.pth"):
        open_weights("deit")


def test_the_name_of_a_public_file_says_nothing_of_its_licence(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ui: Recorder
) -> None:
    monkeypatch.setenv("VITMED_WEIGHTS", str(tmp_path))
    file, entry = tmp_path / public_weights()[TINY].file, public_weights()[TINY]
    file.write_bytes(FILE)
    same = chosen().weights
    file.write_bytes(weight_file(1))
    other = chosen().weights
    assert same is not None and (same.licence, same.entry) == ("Apache-2.0", entry) and len(ui.said) == 1
    assert other is not None and (other.licence, other.entry) == (None, None) and "licence is not known" in ui.said[0]


def test_of_a_run_its_best_network_is_taken_not_the_one_before_training(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("baseline.pt", "best.pt", "last.pt"):
        (tmp_path / name).write_bytes(FILE)
    monkeypatch.setenv("VITMED_WEIGHTS", str(tmp_path))
    assert chosen().value == str(tmp_path / "baseline.pt")  # a folder of weight files: by the size, then by the name
    (tmp_path / "config.yaml").touch()  # it is a run
    assert chosen().value == str(tmp_path / "best.pt") == str(open_weights(str(tmp_path)).path)


def test_weights_that_forbid_a_use_are_not_chosen(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ui: Recorder
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.pth").write_bytes(FILE)
    (tmp_path / "mine" / "config.json").write_text(
        json.dumps({"pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}, "license": "cc-by-nc-4.0"})
    )
    (tmp_path / "mine" / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    monkeypatch.setenv("VITMED_WEIGHTS", str(tmp_path / "mine"))
    assert chosen().value == TINY
    assert any("cc-by-nc-4.0, forbids a use" in line for line in ui.warned)
    (tmp_path / "mine" / "config.json").unlink()  # README.md alone states it too
    ui.warned.clear()
    assert chosen().value == TINY
    assert any("cc-by-nc-4.0, forbids a use" in line for line in ui.warned)


def test_a_run_states_its_weights_and_repeats_only_with_them(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Path, no_figures: None
) -> None:
    of_run = {**BARE, "image_size": 32, "patch_size": 16, "epochs": 1}
    run = vitmed.train(images, output=tmp_path / "runs", name="first", **of_run).folder
    model = yaml.safe_load((run / "config.yaml").read_text())["model"]
    about = json.loads((run / "weights.json").read_text())
    sha256 = hashlib.sha256(FILE).hexdigest()
    assert (model["weights"], model["weights_sha256"], model["licence"]) == (TINY, sha256, "Apache-2.0")
    assert (about["name"], about["sha256"], about["licence"]) == (TINY, sha256, "Apache-2.0")
    assert about["reason"] == model["weights_reason"] == f"auto: {TINY} was downloaded"
    before = len(server.asked)
    again = vitmed.train(config=run / "config.yaml", output=tmp_path / "runs", name="again").folder
    assert len(server.asked) == before
    first, second = (torch.load(folder / "last.pt")["weights"] for folder in (run, again))
    assert all(torch.equal(first[name], second[name]) for name in first)
    entry = public_weights()[TINY]
    weight_path(TINY).write_bytes(other := weight_file(1))
    weight_path(TINY).with_name(entry.file + ".sha256").unlink()
    monkeypatch.setitem(public_weights(), TINY, entry._replace(sha256=hashlib.sha256(other).hexdigest()))
    with pytest.raises(CheckpointError, match=r"its sha256 is .*, and the configuration states"):
        vitmed.train(config=run / "config.yaml", output=tmp_path / "runs", name="third")
    vitmed.plan(config=run / "config.yaml", output=tmp_path / "plan.yaml", weights=TINY)  # named anew


def test_random_weights_are_named_in_the_head_of_the_report(
    server: Server, tmp_path: Path, images: Path, no_figures: None
) -> None:
    of_run = {**BARE, "epochs": 1, "report": True}
    run = vitmed.train(images, output=tmp_path / "runs", name="auto", offline=True, **of_run).folder
    page = (run / "test" / "report.html").read_text()
    for part in ("training starts from random weights", "it is offline", "0.998", "vitmed weights fetch"):
        assert part in page
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["weights"] is None
    assert "offline" in json.loads((run / "weights.json").read_text())["reason"]
    run = vitmed.train(images, output=tmp_path / "runs", name="none", weights="none", **of_run).folder
    assert "random weights:" not in (run / "test" / "report.html").read_text()
    assert not (run / "weights.json").exists() and server.asked == []
