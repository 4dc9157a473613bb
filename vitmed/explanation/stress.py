"""A stress test: a sample of images, corrupted in several ways and strengths, and what a model loses on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from vitmed.checks.evaluation_images import EvaluationImages
from vitmed.core.errors import DataError, UsageError, unknown_key
from vitmed.core.text import counted
from vitmed.core.ui import Ui
from vitmed.data.samples import labelled_by
from vitmed.data.split_names import SPLITS
from vitmed.data.thread_batches import in_threads
from vitmed.explanation.corruptions import CORRUPTIONS, corrupt, is_grey, reduced
from vitmed.explanation.results import Robustness
from vitmed.explanation.robustness import measure_robustness
from vitmed.imaging.decode import read_image
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.open_model import open_network
from vitmed.inference.saved_model import SavedModel
from vitmed.metrics.kinds.any_predictions import AnyPredictions


@dataclass(frozen=True)
class StressRequest:
    """What a stress test does.

    Attributes:
        corruptions: keys of `CORRUPTIONS`; none: all of them.
        split: of the images; device: as in `evaluate`.
        images: the most; resamples: behind the intervals; seed: of the sample, the corruptions and the resamples.

    Raises:
        UsageError: an unknown corruption or split, or a number that is out of range.
    """

    corruptions: Sequence[str]
    split: str
    images: int
    resamples: int
    seed: int
    device: str

    def __post_init__(self) -> None:
        for name in self.corruptions:
            if name not in CORRUPTIONS:
                raise unknown_key("corruption", name, CORRUPTIONS)
        if self.split not in SPLITS:
            raise unknown_key("split", self.split, SPLITS)
        if self.images < 1 or self.resamples < 0 or self.seed < 0:
            given = f"--images {self.images}, --resamples {self.resamples}, --seed {self.seed}"
            raise UsageError(given, "--images is 1 or more, the others are 0 or more")


def stress_images(
    saved: SavedModel, chosen: EvaluationImages, what: str, request: StressRequest, ui: Ui
) -> tuple[Robustness, dict[str, list[np.ndarray]]]:
    """Predict a sample of images, clean and corrupted, and measure what the corruptions cost.

    Args:
        what: which images these are, in words.

    Returns:
        the content of stress.json; and title of each corruption -> an image as it is and at strengths 1 to 5.

    Raises:
        DataError: no image can be read.
    """
    seed = request.seed
    asked = pick_images([sample.label for sample in chosen.samples], request.images, seed)
    decoded = _decode(saved.preprocessing, chosen, asked, ui)
    unreadable = len(asked) - len(decoded)
    names, grey = list(request.corruptions or CORRUPTIONS), ""
    if saved.preprocessing.channels < 3 or all(map(is_grey, decoded.values())):
        grey = "the network sees grey" if saved.preprocessing.channels < 3 else "the images are grey"
    skipped = {name: f"needs colour, and {grey}" for name in names if grey and CORRUPTIONS[name].colour}
    names = [name for name in names if name not in skipped]
    ui.say(
        f"{what}: {len(decoded):,} of {counted(len(chosen.samples), 'image')}, "
        f"{counted(len(names), 'corruption')} of 5 strengths, {(1 + 5 * len(names)) * len(decoded):,} passes"
    )
    clean, corrupted = _predict_all(saved, chosen, decoded, names, request, ui)
    found = measure_robustness(clean, corrupted, request.resamples, seed, saved.splits.target)
    unread = [f"{unreadable:,} images could not be read and are not counted."] if unreadable else []
    about = {
        "what": what,
        "checkpoint": saved.path.name,
        "weights_sha256": saved.weights_hash,
        "images_of": len(chosen.samples),
        "unreadable": unreadable,
        "seed": seed,
        "skipped": skipped,
        "image_size": saved.preprocessing.image_size,
        "notes": [*chosen.notes, *found.notes, *unread],
    }
    content = found.model_copy(update=about)
    return content, _pictures(content, chosen, decoded, seed)


def _predict_all(
    saved: SavedModel,
    chosen: EvaluationImages,
    decoded: Mapping[int, Image.Image],
    names: Sequence[str],
    request: StressRequest,
    ui: Ui,
) -> tuple[AnyPredictions, dict[str, list[AnyPredictions]]]:
    """Predictions of the clean images, and corruption -> predictions at strengths 1 to 5."""
    network = open_network(saved, None, request.device, "fp32", ui)
    rows, samples = list(decoded), [chosen.samples[row] for row in decoded]
    passes = [(name, strength) for name in names for strength in range(1, 6)]
    target, positive = saved.splits.target, saved.config.data.positive
    total, start = (1 + len(passes)) * len(rows), time.perf_counter()
    corrupted: dict[str, list[AnyPredictions]] = {name: [] for name in names}
    with ui.bar("evaluating corrupted images") as advance:

        def predicted(number: int, change: Callable[[int], Image.Image]) -> AnyPredictions:
            read = lambda i: saved.preprocessing.fit(change(rows[i]))  # noqa: E731
            progress = lambda done, _: advance(number * len(rows) + done, total)  # noqa: E731
            logits = network.outputs(read, len(rows), progress).logits
            predictions = labelled_by(target, saved.classes, samples, logits, positive, chosen.columns)
            return saved.decided(predictions)

        clean = predicted(0, lambda row: decoded[row])
        if rows and names:
            minutes = max(1, round((time.perf_counter() - start) * len(passes) / 60))
            ui.say(f"about {counted(minutes, 'minute')} (--images takes fewer)")
        seed = request.seed
        for number, (name, strength) in enumerate(passes, 1):
            change = lambda row: corrupt(decoded[row], name, strength, (seed, row))  # noqa: B023, E731  at once
            corrupted[name].append(predicted(number, change))
    return clean, corrupted


def pick_images(labels: Sequence[int], most: int, seed: int) -> list[int]:
    """Which images, in their order: all, or `most` drawn at random, each stratum in proportion and at least once."""
    found = np.asarray(labels, dtype=np.int64)
    if len(found) <= most:
        return list(range(len(found)))
    order = np.random.default_rng([seed, 3]).permutation(len(found))
    turn = np.empty(len(found))
    for k in np.unique(found):
        rows = order[found[order] == k]
        turn[rows] = np.arange(len(rows)) / len(rows)  # 0 for the first of each stratum, so every one has one
    return sorted(int(i) for i in order[np.argsort(turn[order], kind="stable")][:most])


def _decode(how: Preprocessing, chosen: EvaluationImages, rows: Sequence[int], ui: Ui) -> dict[int, Image.Image]:
    """Row -> its image, no larger than the network sees it; a warning on those that cannot be read.

    Raises:
        DataError: none can be read.
    """

    def read(row: int) -> Image.Image | str:
        path = chosen.root / chosen.samples[row].path
        try:
            image = read_image(path, how.channels, frame=how.frame, window=how.window, min_size=how.min_size)
            return reduced(image, how)
        except DataError as error:
            return error.line

    decoded: dict[int, Image.Image] = {}
    problems: list[str] = []
    with ui.bar("reading images") as advance:
        for done, image in enumerate(in_threads(read, rows)):
            if isinstance(image, str):
                problems.append(image)
            else:
                decoded[rows[done]] = image
            advance(done + 1, len(rows))
    if problems and not decoded:
        raise DataError("\n".join(sorted(problems)[:10]), "restore these files, or name others with --data")
    if problems:
        ui.warn(f"{len(problems):,} of {counted(len(rows), 'image')} cannot be read and are left out, such as:")
        ui.warn(problems[0])
    return decoded


def _pictures(
    content: Robustness, chosen: EvaluationImages, decoded: Mapping[int, Image.Image], seed: int
) -> dict[str, list[np.ndarray]]:
    """Title -> one image as it is and at strength 1 to 5; of the positive class where there is one."""
    wanted = None if content.positive_class is None else content.classes.index(content.positive_class)
    positive = (row for row in decoded if chosen.samples[row].label == wanted)
    row = next(positive, next(iter(decoded)))
    return {
        CORRUPTIONS[name].title: [np.asarray(corrupt(decoded[row], name, s, (seed, row))) for s in range(6)]
        for name in content.corruptions
    }
