"""`vitmed evaluate`: a checkpoint -> predictions of a labelled split -> a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.checkpoint import Checkpoint, load_checkpoint
from vitmed.commands.choosing import (
    forward_of,
    raw_validation,
    read_judgement,
    scored,
    scores_of_folder,
    settled,
)
from vitmed.commands.explaining import look
from vitmed.commands.flags import check_readers, evaluate_config, note_prevalence, with_columns
from vitmed.commands.flows import judged, run_flow
from vitmed.commands.membership import Asked, Chosen, choose_samples, patients_fact
from vitmed.config import EvaluateConfig, ModelConfig, TrainConfig
from vitmed.errors import DataError, GateError, UsageError, unknown_key
from vitmed.images import Preprocessing, read_image
from vitmed.inference import check_finite, predict_logits
from vitmed.judgement import Judgement, asked_of, make_judgement, notes_of, own_columns
from vitmed.metrics import FEW_GROUPS, METRICS, known_labels
from vitmed.model import SIZES
from vitmed.operating import by_fold
from vitmed.predictions import Predictions
from vitmed.report import BASELINE, NUMBERS, PREDICTIONS, read_baselines, write_report
from vitmed.report.model_card import edited, model_card
from vitmed.report.printing import check_formats
from vitmed.robustness import known_stress
from vitmed.run import RunFolder, free_name, read_json_lines, refuse_inside, write_text
from vitmed.splits import SPLITS, labelled
from vitmed.ui import Ui
from vitmed.words import counted
from vitmed.world import describe, pick_device

HEADLINE = ("auroc", "balanced_accuracy", "accuracy")


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
    group_regex: str | None = None,
    groups: str | Path | None = None,
    labels: str | Path | None = None,
    fail_under: Sequence[str] = (),
    allow_leakage: bool = False,
    unlike: str | Path | None = None,
    baselines: Callable[[], Mapping[str, Predictions]] | None = None,
    ui: Ui | None = None,
    **flags: Any,
) -> Evaluation:
    """Judge a checkpoint on a labelled split and write the report.

    Args:
        checkpoint: a best.pt, last.pt or epoch_0010.pt; or a predictions.csv, whose report is then made again
            without model or images (and so without pictures).
        data: another folder; classes are matched by name. Default: the images that the run held out.
        split: "test", "val" or "train".
        output: folder of the report; default `<run>/<split>`, never one that is there.
        group_regex: finds the patient in the paths of `data`; default the run's own.
        groups: instead of it, "names", "dicom" or a CSV table; as of `train`.
        labels: a CSV table that says the class of the images in `data`; as of `train`.
        fail_under: "metric=value" gates; GateError (exit code 6) after the report is written.
        allow_leakage: judge `data` although some of it was trained on.
        unlike: a folder of other images, to see whether the model tells them from those that it is made for.
        baselines: gives, when the model has been judged, what baselines say of the same images; see `BASELINES`.
        ui: where messages and progress go.
        **flags: the names in `EVALUATE_FLAGS`, such as resamples=500; default what the run was made with.

    Raises:
        CheckpointError, DataError, UsageError: what cannot be used. GateError: a gate not met.
    """
    ui = ui or Ui()
    gates = parse_gates(fail_under)
    if Path(checkpoint).suffix == ".csv":
        return _rebuild(Path(checkpoint), output, gates, flags, ui)
    if split not in SPLITS:
        raise unknown_key("split", split, SPLITS)
    saved = load_checkpoint(checkpoint)
    chosen = choose_samples(saved, Asked(data, split, group_regex, groups, labels), allow_leakage, ui)
    config = evaluate_config(saved.config.evaluate, flags)
    check_formats(config)
    judgement = settled(saved, config)
    root, samples, notes = chosen.root, chosen.samples, [*chosen.notes, *notes_of(judgement)]
    config = with_columns(config, flags, chosen.columns, notes)
    note_prevalence(config, saved.classes, notes)
    check_readers(config, samples, chosen.columns, saved.classes)
    for note in notes:
        ui.warn(note)
    what, name = describe_images(saved, chosen)
    run = RunFolder(saved.path.parent)
    notes += data_notes(run) if data is None else []
    refuse_inside(root, output or run.path / name)
    folder = new_folder(output, run.path / name)
    where = pick_device(device)
    model = saved.model().to(where)

    def read(index: int) -> np.ndarray:
        return saved.preprocessing.read(root / samples[index].path)

    ui.say(f"evaluating {saved.path} on {counted(len(samples), 'image')}: {what}")
    with ui.bar(f"evaluating {name}") as advance:
        indices, logits, problems = predict_logits(
            model,
            saved.preprocessing,
            read,
            len(samples),
            where,
            progress=advance,
            forward=forward_of(model, judgement),
        )
    if problems:
        raise DataError("\n".join(problems.values()), "restore these files, or start a new run")
    check_finite(logits, saved.path)
    if unlike is not None:
        judgement = scores_of_folder(Path(unlike), saved, model, judgement, ui)
    shown = [samples[i] for i in indices]
    logits, columns = scored(logits, len(saved.classes))
    predictions = labelled(saved.classes, shown, logits, saved.config.data.positive, chosen.columns)
    predictions = replace(predictions, columns={**columns, **predictions.columns})
    predictions = judgement.apply(predictions) if judgement else predictions
    asked = config.map_images
    if asked is None and chosen.part in ("train", "val"):
        asked = 0  # half a minute each time, for a report that judges nobody
    attention, maps = look(model, saved.preprocessing, read, predictions, asked, ui)
    others = baselines() if baselines is not None else _known_baselines(run.path / split, predictions)
    own = split if is_own(saved, chosen) else None
    with ui.bar("drawing the report", unit="steps"):
        metrics = write_report(
            folder,
            predictions,
            title=what,
            facts=facts(saved, what, len(samples), describe(where)),
            read=lambda path: picture(root / path, saved.preprocessing),
            records=read_json_lines(run.metrics) or None,
            validation=known_validation(run, judgement)
            if split != "val" and saved.path.name == run.best.name
            else None,
            internal=known_internal(run, judgement) if own is None and saved.path.name == run.best.name else None,
            config=config,
            notes=notes,
            baselines=others,
            judgement=judgement,
            found=found_with_model(attention, known_stress(run.path, saved.weights)),
            maps=maps,
            flow=run_flow(saved, run, own, predictions, config.subgroups, chosen.seen),
        )
    if own == "test" and output is None and saved.path.name == run.best.name:
        _write_card(run, model_card(metrics, run.path.resolve().name, folder.name), ui)
    return finish(Evaluation(predictions, metrics, folder), gates, ui)


def found_with_model(attention: dict[str, Any] | None, robustness: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """What a report takes over, of what there is: maps of attention, and a stress test."""
    return {key: part for key, part in (("attention", attention), ("robustness", robustness)) if part}


def _write_card(run: RunFolder, card: str, ui: Ui) -> None:
    """model_card.md, unless somebody has written in it."""
    file = run.model_card
    if file.is_file() and edited(file.read_text(encoding="utf-8", errors="replace")):
        ui.warn(f"{file} was edited: left as it is; remove it to have a new one with these numbers")
        return
    write_text(file, card)


def data_notes(run: RunFolder) -> list[str]:
    """What the check of the data said before the training, for the head of the report; said then, not again."""
    try:
        return [str(note) for note in json.loads(run.data_check.read_text(encoding="utf-8"))["notes"]]
    except (OSError, ValueError, KeyError, TypeError):  # a run of before there was such a file
        return []


def _rebuild(
    file: Path, output: str | Path | None, gates: dict[str, float], flags: dict[str, Any], ui: Ui
) -> Evaluation:
    """The report of a table; title, facts, notes and the positive class come from the metrics.json beside it.

    Of a baseline's table the positive class alone: all else that stands there is about the model.
    """
    predictions, folder = Predictions.from_csv(file, labelled=True), new_folder(output, file.parent / "report")
    notes = ["Made from a table alone: the split and what the model was made with are unknown."]
    said: dict[str, Any] = {"title": f"report of {file.name}", "facts": {"Made from": file.name}, "notes": notes}
    beside, told = file.with_name(NUMBERS), list(predictions.notes)
    asked, judgement, of_model = EvaluateConfig(), None, not file.name.startswith(BASELINE)
    if beside.is_file():
        judgement = read_judgement(beside, predictions.classes) if of_model else None
        try:
            before = json.loads(beside.read_text(encoding="utf-8"))
            predictions = replace(predictions, positive=before["positive_class"])
            if predictions.positive not in (None, *predictions.classes):
                raise ValueError(predictions.positive)
            if of_model:
                said = {key: before["report"][key] for key in said}
                said["found"] = found_with_model(before.get("attention"), before.get("robustness"))
                said |= {key: before.get(key) for key in ("flow", "folds")}
                if by_fold(said["folds"]):
                    predictions = replace(Predictions.from_csv(file, decided=True), positive=predictions.positive)
                asked = EvaluateConfig(**before["report"].get("evaluate", {}))
                if before["n"] != len(predictions):
                    told.append(_other_rows(said, before["n"], predictions))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{beside}: not the metrics.json of a report", "move it away to go without it") from None
    run = RunFolder(file.parent.parent)
    baselines = _fitting_baselines(file, predictions, told)
    said["notes"] += [note for note in told if note not in said["notes"]]
    for note in told:
        ui.warn(f"{file.name}: {note}")
    config = with_columns(evaluate_config(asked, flags), flags, own_columns(predictions), said["notes"])
    note_prevalence(config, predictions.classes, said["notes"])
    if asked_of(config) != asked_of(asked):
        if not of_model:
            raise UsageError(f"{file}: nothing can be chosen for a baseline", "leave out the flags that choose")
        if said.get("folds"):
            fold = file.parent.parent / "fold-1"
            raise UsageError(
                f"{file}: of folds, each of which chose on its own validation; nothing else can be chosen for all",
                f"vitmed evaluate {fold} with the flag judges one fold; vitmed train --folds with it all",
            )
        raw = judgement.raw(predictions) if judgement else predictions
        validation = replace(raw_validation(run), positive=predictions.positive)
        before_notes = notes_of(judgement)
        judgement = make_judgement(validation, config, judgement.familiarity if judgement else None)
        predictions = judgement.apply(raw)
        said["notes"] = [*(note for note in said["notes"] if note not in before_notes), *notes_of(judgement)]
    elif judgement is not None:
        predictions = judgement.decide(predictions)
    metrics = write_report(
        folder,
        predictions,
        records=(read_json_lines(run.metrics) or None) if of_model else None,
        validation=known_validation(run, judgement) if of_model and file.parent.name != "val" else None,
        internal=known_internal(run, judgement) if is_other(said.get("flow")) else None,
        config=config,
        baselines=baselines,
        judgement=judgement,
        **said,
    )
    return finish(Evaluation(predictions, metrics, folder), gates, ui)


def _other_rows(said: dict[str, Any], before: int, predictions: Predictions) -> str:
    """Count anew in what a report says where its table has other rows than when it was made; and a note on it."""
    rows = len(predictions)
    if said["flow"] and said["flow"].get("judged"):
        who = said["flow"]["judged"]
        said["flow"] = {**said["flow"], "judged": judged(predictions, who["split"], who.get("seen"))}
    facts = {key: text.replace(f": {before:,} judged", f": {rows:,} judged") for key, text in said["facts"].items()}
    said["facts"] = facts
    of = f"{rows:,} of the {before:,}" if rows < before else f"{rows:,} instead of the {before:,}"
    return f"The table has {of} rows that the report was made of."


def _fitting_baselines(file: Path, predictions: Predictions, notes: list[str]) -> dict[str, Predictions]:
    """The baselines beside a table that are of the very same images; the others are left out with a note."""
    found = {}
    for key, other in read_baselines(file.parent).items():
        name = f"{BASELINE}{key}.csv"
        if name == file.name:
            continue
        if _same_images(other, predictions):
            found[key] = other
        else:
            notes.append(f"{name} beside the table is left out: it is not of the same images, classes and labels.")
    return found


def _same_images(a: Predictions, b: Predictions) -> bool:
    return (a.classes, a.paths) == (b.classes, b.paths) and np.array_equal(known_labels(a), known_labels(b))


def known_validation(run: RunFolder, judgement: Judgement | None) -> Predictions | None:
    """What the run's best.pt said of its validation images, judged alike; None where it is not there."""
    if not run.validation.is_file():
        return None
    raw = raw_validation(run)
    return judgement.apply(raw) if judgement else raw


