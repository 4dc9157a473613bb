"""What every request passes: the key, the log line, errors as JSON, headers; what it may cost, and its images."""

import hmac
import math
import time
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from starlette.datastructures import Headers, MutableHeaders, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitmed.core.errors import UsageError
from vitmed.core.text import counted
from vitmed.deploy.http.scores import Counters

FIELD = "images"  # of the form
TOGETHER = 8  # largest requests that memory may hold at once
MEGABYTE = 1_000_000
AGAIN = {"Retry-After": "1"}
GONE = 400, "the sender has gone", "send it again"  # the sender no longer waits for an answer
BUG = 500, "this is a bug in vitmed", "please report it with the line that the server printed"


class Refusal(Exception):
    """A request that is not answered.

    Args:
        status: of HTTP.
        problem, fix: as in `VitmedError`.
        content: further keys of the answer.
        headers: of the answer.
    """

    def __init__(
        self, status: int, problem: str, fix: str, content: Mapping[str, Any] = {}, headers: Mapping[str, str] = {}
    ):
        super().__init__(problem)
        self.status, self.headers = status, dict(headers)
        self.content = {"problem": problem, "fix": fix, **content}


@dataclass(frozen=True)
class Limits:
    """What a request may cost."""

    megabytes: float = 32
    images: int = 16  # in a request
    timeout: float = 30  # s, for sending a request, and again for answering it
    queue: int = 256  # images that wait for an answer, of all requests

    @property
    def bytes(self) -> int:
        """The size of a request at most."""
        return int(self.megabytes * MEGABYTE)

    def __post_init__(self) -> None:
        """Raises UsageError for limits that let no request in."""
        finite = math.isfinite(self.megabytes) and math.isfinite(self.timeout)
        if not (finite and self.megabytes > 0 and self.timeout > 0 and 0 < self.images <= self.queue):
            raise UsageError(
                f"{self.megabytes:g} MB, {self.images} images, {self.timeout:g} s, a queue of {self.queue}: expected "
                "finite numbers above 0, and a queue that holds the images of one request",
                "--queue of --max-images or more; or leave --max-megabytes, --max-images, --timeout and --queue out",
            )


class Upload(NamedTuple):
    """A file of a request; its name is what the sender calls it."""

    name: str
    data: bytes


@dataclass
class Load:
    """What the server holds now."""

    limits: Limits
    images: int = 0  # that wait for an answer
    bytes: int = 0  # of requests in memory
    decoding: int = 0  # images of these that are not decoded yet
    stopping: bool = False  # the server answers what it has and takes nothing more

    @contextmanager
    def waiting(self, count: int) -> Iterator[None]:
        """Count images that wait. Raises Refusal 429 if the queue has no place for them."""
        if self.images + count > self.limits.queue:
            problem = f"{counted(self.images, 'image')} wait already, the most is {self.limits.queue}"
            raise Refusal(429, problem, "send it again in a second", headers=AGAIN)
        self.images += count
        try:
            yield
        finally:
            self.images -= count

    @contextmanager
    def held(self) -> Iterator[Callable[[int], None]]:
        """Give what adds bytes to those of a request, which count until the block ends.

        Adding raises Refusal: 413 the request has too many bytes, 429 all requests together have.
        """
        held = 0

        def add(count: int) -> None:
            nonlocal held
            held += count
            self.bytes += count
            if held > self.limits.bytes:
                raise too_many_bytes(self.limits)
            if self.bytes > TOGETHER * self.limits.bytes:
                raise Refusal(429, "memory is full of other requests", "send it again in a second", headers=AGAIN)

        try:
            yield add
        finally:
            self.bytes -= held

    def check_open(self) -> None:
        """Raises Refusal 503 once the server stops."""
        if self.stopping:
            raise Refusal(503, "the server is stopping", "send it again when it has started", headers=AGAIN)


class _InMemory(MultiPartParser):
    """Starlette's parser writes larger files to a disk; `serve` checks that this name is the one that it reads."""

    spool_max_size = 2**62


def too_many_bytes(limits: Limits) -> Refusal:
    fix = "send fewer images, or start the server with a larger --max-megabytes"
    return Refusal(413, f"the request has more than {limits.megabytes:g} MB", fix)


