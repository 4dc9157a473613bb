"""Losses of findings and numbers, against formulas of others and distributions of PyTorch."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from vitmed.core.base_models import UNKNOWN, Target
from vitmed.core.config import Config
from vitmed.core.load_config import with_values
from vitmed.data.loading import Images
from vitmed.data.samples import Sample
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.hardware import pick_precision
from vitmed.training.losses import BinaryCrossEntropy, objective_of, start_findings

CPU = torch.device("cpu")
FP32 = pick_precision("fp32", CPU)
HOW = Preprocessing.of(Config())


class Fixed(torch.nn.Module):
    """A network whose outputs are a parameter, whatever the images."""

    def __init__(self, outputs: torch.Tensor):
        super().__init__()
        self.outputs = torch.nn.Parameter(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outputs[: len(x)]


def images_of(targets: list[tuple[float, ...]], target: Target) -> Images:
    samples = [Sample(f"{i}.png", 0, None, (), one) for i, one in enumerate(targets)]
    return Images(Path(), samples, HOW, target)


def lost(outputs: torch.Tensor, images: Images, config: Config, parts: int = 1) -> float:
    size = len(images)
    batch = torch.zeros(size, 4, 4, 3, dtype=torch.uint8)
    objective = objective_of(images, outputs.shape[1], config, FP32, torch.device("cpu"))
    prepared = objective.prepare(batch, images.targets)
    cuts = np.linspace(0, size, parts + 1).astype(int)
    if parts > 1:  # the whole batch in parts, as where memory is short: the network then sees only its rows
        both = itertools.pairwise(cuts.tolist())
        return sum(float(objective.part(Fixed(outputs[a:b]), prepared, slice(a, b))) for a, b in both)
    return float(objective.part(Fixed(outputs), prepared).detach())


LABELS = [(1.0, 0.0, UNKNOWN), (0.0, 1.0, 1.0), (1.0, UNKNOWN, 0.0), (UNKNOWN, UNKNOWN, UNKNOWN)]
LOGITS = torch.tensor([[0.3, -1.2, 4.0], [2.0, 0.1, -0.7], [-0.5, 3.0, 1.1], [9.0, -9.0, 9.0]])
FINDINGS = images_of(LABELS, Target(kind="findings"))


def test_binary_loss_is_the_mean_log_loss_of_the_known_labels() -> None:
    y = np.array(LABELS)
    known = y != UNKNOWN
    expected = log_loss(y[known], torch.sigmoid(LOGITS).numpy()[known], labels=[0, 1])
    assert lost(LOGITS, FINDINGS, Config()) == pytest.approx(expected, rel=1e-6)
    assert lost(LOGITS, FINDINGS, Config(), parts=2) == pytest.approx(expected, rel=1e-6)


def test_batches_of_findings_add_up_however_many_labels_each_knows() -> None:
    """The mean over two batches, of 5 and of 2 known labels, is that of all; a mean of means would not be."""
    batch = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    objective = objective_of(FINDINGS, 3, Config(), FP32, torch.device("cpu"))
    rows = slice(0, 2), slice(2, 4)
    parts = [objective.part(Fixed(LOGITS[r]), objective.prepare(batch, FINDINGS.targets[r])) for r in rows]
    assert float(sum(parts)) / 2 == pytest.approx(lost(LOGITS, FINDINGS, Config()), rel=1e-6)


def test_an_unknown_label_gives_no_gradient() -> None:
    network = Fixed(LOGITS.clone())
    batch = torch.zeros(4, 4, 4, 3, dtype=torch.uint8)
    objective = objective_of(FINDINGS, 3, Config(), FP32, torch.device("cpu"))
    objective.part(network, objective.prepare(batch, FINDINGS.targets)).backward()
    gradient = network.outputs.grad
    assert gradient is not None
    assert ((gradient == 0) == (FINDINGS.targets == UNKNOWN)).all()


def test_weighted_positives_leave_the_logits_at_the_prevalence() -> None:
    labels = [(1.0,)] * 10 + [(0.0,)] * 90
    images, config = images_of(labels, Target(kind="findings")), with_values(Config(), {"train.balance": "loss"})
    weights = BinaryCrossEntropy.of(images, 1, config, CPU).weights
    assert weights is not None and weights.tolist() == [9.0]
    network = Fixed(torch.zeros(1, 1).expand(100, 1).clone())
    free = torch.zeros(1, requires_grad=True)
    batch = torch.zeros(100, 4, 4, 3, dtype=torch.uint8)
    optimiser = torch.optim.LBFGS([free], max_iter=100, tolerance_grad=1e-10)
    network.forward = lambda x: free.expand(100, 1)  # type: ignore[method-assign]
    objective = objective_of(images, 1, config, FP32, torch.device("cpu"))
    prepared = objective.prepare(batch, images.targets)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = objective.part(network, prepared)
        loss.backward()
        return loss

    optimiser.step(closure)
    assert float(torch.sigmoid(free)) == pytest.approx(0.1, abs=1e-4)


def test_the_head_starts_at_the_odds_of_each_finding() -> None:
    class Network:
        head = torch.nn.Linear(2, 2)

    targets = torch.tensor([[1.0, UNKNOWN]] * 1 + [[0.0, 1.0]] * 9)
    start_findings(Network(), targets, Config())  # type: ignore[arg-type]
    assert Network.head.bias.tolist() == pytest.approx([np.log(1.5 / 9.5), np.log(9.5 / 0.5)])


AGES = Target(kind="number", unit="years", centre=50.0, spread=10.0)
NUMBERS = images_of([(40.0,), (50.0,), (72.0,)], AGES)
OUTPUTS = torch.tensor([[-0.5, 0.2], [0.3, -1.0], [2.0, 0.5]])


def test_targets_of_numbers_are_standardised() -> None:
    assert NUMBERS.targets.tolist() == pytest.approx([-1.0, 0.0, 2.2])


def test_gaussian_loss_is_the_log_density_weighted_by_the_scale() -> None:
    scale = OUTPUTS[:, 1].exp()
    density = torch.distributions.Normal(OUTPUTS[:, 0], scale)
    expected = float(((-density.log_prob(NUMBERS.targets) - 0.5 * np.log(2 * np.pi)) * scale).mean())
    assert lost(OUTPUTS, NUMBERS, Config()) == pytest.approx(expected, rel=1e-5)
