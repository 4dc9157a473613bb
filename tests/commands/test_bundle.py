"""`vitmed bundle`: what the archive holds and what it must not hold, its lists, and its installation."""

from __future__ import annotations

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
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Answer, Trained, python, recording
from PIL import Image
from wheels import LICENCE, write_wheel

import vitmed as package
from vitmed.commands.bundle import bundle
from vitmed.core.errors import UsageError
from vitmed.inference.onnx_model import OnnxModel
from vitmed.inference.open_model import open_model
from vitmed.metrics.predictions import Predictions

VERSION = package.__version__
INSTALL = Path(package.__file__).parent / "deploy" / "bundle_files" / "install.sh"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Wheels, from which alone pip takes; and the metadata of a vitmed that needs some of them."""
    site, wheels = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("wheels")
    for name, version, *fields in (
        ("tiny", "1.5", "License-Expression: MIT OR Apache-2.0", "Requires-Dist: Small_Part>=1"),
        ("small-part", "2.0+local", "License: BSD", "Requires-Dist: tiny"),
        ("uvicorn", metadata.version("uvicorn"), "Classifier: License :: OSI Approved :: MIT License",
         "Requires-Dist: more; extra == 'big'", "Provides-Extra: big"),
        ("more", "0.1"),
        ("torchinfo", metadata.version("torchinfo")),
        ("onnxruntime", metadata.version("onnxruntime")),
        ("packaging", metadata.version("packaging")),
        ("packaging", "999.0"),
    ):  # fmt: skip
        write_wheel(wheels, name, version, *fields)
    needs = ["tiny", "torchinfo>=1", "packaging", "absent; sys_platform == 'nowhere'", "uvicorn[big]; extra == 'serve'"]
    fields = [*(f"Requires-Dist: {need}" for need in needs), "Provides-Extra: serve", "License-Expression: Apache-2.0"]
    write_wheel(site, "vitmed", VERSION, *fields, site=site)
    scripts = "[console_scripts]\nvitmed = vitmed.cli:main\n"
    (site / f"vitmed-{VERSION}.dist-info" / "entry_points.txt").write_text(scripts)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheels))
        patch.setenv("PIP_QUIET", "1")  # of a user: `pip list` then prints nothing, and nothing would be pinned
        yield wheels


@pytest.fixture(scope="module")
def archive(shop: Path, trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a run, with an extra."""
    file = tmp_path_factory.mktemp("archive") / "cells.tar"
    bundle(trained.folder, to=file, extras=["serve"])
    assert sorted(file.parent.iterdir()) == [file]
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
    names = "best.pt", "config.yaml", "model_card.md", "test/metrics.json", "test/predictions.csv"
    others = {"install.sh", "README.txt", "check/image.png", "check/best.pt.json", "sbom.cdx.json"}
    assert others | {f"model/{name}" for name in names} <= rows.keys()
    assert (unpacked / "install.sh").stat().st_mode & stat.S_IXUSR


def test_no_place_person_or_image_is_named(archive: Path, unpacked: Path, trained: Trained) -> None:
    secrets = {str(trained.folder.parent), str(trained.data), "_0.png"}
    assert any(b"_0.png" in file.read_bytes() for file in trained.folder.glob("best.pt")), "the run does name images"
    own = [path for path in unpacked.rglob("*") if path.is_file() and "wheels" not in path.parts]
    assert {"install.sh", "best.pt", "image.png"} <= {path.name for path in own}
    for file in own:
        for secret in secrets:
            assert secret.encode() not in file.read_bytes(), (file, secret)
    with tarfile.open(archive) as tar:
        entries = tar.getmembers()
    assert {(e.uid, e.gid, e.uname, e.gname, e.mtime) for e in entries} == {(0, 0, "", "", 0)}
    assert all(entry.name.split("/")[0] == "cells" for entry in entries)
    assert not files(unpacked / "model") & {"splits.csv", "test/report.html", "last.pt"}


def test_its_test_is_that_of_the_run_without_a_name_of_an_image(unpacked: Path, trained: Trained) -> None:
    table = Predictions.from_csv(unpacked / "model" / "test" / "predictions.csv")
    ours = Predictions.from_csv(trained.folder / "test" / "predictions.csv")
    assert table.paths == tuple(f"{i:06d}" for i in range(len(ours)))
    assert table.columns == {name: ours.columns[name] for name in ("ood_score", "answer")}  # which count the blank
    np.testing.assert_array_equal(table.logits, ours.logits)
    np.testing.assert_array_equal(table.units, ours.units)


