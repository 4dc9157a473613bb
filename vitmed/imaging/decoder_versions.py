"""The versions of all decoders in one string, which changes with every library and source file that decodes."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

# Packages that decode a file or compute with its pixels. Packages that are not installed count as absent.
DECODERS = (
    "pillow", "numpy",
    "opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python",
    "pydicom", "python-gdcm", "pylibjpeg", "pylibjpeg-libjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle", "pyjpegls",
)  # fmt: skip


def decoding_version() -> str:
    """16 hexadecimal digits from vitmed's sources in `imaging/` and the versions of `DECODERS`, without an import.

    Everything kept from decoded pixels carries this string, so an upgrade makes it again.
    """
    digest = hashlib.sha256()
    for name in DECODERS:
        digest.update(f"{name} {_version(name)}\n".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
