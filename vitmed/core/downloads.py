"""Downloads of public files, weights and data alike: resumed after a cut, checked, and complete or absent.

A growing file is called `<file>.part`. It gets its name when it is complete and its hash is right. Offline, nothing
here opens a connection: the file is there, or the error says where to get it and where to put it. No library that we
looked at resumes a download of any address and proves that it is still the same file: docs/libraries.md.
"""

from __future__ import annotations

import hashlib
import http.client
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
from vitmed.core.files import write_text
from vitmed.core.text import first_line
from vitmed.core.ui import Ui

TIMEOUT = 30.0  # seconds without a byte, after which a connection counts as cut
TRIES = 5  # in a row that bring nothing new
PAUSE = 1.0  # seconds before the second try; doubled before each further one
BLOCK = 1 << 18  # bytes
OFFLINE = ("VITMED_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
ROOM = "make room, or name another disk: VITMED_CACHE=FOLDER"


def is_offline(flag: bool = False) -> bool:
    """Whether no connection may be opened: by a flag, or by one of the variables in `OFFLINE`."""
    return flag or any(os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on") for name in OFFLINE)


class Source(NamedTuple):
    """A public file, and how messages describe it.

    Attributes:
        name: for messages; the folder of the file has it too.
        url: https.
        size: bytes, to within 10 %; None where the publisher does not state it.
        checksum: "sha256:..." (whole or its first digits) or "md5:..."; None where none is published.
        licence: in a few words.
        again: the command that fetches it.
        error: raised where the file cannot be fetched or is wrong.
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

    def by_hand(self, path: Path) -> str:
        """How to get the file to `path`, with a network and without one."""
        size = megabytes(self.size) if self.size else "size unknown"
        digest = (self.checksum or "sha256 unknown").replace(":", " ")
        return (
            f"where there is a network: {self.again}. For a machine without one, download {self.url} "
            f"elsewhere ({size}, {digest}, licence {self.licence}) and put it at {path}"
        )

    def check_size(self, size: int, what: str, fix: str) -> None:
        """Raise `error` where a file of that many bytes cannot be this one, such as a login page."""
        if self.size is not None and not 0.9 * self.size <= size <= 1.1 * self.size:
            raise self.error(f"{what}: {size:,} bytes, expected about {self.size:,}", fix)

    def check(self, path: Path, what: str, fix: str, *digests: str | None) -> None:
        """Raise `error` where the size of a file is wrong, or one of its digests ("sha256:...", "md5:...")."""
        self.check_size(path.stat().st_size, what, fix)
        for kind, _, expected in (digest.partition(":") for digest in (self.checksum, *digests) if digest):
            if not (found := digest_of(path, kind)).startswith(expected):
                raise self.error(f"{what}: its {kind} is {found}, expected {expected}", fix)


def bring(source: Source, path: Path, ui: Ui | None = None, offline: bool = False, warn: bool = False) -> Path:
    """The checked file of a source at `path`: the one that is there, else downloaded.

    Args:
        warn: the licence forbids commercial use.

    Raises:
        source.error: it cannot be fetched, or has the wrong size or hash. A file that was there is left as it is.
        UsageError: no room or no right to write, or a package is missing.
    """
    ui = ui or Ui()
    if not path.is_file():
        if is_offline(offline):
            raise source.error(f"{source.name} is not on this machine: {path} is missing", source.by_hand(path))
        mark = "" if source.checksum or source.hub else "; only its size can be checked"
        size = megabytes(source.size) if source.size else "a file"
        ui.say(f"fetching {source.name}: {size} from {source.url}, licence {source.licence}{mark}")
        if warn:
            ui.warn(f"the licence of {source.name}, {source.licence}, forbids commercial use: read it before you go on")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _lock(path, source.name, ui):
                if not path.is_file():  # unless another process has just fetched it
                    _download(source, path, ui)
                    return path
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror or error})", ROOM) from None
    note = _digest_file(path)
    noted = note.read_text(encoding="utf-8", errors="replace").split()[:1] if note.is_file() else []
    source.check(path, str(path), f"remove it, then: {source.again}", *(f"sha256:{digest}" for digest in noted))
    return path


def _digest_file(path: Path) -> Path:
    """The hash in the form of `sha256sum`, beside the file: a copy of both can be checked anywhere."""
    return path.with_name(path.name + ".sha256")


def _lock(path: Path, name: str, ui: Ui) -> FileLock:
    """Lets one process at a time fetch a file. The system frees the lock of a process that dies."""
    lock = FileLock(path.with_name(path.name + ".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        ui.say(f"another process is fetching {name}: waiting for it")
        return lock
    lock.release()
    return lock


def _download(source: Source, path: Path, ui: Ui) -> None:
    """Fetch the file, check it, write its hash beside it, and give it its name; remove it where it is wrong."""
    part, digest = _from_hub(source, path) if source.hub else (_from_address(source, path, ui), None)
    what = f"{path.name} from {source.url}"
    fix = f"it was removed: {source.again} again. If it stays so, the file was changed on the way: do not use it"
    try:
        source.check(part, what, fix, digest)
    except VitmedError:
        part.unlink()
        raise
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    write_text(_digest_file(path), f"{digest_of(part)}  {path.name}\n")
    part.replace(path)
    _notes_of(part).unlink(missing_ok=True)
    shutil.rmtree(path.parent / "hub", ignore_errors=True)


# --- plain addresses


class _Cut(Exception):
    """The connection gave less than it should have; trying again may help."""


def _from_address(source: Source, path: Path, ui: Ui) -> Path:
    """The complete `.part` file of a plain address, fetched in as many tries as it takes."""
    part = path.with_name(path.name + ".part")
    with ui.bar(f"fetching {source.name}", unit="bytes") as advance:
        best, failures = 0, 0
        while True:
            try:
                _stream(source, part, lambda n, of: advance(n, of, f"{n / 1e6:,.0f} of {megabytes(of)}"))
                return part
            except _Cut as cut:
                have = part.stat().st_size if part.is_file() else 0
                failures = 1 if have > best else failures + 1
                best = max(best, have)
                if failures >= TRIES:
                    raise source.error(
                        f"{source.url}: {cut}; {failures} tries brought nothing, {have / 1e6:,.1f} MB are here",
                        f"{source.again} continues from there. Without a network, download it elsewhere "
                        f"and put it at {path}",
                    ) from None
                pause = PAUSE * 2 ** (failures - 1)
                ui.say(f"{cut}; trying again in {pause:.0f} s, from {have / 1e6:,.1f} MB on")
                time.sleep(pause)


def _notes_of(part: Path) -> Path:
    """Beside `part`: the address that it came from, and the ETag or date by which the server knows this version."""
    return part.with_name(part.name + ".from")


def _stream(source: Source, part: Path, progress: Callable[[int, int], None]) -> None:
    """Fetch the rest of the file that `part` begins, where it is still the same file, else all of it.

    Raises:
        _Cut: fewer bytes came than were announced, or the server has a passing fault.
        source.error: the server refuses, or offers something else.
        UsageError: no room.
    """
    notes = _notes_of(part)
    known = notes.read_text(errors="replace").splitlines() if notes.is_file() and part.is_file() else []
    validator = known[1] if len(known) == 2 and known[0] == source.url else ""
    have = part.stat().st_size if validator else 0
    headers = {"User-Agent": "vitmed", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    with _open(source, headers) as response:
        if response.status == 416 and response.headers.get("Content-Range") == f"bytes */{have}":
            return  # nothing is missing
        tag = response.headers.get("ETag") or "W/"  # a weak tag does not tell two files apart
        served = response.headers.get("Last-Modified", "") if tag.startswith("W/") else tag
        resumed = response.status == 206
        begins = re.match(rf"bytes {have}-\d+/", response.headers.get("Content-Range", ""))
        if response.status == 416 or (resumed and not (begins and served in (validator, ""))):
            part.unlink()
            raise _Cut("the server did not continue where asked")
        have = have if resumed else 0
        length = response.headers.get("Content-Length") or ""
        total = have + int(length) if length.isdigit() else None
        if total is not None:
            fix = "is there a proxy or a login page in between? Open the address in a browser"
            source.check_size(total, f"{source.url}: the server offers", fix)
        check_room(part.parent, (total or source.size or have) - have)
        write_text(notes, f"{source.url}\n{served or validator}\n")
        with part.open("ab" if resumed else "wb") as stream:
            for block in _blocks(response):
                stream.write(block)
                have += len(block)
                progress(have, total or source.size or have)
    if total is not None and have < total:
        raise _Cut(f"the connection ended after {have:,} of {total:,} bytes")


def _open(source: Source, headers: dict[str, str]) -> Any:
    """The response: 200, 206 or 416. Raises _Cut for a passing fault, source.error for a refusal."""
    opener = urllib.request.build_opener(_Redirects(source))
    host = urlsplit(source.url).hostname
    try:
        _only_https(source.url, source)
        return opener.open(urllib.request.Request(source.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return error  # is a response, too
        error.close()
        reason = f"the server says {error.code} {error.reason}"
        if error.code in (408, 429) or error.code >= 500:
            raise _Cut(reason) from None
        raise _refused(source, reason) from None
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        cause = getattr(error, "reason", error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = f"the certificate of {host} is not trusted ({cause.verify_message})"
            fix = "if your institution inspects connections, name its certificate: SSL_CERT_FILE=ca.pem"
            raise source.error(f"{source.url}: {reason}", fix) from None
        raise _Cut(f"{host} cannot be reached ({first_line(cause)})") from None


def _blocks(response: Any) -> Iterator[bytes]:
    """What the server sends. Raises _Cut where the connection breaks, so that errors of the disk stay apart."""
    try:
        while block := response.read1(BLOCK):
            yield block
    except TimeoutError:
        raise _Cut(f"no byte came for {TIMEOUT:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Cut(f"the connection broke ({first_line(error)})") from None


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
        raise source.error(f"{url}: not https, so the file could be changed on the way", "use https")


# --- the Hugging Face hub


def _from_hub(source: Source, path: Path) -> tuple[Path, str | None]:
    """The file as huggingface_hub downloads it, and the sha256 by which the hub knows it."""
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import GatedRepoError
    except ImportError:
        raise UsageError(
            f"{source.name} is on the Hugging Face hub, which needs one more package",
            f"pip install 'vitmed[hub]'; or download {source.url} yourself and put it at {path}",
        ) from None
    try:
        about = hub.get_hf_file_metadata(hub.hf_hub_url(source.hub, source.file), timeout=TIMEOUT)
        check_room(path.parent, about.size or 0)
        folder = path.parent / "hub"
        part = Path(hub.hf_hub_download(source.hub, source.file, revision=about.commit_hash, local_dir=folder))
    except GatedRepoError:
        raise source.error(
            f"{source.name}: the hub gives {source.hub} only to those who accepted its licence ({source.licence})",
            f"accept it at https://huggingface.co/{source.hub}, make a token at "
            "https://huggingface.co/settings/tokens, and set HF_TOKEN to it",
        ) from None
    except UsageError:
        raise
    except Exception as error:  # its own, of its HTTP library and of the system; they differ between versions
        raise _refused(source, first_line(error)) from None
    # The ETag of a large file is its sha256.
    return part, f"sha256:{about.etag}" if about.etag and re.fullmatch("[0-9a-f]{64}", about.etag) else None


# --- small things


def check_room(folder: Path, size: int, fix: str = ROOM) -> None:
    """Raise UsageError where `size` bytes more do not fit on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise UsageError(f"{folder}: {megabytes(size)} are needed, {megabytes(free)} are free", fix)


def _refused(source: Source, reason: str) -> VitmedError:
    return source.error(f"{source.url}: {reason}", "try the address in a browser; a newer vitmed may know a new one")


def digest_of(path: Path, kind: str = "sha256") -> str:
    """The hash of a file's content, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def megabytes(size: int) -> str:
    """Bytes in units of 10^6, for messages."""
    return f"{size / 1e6:,.0f} MB"