@pytest.mark.slow
def test_its_test_is_the_reference_of_monitoring(
    unpacked: Path, trained: Trained, vitmed: Callable[..., Answer], tmp_path: Path
) -> None:
    new = trained.folder / "test" / "predictions.csv"
    contents = []
    for run in (trained.folder, unpacked / "model"):
        answer = vitmed("monitor", run, new, "-o", tmp_path / f"of-{run.name}", "--json")
        assert answer.code == 0, answer.err
        contents.append(json.loads(answer.out))
    assert contents[0]["charts"] == contents[1]["charts"]


def test_the_requirements_pin_each_wheel_in_the_version_that_is_installed_here(unpacked: Path) -> None:
    lines = (unpacked / "requirements.txt").read_text().splitlines()
    pins = dict(line.split(" --hash=sha256:") for line in lines)
    names = "packaging", "torchinfo", "uvicorn", "vitmed"
    here = {f"{name}=={metadata.version(name)}" for name in names}
    assert set(pins) == here | {"more==0.1", "small-part==2.0+local", "tiny==1.5"}
    assert {digest(wheel) for wheel in (unpacked / "wheels").iterdir()} == set(pins.values())


def test_the_bill_of_materials_and_the_licences(unpacked: Path, shop: Path, trained: Trained) -> None:
    text = (unpacked / "sbom.cdx.json").read_text()
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # a second, which every process of the tests would take

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    content = json.loads(text)
    parts = {part["name"]: part for part in content["components"] if part["type"] == "library"}
    (model,) = (part for part in content["components"] if part["type"] == "machine-learning-model")
    needed = {"tiny", "vitmed", "uvicorn", "more", "small-part", "torchinfo", "packaging"}
    assert parts.keys() == needed and model["name"] == trained.folder.name
    assert parts["small-part"]["purl"] == "pkg:pypi/small-part@2.0%2Blocal"
    wheel = digest(shop / "tiny-1.5-py3-none-any.whl")
    assert parts["tiny"]["hashes"] == [{"alg": "SHA-256", "content": wheel}]
    assert parts["tiny"]["licenses"][0]["expression"] == "MIT OR Apache-2.0"
    assert parts["uvicorn"]["licenses"][0]["license"]["id"] == "MIT"
    weights = {one["name"]: one["value"] for one in model["properties"]}
    assert weights == {"vitmed:weights_sha256": package.load(trained.best).saved.weights_hash}
    needs = {edge["ref"]: edge.get("dependsOn") for edge in content["dependencies"]}
    assert needs["tiny==1.5"] == ["small-part==2.0+local"]
    own = {need.split("==")[0] for need in needs[f"vitmed=={VERSION}"]}
    assert own == {"tiny", "torchinfo", "packaging", "uvicorn"}
    stated = (unpacked / "licences.txt").read_text()
    assert "MIT OR Apache-2.0" in stated and stated.count(LICENCE.decode()) >= 6


@pytest.mark.slow
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
    ours = package.predict(images, checkpoint=trained.best, precision="fp32")
    theirs = package.predict(images, checkpoint=unpacked / "model", precision="fp32")
    assert isinstance(ours, Predictions) and isinstance(theirs, Predictions)
    np.testing.assert_array_equal(theirs.logits, ours.logits)
    assert theirs.columns == ours.columns and (theirs.probabilities == ours.probabilities).all()
    found = vitmed("evaluate", unpacked / "model", "--data", trained.data / "train", "-o", unpacked.parent / "no")
    assert found.code == 3 and "used to make this model" in found.err


def differs(stored: Path, found: str) -> str:
    """What install.sh says of an answer."""
    script = re.search(r"<<'END' .*?\n(.*?)\nEND\n", INSTALL.read_text(), re.DOTALL)
    assert script is not None
    return python("-c", script[1], str(stored), found).stderr


