"""The model against readers: Van Dyke's table gives what R's MRMCaov prints, and a slow definition agrees."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Answer
from reports import write_report
from scipy.stats import binomtest, norm, t
from sklearn.metrics import cohen_kappa_score

from vitmed.commands.evaluate import evaluate
from vitmed.core.config import EvaluateConfig
from vitmed.core.errors import DataError, UsageError
from vitmed.metrics.areas import area_spread, class_areas
from vitmed.metrics.intervals import Units, influence_spread, quantile, spread
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.readers import compare_with_readers, reader_variances
from vitmed.report.headline import reader_lines
from vitmed.report.results import Origin
from vitmed.report.write import Report


def against(
    p: Predictions, raters: Sequence[str] = (), rater_scores: Sequence[str] = (), ordinal: Sequence[str] = ()
) -> Any:
    asked = {"raters": [*raters], "rater_scores": [*rater_scores], "ordinal": [*ordinal]}
    return compare_with_readers(p, EvaluateConfig(**asked))


# Van Dyke et al. 1993, as in the R package MRMCaov: 69 patients without and 45 with aortic dissection, two ways of MRI,
# five readers, ratings 1 to 5.
VAN_DYKE = {
    "cine": """
122151111111411111111131311214111113121211233131133111111221111332111555545554555434245555555154454553555115554451
232222222322522232222222422223222222222222222222222222222432232222222535555542555442225555555243354552425225555352
222235112242422232221232411322112224121412112222223211211221151421212545555555555542355555555252255552555225555552
111111311111111111112111211112111111111111111111331111111111111311111555555555555555155555555554544553555125555555
351211112221211122113221111211211231221113332111211111111341231212113525255551545452235555554144322151515115553552
""",
    "spin echo": """
333222223213122222211111421312214323123122233111333113412421241442111535555554555544335555555355355554455535555551
322222223222222122221222322222212212222231223222222222322322222222122535555552555344245455545252355532425525555552
242222322211132222121121411512112122212221132111233113221232341242121525555555555354145555555253355543555534555551
221111312111122111211111321212111122112111112121212211111212111323211545555554555455555555555455445555555535555555
223122221222111222122212322321212222112121132122332122221222231233111525455555455343335555555251332532545533555553
""",
}
TRUTH = np.arange(114) >= 69


def ratings(way: str) -> np.ndarray:
    return np.array([[float(rating) for rating in reader] for reader in VAN_DYKE[way].split()])  # (5, 114)


@pytest.mark.parametrize(
    ("way", "mean", "error", "degrees", "low", "high"),
    [
        ("cine", 0.8970370, 0.03307642, 12.59597, 0.8253461, 0.9687280),
        ("spin echo", 0.9408374, 0.02150464, 12.56530, 0.8942155, 0.9874592),
    ],
)
def test_auroc_of_random_readers_is_mrmcaovs(
    way: str, mean: float, error: float, degrees: float, low: float, high: float
) -> None:
    """mrmc(empirical_auc(truth, rating), treatment, reader, case, VanDyke, cov = DeLong), by one treatment."""
    areas, units = [class_areas(own, TRUTH)[0] for own in ratings(way)], Units(np.arange(114))
    values = np.array([area.value for area in areas])
    found = reader_variances(
        values, np.stack([a.influence for a in areas]), lambda influence: area_spread(influence, TRUTH, units)
    )[0]
    assert values.mean() == pytest.approx(mean, abs=1e-7)
    assert (found.variance**0.5, found.degrees) == pytest.approx((error, degrees), rel=1e-6)
    reach = quantile(found.degrees) * found.variance**0.5
    assert (values.mean() - reach, values.mean() + reach) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(("way", "error"), [("cine", 0.02428971), ("spin echo", 0.01677632)])
def test_fixed_readers_are_mrmcaovs(way: str, error: float) -> None:
    """The same with fixed(reader); it prints the jackknife there, which is near DeLong's."""
    areas, units = [class_areas(own, TRUTH)[0] for own in ratings(way)], Units(np.arange(114))
    influence = np.mean([area.influence for area in areas], axis=0)
    assert area_spread(influence, TRUTH, units).variance ** 0.5 == pytest.approx(error, rel=0.01)


