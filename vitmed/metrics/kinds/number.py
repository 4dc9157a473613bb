"""A predicted quantity, such as an age: what a model predicts, every number that judges it, and limits of agreement.

All numbers are functions of sums over images, so that each patient can be left out. Concordance: Lin,
Biometrics 45 (1989) 255, with variances over the number of images. Log score and CRPS: Gneiting & Raftery, J. Am. Stat.
Assoc. 102 (2007) 359, with less is better.

Intervals are by the jackknife over patients (Efron 1982), with Student's t: of correlations on Fisher's scale, as Lin
does for concordance; of the mean absolute error on the logarithmic scale; of RMSE, CRPS and log score with the skewness
of what patients add removed (`jackknife_interval`), which reaches further, but held RMSE with heavy tails in 94 of 100
simulated tests, not in 90. benchmarks/number_coverage.py measured how often they hold the truth.

Limits of agreement: Bland & Altman, Lancet 327 (1986) 307; with several images of a patient by components of variance,
J. Biopharm. Stat. 17 (2007) 571. Their intervals are those of bias and standard deviation combined (MOVER), as in Zou,
Stat. Methods Med. Res. 22 (2013) 630, but with the jackknife for both: heavy tails make chi-squared far too narrow.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from vitmed.core.base_models import SIDES, Frozen, Kind, Target
from vitmed.core.errors import DataError
from vitmed.core.upgrade import READER
from vitmed.metrics import intervals
from vitmed.metrics.estimates import FEW_IMAGES, Estimate, Numbers, Sample, estimate, of_share
from vitmed.metrics.intervals import Units, ratio
from vitmed.metrics.kinds.prepared import Prepared, check_finite
from vitmed.metrics.metric_table import NUMBER_METRICS, Metric
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.metrics.predictions_csv import FIXED_COLUMNS, OF_NUMBERS, RAW, TARGET, Table

ENDS = ("low", "high")  # columns of the interval
TINY = float(np.finfo(np.float64).tiny)
NEAR = 1e-4  # of the spread: a prediction that differs by more does not follow from the outputs of the network


class NumberPredictions(Predictions):
    """What a model predicts of a quantity, such as an age, with its uncertainty: labels are (S,) float64, in the unit;
    logits are (S, 2), location and log of the scale, both standardised; `decided` is (S, 2) float64 ends of intervals.

    Its table: path, label, group, prediction, low, high (of the interval; empty without), raw_location, raw_log_scale
    (the outputs of the network); then the same in every row: reach, target_name, the fields of `Target`; then further
    columns.
    """

    kind: ClassVar[Kind] = "number"
    UNLABELLED: ClassVar[str] = "give the true number of every image"
    LABEL_COLUMN: ClassVar[tuple[str, str]] = "label", UNLABELLED
    DECIDING: ClassVar[dict[str, Any]] = {}

    def like(self, other: Self) -> Self:
        """The same numbers and scales in the unit, standardised as in `other`; equal up to the rounding of `logits`."""
        centre, spread = other.target.centre, other.target.spread
        target = self.target.model_copy(update={"centre": centre, "spread": spread})
        if target == self.target:
            return self
        logits = np.stack([(self.values - centre) / spread, np.log(self.scales / spread)], axis=1)
        return replace(self, logits=logits.astype(np.float32), target=target)

    def pooled(self, parts: Sequence[Self]) -> tuple[Sequence[Self], dict[str, Any]]:
        """All standardised by the mean centre and spread of the models."""
        ends = [part.intervals for part in parts if part.intervals is not None]
        means = {name: statistics.mean(getattr(p.target, name) for p in parts) for name in ("centre", "spread")}
        decision = {"reach": None, "decided": np.concatenate(ends) if len(ends) == len(parts) else None}
        mean = replace(self, target=self.target.model_copy(update=means))
        return [part.like(mean) for part in parts], decision

    def mean_of(self, parts: Sequence[Self], shares: np.ndarray) -> Self:
        values, scales = (np.stack([getattr(part, name) for part in parts]) for name in ("values", "scales"))
        mean, target = np.einsum("m,ms->s", shares, values), self.target
        variance = np.einsum("m,ms->s", shares, scales**2 + values**2) - mean**2
        scale = np.sqrt(np.maximum(variance, np.einsum("m,ms->s", shares, scales) ** 2 * 1e-12))
        logits = np.stack([(mean - target.centre) / target.spread, np.log(scale / target.spread)], axis=1)
        return replace(self.undecided(), logits=logits.astype(np.float32))

    @cached_property
    def values(self) -> np.ndarray:
        """(S,) float64: the predicted numbers, in the unit."""
        return self.target.centre + self.target.spread * self.logits[:, 0].astype(np.float64)

    @cached_property
    def predicted(self) -> np.ndarray:
        """(S,) float64: `values`."""
        return self.values

    @cached_property
    def probabilities(self) -> np.ndarray:
        raise AttributeError("a number has no probability or confidence: see `values`, `scales` and `intervals`")

    @cached_property
    def scales(self) -> np.ndarray:
        """(S,) float64: the predicted scale of the error, in the unit; above 0."""
        with np.errstate(over="ignore"):
            return self.target.spread * np.exp(self.logits[:, 1].astype(np.float64))

    @cached_property
    def intervals(self) -> np.ndarray | None:
        """(S, 2) float64: lower and upper end of the prediction intervals, in the unit; None where there are none."""
        if self.reach is None:
            return self.decided
        return np.stack([self.values - self.reach * self.scales, self.values + self.reach * self.scales], axis=1)

    @cached_property
    def amounts(self) -> np.ndarray:
        """(S, 1) or (S, 3) float64: the predictions, and the ends of their intervals, in the unit."""
        return np.column_stack([self.values] if self.intervals is None else [self.values, self.intervals])

    @property
    def answers(self) -> tuple[str, ...]:
        """What an attention map can explain: why the number is lower, or higher, than the mean of training."""
        return SIDES

    @cached_property
    def explained(self) -> np.ndarray:
        """(S,) int64: which of `answers` it explains, unless you name another: the side of the prediction."""
        return (self.logits[:, 0] >= 0).astype(np.int64)

    @cached_property
    def right(self) -> np.ndarray:
        """(S,) bool: whether the true number is in the prediction interval; False where there are no intervals."""
        ends, labels = self.intervals, known_labels(self)
        return np.zeros(len(self), bool) if ends is None else (ends[:, 0] <= labels) & (labels <= ends[:, 1])

    def mistakes(self) -> np.ndarray:
        """(N,) the rows that are not `right`, the largest error first."""
        wrong = np.flatnonzero(~self.right)
        return wrong[np.argsort(-np.abs(self.values - known_labels(self))[wrong], kind="stable")]

    def cells(self) -> dict[str, list[str] | np.ndarray]:
        size, target = len(self), self.target
        labels = [] if self.labels is None else self.labels.tolist()
        ends = np.full((size, 2), np.nan) if self.intervals is None else self.intervals
        columns = [self.values, *ends.T, *self.logits.T, np.full(size, np.nan if self.reach is None else self.reach)]
        numbers = [np.ma.array(column, mask=np.isnan(column)) for column in columns]
        return {
            "path": list(self.paths),
            "label": ["" if np.isnan(label) else repr(label) for label in labels] or [""] * size,
            "group": list(self.groups or [""] * size),
            **dict(zip(("prediction", *ENDS, *RAW, "reach"), numbers, strict=True)),
            TARGET + "name": [self.classes[0]] * size,
            TARGET + "unit": [target.unit] * size,
            TARGET + "centre": np.full(size, target.centre),
            TARGET + "spread": np.full(size, target.spread),
            TARGET + "distribution": [target.distribution] * size,
        }

    @classmethod
    def _fields(cls, table: Table, target: Target | None) -> dict[str, Any]:
        needed = [*RAW, *([TARGET + "centre", TARGET + "spread"] if target is None else [])]
        columns = FIXED_COLUMNS[:4] + OF_NUMBERS
        if missing := [name for name in needed if name not in table.header]:
            expected = f"give a predictions.csv with the columns {', '.join(columns)}"
            raise DataError(f"{table.file}: lacks the column {', '.join(missing)}; {table.found}", expected)
        cells, labels = table.cells("label"), None  # (S,) float64; None where no image has one
        if any(cell.strip() for cell in cells):
            labels = table.floats(["label"])[:, 0]
            if not np.isfinite(labels).all():
                row = int(np.isfinite(labels).argmin())  # the first that is not
                raise table.wrong(row, "label", "a finite number") if cells[row].strip() else table.some_unlabelled(row)
        name, logits = _same(table, TARGET + "name"), table.logits(RAW).astype(np.float32)
        if target is None and table.rows:
            centre, spread = _float(table, TARGET + "centre"), _float(table, TARGET + "spread", TINY)
            if _same(table, TARGET + "distribution") not in ("", "gaussian"):
                raise table.wrong(0, TARGET + "distribution", f"gaussian (vitmed {READER} reads laplace)")
            target = Target(kind="number", unit=_same(table, TARGET + "unit"), centre=centre, spread=spread)
        return {
            "labels": labels,
            "classes": (name or "number",),
            "logits": logits,
            "target": Target(kind="number") if target is None else target,
            "columns": table.further(columns, ()),
            "reach": _float(table, "reach", 0.0) if _same(table, "reach") else None,
        }

    def _as_shown(self, table: Table, as_decided: bool) -> Self:
        return replace(self, decided=self._decided(table))

    def _decided(self, table: Table) -> np.ndarray | None:
        if self.reach is not None or not table.has(ENDS):
            return None
        ends = table.floats(ENDS)
        table.check(ENDS, np.isfinite(ends) & (ends[:, :1] <= ends[:, 1:]), "a finite number, low not above high")
        return ends

    def _notes(self, table: Table) -> list[str]:
        columns = ("prediction", *ENDS)[: self.amounts.shape[1]]
        off = np.abs(table.floats(columns) - self.amounts) > NEAR * self.target.spread
        source = " and ".join(RAW) if self.reach is None else f"{', '.join(RAW)} and reach"
        return table.contradictions(dict(zip(columns, off.T, strict=True)), source)


def _same(table: Table, column: str) -> str:
    """The cell that all rows of a column have; "" without a row. Raises DataError where they differ."""
    cells = table.cells(column)
    for row, cell in enumerate(cells):
        if cell != cells[0]:
            raise table.wrong(row, column, f"'{cells[0]}' as in the first row")
    return cells[0] if cells else ""


def _float(table: Table, column: str, least: float = -np.inf) -> float:
    """The number, not below `least`, that all rows of a column have."""
    _same(table, column)
    value = float(table.floats([column])[0, 0])
    if not (np.isfinite(value) and value >= least):
        raise table.wrong(0, column, "a finite number" + (f" of at least {least:g}" if least > -np.inf else ""))
    return value


def distribution_scores(predictions: NumberPredictions) -> tuple[np.ndarray, np.ndarray]:
    """CRPS, in the unit, and log score of each image, 2 x (S,): lower is better. The log score is -ln of the density of
    the standardised number, as in training; in the unit it is larger by the log of `Target.spread`."""
    labels, scales = known_labels(predictions), predictions.scales
    z = (labels - predictions.values) / scales
    from scipy.special import ndtr  # imported here: predict starts without it

    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    crps = scales * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return crps, 0.5 * z**2 + predictions.logits[:, 1].astype(np.float64) + 0.5 * np.log(2 * np.pi)


Scaled = Callable[[np.ndarray], np.ndarray]
SCALES: dict[str, tuple[Scaled, Scaled]] = {  # on which a number is nearly normal, and back
    **dict.fromkeys(("rmse", "crps", "sd"), (lambda x: x, lambda x: np.maximum(x, 0))),
    **dict.fromkeys(("mae", "width"), (np.log, np.exp)),
    **dict.fromkeys(("bias", "log_score", "trend"), (lambda x: x, lambda x: x)),
    **dict.fromkeys(("ccc", "pearson"), (np.arctanh, np.tanh)),
    "r2": (lambda x: -np.log(1 - x), lambda x: 1 - np.exp(-x)),
}
SKEWED = ("rmse", "crps", "sd", "log_score")  # means of errors, which a few large ones decide


class PreparedNumbers(Prepared):
    """One set of predictions of a number. Without intervals there is no coverage and no width. Two models are
    comparable by log score with one `Target.centre` and `Target.spread` only."""

    metrics: ClassVar[dict[str, Metric]] = NUMBER_METRICS
    tested: ClassVar[tuple[str, ...]] = ("mae", "rmse", "r2", "ccc")
    unbounded: ClassVar[tuple[str, ...]] = tuple(NUMBER_METRICS)

    def __init__(self, predictions: NumberPredictions):
        super().__init__(predictions)
        self.error = predictions.values - self.labels

    @cached_property
    def summands(self) -> np.ndarray:
        """(S, 13), named in `of_sums`. True and predicted numbers count from the first image's: equal ones become 0."""
        p, labels, error, ends = self.predictions, self.labels, self.error, self.predictions.intervals
        y, x = (numbers - numbers[:1].sum() for numbers in (labels, p.values))
        nothing = np.full(len(labels), np.nan)
        width, held = (nothing, nothing) if ends is None else (ends[:, 1] - ends[:, 0], p.right)
        columns = np.ones(len(labels)), y, x, y * y, x * x, y * x, error, error**2, np.abs(error)
        return np.column_stack([*columns, *distribution_scores(p), held, width])

    def of_sums(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        """With the `sd` of the errors, and their `trend`: their slope on the mean of true and predicted."""
        n, y, x, yy, xx, yx, error, squared, size, crps, log_score, held, width = np.moveaxis(sums, -1, 0)
        of_labels, of_values, both = (ratio(a - ratio(b, n), n) for a, b in ((yy, y * y), (xx, x * x), (yx, y * x)))
        bias, mse = ratio(error, n), ratio(squared, n)
        return {
            "mae": ratio(size, n),
            "rmse": np.sqrt(mse),
            "bias": bias,
            "r2": 1 - ratio(mse, of_labels),
            "ccc": ratio(2 * both, of_labels + of_values + bias**2),
            "pearson": np.where(of_labels > 0, ratio(both, np.sqrt(np.maximum(of_labels * of_values, 0))), np.nan),
            "crps": ratio(crps, n),
            "log_score": ratio(log_score, n),
            "coverage": ratio(held, n),
            "width": ratio(width, n),
            "sd": np.sqrt(np.maximum(mse - bias**2, 0)),
            "trend": ratio((of_values - of_labels) / 2, (of_labels > 0) * (of_values + 2 * both + of_labels) / 4),
        }

    def check(self) -> None:
        numbers = np.column_stack([self.labels, self.predictions.values, self.predictions.scales])
        check_finite(numbers, "number that is not finite")

    @cached_property
    def jackknifed(self) -> dict[str, Estimate]:
        """The numbers of `of_sums` that have a scale, with intervals by leaving out each patient in turn."""
        estimates = {}
        with np.errstate(divide="ignore", invalid="ignore"):
            point, without = self.point, self.without(self.units)
            for name, (to, back) in SCALES.items():
                ends = intervals.jackknife_interval(float(to(np.array(point[name]))), to(without[name]), name in SKEWED)
                low, high = back(np.array(ends)).tolist()
                if name == "mae":  # one gross error left out moves its logarithm too far
                    low, high = intervals.log_interval(point[name], intervals.jackknife_spread(without[name]))
                method = "jackknife-hall" if name in SKEWED else "jackknife"
                estimates[name] = estimate(point[name], low, high, method)
        return estimates

    @cached_property
    def overall(self) -> dict[str, Estimate]:
        estimates = dict(self.jackknifed)
        if self.predictions.intervals is not None:
            estimates["coverage"] = of_share(intervals.share(self.predictions.right, None, self.units))
        else:
            del estimates["width"]
        return {name: estimates[name] for name in NUMBER_METRICS if name in estimates}

    def details(self) -> dict[str, Any]:
        """The sample behind the mean absolute error."""
        units, error = self.units, np.abs(self.error)
        n, icc, effect = len(error), np.nan, np.nan
        if units.clustered and units.count > 1 and error.std() > 0:
            icc = intervals.correlation(*units.moments(error))
            effect = intervals.spread((error - error.mean()) / n, units).variance / (float(error.var(ddof=1)) / n)
        effective = n / float(np.fmax(1.0, effect)) if n else np.nan
        behind = intervals.Share(np.nan, *intervals.NONE, "", n, units.count, icc, effect, effective)
        return {"sample": Sample.of(units, self.patients, behind, [])}

    def why(self, name: str, entry: Estimate, numbers: Numbers) -> str:
        if entry.value is None:
            return "all true numbers, or all predicted ones, are the same" if numbers.n else "there are no images"
        alone = self.units.count < 2
        return f"it needs at least 2 {self.unit}s" if alone else f"all {self.unit}s agree, so the variance is unknown"

    def notes(self, numbers: Numbers) -> list[str]:
        notes = self.few_notes(numbers, {})
        if 1 < self.units.count < FEW_IMAGES:
            notes.append(
                f"With fewer than {FEW_IMAGES} {self.unit}s, the intervals of MAE, RMSE, CRPS, log score and the "
                "limits of agreement are too narrow if errors have heavy tails: in simulations they held the truth in "
                f"82 to 98 of 100 tests with 20 {self.unit}s, in 75 to 93 with 5 to 8."
            )
        return notes


class BlandAltman(Frozen):
    """The errors, predicted minus true number.

    Attributes:
        lower, upper: the limits of agreement, between which 95 % of errors lie if they are normal.
        within: the share of images whose error does.
        trend: by how much the error grows with each unit of the mean of true and predicted number.
        repeated: whether patients have several images, whose errors may be alike.
    """

    bias: Estimate
    lower: Estimate
    upper: Estimate
    within: Estimate
    trend: Estimate
    repeated: bool

    @property
    def drifts(self) -> bool:
        """Whether the interval of the trend excludes 0, so constant limits do not hold (Bland & Altman 1999)."""
        return self.trend.low is not None and self.trend.high is not None and self.trend.low * self.trend.high > 0


def bland_altman(predictions: NumberPredictions) -> BlandAltman | None:
    """Bias and limits of agreement; None with fewer than two patients or images. Raises DataError without labels."""
    error, units = predictions.values - known_labels(predictions), Units(predictions.units)
    if units.count < 2:
        return None
    estimates, sd, wide = PreparedNumbers(predictions).jackknifed, total_sd(error, units), intervals.quantile()
    bias, of_sd, limits = estimates["bias"], estimates["sd"], []
    value, low, high = np.array([bias.value, bias.low, bias.high], dtype=float)  # NaN for None
    # the interval of `sd` is in proportion to that of the images
    ends = np.array([of_sd.low, of_sd.high], dtype=float) / (of_sd.value or np.nan) * sd
    for times in (-wide, wide):
        down, up = np.sort(times * (ends - sd))
        limit = value + times * sd
        limits.append(estimate(limit, limit - np.hypot(value - low, down), limit + np.hypot(high - value, up), "mover"))
    (lower, upper), trend = limits, estimates["trend"]
    within = of_share(intervals.share(np.abs(error - value) <= wide * sd, None, units))
    return BlandAltman(bias=bias, lower=lower, upper=upper, within=within, trend=trend, repeated=units.clustered)


def total_sd(error: np.ndarray, units: Units) -> float:
    """The standard deviation of the error (S,) of one image of a new patient: between and within patients. Components
    of variance by analysis of variance, with unequal numbers of images (Bland & Altman 2007, section 3), at least 0."""
    sizes = units.sums(np.ones(len(error)))
    n, g, means = len(error), units.count, units.sums(error) / sizes
    within = float(((error - means[units.index]) ** 2).sum()) / max(1, n - g)
    between = float((sizes * (means - error.mean()) ** 2).sum()) / (g - 1)
    usual = float(n - (sizes**2).sum() / n) / (g - 1)
    return (within + max(0.0, between - within) / usual) ** 0.5
