"""Fetching public files, weights and data alike: resumed after a cut, checked, whole or not at all.

While it grows, a file is called `<file>.part`; it gets its name when it is complete and its hash is right. Offline,
nothing here opens a connection: a file is there, or the error says where to get it and where to put it.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from vitmed.core.errors import UsageError, VitmedError
from vitmed.core.files import write_json, write_text
from vitmed.core.ui import Ui

TIMEOUT = 30.0  # seconds without a byte, after which a connection counts as cut
TRIES = 5  # in a row that bring nothing new
PAUSE = 1.0  # seconds before the second try; doubled before each further one
BLOCK = 1 << 18  # bytes


def is_offline(flag: bool = False) -> bool:
    """Whether no connection may be opened: asked for, or by VITMED_OFFLINE, HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE."""
    switches = ("VITMED_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return flag or any(os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on") for name in switches)


def bring(source: Source, path: Path, ui: Ui | None = None, offline: bool = False, warn: bool = False) -> Path:
    """The checked file of a source at `path`: the one that is there, else downloaded.

    Args:
        warn: the licence forbids commercial use.

    Raises:
        source.error: it cannot be had, or is not what it should be.
        UsageError: no room or no right to write, or a package is missing.
    """
    ui = ui or Ui()
    if path.is_file():
        return _checked(path, source)
    if is_offline(offline):
        raise source.error(f"{source.name} is not on this machine: {path} is missing", by_hand(source, path))
    mark = "" if source.checksum or source.hub else "; only its size can be checked"
    size = megabytes(source.size) if source.size else "a file"
    ui.say(f"fetching {source.name}: {size} from {source.url}, licence {source.licence}{mark}")
    if warn:
        ui.warn(f"the licence of {source.name}, {source.licence}, forbids commercial use: read it before you go on")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.with_name(path.name + ".lock"), source.name, ui):
            if path.is_file():  # the process that we waited for brought it
                return _checked(path, source)
            (_from_hub if source.hub else _from_address)(source, path, ui)
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def _checked(path: Path, source: Source) -> Path:
    """The file itself. Raises source.error where its size or hash is wrong; it is left as it is."""
    fix = f"remove it, then: {source.again}"
    size = path.stat().st_size
    if not source.plausible(size):
        raise source.error(f"{path}: {size:,} bytes, expected about {source.size:,}", fix)
    note = _digest_file(path)
    noted = note.read_text(encoding="utf-8", errors="replace").split()[:1] if note.is_file() else []
    for expected in filter(None, (source.checksum, *(f"sha256:{digest}" for digest in noted))):
        if wrong := mismatch(path, expected):
            raise source.error(f"{path}: {wrong}", fix)
    return path


def _digest_file(path: Path) -> Path:
    """Beside the file, in the form of `sha256sum`: it travels with a copy, and proves it whole."""
    return path.with_name(path.name + ".sha256")


@contextlib.contextmanager
def _alone(lock: Path, name: str, ui: Ui) -> Iterator[None]:
    """One process at a time; the system frees the lock of one that dies."""
    guard = FileLock(lock)
    try:
        guard.acquire(timeout=0)
    except Timeout:
        ui.say(f"another process is fetching {name}: waiting for it")
        guard.acquire()
    try:
        yield
    finally:
        guard.release()


def _accept(part: Path, path: Path, source: Source, expected: str | None) -> None:
    """Give a complete file its name. Raises source.error where size or hash is wrong; the file is then removed."""
    size = part.stat().st_size
    if not source.plausible(size):
        part.unlink()
        raise source.error(
            f"{path.name} from {source.url}: {size:,} bytes, expected about {source.size:,}; what came was removed",
            f"{source.again} again; if it stays so, open the address in a browser",
        )
    if expected is not None and (wrong := mismatch(part, expected)):
        part.unlink()
        raise source.error(
            f"{path.name} from {source.url}: {wrong}; what came was removed",
            "fetch it again; if it stays so, the file was changed at its source or on the way: do not use it",
        )
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    write_text(_digest_file(path), f"{digest_of(part)}  {path.name}\n")
    part.replace(path)


# --- plain addresses


class _Cut(Exception):
    """The connection gave less than it should have; trying again may help."""


def _from_address(source: Source, path: Path, ui: Ui) -> None:
    part = path.with_name(path.name + ".part")
    with ui.bar(f"fetching {source.name}", unit="bytes") as advance:

        def told(done: int, total: int) -> None:
            advance(done, total, f"{done / 1e6:,.0f} of {megabytes(total)}")

        best, failures = 0, 0
        while True:
            try:
                _stream(source, part, told)
                break
            except _Cut as cut:
                have = part.stat().st_size if part.is_file() else 0
                failures = 1 if have > best else failures + 1
                best = max(best, have)
                if failures >= TRIES:
                    raise source.error(
                        f"{source.url}: {cut}; tried {failures} times in vain, {have / 1e6:,.1f} MB are here",
                        f"{source.again} goes on from there. Without a network, download it elsewhere "
                        f"and put it at {path}",
                    ) from None
                pause = PAUSE * 2 ** (failures - 1)
                ui.say(f"{cut}; trying again in {pause:.0f} s, from {have / 1e6:,.1f} MB on")
                time.sleep(pause)
    _accept(part, path, source, source.checksum)
    _notes_of(part).unlink(missing_ok=True)


def _notes_of(part: Path) -> Path:
    """What the server said of the file that `part` is a piece of."""
    return part.with_name(part.name + ".json")


def _stream(source: Source, part: Path, told: Callable[[int, int], None]) -> None:
    """Bring what of the file is not in `part` yet, if it is still the same file, else all of it.

    Raises:
        _Cut: less came than was announced, or a passing fault of the server.
        source.error: the server refuses, or offers something else.
        UsageError: no room.
    """
    validator = _validator_of(part, source.url)
    have = part.stat().st_size if validator else 0
    headers = {"User-Agent": "vitmed", "Accept-Encoding": "identity"}
    if have and validator:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    try:
        response = _open(urllib.request.Request(source.url, headers=headers), source)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{have}":
            return  # nothing is missing
        if error.code == 416:
            part.unlink()
            raise _Cut("the file at the source has changed") from None
        if error.code in (408, 429) or error.code >= 500:
            raise _Cut(f"the server says {error.code} {error.reason}") from None
        raise _refused(source, f"the server says {error.code} {error.reason}") from None
    with response:
        again = response.status == 206
        if again and not (_goes_on(response, have) and _validator(response) in (validator, None)):
            part.unlink()
            raise _Cut("the server did not go on where asked")
        have = have if again else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        if total is not None and not source.plausible(total):
            raise source.error(
                f"{source.url}: the server offers {total:,} bytes, expected about {source.size:,}",
                "a page of a proxy or a login in between? Open the address in a browser",
            )
        check_room(part.parent, (total or source.size or have) - have)
        write_json(_notes_of(part), {"url": source.url, "validator": _validator(response) or validator})
        with part.open("ab" if again else "wb") as stream:
            while True:
                try:
                    block = response.read1(BLOCK)
                except TimeoutError:
                    raise _Cut(f"no byte came for {TIMEOUT:g} s") from None
                except (OSError, http.client.HTTPException) as error:
                    raise _Cut(f"the connection broke ({_first_line(error)})") from None
                if not block:
                    break
                stream.write(block)
                have += len(block)
                told(have, total or source.size or have)
    if total is not None and have < total:
        raise _Cut(f"the connection ended after {have:,} of {total:,} bytes")


def _open(request: urllib.request.Request, source: Source) -> Any:
    """The answer of the server. Raises HTTPError, _Cut, and source.error where it cannot be trusted."""
    _only_https(request.full_url, source)
    try:
        return urllib.request.build_opener(_Redirects(source)).open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise source.error(
                f"{request.full_url}: its certificate is not trusted ({reason.verify_message})",
                "if your institution reads along, give its certificate: SSL_CERT_FILE=ca.pem",
            ) from None
        host = urlsplit(request.full_url).hostname
        raise _Cut(f"{host} cannot be reached ({_first_line(reason)})") from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a server elsewhere, but not to an unprotected connection."""

    def __init__(self, source: Source):
        self.source = source

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _only_https(newurl, self.source)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _only_https(url: str, source: Source) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")):
        raise source.error(f"{url}: not https, so what comes could have been changed on the way", "use https")


