"""`TorchNetwork`: a checkpoint run by torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from vitmed.decisions.policy import DecisionPolicy
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.predict import FP32, batch_size, logits_of, mean_features, predict_logits, work_of
from vitmed.inference.saved_model import Network, Outputs, SavedModel, check_finite, score_column
from vitmed.inference.torch_network import choose_precision
from vitmed.models.hardware import Precision, describe, pick_device
from vitmed.models.vit import ViT


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
        self, saved: Checkpoint, policy: DecisionPolicy | None, where: torch.device, arithmetic: Precision = FP32,
        model: ViT | None = None,
    ):  # fmt: skip
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
            features = mean_features(self.model, x, self.saved.config.augment.views)
            columns = [logits_of(self.model, features)]
            if self.known is not None:
                columns.append(torch.from_numpy(self.known.score(features.cpu().numpy())).to(features.device)[:, None])
            return torch.cat([*columns, *([features] if also_features else [])], dim=1)  # (B, K + 1 + D)

        indices, found, problems = predict_logits(
            self.model, self.saved.preprocessing, read, count, self.where, self.arithmetic, progress, forward,
            self.batch,
        )  # fmt: skip
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
