"""Builds the site: `sphinx-build -W -c docs . build/site`. The first page and the contents are those of README.md."""

import re

import click
from sphinx.application import Sphinx
from typer.main import get_command

import vitmed
from vitmed.cli import app as commands

project, author, release = "vitmed", "the authors of vitmed", vitmed.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "docs/*.md", "datasets/README.md", "benchmarks/README.md"]
html_theme, html_title, html_copy_source = "furo", f"vitmed {release}", False
myst_heading_anchors, highlight_language, default_role = 4, "none", "code"
autodoc_typehints = "none"  # the docstrings state types and units; the annotations hold what the command line needs


def contents(readme: str) -> str:
    """A table of contents for each row of the README's table of documents, which names every page."""
    table = readme.partition("\n## Documentation\n")[2].partition("\n## ")[0]
    rows = [*re.findall(r"^\| ([^|]+) \| ([^|]*\]\([^|]+) \|$", table, re.M), ("all", "[Changes](CHANGELOG.md)")]
    parts = []
    for task, links in rows:
        pages = [
            f"{title[:1].upper()}{title[1:]} <{path}>" for title, path in re.findall(r"\[([^\]]+)\]\(([^)#]+)\)", links)
        ]
        parts.append("\n".join(["```{toctree}", ":hidden:", f":caption: {task[:1].upper()}{task[1:]}", *pages, "```"]))
    return "\n\n".join(parts)


def reference() -> str:
    """Every public function with its docstring, and every command with its options."""
    parts = ["## Functions"]
    for name in vitmed.__all__:
        kind = "autoexception" if name.endswith("Error") else "autofunction"
        parts.append(f"### vitmed.{name}\n\n```{{eval-rst}}\n.. {kind}:: vitmed.{name}\n```")
    parts.append("## Commands")
    context = click.Context(main := get_command(commands), info_name="vitmed")
    for name in main.list_commands(context):
        parts += described(main.get_command(context, name), f"vitmed {name}")
    return "\n\n".join(parts)


def described(command: click.Command, name: str) -> list[str]:
    """The parts of the page for a command and for those below it."""
    parts = [f"### {name}", (command.help or "").partition("\n\n")[0]]
    rows = []
    for option in command.params:
        words = ", ".join(f"`{word}`" for word in (*option.opts, *option.secondary_opts))
        help_text = " ".join((getattr(option, "help", None) or "").split())
        rows.append(f"| {words} | {help_text} |".replace("<", "&lt;"))
    parts += ["\n".join(["| option | |", "|---|---|", *rows])] if rows else []
    for below in getattr(command, "commands", {}).values():
        parts += described(below, f"{name} {below.name}")
    return parts


def add(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] += {"README": "\n\n" + contents(source[0]), "docs/reference": "\n\n" + reference()}.get(page, "")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add)
