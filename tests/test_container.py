"""The Dockerfile, read as text: no engine is needed. What matters: not root, no network, no stray file inside."""

import json
import re
from pathlib import Path, PurePosixPath

import pytest
import typer
import yaml

from vitmed.cli.commands import APPS

ROOT = Path(__file__).parents[1]
IMAGES = pytest.mark.parametrize("image", ["vitmed", "serve"])
Rows = list[tuple[str, str]]


def stages() -> dict[str, Rows]:
    """Name -> (instruction, arguments) in order, with those of the stage that it is from; lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found: dict[str, Rows] = {"": []}
    name = ""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip():
            instruction, arguments = line.split(maxsplit=1)
            if instruction.upper() == "FROM":
                source, _, name = arguments.split()
                found[name] = list(found.get(source, []))
            found[name].append((instruction.upper(), arguments))
    return found


def last(image: str, name: str) -> str:
    return [arguments for found, arguments in stages()[image] if found == name][-1]


def test_the_last_stage_is_the_image_without_a_server_and_bases_are_pinned() -> None:
    assert list(stages())[-1] == "vitmed"
    bases = [args.split()[0] for rows in stages().values() for name, args in rows if name == "FROM"]
    outside = {base for base in bases if base not in stages()}
    assert outside == {"python:${PYTHON_VERSION}-slim"}


@IMAGES
def test_it_runs_as_a_fixed_user_that_is_not_root(image: str) -> None:
    uid, _, gid = last(image, "USER").partition(":")
    assert int(uid) > 0 and int(gid) > 0
    names = [name for name, _ in stages()[image]]
    assert "RUN" not in names[names.index("USER") :], "everything is installed before USER"


@IMAGES
def test_the_entry_point_is_the_command(image: str) -> None:
    assert json.loads(last(image, "ENTRYPOINT")) == ["vitmed"]
    assert 'vitmed = "vitmed.cli:main"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@IMAGES
def test_it_neither_calls_home_nor_writes_outside_tmp_and_the_volumes(image: str) -> None:
    environment = dict(re.findall(r"(\w+)=(\S+)", " ".join(args for name, args in stages()[image] if name == "ENV")))
    assert environment["NO_ALBUMENTATIONS_UPDATE"] == "1"
    for key in ("HOME", "MPLCONFIGDIR"):
        assert environment[key].split("/")[1] == "tmp"
    assert json.loads(last(image, "VOLUME")) == ["/data", "/runs"]
    assert PurePosixPath(last(image, "WORKDIR"), "runs") == PurePosixPath("/runs")


def test_the_server_has_its_extras_its_port_and_a_health_check() -> None:
    extras = re.findall(r"\[([\w,]+)\]\"", " ".join(args for name, args in stages()["build-serve"] if name == "RUN"))
    assert {"serve", "export", "pacs", "dicom", "weights"} == {one for group in extras for one in group.split(",")}
    assert last("serve", "EXPOSE").split() == ["8000"]
    assert "http://127.0.0.1:8000/health/ready" in last("serve", "HEALTHCHECK")
    assert json.loads(last("serve", "CMD"))[0] == "serve"


def test_the_compose_file_starts_the_serving_image_and_an_orthanc_that_asks_it() -> None:
    deploy = ROOT / "deploy" / "orthanc"
    services = yaml.safe_load((deploy / "compose.yaml").read_text(encoding="utf-8"))["services"]
    own, archive = services["vitmed"], services["orthanc"]
    assert own["image"] == "vitmed:serve" and own["read_only"]
    verb, _, *flags = own["command"].split()
    assert verb == "serve"
    assert set(flags[::2]) <= {flag for option in typer.main.get_command(APPS["serve"]).params for flag in option.opts}
    config = json.loads(archive["environment"]["ORTHANC_JSON"])
    sample = json.loads((deploy / "orthanc.json").read_text(encoding="utf-8"))
    assert config["Vitmed"]["Url"] == "http://vitmed:8000"
    assert own["environment"]["VITMED_API_KEY"] == archive["environment"]["VITMED_API_KEY"]
    assert f"./vitmed_plugin.py:{config['PythonScript']}:ro" in archive["volumes"]
    assert set(config["Vitmed"]) <= set(sample["Vitmed"]) and config["UserMetadata"] == sample["UserMetadata"]
    assert (deploy / sample["PythonScript"]).is_file()
    assert all(port.startswith("127.0.0.1:") for one in services.values() for port in one["ports"])


def test_only_what_the_wheel_needs_gets_in() -> None:
    rows = [row for name in ("build-serve", "serve", "vitmed") for row in stages()[name]]
    assert "ADD" not in [name for name, _ in rows], "ADD fetches addresses and unpacks archives"
    copied = {src for name, args in rows if name == "COPY" and "--from" not in args for src in args.split()[:-1]}
    assert all((ROOT / source).exists() for source in copied)
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert next(line for line in ignore if line and not line.startswith("#")) == "*"
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    assert {"vitmed", "configs", "datasets", "pyproject.toml", "README.md", "LICENSE"} == copied
