"""`Counters`, the numbers of /metrics in the format of Prometheus; `ScoreLog`, the log of `vitmed serve --scores`: what
the model said of each image and when, for `vitmed monitor`.

The log holds neither file names nor patients. `label` and `group` are empty columns, for those who learn them later;
the answer has the `id` of its line.
"""

import contextlib
import os
import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from vitmed.core.base_models import NO_FINDING
from vitmed.core.errors import UsageError
from vitmed.core.files import claim
from vitmed.core.places import refuse_inside
from vitmed.core.text_files import csv_text
from vitmed.inference.load import Answer, Model
from vitmed.metrics.predictions import Predictions

TIME, WEIGHTS, ID, PATH = "time", "weights_hash", "id", "path"
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
        self.unlogged = Gauge("vitmed_unlogged_images", "Images whose line of --scores is lost", registry=own)
        Info("vitmed_model", "What answers", registry=own).info({"weights_sha256": weights_sha256, "version": version})

    def count(self, answer: Answer) -> None:
        """Count an answer by its decision, its probabilities and its out-of-distribution score."""
        self.images.labels("read").inc()
        for name, probability in answer.probabilities.items():
            self.probabilities.labels(name).observe(probability)
        if answer.ood_score is not None:
            self.ood.observe(answer.ood_score)
        if isinstance(answer.prediction, tuple):  # the called findings
            decisions = answer.prediction or (NO_FINDING,)
        else:
            decisions = (answer.prediction if isinstance(answer.prediction, str) else "answer",)
        for decision in decisions if answer.answered else ("no answer",):
            self.answers.labels(decision).inc()


class ScoreLog:
    """A CSV file that grows by whole lines.

    Args:
        file: a new one, or the log of an earlier start of the same model, which is continued.
        warn: called when lines cannot be written, and when they can again; the server goes on meanwhile.

    Raises:
        UsageError: the file cannot be written, or is something else.
    """

    def __init__(self, file: Path, model: Model, warn: Callable[[str], None]):
        refuse_inside(model.saved.splits.root, file)
        self.lock = threading.Lock()
        self.file, self.weights_hash, self.warn = file, model.saved.weights_hash, warn
        self.broken, self.lost = False, 0
        self.columns = [name for name in model.predictions([model.preprocessing.drawn()]).header() if name != PATH]
        self.first = first = csv_text([[TIME, WEIGHTS, ID, *self.columns]])
        try:
            self.stream = file.open("a+b", buffering=0)
            busy = claim(self.stream.fileno()) is False
            self.stream.seek(0)
            known, row = (self.stream.readline().decode("utf-8", "replace") for _ in range(2))
            other = row.endswith("\n") and row.split(",")[1:2] != [self.weights_hash]
            if busy or other or not first.startswith(known):
                self.stream.close()
                problem = f"{file}: is there already and not the log of scores of this model"
                problem = f"{file}: is open in another server" if busy else problem
                raise UsageError(problem, "name another file with --scores")
            size = self.stream.seek(0, os.SEEK_END)  # a process that was killed may have left the beginning of a line
            start = max(0, size - 2**20)
            self.stream.seek(start)
            tail = self.stream.read(size - start)
            if tail and not tail.endswith(b"\n"):
                self.stream.truncate(start + tail.rfind(b"\n") + 1)
            if known != first:
                self._write(first)
        except OSError as error:
            raise UsageError(f"{file}: cannot be written ({error.strerror})", "name another file") from None

    def _write(self, text: str) -> None:
        """Write all of it or nothing: a disk that fills up takes a part, and reports that only the next time."""
        end, rest = self.stream.seek(0, os.SEEK_END), text.encode()
        try:
            while rest:
                rest = rest[self.stream.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):  # a device cannot be cut
                self.stream.truncate(end)
            raise

    def add(self, predictions: Predictions) -> list[str] | list[None]:
        """A line for each image, and their ids, None where they cannot be written; several threads may call this."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        places = [predictions.header().index(name) for name in self.columns]
        ids = [secrets.token_hex(8) for _ in range(len(predictions))]
        pairs = zip(ids, predictions.rows(), strict=True)
        rows = [[now, self.weights_hash, name, *(row[i] for i in places)] for name, row in pairs]
        with self.lock:
            try:
                gone = True  # the file was moved or emptied, as a rotation of logs does
                with contextlib.suppress(OSError):
                    there = self.file.stat()
                    gone = not os.path.samestat(there, os.fstat(self.stream.fileno())) or not there.st_size
                if gone and (not self.file.exists() or self.file.is_file()):
                    before, self.stream = self.stream, self.file.open("a+b", buffering=0)
                    before.close()
                    claim(self.stream.fileno())
                    if not self.stream.seek(0, os.SEEK_END):
                        self._write(self.first)
                self._write(csv_text(rows))
            except OSError as error:
                if not self.broken:
                    problem = f"{self.file.name}: cannot be written ({error.strerror})"
                    self.warn(f"warning: {problem}; scores are no longer logged, and answers have no id")
                self.broken, self.lost = True, self.lost + len(ids)
                return [None] * len(ids)
            if self.broken:
                self.warn(f"{self.file.name}: scores are logged again; the lines of {self.lost:,} images are missing")
            self.broken = False
        return ids
