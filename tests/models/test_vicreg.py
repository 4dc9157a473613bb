"""VICReg: its loss against the paper's formulas written out with NumPy, and what learns from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vitmed.models.vicreg import VICReg, vicreg_loss
from vitmed.models.vit import ViT


def reference(first: np.ndarray, second: np.ndarray) -> float:
    """Equations 1 to 6 of arXiv 2105.04906, with weights 25, 25 and 1; of the variance the mean of both views."""
    d = first.shape[1]
    invariance = ((first - second) ** 2).mean()
    variance, covariance = [], 0.0
    for z in (first, second):
        variance.append(np.maximum(0, 1 - np.sqrt(z.var(axis=0, ddof=1) + 1e-4)).mean())
        c = np.cov(z, rowvar=False)
        covariance += (c[~np.eye(d, dtype=bool)] ** 2).sum() / d
    return float(25 * invariance + 25 * np.mean(variance) + covariance)


def test_the_loss_is_that_of_the_paper() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(0, 0.7, (9, 5)), rng.normal(0.2, 1.5, (9, 5))
    found = vicreg_loss(torch.from_numpy(first), torch.from_numpy(second))
    assert float(found) == pytest.approx(reference(first, second), rel=1e-12)


def test_a_constant_is_no_good_answer_and_one_image_does_no_harm() -> None:
    same: Tensor = torch.ones(8, 4)
    assert float(vicreg_loss(same, same)) == pytest.approx(25 * 0.99)  # alike, but without variance: 1 - sqrt(1e-4)
    spread = torch.eye(8) * 8**0.5 - 8**-0.5
    assert float(vicreg_loss(spread, spread)) < 2
    one = torch.randn(1, 4, requires_grad=True)
    vicreg_loss(one, one * 2).backward()
    assert one.grad is not None and one.grad.isfinite().all()


@pytest.mark.parametrize(("stem", "pool"), [("residual", "mean"), ("conv", "cls"), ("patch", "mean")])
def test_all_but_the_head_learns(stem: str, pool: str) -> None:
    encoder = ViT(2, image_size=16, patch_size=8, width=16, depth=1, heads=2, stem=stem, pool=pool)
    model = VICReg(encoder)
    model(torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16)).backward()
    still = {name for name, value in model.named_parameters() if value.grad is None}
    assert still == {"encoder.head.weight", "encoder.head.bias"}
