"""`LEARNING`: how each kind of label is learned: loss, mixing, start of the head, and linear models of frozen features.

These are the heads of frozen networks and the baselines; every setting of them is chosen on validation.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitmed.core.base_models import UNKNOWN
from vitmed.core.config import Config
from vitmed.data.loading import Images
from vitmed.data.thread_batches import Progress
from vitmed.models.hardware import Precision
from vitmed.models.vit import ViT
from vitmed.training import losses
from vitmed.training.losses import Loss, Objective

C_VALUES = tuple(10.0**exponent for exponent in range(-5, 3))  # inverse penalties, from strong to weak regularisation
Part = tuple[np.ndarray, np.ndarray]  # features (S, D) and targets


@dataclass(frozen=True)
class Learning:
    """How a kind of label is learned.

    `answers` makes of the output of the network (B, ...) the logits (B, K) of what an attention map can explain, in the
    order of `Predictions.answers`; `chances` makes of these (B, K) in 0..1, which the test of a map follows while
    patches are taken away.
    """

    loss: Callable[[Images, int, Config, torch.device], Loss]  # of a configuration, as `CrossEntropy.of`
    start: Callable[[ViT, Tensor, Config], None]  # sets the bias of the head, from the targets (S, ...) of training
    fit_head: Callable[..., "LinearHead"]  # a linear model of features, as `fit_head`
    balances: tuple[str, ...] = ("none",)  # values of `train.balance` that can be used
    mixes: bool = False  # whether images may be mixed
    answers: Callable[[Tensor], Tensor] = lambda output: output
    chances: Callable[[Tensor], Tensor] = lambda logits: logits.softmax(dim=1)


def mixup_and_cutmix(config: Config, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """torchvision's mixup, cutmix, or one of both at random: each image of a batch is mixed with another, and so are
    their labels. Without either, batches stay as they are."""
    mixup, cutmix = config.augment.mixup, config.augment.cutmix
    if not mixup and not cutmix:
        return lambda x, y: (x, y)
    from torchvision.transforms import v2

    kinds = [(v2.MixUp, mixup), (v2.CutMix, cutmix)]
    return v2.RandomChoice([kind(alpha=alpha, num_classes=classes) for kind, alpha in kinds if alpha])


def objective_of(images: Images, outputs: int, config: Config, precision: Precision, device: torch.device) -> Objective:
    """What a network with so many outputs learns from the training images, as configured, on a device."""
    loss = LEARNING[images.target.kind].loss(images, outputs, config, device)
    return Objective(images.preprocessing, mixup_and_cutmix(config, outputs), loss, precision)


@dataclass(frozen=True)
class LinearHead:
    """Logits = features @ weight.T + bias. The L2 penalty is chosen on validation: scikit-learn's C, on standardised
    features; None where each finding has its own."""

    weight: np.ndarray  # (K, D) float32
    bias: np.ndarray  # (K,) float32
    C: float | None
    val_loss: float  # on validation, log loss in nats, or the mean absolute error of a standardised number

    def logits(self, features: np.ndarray) -> np.ndarray:
        """(S, D) -> (S, K) float32."""
        return (features @ self.weight.T + self.bias).astype(np.float32)

    def state(self) -> dict[str, torch.Tensor]:
        return {"head.weight": torch.from_numpy(self.weight), "head.bias": torch.from_numpy(self.bias)}


def fit_head(train: Part, val: Part, classes: int, progress: Progress = lambda done, total: None) -> LinearHead:
    """Multinomial logistic regression with the L2 penalty that has the lowest log loss on validation, from features
    (S, D) and labels (S,); both parts contain every class."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    mean, std = train[0].mean(axis=0, dtype=np.float64), train[0].std(axis=0, dtype=np.float64)
    std = np.where(std > 1e-6 * (1 + np.abs(mean)), std, 1)  # a constant feature carries no information
    x, x_val = ((part[0] - mean) / std for part in (train, val))
    model = LogisticRegression(warm_start=True, max_iter=500, tol=1e-6)  # each fit starts from the one before

    def fit(C: float) -> tuple[float, Part]:
        model.C = C
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a penalty too weak to converge is not chosen anyway
            model.fit(x, train[1])
        loss = float(log_loss(val[1], model.predict_proba(x_val), labels=np.arange(classes)))
        return loss, (model.coef_.astype(np.float64), model.intercept_.astype(np.float64))

    loss, C, (weight, bias) = _best_penalty(fit, progress)
    if classes == 2:  # scikit-learn keeps the difference of two logits
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    weight = weight / std
    return LinearHead(weight.astype(np.float32), (bias - weight @ mean).astype(np.float32), C, loss)


