"""Weight files come whole and right or not at all, from a server that is good, slow, cut off, changed or wrong."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
import torch
from conftest import TINY, TINY_ARGS, Answer, Recorder, Trained, exit_code, recording
from local_server import serving
from platformdirs import windows
from platformdirs.macos import MacOS
from platformdirs.unix import Unix
from platformdirs.windows import Windows
from timm.models.vision_transformer import VisionTransformer

from vitmed import build_model
from vitmed.cli import main
from vitmed.core import downloads
from vitmed.core.downloads import is_offline, unconnected
from vitmed.core.errors import CheckpointError, UsageError, VitmedError
from vitmed.core.messages import listening
from vitmed.core.run_folder import cache_folder
from vitmed.models.weights.catalogue import DISTILLED, Entry, entry_of, fetch, public_weights, weight_path

RUN = Callable[..., Answer]
CONTENT = np.random.default_rng(0).bytes(900_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """A local web server that serves `content` at every path, and misbehaves as it is told, one request at a time."""

    content: bytes = CONTENT
    etag: str = ""  # of the hub
    ranges: bool = True
    status: list[int] = field(default_factory=list)  # of the next requests; 200 when used up
    cut: list[int] = field(default_factory=list)  # bytes after which the next answers end; whole when used up
    stall: list[float] = field(default_factory=list)  # seconds of silence in the middle of the next answers
    held: threading.Event | None = None  # the middle of an answer waits for it
    elsewhere: str | None = None  # redirect to
    tells_length: bool = True
    asked: list[dict[str, str]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/model.pth"


@pytest.fixture
def server() -> Iterator[Server]:
    about = Server()

    def answer(request: BaseHTTPRequestHandler) -> None:
        about.asked.append(dict(request.headers.items()))
        status = about.status.pop(0) if about.status else 200
        if about.elsewhere:
            request.send_response(302)
            request.send_header("Location", about.elsewhere)
            request.end_headers()
            return
        if status >= 400:
            request.send_error(status)
            return
        body, begin = about.content, 0
        wanted = request.headers.get("Range")
        if wanted and about.ranges:
            begin = int(wanted.removeprefix("bytes=").rstrip("-"))
            if begin >= len(body):
                request.send_response(416)
                request.send_header("Content-Range", f"bytes */{len(body)}")
                request.end_headers()
                return
        request.send_response(206 if begin else 200)
        if begin:
            request.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        if about.tells_length:
            request.send_header("Content-Length", str(len(body) - begin))
        request.end_headers()
        body = body[begin:]
        end = about.cut.pop(0) if about.cut else len(body)
        pause = about.stall.pop(0) if about.stall else 0
        request.wfile.write(body[: end // 2])
        request.wfile.flush()
        time.sleep(pause)
        if about.held:
            about.held.wait(60)
        try:
            request.wfile.write(body[end // 2 : end])
        except OSError:  # the other side lost patience
            request.close_connection = True

    with serving(answer) as about.port:
        yield about


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("VITMED_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(downloads, "PAUSE", 0.01)
    monkeypatch.setattr(downloads, "TIMEOUT", 5.0)
    return tmp_path / "cache"


@pytest.fixture
def listed(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts the server's file into the catalogue as `toy`."""

    def put(**changes: Any) -> None:
        entry = Entry(server.url, len(server.content), "ViT-Ti/8", DISTILLED, "a test", SHA256)
        monkeypatch.setitem(public_weights(), "toy", entry._replace(**changes))

    put()
    return put


def left(cache: Path) -> set[str]:
    folder = cache / "weights" / "toy"
    return {file.name for file in folder.iterdir()} - {"model.pth.lock"} if folder.is_dir() else set()


@pytest.mark.parametrize("sha256", [SHA256, SHA256[:8]])  # a first part of the hash is enough
def test_a_file_is_fetched_once(
    listed: Callable[..., None], server: Server, cache: Path, ui: Recorder, sha256: str
) -> None:
    listed(sha256=sha256)
    path = fetch("toy")
    assert path == weight_path("toy") == cache / "weights" / "toy" / "model.pth"
    assert path.read_bytes() == CONTENT and left(cache) == {"model.pth", "model.pth.sha256"}
    assert "licence Apache-2.0" in ui.said[0] and server.url in ui.said[0] and "1 MB" in ui.said[0]
    assert fetch("toy") == path and len(server.asked) == 1  # the second time it is there


