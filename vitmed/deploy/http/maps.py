"""The attention map of an image, by one method, with the verdict of its test. For a checkpoint; loads torch."""

from __future__ import annotations

import matplotlib
import numpy as np

from vitmed.deploy.http.content import PICTURE, AttentionMap
from vitmed.explanation.attention import attention_maps
from vitmed.explanation.faithfulness import BETTER, RANDOM, UNLEARNED, UNSHOWN, WEAK
from vitmed.explanation.results import TITLES, UNCHECKED, cells, known_verdicts
from vitmed.inference.load import Model, png_address
from vitmed.metrics.predictions import Predictions
from vitmed.report.plots.pictures import MAP_COLOURS

RANKS = (BETTER, WEAK, UNSHOWN, RANDOM, UNLEARNED)  # verdicts, the best first
METHODS = ("gradient_rollout", "grad_cam", "rollout")  # where the verdicts say nothing: the last knows no class


class Maps:
    """Makes the maps of a model by the method that did best in its newest evaluation."""

    def __init__(self, model: Model):
        verdicts = known_verdicts(model.saved)

        def rank(name: str) -> int:
            return next((i for i, word in enumerate(RANKS) if verdicts.get(name, "").startswith(word)), len(RANKS))

        self.model, self.method = model, min(METHODS, key=rank)  # `METHODS` decides between equals
        self.verdict = verdicts.get(self.method, UNCHECKED)

    def of(self, squares: np.ndarray, predictions: Predictions, rows: list[int]) -> list[AttentionMap]:
        """The maps of some images.

        Args:
            squares: (B, S, S, C) uint8, those of `rows` of the predictions.
        """
        network = self.model.network.model
        assert network is not None
        targets = predictions.explained[rows]
        found = attention_maps(network, self.model.preprocessing, squares, targets, np.array(rows), predictions.kind)
        return [
            AttentionMap(
                picture=png_address(overlay(square, grid, found.shift), PICTURE),
                explains=predictions.answers[target],
                method=TITLES[self.method],
                verdict=self.verdict,
            )
            for square, grid, target in zip(squares, found.grids[self.method], targets, strict=True)
        ]


def overlay(image: np.ndarray, grid: np.ndarray, shift: float) -> np.ndarray:
    """(S, S, 3) uint8: a map (h, w) of 0..1 over its image (S, S, C) in grey, as in the report."""
    near = cells(image.shape[0], grid.shape[0], shift)
    values = grid[np.ix_(near, near)]  # (S, S)
    grey = image[..., : 3 if image.shape[2] >= 3 else 1].mean(axis=2, keepdims=True)
    colour = 255 * matplotlib.colormaps[MAP_COLOURS](values)[..., :3]
    alpha = (0.25 + 0.5 * values)[..., None]
    return (grey * (1 - alpha) + colour * alpha).round().astype(np.uint8)
