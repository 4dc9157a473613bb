"""The training loop: it learns, it accumulates rightly, and it says by name what went wrong."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import BARE, TINY_NETWORK, TINY_SETS, Recorder, Trained, draw_classes, draw_splits, recording
from tiny_config import tiny_config

from vitmed import VitmedError, train
from vitmed.core.config import Config
from vitmed.core.errors import UsageError
from vitmed.core.load_config import load_config
from vitmed.core.messages import listening
from vitmed.data.loading import EpochBatches, Images
from vitmed.data.samples import Sample
from vitmed.imaging import rasters
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.predictions import Predictions
from vitmed.models.hardware import Precision
from vitmed.models.vit import ViT
from vitmed.training.early_stopping import epoch_record, stops_early, validate
from vitmed.training.loop import Control, LossWatch, Stream, fit
from vitmed.training.losses import class_weights, mixup_and_cutmix, objective_of
from vitmed.training.optimiser import scheduled_lr, steps_per_epoch
from vitmed.training.train_state import Record, TrainState, new_state

CPU, FP32 = torch.device("cpu"), Precision("fp32", torch.float32, "")
CLASSES = ("amber", "blue")
pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("loop"), 16)


def images(folder: Path, count: int = 16, fewer: int = 0) -> Images:
    samples = [Sample(f"{c}/{c}_{i}.png", k, None) for k, c in enumerate(CLASSES) for i in range(count - k * fewer)]
    found = Images(folder, samples, Preprocessing(16, 3, "pad", "imagenet"))
    found.cache = np.stack([found.read(i) for i in range(len(found))])
    return found


config = partial(
    tiny_config, augment__policy="none", train__epochs=2, train__lr=3e-3, train__warmup_epochs=0.0,
    model__stem="patch", model__pool="cls",
)  # fmt: skip


class Step(NamedTuple):
    """What is known after a batch."""

    epoch: int
    batch: int
    loss: float


def begin(
    folder: Path, asked: Config, shown: Callable[[Step], None] = lambda step: None, fewer: int = 0
) -> tuple[TrainState, Iterator[Record]]:
    data = images(folder, fewer=fewer)
    torch.manual_seed(asked.train.seed)
    stream = Stream.of(data, asked, CPU)
    batches = stream.batches.batches
    state = new_state(ViT(asked.model, 2), asked, batches, CPU, FP32)
    objective = objective_of(data, 2, asked, FP32, CPU)
    control = Control(asked, shown=lambda loss: shown(Step(state.epoch + 1, state.batch, loss)))
    return state, fit(state, stream, objective, control, lambda: validate(state, data, CLASSES, asked, FP32))


def trained_state(folder: Path, asked: Config) -> tuple[TrainState, list[Step | Record]]:
    """The state, and the steps and records in their order."""
    events: list[Step | Record] = []
    state, records = begin(folder, asked, events.append)
    for record in records:  # one by one: the steps of an epoch come before its record
        events.append(record)
    return state, events


def test_the_loss_falls_and_the_classes_are_told_apart(trained: Trained) -> None:
    records = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in records] == [1, 2, 3, 4, 5, 6]
    assert records[-1]["train_loss"] < 0.8 * records[0]["train_loss"]
    assert trained.result.test.metrics["overall"]["auroc"]["value"] > 0.95
    assert not [text for text in trained.ui.warned if "learn" in text]
    for record in records:
        assert 0 <= record["wait_share"] <= 1 and record["images_per_second"] > 0
        assert all(math.isfinite(v) for v in record.values() if isinstance(v, float))


def test_what_is_told_after_every_batch_and_epoch(folder: Path) -> None:
    state, events = trained_state(folder, config())
    kinds = [type(event) for event in events]
    assert kinds == [*[Step] * 4, dict] * 2
    steps = [event for event in events if isinstance(event, Step)]
    assert [(s.epoch, s.batch) for s in steps] == [(e, b) for e in (1, 2) for b in (1, 2, 3, 4)]
    records = [event for event in events if not isinstance(event, Step)]
    assert records == state.history and (state.epoch, state.batch, state.step) == (2, 0, 8)


def test_the_training_loss_is_the_mean_over_the_epochs_images(folder: Path) -> None:
    """At a learning rate of 0 the loss can be worked out apart, from the model alone."""
    asked = config(train__lr=1e-30, train__min_lr=0.0, train__epochs=1, train__smoothing=0.1)
    state, _ = trained_state(folder, asked)
    data = images(folder)
    x = data.preprocessing.normalise(torch.from_numpy(np.stack([data.read(i) for i in range(len(data))])))
    log_p = F.log_softmax(state.model(x).detach().double(), dim=1)
    target = torch.full((32, 2), 0.05, dtype=torch.float64)  # smoothing 0.1: 0.95 for the truth, 0.05 for the other
    target[torch.arange(32), torch.from_numpy(data.labels)] = 0.95
    expected = -(target * log_p).sum(dim=1).mean()
    assert state.history[0]["train_loss"] == pytest.approx(float(expected), abs=1e-5)
    assert state.history[0]["val_loss"] == pytest.approx(
        -float(log_p[torch.arange(32), torch.from_numpy(data.labels)].mean()), abs=1e-5
    )


def test_the_running_loss_is_a_mean_over_the_batches_it_knows(folder: Path) -> None:
    """At a learning rate of 0: after batch 1 the loss of batch 1, then the mean of those before the current one."""
    asked = config(train__lr=1e-30, train__min_lr=0.0, train__epochs=2, train__ema=False)
    state, events = trained_state(folder, asked)
    shown = [event.loss for event in events if isinstance(event, Step)]
    data, order = images(folder), EpochBatches(np.zeros(32), 8, asked.train.seed, False)
    expected = []
    for epoch in (0, 1):
        losses = []
        for part in order.order(epoch).reshape(4, 8):
            x = data.preprocessing.normalise(torch.from_numpy(np.stack([data.read(int(i)) for i in part])))
            y = torch.from_numpy(data.labels[part])
            loss = F.cross_entropy(state.model(x).detach(), y, label_smoothing=asked.train.smoothing)
            losses.append(float(loss))
        expected += [losses[0], losses[0], np.mean(losses[:2]), np.mean(losses[:3])]
    assert shown == pytest.approx(expected, abs=1e-5)


def test_the_learning_rate_follows_the_schedule(folder: Path) -> None:
    asked = config(train__warmup_epochs=0.5, train__epochs=3, train__lr=0.001, train__min_lr=1e-5)
    found: list[float] = []
    state, records = begin(folder, asked, lambda step: found.append(state.optimiser.param_groups[0]["lr"]))
    list(records)
    cosine = [1e-5 + (1e-3 - 1e-5) / 2 * (1 + math.cos(math.pi * i / 9)) for i in range(10)]
    assert found == pytest.approx([0.0005, 0.001, *cosine])
    asked = config(train__warmup_epochs=100.0, train__epochs=3, train__lr=1.0)  # warm-up is at most a third
    rates = [scheduled_lr(step, 4, asked) for step in range(12)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0]) and rates[5] < 1
    assert [steps_per_epoch(b, a) for b, a in ((4, 1), (4, 2), (5, 2), (1, 8))] == [4, 2, 3, 1]


def gradients(folder: Path, asked: Config, fewer: int = 0) -> list[torch.Tensor]:
    """What each optimiser step is given, (parameters,) each."""
    found: list[torch.Tensor] = []
    state, records = begin(folder, asked, fewer=fewer)
    real = state.optimiser.step

    def step(*args: Any, **kwargs: Any) -> Any:
        found.append(torch.cat([p.grad.flatten() for p in state.model.parameters()]))
        return real(*args, **kwargs)

    state.optimiser.step = step  # type: ignore[method-assign]
    list(records)
    assert state.step == len(found)
    return found


@pytest.mark.parametrize(("balance", "fewer"), [("none", 0), ("loss", 8)])
def test_accumulated_batches_are_one_large_batch(folder: Path, balance: str, fewer: int) -> None:
    """Without batch norm the mean of the parts is the whole (fp32, the same images in the same order), also where class
    weights, and so what each part counts, differ. transformers averaged the means of the parts (its issue 24725)."""
    asked = {"train__clip_norm": 1e9, "train__balance": balance}
    whole = gradients(folder, config(train__batch_size=(32 - fewer) // 2, **asked), fewer)
    parts = gradients(folder, config(train__batch_size=4, train__accumulate=(32 - fewer) // 8, **asked), fewer)
    assert len(whole) == len(parts) == 4
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    norms = [float(g.norm()) for g in gradients(folder, config(train__clip_norm=0.01))]
    assert norms == pytest.approx([0.01] * 8, rel=1e-3)  # they are clipped
    assert min(float(g.norm()) for g in gradients(folder, config(train__clip_norm=1e9))) > 0.02


def test_a_last_group_of_fewer_batches_is_a_mean_too(folder: Path) -> None:
    """Four batches, three to a step: steps of three and of one, and that one is not divided by three."""
    still = {"train__epochs": 1, "train__lr": 1e-30, "train__min_lr": 0.0, "train__clip_norm": 1e9}
    grouped = gradients(folder, config(train__accumulate=3, **still))
    single = gradients(folder, config(**still))
    assert len(grouped) == 2 and len(single) == 4
    torch.testing.assert_close(grouped[0], sum(single[:3]) / 3, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(grouped[1], single[3], atol=1e-6, rtol=1e-5)


def test_what_is_validated_and_kept_is_the_average_of_the_weights_of_every_step(folder: Path) -> None:
    heads: list[torch.Tensor] = []
    asked = config(train__ema=True, train__ema_decay=0.5, train__epochs=1)
    state, records = begin(folder, asked, lambda step: heads.append(state.model.head.weight.detach().clone()))
    list(records)
    average = heads[0]
    for t, head in enumerate(heads[1:], start=1):
        decay = min(0.5, (1 + t) / (10 + t))
        average = decay * average + (1 - decay) * head
    torch.testing.assert_close(state.evaluated_model.head.weight.detach(), average)
    assert len(heads) == 4 and not torch.equal(heads[-1], average)
    state, _ = begin(folder, config(train__ema=False))
    assert state.evaluated_model is state.model


def test_a_state_of_training_whose_moments_do_not_fit_is_refused(folder: Path) -> None:
    """As of another network: a moment of one number would count for every weight."""
    state, _ = trained_state(folder, config(train__epochs=1))
    whole, fresh = state.state_dict(), begin(folder, config(train__epochs=1))[0]
    of_all = whole["optimiser"]["state"]
    for name in ("exp_avg", "exp_avg_sq", "step"):
        broken = whole["optimiser"] | {"state": of_all | {0: of_all[0] | {name: torch.ones(1)}}}
        with pytest.raises(ValueError, match=f"optimiser: {name} is"):
            fresh.load_state_dict(whole | {"optimiser": broken})
    with pytest.raises(ValueError, match="0 records of 1 finished epochs"):
        fresh.load_state_dict(whole | {"history": []})
    fresh.load_state_dict(whole)
    assert (fresh.epoch, fresh.step, fresh.history) == (1, 4, state.history)


def test_class_weights_are_inverse_frequencies() -> None:
    labels = np.array([0] * 6 + [1] * 3 + [2])
    weights = class_weights(labels, 3, CPU)
    assert weights.tolist() == pytest.approx([10 / (3 * 6), 10 / (3 * 3), 10 / (3 * 1)])
    assert float(weights[torch.from_numpy(labels)].mean()) == pytest.approx(1)  # the scale of the loss stays


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_mixing_keeps_shape_and_mass(mixup: float, cutmix: float) -> None:
    mix = mixup_and_cutmix(config(augment__mixup=mixup, augment__cutmix=cutmix), 3)
    torch.manual_seed(0)
    x, y = mix(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 0]))
    assert x.shape == (4, 3, 16, 16) and y.shape == (4, 3)
    torch.testing.assert_close(y.sum(dim=1), torch.ones(4))
    plain = mixup_and_cutmix(config(), 3)
    labels = torch.tensor([0])
    assert plain(x[:1], labels)[1] is labels


def test_the_same_seed_gives_the_same_weights_and_another_others(folder: Path) -> None:
    weights = [
        trained_state(folder, config(train__seed=s, model__dropout=0.2))[0].model.state_dict() for s in (1, 1, 2)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["head.weight"], weights[2]["head.weight"])


def test_patience_stops_and_best_is_the_best(folder: Path) -> None:
    """Weights that hardly move: the first epoch stays the best."""
    asked = config(train__lr=1e-12, train__min_lr=0.0, train__epochs=50, train__patience=3, train__monitor="accuracy")
    state, events = trained_state(folder, asked)
    epochs = [event for event in events if not isinstance(event, Step)]
    assert len(epochs) < 50 and state.epoch - state.best_epoch == 3
    kept = [record["epoch"] for record in epochs if record["kept"]]
    assert kept[-1] == state.best_epoch and max(np.diff([*kept, state.epoch])) <= 3  # no sooner, no later


def test_the_last_epoch_on_request(folder: Path) -> None:
    """`choose: last`: every epoch takes the place of the one before, and patience stops nothing; only the first of
    four alike is the best."""
    still = {"train__lr": 1e-30, "train__min_lr": 0.0, "train__patience": 1, "train__epochs": 4}
    state, events = trained_state(folder, config(train__choose="last", **still))
    assert [event["kept"] for event in events if not isinstance(event, Step)] == [True] * 4 and state.best_epoch == 4
    assert [(record["best"], record["kept"]) for record in state.history] == [(True, True), *[(False, True)] * 3]
    state, _ = trained_state(folder, config(**still, train__ema=False))
    assert (state.best_epoch, state.epoch) == (1, 2)


def test_the_epoch_with_the_lowest_loss_on_request(folder: Path) -> None:
    """`choose: loss`: one that ranks all images rightly (AUROC 1 after 0.75), but is surer of its errors, is not kept;
    patience counts from the one that is."""
    asked = config(train__choose="loss", train__patience=2, train__epochs=9)
    state, _ = begin(folder, asked)
    kept = []
    for scores in ([-0.5, 0.6, 0.5, 0.7], [5, 6, 7, 8], [5, 6, 7, 9]):
        logits = np.stack([np.zeros(4), scores], axis=1).astype(np.float32)
        record = epoch_record(state, Predictions(CLASSES, tuple("abcd"), None, np.array([0, 0, 1, 1]), logits), asked)
        kept.append((record["kept"], record["val_auroc"]))
        state.epoch += 1
    assert kept == [(True, 0.75), (False, 1.0), (False, 1.0)] and state.best_epoch == 1 and stops_early(state, asked)


def test_only_the_best_epoch_has_a_star(tmp_path: Path) -> None:
    """With `choose: last` too: best.pt is every epoch's in turn, the star says which did best on validation."""
    ui = recording()
    sets = (*TINY_NETWORK, "train.choose=last", "train.min_lr=0", "model.stem=patch")
    run = train(draw_splits(tmp_path / "d"), output=tmp_path, sets=sets, **BARE | {"lr": 1e-30, "epochs": 3})
    lines = [text for text in ui.said if text.startswith("epoch ")]
    assert [" *" in line for line in lines] == [True, False, False]
    assert any(text.startswith("last epoch: 3, validation auroc") for text in ui.said)
    assert torch.load(run.folder / "best.pt", weights_only=True)["record"]["epoch"] == 3


