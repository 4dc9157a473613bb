"""What colours and size alone reveal about the labels: a baseline without a network, evaluated as a run is."""

from __future__ import annotations

from pathlib import Path

from vitmed.checks.data_check import check_before_training, check_folder
from vitmed.core.config import Config
from vitmed.core.dataset_cards import report_card
from vitmed.core.files import write_text
from vitmed.core.load_config import store_paths
from vitmed.core.messages import bar
from vitmed.core.run_folder import RunFolder
from vitmed.data.patients import describe_patients, patient_notes, report_patients, show_expression
from vitmed.data.samples import Splits, labelled_by
from vitmed.data.splits import make_splits
from vitmed.imaging.preprocessing import Preprocessing, thumbnail
from vitmed.report.analyses import Extra
from vitmed.report.headline import Evaluation, report_evaluation
from vitmed.report.participant_flow import evaluated_images, flow_of, why_left_out
from vitmed.report.write import About, Report, baseline_text
from vitmed.training.baselines import fit_colours
from vitmed.training.environment import check_images, splits_csv
from vitmed.training.plan.make_plan import check_against_splits, config_of_target, standardised, with_window


def open_folder(config: Config, output: str | Path, parts: str) -> tuple[Config, Splits]:
    """Divide the images of a folder into `parts`; return the configuration with their window, and the splits.

    Raises:
        DataError, UsageError: as `train`.
    """
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


def evaluate_colours(
    config: Config, splits: Splits, output: str | Path, name: str
) -> tuple[RunFolder, dict[str, Evaluation]]:
    """Fit a linear model of colours and size on train, and evaluate it on val and test, each with a report.

    Args:
        config, splits: from `open_folder`; output: the folder of the run folder; name: of that.

    Raises:
        DataError: an image that cannot be read, or a problem of the data that training refuses.
    """
    preprocessing = Preprocessing.of(config)
    splits, images, hashes, records, skipped = check_images(splits, preprocessing, config.data)
    notes, counts = check_before_training(splits, records, skipped, config)
    folder = RunFolder.create(output, name)
    write_text(folder.config, store_paths(config, folder.path).to_yaml())
    write_text(folder.splits, splits_csv(splits, hashes))
    logits_of = fit_colours(splits, images)
    flow = flow_of(splits, hashes, counts, why_left_out(config.data))
    results = {}
    for split in ("val", "test"):
        samples, what = splits.samples[split], f"{split} of {splits.root.resolve().name}"
        logits, positive = logits_of(split), config.data.positive
        predictions = labelled_by(splits.target, splits.classes, samples, logits, positive, splits.columns)
        said = "No network: this shows what stain, light, format and size reveal about the labels."
        about = About(
            title=f"{what}: colours and size alone",
            facts={
                "Model": baseline_text("colour_and_size", splits.target.kind),
                "Images": f"{what}: {len(predictions):,} evaluated",
                "Patients": describe_patients(splits),
            },
            notes=[*patient_notes(splits, split), said, *notes],
            run=folder.name,
            flow=flow.model_copy(update={"evaluated": evaluated_images(predictions, split)}),
        )
        extra = Extra(read=lambda path: thumbnail(splits.root / path, preprocessing))
        metrics = Report.of(predictions, about, config.evaluate, extra).write(folder.path / split)
        results[split] = report_evaluation(Evaluation(predictions, metrics, folder.path / split), {})
    return folder, results
