"""The page of `vitmed serve` in a real browser: images are chosen or dropped, answers are shown, on a phone too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import PROGRAM, Page, browser
from conftest import Trained
from served import Served, serving

from vitmed.deploy.http.limits import Limits

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium, Chrome or Edge")
KEY = "0123456789abcdef"
PHONE = 360  # CSS px
DROP = """(() => { const transfer = new DataTransfer();
transfer.items.add(new File([new Uint8Array([1, 2, 3])], "<img src=x onerror=window.hacked=1>.png"));
document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true})); })()"""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser(PROGRAM) as found:
        yield found


@pytest.fixture(scope="module")
def server(trained: Trained) -> Iterator[Served]:
    with serving(trained.folder, Limits(megabytes=1)) as found:
        yield found


def once(page: Page, script: str, ready: Callable[[Any], bool]) -> Any:
    """What a script gives as soon as it is ready: the page asks for answers, pictures and the model side by side."""
    until = time.monotonic() + 20
    while not ready(found := page.run(script)):
        assert time.monotonic() < until, found
        time.sleep(0.02)
    return found


def cards(page: Page, count: int) -> list[str]:
    """The texts of the answers, the newest first, once there are so many of them."""
    texts = "[...document.querySelectorAll('.image')].map(one => one.innerText)"
    return once(page, texts, lambda found: len(found) == count and not any("waits for its" in text for text in found))


@pytest.mark.parametrize("width", [1280, PHONE])
def test_chosen_images_are_answered_with_set_and_pictures(
    page: Page, server: Served, trained: Trained, width: int
) -> None:
    images = sorted((trained.data / "test").rglob("*.png"))[:2]
    page.open(server.url, width=width)
    assert page.run("document.body.innerText").startswith("Research use only")
    page.choose("#files", *images)
    shown = cards(page, 2)
    for image, text in zip(images, shown, strict=True):  # in the order of the files
        answer = server.post(image, params={"pictures": "true"}).json()["images"][0]
        assert image.name in text and f"{answer['prediction']} {100 * answer['probability']:.1f} %" in text
        assert ("The model does not answer" in text) != answer["answered"]
        if answer["prediction_set"]:
            assert f"Cannot be excluded: {', '.join(answer['prediction_set'])}" in text
    widths = "[...document.querySelectorAll('.image img')].map(one => one.complete && one.naturalWidth)"
    assert once(page, widths, lambda found: all(found)) == [256, 256]
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.complaints() == [] and all(url.startswith(server.url) for url in page.requests())


def test_a_dropped_file_that_is_no_image_is_refused_and_its_name_is_text(page: Page, server: Served) -> None:
    page.open(server.url)
    page.run(DROP)
    (text,) = cards(page, 1)
    assert "<img src=x" in text and "not an image" in text
    assert page.run("window.hacked === undefined && document.querySelectorAll('.image img').length === 0")


def test_a_file_above_the_limit_is_not_sent(page: Page, server: Served, tmp_path: Path) -> None:
    big = tmp_path / "big.png"
    big.write_bytes(bytes(1_200_000))
    page.open(server.url)
    page.choose("#files", big)
    (text,) = cards(page, 1)
    assert "1 MB" in text
    assert not [url for url in page.requests() if "predict" in url]


def test_the_key_is_typed_into_the_page(page: Page, trained: Trained) -> None:
    image = sorted((trained.data / "test").rglob("*.png"))[0]
    with serving(trained.folder, key=KEY) as served:
        page.open(served.url)
        page.choose("#files", image)
        assert "type it into the field Key above" in cards(page, 1)[0]
        page.run(f"document.getElementById('key').value = '{KEY}'")
        page.run("document.getElementById('key').dispatchEvent(new Event('change'))")
        page.choose("#files", image)
        assert "Out-of-distribution score" in cards(page, 2)[0]
        about = once(page, "document.getElementById('about').textContent", bool)
        assert about.startswith("Model vit-16x1: ") and "amber" in about
    page.choose("#files", image)
    assert "the server cannot be reached" in cards(page, 3)[0]


@pytest.mark.slow
def test_the_addresses_fit_the_window(page: Page, server: Served) -> None:
    for width in (1280, PHONE):
        page.open(f"{server.url}/docs", width=width)
        assert "/v1/predict" in page.run("document.body.innerText")
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run("Math.min(...[...document.querySelectorAll('td')].map(one => one.clientWidth || 99))") >= 40
        assert page.complaints() == []
