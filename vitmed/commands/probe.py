"""`vitmed probe`: evaluate a baseline that trains no network."""

import json
import shlex
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Annotated, Any

from vitmed.commands.train import train
from vitmed.core.config import FLAGS, PROBE_FLAGS, Config, EvaluateConfig
from vitmed.core.errors import UsageError, excluded
from vitmed.core.files import make_folder, write_json, write_text
from vitmed.core.load_config import load_config, read_overrides, store_paths, with_values
from vitmed.core.messages import say, warn
from vitmed.core.options import ConfigFile, Data, Fields, Gates, Offline, On, RunName, RunsFolder, Sets, Strict
from vitmed.core.places import check_run_place
from vitmed.core.run_folder import RunFolder
from vitmed.core.text_files import csv_text
from vitmed.decisions.policy import CHOOSING
from vitmed.models.weights.catalogue import means_file
from vitmed.report.headline import check_gates, parse_gates
from vitmed.studies import rank_weights as ranking
from vitmed.studies.cluster import files_of, opened, prepare
from vitmed.studies.one_run import TrainResult, default_name
from vitmed.studies.rank_weights import RankingResult
from vitmed.training.plan import make_plan

UNUSED = {*CHOOSING, "map_images"} - {"prevalence"}  # without a decision policy and attention maps
OF_COLOURS = (*ranking.SEEN, *(f"evaluate.{name}" for name in EvaluateConfig.model_fields if name not in UNUSED))


def probe(
    data: Data = None,
    *,
    config: ConfigFile = None,
    sets: Sets = (),
    output: RunsFolder = "runs",
    name: RunName = None,
    fail_under: Gates = (),
    offline: Offline = False,
    on: On = None,
    strict: Strict = False,
    **flags: Annotated[Any, Fields(Config, PROBE_FLAGS)],
) -> TrainResult | RankingResult:
    """Evaluate a baseline in minutes, without training a network. The arguments are those of `train`.

    With `weights`: a linear model of the features of the frozen network, as
    `train(freeze=True)` does. Without: a linear model of the colours and the size of the images. It sees no
    shapes, so a good result points to a shortcut. Linear is logistic regression, of each finding by itself; of a number
    it is ridge regression.

    With several weights (a list, names with commas between them, or "all-local" for every file in the cache folder):
    which of them suit these images, by a linear model that is fitted on train and judged on validation. The test is not
    read. `on` computes their features.

    Returns:
        as `train`; `checkpoint` is None without weights. For several weights their ranking.
    """
    names = ranking.weight_list(flags.get("weights"))
    settings_given = {name: value for name, value in flags.items() if names is None or name != "weights"}
    overrides = {"data.root": data, **read_overrides(settings_given, FLAGS, "probe")}
    settings = load_config(config, overrides, sets)
    all_folds = settings.data.divided and settings.data.fold is None
    check_run_place(settings, output, name)
    if names is not None or settings.model.start is None:
        chosen = [text.partition("=")[0].strip() for text in ([sets] if isinstance(sets, str) else sets)]
        used = OF_COLOURS if names is None else ranking.OF_RANKING
        given = [place for place, value in overrides.items() if value is not None] + chosen
        if idle := sorted({place for place in given if not place.startswith(("data.", *used))}):
            warn(f"probe trains no network here, so these have no effect: {', '.join(idle)}")
    if names is not None:
        make_plan.check_names(settings)
        if all_folds:
            raise UsageError("several weights are ranked on one fold", "name it: --fold 1")
        if fail_under:
            raise excluded("gate of a ranking")
        settings_given = {**overrides, "data.root": None}
        given = [f"{key}={json.dumps(value)}" for key, value in settings_given.items() if value is not None]
        words = [str(data)] * (data is not None) + ["--config", str(config)] * (config is not None)
        words += [word for one in (*([sets] if isinstance(sets, str) else sets), *given) for word in ("--set", one)]
        with opened(on, strict=strict) as places:
            local = offline or flags["weights"] == ranking.ALL_LOCAL
            return _rank(settings, names, (output, name, places.executor), local, words)
    if on is not None:
        raise excluded("on of one")
    if settings.model.start is not None:
        flags |= {"config": config, "sets": sets, "output": output, "name": name, "fail_under": fail_under}
        return train(data, offline=offline, **{**flags, "freeze": True})
    make_plan.check_names(settings)
    if all_folds:
        raise UsageError("without weights, probe evaluates one fold", "name it: --fold 1")
    gates = parse_gates(fail_under)
    settings, splits = ranking.open_folder(settings, output, "splits")
    folder, results = ranking.evaluate_colours(settings, splits, output, name or default_name(splits.root, settings))
    result = TrainResult(folder.path, None, results["val"], results["test"])
    check_gates(gates, results["test"].metrics, result)
    return result


def _rank(
    settings: Config,
    names: Sequence[str],
    place: tuple[str | Path, str | None, Executor | None],
    offline: bool,
    words: Sequence[str],
) -> RankingResult:
    """Rank the weights into a run folder; `words` are the arguments of `vitmed train` with the same settings."""
    output, name, executor = place
    settings, splits = ranking.open_folder(with_values(settings, {"model.weights": None}), output, "folds")
    if executor is not None:
        make_folder(output)
        files = [ranking.file_of(name) for name in names if offline or means_file(name)]  # each node fetches the others
        prepare(executor, [*files_of(settings), *files], Path(output))
    content, rows, best = ranking.rank_weights(settings, splits, names, offline, executor)
    folder = RunFolder.create(output, name or f"{default_name(splits.root, settings).rpartition('_')[0]}_weights")
    write_text(folder.config, store_paths(settings, folder.path).to_yaml())
    write_json(folder.ranking, content)
    write_text(folder.ranking.with_suffix(".csv"), csv_text(rows))
    command = shlex.join(["vitmed", "train", *words, "--weights", best])
    where = f"the test was not read; files: {folder.path}"
    for line in (*content["notes"], content["verdict"], where, f"to train: {command}"):
        say(line)
    return RankingResult(content, rows, folder.path, best, command)
