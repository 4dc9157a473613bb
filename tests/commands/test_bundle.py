"""`vitmed bundle`: what the archive holds and what it must not hold, its lists, and its installation."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoints import rewrite
from conftest import Answer, Recorder, Trained, python
from wheels import LICENCE, write_wheel

import vitmed as package
from vitmed.commands import bundle_packages
from vitmed.commands.bundle import bundle
from vitmed.commands.bundle_compare import differences
from vitmed.commands.bundle_packages import OF_TORCH, needed, pack_vitmed
from vitmed.core.errors import UsageError
from vitmed.metrics.predictions import Predictions

VERSION = package.__version__


@dataclass(frozen=True)
class Shop:
    """An environment with a vitmed that needs tiny, torchinfo and, for an extra, little; and their wheels."""

    site: Path
    wheels: Path


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("wheels"))
    for name, version, *fields in (
        ("tiny", "1.5", "License-Expression: MIT OR Apache-2.0", "Requires-Dist: Small_Part>=1"),
        ("small-part", "2.0+local", "License: BSD", "Requires-Dist: tiny"),
        ("little", "3.0", "Classifier: License :: OSI Approved :: MIT License", "Requires-Dist: more; extra == 'big'",
         "Provides-Extra: big"),
        ("more", "0.1"),
        ("torchinfo", "1.8"),
        ("onnxruntime", "1.24"),
    ):  # fmt: skip
        write_wheel(shop.wheels, name, version, *fields, site=shop.site)
    needs = ["tiny", "torchinfo", "absent; sys_platform == 'nowhere'", "little[big]; extra == 'serve'"]
    fields = [*(f"Requires-Dist: {need}" for need in needs), "Provides-Extra: serve", "License-Expression: Apache-2.0"]
    write_wheel(shop.site, "vitmed", VERSION, *fields, site=shop.site)
    scripts = "[console_scripts]\nvitmed = vitmed.cli:main\n"
    (shop.site / f"vitmed-{VERSION}.dist-info" / "entry_points.txt").write_text(scripts)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(shop.site)
        yield shop


@pytest.fixture
def no_pip(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheels of the shop, without the second that pip takes for each."""

    def make(name: str, folder: Path, wheels: Path | None) -> Path:
        if name == "vitmed":
            return pack_vitmed(folder)
        return Path(shutil.copy(next(shop.wheels.glob(f"{name.replace('-', '_')}-*")), folder))

    monkeypatch.setattr(sys.modules["vitmed.commands.bundle"], "make_wheel", make)


