"""The `Door` of the server, which is socket and key; and the loop that runs until a signal comes."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from vitmed.core.errors import UsageError, excluded
from vitmed.core.messages import warn
from vitmed.core.text import first_line
from vitmed.deploy.http.app import Service, create_app

KEY = "VITMED_API_KEY"  # the environment variable
SHORTEST = 16  # characters of a key
TICK = 0.1  # s between two looks at signals and connections
SETTINGS: dict[str, Any] = {
    "http": "h11",
    "ws": "none",
    "loop": "asyncio",
    "lifespan": "off",
    "log_config": None,
    "log_level": "critical",
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
}
NEW_KEY = "openssl rand -hex 32 > key.txt"


def read_key(file: Path | None) -> str | None:
    """The key that requests must bring: the content of a file, else of the environment. Raises UsageError."""
    source = KEY if file is None else str(file)
    try:
        key = os.environ.get(KEY) if file is None else file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read as a key ({first_line(error)})", NEW_KEY) from None
    if key is not None and (len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key):
        raise UsageError(f"{source}: expected a key of at least {SHORTEST} letters and digits in one line", NEW_KEY)
    return key


def open_socket(host: str, port: int) -> tuple[socket.socket, bool]:
    """A bound socket, and whether only this machine can reach it. Raises UsageError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UsageError(f"--host {host}: no such address", "--host 127.0.0.1, or --host 0.0.0.0 for all") from None
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(address)
    except OSError as error:
        opened.close()
        another = f"choose another: --port {port + 1 if 1023 < port < 65535 else 8001}"
        fix = "--host 127.0.0.1" if error.errno == errno.EADDRNOTAVAIL else another
        raise UsageError(f"{host}, port {port}: cannot be used ({error.strerror})", fix) from None
    bound = str(address[0])
    return opened, bound == "::1" or bound.startswith("127.")


class Door(NamedTuple):
    """Where the server listens, and who may come in.

    Attributes:
        at: a bound socket; address: in words, for a browser.
        key: that requests must bring; None: none. hosts: names by which they may call the server; empty: any.
    """

    at: socket.socket
    address: str
    key: str | None = None
    hosts: tuple[str, ...] = ()


@contextmanager
def open_door(host: str, port: int, key_file: str | Path | None, no_key: bool) -> Iterator[Door]:
    """Open the door that the options of `vitmed serve` ask for. Raises UsageError for what cannot be opened, or should
    not be opened without a key; warns of what travels unencrypted."""
    key = read_key(None if key_file is None else Path(key_file))
    if key is not None and no_key:
        raise excluded("key")
    at, local = open_socket(host, port)
    with at:
        if not local and key is None and not no_key:
            raise UsageError(
                f"--host {host} lets other machines in, and there is no key",
                "--api-key-file FILE, or --no-key where a proxy asks for one",
            )
        if not local:
            warn("images and key travel unencrypted: let a proxy in front encrypt them (docs/serving.md)")
        name = f"[{host}]" if ":" in host else host
        hosts = ("127.0.0.1", "localhost", "[::1]") if local and key is None else ()
        yield Door(at, f"http://{name}:{at.getsockname()[1]}", key, hosts)


class _Server(uvicorn.Server):
    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals to `serve`, whose exit code is 0."""
        return nullcontext()


def listen(
    service: Service, door: Door, asked: Callable[[], bool], began: Callable[[], None], log: Callable[[str], None]
) -> None:
    """Answer requests until `asked` is true; then finish those that have come. `began` is called once, when requests
    are answered; `log` gets a line for each."""
    app = create_app(service, key=door.key, hosts=door.hosts, log=log)
    wait = math.ceil(2 * service.limits.timeout) + 1
    config = uvicorn.Config(app, **SETTINGS, timeout_graceful_shutdown=wait)
    asyncio.run(_run(_Server(config), service, door.at, asked, began))


async def _run(
    server: uvicorn.Server, service: Service, at: socket.socket, asked: Callable[[], bool], began: Callable[[], None]
) -> None:
    seen: Seen = {}
    try:
        await service.start()
        running = asyncio.create_task(server.serve(sockets=[at]))
        said = False
        while not running.done():
            await asyncio.wait({running}, timeout=TICK)
            if server.started and not said:
                said = True
                began()
            if asked():
                service.load.stopping = server.should_exit = True
            seen = close_stale(server.server_state.connections, seen, time.monotonic(), service.limits.timeout)
        await running
    finally:
        await asyncio.to_thread(service.stop)


Seen = dict[Any, tuple[object, bool, float]]  # connection -> its request, whether that is answered, since when


def close_stale(connections: Iterable[Any], seen: Seen, now: float, timeout: float) -> Seen:
    """Close connections of uvicorn that send no request for too long, or do not fetch its answer. `seen` is what the
    call before returned; `now` and `timeout` in s."""
    left: Seen = {}
    for connection in list(connections):
        idle = connection.cycle is None or connection.cycle.response_complete
        cycle, was_idle, since = seen.get(connection, (connection.cycle, idle, now))
        if (cycle, was_idle) != (connection.cycle, idle):
            since = now
        if now - since > (timeout if idle else 3 * timeout):  # a request has one for its way and one for its answer
            connection.transport.abort()
        else:
            left[connection] = connection.cycle, idle, since
    return left
