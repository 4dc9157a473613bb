"""What `vitmed auto` tried and found: auto.json and its page."""

from __future__ import annotations

from pathlib import Path

from vitmed.core.base_models import Frozen
from vitmed.core.files import write_json, write_text
from vitmed.core.text import NOTICE
from vitmed.metrics.estimates import Estimate
from vitmed.report.page import fill

NUMBERS, PAGE = "result.json", "report.html"


class Tried(Frozen):
    """A way to train.

    Attributes:
        what: in words; run: its folder. number: on validation; failure: why there is none.
        against: this less the winner on the same validation images; None of the winner.
    """

    name: str
    what: str
    run: str
    number: Estimate | None = None
    against: Estimate | None = None
    seconds: float | None = None
    failure: str = ""


class AutoResult(Frozen):
    """What was tried, the winner, its folds and the ensemble.

    Attributes:
        title: of the metric. checked: what the data check found, in a line; ranking: of local weights, in a line each.
        why: the reason for the winner. pooled, over_folds: of the folds' own tests; over_folds is mean ± sd in words.
        held_out: of the ensemble on images in no fold; gain: that less the mean of its members, on the same images.
        used: seconds of the whole; limit: that were given.
    """

    data: str
    title: str
    checked: str
    ranking: list[str]
    tried: list[Tried]
    winner: str
    why: str
    folds: int
    pooled: Estimate
    over_folds: str
    held_out: Estimate | None
    held_out_images: int
    gain: Estimate | None
    used: float
    limit: float


def write_auto(folder: Path, result: AutoResult, used: str) -> None:
    """Write result.json and its page; `used`: the time in words."""
    write_json(folder / NUMBERS, {"notice": NOTICE, **result.to_dict()})
    write_text(folder / PAGE, fill("auto.html.j2", found=result, used=used, notice=NOTICE))
