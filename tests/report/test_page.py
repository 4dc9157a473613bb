"""report.html in a real browser: nothing is loaded, everybody can read and reach it."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import PROGRAM, Page, browser
from matplotlib.figure import Figure
from PIL import Image
from reports import write_report

from vitmed.core.config import EvaluateConfig
from vitmed.metrics.predictions import Predictions
from vitmed.report.plots import drawing
from vitmed.report.plots.drawing import Drawn

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium, Chrome or Edge is installed")
HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "--><svg onload=window.hacked=1> \" ' & $x$ {{ 7*7 }}",
    "🧫 " + "x" * 300,
    "\u202eعربي with many words that go on and on " * 4,
)

# Text whose colour lies too near to that of what is behind it (WCAG 2.2, 1.4.3 AA: 4.5; 3 for large text).
CONTRAST = """(() => {
  const light = (c) => { const v = c / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const parse = (s) => s.match(/[\\d.]+/g).map(Number);
  const lum = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  function behind(e) {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  }
  const bad = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, style = getComputedStyle(e);
    if (!walk.currentNode.textContent.trim() || !e.getClientRects().length || e.closest("script, style")) continue;
    const [a, b] = [lum(parse(style.color)), lum(behind(e))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 700;
    const least = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5;
    seen += 1;
    if ((a + 0.05) / (b + 0.05) < least) bad.push(walk.currentNode.textContent.trim().slice(0, 40));
  }
  return {bad, seen};
})()"""
# Text of five lines or more that has fewer than two short words a line.
NARROW = """[...document.querySelectorAll("main p, main li, td, th, dd, dt, h1, h2, h3")].filter((e) => {
  const range = document.createRange();
  range.selectNodeContents(e);
  const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top / 6))).size;
  return lines > 4 && e.textContent.trim().length / lines < 8;
}).map((e) => e.textContent.trim().slice(0, 60))"""
REACHABLE = """[...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
  .filter((e) => e.getClientRects().length).length"""


def made(folder: Path, classes: tuple[str, ...], n: int = 300, signal: float = 1.0) -> tuple[Path, Predictions]:
    rng = np.random.default_rng(len(classes))
    labels = rng.choice(len(classes), size=n, p=np.linspace(1, 2, len(classes)) / np.linspace(1, 2, len(classes)).sum())
    logits = rng.normal(size=(n, len(classes)))
    logits[np.arange(n), labels] += signal
    p = Predictions(
        classes, tuple(f"f/{i}.png" for i in range(n)), tuple(f"p{i % 30}" for i in range(n)), labels,
        logits.astype(np.float32),
    )  # fmt: skip
    split = {
        "images": n,
        "patients": 30,
        "made": "<b>folder</b>/",
        "classes": {c: {"images": 9, "patients": 3} for c in classes},
    }
    flow = {
        "found": 900, "unreadable": 0, "exact_duplicates": 3, "near_duplicates": 1, "duplicates_across_splits": 0,
        "used": 890, "left_out": 10, "why_left_out": "outside <i>", "level": "patient", "how": "by table",
        "patients": 90, "patients_in_two": 0, "copies_in_two": 0,
        "splits": {"train": split, "val": split, "test": split},
        "evaluated": {"split": "test", "images": n, "patients": 30},
    }  # fmt: skip
    facts = {"Model": "<b onclick='window.hacked=1'>vit</b>", "Versions": "1"}
    read = lambda path: np.full((9, 9, 3), 120, np.uint8)  # noqa: E731
    write_report(
        folder, p, title="t <script>window.hacked=1</script>", facts=facts, flow=flow, read=read,
        config=EvaluateConfig(resamples=20),
    )  # fmt: skip
    return folder / "report.html", p


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    assert PROGRAM is not None
    with browser(PROGRAM) as found:
        yield found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Predictions]:
    return made(tmp_path_factory.mktemp("two"), ("infected", "uninfected"))


def blank(figure: Figure, pictures: bool = False, pdf: bool = False) -> Drawn:
    """A figure of its size and with its text, without the time that it takes to draw it."""
    stream = io.BytesIO()
    Image.new("RGB", tuple(int(length * drawing.DPI) for length in figure.get_size_inches())).save(stream, "PNG")
    return Drawn(stream.getvalue(), b"", stream.getvalue(), "image/png", drawing.text_alternative(figure))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Predictions]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitmed.report.write.drawn", blank)
        return made(tmp_path_factory.mktemp("many"), HOSTILE)


def unfold(page: Page) -> None:
    page.run("for (const fold of document.querySelectorAll('details')) fold.open = true")


@pytest.mark.parametrize("width", [1280, *(pytest.param(w, marks=pytest.mark.slow) for w in (1024, 768)), 390])
@pytest.mark.parametrize("which", ["two", "many"])
def test_it_fits_reads_and_loads_nothing(
    page: Page, two: tuple[Path, Predictions], many: tuple[Path, Predictions], which: str, width: int
) -> None:
    file = {"two": two, "many": many}[which][0]
    page.open(file, width)
    assert page.run("document.documentElement.scrollWidth") <= width
    unfold(page)
    assert page.run("document.documentElement.scrollWidth") <= width
    found = page.run(CONTRAST)
    assert found["bad"] == [] and found["seen"] > 100
    assert page.run("typeof window.hacked") == "undefined"
    assert page.run("document.scripts.length") == 1
    assert page.complaints() == []
    assert page.requests() == [file.resolve().as_uri()]
    scrolled = page.run("[...document.querySelectorAll('table')].filter((t) => !t.closest('.scroll')).length")
    assert scrolled == 0
    if which == "two":
        assert page.run(NARROW) == []  # no text has one word a line
    if (which, width) == ("two", 1280):
        wider = "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).length"
        assert page.run(wider) == 0


def test_an_item_of_a_checklist_has_the_width_of_a_phone(page: Page, two: tuple[Path, Predictions]) -> None:
    page.open(two[0], 390)
    unfold(page)
    cells = "[...document.querySelectorAll('.checklist td')].filter((e) => e.textContent)"
    assert page.run(f"Math.min(...{cells}.map((e) => e.getBoundingClientRect().width))") > 280
    sideways = "[...document.querySelectorAll('.scroll:has(.checklist)')].filter((e) => e.scrollWidth > e.clientWidth)"
    assert page.run(f"{sideways}.length") == 0
    label = "getComputedStyle(document.querySelector('.checklist td:nth-child(3)'), '::before').content"
    assert page.run(label) == '"Here: "'  # the head of the table is hidden


def test_everything_is_reached_by_the_tab_key(page: Page, two: tuple[Path, Predictions]) -> None:
    page.open(two[0], 390)
    unfold(page)
    page.run("document.body.focus(); window.reached = new Set(); dispatchEvent(new Event('resize'))")
    count = page.run(REACHABLE)
    for _ in range(count + 3):
        page.press("Tab", 9)
        page.run("window.reached.add(document.activeElement); 0")
    assert count > 20
    missed = page.run(
        """[...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
        .filter((e) => e.getClientRects().length && !window.reached.has(e)).map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert missed == []


def test_the_policy_lets_no_other_script_and_no_request_through(page: Page, two: tuple[Path, Predictions]) -> None:
    page.open(two[0])
    page.run(
        """(() => { const s = document.createElement("script"); s.textContent = "window.hacked = 1";
        document.body.append(s);
        document.body.insertAdjacentHTML("beforeend", "<b onclick='window.hacked=1' style='color:red'>x</b>");
        document.body.lastElementChild.click(); })()"""
    )
    assert page.run("typeof window.hacked") == "undefined"
    assert page.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert any("Content Security Policy" in text for text in page.complaints())


def test_on_paper_there_is_all_but_what_is_clicked(page: Page, two: tuple[Path, Predictions]) -> None:
    page.open(two[0], 720)
    page.ask("Emulation.setEmulatedMedia", media="print")
    try:
        there = {"nav": False, ".checklist": True, "img": True, "td": True}
        for selector, shown in there.items():
            visible = f"""[...document.querySelectorAll("{selector}")]
              .map((e) => e.checkVisibility({{contentVisibilityAuto: true}}))"""
            assert set(page.run(visible)) == {shown}, selector
        assert "not a medical device" in page.run("document.body.innerText")
        right = "[...document.querySelectorAll('table')].map((t) => t.getBoundingClientRect().right)"
        assert page.run(f"Math.max(...{right})") <= 720
    finally:
        page.ask("Emulation.setEmulatedMedia", media="")


def test_the_first_screen_answers(page: Page, two: tuple[Path, Predictions]) -> None:
    page.open(two[0], 1280)
    page.run("for (const img of document.querySelectorAll('#summary img')) img.width = 480")  # as wide as its column
    bottom = "Math.max(...[...document.querySelectorAll(`{}`)].map((e) => e.getBoundingClientRect().bottom))"
    for part in ("h1", "#summary > .note", ".verdict p", "#summary .headline div", "#summary img"):
        assert 0 < page.run(bottom.replace("{}", part)) <= 800, part
    tops = page.run("[...document.querySelectorAll('#summary .figure')].map((e) => e.getBoundingClientRect().top)")
    assert len(tops) == 2 and tops[0] == tops[1]  # side by side
    assert 4 <= page.run("document.querySelectorAll('#summary .headline div').length") <= 6
    assert page.run("document.documentElement.scrollHeight") < 2000
    page.open(two[0], 390)
    tops = page.run("[...document.querySelectorAll('#summary .figure')].map((e) => e.getBoundingClientRect().top)")
    assert tops[0] < tops[1]


@pytest.mark.parametrize("width", (1280, 390))
def test_the_contents_stay_in_view_and_lead_to_every_chapter(
    page: Page, two: tuple[Path, Predictions], width: int
) -> None:
    page.open(two[0], width)
    links = page.run("[...document.querySelectorAll('nav a')].map((a) => a.hash)")
    assert links == page.run("[...document.querySelectorAll('main section')].map((e) => '#' + e.id)") and len(links) > 9
    titles = page.run("[...document.querySelectorAll('main h2')].map((e) => e.textContent)")
    assert page.run("[...document.querySelectorAll('nav a')].map((a) => a.textContent)") == titles
    for link in links:
        page.run(f"document.querySelector('nav a[href=\"{link}\"]').click()")
        heading = f"document.querySelector('{link}-title')"
        assert page.run(f"document.querySelector('{link}').checkVisibility({{contentVisibilityAuto: true}})"), link
        if link != "#summary":
            assert 0 <= page.run(f"{heading}.getBoundingClientRect().top") < 900, link
            nav = page.run("document.querySelector('nav').getBoundingClientRect().bottom")
            assert width > 900 or page.run(f"{heading}.getBoundingClientRect().bottom") > nav, link
        assert page.run("document.querySelector('nav').getBoundingClientRect().top") == 0, link


def test_a_link_into_a_chapter_opens_it_without_scripts_too(page: Page, two: tuple[Path, Predictions]) -> None:
    page.open(two[0], scripts=False)
    assert page.run("document.querySelectorAll('details[open]').length") == 0
    page.run("location.hash = 'checklists'")
    time.sleep(0.3)
    assert page.run("document.querySelector('#checklists').checkVisibility({contentVisibilityAuto: true})")


def test_every_picture_control_and_section_has_a_name(page: Page, two: tuple[Path, Predictions]) -> None:
    page.open(two[0])
    unfold(page)
    nodes = page.ask("Accessibility.getFullAXTree")["nodes"]
    named = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and "role" in node
    }
    for role in ("image", "link", "region", "navigation", "heading"):
        names = [name for kind, name in named if kind == role]
        assert names and all(names), role
    pictures = [name for kind, name in named if kind == "image"]
    assert all(any(c.isdigit() for c in name) and len(name) > 30 for name in pictures), pictures
    assert any("n = 300 images" in name for name in pictures)
