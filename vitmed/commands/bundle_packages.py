"""The packages of a bundle: which ones an installation needs, and their wheels."""

from __future__ import annotations

import base64
import email
import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from email.message import Message
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from vitmed.core.errors import UsageError
from vitmed.core.text import first_line, listed

NAME = "vitmed"
OF_TORCH = frozenset({"torch", "torchvision", "torchinfo", "albumentations"})  # an exported model runs without
ONNX_RUNTIME = "onnxruntime"
LICENCE_FILE = re.compile(  # below .dist-info/licenses, or directly in .dist-info or in a package
    r".+\.dist-info/licen[cs]es/(.+)|[^/]+/([^/]*(?:licen[cs]e|copying|notice)[^/]*)(?<!\.py)", re.IGNORECASE
)
TITLE = 100  # characters: a longer field License is the text of a licence
OLD_DATE = (1980, 1, 1, 0, 0, 0)  # of files in a wheel, so that the same files give the same wheel


@dataclass(frozen=True)
class Package:
    """A wheel of a bundle.

    Attributes:
        name, version: normalised name; version as in the file.
        file: name of the wheel; sha256: of the wheel.
        licence: as the package states it, "" where it states none; is_expression: whether it is an SPDX expression.
        texts: name -> licence file of the wheel.
        needs: normalised names of the packages of the bundle that it needs.
    """

    name: str
    version: str
    file: str
    sha256: str
    licence: str
    is_expression: bool
    texts: dict[str, bytes]
    needs: tuple[str, ...] = ()


def needed(extras: Collection[str], also: Iterable[str] = (), without: Collection[str] = ()) -> dict[str, list[str]]:
    """The packages that vitmed needs on this machine: normalised name -> names of what each needs, vitmed first.

    Args:
        extras: of vitmed; also: further packages; without: packages that are left out, with what only they need.

    Raises:
        UsageError: an unknown extra, or a package that is not installed.
    """
    known = _distribution(NAME).metadata.get_all("Provides-Extra") or []
    for extra in extras:
        if extra not in known:
            fix = f"one of: {listed(known, 50)}; after an update of a checkout: pip install -e . again"
            raise UsageError(f"--extras {extra}: vitmed has no such extra", fix)
    found: dict[str, list[str]] = {}
    done, waiting = set[tuple[str, str]](), [(NAME, extra) for extra in ("", *extras)] + [(name, "") for name in also]
    while waiting:
        name, extra = waiting.pop(0)
        if (name, extra) in done:
            continue
        done.add((name, extra))
        needs = found.setdefault(name, [])
        for text in _distribution(name).requires or []:
            one = Requirement(text)
            other = canonicalize_name(one.name)
            if other in without or not (one.marker is None or one.marker.evaluate({"extra": extra})):
                continue
            needs += [other] * (other not in (*needs, name))
            waiting += [(other, more) for more in ("", *sorted(one.extras))]
    return found


