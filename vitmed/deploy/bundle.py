"""A model and all that it needs as one archive; pip fetches the wheels, other programs list them."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Collection
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from packaging.utils import canonicalize_name, parse_wheel_filename
from PIL import Image

import vitmed
from vitmed.core.downloads import digest_of
from vitmed.core.errors import UsageError
from vitmed.core.files import whole_file, write_text
from vitmed.core.load_config import without_places
from vitmed.core.messages import Silent, listening, say, warn
from vitmed.core.run_folder import NUMBERS, PREDICTIONS, RunFolder
from vitmed.core.text import listed
from vitmed.decisions.evaluation_folder import find_evaluation, read_evaluation
from vitmed.inference.load import predictions_json
from vitmed.inference.onnx_model import OnnxModel
from vitmed.inference.open_model import files_for, open_model, open_network
from vitmed.inference.saved_model import SavedModel
from vitmed.metrics.predictions_csv import ANSWER, OOD_SCORE

TOOLS = ("pip", "wheel", "piplicenses", "cyclonedx_py")  # modules that run as programs
OF_TORCH = re.compile(r"^Requires-Dist: (torch|torchvision|torchinfo|albumentations)\b.*\n", re.MULTILINE)
ALONE = {"PYTHONPATH": "", "PYTHONUTF8": "1", "SOURCE_DATE_EPOCH": "315532800"}
ALONE |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "0"}  # quiet, `pip list` names nothing to be pinned
LEFT_HERE = shutil.ignore_patterns("__pycache__", "RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


def write_bundle(file: Path, saved: SavedModel, extras: Collection[str]) -> dict[str, str]:
    """Write an archive with wheels and `extras` of vitmed, the model, what it answers to a drawn image, and lists of
    licences and parts; return the packages with their versions. Raises UsageError: no such extra, or a wheel that
    cannot be had."""
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".bundle-") as folder:
        place, top = Path(folder), Path(folder) / "top" / file.stem
        say("pip fetches the wheels of all that vitmed needs")
        _add_wheels(top / "wheels", place, extras, isinstance(saved, OnnxModel))
        _add_model(top, saved)
        packages = _add_lists(top, place / "lists", saved)
        shutil.copytree(Path(__file__).with_name("bundle_files"), top, dirs_exist_ok=True)
        (top / "install.sh").chmod(0o755)
        machine = f"{sys.version_info[0]}.{sys.version_info[1]} {os.uname().sysname} {os.uname().machine}\n"
        (top / "machine.txt").write_text(machine)
        sums = [f"{digest_of(part)}  {part.relative_to(top)}\n" for part in sorted(top.rglob("*")) if part.is_file()]
        (top / "SHA256SUMS").write_text("".join(sums))
        nobody: Any = {"uid": 0, "gid": 0, "uname": "", "gname": "", "mtime": 0, "deep": False}  # nor a time
        with whole_file(file) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(top, file.stem, filter=lambda e: e.replace(mode=0o755 if e.mode & 0o100 else 0o644, **nobody))
    return packages


def _add_wheels(folder: Path, place: Path, extras: Collection[str], exported: bool) -> None:
    """Pack the vitmed that runs, without torch as if it did not need it, and fetch all that it needs."""
    about, package = metadata.distribution("vitmed"), Path(vitmed.__file__).parent
    if about.version != vitmed.__version__:
        raise UsageError(f"vitmed {vitmed.__version__} runs, and {about.version} is installed", "pip install -e .")
    offered = about.metadata.get_all("Provides-Extra") or []
    if unknown := [extra for extra in extras if extra not in offered]:
        fix = f"one of: {listed(offered, 50)}; after an update of a checkout: pip install -e . again"
        raise UsageError(f"--extras {unknown[0]}: vitmed has no such extra", fix)
    stated = next(Path(str(part.locate())) for part in about.files or () if part.name == "METADATA")
    info = shutil.copytree(stated.parent, place / "own" / stated.parent.name, ignore=LEFT_HERE)
    shutil.copytree(package, place / "own" / "vitmed", ignore=LEFT_HERE)
    for beside in ("configs", "datasets"):  # in a wheel inside the package, in a checkout beside it
        if not (package / beside).is_dir():
            shutil.copytree(package.parent / beside, place / "own" / "vitmed" / beside)
    if exported:
        (info / "METADATA").write_text(OF_TORCH.sub("", stated.read_text(encoding="utf-8")), encoding="utf-8")
    _run("wheel", "pack", place / "own", "-d", place)
    (place / "pins.txt").write_text(_run("pip", "list", "--format=freeze", "--exclude=vitmed"))
    wheel = str(next(place.glob("*.whl"))) + f"[{','.join(extras)}]" * bool(extras)
    _run("pip", "wheel", "-w", folder, "-c", place / "pins.txt", wheel, *["onnxruntime"] * exported)


def _add_model(top: Path, saved: SavedModel) -> None:
    """Write the model, what it answers to a drawn image that nobody owns, and the papers of the run."""
    how, picture = saved.preprocessing, top / "check" / "image.png"
    for folder in (top / "model" / "test", top / "check"):
        folder.mkdir(parents=True)
    shape = (how.image_size * 5 // 4, how.image_size, how.channels)  # its size changes on the way to the network
    draw = np.random.default_rng(0).integers
    pixels: np.ndarray = draw(0, 256, shape, np.uint8)
    if isinstance(how.window, tuple):  # of deep images: 16 bits, since 8 bits are not windowed
        low, high = np.clip(how.window[:2], 0, 65535).astype(int)
        pixels = draw(low, high, shape[:2], np.uint16, endpoint=True)
    Image.fromarray(pixels.squeeze()).save(picture)
    name = "model.onnx" if isinstance(saved, OnnxModel) else "best.pt"
    if isinstance(saved, OnnxModel):
        shutil.copyfile(saved.path, top / "model" / name)
    else:
        from vitmed.inference.checkpoint import write_without_names

        write_without_names(saved.path, top / "model" / name)
    again = open_model(top / "model" / name)
    with listening(Silent()):
        files = files_for([picture.as_posix()], again, None)
        network = open_network(again, again.policy, "cpu", again.exact)
    predictions = again.decided(files.predictions(again, network.outputs(files.read, len(files))))
    text = json.dumps(predictions_json(predictions)).replace(json.dumps(str(picture)), '"check/image.png"')
    (top / "check" / f"{name}.json").write_text(text, encoding="utf-8")
    run = RunFolder(saved.path.parent)
    (top / "model" / run.config.name).write_text(without_places(saved.config).to_yaml(), encoding="utf-8")
    if (table := find_evaluation(run, "test", saved.weights_hash, saved.policy)) is None:
        warn(f"{saved.path}: no test of it beside it, so the bundle has neither model card nor metrics")
        return
    shutil.copyfile(table.with_name(NUMBERS), top / "model" / "test" / NUMBERS)
    tested = read_evaluation(table).predictions  # for `vitmed monitor`
    groups = None if tested.groups is None else tuple(map(str, tested.units))
    columns = {name: cells for name, cells in tested.columns.items() if name in (OOD_SCORE, ANSWER)}
    nameless = replace(tested, paths=tuple(f"{i:06d}" for i in range(len(tested))), groups=groups, columns=columns)
    write_text(top / "model" / "test" / PREDICTIONS, nameless.to_csv())
    if run.model_card.is_file():
        shutil.copyfile(run.model_card, top / "model" / run.model_card.name)


def _add_lists(top: Path, place: Path, saved: SavedModel) -> dict[str, str]:
    """Write requirements with hashes, licences with their texts, and the bill of materials; name -> version."""
    venv.create(place, symlinks=True)  # gets what the wheels state of themselves, not their programs
    python, site = place / "bin" / "python", next(place.glob("lib/*/site-packages"))
    versions, sums = dict[str, str](), dict[str, str]()
    for wheel in sorted((top / "wheels").iterdir()):
        name, version, *_ = parse_wheel_filename(wheel.name)
        versions[name], sums[name] = str(version), digest_of(wheel)
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(site, [inside for inside in packed.namelist() if ".dist-info/" in inside])
    (top / "requirements.txt").write_text("".join(f"{n}=={versions[n]} --hash=sha256:{sums[n]}\n" for n in sums))
    texts = ["--with-license-file", "--with-notice-file", "--no-license-path", "--format", "plain-vertical"]
    (top / "licences.txt").write_text(_run("piplicenses", "--python", python, "--with-system", *texts), "utf-8")
    bill = json.loads(_run("cyclonedx_py", "environment", python, "--output-reproducible", "--gather-license-texts"))
    for part in bill["components"]:
        part["hashes"] = [{"alg": "SHA-256", "content": sums[canonicalize_name(part["name"])]}]
    model: dict[str, Any] = {"type": "machine-learning-model", "name": RunFolder(saved.path.parent).name or "model"}
    model["properties"] = [{"name": "vitmed:weights_sha256", "value": saved.weights_hash}]
    model["licenses"] = [{"license": {"name": saved.config.model.licence}}] if saved.config.model.licence else []
    bill["components"].append(model)
    (top / "sbom.cdx.json").write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    return versions


def _run(module: str, *arguments: str | Path) -> str:
    """What a program prints. Raises UsageError if it fails."""
    command = [sys.executable, "-P", "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=os.environ | ALONE)
    if done.returncode:
        lacking = re.findall(r"requested \(constraint\) ([\w.-]+)", done.stdout)  # pip calls it a conflict
        said = [line.strip() for line in done.stderr.splitlines() if "ERROR" in line] or [done.stderr.strip()[-300:]]
        why = f"it finds no wheel of this version of {listed(lacking)}" if lacking else "; ".join(said)
        fix = "make room; or name a folder with the wheels of the installed versions: PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR"
        raise UsageError(f"{module} fails ({why})", fix)
    return done.stdout
