"""The numbers by name: what each is, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass

PER_CLASS = ("sensitivity", "specificity", "ppv", "npv", "f1", "auroc", "average_precision")


@dataclass(frozen=True)
class Metric:
    """A number that can choose the best epoch (`train.monitor`) or be a gate (`--fail-under`)."""

    title: str  # in a report
    higher_is_better: bool
    text: str  # one sentence that defines it


METRICS: dict[str, Metric] = {
    "accuracy": Metric("Accuracy", True, "Share of images whose class is right."),
    "balanced_accuracy": Metric(
        "Balanced accuracy", True, "Mean over classes of the share found; blind to prevalence."
    ),
    "mcc": Metric("MCC", True, "Matthews correlation of truth and prediction, -1 to 1; 0 is chance."),
    "cohen_kappa": Metric("Cohen's kappa", True, "Agreement beyond chance, unweighted, -1 to 1; 0 is chance."),
    "log_loss": Metric("Log loss", False, "Mean -ln of the probability given to the true class."),
    "brier": Metric(
        "Brier score", False, "Mean squared error of the probability; more than two classes: summed over them."
    ),
    "auroc": Metric("AUROC", True, "Area under the ROC curve; more than two classes: one against the rest, mean."),
    "auroc_weighted": Metric("AUROC, weighted", True, "AUROC one against the rest, weighted by class size."),
    "average_precision": Metric(
        "Average precision", True, "Precision averaged over recall; more than two classes: one against the rest, mean."
    ),
    "average_precision_weighted": Metric(
        "Average precision, weighted", True, "Average precision one against the rest, weighted by class size."
    ),
    "sensitivity_macro": Metric("Sensitivity, macro", True, "Share of a class that is found, mean over classes."),
    "sensitivity_weighted": Metric("Sensitivity, weighted", True, "The same weighted by class size: the accuracy."),
    "specificity_macro": Metric("Specificity, macro", True, "Share of the other classes kept out, mean over classes."),
    "specificity_weighted": Metric("Specificity, weighted", True, "The same weighted by class size."),
    "ppv_macro": Metric("PPV, macro", True, "Share of a class's predictions that are right, mean over classes."),
    "ppv_weighted": Metric("PPV, weighted", True, "The same weighted by class size."),
    "npv_macro": Metric("NPV, macro", True, "Share of predictions of other classes that are right, mean over classes."),
    "npv_weighted": Metric("NPV, weighted", True, "The same weighted by class size."),
    "f1_macro": Metric("F1, macro", True, "Harmonic mean of sensitivity and PPV, mean over classes."),
    "f1_weighted": Metric("F1, weighted", True, "The same weighted by class size."),
}