def test_a_run_that_stopped_early_asks_for_patience(tmp_path: Path) -> None:
    sets = (*TINY_NETWORK, "train.choose=loss", "train.min_lr=0", "model.stem=patch")
    flags = BARE | {"lr": 1e-30, "epochs": 9, "patience": 1}
    with listening(recording()):
        run = train(draw_splits(tmp_path / "d"), output=tmp_path, sets=sets, **flags)
        with pytest.raises(UsageError, match="is finished and evaluated") as caught:
            train(resume=run.folder, epochs=12)
    assert f"vitmed train --resume {run.folder} --patience N" in caught.value.fix


def test_of_epochs_that_are_alike_the_lower_loss_is_the_best(folder: Path) -> None:
    """AUROC 1 in each: on a small split that says little, the loss says more."""
    asked = config()
    state, _ = begin(folder, asked)
    best = []
    for sharp in (1.0, 3.0, 3.0, 2.0, 5.0):
        logits = sharp * np.array([[1, 0], [0, 1]], np.float32)
        said = Predictions(CLASSES, ("a", "b"), None, np.array([0, 1]), logits)
        best.append(epoch_record(state, said, asked)["best"])
        state.epoch += 1
    assert best == [True, True, False, False, True] and state.best == 1.0 and state.best_epoch == 5


