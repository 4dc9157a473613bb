"""Download public files (weights and data): resumed after an interruption, checked, and complete or absent.

An incomplete file is called `<file>.part`; it gets its name once its hash is correct. It is continued where a hash is
published, which shows whether both parts are of one version; otherwise the download begins anew. `<file>.sha256` holds
the hash in the format of `sha256sum`, so a copy of both can be checked anywhere. Offline, nothing here opens a
connection, and the error for a missing file says where to get it and where to put it.
"""

import contextlib
import hashlib
import http.client
import os
import re
import shutil
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from vitmed.core.errors import UsageError, VitmedError
from vitmed.core.files import locked, write_text
from vitmed.core.messages import Advance, bar, show, warn
from vitmed.core.text import first_line

TIMEOUT = 30.0  # seconds without data after which a connection counts as broken
TRIES = 5  # tries in a row without new data, after which vitmed gives up
PAUSE = 1.0  # seconds before the second try; doubles before each further try
ANSWER = 3.0  # seconds within which a host must answer if nobody asked for the file
NO = "; nothing of yours is sent. To start from random weights instead: --weights none"
BLOCK = 1 << 18  # bytes
OFFLINE = ("VITMED_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
ROOM = "free some space, or name another disk: VITMED_CACHE=FOLDER"
_OFFLINE: ContextVar[bool] = ContextVar("offline", default=False)


@contextlib.contextmanager
def unconnected(offline: bool) -> Iterator[None]:
    """Forbid connections during the block, if `offline`."""
    token = _OFFLINE.set(offline or _OFFLINE.get())
    try:
        yield
    finally:
        _OFFLINE.reset(token)


def is_offline(names: Sequence[str] = OFFLINE) -> bool:
    """Whether a block of `unconnected` or one of these variables, by any but a word for no, forbids connections."""
    values = (os.environ.get(name, "").strip().lower() for name in names)
    return _OFFLINE.get() or any(value not in ("", "0", "false", "no", "off") for value in values)


def hub_address() -> str:
    """The Hugging Face hub, or the mirror of it that `huggingface_hub` asks."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


class Source(NamedTuple):
    """A public file, and how messages describe it."""

    name: str
    url: str
    size: int | None  # bytes, to within 10 %; None if the publisher does not state it
    checksum: str | None  # "sha256:..." (whole or its first digits) or "md5:..."; None if none is published
    licence: str
    again: str  # the command that fetches the file
    error: type[VitmedError]  # for one that cannot be fetched or is wrong
    hub: str = ""  # repository on the Hugging Face hub that holds it; "" for a plain address
    gated: bool = False  # whether the hub asks for the licence to be accepted

    @property
    def file(self) -> str:
        return urlsplit(self.url).path.rpartition("/")[2]

    @property
    def first(self) -> str:
        """What to do before the download of a gated file: the page to visit."""
        return f"accept the licence at {hub_address()}/{self.hub}, then " if self.gated else ""

    def check_size(self, size: int, what: str, fix: str) -> None:
        """Raise `error` if the number of bytes is wrong for this file, as for a login page."""
        if self.size is not None and not 0.9 * self.size <= size <= 1.1 * self.size:
            raise self.error(f"{what}: {size:,} bytes, expected about {self.size:,}", fix)

    def check(self, path: Path, what: str, fix: str, *digests: str | None) -> None:
        """Raise `error` if the size of a file or one of its digests ("sha256:...", "md5:...") is wrong."""
        self.check_size(path.stat().st_size, what, fix)
        for kind, _, expected in (digest.partition(":") for digest in (self.checksum, *digests) if digest):
            if not (found := digest_of(path, kind)).startswith(expected):
                raise self.error(f"{what}: its {kind} is {found}, expected {expected}", fix)


def fetch_file(source: Source, path: Path, non_commercial: bool = False, unasked: bool = False) -> Path:
    """The checked file of a source at `path`, downloaded if it is missing.

    Args:
        unasked: nobody named the file: say how to say no, and do not wait for a silent host.

    Raises:
        source.error: it cannot be fetched, or has the wrong size or hash. An existing file is not changed.
        UsageError: no disk space, no permission to write, or a package is missing.
    """
    if not path.is_file():
        if is_offline():
            size = megabytes(source.size) if source.size else "size unknown"
            about = f"{size}, {(source.checksum or 'sha256 unknown').replace(':', ' ')}, licence {source.licence}"
            elsewhere = f"{source.first}download {source.url} elsewhere ({about}) and put it at {path}"
            fix = f"with a network: {source.again}. For a machine without one, {elsewhere}"
            raise source.error(f"{source.name} is not on this machine: {path} is missing", fix)
        unchecked = "; only its size can be checked, to 10 %" if source.size else "; nothing of it can be checked"
        mark = unchecked * (not source.checksum and not source.hub) + NO * unasked
        size = megabytes(source.size) if source.size else "a file"
        show(f"fetching {source.name}: {size} from {source.url}, licence {source.licence}{mark}")
        if non_commercial:
            warn(f"the licence of {source.name}, {source.licence}, forbids commercial use: read it first")
        if unasked:
            _check_answer(source)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            waiting = f"another process is fetching {source.name}: waiting for it"
            with locked(path.with_name(f"{path.name}.lock"), lambda: show(waiting)):
                if not path.is_file():  # unless another process has just fetched it
                    _download(source, path)
                    return path
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror or error})", ROOM) from None
    note = path.with_name(f"{path.name}.sha256")
    noted = note.read_text(encoding="utf-8", errors="replace").split()[:1] if note.is_file() else []
    source.check(path, str(path), f"remove it, then: {source.again}", *(f"sha256:{digest}" for digest in noted))
    return path


def _download(source: Source, path: Path) -> None:
    """Fetch the file, check it, write its hash and give it its name; remove it if it is wrong."""
    part, digest = path.with_name(f"{path.name}.part"), None
    continued = not source.hub and part.is_file()
    if source.hub:
        part, digest = _from_hub(source, path)
    else:
        _from_address(source, path, part)
    fix = f"it was removed; try again: {source.again}. If that fails, it was cut or changed on its way: do not use it"
    try:
        source.check(part, f"{path.name} from {source.url}", fix, digest)
    except VitmedError:
        part.unlink()
        if continued:  # it was begun from another version of the file
            return _download(source, path)
        raise
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    write_text(path.with_name(f"{path.name}.sha256"), f"{digest_of(part)}  {path.name}\n")
    part.replace(path)
    shutil.rmtree(path.parent / "hub", ignore_errors=True)


# --- plain addresses


class _Cut(Exception):
    """The connection ended early; another try may help."""


def _from_address(source: Source, path: Path, part: Path) -> None:
    """Complete `part` from a plain address, in as many tries as necessary."""
    with bar(f"fetching {source.name}", unit="bytes") as advance:
        best, failures = 0, 0
        while True:
            try:
                return _stream(source, part, advance)
            except _Cut as cut:
                have = part.stat().st_size if source.checksum and part.is_file() else 0  # that the next try keeps
                failures, best = 1 if have > best else failures + 1, max(best, have)
                if failures >= TRIES:
                    problem = f"{source.url}: {cut}; {failures} tries without new data, {have / 1e6:,.1f} MB are here"
                    goes_on = "continues from there" if source.checksum else "begins anew"
                    elsewhere = f"Without a network, download it elsewhere and put it at {path}"
                    raise source.error(problem, f"{source.again} {goes_on}. {elsewhere}") from None
                pause = PAUSE * 2 ** (failures - 1)
                show(f"{cut}; trying again in {pause:.0f} s, from {have / 1e6:,.1f} MB")
                time.sleep(pause)


def _stream(source: Source, part: Path, advance: Advance) -> None:
    """Fetch the rest of the file that `part` begins; all of it if no hash is published or the server continues none.
    Raises _Cut: fewer bytes came than were announced, or the server has a temporary fault. source.error: the server
    refuses, or offers another file. UsageError: no disk space."""
    have = part.stat().st_size if source.checksum and part.is_file() else 0
    with _open(source, have) as response:
        if response.status == 416 and response.headers.get("Content-Range") == f"bytes */{have}":
            return  # nothing is missing
        resumed = response.status == 206
        begins = re.match(rf"bytes {have}-\d+/", response.headers.get("Content-Range", ""))
        if response.status == 416 or (resumed and not begins):
            part.unlink(missing_ok=True)  # a server may send a part that nobody asked for
            raise _Cut("the server did not continue the download")
        have = have if resumed else 0
        length = response.headers.get("Content-Length") or ""
        total = have + int(length) if length.isdigit() else None
        if total is not None:
            fix = "check for a proxy or a login page: open the address in a browser"
            source.check_size(total, f"{source.url}: the server offers", fix)
        check_room(part.parent, (total or source.size or have) - have)
        with part.open("ab" if resumed else "wb") as stream:
            while True:
                try:
                    block = response.read1(BLOCK)
                except TimeoutError:
                    raise _Cut(f"no data for {TIMEOUT:g} s") from None
                except (OSError, http.client.HTTPException) as error:  # of the connection; that of the disk is below
                    raise _Cut(f"the connection broke ({first_line(error)})") from None
                if not block:
                    break
                stream.write(block)
                have += len(block)
                size = total or source.size or have
                advance(have, size, f"{have / 1e6:,.0f} of {megabytes(size)}")
    if total is not None and have < total:
        raise _Cut(f"the connection ended after {have:,} of {total:,} bytes")


def _check_answer(source: Source) -> None:
    """Raise `error` unless the host answers within `ANSWER` seconds. A thread asks, as a name server may be silent."""
    problems = [f"{urlsplit(source.url).hostname} does not answer within {ANSWER:g} s"]

    def ask() -> None:
        try:
            with contextlib.suppress(VitmedError):  # also an answer; the download says more of it
                _open(source, method="HEAD").close()
            problems.clear()
        except _Cut as cut:
            problems[:] = [str(cut)]

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER)
    if problems:
        raise source.error(f"{source.url}: {problems[0]}", f"later, or with a better connection: {source.again}")


def _open(source: Source, have: int = 0, method: str = "GET") -> Any:
    """The response, from byte `have`: 200, 206 or 416. Raises _Cut for a passing fault, source.error for a refusal."""

    class OnlyHttps(urllib.request.BaseHandler):  # asked of every address, also of those that a server redirects to
        def default_open(self, request: urllib.request.Request) -> None:
            url, scheme = request.full_url, request.type
            here = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
            if scheme != "https" and not (scheme == "http" and here):
                raise source.error(f"{url}: not https, so the file could be changed on its way", "use https")

    host = urlsplit(source.url).hostname
    headers = {"User-Agent": "vitmed", "Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        request = urllib.request.Request(source.url, headers=headers, method=method)
        return urllib.request.build_opener(OnlyHttps).open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return error  # also a response
        error.close()
        reason = f"the server answers {error.code} {error.reason}"
        if error.code in (408, 429) or error.code >= 500:
            raise _Cut(reason) from None
        fix = "try it in a browser; a newer vitmed may have a new address"
        raise source.error(f"{source.url}: {reason}", fix) from None
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        cause = getattr(error, "reason", error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = f"the certificate of {host} is not trusted ({cause.verify_message})"
            fix = "if your institution inspects connections, name its certificate: SSL_CERT_FILE=ca.pem"
            raise source.error(f"{source.url}: {reason}", fix) from None
        raise _Cut(f"{host} cannot be reached ({first_line(cause)})") from None


# --- the Hugging Face hub


def _from_hub(source: Source, path: Path) -> tuple[Path, str | None]:
    """The file that huggingface_hub downloads, and its sha256 as the hub states it."""
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import GatedRepoError
    except ImportError:
        fix = f"pip install 'vitmed[hub]'; or {source.first}download {source.url} yourself and put it at {path}"
        raise UsageError(f"{source.name} is on the Hugging Face hub, which needs one more package", fix) from None
    try:
        about = hub.get_hf_file_metadata(hub.hf_hub_url(source.hub, source.file), timeout=TIMEOUT)
        check_room(path.parent, about.size or 0)
        folder = path.parent / "hub"
        part = Path(hub.hf_hub_download(source.hub, source.file, revision=about.commit_hash, local_dir=folder))
    except GatedRepoError:
        problem = f"{source.name}: you must accept the licence of {source.hub} ({source.licence}) on the "
        fix = f"accept it at {hub_address()}/{source.hub}, then download {source.url} and put it at {path}; "
        fix += f"or make a token at {hub_address()}/settings/tokens, and set HF_TOKEN to it"
        raise source.error(problem + "Hugging Face hub", fix) from None
    except UsageError:
        raise
    except Exception as error:  # of the hub, its HTTP library or the system; they differ between versions
        fix = f"{source.first}download it in a browser and put it at {path}; a newer vitmed may have a new address"
        raise source.error(f"{source.url}: {first_line(error)}", fix) from None
    # The ETag of a large file is its sha256.
    return part, f"sha256:{about.etag}" if about.etag and re.fullmatch("[0-9a-f]{64}", about.etag) else None


def check_room(folder: Path, size: int, fix: str = ROOM) -> None:
    """Raise UsageError if `size` more bytes do not fit on the disk of `folder`."""
    if (free := shutil.disk_usage(folder).free) < size:
        raise UsageError(f"{folder}: {megabytes(size)} are needed, {megabytes(free)} are free", fix)


def digest_of(path: Path, kind: str = "sha256") -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def megabytes(size: int) -> str:
    """Bytes in units of 10^6, for messages."""
    return f"{size / 1e6:,.0f} MB"
