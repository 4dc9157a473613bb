"""`vitmed evaluate`: a checkpoint -> predictions of a labelled split -> a report."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from vitmed.checks.evaluation_images import ImageRequest, choose_samples
from vitmed.core import options, places
from vitmed.core.config import EVALUATE_FLAGS, Config
from vitmed.core.errors import UsageError, excluded, unknown_key
from vitmed.core.messages import bar, gathering, show
from vitmed.core.options import PRECISION, Argument, MainOption, Option
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted
from vitmed.data.folders import SPLITS
from vitmed.decisions.evaluation_folder import earlier_choices, take_place
from vitmed.decisions.policy import notes_of
from vitmed.inference.open_model import open_model, open_network, with_window
from vitmed.inference.saved_model import check_precision
from vitmed.metrics.predictions import Predictions
from vitmed.report import evaluate as reporting
from vitmed.report.headline import Evaluation, check_page, parse_gates, report_evaluation
from vitmed.report.model_card import write_card
from vitmed.report.participant_flow import data_check_of


def evaluate(
    checkpoint: Annotated[Path | str, Argument("A run folder, a checkpoint, an .onnx file, or a predictions.csv.")],
    *,
    data: options.LabelledData = None,
    split: options.Split = "test",
    allow_leakage: options.AllowLeakage = False,
    output: Annotated[Path | str | None, MainOption("Folder of the report.", "--output -o")] = None,
    positive: Annotated[
        str | None,
        MainOption("Three classes or more: this class, or several, against the rest.", metavar="CLASS[,CLASS]"),
    ] = None,
    precision: Annotated[str, Option(f"{PRECISION}fp32.", metavar="auto|fp32|bf16")] = "fp32",
    fail_under: options.Gates = (),
    group_regex: str | None = None,
    groups: str | Path | None = None,
    labels: str | Path | None = None,
    device: str = "auto",
    window: options.AskedWindow = None,
    baselines: Callable[[], Mapping[str, Predictions]] | None = None,
    **flags: Annotated[Any, options.Fields(Config, EVALUATE_FLAGS)],
) -> Evaluation:
    """Evaluate a checkpoint on a labelled split and write the report.

    Args:
        checkpoint: a best.pt, last.pt or epoch_0010.pt; an exported .onnx file; or a predictions.csv, whose report is
            made again without model, images and pictures.
        data: another folder. Default: the images that the run held out in `split`.
        precision: "fp32", whose numbers other machines reproduce; "auto" or "bf16": see `predict`.
        output: a new folder for the report; default `<run>/<split>`.
        group_regex, groups: of `data`, as in `train`; default: the expression of the run.
        labels: of `data`, as in `train`; without `data` a table that adds columns of subgroups and readers to the
            images of the run or of predictions.csv, and to a predictions.csv without labels also these and patients.
        window: of deep images, as in `predict`.
        allow_leakage: evaluate on `data` even if the model was trained on some of it.
        positive: of three classes or more, this one, or several as one ("KL3,KL4"), against the rest, with a decision
            policy of its own, from the predictions.csv of the run's test, or one you name; of two: of another table.
        baselines: returns predictions of the baselines for the same images; called after the model has predicted.
        **flags: the names in `EVALUATE_FLAGS`, such as resamples=500; default: those of the run.

    Raises:
        CheckpointError, DataError, UsageError: an argument that cannot be used. GateError, at the end: a gate not met.
    """
    gates, checkpoint = parse_gates(fail_under), Path(checkpoint)
    check_page(flags)
    if of_run := positive is not None and checkpoint.suffix != ".csv":
        from vitmed.studies.comparison import table_of  # here, since a report of a table needs no torch

        checkpoint = table_of(checkpoint)
    if checkpoint.suffix == ".csv":
        of_images: dict[str, Any] = {"--data": data, "--group-regex": group_regex, "--groups": groups}
        of_images |= {"--split": split != "test", "--device": device != "auto", "--allow-leakage": allow_leakage}
        of_images |= {"--window": window, "--precision": precision != "fp32", "--map-images": flags.get("map_images")}
        of_images |= {"baselines": baselines}
        if given := ", ".join(flag for flag, value in of_images.items() if value):
            if of_run:
                fix = "leave it out; or evaluate without --positive, then the predictions.csv of that with it"
                raise UsageError(f"{given}: --positive evaluates {checkpoint}, without model and images", fix)
            raise excluded("table", given=given)
        return reporting.rebuild(checkpoint, positive, output, gates, flags, labels)
    if split not in SPLITS:
        raise unknown_key("split", split, SPLITS)
    check_precision(precision)
    saved = with_window(open_model(checkpoint), window)
    parse_gates(fail_under, "grades" if flags.get("ordinal") else saved.splits.target.kind)  # before the images
    closed = [saved.splits.root, *([Path(data)] if data is not None else [])]
    if output is not None:
        places.output_folder(output, Path(output), *closed)  # now, not after all images were compared
    chosen = choose_samples(saved, ImageRequest(data, split, group_regex, groups, labels), allow_leakage)
    config, policy, added = reporting.settings_and_policy(saved, chosen, flags)
    notes, run = [*chosen.notes, *notes_of(policy), *added], RunFolder(saved.path.parent)
    what, name = reporting.describe_images(chosen)
    folder = places.output_folder(output, run.path / name, *closed)
    if chosen.own_split == "test":
        notes += earlier_choices(run, saved.weights_hash, policy)
    network = open_network(saved, policy, device, saved.exact if precision == "fp32" else precision)
    if flags.get("map_images") and network.model is None:
        raise excluded("maps", given=saved.path.name)
    show(f"evaluating {saved.path} on {counted(len(chosen), 'image')}: {what}")
    notes += data_check_of(run)[0] if data is None else []
    notes += [f"Predicted in {network.precision}, not in fp32: {network.reason}."] if network.reason else []
    with bar(f"evaluating {name}") as advance:
        predictions = chosen.predictions(saved, network.outputs(chosen.read, len(chosen), advance))
    predictions = predictions if policy is None else policy.apply(predictions)
    used = reporting.ModelOnImages(network, policy, chosen, config, notes)
    with gathering():  # the notes tell what is grave
        metrics = reporting.report_images(folder, used, predictions, baselines)
    folder = take_place(folder, run.path / name) if output is None else folder
    of_model = policy is saved.policy and network.precision == "fp32"  # the card describes the model as it predicts
    if of_model and chosen.own_split == "test" and output is None and saved.path.name == run.best.name:
        write_card(run, Evaluation(predictions, metrics, folder))
    return report_evaluation(Evaluation(predictions, metrics, folder), gates)
