"""The Dockerfile, read as text: no engine is needed. What matters: not root, no network, no stray file inside."""

import json
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) in order; continued lines joined, comments dropped."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0].upper(), line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def final_stage() -> list[tuple[str, str]]:
    rows = instructions()
    return rows[max(i for i, (name, _) in enumerate(rows) if name == "FROM") :]


def last(name: str) -> str:
    return [args for found, args in final_stage() if found == name][-1]


def test_it_has_a_build_stage_and_pinned_bases() -> None:
    bases = [args.split()[0] for name, args in instructions() if name == "FROM"]
    assert len(bases) == 2
    assert all(":" in base and not base.endswith(":latest") for base in bases)


def test_it_runs_as_a_fixed_user_that_is_not_root() -> None:
    uid, _, gid = last("USER").partition(":")
    assert int(uid) > 0 and int(gid) > 0
    names = [name for name, _ in final_stage()]
    assert "RUN" not in names[names.index("USER") :], "everything is installed before USER"


def test_the_entry_point_is_the_command() -> None:
    assert json.loads(last("ENTRYPOINT")) == ["vitmed"]
    assert 'vitmed = "vitmed.cli:main"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_it_neither_calls_home_nor_writes_outside_tmp_and_the_volumes() -> None:
    environment = dict(re.findall(r"(\w+)=(\S+)", " ".join(args for name, args in final_stage() if name == "ENV")))
    assert environment["NO_ALBUMENTATIONS_UPDATE"] == "1"
    for key in ("HOME", "MPLCONFIGDIR"):
        assert environment[key].split("/")[1] == "tmp"
    assert json.loads(last("VOLUME")) == ["/data", "/runs"]
    assert PurePosixPath(last("WORKDIR"), "runs") == PurePosixPath("/runs")


def test_only_what_the_wheel_needs_gets_in() -> None:
    rows = instructions()
    assert "ADD" not in [name for name, _ in rows], "ADD fetches addresses and unpacks archives"
    copied = {src for name, args in rows if name == "COPY" and "--from" not in args for src in args.split()[:-1]}
    assert all((ROOT / source).exists() for source in copied)
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert next(line for line in ignore if line and not line.startswith("#")) == "*"
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    assert {"vitmed", "configs", "datasets", "pyproject.toml", "README.md", "LICENSE"} == copied
