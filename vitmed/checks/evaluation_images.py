"""Which images an evaluation uses, and what a reader must know about them."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vitmed.core.config import GROUP_WORDS, DataConfig
from vitmed.core.errors import DataError, UsageError, excluded
from vitmed.core.messages import say
from vitmed.core.places import data_folder
from vitmed.core.run_folder import PREDICTIONS, RunFolder
from vitmed.core.text import counted, counted_doing, listed, one_spelling, quoted
from vitmed.data.duplicates import fingerprints, near_any
from vitmed.data.folders import class_names, split_folders
from vitmed.data.image_cache import ImageCache, hash_files, scan
from vitmed.data.label_kinds import LabelRequest
from vitmed.data.listing import further_columns, list_by_folder, list_by_table, with_patients
from vitmed.data.patients import patient_notes, show_expression
from vitmed.data.samples import ALL, Sample, Splits, labelled_by, targets_in
from vitmed.data.thread_batches import check_readable
from vitmed.imaging.choose_window import lost_outside
from vitmed.imaging.decode import read_header
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.imaging.window import asked_window
from vitmed.inference.open_model import IDLE_WINDOW, WINDOWED
from vitmed.inference.saved_model import Outputs, SavedModel
from vitmed.metrics.predictions import Predictions


@dataclass(frozen=True)
class ImageRequest:
    """The images that you ask `vitmed evaluate` to use: those in a folder, described by the last three, or the run's
    own, to which a table of `labels` adds columns."""

    data: str | Path | None
    split: str
    group_regex: str | None = None
    groups: str | Path | None = None
    labels: str | Path | None = None


@dataclass(frozen=True)
class EvaluationImages:
    """The images to evaluate. `seen` is of other images than the run's own: how many "images" made the model, are in
    its own "test", and how many "patients" share a name with one that made it (None where unknown)."""

    how: Preprocessing
    root: Path
    samples: list[Sample]
    columns: tuple[str, ...]  # names of further columns of the samples
    notes: list[str]  # for the head of the report
    part: str | None  # their split in the data folder; None if they are the whole folder
    # That split where it is one of the run itself: no folder was named, or one that holds the same files.
    own_split: str | None = None
    table: Mapping[str, tuple[str, ...]] | None = None  # what it adds to the run's own images, a cell for each
    seen: Mapping[str, int | None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int) -> np.ndarray:
        """(S, S, C) uint8. Raises DataError if it cannot be read."""
        return self.how.read(self.root / self.samples[index].path)

    def predictions(self, saved: SavedModel, outputs: Outputs) -> Predictions:
        """The predictions for the images, with their labels. Raises DataError if one cannot be read."""
        check_readable(outputs.problems)
        target, positive = saved.splits.target, saved.config.data.positive
        predictions = labelled_by(target, saved.classes, self.samples, outputs.logits, positive, self.columns)
        return replace(predictions, columns={**outputs.columns, **predictions.columns, **(self.table or {})})


def choose_samples(saved: SavedModel, request: ImageRequest, allow_leakage: bool) -> EvaluationImages:
    """The images to evaluate: the run's own split, the same split in a moved folder, or another folder. Raises
    DataError for no such images, an unknown class, or images that were used to make the model; UsageError for patients
    of other images, where these are the run's own."""
    data, split = request.data, request.split
    if data is None and allow_leakage:
        raise excluded("leakage")
    if None not in (request.group_regex, request.groups):
        raise excluded("patients")
    folds = RunFolder(saved.path.parent.parent)
    kept = (folds.path if folds.joined == saved.path.parent else saved.path.parent) / split / PREDICTIONS
    again = f"; or without images, from what is kept: vitmed evaluate {quoted(kept)}" * kept.is_file()
    root = saved.data_root(f"name its current place: --data DIR{again}") if data is None else data_folder(data)
    if data is None and not saved.splits.samples.get(split):
        why = saved.splits.made.get(split, "there are none")
        raise UsageError(f"{saved.path}: no {split} images of its own ({why})", f"--data DIR names others{again}")
    samples = list(saved.splits.samples.get(split, ()))  # an exported model knows the hashes of its images alone
    hashes = hash_files([str(root / sample.path) for sample in samples])
    if data is None or (samples and hashes == saved.hashes[split] and not (allow_leakage and split == "test")):
        if request.group_regex is not None or request.groups is not None:
            problem = "--groups and --group-regex describe other images; the patients of the run's own images are known"
            raise UsageError(problem, "leave them out, or name other images with --data DIR")
        if data is not None:
            say(f"{root} contains the images of the run: using the run's own {split} split")
        if asked_window(window := saved.preprocessing.window) is not None and window != saved.config.data.window:
            raise excluded("window of the run")
        own = own_notes(saved, split, hashes)
        notes = [*patient_notes(saved.splits, split), *own]
        splits, table = saved.splits, None
        if request.labels is not None:
            kind, paths, labels = splits.target.kind, [s.path for s in samples], {"": [*map(splits.text_of, samples)]}
            labels = dict(zip(splits.classes, targets_in(samples).T.tolist(), strict=True)) if splits.bins else labels
            table, groups, more = further_columns(
                Path(request.labels), root, paths, kind, labels, saved.config.data.card
            )
            notes += more
            if groups and all(sample.group is None for sample in samples):  # else those of the run count
                samples = [each._replace(group=cell) for each, cell in zip(samples, groups, strict=True)]
                known = "The run knows no patients: one may be in two of its splits"
                notes = [f"{known}. Here they are those of {Path(request.labels).name}.", *own, *more]
        return EvaluationImages(saved.preprocessing, root, samples, splits.columns, notes, split, split, table)
    images, part = foreign_images(saved, root, request)
    samples, notes, how = list(images.samples[part]), list(images.notes), saved.preprocessing
    if not samples:
        raise DataError(f"{images.source}: no images in its class folders", "name a folder of labelled images")
    cache = ImageCache(how.frame, how.window, keep=saved.config.data.cache)
    seen, leaks = leakage(saved, root, samples, allow_leakage, cache)
    leaks += near_copies(saved, root, samples, cache)
    if asked_window(window := how.window) is not None and window != saved.config.data.window:
        deep = False
        for sample in samples:
            with contextlib.suppress(DataError):  # an unreadable image is reported later
                deep = deep or read_header(root / sample.path).needs_window
        notes.append(f"Deep images are {WINDOWED.format(window)}." if deep else IDLE_WINDOW.format(window))
    notes += [f"{lost}." for lost in lost_outside([root / sample.path for sample in samples], how.frame, window)]
    if any(sample.group is None for sample in samples):
        also = "One may also be in the training images, and the intervals take each image as independent."
        notes.insert(0, f"Patients are unknown. {also}")
    part_name = None if part == ALL else part
    return EvaluationImages(how, root, samples, images.columns, notes + leaks, part_name, seen=seen)


