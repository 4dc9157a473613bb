"""A headless Chromium for the tests, driven by the DevTools protocol over two pipes: no package, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 20.0  # s that an answer may take
NAMES = (
    "chromium chromium-browser google-chrome google-chrome-stable chrome microsoft-edge microsoft-edge-stable msedge"
)
PROGRAM = next((path for name in NAMES.split() if (path := shutil.which(name)) is not None), None)


class Page:
    """One page: what it said on the console, what it asked for, and ways to look at it."""

    def __init__(self, out: int, into: int):
        self._out, self._into, self._left, self._number = out, into, b"", 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._left:
            if not select.select([self._into], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            more = os.read(self._into, 1 << 16)
            if not more:
                raise RuntimeError("the browser has ended")
            self._left += more
        message, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(message))

    def open(self, place: Path | str, width: int = 1280, scripts: bool = True) -> None:
        """Load a file or an address in a window of that width, CSS px, and wait until it stands."""
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.events.clear()
        self.ask("Page.navigate", url=place if isinstance(place, str) else place.resolve().as_uri())
        until = time.monotonic() + PATIENCE
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            if time.monotonic() > until:
                raise TimeoutError("the page does not load")
            self.events.append(self._next())

    def run(self, script: str) -> Any:
        """The value of an expression, by value."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        return found["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings on the console, and exceptions; also what the policy of the page refused."""
        told = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                told.append(params["entry"]["text"])
            elif event.get("method") == "Runtime.exceptionThrown":
                told.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
            elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                told.append(str(params["args"]))
        return told

    def requests(self) -> list[str]:
        """Addresses that the page asked for, but for the data: pictures inside it."""
        urls = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith("data:")]

    def choose(self, selector: str, *files: Path) -> None:
        """Choose files in an input of the page, as a user does."""
        root = self.ask("DOM.getDocument")["root"]["nodeId"]
        node = self.ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.ask("DOM.setFileInputFiles", nodeId=node, files=[str(file.resolve()) for file in files])

    def press(self, key: str, code: int) -> None:
        """A key, down and up, as from a keyboard."""
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, file: Path) -> None:
        """The whole page as PNG."""
        height = self.run("document.documentElement.scrollHeight")
        width = self.run("window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(program: str) -> Iterator[Page]:
    """A browser with a profile of its own, which ends with the block."""
    (theirs_in, out), (into, theirs_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, "--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-gpu"]
        command += ["--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars"]
        command += ["--disable-software-rasterizer", "--disable-extensions", "--disable-component-update"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium refuses to run as root with one
        # The browser reads commands from descriptor 3 and answers on 4; the shell puts the pipes there.
        joined = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        process = subprocess.Popen(
            ["bash", "-c", joined, "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Page(out, into)
        finally:
            os.close(out)  # the browser ends when nobody commands it
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(into)
