"""`vitmed evaluate`: a checkpoint -> predictions of a labelled split -> a report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.checkpoint import Checkpoint, load_checkpoint
from vitmed.config import ModelConfig
from vitmed.errors import DataError, GateError, UsageError, unknown_key
from vitmed.inference import predict_logits
from vitmed.metrics import METRICS
from vitmed.predictions import Predictions
from vitmed.report import write_report
from vitmed.run import RunFolder, free_name, read_json_lines
from vitmed.splits import SPLITS, Sample, class_names, compile_group, data_folder, scan, split_folders
from vitmed.ui import Ui
from vitmed.world import describe, pick_device


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation gave: the predictions, the metrics with intervals, the folder of the report."""

    predictions: Predictions
    metrics: dict[str, Any]
    folder: Path


def evaluate(
    checkpoint: str | Path,
    *,
    data: str | Path | None = None,
    split: str = "test",
    output: str | Path | None = None,
    device: str = "auto",
    fail_under: Sequence[str] = (),
    allow_leakage: bool = False,
    resamples: int = 2000,
    ui: Ui | None = None,
) -> Evaluation:
    """Judge a checkpoint on a labelled split and write the report.

    Args:
        checkpoint: a best.pt, last.pt or epoch_0010.pt; or a predictions.csv, whose report is then made again
            without model or images (and so without pictures).
        data: another folder; classes are matched by name. Default: the images that the run held out.
        split: "test", "val" or "train".
        output: folder of the report; default `<run>/<split>`, never one that is there.
        fail_under: "metric=value" gates; GateError (exit code 6) after the report is written.
        allow_leakage: judge `data` although some of it was trained on.
        resamples: bootstrap resamples for the intervals.

    Raises:
        CheckpointError, DataError, UsageError: what cannot be used. GateError: a gate not met.
    """
    ui = ui or Ui()
    gates = parse_gates(fail_under)
    if Path(checkpoint).suffix == ".csv":
        return _rebuild(Path(checkpoint), output, gates, resamples, ui)
    if split not in SPLITS:
        raise unknown_key("split", split, SPLITS)
    saved = load_checkpoint(checkpoint)
    root, samples, notes = choose_samples(saved, data, split, allow_leakage, ui)
    name = split if data is None else Path(data).resolve().name
    run = RunFolder(saved.path.parent)
    folder = _new_folder(output, run.path / name)
    where = pick_device(device)
    model = saved.model().to(where)

    def read(index: int) -> np.ndarray:
        return saved.preprocessing.read(root / samples[index].path)

    ui.say(f"evaluating {saved.path} on {len(samples):,} images of {name}")
    with ui.bar(f"evaluating {name}") as advance:
        indices, logits, problems = predict_logits(
            model, saved.preprocessing, read, len(samples), where, progress=advance
        )
    if problems:
        raise DataError("\n".join(problems.values()), "mend or remove these files")
    predictions = to_predictions(saved.classes, [samples[i] for i in indices], logits)
    with ui.bar("drawing the report", unit="steps"):
        metrics = write_report(
            folder,
            predictions,
            title=f"{name} of {root.resolve().name}",
            facts=facts(saved, split, len(samples), describe(where)),
            read=lambda path: saved.preprocessing.read(root / path),
            records=read_json_lines(run.metrics) or None,
            resamples=resamples,
            notes=notes,
        )
    return _finish(Evaluation(predictions, metrics, folder), gates, ui)


def _rebuild(file: Path, output: str | Path | None, gates: dict[str, float], resamples: int, ui: Ui) -> Evaluation:
    predictions = Predictions.from_csv(file)
    folder = _new_folder(output, file.parent / "report")
    metrics = write_report(
        folder, predictions, title=f"report of {file.name}", facts={"Made from": file.name}, resamples=resamples
    )
    return _finish(Evaluation(predictions, metrics, folder), gates, ui)


