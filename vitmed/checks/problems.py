"""What can be wrong with a data set, and how bad it is: `PROBLEMS`, at the bottom. `detect` finds the problems."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

SMALL_CLASS = 10  # images
FEW_PATIENTS = 5  # effective number of patients below which a class depends on few of them
BY_CHANCE = 0.01  # chance that an irrelevant trait of the patients separates the classes
FEW_IMAGES = 20  # of a class for training
TINY = 16  # px
THIN = 4.0  # longer side / shorter side
TOLD, CERTAIN = 0.65, 0.8  # AUROC from which a shortcut is a note, and a warning
NAMED = 20  # files that a problem names


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        severity: "error", "warning" or "note"; code: a key of PROBLEMS.
        text: what was found, with numbers; without file names and patients, so that a report can show it.
        files: the first files, folders or patients that it is about; count: how many there are in all.
    """

    severity: str
    code: str
    text: str
    files: tuple[str, ...]
    count: int
    fix: str

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        return {**asdict(self), "files": list(self.files)}


def make(code: str, text: str, files: Iterable[str] = (), severity: str | None = None, fix: str = "") -> Problem:
    """A problem; severity and fix are those of the table unless given."""
    usual, _, usual_fix = PROBLEMS[code]
    named = tuple(files)
    return Problem(severity or usual, code, text, named[:NAMED], len(named), fix or usual_fix)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Worst first: by severity, then by the table."""
    severities, codes = ["error", "warning", "note"], list(PROBLEMS)
    return sorted(problems, key=lambda f: (severities.index(f.severity), codes.index(f.code)))


# Code -> what it means, what to do. Problems of one severity are reported in this order.
ERRORS = {
    "class_of_one_patient": (
        "All images of a class come from one patient: a model can learn to recognise the patient instead of the class.",
        "add patients to the class; or, if other splits have more, train with --folds 5: it tests every patient once",
    ),
    "class_is_patient": (
        "No patient has images of two classes, and there are so few patients that any difference between them can "
        "separate the classes.",
        "add patients to each class, or images of both classes from the same patients",
    ),
    "two_labels": (
        "The same file, byte for byte, is in two classes: one of the labels is wrong.",
        "remove the wrong one; training refuses such data without --allow-leakage",
    ),
    "patients_across_splits": (
        "A patient has images in two splits, so the test contains patients that the model knows.",
        "train with --resplit, which ignores these splits and splits by patient; or move all images of a patient to "
        "one split",
    ),
    "copies_across_splits": (
        "The same file, byte for byte, is in two splits, so the test contains images that the model has seen.",
        "remove the copies from the test; or train with --resplit, which ignores these splits and keeps copies "
        "together where patients are unknown",
    ),
    "empty_file": ("A file is empty (0 bytes).", "copy it again, or remove it"),
    "truncated": (
        "A file starts as an image, but its pixels are incomplete or damaged.",
        "copy it again, or remove it",
    ),
    "unreadable": (
        "A file is not an image that vitmed can read, or a file or folder cannot be opened.",
        "check its permissions, convert it, or remove it",
    ),
    "multi_frame": (
        "A file has several pages or frames.",
        "save the frame that you need as a separate file, or choose it with --frame",
    ),
    "no_classes": (
        "No image is in a class folder.",
        "sort the images into one folder per class, or check a folder that has them (vitmed pretrain --unlabelled "
        "needs no classes)",
    ),
    "one_class": ("There is only one class; a classifier needs two.", "add a folder for each other class"),
    "class_names_alike": (
        "Two class folders have the same name, except for case, spaces, punctuation or Unicode form.",
        "put their images into one folder",
    ),
    "missing_class": (
        "A split lacks a class that another split has.",
        "add the class to the split, or remove it everywhere",
    ),
    "empty_class": ("A class folder contains no image.", "add images, or remove the folder"),
    "too_small_class": (
        "A class has fewer images than there are splits: train, val and test need one each.",
        "add images, or remove the folder",
    ),
    "two_split_folders": ("Two folders have names of the same split.", "keep one of them"),
    "nested_root": (
        "The folder contains itself once more: root/malaria/malaria/<class>. If the inner folder lies beside the "
        "classes, training would take it for a class.",
        "remove the inner folder",
    ),
}
WARNINGS = {
    "class_of_few_patients": (
        f"A class depends on few patients: their effective number is below {FEW_PATIENTS}.",
        "add patients to the class; or train with --folds 5, which tests every patient once",
    ),
    "near_two_labels": (
        "Two files show the same picture in another size, quality or brightness, and are in two classes, or their "
        "numbers differ by more than a standard deviation.",
        "look at both; one of the labels is wrong",
    ),
    "near_copies_across_splits": (
        "Two files show the same picture in another size, quality or brightness, and are in two splits.",
        "remove one of each pair, or move it",
    ),
    "shortcut_geometry": (
        "Width, height and aspect ratio predict the label.",
        "crop all images in the same way, whatever their class",
    ),
    "shortcut_file": (
        "File size and bytes per pixel predict the label. They also depend on how much detail an image shows, which "
        "may be a real difference between the classes.",
        "save all images with the same program and settings; then check again",
    ),
    "shortcut_format": (
        "Format, colour mode, bit depth or rotation predict the label: the classes come from different sources.",
        "convert all images in the same way; look for other traces of their sources",
    ),
    "shortcut_colour": (
        "The mean colour predicts the label: through stain, light or exposure, or because the classes differ.",
        "--normalize image and stain augmentation remove much of it; a model must exceed this AUROC",
    ),
    "shortcut_border": (
        "The colour of the border predicts the label: through frames, rulers, vignettes or the background.",
        "crop all images in the same way",
    ),
    "augmented_copies": (
        "File names look like augmented copies of other images, as flip, rot90 or _0_1234 in a name. Copies of one "
        "original in two splits make a result look too good; vitmed augments while it trains and needs no copies.",
        "remove the copies; or --groups names keeps the copies of one original in one split, with --resplit where the "
        "folder has splits of its own",
    ),
    "copies": ("The same file is in a class more than once.", "keep one of each"),
    "person_in_name": (
        "The name of a file or folder looks like a person's name, a date of birth or an e-mail address.",
        "rename the files; their names appear in splits.csv and predictions.csv",
    ),
    "person_in_file": (
        "The metadata of a file (DICOM tags, EXIF, PNG texts) name a person or a place.",
        "remove the metadata before you share the files; vitmed copies none of them",
    ),
    "text_in_picture": (
        "DICOM states that the pixels contain text (BurnedInAnnotation), or images of this modality often do.",
        "look at the pictures; remove the text before you share them or train on them",
    ),
    "mixed_modes": (
        "Images are stored in several colour modes (grey, RGB, palette, with alpha).",
        "convert all in the same way; training gives all the same mode, but their sources may differ in other ways",
    ),
    "mixed_depths": ("Images are stored with several bit depths.", "convert all in the same way, with one window"),
    "constant": ("Images have one colour all over.", "remove them"),
    "tiny": (
        f"Images have a longer side of fewer than {TINY} px: little of a finding is left at this size.",
        "use the original images, not their thumbnails",
    ),
    "thin": (
        f"Images have one side at least {THIN:g} times as long as the other: padding shrinks them to a thin strip.",
        "crop them, or use --resize crop",
    ),
    "small_class": (
        f"A class has fewer than {SMALL_CLASS} images in a split: its results are uncertain.",
        "add images",
    ),
    "loose_images": ("Images lie beside the class folders and have no class.", "move them into a class"),
}
NOTES = {
    "few_to_train": (
        f"A class has fewer than {FEW_IMAGES} images or {FEW_PATIENTS} patients to train on: what a network "
        "finds may be chance, and the test is too small to say. Training shows this as a warning.",
        "start from public weights (vitmed weights list) and train with --folds 5, which tests every image once",
    ),
    "outside_splits": ("Images lie beside the split folders; training ignores them.", "move them, or leave them"),
    "near_copies": (
        "Two files of one class and split show the same picture in another size, quality or brightness.",
        "keep one of each pair",
    ),
    "left_right": (
        "Two class names differ only in their side: a mirrored image would have the wrong label.",
        "--set augment.flips=false; training requires it where a policy mirrors images",
    ),
    "patients_guessed": (
        "The patients were guessed from the file names; vitmed uses the guess for these problems only.",
        "if the guess is right, train with --groups names",
    ),
    "patients_unknown": (
        "It is not known which images come from one patient: a split by image is likely to be optimistic.",
        "find the patient in the path of a file with --group-regex",
    ),
    "mixed_sizes": (
        f"The longest side of all images is at least {THIN:g} times the shortest.",
        "nothing, if you intend this; resizing to squares removes the size in px",
    ),
    "mixed_formats": ("Images are stored in several file formats.", "nothing, unless a shortcut is reported"),
    "rotated": (
        "EXIF asks to rotate or mirror images. vitmed always does so; other programs may not.",
        "nothing; save them rotated if other programs read them too",
    ),
    "rubbish": ("Files that operating systems leave behind (Thumbs.db, .DS_Store, ._*).", "remove them, or leave them"),
    "other_files": ("Files of types that vitmed does not read.", "convert them if they are images"),
}
PROBLEMS = {  # code -> severity, what it means, what to do
    code: (severity, meaning, fix)
    for severity, kinds in (("error", ERRORS), ("warning", WARNINGS), ("note", NOTES))
    for code, (meaning, fix) in kinds.items()
}