def test_an_exported_file_answers_in_its_own_precision(tmp_path: Path) -> None:
    """A quantised file refuses --precision fp32."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "check").mkdir()
    for name in ("best.pt", "small.onnx"):
        (tmp_path / "check" / f"{name}.json").touch()
    (tmp_path / "bin" / "vitmed").write_text('#!/bin/sh\necho "$@" >> asked\n')
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\nexit 0\n")
    for name in ("vitmed", "python"):
        (tmp_path / "bin" / name).chmod(0o755)
    part = INSTALL.read_text().split('echo "4/4')[1].split("\ndone")[0]
    script = f'set -e; folder=.; first=; fail() {{ exit 1; }}\necho "4/4{part}\ndone'
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True)
    of_run, exported = (tmp_path / "asked").read_text().splitlines()
    assert "model/best.pt --device cpu --precision fp32 --json" in of_run
    assert "model/small.onnx --device cpu --json" in exported


def test_the_stored_answer_is_that_of_the_command(
    unpacked: Path, vitmed: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(unpacked)
    asked = ["--checkpoint", "model/best.pt", "--device", "cpu", "--precision", "fp32", "--json", "--quiet"]
    found = vitmed("predict", "check/image.png", *asked)
    assert found.code == 0 and differs(unpacked / "check" / "best.pt.json", found.out) == ""


@pytest.mark.slow
def test_the_drawn_image_of_a_model_of_deep_images_is_deep(shop: Path, trained: Trained, tmp_path: Path) -> None:
    """One of 8 bits would not be windowed, and a warning of it would alarm whoever installs the bundle."""
    ui, run = recording(), shutil.copytree(trained.folder, tmp_path / "run")
    content = torch.load(run / "best.pt", weights_only=True)
    del content["digests"]
    content["config"]["data"]["window"] = content["preprocessing"]["window"] = (434.0, 3703.0)
    torch.save(content, run / "best.pt")
    bundle(run, to=tmp_path / "deep.tar")
    assert not any("windowed" in text for text in ui.warned)
    with tarfile.open(tmp_path / "deep.tar") as tar:
        tar.extractall(tmp_path, filter="data")
    pixels = np.asarray(Image.open(tmp_path / "deep" / "check" / "image.png"))
    assert pixels.dtype == np.uint16 and 434 <= pixels.min() < 500 and 3600 < pixels.max() <= 3703


def test_what_counts_as_another_answer(tmp_path: Path) -> None:
    answer: dict[str, Any] = {"images": [{"prediction": "a b", "confidence": 0.5, "set": ""}], "threshold": None}
    stored = tmp_path / "stored.json"
    stored.write_text(json.dumps(answer, indent=2))

    def changed(**fields: object) -> str:
        return differs(stored, json.dumps({**answer, "images": [answer["images"][0] | fields]}))

    assert changed() == changed(confidence=0.5005) == ""
    assert '"confidence": 0.502' in changed(confidence=0.502) and "expected" in changed(confidence=0.502)
    assert changed(prediction="b") and changed(confidence=None) and changed(more=1)
    assert differs(stored, json.dumps({**answer, "images": []}))


INSTALLER = """#!/bin/sh
unset PYTHONPATH
"{python}" "$@" || exit
[ "$1 $2" != "-m venv" ] || for site in "$3"/lib/python*/site-packages; do echo "{site}" >"$site/here.pth"; done
"""


def install(folder: Path, *args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(folder / "install.sh"), *map(str, args)]
    known = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "HOME": "/nowhere"}
    return subprocess.run(command, capture_output=True, text=True, env=known | environment, timeout=120)


@pytest.mark.slow
def test_install_checks_installs_and_cleans_up(shop: Path, exported: Path, tmp_path: Path) -> None:
    """In an environment that sees the libraries of this one, since the wheels of the test are empty."""
    file, programs, libraries = tmp_path / "cells.tar", tmp_path / "programs", tmp_path / "libraries"
    bundle(exported, to=file, extras=["serve"])
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

    stored.write_text(re.sub(r'"confidence": 0\.\d', '"confidence": 0.0', honest))
    found = install(unpacked, programs, PYTHON=str(maker))
    assert found.returncode == 1 and "check/model.onnx.json: FAILED" in found.stderr
    assert not programs.exists()
    sums = unpacked / "SHA256SUMS"
    right = sums.read_text()
    sums.write_text(right.replace(hashlib.sha256(honest.encode()).hexdigest(), digest(stored)))
    found = install(unpacked, programs, PYTHON=str(maker))
    assert found.returncode == 1 and "model/model.onnx answers a stored image otherwise" in found.stderr
    assert '"confidence": 0.0' in found.stderr and not programs.exists()

    stored.write_text(honest)
    sums.write_text(right)
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


def test_install_refuses_another_python_in_every_language(unpacked: Path, tmp_path: Path) -> None:
    """sha256sum translates its lines, unless LC_ALL is C; the step after it is reached, whatever they say."""
    for name, text in (("python", "#!/bin/sh\necho 3.9 Linux riscv64\n"), ("sha256sum", TRANSLATED)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    found = install(unpacked, tmp_path / "new", PATH=path, LANG="de_DE.UTF-8", PYTHON="/no/python")
    assert found.returncode == 1 and "2/4" in found.stdout and "no /no/python here" in found.stderr
    found = install(unpacked, tmp_path / "new", PYTHON=str(tmp_path / "python"))
    assert found.returncode == 1 and "is Python 3.9 Linux riscv64, the bundle is for Python" in found.stderr
    assert not (tmp_path / "new").exists()


TRANSLATED = """#!/bin/sh
[ "${LC_ALL:-}" = C ] && exec /usr/bin/sha256sum "$@"
/usr/bin/sha256sum "$@" | sed 's/: OK$/: GEEIGNET/'
"""


@pytest.mark.parametrize("file", ["wheels/tiny-1.5-py3-none-any.whl", "README.txt", "SHA256SUMS"])
def test_install_refuses_a_bundle_without_a_file(unpacked: Path, tmp_path: Path, file: str) -> None:
    shutil.copytree(unpacked, tmp_path / "cells")
    (tmp_path / "cells" / file).unlink()
    found = install(tmp_path / "cells", tmp_path / "new")
    assert found.returncode == 1 and "a file is damaged or missing" in found.stderr and "2/4" not in found.stdout
    assert file == "SHA256SUMS" or f"{file}: FAILED" in found.stderr


@pytest.mark.slow
def test_an_exported_file_alone_needs_no_torch(shop: Path, exported: Path, tmp_path: Path) -> None:
    found = bundle(exported, to=tmp_path / "small.tar")
    assert found.packages.keys() == {"vitmed", "tiny", "small-part", "onnxruntime", "packaging"}
    assert (found.size, found.sha256) == (found.file.stat().st_size, digest(found.file))
    again = bundle(exported, to=found.file, force=True)
    assert again.sha256 == found.sha256, "the same content gives the same archive"
    with tarfile.open(found.file) as tar:
        assert "small/model/model.onnx" in tar.getnames() and "small/model/best.pt" not in tar.getnames()


@pytest.mark.slow
def test_without_torch_the_papers_of_the_run_stay(shop: Path, trained: Trained, exported: Path, tmp_path: Path) -> None:
    ui = recording()
    run = shutil.copytree(trained.folder, tmp_path / "run")
    found = bundle(shutil.copyfile(exported, run / "model.onnx"), to=tmp_path / "a.tar")
    assert "torchinfo" not in found.packages and ui.said[-1].startswith(f"{found.file}: 5 packages")
    with tarfile.open(found.file) as tar:
        names = {name.removeprefix("a/model/") for name in tar.getnames() if name.startswith("a/model/")}
        tar.extractall(tmp_path, filter="data")
    assert isinstance(open_model(tmp_path / "a" / "model"), OnnxModel), "the folder stands for the file in it"
    assert names == {"model.onnx", "config.yaml", "model_card.md", "test", "test/metrics.json", "test/predictions.csv"}


@pytest.mark.slow
def test_a_wheel_that_cannot_be_had_leaves_nothing(
    shop: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(UsageError, match=r"pip fails \(it finds no wheel of this version of onnxruntime") as error:
        bundle(exported, to=tmp_path / "new.tar")
    assert "PIP_FIND_LINKS=DIR" in error.value.fix and list(tmp_path.iterdir()) == []


def test_bad_arguments(
    shop: Path, trained: Trained, exported: Path, tmp_path: Path, vitmed: Callable[..., Answer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "there.tar").write_text("mine")
    for args, expected in (
        ((trained.folder,), "--to model.tar"),
        ((trained.folder, "--to", tmp_path / "a.zip"), "expected a file that ends in .tar"),
        ((trained.folder, "--to", tmp_path / "there.tar"), "is there already"),
        ((exported, "--to", tmp_path / "a.tar", "--extras", "foo"), "--extras foo: vitmed has no such extra"),
    ):
        found = vitmed("bundle", *args)
        assert found.code == 2 and expected in found.err, found.err
    monkeypatch.setitem(sys.modules, "piplicenses", None)
    found = vitmed("bundle", exported, "--to", tmp_path / "a.tar")
    assert found.code == 2 and "a bundle needs piplicenses" in found.err and "pip install 'vitmed[bundle]'" in found.err
    assert sorted(tmp_path.iterdir()) == [tmp_path / "there.tar"]
    assert (tmp_path / "there.tar").read_text() == "mine"
