"""The archive of a bundle: a tar without owner and times, the sha256 of its files, and its bill of materials."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import tarfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from vitmed import __version__
from vitmed.commands.bundle_packages import NAME, Package

SUMS, SBOM, REQUIREMENTS, LICENCES = "SHA256SUMS", "sbom.cdx.json", "requirements.txt", "licences"
PROGRAM = 0o755  # mode of a file that can be run


class Archive:
    """A tar that is written file by file: the same content gives the same bytes, whoever writes it and when.

    Args:
        stream: where it is written to; top: the folder that it unpacks to.
    """

    def __init__(self, stream: BinaryIO, top: str):
        self.top, self.sums = top, dict[str, str]()
        self._tar = tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def add(self, name: str, content: bytes | str, mode: int = 0o644) -> None:
        """Write a file; text as UTF-8."""
        data = content.encode() if isinstance(content, str) else content
        self._add(name, io.BytesIO(data), len(data), hashlib.sha256(data).hexdigest(), mode)

    def add_file(self, name: str, path: Path) -> str:
        """Write a copy of a file, and return its sha256."""
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            stream.seek(0)
            self._add(name, stream, path.stat().st_size, digest, 0o644)
        return digest

    def _add(self, name: str, stream: Any, size: int, digest: str, mode: int) -> None:
        entry = tarfile.TarInfo(f"{self.top}/{name}")
        entry.size, entry.mode = size, mode
        self._tar.addfile(entry, stream)
        self.sums[name] = digest

    def close(self) -> None:
        """Write the sha256 of every file, and the end of the tar."""
        self.add(SUMS, "".join(f"{digest}  {name}\n" for name, digest in sorted(self.sums.items())))
        self._tar.close()


def add_lists(archive: Archive, packages: Sequence[Package], model: dict[str, Any]) -> None:
    """Write requirements with hashes, the bill of materials, and the licences with their texts.

    Args:
        model: the component of the model in the bill of materials.
    """
    pins = [f"{one.name}=={one.version} --hash=sha256:{one.sha256}\n" for one in packages]
    archive.add(REQUIREMENTS, "".join(pins))
    archive.add(SBOM, json.dumps(bill_of_materials(packages, model, archive.top), indent=2) + "\n")
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["package", "version", "licence", "texts"])
    for one in packages:
        rows.writerow([one.name, one.version, one.licence or "not stated", len(one.texts)])
        for name, text in one.texts.items():
            archive.add(f"{LICENCES}/{one.name}/{name}", text)
    archive.add(f"{LICENCES}/{LICENCES}.csv", table.getvalue())


def bill_of_materials(packages: Sequence[Package], model: dict[str, Any], name: str) -> dict[str, Any]:
    """A CycloneDX 1.6 document: the model, and each package with purl, version, hash and licence.

    https://cyclonedx.org/docs/1.6/json/. It has no time, so that the same content gives the same document.

    Args:
        model: its component; name: of the bundle.
    """
    parts = [model, *map(_component, packages)]
    refs = {one.name: _purl(one) for one in packages}
    edges = [{"ref": refs[one.name], "dependsOn": [refs[n] for n in one.needs if n in refs]} for one in packages]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([name, parts]))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": NAME, "version": __version__}]},
            "component": {"type": "application", "bom-ref": "bundle", "name": name},
        },
        "components": parts,
        "dependencies": [
            {"ref": "bundle", "dependsOn": [model["bom-ref"]]},
            {"ref": model["bom-ref"], "dependsOn": [refs[NAME]]},
            *edges,
        ],
    }


def _component(one: Package) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": _purl(one),
        "name": one.name,
        "version": one.version,
        "hashes": [{"alg": "SHA-256", "content": one.sha256}],
        "purl": _purl(one),
    }
    if one.licence:
        found["licenses"] = [
            {"expression": one.licence} if one.is_expression else {"license": {"name": one.licence}},
        ]
    return found


def _purl(one: Package) -> str:
    """https://github.com/package-url/purl-spec: the + of a local version is escaped."""
    return f"pkg:pypi/{one.name}@{one.version.replace('+', '%2B')}"
