"""Numbers about predictions, each with an interval: pure functions of `Predictions`, in numpy alone."""

from vitmed.metrics.comparison import compare_predictions
from vitmed.metrics.evaluation import evaluate_predictions
from vitmed.metrics.naming import finding, positive_class
from vitmed.metrics.notes import FEW_GROUPS, lacking, one_answer
from vitmed.metrics.ranking import rank_auroc, threshold_counts
from vitmed.metrics.resampling import bootstrap_weights, group_index, percentile_interval
from vitmed.metrics.scoring import Scorer, known_labels, metric_values
from vitmed.metrics.table import METRICS, PER_CLASS, Metric

__all__ = [
    "FEW_GROUPS",
    "METRICS",
    "PER_CLASS",
    "Metric",
    "Scorer",
    "bootstrap_weights",
    "compare_predictions",
    "evaluate_predictions",
    "finding",
    "group_index",
    "known_labels",
    "lacking",
    "metric_values",
    "one_answer",
    "percentile_interval",
    "positive_class",
    "rank_auroc",
    "threshold_counts",
]
