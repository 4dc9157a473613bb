"""A network that does not learn is noticed and told why; one that does is left in peace."""

from __future__ import annotations

import math

import pytest

from vitmed.core.load_config import load_config
from vitmed.training.early_stopping import WINDOW, stuck

EPOCHS = 30


def record(
    loss: float = 0.693, share: float = 1.0, top: str = "sick", step: int = 5000, epoch: int = EPOCHS
) -> dict[str, object]:
    return {"train_loss": loss, "top_share": share, "top_class": top, "step": step, "epoch": epoch}


def told(
    history: list[dict[str, object]], counts: tuple[int, ...] = (100, 100), over: float = 1.0, **train: object
) -> str | None:
    config = load_config(None, {f"train.{key}": value for key, value in {"epochs": EPOCHS, **train}.items()})
    return stuck(history, ("sick", "healthy", "2", "3", "4")[: len(counts)], counts, config, over)


# Knees, grades as classes, 32 epochs (docs/targets.md): top share and training loss; kappa 0.595 at the end.
KNEES = (
    (1.0, 1.4437), (1.0, 1.4459), (1.0, 1.4426), (1.0, 1.4368), (1.0, 1.4292), (0.9867, 1.4312), (1.0, 1.4307),
    (0.9973, 1.4259), (0.9947, 1.4228), (0.9973, 1.4116), (0.9867, 1.4009), (0.9654, 1.3779), (0.6489, 1.3667),
    (0.5399, 1.3227), (0.8298, 1.3131), (0.8883, 1.2876), (0.5878, 1.2827), (0.8963, 1.2593), (0.7128, 1.2535),
)  # fmt: skip
KL = (578, 279, 401, 198, 45)


def test_a_slow_start_is_no_failure() -> None:
    history = [record(loss, share, step=47 * e, epoch=e) for e, (share, loss) in enumerate(KNEES, start=1)]
    said = [told(history[:e], KL, over=e / 32, epochs=32) for e in range(1, len(history) + 1)]
    assert said == [None] * len(history)
    assert told(history[:11], KL, epochs=32) is not None  # the same in a run that ends there


def test_a_run_that_stays_at_chance_is_named_in_its_middle() -> None:
    """The notebook of 2024: 30 epochs of malaria at ln 2."""
    history = [record(step=12 * e, epoch=e) for e in range(1, EPOCHS + 1)]
    said = [told(history[:e], over=e / EPOCHS) for e in range(1, EPOCHS + 1)]
    assert [text is not None for text in said] == [e >= EPOCHS / 2 for e in range(1, EPOCHS + 1)]
    assert "360 optimiser steps are too few" in (said[14] or "")  # of the run, not those so far


def test_what_it_warns_of() -> None:
    """One class and a constant loss, one class after the other, and a loss above that of guessing, at once."""
    message = told([record()] * WINDOW)
    assert message is not None
    for part in ("it predicts 'sick' for 100% of the validation images", "50% of the training images", "0.693"):
        assert part in message
    assert told([record(), record(top="healthy"), record()]) is not None
    assert told([record(loss=0.7 - 0.0035 * i) for i in range(WINDOW)]) is not None  # by 1 %: it stands still
    assert told([record(loss=1.1, share=0.6)] * WINDOW) is not None  # 1.5 ln 2 = 1.04
    message = told([record(loss=5.0 - i, share=0.6) for i in range(WINDOW)], lr=1.0)  # ln 2 = 0.693 for two classes
    assert message is not None and "3.000" in message and "0.693" in message and "learning rate 1" in message
    assert told([record(loss=5.0, step=60, epoch=e) for e in range(1, WINDOW + 1)], over=0.1) is not None


@pytest.mark.parametrize(
    "history",
    [
        [record()] * (WINDOW - 1),
        [record(loss=0.8 - 0.05 * i) for i in range(WINDOW)],  # the loss falls
        [record(share=0.7)] * WINDOW,  # both classes are given
        [record(loss=2.0)] * (WINDOW - 1) + [record(loss=0.9, share=0.6)],  # it has come down
        [record()] * 5 + [record(share=0.6)],  # it has recovered
        [record(loss=0.7 - 0.0105 * i) for i in range(WINDOW)],  # the loss falls slowly, by 3 % in all
        [record(loss=1.0, share=0.6)] * WINDOW,  # above that of guessing, but by less than half
        [record(loss=1.5 * math.log(2), share=0.6)] * WINDOW,  # by half, and no more
    ],
)
def test_a_network_that_learns_is_left_in_peace(history: list[dict[str, object]]) -> None:
    assert told(history) is None