@pytest.mark.parametrize("monitor", ["ppv_macro", "npv_macro"])
def test_a_monitor_that_is_undefined_counts_as_worst(folder: Path, monitor: str) -> None:
    """Where no image is predicted as a class, its predictive value is 0/0: no reason to stop, and never the best.

    Among undefined epochs the lower validation loss is better.
    """
    asked = config(train__monitor=monitor, train__patience=3, train__epochs=9)
    state, _ = begin(folder, asked)
    both = np.array([[3, 0], [0, 3], [0, 3]], np.float32)
    nobody = np.array([[0, 1]] * 3, np.float32)
    kept = []
    for logits in (nobody, 2 * nobody, 0.5 * nobody, both, nobody):
        said = Predictions(CLASSES, ("a", "b", "c"), None, np.array([0, 1, 1]), logits, positive="blue")
        record = epoch_record(state, said, asked)
        kept.append(record["kept"])
        assert (f"val_{monitor}" in record) == (logits is both) and record["best"] == record["kept"]
        state.epoch += 1
    assert kept == [True, False, True, True, False]  # too sure of wrong answers, less sure, right, wrong again
    assert (state.best, state.best_epoch) == (1.0, 4)


def test_outputs_that_are_no_numbers_end_the_run(folder: Path) -> None:
    asked = config()
    state, _ = begin(folder, asked)
    said = Predictions(CLASSES, ("a", "b"), None, np.array([0, 1]), np.array([[1, 0], [np.nan, 1]], np.float32))
    with pytest.raises(VitmedError, match="NaN or infinite for validation images in epoch 1"):
        epoch_record(state, said, asked)


