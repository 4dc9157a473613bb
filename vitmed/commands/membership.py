"""Which images an evaluation judges, and what must be said about them before its numbers are believed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from vitmed import npz
from vitmed.checkpoint import Checkpoint
from vitmed.errors import DataError
from vitmed.splits import Sample, class_names, compile_group, data_folder, scan, split_folders
from vitmed.ui import Ui


def choose_samples(
    saved: Checkpoint, data: str | Path | None, split: str, group_regex: str | None, allow_leakage: bool, ui: Ui
) -> tuple[Path, list[Sample], list[str]]:
    """The images to judge: the run's own split, that split in a folder that moved, or a folder of others.

    Returns:
        the root, the samples, and notes for the head of the report.

    Raises:
        DataError: no such images, an unknown class, or images that the model was made with.
    """
    samples = list(saved.splits.samples[split])
    root = saved.data_root() if data is None else data_folder(data)
    now = [sha256(root / sample.path) for sample in samples]
    if data is None or now == saved.hashes[split]:
        notes = own_notes(saved, split, now)
        if data is not None:
            ui.say(f"{root} holds the images that the run knows: taking its own {split} split")
    else:
        samples, notes = foreign_samples(saved, root, split, group_regex)
        notes += leakage_notes(saved, root, samples, allow_leakage)
    if not all(sample.group is not None for sample in samples):
        by_image = data is None and "by image" in saved.splits.made.get(split, "")
        start = "Split by image: likely optimistic." if by_image else "Patients are unknown."
        notes.append(f"{start} One patient may be in two splits, and the intervals take each image as independent.")
    missing = [name for k, name in enumerate(saved.classes) if not any(s.label == k for s in samples)]
    if missing:
        notes.append(f"No image of class {', '.join(missing)}: what needs it is undefined.")
    return root, samples, notes


def own_notes(saved: Checkpoint, split: str, now: list[str | None]) -> list[str]:
    """Notes on the run's own split: that it took part, changed files, copies of what the model was made with."""
    notes = []
    if split != "test":
        notes.append(f"This is the {split} split: it took part in making the model, so its numbers are optimistic.")
    changed = sum(a != b for a, b in zip(now, saved.hashes[split], strict=True))
    if changed:
        notes.append(f"{changed:,} images of the {split} split have changed or gone since the run.")
    made_with = {digest for name in ("train", "val") if name != split for digest in saved.hashes[name]}
    copies = sum(digest in made_with for digest in saved.hashes[split])
    if copies:
        notes.append(
            f"Leakage: {copies:,} of these images are byte for byte in another split; the result is flattered."
        )
    before = seen_before(saved.seen, saved.hashes[split]) if split == "test" else 0
    if before:
        notes.append(
            f"Leakage: {before:,} of these images were used to make the weights that the run started from; the result "
            "is flattered."
        )
    return notes


def seen_before(seen: Sequence[str], hashes: Sequence[str]) -> int:
    """How many of the images (by sha256) the starting weights had been made with."""
    known = set(seen)
    return sum(digest in known for digest in hashes)


def foreign_samples(
    saved: Checkpoint, root: Path, split: str, group_regex: str | None
) -> tuple[list[Sample], list[str]]:
    """The labelled images of another folder, classes matched by name; of its `split` folder where it has splits."""
    folders = split_folders(root)
    if folders and split not in folders:
        raise DataError(f"{root}: has {', '.join(folders)} but no {split} folder", f"--split {next(iter(folders))}")
    folder = folders.get(split, root)
    unknown = sorted(set(class_names(folder)) - set(saved.classes))
    if unknown:
        raise DataError(
            f"{folder}: the model does not know class {', '.join(unknown)}; it knows {', '.join(saved.classes)}",
            "rename the folders to the model's classes, or remove them",
        )
    notes, classes = [], list(saved.classes)
    if group_regex is not None:
        samples = scan(root, folder, classes, compile_group(group_regex))
    else:  # the run's expression may not fit the names of another place
        try:
            samples = scan(root, folder, classes, compile_group(saved.config.data.group_regex))
        except DataError:
            samples = scan(root, folder, classes, None)
            notes.append(
                "The expression of the run finds no patient in these file names (--group-regex tells another)."
            )
    if not samples:
        raise DataError(f"{folder}: no images in its class folders", "name a folder of labelled images")
    return samples, notes


def leakage_notes(saved: Checkpoint, root: Path, samples: list[Sample], allow: bool) -> list[str]:
    """Notes on images and patients that the model was made with. Raises DataError for images, unless allowed."""
    notes = []
    made_with = [name for name in ("train", "val") if name in saved.splits.samples]
    known = {digest for name in made_with for digest in saved.hashes[name]} | set(saved.seen)
    seen = [root / sample.path for sample in samples if sha256(root / sample.path) in known]
    if seen:
        text = f"{len(seen):,} of {len(samples):,} images were used to make this model (train, val or pretraining)"
        if not allow:
            raise DataError(f"{root}: {text}, the first is {seen[0]}", "judge it on others, or say --allow-leakage")
        notes.append(f"Leakage: {text}; the result is flattered.")
    patients = {sample.group for name in made_with for sample in saved.splits.samples[name]}
    both = {sample.group for sample in samples if sample.group is not None} & patients
    if both:
        notes.append(f"Patients with a name that the model was made with: {len(both):,}.")
    return notes


def sha256(path: Path) -> str | None:
    """Of a file's content, in hexadecimal; None where there is no file."""
    try:
        return hashlib.sha256(npz.content(path)).hexdigest() if path.is_file() or npz.inside(path) else None
    except DataError:  # another .npz file, which has no such image
        return None
