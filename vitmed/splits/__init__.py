"""Which images belong to train, validation and test, and under which class: by name, by patient, by table, by seed.

No file is copied, moved or changed. One class order, sorted by name, serves every split.
"""

from vitmed.splits.guessing import Guess, guess_patients
from vitmed.splits.listing import ALL, Listing, list_by_folder, list_by_table, list_images, scan, with_patients
from vitmed.splits.making import make_splits, pretraining_splits
from vitmed.splits.patients import compile_group, group_of, know_patients
from vitmed.splits.samples import SPLIT_NAMES, SPLITS, Sample, Splits, labelled
from vitmed.splits.scanning import (
    class_names,
    data_folder,
    has_classes,
    image_files,
    image_names,
    is_image,
    split_folders,
)
from vitmed.splits.tables import labels_from_table

__all__ = [
    "ALL",
    "SPLITS",
    "SPLIT_NAMES",
    "Guess",
    "Listing",
    "Sample",
    "Splits",
    "class_names",
    "compile_group",
    "data_folder",
    "group_of",
    "guess_patients",
    "has_classes",
    "image_files",
    "image_names",
    "is_image",
    "know_patients",
    "labelled",
    "labels_from_table",
    "list_by_folder",
    "list_by_table",
    "list_images",
    "make_splits",
    "pretraining_splits",
    "scan",
    "split_folders",
    "with_patients",
]
