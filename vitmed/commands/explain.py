"""`vitmed explain`: attention maps of a checkpoint."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np

from vitmed.core.base_models import SIDES
from vitmed.core.errors import DataError, UsageError, unknown_key
from vitmed.core.files import whole_folder, write_bytes, write_json
from vitmed.core.messages import bar, say
from vitmed.core.options import CHECKPOINT, AskedWindow, Images, Option, Runs
from vitmed.core.places import output_folder
from vitmed.core.text import counted
from vitmed.explanation.attention import METHODS, PICTURE, Explanation, explain_predictions, explanation_json
from vitmed.explanation.results import OF_ENSEMBLE, OF_OTHER, TITLES, UNCHECKED, Maps, known_verdicts
from vitmed.imaging.preprocessing import JointPreprocessing
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.ensemble import Ensemble
from vitmed.inference.open_model import files_for, find_checkpoint, find_named, list_images, open_network, paths_of
from vitmed.report.plots.drawing import png
from vitmed.report.plots.pictures import attention_maps as draw

NUMBERS = "explain.json"


def explain(
    images: Images,
    *,
    checkpoint: Annotated[Path | str | Checkpoint | None, CHECKPOINT] = None,
    runs: Runs = "runs",
    methods: Annotated[
        Sequence[str], Option("rollout, gradient_rollout or grad_cam; can be repeated; default all.", "--method")
    ] = (),
    target: Annotated[
        str | None, Option("Class or finding to explain, or higher or lower; default what is predicted.")
    ] = None,
    output: Annotated[Path | str | None, Option("Folder of the pictures; default explain.", "--output -o")] = None,
    device: str = "auto",
    frame: int | None = None,
    window: AskedWindow = None,
) -> Explanation:
    """Draw where the network looked when it answered.

    Args:
        images, checkpoint, runs, frame, window: as in `predict`.
        methods: keys of `attention.METHODS`; none: all of them.
        target: the class or the finding to explain, of a number "higher" or "lower" than the mean of training; default
            the predicted class of each image, the likeliest finding beside its threshold, the side of the prediction.

    Raises:
        DataError: no readable image. CheckpointError: no run, or a checkpoint that cannot be used.
        UsageError: an unknown method or class, or an output that cannot be used.
    """
    named = paths_of(images)
    if unknown := [name for name in methods if name not in METHODS]:
        raise unknown_key("method", unknown[0], METHODS)
    saved = find_checkpoint(checkpoint, runs)
    joint = isinstance(saved.preprocessing, JointPreprocessing)
    if joint or not isinstance(saved, Checkpoint | Ensemble):
        what = "members that read images differently have" if joint else "an exported model has"
        raise UsageError(f"{saved.path}: {what} no attention maps", "name the best.pt of a run")
    answers = SIDES if (kind := saved.splits.target.kind) == "number" else saved.classes
    if target is not None and target not in answers:
        raise unknown_key({"findings": "finding", "number": "side"}.get(kind, "class"), target, answers)
    folder = output_folder(output, Path("explain"), saved.splits.root, *filter(Path.is_dir, find_named(named)))
    files = files_for(list_images(named), saved, frame, window)
    network = open_network(saved, saved.policy, device, "fp32")
    with bar("predicting") as advance:
        predictions = saved.decided(files.predictions(saved, network.outputs(files.read, len(files), advance)))
    if not len(predictions):
        raise DataError("\n".join(text for _, text in predictions.errors[:20]), "name images that can be read")
    chosen = predictions.explained if target is None else np.full(len(predictions), answers.index(target))
    maps = explain_predictions(saved, predictions, chosen, device, files.how)
    maps = replace(maps, grids={name: maps.grids[name] for name in METHODS if name in (methods or METHODS)})
    known = known_verdicts(saved) if (chosen == predictions.explained).all() else dict.fromkeys(METHODS, OF_OTHER)
    known = dict.fromkeys(METHODS, OF_ENSEMBLE) if isinstance(saved, Ensemble) else known
    verdicts = {name: text for name, text in known.items() if name in maps.grids}
    explanation = Explanation(predictions, maps.grids, maps.targets, verdicts, folder, maps.shift)
    _write(explanation, maps, saved.path.name)
    for name in maps.grids:
        say(f"{TITLES[name]}: {verdicts.get(name, UNCHECKED)}")
    side = maps.grids[next(iter(maps.grids))].shape[1]
    say(f"maps of {side} x {side} patches show nothing smaller than {100 / side:.0f} % of the side")
    say(f"{counted(len(predictions), 'picture')} in the folder {folder}")
    return explanation


def _write(explanation: Explanation, maps: Maps, checkpoint: str) -> None:
    predictions = explanation.predictions
    with whole_folder(explanation.folder) as part, bar("drawing", unit="pictures") as advance:
        for i in range(len(predictions)):
            row = slice(i, i + 1)
            grids = {name: grid[row] for name, grid in maps.grids.items()}
            figure = draw(predictions, Maps(maps.images[row], maps.targets[row], grids, maps.rows[row], maps.shift))
            assert figure is not None
            write_bytes(part / PICTURE.format(i + 1), png(figure))
            advance(i + 1, len(predictions))
        write_json(part / NUMBERS, explanation_json(explanation, checkpoint))
