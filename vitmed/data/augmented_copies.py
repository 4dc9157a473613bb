"""Guess from file names which images are augmented copies of one original: a_flip.png and a_rot90.png of a.png.

Copies of one original in two splits make a result look too good. As with patients, vitmed reports the guess and uses
it only if you confirm it. The originals are no patients: one patient may have several.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from vitmed.data.patient_names import FEW, Guess, class_folder, ids_of

SUFFIXES = "jpe?g|png|bmp|tiff?|webp"
CHANGES = (
    r"[hv]?flip(?:ped)?(?:[ _-]?(?:lr|ud|h|v|x|y|horizontal(?:ly)?|vertical(?:ly)?))?|mirror(?:ed)?|"
    r"rot(?:at(?:e|ed|ion))?(?:[ _-]?\d{1,3})?|"
    r"(?:aug(?:mented|mentation)?|blur(?:red)?|nois[ey]|bright(?:er|ness)?|dark(?:er)?|contrast|zoom(?:ed)?|"
    r"shear(?:ed)?|elastic|crop(?:ped)?)(?:[ _-]?\d+)?"
)
# What programs that augment or copy write behind the name of the original, before the suffix of the file.
BEHIND = (
    rf"[ _-]+(?:{CHANGES})(?![a-z])",
    r"[ _-]+copy(?:[ _-]?\(?\d+\)?)?",  # of Windows and macOS
    rf"(?:[._](?:{SUFFIXES}))?\.rf\.[0-9a-z]+",  # of Roboflow
    rf"\.(?:{SUFFIXES})_[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}",  # of Augmentor
)
BEFORE = r"aug(?:mented)?_(?:\d+_)?|(?:flip|rotat|mirror)(?:p?ed)_|copy of "
NUMBERED = re.compile(r"^(.+?) ?\(\d+\)$")  # a second download, if the first one is there too
KERAS = re.compile(r"^(.*?)_(\d+)_(0|[1-9]\d{0,6})$")  # save_to_dir: prefix, index of the image, random number
RANDOM = (10**4, 10**7)  # ranges of that number in old and new versions
FEWEST = 10  # copies
SAMPLE = 5000  # paths to try first


class _Name(NamedTuple):
    folder: str
    stem: str


def guess_copies(paths: Sequence[str], folders_are_classes: bool = True) -> Guess | None:
    """Groups of copies of one original, or none; arguments as of `suggest_groups`."""
    names = [_Name(path.rpartition("/")[0], stem(path)) for path in paths]
    some = random.Random(0).sample(names, min(SAMPLE, len(names)))  # every k-th name may be an original
    for behind in _marks(some, names):
        marks = "|".join(behind) or "(?!)"
        marked = re.compile(rf"(?i)^(?:{BEFORE})|(?:{marks})$")
        if not any(marked.search(name.stem) for name in some):
            continue
        copies = [bool(marked.search(name.stem)) for name in names]
        if sum(copies) < FEWEST:
            continue
        tail = rf"(?:{marks})*\.[^./]+$"
        # A name counts for all folders, for its class, or for its folder: the first where no two originals share it.
        for head in (rf"(?:^|/)(?:{BEFORE})?([^/]+?)", r"(?:^|/)((?:[^/]+/)?[^/]+?)", r"^(.+?)"):
            expression = f"(?i){head}{tail}"
            ids = ids_of(expression, paths)
            if ids and _plausible(ids, copies, paths, folders_are_classes):
                count = Counter(ids)
                first = next(i for i, copy in enumerate(copies) if copy and count[ids[i]] > 1)
                alike = [path.rpartition("/")[2] for path, id_ in zip(paths, ids, strict=True) if id_ == ids[first]]
                what = f"look like copies, such as {' and '.join(alike[:2])}"
                evidence = f"{sum(copies):,} of {len(paths):,} file names {what}"
                return Guess(expression, len(count), tuple(sorted(count)[:3]), "original", evidence)
    return None


def stem(path: str) -> str:
    """The name of a file without its suffix."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] or name


def _marks(some: Sequence[_Name], names: Sequence[_Name]) -> Iterator[tuple[str, ...]]:
    """What is behind the names of copies: the marks of Keras, which need statistics, or all others that occur."""
    used = [mark for mark in BEHIND if any(map(re.compile(rf"(?i){mark}$").search, (name.stem for name in some)))]
    if any(NUMBERED.match(name.stem) for name in some):
        there = {(name.folder, name.stem) for name in names}
        originals = [(name.folder, match[1]) for name in names if (match := NUMBERED.match(name.stem))]
        if sum(original in there for original in originals) >= 0.95 * len(originals):
            used.append(r" ?\(\d+\)")
    yield tuple(used)
    found = [match for name in some if (match := KERAS.match(name.stem))]
    if len(found) >= FEWEST and _random([int(match[3]) for match in found]):
        indices = {match[2] for match in found}
        if len(indices) == 1:  # one image at a time: the prefix is the original
            yield (rf"_{indices.pop()}_\d+",)
        elif len(found) == len(some):
            yield (r"(?<=\d)_\d+",)


def _random(numbers: Sequence[int]) -> bool:
    """Whether numbers look like draws of `np.random.randint(range)`, and not like counters or coordinates."""
    for limit in RANDOM:
        if limit / 2 <= max(numbers) < limit:
            different = limit * (1 - (1 - 1 / limit) ** len(numbers))  # expected
            return abs(len(set(numbers)) / different - 1) < 0.1 and abs(median(numbers) / limit - 0.5) < 0.2
    return False


def _plausible(ids: Sequence[str], copies: Sequence[bool], paths: Sequence[str], folders_are_classes: bool) -> bool:
    """Most copies share an original, each in one class, and no two images without a mark are the same original."""
    count = Counter(ids)
    originals = Counter(id_ for id_, copy in zip(ids, copies, strict=True) if not copy)
    together = sum(count[id_] > 1 for id_, copy in zip(ids, copies, strict=True) if copy)
    if len(count) < FEW or max(originals.values(), default=0) > 1 or together < 0.5 * sum(copies):
        return False
    classes = defaultdict(set)
    for id_, path in zip(ids, paths, strict=True):
        classes[id_].add(class_folder(path))
    return not folders_are_classes or all(len(names) == 1 for names in classes.values())