def test_a_rare_class_does_not_make_an_alarm() -> None:
    """97 % of one class on the training side: calling 97 % so is right, calling everything so is not."""
    assert told([record(share=0.97)] * WINDOW, counts=(97, 3)) is None
    message = told([record(share=1.0)] * WINDOW, counts=(97, 3))  # 0.97 ln(1 / 0.97) + 0.03 ln(1 / 0.03)
    assert "97% of the training images" in str(message) and "by class frequency gives 0.135" in str(message)


@pytest.mark.parametrize(
    ("train", "step", "parts"),
    [
        ({"lr": 0.1}, 5000, ["learning rate 0.1 is too high", "--lr 0.0005"]),
        ({"lr": 0.003}, 5000, ["learning rate 0.003 is too high", "--lr 0.0003"]),
        ({"warmup_epochs": 0.0}, 5000, ["no warm-up", "--warmup-epochs 3"]),
        ({"weight_decay": 5.0}, 5000, ["weight decay 5", "--weight-decay 0.05"]),
        ({"lr": 2e-6}, 5000, ["too low", "--lr 5e-4"]),
        ({}, 60, ["60 optimiser steps", "--epochs"]),
        ({}, 499, ["499 optimiser steps"]),
        ({}, 500, ["contact_sheet.png"]),
        ({}, 5000, ["contact_sheet.png"]),
    ],
)
def test_the_likely_cause_and_what_to_change(train: dict[str, object], step: int, parts: list[str]) -> None:
    message = told([record(step=step)] * WINDOW, **train)
    assert message is not None and all(part in message for part in parts), message


@pytest.mark.parametrize("r2, loss, warned", [(-0.03, 0.84, True), (0.06, 0.84, False), (None, 0.84, False)])
def test_one_number_for_all_images_is_noticed(r2: float | None, loss: float, warned: bool) -> None:
    history: list[dict[str, object]] = [{"train_loss": loss, "val_r2": r2, "step": 1500, "epoch": EPOCHS}] * WINDOW
    message = told(history)
    assert ("one number for all validation images is no worse" in str(message)) == warned
    assert (message is None) == (not warned)


def of_findings(auroc: float | None, loss: float = 0.35) -> dict[str, object]:
    entry: dict[str, object] = {"train_loss": loss, "step": 5000, "epoch": EPOCHS}
    return entry if auroc is None else {**entry, "val_auroc": auroc}


def test_findings_that_are_not_learned_are_named() -> None:
    message = told([of_findings(0.51), of_findings(0.48), of_findings(0.53)])
    assert message is not None
    for part in ("does not learn", "AUROC of the findings is 0.530", "guessing gives 0.5", "0.350", "Likely cause"):
        assert part in message
    for fine in (
        [of_findings(0.51), of_findings(0.7), of_findings(0.53)],  # it learns something
        [of_findings(0.5, loss) for loss in (0.4, 0.35, 0.3)],  # the loss falls
        [of_findings(None)] * WINDOW,  # validation has too few of any finding
    ):
        assert told(fine) is None
    assert told([of_findings(0.5)] * WINDOW, over=0.2) is None


def test_a_number_that_is_not_learned_is_named() -> None:
    def of_number(r2: float | None) -> dict[str, object]:
        entry = of_findings(None)
        return entry if r2 is None else {**entry, "val_r2": r2}

    for values in ((-0.1, -0.02, -0.01), (0.0, 0.0, 0.0), (-0.1, 0.0, -0.1)):
        message = told([of_number(value) for value in values])
        assert message is not None and "one number for all validation images" in message
    for values in ((-0.1, 0.02, -0.1), (-0.1, None, -0.1)):
        assert told([of_number(value) for value in values]) is None
