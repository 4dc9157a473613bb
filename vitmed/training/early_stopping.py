"""After each epoch: its validation and record, whether it is the best so far, whether training ends (after all epochs,
early, or when its time is used), and a warning about a network that does not learn."""

import math
from collections.abc import Sequence

import numpy as np

from vitmed.core.base_models import Kind
from vitmed.core.config import Config, PretrainConfig
from vitmed.core.errors import VitmedError
from vitmed.data.loading import Images
from vitmed.data.samples import labelled_by
from vitmed.decisions.targets import TARGETS
from vitmed.inference.predict import predict_all
from vitmed.metrics.predictions import Predictions
from vitmed.models.hardware import Precision
from vitmed.training.optimiser import scheduled_lr
from vitmed.training.processes import ALONE, Ranks
from vitmed.training.train_state import Record, TrainState

WINDOW = 3  # last epochs, which must agree
ONE_CLASS = 0.95  # share of validation images predicted as one class
CHANCE = 0.55  # AUROC of findings below which the network ranks hardly better than chance
STILL = 0.02  # smaller relative changes of the training loss count as none
FAIR = 0.5  # share of the run before which a slow start is no failure: knees began to learn at 0.37 of it
WORSE = 1.5  # factor above the loss of predicting all classes as equally likely


def validate(
    state: TrainState, val: Images, classes: tuple[str, ...], config: Config, precision: Precision, ranks: Ranks = ALONE
) -> Record:
    """The record of the epoch that has just ended, from the predictions for `val`, of which each rank makes some.

    Raises DataError if a file can no longer be read, VitmedError if a logit is NaN or infinite.
    """
    ranks.share_statistics(state.evaluated_model)
    with ranks.together():
        part = predict_all(state.evaluated_model, val, precision, rows=ranks.deal(len(val)))
    predictions = labelled_by(val.target, classes, val.samples, ranks.collect(part, len(val)), config.data.positive)
    return epoch_record(state, predictions, config, val.target.kind)


def epoch_record(state: TrainState, predictions: Predictions, config: Config, kind: Kind = "classes") -> Record:
    """The epoch's line of metrics.jsonl, without undefined metrics; also updates the best epoch of the state.

    An epoch with an undefined monitor (`ppv` when a class is never predicted) ranks below all others.
    Raises VitmedError if a logit is NaN or infinite.
    """
    if not np.isfinite(predictions.logits).all():
        problem = f"the network's outputs are NaN or infinite for validation images in epoch {state.epoch + 1}"
        raise VitmedError(problem, f"--lr {config.train.lr / 10:g}")
    target, monitor = TARGETS[kind], config.train.monitor
    values = {name: v for name, v in target.numbers.values(predictions).items() if math.isfinite(v)}
    value, loss, metric = values.get(monitor), values[target.val_loss], target.metrics[monitor]
    sign = 1 if metric.higher_is_better else -1
    # an undefined monitor comes last; of equal ones the lower loss wins
    now, before = ((x is not None, sign * (x or 0.0), -y) for x, y in ((value, loss), (state.best, state.best_loss)))
    better = loss < state.best_loss if config.train.choose == "loss" else now > before
    if best := state.epoch == 0 or better:
        state.best, state.best_loss = value, loss
    if kept := best or config.train.choose == "last":
        state.best_epoch = state.epoch + 1
    record = common_record(state, loss, config) | {f"val_{name}": v for name, v in values.items()}
    record |= {"monitor": monitor, "best": best, "kept": kept}
    if predictions.kind == "classes":  # the class that is predicted most, and for which share of the images
        share = np.bincount(predictions.predicted, minlength=len(predictions.classes)) / len(predictions)
        record |= {"top_class": predictions.classes[int(share.argmax())], "top_share": float(share.max())}
    return record


def common_record(state: TrainState, val_loss: float, config: Config | PretrainConfig) -> Record:
    """What training and pretraining both record of a finished epoch."""
    running, (images_per_second, wait_share) = state.running, speed(state)
    return {
        "epoch": state.epoch + 1,
        "step": state.step,
        "lr": scheduled_lr(max(0, state.step - 1), state.batches, config, state.share),
        "train_loss": running["loss"] / max(1, running["images"]),
        "val_loss": val_loss,
        "images_per_second": images_per_second,
        "wait_share": wait_share,
        "seconds": running["seconds"],
    }