def known_internal(run: RunFolder, judgement: Judgement | None) -> Predictions | None:
    """What the run's best.pt said of its own test, judged alike; None where it was not judged yet."""
    file = run.path / "test" / PREDICTIONS
    if not file.is_file():
        return None
    predictions = Predictions.from_csv(file, labelled=True)
    stored = read_judgement(file.with_name(NUMBERS), predictions.classes)
    raw = predictions if stored is None else stored.raw(predictions)
    positive = None if judgement is None else judgement.operating["positive"]
    return judgement.apply(replace(raw, positive=positive)) if judgement else raw


def is_other(flow: Mapping[str, Any] | None) -> bool:
    """Whether a report is about images that are not of the run."""
    judged = (flow or {}).get("judged")
    return judged is not None and judged["split"] is None


def _known_baselines(folder: Path, predictions: Predictions) -> dict[str, Predictions]:
    """The baselines that training judged on the very same images, if any."""
    return {key: other for key, other in read_baselines(folder).items() if _same_images(other, predictions)}


def new_folder(output: str | Path | None, default: Path) -> Path:
    """Where a report goes: the default or, where that is there, the default with -2, -3, ...; it can be written."""
    folder = free_name(default) if output is None else Path(output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is there already and not empty", "name a new folder with --output")
    RunFolder.probe(folder.parent)  # now, not after all images
    return folder


def finish(evaluation: Evaluation, gates: dict[str, float], ui: Ui) -> Evaluation:
    """Say the first numbers, how they stand beside the baselines, and where the report lies; then the gates."""
    metrics = evaluation.metrics
    ui.say(headline(metrics))
    for note in metrics["notes"]:
        if note not in metrics["report"]["notes"]:  # those were said before
            ui.warn(note)
    for baseline in metrics["baselines"].values():
        ui.say(verdict(baseline, metrics["n_groups"]))
    if "external" in metrics:
        ui.say(beside_own(metrics["external"]))
    ui.say(f"report: {evaluation.folder / 'report.html'}")
    check_gates(gates, evaluation.metrics, evaluation)
    return evaluation


def picture(path: Path, how: Preprocessing, side: int = 320) -> np.ndarray:
    """An image for the eye, (H, W, 3) uint8, no side longer than `side`; in the window in which the network sees it."""
    image = read_image(path, frame=how.frame, window=how.window)
    image.thumbnail((side, side))
    return np.asarray(image)


def describe_images(saved: Checkpoint, chosen: Chosen) -> tuple[str, str]:
    """Which images an evaluation judges, in words; and the name of its folder."""
    data, part = chosen.root.resolve().name, chosen.part
    if part is None:
        return f"all of {data}", data
    return f"{part} of {data}", part if is_own(saved, chosen) else f"{data}_{part}"


def is_own(saved: Checkpoint, chosen: Chosen) -> bool:
    """Whether the images are a split of the run itself."""
    return chosen.part is not None and tuple(chosen.samples) == saved.splits.samples[chosen.part]


def facts(saved: Checkpoint, what: str, images: int, device: str) -> dict[str, str]:
    """What the report says of data, model and training."""
    model, train, config = saved.config.model, saved.config.train, saved.config
    counts = {name: len(samples) for name, samples in saved.splits.samples.items()}
    return {
        "Images": f"{what}: {images:,} judged; the run had " + ", ".join(f"{n:,} {name}" for name, n in counts.items()),
        "Patients of the run": patients_fact(saved.splits),
        "Splits of the run": "; ".join(f"{name}: {text}" for name, text in saved.splits.made.items()),
        "Model": describe_model(model),
        "Started from": started_from(model),
        "Preprocessing": f"resize {config.data.resize}, {config.data.interpolation}, normalize "
        f"{config.data.normalize}, channels {model.channels}{describe_window(saved.preprocessing)}",
        "Augmentation": f"{config.augment.policy}, mixup {config.augment.mixup:g}, cutmix {config.augment.cutmix:g}",
        "Optimisation": optimisation(train),
        "Model choice": model_choice(saved),
        "Seed": str(train.seed),
        "Device of this evaluation": f"{device}, fp32",
        "Versions": ", ".join(f"{package} {number}" for package, number in saved.versions.items()),
    }


def describe_window(how: Preprocessing) -> str:
    """The window of deep images, and the frame of several, in words; "" where there are none."""
    parts = ["" if how.frame is None else f"frame {how.frame}"]
    if isinstance(how.window, tuple):
        parts.append(f"window {how.window[0]:g} .. {how.window[1]:g}")
    elif how.window is not None:
        parts.append(f"window of each file ({how.window})")
    return "".join(f", {part}" for part in parts if part)


def started_from(model: ModelConfig) -> str:
    """The weights that training began with, and their licence."""
    if model.weights is None:
        return "random weights"
    return f"{Path(model.weights).name}, licence {model.licence or 'not known to vitmed'}"


def optimisation(train: TrainConfig) -> str:
    """How the network was trained, in words."""
    if train.freeze:
        return "the network kept as it was; logistic regression with an L2 penalty on its features"
    ways = [f"layer decay {train.layer_decay:g}"] if train.layer_decay < 1 else []
    ways += [f"additions of rank {train.lora} to frozen matrices (LoRA)"] if train.lora is not None else []
    ways += [f"embedding and first {train.freeze_blocks} blocks kept"] if train.freeze_blocks is not None else []
    ways += ["head started from a logistic regression"] if train.probe_first else []
    return ", ".join(
        [
            f"AdamW, lr {train.lr:g}, weight decay {train.weight_decay:g}",
            f"batch {train.batch_size} x {train.accumulate}, at most {train.epochs} epochs",
            f"label smoothing {train.smoothing:g}, balance {train.balance}",
            *ways,
        ]
    )


def model_choice(saved: Checkpoint) -> str:
    """How this checkpoint came to be the one that is judged, in words."""
    train, record = saved.config.train, saved.record
    if "C" in record:
        return f"penalty C = {record['C']:g}, by log loss on validation; the test took no part"
    how = f"the best by validation {train.monitor}" if train.choose == "best" else "the last"
    return f"epoch {record.get('epoch')}, {how}; the test took no part"


def describe_model(model: ModelConfig) -> str:
    """The network in a few words."""
    size = SIZES[model.name]
    changed = [(model.width, size.width), (model.depth, size.depth), (model.heads, size.heads)]
    width, depth, heads = (own or usual for own, usual in changed)
    plain = all(own in (None, usual) for own, usual in changed)
    name = model.name if plain else f"ViT {width} wide, {depth} blocks, {heads} heads"
    return f"{name}, {model.image_size} px, patch {model.patch_size}, stem {model.stem}, pool {model.pool}"


def headline(metrics: dict[str, Any]) -> str:
    """The first numbers, in one line."""
    parts = []
    for name in HEADLINE:
        entry = metrics["overall"][name]
        if entry["value"] is None:
            parts.append(f"{name.replace('_', ' ')} undefined")
            continue
        interval = "" if entry["low"] is None else f" [{entry['low']:.3f}, {entry['high']:.3f}]"
        parts.append(f"{name.replace('_', ' ')} {entry['value']:.3f}{interval}")
    known = any(metrics["overall"][name]["low"] is not None for name in HEADLINE)
    how = f"95 % intervals {metrics['resampling']}" if known else "no intervals"
    return f"{', '.join(parts)}; {how}" + ("; likely optimistic" if metrics["n_groups"] is None else "")


def verdict(baseline: dict[str, Any], patients: int | None, metric: str = "auroc") -> str:
    """Whether the model beat a baseline, in a line; none is given where so few patients cannot tell.

    Args:
        baseline: one of metrics["baselines"].
        patients: how many were judged; None where they are unknown.
    """
    name, other, difference = METRICS[metric].title, baseline["overall"][metric], baseline["difference"][metric]
    told = f"{baseline['text']}: {name} " + ("undefined" if other["value"] is None else f"{other['value']:.3f}")
    if difference["low"] is None:
        return f"baseline, {told}; no interval for the difference"
    gap = f"{difference['value']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]"
    if patients is not None and patients < FEW_GROUPS:
        return f"baseline, {told}; model - baseline {gap}: {patients} patients are too few to tell which is better"
    if difference["low"] > 0:
        return f"baseline, {told}; the model is better: {gap}"
    if difference["high"] < 0:
        return f"baseline, {told}; the BASELINE is better: {gap}"
    return f"baseline, {told}; the model is not shown to be better: {gap}"


def beside_own(found: Mapping[str, Any], metric: str = "auroc") -> str:
    """How the judged images stand beside the run's own test, in a line."""
    pair = found["numbers"][metric]
    own, gap = pair["internal"], pair["difference"]
    told = f"beside the run's own test: {METRICS[metric].title} " + (
        "undefined" if own["value"] is None else f"{own['value']:.3f}"
    )
    if gap["low"] is None:
        return f"{told} there; no interval for the difference"
    return f"{told} there, {gap['value']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}] here"


def parse_gates(texts: str | Sequence[str]) -> dict[str, float]:
    """["auroc=0.9"] -> {"auroc": 0.9}. Raises UsageError."""
    gates = {}
    for text in [texts] if isinstance(texts, str) else texts:
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
