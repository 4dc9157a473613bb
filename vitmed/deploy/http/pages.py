"""The page for images, and the page that describes the addresses. They load nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from vitmed.core.text import csp_hash
from vitmed.deploy.http.content import ModelCard
from vitmed.deploy.http.limits import Limits

FOLDER = Path(__file__).parent


def for_images(card: ModelCard, limits: Limits, needs_key: bool) -> HTMLResponse:
    """The page to drop images on. With a key it says nothing of the model, since anyone may open it."""
    return _page("page.html.j2", "page.js", card=None if needs_key else card, limits=limits, needs_key=needs_key)


def of_addresses(schema: Mapping[str, Any]) -> HTMLResponse:
    """A description of the addresses, from the OpenAPI schema."""
    return _page("addresses.html.j2", None, schema=schema)


def _page(template: str, script: str | None, **context: Any) -> HTMLResponse:
    style, code = _read("page.css"), "" if script is None else _read(script)
    scripts = f"; script-src '{csp_hash(code)}'; connect-src 'self'" if code else ""
    policy = (
        f"default-src 'none'; style-src '{csp_hash(style)}'; img-src data: blob:{scripts}; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    text = _environment().get_template(template).render(style=Markup(style), script=Markup(code), **context)
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


@cache
def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    loader = FileSystemLoader(FOLDER)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
