"""The documents keep step with the code: commands parse, links resolve, names are told, tables are up to date."""

import ast
import importlib.util
import inspect
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

import vitmed
from vitmed.cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "datasets" / "README.md", *(ROOT / "docs").glob("*.md")]
)
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
WITH_COMMANDS = [page for page in PAGES if page.parent.name != "datasets"]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
FOREIGN = {  # names in docstrings that are not ours: of other libraries, and examples of file names
    "sha256sum", "nohup", "pydantic.Field", "ntpath", "tarfile.data_filter", "codecs.encode", "chunksize",
    "Figure.savefig", "kidney_l", "kidneyL", "AUTUMN_LEAVES_1990", "jdoe3", "no_tumor",
}  # fmt: skip


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def fences(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", read(page), re.M | re.S)


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of every `vitmed ...` and `docker run ... vitmed ...` in code blocks and code spans."""
    text = read(page)
    if page.name == "CHANGELOG.md":  # older versions had other commands
        text = text[: text.index("\n## 0.2.0")]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    indented = "\n".join(line[4:] if line.startswith("    ") else "" for line in prose.split("\n"))
    spans = "\n".join(re.findall(r"`(vitmed [^`]+)`", re.sub(r"^    .*$", "", prose, flags=re.M)))
    blocks = [*fences(page, "(?:sh|bash)"), indented, spans]
    for block in blocks:
        for line in block.replace("\\\n", " ").split("\n"):
            yield from _commands_of_line(line)


def _commands_of_line(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quotation mark of a message, not of a command
        return
    parts: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("&|;"):
            parts.append([])
        else:
            parts[-1].append(word)
    for part in parts:
        if part[:1] == ["vitmed"]:
            yield part[1:]
        elif part[:2] == ["docker", "run"]:
            image = next(i for i, word in enumerate(part) if word == "vitmed" or word.startswith("vitmed:"))
            yield part[image + 1 :]


@cache
def all_commands() -> Any:
    return get_command(app)


def parse(args: list[str]) -> None:
    """Parse a command line with the real parser and run nothing. Raises what the parser raises."""
    name, *rest = args
    if name.startswith("-"):
        assert name in ("--help", "-h", "--version", "--install-completion"), name
        return
    command = all_commands().get_command(None, name)
    if command is None:
        raise KeyError(name)
    if rest and hasattr(command, "commands") and not rest[0].startswith("-"):  # vitmed weights list
        command, rest = command.commands[rest[0]], rest[1:]
    if rest:
        command.make_context(name, [word for word in rest if word not in ("--help", "-h")])


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_every_command_line_parses(page: Path) -> None:
    for args in commands(page):
        try:
            parse(args)
        except Exception as error:
            pytest.fail(f"{page.name}: vitmed {shlex.join(args)}: {type(error).__name__} {error}")


def test_commands_are_found_and_a_wrong_flag_would_be_noticed() -> None:
    readme = [args[0] for args in commands(ROOT / "README.md")]
    assert {"demo", "train", "evaluate", "predict", "summary"} <= set(readme)
    assert any(args[:2] == ["train", "/data"] for args in commands(ROOT / "docs" / "container.md"))
    with pytest.raises(Exception, match="no-such-flag"):
        parse(["train", "data", "--no-such-flag", "1"])
    with pytest.raises(KeyError):
        parse(["no-such-command"])


def heading_ids(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them: lower case, no punctuation, hyphens for blanks."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", read(page), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


LINK, NAMED = r"\]\(([^)\s]+)\)", r"`((?:docs|configs|datasets|benchmarks|tests)/[\w./-]+\.\w+)`"


def test_the_pages_hold_links_paths_snippets_and_promises() -> None:
    """What the tests below look at: a page may have none, but not all pages."""
    texts = [read(page) for page in PAGES]
    assert sum(len(re.findall(LINK, text)) for text in texts) > 50
    assert sum(len(re.findall(NAMED, text)) for text in texts) > 10
    snippets = [snippet for page in PAGES for snippet in fences(page, "python")]
    assert sum("vitmed" in snippet for snippet in snippets) > 10


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_relative_link_resolves(page: Path) -> None:
    for target in re.findall(LINK, read(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in heading_ids(file), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_path_of_the_repository_that_is_named_exists(page: Path) -> None:
    for path in re.findall(NAMED, read(page)):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_python_snippets_compile_and_import_what_exists(page: Path) -> None:
    for snippet in fences(page, "python"):
        tree = ast.parse(snippet)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vitmed"):
                module = importlib.import_module(node.module or "")
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{page.name}: {node.module} has no {alias.name}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "vitmed":
                assert node.attr in vitmed.__all__, f"{page.name}: vitmed.{node.attr} is not public"


@pytest.mark.parametrize("name", [name for name in vitmed.__all__ if name != "VitmedError"])
def test_every_parameter_is_documented(name: str) -> None:
    text = read(ROOT / "docs" / "python-api.md")
    section = text.partition(f"## vitmed.{name}\n")[2].partition("\n## ")[0]
    signature = inspect.signature(getattr(vitmed, name)).parameters
    assert [p for p in signature if not re.search(rf"\b{p}\b", section)] == []


def test_every_command_stands_in_the_readme() -> None:
    text = read(ROOT / "README.md")
    assert [name for name in all_commands().commands if f"| `vitmed {name}" not in text] == []


def test_every_exit_code_stands_in_the_readme() -> None:
    from vitmed.core import errors

    codes = {0, 1} | {c.exit_code for c in vars(errors).values() if isinstance(c, type) and hasattr(c, "exit_code")}
    rows = set(map(int, re.findall(r"^\| (\d+) \|", read(ROOT / "README.md"), re.M)))
    assert rows == codes


def test_every_name_stands_in_the_page_that_explains_it() -> None:
    from vitmed.core.run_folder import RunFolder
    from vitmed.imaging.augmentation import POLICIES
    from vitmed.imaging.decode import READERS
    from vitmed.metrics.metric_table import PER_CLASS, TITLES
    from vitmed.report.chapters import plots

    files = [path.name for path in vars(RunFolder(Path("run"))).values() if path.suffix]
    titles = [*(plot.title for plot in plots().values()), *(TITLES[name] for name in PER_CLASS)]
    for page, names in (
        ("training", [f"`{name}`" for name in (*POLICIES, *files)]),
        ("formats", [f"`{suffix}`" for suffix in READERS]),
        ("reading-the-report", titles),
        ("python-api", [f"\n## vitmed.{name}\n" for name in vitmed.__all__]),
    ):
        assert [name for name in names if name not in read(ROOT / "docs" / f"{page}.md")] == []


def script(name: str) -> ModuleType:
    """A script of `docs/` as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["configuration", "ensembles", "methods", "schema"])
