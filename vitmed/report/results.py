"""`Results`: what metrics.json holds. Its parts are models that stand beside the functions that find them.

`docs/metrics.schema.json` is its JSON schema, written by `python docs/schema.py`.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from vitmed.core import upgrade
from vitmed.core.base_models import CLASSES, Frozen, Target
from vitmed.core.text import counted, identity
from vitmed.data.patient_names import group_word
from vitmed.decisions.conformal import PredictionSets
from vitmed.decisions.evaluation_folder import Folds
from vitmed.decisions.operating_points import OperatingPoints
from vitmed.decisions.out_of_distribution import OutOfDistribution
from vitmed.decisions.policy import AnswerCounts
from vitmed.decisions.reliability import CalibrationReport
from vitmed.decisions.selective_prediction import SelectivePrediction
from vitmed.decisions.targets import ALL_METRICS
from vitmed.explanation.results import Attention, Robustness
from vitmed.metrics.areas import FixedRates
from vitmed.metrics.clinical_utility import DecisionCurve, PrevalenceTable
from vitmed.metrics.estimates import FEW_GROUPS, Estimate, Numbers
from vitmed.metrics.kinds.grades import GradeResults
from vitmed.metrics.kinds.number import BlandAltman
from vitmed.metrics.mistakes import FindingErrors, LabelErrors, Mistakes
from vitmed.metrics.paired_comparison import PairedComparison
from vitmed.metrics.patient_level import PatientLevel, PerPatient
from vitmed.metrics.readers import Agreement, ReaderComparison
from vitmed.metrics.subgroups import Subgroups

Standing = Literal["better", "worse", "not shown", "few patients", "no interval"]  # of the model beside a baseline
CHANCE = {"quadratic_kappa": 0.0, "auroc": 0.5}  # what guessing reaches; the first that a report has counts


class Baseline(PairedComparison, extra="ignore"):  # until 0.3.0 it had each of the `findings`
    """A baseline on the same images; `text` says what it is, `difference` is the model minus the baseline.

    Where the model decides at an operating point, which a baseline has not, both are compared by the `likeliest` class.
    """

    text: str
    likeliest: bool = False

    @property
    def decides(self) -> str:
        """The number that decides whether the model is better."""
        return next(iter(self.tests))

    def standing(self, patients: int | None) -> Standing:
        """What these images show of the model beside the baseline; of so many patients, None if unknown."""
        gap = self.difference[self.decides]
        gain = gap if ALL_METRICS[self.decides].higher_is_better else gap.reversed
        low, high = gain.low, gain.high
        if high is not None and high < 0:  # with few patients too: a wrong warning does less harm
            return "worse"
        if patients is not None and patients < FEW_GROUPS:
            return "few patients"
        return "no interval" if low is None else "better" if low > 0 else "not shown"


class Origin(Frozen):
    """What a report is about and was made of, so that it can be made again. No text in it names a patient or a path.

    Attributes:
        run: the name of the run folder; "" where there is none.
        created, rebuilt: when the images were evaluated, and the report made again from its table: ISO, UTC.
        facts: about data, model and training, as a table.
        notes: what must be known before the numbers are believed; `Results.notes` has those of the numbers too.
        evaluate: the section `evaluate` of the configuration.
        policy: None where nothing was chosen on validation.
        precision: in which the network computed the predictions.
    """

    title: str = ""
    run: str = ""
    created: str | None = None
    rebuilt: str | None = None
    facts: dict[str, str] = {}
    notes: list[str] = []
    evaluate: dict[str, Any] = {}
    policy: dict[str, Any] | None = None
    precision: str = "fp32"


class Count(Frozen):
    """Images, and patients where they are known."""

    images: int
    patients: int | None


class SplitFlow(Count):
    """A split: how it was `made`, and its classes."""

    made: str
    classes: dict[str, Count]


class Seen(Frozen):
    """How many images and patients the model was made with, and images of the run's own test."""

    images: int | None = None
    patients: int | None = None
    test: int | None = None


class EvaluatedImages(Count):
    """The images that a report is about: of which `split` of the run (None: other images), or of how many `folds`."""

    split: str | None
    classes: dict[str, Count] = {}
    seen: Seen = Seen()
    folds: int | None = None


class Cell(Frozen):
    """A value in one split: count, share, and standardised difference from train; None for fewer than ten."""

    n: int | None
    share: float | None
    difference: float | None


class Value(Frozen):
    """A value of a column, by split."""

    name: str
    splits: dict[str, Cell]


class Characteristic(Frozen):
    """A column of the table of labels, by split, of "patients" or "images".

    `cut` says how numbers were cut; `rare` values are left out because they are rare everywhere, and all of them for a
    `reason` where quartiles would tell of single patients.
    """

    unit: str
    cut: str
    rows: list[Value]
    rare: int
    reason: str | None = None


