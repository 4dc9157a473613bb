"""Fine-tuning: the task of `vitmed train`, and the decision policy that it chooses on validation when it has ended."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from vitmed.core.config import Config
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.files import write_json, write_text
from vitmed.core.load_config import store_paths
from vitmed.core.messages import say, show, warn
from vitmed.core.text import about, counted, listed
from vitmed.data.loading import Images, images_of
from vitmed.data.patients import report_patients
from vitmed.data.samples import Splits, describe_split, labelled_by, proportion_lines
from vitmed.decisions.out_of_distribution import MOST_FITTED, fit_ood_score
from vitmed.decisions.policy import FASTER, DecisionPolicy, ReducedPrecision, choose_policy, compare_precision
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import Checkpoint, add_policy, load_checkpoint, save_checkpoint
from vitmed.inference.predict import TorchNetwork, outputs_of, speedup
from vitmed.inference.saved_model import score_column
from vitmed.metrics.predictions import Predictions, positive_class
from vitmed.models.hardware import busy, describe, pick_precision, seeded, uncompiled
from vitmed.models.lora import add_low_rank, merged
from vitmed.models.sizes import describe_model, model_label, summarise
from vitmed.models.vit import ViT
from vitmed.models.weights.pretrained import LoadReport, Weights, load_pretrained
from vitmed.training.early_stopping import finished, stops_early, stuck, validate
from vitmed.training.losses import LEARNING, Objective, objective_of
from vitmed.training.plan.time import After, Contention
from vitmed.training.processes import full
from vitmed.training.run import Run, Session, Task, monitor_text
from vitmed.training.train_state import Record, TrainState

KEPT = {"best": "best epoch", "loss": "epoch with the lowest validation loss", "last": "last epoch"}  # train.choose
SURE = 10.0  # s of training that tell its speed: the first include the start of the loader processes
MOST_COMPARED = 2000  # validation images to predict again in reduced precision at most


@dataclass
class Finetune(Task[Config]):
    """A ViT that learns the labels of a data folder."""

    model: ViT
    outputs: int  # K, of the network
    seen: Sequence[str] = ()  # what its weights were made with: `Weights.seen`
    learned: Sequence[str] = ()  # the images that a run trained on, with labels; not known once a run is resumed
    report: LoadReport | None = None  # what of a weight file was used; None without one
    fingerprints: dict[str, list[str]] | None = None  # of train and val, to notice near copies in an evaluation
    planned_rate: float | None = None  # images/s in training, as the plan measured them; None: not known
    command: ClassVar[str] = "train"
    after: After | None = field(default=None, init=False)  # what follows training, once that began in a limited time
    contention: Contention | None = field(default=None, init=False)
    warned: bool = field(default=False, init=False)  # that the network does not learn, after the last epoch
    slow: bool = field(default=False, init=False)  # whether it is said that training goes slower than planned

    @classmethod
    def new(
        cls, config: Config, splits: Splits, session: Session, weights: Weights | None = None, start: str = ""
    ) -> Self:
        """Build a network before training, from weights or random numbers, and report what it learns from; `start` says
        where other weights come from. Raises VitmedError for sizes or weights that do not fit."""
        train = images_of(splits, Preprocessing.of(config))["train"]
        total, processes = min(config.train.batch_size, len(train)), session.ranks.world
        if total < processes:
            problem = f"a batch of {counted(total, 'image')} for {processes} processes, expected at least one for each"
            raise UsageError(problem, f"fewer processes, or --batch-size {processes} or more")
        with seeded(config.train.seed):
            model = ViT(config.model, splits.outputs)
            LEARNING[splits.target.kind].start(model, train.targets, config)
            report = load_pretrained(model, weights, train.preprocessing) if weights is not None else None
            if config.train.lora is not None:
                add_low_rank(model, config.train.lora)
        if config.train.lora is None and config.train.freeze_blocks is not None:
            model.freeze(config.train.freeze_blocks)
        model = model.to(session.device)
        if weights is not None:
            start = f"{report}; images normalised by {config.data.normalize}, resize {config.data.resize}"
        _describe(config, splits, model, start or "from random weights", session)
        if config.train.balance == "adjust" and config.train.probe_first:
            fix = "--balance loss, or --no-probe-first"
            warn(f"--balance adjust changes nothing: the head is fitted before training (train.probe_first); {fix}")
        elif config.train.balance == "adjust" and report is not None and "head.weight" in report.loaded:
            warn(f"--balance adjust changes nothing: the head comes from {report.file}; --balance loss")
        elif config.train.balance != "none":
            decides = f"{'--youden' if splits.choices == 2 else '--balanced'} decides for balanced accuracy"
            say(f"balance {config.train.balance}: probabilities stay at the prevalence of training; {decides}")
        if (config.augment.mixup or config.augment.cutmix) and not config.train.freeze:
            warn("mixup and cutmix change calibration: check the log loss and the Brier score")
        return cls(model, splits.outputs, *((), ()) if weights is None else (weights.seen, weights.learned), report)

    def objective(self, config: Config, train: Images, session: Session) -> Objective:
        return objective_of(train, self.outputs, config, session.precision, session.device)

    def validate(self, run: Run[Config]) -> Record:
        val, classes = run.images["val"], run.splits.classes
        with uncompiled(run.config.train.compile):
            return validate(run.state, val, classes, run.config, run.precision, run.ranks)

    def write_start(self, run: Run[Config]) -> None:
        model = run.config.model
        write_text(run.folder.summary, summarise(self.model, model))
        if self.report is not None or model.weights_reason is not None:
            about = {"name": store_paths(run.config, run.folder.path).model.weights, "sha256": model.weights_sha256}
            about |= {"licence": model.licence, "reason": model.weights_reason}
            write_json(run.folder.weights, about | ({} if self.report is None else asdict(self.report)))

    def save_epoch(self, run: Run[Config], record: Record) -> None:
        every, epoch = run.config.train.save_every, run.state.epoch
        if record["kept"]:
            self._save(run, run.folder.best)
        if every and epoch % every == 0:
            self._save(run, run.folder.epoch(epoch))

    def save_last(self, run: Run[Config]) -> None:
        self._save(run, run.folder.last, run.state.state_dict())

    def _save(self, run: Run[Config], path: Path, training: dict[str, Any] | None = None) -> None:
        parts = {"record": run.state.history[-1] if run.state.history else {}, "fingerprints": self.fingerprints}
        parts |= {"weights": full(merged(run.state.evaluated_model)), "training": training}  # by all ranks, each a part
        run.ranks.first(lambda: save_checkpoint(path, run.config, run.splits, run.hashes, self.seen, **parts))

    def end(self, run: Run[Config]) -> None:
        """Say which epoch is kept, after the last: that of best.pt, which a kill may have left ahead of last.pt."""
        if run.ranks.leads:
            train, record = run.config.train, load_checkpoint(run.folder.best).record
            value = monitor_text(record, train.monitor)
            say(f"{KEPT[train.choose]}: {record['epoch']}, validation {value}; kept in {run.folder.best.name}")

    def after_epoch(self, run: Run[Config], record: Record) -> None:
        """As in `Task`: warn of an undefined monitor and of a network that does not learn; say why training ends."""
        state, config, monitor = run.state, run.config, run.config.train.monitor
        if [entry for entry in state.history if f"val_{monitor}" not in entry] == [record]:  # for the first time
            why = "for example because a class is never predicted or has no validation image"
            undefined = f"validation {monitor} is undefined in epoch {state.epoch}, {why}"
            warn(f"{undefined}; such an epoch ranks below all others")
        share = 1.0 if finished(state, config) else max(state.share, state.epoch / config.train.epochs)
        problem = stuck(state.history, run.splits.classes, run.splits.counts("train"), config, share)
        if problem and not self.warned:
            warn(problem)
        self.warned = problem is not None
        if state.share >= 1:
            say(f"the time for training is used, in epoch {state.epoch}")
        elif state.epoch < config.train.epochs and stops_early(state, config):
            what = "the validation loss" if config.train.choose == "loss" else monitor
            say(f"stopped early: {what} has not improved for {config.train.patience} epochs")

    def seconds_after(self, run: Run[Config]) -> float:
        """As in `Task`: what such a run took here, by the speed of this one, longer where others share the cores. The
        planned speed counts like `SURE` seconds, because the first steps are slow."""
        seconds, waited, images = map(sum, zip(*timings(run.state), strict=True))
        now = time.monotonic(), time.thread_time(), waited
        if self.after is None or self.contention is None:
            # on a busy machine reading the images shows, too, how busy it is
            began, used = run.session.began if busy() else (now[0], time.process_time())
            self.after = After(run.splits, run.config, run.device)
            self.contention = Contention(began, now[1] - (time.process_time() - used), waited)
        factor, known = self.contention.factor(*now), SURE if self.planned_rate else 0.0
        rows = images + known * (self.planned_rate or 0.0)
        return factor * self.after.seconds((known + (seconds - waited) / factor) / rows if rows else 0.0)

    def before_step(self, run: Run[Config]) -> None:
        """As in `Task`: say once that training goes at less than half of the planned images/s, and what that means."""
        if self.slow or self.planned_rate is None:
            return
        state, seconds, images = run.state, 0.0, 0.0
        for row in timings(state):
            seconds, images = seconds + row[0], images + row[2]
            if seconds >= SURE:
                break
        if seconds < SURE or images / seconds >= self.planned_rate / 2:
            return
        epochs, done = run.config.train.epochs, state.epoch + state.batch / run.stream.batches.batches
        left = (epochs - done) * len(run.splits.samples["train"]) * seconds / max(1.0, images)
        means = f"at this speed training takes about {about(left)} more"
        if run.config.train.time is not None and state.share > 0:
            count = max(1, min(epochs, round(done / state.share)))
            means = f"at this speed the time is enough for about {counted(count, 'epoch')}"
        planned = f"less than half of the {self.planned_rate:,.0f} that the plan measured"
        why = "as when other programs need the cores"
        warn(f"training goes at {images / seconds:,.0f} images/s, {planned}, {why}; {means}")
        self.slow = True


def timings(state: TrainState) -> Iterator[tuple[float, float, float]]:
    """Of each epoch, the current one first: seconds, seconds of waiting for data, and images."""
    yield state.running["seconds"], state.running["waited"], state.running["images"]
    for record in reversed(state.history):
        seconds = record["seconds"]
        yield seconds, seconds * record["wait_share"], seconds * record["images_per_second"]


def _describe(config: Config, splits: Splits, model: ViT, start: str, session: Session) -> None:
    show("vitmed is for research use only; it is not a medical device.")
    unit = f" ({splits.target.unit})" if splits.target.unit else ""
    names = [f"{i} {name}" for i, name in enumerate(splits.classes)]
    positive = ""
    if len(splits.classes) == 2 and splits.target.kind == "classes":
        positive = config.data.positive or splits.classes[positive_class(splits.classes)]
        positive = f"; positive class: {positive} (vitmed train --positive chooses the other)"
    show(f"{splits.target.kind}: " + (listed(names) if len(names) > 1 else splits.classes[0] + unit) + positive)
    counts = ", ".join(f"{len(samples):,} {name}" for name, samples in splits.samples.items())
    whose = f" of {', '.join(f'{len(groups):,}' for groups in splits.groups().values())} {splits.unit}s"
    show(f"images: {counts}{whose * splits.grouped}; test is not evaluated until training ends")
    for name, samples in splits.samples.items():
        say(f"{name + ':':6} {counted(len(samples), 'image')} ({describe_split(splits, name)}), {splits.made[name]}")
    for line in proportion_lines(splits):
        say(line)
    report_patients(splits)
    train, ranks = config.train, session.ranks
    say(f"model: {describe_model(config.model)}; {start}")
    total = sum(p.numel() for p in model.parameters()) / 1e6
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6
    if train.freeze:
        what = f"a logistic regression on its {total:.2f} M frozen parameters"
    elif train.lora is None and train.freeze_blocks is None:
        what = f"all {total:.2f} M parameters"
    else:
        what = f"everything after the first {train.freeze_blocks} blocks"
        if train.lora is not None:
            what = f"LoRA additions of rank {train.lora} and the head"
        what += f", {learning:.2f} of {total:.2f} M parameters"
    shared = f"{ranks.world} processes, each on " if ranks.wide else ""
    device = f"{shared}{describe(session.device)}, {session.precision.name}"
    why = f" ({config.model.weights_reason})" if config.model.weights_reason else ""
    weights = f"random weights{why}" if config.model.start is None else f"weights of {Path(config.model.start).name}"
    licence = f", licence {config.model.licence}" if config.model.licence else ""
    name, side = model_label(config.model.model_copy(update={"weights": None})), config.model.image_size
    show(f"network: {name}, {side} px, from {weights}{licence}; trains {what}; {device}")
    say(f"device: {device} ({session.precision.reason})")


def augmented_examples(run: Run[Config]) -> dict[str, list[np.ndarray]]:
    """Class, of at most 24 -> up to 8 training images after augmentation and normalisation, (S, S, C) uint8."""
    shown: dict[str, list[np.ndarray]] = {}
    how, labels = run.images["train"].preprocessing, run.images["train"].labels
    names = run.splits.strata
    present = np.unique(labels)
    for label in present[np.linspace(0, len(present) - 1, min(24, len(present))).astype(int)]:
        of_class = np.flatnonzero(labels == label)
        spread = of_class[:: max(1, len(of_class) // 8)][:8]
        batch = torch.stack([run.stream.dataset[(0, int(index))][0] for index in spread])
        shown[names[label]] = list(how.display(how.normalise(batch)).numpy())
    return shown


def fit_decision_policy(best: Path, images: dict[str, Images], device: torch.device) -> None:
    """Choose the decision policy on validation and write it into best.pt; reads the images of train and val."""
    saved = load_checkpoint(best)
    splits, model = saved.splits, saved.model().to(device)
    network = TorchNetwork(saved, None, device, model=model)
    val, labels = outputs_of(network, images["val"], "predicting val", None, True), images["train"].labels
    rows = np.sort(np.random.default_rng(0).permutation(len(labels))[:MOST_FITTED])
    train = outputs_of(network, images["train"], "predicting train", rows.tolist(), True)
    ood_score = fit_ood_score(train.features, labels[rows], val.features)
    positive = saved.config.data.positive
    validation = labelled_by(splits.target, saved.classes, splits.samples["val"], val.logits, positive)
    policy = choose_policy(validation, saved.config.evaluate, ood_score, saved.weights_hash)
    drawn = network.outputs(lambda i: saved.preprocessing.drawn(), 1)
    policy = policy.model_copy(update={"known_logits": tuple(drawn.logits[0].tolist())})
    scores = {} if policy.ood_score is None else score_column(policy.ood_score.score(val.features))
    exact = policy.apply(replace(validation, columns=scores))
    reduced = _compare_precision(saved, model, policy, images["val"], exact)
    add_policy(best, policy, reduced)
    say(f"decision policy, chosen on {policy.n:,} validation images: {policy.summary}")
    for note in policy.notes:
        warn(note)
    if reduced is not None:
        say(f"precision of vitmed predict on this kind of device: {reduced.choice}")


def _compare_precision(
    saved: Checkpoint, model: ViT, policy: DecisionPolicy, val: Images, exact: Predictions
) -> ReducedPrecision | None:
    """What the fastest precision of this device changes on at most `MOST_COMPARED` validation images, evenly spread,
    from the `exact` predictions in fp32; None where the device is made for fp32."""
    device = next(model.parameters()).device
    precision = pick_precision("auto", device)
    if not precision.mixed:
        return None
    faster = speedup(model, saved.preprocessing, device, precision)
    compared = ReducedPrecision(precision=precision.name, device=device.type, speedup=round(faster, 2))
    if faster < FASTER:
        return compared
    rows = np.linspace(0, len(val) - 1, min(len(val), MOST_COMPARED)).round().astype(np.int64)
    try:
        network = TorchNetwork(saved, policy, device, precision, model)
        again = outputs_of(network, val, f"predicting val in {precision.name}", rows.tolist())
    except CheckpointError:  # numbers that fp32 holds and fp16 does not
        return compared.model_copy(update={"images": len(rows), "finite": False})
    exact = exact.take(rows)
    reduced = policy.apply(replace(exact, logits=again.logits, columns=again.columns))
    return compare_precision(compared, policy, exact, reduced)
