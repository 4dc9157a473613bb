"""`vitmed probe --weights A,B,...`: which weights suit these images, if the data can show it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitmed.commands.compare import better, compare_models
from vitmed.commands.compared_tables import Model
from vitmed.commands.plan import plan_yaml
from vitmed.commands.train import default_name
from vitmed.core.cache_folder import cache_folder
from vitmed.core.config import Config
from vitmed.core.errors import CheckpointError, OutOfMemoryError, UsageError
from vitmed.core.files import make_folder, write_bytes, write_json, write_text
from vitmed.core.hardware import describe, pick_device
from vitmed.core.load_config import build_config, store_paths, with_values
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted, file_name
from vitmed.core.ui import Silent, Ui
from vitmed.data.loading import Images
from vitmed.data.samples import Splits, labelled_by
from vitmed.decisions.targets import ALL_METRICS, TARGETS, TargetKind
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.any_predictions import AnyPredictions
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.paired_comparison import ComparisonResults
from vitmed.models.pretrained import load_pretrained, open_weights
from vitmed.models.sizes import model_label
from vitmed.models.vit import ViT, build_vit
from vitmed.models.weight_files import magic
from vitmed.models.weight_layouts import HEAD
from vitmed.models.weights_catalogue import CATALOGUE, entry_of, means_file, weight_path
from vitmed.report.plots.drawing import png
from vitmed.report.plots.weights import ranking_picture
from vitmed.report.weights_ranking import RankedWeights, WeightsRanking, ranking_lines, ranking_verdict
from vitmed.training.baselines import QUANTILES, colour_and_size, frozen_features
from vitmed.training.frozen_probe import Pool, Round, describe_rounds, held_out_logits
from vitmed.training.gradients import is_out_of_memory
from vitmed.training.memory import with_peak
from vitmed.training.prepare import config_with_weights, prepare_run

ALL_LOCAL = "all-local"
SUFFIXES = (".pt", ".pth", ".bin", ".safetensors", ".npz")
COLOURS = "colour_and_size"
Both = tuple[AnyPredictions, AnyPredictions]  # by a linear model, and by nearest neighbours
WARM_UP = 64  # images, of which the memory is measured and the time is not


@dataclass(frozen=True)
class RankingResult:
    """The ranking, its run folder, and the command that trains with the best weights."""

    content: WeightsRanking
    folder: Path
    command: str


class Probed(NamedTuple):
    """Features of every image of a `Pool`, and what is known of the weights that gave them."""

    rows: np.ndarray
    values: np.ndarray
    facts: dict[str, Any]  # fields of `RankedWeights`


def weight_list(given: str | Path | Sequence[str | Path] | None) -> list[str] | None:
    """The weights that `--weights` names, where they are to be ranked; None for none, or for one.

    A text with commas is a list, unless it is a file.

    Raises:
        UsageError: `all-local` without a file in the cache folder, an unknown name, or one name twice.
        CheckpointError: a file that is not there.
    """
    if given == ALL_LOCAL:
        return local_weights()
    if isinstance(given, str):
        given = [given] if Path(given).is_file() else given.split(",")
    names = [str(name).strip() for name in ([given] if isinstance(given, Path) else given or ()) if str(name).strip()]
    if ALL_LOCAL in names:
        raise UsageError(f"--weights {','.join(names)}: {ALL_LOCAL} goes with no other name", f"--weights {ALL_LOCAL}")
    if len(names) < 2:
        return None
    places: dict[Path, str] = {}
    for name in names:
        if means_file(name):
            magic(RunFolder.weights_in(name))  # raises where there is no such file
            place = RunFolder.weights_in(name).resolve()
        else:
            entry_of(name)
            place = weight_path(name)
        if place in places:
            raise UsageError(f"--weights names {name} twice", "name each weights once")
        places[place] = name
    return names


def local_weights() -> list[str]:
    """Every weight file in the cache folder: by its name in the catalogue, else by its path."""
    folder = cache_folder() / "weights"
    files = sorted(file for file in folder.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    named = {weight_path(name): name for name in CATALOGUE}
    if not files:
        raise UsageError(
            f"--weights {ALL_LOCAL}: there is no weight file in {folder}",
            "fetch some: vitmed weights fetch NAME; or name files: vitmed probe DIR --weights A.safetensors,B.pth",
        )
    return [named.get(file.absolute(), str(file)) for file in files]


def rank_weights(
    settings: Config, splits: Splits, names: Sequence[str], output: str | Path, name: str | None, command: str,
    plans: bool, offline: bool, ui: Ui,
) -> RankingResult:  # fmt: skip
    """Rank weights by how well their frozen features predict the labels of train and validation.

    Args:
        settings: the configuration; its weights are not used.
        splits: of the folder.
        names: of the weights; output, name: of the run folder.
        command: that trains, with `{}` for the weights.
        plans: whether `train` plans the settings.
        offline: open no connection.

    Raises:
        CheckpointError: none of the weights can be used.
        VitmedError: as `probe`.
    """
    settings = with_values(settings, {"model.weights": None})
    device = pick_device(settings.train.device)
    pool = Pool(splits, settings.data, ui)
    pool.rounds(settings.data.split_seed)  # raises now, not after hours
    found, left_out = dict[str, Probed](), dict[str, str]()
    used = dict[str, str]()  # short name -> as given
    for number, (short, given) in enumerate(short_names(names).items(), 1):
        ui.say(f"weights {number} of {len(names)}: {short}")
        try:
            found[short] = _probed(given, settings, pool, device, offline, ui)
            used[short] = given
        except (CheckpointError, UsageError, OutOfMemoryError) as error:
            left_out[short] = error.line
            ui.warn(f"{short} is left out: {error.line}")
    if not found:
        raise CheckpointError("none of these weights can be used:\n" + "\n".join(left_out.values()), "name others")
    found[COLOURS] = _colours(settings, pool, ui)
    rounds = pool.rounds(settings.data.split_seed)
    predictions = _predictions(found, pool, rounds, settings, ui)
    content = _ranking(found, left_out, predictions, describe_rounds(pool, rounds), device, ui)
    best = used[content.best]
    prepared = prepare_run(with_values(settings, {"model.weights": best}), plans, offline, Silent())
    today = default_name(splits.root, settings).rpartition("_")[0]  # without the network
    folder = RunFolder.create(output, name or f"{today}_weights")
    write_text(folder.config, store_paths(settings, folder.path).to_yaml())
    write_text(folder.train_config, plan_yaml(prepared, folder.path))
    _write(folder, content, predictions)
    for line in (*content.notes, *ranking_lines(content), content.verdict):
        ui.say(line)
    command = command.format(shlex.quote(best))
    ui.say(f"held out: {content.held_out}; the test images were not opened. Files: {folder.path}")
    ui.say(f"to train: {command}")
    ui.say(f"or, with settings to edit: vitmed train --config {folder.train_config}")
    return RankingResult(content, folder.path, command)


def _write(folder: RunFolder, found: WeightsRanking, predictions: Mapping[str, Both]) -> None:
    """The ranking, its picture, and the predictions of each linear model, which `vitmed compare` reads."""
    write_json(folder.ranking, found.to_dict())
    write_bytes(folder.ranking_picture, png(ranking_picture(found)))
    make_folder(folder.held_out)
    for number, (name, (linear, _)) in enumerate(predictions.items(), 1):
        write_text(folder.held_out / f"{number}_{file_name(name)}.csv", linear.to_csv())


def short_names(names: Sequence[str]) -> dict[str, str]:
    """A short unique name of each weights -> as given: a file without its folders, the run of a best.pt."""
    found: dict[str, str] = {}
    for given in names:
        short = model_label(Config().model.model_copy(update={"weights": given})) if means_file(given) else given
        number, free = 1, short
        while free in found or free == COLOURS:
            number += 1
            free = f"{short}-{number}"
        found[free] = given
    return found


def _probed(given: str, settings: Config, pool: Pool, device: torch.device, offline: bool, ui: Ui) -> Probed:
    """The features of some weights. Raises CheckpointError, UsageError or OutOfMemoryError if they cannot be used."""
    computed = []

    def build() -> ViT:
        model = build_vit(config.model, pool.splits.outputs)
        load_pretrained(model, weights, how)
        return model.to(device)

    def warm_up(images: Images, rows: Sequence[int]) -> ViT:
        model = build()
        frozen_features(model, images, device, None, rows[:WARM_UP])
        return model

    def compute(images: Images, rows: Sequence[int]) -> tuple[np.ndarray, float, float]:
        computed.append(given)
        model, memory = with_peak(lambda: warm_up(images, rows), device)
        started = time.perf_counter()
        with ui.bar(f"features of {given}") as advance:
            values = frozen_features(model, images, device, advance, rows)
        return values, (time.perf_counter() - started) / len(rows), memory

    try:
        weights = open_weights(given, ui, offline)
        config = config_with_weights(with_values(settings, {"model.weights": given}), weights)
        config = build_config(config.model_dump())  # raises for values that do not go together
        how = Preprocessing.of(config)
        backbone = {name: value for name, value in weights.state.items() if name not in HEAD}
        model = config.model.model_dump(exclude={"weights", "licence"})
        rows, known = pool.features(how, {"weights": backbone, "model": model, "device": device.type}, compute)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(f"{given}: out of memory", "smaller images (--image-size N), or --device cpu") from None
    seen, labels = len(set(pool.hashes) & set(weights.seen)), weights.kind == "vitmed"
    if seen:
        labelled_too = " and their labels, so it is not ranked: its numbers are too good" if labels else ", not labels"
        ui.warn(f"{given} was made with {counted(seen, 'image')} of train and validation{labelled_too}")
    return Probed(rows, known.values, {
        "image_size": config.model.image_size, "features": known.values.shape[1], "licence": config.model.licence,
        "seconds": known.seconds, "memory": None if np.isnan(known.memory) else known.memory,
        "cached": not computed, "seen": seen, "labels": bool(seen) and labels,
    })  # fmt: skip


def _colours(settings: Config, pool: Pool, ui: Ui) -> Probed:
    """The baseline: colours and size alone, of images as train makes them from scratch."""
    how, computed = Preprocessing.of(settings), []

    def compute(images: Images, rows: Sequence[int]) -> tuple[np.ndarray, float, float]:
        computed.append(COLOURS)
        started = time.perf_counter()
        with ui.bar("colours and size") as advance:
            values = colour_and_size(images, advance, rows)
        return values, (time.perf_counter() - started) / len(rows), float("nan")

    rows, known = pool.features(how, {"colours and size": QUANTILES}, compute)
    return Probed(rows, known.values, {
        "image_size": settings.model.image_size, "features": known.values.shape[1], "licence": None,
        "seconds": known.seconds, "memory": None, "cached": not computed, "seen": 0, "labels": False,
    })  # fmt: skip


def _predictions(
    found: Mapping[str, Probed], pool: Pool, rounds: Sequence[Round], settings: Config, ui: Ui
) -> dict[str, Both]:
    """Name -> predictions for the held-out images, by a linear model and by nearest neighbours."""
    held = np.sort(np.concatenate([one.held for one in rounds]))
    samples, splits, positive = [pool.samples[row] for row in held], pool.splits, settings.data.positive
    predictions = {}
    for name, one in found.items():
        with ui.bar(f"classifiers on {name}", unit="rounds") as advance:
            features = one.values[one.rows]
            logits = held_out_logits(features, pool.targets, rounds, splits.outputs, advance, splits.target.kind)
        linear, near = (
            labelled_by(splits.target, splits.classes, samples, part[held], positive) for part in logits.values()
        )
        predictions[name] = linear, near
    return predictions


def _ranking(
    found: Mapping[str, Probed], left_out: dict[str, str], predictions: Mapping[str, Both],
    held_out: str, device: torch.device, ui: Ui,
) -> WeightsRanking:  # fmt: skip
    """Best first; weights that learned from the labels of these images come last, without a rank."""
    models = [Model(name, linear, name if name == COLOURS else None) for name, (linear, _) in predictions.items()]
    compared = compare_models(models, 0, ui)

    kind = TARGETS[compared.kind]

    def key(name: str) -> tuple[bool, float, float]:
        overall = compared.models[name].overall
        return found[name].facts["labels"], *(_height(overall[one], one) for one in kind.headline[:3:2])

    names = sorted(predictions, key=key)
    ranked = [name for name in names if name != COLOURS and not found[name].facts["labels"]]
    if not ranked:
        raise CheckpointError(
            "all of these weights learned from the labels of these images",
            "add weights that did not: vitmed weights list",
        )
    rows = []
    for name in names:
        own, (_, near) = found[name], predictions[name]
        gap, p, like = _beside(ranked[0], name, compared)
        earlier = (other for other in found if other != name and list(found).index(other) < list(found).index(name))
        rows.append(RankedWeights(
            name=name, rank=ranked.index(name) + 1 if name in ranked else None,
            logistic=_some(compared.models[name].overall, kind), minus_best=gap, p_holm=p, like_best=like,
            neighbours=None if name == COLOURS else _some(kind.evaluate(near, 0).overall, kind),
            same_as=next((other for other in earlier if _same(found[other], own)), None), **own.facts,
        ))  # fmt: skip
    notes = [*compared.notes, *(f"{one.name} has the same features as {one.same_as}" for one in rows if one.same_as)]
    first = kind.headline[0]
    nearest = min((one for one in rows if one.rank), key=lambda one: _height((one.neighbours or {})[first], first))
    if nearest.rank != 1:
        notes.append(f"nearest neighbours rank {nearest.name} first")
    return WeightsRanking(
        kind=compared.kind, images=compared.images, patients=compared.patients, held_out=held_out,
        classes=compared.classes, positive_class=compared.positive_class, device=describe(device), best=ranked[0],
        ranking=rows, left_out=left_out, pairs=compared.pairs, notes=notes,
        verdict=ranking_verdict(rows, len(compared.pairs), compared.kind),
    )  # fmt: skip


def _beside(best: str, name: str, compared: ComparisonResults) -> tuple[dict[str, Estimate] | None, float | None, bool]:
    """The differences of weights from the best, the adjusted p, and whether the two cannot be told apart."""
    for pair in compared.pairs:
        if {pair.first, pair.second} == {best, name}:
            gaps = _some(pair.difference, TARGETS[compared.kind])
            gaps = gaps if pair.first == name else {number: gap.reversed for number, gap in gaps.items()}
            units = compared.patients or compared.images
            like = better(pair, units, compared.patients is not None) is None
            return gaps, pair.tests[TARGETS[compared.kind].headline[0]].p_holm, like
    return None, None, False


def _some(overall: Mapping[str, Estimate], kind: TargetKind) -> dict[str, Estimate]:
    return {number: overall[number] for number in kind.headline[:3]}


def _height(found: Estimate, name: str) -> float:
    """A number, lower is better; the worst of all where it is undefined."""
    if found.value is None:
        return float("inf")
    return -found.value if ALL_METRICS[name].higher_is_better else found.value


def _same(one: Probed, other: Probed) -> bool:
    """Whether two have the same features of every image."""
    return one.values.shape[1] == other.values.shape[1] and np.array_equal(
        one.values[one.rows], other.values[other.rows]
    )
