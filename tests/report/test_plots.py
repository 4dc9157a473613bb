"""Figures draw for few and many classes, show the right numbers, and leak no file name."""

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from figures import is_png, texts
from matplotlib.figure import Figure

from vitmed.core.base_models import Target
from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import DataError
from vitmed.metrics.kinds.classes import evaluate_predictions
from vitmed.metrics.kinds.number import NumberPredictions, bland_altman
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.readers import compare_with_readers
from vitmed.report.analyses import CLASS_ANALYSES, Material
from vitmed.report.chapters import plots
from vitmed.report.plots import drawing, pictures
from vitmed.report.plots.curves import drawn_curves, training_curves
from vitmed.report.plots.drawing import drawn, path_label, text_alternative
from vitmed.report.plots.evaluation import confusion_matrix, precision_recall, roc
from vitmed.report.plots.pictures import contact_sheet, errors, grid
from vitmed.report.results import Results

NAMES = {
    2: ("infected", "uninfected"),
    10: tuple(f"class {i}" for i in range(10)),
    30: tuple(f"_{i} a $very$ long & winding name of a disease\nstage {i} 細胞" for i in range(30)),
}

DRAWN = [name for name, plot in plots().items() if "classes" in plot.kinds and not (plot.pictures or plot.maps)]
FOR_TWO = {"decision_curve"}  # figures of two classes
FOR_MORE = {"decision_curves"}
NEEDS_MORE = {"out_of_distribution", "subgroups", "robustness", "flow", "per_patient"}


def draw(classes: int, size: int = 200, signal: float = 1.0) -> Predictions:
    rng = np.random.default_rng(classes)
    labels = rng.integers(classes, size=size)
    logits = rng.normal(size=(size, classes))
    logits[np.arange(size), labels] += signal
    return Predictions(
        NAMES[classes], tuple(f"secret/{i}.png" for i in range(size)), None, labels, logits.astype(np.float32)
    )


def read(path: str) -> np.ndarray:
    number = int(path.removeprefix("secret/").removesuffix(".png"))
    return np.full((9, 12, 3) if number % 2 else (12, 9), number % 256, np.uint8)


@cache
def material(classes: int) -> tuple[Predictions, Results, Results]:
    """Predictions, their results, and those without the analyses."""
    p = draw(classes)
    metrics = evaluate_predictions(p)
    analysed = Material(p, metrics, config=EvaluateConfig(resamples=5))
    found = {key: analyse(analysed) for key, analyse in CLASS_ANALYSES.items()}
    return p, Results.of(metrics, **found), Results.of(metrics)