@pytest.mark.parametrize(
    ("way", "mean", "error", "degrees"),
    [("cine", 0.8222222, 0.05893747, 14.456811), ("spin echo", 0.92, 0.03741657, 7.575855)],
)
def test_sensitivity_of_random_readers_is_mrmcaovs(way: str, mean: float, error: float, degrees: float) -> None:
    """mrmc(binary_sens(truth, rating >= 3), treatment, reader, case, VanDyke), by one treatment."""
    hits, units = ratings(way)[:, TRUTH] >= 3, Units(np.arange(45))
    means = hits.mean(axis=1)
    influences = (hits - means[:, None]) / 45
    found = reader_variances(means, influences, lambda influence: spread(influence, units))[0]
    assert means.mean() == pytest.approx(mean, abs=1e-7)
    assert (found.variance**0.5, found.degrees) == pytest.approx((error, degrees), rel=1e-6)


def table(model: int = 3, groups: tuple[str, ...] | None = None, **more: tuple[str, ...]) -> Predictions:
    """The spin echo ratings: one reader in the place of the model, which calls from 3 on; the others in columns."""
    scores = ratings("spin echo")
    logits = np.stack([0 * scores[model], scores[model] - 2.5], axis=1).astype(np.float32)
    columns = {f"s{i}": tuple(f"{x:g}" for x in own) for i, own in enumerate(scores) if i != model}
    columns |= {f"c{i}": tuple("ny"[int(x >= 3)] for x in own) for i, own in enumerate(scores) if i != model}
    paths = tuple(f"{i}.png" for i in range(114))
    return Predictions(("n", "y"), paths, groups, TRUTH.astype(np.int64), logits, positive="y", columns=columns | more)


def slowly(scores: np.ndarray, auroc: bool) -> tuple[float, float, float, float, float]:
    """Difference, p and degrees with random readers, p and half-width with fixed ones; the first row is the model.

    The definitions, with covariances by the jackknife of a share, and by DeLong's placement values of an AUROC. Fixed
    readers of an AUROC: the normal distribution; of calls Student's t, by Satterthwaite from the kurtosis of the gaps.
    """
    gaps, parts = scores[:1] - scores[1:], []
    if auroc:
        up, down = scores[:, TRUTH], scores[:, ~TRUTH]
        wins = (up[:, :, None] > down[:, None]) + 0.5 * (up[:, :, None] == down[:, None])
        theta = wins.mean(axis=(1, 2))[0] - wins.mean(axis=(1, 2))[1:]
        for placed in (wins.mean(axis=2), wins.mean(axis=1)):
            parts.append(np.cov(placed[:1] - placed[1:]) / placed.shape[1])
    else:
        theta = gaps.mean(axis=1)
        n = gaps.shape[1]
        left = np.array([np.delete(gaps, i, axis=1).mean(axis=1) for i in range(n)])
        parts.append(np.cov(left.T) * (n - 1) ** 2 / n)
    cov, j = sum(parts), len(theta)
    pairs = [cov[a, b] for a, b in itertools.permutations(range(j), 2)]
    alike, ms = max(0.0, float(np.mean(pairs))), theta.var(ddof=1)
    error = (np.trace(cov) / j + (j - 1) * np.mean(pairs)) / j
    total = max(ms + j * alike, j * error)  # for no readers the mean is surer than for these
    f, degrees = j * theta.mean() ** 2 / total, total**2 / (ms**2 / (j - 1))
    far = gaps.mean(axis=0) - gaps.mean()
    of_fixed = norm if auroc else t(2 / ((far**4).sum() / (far**2).sum() ** 2 - 1 / len(far)))
    fixed = 2 * of_fixed.sf(abs(theta.mean()) / error**0.5)
    return theta.mean(), 2 * t.sf(f**0.5, degrees), degrees, fixed, of_fixed.ppf(0.975) * error**0.5


