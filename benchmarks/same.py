"""Compare every number and message of vitmed now with those of a commit, on this machine, to the bit.

    python benchmarks/same.py HEAD~1
    python benchmarks/same.py v0.2.0 --only "train *" messages --allow "train grades:*" "help:sweep"

Makes a work tree of the commit and one of today (with changes that are not committed yet), draws the same data for
both, and lets each run the items below. Prints a table: what is equal, or what differs and where. Exit code 1 if
something differs that `--allow` does not name.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import csv
import fnmatch
import importlib
import inspect
import io
import json
import math
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

Found = dict[str, Any]  # "part" -> a text, number, array or tree of them
NOT_RESULTS = {  # keys of JSON files and answers that time, place or version decide
    "created", "seconds", "vitmed", "versions", "environment", "images_per_second", "waiting", "load_seconds", "clock",
    "spent", "share", "id", "device", "processor", "threads", "memory", "speedup", "rebuilt", "wait_share",
    "minutes",
}  # fmt: skip
CHANGING = [  # in texts
    (r"\d[\d,]*(\.\d+)?[ \N{NO-BREAK SPACE}]?(ms|s|min|m|h|images/s|MB|GB|% waiting|epochs in)(?!\w)", "#"),
    (r"is \d+\.\d+ times as fast", "is # times as fast"),
    (r"\d{4}-\d\d-\d\d([T_ ]\d\d:\d\d(:\d\d)?)?", "DATE"),
    (r"0\.[1-9]\.\d+(\.\w+)?", "VERSION"),
    (r"127\.0\.0\.1:\d+", "HOST"),
]
RECIPE = """
model: {image_size: 16, patch_size: 8, width: 16, depth: 2, heads: 2}
augment: {policy: medical}
train:
  {batch_size: 8, lr: 0.003, warmup_epochs: 0.5, seed: 3, workers: 0, device: cpu, precision: fp32, choose: best,
  autotune: false, threads: 1}
