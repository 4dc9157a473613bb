"""`environment.json`: what a run depended on, without host name, user or absolute path."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from vitmed.checkpoint import relative
from vitmed.config import Config
from vitmed.world import Precision, describe

PACKAGES = ("vitmed", "torch", "torchvision", "albumentations", "numpy", "pillow", "scikit-learn")


def environment(
    config: Config, device: torch.device, precision: Precision, hashes: dict[str, list[str]]
) -> dict[str, Any]:
    """What a run depended on, without host name, user or absolute path."""
    command = [Path(sys.argv[0]).name, *(without_absolute_path(part) for part in sys.argv[1:])]
    manifest = "\n".join(digest for name in sorted(hashes) for digest in hashes[name])
    return {
        "command": command,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {package: version(package) for package in PACKAGES},
        "git": git_commit(),
        "device": describe(device),
        "precision": f"{precision.name}: {precision.reason}",
        "seed": config.train.seed,
        "data_sha256": hashlib.sha256(manifest.encode()).hexdigest(),
    }


def without_absolute_path(argument: str) -> str:
    """`/a/b` and `--flag=/a/b` with the path relative to the working folder."""
    flag, equals, value = argument.rpartition("=")
    return f"{flag}{equals}{relative(value, Path.cwd())}" if os.path.isabs(value) else argument  # noqa: PTH117


def git_commit() -> str | None:
    """The commit of vitmed's own checkout, where it runs from one."""
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip() or None
    return None
