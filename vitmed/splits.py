"""Which images belong to train, validation and test, and under which class: by name, by patient, by seed.

No file is copied, moved or changed. One class order, sorted by name, serves every split.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitmed.config import DataConfig, PretrainDataConfig
from vitmed.errors import DataError, UsageError
from vitmed.images import is_image
from vitmed.predictions import Predictions

SPLITS = ("train", "val", "test")
SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}


class Sample(NamedTuple):
    """One image: path relative to the data root (forward slashes), class index, group (patient) or None."""

    path: str
    label: int
    group: str | None


@dataclass(frozen=True)
class Splits:
    """The membership of every image.

    Attributes:
        root: the data folder.
        classes: class names, sorted; the order of every logit ever after.
        samples: split name -> its samples, in the order of their paths.
        made: split name -> where it came from, in words ("folder val/", "15 % of train, by image, seed 0").
    """

    root: Path
    classes: tuple[str, ...]
    samples: dict[str, tuple[Sample, ...]]
    made: dict[str, str] = field(default_factory=dict)

    def counts(self, split: str) -> list[int]:
        """Images per class of a split, in class order."""
        count = Counter(sample.label for sample in self.samples[split])
        return [count[k] for k in range(len(self.classes))]

    @property
    def grouped(self) -> bool:
        """Whether patients are known."""
        return all(sample.group is not None for samples in self.samples.values() for sample in samples)


def make_splits(config: DataConfig) -> Splits:
    """Find the images under `config.root` and split off what the folder does not bring.

    Layouts: `root/<class>/`, `root/{train,val,test}/<class>/`, and train + test or train + val only.

    Raises:
        DataError: no folder, no classes, a class that is empty or missing from a split, a patient in two.
        UsageError: a `group_regex` that is not one.
    """
    root = data_folder(config.root)
    pattern = compile_group(config.group_regex)
    folders = split_folders(root)
    if not folders:
        classes = class_names(root)
        _need_two(root, classes)
        found = {"all": scan(root, root, classes, pattern)}
        where = {"all": ""}
    else:
        if "train" not in folders:
            names = ", ".join(folder.name for folder in folders.values())
            raise DataError(f"{root}: has {names} but no train folder", "add train/, or point at a folder of classes")
        classes = class_names(folders["train"])
        _need_two(folders["train"], classes)
        found = {name: scan(root, folder, classes, pattern) for name, folder in folders.items()}
        where = {name: f"folder {folder.name}/" for name, folder in folders.items()}
    for name, samples in found.items():
        _check_classes(folders.get(name, root), name, samples, classes)
    made = {name: text for name, text in where.items() if name != "all"}
    rest = "train" if "train" in found else "all"
    for name, fraction in (("test", config.test_fraction), ("val", config.val_fraction)):
        if name in found:
            continue
        base = len(found[rest])
        whole = base if rest == "train" else sum(len(samples) for samples in found.values())
        share = fraction * whole / base
        part, found[rest] = split_off(found[rest], len(classes), share, config.split_seed, name, root)
        found[name] = part
        made[name] = (
            f"{len(part) / whole:.0%} split off {'by patient' if pattern else 'by image'}, seed {config.split_seed}"
        )
    if rest == "all":
        found["train"] = found.pop("all")
        made["train"] = "what the split left"
    for name in SPLITS:
        _check_classes(folders.get(name, root), name, found[name], classes)
    _check_disjoint(found, pattern)
    if config.max_train is not None and config.max_train < len(found["train"]):
        found["train"] = stratified_sample(found["train"], len(classes), config.max_train, config.split_seed)
        made["train"] += f", a stratified sample of {len(found['train']):,}"
    membership = {name: tuple(found[name]) for name in SPLITS}
    return Splits(root, tuple(classes), membership, {name: made[name] for name in SPLITS})


def labelled(
    classes: tuple[str, ...], samples: Sequence[Sample], logits: np.ndarray, positive: str | None = None
) -> Predictions:
    """Logits (S, K) of the samples as predictions with labels; with patients only where every image has one."""
    groups = tuple(str(s.group) for s in samples) if all(s.group is not None for s in samples) else None
    labels = np.array([s.label for s in samples], dtype=np.int64)
    return Predictions(classes, tuple(s.path for s in samples), groups, labels, logits, positive=positive)


def pretraining_splits(config: PretrainDataConfig) -> tuple[Splits, int]:
    """The images to pretrain on: never those of the test.

    The training and validation part of `make_splits`, so that the test of the training to come is left out. With
    `unlabelled` all images but those below a test folder; validation is the val folder, or `val_fraction` of the
    images, by patient where they are known.

    Returns:
        splits `train` and `val`, and the number of test images left out.

    Raises:
        DataError, UsageError: as `make_splits`.
    """
    root = data_folder(config.root)
    if not config.unlabelled:
        try:
            splits = make_splits(config)
        except DataError as error:
            raise DataError(error.problem, f"{error.fix}; or, if the folders are no classes, --unlabelled") from None
        kept = {name: splits.samples[name] for name in ("train", "val")}
        return Splits(root, splits.classes, kept, {n: splits.made[n] for n in kept}), len(splits.samples["test"])
    pattern, folders = compile_group(config.group_regex), split_folders(root)
    found: dict[str, list[Sample]] = {name: [] for name in SPLITS}
    for path in image_files(root):
        name = next(
            (name for name in ("val", "test") if name in folders and path.is_relative_to(folders[name])), "train"
        )
        relative = path.relative_to(root).as_posix()
        found[name].append(Sample(relative, 0, group_of(relative, pattern)))
    for samples in found.values():
        _need_patients(root, samples, pattern)
    if not found["train"]:
        raise DataError(f"{root}: holds no image to pretrain on", "name a folder of images")
    made = {"train": "all other images", "val": f"folder {folders['val'].name}/" if "val" in folders else ""}
    if "val" not in folders:
        share = config.val_fraction
        found["val"], found["train"] = split_off(found["train"], 1, share, config.split_seed, "val", root)
        made["val"] = f"{share:.0%} split off {'by patient' if pattern else 'by image'}, seed {config.split_seed}"
    if config.max_train is not None and config.max_train < len(found["train"]):
        found["train"] = stratified_sample(found["train"], 1, config.max_train, config.split_seed)
        made["train"] = f"a sample of {len(found['train']):,} of the others"
    _check_disjoint(found, pattern)
    return Splits(root, ("image",), {name: tuple(found[name]) for name in ("train", "val")}, made), len(found["test"])


def data_folder(root: str | Path | None) -> Path:
    """The folder, checked. Raises DataError where there is none."""
    if root is None:
        raise UsageError("no data folder is named", "vitmed train DIR, or data.root in the config")
    folder = Path(root)
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {what}", "name a folder that holds one folder of images per class")
    return folder


def split_folders(root: Path) -> dict[str, Path]:
    """Split name -> its folder, where the root is laid out by split. Raises DataError for two of one kind."""
    found: dict[str, Path] = {}
    for folder in _folders(root):
        for name, spellings in SPLIT_NAMES.items():
            if folder.name.lower() in spellings:
                if name in found:
                    raise DataError(
                        f"{root}: both {found[name].name}/ and {folder.name}/ are there", "keep one of them"
                    )
                found[name] = folder
    return {name: found[name] for name in SPLITS if name in found}


def has_classes(root: Path) -> bool:
    """Whether the images lie in two or more folders that training would take as classes."""
    folders = split_folders(root)
    return len(_folders(folders.get("train", root))) > 1 and (not folders or "train" in folders)


def class_names(folder: Path) -> list[str]:
    """The class folders, sorted by name. Raises DataError where there are none."""
    names = sorted(entry.name for entry in _folders(folder))
    if not names:
        loose = sum(1 for entry in os.scandir(folder) if entry.is_file() and is_image(entry.path))
        what = f"{loose:,} images but no class folders" if loose else "neither class folders nor images"
        raise DataError(f"{folder}: holds {what}", "sort the images into one folder per class")
    return names


def scan(root: Path, folder: Path, classes: list[str], pattern: re.Pattern[str] | None) -> list[Sample]:
    """Every image below `folder/<class>/`, sorted by path, in class order.

    Raises:
        DataError: a class folder that is not in `classes`, or a path in which `pattern` finds no patient.
    """
    extra = sorted(set(class_names(folder)) - set(classes))
    if extra:
        raise DataError(
            f"{folder}: class folder {', '.join(map(repr, extra))} is not one of the classes {', '.join(classes)}",
            "rename or remove it; classes are matched by name",
        )
    samples = []
    for label, name in enumerate(classes):
        for path in image_files(folder / name):
            relative = path.relative_to(root).as_posix()
            samples.append(Sample(relative, label, group_of(relative, pattern)))
    _need_patients(folder, samples, pattern)
    return samples


def image_files(folder: Path) -> list[Path]:
    """Files below a folder that vitmed takes for images, sorted; hidden files and folders are passed over."""
    found = []
    for where, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not _loops(where, name))
        paths = [f"{where}{os.sep}{name}" for name in files if not name.startswith(".")]
        found += [Path(path) for path in paths if is_image(path)]
    return sorted(found)


def compile_group(expression: str | None) -> re.Pattern[str] | None:
    """The group expression, compiled. Raises UsageError where it is not a regular expression."""
    if expression is None:
        return None
    try:
        return re.compile(expression)
    except re.error as error:
        raise UsageError(
            f"--group-regex {expression}: not a regular expression ({error})", "quote it for the shell"
        ) from None


def group_of(path: str, pattern: re.Pattern[str] | None) -> str | None:
    """The patient in a relative path, or None where there is no expression or it finds none."""
    match = pattern.search(path) if pattern is not None else None
    if pattern is None or match is None:
        return None
    return (match.group(1) if pattern.groups else match.group()) or None


def split_off(
    samples: list[Sample], classes: int, fraction: float, seed: int, name: str, root: Path
) -> tuple[list[Sample], list[Sample]]:
    """Take a stratified share of the samples, whole patients where they are known.

    Returns:
        the share and the rest, both in the order of their paths; every class has an image in both.

    Raises:
        DataError: a class has too few images, or too few patients, for that.
    """
    labels = np.array([sample.label for sample in samples])
    taken = np.zeros(len(samples), dtype=bool)
    if samples and samples[0].group is not None:
        groups = np.array([sample.group for sample in samples])
        if len(set(groups)) < 2:
            raise DataError(f"{root}: one patient cannot be split into train and {name}", "add patients")
        taken[_patients(labels, groups, fraction, seed)] = True
    else:
        rng = np.random.default_rng([seed, SPLITS.index(name)])
        for k in range(classes):
            of_class = np.flatnonzero(labels == k)
            count = max(1, round(len(of_class) * fraction))
            taken[rng.permutation(of_class)[:count]] = True
    share = [sample for sample, yes in zip(samples, taken, strict=True) if yes]
    rest = [sample for sample, yes in zip(samples, taken, strict=True) if not yes]
    for k in range(classes):
        if not any(sample.label == k for sample in rest) or not any(sample.label == k for sample in share):
            count = int((labels == k).sum())
            what = f"{count} image{'s' * (count != 1)}" + (
                " of too few patients" if samples[0].group is not None else ""
            )
            path = Path(samples[int(np.flatnonzero(labels == k)[0])].path).parent
            raise DataError(
                f"{root / path}: the class has {what}, too few to split off {name}",
                "add images, remove the class, or bring your own split folders",
            )
    return share, rest


def _patients(labels: np.ndarray, groups: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Indices of about `fraction` of the samples, whole patients; none where no such share has every class.

    The first fold of a stratified k-fold over patients that holds, and leaves, an image of every class; fewer
    and so larger folds where a patient has one class only and there are few of them.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    classes = np.unique(labels)
    most = min(max(2, round(1 / fraction)), len(np.unique(groups)), int(np.bincount(labels).max()))
    for folds in range(most, 1, -1):
        kfold = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a class with fewer images than folds; checked here
            parts = list(kfold.split(labels, labels, groups))
        for rest, part in parts:
            if np.array_equal(np.unique(labels[part]), classes) and np.array_equal(np.unique(labels[rest]), classes):
                return part
    return np.empty(0, dtype=np.int64)


def stratified_sample(samples: list[Sample], classes: int, size: int, seed: int) -> list[Sample]:
    """`size` samples, every class in proportion (largest remainders) and at least once, in the order of their paths.

    Fewer than one for each class cannot be: then one for each.
    """
    rng = np.random.default_rng([seed, len(SPLITS)])
    labels = np.array([sample.label for sample in samples])
    share = size * np.bincount(labels, minlength=classes) / len(samples)
    counts = np.maximum(1, np.floor(share)).astype(int)
    while counts.sum() < min(size, len(samples)):
        counts[np.argmax(share - counts)] += 1
    while counts.sum() > max(size, classes):
        counts[np.argmax(np.where(counts > 1, counts - share, -np.inf))] -= 1
    keep = [i for k in range(classes) for i in rng.permutation(np.flatnonzero(labels == k))[: counts[k]].tolist()]
    return [samples[i] for i in sorted(keep)]


def _loops(where: str, name: str) -> bool:
    """Whether a folder is a link back to where it lies in: following it would never end."""
    path = Path(where, name)
    return path.is_symlink() and Path(where).resolve().is_relative_to(path.resolve())


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(
            Path(entry.path) for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError as error:
        raise DataError(f"{root}: cannot be read ({error.strerror})", "check its permissions") from None


def _need_two(folder: Path, classes: list[str]) -> None:
    if len(classes) < 2:
        inner = class_names(folder / classes[0]) if any(_folders(folder / classes[0])) else []
        fix = f"point at {folder / classes[0]}" if len(inner) > 1 else "add a folder for each other class"
        raise DataError(f"{folder}: holds one class folder, {classes[0]!r}; a classifier needs two", fix)


def _need_patients(folder: Path, samples: list[Sample], pattern: re.Pattern[str] | None) -> None:
    missed = [sample.path for sample in samples if sample.group is None]
    if pattern is not None and missed:
        raise DataError(
            f"{folder}: --group-regex {pattern.pattern!r} finds no patient in {len(missed):,} of {len(samples):,} "
            "paths:\n" + "\n".join(missed[:5]),
            "widen the expression, or move these files away",
        )


def _check_classes(folder: Path, split: str, samples: list[Sample], classes: list[str]) -> None:
    have = {sample.label for sample in samples}
    for label, name in enumerate(classes):
        if label not in have:
            where = "" if split == "all" else f" in the {split} split"
            raise DataError(
                f"{folder / name}: class {name!r} has no image{where}", "add images, or remove the class everywhere"
            )


def _check_disjoint(found: dict[str, list[Sample]], pattern: re.Pattern[str] | None) -> None:
    if pattern is None:
        return
    seen: dict[str, str] = {}
    for split in SPLITS:
        for group in sorted({str(sample.group) for sample in found[split]}):
            if group in seen:
                raise DataError(
                    f"patient {group!r} is in {seen[group]} and in {split}", "move all images of a patient to one split"
                )
            seen[group] = split
