"""The cards of public data sets in `datasets/`: what each set is, how to get it, and what training needs to know."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from vitmed.core.base_models import Section
from vitmed.core.downloads import Source
from vitmed.core.errors import DataError, UsageError, unknown_key
from vitmed.core.messages import say, warn
from vitmed.core.text import quoted
from vitmed.core.text_files import YamlError, packaged, read_yaml


class Download(Section):
    """How to download the files of a set."""

    url: str = Field(pattern=r"^https://.*\{file\}")  # with {file} in place of the file's name
    layout: Literal["folders", "medmnist", "cifar", "mnist"]  # folders of classes are unpacked; `convert` reads others
    each: bool = False  # every file is a separate set, named after it without its suffix; otherwise all are one set
    files: list[str] = []  # to fetch; default all with a checksum
    bytes: dict[str, int] = {}  # file -> size, if it is published
    folder: str = ""  # for "folders": the folder in the archive that holds the class folders


class Card(Section):
    """A card; datasets/README.md says what each field means."""

    name: str
    title: str
    modality: str
    task: str
    source: str = Field(pattern="^https?://")
    citation: str
    licence: str | dict[str, str]
    images: int | dict[str, int]
    classes: list[str] | dict[str, list[str]]
    size_px: int | str
    checksum: dict[str, str] | None
    checksum_note: str
    download: Download | None
    by_hand: str | None
    layout: str
    columns: dict[Literal["path", "label", "patient"], str]
    group_regex: str | None
    group_note: str
    examples: dict[str, str]
    augmentation: str | dict[str, str]
    pitfalls: list[str]
    published: list[dict[Literal["figure", "split", "source"], str]]  # figures to compare a result with

    @property
    def total(self) -> int:
        return self.images if isinstance(self.images, int) else sum(self.images.values())

    @property
    def sets(self) -> dict[str, list[str]]:
        """Name for `vitmed data get` -> files; empty if you must download the set yourself."""
        if self.download is None:
            return {}
        files = self.download.files or list(self.checksum or {})
        return {file.partition(".")[0]: [file] for file in files} if self.download.each else {self.name: files}

    @property
    def terms(self) -> str:
        """The licence in one line; for a collection, the licences of its sets."""
        if isinstance(self.licence, str):
            return self.licence
        return "; ".join(f"{name} {text}" for name, text in self.licence.items())

    def sources(self, name: str) -> list[Source]:
        """The files of a set, for `downloads.fetch_file`."""
        assert self.download is not None
        return [
            Source(
                name=name,
                url=self.download.url.format(file=file),
                size=self.download.bytes.get(file),
                checksum=(self.checksum or {}).get(file),
                licence=of_set(self.licence, name) or "",
                again=f"vitmed data get {name} DIR",
                error=DataError,
            )
            for file in self.sets[name]
        ]


def of_set(texts: str | dict[str, str], name: str) -> str | None:
    """The text of a set; in a collection the entry under its name, or under "others"; None without either."""
    if isinstance(texts, str):
        return texts
    return next((text for key, text in texts.items() if name.startswith(key.lower())), texts.get("others"))


@cache
def cards() -> dict[str, Card]:
    """Name -> card, sorted. Raises DataError for an invalid card."""
    return {name: read_card(file) for name, file in packaged("datasets").items()}


def read_card(file: Path) -> Card:
    """A validated card. Raises DataError, which names the first wrong field."""
    try:
        return Card.model_validate(read_yaml(file))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise DataError(f"{file}: {field}: {first['msg']}", "see datasets/README.md") from None
    except YamlError as error:
        raise DataError(f"{file}: not a readable card ({error})", "see datasets/README.md") from None


def find_card(name: str) -> Card:
    """The card of that name, or of a set in a collection. Raises UsageError, which lists the names."""
    if (card := next((card for card in cards().values() if name in (card.name, *card.sets)), None)) is None:
        raise unknown_key("card", name, cards())
    return card


def card_like(classes: Sequence[str], images: int) -> str | None:
    """The only card with these classes, in any order and case: four names or more, else also this number of images."""
    names = {name.lower() for name in classes}
    telling = len(names) > 3 and not all(map(str.isdecimal, names))
    alike = [
        card.name
        for card in cards().values()
        if isinstance(card.classes, list) and {name.lower() for name in card.classes} == names
        if telling or abs(images - card.total) <= card.total / 20
    ]
    return alike[0] if len(alike) == 1 else None


def report_card(name: str | None) -> None:
    """Print what the card of `data.card` warns of, if one is named."""
    if name is not None:
        card = find_card(name)
        warn(f"the card of {name} ({card.title}) warns:")
        for pitfall in card.pitfalls:
            say(f"  - {pitfall}")
        if card.group_regex is None:
            say(f"  patients: {card.group_note}")


def find_set(name: str) -> Card:
    """The card of a set that `vitmed data get` can fetch. Raises UsageError: an unknown name, or a card with several
    sets; lists names. DataError: a set that you must download yourself; says how."""
    if (holder := next((card for card in cards().values() if name in card.sets), None)) is not None:
        return holder
    if (card := cards().get(name)) is None:
        names = list(dict.fromkeys(name for card in cards().values() for name in (card.name, *card.sets)))
        raise unknown_key("public data set", name, names)
    if card.sets:
        raise UsageError(f"{name} is a collection; fetch one of its sets", f"one of {', '.join(card.sets)}")
    raise DataError(f"{name} must be downloaded by hand: {card.source}", f"{card.by_hand} {advice(card)}")


def advice(card: Card, folder: str | Path = "DIR") -> str:
    """The command that trains on the set in `folder`."""
    patients = f" --group-regex '{card.group_regex}'" if card.group_regex else ""
    return f"Then: vitmed train {quoted(folder)}{patients}"
