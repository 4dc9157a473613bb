"""Where reports go: DICOMweb by the letter of PS3.18, and a folder. Other nodes are in test_node.py."""

from __future__ import annotations

import json
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from local_server import serving

from vitmed.commands.pacs.destinations import AUTHORIZATION, Folder, Node, Sent, UnreachableError, Web
from vitmed.core.errors import UsageError

REPORT = b"\0" * 128 + b"DICM\r\n--not a boundary--\r\n" + bytes(range(256))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "2.25.1.dcm").write_bytes(REPORT)
    return tmp_path / "2.25.1.dcm"


def failure(reason: int) -> Any:
    return {"00081198": {"vr": "SQ", "Value": [{"00081197": {"vr": "US", "Value": [reason]}}]}}


def post(file: Path, status: int, body: Any = None, login: str = "", got: list[Any] | None = None) -> list[Sent]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        data = request.rfile.read(int(request.headers["Content-Length"]))
        if got is not None:
            got.append((request.command, request.path, dict(request.headers), data))
        content = json.dumps(body).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    with serving(answer) as port:
        return list(Web(f"http://{login}127.0.0.1:{port}/dicom-web/studies/").send([file]))


def test_a_report_is_one_part_of_a_multipart_request(file: Path) -> None:
    got: list[Any] = []
    assert post(file, 200, {}, "ann:pass%20word@", got) == [Sent(file)]
    ((method, path, headers, data),) = got
    assert (method, path) == ("POST", "/dicom-web/studies")
    parsed = message_from_bytes(f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode() + data)
    assert parsed.get_content_type() == "multipart/related" and parsed.get_param("type") == "application/dicom"
    (part,) = parsed.get_payload()  # type: ignore[misc]
    assert part.get_content_type() == "application/dicom"  # type: ignore[union-attr]
    assert data.count(REPORT) == 1
    assert headers["Authorization"] == "Basic YW5uOnBhc3Mgd29yZA=="  # base64 of "ann:pass word"


def test_a_token_comes_from_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AUTHORIZATION, "Bearer abc")
    got: list[Any] = []
    post(file, 200, {}, got=got)
    assert got[0][2]["Authorization"] == "Bearer abc"


@pytest.mark.parametrize(
    ("status", "body", "refused"),
    [
        (409, failure(0x0111), ""),  # the archive has it already
        (409, failure(0xC122), "HTTP status 409, 0xC122"),
        (202, failure(0xA900), "HTTP status 202, 0xA900"),
        (400, "wrong", "HTTP status 400"),
        (415, None, "HTTP status 415"),
    ],
)
def test_what_the_server_stores_and_refuses(file: Path, status: int, body: Any, refused: str) -> None:
    assert post(file, status, body) == [Sent(file, refused)]


@pytest.mark.parametrize(
    ("status", "body"), [(401, None), (404, None), (429, None), (503, None), (409, failure(0xA700))]
)
def test_what_may_be_better_later(file: Path, status: int, body: Any) -> None:
    with pytest.raises(UnreachableError, match=str(status)):
        post(file, status, body)


def test_nobody_there(file: Path) -> None:
    with serving(lambda request: None) as port:
        pass
    for away in (Web(f"http://127.0.0.1:{port}/studies"), Node(f"127.0.0.1:{port}:ARCHIVE", "VITMED")):
        with pytest.raises(UnreachableError):
            list(away.send([file]))


def test_a_password_stands_nowhere() -> None:
    web = Web("https://ann:secret@pacs:8443/dicom-web/studies")
    assert web.name == "https://pacs:8443/dicom-web/studies"
    with pytest.raises(UsageError) as error:
        Web("https://ann:secret@pacs/elsewhere")
    assert "secret" not in str(error.value)


def test_addresses_of_nodes() -> None:
    node = Node("[::1]:104:MAIN PACS", "VITMED")
    assert (node.host, node.port, node.title) == ("::1", 104, "MAIN PACS")
    for wrong in ("pacs", "pacs:104", "pacs:0:A", "pacs:70000:A", "pacs:104:", "pacs:104:" + "A" * 17, "a b:104:A"):
        with pytest.raises(UsageError, match="expected HOST:PORT:AE"):
            Node(wrong, "VITMED")


def test_a_folder_gets_the_same_bytes(file: Path, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "deep" / "reports")
    assert list(folder.send([file])) == [Sent(file)] == list(folder.send([file]))
    assert (tmp_path / "deep" / "reports" / file.name).read_bytes() == REPORT
