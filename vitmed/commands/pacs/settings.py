"""`NodeSettings`: the DICOM node that `vitmed serve` is asked for."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from vitmed.core.errors import UsageError

LOOPBACK = re.compile(r"127(\.\d{1,3}){3}|::1|localhost")
TITLE = re.compile(r"(?! )[\x20-\x5b\x5d-\x7e]{1,16}(?<! )")  # of an application entity (PS3.5, VR AE)
NEEDED = ("pynetdicom", "highdicom", "pydicom")


@dataclass(frozen=True)
class NodeSettings:
    """A DICOM node: what it listens to, which images it answers, and what it does with its reports.

    Attributes:
        port, host, ae: where it listens, and its application entity (AE) title; port None: it does not listen, 0: any.
        allow: AE titles that may call; empty: every one, on loopback only.
        to: where reports are sent: "HOST:PORT:AE", or the address of DICOMweb, "https://.../studies".
        output: or the folder that they are written to.
        spool: folder of what is not sent yet, and of the journal; None: dicom-spool beside the model.
        watch: a folder whose new files are answered.
        modality, body_part, view: the values of Modality, BodyPartExamined and ViewPosition that the model is for;
            empty: not checked. A text such as "DX, CR" names several, here and in `allow`.

    Raises:
        UsageError: a value that cannot be used, or a package is missing.
    """

    port: int | None = None
    ae: str = "VITMED"
    host: str = "127.0.0.1"
    to: str | None = None
    output: str | Path | None = None
    spool: str | Path | None = None
    allow: str | Sequence[str] = ()
    watch: str | Path | None = None
    modality: str | Sequence[str] = ()
    body_part: str | Sequence[str] = ()
    view: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        check_packages()
        for name in ("allow", "modality", "body_part", "view"):
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, _names(given, f"--{name.replace('_', '-')}"))
        output, spool, watch = (folder and Path(folder) for folder in (self.output, self.spool, self.watch))
        if (self.to is None) == (self.output is None):
            fix = "--to HOST:PORT:AE, --to https://.../studies or --output FOLDER"
            raise UsageError("a DICOM node needs one place for its reports", fix)
        for title in (self.ae, *self.allow):
            if not TITLE.fullmatch(title):
                raise UsageError(f"AE title {title!r}: expected 1 to 16 characters, no backslash", "--ae VITMED")
        if self.port is not None and not 0 <= self.port <= 65535:
            raise UsageError(f"--dicom-port {self.port}: expected 0 to 65535", "--dicom-port 11112")
        if self.port is not None and not LOOPBACK.fullmatch(self.host) and not self.allow:
            raise UsageError(
                f"--dicom-host {self.host}: a node that other machines reach needs a list of who may call",
                "--allow AE,AE names their AE titles",
            )
        if self.port is None and watch is None:
            raise UsageError("a DICOM node needs a port, or a folder to watch", "--dicom-port 11112, or --watch FOLDER")
        if watch and not watch.is_dir():
            raise UsageError(f"{watch}: no such folder to watch", "make it first")
        for folder, flag in ((output, "--output"), (spool, "--spool")):
            if watch and folder and folder.resolve().is_relative_to(watch.resolve()):
                raise UsageError(f"{flag} {folder}: is inside the folder that is watched", "name a place outside it")

    def beside(self, model: Path) -> Self:
        """With a spool in the folder of the model's file, unless another is named. Raises UsageError."""
        return self if self.spool is not None else replace(self, spool=model.parent / "dicom-spool")


def check_packages() -> None:
    """Raise UsageError where a package of the extra `pacs` is missing."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise UsageError(f"a DICOM node needs one more package: {', '.join(missing)}", "pip install 'vitmed[pacs]'")


def _names(text: str, flag: str) -> tuple[str, ...]:
    """`DX, CR` -> ("DX", "CR"). Raises UsageError for none, which would mean every one."""
    if found := tuple(part.strip() for part in text.split(",") if part.strip()):
        return found
    raise UsageError(f"{flag} {text!r}: names nothing", f"leave {flag} out to take every one")
