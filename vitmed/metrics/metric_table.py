"""The numbers by name: what each is, and which way is better; and how intervals and tests are computed: `methods`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import yaml

AREAS = ("auroc", "average_precision")
PER_CLASS = ("sensitivity", "specificity", "ppv", "npv", "f1", *AREAS)


@dataclass(frozen=True)
class Metric:
    """A number that can choose the best epoch (`train.monitor`) or be a gate (`--fail-under`)."""

    title: str  # in a report
    text: str  # one sentence that defines it
    higher_is_better: bool = True
    ranks: bool = True  # whether more, or less, is always better; otherwise it neither chooses an epoch nor is a gate
    in_unit: bool = False  # whether it has the unit of the predicted number

    @property
    def phrase(self) -> str:
        """The title inside a sentence."""
        return phrase(self.title)


def phrase(title: str) -> str:
    """A title inside a sentence: `macro AUROC`, `mean absolute error`, `Cohen's kappa`."""
    base, _, kind = title.partition(", ")
    proper = base[:2].isupper() or base.startswith(("Brier", "Cohen", "Hamming", "Pearson", "Youden"))  # people
    return f"{kind} {base if proper else base[:1].lower() + base[1:]}".strip()


_error = partial(Metric, higher_is_better=False)


METRICS: dict[str, Metric] = {
    "accuracy": Metric("Accuracy", "Share of images whose class is right."),
    "balanced_accuracy": Metric("Balanced accuracy", "Mean over classes of the share found; blind to prevalence."),
    "mcc": Metric("MCC", "Matthews correlation of truth and prediction, -1 to 1; 0 is chance."),
    "cohen_kappa": Metric("Cohen's kappa", "Agreement beyond chance, unweighted, -1 to 1; 0 is chance."),
    "log_loss": _error("Log loss", "Mean -ln of the probability given to the true class."),
    "brier": _error("Brier score", "Mean squared error of the probability; more than two classes: summed over them."),
    "auroc": Metric("AUROC", "Area under the ROC curve; more than two classes: one against the rest, mean."),
    "average_precision": Metric(
        "Average precision", "Precision averaged over recall; more than two classes: one against the rest, mean."
    ),
    "sensitivity_macro": Metric("Sensitivity, macro", "Share of a class that is found, mean over classes."),
    "specificity_macro": Metric("Specificity, macro", "Share of the other classes kept out, mean over classes."),
    "ppv_macro": Metric("PPV, macro", "Share of a class's predictions that are right, mean over classes."),
    "npv_macro": Metric("NPV, macro", "Share of predictions of other classes that are right, mean over classes."),
    "f1_macro": Metric("F1, macro", "Harmonic mean of sensitivity and PPV, mean over classes."),
}
RARITY = "A guess from how common each finding is, without the image, already makes it high."
FINDING_METRICS: dict[str, Metric] = {  # of findings: macro is a mean over findings, micro counts every known label
    "auroc": Metric("AUROC, macro", "Area under the ROC curve, mean over findings."),
    "auroc_micro": Metric("AUROC, micro", f"Area under the ROC curve of all labels together. {RARITY}"),
    "average_precision": Metric("Average precision, macro", "Precision averaged over recall, mean over findings."),
    "average_precision_micro": Metric("Average precision, micro", f"Mean precision over recall, all labels. {RARITY}"),
    "balanced_accuracy": Metric("Balanced accuracy, macro", "Mean of sensitivity and specificity, mean over findings."),
    "sensitivity_macro": Metric("Sensitivity, macro", "Share of a finding's images called, mean over findings."),
    "sensitivity_micro": Metric("Sensitivity, micro", "Share of all findings that are called."),
    "specificity_macro": Metric("Specificity, macro", "Share of a finding's absences not called, mean over findings."),
    "ppv_macro": Metric("PPV, macro", "Share of a finding's calls that are right, mean over findings."),
    "ppv_micro": Metric("PPV, micro", "Share of all calls that are right."),
    "npv_macro": Metric("NPV, macro", "Share of images not called that lack the finding, mean over findings."),
    "f1_macro": Metric("F1, macro", "Harmonic mean of sensitivity and PPV, mean over findings."),
    "f1_micro": Metric("F1, micro", "Harmonic mean of sensitivity and PPV of all labels of all findings together."),
    "subset_accuracy": Metric("Subset accuracy", "Share of images of which every known label is right."),
    "no_finding_specificity": Metric(
        "Specificity without findings", "Share of images without any known finding in which no known one is called."
    ),
    "hamming_loss": _error("Hamming loss", "Share of the known labels that are wrong."),
    "log_loss": _error("Log loss", "Mean -ln of the probability given to the truth, over all known labels."),
    "brier": _error("Brier score", "Mean squared error of the probability, over all known labels."),
}
GRADE_METRICS = METRICS | {
    "quadratic_kappa": Metric("Quadratic kappa", "Agreement beyond chance by squared distance, -1 to 1; 0 is chance."),
    "linear_kappa": Metric("Linear kappa", "Agreement beyond chance by distance, -1 to 1; 0 is chance."),
    "grade_error": _error("Error in grades", "Mean distance of predicted and true grade, in grades."),
}
NUMBER_METRICS: dict[str, Metric] = {
    "mae": _error("Mean absolute error", "Mean distance of predicted and true number.", in_unit=True),
    "rmse": _error("RMSE", "Square root of the mean squared error.", in_unit=True),
    "bias": Metric("Bias", "Mean of predicted minus true number; 0 is best.", ranks=False, in_unit=True),
    "r2": Metric("R2", "Share of the variance of the true numbers that is explained; 0: no better than their mean."),
    "ccc": Metric("Concordance", "Lin's concordance correlation of predicted and true number, -1 to 1; 1 is equality."),
    "pearson": Metric("Pearson's r", "Linear correlation of predicted and true number, -1 to 1; blind to bias."),
    "crps": _error("CRPS", "Continuous ranked probability score; without a spread the absolute error.", in_unit=True),
    "log_score": _error("Log score", "Mean -ln of the density at the true number, in SDs of the training labels."),
    "coverage": Metric("Coverage", "Share of true numbers inside the prediction interval.", ranks=False),
    "width": Metric("Interval width", "Mean width of the prediction intervals.", ranks=False, in_unit=True),
}


TITLES = {name: metric.title for name, metric in (FINDING_METRICS | GRADE_METRICS | NUMBER_METRICS).items()} | {
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "f1": "F1",
    "lr_plus": "LR+",
    "lr_minus": "LR-",
    "o_e": "O:E",
    "brier_skill": "Brier skill",
    "ece": "ECE",
}


class Method(NamedTuple):
    """How an interval or a p-value is computed, as methods.yaml says."""

    title: str
    text: str
    sources: Sequence[str]  # keys of `Methods.references`


class Methods(NamedTuple):
    """What methods.yaml holds."""

    intervals: dict[str, Method]  # by `method` of an `Estimate`
    tests: dict[str, Method]  # by `method` of a `ComparisonTest`
    definitions: dict[str, Sequence[str]]
    parts: dict[str, str]
    scales: dict[str, Sequence[str]]  # sentence on intervals from a variance -> the numbers that have such
    names: dict[str, str]
    references: dict[str, str]


@cache
def methods() -> Methods:
    """What methods.yaml holds, read once."""
    content = yaml.safe_load(Path(__file__).with_name("methods.yaml").read_text(encoding="utf-8"))
    tables = {part: {key: Method(**m) for key, m in content[part].items()} for part in ("intervals", "tests")}
    return Methods(**content | tables)
