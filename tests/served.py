"""A server of `vitmed serve` in a thread of this process, on a free port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import vitmed
from vitmed.deploy.http.app import Door, Service, listen
from vitmed.deploy.http.limits import Limits
from vitmed.deploy.http.scores import ScoreLog


@dataclass
class Served:
    """A server that runs, and its log."""

    url: str
    port: int
    service: Service
    log: list[str] = field(default_factory=list)

    def client(self, **how: Any) -> httpx.Client:
        plain = {"trust_env": False, "verify": False}  # no proxy; and no certificates, which take 15 ms to read
        return httpx.Client(base_url=self.url, timeout=60, **plain, **how)

    def post(self, *images: Path | bytes, **how: Any) -> httpx.Response:
        """Send images: files under their names, bytes without one."""
        files = [("images", (one.name, one.read_bytes()) if isinstance(one, Path) else ("x", one)) for one in images]
        with self.client() as client:
            return client.post("/v1/predict", files=files, **how)

    def raw(self, content: bytes) -> socket.socket:
        """A connection on which something was sent."""
        found = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        found.sendall(content)
        return found


@contextmanager
def serving(
    model: Path, limits: Limits | None = None, key: str | None = None, hosts: tuple[str, ...] = (),
    change: Callable[[Service], None] = lambda service: None, scores: Path | None = None,
    batch: int | None = None,
) -> Iterator[Served]:  # fmt: skip
    """A server that ends with the block.

    Args:
        change: called before it starts.
    """
    log: list[str] = []
    loaded = vitmed.load(model, precision="auto" if model.suffix == ".onnx" else "fp32")
    known = None if scores is None else ScoreLog(scores, loaded, log.append)
    service = Service(loaded, limits or Limits(), known, batch)
    change(service)
    at = socket.socket()
    at.bind(("127.0.0.1", 0))
    port, began, ends = at.getsockname()[1], threading.Event(), threading.Event()
    served = Served(f"http://127.0.0.1:{port}", port, service, log)
    door = Door(at, served.url, key, hosts)
    thread = threading.Thread(target=listen, args=(service, door, ends.is_set, began.set, served.log.append))
    thread.start()
    try:
        assert began.wait(60)
        yield served
    finally:
        ends.set()
        thread.join(60)
        assert not thread.is_alive()
