"""The report folder: complete, self-contained, private, and the same again from predictions.csv."""

import base64
import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from vitmed import plots
from vitmed.config import EvaluateConfig
from vitmed.errors import DataError
from vitmed.metrics import METRICS
from vitmed.predictions import Predictions
from vitmed.report import write_report

FACTS = {"Data": "60 cells", "Model": "vit_tiny <script>alert(1)</script>"}
RECORDS = [{"epoch": 1, "lr": 0.1, "train_loss": 1.0, "val_loss": 1.0, "val_auroc": 0.5, "monitor": "auroc"}]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pictures at a low resolution: the same code in a tenth of the time."""
    monkeypatch.setattr(plots.pictures, "PICTURES", 6)
    monkeypatch.setattr(plots.galleries, "WIDE", 2)
    monkeypatch.setattr(plots.drawing, "DPI", 30)


def draw(classes: tuple[str, ...] = ("infected", "uninfected"), groups: bool = True) -> Predictions:
    rng = np.random.default_rng(0)
    labels = rng.integers(len(classes), size=60)
    logits = rng.normal(size=(60, len(classes))).astype(np.float32)
    logits[np.arange(60), labels] += 1
    return Predictions(
        classes=classes,
        paths=tuple(f"folder/MUELLER_{i}.png" for i in range(60)),
        groups=tuple(f"PATIENT{i % 12}" for i in range(60)) if groups else None,
        labels=labels,
        logits=logits,
        errors=(("folder/BROKEN.png", "truncated"),),
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
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_folder_is_complete_and_self_contained(tmp_path: Path) -> None:
    metrics = write_report(
        tmp_path / "test",
        draw(),
        title="Cells & <more>",
        facts=FACTS,
        read=read,
        records=RECORDS,
        config=EvaluateConfig(resamples=50, subgroups=["ward"]),
        notes=["Split by image: likely optimistic."],
    )
    names = {path.name for path in (tmp_path / "test").iterdir()}
    shown = set(plots.PLOTS) - {"familiarity", "attention_maps", "robustness"}  # these need the model
    figures = {f"{name}.png" for name in shown} | {"training_curves.png"}
    assert names == {"predictions.csv", "metrics.json", "report.html", "label_issues.csv"} | figures
    assert json.loads((tmp_path / "test" / "metrics.json").read_text()) == metrics
    assert metrics["notes"] == ["Split by image: likely optimistic.", "1 images could not be read and are not counted."]

    html = (tmp_path / "test" / "report.html").read_text()
    page = Page(html)
    assert page.open == []
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "a"})
    assert not re.search(r"https?://|@import|url\(", html)
    sources = [str(attributes["src"]) for tag, attributes in page.tags if tag == "img"]
    embedded = {base64.b64decode(source.removeprefix("data:image/png;base64,")) for source in sources}
    assert embedded == {(tmp_path / "test" / name).read_bytes() for name in figures}
    for secret in ("MUELLER", "PATIENT", "BROKEN", "folder", str(tmp_path), ".png"):
        assert secret not in html
    assert "Cells &amp; &lt;more&gt;" in html and "&lt;script&gt;" in html
    assert "Split by image: likely optimistic." in html
    assert "not a medical device" in html and "images of 12 patients" in html
    entry = metrics["overall"]["auroc"]
    assert f"{entry['value']:.3f}<small>{entry['low']:.3f} to {entry['high']:.3f}</small>" in html
    assert all(metric.title in unescape(html) for metric in METRICS.values())
    assert html.index("<dl") < html.index("<table") < html.index("<img")  # the headline comes first


def test_the_same_again_from_the_table_alone(tmp_path: Path) -> None:
    first = write_report(tmp_path / "a", draw(), title="t", facts={}, config=EvaluateConfig(resamples=50))
    table = Predictions.from_csv(tmp_path / "a" / "predictions.csv")
    again = write_report(tmp_path / "b", table, title="t", facts={}, read=None, config=EvaluateConfig(resamples=50))
    first["notes"].remove("1 images could not be read and are not counted.")  # those have no row
    assert again == first
    for name in ("predictions.csv", "confusion_matrix.png", "roc.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert not (tmp_path / "b" / "errors.png").exists()  # it needs the images


def test_more_classes_and_undefined_values(tmp_path: Path) -> None:
    p = draw(("a", "b", "never <seen>"), groups=False)
    assert p.labels is not None
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