def fit_finding_head(
    train: Part, val: Part, findings: int, progress: Progress = lambda done, total: None
) -> LinearHead:
    """`fit_head` for each finding, on the images whose label is known, from features (S, D) and labels (S, F)."""
    weights, biases, val_losses = [], [], []

    def labelled(part: Part, f: int) -> Part:
        rows = part[1][:, f] != UNKNOWN
        return part[0][rows], part[1][rows, f].astype(np.int64)

    for f in range(findings):
        (x, y), of_val = labelled(train, f), labelled(val, f)
        if len(np.unique(y)) < 2:  # nothing to tell apart: the share in training
            share = (y.sum() + 0.5) / (len(y) + 1)
            weights.append(np.zeros(train[0].shape[1], np.float32))
            biases.append(float(np.log(share / (1 - share))))
        else:
            head = fit_head((x, y), of_val if len(of_val[1]) else (x, y), 2)
            weights.append(head.weight[1] - head.weight[0])
            biases.append(float(head.bias[1] - head.bias[0]))
            val_losses.append(head.val_loss)
        progress(f + 1, findings)
    loss = float(np.mean(val_losses)) if val_losses else float("nan")
    return LinearHead(np.stack(weights), np.array(biases, np.float32), None, loss)


def fit_number_head(train: Part, val: Part, outputs: int, progress: Progress = lambda done, total: None) -> LinearHead:
    """Ridge regression with the penalty of the lowest mean absolute error on validation, which is also its one scale,
    from features (S, D) and standardised numbers (S,); the outputs are location and log scale."""
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(train[0].astype(np.float64))
    x, x_val = (scaler.transform(part[0].astype(np.float64)) for part in (train, val))

    def fit(C: float) -> tuple[float, Part]:
        model = Ridge(alpha=1 / C).fit(x, train[1])
        return float(np.abs(model.predict(x_val) - val[1]).mean()), (model.coef_, model.intercept_)

    error, C, (weight, bias) = _best_penalty(fit, progress)
    weight = weight / scaler.scale_
    rows = np.stack([weight, np.zeros_like(weight)]).astype(np.float32)
    location_and_scale = [bias - weight @ scaler.mean_, np.log(max(error, 1e-6))]
    return LinearHead(rows, np.array(location_and_scale, np.float32), C, error)


def _best_penalty(fit: Callable[[float], tuple[float, Part]], progress: Progress) -> tuple[float, float, Part]:
    """The lowest loss on validation, its C, and weights and bias; `fit` returns loss, weights and bias for a C."""
    tried = []
    for done, C in enumerate(C_VALUES, 1):
        loss, model = fit(C)
        tried.append((loss, C, model))
        progress(done, len(C_VALUES))
    return min(tried, key=lambda attempt: attempt[0])


LEARNING: dict[str, Learning] = {
    "classes": Learning(
        losses.CrossEntropy.of,
        lambda model, targets, config: (
            None if config.train.balance == "none" else losses.start_balanced(model, targets.numpy())
        ),
        fit_head,
        balances=("none", "adjust", "loss", "sampler"),
        mixes=True,
    ),
    "findings": Learning(
        losses.BinaryCrossEntropy.of,
        lambda model, targets, _: losses.start_findings(model, targets),
        fit_finding_head,
        balances=("none", "loss"),
        chances=torch.sigmoid,
    ),
    "number": Learning(
        lambda *_: losses.ScaledSquares(),
        lambda model, targets, _: None,
        fit_number_head,
        answers=lambda output: output[:, :1] * output.new_tensor([-1.0, 1.0]),
    ),
}
LEARNING["grades"] = LEARNING["classes"]