@pytest.mark.usefixtures("listed")
def test_a_cut_connection_is_taken_up_where_it_broke(server: Server, cache: Path, ui: Recorder) -> None:
    server.cut = [300_000, 100_000]
    assert fetch("toy").read_bytes() == CONTENT
    assert [ask.get("Range") for ask in server.asked] == [None, "bytes=300000-", "bytes=400000-"]
    assert any("trying again" in line for line in ui.said)
    assert left(cache) == {"model.pth", "model.pth.sha256"}


def test_a_slow_server_and_one_with_a_passing_fault_are_asked_again(
    listed: Callable[..., None], server: Server, monkeypatch: pytest.MonkeyPatch, ui: Recorder
) -> None:
    listed(licence="CC-BY-NC-4.0")
    server.status = [503, 429]
    path = fetch("toy")
    assert path.read_bytes() == CONTENT and len(server.asked) == 3
    assert "CC-BY-NC-4.0" in ui.warned[0] and "commercial" in ui.warned[0]
    path.unlink()
    monkeypatch.setattr(downloads, "TIMEOUT", 0.2)
    server.stall = [1.0]
    assert fetch("toy").read_bytes() == CONTENT
    assert any("no data for 0.2 s" in line for line in ui.said) and "Range" in server.asked[4]
    listed(url="http://127.0.0.1:9/model.pth")
    path.unlink()
    nobody = recording()
    with pytest.raises(CheckpointError, match=r"127.0.0.1 cannot be reached"):
        fetch("toy")
    assert len([line for line in nobody.said if "trying again" in line]) == downloads.TRIES - 1


@pytest.mark.parametrize(("ranges", "published"), [(True, True), (False, True), (True, False)])
def test_a_download_continues_where_a_hash_is_published_and_the_server_can(
    listed: Callable[..., None], server: Server, ranges: bool, published: bool
) -> None:
    listed(**({} if published else {"sha256": None}))
    server.ranges, server.cut = ranges, [300_000]
    assert fetch("toy").read_bytes() == CONTENT
    assert server.asked[1].get("Range") == ("bytes=300000-" if published else None)


@pytest.mark.usefixtures("listed")
def test_a_file_that_changed_between_two_tries_is_not_glued_together(server: Server) -> None:
    server.content, server.cut = np.random.default_rng(1).bytes(len(CONTENT)), [300_000] * 5 + [0] * 5
    monkey = pytest.MonkeyPatch()
    monkey.setattr(downloads, "TRIES", 1)
    with pytest.raises(CheckpointError):
        fetch("toy")
    monkey.undo()
    server.content, server.cut = CONTENT, []
    assert fetch("toy").read_bytes() == CONTENT  # it began with 300,000 bytes of the other
    assert [ask.get("Range") for ask in server.asked[-2:]] == ["bytes=300000-", None]


@pytest.mark.usefixtures("listed")
def test_a_part_that_is_complete_is_not_fetched_again(server: Server, cache: Path) -> None:
    folder = cache / "weights" / "toy"
    folder.mkdir(parents=True)
    (folder / "model.pth.part").write_bytes(CONTENT)
    assert fetch("toy").read_bytes() == CONTENT and len(server.asked) == 1 and server.asked[0]["Range"]


@pytest.mark.usefixtures("listed")
def test_after_some_tries_in_vain_it_gives_up_and_keeps_what_came(server: Server, cache: Path, ui: Recorder) -> None:
    server.cut = [400_000, 0, 0, 0, 0, 0, 0, 0, 0]
    with pytest.raises(CheckpointError) as error:
        fetch("toy")
    assert "5 tries without new data, 0.4 MB are here" in str(error.value) and str(weight_path("toy")) in str(
        error.value
    )
    assert len(server.asked) == 6 - 1 and left(cache) == {"model.pth.part"}
    server.cut = []
    assert fetch("toy").read_bytes() == CONTENT and server.asked[-1]["Range"] == "bytes=400000-"


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_told_at_once(server: Server, cache: Path, status: int) -> None:
    server.status = [status]
    with pytest.raises(CheckpointError, match=f"the server answers {status}"):
        fetch("toy")
    assert len(server.asked) == 1 and left(cache) == set()


