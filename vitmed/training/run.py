"""One training run under way: what `train` and `--resume` share."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitmed.core.config import Config, DataConfig
from vitmed.core.environment import environment
from vitmed.core.errors import CheckpointError, Interrupted, OutOfMemoryError
from vitmed.core.files import write_json, write_text
from vitmed.core.hardware import describe, pick_precision, seeded
from vitmed.core.pretrain_config import PretrainConfig
from vitmed.core.run_folder import RunFolder
from vitmed.core.ui import Advance, Ui
from vitmed.data.loading import EpochBatches, Images, TrainImages, pick_workers, train_loader
from vitmed.data.patient_notes import seen_before, tell_patients
from vitmed.data.read_images import read_all_with_records
from vitmed.data.samples import Splits
from vitmed.imaging.augmentation import Augmenter
from vitmed.imaging.file_record import FileRecord
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.positive_class import positive_class
from vitmed.models.lora import add_low_rank, merged
from vitmed.models.pretrained import Weights, load_pretrained
from vitmed.models.summary import describe_model, summarise
from vitmed.models.vit import build_vit
from vitmed.training.baselines import LinearHead
from vitmed.training.checkpoint import Checkpoint, portable, save_checkpoint, set_data_root
from vitmed.training.failure_detection import stuck
from vitmed.training.loop import Epoch, Step, TrainState, fit, new_state, out_of_patience


class TrainingRun:
    """One run under way: what `train` and `--resume` share."""

    def __init__(
        self,
        config: Config,
        splits: Splits,
        device: torch.device,
        ui: Ui,
        weights: Weights | None = None,
        start: str = "from random weights",
    ):
        self.config, self.splits, self.device, self.ui = config, splits, device, ui
        self.precision = pick_precision(config.train.precision, device)
        preprocessing = Preprocessing.of(config)
        with seeded(config.train.seed):
            model = build_vit(config.model, len(splits.classes))
            self.report = load_pretrained(model, weights, preprocessing) if weights is not None else None
            if config.train.lora is not None:
                add_low_rank(model, config.train.lora)
        if config.train.lora is None and config.train.freeze_blocks is not None:
            model.freeze(config.train.freeze_blocks)
        self.seen = weights.seen if weights is not None else ()
        self.model = model.to(device)
        self.images = images_of(splits, preprocessing)
        self.hashes: dict[str, list[str]] = {}
        self.notes: list[str] = []  # on the data, for the head of every report
        self.counts: dict[str, int] = {}  # of files found and copies, for its flow diagram
        self.warned = False
        self._announce(start if weights is None else f"{self.report}; images normalised by {config.data.normalize}")

    def _announce(self, start: str) -> None:
        config, splits = self.config, self.splits
        self.ui.say("vitmed is for research use only; it is not a medical device.")
        self.ui.say("classes: " + ", ".join(f"{i} {name}" for i, name in enumerate(splits.classes)))
        for name in splits.samples:
            held = "; held out until the end" if name == "test" else ""
            counts = " + ".join(f"{n:,}" for n in splits.counts(name))
            self.ui.say(f"{name:5} {len(splits.samples[name]):,} images ({counts}), {splits.made[name]}{held}")
        if len(splits.classes) == 2:
            told = self.config.data.positive or splits.classes[positive_class(splits.classes)]
            self.ui.say(f"positive class: {told} (--positive names the other)")
        tell_patients(splits, "a patient may be in two splits, which flatters the result", self.ui)
        model = config.model
        self.ui.say(f"model {describe_model(model)}, {start}")
        self.ui.say(f"training {self._learning()}")
        self.ui.say(f"device {describe(self.device)}, {self.precision.name}: {self.precision.reason}")
        if config.train.balance != "none":
            self.ui.warn(
                f"--balance {config.train.balance} ruins calibration: the probabilities no longer follow prevalence"
            )
        if (config.augment.mixup or config.augment.cutmix) and not config.train.freeze:
            self.ui.warn("mixup and cutmix change calibration: look at the log loss and Brier score")

    def _learning(self) -> str:
        """Which of the parameters will learn, in words."""
        parameters = list(self.model.parameters())
        total, train = sum(p.numel() for p in parameters) / 1e6, self.config.train
        if train.freeze:
            return f"a logistic regression on the features of the frozen network of {total:.2f} M parameters"
        learning = sum(p.numel() for p in parameters if p.requires_grad) / 1e6
        if train.lora is not None:
            return f"additions of rank {train.lora} and the head: {learning:.2f} of {total:.2f} M parameters"
        if train.freeze_blocks is not None:
            return (
                f"what lies behind the first {train.freeze_blocks} blocks: {learning:.2f} of {total:.2f} M parameters"
            )
        return f"all {total:.2f} M parameters"

    def check_images(self) -> list[FileRecord]:
        """Decode every file once, in this run or in an earlier one, and hash it; what the data check needs of each."""
        self.hashes, records = check_images(self.images, self.config.data, self.ui)
        before = seen_before(self.seen, self.hashes["test"])
        if before:
            self.ui.warn(f"{before:,} images of test were used to make the weights: the result is flattered")
        return records

    def open(self, folder: RunFolder) -> None:
        """Write what is known before the first batch, and make a new state."""
        self.folder = folder
        write_text(folder.config, portable(self.config, folder.path).to_yaml())
        write_json(folder.environment, environment(self.config, self.device, self.precision, self.hashes))
        write_text(folder.splits, splits_csv(self.splits, self.hashes))
        write_json(folder.data_check, {"notes": self.notes, "counts": self.counts})
        write_text(folder.summary, summarise(self.model, self.config.model))
        if self.report is not None:
            write_json(folder.weights, self.report.to_dict())
        self.prepare()

    def reopen(self, folder: RunFolder, checkpoint: Checkpoint) -> None:
        """Go back to the state of a last.pt."""
        assert checkpoint.training is not None
        self.folder, self.seen = folder, checkpoint.seen
        self.prepare()
        try:
            self.state.load_state_dict(checkpoint.training)
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{folder.last}: its training state does not fit ({error})") from None
        write_text(folder.config, portable(self.config, folder.path).to_yaml())  # it may go on for longer
        if self.splits.root != checkpoint.splits.root:
            for file in folder.path.glob("*.pt"):  # none may be written again, and all are evaluated on these images
                set_data_root(file, self.splits.root)
        self.ui.say(f"resuming {folder.path} at epoch {self.state.epoch + 1}, batch {self.state.batch + 1}")

    def prepare(self) -> None:
        """Make loader and state, before the first step."""
        train, train_images = self.config.train, self.images["train"]
        augment = self.config.augment
        augmenter = Augmenter(augment.policy, self.config.model.image_size, self.config.model.channels, augment.flips)
        self.dataset = TrainImages(train_images, augmenter, train.seed)
        self.batches = EpochBatches(train_images.labels, train.batch_size, train.seed, train.balance == "sampler")
        workers = pick_workers(train.workers, augment.policy != "none", train_images.in_memory, self.device)
        self.loader = train_loader(self.dataset, self.batches, workers, self.device.type == "cuda")
        self.state: TrainState = new_state(self.model, self.config, self.batches.batches, self.device, self.precision)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train."""
        return self.state.epoch >= self.config.train.epochs or out_of_patience(self.state, self.config)

    def run(self) -> None:
        """Train to the end. Raises Interrupted after last.pt was saved."""
        config, state = self.config, self.state
        with stop_signals() as stop, self.ui.bar("training", unit="images") as advance:
            events = fit(
                state, self.loader, self.batches, self.images["val"], self.splits.classes, config, self.device,
                self.precision, stop,
            )  # fmt: skip
            for epoch in epochs_of(events, config, advance):
                self._end_of_epoch(epoch)
            if stop():
                self._save(self.folder.last, training=True)
                raise Interrupted(
                    f"interrupted in epoch {state.epoch + 1}; {self.folder.last} is saved",
                    f"vitmed train --resume {self.folder.path}",
                )
        if not self.folder.best.is_file():
            raise CheckpointError(f"{self.folder.path}: best.pt is gone", "start a new run")
        monitor = config.train.monitor
        value = _monitored(state.history[state.best_epoch - 1], monitor)
        self.ui.say(f"{config.train.choose} epoch: {state.best_epoch}, validation {value}")

    def _end_of_epoch(self, event: Epoch) -> None:
        record, state, monitor = event.record, self.state, self.config.train.monitor
        if event.kept:
            self._save(self.folder.best, training=False)
        if self.config.train.save_every and state.epoch % self.config.train.save_every == 0:
            self._save(self.folder.epoch(state.epoch), training=False)
        self._save(self.folder.last, training=True)
        write_text(self.folder.metrics, "".join(json_line(r) for r in state.history))
        self.ui.say(
            f"epoch {record['epoch']:3}/{self.config.train.epochs}  train loss {record['train_loss']:.4f}  "
            f"val loss {record['val_loss']:.4f}  {_monitored(record, monitor)}"
            f"{' *' if record['best'] else '  '}  lr {record['lr']:.1e}  {record['images_per_second']:,.0f} images/s  "
            f"{record['wait_share']:.0%} waiting"
        )
        undefined = [entry for entry in state.history if f"val_{monitor}" not in entry]
        if undefined == [record]:  # for the first time
            self.ui.warn(
                f"validation {monitor} is undefined in epoch {state.epoch}, as it is where a class is never predicted; "
                "such an epoch counts as worse than any in which it is defined"
            )
        problem = stuck(state.history, self.splits.classes, self.splits.counts("train"), self.config)
        if problem and not self.warned:
            self.ui.warn(problem)
        self.warned = problem is not None
        if event.stop and state.epoch < self.config.train.epochs:
            self.ui.say(f"stopped early: no better {monitor} for {self.config.train.patience} epochs")

    def save_head(self, path: Path, head: LinearHead) -> None:
        """A checkpoint of the network as it is now, with this head."""
        record = {"epoch": 0, "val_loss": head.val_loss, "C": head.C}
        weights = {**merged(self.model), "head.weight": torch.from_numpy(head.weight)}
        weights["head.bias"] = torch.from_numpy(head.bias)
        self._write(path, weights, record)

    def start_head(self, head: LinearHead) -> None:
        """Begin training with this head; the moving average begins with it too."""
        with torch.no_grad():
            for network in {id(n): n for n in (self.model, self.state.judged)}.values():
                network.head.weight.copy_(torch.from_numpy(head.weight))
                network.head.bias.copy_(torch.from_numpy(head.bias))

    def save_last(self) -> None:
        """last.pt, from which `--resume` goes on."""
        self._save(self.folder.last, training=True)

    def _save(self, path: Path, training: bool) -> None:
        record = self.state.history[-1] if self.state.history else {}
        self._write(path, merged(self.state.judged), record, self.state.state_dict() if training else None)

    def _write(
        self,
        path: Path,
        weights: dict[str, torch.Tensor],
        record: dict[str, Any],
        training: dict[str, Any] | None = None,
    ) -> None:
        save_checkpoint(
            path,
            config=self.config,
            splits=self.splits,
            hashes=self.hashes,
            weights=weights,
            record=record,
            training=training,
            seen=self.seen,
        )

    def sheet(self, per_class: int = 8) -> dict[str, list[np.ndarray]]:
        """Per class, training images as the network sees them: augmented, normalised, and brought back for the eye."""
        shown: dict[str, list[np.ndarray]] = {}
        images = self.images["train"]
        for label, name in enumerate(self.splits.classes):
            of_class = np.flatnonzero(images.labels == label)
            spread = of_class[:: max(1, len(of_class) // per_class)][:per_class]
            batch = torch.stack([self.dataset[(0, int(index))][0] for index in spread])
            preprocessing = images.preprocessing
            shown[name] = list(preprocessing.display(preprocessing.normalise(batch)).numpy())
        return shown


def _monitored(record: dict[str, Any], monitor: str) -> str:
    """`auroc 0.9123`, or `ppv undefined`."""
    value = record.get(f"val_{monitor}")
    return f"{monitor} undefined" if value is None else f"{monitor} {value:.4f}"


def images_of(splits: Splits, preprocessing: Preprocessing) -> dict[str, Images]:
    """The images of every split."""
    return {name: Images(splits.root, part, preprocessing) for name, part in splits.samples.items()}


def check_images(images: dict[str, Images], data: DataConfig, ui: Ui) -> tuple[dict[str, list[str]], list[FileRecord]]:
    """As `read_all_with_records`; and warn where an image of val or test is in another split too."""
    hashes, records = read_all_with_records(images, data, ui)
    seen = dict.fromkeys(hashes["train"], "train")
    for name in ("val", "test"):
        copies = sum(digest in seen for digest in hashes[name])
        if copies:
            ui.warn(f"{copies:,} images of {name} are byte for byte in train or val too: the result is flattered")
        seen |= dict.fromkeys(hashes[name], name)
    return hashes, records


def epochs_of(events: Iterator[Step | Epoch], config: Config | PretrainConfig, advance: Advance) -> Iterator[Epoch]:
    """Show the steps and give on the epochs. Raises OutOfMemoryError where a step found no memory."""
    epochs = config.train.epochs
    try:
        for event in events:
            if isinstance(event, Epoch):
                yield event
                continue
            text = f"epoch {event.epoch}/{epochs}  loss {event.loss:.4f}"
            text += f"  {event.images_per_second:,.0f} images/s  {event.wait_share:.0%} waiting for data"
            advance((event.epoch - 1) * event.batches + event.batch, epochs * event.batches, text)
    except RuntimeError as error:
        raise memory_error(error, config) from None


def json_line(record: dict[str, Any]) -> str:
    """A line of metrics.jsonl."""
    return json.dumps(record, allow_nan=False) + "\n"


def memory_error(error: RuntimeError, config: Config | PretrainConfig) -> RuntimeError | OutOfMemoryError:
    """Our error for a lack of memory, on the device or between the loader's processes; else the error itself."""
    text, train = str(error), config.train
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text:
        return OutOfMemoryError(
            f"no memory left for batches of {train.batch_size} at {config.model.image_size} px",
            f"--batch-size {max(1, train.batch_size // 2)} --accumulate {train.accumulate * 2}, or a smaller --model",
        )
    if "DataLoader worker" in text and "killed by signal" in text:
        return OutOfMemoryError(
            "a loader process was killed, most likely for lack of memory or of /dev/shm",
            "--workers 0, a smaller --batch-size, or docker run --shm-size 1g",
        )
    return error


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Catch the first Ctrl-C or SIGTERM, so that training ends between two steps; a second one ends it at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def note(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def splits_csv(splits: Splits, hashes: dict[str, list[str]]) -> str:
    """path, sha256, class, group, split, and the further columns of a table of labels: one row an image."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["path", "sha256", "class", "group", "split", *splits.columns])
    for name, samples in splits.samples.items():
        for sample, digest in zip(samples, hashes[name], strict=True):
            writer.writerow(
                [sample.path, digest, splits.classes[sample.label], sample.group or "", name, *sample.columns]
            )
    return stream.getvalue()
