"""The gate of `vitmed export`: an exported network beside its checkpoint, on validation images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.messages import Silent, bar, listening
from vitmed.core.text import counted, counted_doing
from vitmed.data.samples import Sample, labelled_by
from vitmed.data.thread_batches import check_readable
from vitmed.decisions.reduced_precision import MOST_MOVED, ReducedPrecision, compare_precision
from vitmed.imaging.decode import read_image
from vitmed.inference.exported_graph import ExportedGraph
from vitmed.inference.open_model import open_network
from vitmed.inference.saved_model import SavedModel, score_column
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.kinds.number_predictions import NumberPredictions
from vitmed.metrics.predictions_csv import ANSWER, YES

MOST = 500  # validation images that are compared at most


class ExportGate(Frozen):
    """The exported network beside the checkpoint, on validation images.

    Attributes:
        images: how many were compared.
        flipped: images with another decision.
        largest: the largest difference of a calibrated probability; of a number in units of its spread.
        resized: whether the file resizes the images, so they were compared in their own sizes.
    """

    images: int
    flipped: int
    largest: float
    resized: bool

    @property
    def passed(self) -> bool:
        """Whether no decision differs, and no probability by more than `MOST_MOVED`."""
        return not self.flipped and self.largest <= MOST_MOVED

    @property
    def in_words(self) -> str:
        """What was found, as a clause."""
        flips = counted_doing(self.flipped, "decision", "differs", "differ") if self.flipped else "no decision differs"
        return f"on {counted(self.images, 'validation image')} {flips}; the largest difference is {self.largest:.1g}"


def validation_images(saved: SavedModel) -> list[Sample]:
    """At most `MOST` validation images of a run, evenly spread."""
    samples = saved.splits.samples["val"] or saved.splits.samples["train"]  # joined folds have no validation
    rows = np.linspace(0, len(samples) - 1, min(len(samples), MOST)).round().astype(np.int64)
    return [samples[row] for row in rows]


def compare_export(
    saved: SavedModel, graph: ExportedGraph, run: Callable[[np.ndarray], dict[str, np.ndarray]], root: Path
) -> ExportGate:
    """Compare an exported network with its checkpoint on `validation_images`.

    The checkpoint resizes with Pillow and decides with numpy; the exported network does all in its graph, where it may.

    Args:
        graph: what was exported; run: the exported network, images (B, H, W, C) uint8 -> outputs by name.
        root: the data folder.

    Raises:
        DataError: an image cannot be read.
    """
    assert saved.policy is not None
    how, chosen = saved.preprocessing, validation_images(saved)
    found = dict[str, list[np.ndarray]]()

    def read(index: int) -> np.ndarray:
        return how.read(root / chosen[index].path)

    with bar("comparing: checkpoint") as advance:
        with listening(Silent()):
            network = open_network(saved, saved.policy, "cpu", "fp32")
        outputs = network.outputs(read, len(chosen), advance)
    check_readable(outputs.problems)
    with bar("comparing: exported") as advance:
        for index, sample in enumerate(chosen):
            image = read(index)
            if graph.resize:
                whole = read_image(root / sample.path, how.channels, frame=how.frame, window=how.window)
                image = np.asarray(whole).reshape(whole.height, whole.width, how.channels)
            for name, value in run(image[None]).items():
                found.setdefault(name, []).append(value)
            advance(index + 1, len(chosen))
    theirs = {name: np.concatenate(values) for name, values in found.items()}
    undecided = labelled_by(saved.splits.target, saved.classes, chosen, outputs.logits, saved.config.data.positive)
    scores = score_column(theirs["ood_score"]) if "ood_score" in theirs else {}
    exact = saved.policy.apply(replace(undecided, columns=outputs.columns))
    again = saved.policy.apply(replace(undecided, logits=theirs["logits"], columns=scores))
    flipped, largest = _differences(exact, again, theirs)
    return ExportGate(images=len(chosen), flipped=flipped, largest=largest, resized=graph.resize)


def _differences(exact: AnyPredictions, again: AnyPredictions, theirs: Mapping[str, np.ndarray]) -> tuple[int, float]:
    """Images with another decision, and the largest difference of a probability.

    Args:
        exact: of the checkpoint; again: of the exported logits with the policy in numpy.
        theirs: outputs of the exported network, whose decisions must be those of `again`.
    """
    flipped = theirs["answered"] != np.array([cell == YES for cell in again.columns[ANSWER]])
    if isinstance(exact, NumberPredictions):
        moved = np.abs(exact.values - theirs["value"]).max(initial=0) / exact.target.spread
        return int(flipped.sum()), float(moved)
    assert not isinstance(again, NumberPredictions)
    flipped |= np.any((theirs["prediction"] != again.predicted).reshape(len(flipped), -1), axis=1)
    if "in_set" in theirs:
        assert again.members is not None
        flipped |= np.any(theirs["in_set"] != again.members, axis=1)
    found = compare_precision(ReducedPrecision(precision="fp32", device="cpu", speedup=1.0), exact, again)
    moved = np.abs(exact.probabilities - theirs["probabilities"]).max(initial=0)
    return found.flipped + int(flipped.sum()), float(moved)
