"""Galleries of errors and suspected labels: the right images, and no name of a file."""

from collections.abc import Callable

import numpy as np
import pytest
from figures import is_png, of_patients, texts
from matplotlib.figure import Figure

from vitmed.metrics.mistakes import find_suspects
from vitmed.report.plots import drawing
from vitmed.report.plots.pictures import errors_by_pair, suspected_labels

GALLERIES = [errors_by_pair, suspected_labels]


def read(path: str) -> np.ndarray:
    number = int(path.removeprefix("secret/").removesuffix(".png"))
    return np.full((9, 12), number % 256, np.uint8)


def rows(figure: Figure) -> list[int]:
    return [int(text.split()[1]) - 1 for text in texts(figure) if text.startswith("row ")]


@pytest.mark.parametrize("classes", [2, 12])
@pytest.mark.parametrize("gallery", GALLERIES)
def test_a_gallery_shows_its_rows_and_no_name(gallery: Callable[..., Figure | None], classes: int) -> None:
    p = of_patients(classes)
    figure = gallery(p, read)
    assert is_png(figure)
    assert not any("secret" in text or "PATIENT" in text or "png" in text for text in texts(figure))
    shown = rows(figure)
    assert 0 < len(shown) == len(set(shown)) <= 24
    pictures = [axes for axes in figure.findobj(drawing.Axes) if axes.images]
    assert len(pictures) == len(shown)
    for axes in pictures:
        row = int(axes.get_xlabel().split()[1]) - 1
        assert np.asarray(axes.images[0].get_array())[0, 0] == row % 256
        if gallery is not suspected_labels:
            assert p.predicted[row] != p.labels[row]  # type: ignore[index]


def test_lines_are_what_they_are_called() -> None:
    p = of_patients()
    figure = errors_by_pair(p, read)
    missed = np.flatnonzero((p.labels == 0) & (p.predicted == 1))
    told = f"infected predicted as uninfected: {len(missed)} of {np.sum(p.labels == 0)}"
    assert any(text.startswith(told) for text in texts(figure))
    assert missed[p.confidence[missed].argmax()] in rows(figure)
    figure = suspected_labels(p, read)
    assert rows(figure) == find_suspects(p)[0][:18].tolist()


@pytest.mark.parametrize("gallery", GALLERIES)
def test_nothing_wrong_nothing_shown(gallery: Callable[..., Figure | None]) -> None:
    assert gallery(of_patients(signal=90), read) is None
    none = of_patients().take(np.arange(0))
    assert gallery(none, read) is None
