"""Which images an evaluation uses, and what a reader must know about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vitmed.core.config import GROUP_WORDS, DataConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.core.text import counted
from vitmed.core.ui import Ui
from vitmed.data.folders import class_names, data_folder, split_folders
from vitmed.data.listing import ALL, Listing, list_by_folder, list_by_table, with_patients
from vitmed.data.patient_notes import UNKNOWN, patient_notes, seen_before
from vitmed.data.samples import Sample
from vitmed.data.scan_cache import hash_files
from vitmed.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class Asked:
    """The images that `vitmed evaluate` is asked to use: `data` None means the run's own; the rest describes `data`."""

    data: str | Path | None
    split: str
    group_regex: str | None = None
    groups: str | Path | None = None
    labels: str | Path | None = None


@dataclass(frozen=True)
class Chosen:
    """The images to evaluate.

    Attributes:
        root: the data folder; samples: the images, with the further columns named by `columns`.
        notes: for the head of the report.
        part: their split in the data folder; None where they are all of the folder.
        seen: of other images, how many the model was made with ("images"), are of the run's own test ("test"), and how
            many patients have the name of one that it was made with ("patients"; None
            where they are unknown).
    """

    root: Path
    samples: list[Sample]
    columns: tuple[str, ...]
    notes: list[str]
    part: str | None
    seen: Mapping[str, int | None] = field(default_factory=dict)


def choose_samples(saved: Checkpoint, asked: Asked, allow_leakage: bool, ui: Ui) -> Chosen:
    """The images to evaluate: the run's own split, the same split in a moved folder, or another folder.

    Raises:
        DataError: no such images, an unknown class, or images that the model was made with.
        UsageError: labels or patients of other images without --data.
    """
    data, split = asked.data, asked.split
    if data is None and any(said is not None for said in (asked.group_regex, asked.groups, asked.labels)):
        raise UsageError(
            "--labels, --groups and --group-regex describe the images in --data; the run's own images are known",
            "add --data DIR, or leave them out",
        )
    samples, columns = list(saved.splits.samples[split]), saved.splits.columns
    part: str | None = split
    seen: Mapping[str, int | None] = {}
    root = saved.data_root() if data is None else data_folder(data)
    now = hash_files([str(root / sample.path) for sample in samples])
    if data is None or now == saved.hashes[split]:
        notes = [*patient_notes(saved.splits, split), *own_notes(saved, split, now)]
        if data is not None:
            ui.say(f"{root} holds the images that the run knows: taking its own {split} split")
    else:
        listing, chosen, notes = foreign_images(saved, root, asked)
        samples, columns = list(listing.samples(listing.parts[chosen])), listing.columns
        part = None if chosen == ALL else chosen
        if not samples:
            raise DataError(f"{listing.source}: no images in its class folders", "name a folder of labelled images")
        seen, told = leakage(saved, root, samples, allow_leakage)
        notes += told
        if not all(sample.group is not None for sample in samples):
            notes.insert(0, f"Patients are unknown. {UNKNOWN}")
    return Chosen(root, samples, columns, notes, part, seen)


def own_notes(saved: Checkpoint, split: str, now: list[str]) -> list[str]:
    """Notes on the run's own split: its part in making the model, changed files, and copies in other splits."""
    notes = []
    if split != "test":
        notes.append(f"The {split} split was used to make the model, so its numbers are optimistic.")
    changed = sum(a != b for a, b in zip(now, saved.hashes[split], strict=True))
    if changed:
        verb = "has" if changed == 1 else "have"
        notes.append(f"{counted(changed, 'image')} of the {split} split {verb} changed or gone since the run.")
    made_with = {digest for name in ("train", "val") if name != split for digest in saved.hashes[name]}
    copies = sum(digest in made_with for digest in saved.hashes[split])
    if copies:
        notes.append(
            f"Leakage: {copies:,} of these images {'is' if copies == 1 else 'are'} byte for byte in another split; the "
            "result is optimistic."
        )
    before = seen_before(saved.seen, saved.hashes[split]) if split == "test" else 0
    if before:
        notes.append(
            f"Leakage: {before:,} of these images {'was' if before == 1 else 'were'} used to make the weights that the "
            "run started from; the result is optimistic."
        )
    return notes


