"""`vitmed probe`: evaluate pretrained weights without training a network."""

import json
from typing import Annotated, Any

from vitmed.commands.train import train
from vitmed.core.config import FLAGS, PROBE_FLAGS, Config
from vitmed.core.errors import UsageError, excluded
from vitmed.core.load_config import load_config, read_overrides
from vitmed.core.messages import warn
from vitmed.core.options import ConfigFile, Data, Fields, Gates, Offline, On, RunName, RunsFolder, Sets, Strict
from vitmed.core.places import check_run_place
from vitmed.studies import rank_weights as ranking
from vitmed.studies.cluster import opened
from vitmed.studies.one_run import TrainResult
from vitmed.studies.rank_weights import RankingResult
from vitmed.training.plan import make_plan


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
    """Evaluate pretrained weights in minutes, without training a network. The arguments are those of `train`.

    With `weights`: a linear model of the features of the frozen network, as `train(freeze=True)` does. Linear is
    logistic regression, of each finding by itself; of a number it is ridge regression.

    With several weights (a list, names with commas between them, or "all-local" for every file in the cache folder):
    which of them suit these images, by a linear model that is fitted on train and judged on validation. The test is not
    read. `on` computes their features.

    Returns:
        as `train`. For several weights their ranking.
    """
    names = ranking.weight_list(flags.get("weights"))
    settings_given = {name: value for name, value in flags.items() if names is None or name != "weights"}
    overrides = {"data.root": data, **read_overrides(settings_given, FLAGS, "probe")}
    settings = load_config(config, overrides, sets)
    check_run_place(settings, output, name)
    if names is not None:
        chosen = [text.partition("=")[0].strip() for text in sets]
        given = [place for place, value in overrides.items() if value is not None] + chosen
        if idle := sorted({place for place in given if not place.startswith(("data.", *ranking.OF_RANKING))}):
            warn(f"probe trains no network here, so these have no effect: {', '.join(idle)}")
        make_plan.check_names(settings)
        if settings.data.divided and settings.data.fold is None:
            raise UsageError("several weights are ranked on one fold", "name it: --fold 1")
        if fail_under:
            raise excluded("gate of a ranking")
        given = [f"{k}={json.dumps(value)}" for k, value in overrides.items() if value is not None and k != "data.root"]
        words = [str(data)] * (data is not None) + ["--config", str(config)] * (config is not None)
        words += [word for one in (*sets, *given) for word in ("--set", one)]
        with opened(on, strict=strict) as places:
            local = offline or flags["weights"] == ranking.ALL_LOCAL
            return ranking.rank_weights(settings, names, (output, name), words, local, places.executor)
    if on is not None or strict:
        raise excluded("on of one", given="--on" if on else "--strict")
    if settings.model.start is None:
        fix = "--weights NAME; what colours and size alone reveal, vitmed check reports"
        raise UsageError("probe evaluates the features of pretrained weights, and none are named", fix)
    if not settings.train.test:
        raise UsageError("train.test=false: probe evaluates the test", "leave it out")
    flags |= {"config": config, "sets": sets, "output": output, "name": name, "fail_under": fail_under}
    return train(data, offline=offline, **{**flags, "freeze": True})