@pytest.mark.parametrize("classes", [2, 10, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DRAWN)
def test_draws(name: str, classes: int) -> None:
    p, whole, numbers = material(classes)
    figure, bare = plots()[name].draw(p, whole), plots()[name].draw(p, numbers) if classes == 2 else None
    assert (figure is None) == (name in NEEDS_MORE | (FOR_TWO if classes > 2 else FOR_MORE))
    assert all(drawn is None or is_png(drawn) for drawn in (figure, bare))


@pytest.mark.parametrize("name", ["errors", "grid"])
def test_pictures_are_known_by_row_alone(name: str) -> None:
    p = draw(2)
    figure = plots()[name].draw(p, read)
    shown = texts(figure)
    assert not any("secret" in text or "png" in text for text in shown)
    rows = [int(text.split()[1]) for text in shown if text.startswith("row ")]
    assert len(rows) == len(set(rows)) == pictures.PICTURES
    drawn = [axes for axes in figure.axes if axes.images]
    assert len(drawn) == len(rows)
    for axes in drawn:
        row = int(axes.get_xlabel().split()[1]) - 1
        assert np.asarray(axes.images[0].get_array())[0, 0].max() == row % 256  # it is that row's image
        right = p.predicted[row] == p.labels[row]
        assert axes.get_title().startswith("✓" if right else "✗")
        assert p.classes[p.predicted[row]] in axes.get_title()
    assert is_png(figure)


def test_errors_come_most_confident_first() -> None:
    p = draw(2)
    wrong = np.flatnonzero(p.predicted != p.labels)
    first = errors(p, read).axes[0].get_xlabel()
    assert first == f"row {wrong[p.confidence[wrong].argmax()] + 1}"


def test_no_errors_and_unreadable_images() -> None:
    perfect = draw(2, signal=50)
    assert "no errors among 200 images" in texts(errors(perfect, read))

    def broken(path: str) -> np.ndarray:
        raise DataError(f"{path}: truncated")

    assert texts(grid(perfect, broken)).count("cannot be read") == pictures.PICTURES


def test_grid_of_one_image_without_labels() -> None:
    p = Predictions(("a", "b"), ("secret/0.png",), None, None, np.zeros((1, 2), np.float32))
    figure = grid(p, read)
    assert "b\n50%" in texts(figure) and is_png(figure)


def test_confusion_matrix_holds_counts_and_row_shares() -> None:
    labels = np.array([0] * 40 + [1] * 300)
    predicted = np.array([0] * 30 + [1] * 10 + [0] * 1 + [1] * 299)
    p = Predictions(NAMES[2], ("x",) * 340, None, labels, np.eye(2, dtype=np.float32)[predicted])
    shown = texts(confusion_matrix(p, evaluate_predictions(p)))
    assert {"30\n75%", "10\n25%", "1\n<1%", "299\n>99%"} <= set(shown)
    assert "infected (n=40)" in shown and "uninfected (n=300)" in shown
    read = text_alternative(confusion_matrix(p, evaluate_predictions(p)))  # its cells row by row
    assert "predicted class: infected, uninfected; true class (images): infected (n=40), uninfected (n=300)" in read
    assert read.endswith("30 75%; 10 25%; 1 <1%; 299 >99%")


def test_roc_shows_area_and_interval_of_the_positive_class() -> None:
    p = draw(2)
    metrics = evaluate_predictions(p)
    entry = metrics["overall"]["auroc"]
    legend = texts(roc(p, Results.of(metrics)))
    assert any(f"infected: {entry['value']:.3f} ({entry['low']:.3f} to {entry['high']:.3f})" in text for text in legend)
    entry = metrics["overall"]["average_precision"]
    assert any(f"infected: {entry['value']:.3f} (" in text for text in texts(precision_recall(p, metrics)))


def analysed(p: Predictions, **fields: float) -> Results:
    metrics = evaluate_predictions(p)
    material = Material(p, metrics, config=EvaluateConfig(resamples=50, **fields))
    names = ("prevalence", "decision_curve", "fixed_rates")
    return Results.of(metrics, **{name: CLASS_ANALYSES[name](material) for name in names})


def test_roc_shows_where_the_model_decides_and_a_band_through_the_fixed_rates() -> None:
    p = draw(2, size=400, signal=2.0)
    metrics = analysed(p)
    figure = roc(p, metrics)
    (axes,) = figure.axes
    own = metrics.per_class["infected"]
    dot = next(line for line in axes.lines if line.get_marker() == "o")
    assert dot.get_xydata().tolist() == [[1 - own.specificity.value, own.sensitivity.value]]
    (band,) = axes.collections
    corners = {(round(x, 6), round(y, 6)) for path in band.get_paths() for x, y in path.vertices}
    assert len(metrics.fixed_rates.sensitivity) > 3
    for one in metrics.fixed_rates.sensitivity[:3]:
        ends = {(round(1 - one.fixed, 6), round(end, 6)) for end in (one.reached.low, one.reached.high)}
        assert ends <= corners
    assert any(f"decides: sensitivity {own.sensitivity.value:.3f} (" in text for text in texts(figure))


def test_a_picture_says_where_the_model_gives_no_answer() -> None:
    p = replace(draw(2, size=2), columns={"answer": ("yes", "no: 2 classes are possible")})
    assert sum("no answer" in text for text in texts(grid(p, read))) == 1


def test_roc_shows_each_reader_as_a_point() -> None:
    """By hand: reader a reads 4 of 5 infected as infected and calls 1 of 5 others infected; b has not read the last."""
    labels = np.repeat([0, 1], 5)
    calls = {"a": "iiiiuiuuuu", "b": "iiiuuuuuu "}
    columns = {
        name: tuple({"i": NAMES[2][0], "u": NAMES[2][1]}.get(c, "") for c in cells) for name, cells in calls.items()
    }
    p = Predictions(
        NAMES[2], tuple("abcdefghij"), None, labels, draw(2, 10).logits, columns=columns, positive="infected"
    )
    results = Results.of(evaluate_predictions(p), readers=compare_with_readers(p, EvaluateConfig(raters=["a", "b"])))
    figure = roc(p, results)
    points = [line.get_xydata()[0].tolist() for line in figure.axes[0].lines if line.get_label().startswith("reader")]
    assert points == [pytest.approx([1 / 4, 4 / 5]), pytest.approx([0, 3 / 5])]  # on the nine images that both read
    assert any("reader a, 9 images" in text for text in texts(figure))


def test_a_chapter_for_a_kind_of_label_draws_its_figures_for_it() -> None:
    """Grades had tested attention maps and a table of corrupted images without their pictures."""
    for name in ("attention_maps", "robustness", "out_of_distribution", "flow"):
        assert {*plots()[name].kinds} == {"classes", "grades", "findings", "number"}


@pytest.mark.parametrize("slope", [0.5, 1.0])
def test_the_trend_of_the_error_is_a_line_with_limits_where_the_error_drifts(slope: float) -> None:
    rng = np.random.default_rng(0)
    labels = rng.normal(50, 10, 80)
    values = 50 + slope * (labels - 50) + rng.normal(0, 2, 80)
    logits = np.stack([values, np.zeros(80)], axis=1).astype(np.float32)
    p = NumberPredictions(("age",), ("",) * 80, None, labels, logits, target=Target(kind="number"))
    (axes,) = plots()["bland_altman"].draw(p, SimpleNamespace(bland_altman=bland_altman(p))).axes
    fitted, *limits = [line for line in axes.lines if line.get_color() == drawing.GREEN]
    mean, error = (p.values + labels) / 2, p.values - labels
    steep, level = np.polyfit(mean, error, 1)
    assert fitted.get_ydata() == pytest.approx(level + steep * fitted.get_xdata()), fitted.get_xdata()
    assert sorted(fitted.get_xdata()) == [mean.min(), mean.max()] and len(limits) == (2 if slope < 1 else 0)
    around = 1.959964 * np.std(error - level - steep * mean, ddof=1)
    for line, reach in zip(limits, (around, -around), strict=False):
        assert line.get_ydata() == pytest.approx(fitted.get_ydata() + reach)


def test_roc_has_no_mean_of_classes_where_one_has_no_image() -> None:
    p = draw(10)
    for of, whole in ((p, True), (p.at([path for path, k in zip(p.paths, p.labels, strict=True) if k != 9]), False)):
        metrics = evaluate_predictions(of)
        assert (metrics["overall"]["auroc"]["value"] is not None) == whole
        assert ("mean of classes" in roc(of, Results.of(metrics)).axes[0].get_legend_handles_labels()[1]) == whole


def test_roc_of_more_classes_has_a_dot_for_each_named_curve_and_no_band() -> None:
    p = draw(10)
    (axes,) = roc(p, analysed(p)).axes
    dots = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert len(dots) == 4 and not axes.collections
    assert "dot: where the model decides" in axes.get_legend_handles_labels()[1]


def test_no_legend_hides_the_curve_of_errors_against_answers() -> None:
    p, whole, _ = material(2)
    figure = plots()["risk_coverage"].draw(p, whole)
    assert figure.axes[0].get_legend() is None and "this model" in texts(figure)


def test_the_decision_curve_at_the_intended_prevalence_stands_above_that_of_the_images() -> None:
    p = draw(2, size=400, signal=2.0)
    assert len(plots()["decision_curve"].draw(p, analysed(p)).axes) == 1
    metrics = analysed(p, prevalence=0.01)
    above, below = plots()["decision_curve"].draw(p, metrics).axes
    assert above.get_title().startswith("infected: intended prevalence of 1 %")
    assert below.get_title().startswith(f"infected: {100 * metrics.decision_curve.prevalence:.3g} % of n = 400 images")
    curve = next(line for line in above.lines if line.get_label() == "model")
    assert curve.get_ydata().tolist() == [net.value for net in metrics.decision_curve.intended.model]


def test_of_many_classes_the_legend_names_the_worst() -> None:
    p = draw(10)
    metrics = evaluate_predictions(p)
    areas = {c: entry["auroc"]["value"] for c, entry in metrics["per_class"].items()}
    legend = roc(p, Results.of(metrics)).legends[0].get_texts()
    named = [text.get_text().split(":")[0] for text in legend if "n=" in text.get_text()]
    assert named == sorted(areas, key=lambda c: areas[c])[:4]


@pytest.mark.parametrize("draws", [roc, precision_recall, confusion_matrix])
def test_a_missing_class_or_no_image_draws(draws: type(roc)) -> None:  # type: ignore[valid-type]
    one = Predictions(NAMES[2], ("x",) * 3, None, np.zeros(3, np.int64), np.zeros((3, 2), np.float32))
    none = Predictions(NAMES[2], (), None, np.zeros(0, np.int64), np.zeros((0, 2), np.float32))
    for p in (one, none):
        assert is_png(draws(p, Results.of(evaluate_predictions(p))))


def test_training_curves_are_drawn_once_for_the_same_records() -> None:
    records = [{"epoch": 1, "train_loss": 0.7, "val_loss": 0.6, "lr": 1e-3}]
    first = drawn_curves(records)
    assert drawn_curves([dict(record) for record in records]) is first
    assert drawn_curves([*records, records[0] | {"epoch": 2}]) is not first


def test_training_curves_mark_the_epoch_of_best_pt() -> None:
    """The last record that wrote best.pt: ties go by the loss, and with `choose: last` every epoch is written."""
    records = [
        {
            "epoch": i + 1,
            "lr": 0.1,
            "train_loss": 1.0,
            "val_loss": 1.0,
            "val_auroc": v,
            "monitor": "auroc",
            "kept": kept,
        }
        for i, (v, kept) in enumerate([(None, True), (0.9, True), (0.8, False)])
    ]
    figure = training_curves(records)
    assert "best.pt: epoch 2, validation AUROC 0.900" in texts(figure) and is_png(figure)
    last = training_curves([record | {"kept": True} for record in records])  # since 0.2 `best` says which is the best
    assert "best.pt: epoch 3, validation AUROC 0.800" in texts(last)
    assert training_curves([]) and is_png(first := training_curves([{"epoch": 1, "train_loss": 2.0}]))
    assert all(tick == int(tick) for axes in first.axes for tick in axes.get_xticks())  # no epoch 0.96


AUGMENTED = "augmentation medical, crops of at least 50 % of the area"


def test_contact_sheet() -> None:
    """The title says what changed the images, on a narrow sheet too."""
    figure = contact_sheet(
        {"a": [read("secret/1.png"), read("secret/2.png")], "b" * 99: [read("secret/3.png")]}, 2, AUGMENTED
    )
    assert sum(bool(axes.images) for axes in figure.axes) == 3 and is_png(figure)
    assert any(text.startswith("bbb") and len(text) <= 20 for text in texts(figure))
    assert is_png(contact_sheet({"empty": []}, 1, AUGMENTED))
    assert AUGMENTED in texts(figure) and not any("classes shown" in text for text in texts(figure))
    some = contact_sheet({str(k): [read("secret/1.png")] for k in range(24)}, 1000, AUGMENTED)
    assert f"{AUGMENTED}; 24 of 1,000 classes shown" in texts(some)


def test_names_are_cut_in_the_middle() -> None:
    assert drawing.short("adenocarcinoma stage 12", 14) == "adenoc…tage 12"
    assert drawing.short("_a$b\n c", 14) == r" _a\$b c"
    assert drawing.short("\u0633\u0631 \u062c II", 14) == "\u200e\u0633\u0631 \u062c\u200e II", "numbers beside it stay"


def test_a_path_keeps_its_end_over_two_lines() -> None:
    assert path_label("row 7", 24) == "row 7"
    assert path_label("melanoma/PATANNA009_lesion6_img06.png", 24) == "melanoma/PATANNA009_\nlesion6_img06.png"
    assert path_label("melanoma/PA0009_img0003.png", 24) == "melanoma/\nPA0009_img0003.png"
    long = path_label("a_very_long_folder/of_a_very_long_name/" + "x" * 30 + "_img03.png", 24)
    assert long.startswith("…") and long.endswith("_img03.png") and max(map(len, long.split("\n"))) <= 24
    assert path_label("a$b", 24) == r"a\$b"


@pytest.mark.parametrize("draw", [roc, precision_recall])
def test_a_figure_without_a_curve_says_why(draw: Callable[..., Figure]) -> None:
    p = Predictions(("a", "b"), ("x",) * 4, None, np.zeros(4, np.int64), np.eye(2, dtype=np.float32)[[0, 1, 0, 1]])
    assert "all images are of the class a" in text_alternative(draw(p, Results.of(evaluate_predictions(p))))


@pytest.mark.skipif(not drawing._east_asian_fonts(), reason="no font with East Asian characters is installed")
@pytest.mark.parametrize("name", ["悪性腫瘍", "正常"])
def test_names_in_east_asian_characters_are_no_boxes(name: str) -> None:
    figure = Figure()
    figure.subplots().set_xticks([0], [name])
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("error")  # matplotlib: Glyph missing from font
        patch.setattr(drawing, "NO_WARNINGS", contextlib.nullcontext())
        drawn(figure)


def test_a_name_that_is_no_unicode_can_be_drawn_anywhere() -> None:
    """In ticks, labels, titles and legends, in PNG and SVG; as the bytes of a file name that is not UTF-8."""
    from xml.dom import minidom

    name = "caf\udce9\x1b"
    figure = Figure(layout="constrained")
    axes = figure.add_subplot(xlabel=name, ylabel=name, title=name)
    axes.plot([0, 1], [0, 1], label=name)
    axes.set_xticks([0, 1], [name, "b"])
    axes.set_yticks([0, 1], [name, "b"])
    axes.legend()
    axes.text(0, 0, name)
    figure.suptitle(name)
    made = drawn(figure)
    minidom.parseString(made.svg)
    assert r"caf\udce9\x1b" in made.text and made.png[:4] == b"\x89PNG"
