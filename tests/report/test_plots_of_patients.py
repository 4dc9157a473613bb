"""Figures about patients, subgroups and kinds of errors: the right images and numbers, and no name of a file."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from vitmed.metrics.evaluation import evaluate_predictions
from vitmed.metrics.label_errors import find_suspects
from vitmed.metrics.per_patient import outside, shares
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.subgroups import subgroups
from vitmed.report.plots import drawing
from vitmed.report.plots.drawing import png
from vitmed.report.plots.galleries import errors_by_pair, errors_by_patient, suspected_labels
from vitmed.report.plots.patients import forest, patient_spread
from vitmed.report.results import Results

GALLERIES = [errors_by_pair, errors_by_patient, suspected_labels]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "DPI", 30)


def draw(classes: int = 2, size: int = 400, patients: int = 25, signal: float = 1.5) -> Predictions:
    rng = np.random.default_rng(classes)
    labels, owner = rng.integers(classes, size=size), rng.integers(patients, size=size)
    logits = 2 * rng.normal(size=(size, classes))
    logits[np.arange(size), labels] += signal
    names = ("infected", "uninfected") if classes == 2 else tuple(f"${i} <a> {'long ' * 20}{i}" for i in range(classes))
    return Predictions(
        names, tuple(f"secret/{i}.png" for i in range(size)), tuple(f"PATIENT_{i}" for i in owner), labels,
        logits.astype(np.float32), columns={"ward": tuple("AB"[i % 2] for i in owner)},
    )  # fmt: skip


def read(path: str) -> np.ndarray:
    number = int(path.removeprefix("secret/").removesuffix(".png"))
    return np.full((9, 12), number % 256, np.uint8)


def texts(figure: Figure) -> list[str]:
    return [item.get_text() for item in figure.findobj(Text) if item.get_text()]


def is_png(figure: Figure | None) -> bool:
    assert figure is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return png(figure).startswith(b"\x89PNG")


def rows(figure: Figure) -> list[int]:
    return [int(text.split()[1]) - 1 for text in texts(figure) if text.startswith("row ")]


@pytest.mark.parametrize("classes", [2, 12])
@pytest.mark.parametrize("gallery", GALLERIES)
def test_a_gallery_shows_its_rows_and_no_name(gallery: Callable[..., Figure | None], classes: int) -> None:
    p = draw(classes)
    figure = gallery(p, read)
    assert figure is not None and is_png(figure)
    assert not any("secret" in text or "PATIENT" in text or "png" in text for text in texts(figure))
    shown = rows(figure)
    assert 0 < len(shown) == len(set(shown)) <= 24
    for axes in (a for a in figure.findobj(drawing.Axes) if a.images):
        row = int(axes.get_xlabel().split()[1]) - 1
        assert np.asarray(axes.images[0].get_array())[0, 0] == row % 256
        assert p.predicted[row] != p.labels[row] or gallery is suspected_labels  # type: ignore[index]


def test_lines_are_what_they_are_called() -> None:
    p = draw()
    assert p.labels is not None and p.groups is not None
    figure = errors_by_pair(p, read)
    assert figure is not None
    missed = np.flatnonzero((p.labels == 0) & (p.predicted == 1))
    told = f"infected taken for uninfected: {len(missed)} of {np.sum(p.labels == 0)}"
    assert any(text.startswith(told) for text in texts(figure))
    assert missed[p.confidence[missed].argmax()] in rows(figure)
    figure = errors_by_patient(p, read)
    assert figure is not None
    names = list(dict.fromkeys(p.groups))
    wrong = [sum(p.predicted[i] != p.labels[i] for i, g in enumerate(p.groups) if g == name) for name in names]
    worst = int(np.argmax(wrong))
    assert any(
        f"patient {worst + 1}: {wrong[worst]} of {p.groups.count(names[worst])} wrong" in t for t in texts(figure)
    ) or (wrong.count(max(wrong)) > 1)
    figure = suspected_labels(p, read)
    assert figure is not None and rows(figure) == find_suspects(p).rows[:18].tolist()


@pytest.mark.parametrize("gallery", GALLERIES)
def test_nothing_wrong_nothing_shown(gallery: Callable[..., Figure | None]) -> None:
    assert gallery(draw(signal=90), read) is None
    none = draw().take(np.arange(0))
    assert gallery(none, read) is None


def test_errors_by_patient_need_patients() -> None:
    assert errors_by_patient(replace(draw(), groups=None), read) is None
    assert errors_by_patient(replace(draw(), groups=tuple(map(str, range(400)))), read) is None


@pytest.mark.parametrize("classes", [2, 12])
def test_a_dot_per_patient(classes: int) -> None:
    p = draw(classes)
    figure = patient_spread(p)
    assert figure is not None and is_png(figure)
    panels = figure.axes
    assert len(panels) == (2 if classes == 2 else 1)
    name = "sensitivity" if classes == 2 else "accuracy"
    images, right = shares(p)[name]
    far = outside(images, right)
    assert panels[0].get_title() == f"{name}, {np.sum(images > 0)} patients"
    dots = {(n, share) for some in panels[0].collections[1:] for n, share in some.get_offsets().tolist()}
    assert dots == {(n, k / n) for n, k in zip(images.tolist(), right.tolist(), strict=True) if n}
    assert any(text.startswith(f"outside: {far.sum()} ") for text in texts(figure))
    assert not any("PATIENT" in text for text in texts(figure))


def test_patients_who_cannot_be_shown() -> None:
    p = draw()
    assert patient_spread(replace(p, groups=None)) is None
    assert patient_spread(replace(p, groups=("one",) * 400)) is None
    assert patient_spread(p.take(np.arange(0))) is None
    assert p.labels is not None
    assert is_png(patient_spread(replace(p, labels=np.ones_like(p.labels))))  # no image of the finding


@pytest.mark.parametrize("classes", [2, 12, 60])
def test_the_forest_has_a_line_for_each_stratum(classes: int) -> None:
    p = draw(classes)
    metrics = Results.of(evaluate_predictions(p, resamples=20))
    assert forest(p, metrics) is None and forest(p, None) is None
    cells = tuple("small" if i < 4 else cell for i, cell in enumerate(p.columns["ward"]))
    found = subgroups(replace(p, columns={"a $ward$": cells}), ["a $ward$"], 20)
    metrics = Results.of(metrics, subgroups=found)
    figure = forest(p, metrics)
    assert figure is not None and is_png(figure)
    told = texts(figure)
    for stratum in metrics["subgroups"]["a $ward$"]["strata"]:
        n = "<10" if "suppressed" in stratum else f"={stratum['n']}"
        assert any(text.startswith(f"{stratum['name']} (n{n}") for text in told)
    assert any(text.startswith("all (n=400, 25 patients") for text in told) and r"a \$ward\$" in told
    labels = {"AUROC", "sensitivity", "specificity"} if classes == 2 else {"AUROC", "accuracy", "balanced accuracy"}
    assert {axes.get_xlabel() for axes in figure.axes} == (labels if classes <= 50 else {"accuracy"})


def test_a_stratum_without_positives_is_undefined_in_the_forest() -> None:
    p = draw()
    assert p.labels is not None
    p = replace(p, labels=np.where(np.array(p.columns["ward"]) == "A", 1, p.labels))
    metrics = Results.of(evaluate_predictions(p, resamples=20), subgroups=subgroups(p, ["ward"], 20))
    figure = forest(p, metrics)
    assert figure is not None and texts(figure).count("undefined") == 2  # AUROC and sensitivity of A
