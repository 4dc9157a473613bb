"""The report folder: complete, self-contained, private, and the same again from predictions.csv."""

import base64
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import draw_only
from PIL import Image
from reports import write_report

from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import DataError
from vitmed.metrics.metric_table import METRICS
from vitmed.metrics.predictions import Predictions
from vitmed.report.chapters import plots
from vitmed.report.plots.drawing import Drawn, text_alternative
from vitmed.report.results import Results

KEPT = {"dpi", "jfif", "jfif_version", "jfif_unit", "jfif_density"}  # in the head of a picture on the page
NOTHING_TO_SHOW = {"flow"}  # of predictions alone
FACTS = {"Data": "60 cells", "Model": "vit_tiny <script>alert(1)</script>"}
RECORDS = [{"epoch": 1, "lr": 0.1, "train_loss": 1.0, "val_loss": 1.0, "val_auroc": 0.5, "monitor": "auroc"}]


def draw(classes: tuple[str, ...] = ("infected", "uninfected"), groups: bool = True) -> Predictions:
    rng = np.random.default_rng(0)
    labels = rng.integers(len(classes), size=60)
    logits = rng.normal(size=(60, len(classes))).astype(np.float32)
    logits[np.arange(60), labels] += 1
    return Predictions(
        classes=classes,
        paths=tuple(f"ward7/MUELLER_{i}.png" for i in range(60)),
        groups=tuple(f"PATIENT{i % 12}" for i in range(60)) if groups else None,
        labels=labels,
        logits=logits,
        errors=(("ward7/BROKEN.png", "truncated"),),
        columns={"ward": ("A",) * 60},
    )


def read(path: str) -> np.ndarray:
    return np.zeros((8, 8, 3), np.uint8)