@pytest.mark.usefixtures("listed")
def test_a_wrong_hash_or_a_page_instead_leaves_no_file(server: Server, cache: Path) -> None:
    server.content = b"<html>please log in</html>"
    with pytest.raises(CheckpointError, match="offers: 26 bytes, expected about 900,000"):
        fetch("toy")
    assert left(cache) == set()
    server.content = CONTENT[:-1] + b"x"
    with pytest.raises(CheckpointError) as error:
        fetch("toy")
    found = hashlib.sha256(server.content).hexdigest()
    for text in ("model.pth", found, SHA256, "removed", "do not use it"):
        assert text in str(error.value)
    assert "model.pth" not in left(cache) and "model.pth.part" not in left(cache)
    server.content = CONTENT
    assert fetch("toy").read_bytes() == CONTENT


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_server_that_tells_no_length(
    listed: Callable[..., None], server: Server, cache: Path, sha256: str | None
) -> None:
    listed(sha256=sha256)
    server.tells_length, server.cut = False, [300_000]
    with pytest.raises(CheckpointError, match=r"(?s)300,000 bytes, expected about 900,000.*it was removed"):
        fetch("toy")
    assert not {"model.pth", "model.pth.part"} & left(cache)
    if sha256 is not None:  # only a hash shows that the last 4 % are missing
        server.cut = [870_000]
        with pytest.raises(CheckpointError, match=r"(?s)its sha256 is.*removed.*cut or changed on its way"):
            fetch("toy")
    assert fetch("toy").read_bytes() == CONTENT


@pytest.mark.parametrize("bad", [CONTENT[:-1] + b"x", CONTENT[:1000], b""])
def test_a_copied_file_is_checked_too_and_left_as_it_is(
    listed: Callable[..., None], server: Server, cache: Path, bad: bytes
) -> None:
    path = weight_path("toy")
    path.parent.mkdir(parents=True)
    path.write_bytes(bad)
    with pytest.raises(CheckpointError, match="expected") as error, unconnected(True):
        fetch("toy")
    assert str(path) in str(error.value) and "remove it" in str(error.value)
    assert path.read_bytes() == bad and server.asked == []


def test_where_no_hash_is_published_a_copy_is_proven_by_the_one_noted_when_fetching(
    listed: Callable[..., None], server: Server, tmp_path: Path, ui: Recorder
) -> None:
    listed(sha256=None)
    path = fetch("toy", folder=tmp_path / "stick")
    assert path == tmp_path / "stick" / "weights" / "toy" / "model.pth"
    assert "only its size can be checked, to 10 %" in ui.said[0]
    assert path.with_name("model.pth.sha256").read_text() == f"{SHA256}  model.pth\n"
    path.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(CheckpointError, match=SHA256):
        fetch("toy", folder=tmp_path / "stick")
    server.cut = [400_000] * 9  # and what a broken line brought is not continued
    with pytest.raises(CheckpointError, match=r"0\.0 MB are here") as error:
        fetch("toy")
    assert "begins anew" in error.value.fix and "Range" not in server.asked[-1]