def test_what_a_script_writes_is_up_to_date(name: str) -> None:
    module = script(name)
    assert read(module.FILE) == module.text(), f"run: python docs/{name}.py"


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "benchmarks" / "README.md", *sorted((ROOT / "configs").glob("*.yaml"))],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_no_placeholder_and_no_path_of_a_machine_is_left(page: Path) -> None:
    assert not re.search(r"\bMEASURE\b|\bTODO\b|^@", read(page), re.M), "a figure is still to be measured"
    assert not re.search(r"/(?:home|Users|work|root|tmp/w)/", read(page))


def test_the_map_of_the_package_is_up_to_date() -> None:
    module = script("architecture")
    picture = module.picture()  # takes seconds
    assert read(module.FILE) == picture, "run: python docs/architecture.py"
    rooms = [path.parent.name for path in (ROOT / "vitmed").glob("*/__init__.py")]
    assert len(rooms) == 15 and [room for room in rooms if f">{room}/</text>" not in picture] == []


def test_every_module_that_the_map_names_exists() -> None:
    text = read(ROOT / "docs" / "architecture.md")
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text)
    rooms = {path.name for path in (ROOT / "vitmed").iterdir() if path.is_dir()}
    assert len(named) > 20
    assert [n for n in named if not (ROOT / "vitmed" / n).exists() and not (ROOT / n).exists()] == []
    assert {name for name in rooms - {"__pycache__"} if f"| `{name}` |" not in text} == set()


def names_of(nodes: list[ast.AST]) -> Iterator[str]:
    """What code and its strings name, without docstrings."""
    bodies = [node.body for node in nodes if isinstance(node, DOCUMENTED) and node.body]
    docstrings = {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}
    for node in nodes:
        for field in ("id", "attr", "arg", "name"):
            if name := getattr(node, field, None):
                yield from str(name).split(".")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from re.findall(r"\w+", node.value)


def test_every_name_in_a_docstring_exists() -> None:
    files = sorted((ROOT / "vitmed").rglob("*.py"))
    nodes = {file: list(ast.walk(ast.parse(read(file)))) for file in files}
    names = {name for those in nodes.values() for name in names_of(those)} | {
        name for file in files for name in (file.stem, file.parent.name)
    }
    lacking, named = [], 0
    for file, those in nodes.items():
        for text in [ast.get_docstring(node, clean=False) or "" for node in those if isinstance(node, DOCUMENTED)]:
            for name in re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)`", text):
                named += 1
                if not set(name.split(".")) <= names and name not in FOREIGN:
                    lacking.append(f"{file.relative_to(ROOT)}: {name}")
            paths = re.findall(r"(?:\w+/)+\w+\.py", text)
            lacking += [
                path for path in paths if not any((folder / path).exists() for folder in (ROOT, ROOT / "vitmed"))
            ]
    assert named > 500 and lacking == []


def test_the_table_of_where_names_files_and_what_they_define() -> None:
    table = read(ROOT / "docs" / "architecture.md").partition("## Where is ...")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)` \| `([^`]+)` \|$", table, re.M)
    assert len(rows) >= 50 and len(rows) == table.count("\n| ") - 1
    for file, name in rows:
        body = ast.parse(read(ROOT / "vitmed" / file)).body
        assigned = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
        assigned += [node.target for node in body if isinstance(node, ast.AnnAssign)]
        defined = {getattr(node, "name", "") for node in body} | {getattr(target, "id", "") for target in assigned}
        assert name in defined, f"{file}: {name}"


def test_every_promise_names_a_test_that_exists() -> None:
    """docs/reliability.md; `::name` is in the file named before."""
    file, promises = "", 0
    for row in [line for line in read(ROOT / "docs" / "reliability.md").splitlines() if "::" in line]:
        for named, test in re.findall(r"`([\w./]*)::(\w+)`", row):
            file, promises = named or file, promises + 1
            source = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {test}(" in source, (file, test)
    assert promises > 100
