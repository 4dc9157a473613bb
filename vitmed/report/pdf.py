"""report.pdf: the page as a browser prints it, since no library of vitmed lays out HTML."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from vitmed.core.errors import UsageError
from vitmed.core.evaluate_config import EvaluateConfig
from vitmed.core.files import write_bytes

BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
    *("microsoft-edge", "microsoft-edge-stable", "msedge"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
PATIENCE = 120  # s


def find_browser() -> str | None:
    """The path of Chromium, Chrome or Edge; None if there is none."""
    return next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)


def check_formats(config: EvaluateConfig) -> None:
    """Raise UsageError, before any work, if this machine cannot write a format."""
    if "pdf" in config.format.split(",") and find_browser() is None:
        raise UsageError(
            "--format pdf: neither Chromium nor Chrome nor Edge is found",
            "install one, or leave out pdf and print report.html from any browser",
        )


def print_pdf(page: Path, pdf: Path) -> None:
    """Print an HTML file, without a window or a connection. Raises UsageError if that fails."""
    program = find_browser()
    if program is None:
        raise _failed(pdf, "found no browser to print it with")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Path(folder, "report.pdf")
        command = [program, "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        command += ["--disable-dev-shm-usage", "--no-pdf-header-footer", f"--user-data-dir={folder}/profile"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium refuses to run as root with one
        command += [f"--print-to-pdf={made}", page.resolve().as_uri()]
        try:
            subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _failed(pdf, f"{Path(program).name} fails ({error})") from None
        if not made.is_file() or not made.read_bytes().startswith(b"%PDF"):
            raise _failed(pdf, f"{Path(program).name} printed nothing")
        write_bytes(pdf, made.read_bytes())


def _failed(pdf: Path, problem: str) -> UsageError:
    return UsageError(f"{pdf}: {problem}", "print report.html from any browser")
