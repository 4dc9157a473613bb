"""`vitmed stress`: a checkpoint -> what it loses when its images are corrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitmed.checks.evaluation_images import EvaluationImages, ImageRequest, choose_samples
from vitmed.core.errors import DataError, UsageError, unknown_key
from vitmed.core.files import whole_folder, write_bytes, write_json
from vitmed.core.messages import bar, say, warn
from vitmed.core.text import counted
from vitmed.data.samples import labelled_by
from vitmed.data.split_names import SPLITS
from vitmed.data.thread_batches import in_threads
from vitmed.explanation.corruptions import CORRUPTIONS, corrupt, is_grey, reduced
from vitmed.explanation.results import Robustness
from vitmed.explanation.robustness import FOLDER, NUMBERS, measure_robustness
from vitmed.imaging.decode import read_image
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.open_model import open_model, open_network
from vitmed.inference.saved_model import SavedModel
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.report.plots.drawing import png
from vitmed.report.plots.robustness import stress_curves, stress_samples
from vitmed.report.rebuild import new_folder
from vitmed.report.run_description import describe_images

CURVES, SAMPLES = "stress.png", "stress_samples.png"


@dataclass(frozen=True)
class Stress:
    """The numbers of a stress test, as stress.json holds them, and its folder."""

    content: Robustness
    folder: Path


def stress(
    checkpoint: str | Path,
    *,
    data: str | Path | None = None,
    split: str = "test",
    output: str | Path | None = None,
    images: int = 1000,
    corruptions: Sequence[str] = (),
    resamples: int = 500,
    seed: int = 0,
    device: str = "auto",
    group_regex: str | None = None,
    groups: str | Path | None = None,
    labels: str | Path | None = None,
    allow_leakage: bool = False,
) -> Stress:
    """Evaluate a checkpoint on the images of a split, clean and corrupted in several ways and strengths.

    Args:
        checkpoint: a best.pt, last.pt or epoch_0010.pt, a run folder, or an exported .onnx file.
        data, split, group_regex, groups, labels, allow_leakage: which images, as in `evaluate`.
        output: a new folder; default `<run>/stress`.
        images: the most images, a sample in proportion to classes, findings, or ranges of a number.
        corruptions: keys of `CORRUPTIONS`; none: all of them.
        resamples: bootstrap resamples behind the intervals.
        seed: of the sample, the corruptions and the resamples.

    Raises:
        CheckpointError, DataError, UsageError: an argument that cannot be used.
    """
    _check_arguments(corruptions, split, images, resamples, seed)
    saved = open_model(checkpoint)
    folder = new_folder(output, saved.path.parent / FOLDER, saved.splits.root, *([] if data is None else [Path(data)]))
    chosen = choose_samples(saved, ImageRequest(data, split, group_regex, groups, labels), allow_leakage)
    for note in chosen.notes:
        warn(note)
    asked = pick_images([sample.label for sample in chosen.samples], images, seed)
    decoded = _decode(saved.preprocessing, chosen, asked)
    unreadable = len(asked) - len(decoded)
    names, skipped = _applicable(corruptions or list(CORRUPTIONS), saved.preprocessing.channels, decoded.values())
    what, _ = describe_images(chosen)
    say(
        f"{what}: {len(decoded):,} of {counted(len(chosen.samples), 'image')}, "
        f"{counted(len(names), 'corruption')} of 5 strengths, {(1 + 5 * len(names)) * len(decoded):,} passes"
    )
    clean, corrupted = _predict_all(saved, chosen, decoded, names, seed, device)
    found = measure_robustness(clean, corrupted, resamples, seed, saved.splits.target)
    unread = [f"{unreadable:,} images could not be read and are not counted."] if unreadable else []
    about = {
        "what": what, "checkpoint": saved.path.name, "weights_sha256": saved.weights_hash,
        "images_of": len(chosen.samples), "unreadable": unreadable, "seed": seed, "skipped": skipped,
        "image_size": saved.preprocessing.image_size, "notes": [*chosen.notes, *found.notes, *unread],
    }  # fmt: skip
    content = found.model_copy(update=about)
    with whole_folder(folder) as part:
        if (figure := stress_curves(content)) is not None:
            write_bytes(part / CURVES, png(figure))
            write_bytes(part / SAMPLES, png(stress_samples(_pictures(content, chosen, decoded, seed))))
        write_json(part / NUMBERS, content.to_dict())
    say(content.verdict)
    say(f"stress test: {folder / NUMBERS}; the next `vitmed evaluate` shows it in its report")
    return Stress(content, folder)


def _check_arguments(corruptions: Sequence[str], split: str, images: int, resamples: int, seed: int) -> None:
    """Raises UsageError for an unknown corruption or split, or a number that is out of range."""
    for name in corruptions:
        if name not in CORRUPTIONS:
            raise unknown_key("corruption", name, CORRUPTIONS)
    if split not in SPLITS:
        raise unknown_key("split", split, SPLITS)
    if images < 1 or resamples < 0 or seed < 0:
        given = f"--images {images}, --resamples {resamples}, --seed {seed}"
        raise UsageError(given, "--images is 1 or more, the others are 0 or more")


def _predict_all(
    saved: SavedModel, chosen: EvaluationImages, decoded: Mapping[int, Image.Image], names: Sequence[str], seed: int,
    device: str,
) -> tuple[AnyPredictions, dict[str, list[AnyPredictions]]]:  # fmt: skip
    """Predictions of the clean images, and corruption -> predictions at strengths 1 to 5."""
    network = open_network(saved, None, device, "fp32")
    rows, samples = list(decoded), [chosen.samples[row] for row in decoded]
    passes = [(name, strength) for name in names for strength in range(1, 6)]
    target, positive = saved.splits.target, saved.config.data.positive
    total, start = (1 + len(passes)) * len(rows), time.perf_counter()
    corrupted: dict[str, list[AnyPredictions]] = {name: [] for name in names}
    with bar("evaluating corrupted images") as advance:

        def predicted(number: int, change: Callable[[int], Image.Image]) -> AnyPredictions:
            read = lambda i: saved.preprocessing.fit(change(rows[i]))  # noqa: E731
            progress = lambda done, _: advance(number * len(rows) + done, total)  # noqa: E731
            logits = network.outputs(read, len(rows), progress).logits
            predictions = labelled_by(target, saved.classes, samples, logits, positive, chosen.columns)
            return predictions if saved.policy is None else saved.policy.apply(predictions)

        clean = predicted(0, lambda row: decoded[row])
        if rows and names:
            minutes = max(1, round((time.perf_counter() - start) * len(passes) / 60))
            say(f"about {counted(minutes, 'minute')} (--images takes fewer)")
        for number, (name, strength) in enumerate(passes, 1):
            change = lambda row: corrupt(decoded[row], name, strength, (seed, row))  # noqa: B023, E731  used at once
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


def _decode(how: Preprocessing, chosen: EvaluationImages, rows: Sequence[int]) -> dict[int, Image.Image]:
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
    with bar("reading images") as advance:
        for done, image in enumerate(in_threads(read, rows)):
            if isinstance(image, str):
                problems.append(image)
            else:
                decoded[rows[done]] = image
            advance(done + 1, len(rows))
    if problems and not decoded:
        raise DataError("\n".join(sorted(problems)[:10]), "restore these files, or name others with --data")
    if problems:
        warn(f"{len(problems):,} of {counted(len(rows), 'image')} cannot be read and are left out, such as:")
        warn(problems[0])
    return decoded


def _applicable(names: Sequence[str], channels: int, images: Iterable[Image.Image]) -> tuple[list[str], dict[str, str]]:
    """The corruptions that change these images, and key -> why the others are left out."""
    reason = "the network sees grey" if channels < 3 else "the images are grey" if all(map(is_grey, images)) else None
    skipped = {name: f"needs colour, and {reason}" for name in names if CORRUPTIONS[name].colour and reason is not None}
    return [name for name in names if name not in skipped], skipped


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