"""
TINY = ["-c", "data/tiny.yaml"]
QUICK = ["--set", "evaluate.report=false"]
KINDS = {  # kind -> the arguments of its training
    "classes": ["data/classes"],
    "findings": ["data/table", "--labels", "data/table/findings.csv"],
    "grades": [
        "data/table",
        "--labels",
        "data/table/grades.csv",
        "--target",
        "grades",
        "--ordinal",
        "none,mild,severe",
    ],
    "number": ["data/table", "--labels", "data/table/ages.csv", "--target", "number", "--unit", "years"],
}

COMMANDS = """
--version
nonsense
train
train nowhere
train data/classes --epochs 0
train data/classes --nonsense
train data/classes -c data/wrong/bad.yaml
train data/classes --lr hello
train data/wrong
train data/classes --set a=b
train data/classes --model huge
train data/classes --monitor nonsense
train --resume runs/classes
train --resume nowhere
train data/classes --target number
train data/table --labels nowhere.csv
train data/classes --folds 3 --fold 9
train data/classes --device cuda
train data/classes --image-size 17 --patch-size 8
train data/classes --balance foo
plan data/classes --json
plan TABLE/findings.csv --json
plan data/classes --time 10m
check data/classes --json
check data/classes
check data/wrong
check TABLE/ages.csv --target number --json
evaluate runs/classes --json -o e1
evaluate runs/findings --json -o e2
evaluate runs/grades --json -o e3
evaluate runs/number --json -o e4
evaluate runs/classes/test/predictions.csv --json -o e5
evaluate nowhere
evaluate runs/classes --data data/classes -o e6
evaluate runs/classes --cost nonsense
evaluate runs/number --youden
evaluate runs/classes --conformal 0.9 --max-risk 0.2 --json -o e7
evaluate data/wrong/text.png
predict data/classes --checkpoint runs/classes --json
predict data/table/images --checkpoint runs/findings --json
predict data/table/images --checkpoint runs/number --json
predict data/table/images/000.png --checkpoint runs/grades --json
predict data/wrong --checkpoint runs/classes --json
predict nowhere --checkpoint runs/classes
predict data/formats --checkpoint runs/classes --csv p.csv --json
predict data/classes --checkpoint runs/classes/test/predictions.csv
compare runs/classes runs/micro --json
compare runs/findings runs/findings --json
compare runs/classes runs/number
compare runs/number runs/number --json
compare runs/grades runs/grades --json
stress runs/classes --json -o s1
stress runs/number --json -o s2
explain data/classes/blue/P00_blue_0.png --checkpoint runs/classes -o x1 --json
summary vit_tiny --image-size 64
compare runs/classes runs/classes/test/baseline_colour_and_size.csv --json
probe data/classes --weights nowhere.pth
sample-size auroc 0.9 --half-width 0.05 --prevalence 0.3 --json
monitor runs/classes nowhere.csv
monitor runs/classes runs/classes/test/predictions.csv --json
ensemble runs/classes runs/micro -o runs/joined --json
predict data/classes --checkpoint runs/joined --json
runs runs --json
diff runs/classes runs/micro --json
data list
weights list
data fetch nonsense --to x
weights fetch nonsense --offline
export runs/classes
export nowhere --to x.onnx
push runs/classes nobody/nothing --offline
serve nowhere
bundle nowhere --to x.tar
cross-validate data/classes --folds 1
tune data/classes --trials 0
auto nowhere
pretrain nowhere
demo --target nonsense
train data/classes --weights nowhere.pth
train data/classes --weights nonsense --offline
train data/classes --card nonsense
"""


# --- the same data for both


def draw(root: Path) -> None:
    """data/classes (three classes, patients), data/table (findings, grades, ages), data/formats, data/wrong."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, colour in (("amber", (230, 160, 30)), ("blue", (40, 60, 230)), ("green", (40, 200, 60))):
        (root / "classes" / name).mkdir(parents=True)
        for i in range(30):
            pixels = rng.integers(90, 130, (20, 24, 3), dtype=np.uint8)
            y, x = rng.integers(0, 10, 2)
            pixels[y : y + 10, x : x + 10] = np.clip(np.array(colour) + rng.integers(-90, 90, 3), 0, 255)
            Image.fromarray(pixels).save(root / "classes" / name / f"P{i // 2:02d}_{name}_{i}.png")
    tables: dict[str, list[list[str]]] = {
        "findings": [["path", "patient", "bright", "striped"]],
        "grades": [["path", "patient", "label"]],
        "ages": [["path", "patient", "label"]],
    }
    (root / "table" / "images").mkdir(parents=True)
    for i in range(120):
        number = round(float(rng.uniform(20, 80)), 2)
        grey = np.clip(2.5 * number + rng.normal(0, 25, (20, 20)), 0, 255).astype(np.uint8)
        striped = bool(rng.random() < 0.4)
        if striped:
            grey[::4] = 0
        path, patient = f"images/{i:03d}.png", f"P{i // 3}"
        Image.fromarray(grey).save(root / "table" / path)
        tables["findings"].append([path, patient, str(int(number > 50)), "" if i % 9 == 0 else str(int(striped))])
        tables["grades"].append([path, patient, ("none", "mild", "severe")[min(2, int((number - 20) / 20))]])
        tables["ages"].append([path, patient, str(number)])
    for name, rows in tables.items():
        with (root / "table" / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows(rows)
    draw_formats(root / "formats")
    (root / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    (root / "wrong").mkdir()
    (root / "wrong" / "empty.png").touch()
    (root / "wrong" / "text.png").write_text("no image", encoding="utf-8")
    (root / "wrong" / "cut.png").write_bytes((root / "classes" / "blue" / "P00_blue_0.png").read_bytes()[:300])
    (root / "wrong" / "bad.yaml").write_text("train:\n  epoch: 3\n", encoding="utf-8")


def draw_formats(root: Path) -> None:
    """One file of each format and depth that vitmed reads."""
    import pydicom
    from PIL import Image
    from pydicom.dataset import Dataset, FileMetaDataset

    root.mkdir()
    rng = np.random.default_rng(1)
    rgb, deep = rng.integers(0, 256, (21, 33, 3), dtype=np.uint8), rng.integers(0, 4096, (21, 34), dtype=np.uint16)
    image = Image.fromarray(rgb)
    turned = Image.Exif()
    turned[0x0112] = 6
    for name in ("rgb.png", "rgb.jpg", "rgb.tif", "rgb.bmp", "rgb.webp", "rgb.gif", "rgb.jp2"):
        image.save(root / name)
    image.save(root / "turned.jpg", exif=turned)
    image.convert("L").save(root / "grey.png")
    image.convert("P").save(root / "palette.png")
    image.convert("1").save(root / "bits.png")
    image.convert("CMYK").save(root / "cmyk.jpg")
    Image.fromarray(np.dstack([rgb, rgb[..., :1]])).save(root / "rgba.png")
    Image.fromarray(deep).save(root / "deep.png")
    Image.fromarray(deep).save(root / "deep.tif")
    Image.fromarray(deep.astype(np.float32) / 7).save(root / "float.tif")
    np.save(root / "deep.npy", deep)
    np.save(root / "rgb.npy", rgb)
    for name, array, tags in (
        ("grey.dcm", deep, {"BitsStored": 12, "HighBit": 11, "WindowCenter": 2000, "WindowWidth": 1500}),
        ("ct.dcm", deep.astype(np.int16) - 1024, {"RescaleSlope": "2", "RescaleIntercept": "-10"}),
        ("inverted.dcm", deep, {"PhotometricInterpretation": "MONOCHROME1"}),
        ("colour.dcm", rgb, {"PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}),
    ):
        ds = Dataset()
        ds.file_meta = FileMetaDataset()
        ds.file_meta.TransferSyntaxUID = pydicom.uid.UID("1.2.840.10008.1.2.1")
        ds.SOPClassUID = ds.file_meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
        ds.SOPInstanceUID = ds.file_meta.MediaStorageSOPInstanceUID = pydicom.uid.UID(f"1.2.826.0.1.{len(name)}.7")
        ds.StudyInstanceUID, ds.SeriesInstanceUID, ds.PatientID, ds.Modality = "1.2.3", "1.2.4", "P1", "CT"
        ds.PatientName, ds.StudyDate, ds.StudyTime, ds.StudyID = "A^B", "20260101", "120000", "1"
        ds.PatientBirthDate, ds.PatientSex, ds.AccessionNumber, ds.ReferringPhysicianName = "19700101", "O", "7", "C^D"
        ds.SeriesNumber, ds.InstanceNumber, ds.Rows, ds.Columns = 1, 1, *array.shape[:2]
        ds.SamplesPerPixel, ds.PhotometricInterpretation = array[0, 0].size, "MONOCHROME2"
        ds.BitsAllocated = ds.BitsStored = array.dtype.itemsize * 8
        ds.HighBit, ds.PixelRepresentation = ds.BitsStored - 1, int(array.dtype.kind == "i")
        for key, value in tags.items():
            setattr(ds, key, value)
        ds.PixelData = array.tobytes() + b"\0" * (array.nbytes % 2)
        ds.save_as(root / name, enforce_file_format=True)


# --- what each side runs, in its folder, with its own vitmed


def vitmed(*args: str) -> Found:
    """Run a command line in this process: exit code, stdout, stderr."""
    from vitmed.cli.entry import main

    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(args))
        except SystemExit as ended:
            code = ended.code
    return {"exit code": code, "stdout": as_json(out.getvalue()), "stderr": err.getvalue()}


def as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def run_parts(run: Path, moments: bool = True) -> Found:
    """What a finished run holds: weights, moments, policy, tables and numbers."""
    import torch

    found: Found = {}
    best = torch.load(run / "best.pt", weights_only=True, map_location="cpu")
    found["weights"] = best["weights"]
    policy = best.get("policy")
    found["policy"] = {k: v for k, v in policy.items() if k != "weights_hash"} if policy else None
    if moments and (run / "last.pt").is_file():
        training = torch.load(run / "last.pt", weights_only=True, map_location="cpu")["training"]
        kept = ("model", "optimizer", "optimiser", "ema", "scheduler", "epoch", "batch", "step", "best")
        found["training state"] = {key: value for key, value in training.items() if key in kept}
    found["splits.csv"] = (run / "splits.csv").read_text(encoding="utf-8")
    found["metrics.jsonl"] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for split in ("val", "test"):
        found[f"{split}/predictions.csv"] = (run / split / "predictions.csv").read_text(encoding="utf-8")
        found[f"{split}/metrics.json"] = json.loads((run / split / "metrics.json").read_text(encoding="utf-8"))
        if (page := run / split / "report.html").is_file():  # its words; figures are data: URLs
            words = re.sub(r"<(style|script|svg).*?</\1>|<[^>]*>", "\n", page.read_text(encoding="utf-8"), flags=re.S)
            found[f"{split}/report.html"] = "\n".join(line.strip() for line in words.splitlines() if line.strip())
    return found


def train_args(kind: str, name: str, *more: str, epochs: int = 5) -> list[str]:
    return ["train", *KINDS[kind], *TINY, "--epochs", str(epochs), "-o", "runs", "--name", name, *more]


def trained(kind: str) -> Callable[[], Found]:
    def run() -> Found:
        said = vitmed(*train_args(kind, kind))
        return {"messages": said, **(run_parts(Path("runs", kind)) if said["exit code"] == 0 else {})}

    return run


def micro_batches() -> Found:
    said = vitmed(*train_args("classes", "micro", "--micro-batch", "3", *QUICK))
    return {"messages": said, **run_parts(Path("runs/micro"))}


def mixed() -> Found:
    more = ("--mixup", "0.4", "--cutmix", "0.5", "--drop-path", "0.2", "--set", "model.dropout=0.1", *QUICK)
    said = vitmed(*train_args("classes", "mixed", *more))
    return {"messages": said, **run_parts(Path("runs/mixed"))}


def resumed() -> Found:
    """Interrupted after its first epochs, wherever that is, and continued: the same as never interrupted."""
    args = train_args("classes", "resumed", *QUICK, epochs=25)
    child = subprocess.Popen([sys.executable, "-m", "vitmed", *args], stderr=subprocess.DEVNULL)
    records = Path("runs/resumed/metrics.jsonl")
    while child.poll() is None and not (records.is_file() and records.read_bytes().count(b"\n") >= 2):
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    said = {
        "exit code when interrupted": child.wait(),
        "exit code": vitmed("train", "--resume", "runs/resumed")["exit code"],
    }
    return {"messages": said, **run_parts(Path("runs/resumed"))}


def two_processes() -> Found:
    args = train_args("classes", "two", "--devices", "2", *QUICK)
    done = subprocess.run([sys.executable, "-m", "vitmed", *args], capture_output=True, text=True)
    if done.returncode:
        return {"messages": done.stderr}
    return {"exit code": done.returncode, **run_parts(Path("runs/two"))}


def decoded() -> Found:
    """The pixels of every format, as 1 and 3 channels and in several windows."""
    from vitmed.imaging.decode import read_image

    found: Found = {}
    for file in sorted(Path("data/formats").iterdir()):
        for channels in (1, 3, 4):
            for window in (None, "dicom", (100.0, 3000.0)):
                try:
                    found[f"{file.name} {channels} {window}"] = np.asarray(read_image(file, channels, window=window))
                except Exception as error:
                    found[f"{file.name} {channels} {window}"] = f"{type(error).__name__}: {error}"
    return found


def onnx() -> Found:
    found: Found = {}
    for kind in KINDS:
        said = vitmed("export", f"runs/{kind}", "--to", f"{kind}.onnx")
        found[f"{kind} exit code"] = said["exit code"]
        if said["exit code"]:
            found[f"{kind} messages"] = said
            continue
        import onnxruntime

        session = onnxruntime.InferenceSession(f"{kind}.onnx", providers=["CPUExecutionProvider"])
        given = {}
        for put in session.get_inputs():
            shape = [size if isinstance(size, int) else 2 for size in put.shape]
            values = np.random.default_rng(0).integers(0, 256, shape)
            given[put.name] = values.astype({"tensor(uint8)": np.uint8, "tensor(float)": np.float32}[put.type])
        for put, value in zip(session.get_outputs(), session.run(None, given), strict=True):
            found[f"{kind} {put.name}"] = np.asarray(value).tolist() if np.asarray(value).dtype == object else value
        answers = vitmed("predict", "data/table/images", "--checkpoint", f"{kind}.onnx", "--json")
        found[f"{kind} predict"] = answers["stdout"]
    return found


def structured_reports() -> Found:
    import pydicom

    import vitmed as package

    places = ("deploy", "commands", "commands.pacs")  # of today's tree first
    module: Any = None
    for place in places:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(f"vitmed.{place}.structured_report")
            break
    found: Found = {}
    header = pydicom.dcmread("data/formats/colour.dcm", stop_before_pixels=True)
    for kind in KINDS:
        model = package.load(f"runs/{kind}")
        answer = model.predict("data/formats/colour.dcm")
        uid = module.report_uid(model, str(header.SOPInstanceUID))
        text = str(pydicom.dcmread(io.BytesIO(module.structured_report(answer, model, header, uid))))
        found[kind] = re.sub(r"(Date|Time)[^\n]*", "DATE", re.sub(r"\d+(\.\d+){7,}|2\.25\.\d+", "UID", text))
    return found


def served() -> Found:
    found: Found = {}
    for kind in KINDS:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "vitmed", "serve", f"runs/{kind}", "--port", str(port), "--precision", "fp32"]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            for _ in range(3000):
                if server.poll() is not None:
                    break
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5)
                    break
                time.sleep(0.1)
            found[f"{kind} model"] = ask(f"http://127.0.0.1:{port}/v1/model")
            for name in (
                "data/table/images/000.png",
                "data/formats/colour.dcm",
                "data/wrong/cut.png",
                "data/wrong/text.png",
            ):
                found[f"{kind} {name}"] = ask(f"http://127.0.0.1:{port}/v1/predict", Path(name))
        finally:
            server.terminate()
            found[f"{kind} exit code"] = server.wait(60)
    return found


def ask(url: str, image: Path | None = None) -> Any:
    body, head = None, {}
    if image is not None:
        name = f'Content-Disposition: form-data; name="images"; filename="{image.name}"'
        body = b"--EDGE\r\n" + name.encode() + b"\r\n\r\n" + image.read_bytes() + b"\r\n--EDGE--\r\n"
        head = {"Content-Type": "multipart/form-data; boundary=EDGE"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, head), timeout=60) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return {"status": error.code, "answer": as_json(error.read().decode())}


