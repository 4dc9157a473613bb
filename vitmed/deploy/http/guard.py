"""What every request passes: the key, the log line, errors as JSON, headers."""

from __future__ import annotations

import hmac
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitmed.deploy.http.limits import Refusal
from vitmed.deploy.http.scores import Counters

PREDICT, CARD, LIVE, READY = "/v1/predict", "/v1/model", "/health/live", "/health/ready"
METRICS, DOCS, SCHEMA, PAGE = "/metrics", "/docs", "/openapi.json", "/"
WITHOUT_KEY = (LIVE, READY, DOCS, SCHEMA, PAGE)  # they hold nothing of the model
ROUTES = (PREDICT, CARD, METRICS, *WITHOUT_KEY)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
OTHER = "other"  # in the log and in the numbers: what the sender wrote stays out of them
Log = Callable[[str], None]
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class Guard:
    """An application around another.

    Args:
        key: that a request must bring; None: none.
        hosts: names by which a request may call the server; none: any. A web page of another host could otherwise reach
            a server on this machine (DNS rebinding), or send it images.
        counters: counts requests; log: gets a line for each.
    """

    def __init__(self, app: ASGIApp, key: str | None, hosts: Collection[str], counters: Counters, log: Log):
        self.app, self.key, self.hosts, self.counters, self.log = app, key, hosts, counters, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
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
            self.log(f"warning: {place_of(error)}")
            if not status:
                await refused(of_bug())(scope, receive, watched)
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
    """The answer to a request that is refused."""
    return JSONResponse(refusal.content, refusal.status, refusal.headers)


def of_bug() -> Refusal:
    """An error that nobody foresaw."""
    return Refusal(500, "this is a bug in vitmed", "please report it with the line that the server printed")


def place_of(error: BaseException) -> str:
    """The class of an error and where it was raised; its message may hold a file name of the sender."""
    frames: list[Any] = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
