"""What maps are worth: scores by hand, chance that gives nothing, verdicts, and what cannot be asked."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats
from small_networks import small_vit

from vitmed.core.base_models import Kind
from vitmed.explanation import faithfulness
from vitmed.explanation.attention import trace
from vitmed.explanation.faithfulness import (
    BETTER,
    RANDOM,
    UNLEARNED,
    UNSHOWN,
    WEAK,
    affordable,
    check_maps,
    curves,
    mean_estimate,
    rank_correlation,
    sample,
    verdict,
)
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.estimates import Estimate
from vitmed.models.vit import ViT

HOW = Preprocessing(32, 3, "pad", "half")


def images(count: int, side: int = 32) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def vit(classes: int = 3, **kind: object) -> ViT:
    torch.manual_seed(0)
    return small_vit(classes, 32, 8, width=24, depth=2, heads=2, **kind).eval()  # type: ignore[arg-type]


def test_steps_of_deletion_and_insertion() -> None:
    deletion, insertion = curves(np.array([2, 0, 3, 1]))
    assert deletion.astype(int).tolist() == [[1, 1, 1, 1], [1, 1, 0, 1], [0, 1, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert insertion.astype(int).tolist() == [[0, 0, 0, 0], [0, 0, 1, 0], [1, 0, 1, 0], [1, 0, 1, 1], [1, 1, 1, 1]]
    deletion, _ = curves(np.arange(196))
    assert deletion.sum(axis=1).tolist() == [196 - round(24.5 * i) for i in range(9)]


def test_over_all_orders_insertion_and_deletion_are_the_same() -> None:
    """So the gain of an order that knows nothing is 0, whatever the network: here any function of the patches."""
    worth = dict(zip(map(tuple, np.ndindex(2, 2, 2, 2)), np.random.default_rng(0).random(16), strict=True))
    gains = []
    for order in permutations(range(4)):
        areas = [np.trapezoid([worth[tuple(map(int, row))] for row in part]) for part in curves(np.array(order))]
        gains.append(areas[1] - areas[0])
    assert np.mean(gains) == pytest.approx(0, abs=1e-12) and np.std(gains) > 0.1


def test_the_scores_follow_the_probability_of_the_class() -> None:
    """A network that looks at the mean of patch 5 alone, whose map is right, and one whose map is the opposite."""

    class Patch(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            score = 4 * x[:, :, 8:16, 8:16].mean(dim=(1, 2, 3))
            return torch.stack([-score, score], dim=1)

    x = torch.full((1, 3, 32, 32), -0.5)
    x[:, :, 8:16, 8:16] = 1.0
    right = np.zeros((1, 16))
    right[0, 5] = 1
    found = faithfulness._areas(Patch(), x, np.array([1]), {"right": right, "wrong": -right})  # type: ignore[arg-type]
    high, low = (1 / (1 + np.exp(-8 * value)) for value in (1.0, float(x.mean())))
    first = (0.5 * high + 7.5 * low) / 8  # of eight steps, the class goes with the first
    assert found["right"][0] == pytest.approx([first, (0.5 * low + 7.5 * high) / 8], abs=1e-6)
    assert found["wrong"][0] == pytest.approx([(7.5 * high + 0.5 * low) / 8, (7.5 * low + 0.5 * high) / 8], abs=1e-6)
    assert (found["whole"][0], found["blank"][0]) == pytest.approx((high, low), abs=1e-6)


@pytest.mark.parametrize("kind", ["findings", "number"])
def test_the_scores_of_findings_and_of_a_side_of_a_number(kind: Kind) -> None:
    """The sigmoid of the logit of one finding; of a number, the logistic of twice its distance from the mean."""

    class Patch(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            score = x[:, :, 8:16, 8:16].mean(dim=(1, 2, 3))
            return torch.stack([score, 7 + 0 * score], dim=1)  # the other finding, or the log of the scale

    x = torch.full((1, 3, 32, 32), -0.5)
    x[:, :, 8:16, 8:16] = 1.0
    lit = {"right": np.eye(16)[[5]]}
    for target, sign in ((0, 1), (1, 1)) if kind == "findings" else ((0, -2), (1, 2)):
        found = faithfulness._areas(Patch(), x, np.array([target]), lit, kind)  # type: ignore[arg-type]
        score = 7 if (kind, target) == ("findings", 1) else sign * 1.0
        assert found["whole"][0] == pytest.approx(1 / (1 + np.exp(-score)), abs=1e-6)


def test_what_raises_a_number_and_what_lowers_it() -> None:
    """A map of one side marks what the logit of that side rises with, so the two sides have opposite gradients."""
    model, x = vit(2, pool="mean"), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    low, high = (trace(model, x, torch.tensor([side, side]), "number") for side in (0, 1))
    torch.testing.assert_close(low.token_gradient, -high.token_gradient)
    torch.testing.assert_close(high.logits[:, 1], model(x)[:, 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(low.logits[:, 0], -high.logits[:, 1])


def test_the_interval_is_students() -> None:
    values = np.random.default_rng(0).normal(0.3, 0.2, 12)
    entry, theirs = mean_estimate(values, np.arange(12)), stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (entry["value"], entry["low"], entry["high"]) == pytest.approx((values.mean(), theirs.low, theirs.high))
    assert mean_estimate(values, np.zeros(12))["low"] is None
    apart = mean_estimate(np.array([1.0, 3.0, 10.0]), np.array([7, 7, 2]))  # a patient counts once
    assert apart == mean_estimate(np.array([10.0, 2.0]), np.arange(2)) and apart["value"] == 6


def test_rank_correlation() -> None:
    rising = np.arange(6.0)[None]
    assert rank_correlation(rising, rising**3) == pytest.approx([1])
    assert rank_correlation(rising, -rising) == pytest.approx([-1])
    assert rank_correlation(rising, np.ones((1, 6))) == [0]


def entry(value: float, half: float) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half)


@pytest.mark.parametrize(
    ("gain", "similarity", "expected"),
    [
        (entry(0.3, 0.1), entry(0.1, 0.1), BETTER),
        (entry(0.3, 0.1), entry(0.9, 0.1), UNLEARNED),
        (entry(0.0, 0.02), entry(0.1, 0.1), RANDOM),
        (entry(0.08, 0.01), entry(0.1, 0.1), WEAK),  # surely better than chance, and of no use
        (entry(-0.3, 0.1), entry(0.1, 0.1), RANDOM),
        (entry(0.2, 0.3), entry(0.1, 0.1), UNSHOWN),  # too few images
    ],
)
def test_verdicts(gain: Estimate, similarity: Estimate, expected: str) -> None:
    found, text = verdict(gain, similarity)
    assert found == expected
    assert ("do not read anything into it" in text.lower()) == (expected != BETTER)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_an_untrained_network_explains_nothing(pool: str) -> None:
    model = vit(pool=pool)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = check_maps(model, HOW, images(12), np.zeros(12, int))
    assert {part["verdict"] for part in found["methods"].values()} <= {RANDOM, WEAK}
    assert found["stages"] == ["everything"]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert found == check_maps(model, HOW, images(12), np.zeros(12, int))


def test_what_cannot_be_asked_says_why() -> None:
    assert "too few" in check_maps(vit(), HOW, images(1), np.zeros(1, int))["reason"]
    assert "too few" in check_maps(vit(), HOW, images(0), np.zeros(0, int))["reason"]
    assert "one class" in check_maps(vit(classes=1), HOW, images(6), np.zeros(6, int))["reason"]
    assert check_maps(vit(classes=1), HOW, images(6), np.zeros(6, int), kind="findings")["reason"] is None
    one = small_vit(2, 8, 8, width=8, depth=1, heads=1).eval()
    assert "one patch" in check_maps(one, Preprocessing(8, 3, "pad", "half"), images(6, 8), np.zeros(6, int))["reason"]


def test_patients_and_classes_are_drawn_in_turn() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    groups = [f"P{i % 20}" for i in range(100)]
    rows, units, told = sample(labels, groups, 20)
    assert len(set(units)) == 20 and told == "of 20 patients; intervals by patient"
    assert labels[rows].sum() > 2  # by chance it would be 2
    assert sorted(sample(labels, groups, 200)[0]) == list(range(100))
    rows, units, told = sample(labels, ["A", "B"] * 50, 8)
    assert len(set(units)) == 8 and "too narrow" in told
    assert np.bincount(np.array(["A", "B"] * 50) == "A", minlength=2).tolist() == [50, 50]
    rows, units, told = sample(labels, None, 6)
    assert labels[rows].sum() == 3 and "unknown" in told
    assert len(set(sample(labels, ["", *groups[1:]], 100)[1])) == 21  # without a name: a patient of its own


def test_how_many_images_can_be_afforded_depends_on_the_network_alone() -> None:
    tiny, small = (small_vit(2, 224, 16, width=w, depth=12, heads=3).eval() for w in (192, 384))
    assert affordable(tiny) == affordable(tiny) >= 5 > affordable(small)
    assert affordable(vit()) == faithfulness.MOST