class Flow(Frozen):
    """Where the images of a run come from and where they go; None stands for what was not counted or is not known.

    Attributes:
        level: at which the splits are disjoint: "patient", "image", or "none" where a patient is in two.
        how: how patients are known; "" where they are not.
    """

    found: int | None
    unreadable: int | None
    exact_duplicates: int | None
    near_duplicates: int | None
    duplicates_across_splits: int | None
    used: int
    left_out: int | None
    why_left_out: str
    level: str
    how: str
    patients: int | None
    patients_in_two: int | None
    copies_in_two: int
    splits: dict[str, SplitFlow]
    evaluated: EvaluatedImages | None = None
    characteristics: dict[str, Characteristic] = {}


class Beside(Frozen):
    """A share of the run's own test, and of the evaluated images."""

    internal: float
    external: float


class BesideEstimates(Frozen):
    """A number of the run's own test, of the evaluated images, and external minus internal."""

    internal: Estimate
    external: Estimate
    difference: Estimate


class Shift(Frozen):
    """Whether the images are of another kind: how well the out-of-distribution score separates them from the own test,
    and the share of each that is unlike the training images."""

    auroc: Estimate
    flagged: Beside


class External(Frozen):
    """The evaluated images beside the run's own test.

    Attributes:
        n, n_groups: images and patients of the own test.
        prevalence: of the positive class; None of more than two classes.
        absent: classes that only one of the two has; then only sensitivity and specificity have a difference.
        shift: None where there are no scores.
    """

    n: int
    n_groups: int | None
    prevalence: Beside | None
    numbers: dict[str, BesideEstimates]
    absent: list[str]
    patients_in_both: int
    shift: Shift | None


class Results(Numbers):
    """All that metrics.json holds. A part that says nothing of these images is None, and left out of the file.

    `weights_hash` is of the evaluated weights; None if there are none, or several. `finding_reports` has the page of
    each finding that has its own, relative to this report.
    """

    baselines: dict[str, Baseline] = {}
    report: Origin = Origin()
    weights_hash: str | None = None
    flow: Flow | None = None
    folds: Folds | None = None
    external: External | None = None
    patient_level: PatientLevel | None = None
    per_patient: PerPatient | None = None
    subgroups: dict[str, Subgroups] | None = None
    agreement: Agreement | None = None
    readers: list[ReaderComparison] | None = None
    errors: Mistakes | None = None
    label_errors: LabelErrors | None = None
    calibration: CalibrationReport | None = None
    operating_points: OperatingPoints | None = None
    prevalence: PrevalenceTable | None = None
    decision_curve: DecisionCurve | None = None
    fixed_rates: FixedRates | None = None
    conformal: PredictionSets | None = None
    abstention: SelectivePrediction | None = None
    answers: AnswerCounts | None = None
    out_of_distribution: OutOfDistribution | None = None
    attention: Attention | None = None
    robustness: Robustness | None = None
    target: Target = CLASSES
    finding_reports: dict[str, str] = {}
    finding_errors: FindingErrors | None = None
    grades: GradeResults | None = None
    bland_altman: BlandAltman | None = None
    error_by_range: Subgroups | None = None

    @property
    def at_chance(self) -> tuple[str, str] | None:
        """A number that is not shown to be above what guessing reaches, and what it shows. None without an interval."""
        name = next((name for name in CHANCE if name in self.overall), None)
        if name is None or (low := self.overall[name].low) is None or low > CHANCE[name]:
            return None
        return name, "is worse" if (self.overall[name].high or 0) < CHANCE[name] else "may be no better"

    @property
    def unit(self) -> str:
        """What one group of images is called: "patient", unless the run knows that its groups are something else."""
        if self.flow is None or (word := group_word(self.flow.how)) == "patient":
            return "patient"
        other = self.flow.evaluated is not None and self.flow.evaluated.split is None
        return "group" if other else word  # other images may have groups of another kind

    @property
    def images(self) -> str:
        """`1,656 test images`: how many, and of which split; of folds "held-out", of other images no word."""
        evaluated = self.flow and self.flow.evaluated
        val = "out-of-fold validation " if evaluated and evaluated.folds else "validation "
        word = {"test": "test ", "val": val}.get((evaluated and evaluated.split) or "", "")
        return counted(self.n, f"{'held-out ' if self.folds else word}image")

    @property
    def divided(self) -> tuple[int, int]:
        """How many folds, and how often the images were divided into them; (0, 1) without folds."""
        folds = [] if self.folds is None else self.folds.each
        times = max(1, round(sum(fold.images for fold in folds) / max(1, self.n)))
        return len(folds) // times, times

    @property
    def identity(self) -> str:
        """What tells two reports of the same title apart, in a line; "" where nothing is known."""
        return identity(self.report.run, self.report.created, self.weights_hash, self.report.rebuilt)

    @classmethod
    def of(cls, numbers: Numbers, **parts: Any) -> Self:
        """The numbers, and further parts by their names, without parts that are None."""
        defined = {name: value for name, value in numbers if name in numbers}
        return cls(**defined | {name: part for name, part in parts.items() if part is not None})

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Self:
        """What a metrics.json holds, of this version or of 0.2.0. Raises ValueError for anything else."""
        return cls.model_validate(upgrade.results(content))
