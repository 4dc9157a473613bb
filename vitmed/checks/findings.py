"""What can be wrong with a data set, and how bad it is; the table of all of it is at the bottom.

The functions that find it are in `diagnosis`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

SMALL_CLASS = 10  # images
FEW_PATIENTS = 5  # fewer, counted as equal shares, and a class is one of patients
BY_CHANCE = 0.01  # chance that a meaningless trait of patients sorts the classes apart
THIN = 4.0  # longer side / shorter side
TOLD, CERTAIN = 0.65, 0.8  # AUROC from which a shortcut is a note, and a warning
NAMED = 20  # files that a finding names


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        severity: "error", "warning" or "note".
        code: a key of FINDINGS.
        problem: what was found, with numbers; free of file names and patients, so that it may stand in a report.
        files: the first of the files, folders or patients it is about.
        count: of all of these.
        fix: what to do.
    """

    severity: str
    code: str
    problem: str
    files: tuple[str, ...]
    count: int
    fix: str

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        return {**asdict(self), "files": list(self.files)}


def make(code: str, problem: str, files: Iterable[str] = (), severity: str | None = None, fix: str = "") -> Finding:
    """A finding with the severity and fix of the table, where none is given."""
    usual, _, usual_fix = FINDINGS[code]
    named = tuple(files)
    return Finding(severity or usual, code, problem, named[:NAMED], len(named), fix or usual_fix)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first: by severity, then by the table."""
    severities, codes = ["error", "warning", "note"], list(FINDINGS)
    return sorted(findings, key=lambda f: (severities.index(f.severity), codes.index(f.code)))


# Code -> severity, what it means, what to do. The order is that in which findings of one severity are told.
FINDINGS: dict[str, tuple[str, str, str]] = {
    "class_of_one_patient": (
        "error",
        "All images of a class come from one patient: a model can learn the patient instead of the finding.",
        "add patients to the class; until then no figure tells what the model has learned",
    ),
    "class_is_patient": (
        "error",
        "No patient has images of two classes, and there are so few patients that whatever differs between them tells "
        "the class.",
        "add patients to each class, or images of both classes of the same patients",
    ),
    "two_labels": (
        "error",
        "The same file, byte for byte, lies in two classes: one of the labels is wrong.",
        "remove the wrong one; training refuses such data unless --allow-leakage is given",
    ),
    "patients_across_splits": (
        "error",
        "A patient has images in two splits, so the test judges patients that the model knows.",
        "move all images of a patient to one split",
    ),
    "copies_across_splits": (
        "error",
        "The same file, byte for byte, lies in two splits, so the test judges images that the model has seen.",
        "remove the copies from the test",
    ),
    "empty_file": ("error", "A file of 0 bytes.", "copy it again, or remove it"),
    "truncated": ("error", "A file whose head is sound and whose pixels are not.", "copy it again, or remove it"),
    "unreadable": ("error", "A file that is no image, or not one that vitmed reads.", "convert or remove it"),
    "multi_frame": ("error", "A file of several pages or frames.", "save the frame that you mean as a file of its own"),
    "no_classes": (
        "error",
        "No image lies in a class folder.",
        "sort the images into one folder per class, or name one (vitmed pretrain --unlabelled needs none)",
    ),
    "one_class": ("error", "There is one class only; a classifier needs two.", "add a folder for each other class"),
    "class_names_alike": (
        "error",
        "Two class folders are called the same but for case, blanks, signs or Unicode form.",
        "put their images into one folder",
    ),
    "missing_class": (
        "error",
        "A split lacks a class that another has.",
        "add the class to the split, or remove it everywhere",
    ),
    "empty_class": ("error", "A class folder holds no image.", "add images, or remove the folder"),
    "two_split_folders": ("error", "Two folders are the same split by name.", "keep one of them"),
    "nested_root": (
        "error",
        "The folder holds itself once more: root/malaria/malaria/<class>. Where it lies beside the classes, training "
        "would take it for a class of its own.",
        "remove the inner folder",
    ),
    "class_of_few_patients": (
        "warning",
        f"A class comes from few patients: counted as equal shares, fewer than {FEW_PATIENTS}.",
        "add patients to the class; split by patient, and judge by the patients of the test",
    ),
    "near_two_labels": (
        "warning",
        "Two files show the same picture in another size, quality or brightness, and lie in two classes.",
        "look at both; one of the labels is wrong",
    ),
    "near_copies_across_splits": (
        "warning",
        "Two files show the same picture in another size, quality or brightness, and lie in two splits.",
        "remove one of each pair, or move it",
    ),
    "shortcut_geometry": (
        "warning",
        "Width, height and proportions tell the label.",
        "cut all images the same way, whatever their class",
    ),
    "shortcut_file": (
        "warning",
        "File size and bytes per pixel tell the label. They also tell how much there is to see, which may be the "
        "finding itself.",
        "save all images by the same program with the same settings; then look whether it stays",
    ),
    "shortcut_format": (
        "warning",
        "Format, colour mode, bit depth or rotation tell the label: the classes come from different sources.",
        "convert all images the same way; look for other traces of their sources",
    ),
    "shortcut_colour": (
        "warning",
        "The mean colour tells the label: stain, light or exposure, or the finding where it has a colour.",
        "--normalize image and stain augmentation take much of it away; a model must beat this figure",
    ),
    "shortcut_border": (
        "warning",
        "The colour of the border tells the label: frames, rulers, vignettes or the background.",
        "crop all images the same way",
    ),
    "copies": ("warning", "The same file lies more than once in a class.", "keep one of each"),
    "person_in_name": (
        "warning",
        "A file or folder name looks like a person's name, a date of birth or an e-mail address.",
        "rename the files; names travel into splits.csv and predictions.csv",
    ),
    "person_in_file": (
        "warning",
        "Metadata of a file name a person, or a place: DICOM tags, EXIF, PNG texts.",
        "remove the metadata before the files are shared; vitmed copies none of it",
    ),
    "text_in_picture": (
        "warning",
        "DICOM says that there is text in the pixels (BurnedInAnnotation), or the modality often has some.",
        "look at the pictures; remove the text before they are shared, and before a model reads it",
    ),
    "mixed_modes": (
        "warning",
        "Images are stored in several colour modes (grey, RGB, palette, with alpha).",
        "convert all the same way; training makes all alike, but the sources may differ in more",
    ),
    "mixed_depths": (
        "warning",
        "Images are stored with several bit depths.",
        "convert all the same way, with one window",
    ),
    "constant": ("warning", "Images without any content.", "remove them"),
    "thin": (
        "warning",
        f"Images whose one side is {THIN:g} times the other or more: padded to a square, little is left of them.",
        "cut them, or --resize crop",
    ),
    "small_class": (
        "warning",
        f"A class has fewer than {SMALL_CLASS} images in a split: nothing that is said of it is certain.",
        "add images",
    ),
    "loose_images": ("warning", "Images lie beside the class folders and belong to none.", "move them into a class"),
    "outside_splits": (
        "note",
        "Images lie beside the split folders; training does not see them.",
        "move them, or leave it",
    ),
    "near_copies": (
        "note",
        "Two files of one class and split show the same picture in another size, quality or brightness.",
        "keep one of each pair",
    ),
    "left_right": (
        "note",
        "Two class names differ only by their side: a mirrored image would carry the wrong label.",
        "--set augment.flips=false; training asks for it where a policy mirrors",
    ),
    "patients_guessed": (
        "note",
        "The patients were guessed from the file names; nothing but these findings rests on it.",
        "if it is right, tell training the same by --groups names",
    ),
    "patients_unknown": (
        "note",
        "Nobody said which images are of one patient: a split by image is likely optimistic.",
        "--group-regex finds the patient in a file's path",
    ),
    "mixed_sizes": (
        "note",
        f"The largest side is {THIN:g} times the smallest or more.",
        "nothing, if it is meant; the size in px is lost when images are made square",
    ),
    "mixed_formats": ("note", "Images are stored in several file formats.", "nothing, if no shortcut is told"),
    "rotated": (
        "note",
        "EXIF says to turn or mirror images. vitmed does so everywhere; other programs may not.",
        "nothing; save them turned if other programs read them too",
    ),
    "rubbish": ("note", "Files that systems leave behind (Thumbs.db, .DS_Store, ._*).", "remove them, or leave it"),
    "other_files": ("note", "Files of types that vitmed does not read.", "convert them if they are images"),
}