def helps() -> Found:
    """The text of every `--help`."""
    import typer

    from vitmed.cli import app

    found: Found = {}

    def visit(command: Any, path: tuple[str, ...]) -> None:
        found[" ".join(path) or "vitmed"] = vitmed(*path, "--help")["stdout"]
        for name in sorted(getattr(command, "commands", {})):
            visit(command.get_command(None, name), (*path, name))

    visit(typer.main.get_command(app), ())
    return found


def messages() -> Found:
    """What commands print, and their exit codes: results as JSON, and what a user gets wrong."""
    found: Found = {}
    for line in COMMANDS.strip().splitlines():
        words = line.replace("TABLE/", "data/table --labels data/table/").split()
        found[line] = vitmed(*words, *(TINY if words[0] == "probe" else []))
    return found


def texts() -> Found:
    """Every text in the sources that people may read (two words or more, no docstring), however its code moved."""
    import vitmed as package

    found: Found = {}
    for file in Path(inspect.getfile(package)).parent.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body and isinstance(node.body[0], ast.Expr)
        }  # fmt: skip
        for node in ast.walk(tree):
            if id(node) in inner or id(node) in docs:
                continue
            text = ""
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            elif isinstance(node, ast.JoinedStr):
                text = "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
            if len(re.findall(r"[A-Za-z]{2,}", text)) > 1 and " " in text.strip():
                found[text] = True
    return found


