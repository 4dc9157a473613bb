"""How often the 95 % intervals of a report hold the truth: simulated tests of a rare and a common class.

    python benchmarks/coverage.py --results coverage                # 1,000 tests of each design, 20 minutes on one core
    python benchmarks/coverage.py --results coverage --tests 200    # a look; continues what is there
    python benchmarks/coverage.py --results coverage --table        # the table, of the designs that are finished
    python benchmarks/coverage.py --results coverage --findings     # five findings; also with --table

A design that has a file in the folder is left out, so a run can be stopped and continued, and a second process can
work on the same folder with --backwards.

Scores of two classes are drawn from normal distributions, of three classes from three at the same distance from each
other. "right" is the sensitivity and specificity of two classes at the threshold in the middle, so 0.88 gives an AUROC
of 0.95 and 0.98 one of 0.998. "calibrated": the probabilities, and so the threshold, are those of the prevalence;
otherwise those of a model trained on as many images of each class. Of a patient's scores a share "alike" of the
variance is the patient's own, so that some patients are hard. "images each": "one", "1-5" evenly, or "dozens" (median
30, the largest a few hundred); "one class" means that all images of a patient are of one class.

Of five findings, 40, 20, 10, 5 and 2 % of the images have each; of the labels the share "known" is known. Scores of an
image, and of a patient, are alike across findings; "right" is the sensitivity and specificity of each.

The truth is what the same functions give for 500,000 images. A cell is the percentage of the tests with at least 5
images and patients of each class in which the interval holds it. The last column is what DeLong's interval by image on
the logit scale, which vitmed takes from 50 images of either class on, would hold in the same tests.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from vitmed.core.base_models import UNKNOWN
from vitmed.core.config import EvaluateConfig
from vitmed.decisions.selective_prediction import report_abstention
from vitmed.metrics.areas import area_spread
from vitmed.metrics.estimates import FEWEST, Estimate, estimate
from vitmed.metrics.intervals import NONE, Units, logit_interval, quantile, share_gap, share_ratio
from vitmed.metrics.kinds.classes import PreparedPredictions
from vitmed.metrics.kinds.findings import FindingPredictions, PreparedFindings
from vitmed.metrics.metric_table import METRICS
from vitmed.metrics.predictions import Predictions

NORMAL = NormalDist()
ELSEWHERE, ACTING = 0.01, 0.2  # a prevalence, and a threshold of the decision curve
SAME = ("sensitivity_macro", "specificity_macro")  # of two classes
SHOWN = {  # column of the table -> number
    "acc": "accuracy",
    "sens": "sensitivity",
    "spec": "specificity",
    "PPV": "ppv",
    "NPV": "npv",
    "F1": "f1",
    "bal. acc": "balanced_accuracy",
    "PPV m": "ppv_macro",
    "NPV m": "npv_macro",
    "F1 m": "f1_macro",
    "AUROC": "auroc",
    "AP": "average_precision",
    "MCC": "mcc",
    "kappa": "cohen_kappa",
    "log loss": "log_loss",
    "Brier": "brier",
    "AURC": "aurc",
    "PPV at 1 %": "ppv_elsewhere",
    "net benefit": "net_benefit",
    "(DeLong)": "delong",
}
SHOWN_OF_FINDINGS = {
    "AUROC": "auroc",
    "AUROC micro": "auroc_micro",
    "AP": "average_precision",
    "AP micro": "average_precision_micro",
    "bal. acc": "balanced_accuracy",
    "sens": "sensitivity_macro",
    "sens micro": "sensitivity_micro",
    "spec": "specificity_macro",
    "PPV": "ppv_macro",
    "PPV micro": "ppv_micro",
    "NPV": "npv_macro",
    "F1": "f1_macro",
    "F1 micro": "f1_micro",
    "subset": "subset_accuracy",
    "no finding": "no_finding_specificity",
    "Hamming": "hamming_loss",
    "log loss": "log_loss",
    "Brier": "brier",
}
PREVALENCES = np.array([0.4, 0.2, 0.1, 0.05, 0.02])  # of findings


@dataclass(frozen=True)
class Design:
    """One kind of test set."""

    prevalence: float
    units: int  # patients, or images
    sizes: str = "one"
    icc: float = 0.0
    pure: bool = False  # all images of a patient are of one class
    right: float = 0.88
    calibrated: bool = False
    classes: int = 2  # of three, the second has 15 %, the third has the prevalence
    known: float = 0.0  # of findings, the share of labels that are known; 0: classes

    @property
    def name(self) -> str:
        """The name of its file."""
        kind = f"{self.sizes}{'_pure' if self.pure else ''}{'_calibrated' if self.calibrated else ''}"
        if self.known:
            return f"findings_{self.known:g}_{self.units}_{self.sizes}_{self.right:g}"
        return f"{self.classes}_{self.prevalence:g}_{self.units}_{kind}_{self.right:g}"


RATES = (0.5, 0.1, 0.05, 0.02, 0.01)
DESIGNS = [
    *(Design(p, n) for p in RATES for n in (100, 300, 1000, 3000)),
    *(Design(p, n, right=0.98) for p in (0.5, 0.05, 0.01) for n in (300, 3000)),
    *(Design(p, n, calibrated=True) for p in (0.1, 0.05, 0.02, 0.01) for n in (1000, 3000)),
    *(Design(p, n, classes=3) for p in (0.1, 0.05, 0.02) for n in (300, 3000)),
    *(Design(p, g, "1-5", 0.2, pure) for p in RATES for g in (100, 1000) for pure in (False, True)),
    *(Design(p, g, "dozens", 0.1) for p in RATES for g in (20, 60)),
    *(Design(p, g, "dozens", 0.1, True) for p in (0.5, 0.1, 0.05) for g in (60, 200)),
    *(Design(p, g, "dozens", 0.1, right=0.98) for p in (0.5, 0.05) for g in (20, 60)),
    *(Design(0.5, g, "1-5", 0.2) for g in (10, 20)),
    Design(0.5, 10, "dozens", 0.1),
]


OF_FINDINGS = [
    *(Design(0.02, n, known=known) for n in (300, 1000, 3000) for known in (1, 0.5)),
    *(Design(0.02, g, "1-5", 0.2, known=known) for g in (300, 1000) for known in (1, 0.5)),
    *(Design(0.02, g, "dozens", 0.1, known=known) for g in (20, 60) for known in (1, 0.5)),
    Design(0.02, 1000, "1-5", 0.2, known=1, right=0.7),
]


def patients(design: Design, rng: np.random.Generator) -> np.ndarray:
    """(S,) the patient of each image."""
    g = design.units
    sizes = np.ones(g, dtype=int)
    if design.sizes == "1-5":
        sizes = rng.integers(1, 6, g)
    elif design.sizes == "dozens":
        sizes = np.clip(np.round(rng.lognormal(np.log(30), 0.8, g)), 5, 400).astype(int)
    return np.repeat(np.arange(g), sizes)


def draw_findings(design: Design, rng: np.random.Generator) -> FindingPredictions:
    """One test set of a design of findings."""
    patient, half = patients(design, rng), NORMAL.inv_cdf(design.right)
    shape = (len(patient), len(PREVALENCES))
    labels = (rng.random(shape) < PREVALENCES).astype(np.int8)
    own = np.sqrt(design.icc) * rng.normal(size=(design.units, 1))[patient]
    image = np.sqrt(0.3) * rng.normal(size=(len(patient), 1))
    noise = own + image + np.sqrt(0.7 - design.icc) * rng.normal(size=shape)
    logits = 2 * half * (np.where(labels, half, -half) + noise)
    labels[rng.random(shape) > design.known] = UNKNOWN
    groups = None if design.sizes == "one" else tuple(f"P{i}" for i in patient)
    return FindingPredictions(tuple("abcde"), ("x",) * len(patient), groups, labels, logits.astype(np.float32))


def draw(design: Design, rng: np.random.Generator) -> Predictions:
    """One test set of a design of classes."""
    patient, g, k = patients(design, rng), design.units, design.classes
    shares = np.array([1 - design.prevalence, design.prevalence])
    if k == 3:
        shares = np.array([0.85 - design.prevalence, 0.15, design.prevalence])
    edges = np.cumsum(shares)[:-1]
    labels = np.searchsorted(edges, rng.random(g)[patient] if design.pure else rng.random(len(patient)))
    half = NORMAL.inv_cdf(design.right)  # the means of two classes are 2 * half apart, the threshold lies between
    own = np.sqrt(design.icc) * rng.normal(size=(g, k))[patient] if design.icc else 0.0
    noise = own + np.sqrt(1 - design.icc) * rng.normal(size=(len(patient), k))
    if k == 2:  # log odds of normal distributions at -half and half
        logits = np.stack([np.zeros(len(patient)), 2 * half * (np.where(labels, half, -half) + noise[:, 0])], axis=1)
    else:
        logits = 2**0.5 * half * (2**0.5 * half * np.eye(k)[labels] + noise)
    if design.calibrated:
        logits = logits + np.log(shares)
    groups = None if design.sizes == "one" else tuple(f"P{i}" for i in patient)
    return Predictions(("no", "yes", "rare")[:k], ("x",) * len(patient), groups, labels, logits.astype(np.float32))


def numbers(p: Predictions) -> dict[str, Estimate]:
    """Every number of one test."""
    if isinstance(p, FindingPredictions):
        return PreparedFindings(p).overall
    evaluation = PreparedPredictions(p)
    overall, per_class = evaluation.overall, evaluation.per_class
    found = {name: overall[name] for name in METRICS if len(p.classes) > 2 or name not in SAME}
    found |= {name: value for name, value in per_class[-1].items() if name not in found}
    found["aurc"] = report_abstention(p, None, EvaluateConfig(resamples=0)).area
    if len(p.classes) == 2:
        truth, called = evaluation.labels == 1, p.predicted == 1
        odds, units = (1 - ELSEWHERE) / ELSEWHERE, evaluation.units
        value, high, low = (1 / (1 + odds * x) for x in share_ratio(~truth, truth, called, units))  # `prevalence_table`
        found["ppv_elsewhere"] = estimate(value, low, high, "mover")
        acted = p.probabilities[:, 1] >= ACTING
        weights = np.array([ACTING / (1 - ACTING)])
        every = np.ones_like(truth)
        net = share_gap((acted & truth, every), (acted & ~truth, every), 1.0, weights, units)  # as `decision_curve`
        ((value,), (low,), (high,)) = net
        found["net_benefit"] = estimate(value, low, high, "mover")
        area = evaluation.areas[1][0]
        error = area_spread(area.influence, truth, Units(np.arange(len(p)))).variance ** 0.5
        interval = logit_interval(area.value, error, quantile()) if 0 < area.value < 1 and error > 0 else NONE
        found["delong"] = estimate(area.value, *interval, "delong")
    return found


@cache
def truth_of(prevalence: float, right: float, calibrated: bool, classes: int, known: float) -> dict[str, float]:
    """What the numbers are of 500,000 images; a patient's likeness does not change them."""
    design = Design(prevalence, 500_000, right=right, calibrated=calibrated, classes=classes, known=known)
    rng = np.random.default_rng(1)
    if known:
        return PreparedFindings.values(draw_findings(design, rng))
    found = numbers(draw(design, rng))
    return {name: float("nan") if one.value is None else one.value for name, one in found.items()}


