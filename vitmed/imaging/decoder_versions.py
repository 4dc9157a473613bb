"""Which decoders made the pixels: one string that changes with every library and source file that decodes."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

# Distributions that decode a file or process its pixels.
DECODERS = (
    "pillow", "numpy",
    "opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python",
    "pydicom", "python-gdcm", "pylibjpeg", "pylibjpeg-libjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle", "pyjpegls",
)  # fmt: skip


def decoding_version() -> str:
    """16 hexadecimal digits: a hash of vitmed's sources in `imaging/` and the versions of `DECODERS`.

    Every cache of decoded pixels carries this string, so an upgrade renews it.
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
