"""`vitmed data list`, `get` and `import`: public data sets as folders of images. Imports no torch."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitmed.core.cache_folder import cache_folder
from vitmed.core.csv_files import csv_text
from vitmed.core.dataset_cards import Card, advice, cards, find_set
from vitmed.core.downloads import fetch_file
from vitmed.core.errors import DataError
from vitmed.core.files import write_text
from vitmed.core.messages import say, warn
from vitmed.core.outputs import refuse_inside
from vitmed.core.text import counted
from vitmed.data.archives import SUFFIXES, check_new, new_folder, unpack
from vitmed.data.folders import has_classes, image_files, refuse_among_classes
from vitmed.data.patients import groups_of
from vitmed.data.public_files import LABELS, OTHER, read_public_files, write_folder
from vitmed.data.webdataset import tars_of, write_class_folders

GROUPS = "groups.csv"
KINDS = "a MedMNIST .npz, WebDataset tars, CIFAR or MNIST files, or an archive of one of these or of folders of images"


def datasets_table() -> list[dict[str, Any]]:
    """One row per card: what the set is, how its patients are known, and what `vitmed data get` can fetch."""
    return [
        {
            "name": name,
            "title": card.title,
            "images": card.total,
            "classes": len(card.classes) if isinstance(card.classes, list) else None,
            "licence": card.terms,
            "patients": "in the file names" if card.group_regex else "not in the file names",
            "group_regex": card.group_regex,
            "downloadable": bool(card.sets),
            "sets": list(card.sets),
            "source": card.source,
            "by_hand": card.by_hand,
        }
        for name, card in cards().items()
    ]


def fetch_dataset(name: str, folder: str | Path, offline: bool = False) -> Path:
    """Download a public set, check it, and write it as a folder for `train`.

    Args:
        name: a name of `vitmed data list`.
        folder: a new or empty folder. It is written completely or not at all.
        offline: open no connection: the files must be in the cache already.

    Returns:
        the folder. It also holds `groups.csv` (path, patient) if the file names contain the patients.

    Raises:
        UsageError: an unknown name, or a folder that is not empty or cannot be written.
        DataError: the set cannot be fetched, or differs from its card.
    """
    folder, card = Path(folder), find_set(name)
    assert card.download is not None
    check_new(folder)
    refuse_among_classes(folder)
    store = cache_folder().absolute() / "datasets" / name
    if "NC" in card.licence_of(name):
        warn(f"the licence of {name}, {card.licence_of(name)}, forbids commercial use")
    files = [fetch_file(source, store / source.file, offline) for source in card.sources(name)]
    what = files[0] if len(files) == 1 else store
    with new_folder(folder) as part:
        if card.download.layout == "folders":
            _pick_classes(what, card, part)
        else:
            _convert([what], part)
        images = image_files(part)
        patients = _write_groups(part, images, card)
    known = f"{counted(patients, 'patient')} ({folder / GROUPS})" if patients is not None else "patients unknown"
    say(f"{folder}: {counted(len(images), 'image')}, {known}")
    say(f"the download is kept in {store}; you can delete it")
    say(f"{advice(card, folder)}{_by_table(folder)}")
    return folder


def import_dataset(source: str | Path | Sequence[str | Path], folder: str | Path) -> Path:
    """Write the files of a public set, without loss, as a folder for `train`.

    Args:
        source: a MedMNIST .npz; WebDataset tars, or a folder of them; a folder of CIFAR-10, CIFAR-100 (binary or Python
            version) or MNIST's four files; or a zip or tar of such a folder or of folders of images.
        folder: a new or empty folder. It is written completely or not at all.

    Returns:
        the folder: `{train,val,test}/<class>/<index>.png`; of several findings or a number, `{train,val,test}/*.png`
        and `labels.csv`; of WebDataset `[{train,val,test}/]<class>/<tar>/<name>`, without any class `<tar>/<name>`.

    Raises:
        UsageError: a folder that is not empty or cannot be written.
        DataError: files of another kind, or damaged, incomplete or hostile ones.
    """
    folder = Path(folder)
    sources = [Path(one) for one in ([source] if isinstance(source, str | Path) else source)]
    check_new(folder)
    for one in sources:
        if not one.exists():
            raise DataError(f"{one}: no such file or folder", f"name {KINDS}")
        if one.is_dir():
            refuse_inside(one, folder)
    refuse_among_classes(folder)
    with new_folder(folder) as part:
        labelled = _convert(sources, part)
        count = len(image_files(part))
    say(f"{folder}: {counted(count, 'image')}, {'patients' if labelled else 'classes'} unknown")
    if labelled:
        say(f"to train on it: vitmed train {folder}{_by_table(folder)}")
    else:
        say(f"to predict them: vitmed predict {folder}; to train on them, add --labels TABLE")
    return folder


def _by_table(folder: Path) -> str:
    """The flag for the labels of a folder without classes; "" for one with classes."""
    return f" --labels {folder / LABELS}" if (folder / LABELS).is_file() else ""


def _convert(sources: Sequence[Path], part: Path) -> bool:
    """Fill the folder `part` from files of a known kind, or from archives of these or of folders of images.

    Returns whether the images have labels.

    Raises:
        DataError: other kinds.
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
    """Fill `part` from the only archive unpacked in `top`. Returns, and raises, as `_convert`."""
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


def _pick_classes(archive: Path, card: Card, part: Path) -> None:
    """Take only the class folders named by the card from the archive."""
    assert card.download is not None
    with _unpacked({archive.name: archive}, part) as top:
        for name in card.classes:
            found = top / archive.name / card.download.folder / name
            if not found.is_dir():
                missing = f"{archive}: has no folder {card.download.folder}/{name}"
                raise DataError(missing, "report it: the card of this set may be out of date")
            found.rename(part / name)


def _write_groups(folder: Path, images: list[Path], card: Card) -> int | None:
    """Write groups.csv if the card's expression finds patients; their number, or None if the card has none."""
    if card.group_regex is None:
        return None
    paths = [path.relative_to(folder).as_posix() for path in images]
    rows = [(path, group or "") for path, group in zip(paths, groups_of(card.group_regex, paths), strict=True)]
    write_text(folder / GROUPS, csv_text([("path", "patient"), *rows]))
    return len({patient for _, patient in rows if patient})
