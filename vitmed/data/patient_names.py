"""What groups of images are called, and guesses from file names: of patients, and of augmented copies of one original.

A wrong guess is worse than none, so vitmed reports a guess and uses it only if you confirm it. A pattern of patients
must fit all images, some images must share an id (a number that no two images share counts images), and the ids must
differ from the class folders. Copies of one original (a_flip.png and a_rot90.png of a.png) in two splits make a result
look too good; the originals are no patients, for one patient may have several. How groups are known is kept in words,
in the splits, the checkpoint and the report; these words also say what they are: patients, originals or groups.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from vitmed.core.text import grouped
from vitmed.data.folders import BEHIND_SPLIT, SPLIT_WORDS, split_of

SAMPLE, SAMPLE_OF_COPIES = 500, 5000  # paths to try first
FEW = 5  # fewer ids may mean something else, such as a magnification or a batch
# Letters before a number that do not indicate a person.
NO_PERSON = {
    *("x", "y", "z", "t", "ch", "w", "im", "img", "pic", "dsc", "roi", "fov", "fig", "fr", "sl", "se", "ser", "scn"),
    *("ct", "mr", "mri", "us", "cr", "dx", "xr", "pet", "oct", "cxr", "vol", "day", "run", "ep", "hr", "id", "no"),
    *("nr", "idx", "aug", "sub", "pat", "pt"),  # the last three have a shape of their own
}
DATE = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:\d{4}|\d{6})?")  # perhaps with the time
WORDS = "patient|person|subject|subj|sub|pat|pt|case|donor|participant|proband|mouse|animal"
NO_HEX = r"(?![\da-f]*[a-f]\d[\da-f]*(?![\da-z]))"  # patient_1a2b and patient_1c9d are not patient 1

AS_ORIGINALS = "as originals of augmented copies"
PEOPLE = re.compile(
    r"pa[tzc]ien|person|subj|case|donor|particip|proband|mouse|animal|\b(sub|pat|pt|pid|mrn)s?\b|^ids?$"
)


class Guess(NamedTuple):
    """What file names suggest as groups."""

    expression: str  # for `--group-regex`
    patients: int  # number of groups
    examples: tuple[str, ...]  # the first of them
    what: str = "patient"  # or "original" if the groups are augmented copies of one image
    evidence: str = ""  # why, in words; "" for a usual form of file name


class Shape(NamedTuple):
    """A form of file name."""

    # a regular expression, or a function from paths to those that may fit
    expressions: str | Callable[[Sequence[str], bool], Iterator[str]]
    shared: float = 0.0  # smallest share of images that have an id in common with another image
    # whether it may also be a date or a counter, so few ids, dates, and numbers alone of several widths, are refused
    plain: bool = False


def guess_patients(paths: Sequence[str], folders_are_classes: bool = True) -> Guess | None:
    """The first shape that fits all paths, or none; arguments as of `suggest_groups`."""
    if len(paths) < 2:
        return None
    some = paths[:: max(1, len(paths) // SAMPLE)]
    for shape in SHAPES:
        may_fit = shape.expressions
        for expression in [may_fit] if isinstance(may_fit, str) else may_fit(some, folders_are_classes):
            if not (ids := ids_of(expression, some) and ids_of(expression, paths)):
                continue
            count = Counter(ids)
            together = sum(n for n in count.values() if n > 1)
            if len(count) < (FEW if shape.plain else 2) or together == 0 or together < shape.shared * len(ids):
                continue
            if shape.plain:
                numbers = [re.sub(r"\D", "", id_) for id_ in count]
                if all(id_.isdigit() for id_ in count) and len({len(number) for number in numbers}) > 1:
                    continue
                if sum(map(bool, map(DATE.fullmatch, numbers))) >= 0.8 * len(numbers):
                    continue
            pairs = {(id_, class_folder(path)) for id_, path in zip(ids, paths, strict=True)}
            one_to_one = len(pairs) == len(count) == len({name for _, name in pairs})
            if not (folders_are_classes and one_to_one):  # else the id is the class
                return Guess(expression, len(count), tuple(sorted(count)[:3]))
    return None


def ids_of(expression: str, paths: Sequence[str]) -> list[str] | None:
    """The match in every path; None if one path has no match."""
    ids = [match[1] for match in map(re.compile(expression).search, paths) if match]
    return ids if len(ids) == len(paths) else None


def parts_of(path: str) -> list[str]:
    """The folders and the name of a file, without the folder of the split."""
    parts = path.split("/")
    return parts[int(len(parts) > 2 and split_of(parts[0]) is not None) :]


def class_folder(path: str) -> str:
    return parts_of(path)[0] if "/" in path else ""


def _folders(paths: Sequence[str], folders_are_classes: bool) -> Iterator[str]:
    """A folder for each patient: P007/ or 0001234/, at the same depth for all images."""
    split = [parts_of(path) for path in paths]
    for depth in range(1 if folders_are_classes else 0, min(map(len, split)) - 1):
        tokens = [parts[depth] for parts in split]
        if (token := _token(tokens)) is not None and all(re.fullmatch(token, text) for text in tokens):
            before = rf"(?:(?i:(?:{'|'.join(sorted(SPLIT_WORDS))})(?:{BEHIND_SPLIT})?)/)?(?:[^/]+/){{{depth}}}"
            yield rf"^{before}({token})/"


def _names(paths: Sequence[str], folders_are_classes: bool) -> Iterator[str]:
    """The file name begins with the patient, and the image follows: P007_c012.png."""
    if (token := _token([path.rpartition("/")[2] for path in paths])) is None:
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


def known_by_column(column: str, flag: str) -> str:
    """How the groups of a column are known, in words: patients where the name of the column says so."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[^A-Za-z]+", " ", column).lower().strip()
    if PEOPLE.search(words):
        return f"by table ({flag})"
    name = "" if words in ("group", "groups") else re.sub(r"[^\w.-]+", "_", column) + " "
    return f"as {name}groups, by table ({flag})"