def fewest(p: Predictions) -> int:
    """The fewest patients, or images, that a class has, or that have a finding or an image without it."""
    assert p.labels is not None
    kinds = [p.labels == c for c in range(len(p.classes))]
    if isinstance(p, FindingPredictions):
        kinds = [own == value for own in p.labels.T for value in (0, 1)]
    return min(len(np.unique(p.units[kind])) for kind in kinds)


def measure(design: Design, number: int, tests: int) -> dict[str, dict[str, float]]:
    """By number: tests with enough of each class, those of them with an interval, above and below the truth; widths."""
    rng = np.random.default_rng(number)
    truths = truth_of(design.prevalence, design.right, design.calibrated, design.classes, design.known)
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in truths}
    enough = 0
    for _ in range(tests):
        p = draw_findings(design, rng) if design.known else draw(design, rng)
        if fewest(p) < FEWEST:
            continue
        enough += 1
        for name, one in numbers(p).items():
            if one.low is not None and one.high is not None:
                truth = truths[name]
                rows[name].append((one.low > truth, one.high < truth, one.high - one.low))
    found: dict[str, dict[str, float]] = {"": {"tests": tests, "enough": enough}}
    for name, of_tests in rows.items():
        if of_tests:
            above, below, widths = np.array(of_tests, dtype=float).T
            counts = {"n": len(of_tests), "above": float(above.sum()), "below": float(below.sum())}
            found[name] = {**counts, "width": float(np.median(widths)), "truth": truths[name]}
    return found


