"""Odd and hostile files, each read or refused by its name: no crash, no 10 seconds, no gigabyte.

pydicom brings its own; Pillow's are in its source archive: VITMED_PILLOW_IMAGES names the folder `Tests/images` of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from image_files import raw_png
from PIL import Image

from vitmed.core.errors import DataError
from vitmed.imaging import raw_image
from vitmed.imaging.decode import read_header, read_image

# One process reads them all, so that what ends it is seen; each file has a line before and a line behind it.
CODE = """
import json, resource, sys, time
from dataclasses import replace
from pathlib import Path
from vitmed.core.errors import VitmedError
from vitmed.imaging.decode import read_header
from vitmed.imaging.preprocessing import Preprocessing

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)

how = Preprocessing(64, 3, "squash", "half", frame=0, window=(0.0, 4000.0))
for path in sorted(p for p in Path(sys.argv[1]).glob(sys.argv[2]) if p.is_file()):
    start, before, told = time.perf_counter(), peak(), "read"
    print(json.dumps({"path": path.name}), flush=True)
    for read in (read_header, how.read):
        try:
            read(path)
        except VitmedError as error:
            told = str(error)
    line = {"told": told.encode("ascii", "replace").decode(), "seconds": time.perf_counter() - start}
    print(json.dumps(line | {"mb": peak() - before}), flush=True)
"""


def sweep(folder: Path, pattern: str) -> dict[str, str]:
    """File name -> "read", or why it was refused."""
    command = [sys.executable, "-W", "ignore", "-c", CODE, str(folder), pattern]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"ended at {lines[-1]}: {done.stderr[-2000:]}"
    found = {}
    for name, result in zip(lines[::2], lines[1::2], strict=True):
        assert result["seconds"] < 10 and result["mb"] < 1000, (name, result)
        assert result["told"] == "read" or name["path"].encode("ascii", "replace").decode() in result["told"], name
        found[name["path"]] = result["told"]
    return found


@pytest.mark.slow
def test_all_files_of_pydicom() -> None:
    import pydicom

    folder = Path(pydicom.__file__).parent / "data" / "test_files"
    if not folder.is_dir():
        pytest.skip("this pydicom brings no files")
    found = sweep(folder, "*.dcm")
    expected = {
        "CT_small.dcm": "read", "MR_small_jp2klossless.dcm": "read", "SC_rgb_jpeg.dcm": "read", "rtdose.dcm": "read",
        "MR_truncated.dcm": "cannot be decoded", "rtplan.dcm": "without an image", "test-SR.dcm": "without an image",
        "JPGExtended.dcm": "cannot be decoded", "examples_ybr_color.dcm": "read",
    }  # fmt: skip
    assert expected.keys() <= found.keys()
    assert {name: found[name] for name, told in expected.items() if told not in found[name]} == {}
    assert sum(told == "read" for told in found.values()) > len(found) / 4


def test_all_files_of_pillow() -> None:
    folder = os.environ.get("VITMED_PILLOW_IMAGES")
    if not folder:
        pytest.skip("VITMED_PILLOW_IMAGES names no folder")
    found = sweep(Path(folder), "**/*")
    assert sum(told == "read" for told in found.values()) > len(found) / 2


def test_damaged_files_of_every_format_and_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of the 20,000 files of benchmarks/fuzz_images.py, each with a limit of time and memory."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from fuzz_images import fuzz

    found, lines = fuzz(500, seed=0, processes=1)
    assert lines == [] and found["read"] > 50 and found["refused"] > 200


def test_bounds_hold_before_pixels_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every format, with bounds that these small files pass."""
    array = np.zeros((20, 20), np.uint16)
    Image.fromarray(array).save(tmp_path / "a.png")
    Image.fromarray(array).save(tmp_path / "a.tif")
    np.save(tmp_path / "a.npy", array)
    for suffix in (".jpg", ".gif", ".webp", ".bmp", ".jp2"):
        Image.new("L", (20, 20)).save(tmp_path / f"b{suffix}")
    monkeypatch.setattr(raw_image, "PIXELS", 399)
    for file in tmp_path.iterdir():
        with pytest.raises(DataError, match=rf"{file.name}: 20 x 20 px, more than 399 pixels, refused"):
            read_image(file, window=(0.0, 1.0))
    monkeypatch.setattr(raw_image, "PIXELS", 400)
    monkeypatch.setattr(raw_image, "BYTES", 399)
    with pytest.raises(DataError, match="bytes of pixels"):
        read_image(tmp_path / "a.tif", window=(0.0, 1.0))


def test_pages_in_a_circle_end(tmp_path: Path) -> None:
    """A TIFF whose last page points back to its first."""
    pages = [Image.new("L", (8, 8), i) for i in range(3)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    data = bytearray((tmp_path / "a.tif").read_bytes())
    at = first = int.from_bytes(data[4:8], "little")
    while True:
        end = at + 2 + 12 * int.from_bytes(data[at : at + 2], "little")
        at = int.from_bytes(data[end : end + 4], "little")
        if at == 0:
            break
    data[end : end + 4] = first.to_bytes(4, "little")
    (tmp_path / "a.tif").write_bytes(data)
    assert read_header(tmp_path / "a.tif").frames == 3
    assert read_image(tmp_path / "a.tif", frame=2).size == (8, 8)


def test_a_16_bit_bomb_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(raw_png(30_000, 30_000, 16, 2, b"\0" * 100))
    with pytest.raises(DataError, match="pixels, refused"):
        read_image(tmp_path / "a.png", window=(0.0, 1.0))