@pytest.mark.parametrize(("model", "readers"), [(0, 4), (3, 4), (0, 2), (4, 3)])
def test_the_whole_comparison_by_its_definition(model: int, readers: int) -> None:
    others = [i for i in range(5) if i != model][:readers]
    p = table(model)
    found = against(p, [f"c{i}" for i in others], [f"s{i}" for i in others])
    assert found is not None and [one.number for one in found] == ["auroc", "sensitivity", "specificity"]
    scores = ratings("spin echo")[[model, *others]]
    calls = scores >= 3
    expected = [slowly(scores, True), slowly(calls[:, TRUTH] * 1.0, False), slowly(~calls[:, ~TRUTH] * 1.0, False)]
    for one, (gap, p_random, degrees, p_fixed, reach) in zip(found, expected, strict=True):
        random, fixed = one.random_readers, one.fixed_readers
        assert random.degrees == pytest.approx(degrees) and random.p == pytest.approx(p_random)
        assert random.difference.value == fixed.difference.value == pytest.approx(gap)
        assert gap == pytest.approx(one.model.value - one.mean)
        assert fixed.p == pytest.approx(p_fixed) and (fixed.degrees is None) == (one.number == "auroc")
        low, high = fixed.difference.low, fixed.difference.high  # no narrower than the test, and as it has it towards 0
        assert low < gap - reach + 1e-6 and high > gap + reach - 1e-6
        if abs(gap) > reach:
            assert (low if gap > 0 else high) == pytest.approx(gap - np.sign(gap) * reach, abs=1e-6)
        assert random.difference.low is not None and fixed.difference.low is not None
        assert random.difference.low <= fixed.difference.low + 1e-9
    assert [one.n for one in found] == [114, 45, 69]
    for one, truth in zip(found[1:], (TRUTH, ~TRUTH), strict=True):  # each number has its own interval
        right = calls[:, truth] == (truth is TRUTH)
        for number, of_one in zip([one.model, *one.readers.values()], right, strict=True):
            wilson = binomtest(int(of_one.sum()), len(of_one)).proportion_ci(method="wilson")
            assert [number.value, number.low, number.high] == pytest.approx([of_one.mean(), wilson.low, wilson.high])


def test_readers_of_grades_are_compared_by_quadratic_kappa() -> None:
    """The five readers' ratings as grades: one is the reference, one the model; by scikit-learn, with the
    derivative of kappa by the weight of each image."""
    truth, model, *readers = ratings("spin echo").astype(int) - 1
    logits, names = 5 * np.eye(5, dtype=np.float32)[model], ("0", "1", "2", "3", "4")
    columns = {f"c{i}": tuple(map(str, row)) for i, row in enumerate(readers)}
    p = Predictions(names, tuple(f"{i}.png" for i in range(114)), None, truth, logits, columns=columns)
    found = against(p, list(columns), ordinal=names)
    assert found is not None and [one.number for one in found] == ["quadratic_kappa", "accuracy"]

    def kappas(w: np.ndarray) -> np.ndarray:
        """As scikit-learn's, in less time: one minus the observed over the expected squared distance."""
        squares, true = (np.arange(5)[:, None] - np.arange(5)) ** 2, np.bincount(truth, w, 5)
        expected = [true @ squares @ np.bincount(one, w, 5) / w.sum() for one in (model, *readers)]
        return 1 - np.array([w @ (truth - one) ** 2 for one in (model, *readers)]) / expected

    every, step, one = np.ones(114), 1e-5, found[0]
    values = np.array([cohen_kappa_score(truth, one, weights="quadratic") for one in (model, *readers)])
    assert kappas(every) == pytest.approx(values, abs=1e-12)
    assert [one.model.value, *(r.value for r in one.readers.values())] == pytest.approx(values)
    assert all(number.low < number.value < number.high for number in (one.model, *one.readers.values()))
    pull = np.array([kappas(every + step * i) - kappas(every - step * i) for i in np.eye(114)]) / (2 * step)
    fixed = np.sum((pull[:, 0] - pull[:, 1:].mean(axis=1)) ** 2) * 114 / 113
    assert one.mean == pytest.approx(values[1:].mean()) and one.n == 114
    assert one.fixed_readers.difference.value == pytest.approx(values[0] - values[1:].mean())
    z = one.fixed_readers.difference.value / fixed**0.5
    assert one.fixed_readers.p == pytest.approx(2 * t.sf(abs(z), one.fixed_readers.degrees), rel=1e-6)
    assert 2 < one.fixed_readers.degrees < 113
    assert one.random_readers is not None and one.random_readers.p > one.fixed_readers.p
    config = EvaluateConfig(resamples=0, report=False, raters=list(columns), ordinal=list(names))
    kappa, _ = reader_lines(Report.of(p, Origin(title="t"), config).results)
    score = cohen_kappa_score(truth, readers[0], weights="quadratic")
    ends = f"({one.readers['c0'].low:.3f} to {one.readers['c0'].high:.3f})"
    assert kappa.startswith("quadratic kappa on 114 images: the model ") and f", c0 {score:.3f} {ends}, c1 " in kappa
    nobody = against(replace(p, columns={**columns, "c0": ("",) * 114}), ["c0", "c1"], ordinal=names)
    assert nobody is not None and nobody[0].n == 0 and nobody[0].model.value is None
    alone = replace(p, labels=0 * truth, columns={"c0": ("0",) * 114, "c1": columns["c1"]})
    one_grade = against(alone, ["c0", "c1"], ordinal=names)
    assert one_grade is not None and one_grade[0].readers["c0"].value is None
    assert one_grade[0].mean is None and one_grade[0].fixed_readers.difference.value is None
    constant = replace(p, columns={"c0": ("0",) * 114})
    undefined = against(replace(constant, labels=0 * truth, logits=0 * logits), ["c0"], ordinal=names)
    assert undefined is not None and undefined[0].model.value is None and undefined[0].fixed_readers.p is None


