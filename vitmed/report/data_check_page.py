"""data_report.json and data_report.html: what `vitmed check` found, with pictures.

The page is for the lab itself: it names files and patients. It is one file without scripts, and loads nothing.
"""

import contextlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.checks.detect import COPIES, PROBLEMS, Found
from vitmed.core.errors import DataError
from vitmed.core.files import write_json, write_text
from vitmed.core.text_files import csv_text
from vitmed.imaging.decode import read_image
from vitmed.report.blocks import data_uri
from vitmed.report.templates import fill

NUMBERS, PAGE = "data_report.json", "data_report.html"
EXAMPLES = 8  # pictures of a class
PAIRS_TABLE = "copies.csv"  # a row for every copy and the first image that it is a copy of
PAIR_COLUMNS = ("same", "where", "first", "second", "first_label", "second_label", "first_split", "second_split")
PAIRS = 12  # pairs of copies
CLASSES = 20  # classes with pictures
SIDE = 96  # of a picture, px


def write_data_report(folder: Path, root: Path, checked: Found, content: Mapping[str, Any]) -> None:
    """Write page, numbers (the `content`) and copies.csv, each whole or not at all."""
    images = checked.images
    write_json(folder / NUMBERS, content)
    groups = [
        (what, COPIES[code], group)
        for kind, what in (("exact", "file"), ("near", "picture"))
        for code, found in checked.copies[kind].items()  # the worst first
        for group in found
    ]
    pairs: list[Sequence[str]] = [PAIR_COLUMNS]
    for what, where, (first, *others) in groups:
        for pair in ((images[first], images[other]) for other in others):
            labels = ("; ".join(image.kinds) or image.label or "" for image in pair)
            pairs.append((what, where, *(i.path for i in pair), *labels, *(i.split or "" for i in pair)))
    write_text(folder / PAIRS_TABLE, csv_text(pairs))
    shown = [(f"the same {what} {where}", group[:4]) for what, where, group in groups[:PAIRS]]
    examples = []
    for name in sorted({kind for image in images for kind in image.kinds or ("",)})[:CLASSES]:
        paths = [i.path for i in images if name in (i.kinds or ("",)) and not i.record.kind]
        spread = np.unique(np.linspace(0, len(paths) - 1, EXAMPLES).astype(int)).tolist() if paths else []
        examples.append((name or "no class", [paths[i] for i in spread]))
    strips = {"examples": examples, "pairs": [(title, [images[i].path for i in group]) for title, group in shown]}
    pictures = dict[str, str]()  # small PNGs, made from the pixels alone; "" for a file that cannot be decoded
    for path in (path for strip in strips.values() for _, paths in strip for path in paths):
        stream = io.BytesIO()
        with contextlib.suppress(DataError):
            image = read_image(root / path, frame=content["frame"], window=content["window"])
            image.thumbnail((SIDE, SIDE))
            image.save(stream, format="PNG")  # without the metadata of the file
        pictures[path] = data_uri(stream.getvalue()) if stream.tell() else ""
    html = fill(
        "data_check.html.j2",
        title=f"Data check of {content['data']}",
        content=content,
        problems=checked.problems,
        meanings={code: meaning for code, (_, meaning, _) in PROBLEMS.items()},
        **{name: [(title, [(pictures[p], p) for p in paths]) for title, paths in of] for name, of in strips.items()},
    )
    write_text(folder / PAGE, html)