def test_a_run_whose_monitor_is_undefined_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that hardly move and predict one class: the run ends with a report, and a warning says why."""

    def biased(*args: Any) -> Any:
        model = ViT(*args)
        model.head.bias.data[0] = 9.0
        return model

    monkeypatch.setattr("vitmed.training.finetune.ViT", biased)
    ui = recording()
    still = BARE | {"lr": 1e-30, "monitor": "ppv_macro", "epochs": 2, "report": True}
    sets = (*TINY_SETS, "train.min_lr=0", "model.stem=patch")
    run = train(draw_splits(tmp_path / "d"), output=tmp_path, sets=sets, **still)
    lines = [line for line in ui.said if line.startswith("epoch ")]
    assert [("ppv_macro undefined" in line, " *" in line) for line in lines] == [(True, True), (True, False)]
    assert "best epoch: 1, validation ppv_macro undefined" in " ".join(ui.said)
    warned = [text for text in ui.warned if "ppv_macro" in text]
    assert len(warned) == 1 and "a class is never predicted" in warned[0]
    assert (run.folder / "test" / "report.html").is_file()


def test_a_monitor_that_shall_fall(folder: Path) -> None:
    state, _ = trained_state(folder, config(train__monitor="log_loss", train__epochs=4, train__lr=1e-3))
    losses = [record["val_log_loss"] for record in state.history]
    assert state.best == min(losses) and losses[state.best_epoch - 1] == state.best


@pytest.mark.parametrize("late", [False, True])
def test_nan_names_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """One image becomes NaN; batches of one, so that exactly its file is named, also as the epoch's last."""
    data = images(folder)
    asked = config(train__batch_size=1, train__epochs=1)
    order = EpochBatches(data.labels, 1, 0, False).order(0)
    victim = int(order[-1] if late else order[5])
    poisoned, normalise = data.read(victim), Preprocessing.normalise

    def poison(self: Preprocessing, batch: torch.Tensor) -> torch.Tensor:
        x = normalise(self, batch)
        for row, image in enumerate(batch):
            if np.array_equal(image.numpy(), poisoned):
                x[row] = float("nan")
        return x

    monkeypatch.setattr(Preprocessing, "normalise", poison)
    with pytest.raises(VitmedError, match="loss became NaN") as error:
        trained_state(folder, asked)
    assert data.samples[victim].path in error.value.problem
    assert sum(sample.path in error.value.problem for sample in data.samples) == 1


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_an_infinite_gradient_is_told(folder: Path, precision: str) -> None:
    stream = Stream.of(images(folder), config(), CPU)
    state = new_state(ViT(config().model, 2), config(), stream.batches.batches, CPU, FP32)
    state.running |= {"loss": 0.7, "images": 1.0}
    watch = LossWatch(state, stream, Control(load_config(None, {"train.lr": 0.01, "train.precision": precision})))
    watch.add(torch.tensor(1.0), torch.tensor(math.inf), torch.tensor([3, 17]))
    with pytest.raises(VitmedError, match="gradient became NaN or infinite") as error:
        watch.flush()
    assert "amber/amber_3.png" in error.value.problem and "blue/blue_1.png" in error.value.problem
    assert "epoch 1," in error.value.problem and "--lr 0.001" in error.value.fix
    assert ("fp32" in error.value.fix) == (precision == "auto")


