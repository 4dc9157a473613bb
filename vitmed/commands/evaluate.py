"""`vitmed evaluate`: a checkpoint -> predictions of a labelled split -> a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.checks.evaluation_images import EvaluationImages, ImageRequest, choose_samples
from vitmed.core import upgrade
from vitmed.core.errors import DataError, UsageError, unknown_key
from vitmed.core.evaluate_config import EvaluateConfig
from vitmed.core.files import json_of, read_json_lines, write_text
from vitmed.core.flags import evaluate_config
from vitmed.core.messages import bar, say, warn
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted
from vitmed.data.folders import image_files
from vitmed.data.samples import labelled_by
from vitmed.data.split_names import SPLITS
from vitmed.data.thread_batches import check_readable
from vitmed.decisions.evaluation_folder import (
    read_split,
    take_place,
    torn_evaluations,
)
from vitmed.decisions.policy import DecisionPolicy, notes_of
from vitmed.decisions.targets import refuse_idle
from vitmed.explanation.robustness import known_stress
from vitmed.imaging.preprocessing import thumbnail
from vitmed.inference.open_model import open_model, open_network
from vitmed.inference.saved_model import Network, SavedModel, check_precision, policy_for
from vitmed.metrics.kinds.any_predictions import AnyPredictions
from vitmed.metrics.predictions_csv import OOD_SCORE, WRITTEN
from vitmed.report.headline import Evaluation, parse_gates, report_evaluation
from vitmed.report.model_card import edited, model_card
from vitmed.report.participant_flow import run_flow
from vitmed.report.rebuild import match_images, new_folder, note_prevalence, rebuild, with_columns
from vitmed.report.run_description import describe_images, facts
from vitmed.report.write import read_baselines, write_report
from vitmed.training.check_readers import check_readers

MOST_OTHERS = 2000  # other images to score at most


def evaluate(
    checkpoint: str | Path,
    *,
    data: str | Path | None = None,
    split: str = "test",
    output: str | Path | None = None,
    device: str = "auto",
    precision: str = "fp32",
    group_regex: str | None = None,
    groups: str | Path | None = None,
    labels: str | Path | None = None,
    fail_under: Sequence[str] = (),
    allow_leakage: bool = False,
    unlike: str | Path | None = None,
    baselines: Callable[[], Mapping[str, AnyPredictions]] | None = None,
    **flags: Any,
) -> Evaluation:
    """Evaluate a checkpoint on a labelled split and write the report.

    Args:
        checkpoint: a best.pt, last.pt or epoch_0010.pt; an exported .onnx file; or a predictions.csv, whose report is
            made again without model, images and pictures.
        data: another folder; classes are matched by name. Default: the images that the run held out.
        split: "test", "val" or "train".
        precision: "fp32", whose numbers other machines reproduce; "auto" or "bf16": see `predict`.
        output: a new folder for the report; default `<run>/<split>`.
        group_regex: finds the patient in the paths of `data`; default: the expression of the run.
        groups: instead of `group_regex`, "names", "dicom" or a CSV table; as in `train`.
        labels: a CSV table with the class of the images in `data`; as in `train`.
        fail_under: "metric=value" gates; GateError (exit code 6) after the report is written.
        allow_leakage: evaluate on `data` even if the model was trained on some of it.
        unlike: a folder of other images, to see whether the model notices them.
        baselines: returns predictions of the baselines for the same images; called after the model has predicted.
        **flags: the names in `EVALUATE_FLAGS`, such as resamples=500; default: those of the run.

    Raises:
        CheckpointError, DataError, UsageError: an argument that cannot be used. GateError: a gate that is not met.
    """
    gates = parse_gates(fail_under)
    if Path(checkpoint).suffix == ".csv":
        of_images = {
            "data": data, "group-regex": group_regex, "groups": groups, "labels": labels, "unlike": unlike,
            "split": split != "test", "device": device != "auto", "precision": precision != "fp32",
            "allow-leakage": allow_leakage,
        }  # fmt: skip
        if given := [f"--{flag}" for flag, value in of_images.items() if value]:
            problem = f"{', '.join(given)}: a predictions.csv is evaluated without model and images"
            raise UsageError(problem, "leave it out, or name the checkpoint instead of the table")
        return rebuild(Path(checkpoint), output, gates, flags)
    if split not in SPLITS:
        raise unknown_key("split", split, SPLITS)
    check_precision(precision)
    saved = open_model(checkpoint)
    closed = [saved.splits.root, *(Path(place) for place in (data, unlike) if place is not None)]
    if output is not None:
        new_folder(output, Path(output), *closed)  # raises now, not after all images were compared with the run's
    chosen = choose_samples(saved, ImageRequest(data, split, group_regex, groups, labels), allow_leakage)
    config, added = _settings(saved, chosen, flags)
    policy = policy_for(saved, config)
    root, samples, notes = chosen.root, chosen.samples, [*chosen.notes, *notes_of(policy), *added]
    what, name = describe_images(chosen)
    run = RunFolder(saved.path.parent)
    folder = new_folder(output, run.path / name, *closed)
    network = open_network(saved, policy, device, precision)
    used = f"{network.device}, {network.precision}"

    def read(index: int) -> np.ndarray:
        return saved.preprocessing.read(root / samples[index].path)

    say(f"evaluating {saved.path} on {counted(len(samples), 'image')}: {what}")
    warned = () if baselines is None or policy is None else policy.notes  # training warned of them
    for note in notes:
        if note not in warned:
            warn(note)
    notes += data_notes(run) if data is None else []
    notes += [f"Predicted in {network.precision}, not in fp32: {network.reason}."] if network.reason else []
    predictions = _predict(saved, network, policy, chosen, read)
    if unlike is not None:
        policy = score_other_images(Path(unlike), saved, network, policy)
    # The maps take half a minute.
    quick = config.map_images is None and (chosen.part in ("train", "val") or not config.report)
    attention, maps = None, None
    if network.model is not None and not quick:  # an exported model has no attention
        from vitmed.explanation.evaluation_maps import check_attention

        attention, maps = check_attention(network.model, saved.preprocessing, read, predictions, config.map_images)
    own = split if chosen.own else None
    internal = _own_test(saved, run, policy) if own is None else None
    known: Mapping[str, AnyPredictions] = _known_baselines(run.path / split, predictions) if own else {}
    with bar("drawing the report", unit="steps"):
        metrics = write_report(
            folder, predictions, title=what, facts=facts(saved, what, len(samples), used),
            read=lambda path: thumbnail(root / path, saved.preprocessing),
            records=upgrade.records(read_json_lines(run.metrics)) or None,
            validation=read_split(run, "val", saved.weights_hash, policy) if split != "val" else None,
            internal=internal, config=config, notes=notes, policy=policy, weights_hash=saved.weights_hash,
            baselines=baselines() if baselines is not None else known,
            found={"attention": attention, "robustness": known_stress(run.path, saved.weights_hash)}, maps=maps,
            flow=run_flow(saved, run, own, predictions, config.subgroups, chosen.seen), run=run.name,
            precision=network.precision,
        )  # fmt: skip
    if output is None:
        folder = take_place(folder, run.path / name)
    if own == "test" and output is None and saved.path.name == run.best.name:
        write_card(run, Evaluation(predictions, metrics, folder))
    return report_evaluation(Evaluation(predictions, metrics, folder), gates)


def _predict(
    saved: SavedModel, network: Network, policy: DecisionPolicy | None, chosen: EvaluationImages,
    read: Callable[[int], np.ndarray],
) -> AnyPredictions:  # fmt: skip
    """What the model predicts for the chosen images, with the policy applied. Raises DataError if one is unreadable."""
    with bar(f"evaluating {describe_images(chosen)[1]}") as advance:
        _, logits, scores, problems, _ = network.outputs(read, len(chosen.samples), advance)
    check_readable(problems)
    positive = saved.config.data.positive
    found = labelled_by(saved.splits.target, saved.classes, chosen.samples, logits, positive, chosen.columns)
    found = replace(found, columns={**scores, **found.columns})
    return found if policy is None else policy.apply(found)


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


def _settings(saved: SavedModel, chosen: EvaluationImages, flags: dict[str, Any]) -> tuple[EvaluateConfig, list[str]]:
    """The settings of the run with the flags, as far as they fit the images and this machine; and notes on the rest."""
    notes: list[str] = []
    config = saved.config.evaluate.model_copy(update={"report": True})  # also of a run with --no-report
    config, run = evaluate_config(config, flags), saved.config
    refuse_idle(run.model_copy(update={"evaluate": config}), saved.splits.target.kind, run)
    own = [name for name in chosen.columns if name not in WRITTEN]  # vitmed 0.2.0 took tables that have such columns
    config = with_columns(config, flags, own, notes)
    note_prevalence(config, saved.splits.target.kind, saved.classes, notes)
    check_readers(config, chosen.samples, chosen.columns, saved.classes)
    return config, notes


def _own_test(saved: SavedModel, run: RunFolder, policy: DecisionPolicy | None) -> AnyPredictions | None:
    """What the model predicts for the test of its own run; None where that is not known, and why goes to the user."""
    found = read_split(run, "test", saved.weights_hash, policy)
    if found is None:
        why = f"{saved.path.name} is not evaluated on it yet (vitmed evaluate {saved.path})"
        for torn in torn_evaluations(run):
            why = f"{torn} is incomplete (vitmed train --resume {run.path} writes it again)"
        say(f"no comparison with the test of the run: {why}")
    return found


def write_card(run: RunFolder, test: Evaluation) -> None:
    """Write model_card.md, unless somebody has edited it."""
    file, card = run.model_card, model_card(test.metrics, run.path.resolve().name, test.folder.name)
    if file.is_file() and edited(file.read_text(encoding="utf-8", errors="replace")):
        warn(f"{file} was edited and is not replaced; remove it to get a new one with these numbers")
    else:
        write_text(file, card)


def data_notes(run: RunFolder) -> list[str]:
    """The notes of the data check before the training, for the head of the report."""
    try:
        return [str(note) for note in json_of(run.data_check.read_text(encoding="utf-8"))["notes"]]
    except (OSError, ValueError, KeyError, TypeError):  # an older run has no such file
        return []


def _known_baselines(folder: Path, predictions: AnyPredictions) -> dict[str, AnyPredictions]:
    """The baselines that training evaluated on the very same images, if any."""
    matched = {key: match_images(other, predictions) for key, other in read_baselines(folder).items()}
    return {key: other for key, other in matched.items() if other is not None}
