"""`vitmed data`: public data sets as folders. No torch."""

from pathlib import Path
from typing import Annotated, Any

from vitmed.core import downloads, places, run_folder, text_files
from vitmed.core.dataset_cards import advice, cards, find_set
from vitmed.core.errors import DataError
from vitmed.core.files import whole_folder, write_text
from vitmed.core.messages import say, warn
from vitmed.core.options import Argument, NewDataFolder, Offline
from vitmed.core.text import counted, quoted
from vitmed.data.convert import KINDS, convert, labels_flag, pick_classes
from vitmed.data.folders import has_classes, image_names, new_outside_data, subfolders
from vitmed.data.patients import groups_of

GROUPS = "groups.csv"


def datasets_table() -> list[dict[str, Any]]:
    """List a row per card: what the set is, how its patients are known, and what `vitmed data get` can fetch."""
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


def fetch_dataset(
    name: Annotated[str, Argument("A name of `vitmed data list`.", "NAME")],
    folder: NewDataFolder,
    offline: Offline = False,
) -> Path:
    """Download a public set, check it, and write it as a folder for `train`, completely or not at all.

    Returns:
        the folder. It also holds `groups.csv` (path, patient) if the file names contain the patients.

    Raises:
        UsageError: an unknown name, or a folder that is not empty or cannot be written.
        DataError: the set cannot be fetched, or differs from its card.
    """
    folder, card = Path(folder), find_set(name)
    assert card.download is not None
    new_outside_data(folder)
    store = run_folder.cache_folder().absolute() / "datasets" / name
    sources = card.sources(name)
    if "NC" in (licence := sources[0].licence):
        warn(f"the licence of {name}, {licence}, forbids commercial use")
    with downloads.unconnected(offline):
        files = [downloads.fetch_file(source, store / source.file) for source in sources]
    what = files[0] if len(files) == 1 else store
    with whole_folder(folder) as part:
        if card.download.layout == "folders":
            pick_classes(what, card, part)
        else:
            convert(what, part)
        images = image_names(part)
        whose = "patients unknown"
        if card.group_regex is not None:
            patients = [patient or "" for patient in groups_of(card.group_regex, images)]
            write_text(part / GROUPS, text_files.csv_text([("path", "patient"), *zip(images, patients, strict=True)]))
            whose = f"{counted(len({*patients} - {''}), 'patient')} ({folder / GROUPS})"
    say(f"{folder}: {counted(len(images), 'image')}, {whose}")
    say(f"the download is kept in {store}; you can delete it")
    say(f"{advice(card, folder)}{labels_flag(folder, files[0])}")
    return folder


def import_dataset(
    source: Annotated[
        Path | str,
        Argument("A MedMNIST .npz, a folder of CIFAR-10 or MNIST, an archive.", "FILE_OR_FOLDER"),
    ],
    folder: NewDataFolder,
) -> Path:
    """Write the files of a public set, without loss, as a folder for `train`, completely or not at all.

    Args:
        source: a MedMNIST .npz; a folder of CIFAR-10's binary version or of MNIST's four files; or a zip or tar of such
            a folder or of images, which stay as they are.

    Returns:
        the folder: `{train,val,test}/<class>/<index>.png`; of several findings or a number, `{train,val,test}/*.png`
        and `labels.csv`.

    Raises:
        UsageError: a folder that is not empty or cannot be written.
        DataError: files of another kind, or damaged, incomplete or hostile ones.
    """
    folder, source = Path(folder), Path(source)
    places.new_folder(folder)
    if not source.exists():
        raise DataError(f"{source}: no such file or folder", f"name {KINDS}")
    places.new_folder(folder, [source] if source.is_dir() else [])
    new_outside_data(folder)
    with whole_folder(folder) as part:
        convert(source, part)
        count = len(image_names(part))
    root, labels = folder, labels_flag(folder, source)
    while not has_classes(root) and len(inner := subfolders(root)) == 1:
        root = inner[0]
    if labels or not has_classes(root):
        root, labels = folder, labels or " --labels TABLE"
    say(f"{folder}: {counted(count, 'image')}, patients unknown; to train on it: vitmed train {quoted(root)}{labels}")
    return folder
