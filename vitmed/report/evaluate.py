"""The report of a model on images, with its settings and facts; and the report made again from a predictions.csv."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitmed.checks.evaluation_images import EvaluationImages
from vitmed.core.base_models import names_in
from vitmed.core.config import Config, DataConfig, EvaluateConfig
from vitmed.core.errors import DataError, UsageError, unknown_key
from vitmed.core.files import read_json_lines
from vitmed.core.load_config import evaluate_config
from vitmed.core.messages import bar, say, warn
from vitmed.core.places import data_of_runs, output_folder
from vitmed.core.run_folder import BASELINE, NUMBERS, RunFolder
from vitmed.core.text import duration_text, listed, now, quoted
from vitmed.core.upgrade import without_gone
from vitmed.data.label_kinds import LabelRequest, plain_grade
from vitmed.data.listing import further_columns, labels_from_table
from vitmed.data.patients import describe_patients
from vitmed.data.samples import cells_of, targets_in
from vitmed.decisions.evaluation_folder import Evaluated, Folds, no_report, read_evaluation, read_split, validation_of
from vitmed.decisions.operating_points import asked_point
from vitmed.decisions.policy import CHOOSING, DecisionPolicy, choose_policy, notes_of, policy_settings
from vitmed.decisions.targets import TARGETS, refuse_idle
from vitmed.explanation.robustness import known_stress
from vitmed.imaging.augmentation import VIEWS
from vitmed.imaging.preprocessing import thumbnail
from vitmed.imaging.window import file_window_index, limits_text
from vitmed.inference.saved_model import Network, SavedModel
from vitmed.metrics.predictions import Predictions, known_labels, positive_index, target_of
from vitmed.metrics.predictions_csv import WRITTEN
from vitmed.metrics.readers import check_readers
from vitmed.metrics.subgroups import MOST, check_columns, strata
from vitmed.models.sizes import describe_model
from vitmed.report import participant_flow as flows
from vitmed.report.analyses import Extra
from vitmed.report.headline import Evaluation, parse_gates, report_evaluation
from vitmed.report.results import Origin, Results, Seen
from vitmed.report.write import TABLE_ALONE, Report, read_baselines

NAMELESS = "not known: an exported model does not name the images of its run"
AGAINST_REST = "against-rest"  # folder of the report of one class against the rest, in that of all classes


def settings_and_policy(
    saved: SavedModel, chosen: EvaluationImages, flags: dict[str, Any]
) -> tuple[EvaluateConfig, DecisionPolicy | None, list[str]]:
    """The settings of the run with the flags, as far as they fit the images and this machine; the policy of the model,
    or one newly chosen on the validation of its run if the settings differ; and notes.

    Raises UsageError if the predictions of this model for validation are missing.
    """
    notes: list[str] = []
    cells = {**cells_of(chosen.samples, chosen.columns), **(chosen.table or {})}
    own = [name for name in cells if name not in WRITTEN]  # vitmed 0.2.0 took tables that have such columns
    if chosen.table is not None:
        flags = table_flags(flags, chosen.table, saved.splits.target.kind, saved.classes)
    config = _fitting(saved.config, flags, saved.splits.target.kind, saved.classes, own, notes)
    check_readers(config, cells, [sample.path for sample in chosen.samples], saved.classes)
    named, record = any(saved.splits.samples.values()), saved.record
    count = len(saved.splits.samples.get("train", ()) if named else saved.hashes.get("train", ()))
    batch = saved.config.train.batch_size * saved.config.train.accumulate
    seen = (record.get("step") or 0) * batch
    timed = saved.config.train.time is not None
    if timed and record.get("step") is not None and record.get("epoch") == 1 and seen + batch <= count:
        untrained = (
            f"The time ended training within its first pass: the network has learned from {seen:,} of {count:,} "
            "images, so these numbers say nothing of what it can learn. Give more time (--time)."
        )
        notes.insert(0, untrained)
    if not named and any(sample.group is not None for sample in chosen.samples):
        notes.append("An exported model names no patients: whether it was made with some of these is not known.")
    asked_point(config, saved.splits.choices)
    policy = saved.policy
    if policy_settings(config) != policy_settings(saved.config.evaluate):
        validation = validation_of(saved.path, saved.weights_hash, saved.config.data.positive)
        policy = choose_policy(validation, config, policy.ood_score if policy else None, saved.weights_hash)
    return config, policy, notes


def table_flags(
    flags: dict[str, Any], cells: Mapping[str, Sequence[str]], kind: str, classes: Sequence[str]
) -> dict[str, Any]:
    """The flags; where they name no column, with subgroups by every column that a table added and that has strata."""
    if any(flags.get(flag) for flag in ("subgroup", "rater", "rater_score")):
        return flags
    cuts = {name: strata(column, range(len(column)), "images") for name, column in cells.items()}
    named = [name for name, cut in cuts.items() if 1 < len(cut.names) <= MOST and not {*cells[name]} <= {*classes, ""}]
    if "evaluate.subgroups" in TARGETS[kind].idle:
        named = []
    if not named:
        warn("the table of --labels adds nothing: the labels are those of the run, and no column has subgroups")
        return flags
    say(f"subgroups by {listed(named)}; --subgroup COLUMN names one, --rater COLUMN a reader")
    return flags | {"subgroup": named}


def _fitting(
    run: Config, flags: dict[str, Any], kind: str, classes: Sequence[str], columns: Sequence[str], notes: list[str]
) -> EvaluateConfig:
    """The settings of a run with the flags, as far as they fit images with these columns; adds notes on the rest.

    Raises UsageError for a subgroup or reader of the flags that is no column; one of the run is left out with a note.
    """
    config = evaluate_config(run.evaluate.model_copy(update={"report": True}), flags)  # also of a run with --no-report
    refuse_idle(run.model_copy(update={"evaluate": config}), kind, run)
    left = {}
    for flag, what in {"subgroup": "subgroups by", "rater": "agreement with", "rater_score": "comparison with"}.items():
        names = getattr(config, f"{flag}s")
        if flags.get(flag):
            check_columns(names, columns, f"--{flag}".replace("_", "-"))
        if missing := [column for column in names if column not in columns]:
            notes.append(f"No {what} {', '.join(missing)}: these images have no such column.")
        left[f"{flag}s"] = [column for column in names if column in columns]
    if flags.get("ordinal") and sorted(config.ordinal) == sorted(classes) and config.ordinal != list(classes):
        other = f"--ordinal {','.join(config.ordinal)}: the model has the order {','.join(classes)}"
        if run.evaluate.ordinal == list(classes):
            raise UsageError(f"{other}, in which it was trained", "leave --ordinal out: that of the run counts")
        notes.append(f"{other}, so quadratic kappa is not among the main numbers: train with this order.")
    note_prevalence(config, kind, classes, notes)
    return config.model_copy(update=left)


def note_prevalence(config: EvaluateConfig, kind: str, classes: Sequence[str], notes: list[str]) -> None:
    """Add a note where a prevalence was given for classes that have no use for it; a finding is there or not."""
    note = f"The prevalence that was given changes nothing: it is for two classes, and there are {len(classes)}."
    if config.prevalence is not None and kind != "findings" and len(classes) != 2 and note not in notes:
        notes.append(note)


class ModelOnImages(NamedTuple):
    """A model, the images that evaluate it, and notes for the head of the report."""

    network: Network
    policy: DecisionPolicy | None
    chosen: EvaluationImages
    config: EvaluateConfig
    notes: list[str]


def report_images(
    folder: Path,
    used: ModelOnImages,
    predictions: Predictions,
    baselines: Callable[[], Mapping[str, Predictions]] | None,
) -> Results:
    """Check the attention maps and write the report of an evaluation into a new folder, beside the baselines that this
    function returns; None: those that training evaluated."""
    network, chosen, config, policy = used.network, used.chosen, used.config, used.policy
    saved, own, run = network.saved, chosen.own_split, RunFolder(network.saved.path.parent)
    named = any(saved.splits.samples.values())
    seen = Seen(**chosen.seen).model_copy(update={} if named else {"patients": None})
    what, where = describe_images(chosen)[0], f"{network.device}, {network.precision}"
    # The maps take half a minute.
    quick = config.map_images is None and (chosen.part in ("train", "val") or not config.report)
    attention, maps = None, None
    if network.model is not None and not quick:  # an exported model has no attention
        from vitmed.explanation.faithfulness import check_attention

        how, count = saved.preprocessing, config.map_images
        attention, maps = check_attention(network.model, how, chosen.read, predictions, count)
    internal = read_split(run, "test", saved.weights_hash, policy) if own is None else None
    if own is None and internal is None and predictions.kind != "number":  # which is not compared with it
        exported = "an exported model finds it only in the folder of its run"
        why = f"vitmed evaluate {quoted(saved.path)}" if named else exported
        say(f"no comparison with the test of the run: {saved.path.name} is not evaluated on it yet ({why})")
    beside = fitting_baselines(run.path / own, predictions)[0] if own and baselines is None else {}
    with bar("drawing the report", unit="steps"):
        counts, why = flows.data_check_of(run)[1], flows.why_left_out(saved.config.data)
        flow = flows.flow_of(saved.splits, saved.hashes, counts, why)
        evaluated = flows.evaluated_images(predictions, own, seen)
        traits = flows.characteristics(saved.splits, config.subgroups)
        origin = Origin(
            title=f"{chosen.root.resolve().name}, {f'{chosen.part} split' if chosen.part else 'all images'}",
            facts=facts(saved, what, len(chosen.samples), where),
            notes=used.notes,
            run=run.name,
            precision=network.precision,
        )
        extra = Extra(
            flow=flow.model_copy(update={"evaluated": evaluated, "characteristics": traits}),
            weights_hash=saved.weights_hash,
            internal=internal,
            baselines=baselines() if baselines else beside,
            policy=policy,
            parts={"attention": attention, "robustness": known_stress(run.path, saved.weights_hash, what)},
            maps=maps,
            read=lambda path: thumbnail(chosen.root / path, saved.preprocessing),
            records=read_json_lines(run.metrics),
        )
        return Report.of(predictions, origin, config, extra).write(folder)


def facts(saved: SavedModel, what: str, images: int, device: str) -> dict[str, str]:
    """The table of data, model and training in a report."""
    model, train, config, how = saved.config.model, saved.config.train, saved.config, saved.preprocessing
    window = [] if how.frame is None else [f"frame {how.frame}"]
    if isinstance(how.window, tuple):
        window.append(limits_text(how.window))
    elif how.window is not None:
        of_file = file_window_index(how.window) is not None
        window.append(f"window of each file ({how.window})" if of_file else f"window {how.window} (centre/width)")
    counts = ", ".join(f"{len(samples):,} {name}" for name, samples in saved.splits.samples.items())
    had = f"the run had {counts}" if any(saved.splits.samples.values()) else NAMELESS
    augment, record = config.augment, saved.record
    crop = f", crops of {augment.crop:.0%} of the area or more" if augment.crop < 1 else ""
    by_loss = "that with the lowest validation loss"
    chosen = {"best": f"the best by validation {train.monitor}", "loss": by_loss, "last": "the last"}[train.choose]
    choice = f"epoch {record.get('epoch')}, {chosen}; the test set was not used"
    if "C" in record:
        each = "an inverse penalty for each finding" if record["C"] is None else f"inverse penalty C = {record['C']:g}"
        choice = f"{each}, by the loss on validation; the test set was not used"
    terms = f"{model.licence or 'not known to vitmed'}{f'. {model.terms}' if model.terms else ''}"
    copies = f"mean output of {len(VIEWS[augment.views])} copies of an image ({augment.views})"
    return {
        "Images": f"{what}: {images:,} evaluated; {had}",
        "Patients of the run": NAMELESS if had == NAMELESS else describe_patients(saved.splits),
        "Splits of the run": "; ".join(f"{name}: {text}" for name, text in saved.splits.made.items()),
        "Model": describe_model(model),
        "Started from": "random weights" if model.start is None else f"{Path(model.start).name}, licence {terms}",
        "Preprocessing": f"resize {config.data.resize}, {config.data.interpolation}, normalize "
        f"{config.data.normalize}, channels {model.channels}{''.join(f', {part}' for part in window)}",
        "Augmentation": f"{augment.policy}{crop}, mixup {augment.mixup:g}, cutmix {augment.cutmix:g}",
        "Views": "the image alone" if augment.views == "one" else copies,
        "Optimisation": optimisation(config, saved.splits.target.kind),
        "Model choice": choice,
        "Seed": str(train.seed),
        "Device of this evaluation": device,
        "Versions": ", ".join(f"{package} {number}" for package, number in saved.versions.items()),
        **saved.facts,
    }


def describe_images(chosen: EvaluationImages) -> tuple[str, str]:
    """Which images are evaluated, in words; and the name of the folder."""
    data, part = chosen.root.resolve().name, chosen.part
    if part is None:
        return f"all of {data}", data
    return f"{part} of {data}", part if chosen.own_split else f"{data}_{part}"


def optimisation(config: Config, kind: str) -> str:
    """How the network was trained on labels of a kind, in words."""
    train, drop = config.train, config.model.drop_path
    if train.freeze:
        return "network frozen; logistic regression with an L2 penalty on its features"
    ways = [f"layer decay {train.layer_decay:g}"] if train.layer_decay < 1 else []
    ways += [f"LoRA of rank {train.lora}, other weights frozen"] if train.lora is not None else []
    ways += [f"embedding and first {train.freeze_blocks} blocks frozen"] if train.freeze_blocks is not None else []
    ways += ["head started from a logistic regression"] if train.probe_first else []
    ways += [f"drop path {drop:g}"] * bool(drop) + ["moving average of the weights"] * train.ema
    loss = TARGETS[kind].loss
    limit = "" if train.time is None else f" in {duration_text(train.time)}"
    return ", ".join(
        [
            f"AdamW, lr {train.lr:g}, warm-up {min(train.warmup_epochs, train.epochs / 3):.3g} epochs",
            f"cosine to {train.min_lr:g}, weight decay {train.weight_decay:g}",
            *([] if train.precision == "auto" else [train.precision]),
            f"batch {train.batch_size} x {train.accumulate}, at most {train.epochs} epochs{limit}",
            f"label smoothing {train.smoothing:g}" if loss == "cross_entropy" else f"loss {loss}",
            f"balance {train.balance}",
            *ways,
        ]
    )


def rebuild(
    file: Path, positive: str | None, output: Any, gates: dict[str, float], flags: dict[str, Any], labels: Any
) -> Evaluation:
    """The report of a table; title, facts, notes, policy and the positive class come from the metrics.json beside it,
    further columns also from a table of `labels`. A `positive` class is taken against the rest, with a policy of its
    own where there is a metrics.json. Of that file, the table of a baseline takes the positive class alone."""
    evaluated, flags, more = _with_table(file, labels, flags)
    predictions, policy, run = evaluated.predictions, evaluated.policy, RunFolder(file.parent.parent)
    if positive_index(predictions) is not None and positive in predictions.classes and not evaluated.metrics:
        predictions, positive = replace(predictions, positive=positive), None
    check_against_rest(predictions, positive)
    against_rest = positive is not None and file.with_name(NUMBERS).is_file()
    folder = output_folder(output, file.with_name(AGAINST_REST if against_rest else "report"), *data_of_runs([file]))
    of_model = not file.name.startswith(BASELINE)
    weights_hash = evaluated.weights_hash if of_model else None
    before, changes = _earlier_report(file, evaluated) if of_model else (None, [])
    baselines, left_out = fitting_baselines(file.parent, predictions, but=file.stem.removeprefix(BASELINE))
    changes = [*predictions.notes, *changes, *more, *left_out]
    for note in changes:
        warn(f"{file.name}: {note}")
    alone = Origin(title=f"Report of {file.name}", facts={"Made from": file.name}, notes=[TABLE_ALONE])
    origin, flow, folds = (before.report, before.flow, before.folds) if before else (alone, None, None)
    notes, earlier = list(dict.fromkeys([*origin.notes, *changes])), _settings(origin)
    if positive is not None:
        predictions = predictions.against_rest(positive)
        baselines = {key: other.against_rest(positive) for key, other in baselines.items()}
        earlier = earlier.model_copy(update={"ordinal": [], "balanced": False, "cost": None})
    about = predictions.kind, predictions.classes, tuple(name for name in predictions.columns if name not in WRITTEN)
    config = _fitting(Config(evaluate=earlier), flags, *about, notes)
    kind = target_of(predictions, config.ordinal).kind
    parse_gates([f"{name}={limit!r}" for name, limit in gates.items()], kind)
    same = not against_rest and policy_settings(config) == policy_settings(earlier)
    if not same:
        _check_choosable(file, weights_hash is not None, folds, {"positive": positive} if against_rest else flags)
        validation = validation_of(run.best, weights_hash, predictions.positive)
        validation = validation if positive is None else validation.against_rest(positive)
        former = notes_of(policy)
        policy = choose_policy(validation, config, policy.ood_score if policy else None, weights_hash)
        predictions = policy.apply(predictions)
        notes = [*(note for note in notes if note not in former), *notes_of(policy)]
    again: dict[str, Any] = {"notes": notes, "run": origin.run or run.name, "rebuilt": now()}
    extra = Extra(flow, weights_hash, baselines=baselines, policy=policy, folds=folds)
    if against_rest:
        again |= {"title": f"{origin.title}: {predictions.positive} against the rest", "rebuilt": None}
        extra = replace(extra, flow=flows.counted_again(flow, predictions))
        for note in notes_of(policy):
            warn(note)
    else:
        other = flow is not None and flow.evaluated is not None and flow.evaluated.split is None
        internal = read_split(run, "test", weights_hash, policy) if other else None
        kept = ("attention", "robustness", *(["external"] if internal is None and not changes and same else []))
        parts = {} if before is None else {part: before[part] for part in kept}  # they need the model
        records = read_json_lines(run.metrics) if of_model else None
        extra = replace(extra, internal=internal, parts=parts, records=records)
    metrics = Report.of(predictions, origin.model_copy(update=again), config, extra).write(folder)
    return report_evaluation(Evaluation(predictions, metrics, folder), gates, changes)


def _with_table(
    file: Path, labels: str | Path | None, flags: dict[str, Any]
) -> tuple[Evaluated, dict[str, Any], list[str]]:
    """An evaluation with what a table of `labels` adds: further columns and, to images without labels, the labels."""
    evaluated = read_evaluation(file, labelled=labels is None)
    predictions, order = evaluated.predictions, tuple(names_in(flags.get("ordinal")) or ())
    if not evaluated.metrics and predictions.kind == "classes" and sorted(order) == sorted(predictions.classes):
        evaluated = replace(evaluated, predictions=predictions.like(replace(predictions, classes=order)))
    predictions, classes = evaluated.predictions, evaluated.predictions.classes
    if labels is None:
        return evaluated, flags, []
    if predictions.labels is None:  # of the images with a label in the table, with its patients
        kind, unit = predictions.kind, predictions.target.unit
        request = LabelRequest(DataConfig(unit=unit), kind, outputs=classes)  # type: ignore[call-arg]
        read = labels_from_table(Path(labels), None, predictions.paths, request)
        row_of = {path: row for row, path in enumerate(predictions.paths)}
        samples = sorted(read.every, key=lambda sample: row_of[sample.path])
        if kind == "classes":
            index = {plain_grade(name): k for k, name in enumerate(classes)}
            if strange := sorted(name for name in read.classes if plain_grade(name) not in index):
                not_ours = f"class {listed([*map(repr, strange)])} is not one of the classes {listed(classes)}"
                raise DataError(f"{Path(labels)}: {not_ours}", "rename them, or remove their rows")
            numbers = np.array([index[plain_grade(read.classes[sample.label])] for sample in samples], dtype=np.int64)
        else:
            numbers = targets_in(samples).astype(np.int8) if kind == "findings" else targets_in(samples)[:, 0]
        part = predictions.take(np.array([row_of[sample.path] for sample in samples], dtype=np.int64))
        groups = tuple(str(sample.group) for sample in samples) if read.patients else part.groups
        columns = {**part.columns, **cells_of(samples, read.columns)}
        predictions = replace(part, labels=numbers, groups=groups, columns=columns)
        return replace(evaluated, predictions=predictions), flags, [*read.notes]
    known, kind = known_labels(predictions), predictions.kind
    truth: Any = {"": [classes[k] for k in known]} if kind == "classes" else None
    truth = truth or dict(zip(classes, known.reshape(len(known), -1).T.tolist(), strict=True))
    cells, groups, notes = further_columns(Path(labels), None, predictions.paths, kind, truth)
    groups = predictions.groups or groups  # those of the run count, where it knows them
    predictions = replace(predictions, groups=groups, columns={**predictions.columns, **cells})
    flags = table_flags(flags, cells, predictions.kind, classes)
    return replace(evaluated, predictions=predictions), flags, notes


def check_against_rest(predictions: Predictions, positive: str | None) -> None:
    """Raises UsageError where `positive` names not one, or some, of three classes or more; None names nothing."""
    if positive is None:
        return
    if predictions.kind != "classes" or len(predictions.classes) < 3:
        problem = f"--positive {positive}: one class against the rest is for three classes or more"
        raise UsageError(problem, "leave it out" + "; see RUN/test/findings/FINDING" * (predictions.kind == "findings"))
    parts = predictions.parts_of(positive)
    if unknown := [name for name in parts if name not in predictions.classes]:
        raise unknown_key("class", unknown[0], predictions.classes)
    if {*parts} == {*predictions.classes}:
        raise UsageError(f"--positive {positive}: no class is left", "leave one out")


def _earlier_report(file: Path, evaluated: Evaluated) -> tuple[Results | None, list[str]]:
    """The metrics.json beside a table, with the counts of the table; and notes on what was changed in the table."""
    if not evaluated.metrics:
        return None, []
    try:
        before = Results.read(evaluated.metrics)
        _settings(before.report)
        if before.n != len(evaluated.predictions):
            rows, was = len(evaluated.predictions), f": {before.n:,} evaluated"
            facts = {k: text.replace(was, f": {rows:,} evaluated") for k, text in before.report.facts.items()}
            flow = flows.counted_again(before.flow, evaluated.predictions)
            report = before.report.model_copy(update={"facts": facts})
            of = f"{rows:,} of the {before.n:,}" if rows < before.n else f"{rows:,} instead of the {before.n:,}"
            note = f"The table has {of} rows that the report was made of."
            return before.model_copy(update={"flow": flow, "report": report}), [note]
        now = flows.evaluated_images(evaluated.predictions, None)
        other = ["labels"] * any(now.classes[name].images != own.n for name, own in before.per_class.items())
        other += ["patients"] * (now.patients != before.n_groups)
        where = "'Images, patients and splits' shows the earlier ones."
        note = f"The table has other {' and '.join(other)} than the report was made from; {where}"
        return before, [note] if other else []
    except (ValueError, KeyError, TypeError, AttributeError):
        raise no_report(file.with_name(NUMBERS)) from None


def _settings(origin: Origin) -> EvaluateConfig:
    """The settings of an earlier report, without those that are gone. Raises ValueError, UsageError."""
    return EvaluateConfig(**without_gone({"evaluate": origin.evaluate})["evaluate"])


def _check_choosable(file: Path, of_network: bool, folds: Folds | None, flags: Mapping[str, Any]) -> None:
    if not file.with_name(NUMBERS).is_file():
        problem = f"{file}: a table alone shows no validation images, on which an operating point or interval is chosen"
        raise UsageError(problem, "leave out the flags that choose one")
    if folds:
        chosen = [name for name, value in flags.items() if value is not None and name in {*CHOOSING, "positive"}]
        given = ", ".join(f"--{name}".replace("_", "-") for name in chosen)
        problem = f"{file}: is of folds, each of which chose on its own validation, so {given} cannot choose for all"
        fix = f"vitmed evaluate {file.parent.parent / 'fold-1'} with the flag evaluates one fold"
        raise UsageError(problem, f"{fix}; vitmed train --folds with it all")
    if not of_network:
        raise UsageError(f"{file}: is of no network, so it has no policy", "leave out the flags that choose one")


def fitting_baselines(
    folder: Path, predictions: Predictions, but: str = ""
) -> tuple[dict[str, Predictions], list[str]]:
    """The baselines in a folder, except one, of the same images, classes and labels, in the order of the predictions;
    and a note on each of the others."""
    fitting, notes = dict[str, Predictions](), list[str]()
    for key, other in read_baselines(folder).items():
        if key == but:
            continue
        same = other.classes == predictions.classes and sorted(other.paths) == sorted(predictions.paths)
        other = other.at(predictions.paths) if same else other
        if same and predictions.labels is not None and np.array_equal(predictions.labels, known_labels(other)):
            fitting[key] = replace(other, positive=predictions.positive)
        else:
            why = "beside the table is left out: it is not of the same images, classes and labels."
            notes.append(f"{BASELINE}{key}.csv {why}")
    return fitting, notes