def speed(state: TrainState) -> tuple[float, float]:
    """Images/s, and the share of time spent waiting for data, of the current epoch."""
    run = state.running
    return run["images"] / max(1e-9, run["seconds"]), run["waited"] / max(1e-9, run["seconds"])


def finished(state: TrainState, config: Config | PretrainConfig) -> bool:
    """Whether all epochs are done, training stops early, or the time is used after the first epoch. An epoch that the
    time cuts short is validated first."""
    time_used = state.share >= 1 and state.epoch > 0 and state.batch == 0
    return state.epoch >= config.train.epochs or stops_early(state, config) or time_used


def stops_early(state: TrainState, config: Config | PretrainConfig) -> bool:
    """Early stopping: whether no epoch has been better than `best_epoch` for `patience` epochs."""
    train = config.train
    return train.choose != "last" and train.patience is not None and state.epoch >= state.best_epoch + train.patience


def stuck(
    history: Sequence[Record], classes: Sequence[str], counts: Sequence[int], config: Config, share: float
) -> str | None:
    """A warning that the network does not learn, or None. While the loss stands still: it predicts one class, or one
    number, for nearly all images, or ranks findings no better than chance. At any time: the loss is far above guessing.
    `counts` are training images per class; `share`, 0 to 1, of the run is done, and until `FAIR` it may yet learn."""
    last = history[-WINDOW:]
    if len(last) < WINDOW:
        return None
    losses = [record["train_loss"] for record in last]
    still = share >= FAIR and max(losses) - min(losses) <= STILL * max(losses)
    lr, warmup, decay = config.train.lr, config.train.warmup_epochs, config.train.weight_decay
    steps = round(last[-1]["step"] * config.train.epochs / last[-1]["epoch"])  # of the whole run as planned
    few = f"{steps} optimiser steps are too few for a network that starts from random weights. "
    few += "Try more --epochs, a smaller --batch-size, or --weights"
    causes = (
        (lr > 2e-3, f"the learning rate {lr:g} is too high for a ViT. Try --lr {min(lr / 10, 5e-4):g}"),
        (warmup == 0 and lr > 1e-4, f"no warm-up at a learning rate of {lr:g}. Try --warmup-epochs 3, or --lr 1e-4"),
        (decay > 0.5, f"weight decay {decay:g} pulls the weights to zero. Try --weight-decay 0.05"),
        (lr < 1e-5, f"the learning rate {lr:g} is too low. Try --lr 5e-4"),
        (steps < 500, few),
        (True, "wrong labels, or images that show nothing. Look at contact_sheet.png, or try --lr 1e-4"),
    )
    why, guessing = "", math.log(len(classes))  # for any frequencies, smoothing, mixing and class weights
    if still and all((r2 := record.get("val_r2")) is not None and r2 <= 0 for record in last):
        why = "one number for all validation images is no worse"
    elif "top_class" not in last[-1]:  # findings and numbers have no one class that is always predicted
        if still and all(record.get("val_auroc", 1) < CHANCE for record in last):
            why = f"on validation the AUROC of the findings is {last[-1]['val_auroc']:.3f} (guessing gives 0.5)"
            why += f", and the training loss stays at {losses[-1]:.3f}"
    elif min(losses) > WORSE * guessing:
        even = f"predicting all classes as equally likely gives {guessing:.3f}"
        why = f"the training loss is {losses[-1]:.3f}, but {even}"
    elif still:
        prior = {name: count / sum(counts) for name, count in zip(classes, counts, strict=True)}
        if all(r["top_share"] >= max(ONE_CLASS, min(0.999, prior[r["top_class"]] + 0.01)) for r in last):
            top, chance = last[-1]["top_class"], -sum(p * math.log(p) for p in prior.values() if p)  # nats, of guessing
            why = f"it predicts {top!r} for {last[-1]['top_share']:.0%} of the validation images"
            why += f" ({prior[top]:.0%} of the training images are {top!r}), and the training loss stays at"
            why += f" {losses[-1]:.3f} (guessing by class frequency gives {chance:.3f})"
    cause = next(text for likely, text in causes if likely)
    return f"the network does not learn: {why}. Likely cause: {cause}." if why else None
