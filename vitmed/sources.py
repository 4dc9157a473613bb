"""A public file: its address, what it must be, and how to speak of it. Nothing here opens a connection."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from vitmed.errors import VitmedError


class Source(NamedTuple):
    """A public file, and how to speak of it.

    Attributes:
        name: for messages; the folder of the file has it too.
        url: https.
        size: bytes, to within 10 %; None where nobody tells it.
        checksum: "sha256:..." (whole or its first digits) or "md5:..."; None where none is published.
        licence: in a few words.
        again: the command that fetches it.
        error: what is raised where the file cannot be had or is not what it should be.
        hub: repository on the Hugging Face hub that holds it; "" for a plain address.
    """

    name: str
    url: str
    size: int | None
    checksum: str | None
    licence: str
    again: str
    error: type[VitmedError]
    hub: str = ""

    @property
    def file(self) -> str:
        """Its name, as the publisher gives it."""
        return urlsplit(self.url).path.rpartition("/")[2]

    def plausible(self, size: int) -> bool:
        """Whether a file of that many bytes can be it."""
        return self.size is None or 0.9 * self.size <= size <= 1.1 * self.size

    @property
    def about(self) -> str:
        """Size, hash and licence, for whoever fetches it by hand."""
        size = megabytes(self.size) if self.size else "size unknown"
        kind, _, digest = (self.checksum or "sha256:unknown").partition(":")
        whole = len(digest) == hashlib.new(kind).digest_size * 2 or self.checksum is None
        return f"{size}, {kind} {digest}{'' if whole else '...'}, licence {self.licence}"


def by_hand(source: Source, path: Path) -> str:
    """How to come by a file, with a network and without one."""
    return (
        f"where there is a network: {source.again}. For a machine without one, download {source.url} "
        f"elsewhere ({source.about}) and put it at {path}"
    )


def mismatch(path: Path, expected: str) -> str | None:
    """What is wrong with the hash of a file, in words; None where it is as expected ("sha256:...", "md5:...")."""
    kind, _, digest = expected.partition(":")
    found = digest_of(path, kind)
    return None if found.startswith(digest) else f"its {kind} is {found}, expected {digest}"


def digest_of(path: Path, kind: str = "sha256") -> str:
    """The hash of a file's content, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def megabytes(size: int) -> str:
    """Bytes for the eye, in units of 10^6."""
    return f"{size / 1e6:,.0f} MB"