@pytest.mark.usefixtures("listed")
def test_a_disk_without_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "file").touch()
    with monkeypatch.context() as patch:
        patch.setenv("VITMED_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(UsageError, match="VITMED_CACHE"):  # a cache that cannot be made
            fetch("toy")
    usage = downloads.shutil.disk_usage(cache.parent)
    with monkeypatch.context() as patch:
        patch.setattr(downloads.shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with pytest.raises(UsageError, match="1 MB are needed, 0 MB are free"):
            fetch("toy")
    assert left(cache) == set()
    if Path("/dev/full").exists():  # and one that is full against all promises
        (cache / "weights" / "toy" / "model.pth.part").symlink_to("/dev/full")
        with pytest.raises(UsageError, match="cannot be written"):
            fetch("toy")
        assert "model.pth" not in left(cache)


@pytest.mark.parametrize("url", ["http://example.org/model.pth", "ftp://example.org/model.pth", "file:///etc/passwd"])
def test_only_protected_connections(listed: Callable[..., None], server: Server, url: str) -> None:
    listed(url=url)
    with pytest.raises(CheckpointError, match="not https"):
        fetch("toy")
    listed()
    server.elsewhere = url
    with pytest.raises(VitmedError, match=r"not https|not allowed"):
        fetch("toy")


@pytest.mark.usefixtures("listed")
def test_two_at_once(server: Server, cache: Path) -> None:
    server.held = threading.Event()
    uis = [recording(), recording()]
    paths: list[Path] = []

    def fetching(ui: Recorder) -> None:
        with listening(ui):
            paths.append(fetch("toy"))

    threads = [threading.Thread(target=fetching, args=(ui,)) for ui in uis]
    for thread in threads:
        thread.start()
    while not any("another process" in line for u in uis for line in u.said) and any(t.is_alive() for t in threads):
        time.sleep(0.01)
    server.held.set()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() == CONTENT for path in paths] == [True, True] and len(server.asked) == 1
    assert sum("another process" in line for u in uis for line in u.said) == 1


CHILD = """
import sys
from vitmed.models.weights.catalogue import public_weights, Entry
from vitmed.models.weights import catalogue
url, size, sha256 = sys.argv[1:4]
public_weights()["toy"] = Entry(url, int(size), "ViT-Ti/8", "supervised", "a test", sha256)
{}
"""


def child(server: Server, code: str) -> list[str]:
    return [sys.executable, "-c", CHILD.format(code), server.url, str(len(server.content)), SHA256]


@pytest.mark.usefixtures("listed")
def test_a_killed_process_leaves_nothing_usable_and_the_next_goes_on(server: Server, cache: Path) -> None:
    server.stall = [20.0]
    process = subprocess.Popen(child(server, "catalogue.fetch('toy')"), stderr=subprocess.DEVNULL)
    part = cache / "weights" / "toy" / "model.pth.part"
    deadline = time.monotonic() + 30
    while not (part.is_file() and part.stat().st_size == 450_000) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert left(cache) == {"model.pth.part"}
    assert fetch("toy").read_bytes() == CONTENT  # its lock died with it
    assert server.asked[-1]["Range"] == "bytes=450000-"


# --- offline


def test_offline_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_offline()
    with unconnected(True):
        assert is_offline()
    for name in ("VITMED_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        yes, no = ("1", "true", "YES", " on ", "y", "2", "ja"), ("0", "", "False", " no ", "off")
        for value, meant in (dict.fromkeys(yes, True) | dict.fromkeys(no, False)).items():
            monkeypatch.setenv(name, value)
            assert is_offline() is meant, (name, value)
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("by", ["flag", "environment"])
def test_offline_a_missing_file_is_told_with_all_that_helps(
    monkeypatch: pytest.MonkeyPatch, server: Server, cache: Path, by: str
) -> None:
    if by == "environment":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError) as error, unconnected(by == "flag"):
        fetch("toy")
    for text in ("toy", str(weight_path("toy")), server.url, SHA256, "Apache-2.0"):
        assert text in str(error.value)
    assert server.asked == [] and not cache.exists()


def guard(event: str, args: object) -> None:
    """End the process where a socket would be made, or a name looked up."""
    if event.startswith("socket.") and event != "socket.gethostname":
        os.write(2, f"NETWORK {event}".encode())
        os._exit(99)


def without_network(place: Path) -> None:
    """In a new process: the guard is on, and what it says goes into files."""
    os.environ.pop("NO_ALBUMENTATIONS_UPDATE", None)
    for name in [name for name in sys.modules if name.startswith("albumentations")]:
        del sys.modules[name]  # it looks for updates when it is imported
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(place / name, os.O_CREAT | os.O_WRONLY), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    sys.addaudithook(guard)


def offline_runs(data: Path, runs: Path, toy: Path, entry: Entry) -> None:
    without_network(runs.parent)
    flags: tuple[object, ...] = (*TINY_ARGS[: 2 * len(TINY)], "--policy", "medical", "--epochs", 1)
    flags = (*flags, "--no-report", "--no-baseline", "--map-images", 0)

    def run(*args: object, folder: tuple[object, ...] = ("-o", runs, "--name", "a")) -> None:
        try:
            main(["train", "--offline", *map(str, (*folder, *args))])
        except SystemExit as end:
            print(end.code)

    public_weights()["toy"] = entry
    run(data, "--weights", "toy", *flags)
    print(runs.exists())
    put(toy)
    run(data, "--weights", "toy", *flags)
    run("-c", runs / "a" / "config.yaml")
    weight_path("toy").unlink()  # its last.pt holds the weights
    run("--resume", runs / "a-2", "--epochs", 2, folder=())


@pytest.fixture
def toy_vit(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    state = VisionTransformer(img_size=16, patch_size=8, embed_dim=64, depth=1, num_heads=1, num_classes=5).state_dict()
    torch.save(state, tmp_path / "toy.pth")
    return tmp_path / "toy.pth"


def entry_for(file: Path) -> Entry:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    half = (0.5, 0.5, 0.5)
    url = "https://weights.invalid/model.pth"
    return Entry(url, file.stat().st_size, "ViT", DISTILLED, "a test", digest, mean=half, std=half)


def put(file: Path, name: str = "toy") -> None:
    weight_path(name).parent.mkdir(parents=True)
    weight_path(name).write_bytes(file.read_bytes())


def test_train_offline_opens_no_socket(trained: Trained, tmp_path: Path, toy_vit: Path, no_figures: None) -> None:
    """The file absent, then present, the run repeated by its config, and resumed; in a process that a socket ends."""
    entry, runs = entry_for(toy_vit), tmp_path / "runs"
    code = exit_code(offline_runs, trained.data, runs, toy_vit, entry)
    out, err = ((tmp_path / name).read_text() for name in ("out", "err"))
    assert code == 0 and "Traceback" not in err, err
    assert out.split() == ["4", "False", "0", "0", "0"], err
    refusal, _, rest = err.partition("vitmed is for research use only")
    path = tmp_path / "cache" / "weights" / "toy" / "model.pth"
    for text in (str(path), entry.url, str(entry.sha256), "licence Apache-2.0"):
        assert text in refusal
    assert all("images normalised by half" in page.read_text() for page in runs.glob("*/plan.md"))
    assert list(runs.glob("*/plan.md")) and "from weights of toy" in rest
    for told in ((runs / name / "config.yaml").read_text() for name in ("a", "a-2")):
        assert "weights: toy\n" in told and str(tmp_path) not in told
    first, second = (runs / name / "test" / "predictions.csv" for name in ("a", "a-2"))
    assert first.read_bytes() == second.read_bytes()


def connects(place: Path) -> None:
    without_network(place)
    urllib.request.urlopen("http://127.0.0.1:9")


def test_the_guard_of_these_tests_sees_a_connection(tmp_path: Path) -> None:
    assert exit_code(connects, tmp_path) == 99 and "NETWORK socket" in (tmp_path / "err").read_text()


def test_build_model_by_name(toy_vit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(public_weights(), "toy", entry_for(toy_vit))
    with pytest.raises(CheckpointError, match="is not on this machine"):
        build_model(weights="toy", offline=True)
    put(toy_vit)
    ui = recording()
    model = build_model(weights="toy", offline=True)
    assert model.head.out_features == 5 and "licence Apache-2.0" in ui.said[0]


# --- the command line


@pytest.mark.usefixtures("listed")
def test_weights_commands(vitmed: RUN, server: Server, cache: Path, tmp_path: Path) -> None:
    answer = vitmed("weights", "list")
    assert answer.code == 0 and "toy" in answer.out and "dinov2_vits14_reg4" in answer.out
    assert "CC-BY-NC-ND-4.0 (token)" in answer.out and "no" in answer.out
    answer = vitmed("weights", "where", "toy")
    assert answer.code == 4 and answer.out == "" and str(weight_path("toy")) in answer.err
    answer = vitmed("weights", "fetch", "toy", "--offline", "--to", tmp_path)
    assert f"vitmed weights fetch toy --to {tmp_path}" in answer.err
    answer = vitmed("weights", "fetch", "toy", "--offline")
    assert answer.code == 4 and answer.out == "" and server.asked == []
    answer = vitmed("weights", "fetch", "toy")
    assert answer.code == 0 and answer.out == f"{weight_path('toy')}\n", answer.err
    answer = vitmed("weights", "where", "toy")
    assert answer.code == 0 and answer.out == f"{weight_path('toy')}\n"
    answer = vitmed("weights", "fetch", "toy", "--to", tmp_path / "stick", "--json")
    path = tmp_path / "stick" / "weights" / "toy" / "model.pth"
    assert json.loads(answer.out) == {"paths": {"toy": str(path)}} and path.is_file()
    rows = {row["name"]: row for row in json.loads(vitmed("weights", "list", "--json").out)["weights"]}
    assert rows["toy"]["here"] is True and rows["toy"]["sha256"] == SHA256 and rows["phikon"]["here"] is False
    assert rows["phikon"]["non_commercial"] and rows["uni"]["gated"] and rows["rad_dino"]["mean"] == [0.5307] * 3


@pytest.mark.usefixtures("listed")
def test_a_wrong_name_ends_before_anything_is_fetched(vitmed: RUN, server: Server, trained: Trained) -> None:
    for args in (["weights", "fetch", "toy", "dino_vit16"], ["weights", "where", "dino_vit16"],
                 ["train", str(trained.data), "--weights", "dino_vit16"]):  # fmt: skip
        answer = vitmed(*args)
        assert answer.code == 2 and "dino_vits16" in answer.err and "dino_vitb16" in answer.err
        assert "vitmed weights list" in answer.err
    assert server.asked == []
    answer = vitmed("train", trained.data, "--weights", "folder/dino_vits16")  # that can only be a file
    assert answer.code == 4 and "no such file" in answer.err


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folders of version 0.1.0, on the three systems."""
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("VITMED_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(windows, "get_win_folder", lambda _: str(tmp_path / "Local"))
    for system, folder in ((Unix, ".cache/vitmed"), (MacOS, "Library/Caches/vitmed"), (Windows, "Local/vitmed/Cache")):
        monkeypatch.setattr(platformdirs, "PlatformDirs", system)
        assert cache_folder() == tmp_path / folder
    monkeypatch.setattr(platformdirs, "PlatformDirs", Unix)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "vitmed"


# --- the Hugging Face hub, played by a local server


@pytest.fixture
def hub() -> Iterator[Server]:
    """What of the hub's interface a download uses: a HEAD with the hash as ETag, then the bytes."""
    about = Server(etag=f'"{SHA256}"')

    def answer(request: BaseHTTPRequestHandler) -> None:
        about.asked.append({"path": request.path, **dict(request.headers.items())})
        status = about.status[0] if about.status else 200
        request.send_response(status)
        if status == 403:
            request.send_header("X-Error-Code", "GatedRepo")
        request.send_header("X-Repo-Commit", "0123456789abcdef0123456789abcdef01234567")
        request.send_header("ETag", str(about.etag))
        request.send_header("Content-Length", str(len(about.content) if status == 200 else 0))
        request.end_headers()
        if status == 200 and request.command == "GET":
            request.wfile.write(about.content)

    with serving(answer) as about.port:
        yield about


def from_hub(server: Server, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`vitmed weights fetch toy`, of the hub; in a process of its own, as huggingface_hub reads HF_ENDPOINT once."""
    code = CHILD.format(
        "public_weights()['toy'] = public_weights()['toy']._replace(hub='lab/toy', sha256=None, licence='MIT')\n"
        f"from vitmed.cli import main\nmain(['weights', 'fetch', 'toy', *{list(args)!r}])"
    )
    environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{server.port}", **environment}
    command = [sys.executable, "-c", code, server.url, str(len(server.content)), SHA256]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


@pytest.mark.slow
def test_a_file_of_the_hub(hub: Server, cache: Path) -> None:
    pytest.importorskip("huggingface_hub")
    done = from_hub(hub, HF_TOKEN="hf_secret")
    path = cache / "weights" / "toy" / "model.pth"
    assert done.returncode == 0 and done.stdout == f"{path}\n", done.stderr
    assert path.read_bytes() == CONTENT and left(cache) == {"model.pth", "model.pth.sha256"}
    asked = [ask for ask in hub.asked if ask["path"] == "/lab/toy/resolve/main/model.pth"]
    assert asked and all("Bearer hf_secret" in ask.values() for ask in asked)
    before = len(hub.asked)
    assert from_hub(hub, HF_HUB_OFFLINE="1").returncode == 0 and len(hub.asked) == before  # it is here
    path.unlink()
    hub.content = CONTENT[:-1] + b"x"
    done = from_hub(hub)
    assert done.returncode == 4 and SHA256 in done.stderr and "removed" in done.stderr
    assert "model.pth" not in left(cache)


def test_a_mirror_of_the_hub_is_named_where_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for mirror, host in ((None, "huggingface.co"), ("https://mirror.example/", "mirror.example")):
        if mirror:
            monkeypatch.setenv("HF_ENDPOINT", mirror)
        for name, first in (("phikon", ""), ("uni", f"accept the licence at https://{host}/MahmoodLab/UNI, then ")):
            entry = entry_of(name)
            address = f"https://{host}/{entry.hub}/resolve/main/{entry.file} elsewhere"
            with pytest.raises(CheckpointError) as error:
                fetch(name)
            assert f"For a machine without one, {first}download {address}" in error.value.fix
        with pytest.raises(CheckpointError, match=rf"download https://{host}/timm/.* elsewhere"):
            fetch("timm_vit_tiny_augreg")


def test_a_mirror_of_the_hub_is_asked_for_files_with_a_plain_address(
    monkeypatch: pytest.MonkeyPatch, server: Server, listed: Callable[..., None], cache: Path
) -> None:
    """As are those of `--weights auto`, without huggingface_hub."""
    listed(url="https://huggingface.co/lab/toy/resolve/1/model.pth")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.port}")
    assert fetch("toy").read_bytes() == server.content and len(server.asked) == 1


@pytest.mark.slow
def test_a_gated_repository(hub: Server, cache: Path) -> None:
    pytest.importorskip("huggingface_hub")
    hub.status = [403]
    done = from_hub(hub)
    said = " ".join(done.stderr.split())
    assert done.returncode == 4 and f"accept it at http://127.0.0.1:{hub.port}/lab/toy, then download" in said, said
    assert hub.url in said and str(cache / "weights" / "toy" / "model.pth") in said and "HF_TOKEN" in said
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_hub_offline_or_unreachable_or_not_installed(hub: Server, cache: Path, tmp_path: Path) -> None:
    done = from_hub(hub, HF_HUB_OFFLINE="1")
    assert done.returncode == 4 and str(weight_path("phikon").parents[1]) in done.stderr and hub.asked == []
    hub.status = [404]
    done = from_hub(hub)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert f"put it at {weight_path('phikon').parents[1] / 'toy' / 'model.pth'}" in " ".join(done.stderr.split())
    (tmp_path / "none" / "huggingface_hub").mkdir(parents=True)
    (tmp_path / "none" / "huggingface_hub" / "__init__.py").write_text("raise ImportError('not installed')")
    search = os.pathsep.join([str(tmp_path / "none"), str(Path(downloads.__file__).parents[2])])
    done = from_hub(hub, PYTHONPATH=search)
    assert done.returncode == 2 and "pip install 'vitmed[hub]'" in done.stderr, done.stderr
