"""The attention maps of an evaluation: those of some images, and whether the answer depends on what they mark."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vitmed.core.messages import bar, say
from vitmed.explanation.attention import attention_maps
from vitmed.explanation.faithfulness import FEW, affordable, check_maps, sample, unchecked
from vitmed.explanation.results import Attention, Maps
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.models.vit import ViT

SHOWN = 8  # images of an evaluation with drawn maps; half of them are errors if there are enough


def check_attention(
    model: ViT,
    preprocessing: Preprocessing,
    read: Callable[[int], np.ndarray],
    predictions: AnyPredictions,
    images: int | None,
) -> tuple[Attention | None, Maps | None]:
    """The checks of the attention maps for an evaluation, and the maps of some images for its figure.

    Args:
        read: row of the predictions -> (S, S, C) uint8.
        images: how many to check; None: as many as take some seconds; 0: neither checks nor maps.
    """
    if images == 0 or not len(predictions):
        return None, None
    shown = images_to_draw(predictions)
    pictures = np.stack([read(int(i)) for i in shown])
    kind, explained = predictions.kind, predictions.explained
    maps = attention_maps(model, preprocessing, pictures, explained[shown], shown, kind)
    count = affordable(model) if images is None else images
    if images is None and count < FEW <= len(predictions):
        slow = "it would take minutes on this machine; --map-images 8 does it"
        return unchecked(model, 0, kind).model_copy(update={"reason": slow, "drawn": ""}), maps
    strata = known_labels(predictions) if isinstance(predictions, Predictions) else explained
    rows, units, drawn = sample(strata, predictions.groups, count)
    with bar("checking attention maps") as advance:
        pictures = np.stack([read(int(i)) for i in rows])
        found = check_maps(model, preprocessing, pictures, explained[rows], units, advance, kind)
    verdicts = "; ".join(f"{part.title}: {part.verdict}" for part in found.methods.values())
    text = verdicts or f"not checked: {found.reason}"
    say(f"test of the attention maps: {text}")
    return found.model_copy(update={"drawn": drawn}), maps


def images_to_draw(predictions: AnyPredictions) -> np.ndarray:
    """Rows of up to `SHOWN` images: the most confident errors, then others drawn with a fixed seed."""
    errors = predictions.mistakes()
    others = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(len(predictions)), errors))
    most = max(SHOWN // 2, SHOWN - len(others))
    return np.concatenate([errors[:most], others])[:SHOWN]
