"""Damaged images: each of 20,000 is read, or refused with a VitmedError that names it.

    python benchmarks/fuzz_images.py [--count 20000] [--seed 0] [--processes 2] [--keep FOLDER]

makes small valid files of every format that vitmed reads, damages them at random (bits, bytes and blocks changed, cut,
inserted, swapped; fields of the header set to extreme values), and decodes and preprocesses each in a process of its
own kind: at most 10 s a file, and 1 GB more memory than the process has without one. Number `i` of a seed is always the
same file; `--keep` keeps those that broke something. Exit code 1 if a file crashed or hung, or took too much memory.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import resource
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from PIL import Image

from vitmed.commands.data import import_dataset
from vitmed.core.errors import VitmedError
from vitmed.imaging.decode import read_header
from vitmed.imaging.preprocessing import Preprocessing

SECONDS, BYTES = 10, 2**30
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
HEAD = 400  # bytes in which most fields of a header lie
HOW = Preprocessing(64, 3, "squash", "half", frame=0, window=(0.0, 4000.0))
OUTCOMES = ("read", "refused", "crashed", "hung", "over memory")


def valid_files() -> dict[str, bytes]:
    """Name -> a small whole file, of every format and of the compressions of each."""
    rng = np.random.default_rng(0)
    deep = rng.integers(0, 4000, (32, 32)).astype(np.uint16)
    grey, colour = (deep >> 4).astype(np.uint8), rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    images = {"l": Image.fromarray(grey), "rgb": Image.fromarray(colour), "i16": Image.fromarray(deep)}
    images |= {"p": images["rgb"].quantize(16), "bit": images["l"].convert("1"), "cmyk": images["rgb"].convert("CMYK")}
    images["rgba"] = Image.fromarray(np.dstack([colour, grey]))
    files = {f"png-{mode}.png": _saved(images[mode], "PNG") for mode in ("l", "rgb", "rgba", "p", "bit", "i16")}
    files |= {f"jpeg-{mode}.jpg": _saved(images[mode], "JPEG") for mode in ("l", "rgb", "cmyk")}
    files["jpeg-progressive.jpg"] = _saved(images["rgb"], "JPEG", progressive=True, exif=_turned())
    for packed in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"):
        files |= {f"tiff-{packed}-{m}.tif": _saved(images[m], "TIFF", compression=packed) for m in ("rgb", "i16")}
    files["tiff-jpeg.tif"] = _saved(images["rgb"], "TIFF", compression="jpeg")
    files["tiff-group4.tif"] = _saved(images["bit"], "TIFF", compression="group4")
    files["tiff-float.tif"] = _saved(Image.fromarray(deep.astype(np.float32)), "TIFF")
    files["tiff-pages.tif"] = _saved(images["l"], "TIFF", save_all=True, append_images=[images["l"]] * 2)
    files |= {f"bmp-{mode}.bmp": _saved(images[mode], "BMP") for mode in ("l", "rgb", "bit")}
    files |= {f"webp-{lossless}.webp": _saved(images["rgba"], "WEBP", lossless=lossless) for lossless in (True, False)}
    files["gif.gif"] = _saved(images["p"], "GIF", save_all=True, append_images=[images["p"].rotate(90)])
    files |= {f"jpeg2000-{mode}.jp2": _saved(images[mode], "JPEG2000") for mode in ("l", "rgb")}
    files["jpeg2000.j2k"] = _saved(images["rgb"], "JPEG2000", no_jp2=True)
    arrays: dict[str, np.ndarray] = {
        "uint8": grey,
        "colour": colour,
        "uint16": deep,
        "float": deep.astype(np.float32),
        "frames": deep[None],
    }
    files |= {f"npy-{name}.npy": _array(array) for name, array in arrays.items()}
    for name, save in (("stored", np.savez), ("packed", np.savez_compressed)):
        stream = io.BytesIO()
        save(stream, test_images=np.stack([colour] * 2), test_labels=np.array([[0], [1]]))
        files[f"npz-{name}.npz"] = stream.getvalue()
    return files | _dicom_files(deep, colour)


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    return exif.tobytes()


def _array(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _dicom_files(deep: np.ndarray, colour: np.ndarray) -> dict[str, bytes]:
    """A grey and a colour file, in the transfer syntaxes that can be written here."""
    from pydicom import uid
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.encaps import encapsulate

    def dataset(array: np.ndarray, syntax: str) -> Dataset:
        made = Dataset()
        made.file_meta = FileMetaDataset()
        made.file_meta.TransferSyntaxUID = getattr(uid, syntax)
        made.SOPClassUID = made.file_meta.MediaStorageSOPClassUID = uid.CTImageStorage
        made.SOPInstanceUID = made.file_meta.MediaStorageSOPInstanceUID = uid.UID("1.2.3")
        made.Rows, made.Columns = array.shape[:2]
        made.SamplesPerPixel = 3 if array.ndim == 3 else 1
        made.PhotometricInterpretation = "RGB" if array.ndim == 3 else "MONOCHROME2"
        if array.ndim == 3:
            made.PlanarConfiguration = 0
        made.BitsAllocated = made.BitsStored = 8 * array.dtype.itemsize
        made.HighBit, made.PixelRepresentation = made.BitsStored - 1, 0
        made.WindowCenter, made.WindowWidth, made.RescaleSlope, made.RescaleIntercept = 2000, 4000, 1, -24
        made.PixelData = array.tobytes()
        return made

    def written(made: Dataset) -> bytes:
        stream = io.BytesIO()
        made.save_as(stream, enforce_file_format=True)
        return stream.getvalue()

    files = {}
    for syntax in ("ExplicitVRLittleEndian", "ImplicitVRLittleEndian"):
        files[f"dicom-{syntax}.dcm"] = written(dataset(deep, syntax))
    for syntax in ("RLELossless", "JPEG2000Lossless", "JPEGLSLossless"):
        for kind, array in (("grey", deep), ("colour", colour)):
            made = dataset(array, "ExplicitVRLittleEndian")
            made.compress(getattr(uid, syntax), generate_instance_uid=False)
            files[f"dicom-{syntax}-{kind}.dcm"] = written(made)
    made = dataset(colour[..., 0], "JPEGBaseline8Bit")
    made.PixelData = encapsulate([_saved(Image.fromarray(colour[..., 0]), "JPEG")])
    files["dicom-JPEGBaseline8Bit.dcm"] = written(made)
    return files


def damaged(whole: bytes, rng: np.random.Generator) -> bytes:
    """The file after one to four random changes; sizes and counts in its head are hit more often than chance would."""
    data = bytearray(whole)
    for _ in range(int(rng.integers(1, 5))):
        near = int(rng.integers(0, max(1, min(HEAD, len(data))) if rng.random() < 0.6 else max(1, len(data))))
        length = int(rng.integers(1, 17))
        match int(rng.integers(0, 7)):
            case 0 if data:
                data[near] ^= 1 << int(rng.integers(0, 8))
            case 1:
                data[near : near + 1] = rng.bytes(1)
            case 2:
                data[near : near + length] = rng.bytes(length)
            case 3:
                del data[int(rng.integers(0, len(data) + 1)) :]
            case 4:
                data[near:near] = rng.bytes(length)
            case 5:
                other = int(rng.integers(0, len(data) + 1))
                first, second = bytes(data[near : near + length]), bytes(data[other : other + length])
                data[near : near + len(second)] = second
                data[other : other + len(first)] = first
            case _:
                size, value = int(rng.choice([1, 2, 4])), int(rng.choice(EXTREMES))
                field = (value & (256**size - 1)).to_bytes(size, "little" if rng.random() < 0.5 else "big")
                data[near : near + size] = field
    return bytes(data)


def read(file: Path) -> None:
    """Everything that vitmed does with an image before the network; an .npz file is imported."""
    if file.suffix == ".npz":
        with tempfile.TemporaryDirectory(dir=file.parent) as place:
            import_dataset(file, Path(place) / "set")
    else:
        read_header(file)
        HOW.read(file)


def work(pipe: Connection, seed: int, folder: Path) -> None:
    """Answer each number that comes with the outcome of its file, until None comes."""
    warnings.simplefilter("ignore")
    os.environ["VITMED_CACHE"] = str(folder / "cache")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff's complaints
    files = valid_files()
    for name, whole in files.items():  # valid ones are read: the sum below would be worthless otherwise
        (folder / name).write_bytes(whole)
        read(folder / name)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, size + BYTES))
    pipe.send(("ready", ""))
    names = sorted(files)
    while (number := pipe.recv()) is not None:
        name = names[number % len(names)]
        file = folder / name
        file.write_bytes(damaged(files[name], np.random.default_rng([seed, number])))
        try:
            read(file)
            pipe.send(("read", name))
        except VitmedError as error:
            named = file.name in str(error)
            pipe.send(
                ("refused" if named else "crashed", f"{name}: {'' if named else 'an error without its name: '}{error}")
            )
        except MemoryError:
            pipe.send(("over memory", name))
        except BaseException as error:
            pipe.send(("crashed", f"{name}: {type(error).__name__}: {error}"))


def outcomes(numbers: range, seed: int, keep: Path | None) -> Iterator[tuple[int, str, str]]:
    """Number, outcome and what happened, of each file; a process that ends or hangs is replaced."""
    context = multiprocessing.get_context("spawn")
    rest = iter(numbers)
    number = next(rest, None)
    with tempfile.TemporaryDirectory() as place:
        while number is not None:
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, seed, Path(place)), daemon=True)
            process.start()
            theirs.close()
            assert ours.recv()[0] == "ready"
            while number is not None:
                ours.send(number)
                outcome, text = "hung", f"more than {SECONDS} s"
                if ours.poll(SECONDS):
                    try:
                        outcome, text = ours.recv()
                    except EOFError:
                        process.join()
                        outcome, text = "crashed", f"the process ended with {process.exitcode}"
                yield number, outcome, text
                if keep is not None and outcome not in ("read", "refused"):
                    files = valid_files()
                    name = sorted(files)[number % len(files)]
                    (keep / f"{number}-{name}").write_bytes(damaged(files[name], np.random.default_rng([seed, number])))
                number = next(rest, None)
                if outcome == "hung" or not process.is_alive():
                    break
            process.kill()
            process.join()


def fuzz(count: int, seed: int, processes: int, keep: Path | None = None) -> tuple[Counter[str], list[str]]:
    """How often each outcome came, and a line for each file that was neither read nor refused."""
    found: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
    lines: list[str] = []

    def part(first: int) -> None:
        for number, outcome, text in outcomes(range(first, count, processes), seed, keep):
            found[outcome] += 1
            if outcome not in ("read", "refused"):
                lines.append(f"{number} {outcome}: {text}")
                print(lines[-1], file=sys.stderr, flush=True)

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(part, range(processes)))
    return found, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    found, lines = fuzz(given.count, given.seed, given.processes, given.keep)
    print(f"tried {sum(found.values()):,}: " + ", ".join(f"{name} {found[name]:,}" for name in OUTCOMES))
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
