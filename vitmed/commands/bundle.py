"""`vitmed bundle`: a model and all that it needs as one archive, for a machine without a network."""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitmed.commands.bundle_archive import PROGRAM, Archive, add_lists
from vitmed.commands.bundle_packages import OF_TORCH, ONNX_RUNTIME, Package, check_pip, make_wheel, needed, read_wheel
from vitmed.commands.predict import predict, predictions_json
from vitmed.core.errors import UsageError
from vitmed.core.files import whole_file
from vitmed.core.load_config import without_places
from vitmed.core.outputs import check_output
from vitmed.core.run_folder import METHODS_TEXT, NUMBERS, REPORT, RunFolder
from vitmed.core.text import counted, listed
from vitmed.core.ui import Silent, Ui
from vitmed.decisions.evaluation_folder import find_evaluation, read_metrics
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.training.ensemble import Ensemble
from vitmed.training.onnx_model import ONNX, OnnxModel, load_onnx
from vitmed.training.open_model import open_model
from vitmed.training.saved_model import SavedModel

TAR, MODEL, PICTURE, TOP_K = ".tar", "model", "check/image.png", 3


@dataclass(frozen=True)
class Bundle:
    """The archive that `bundle` wrote.

    Attributes:
        file, size, sha256: of the archive; bytes.
        packages: in it, vitmed first.
    """

    file: Path
    size: int
    sha256: str
    packages: tuple[Package, ...]


def bundle(
    model: str | Path,
    *,
    to: str | Path | None = None,
    onnx: str | Path | None = None,
    no_torch: bool = False,
    extras: Collection[str] = (),
    wheels: str | Path | None = None,
    report: bool = False,
    force: bool = False,
    ui: Ui | None = None,
) -> Bundle:
    """Write a model and everything that it needs as one archive, for a machine like this one without a network.

    Args:
        model: a run folder, its best.pt, or an exported .onnx file, which needs no torch.
        to: a new file; its suffix is .tar.
        onnx: an exported file of the same weights, to add.
        no_torch: leave out torch, and best.pt, which needs it.
        extras: of vitmed, to add: "serve", "dicom".
        wheels: a folder with wheels of the installed versions; default: pip fetches them.
        report: add the report of the test, which shows images of patients.
        force: replace an existing file.

    Raises:
        UsageError: an argument that cannot be used, or a wheel that cannot be had. CheckpointError: as of `load`.
    """
    if to is None or Path(to).suffix != TAR:
        raise UsageError(f"{to}: expected a file that ends in {TAR}" if to else "no file is named", "--to model.tar")
    ui, file, saved = ui or Ui(), Path(to), open_model(model)
    if isinstance(saved, Ensemble):
        raise UsageError(f"{saved.path}: a bundle holds one network or file", f"vitmed export {model} --to model.onnx")
    exported = _exported(saved, onnx)
    if no_torch and exported is None:
        raise UsageError("--no-torch needs an exported model", "name one of this run: --onnx model.onnx")
    torch = not no_torch and not isinstance(saved, OnnxModel)
    inputs = [saved.path, *([] if exported is None else [exported.path])]
    check_output(file, force=force, data=[] if isinstance(saved, OnnxModel) else [saved.splits.root], inputs=inputs)
    if wheels is not None and not Path(wheels).is_dir():
        raise UsageError(f"{wheels}: no such folder", "--wheels DIR, a folder with wheels")
    found = _evaluation(saved, report)
    if found is None:
        ui.warn(f"{saved.path}: no test of it beside it, so the bundle has neither model card nor metrics")
    check_pip()
    wanted = needed(extras, [ONNX_RUNTIME] * (exported is not None), () if torch else OF_TORCH)
    packages = list[Package]()
    with whole_file(file) as stream:
        archive = Archive(stream, file.stem)
        _add_packages(archive, wanted, None if wheels is None else Path(wheels), packages, ui)
        names = _add_models(archive, saved if torch else None, exported)
        _add_papers(archive, saved, found, report)
        add_lists(archive, packages, _component(saved, archive.sums[names[0]]))
        archive.add("install.sh", _install(names, "serve" in extras), PROGRAM)
        archive.close()
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    size = file.stat().st_size
    ui.say(f"{file}: {counted(len(packages), 'package')}, {size / 2**20:,.0f} MB, sha256 {digest}")
    if silent := [one.name for one in packages if not one.texts]:
        ui.warn(f"{counted(len(silent), 'wheel')} without the text of a licence: {listed(silent)}")
    return Bundle(file, size, digest, tuple(packages))


def _exported(saved: SavedModel, onnx: str | Path | None) -> OnnxModel | None:
    """The exported model of the bundle. Raises UsageError if it is not of the same weights."""
    if isinstance(saved, OnnxModel):
        return saved
    if onnx is None:
        return None
    found = load_onnx(Path(onnx))
    if found.weights_hash != saved.weights_hash:
        raise UsageError(f"{onnx}: exported from other weights than {saved.path}", "vitmed export RUN --to model.onnx")
    return found


