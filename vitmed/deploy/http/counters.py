"""The numbers of /metrics, in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from vitmed.core.base_models import NO_FINDING
from vitmed.inference.load import Answer

NO_ANSWER = "no answer"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
IMAGES = (1, 2, 4, 8, 16, 32, 64)
TENTHS = tuple(i / 10 for i in range(1, 10))
OOD = (0.25, 0.5, 0.75, 1, 1.5, 2, 4)  # above 1 an image is unlike those of training


class Counters:
    """What the server counts, in a registry of its own.

    Args:
        weights_sha256, version: of the model and of vitmed; waiting: how many images wait now.
    """

    def __init__(self, weights_sha256: str, version: str, waiting: Callable[[], int]):
        own = self.registry = CollectorRegistry()
        self.requests = Counter("vitmed_requests", "Requests", ["method", "route", "status"], registry=own)
        self.seconds = Histogram(
            "vitmed_request_seconds", "Seconds of a request", ["route"], buckets=SECONDS, registry=own
        )
        self.images = Counter("vitmed_images", "Images, read or unreadable", ["result"], registry=own)
        each = "Answers by decision; an image with several findings counts for each"
        self.answers = Counter("vitmed_answers", each, ["decision"], registry=own)
        each = "Calibrated probability, of each class or finding"
        self.probabilities = Histogram("vitmed_probability", each, ["of"], buckets=TENTHS, registry=own)
        self.ood = Histogram("vitmed_ood_score", "Out-of-distribution score", buckets=OOD, registry=own)
        self.batch = Histogram("vitmed_batch_images", "Images in a batch", buckets=IMAGES, registry=own)
        Gauge("vitmed_queue_images", "Images that wait now", registry=own).set_function(waiting)
        Info("vitmed_model", "What answers", registry=own).info({"weights_sha256": weights_sha256, "version": version})

    def count(self, answer: Answer) -> None:
        """Count an answer by its decision, its probabilities and its out-of-distribution score."""
        self.images.labels("read").inc()
        for name, probability in answer.probabilities.items():
            self.probabilities.labels(name).observe(probability)
        if answer.ood_score is not None:
            self.ood.observe(answer.ood_score)
        for decision in decisions(answer):
            self.answers.labels(decision).inc()


def decisions(answer: Answer) -> tuple[str, ...]:
    """The class, the called findings, or that there is an answer."""
    if not answer.answered:
        return (NO_ANSWER,)
    if isinstance(answer.prediction, tuple):
        return answer.prediction or (NO_FINDING,)
    return (answer.prediction if isinstance(answer.prediction, str) else "answer",)