def test_one_reader_several_images_of_a_patient_and_images_that_not_all_have_read() -> None:
    p = table(groups=tuple(f"p{i // 3}" for i in range(114)))
    only = against(p, (), ["s0"])
    assert only[0].random_readers is None and only[0].fixed_readers.p is not None
    assert only[0].fixed_readers.degrees is not None  # Student's t by patient
    some = tuple("" if i % 2 else cell for i, cell in enumerate(p.columns["c0"]))
    found = against(table(c0=some), ["c0", "c1"])
    assert sum(one.n for one in found) == 57
    rows = np.flatnonzero(np.arange(114) < 60)  # who did not read the other patients answered them neither way
    half = replace(p, columns={"r": tuple(p.columns["c0"][i] if i < 60 else "" for i in range(114))})
    assert against(half, ["r"]) == against(half.take(rows), ["r"])


def test_what_cannot_be_compared_says_so() -> None:
    p = table(same=tuple("ny"[k] for k in table().predicted), nobody=("",) * 114, odd=("7", "high", *("1",) * 112))
    alike = against(p, ["same"])
    assert alike[0].fixed_readers.difference.value == 0 and alike[0].fixed_readers.p is None
    nobody = against(p, ["nobody", "c0"], ["s0", "nobody"])
    assert all(one.n == 0 and one.model.value is None for one in nobody)
    assert against(p) is None
    with pytest.raises(DataError, match=r"1\.png: 'high' in the column odd is no number"):
        against(p, (), ["odd"])
    three = Predictions(("a", "b", "c"), p.paths, None, p.labels, np.zeros((114, 3), np.float32), columns=p.columns)
    with pytest.raises(UsageError, match="a score is for two classes"):
        against(three, (), ["s0"])
    calls = dict.fromkeys(("x", "z"), ("a", "b", "c") * 38)
    both = against(Predictions(three.classes, p.paths, None, p.labels, three.logits, columns=calls), ["x"])
    assert both is not None and [one.number for one in both] == ["accuracy"]


@pytest.mark.usefixtures("no_figures")
def test_a_score_that_runs_the_other_way_is_noted(tmp_path: Path) -> None:
    """Else a model seems far better than a reader whose 1 means: surely ill."""
    p = table()
    p = replace(p, columns=p.columns | {"s1": tuple(str(6 - float(cell)) for cell in p.columns["s1"])})
    config = EvaluateConfig(rater_scores=["s0", "s1"], resamples=0)
    notes = write_report(tmp_path, p, title="t", facts={}, config=config).notes
    of_readers = [note for note in notes if "clearly below 0.5" in note]
    assert len(of_readers) == 1 and of_readers[0].startswith("The AUROC of the column s1 is 0.")


@pytest.mark.usefixtures("no_figures")
def test_the_report_of_a_table_with_readers(tmp_path: Path) -> None:
    p = table()
    (tmp_path / "predictions.csv").write_text(p.to_csv())
    options: dict[str, Any] = {"resamples": 0}
    found = evaluate(
        tmp_path / "predictions.csv", output=tmp_path / "r", rater=["c0", "c1"], rater_score=["s0", "s1"], **options
    )
    assert found.metrics.readers is not None and len(found.metrics.readers) == 3
    html = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "Model against readers" in html and "Readers like these" in html and "can hardly agree" not in html
    for wrong in ({"rater_score": ["nosuch"]}, {"rater_score": ["c0"]}):
        with pytest.raises((UsageError, DataError)):
            evaluate(tmp_path / "predictions.csv", output=tmp_path / "x", **options, **wrong)


