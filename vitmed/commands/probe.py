"""`vitmed probe`: evaluate a baseline that trains no network."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitmed.checks.data_check import check_before_training, check_folder
from vitmed.commands.evaluate import thumbnail
from vitmed.commands.rank_weights import ALL_LOCAL, RankingResult, rank_weights, weight_list
from vitmed.commands.train import TrainResult, check_place, default_name, train
from vitmed.core.config import Config
from vitmed.core.dataset_cards import report_card
from vitmed.core.errors import UsageError
from vitmed.core.files import write_text
from vitmed.core.flags import FLAGS, read_overrides
from vitmed.core.load_config import check_names, load_config, store_paths
from vitmed.core.run_folder import RunFolder
from vitmed.core.ui import Ui
from vitmed.data.patients import describe_patients, patient_notes, report_patients, show_expression
from vitmed.data.samples import Splits, labelled_by
from vitmed.data.splits import make_splits
from vitmed.imaging.augmentation import POLICIES
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.metric_table import METRICS
from vitmed.models.vit import SIZES
from vitmed.report.headline import Evaluation, check_gates, parse_gates, report_evaluation
from vitmed.report.participant_flow import evaluated_images, flow_of, why_left_out
from vitmed.report.write import baseline_text, write_report
from vitmed.training.baselines import fit_colours
from vitmed.training.prepare import standardised, with_window
from vitmed.training.run_setup import check_images, splits_csv


def probe(
    data: str | Path | None = None,
    *,
    config: str | Path | None = None,
    sets: Sequence[str] = (),
    output: str | Path = "runs",
    name: str | None = None,
    fail_under: Sequence[str] = (),
    offline: bool = False,
    ui: Ui | None = None,
    **flags: Any,
) -> TrainResult | RankingResult:
    """Evaluate a baseline in minutes, without training a network.

    With `weights`: a linear model and nearest neighbours on the features of the frozen network, as
    `train(freeze=True)` does. Without: a linear model of the colours and the size of the images. It sees no
    shapes, so a good result points to a shortcut. Linear is logistic regression, of each finding by itself; of a number
    it is ridge regression.

    With several weights (a list, names with commas between them, or "all-local" for every file in the cache folder):
    which of them suit these images, on images of train and validation that fit nothing. The test is not opened.

    Args:
        data, config, sets, output, name, fail_under, offline, flags: as in `train`.

    Returns:
        as `train`; `checkpoint` is None without weights. For several weights their ranking.

    Raises:
        VitmedError: as in `train`.
    """
    ui = ui or Ui()
    names = weight_list(flags.get("weights"))
    own = {name: value for name, value in flags.items() if names is None or name != "weights"}
    settings = load_config(config, {"data.root": data, **read_overrides(own, FLAGS, "probe")}, sets)
    check_place(settings, output, name)
    if names is not None:
        _check_ranking(settings, fail_under)
        command = train_command({"config": config, "sets": sets, **own}, data)
        offline = offline or flags["weights"] == ALL_LOCAL
        settings, splits = _open_folder(settings, output, "folds", ui)
        return rank_weights(settings, splits, names, output, name, command, config is None, offline, ui)
    if settings.model.weights is not None:
        flags |= {"config": config, "sets": sets, "output": output, "name": name, "fail_under": fail_under}
        return train(data, offline=offline, ui=ui, **{**flags, "freeze": True})
    check_names(settings, SIZES, POLICIES, METRICS)
    _refuse_all_folds(settings, "without weights, probe evaluates one fold")
    return _colours_alone(settings, output, name, parse_gates(fail_under), ui)


def _check_ranking(settings: Config, fail_under: Sequence[str]) -> None:
    """Raises UsageError for what a ranking of several weights does not do."""
    check_names(settings, SIZES, POLICIES, METRICS)
    _refuse_all_folds(settings, "several weights are ranked on one fold")
    if fail_under:
        raise UsageError("--fail-under is about the test, which a ranking of weights does not open", "omit it")


def train_command(options: dict[str, Any], data: str | Path | None) -> str:
    """The command line of train with these options, and `{}` for its weights."""
    words = ["vitmed", "train", *([str(data)] if data is not None else [])]
    for name, value in options.items():
        flag = "--set" if name == "sets" else f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list | tuple) and not all(isinstance(part, str) for part in value):
            words += [flag, ",".join(f"{part:g}" for part in value)]  # a window
        elif value is not None:
            words += [
                word for part in (value if isinstance(value, list | tuple) else [value]) for word in (flag, str(part))
            ]
    return f"{shlex.join(words).replace('{', '{{').replace('}', '}}')} --weights {{}}"


def _refuse_all_folds(settings: Config, problem: str) -> None:
    if settings.data.divided and settings.data.fold is None:
        raise UsageError(problem, "name it: --fold 1")


def _open_folder(config: Config, output: str | Path, parts: str, ui: Ui) -> tuple[Config, Splits]:
    """The images of a folder, which are divided into `parts`, and the configuration with their window."""
    report_card(config.data.card, ui)
    show_expression(config.data.group_regex, ui)
    with ui.bar("finding images", unit="files") as advance:
        splits = make_splits(config.data, advance, config.evaluate.ordinal)
    check_folder(config.data, ui, config.evaluate.ordinal)
    report_patients(splits, f"one patient may be in two {parts}, which makes results look too good", ui)
    RunFolder.probe(output)
    return with_window(config, splits, ui), standardised(splits)


def _colours_alone(
    config: Config, output: str | Path, name: str | None, gates: dict[str, float], ui: Ui
) -> TrainResult:
    """Fit on train, choose on val, and evaluate val and test, each with a report."""
    config, splits = _open_folder(config, output, "splits", ui)
    preprocessing = Preprocessing.of(config)
    splits, images, hashes, records, skipped = check_images(splits, preprocessing, config.data, ui)
    notes, counts = check_before_training(splits, records, skipped, config, ui)
    folder = RunFolder.create(output, name or default_name(splits.root, config))
    write_text(folder.config, store_paths(config, folder.path).to_yaml())
    write_text(folder.splits, splits_csv(splits, hashes))
    logits_of = fit_colours(splits, images, ui)
    flow = flow_of(splits, hashes, counts, why_left_out(config.data))
    results = {}
    for split in ("val", "test"):
        samples, what = splits.samples[split], f"{split} of {splits.root.resolve().name}"
        logits, positive = logits_of(split), config.data.positive
        predictions = labelled_by(splits.target, splits.classes, samples, logits, positive, splits.columns)
        about = "No network: this shows what stain, light, format and size reveal about the labels."
        metrics = write_report(
            folder.path / split, predictions, title=f"{what}: colours and size alone",
            facts={
                "Model": baseline_text("colour_and_size", splits.target.kind),
                "Images": f"{what}: {len(predictions):,} evaluated", "Patients": describe_patients(splits),
            },
            read=lambda path: thumbnail(splits.root / path, preprocessing), config=config.evaluate,
            notes=[*patient_notes(splits, split), about, *notes],
            flow=flow.model_copy(update={"evaluated": evaluated_images(predictions, split)}), run=folder.name,
        )  # fmt: skip
        results[split] = report_evaluation(Evaluation(predictions, metrics, folder.path / split), {}, ui)
    result = TrainResult(folder.path, None, results["val"], results["test"])
    check_gates(gates, results["test"].metrics, result)
    return result