def foreign_images(saved: Checkpoint, root: Path, asked: Asked) -> tuple[Listing, str, list[str]]:
    """The labelled images of another folder, classes matched by name; which part of them; and notes.

    The part is `asked.split` where the folder or the table has splits, else all.
    """
    if asked.labels is not None:
        own_groups = asked.groups is None and asked.group_regex is None
        listing = list_by_table(root, Path(asked.labels), own_groups, saved.classes)
        parts = list(listing.parts)
    else:
        folders = split_folders(root)
        parts, folder = list(folders) or [ALL], folders.get(asked.split, root)
        if asked.split in folders or not folders:
            unknown = sorted(set(class_names(folder)) - set(saved.classes))
            if unknown:
                raise DataError(
                    f"{folder}: the model does not know class {', '.join(unknown)}; it knows "
                    + ", ".join(saved.classes),
                    "rename the folders to the model's classes, or remove them",
                )
            listing = list_by_folder(root, {asked.split if folders else ALL: folder}, saved.classes)
    part = ALL if parts == [ALL] else asked.split
    if part not in parts:
        raise DataError(
            f"{root}: has {', '.join(parts)} but no {part} {'rows' if asked.labels else 'folder'}",
            f"--split {parts[0]}",
        )
    listing, notes = _foreign_patients(saved, listing, asked)
    return listing, part, [*notes, *listing.notes]


def _foreign_patients(saved: Checkpoint, listing: Listing, asked: Asked) -> tuple[Listing, list[str]]:
    """The listing with patients: as asked; else as the table of labels says; else as the run found its own, if it can.

    The run's table knows nobody of another place, and its expression may not fit the names there.
    """
    if asked.group_regex is not None or asked.groups is not None:
        groups = None if asked.groups is None else str(asked.groups)
        return with_patients(listing, DataConfig(group_regex=asked.group_regex, groups=groups)), []  # type: ignore[call-arg]
    if listing.groups is not None:
        return listing, []
    run = saved.config.data
    if run.group_regex is None and run.groups not in GROUP_WORDS:
        return listing, []
    way = {"names": "file names", "dicom": "PatientID"}.get(run.groups or "", "expression")
    try:
        config = DataConfig(group_regex=run.group_regex, groups=run.groups)  # type: ignore[call-arg]
        return with_patients(listing, config), []
    except (DataError, UsageError):
        note = f"The {way} of the run finds no patient in these images (--group-regex or --groups tells another way)."
        return listing, [note]


def leakage(
    saved: Checkpoint, root: Path, samples: list[Sample], allow: bool
) -> tuple[dict[str, int | None], list[str]]:
    """What `Chosen.seen` holds, and notes on it. DataError for images that the model was made with, unless allowed."""
    notes = []
    made_with = [name for name in ("train", "val") if name in saved.splits.samples]
    known = {digest for name in made_with for digest in saved.hashes[name]} | set(saved.seen)
    hashes = hash_files([str(root / sample.path) for sample in samples])
    seen = [root / sample.path for sample, digest in zip(samples, hashes, strict=True) if digest in known]
    if seen:
        text = f"{len(seen):,} of {counted(len(samples), 'image')} {'was' if len(seen) == 1 else 'were'} used to make "
        text += "this model (train, val or pretraining)"
        if not allow:
            raise DataError(f"{root}: {text}, the first is {seen[0]}", "judge it on others, or say --allow-leakage")
        notes.append(f"Leakage: {text}; the result is optimistic.")
    tested = set(saved.hashes.get("test", ()))
    again = sum(digest in tested for digest in hashes)
    if again:
        verb = "is" if again == 1 else "are"
        notes.append(f"{again:,} of {counted(len(samples), 'image')} {verb} of the run's own test too.")
    patients = {sample.group for name in made_with for sample in saved.splits.samples[name]}
    both = {sample.group for sample in samples if sample.group is not None} & patients
    if both:
        notes.append(f"Patients with a name that the model was made with: {len(both):,}.")
    named = saved.splits.grouped and any(sample.group is not None for sample in samples)
    return {"images": len(seen), "patients": len(both) if named else None, "test": again}, notes
