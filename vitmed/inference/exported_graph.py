"""`ExportedGraph`: a checkpoint as one graph, from the pixels of an image to the decision of its policy.

The decisions are those of `DecisionPolicy.apply`, which computes them in numpy; `vitmed export` compares the two.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import PIL
import torch
from torch import Tensor, nn

from vitmed.core.base_models import Target
from vitmed.core.errors import UsageError
from vitmed.decisions.out_of_distribution import OodScore
from vitmed.decisions.policy import ClassPolicy, DecisionPolicy, FindingPolicy, NumberPolicy
from vitmed.imaging.preprocessing import JointPreprocessing, Preprocessing
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.ensemble import Ensemble
from vitmed.inference.predict import mean_over_views
from vitmed.inference.saved_model import SavedModel
from vitmed.models.vit import ViT

_numbers = partial(torch.tensor, dtype=torch.float64)
LEAST = 1e-12  # distance of a threshold from 0 and 1, as in `certainty`
ONE = 1 << 22  # of the fixed-point coefficients of a resize
HEIGHT_FIRST = int(PIL.__version__.split(".")[0]) >= 13  # Pillow resizes the height of tall images first
EDGE = 1 + 5e-6  # OOD scores up to here are 1 in the six digits of `score_column`


class ExportedGraph(nn.Module):
    """Images (B, H, W, C) uint8 -> the tensors named by `outputs`, in this order.

    Of every kind: "logits" (B, K) float32, the raw output; "ood_score" (B,) float32, above 1 unlike the images of
    training; "answered" (B,) bool, whether the model answers. Of classes and grades: "probabilities" (B, K) float32,
    calibrated; "prediction" (B,) int64; "in_set" (B, K) bool. Of findings: "probabilities", "prediction" and "in_set"
    (B, F), the last two bool. Of a number, in its unit: "value" (B,) float32; "interval" (B, 2) float32. What the
    policy does not have is left out.

    Args:
        saved: a checkpoint, or an ensemble of them.
        resize: whether images may be of any size; else H and W are S.

    Raises:
        CheckpointError: it holds no decision policy. UsageError: an ensemble whose members read images differently.
    """

    def __init__(self, saved: SavedModel, resize: bool = True):
        super().__init__()
        policy = saved.chosen_policy()
        if isinstance(saved.preprocessing, JointPreprocessing):
            problem = f"{saved.path}: its members have windows or sizes of their own, which one file cannot hold"
            raise UsageError(problem, "train them with one --window and one --image-size, or serve the folder itself")
        self.how, self.resize = saved.preprocessing, resize
        self.square = PillowResize(self.how) if resize else nn.Identity()
        self.network = _EnsembleMean(saved) if isinstance(saved, Ensemble) else _Network(saved)
        self.decide = decisions_of(policy, saved.splits.target, saved.classes)
        decided: tuple[str, ...] = self.decide.outputs  # type: ignore[assignment]
        self.scored = self.network.scored
        self.outputs = ("logits", *decided, *(("ood_score",) if self.scored else ()), "answered")

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        logits, scores = self.network(self.square(images))  # (B, K), (B,)
        *decided, answered = self.decide(logits.double())
        if not self.scored:
            return logits, *decided, answered
        return logits, *decided, scores, answered & (scores <= EDGE)


class _Network(nn.Module):
    """The squares (B, S, S, C) uint8 of a checkpoint -> logits (B, K) float32, OOD scores (B,) float32."""

    def __init__(self, saved: SavedModel):
        super().__init__()
        assert isinstance(saved, Checkpoint)
        self.how, self.views = saved.preprocessing, saved.config.augment.views
        self.vit: ViT = saved.model()
        ood = None if saved.policy is None else saved.policy.ood_score
        self.ood, self.scored = None if ood is None else OodScoreGraph(ood), ood is not None

    def forward(self, squares: Tensor) -> tuple[Tensor, Tensor]:
        features = mean_over_views(self.vit, self.how.normalise(squares), self.views)  # (B, D)
        return self.vit.head(features), features[:, 0] if self.ood is None else self.ood(features)


class _EnsembleMean(nn.Module):
    """As `_Network`, of an ensemble; the mean is that of `metrics.ensembles.averaged`."""

    def __init__(self, saved: Ensemble):
        super().__init__()
        self.networks = nn.ModuleList([_Network(member) for member in saved.members])
        self.decide = nn.ModuleList(
            decisions_of(member.chosen_policy(), member.splits.target, member.classes) for member in saved.members
        )
        self.shares, self.target = saved.shares, saved.splits.target
        self.targets = [member.splits.target for member in saved.members]
        self.orders = [[member.classes.index(name) for name in saved.classes] for member in saved.members]
        self.scored = all(network.scored for network in self.networks)

    def forward(self, squares: Tensor) -> tuple[Tensor, Tensor]:
        answers = [network(squares) for network in self.networks]
        scores = sum(share * pair[1] for share, pair in zip(self.shares, answers, strict=True))
        logits = [pair[0].double() for pair in answers]
        if self.target.kind == "number":  # location and log scale of the mixture, standardised by the first target
            values = torch.stack([t.centre + t.spread * z[:, 0] for t, z in zip(self.targets, logits, strict=True)])
            scales = torch.stack([t.spread * z[:, 1].exp() for t, z in zip(self.targets, logits, strict=True)])
            shares = torch.tensor(self.shares, dtype=torch.float64)[:, None]
            centre = (shares * values).sum(dim=0)
            variance = (shares * (scales**2 + values**2)).sum(dim=0) - centre**2
            scale = torch.maximum(variance, (shares * scales).sum(dim=0) ** 2 * 1e-12).sqrt()
            location, spread = (centre - self.target.centre) / self.target.spread, scale / self.target.spread
            return torch.stack([location, spread.log()], dim=1).float(), scores
        parts = zip(self.shares, self.decide, logits, self.orders, strict=True)
        mean = sum(share * decide(z)[0].double()[:, order] for share, decide, z, order in parts)
        least = torch.finfo(torch.float32).tiny
        joined = mean.clamp(min=least).log()
        if self.target.kind == "findings":
            joined = joined - (1 - mean).clamp(min=least).log()
        return joined.float(), scores


def decisions_of(policy: DecisionPolicy, target: Target, classes: tuple[str, ...]) -> nn.Module:
    """What a policy decides, as a graph: logits (B, K) float64 -> the tensors named by its `outputs`, and answered."""
    if isinstance(policy, NumberPolicy):
        return _Number(target.centre, target.spread, None if policy.intervals is None else policy.intervals.reach)
    if isinstance(policy, FindingPolicy):
        return _Decisions([policy.findings[name] for name in classes], [1] * len(classes), True)
    assert isinstance(policy, ClassPolicy)
    positive = policy.operating.positive
    return _Decisions([policy], [1 if positive is None else classes.index(positive)], False)


class _Decisions(nn.Module):
    """Logits (B, K) float64 -> probabilities, prediction, membership of sets, answered; as `ClassPolicy`.

    G questions of K answers each: one of K classes, or F of two, absence and presence of a finding. Each has a policy,
    and where there are two answers the place of the positive one.
    """

    def __init__(self, policies: Sequence[ClassPolicy], positive: Sequence[int], findings: bool):
        super().__init__()
        self.findings = findings
        self.scale = _numbers([policy.calibration.scale for policy in policies])  # (G, K)
        self.bias = _numbers([policy.calibration.bias for policy in policies])
        points = [policy.operating for policy in policies]
        thresholds = [point.threshold if point.positive is not None else None for point in points]
        self.positive = torch.tensor(positive)
        self.thresholds = _numbers([0.5 if limit is None else limit for limit in thresholds])  # (G,)
        self.moved = torch.tensor([limit is not None for limit in thresholds])
        costs = points[0].decisive_costs
        self.costs = None if costs is None else _numbers(costs)  # (K, K)
        sets = [policy.prediction_sets for policy in policies]
        answers = len(policies[0].calibration.scale)
        never = [[math.inf] * answers]  # only the predicted answer is in a set that was not fitted
        self.least = _numbers([never[0] if fitted is None else fitted.least for fitted in sets])  # (G, K)
        unsure = [policy.abstention for policy in policies]
        self.sure = _numbers([-1.0 if a is None else math.inf if a.least is None else a.least for a in unsure])  # (G,)
        self.several = any(fitted is not None for fitted in sets) and not findings
        self.outputs = ("probabilities", "prediction", *(("in_set",) if any(sets) else ()))

    def forward(self, logits: Tensor) -> tuple[Tensor, ...]:
        z = torch.stack([torch.zeros_like(logits), logits], dim=2) if self.findings else logits[:, None]  # (B, G, K)
        z = (z * self.scale + self.bias).float().double()  # rounded as `Calibration.apply` does
        p = z.softmax(dim=2)
        two = p.shape[2] == 2
        if two:
            positive = self.positive[None, :, None].expand(p.shape[0], -1, 1)  # (B, G, 1)
            called = p.gather(2, positive)[:, :, 0] >= self.thresholds
            predicted = torch.where(called, self.positive, 1 - self.positive)  # (B, G)
        else:
            predicted = z.argmax(dim=2) if self.costs is None else (p @ self.costs).argmin(dim=2)
        sure = p.gather(2, predicted[:, :, None])[:, :, 0]  # (B, G)
        if two:
            odds = torch.logit(self.thresholds, LEAST)
            mine, other = (z.gather(2, where)[:, :, 0] for where in (positive, 1 - positive))
            sure = torch.where(self.moved, torch.sigmoid((mine - other - odds).abs()), sure)
        inside = (p >= self.least) | (torch.arange(p.shape[2]) == predicted[:, :, None])  # (B, G, K)
        answered = (sure >= self.sure).all(dim=1)
        if self.several:
            answered = answered & (inside.sum(dim=2) <= 1).all(dim=1)
        if self.findings:
            answers: tuple[Tensor, ...] = (p[:, :, 1].float(), predicted == 1, inside[:, :, 1])
        else:
            answers = (p[:, 0].float(), predicted[:, 0], inside[:, 0])
        return *answers[: len(self.outputs)], answered


class _Number(nn.Module):
    """Logits (B, 2) float64 -> value, interval (where there is one), answered; as `NumberPredictions`."""

    def __init__(self, centre: float, spread: float, reach: float | None):
        super().__init__()
        self.centre, self.spread, self.reach = centre, spread, reach
        self.outputs = ("value",) if reach is None else ("value", "interval")

    def forward(self, logits: Tensor) -> tuple[Tensor, ...]:
        value, scale = self.centre + self.spread * logits[:, 0], self.spread * logits[:, 1].exp()
        answered = torch.ones_like(value, dtype=torch.bool)
        if self.reach is None:
            return value.float(), answered
        return value.float(), torch.stack([value - self.reach * scale, value + self.reach * scale], 1).float(), answered


class OodScoreGraph(nn.Module):
    """Features (B, D) -> scores (B,) float32, as `OodScore.score`."""

    def __init__(self, fitted: OodScore):
        super().__init__()
        means, precision = (torch.from_numpy(matrix).float() for matrix in fitted.matrices[:2])
        self.precision = nn.Parameter(precision, requires_grad=False)  # (D, D)
        self.means = nn.Parameter(means, requires_grad=False)  # (M, D)
        self.scale = fitted.scale

    def forward(self, features: Tensor) -> Tensor:
        x, means, precision = features.double(), self.means.double(), self.precision.double()
        moved = x @ precision  # (B, D)
        centre = ((means @ precision) * means).sum(dim=1)  # (M,)
        squared = ((moved * x).sum(dim=1)[:, None] - 2 * moved @ means.T + centre).min(dim=1).values
        return (squared.clamp(min=0) / self.scale).sqrt().float()


class PillowResize(nn.Module):
    """Pillow's resize as matrix products: images (B, H, W, C) uint8 of any size -> (B, S, S, C) uint8, as
    `Preprocessing.fit`. Not for images with alpha, which Pillow weighs by it. `how` gives S and the way to a square.

    Pillow resizes the width, then the height, with coefficients in fixed point of 22 bits, and rounds to 8 bits each
    time (src/libImaging/Resample.c). Sums of such products are exact in float64, so the bytes are Pillow's. From
    version 13 it begins with the height of tall images, and so does the graph if that version is installed.
    """

    def __init__(self, how: Preprocessing):
        super().__init__()
        self.side, self.resize, self.interpolation = how.image_size, how.resize, how.interpolation

    def forward(self, images: Tensor) -> Tensor:
        _, H, W, _ = images.shape
        x = images.permute(0, 3, 1, 2).double()  # (B, C, H, W)
        (columns, narrower), (rows, lower) = self.matrix(W, H), self.matrix(H, W)
        square = _bytes(rows @ _bytes(x @ columns.T))  # (B, C, S, S)
        if HEIGHT_FIRST:
            tall = (lower > 0) & (lower > 2 * narrower)
            square = torch.where(tall, _bytes(_bytes(rows @ x) @ columns.T), square)
        return square.permute(0, 2, 3, 1).to(torch.uint8)

    def matrix(self, length: int, other: int) -> tuple[Tensor, Tensor]:
        """Coefficients (S, N) float64, whole numbers of 2^-22: S pixels of a side of the square from N of the image,
        `length`; the other side of the image has `other` pixels. And by how many pixels this side is reduced, ()."""
        n, m = (torch.scalar_tensor(size, dtype=torch.float64) for size in (length, other))
        side = torch.full_like(n, self.side)
        span, size, start, place = n, side, torch.zeros_like(n), torch.zeros_like(n)
        if self.resize == "pad":  # as ImageOps.pad: the longer side fills the square, the other is in its middle
            size = torch.where(n < m, torch.round(n / m * side), side)
            place = torch.round((side - size) * 0.5)
        elif self.resize == "crop":  # as ImageOps.fit: the shorter side fills the square, with the middle of the other
            span = torch.minimum(n, m)
            start = (n - span) * 0.5
        scale = span / size
        rows = torch.arange(self.side, dtype=torch.float64) - place  # (S,), in the resized image
        centre = (start + (rows + 0.5) * scale)[:, None]  # (S, 1), in the image
        pixels = torch.arange(length, dtype=torch.float64)  # (N,)
        if self.interpolation == "nearest":
            steps = torch.cat([(start + 0.5 * scale)[None], scale.repeat(self.side - 1)]).cumsum(0)  # as Pillow adds up
            taken = (pixels == steps[rows.clamp(min=0).long()][:, None].floor()).double()
        else:
            support, weigh = FILTERS[self.interpolation]
            wide = torch.clamp(scale, min=1.0)
            first, end = (torch.floor(centre + sign * support * wide + 0.5) for sign in (-1, 1))
            weights = weigh((pixels - centre + 0.5) / wide)
            weights = torch.where((pixels >= first) & (pixels < end), weights, 0.0)
            taken = weights / weights.sum(dim=1, keepdim=True)
        inside = (rows >= 0) & (rows < size)  # the others are black
        fixed = torch.trunc(taken * ONE + torch.where(taken < 0, -0.5, 0.5))
        return torch.where(inside[:, None], fixed, 0.0), n - size


def _bytes(sums: Tensor) -> Tensor:
    """Fixed-point sums -> whole numbers 0..255."""
    return torch.clamp(torch.floor((sums + ONE // 2) / ONE), 0, 255)


def _bicubic(x: Tensor, a: float = -0.5) -> Tensor:
    x = x.abs()
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _sinc(x: Tensor) -> Tensor:
    x = x * math.pi
    return torch.where(x == 0, 1.0, torch.sin(x) / torch.where(x == 0, 1.0, x))


# Reach, px of the smaller image, and weight by the distance.
FILTERS: dict[str, tuple[float, Callable[[Tensor], Tensor]]] = {
    "bilinear": (1.0, lambda x: torch.clamp(1 - x.abs(), min=0)),
    "bicubic": (2.0, _bicubic),
    "lanczos": (3.0, lambda x: torch.where((x >= -3) & (x < 3), _sinc(x) * _sinc(x / 3), 0.0)),
}