def group_word(known: str) -> str:
    """One group, from how groups are known: "patient", "original", "slide_field group" or "group"."""
    if known.startswith(AS_ORIGINALS):
        return "original"
    found = re.match(r"as ((?:.* )?group)s, by table", known)
    return found[1] if found else "patient"


SHAPES = (
    Shape(r"(TCGA-[A-Z0-9]{2}-[A-Z0-9]{4})"),  # barcode of The Cancer Genome Atlas
    Shape(r"(\d{3}_S_\d{4})"),  # ADNI
    Shape(r"(?:^|/)(sub-[A-Za-z0-9]+)[_/]"),  # Brain Imaging Data Structure
    Shape(rf"(?i)(?:^|[/_\-. ])((?!patch)(?:{WORDS})[ _\-.]?(?:id)?[ _\-.]?[a-z]{{0,2}}\d+){NO_HEX}"),
    Shape(_folders, shared=0.5, plain=True),
    Shape(r"(?:^|/)([^/]*\d)(?:[_-](?i:left|right|od|os|l|r)|[LR])\.[^/]*$", shared=0.5),  # eyes, knees
    Shape(_names, shared=0.5, plain=True),
)


SUFFIXES = "jpe?g|jfif|png|bmp|tiff?|webp"
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


def guess_copies(paths: Sequence[str], folders_are_classes: bool = True) -> Guess | None:
    """Groups of copies of one original, or none; arguments as of `suggest_groups`."""
    parts = (path.rpartition("/") for path in paths)
    names = [(folder, name.rpartition(".")[0] or name) for folder, _, name in parts]  # without its suffix
    some = random.Random(0).sample(names, min(SAMPLE_OF_COPIES, len(names)))  # every k-th name may be an original
    for behind in _marks(some, names):
        marks = "|".join(behind) or "(?!)"
        marked = re.compile(rf"(?i)^(?:{BEFORE})|(?:{marks})$")
        if not any(marked.search(stem) for _, stem in some):
            continue
        copies = [bool(marked.search(stem)) for _, stem in names]
        if sum(copies) < FEWEST:
            continue
        tail = rf"(?:{marks})*\.[^./]+$"
        # A name counts for all folders, for its class, or for its folder: the first where no two originals share it.
        for head in (rf"(?:^|/)(?:{BEFORE})?([^/]+?)", r"(?:^|/)((?:[^/]+/)?[^/]+?)", r"^(.+?)"):
            expression = f"(?i){head}{tail}"
            if not (ids := ids_of(expression, paths)):
                continue
            count = Counter(ids)
            originals = Counter(id_ for id_, copy in zip(ids, copies, strict=True) if not copy)
            together = sum(count[id_] > 1 for id_, copy in zip(ids, copies, strict=True) if copy)
            # Most copies share an original, each in one class; no two images without a mark are the same original.
            if len(count) < FEW or max(originals.values(), default=0) > 1 or together < 0.5 * sum(copies):
                continue
            classes = grouped(zip(ids, map(class_folder, paths), strict=True))
            if folders_are_classes and any(len({*of_id}) > 1 for of_id in classes.values()):
                continue
            first = next(i for i, copy in enumerate(copies) if copy and count[ids[i]] > 1)
            alike = [path.rpartition("/")[2] for path, id_ in zip(paths, ids, strict=True) if id_ == ids[first]]
            what = f"look like copies, such as {' and '.join(alike[:2])}"
            evidence = f"{sum(copies):,} of {len(paths):,} file names {what}"
            return Guess(expression, len(count), tuple(sorted(count)[:3]), "original", evidence)
    return None


def _marks(some: Sequence[tuple[str, str]], names: Sequence[tuple[str, str]]) -> Iterator[tuple[str, ...]]:
    """What is behind the names of copies: the marks of Keras, which need statistics, or all others that occur."""
    used = [mark for mark in BEHIND if any(map(re.compile(rf"(?i){mark}$").search, (stem for _, stem in some)))]
    if any(NUMBERED.match(stem) for _, stem in some):
        there = set(names)
        originals = [(folder, match[1]) for folder, stem in names if (match := NUMBERED.match(stem))]
        if sum(original in there for original in originals) >= 0.95 * len(originals):
            used.append(r" ?\(\d+\)")
    yield tuple(used)
    matches = [match for _, stem in some if (match := KERAS.match(stem))]
    numbers, indices = [int(match[3]) for match in matches], {match[2] for match in matches}
    if len(numbers) < FEWEST:
        return
    for limit in RANDOM:  # are the numbers draws of `randint(limit)`, or rather counters or coordinates?
        expected = limit * (1 - (1 - 1 / limit) ** len(numbers))  # different numbers among so many draws
        fills_range = limit / 2 <= max(numbers) < limit and abs(median(numbers) / limit - 0.5) < 0.2
        if fills_range and abs(len(set(numbers)) / expected - 1) < 0.1:
            if len(indices) == 1:  # one image at a time: the prefix is the original
                yield (rf"_{next(iter(indices))}_\d+",)
            elif len(matches) == len(some):
                yield (r"(?<=\d)_\d+",)
