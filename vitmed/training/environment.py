"""What a run depends on: versions and machine, for environment.json, and its images, which must stay the same."""

import contextlib
import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from vitmed import __version__
from vitmed.core.config import Config, PretrainConfig
from vitmed.core.text import now
from vitmed.core.text_files import csv_text
from vitmed.data.samples import Splits
from vitmed.models.hardware import Precision, describe

PACKAGES = ("torch", "torchvision", "albumentations", "numpy", "pillow", "scikit-learn")


@cache
def versions() -> Mapping[str, str]:
    """The versions of the packages that decide the numbers."""
    return {"vitmed": __version__, **{package: version(package) for package in PACKAGES}}


def environment(
    config: Config | PretrainConfig, device: torch.device, precision: Precision, hashes: dict[str, list[str]]
) -> dict[str, Any]:
    """What a run depended on, without host name, user or absolute path."""
    program = Path(sys.argv[0]).name
    ours = program in ("vitmed", "__main__.py")  # the arguments of a notebook or a script are not recorded
    manifest = "\n".join(digest for name in sorted(hashes) for digest in hashes[name])
    return {
        "command": ["vitmed", *map(without_folders, sys.argv[1:])] if ours else None,
        "started": now(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
        "git": git_commit(),
        "device": describe(device),
        "precision": f"{precision.name}: {precision.reason}",
        "seed": config.train.seed,
        "data_sha256": hashlib.sha256(manifest.encode()).hexdigest(),
    }


def without_folders(argument: str) -> str:
    """`/home/anna/cells` -> `cells`, also after `--flag=`, if that file or folder exists."""
    behind_short_flag = [2] if re.match(r"-\w", argument) else []  # -o/home/anna/cells
    for start in (0, *behind_short_flag, *(sign.end() for sign in re.finditer("=", argument))):
        path = Path(argument[start:])
        if path.is_absolute() and os.path.exists(path):  # noqa: PTH110 - unlike Path.exists, False without access
            return argument[:start] + path.name
    return argument


def git_commit() -> str | None:
    """The commit of vitmed, if it runs from a git checkout."""
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip() or None
    return None


def splits_csv(splits: Splits, hashes: dict[str, list[str]]) -> str:
    """One row per image: path, sha256, class, group, split, and any other columns of a labels table."""
    rows = [
        [sample.path, digest, splits.text_of(sample), sample.group or "", name, *sample.columns]
        for name, samples in splits.samples.items()
        for sample, digest in zip(samples, hashes[name], strict=True)
    ]
    return csv_text([["path", "sha256", "class", "group", "split", *splits.columns], *rows])
