"""The evaluation of a model on images: its settings, what it predicts for others, and its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitmed.checks.evaluation_images import EvaluationImages
from vitmed.core import upgrade
from vitmed.core.config import EvaluateConfig, evaluate_config
from vitmed.core.errors import DataError, UsageError
from vitmed.core.files import json_of, read_json_lines
from vitmed.core.messages import bar, say, warn
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted
from vitmed.data.folders import image_files
from vitmed.decisions.evaluation_folder import read_split, torn_evaluations
from vitmed.decisions.policy import DecisionPolicy
from vitmed.decisions.targets import refuse_idle
from vitmed.explanation.robustness import known_stress
from vitmed.imaging.preprocessing import thumbnail
from vitmed.inference.saved_model import Network, SavedModel
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import OOD_SCORE, WRITTEN
from vitmed.metrics.readers import check_readers
from vitmed.report.analyses import Extra
from vitmed.report.participant_flow import run_flow
from vitmed.report.results import Results
from vitmed.report.write import About, Report

MOST_OTHERS = 2000  # other images to score at most


def score_other_images(
    folder: Path, saved: SavedModel, network: Network, policy: DecisionPolicy | None
) -> DecisionPolicy:
    """The policy with the OOD scores of at most `MOST_OTHERS` images of a folder, evenly spread.

    Raises:
        UsageError: the model has no OOD score. DataError: no image in the folder can be read.
    """
    if policy is None or policy.ood_score is None:
        raise UsageError(
            f"{saved.path}: has no out-of-distribution score, which --unlike needs", "train again with this version"
        )
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder", "--unlike DIR names a folder of other images")
    files = image_files(folder)
    files = files[:: max(1, -(-len(files) // MOST_OTHERS))]
    with bar("other images") as advance:
        found = network.outputs(lambda i: saved.preprocessing.read(files[i]), len(files), advance)
    if not found.indices:
        raise DataError(f"{folder}: holds no image that can be read", "--unlike DIR names a folder of other images")
    if found.problems:
        warn(f"{folder}: {len(found.problems):,} of {counted(len(files), 'image')} could not be read")
    return policy.model_copy(update={"other_scores": tuple(map(float, found.columns[OOD_SCORE]))})


def evaluate_settings(
    saved: SavedModel, chosen: EvaluationImages, flags: dict[str, Any]
) -> tuple[EvaluateConfig, list[str]]:
    """The settings of the run with the flags, as far as they fit the images and this machine; and notes on the rest."""
    notes: list[str] = []
    config = saved.config.evaluate.model_copy(update={"report": True})  # also of a run with --no-report
    config, run = evaluate_config(config, flags), saved.config
    refuse_idle(run.model_copy(update={"evaluate": config}), saved.splits.target.kind, run)
    own = [name for name in chosen.columns if name not in WRITTEN]  # vitmed 0.2.0 took tables that have such columns
    config = with_columns(config, flags, own, notes)
    note_prevalence(config, saved.splits.target.kind, saved.classes, notes)
    rows, paths = [sample.columns for sample in chosen.samples], [sample.path for sample in chosen.samples]
    check_readers(config, chosen.columns, rows, paths, saved.classes)
    return config, notes


def _own_test(saved: SavedModel, run: RunFolder, policy: DecisionPolicy | None) -> Predictions | None:
    """What the model predicts for the test of its own run; None where that is not known, with a message why."""
    found = read_split(run, "test", saved.weights_hash, policy)
    if found is None:
        why = f"{saved.path.name} is not evaluated on it yet (vitmed evaluate {saved.path})"
        for torn in torn_evaluations(run):
            why = f"{torn} is incomplete (vitmed train --resume {run.path} writes it again)"
        say(f"no comparison with the test of the run: {why}")
    return found


def data_notes(run: RunFolder) -> list[str]:
    """The notes of the data check before the training, for the head of the report."""
    try:
        return [str(note) for note in json_of(run.data_check.read_text(encoding="utf-8"))["notes"]]
    except (OSError, ValueError, KeyError, TypeError):  # an older run has no such file
        return []


@dataclass(frozen=True)
class ModelOnImages:
    """A model, the images that evaluate it, of the split that was asked for, and notes for the head of the report."""

    saved: SavedModel
    network: Network
    policy: DecisionPolicy | None
    chosen: EvaluationImages
    split: str
    config: EvaluateConfig
    notes: list[str]

    @property
    def own(self) -> str | None:
        """The split of the run that the images are; None for other images."""
        return self.chosen.part if self.chosen.own else None


def report_images(
    folder: Path,
    used: ModelOnImages,
    predictions: Predictions,
    baselines: Callable[[], Mapping[str, Predictions]] | None,
) -> Results:
    """Check the attention maps and write the report of an evaluation into a new folder.

    Args:
        predictions: of the model for the images, with its policy applied.
        baselines: returns predictions of the baselines for the same images; None: those that training evaluated.
    """
    saved, chosen, config, policy = used.saved, used.chosen, used.config, used.policy
    network, own, run = used.network, used.own, RunFolder(saved.path.parent)
    what, where = describe_images(chosen)[0], f"{network.device}, {network.precision}"
    # The maps take half a minute.
    quick = config.map_images is None and (chosen.part in ("train", "val") or not config.report)
    attention, maps = None, None
    if network.model is not None and not quick:  # an exported model has no attention
        from vitmed.explanation.faithfulness import check_attention

        attention, maps = check_attention(
            network.model, saved.preprocessing, chosen.read, predictions, config.map_images
        )
    internal = _own_test(saved, run, policy) if own is None else None
    beside = fitting_baselines(run.path / own, predictions) if own and baselines is None else {}
    with bar("drawing the report", unit="steps"):
        about = About(
            title=what,
            facts=facts(saved, what, len(chosen.samples), where),
            notes=used.notes,
            run=run.name,
            weights_hash=saved.weights_hash,
            precision=network.precision,
            flow=run_flow(saved, run, own, predictions, config.subgroups, chosen.seen),
        )
        extra = Extra(
            validation=read_split(run, "val", saved.weights_hash, policy) if used.split != "val" else None,
            internal=internal,
            baselines=baselines() if baselines else {key: p for key, p in beside.items() if p is not None},
            policy=policy,
            parts={"attention": attention, "robustness": known_stress(run.path, saved.weights_hash)},
            maps=maps,
            read=lambda path: thumbnail(chosen.root / path, saved.preprocessing),
            records=upgrade.records(read_json_lines(run.metrics)),
        )
        return Report.of(predictions, about, config, extra).write(folder)
