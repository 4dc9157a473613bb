"""`vitmed stress`: a checkpoint -> what it loses when its images are corrupted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from vitmed.checks.evaluation_images import ImageRequest, choose_samples
from vitmed.core.errors import UsageError, excluded
from vitmed.core.files import whole_folder, write_bytes, write_json
from vitmed.core.messages import say, warn
from vitmed.core.options import AllowLeakage, Argument, AskedWindow, LabelledData, Option, Split
from vitmed.core.places import output_folder
from vitmed.explanation.results import Robustness
from vitmed.explanation.robustness import FOLDER, NUMBERS, StressRequest, stress_images
from vitmed.imaging.preprocessing import JointPreprocessing
from vitmed.inference.open_model import open_model, with_window
from vitmed.report.evaluate import describe_images
from vitmed.report.plots.curves import stress_curves
from vitmed.report.plots.drawing import png


@dataclass(frozen=True)
class Stress:
    """The numbers of a stress test, as stress.json holds them, and its folder."""

    content: Robustness
    folder: Path


def stress(
    checkpoint: Annotated[Path | str, Argument("A run folder, a checkpoint, or an exported .onnx file.")],
    *,
    data: LabelledData = None,
    split: Split = "test",
    allow_leakage: AllowLeakage = False,
    output: Annotated[Path | str | None, Option("Folder; default stress beside the checkpoint.", "--output -o")] = None,
    images: Annotated[int, Option("Take a stratified sample of at most this many; default 1000.", min=1)] = 1000,
    corruptions: Annotated[Sequence[str], Option("Only this one, such as jpeg; can be repeated.", "--corruption")] = (),
    seed: Annotated[int, Option("Seed of the sample and of the corruptions; default 0.", min=0)] = 0,
    group_regex: str | None = None,
    groups: str | Path | None = None,
    labels: str | Path | None = None,
    device: str = "auto",
    window: AskedWindow = None,
) -> Stress:
    """Evaluate a checkpoint on the images of a split, clean and corrupted in several ways and strengths.

    Args:
        checkpoint: a best.pt, last.pt or epoch_0010.pt, a run folder, or an exported .onnx file.
        data, split, group_regex, groups, labels, allow_leakage: which images, as in `evaluate`.
        window: of deep images, as in `predict`.
        corruptions: keys of `CORRUPTIONS`; none: all of them.

    Raises:
        CheckpointError, DataError, UsageError: an argument that cannot be used.
    """
    if data is None and labels is not None:
        raise excluded("images of stress")
    request = StressRequest(corruptions, split, images, seed, device)
    saved = with_window(open_model(checkpoint), window)
    if isinstance(saved.preprocessing, JointPreprocessing):
        raise UsageError(f"{saved.path}: its members read images differently", "name the best.pt of a member")
    closed = [saved.splits.root, *([] if data is None else [Path(data)])]
    folder = output_folder(output, saved.path.parent / FOLDER, *closed)
    chosen = choose_samples(saved, ImageRequest(data, split, group_regex, groups, labels), allow_leakage)
    for note in chosen.notes:
        warn(note)
    content = stress_images(saved, chosen, describe_images(chosen)[0], request)
    with whole_folder(folder) as part:
        if (figure := stress_curves(content, "patient" if data else saved.splits.unit)) is not None:
            write_bytes(part / "stress.png", png(figure))
        write_json(part / NUMBERS, content.to_dict())
    say(content.verdict)
    shown = "; the next `vitmed evaluate` of these images shows it" * (folder == saved.path.parent / FOLDER)
    say(f"stress test: {folder / NUMBERS}{shown}")
    return Stress(content, folder)
