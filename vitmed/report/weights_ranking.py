"""The ranking of several weights by their frozen features: what ranking.json holds, as lines of text, and in words."""

from __future__ import annotations

from vitmed.core.base_models import Frozen
from vitmed.core.targets import Kind
from vitmed.core.text import counted
from vitmed.decisions.targets import ALL_METRICS, TARGETS
from vitmed.metrics.estimates import Estimate, value_text
from vitmed.metrics.paired_comparison import ComparedPair

NAME, NUMBER = 28, 24  # characters of a column


class RankedWeights(Frozen):
    """Weights, or the baseline of colours and size, and what their features are worth.

    Attributes:
        rank: 1 is best; None of the baseline, and of weights that learned from the labels of these images.
        logistic: number -> value on held-out images of a linear model: logistic regression, or ridge regression of a
            number. neighbours: that of nearest neighbours; None of colours.
        minus_best: number -> difference from the best weights, paired; None of the best.
        p_holm: of no difference from the best, adjusted for all pairs; None of the best, or undefined.
        like_best: whether the data cannot show a difference from the best.
        image_size: px. features: how many numbers of an image. licence: of the weights, if known.
        seconds: per image; memory: bytes, for the network and a batch; None if unknown.
        cached: whether all features are from an earlier run, with its `seconds` and `memory`.
        seen: how many of these images the weights learned from; labels: whether with their labels.
        same_as: an earlier name in the list with the same features.
    """

    name: str
    rank: int | None
    logistic: dict[str, Estimate]
    neighbours: dict[str, Estimate] | None
    minus_best: dict[str, Estimate] | None
    p_holm: float | None
    like_best: bool
    image_size: int
    features: int
    licence: str | None
    seconds: float
    memory: float | None
    cached: bool
    seen: int
    labels: bool
    same_as: str | None


class WeightsRanking(Frozen):
    """The content of ranking.json: best first; `left_out` is name -> why these weights could not be used."""

    kind: Kind = "classes"  # of labels
    images: int
    patients: int | None
    held_out: str
    classes: list[str]
    positive_class: str | None
    device: str
    best: str
    ranking: list[RankedWeights]
    left_out: dict[str, str]
    pairs: list[ComparedPair]
    notes: list[str]
    verdict: str

    @property
    def number(self) -> str:
        """The number that ranks."""
        return TARGETS[self.kind].headline[0]


def ranking_lines(found: WeightsRanking) -> list[str]:
    """The ranking as a table."""
    number = found.number
    title = f"{TARGETS[found.kind].metrics[number].phrase} (95 % interval)"
    wide = max(NUMBER, len(title) + 2)
    head = f"{'':3}{'weights':{NAME}}{title:{wide}}{'minus the best':{NUMBER + 2}}"
    lines = [f"{head}{'neighbours':>11}{'ms/image':>10}{'MB':>7}"]
    for one in found.ranking:
        gap = "best"
        if one.minus_best is not None:
            gap = f"{_signed(one.minus_best[number])}{' =' if one.like_best else ''}"
        near = "" if one.neighbours is None else f"{one.neighbours[number].value:.3f}"
        memory = "?" if one.memory is None else f"{one.memory / 1e6:,.0f}"
        name = one.name if len(one.name) < NAME else f"{one.name[: NAME - 3]}… "
        first = f"{one.rank or '-':<3}{name:{NAME}}{value_text(one.logistic[number]):{wide}}{gap:{NUMBER + 2}}"
        lines.append(f"{first}{near:>11}{1000 * one.seconds:>10,.1f}{memory:>7}")
    lines.append("= cannot be told apart from the best")
    return lines


def _signed(gap: Estimate) -> str:
    """`-0.012 (-0.030 to +0.006)`"""
    if gap.value is None:
        return "undefined"
    return f"{gap.value:+.3f}" + ("" if gap.low is None else f" ({gap.low:+.3f} to {gap.high:+.3f})")


def ranking_verdict(ranking: list[RankedWeights], pairs: int, kind: Kind = "classes") -> str:
    """Which weights to take, and what the data cannot decide, in sentences."""
    best = next(one for one in ranking if one.rank == 1)
    others = [one for one in ranking if one.rank is not None and one is not best]
    alike = [one for one in others if one.like_best]
    adjusted = f" (p adjusted for {counted(pairs, 'pair')}, Holm)" if pairs > 1 else ""
    text = f"best: {best.name}"
    if alike:
        text += f"; cannot be told apart from it: {', '.join(one.name for one in alike)}{adjusted}"
        quick = min((best, *alike), key=lambda one: one.seconds)
        if quick is not best and quick.seconds < 0.8 * best.seconds:
            text += f"; of these, {quick.name} is the fastest"
    elif others:
        text += f", shown to be better than the others{adjusted}"
    colours = next((one for one in ranking if one.neighbours is None), None)
    if colours is not None and colours.minus_best is not None:
        number = TARGETS[kind].headline[0]
        gap = colours.minus_best[number].value or 0.0
        if colours.like_best:
            text += "; the best is not shown to be better than colours and size alone"
        elif (gap > 0) == ALL_METRICS[number].higher_is_better:
            text += "; colours and size alone are better: look for a shortcut (vitmed check)"
    return text