async def read_uploads(request: Request, limits: Limits, add: Callable[[int], None]) -> list[Upload]:
    """Read the files of a form into memory; `add` counts their bytes. Raises Refusal: 400 the sender has gone; 413 too
    many bytes or images; 415 another kind of request; 422 no image or not a form; 429 memory is full of other requests.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        fix = "send a form: curl -F images=@image.png ADDRESS/v1/predict"
        raise Refusal(415, "the request is not multipart/form-data", fix)
    stated = request.headers.get("content-length", "0")
    if not stated.isdecimal() or int(stated[:18]) > limits.bytes:
        raise too_many_bytes(limits)

    async def chunks() -> AsyncIterator[bytes]:
        async for chunk in request.stream():
            add(len(chunk))
            yield chunk

    parser = _InMemory(request.headers, chunks(), max_files=limits.images)  # type: ignore[arg-type]
    try:
        form = await parser.parse()
    except (MultiPartException, UnicodeError) as error:  # the second: of the character set that the sender states
        if str(error).startswith("Too many files"):
            fix = "send several requests, or start the server with a larger --max-images"
            raise Refusal(413, f"the request has more than {counted(limits.images, 'image')}", fix) from None
        raise Refusal(422, "the form is damaged, cut off, or has a text above 1 MB", "send files alone") from None
    except ClientDisconnect:
        raise Refusal(*GONE) from None
    uploads = []
    for key, value in form.multi_items():
        if key == FIELD and isinstance(value, UploadFile):
            name = (value.filename or "").encode(errors="replace").decode()  # such a set may name half characters
            uploads.append(Upload(name, value.file.read()))
    await form.close()
    if not uploads:
        raise Refusal(422, f"the form has no file in the field {FIELD!r}", f"curl -F {FIELD}=@image.png")
    return uploads


PREDICT, CARD, LIVE, READY = "/v1/predict", "/v1/model", "/health/live", "/health/ready"
METRICS, DOCS, SCHEMA, PAGE = "/metrics", "/docs", "/openapi.json", "/"
WITHOUT_KEY = (LIVE, READY, DOCS, SCHEMA, PAGE)  # they hold nothing of the model
ROUTES = (PREDICT, CARD, METRICS, *WITHOUT_KEY)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
OTHER = "other"  # in the log and in the numbers: what the sender wrote stays out of them
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


@dataclass(eq=False)
class Guard:
    """An application around another: it checks, counts and logs requests."""

    app: ASGIApp
    key: str | None  # that a request must bring; None: none
    # Names by which a request may call the server; none: any. A web page of another host could otherwise reach a server
    # on this machine (DNS rebinding), or send it images.
    hosts: Collection[str]
    counters: Counters
    log: Callable[[str], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive, watched)
        except Refusal as refusal:
            await refused(refusal)(scope, receive, watched)
        except Exception as error:
            frames: list[Any] = traceback.extract_tb(error.__traceback__)  # the message may hold a name of the sender
            place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            self.log(f"warning: {type(error).__name__}{place}")
            if not status:
                await refused(Refusal(*BUG))(scope, receive, watched)
        finally:
            seconds = time.perf_counter() - began
            method = scope["method"] if scope["method"] in METHODS else OTHER
            route = scope["path"] if scope["path"] in ROUTES else OTHER
            self.counters.requests.labels(method, route, str(status)).inc()
            self.counters.seconds.labels(route).observe(seconds)
            self.log(f"{method} {route} {status} {1000 * seconds:.0f} ms")

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        name, _, port = host.rpartition(":")
        if self.hosts and (name if port.isdecimal() else host) not in self.hosts:
            fix = f"call it {' or '.join(self.hosts)}, or start the server with --api-key-file"
            raise Refusal(400, "the request calls the server by another name", fix)
        if self.hosts and headers.get("origin", host).rpartition("//")[2] != host:
            fix = "open the page of this server, or start the server with --api-key-file"
            raise Refusal(400, "the request comes from a web page of another server", fix)
        if self.key is None or scope["path"] in WITHOUT_KEY:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("latin-1"), self.key.encode())
        if scheme.lower() != "bearer" or not same:
            fix = "send the header Authorization: Bearer KEY"
            raise Refusal(401, "the key is missing or wrong", fix, headers={"WWW-Authenticate": "Bearer"})


def refused(refusal: Refusal) -> JSONResponse:
    return JSONResponse(refusal.content, refusal.status, refusal.headers)
