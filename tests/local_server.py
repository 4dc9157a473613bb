"""A web server on this machine, for tests of downloads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[int]:
    """The port of a server that answers each GET, HEAD, POST and PUT by a function of the request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def do_HEAD(self) -> None:
            answer(self)

        def do_POST(self) -> None:
            answer(self)

        def do_PUT(self) -> None:
            answer(self)

        def log_message(self, *args: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield web.server_address[1]
    web.shutdown()
    web.server_close()
