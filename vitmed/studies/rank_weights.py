"""`vitmed probe` with several weights: which suit the images, by their frozen features."""

import shlex
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.checks.data_check import check_folder
from vitmed.core.config import Config
from vitmed.core.errors import CheckpointError, OutOfMemoryError, UsageError
from vitmed.core.files import probe, write_json, write_text
from vitmed.core.load_config import build_config, store_paths, with_values
from vitmed.core.messages import say, warn
from vitmed.core.run_folder import RunFolder, cache_folder
from vitmed.core.text import counted, listed
from vitmed.core.text_files import csv_text
from vitmed.data.loading import read_splits
from vitmed.data.patients import report_patients
from vitmed.data.samples import Splits, labelled_by
from vitmed.decisions.targets import ALL_METRICS, TARGETS
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.estimates import value_text
from vitmed.models.hardware import pick_device
from vitmed.models.vit import ViT
from vitmed.models.weights.catalogue import SUFFIXES, means_file, public_weights, weight_path
from vitmed.models.weights.files import magic
from vitmed.models.weights.pretrained import load_pretrained, open_weights
from vitmed.studies.cluster import each, files_of, prepare
from vitmed.studies.comparison import Model, align, better, compare_models, short_names
from vitmed.studies.one_run import default_name
from vitmed.training.baselines import fit_colours, fit_logistic, frozen_features
from vitmed.training.out_of_memory import is_out_of_memory
from vitmed.training.plan import make_plan

OF_MODEL = ("model.image_size", "model.channels", "model.weights")
OF_RANKING = (*OF_MODEL, "train.device", "evaluate.ordinal")  # settings that a ranking uses
ALL_LOCAL = "all-local"
COLOURS = "colours and size"


@dataclass(frozen=True)
class RankingResult:
    """The content of ranking.json and its rows as text, below their titles; the run folder; the best weights as they
    were named; and the command that trains with them."""

    content: dict[str, Any]
    rows: list[list[str]]
    folder: Path
    weights: str
    command: str


