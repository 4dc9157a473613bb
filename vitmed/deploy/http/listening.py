"""The `Door` of the server, which is socket, key and certificate; and the loop that runs until a signal comes."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Certificate:
    """For https: PEM files, the key perhaps in the file of the certificate."""

    cert: Path
    key: Path | None

    def check(self) -> None:
        """Raises UsageError if the files do not go together, or the certificate has expired."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.cert, self.key, password=lambda: "")  # asks nobody for one
            ends = ssl._ssl._test_decode_cert(str(self.cert))["notAfter"]  # type: ignore[attr-defined]
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise UsageError(
                f"{self.cert}: not a certificate with its key ({first_line(error)})",
                "name PEM files, the key without a password: --tls-cert chain.pem --tls-key key.pem",
            ) from None
        if ssl.cert_time_to_seconds(ends) < time.time():
            raise UsageError(f"{self.cert}: expired on {ends}", "renew it, and start the server again")


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
    found = socket.socket(family, kind, protocol)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
    except OSError as error:
        found.close()
        another = f"choose another: --port {port + 1 if 1023 < port < 65535 else 8001}"
        fix = "--host 127.0.0.1" if error.errno == errno.EADDRNOTAVAIL else another
        raise UsageError(f"{host}, port {port}: cannot be used ({error.strerror})", fix) from None
    bound = str(address[0])
    return found, bound == "::1" or bound.startswith("127.")


class Door(NamedTuple):
    """Where the server listens, and who may come in.

    Attributes:
        at: a bound socket; address: in words, for a browser.
        key: that requests must bring; None: none. hosts: names by which they may call the server; empty: any.
        certificate: for https.
    """

    at: socket.socket
    address: str
    key: str | None = None
    hosts: tuple[str, ...] = ()
    certificate: Certificate | None = None


@contextmanager
def open_door(
    host: str,
    port: int,
    key_file: str | Path | None,
    no_key: bool,
    tls_cert: str | Path | None,
    tls_key: str | Path | None,
) -> Iterator[Door]:
    """Open the door that the options of `vitmed serve` ask for. Raises UsageError for what cannot be opened, or should
    not be opened without a key; warns of what travels unencrypted."""
    if tls_key is not None and tls_cert is None:
        raise excluded("certificate")
    certificate = None if tls_cert is None else Certificate(Path(tls_cert), None if tls_key is None else Path(tls_key))
    if certificate is not None:
        certificate.check()
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
        if not local and certificate is None:
            warn("images and key travel unencrypted: --tls-cert, or a proxy in front that encrypts")
        name = f"[{host}]" if ":" in host else host
        address = f"{'http' if certificate is None else 'https'}://{name}:{at.getsockname()[1]}"
        yield Door(at, address, key, ("127.0.0.1", "localhost", "[::1]") if local and key is None else (), certificate)


class _Server(uvicorn.Server):
    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals to `serve`, whose exit code is 0."""
        return nullcontext()


def listen(
    service: Service, door: Door, asked: Callable[[], bool], began: Callable[[], None], log: Callable[[str], None]
) -> None:
    """Answer requests until `asked` is true; then finish those that have come.

    Args:
        began: called once, when requests are answered; log: gets a line for each request.
    """
    app, tls = create_app(service, key=door.key, hosts=door.hosts, log=log), door.certificate
    files: dict[str, Any] = {} if tls is None else {"ssl_certfile": tls.cert, "ssl_keyfile": tls.key}
    wait = math.ceil(2 * service.limits.timeout) + 1
    config = uvicorn.Config(app, **SETTINGS, timeout_graceful_shutdown=wait, **files)
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
    """Close connections of uvicorn that send no request for too long, or do not fetch its answer.

    Args:
        seen: what the call before returned; now, timeout: s.
    """
    found: Seen = {}
    for one in list(connections):
        idle = one.cycle is None or one.cycle.response_complete
        cycle, was_idle, since = seen.get(one, (one.cycle, idle, now))
        if (cycle, was_idle) != (one.cycle, idle):
            since = now
        if now - since > (timeout if idle else 3 * timeout):  # a request has one for its way and one for its answer
            one.transport.abort()
        else:
            found[one] = one.cycle, idle, since
    return found