class Page(HTMLParser):
    """Collects the tags, to see that they are balanced and load nothing."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "link", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """The folder of a report with all figures, of classes with hostile names, and what metrics.json holds."""
    place = tmp_path_factory.mktemp("complete")
    metrics = write_report(
        place / "test",
        draw(("<script>alert(1)</script>", "--> ]]> &amp;")),
        title="Cells & <more>",
        facts=FACTS,
        read=read,
        records=RECORDS,
        config=EvaluateConfig(resamples=50, subgroups=["ward"]),
        notes=["Split by image: likely optimistic."],
    )
    return place / "test", metrics


def test_the_folder_is_complete_and_self_contained(complete: tuple[Path, Results]) -> None:
    folder, metrics = complete
    names = {path.name for path in folder.iterdir()}
    figures = ({*plots(), "training_curves"} - NOTHING_TO_SHOW) & {Path(name).stem for name in names}
    assert figures >= {"confusion_matrix", "roc", "precision_recall", "errors", "grid", "training_curves"}
    files = {f"{name}.{suffix}" for name in figures for suffix in ("png", "svg")}
    assert names == {"predictions.csv", "metrics.json", "report.html", "label_issues.csv", "methods.md"} | files
    assert json.loads((folder / "metrics.json").read_text()) == metrics.to_dict()
    assert metrics["notes"] == [
        "Split by image: likely optimistic.",
        "1 image could not be read; only those that could are counted.",
    ]

    html = (folder / "report.html").read_text()
    page = Page(html)
    assert page.open == []
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "iframe", "object", "form", "base"})
    assert [given.get("src") for tag, given in page.tags if tag == "script"] == [None]  # our own
    ids = {f"#{given.get('id')}" for _, given in page.tags}
    assert {given["href"] for tag, given in page.tags if tag == "a"} <= ids  # every link leads somewhere on the page
    assert not any(name == "style" or str(name).startswith("on") for _, given in page.tags for name in given)
    assert not re.search(r"https?://|@import|url\(", re.sub(r"data:[^\"]+", "", html))
    sources = [str(attributes["src"]) for tag, attributes in page.tags if tag == "img"]
    assert len(sources) == len(figures)
    for source in sources:
        kind, _, data = source.removeprefix("data:image/").partition(";base64,")
        assert kind in ("png", "jpeg", "svg+xml")
        if kind != "svg+xml":
            with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
                picture.load()
                assert not picture.getexif() and set(picture.info) <= KEPT
    for secret in ("MUELLER", "PATIENT", "BROKEN", "ward7", str(folder.parent), ".png"):
        assert secret not in html
    assert "Cells &amp; &lt;more&gt;" in html and "&lt;script&gt;" in html
    assert "Split by image: likely optimistic." in html
    assert "not a medical device" in html and "images of 12 patients" in html
    entry = metrics["overall"]["auroc"]
    assert f"{entry['value']:.3f} <small>({entry['low']:.3f} to {entry['high']:.3f})</small>" in html
    assert all(metric.title in unescape(html) for metric in METRICS.values())
    assert html.index("<dl") < html.index("<img") < html.index("<table")  # the headline comes first


def test_the_same_again_from_the_table_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, "confusion_matrix", "roc", "errors")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first = write_report(tmp_path / "a", draw(), title="t", facts={}, config=EvaluateConfig(resamples=50))
    table = Predictions.from_csv(tmp_path / "a" / "predictions.csv")
    again = write_report(tmp_path / "b", table, title="t", facts={}, read=None, config=EvaluateConfig(resamples=50))
    first["notes"].remove("1 image could not be read; only those that could are counted.")  # those have no row
    assert again == first
    for name in ("predictions.csv", "confusion_matrix.png", "roc.png", "roc.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert not (tmp_path / "b" / "errors.png").exists()  # it needs the images


@pytest.mark.usefixtures("no_figures")
def test_more_classes_and_undefined_values(tmp_path: Path) -> None:
    p = draw(("a", "b", "never <seen>"), groups=False)
    p = Predictions(p.classes, p.paths, None, np.minimum(p.labels, 1), p.logits)
    write_report(tmp_path, p, title="t", facts={}, config=EvaluateConfig(resamples=20))
    html = (tmp_path / "report.html").read_text()
    assert Page(html).open == []
    assert "there is no image of class &#39;never &lt;seen&gt;&#39;" in html and "undefined" in html
    assert "The patients are unknown" in html


def test_without_labels_nothing_is_written(tmp_path: Path) -> None:
    p = draw()
    with pytest.raises(DataError, match="no labels"):
        write_report(tmp_path / "x", Predictions(p.classes, p.paths, None, None, p.logits), title="t", facts={})
    assert not (tmp_path / "x").exists()


def test_figures_as_svg_hold_no_script_and_no_name(complete: tuple[Path, Results]) -> None:
    files = list(complete[0].glob("*.svg"))
    assert len(files) > 5
    for file in files:
        root = ElementTree.parse(file).getroot()
        assert root.tag.endswith("svg") and not any("script" in str(e.tag) for e in root.iter())
        assert "MUELLER" not in file.read_text() and "ward7" not in file.read_text()


def test_pictures_are_called_by_name_only_where_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.text import Text

    seen: list[str] = []

    def look(figure, pictures=False, pdf=False):  # type: ignore[no-untyped-def]
        seen.extend(item.get_text() for item in figure.findobj(Text))
        return Drawn(b"a figure", b"a figure", b"a figure", "image/png", text_alternative(figure))

    monkeypatch.setattr("vitmed.report.write.drawn", look)
    for named in (False, True):
        seen.clear()
        config = EvaluateConfig(resamples=5, show_names=named)
        write_report(tmp_path / str(named), draw(), title="t", facts={}, read=read, config=config)
        assert any("MUELLER" in text for text in seen) is named
        assert any(text.startswith("row ") for text in seen) is not named
        html = (tmp_path / str(named) / "report.html").read_text()
        assert "PATIENT" not in html and ("MUELLER" in html) is named


def test_markdown_says_the_same_and_links_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, "confusion_matrix", "roc", "reliability")
    p = draw(("a | b", "*c* <d>"))
    metrics = write_report(tmp_path, p, title="# t", facts=FACTS, config=EvaluateConfig(resamples=20, format="html,md"))
    text = (tmp_path / "report.md").read_text()
    entry = metrics["overall"]["auroc"]
    assert f"- AUROC: {entry['value']:.3f} ({entry['low']:.3f} to {entry['high']:.3f})" in text
    linked = re.findall(r"^!\[.*\]\((.*)\)$", text, re.M)
    assert set(linked) == {path.name for path in tmp_path.glob("*.png")}
    rows = [line for line in text.splitlines() if line.startswith("| ") and "a \\| b" in line]
    assert rows and text.startswith("Research use only") and "\n# \\# t\n" in text
    html = (tmp_path / "report.html").read_text()
    headings = [unescape(title) for title in re.findall(r"<h2[^>]*>(.*?)</h2>", html)]
    assert headings == re.findall(r"^## (.*)$", text, re.M)
    for secret in ("MUELLER", "PATIENT"):
        assert secret not in text
    assert not re.search(r"(?<!\\)<", text)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    assert len(tables) > 5
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_one_image_makes_a_report(tmp_path: Path) -> None:
    p = draw()
    few = Predictions(p.classes, p.paths[:1], None, np.zeros(1, np.int64), p.logits[:1])
    metrics = write_report(tmp_path, few, title="t", facts={}, read=read, config=EvaluateConfig(resamples=20))
    html = (tmp_path / "report.html").read_text()
    assert Page(html).open == [] and metrics["undefined"]


@pytest.mark.slow
def test_a_thousand_classes_make_a_small_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, "confusion_matrix")
    names = tuple(f"class {i:04d}" for i in range(1000))
    rng = np.random.default_rng(0)
    p = Predictions(
        names, ("x",) * 20, None, rng.integers(1000, size=20), rng.normal(size=(20, 1000)).astype(np.float32)
    )
    write_report(tmp_path, p, title="t", facts={}, config=EvaluateConfig(resamples=0))
    assert (tmp_path / "report.html").stat().st_size < 3e6
    with Image.open(tmp_path / "confusion_matrix.png") as picture:
        assert max(picture.size) < 3000


@pytest.mark.usefixtures("no_figures")
def test_a_number_that_stands_twice_has_one_interval(tmp_path: Path) -> None:
    found = write_report(tmp_path, draw(), title="t", facts={}, config=EvaluateConfig(resamples=200))
    own = found["per_class"]["infected"]
    reached = found["operating_points"]["points"]["default"]["reached"]
    assert all(reached[name] == own[name] for name in ("sensitivity", "specificity", "ppv", "npv", "f1"))
    assert all(found["calibration"]["after"][name] == found["overall"][name] for name in ("log_loss", "brier"))
    wrong, right = found["abstention"]["error_rate"], found["overall"]["accuracy"]
    assert (wrong["low"], wrong["high"]) == pytest.approx((1 - right["high"], 1 - right["low"]), abs=1e-12)