def test_gradients_that_stay_infinite_in_fp16_are_told(folder: Path) -> None:
    """A scaler skips the step and halves its scale; below 1, no scale makes the gradient finite."""
    stream = Stream.of(images(folder), config(), CPU)
    state = new_state(ViT(config().model, 2), config(), stream.batches.batches, CPU, FP32)
    watch = LossWatch(state, stream, Control(config()))
    for scale in (1.0, 0.5):
        state.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        watch.pending = torch.tensor(1.0), torch.tensor(math.nan), torch.tensor([3])
        with pytest.raises(VitmedError, match="gradient") if scale < 1 else contextlib.nullcontext():
            watch.flush()


def test_a_learning_rate_that_is_too_high_is_told(tmp_path: Path) -> None:
    ui = recording()
    sets = (*TINY_SETS, "train.patience=null")
    train(draw_splits(tmp_path / "d"), output=tmp_path / "runs", sets=sets, **BARE | {"lr": 10.0, "epochs": 8})
    told = [text for text in ui.warned if "does not learn" in text]
    assert told and "learning rate 10 is too high" in told[0] and "Try --lr 0.0005" in told[0]


def test_mixing_warns_of_calibration_and_balancing_names_the_decision(tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "d", 4, 2, 2)
    for flags, word in (({"balance": "loss"}, "--youden"), ({"balance": "adjust"}, "--youden"), ({"mixup": 0.2}, "")):
        ui = recording()
        train(data, output=tmp_path / "runs", sets=TINY_SETS, **BARE | flags | {"epochs": 1})
        assert any("calibration" in text and "mixup" in text for text in ui.warned) == (not word), flags
        assert any("prevalence of training" in text and "--youden" in text for text in ui.said) == bool(word), flags