def weight_list(given: str | Path | Sequence[str | Path] | None) -> list[str] | None:
    """List the weights that `--weights` names, where they are to be ranked; None for none, or for one.

    A text with commas is a list, unless it is a file.

    Raises:
        UsageError: `all-local` without a file in the cache folder, an unknown name, or one file twice.
        CheckpointError: a file that is not there.
    """
    if given == ALL_LOCAL:
        folder, named = cache_folder() / "weights", {weight_path(name): name for name in public_weights()}
        files = sorted(file for file in folder.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        if not files:
            fix = "fetch some: vitmed weights fetch NAME; or name files: vitmed probe DIR --weights A.pth,B.safetensors"
            raise UsageError(f"--weights {ALL_LOCAL}: there is no weight file in {folder}", fix)
        return [named.get(file.absolute(), str(file)) for file in files]
    if isinstance(given, str | Path):
        given = [given] if Path(given).is_file() else str(given).split(",")
    names = [str(name).strip() for name in given or () if str(name).strip()]
    if len(names) < 2:
        return None
    places = [file_of(name).resolve() for name in names]
    for name, place in zip(names, places, strict=True):
        if means_file(name):
            magic(place)  # raises where there is no such file
        if places.count(place) > 1:
            raise UsageError(f"--weights names {name} twice", "name each weights once")
    return names


def file_of(name: str) -> Path:
    """The file that a name of weights means, there or not."""
    return RunFolder.weights_in(name) if means_file(name) else weight_path(name)


def rank_weights(
    settings: Config,
    names: Sequence[str],
    run: tuple[str | Path, str | None],
    words: Sequence[str],
    offline: bool,
    place: Executor | None,
) -> RankingResult:
    """Rank weights by a linear model of their frozen features, fitted on train and computed at `place`, into a run
    folder. The test is not read.

    Args:
        run: the folder for its folder, and the name of that; words: arguments of `vitmed train` with the same settings.

    Raises:
        CheckpointError: none can be used. Else as `probe`.
    """
    output, name = run
    settings, splits = make_plan.split_images(with_values(settings, {"model.weights": None}))
    check_folder(settings.data, settings.evaluate.ordinal)
    report_patients(splits, "one patient may be in two folds, which makes results look too good")
    probe(output)
    settings = make_plan.with_window(settings, splits)
    if place is not None:
        files = [file_of(name) for name in names if offline or means_file(name)]  # each node fetches the others
        prepare(place, [*files_of(settings), *files], Path(output))
    content, rows, best = _ranking(settings, splits, names, offline, place)
    folder = RunFolder.create(output, name or f"{default_name(splits.root, settings).rpartition('_')[0]}_weights")
    write_text(folder.config, store_paths(settings, folder.path).to_yaml())
    write_json(folder.ranking, content)
    write_text(folder.ranking.with_suffix(".csv"), csv_text(rows))
    command = shlex.join(["vitmed", "train", *words, "--weights", best])
    where = f"the test was not read; files: {folder.path}"
    for line in (*content["notes"], content["verdict"], where, f"to train: {command}"):
        say(line)
    return RankingResult(content, rows, folder.path, best, command)


def _ranking(
    settings: Config, splits: Splits, names: Sequence[str], offline: bool, place: Executor | None
) -> tuple[dict[str, Any], list[list[str]], str]:
    """The first fields of `RankingResult`, and the best weights as they were named."""
    splits = replace(splits, samples={part: splits.samples[part] for part in ("train", "val")})
    given = dict(zip(short_names([Path(name).absolute().parts for name in names]), names, strict=True))
    models, seconds, left_out = list[Model](), dict[str, float](), dict[str, str]()
    calls = [(weights, name, settings, splits, offline) for name, weights in given.items()]
    judged = {name: result for name, *result in each(place, _predictions, calls)}
    for name in given:
        predictions, took, why = judged[name]
        if why:
            left_out[name] = why
        else:
            seconds[name] = took
            models.append(Model(name, predictions))
    if not models:
        raise CheckpointError("none of these weights can be used:\n" + "\n".join(left_out.values()), "name others")
    read = read_splits(splits, Preprocessing.of(settings), settings.data, records=False)
    logits = fit_colours(read.splits, read.images)("val")
    predictions = labelled_by(splits.target, splits.classes, read.splits.samples["val"], logits, settings.data.positive)
    models, notes = align([*models, Model(COLOURS, predictions)])
    compared = compare_models(models if len(models) == 2 else models[:-1], notes, splits.target.kind)

    metric = TARGETS[compared.kind].headline[0]
    numbers = {name: model.overall[metric] for name, model in compared.models.items()}
    sign = -1 if ALL_METRICS[metric].higher_is_better else 1
    order = sorted(seconds, key=lambda name: np.inf if (v := numbers[name].value) is None else sign * v)
    best, phrase, groups = order[0], ALL_METRICS[metric].phrase, dict[str, list[str]](yes=[], no=[], ahead=[])
    both = [model for model in models if model.name in (best, COLOURS)]  # whose p is not adjusted for the others
    beside = compare_models(both, labels=splits.target.kind)
    numbers[COLOURS] = beside.models[COLOURS].overall[metric]
    pairs, described = [*compared.pairs, *beside.pairs], compared.models | beside.models
    compared = compared.model_copy(update={"pairs": pairs, "models": described})
    rows = [["rank", "weights", f"{phrase} (95 % interval)", "minus the best", "clearly behind", "ms/image"]]
    rows.append(["1", best, value_text(numbers[best]), "", "", f"{1000 * seconds[best]:,.1f}"])
    for rank, name in enumerate([*order[1:], COLOURS], 2):
        pair = next(pair for pair in compared.pairs if {pair.first, pair.second} == {name, best})
        gap = pair.difference[metric] if pair.first == name else pair.difference[metric].reversed
        ahead = better(pair, compared.patients or compared.images, compared.patients is not None)
        behind = "no" if ahead is None else "yes" if ahead == best else "ahead"
        groups[behind].append(name)
        ends = (str(rank), f"{1000 * seconds[name]:,.1f}") if name in seconds else ("", "")
        rows.append([ends[0], name, value_text(numbers[name]), value_text(gap, "+"), behind, ends[1]])
    texts = {"yes": "clearly behind", "no": "not clearly behind, so chance may decide", "ahead": "clearly ahead"}
    verdict = f"best: {best}" + "".join(f"; {texts[key]}: {listed(some)}" for key, some in groups.items() if some)
    ranking = [{"name": n, "seconds": seconds[n], "clearly_behind": n in groups["yes"]} for n in order]
    content = {"best": best, "ranking": ranking, "left_out": left_out, **compared.to_dict(), "verdict": verdict}
    return content, rows, given[best]


def _predictions(given: str, name: str, settings: Config, splits: Splits, offline: bool) -> tuple[str, Any, float, str]:
    """The name, what a linear model of the features of some weights says of validation, the seconds for an image, and
    why these weights are left out."""
    say(f"weights: {name}")
    try:
        weights = open_weights(given, offline)
        config = make_plan.config_with_weights(
            with_values(settings, {"model.weights": given, "train.min_lr": 0.0}), weights
        )
        config = build_config(config.model_dump())  # raises for values that do not go together
        device, took = pick_device(config.train.device), list[float]()
        read = read_splits(splits, how := Preprocessing.of(config), config.data, records=False)
        if seen := sum(map(set(weights.seen).__contains__, (*read.hashes["train"], *read.hashes["val"]))):
            what = f"{name} was made with {counted(seen, 'image')} of train and validation"
            if weights.kind == "vitmed":
                raise CheckpointError(f"{what} and their labels, so its numbers are too good", "name other weights")
            warn(f"{what}, without their labels")

        @cache
        def features(part: str) -> np.ndarray:
            started = time.perf_counter()
            values = frozen_features(model, read.images[part], part)
            took.append((time.perf_counter() - started) / len(values))
            return values

        try:
            model = ViT(config.model, splits.outputs)
            load_pretrained(model, weights, how)
            model = model.to(device)
            head = fit_logistic(features, read.splits, read.images, f"the features of {name}")
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            fix = "smaller images (--image-size N), or --device cpu"
            raise OutOfMemoryError(f"{name}: out of memory", fix) from None
        logits, samples = head.logits(features("val")), read.splits.samples["val"]
        predictions = labelled_by(splits.target, splits.classes, samples, logits, config.data.positive)
        return name, predictions, float(np.mean(took)), ""
    except (CheckpointError, UsageError, OutOfMemoryError) as error:
        warn(f"{name} is left out: {error.line}")
        return name, None, 0.0, error.line
