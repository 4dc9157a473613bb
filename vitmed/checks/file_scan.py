"""Every file decoded once, in threads: what it is, what it looks like, and what is wrong with it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from vitmed.checks.folder_contents import File
from vitmed.checks.personal_data import personal_fields
from vitmed.checks.scan_cache import SIDE, Index, Record
from vitmed.core.errors import VitmedError
from vitmed.core.process import cores
from vitmed.core.ui import Ui
from vitmed.imaging import npz
from vitmed.imaging.colours import to_mode
from vitmed.imaging.decode import decode, in_window, inspect
from vitmed.imaging.decoded import Deep

CUT = ("truncated", "cannot be decoded", "broken data stream")  # the head says that it is an image, the rest fails
BATCH = 2048  # files between two writes of the index: what a killed run loses


def file_of(root: Path, path: str) -> File:
    """Size and time of change as they are now; size -1 where there is no such file."""
    try:
        facts = os.stat(npz.file_of(root / path) or root / path)  # noqa: PTH116  (a million of them)
        return File(path, facts.st_size, facts.st_mtime_ns)
    except OSError:
        return File(path, -1, 0)


def inspect_files(root: Path, files: Sequence[File], index: Index, ui: Ui, title: str = "checking") -> list[Record]:
    """The record of every file, in their order; from the index where the file has not changed."""
    known = index.find(root, files)
    new = [file for file in files if file.path not in known]
    started = time.monotonic()
    with ui.bar(title) as advance, ThreadPoolExecutor(cores()) as pool:
        for start in range(0, len(new), BATCH):
            part = new[start : start + BATCH]
            found: dict[File, Record] = {}
            for record in pool.map(lambda file: look_at(root / file.path, index.frame), part, chunksize=64):
                found[part[len(found)]] = record
                if len(found) % 64 == 0 or len(found) == len(part):
                    advance(len(known) + len(found), len(files))
            index.keep(root, found)
            known |= {file.path: record for file, record in found.items()}
    if new:
        rate = len(new) / max(1e-9, time.monotonic() - started)
        ui.say(
            f"{title}: {len(new):,} files decoded, {rate:,.0f} images/s; {len(files) - len(new):,} known from before"
        )
    return [known[file.path] for file in files]


def look_at(path: Path, frame: int | None = None) -> Record:
    """Decode one file, of several frames that one."""
    try:
        data = npz.content(path)
    except OSError as error:
        what = "a broken link" if path.is_symlink() and not path.exists() else error.strerror or str(error)
        return Record(kind="unreadable", problem=what, fix="restore or remove it")
    digest = hashlib.sha256(data).hexdigest()
    if not data:
        return Record(
            0, digest, kind="empty_file", problem="the file is empty (0 bytes)", fix="copy it again, or remove it"
        )
    personal = personal_fields(path, data)
    facts = None
    try:
        facts = inspect(path)
        image = _picture(path, frame)
    except VitmedError as error:
        problem = error.problem.removeprefix(f"{path}: ").replace(str(path), path.name)
        kind = "unreadable"
        if facts is not None and facts.frames > 1:
            kind = "multi_frame"
        elif any(sign in problem for sign in CUT):
            kind = "truncated"
        return Record(len(data), digest, facts, personal=personal, kind=kind, problem=problem, fix=error.fix)
    small = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=4))  # (32, 32, 3)
    edge = np.concatenate([small[0], small[-1], small[1:-1, 0], small[1:-1, -1]])
    extrema = np.array(image.getextrema())
    numbers = np.array([*small.mean(axis=(0, 1)), *edge.mean(axis=0), extrema[:, 0].min(), extrema[:, 1].max()], "<f4")
    constant = bool((extrema[:, 0] == extrema[:, 1]).all())
    if constant:  # of one colour, so of no range in any channel: low and high of different channels would hide it
        numbers[6:] = numbers[0]
    grey = np.asarray(Image.fromarray(small).convert("L"))
    return Record(len(data), digest, facts, numbers, grey, personal)


def _picture(path: Path, frame: int | None) -> Image.Image:
    """What is looked at: RGB, 8 bits. Deep values are stretched image by image: no window is known yet."""
    found = decode(path, frame)
    if isinstance(found, Deep):
        shown = found.values if found.valid is None or not found.valid.any() else found.values[found.valid]
        low, high = (float(value) for value in np.percentile(shown, (0.5, 99.5)))
        found = in_window(path, found, (low, high))
    return to_mode(found, 3)
