"""`TorchNetwork`: a checkpoint run by torch, in fp32, or in 16-bit floats where faster without a changed decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from vitmed.core.messages import say, warn
from vitmed.decisions.policy import DecisionPolicy
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.predict import FP32, batch_size, logits_of, mean_over_views, predict_logits, work_of
from vitmed.inference.saved_model import Network, Outputs, SavedModel, check_finite, check_precision, score_column
from vitmed.models.hardware import Precision, describe, pick_device, pick_precision
from vitmed.models.vit import ViT

UNKNOWN = "no comparison of the two is known for this checkpoint, decision policy and kind of device"


class TorchNetwork(Network):
    """The network of a checkpoint.

    Args:
        policy: None leaves the OOD scores out.
        where: the device.
        arithmetic: of the network; what it returns is float32.
        model: the network on its device; None: it is loaded when it is used first.
    """

    saved: Checkpoint

    def __init__(
        self,
        saved: Checkpoint,
        policy: DecisionPolicy | None,
        where: torch.device,
        arithmetic: Precision = FP32,
        model: ViT | None = None,
    ):
        self.saved, self.where, self.arithmetic, self._model = saved, where, arithmetic, model
        self._batch: int | None = None
        self.known = None if policy is None else policy.ood_score
        self.device, self.precision = describe(where), arithmetic.name
        self.reason = arithmetic.reason if arithmetic.mixed else ""

    @property
    def batch(self) -> int:  # type: ignore[override]  # known when the network is loaded
        """Images that it computes at once."""
        return self._batch or batch_size(work_of(self.model), self.where, self.arithmetic)

    @batch.setter
    def batch(self, size: int) -> None:
        self._batch = size

    @property
    def model(self) -> ViT:
        """The network on its device."""
        if self._model is None:
            self._model = self.saved.model().to(self.where)
        return self._model

    def _outputs(
        self, read: Callable[[int], np.ndarray], count: int, progress: Callable[[int, int], None], also_features: bool
    ) -> Outputs:
        """As `Network.outputs`, of the mean over the views of the checkpoint."""

        def forward(x: torch.Tensor) -> torch.Tensor:
            features = mean_over_views(self.model, x, self.saved.config.augment.views)
            columns = [logits_of(self.model, features)]
            if self.known is not None:
                columns.append(torch.from_numpy(self.known.score(features.cpu().numpy())).to(features.device)[:, None])
            return torch.cat([*columns, *([features] if also_features else [])], dim=1)  # (B, K + 1 + D)

        images = self.saved.preprocessing, read, count
        indices, found, problems = predict_logits(
            self.model, *images, self.where, self.arithmetic, progress, forward, self.batch
        )
        check_finite(found, self.saved.path)
        known, outputs = int(self.known is not None), self.saved.splits.outputs
        if not indices:
            width = self.model.head.in_features if also_features else 0
            found = np.empty((0, outputs + known + width), np.float32)
        logits, scores, features = np.split(found, [outputs, outputs + known], axis=1)
        columns = score_column(scores[:, 0]) if known else {}
        return Outputs(indices, logits, columns, problems, features)


def open_torch_network(saved: SavedModel, policy: DecisionPolicy | None, device: str, precision: str) -> TorchNetwork:
    """The network of a checkpoint; the arguments are those of `open_network`."""
    assert isinstance(saved, Checkpoint)
    where = pick_device(device)
    arithmetic = choose_precision(precision, saved, policy, where)
    return TorchNetwork(saved, policy, where, arithmetic)


def choose_precision(asked: str, saved: Checkpoint, policy: DecisionPolicy | None, device: torch.device) -> Precision:
    """The precision that is asked for. Unless it is fp32, a line says what it is known to change.

    Args:
        asked: one of `PRECISIONS`; auto takes the fast one of the device if the comparison after training accepted it.
        policy: the one that is applied; the comparison holds for the policy of the checkpoint.

    Returns:
        its `reason` is what is known.
    """
    check_precision(asked)
    if asked == "fp32":
        return FP32
    fast = pick_precision("auto", device)
    wanted = fast if asked == "auto" else pick_precision(asked, device)
    known = saved.reduced_precision if policy is saved.policy else None
    if known is None or (known.precision, known.device) != (wanted.name, device.type):
        accepted, why = False, UNKNOWN
    else:
        accepted, why = known.accepted, known.in_words
    if asked == "auto" and not accepted:
        say(f"fp32, not {wanted.name}: {why}" if fast.mixed else f"fp32: {fast.reason}")
        return FP32
    if not fast.mixed:
        warn(f"--precision {asked}: {fast.reason}, so it is slower than fp32")
    (say if accepted else warn)(f"{wanted.name} instead of fp32: {why}")
    return replace(wanted, reason=why)
