"""Wheels of a few bytes, and what pip leaves of them in an environment."""

from __future__ import annotations

import zipfile
from pathlib import Path

LICENCE = b"Do as you like.\n"


def write_wheel(
    folder: Path, name: str, version: str, *fields: str, tag: str = "py3-none-any", site: Path | None = None
) -> Path:
    """A wheel of one module.

    Args:
        fields: further lines of its metadata; site: a folder in which it is then installed, as far as metadata goes.
    """
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *fields]
    content = {
        f"of_{module}.py": b"",  # not the name of a real module, which it would hide
        f"{info}/METADATA": ("\n".join(lines) + "\n\n").encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        f"{info}/licenses/LICENSE": LICENCE,
    }
    content[f"{info}/RECORD"] = "".join(f"{inside},,\n" for inside in [*content, f"{info}/RECORD"]).encode()
    wheel = folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for inside, data in content.items():
            packed.writestr(inside, data)
            if site is not None:
                (site / inside).parent.mkdir(parents=True, exist_ok=True)
                (site / inside).write_bytes(data)
    return wheel