def _distribution(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise UsageError(f"{name}: is not installed, and the bundle needs it", f"pip install {name}") from None


def make_wheel(name: str, folder: Path, wheels: Path | None) -> Path:
    """The wheel of the installed version of a package: vitmed's own packed, any other by pip.

    Args:
        name: normalised; folder: an empty one for the wheel.
        wheels: a folder of wheels to take instead of an index.

    Raises:
        UsageError: pip finds no such wheel, or cannot build it.
    """
    if name == NAME:
        return pack_vitmed(folder)
    found = _distribution(name)
    local = json.loads(found.read_text("direct_url.json") or "{}")
    source = url2pathname(urlsplit(local["url"]).path) if "dir_info" in local else ""
    asked = source or f"{found.metadata['Name']}=={found.version}"
    where = [] if wheels is None else ["--no-index", "--find-links", str(wheels)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "wheel", "--quiet", "--no-deps"]
    done = subprocess.run([*pip, *where, "--wheel-dir", folder, asked], capture_output=True, text=True)
    made = list(folder.glob("*.whl"))
    if done.returncode or len(made) != 1:
        raise _why_none(name, found.version, done.stderr, wheels)
    if not _is_of(made[0], name, found.version):
        problem = f"{made[0].name}: pip found this, and {name} {found.version} is installed"
        raise UsageError(problem, "--wheels DIR, a folder with the wheels of the installed versions")
    return made[0]


def check_pip() -> None:
    """Raise UsageError if this Python has no pip."""
    if importlib.util.find_spec("pip") is None:
        raise UsageError(f"{sys.executable}: has no pip, which fetches the wheels", "python -m ensurepip")


def _why_none(name: str, version: str, said: str, wheels: Path | None) -> UsageError:
    """What pip's failure means."""
    if "No space left" in said:
        return UsageError(f"{name} {version}: the disk is full while pip fetches it", "make room, or set TMPDIR")
    if "No matching distribution" in said:
        there = [] if wheels is None else sorted(p.name for p in wheels.glob("*.whl") if _is_of(p, name, version))
        if there:
            problem = f"{wheels}: {listed(there)} is for another platform or Python, expected one for this machine"
            return UsageError(problem, "make the bundle on a machine like the one that it is for")
        if wheels is not None:
            return UsageError(f"{wheels}: holds no wheel of {name} {version}", f"pip download {name}=={version}")
        problem = f"{name} {version}: pip finds no such wheel: there is no network, or its index lacks it"
        return UsageError(problem, "--wheels DIR, a folder with the wheels of the installed versions")
    errors = [line for line in said.splitlines() if "ERROR" in line or "error" in line]
    return UsageError(f"{name} {version}: pip failed ({first_line(chr(10).join(errors or [said.strip()]))})")


def _is_of(wheel: Path, name: str, version: str) -> bool:
    try:
        return parse_wheel_filename(wheel.name)[:2] == (name, Version(version))
    except (InvalidWheelFilename, InvalidVersion):
        return False


def pack_vitmed(folder: Path) -> Path:
    """A wheel of the vitmed that runs: its files, and the metadata with which it was installed.

    It is the same for a wheel that was installed and for a checkout (`pip install -e .`), and needs no build tool.

    Raises:
        UsageError: the metadata is of another version.
    """
    import vitmed

    installed, package = metadata.distribution(NAME), Path(vitmed.__file__).parent
    if installed.version != vitmed.__version__:
        problem = f"vitmed {vitmed.__version__} runs, and {installed.version} is installed"
        raise UsageError(problem, "in the checkout: pip install -e .")
    info = f"{NAME}-{installed.version}.dist-info"
    content = {f"{NAME}/{name}": data for name, data in _files(package)}
    for beside in ("configs", "datasets"):  # in a wheel inside the package, in a checkout beside it
        if not (package / beside).is_dir():
            content |= {f"{NAME}/{beside}/{name}": data for name, data in _files(package.parent / beside)}
    for name in ("METADATA", "entry_points.txt", "licenses/LICENSE"):
        content[f"{info}/{name}"] = (installed.read_text(name) or "").encode()
    tag = f"Wheel-Version: 1.0\nGenerator: {NAME} bundle\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content[f"{info}/WHEEL"] = tag.encode()
    rows = [f"{name},sha256={_digest64(data)},{len(data)}\n" for name, data in content.items()]
    content[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    wheel = folder / f"{NAME}-{installed.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in content.items():
            packed.writestr(zipfile.ZipInfo(name, OLD_DATE), data, zipfile.ZIP_DEFLATED)
    return wheel


def _files(folder: Path) -> list[tuple[str, bytes]]:
    """The files below a folder, without what Python compiled: name -> content."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in found]


def _digest64(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def read_wheel(wheel: Path, sha256: str, needs: Collection[str] = ()) -> Package:
    """What a wheel states of itself. Raises UsageError if it is damaged."""
    try:
        with zipfile.ZipFile(wheel) as packed:
            names = packed.namelist()
            stated = packed.read(next(name for name in names if name.endswith(".dist-info/METADATA")))
            texts = {match[1] or match[2]: packed.read(name) for name in names
                     if (match := LICENCE_FILE.fullmatch(name)) and not name.endswith("/")}  # fmt: skip
    except (zipfile.BadZipFile, StopIteration, OSError) as error:
        raise UsageError(f"{wheel.name}: not a wheel ({first_line(error)})", "fetch it again") from None
    about = email.message_from_string(stated.decode("utf-8", "replace"))
    licence, is_expression = _licence(about)
    name = canonicalize_name(about["Name"])
    return Package(name, about["Version"], wheel.name, sha256, licence, is_expression, texts, tuple(needs))


def _licence(about: Message) -> tuple[str, bool]:
    """The licence that metadata states, and whether it is an SPDX expression."""
    if expression := about["License-Expression"]:
        return expression, True
    text = (about["License"] or "").strip()
    if text not in ("", "UNKNOWN") and "\n" not in text and len(text) <= TITLE:
        return text, False
    titles = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if line.startswith("License ::")]
    return ", ".join(titles), False