def _evaluation(saved: SavedModel, report: bool) -> Path | None:
    """The folder of the test of these weights in the run; None where there is none.

    Raises:
        UsageError: a report is asked for, and there is none, or it shows names.
    """
    file = find_evaluation(RunFolder(saved.path.parent), "test", saved.weights_hash, saved.policy)
    if not report:
        return None if file is None else file.parent
    if file is None or not (file.parent / REPORT).is_file():
        raise UsageError(f"{saved.path}: no report of a test beside it", "vitmed evaluate RUN, or leave out --report")
    if read_metrics(file.parent / NUMBERS)["report"].get("evaluate", {}).get("show_names"):
        problem = f"{file.parent / REPORT}: shows the names of files"
        raise UsageError(problem, "evaluate again: vitmed evaluate RUN --no-show-names")
    return file.parent


def _add_packages(
    archive: Archive, wanted: dict[str, list[str]], wheels: Path | None, packages: list[Package], ui: Ui
) -> None:
    """Write the wheel of every package, one after the other: only one lies on the disk beside the archive."""
    with ui.bar("wheels", "packages") as advance:
        for done, (name, needs) in enumerate(wanted.items()):
            advance(done, len(wanted), f"{done}/{len(wanted)} {name}")
            with tempfile.TemporaryDirectory() as place:
                wheel = make_wheel(name, Path(place), wheels)
                packages.append(read_wheel(wheel, archive.add_file(f"wheels/{wheel.name}", wheel), needs))


def _add_models(archive: Archive, saved: SavedModel | None, exported: OnnxModel | None) -> list[str]:
    """Write the models, and what each answers to a drawn image; their names in the archive, the first one first.

    Args:
        saved: the checkpoint, None to leave it out.
    """
    names = list[str]()
    with tempfile.TemporaryDirectory() as place:
        picture = Path(place) / "image.png"
        if saved is not None:
            from vitmed.training.checkpoint import write_without_names

            best = RunFolder(place).best
            write_without_names(saved.path, best)
            names.append(_add_model(archive, best, best.name, picture))
        if exported is not None:
            names.append(_add_model(archive, exported.path, f"model{ONNX}", picture))
        archive.add_file(PICTURE, picture)
    archive.add("check/compare.py", Path(__file__).with_name("bundle_compare.py").read_bytes())
    return names


def _add_model(archive: Archive, path: Path, name: str, picture: Path) -> str:
    saved = open_model(path)
    if not picture.exists():
        draw(picture, saved.preprocessing)
    precision = "auto" if isinstance(saved, OnnxModel) else "fp32"
    answer = predictions_json(predict(picture, checkpoint=saved, device="cpu", precision=precision, ui=Silent()), TOP_K)
    answer["images"][0]["path"] = PICTURE
    archive.add(f"check/{name}.json", json.dumps(answer, indent=2) + "\n")
    archive.add_file(f"{MODEL}/{name}", path)
    return f"{MODEL}/{name}"


def draw(file: Path, how: Preprocessing) -> None:
    """Draw an image that nobody owns: noise, higher than wide, so that its size changes on the way to the network."""
    shape = (how.image_size * 5 // 4, how.image_size, how.channels)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels.squeeze()).save(file)


def _add_papers(archive: Archive, saved: SavedModel, evaluation: Path | None, report: bool) -> None:
    """Write configuration, model card, metrics and, where asked for, the report."""
    run = RunFolder(saved.path.parent)
    archive.add(f"{MODEL}/{run.config.name}", without_places(saved.config).to_yaml())
    if evaluation is None:
        return
    archive.add_file(f"{MODEL}/test/{NUMBERS}", evaluation / NUMBERS)
    if run.model_card.is_file():
        archive.add_file(f"{MODEL}/{run.model_card.name}", run.model_card)
    pages = read_metrics(evaluation / NUMBERS).get("finding_reports", {}).values() if report else ()
    for name in [*([REPORT, METHODS_TEXT] if report else []), *pages]:
        if (evaluation / name).is_file():
            archive.add_file(f"{MODEL}/test/{name}", evaluation / name)


def _component(saved: SavedModel, sha256: str) -> dict[str, Any]:
    """The model in the bill of materials."""
    found: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": MODEL,
        "name": RunFolder(saved.path.parent).name or MODEL,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }
    if licence := saved.config.model.licence:
        found["licenses"] = [{"license": {"name": licence}}]
    return found


def _install(models: Sequence[str], serves: bool) -> str:
    """The text of install.sh: what this bundle is, then what every bundle does."""
    major, minor, _ = platform.python_version_tuple()
    return (
        f"#!/bin/sh\npython_version={major}.{minor}\nplatform='{platform.system()} {platform.machine()}'\n"
        f"models='{' '.join(models)}'\nserves={'yes' if serves else 'no'}\n\n"
        + Path(__file__).with_name("install.sh").read_text(encoding="utf-8")
    )
