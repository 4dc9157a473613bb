"""Attention maps, and what the checks of maps and corruptions find, as typed data. No torch, for the report."""

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from vitmed.core.base_models import CLASSES, Frozen, Target
from vitmed.core.errors import DataError
from vitmed.decisions.evaluation_folder import is_of, read_metrics
from vitmed.inference.saved_model import SavedModel
from vitmed.metrics.estimates import Estimate

TITLES = {"rollout": "Attention rollout", "gradient_rollout": "Gradient-weighted rollout", "grad_cam": "Grad-CAM"}
OF_ENSEMBLE = "not tested; vitmed evaluate tests the maps of a single network, such as a member of the ensemble"
OF_OTHER = "not tested; vitmed evaluate tests the maps of what is predicted, and --target names something else"
UNCHECKED = "not tested; vitmed evaluate tests whether the answer depends on the patches that such maps mark"


@dataclass(frozen=True)
class Maps:
    """Maps of some images."""

    images: np.ndarray  # (B, S, S, C) uint8, the network's input before normalisation
    targets: np.ndarray  # (B,) the explained class
    grids: dict[str, np.ndarray]  # method -> (B, h, w) float32 in 0..1; all 0 if a method marks nothing
    rows: np.ndarray  # (B,) indices of the images, from 0
    shift: float = 0.0  # from `attention.centre_shift`


def cells(side: int, grid: int, shift: float) -> np.ndarray:
    """(S,) int64: the patch whose centre is nearest to each pixel along a side."""
    places = (np.arange(side) + 0.5) * grid / side - 0.5 + shift  # in patches; the centre of the first is 0
    return np.ceil(places - 0.5).clip(0, grid - 1).astype(np.int64)


def spread(values: np.ndarray) -> np.ndarray:
    """(B, L), each row scaled from 0 (lowest) to 1 (highest); 0 if all its values are equal."""
    low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    return np.where(high > low, (values - low) / np.where(high > low, high - low, 1), 0).astype(np.float32)


def turns(keys: np.ndarray) -> np.ndarray:
    """(S,) how many earlier elements have the same key."""
    _, number, count = np.unique(keys, return_inverse=True, return_counts=True)
    earlier = np.empty(len(keys), dtype=int)
    earlier[np.argsort(number, kind="stable")] = np.arange(len(keys)) - np.repeat(np.cumsum(count) - count, count)
    return earlier


class MapCheck(Frozen):
    """One method of making attention maps, its verdict and a sentence on it.

    `gain` is insertion - deletion, 0 in a random order; `similarity` has the rank correlation of the maps with those
    of random weights (until 0.2.0 also of parts of them).
    """

    title: str
    deletion: Estimate
    insertion: Estimate
    gain: Estimate
    similarity: dict[str, Estimate]
    verdict: str
    text: str


class Attention(Frozen):
    """What attention maps are worth: the result of `faithfulness.check_maps`.

    Attributes:
        n, n_shuffled: images of the first and of the second question; drawn: how they were chosen.
        random: deletion and insertion in a random order.
        stages: keys of `MapCheck.similarity`.
        reason: why the maps were not checked; None where they were.
        whole, blank: mean probability of the class for the whole image, and without any patch.
    """

    n: int
    n_shuffled: int
    methods: dict[str, MapCheck]
    patches: int
    steps: int
    stages: list[str]
    random: Estimate | None
    reason: str | None
    whole: float | None = None
    blank: float | None = None
    drawn: str | None = None


class Strength(Frozen, extra="allow"):
    """The numbers at one strength of a corruption, by their names; `value` is its setting.

    `lost` is how much worse `Robustness.number` is than without corruption: above 0 is worse, whichever way is better.
    """

    __pydantic_extra__: dict[str, Estimate] = Field(init=False)

    strength: int
    value: float
    lost: Estimate


class CorruptionCost(Frozen, extra="ignore"):  # vitmed 0.2.0 had the loss of `each` finding
    """What one corruption costs: error, and loss as in `Strength`, both the mean of the five strengths."""

    title: str
    text: str
    source: str
    strengths: list[Strength]
    error: Estimate
    lost: Estimate


class Robustness(Frozen, extra="ignore"):  # until 0.3.0 it had the number of resamples
    """What corruptions cost: the result of `robustness.measure_robustness`, and what stress.json states about the run.

    Attributes:
        images_of: how many images there are, `n` of them in the test.
        number: whose loss counts, a key of `clean`; guess: what it is without looking, such as 0.5 for AUROC.
        relative: error of the corrupted images - error of the clean images.
        worst: key of the corruption that costs most; None where no loss is shown.
        undefined, skipped: number, or corruption -> why it is missing.
    """

    what: str = ""
    checkpoint: str = ""
    weights_sha256: str = ""
    images_of: int | None = None
    unreadable: int = 0
    seed: int | None = None
    image_size: int | None = None
    n: int
    n_groups: int | None
    resampling: str
    level: float
    classes: list[str]
    positive_class: str | None
    target: Target = CLASSES
    number: str = "balanced_accuracy"
    guess: float | None = None
    clean: dict[str, Estimate]
    corruptions: dict[str, CorruptionCost]
    mean_corruption_error: Estimate
    relative: Estimate
    undefined: dict[str, str] = {}
    worst: str | None = None
    verdict: str = ""
    notes: list[str] = []
    skipped: dict[str, str] = {}


def known_verdicts(saved: SavedModel) -> dict[str, str]:
    """Method -> the verdict in the newest report on these weights, test before validation."""
    files = saved.path.parent.glob("[!.]*/metrics.json")
    for file in sorted(files, key=lambda f: (not f.parent.name.startswith("test"), -f.stat().st_mtime_ns)):
        try:
            metrics = read_metrics(file)
            methods = metrics["attention"]["methods"] if is_of(metrics, saved.weights_hash) else {}
            verdicts = {name: f"{part['verdict']}. {part['text']}" for name, part in methods.items()}
        except (DataError, KeyError, TypeError):  # a report without maps
            continue
        if verdicts:
            return verdicts
    return {}