def _new_folder(output: str | Path | None, default: Path) -> Path:
    """Where a report goes: the default or, where that is there, the default with -2, -3, ..."""
    if output is None:
        return free_name(default)
    folder = Path(output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is there already and not empty", "name a new folder with --output")
    return folder


def _finish(evaluation: Evaluation, gates: dict[str, float], ui: Ui) -> Evaluation:
    ui.say(headline(evaluation.metrics))
    ui.say(f"report: {evaluation.folder / 'report.html'}")
    check_gates(gates, evaluation.metrics, evaluation)
    return evaluation


def to_predictions(classes: tuple[str, ...], samples: Sequence[Sample], logits: np.ndarray) -> Predictions:
    """Labelled predictions; patients only where every image has one."""
    groups = tuple(str(s.group) for s in samples) if all(s.group is not None for s in samples) else None
    labels = np.array([s.label for s in samples], dtype=np.int64)
    return Predictions(classes, tuple(s.path for s in samples), groups, labels, logits)


def choose_samples(
    saved: Checkpoint, data: str | Path | None, split: str, allow_leakage: bool, ui: Ui
) -> tuple[Path, list[Sample], list[str]]:
    """The images to judge: the run's own split, that split in a folder that moved, or a folder of others.

    Returns:
        the root, the samples, and notes for the head of the report.
    """
    notes = []
    if split != "test":
        notes.append(f"This is the {split} split: it took part in making the model, so its numbers are optimistic.")
    own = list(saved.splits.samples[split])
    if data is None:
        root, samples = saved.data_root(), own
        changed = sum(sha256(root / s.path) != digest for s, digest in zip(own, saved.hashes[split], strict=True))
        if changed:
            notes.append(f"{changed:,} images of the {split} split have changed or gone since the run.")
    else:
        root = data_folder(data)
        if [sha256(root / sample.path) for sample in own] == saved.hashes[split]:
            samples = own
            ui.say(f"{root} holds the images that the run knows: taking its own {split} split")
        else:
            samples = foreign_samples(saved, root, split)
            _refuse_leakage(saved, root, samples, allow_leakage, notes)
    if not all(sample.group is not None for sample in samples):
        notes.append("Split by image: likely optimistic. Patients are unknown, so one may be in two splits.")
    missing = [name for k, name in enumerate(saved.classes) if not any(s.label == k for s in samples)]
    if missing:
        notes.append(f"No image of class {', '.join(missing)}: what needs it is undefined.")
    for note in notes:
        ui.warn(note)
    return root, samples, notes


def foreign_samples(saved: Checkpoint, root: Path, split: str) -> list[Sample]:
    """The labelled images of another folder, classes matched by name; of its `split` folder where it has one."""
    folder = split_folders(root).get(split, root)
    unknown = sorted(set(class_names(folder)) - set(saved.classes))
    if unknown:
        raise DataError(
            f"{folder}: the model does not know class {', '.join(unknown)}; it knows {', '.join(saved.classes)}",
            "rename the folders to the model's classes, or remove them",
        )
    samples = scan(root, folder, list(saved.classes), compile_group(saved.config.data.group_regex))
    if not samples:
        raise DataError(f"{folder}: no images in its class folders", "name a folder of labelled images")
    return samples


def _refuse_leakage(saved: Checkpoint, root: Path, samples: list[Sample], allow: bool, notes: list[str]) -> None:
    known = {digest for name in ("train", "val") for digest in saved.hashes[name]}
    seen = [root / sample.path for sample in samples if sha256(root / sample.path) in known]
    if not seen:
        return
    text = f"{len(seen):,} of {len(samples):,} images were used to make this model (train or val)"
    if not allow:
        raise DataError(f"{root}: {text}, the first is {seen[0]}", "judge it on others, or say --allow-leakage")
    notes.append(f"Leakage: {text}; the result is flattered.")


def sha256(path: Path) -> str | None:
    """Of a file's content, in hexadecimal; None where there is no file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def facts(saved: Checkpoint, split: str, images: int, device: str) -> dict[str, str]:
    """What the report says of data, model and training."""
    model, train, config = saved.config.model, saved.config.train, saved.config
    counts = {name: len(samples) for name, samples in saved.splits.samples.items()}
    return {
        "Images": f"{images:,} judged; the run had " + ", ".join(f"{n:,} {name}" for name, n in counts.items()),
        "Splits": "; ".join(f"{name}: {text}" for name, text in saved.splits.made.items()),
        "Model": describe_model(model),
        "Started from": Path(model.weights).name if model.weights else "random weights",
        "Preprocessing": f"resize {config.data.resize}, normalize {config.data.normalize}, channels {model.channels}",
        "Augmentation": f"{config.augment.policy}, mixup {config.augment.mixup:g}, cutmix {config.augment.cutmix:g}",
        "Optimisation": f"AdamW, lr {train.lr:g}, weight decay {train.weight_decay:g}, batch {train.batch_size} x "
        f"{train.accumulate}, at most {train.epochs} epochs, label smoothing {train.smoothing:g}, "
        f"balance {train.balance}",
        "Model choice": f"epoch {saved.record.get('epoch')}, the "
        + (f"best by validation {train.monitor}" if train.choose == "best" else "last")
        + "; the test took no part",
        "Seed": str(train.seed),
        "Device of this evaluation": f"{device}, fp32",
        "Versions": ", ".join(f"{package} {number}" for package, number in saved.versions.items()),
    }


def describe_model(model: ModelConfig) -> str:
    """The network in a few words."""
    return f"{model.name}, {model.image_size} px, patch {model.patch_size}, stem {model.stem}, pool {model.pool}"


def headline(metrics: dict[str, Any]) -> str:
    """The first numbers, in one line."""
    parts = []
    for name in ("auroc", "balanced_accuracy", "accuracy"):
        entry = metrics["overall"][name]
        if entry["value"] is None:
            parts.append(f"{name.replace('_', ' ')} undefined")
            continue
        interval = "" if entry["low"] is None else f" [{entry['low']:.3f}, {entry['high']:.3f}]"
        parts.append(f"{name.replace('_', ' ')} {entry['value']:.3f}{interval}")
    return ", ".join(parts) + f"; 95 % intervals, bootstrap {metrics['resampling']}"


def parse_gates(texts: Sequence[str]) -> dict[str, float]:
    """["auroc=0.9"] -> {"auroc": 0.9}. Raises UsageError."""
    gates = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in METRICS:
            raise unknown_key("metric", name, METRICS)
        try:
            gates[name] = float(value)
        except ValueError:
            raise UsageError(f"--fail-under {text}: expected metric=value", "for example auroc=0.9") from None
    return gates


def check_gates(gates: dict[str, float], metrics: dict[str, Any], result: object) -> None:
    """Raises GateError, which carries `result`, where a metric is worse than its gate, or undefined."""
    failed = []
    for name, limit in gates.items():
        value = metrics["overall"][name]["value"]
        better: Callable[[float, float], bool] = float.__ge__ if METRICS[name].higher_is_better else float.__le__
        if value is None or not better(float(value), limit):
            failed.append(f"{name} {'undefined' if value is None else f'{value:.4f}'}, asked for {limit:g}")
    if failed:
        raise GateError(f"the gate is not met: {'; '.join(failed)}", "look at the report for the errors", result)
