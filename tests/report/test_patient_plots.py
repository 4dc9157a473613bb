"""Figures of patients and subgroups: the right numbers, and no name of a patient."""

from dataclasses import replace

import numpy as np
import pytest
from figures import is_png, of_patients, texts

from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.patient_level import outside, shares
from vitmed.metrics.subgroups import subgroups
from vitmed.report.plots.analyses import forest, patient_spread
from vitmed.report.results import Results


@pytest.mark.parametrize("classes", [2, 12])
def test_a_dot_per_patient(classes: int) -> None:
    p = of_patients(classes)
    figure = patient_spread(p)
    assert is_png(figure)
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
    p = of_patients()
    assert patient_spread(replace(p, groups=None)) is None
    assert patient_spread(replace(p, groups=("one",) * 400)) is None
    assert patient_spread(p.take(np.arange(0))) is None
    assert is_png(patient_spread(replace(p, labels=np.ones_like(p.labels))))  # no image of the finding
    figure = patient_spread(replace(p, groups=tuple(str(i // 5) for i in range(len(p))), labels=0 * p.labels))
    assert figure is not None  # five images of each patient: the band is as wide as the axis
    assert [panel.get_xlim() for panel in figure.axes if panel.collections] == [(4.5, 5.5)]


@pytest.mark.parametrize("classes", [2, 12, 60])
def test_the_forest_has_a_line_for_each_stratum(classes: int) -> None:
    p = of_patients(classes)
    metrics = Results.of(evaluate_predictions(p))
    assert forest(p, metrics) is None
    cells = tuple("small" if i < 4 else cell for i, cell in enumerate(p.columns["ward"]))
    found = subgroups(replace(p, columns={"a $ward$": cells}), ["a $ward$"])
    metrics = Results.of(metrics, subgroups=found)
    figure = forest(p, metrics)
    assert is_png(figure)
    told = texts(figure)
    assert len(metrics["subgroups"]["a $ward$"]["strata"]) == len(set(cells)) > 2
    for stratum in metrics["subgroups"]["a $ward$"]["strata"]:
        n = "<10" if "suppressed" in stratum else f"={stratum['n']}"
        assert any(text.startswith(f"{stratum['name']} (n{n}") for text in told)
    assert any(text.startswith("all (n=400, 25 patients") for text in told) and r"a \$ward\$" in told
    labels = {"AUROC", "Sensitivity", "Specificity"} if classes == 2 else {"AUROC", "Accuracy", "Balanced accuracy"}
    assert {axes.get_xlabel() for axes in figure.axes} == (labels if classes <= 50 else {"Accuracy"})


def test_a_stratum_without_positives_is_undefined_in_the_forest() -> None:
    p = of_patients()
    p = replace(p, labels=np.where(np.array(p.columns["ward"]) == "A", 1, p.labels))
    metrics = Results.of(evaluate_predictions(p), subgroups=subgroups(p, ["ward"]))
    figure = forest(p, metrics)
    assert texts(figure).count("undefined") == 2  # AUROC and sensitivity of A


def test_patients_of_few_images_are_counted_in_bars() -> None:
    p = of_patients(12)
    p = replace(p, groups=(*(f"PATIENT{i // 2}" for i in range(len(p) - 1)), "alone"))
    images, right = shares(p)["accuracy"]
    figure = patient_spread(p)
    assert is_png(figure)
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.get_xticklabels()]
    heights = dict(zip(names, (bar.get_height() for bar in axes.patches), strict=True))
    assert heights == {f"{k} of {n}": np.sum((images == n) & (right == k)) for n in (1, 2) for k in range(n + 1)}
    q = right.sum() / images.sum()
    expected = [(n, k) for n in (1, 2) for k in range(n + 1)]
    chances = {(1, 0): 1 - q, (1, 1): q, (2, 0): (1 - q) ** 2, (2, 1): 2 * q * (1 - q), (2, 2): q**2}
    drawn = axes.collections[0].get_offsets()[:, 1]
    assert np.allclose(drawn, [np.sum(images == n) * chances[n, k] for n, k in expected])
    assert not any("PATIENT" in text for text in texts(figure))
