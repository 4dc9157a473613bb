"""WebDataset tars, once unpacked, as class folders.

An image is a member with a suffix that vitmed reads. Its class, if it has one, is the text of the member with the same
key and the suffix .cls, or the entry "label", "class" or "cls" of the .json: `000123.png`, `000123.cls`.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from vitmed.core.errors import DataError
from vitmed.core.text import counted
from vitmed.data.folders import image_names
from vitmed.data.public_files import check_class_names
from vitmed.data.split_names import split_of

TEXT = 1 << 20  # bytes of a .cls or .json, at most
ENTRIES = ("label", "class", "cls")  # of a .json


def tars_of(source: Path) -> dict[str, Path]:
    """The name of each tar at a path or below it, such as "train/cells-000.tar" -> its file."""
    if source.is_dir():
        files = sorted(file for file in source.rglob("*") if file.suffix.lower() == ".tar" and file.is_file())
        return {file.relative_to(source).as_posix(): file for file in files}
    return {source.name: source} if source.suffix.lower() == ".tar" else {}


def write_class_folders(unpacked: Path, folder: Path, source: Path) -> bool:
    """Move the images of unpacked tars to `folder/[split/]<class>/<tar>/<name>`; without any class to `folder/<tar>/`.

    The split is that of the folder which holds the tar. Returns whether there are classes.

    Raises:
        DataError: no image, an image without a class beside others, or a class that cannot name a folder.
    """
    names = image_names(unpacked)
    labels = [_label(unpacked / name) for name in names]
    missing = labels.count(None)
    if not names or 0 < missing < len(names):
        found = f"{missing:,} of {counted(len(names), 'image')} have no class" if names else "holds no image"
        first = f", the first is {names[labels.index(None)]}" if names else ""
        raise DataError(f"{source}: {found}{first}", "add a member KEY.cls with the class, or remove all of them")
    check_class_names(source, {label for label in labels if label is not None})
    for name, label in zip(names, labels, strict=True):
        top, _, rest = name.partition("/")
        split = split_of(top) if label is not None else None
        below = rest if split is not None else name
        target = folder / (split or "") / (label or "") / below
        target.parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).rename(target)
    return not missing


def _label(image: Path) -> str | None:
    """The class of an image; None where it has none."""
    key = image.with_name(image.name.split(".")[0])
    with contextlib.suppress(OSError, UnicodeDecodeError, ValueError, RecursionError):
        text, entries = key.with_name(f"{key.name}.cls"), key.with_name(f"{key.name}.json")
        if text.is_file() and text.stat().st_size <= TEXT:
            return text.read_text(encoding="utf-8").strip() or None
        if entries.is_file() and entries.stat().st_size <= TEXT:
            content = json.loads(entries.read_bytes())
            found = [content[name] for name in ENTRIES if name in content] if isinstance(content, dict) else []
            return str(found[0]) if found and isinstance(found[0], str | int) else None
    return None