def table(folder: Path, findings: bool) -> str:
    """The finished designs, of findings or of classes, in Markdown."""
    shown, designs = (SHOWN_OF_FINDINGS, OF_FINDINGS) if findings else (SHOWN, DESIGNS)
    head = ["known" if findings else "positive", "units", "images each", "right", *shown]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    inside = count = 0
    for design in designs:
        file = folder / f"{design.name}.json"
        if not file.exists():
            continue
        found = json.loads(file.read_text(encoding="utf-8"))["found"]
        enough, cells = found[""]["enough"], []
        for name in shown.values():
            one = found.get(name)
            if one is None or enough < 0.5 * found[""]["tests"]:
                cells.append("")
                continue
            held = 100 * (1 - (one["above"] + one["below"]) / one["n"])
            if name != "delong":
                count, inside = count + 1, inside + (93 <= held <= 97)
            cells.append(f"{held:.0f}" + ("*" if one["n"] < 0.99 * enough else ""))
        kind = f"{design.sizes}{', one class' if design.pure else ''}"
        kind += ", calibrated" if design.calibrated else ""
        kind += ", 3 classes" if design.classes == 3 else ""
        rate = f"{100 * (design.known or design.prevalence):g} %"
        lines.append(f"| {rate} | {design.units} | {kind} | {design.right} | {' | '.join(cells)} |")
    lines.append(f"\n{inside} of {count} cells lie between 93 and 97.")
    return "\n".join(lines)


def main() -> None:
    """Measure the designs, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="folder of a JSON file for each design")
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--backwards", action="store_true", help="from the last design on")
    parser.add_argument("--only", default="", help="designs with this in the name")
    parser.add_argument("--findings", action="store_true", help="the designs of findings")
    parser.add_argument("--table", action="store_true", help="print the table of what is there")
    asked = parser.parse_args()
    if asked.table:
        print(table(asked.results, asked.findings))
        return
    asked.results.mkdir(parents=True, exist_ok=True)
    for number, design in list(enumerate(OF_FINDINGS if asked.findings else DESIGNS))[:: -1 if asked.backwards else 1]:
        file = asked.results / f"{design.name}.json"
        if asked.only in design.name and not file.exists():
            found = measure(design, number, asked.tests)
            file.write_text(json.dumps({"design": asdict(design), "found": found}, indent=1), encoding="utf-8")
            print(file, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
