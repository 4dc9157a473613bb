import numpy as np

from vitmed.metrics.estimates import *
from vitmed.metrics.evaluation import evaluate_predictions
from vitmed.metrics.finding_scoring import finding_values
from vitmed.metrics.metric_table import FINDING_METRICS


def evaluate_findings(p, resamples=2000):
    nums = {f: evaluate_predictions(p.of(f), resamples) for f in p.classes}
    v = finding_values(p)
    over = {n: estimate(v.get(n, np.nan), np.nan, np.nan, "mover") for n in FINDING_METRICS}
    one = next(iter(nums.values()))
    samp = Sample(
        n_images=len(p),
        n_patients=len(set(p.groups)) if p.groups else None,
        images_per_patient=one.sample.images_per_patient,
        accuracy=one.sample.accuracy,
        classes=[n.sample.classes[1] for n in nums.values()],
    )
    return Numbers(
        n=len(p),
        n_groups=len(set(p.groups)) if p.groups else None,
        resampling=one.resampling,
        resamples=resamples,
        level=one.level,
        classes=list(p.classes),
        positive_class=None,
        overall=over,
        per_class={f: n.per_class[f] for f, n in nums.items()},
        confusion_matrix=[],
        sample=samp,
    )
