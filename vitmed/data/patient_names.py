"""Guess from file names which patient an image shows. vitmed reports the guess, and uses it only if you confirm it.

A wrong guess is worse than none. So a pattern must fit all images, some images must share an id (a number that no two
images share counts images), and the ids must differ from the class folders.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from vitmed.data.folders import SPLIT_WORDS

SAMPLE = 500  # paths to try first
FEW = 5  # fewer ids may mean something else, such as a magnification or a batch
# Letters before a number that do not indicate a person.
NO_PERSON = {
    *("x", "y", "z", "t", "ch", "w", "im", "img", "pic", "dsc", "roi", "fov", "fig", "fr", "sl", "se", "ser", "scn"),
    *("ct", "mr", "mri", "us", "cr", "dx", "xr", "pet", "oct", "cxr", "vol", "day", "run", "ep", "hr", "id", "no"),
    *("nr", "idx", "aug"),
}
WORDS = "patient|person|subject|subj|sub|pat|pt|case|donor|participant|proband|mouse|animal"


class Guess(NamedTuple):
    """What file names suggest as groups.

    Attributes:
        expression: for `--group-regex`.
        patients: number of groups; examples: the first of them.
        what: "patient", or "original" if the groups are augmented copies of one image.
        evidence: why, in words; "" for a usual form of file name.
    """

    expression: str
    patients: int
    examples: tuple[str, ...]
    what: str = "patient"
    evidence: str = ""


class Shape(NamedTuple):
    """A form of file name.

    Attributes:
        expressions: from paths to the regular expressions that may fit.
        least: smallest number of ids.
        shared: smallest share of images that have an id in common with another image.
        plain: whether the number may also be a date or a counter, so ids that look like one are refused.
    """

    expressions: Callable[[Sequence[str], bool], Iterator[str]]
    least: int = 2
    shared: float = 0.0
    plain: bool = False


def guess_patients(paths: Sequence[str], folders_are_classes: bool = True) -> Guess | None:
    """The first shape that fits all paths, or none.

    Args:
        paths: relative to the data root, with forward slashes.
        folders_are_classes: whether the first folder (after train, val or test) is the class.
    """
    if len(paths) < 2:
        return None
    some = paths[:: max(1, len(paths) // SAMPLE)]
    for shape in SHAPES:
        for expression in shape.expressions(some, folders_are_classes):
            ids = ids_of(expression, some) and ids_of(expression, paths)
            if ids and _plausible(shape, ids, paths, folders_are_classes):
                names = sorted(set(ids))
                return Guess(expression, len(names), tuple(names[:3]))
    return None


def ids_of(expression: str, paths: Sequence[str]) -> list[str] | None:
    """The match in every path; None if one path has no match."""
    found = [match.group(1) for match in map(re.compile(expression).search, paths) if match]
    return found if len(found) == len(paths) else None


def _plausible(shape: Shape, ids: Sequence[str], paths: Sequence[str], folders_are_classes: bool) -> bool:
    count = Counter(ids)
    together = sum(n for n in count.values() if n > 1)
    if len(count) < shape.least or together == 0 or together < shape.shared * len(ids):
        return False
    if shape.plain and not _plain_ids(count):
        return False
    pairs = {(id_, class_folder(path)) for id_, path in zip(ids, paths, strict=True)}
    one_to_one = len(pairs) == len(count) == len({name for _, name in pairs})
    return not (folders_are_classes and one_to_one)  # then the id is the class


def _plain_ids(ids: Counter[str]) -> bool:
    """Whether the numbers are not dates and, without letters, all have the same width."""
    numbers = [re.sub(r"\D", "", id_) for id_ in ids]
    alone = all(id_.isdigit() for id_ in ids)
    if alone and len({len(number) for number in numbers}) > 1:
        return False
    return sum(map(_is_date, numbers)) < 0.8 * len(numbers)


def _is_date(number: str) -> bool:
    try:
        return len(number) in (8, 12, 14) and 1900 <= datetime.date.fromisoformat(number[:8]).year <= 2100
    except ValueError:
        return False


def class_folder(path: str) -> str:
    """The first folder, after that of the split."""
    parts = path.split("/")
    return parts[_before_class(parts)] if len(parts) > 1 else ""


def _before_class(parts: Sequence[str]) -> int:
    """1 if the path begins with the folder of a split, else 0."""
    return int(len(parts) > 2 and parts[0].lower() in SPLIT_WORDS)


def _known(expression: str) -> Callable[[Sequence[str], bool], Iterator[str]]:
    return lambda paths, folders_are_classes: iter([expression])


def _folders(paths: Sequence[str], folders_are_classes: bool) -> Iterator[str]:
    """A folder for each patient: P007/ or 0001234/, at the same depth for all images."""
    split = [path.split("/") for path in paths]
    depths = {len(parts) - 1 - _before_class(parts) for parts in split}
    begin = 1 if folders_are_classes else 0
    for depth in range(begin, min(depths)):
        tokens = [parts[_before_class(parts) + depth] for parts in split]
        if (token := _token(tokens)) is not None and all(re.fullmatch(token, text) for text in tokens):
            before = rf"(?:(?i:{'|'.join(sorted(SPLIT_WORDS))})/)?(?:[^/]+/){{{depth}}}"
            yield rf"^{before}({token})/"


def _names(paths: Sequence[str], folders_are_classes: bool) -> Iterator[str]:
    """The file name begins with the patient, and the image follows: P007_c012.png."""
    names = [path.rpartition("/")[2] for path in paths]
    if (token := _token(names)) is None:
        return
    if token.startswith(r"\d"):
        yield rf"(?:^|/)({token})[_-]\d{{1,4}}\.[^/.]*$"
    else:
        yield rf"(?:^|/)({token})[^\d./][^/]*$"


def _token(texts: Sequence[str]) -> str | None:
    """The expression for an id at the start of all texts: one to three letters, the same in all, and a number; or a
    number alone."""
    if first := re.match(r"(([A-Za-z]{1,3})[-_]?)\d", texts[0]):
        letters, word = first.groups()
        same = all(text.startswith(letters) for text in texts)
        return rf"{letters}\d+" if same and word.lower() not in NO_PERSON else None
    return r"\d{5,}" if re.match(r"\d{5}", texts[0]) else None


SHAPES = (
    Shape(_known(r"(TCGA-[A-Z0-9]{2}-[A-Z0-9]{4})")),  # barcode of The Cancer Genome Atlas
    Shape(_known(r"(\d{3}_S_\d{4})")),  # ADNI
    Shape(_known(r"(?:^|/)(sub-[A-Za-z0-9]+)[_/]")),  # Brain Imaging Data Structure
    Shape(_known(rf"(?i)(?:^|[/_\-. ])((?:{WORDS})[ _\-.]?(?:id)?[ _\-.]?[a-z]{{0,2}}\d+)")),
    Shape(_folders, least=FEW, shared=0.5, plain=True),
    Shape(_known(r"(?:^|/)([^/]*\d)[_-](?i:left|right|od|os)\.[^/]*$"), shared=0.5),  # two eyes of one person
    Shape(_names, least=FEW, shared=0.5, plain=True),
)
