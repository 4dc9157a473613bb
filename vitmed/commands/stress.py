"""`vitmed stress`: a checkpoint -> what it loses when its images are corrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitmed.checks.evaluation_images import ImageRequest, choose_samples
from vitmed.core.files import whole_folder, write_bytes, write_json
from vitmed.core.messages import say, warn
from vitmed.explanation.results import Robustness
from vitmed.explanation.robustness import FOLDER, NUMBERS, StressRequest, stress_images
from vitmed.inference.open_model import open_model
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
    request = StressRequest(corruptions, split, images, resamples, seed, device)
    saved = open_model(checkpoint)
    folder = new_folder(output, saved.path.parent / FOLDER, saved.splits.root, *([] if data is None else [Path(data)]))
    chosen = choose_samples(saved, ImageRequest(data, split, group_regex, groups, labels), allow_leakage)
    for note in chosen.notes:
        warn(note)
    content, pictures = stress_images(saved, chosen, describe_images(chosen)[0], request)
    with whole_folder(folder) as part:
        if (figure := stress_curves(content)) is not None:
            write_bytes(part / CURVES, png(figure))
            write_bytes(part / SAMPLES, png(stress_samples(pictures)))
        write_json(part / NUMBERS, content.to_dict())
    say(content.verdict)
    say(f"stress test: {folder / NUMBERS}; the next `vitmed evaluate` shows it in its report")
    return Stress(content, folder)