def own_notes(saved: SavedModel, split: str, hashes: list[str]) -> list[str]:
    """Notes on the run's own split: its part in making the model, changed files, and copies in other splits."""
    notes = []
    if split != "test":
        notes.append(f"This is the {split} split, which was used to make the model, so its numbers are optimistic.")
    changed = sum(a != b for a, b in zip(hashes, saved.hashes[split], strict=True))
    if changed:
        have = counted_doing(changed, "image", f"of the {split} split has", f"of the {split} split have")
        notes.append(f"{have} changed or disappeared since the run.")
    made_with = {digest for name in ("train", "val") if name != split for digest in saved.hashes[name]}
    copies = sum(digest in made_with for digest in saved.hashes[split])
    before = sum(map(set(saved.seen).__contains__, saved.hashes[split])) if split == "test" else 0
    for count, verbs, what in (
        (copies, ("has", "have"), "a byte-for-byte copy in another split"),
        (before, ("was", "were"), "used to make the weights that the run started from"),
    ):
        if count:
            notes.append(f"Leakage: {count:,} of these images {verbs[count > 1]} {what}; the result is optimistic.")
    return notes


def foreign_images(saved: SavedModel, root: Path, request: ImageRequest) -> tuple[Splits, str]:
    """The labelled images of another folder, with classes and findings matched by name; and the part to evaluate,
    `request.split` if the folder or the table has splits, else all."""
    kind, several = saved.splits.target.kind, bool(saved.splits.bins)
    if several and request.labels is None:
        raise DataError(f"{root}: folders name one class of an image; the model predicts {kind}", "add --labels TABLE")
    groups = None if request.groups is None else str(request.groups)
    uncertain, unit = saved.config.data.uncertain, saved.splits.target.unit
    asked = DataConfig(  # type: ignore[call-arg]
        group_regex=request.group_regex, groups=groups, uncertain=uncertain, unit=unit, card=saved.config.data.card
    )
    if request.labels is not None:
        labels = LabelRequest(asked, kind, outputs=saved.classes)
        images = list_by_table(root, Path(request.labels), labels, None if several else saved.classes)
        parts = list(images.samples)
    else:
        folders = split_folders(root)
        parts, folder = list(folders) or [ALL], folders.get(request.split, root)
        if request.split in folders or not folders:
            if unknown := sorted(set(class_names(folder)) - set(saved.classes)):
                problem = f"{folder}: the model does not know class {listed(unknown)}; it knows {listed(saved.classes)}"
                raise DataError(problem, "rename the folders to the model's classes, or remove them")
            images = list_by_folder(root, {request.split if folders else ALL: folder}, saved.classes)
    if parts == [ALL] and request.split != "test":
        raise UsageError(f"--split {request.split}: {root} is not divided into splits", "leave it out")
    part = ALL if parts == [ALL] else request.split
    if part not in parts:
        missing = f"{part} {'rows' if request.labels else 'folder'}"
        raise DataError(f"{root}: has {', '.join(parts)} but no {missing}", f"--split {parts[0]}")
    # Patients: as asked; else from the table of labels; else in the way of the run, whose own table has no patients of
    # another place, and whose expression may not match the names there.
    run = saved.config.data
    if asked.group_regex is not None or asked.groups is not None:
        return with_patients(images, asked), part
    if images.patients or (run.group_regex is None and run.groups not in GROUP_WORDS):
        return images, part
    show_expression(run.group_regex)
    try:
        in_its_way = DataConfig(group_regex=run.group_regex, groups=run.groups)  # type: ignore[call-arg]
        return with_patients(images, in_its_way), part
    except (DataError, UsageError) as error:
        if isinstance(error, UsageError) and run.group_regex is not None:  # not one that ends
            raise
        way = {"names": "file names", "dicom": "PatientID"}.get(run.groups or "", "expression")
        note = f"The {way} of the run finds no patient in these images (--group-regex or --groups sets another way)."
        return replace(images, notes=(note, *images.notes)), part