def test_the_test_split_takes_no_part_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are decoded once, to find the broken ones; then not again until training is over."""
    log: list[str] = []
    read = rasters.read

    def note(path: Path, frame: int | None) -> Any:
        if "/test/" in str(path):
            log.append("read")
        return read(path, frame)

    class Notes(Recorder):
        def say(self, text: str) -> None:
            super().say(text)
            if text.startswith(("epoch", "best")):
                log.append("epoch")
                assert not list((tmp_path / "runs").glob("*/test"))

    monkeypatch.setattr(rasters, "read", note)
    data = draw_splits(tmp_path / "d", test=3)
    with listening(Notes()):
        result = train(data, output=tmp_path / "runs", sets=TINY_SETS, **BARE)
    assert log[: 6 + 3] == ["read"] * 6 + ["epoch"] * 3 and set(log[9:]) == {"read"}
    assert (result.folder / "test" / "predictions.csv").is_file()


def test_the_validation_result_of_the_end_is_that_of_the_best_epoch(trained: Trained) -> None:
    """What is reported is the checkpoint that was written, not what was in memory."""
    records = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    best = [record for record in records if record["best"]][-1]
    overall = trained.result.val.metrics["overall"]
    for name in ("auroc", "accuracy", "log_loss"):
        assert overall[name]["value"] == pytest.approx(best[f"val_{name}"], abs=1e-6)
