"""Files of a public set, archives of them, and WebDataset tars, as a folder of images.

An image of a WebDataset is a member with a suffix that vitmed reads. Its class, if it has one, is the text of the
member with the same key and the suffix .cls, or the entry "label", "class" or "cls" of the .json: `000123.png`,
`000123.cls`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vitmed.core.dataset_cards import Card
from vitmed.core.errors import DataError
from vitmed.core.files import write_text
from vitmed.core.text import counted
from vitmed.core.text_files import csv_text
from vitmed.data.archives import SUFFIXES
from vitmed.data.folders import has_classes, image_files, image_names, split_of
from vitmed.data.patients import groups_of
from vitmed.data.public_files import LABELS, OTHER, check_class_names, read_public_files, write_folder

TEXT = 1 << 20  # bytes of a .cls or .json, at most
ENTRIES = ("label", "class", "cls")  # of a .json

GROUPS = "groups.csv"
KINDS = "a MedMNIST .npz, WebDataset tars, CIFAR or MNIST files, or an archive of one of these or of folders of images"


def labels_flag(folder: Path) -> str:
    """Name the flag for the labels of a folder without classes; "" for one with classes."""
    return f" --labels {folder / LABELS}" if (folder / LABELS).is_file() else ""


def convert(sources: Sequence[Path], part: Path) -> bool:
    """Fill the folder `part` from files of a known kind, or from archives of these or of folders of images.

    Returns whether the images have labels. Raises DataError for other kinds.
    """
    source = sources[0]
    if len(sources) == 1 and source.is_file() and source.name.lower().endswith(SUFFIXES):
        with _unpacked({source.name: source}, part) as top:
            return _take_over(top, part, source)
    if len(sources) == 1 and source.is_dir() and (original := read_public_files(source)) is not None:
        write_folder(original, part)
        return True
    tars: dict[str, Path] = {}
    for one in sources:
        found = tars_of(one)
        if not found:
            raise DataError(f"{one}: vitmed does not know this kind of file", f"name {KINDS}")
        if twice := sorted(tars.keys() & found):
            raise DataError(f"{tars[twice[0]]} and {found[twice[0]]} have the same name", "rename one of them")
        tars |= found
    with _unpacked(tars, part) as top:
        return write_class_folders(top, part, source)


def _take_over(top: Path, part: Path, source: Path) -> bool:
    """Fill `part` from the only archive unpacked in `top`. Returns, and raises, as `convert`."""
    place = top / source.name
    if next(place.rglob("*.cls"), None) is not None:
        return write_class_folders(top, part, source)
    while (original := read_public_files(place, source)) is None and not has_classes(place):
        inner = [entry for entry in place.iterdir() if not entry.name.startswith(".")]
        if len(inner) == 1 and inner[0].is_dir():
            place = inner[0]
        elif tars_of(source) and image_files(place):
            return write_class_folders(top, part, source)
        elif source.suffix.lower() == ".npz":
            names = ", ".join(sorted(entry.name for entry in inner)[:8]) or "nothing"
            raise DataError(f"{source}: not a file of MedMNIST, it holds {names}", OTHER)
        else:
            raise DataError(f"{source}: holds no kind of file that vitmed knows", f"name {KINDS}")
    if original is not None:
        write_folder(original, part)
    else:
        for entry in sorted(place.iterdir()):
            entry.rename(part / entry.name)
    return True


@contextlib.contextmanager
def _unpacked(archives: Mapping[str, Path], part: Path) -> Iterator[Path]:
    """A folder with the content of each archive in a folder of its name, until the end of the block."""
    top = part / ".unpacked"
    for name, archive in archives.items():
        place = top / name
        place.mkdir(parents=True)
        unpack(archive, place)
        shutil.rmtree(place / "__MACOSX", ignore_errors=True)  # added to zip files by macOS
    yield top
    shutil.rmtree(top)


def pick_classes(archive: Path, card: Card, part: Path) -> None:
    """Take only the class folders named by the card from the archive. Raises DataError if one is missing."""
    assert card.download is not None
    with _unpacked({archive.name: archive}, part) as top:
        for name in card.classes:
            found = top / archive.name / card.download.folder / name
            if not found.is_dir():
                missing = f"{archive}: has no folder {card.download.folder}/{name}"
                raise DataError(missing, "report it: the card of this set may be out of date")
            found.rename(part / name)


def write_groups(folder: Path, images: list[Path], card: Card) -> int | None:
    """Write groups.csv if the card's expression finds patients; their number, or None if the card has none."""
    if card.group_regex is None:
        return None
    paths = [path.relative_to(folder).as_posix() for path in images]
    rows = [(path, group or "") for path, group in zip(paths, groups_of(card.group_regex, paths), strict=True)]
    write_text(folder / GROUPS, csv_text([("path", "patient"), *rows]))
    return len({patient for _, patient in rows if patient})


def tars_of(source: Path) -> dict[str, Path]:
    if source.is_dir():
        files = sorted(file for file in source.rglob("*") if file.suffix.lower() == ".tar" and file.is_file())
        return {file.relative_to(source).as_posix(): file for file in files}
    return {source.name: source} if source.suffix.lower() == ".tar" else {}


def write_class_folders(unpacked: Path, folder: Path, source: Path) -> bool:
    """Move the images of unpacked tars to `folder/[split/]<class>/<tar>/<name>`; without any class to `folder/<tar>/`.

    The split is that of the folder which holds the tar. Returns whether there are classes. Raises DataError for no
    image, an image without a class beside others, or a class that cannot name a folder.
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
