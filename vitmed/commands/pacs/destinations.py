"""Where reports go: another DICOM node (C-STORE), DICOMweb (STOW-RS, PS3.18), or a folder."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import secrets
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from vitmed.commands.pacs.settings import TITLE, NodeSettings
from vitmed.core.errors import UsageError
from vitmed.core.files import make_folder, write_bytes
from vitmed.core.text import first_line

CONNECT, ANSWER = 10, 60  # s that another node may take
NO_ROOM = range(0xA700, 0xA800)  # refused for want of room: later there may be some
DUPLICATE = 0x0111  # the archive has the object already
STORED = {0x0000, DUPLICATE, *range(0xB000, 0xC000)}  # success, or a warning about a stored object
AUTHORIZATION = "VITMED_STOW_AUTHORIZATION"  # environment variable: the header of that name, such as "Bearer ..."
NODE = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^:/\s]+):(?P<port>\d{1,5}):(?P<ae>.+)")


class UnreachableError(Exception):
    """Nobody took the report: it is sent again later."""


class Sent(NamedTuple):
    """What became of a report: an empty `refused`, or why the archive does not take it."""

    file: Path
    refused: str = ""


class Destination(Protocol):
    """Where reports go; `name` says it in words, and stands in the journal."""

    name: str

    def send(self, files: Iterable[Path]) -> Iterator[Sent]:
        """Send files, one after the other; a file is taken from `files` immediately before it is sent.

        Raises:
            UnreachableError: the file taken last, and those after it, have not been sent.
        """


class Node:
    """Another DICOM node. Raises UsageError for another address than HOST:PORT:AE."""

    def __init__(self, address: str, ae: str):
        found = NODE.fullmatch(address)
        if found is None or not TITLE.fullmatch(found["ae"]) or not 0 < int(found["port"]) < 65536:
            raise UsageError(f"--to {address}: expected HOST:PORT:AE or https://.../studies", "--to pacs:104:ARCHIVE")
        self.name, self.ae = address, ae
        self.host, self.port, self.title = found["host"].strip("[]"), int(found["port"]), found["ae"]

    def send(self, files: Iterable[Path]) -> Iterator[Sent]:
        from pydicom.uid import ComprehensiveSRStorage, ExplicitVRLittleEndian, ImplicitVRLittleEndian
        from pynetdicom import AE, evt

        entity = AE(self.ae)
        entity.connection_timeout, entity.acse_timeout = CONNECT, CONNECT
        entity.dimse_timeout = entity.network_timeout = ANSWER
        entity.add_requested_context(ComprehensiveSRStorage, [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
        link = entity.associate(
            self.host, self.port, ae_title=self.title, evt_handlers=[(evt.EVT_CONN_OPEN, _send_at_once)]
        )
        if not link.is_established:
            refuses = link.is_rejected
            link.abort()
            raise UnreachableError("it refuses the association" if refuses else "no answer")
        try:
            if not link.accepted_contexts:
                raise UnreachableError("it takes no Comprehensive SR")
            for file in files:
                try:
                    status = link.send_c_store(file).get("Status")
                except (RuntimeError, ValueError) as error:  # of pynetdicom: the association has ended
                    raise UnreachableError(type(error).__name__) from None
                if status is None or status in NO_ROOM:
                    raise UnreachableError("no answer" if status is None else f"it has no room (0x{status:04X})")
                yield Sent(file, "" if status in STORED else f"status 0x{status:04X}")
        finally:
            link.release() if link.is_established else link.abort()


def _send_at_once(event: Any) -> None:
    """Switch Nagle's algorithm off, which costs 40 ms a report."""
    event.assoc.dul.socket.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Web:
    """DICOMweb: each report is a POST of STOW-RS (PS3.18, 10.5). Raises UsageError for a wrong address."""

    def __init__(self, address: str):
        url = urlsplit(address)
        if url.scheme not in ("http", "https") or not url.hostname or not url.path.rstrip("/").endswith("studies"):
            problem = f"--to {url.scheme}://{url.hostname}{url.path}: expected .../studies"
            raise UsageError(problem, "--to https://pacs/dicom-web/studies")
        self.kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self.host, self.port, self.path = url.hostname, url.port, url.path.rstrip("/")
        self.name = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{self.path}"
        self.login = os.environ.get(AUTHORIZATION, "")
        if url.username is not None:
            pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
            self.login = "Basic " + base64.b64encode(pair.encode()).decode()

    def send(self, files: Iterable[Path]) -> Iterator[Sent]:
        for file in files:
            try:
                status, body = self._post(file.read_bytes())
            except (OSError, http.client.HTTPException) as error:
                raise UnreachableError(first_line(error) or type(error).__name__) from None
            if status == 200 or (failed := _failure(body)) == DUPLICATE:
                yield Sent(file)
            elif failed in NO_ROOM or (failed is None and status not in (400, 409, 413, 415)):
                raise UnreachableError(f"HTTP status {status}")
            else:
                yield Sent(file, f"HTTP status {status}" + ("" if failed is None else f", 0x{failed:04X}"))

    def _post(self, report: bytes) -> tuple[int, bytes]:
        mark = secrets.token_hex(16)
        head = f"--{mark}\r\nContent-Type: application/dicom\r\n\r\n"
        headers = {
            "Content-Type": f'multipart/related; type="application/dicom"; boundary={mark}',
            "Accept": "application/dicom+json",
        } | ({"Authorization": self.login} if self.login else {})
        connection = self.kind(self.host, self.port, timeout=ANSWER)
        try:
            connection.request("POST", self.path, head.encode() + report + f"\r\n--{mark}--\r\n".encode(), headers)
            answer = connection.getresponse()
            return answer.status, answer.read(2**20)
        finally:
            connection.close()


def _failure(body: bytes) -> int | None:
    """The reason (0008,1197) of the first item that was not stored (0008,1198); None without one."""
    try:
        found = json.loads(body)
        item = (found[0] if isinstance(found, list) else found)["00081198"]["Value"][0]
        return int(item["00081197"]["Value"][0])
    except (ValueError, LookupError, TypeError):
        return None


class Folder:
    """A folder: each report becomes UID.dcm in it."""

    def __init__(self, folder: Path):
        make_folder(folder)
        self.folder, self.name = folder, str(folder.resolve())

    def send(self, files: Iterable[Path]) -> Iterator[Sent]:
        for file in files:
            try:
                write_bytes(self.folder / file.name, file.read_bytes())
            except (UsageError, OSError) as error:
                raise UnreachableError(first_line(error)) from None
            yield Sent(file)


def destination(settings: NodeSettings) -> Destination:
    """Where the reports of a node go. Raises UsageError."""
    if settings.output is not None:
        return Folder(Path(settings.output))
    assert settings.to is not None
    return Web(settings.to) if "://" in settings.to else Node(settings.to, settings.ae)
