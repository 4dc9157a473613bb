"""What a request may cost, and its images, read into memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from vitmed.core.text import counted

FIELD = "images"  # of the form
TOGETHER = 8  # largest requests that memory may hold at once
MEGABYTE = 1_000_000
AGAIN = {"Retry-After": "1"}


class Refusal(Exception):
    """A request that is not answered.

    Args:
        status: of HTTP; problem, fix: as in `VitmedError`; content: further keys of the answer; headers: of it.
    """

    def __init__(
        self, status: int, problem: str, fix: str, content: Mapping[str, Any] = {}, headers: Mapping[str, str] = {}
    ):
        super().__init__(problem)
        self.status, self.headers = status, dict(headers)
        self.content = {"problem": problem, "fix": fix, **content}


@dataclass(frozen=True)
class Limits:
    """What a request may cost.

    Attributes:
        megabytes: of a request; images: in a request.
        timeout: s, for sending a request, and again for answering it.
        queue: images that wait for an answer, of all requests.
    """

    megabytes: float = 32
    images: int = 16
    timeout: float = 30
    queue: int = 256

    @property
    def bytes(self) -> int:
        """Of a request."""
        return int(self.megabytes * MEGABYTE)


class Upload(NamedTuple):
    """A file of a request; its name is what the sender calls it."""

    name: str
    data: bytes


@dataclass
class Load:
    """What the server holds now.

    Attributes:
        images: that wait for an answer; bytes: of requests in memory.
        decoding: images of these that are not decoded yet.
        stopping: the server answers what it has and takes nothing more.
    """

    limits: Limits
    images: int = 0
    bytes: int = 0
    decoding: int = 0
    stopping: bool = False

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
    """The answer to a request of too many bytes."""
    fix = "send fewer images, or start the server with a larger --max-megabytes"
    return Refusal(413, f"the request has more than {limits.megabytes:g} MB", fix)


def gone() -> Refusal:
    """The answer to a sender that no longer waits for one."""
    return Refusal(400, "the sender has gone", "send it again")


async def read_uploads(request: Request, limits: Limits, add: Callable[[int], None]) -> list[Upload]:
    """The files of a form, in memory.

    Args:
        add: counts their bytes.

    Raises:
        Refusal: 413 too many bytes or images, 415 another kind of request, 422 no image or not a form, 429 memory is
            full of other requests, 400 the sender has gone.
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

    parser = _InMemory(request.headers, chunks(), max_files=limits.images, max_fields=limits.images)  # type: ignore[arg-type]
    try:
        form = await parser.parse()
    except (MultiPartException, UnicodeError) as error:  # the second: of the character set that the sender states
        if str(error).startswith("Too many files"):
            fix = "send several requests, or start the server with a larger --max-images"
            raise Refusal(413, f"the request has more than {counted(limits.images, 'image')}", fix) from None
        raise Refusal(422, "the form is damaged or cut off", "send it again as multipart/form-data") from None
    except ClientDisconnect:
        raise gone() from None
    uploads = []
    for key, value in form.multi_items():
        if key == FIELD and isinstance(value, UploadFile):
            name = (value.filename or "").encode(errors="replace").decode()  # such a set may name half characters
            uploads.append(Upload(name, value.file.read()))
    await form.close()
    if not uploads:
        raise Refusal(422, f"the form has no file in the field {FIELD!r}", f"curl -F {FIELD}=@image.png")
    return uploads
