"""Run the network over images. Validation, evaluation and prediction all do it here.

An image is computed in the batch that it comes in. A batch of another size is computed by other kernels, so the last
digits of a logit differ; docs/reliability.md says by how much.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from vitmed.core.messages import bar, say, warn
from vitmed.data.loading import Images
from vitmed.data.thread_batches import Progress, check_readable
from vitmed.decisions.policy import DecisionPolicy, ReducedPrecision
from vitmed.imaging.augmentation import views_of
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.saved_model import Batches, Network, Outputs, Read, run_batches, score_column
from vitmed.models.hardware import FULL_FP32, Precision, describe, pick_precision, seconds_of
from vitmed.models.vit import ViT

MOST = 64  # images in a batch
WORK = 100_000  # tokens x width in a batch on a CPU, at least; from two threads on half as many for each
WORK_REDUCED = 400_000  # the same for 16-bit floats
ROUNDS = 5  # of a comparison of speed
FP32 = Precision("fp32", torch.float32, "the same numbers on every machine")


def batch_size(work: int, device: torch.device, precision: Precision = FP32) -> int:
    """Images in a batch at most, a power of two: on a CPU as few as keep its threads busy, so that the first answers
    come soon. `work` is N x D: the tokens of an image times their width.

    Images/s of two cores with AMX in batches of 1, 2, 4, 8, 16 and 32: ViT-Tiny at 224 px 69, 85, 95, 100, 98 and 97,
    in bf16 80, 115, 175, 227, 256 and 265. A ViT of width 64 at 64 px in batches of 4, 16 and 64: 1,670, 2,720 and
    3,380, in bf16 1,430, 2,820 and 4,180.
    """
    if device.type != "cpu":
        return MOST
    wanted = (WORK_REDUCED if precision.mixed else WORK) * max(2, torch.get_num_threads()) / 2 / work
    return min(MOST, 1 << max(0, math.ceil(math.log2(wanted))))


@FULL_FP32
@torch.inference_mode()
def predict_logits(
    model: ViT,
    preprocessing: Preprocessing,
    read: Read,
    count: int,
    device: torch.device,
    precision: Precision = FP32,
    progress: Progress = lambda done, total: None,
    forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
    size: int | None = None,
) -> tuple[list[int], np.ndarray, dict[int, str]]:
    """Logits of `count` images: the indices of readable images, theirs (S, K) float32, and index -> problem of others.

    Args:
        forward: runs instead of the whole model, such as its `features`; a row must not depend on the others.
        size: images in a batch at most, 1 to `MOST`; None: `batch_size`.
    """
    if model.training:  # setting it in every layer takes 1 ms
        model.eval()
    size = size or batch_size(model.tokens * model.width, device, precision)

    def run(squares: np.ndarray) -> list[np.ndarray]:
        logits = []
        for batch in torch.from_numpy(squares).split(size):  # (B, S, S, C)
            x = preprocessing.normalise(batch.to(device))  # (B, C, S, S)
            logits.append((forward or model)(x).float().cpu().numpy())  # (B, K)
        return [np.concatenate(logits)]

    # Around all batches, so that the weights are converted once.
    with torch.autocast(device.type, precision.dtype, enabled=precision.mixed):
        indices, arrays, problems = run_batches(read, count, MOST // size * size, run, progress)  # whole batches
    return indices, arrays[0] if arrays else np.empty((0, 0), np.float32), problems


def mean_over_views(model: ViT, x: torch.Tensor, views: str) -> torch.Tensor:
    """(B, D) float32: the mean of the features of images (B, C, S, S) over the test-time views `VIEWS[views]`.

    The head is linear, so the logits of the mean are the mean of the logits.
    """
    features = [model.features(view).float() for view in views_of(x, views)]
    return sum(features[1:], features[0]) / len(features)  # in this order, as a reduction's order depends on the shape


def logits_of(model: ViT, features: torch.Tensor) -> torch.Tensor:
    """Logits (B, K) float32 of features (B, D), also within autocast: rounded logits would tie."""
    with torch.autocast(features.device.type, enabled=False):
        return model.head(features.float())


@torch.inference_mode()
def speedup(model: ViT, preprocessing: Preprocessing, device: torch.device, precision: Precision) -> float:
    """How many times as fast in `precision` as in fp32 the model runs on a device: the fastest of `ROUNDS` batches."""
    model.eval()
    times: dict[str, list[float]] = {FP32.name: [], precision.name: []}
    with torch.autocast(device.type, precision.dtype):  # keeps the converted weights from round to round
        for _ in range(1 + ROUNDS):  # in turn, so that both have a share of the moments without other work
            for each in (FP32, precision):
                side, size = preprocessing.image_size, batch_size(model.tokens * model.width, device, each)
                x = torch.zeros(size, preprocessing.channels, side, side, device=device, dtype=torch.float32)
                with torch.autocast(device.type, precision.dtype, enabled=each.mixed):
                    times[each.name].append(seconds_of(partial(model, x), device) / size)
    return min(times[FP32.name][1:]) / min(times[precision.name][1:])  # the first round warms up


def predict_all(
    model: ViT,
    images: Images,
    precision: Precision = FP32,
    progress: Progress = lambda done, total: None,
    forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
    rows: Sequence[int] | None = None,
) -> np.ndarray:
    """(S, K) float32: as `predict_logits`, for images of a run that must be readable, all or those of `rows`."""
    rows, device = range(len(images)) if rows is None else rows, next(model.parameters()).device
    _, logits, problems = predict_logits(
        model, images.preprocessing, lambda i: images.read(rows[i]), len(rows), device, precision, progress, forward
    )
    check_readable(problems)
    return logits


def outputs_of(
    network: Network, images: Images, title: str, rows: Sequence[int] | None = None, also_features: bool = False
) -> Outputs:
    """As `Network.outputs`, with progress, for images of a run that must be readable, all or those of `rows`."""
    rows = range(len(images)) if rows is None else rows
    with bar(title) as advance:
        made = network.outputs(lambda i: images.read(rows[i]), len(rows), advance, also_features)
    check_readable(made.problems)
    return made


UNKNOWN = "no comparison of the two is known for this checkpoint, decision policy and kind of device"


class TorchNetwork(Network):
    """The network of a checkpoint, or `model`, which lies on the device; without a `policy` it gives no OOD scores."""

    saved: Checkpoint
    model: ViT

    def __init__(
        self,
        saved: Checkpoint,
        policy: DecisionPolicy | None,
        where: torch.device,
        arithmetic: Precision = FP32,
        model: ViT | None = None,
    ):
        self.saved, self.where, self.arithmetic = saved, where, arithmetic
        self.model = saved.model().to(where) if model is None else model
        self.batch = batch_size(self.model.tokens * self.model.width, where, arithmetic)
        self.ood = None if policy is None else policy.ood_score
        self.scored = self.ood is not None
        compared = comparison(saved, policy, arithmetic, where)
        self._deviations = None if compared is None or not arithmetic.mixed else compared.deviations
        self.device, self.precision = describe(where), arithmetic.name
        self.reason = arithmetic.reason if arithmetic.mixed else ""

    def _run(self, read: Read, count: int, progress: Progress, also_features: bool) -> Batches:
        """As in `Network`, of the mean over the views of the checkpoint."""
        K, scored = self.saved.splits.outputs, int(self.scored)

        def compute(x: torch.Tensor) -> torch.Tensor:
            features = mean_over_views(self.model, x, self.saved.config.augment.views)
            columns = [logits_of(self.model, features)]
            if self.ood is not None:
                columns.append(torch.from_numpy(self.ood.score(features.cpu().numpy())).to(features.device)[:, None])
            return torch.cat([*columns, *([features] if also_features else [])], dim=1)  # (B, K + 1 + D)

        def forward(x: torch.Tensor) -> torch.Tensor:
            outputs, policy = compute(x), self.saved.policy
            if self._deviations is None or policy is None:
                return outputs
            # In reduced precision what is near a border of the policy, or not finite, is computed again in fp32.
            reduced = outputs[:, : K + scored].cpu().numpy()
            finite = np.flatnonzero(np.isfinite(reduced).all(axis=1))
            logits, scores = np.split(reduced[finite], [K], axis=1)
            columns = score_column(scores[:, 0] if scored else None)
            images = self.saved.predictions(("",) * len(finite), logits, columns)
            rows = np.setdiff1d(np.arange(len(reduced)), finite[~policy.near(images, self._deviations)])
            if len(rows):
                with torch.autocast(x.device.type, enabled=False):
                    outputs[rows] = compute(x[rows])
            return outputs

        images = self.saved.preprocessing, read, count
        indices, outputs, problems = predict_logits(
            self.model, *images, self.where, self.arithmetic, progress, forward, self.batch
        )
        if not indices:
            outputs = np.empty((0, K + scored + self.model.head.in_features), np.float32)
        logits, scores, features = np.split(outputs, [K, K + scored], axis=1)
        return indices, [logits, *scores.T, *[features] * also_features], problems


def comparison(
    saved: Checkpoint, policy: DecisionPolicy | None, precision: Precision, device: torch.device
) -> ReducedPrecision | None:
    """The comparison after training with this precision on this kind of device; None where the policy is another."""
    reduced = saved.reduced_precision if policy is saved.policy else None
    return reduced if reduced and (reduced.precision, reduced.device) == (precision.name, device.type) else None


def choose_precision(name: str, saved: Checkpoint, policy: DecisionPolicy | None, device: torch.device) -> Precision:
    """The precision of that name; its `reason`, and a message unless it is fp32, say what it is known to change.
    "auto" takes the fast one of the device if the comparison after training, with the policy of the checkpoint,
    accepted it."""
    if name == "fp32":
        return FP32
    fast = pick_precision("auto", device)
    wanted = fast if name == "auto" else pick_precision(name, device)
    compared = comparison(saved, policy, wanted, device)
    accepted, why = (False, UNKNOWN) if compared is None else (compared.accepted, compared.in_words)
    if name == "auto" and not accepted:
        say(f"fp32, not {wanted.name}: {why}" if fast.mixed else f"fp32: {fast.reason}")
        return FP32
    if not fast.mixed:
        warn(f"--precision {name}: {fast.reason}, so it is slower than fp32")
    (say if accepted else warn)(f"{wanted.name} instead of fp32: {why}")
    return replace(wanted, reason=why)
