"""The page of `vitmed serve` in a headless Chromium: images in, answers out, on a wide screen and on a phone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, browser
from conftest import Trained
from served import Served, serving

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium")
    with browser(program) as found:
        yield found


@pytest.fixture(scope="module")
def server(trained: Trained) -> Iterator[Served]:
    with serving(trained.folder) as found:
        yield found


def until(page: Page, script: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not page.run(f"!!({script})"):
        assert time.monotonic() < end, page.run("document.body.innerText")
        time.sleep(0.05)


@pytest.mark.parametrize("width", [1280, 360])
def test_an_image_gets_its_answer_its_map_and_the_verdict(
    page: Page, server: Served, trained: Trained, tmp_path: Path, width: int
) -> None:
    image = sorted((trained.data / "test").rglob("*.png"))[0]
    own = server.post(image, params={"pictures": "true"}).json()["images"][0]
    (tmp_path / "notes.png").write_bytes(b"%PDF-1.7")
    page.open(server.url, width)
    page.choose("#files", image, tmp_path / "notes.png")
    until(page, "!document.querySelector('.waits') && document.querySelectorAll('section').length == 2")
    torn, answered = (page.run(f"document.querySelectorAll('section')[{i}].innerText") for i in (0, 1))
    assert own["prediction"] in answered and own["attention"]["verdict"] in answered
    assert "not the outline of a lesion" in answered and "Cannot be excluded" in answered
    assert "not an image that vitmed reads" in torn
    sizes = page.run("[...document.querySelectorAll('section img')].map(i => i.naturalWidth)")
    assert sizes == [256, 256]
    assert page.run("document.documentElement.scrollWidth") <= width  # nothing is cut off on a phone
    assert [text for text in page.complaints() if "415" not in text] == []  # the browser reports the status of the PDF
    assert {url.split("?")[0] for url in page.requests()} <= {f"{server.url}/", f"{server.url}/v1/predict"}


def test_with_a_key_the_page_asks_for_it(page: Page, trained: Trained) -> None:
    image = sorted((trained.data / "test").rglob("*.png"))[0]
    with serving(trained.folder, key=KEY) as served:
        page.open(served.url, 360)
        page.choose("#files", image)
        until(page, "!document.querySelector('.waits') && document.querySelector('section')")
        assert "the key is missing or wrong" in page.run("document.querySelector('section').innerText")
        page.run(f"document.getElementById('key').value = '{KEY}'")
        page.choose("#files", image)
        until(page, "document.querySelector('.says')")


def test_names_are_text_not_markup(page: Page, server: Served, trained: Trained, tmp_path: Path) -> None:
    hostile = tmp_path / "<img src=x onerror=alert(1)>.png"
    hostile.write_bytes(sorted((trained.data / "test").rglob("*.png"))[0].read_bytes())
    page.open(server.url)
    page.choose("#files", hostile)
    until(page, "document.querySelector('.says')")
    assert page.run("document.querySelector('.name').textContent") == hostile.name
    assert page.run("document.querySelectorAll('img[src=x]').length") == 0
