"""`vitmed probe`: evaluate a baseline that trains no network."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitmed.checks.data_check import check_before_training, check_folder
from vitmed.commands.rank_weights import ALL_LOCAL, RankingResult, rank_weights, weight_list
from vitmed.commands.train import TrainResult, check_place, default_name, train
from vitmed.core.config import Config
from vitmed.core.csv_files import csv_text
from vitmed.core.dataset_cards import report_card
from vitmed.core.errors import UsageError
from vitmed.core.evaluate_config import EvaluateConfig
from vitmed.core.files import write_json, write_text
from vitmed.core.flags import FLAGS, read_overrides
from vitmed.core.load_config import check_names, load_config, store_paths, with_values
from vitmed.core.messages import bar, say, warn
from vitmed.core.run_folder import RunFolder
from vitmed.data.patients import describe_patients, patient_notes, report_patients, show_expression
from vitmed.data.samples import Splits, labelled_by
from vitmed.data.splits import make_splits
from vitmed.decisions.policy import CHOOSING
from vitmed.imaging.augmentation import POLICIES
from vitmed.imaging.preprocessing import Preprocessing, thumbnail
from vitmed.metrics.metric_table import METRICS
from vitmed.models.sizes import SIZES
from vitmed.report.headline import Evaluation, check_gates, parse_gates, report_evaluation
from vitmed.report.participant_flow import evaluated_images, flow_of, why_left_out
from vitmed.report.write import baseline_text, write_report
from vitmed.training.baselines import fit_colours
from vitmed.training.plan.make_plan import check_against_splits, config_of_target, standardised, with_window
from vitmed.training.run import check_images, splits_csv

SEEN = ("model.image_size", "model.channels", "model.weights")
OF_RANKING = (*SEEN, "train.device", "evaluate.resamples", "evaluate.ordinal")  # settings that a ranking uses
UNUSED = {*CHOOSING, "map_images"} - {"prevalence"}  # without a decision policy and attention maps
OF_COLOURS = (*SEEN, *(f"evaluate.{name}" for name in EvaluateConfig.model_fields if name not in UNUSED))


def probe(
    data: str | Path | None = None,
    *,
    config: str | Path | None = None,
    sets: Sequence[str] = (),
    output: str | Path = "runs",
    name: str | None = None,
    fail_under: Sequence[str] = (),
    offline: bool = False,
    **flags: Any,
) -> TrainResult | RankingResult:
    """Evaluate a baseline in minutes, without training a network.

    With `weights`: a linear model and nearest neighbours on the features of the frozen network, as
    `train(freeze=True)` does. Without: a linear model of the colours and the size of the images. It sees no
    shapes, so a good result points to a shortcut. Linear is logistic regression, of each finding by itself; of a number
    it is ridge regression.

    With several weights (a list, names with commas between them, or "all-local" for every file in the cache folder):
    which of them suit these images, by a linear model that is fitted on train and judged on validation. The test is not
    read.

    Args:
        data, config, sets, output, name, fail_under, offline, flags: as in `train`.

    Returns:
        as `train`; `checkpoint` is None without weights. For several weights their ranking.

    Raises:
        VitmedError: as in `train`.
    """
    names = weight_list(flags.get("weights"))
    own = {name: value for name, value in flags.items() if names is None or name != "weights"}
    overrides = {"data.root": data, **read_overrides(own, FLAGS, "probe")}
    settings = load_config(config, overrides, sets)
    check_place(settings, output, name)
    if names is not None or settings.model.weights is None:
        chosen = [text.partition("=")[0].strip() for text in ([sets] if isinstance(sets, str) else sets)]
        used = OF_COLOURS if names is None else OF_RANKING
        given = [place for place, value in overrides.items() if value is not None] + chosen
        if idle := sorted({place for place in given if not place.startswith(("data.", *used))}):
            warn(f"probe trains no network here, so these have no effect: {', '.join(idle)}")
    if names is not None:
        check_names(settings, SIZES, POLICIES, METRICS)
        _refuse_all_folds(settings, "several weights are ranked on one fold")
        if fail_under:
            raise UsageError("--fail-under is about the test, which a ranking of weights does not read", "omit it")
        settings, splits = _open_folder(with_values(settings, {"model.weights": None}), output, "folds")
        content, rows, best = rank_weights(settings, splits, names, offline or flags["weights"] == ALL_LOCAL)
        folder = RunFolder.create(output, name or f"{default_name(splits.root, settings).rpartition('_')[0]}_weights")
        write_text(folder.config, store_paths(settings, folder.path).to_yaml())
        write_json(folder.ranking, content)
        write_text(folder.ranking.with_suffix(".csv"), csv_text(rows))
        own = {**overrides, "data.root": None}
        given = [f"{key}={json.dumps(value)}" for key, value in own.items() if value is not None]
        words = [str(data)] * (data is not None) + ["--config", str(config)] * (config is not None)
        words += [word for one in (*([sets] if isinstance(sets, str) else sets), *given) for word in ("--set", one)]
        command = shlex.join(["vitmed", "train", *words, "--weights", best])
        where = f"the test was not read; files: {folder.path}"
        for line in (*content["notes"], content["verdict"], where, f"to train: {command}"):
            say(line)
        return RankingResult(content, rows, folder.path, best, command)
    if settings.model.weights is not None:
        flags |= {"config": config, "sets": sets, "output": output, "name": name, "fail_under": fail_under}
        return train(data, offline=offline, **{**flags, "freeze": True})
    check_names(settings, SIZES, POLICIES, METRICS)
    _refuse_all_folds(settings, "without weights, probe evaluates one fold")
    return _colours_alone(settings, output, name, parse_gates(fail_under))


def _refuse_all_folds(settings: Config, problem: str) -> None:
    if settings.data.divided and settings.data.fold is None:
        raise UsageError(problem, "name it: --fold 1")


def _open_folder(config: Config, output: str | Path, parts: str) -> tuple[Config, Splits]:
    """The images of a folder, which are divided into `parts`, and the configuration with their window."""
    report_card(config.data.card)
    show_expression(config.data.group_regex)
    with bar("finding images", unit="files") as advance:
        splits = make_splits(config.data, advance, config.evaluate.ordinal)
    config = config_of_target(config, splits)
    check_against_splits(config, splits)
    check_folder(config.data, config.evaluate.ordinal)
    report_patients(splits, f"one patient may be in two {parts}, which makes results look too good")
    RunFolder.probe(output)
    return with_window(config, splits), standardised(splits)


def _colours_alone(config: Config, output: str | Path, name: str | None, gates: dict[str, float]) -> TrainResult:
    """Fit on train, choose on val, and evaluate val and test, each with a report."""
    config, splits = _open_folder(config, output, "splits")
    preprocessing = Preprocessing.of(config)
    splits, images, hashes, records, skipped = check_images(splits, preprocessing, config.data)
    notes, counts = check_before_training(splits, records, skipped, config)
    folder = RunFolder.create(output, name or default_name(splits.root, config))
    write_text(folder.config, store_paths(config, folder.path).to_yaml())
    write_text(folder.splits, splits_csv(splits, hashes))
    logits_of = fit_colours(splits, images)
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
        results[split] = report_evaluation(Evaluation(predictions, metrics, folder.path / split), {})
    result = TrainResult(folder.path, None, results["val"], results["test"])
    check_gates(gates, results["test"].metrics, result)
    return result