@pytest.mark.usefixtures("no_figures")
def test_answers_of_two_kinds_are_read_where_a_positive_class_is_named_and_are_on_the_screen(
    tmp_path: Path, vitmed: Callable[..., Answer]
) -> None:
    p, quick = table(), EvaluateConfig(resamples=0, report=False)
    names = p.columns["c0"]
    for k, (no, yes) in enumerate((("0", "1"), ("No", "yes"), ("false", "TRUE"))):
        said = tuple(cell and (no, yes)[cell == p.classes[1]] for cell in names)
        for positive in (None, p.classes[1]):
            file = tmp_path / f"of-{k}{positive}" / "predictions.csv"
            asked = replace(p, positive=positive, columns={"said": said})
            if positive is None:  # a table alone names none
                file.parent.mkdir()
                file.write_text(asked.to_csv())
            else:
                write_report(file.parent, asked, quick, title="t")
            answer = vitmed("evaluate", file, "--rater", "said", "--resamples", 0, "-o", tmp_path / f"{k}{positive}")
            if positive is None:
                assert answer.code != 0 and "in the column said is no class" in answer.err
                assert "vitmed evaluate --positive CLASS" in answer.err
                named = ("--positive", p.classes[1], "--resamples", 0, "-o", tmp_path / f"{k}-named")
                assert vitmed("evaluate", file, "--rater", "said", *named).code == 0
                continue
            assert answer.code == 0, answer.err
            found = json.loads((tmp_path / f"{k}{positive}" / "metrics.json").read_text())["readers"]
            again = against(replace(p, positive=positive), ["c0"])
            assert again is not None
            for own, known in zip(found, again, strict=True):
                reader, gap = known.readers["c0"], known.fixed_readers.difference
                assert own["readers"]["said"]["value"] == reader.value and reader.low is not None
                shown = " ".join(answer.err.split())
                texts = [f"{x.value:.3f} ({x.low:.3f} to {x.high:.3f})" for x in (known.model, reader)]
                line = f"{own['number']} on {known.n} images: the model {texts[0]}, said {texts[1]}; model minus reader"
                assert f"{line} {gap.value:+.3f} (" in shown and ") for this reader alone" in shown
                assert "readers like these" not in shown
    first = next(path for path, cell in zip(p.paths, said, strict=True) if cell)
    cells = tuple("2" if path == first else cell for path, cell in zip(p.paths, said, strict=True))
    file = tmp_path / "wrong" / "predictions.csv"
    write_report(file.parent, replace(p, columns={"said": cells}), quick, title="t")
    answer = vitmed("evaluate", file, "--rater", "said", "--resamples", 0, "-o", tmp_path / "no")
    assert answer.code != 0 and f"{first}: '2' in the column said is no class" in answer.err
    fix = f"one of {p.classes[0]}, {p.classes[1]}; 1, yes, true for {p.classes[1]}; 0, no, false for"
    assert fix in " ".join(answer.err.split())


def test_a_number_of_readers_that_is_undefined_is_said_to_be() -> None:
    p = table()
    some = tuple(p.classes[k] if k == 0 and i % 2 else "" for i, k in enumerate(p.labels.tolist()))
    part = replace(p, positive=p.classes[1], columns={**p.columns, "part": some, "nobody": ("",) * len(p)})
    correct = np.mean([k == 0 for k, cell in zip(part.predicted, some, strict=True) if cell])

    def lines(raters: list[str]) -> list[str]:
        config = EvaluateConfig(resamples=0, report=False, raters=raters)
        return reader_lines(Report.of(part, Origin(title="t"), config).results)

    missing, specificity = lines(["part"])
    assert missing == "sensitivity on 0 images: the model undefined, part undefined"
    assert specificity.startswith(f"specificity on {sum(map(bool, some))} images: the model {correct:.3f} (")
    assert ", part 1.000 (" in specificity
    assert lines(["c0", "nobody"])[-1] == "specificity on 0 images: the model undefined, c0 undefined, nobody undefined"


@pytest.mark.slow
@pytest.mark.parametrize(("images", "right"), list(itertools.product((15, 30, 60, 150), (0.7, 0.85))))
def test_readers_as_good_as_the_model_differ_one_time_in_twenty(images: int, right: float) -> None:
    """The model and two fixed readers, whose calls of an image share how hard it is; p by Student's t."""
    rng, units, studies, found = np.random.default_rng(0), Units(np.arange(images)), 4000, 0
    border = norm.ppf(right) * 1.64**0.5
    for _ in range(studies):
        calls = rng.normal(size=(3, images)) + 0.8 * rng.normal(size=images) < border
        gaps = calls[0] - calls[1:].mean(axis=0)
        over = influence_spread((gaps - gaps.mean()) / images, units)
        if over.variance > 0:
            found += 2 * t.sf(abs(gaps.mean()) / over.variance**0.5, over.degrees) < 0.05
    assert 0.035 * studies < found < 0.065 * studies  # 0.043 to 0.061; by the normal distribution 0.054 to 0.077
