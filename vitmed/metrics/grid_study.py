"""A grid of settings, each trained with several seeds, compared on the same validation images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitmed.core.base_models import Frozen
from vitmed.core.text import counted
from vitmed.metrics.bootstrap import Bootstrap, bootstrap_weights
from vitmed.metrics.ensembles import aligned
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.predictions import known_labels
from vitmed.metrics.scoring import Scorer

RESAMPLES = 300


@dataclass(frozen=True)
class Cell:
    """What is known of a combination of settings.

    Attributes:
        name: in words; values: setting -> value.
        found: predictions of its runs for validation, one for each seed; runs: the names of their folders.
        seconds: of training, the mean; parameters: of the network; None where not known.
        failure: why runs are missing.
    """

    name: str
    values: dict[str, str]
    found: tuple[Any, ...]
    runs: list[str]
    seconds: float | None
    parameters: int | None
    failure: str


class CellResult(Frozen):
    """What a combination of settings reached.

    Attributes:
        each: the metric of each seed; sd: their standard deviation (n - 1), None of fewer than two.
        number: their mean, with an interval over the patients, or images, of validation; None without a run.
    """

    name: str
    values: dict[str, str]
    runs: list[str]
    each: list[float]
    sd: float | None = None
    number: Estimate | None = None
    seconds: float | None = None
    parameters: int | None = None
    failure: str = ""


class GridStudy(Frozen):
    """A grid of settings.

    Attributes:
        metric: a key of the metrics of the kind of label; title: its name; higher: whether more is better.
        seeds: how many were asked for.
        best: the name of the best cell; optimism: by how much its number is better for having been chosen.
        unit: what the intervals resample.
    """

    metric: str
    title: str
    higher: bool
    seeds: int
    unit: str
    cells: list[CellResult]
    best: str | None = None
    optimism: float | None = None
    notes: list[str] = []


def study_of(cells: Sequence[Cell], kind: Any, seeds: int, resamples: int = RESAMPLES) -> GridStudy:
    """Compare the cells.

    The interval of a cell resamples patients, the same for all seeds, and takes the mean over seeds each time; the
    spread over seeds is apart from it. The optimism of the choice is Efron's: in each resample the best cell is chosen,
    and its number there is compared with its number on all patients (Harrell et al., Stat. Med. 15 (1996) 361).

    Args:
        kind: the `TargetKind` of the labels.
    """
    name = kind.stress.names[0] if kind.headline[0] not in kind.stress.names else kind.headline[0]
    metric = kind.metrics[name]
    results, drawn, means = [], [], []
    first = next(cell.found[0] for cell in cells if cell.found)
    boot = Bootstrap.of(first, resamples)
    weights = np.concatenate(list(bootstrap_weights(boot.units.index, boot.resamples, seed=0)))
    whole = np.ones((1, len(first)))
    for cell in cells:
        known: dict[str, Any] = {"name": cell.name, "values": cell.values, "runs": cell.runs, "each": []}
        known |= {"seconds": cell.seconds, "parameters": cell.parameters, "failure": cell.failure}
        parts = aligned([first, *cell.found])[1:]
        if parts:
            each = [float(drawn_metric(kind, part, whole, name)[0]) for part in parts]
            resampled = np.mean([drawn_metric(kind, part, weights, name) for part in parts], axis=0)
            known["each"] = each
            known["sd"] = float(np.std(each, ddof=1)) if len(each) > 1 else None
            known["number"] = boot.estimate(float(np.mean(each)), resampled)
            drawn.append(resampled)
            means.append(float(np.mean(each)))
        results.append(CellResult(**known))
    unit = "image" if first.groups is None else "patient"
    study = GridStudy(
        metric=name, title=metric.title, higher=metric.higher_is_better, seeds=seeds, unit=unit, cells=results
    )
    return _with_choice(study, np.array(means), np.array(drawn))


def drawn_metric(kind: Any, part: Any, weights: np.ndarray, name: str) -> np.ndarray:
    """(R,) the metric for image weights (R, S)."""
    found = kind.stress.draw(part, weights)
    if name not in found:  # of classes, the areas, which take longer
        found = Scorer(known_labels(part), part).values(weights)[0]
    return np.asarray(found[name])


def _with_choice(study: GridStudy, means: np.ndarray, drawn: np.ndarray) -> GridStudy:
    """The study with its best cell and the optimism of the choice, from means (C,) and resamples (C, R)."""
    trained = [cell for cell in study.cells if cell.each]
    sign = 1 if study.higher else -1
    best = trained[int(np.nanargmax(sign * means))]
    assert best.number is not None and best.number.value is not None
    notes = [f"best on validation: {best.name}: {study.title} {best.number.value:.3f}"]
    optimism = None
    if len(trained) > 1 and np.isfinite(drawn).all():
        chosen = (sign * drawn).argmax(axis=0)
        optimism = float(np.mean(drawn[chosen, np.arange(drawn.shape[1])] - means[chosen]))
        notes.append(
            f"It was chosen among {counted(len(trained), 'cell')} on these very {study.unit}s, which makes its number "
            f"too {'high' if study.higher else 'low'} by about {abs(optimism):.3f} on average."
        )
    missing = [cell.name for cell in study.cells if len(cell.runs) < study.seeds]
    if missing:
        notes.append(f"{counted(len(missing), 'cell')} without all runs: {'; '.join(missing[:5])}")
    return study.model_copy(update={"best": best.name, "optimism": optimism, "notes": notes})