def leakage(
    saved: SavedModel, root: Path, samples: list[Sample], allow: bool, cache: ImageCache | None = None
) -> tuple[dict[str, int | None], list[str]]:
    """`EvaluationImages.seen`, and notes on it. Raises DataError for images that made the model, unless `allow`.

    `cache` knows unchanged files, and keeps the hashes of the others.
    """
    notes = []
    made_with = [name for name in ("train", "val") if name in saved.hashes]
    made_from = {digest for name in made_with for digest in saved.hashes[name]} | set(saved.seen)
    hashes = hash_files([str((root / sample.path).absolute()) for sample in samples], cache)
    seen = [root / sample.path for sample, digest in zip(samples, hashes, strict=True) if digest in made_from]
    if seen:
        text = f"{len(seen):,} of {counted(len(samples), 'image')} {'was' if len(seen) == 1 else 'were'} used to make "
        text += "this model (train, val or pretraining)"
        if not allow:
            problem = f"{root}: {text}, the first is {seen[0]}"
            raise DataError(problem, "evaluate other images, or add --allow-leakage")
        notes.append(f"Leakage: {text}; the result is optimistic.")
    tested = set(saved.hashes.get("test", ()))
    again = sum(digest in tested for digest in hashes)
    if again:
        verb = "is" if again == 1 else "are"
        notes.append(f"{again:,} of {counted(len(samples), 'image')} {verb} also in the run's own test.")
    groups = {sample.group for sample in samples if sample.group is not None}
    known = {sample.group or "" for name in made_with for sample in saved.splits.samples.get(name, ())} - {""}
    joined, _ = one_spelling(names := [*groups, *known], "patient", names)  # 7 there may be 007 here
    if both := {*joined[: len(groups)]} & {*joined[len(groups) :]}:
        notes.append(f"Patients that share a name with a patient used to make the model: {len(both):,}.")
    patients = len(both) if saved.splits.grouped and groups else None
    return {"images": len(seen), "patients": patients, "test": again}, notes


def near_copies(saved: SavedModel, root: Path, samples: list[Sample], cache: ImageCache) -> list[str]:
    """A note if images look like images that the model was made with, though their bytes differ.

    Every image is decoded once for this; the cache, which is the index of `vitmed check`, keeps what it finds.
    """
    if not saved.fingerprints:
        return [
            "This checkpoint was made by an earlier version, so near copies of its training images cannot be noticed."
        ]
    records = scan(root, [sample.path for sample in samples], cache)
    identical = {digest for name in saved.fingerprints for digest in saved.hashes[name]}
    near = near_any(fingerprints(records), [text for part in saved.fingerprints.values() for text in part])
    count = sum(bool(alike) and record.sha256 not in identical for alike, record in zip(near, records, strict=True))
    if not count:
        return []
    verb, what = ("looks", "a near copy") if count == 1 else ("look", "near copies")
    return [
        f"Leakage: {count:,} of {counted(len(samples), 'image')} {verb} like {what} of images that were used to make "
        "this model, in another size, quality or brightness; the result may be optimistic."
    ]