def _validator(response: Any) -> str | None:
    """What tells this version of the file from others: a strong ETag, else the time of its last change."""
    tag = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def _validator_of(part: Path, url: str) -> str | None:
    """What the server said of the file that `part` was begun with; None where nothing can be gone on with."""
    try:
        notes = json.loads(_notes_of(part).read_text(encoding="utf-8"))
        return str(notes["validator"]) if part.is_file() and notes["url"] == url and notes["validator"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _goes_on(response: Any, have: int) -> bool:
    return re.match(rf"bytes {have}-\d+/", response.headers.get("Content-Range", "")) is not None


# --- the Hugging Face hub


def _from_hub(source: Source, path: Path, ui: Ui) -> None:
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import GatedRepoError
    except ImportError:
        raise UsageError(
            f"{source.name} lies on the Hugging Face hub, which needs one more package",
            f"pip install 'vitmed[hub]'; or download {source.url} yourself and put it at {path}",
        ) from None
    aside = path.parent / "hub"
    try:
        about = hub.get_hf_file_metadata(hub.hf_hub_url(source.hub, source.file), timeout=TIMEOUT)
        if about.size is not None:
            check_room(path.parent, about.size)
        part = Path(hub.hf_hub_download(source.hub, source.file, revision=about.commit_hash, local_dir=aside))
    except GatedRepoError:
        raise source.error(
            f"{source.name}: the hub gives {source.hub} only to those who accepted its licence ({source.licence})",
            f"accept it at https://huggingface.co/{source.hub}, make a token at "
            "https://huggingface.co/settings/tokens, and set HF_TOKEN to it",
        ) from None
    except VitmedError:
        raise
    except Exception as error:  # of its own, of httpx and of the system, and they change between its versions
        raise _refused(source, _first_line(error)) from None
    # Large files have their sha256 as ETag on the hub.
    told = f"sha256:{about.etag}" if about.etag and re.fullmatch("[0-9a-f]{64}", about.etag) else None
    _accept(part, path, source, source.checksum or told)
    shutil.rmtree(aside, ignore_errors=True)


# --- errors


def check_room(folder: Path, size: int) -> None:
    """Raise UsageError where `size` bytes more do not fit on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise UsageError(
            f"{folder}: {megabytes(size)} are needed, {megabytes(free)} are free",
            "make room, or name another disk: VITMED_CACHE=FOLDER",
        )


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path}: cannot be written ({error.strerror or error})",
        "make room, or name another place: VITMED_CACHE=FOLDER",
    )


def _refused(source: Source, reason: str) -> VitmedError:
    return source.error(f"{source.url}: {reason}", "try the address in a browser; a newer vitmed may know a new one")


def _first_line(error: object) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class Source(NamedTuple):
    """A public file, and how to speak of it.

    Attributes:
        name: for messages; the folder of the file has it too.
        url: https.
        size: bytes, to within 10 %; None where nobody tells it.
        checksum: "sha256:..." (whole or its first digits) or "md5:..."; None where none is published.
        licence: in a few words.
        again: the command that fetches it.
        error: what is raised where the file cannot be had or is not what it should be.
        hub: repository on the Hugging Face hub that holds it; "" for a plain address.
    """

    name: str
    url: str
    size: int | None
    checksum: str | None
    licence: str
    again: str
    error: type[VitmedError]
    hub: str = ""

    @property
    def file(self) -> str:
        """Its name, as the publisher gives it."""
        return urlsplit(self.url).path.rpartition("/")[2]

    def plausible(self, size: int) -> bool:
        """Whether a file of that many bytes can be it."""
        return self.size is None or 0.9 * self.size <= size <= 1.1 * self.size

    @property
    def about(self) -> str:
        """Size, hash and licence, for whoever fetches it by hand."""
        size = megabytes(self.size) if self.size else "size unknown"
        kind, _, digest = (self.checksum or "sha256:unknown").partition(":")
        whole = len(digest) == hashlib.new(kind).digest_size * 2 or self.checksum is None
        return f"{size}, {kind} {digest}{'' if whole else '...'}, licence {self.licence}"


def by_hand(source: Source, path: Path) -> str:
    """How to come by a file, with a network and without one."""
    return (
        f"where there is a network: {source.again}. For a machine without one, download {source.url} "
        f"elsewhere ({source.about}) and put it at {path}"
    )


def mismatch(path: Path, expected: str) -> str | None:
    """What is wrong with the hash of a file, in words; None where it is as expected ("sha256:...", "md5:...")."""
    kind, _, digest = expected.partition(":")
    found = digest_of(path, kind)
    return None if found.startswith(digest) else f"its {kind} is {found}, expected {digest}"


def digest_of(path: Path, kind: str = "sha256") -> str:
    """The hash of a file's content, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def megabytes(size: int) -> str:
    """Bytes for the eye, in units of 10^6."""
    return f"{size / 1e6:,.0f} MB"
