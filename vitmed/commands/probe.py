"""`vitmed probe`: evaluate a baseline that trains no network."""

import json
from typing import Annotated, Any

from vitmed.commands.train import train
from vitmed.core.config import FLAGS, PROBE_FLAGS, Config, EvaluateConfig
from vitmed.core.errors import UsageError, excluded
from vitmed.core.load_config import load_config, read_overrides
from vitmed.core.messages import warn
from vitmed.core.options import ConfigFile, Data, Fields, Gates, Offline, On, RunName, RunsFolder, Sets, Strict
from vitmed.core.places import check_run_place
from vitmed.decisions.policy import CHOOSING
from vitmed.report.headline import check_gates, parse_gates
from vitmed.studies import rank_weights as ranking
from vitmed.studies.cluster import opened
from vitmed.studies.one_run import TrainResult
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
    if names is None and not settings.train.test:
        raise UsageError("train.test=false: probe evaluates the test", "leave it out")
    if names is not None or settings.model.start is None:
        chosen = [text.partition("=")[0].strip() for text in sets]
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
        words += [word for one in (*sets, *given) for word in ("--set", one)]
        with opened(on, strict=strict) as places:
            local = offline or flags["weights"] == ranking.ALL_LOCAL
            return ranking.rank_weights(settings, names, (output, name), words, local, places.executor)
    if on is not None or strict:
        raise excluded("on of one", given="--on" if on else "--strict")
    if settings.model.start is not None:
        flags |= {"config": config, "sets": sets, "output": output, "name": name, "fail_under": fail_under}
        return train(data, offline=offline, **{**flags, "freeze": True})
    make_plan.check_names(settings)
    if all_folds:
        raise UsageError("without weights, probe evaluates one fold", "name it: --fold 1")
    gates = parse_gates(fail_under)
    result = ranking.evaluate_colours(settings, output, name)
    if result.test is not None:
        check_gates(gates, result.test.metrics, result)
    return result