ITEMS: dict[str, Callable[[], Found]] = {  # in this order: later items use the runs of earlier ones
    **{f"train {kind}": trained(kind) for kind in KINDS},
    "train micro-batches": micro_batches,
    "train mixed": mixed,
    "train resumed": resumed,
    "train two processes": two_processes,
    "decoded": decoded,
    "onnx": onnx,
    "structured report": structured_reports,
    "served": served,
    "help": helps,
    "messages": messages,
    "texts": texts,
}


def side(place: Path, only: list[str]) -> None:
    """Run the items in a folder, and keep what each found."""
    os.chdir(place)
    for name, run in ITEMS.items():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in only) and not name.startswith("train"):
            continue
        began = time.monotonic()
        try:
            found = run()
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"}
        (place / f"{name}.pkl").write_bytes(pickle.dumps(found))
        print(f"{place.name}: {name}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


# --- the comparison


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(where, plain value or array) of a tree, without what time and version decide."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key not in NOT_RESULTS:
                yield from leaves(part, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from leaves(part, f"{path}[{i}]")
    else:
        yield path, value


def plain(text: str, place: str) -> str:
    text = text.replace(place, "PLACE")
    for pattern, instead in CHANGING:
        text = re.sub(pattern, instead, text)
    return re.sub(r"[ \t]+", " ", text)


def same_value(one: Any, other: Any, places: tuple[str, str]) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return plain(one, places[0]) == plain(other, places[1])
    if hasattr(one, "dtype") and hasattr(other, "dtype"):
        a, b = np.asarray(one), np.asarray(other)
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and bool(one == other)


def difference(one: Any, other: Any, places: tuple[str, str]) -> str:
    """ "" where two parts are equal, else what differs and where."""
    a, b = dict(leaves(one)), dict(leaves(other))
    wrong = [key for key in a.keys() & b.keys() if not same_value(a[key], b[key], places)]
    gone, new = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
    texts = []
    if wrong:
        key = min(wrong)
        texts.append(f"{len(wrong)} of {len(a)} differ, first {key or 'it'}: {short(a[key], b[key], places)}")
    texts += [f"{len(keys)} {what}: {keys[0]}" for keys, what in ((gone, "gone"), (new, "new")) if keys]
    return "; ".join(texts)


def short(one: Any, other: Any, places: tuple[str, str]) -> str:
    if isinstance(one, str) and isinstance(other, str):
        a, b = plain(one, places[0]).splitlines(), plain(other, places[1]).splitlines()
        lines = [(x, y) for x, y in zip([*a, ""], [*b, ""], strict=False) if x != y]
        return f"{lines[0][0].strip()[:150]!r} -> {lines[0][1].strip()[:150]!r}" if lines else "more lines"
    if hasattr(one, "dtype") and getattr(one, "shape", 0) == getattr(other, "shape", 1):
        return f"by at most {np.abs(np.asarray(one, float) - np.asarray(other, float)).max():.3g}"
    return f"{str(one)[:80]} -> {str(other)[:80]}"


def compared(root: Path, only: list[str], allow: list[str]) -> int:
    """Print the table; how many differences are not allowed."""
    places, bad = (str(root / "then"), str(root / "this")), 0
    for name in ITEMS:
        files = [root / where / f"{name}.pkl" for where in ("then", "this")]
        if not all(file.is_file() for file in files) or not any(fnmatch.fnmatch(name, pattern) for pattern in only):
            continue
        then, now = (pickle.loads(file.read_bytes()) for file in files)
        equal = 0
        if "failed" in then and "failed" in now:
            bad += 1
            print(f"DIFFERENT  {name}: cannot be compared: {then['failed']}; {now['failed']}")
        for part in dict.fromkeys([*then, *now]):
            one, other = then.get(part, {}), now.get(part, {})
            what = "gone" if part not in now else "new" if part not in then else difference(one, other, places)
            if not what:
                equal += 1
                continue
            allowed = any(fnmatch.fnmatch(f"{name}:{part}", pattern) or name == pattern for pattern in allow)
            bad += not allowed
            print(f"{'allowed  ' if allowed else 'DIFFERENT'}  {name}: {part}: {what}")
        print(f"equal      {name}: {equal} of {len(dict.fromkeys([*then, *now]))} parts")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="of git, to compare with; with --side, the folder to work in")
    parser.add_argument("--only", nargs="+", default=["*"], help=f"items, also with *: {', '.join(ITEMS)}")
    parser.add_argument("--allow", nargs="+", default=[], metavar="NAME", help='"item" or "item:part", also with *')
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new folder that stays, with all that was compared")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        side(Path(asked.commit), asked.only)
        return 0
    top = Path(__file__).resolve().parents[1]

    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", str(top), *args], check=True, capture_output=True, text=True).stdout.strip()

    root = asked.keep or Path(tempfile.mkdtemp(prefix="same-"))
    commits = {"then": asked.commit, "this": git("stash", "create") or "HEAD"}
    try:
        for where, commit in commits.items():
            git("worktree", "add", "--detach", "--force", str((root / where / "tree").absolute()), commit)
            draw(root / where / "data")

        def run(where: str) -> int:
            place = (root / where).absolute()
            env = os.environ | {
                "PYTHONPATH": str(place / "tree"), "VITMED_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1",
                "COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1", "VITMED_OFFLINE": "1", "GOMP_SPINCOUNT": "0",
                "SOURCE_DATE_EPOCH": "1767225600",
            }  # fmt: skip
            command = [sys.executable, __file__, str(place), "--side", "--only", *asked.only]
            return subprocess.run(command, env=env, stdin=subprocess.DEVNULL).returncode

        with ThreadPoolExecutor() as both:
            codes = list(both.map(run, commits))
        bad = compared(root.absolute(), asked.only, asked.allow)
        print(f"{bad} differences that are not allowed" if bad else "all equal, or allowed")
        return int(bool(bad) or any(codes))
    finally:
        for where in commits:
            with contextlib.suppress(subprocess.CalledProcessError):
                git("worktree", "remove", "--force", str((root / where / "tree").absolute()))
        if asked.keep is None:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
