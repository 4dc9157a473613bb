"""The balanced losses: by hand, and against a posterior that is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vitmed.core.load_config import load_config
from vitmed.data.loading import Images
from vitmed.data.samples import Sample
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.hardware import pick_precision
from vitmed.training.losses import Objective, objective_of, start_balanced

COUNTS = np.array([[60, 2, 1], [30, 4, 0], [10, 5, 3]])  # images of each shade (row) and class: 100, 11 and 4


class Shades(torch.nn.Module):
    """A network that can give every shade, black, grey and white, any logits (K,); `head` as in a ViT."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shade = x.mean(dim=(1, 2, 3)).round().long() + 1  # from -1, 0, 1
        return self.head(torch.nn.functional.one_hot(shade, 3).float())


def shades(every: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Grey images (N, 16, 16, 3) uint8 and labels (N,), of each shade and class as many as `every` (3, 3)."""
    shade, label = (np.repeat(axis.ravel(), every.ravel()) for axis in np.indices(every.shape))
    grey = np.array([0, 128, 255], np.uint8)[shade]
    return torch.from_numpy(np.broadcast_to(grey[:, None, None, None], (len(grey), 16, 16, 3)).copy()), torch.tensor(
        label
    )


def objective_of_shades(balance: str, smoothing: float = 0.0) -> Objective:
    """What training on `COUNTS` minimises."""
    asked = load_config(None, {"train.balance": balance, "train.smoothing": smoothing})
    samples = [Sample("", int(label), None) for label in shades(COUNTS)[1]]
    data, cpu = Images(Path(), samples, Preprocessing(16, 3, "pad", "half")), torch.device("cpu")
    return objective_of(data, 3, asked, pick_precision("fp32", cpu), cpu)


def loss_of_shades(
    model: torch.nn.Module, balance: str, every: np.ndarray = COUNTS, smoothing: float = 0.0
) -> Callable[[], torch.Tensor]:
    """The loss of a batch with these images, in training on `COUNTS`."""
    objective = objective_of_shades(balance, smoothing)
    prepared = objective.prepare(*shades(every))
    return lambda: objective.part(model, prepared)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("balance", ["none", "adjust", "loss", "sampler"])
def test_probabilities_are_those_of_training_however_the_classes_are_balanced(balance: str, smoothing: float) -> None:
    """The posterior is known: of 63 black images, 60 are of class 0. A sampler gives equal classes. Label smoothing
    e makes (1 - e) p + e / K of p."""
    equal = COUNTS * (2200 // COUNTS.sum(axis=0)) if balance == "sampler" else COUNTS
    torch.manual_seed(0)
    model = Shades()
    loss = loss_of_shades(model, balance, equal, smoothing)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def step() -> torch.Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser.step(step)
    found = model(torch.tensor([-1.0, 0.0, 1.0])[:, None, None, None].expand(3, 3, 16, 16)).softmax(dim=1)
    truth = (1 - smoothing) * COUNTS / COUNTS.sum(axis=1, keepdims=True) + smoothing / 3
    np.testing.assert_allclose(found.detach().numpy(), truth, atol=2e-3)


@pytest.mark.parametrize("balance", ["loss", "sampler"])
def test_a_balanced_loss_is_that_of_shifted_logits(balance: str) -> None:
    """Menon et al. 2021, equation 11: the shift is the log of 1 / frequency, here log(115 / (3 x 100)) and so on."""
    torch.manual_seed(0)
    model = Shades()
    found = loss_of_shades(model, balance)()
    found.backward()
    gradient = model.head.weight.grad.clone()
    model.zero_grad()
    batch, labels = shades(COUNTS)
    weights = torch.tensor([115 / 300, 115 / 33, 115 / 12])
    logits = model(batch.permute(0, 3, 1, 2) / 127.5 - 1)
    own = -(logits + weights.log()).log_softmax(dim=1)[torch.arange(115), labels]
    each = weights[labels] if balance == "loss" else torch.ones(115)
    by_hand = (own * each).sum() / each.sum()
    by_hand.backward()
    assert found.item() == pytest.approx(by_hand.item(), rel=1e-5)
    torch.testing.assert_close(gradient, model.head.weight.grad)


@pytest.mark.parametrize("balance", ["none", "adjust", "loss"])
def test_the_mean_over_the_batches_of_an_epoch_is_the_loss_of_all_images(balance: str) -> None:
    """However the classes fall into batches: here 5 of 23 images, some of one class. Divided by the weights of its own
    images, as PyTorch does, a batch with a rare image would give this image less than the others."""
    torch.manual_seed(0)
    model, (batch, labels) = Shades(), shades(COUNTS)
    order = labels.argsort(stable=True)
    whole, objective = loss_of_shades(model, balance)(), objective_of_shades(balance)
    parts = [objective.prepare(batch[rows], labels[rows]) for rows in order.chunk(5)]
    assert [len(part.targets) for part in parts] == [23] * 5
    mean = torch.stack([objective.part(model, part) for part in parts]).mean()
    assert mean.item() == pytest.approx(whole.item(), rel=1e-6)


def test_logit_adjustment_is_cross_entropy_on_logits_with_the_log_frequencies_added() -> None:
    """Menon et al. 2021, equation 10 with tau 1: the same loss and the same gradient."""
    torch.manual_seed(0)
    model = Shades()
    torch.nn.init.zeros_(model.head.bias)
    batch, truth = shades(COUNTS)
    adjusted = model(batch.permute(0, 3, 1, 2) / 127.5 - 1) + torch.tensor(np.log(COUNTS.sum(axis=0) / 115))
    by_hand = torch.nn.functional.cross_entropy(adjusted.float(), truth)
    by_hand.backward()
    gradient = model.head.weight.grad.clone()
    model.zero_grad()
    start_balanced(model, truth, load_config(None, {"train.balance": "adjust"}))
    found = loss_of_shades(model, "adjust")()
    found.backward()
    assert found.item() == pytest.approx(by_hand.item(), rel=1e-5)
    torch.testing.assert_close(gradient, model.head.weight.grad)


def test_a_balanced_start_is_even() -> None:
    model = Shades()
    torch.nn.init.zeros_(model.head.weight)
    start_balanced(model, shades(COUNTS)[1], load_config(None, {"train.balance": "adjust"}))
    for balance in ("loss", "sampler"):
        assert loss_of_shades(model, balance)().item() == pytest.approx(math.log(3))
    assert model.head.bias.softmax(dim=0).tolist() == pytest.approx([100 / 115, 11 / 115, 4 / 115])