@pytest.fixture(scope="module")
def archive(shop: Shop, trained: Trained, exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of both models, with an extra."""
    file = tmp_path_factory.mktemp("archive") / "cells.tar"
    bundle(trained.folder, to=file, onnx=exported, extras=["serve"], wheels=shop.wheels, ui=Recorder())
    return file


@pytest.fixture(scope="module")
def unpacked(archive: Path) -> Path:
    """It, unpacked. Change nothing in it."""
    with tarfile.open(archive) as tar:
        tar.extractall(archive.parent, filter="data")
    return archive.parent / "cells"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_sums_cover_every_file(unpacked: Path) -> None:
    rows = dict(reversed(line.split("  ")) for line in (unpacked / "SHA256SUMS").read_text().splitlines())
    assert rows.keys() == files(unpacked) - {"SHA256SUMS"}
    assert all(digest(unpacked / name) == value for name, value in rows.items())
    models = {
        f"model/{name}" for name in ("best.pt", "model.onnx", "config.yaml", "model_card.md", "test/metrics.json")
    }
    assert models | {"install.sh", "check/image.png", "check/best.pt.json", "sbom.cdx.json"} <= rows.keys()
    assert (unpacked / "install.sh").stat().st_mode & stat.S_IXUSR


def test_no_place_person_or_image_is_named(archive: Path, unpacked: Path, trained: Trained) -> None:
    secrets = {str(trained.folder.parent), str(trained.data), "_0.png"}
    assert any(b"_0.png" in file.read_bytes() for file in trained.folder.glob("best.pt")), "the run does name images"
    own = [path for path in unpacked.rglob("*") if path.is_file() and "wheels" not in path.parts]
    for file in own:
        for secret in secrets:
            assert secret.encode() not in file.read_bytes(), (file, secret)
    with tarfile.open(archive) as tar:
        entries = tar.getmembers()
    assert {(e.uid, e.gid, e.uname, e.gname, e.mtime) for e in entries} == {(0, 0, "", "", 0)}
    assert all(entry.name.startswith("cells/") for entry in entries)
    assert not files(unpacked / "model") & {"splits.csv", "test/predictions.csv", "test/report.html", "last.pt"}


def test_the_requirements_pin_each_wheel(unpacked: Path) -> None:
    lines = (unpacked / "requirements.txt").read_text().splitlines()
    pins = dict(line.split(" --hash=sha256:") for line in lines)
    assert next(iter(pins)) == f"vitmed=={VERSION}"
    expected = {"little==3.0", "more==0.1", "onnxruntime==1.24", "small-part==2.0+local", "tiny==1.5", "torchinfo==1.8"}
    assert set(pins) == {f"vitmed=={VERSION}", *expected}
    assert {digest(wheel) for wheel in (unpacked / "wheels").iterdir()} == set(pins.values())


def test_the_bill_of_materials_and_the_licences(unpacked: Path, shop: Shop, trained: Trained) -> None:
    content = json.loads((unpacked / "sbom.cdx.json").read_text())
    assert (content["bomFormat"], content["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["name"]: part for part in content["components"]}
    assert parts.keys() == {"tiny", "vitmed", "little", "more", "onnxruntime", "small-part", "torchinfo"} | {
        trained.folder.name
    }
    assert parts["small-part"]["purl"] == "pkg:pypi/small-part@2.0%2Blocal"
    wheel = digest(shop.wheels / "tiny-1.5-py3-none-any.whl")
    assert parts["tiny"]["hashes"] == [{"alg": "SHA-256", "content": wheel}]
    licences = {name: part.get("licenses") for name, part in parts.items()}
    assert licences["tiny"] == [{"expression": "MIT OR Apache-2.0"}]
    assert licences["small-part"] == [{"license": {"name": "BSD"}}]
    assert licences["little"] == [{"license": {"name": "MIT License"}}] and licences["more"] is None
    needs = {edge["ref"]: edge["dependsOn"] for edge in content["dependencies"]}
    assert needs["pkg:pypi/tiny@1.5"] == ["pkg:pypi/small-part@2.0%2Blocal"]
    assert set(needs[f"pkg:pypi/vitmed@{VERSION}"]) == {
        "pkg:pypi/tiny@1.5", "pkg:pypi/torchinfo@1.8", "pkg:pypi/little@3.0",
    }  # fmt: skip
    with (unpacked / "licences" / "licences.csv").open() as stream:
        table = {row["package"]: row for row in csv.DictReader(stream)}
    assert table["more"]["licence"] == "not stated" and table["tiny"]["texts"] == "1"
    assert (unpacked / "licences" / "tiny" / "LICENSE").read_bytes() == LICENCE


def test_the_wheel_of_vitmed_is_the_code_that_runs(unpacked: Path, tmp_path: Path) -> None:
    wheel = unpacked / "wheels" / f"vitmed-{VERSION}-py3-none-any.whl"
    where = Path(package.__file__).parent
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        info = f"vitmed-{VERSION}.dist-info"
        sources = {f"vitmed/{path.relative_to(where).as_posix()}" for path in where.rglob("*.py")}
        assert sources == {name for name in names if name.endswith(".py")}
        assert packed.read("vitmed/core/files.py") == (where / "core" / "files.py").read_bytes()
        rows = [line.split(",") for line in packed.read(f"{info}/RECORD").decode().splitlines()]
    assert {row[0] for row in rows} == set(names)
    pip = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile", "--target", str(tmp_path)]
    done = python(*pip, str(wheel))
    assert done.returncode == 0, done.stderr
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import vitmed; print(vitmed.__file__)\n"
    code += "from vitmed.core.load_config import recipes; print(*recipes())"
    said = python("-c", code, cwd=tmp_path).stdout.splitlines()
    assert said[0] == str(tmp_path / "vitmed" / "__init__.py") and "malaria" in said[1]
    script = next(path for path in tmp_path.rglob("vitmed") if path.is_file())
    assert "vitmed.cli" in script.read_text()


def test_the_models_decide_as_before_and_know_their_images(
    unpacked: Path, trained: Trained, vitmed: Callable[..., Answer]
) -> None:
    images = sorted((trained.data / "test").rglob("*.png"))[:4]
    ours = package.predict(images, checkpoint=trained.best, precision="fp32", ui=Recorder())
    theirs = package.predict(images, checkpoint=unpacked / "model", precision="fp32", ui=Recorder())
    assert isinstance(ours, Predictions) and isinstance(theirs, Predictions)
    np.testing.assert_array_equal(theirs.logits, ours.logits)
    assert theirs.columns == ours.columns and (theirs.probabilities == ours.probabilities).all()
    found = vitmed("evaluate", unpacked / "model", "--data", trained.data / "train", "-o", unpacked.parent / "no")
    assert found.code == 3 and "used to make this model" in found.err


def stored(unpacked: Path, name: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((unpacked / "check" / f"{name}.json").read_text())
    return content


def test_the_stored_answer_is_that_of_the_command(
    unpacked: Path, vitmed: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(unpacked)
    for name, precision in (("best.pt", "fp32"), ("model.onnx", "auto")):
        asked = ["--checkpoint", f"model/{name}", "--device", "cpu", "--precision", precision, "--json", "--quiet"]
        found = vitmed("predict", "check/image.png", *asked)
        assert found.code == 0 and differences(json.loads(found.out), stored(unpacked, name)) == []
    changed = json.loads(found.out)
    changed["images"][0]["confidence"] += 0.01
    assert differences(changed, stored(unpacked, name)) != []


def test_what_counts_as_another_answer() -> None:
    answer = {"images": [{"prediction": "a", "confidence": 0.5, "set": ""}], "threshold": None}
    near = {"images": [{"prediction": "a", "confidence": 0.5005, "set": ""}], "threshold": None}
    far = {"images": [{"prediction": "a", "confidence": 0.502, "set": ""}], "threshold": None}
    other = {"images": [{"prediction": "b", "confidence": 0.5, "set": ""}], "threshold": None}
    assert differences(near, answer) == []
    assert differences(far, answer) == ["answer.images[0].confidence is 0.502, expected 0.5"]
    assert differences(other, answer) == ["answer.images[0].prediction is b, expected a"]
    assert differences({"images": []}, answer) and differences({**answer, "images": []}, answer)


INSTALLER = """#!/bin/sh
unset PYTHONPATH
"{python}" "$@" || exit
[ "$1 $2" != "-m venv" ] || for site in "$3"/lib/python*/site-packages; do echo "{site}" >"$site/here.pth"; done
"""


def install(folder: Path, *args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(folder / "install.sh"), *map(str, args)]
    known = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "HOME": "/nowhere"}
    return subprocess.run(command, capture_output=True, text=True, env=known | environment, timeout=120)


def test_install_checks_installs_and_cleans_up(no_pip: None, exported: Path, tmp_path: Path) -> None:
    """In an environment that sees the libraries of this one, since the wheels of the test are empty."""
    file, programs, libraries = tmp_path / "cells.tar", tmp_path / "programs", tmp_path / "libraries"
    bundle(exported, to=file, extras=["serve"], ui=Recorder())
    with tarfile.open(file) as tar:
        tar.extractall(tmp_path, filter="data")
    unpacked = tmp_path / "cells"
    libraries.mkdir()
    for entry in Path(np.__file__).parents[1].iterdir():
        if "vitmed" not in entry.name:
            (libraries / entry.name).symlink_to(entry)
    maker = tmp_path / "python"
    maker.write_text(INSTALLER.format(python=sys.executable, site=libraries))
    maker.chmod(0o755)
    stored = unpacked / "check" / "model.onnx.json"
    honest = stored.read_text()

    stored.write_text(re.sub(r'"confidence": 0\.\d', '"confidence": 0.00', honest))
    found = install(unpacked, programs, PYTHON=str(maker))
    assert found.returncode == 1 and "check/model.onnx.json: FAILED" in found.stderr
    compare = subprocess.run(
        [sys.executable, unpacked / "check" / "compare.py", stored], input=honest, capture_output=True, text=True
    )
    assert compare.returncode == 1 and "answer.images[0].confidence is 0." in compare.stderr
    assert not programs.exists()

    stored.write_text(honest)
    broken = tmp_path / "broken"
    broken.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec "{sys.executable}" "$@"\nmkdir "$3"\nexit 1\n')
    broken.chmod(0o755)
    found = install(unpacked, programs, PYTHON=str(broken))
    assert found.returncode == 1 and "-m venv failed" in found.stderr and not programs.exists()

    before = files(unpacked)
    found = install(unpacked, programs, PYTHON=str(maker))
    assert found.returncode == 0, found.stderr
    assert f"{programs}/bin/vitmed serve {unpacked}/model/model.onnx" in found.stdout
    assert files(unpacked) == before and (programs / "bin" / "vitmed").is_file()
    again = install(unpacked, programs)
    assert again.returncode == 1 and "is there already" in again.stderr


def test_install_refuses_another_python(unpacked: Path, tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.9 Linux riscv64\n")
    other.chmod(0o755)
    found = install(unpacked, tmp_path / "new", PYTHON=str(other))
    assert found.returncode == 1 and "is Python 3.9 Linux riscv64, the bundle is for Python" in found.stderr
    assert not (tmp_path / "new").exists()


def test_an_exported_file_alone_needs_no_torch(no_pip: None, exported: Path, tmp_path: Path) -> None:
    found = bundle(exported, to=tmp_path / "small.tar", ui=Recorder())
    assert {one.name for one in found.packages} == {"vitmed", "tiny", "small-part", "onnxruntime"}
    assert (found.size, found.sha256) == (found.file.stat().st_size, digest(found.file))
    again = bundle(exported, to=found.file, force=True, ui=Recorder())
    assert again.sha256 == found.sha256, "the same content gives the same archive"
    with tarfile.open(found.file) as tar:
        assert "small/model/model.onnx" in tar.getnames() and "small/model/best.pt" not in tar.getnames()


def test_without_torch_the_papers_of_the_run_stay_and_the_report_comes_if_asked_for(
    no_pip: None, trained: Trained, exported: Path, tmp_path: Path
) -> None:
    ui = Recorder()
    found = bundle(trained.folder, to=tmp_path / "a.tar", onnx=exported, no_torch=True, report=True, ui=ui)
    assert "torchinfo" not in {one.name for one in found.packages}
    with tarfile.open(found.file) as tar:
        names = {name.removeprefix("a/model/") for name in tar.getnames() if name.startswith("a/model/")}
    papers = {"config.yaml", "model_card.md", "test/metrics.json", "test/report.html", "test/methods.md"}
    assert names == {"model.onnx", *papers}
    assert ui.said[-1].startswith(f"{found.file}: 4 packages")

    run = tmp_path / "run"
    shutil.copytree(trained.folder, run)
    numbers = json.loads((run / "test" / "metrics.json").read_text())
    numbers["report"]["evaluate"]["show_names"] = True
    (run / "test" / "metrics.json").write_text(json.dumps(numbers))
    with pytest.raises(UsageError, match="shows the names of files"):
        bundle(run, to=tmp_path / "b.tar", report=True, ui=Recorder())


def test_what_a_package_needs(shop: Shop) -> None:
    """Worked by hand: an unmet marker, an extra of an extra, two packages that need each other."""
    assert needed([]) == {
        "vitmed": ["tiny", "torchinfo"], "tiny": ["small-part"], "torchinfo": [], "small-part": ["tiny"],
    }  # fmt: skip
    assert needed(["serve"])["little"] == ["more"]
    assert list(needed([], ["onnxruntime"], OF_TORCH)) == ["vitmed", "onnxruntime", "tiny", "small-part"]
    with pytest.raises(UsageError, match=r"--extras foo: vitmed has no such extra"):
        needed(["foo"])


def test_a_wheel_that_cannot_be_had(
    shop: Shop, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def problem(wheels: Path | None) -> str:
        with pytest.raises(UsageError) as error:
            bundle(exported, to=tmp_path / "new.tar", wheels=wheels, ui=Recorder())
        assert list(tmp_path.glob("*.tar")) == [] and list(tmp_path.glob(".*")) == []
        return str(error.value)

    place = tmp_path / "wheels"
    place.mkdir()
    assert "wheels: holds no wheel of onnxruntime 1.24" in problem(place)
    write_wheel(place, "onnxruntime", "1.24", tag="cp39-cp39-win32")
    assert "onnxruntime-1.24-cp39-cp39-win32.whl is for another platform or Python" in problem(place)
    assert "no such folder" in problem(tmp_path / "absent")
    for said, expected in {
        "ERROR: Could not install: [Errno 28] No space left on device": "the disk is full",
        "ERROR: No matching distribution found for onnxruntime==1.24": "there is no network, or its index lacks it",
        "noise\nERROR: the build broke": "pip failed (ERROR: the build broke)",
    }.items():
        fails = SimpleNamespace(run=lambda *args, said=said, **how: SimpleNamespace(returncode=1, stderr=said))
        monkeypatch.setattr(bundle_packages, "subprocess", fails)
        assert expected in problem(None)
    monkeypatch.setattr(bundle_packages.importlib.util, "find_spec", lambda name: None)
    assert "has no pip" in problem(None)


def test_a_package_of_a_folder_is_built_from_it(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip notes it in direct_url.json (PEP 610), after `pip install -e`."""
    site, asked = tmp_path / "site", list[str]()
    write_wheel(tmp_path, "mine", "1.0", site=site)
    noted = {"url": "file:///home/of%20mine", "dir_info": {"editable": True}}
    (site / "mine-1.0.dist-info" / "direct_url.json").write_text(json.dumps(noted))
    monkeypatch.syspath_prepend(site)

    def run(command: list[str], **how: object) -> SimpleNamespace:
        asked.append(command[-1])
        write_wheel(tmp_path / "made", "mine", "1.0")
        return SimpleNamespace(returncode=0, stderr="")

    (tmp_path / "made").mkdir()
    monkeypatch.setattr(bundle_packages, "subprocess", SimpleNamespace(run=run))
    assert bundle_packages.make_wheel("mine", tmp_path / "made", None).name == "mine-1.0-py3-none-any.whl"
    assert asked == ["/home/of mine"]


def test_bad_arguments(
    shop: Shop, trained: Trained, exported: Path, tmp_path: Path, vitmed: Callable[..., Answer]
) -> None:
    other = rewrite(trained.best, tmp_path / "other.pt", policy=None, weights={"a": __import__("torch").zeros(1)})
    (tmp_path / "there.tar").write_text("mine")
    for args, expected in (
        ((trained.folder,), "--to model.tar"),
        ((trained.folder, "--to", tmp_path / "a.zip"), "expected a file that ends in .tar"),
        ((trained.folder, "--to", tmp_path / "there.tar"), "is there already"),
        ((trained.folder, "--to", tmp_path / "a.tar", "--no-torch"), "needs an exported model"),
        ((other, "--to", tmp_path / "a.tar", "--onnx", exported), "exported from other weights"),
        ((exported, "--to", tmp_path / "a.tar", "--report"), "no report of a test beside it"),
    ):
        found = vitmed("bundle", *args)
        assert found.code == 2 and expected in found.err, found.err
    assert (tmp_path / "there.tar").read_text() == "mine"
